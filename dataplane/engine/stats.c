#include "dataplane/engine/stats.h"

#include "dataplane/base/units.h"

const char *rv_operation_name(enum rv_operation op)
{
	static const char *const names[RV_OPERATIONS] = {
		"register", "register_pinned", "register_region", "metadata", "get",
		"ref",      "detach",          "release",
	};

	return names[op];
}

const char *rv_path_name(enum rv_path p)
{
	static const char *const names[RV_PATHS] = {"local", "chunked", "rdma"};

	return names[p];
}

void rv_stats_get_time(struct rv_stats *s, uint64_t ns)
{
	uint64_t bound = RV_US(50);
	unsigned i = 0;

	while (i < RV_GET_BUCKETS && ns > bound) {
		bound *= 2;
		i++;
	}
	rv_counter_add(&s->get_bucket[i], 1);
	rv_counter_add(&s->get_sum_ns, ns);
}
