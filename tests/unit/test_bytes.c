#include "dataplane/base/bytes.h"

#include "tests/unit/exact.h"

static void fields_are_read_in_both_byte_orders(void **state)
{
	static const uint8_t b[] = {0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08};
	struct rv_cursor c = rv_cursor(b, sizeof(b));

	(void)state;
	assert_int_equal(rv_take_be16(&c), 0x0102);
	assert_int_equal(rv_take_le16(&c), 0x0403);
	assert_int_equal(rv_take_be32(&c), 0x05060708);
	assert_int_equal(rv_cursor_left(&c), 0);
	assert_false(c.bad);

	c = rv_cursor(b, sizeof(b));
	assert_true(rv_take_le64(&c) == 0x0807060504030201ULL);
	c = rv_cursor(b, sizeof(b));
	assert_true(rv_take_be64(&c) == 0x0102030405060708ULL);
	c = rv_cursor(b, sizeof(b));
	assert_true(rv_take_le32(&c) == 0x04030201);
}

static void a_take_past_the_end_spoils_the_cursor_for_good(void **state)
{
	static const uint8_t b[] = {0xaa, 0xbb, 0xcc};
	struct rv_cursor c = rv_cursor(b, sizeof(b));

	(void)state;
	assert_int_equal(rv_take_u8(&c), 0xaa);
	assert_int_equal(rv_take_le32(&c), 0);
	assert_true(c.bad);
	assert_int_equal(rv_take_u8(&c), 0);
	assert_null(rv_take_bytes(&c, 0));
	assert_int_equal(rv_cursor_left(&c), 2);
}

static void a_length_near_the_largest_does_not_wrap(void **state)
{
	static const uint8_t b[4] = {0};
	struct rv_cursor c = rv_cursor(b, sizeof(b));

	(void)state;
	assert_null(rv_take_bytes(&c, SIZE_MAX));
	assert_true(c.bad);
}

static void an_absent_buffer_is_an_empty_one(void **state)
{
	struct rv_cursor c = rv_cursor(NULL, 10);

	(void)state;
	assert_int_equal(rv_cursor_left(&c), 0);
	assert_int_equal(rv_take_u8(&c), 0);
	assert_true(c.bad);
}

static void a_writer_counts_what_did_not_fit(void **state)
{
	uint8_t b[4] = {0};
	struct rv_writer w = rv_writer(b, sizeof(b));

	(void)state;
	rv_put_be(&w, 0x0102, 2);
	rv_put_le(&w, 0x0403, 2);
	assert_false(w.bad);
	assert_memory_equal(b, "\x01\x02\x03\x04", 4);
	rv_put_text(&w, "more");
	assert_true(w.bad);
	assert_int_equal(w.len, 8);
	assert_memory_equal(b, "\x01\x02\x03\x04", 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_are_read_in_both_byte_orders),
		cmocka_unit_test(a_take_past_the_end_spoils_the_cursor_for_good),
		cmocka_unit_test(a_length_near_the_largest_does_not_wrap),
		cmocka_unit_test(an_absent_buffer_is_an_empty_one),
		cmocka_unit_test(a_writer_counts_what_did_not_fit),
	};

	return cmocka_run_group_tests_name("bytes", tests, NULL, NULL);
}
