/*
 * The programs: what control/local would ask for its sessions, at random, and what they do with the answers.
 *
 * Every byte that is staged follows from the slot's serial number, so bytes of any other slot, of another
 * life, or of reused memory are told apart. A view is checked when it comes and again when it is given back.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

#define SLACK_NS RV_MS(150)

enum op_kind {
	OP_ALLOC,
	OP_STAGE,
	OP_GET,
	OP_LEASE,
	OP_CALL,
	OP_SLOT,
	OP_ACQUIRE,
	OP_DROP,
	OP_SESSION_END,
	OP_CONNECT,
	OP_REGION_OPEN,
	OP_REGION_STAGE,
	OP_REGION_CLOSE,
};

struct buffer {
	struct rv_list link;
	struct sim_node *node;
	uint64_t session;
	uid_t uid;
	struct rv_engine *engine;
	struct rv_block *block;
	uint64_t len;
	bool busy, pinned;
	bool filled;  /* by a get that is under way */
	bool spoiled; /* a get into it was late: its bytes may still land there */
};

struct view {
	struct rv_list link;
	struct sim_node *node;
	uint64_t session;
	struct sim_handle h;
	struct rv_engine *engine;
	struct rv_block *block;
	uint64_t len, lease_id;
	bool dropped; /* mutation */
};

/** A program's own memory, registered. Its ranges are staged one after another, each once. */
struct region {
	struct rv_list link;
	struct sim_node *node;
	uint64_t session;
	uid_t uid;
	struct rv_engine *engine;
	struct rv_arena *arena;
	int fd;
	uint64_t off, len, next; /* in the file; what is named next, from off */
	bool closing;
};

/** Something under way: ends exactly once. */
struct op {
	struct rv_list link;
	struct sim_node *node;
	enum op_kind kind;
	uint64_t session;
	struct sim_handle h;
	struct buffer *buffer; /* GET: its place; NULL once that was given back */
	struct region *region;
	bool capped;
	uint64_t off, cap;
	enum rv_get_path path;
	enum rv_lease_op then; /* of a lease that was acquired for it */
	uint64_t deadline_ns, began_ns;
	unsigned began_step;
};

/** What must not be forgotten because there is no cell for it at the moment. */
struct owed {
	struct rv_list link;
	struct sim_node *node;
	enum op_kind kind;
	rv_cell_fn *run;
	struct rv_engine *engine;
	struct rv_block *block;
	uint64_t session, lease_id;
	struct rv_handle h;
	bool release, sync;
	struct region *region;
	uint64_t wait_ns;
};

static void region_closed(struct rv_port *p, struct rv_cell *c);

static struct rv_list ops, buffers, views, owing, regions;
static bool forgot_lease;

/* Bytes. */

static uint64_t word(uint64_t serial, uint64_t i)
{
	return (serial * 0x9e3779b97f4a7c15ULL + i * 0xd6e8feb86659fd93ULL) ^ serial;
}

void sim_fill(uint8_t *p, uint64_t len, uint64_t serial)
{
	uint64_t i;

	for (i = 0; i + 8 <= len; i += 8) {
		uint64_t w = word(serial, i / 8);

		memcpy(p + i, &w, 8);
	}
	if (i < len) {
		uint64_t w = word(serial, i / 8);

		memcpy(p + i, &w, len - i);
	}
}

uint64_t sim_differs(const uint8_t *p, uint64_t len, uint64_t serial)
{
	uint64_t i;

	for (i = 0; i < len; i += 8) {
		uint64_t w = word(serial, i / 8);

		if (memcmp(p + i, &w, rv_min_u64(8, len - i)) != 0)
			return i;
	}
	return RV_NEVER;
}

/* Cells go out from the net core, as the sessions' do. */

static struct rv_port *port_of(const struct sim_node *n)
{
	return n->reactor[sim.c.net].port;
}

static struct op *op_new(struct sim_node *n, enum op_kind kind)
{
	struct op *op = sim_new(sizeof(*op));

	op->node = n;
	op->kind = kind;
	op->began_ns = sim.now_ns;
	op->began_step = sim.step;
	rv_list_init(&op->link);
	rv_list_push(&ops, &op->link);
	return op;
}

static void op_end(struct op *op)
{
	rv_list_del(&op->link);
	sim_free(op);
}

static struct rv_cell *op_cell(struct op *op, rv_cell_fn *done)
{
	struct rv_cell *c = rv_cell_alloc(port_of(op->node));

	if (!c) {
		op_end(op);
		return NULL;
	}
	c->ctx = op;
	c->done = done;
	return c;
}

static void cell_back(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_free(p, c);
}

/* What is owed: holds, leases, ends of sessions. */

