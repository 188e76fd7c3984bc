#include "tools/bench_math.h"

#include <errno.h>
#include <math.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"
#include "tools/bench_opt.h"

static void assert_near(double got, double want)
{
	if (isnan(want)) {
		assert_true(isnan(got));
		return;
	}
	if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
		fail_msg("%.12g instead of %.12g", got, want);
}

/* ---- latencies ---- */

static const struct {
	uint64_t ns[12];
	size_t nr;
	struct rv_bench_lat want;
} spreads[] = {
	{{0}, 0, {NAN, NAN, NAN, NAN, NAN, NAN, NAN}},
	{{5000}, 1, {5, 5, 5, 5, NAN, 5, 5}},
	{{3000, 1000}, 2, {1, 3, 2, 2, 1, 3, 3}},
	{{9000, 1000, 2000}, 3, {1, 9, 2, 4, 3.559026084010437, 9, 9}},
	/* The textbook's eight: mean 5, deviation 2. */
	{{9000, 2000, 4000, 4000, 5000, 4000, 7000, 5000}, 8, {2, 9, 4.5, 5, 2, 9, 9}},
	{{7, 7, 7, 7}, 4, {.007, .007, .007, .007, 0, .007, .007}},
	{{1, 2}, 2, {.001, .002, .0015, .0015, .0005, .002, .002}},
};

static void latencies_are_those_of_the_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(spreads); i++) {
		uint64_t ns[12];
		struct rv_bench_lat got;

		memcpy(ns, spreads[i].ns, sizeof(ns));
		rv_bench_lat_of(ns, spreads[i].nr, &got);
		assert_near(got.min, spreads[i].want.min);
		assert_near(got.max, spreads[i].want.max);
		assert_near(got.typical, spreads[i].want.typical);
		assert_near(got.avg, spreads[i].want.avg);
		assert_near(got.stdev, spreads[i].want.stdev);
		assert_near(got.p99, spreads[i].want.p99);
		assert_near(got.p999, spreads[i].want.p999);
	}
}

/* Times 1 us, 2 us, ... nr us, backwards: the rank is the value. */
static const struct {
	size_t nr;
	double p99, p999;
} ranks[] = {
	{1, 1, 1},         {10, 10, 10},       {99, 99, 99},       {100, 99, 100},
	{101, 100, 101},   {200, 198, 200},    {999, 990, 999},    {1000, 990, 999},
	{1001, 991, 1000}, {2000, 1980, 1998}, {5000, 4950, 4995},
};

static void a_percentile_is_the_nearest_rank(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(ranks); i++) {
		uint64_t *ns = calloc(ranks[i].nr, sizeof(*ns));
		struct rv_bench_lat got;

		assert_non_null(ns);
		for (size_t k = 0; k < ranks[i].nr; k++)
			ns[k] = RV_US(ranks[i].nr - k);
		rv_bench_lat_of(ns, ranks[i].nr, &got);
		assert_near(got.p99, ranks[i].p99);
		assert_near(got.p999, ranks[i].p999);
		assert_near(got.typical, (double)(ranks[i].nr + 1) / 2);
		free(ns);
	}
}

/* ---- bandwidth ---- */

static const struct {
	uint64_t bytes, iterations;
	double ns, mib, gbit, mpps;
} rates[] = {
	{1048576, 1, 1e9, 1, 0.008388608, 1e-6},
	{65536, 1000, 1e9, 62.5, 0.524288, 0.001},
	{65536, 16, 1e6, 1000, 8.388608, 0.016},
	{125000000, 1, 1e9, 119.20928955078125, 1, 1e-6},
	{1, 1000000, 1e9, 0.95367431640625, 0.008, 1},
	{8388608, 5000, 5e9, 8000, 67.108864, 0.001},
	{68719476736, 1, 1e9, 65536, 549.755813888, 1e-6},
	{4096, 0, 1e9, 0, 0, 0},
	{4096, 10, 0, NAN, NAN, NAN},
	{4096, 10, NAN, NAN, NAN, NAN},
};

