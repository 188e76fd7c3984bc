/*
 * messenger.h - speaks velo's protocol on whatever carrier there is: answers requests, makes calls.
 *
 *   peer  --frames--> link --> inbound: handlers --cells--> engines
 *   engine --cell--> outbound: call table --> route --> link --frames--> peer
 *
 * A *route* is how we reach a peer: the link we said `_hello` on, and send requests on. Where the peer has a TCP
 * address it is a connection we dialed, and our own nodes get a second one for chunks; where it has only a fabric
 * address, frames go as datagrams. Answers choose for themselves: back on the connection their request came in on,
 * or, if it came as a datagram, to whoever asked as datagrams too, and by TCP where one is too long for that.
 *
 * @thread the net core's, but for what says otherwise
 */
#ifndef RV_CONTROL_MESSENGER_MESSENGER_H
#define RV_CONTROL_MESSENGER_MESSENGER_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/engine/engine.h"
#include "dataplane/interfaces/carrier.h"
#include "dataplane/interfaces/peer_calls.h"
#include "dataplane/rendezvous/peers.h"

struct rv_messenger;
struct rv_peer_info;

struct rv_messenger_conf {
	struct rv_reactor *reactor; /* the net core's */
	struct rv_carrier *carrier;
	struct rv_engines *engines;
	uint8_t instance[16];
	uint64_t worker;
	unsigned blob_version;
	uint32_t pull_window_bytes;
	uint64_t call_timeout_ns;
	const uint64_t *former; /* WorkerIds this node had before; borrowed */
	size_t former_nr;
	const char *node_name;
	uint64_t
		staged_fetch_timeout_ns; /* bound of every fetch of a staged message; RV_NEVER: none */
	uint64_t staged_payload_max;     /* longest one taken; 0: any */
	/** Give back a block that was fetched for a program that is gone. */
	void (*drop_block)(void *user, struct rv_engine *e, struct rv_block *b);
	void *drop_user;
	/**
	 * Look a node up that is not known here: rv_messenger_found() is called later. @return 0 or -EAGAIN
	 * It is not asked again for the same node before that.
	 * NULL: there is nowhere to look.
	 */
	int (*find)(void *user, uint64_t worker);
	void *find_user;
};

/** Why a staged message's payload was not taken; the label of rvd_staged_payloads_refused_total. */
enum rv_refused_payload {
	RV_REFUSED_TOO_LONG,
	RV_REFUSED_TIMEOUT,
	RV_REFUSED_FETCH_FAILED,
	RV_REFUSED_REASONS
};
const char *rv_refused_payload_name(enum rv_refused_payload r);
uint64_t rv_messenger_refused_payloads(const struct rv_messenger *m, enum rv_refused_payload r);

/** Why a peer's `_hello` was not taken; the label of rvd_handshakes_rejected_total. */
enum rv_rejected_hello {
	RV_REJECTED_MALFORMED, /* it cannot be read */
	RV_REJECTED_UNUSABLE,  /* it is us or nobody, or no address of it can be reached */
	RV_REJECTED_NO_ROOM,   /* the table of peers is full, or no memory */
	RV_REJECTED_ELSEWHERE, /* it says that a peer has moved, and comes from elsewhere than where that peer is */
	RV_REJECTED_REASONS
};
const char *rv_rejected_hello_name(enum rv_rejected_hello r);
uint64_t rv_messenger_rejected_hellos(const struct rv_messenger *m, enum rv_rejected_hello r);

/** @return NULL without memory. @thread init */
struct rv_messenger *rv_messenger_create(const struct rv_messenger_conf *conf);

/** Every link must be closed. */
void rv_messenger_destroy(struct rv_messenger *m);

/** Our WorkerAddress, once the listeners and the fabric are known; copied. @thread init */
int rv_messenger_set_address(struct rv_messenger *m, const uint8_t *addr, size_t len);

/**
 * A second carrier, of datagrams, beside the one for connections: that of @core 0, by its engine's place. Those of
 * other cores carry nothing, and are asked and told about ways that are idle.
 *
 * @thread init
 */
void rv_messenger_set_datagrams(struct rv_messenger *m, unsigned core,
				struct rv_carrier *datagrams);

