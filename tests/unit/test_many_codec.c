/* The bodies of `_rvd_get_many`. */
#include "control/messenger/many_codec.h"

#include <errno.h>
#include <string.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

/* A block of exactly these bytes. */
static uint8_t *exact(const uint8_t *buf, size_t len)
{
	uint8_t *block = malloc(len ? len : 1);

	assert_non_null(block);
	memcpy(block, buf, len);
	return block;
}

static void a_request_is_read_as_it_was_written(void **state)
{
	static const uint8_t want[] = {0, 0, 8, 0,    0, 4, 0, 0, 1, 0, 0, 0,
				       0, 0, 0, 0x80, 2, 0, 0, 0, 0, 0, 0, 0};
	struct rv_peer_many in = {.nr = 2,
				  .each = 1024,
				  .one = {{.local = (UINT64_C(1) << 63) | 1}, {.local = 2}}};
	static struct rv_peer_many out;
	uint8_t buf[64];
	struct rv_writer w = rv_writer(buf, sizeof(buf));
	uint32_t room;

	(void)state;
	rv_many_request_encode(&w, &in, 512 << 10);
	assert_false(w.bad);
	assert_int_equal(w.len, sizeof(want));
	assert_memory_equal(buf, want, sizeof(want));
	assert_int_equal(rv_many_request_decode(buf, w.len, &out, &room), 0);
	assert_int_equal(room, 512 << 10);
	assert_int_equal(out.nr, 2);
	assert_int_equal(out.each, 1024);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(out.one[i].local == in.one[i].local);
		assert_int_equal(out.one[i].rc, -EAGAIN);
	}
}

static void a_request_of_another_length_is_refused(void **state)
{
	static uint8_t buf[8 + 8 * (RV_PEER_MANY_MAX + 1)];
	static struct rv_peer_many out;
	uint32_t room;

	(void)state;
	for (size_t len = 0; len <= sizeof(buf); len++) {
		bool good = len >= 16 && len % 8 == 0 && len <= 8 + 8 * RV_PEER_MANY_MAX;
		uint8_t *cut = exact(buf, len);

		assert_int_equal(rv_many_request_decode(cut, len, &out, &room), good ? 0 : -EPROTO);
		free(cut);
	}
}

#define BYTES 100u

/* Two that came along and one that did not; then BYTES of payload. */
static size_t answer(uint8_t *buf, size_t cap, struct rv_peer_many *many)
{
	struct rv_writer w = rv_writer(buf, cap);

	*many = (struct rv_peer_many){
		.nr = 3,
		.each = 60,
		.one = {{.local = 1, .off = 72, .len = 60, .has_xxh3 = true, .xxh3 = UINT64_MAX},
			{.local = 2,
			 .rc = -EAGAIN,
			 .off = 5,
			 .len = 6,
			 .has_xxh3 = true,
			 .xxh3 = 7},
			{.local = 3, .off = 132, .len = 40}},
	};
	rv_many_answer_encode(&w, many);
	assert_false(w.bad);
	assert_int_equal(w.len, RV_MANY_SAID(3));
	memset(buf + w.len, 'p', BYTES);
	return w.len + BYTES;
}

static void an_answer_is_read_as_it_was_written(void **state)
{
	struct rv_peer_many in, out;
	uint8_t buf[256];
	size_t len = answer(buf, sizeof(buf), &in);

	(void)state;
	out = in;
	memset(out.one, 0x55, sizeof(out.one));
	assert_int_equal(rv_many_answer_decode(buf, len, &out), 0);
	for (unsigned i = 0; i < 3; i++) {
		const struct rv_peer_one *a = &in.one[i], *b = &out.one[i];

		assert_int_equal(b->rc, a->rc);
		if (a->rc)
			continue;
		assert_int_equal(b->off, a->off);
		assert_int_equal(b->len, a->len);
		assert_int_equal(b->has_xxh3, a->has_xxh3);
		assert_true(b->xxh3 == a->xxh3);
	}
}

static void an_answer_cut_short_is_refused(void **state)
{
	struct rv_peer_many many;
	uint8_t buf[256];
	size_t len = answer(buf, sizeof(buf), &many);

	(void)state;
	for (size_t n = 0; n < len; n++) {
		uint8_t *cut = exact(buf, n);

		assert_int_equal(rv_many_answer_decode(cut, n, &many), -EPROTO);
		free(cut);
	}
}

/* One word of the first entry is another; the answer has 60 bytes behind one entry. */
static const struct {
	uint32_t along, len, off, has;
	int rc;
} words[] = {
	{1, 60, 24, 0, 0},
	{1, 60, 24, 1, 0},
	{0, 60, 24, 0, 0},
	{1, 0, 84, 0, 0},
	{1, 0, 85, 0, -EPROTO},
	{1, 60, 25, 0, -EPROTO},
	{1, 61, 24, 0, -EPROTO}, /* longer than was asked for, and than there is */
	{1, 61, 20, 0, -EPROTO}, /* longer than was asked for */
	{1, UINT32_MAX, 24, 0, -EPROTO},
	{1, 60, UINT32_MAX, 0, -EPROTO},
	{0, 60, UINT32_MAX, 0, -EPROTO},
	{2, 60, 24, 0, -EPROTO},
	{UINT32_MAX, 60, 24, 0, -EPROTO},
	{1, 60, 24, 2, -EPROTO},
};

static void an_answer_that_names_other_bytes_than_its_own_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(words); i++) {
		struct rv_peer_many many = {.nr = 1, .each = 60};
		uint8_t buf[84] = {0};
		struct rv_writer w = rv_writer(buf, sizeof(buf));

		rv_put_le(&w, words[i].along, 4);
		rv_put_le(&w, words[i].len, 4);
		rv_put_le(&w, words[i].off, 4);
		rv_put_le(&w, words[i].has, 4);
		if (rv_many_answer_decode(buf, sizeof(buf), &many) != words[i].rc)
			fail_msg("row %zu", i);
		if (!words[i].rc)
			assert_int_equal(many.one[0].rc, words[i].along ? 0 : -EAGAIN);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_is_read_as_it_was_written),
		cmocka_unit_test(a_request_of_another_length_is_refused),
		cmocka_unit_test(an_answer_is_read_as_it_was_written),
		cmocka_unit_test(an_answer_cut_short_is_refused),
		cmocka_unit_test(an_answer_that_names_other_bytes_than_its_own_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
