#include "dataplane/mem/pool.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/fake/fake_clock.h"
#include "tests/fake/fake_grow.h"
#include "tests/unit/exact.h"
#include "tests/unit/forked.h"

#define ALICE 1000u
#define BOB   1001u

static struct fixture {
	struct rv_mesh *mesh;
	struct rv_reactor reactor;
	struct fake_fabric fabric;
	struct fake_grow grow;
	struct rv_pool pool;
} f;

/* A request and what became of it. */
struct wish {
	struct rv_pool_req req;
	unsigned done;
	int rc;
};

static void wish_done(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	struct wish *w = req->ctx;

	assert_ptr_equal(p, &f.pool);
	w->done++;
	w->rc = rc;
}

static int ask(struct wish *w, enum rv_arena_kind kind, uid_t uid, uint64_t len, bool allow_plain)
{
	*w = (struct wish){
		.req =
			{
				.cls = {.kind = kind, .uid = uid},
				.len = len,
				.allow_plain = allow_plain,
				.done = wish_done,
				.ctx = w,
			},
		.rc = 1,
	};
	return rv_pool_alloc(&f.pool, &w->req);
}

static void start(uint64_t retain, uint64_t reclaim_after)
{
	struct rv_reactor_conf rc = {.clock = fake_clock};
	struct rv_pool_conf pc = {
		.reactor = &f.reactor,
		.initial_bytes = RV_MIB(1),
		.max_bytes = RV_MIB(8),
		.dedicated_min = RV_MIB(4),
		.retain_bytes = retain,
		.reclaim_after_ns = reclaim_after,
		.registers = true,
		.grow = fake_grow_ask,
		.shrink = fake_grow_shrink,
		.user = &f.grow,
	};

	memset(&f, 0, sizeof(f));
	f.mesh = rv_mesh_create(1, 4);
	rc.port = rv_mesh_port(f.mesh, 0);
	rv_reactor_init(&f.reactor, &rc);
	fake_fabric_init(&f.fabric, 1, 1);
	fake_grow_init(&f.grow, &f.pool, &f.fabric);
	rv_pool_init(&f.pool, &pc);
}

static int setup(void **state)
{
	(void)state;
	start(0, RV_NEVER);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	f.grow.shrink_rc = (struct fake_script){0};
	rv_pool_stop(&f.pool);
	fake_grow_serve_all(&f.grow);
	assert_int_equal(rv_pool_shrink_all(&f.pool), 0);
	assert_int_equal(f.grow.live, 0);
	assert_int_equal(rv_counter_get(&f.pool.blocks), 0);
	assert_int_equal(rv_counter_get(&f.pool.used_bytes), 0);
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 0);
	rv_pool_fini(&f.pool);
	rv_mesh_destroy(f.mesh);
	return 0;
}

static void later(uint64_t ns)
{
	fake_now_ns += ns;
	while (rv_reactor_step(&f.reactor))
		;
}

/* Growing. */

static void the_first_request_grows_and_is_told_later(void **state)
{
	struct wish w;

	(void)state;
	assert_int_equal(ask(&w, RV_ARENA_STAGING, ALICE, 5000, true), -EINPROGRESS);
	assert_int_equal(w.done, 0);
	assert_int_equal(f.grow.pending[0].len_want, RV_MIB(1));
	assert_false(f.grow.pending[0].dedicated);
	assert_int_equal(rv_counter_get(&f.pool.largest_free), 0);
	fake_grow_serve(&f.grow);
	assert_int_equal(w.done, 1);
	assert_int_equal(w.rc, 0);
	assert_int_equal(w.req.refusal, RV_POOL_GRANTED);
	assert_int_equal(w.req.block->holds, 1);
	assert_int_equal(w.req.block->len, 5000);
	assert_true(rv_arena_registered(w.req.block->arena));
	assert_int_equal(rv_counter_get(&f.pool.used_bytes), 8192);
	later(RV_MS(100));
	assert_int_equal(rv_counter_get(&f.pool.free_bytes), RV_MIB(1) - 8192);
	assert_in_range(rv_counter_get(&f.pool.largest_free), RV_KIB(900), RV_MIB(1) - 8192);
	rv_block_drop(w.req.block);
	later(RV_MS(100));
	assert_int_equal(rv_counter_get(&f.pool.largest_free), RV_MIB(1));
	assert_int_equal(rv_counter_get(&f.pool.free_bytes), RV_MIB(1));
}

