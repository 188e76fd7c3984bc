/*
 * rv_get_bw - how much gets carry with several in flight; shaped like ib_read_bw.
 *
 * The time of a run goes from the first get's beginning to the last one's end. Leases are ended and memory is given
 * back meanwhile, as a program would; the peak is the best window of the run (bench_math.h).
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tools/bench_main.h"
#include "tools/bench_raw.h"

/* No get takes so long: a node answers or gives up sooner (rendezvous.call_timeout). */
#define STUCK_MS 180000

struct bw;

/* One get in flight, over and over. */
struct flight {
	struct bw *bw;
	struct rv_client *c;
	uint64_t i; /* number of the get */
	struct rv_how how;
	struct rv_buf buf; /* get_pinned's view */
	void *data;        /* get's copy */
	uint8_t *into;     /* get_into's place */
	uint64_t len, lease;
	bool idle; /* the session took no more just now */
};

struct bw {
	struct rv_bench_client *b;
	struct flight *flight;
	unsigned flight_nr;
	struct rv_buf into[RV_BENCH_QP_MAX];
	uint64_t *posted, *done; /* NULL: no peak is asked for */
	uint64_t until_ns;       /* 0: count */
	uint64_t began_ns, ended_ns;
	uint64_t begun, ended;
	uint64_t detaching; /* leases that are being ended */
	unsigned idle_nr;
	int rc; /* 1: failed, and a line was printed */
};

static bool wanted(const struct bw *w, uint64_t now)
{
	if (w->rc)
		return false;
	return w->until_ns ? now < w->until_ns : w->begun < w->b->o->iterations;
}

static void done(void *user, int rc);

static int post(struct flight *f)
{
	const struct rv_bench_client *b = f->bw->b;
	struct rv_handle h = rv_bench_client_slot(b, f->i);
	struct rv_opts opts = rv_bench_client_opts(b, &f->how);

	switch (b->o->op) {
	case RV_BENCH_GET:
		return rv_get_nb(f->c, h, &opts, &f->data, &f->len, &f->lease, done, f);
	case RV_BENCH_GET_INTO:
		if (b->o->validate)
			memset(f->into, 0x5a,
			       b->size); /* what an earlier get left is not to pass */
		return rv_get_into_nb(f->c, h, &opts, f->into, b->size, &f->len, &f->lease, done,
				      f);
	default:
		return rv_get_pinned_nb(f->c, h, &opts, &f->buf, &f->lease, done, f);
	}
}

static void begin(struct flight *f)
{
	struct bw *w = f->bw;
	uint64_t now = rv_clock_ns();
	int rc;

	w->idle_nr -= f->idle;
	f->idle = false;
	if (!wanted(w, now))
		return;
	f->i = w->begun;
	rc = post(f);
	if (rc == -EAGAIN) {
		f->idle = true;
		w->idle_nr++;
		return;
	}
	if (rc) {
		w->rc = rv_bench_client_failed(w->b, "get");
		return;
	}
	if (!w->begun)
		w->began_ns = now;
	if (w->posted)
		w->posted[w->begun] = now;
	w->begun++;
}

static void detached(void *user, int rc)
{
	struct bw *w = user;

	w->detaching--;
	if (rc && !w->rc)
		w->rc = rv_bench_client_failed(w->b, "detach");
}

/* What came, and giving it back. */
static void finish(struct flight *f)
{
	struct bw *w = f->bw;
	enum rv_bench_op op = w->b->o->op;
	const void *data = op == RV_BENCH_GET_PINNED ? f->buf.data
			   : op == RV_BENCH_GET      ? f->data
						     : f->into;
	uint64_t len = op == RV_BENCH_GET_PINNED ? f->buf.len : f->len;

	if (!w->rc)
		w->rc = rv_bench_client_got(w->b, f->i, data, len, f->how.path);
	if (op == RV_BENCH_GET_PINNED)
		rv_buf_free(&f->buf);
	rv_free(f->data);
	f->data = NULL;
	if (rv_detach_nb(f->c, rv_bench_client_slot(w->b, f->i), f->lease, detached, w) == 0)
		w->detaching++;
	else if (!w->rc)
		w->rc = rv_bench_client_failed(w->b, "detach");
}