static void rates_are_bytes_times_iterations_by_time(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rates); i++) {
		assert_near(rv_bench_mib(rates[i].bytes, rates[i].iterations, rates[i].ns),
			    rates[i].mib);
		assert_near(rv_bench_gbit(rates[i].bytes, rates[i].iterations, rates[i].ns),
			    rates[i].gbit);
		assert_near(rv_bench_mpps(rates[i].iterations, rates[i].ns), rates[i].mpps);
	}
}

static const struct {
	uint64_t posted[8], done[8];
	size_t nr;
	double ns; /* of one get in the best window */
} windows[] = {
	{{0}, {0}, 0, NAN},
	{{100}, {350}, 1, 250},
	/* One after another: the best is the quickest get. */
	{{0, 100, 150}, {100, 150, 400}, 3, 50},
	/* All at once, ended at once: three in 90. */
	{{10, 10, 10}, {100, 100, 100}, 3, 30},
	/* Two fast ones in a slow run, as one window: (270 - 210) / 2. */
	{{0, 210, 210, 300}, {200, 270, 270, 600}, 4, 30},
	/* The whole run is the best there is. */
	{{0, 1, 2, 3}, {100, 101, 102, 103}, 4, 25.75},
	/* A pause in the middle does not count against what came before it. */
	{{0, 10, 20, 5000}, {10, 20, 30, 9000}, 4, 10},
};

static void the_peak_is_the_best_window(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(windows); i++)
		assert_near(rv_bench_peak_ns(windows[i].posted, windows[i].done, windows[i].nr),
			    windows[i].ns);
}

static uint64_t next(uint64_t *x)
{
	*x = *x * 6364136223846793005u + 1442695040888963407u;
	return *x >> 33;
}

static double peak_by_looking_at_each_pair(const uint64_t *posted, const uint64_t *done, size_t nr)
{
	double best = INFINITY;

	for (size_t i = 0; i < nr; i++)
		for (size_t j = i; j < nr; j++)
			best = fmin(best, (double)(done[j] - posted[i]) / (double)(j - i + 1));
	return best;
}

static void the_peak_is_what_a_look_at_each_pair_finds(void **state)
{
	uint64_t x = 1, posted[300], done[300];

	(void)state;
	for (unsigned run = 0; run < 200; run++) {
		size_t nr = 1 + next(&x) % 300, depth = 1 + next(&x) % 32;
		double peak;

		posted[0] = RV_SEC(1000);
		for (size_t i = 0; i < nr; i++) {
			uint64_t before = i ? done[i - 1] : posted[0];

			if (i)
				posted[i] = rv_max_u64(posted[i - 1],
						       i >= depth ? done[i - depth] : posted[0]) +
					    next(&x) % 50;
			done[i] = rv_max_u64(before, posted[i]) + 1 + next(&x) % 1000;
		}
		peak = rv_bench_peak_ns(posted, done, nr);
		assert_near(peak, peak_by_looking_at_each_pair(posted, done, nr));
		assert_true(peak <= (double)(done[nr - 1] - posted[0]) / (double)nr);
	}
}

static const struct {
	double v;
	int decimals;
	const char *text;
} values[] = {
	{0, 2, "0.00"}, {1.005, 1, "1.0"},  {1234.5678, 2, "1234.57"}, {0.0149004, 6, "0.014900"},
	{NAN, 2, "-"},  {INFINITY, 2, "-"},
};

static void what_was_not_measured_prints_a_dash(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(values); i++) {
		char text[RV_BENCH_VALUE];

		assert_string_equal(rv_bench_value(values[i].v, values[i].decimals, text),
				    values[i].text);
	}
}

static void a_pattern_differs_with_seed_and_place(void **state)
{
	uint8_t a[4096], b[4096];

	(void)state;
	rv_bench_pattern(a, sizeof(a), 7);
	for (unsigned len = 0; len < 40; len++) {
		memset(b, 0xee, sizeof(b));
		rv_bench_pattern(b, len, 7);
		assert_memory_equal(a, b, len);
		assert_int_equal(b[len], 0xee); /* nothing is written behind its end */
	}
	rv_bench_pattern(b, sizeof(b), 8);
	for (size_t at = 0; at < sizeof(a); at += 8) {
		assert_memory_not_equal(a + at, b + at, 8);
		if (at)
			assert_memory_not_equal(a, a + at, 8);
	}
}

