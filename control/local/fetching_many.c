/*
 * GET_MANY: what one owner has is fetched in one exchange where no lease is to stay, and answered in one reply where
 * the client takes that. Each of the others is a GET of its own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/local/session_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

_Static_assert(RV_LOCAL_MANY_MAX <= RV_PEER_MANY_MAX, "fits into one exchange");

/* What one owner is asked for together. */
struct many {
	struct pending *p; /* whose request is like each GET's */
	uint64_t id[RV_PEER_MANY_MAX];
	struct rv_peer_many peer;
};

static void many_end(struct many *m)
{
	m->p->s->requests -= m->peer.nr - 1; /* those that have become GETs count by themselves */
	rv_pending_end(m->p);
	free(m);
}

/* The GET that it would have been by itself, with what is left of the time. */
static void get_alone(const struct many *m, uint32_t i)
{
	struct rv_local_req rq = m->p->rq;
	struct pending *p;

	rq.id = m->id[i];
	rq.local = m->peer.one[i].local;
	p = rv_pending_new(m->p->s, RV_LOCAL_GET, &rq);
	if (!p)
		return;
	p->deadline_ns = m->p->deadline_ns;
	p->patience_ns = m->p->patience_ns;
	rv_session_get_alone(p);
}

static void refuse_one(const struct many *m, uint32_t i, int rc, const char *text)
{
	struct rv_local_req rq = {.id = m->id[i]};

	rv_session_refuse(m->p->s, &rq, RV_LOCAL_GET, rc, "%s", *text ? text : rv_err_name(rc));
}

/* The engine's hold for all that came becomes the client's. @return its token, 0: there is no room for it */
static uint64_t keep(struct session *s, const struct rv_msg_get_many *g)
{
	struct buffer *b = s->open ? rv_buffer_add(s, g->engine, g->block, g->block->len) : NULL;

	if (!b) {
		rv_local_drop_block(s->local, g->engine, g->block);
		return 0;
	}
	b->view = true;
	return b->token;
}

/* The arena cannot be shown: what was to be seen in it goes back. */
static void show_nothing(struct many *m, const struct rv_local_got *got, size_t nr)
{
	struct session *s = m->p->s;

	for (size_t i = 0; i < nr; i++) {
		struct rv_local_req rq = {.id = got[i].id};
		struct buffer *b = got[i].token ? rv_map64_get(&s->buffers, got[i].token) : NULL;

		if (b) /* the first of them has it */
			rv_buffer_free(s, b, true);
		rv_session_refuse(s, &rq, RV_LOCAL_GET, -EMFILE, RV_SESSION_NO_FD);
	}
}

/* @param any  of them is not empty */
static void show(struct many *m, const struct rv_msg_get_many *g, const struct rv_local_got *got,
		 size_t nr, bool any)
{
	struct session *s = m->p->s;
	struct rv_local_rep rep = {
		.id = m->p->rq.id,
		.elapsed_ns = g->elapsed_ns,
		.path = RV_PATH_CHUNKED,
		.path_name = "chunked tcp",
	};
	const struct rv_block *shown = any ? g->block : NULL;
	int rc, fd = -1;

	if (!s->open)
		return;
	if (shown)
		fd = rv_session_describe_block(s, shown, &rep);
	rc = rv_session_send(s, RV_LOCAL_GET_MANY | RV_LOCAL_REPLY, &rep, got, nr * sizeof(*got),
			     fd);
	if (rc == -EMFILE && shown) {
		rv_map64_del(&s->shown, shown->arena->id);
		show_nothing(m, got, nr);
	} else if (rc) {
		rv_conn_close(&s->conn, -ENOMEM);
	}
}

static void answer(struct many *m, const struct rv_msg_get_many *g)
{
	struct rv_local_got got[RV_PEER_MANY_MAX];
	uint64_t token = g->block ? keep(m->p->s, g) : 0;
	size_t nr = 0;

	for (uint32_t i = 0; i < m->peer.nr; i++) {
		const struct rv_peer_one *one = &m->peer.one[i];

		if (one->rc)
			continue;
		if (one->len && !token) {
			refuse_one(m, i, -ENOMEM, "");
			continue;
		}
		got[nr++] = (struct rv_local_got){
			.id = m->id[i],
			.token = one->len ? token : 0,
			.off = one->len ? g->block->off + one->off : 0,
			.len = one->len,
		};
	}
	if (nr)
		show(m, g, got, nr, token != 0);
	for (uint32_t i = 0; i < m->peer.nr; i++) {
		int rc = m->peer.one[i].rc;

		if (rc == -EAGAIN)
			get_alone(m, i);
		else if (rc)
			refuse_one(
				m, i, rc,
				"the bytes that arrived are not the bytes that were staged (xxh3)");
	}
}

