/*
 * The owner side: slots, leases, and the answer to an acquire.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "dataplane/base/check.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/hash.h"
#include "dataplane/base/log.h"
#include "dataplane/base/probe.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/chunk_plan.h"
#include "dataplane/engine/get.h"
#include "dataplane/engine/msg.h"
#include "dataplane/engine/region.h"
#include "dataplane/engine/serve_impl.h"
#include "dataplane/rendezvous/descriptor.h"

#define HASH_SLICE RV_KIB(256)

static void end_transfer(void *user, struct rv_lease *lease);
static void pump_transfer_ends(struct rv_engine *e);

static void retry(struct rv_reactor *r, struct rv_task *t)
{
	(void)r;
	pump_transfer_ends(RV_CONTAINER(t, struct rv_engine, retry));
}

int rv_engine_init(struct rv_engine *e, const struct rv_engine_conf *conf)
{
	struct rv_store_conf sc = {
		.reactor = conf->reactor,
		.shard = conf->shard,
		.max_slots = conf->max_slots,
		.max_leases = conf->max_leases,
		.quarantine_ns = conf->quarantine_ns,
		.seed = rv_random_u64(),
		.end_transfer = end_transfer,
		.end_export = rv_export_end,
		.user = e,
	};
	int rc;

	*e = (struct rv_engine){.conf = *conf, .reactor = conf->reactor};
	e->conf.pool.reactor = conf->reactor;
	e->conf.pool.region_emptied = rv_region_emptied;
	e->conf.pool.lease_timeout_ns = conf->lease_timeout_ns;
	rv_list_init(&e->transfers_to_end);
	e->retry.fn = retry;
	rc = rv_store_init(&e->store, &sc);
	if (rc)
		return rc;
	rc = rv_gets_init(e);
	if (rc)
		goto err_store;
	rv_exports_init(e);
	rv_pool_init(&e->pool, &e->conf.pool);
	return 0;

err_store:
	rv_store_fini(&e->store);
	return rc;
}

void rv_engine_fini(struct rv_engine *e)
{
	rv_pool_fini(&e->pool);
	rv_exports_fini(e);
	rv_gets_fini(e);
	rv_store_fini(&e->store);
}

/* Transfers of ended leases: one message each to the net core, as cells allow. */

static void transfer_ended(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_transfer_end *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	rv_store_transfer_gone(m->lease);
	rv_cell_free(p, c);
	pump_transfer_ends(e);
}

static void pump_transfer_ends(struct rv_engine *e)
{
	while (!rv_list_empty(&e->transfers_to_end)) {
		struct rv_cell *c = rv_cell_alloc(e->reactor->port);
		struct rv_msg_transfer_end *m;
		struct rv_lease *l;

		if (!c) {
			rv_task_at(e->reactor, &e->retry, e->reactor->now_ns + RV_MS(2));
			return;
		}
		l = RV_LIST_ENTRY(rv_list_pop(&e->transfers_to_end), struct rv_lease, link);
		m = (void *)c->body;
		*m = (struct rv_msg_transfer_end){e, l, l->rec.id};
		c->run = e->conf.run_transfer_end;
		c->done = transfer_ended;
		rv_cell_send(e->reactor->port, e->conf.net_port, c);
	}
}

static void end_transfer(void *user, struct rv_lease *lease)
{
	struct rv_engine *e = user;

	rv_list_push(&e->transfers_to_end, &lease->link);
	pump_transfer_ends(e);
}

/* Acquire. */