static void with_room_a_block_comes_at_once(void **state)
{
	struct wish a, b;

	(void)state;
	ask(&a, RV_ARENA_STAGING, ALICE, 5000, true);
	fake_grow_serve(&f.grow);
	assert_int_equal(ask(&b, RV_ARENA_STAGING, ALICE, 5000, true), 0);
	assert_int_equal(b.done, 0); /* done() is for what comes later */
	assert_ptr_equal(a.req.block->arena, b.req.block->arena);
	assert_true(rv_block_ptr(a.req.block) + 5000 <= rv_block_ptr(b.req.block) ||
		    rv_block_ptr(b.req.block) + 5000 <= rv_block_ptr(a.req.block));
	rv_block_drop(a.req.block);
	rv_block_drop(b.req.block);
}

static void one_growth_serves_all_that_fit(void **state)
{
	struct wish w[5];

	(void)state;
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(ask(&w[i], RV_ARENA_LANDING, ALICE, RV_KIB(100), false),
				 -EINPROGRESS);
	fake_grow_serve(&f.grow);
	for (size_t i = 0; i < 5; i++) {
		assert_int_equal(w[i].done, 1);
		assert_int_equal(w[i].rc, 0);
	}
	/* The growths that the others had asked for still come, and help nobody. */
	fake_grow_serve_all(&f.grow);
	assert_int_equal(f.pool.growing, 0);
	for (size_t i = 0; i < 5; i++) {
		assert_int_equal(w[i].done, 1);
		rv_block_drop(w[i].req.block);
	}
}

/* Of those under way, the slow thread answers now this one, now that one, and refuses some. */
static void answer_one(unsigned n)
{
	struct rv_pool_grow g = f.grow.pending[n % f.grow.pending_nr];

	f.grow.pending[n % f.grow.pending_nr] = f.grow.pending[0];
	f.grow.pending[0] = g;
	if (n % 3 == 0 && g.cls.kind != RV_ARENA_PLAIN)
		fake_grow_refuse(&f.grow, n % 2 ? -ENOSPC : -ENOMEM);
	else
		fake_grow_serve(&f.grow);
}

static void whatever_order_growths_come_in_everybody_is_served_once(void **state)
{
	static const uint64_t len[] = {RV_KIB(64), RV_MIB(3),   RV_KIB(700), 4096,
				       RV_MIB(4),  RV_KIB(900), RV_MIB(5),   1};

	(void)state;
	for (unsigned order = 0; order < 24; order++) {
		struct wish w[16];
		unsigned answers = 0;

		for (size_t i = 0; i < 16; i++)
			assert_int_equal(ask(&w[i], i % 3 ? RV_ARENA_STAGING : RV_ARENA_LANDING,
					     i % 2 ? ALICE : BOB, len[i / 2], true),
					 -EINPROGRESS);
		while (f.grow.pending_nr) {
			answer_one(order + answers);
			assert_true(++answers < 200);
		}
		assert_int_equal(f.pool.growing, 0);
		for (size_t i = 0; i < 16; i++) {
			if (w[i].done != 1 || w[i].rc)
				fail_msg("order %u: wish %zu was answered %u times, %d", order, i,
					 w[i].done, w[i].rc);
			rv_block_drop(w[i].req.block);
		}
		assert_int_equal(rv_pool_shrink_all(&f.pool), 0);
	}
}

/* Three of one class; the growth they wait for is refused, and the next cannot even be asked for. */
static void nobody_waits_without_a_growth_under_way(void **state)
{
	static struct wish w[3];

	(void)state;
	for (size_t i = 0; i < 3; i++)
		ask(&w[i], RV_ARENA_LANDING, ALICE, RV_KIB(100), false);
	f.grow.grow_rc = (struct fake_script){.then = -EAGAIN};
	while (f.grow.pending_nr)
		fake_grow_refuse(&f.grow, -ENOSPC);
	for (size_t i = 0; i < 3; i++)
		if (w[i].done != 1)
			fail_msg("wish %zu waits, and nothing is on its way", i);
}

