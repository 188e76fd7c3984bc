#include "tests/fake/fake_engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "dataplane/base/units.h"

static struct fake_engine *engine_of(struct rv_engine *e)
{
	return RV_CONTAINER(e, struct fake_engine, engine);
}

static void transfer_end(struct rv_port *port, struct rv_cell *cell)
{
	const struct rv_msg_transfer_end *m = (void *)cell->body;

	engine_of(m->engine)->transfers_ended++;
	rv_cell_reply(port, cell);
}

void fake_engine_prepare(struct fake_engine *w, unsigned cells)
{
	struct rv_reactor_conf rc = {.clock = fake_clock};

	fake_now_ns = RV_SEC(1000);
	w->mesh = rv_mesh_create(1, cells ? cells : 64);
	assert_non_null(w->mesh);
	w->port = rv_mesh_port(w->mesh, 0);
	rc.port = w->port;
	rv_reactor_init(&w->reactor, &rc);
}

void fake_engine_init(struct fake_engine *w, const struct fake_engine_conf *conf)
{
	struct rv_engine_conf ec = {
		.reactor = &w->reactor,
		.set = &w->set,
		.worker = FAKE_WORKER,
		.lease_timeout_ns = RV_MS(400),
		.chunk_lease_ns = conf->chunk_lease_ns ? conf->chunk_lease_ns : RV_NEVER,
		.quarantine_ns = RV_MS(100),
		.rdma_min_bytes = RV_KIB(64),
		.chunk_size = (uint32_t)RV_KIB(512),
		.bytes_max = conf->bytes_max,
		.max_slots = conf->max_slots ? conf->max_slots : 64,
		.max_leases = conf->max_leases ? conf->max_leases : 64,
		.max_gets = conf->max_gets ? conf->max_gets : 16,
		.call_timeout_ns = RV_SEC(5),
		.export_ask = conf->export_ask,
		.late_max = conf->late_max ? conf->late_max : RV_NEVER,
		.pool =
			{
				.initial_bytes = RV_MIB(1),
				.max_bytes = RV_MIB(8),
				.dedicated_min =
					conf->dedicated_min ? conf->dedicated_min : RV_MIB(1),
				.reclaim_after_ns = RV_NEVER,
				.registers = !conf->no_fabric,
				.grow = fake_grow_ask,
				.shrink = fake_grow_shrink,
				.user = &w->grow,
			},
		.run_transfer_end = conf->run_transfer_end ? conf->run_transfer_end : transfer_end,
	};

	if (!w->mesh)
		fake_engine_prepare(w, conf->cells);
	fake_fabric_init(&w->fabric, 1, RV_PEER_OFFER_UCX);
	fake_calls_init(&w->calls, w->port);
	fake_grow_init(&w->grow, &w->engine.pool, conf->no_fabric ? NULL : &w->fabric);
	ec.calls = conf->calls ? conf->calls : &w->calls.calls;
	if (!conf->no_fabric) {
		ec.fabric[0] = &w->fabric.fabric;
		ec.fabric_nr = 1;
	}
	w->set.nr = 1;
	w->set.engine[0] = &w->engine;
	w->serve_growths = true;
	assert_int_equal(rv_engine_init(&w->engine, &ec), 0);
}

unsigned fake_free_cells(struct rv_port *p)
{
	struct rv_list taken, *it;
	struct rv_cell *c;
	unsigned n = 0;

	rv_list_init(&taken);
	for (; (c = rv_cell_alloc(p)); n++)
		rv_list_push(&taken, &c->link);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(p, RV_LIST_ENTRY(it, struct rv_cell, link));
	return n;
}

void fake_engine_fini(struct fake_engine *w)
{
	struct rv_engine *e = &w->engine;

	fake_engine_run(w);
	assert_int_equal(rv_counter_get(&e->stats.gets), 0);
	assert_int_equal(e->store.slots.live_nr, 0);
	assert_int_equal(e->store.leases.live_nr, 0);
	assert_int_equal(rv_counter_get(&e->pool.resting_blocks), 0);
	assert_int_equal(rv_counter_get(&e->pool.blocks), 0);
	assert_int_equal(rv_counter_get(&e->pool.used_bytes), 0);
	assert_int_equal(w->calls.open_nr, 0);
	assert_int_equal(w->fabric.outstanding_nr, 0);
	rv_pool_stop(&e->pool);
	assert_int_equal(rv_pool_shrink_all(&e->pool), 0);
	assert_int_equal(w->grow.live, 0);
	assert_int_equal(w->fabric.live_maps, 0);
	assert_int_equal(fake_free_cells(w->port), rv_port_cells(w->port));
	rv_engine_fini(e);
	rv_mesh_destroy(w->mesh);
}

