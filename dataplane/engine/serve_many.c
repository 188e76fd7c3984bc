/*
 * The owner side of many short gets in one exchange. What does not go along, for whatever reason, is asked for alone
 * and gets its answer there.
 */
#include <errno.h>
#include <string.h>

#include "dataplane/base/probe.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/serve_impl.h"
#include "dataplane/mem/pieces.h"

/* What goes along: each has its place in the answer. */
struct along {
	struct rv_slot *slot[RV_PEER_MANY_MAX];
	struct rv_peer_one *one[RV_PEER_MANY_MAX];
	struct rv_piece piece[RV_PEER_MANY_MAX];
	size_t nr;
};

static void place_one(struct rv_engine *e, struct rv_msg_serve_many *m, struct rv_peer_one *one,
		      struct along *a)
{
	struct rv_slot *slot = rv_slot_find(&e->store, one->local);
	uint64_t at = rv_align_up(m->used, RV_MANY_ALIGN);

	if (!slot || slot->len > rv_min_u64(m->many->each, e->conf.bytes_max) ||
	    (slot->len && (at > m->cap || slot->len > m->cap - at)))
		return;
	a->slot[a->nr] = slot;
	a->one[a->nr] = one;
	a->piece[a->nr++] = (struct rv_piece){slot->block, m->buf + at, slot->len, 0};
	one->off = slot->len ? (uint32_t)at : 0;
	one->len = (uint32_t)slot->len;
	if (!slot->len)
		return;
	memset(m->buf + m->used, 0, at - m->used); /* what was here is another answer's */
	m->used = (uint32_t)(at + slot->len);
}

static void tell_one(struct rv_engine *e, const struct rv_msg_serve_many *m, struct rv_slot *slot,
		     struct rv_peer_one *one)
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
	struct along a;

	a.nr = 0;
	for (uint32_t i = 0; i < m->many->nr; i++) {
		struct rv_peer_one *one = &m->many->one[i];

		if (one->rc == -EAGAIN && rv_engine_of(e->conf.set, one->local) == e)
			place_one(e, m, one, &a);
	}
	rv_pieces_read(a.piece, a.nr);
	for (size_t i = 0; i < a.nr; i++) {
		if (a.piece[i].rc)
			memset(a.piece[i].dst, 0, a.piece[i].len);
		else
			tell_one(e, m, a.slot[i], a.one[i]);
	}
	rv_cell_reply(p, c);
}
