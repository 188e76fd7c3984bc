/*
 * bench_opt.h - the benches' command line: perftest's flags where they mean something here, and our own.
 *
 * One table is the parser and the help. What perftest has and this program has no meaning for is refused by name with
 * the reason; so is a flag that is only the other end's, or only the other program's: nothing is ignored in
 * silence. -F and -R are taken and do nothing, so that command lines written for perftest run.
 *
 * @thread init
 */
#ifndef RV_TOOLS_BENCH_OPT_H
#define RV_TOOLS_BENCH_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** Where servers listen unless told: perftest's port. */
#define RV_BENCH_PORT 18515

/** Sizes of -a: 2^1 to 2^23. */
#define RV_BENCH_ALL_FIRST 1
#define RV_BENCH_ALL_LAST  23

#define RV_BENCH_QP_MAX    64
#define RV_BENCH_DEPTH_MAX 4096

enum rv_bench_kind { RV_BENCH_BW, RV_BENCH_LAT };

enum rv_bench_path {
	RV_BENCH_PATH_ANY, /* not asked for: as a program's get that says nothing */
	RV_BENCH_PATH_UCX,
	RV_BENCH_PATH_VERBS,
	RV_BENCH_PATH_CHUNKED,
	RV_BENCH_PATH_LOCAL,
};

enum rv_bench_op {
	RV_BENCH_GET_PINNED,
	RV_BENCH_GET,
	RV_BENCH_GET_INTO,
	RV_BENCH_RAW,
	RV_BENCH_NODE
};

struct rv_bench_opts {
	enum rv_bench_kind kind;
	const char *host;   /* NULL: the server end */
	const char *socket; /* NULL: a private node */
	const char *device; /* NULL: any */
	const char *json_file;
	uint64_t size, iterations;
	uint64_t duration_s;   /* 0: count iterations instead */
	uint32_t ib_port, gid; /* UINT32_MAX: not given */
	uint32_t qps, depth;
	uint32_t batch; /* 0: gets one by one */
	uint16_t port;
	enum rv_bench_path path;
	enum rv_bench_op op;
	bool all, no_peak, gbits, json, cpu, validate;
	bool help, version;
};

/** "rv_get_bw" or "rv_get_lat". */
const char *rv_bench_prog(enum rv_bench_kind kind);

const char *rv_bench_op_name(enum rv_bench_op op);

/**
 * Read a command line.
 *
 * @param[out] o  filled in, with defaults for what was not said; its texts point into @argv. After a failure only
 *                `host` is to be trusted: it tells whose command line it was
 * @param why     on failure one line: the flag and the reason
 * @return 0 or -EINVAL
 */
int rv_bench_opts_parse(enum rv_bench_kind kind, int argc, char **argv, struct rv_bench_opts *o,
			char *why, size_t cap);

void rv_bench_opts_help(enum rv_bench_kind kind, FILE *to);

#endif
