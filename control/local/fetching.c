/*
 * Gets, leases and what else concerns handles: on this node by message, elsewhere by call.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/local/session_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

/* Leases of this session. */

static void lease_add(struct session *s, struct rv_handle h, uint64_t id)
{
	struct lease *l = malloc(sizeof(*l));

	if (!l)
		return; /* then the owner's deadline, or a drop, ends it */
	*l = (struct lease){.next = rv_map64_get(&s->leases, id), .handle = h, .id = id};
	if (rv_map64_put(&s->leases, id, l))
		free(l);
}

static void lease_forget(struct session *s, struct rv_handle h, uint64_t id)
{
	struct lease *first = rv_map64_get(&s->leases, id), **at = &first, *l;

	while (*at && !rv_handle_equal((*at)->handle, h))
		at = &(*at)->next;
	l = *at;
	if (!l)
		return;
	*at = l->next;
	if (!first)
		rv_map64_del(&s->leases, id);
	else
		rv_map64_put(&s->leases, id, first); /* there is room: it replaces */
	free(l);
}

void rv_session_end_leases(struct session *s)
{
	struct lease *l, *next;
	size_t pos = 0;

	while ((l = rv_map64_next(&s->leases, &pos))) {
		for (; l; l = next) {
			next = l->next;
			rv_local_detach(s->local, l->handle, l->id);
			free(l);
		}
	}
	rv_map64_fini(&s->leases);
}

/* GET */

#define GET_RETRY_NS RV_MS(1)

/* Every record of the engine, or every cell, is in use: it has its turn when others are done. */
static void get_later(struct pending *p)
{
	struct rv_local *l = p->s->local;

	rv_list_push(&l->waiting_gets, &p->link);
	if (!l->get_retry.timer.armed)
		rv_task_at(l->conf.reactor, &l->get_retry, l->conf.reactor->now_ns + GET_RETRY_NS);
}

/* A GET into a buffer has come back; late is one whose bytes may still be on the way. */
static void leave_buffer(struct pending *p, int rc)
{
	struct buffer *b = p->rq.flags & RV_LOCAL_INTO && p->rq.token
				   ? rv_map64_get(&p->s->buffers, p->rq.token)
				   : NULL;

	if (!b)
		return; /* the client has given it back */
	b->gets--;
	b->spoiled |= rc == -ETIMEDOUT;
}

static void refuse_get(struct pending *p, const struct rv_msg_get *m)
{
	struct rv_local_rep rep = {.id = p->rq.id, .rc = m->rc, .len = m->len};

	if (m->rc != -ERANGE) {
		rv_pending_refuse(p, m->rc, m->text);
		return;
	}
	rv_session_reply(p->s, &rep, p->op, m->text, strlen(m->text), -1);
	rv_pending_end(p);
}

static void got(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct session *s = p->s;
	struct rv_msg_get m = *(struct rv_msg_get *)(void *)c->body;
	struct rv_local_rep rep = {.id = p->rq.id, .rc = m.rc};
	struct buffer *b = NULL;

	rv_cell_free(port, c);
	leave_buffer(p, m.rc);
	if (m.rc == -EAGAIN) {
		get_later(p);
		return;
	}
	if (m.rc) {
		refuse_get(p, &m);
		return;
	}
	if (!s->open || (m.block && !(b = rv_buffer_add(s, m.block_engine, m.block, m.len)))) {
		if (m.block)
			rv_local_drop_block(s->local, m.block_engine, m.block);
		if (m.lease_id)
			rv_local_detach(s->local, m.handle, m.lease_id);
		rv_pending_refuse(p, -ENOMEM, NULL);
		return;
	}
	rep.len = m.len;
	rep.lease_id = m.lease_id;
	rep.elapsed_ns = m.elapsed_ns;
	rep.path = m.took;
	snprintf(rep.path_name, sizeof(rep.path_name), "%s",
		 m.took == RV_PATH_LOCAL ? "local"
		 : m.took == RV_PATH_CHUNKED
			 ? "chunked tcp"
			 : s->local->conf.path_name(s->local->conf.user, m.fabric));
	if (!b) {
		rv_session_reply(s, &rep, p->op, NULL, 0, -1);
	} else {
		b->view = true;
		rep.token = b->token;
		if (rv_session_show(s, &rep, p->op, b)) {
			if (m.lease_id)
				rv_local_detach(s->local, m.handle, m.lease_id);
			rv_pending_refuse(p, -EMFILE, RV_SESSION_NO_FD);
			return;
		}
	}
	if (m.lease_id && !(p->rq.flags & RV_LOCAL_KEEP))
		lease_add(s, m.handle, m.lease_id);
	rv_pending_end(p);
}

