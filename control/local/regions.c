/*
 * Regions: a client's own memory, registered, named piece by piece, given back.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "control/local/session_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

static const char no_region[] = "no such region in this session";

struct watcher {
	struct rv_list link;
	struct rv_local_req rq;
};

static struct region *find(const struct session *s, uint64_t token)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &s->regions)
	{
		struct region *g = RV_LIST_ENTRY(it, struct region, link);

		if (g->token == token)
			return g;
	}
	return NULL;
}

/* REGION_REGISTER */

static void opened(struct rv_port *port, struct rv_cell *c);

static void refuse_register(struct session *s, const struct rv_local_req *rq, int fd, int rc,
			    const char *why)
{
	rv_session_refuse(s, rq, RV_LOCAL_REGION_REGISTER, rc, "%s", why);
	if (fd >= 0)
		close(fd);
}

void rv_session_region_register(struct session *s, const struct rv_local_req *rq, int fd)
{
	struct region *g = NULL;
	struct rv_cell *c;

	if (fd < 0) {
		refuse_register(
			s, rq, fd, -EBADF,
			"no descriptor came along, or the daemon had none left to take it by");
		return;
	}
	if (s->region_nr < RV_SESSION_REGIONS)
		g = calloc(1, sizeof(*g));
	if (!g) {
		refuse_register(s, rq, fd, -ENOSPC, "too many regions of this session");
		return;
	}
	g->opening = rv_pending_new(s, RV_LOCAL_REGION_REGISTER, rq);
	c = g->opening ? rv_pending_cell(g->opening) : NULL;
	if (!c) {
		close(fd);
		free(g);
		return;
	}
	g->s = s;
	rv_list_init(&g->watchers);
	s->region_nr++;
	*(struct rv_msg_region_open *)(void *)c->body = (struct rv_msg_region_open){
		.engine = s->home,
		.fd = fd,
		.off = rq->off,
		.len = rq->len,
		.uid = s->uid,
		.session = s->id,
	};
	c->ctx = g;
	c->run = rv_engine_run_region_open;
	c->done = opened;
	rv_engine_send(rv_session_port(s), s->home, c);
}

/* Each is told once; the session stays until the answer. */
static void let_go(struct region *g, uint64_t wait_ns)
{
	g->closing = true;
	g->wait_ns = wait_ns;
	g->s->refs++;
	g->s->local->pending++;
	rv_local_close_region(g->s->local, g);
}

static void opened(struct rv_port *port, struct rv_cell *c)
{
	struct region *g = c->ctx;
	struct pending *p = g->opening;
	struct session *s = p->s;
	struct rv_msg_region_open m = *(struct rv_msg_region_open *)(void *)c->body;
	struct rv_local_rep rep = {.id = p->rq.id};

	rv_cell_free(port, c);
	g->opening = NULL;
	if (m.rc) {
		s->region_nr--;
		free(g);
		rv_pending_refuse(p, m.rc, m.text);
		return;
	}
	g->token = ++s->last_token;
	g->engine = m.engine;
	g->arena = m.arena;
	rv_list_push(&s->regions, &g->link);
	if (!s->open)
		let_go(g, 0); /* nothing can be staged there */
	rep.token = g->token;
	rep.off = m.eff_off;
	rep.len = m.eff_len;
	rep.pinned = m.registered;
	rv_session_reply(s, &rep, p->op, NULL, 0, -1);
	rv_pending_end(p);
}

/* REGION_STAGE */

static void staged(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct rv_msg_stage m = *(struct rv_msg_stage *)(void *)c->body;
	struct rv_local_rep rep = {.id = p->rq.id,
				   .worker = m.handle.worker,
				   .local = m.handle.local,
				   .pinned = m.in_registered};

	rv_cell_free(port, c);
	if (m.rc) {
		rv_pending_refuse(p, m.rc,
				  m.rc == -ENOSPC ? "the slot table is full (rendezvous.max_slots)"
				  : m.rc == -ERANGE    ? "the range is not within the region"
				  : m.rc == -ESHUTDOWN ? "the region is being given back"
						       : NULL);
		return;
	}
	rv_session_reply(p->s, &rep, p->op, NULL, 0, -1);
	rv_pending_end(p);
}

void rv_session_region_stage(struct session *s, const struct rv_local_req *rq)
{
	struct region *g = find(s, rq->token);
	struct pending *p;
	struct rv_cell *c;

	if (!g || g->closing) {
		rv_session_refuse(s, rq, RV_LOCAL_REGION_STAGE, g ? -ESHUTDOWN : -EINVAL, "%s",
				  g ? "the region is being given back" : no_region);
		return;
	}
	p = rv_pending_new(s, RV_LOCAL_REGION_STAGE, rq);
	c = p ? rv_pending_cell(p) : NULL;
	if (!c)
		return;
	*(struct rv_msg_stage *)(void *)c->body = (struct rv_msg_stage){
		.engine = g->engine,
		.region = g->arena,
		.off = rq->off,
		.len = rq->len,
		.opts =
			{
				.refs = rq->refs ? rq->refs : 1,
				.ttl_ns = rq->ttl_ns ? rq->ttl_ns : s->local->conf.default_ttl_ns,
				.uid = s->uid,
				.session = rq->flags & RV_LOCAL_KEEP ? 0 : s->id,
			},
	};
	c->run = rv_engine_run_stage;
	c->done = staged;
	rv_engine_send(rv_session_port(s), g->engine, c);
}

