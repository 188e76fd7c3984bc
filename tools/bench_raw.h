/*
 * bench_raw.h - what runs in the private node of this process: --op raw, the READs alone, as perftest measures them;
 * --op node, whole gets without a client program.
 *
 * @thread the main one
 */
#ifndef RV_TOOLS_BENCH_RAW_H
#define RV_TOOLS_BENCH_RAW_H

#include "dataplane/engine/raw.h"
#include "tools/bench_client.h"

/**
 * Read or get what is staged, @raw->iterations times at most and for the run's seconds, with @raw->depth at once; the
 * times go where @raw says. Counts the ways, and compares the bytes if that was asked for.
 *
 * @return 0, or 1 after one line was printed
 */
int rv_bench_raw(struct rv_bench_client *b, struct rv_raw *raw);

#endif
