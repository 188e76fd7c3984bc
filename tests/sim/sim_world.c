/*
 * Nodes: started, stepped, stalled, killed, stopped in good order, started again as somebody else.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/messenger/address.h"
#include "dataplane/base/check.h"
#include "tests/sim/sim.h"

#define BEGIN_NS   RV_SEC(1000)
#define STOP_STEP  RV_SEC(5)
#define STOP_FLUSH RV_SEC(1)
#define STOP_POLL  RV_MS(2)
#define SETTLE_NS  RV_SEC(400)
#define SETTLE_MAX 1000000u

/* Draws. */

static unsigned rate(unsigned of_1000_on, unsigned max)
{
	return sim_chance(of_1000_on) ? (unsigned)sim_small(1, max) : 0;
}

static void draw_layout(struct sim_conf *c, unsigned topology)
{
	unsigned layout = (unsigned)sim_below(3);

	c->native = topology % 2 == 0;
	c->engines = 1;
	c->reactors = 1;
	c->net = 0;
	if (topology < 2)
		return;
	c->engines = layout == 0 ? 1 : 2;
	c->reactors = layout == 2 ? 3 : 2;
	c->net = layout == 1 ? 0 : c->reactors - 1;
}

static void draw_conf(struct sim_conf *c, unsigned topology)
{
	*c = (struct sim_conf){
		.nodes = sim_chance(600) ? 2 : 3,
		.cells = sim_chance(700) ? 96 : (unsigned)sim_between(20, 64),
		.chunk_size = (uint32_t)sim_small(64, RV_KIB(16)),
		.pull_window = (uint32_t)sim_small(64, RV_KIB(32)),
		.rdma_min = sim_chance(500) ? 0 : sim_small(1, RV_KIB(4)),
		.lease_timeout_ns = sim_small(RV_MS(10), RV_MS(300)),
		.quarantine_ns = sim_chance(300) ? 0 : sim_small(RV_MS(1), RV_MS(300)),
		.call_timeout_ns = sim_chance(850) ? sim_between(RV_MS(50), RV_SEC(2)) : RV_SEC(60),
		.chunk_lease_ns = sim_chance(600) ? RV_NEVER : sim_small(RV_MS(20), RV_SEC(1)),
		.verify = sim_chance(150),
		.initial_bytes = rv_align_up(sim_small(RV_KIB(16), RV_KIB(128)), RV_GRANULE),
		.dedicated_min = sim_small(RV_KIB(8), RV_KIB(96)),
		.max_bytes = RV_KIB(256),
		.reclaim_ns = sim_chance(500) ? RV_NEVER : sim_small(RV_MS(1), RV_SEC(1)),
		.retain_bytes = sim_chance(500) ? 0 : sim_between(0, RV_KIB(256)),
		.registered_budget =
			sim_chance(500) ? RV_MIB(4) : sim_between(RV_KIB(32), RV_MIB(1)),
		.plain_budget = sim_chance(500) ? RV_MIB(4) : sim_between(RV_KIB(32), RV_MIB(1)),
		.len_max = sim_chance(700) ? RV_KIB(16) : RV_KIB(100),
		.max_gets = (uint32_t)sim_between(4, 24),
		.max_slots = (uint32_t)sim_between(8, 64),
		.max_leases = (uint32_t)sim_between(8, 64),
		.step_pct = (unsigned)sim_between(40, 100),
		.slow_pct = (unsigned)sim_between(5, 80),
		.op_pct = (unsigned)sim_between(20, 70),
		.region_pct = sim_chance(500) ? (unsigned)sim_between(1, 30) : 0,
		.queue_scale = sim_chance(700) ? 1 : (unsigned)sim_between(64, 4096),
		.cut = rate(500, 30),
		.dial_fail = rate(300, 300),
		.partition = rate(400, 700),
		.kill = rate(400, 12),
		.stop = rate(400, 12),
		.stall = rate(500, 30),
		.block = rate(400, 1000),
		.get_fail = rate(400, 200),
		.get_hang = rate(300, 100),
		.get_late = rate(500, 300),
		.wire_fail = rate(150, 10),
		.map_fail = rate(200, 200),
		.unmap_fail = rate(60, 100),
		.memory_fail = rate(200, 200),
		.heap_fail = rate(150, 20),
		.pread_fail = rate(200, 300),
		.kill_switch = rate(400, 1000),
		.silent = rate(400, 500),
	};
	draw_layout(c, topology);
	c->exports = c->native && sim_chance(500);
}