static uint64_t deadline_of(const struct session *s, const struct rv_local_req *rq)
{
	return rq->timeout_ns ? rv_sat_add(s->local->conf.reactor->now_ns, rq->timeout_ns)
			      : RV_NEVER;
}

/*
 * The buffer a GET goes into; it is looked up when the get is handed over, since the client may give it back at
 * any time. From then on the engine holds it.
 *
 * @return 0 and *out, NULL if none was named; or a negative errno and *why
 */
static int place_of(const struct pending *p, struct buffer **out, const char **why)
{
	const struct rv_local_req *rq = &p->rq;
	struct buffer *b;

	*out = NULL;
	if (!(rq->flags & RV_LOCAL_INTO) || !rq->token)
		return 0;
	b = rv_map64_get(&p->s->buffers, rq->token);
	if (!b || b->busy || b->view || b->fillable || !b->block || rq->off > b->len ||
	    rq->len > b->len - rq->off) {
		*why = "no such buffer in this session, or it is shorter";
		return -EINVAL;
	}
	if (b->spoiled) {
		*why = "bytes of a get that timed out may still land in this buffer: give it back";
		return -EBUSY;
	}
	*out = b;
	return 0;
}

void rv_session_get_alone(struct pending *p)
{
	struct session *s = p->s;
	const char *why = NULL;
	struct buffer *b;
	struct rv_msg_get *m;
	struct rv_cell *c;
	int rc = place_of(p, &b, &why);

	if (rc) {
		rv_pending_refuse(p, rc, why);
		return;
	}
	c = rv_cell_alloc(rv_session_port(s));
	if (!c) {
		get_later(p);
		return;
	}
	c->ctx = p;
	if (b)
		b->gets++;
	m = (void *)c->body;
	*m = (struct rv_msg_get){
		.engine = b ? b->engine : s->home,
		.into = b ? b->block : NULL,
		.into_off = p->rq.off,
		.has_cap = p->rq.flags & RV_LOCAL_INTO,
		.cap = p->rq.len,
		.handle = {p->rq.worker, p->rq.local},
		.path = p->rq.path == RV_LOCAL_PATH_RDMA      ? RV_GET_RDMA
			: p->rq.path == RV_LOCAL_PATH_CHUNKED ? RV_GET_CHUNKED
							      : RV_GET_ANY,
		.deadline_ns = p->deadline_ns,
		.uid = s->uid,
		.then = p->rq.flags & RV_LOCAL_THEN_RELEASE  ? RV_GET_THEN_RELEASE
			: p->rq.flags & RV_LOCAL_THEN_DETACH ? RV_GET_THEN_DETACH
							     : RV_GET_THEN_KEEP,
	};
	c->run = rv_engine_run_get;
	c->done = got;
	rv_engine_send(rv_session_port(s), m->engine, c);
}

void rv_local_retry_gets(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_local *l = RV_CONTAINER(t, struct rv_local, get_retry);
	struct rv_list now, *it;

	rv_list_init(&now);
	rv_list_splice(&now, &l->waiting_gets);
	while ((it = rv_list_pop(&now))) {
		struct pending *p = RV_LIST_ENTRY(it, struct pending, link);

		if (!p->s->open)
			rv_pending_refuse(p, -ECONNRESET, NULL);
		else if (p->deadline_ns <= r->now_ns)
			rv_pending_refuse(p, -ETIMEDOUT, "too many gets were under way here");
		else if (p->patience_ns <= r->now_ns)
			rv_pending_refuse(p, -EAGAIN, "too many gets under way here");
		else
			rv_session_get_alone(p);
	}
}

/* METADATA, REF, DETACH, RELEASE, DROP: on this node by message, elsewhere by call. */

static void finish_slot(struct pending *p, int rc, const char *text, uint64_t len, uint64_t refs,
			bool pinned)
{
	struct rv_local_rep rep = {.id = p->rq.id, .len = len, .refcount = refs, .pinned = pinned};

	if (rc) {
		rv_pending_refuse(p, rc, text);
		return;
	}
	rv_session_reply(p->s, &rep, p->op, NULL, 0, -1);
	rv_pending_end(p);
}

static void here_not_found(struct pending *p, int rc, enum rv_end_cause cause)
{
	char text[96];

	snprintf(text, sizeof(text), "no such handle on this node%s", rv_end_cause_suffix(cause));
	rv_pending_refuse(p, rc,
			  rc == -ENOENT  ? text
			  : rc == -EPERM ? "that handle is another user's"
					 : NULL);
}

