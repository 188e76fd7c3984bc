/*
 * What may never happen, and what must be true in the end.
 *
 * A range is looked at when it goes back to its allocator, when its pages are registered, deregistered,
 * hollowed or unmapped: nobody may be able to read or write it then.
 */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

#define SLICES 4096

/* Ranges handed out, as we saw it. */
static struct slice {
	uint64_t life;
	const struct rv_offset_alloc *alloc;
	uint32_t off_gr, len_gr;
} slice[SLICES];
static unsigned slice_nr;

int __real_rv_offset_alloc_get(struct rv_offset_alloc *a, uint32_t len_gr,
			       struct rv_offset_slice *out);
void __real_rv_offset_alloc_put(struct rv_offset_alloc *a, struct rv_offset_slice s);
int __wrap_rv_offset_alloc_get(struct rv_offset_alloc *a, uint32_t len_gr,
			       struct rv_offset_slice *out);
void __wrap_rv_offset_alloc_put(struct rv_offset_alloc *a, struct rv_offset_slice s);

void sim_check_reset(void)
{
	slice_nr = 0;
}

void sim_check_gone(const struct sim_node *n, const void *base, uint64_t len, const char *what)
{
	const char *why;

	if (!n)
		return;
	why = sim_net_pin(n, base, len);
	if (!why)
		why = sim_fabric_pin(n, base, len);
	if (!why)
		why = sim_actor_pin(n, base, len);
	if (why)
		sim_fail("node %u: a range of %" PRIu64 " bytes is %s while %s", n->at, len, what,
			 why);
}

void sim_check_unwritten(const struct sim_node *n, const void *base, uint64_t len, const char *what)
{
	const char *why = sim_fabric_writes(n, base, len);

	if (why)
		sim_fail("node %u: a range of %" PRIu64 " bytes is %s while %s", n->at, len, what,
			 why);
}

static const struct rv_arena *arena_of(struct sim_node *n, const struct rv_offset_alloc *a)
{
	for (unsigned i = 0; i < n->set.nr; i++) {
		struct rv_list *it;

		RV_LIST_EACH(it, &n->engine[i].pool.arenas)
		{
			const struct rv_arena *ar = RV_LIST_ENTRY(it, struct rv_arena, link);

			if (ar->alloc == a)
				return ar;
		}
	}
	sim_fail("node %u: a range of an arena that is in no pool", n->at);
}

int __wrap_rv_offset_alloc_get(struct rv_offset_alloc *a, uint32_t len_gr,
			       struct rv_offset_slice *out)
{
	int rc = __real_rv_offset_alloc_get(a, len_gr, out);
	const struct rv_arena *ar;

	if (rc)
		return rc;
	ar = arena_of(sim.cur, a);
	for (unsigned i = 0; i < slice_nr; i++) {
		const struct slice *s = &slice[i];

		if (s->life == sim.cur->life && s->alloc == a && s->off_gr < out->off_gr + len_gr &&
		    out->off_gr < s->off_gr + s->len_gr)
			sim_fail("node %u: a range is handed out twice", sim.cur->at);
	}
	if (slice_nr == SLICES || ((uint64_t)out->off_gr + len_gr) * RV_GRANULE > ar->pages.len)
		sim_fail("node %u: a range behind its arena's end", sim.cur->at);
	slice[slice_nr++] = (struct slice){sim.cur->life, a, out->off_gr, len_gr};
	return 0;
}

void __wrap_rv_offset_alloc_put(struct rv_offset_alloc *a, struct rv_offset_slice s)
{
	const struct rv_arena *ar = arena_of(sim.cur, a);
	uint8_t *base = (uint8_t *)ar->pages.base + (uint64_t)s.off_gr * RV_GRANULE;
	uint64_t len = 0;

	for (unsigned i = 0; i < slice_nr; i++) {
		if (slice[i].life != sim.cur->life || slice[i].alloc != a ||
		    slice[i].off_gr != s.off_gr)
			continue;
		len = (uint64_t)slice[i].len_gr * RV_GRANULE;
		slice[i] = slice[--slice_nr];
		break;
	}
	if (!len)
		sim_fail("node %u: a range is given back twice", sim.cur->at);
	sim_check_gone(sim.cur, base, len, "given back");
	memset(base, 0xdd, len);
	__real_rv_offset_alloc_put(a, s);
}