static void arenas_double_up_to_the_largest(void **state)
{
	static const uint64_t want[] = {RV_MIB(1), RV_MIB(2), RV_MIB(4), RV_MIB(8), RV_MIB(8)};
	struct wish w[64];
	unsigned n = 0;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(want); i++) {
		while (ask(&w[n], RV_ARENA_STAGING, ALICE, RV_KIB(600), true) == 0)
			n++;
		assert_int_equal(f.grow.pending[0].len_want, want[i]);
		fake_grow_serve(&f.grow);
		assert_int_equal(w[n++].rc, 0);
	}
	while (n)
		rv_block_drop(w[--n].req.block);
}

static void a_growth_may_be_smaller_than_wanted_but_helps(void **state)
{
	struct wish w;

	(void)state;
	f.grow.len_cap = RV_KIB(16);
	assert_int_equal(ask(&w, RV_ARENA_STAGING, ALICE, RV_KIB(900), true), -EINPROGRESS);
	assert_true(f.grow.pending[0].len_min >= RV_KIB(900));
	fake_grow_serve(&f.grow); /* as little as len_min says */
	assert_int_equal(w.done, 1);
	assert_int_equal(w.rc, 0);
	rv_block_drop(w.req.block);
}

static void a_pool_too_busy_to_ask_says_so(void **state)
{
	struct wish w;

	(void)state;
	f.grow.grow_rc = (struct fake_script){.nr = 1, .outcome = {-EAGAIN}};
	assert_int_equal(ask(&w, RV_ARENA_STAGING, ALICE, 1, true), -EAGAIN);
	assert_int_equal(f.pool.growing, 0);
	assert_true(rv_list_empty(&f.pool.waiting));
}

static void a_length_beyond_reason_is_refused(void **state)
{
	struct wish w;

	(void)state;
	assert_int_equal(ask(&w, RV_ARENA_STAGING, ALICE, UINT64_MAX, true), -ENOSPC);
	assert_int_equal(f.grow.asked, 0);
}

/* Refusals. */

static const struct {
	int why;
	enum rv_pool_refusal refusal;
} refusals[] = {
	{-ENOSPC, RV_POOL_BUDGET},
	{-ENOMEM, RV_POOL_EXHAUSTED},
	{-EIO, RV_POOL_EXHAUSTED},
};

static void refused_registered_memory_becomes_plain_where_that_is_allowed(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(refusals); i++) {
		struct wish w;

		setup(NULL);
		assert_int_equal(ask(&w, RV_ARENA_STAGING, ALICE, 5000, true), -EINPROGRESS);
		fake_grow_refuse(&f.grow, refusals[i].why);
		assert_int_equal(w.done, 0);
		assert_int_equal(f.grow.pending[0].cls.kind, RV_ARENA_PLAIN);
		assert_int_equal(f.grow.pending[0].cls.uid, ALICE);
		fake_grow_serve(&f.grow);
		assert_int_equal(w.done, 1);
		assert_int_equal(w.rc, 0);
		assert_int_equal(w.req.refusal, refusals[i].refusal);
		assert_false(rv_arena_registered(w.req.block->arena));
		rv_block_drop(w.req.block);
		if (i + 1 < RV_ARRAY_NR(refusals))
			finish(NULL);
	}
}

static void refused_registered_memory_is_an_error_where_plain_is_not_allowed(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(refusals); i++) {
		struct wish w;

		assert_int_equal(ask(&w, RV_ARENA_LANDING, ALICE, 5000, false), -EINPROGRESS);
		fake_grow_refuse(&f.grow, refusals[i].why);
		assert_int_equal(w.done, 1);
		assert_int_equal(w.rc, -ENOSPC);
		assert_int_equal(w.req.refusal, refusals[i].refusal);
	}
}

static void refused_plain_memory_is_an_error_and_keeps_the_first_reason(void **state)
{
	struct wish w;

	(void)state;
	ask(&w, RV_ARENA_STAGING, ALICE, 5000, true);
	fake_grow_refuse(&f.grow, -ENOMEM);
	fake_grow_refuse(&f.grow, -ENOSPC);
	assert_int_equal(w.done, 1);
	assert_int_equal(w.rc, -ENOSPC);
	assert_int_equal(w.req.refusal, RV_POOL_EXHAUSTED);
}

