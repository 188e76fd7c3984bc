/*
 * Raw reads: one payload read over and over under one lease, for those who measure what the RDMA path alone carries.
 *
 *   the get's read --> up to `depth` READs into the one destination, each again as it ends --> the last of them --> over
 *
 * Nothing falls back; the lease is renewed, and proven at the end, as that of any get. Once the asker was answered its
 * memory is not touched any more.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/err.h"
#include "dataplane/engine/get_impl.h"

struct read {
	struct rv_fabric_get get;
	struct rv_get_raw_run *run;
	uint64_t i;
};

struct rv_get_raw_run {
	struct rv_get *g;
	unsigned out; /* READs under way */
	uint64_t begun;
	int rc; /* what went wrong first */
	struct read read[];
};

static void read_done(struct rv_fabric_get *fg, int rc);

static struct rv_raw *asked(const struct rv_get_raw_run *run)
{
	return run->g->req ? run->g->req->raw : NULL;
}

static bool wants_more(const struct rv_get_raw_run *run, const struct rv_raw *raw, uint64_t now_ns)
{
	if (run->rc || run->g->late || !raw || run->begun == raw->iterations)
		return false;
	return !raw->until_ns || now_ns < raw->until_ns;
}

static void post(struct read *r)
{
	struct rv_get_raw_run *run = r->run;
	struct rv_get *g = run->g;
	struct rv_raw *raw = asked(run);
	struct rv_fabric *f = g->fabric;
	uint64_t now_ns = g->e->reactor->conf.clock();
	int rc;

	if (!wants_more(run, raw, now_ns))
		return;
	r->i = run->begun;
	r->get = rv_get_read(g, read_done, r);
	if (!run->begun)
		raw->first_ns = now_ns;
	if (raw->began_ns)
		raw->began_ns[r->i] = now_ns;
	rc = f->ops->get(f, g->e->reactor->index, &r->get);
	if (rc) {
		run->rc = rc;
		return;
	}
	run->begun++;
	run->out++;
}

static void over(struct rv_get_raw_run *run)
{
	struct rv_get *g = run->g;
	struct rv_raw *raw = asked(run);
	int rc = run->rc;

	free(run);
	if (g->late) {
		rv_get_wind_up(g);
		return;
	}
	if (rc) {
		rv_get_say(g, "a read failed: %s", rv_err_name(rc));
	} else if (!rv_proof_holds(&g->proof, g->e->reactor->conf.clock())) {
		rv_get_say(g, "lease lost: the owner may have reused the bytes meanwhile");
		rc = -EKEYREVOKED;
	} else if (raw->bytes) {
		memcpy(raw->bytes, rv_get_dst(g), g->len);
	}
	if (!rc)
		g->req->len = g->len;
	rv_get_answer(g, rc);
	rv_get_wind_up(g);
}

static void read_done(struct rv_fabric_get *fg, int rc)
{
	struct read *r = fg->ctx;
	struct rv_get_raw_run *run = r->run;
	struct rv_raw *raw = asked(run);

	run->out--;
	if (rc && !run->rc)
		run->rc = rc;
	if (raw && !rc) {
		raw->last_ns = run->g->e->reactor->conf.clock();
		if (raw->ended_ns)
			raw->ended_ns[raw->done_nr] = raw->last_ns;
		raw->done_nr++;
	}
	post(r);
	if (!run->out)
		over(run);
}

uint64_t rv_get_raw_deadline(const struct rv_get *g)
{
	const struct rv_raw *raw = g->req ? g->req->raw : NULL;

	return raw && raw->done_nr ? rv_sat_add(raw->last_ns, g->e->conf.call_timeout_ns) : 0;
}

void rv_get_begin_raw(struct rv_get *g)
{
	const struct rv_raw *raw = g->req->raw;
	struct rv_get_raw_run *run = calloc(1, sizeof(*run) + raw->depth * sizeof(struct read));

	if (!run) {
		rv_get_fail(g, -ENOMEM);
		return;
	}
	run->g = g;
	g->state = GET_RDMA;
	rv_task_at(g->e->reactor, &g->deadline, rv_get_step_deadline(g));
	for (unsigned i = 0; i < raw->depth && !run->rc; i++) {
		run->read[i].run = run;
		post(&run->read[i]);
	}
	if (!run->out)
		over(run);
}
