/*
 * Messages for local programs: handlers they serve, calls they make.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/local/session_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

/* Requests queued for a program that does not read its socket; one more is refused. */
#define DELIVER_QUEUE RV_MIB(64)

/* SERVE, UNSERVE */

static bool deliver(struct rv_server *server, const struct rv_served_request *r)
{
	struct session *s = RV_CONTAINER(server, struct session, server);
	struct rv_local_rep rep = {
		.id = r->id,
		.worker = r->worker,
		.len = r->len,
		.path = (uint32_t)r->kind,
	};
	struct buffer *b = NULL;
	int fd = -1, rc;

	if (!s->open || s->conn.tx_queued > DELIVER_QUEUE)
		return false;
	/* It landed among the memory of the user who served the name when the fetch began. */
	if (r->block && r->block->arena->cls.uid != s->uid)
		return false;
	if (r->block) {
		b = rv_buffer_add(s, r->engine, r->block, r->len);
		if (!b)
			return false;
		b->view = true;
		rep.token = b->token;
		fd = rv_session_describe_block(s, r->block, &rep);
	}
	snprintf(rep.path_name, sizeof(rep.path_name), "%s", r->name);
	rc = rv_session_send(s, RV_LOCAL_REQUEST, &rep, r->payload, r->payload ? r->len : 0, fd);
	if (rc && b) {
		rv_map64_del(&s->shown, b->arena);
		rv_buffer_free(s, b, false); /* the hold stays the caller's */
	}
	return rc == 0;
}

void rv_session_serve(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id};
	int rc;

	s->server = (struct rv_server){.deliver = deliver, .uid = s->uid};
	rc = rv_served_add(s->local->conf.messenger, rq->name, &s->server);
	if (rc == -EEXIST)
		rv_session_refuse(s, rq, RV_LOCAL_SERVE, rc,
				  "another program serves '%s' on this node", rq->name);
	else if (rc == -EINVAL)
		rv_session_refuse(
			s, rq, RV_LOCAL_SERVE, rc,
			"a handler's name has 1 to %d characters and does not start with '_'",
			RV_SERVED_NAME - 1);
	else if (rc)
		rv_session_refuse(s, rq, RV_LOCAL_SERVE, rc, "%s", rv_err_name(rc));
	else
		rv_session_reply(s, &rep, RV_LOCAL_SERVE, NULL, 0, -1);
}

void rv_session_unserve(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id};

	if (rv_served_remove(s->local->conf.messenger, rq->name, &s->server))
		rv_session_refuse(s, rq, RV_LOCAL_UNSERVE, -ENOENT,
				  "this program does not serve '%s'", rq->name);
	else
		rv_session_reply(s, &rep, RV_LOCAL_UNSERVE, NULL, 0, -1);
}

void rv_session_answer(struct session *s, const struct rv_local_req *rq, const uint8_t *payload,
		       size_t len)
{
	/* A late answer finds nothing: its caller was told already, or never wanted one. */
	rv_served_answer(s->local->conf.messenger, &s->server, rq->token,
			 rq->flags & RV_LOCAL_FAILED, payload, len);
}

/* CALL, HANDLERS: find the peer, then call. */

struct out {
	struct pending *p;
	size_t len;
	uint8_t payload[];
};

static void out_end(struct out *o)
{
	rv_pending_end(o->p);
	free(o);
}

static void called(void *ctx, const struct rv_called *r)
{
	struct out *o = ctx;
	struct rv_local_rep rep = {.id = o->p->rq.id, .worker = o->p->rq.worker, .len = r->len};

	if (r->rc)
		rv_session_refuse(o->p->s, &o->p->rq, o->p->op, r->rc, "%s", r->text);
	else
		rv_session_reply(o->p->s, &rep, o->p->op, r->payload, r->len, -1);
	out_end(o);
}

