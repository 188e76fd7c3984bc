/* The slow thread's work, done by hand on its port; and once by the thread itself. */
#include "control/service/registrar.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dataplane/base/units.h"
#include "tests/fake/fake_clock.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define BUDGET RV_MIB(16)
#define PLAIN  RV_MIB(8)
#define RETAIN RV_MIB(4)
#define ALICE  1000u
#define BOB    1001u

static struct rv_mesh *mesh;
static struct rv_port *port, *slow;
static struct rv_reactor reactor;
static struct rv_engine engine; /* only what the hooks reach: reactor and pool */
static struct fake_fabric fabric[2];
static struct rv_registrar reg;
static struct rv_registrar_client client;

/* What the pool has. */
static struct rv_arena *live[32];
static unsigned live_nr;

static void start(unsigned fabrics, bool native)
{
	struct rv_reactor_conf rc = {.clock = fake_clock};
	struct rv_registrar_conf c = {
		.fabric_nr = fabrics,
		.registered_budget = BUDGET,
		.plain_budget = PLAIN,
		.retain_bytes = RETAIN,
		.hugepages = RV_HUGEPAGES_NO,
	};
	struct rv_pool_conf pc = {
		.reactor = &reactor,
		.initial_bytes = RV_MIB(1),
		.max_bytes = RV_MIB(64),
		.dedicated_min = RV_MIB(64),
		.reclaim_after_ns = RV_NEVER,
	};

	mesh = rv_mesh_create(2, 16);
	port = rv_mesh_port(mesh, 0);
	slow = rv_mesh_port(mesh, 1);
	rc.port = port;
	rv_reactor_init(&reactor, &rc);
	c.port = slow;
	for (unsigned i = 0; i < fabrics; i++) {
		fake_fabric_init(&fabric[i], i + 1, 1u << i);
		fabric[i].fabric.index = i;
		fabric[i].fabric.native = native;
		c.fabric[i] = &fabric[i].fabric;
	}
	memset(&engine, 0, sizeof(engine));
	engine.reactor = &reactor;
	rv_pool_init(&engine.pool, &pc);
	memset(&reg, 0, sizeof(reg));
	rv_registrar_init(&reg, &c);
	client = (struct rv_registrar_client){.registrar = &reg, .engine = &engine};
	live_nr = 0;
}

static int setup(void **state)
{
	(void)state;
	start(1, false);
	return 0;
}

static void run(void)
{
	while (rv_port_poll(slow, 100) + rv_port_poll(port, 100))
		;
}

/* Ask for an arena, and take what the pool would be told out of its list. */
static struct rv_arena *grow(enum rv_arena_kind kind, uid_t uid, uint64_t min, uint64_t want,
			     bool dedicated)
{
	struct rv_pool_grow g = {
		.cls = {.kind = kind, .uid = uid, .session = kind == RV_ARENA_SESSION ? 5 : 0},
		.len_min = min,
		.len_want = want,
		.dedicated = dedicated,
	};
	struct rv_list *before = engine.pool.arenas.prev, *last;

	engine.pool.growing++;
	assert_int_equal(rv_registrar_grow(&client, &g), 0);
	run();
	assert_int_equal(engine.pool.growing, 0);
	last = engine.pool.arenas.prev;
	if (last == before)
		return NULL;
	live[live_nr++] = RV_LIST_ENTRY(last, struct rv_arena, link);
	return live[live_nr - 1];
}

static void shrink(struct rv_arena *a)
{
	for (unsigned i = 0; i < live_nr; i++)
		if (live[i] == a)
			live[i] = live[--live_nr];
	rv_list_del(&a->link);
	assert_int_equal(rv_registrar_shrink(&client, a), 0);
	run();
}

static int finish(void **state)
{
	(void)state;
	while (live_nr)
		shrink(live[0]);
	assert_int_equal(reg.registered.used, 0);
	assert_int_equal(rv_counter_get(&reg.live_regions), 0);
	assert_int_equal(reg.plain.used, reg.parking.parked_bytes);
	rv_registrar_stop(&reg);
	assert_int_equal(fake_free_cells(port), 16);
	assert_int_equal(fabric[0].live_maps, 0);
	rv_task_cancel(&reactor, &engine.pool.sweep);
	rv_pool_fini(&engine.pool);
	rv_mesh_destroy(mesh);
	return 0;
}

