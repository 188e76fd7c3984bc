#include "control/service/registrar_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/msg.h"

/* So long after the system refused to register more, more is tried again. */
#define AGAIN_NS RV_SEC(30)

struct grow_msg {
	struct rv_registrar *r;
	struct rv_engine *engine;
	struct rv_pool_grow g;
};

struct shrink_msg {
	struct rv_registrar *r;
	struct rv_arena *arena;
};

const char *rv_registration_failure_name(enum rv_registration_failure f)
{
	static const char *const names[RV_REG_FAILURES] = {"budget", "memory", "map"};

	return names[f];
}

void rv_registrar_init(struct rv_registrar *r, const struct rv_registrar_conf *conf)
{
	*r = (struct rv_registrar){
		.conf = *conf,
		.registered = {.limit = conf->registered_budget},
		.plain = {.limit = conf->plain_budget},
	};
	rv_parking_init(&r->parking, conf->retain_bytes);
}

void rv_registrar_publish(struct rv_registrar *r)
{
	rv_counter_set(&r->parked_bytes, r->parking.parked_bytes);
}

bool rv_registrar_emulated(const struct rv_registrar *r)
{
	for (unsigned i = 0; i < r->conf.fabric_nr; i++) {
		if (!r->conf.fabric[i]->native)
			return true;
	}
	return false;
}

static bool registers(const struct rv_registrar *r, const struct rv_arena_class *cls)
{
	return r->conf.fabric_nr > 0 && cls->kind != RV_ARENA_PLAIN && !cls->plain;
}

/* As much as the budget allows between what is needed and what is wanted; 0: not even that. */
static uint64_t take_budget(struct rv_budget *b, const struct rv_pool_grow *g)
{
	uint64_t min = rv_align_up(g->len_min, RV_GRANULE);
	uint64_t len = rv_align_up(rv_max_u64(g->len_want, g->len_min), RV_GRANULE);

	while (len > min && len > rv_budget_left(b))
		len = rv_max_u64(min, rv_align_up(len / 2, RV_GRANULE));
	return rv_budget_take(b, len) ? len : 0;
}

bool rv_registrar_unmap(struct rv_registrar *r, struct rv_arena *a)
{
	bool confirmed = true;

	for (unsigned i = 0; i < r->conf.fabric_nr; i++) {
		struct rv_fabric *f = r->conf.fabric[i];

		if (!a->map[f->index])
			continue;
		if (f->ops->unmap(f, a->map[f->index]))
			confirmed = false;
		else
			rv_counter_sub(&r->live_regions, 1);
		a->map[f->index] = NULL;
	}
	return confirmed;
}

int rv_registrar_map(struct rv_registrar *r, struct rv_arena *a)
{
	enum rv_map_access access = a->cls.kind == RV_ARENA_LANDING   ? RV_MAP_DESTINATION
				    : a->cls.kind == RV_ARENA_SESSION ? RV_MAP_BOTH
								      : RV_MAP_SOURCE;

	for (unsigned i = 0; i < r->conf.fabric_nr; i++) {
		struct rv_fabric *f = r->conf.fabric[i];
		int rc;

		if (atomic_load_explicit(&f->dead, memory_order_relaxed))
			continue; /* the others go on */
		rc = f->ops->map(f, a->pages.base, a->pages.len, access, &a->map[f->index]);
		if (!rc) {
			rv_counter_add(&r->live_regions, 1);
			continue;
		}
		rv_log_warn("%s: registering %" PRIu64
			    " bytes failed, they stay on the chunked path: %s",
			    f->ops->name, a->pages.len, rv_err_name(rc));
		rv_registrar_unmap(r, a);
		return rc;
	}
	return 0;
}

bool rv_registrar_take(struct rv_registrar *r, struct rv_budget *b, uint64_t len)
{
	if (rv_budget_take(b, len))
		return true;
	if (b != &r->plain || !r->parking.warm_bytes)
		return false;
	rv_registrar_cool(r, RV_NEVER); /* room before speed */
	return rv_budget_take(b, len);
}