static void plain_room_that_is_there_is_used_at_once(void **state)
{
	struct wish plain, w;

	(void)state;
	ask(&plain, RV_ARENA_PLAIN, ALICE, 5000, true);
	fake_grow_serve(&f.grow);
	ask(&w, RV_ARENA_STAGING, ALICE, 5000, true);
	fake_grow_refuse(&f.grow, -ENOSPC);
	assert_int_equal(w.done, 1);
	assert_ptr_equal(w.req.block->arena, plain.req.block->arena);
	rv_block_drop(plain.req.block);
	rv_block_drop(w.req.block);
}

static void a_session_turns_to_a_plain_arena_of_its_own(void **state)
{
	struct wish w = {
		.req =
			{
				.cls = {.kind = RV_ARENA_SESSION, .uid = ALICE, .session = 3},
				.len = 5000,
				.allow_plain = true,
				.done = wish_done,
				.ctx = &w,
			},
	};

	(void)state;
	assert_int_equal(rv_pool_alloc(&f.pool, &w.req), -EINPROGRESS);
	fake_grow_refuse(&f.grow, -ENOSPC);
	assert_int_equal(f.grow.pending[0].cls.kind, RV_ARENA_SESSION);
	assert_int_equal(f.grow.pending[0].cls.session, 3);
	assert_true(f.grow.pending[0].cls.plain);
	fake_grow_serve(&f.grow);
	assert_int_equal(w.rc, 0);
	assert_false(rv_arena_registered(w.req.block->arena));
	rv_block_drop(w.req.block);
}

/* Who shares an arena. */

static void users_kinds_and_sessions_do_not_share_arenas(void **state)
{
	static const struct rv_arena_class cls[] = {
		{RV_ARENA_LANDING, ALICE, 0, false}, {RV_ARENA_LANDING, BOB, 0, false},
		{RV_ARENA_STAGING, ALICE, 0, false}, {RV_ARENA_SESSION, ALICE, 1, false},
		{RV_ARENA_SESSION, ALICE, 2, false}, {RV_ARENA_SESSION, ALICE, 2, true},
		{RV_ARENA_PLAIN, ALICE, 0, false},   {RV_ARENA_PLAIN, BOB, 0, false},
	};
	struct wish w[RV_ARRAY_NR(cls)];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(cls); i++) {
		w[i] = (struct wish){
			.req = {.cls = cls[i], .len = 1, .done = wish_done, .ctx = &w[i]}};
		assert_int_equal(rv_pool_alloc(&f.pool, &w[i].req), -EINPROGRESS);
		fake_grow_serve(&f.grow);
		assert_int_equal(w[i].rc, 0);
		for (size_t k = 0; k < i; k++) {
			assert_ptr_not_equal(w[i].req.block->arena, w[k].req.block->arena);
			assert_true(rv_arena_class_owner(&cls[i]) != rv_arena_class_owner(&cls[k]));
		}
	}
	for (size_t i = 0; i < RV_ARRAY_NR(cls); i++)
		rv_block_drop(w[i].req.block);
}

/* Giving back. */

static void a_dedicated_arena_goes_back_the_moment_it_is_empty(void **state)
{
	struct wish w;

	(void)state;
	assert_int_equal(ask(&w, RV_ARENA_LANDING, ALICE, RV_MIB(4), false), -EINPROGRESS);
	assert_true(f.grow.pending[0].dedicated);
	assert_int_equal(f.grow.pending[0].len_want, RV_MIB(4));
	fake_grow_serve(&f.grow);
	assert_int_equal(w.rc, 0);
	assert_true(w.req.block->arena->dedicated);
	rv_block_drop(w.req.block);
	assert_int_equal(f.grow.given_back, 1);
	assert_int_equal(f.grow.live, 0);
}

static void a_dedicated_arena_serves_one_request(void **state)
{
	struct wish a, b;

	(void)state;
	ask(&a, RV_ARENA_LANDING, ALICE, RV_MIB(4), false);
	ask(&b, RV_ARENA_LANDING, ALICE, RV_MIB(4), false);
	fake_grow_serve(&f.grow);
	assert_int_equal(a.done + b.done, 1);
	fake_grow_serve(&f.grow);
	assert_int_equal(a.done + b.done, 2);
	assert_ptr_not_equal(a.req.block->arena, b.req.block->arena);
	rv_block_drop(a.req.block);
	rv_block_drop(b.req.block);
	assert_int_equal(f.grow.given_back, 2);
}

