#include "dataplane/base/handle.h"

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const struct {
	struct rv_handle handle;
	const char *text;
} known[] = {
	{{0, 0}, "0"},
	{{0, 1}, "1"},
	{{0, UINT64_MAX}, "18446744073709551615"},
	{{1, 0}, "18446744073709551616"},
	{{0xfde8414c5afee9d3, 1}, "337500620210890206542906155255635902465"},
	{{UINT64_MAX, UINT64_MAX}, "340282366920938463463374607431768211455"},
};

static void text_and_number_are_the_same_handle(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(known); i++) {
		struct rv_handle h;
		char text[RV_HANDLE_TEXT];

		assert_int_equal(rv_handle_format_text(known[i].handle, text),
				 strlen(known[i].text));
		assert_string_equal(text, known[i].text);
		assert_int_equal(rv_handle_parse_text(text, strlen(text), &h), 0);
		assert_true(rv_handle_equal(h, known[i].handle));
	}
}

static const struct {
	const char *text;
	int rc;
} odd[] = {
	{"", -EINVAL},
	{"+", -EINVAL},
	{"-1", -EINVAL},
	{" 1", -EINVAL},
	{"1 ", -EINVAL},
	{"0x10", -EINVAL},
	{"1.0", -EINVAL},
	{"++1", -EINVAL},
	{"+1", 0},
	{"007", 0},
	{"340282366920938463463374607431768211456", -ERANGE},
	{"3402823669209384634633746074317682114550", -ERANGE},
	{"99999999999999999999999999999999999999999999", -ERANGE},
};

static void odd_texts_are_refused_or_taken_as_velo_does(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(odd); i++) {
		struct rv_handle h = {7, 7};
		int rc = rv_handle_parse_text(odd[i].text, strlen(odd[i].text), &h);

		if (rc != odd[i].rc)
			fail_msg("\"%s\": %d, not %d", odd[i].text, rc, odd[i].rc);
		if (rc)
			assert_true(h.worker == 7 && h.local == 7);
	}
}

static void only_the_given_characters_count(void **state)
{
	struct rv_handle h;

	(void)state;
	assert_int_equal(rv_handle_parse_text("12345", 3, &h), 0);
	assert_true(h.worker == 0 && h.local == 123);
}

static void the_low_bits_of_a_local_id_are_its_reactor(void **state)
{
	(void)state;
	assert_int_equal(rv_local_reactor(0), 0);
	assert_int_equal(rv_local_reactor(0xffffffffffffff45), 5);
	assert_int_equal(rv_local_reactor(RV_MAX_REACTORS), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_and_number_are_the_same_handle),
		cmocka_unit_test(odd_texts_are_refused_or_taken_as_velo_does),
		cmocka_unit_test(only_the_given_characters_count),
		cmocka_unit_test(the_low_bits_of_a_local_id_are_its_reactor),
	};

	return cmocka_run_group_tests_name("handle", tests, NULL, NULL);
}