static bool pay(const struct owed *o)
{
	struct rv_cell *c = rv_cell_alloc(port_of(o->node));

	if (!c)
		return false;
	c->done = cell_back;
	switch (o->kind) {
	case OP_DROP:
		*(struct rv_msg_drop *)(void *)c->body = (struct rv_msg_drop){o->engine, o->block};
		c->run = rv_engine_run_drop;
		break;
	case OP_SESSION_END:
		*(struct rv_msg_session_end *)(void *)c->body =
			(struct rv_msg_session_end){o->engine, o->session};
		c->run = rv_engine_run_session_end;
		break;
	case OP_REGION_CLOSE:
		*(struct rv_msg_region_close *)(void *)c->body =
			(struct rv_msg_region_close){.engine = o->engine,
						     .arena = o->region->arena,
						     .wait_ns = o->wait_ns};
		c->run = rv_engine_run_region_close;
		c->done = region_closed;
		c->ctx = o->region;
		break;
	case OP_LEASE:
		*(struct rv_msg_lease *)(void *)c->body = (struct rv_msg_lease){
			.engine = o->engine,
			.op = o->release ? RV_LEASE_RELEASE : RV_LEASE_DETACH,
			.local = o->h.local,
			.lease_id = o->lease_id,
			.worker = o->node->worker,
		};
		c->run = rv_engine_run_lease;
		break;
	default: {
		struct rv_peer_calls *pc = rv_messenger_calls(o->node->m);

		*(struct rv_peer_call *)(void *)c->body = (struct rv_peer_call){
			.op = o->release ? RV_PEER_RELEASE : RV_PEER_DETACH,
			.handle = o->h,
			.lease_id = o->lease_id,
			.deadline_ns = RV_NEVER,
			.sync = o->sync,
		};
		pc->ops->start(pc, port_of(o->node), c);
		return true;
	}
	}
	rv_engine_send(port_of(o->node), o->engine, c);
	return true;
}

static void owe(struct owed o)
{
	struct sim_node *was = sim_enter(o.node);
	struct owed *w;

	if (!pay(&o)) {
		w = sim_new(sizeof(*w));
		*w = o;
		rv_list_init(&w->link);
		rv_list_push(&owing, &w->link);
	}
	sim_leave(was);
}

/* Its thread is inside a call: no session of that node can do anything. */
static bool net_blocked(const struct sim_node *n)
{
	return n->blocked & 1u << sim.c.net;
}

static void pay_all(void)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &owing)
	{
		struct owed *o = RV_LIST_ENTRY(it, struct owed, link);
		struct sim_node *was = sim_enter(o->node);

		if (!net_blocked(o->node) && pay(o)) {
			rv_list_del(&o->link);
			sim_free(o);
		}
		sim_leave(was);
	}
}

static void drop_hold(struct sim_node *n, struct rv_engine *e, struct rv_block *b)
{
	if (sim.mutation == SIM_HOLD_FORGOTTEN && !sim.mutated && sim_chance(300)) {
		sim.mutated = true;
		return;
	}
	owe((struct owed){.node = n, .kind = OP_DROP, .engine = e, .block = b});
	if (sim.mutation == SIM_HOLD_DROPPED_TWICE && !sim.mutated && sim_chance(300)) {
		sim.mutated = true;
		owe((struct owed){.node = n, .kind = OP_DROP, .engine = e, .block = b});
	}
}

static void end_lease(struct sim_node *n, struct rv_handle h, uint64_t lease_id, bool release)
{
	struct owed o = {
		.node = n,
		.kind = OP_CALL,
		.h = h,
		.lease_id = lease_id,
		.release = release,
		.sync = sim_chance(400),
	};

	if (h.worker == n->worker) {
		if (sim.mutation == SIM_LEASE_FORGOTTEN && !forgot_lease) {
			forgot_lease = true;
			return;
		}
		o.kind = OP_LEASE;
		o.engine = rv_engine_of(&n->set, h.local);
	}
	owe(o);
	if (sim_chance(30))
		owe(o); /* twice: a lease ends once all the same */
}

/* Sessions. */

static struct sim_session *session_find(struct sim_node *n, uint64_t id)
{
	for (unsigned i = 0; i < SIM_SESSIONS; i++) {
		if (n->session[i].open && n->session[i].id == id)
			return &n->session[i];
	}
	return NULL;
}

static struct sim_session *session_any(struct sim_node *n)
{
	struct sim_session *s = &n->session[sim_below(SIM_SESSIONS)];

	if (s->open)
		return s;
	*s = (struct sim_session){
		.id = ++n->last_session,
		.uid = 1000 + (uid_t)sim_below(2),
		.home = (unsigned)(n->last_session % n->set.nr),
		.open = true,
	};
	return s;
}

/* A get into it goes on: nobody looks at the bytes, but they must land where they may. */
static void buffer_free(struct buffer *b, bool give_back)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &ops)
	{
		struct op *op = RV_LIST_ENTRY(it, struct op, link);

		if (op->kind == OP_GET && op->buffer == b)
			op->buffer = NULL;
	}
	if (give_back && b->block)
		drop_hold(b->node, b->engine, b->block);
	rv_list_del(&b->link);
	sim_free(b);
}

static void view_check(const struct view *v, const char *when)
{
	uint64_t at;

	sim.totals.checks++;
	if (!v->block)
		return;
	if (!sim_mem_readable(rv_block_ptr(v->block), v->len))
		sim_fail("node %u: a view is not mapped", v->node->at);
	at = sim_differs(rv_block_ptr(v->block), v->len, v->h.serial);
	if (at != RV_NEVER)
		sim_fail("node %u: %s: other bytes from offset %" PRIu64 " of %" PRIu64
			 " (handle %" PRIu64 " of node %u, serial %" PRIu64 ")",
			 v->node->at, when, at, v->len, v->h.h.local, v->h.at, v->h.serial);
}

