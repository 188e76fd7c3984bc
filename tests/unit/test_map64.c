#include "dataplane/base/map64.h"

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static int value[4096];

static void an_empty_map_has_nothing(void **state)
{
	struct rv_map64 m = {0};
	size_t pos = 0;

	(void)state;
	assert_null(rv_map64_get(&m, 0));
	assert_null(rv_map64_del(&m, 7));
	assert_null(rv_map64_next(&m, &pos));
	rv_map64_fini(&m);
}

static void zero_and_the_largest_key_are_keys(void **state)
{
	struct rv_map64 m = {0};

	(void)state;
	assert_int_equal(rv_map64_put(&m, 0, &value[1]), 0);
	assert_int_equal(rv_map64_put(&m, UINT64_MAX, &value[2]), 0);
	assert_ptr_equal(rv_map64_get(&m, 0), &value[1]);
	assert_ptr_equal(rv_map64_get(&m, UINT64_MAX), &value[2]);
	assert_ptr_equal(rv_map64_del(&m, 0), &value[1]);
	assert_null(rv_map64_get(&m, 0));
	rv_map64_fini(&m);
}

static void a_second_put_replaces(void **state)
{
	struct rv_map64 m = {0};

	(void)state;
	assert_int_equal(rv_map64_put(&m, 5, &value[1]), 0);
	assert_int_equal(rv_map64_put(&m, 5, &value[2]), 0);
	assert_int_equal(m.nr, 1);
	assert_ptr_equal(rv_map64_get(&m, 5), &value[2]);
	rv_map64_fini(&m);
}

static void a_walk_meets_everyone_once(void **state)
{
	struct rv_map64 m = {0};
	unsigned met[100] = {0};
	size_t pos = 0;
	int *v;

	(void)state;
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(rv_map64_put(&m, i * i, &value[i]), 0);
	while ((v = rv_map64_next(&m, &pos)))
		met[v - value]++;
	for (size_t i = 0; i < 100; i++)
		assert_int_equal(met[i], 1);
	rv_map64_fini(&m);
}

/* Few keys, so that runs collide, wrap round the end and are closed again in every way. */
static void a_random_history_agrees_with_an_array(void **state)
{
	struct rv_map64 m = {0};
	int *model[64] = {0};
	uint64_t rng = 3;
	size_t live = 0;

	(void)state;
	for (unsigned step = 0; step < 200000; step++) {
		uint64_t key;
		int *v;

		rng = rng * 6364136223846793005u + 1442695040888963407u;
		key = rng >> 58;
		v = &value[rng >> 40 & 4095];
		if (rng >> 33 & 1) {
			assert_int_equal(rv_map64_put(&m, key, v), 0);
			live += !model[key];
			model[key] = v;
		} else {
			assert_ptr_equal(rv_map64_del(&m, key), model[key]);
			live -= model[key] != NULL;
			model[key] = NULL;
		}
		assert_int_equal(m.nr, live);
		key = rng >> 20 & 63;
		assert_ptr_equal(rv_map64_get(&m, key), model[key]);
	}
	for (uint64_t key = 0; key < 64; key++)
		assert_ptr_equal(rv_map64_get(&m, key), model[key]);
	rv_map64_fini(&m);
}

static void it_grows_and_keeps_all(void **state)
{
	struct rv_map64 m = {0};

	(void)state;
	for (uint64_t i = 0; i < 4096; i++)
		assert_int_equal(rv_map64_put(&m, i << 32, &value[i]), 0);
	assert_int_equal(m.nr, 4096);
	assert_true(m.cap >= 4096);
	for (uint64_t i = 0; i < 4096; i++)
		assert_ptr_equal(rv_map64_get(&m, i << 32), &value[i]);
	rv_map64_fini(&m);
	assert_int_equal(m.nr, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_map_has_nothing),
		cmocka_unit_test(zero_and_the_largest_key_are_keys),
		cmocka_unit_test(a_second_put_replaces),
		cmocka_unit_test(a_walk_meets_everyone_once),
		cmocka_unit_test(a_random_history_agrees_with_an_array),
		cmocka_unit_test(it_grows_and_keeps_all),
	};

	return cmocka_run_group_tests_name("map64", tests, NULL, NULL);
}