/* The fabric in which the consumer may read the slot; one whose keys end with the lease, where there is one. */
static struct rv_fabric *choose(const struct rv_engine *e, const struct rv_slot *slot,
				const struct rv_msg_acquire *acq)
{
	const struct rv_arena *a = slot->block->arena;
	struct rv_fabric *best = NULL;

	if (!rv_arena_exports(a))
		return NULL;
	for (unsigned i = 0; i < e->conf.fabric_nr; i++) {
		struct rv_fabric *f = e->conf.fabric[i];
		const struct rv_fabric_map *m = a->map[f->index];

		if (!(f->ops->offer_bit & acq->offer) || !m || (f->by_queue_pair && !acq->offer_qp))
			continue;
		if ((f->exports || m->key_len) && (!best || (f->exports && !best->exports)))
			best = f;
	}
	return best;
}

/* A descriptor for the whole slot; 0 if it does not fit. */
static size_t describe(const struct rv_slot *slot, const struct rv_fabric *f, const uint8_t *key,
		       size_t key_len, uint8_t *out, size_t cap)
{
	struct rv_writer w = rv_writer(out, cap);
	struct rv_desc d = {
		.backend = (uint8_t)f->ops->backend,
		.version = RV_DESC_VERSION,
		.generation = slot->block->arena->generation,
		.addr = (uintptr_t)rv_block_ptr(slot->block),
		.len = slot->len,
		.rkey = key,
		.rkey_len = (uint16_t)key_len,
	};

	return rv_desc_encode(&w, &d) || w.bad ? 0 : w.len;
}

static bool offer_names_ours(const struct rv_engine *e, unsigned offer)
{
	for (unsigned i = 0; i < e->conf.fabric_nr; i++) {
		if (e->conf.fabric[i]->ops->offer_bit & offer)
			return true;
	}
	return false;
}

static bool rdma_enabled(const struct rv_engine *e)
{
	return !atomic_load_explicit(&e->conf.set->rdma_off, memory_order_relaxed);
}

/* What is known before an offer is looked at. */
static struct rv_acquire_facts facts_of(const struct rv_engine *e, const struct rv_slot *slot)
{
	return (struct rv_acquire_facts){
		.has_registry = e->conf.fabric_nr > 0,
		.enabled = rdma_enabled(e),
		.pinned = slot->pinned,
		.len = slot->len,
		.min_bytes = e->conf.rdma_min_bytes,
		.draining = e->draining,
	};
}

enum rv_path_reason rv_serve_without_offer(const struct rv_engine *e, const struct rv_slot *slot)
{
	struct rv_acquire_facts f = facts_of(e, slot);

	return rv_acquire_decide(&f);
}

/* @param[out] f  OK: the fabric; where its keys are leases', there is no descriptor yet */
static enum rv_path_reason decide(struct rv_engine *e, const struct rv_slot *slot,
				  struct rv_msg_acquire *m, struct rv_fabric **f_)
{
	struct rv_acquire_facts f = facts_of(e, slot);

	f.has_offer = m->has_offer;
	f.backend_named = offer_names_ours(e, m->offer);
	*f_ = f.has_offer && f.pinned ? choose(e, slot, m) : NULL;
	if (*f_ && (*f_)->exports) {
		f.describable = true;
	} else if (*f_) {
		const struct rv_fabric_map *map = slot->block->arena->map[(*f_)->index];

		m->desc_len = describe(slot, *f_, map->key, map->key_len, m->desc, sizeof(m->desc));
		f.describable = m->desc_len > 0;
	}
	return rv_acquire_decide(&f);
}

/* A lease nobody ends is at most as old as the longest deadline a consumer is told. */
static uint64_t timeout_ms(const struct rv_engine *e)
{
	return rv_max_u64(1, e->conf.lease_timeout_ns / RV_MS(1));
}

/* Without a deadline a chunked lease whose consumer has gone stays until its slot ends. */
static uint64_t chunk_timeout(const struct rv_engine *e, const struct rv_msg_acquire *m)
{
	if (m->for_us)
		return RV_NEVER;
	if (!m->chunk_lease_ns)
		return e->conf.chunk_lease_ns;
	return rv_min_u64(e->conf.chunk_lease_ns, m->chunk_lease_ns);
}