static bool readable(const void *p)
{
	char byte;
	struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)p, 1};

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

/* Arenas. */

static const struct {
	enum rv_arena_kind kind;
	bool dedicated, registered, has_key;
} kinds[] = {
	{RV_ARENA_LANDING, false, true, false}, {RV_ARENA_LANDING, true, true, false},
	{RV_ARENA_STAGING, false, true, true},  {RV_ARENA_SESSION, false, true, true},
	{RV_ARENA_PLAIN, false, false, false},  {RV_ARENA_PLAIN, true, false, false},
};

static void an_arena_is_pages_a_registration_and_an_allocator(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(kinds); i++) {
		struct rv_arena *a =
			grow(kinds[i].kind, ALICE, 5000, RV_MIB(1), kinds[i].dedicated);

		assert_non_null(a);
		assert_int_equal(a->cls.kind, kinds[i].kind);
		assert_int_equal(a->cls.uid, ALICE);
		assert_int_equal(a->pages.len, RV_MIB(1));
		assert_int_equal(a->dedicated, kinds[i].dedicated);
		assert_int_equal(a->alloc == NULL, kinds[i].dedicated);
		assert_int_equal(rv_arena_registered(a), kinds[i].registered);
		assert_int_equal(a->map[0] != NULL, kinds[i].registered);
		if (a->map[0])
			assert_int_equal(a->map[0]->key_len != 0, kinds[i].has_key);
		assert_int_equal(a->id, i + 1);
	}
	assert_int_equal(reg.registered.used, RV_MIB(4));
	assert_int_equal(reg.plain.used, RV_MIB(2));
	assert_int_equal(rv_counter_get(&reg.live_regions), 4);
	assert_int_equal(rv_counter_get(&reg.registrations), 4);
}

static void without_a_fabric_nothing_is_registered(void **state)
{
	struct rv_arena *a;

	(void)state;
	finish(NULL);
	start(0, false);
	a = grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false);
	assert_false(rv_arena_registered(a));
	assert_int_equal(reg.plain.used, RV_MIB(1));
}

static void generations_and_ids_are_never_used_twice(void **state)
{
	uint64_t generation = 0;
	uint32_t id = 0;

	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false);

		assert_true(a->generation > generation && a->id > id);
		generation = a->generation;
		id = a->id;
		shrink(a);
	}
}

/* The budget. */

static const struct {
	uint64_t taken, min, want, got; /* MiB; got 0: refused */
} budgets[] = {
	{0, 1, 4, 4},  {12, 1, 4, 4}, {13, 1, 4, 2}, {15, 1, 8, 1},
	{13, 3, 8, 3}, {13, 4, 8, 0}, {16, 1, 1, 0}, {0, 17, 17, 0},
};

static void as_much_is_taken_as_the_budget_allows(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(budgets); i++) {
		struct rv_arena *fill = NULL, *a;

		if (budgets[i].taken)
			fill = grow(RV_ARENA_LANDING, ALICE, RV_MIB(budgets[i].taken),
				    RV_MIB(budgets[i].taken), true);
		a = grow(RV_ARENA_LANDING, BOB, RV_MIB(budgets[i].min), RV_MIB(budgets[i].want),
			 false);
		if ((a ? a->pages.len : 0) != RV_MIB(budgets[i].got))
			fail_msg("row %zu: %llu bytes", i,
				 a ? (unsigned long long)a->pages.len : 0);
		if (a)
			assert_int_equal(reg.registered.used,
					 RV_MIB(budgets[i].taken) + a->pages.len);
		if (a)
			shrink(a);
		if (fill)
			shrink(fill);
	}
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_BUDGET]), 3);
}

static void a_failed_registration_leaves_nothing(void **state)
{
	(void)state;
	fabric[0].map_rc = (struct fake_script){.nr = 1, .outcome = {-EPERM}};
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false));
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_MAP]), 1);
	assert_int_equal(reg.registered.used, 0);
	assert_non_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false));
}

