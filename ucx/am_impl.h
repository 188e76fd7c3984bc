/*
 * am_impl.h - what the two halves of the carrier share: am.c runs on the polling core, am_carrier.c on the net
 * core. Nobody else includes this, but for ep.c and worker.c, which tell am.c what happens to their own.
 */
#ifndef RV_UCX_AM_IMPL_H
#define RV_UCX_AM_IMPL_H

#include <stdalign.h>

#include "dataplane/base/counter.h"
#include "ucx/am.h"

struct rv_ucx_ep;
struct rv_ucx_peer;
struct rv_ucx_worker;

/** The sender's incarnation before a header. */
#define RV_AM_TAG 8u

enum rv_am_kind {
	RV_AM_OPEN,   /* down; back up with its outcome */
	RV_AM_SEND,   /* down; back up once UCX is done with it */
	RV_AM_CLOSE,  /* down; back up: the link is out of use */
	RV_AM_STOP,   /* down; back up: no frame follows */
	RV_AM_RETIRE, /* down; back up with its outcome */
	RV_AM_KEEP,   /* down; back up */
	RV_AM_IDLE,   /* up: shall the way to a peer close? */
	RV_AM_LOST,   /* up: the link's endpoint is gone */
	RV_AM_FRAME,  /* up */
};

/* What travels between the halves. Held by one of them at a time. */
struct rv_am_note {
	struct rv_list link;
	enum rv_am_kind kind;
	int rc;
	struct rv_am_link *l;
	uint64_t worker; /* RETIRE, KEEP, IDLE */
	bool agreed;     /* RETIRE */
	unsigned type;
	size_t header_len, payload_len;
	const uint8_t *payload; /* SEND: in bytes, or the sender's; FRAME: in bytes */
	rv_sent_fn *sent;
	void *ctx;
	struct rv_ucx_ep *ep; /* SEND: in flight there */
};

/** Behind a note that was made with room. SEND: for the tag, header, payload; FRAME: header, payload. */
static inline uint8_t *rv_am_bytes(struct rv_am_note *n)
{
	return (uint8_t *)(n + 1);
}

/* The body of the cell that takes notes across. */
struct rv_am_batch {
	struct rv_ucx_am *am;
	struct rv_list notes;
};

struct rv_am_link {
	struct rv_link link;
	struct rv_ucx_am *am;
	uint64_t worker;
	uint64_t tag; /* what goes before each header */
	uint32_t frame_max;
	char name[32];
	struct rv_am_note open, close, lost;

	/* Written by the net core. */
	struct rv_list all;
	size_t queued;
	unsigned out; /* notes that are down */
	bool closing, over;
	int rc;

	/* Written by the polling core. */
	alignas(64) struct rv_ucx_peer *peer; /* NULL: not open */
};

struct rv_ucx_am {
	struct rv_carrier carrier;
	struct rv_ucx_am_conf conf;
	bool direct; /* one reactor is both */
	struct rv_am_note stop;

	/* Written by the net core. */
	struct rv_link common;
	struct rv_list links;
	struct rv_list down; /* waiting for the cell */
	struct rv_cell *down_cell;
	bool down_away, started, stopping, stopped;
	size_t queued;

	/* Written by the polling core. */
	alignas(64) struct rv_ucx_worker *w; /* NULL: not open */
	struct rv_list up;
	struct rv_cell *up_cell;
	bool up_away, deaf;
	size_t up_bytes, up_taken; /* of frames that are up; in the batch that is away */
	size_t header_max;
	struct rv_counter dropped;
};

/* am.c, called by the other half, on the polling core: take a note. */
void rv_am_take(struct rv_ucx_am *am, struct rv_am_note *n);

/* am_carrier.c, called by the other half, on the net core: take a note back, or a frame. */
void rv_am_bring(struct rv_ucx_am *am, struct rv_am_note *n);

/* For worker.c and ep.c. @thread owning reactor */

/** The worker is open: take frames from now on. @return 0, -EAGAIN (no cell) or what UCX says */
int rv_am_attach(struct rv_ucx_am *am, struct rv_ucx_worker *w);
/** The worker is about to be destroyed. */
void rv_am_detach(struct rv_ucx_am *am);
/** Hand on what arrived. @return how much. */
unsigned rv_am_poll(struct rv_ucx_am *am);
/** Is the net core behind by so much that nothing more may arrive? */
bool rv_am_full(const struct rv_ucx_am *am);
/** Is there something to hand on at once? */
bool rv_am_busy(const struct rv_ucx_am *am);
/** The endpoint under a link is closed. */
void rv_am_lost(struct rv_am_link *l);
/** Ask the user whether the way to a peer may close. @return 0, -ENOTSUP (nobody to ask) or -ENOMEM */
int rv_am_ask_idle(struct rv_ucx_am *am, uint64_t worker);
/** UCX will never complete this send: its worker is gone. */
void rv_am_send_lost(struct rv_am_note *n);

#endif
