#include "control/json/json.h"

#include <limits.h>

#include "control/json/peer_info.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static bool takes(const uint8_t *buf, size_t len)
{
	struct rv_json *doc;

	if (rv_json_parse((const char *)buf, len, &doc, NULL))
		return false;
	rv_json_free(doc);
	return true;
}

static const struct {
	const char *text;
	bool taken;
} texts[] = {
	{"{}", true},
	{" [ 1 , 2 ] \r\n\t", true},
	{"null", true},
	{"true", true},
	{"7", true},
	{"0", true},
	{"-1.5e3", true},
	{"1E3", true},
	{"\"\\u00e9\\n\"", true},
	{"18446744073709551615", true},
	{"-9223372036854775808", true},
	{"{\"a\":{\"a\":1},\"b\":{\"a\":2}}", true},
	{"[{\"a\":1},{\"a\":1}]", true},
	{"", false},
	{" ", false},
	{"{", false},
	{"{}x", false},
	{"{} {}", false},
	{"1 2", false},
	{"[1,]", false},
	{"{\"a\":1,}", false},
	{"{a:1}", false},
	{"{'a':1}", false},
	{"{\"a\":1,\"a\":1}", false},
	{"{\"a\":1,\"\\u0061\":2}", false},
	{"{\"a\":{\"b\":1},\"a\":2}", false},
	{"[[{\"x\":1,\"x\":{}}]]", false},
	{"18446744073709551616", false},
	{"99999999999999999999999", false},
	{"-9223372036854775809", false},
	{"-0", false},
	{"01", false},
	{"+1", false},
	{".5", false},
	{"NaN", false},
	{"nan", false},
	{"Infinity", false},
	{"-Infinity", false},
	{"nul", false},
	{"TRUE", false},
	{"/* no */ 1", false},
	{"// no\n1", false},
	{"\"a\nb\"", false},
	{"\"\x01\"", false},
	{"\"\xff\"", false},
	{"\"unclosed", false},
	{"\"\\\"", false},
	{"\xef\xbb\xbf{}", false},
};

static void texts_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(texts); i++)
		if (exact_accepts(texts[i].text, strlen(texts[i].text), takes) != texts[i].taken)
			fail_msg("%s", texts[i].text);
	assert_false(exact_accepts("1\0", 2, takes));
	assert_false(exact_accepts("\0", 1, takes));
}

static void a_refusal_says_why(void **state)
{
	static const struct {
		const char *text;
		const char *why;
	} rows[] = {
		{"{\"a\":1,\"a\":2}", "duplicate key"},
		{"18446744073709551616", "integer out of range"},
		{"{]", "not JSON"},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		struct rv_json *doc;
		const char *why = NULL;

		assert_int_equal(rv_json_parse(rows[i].text, strlen(rows[i].text), &doc, &why),
				 -EPROTO);
		assert_string_equal(why, rows[i].why);
	}
}

/* By what is said of their length, before a byte is read. */
static void texts_longer_than_any_are_refused(void **state)
{
	const uint8_t instance[RV_UUID_LEN] = {1};
	struct rv_peer_info p;
	struct rv_json *doc;
	const char *why;

	(void)state;
	assert_int_equal(rv_json_parse("1", (size_t)INT_MAX + 1, &doc, &why), -EPROTO);
	assert_string_equal(why, "too long");
	assert_int_equal(rv_peer_info_decode("{", (size_t)1 << 30, &p, &why), -EPROTO);
	assert_string_equal(why, "peer info is too long");
	assert_int_equal(rv_peer_info_init(&p, instance, instance, RV_ADDRESS_MAX + 1), -EPROTO);
	assert_int_equal(rv_peer_info_init(&p, instance, instance, 0), -EPROTO);
}

static void a_text_cut_anywhere_is_refused(void **state)
{
	static const char text[] =
		"{\"a\":[1,2,{\"b\":null}],\"c\":\"d\\\"\",\"e\":-1.5,\"f\":true}";

	(void)state;
	exact_cut_everywhere(text, sizeof(text) - 1, takes);
}

static void the_depth_is_bounded(void **state)
{
	uint8_t deep[2 * 40];

	(void)state;
	for (size_t n = 1; n <= 40; n++) {
		memset(deep, '[', n);
		memset(deep + n, ']', n);
		assert_int_equal(exact_accepts(deep, 2 * n, takes), n <= RV_JSON_DEPTH);
	}
	{
		static uint8_t very[100000];

		memset(very, '[', sizeof(very));
		assert_false(exact_accepts(very, sizeof(very), takes));
	}
}

static struct rv_json *parse(const char *text)
{
	struct rv_json *doc = NULL;

	assert_int_equal(rv_json_parse(text, strlen(text), &doc, NULL), 0);
	return doc;
}

