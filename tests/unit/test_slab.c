#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dataplane/base/slab.h"
#include "dataplane/base/units.h"

struct thing {
	uint64_t word[5];
};

static void records_are_apart_and_keep_their_bytes(void **state)
{
	struct thing *t[100];
	struct rv_slab s;

	(void)state;
	rv_slab_init(&s, sizeof(struct thing), 7);
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		t[i] = rv_slab_take(&s);
		assert_non_null(t[i]);
		assert_int_equal((uintptr_t)t[i] % 16, 0);
		memset(t[i], (int)i, sizeof(*t[i]));
	}
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		for (size_t b = 0; b < sizeof(*t[i]); b++)
			assert_int_equal(((uint8_t *)t[i])[b], i);
		rv_slab_give(&s, t[i]);
	}
	assert_int_equal(s.out, 0);
	rv_slab_fini(&s);
}

static void the_record_given_back_last_comes_first(void **state)
{
	struct rv_slab s;
	void *a, *b;

	(void)state;
	rv_slab_init(&s, 1, 4); /* smaller than a pointer: rounded up */
	a = rv_slab_take(&s);
	b = rv_slab_take(&s);
	rv_slab_give(&s, a);
	rv_slab_give(&s, b);
	assert_ptr_equal(rv_slab_take(&s), b);
	assert_ptr_equal(rv_slab_take(&s), a);
	rv_slab_fini(&s); /* with two out: their memory goes all the same */
}

static void warmed_up_it_allocates_no_more(void **state)
{
	struct rv_slab s;
	void *t[64], *chunks;

	(void)state;
	rv_slab_init(&s, 40, 16);
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++)
		t[i] = rv_slab_take(&s);
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++)
		rv_slab_give(&s, t[i]);
	chunks = s.chunks;
	for (unsigned round = 0; round < 10; round++) {
		for (size_t i = 0; i < RV_ARRAY_NR(t); i++)
			t[i] = rv_slab_take(&s);
		for (size_t i = 0; i < RV_ARRAY_NR(t); i++)
			rv_slab_give(&s, t[i]);
	}
	assert_ptr_equal(s.chunks, chunks);
	rv_slab_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_are_apart_and_keep_their_bytes),
		cmocka_unit_test(the_record_given_back_last_comes_first),
		cmocka_unit_test(warmed_up_it_allocates_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
