#include "control/messenger/headers.h"

#include "control/frame/frame.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const char staged_hex[] =
	"81a35f7276d927 333337353030363230323130383930323036353432393036313535323535363335393032343635";

static bool takes(const uint8_t *buf, size_t len)
{
	return len > 0 && rv_headers_check(buf, len) == 0;
}

static void the_staged_handle_is_found(void **state)
{
	struct rv_handle h;
	uint8_t in[64];
	size_t len = from_hex(staged_hex, in, sizeof(in));

	(void)state;
	assert_int_equal(rv_headers_find_staged(in, len, &h), 0);
	assert_true(h.worker == 0xfde8414c5afee9d3ULL && h.local == 1);
}

static void a_map_cut_anywhere_is_refused(void **state)
{
	uint8_t in[64];
	size_t len = from_hex(staged_hex, in, sizeof(in));

	(void)state;
	exact_cut_everywhere(in, len, takes);
}

static const struct {
	const char *what;
	const char *hex;
	bool taken;
} maps[] = {
	{"empty map", "80", true},
	{"str to str", "81a161a162", true},
	{"bin that holds UTF-8", "81c40161c40162", true},
	{"map16", "de0001a161a162", true},
	{"map32, str32", "df00000001db0000000161da000162", true},
	{"bytes behind the map", "80ff", true},
	{"bin that holds no UTF-8", "81a161c401ff", false},
	{"str that holds no UTF-8", "81a161a1ff", false},
	{"integer value", "81a16101", false},
	{"nil value", "81a161c0", false},
	{"integer key", "8101a161", false},
	{"array", "91a161", false},
	{"a str instead", "a161", false},
	{"count without content", "8f", false},
	{"2^32 - 1 pairs", "dfffffffff", false},
	{"str of 2^32 - 1 bytes", "81a161dbffffffff", false},
	{"unused type byte", "c1", false},
};

static void odd_maps_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(maps); i++) {
		uint8_t in[64];
		size_t len = from_hex(maps[i].hex, in, sizeof(in));

		if (exact_accepts(in, len, takes) != maps[i].taken)
			fail_msg("%s", maps[i].what);
	}
}

static void an_absent_map_has_no_keys(void **state)
{
	struct rv_handle h;
	const char *val;
	size_t val_len;

	(void)state;
	assert_int_equal(rv_headers_check(NULL, 0), 0);
	assert_int_equal(rv_headers_find(NULL, 0, "a", &val, &val_len), -ENOENT);
	assert_int_equal(rv_headers_find_staged(NULL, 0, &h), -ENOENT);
}

static size_t build(uint8_t *out, size_t cap, const char *key, const char *val)
{
	struct rv_header_pair pair = {key, val, strlen(val)};
	struct rv_writer w = rv_writer(out, cap);

	assert_int_equal(rv_headers_encode(&w, &pair, 1), 0);
	return w.len;
}

static void a_map_is_built_in_the_shortest_form(void **state)
{
	uint8_t out[64], want[64];

	(void)state;
	assert_int_equal(build(out, sizeof(out), "_rv", "337500620210890206542906155255635902465"),
			 from_hex(staged_hex, want, sizeof(want)));
	assert_memory_equal(out, want, 45);
}

static void of_two_equal_keys_the_last_counts(void **state)
{
	const struct rv_header_pair pairs[] = {{"a", "first", 5}, {"b", "", 0}, {"a", "last", 4}};
	const char *val;
	size_t val_len;
	uint8_t out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));

	(void)state;
	assert_int_equal(rv_headers_encode(&w, pairs, 3), 0);
	assert_int_equal(rv_headers_find(out, w.len, "a", &val, &val_len), 0);
	assert_int_equal(val_len, 4);
	assert_memory_equal(val, "last", 4);
	assert_int_equal(rv_headers_find(out, w.len, "b", &val, &val_len), 0);
	assert_int_equal(val_len, 0);
	assert_int_equal(rv_headers_find(out, w.len, "ab", &val, &val_len), -ENOENT);
}

static const struct {
	const char *text;
	uint64_t ms; /* 0: as if absent */
} times[] = {
	{"1", 1},
	{"30000", 30000},
	{"18446744073709551615", UINT64_MAX},
	{"18446744073709551616", 0},
	{"0", 0},
	{"", 0},
	{"-1", 0},
	{"+1", 0},
	{"1.5", 0},
	{" 1", 0},
	{"1s", 0},
	{"abc", 0},
};

static void times_that_are_no_number_are_as_if_absent(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(times); i++) {
		uint8_t in[64];
		size_t len = build(in, sizeof(in), RV_HEADER_BUDGET_MS, times[i].text);
		uint64_t ms = 0;

		assert_int_equal(rv_headers_find_ms(in, len, RV_HEADER_BUDGET_MS, &ms),
				 times[i].ms != 0);
		assert_true(ms == times[i].ms);
		assert_false(rv_headers_find_ms(in, len, RV_HEADER_LEASE_MS, &ms));
	}
}

