/* Many short gets of one owner in one exchange: the owner. */
#include <errno.h>

#include "dataplane/base/hash.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define CONSUMER  500u
#define ALICE     1000u
#define BYTES_MAX ((uint32_t)RV_KIB(64))
#define CAP       ((uint32_t)RV_KIB(256))
#define BEGIN     72u /* where the payloads may begin */

static struct fake_engine w;
static struct rv_peer_many many;
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
		.buf = buf,
		.cap = cap,
		.used = BEGIN,
	};

	fake_ask(&w, rv_engine_run_serve_many, &m, sizeof(m));
	return m;
}

static bool is(uint32_t off, uint32_t len, int byte)
{
	for (uint32_t i = 0; i < len; i++)
		if (buf[off + i] != byte)
			return false;
	return true;
}

static void each_payload_is_copied_and_no_lease_is_left(void **state)
{
	uint64_t no_offer = rv_counter_get(&w.engine.stats.path[RV_PATH_NO_OFFER]);
	uint64_t slot[] = {fake_stage(&w, 1000, 1, true, ALICE), fake_stage(&w, 0, 0, false, ALICE),
			   fake_stage(&w, BYTES_MAX, 2, false, ALICE)};
	struct rv_msg_serve_many m;

	(void)state;
	ask_for(slot, 3, UINT32_MAX);
	m = serve(CAP);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(many.one[i].rc, 0);
	assert_int_equal(many.one[0].len, 1000);
	assert_int_equal(many.one[1].len, 0);
	assert_int_equal(many.one[2].len, BYTES_MAX);
	assert_true(is(many.one[0].off, 1000, 1) && is(many.one[2].off, BYTES_MAX, 2));
	assert_int_equal(many.one[0].off % RV_MANY_ALIGN, 0);
	assert_int_equal(many.one[2].off % RV_MANY_ALIGN, 0);
	assert_true(many.one[0].off >= BEGIN && many.one[2].off >= many.one[0].off + 1000);
	assert_int_equal(m.used, many.one[2].off + BYTES_MAX);
	/* Between them is nothing of what was in the buffer before. */
	assert_true(is(BEGIN, many.one[0].off - BEGIN, 0));
	assert_true(is(many.one[0].off + 1000, many.one[2].off - many.one[0].off - 1000, 0));
	assert_true(is(0, BEGIN, 0x5a));
	assert_int_equal(rv_counter_get(&w.engine.stats.path[RV_PATH_NO_OFFER]) - no_offer, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(fake_slot(&w, slot[i])->locks, 0);
		fake_drop_slot(&w, slot[i]);
	}
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

		memset(buf, 0x5a, sizeof(buf));
		ask_for(&slot, 1, limits[i].each);
		m = serve(limits[i].cap);
		if ((many.one[0].rc == 0) != limits[i].along)
			fail_msg("row %zu", i);
		assert_true(many.one[0].rc == 0 || many.one[0].rc == -EAGAIN);
		assert_true(m.used <= rv_max_u64(limits[i].cap, BEGIN));
		assert_true(is(m.used, (uint32_t)sizeof(buf) - m.used, 0x5a));
		fake_drop_slot(&w, slot);
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
	serve(CAP);
	assert_int_equal(many.one[0].rc, -EAGAIN);
	assert_int_equal(many.one[1].rc, -EAGAIN);
	assert_int_equal(many.one[2].len, 0);
	assert_int_equal(many.one[3].rc, -EAGAIN);
	assert_true(is(0, sizeof(buf), 0x5a));
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
	serve(CAP);
	assert_true(many.one[0].has_xxh3 && many.one[0].xxh3 == 4711);
	assert_false(many.one[1].has_xxh3);
	fake_drop_slot(&w, slot[0]);
	fake_drop_slot(&w, slot[1]);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(each_payload_is_copied_and_no_lease_is_left),
		TEST(what_is_too_long_or_has_no_room_is_left_out),
		TEST(what_is_not_there_or_anothers_or_done_is_left_as_it_is),
		TEST(the_hash_of_the_content_goes_along_where_it_is_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