void sim_node_host(unsigned at, char out[16])
{
	snprintf(out, 16, "10.0.0.%u", at + 1);
}

uint16_t sim_node_port(unsigned at)
{
	return (uint16_t)(7000 + at);
}

uint64_t sim_clock(void)
{
	if (sim.mutation == SIM_CLOCK_BEHIND && sim.cur && sim.cur->frozen_ns)
		return sim.cur->frozen_ns;
	return sim.now_ns;
}

struct sim_node *sim_node_of_life(uint64_t life)
{
	for (unsigned i = 0; i < SIM_NODES; i++) {
		if (sim.node[i] && sim.node[i]->life == life)
			return sim.node[i];
	}
	return NULL;
}

struct rv_reactor *sim_net_reactor(struct sim_node *n)
{
	return &n->reactor[sim.c.net];
}

/* Building one, as tools/node does. */

static void draw_identity(struct sim_node *n)
{
	for (size_t i = 0; i < sizeof(n->instance); i++)
		n->instance[i] = (uint8_t)sim_random();
	n->instance[6] = (uint8_t)((n->instance[6] & 0x0f) | 0x40);
	n->instance[8] = (uint8_t)((n->instance[8] & 0x3f) | 0x80);
	n->worker = rv_worker_id(n->instance);
}

static void make_messenger(struct sim_node *n)
{
	struct rv_messenger_conf mc = {
		.reactor = sim_net_reactor(n),
		.carrier = &n->carrier.carrier,
		.engines = &n->set,
		.worker = n->worker,
		.blob_version = 2,
		.pull_window_bytes = sim.c.pull_window,
		.call_timeout_ns = sim.c.call_timeout_ns,
		.former = sim.former[n->at],
		.former_nr = sim.former_nr[n->at],
		.node_name = "sim",
		.staged_fetch_timeout_ns = sim.c.call_timeout_ns,
	};

	memcpy(mc.instance, n->instance, sizeof(mc.instance));
	n->m = rv_messenger_create(&mc);
	RV_CHECK(n->m);
	rv_port_set_user(sim_net_reactor(n)->port, n->m);
}

static void make_engine(struct sim_node *n, unsigned i)
{
	struct rv_engine_conf ec = {
		.reactor = &n->reactor[i],
		.shard = i,
		.set = &n->set,
		.worker = n->worker,
		.net_port = sim.c.net,
		.fabric = {&n->fabric.fabric},
		.fabric_nr = 1,
		.calls = rv_messenger_calls(n->m),
		.lease_timeout_ns = sim.c.lease_timeout_ns,
		.chunk_lease_ns = sim.c.chunk_lease_ns,
		.verify = sim.c.verify,
		.quarantine_ns = sim.mutation == SIM_NO_QUARANTINE ? 0 : sim.c.quarantine_ns,
		.rdma_min_bytes = sim.c.rdma_min,
		.chunk_size = sim.c.chunk_size,
		.max_slots = sim.c.max_slots,
		.max_leases = sim.c.max_leases,
		.max_gets = sim.c.max_gets,
		.late_max = sim.c.registered_budget / 4,
		.export_ask = sim.c.exports ? rv_prompt_ask : NULL,
		.call_timeout_ns = sim.c.call_timeout_ns,
		.run_transfer_end = rv_messenger_run_transfer_end,
		.pool =
			{
				.initial_bytes = sim.c.initial_bytes,
				.max_bytes = sim.c.max_bytes,
				.dedicated_min = sim.c.dedicated_min,
				.retain_bytes = sim.c.retain_bytes,
				.reclaim_after_ns = sim.c.reclaim_ns,
				.registers = true,
				.grow = rv_registrar_grow,
				.shrink = rv_registrar_shrink,
				.ask = rv_registrar_ask,
				.user = &n->client[i],
			},
	};

	n->client[i] = (struct rv_registrar_client){.registrar = &n->registrar,
						    .engine = &n->engine[i],
						    .prompt = &n->prompt};
	n->set.engine[i] = &n->engine[i];
	RV_CHECK(rv_engine_init(&n->engine[i], &ec) == 0);
}