static void view_end(struct view *v, bool release)
{
	bool lease_first = sim_chance(500);
	struct view old = *v;

	if (v->block)
		view_check(v, "a view that was held");
	rv_list_del(&v->link);
	sim_free(v);
	if (lease_first)
		end_lease(old.node, old.h.h, old.lease_id, release);
	if (old.block && !old.dropped)
		drop_hold(old.node, old.engine, old.block);
	if (!lease_first)
		end_lease(old.node, old.h.h, old.lease_id, release);
}

/* Regions. */

static void region_close(struct region *g, uint64_t wait_ns)
{
	if (g->closing)
		return;
	g->closing = true;
	owe((struct owed){.node = g->node,
			  .kind = OP_REGION_CLOSE,
			  .engine = g->engine,
			  .region = g,
			  .wait_ns = wait_ns});
}

/* The program's again: it does what it likes with it. */
static void region_reuse(const struct region *g)
{
	memset(sim_client_bytes(g->fd) + g->off, 0xee, g->len);
	sim_client_wrote(g->fd, g->off, g->len);
}

static void region_closed(struct rv_port *p, struct rv_cell *c)
{
	struct region *g = c->ctx;
	const struct rv_msg_region_close *m = (void *)c->body;

	sim_trace("node %u: a region is let go: %d%s", g->node->at, m->rc,
		  m->rc || m->drained ? "" : ", out of time");
	if (m->rc && !g->node->fabric.unconfirmed)
		sim_fail("node %u: a region is not released: %d", g->node->at, m->rc);
	if (!m->rc)
		region_reuse(g);
	rv_cell_free(p, c);
	rv_list_del(&g->link);
	sim_free(g);
}

static void region_opened(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct rv_msg_region_open m = *(struct rv_msg_region_open *)(void *)c->body;
	struct region *g = op->region;

	rv_cell_free(p, c);
	if (m.rc) {
		sim_free(g);
		op_end(op);
		return;
	}
	g->arena = m.arena;
	rv_list_push(&regions, &g->link);
	if (!session_find(op->node, g->session))
		region_close(g, 0);
	op_end(op);
}

static void do_region_open(struct sim_node *n)
{
	struct sim_session *s = session_any(n);
	uint64_t len = sim_small(1, sim.c.len_max);
	uint64_t off = sim_chance(500) ? sim_small(0, 9000) : 0;
	struct op *op = op_new(n, OP_REGION_OPEN);
	struct rv_cell *c = op_cell(op, region_opened);
	int fd;

	if (!c)
		return;
	fd = sim_client_file(n, off + len + sim_below(3) * 100);
	if (fd < 0) {
		rv_cell_free(port_of(n), c);
		op_end(op);
		return;
	}
	op->region = sim_new(sizeof(*op->region));
	*op->region = (struct region){
		.node = n,
		.session = s->id,
		.uid = s->uid,
		.engine = &n->engine[s->home],
		.fd = fd,
		.off = off,
		.len = len,
	};
	rv_list_init(&op->region->link);
	*(struct rv_msg_region_open *)(void *)c->body = (struct rv_msg_region_open){
		.engine = op->region->engine,
		.fd = fd,
		.off = off,
		.len = len,
		.uid = s->uid,
		.session = s->id,
	};
	c->run = rv_engine_run_region_open;
	rv_engine_send(port_of(n), op->region->engine, c);
}

static void remember(struct sim_node *n, struct rv_handle h, uint64_t serial, uint64_t len,
		     uid_t uid);

static void region_staged(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct rv_msg_stage m = *(struct rv_msg_stage *)(void *)c->body;

	rv_cell_free(p, c);
	if (!m.rc)
		remember(op->node, m.handle, op->h.serial, m.len, m.opts.uid);
	op_end(op);
}

static void region_stage(struct region *g)
{
	struct op *op = op_new(g->node, OP_REGION_STAGE);
	uint64_t left = g->len - g->next, len = sim_chance(500) ? left : sim_between(1, left);
	uint64_t at = g->off + g->next;
	struct rv_cell *c = op_cell(op, region_staged);

	if (!c)
		return;
	op->h.serial = ++sim.serials;
	sim_fill(sim_client_bytes(g->fd) + at, len, op->h.serial);
	sim_client_wrote(g->fd, at, len);
	*(struct rv_msg_stage *)(void *)c->body = (struct rv_msg_stage){
		.engine = g->engine,
		.region = g->arena,
		.off = g->next,
		.len = len,
		.opts =
			{
				.refs = 1 + (uint32_t)sim_small(0, 4),
				.ttl_ns =
					sim_chance(100) ? sim_small(RV_MS(1), RV_SEC(2)) : RV_NEVER,
				.uid = g->uid,
				.session = sim_chance(800) ? g->session : 0,
			},
	};
	g->next += len;
	c->run = rv_engine_run_stage;
	rv_engine_send(port_of(g->node), g->engine, c);
}