/* A memlock limit: what the system refused once it would refuse every time. */
static void a_refused_registration_lowers_the_budget(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(1), RV_MIB(1), true), *b;

	(void)state;
	assert_non_null(a);
	assert_int_equal(rv_budget_limit(&reg.registered), BUDGET);
	fabric[0].map_rc = (struct fake_script){.nr = 2, .outcome = {-EPERM, -ENOMEM}};
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(4), false));
	assert_int_equal(reg.registered.limit, RV_MIB(1) + RV_MIB(2));
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(4), false)); /* 2 are tried */
	assert_int_equal(reg.registered.limit, RV_MIB(1) + RV_MIB(1));
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_MAP]), 2);
	b = grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(4), false);
	assert_non_null(b);
	assert_int_equal(b->pages.len, RV_MIB(1));
	/* It is full now: no more attempts, the budget says no. */
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(4), false));
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_MAP]), 2);
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_BUDGET]), 1);
	assert_int_equal(reg.registered.used, RV_MIB(2));
}

/* What others had registered they may have given back. */
static void a_lowered_budget_is_tried_again_after_a_while(void **state)
{
	struct rv_arena *a;
	unsigned tries = 0;

	(void)state;
	fabric[0].map_rc = (struct fake_script){.nr = 2, .outcome = {-ENOMEM, -ENOMEM}};
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(4), false));
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(4), false));
	assert_int_equal(reg.registered.limit, RV_MIB(1));
	assert_null(grow(RV_ARENA_STAGING, ALICE, RV_MIB(4), RV_MIB(4), false));
	assert_int_equal(reg.registered.limit, RV_MIB(1)); /* not at once */
	for (a = NULL; !a; tries++) {
		assert_true(tries < 10);
		reg.refused_ns -= RV_SEC(31);
		a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(4), RV_MIB(4), false);
	}
	assert_int_equal(tries, 2);
	assert_int_equal(a->pages.len, RV_MIB(4));
	for (unsigned i = 0; i < 10; i++) {
		reg.refused_ns -= RV_SEC(31);
		assert_null(grow(RV_ARENA_STAGING, ALICE, 1ULL << 40, 1ULL << 40, false));
	}
	assert_int_equal(reg.registered.limit, BUDGET); /* and no more than was configured */
	shrink(a);
}

/* A key that cannot be made says nothing about how much may be registered. */
static void another_failure_leaves_the_budget_alone(void **state)
{
	(void)state;
	fabric[0].map_rc = (struct fake_script){.nr = 1, .outcome = {-ENOTSUP}};
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false));
	assert_int_equal(reg.registered.limit, BUDGET);
}

static void a_second_fabric_that_fails_undoes_the_first(void **state)
{
	(void)state;
	finish(NULL);
	start(2, false);
	fabric[1].map_rc = (struct fake_script){.nr = 1, .outcome = {-ENOTSUP}};
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false));
	assert_int_equal(fabric[0].maps, 1);
	assert_int_equal(fabric[0].live_maps, 0);
	assert_int_equal(rv_counter_get(&reg.live_regions), 0);
	assert_non_null(grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false));
	assert_int_equal(reg.registered.used, RV_MIB(1)); /* once, whatever fabrics know it */
	assert_int_equal(rv_counter_get(&reg.live_regions), 2);
}

static void memory_that_is_not_there_is_an_error_here(void **state)
{
	(void)state;
	reg.registered.limit = UINT64_MAX;
	assert_null(grow(RV_ARENA_STAGING, ALICE, 1ULL << 50, 1ULL << 50, true));
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_MEMORY]), 1);
	assert_int_equal(reg.registered.used, 0);
}

static uint64_t room_bytes;

static uint64_t room(void)
{
	return room_bytes;
}

static void what_the_control_group_has_no_room_for_is_not_asked_of_the_kernel(void **state)
{
	struct rv_arena *a;

	(void)state;
	reg.conf.room = room;
	room_bytes = RV_MIB(2) - 1;
	assert_null(grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), true));
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_MEMORY]), 1);
	assert_int_equal(reg.registered.used, 0);
	assert_int_equal(fabric[0].live_maps, 0);
	room_bytes = RV_MIB(2);
	a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), true);
	assert_non_null(a);
	shrink(a);
}

static void an_unmap_that_is_not_confirmed_leaks_the_pages(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_LANDING, ALICE, 1, RV_MIB(1), false);
	void *base = a->pages.base;

	(void)state;
	fabric[0].unmap_rc = (struct fake_script){.nr = 1, .outcome = {-EIO}};
	shrink(a);
	assert_true(readable(base)); /* the device may still write there */
	assert_int_equal(rv_counter_get(&reg.unconfirmed), 1);
	assert_int_equal(reg.registered.used, RV_MIB(1));
	munmap(base, RV_MIB(1));
	rv_budget_give(&reg.registered, RV_MIB(1));
	rv_counter_sub(&reg.live_regions, 1);
}