static void publish(struct sim_node *n)
{
	struct rv_address *a = sim_new(sizeof(*a));
	uint8_t buf[1024], fabric[64];
	struct rv_writer w = rv_writer(buf, sizeof(buf));

	a->tcp_nr = 1;
	a->tcp[0] = (struct rv_tcp_endpoint){.port = sim_node_port(n->at),
					     .prefix_len = 24,
					     .numa = -1};
	sim_node_host(n->at, a->tcp[0].ip);
	a->has_rvd = true;
	a->rvd_version = 1;
	a->has_ucx = true;
	a->ucx = (struct rv_ucx_blob){
		.version = 2,
		.eager_max = 8192,
		.incarnation = n->life,
		.worker_addr = fabric,
		.worker_addr_len =
			n->fabric.fabric.ops->address(&n->fabric.fabric, 0, fabric, sizeof(fabric)),
	};
	RV_CHECK(rv_address_encode(&w, a) == 0);
	RV_CHECK(rv_messenger_set_address(n->m, buf, w.len) == 0);
	sim_free(a);
}

static void make_reactors(struct sim_node *n)
{
	n->mesh = rv_mesh_create(sim.c.reactors + 3, sim.c.cells);
	RV_CHECK(n->mesh);
	for (unsigned i = 0; i < sim.c.reactors; i++) {
		struct rv_reactor_conf rc = {.port = rv_mesh_port(n->mesh, i), .clock = sim_clock};

		rv_reactor_init(&n->reactor[i], &rc);
	}
	n->slow = rv_mesh_port(n->mesh, sim.c.reactors);
	n->main = rv_mesh_port(n->mesh, sim.c.reactors + 1);
	n->quick = rv_mesh_port(n->mesh, sim.c.reactors + 2);
}

static void node_start(unsigned at)
{
	struct sim_node *n = sim_new(sizeof(*n)), *was;

	n->at = at;
	n->life = ++sim.lives;
	rv_list_init(&n->heap);
	rv_list_init(&n->pages);
	draw_identity(n);
	sim.node[at] = n;
	was = sim_enter(n);
	make_reactors(n);
	sim_fabric_init(&n->fabric, n);
	sim_carrier_init(&n->carrier, n);
	rv_registrar_init(&n->registrar, &(struct rv_registrar_conf){
						 .port = n->slow,
						 .fabric = {&n->fabric.fabric},
						 .fabric_nr = 1,
						 .registered_budget = sim.c.registered_budget,
						 .plain_budget = sim.c.plain_budget,
						 .retain_bytes = sim.c.retain_bytes,
						 .hugepages = RV_HUGEPAGES_NO,
					 });
	rv_prompt_init(&n->prompt, n->quick, &n->registrar);
	make_messenger(n);
	n->set.nr = sim.c.engines;
	for (unsigned i = 0; i < sim.c.engines; i++)
		make_engine(n, i);
	for (unsigned i = 0; i < sim.c.reactors; i++) {
		struct rv_poller *p;

		if (i == sim.c.net)
			RV_CHECK(rv_reactor_add(&n->reactor[i], &n->carrier.poller.poller) == 0);
		if (i < sim.c.engines) {
			n->fabric.fabric.ops->open_reactor(&n->fabric.fabric, i, &p);
			RV_CHECK(rv_reactor_add(&n->reactor[i], p) == 0);
		}
	}
	publish(n);
	n->started = true;
	sim_leave(was);
	sim_trace("node %u starts as life %" PRIu64, at, n->life);
	sim_actor_node_started(n);
}

/* Ends. */

static void bury(struct sim_node *n)
{
	sim.node[n->at] = NULL;
	sim.restart_ns[n->at] =
		sim.settling ? RV_NEVER : sim.now_ns + sim_small(RV_US(10), RV_MS(100));
	if (sim.former_nr[n->at] < SIM_FORMER)
		sim.former[n->at][sim.former_nr[n->at]++] = n->worker;
	sim_free(n);
}

void sim_node_kill(struct sim_node *n)
{
	sim_trace("node %u is killed", n->at);
	sim.totals.kills++;
	sim_actor_node_died(n);
	sim_fabric_node_died(n);
	sim_net_node_died(n);
	sim_mem_node_died(n);
	bury(n);
}

