#include "tools/bench_raw.h"

#include <stdlib.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

struct keeping {
	struct rv_bench_client *b;
	int rc;
};

static void meanwhile(void *user)
{
	struct keeping *k = user;

	if (!k->rc)
		k->rc = rv_bench_client_keep(k->b, rv_clock_ns());
}

static int run(struct rv_bench_client *b, struct rv_raw *raw, struct keeping *k, char *why,
	       size_t cap)
{
	struct rv_handle h = rv_bench_client_slot(b, 0);

	if (b->o->op == RV_BENCH_RAW)
		return rv_node_raw(b->end.node, h.worker, h.local, raw, meanwhile, k, why, cap);
	return rv_node_gets(b->end.node, h.worker, h.local,
			    b->o->path == RV_BENCH_PATH_CHUNKED ? RV_NODE_GET_CHUNKED : RV_NODE_GET,
			    raw, meanwhile, k, why, cap);
}

int rv_bench_raw(struct rv_bench_client *b, struct rv_raw *raw)
{
	struct keeping k = {.b = b};
	char why[RV_BENCH_WHY] = "";
	int rc;

	if (b->o->duration_s)
		raw->until_ns = rv_sat_add(rv_clock_ns(), RV_SEC(b->o->duration_s));
	if (b->o->validate) {
		raw->bytes = malloc(b->size);
		if (!raw->bytes)
			return rv_bench_fail(b->o, "data validation: out of memory");
	}
	rc = run(b, raw, &k, why, sizeof(why));
	if (rc)
		rc = rv_bench_fail(b->o, "%s %llu bytes: %s",
				   b->o->op == RV_BENCH_RAW ? "raw reads of" : "gets of",
				   (unsigned long long)b->size, why);
	else if (k.rc)
		rc = k.rc;
	else
		rc = rv_bench_client_read(b, raw->done_nr, raw->bytes);
	free(raw->bytes);
	raw->bytes = NULL;
	return rc;
}
