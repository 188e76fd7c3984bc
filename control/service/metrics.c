#include "control/service/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "control/messenger/messenger.h"
#include "control/service/prompt.h"
#include "control/uring/tcp_carrier.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/engine.h"

#define COUNTER "counter"
#define GAUGE   "gauge"

void rv_metrics_set_ready(struct rv_metrics *m, bool ready)
{
	/* relaxed: the flag orders nothing, a probe that reads it late reads it again. */
	atomic_store_explicit(&m->ready, ready, memory_order_relaxed);
}

bool rv_metrics_ready(const struct rv_metrics *m)
{
	return atomic_load_explicit(&m->ready, memory_order_relaxed);
}

/* The format. */

static void family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(FILE *f, const char *name, const char *type, const char *help, uint64_t v)
{
	family(f, name, type, help);
	fprintf(f, "%s %" PRIu64 "\n", name, v);
}

static void labelled(FILE *f, const char *name, const char *label, const char *value, uint64_t v)
{
	fprintf(f, "%s{%s=\"%s\"} %" PRIu64 "\n", name, label, value, v);
}

/* Label values of ours are plain words; a version text comes from a library. */
static void put_escaped(FILE *f, const char *s)
{
	for (; s && *s; s++) {
		if (*s == '\n') {
			fputs("\\n", f);
			continue;
		}
		if (*s == '"' || *s == '\\')
			fputc('\\', f);
		fputc(*s, f);
	}
}

static uint64_t largest_free(const struct rv_metrics *m)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < m->engines->nr; i++)
		most = rv_max_u64(most, rv_counter_get(&m->engines->engine[i]->pool.largest_free));
	return most;
}

#define SUM(m, field)           RV_ENGINES_SUM((m)->engines, field)
#define SUM_AT(m, field, index) RV_ENGINES_SUM_AT((m)->engines, field, index)

/* The rendezvous, as stock velo names it. */

static void operations(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "velo_rendezvous_operations_total";

	family(f, name, COUNTER, "Rendezvous operations that ended, by kind and outcome.");
	for (unsigned op = 0; op < RV_OPERATIONS; op++)
		for (unsigned bad = 0; bad < 2; bad++)
			fprintf(f, "%s{operation=\"%s\",status=\"%s\"} %" PRIu64 "\n", name,
				rv_operation_name((enum rv_operation)op), bad ? "error" : "ok",
				SUM_AT(m, stats.operation, op * 2 + bad));
}

static void bytes(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "velo_rendezvous_bytes_total";

	family(f, name, COUNTER, "Payload bytes fetched (in) and served in chunks (out).");
	labelled(f, name, "direction", "in", SUM(m, stats.bytes_in));
	labelled(f, name, "direction", "out",
		 m->messenger ? rv_messenger_bytes_out(m->messenger) : 0);
}

static void paths(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "velo_rendezvous_rdma_path_total";

	family(f, name, COUNTER, "Path decisions, with the reason; ok is the only one for RDMA.");
	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		fprintf(f, "%s{path=\"%s\",reason=\"%s\"} %" PRIu64 "\n", name,
			r == RV_PATH_OK ? "rdma" : "chunked",
			rv_path_reason_name((enum rv_path_reason)r), SUM_AT(m, stats.path, r));
}

/* The count is what the buckets add up to, so that the two agree whatever moves meanwhile. */
static void get_duration(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "velo_rendezvous_rdma_get_duration_seconds";
	uint64_t bound_ns = RV_US(50), seen = 0;

	family(f, name, "histogram", "Time of an RDMA GET, without the acquire before it.");
	for (unsigned i = 0; i < RV_GET_BUCKETS; i++, bound_ns *= 2) {
		seen += SUM_AT(m, stats.get_bucket, i);
		fprintf(f, "%s_bucket{le=\"%.10g\"} %" PRIu64 "\n", name, (double)bound_ns / 1e9,
			seen);
	}
	seen += SUM_AT(m, stats.get_bucket, RV_GET_BUCKETS);
	fprintf(f, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, seen);
	fprintf(f, "%s_sum %.9f\n", name, (double)SUM(m, stats.get_sum_ns) / 1e9);
	fprintf(f, "%s_count %" PRIu64 "\n", name, seen);
}