void sim_node_stop(struct sim_node *n)
{
	if (n->stop != SIM_RUNNING)
		return;
	sim_trace("node %u stops", n->at);
	sim.totals.stops++;
	n->stop = SIM_STOP_DRAIN;
	n->stop_deadline_ns = sim.now_ns + sim_between(RV_MS(1), RV_MS(500));
	n->busy = 1;
	n->stop_next_ns = sim.now_ns;
}

static void destroy(struct sim_node *n)
{
	struct sim_node *was = sim_enter(n);
	uint64_t parked;

	if (sim_actor_pending(n))
		sim_actor_check_over();
	rv_reactor_step(sim_net_reactor(n)); /* answers that were on their way */
	for (unsigned i = 0; i < sim.c.engines; i++)
		n->fabric.fabric.ops->close_reactor(&n->fabric.fabric, i);
	rv_port_poll(n->quick, UINT32_MAX);
	rv_port_poll(n->slow, UINT32_MAX);
	parked = n->registrar.parking.parked_bytes;
	rv_registrar_stop(&n->registrar);
	if (rv_counter_get(&n->registrar.unconfirmed) || n->fabric.unconfirmed) {
		sim_leave(was);
		sim_node_kill(n); /* the memory goes with the process */
		return;
	}
	n->fabric.fabric.ops->destroy(&n->fabric.fabric);
	for (unsigned i = 0; i < n->set.nr; i++)
		rv_engine_fini(&n->engine[i]);
	rv_messenger_destroy(n->m);
	rv_mesh_destroy(n->mesh);
	if (n->registrar.registered.used || n->registrar.plain.used != parked)
		sim_fail("node %u stopped with %" PRIu64 " and %" PRIu64 " bytes of budget taken",
			 n->at, n->registrar.registered.used, n->registrar.plain.used);
	if (sim_mem_mapped(n))
		sim_fail("node %u stopped with %u arenas mapped", n->at, sim_mem_mapped(n));
	sim_mem_check_empty(n);
	sim_leave(was);
	sim_trace("node %u has stopped", n->at);
	sim_actor_node_died(n);
	sim_fabric_node_died(n);
	bury(n);
}

static void asked(struct rv_port *p, struct rv_cell *c)
{
	struct sim_node *n = c->ctx;
	const struct rv_msg_stop *m = (void *)c->body;

	switch (m->step) {
	case RV_STOP_DRAIN:
		n->busy += m->busy_gets + m->busy_leases;
		break;
	case RV_STOP_ABANDON:
		n->busy += m->busy_gets;
		break;
	case RV_STOP_DEMOTE:
	case RV_STOP_MEMORY:
		n->busy += m->busy_arenas;
		break;
	case RV_STOP_FABRICS:
		n->busy += m->busy_fabrics;
		break;
	case RV_STOP_LEASES:
		break;
	}
	n->asked--;
	rv_cell_free(p, c);
}

static void ask(struct sim_node *n, enum rv_stop_step step)
{
	for (unsigned i = 0; i < n->set.nr; i++) {
		struct rv_cell *c = rv_cell_alloc(n->main);

		*(struct rv_msg_stop *)(void *)c->body =
			(struct rv_msg_stop){.engine = &n->engine[i], .step = step};
		c->run = rv_engine_run_stop;
		c->done = asked;
		c->ctx = n;
		n->asked++;
		rv_engine_send(n->main, &n->engine[i], c);
	}
}

/* Ask (again) what is busy in this step of the way down; tools/node_stop. */
static void stop_ask(struct sim_node *n)
{
	n->busy = 0;
	switch (n->stop) {
	case SIM_STOP_DRAIN:
		ask(n, RV_STOP_DRAIN);
		rv_messenger_drain(n->m);
		n->busy += rv_messenger_pending(n->m);
		break;
	case SIM_STOP_ABANDON:
		ask(n, RV_STOP_ABANDON);
		break;
	case SIM_STOP_DEMOTE:
		ask(n, RV_STOP_DEMOTE);
		break;
	case SIM_STOP_REGIONS:
		n->busy = sim_actor_end_regions(n);
		break;
	case SIM_STOP_FLUSH:
		rv_messenger_stop(n->m);
		n->carrier.listening = false;
		n->busy = sim_carrier_queued(&n->carrier);
		break;
	case SIM_STOP_LOCAL:
		n->busy = sim_actor_quit(n);
		break;
	case SIM_STOP_LEASES:
		ask(n, RV_STOP_LEASES);
		break;
	case SIM_STOP_CLOSE:
		n->busy = sim_carrier_close_all(&n->carrier);
		break;
	case SIM_STOP_MEMORY:
		ask(n, RV_STOP_MEMORY);
		break;
	case SIM_STOP_FABRICS:
		ask(n, RV_STOP_FABRICS);
		break;
	case SIM_RUNNING:
	case SIM_STOP_END:
		break;
	}
}

