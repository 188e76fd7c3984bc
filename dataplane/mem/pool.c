#include "dataplane/mem/pool.h"

#include <errno.h>
#include <stdlib.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"
#include "dataplane/mem/region.h"

#define SLAB_BLOCKS   256
#define SWEEP_FLOOR   RV_MS(10)
#define NOTE_EVERY    RV_MS(100)
#define SESSION_FIRST RV_MIB(8)

struct slab {
	struct rv_list link;
	struct rv_block block[SLAB_BLOCKS];
};

static void sweep(struct rv_reactor *r, struct rv_task *t);
static void rested(struct rv_reactor *r, struct rv_task *t);
static void note_free(struct rv_reactor *r, struct rv_task *t);
static void sweep_in(struct rv_pool *p, uint64_t delay_ns);

void rv_pool_init(struct rv_pool *p, const struct rv_pool_conf *conf)
{
	*p = (struct rv_pool){.conf = *conf};
	rv_list_init(&p->arenas);
	rv_list_init(&p->regions);
	rv_list_init(&p->waiting);
	rv_list_init(&p->free_blocks);
	rv_list_init(&p->slabs);
	p->sweep.fn = sweep;
	p->note.fn = note_free;
}

void rv_pool_fini(struct rv_pool *p)
{
	struct rv_list *it;

	rv_task_cancel(p->conf.reactor, &p->sweep);
	rv_task_cancel(p->conf.reactor, &p->note);
	while ((it = rv_list_pop(&p->slabs)))
		free(RV_LIST_ENTRY(it, struct slab, link));
	rv_list_init(&p->free_blocks);
}

static struct rv_block *record_take(struct rv_pool *p)
{
	struct rv_list *it = rv_list_pop(&p->free_blocks);
	struct slab *s;

	if (it)
		return RV_LIST_ENTRY(it, struct rv_block, link);
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	rv_list_push(&p->slabs, &s->link);
	for (size_t i = 1; i < SLAB_BLOCKS; i++)
		rv_list_push(&p->free_blocks, &s->block[i].link);
	return &s->block[0];
}

static bool same_class(const struct rv_arena_class *a, const struct rv_arena_class *b)
{
	return a->kind == b->kind && a->uid == b->uid && a->session == b->session &&
	       a->plain == b->plain;
}

/* What is free, and how much of it a fragmented pool can hand out in one piece. O(arenas), so not at each change. */
static void note_free(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_pool *p = RV_CONTAINER(t, struct rv_pool, note);
	struct rv_pool_stats s = {0};

	(void)r;
	rv_pool_measure(p, &s);
	rv_counter_set(&p->free_bytes, s.free_bytes);
	rv_counter_set(&p->largest_free, s.largest_free_bytes);
}

static void note_soon(struct rv_pool *p)
{
	if (!p->note.timer.armed)
		rv_task_at(p->conf.reactor, &p->note,
			   rv_sat_add(p->conf.reactor->now_ns, NOTE_EVERY));
}

static struct rv_block *carve(struct rv_pool *p, struct rv_arena *a, uint64_t len)
{
	uint64_t gr = rv_granules(len);
	struct rv_offset_slice s = {0};
	struct rv_block *b;

	if (a->dedicated ? a->block_nr != 0 || len > a->pages.len
			 : gr > UINT32_MAX || rv_offset_alloc_get(a->alloc, (uint32_t)gr, &s))
		return NULL;
	b = record_take(p);
	if (!b) {
		if (!a->dedicated)
			rv_offset_alloc_put(a->alloc, s);
		return NULL;
	}
	*b = (struct rv_block){
		.arena = a,
		.off = (uint64_t)s.off_gr * RV_GRANULE,
		.len = len,
		.slice = s,
		.holds = 1,
		.rest = {.fn = rested},
	};
	a->block_nr++;
	a->used_gr += gr;
	rv_counter_add(&p->blocks, 1);
	rv_counter_add(&p->used_bytes, gr * RV_GRANULE);
	note_soon(p);
	return b;
}