/* Every now and then. */

static void check_slots(const struct sim_node *n, const struct rv_store *s)
{
	const struct rv_slot *slot;
	uint64_t leases = 0;
	uint32_t pos = 0;

	while ((slot = rv_idtab_next(&s->slots, &pos))) {
		struct rv_list *it;
		uint32_t locks = 0;

		RV_LIST_EACH(it, &slot->leases)
		{
			const struct rv_lease *l = RV_LIST_ENTRY(it, struct rv_lease, link);

			if (l->slot != slot)
				sim_fail("node %u: a lease of another slot", n->at);
			locks++;
		}
		if (locks != slot->locks)
			sim_fail("node %u: slot with %u leases and %u locks", n->at, locks,
				 slot->locks);
		if (!slot->locks && !slot->refcount)
			sim_fail("node %u: a slot without references and locks lives on", n->at);
		if (slot->block && (!slot->block->arena || !slot->block->holds))
			sim_fail("node %u: a slot's block is free", n->at);
		if (slot->block && !sim_mem_readable(rv_block_ptr(slot->block), slot->len))
			sim_fail("node %u: a slot's bytes are not mapped", n->at);
		leases += locks;
	}
	pos = 0;
	for (const struct rv_lease *l; (l = rv_idtab_next(&s->leases, &pos));) {
		if (l->slot)
			leases--;
	}
	if (leases)
		sim_fail("node %u: leases that are on no slot's list", n->at);
}

static void check_arenas(const struct sim_node *n, const struct rv_pool *p)
{
	uint64_t used = 0;
	struct rv_list *it;

	RV_LIST_EACH(it, &p->arenas)
	{
		const struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

		used += a->used_gr * RV_GRANULE;
		if (a->alloc &&
		    rv_offset_alloc_free_gr(a->alloc) + a->used_gr != rv_arena_size_gr(a))
			sim_fail("node %u: arena %u: %" PRIu64
				 " granules used, %u free, of %" PRIu64,
				 n->at, a->id, a->used_gr, rv_offset_alloc_free_gr(a->alloc),
				 rv_arena_size_gr(a));
	}
	if (used != rv_counter_get(&p->used_bytes))
		sim_fail("node %u: the pool counts other bytes than its arenas do", n->at);
}

static void check_budgets(const struct sim_node *n)
{
	const struct rv_registrar *r = &n->registrar;

	if (r->registered.used > r->registered.limit ||
	    (r->plain.used > r->plain.limit && n->stop < SIM_STOP_DEMOTE))
		sim_fail("node %u: over the budget", n->at);
	if (r->parking.parked_bytes > r->plain.used)
		sim_fail("node %u: parked bytes are not counted", n->at);
}

void sim_check_round(void)
{
	sim_fabric_watch();
	if (sim.step % 8)
		return;
	for (unsigned i = 0; i < SIM_NODES; i++) {
		const struct sim_node *n = sim.node[i];

		if (!n)
			continue;
		for (unsigned e = 0; e < n->set.nr; e++) {
			check_slots(n, &n->engine[e].store);
			check_arenas(n, &n->engine[e].pool);
		}
		check_budgets(n);
	}
}

/* In the end. */

unsigned sim_free_cells(struct rv_port *p)
{
	struct rv_list taken, *it;
	struct rv_cell *c;
	unsigned nr = 0;

	rv_list_init(&taken);
	while ((c = rv_cell_alloc(p)))
		rv_list_push(&taken, &c->link);
	while ((it = rv_list_pop(&taken))) {
		rv_cell_free(p, RV_LIST_ENTRY(it, struct rv_cell, link));
		nr++;
	}
	return nr;
}

