#include "dataplane/engine/stats.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const struct {
	uint64_t ns;
	unsigned bucket;
} times[] = {
	{0, 0},
	{RV_US(50), 0},
	{RV_US(50) + 1, 1},
	{RV_US(100), 1},
	{RV_US(101), 2},
	{RV_MS(1), 5},
	{RV_US(50) << 15, 15},
	{(RV_US(50) << 15) + 1, 16},
	{RV_SEC(1000), 16},
};

static void a_get_is_counted_in_the_smallest_bucket_that_holds_it(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(times); i++) {
		struct rv_stats s = {0};

		rv_stats_get_time(&s, times[i].ns);
		for (unsigned b = 0; b <= RV_GET_BUCKETS; b++)
			assert_int_equal(rv_counter_get(&s.get_bucket[b]), b == times[i].bucket);
		assert_int_equal(rv_counter_get(&s.get_sum_ns), times[i].ns);
	}
}

static void an_operation_is_ok_or_an_error(void **state)
{
	struct rv_stats s = {0};

	(void)state;
	rv_stats_operation(&s, RV_OP_GET, 0);
	rv_stats_operation(&s, RV_OP_GET, 0);
	rv_stats_operation(&s, RV_OP_GET, -ENOENT);
	assert_int_equal(rv_counter_get(&s.operation[RV_OP_GET][0]), 2);
	assert_int_equal(rv_counter_get(&s.operation[RV_OP_GET][1]), 1);
}

static void names_are_those_of_the_series(void **state)
{
	(void)state;
	assert_string_equal(rv_operation_name(RV_OP_REGISTER), "register");
	assert_string_equal(rv_operation_name(RV_OP_REGISTER_PINNED), "register_pinned");
	assert_string_equal(rv_operation_name(RV_OP_RELEASE), "release");
	for (unsigned i = 0; i < RV_OPERATIONS; i++)
		assert_non_null(rv_operation_name((enum rv_operation)i));
	assert_string_equal(rv_path_name(RV_PATH_LOCAL), "local");
	assert_string_equal(rv_path_name(RV_PATH_CHUNKED), "chunked");
	assert_string_equal(rv_path_name(RV_PATH_RDMA), "rdma");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_get_is_counted_in_the_smallest_bucket_that_holds_it),
		cmocka_unit_test(an_operation_is_ok_or_an_error),
		cmocka_unit_test(names_are_those_of_the_series),
	};

	return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
