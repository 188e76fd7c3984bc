/*
 * engine.h - one reactor's share of the rendezvous: its slots and leases (owner), its gets (consumer).
 *
 * Everybody else talks to an engine by message (msg.h). The set of a node's engines is fixed at start; a
 * handle's low bits say which of them owns the slot.
 */
#ifndef RV_DATAPLANE_ENGINE_ENGINE_H
#define RV_DATAPLANE_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stddef.h>

#include "dataplane/base/map64.h"
#include "dataplane/base/slab.h"
#include "dataplane/engine/stats.h"
#include "dataplane/interfaces/fabric.h"
#include "dataplane/interfaces/peer_calls.h"
#include "dataplane/lcore/reactor.h"
#include "dataplane/mem/pool.h"
#include "dataplane/rendezvous/store.h"

struct rv_engine;
struct rv_export;
struct rv_export_ask;
struct rv_get;

/** A node's engines; read-only once reactors run. */
struct rv_engines {
	unsigned nr;
	struct rv_engine *engine[RV_MAX_REACTORS];
	_Atomic bool rdma_off; /* the kill switch; relaxed: it takes effect for the next decision */
};

struct rv_engine_conf {
	struct rv_reactor *reactor;
	unsigned shard; /* its index among the engines */
	struct rv_engines *set;
	uint64_t worker;   /* this node */
	unsigned net_port; /* where transfers live */
	struct rv_fabric *fabric[RV_FABRICS];
	unsigned fabric_nr;
	struct rv_peer_calls *calls;

	uint64_t lease_timeout_ns, quarantine_ns;
	uint64_t
		chunk_lease_ns; /* deadline of every chunked lease; RV_NEVER: only where the consumer asks */
	uint64_t rdma_min_bytes;
	uint32_t chunk_size;
	uint32_t
		bytes_max; /* payloads up to this come with the answer to an acquire, where both ends can; 0: none */
	bool verify; /* hash at staging, and tell consumers */
	uint32_t max_slots, max_leases, max_gets;
	uint64_t call_timeout_ns;
	uint64_t
		late_max; /* bytes that late reads from one peer may hold before it is read in chunks */
	struct rv_pool_conf pool; /* reactor is filled in */

	/** Ask the prompt thread for a key, or for its end; @user is the pool's. @return 0 (rv_export_asked()
	 * follows), or -EAGAIN: no cell. NULL: no fabric has keys of leases. */
	int (*export_ask)(void *user, const struct rv_export_ask *a);

	/** The net core's: end the transfer of a lease; its cell comes back when nothing is in flight. */
	rv_cell_fn *run_transfer_end;
};

/** What the gets from one peer take; there is one while any is under way. */
struct rv_peer_load {
	struct rv_list link; /* free ones */
	uint64_t worker;
	uint32_t gets;
	uint64_t late_bytes; /* held for reads that were answered and have not ended */
};

struct rv_engine {
	struct rv_engine_conf conf;
	struct rv_reactor *reactor;
	struct rv_pool pool;
	struct rv_store store;
	struct rv_stats stats;
	bool draining;

	struct rv_list transfers_to_end; /* leases; waiting for a cell */
	struct rv_task retry;

	struct rv_slab exports; /* records, at most as many as leases */
	struct rv_list exports_waiting;
	struct rv_task export_retry;
	struct rv_counter exports_live, exports_stuck;

	struct rv_get *gets; /* records, max_gets of them */
	struct rv_list free_gets, live_gets;
	struct rv_peer_load *loads; /* as many */
	struct rv_list free_loads;
	struct rv_map64 load_by_worker;
	uint64_t last_tag;
	uint32_t many_each; /* bytes that a payload of a get_many took, the last time */
};

/** @thread init @return 0 or -ENOMEM */
int rv_engine_init(struct rv_engine *e, const struct rv_engine_conf *conf);
void rv_engine_fini(struct rv_engine *e);

/** The slow thread has done what the pool's conf.ask() asked for. @thread owning reactor */
void rv_engine_asked(struct rv_engine *e, const struct rv_pool_ask *a);

/** The engine that owns slot @local, or NULL: no such reactor, so no such slot. @thread any */
static inline struct rv_engine *rv_engine_of(const struct rv_engines *set, uint64_t local)
{
	unsigned i = rv_local_reactor(local);

	return i < set->nr ? set->engine[i] : NULL;
}

/** The sum over all engines of the counter at @off in struct rv_engine. @thread any   @cost O(engines) */
static inline uint64_t rv_engines_sum(const struct rv_engines *set, size_t off)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < set->nr; i++) {
		const char *e = (const char *)set->engine[i];

		v += rv_counter_get((const struct rv_counter *)(const void *)(e + off));
	}
	return v;
}

/** The sum of a counter, and of element @index of an array of counters: RV_ENGINES_SUM(set, stats.bytes_in). */
#define RV_ENGINES_SUM(set, field) rv_engines_sum(set, offsetof(struct rv_engine, field))
#define RV_ENGINES_SUM_AT(set, field, index) \
	rv_engines_sum(set, offsetof(struct rv_engine, field) + (index) * sizeof(struct rv_counter))

/** Send @c to the thread that owns @e. @thread the cell's home */
static inline void rv_engine_send(struct rv_port *p, const struct rv_engine *e, struct rv_cell *c)
{
	rv_cell_send(p, e->reactor->index, c);
}

#endif
