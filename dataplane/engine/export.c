#include "dataplane/engine/export.h"

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/region.h"
#include "dataplane/engine/serve_impl.h"

#define RETRY_NS     RV_MS(1)
#define SLAB_EXPORTS 256

static void too_late(struct rv_reactor *r, struct rv_task *t);
static void retry(struct rv_reactor *r, struct rv_task *t);

void rv_exports_init(struct rv_engine *e)
{
	rv_list_init(&e->exports_waiting);
	rv_slab_init(&e->exports, sizeof(struct rv_export), SLAB_EXPORTS);
	e->export_retry.fn = retry;
}

void rv_exports_fini(struct rv_engine *e)
{
	rv_slab_fini(&e->exports);
}

static void gone(struct rv_export *x)
{
	struct rv_engine *e = x->e;
	struct rv_arena *a = x->block->arena;
	bool of_region = --a->key_nr == 0 && a->region;

	rv_task_cancel(e->reactor, &x->late);
	rv_block_drop(x->block); /* an arena may go with it; a region says so later */
	if (of_region)
		rv_region_keys_gone(e, a, 0);
	rv_slab_give(&e->exports, x);
	rv_counter_sub(&e->exports_live, 1);
}

/* Making and revoking find the thread by message; without a cell a revocation waits, and is never forgotten. */

static bool ask(struct rv_export *x, const struct rv_export_ask *a)
{
	return x->e->conf.export_ask(x->e->conf.pool.user, a) == 0;
}

static void revoke(struct rv_export *x)
{
	struct rv_engine *e = x->e;

	x->state = RV_EXPORT_REVOKING;
	if (ask(x, &(struct rv_export_ask){.op = RV_EXPORT_REVOKE,
					   .x = x,
					   .fabric = x->fabric,
					   .key = x->key}))
		return;
	rv_list_push(&e->exports_waiting, &x->link);
	if (!e->export_retry.timer.armed)
		rv_task_at(e->reactor, &e->export_retry, e->reactor->now_ns + RETRY_NS);
}

static void retry(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_engine *e = RV_CONTAINER(t, struct rv_engine, export_retry);
	struct rv_list now, *it;

	(void)r;
	rv_list_init(&now);
	rv_list_splice(&now, &e->exports_waiting);
	while ((it = rv_list_pop(&now)))
		revoke(RV_LIST_ENTRY(it, struct rv_export, link));
}

/* The consumer gets chunks instead; its lease for RDMA never was. */
static void answer_chunks(struct rv_export *x)
{
	struct rv_cell *c = x->cell;
	struct rv_lease *l = x->lease;

	x->cell = NULL;
	rv_task_cancel(x->e->reactor, &x->late);
	if (!l) { /* its slot is over, and with it the lease */
		rv_serve_gone(x->e, c);
		return;
	}
	x->lease = NULL;
	rv_lease_set_export(l, NULL);
	rv_serve_chunks_instead(x->e, l, c);
}

static void too_late(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_export *x = RV_CONTAINER(t, struct rv_export, late);

	(void)r;
	answer_chunks(x); /* what comes is revoked */
}

static void made(struct rv_export *x, const struct rv_export_ask *a)
{
	struct rv_cell *c = x->cell;

	x->key = a->key;
	if (a->rc) {
		if (c)
			answer_chunks(x);
		gone(x);
		return;
	}
	x->state = RV_EXPORT_LIVE;
	rv_task_cancel(x->e->reactor, &x->late);
	if (c && x->lease && rv_serve_key(x->e, x->lease, x->fabric, x->key, c)) {
		x->cell = NULL;
		return;
	}
	if (c)
		answer_chunks(x);
	revoke(x);
}

static void revoked(struct rv_export *x, int rc)
{
	if (!rc) {
		gone(x);
		return;
	}
	/* The device may still let the consumer read: the range is nobody's any more. */
	rv_log_err("%s: a key could not be revoked, its range of memory is given up: %s",
		   x->fabric->ops->name, rv_err_name(rc));
	rv_counter_add(&x->e->exports_stuck, 1);
	x->block->arena->stuck = true;
	if (x->block->arena->region)
		rv_region_keys_gone(x->e, x->block->arena, rc);
}

void rv_export_asked(const struct rv_export_ask *a)
{
	if (a->op == RV_EXPORT_MAKE)
		made(a->x, a);
	else
		revoked(a->x, a->rc);
}

bool rv_export_begin(struct rv_engine *e, struct rv_fabric *f, struct rv_lease *l,
		     struct rv_cell *c)
{
	const struct rv_msg_acquire *acquire = (const void *)c->body;
	struct rv_slot *slot = l->slot;
	struct rv_export *x = NULL;

	if (rv_counter_get(&e->exports_live) < e->conf.max_leases)
		x = rv_slab_take(&e->exports);
	if (!x)
		return false;
	*x = (struct rv_export){
		.e = e,
		.state = RV_EXPORT_MAKING,
		.fabric = f,
		.block = slot->block,
		.lease = l,
		.cell = c,
		.late = {.fn = too_late},
	};
	rv_list_init(&x->link);
	if (!ask(x, &(struct rv_export_ask){
			    .op = RV_EXPORT_MAKE,
			    .x = x,
			    .fabric = f,
			    .map = slot->block->arena->map[f->index],
			    .addr = rv_block_ptr(slot->block),
			    .len = slot->len,
			    .to = {l->worker, acquire->offer_qp},
		    })) {
		rv_slab_give(&e->exports, x);
		return false;
	}
	rv_block_hold(x->block);
	x->block->arena->key_nr++;
	rv_lease_set_export(l, x);
	rv_counter_add(&e->exports_live, 1);
	rv_task_at(e->reactor, &x->late, rv_sat_add(e->reactor->now_ns, l->timeout_ns / 4));
	return true;
}

void rv_export_end(void *user, struct rv_export *x)
{
	(void)user;
	x->lease = NULL;
	if (x->state == RV_EXPORT_LIVE)
		revoke(x);
}
