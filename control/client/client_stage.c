#include "control/client/client_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/units.h"

/* Staging. */

struct rv_call *rv_client_alloc_call(uint64_t len, uint32_t flags)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_ALLOC);

	if (!call)
		return NULL;
	call->rq.len = len;
	call->rq.flags = flags;
	return call;
}

int rv_client_take_alloc(struct rv_client *c, const struct rv_call *call, struct rv_buf *buf)
{
	uint64_t len = call->rq.len;

	if (call->rep.len < len || (len && call->rq.flags & RV_LOCAL_SHARED && !call->arena))
		return rv_client_fail(-EPROTO, "the daemon gave a buffer that is too short");
	*buf = rv_client_buf(c, call);
	buf->len = len;
	if (call->arena && buf->writable)
		rv_wire_add_buf(&c->wire, call->arena,
				&(struct rv_arena_buf){call->rep.off, len, call->rep.token});
	return 0;
}

static int alloc(struct rv_client *c, uint64_t len, uint32_t flags,
		 const struct rv_client_budget *b, struct rv_buf *buf)
{
	struct rv_call *call = rv_client_alloc_call(len, flags);
	int rc;

	if (!call)
		return -ENOMEM;
	rc = rv_client_ask(c, call, NULL, 0, b);
	if (rc)
		return rc;
	rc = rv_client_take_alloc(c, call, buf);
	if (rc)
		rv_wire_give_up(&c->wire, call); /* which gives the buffer back */
	else
		rv_call_free(call);
	return rc;
}

struct rv_call *rv_client_commit_call(const struct rv_buf *buf, const struct rv_opts *o)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_COMMIT);

	if (!call)
		return NULL;
	call->rq.token = buf->token;
	call->rq.len = buf->len;
	call->rq.ttl_ns = o->ttl_ns;
	call->rq.refs = o->refs;
	call->rq.flags = o->session ? RV_LOCAL_SESSION : 0;
	return call;
}

void rv_client_take_commit(const struct rv_call *call, const struct rv_buf *buf,
			   const struct rv_opts *o, struct rv_handle *handle)
{
	*handle = (struct rv_handle){call->rep.worker, call->rep.local};
	if (o->how)
		*o->how = (struct rv_how){.pinned = call->rep.pinned, .plain = buf->plain};
}

static int commit(struct rv_client *c, const struct rv_buf *buf, const struct rv_opts *o,
		  const struct rv_client_budget *b, struct rv_handle *handle)
{
	struct rv_call *call = rv_client_commit_call(buf, o);
	int rc;

	if (!call)
		return -ENOMEM;
	rc = rv_client_ask(c, call, NULL, 0, b);
	if (rc)
		return rc;
	rv_client_take_commit(call, buf, o, handle);
	rv_call_free(call);
	return 0;
}

static int write_all(struct rv_client *c, struct rv_call *call, const uint8_t *data, uint64_t len,
		     const struct rv_client_budget *b)
{
	int rc = 0;

	for (uint64_t off = 0; off < len && !rc; off += RV_LOCAL_PAYLOAD_MAX) {
		size_t n = rv_min_u64(len - off, RV_LOCAL_PAYLOAD_MAX);

		call->rq.off = off;
		if (off)
			rc = rv_wire_send_more(&c->wire, call, data + off, n, b->deadline_ns);
		else
			rc = rv_wire_send(&c->wire, call, data, n, b->deadline_ns);
	}
	return rc ? rv_client_fail(rc, "%s",
				   rc == -ETIMEDOUT ? "the daemon does not read its socket"
						    : "the daemon closed the connection")
		  : 0;
}

/* WRITE is answered only when it fails, and before the COMMIT that follows it. */
int rv_client_check_write(struct rv_client *c, struct rv_call *write)
{
	if (!rv_wire_done(&c->wire, write))
		return 0;
	return rv_client_fail(write->rc ? write->rc : -EPROTO, "%s", write->text);
}

/*
 * The way through the socket costs a long copy more than two messages: a session that makes one after another makes
 * them here, in memory that it shares with the daemon. The first few go to the arenas of everybody, so that a program
 * which stages a single payload leaves no arena of its own behind.
 */
#define COPY_HERE_MIN RV_KIB(64)
#define COPIES_BEFORE 4u

static uint32_t copy_flags(struct rv_client *c, uint64_t len)
{
	if (!c || len < COPY_HERE_MIN)
		return 0;
	/* relaxed: a number on its own */
	return atomic_fetch_add_explicit(&c->copies, 1, memory_order_relaxed) < COPIES_BEFORE
		       ? 0
		       : RV_LOCAL_SHARED;
}

