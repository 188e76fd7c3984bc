#include "dataplane/engine/chunk_plan.h"

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define K512 (512u << 10)

static const struct {
	uint64_t total_len;
	uint32_t chunk_size;
	uint64_t count, last_off, last_len;
} plans[] = {
	{1, K512, 1, 0, 1},
	{K512 - 1, K512, 1, 0, K512 - 1},
	{K512, K512, 1, 0, K512},
	{K512 + 1, K512, 2, K512, 1},
	{1200000, K512, 3, 2 * K512, 151424},
	{10, 3, 4, 9, 1},
	{RV_GIB(1), 1, RV_GIB(1), RV_GIB(1) - 1, 1},
	{UINT64_MAX, 1u << 31, 8589934592u, UINT64_MAX - 2147483647u, 2147483647u},
};

static void counts_offsets_and_the_short_last_chunk(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(plans); i++) {
		uint64_t n = rv_chunk_count(plans[i].total_len, plans[i].chunk_size), last = n - 1;

		assert_int_equal(n, plans[i].count);
		assert_int_equal(rv_chunk_offset(last, plans[i].chunk_size), plans[i].last_off);
		assert_int_equal(rv_chunk_len(last, plans[i].total_len, plans[i].chunk_size),
				 plans[i].last_len);
		if (n > 1)
			assert_int_equal(rv_chunk_len(0, plans[i].total_len, plans[i].chunk_size),
					 plans[i].chunk_size);
	}
}

static const struct {
	uint64_t total_len;
	uint32_t chunk_size, chunk_count;
	bool sound;
} answers[] = {
	{0, K512, 0, true},
	{0, 0, 0, true},
	{0, K512, 1, false},
	{1, 0, 0, false},
	{1, 0, 1, false},
	{1, K512, 0, false},
	{1, K512, 1, true},
	{1, K512, 2, false},
	{1200000, K512, 3, true},
	{1200000, K512, 2, false},
	{1200000, K512, 4, false},
	{1200000, K512, UINT32_MAX, false},
	{UINT64_MAX, 1, UINT32_MAX, false},
	{UINT64_MAX, RV_CHUNK_MAX, UINT32_MAX, false},
	{RV_CHUNK_MAX, RV_CHUNK_MAX, 1, true},
	{RV_CHUNK_MAX + 1, RV_CHUNK_MAX + 1, 1, false}, /* no frame holds it */
	{RV_CHUNK_MAX, UINT32_MAX, 1, false},
	/* The count wraps to 32 bits. */
	{(1ULL << 32) + 1, 1, 1, false},
};

static void an_answer_must_add_up(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(answers); i++)
		if (rv_chunk_plan_sound(answers[i].total_len, answers[i].chunk_size,
					answers[i].chunk_count) != answers[i].sound)
			fail_msg("row %zu", i);
}

static void our_own_plans_are_sound_at_any_length(void **state)
{
	static const uint64_t len[] = {
		0, 1, K512, RV_GIB(1), RV_GIB(1) << 10, (1ULL << 51), (1ULL << 52) + 1, 1ULL << 54};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(len); i++) {
		uint32_t size = rv_chunk_size_for(len[i], K512);

		assert_true(size >= K512 && size <= RV_CHUNK_MAX);
		assert_true(rv_chunk_count(len[i], size) <= UINT32_MAX);
		assert_true(
			rv_chunk_plan_sound(len[i], size, (uint32_t)rv_chunk_count(len[i], size)));
	}
	assert_int_equal(rv_chunk_size_for(RV_GIB(64), K512), K512);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counts_offsets_and_the_short_last_chunk),
		cmocka_unit_test(an_answer_must_add_up),
		cmocka_unit_test(our_own_plans_are_sound_at_any_length),
	};

	return cmocka_run_group_tests_name("chunk_plan", tests, NULL, NULL);
}