/* ---- the command line ---- */

#define BW  RV_BENCH_BW
#define LAT RV_BENCH_LAT

static int parse(enum rv_bench_kind kind, const char *line, struct rv_bench_opts *o, char *why,
		 size_t cap)
{
	static char words[512];
	char *argv[32] = {words};
	int argc = 1;

	snprintf(words, sizeof(words), "%s", line);
	for (char *w = strtok(words, " "); w; w = strtok(NULL, " ")) {
		assert_true(argc < 31);
		argv[argc++] = strcmp(w, "''") == 0 ? w + 2 : w;
	}
	return rv_bench_opts_parse(kind, argc, argv, o, why, cap);
}

/* Bad lines: what the one line of complaint must contain. */
static const struct {
	enum rv_bench_kind kind;
	const char *line, *says, *too;
} bad[] = {
	{BW, "h -s 0", "-s", "0"},
	{BW, "h -s 65G", "-s", "64G"},
	{BW, "h -s 64Q", "-s", "64Q"},
	{BW, "h -s 1MB", "-s", "1MB"},
	{BW, "h -s -1", "-s", "-1"},
	{BW, "h -s 18446744073709551616", "-s", "size"},
	{BW, "h -s 18446744073709551615G", "-s", "size"},
	{BW, "h -s", "-s", "SIZE"},
	{BW, "h --size", "--size", "SIZE"},
	{BW, "h -n 0", "-n", "from 1"},
	{BW, "h -n 10x", "-n", "10x"},
	{BW, "h -D 0", "-D", "from 1"},
	{BW, "h -D 1 -n 5", "-D", "-n"},
	{BW, "h -a -s 64", "-a", "-s"},
	{BW, "h -t 0", "-t", "from 1"},
	{BW, "h -t 4097", "-t", "4096"},
	{BW, "h -q 65", "-q", "64"},
	{BW, "h -p 65536", "-p", "65535"},
	{BW, "h -p 0", "-p", "server"},
	{BW, "h -x 256", "-x", "255"},
	{BW, "h -i 1", "-i", "-d"},
	{BW, "h -d ''", "-d", "device"},
	{BW, "h --batch 4 -t 8", "--batch", "-t"},
	{BW, "h --batch 4 -q 2", "--batch", "-q"},
	{BW, "h --batch 4 --op get", "--batch", "get_many"},
	{BW, "h --op raw --path chunked", "raw", "no RDMA reads"},
	{BW, "h --op raw -q 2", "-q", "no sessions"},
	{BW, "h --op node --data_validation", "--data_validation", "nobody sees"},
	{LAT, "h --op node --path local", "node", "another node"},
	{BW, "h --op raw --batch 2", "--batch", "raw"},
	{BW, "h --op put", "put", "get_into"},
	{BW, "h --path roce", "roce", "verbs"},
	{BW, "h --path rdma", "rdma", "chunked"},
	{BW, "h --path chunked -d lo", "-d", "--path"},
	{BW, "h --path chunked -x 3", "-x", "--path"},
	{BW, "h --path local", "local", "localhost"},
	{BW, "localhost --path local -p 5", "-p", "no server"},
	{BW, "h --socket /s -d mlx5_0", "-d", "--socket"},
	{BW, "h --socket /s -d mlx5_0 -i 1", "-d", "--socket"},
	{BW, "h --socket /s -x 3", "-x", "--socket"},
	{BW, "h --socket /s --op raw", "--op", "raw"},
	{BW, "h --socket ''", "--socket", "path"},
	{BW, "h other", "other", "HOST"},
	{BW, "''", "HOST", "name"},
	{BW, "h --out_json=yes", "--out_json", "no value"},
	{BW, "h --out_json_file", "--out_json_file", "FILE"},
	{BW, "h -b", "-b", "refused"},
	{BW, "h --bidirectional", "--bidirectional", "refused"},
	{BW, "h -m 4096", "-m", "MTU"},
	{BW, "h --mtu 4096", "--mtu", "MTU"},
	{BW, "h --mtu=4096", "--mtu", "MTU"},
	{BW, "h --run_infinitely", "--run_infinitely", "-D"},
	{BW, "h -Z", "-Z", "--help"},
	{BW, "h --nonsense", "--nonsense", "--help"},
	{BW, "h --iter 5", "--iter", "--help"},
	/* The server end stages what it is asked for. */
	{BW, "-s 64", "-s", "client"},
	{BW, "-a", "-a", "client"},
	{BW, "-n 5", "-n", "client"},
	{BW, "--op get", "--op", "client"},
	{BW, "--data_validation", "--data_validation", "client"},
	{BW, "--path local", "local", "no server"},
	{BW, "--socket /s -p 5", "-p", "--socket"},
	{BW, "--socket /s --path ucx", "--path", "--socket"},
	/* One get at a time. */
	{LAT, "h -t 4", "-t", "one get at a time"},
	{LAT, "h -q 4", "-q", "one get at a time"},
	{LAT, "h -N", "-N", "one get at a time"},
	{LAT, "h --batch 4", "--batch", "one get at a time"},
	{LAT, "h --report_gbits", "--report_gbits", "one get at a time"},
};