/* @param why  for the probe: an enum rv_path_reason, or RV_PROBE_LOCAL */
static void grant_ready(struct rv_engine *e, struct rv_slot *slot, struct rv_msg_acquire *m,
			int why)
{
	uint64_t timeout = chunk_timeout(e, m);
	struct rv_lease *l = rv_lease_mint(slot, m->worker,
					   m->for_us ? RV_LEASE_LOCAL : RV_LEASE_CHUNKED, timeout);

	if (!l) {
		m->rc = -EAGAIN;
		return;
	}
	m->renew_ns = timeout == RV_NEVER ? RV_NEVER : timeout / 4;
	if (slot->block)
		rv_block_hold(slot->block); /* the transfer's, or the asker's on this node */
	if (!m->for_us)
		l->transfer = slot->block;
	m->answer = RV_ANSWER_READY;
	m->lease = l;
	m->lease_id = l->rec.id;
	m->total_len = slot->len;
	m->chunk_size = rv_chunk_size_for(slot->len, e->conf.chunk_size);
	m->block = slot->block;
	/* A region is never shown, only copied: it is the client's, and may have to go at any time. */
	m->same_user = slot->uid == m->uid && !(slot->block && slot->block->arena->region);
	rv_probe_acquire(slot->rec.id, m->worker, why, m->lease_id);
}

static void grant_chunks(struct rv_engine *e, struct rv_slot *slot, struct rv_msg_acquire *m,
			 enum rv_path_reason why)
{
	rv_counter_add(&e->stats.path[why], 1);
	grant_ready(e, slot, m, (int)why);
}

/* The payload goes with the answer; what is told of the path is as with chunks, of which it is the only one. */
static void grant_bytes(struct rv_engine *e, struct rv_slot *slot, struct rv_msg_acquire *m,
			enum rv_path_reason why)
{
	struct rv_lease *l = NULL;

	if (!m->ends) {
		l = rv_lease_mint(slot, m->worker, RV_LEASE_CHUNKED, chunk_timeout(e, m));
		if (!l) {
			m->rc = -EAGAIN;
			return;
		}
	}
	rv_counter_add(&e->stats.path[why], 1);
	if (slot->block)
		rv_block_hold(slot->block);
	m->answer = RV_ANSWER_BYTES;
	m->lease_id = l ? l->rec.id : 0;
	m->total_len = slot->len;
	m->block = slot->block;
	rv_probe_acquire(slot->rec.id, m->worker, (int)why, m->lease_id);
}

static void say_rdma(const struct rv_engine *e, const struct rv_lease *l, struct rv_msg_acquire *m)
{
	m->answer = RV_ANSWER_RDMA;
	m->lease_id = l->rec.id;
	m->total_len = l->slot->len;
	m->lease_timeout_ms = timeout_ms(e);
	rv_probe_acquire(l->slot->rec.id, m->worker, RV_PATH_OK, m->lease_id);
}

/* @return whether the acquire is answered now; else when its key is there */
static bool grant_rdma(struct rv_engine *e, struct rv_slot *slot, struct rv_fabric *f,
		       struct rv_cell *c)
{
	struct rv_msg_acquire *m = (void *)c->body;
	struct rv_lease *l = rv_lease_mint(slot, m->worker, RV_LEASE_RDMA, RV_MS(timeout_ms(e)));

	RV_CHECK(f);
	if (!l) {
		m->rc = -EAGAIN;
	} else if (!f->exports) {
		rv_counter_add(&e->stats.path[RV_PATH_OK], 1);
		say_rdma(e, l, m);
	} else if (rv_export_begin(e, f, l, c)) {
		return false;
	} else {
		rv_lease_withdraw(l);
		grant_chunks(e, slot, m, RV_PATH_NOT_PINNED);
	}
	return true;
}