static void all_alone(struct many *m)
{
	for (uint32_t i = 0; i < m->peer.nr; i++)
		get_alone(m, i);
	many_end(m);
}

static void refuse_all(struct many *m, int rc, const char *text)
{
	for (uint32_t i = 0; i < m->peer.nr; i++)
		refuse_one(m, i, rc, text);
	many_end(m);
}

static void got_many(struct rv_port *port, struct rv_cell *c)
{
	const struct rv_msg_get_many g = *(struct rv_msg_get_many *)(void *)c->body;
	struct many *m = c->ctx;

	rv_cell_free(port, c);
	if (g.rc == -EAGAIN) {
		all_alone(m);
	} else if (g.rc) {
		refuse_all(m, g.rc, g.text);
	} else {
		answer(m, &g);
		many_end(m);
	}
}

static void start(struct many *m)
{
	struct session *s = m->p->s;
	struct rv_cell *c = rv_cell_alloc(rv_session_port(s));

	if (!c) {
		all_alone(m);
		return;
	}
	*(struct rv_msg_get_many *)(void *)c->body = (struct rv_msg_get_many){
		.engine = s->home,
		.worker = m->p->rq.worker,
		.path = m->p->rq.path == RV_LOCAL_PATH_CHUNKED ? RV_GET_CHUNKED : RV_GET_ANY,
		.deadline_ns = m->p->deadline_ns,
		.uid = s->uid,
		.many = &m->peer,
	};
	c->ctx = m;
	c->run = rv_engine_run_get_many;
	c->done = got_many;
	rv_engine_send(rv_session_port(s), s->home, c);
}

static void connected(void *ctx, const struct rv_connect_result *r)
{
	struct many *m = ctx;
	char text[200];

	if (!r->rc) {
		start(m);
		return;
	}
	snprintf(text, sizeof(text), "%s", r->why);
	refuse_all(m, r->rc, text);
}

/* Nothing is to stay of their leases, and they are another node's, all of the same. */
static bool may_go_together(const struct session *s, const struct rv_local_req *rq,
			    const struct rv_local_one *one, size_t nr)
{
	if (nr < 2 || !(rq->flags & RV_LOCAL_TOGETHER) || !(rq->flags & RV_LOCAL_THEN_DETACH) ||
	    rq->flags & RV_LOCAL_THEN_RELEASE || rq->path == RV_LOCAL_PATH_RDMA || !one->worker ||
	    one->worker == s->local->conf.worker)
		return false;
	for (size_t i = 1; i < nr; i++) {
		if (one[i].worker != one->worker)
			return false;
	}
	return true;
}

static void each_alone(struct session *s, const struct rv_local_req *rq,
		       const struct rv_local_one *one, size_t nr)
{
	struct rv_local_req get = *rq;

	for (size_t i = 0; i < nr; i++) {
		get.id = one[i].id;
		get.worker = one[i].worker;
		get.local = one[i].local;
		rv_session_op(s, RV_LOCAL_GET, &get);
	}
}

static void together(struct session *s, const struct rv_local_req *rq,
		     const struct rv_local_one *one, size_t nr)
{
	struct rv_local_req first = *rq;
	struct many *m = malloc(sizeof(*m));

	first.id = one->id;
	first.worker = one->worker;
	first.local = one->local;
	if (!m) {
		each_alone(s, rq, one, nr);
		return;
	}
	m->p = rv_pending_new(s, RV_LOCAL_GET, &first);
	if (!m->p) { /* the first was refused */
		free(m);
		each_alone(s, rq, one + 1, nr - 1);
		return;
	}
	rv_pending_start(m->p);
	m->peer.nr = (uint32_t)nr;
	s->requests += m->peer.nr - 1;
	for (size_t i = 0; i < nr; i++) {
		m->id[i] = one[i].id;
		m->peer.one[i] = (struct rv_peer_one){.local = one[i].local};
	}
	rv_session_reach(m->p, connected, m);
}

void rv_session_get_many(struct session *s, const struct rv_local_req *rq, const uint8_t *payload,
			 size_t len)
{
	struct rv_local_one one[RV_LOCAL_MANY_MAX];
	size_t nr = len / sizeof(one[0]);

	if (!len || len % sizeof(one[0]) || nr > RV_LOCAL_MANY_MAX || rq->flags & RV_LOCAL_INTO) {
		rv_session_refuse(
			s, rq, RV_LOCAL_GET_MANY, -EINVAL,
			"1 to %u gets go into one request, and none of them into a buffer",
			RV_LOCAL_MANY_MAX);
		return;
	}
	memcpy(one, payload, len);
	if (may_go_together(s, rq, one, nr))
		together(s, rq, one, nr);
	else
		each_alone(s, rq, one, nr);
}
