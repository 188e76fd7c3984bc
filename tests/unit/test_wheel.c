#include "dataplane/base/wheel.h"

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define T0   RV_SEC(1000)
#define TICK ((uint64_t)RV_WHEEL_TICK_NS)
#define TURN (TICK * RV_WHEEL_BUCKETS)

static struct rv_wheel wheel;

static int fresh_wheel(void **state)
{
	(void)state;
	rv_wheel_init(&wheel, T0);
	return 0;
}

/* Deadlines relative to the start, and whether they lie on a tick. */
static const uint64_t deadlines[] = {
	0,         1,         TICK - 1,     TICK,          TICK + 1,     7 * TICK,
	TURN - 1,  TURN,      TURN + 1,     TURN + TICK,   3 * TURN + 5, 63 * TICK,
	64 * TICK, 65 * TICK, RV_SEC(3600), RV_SEC(86400),
};

static void a_timer_is_never_early_and_at_most_a_tick_late(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(deadlines); i++) {
		struct rv_timer t = {0};
		uint64_t due = T0 + deadlines[i];

		rv_wheel_init(&wheel, T0);
		rv_wheel_add(&wheel, &t, due);
		if (deadlines[i])
			assert_null(rv_wheel_pop(&wheel, due - 1));
		assert_ptr_equal(rv_wheel_pop(&wheel, due + TICK), &t);
		assert_false(t.armed);
		assert_null(rv_wheel_pop(&wheel, due + TICK));
	}
}

static void a_timer_on_a_tick_is_due_exactly_then(void **state)
{
	struct rv_timer t = {0};

	(void)state;
	rv_wheel_add(&wheel, &t, T0 + 5 * TICK);
	assert_null(rv_wheel_pop(&wheel, T0 + 5 * TICK - 1));
	assert_ptr_equal(rv_wheel_pop(&wheel, T0 + 5 * TICK), &t);
}

static void a_deadline_that_has_passed_is_due_at_once(void **state)
{
	struct rv_timer t = {0};

	(void)state;
	rv_wheel_add(&wheel, &t, T0 - RV_SEC(5));
	assert_ptr_equal(rv_wheel_pop(&wheel, T0), &t);
}

static void a_far_deadline_waits_turn_by_turn(void **state)
{
	struct rv_timer far = {0};

	(void)state;
	rv_wheel_add(&wheel, &far, T0 + 10 * TURN + 3 * TICK);
	for (uint64_t now = T0; now < T0 + 10 * TURN + 3 * TICK; now += TURN / 3) {
		assert_true(rv_wheel_next_ns(&wheel) <= far.deadline_ns);
		assert_null(rv_wheel_pop(&wheel, now));
	}
	assert_ptr_equal(rv_wheel_pop(&wheel, T0 + 10 * TURN + 3 * TICK), &far);
}

static void a_sleep_of_many_turns_misses_nobody(void **state)
{
	struct rv_timer t[100] = {0};
	unsigned n = 0;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++)
		rv_wheel_add(&wheel, &t[i], T0 + i * (TURN / 7) + 11);
	while (rv_wheel_pop(&wheel, T0 + 100 * TURN))
		n++;
	assert_int_equal(n, RV_ARRAY_NR(t));
	assert_int_equal(wheel.armed_nr, 0);
}

static void a_cancelled_timer_never_comes(void **state)
{
	struct rv_timer a = {0}, b = {0};

	(void)state;
	rv_wheel_add(&wheel, &a, T0 + RV_MS(5));
	rv_wheel_add(&wheel, &b, T0 + RV_MS(5));
	rv_wheel_del(&wheel, &a);
	rv_wheel_del(&wheel, &a); /* harmless */
	assert_ptr_equal(rv_wheel_pop(&wheel, T0 + RV_MS(6)), &b);
	assert_null(rv_wheel_pop(&wheel, T0 + RV_SEC(60)));
}

static void a_due_timer_can_still_be_cancelled(void **state)
{
	struct rv_timer a = {0}, b = {0};

	(void)state;
	rv_wheel_add(&wheel, &a, T0 + RV_MS(5));
	rv_wheel_add(&wheel, &b, T0 + RV_MS(5));
	assert_ptr_equal(rv_wheel_pop(&wheel, T0 + RV_MS(9)), &a); /* both are due now */
	rv_wheel_del(&wheel, &b);
	assert_null(rv_wheel_pop(&wheel, T0 + RV_MS(9)));
	assert_int_equal(wheel.armed_nr, 0);
}

static void arming_again_moves_the_deadline_both_ways(void **state)
{
	struct rv_timer t = {0};

	(void)state;
	rv_wheel_add(&wheel, &t, T0 + RV_MS(5));
	rv_wheel_add(&wheel, &t, T0 + RV_MS(50));
	assert_null(rv_wheel_pop(&wheel, T0 + RV_MS(49)));
	rv_wheel_add(&wheel, &t, T0 + RV_MS(20));
	assert_ptr_equal(rv_wheel_pop(&wheel, T0 + RV_MS(49)), &t);
	assert_int_equal(wheel.armed_nr, 0);
}