bool rv_serve_key(struct rv_engine *e, struct rv_lease *l, const struct rv_fabric *f,
		  const struct rv_fabric_key *key, struct rv_cell *c)
{
	struct rv_msg_acquire *m = (void *)c->body;

	m->desc_len = describe(l->slot, f, key->key, key->key_len, m->desc, sizeof(m->desc));
	if (!m->desc_len)
		return false;
	rv_counter_add(&e->stats.path[RV_PATH_OK], 1);
	say_rdma(e, l, m);
	rv_cell_reply(e->reactor->port, c);
	return true;
}

void rv_serve_chunks_instead(struct rv_engine *e, struct rv_lease *l, struct rv_cell *c)
{
	struct rv_slot *slot = l->slot;

	rv_lease_withdraw(l);
	grant_chunks(e, slot, (void *)c->body, RV_PATH_NOT_PINNED);
	rv_cell_reply(e->reactor->port, c);
}

void rv_serve_gone(struct rv_engine *e, struct rv_cell *c)
{
	struct rv_msg_acquire *m = (void *)c->body;

	m->rc = -ENOENT;
	m->cause = rv_idtab_cause(&e->store.slots, m->local);
	rv_cell_reply(e->reactor->port, c);
}

void rv_engine_run_acquire(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_acquire *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	struct rv_slot *slot = rv_slot_find(&e->store, m->local);
	uint64_t bytes_max = rv_min_u64(m->bytes_max, e->conf.bytes_max);
	enum rv_path_reason why;
	struct rv_fabric *f;

	m->rc = 0;
	m->answer = RV_ANSWER_NONE;
	m->block = NULL;
	m->lease = NULL;
	if (!slot) {
		m->rc = -ENOENT;
		m->cause = rv_idtab_cause(&e->store.slots, m->local);
	} else if (m->for_us) {
		grant_ready(e, slot, m, RV_PROBE_LOCAL);
	} else {
		m->has_xxh3 = slot->has_xxh3;
		m->xxh3 = slot->xxh3;
		why = decide(e, slot, m, &f);
		if (why == RV_PATH_OK) {
			if (!grant_rdma(e, slot, f, c))
				return;
		} else if (bytes_max && slot->len <= bytes_max) {
			grant_bytes(e, slot, m, why);
		} else {
			grant_chunks(e, slot, m, why);
		}
	}
	rv_cell_reply(p, c);
}

void rv_engine_run_lease(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_lease *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	struct rv_lease *l = rv_lease_find(&e->store, m->local, m->lease_id, m->worker);

	m->rc = l ? 0 : -ESTALE;
	switch (m->op) {
	case RV_LEASE_RENEW:
		if (l)
			rv_lease_renew(l, m->arrival_ns);
		break;
	case RV_LEASE_DETACH:
	case RV_LEASE_RELEASE:
		if (l)
			rv_lease_end(l, m->op == RV_LEASE_RELEASE);
		rv_stats_operation(&e->stats,
				   m->op == RV_LEASE_RELEASE ? RV_OP_RELEASE : RV_OP_DETACH, m->rc);
		break;
	}
	rv_cell_reply(p, c);
}

static void run_slot_op(struct rv_engine *e, struct rv_slot *slot, struct rv_msg_slot *m)
{
	switch (m->op) {
	case RV_SLOT_METADATA:
		m->total_len = slot->len;
		m->refcount = slot->refcount;
		m->pinned = slot->pinned;
		break;
	case RV_SLOT_REF:
		if (slot->refcount == UINT32_MAX)
			m->rc = -EAGAIN;
		else
			slot->refcount++;
		break;
	case RV_SLOT_DROP:
		if (m->check_uid && m->uid != 0 && m->uid != slot->uid)
			m->rc = -EPERM;
		else
			rv_slot_end(slot, RV_END_DROPPED);
		break;
	}
	(void)e;
}