static void rendezvous(FILE *f, const struct rv_metrics *m)
{
	operations(f, m);
	bytes(f, m);
	single(f, "velo_rendezvous_active_slots", GAUGE, "Slots staged and not over.",
	       SUM(m, store.slot_nr));
	paths(f, m);
	get_duration(f, m);
	single(f, "velo_rendezvous_rdma_leases_reaped_total", COUNTER,
	       "RDMA leases that ended without their consumer's word.",
	       SUM_AT(m, store.reaped, RV_LEASE_RDMA));
}

static void registrations(FILE *f, const struct rv_metrics *m)
{
	static const char kinds[] = "velo_rdma_registrations_total";

	single(f, "velo_rdma_registered_bytes", GAUGE, "Bytes mapped for RDMA, in whole pages.",
	       rv_budget_used(&m->registrar->registered));
	family(f, kinds, COUNTER, "Memory registrations made.");
	labelled(f, kinds, "kind", "arena", rv_counter_get(&m->registrar->registrations));
	labelled(f, kinds, "kind", "external", rv_counter_get(&m->registrar->external));
	single(f, "velo_rdma_live_regions", GAUGE, "Registrations in force, one for each fabric.",
	       rv_counter_get(&m->registrar->live_regions));
}

/* Our own. */

static void build_info(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_build_info";

	family(f, name, GAUGE, "Always 1; the labels say what runs here.");
	fprintf(f, "%s{version=\"", name);
	put_escaped(f, m->version);
	fputs("\",ucx=\"", f);
	put_escaped(f, m->ucx_version);
	fputs("\",dpdk=\"", f);
	put_escaped(f, m->dpdk_version);
	fputs("\",verbs=\"", f);
	put_escaped(f, m->verbs_version);
	fputs("\"} 1\n", f);
	single(f, "rvd_ready", GAUGE, "1 while the node serves, 0 while it starts or drains.",
	       rv_metrics_ready(m));
}

static void memory(FILE *f, const struct rv_metrics *m)
{
	static const char arenas[] = "rvd_arena_bytes";
	const struct rv_registrar *r = m->registrar;
	uint64_t used = SUM(m, pool.used_bytes);
	uint64_t all = rv_budget_used(&r->registered) + rv_budget_used(&r->plain);
	uint64_t none = rv_counter_get(&r->external_bytes) + rv_counter_get(&r->parked_bytes) +
			rv_counter_get(&m->prompt->pinned_bytes);

	family(f, arenas, GAUGE, "Bytes of arenas, registered and plain, handed out or free.");
	labelled(f, arenas, "state", "used", used);
	/* What is read one after another may not add up for a moment. */
	labelled(f, arenas, "state", "free", all > used + none ? all - used - none : 0);
	labelled(f, arenas, "state", "largest_free", largest_free(m));
	single(f, "rvd_arena_blocks", GAUGE, "Blocks handed out of arenas.", SUM(m, pool.blocks));
	single(f, "rvd_resting_blocks", GAUGE,
	       "Blocks nobody holds that a forgotten consumer may still read.",
	       SUM(m, pool.resting_blocks));
	single(f, "rvd_plain_bytes", GAUGE, "Bytes of arenas that are not registered.",
	       rv_budget_used(&r->plain));
	single(f, "rvd_parked_bytes", GAUGE, "Bytes of emptied arenas kept for the next one.",
	       rv_counter_get(&r->parked_bytes));
	single(f, "rvd_registered_budget_bytes", GAUGE, "Bytes that may be registered at most.",
	       rv_budget_limit(&r->registered));
}