static void never_disarms(void **state)
{
	struct rv_timer t = {0};

	(void)state;
	rv_wheel_add(&wheel, &t, T0 + RV_MS(5));
	rv_wheel_add(&wheel, &t, RV_NEVER);
	assert_false(t.armed);
	assert_int_equal(rv_wheel_next_ns(&wheel), RV_NEVER);
	assert_null(rv_wheel_pop(&wheel, T0 + RV_SEC(60)));
}

static void the_next_time_is_a_lower_bound_and_close_for_near_ones(void **state)
{
	(void)state;
	assert_int_equal(rv_wheel_next_ns(&wheel), RV_NEVER);
	for (uint64_t ms = 1; ms < RV_WHEEL_BUCKETS; ms += 13) {
		struct rv_timer t = {0};

		rv_wheel_init(&wheel, T0);
		rv_wheel_add(&wheel, &t, T0 + RV_MS(ms));
		assert_int_equal(rv_wheel_next_ns(&wheel), T0 + RV_MS(ms));
	}
}

static void an_empty_wheel_keeps_up_with_the_clock(void **state)
{
	struct rv_timer t = {0};

	(void)state;
	assert_null(rv_wheel_pop(&wheel, T0 + RV_SEC(3600)));
	rv_wheel_add(&wheel, &t, T0 + RV_SEC(3600) + RV_MS(2));
	assert_int_equal(rv_wheel_next_ns(&wheel), T0 + RV_SEC(3600) + RV_MS(2));
	assert_ptr_equal(rv_wheel_pop(&wheel, T0 + RV_SEC(3600) + RV_MS(3)), &t);
}

/* The model: an array of deadlines, looked through. */
#define MODEL 100000u

static uint64_t rng = 1;

static uint64_t next_random(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng;
}

static uint64_t random_deadline(uint64_t now)
{
	switch (next_random() % 4) {
	case 0:
		return now + next_random() % RV_MS(3);
	case 1:
		return now + next_random() % RV_MS(500);
	case 2:
		return now + next_random() % (2 * TURN);
	default:
		return now + next_random() % (5 * TURN);
	}
}

static void a_hundred_thousand_random_timers_keep_their_times(void **state)
{
	static struct rv_timer t[MODEL];
	uint64_t now = T0;
	size_t armed = 0;

	(void)state;
	memset(t, 0, sizeof(t));
	for (size_t i = 0; i < MODEL; i++) {
		rv_wheel_add(&wheel, &t[i], random_deadline(now));
		armed++;
	}
	while (armed) {
		struct rv_timer *p;

		now += next_random() % RV_MS(40);
		for (unsigned i = 0; i < 20; i++) {
			struct rv_timer *x = &t[next_random() % MODEL];

			if (!x->armed)
				continue;
			if (next_random() % 2) {
				rv_wheel_del(&wheel, x);
				armed--;
			} else {
				rv_wheel_add(&wheel, x, random_deadline(now));
			}
		}
		assert_true(rv_wheel_next_ns(&wheel) != RV_NEVER || !armed);
		while ((p = rv_wheel_pop(&wheel, now))) {
			assert_true(p->deadline_ns <= now);
			armed--;
		}
		if (next_random() % 50 == 0) {
			/* Nobody who is left should have come: all that is due by a tick ago was handed out. */
			for (size_t i = 0; i < MODEL; i++)
				assert_false(t[i].armed && t[i].deadline_ns + TICK <= now);
		}
	}
	assert_int_equal(wheel.armed_nr, 0);
	assert_int_equal(rv_wheel_next_ns(&wheel), RV_NEVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_timer_is_never_early_and_at_most_a_tick_late, fresh_wheel),
		cmocka_unit_test_setup(a_timer_on_a_tick_is_due_exactly_then, fresh_wheel),
		cmocka_unit_test_setup(a_deadline_that_has_passed_is_due_at_once, fresh_wheel),
		cmocka_unit_test_setup(a_far_deadline_waits_turn_by_turn, fresh_wheel),
		cmocka_unit_test_setup(a_sleep_of_many_turns_misses_nobody, fresh_wheel),
		cmocka_unit_test_setup(a_cancelled_timer_never_comes, fresh_wheel),
		cmocka_unit_test_setup(a_due_timer_can_still_be_cancelled, fresh_wheel),
		cmocka_unit_test_setup(arming_again_moves_the_deadline_both_ways, fresh_wheel),
		cmocka_unit_test_setup(never_disarms, fresh_wheel),
		cmocka_unit_test_setup(the_next_time_is_a_lower_bound_and_close_for_near_ones,
				       fresh_wheel),
		cmocka_unit_test_setup(an_empty_wheel_keeps_up_with_the_clock, fresh_wheel),
		cmocka_unit_test_setup(a_hundred_thousand_random_timers_keep_their_times,
				       fresh_wheel),
	};

	return cmocka_run_group_tests_name("wheel", tests, NULL, NULL);
}
