/* Base64, as etcd's JSON has bytes. */
#include "control/discovery/base64.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const struct {
	const char *bytes, *text;
} pairs[] = {
	{"", ""},
	{"f", "Zg=="},
	{"fo", "Zm8="},
	{"foo", "Zm9v"},
	{"foob", "Zm9vYg=="},
	{"fooba", "Zm9vYmE="},
	{"foobar", "Zm9vYmFy"},
	{"\xff\xef\xbe", "/+++"},
};

static void bytes_and_text_are_each_others(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(pairs); i++) {
		size_t len = strlen(pairs[i].bytes), got = 77;
		uint8_t back[16];
		char text[16];

		rv_base64_encode((const uint8_t *)pairs[i].bytes, len, text);
		assert_string_equal(text, pairs[i].text);
		assert_int_equal(RV_BASE64_LEN(len), strlen(text));
		assert_int_equal(rv_base64_decode(text, strlen(text), back, len, &got), 0);
		assert_int_equal(got, len);
		assert_memory_equal(back, pairs[i].bytes, len);
	}
}

static void every_byte_survives(void **state)
{
	uint8_t in[256], out[256];
	char text[RV_BASE64_LEN(256) + 1];
	size_t got;

	(void)state;
	for (unsigned i = 0; i < 256; i++)
		in[i] = (uint8_t)(i * 37);
	for (size_t len = 0; len <= sizeof(in); len++) {
		rv_base64_encode(in, len, text);
		assert_int_equal(rv_base64_decode(text, strlen(text), out, sizeof(out), &got), 0);
		assert_int_equal(got, len);
		assert_memory_equal(out, in, len);
	}
}

static const char *const bad[] = {"Z",    "Zg",    "Zg=",      "Zg=a",      "=g==", "Z===",
				  "====", "Zm9v=", "Zm 8",     "Zm8\n",     "Zm8-", "Zm_v",
				  "Zh==", "Zm9=",  "Zg==Zg==", "\xc3\xa9Zg"};

static void what_is_spelt_otherwise_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(bad); i++) {
		uint8_t out[16];
		size_t got = 77;

		if (rv_base64_decode(bad[i], strlen(bad[i]), out, sizeof(out), &got) != -EPROTO ||
		    got != 77)
			fail_msg("%s", bad[i]);
	}
}

static void no_terminator_ends_it(void **state)
{
	uint8_t out[16];
	size_t got;

	(void)state;
	assert_int_equal(rv_base64_decode("Zm\0v", 4, out, sizeof(out), &got), -EPROTO);
}

static void more_than_there_is_room_for_is_refused(void **state)
{
	uint8_t out[5];
	size_t got;

	(void)state;
	assert_int_equal(rv_base64_decode("Zm9vYmFy", 8, out, 5, &got), -ENOSPC);
	assert_int_equal(rv_base64_decode("Zm9vYmE=", 8, out, 5, &got), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_and_text_are_each_others),
		cmocka_unit_test(every_byte_survives),
		cmocka_unit_test(what_is_spelt_otherwise_is_refused),
		cmocka_unit_test(no_terminator_ends_it),
		cmocka_unit_test(more_than_there_is_room_for_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