static void integers_are_exact_or_refused(void **state)
{
	static const struct {
		const char *text;
		uint64_t max;
		int rc;
		uint64_t want;
	} rows[] = {
		{"0", UINT64_MAX, 0, 0},
		{"18295945282392615379", UINT64_MAX, 0, 18295945282392615379ULL},
		{"18446744073709551615", UINT64_MAX, 0, UINT64_MAX},
		{"9223372036854775807", UINT64_MAX, 0, INT64_MAX},
		{"9223372036854775808", UINT64_MAX, 0, 1ULL << 63},
		{"255", 255, 0, 255},
		{"256", 255, -EPROTO, 0},
		{"7.0", UINT64_MAX, -EPROTO, 0},
		{"7e0", UINT64_MAX, -EPROTO, 0},
		{"-1", UINT64_MAX, -EPROTO, 0},
		{"\"7\"", UINT64_MAX, -EPROTO, 0},
		{"true", UINT64_MAX, -EPROTO, 0},
		{"null", UINT64_MAX, -EPROTO, 0},
		{"[7]", UINT64_MAX, -EPROTO, 0},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		struct rv_json *doc = parse(rows[i].text);
		uint64_t n = 0;

		if (rv_json_uint(doc, rows[i].max, &n) != rows[i].rc || n != rows[i].want)
			fail_msg("%s", rows[i].text);
		rv_json_free(doc);
	}
}

static int count_key(void *user, const char *key, const struct rv_json *member)
{
	size_t *n = user;

	(void)key;
	*n += rv_json_kind(member) == RV_JSON_NULL ? 100 : 1;
	return 0;
}

static void a_tree_can_be_looked_at(void **state)
{
	struct rv_json *doc =
		parse("{\"a\":[1,null,\"x\\u0000y\"],\"b\":null,\"c\":true,\"d\":1.5}");
	const struct rv_json *a = rv_json_get(doc, "a");
	size_t len, n = 0;
	double d;
	bool b;

	(void)state;
	assert_int_equal(rv_json_nr(doc), 4);
	assert_int_equal(rv_json_nr(a), 3);
	assert_non_null(rv_json_at(a, 1));
	assert_int_equal(rv_json_kind(rv_json_at(a, 1)), RV_JSON_NULL);
	assert_null(rv_json_at(a, 3));
	assert_memory_equal(rv_json_text(rv_json_at(a, 2), &len), "x\0y", 3);
	assert_int_equal(len, 3);
	assert_non_null(rv_json_get(doc, "b"));
	assert_null(rv_json_get(doc, "z"));
	assert_null(rv_json_get(a, "a"));
	assert_int_equal(rv_json_bool(rv_json_get(doc, "c"), &b), 0);
	assert_true(b);
	assert_int_equal(rv_json_bool(rv_json_get(doc, "b"), &b), -EPROTO);
	assert_int_equal(rv_json_double(rv_json_get(doc, "d"), &d), 0);
	assert_true(d > 1.4 && d < 1.6);
	assert_int_equal(rv_json_double(NULL, &d), -EPROTO);
	rv_json_each(doc, count_key, &n);
	assert_int_equal(n, 103);
	assert_string_equal(rv_json_print(a), "[ 1, null, \"x\\u0000y\" ]");
	assert_string_equal(rv_json_print(rv_json_get(doc, "b")), "null");
	rv_json_free(doc);
	rv_json_free(NULL);
}

static int stop_at_b(void *user, const char *key, const struct rv_json *member)
{
	(void)member;
	++*(unsigned *)user;
	return strcmp(key, "b") == 0 ? -ECANCELED : 0;
}

