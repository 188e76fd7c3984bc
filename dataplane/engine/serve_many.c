/*
 * The owner side of many short gets in one exchange. What does not go along, for whatever reason, is asked for alone
 * and gets its answer there.
 */
#include <errno.h>

#include "dataplane/base/probe.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/serve_impl.h"
#include "dataplane/mem/region.h"

/* @return whether there are bytes to be sent, from where */
static bool find_bytes(struct rv_msg_serve_many *m, const struct rv_slot *slot, struct rv_along *s)
{
	if (slot->block->arena->region) {
		s->bytes = m->buf + s->off;
		return rv_block_read(slot->block, 0, m->buf + s->off, s->len) == 0;
	}
	s->bytes = rv_block_ptr(slot->block);
	s->block = slot->block;
	rv_block_hold(s->block);
	return true;
}

/* @return whether it goes along: it is there, wanted at this length, and there is room for it */
static bool place_one(struct rv_engine *e, struct rv_msg_serve_many *m, const struct rv_slot *slot,
		      struct rv_peer_one *one)
{
	uint64_t at = rv_align_up(m->used, RV_MANY_ALIGN);
	struct rv_along s = {.engine = e, .off = (uint32_t)at};

	if (!slot || slot->len > rv_min_u64(m->many->each, e->conf.bytes_max))
		return false;
	one->off = 0;
	one->len = (uint32_t)slot->len;
	if (!slot->len)
		return true;
	s.len = one->len;
	if (at > m->cap || s.len > m->cap - at || !find_bytes(m, slot, &s))
		return false;
	m->along[m->along_nr++] = s;
	m->used = s.off + s.len;
	one->off = s.off;
	return true;
}

static void tell_one(struct rv_engine *e, const struct rv_msg_serve_many *m,
		     const struct rv_slot *slot, struct rv_peer_one *one)
{
	enum rv_path_reason why = rv_serve_without_offer(e, slot);

	rv_counter_add(&e->stats.path[why], 1);
	rv_probe_acquire(slot->rec.id, m->worker, (int)why, 0);
	one->rc = 0;
	one->has_xxh3 = slot->has_xxh3;
	one->xxh3 = slot->xxh3;
}

void rv_engine_run_serve_many(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_serve_many *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	for (uint32_t i = 0; i < m->many->nr; i++) {
		struct rv_peer_one *one = &m->many->one[i];
		struct rv_slot *slot;

		if (one->rc != -EAGAIN || rv_engine_of(e->conf.set, one->local) != e)
			continue;
		slot = rv_slot_find(&e->store, one->local);
		if (place_one(e, m, slot, one))
			tell_one(e, m, slot, one);
	}
	rv_cell_reply(p, c);
}

void rv_engine_run_served(struct rv_port *p, struct rv_cell *c)
{
	const struct rv_msg_served *m = (void *)c->body;

	for (uint32_t i = 0; i < m->along_nr; i++) {
		if (m->along[i].block && m->along[i].engine == m->engine)
			rv_block_drop(m->along[i].block);
	}
	rv_cell_reply(p, c);
}