void rv_engine_run_slot(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_slot *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	struct rv_slot *slot = rv_slot_find(&e->store, m->local);

	m->rc = 0;
	if (slot) {
		run_slot_op(e, slot, m);
	} else {
		m->rc = -ENOENT;
		m->cause = rv_idtab_cause(&e->store.slots, m->local);
	}
	if (m->op != RV_SLOT_DROP)
		rv_stats_operation(&e->stats, m->op == RV_SLOT_REF ? RV_OP_REF : RV_OP_METADATA,
				   m->rc);
	rv_cell_reply(p, c);
}

/* Staging. */

static void count_refusal(struct rv_engine *e, const struct rv_msg_alloc *m)
{
	if (!m->pinned)
		return;
	if (m->req.refusal == RV_POOL_BUDGET)
		rv_counter_add(&e->stats.path[RV_PATH_BUDGET], 1);
	else if (m->req.refusal == RV_POOL_EXHAUSTED)
		rv_counter_add(&e->stats.path[RV_PATH_POOL_EXHAUSTED], 1);
}

static void alloc_done(struct rv_pool *pool, struct rv_pool_req *req, int rc)
{
	struct rv_cell *c = req->ctx;
	struct rv_msg_alloc *m = (void *)c->body;

	(void)pool;
	m->rc = rc;
	count_refusal(m->engine, m);
	rv_cell_reply(m->engine->reactor->port, c);
}

void rv_engine_run_alloc(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_alloc *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	if (m->pinned && e->conf.fabric_nr && !rdma_enabled(e) && m->req.allow_plain) {
		rv_counter_add(&e->stats.path[RV_PATH_KILL_SWITCH], 1);
		if (m->req.cls.kind == RV_ARENA_SESSION)
			m->req.cls.plain = true;
		else
			m->req.cls = (struct rv_arena_class){.kind = RV_ARENA_PLAIN,
							     .uid = m->req.cls.uid};
		m->pinned = false;
		m->switched_off = true;
	}
	m->req.ctx = c;
	m->req.done = alloc_done;
	m->rc = e->draining ? -ESHUTDOWN : rv_pool_alloc(&e->pool, &m->req);
	if (m->rc == -EINPROGRESS)
		return;
	rv_cell_reply(p, c);
}

static void staged(struct rv_cell *c)
{
	struct rv_msg_stage *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	rv_stats_operation(&e->stats,
			   m->region   ? RV_OP_REGISTER_REGION
			   : m->pinned ? RV_OP_REGISTER_PINNED
				       : RV_OP_REGISTER,
			   m->rc);
	rv_cell_reply(e->reactor->port, c);
}

static void stage(struct rv_cell *c)
{
	struct rv_msg_stage *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	struct rv_slot *slot = rv_slot_stage(&e->store, m->block, m->len, &m->opts);

	m->rc = slot ? 0 : -ENOSPC;
	if (slot) {
		m->handle = (struct rv_handle){e->conf.worker, slot->rec.id};
		m->in_registered = slot->pinned;
	}
	if (!slot && m->region && m->block)
		rv_block_drop(m->block);
	staged(c);
}

/* Hashing what is being staged, a slice a pass. */
struct hashing {
	struct rv_task task;
	struct rv_cell *cell;
	struct rv_hasher *hasher;
	uint64_t done;
	uint8_t buf[HASH_SLICE];
};

/* What cannot be hashed: a region that was let go meanwhile is not staged at all. */
static void hash_failed(struct rv_msg_stage *m, struct rv_cell *c, int rc)
{
	if (m->region) {
		rv_block_drop(m->block);
		m->rc = rc;
		staged(c);
		return;
	}
	rv_log_warn("verify: an arena cannot be read, its slot is staged without a hash: %s",
		    rv_err_name(rc));
	stage(c);
}