static void do_region(struct sim_node *n)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &regions)
	{
		struct region *g = RV_LIST_ENTRY(it, struct region, link);

		if (g->node != n || g->closing || sim_chance(300))
			continue;
		if (sim.mutation == SIM_REGION_REUSED && g->next && sim_chance(200)) {
			sim.mutated = true;
			region_reuse(g);
		}
		if (g->next < g->len && sim_chance(700))
			region_stage(g);
		else if (sim_chance(500))
			region_close(g, sim_chance(300)   ? 0
					: sim_chance(200) ? RV_NEVER
							  : sim_small(RV_US(10), RV_MS(800)));
		return;
	}
	do_region_open(n);
}

unsigned sim_actor_end_regions(struct sim_node *n)
{
	struct rv_list *it, *tmp;
	unsigned left = 0;

	RV_LIST_EACH_SAFE(it, tmp, &regions)
	{
		struct region *g = RV_LIST_ENTRY(it, struct region, link);

		if (g->node != n)
			continue;
		region_close(g, 0);
		left++;
	}
	return left;
}

static void session_end(struct sim_node *n, struct sim_session *s)
{
	struct rv_list *it, *tmp;

	sim_trace("node %u: session %" PRIu64 " ends", n->at, s->id);
	RV_LIST_EACH_SAFE(it, tmp, &views)
	{
		struct view *v = RV_LIST_ENTRY(it, struct view, link);

		if (v->node == n && v->session == s->id)
			view_end(v, false);
	}
	RV_LIST_EACH_SAFE(it, tmp, &buffers)
	{
		struct buffer *b = RV_LIST_ENTRY(it, struct buffer, link);

		if (b->node == n && b->session == s->id && !b->busy)
			buffer_free(b, true);
	}
	RV_LIST_EACH_SAFE(it, tmp, &regions)
	{
		struct region *g = RV_LIST_ENTRY(it, struct region, link);

		if (g->node == n && g->session == s->id)
			region_close(g, sim_chance(500) ? RV_MS(50) : sim_small(0, RV_SEC(1)));
	}
	for (unsigned i = 0; i < n->set.nr; i++)
		owe((struct owed){.node = n,
				  .kind = OP_SESSION_END,
				  .engine = &n->engine[i],
				  .session = s->id});
	s->open = false;
}

/* Staging. */

static void remember(struct sim_node *n, struct rv_handle h, uint64_t serial, uint64_t len,
		     uid_t uid)
{
	sim.handle_nr = (unsigned)rv_min_u64(sim.handle_nr + 1, SIM_HANDLES);
	sim.handle[sim.handle_next++ % SIM_HANDLES] =
		(struct sim_handle){h, serial, len, n->at, n->life, uid};
	sim.totals.staged++;
}

static void allocated(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct rv_msg_alloc m = *(struct rv_msg_alloc *)(void *)c->body;
	struct sim_session *s = session_find(op->node, op->session);
	struct buffer *b;

	rv_cell_free(p, c);
	if (!m.rc && !s)
		drop_hold(op->node, m.engine, m.req.block);
	if (!m.rc && s) {
		b = sim_new(sizeof(*b));
		*b = (struct buffer){
			.node = op->node,
			.session = s->id,
			.uid = s->uid,
			.engine = m.engine,
			.block = m.req.block,
			.len = m.req.len,
			.pinned = m.pinned,
		};
		rv_list_init(&b->link);
		rv_list_push(&buffers, &b->link);
		if (b->block->len != b->len || b->block->holds != 1)
			sim_fail("node %u: a block of %" PRIu64 " bytes with %u holds for %" PRIu64,
				 op->node->at, b->block->len, b->block->holds, b->len);
		sim_fill(rv_block_ptr(b->block), b->len, RV_NEVER);
	}
	op_end(op);
}

static void do_alloc(struct sim_node *n)
{
	struct sim_session *s = session_any(n);
	struct op *op = op_new(n, OP_ALLOC);
	bool plain = sim_chance(150), shared = sim_chance(300);
	struct rv_msg_alloc *m;
	struct rv_cell *c;

	op->session = s->id;
	c = op_cell(op, allocated);
	if (!c)
		return;
	m = (void *)c->body;
	*m = (struct rv_msg_alloc){
		.engine = &n->engine[s->home],
		.pinned = !plain,
		.req = {.len = sim_small(1, sim.c.len_max), .allow_plain = sim_chance(800)},
	};
	if (shared)
		m->req.cls = (struct rv_arena_class){RV_ARENA_SESSION, s->uid, s->id, plain};
	else
		m->req.cls =
			(struct rv_arena_class){.kind = plain ? RV_ARENA_PLAIN : RV_ARENA_STAGING,
						.uid = s->uid};
	c->run = rv_engine_run_alloc;
	rv_engine_send(port_of(n), m->engine, c);
}

static void staged(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct rv_msg_stage m = *(struct rv_msg_stage *)(void *)c->body;
	struct buffer *b = op->buffer;
	bool session_over = b && !session_find(op->node, b->session);

	rv_cell_free(p, c);
	if (!m.rc)
		remember(op->node, m.handle, op->h.serial, m.len, m.opts.uid);
	if (b) {
		b->busy = false;
		if (!m.rc)
			buffer_free(b, m.block == NULL);
		else if (session_over)
			buffer_free(b, true);
	}
	op_end(op);
}

