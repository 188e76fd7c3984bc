/*
 * Gets and other requests, begun on the node's own core: what a node does for its programs, without a program.
 *
 *   starting thread --cell--> core: each flight: get -> its block and lease go back -> the next --> cell back
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tools/node_impl.h"

#define LOOK_MS 20

struct gets;

struct flight {
	struct gets *of;
	struct rv_cell *cell;
	uint64_t i;
};

/* The core's, from the cell's arrival until its return. */
struct gets {
	struct rv_engine *e;
	struct rv_handle handle;
	enum rv_node_ask what;
	uid_t uid;
	struct rv_raw *raw;
	struct rv_cell *asker;
	unsigned out;
	uint64_t begun;
	int rc;
	char text[RV_MSG_TEXT];
	bool over; /* the starting thread's */
	struct flight flight[];
};

static void got(struct rv_port *port, struct rv_cell *c);
static void told(struct rv_port *port, struct rv_cell *c);

static uint64_t now(const struct gets *g)
{
	return g->e->reactor->conf.clock();
}

static bool wants_more(const struct gets *g, uint64_t now_ns)
{
	if (g->rc || g->begun == g->raw->iterations)
		return false;
	return !g->raw->until_ns || now_ns < g->raw->until_ns;
}

static void start_get(struct flight *f)
{
	struct gets *g = f->of;

	*(struct rv_msg_get *)(void *)f->cell->body = (struct rv_msg_get){
		.engine = g->e,
		.handle = g->handle,
		.path = g->what == RV_NODE_GET_CHUNKED ? RV_GET_CHUNKED : RV_GET_ANY,
		.deadline_ns = RV_NEVER,
		.uid = g->uid,
		.then = RV_GET_THEN_DETACH,
	};
	f->cell->run = rv_engine_run_get;
	f->cell->done = got;
	rv_engine_send(g->e->reactor->port, g->e, f->cell);
}

static void start_metadata(struct flight *f)
{
	struct rv_peer_calls *pc = f->of->e->conf.calls;

	*(struct rv_peer_call *)(void *)f->cell->body = (struct rv_peer_call){
		.op = RV_PEER_METADATA,
		.handle = f->of->handle,
		.deadline_ns = RV_NEVER,
	};
	f->cell->done = told;
	pc->ops->start(pc, f->of->e->reactor->port, f->cell);
}

/* @return false: it has ended */
static bool begin(struct flight *f)
{
	struct gets *g = f->of;
	uint64_t at = now(g);

	if (!wants_more(g, at))
		return false;
	f->cell->ctx = f;
	f->i = g->begun++;
	if (!f->i)
		g->raw->first_ns = at;
	if (g->raw->began_ns)
		g->raw->began_ns[f->i] = at;
	if (g->what == RV_NODE_METADATA)
		start_metadata(f);
	else
		start_get(f);
	return true;
}

static void end(struct flight *f)
{
	struct gets *g = f->of;

	rv_cell_free(g->e->reactor->port, f->cell);
	if (--g->out == 0)
		rv_cell_reply(g->e->reactor->port, g->asker);
}

static void over(struct flight *f, int rc, const char *text)
{
	struct gets *g = f->of;

	if (rc) {
		if (!g->rc)
			snprintf(g->text, sizeof(g->text), "%s", text[0] ? text : rv_err_name(rc));
		g->rc = rc;
		end(f);
		return;
	}
	if (g->raw->ended_ns)
		g->raw->ended_ns[f->i] = now(g);
	g->raw->last_ns = now(g);
	g->raw->done_nr++;
	if (!begin(f))
		end(f);
}

/* The lease's end is over or on its way: the get is whole. */
static void got(struct rv_port *port, struct rv_cell *c)
{
	const struct rv_msg_get *m = (void *)c->body;

	(void)port;
	if (!m->rc && m->block)
		rv_block_drop(m->block);
	over(c->ctx, m->rc, m->text);
}

static void told(struct rv_port *port, struct rv_cell *c)
{
	const struct rv_peer_call *call = (void *)c->body;

	(void)port;
	over(c->ctx, call->rc, call->text);
}

static void run(struct rv_port *port, struct rv_cell *c)
{
	struct gets *g = c->ctx;
	unsigned depth = g->raw->depth;

	g->asker = c;
	for (unsigned i = 0; i < depth; i++) {
		struct flight *f = &g->flight[i];

		*f = (struct flight){.of = g, .cell = rv_cell_alloc(port)};
		if (!f->cell)
			break;
		g->out++;
		if (!begin(f)) {
			rv_cell_free(port, f->cell);
			g->out--;
			break;
		}
	}
	if (g->out)
		return;
	g->rc = g->begun ? g->rc : -EAGAIN;
	rv_cell_reply(port, c);
}

static void back(struct rv_port *port, struct rv_cell *c)
{
	struct gets *g = c->ctx;

	rv_cell_free(port, c);
	g->over = true;
}

int rv_node_gets(struct rv_node *n, uint64_t worker, uint64_t local, enum rv_node_ask what,
		 struct rv_raw *raw, void (*meanwhile)(void *), void *user, char *why,
		 size_t why_cap)
{
	struct rv_engine *e = n->engines.engine[0];
	struct gets *g = calloc(1, sizeof(*g) + raw->depth * sizeof(struct flight));
	struct rv_cell *c = g ? rv_cell_alloc(n->main_port) : NULL;
	int rc;

	if (!c) {
		free(g);
		return rv_node_fail(-ENOMEM, why, why_cap, "out of memory, or of message cells");
	}
	g->e = e;
	g->handle = (struct rv_handle){worker, local};
	g->what = what;
	g->uid = geteuid();
	g->raw = raw;
	c->run = run;
	c->done = back;
	c->ctx = g;
	rv_engine_send(n->main_port, e, c);
	while (!g->over) {
		rv_port_wait(n->main_port, LOOK_MS);
		if (meanwhile)
			meanwhile(user);
	}
	rc = g->rc;
	if (rc)
		snprintf(why, why_cap, "%s", g->text[0] ? g->text : rv_err_name(rc));
	free(g);
	return rc;
}
