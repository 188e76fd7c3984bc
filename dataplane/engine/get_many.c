/*
 * The consumer side of many short gets of one owner, in one exchange:
 *
 *   start --a place for all--> MANY --answer--> [hash] --> finish
 *     '-- no place, no cell ------'--refused--------------> each alone (-EAGAIN)
 *
 * The answer is the last word on the leases too: none is left, so nothing is to be given back when it fails, and a
 * payload is right if its bytes are here: it came in the answer to the request that named it, before the deadline.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/hash.h"
#include "dataplane/base/log.h"
#include "dataplane/base/probe.h"
#include "dataplane/engine/get_impl.h"

/* What the first answer has room for, for each payload; and what one has at most, together. */
#define EACH_FIRST RV_KIB(4)
#define PLACE_MAX  RV_GET_SLICE
/* What an answer says of each payload stands before them all. */
#define EACH_SAID  64u

static struct rv_block *landing(struct rv_engine *e, uid_t uid, uint64_t len)
{
	struct rv_pool_req req = {
		.cls = {.kind = RV_ARENA_LANDING, .uid = uid},
		.len = len,
		.now = true,
	};

	return rv_pool_alloc(&e->pool, &req) ? NULL : req.block;
}

/* Half as much again as the last ones took: then what comes leaves little of it unused. */
static struct rv_block *place_for(const struct rv_msg_get_many *m)
{
	struct rv_engine *e = m->engine;
	uint64_t each = e->many_each ? e->many_each : EACH_FIRST;
	uint64_t len = m->many->nr * (each + each / 2 + EACH_SAID);

	return landing(e, m->uid, rv_min_u64(len, PLACE_MAX));
}

/* What came is much shorter than its place: the rest of that is for others. */
static void fit_block(struct rv_engine *e, struct rv_msg_get_many *m, uint64_t used)
{
	struct rv_block *roomy = m->block, *b;

	if (used > roomy->len / 2)
		return;
	b = landing(e, m->uid, used);
	if (!b)
		return;
	memcpy(rv_block_ptr(b), rv_block_ptr(roomy), used);
	rv_block_drop(roomy);
	m->block = b;
}

static void take_one(struct rv_engine *e, struct rv_msg_get_many *m, struct rv_peer_one *one)
{
	const uint8_t *bytes = rv_block_ptr(m->block) + one->off;

	if (one->has_xxh3 && one->len && rv_hash_xxh3(bytes, one->len) != one->xxh3)
		one->rc = -EBADMSG;
	rv_stats_operation(&e->stats, RV_OP_GET, one->rc);
	rv_probe_get_start(m->worker, one->len, 0);
	rv_probe_get_end(m->worker, one->len, one->rc, m->elapsed_ns);
	if (one->rc)
		return;
	rv_counter_add(&e->stats.bytes_in, one->len);
	rv_counter_add(&e->stats.get_bytes[RV_PATH_CHUNKED], one->len);
}

/* They have one hold together, if any is not empty. */
static void take_all(struct rv_engine *e, struct rv_msg_get_many *m)
{
	uint64_t used = 0, along = 0, bytes = 0;

	for (uint32_t i = 0; i < m->many->nr; i++) {
		struct rv_peer_one *one = &m->many->one[i];

		if (one->rc == -EAGAIN)
			continue;
		if (!one->rc)
			take_one(e, m, one);
		if (one->rc || !one->len)
			continue;
		along++;
		bytes += rv_align_up(one->len, RV_MANY_ALIGN);
		used = rv_max_u64(used, (uint64_t)one->off + one->len);
	}
	if (!along) {
		rv_block_drop(m->block);
		m->block = NULL;
		return;
	}
	e->many_each = (uint32_t)(bytes / along);
	fit_block(e, m, used);
}

static void refuse(struct rv_port *p, struct rv_cell *c, int rc, const char *text)
{
	struct rv_msg_get_many *m = (void *)c->body;

	m->rc = rc;
	snprintf(m->text, sizeof(m->text), "%s", text);
	rv_cell_reply(p, c);
}

/* The owner cannot be reached, or did not answer: asked for alone each would come to the same. */
static bool ends_all(int rc)
{
	return rc == -EHOSTUNREACH || rc == -ECONNRESET || rc == -ETIMEDOUT;
}

static void answered(struct rv_port *p, struct rv_cell *mine)
{
	const struct rv_peer_call *call = (void *)mine->body;
	struct rv_cell *asker = mine->ctx;
	struct rv_msg_get_many *m = (void *)asker->body;
	struct rv_engine *e = m->engine;

	m->elapsed_ns = e->reactor->now_ns - m->began_ns;
	rv_load_leave(e, m->load);
	rv_counter_sub(&e->stats.gets, 1);
	m->rc = !call->rc || ends_all(call->rc) ? call->rc : -EAGAIN;
	snprintf(m->text, sizeof(m->text), "%s", call->text);
	if (call->rc) {
		rv_block_drop(m->block);
		m->block = NULL;
		for (uint32_t i = 0; i < m->many->nr && ends_all(call->rc); i++)
			rv_stats_operation(&e->stats, RV_OP_GET, call->rc);
	} else {
		take_all(e, m);
	}
	rv_cell_free(p, mine);
	rv_cell_reply(p, asker);
}

static void start(struct rv_port *p, struct rv_cell *asker, struct rv_cell *mine)
{
	struct rv_msg_get_many *m = (void *)asker->body;
	struct rv_engine *e = m->engine;
	uint64_t now = e->reactor->now_ns;

	m->began_ns = now;
	m->many->each = (uint32_t)e->conf.bytes_max;
	/* What could be read by RDMA is asked for alone, with an offer. */
	if (m->path == RV_GET_ANY && rv_get_rdma_possible(e))
		m->many->each = (uint32_t)rv_min_u64(m->many->each,
						     rv_max_u64(1, e->conf.rdma_min_bytes) - 1);
	for (uint32_t i = 0; i < m->many->nr; i++)
		m->many->one[i].rc = -EAGAIN;
	rv_counter_add(&e->stats.gets, 1);
	*(struct rv_peer_call *)(void *)mine->body = (struct rv_peer_call){
		.op = RV_PEER_MANY,
		.handle = {m->worker, 0},
		.deadline_ns = m->deadline_ns != RV_NEVER
				       ? m->deadline_ns
				       : rv_sat_add(now, e->conf.call_timeout_ns),
		.many = m->many,
		.bytes_max = (uint32_t)m->block->len,
		.dst = rv_block_ptr(m->block),
	};
	mine->ctx = asker;
	mine->done = answered;
	e->conf.calls->ops->start(e->conf.calls, p, mine);
}

void rv_engine_run_get_many(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_get_many *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	struct rv_cell *mine;

	RV_CHECK(m->many->nr && m->many->nr <= RV_PEER_MANY_MAX);
	RV_CHECK(m->worker != e->conf.worker && m->path != RV_GET_RDMA);
	m->block = NULL;
	mine = e->draining || !e->conf.bytes_max ? NULL : rv_cell_alloc(p);
	m->load = mine ? rv_load_enter(e, m->worker) : NULL;
	m->block = m->load ? place_for(m) : NULL;
	if (m->block) {
		start(p, c, mine);
		return;
	}
	if (m->load)
		rv_load_leave(e, m->load);
	if (mine)
		rv_cell_free(p, mine);
	refuse(p, c, -EAGAIN, "");
}
