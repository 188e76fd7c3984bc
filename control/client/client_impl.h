/*
 * client_impl.h - what the files of librv share. Nobody else includes this.
 */
#ifndef RV_CONTROL_CLIENT_CLIENT_IMPL_H
#define RV_CONTROL_CLIENT_CLIENT_IMPL_H

#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#include "control/client/ref.h"
#include "control/client/rv.h"
#include "control/client/wire.h"

struct rv_async;

/** A step of one; on a failure the error is set. */
typedef void rv_async_fn(struct rv_async *a, int rc);

/** Asynchronous calls of a session (client_async.c). */
struct rv_async_set {
	pthread_mutex_t lock; /* taken before the wire's locks */
	struct rv_list live;
	struct rv_async **due; /* those with a deadline: a heap */
	size_t due_nr, due_cap;
	uint64_t armed_ns; /* when the timer fires; RV_NEVER: it does not */
	bool closing;

	pthread_mutex_t turn; /* one thread at a time is in rv_progress(); below: its own */
	uint64_t ended;
};

struct rv_client {
	struct rv_wire wire;
	struct rv_async_set async;
	pid_t pid; /* whose session it is */
	uint64_t worker;
	bool takes_many;         /* the daemon knows RV_LOCAL_GET_MANY */
	_Atomic uint64_t copies; /* long ones into registered memory, so far */
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

/** As much of a text as there is room for: as snprintf("%s"), at the price of a copy. */
static inline void rv_client_text(char *to, size_t cap, const char *text)
{
	size_t n = strnlen(text, cap - 1);

	memcpy(to, text, n);
	to[n] = '\0';
}

/* client.c */
/** This process's id, without a system call: it is kept in a page that is empty in a child (MADV_WIPEONFORK). */
pid_t rv_client_pid(void);

/* client_messages.c */
void rv_client_stop_serving(struct rv_client *c);
/** Of a handler. @return 0, or -EINVAL with the error set */
int rv_client_check_name(const char *name);

/* client_stage.c */

/** A request for a buffer, and the buffer it brought. @return NULL, or a negative errno, with the error set */
struct rv_call *rv_client_alloc_call(uint64_t len, uint32_t flags);
int rv_client_take_alloc(struct rv_client *c, const struct rv_call *call, struct rv_buf *buf);

/** A request to name a buffer's bytes, and their name. */
struct rv_call *rv_client_commit_call(const struct rv_buf *buf, const struct rv_opts *o);
void rv_client_take_commit(const struct rv_call *call, const struct rv_buf *buf,
			   const struct rv_opts *o, struct rv_handle *handle);

/** Did the daemon take all of a WRITE before its COMMIT? @return 0, or a negative errno with the error set */
int rv_client_check_write(struct rv_client *c, struct rv_call *write);

/** Begin with staging a copy of @a->data; then @then, with @a->staged on success. As rv_async_begin(). */
int rv_client_stage_nb(struct rv_async *a, uint32_t flags, rv_async_fn *then);

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

/** A request about a handle; lease, place, path and flags are @like's. */
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
 *
 * @param[out] too_long  with -ERANGE: how many bytes there are; may be NULL
 * @owns on success the caller has the call
 */
int rv_client_ask_owner(struct rv_client *c, uint8_t op, const struct rv_ref *ref,
			const struct rv_local_req *like, const struct rv_opts *o,
			uint64_t *too_long, struct rv_call **out);

static inline struct rv_ref rv_client_ref(struct rv_handle handle)
{
	return (struct rv_ref){.handle = handle};
}

/** What a reply of ALLOC or GET gave. @owns the buffer has the call's hold on the arena */
struct rv_buf rv_client_buf(struct rv_client *c, const struct rv_call *call);

/* client_query.c */

void rv_client_tell_how(const struct rv_local_rep *rep, struct rv_how *how);

/** Bytes without a place cannot be looked at. @return 0, or -EPROTO: then the call is gone */
int rv_client_check_got(struct rv_client *c, struct rv_call *call);

struct rv_local_req rv_client_get_like(const struct rv_opts *o);

/** Where the outputs of a call go; each reads its own. */
struct rv_place {
	struct rv_meta *meta;
	struct rv_buf *buf;
	void **data;
	void *dst;
	uint64_t cap;
	uint64_t *len, *lease;
	struct rv_how *how;
};

/**
 * Turn an answer into outputs, written only on success.
 *
 * @return 0, or a negative errno with the error set: what the answer brought is then given back by
 *         giving the call up
 */
typedef int rv_take_fn(struct rv_client *c, const struct rv_call *call, const struct rv_place *p);
rv_take_fn rv_take_nothing, rv_take_meta, rv_take_view, rv_take_copy, rv_take_into;

/** A request about a handle, and what becomes of its answer. */
struct rv_query {
	uint8_t op;
	const struct rv_ref *ref;
	uint64_t lease;
	const struct rv_opts *opts; /* or NULL */
	rv_take_fn *take;
	struct rv_place place;
};

/** Ask, and wait. @return 0, or a negative errno with the error set */
int rv_client_query(struct rv_client *c, const struct rv_query *q);
/** Ask, and do not wait. */
int rv_client_query_nb(struct rv_client *c, const struct rv_query *q, rv_done_fn *done, void *user);

/* client_async.c */

/** One asynchronous call. */
struct rv_async {
	struct rv_list link; /* the session's */
	struct rv_client *c;
	struct rv_client_budget b;
	size_t due; /* its place in the heap */
	rv_done_fn *done;
	void *user;

	struct rv_call *call;  /* the step under way */
	struct rv_call *write; /* what goes before it */
	rv_async_fn *then;     /* takes the next step */

	struct rv_opts o;
	struct rv_place place;
	rv_take_fn *take;

	/* Asking an owner: at each of its addresses until one leads somewhere. */
	uint8_t op;
	struct rv_ref ref;
	struct rv_local_req like;
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	int literals, at;

	/* Staging, and messages. */
	const void *data;
	uint64_t len;
	struct rv_buf buf, *caller_buf;
	struct rv_handle *handle;
	uint64_t token; /* a buffer to give back if it fails */
	rv_async_fn *staged_then;
	struct rv_handle staged;
	bool drop_staged; /* not only if it fails */
	void **reply;
	uint64_t *reply_len;
};

void rv_async_init(struct rv_async_set *s);
/** Everything outstanding ends with -ECANCELED. */
void rv_async_fini(struct rv_client *c);

/** @return 0, or a negative errno with the error set */
int rv_async_new(struct rv_client *c, const struct rv_opts *opts, rv_done_fn *done, void *user,
		 struct rv_async **out);

/** It does not begin after all. @return @rc */
int rv_async_drop(struct rv_async *a, int rc);

/**
 * Send its first request.
 *
 * @param call  NULL: there was no memory for it
 * @return 0: @a is no longer the caller's; or a negative errno with the error set, and @a is gone
 */
int rv_async_begin(struct rv_async *a, struct rv_call *call, const void *payload, size_t len,
		   rv_async_fn *then);

/* In a turn: */

/** Send the next request. */
void rv_async_step(struct rv_async *a, struct rv_call *call, const void *payload, size_t len,
		   rv_async_fn *then);
/** The same behind a WRITE of data of any length. */
void rv_async_step_write(struct rv_async *a, struct rv_call *write, const void *data, uint64_t len,
			 struct rv_call *commit, rv_async_fn *then);
/** Tell its caller; on a failure the error must be set. @owns @a is gone */
void rv_async_end(struct rv_async *a, int rc);

#endif
