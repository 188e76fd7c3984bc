/*
 * bench_end.h - one end of a bench: a node of its own, or a running daemon, and the sessions with it.
 *
 *   rv_bench_end_start: private node (unless --socket) -> sessions -> its files are gone -> what it is
 *   rv_bench_end_stop:  sessions -> node
 *
 * A private node's folder exists only until the sessions are open: a process that is killed leaves nothing behind.
 *
 * @thread the main one
 */
#ifndef RV_TOOLS_BENCH_END_H
#define RV_TOOLS_BENCH_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/client/rv.h"
#include "control/config/config.h"
#include "tools/bench_opt.h"
#include "tools/node.h"

/** Longest complaint. */
#define RV_BENCH_WHY 640

struct rv_bench_end {
	const struct rv_bench_opts *o;
	struct rv_client *session[RV_BENCH_QP_MAX];
	unsigned session_nr;
	uint16_t port;    /* where the node listens */
	bool emulated;    /* its UCX has no native lane: GETs are software */
	char fabric[64];  /* "ucx tcp"; "" without one */
	char version[64]; /* of UCX; "" when not told */
	char verbs[64];   /* how verbs ends keys; "" without verbs */
	char boot[40];    /* names this host until its next boot; "" when not told */

	/* Its own. */
	struct rv_config *cfg;
	struct rv_node *node;
	char dir[128];
};

/**
 * One line on stderr: program, side, what failed.
 * @return 1, the exit code
 */
int rv_bench_fail(const struct rv_bench_opts *o, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/**
 * Get ready.
 *
 * @param sessions  how many to open
 * @return 0, or 1 after one line was printed; nothing is left to stop then
 * @cost half a second to a second with a private node
 */
int rv_bench_end_start(struct rv_bench_end *e, const struct rv_bench_opts *o, unsigned sessions);

/** @return 0, or 1 if the node could not end in good order, after one line was printed */
int rv_bench_end_stop(struct rv_bench_end *e);

#endif