static void start(struct out *o)
{
	const struct rv_local_req *rq = &o->p->rq;
	struct rv_local *local = o->p->s->local;
	struct rv_call_request q = {
		.worker = rq->worker,
		.handler = rq->name,
		.kind = (enum rv_call_kind)rq->what,
		.payload = o->payload,
		.len = o->len,
		.timeout_ns = rq->timeout_ns,
	};

	if (rq->worker == local->conf.worker) {
		rv_session_refuse(o->p->s, rq, o->p->op, -EINVAL,
				  "that is this node itself: messages go to other nodes");
		out_end(o);
		return;
	}
	if (o->p->op == RV_LOCAL_HANDLERS) {
		q.handler = "_list_handlers";
		q.kind = RV_CALL_UNARY;
		q.len = 0;
	} else if (rq->local) {
		q.staged = (struct rv_handle){local->conf.worker, rq->local};
		q.len = 0;
	}
	rv_served_call(local->conf.messenger, &q, called, o);
}

static uint64_t out_deadline(const struct out *o)
{
	const struct rv_local *local = o->p->s->local;
	uint64_t ns = o->p->rq.timeout_ns;

	return rv_sat_add(local->conf.reactor->now_ns, ns ? ns : local->conf.call_timeout_ns);
}

static void connected(void *ctx, const struct rv_connect_result *r)
{
	struct out *o = ctx;

	if (r->rc || (!r->told && !r->worker)) {
		rv_session_refuse(
			o->p->s, &o->p->rq, o->p->op, r->rc ? r->rc : -ENOTSUP, "%s",
			r->rc ? r->why
			      : "the node there does not say who it is, or is this one: give its PeerInfo file");
		out_end(o);
		return;
	}
	o->p->rq.worker = r->worker;
	start(o);
}

static void found(void *ctx, const struct rv_connect_result *r)
{
	struct out *o = ctx;

	if (!r->rc) {
		start(o);
		return;
	}
	rv_session_refuse(o->p->s, &o->p->rq, o->p->op, r->rc, "%s", r->why);
	out_end(o);
}

static bool find_by_name(const struct rv_local *local, struct rv_local_req *rq)
{
	const struct rv_peers *d = rv_messenger_peers(local->conf.messenger);
	const struct rv_peer *p;
	size_t pos = 0;

	while ((p = rv_peers_next(d, &pos))) {
		if (!rv_messenger_is_stranger(p) && strcmp(p->name, rq->host) == 0) {
			rq->worker = p->worker;
			return true;
		}
	}
	return false;
}

static bool call_is_sound(struct session *s, const struct rv_local_req *rq, unsigned op, size_t len)
{
	if (op == RV_LOCAL_CALL &&
	    (!rq->name[0] || rq->name[0] == '_' || rq->what > RV_LOCAL_UNARY)) {
		rv_session_refuse(s, rq, op, -EINVAL,
				  "a handler's name does not start with '_', and the kind is fire, "
				  "sync or unary");
		return false;
	}
	if (len > s->local->conf.threshold) {
		rv_session_refuse(s, rq, op, -EMSGSIZE,
				  "payloads over %llu bytes are staged and called by handle",
				  (unsigned long long)s->local->conf.threshold);
		return false;
	}
	return true;
}

void rv_session_call(struct session *s, unsigned op, const struct rv_local_req *rq,
		     const uint8_t *payload, size_t len)
{
	struct rv_local *local = s->local;
	struct out *o;

	if (!call_is_sound(s, rq, op, len))
		return;
	o = malloc(sizeof(*o) + len);
	if (!o) {
		rv_session_refuse(s, rq, op, -ENOMEM, "out of memory");
		return;
	}
	o->p = rv_pending_new(s, op, rq);
	if (!o->p) {
		free(o);
		return;
	}
	o->len = len;
	if (len)
		memcpy(o->payload, payload, len);
	if (o->p->rq.host[0] && rq->port) {
		rv_messenger_connect(local->conf.messenger, rq->host, (uint16_t)rq->port, 0, NULL,
				     out_deadline(o), connected, o);
		return;
	}
	if (o->p->rq.host[0] && !find_by_name(local, &o->p->rq)) {
		rv_session_refuse(s, rq, op, -EHOSTUNREACH,
				  "no peer is known as '%s': use `rvctl peer-add`", rq->host);
		out_end(o);
		return;
	}
	if (o->p->rq.worker == local->conf.worker)
		start(o); /* says so */
	else
		rv_messenger_find(local->conf.messenger, o->p->rq.worker, out_deadline(o), found,
				  o);
}
