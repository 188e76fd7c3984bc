#include "tools/bench_main.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tools/bench_serve.h"

enum { EXIT_USAGE = 2 };

static int one_size(struct rv_bench_client *b, struct rv_bench_report *r, uint64_t size, bool first,
		    rv_bench_measure_fn *measure)
{
	struct rv_bench_row row = {.size = size, .ns = NAN, .peak_ns = NAN, .cpu = NAN};
	struct rv_bench_cpu before;
	int rc = rv_bench_client_begin(b, size);

	if (!rc) {
		if (first)
			rv_bench_report_begin(r, b);
		before = rv_bench_cpu_now();
		rc = measure(b, &row);
		row.cpu = rv_bench_cpu_between(before, rv_bench_cpu_now());
	}
	if (!rc)
		rv_bench_report_row(r, &row);
	if (!rc) /* else the server may be gone, and each word to it would wait */
		rv_bench_client_end(b);
	return rc;
}

static int all_sizes(struct rv_bench_client *b, rv_bench_measure_fn *measure)
{
	struct rv_bench_report r = {0};
	int rc = 0;

	if (!b->o->all)
		rc = one_size(b, &r, b->o->size, true, measure);
	for (unsigned i = RV_BENCH_ALL_FIRST; b->o->all && !rc && i <= RV_BENCH_ALL_LAST; i++)
		rc = one_size(b, &r, 1u << i, i == RV_BENCH_ALL_FIRST, measure);
	return rv_bench_report_end(&r, rc == 0) || rc;
}

/* Told before the measuring, not after it. */
static int check_json_file(const struct rv_bench_opts *o)
{
	int fd = o->json ? open(o->json_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;

	if (fd >= 0) {
		close(fd);
		unlink(o->json_file);
	} else if (o->json && (errno != EEXIST || access(o->json_file, W_OK))) {
		return rv_bench_fail(o, "report: cannot write %s: %m", o->json_file);
	}
	return 0;
}

static int run(const struct rv_bench_opts *o, rv_bench_measure_fn *measure)
{
	static struct rv_bench_client b;
	int rc = check_json_file(o), stopped;

	if (!rc)
		rc = rv_bench_client_start(&b, o);
	if (rc)
		return rc;
	rc = all_sizes(&b, measure);
	stopped = rv_bench_client_stop(&b);
	return rc ? rc : stopped;
}

int rv_bench_main(enum rv_bench_kind kind, int argc, char **argv, rv_bench_measure_fn *measure)
{
	struct rv_bench_opts o;
	char why[RV_BENCH_WHY] = "";

	if (rv_bench_opts_parse(kind, argc, argv, &o, why, sizeof(why))) {
		rv_bench_fail(&o, "usage: %s", why);
		return EXIT_USAGE;
	}
	if (o.help) {
		rv_bench_opts_help(kind, stdout);
		return 0;
	}
	if (o.version) {
		printf("%s %s\n", rv_bench_prog(kind), RV_VERSION);
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	return o.host ? run(&o, measure) : rv_bench_serve(&o);
}