struct rv_block *rv_pool_region_block(struct rv_pool *p, struct rv_arena *a, uint64_t off,
				      uint64_t len)
{
	struct rv_block *b = record_take(p);

	RV_CHECK(a->region);
	RV_CHECK(len > 0 && off <= a->pages.len && len <= a->pages.len - off);
	if (!b)
		return NULL;
	*b = (struct rv_block){.arena = a,
			       .off = off,
			       .len = len,
			       .holds = 1,
			       .rest = {.fn = rested}};
	a->block_nr++;
	rv_counter_add(&p->blocks, 1);
	return b;
}

/* The allocator's bins may need an eighth more than the request. */
static uint64_t with_slack(uint64_t len)
{
	uint64_t room = rv_granules(len) * RV_GRANULE;

	return room + room / 8 + RV_GRANULE;
}

static bool needs_own_arena(const struct rv_pool *p, uint64_t len)
{
	return len >= p->conf.dedicated_min || with_slack(len) > p->conf.max_bytes;
}

static struct rv_block *from_pool(struct rv_pool *p, const struct rv_arena_class *cls, uint64_t len)
{
	struct rv_list *it;

	if (needs_own_arena(p, len))
		return NULL;
	RV_LIST_EACH(it, &p->arenas)
	{
		struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);
		struct rv_block *b;

		if (a->dedicated || !same_class(&a->cls, cls))
			continue;
		b = carve(p, a, len);
		if (b)
			return b;
	}
	return NULL;
}

static struct rv_arena_class wanted_class(const struct rv_pool_req *req)
{
	struct rv_arena_class c = req->cls;

	if (req->plain && c.kind == RV_ARENA_SESSION)
		c.plain = true;
	else if (req->plain)
		c = (struct rv_arena_class){.kind = RV_ARENA_PLAIN, .uid = c.uid};
	return c;
}

/* Twice the largest arena of the class so far, the first one small. */
static uint64_t next_size(const struct rv_pool *p, const struct rv_arena_class *cls)
{
	uint64_t want = cls->kind == RV_ARENA_SESSION
				? rv_min_u64(SESSION_FIRST, p->conf.initial_bytes)
				: p->conf.initial_bytes;
	struct rv_list *it;

	RV_LIST_EACH(it, &p->arenas)
	{
		const struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

		if (!a->dedicated && same_class(&a->cls, cls))
			want = rv_max_u64(want, a->pages.len * 2);
	}
	return rv_min_u64(want, p->conf.max_bytes);
}

static int ask_growth(struct rv_pool *p, struct rv_pool_req *req)
{
	struct rv_arena_class cls = wanted_class(req);
	uint64_t room = rv_granules(req->len) * RV_GRANULE;
	struct rv_pool_grow g = {.cls = cls, .reactor = p->conf.reactor->index};
	int rc;

	g.dedicated = needs_own_arena(p, req->len);
	g.len_min = g.dedicated ? room : with_slack(req->len);
	g.len_want = g.dedicated ? room : rv_max_u64(next_size(p, &cls), g.len_min);
	req->seq = ++p->last_seq;
	g.seq = req->seq;
	rc = p->conf.grow(p->conf.user, &g);
	if (rc)
		req->seq = 0;
	else
		p->growing++;
	return rc;
}

/* Is an arena of this class on its way that others may share? */
static bool growth_coming(const struct rv_pool *p, const struct rv_arena_class *cls)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &p->waiting)
	{
		const struct rv_pool_req *req = RV_LIST_ENTRY(it, struct rv_pool_req, link);
		struct rv_arena_class want = wanted_class(req);

		if (req->seq && same_class(&want, cls) && !needs_own_arena(p, req->len))
			return true;
	}
	return false;
}

/* Wait for memory: an arena that comes anyway, or a growth of its own. */
static int wait_for_memory(struct rv_pool *p, struct rv_pool_req *req)
{
	struct rv_arena_class cls = wanted_class(req);
	int rc = 0;

	req->seq = 0;
	if (needs_own_arena(p, req->len) || !growth_coming(p, &cls))
		rc = ask_growth(p, req);
	if (!rc)
		rv_list_push(&p->waiting, &req->link);
	return rc;
}