static void done(void *user, int rc)
{
	struct flight *f = user;
	struct bw *w = f->bw;
	uint64_t now = rv_clock_ns();

	if (w->done)
		w->done[w->ended] = now;
	w->ended++;
	w->ended_ns = now;
	if (!rc)
		finish(f);
	else if (!w->rc)
		w->rc = rv_bench_client_failed(w->b, "get");
	begin(f);
}

static void wait_and_progress(struct bw *w)
{
	struct rv_bench_end *e = &w->b->end;
	struct pollfd p[RV_BENCH_QP_MAX];
	int nr;

	for (unsigned i = 0; i < e->session_nr; i++)
		p[i] = (struct pollfd){.fd = rv_event_fd(e->session[i]), .events = POLLIN};
	nr = poll(p, e->session_nr, STUCK_MS);
	if (nr == 0 || (nr < 0 && errno != EINTR)) {
		w->rc = rv_bench_fail(w->b->o, "get: no answer in %d s", STUCK_MS / 1000);
		return;
	}
	for (unsigned i = 0; i < e->session_nr; i++) {
		int rc = nr > 0 && p[i].revents ? rv_progress(e->session[i]) : 0;

		if (rc < 0 && !w->rc)
			w->rc = rv_bench_fail(w->b->o, "session: %s", rv_last_error());
	}
}

static void run(struct bw *w)
{
	for (unsigned i = 0; i < w->flight_nr; i++)
		begin(&w->flight[i]);
	while (w->begun > w->ended || (w->idle_nr && !w->rc)) {
		uint64_t ended = w->ended;

		wait_and_progress(w);
		if (w->rc && w->ended == ended)
			return; /* what is still out ends with its session */
		for (unsigned i = 0; w->idle_nr && i < w->flight_nr; i++)
			if (w->flight[i].idle)
				begin(&w->flight[i]);
		if (!w->rc)
			w->rc = rv_bench_client_keep(w->b, rv_clock_ns());
	}
	while (!w->rc && w->detaching)
		wait_and_progress(w);
}

/* ---- batches: N at once by one blocking call, one batch after another ---- */

/* What came of one get of a batch, and giving it back. */
static void finish_one(struct bw *w, uint64_t i, struct rv_result *r)
{
	struct rv_client *c = w->b->end.session[0];

	if (!w->rc)
		w->rc = rv_bench_client_got(w->b, i, r->buf.data, r->buf.len, r->how.path);
	rv_buf_free(&r->buf);
	if (rv_detach_nb(c, rv_bench_client_slot(w->b, i), r->lease, detached, w) == 0)
		w->detaching++;
	else if (!w->rc)
		w->rc = rv_bench_client_failed(w->b, "detach");
}

static void one_batch(struct bw *w, struct rv_handle *h, struct rv_result *res)
{
	struct rv_opts opts = rv_bench_client_opts(w->b, NULL);
	uint64_t nr = w->b->o->batch, now = rv_clock_ns();

	if (!w->until_ns)
		nr = rv_min_u64(nr, w->b->o->iterations - w->begun);
	for (uint64_t i = 0; i < nr; i++)
		h[i] = rv_bench_client_slot(w->b, w->begun + i);
	if (rv_get_many(w->b->end.session[0], h, nr, &opts, res)) {
		w->rc = rv_bench_client_failed(w->b, "get");
		return; /* the views and leases of the others end with the session */
	}
	w->ended_ns = rv_clock_ns();
	if (!w->begun)
		w->began_ns = now;
	for (uint64_t i = 0; i < nr; i++) {
		if (w->posted) {
			w->posted[w->begun + i] = now;
			w->done[w->begun + i] = w->ended_ns;
		}
		finish_one(w, w->begun + i, &res[i]);
	}
	w->begun += nr;
	w->ended += nr;
	/* Nobody waits for these: but they are not to pile up. */
	while (!w->rc && w->detaching > w->b->o->batch)
		wait_and_progress(w);
}

static void run_batches(struct bw *w)
{
	uint32_t nr = w->b->o->batch;
	struct rv_handle *h = calloc(nr, sizeof(*h));
	struct rv_result *res = calloc(nr, sizeof(*res));

	if (!h || !res)
		w->rc = rv_bench_fail(w->b->o, "get: out of memory for a batch");
	while (wanted(w, rv_clock_ns())) {
		one_batch(w, h, res);
		if (!w->rc)
			w->rc = rv_bench_client_keep(w->b, rv_clock_ns());
	}
	while (!w->rc && w->detaching)
		wait_and_progress(w);
	free(h);
	free(res);
}