static void a_fabric_whose_device_is_gone_does_not_cost_the_other(void **state)
{
	struct rv_arena *a;

	(void)state;
	finish(NULL);
	start(2, true);
	fabric[1].fabric.dead = true;
	a = grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false);
	assert_non_null(a);
	assert_true(rv_arena_registered(a));
	assert_non_null(a->map[0]);
	assert_null(a->map[1]);
	shrink(a);
	assert_int_equal(rv_counter_get(&reg.unconfirmed), 0);
}

/* Parking: where a peer's software GET may still reach. */

static const struct {
	enum rv_arena_kind kind;
	bool native, kept, readable;
} parks[] = {
	{RV_ARENA_STAGING, false, true, true},  {RV_ARENA_SESSION, false, false, true}, /* hollow */
	{RV_ARENA_LANDING, false, true, true}, /* warm: of these no key went out */
	{RV_ARENA_PLAIN, false, true, true},    {RV_ARENA_LANDING, true, true, true},
	{RV_ARENA_STAGING, true, false, false}, /* a device keeps to its keys */
	{RV_ARENA_SESSION, true, false, false},
};

static void pages_that_a_software_get_may_reach_stay_readable(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(parks); i++) {
		struct rv_arena *a;
		void *base;

		finish(NULL);
		start(1, parks[i].native);
		a = grow(parks[i].kind, ALICE, 1, RV_MIB(1), false);
		base = a->pages.base;
		shrink(a);
		assert_int_equal(readable(base), parks[i].readable);
		assert_int_equal(reg.parking.parked_bytes, parks[i].kept ? RV_MIB(1) : 0);
		assert_int_equal(reg.plain.used, parks[i].kept ? RV_MIB(1) : 0);
		assert_int_equal(rv_counter_get(&reg.parked_bytes), parks[i].kept ? RV_MIB(1) : 0);
	}
}

/* Warm: what nobody else can reach. */

static void warm_pages_are_the_next_arena_of_their_user(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(2), RV_MIB(2), true), *b;
	void *base = a->pages.base;

	(void)state;
	shrink(a);
	assert_int_equal(reg.registered.used, 0); /* its registration ended at once */
	assert_int_equal(reg.plain.used, RV_MIB(2));
	b = grow(RV_ARENA_LANDING, BOB, RV_MIB(2), RV_MIB(2), true);
	assert_ptr_not_equal(b->pages.base, base);
	b = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), true);
	assert_ptr_not_equal(b->pages.base, base);
	a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(2), RV_MIB(2), true);
	assert_ptr_equal(a->pages.base, base);
	assert_int_equal(reg.plain.used, 0);
	assert_int_equal(reg.registered.used, RV_MIB(6));
}

static void warm_pages_go_after_a_while(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(2), RV_MIB(2), true);
	void *base = a->pages.base;
	uint64_t now = RV_SEC(1000);

	(void)state;
	assert_int_equal(rv_registrar_cool(&reg, now), RV_NEVER);
	shrink(a);
	assert_int_equal(rv_registrar_cool(&reg, now), now + RV_PAGES_WARM_NS);
	assert_int_equal(rv_registrar_cool(&reg, now + RV_PAGES_WARM_NS - 1),
			 now + RV_PAGES_WARM_NS);
	assert_true(readable(base));
	assert_int_equal(rv_counter_get(&reg.parked_bytes), RV_MIB(2));
	assert_int_equal(rv_registrar_cool(&reg, now + RV_PAGES_WARM_NS), RV_NEVER);
	assert_false(readable(base));
	assert_int_equal(rv_counter_get(&reg.parked_bytes), 0);
	assert_int_equal(reg.plain.used, 0);
}

static void warm_pages_make_room_for_whoever_needs_it(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(6), RV_MIB(6), true);
	void *base;

	(void)state;
	shrink(a);
	assert_int_equal(reg.plain.used, RV_MIB(6));
	assert_non_null(grow(RV_ARENA_PLAIN, BOB, RV_MIB(7), RV_MIB(7), true));
	assert_int_equal(reg.parking.warm_bytes, 0);
	assert_int_equal(reg.plain.used, RV_MIB(7));
	/* ... and where they have none they are not kept. */
	a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(6), RV_MIB(6), true);
	base = a->pages.base;
	shrink(a);
	assert_false(readable(base));
	assert_int_equal(reg.plain.used, RV_MIB(7));
}

