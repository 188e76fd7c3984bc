/*
 * The way down: drain, wait for what was promised, close, unmap, join.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "tools/node_impl.h"

#define STOP_POLL_MS 2
#define STOP_STEP_NS RV_SEC(5)
/* Whoever reads has its answers by then; whoever does not is not waited for beyond the drain. */
#define FLUSH_NS     RV_MS(500)

struct stop_sum {
	uint64_t gets, leases, arenas, fabrics;
};

static struct stop_sum ask_engines(struct rv_node *n, enum rv_stop_step step)
{
	struct stop_sum sum = {0};

	for (unsigned i = 0; i < n->engines.nr; i++) {
		struct rv_cell *c = rv_cell_alloc(n->main_port);
		struct rv_msg_stop *m = (void *)c->body;

		*m = (struct rv_msg_stop){.engine = n->engines.engine[i], .step = step};
		c->run = rv_engine_run_stop;
		rv_node_ask(n, m->engine->reactor->index, c);
		sum.gets += m->busy_gets;
		sum.leases += m->busy_leases;
		sum.arenas += m->busy_arenas;
		sum.fabrics += m->busy_fabrics;
		rv_cell_free(n->main_port, c);
	}
	return sum;
}

static void nap(struct rv_node *n)
{
	rv_port_wait(n->main_port, STOP_POLL_MS);
}

/* Wait for what was promised to others. @return how much was cut */
static uint64_t drain(struct rv_node *n, bool (*hurry)(void *), void *ctx)
{
	uint64_t deadline = rv_sat_add(rv_clock_ns(), n->cfg->shutdown.timeout_ns), pending;
	struct stop_sum s;

	for (;;) {
		/* Engines first: whoever sees a ShuttingDown frame gets no descriptor any more. */
		s = ask_engines(n, RV_STOP_DRAIN);
		pending = rv_node_ask_net(n, NET_DRAIN);
		if (!pending && !s.gets && !s.leases)
			return 0;
		if (rv_clock_ns() >= deadline || (hurry && hurry(ctx)))
			break;
		nap(n);
	}
	rv_log_warn("shutdown: out of time: %" PRIu64 " gets, %" PRIu64 " requests and %" PRIu64
		    " RDMA leases are cut",
		    s.gets, pending, s.leases);
	return s.gets + pending + s.leases;
}

static bool until_idle_net(struct rv_node *n, enum net_op op, uint64_t limit_ns)
{
	uint64_t deadline = rv_clock_ns() + limit_ns;

	while (rv_node_ask_net(n, op)) {
		if (rv_clock_ns() >= deadline)
			return false;
		nap(n);
	}
	return true;
}

static bool until_idle_engines(struct rv_node *n, enum rv_stop_step step, uint64_t limit_ns)
{
	uint64_t deadline = rv_clock_ns() + limit_ns;

	for (;;) {
		struct stop_sum s = ask_engines(n, step);
		uint64_t busy = step == RV_STOP_ABANDON   ? s.gets
				: step == RV_STOP_FABRICS ? s.fabrics
							  : s.arenas;

		if (!busy)
			return true;
		if (rv_clock_ns() >= deadline)
			return false;
		nap(n);
	}
}

int rv_node_stop(struct rv_node *n, bool (*hurry)(void *), void *ctx, struct rv_node_end *end)
{
	bool clean;

	*end = (struct rv_node_end){0};
	rv_metrics_set_ready(&n->metrics, false);
	rv_discovery_leave(n->discovery);
	rv_log_info("shutdown: draining");
	end->cut = drain(n, hurry, ctx);
	until_idle_engines(n, RV_STOP_ABANDON, STOP_STEP_NS);
	clean = until_idle_engines(n, RV_STOP_DEMOTE, STOP_STEP_NS);
	clean &= until_idle_net(n, NET_REGIONS, STOP_STEP_NS);
	rv_discovery_stop(n->discovery);
	until_idle_net(n, NET_FLUSH, FLUSH_NS);
	rv_registrar_leave(&n->registrar);
	until_idle_net(n, NET_LOCAL_STOP, STOP_STEP_NS);
	ask_engines(n, RV_STOP_LEASES);
	until_idle_net(n, NET_CLOSE, STOP_STEP_NS);
	clean &= until_idle_engines(n, RV_STOP_MEMORY, STOP_STEP_NS);
	clean &= until_idle_engines(n, RV_STOP_FABRICS, STOP_STEP_NS);
	clean &= rv_counter_get(&n->registrar.unconfirmed) == 0 &&
		 rv_counter_get(&n->prompt.stuck) == 0;
	for (unsigned i = 0; i < n->core_nr; i++)
		rv_reactor_stop(&n->core[i].reactor);
	rv_node_join(n);
	end->unconfirmed = !clean;
	rv_node_remove_files(n);
	if (clean)
		rv_node_destroy(n, false);
	else
		rv_log_err("shutdown: memory is still registered, it goes with the process");
	rv_log_info("shutdown: done");
	return end->cut || !clean ? 3 : 0;
}
