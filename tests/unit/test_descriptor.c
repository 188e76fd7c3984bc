#include "dataplane/rendezvous/descriptor.h"

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static const char good_hex[] = "01 01 00 0100000000000000 001000 00007f0000 0000010000000000 0900 "
			       "000000000000000000";

static bool takes(const uint8_t *buf, size_t len)
{
	struct rv_desc d;

	return rv_desc_decode(buf, len, &d) == RV_ACCEPT;
}

static void a_descriptor_survives_a_round_trip(void **state)
{
	struct rv_desc d;
	uint8_t in[64], out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	size_t len = from_hex(good_hex, in, sizeof(in));

	(void)state;
	assert_int_equal(len, 38);
	assert_int_equal(rv_desc_decode(in, len, &d), RV_ACCEPT);
	assert_int_equal(d.backend, RV_BACKEND_UCX);
	assert_int_equal(d.generation, 1);
	assert_true(d.addr == 0x7f0000001000);
	assert_int_equal(d.len, 65536);
	assert_int_equal(d.rkey_len, 9);
	assert_ptr_equal(d.rkey, in + RV_DESC_FIXED);
	assert_int_equal(rv_desc_encode(&w, &d), 0);
	assert_int_equal(w.len, len);
	assert_memory_equal(out, in, len);
}

static void a_descriptor_cut_anywhere_is_refused(void **state)
{
	uint8_t in[64];
	size_t len = from_hex(good_hex, in, sizeof(in));

	(void)state;
	exact_cut_everywhere(in, len, takes);
}

static const struct {
	size_t at;
	uint8_t byte;
	enum rv_refusal want;
} changes[] = {
	{0, 0, RV_REFUSE_BACKEND}, {0, 3, RV_REFUSE_BACKEND},   {0, 2, RV_ACCEPT},
	{1, 0, RV_REFUSE_VERSION}, {1, 2, RV_REFUSE_VERSION},   {2, 1, RV_REFUSE_FLAGS},
	{21, 0, RV_REFUSE_EMPTY},  {27, 8, RV_REFUSE_TRAILING}, {27, 10, RV_REFUSE_TRUNCATED},
	{3, 0, RV_ACCEPT},         {27, 0, RV_REFUSE_TRAILING}, {28, 1, RV_REFUSE_TRUNCATED},
};

static void each_changed_field_has_its_refusal(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(changes); i++) {
		struct rv_desc d = {.backend = 77};
		uint8_t in[64];
		size_t len = from_hex(good_hex, in, sizeof(in));
		enum rv_refusal got;

		in[changes[i].at] = changes[i].byte;
		got = rv_desc_decode(in, len, &d);
		if (got != changes[i].want)
			fail_msg("byte %zu = %u: %s", changes[i].at, changes[i].byte,
				 rv_refusal_name(got));
		if (got != RV_ACCEPT)
			assert_int_equal(d.backend, 77);
	}
}

static void a_key_has_1_to_4096_bytes(void **state)
{
	static uint8_t key[RV_DESC_KEY_MAX + 1], out[RV_DESC_MAX + 1];
	struct rv_desc d = {.backend = RV_BACKEND_VERBS, .len = 1, .rkey = key};
	struct rv_writer w = rv_writer(out, sizeof(out));

	(void)state;
	d.rkey_len = RV_DESC_KEY_MAX;
	assert_int_equal(rv_desc_encode(&w, &d), 0);
	assert_int_equal(w.len, RV_DESC_MAX);
	assert_true(exact_accepts(out, w.len, takes));

	out[27] = 0x01; /* K = 4097 */
	assert_int_equal(rv_desc_decode(out, RV_DESC_MAX + 1, &d), RV_REFUSE_KEY);
	out[27] = out[28] = 0;
	assert_int_equal(rv_desc_decode(out, RV_DESC_FIXED, &d), RV_REFUSE_KEY);

	w = rv_writer(out, sizeof(out));
	d.rkey_len = RV_DESC_KEY_MAX + 1;
	assert_int_equal(rv_desc_encode(&w, &d), -EINVAL);
	d.rkey_len = 0;
	assert_int_equal(rv_desc_encode(&w, &d), -EINVAL);
	d.rkey_len = 1;
	d.len = 0;
	assert_int_equal(rv_desc_encode(&w, &d), -EINVAL);
	d.len = 1;
	d.backend = 0;
	assert_int_equal(rv_desc_encode(&w, &d), -EINVAL);
	d.backend = RV_BACKEND_UCX;
	w = rv_writer(out, RV_DESC_FIXED);
	assert_int_equal(rv_desc_encode(&w, &d), -ENOSPC);
}

static void every_refusal_has_a_name(void **state)
{
	(void)state;
	for (unsigned i = 0; i < RV_REFUSAL_NR; i++)
		assert_string_not_equal(rv_refusal_name((enum rv_refusal)i), "unknown");
	assert_string_equal(rv_refusal_name((enum rv_refusal)99), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_survives_a_round_trip),
		cmocka_unit_test(a_descriptor_cut_anywhere_is_refused),
		cmocka_unit_test(each_changed_field_has_its_refusal),
		cmocka_unit_test(a_key_has_1_to_4096_bytes),
		cmocka_unit_test(every_refusal_has_a_name),
	};

	return cmocka_run_group_tests_name("descriptor", tests, NULL, NULL);
}