static void a_dedicated_arena_that_could_not_go_is_offered_again(void **state)
{
	struct wish w;

	(void)state;
	ask(&w, RV_ARENA_LANDING, ALICE, RV_MIB(4), false);
	fake_grow_serve(&f.grow);
	f.grow.shrink_rc = (struct fake_script){.nr = 2, .outcome = {-EAGAIN, -EAGAIN}};
	rv_block_drop(w.req.block);
	assert_int_equal(f.grow.live, 1);
	later(RV_MS(100));
	assert_int_equal(f.grow.live, 1); /* again no cell */
	later(RV_MS(101));
	assert_int_equal(f.grow.live, 0);
}

static void a_pooled_arena_stays_unless_reclaiming_is_on(void **state)
{
	struct wish w;

	(void)state;
	ask(&w, RV_ARENA_LANDING, ALICE, 1, false);
	fake_grow_serve(&f.grow);
	rv_block_drop(w.req.block);
	later(RV_SEC(3600));
	assert_int_equal(f.grow.live, 1);
}

/* Nothing will ever be reclaimed, so nobody need be woken for it. */
static void with_reclaiming_off_an_idle_pool_sets_no_timer(void **state)
{
	struct wish pooled, own;

	(void)state;
	ask(&pooled, RV_ARENA_LANDING, ALICE, 1, false);
	fake_grow_serve(&f.grow);
	ask(&own, RV_ARENA_LANDING, ALICE, RV_MIB(4), false);
	fake_grow_serve(&f.grow);
	rv_block_drop(pooled.req.block);
	f.grow.shrink_rc = (struct fake_script){.nr = 1, .outcome = {-EAGAIN}};
	rv_block_drop(own.req.block); /* goes back with the first sweep */
	for (unsigned i = 0; i < 50; i++)
		later(RV_MS(100));
	assert_int_equal(f.grow.live, 1);
	assert_int_equal(rv_wheel_next_ns(&f.reactor.wheel), RV_NEVER);
}

static void an_empty_arena_is_reclaimed_between_one_and_two_intervals(void **state)
{
	struct wish w;

	(void)state;
	finish(NULL);
	start(0, RV_SEC(10));
	ask(&w, RV_ARENA_LANDING, ALICE, 1, false);
	fake_grow_serve(&f.grow);
	later(RV_SEC(60));
	assert_int_equal(f.grow.live, 1); /* in use */
	rv_block_drop(w.req.block);
	for (unsigned i = 0; i < 9; i++) {
		later(RV_SEC(1));
		assert_int_equal(f.grow.live, 1);
	}
	for (unsigned i = 0; i < 11; i++)
		later(RV_SEC(1));
	assert_int_equal(f.grow.live, 0);
}

/* In milliseconds: after how long an empty arena is given back, at most, and never before `reclaim`. */
static const struct {
	unsigned reclaim, lease, until;
} paces[] = {
	{10000, 0, 15000},                          /* half of its own */
	{10000, 30000, 15000}, {10000, 400, 10200}, /* half a lease timeout */
	{100, 2, 110},                              /* ten milliseconds at least */
	{6, 30000, 20},
};

static void reclaiming_keeps_the_faster_of_two_paces(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(paces); i++) {
		struct wish one, two;
		unsigned ms = 0;

		finish(NULL);
		start(0, RV_MS(paces[i].reclaim));
		f.pool.conf.lease_timeout_ns = RV_MS(paces[i].lease);
		ask(&one, RV_ARENA_LANDING, ALICE, 1, false);
		fake_grow_serve(&f.grow);
		ask(&two, RV_ARENA_LANDING, BOB, 1, false);
		fake_grow_serve(&f.grow);
		/* The first one's emptiness sets the beat; the second one goes off it by a little. */
		rv_block_drop(one.req.block);
		later(RV_MS(1));
		rv_block_drop(two.req.block);
		for (; f.grow.live && ms <= 2 * paces[i].until; ms++)
			later(RV_MS(1));
		if (ms < paces[i].reclaim || ms > paces[i].until)
			fail_msg("row %zu: %u ms", i, ms);
	}
}

