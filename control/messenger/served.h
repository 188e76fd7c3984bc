/*
 * served.h - handlers that local programs serve, and calls they make: requests go out to whoever registered a
 * name, answers come back by the request's id.
 *
 *   Message --staged?--> fetch, release --> deliver() ... rv_served_answer() --> Response or Ack
 *                           '--fails--> nack "Failed to resolve large payload: ..."
 *
 * The staging headers (`_rv`, `_rv_budget_ms`) end here: a handler never sees them.
 *
 * @thread the net core's
 */
#ifndef RV_CONTROL_MESSENGER_SERVED_H
#define RV_CONTROL_MESSENGER_SERVED_H

#include "control/frame/frame.h"
#include "control/messenger/messenger.h"

/** Longest handler name a local program may serve or call. */
#define RV_SERVED_NAME 64

/** A request to a served handler; borrowed for the call of deliver(). */
struct rv_served_request {
	uint64_t id; /* to answer with; 0: no answer is wanted */
	const char *name;
	uint64_t worker; /* the sender */
	enum rv_call_kind kind;
	const uint8_t *payload; /* inline; NULL when in a block, or empty */
	uint64_t len;
	struct rv_block
		*block; /* was staged: a landing block with one hold, the server's from now on */
	struct rv_engine *engine; /* the block's */
};

struct rv_server {
	/** @return false if the request cannot be handed over (its program is going): it is refused. */
	bool (*deliver)(struct rv_server *s, const struct rv_served_request *r);
	uid_t uid; /* whose memory a fetched payload lands in */
};

/** @return 0; -EEXIST: another program serves it; -EINVAL: empty, too long or starts with '_'; -ENOMEM */
int rv_served_add(struct rv_messenger *m, const char *name, struct rv_server *server);

/** @return 0 or -ENOENT: not this server's */
int rv_served_remove(struct rv_messenger *m, const char *name, const struct rv_server *server);

/** The program has gone: its names end, what it was asked is answered with an error. */
void rv_served_remove_all(struct rv_messenger *m, const struct rv_server *server);

/**
 * Answer a request.
 *
 * @param payload  copied
 * @return 0; -ENOENT: no such request, it was answered, or it is another server's; -EMSGSIZE: longer than a
 *         frame, and the caller was told so
 */
int rv_served_answer(struct rv_messenger *m, const struct rv_server *server, uint64_t id,
		     bool failed, const void *payload, size_t len);

/** What a call of a local program ended with; borrowed. */
struct rv_called {
	int rc; /* 0; -EREMOTEIO: the text is the peer's; others as in peer_calls.h */
	const uint8_t *payload;
	size_t len;
	const char *text;
};

struct rv_call_request {
	uint64_t worker; /* the peer */
	const char *handler;
	enum rv_call_kind kind;
	const void *payload; /* copied */
	size_t len;
	struct rv_handle staged; /* local 0: the payload is inline */
	uint64_t timeout_ns;     /* 0: the node's call timeout, and no budget is told */
};

/** Call a handler of a peer. @p done is called once, perhaps from inside. */
void rv_served_call(struct rv_messenger *m, const struct rv_call_request *q,
		    void (*done)(void *ctx, const struct rv_called *r), void *ctx);

#endif