static void stop_next(struct sim_node *n)
{
	if (n->busy) {
		sim_trace("node %u: out of time at step %d of stopping, %" PRIu64 " busy", n->at,
			  (int)n->stop, n->busy);
		if (n->stop == SIM_STOP_MEMORY || n->stop == SIM_STOP_FABRICS)
			n->unclean = true;
	}
	n->stop++;
	n->stop_deadline_ns = sim.now_ns + (n->stop == SIM_STOP_FLUSH ? STOP_FLUSH : STOP_STEP);
	n->busy = 0;
}

static void stop_step(struct sim_node *n)
{
	struct sim_node *was = sim_enter(n);

	rv_port_poll(n->main, UINT32_MAX);
	if (n->stop == SIM_RUNNING || n->asked || sim.now_ns < n->stop_next_ns) {
		sim_leave(was);
		return;
	}
	/* What was asked last has been answered. */
	if (n->stop != SIM_STOP_END && n->busy != RV_NEVER) {
		if (!n->busy || sim.now_ns >= n->stop_deadline_ns)
			stop_next(n);
	}
	if (n->stop == SIM_STOP_END) {
		sim_leave(was);
		if (n->unclean && !n->fabric.unconfirmed)
			sim_fail("node %u did not stop cleanly", n->at);
		if (n->unclean)
			sim_node_kill(n);
		else
			destroy(n);
		return;
	}
	stop_ask(n);
	n->stop_next_ns = sim.now_ns + STOP_POLL;
	sim_leave(was);
}

/* A round. */

/* In a quiet world everybody has a turn before the clock jumps. */
static bool everybody(void)
{
	return sim.settling || sim.idle_rounds > 2;
}

static bool stalled(struct sim_node *n, unsigned reactor)
{
	if (sim.settling)
		n->stalled_until[reactor] = 0;
	else if (sim_fault(sim.c.stall))
		n->stalled_until[reactor] = sim.now_ns + sim_small(RV_US(10), RV_MS(300));
	return sim.now_ns < n->stalled_until[reactor] ||
	       (!everybody() && sim_below(100) >= sim.c.step_pct);
}

static unsigned step_node(struct sim_node *n)
{
	struct sim_node *was = sim_enter(n);
	unsigned first = (unsigned)sim_below(sim.c.reactors), work = 0;

	for (unsigned i = 0; i < sim.c.reactors; i++) {
		unsigned r = (first + i) % sim.c.reactors;

		if (!(n->blocked & 1u << r) && !stalled(n, r))
			work += rv_reactor_step(&n->reactor[r]);
	}
	if (everybody() || sim_below(100) < sim.c.slow_pct)
		work += rv_port_poll(n->slow, (unsigned)sim_between(1, 4));
	rv_registrar_cool(&n->registrar, sim.now_ns);
	if (everybody() || sim_below(100) < sim.c.slow_pct)
		work += rv_port_poll(n->quick, (unsigned)sim_between(1, 4));
	sim_leave(was);
	if (!n->blocked)
		stop_step(n);
	return work;
}

static void disturb(void)
{
	struct sim_node *n = sim.node[sim_below(SIM_NODES)];

	if (sim_fault(sim.c.cut))
		sim_net_cut_one();
	if (n && sim_fault(sim.c.kill))
		sim_node_kill(n);
	else if (n && sim_fault(sim.c.stop))
		sim_node_stop(n);
}

