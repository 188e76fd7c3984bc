#include "dataplane/rendezvous/store.h"

#include <errno.h>

#include "dataplane/base/check.h"
#include "dataplane/base/probe.h"
#include "dataplane/base/units.h"

static void ttl_passed(struct rv_reactor *r, struct rv_task *t);
static void deadline_passed(struct rv_reactor *r, struct rv_task *t);

const char *rv_lease_kind_name(enum rv_lease_kind k)
{
	static const char *const names[RV_LEASE_KINDS] = {"chunked", "rdma", "local"};

	return names[k];
}

int rv_store_init(struct rv_store *s, const struct rv_store_conf *conf)
{
	int rc;

	*s = (struct rv_store){.conf = *conf};
	rc = rv_idtab_init(&s->slots, sizeof(struct rv_slot), conf->max_slots, conf->shard, 0);
	if (rc)
		return rc;
	rc = rv_idtab_init(&s->leases, sizeof(struct rv_lease), conf->max_leases, conf->shard,
			   conf->seed);
	if (rc)
		rv_idtab_fini(&s->slots);
	return rc;
}

void rv_store_fini(struct rv_store *s)
{
	rv_idtab_fini(&s->leases);
	rv_idtab_fini(&s->slots);
}

struct rv_slot *rv_slot_stage(struct rv_store *s, struct rv_block *block, uint64_t len,
			      const struct rv_stage_opts *o)
{
	struct rv_slot *slot = rv_idtab_alloc(&s->slots);

	RV_CHECK(o->refs > 0);
	RV_CHECK((len == 0) == (block == NULL));
	if (!slot)
		return NULL;
	slot->store = s;
	slot->block = block;
	slot->len = len;
	slot->refcount = o->refs;
	slot->uid = o->uid;
	slot->session = o->session;
	slot->has_xxh3 = o->has_xxh3;
	slot->xxh3 = o->xxh3;
	slot->pinned = block && rv_arena_registered(block->arena);
	rv_list_init(&slot->leases);
	slot->ttl.fn = ttl_passed;
	if (o->ttl_ns != RV_NEVER)
		rv_task_at(s->conf.reactor, &slot->ttl,
			   rv_sat_add(s->conf.reactor->now_ns, o->ttl_ns));
	rv_counter_add(&s->slot_nr, 1);
	rv_probe_stage(slot->rec.id, len, slot->pinned);
	return slot;
}

struct rv_slot *rv_slot_find(struct rv_store *s, uint64_t id)
{
	return rv_idtab_get(&s->slots, id);
}

static void free_slot(struct rv_slot *slot, enum rv_end_cause cause)
{
	struct rv_store *s = slot->store;

	RV_CHECK(slot->locks == 0);
	rv_task_cancel(s->conf.reactor, &slot->ttl);
	if (slot->block) {
		rv_block_rest_until(slot->block, slot->rest_until_ns);
		rv_block_drop(slot->block);
	}
	rv_counter_sub(&s->slot_nr, 1);
	rv_idtab_free(&s->slots, slot, cause);
}

static void free_lease(struct rv_lease *l, enum rv_end_cause cause)
{
	struct rv_store *s = l->store;

	rv_counter_sub(&s->lease_nr[l->kind], 1);
	rv_idtab_free(&s->leases, l, cause);
}

/* The lease lets go of its slot; the record lives on while the net core still has a transfer. */
static void unlink_lease(struct rv_lease *l, enum rv_end_cause cause)
{
	struct rv_store *s = l->store;

	rv_task_cancel(s->conf.reactor, &l->deadline);
	rv_list_del(&l->link);
	if (l->export) {
		struct rv_export *x = l->export;

		rv_lease_set_export(l, NULL);
		s->conf.end_export(s->conf.user, x);
	}
	l->slot->locks--;
	l->slot = NULL;
	l->rec.cause = (uint8_t)cause;
	if (l->transfer)
		s->conf.end_transfer(s->conf.user, l);
	else
		free_lease(l, cause);
}

void rv_store_transfer_gone(struct rv_lease *l)
{
	struct rv_block *b = l->transfer;

	RV_CHECK(!l->slot && b);
	l->transfer = NULL;
	rv_block_drop(b);
	free_lease(l, (enum rv_end_cause)l->rec.cause);
}

/*
 * The time of the pass may be old: making an endpoint holds a reactor up for long. A lease that began
 * then would end before its consumer, who counts from when it asked, believes it does.
 */
static uint64_t now(const struct rv_store *s)
{
	return s->conf.reactor->conf.clock();
}

/* A granted key may be in use until its lease's deadline, and a GET that has begun a while longer. */
static void must_rest(struct rv_lease *l)
{
	const struct rv_store_conf *c = &l->store->conf;
	uint64_t end = l->deadline.timer.deadline_ns;

	if (l->kind != RV_LEASE_RDMA || l->export)
		return;
	if (l->timeout_ns == RV_NEVER)
		end = now(l->store);
	l->slot->rest_until_ns =
		rv_max_u64(l->slot->rest_until_ns, rv_sat_add(end, c->quarantine_ns));
}

