/*
 * The owner side of many short gets in one exchange. What does not go along, for whatever reason, is asked for alone
 * and gets its answer there.
 */
#include <errno.h>
#include <string.h>

#include "dataplane/base/probe.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/serve_impl.h"
#include "dataplane/mem/region.h"

/* Clients may write it at any time: then the kernel does the copying. */
static int copy_payload(const struct rv_slot *slot, uint8_t *dst)
{
	const struct rv_block *b = slot->block;

	if (b->arena->region || b->arena->cls.kind == RV_ARENA_SESSION)
		return rv_block_read(b, 0, dst, slot->len);
	memcpy(dst, rv_block_ptr(b), slot->len);
	return 0;
}

/* @return whether it is in the buffer now, at @at */
static bool put_payload(const struct rv_slot *slot, struct rv_msg_serve_many *m, uint64_t at)
{
	if (!slot->len)
		return true;
	if (at > m->cap || slot->len > m->cap - at || copy_payload(slot, m->buf + at))
		return false;
	memset(m->buf + m->used, 0, at - m->used); /* what was here is another answer's */
	m->used = (uint32_t)(at + slot->len);
	return true;
}

static void serve_one(struct rv_engine *e, struct rv_msg_serve_many *m, struct rv_peer_one *one)
{
	struct rv_slot *slot = rv_slot_find(&e->store, one->local);
	uint64_t at = rv_align_up(m->used, RV_MANY_ALIGN);
	enum rv_path_reason why;

	if (!slot || slot->len > rv_min_u64(m->many->each, e->conf.bytes_max) ||
	    !put_payload(slot, m, at))
		return;
	why = rv_serve_without_offer(e, slot);
	rv_counter_add(&e->stats.path[why], 1);
	rv_probe_acquire(slot->rec.id, m->worker, (int)why, 0);
	one->rc = 0;
	one->off = slot->len ? (uint32_t)at : 0;
	one->len = (uint32_t)slot->len;
	one->has_xxh3 = slot->has_xxh3;
	one->xxh3 = slot->xxh3;
}

void rv_engine_run_serve_many(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_serve_many *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	for (uint32_t i = 0; i < m->many->nr; i++) {
		struct rv_peer_one *one = &m->many->one[i];

		if (one->rc == -EAGAIN && rv_engine_of(e->conf.set, one->local) == e)
			serve_one(e, m, one);
	}
	rv_cell_reply(p, c);
}
