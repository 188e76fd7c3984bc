/*
 * calls.h - the calls that wait for a peer's answer, by message id.
 *
 *   begin --> waiting (for the route) --> sent --answer--> done(0 | -EREMOTEIO)
 *                 |                         |--deadline--> done(-ETIMEDOUT)
 *                 '------- link closed -----'------------> done(-ECONNRESET)
 *
 * An id is our WorkerId, a slot and that slot's generation, so a late or forged answer to a call that is over
 * finds nothing. A call may name a place for its answer's payload; then the answer lands there directly, and
 * ending the call early first takes the place away from the link.
 *
 * @thread the net core's   @cost O(1), no allocation
 */
#ifndef RV_CONTROL_MESSENGER_CALLS_H
#define RV_CONTROL_MESSENGER_CALLS_H

#include "control/frame/frame.h"
#include "dataplane/base/handle.h"
#include "dataplane/lcore/reactor.h"

struct rv_mlink;
struct rv_route;
struct rv_call;

#define RV_CALLS_MAX    65535u
#define RV_CALL_HEADERS 160u

struct rv_call_answer {
	int rc; /* 0; -EREMOTEIO: payload is the peer's text; -ESHUTDOWN; -ECONNRESET; -ETIMEDOUT; -EPROTO */
	const uint8_t *payload;
	size_t len;
	bool placed;            /* the payload is in the call's place */
	const uint8_t *headers; /* a response's; NULL: none */
	size_t headers_len;
};

/** The record is free again when this returns. */
typedef void rv_call_fn(struct rv_call *c, const struct rv_call_answer *a);

struct rv_call {
	struct rv_list link; /* free list; a route's waiting list; a link's sent list */
	uint64_t generation;
	uint16_t slot;
	enum { RV_CALL_FREE, RV_CALL_WAITING, RV_CALL_SENT } state;
	rv_call_fn *done;
	/** An answer that comes after the deadline goes here (an acquire's lease must be ended); may be NULL. */
	rv_call_fn *late;
	/** Write the body and name the handler and kind, when it is sent. @return 0, or what ends the call */
	int (*encode)(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body);
	void *ctx;
	unsigned
		frame; /* RV_FRAME_*: an answer's header is in `headers`, its payload in `body`; 0: a request */
	struct rv_route *route;    /* `_hello`: whose; rv_call_of_route() */
	struct rv_port *late_port; /* whose user is told by `late` */
	struct rv_handle handle;
	uint64_t arg;
	uint8_t headers
		[RV_CALL_HEADERS]; /* a msgpack map for the request, written before it is submitted */
	uint16_t headers_len;
	uint8_t *
		body; /* heap: the body as it is, instead of what encode() writes; freed at the end */
	size_t body_len;
	bool bulk;   /* on the second connection, where there is one */
	bool oneway; /* over once sent */
	int dying;   /* ends with this once its place is given up */
	struct rv_task deadline;
	struct rv_mlink *on;      /* sent on */
	struct rv_mlink *placing; /* its answer's payload is arriving there */
	uint8_t *place;
	size_t place_len;
	bool place_upto; /* it takes shorter payloads too, of answers that have a lease in their headers */
	uint64_t placed_lease; /* that one, of the answer that is arriving there */
	uint64_t sent_ns;
};

struct rv_calls {
	struct rv_reactor *reactor;
	uint64_t worker;
	struct rv_call *call;
	struct rv_list free;
	uint32_t fresh, freed;
	uint64_t live;
};

int rv_calls_init(struct rv_calls *t, struct rv_reactor *r, uint64_t worker);
void rv_calls_fini(struct rv_calls *t);

/** A record that waits. @return NULL: all in use */
struct rv_call *rv_call_begin(struct rv_calls *t, uint64_t deadline_ns, rv_call_fn *done,
			      void *ctx);

struct rv_msg_id rv_call_id(const struct rv_calls *t, const struct rv_call *c);

/** The call an answer's id names, if it is one of ours that was sent. */
struct rv_call *rv_call_find(struct rv_calls *t, const struct rv_msg_id *id);

/** End a call: free the record, then done(). Nothing may be arriving in its place. */
void rv_call_finish(struct rv_calls *t, struct rv_call *c, const struct rv_call_answer *a);

/** Forget a call: nobody is told. */
void rv_call_forget(struct rv_calls *t, struct rv_call *c);

#endif
