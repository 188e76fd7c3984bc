#include "ucx/rkey_parse.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"
#include "ucx/rkey.h"

static bool takes(const uint8_t *buf, size_t len)
{
	return rv_rkey_parse(buf, len, true) == RV_RKEY_OK;
}

static const struct {
	const char *what;
	const char *hex;
	enum rv_rkey_verdict want;
} keys[] = {
	{"empty map", "0000000000000000 00", RV_RKEY_OK},
	{"empty map, more behind", "0000000000000000 00 ffffff", RV_RKEY_OK},
	{"one domain, device unknown", "0100000000000000 00 04aabbccdd ff", RV_RKEY_OK},
	{"one domain of length 0", "0100000000000000 00 00 ff", RV_RKEY_OK},
	{"top bit of the map", "0000000000000080 00 00 ff", RV_RKEY_OK},
	{"one distance", "0100000000000000 00 04aabbccdd 80 003040 ff", RV_RKEY_OK},
	{"no distance", "0100000000000000 00 00 05 ff", RV_RKEY_OK},
	{"bytes behind the mark", "0100000000000000 00 00 05 ff 00", RV_RKEY_OK},
	{"nothing", "", RV_RKEY_TRUNCATED},
	{"no memory type", "0000000000000000", RV_RKEY_TRUNCATED},
	{"memory type 10", "0000000000000000 0a", RV_RKEY_MEM_TYPE},
	{"memory type 255", "0000000000000000 ff", RV_RKEY_MEM_TYPE},
	{"cuda", "0000000000000000 01", RV_RKEY_MEM_TYPE},
	{"domain's key is short", "0100000000000000 00 04aabbcc", RV_RKEY_TRUNCATED},
	{"second domain is missing", "0300000000000000 00 00", RV_RKEY_TRUNCATED},
	{"no sys_dev", "0100000000000000 00 00", RV_RKEY_TRUNCATED},
	{"all domains, few bytes", "ffffffffffffffff 00 00000000", RV_RKEY_TRUNCATED},
	{"no mark", "0100000000000000 00 00 05", RV_RKEY_NO_END},
	{"mark off the stride", "0100000000000000 00 00 05 01ff02", RV_RKEY_NO_END},
	{"mark inside a short record", "0100000000000000 00 00 05 01ff", RV_RKEY_NO_END},
	{"mark after two records", "0100000000000000 00 00 05 010203 040506 ff", RV_RKEY_OK},
};

static void keys_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(keys); i++) {
		uint8_t in[64];
		size_t len = from_hex(keys[i].hex, in, sizeof(in));
		enum rv_rkey_verdict got = rv_rkey_parse(in, len, true);

		if (got != keys[i].want)
			fail_msg("%s: %s", keys[i].what, rv_rkey_verdict_name(got));
		assert_int_equal(exact_accepts(in, len, takes), got == RV_RKEY_OK);
	}
}

static void other_memory_is_taken_where_it_is_wanted(void **state)
{
	uint8_t in[9] = {0};

	(void)state;
	for (uint8_t type = 0; type < 12; type++) {
		in[8] = type;
		assert_int_equal(rv_rkey_parse(in, 9, false),
				 type < 10 ? RV_RKEY_OK : RV_RKEY_MEM_TYPE);
	}
}

static void a_key_cut_anywhere_is_refused(void **state)
{
	uint8_t in[64];
	size_t len = from_hex("0500000000000000 00 04aabbccdd 02eeff 80 003040 112233 ff", in,
			      sizeof(in));

	(void)state;
	exact_cut_everywhere(in, len, takes);
	len = from_hex("0000000000000000 00", in, sizeof(in));
	exact_cut_everywhere(in, len, takes);
}

static void a_key_of_1024_bytes_is_the_longest(void **state)
{
	static const uint8_t zeros[RV_RKEY_MAX + 1];

	(void)state;
	assert_int_equal(rv_rkey_parse(zeros, RV_RKEY_MAX, true), RV_RKEY_OK);
	assert_int_equal(rv_rkey_parse(zeros, RV_RKEY_MAX + 1, true), RV_RKEY_TOO_LONG);
}

/* Without an endpoint UCX would crash: it is not asked. */
static void a_key_that_is_too_long_or_broken_never_reaches_ucx(void **state)
{
	static const uint8_t zeros[RV_RKEY_MAX + 1];
	ucp_rkey_h key = NULL;

	(void)state;
	assert_int_equal(rv_ucx_rkey_unpack(NULL, zeros, RV_RKEY_MAX + 1, &key), -EPROTO);
	assert_int_equal(rv_ucx_rkey_unpack(NULL, zeros, 8, &key), -EPROTO);
	assert_null(key);
}

static void every_verdict_has_a_name(void **state)
{
	(void)state;
	for (unsigned i = 0; i < RV_RKEY_VERDICT_NR; i++)
		assert_string_not_equal(rv_rkey_verdict_name((enum rv_rkey_verdict)i), "unknown");
	assert_string_equal(rv_rkey_verdict_name(RV_RKEY_VERDICT_NR), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_are_taken_or_refused),
		cmocka_unit_test(other_memory_is_taken_where_it_is_wanted),
		cmocka_unit_test(a_key_cut_anywhere_is_refused),
		cmocka_unit_test(a_key_of_1024_bytes_is_the_longest),
		cmocka_unit_test(a_key_that_is_too_long_or_broken_never_reaches_ucx),
		cmocka_unit_test(every_verdict_has_a_name),
	};

	return cmocka_run_group_tests_name("rkey_parse", tests, NULL, NULL);
}