static uint64_t next_event(void)
{
	uint64_t t = rv_min_u64(sim_net_next(), sim_fabric_next());

	for (unsigned i = 0; i < SIM_NODES; i++) {
		struct sim_node *n = sim.node[i];

		if (!n) {
			t = i < sim.c.nodes ? rv_min_u64(t, sim.restart_ns[i]) : t;
			continue;
		}
		if (n->stop != SIM_RUNNING)
			t = rv_min_u64(t, n->stop_next_ns);
		for (unsigned r = 0; r < sim.c.reactors; r++)
			t = rv_min_u64(t, rv_max_u64(rv_wheel_next_ns(&n->reactor[r].wheel),
						     n->stalled_until[r]));
	}
	return t;
}

static void advance(unsigned work)
{
	uint64_t next;

	if (work)
		sim.idle_rounds = 0;
	if (work || (!sim.settling && sim_chance(300))) {
		sim.now_ns += sim_chance(700) ? sim_between(1, RV_US(50))
					      : sim_between(RV_US(50), RV_MS(1));
		if (!sim.settling && sim_chance(30))
			sim.now_ns += sim_between(RV_MS(1), RV_MS(20));
		return;
	}
	next = next_event();
	sim.idle_rounds++;
	if (!sim.settling) /* programs ask again before long */
		next = rv_min_u64(next,
				  sim.now_ns + (sim.idle_rounds > 4 && sim_chance(200) ? RV_MS(300)
										       : RV_MS(3)));
	sim.now_ns = next == RV_NEVER ? sim.now_ns + RV_MS(100) : rv_max_u64(next, sim.now_ns + 1);
}

static unsigned step_all(void)
{
	unsigned first = (unsigned)sim_below(SIM_NODES), work;

	sim_actor_round();
	work = sim_net_device() + sim_fabric_device();
	for (unsigned i = 0; i < SIM_NODES; i++) {
		struct sim_node *n = sim.node[(first + i) % SIM_NODES];

		if (n)
			work += step_node(n);
	}
	return work;
}

static void one_round(void)
{
	sim.totals.rounds++;
	if (!sim.settling)
		disturb();
	for (unsigned i = 0; i < sim.c.nodes; i++) {
		if (!sim.node[i] && sim.now_ns >= sim.restart_ns[i] && !sim.settling)
			node_start(i);
	}
	advance(step_all());
	sim_check_round();
}

void sim_world_go_on_without(struct sim_node *n, unsigned reactor, uint64_t until_ns)
{
	struct sim_node *was = sim_enter(NULL);
	unsigned bit = 1u << reactor;

	sim.totals.blocks++;
	n->blocked |= bit;
	sim.depth++;
	for (unsigned i = 0; sim.depth <= 2 && i < 40 && sim.now_ns < until_ns; i++) {
		unsigned work = step_all();

		sim_fabric_watch();
		if (sim.now_ns < until_ns)
			sim.now_ns +=
				work ? sim_between(1, RV_US(100))
				     : sim_between(1, rv_max_u64(1, (until_ns - sim.now_ns) / 4));
	}
	sim.now_ns = rv_max_u64(sim.now_ns, until_ns);
	sim.depth--;
	n->blocked &= ~bit;
	sim_leave(was);
}

/* The end of a run: everything is given back, everybody stops. */

static void dropped(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_free(p, c);
}

static unsigned drop_slots(struct sim_node *n)
{
	struct sim_node *was = sim_enter(n);
	unsigned left = 0;

	for (unsigned i = 0; i < n->set.nr && sim.mutation != SIM_LEASE_FORGOTTEN; i++) {
		const struct rv_slot *s;
		uint32_t pos = 0;

		while ((s = rv_idtab_next(&n->engine[i].store.slots, &pos))) {
			struct rv_cell *c = rv_cell_alloc(n->main);

			left++;
			if (!c)
				break;
			*(struct rv_msg_slot *)(void *)c->body =
				(struct rv_msg_slot){.engine = &n->engine[i],
						     .op = RV_SLOT_DROP,
						     .local = s->rec.id};
			c->run = rv_engine_run_slot;
			c->done = dropped;
			rv_engine_send(n->main, &n->engine[i], c);
		}
	}
	sim_leave(was);
	return left;
}