static void stage(struct sim_node *n, struct sim_session *s, struct buffer *b, uint64_t len)
{
	struct op *op = op_new(n, OP_STAGE);
	struct rv_cell *c;
	struct rv_msg_stage *m;

	op->session = s->id;
	op->buffer = b;
	op->h.serial = ++sim.serials;
	c = op_cell(op, staged);
	if (!c)
		return;
	if (len)
		sim_fill(rv_block_ptr(b->block), len, op->h.serial);
	if (b)
		b->busy = true;
	m = (void *)c->body;
	*m = (struct rv_msg_stage){
		.engine = b ? b->engine : &n->engine[s->home],
		.block = len ? b->block : NULL,
		.len = len,
		.pinned = b && b->pinned,
		.opts =
			{
				.refs = 1 + (uint32_t)sim_small(0, 8),
				.ttl_ns =
					sim_chance(100) ? sim_small(RV_MS(1), RV_SEC(2)) : RV_NEVER,
				.uid = s->uid,
				.session = sim_chance(200) ? s->id : 0,
			},
	};
	c->run = rv_engine_run_stage;
	rv_engine_send(port_of(n), m->engine, c);
}

static struct buffer *buffer_any(struct sim_node *n)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &buffers)
	{
		struct buffer *b = RV_LIST_ENTRY(it, struct buffer, link);

		if (b->node == n && !b->busy && sim_chance(600))
			return b;
	}
	return NULL;
}

static void do_stage(struct sim_node *n)
{
	struct buffer *b = buffer_any(n);

	if (!b) {
		if (sim_chance(150))
			stage(n, session_any(n), NULL, 0);
		return;
	}
	if (sim_chance(100))
		buffer_free(b, true);
	else if (!b->filled && !b->spoiled)
		stage(n, session_find(n, b->session), b,
		      sim_chance(800)   ? b->len
		      : sim_chance(900) ? sim_between(1, b->len)
					: 0);
}

/* Fetching. */

static uint64_t first_wrong(const struct buffer *b, uint64_t off, uint64_t len, uint64_t serial)
{
	uint8_t *p = rv_block_ptr(b->block);

	if (!sim_mem_readable(p, b->len))
		sim_fail("node %u: a program's buffer is not mapped", b->node->at);
	return sim_differs(p + off, len, serial);
}

static struct buffer *place_any(const struct op *op)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &buffers)
	{
		struct buffer *b = RV_LIST_ENTRY(it, struct buffer, link);

		if (b->node == op->node && b->session == op->session && !b->busy && !b->filled &&
		    !b->spoiled && b->block->arena->cls.kind == RV_ARENA_SESSION &&
		    (b->len >= op->h.len || sim_chance(100)))
			return b;
	}
	return NULL;
}

/* Some gets go into a buffer of the program's own. */
static void choose_place(struct op *op, struct rv_msg_get *m)
{
	struct buffer *b;

	op->capped = sim_chance(500);
	op->cap = sim_chance(800) ? op->h.len + sim_small(0, 9000) : sim_small(0, op->h.len + 1);
	m->has_cap = op->capped;
	m->cap = op->cap;
	b = op->capped ? place_any(op) : NULL;
	if (!b)
		return;
	op->off = sim_chance(700) && b->len > op->h.len ? sim_below(b->len - op->h.len)
							: sim_small(0, b->len);
	op->cap = m->cap = rv_min_u64(op->cap, b->len - op->off);
	op->buffer = b;
	b->filled = true;
	sim_fill(rv_block_ptr(b->block), b->len, RV_NEVER);
	m->engine = b->engine;
	m->into = b->block;
	m->into_off = op->off;
}

/* What a get that has ended did to its place. */
static void check_place(struct op *op, const struct rv_msg_get *m)
{
	struct buffer *b = op->buffer;
	unsigned at = op->node->at;

	if (m->rc == -ERANGE && (!op->capped || m->len != op->h.len || m->len <= op->cap))
		sim_fail("node %u: %" PRIu64 " bytes do not fit into %" PRIu64, at, m->len,
			 op->cap);
	if (!m->rc && op->capped && m->len > op->cap)
		sim_fail("node %u: %" PRIu64 " bytes were put into %" PRIu64, at, m->len, op->cap);
	if (m->in_place && (m->rc || m->block || !m->len))
		sim_fail("node %u: a get in its place that is none (%d)", at, m->rc);
	if (!b)
		return;
	b->filled = false;
	b->spoiled = m->rc == -ETIMEDOUT;
	if (first_wrong(b, 0, op->off, RV_NEVER) != RV_NEVER)
		sim_fail("node %u: bytes of a get before its place", at);
	if (m->rc == -ERANGE && first_wrong(b, 0, b->len, RV_NEVER) != RV_NEVER)
		sim_fail("node %u: bytes of a get that did not fit", at);
	if (!m->in_place)
		return;
	sim.totals.gets_in_place++;
	sim.totals.checks++;
	if (first_wrong(b, op->off, m->len, op->h.serial) != RV_NEVER)
		sim_fail("node %u: a get into a buffer reports OK with other bytes (%s)", at,
			 rv_path_name(m->took));
}

