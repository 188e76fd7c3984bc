/* Worker addresses as UCX 1.22 packs them, and what is none. */
#include "ucx/addr_parse.h"

#include "tests/unit/exact.h"

/* Version 1: one tcp device with a system device and two paths, one interface of 5 bytes. */
static const uint8_t v1[] = {
	0x00,     1,
	2,        3,
	4,        5,
	6,        7,
	8, /* version, uuid */
	0x01,     0x80 | 0x40 | 0x20 | 4,
	2,        0xff,
	10,       0,
	0,        1,    /* device */
	0xaa,     0xbb, /* transport */
	0,        0,
	0,        1,
	0,        0,
	0,        2,
	0,        0,
	0,        3,
	0,        0,
	0,        4, /* attributes */
	0x80 | 5, 1,
	2,        3,
	4,        5, /* interface */
};

/* The same with a client id, a name, an index in each interface's attributes, and an empty device in front. */
static const uint8_t indexed[] = {
	0x50, 1,  2,    3,    4,    5,    6,   7,   8,        11, 12,   13,   14,
	15,   16, 17,   18,   3,    'a',  'b', 'c', 0x80 | 2, 1,  0x77, 0x01, 0x80 | 2,
	10,   1,  0xaa, 0xbb, 0,    0,    0,   1,   0,        0,  0,    2,    0,
	0,    0,  3,    0,    0,    0,    4,   9,   0x40 | 1, 7,  2,    0x11, 0x22,
	0x01, 1,  0x33, 0x82, 0xcc, 0xdd, 0,   0,   0,        1,  0,    0,    0,
	2,    0,  0,    0,    3,    0,    0,   0,   4,        9,  0x80,
};

/* Version 2: flags of their own, extended lengths, short attributes. */
static const uint8_t v2[] = {
	0x61, 0x02, 1,    2,    3,  4,  5,  6,  7,  8,  0x7f, 200, 0x80 | 0x1f, 33, 0,
	1,    2,    3,    4,    5,  6,  7,  8,  9,  10, 11,   12,  13,          14, 15,
	16,   17,   18,   19,   20, 21, 22, 23, 24, 25, 26,   27,  28,          29, 30,
	31,   32,   0xaa, 0xbb, 1,  2,  3,  4,  5,  6,  7,    8,   0x80 | 1,    42,
};

static bool plain(const uint8_t *buf, size_t len)
{
	return rv_addr_parse(buf, len, RV_ADDR_PLAIN);
}

static bool with_index(const uint8_t *buf, size_t len)
{
	return rv_addr_parse(buf, len, RV_ADDR_INDEXED);
}

static const struct {
	const uint8_t *bytes;
	size_t len;
	enum rv_addr_form form;
	bool (*parse)(const uint8_t *buf, size_t len);
} good[] = {
	{v1, sizeof(v1), RV_ADDR_PLAIN, plain},
	{indexed, sizeof(indexed), RV_ADDR_INDEXED, with_index},
	{v2, sizeof(v2), RV_ADDR_PLAIN, plain},
};

static void addresses_are_walked_to_their_last_byte(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(exact_accepts(good[i].bytes, good[i].len, good[i].parse));
		assert_int_equal(rv_addr_form_of(good[i].bytes, good[i].len), good[i].form);
	}
}

static void an_address_cut_anywhere_or_padded_is_refused(void **state)
{
	uint8_t longer[256];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		for (size_t n = 0; n < good[i].len; n++)
			assert_false(exact_accepts(good[i].bytes, n, good[i].parse));
		memcpy(longer, good[i].bytes, good[i].len);
		longer[good[i].len] = 0;
		assert_false(exact_accepts(longer, good[i].len + 1, good[i].parse));
	}
}

static void what_is_no_address_is_refused(void **state)
{
	uint8_t bytes[64];

	(void)state;
	for (int fill = 0; fill < 256; fill++) {
		memset(bytes, fill, sizeof(bytes));
		for (size_t n = 0; n <= sizeof(bytes); n++) {
			/* An empty list of devices reaches nobody. */
			if (exact_accepts(bytes, n, plain))
				assert_int_not_equal(fill, 0xff);
		}
	}
	memset(bytes, 0xff, 40); /* stops a stock node */
	assert_false(exact_accepts(bytes, 40, plain));
	memcpy(bytes, v1, 9);
	bytes[9] = 0xff;
	assert_false(exact_accepts(bytes, 10, plain));
	for (unsigned version = 2; version < 16; version++) {
		memcpy(bytes, v1, sizeof(v1));
		bytes[0] = (uint8_t)version;
		assert_false(exact_accepts(bytes, sizeof(v1), plain));
	}
}

static void a_layout_that_is_not_known_is_not_judged(void **state)
{
	(void)state;
	assert_int_equal(rv_addr_form_of((const uint8_t *)"\x0f", 1), RV_ADDR_NONE);
	assert_true(rv_addr_parse((const uint8_t *)"\x0f", 1, RV_ADDR_NONE));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses_are_walked_to_their_last_byte),
		cmocka_unit_test(an_address_cut_anywhere_or_padded_is_refused),
		cmocka_unit_test(what_is_no_address_is_refused),
		cmocka_unit_test(a_layout_that_is_not_known_is_not_judged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
