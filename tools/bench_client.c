#include "tools/bench_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tools/bench_math.h"
#include "tools/bench_serve.h"

#define KEEP_EVERY_NS (RV_BENCH_KEEP_NS / 6)

/* A get that is told to go by RDMA waits for its owner's endpoint, even if the owner is gone: not for as long as
 * programs would. No path is so slow that the bytes in flight take longer. */
#define GET_TIMEOUT_NS RV_SEC(10)
#define LEAST_PER_USEC 1u /* bytes */

/* ---- asking the server ---- */

/* @return 0 with one line of answer, or a negative errno that rv_last_error() explains */
static int ask(struct rv_bench_client *b, char out[RV_BENCH_LINE], const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int ask(struct rv_bench_client *b, char out[RV_BENCH_LINE], const char *fmt, ...)
{
	char line[RV_BENCH_LINE];
	void *reply = NULL;
	uint64_t len = 0;
	va_list ap;
	int rc;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	rc = rv_call(b->end.session[0], b->peer, RV_BENCH_HANDLER, line, strlen(line), NULL, &reply,
		     &len);
	if (rc)
		return rc;
	snprintf(out, RV_BENCH_LINE, "%.*s", (int)rv_min_u64(len, RV_BENCH_LINE - 1),
		 (const char *)reply);
	rv_free(reply);
	return 0;
}

static int meet(struct rv_bench_client *b)
{
	const struct rv_bench_opts *o = b->o;
	char line[RV_BENCH_LINE], boot[40], version[64];
	uint64_t worker;

	if (rv_peer_add_at(b->end.session[0], NULL, o->host, o->port, &worker))
		return rv_bench_fail(o, "connect to %s port %u: %s; is a server started there?",
				     o->host, o->port, rv_last_error());
	snprintf(b->peer, sizeof(b->peer), "%" PRIu64, worker);
	if (ask(b, line, "hello"))
		return rv_bench_fail(o, "hello to %s port %u: %s%s", o->host, o->port,
				     rv_last_error(),
				     strstr(rv_last_error(), RV_BENCH_HANDLER)
					     ? "; no rv_get_bw or rv_get_lat serves there"
					     : "");
	if (sscanf(line, "%39s %63s", boot, version) != 2)
		return rv_bench_fail(o, "hello to %s port %u: its answer cannot be read", o->host,
				     o->port);
	b->host_known = b->end.boot[0] && strcmp(boot, "-") != 0;
	b->same_host = b->host_known && strcmp(boot, b->end.boot) == 0;
	if (strcmp(version, "-") != 0)
		strcpy(b->version, version);
	return 0;
}

int rv_bench_client_start(struct rv_bench_client *b, const struct rv_bench_opts *o)
{
	int rc;

	*b = (struct rv_bench_client){.o = o};
	rc = rv_bench_end_start(&b->end, o, o->qps);
	if (rc)
		return rc;
	if (o->path == RV_BENCH_PATH_LOCAL) {
		b->host_known = b->same_host = true;
		return 0;
	}
	rc = meet(b);
	if (rc)
		rv_bench_end_stop(&b->end);
	return rc;
}

int rv_bench_client_stop(struct rv_bench_client *b)
{
	return rv_bench_end_stop(&b->end);
}

/* ---- staging ---- */

static int stage_here(struct rv_bench_client *b, uint64_t seed, struct rv_handle *h)
{
	struct rv_client *c = b->end.session[0];
	struct rv_opts opts = {.session = true};
	struct rv_buf buf;

	if (rv_alloc_pinned(c, b->size, &buf))
		return rv_bench_fail(b->o, "stage %" PRIu64 " bytes: %s", b->size, rv_last_error());
	rv_bench_pattern(buf.data, b->size, seed);
	if (rv_register_pinned(c, &buf, &opts, h) == 0)
		return 0;
	rv_bench_fail(b->o, "stage %" PRIu64 " bytes: %s", b->size, rv_last_error());
	rv_buf_free(&buf);
	return 1;
}

static int stage_there(struct rv_bench_client *b, uint64_t seed, struct rv_handle *h)
{
	bool plain = b->o->path == RV_BENCH_PATH_CHUNKED;
	char line[RV_BENCH_LINE], text[RV_HANDLE_TEXT_MAX], kind[16];

	if (ask(b, line, "stage %" PRIu64 " %" PRIu64 " %s", b->size, seed,
		plain ? "plain" : "pinned"))
		return rv_bench_fail(b->o, "stage %" PRIu64 " bytes at the server: %s", b->size,
				     rv_last_error());
	if (sscanf(line, "%39s %15s", text, kind) != 2 || rv_handle_parse(text, h))
		return rv_bench_fail(
			b->o, "stage %" PRIu64 " bytes at the server: its answer cannot be read",
			b->size);
	if ((b->o->path == RV_BENCH_PATH_UCX || b->o->path == RV_BENCH_PATH_VERBS) &&
	    strcmp(kind, "pinned") != 0) {
		b->slot_nr++; /* staged: it is to be dropped */
		return rv_bench_fail(
			b->o,
			"stage %" PRIu64
			" bytes at the server: it has no registered memory for them (its end needs "
			"--path %s, too, or memory.registered_bytes_budget is spent)",
			b->size, b->o->path == RV_BENCH_PATH_UCX ? "ucx" : "verbs");
	}
	return 0;
}

static int expect(struct rv_bench_client *b, unsigned i, uint64_t seed)
{
	b->expect[i] = malloc(b->size);
	if (!b->expect[i])
		return rv_bench_fail(b->o, "data validation: out of memory");
	rv_bench_pattern(b->expect[i], b->size, seed);
	return 0;
}

static int stage(struct rv_bench_client *b)
{
	unsigned nr = b->o->validate ? RV_BENCH_SLOTS : 1;

	while (b->slot_nr < nr) {
		uint64_t seed = rv_random_u64();
		int rc = b->o->path == RV_BENCH_PATH_LOCAL
				 ? stage_here(b, seed, &b->slot[b->slot_nr])
				 : stage_there(b, seed, &b->slot[b->slot_nr]);

		if (rc)
			return rc;
		b->slot_nr++;
		if (b->o->validate && expect(b, b->slot_nr - 1, seed))
			return 1;
	}
	b->next_keep_ns = rv_clock_ns() + KEEP_EVERY_NS;
	return 0;
}

/* The first get over RDMA waits for the endpoint; without being told to, it would go in chunks. */
static int warm_up(struct rv_bench_client *b)
{
	struct rv_client *c = b->end.session[0];
	struct rv_how how = {0};
	struct rv_opts opts = rv_bench_client_opts(b, &how);
	struct rv_buf buf;
	uint64_t lease;
	int rc = -ENOTSUP;

	if (opts.path == RV_GET_PATH_ANY && b->end.fabric[0]) {
		opts.path = RV_GET_PATH_RDMA;
		rc = rv_get_pinned(c, b->slot[0], &opts, &buf, &lease);
		opts.path = RV_GET_PATH_ANY;
	}
	if (rc)
		rc = rv_get_pinned(c, b->slot[0], &opts, &buf, &lease);
	if (rc)
		return rv_bench_client_failed(b, "first get");
	snprintf(b->path, sizeof(b->path), "%s", how.path);
	rc = rv_bench_client_got(b, 0, buf.data, buf.len, how.path);
	rv_buf_free(&buf);
	if (rv_detach(c, b->slot[0], lease) && !rc)
		rc = rv_bench_fail(b->o, "detach: %s", rv_last_error());
	b->ways = (struct rv_bench_ways){0}; /* of those that are measured */
	return rc;
}

int rv_bench_client_begin(struct rv_bench_client *b, uint64_t size)
{
	uint64_t at_once = (uint64_t)b->o->qps * rv_max_u64(b->o->depth, b->o->batch);
	int rc;

	b->size = size;
	b->timeout_ns = GET_TIMEOUT_NS +
			rv_min_u64(size * at_once / LEAST_PER_USEC * RV_US(1), RV_SEC(86400));
	b->ways = (struct rv_bench_ways){0};
	rc = stage(b);
	return rc ? rc : warm_up(b);
}

void rv_bench_client_end(struct rv_bench_client *b)
{
	char line[RV_BENCH_LINE], text[RV_HANDLE_TEXT_MAX];

	for (unsigned i = 0; i < b->slot_nr; i++) {
		rv_handle_format(b->slot[i], text, sizeof(text));
		/* A server that is gone has dropped them; one that does not hear this does so later. */
		if (b->o->path == RV_BENCH_PATH_LOCAL)
			rv_drop(b->end.session[0], b->slot[i]);
		else
			(void)ask(b, line, "drop %s", text);
	}
	for (unsigned i = 0; i < RV_BENCH_SLOTS; i++) {
		free(b->expect[i]);
		b->expect[i] = NULL;
	}
	b->slot_nr = 0;
}

/* ---- gets ---- */

struct rv_opts rv_bench_client_opts(const struct rv_bench_client *b, struct rv_how *how)
{
	static const enum rv_get_path paths[] = {
		[RV_BENCH_PATH_ANY] = RV_GET_PATH_ANY,
		[RV_BENCH_PATH_UCX] = RV_GET_PATH_RDMA,
		[RV_BENCH_PATH_VERBS] = RV_GET_PATH_RDMA,
		[RV_BENCH_PATH_CHUNKED] = RV_GET_PATH_CHUNKED,
		[RV_BENCH_PATH_LOCAL] = RV_GET_PATH_ANY,
	};

	return (struct rv_opts){
		.path = paths[b->o->path],
		.timeout_ns = b->timeout_ns,
		.how = how,
	};
}

struct rv_handle rv_bench_client_slot(const struct rv_bench_client *b, uint64_t i)
{
	return b->slot[i % b->slot_nr];
}

static void count(struct rv_bench_ways *w, const char *path, uint64_t nr)
{
	unsigned i = 0;

	while (i < RV_BENCH_WAYS - 1 && w->way[i].nr && strcmp(w->way[i].name, path) != 0)
		i++;
	if (!w->way[i].nr)
		snprintf(w->way[i].name, sizeof(w->way[i].name), "%s", path);
	w->way[i].nr += nr;
}

static int compare(const struct rv_bench_client *b, uint64_t i, const uint8_t *data)
{
	const uint8_t *right = b->expect[i % b->slot_nr];
	uint64_t at = 0;

	if (!right || memcmp(data, right, b->size) == 0)
		return 0;
	while (data[at] == right[at])
		at++;
	return rv_bench_fail(b->o,
			     "data validation: get %" PRIu64 " of %" PRIu64
			     " bytes: wrong from byte %" PRIu64 " on",
			     i, b->size, at);
}

int rv_bench_client_got(struct rv_bench_client *b, uint64_t i, const void *data, uint64_t len,
			const char *path)
{
	static const char *const begins[] = {
		[RV_BENCH_PATH_ANY] = "",        [RV_BENCH_PATH_UCX] = "ucx",
		[RV_BENCH_PATH_VERBS] = "verbs", [RV_BENCH_PATH_CHUNKED] = "chunked",
		[RV_BENCH_PATH_LOCAL] = "local",
	};
	const char *want = begins[b->o->path];

	if (strncmp(path, want, strlen(want)) != 0)
		return rv_bench_fail(b->o, "get: it came by %s although --path %s was said", path,
				     want);
	if (len != b->size)
		return rv_bench_fail(b->o, "get: %" PRIu64 " bytes came instead of %" PRIu64, len,
				     b->size);
	count(&b->ways, path, 1);
	return compare(b, i, data);
}

int rv_bench_client_read(struct rv_bench_client *b, uint64_t nr, const void *data)
{
	count(&b->ways, b->path, nr);
	return data ? compare(b, 0, data) : 0;
}

int rv_bench_client_failed(const struct rv_bench_client *b, const char *what)
{
	return rv_bench_fail(b->o, "%s of %" PRIu64 " bytes: %s", what, b->size, rv_last_error());
}

int rv_bench_client_keep(struct rv_bench_client *b, uint64_t now_ns)
{
	char line[RV_BENCH_LINE], text[RV_HANDLE_TEXT_MAX];

	if (now_ns < b->next_keep_ns || b->o->path == RV_BENCH_PATH_LOCAL)
		return 0;
	for (unsigned i = 0; i < b->slot_nr; i++) {
		rv_handle_format(b->slot[i], text, sizeof(text));
		if (ask(b, line, "keep %s", text))
			return rv_bench_fail(b->o, "keep at the server: %s", rv_last_error());
	}
	b->next_keep_ns = now_ns + KEEP_EVERY_NS;
	return 0;
}