static void got(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct sim_node *n = op->node;
	struct rv_msg_get m = *(struct rv_msg_get *)(void *)c->body;
	struct view *v;

	if (sim.mutation == SIM_ANSWER_LOST && !sim.mutated) {
		sim.mutated = true;
		return;
	}
	rv_cell_free(p, c);
	sim_trace("node %u: get of %" PRIu64 " of node %u: %d %s %s", n->at, op->h.h.local,
		  op->h.at, m.rc, m.rc ? "" : rv_path_name(m.took), m.text);
	/* Where nobody is held up and cells are not scarce, a get ends at its deadline. */
	if (!sim.c.stall && !sim.c.block && sim.c.cells >= 96 && op->deadline_ns != RV_NEVER &&
	    sim.now_ns > op->deadline_ns + SLACK_NS && sim.now_ns > op->began_ns + SLACK_NS)
		sim_fail("node %u: a get was answered (%d %s) %.3f s after its deadline", n->at,
			 m.rc, m.text, (double)(sim.now_ns - op->deadline_ns) / 1e9);
	check_place(op, &m);
	if (m.rc) {
		sim.totals.gets_failed++;
		sim.totals.late += m.rc == -ETIMEDOUT;
		if (m.block)
			sim_fail("node %u: a get that failed gives a block", n->at);
		op_end(op);
		return;
	}
	sim.totals.gets_ok[m.took]++;
	if (m.len != op->h.len)
		sim_fail("node %u: a get reports %" PRIu64 " bytes of %" PRIu64, n->at, m.len,
			 op->h.len);
	if (m.in_place) {
		end_lease(n, op->h.h, m.lease_id, sim_chance(500));
		op_end(op);
		return;
	}
	v = sim_new(sizeof(*v));
	*v = (struct view){.node = n,
			   .session = op->session,
			   .h = op->h,
			   .engine = m.block_engine,
			   .block = m.block,
			   .len = m.len,
			   .lease_id = m.lease_id};
	rv_list_init(&v->link);
	rv_list_push(&views, &v->link);
	view_check(v, m.took == RV_PATH_RDMA    ? "a get by RDMA reports OK"
		      : m.took == RV_PATH_LOCAL ? "a get of this node reports OK"
						: "a get by chunks reports OK");
	if (sim.mutation == SIM_HOLD_DROPPED_EARLY && v->block && sim_chance(500)) {
		sim.mutated = true;
		drop_hold(n, v->engine, v->block);
		v->dropped = true;
	}
	if (!session_find(n, op->session))
		view_end(v, false);
	op_end(op);
}

static void start_get(struct op *op)
{
	struct sim_node *n = op->node;
	struct sim_session *s = session_find(n, op->session);
	struct rv_cell *c;
	struct rv_msg_get *m;

	op->kind = OP_GET;
	if (!s) {
		op_end(op);
		return;
	}
	c = op_cell(op, got);
	if (!c)
		return;
	m = (void *)c->body;
	*m = (struct rv_msg_get){
		.engine = &n->engine[s->home],
		.handle = op->h.h,
		.path = op->path,
		.deadline_ns = op->deadline_ns,
		.uid = s->uid,
	};
	choose_place(op, m);
	c->run = rv_engine_run_get;
	rv_engine_send(port_of(n), m->engine, c);
}

static void connected(void *ctx, const struct rv_connect_result *r)
{
	struct op *op = ctx;

	if (r->rc)
		op_end(op);
	else
		start_get(op);
}

static const struct sim_handle *handle_any(void)
{
	unsigned recent = sim.handle_nr > 10 && sim_chance(800) ? 10 : sim.handle_nr;

	return recent ? &sim.handle[(sim.handle_next - 1 - sim_below(recent) + SIM_HANDLES) %
				    SIM_HANDLES]
		      : NULL;
}

static void do_get(struct sim_node *n)
{
	const struct sim_handle *h = handle_any();
	struct op *op;
	char host[16];

	/* Mostly what lives, mostly elsewhere. */
	for (unsigned i = 0;
	     h && i < 3 && (!sim_node_of_life(h->life) || (h->life == n->life && sim_chance(700)));
	     i++)
		h = handle_any();
	if (!h)
		return;
	op = op_new(n, OP_CONNECT);
	op->h = *h;
	op->session = session_any(n)->id;
	op->path = sim_chance(600) ? RV_GET_ANY : sim_chance(500) ? RV_GET_RDMA : RV_GET_CHUNKED;
	op->deadline_ns =
		sim_chance(500) ? RV_NEVER : sim.now_ns + sim_small(RV_US(100), RV_MS(600));
	if (h->h.worker == n->worker || !sim_chance(300)) {
		start_get(op);
		return;
	}
	sim_node_host(h->at, host);
	rv_messenger_connect(n->m, host, sim_node_port(h->at), h->h.worker, NULL,
			     rv_min_u64(op->deadline_ns, sim.now_ns + sim.c.call_timeout_ns),
			     connected, op);
}

static void do_view_end(struct sim_node *n)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &views)
	{
		struct view *v = RV_LIST_ENTRY(it, struct view, link);

		if (v->node == n && sim_chance(600)) {
			view_end(v, sim_chance(500));
			return;
		}
	}
}

/* Other operations on handles. */

static void slot_done(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	const struct rv_msg_slot *m = (void *)c->body;

	if (!m->rc && m->op == RV_SLOT_METADATA && m->total_len != op->h.len)
		sim_fail("node %u: metadata tells %" PRIu64 " bytes of %" PRIu64, op->node->at,
			 m->total_len, op->h.len);
	rv_cell_free(p, c);
	op_end(op);
}

