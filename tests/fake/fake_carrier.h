/*
 * fake_carrier.h - connections without sockets: what is sent is kept, what arrives the test makes up.
 *
 *   fake_link_up() accepts; what the messenger dials is found with fake_carrier_link(c, n)
 *   fake_link_frame() delivers a whole frame; fake_link_begin, _arrive, _end one in pieces
 *
 * With fake_carrier_init_datagrams() it is a carrier of datagrams: what the messenger reaches is found with
 * fake_carrier_link(c, n) too, where 0 is the common link, on which frames are delivered.
 */
#ifndef RV_TESTS_FAKE_CARRIER_H
#define RV_TESTS_FAKE_CARRIER_H

#include "dataplane/base/list.h"
#include "dataplane/interfaces/carrier.h"

#define FAKE_LINKS 32

/** A frame that was sent. */
struct fake_sent {
	struct rv_list link;
	unsigned type;
	size_t header_len, payload_len;
	uint8_t *header, *payload;
	const struct iovec *piece; /* the payload's, until it is taken */
	size_t piece_nr;
	rv_sent_fn *sent; /* still to be called */
	void *ctx;
};

struct fake_link {
	struct rv_link link;
	struct fake_carrier *carrier;
	char host[64];
	uint16_t port;
	uint64_t worker, as; /* reached */
	uint32_t frame_max;  /* 0: any */
	bool open, connecting, closing, paused;
	int close_rc;
	struct rv_list out; /* struct fake_sent */
	size_t queued;      /* what queued() says */
	int send_rc;        /* what send() says */
	unsigned sent_nr;

	/* the frame that is arriving */
	bool arriving, displacing;
	unsigned type;
	uint8_t header[512], *place, *own;
	size_t header_len, payload_len, got;
};

struct fake_carrier {
	struct rv_carrier carrier;
	const struct rv_carrier_events *events;
	void *user;
	struct fake_link *link[FAKE_LINKS]; /* in the order made; stays until fini */
	unsigned link_nr, dials, reached;
	unsigned retires, keeps; /* and what the last of them said: */
	uint64_t told_worker;
	bool agreed;
	void *retire_ctx;
	bool displace_pends; /* displace() says false; fake_link_displaced() tells later */
	bool no_dial;        /* dial() returns NULL */
};

void fake_carrier_init(struct fake_carrier *c, const struct rv_carrier_events *events, void *user);
void fake_carrier_init_datagrams(struct fake_carrier *c, const struct rv_carrier_events *events,
				 void *user);
void fake_carrier_fini(struct fake_carrier *c);

/** The @n th link, dialed or accepted; the test fails when there is none. */
struct fake_link *fake_carrier_link(const struct fake_carrier *c, unsigned n);

/** A peer connects to us. */
struct fake_link *fake_link_accept(struct fake_carrier *c);
/** What a dialed link's attempt ends with; a failure also closes it. */
void fake_link_connected(struct fake_link *l, int rc);
/** Over; also what a close() that was asked for becomes. */
void fake_link_closed(struct fake_link *l, int rc);

/** The oldest frame sent and not yet taken; the test fails when there is none. */
struct fake_sent *fake_link_take(struct fake_link *l);
bool fake_link_quiet(const struct fake_link *l);
/** Free a frame taken; calls its sent(). */
void fake_sent_free(struct fake_sent *s);

void fake_link_frame(struct fake_link *l, unsigned type, const void *header, size_t header_len,
		     const void *payload, size_t payload_len);
/** The header of a frame arrived. @return the place its payload goes to, or NULL: the carrier's own */
void *fake_link_begin(struct fake_link *l, unsigned type, const void *header, size_t header_len,
		      size_t payload_len);
/** Payload bytes: written to the place while there is one. */
void fake_link_arrive(struct fake_link *l, const void *bytes, size_t len);
void fake_link_end(struct fake_link *l);
/** The carrier has let go of the place (displace_pends). */
void fake_link_displaced(struct fake_link *l);

#endif
