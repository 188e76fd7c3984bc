/* What etcd answers. */
#include "control/discovery/etcd_codec.h"

#include <errno.h>
#include <stdio.h>

#include "control/discovery/base64.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const struct {
	const char *text;
	int rc;
	const char *lease;
} grants[] = {
	{"{\"header\":{\"cluster_id\":\"14841639068965178418\"},\"ID\":\"7587862969931427\",\"TTL\":\"15\"}",
	 0, "7587862969931427"},
	{"{\"ID\":\"1\"}", 0, "1"},
	{"{\"ID\":1}", -EPROTO, NULL},
	{"{\"ID\":\"\"}", -EPROTO, NULL},
	{"{\"ID\":\"-1\"}", -EPROTO, NULL},
	{"{\"ID\":\"1,\\\"x\\\":2\"}", -EPROTO, NULL},
	{"{\"ID\":\"1\\u0000\"}", -EPROTO, NULL},
	{"{\"ID\":\"123456789012345678901234\"}", -EPROTO, NULL},
	{"{}", -EPROTO, NULL},
	{"[]", -EPROTO, NULL},
	{"", -EPROTO, NULL},
	{"{\"ID\":\"1\"", -EPROTO, NULL},
};

static void a_lease_is_a_number_in_text(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(grants); i++) {
		char lease[RV_ETCD_LEASE] = "untouched";

		if (rv_etcd_take_lease(grants[i].text, strlen(grants[i].text), lease) !=
		    grants[i].rc)
			fail_msg("row %zu", i);
		assert_string_equal(lease, grants[i].lease ? grants[i].lease : "untouched");
	}
}

static const struct {
	const char *text;
	int rc;
} refreshments[] = {
	{"{\"result\":{\"header\":{},\"ID\":\"7\",\"TTL\":\"15\"}}", 0},
	{"{\"result\":{\"ID\":\"7\",\"TTL\":\"0\"}}", -ESTALE},
	{"{\"result\":{\"ID\":\"7\",\"TTL\":\"00\"}}", -ESTALE},
	{"{\"result\":{\"ID\":\"7\"}}", -ESTALE},
	{"{\"result\":{\"ID\":\"7\",\"TTL\":\"-3\"}}", -ESTALE},
	{"{\"result\":7}", -EPROTO},
	{"{}", -EPROTO},
	{"x", -EPROTO},
};

static void a_lease_without_time_left_is_over(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(refreshments); i++)
		if (rv_etcd_take_alive(refreshments[i].text, strlen(refreshments[i].text)) !=
		    refreshments[i].rc)
			fail_msg("row %zu", i);
}

#define INFO \
	"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\",\"worker_address\":[129,163,116]}"

static uint64_t worker(void)
{
	uint8_t id[RV_UUID_LEN];

	assert_int_equal(rv_uuid_parse("00112233-4455-4677-8899-aabbccddeeff", 36, id), 0);
	return rv_worker_id(id);
}

static size_t range(char *out, size_t cap, const char *value)
{
	char b64[512];

	rv_base64_encode((const uint8_t *)value, strlen(value), b64);
	return (size_t)snprintf(
		out, cap,
		"{\"header\":{\"revision\":\"3\"},\"kvs\":[{\"key\":\"L2E=\",\"lease\":\"7\",\"value\":\"%s\"}],\"count\":\"1\"}",
		b64);
}

static void a_value_is_the_peer_info_of_whom_was_asked_for(void **state)
{
	struct rv_peer_info pi;
	char text[1024];
	size_t len = range(text, sizeof(text), INFO);

	(void)state;
	assert_int_equal(rv_etcd_take_peer(text, len, worker(), &pi), 0);
	assert_int_equal(pi.address_len, 3);
	rv_peer_info_fini(&pi);
	assert_int_equal(rv_etcd_take_peer(text, len, worker() + 1, &pi), -EPROTO);
	for (size_t n = 0; n < len; n++) {
		char *cut = malloc(n ? n : 1);

		memcpy(cut, text, n);
		assert_int_equal(rv_etcd_take_peer(cut, n, worker(), &pi), -EPROTO);
		free(cut);
	}
}

static const struct {
	const char *text;
	int rc;
} answers[] = {
	{"{\"header\":{}}", -ENOENT},
	{"{\"kvs\":[],\"count\":\"0\"}", -ENOENT},
	{"{\"kvs\":7}", -ENOENT},
	{"{\"kvs\":[{}]}", -EPROTO},
	{"{\"kvs\":[{\"value\":7}]}", -EPROTO},
	{"{\"kvs\":[{\"value\":\"\"}]}", -EPROTO},
	{"{\"kvs\":[{\"value\":\"e30=\"}]}", -EPROTO}, /* {} */
	{"{\"kvs\":[{\"value\":\"e30\"}]}", -EPROTO},
	{"[]", -EPROTO},
};

static void no_value_and_no_sense_are_told_apart(void **state)
{
	struct rv_peer_info pi;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(answers); i++)
		if (rv_etcd_take_peer(answers[i].text, strlen(answers[i].text), worker(), &pi) !=
		    answers[i].rc)
			fail_msg("row %zu", i);
}

static void what_a_refusal_says_is_one_line(void **state)
{
	static const struct {
		const char *text, *said;
	} rows[] = {
		{"{\"error\":\"etcdserver: no space\",\"code\":8}", "etcdserver: no space"},
		{"{\"error\":\"two\\nlines\\u0001\"}", "two lines "},
		{"{\"error\":7}", ""},
		{"404 page not found", ""},
		{"", ""},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		char out[32];

		rv_etcd_take_error(rows[i].text, strlen(rows[i].text), out, sizeof(out));
		assert_string_equal(out, rows[i].said);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lease_is_a_number_in_text),
		cmocka_unit_test(a_lease_without_time_left_is_over),
		cmocka_unit_test(a_value_is_the_peer_info_of_whom_was_asked_for),
		cmocka_unit_test(no_value_and_no_sense_are_told_apart),
		cmocka_unit_test(what_a_refusal_says_is_one_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
