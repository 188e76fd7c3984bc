/*
 * What a reactor has, for people to look at.
 */
#include "dataplane/engine/export.h"
#include "dataplane/engine/msg.h"
#include "dataplane/engine/region.h"

static uint64_t left_ns(const struct rv_engine *e, const struct rv_task *t)
{
	if (!t->timer.armed)
		return RV_NEVER;
	return t->timer.deadline_ns > e->reactor->now_ns ? t->timer.deadline_ns - e->reactor->now_ns
							 : 0;
}

static void list_slots(struct rv_engine *e, struct rv_msg_list *m)
{
	const struct rv_slot *s;
	uint32_t pos = 0;

	m->total = e->store.slots.live_nr;
	while (m->nr < m->max && (s = rv_idtab_next(&e->store.slots, &pos))) {
		m->out.slot[m->nr++] = (struct rv_slot_info){
			.id = s->rec.id,
			.len = s->len,
			.refcount = s->refcount,
			.locks = s->locks,
			.uid = s->uid,
			.pinned = s->pinned,
			.ttl_left_ns = left_ns(e, &s->ttl),
		};
	}
}

static const char *fence_of(const struct rv_lease *l)
{
	if (l->kind != RV_LEASE_RDMA)
		return NULL;
	return l->export ? l->export->fabric->fence : "none";
}

static void list_leases(struct rv_engine *e, struct rv_msg_list *m)
{
	const struct rv_lease *l;
	uint32_t pos = 0;

	m->total = e->store.leases.live_nr;
	while (m->nr < m->max && (l = rv_idtab_next(&e->store.leases, &pos))) {
		if (!l->slot)
			continue;
		m->out.lease[m->nr++] = (struct rv_lease_info){
			.id = l->rec.id,
			.slot = l->slot->rec.id,
			.worker = l->worker,
			.age_ns = e->reactor->now_ns - l->granted_ns,
			.left_ns = left_ns(e, &l->deadline),
			.kind = l->kind,
			.fence = fence_of(l),
		};
	}
}

static struct rv_arena_info arena_info(const struct rv_arena *a)
{
	return (struct rv_arena_info){
		.id = a->id,
		.kind = a->cls.kind,
		.uid = a->cls.uid,
		.registered = rv_arena_registered(a),
		.dedicated = a->dedicated,
		.len = a->pages.len,
		.used = a->used_gr * RV_GRANULE,
		.largest_free =
			a->alloc ? (uint64_t)rv_offset_alloc_largest_gr(a->alloc) * RV_GRANULE : 0,
		.blocks = a->block_nr,
	};
}

/* A region is an arena of the client's own: all of it is used, as far as the client's bytes go. */
static struct rv_arena_info region_info(const struct rv_arena *a)
{
	struct rv_arena_info info = arena_info(a);

	info.registered = info.registered && rv_arena_exports(a);
	info.used = a->region->user_len;
	info.session = a->cls.session;
	info.state = a->region->lasting ? "kept" : rv_region_state_name(a->region->state);
	return info;
}

static void list_arenas(struct rv_list *arenas, struct rv_msg_list *m,
			struct rv_arena_info (*info)(const struct rv_arena *a))
{
	struct rv_list *it;

	RV_LIST_EACH(it, arenas)
	{
		m->total++;
		if (m->nr < m->max)
			m->out.arena[m->nr++] = info(RV_LIST_ENTRY(it, struct rv_arena, link));
	}
}

static void list_endpoints(struct rv_engine *e, struct rv_msg_list *m)
{
	struct rv_fabric_endpoint ep;

	for (unsigned i = 0; i < e->conf.fabric_nr; i++) {
		struct rv_fabric *f = e->conf.fabric[i];
		size_t pos = 0;

		while (f->ops->endpoint && f->ops->endpoint(f, e->reactor->index, &pos, &ep)) {
			m->total++;
			if (m->nr < m->max)
				m->out.endpoint[m->nr++] =
					(struct rv_endpoint_info){f->index, f->native, ep};
		}
	}
}

void rv_engine_run_list(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_list *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	m->nr = 0;
	m->total = 0;
	m->resting_blocks = rv_counter_get(&e->pool.resting_blocks);
	switch (m->what) {
	case RV_LIST_SLOTS:
		list_slots(e, m);
		break;
	case RV_LIST_LEASES:
		list_leases(e, m);
		break;
	case RV_LIST_ARENAS:
		list_arenas(&e->pool.arenas, m, arena_info);
		break;
	case RV_LIST_REGIONS:
		list_arenas(&e->pool.regions, m, region_info);
		break;
	case RV_LIST_ENDPOINTS:
		list_endpoints(e, m);
		break;
	}
	rv_cell_reply(p, c);
}