/* Parked pages again: a stray GET may still read them, so they are never unmapped, only parked. */
static void park(struct rv_registrar *r, struct rv_arena *a, bool keep)
{
	uint64_t len = a->pages.len;

	keep = keep && rv_registrar_take(r, &r->plain, len);
	if (!rv_parking_put(&r->parking, &a->pages, rv_arena_class_owner(&a->cls), keep) && keep)
		rv_budget_give(&r->plain, len);
}

/* Pages that nobody else can reach: the next arena of this size and user is spared making its own. */
static void keep_warm(struct rv_registrar *r, struct rv_arena *a)
{
	uint64_t len = a->pages.len;

	if (!rv_budget_take(&r->plain, len))
		rv_pages_destroy(&a->pages);
	else if (!rv_parking_warm(&r->parking, &a->pages, rv_arena_class_owner(&a->cls)))
		rv_budget_give(&r->plain, len);
}

uint64_t rv_registrar_cool(struct rv_registrar *r, uint64_t now_ns)
{
	uint64_t next_ns, gone = rv_parking_cool(&r->parking, now_ns, &next_ns);

	rv_budget_give(&r->plain, gone);
	rv_registrar_publish(r);
	return next_ns;
}

static void put_pages(struct rv_registrar *r, struct rv_arena *a, bool parked)
{
	if (parked && !a->pages.warm)
		park(r, a, true);
	else
		rv_pages_destroy(&a->pages);
}

/* Parked or huge pages may be more than was asked for: the budget counts what there is. */
static int reconcile(struct rv_budget *b, uint64_t *taken, uint64_t real)
{
	if (real > *taken && !rv_budget_take(b, real - *taken))
		return -ENOSPC;
	if (real < *taken)
		rv_budget_give(b, *taken - real);
	*taken = real;
	return 0;
}

static bool unpark(struct rv_registrar *r, struct rv_arena *a, struct rv_budget *b, uint64_t *taken)
{
	if (rv_parking_take(&r->parking, *taken, rv_arena_class_owner(&a->cls), &a->pages))
		return false;
	rv_budget_give(&r->plain, a->pages.len);
	if (!reconcile(b, taken, a->pages.len))
		return true;
	put_pages(r, a, true); /* more than the budget has room for */
	return false;
}

/* Beyond its control group's limit a process is killed, by whatever page it touches next. */
static int get_pages(struct rv_registrar *r, struct rv_arena *a, uint64_t len)
{
	if (r->conf.room && r->conf.room() < len)
		return -ENOMEM;
	return rv_pages_create(&a->pages, len, a->cls.kind == RV_ARENA_SESSION, r->conf.hugepages);
}

int rv_registrar_failed(struct rv_registrar *r, enum rv_registration_failure why, int rc)
{
	rv_counter_add(&r->failures[why], 1);
	return rc;
}

/*
 * The system did not let @len bytes more be registered. Half of that is tried next, and so on: what it lets us have
 * is the budget from now on, since every request beyond it would only fail again. Others may give back what they had
 * registered: once in a while twice as much is tried.
 */
void rv_registrar_lower_budget(struct rv_registrar *r, uint64_t len, int rc)
{
	uint64_t limit = r->registered.used - len + len / 2 / RV_GRANULE * RV_GRANULE;

	if ((rc != -EPERM && rc != -ENOMEM) || limit >= r->registered.limit)
		return;
	rv_log_warn("memory: the system refuses to register %" PRIu64 " bytes beside %" PRIu64
		    " (%s): %" PRIu64 " of memory.registered_bytes_budget's %" PRIu64
		    " are used from now on%s",
		    len, r->registered.used - len, rv_err_name(rc), limit,
		    r->conf.registered_budget,
		    rc == -EPERM ? "; raise the memlock limit (LimitMEMLOCK, ulimit -l)" : "");
	r->registered.limit = limit;
	r->refused_ns = rv_clock_ns();
}

void rv_registrar_raise_budget(struct rv_registrar *r, uint64_t now_ns)
{
	uint64_t limit = r->registered.limit;

	if (limit >= r->conf.registered_budget || now_ns - r->refused_ns < AGAIN_NS)
		return;
	r->refused_ns = now_ns;
	r->registered.limit =
		rv_min_u64(r->conf.registered_budget, rv_max_u64(limit * 2, limit + RV_MIB(1)));
}