static void say_end(const struct rv_lease *l, enum rv_probe_end how)
{
	rv_probe_release(l->rec.id, l->slot->rec.id, l->worker, (int)how);
}

void rv_slot_end(struct rv_slot *slot, enum rv_end_cause cause)
{
	while (!rv_list_empty(&slot->leases)) {
		struct rv_lease *l = RV_LIST_ENTRY(slot->leases.next, struct rv_lease, link);

		must_rest(l);
		say_end(l, RV_PROBE_SLOT_OVER);
		unlink_lease(l, cause);
	}
	free_slot(slot, cause);
}

struct rv_lease *rv_lease_mint(struct rv_slot *slot, uint64_t worker, enum rv_lease_kind kind,
			       uint64_t timeout_ns)
{
	struct rv_store *s = slot->store;
	struct rv_lease *l = rv_idtab_alloc(&s->leases);

	if (!l)
		return NULL;
	l->store = s;
	l->slot = slot;
	l->worker = worker;
	l->kind = kind;
	l->timeout_ns = timeout_ns;
	l->granted_ns = now(s);
	l->deadline.fn = deadline_passed;
	rv_list_push(&slot->leases, &l->link);
	slot->locks++;
	rv_task_at(s->conf.reactor, &l->deadline, rv_sat_add(l->granted_ns, timeout_ns));
	rv_counter_add(&s->lease_nr[kind], 1);
	return l;
}

struct rv_lease *rv_lease_find(struct rv_store *s, uint64_t slot_id, uint64_t id, uint64_t worker)
{
	struct rv_lease *l = rv_idtab_get(&s->leases, id);

	if (!l || !l->slot || l->slot->rec.id != slot_id || l->worker != worker)
		return NULL;
	return l;
}

void rv_lease_renew(struct rv_lease *l, uint64_t arrival_ns)
{
	uint64_t until;

	if (l->timeout_ns == RV_NEVER)
		return;
	until = rv_sat_add(arrival_ns, l->timeout_ns);
	if (until > l->deadline.timer.deadline_ns)
		rv_task_at(l->store->conf.reactor, &l->deadline, until);
}

static void free_if_unused(struct rv_slot *slot, enum rv_end_cause cause)
{
	if (!slot->refcount && !slot->locks)
		free_slot(slot, cause);
}

void rv_slot_revoke(struct rv_slot *slot)
{
	struct rv_list *it, *next;

	RV_LIST_EACH_SAFE(it, next, &slot->leases)
	{
		struct rv_lease *l = RV_LIST_ENTRY(it, struct rv_lease, link);

		if (!l->export)
			continue;
		say_end(l, RV_PROBE_SLOT_OVER);
		unlink_lease(l, RV_END_DROPPED);
	}
	free_if_unused(slot, RV_END_DROPPED);
}

void rv_lease_end(struct rv_lease *l, bool release)
{
	struct rv_slot *slot = l->slot;

	say_end(l, release ? RV_PROBE_RELEASED : RV_PROBE_DETACHED);
	unlink_lease(l, RV_END_RELEASED);
	if (release && slot->refcount)
		slot->refcount--;
	free_if_unused(slot, RV_END_RELEASED);
}

void rv_lease_set_export(struct rv_lease *l, struct rv_export *x)
{
	struct rv_store *s = l->store;

	RV_CHECK(l->kind == RV_LEASE_RDMA);
	s->exported_nr += (x != NULL) - (uint64_t)(l->export != NULL);
	l->export = x;
}

void rv_lease_withdraw(struct rv_lease *l)
{
	RV_CHECK(!l->export && !l->transfer);
	unlink_lease(l, RV_END_RELEASED);
}

/* Runs after the pass has seen what arrived, so a renewal that came in time was counted. */
static void deadline_passed(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_lease *l = RV_CONTAINER(t, struct rv_lease, deadline);
	struct rv_slot *slot = l->slot;

	(void)r;
	rv_counter_add(&l->store->reaped[l->kind], 1);
	rv_probe_reap(l->rec.id, slot->rec.id, l->worker);
	must_rest(l);
	unlink_lease(l, RV_END_EXPIRED);
	if (slot->refcount)
		slot->refcount--;
	free_if_unused(slot, RV_END_EXPIRED);
}

static void ttl_passed(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_slot *slot = RV_CONTAINER(t, struct rv_slot, ttl);

	(void)r;
	rv_counter_add(&slot->store->expired, 1);
	rv_slot_end(slot, RV_END_EXPIRED);
}

void rv_store_end_session(struct rv_store *s, uint64_t session)
{
	uint32_t pos = 0;
	struct rv_slot *slot;

	RV_CHECK(session != 0);
	while ((slot = rv_idtab_next(&s->slots, &pos))) {
		if (slot->session == session)
			rv_slot_end(slot, RV_END_DROPPED);
	}
}

uint64_t rv_store_rdma_leases(const struct rv_store *s)
{
	return rv_counter_get(&s->lease_nr[RV_LEASE_RDMA]) - s->exported_nr;
}
