#include "dataplane/mem/offset_alloc.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"
#include "tests/unit/forked.h"

static uint64_t rng = 88172645463325252u;

static uint32_t random_below(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng % n);
}

static void one_granule_can_be_had_and_given_back(void **state)
{
	struct rv_offset_alloc *a = rv_offset_alloc_create(1);
	struct rv_offset_slice s, t;

	(void)state;
	assert_int_equal(rv_offset_alloc_largest_gr(a), 1);
	assert_int_equal(rv_offset_alloc_get(a, 1, &s), 0);
	assert_int_equal(rv_offset_alloc_get(a, 1, &t), -ENOSPC);
	assert_int_equal(rv_offset_alloc_largest_gr(a), 0);
	assert_int_equal(rv_offset_alloc_free_gr(a), 0);
	rv_offset_alloc_put(a, s);
	assert_int_equal(rv_offset_alloc_free_gr(a), 1);
	rv_offset_alloc_destroy(a);
}

static void nothing_of_zero_length_is_handed_out(void **state)
{
	struct rv_offset_alloc *a = rv_offset_alloc_create(16);
	struct rv_offset_slice s;

	(void)state;
	assert_int_equal(rv_offset_alloc_get(a, 0, &s), -EINVAL);
	rv_offset_alloc_destroy(a);
}

/* Neighbours of three are given back in every order. */
static const unsigned orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
				     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

static void neighbours_merge_in_every_order(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(orders); i++) {
		struct rv_offset_alloc *a = rv_offset_alloc_create(30);
		struct rv_offset_slice s[3];

		for (size_t k = 0; k < 3; k++)
			assert_int_equal(rv_offset_alloc_get(a, 10, &s[k]), 0);
		assert_int_equal(rv_offset_alloc_free_gr(a), 0);
		for (size_t k = 0; k < 3; k++)
			rv_offset_alloc_put(a, s[orders[i][k]]);
		assert_int_equal(rv_offset_alloc_free_gr(a), 30);
		assert_int_equal(rv_offset_alloc_largest_gr(a), 30);
		rv_offset_alloc_destroy(a);
	}
}

static void a_full_arena_of_single_granules_never_runs_out_of_nodes(void **state)
{
	static struct rv_offset_slice s[5000];
	struct rv_offset_alloc *a = rv_offset_alloc_create(RV_ARRAY_NR(s));
	struct rv_offset_slice more;

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		for (size_t i = 0; i < RV_ARRAY_NR(s); i++)
			assert_int_equal(rv_offset_alloc_get(a, 1, &s[i]), 0);
		assert_int_equal(rv_offset_alloc_get(a, 1, &more), -ENOSPC);
		for (size_t i = 0; i < RV_ARRAY_NR(s); i += 2)
			rv_offset_alloc_put(a, s[i]);
		for (size_t i = 1; i < RV_ARRAY_NR(s); i += 2)
			rv_offset_alloc_put(a, s[i]);
		assert_int_equal(rv_offset_alloc_free_gr(a), RV_ARRAY_NR(s));
		assert_int_equal(rv_offset_alloc_get(a, RV_ARRAY_NR(s) * 8 / 9, &more), 0);
		rv_offset_alloc_put(a, more);
	}
	rv_offset_alloc_destroy(a);
}

/* A free range of n granules serves every request up to 8/9 of it: at most an eighth more is asked for. */
static void at_most_an_eighth_is_wasted(void **state)
{
	(void)state;
	for (uint32_t size = 1; size < 40000; size += 1 + size / 50) {
		struct rv_offset_alloc *a = rv_offset_alloc_create(size);
		struct rv_offset_slice s;
		uint32_t want = size > 1 ? size * 8 / 9 : 1;

		assert_true(rv_offset_alloc_largest_gr(a) >= want);
		assert_int_equal(rv_offset_alloc_get(a, want, &s), 0);
		assert_int_equal(rv_offset_alloc_free_gr(a), size - want);
		rv_offset_alloc_destroy(a);
	}
}

static void the_largest_arena_there_can_be_works(void **state)
{
	struct rv_offset_alloc *a =
		rv_offset_alloc_create(1u << 30); /* 4 TiB; nodes are touched as used */
	struct rv_offset_slice s, t;

	(void)state;
	assert_non_null(a);
	assert_int_equal(rv_offset_alloc_get(a, 1u << 29, &s), 0);
	assert_int_equal(rv_offset_alloc_get(a, (1u << 29) - 1, &t), 0);
	rv_offset_alloc_put(a, s);
	rv_offset_alloc_put(a, t);
	assert_int_equal(rv_offset_alloc_largest_gr(a), 1u << 30);
	rv_offset_alloc_destroy(a);
}

#define SIZE 20000u
#define HELD 600u

static uint8_t owner[SIZE];

static void mark(struct rv_offset_slice s, uint32_t len, uint8_t from, uint8_t to)
{
	assert_true(s.off_gr + len <= SIZE);
	for (uint32_t i = s.off_gr; i < s.off_gr + len; i++) {
		if (owner[i] != from)
			fail_msg("granule %u is handed out twice", i);
		owner[i] = to;
	}
}

/* The longest free run, seen in the model. */
static uint32_t longest_run(void)
{
	uint32_t best = 0, run = 0;

	for (uint32_t i = 0; i < SIZE; i++) {
		run = owner[i] ? 0 : run + 1;
		best = run > best ? run : best;
	}
	return best;
}

static uint32_t random_len(void)
{
	static const uint32_t most[] = {3, 40, 300, 3000};

	return 1 + random_below(most[random_below(4)]);
}