int rv_pool_alloc(struct rv_pool *p, struct rv_pool_req *req)
{
	struct rv_arena_class cls;
	int rc;

	RV_CHECK(req->len > 0);
	if (p->stopped)
		return -ESHUTDOWN;
	if (req->len > INT64_MAX / 2)
		return -ENOSPC;
	req->refusal = RV_POOL_GRANTED;
	req->plain = req->cls.kind == RV_ARENA_PLAIN || req->cls.plain;
	cls = wanted_class(req);
	req->block = from_pool(p, &cls, req->len);
	if (!req->block && req->mapped_only && !req->plain) {
		req->refusal = RV_POOL_EXHAUSTED;
		req->plain = true;
		cls = wanted_class(req);
		req->block = from_pool(p, &cls, req->len);
	}
	if (req->block)
		return 0;
	if (req->now)
		return -EAGAIN;
	rc = wait_for_memory(p, req);
	return rc ? rc : -EINPROGRESS;
}

static void finish(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	rv_list_del(&req->link);
	req->done(p, req, rc);
}

/* @g was refused: the first request it was meant for turns to plain memory, or fails. */
static void refuse(struct rv_pool *p, struct rv_pool_req *req, int why)
{
	struct rv_arena_class cls;

	if (!req->plain && req->refusal == RV_POOL_GRANTED)
		req->refusal = why == -ENOSPC ? RV_POOL_BUDGET : RV_POOL_EXHAUSTED;
	if (req->plain || !req->allow_plain) {
		finish(p, req, why == -EMFILE || why == -ENFILE ? -EMFILE : -ENOSPC);
		return;
	}
	req->plain = true;
	rv_list_del(&req->link);
	cls = wanted_class(req);
	req->block = from_pool(p, &cls, req->len);
	if (req->block) {
		req->done(p, req, 0);
		return;
	}
	if (wait_for_memory(p, req))
		req->done(p, req, -ENOSPC);
}

/* Those who waited for another's growth and got nothing: one of them asks for the next. */
static void ask_for_the_rest(struct rv_pool *p, const struct rv_arena_class *cls)
{
	struct rv_list *it = p->waiting.next;

	while (it != &p->waiting && !growth_coming(p, cls)) {
		struct rv_pool_req *req = RV_LIST_ENTRY(it, struct rv_pool_req, link);
		struct rv_arena_class want = wanted_class(req);

		it = it->next;
		if (req->seq || !same_class(&want, cls) || !ask_growth(p, req))
			continue;
		finish(p, req, -EAGAIN);
		it = p->waiting.next; /* done() may have changed the list */
	}
}

/* The request a growth was asked for, if no other growth has served it meanwhile. */
static struct rv_pool_req *asker_of(struct rv_pool *p, const struct rv_pool_grow *g)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &p->waiting)
	{
		struct rv_pool_req *req = RV_LIST_ENTRY(it, struct rv_pool_req, link);

		if (req->seq == g->seq) /* never 0 */
			return req;
	}
	return NULL;
}

/* One growth may help many. @return how many */
static unsigned serve_others(struct rv_pool *p, const struct rv_arena_class *cls)
{
	unsigned served = 0;

	for (struct rv_list *it = p->waiting.next; it != &p->waiting;) {
		struct rv_pool_req *req = RV_LIST_ENTRY(it, struct rv_pool_req, link);
		struct rv_arena_class want = wanted_class(req);

		it = it->next;
		if (!same_class(&want, cls))
			continue;
		req->block = from_pool(p, &want, req->len);
		if (!req->block)
			continue;
		finish(p, req, 0);
		served++;
		it = p->waiting.next; /* done() may have changed the list */
	}
	return served;
}