static void nothing_is_kept_warm_where_nothing_may_be_retained(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_LANDING, ALICE, RV_MIB(2), RV_MIB(2), true);
	void *base = a->pages.base;

	(void)state;
	reg.parking.retain_bytes = 0;
	shrink(a);
	assert_false(readable(base));
	assert_int_equal(reg.plain.used, 0);
}

static void warm_pages_do_not_count_against_what_is_retained(void **state)
{
	struct rv_arena *warm = grow(RV_ARENA_LANDING, ALICE, RETAIN, RETAIN, true);
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);

	(void)state;
	shrink(warm);
	shrink(a);
	assert_int_equal(reg.parking.parked_bytes, RETAIN + RV_MIB(2));
	assert_int_equal(reg.parking.warm_bytes, RETAIN);
}

static void parked_pages_are_the_next_arena_of_their_user(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false), *b;
	void *base = a->pages.base;

	(void)state;
	shrink(a);
	b = grow(RV_ARENA_STAGING, BOB, 1, RV_MIB(1), false);
	assert_ptr_not_equal(b->pages.base, base);
	a = grow(RV_ARENA_STAGING, ALICE, 1, RV_MIB(1), false);
	assert_ptr_equal(a->pages.base, base);
	assert_int_equal(reg.registered.used, RV_MIB(2));
	assert_int_equal(reg.plain.used, 0);
}

static void larger_parked_pages_are_counted_whole(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);
	void *base = a->pages.base;

	(void)state;
	shrink(a);
	a = grow(RV_ARENA_STAGING, ALICE, RV_KIB(1500), RV_KIB(1500), false);
	assert_ptr_equal(a->pages.base, base);
	assert_int_equal(a->pages.len, RV_MIB(2));
	assert_int_equal(reg.registered.used, RV_MIB(2));
}

static void more_than_may_be_kept_is_hollow(void **state)
{
	struct rv_arena *a[3];
	void *base[3];

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		a[i] = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);
		base[i] = a[i]->pages.base;
	}
	for (size_t i = 0; i < 3; i++)
		shrink(a[i]);
	assert_int_equal(reg.parking.parked_bytes, RETAIN);
	assert_int_equal(reg.plain.used, RETAIN);
	for (size_t i = 0; i < 3; i++)
		assert_true(readable(base[i]));
}

static void without_plain_budget_parked_pages_are_hollow(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);
	struct rv_arena *fill = grow(RV_ARENA_PLAIN, ALICE, RV_MIB(7), RV_MIB(7), true);
	void *base = a->pages.base;

	(void)state;
	shrink(a);
	assert_true(readable(base));
	assert_int_equal(reg.parking.parked_bytes, 0);
	assert_int_equal(reg.plain.used, RV_MIB(7));
	shrink(fill);
}

/* A stray GET may still read the parked pages, whatever becomes of the arena they were meant for. */

static void parked_pages_the_budget_cannot_hold_stay_readable(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);
	struct rv_arena *fill;
	void *base = a->pages.base;

	(void)state;
	shrink(a);
	fill = grow(RV_ARENA_LANDING, ALICE, RV_KIB(14600), RV_KIB(14600), true);
	assert_non_null(fill);
	(void)grow(RV_ARENA_STAGING, ALICE, RV_KIB(1500), RV_KIB(1500),
		   false); /* fits; the parked 2 MiB do not */
	assert_true(readable(base));
}

static void parked_pages_that_cannot_be_registered_again_stay_readable(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);
	void *base = a->pages.base;

	(void)state;
	shrink(a);
	fabric[0].map_rc = (struct fake_script){.nr = 1, .outcome = {-ENOMEM}};
	assert_null(grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false));
	assert_true(readable(base));
}

static void a_request_that_fits_the_budget_is_served_though_parked_pages_do_not(void **state)
{
	struct rv_arena *a = grow(RV_ARENA_STAGING, ALICE, RV_MIB(2), RV_MIB(2), false);

	(void)state;
	shrink(a);
	assert_non_null(grow(RV_ARENA_LANDING, ALICE, RV_KIB(14600), RV_KIB(14600), true));
	assert_non_null(grow(RV_ARENA_STAGING, ALICE, RV_KIB(1500), RV_KIB(1500), false));
}