static void the_first_arenas_stay_as_a_warm_floor(void **state)
{
	struct wish w[3];

	(void)state;
	finish(NULL);
	start(RV_MIB(1), RV_SEC(10));
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(ask(&w[i], RV_ARENA_LANDING, ALICE, RV_KIB(600) << i, false),
				 -EINPROGRESS);
		fake_grow_serve(&f.grow);
	}
	for (size_t i = 0; i < 3; i++)
		rv_block_drop(w[i].req.block);
	for (unsigned i = 0; i < 60; i++)
		later(RV_SEC(1));
	assert_int_equal(f.grow.live, 1);
	assert_int_equal(RV_LIST_ENTRY(f.pool.arenas.next, struct rv_arena, link)->pages.len,
			 RV_MIB(1));
}

static void a_session_that_ends_gives_its_arenas_back_as_they_empty(void **state)
{
	struct wish a = {.req = {.cls = {RV_ARENA_SESSION, ALICE, 1, false},
				 .len = 1,
				 .done = wish_done,
				 .ctx = &a}};
	struct wish b = {.req = {.cls = {RV_ARENA_SESSION, ALICE, 2, false},
				 .len = 1,
				 .done = wish_done,
				 .ctx = &b}};

	(void)state;
	rv_pool_alloc(&f.pool, &a.req);
	rv_pool_alloc(&f.pool, &b.req);
	fake_grow_serve_all(&f.grow);
	rv_pool_end_session(&f.pool, 1);
	assert_int_equal(f.grow.live, 2);
	rv_block_drop(a.req.block);
	assert_int_equal(f.grow.live, 1);
	rv_block_drop(b.req.block);
	assert_int_equal(f.grow.live, 1); /* the other session's is not over */
	rv_pool_end_session(&f.pool, 2);
	assert_int_equal(f.grow.live, 0);
}

/* Holds and rest. */

static void a_block_stays_until_its_last_hold(void **state)
{
	struct wish w;

	(void)state;
	ask(&w, RV_ARENA_LANDING, ALICE, RV_MIB(4), false);
	fake_grow_serve(&f.grow);
	rv_block_hold(w.req.block);
	rv_block_hold(w.req.block);
	rv_block_drop(w.req.block);
	rv_block_drop(w.req.block);
	assert_int_equal(f.grow.live, 1);
	rv_block_drop(w.req.block);
	assert_int_equal(f.grow.live, 0);
}

static void a_block_rests_exactly_as_long_as_it_must(void **state)
{
	struct wish w, again;
	uint64_t until;
	uint8_t *was;

	(void)state;
	ask(&w, RV_ARENA_STAGING, ALICE, RV_KIB(900), false);
	fake_grow_serve(&f.grow);
	until = fake_now_ns + RV_MS(500);
	was = rv_block_ptr(w.req.block);
	rv_block_rest_until(w.req.block, until);
	rv_block_rest_until(w.req.block, until - RV_MS(200)); /* never shortens */
	rv_block_drop(w.req.block);
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 1);
	later(RV_MS(499));
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 1);
	assert_int_equal(ask(&again, RV_ARENA_STAGING, ALICE, RV_KIB(900), false), -EINPROGRESS);
	fake_grow_serve(&f.grow);
	assert_ptr_not_equal(rv_block_ptr(again.req.block), was);
	later(RV_MS(1));
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 0);
	rv_block_drop(again.req.block);
	assert_int_equal(rv_counter_get(&f.pool.blocks), 0);
}

static void a_rest_that_is_over_before_the_last_hold_costs_nothing(void **state)
{
	struct wish w;

	(void)state;
	ask(&w, RV_ARENA_STAGING, ALICE, 1, false);
	fake_grow_serve(&f.grow);
	rv_block_rest_until(w.req.block, fake_now_ns + RV_MS(5));
	later(RV_MS(10));
	rv_block_drop(w.req.block);
	assert_int_equal(rv_counter_get(&f.pool.blocks), 0);
}

/* Stopping. */

static void a_stopped_pool_hands_out_nothing_and_fails_who_waits(void **state)
{
	struct wish a, b, c;

	(void)state;
	ask(&a, RV_ARENA_STAGING, ALICE, 1, false);
	ask(&b, RV_ARENA_STAGING, ALICE, RV_MIB(5), false);
	rv_pool_stop(&f.pool);
	assert_int_equal(a.done, 1);
	assert_int_equal(a.rc, -ESHUTDOWN);
	assert_int_equal(b.rc, -ESHUTDOWN);
	assert_int_equal(ask(&c, RV_ARENA_STAGING, ALICE, 1, true), -ESHUTDOWN);
	assert_int_equal(rv_pool_shrink_all(&f.pool), 2); /* two growths are still to come back */
	fake_grow_serve(&f.grow);
	fake_grow_refuse(&f.grow, -ENOMEM);
	assert_int_equal(rv_pool_shrink_all(&f.pool), 0);
}

