/* Many short gets of one owner in one exchange: the owner. */
#include <errno.h>

#include "dataplane/base/hash.h"
#include "dataplane/base/units.h"
#include "dataplane/mem/region.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define CONSUMER  500u
#define ALICE     1000u
#define BYTES_MAX ((uint32_t)RV_KIB(64))
#define CAP       ((uint32_t)RV_KIB(256))
#define BEGIN     72u /* where the payloads may begin */

static struct fake_engine w;
static struct rv_peer_many many;
static struct rv_along along[RV_PEER_MANY_MAX];
static uint8_t buf[CAP];

static int setup(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	fake_engine_init(&w, &(struct fake_engine_conf){.bytes_max = BYTES_MAX});
	memset(buf, 0x5a, sizeof(buf));
	return 0;
}

static int finish(void **state)
{
	(void)state;
	fake_engine_fini(&w);
	return 0;
}

static void ask_for(const uint64_t *slot, unsigned nr, uint32_t each)
{
	many = (struct rv_peer_many){.nr = nr, .each = each};
	for (unsigned i = 0; i < nr; i++)
		many.one[i] = (struct rv_peer_one){.local = slot[i], .rc = -EAGAIN};
}

static struct rv_msg_serve_many serve(uint32_t cap)
{
	struct rv_msg_serve_many m = {
		.engine = &w.engine,
		.worker = CONSUMER,
		.many = &many,
		.along = along,
		.buf = buf,
		.cap = cap,
		.used = BEGIN,
	};

	fake_ask(&w, rv_engine_run_serve_many, &m, sizeof(m));
	return m;
}

/* They were sent. */
static void served(uint32_t nr)
{
	struct rv_msg_served m = {.engine = &w.engine, .along = along, .along_nr = nr};

	fake_ask(&w, rv_engine_run_served, &m, sizeof(m));
}

static bool are(const uint8_t *bytes, size_t len, int byte)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != byte)
			return false;
	return true;
}

static void each_payload_is_sent_from_where_it_lies_and_no_lease_is_left(void **state)
{
	uint64_t no_offer = rv_counter_get(&w.engine.stats.path[RV_PATH_NO_OFFER]);
	uint64_t slot[] = {fake_stage(&w, 1000, 1, true, ALICE), fake_stage(&w, 0, 0, false, ALICE),
			   fake_stage(&w, BYTES_MAX, 2, false, ALICE)};
	struct rv_block *block[] = {fake_slot(&w, slot[0])->block, fake_slot(&w, slot[2])->block};
	unsigned holds[] = {block[0]->holds, block[1]->holds};
	struct rv_msg_serve_many m;

	(void)state;
	ask_for(slot, 3, UINT32_MAX);
	m = serve(CAP);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(many.one[i].rc, 0);
	assert_int_equal(many.one[0].len, 1000);
	assert_int_equal(many.one[1].len, 0);
	assert_int_equal(many.one[2].len, BYTES_MAX);
	assert_int_equal(m.along_nr, 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(along[i].off, many.one[2 * i].off);
		assert_int_equal(along[i].len, many.one[2 * i].len);
		assert_int_equal(along[i].off % RV_MANY_ALIGN, 0);
		assert_ptr_equal(along[i].bytes, rv_block_ptr(block[i]));
		assert_true(are(along[i].bytes, along[i].len, (int)i + 1));
		assert_int_equal(block[i]->holds, holds[i] + 1);
	}
	assert_true(along[0].off >= BEGIN && along[1].off >= along[0].off + 1000);
	assert_int_equal(m.used, along[1].off + BYTES_MAX);
	assert_true(are(buf, sizeof(buf), 0x5a));
	assert_int_equal(rv_counter_get(&w.engine.stats.path[RV_PATH_NO_OFFER]) - no_offer, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(fake_slot(&w, slot[i])->locks, 0);
		fake_drop_slot(&w, slot[i]);
	}
	/* The slots are gone, the bytes stay until they were sent. */
	for (unsigned i = 0; i < 2; i++)
		assert_true(are(along[i].bytes, along[i].len, (int)i + 1));
	assert_true(rv_counter_get(&w.engine.pool.used_bytes) >= 1000 + BYTES_MAX);
	served(m.along_nr);
	assert_int_equal(rv_counter_get(&w.engine.pool.used_bytes), 0);
}

/* One slot of this length, so much room behind BEGIN, and the longest that is wanted. */
static const struct {
	uint64_t len;
	uint32_t cap, each;
	bool along;
} limits[] = {
	{1, 129, 1, true},
	{1, 128, 1, false},
	{1, 129, 0, false},
	{0, BEGIN, 0, true},
	{1000, CAP, 1000, true},
	{1001, CAP, 1000, false},
	{BYTES_MAX, CAP, UINT32_MAX, true},
	{BYTES_MAX + 1, CAP, UINT32_MAX, false}, /* the owner has a limit of its own */
	{1, 0, 1, false},
};