/* Its place may be another buffer's as soon as the daemon has it back. */
static void unlist(struct rv_client *c, const struct rv_buf *buf)
{
	struct rv_arena *a = buf->arena;

	if (a && buf->writable)
		rv_wire_del_buf(&c->wire, a, (uint64_t)((uint8_t *)buf->data - a->base));
}

/* @return whether the bytes are there now, and nothing of ours refers to the memory any more */
static bool copied_here(struct rv_client *c, struct rv_buf *buf, const void *data)
{
	/* NOLINTNEXTLINE(clang-analyzer-core.*): there is a buffer, rv_client_fail() never returns 0 */
	if (!buf->arena || !buf->writable)
		return false;
	/* NOLINTNEXTLINE(clang-analyzer-core.*): where there are bytes there is data, rv_client_fail() never returns 0 */
	memcpy(buf->data, data, buf->len);
	unlist(c, buf);
	rv_wire_drop_arena(&c->wire, buf->arena);
	buf->arena = NULL;
	return true;
}

static int fill_and_commit(struct rv_client *c, struct rv_buf *buf, const void *data,
			   const struct rv_opts *o, const struct rv_client_budget *b,
			   struct rv_handle *handle)
{
	struct rv_call *call;
	struct rv_handle h;
	int rc;

	if (copied_here(c, buf, data))
		return commit(c, buf, o, b, handle);
	call = rv_client_call(RV_LOCAL_WRITE);
	if (!call)
		return -ENOMEM;
	call->rq.token = buf->token;
	rc = write_all(c, call, data, buf->len, b);
	if (!rc)
		rc = commit(c, buf, o, b, &h);
	if (!rc && (rc = rv_client_check_write(c, call)))
		rv_wire_post(&c->wire, RV_LOCAL_DROP,
			     &(struct rv_local_req){.worker = h.worker, .local = h.local});
	rv_wire_give_up(&c->wire, call);
	if (!rc)
		*handle = h;
	return rc;
}

static int register_copy(struct rv_client *c, const void *data, uint64_t len, uint32_t flags,
			 const struct rv_opts *opts, struct rv_handle *handle)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_client_budget b;
	struct rv_buf buf;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!handle || (!data && len))
		return rv_client_fail(-EINVAL, "no data, or nowhere to put the handle");
	b = rv_client_budget_of(c, o);
	rc = alloc(c, len, flags, &b, &buf);
	if (rc)
		return rc;
	rc = fill_and_commit(c, &buf, data, o, &b, handle);
	if (rc)
		rv_wire_post(&c->wire, RV_LOCAL_FREE, &(struct rv_local_req){.token = buf.token});
	return rc;
}

/* The same without waiting: ALLOC, then WRITE and COMMIT in one go. */

static void copied(struct rv_async *a, int rc)
{
	if (!rc && a->write)
		rc = rv_client_check_write(a->c, a->write);
	if (!rc) {
		a->token = 0;
		rv_client_take_commit(a->call, &a->buf, &a->o, &a->staged);
	}
	a->staged_then(a, rc);
}

static void got_buffer(struct rv_async *a, int rc)
{
	struct rv_call *commit;

	if (!rc)
		rc = rv_client_take_alloc(a->c, a->call, &a->buf);
	if (rc) {
		a->staged_then(a, rc);
		return;
	}
	a->token = a->buf.token;
	commit = rv_client_commit_call(&a->buf, &a->o);
	if (a->len && !copied_here(a->c, &a->buf, a->data)) {
		struct rv_call *write = rv_client_call(RV_LOCAL_WRITE);

		if (write)
			write->rq.token = a->token;
		rv_async_step_write(a, write, a->data, a->len, commit, copied);
	} else {
		rv_async_step(a, commit, NULL, 0, copied);
	}
}

int rv_client_stage_nb(struct rv_async *a, uint32_t flags, rv_async_fn *then)
{
	a->staged_then = then;
	return rv_async_begin(a, rv_client_alloc_call(a->len, flags), NULL, 0, got_buffer);
}

static void registered(struct rv_async *a, int rc)
{
	if (!rc) {
		*a->handle = a->staged;
		a->staged.local = 0; /* the caller's */
	}
	rv_async_end(a, rc);
}

static int register_copy_nb(struct rv_client *c, const void *data, uint64_t len, uint32_t flags,
			    const struct rv_opts *opts, struct rv_handle *handle, rv_done_fn *done,
			    void *user)
{
	struct rv_async *a;
	int rc = rv_async_new(c, opts, done, user, &a);

	if (rc)
		return rc;
	if (!handle || (!data && len))
		return rv_async_drop(a, rv_client_fail(-EINVAL, "no data, or nowhere to put the "
								"handle"));
	a->data = data;
	a->len = len;
	a->handle = handle;
	return rv_client_stage_nb(a, flags, registered);
}

