/*
 * Requests about a handle: sent to its owner, and what their answers become.
 */
#include "control/client/client_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the answers become. */

void rv_client_tell_how(const struct rv_local_rep *rep, struct rv_how *how)
{
	*how = (struct rv_how){.elapsed_ns = rep->elapsed_ns, .took = (enum rv_took)rep->path};
	rv_client_text(how->path, sizeof(how->path), rep->path_name);
}

/* The daemon put the bytes where they were wanted: into a buffer of this session. */
static bool in_place(const struct rv_call *call)
{
	return call->op == RV_LOCAL_GET && call->rq.flags & RV_LOCAL_INTO && call->rq.token &&
	       !call->rep.token;
}

/* Bytes without a place cannot be looked at. */
static int check_got(const struct rv_call *call)
{
	if (!call->rep.len || call->arena || in_place(call))
		return 0;
	return rv_client_fail(-EPROTO, "the daemon did not say where the bytes are");
}

int rv_client_check_got(struct rv_client *c, struct rv_call *call)
{
	int rc = check_got(call);

	if (rc)
		rv_wire_give_up(&c->wire, call);
	return rc;
}

int rv_take_nothing(struct rv_client *c, const struct rv_call *call, const struct rv_place *p)
{
	(void)c;
	(void)call;
	(void)p;
	return 0;
}

int rv_take_meta(struct rv_client *c, const struct rv_call *call, const struct rv_place *p)
{
	(void)c;
	*p->meta = (struct rv_meta){call->rep.len, call->rep.refcount, call->rep.pinned};
	return 0;
}

static void took(const struct rv_call *call, const struct rv_place *p)
{
	*p->lease = call->rep.lease_id;
	if (p->how)
		rv_client_tell_how(&call->rep, p->how);
}

int rv_take_view(struct rv_client *c, const struct rv_call *call, const struct rv_place *p)
{
	int rc = check_got(call);

	if (rc)
		return rc;
	*p->buf = rv_client_buf(c, call);
	took(call, p);
	return 0;
}

/* The bytes go to @dst, the view back. */
static void copy_out(struct rv_client *c, const struct rv_call *call, void *dst)
{
	struct rv_buf view = rv_client_buf(c, call);

	if (view.len)
		memcpy(dst, view.data, view.len);
	rv_buf_free(&view);
}

int rv_take_copy(struct rv_client *c, const struct rv_call *call, const struct rv_place *p)
{
	int rc = check_got(call);
	void *copy;

	if (rc)
		return rc;
	copy = malloc(call->rep.len ? call->rep.len : 1);
	if (!copy)
		return rv_client_no_memory();
	copy_out(c, call, copy);
	*p->data = copy;
	*p->len = call->rep.len;
	took(call, p);
	return 0;
}

int rv_take_into(struct rv_client *c, const struct rv_call *call, const struct rv_place *p)
{
	int rc = check_got(call);

	if (rc)
		return rc;
	*p->len = call->rep.len;
	if (call->rep.len > p->cap)
		return rv_client_fail(-ERANGE, "%" PRIu64 " bytes do not fit into %" PRIu64,
				      call->rep.len, p->cap);
	if (!in_place(call))
		copy_out(c, call, p->dst);
	took(call, p);
	return 0;
}

/* Asking. */

struct rv_local_req rv_client_get_like(const struct rv_opts *o)
{
	return (struct rv_local_req){
		.path = (uint32_t)o->path,
		.flags = (o->keep ? RV_LOCAL_KEEP : 0) |
			 (o->then == RV_THEN_DETACH    ? RV_LOCAL_THEN_DETACH
			  : o->then == RV_THEN_RELEASE ? RV_LOCAL_THEN_RELEASE
						       : 0),
	};
}

static struct rv_local_req like_of(struct rv_client *c, const struct rv_query *q,
				   const struct rv_opts *o)
{
	const struct rv_place *p = &q->place;
	struct rv_local_req like = {.lease_id = q->lease};

	if (q->op == RV_LOCAL_GET)
		like = rv_client_get_like(o);
	if (q->take != rv_take_into)
		return like;
	like.flags |= RV_LOCAL_INTO;
	like.len = p->cap;
	if (p->cap)
		like.token = rv_wire_find_buf(&c->wire, p->dst, p->cap, &like.off);
	return like;
}

/* Are the outputs' places there? */
static int check_query(const struct rv_query *q)
{
	const struct rv_place *p = &q->place;

	if (!q->ref)
		return rv_client_fail(-EINVAL, "no reference");
	if (q->op == RV_LOCAL_DETACH && q->lease == RV_NO_LEASE)
		return rv_client_fail(-EINVAL, "no lease to end");
	if (q->take == rv_take_meta && !p->meta)
		return rv_client_fail(-EINVAL, "nowhere to put the answer");
	if (q->take == rv_take_view && (!p->buf || !p->lease))
		return rv_client_fail(-EINVAL, "nowhere to put view and lease");
	if ((q->take == rv_take_copy && !p->data) ||
	    (q->take == rv_take_into && !p->dst && p->cap) ||
	    ((q->take == rv_take_copy || q->take == rv_take_into) && (!p->len || !p->lease)))
		return rv_client_fail(-EINVAL, "nowhere to put data, length and lease");
	return 0;
}

int rv_client_query(struct rv_client *c, const struct rv_query *q)
{
	const struct rv_opts *o = q->opts ? q->opts : &rv_client_no_opts;
	struct rv_place place = q->place;
	struct rv_local_req like;
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (!rc)
		rc = check_query(q);
	if (rc)
		return rc;
	like = like_of(c, q, o);
	rc = rv_client_ask_owner(c, q->op, q->ref, &like, o, place.len, &call);
	if (rc)
		return rc;
	place.how = o->how;
	rc = q->take(c, call, &place);
	if (rc)
		rv_wire_give_up(&c->wire, call);
	else
		rv_call_free(call);
	return rc;
}

/* The same without waiting. */

static struct rv_call *owner_call(const struct rv_async *a)
{
	return rv_client_call_at(a->op, &a->ref, a->literals ? a->literal[a->at] : NULL, &a->like);
}

static void owner_answered(struct rv_async *a, int rc)
{
	if (rc == -EHOSTUNREACH && a->at + 1 < a->literals) {
		a->at++;
		rv_async_step(a, owner_call(a), NULL, 0, owner_answered);
		return;
	}
	if (rc == -ERANGE && a->place.len)
		*a->place.len = a->call->rep.len;
	if (!rc)
		rc = a->take(a->c, a->call, &a->place);
	rv_async_end(a, rc);
}

int rv_client_query_nb(struct rv_client *c, const struct rv_query *q, rv_done_fn *done, void *user)
{
	struct rv_async *a;
	int rc = rv_async_new(c, q->opts, done, user, &a);

	if (rc)
		return rc;
	rc = check_query(q);
	if (rc)
		return rv_async_drop(a, rc);
	a->op = q->op;
	a->ref = *q->ref;
	a->like = like_of(c, q, &a->o);
	a->take = q->take;
	a->place = q->place;
	a->place.how = a->o.how;
	a->literals = rv_client_addresses(c, &a->ref, a->literal);
	if (a->literals < 0)
		return rv_async_drop(a, a->literals);
	return rv_async_begin(a, owner_call(a), NULL, 0, owner_answered);
}
