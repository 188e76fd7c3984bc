/*
 * Content, where the owner said what it hashes to: landing memory is written by nobody any more.
 */
#include <errno.h>

#include "dataplane/base/hash.h"
#include "dataplane/engine/get_impl.h"

static void verify_end(struct rv_get *g)
{
	bool same = rv_hasher_sum(g->hasher) == g->xxh3;

	rv_hasher_destroy(g->hasher);
	g->hasher = NULL;
	if (same) {
		rv_get_report(g, g->took);
		return;
	}
	rv_get_say(g, "the bytes that arrived are not the bytes that were staged (xxh3)");
	rv_get_fail(g, -EBADMSG);
}

static void verify_slice(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, verify);
	uint64_t n = rv_min_u64(RV_GET_SLICE, g->len - g->hashed);

	if (!g->asker) {
		rv_hasher_destroy(g->hasher);
		g->hasher = NULL;
		rv_get_wind_up(g); /* its deadline passed meanwhile */
		return;
	}
	rv_hasher_add(g->hasher, rv_block_ptr(g->block) + g->hashed, n);
	g->hashed += n;
	if (g->hashed < g->len)
		rv_task_at(r, t, r->now_ns);
	else
		verify_end(g);
}

void rv_get_succeed(struct rv_get *g, enum rv_path took)
{
	if (!g->has_xxh3 || !g->len || took == RV_PATH_LOCAL) {
		rv_get_report(g, took);
		return;
	}
	g->hasher = rv_hasher_create();
	if (!g->hasher) {
		rv_get_say(g, "no memory to check the content");
		rv_get_fail(g, -ENOMEM);
		return;
	}
	g->state = GET_VERIFY;
	g->took = took;
	g->hashed = 0;
	g->verify.fn = verify_slice;
	rv_task_at(g->e->reactor, &g->deadline, rv_get_step_deadline(g));
	rv_task_at(g->e->reactor, &g->verify, rv_get_now(g));
}