static int grow(struct rv_registrar *r, struct rv_pool_grow *g)
{
	bool reg = registers(r, &g->cls);
	struct rv_budget *budget = reg ? &r->registered : &r->plain;
	struct rv_arena *a = calloc(1, sizeof(*a));
	bool parked;
	uint64_t taken;
	int rc;

	if (!a)
		return rv_registrar_failed(r, RV_REG_FAIL_MEMORY, -ENOMEM);
	a->cls = g->cls;
	a->reactor = g->reactor;
	a->dedicated = g->dedicated;
	rv_list_init(&a->link);
	if (reg)
		rv_registrar_raise_budget(r, rv_clock_ns());
	taken = take_budget(budget, g);
	if (!taken && budget == &r->plain && r->parking.warm_bytes) {
		rv_registrar_cool(r, RV_NEVER);
		taken = take_budget(budget, g);
	}
	if (!taken) {
		free(a);
		return rv_registrar_failed(r, RV_REG_FAIL_BUDGET, -ENOSPC);
	}
	parked = unpark(r, a, budget, &taken);
	rc = parked ? 0 : get_pages(r, a, taken);
	if (rc == -ENOMEM && r->parking.warm_bytes) {
		rv_registrar_cool(r, RV_NEVER);
		rc = get_pages(r, a, taken);
	}
	if (rc) {
		rv_log_warn("memory: %" PRIu64 " bytes for an arena are not to be had: %s%s", taken,
			    rv_err_name(rc),
			    rc == -ENOMEM && r->conf.room && r->conf.room() < taken
				    ? " (the control group is near its limit)"
				    : "");
		rv_registrar_failed(r, RV_REG_FAIL_MEMORY, rc);
		goto err_budget;
	}
	rc = reconcile(budget, &taken, a->pages.len);
	if (rc) {
		rv_registrar_failed(r, RV_REG_FAIL_BUDGET, rc);
		goto err_pages;
	}
	if (!a->dedicated) {
		a->alloc = rv_offset_alloc_create((uint32_t)(a->pages.len / RV_GRANULE));
		if (!a->alloc) {
			rc = rv_registrar_failed(r, RV_REG_FAIL_MEMORY, -ENOMEM);
			goto err_pages;
		}
	}
	if (reg) {
		rc = rv_registrar_map(r, a);
		if (rc) {
			rv_registrar_lower_budget(r, taken, rc);
			rc = rv_registrar_failed(r, RV_REG_FAIL_MAP, -EIO);
			goto err_alloc;
		}
		a->generation = ++r->generation;
		a->reachable = a->cls.kind != RV_ARENA_LANDING;
		rv_counter_add(&r->registrations, 1);
	}
	a->id = ++r->last_arena;
	g->arena = a;
	return 0;

err_alloc:
	rv_offset_alloc_destroy(a->alloc);
err_pages:
	put_pages(r, a, parked);
err_budget:
	rv_budget_give(budget, taken);
	free(a);
	return rc;
}

static void shrink(struct rv_registrar *r, struct rv_arena *a)
{
	bool reg = rv_arena_registered(a);
	uint64_t len = a->pages.len;

	RV_CHECK(a->block_nr == 0);
	if (atomic_load_explicit(&r->leaving, memory_order_relaxed))
		a->pages.reclaim = false; /* who has them mapped still looks at them */
	if (a->stuck || !rv_registrar_unmap(r, a)) {
		/* The device may still reach the pages: they are never given to anybody again. */
		rv_counter_add(&r->unconfirmed, 1);
		rv_log_err("memory: an unmap of %" PRIu64
			   " bytes was not confirmed, the pages are leaked",
			   len);
		rv_offset_alloc_destroy(a->alloc);
		free(a);
		return;
	}
	rv_offset_alloc_destroy(a->alloc);
	rv_budget_give(reg ? &r->registered : &r->plain, len);
	if (a->reachable && rv_registrar_emulated(r)) {
		/* Session pages go with their session: only shared pools can use them again. */
		park(r, a, a->cls.kind != RV_ARENA_SESSION);
	} else if (!a->reachable && a->cls.kind != RV_ARENA_SESSION) {
		keep_warm(r, a); /* no key of them is out */
	} else {
		rv_pages_destroy(&a->pages);
	}
	free(a);
}