static void hash_slice(struct rv_reactor *r, struct rv_task *t)
{
	struct hashing *h = RV_CONTAINER(t, struct hashing, task);
	struct rv_msg_stage *m = (void *)h->cell->body;
	uint64_t n = rv_min_u64(HASH_SLICE, m->len - h->done);
	int rc = rv_block_read(m->block, h->done, h->buf, n);

	if (rc) {
		hash_failed(m, h->cell, rc);
	} else {
		rv_hasher_add(h->hasher, h->buf, (size_t)n);
		h->done += n;
		if (h->done < m->len) {
			rv_task_at(r, t, r->now_ns);
			return;
		}
		m->opts.has_xxh3 = true;
		m->opts.xxh3 = rv_hasher_sum(h->hasher);
		stage(h->cell);
	}
	rv_hasher_destroy(h->hasher);
	free(h);
}

void rv_engine_run_stage(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_stage *m = (void *)c->body;
	struct hashing *h;

	(void)p;
	if (m->region) {
		m->rc = rv_region_take(m->engine, m->region, m->off, m->len, &m->block);
		if (m->rc) {
			staged(c);
			return;
		}
	}
	h = m->engine->conf.verify && m->len ? malloc(sizeof(*h)) : NULL;
	if (h) {
		h->task = (struct rv_task){.fn = hash_slice};
		h->cell = c;
		h->hasher = rv_hasher_create();
		h->done = 0;
	}
	if (h && h->hasher) {
		rv_task_at(m->engine->reactor, &h->task, m->engine->reactor->now_ns);
		return;
	}
	free(h);
	stage(c);
}

void rv_engine_run_drop(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_drop *m = (void *)c->body;

	rv_block_drop(m->block);
	rv_cell_reply(p, c);
}

void rv_engine_run_session_end(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_session_end *m = (void *)c->body;

	rv_store_end_session(&m->engine->store, m->session);
	rv_pool_end_session(&m->engine->pool, m->session);
	rv_cell_reply(p, c);
}

void rv_engine_run_peer(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_peer *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	for (unsigned i = 0; i < e->conf.fabric_nr; i++) {
		struct rv_fabric *f = e->conf.fabric[i];
		int rc;

		if (f->index != m->fabric)
			continue;
		if (!m->peer.addr) {
			f->ops->peer_down(f, e->reactor->index, m->peer.worker);
			continue;
		}
		rc = f->ops->peer_up(f, e->reactor->index, &m->peer);
		if (rc)
			rv_log_warn("%s: the address of peer %" PRIu64 " is of no use: %s",
				    f->ops->name, m->peer.worker, rv_err_name(rc));
	}
	rv_cell_reply(p, c);
}

/* Shutdown. */

static void end_all_slots(struct rv_engine *e)
{
	struct rv_slot *s;
	uint32_t pos = 0;

	while ((s = rv_idtab_next(&e->store.slots, &pos)))
		rv_slot_end(s, RV_END_DROPPED);
}

void rv_engine_run_stop(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_stop *m = (void *)c->body;
	struct rv_engine *e = m->engine;

	switch (m->step) {
	case RV_STOP_DRAIN:
		e->draining = true;
		break;
	case RV_STOP_ABANDON:
		rv_gets_abandon(e);
		break;
	case RV_STOP_DEMOTE:
		m->busy_arenas = rv_regions_demote(e);
		break;
	case RV_STOP_LEASES:
		end_all_slots(e);
		break;
	case RV_STOP_MEMORY:
		rv_pool_stop(&e->pool);
		m->busy_arenas = rv_pool_shrink_all(&e->pool);
		break;
	case RV_STOP_FABRICS:
		m->busy_fabrics = 0;
		for (unsigned i = 0; i < e->conf.fabric_nr; i++) {
			struct rv_fabric *f = e->conf.fabric[i];

			m->busy_fabrics += f->ops->quiesce(f, e->reactor->index) ? 1 : 0;
		}
		break;
	}
	m->busy_gets = rv_counter_get(&e->stats.gets);
	m->busy_leases = rv_store_rdma_leases(&e->store);
	rv_cell_reply(p, c);
}