/* REGION_UNREGISTER, REGION_WATCH, and the end of a session */

static void answer(struct region *g, const struct rv_local_req *rq, unsigned op,
		   const struct rv_msg_region_close *m)
{
	struct rv_local_rep rep = {.id = rq->id, .path = !m->drained};

	if (m->rc)
		rv_session_refuse(g->s, rq, op, m->rc,
				  "a device has not let go of the region: its memory must never be "
				  "used again");
	else
		rv_session_reply(g->s, &rep, op, NULL, 0, -1);
}

/* Whoever watches memory that is never released waits for good. */
static void end_watchers(struct region *g, const struct rv_msg_region_close *m)
{
	struct rv_list *it;

	while ((it = rv_list_pop(&g->watchers))) {
		struct watcher *w = RV_LIST_ENTRY(it, struct watcher, link);

		if (!m->rc)
			answer(g, &w->rq, RV_LOCAL_REGION_WATCH, m);
		free(w);
	}
}

void rv_region_closed(struct rv_port *port, struct rv_cell *c)
{
	struct region *g = c->ctx;
	struct session *s = g->s;
	struct rv_msg_region_close m = *(struct rv_msg_region_close *)(void *)c->body;

	rv_cell_free(port, c);
	if (g->wanted)
		answer(g, &g->rq, RV_LOCAL_REGION_UNREGISTER, &m);
	end_watchers(g, &m);
	rv_list_del(&g->link);
	free(g);
	s->region_nr--;
	s->local->pending--;
	rv_session_drop(s);
}

void rv_session_region_unregister(struct session *s, const struct rv_local_req *rq)
{
	struct region *g = find(s, rq->token);

	if (!g || g->closing) {
		if (!(rq->flags & RV_LOCAL_DROPPED))
			rv_session_refuse(s, rq, RV_LOCAL_REGION_UNREGISTER, -EINVAL, "%s",
					  g ? "the region is being given back already" : no_region);
		return;
	}
	g->kept = rq->flags & RV_LOCAL_HAND_OVER;
	g->wanted = !g->kept && !(rq->flags & RV_LOCAL_DROPPED);
	g->rq = *rq;
	if (g->kept) {
		struct rv_local_rep rep = {.id = rq->id};

		rv_session_reply(s, &rep, RV_LOCAL_REGION_UNREGISTER, NULL, 0, -1);
	} else if (!g->wanted) {
		rv_log_warn("local: a region was dropped without rv_region_unregister(): it is "
			    "deregistered in the background");
	}
	let_go(g, g->kept     ? RV_NEVER
		  : g->wanted ? rq->timeout_ns
			      : s->local->conf.drop_dereg_timeout_ns);
}

void rv_session_region_watch(struct session *s, const struct rv_local_req *rq)
{
	struct region *g = find(s, rq->token);
	struct rv_local_rep rep = {.id = rq->id};
	struct watcher *w;

	if (!g && (!rq->token || rq->token > s->last_token)) {
		rv_session_refuse(s, rq, RV_LOCAL_REGION_WATCH, -EINVAL, "%s", no_region);
		return;
	}
	if (!g) { /* it was released */
		rv_session_reply(s, &rep, RV_LOCAL_REGION_WATCH, NULL, 0, -1);
		return;
	}
	w = g->watcher_nr < RV_REGION_WATCHERS ? calloc(1, sizeof(*w)) : NULL;
	if (!w) {
		rv_session_refuse(s, rq, RV_LOCAL_REGION_WATCH, -ENOSPC,
				  "too many watch this region");
		return;
	}
	w->rq = *rq;
	g->watcher_nr++;
	rv_list_push(&g->watchers, &w->link);
}

void rv_session_end_regions(struct session *s)
{
	struct rv_list *it, *tmp;
	unsigned nr = 0;

	RV_LIST_EACH_SAFE(it, tmp, &s->regions)
	{
		struct region *g = RV_LIST_ENTRY(it, struct region, link);

		if (g->closing)
			continue;
		nr++;
		let_go(g, s->local->conf.drop_dereg_timeout_ns);
	}
	if (nr)
		rv_log_warn("local: a program of user %u has ended with %u regions registered: "
			    "they are deregistered in the background",
			    (unsigned)s->uid, nr);
}

unsigned rv_local_end_regions(struct rv_local *l)
{
	struct rv_list *it, *jt, *tmp;
	unsigned left = 0;

	RV_LIST_EACH(it, &l->sessions)
	{
		struct session *s = RV_LIST_ENTRY(it, struct session, link);

		RV_LIST_EACH_SAFE(jt, tmp, &s->regions)
		{
			struct region *g = RV_LIST_ENTRY(jt, struct region, link);

			if (!g->closing)
				let_go(g, 0);
		}
		left += s->region_nr;
	}
	return left;
}