static void a_bad_line_is_refused_by_name(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(bad); i++) {
		struct rv_bench_opts o;
		char why[300] = "";

		if (parse(bad[i].kind, bad[i].line, &o, why, sizeof(why)) != -EINVAL ||
		    !strstr(why, bad[i].says) || !strstr(why, bad[i].too) || strchr(why, '\n'))
			fail_msg("\"%s\": \"%s\"", bad[i].line, why);
	}
}

/* Whose line it was is known even where it is bad, wherever the HOST stands. */
static void a_bad_line_still_tells_its_side(void **state)
{
	static const struct {
		const char *line, *host;
	} lines[] = {
		{"-s 0 far", "far"},       {"far -s 0", "far"},  {"-m 4096 far", "far"},
		{"--mtu 4096 far", "far"}, {"-Z -b far", "far"}, {"-s 0", NULL},
		{"-m 4096", NULL},         {"--mtu=4096", NULL}, {"-b -- -far", "-far"},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(lines); i++) {
		struct rv_bench_opts o;
		char why[300];

		assert_int_equal(parse(BW, lines[i].line, &o, why, sizeof(why)), -EINVAL);
		if (lines[i].host)
			assert_string_equal(o.host, lines[i].host);
		else
			assert_null(o.host);
	}
}

static void defaults_are_perftests_where_it_has_them(void **state)
{
	struct rv_bench_opts o;
	char why[300];

	(void)state;
	assert_int_equal(parse(BW, "", &o, why, sizeof(why)), 0);
	assert_null(o.host);
	assert_int_equal(o.port, 18515);
	assert_int_equal(parse(BW, "far", &o, why, sizeof(why)), 0);
	assert_string_equal(o.host, "far");
	assert_int_equal(o.size, 65536);
	assert_int_equal(o.iterations, 1000);
	assert_int_equal(o.duration_s, 0);
	assert_int_equal(o.qps, 1);
	assert_int_equal(o.path, RV_BENCH_PATH_ANY);
	assert_int_equal(o.op, RV_BENCH_GET_PINNED);
	assert_string_equal(o.json_file, "perftest_out.json");
	assert_false(o.json || o.all || o.gbits || o.cpu || o.no_peak || o.validate);
	assert_int_equal(parse(LAT, "far", &o, why, sizeof(why)), 0);
	assert_int_equal(o.size, 2);
	assert_int_equal(o.depth, 1);
}