static void slot_done(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct rv_msg_slot m = *(struct rv_msg_slot *)(void *)c->body;

	rv_cell_free(port, c);
	if (m.rc)
		here_not_found(p, m.rc, m.cause);
	else
		finish_slot(p, 0, NULL, m.total_len, m.refcount, m.pinned);
}

static void lease_done(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct rv_msg_lease m = *(struct rv_msg_lease *)(void *)c->body;

	rv_cell_free(port, c);
	finish_slot(p, m.rc, "no such lease on that handle", 0, 0, false);
}

static void start_lease_here(struct pending *p, struct rv_engine *e, uint64_t lease_id)
{
	struct rv_cell *c = rv_pending_cell(p);

	if (!c)
		return;
	*(struct rv_msg_lease *)(void *)c->body = (struct rv_msg_lease){
		.engine = e,
		.op = p->op == RV_LOCAL_RELEASE ? RV_LEASE_RELEASE : RV_LEASE_DETACH,
		.local = p->rq.local,
		.lease_id = lease_id,
		.worker = p->s->local->conf.worker,
	};
	c->run = rv_engine_run_lease;
	c->done = lease_done;
	rv_engine_send(rv_session_port(p->s), e, c);
}

/* `release` without a lease: one is taken only to be released. */
static void acquired_here(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct rv_msg_acquire *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	uint64_t lease_id = m->lease_id;
	int rc = m->rc;
	enum rv_end_cause cause = m->cause;

	if (!rc && m->block)
		rv_local_drop_block(p->s->local, e, m->block);
	rv_cell_free(port, c);
	if (rc)
		here_not_found(p, rc, cause);
	else
		start_lease_here(p, e, lease_id);
}

static void start_here(struct pending *p)
{
	struct rv_local *local = p->s->local;
	struct rv_engine *e = rv_engine_of(local->conf.engines, p->rq.local);
	struct rv_cell *c;

	if (!e) {
		here_not_found(p, -ENOENT, RV_END_NONE);
		return;
	}
	if ((p->op == RV_LOCAL_DETACH || p->op == RV_LOCAL_RELEASE) && p->rq.lease_id) {
		start_lease_here(p, e, p->rq.lease_id);
		return;
	}
	c = rv_pending_cell(p);
	if (!c)
		return;
	if (p->op == RV_LOCAL_RELEASE) {
		*(struct rv_msg_acquire *)(void *)c->body = (struct rv_msg_acquire){
			.engine = e,
			.local = p->rq.local,
			.worker = local->conf.worker,
			.for_us = true,
			.uid = p->s->uid,
		};
		c->run = rv_engine_run_acquire;
		c->done = acquired_here;
	} else {
		*(struct rv_msg_slot *)(void *)c->body = (struct rv_msg_slot){
			.engine = e,
			.op = p->op == RV_LOCAL_REF    ? RV_SLOT_REF
			      : p->op == RV_LOCAL_DROP ? RV_SLOT_DROP
						       : RV_SLOT_METADATA,
			.local = p->rq.local,
			.check_uid = true,
			.uid = p->s->uid,
		};
		c->run = rv_engine_run_slot;
		c->done = slot_done;
	}
	rv_engine_send(rv_session_port(p->s), e, c);
}

static void start_there(struct pending *p, uint64_t lease_id);

static void called(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct rv_peer_call pc = *(struct rv_peer_call *)(void *)c->body;

	rv_cell_free(port, c);
	if (!pc.rc && pc.op == RV_PEER_ACQUIRE) {
		start_there(p, pc.answer == RV_ANSWER_RDMA ? pc.rdma.lease_id : pc.ready.lease_id);
		return;
	}
	finish_slot(p, pc.rc, pc.text, pc.meta.total_len, pc.meta.refcount, pc.meta.pinned);
}

static void start_there(struct pending *p, uint64_t lease_id)
{
	struct rv_peer_calls *pc = rv_messenger_calls(p->s->local->conf.messenger);
	struct rv_cell *c = rv_pending_cell(p);
	struct rv_peer_call *call;

	if (!c)
		return;
	call = (void *)c->body;
	*call = (struct rv_peer_call){
		.handle = {p->rq.worker, p->rq.local},
		.deadline_ns = p->deadline_ns,
		.lease_id = lease_id,
		.sync = true,
	};
	if (p->op == RV_LOCAL_METADATA)
		call->op = RV_PEER_METADATA;
	else if (p->op == RV_LOCAL_REF)
		call->op = RV_PEER_REF;
	else if (!lease_id)
		call->op = RV_PEER_ACQUIRE;
	else
		call->op = p->op == RV_LOCAL_DETACH ? RV_PEER_DETACH : RV_PEER_RELEASE;
	c->done = called;
	pc->ops->start(pc, rv_session_port(p->s), c);
}