/* The hooks and the thread. */

static void without_a_cell_the_hooks_say_again(void **state)
{
	struct rv_pool_grow g = {.len_min = 1, .len_want = 4096};
	struct rv_arena *a = grow(RV_ARENA_PLAIN, ALICE, 1, 4096, false);
	struct rv_list taken, *it;
	struct rv_cell *c;

	(void)state;
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(port)))
		rv_list_push(&taken, &c->link);
	assert_int_equal(rv_registrar_grow(&client, &g), -EAGAIN);
	assert_int_equal(rv_registrar_shrink(&client, a), -EAGAIN);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(port, RV_LIST_ENTRY(it, struct rv_cell, link));
}

static void the_thread_serves_and_stops(void **state)
{
	struct rv_pool_grow g = {.cls = {.kind = RV_ARENA_STAGING},
				 .len_min = 1,
				 .len_want = RV_MIB(1)};

	(void)state;
	assert_int_equal(rv_registrar_start(&reg), 0);
	for (unsigned i = 0; i < 5; i++) {
		engine.pool.growing++;
		assert_int_equal(rv_registrar_grow(&client, &g), 0);
		while (engine.pool.growing)
			rv_port_wait(port, 1000);
		live[live_nr++] = RV_LIST_ENTRY(engine.pool.arenas.prev, struct rv_arena, link);
		assert_true(rv_budget_used(&reg.registered) > 0); /* as metrics read it */
	}
	for (; live_nr; live_nr--) {
		rv_list_del(&live[live_nr - 1]->link);
		assert_int_equal(rv_registrar_shrink(&client, live[live_nr - 1]), 0);
	}
	rv_registrar_stop(&reg); /* what is queued is served first */
	rv_port_poll(port, 100);
	assert_int_equal(reg.registered.used, 0);
	reg.plain.used = 0; /* the parked pages went with the stop */
}

#define REGISTRAR(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		REGISTRAR(an_arena_is_pages_a_registration_and_an_allocator),
		REGISTRAR(without_a_fabric_nothing_is_registered),
		REGISTRAR(generations_and_ids_are_never_used_twice),
		REGISTRAR(as_much_is_taken_as_the_budget_allows),
		REGISTRAR(a_failed_registration_leaves_nothing),
		REGISTRAR(a_refused_registration_lowers_the_budget),
		REGISTRAR(a_lowered_budget_is_tried_again_after_a_while),
		REGISTRAR(another_failure_leaves_the_budget_alone),
		REGISTRAR(a_second_fabric_that_fails_undoes_the_first),
		REGISTRAR(memory_that_is_not_there_is_an_error_here),
		REGISTRAR(what_the_control_group_has_no_room_for_is_not_asked_of_the_kernel),
		REGISTRAR(an_unmap_that_is_not_confirmed_leaks_the_pages),
		REGISTRAR(pages_that_a_software_get_may_reach_stay_readable),
		REGISTRAR(a_fabric_whose_device_is_gone_does_not_cost_the_other),
		REGISTRAR(warm_pages_are_the_next_arena_of_their_user),
		REGISTRAR(warm_pages_go_after_a_while),
		REGISTRAR(warm_pages_make_room_for_whoever_needs_it),
		REGISTRAR(nothing_is_kept_warm_where_nothing_may_be_retained),
		REGISTRAR(warm_pages_do_not_count_against_what_is_retained),
		REGISTRAR(parked_pages_are_the_next_arena_of_their_user),
		REGISTRAR(larger_parked_pages_are_counted_whole),
		REGISTRAR(more_than_may_be_kept_is_hollow),
		REGISTRAR(without_plain_budget_parked_pages_are_hollow),
		REGISTRAR(parked_pages_the_budget_cannot_hold_stay_readable),
		REGISTRAR(parked_pages_that_cannot_be_registered_again_stay_readable),
		REGISTRAR(a_request_that_fits_the_budget_is_served_though_parked_pages_do_not),
		REGISTRAR(without_a_cell_the_hooks_say_again),
		REGISTRAR(the_thread_serves_and_stops),
	};

	return cmocka_run_group_tests_name("registrar", tests, NULL, NULL);
}
