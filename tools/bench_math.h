/*
 * bench_math.h - what the benches make of their clocks: bandwidth, its peak, and the spread of latencies.
 *
 * Times are nanoseconds, as they were taken; results are in the units that perftest prints. NAN is "not
 * measured": it prints as `-` and is null in JSON, never 0.
 *
 * @thread any (no shared state)
 */
#ifndef RV_TOOLS_BENCH_MATH_H
#define RV_TOOLS_BENCH_MATH_H

#include <stddef.h>
#include <stdint.h>

/** Microseconds. */
struct rv_bench_lat {
	double min, max, typical, avg, stdev, p99, p999;
};

/**
 * The spread of @nr times. typical is the median (of an even number the mean of the middle two); stdev is that
 * of the population, as perftest's, and not measured by one time; a percentile is the nearest rank.
 *
 * @param ns  sorted by this call
 * @cost O(n log n)
 */
void rv_bench_lat_of(uint64_t *ns, size_t nr, struct rv_bench_lat *out);

/** bytes x iterations / time, in MiB (2^20) a second. NAN without a time. */
double rv_bench_mib(uint64_t bytes, uint64_t iterations, double ns);

/** The same in Gb (10^9 bits) a second. */
double rv_bench_gbit(uint64_t bytes, uint64_t iterations, double ns);

/** Millions of messages a second. */
double rv_bench_mpps(uint64_t iterations, double ns);

/**
 * The best window of a run, as the time that one get took in it: the least (done[j] - posted[i]) / (j - i + 1)
 * of all i <= j. The run itself is such a window, so that a peak is never below the average.
 *
 * @param posted  when each get was begun, ascending
 * @param done    when each get was done, ascending: not necessarily in the order of @posted
 * @return ns, NAN if @nr is 0
 * @cost O(n) for each of a handful of rounds, instead of a look at each pair
 */
double rv_bench_peak_ns(const uint64_t *posted, const uint64_t *done, size_t nr);

/** Longest text of a value and its terminator. */
#define RV_BENCH_VALUE 32

/** A value with @decimals, or `-` if it was not measured. @return @text */
const char *rv_bench_value(double v, int decimals, char text[RV_BENCH_VALUE]);

/** Bytes that differ at every offset and with every seed: what is staged, and what must come back. */
void rv_bench_pattern(void *data, uint64_t len, uint64_t seed);

#endif