/** Is a Message with this header to be refused because this node is draining? @m the messenger. @thread any */
bool rv_messenger_refuses(void *m, const uint8_t *header, size_t len);

/** What the carrier calls; its user is the messenger. */
const struct rv_carrier_events *rv_messenger_events(void);

/** For engines. The port user of the net core's port must be the messenger. */
struct rv_peer_calls *rv_messenger_calls(struct rv_messenger *m);

/**
 * End a lease without an answer, here or at its owner.
 *
 * @param cell  a free one, the messenger's from now on
 * @param release  take a reference with it (else a detach)
 */
void rv_messenger_end_lease(struct rv_messenger *m, struct rv_cell *cell, struct rv_handle h,
			    uint64_t lease_id, bool release);

/** conf.run_transfer_end of the engines. */
rv_cell_fn rv_messenger_run_transfer_end;

/** Our own PeerInfo as JSON (a heap string, the caller frees) or msgpack bytes. @return NULL without memory */
char *rv_messenger_peer_info_json(const struct rv_messenger *m);
uint8_t *rv_messenger_peer_info_msgpack(const struct rv_messenger *m, size_t *len);

/**
 * Make a peer known from its PeerInfo (JSON text or msgpack).
 *
 * @param name  what people call it, or NULL
 * @param why   on failure: what is wrong, static text
 * @return 0 and its WorkerId; -EPROTO, -ENOMEM, -EHOSTUNREACH (no transport of ours)
 */
int rv_messenger_add_peer_info(struct rv_messenger *m, const void *info, size_t len,
			       const char *name, uint64_t *worker, const char **why);

/** As above for PeerInfo already taken apart. */
int rv_messenger_add_peer(struct rv_messenger *m, const struct rv_peer_info *pi, const char *name,
			  uint64_t *worker, const char **why);

/** What a connection attempt by address ended with. */
struct rv_connect_result {
	int rc;
	uint64_t worker; /* of the node that answered; `expected` if it does not say */
	bool told;       /* it said who it is */
	const char *why;
};

/**
 * Connect to @host:@port and say `_hello`, so that handles of @expected can be fetched from there.
 *
 * @param expected  the WorkerId in the handle; 0: whoever answers (only our own nodes say)
 * @param done      called once, perhaps from inside; @ctx its argument
 */
void rv_messenger_connect(struct rv_messenger *m, const char *host, uint16_t port,
			  uint64_t expected, const char *name, uint64_t deadline_ns,
			  void (*done)(void *ctx, const struct rv_connect_result *r), void *ctx);

/**
 * See to it that @worker can be reached, if only by asking where nodes are looked up. One that is known is not asked
 * for, nor is one where there is nowhere to ask: then what follows says that it is not known.
 *
 * @param done  called once, perhaps from inside: rc 0, -EHOSTUNREACH, -ETIMEDOUT, -EAGAIN, -ESHUTDOWN, -ENOMEM
 */
void rv_messenger_find(struct rv_messenger *m, uint64_t worker, uint64_t deadline_ns,
		       void (*done)(void *ctx, const struct rv_connect_result *r), void *ctx);

/**
 * What conf.find came to.
 *
 * @param rc   0 with @pi; -ENOENT: there is no such node; others with @why
 */
void rv_messenger_found(struct rv_messenger *m, uint64_t worker, int rc,
			const struct rv_peer_info *pi, const char *why);

const struct rv_peers *rv_messenger_peers(const struct rv_messenger *m);
/** A name that was asked for, and behind which another node answers: no peer to show. */
bool rv_messenger_is_stranger(const struct rv_peer *p);

/** "up", "dialing", "down"; for `rvctl peers`. */
const char *rv_messenger_peer_state(const struct rv_peer *p);

/** Refuse new requests but for what lets running transfers end. */
void rv_messenger_drain(struct rv_messenger *m);
bool rv_messenger_is_draining(const struct rv_messenger *m);

/** Requests accepted and not answered, and transfers with a send under way. */
uint64_t rv_messenger_pending(const struct rv_messenger *m);

/** Fail everything that waits for a peer. */
void rv_messenger_stop(struct rv_messenger *m);

/** Chunk bytes served; other counts are the engines'. */
uint64_t rv_messenger_bytes_out(const struct rv_messenger *m);

#endif