void rv_pool_grown(struct rv_pool *p, const struct rv_pool_grow *g)
{
	struct rv_pool_req *req = asker_of(p, g);
	unsigned served = 0;

	RV_CHECK(p->growing > 0);
	p->growing--;
	if (g->rc) {
		if (req)
			refuse(p, req, g->rc);
		ask_for_the_rest(p, &g->cls);
		return;
	}
	g->arena->pool = p;
	g->arena->empty_since_ns = p->conf.reactor->now_ns;
	rv_list_push(&p->arenas, &g->arena->link);
	note_soon(p);
	if (req) {
		req->block = carve(p, g->arena, req->len);
		served = req->block != NULL;
		finish(p, req, served ? 0 : -ENOMEM);
	}
	/* Whoever was served may have given its block, and the arena, back already: do not look at it again. */
	served += serve_others(p, &g->cls);
	/* Whoever asked for it has found other memory meanwhile. */
	if (!served && (g->dedicated || p->conf.reclaim_after_ns != RV_NEVER))
		sweep_in(p, SWEEP_FLOOR);
	ask_for_the_rest(p, &g->cls);
}

void rv_block_rest_until(struct rv_block *b, uint64_t until_ns)
{
	b->rest_until_ns = rv_max_u64(b->rest_until_ns, until_ns);
}

static void sweep_in(struct rv_pool *p, uint64_t delay_ns)
{
	if (!p->sweep.timer.armed)
		rv_task_at(p->conf.reactor, &p->sweep,
			   rv_sat_add(p->conf.reactor->now_ns, rv_max_u64(SWEEP_FLOOR, delay_ns)));
}

/* Half of the shorter of the two times, so that an arena goes between one and two of its own. */
static void sweep_soon(struct rv_pool *p)
{
	uint64_t lease = p->conf.lease_timeout_ns;

	sweep_in(p, rv_min_u64(lease ? lease : RV_NEVER, p->conf.reclaim_after_ns) / 2);
}

static int give_back(struct rv_pool *p, struct rv_arena *a)
{
	struct rv_list *next = a->link.next;
	int rc;

	if (a->demoting) /* the slow thread has it, and its answer names it */
		return -EAGAIN;
	rv_list_del(&a->link);
	rc = p->conf.shrink(p->conf.user, a);
	if (rc)
		rv_list_push(next,
			     &a->link); /* where it was: whoever walks the list sees it once */
	note_soon(p);
	return rc;
}

static bool single_use(const struct rv_arena *a)
{
	return a->dedicated || a->session_over;
}

static void arena_emptied(struct rv_pool *p, struct rv_arena *a)
{
	a->empty_since_ns = p->conf.reactor->now_ns;
	/* One request's, or an ended session's: empty, it only consumes budget. */
	if (single_use(a) && !give_back(p, a))
		return;
	if (single_use(a))
		sweep_in(p, RV_MS(100));
	else if (p->conf.reclaim_after_ns != RV_NEVER)
		sweep_soon(p);
}

static void free_block(struct rv_pool *p, struct rv_block *b)
{
	struct rv_arena *a = b->arena;
	uint64_t gr = rv_granules(b->len);

	if (a->alloc)
		rv_offset_alloc_put(a->alloc, b->slice);
	a->block_nr--;
	rv_counter_sub(&p->blocks, 1);
	if (!a->region) { /* a region's ranges may overlap, and use up nothing */
		a->used_gr -= gr;
		rv_counter_sub(&p->used_bytes, gr * RV_GRANULE);
	}
	b->arena = NULL;
	rv_list_push_front(&p->free_blocks, &b->link);
	note_soon(p);
	if (a->block_nr)
		return;
	if (a->region)
		p->conf.region_emptied(p, a);
	else
		arena_emptied(p, a);
}

void rv_block_drop(struct rv_block *b)
{
	struct rv_pool *p = b->arena->pool;
	struct rv_reactor *r = p->conf.reactor;

	RV_CHECK(b->holds > 0);
	if (--b->holds)
		return;
	if (b->rest_until_ns > r->now_ns && !p->stopped) {
		rv_counter_add(&p->resting_blocks, 1);
		rv_task_at(r, &b->rest, b->rest_until_ns);
		return;
	}
	free_block(p, b);
}