static void slot_here(struct op *op, enum rv_slot_op what, uid_t uid)
{
	struct sim_node *n = op->node;
	struct rv_engine *e = rv_engine_of(&n->set, op->h.h.local);
	struct rv_cell *c = op_cell(op, slot_done);

	if (!c)
		return;
	*(struct rv_msg_slot *)(void *)c->body = (struct rv_msg_slot){.engine = e,
								      .op = what,
								      .local = op->h.h.local,
								      .check_uid = true,
								      .uid = uid};
	c->run = rv_engine_run_slot;
	rv_engine_send(port_of(n), e, c);
}

static void called(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct rv_peer_call pc = *(struct rv_peer_call *)(void *)c->body;

	rv_cell_free(p, c);
	if (!pc.rc && pc.op == RV_PEER_METADATA && pc.meta.total_len != op->h.len)
		sim_fail("node %u: a peer's metadata tells %" PRIu64 " bytes of %" PRIu64,
			 op->node->at, pc.meta.total_len, op->h.len);
	if (!pc.rc && pc.op == RV_PEER_ACQUIRE)
		end_lease(op->node, op->h.h,
			  pc.answer == RV_ANSWER_RDMA ? pc.rdma.lease_id : pc.ready.lease_id,
			  op->then == RV_LEASE_RELEASE);
	op_end(op);
}

static void call_there(struct op *op, enum rv_peer_op what)
{
	struct rv_peer_calls *pc = rv_messenger_calls(op->node->m);
	struct rv_cell *c = op_cell(op, called);

	if (!c)
		return;
	*(struct rv_peer_call *)(void *)c->body =
		(struct rv_peer_call){.op = what,
				      .handle = op->h.h,
				      .deadline_ns = op->deadline_ns,
				      .sync = true};
	pc->ops->start(pc, port_of(op->node), c);
}

static void acquired_here(struct rv_port *p, struct rv_cell *c)
{
	struct op *op = c->ctx;
	struct rv_msg_acquire m = *(struct rv_msg_acquire *)(void *)c->body;

	rv_cell_free(p, c);
	if (!m.rc) {
		if (m.block)
			drop_hold(op->node, m.engine, m.block);
		end_lease(op->node, op->h.h, m.lease_id, true);
	}
	op_end(op);
}

static void acquire_here(struct op *op)
{
	struct sim_node *n = op->node;
	struct rv_engine *e = rv_engine_of(&n->set, op->h.h.local);
	struct rv_cell *c = op_cell(op, acquired_here);

	if (!c)
		return;
	*(struct rv_msg_acquire *)(void *)c->body = (struct rv_msg_acquire){.engine = e,
									    .local = op->h.h.local,
									    .worker = n->worker,
									    .for_us = true,
									    .uid = op->h.uid};
	c->run = rv_engine_run_acquire;
	rv_engine_send(port_of(n), e, c);
}

static void do_handle(struct sim_node *n)
{
	const struct sim_handle *h = handle_any();
	unsigned what = (unsigned)sim_below(10);
	struct op *op;

	if (!h)
		return;
	op = op_new(n, OP_SLOT);
	op->h = *h;
	op->deadline_ns =
		sim_chance(500) ? RV_NEVER : sim.now_ns + sim_small(RV_US(100), RV_MS(300));
	op->then = sim_chance(500) ? RV_LEASE_RELEASE : RV_LEASE_DETACH;
	if (h->h.worker == n->worker) {
		if (what < 2)
			slot_here(op, RV_SLOT_DROP, h->uid);
		else if (what < 7)
			slot_here(op, sim_chance(700) ? RV_SLOT_METADATA : RV_SLOT_REF, h->uid);
		else
			acquire_here(op);
	} else if (what < 4) {
		call_there(op, RV_PEER_METADATA);
	} else if (what < 7) {
		call_there(op, RV_PEER_REF);
	} else {
		call_there(op, RV_PEER_ACQUIRE);
	}
}

/* A lease that is not ours, or none at all: nothing may change. */
static void do_forge(struct sim_node *n)
{
	const struct sim_handle *h = handle_any();
	struct rv_list *it;

	if (!h || h->h.worker == n->worker)
		return;
	RV_LIST_EACH(it, &views)
	{
		struct view *v = RV_LIST_ENTRY(it, struct view, link);

		if (v->node == n || v->h.h.worker == n->worker || !sim_chance(500))
			continue;
		owe((struct owed){.node = n,
				  .kind = OP_CALL,
				  .h = v->h.h,
				  .lease_id = v->lease_id,
				  .release = true,
				  .sync = sim_chance(500)});
		return;
	}
	owe((struct owed){.node = n,
			  .kind = OP_CALL,
			  .h = h->h,
			  .lease_id = sim_random(),
			  .release = true,
			  .sync = true});
}

/* One node learns of another, perhaps again. */
static void do_introduce(struct sim_node *n)
{
	struct sim_node *o = sim.node[sim_below(SIM_NODES)];
	struct sim_node *was;
	uint64_t worker;
	const char *why;
	char *info;

	if (!o || o == n)
		return;
	was = sim_enter(o);
	info = rv_messenger_peer_info_json(o->m);
	sim_leave(was);
	if (!info)
		return;
	rv_messenger_add_peer_info(n->m, info, strlen(info), NULL, &worker, &why);
	free(info);
}

