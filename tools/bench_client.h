/*
 * bench_client.h - the client end: it has the server stage payloads, and fetches them as the command line says.
 *
 *   meet (peer-add, hello) -> for each size: stage -> one get to warm up -> measured gets -> drop
 *
 * With --path local there is no server: the client stages on its own node. With --data_validation a size has
 * several slots with different bytes, fetched in turn, so that bytes left over from an earlier get are seen.
 */
#ifndef RV_TOOLS_BENCH_CLIENT_H
#define RV_TOOLS_BENCH_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench_end.h"

#define RV_BENCH_SLOTS 3
#define RV_BENCH_WAYS  4

/** How often gets took which way. */
struct rv_bench_ways {
	struct {
		char name[64];
		uint64_t nr;
	} way[RV_BENCH_WAYS];
};

struct rv_bench_client {
	const struct rv_bench_opts *o;
	struct rv_bench_end end;
	char peer[24]; /* the server's WorkerId */
	bool same_host;
	bool host_known;  /* both ends could tell */
	char version[64]; /* of UCX at the server; "" when not told */
	char path[64];    /* how the last warm-up get came */

	/* Of the size that is being measured. */
	uint64_t size;
	uint64_t timeout_ns; /* of one get */
	unsigned slot_nr;
	struct rv_handle slot[RV_BENCH_SLOTS];
	uint8_t *expect[RV_BENCH_SLOTS]; /* NULL without --data_validation */
	uint64_t next_keep_ns;
	struct rv_bench_ways ways;
};

/** Start this end and get to know the server. @return 0, or 1 after one line was printed */
int rv_bench_client_start(struct rv_bench_client *b, const struct rv_bench_opts *o);

/** @return 0, or 1 after one line was printed */
int rv_bench_client_stop(struct rv_bench_client *b);

/** Stage @size bytes and fetch them once, which sets the way up. @return 0, or 1 after one line was printed */
int rv_bench_client_begin(struct rv_bench_client *b, uint64_t size);

/** Drop what was staged. */
void rv_bench_client_end(struct rv_bench_client *b);

/** The options of a get of this run. */
struct rv_opts rv_bench_client_opts(const struct rv_bench_client *b, struct rv_how *how);

/** What is fetched by get number @i. */
struct rv_handle rv_bench_client_slot(const struct rv_bench_client *b, uint64_t i);

/**
 * Count the way that get number @i took and compare the bytes if that was asked for.
 * @return 0, or 1 after one line was printed
 */
int rv_bench_client_got(struct rv_bench_client *b, uint64_t i, const void *data, uint64_t len,
			const char *path);

/** Count @nr raw reads of slot 0; @data, if not NULL, is compared. @return 0, or 1 after one line was printed */
int rv_bench_client_read(struct rv_bench_client *b, uint64_t nr, const void *data);

/** One line for a get that failed. @return 1 */
int rv_bench_client_failed(const struct rv_bench_client *b, const char *what);

/** Tell the server, every now and then, that this client is alive. @return 0, or 1 after one line was printed */
int rv_bench_client_keep(struct rv_bench_client *b, uint64_t now_ns);

#endif