static void stopping_ends_every_rest(void **state)
{
	struct wish w[3];

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		ask(&w[i], RV_ARENA_STAGING, ALICE, RV_MIB(4), false);
		fake_grow_serve(&f.grow);
		rv_block_rest_until(w[i].req.block, RV_NEVER - 1);
		if (i < 2)
			rv_block_drop(w[i].req.block);
	}
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 2);
	rv_pool_stop(&f.pool);
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 0);
	assert_int_equal(f.grow.live, 1);
	rv_block_drop(w[2].req.block);
	assert_int_equal(f.grow.live, 0);
}

static void shrinking_all_tells_how_many_are_left(void **state)
{
	struct wish a, b;

	(void)state;
	ask(&a, RV_ARENA_STAGING, ALICE, 1, false);
	ask(&b, RV_ARENA_STAGING, BOB, 1, false);
	fake_grow_serve_all(&f.grow);
	rv_block_drop(a.req.block);
	assert_int_equal(rv_pool_shrink_all(&f.pool), 1);
	rv_block_drop(b.req.block);
	f.grow.shrink_rc = (struct fake_script){.nr = 1, .outcome = {-EAGAIN}};
	assert_int_equal(rv_pool_shrink_all(&f.pool), 1);
	assert_int_equal(rv_pool_shrink_all(&f.pool), 0);
}

/* Two empty arenas, and no cell to give either back. */
static bool two_that_cannot_go(void)
{
	struct wish a, b;

	setup(NULL);
	ask(&a, RV_ARENA_STAGING, ALICE, 1, false);
	ask(&b, RV_ARENA_STAGING, BOB, 1, false);
	fake_grow_serve_all(&f.grow);
	rv_block_drop(a.req.block);
	rv_block_drop(b.req.block);
	f.grow.shrink_rc = (struct fake_script){.then = -EAGAIN};
	return rv_pool_shrink_all(&f.pool) == 2;
}

static bool two_of_a_session_that_cannot_go(void)
{
	struct wish w[2];

	setup(NULL);
	for (size_t i = 0; i < 2; i++) {
		w[i] = (struct wish){.req = {.cls = {RV_ARENA_SESSION, ALICE, 9, i != 0},
					     .len = 1,
					     .done = wish_done,
					     .ctx = &w[i]}};
		rv_pool_alloc(&f.pool, &w[i].req);
		fake_grow_serve(&f.grow);
		rv_block_drop(w[i].req.block);
	}
	f.grow.shrink_rc = (struct fake_script){.then = -EAGAIN};
	rv_pool_end_session(&f.pool, 9);
	return f.grow.live == 2;
}

static void shrinking_all_ends_though_no_arena_can_be_given_back(void **state)
{
	(void)state;
	assert_int_equal(forked(two_that_cannot_go), 0);
}

static void ending_a_session_ends_though_no_arena_can_be_given_back(void **state)
{
	(void)state;
	assert_int_equal(forked(two_of_a_session_that_cannot_go), 0);
}

static void measures_add_up(void **state)
{
	struct wish a, b;
	struct rv_pool_stats s = {0};

	(void)state;
	ask(&a, RV_ARENA_STAGING, ALICE, RV_KIB(100), false);
	fake_grow_serve(&f.grow);
	ask(&b, RV_ARENA_STAGING, ALICE, RV_MIB(4), false);
	fake_grow_serve(&f.grow);
	rv_pool_measure(&f.pool, &s);
	assert_int_equal(s.used_bytes, RV_KIB(100) + RV_MIB(4));
	assert_int_equal(s.free_bytes, RV_MIB(1) - RV_KIB(100));
	assert_in_range(s.largest_free_bytes, RV_KIB(924) * 8 / 9, RV_KIB(924));
	rv_block_drop(a.req.block);
	rv_block_drop(b.req.block);
}

/* A done() that asks again, and one that gives back at once. */

struct chain {
	struct wish first, second;
};