void sim_actor_node_started(struct sim_node *n)
{
	for (unsigned i = 0; i < 2 * SIM_NODES; i++) {
		struct sim_node *was = sim_enter(n);

		if (sim_chance(700))
			do_introduce(n);
		sim_leave(was);
	}
}

static void act(struct sim_node *n)
{
	unsigned what = (unsigned)sim_below(100);

	if (sim_below(100) < sim.c.region_pct)
		do_region(n);
	else if (what < 16)
		do_alloc(n);
	else if (what < 36)
		do_stage(n);
	else if (what < 68)
		do_get(n);
	else if (what < 80)
		do_view_end(n);
	else if (what < 90)
		do_handle(n);
	else if (what < 92)
		do_forge(n);
	else if (what < 95)
		do_introduce(n);
	else if (what < 97)
		session_end(n, session_any(n));
	else if (sim_chance(sim.c.kill_switch))
		atomic_store(&n->set.rdma_off, !atomic_load(&n->set.rdma_off));
}

void sim_actor_round(void)
{
	pay_all();
	for (unsigned i = 0; i < 2 && !sim.settling && sim_below(100) < sim.c.op_pct; i++) {
		struct sim_node *n = sim.node[sim_below(SIM_NODES)], *was;

		if (!n || n->stop >= SIM_STOP_LOCAL || net_blocked(n))
			continue;
		was = sim_enter(n);
		act(n);
		sim_leave(was);
	}
}

void sim_actor_reset(void)
{
	rv_list_init(&ops);
	rv_list_init(&buffers);
	rv_list_init(&views);
	rv_list_init(&owing);
	rv_list_init(&regions);
	forgot_lease = false;
}

#define FORGET(list, type, n)                                      \
	do {                                                       \
		struct rv_list *it_, *tmp_;                        \
		RV_LIST_EACH_SAFE(it_, tmp_, &(list))              \
		{                                                  \
			type *e_ = RV_LIST_ENTRY(it_, type, link); \
			if (e_->node == (n)) {                     \
				rv_list_del(it_);                  \
				sim_free(e_);                      \
			}                                          \
		}                                                  \
	} while (0)

void sim_actor_node_died(struct sim_node *n)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &ops)
	{
		struct op *op = RV_LIST_ENTRY(it, struct op, link);

		if (op->node == n && op->kind == OP_REGION_OPEN)
			sim_free(op->region);
	}
	FORGET(regions, struct region, n);
	FORGET(ops, struct op, n);
	FORGET(buffers, struct buffer, n);
	FORGET(views, struct view, n);
	FORGET(owing, struct owed, n);
}

unsigned sim_actor_pending(const struct sim_node *n)
{
	struct rv_list *it;
	unsigned nr = 0;

	RV_LIST_EACH(it, &ops)
	nr += RV_LIST_ENTRY(it, struct op, link)->node == n;
	RV_LIST_EACH(it, &owing)
	nr += RV_LIST_ENTRY(it, struct owed, link)->node == n;
	RV_LIST_EACH(it, &buffers)
	nr += RV_LIST_ENTRY(it, struct buffer, link)->node == n;
	RV_LIST_EACH(it, &views)
	nr += RV_LIST_ENTRY(it, struct view, link)->node == n;
	RV_LIST_EACH(it, &regions)
	nr += RV_LIST_ENTRY(it, struct region, link)->node == n;
	return nr;
}

unsigned sim_actor_quit(struct sim_node *n)
{
	for (unsigned i = 0; i < SIM_SESSIONS; i++) {
		if (n->session[i].open)
			session_end(n, &n->session[i]);
	}
	return sim_actor_pending(n);
}

void sim_actor_check_over(void)
{
	static const char *const names[] = {"alloc",       "stage",   "get",         "lease",
					    "call",        "slot",    "acquire",     "drop",
					    "session end", "connect", "region open", "region stage",
					    "region close"};

	if (!rv_list_empty(&ops)) {
		const struct op *op = RV_LIST_ENTRY(ops.next, struct op, link);

		sim_fail("node %u: a call never ended: %s, begun at step %u (handle %" PRIu64
			 " of node %u)",
			 op->node->at, names[op->kind], op->began_step, op->h.h.local, op->h.at);
	}
	if (!rv_list_empty(&owing))
		sim_fail("node %u: no cell to give something back with",
			 RV_LIST_ENTRY(owing.next, struct owed, link)->node->at);
}

static bool overlaps(const struct rv_block *b, const uint8_t *base, uint64_t len)
{
	return b && rv_block_ptr(b) < base + len && base < rv_block_ptr(b) + b->len;
}

const char *sim_actor_pin(const struct sim_node *n, const uint8_t *base, uint64_t len)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &views)
	{
		const struct view *v = RV_LIST_ENTRY(it, struct view, link);

		if (v->node == n && overlaps(v->block, base, len))
			return "a program's view shows it";
	}
	RV_LIST_EACH(it, &buffers)
	{
		const struct buffer *b = RV_LIST_ENTRY(it, struct buffer, link);

		if (b->node == n && !b->busy && overlaps(b->block, base, len))
			return "a program's buffer is there";
	}
	return NULL;
}