static void run_grow(struct rv_port *p, struct rv_cell *c)
{
	struct grow_msg *m = (void *)c->body;

	m->g.rc = grow(m->r, &m->g);
	rv_registrar_publish(m->r);
	rv_cell_reply(p, c);
}

static void grown(struct rv_port *p, struct rv_cell *c)
{
	struct grow_msg m = *(struct grow_msg *)(void *)c->body;

	rv_cell_free(p, c);
	rv_pool_grown(&m.engine->pool, &m.g);
}

int rv_registrar_grow(void *user, const struct rv_pool_grow *g)
{
	struct rv_registrar_client *cl = user;
	struct rv_port *port = cl->engine->reactor->port;
	struct rv_cell *c = rv_cell_alloc(port);

	if (!c)
		return -EAGAIN;
	*(struct grow_msg *)(void *)c->body = (struct grow_msg){cl->registrar, cl->engine, *g};
	c->run = run_grow;
	c->done = grown;
	rv_cell_send(port, rv_port_index(cl->registrar->conf.port), c);
	return 0;
}

static void run_shrink(struct rv_port *p, struct rv_cell *c)
{
	struct shrink_msg *m = (void *)c->body;

	shrink(m->r, m->arena);
	rv_registrar_publish(m->r);
	rv_cell_reply(p, c);
}

static void shrunk(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_free(p, c);
}

int rv_registrar_shrink(void *user, struct rv_arena *a)
{
	struct rv_registrar_client *cl = user;
	struct rv_port *port = cl->engine->reactor->port;
	struct rv_cell *c = rv_cell_alloc(port);

	if (!c)
		return -EAGAIN;
	*(struct shrink_msg *)(void *)c->body = (struct shrink_msg){cl->registrar, a};
	c->run = run_shrink;
	c->done = shrunk;
	rv_cell_send(port, rv_port_index(cl->registrar->conf.port), c);
	return 0;
}

/* What else is asked: registrar_region.c. */

struct ask_msg {
	struct rv_registrar *r;
	struct rv_engine *engine;
	struct rv_pool_ask ask;
};

static void run_ask(struct rv_port *p, struct rv_cell *c)
{
	struct ask_msg *m = (void *)c->body;

	rv_registrar_run_ask(m->r, &m->ask);
	rv_registrar_publish(m->r);
	rv_cell_reply(p, c);
}

static void asked(struct rv_port *p, struct rv_cell *c)
{
	struct ask_msg m = *(struct ask_msg *)(void *)c->body;

	rv_cell_free(p, c);
	rv_engine_asked(m.engine, &m.ask);
}

int rv_registrar_ask(void *user, const struct rv_pool_ask *a)
{
	struct rv_registrar_client *cl = user;
	struct rv_port *port = cl->engine->reactor->port;
	struct rv_cell *c = rv_cell_alloc(port);

	if (!c)
		return -EAGAIN;
	*(struct ask_msg *)(void *)c->body = (struct ask_msg){cl->registrar, cl->engine, *a};
	c->run = run_ask;
	c->done = asked;
	rv_cell_send(port, rv_port_index(cl->registrar->conf.port), c);
	return 0;
}

_Static_assert(sizeof(struct ask_msg) <= RV_CELL_BODY, "fits a cell");

static int turn(void *user)
{
	uint64_t now_ns = rv_clock_ns(), next_ns = rv_registrar_cool(user, now_ns);

	return next_ns == RV_NEVER ? -1 : (int)((next_ns - now_ns) / RV_MS(1)) + 1;
}

int rv_registrar_start(struct rv_registrar *r)
{
	r->thread = (struct rv_port_thread){.port = r->conf.port,
					    .name = "rvd-slow",
					    .turn = turn,
					    .user = r};
	return rv_port_thread_start(&r->thread);
}

void rv_registrar_leave(struct rv_registrar *r)
{
	atomic_store_explicit(&r->leaving, true, memory_order_relaxed);
}

void rv_registrar_stop(struct rv_registrar *r)
{
	rv_port_thread_stop(&r->thread);
	rv_parking_fini(&r->parking);
}
