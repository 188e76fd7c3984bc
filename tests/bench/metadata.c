/*
 * metadata - how fast a node is told of another node's slot, begun on the node's own core.
 *
 *   metadata -p 0                                       the owner: prints its port
 *   metadata HOST -p PORT -s 1024 -n NUMBER -t DEPTH --op node --out_json_file FILE
 *
 * The command line and the report are rv_get_bw's; of the rates only MsgRate means something. "# usec MEDIAN" comes first.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dataplane/engine/raw.h"
#include "tools/bench_client.h"
#include "tools/bench_main.h"

static int measure(struct rv_bench_client *b, struct rv_bench_row *row)
{
	struct rv_raw raw = {.depth = b->o->depth, .iterations = b->o->iterations};
	struct rv_bench_lat lat;
	struct rv_handle h = rv_bench_client_slot(b, 0);
	char why[RV_BENCH_WHY] = "";

	raw.began_ns = calloc(raw.iterations, sizeof(uint64_t));
	raw.ended_ns = calloc(raw.iterations, sizeof(uint64_t));
	if (!raw.began_ns || !raw.ended_ns)
		return rv_bench_fail(b->o, "metadata: out of memory");
	if (rv_node_gets(b->end.node, h.worker, h.local, RV_NODE_METADATA, &raw, NULL, NULL, why,
			 sizeof(why)))
		return rv_bench_fail(b->o, "metadata: %s", why);
	for (uint64_t i = 0; i < raw.done_nr; i++)
		raw.ended_ns[i] -= raw.began_ns[i];
	rv_bench_lat_of(raw.ended_ns, raw.done_nr, &lat);
	printf("# usec %.2f\n", lat.typical);
	free(raw.began_ns);
	free(raw.ended_ns);
	row->iterations = raw.done_nr;
	row->ns = (double)(raw.last_ns - raw.first_ns);
	row->peak_ns = NAN;
	return 0;
}

int main(int argc, char **argv)
{
	return rv_bench_main(RV_BENCH_BW, argc, argv, measure);
}
