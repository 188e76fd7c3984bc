/*
 * rv_get_lat - how long one get takes, one after another; shaped like ib_read_lat.
 *
 * A time runs from the call to the bytes: of get and get_into their copy belongs to it. Ending the lease, giving
 * the memory back and comparing the bytes do not.
 */
#include <errno.h>
#include <stdlib.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tools/bench_main.h"
#include "tools/bench_raw.h"

/* Raw reads of a run that has a time instead of a number: more are not begun. */
#define RAW_MAX 10000000u

struct times {
	uint64_t *ns;
	size_t nr, cap;
};

static int note(struct times *t, uint64_t ns)
{
	if (t->nr == t->cap) {
		size_t cap = t->cap ? 2 * t->cap : 4096;
		uint64_t *more = realloc(t->ns, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		t->ns = more;
		t->cap = cap;
	}
	t->ns[t->nr++] = ns;
	return 0;
}

/* What a get fills in. */
struct got {
	struct rv_buf buf; /* get_pinned's view; get_into's memory, made once */
	void *data;
	uint64_t len, lease;
};

static int fetch(const struct rv_bench_client *b, struct rv_handle h, const struct rv_opts *opts,
		 struct got *g)
{
	struct rv_client *c = b->end.session[0];

	switch (b->o->op) {
	case RV_BENCH_GET:
		return rv_get(c, h, opts, &g->data, &g->len, &g->lease);
	case RV_BENCH_GET_INTO:
		return rv_get_into(c, h, opts, g->buf.data, b->size, &g->len, &g->lease);
	default:
		return rv_get_pinned(c, h, opts, &g->buf, &g->lease);
	}
}

/* @return 0, or 1 after one line was printed */
static int one(struct rv_bench_client *b, uint64_t i, struct got *g, struct times *t)
{
	struct rv_how how = {0};
	struct rv_opts opts = rv_bench_client_opts(b, &how);
	struct rv_handle h = rv_bench_client_slot(b, i);
	uint64_t begun, ended;
	int rc;

	begun = rv_clock_ns();
	rc = fetch(b, h, &opts, g);
	ended = rv_clock_ns();
	if (rc)
		return rv_bench_client_failed(b, "get");
	if (note(t, ended - begun))
		rc = rv_bench_fail(b->o, "get: out of memory for one time more");
	if (!rc && b->o->op == RV_BENCH_GET_PINNED)
		rc = rv_bench_client_got(b, i, g->buf.data, g->buf.len, how.path);
	else if (!rc)
		rc = rv_bench_client_got(b, i, g->data ? g->data : g->buf.data, g->len, how.path);
	if (b->o->op == RV_BENCH_GET_PINNED)
		rv_buf_free(&g->buf);
	rv_free(g->data);
	g->data = NULL;
	if (rv_detach(b->end.session[0], h, g->lease) && !rc)
		rc = rv_bench_client_failed(b, "detach");
	return rc ? rc : rv_bench_client_keep(b, ended);
}

/* Inside the node, one after another. */
static int measure_raw(struct rv_bench_client *b, struct rv_bench_row *row)
{
	uint64_t room = b->o->duration_s ? RAW_MAX : b->o->iterations;
	struct rv_raw raw = {.depth = 1, .iterations = room};
	int rc;

	raw.began_ns = calloc(room, sizeof(uint64_t));
	raw.ended_ns = calloc(room, sizeof(uint64_t));
	if (!raw.began_ns || !raw.ended_ns)
		rc = rv_bench_fail(b->o, "out of memory for the times of all reads");
	else
		rc = rv_bench_raw(b, &raw);
	for (uint64_t i = 0; !rc && i < raw.done_nr; i++)
		raw.ended_ns[i] -= raw.began_ns[i];
	row->ns = (double)(raw.last_ns - raw.first_ns);
	row->iterations = raw.done_nr;
	if (!rc)
		rv_bench_lat_of(raw.ended_ns, raw.done_nr, &row->lat);
	free(raw.began_ns);
	free(raw.ended_ns);
	return rc;
}

static int measure(struct rv_bench_client *b, struct rv_bench_row *row)
{
	const struct rv_bench_opts *o = b->o;
	struct times t = {0};
	struct got g = {.data = NULL};
	uint64_t began = rv_clock_ns();
	uint64_t until = began + RV_SEC(o->duration_s);
	int rc = 0;

	if (o->op == RV_BENCH_RAW || o->op == RV_BENCH_NODE)
		return measure_raw(b, row);
	if (o->op == RV_BENCH_GET_INTO && rv_alloc_pinned(b->end.session[0], b->size, &g.buf))
		return rv_bench_client_failed(b, "memory for get_into");
	for (uint64_t i = 0; !rc && (o->duration_s ? rv_clock_ns() < until : i < o->iterations);
	     i++)
		rc = one(b, i, &g, &t);
	row->ns = (double)(rv_clock_ns() - began);
	row->iterations = t.nr;
	rv_bench_lat_of(t.ns, t.nr, &row->lat);
	free(t.ns);
	rv_buf_free(&g.buf);
	return rc;
}

int main(int argc, char **argv)
{
	return rv_bench_main(RV_BENCH_LAT, argc, argv, measure);
}
