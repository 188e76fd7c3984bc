#include "dataplane/base/idtab.h"

#include "dataplane/base/handle.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

struct thing {
	struct rv_idrec rec;
	uint64_t payload;
};

#define REACTOR 5u

static void make(struct rv_idtab *t, uint32_t max, uint64_t seed)
{
	assert_int_equal(rv_idtab_init(t, sizeof(struct thing), max, REACTOR, seed), 0);
}

static void an_id_carries_its_reactor_and_is_never_zero(void **state)
{
	struct rv_idtab t;
	struct thing *r;

	(void)state;
	for (uint64_t seed = 0; seed < 2; seed++) {
		make(&t, 8, seed);
		r = rv_idtab_alloc(&t);
		assert_non_null(r);
		assert_int_not_equal(r->rec.id, 0);
		assert_int_equal(rv_local_reactor(r->rec.id), REACTOR);
		assert_ptr_equal(rv_idtab_get(&t, r->rec.id), r);
		rv_idtab_fini(&t);
	}
}

static void foreign_and_made_up_ids_find_nothing(void **state)
{
	struct rv_idtab t;
	struct thing *r;
	uint64_t id;

	(void)state;
	make(&t, 8, 0);
	r = rv_idtab_alloc(&t);
	id = r->rec.id;
	for (unsigned bit = 0; bit < 64; bit++)
		assert_null(rv_idtab_get(&t, id ^ 1ULL << bit));
	assert_null(rv_idtab_get(&t, 0));
	assert_null(rv_idtab_get(&t, UINT64_MAX));
	rv_idtab_fini(&t);
}

static void a_full_table_says_so_and_recovers(void **state)
{
	struct rv_idtab t;
	struct thing *r[4];

	(void)state;
	make(&t, 4, 0);
	for (size_t i = 0; i < 4; i++)
		assert_non_null(r[i] = rv_idtab_alloc(&t));
	assert_null(rv_idtab_alloc(&t));
	rv_idtab_free(&t, r[2], RV_END_RELEASED);
	assert_ptr_equal(rv_idtab_alloc(&t), r[2]);
	assert_null(rv_idtab_alloc(&t));
	assert_int_equal(t.live_nr, 4);
	rv_idtab_fini(&t);
}

/* A small table reuses its records all the time. */
static void a_counting_id_is_never_used_twice(void **state)
{
	static uint64_t seen[20000];
	struct rv_idtab t;

	(void)state;
	make(&t, 4, 0);
	for (size_t i = 0; i < RV_ARRAY_NR(seen); i++) {
		struct thing *r = rv_idtab_alloc(&t);

		seen[i] = r->rec.id;
		rv_idtab_free(&t, r, RV_END_RELEASED);
	}
	for (size_t i = 0; i < RV_ARRAY_NR(seen); i++) {
		assert_null(rv_idtab_get(&t, seen[i]));
		/* Records are reused in turn, so equal ids would be a multiple of four apart. */
		for (size_t j = i + 4; j < i + 400 && j < RV_ARRAY_NR(seen); j += 4)
			assert_true(seen[j] > seen[i]);
	}
	rv_idtab_fini(&t);
}

static void a_stale_id_is_refused_though_its_record_lives_again(void **state)
{
	for (uint64_t seed = 0; seed < 2; seed++) {
		struct rv_idtab t;
		struct thing *r;
		uint64_t id;

		(void)state;
		make(&t, 1, seed);
		r = rv_idtab_alloc(&t);
		id = r->rec.id;
		rv_idtab_free(&t, r, RV_END_EXPIRED);
		r = rv_idtab_alloc(&t);
		assert_true(r->rec.id != id);
		assert_null(rv_idtab_get(&t, id));
		assert_int_equal(rv_idtab_cause(&t, id),
				 RV_END_NONE); /* forgotten: the record says something else */
		assert_ptr_equal(rv_idtab_get(&t, r->rec.id), r);
		rv_idtab_fini(&t);
	}
}

static void a_record_comes_zeroed(void **state)
{
	struct rv_idtab t;
	struct thing *r;

	(void)state;
	make(&t, 1, 0);
	r = rv_idtab_alloc(&t);
	r->payload = 99;
	rv_idtab_free(&t, r, RV_END_RELEASED);
	r = rv_idtab_alloc(&t);
	assert_int_equal(r->payload, 0);
	rv_idtab_fini(&t);
}

static const enum rv_end_cause causes[] = {RV_END_RELEASED, RV_END_EXPIRED, RV_END_DROPPED};

