/*
 * client_impl.h - what the files of librv share. Nobody else includes this.
 */
#ifndef RV_CONTROL_CLIENT_CLIENT_IMPL_H
#define RV_CONTROL_CLIENT_CLIENT_IMPL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "control/client/ref.h"
#include "control/client/rv.h"
#include "control/client/wire.h"

struct rv_client {
	struct rv_wire wire;
	pid_t pid; /* whose session it is */
	uint64_t worker;
	_Atomic uint64_t timeout_ns;
	uint64_t threshold; /* longer messages are staged */

	/* Handlers this program serves, and the thread that runs them (client_messages.c). */
	pthread_mutex_t serve_lock;
	pthread_cond_t served; /* a handler has returned */
	struct handler *running;
	struct rv_list handlers;
	pthread_t server;
	bool serving;
};

/* client_messages.c */
void rv_client_stop_serving(struct rv_client *c);

/* client_stage.c */

/** A copy of @data under a handle, in memory that is there already; what a message's payload becomes. */
int rv_client_stage_message(struct rv_client *c, const void *data, uint64_t len,
			    const struct rv_opts *o, struct rv_handle *handle);

extern const struct rv_opts rv_client_no_opts;

/** When a call must have ended, and what the daemon is told about that. */
struct rv_client_budget {
	uint64_t timeout_ns; /* 0: the daemon's */
	uint64_t until_ns;   /* without the grace */
	uint64_t deadline_ns;
};

/** Set this thread's error text. @return @rc */
int rv_client_fail(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int rv_client_no_memory(void);
void rv_client_clear_error(void);

/** Every call begins here. @return 0, -EINVAL or -EOWNERDEAD */
int rv_client_check(const struct rv_client *c);

struct rv_client_budget rv_client_budget_of(struct rv_client *c, const struct rv_opts *o);

/** What is left for the next step: what the daemon is told. */
uint64_t rv_budget_left_ns(const struct rv_client_budget *b);

/** A request, or NULL with the error set. */
struct rv_call *rv_client_call(uint8_t op);

/** A call that failed ends here. @return @rc @owns takes over @call */
int rv_client_end_failed(struct rv_client *c, struct rv_call *call, int rc);

/** Send, and wait for the reply. @owns on failure the call is gone */
int rv_client_ask(struct rv_client *c, struct rv_call *call, const void *payload, size_t len,
		  const struct rv_client_budget *b);

/** Where a request goes: the handle, and one address of the owner or NULL. */
void rv_client_aim(struct rv_call *call, const struct rv_ref *ref, const char *literal);

/** A request about a handle; lease, path and flags are @like's. */
struct rv_call *rv_client_call_at(uint8_t op, const struct rv_ref *ref, const char *literal,
				  const struct rv_local_req *like);

/**
 * The owner's addresses; none are needed where none was told, or for this node's own.
 *
 * @return how many, or a negative errno
 */
int rv_client_addresses(const struct rv_client *c, const struct rv_ref *ref,
			char out[RV_LITERALS][RV_LITERAL_MAX]);

/**
 * Ask one owner, at each of its addresses until one leads somewhere.
 * @owns on success the caller has the call
 */
int rv_client_ask_owner(struct rv_client *c, uint8_t op, const struct rv_ref *ref,
			const struct rv_local_req *like, const struct rv_opts *o,
			struct rv_call **out);

static inline struct rv_ref rv_client_ref(struct rv_handle handle)
{
	return (struct rv_ref){.handle = handle};
}

/** What a reply of ALLOC or GET gave. @owns the buffer has the call's hold on the arena */
struct rv_buf rv_client_buf(struct rv_client *c, const struct rv_call *call);

/* client_get.c */

struct rv_local_req rv_client_get_like(const struct rv_opts *o);
void rv_client_tell_how(const struct rv_local_rep *rep, struct rv_how *how);

/** Bytes without a place cannot be looked at. @return 0, or -EPROTO: then the call is gone */
int rv_client_check_got(struct rv_client *c, struct rv_call *call);

#endif
