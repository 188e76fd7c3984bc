/*
 * The node on DPDK's telemetry socket: /rvd/status, /rvd/cores, /rvd/arenas. Like metrics it reads counters, nothing else.
 */
#include <inttypes.h>
#include <stdio.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/lcore/eal.h"
#include "dataplane/lcore/telemetry.h"
#include "tools/node_impl.h"

static void put_leases(const struct rv_engines *set, struct rv_tel_out *o)
{
	rv_tel_out_dict(o, "leases");
	for (unsigned k = 0; k < RV_LEASE_KINDS; k++)
		rv_tel_out_u64(o, rv_lease_kind_name((enum rv_lease_kind)k),
			       RV_ENGINES_SUM_AT(set, store.lease_nr, k));
	rv_tel_out_dict_end(o);
}

static void put_gets(const struct rv_engines *set, struct rv_tel_out *o)
{
	rv_tel_out_dict(o, "gets");
	rv_tel_out_u64(o, "ok", RV_ENGINES_SUM_AT(set, stats.operation, 2ul * RV_OP_GET));
	rv_tel_out_u64(o, "error", RV_ENGINES_SUM_AT(set, stats.operation, 2ul * RV_OP_GET + 1));
	rv_tel_out_u64(o, "under_way", RV_ENGINES_SUM(set, stats.gets));
	rv_tel_out_dict_end(o);
}

static void put_status(void *user, struct rv_tel_out *o)
{
	const struct rv_node *n = user;
	const struct rv_engines *set = &n->engines;
	char worker[24];

	snprintf(worker, sizeof(worker), "%" PRIu64, n->id.worker);
	rv_tel_out_str(o, "name", n->cfg->node.name);
	rv_tel_out_str(o, "version", RV_VERSION);
	rv_tel_out_str(o, "worker", worker); /* text: scripts read numbers as doubles */
	rv_tel_out_u64(o, "uptime_s", (rv_clock_ns() - n->started_ns) / RV_SEC(1));
	rv_tel_out_u64(o, "draining", rv_messenger_is_draining(n->messenger));
	rv_tel_out_u64(o, "active_slots", RV_ENGINES_SUM(set, store.slot_nr));
	put_leases(set, o);
	put_gets(set, o);
	rv_tel_out_u64(o, "bytes_in", RV_ENGINES_SUM(set, stats.bytes_in));
	rv_tel_out_u64(o, "bytes_out", rv_messenger_bytes_out(n->messenger));
}

static void open_core(struct rv_tel_out *o, unsigned i)
{
	char name[16];

	snprintf(name, sizeof(name), "core%u", i);
	rv_tel_out_dict(o, name);
}

/* Telemetry has whole numbers only: the share of time with work in thousandths. */
static void put_core(struct rv_node *n, unsigned i, struct rv_tel_out *o)
{
	const struct rv_node_core *c = &n->core[i];
	uint64_t busy_ns = rv_counter_get(&c->reactor.busy_ns);

	open_core(o, i);
	rv_tel_out_str(o, "name", c->name);
	rv_tel_out_str(o, "roles", rv_node_core_roles(c));
	rv_tel_out_u64(o, "polls", rv_counter_get(&c->reactor.polls));
	rv_tel_out_u64(o, "sleeps", rv_counter_get(&c->reactor.sleeps));
	rv_tel_out_u64(o, "busy_ns", busy_ns);
	rv_tel_out_u64(o, "idle_ns", rv_counter_get(&c->reactor.idle_ns));
	rv_tel_out_u64(o, "busy_permille",
		       (uint64_t)(1000 * rv_busy_ratio(&n->busy[i], busy_ns, rv_clock_ns())));
	rv_tel_out_dict_end(o);
}

static void put_cores(void *user, struct rv_tel_out *o)
{
	struct rv_node *n = user;

	for (unsigned i = 0; i < n->core_nr; i++)
		put_core(n, i, o);
}

static void put_pool(const struct rv_engine *e, struct rv_tel_out *o)
{
	open_core(o, e->conf.shard);
	rv_tel_out_u64(o, "used_bytes", rv_counter_get(&e->pool.used_bytes));
	rv_tel_out_u64(o, "free_bytes", rv_counter_get(&e->pool.free_bytes));
	rv_tel_out_u64(o, "largest_free_bytes", rv_counter_get(&e->pool.largest_free));
	rv_tel_out_u64(o, "blocks", rv_counter_get(&e->pool.blocks));
	rv_tel_out_u64(o, "resting_blocks", rv_counter_get(&e->pool.resting_blocks));
	rv_tel_out_dict_end(o);
}

static void put_arenas(void *user, struct rv_tel_out *o)
{
	const struct rv_node *n = user;

	rv_tel_out_u64(o, "registered_bytes", rv_budget_used(&n->registrar.registered));
	rv_tel_out_u64(o, "registered_budget_bytes", rv_budget_limit(&n->registrar.registered));
	rv_tel_out_u64(o, "plain_bytes", rv_budget_used(&n->registrar.plain));
	rv_tel_out_u64(o, "plain_budget_bytes", rv_budget_limit(&n->registrar.plain));
	for (unsigned i = 0; i < n->engines.nr; i++)
		put_pool(n->engines.engine[i], o);
}

void rv_node_serve_telemetry(struct rv_node *n)
{
	static const struct rv_telemetry_cmd cmds[] = {
		{"/rvd/status", "The node, its slots, leases and gets. No parameters.", put_status},
		{"/rvd/cores", "Each core: roles, passes, share of work. No parameters.",
		 put_cores},
		{"/rvd/arenas", "Memory of each polling core, and the budgets. No parameters.",
		 put_arenas},
	};
	const char *path = rv_eal_telemetry_socket();
	int rc = path ? rv_telemetry_serve(cmds, RV_ARRAY_NR(cmds), n) : 0;

	if (rc)
		rv_log_warn("telemetry: the node's commands are not served: %s", rv_err_name(rc));
	else if (path)
		rv_log_info("telemetry: listening on %s", path);
}