static void a_random_history_never_overlaps_and_merges_back_to_one_range(void **state)
{
	struct rv_offset_alloc *a = rv_offset_alloc_create(SIZE);
	static struct rv_offset_slice s[HELD];
	static uint32_t len[HELD];
	uint32_t used = 0;

	(void)state;
	memset(owner, 0, sizeof(owner));
	for (unsigned step = 0; step < 100000; step++) {
		uint32_t i = random_below(HELD);

		if (len[i]) {
			mark(s[i], len[i], 1, 0);
			rv_offset_alloc_put(a, s[i]);
			used -= len[i];
			len[i] = 0;
		} else {
			uint32_t want = random_len(), largest = rv_offset_alloc_largest_gr(a);
			int rc = rv_offset_alloc_get(a, want, &s[i]);

			/* More than is sure may be had, too, where a range fits closely. */
			assert_true(rc == 0 || (rc == -ENOSPC && want > largest));
			if (rc) {
				/* Refused, so no run holds it with an eighth to spare. */
				if (step % 16 == 0)
					assert_true(longest_run() < want + want / 8 + 1);
				continue;
			}
			mark(s[i], want, 0, 1);
			len[i] = want;
			used += want;
		}
		assert_int_equal(rv_offset_alloc_free_gr(a), SIZE - used);
		if (step % 512 == 0)
			assert_true(rv_offset_alloc_largest_gr(a) <= longest_run());
	}
	for (uint32_t i = 0; i < HELD; i++) {
		if (len[i])
			rv_offset_alloc_put(a, s[i]);
	}
	/* One range again: the same as in an untouched allocator of the same size. */
	assert_int_equal(rv_offset_alloc_free_gr(a), SIZE);
	used = rv_offset_alloc_largest_gr(a);
	rv_offset_alloc_destroy(a);
	a = rv_offset_alloc_create(SIZE);
	assert_int_equal(used, rv_offset_alloc_largest_gr(a));
	rv_offset_alloc_destroy(a);
}

static struct rv_offset_alloc *three(struct rv_offset_slice s[3])
{
	struct rv_offset_alloc *a = rv_offset_alloc_create(30);

	for (size_t i = 0; i < 3; i++) {
		if (rv_offset_alloc_get(a, 10, &s[i]))
			abort();
	}
	return a;
}

static bool put_twice(void)
{
	struct rv_offset_slice s[3];
	struct rv_offset_alloc *a = three(s);

	rv_offset_alloc_put(a, s[1]);
	rv_offset_alloc_put(a, s[1]);
	return true;
}

static bool put_twice_after_a_merge_to_the_left(void)
{
	struct rv_offset_slice s[3];
	struct rv_offset_alloc *a = three(s);

	rv_offset_alloc_put(a, s[0]);
	rv_offset_alloc_put(a, s[1]); /* swallowed by the first */
	rv_offset_alloc_put(a, s[1]);
	return true;
}

static bool put_a_made_up_offset(void)
{
	struct rv_offset_slice s[3];
	struct rv_offset_alloc *a = three(s);

	s[1].off_gr++;
	rv_offset_alloc_put(a, s[1]);
	return true;
}

static void a_slice_given_back_twice_stops_the_daemon(void **state)
{
	(void)state;
	assert_int_equal(forked(put_twice), -SIGABRT);
	assert_int_equal(forked(put_a_made_up_offset), -SIGABRT);
}

static void a_slice_given_back_twice_stops_the_daemon_after_a_merge_too(void **state)
{
	(void)state;
	assert_int_equal(forked(put_twice_after_a_merge_to_the_left), -SIGABRT);
}

static void a_hole_of_just_that_size_is_used_before_a_larger_range(void **state)
{
	struct rv_offset_alloc *a = rv_offset_alloc_create(10000);
	struct rv_offset_slice s[6], again;

	(void)state;
	/* 1001 granules lie between two bins: by bins alone none but a larger range surely holds them. */
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(rv_offset_alloc_get(a, 1001, &s[i]), 0);
	rv_offset_alloc_put(a, s[1]);
	rv_offset_alloc_put(a, s[3]);
	for (unsigned i = 1; i <= 3; i += 2) {
		assert_int_equal(rv_offset_alloc_get(a, 1001, &again), 0);
		assert_true(again.off_gr == s[1].off_gr || again.off_gr == s[3].off_gr);
	}
	assert_int_equal(rv_offset_alloc_free_gr(a), 10000 - 6 * 1001);
	/* The closest of several. */
	rv_offset_alloc_put(a, s[0]);
	assert_int_equal(rv_offset_alloc_get(a, 990, &again), 0);
	assert_int_equal(again.off_gr, s[0].off_gr);
	rv_offset_alloc_destroy(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_granule_can_be_had_and_given_back),
		cmocka_unit_test(nothing_of_zero_length_is_handed_out),
		cmocka_unit_test(neighbours_merge_in_every_order),
		cmocka_unit_test(a_full_arena_of_single_granules_never_runs_out_of_nodes),
		cmocka_unit_test(at_most_an_eighth_is_wasted),
		cmocka_unit_test(the_largest_arena_there_can_be_works),
		cmocka_unit_test(a_random_history_never_overlaps_and_merges_back_to_one_range),
		cmocka_unit_test(a_hole_of_just_that_size_is_used_before_a_larger_range),
		cmocka_unit_test(a_slice_given_back_twice_stops_the_daemon),
		cmocka_unit_test(a_slice_given_back_twice_stops_the_daemon_after_a_merge_too),
	};

	return cmocka_run_group_tests_name("offset_alloc", tests, NULL, NULL);
}
