/*
 * Clients' own memory as regions: made known, named piece by piece, let go; and what a shutdown takes from
 * arenas and regions while their slots go on.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/msg.h"
#include "dataplane/engine/region.h"

#define RETRY_NS RV_MS(2)

static struct rv_engine *engine_of(struct rv_pool *p)
{
	return RV_CONTAINER(p, struct rv_engine, pool);
}

static int ask(struct rv_engine *e, const struct rv_pool_ask *a)
{
	return e->pool.conf.ask ? e->pool.conf.ask(e->pool.conf.user, a) : -ENOTSUP;
}

/* Making one known. */

void rv_engine_run_region_open(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_region_open *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	struct rv_pool_ask a = {
		.op = RV_ASK_REGION_MAP,
		.cls = {.kind = RV_ARENA_REGION, .uid = m->uid, .session = m->session},
		.reactor = e->reactor->index,
		.fd = m->fd,
		.off = m->off,
		.len = m->len,
		.ctx = c,
	};

	m->rc = e->draining ? -ESHUTDOWN : ask(e, &a);
	if (!m->rc)
		return;
	close(m->fd);
	snprintf(m->text, sizeof(m->text), "%s",
		 m->rc == -ESHUTDOWN ? "the node is draining" : rv_err_name(m->rc));
	rv_stats_operation(&e->stats, RV_OP_REGISTER_REGION, m->rc);
	rv_cell_reply(p, c);
}

static void mapped(struct rv_engine *e, const struct rv_pool_ask *a)
{
	struct rv_cell *c = a->ctx;
	struct rv_msg_region_open *m = (void *)c->body;

	m->rc = a->rc;
	if (!a->rc) {
		a->arena->pool = &e->pool;
		rv_list_push(&e->pool.regions, &a->arena->link);
		m->arena = a->arena;
		m->registered = rv_arena_registered(a->arena);
		m->eff_off = a->arena->region->fd_off;
		m->eff_len = a->arena->pages.len;
	} else {
		memcpy(m->text, a->text, sizeof(a->text));
	}
	rv_cell_reply(e->reactor->port, c);
}

/* Naming a piece. */

int rv_region_take(struct rv_engine *e, struct rv_arena *a, uint64_t off, uint64_t len,
		   struct rv_block **out)
{
	struct rv_region *r = a->region;
	struct rv_block *b = NULL;

	if (off > r->user_len || len > r->user_len - off)
		return -ERANGE;
	/*
	 * The guard first, then the state: the other way round the whole of closing, draining and unmapping
	 * could go by in between, were the two ever read by different threads.
	 */
	if (len) {
		b = rv_pool_region_block(&e->pool, a, r->user_off + off, len);
		if (!b)
			return -ENOMEM;
	}
	if (r->state != RV_REGION_OPEN) {
		if (b)
			rv_block_drop(b);
		return -ESHUTDOWN;
	}
	*out = b;
	return 0;
}

/* Letting go. */

static void ask_unmap(struct rv_engine *e, struct rv_arena *a);
static void ask_free(struct rv_engine *e, struct rv_arena *a);

static void tell_closer(struct rv_engine *e, struct rv_arena *a)
{
	struct rv_region *r = a->region;
	struct rv_cell *c = r->closer;
	struct rv_msg_region_close *m;

	if (!c)
		return;
	m = (void *)c->body;
	m->rc = r->state == RV_REGION_STUCK ? -EIO : 0;
	m->drained = !r->timed_out;
	r->closer = NULL;
	r->unknown = true;
	rv_cell_reply(e->reactor->port, c);
}

/* Nobody names it any more, in whatever sense: the record goes. */
static void free_if_over(struct rv_engine *e, struct rv_arena *a)
{
	if (a->region->state == RV_REGION_GONE && a->region->unknown && !a->block_nr)
		ask_free(e, a);
}

static void unmap_again(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_arena *a = RV_CONTAINER(t, struct rv_region, deadline)->arena;

	(void)r;
	ask_unmap(engine_of(a->pool), a);
}

static void free_again(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_arena *a = RV_CONTAINER(t, struct rv_region, deadline)->arena;

	(void)r;
	ask_free(engine_of(a->pool), a);
}

static void again(struct rv_engine *e, struct rv_arena *a,
		  void (*fn)(struct rv_reactor *r, struct rv_task *t))
{
	a->region->deadline.fn = fn;
	rv_task_at(e->reactor, &a->region->deadline, e->reactor->now_ns + RETRY_NS);
}

/* The keys of leases there pin the client's pages for themselves: they go first. */
static void revoke_keys(struct rv_engine *e, const struct rv_arena *a)
{
	uint32_t pos = 0;
	struct rv_slot *s;

	while ((s = rv_idtab_next(&e->store.slots, &pos))) {
		if (s->block && s->block->arena == a)
			rv_slot_revoke(s);
	}
}

static void stuck(struct rv_engine *e, struct rv_arena *a)
{
	a->region->state = RV_REGION_STUCK;
	tell_closer(e, a);
}

void rv_region_keys_gone(struct rv_engine *e, struct rv_arena *a, int rc)
{
	if (!a->region->revoking)
		return;
	if (rc || a->stuck) {
		a->region->revoking = false;
		stuck(e, a);
	} else if (!a->key_nr) {
		a->region->revoking = false;
		ask_unmap(e, a);
	}
}

static void ask_unmap(struct rv_engine *e, struct rv_arena *a)
{
	struct rv_region *r = a->region;

	rv_task_cancel(e->reactor, &r->deadline);
	r->state = RV_REGION_UNMAPPING;
	r->lasting = false;
	if (a->stuck) {
		stuck(e, a);
		return;
	}
	if (a->key_nr) {
		r->revoking = true;
		revoke_keys(e, a);
		return;
	}
	if (ask(e, &(struct rv_pool_ask){.op = RV_ASK_REGION_UNMAP,
					 .arena = a,
					 .in_use = a->block_nr > 0,
					 .keep_bytes = r->keep_bytes}))
		again(e, a, unmap_again);
}