void fake_engine_run(struct fake_engine *w)
{
	unsigned work, passes = 0;

	do {
		work = rv_reactor_step(&w->reactor);
		if (w->serve_growths && w->grow.pending_nr) {
			fake_grow_serve(&w->grow);
			work++;
		}
		assert_true(++passes < 10000);
	} while (work);
}

void fake_engine_advance(struct fake_engine *w, uint64_t ns)
{
	fake_now_ns += ns;
	fake_engine_run(w);
}

static void back(struct rv_port *port, struct rv_cell *cell)
{
	struct fake_ask *a = cell->ctx;

	(void)port;
	assert_false(a->back);
	a->back = true;
}

static struct fake_ask *ask_new(struct fake_engine *w, const void *body, size_t len)
{
	struct fake_ask *a = calloc(1, sizeof(*a));

	assert_non_null(a);
	a->cell = rv_cell_alloc(w->port);
	assert_non_null(a->cell);
	assert_true(len <= RV_CELL_BODY);
	memcpy(a->cell->body, body, len);
	a->cell->done = back;
	a->cell->ctx = a;
	return a;
}

struct fake_ask *fake_ask_start(struct fake_engine *w, rv_cell_fn *run, const void *body,
				size_t len)
{
	struct fake_ask *a = ask_new(w, body, len);

	a->cell->run = run;
	rv_cell_send(w->port, 0, a->cell);
	return a;
}

struct fake_ask *fake_call_start(struct fake_engine *w, struct rv_peer_calls *pc,
				 const struct rv_peer_call *call)
{
	struct fake_ask *a = ask_new(w, call, sizeof(*call));

	pc->ops->start(pc, w->port, a->cell);
	return a;
}

void *fake_ask_body(const struct fake_ask *a)
{
	return a->cell->body;
}

void fake_ask_end(struct fake_engine *w, struct fake_ask *a)
{
	assert_true(a->back);
	rv_cell_free(w->port, a->cell);
	free(a);
}

void fake_ask(struct fake_engine *w, rv_cell_fn *run, void *body, size_t len)
{
	struct fake_ask *a = fake_ask_start(w, run, body, len);

	fake_engine_run(w);
	assert_true(a->back);
	memcpy(body, a->cell->body, len);
	fake_ask_end(w, a);
}

uint64_t fake_stage(struct fake_engine *w, uint64_t len, int byte, bool pinned, uid_t uid)
{
	struct rv_msg_alloc alloc = {
		.engine = &w->engine,
		.req =
			{
				.cls = {.kind = pinned ? RV_ARENA_STAGING : RV_ARENA_PLAIN,
					.uid = uid},
				.len = len,
				.allow_plain = true,
			},
		.pinned = pinned,
	};
	struct rv_msg_stage stage = {
		.engine = &w->engine,
		.len = len,
		.opts = {.refs = 1, .ttl_ns = RV_NEVER, .uid = uid},
		.pinned = pinned,
	};

	if (len) {
		fake_ask(w, rv_engine_run_alloc, &alloc, sizeof(alloc));
		assert_int_equal(alloc.rc, 0);
		memset(rv_block_ptr(alloc.req.block), byte, len);
		stage.block = alloc.req.block;
	}
	fake_ask(w, rv_engine_run_stage, &stage, sizeof(stage));
	assert_int_equal(stage.rc, 0);
	assert_int_equal(stage.handle.worker, FAKE_WORKER);
	return stage.handle.local;
}

struct rv_slot *fake_slot(struct fake_engine *w, uint64_t local)
{
	return rv_slot_find(&w->engine.store, local);
}

struct rv_msg_acquire fake_acquire(struct fake_engine *w, uint64_t local, uint64_t worker,
				   bool has_offer, unsigned offer)
{
	struct rv_msg_acquire m = {
		.engine = &w->engine,
		.local = local,
		.worker = worker,
		.has_offer = has_offer,
		.offer = offer,
	};

	fake_ask(w, rv_engine_run_acquire, &m, sizeof(m));
	return m;
}

int fake_lease_op(struct fake_engine *w, enum rv_lease_op op, uint64_t local, uint64_t lease,
		  uint64_t worker)
{
	struct rv_msg_lease m = {
		.engine = &w->engine,
		.op = op,
		.local = local,
		.lease_id = lease,
		.worker = worker,
		.arrival_ns = fake_now_ns,
	};

	fake_ask(w, rv_engine_run_lease, &m, sizeof(m));
	return m.rc;
}

void fake_drop_slot(struct fake_engine *w, uint64_t local)
{
	struct rv_msg_slot m = {.engine = &w->engine, .op = RV_SLOT_DROP, .local = local};

	fake_ask(w, rv_engine_run_slot, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
}

void fake_drop_block(struct fake_engine *w, struct rv_block *b)
{
	struct rv_msg_drop m = {.engine = &w->engine, .block = b};

	fake_ask(w, rv_engine_run_drop, &m, sizeof(m));
}