static void what_is_too_long_or_has_no_room_is_left_out(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(limits); i++) {
		uint64_t slot = fake_stage(&w, limits[i].len, 3, false, ALICE);
		struct rv_msg_serve_many m;

		ask_for(&slot, 1, limits[i].each);
		m = serve(limits[i].cap);
		if ((many.one[0].rc == 0) != limits[i].along)
			fail_msg("row %zu", i);
		assert_true(many.one[0].rc == 0 || many.one[0].rc == -EAGAIN);
		assert_true(m.used <= rv_max_u64(limits[i].cap, BEGIN));
		assert_int_equal(m.along_nr, limits[i].along && limits[i].len);
		fake_drop_slot(&w, slot);
		served(m.along_nr);
		assert_int_equal(rv_counter_get(&w.engine.pool.used_bytes), 0);
	}
}

static void what_is_not_there_or_anothers_or_done_is_left_as_it_is(void **state)
{
	uint64_t here = fake_stage(&w, 10, 4, false, ALICE),
		 gone = fake_stage(&w, 10, 5, false, ALICE);
	uint64_t slot[] = {gone, here + 1, here, here + 64 * 1000};

	(void)state;
	fake_drop_slot(&w, gone);
	ask_for(slot, 4, 100);
	many.one[2].rc = 0; /* another core has done it */
	assert_int_equal(serve(CAP).along_nr, 0);
	assert_int_equal(many.one[0].rc, -EAGAIN);
	assert_int_equal(many.one[1].rc, -EAGAIN);
	assert_int_equal(many.one[2].len, 0);
	assert_int_equal(many.one[3].rc, -EAGAIN);
	assert_true(are(buf, sizeof(buf), 0x5a));
	fake_drop_slot(&w, here);
}

static void the_hash_of_the_content_goes_along_where_it_is_known(void **state)
{
	uint64_t slot[] = {fake_stage(&w, 10, 6, false, ALICE),
			   fake_stage(&w, 10, 6, false, ALICE)};

	(void)state;
	fake_slot(&w, slot[0])->has_xxh3 = true;
	fake_slot(&w, slot[0])->xxh3 = 4711;
	ask_for(slot, 2, 100);
	served(serve(CAP).along_nr);
	assert_true(many.one[0].has_xxh3 && many.one[0].xxh3 == 4711);
	assert_false(many.one[1].has_xxh3);
	fake_drop_slot(&w, slot[0]);
	fake_drop_slot(&w, slot[1]);
}

/* A client's region goes when the client says so: what lies there is copied, and what cannot be is asked for alone. */
static void what_lies_in_a_region_is_copied(void **state)
{
	uint64_t slot[] = {fake_stage(&w, 100, 7, true, ALICE), fake_stage(&w, 10, 8, true, ALICE)};
	struct rv_arena *a = fake_slot(&w, slot[0])->block->arena;
	struct rv_region region = {.fd = a->pages.memfd, .arena = a};
	struct rv_msg_serve_many m;

	(void)state;
	for (unsigned gone = 0; gone < 2; gone++) {
		unsigned holds = fake_slot(&w, slot[0])->block->holds;

		a->region = &region;
		if (gone)
			rv_copy_latch(&region.gate);
		ask_for(slot, 2, 1000);
		m = serve(CAP);
		a->region = NULL;
		assert_int_equal(many.one[0].rc, gone ? -EAGAIN : 0);
		assert_int_equal(m.along_nr, gone ? 0 : 2);
		assert_int_equal(m.used, gone ? BEGIN : along[1].off + 10);
		assert_int_equal(fake_slot(&w, slot[0])->block->holds, holds);
		for (unsigned i = 0; i < m.along_nr; i++) {
			assert_null(along[i].block);
			assert_ptr_equal(along[i].bytes, buf + along[i].off);
			assert_true(are(along[i].bytes, along[i].len, 7 + (int)i));
		}
		served(m.along_nr);
	}
	fake_drop_slot(&w, slot[0]);
	fake_drop_slot(&w, slot[1]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(each_payload_is_sent_from_where_it_lies_and_no_lease_is_left),
		TEST(what_lies_in_a_region_is_copied),
		TEST(what_is_too_long_or_has_no_room_is_left_out),
		TEST(what_is_not_there_or_anothers_or_done_is_left_as_it_is),
		TEST(the_hash_of_the_content_goes_along_where_it_is_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
