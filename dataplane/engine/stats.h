/*
 * stats.h - what one reactor's engine counts; read at scrape by the metrics.
 *
 * Written by the owning reactor only. Names follow the series of the specification's table.
 */
#ifndef RV_DATAPLANE_ENGINE_STATS_H
#define RV_DATAPLANE_ENGINE_STATS_H

#include "dataplane/base/counter.h"
#include "dataplane/rendezvous/acquire.h"

enum rv_operation {
	RV_OP_REGISTER,
	RV_OP_REGISTER_PINNED,
	RV_OP_REGISTER_REGION,
	RV_OP_METADATA,
	RV_OP_GET,
	RV_OP_REF,
	RV_OP_DETACH,
	RV_OP_RELEASE,
	RV_OPERATIONS
};

/** Which way a get's bytes came. */
enum rv_path { RV_PATH_LOCAL, RV_PATH_CHUNKED, RV_PATH_RDMA, RV_PATHS };

/** Buckets of the GET time: 50 us, doubling. */
#define RV_GET_BUCKETS 16

struct rv_stats {
	struct rv_counter path[RV_PATH_REASONS];
	struct rv_counter operation[RV_OPERATIONS][2]; /* ok, error */
	struct rv_counter bytes_in, bytes_out;         /* payload, fetched and served */
	struct rv_counter get_bytes[RV_PATHS];
	struct rv_counter get_bucket[RV_GET_BUCKETS + 1]; /* the last: longer */
	struct rv_counter get_sum_ns;
	struct rv_counter gets; /* under way */
};

static inline void rv_stats_operation(struct rv_stats *s, enum rv_operation op, int rc)
{
	rv_counter_add(&s->operation[op][rc ? 1 : 0], 1);
}

const char *rv_operation_name(enum rv_operation op);
const char *rv_path_name(enum rv_path p);

/** Count one GET that took @ns. */
void rv_stats_get_time(struct rv_stats *s, uint64_t ns);

#endif
