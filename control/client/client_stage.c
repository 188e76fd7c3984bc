#include "control/client/client_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/units.h"

/* Staging. */

static int alloc(struct rv_client *c, uint64_t len, uint32_t flags,
		 const struct rv_client_budget *b, struct rv_buf *buf)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_ALLOC);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.len = len;
	call->rq.flags = flags;
	rc = rv_client_ask(c, call, NULL, 0, b);
	if (rc)
		return rc;
	if (call->rep.len < len || (len && flags & RV_LOCAL_SHARED && !call->arena)) {
		rv_wire_give_up(&c->wire, call); /* which gives the buffer back */
		return rv_client_fail(-EPROTO, "the daemon gave a buffer that is too short");
	}
	*buf = rv_client_buf(c, call);
	buf->len = len;
	rv_call_free(call);
	return 0;
}

static int commit(struct rv_client *c, const struct rv_buf *buf, const struct rv_opts *o,
		  const struct rv_client_budget *b, struct rv_handle *handle)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_COMMIT);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.token = buf->token;
	call->rq.len = buf->len;
	call->rq.ttl_ns = o->ttl_ns;
	call->rq.refs = o->refs;
	call->rq.flags = o->session ? RV_LOCAL_SESSION : 0;
	rc = rv_client_ask(c, call, NULL, 0, b);
	if (rc)
		return rc;
	*handle = (struct rv_handle){call->rep.worker, call->rep.local};
	if (o->how)
		*o->how = (struct rv_how){.pinned = call->rep.pinned, .plain = buf->plain};
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
static int fill_and_commit(struct rv_client *c, struct rv_buf *buf, const void *data,
			   const struct rv_opts *o, const struct rv_client_budget *b,
			   struct rv_handle *handle)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_WRITE);
	struct rv_handle h;
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.token = buf->token;
	rc = write_all(c, call, data, buf->len, b);
	if (!rc)
		rc = commit(c, buf, o, b, &h);
	if (!rc && rv_wire_done(&c->wire, call)) {
		struct rv_local_req drop = {.worker = h.worker, .local = h.local};

		rv_wire_post(&c->wire, RV_LOCAL_DROP, &drop);
		rc = rv_client_fail(call->rc ? call->rc : -EPROTO, "%s", call->text);
	}
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

int rv_register_data(struct rv_client *c, const void *data, uint64_t len,
		     const struct rv_opts *opts, struct rv_handle *handle)
{
	return register_copy(c, data, len, RV_LOCAL_PLAIN, opts, handle);
}

int rv_register_data_pinned(struct rv_client *c, const void *data, uint64_t len,
			    const struct rv_opts *opts, struct rv_handle *handle)
{
	return register_copy(c, data, len, 0, opts, handle);
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

int rv_register_pinned(struct rv_client *c, struct rv_buf *buf, const struct rv_opts *opts,
		       struct rv_handle *handle)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_client_budget b;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!buf || !handle || buf->client != c || !buf->token)
		return rv_client_fail(-EINVAL,
				      "no buffer of this session, or nowhere to put the handle");
	b = rv_client_budget_of(c, o);
	rc = commit(c, buf, o, &b, handle);
	if (rc)
		return rc;
	if (buf->arena)
		rv_wire_drop_arena(&c->wire, buf->arena);
	memset(buf, 0, sizeof(*buf));
	return 0;
}

void rv_buf_free(struct rv_buf *buf)
{
	struct rv_client *c = buf ? buf->client : NULL;

	if (!c)
		return;
	if (getpid() == c->pid) {
		if (buf->token)
			rv_wire_post(&c->wire, RV_LOCAL_FREE,
				     &(struct rv_local_req){.token = buf->token});
		if (buf->arena)
			rv_wire_drop_arena(&c->wire, buf->arena);
	}
	memset(buf, 0, sizeof(*buf));
}