int rv_register_data_nb(struct rv_client *c, const void *data, uint64_t len,
			const struct rv_opts *opts, struct rv_handle *handle, rv_done_fn *done,
			void *user)
{
	return register_copy_nb(c, data, len, RV_LOCAL_PLAIN, opts, handle, done, user);
}

int rv_register_data_pinned_nb(struct rv_client *c, const void *data, uint64_t len,
			       const struct rv_opts *opts, struct rv_handle *handle,
			       rv_done_fn *done, void *user)
{
	return register_copy_nb(c, data, len, copy_flags(c, len), opts, handle, done, user);
}

int rv_register_data(struct rv_client *c, const void *data, uint64_t len,
		     const struct rv_opts *opts, struct rv_handle *handle)
{
	return register_copy(c, data, len, RV_LOCAL_PLAIN, opts, handle);
}

int rv_register_data_pinned(struct rv_client *c, const void *data, uint64_t len,
			    const struct rv_opts *opts, struct rv_handle *handle)
{
	return register_copy(c, data, len, copy_flags(c, len), opts, handle);
}

int rv_client_stage_message(struct rv_client *c, const void *data, uint64_t len,
			    const struct rv_opts *o, struct rv_handle *handle)
{
	return register_copy(c, data, len, RV_LOCAL_MAPPED, o, handle);
}

int rv_alloc_pinned(struct rv_client *c, uint64_t len, struct rv_buf *buf)
{
	struct rv_client_budget b;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!buf)
		return rv_client_fail(-EINVAL, "nowhere to put the buffer");
	b = rv_client_budget_of(c, &rv_client_no_opts);
	return alloc(c, len, RV_LOCAL_SHARED, &b, buf);
}

static void allocated(struct rv_async *a, int rc)
{
	if (!rc)
		rc = rv_client_take_alloc(a->c, a->call, a->caller_buf);
	rv_async_end(a, rc);
}

int rv_alloc_pinned_nb(struct rv_client *c, uint64_t len, struct rv_buf *buf, rv_done_fn *done,
		       void *user)
{
	struct rv_async *a;
	int rc = rv_async_new(c, NULL, done, user, &a);

	if (rc)
		return rc;
	if (!buf)
		return rv_async_drop(a, rv_client_fail(-EINVAL, "nowhere to put the buffer"));
	a->caller_buf = buf;
	return rv_async_begin(a, rv_client_alloc_call(len, RV_LOCAL_SHARED), NULL, 0, allocated);
}

static int check_buf(const struct rv_client *c, const struct rv_buf *buf,
		     const struct rv_handle *handle)
{
	if (!buf || !handle || buf->client != c || !buf->token)
		return rv_client_fail(-EINVAL,
				      "no buffer of this session, or nowhere to put the handle");
	return 0;
}

/* The daemon has the memory now. */
static void let_go(struct rv_client *c, struct rv_buf *buf)
{
	unlist(c, buf);
	if (buf->arena)
		rv_wire_drop_arena(&c->wire, buf->arena);
	memset(buf, 0, sizeof(*buf));
}

static void committed(struct rv_async *a, int rc)
{
	if (!rc) {
		rv_client_take_commit(a->call, a->caller_buf, &a->o, a->handle);
		let_go(a->c, a->caller_buf);
	}
	rv_async_end(a, rc);
}

int rv_register_pinned_nb(struct rv_client *c, struct rv_buf *buf, const struct rv_opts *opts,
			  struct rv_handle *handle, rv_done_fn *done, void *user)
{
	struct rv_async *a;
	int rc = rv_async_new(c, opts, done, user, &a);

	if (rc)
		return rc;
	rc = check_buf(c, buf, handle);
	if (rc)
		return rv_async_drop(a, rc);
	a->caller_buf = buf;
	a->handle = handle;
	return rv_async_begin(a, rv_client_commit_call(buf, &a->o), NULL, 0, committed);
}

int rv_register_pinned(struct rv_client *c, struct rv_buf *buf, const struct rv_opts *opts,
		       struct rv_handle *handle)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_client_budget b;
	int rc = rv_client_check(c);

	if (!rc)
		rc = check_buf(c, buf, handle);
	if (rc)
		return rc;
	b = rv_client_budget_of(c, o);
	rc = commit(c, buf, o, &b, handle);
	if (!rc)
		let_go(c, buf);
	return rc;
}

void rv_buf_free(struct rv_buf *buf)
{
	struct rv_client *c = buf ? buf->client : NULL;

	if (!c)
		return;
	if (rv_client_pid() == c->pid) {
		unlist(c, buf);
		if (buf->token)
			rv_wire_post(&c->wire, RV_LOCAL_FREE,
				     &(struct rv_local_req){.token = buf->token});
		if (buf->arena)
			rv_wire_drop_arena(&c->wire, buf->arena);
	}
	memset(buf, 0, sizeof(*buf));
}