static void ask_again(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	struct chain *c = req->ctx;

	(void)p;
	c->first.done++;
	c->first.rc = rc;
	if (!rc) {
		rv_block_drop(req->block);
		ask(&c->second, RV_ARENA_LANDING, ALICE, RV_KIB(10), false);
	}
}

static void whoever_is_told_may_use_the_pool_at_once(void **state)
{
	struct chain c = {.first = {.req = {.cls = {.kind = RV_ARENA_LANDING, .uid = ALICE},
					    .len = RV_KIB(10)}}};
	struct wish other;

	(void)state;
	c.first.req.done = ask_again;
	c.first.req.ctx = &c;
	assert_int_equal(rv_pool_alloc(&f.pool, &c.first.req), -EINPROGRESS);
	assert_int_equal(ask(&other, RV_ARENA_LANDING, ALICE, RV_KIB(10), false), -EINPROGRESS);
	fake_grow_serve(&f.grow);
	assert_int_equal(c.first.done, 1);
	assert_int_equal(other.done, 1);
	assert_non_null(c.second.req.block);
	rv_block_drop(c.second.req.block);
	rv_block_drop(other.req.block);
}

static void drop_at_once(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	(void)p;
	if (!rc)
		rv_block_drop(req->block);
	((struct wish *)req->ctx)->done++;
}

static void a_dedicated_block_may_be_dropped_from_done(void **state)
{
	struct wish w = {.req = {.cls = {.kind = RV_ARENA_LANDING},
				 .len = RV_MIB(4),
				 .done = drop_at_once,
				 .ctx = &w}};

	(void)state;
	assert_int_equal(rv_pool_alloc(&f.pool, &w.req), -EINPROGRESS);
	fake_grow_serve(&f.grow);
	assert_int_equal(w.done, 1);
	assert_int_equal(f.grow.live, 0);
}

#define POOL(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		POOL(the_first_request_grows_and_is_told_later),
		POOL(with_room_a_block_comes_at_once),
		POOL(one_growth_serves_all_that_fit),
		POOL(whatever_order_growths_come_in_everybody_is_served_once),
		POOL(nobody_waits_without_a_growth_under_way),
		POOL(arenas_double_up_to_the_largest),
		POOL(a_growth_may_be_smaller_than_wanted_but_helps),
		POOL(a_pool_too_busy_to_ask_says_so),
		POOL(a_length_beyond_reason_is_refused),
		cmocka_unit_test_teardown(
			refused_registered_memory_becomes_plain_where_that_is_allowed, finish),
		POOL(refused_registered_memory_is_an_error_where_plain_is_not_allowed),
		POOL(refused_plain_memory_is_an_error_and_keeps_the_first_reason),
		POOL(plain_room_that_is_there_is_used_at_once),
		POOL(a_session_turns_to_a_plain_arena_of_its_own),
		POOL(users_kinds_and_sessions_do_not_share_arenas),
		POOL(a_dedicated_arena_goes_back_the_moment_it_is_empty),
		POOL(a_dedicated_arena_serves_one_request),
		POOL(a_dedicated_arena_that_could_not_go_is_offered_again),
		POOL(a_pooled_arena_stays_unless_reclaiming_is_on),
		POOL(with_reclaiming_off_an_idle_pool_sets_no_timer),
		POOL(an_empty_arena_is_reclaimed_between_one_and_two_intervals),
		POOL(reclaiming_keeps_the_faster_of_two_paces),
		POOL(the_first_arenas_stay_as_a_warm_floor),
		POOL(a_session_that_ends_gives_its_arenas_back_as_they_empty),
		POOL(a_block_stays_until_its_last_hold),
		POOL(a_block_rests_exactly_as_long_as_it_must),
		POOL(a_rest_that_is_over_before_the_last_hold_costs_nothing),
		POOL(a_stopped_pool_hands_out_nothing_and_fails_who_waits),
		POOL(stopping_ends_every_rest),
		POOL(shrinking_all_tells_how_many_are_left),
		POOL(shrinking_all_ends_though_no_arena_can_be_given_back),
		POOL(ending_a_session_ends_though_no_arena_can_be_given_back),
		POOL(measures_add_up),
		POOL(whoever_is_told_may_use_the_pool_at_once),
		POOL(a_dedicated_block_may_be_dropped_from_done),
	};

	return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
