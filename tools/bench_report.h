/*
 * bench_report.h - what was measured: banner, table and perftest's JSON.
 *
 * The JSON is perftest's: an object `test_info` and `results` with its keys, an array of such objects where there
 * are several sizes. To these come ours: `time_sec`, `paths`, and who was measured.
 */
#ifndef RV_TOOLS_BENCH_REPORT_H
#define RV_TOOLS_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "control/json/json.h"
#include "tools/bench_client.h"
#include "tools/bench_math.h"

/** One size. What was not measured is NAN. */
struct rv_bench_row {
	uint64_t size, iterations;
	double ns;               /* the whole run */
	double peak_ns;          /* one get in the best window; rv_get_bw */
	double cpu;              /* per cent */
	struct rv_bench_lat lat; /* rv_get_lat */
};

/** Busy and all ticks of this host's CPUs. */
struct rv_bench_cpu {
	uint64_t busy, all;
	bool known;
};

struct rv_bench_cpu rv_bench_cpu_now(void);

/** Per cent between two looks; NAN if there is nothing to tell. */
double rv_bench_cpu_between(struct rv_bench_cpu a, struct rv_bench_cpu b);

struct rv_bench_report {
	const struct rv_bench_client *b;
	struct rv_json_out json; /* results so far */
	char path[64];           /* that the banner named */
};

/** Print the banner and the columns. @thread main, after the first warm-up */
void rv_bench_report_begin(struct rv_bench_report *r, const struct rv_bench_client *b);

/** Print one row, and a line about its paths if they are not the banner's. */
void rv_bench_report_row(struct rv_bench_report *r, const struct rv_bench_row *row);

/** Write the JSON if it was asked for. @return 0, or 1 after one line was printed */
int rv_bench_report_end(struct rv_bench_report *r, bool write);

#endif