static void none(const struct sim_node *n, uint64_t nr, const char *what)
{
	if (nr)
		sim_fail("node %u: in the end %" PRIu64 " %s are left", n->at, nr, what);
}

static void check_engine(const struct sim_node *n, const struct rv_engine *e)
{
	none(n, rv_counter_get(&e->stats.gets), "gets");
	none(n, e->store.slots.live_nr, "slots");
	none(n, e->store.leases.live_nr, "leases");
	none(n, rv_counter_get(&e->store.slot_nr), "counted slots");
	for (unsigned k = 0; k < RV_LEASE_KINDS; k++)
		none(n, rv_counter_get(&e->store.lease_nr[k]), "counted leases");
	none(n, rv_counter_get(&e->pool.resting_blocks), "resting blocks");
	if (!rv_counter_get(&e->exports_stuck)) { /* those keep their range on purpose */
		none(n, rv_counter_get(&e->exports_live), "keys of leases");
		none(n, rv_counter_get(&e->pool.blocks), "blocks");
		none(n, rv_counter_get(&e->pool.used_bytes), "bytes of blocks");
	}
	none(n, e->pool.growing, "growths");
	none(n, !rv_list_empty(&e->pool.waiting), "requests for memory");
	none(n, !rv_list_empty(&e->transfers_to_end), "transfers to end");
	if (!n->fabric.unconfirmed)
		none(n, !rv_list_empty(&e->pool.regions), "regions");
}

static void check_messenger(const struct sim_node *n)
{
	const struct rv_messenger *m = n->m;
	struct rv_list *it;

	none(n, m->calls.live, "calls");
	none(n, !rv_list_empty(&m->pulls), "pulls");
	none(n, m->serving, "requests");
	none(n, m->transfers.live_nr, "transfers");
	none(n, m->by_lease.nr, "leases of transfers");
	none(n, !rv_list_empty(&m->deferred), "lease operations");
	RV_LIST_EACH(it, &m->links)
	{
		const struct rv_mlink *l = RV_LIST_ENTRY(it, struct rv_mlink, all);

		none(n, l->requests, "requests of a link");
		none(n, l->refs - (l->link ? 1 : 0), "references to a link");
		none(n, l->paused, "paused links");
	}
}

static void check_memory(const struct sim_node *n)
{
	const struct rv_registrar *r = &n->registrar;
	uint64_t registered = 0, plain = r->parking.parked_bytes;
	unsigned maps = 0;

	for (unsigned i = 0; i < n->set.nr; i++) {
		struct rv_list *it;

		RV_LIST_EACH(it, &n->engine[i].pool.arenas)
		{
			const struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

			maps += rv_arena_registered(a);
			*(rv_arena_registered(a) ? &registered : &plain) += a->pages.len;
			none(n, a->stuck ? 0 : a->block_nr, "blocks of an arena");
			if (!a->stuck && (a->session_over || a->dedicated) && !sim.c.heap_fail)
				sim_fail(
					"node %u: an empty arena that nobody can use again was kept",
					n->at);
		}
	}
	if (n->fabric.unconfirmed)
		return; /* those stay counted on purpose */
	none(n, r->registered.used - registered, "bytes of the registered budget");
	none(n, r->plain.used - plain, "bytes of the plain budget");
	none(n, rv_counter_get(&r->external_bytes), "bytes of regions");
	none(n, sim_fabric_maps(&n->fabric) - maps, "registrations");
}

void sim_check_settled(struct sim_node *n)
{
	for (unsigned i = 0; i < n->set.nr; i++)
		check_engine(n, &n->engine[i]);
	check_messenger(n);
	check_memory(n);
	for (unsigned i = 0; i < sim.c.reactors + 3; i++)
		none(n, sim.c.cells - sim_free_cells(rv_mesh_port(n->mesh, i)), "cells");
}
