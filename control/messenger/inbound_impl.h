/*
 * inbound_impl.h - what the files that answer peers' requests share: inbound, answers, transfers. Nobody else includes
 * this.
 *
 * @thread the net core's
 */
#ifndef RV_CONTROL_MESSENGER_INBOUND_IMPL_H
#define RV_CONTROL_MESSENGER_INBOUND_IMPL_H

#include "control/messenger/headers.h"
#include "control/messenger/messenger_impl.h"

#define BUSY      "rendezvous owner busy"
#define NOT_FOUND "rendezvous handle not found"

/* A request being answered; copied into a cell's context where the answer comes later. */
struct request {
	struct rv_mlink *link;
	struct rv_msg_id id;
	enum rv_call_kind kind;
	uint64_t arrival_ns;
	uint64_t lease_ms;  /* `_rv_lease_ms`; 0: none */
	uint64_t bytes_max; /* `_rvd_bytes`, and */
	uint64_t ends;      /* `_rvd_ends`; 0: not said. RV_GET looks at them */
};

/* answers.c. What is passed is copied before they return, but for a body with a @sent, which is borrowed until then. */

/** The link to answer on: what came as a datagram is answered to whoever its id names, on the link that reaches it now. */
struct rv_link *rv_answer_link(struct rv_mlink *l, uint64_t worker);
void rv_answer_ack(struct rv_mlink *l, const struct rv_msg_id *id, bool error, const char *text,
		   size_t len);
/** @return 0; -EMSGSIZE, where somebody waits for @sent; others: the caller is out of reach */
int rv_answer_response(struct rv_mlink *l, const struct rv_msg_id *id, bool error, const void *body,
		       size_t len, rv_sent_fn *sent, void *ctx);
/** A response with headers, to what came by a connection. */
int rv_answer_with_headers(struct rv_mlink *l, const struct rv_msg_id *id,
			   const struct rv_header_pair *pairs, size_t nr, const void *body,
			   size_t len, rv_sent_fn *sent, void *ctx);
/** The same with a body in pieces; what says where they are is borrowed too. */
int rv_answer_in_pieces(struct rv_mlink *l, const struct rv_msg_id *id,
			const struct rv_header_pair *pair, const struct iovec *piece, size_t nr,
			rv_sent_fn *sent, void *ctx);
void rv_answer_ok(const struct request *rq, const void *body, size_t len);
void rv_answer_error(const struct request *rq, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/** "am" handlers have no result to answer a unary call with; it is an error that says so. @err NULL: it went well */
void rv_answer_am(const struct request *rq, const char *name, const char *err);

/* transfers.c */

int rv_transfers_init(struct rv_messenger *m);
void rv_transfers_fini(struct rv_messenger *m);
/** For an acquire that was granted. @return NULL without memory */
struct rv_transfer *rv_transfer_new(struct rv_messenger *m, const struct rv_msg_acquire *a);
/**
 * Bytes of a block that a send may read for as long as the peer likes: where they are; or a copy, if they are in a
 * client's region, which must be let go when its client says so.
 *
 * @param[out] copy  to be freed when they were sent; NULL: there is none
 * @return 0; -ESHUTDOWN: the region was let go; -ENOMEM, -EIO
 */
int rv_sendable_bytes(struct rv_block *b, uint64_t off, uint64_t len, const void **bytes,
		      void **copy);
/** The handler of _rv_pull. */
void rv_inbound_pull(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		     size_t len);

/* bytes.c */

/**
 * Answer an acquire that was granted with its bytes. @cell is the acquire's, of this thread's port; it is this file's
 * from now on, and goes when they are sent.
 */
void rv_answer_bytes(struct rv_messenger *m, const struct request *rq, struct rv_cell *cell);

/* many.c */

void rv_many_init(struct rv_messenger *m);
void rv_many_fini(struct rv_messenger *m);
/** The handler of RV_GET_MANY. */
void rv_inbound_get_many(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			 size_t len);

/** Nobody wants to know how a lease's operation ended: the cell is free again. */
static inline void rv_lease_forgotten(struct rv_port *port, struct rv_cell *cell)
{
	rv_cell_free(port, cell);
}

#endif
