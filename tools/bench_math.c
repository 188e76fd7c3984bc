#include "tools/bench_math.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/units.h"

#define NS_PER_SEC 1e9

static int by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double us(double ns)
{
	return ns / 1000.0;
}

/* Nearest rank: the least time that @permille of all times do not exceed. */
static double percentile(const uint64_t *ns, size_t nr, size_t permille)
{
	size_t rank = (nr * permille + 999) / 1000;

	return us((double)ns[rank - 1]);
}

static double median(const uint64_t *ns, size_t nr)
{
	size_t mid = nr / 2;

	if (nr % 2)
		return us((double)ns[mid]);
	return us(((double)ns[mid - 1] + (double)ns[mid]) / 2);
}

static double deviation(const uint64_t *ns, size_t nr, double avg)
{
	double sum = 0;

	for (size_t i = 0; i < nr; i++) {
		double d = us((double)ns[i]) - avg;

		sum += d * d;
	}
	return sqrt(sum / (double)nr);
}

void rv_bench_lat_of(uint64_t *ns, size_t nr, struct rv_bench_lat *out)
{
	double sum = 0;

	*out = (struct rv_bench_lat){NAN, NAN, NAN, NAN, NAN, NAN, NAN};
	if (!nr)
		return;
	qsort(ns, nr, sizeof(*ns), by_time);
	for (size_t i = 0; i < nr; i++)
		sum += us((double)ns[i]);
	out->min = us((double)ns[0]);
	out->max = us((double)ns[nr - 1]);
	out->typical = median(ns, nr);
	out->avg = sum / (double)nr;
	if (nr > 1)
		out->stdev = deviation(ns, nr, out->avg);
	out->p99 = percentile(ns, nr, 990);
	out->p999 = percentile(ns, nr, 999);
}

double rv_bench_mib(uint64_t bytes, uint64_t iterations, double ns)
{
	if (!(ns > 0))
		return NAN;
	return (double)bytes * (double)iterations / (double)RV_MIB(1) / (ns / NS_PER_SEC);
}

double rv_bench_gbit(uint64_t bytes, uint64_t iterations, double ns)
{
	if (!(ns > 0))
		return NAN;
	return (double)bytes * 8 * (double)iterations / 1e9 / (ns / NS_PER_SEC);
}

double rv_bench_mpps(uint64_t iterations, double ns)
{
	if (!(ns > 0))
		return NAN;
	return (double)iterations / 1e6 / (ns / NS_PER_SEC);
}

/* A window beats @per_get if (done[j] - per_get * (j + 1)) - (posted[i] - per_get * i) is below 0: the one that does
 * by most is found in one pass. */
static double best_window(const uint64_t *posted, const uint64_t *done, size_t nr, double per_get)
{
	double start = -INFINITY, least = INFINITY, better = per_get;
	size_t from = 0;

	for (size_t j = 0; j < nr; j++) {
		double begun = (double)(posted[j] - posted[0]) - per_get * (double)j;
		double gain;

		if (begun > start) {
			start = begun;
			from = j;
		}
		gain = (double)(done[j] - posted[0]) - per_get * (double)(j + 1) - start;
		if (gain < least) {
			least = gain;
			better = (double)(done[j] - posted[from]) / (double)(j - from + 1);
		}
	}
	return better;
}

/* Dinkelbach's way to the least quotient: each round takes the window that beats the last one by most, and ends
 * when none does. It converges faster than linearly; the bound is for what rounding may do. */
double rv_bench_peak_ns(const uint64_t *posted, const uint64_t *done, size_t nr)
{
	double per_get;

	if (!nr)
		return NAN;
	per_get = (double)(done[nr - 1] - posted[0]) / (double)nr;
	for (unsigned round = 0; round < 64; round++) {
		double better = best_window(posted, done, nr, per_get);

		if (!(better < per_get))
			break;
		per_get = better;
	}
	return per_get;
}

const char *rv_bench_value(double v, int decimals, char text[RV_BENCH_VALUE])
{
	if (isfinite(v))
		snprintf(text, RV_BENCH_VALUE, "%.*f", decimals, v);
	else
		strcpy(text, "-");
	return text;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

void rv_bench_pattern(void *data, uint64_t len, uint64_t seed)
{
	uint8_t *p = data;

	for (uint64_t off = 0; off < len; off += 8) {
		uint64_t word = mix(seed + (off + 8) * 0x9e3779b97f4a7c15u);

		memcpy(p + off, &word, rv_min_u64(8, len - off));
	}
}