static void the_cause_of_an_end_is_remembered(void **state)
{
	struct rv_idtab t;

	(void)state;
	make(&t, 16, 0);
	for (size_t i = 0; i < RV_ARRAY_NR(causes); i++) {
		struct thing *r = rv_idtab_alloc(&t);

		assert_int_equal(rv_idtab_cause(&t, r->rec.id), RV_END_NONE); /* it lives */
		rv_idtab_free(&t, r, causes[i]);
		assert_int_equal(rv_idtab_cause(&t, r->rec.id), causes[i]);
	}
	assert_int_equal(rv_idtab_cause(&t, 12345), RV_END_NONE);
	rv_idtab_fini(&t);
}

/* "The last 65,536 ended ids are remembered with their cause", while more are ending and beginning. */
static void sixty_five_thousand_ended_ids_are_remembered(void **state)
{
	static uint64_t id[3 * RV_IDTAB_REMEMBER];
	struct rv_idtab t;

	(void)state;
	make(&t, RV_IDTAB_MAX, 0);
	for (size_t i = 0; i < RV_ARRAY_NR(id); i++) {
		struct thing *r = rv_idtab_alloc(&t);

		id[i] = r->rec.id;
		rv_idtab_free(&t, r, RV_END_EXPIRED);
	}
	for (size_t i = RV_ARRAY_NR(id) - RV_IDTAB_REMEMBER; i < RV_ARRAY_NR(id); i++)
		assert_int_equal(rv_idtab_cause(&t, id[i]), RV_END_EXPIRED);
	rv_idtab_fini(&t);
}

static void a_new_id_does_not_cost_the_memory_of_the_65536th(void **state)
{
	struct rv_idtab t;
	uint64_t first = 0;

	(void)state;
	make(&t, RV_IDTAB_MAX, 0);
	for (size_t i = 0; i < RV_IDTAB_REMEMBER; i++) {
		struct thing *r = rv_idtab_alloc(&t);

		if (!i)
			first = r->rec.id;
		rv_idtab_free(&t, r, RV_END_EXPIRED);
	}
	/* "not before RV_IDTAB_REMEMBER others were freed, as long as fresh ones are left" */
	assert_non_null(rv_idtab_alloc(&t));
	assert_int_equal(rv_idtab_cause(&t, first), RV_END_EXPIRED);
	rv_idtab_fini(&t);
}

static void random_ids_do_not_follow_from_one_another(void **state)
{
	struct rv_idtab a, b;
	uint64_t last = 0;
	unsigned up = 0;

	(void)state;
	make(&a, 1000, 1234);
	make(&b, 1000, 1235);
	for (unsigned i = 0; i < 1000; i++) {
		const struct thing *x = rv_idtab_alloc(&a), *y = rv_idtab_alloc(&b);

		assert_true(x->rec.id != y->rec.id);
		up += x->rec.id > last;
		last = x->rec.id;
	}
	assert_in_range(up, 400, 600);
	rv_idtab_fini(&a);
	rv_idtab_fini(&b);
}

static void a_walk_meets_the_living_and_may_end_them(void **state)
{
	struct rv_idtab t;
	struct thing *r[10];
	uint32_t pos = 0;
	unsigned met = 0;

	(void)state;
	make(&t, 16, 0);
	for (size_t i = 0; i < 10; i++)
		r[i] = rv_idtab_alloc(&t);
	rv_idtab_free(&t, r[3], RV_END_RELEASED);
	rv_idtab_free(&t, r[9], RV_END_RELEASED);
	for (struct thing *x; (x = rv_idtab_next(&t, &pos)); met++)
		rv_idtab_free(&t, x, RV_END_DROPPED);
	assert_int_equal(met, 8);
	assert_int_equal(t.live_nr, 0);
	rv_idtab_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_id_carries_its_reactor_and_is_never_zero),
		cmocka_unit_test(foreign_and_made_up_ids_find_nothing),
		cmocka_unit_test(a_full_table_says_so_and_recovers),
		cmocka_unit_test(a_counting_id_is_never_used_twice),
		cmocka_unit_test(a_stale_id_is_refused_though_its_record_lives_again),
		cmocka_unit_test(a_record_comes_zeroed),
		cmocka_unit_test(the_cause_of_an_end_is_remembered),
		cmocka_unit_test(sixty_five_thousand_ended_ids_are_remembered),
		cmocka_unit_test(a_new_id_does_not_cost_the_memory_of_the_65536th),
		cmocka_unit_test(random_ids_do_not_follow_from_one_another),
		cmocka_unit_test(a_walk_meets_the_living_and_may_end_them),
	};

	return cmocka_run_group_tests_name("idtab", tests, NULL, NULL);
}