/* ---- one size ---- */

static int prepare(struct bw *w)
{
	const struct rv_bench_opts *o = w->b->o;
	uint64_t depth = o->depth;

	/* With a time instead of a number nobody knows how many there will be: as in perftest there is no peak then. */
	if (!o->no_peak && !o->duration_s) {
		w->posted = calloc(o->iterations, sizeof(*w->posted));
		w->done = calloc(o->iterations, sizeof(*w->done));
		if (!w->posted || !w->done)
			return rv_bench_fail(o, "out of memory for the times of all gets: use -N");
	}
	w->flight = calloc(o->qps * depth, sizeof(*w->flight));
	if (!w->flight)
		return rv_bench_fail(o, "out of memory");
	for (unsigned q = 0; o->op == RV_BENCH_GET_INTO && q < o->qps; q++)
		if (rv_alloc_pinned(w->b->end.session[q], w->b->size * depth, &w->into[q]))
			return rv_bench_client_failed(w->b, "memory for get_into");
	/* Sessions take turns, so that a few gets are spread over all of them. */
	for (w->flight_nr = 0; w->flight_nr < o->qps * depth; w->flight_nr++) {
		unsigned q = w->flight_nr % o->qps, at = w->flight_nr / o->qps;
		struct flight *f = &w->flight[w->flight_nr];

		f->bw = w;
		f->c = w->b->end.session[q];
		if (o->op == RV_BENCH_GET_INTO)
			f->into = (uint8_t *)w->into[q].data + at * w->b->size;
	}
	return 0;
}

/* ---- inside the node ---- */

static int measure_raw(struct rv_bench_client *b, struct rv_bench_row *row)
{
	const struct rv_bench_opts *o = b->o;
	struct rv_raw raw = {
		.depth = o->depth,
		.iterations = o->duration_s ? UINT64_MAX : o->iterations,
	};
	bool peak = !o->no_peak && !o->duration_s;
	int rc;

	if (peak) {
		raw.began_ns = calloc(o->iterations, sizeof(uint64_t));
		raw.ended_ns = calloc(o->iterations, sizeof(uint64_t));
	}
	if (peak && (!raw.began_ns || !raw.ended_ns))
		rc = rv_bench_fail(o, "out of memory for the times of all reads: use -N");
	else
		rc = rv_bench_raw(b, &raw);
	row->iterations = raw.done_nr;
	row->ns = raw.done_nr ? (double)(raw.last_ns - raw.first_ns) : NAN;
	if (peak && !rc)
		row->peak_ns = rv_bench_peak_ns(raw.began_ns, raw.ended_ns, raw.done_nr);
	free(raw.began_ns);
	free(raw.ended_ns);
	return rc;
}

static int measure(struct rv_bench_client *b, struct rv_bench_row *row)
{
	/* Static: what a failed run left in flight may still end, inside rv_close(). */
	static struct bw w;

	if (b->o->op == RV_BENCH_RAW || b->o->op == RV_BENCH_NODE)
		return measure_raw(b, row);
	w = (struct bw){.b = b};
	w.rc = prepare(&w);
	if (w.rc)
		return w.rc;
	if (b->o->duration_s)
		w.until_ns = rv_clock_ns() + RV_SEC(b->o->duration_s);
	if (b->o->batch)
		run_batches(&w);
	else
		run(&w);
	row->iterations = w.ended;
	row->ns = w.ended ? (double)(w.ended_ns - w.began_ns) : NAN;
	if (w.posted && !w.rc)
		row->peak_ns = rv_bench_peak_ns(w.posted, w.done, w.ended);
	if (w.rc)
		return w.rc; /* the flights stay: see above */
	for (unsigned q = 0; q < b->o->qps; q++)
		rv_buf_free(&w.into[q]);
	free(w.posted);
	free(w.done);
	free(w.flight);
	return 0;
}

int main(int argc, char **argv)
{
	return rv_bench_main(RV_BENCH_BW, argc, argv, measure);
}
