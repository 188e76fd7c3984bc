/*
 * bench_main.h - what both benches do around their measurement.
 */
#ifndef RV_TOOLS_BENCH_MAIN_H
#define RV_TOOLS_BENCH_MAIN_H

#include "tools/bench_client.h"
#include "tools/bench_report.h"

/**
 * Fetch b->size bytes over and over.
 *
 * @param[out] row  all but size and cpu; what is not measured stays NAN
 * @return 0, or 1 after one line was printed
 */
typedef int rv_bench_measure_fn(struct rv_bench_client *b, struct rv_bench_row *row);

/** @return the exit code: 0; 1 failed; 2 usage */
int rv_bench_main(enum rv_bench_kind kind, int argc, char **argv, rv_bench_measure_fn *measure);

#endif