static void lease_keys(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_lease_keys_total";

	family(f, name, COUNTER, "Keys of leases, where a fabric has them.");
	labelled(f, name, "outcome", "made", rv_counter_get(&m->prompt->made));
	labelled(f, name, "outcome", "refused", rv_counter_get(&m->prompt->refused));
	labelled(f, name, "outcome", "not_revoked", rv_counter_get(&m->prompt->stuck));
	single(f, "rvd_lease_key_bytes", GAUGE, "Bytes that keys of leases pin once more.",
	       rv_counter_get(&m->prompt->pinned_bytes));
}

static void registration_failures(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_registration_failures_total";

	family(f, name, COUNTER, "Arenas and regions that could not be had, by reason.");
	for (unsigned i = 0; i < RV_REG_FAILURES; i++)
		labelled(f, name, "reason",
			 rv_registration_failure_name((enum rv_registration_failure)i),
			 rv_counter_get(&m->registrar->failures[i]));
	single(f, "rvd_unmaps_unconfirmed_total", COUNTER,
	       "Arenas and regions whose pages a fabric did not let go of.",
	       rv_counter_get(&m->registrar->unconfirmed));
}

static void leases(FILE *f, const struct rv_metrics *m)
{
	family(f, "rvd_leases", GAUGE, "Leases that consumers hold on slots here.");
	for (unsigned k = 0; k < RV_LEASE_KINDS; k++)
		labelled(f, "rvd_leases", "kind", rv_lease_kind_name((enum rv_lease_kind)k),
			 SUM_AT(m, store.lease_nr, k));
	family(f, "rvd_leases_reaped_total", COUNTER,
	       "Leases that ended without their consumer's word.");
	for (unsigned k = 0; k < RV_LEASE_KINDS; k++)
		labelled(f, "rvd_leases_reaped_total", "kind",
			 rv_lease_kind_name((enum rv_lease_kind)k), SUM_AT(m, store.reaped, k));
	single(f, "rvd_slots_expired_total", COUNTER, "Slots whose time to live ran out.",
	       SUM(m, store.expired));
}

static void gets(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_get_bytes_total";

	family(f, name, COUNTER, "Payload bytes fetched, by the way they came.");
	for (unsigned p = 0; p < RV_PATHS; p++)
		labelled(f, name, "path", rv_path_name((enum rv_path)p),
			 SUM_AT(m, stats.get_bytes, p));
	single(f, "rvd_gets_under_way", GAUGE, "Fetches that have not ended.", SUM(m, stats.gets));
}

static void messages(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_staged_payloads_refused_total";

	family(f, name, COUNTER, "Payloads of staged messages that were not taken, by why.");
	for (unsigned r = 0; r < RV_REFUSED_REASONS; r++)
		labelled(f, name, "reason", rv_refused_payload_name((enum rv_refused_payload)r),
			 m->messenger ? rv_messenger_refused_payloads(m->messenger,
								      (enum rv_refused_payload)r)
				      : 0);
}

static void handshakes(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_handshakes_rejected_total";

	family(f, name, COUNTER, "Peers that said _hello and were not taken, by why.");
	for (unsigned r = 0; r < RV_REJECTED_REASONS; r++)
		labelled(f, name, "reason", rv_rejected_hello_name((enum rv_rejected_hello)r),
			 m->messenger ? rv_messenger_rejected_hellos(m->messenger,
								     (enum rv_rejected_hello)r)
				      : 0);
}

