/*
 * Content, where the owner said what it hashes to: landing memory is written by nobody any more. What a client may
 * write at any time is copied out by the kernel first.
 */
#include <errno.h>
#include <stdlib.h>

#include "dataplane/base/hash.h"
#include "dataplane/engine/get_impl.h"
#include "dataplane/mem/region.h"

static void stop_hashing(struct rv_get *g)
{
	rv_hasher_destroy(g->hasher);
	free(g->bounce);
	g->hasher = NULL;
	g->bounce = NULL;
}

static void verify_end(struct rv_get *g)
{
	bool same = rv_hasher_sum(g->hasher) == g->xxh3;

	stop_hashing(g);
	if (same) {
		rv_get_report(g, g->took);
		return;
	}
	rv_get_say(g, "the bytes that arrived are not the bytes that were staged (xxh3)");
	rv_get_fail(g, -EBADMSG);
}

/* @return bytes hashed, or 0: they could not be read */
static uint64_t hash_some(struct rv_get *g, uint64_t n)
{
	if (!g->bounce) {
		rv_hasher_add(g->hasher, rv_get_dst(g) + g->hashed, n);
		return n;
	}
	if (rv_block_read(g->block, g->off + g->hashed, g->bounce, n))
		return 0;
	rv_hasher_add(g->hasher, g->bounce, n);
	return n;
}

static void verify_slice(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, verify);
	uint64_t n = rv_min_u64(RV_GET_SLICE, g->len - g->hashed);

	if (!g->asker) {
		stop_hashing(g);
		rv_get_wind_up(g); /* its deadline passed meanwhile */
		return;
	}
	n = hash_some(g, n);
	if (!n) {
		stop_hashing(g);
		rv_get_say(g, "the buffer cannot be read to check the content");
		rv_get_fail(g, -EIO);
		return;
	}
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
	g->bounce = g->hasher && g->block == g->into ? malloc(RV_GET_SLICE) : NULL;
	if (!g->hasher || (g->block == g->into && !g->bounce)) {
		stop_hashing(g);
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