static bool idle(struct sim_node *n)
{
	unsigned left = sim_actor_quit(n);

	left += drop_slots(n); /* a region may be waiting for its slots */
	if (left || n->m->calls.live || n->m->serving || n->m->transfers.live_nr ||
	    n->m->deferred_task.timer.armed)
		return false;
	for (unsigned i = 0; i < n->set.nr; i++) {
		const struct rv_engine *e = &n->engine[i];

		if (rv_counter_get(&e->stats.gets) || e->store.leases.live_nr ||
		    rv_counter_get(&e->pool.blocks) || e->pool.growing)
			return false;
	}
	for (unsigned i = 0; i < sim.c.reactors + 3; i++) {
		if (sim_free_cells(rv_mesh_port(n->mesh, i)) != sim.c.cells)
			return false;
	}
	return true;
}

static bool all_idle(void)
{
	bool all = true;

	for (unsigned i = 0; i < SIM_NODES; i++) {
		struct sim_node *n = sim.node[i], *was;

		if (!n)
			continue;
		was = sim_enter(n);
		all &= n->stop == SIM_RUNNING && idle(n);
		sim_leave(was);
	}
	return all;
}

/* Arenas nobody can use again are there still: giving one back found no cell, and is tried again in 100 ms. */
static bool arenas_due(void)
{
	for (unsigned i = 0; i < SIM_NODES; i++) {
		const struct sim_node *n = sim.node[i];

		for (unsigned k = 0; n && k < n->set.nr; k++) {
			struct rv_list *it;

			RV_LIST_EACH(it, &n->engine[k].pool.arenas)
			{
				const struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

				if (!a->block_nr && (a->dedicated || a->session_over))
					return true;
			}
		}
	}
	return false;
}

static bool anybody(void)
{
	for (unsigned i = 0; i < SIM_NODES; i++) {
		if (sim.node[i])
			return true;
	}
	return false;
}

static void settle(void)
{
	uint64_t until = sim.now_ns + SETTLE_NS, due;

	sim.settling = true;
	for (unsigned i = 0; i < SIM_NODES; i++) {
		if (!sim.node[i])
			sim.restart_ns[i] = RV_NEVER;
	}
	if (sim.mutation == SIM_BUDGET_STOLEN && sim.node[0]) {
		sim.node[0]->registrar.registered.used += RV_GRANULE;
		sim.mutated = true;
	}
	for (unsigned i = 0; i < SETTLE_MAX && sim.now_ns < until; i++) {
		sim.step++;
		if (i % 4 == 0 && all_idle())
			break;
		one_round();
	}
	sim_actor_check_over();
	/* Arenas that are due to go need a little longer; then nothing may be on its way. */
	due = sim.now_ns + RV_SEC(1);
	for (unsigned i = 0; i < SETTLE_MAX; i++) {
		unsigned work = step_all();

		if (!work && i >= 64 && (!arenas_due() || sim.now_ns > due))
			break;
		advance(work);
	}
	for (unsigned i = 0; i < SIM_NODES; i++) {
		if (sim.node[i] && sim.node[i]->stop == SIM_RUNNING)
			sim_check_settled(sim.node[i]);
	}
	for (unsigned i = 0; i < SIM_NODES; i++) {
		if (sim.node[i])
			sim_node_stop(sim.node[i]);
	}
	for (unsigned i = 0; i < SETTLE_MAX && anybody(); i++) {
		sim.step++;
		one_round();
	}
	if (anybody())
		sim_fail("a node never stops");
}

void sim_world_run(uint64_t seed, unsigned steps)
{
	struct sim_totals totals = sim.totals;
	bool verbose = sim.verbose, tap = sim.tap;
	enum sim_mutation mutation = sim.mutation;

	sim = (struct sim){.seed = seed,
			   .steps = steps,
			   .verbose = verbose,
			   .tap = tap,
			   .mutation = mutation};
	sim.totals = totals;
	sim.rng = sim_mix(seed ^ 0x51d0);
	sim.rng_product = sim_mix(seed ^ 0xb00c);
	sim.now_ns = BEGIN_NS;
	rv_list_init(&sim.xfers);
	sim_mem_reset();
	sim_check_reset();
	sim_actor_reset();
	draw_conf(&sim.c, (unsigned)(seed % 4));
	for (; sim.step < steps; sim.step++)
		one_round();
	settle();
	sim_fabric_forget();
}
