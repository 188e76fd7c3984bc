/*
 * Gets of this node's own slots: shown to the same user; copied for another, out of a region, or into a place of
 * the caller's.
 */
#include <errno.h>

#include "dataplane/base/err.h"
#include "dataplane/base/probe.h"
#include "dataplane/engine/get_impl.h"
#include "dataplane/mem/region.h"

/* Clients may write the source at any time, so the kernel does the copying. */
static void copy_slice(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, copy);
	uint64_t n = rv_min_u64(RV_GET_SLICE, g->len - g->copied);
	int rc;

	if (!g->asker) {
		rv_get_wind_up(g);
		return;
	}
	rc = rv_block_read(g->src, g->copied, rv_get_dst(g) + g->copied, n);
	if (rc) {
		rv_get_say(g, rc == -ESHUTDOWN
				      ? "the memory it was staged in was given back to its owner"
				      : "copying from the arena failed");
		rv_get_fail(g, rc == -ESHUTDOWN ? -ENOENT : rc);
		return;
	}
	g->copied += n;
	if (g->copied < g->len) {
		rv_task_at(r, t, r->now_ns);
		return;
	}
	rv_get_succeed(g, RV_PATH_LOCAL);
}

void rv_get_begin_copy(struct rv_get *g)
{
	g->state = GET_COPY;
	g->copied = 0;
	g->copy.fn = copy_slice;
	rv_probe_get_start(g->handle.worker, g->len, 0);
	rv_task_at(g->e->reactor, &g->copy, rv_get_now(g));
}

static void local_acquired(struct rv_port *p, struct rv_cell *c)
{
	struct rv_get *g = c->ctx;
	const struct rv_msg_acquire *m = (void *)c->body;

	(void)p;
	g->call_out = false;
	if (m->rc) {
		if (m->rc == -ENOENT)
			rv_get_say(g, "no such handle on this node%s",
				   rv_end_cause_suffix(m->cause));
		else
			rv_get_say(g, "%s", rv_err_name(m->rc));
		rv_get_fail(g, m->rc);
		return;
	}
	g->lease_id = m->lease_id;
	g->len = m->total_len;
	g->src = m->block;
	g->src_engine = m->engine;
	if (rv_get_too_long(g))
		return;
	if ((m->same_user && !g->into) || !m->block) {
		g->src = NULL; /* the hold goes with the answer */
		g->req->block = m->block;
		g->req->block_engine = m->engine;
		g->req->len = g->len;
		g->req->took = RV_PATH_LOCAL;
		g->req->text[0] = '\0';
		rv_counter_add(&g->e->stats.get_bytes[RV_PATH_LOCAL], g->len);
		rv_get_done(g);
		return;
	}
	rv_get_reserve(g); /* goes on with rv_get_begin_copy() */
}

void rv_get_begin_local(struct rv_get *g)
{
	struct rv_engine *owner = rv_engine_of(g->e->conf.set, g->handle.local);
	struct rv_msg_acquire *m = (void *)g->cell->body;

	if (!owner) {
		rv_get_say(g, "no such handle on this node");
		rv_get_fail(g, -ENOENT);
		return;
	}
	g->state = GET_LOCAL;
	*m = (struct rv_msg_acquire){
		.engine = owner,
		.local = g->handle.local,
		.worker = g->e->conf.worker,
		.for_us = true,
		.uid = g->uid,
	};
	g->cell->ctx = g;
	g->cell->run = rv_engine_run_acquire;
	g->cell->done = local_acquired;
	g->call_out = true;
	rv_engine_send(rv_get_port(g), owner, g->cell);
}