static void what_is_of_another_kind_is_refused(void **state)
{
	static const char text[] = "{\"a\":1,\"b\":\"x\",\"c\":[1]}";
	struct rv_json *doc;
	unsigned n = 0;
	uint64_t u = 7;
	double d = 7;
	bool yes = true;
	size_t len = 7;

	(void)state;
	assert_int_equal(rv_json_parse(text, strlen(text), &doc, NULL), 0);
	assert_int_equal(rv_json_each(doc, stop_at_b, &n), -ECANCELED);
	assert_int_equal(n, 2);
	assert_int_equal(rv_json_each(rv_json_get(doc, "c"), stop_at_b, &n), 0);
	assert_int_equal(rv_json_each(NULL, stop_at_b, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(rv_json_double(rv_json_get(doc, "b"), &d), -EPROTO);
	assert_int_equal(rv_json_double(rv_json_get(doc, "a"), &d), 0);
	assert_true(d == 1);
	assert_int_equal(rv_json_uint(rv_json_get(doc, "b"), 9, &u), -EPROTO);
	assert_int_equal(rv_json_uint(NULL, 9, &u), -EPROTO);
	assert_int_equal(rv_json_bool(rv_json_get(doc, "a"), &yes), -EPROTO);
	assert_null(rv_json_text(rv_json_get(doc, "a"), &len));
	assert_null(rv_json_get(NULL, "a"));
	assert_null(rv_json_at(NULL, 0));
	assert_null(rv_json_at(rv_json_get(doc, "c"), 1));
	assert_int_equal(rv_json_nr(NULL), 0);
	assert_int_equal(u, 7);
	assert_int_equal(len, 7);
	rv_json_free(doc);
}

static void what_is_written_reads_back(void **state)
{
	static const char want[] =
		"{\"n\":18446744073709551615,\"i\":-5,\"list\":[true,false,null,[],{}],"
		"\"t\":\"\\\"\\\\\\n\\u0001\xc3\xa9\xef\xbf\xbd\",\"d\":0.1,\"nan\":null,"
		"\"none\":null}";
	struct rv_json_out o;
	struct rv_json *doc;

	(void)state;
	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_json_out_key(&o, "n");
	rv_json_out_u64(&o, UINT64_MAX);
	rv_json_out_key(&o, "i");
	rv_json_out_i64(&o, -5);
	rv_json_out_key(&o, "list");
	rv_json_out_array(&o);
	rv_json_out_bool(&o, true);
	rv_json_out_bool(&o, false);
	rv_json_out_null(&o);
	rv_json_out_array(&o);
	rv_json_out_array_end(&o);
	rv_json_out_object(&o);
	rv_json_out_object_end(&o);
	rv_json_out_array_end(&o);
	rv_json_out_key(&o, "t");
	rv_json_out_text(&o, "\"\\\n\x01\xc3\xa9\xff", 7);
	rv_json_out_key(&o, "d");
	rv_json_out_double(&o, 0.1);
	rv_json_out_key(&o, "nan");
	rv_json_out_double(&o, (double)__builtin_nan(""));
	rv_json_out_key(&o, "none");
	rv_json_out_str(&o, NULL);
	rv_json_out_object_end(&o);
	assert_false(o.bad);
	assert_string_equal(o.buf, want);
	doc = parse(o.buf);
	rv_json_free(doc);
	rv_json_out_reset(&o);
	for (int i = 0; i < 1000; i++)
		rv_json_out_u64(&o, 1);
	assert_int_equal(o.len, 1999);
	rv_json_out_fini(&o);
}

static const struct {
	const char *text;
	int rc;
} uuids[] = {
	{"00112233-4455-4677-8899-aabbccddeeff", 0},
	{"00112233-4455-4677-8899-AABBCCDDEEFF", 0},
	{"00112233445546778899aabbccddeeff", 0},
	{"00112233445546778899AABBCCDDEEFF", 0},
	{"", -EINVAL},
	{"00112233-4455-4677-8899-aabbccddeef", -EINVAL},
	{"00112233-4455-4677-8899-aabbccddeefff", -EINVAL},
	{"0011223344554677-8899-aabbccddeeff00", -EINVAL},
	{"00112233_4455_4677_8899_aabbccddeeff", -EINVAL},
	{"g0112233-4455-4677-8899-aabbccddeeff", -EINVAL},
	{"00112233445546778899aabbccddee f", -EINVAL},
};

static void uuids_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(uuids); i++) {
		uint8_t id[RV_UUID_LEN];
		char text[RV_UUID_TEXT];

		if (rv_uuid_parse(uuids[i].text, strlen(uuids[i].text), id) != uuids[i].rc)
			fail_msg("%s", uuids[i].text);
		if (uuids[i].rc)
			continue;
		rv_uuid_format(id, text);
		assert_string_equal(text, uuids[0].text);
	}
}

static void a_worker_id_is_the_hash_of_its_uuid(void **state)
{
	static const struct {
		const char *uuid;
		uint64_t worker;
	} rows[] = {
		{"00112233-4455-4677-8899-aabbccddeeff", 0xfde8414c5afee9d3},
		{"00000000-0000-0000-0000-000000000000", 0xd0a66a65c7528968},
		{"ffffffff-ffff-ffff-ffff-ffffffffffff", 0x722a202f07a4b313},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		uint8_t id[RV_UUID_LEN];

		assert_int_equal(rv_uuid_parse(rows[i].uuid, 36, id), 0);
		assert_true(rv_worker_id(id) == rows[i].worker);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_are_taken_or_refused),
		cmocka_unit_test(a_refusal_says_why),
		cmocka_unit_test(texts_longer_than_any_are_refused),
		cmocka_unit_test(a_text_cut_anywhere_is_refused),
		cmocka_unit_test(the_depth_is_bounded),
		cmocka_unit_test(integers_are_exact_or_refused),
		cmocka_unit_test(a_tree_can_be_looked_at),
		cmocka_unit_test(what_is_of_another_kind_is_refused),
		cmocka_unit_test(what_is_written_reads_back),
		cmocka_unit_test(uuids_are_taken_or_refused),
		cmocka_unit_test(a_worker_id_is_the_hash_of_its_uuid),
	};

	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