static void connections(FILE *f, const struct rv_metrics *m)
{
	single(f, "rvd_tcp_connections", GAUGE, "TCP connections to peers, open now.",
	       rv_counter_get(&m->tcp->connections));
	single(f, "rvd_tcp_connections_refused_total", COUNTER,
	       "TCP connections closed at once: tcp.allow, or tcp.max_connections.",
	       rv_counter_get(&m->tcp->refused));
	family(f, "rvd_tcp_connections_overdue_total", COUNTER,
	       "TCP connections closed because nothing came: no first frame (tcp.handshake_timeout), or no end of one (tcp.stall_timeout).");
	labelled(f, "rvd_tcp_connections_overdue_total", "reason", "handshake",
		 rv_counter_get(&m->tcp->silent));
	labelled(f, "rvd_tcp_connections_overdue_total", "reason", "stall",
		 rv_counter_get(&m->tcp->stalled));
}

/* What every fabric counted on every reactor; @why RV_EP_ENDS: the endpoints there are. */
static uint64_t endpoint_sum(const struct rv_metrics *m, enum rv_endpoint_end why)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < m->engines->nr; i++) {
		const struct rv_engine *e = m->engines->engine[i];

		for (unsigned k = 0; k < e->conf.fabric_nr; k++) {
			struct rv_fabric *fab = e->conf.fabric[k];
			const struct rv_fabric_counts *c =
				fab->ops->counts ? fab->ops->counts(fab, e->reactor->index) : NULL;

			if (c)
				v += rv_counter_get(why == RV_EP_ENDS ? &c->endpoints
								      : &c->closed[why]);
		}
	}
	return v;
}

static void endpoints(FILE *f, const struct rv_metrics *m)
{
	static const char name[] = "rvd_endpoints_closed_total";

	single(f, "rvd_endpoints", GAUGE, "Endpoints to peers, open now.",
	       endpoint_sum(m, RV_EP_ENDS));
	family(f, name, COUNTER, "Endpoints closed, by why.");
	for (unsigned r = 0; r < RV_EP_ENDS; r++)
		labelled(f, name, "reason", rv_endpoint_end_name((enum rv_endpoint_end)r),
			 endpoint_sum(m, (enum rv_endpoint_end)r));
}

static void cores(FILE *f, struct rv_metrics *m)
{
	family(f, "rvd_core_busy_ratio", GAUGE, "Share of a core's time that did work, 0 to 1.");
	for (unsigned i = 0; i < m->core_nr; i++)
		fprintf(f, "rvd_core_busy_ratio{core=\"%u\"} %.6f\n", i,
			rv_busy_ratio(&m->busy[i], rv_counter_get(&m->core[i]->busy_ns),
				      rv_clock_ns()));
	family(f, "rvd_core_busy_seconds_total", COUNTER, "Time in passes that did work.");
	for (unsigned i = 0; i < m->core_nr; i++)
		fprintf(f, "rvd_core_busy_seconds_total{core=\"%u\"} %.6f\n", i,
			(double)rv_counter_get(&m->core[i]->busy_ns) / 1e9);
	family(f, "rvd_core_polls_total", COUNTER, "Passes over a core's pollers.");
	for (unsigned i = 0; i < m->core_nr; i++)
		fprintf(f, "rvd_core_polls_total{core=\"%u\"} %" PRIu64 "\n", i,
			rv_counter_get(&m->core[i]->polls));
	family(f, "rvd_core_sleeps_total", COUNTER, "Times a core went to sleep.");
	for (unsigned i = 0; i < m->core_nr; i++)
		fprintf(f, "rvd_core_sleeps_total{core=\"%u\"} %" PRIu64 "\n", i,
			rv_counter_get(&m->core[i]->sleeps));
}

char *rv_metrics_render(struct rv_metrics *m, size_t *len)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	bool bad;

	if (!f)
		return NULL;
	rendezvous(f, m);
	registrations(f, m);
	build_info(f, m);
	memory(f, m);
	lease_keys(f, m);
	registration_failures(f, m);
	leases(f, m);
	gets(f, m);
	messages(f, m);
	connections(f, m);
	handshakes(f, m);
	endpoints(f, m);
	cores(f, m);
	bad = ferror(f);
	if (fclose(f) || bad) {
		free(text);
		return NULL;
	}
	*len = size;
	return text;
}