static const struct {
	const char *line;
	uint64_t size, iterations, duration_s;
	uint32_t depth, qps, batch;
	uint16_t port;
} good[] = {
	{"far -s 4096", 4096, 1000, 0, 16, 1, 0, 18515},
	{"-s4K far", 4096, 1000, 0, 16, 1, 0, 18515},
	{"--size=8M far", 8388608, 1000, 0, 16, 1, 0, 18515},
	{"--size 64G far", RV_GIB(64), 1000, 0, 16, 1, 0, 18515},
	{"far -n 1 -t 4096 -q 64", 65536, 1, 0, 4096, 64, 0, 18515},
	{"-FRNp 7 far", 65536, 1000, 0, 16, 1, 0, 7},
	{"-FRNp7 far", 65536, 1000, 0, 16, 1, 0, 7},
	{"--duration=3 --tx-depth 2 --qp 3 far --port 65535", 65536, 1000, 3, 2, 3, 0, 65535},
	{"--batch 32 far --iters 64", 65536, 64, 0, 16, 1, 32, 18515},
	{"-s 1 -s 2 far", 2, 1000, 0, 16, 1, 0, 18515},
};

static void a_good_line_is_taken(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(good); i++) {
		struct rv_bench_opts o;
		char why[300] = "";

		if (parse(BW, good[i].line, &o, why, sizeof(why)))
			fail_msg("\"%s\": %s", good[i].line, why);
		assert_string_equal(o.host, "far");
		assert_int_equal(o.size, good[i].size);
		assert_int_equal(o.iterations, good[i].iterations);
		assert_int_equal(o.duration_s, good[i].duration_s);
		assert_int_equal(o.depth, good[i].depth);
		assert_int_equal(o.qps, good[i].qps);
		assert_int_equal(o.batch, good[i].batch);
		assert_int_equal(o.port, good[i].port);
	}
}

static void switches_and_words_are_taken(void **state)
{
	struct rv_bench_opts o;
	char why[300];

	(void)state;
	assert_int_equal(parse(BW,
			       "-aNd mlx5_0 -i 2 -x 3 --path ucx --op get_into --report_gbits "
			       "--out_json --cpu_util --data_validation far",
			       &o, why, sizeof(why)),
			 0);
	assert_true(o.all && o.no_peak && o.gbits && o.json && o.cpu && o.validate);
	assert_string_equal(o.device, "mlx5_0");
	assert_int_equal(o.ib_port, 2);
	assert_int_equal(o.gid, 3);
	assert_int_equal(o.path, RV_BENCH_PATH_UCX);
	assert_int_equal(o.op, RV_BENCH_GET_INTO);

	assert_int_equal(parse(LAT,
			       "--socket /s --path local --out_json_file=x.json --op get localhost",
			       &o, why, sizeof(why)),
			 0);
	assert_string_equal(o.socket, "/s");
	assert_int_equal(o.path, RV_BENCH_PATH_LOCAL);
	assert_true(o.json);
	assert_string_equal(o.json_file, "x.json");
	assert_int_equal(o.op, RV_BENCH_GET);

	assert_int_equal(parse(BW, "--path local 127.0.0.1", &o, why, sizeof(why)), 0);
	assert_int_equal(parse(BW, "--path local ::1", &o, why, sizeof(why)), 0);
	assert_int_equal(parse(LAT, "-p 0 --path chunked -FR", &o, why, sizeof(why)), 0);
	assert_int_equal(o.port, 0);
	assert_int_equal(o.path, RV_BENCH_PATH_CHUNKED);
	assert_int_equal(parse(BW, "--help", &o, why, sizeof(why)), 0);
	assert_true(o.help);
	assert_int_equal(parse(BW, "-V", &o, why, sizeof(why)), 0);
	assert_true(o.version);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(latencies_are_those_of_the_table),
		cmocka_unit_test(a_percentile_is_the_nearest_rank),
		cmocka_unit_test(rates_are_bytes_times_iterations_by_time),
		cmocka_unit_test(the_peak_is_the_best_window),
		cmocka_unit_test(the_peak_is_what_a_look_at_each_pair_finds),
		cmocka_unit_test(what_was_not_measured_prints_a_dash),
		cmocka_unit_test(a_pattern_differs_with_seed_and_place),
		cmocka_unit_test(a_bad_line_is_refused_by_name),
		cmocka_unit_test(a_bad_line_still_tells_its_side),
		cmocka_unit_test(defaults_are_perftests_where_it_has_them),
		cmocka_unit_test(a_good_line_is_taken),
		cmocka_unit_test(switches_and_words_are_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