static void rested(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_block *b = RV_CONTAINER(t, struct rv_block, rest);
	struct rv_pool *p = b->arena->pool;

	rv_counter_sub(&p->resting_blocks, 1);
	free_block(p, b);
}

static bool may_reclaim(const struct rv_pool *p, const struct rv_arena *a, uint64_t others)
{
	if (a->block_nr)
		return false;
	if (single_use(a))
		return true;
	return p->conf.reclaim_after_ns != RV_NEVER && others >= p->conf.retain_bytes &&
	       p->conf.reactor->now_ns - a->empty_since_ns >= p->conf.reclaim_after_ns;
}

/* Newest first, so that the small first arena survives as the floor. */
static void sweep(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_pool *p = RV_CONTAINER(t, struct rv_pool, sweep);
	uint64_t kept = 0;
	bool again = false;
	struct rv_list *it, *prev;

	RV_LIST_EACH(it, &p->arenas)
	kept += RV_LIST_ENTRY(it, struct rv_arena, link)->pages.len;
	for (it = p->arenas.prev, prev = it->prev; it != &p->arenas; it = prev, prev = it->prev) {
		struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);
		uint64_t len = a->pages.len;

		if (!may_reclaim(p, a, kept - len)) {
			again |= !a->block_nr && p->conf.reclaim_after_ns != RV_NEVER &&
				 kept > p->conf.retain_bytes;
			continue;
		}
		if (give_back(p, a)) {
			again = true;
			break;
		}
		kept -= len;
	}
	if (again && p->conf.reclaim_after_ns != RV_NEVER)
		sweep_soon(p);
	else if (again)
		sweep_in(p, RV_MS(100));
	(void)r;
}

static void end_rest_of(struct rv_pool *p, struct rv_list *slabs)
{
	struct rv_list *it;

	RV_LIST_EACH(it, slabs)
	{
		struct slab *s = RV_LIST_ENTRY(it, struct slab, link);

		for (size_t i = 0; i < SLAB_BLOCKS; i++) {
			if (!s->block[i].rest.timer.armed)
				continue;
			rv_task_cancel(p->conf.reactor, &s->block[i].rest);
			rested(p->conf.reactor, &s->block[i].rest);
		}
	}
}

void rv_pool_stop(struct rv_pool *p)
{
	struct rv_list *it;

	p->stopped = true;
	end_rest_of(p, &p->slabs);
	while ((it = rv_list_pop(&p->waiting))) {
		struct rv_pool_req *req = RV_LIST_ENTRY(it, struct rv_pool_req, link);

		req->done(p, req, -ESHUTDOWN);
	}
}

unsigned rv_pool_shrink_all(struct rv_pool *p)
{
	struct rv_list *it, *next;
	unsigned left = 0;

	RV_LIST_EACH_SAFE(it, next, &p->arenas)
	{
		struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

		if (a->block_nr || give_back(p, a))
			left++;
	}
	RV_LIST_EACH(it, &p->regions)
	left += RV_LIST_ENTRY(it, struct rv_arena, link)->region->state != RV_REGION_STUCK;
	return left + p->growing;
}

void rv_pool_end_session(struct rv_pool *p, uint64_t session)
{
	struct rv_list *it, *next;

	RV_LIST_EACH_SAFE(it, next, &p->arenas)
	{
		struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);

		if (a->cls.kind != RV_ARENA_SESSION || a->cls.session != session)
			continue;
		a->session_over = true;
		if (!a->block_nr && give_back(p, a))
			sweep_in(p, RV_MS(100));
	}
}

void rv_pool_measure(const struct rv_pool *p, struct rv_pool_stats *out)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &p->arenas)
	{
		const struct rv_arena *a = RV_LIST_ENTRY(it, struct rv_arena, link);
		uint64_t used = a->used_gr * RV_GRANULE;

		out->used_bytes += used;
		out->free_bytes += a->pages.len - used;
		if (!a->dedicated)
			out->largest_free_bytes = rv_max_u64(
				out->largest_free_bytes,
				(uint64_t)rv_offset_alloc_largest_gr(a->alloc) * RV_GRANULE);
	}
}