static void start_op(struct pending *p)
{
	if (p->op == RV_LOCAL_GET)
		rv_session_get_alone(p);
	else if (p->rq.worker == p->s->local->conf.worker)
		start_here(p);
	else if (p->op == RV_LOCAL_DROP)
		rv_pending_refuse(p, -EINVAL, "only its owner drops a slot: run rvctl drop there");
	else
		start_there(p, p->rq.lease_id);
}

static void connected(void *ctx, const struct rv_connect_result *r)
{
	struct pending *p = ctx;
	struct rv_local_rep rep = {.id = p->rq.id, .worker = r->worker};
	char text[200];

	if (r->rc) {
		snprintf(text, sizeof(text), "%s", r->why);
		rv_pending_refuse(p, r->rc, text);
	} else if (p->op != RV_LOCAL_PEER_ADD) {
		start_op(p);
	} else if (!r->told) {
		rv_pending_refuse(
			p, -ENOTSUP,
			"the node there does not say who it is, or is this one: give its PeerInfo file");
	} else {
		rv_session_reply(p->s, &rep, p->op, NULL, 0, -1);
		rv_pending_end(p);
	}
}

void rv_pending_start(struct pending *p)
{
	uint64_t now = p->s->local->conf.reactor->now_ns;

	p->deadline_ns = deadline_of(p->s, &p->rq);
	p->patience_ns = rv_sat_add(now, p->s->local->conf.call_timeout_ns);
}

void rv_session_reach(const struct pending *p,
		      void (*done)(void *ctx, const struct rv_connect_result *r), void *ctx)
{
	struct rv_messenger *m = p->s->local->conf.messenger;
	uint64_t deadline = rv_min_u64(p->deadline_ns, p->patience_ns);

	if (p->rq.host[0])
		rv_messenger_connect(m, p->rq.host, (uint16_t)p->rq.port, p->rq.worker, NULL,
				     deadline, done, ctx);
	else
		rv_messenger_find(m, p->rq.worker, deadline, done, ctx);
}

void rv_session_op(struct session *s, unsigned op, const struct rv_local_req *rq)
{
	struct pending *p;

	if (!rq->worker) {
		rv_session_refuse(s, rq, op, -ENOENT,
				  "no node has the worker id 0: that is no handle");
		return;
	}
	p = rv_pending_new(s, op, rq);
	if (!p)
		return;
	rv_pending_start(p);
	if (op == RV_LOCAL_DETACH || op == RV_LOCAL_RELEASE)
		lease_forget(s, (struct rv_handle){rq->worker, rq->local}, rq->lease_id);
	if (rq->worker == s->local->conf.worker)
		start_op(p);
	else
		rv_session_reach(p, connected, p);
}

/* PEER_ADD, PEER_INFO */

void rv_session_peer_add(struct session *s, const struct rv_local_req *rq, const uint8_t *payload,
			 size_t len)
{
	const char *name = rq->name[0] ? rq->name : NULL;
	struct rv_local_rep rep = {.id = rq->id};
	struct pending *p;
	const char *why;
	int rc;

	if (!len) {
		p = rv_pending_new(s, RV_LOCAL_PEER_ADD, rq);
		if (p)
			rv_messenger_connect(
				s->local->conf.messenger, rq->host, (uint16_t)rq->port, 0, name,
				rv_sat_add(s->local->conf.reactor->now_ns,
					   rq->timeout_ns ? rq->timeout_ns
							  : s->local->conf.call_timeout_ns),
				connected, p);
		return;
	}
	rc = rv_messenger_add_peer_info(s->local->conf.messenger, payload, len, name, &rep.worker,
					&why);
	if (rc)
		rv_session_refuse(s, rq, RV_LOCAL_PEER_ADD, rc, "the PeerInfo is not usable: %s",
				  why);
	else
		rv_session_reply(s, &rep, RV_LOCAL_PEER_ADD, NULL, 0, -1);
}

void rv_session_peer_info(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id, .worker = s->local->conf.worker};
	size_t len = 0;
	void *info;

	if (rq->what) {
		info = rv_messenger_peer_info_msgpack(s->local->conf.messenger, &len);
	} else {
		info = rv_messenger_peer_info_json(s->local->conf.messenger);
		len = info ? strlen(info) : 0;
	}
	if (info)
		rv_session_reply(s, &rep, RV_LOCAL_PEER_INFO, info, len, -1);
	else
		rv_session_refuse(s, rq, RV_LOCAL_PEER_INFO, -ENOMEM, "out of memory");
	free(info);
}