/* A number may be 0, which is not the same as none. */
static const struct {
	const char *text;
	bool is;
	uint64_t n;
} numbers[] = {
	{"0", true, 0},
	{"1", true, 1},
	{"65536", true, 65536},
	{"007", true, 7},
	{"00000000000000000000000000000000", true, 0},
	{"18446744073709551615", true, UINT64_MAX},
	{"18446744073709551616", false, 0},
	{"18446744073709551620", false, 0},
	{"99999999999999999999", false, 0},
	{"184467440737095516150", false, 0},
	{"", false, 0},
	{"-1", false, 0},
	{"-0", false, 0},
	{"+1", false, 0},
	{"1.0", false, 0},
	{" 1", false, 0},
	{"1 ", false, 0},
	{"0x10", false, 0},
	{"1e3", false, 0},
	{"/", false, 0}, /* the neighbours of 0 and 9 */
	{":", false, 0},
	{"abc", false, 0},
};

static void what_is_no_number_leaves_the_place_for_it_alone(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(numbers); i++) {
		uint8_t in[64];
		size_t len = build(in, sizeof(in), RV_HEADER_BYTES, numbers[i].text);
		uint64_t n = 4711;

		if (rv_headers_find_u64(in, len, RV_HEADER_BYTES, &n) != numbers[i].is ||
		    n != (numbers[i].is ? numbers[i].n : 4711))
			fail_msg("\"%s\"", numbers[i].text);
		assert_false(rv_headers_find_u64(in, len, RV_HEADER_LEASE, &n));
		assert_false(rv_headers_find_u64(NULL, 0, RV_HEADER_BYTES, &n));
	}
}

static void of_two_numbers_the_last_counts_though_it_is_none(void **state)
{
	const struct rv_header_pair pairs[] = {{RV_HEADER_BYTES, "7", 1},
					       {RV_HEADER_BYTES, "x", 1},
					       {RV_HEADER_ENDS, "x", 1},
					       {RV_HEADER_ENDS, "1", 1}};
	uint8_t out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	uint64_t n = 0;

	(void)state;
	assert_int_equal(rv_headers_encode(&w, pairs, 4), 0);
	assert_false(rv_headers_find_u64(out, w.len, RV_HEADER_BYTES, &n));
	assert_true(rv_headers_find_u64(out, w.len, RV_HEADER_ENDS, &n));
	assert_int_equal(n, 1);
}

static void a_value_that_is_no_handle_says_so(void **state)
{
	struct rv_handle h;
	uint8_t in[128];
	size_t len = build(in, sizeof(in), RV_HEADER_STAGED, "12x");

	(void)state;
	assert_int_equal(rv_headers_find_staged(in, len, &h), -EINVAL);
	len = build(in, sizeof(in), RV_HEADER_STAGED, "340282366920938463463374607431768211456");
	assert_int_equal(rv_headers_find_staged(in, len, &h), -ERANGE);
}

static void limits_on_what_is_sent_are_kept(void **state)
{
	static char text[RV_HEADER_VALUE_MAX + 1];
	static uint8_t out[2 * RV_HEADERS_MAX];
	struct rv_header_pair pairs[17];
	struct rv_writer w = rv_writer(out, sizeof(out));

	(void)state;
	memset(text, 'x', sizeof(text));
	for (size_t i = 0; i < 17; i++)
		pairs[i] = (struct rv_header_pair){"k", text, RV_HEADER_VALUE_MAX};
	assert_int_equal(rv_headers_encode(&w, pairs, 15), 0);
	w = rv_writer(out, sizeof(out));
	assert_int_equal(rv_headers_encode(&w, pairs, 17), -ENOSPC);
	w = rv_writer(out, 100);
	assert_int_equal(rv_headers_encode(&w, pairs, 1), -ENOSPC);
	pairs[0].val_len++;
	w = rv_writer(out, sizeof(out));
	assert_int_equal(rv_headers_encode(&w, pairs, 1), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_staged_handle_is_found),
		cmocka_unit_test(a_map_cut_anywhere_is_refused),
		cmocka_unit_test(odd_maps_are_taken_or_refused),
		cmocka_unit_test(an_absent_map_has_no_keys),
		cmocka_unit_test(a_map_is_built_in_the_shortest_form),
		cmocka_unit_test(of_two_equal_keys_the_last_counts),
		cmocka_unit_test(times_that_are_no_number_are_as_if_absent),
		cmocka_unit_test(what_is_no_number_leaves_the_place_for_it_alone),
		cmocka_unit_test(of_two_numbers_the_last_counts_though_it_is_none),
		cmocka_unit_test(a_value_that_is_no_handle_says_so),
		cmocka_unit_test(limits_on_what_is_sent_are_kept),
	};

	return cmocka_run_group_tests_name("headers", tests, NULL, NULL);
}