static void ask_free(struct rv_engine *e, struct rv_arena *a)
{
	rv_task_cancel(e->reactor, &a->region->deadline);
	rv_list_del(&a->link); /* once asked, it is the slow thread's */
	if (!ask(e, &(struct rv_pool_ask){.op = RV_ASK_REGION_FREE, .arena = a}))
		return;
	rv_list_push(&e->pool.regions, &a->link);
	again(e, a, free_again);
}

/* What is staged there ends, and rests: then nobody can be reading any more. */
static void end_its_slots(struct rv_engine *e, const struct rv_arena *a)
{
	uint32_t pos = 0;
	struct rv_slot *s;

	while ((s = rv_idtab_next(&e->store.slots, &pos))) {
		if (s->block && s->block->arena == a)
			rv_slot_end(s, RV_END_DROPPED);
	}
}

static void unmapped(struct rv_engine *e, const struct rv_pool_ask *ask_)
{
	struct rv_arena *a = ask_->arena;

	if (ask_->rc == -EAGAIN) {
		rv_log_warn("memory: a region of %" PRIu64
			    " bytes cannot be let go yet: it is in use, and "
			    "there is no memory for a copy of it",
			    a->pages.len);
		a->region->state = RV_REGION_CLOSING;
		a->region->no_copy = true;
		end_its_slots(e, a);
		if (!a->block_nr && a->region->state == RV_REGION_CLOSING)
			ask_unmap(e, a);
		return;
	}
	a->region->state = ask_->rc ? RV_REGION_STUCK : RV_REGION_GONE;
	tell_closer(e, a);
	free_if_over(e, a);
}

static void out_of_time(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_region *g = RV_CONTAINER(t, struct rv_region, deadline);

	(void)r;
	g->timed_out = true;
	ask_unmap(engine_of(g->arena->pool), g->arena);
}

void rv_region_emptied(struct rv_pool *p, struct rv_arena *a)
{
	if (a->region->state == RV_REGION_CLOSING)
		ask_unmap(engine_of(p), a);
	else
		free_if_over(engine_of(p), a);
}

static void close_region(struct rv_engine *e, struct rv_arena *a, uint64_t wait_ns, bool lasting)
{
	struct rv_region *r = a->region;

	if (r->state == RV_REGION_OPEN) {
		r->state = RV_REGION_CLOSING;
		r->deadline.fn = out_of_time;
	}
	r->lasting = lasting;
	if (r->state != RV_REGION_CLOSING || r->no_copy)
		return;
	if (!a->block_nr) {
		ask_unmap(e, a);
	} else if (!wait_ns) {
		r->timed_out = true;
		ask_unmap(e, a);
	} else {
		rv_task_at(e->reactor, &r->deadline, rv_sat_add(e->reactor->now_ns, wait_ns));
	}
}

void rv_engine_run_region_close(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_region_close *m = (void *)c->body;
	struct rv_region *r = m->arena->region;
	bool over = r->state == RV_REGION_GONE || r->state == RV_REGION_STUCK;

	(void)p;
	RV_CHECK(!r->closer);
	r->closer = c;
	if (over) { /* a shutdown was faster */
		tell_closer(m->engine, m->arena);
		free_if_over(m->engine, m->arena);
	} else {
		close_region(m->engine, m->arena, m->wait_ns, m->handed_over);
	}
}

/* Shutdown: registrations go, slots stay and are read in chunks. */

static void demote_arena(struct rv_engine *e, struct rv_arena *a)
{
	if (a->demoting || a->stuck || !rv_arena_registered(a))
		return;
	a->demoting = !ask(e, &(struct rv_pool_ask){.op = RV_ASK_DEMOTE, .arena = a});
}

uint64_t rv_regions_demote(struct rv_engine *e)
{
	uint64_t busy = 0;
	uint32_t pos = 0;
	struct rv_slot *s;
	struct rv_list *it, *tmp;

	if (!e->pool.conf.ask)
		return 0;
	while ((s = rv_idtab_next(&e->store.slots, &pos))) {
		s->pinned = false;
		rv_slot_revoke(s);
	}
	/* Keys first: what is registered for a lease is read whatever becomes of its arena. */
	busy = rv_counter_get(&e->exports_live) - rv_counter_get(&e->exports_stuck);
	if (busy)
		return busy;
	RV_LIST_EACH(it, &e->pool.arenas)
	{
		struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

		demote_arena(e, a);
		busy += rv_arena_registered(a) && !a->stuck;
	}
	RV_LIST_EACH_SAFE(it, tmp, &e->pool.regions)
	{
		struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

		a->region->keep_bytes = true;
		close_region(e, a, 0, false);
		busy += a->region->state == RV_REGION_UNMAPPING ||
			a->region->state == RV_REGION_CLOSING;
	}
	return busy;
}

static void demoted(const struct rv_pool_ask *a)
{
	a->arena->demoting = false;
	if (a->rc)
		a->arena->stuck = true;
	else
		a->arena->generation = 0;
}

void rv_engine_asked(struct rv_engine *e, const struct rv_pool_ask *a)
{
	switch (a->op) {
	case RV_ASK_REGION_MAP:
		mapped(e, a);
		break;
	case RV_ASK_REGION_UNMAP:
		unmapped(e, a);
		break;
	case RV_ASK_REGION_FREE:
		break;
	case RV_ASK_DEMOTE:
		demoted(a);
		break;
	}
}
