/* Many short gets of one owner in one exchange: the consumer. */
#include <errno.h>

#include "dataplane/base/hash.h"
#include "tests/unit/get_fixture.h"

#define BYTES_MAX ((uint32_t)RV_KIB(64))
#define DEADLINE  RV_SEC(20)
#define NR        4u
#define SAID      128u

static struct rv_peer_many many;

static uint64_t blocks(void)
{
	return rv_counter_get(&w.engine.pool.blocks);
}

static uint64_t gets(bool error)
{
	return rv_counter_get(&w.engine.stats.operation[RV_OP_GET][error]);
}

static struct rv_msg_get_many request(enum rv_get_path path)
{
	many = (struct rv_peer_many){.nr = NR};
	for (unsigned i = 0; i < NR; i++)
		many.one[i] = (struct rv_peer_one){.local = 64 * (i + 1), .rc = 7};
	return (struct rv_msg_get_many){
		.engine = &w.engine,
		.worker = FAKE_OWNER,
		.path = path,
		.deadline_ns = fake_now_ns + DEADLINE,
		.uid = ALICE,
		.many = &many,
		.rc = 1,
	};
}

static struct fake_ask *get_many(enum rv_get_path path)
{
	struct rv_msg_get_many m = request(path);
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get_many, &m, sizeof(m));

	fake_engine_run(&w);
	return a;
}

static struct rv_msg_get_many ended(struct fake_ask *a)
{
	struct rv_msg_get_many m;

	fake_engine_run(&w);
	assert_true(a->back);
	m = *(struct rv_msg_get_many *)fake_ask_body(a);
	fake_ask_end(&w, a);
	return m;
}

/* Payload @i came along: the first @len bytes of `remote`, at @off of the answer. */
static void along(unsigned i, uint32_t off, uint32_t len)
{
	struct rv_peer_call *c = call(RV_PEER_MANY);

	assert_true(off + len <= c->bytes_max);
	memcpy(c->dst + off, remote, len);
	many.one[i].rc = 0;
	many.one[i].off = off;
	many.one[i].len = len;
}

/* A get by itself leaves a landing arena. */
static int setup(void **state)
{
	struct rv_msg_get m = {.engine = &w.engine,
			       .handle = {FAKE_OWNER, 64},
			       .path = RV_GET_CHUNKED,
			       .deadline_ns = RV_NEVER,
			       .uid = ALICE};
	struct fake_ask *a;

	(void)state;
	start_with(&(struct fake_engine_conf){.bytes_max = BYTES_MAX});
	a = start(&m);
	fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), LEASE, 1, CHUNK, 1);
	answer(RV_PEER_PULL, 0);
	m = outcome(a);
	drop(&m);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	fake_engine_fini(&w);
	return 0;
}

static void one_call_asks_for_all(void **state)
{
	struct fake_ask *a = get_many(RV_GET_CHUNKED);
	struct rv_peer_call *c = call(RV_PEER_MANY);

	(void)state;
	assert_ptr_equal(c->many, &many);
	assert_true(c->handle.worker == FAKE_OWNER);
	assert_true(c->deadline_ns == fake_now_ns + DEADLINE);
	assert_int_equal(many.each, BYTES_MAX);
	assert_true(c->bytes_max >= NR * 24 && c->dst);
	for (unsigned i = 0; i < NR; i++)
		assert_int_equal(many.one[i].rc, -EAGAIN);
	answer(RV_PEER_MANY, 0);
	assert_int_equal(ended(a).rc, 0);
	assert_int_equal(w.calls.started[RV_PEER_MANY], 1);
}

/* What may be read by RDMA is asked for alone. */
static void what_rdma_could_bring_does_not_come_along(void **state)
{
	struct fake_ask *a = get_many(RV_GET_ANY);

	(void)state;
	assert_int_equal(many.each, rv_min_u64(BYTES_MAX, w.engine.conf.rdma_min_bytes - 1));
	assert_true(many.each < w.engine.conf.rdma_min_bytes);
	answer(RV_PEER_MANY, 0);
	ended(a);
}

static void all_that_came_have_one_hold_together(void **state)
{
	uint64_t good = gets(false), in = rv_counter_get(&w.engine.stats.bytes_in);
	struct fake_ask *a = get_many(RV_GET_CHUNKED);
	struct rv_msg_get_many m;

	(void)state;
	along(0, SAID, 1000);
	along(1, SAID + 1024, 1);
	along(2, 0, 0);
	answer(RV_PEER_MANY, 0); /* the fourth is left to itself */
	m = ended(a);
	assert_int_equal(m.rc, 0);
	assert_int_equal(many.one[3].rc, -EAGAIN);
	assert_non_null(m.block);
	assert_int_equal(m.block->holds, 1);
	assert_memory_equal(rv_block_ptr(m.block) + many.one[0].off, remote, 1000);
	assert_memory_equal(rv_block_ptr(m.block) + many.one[1].off, remote, 1);
	assert_int_equal(gets(false) - good, 3);
	assert_int_equal(rv_counter_get(&w.engine.stats.bytes_in) - in, 1001);
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 0);
	assert_int_equal(blocks(), 1);
	fake_drop_block(&w, m.block);
	assert_int_equal(blocks(), 0);
	assert_int_equal(w.calls.started[RV_PEER_DETACH] + w.calls.started[RV_PEER_RELEASE], 0);
}

static void of_empty_ones_no_memory_is_kept(void **state)
{
	struct fake_ask *a = get_many(RV_GET_CHUNKED);
	struct rv_msg_get_many m;

	(void)state;
	for (unsigned i = 0; i < NR; i++)
		along(i, 0, 0);
	answer(RV_PEER_MANY, 0);
	m = ended(a);
	assert_int_equal(m.rc, 0);
	assert_null(m.block);
	assert_int_equal(blocks(), 0);
}

static void what_is_much_shorter_than_its_place_moves_to_a_smaller_one(void **state)
{
	struct fake_ask *a = get_many(RV_GET_CHUNKED);
	uint64_t roomy = call(RV_PEER_MANY)->bytes_max;
	struct rv_msg_get_many m;

	(void)state;
	along(0, SAID, 10);
	answer(RV_PEER_MANY, 0);
	m = ended(a);
	assert_true(m.block->len < roomy);
	assert_memory_equal(rv_block_ptr(m.block) + many.one[0].off, remote, 10);
	fake_drop_block(&w, m.block);
	/* The next place is as they were: so it stays. */
	a = get_many(RV_GET_CHUNKED);
	assert_true(call(RV_PEER_MANY)->bytes_max < roomy);
	answer(RV_PEER_MANY, 0);
	ended(a);
}

static void the_hash_that_was_told_is_checked(void **state)
{
	struct fake_ask *a = get_many(RV_GET_CHUNKED);
	struct rv_msg_get_many m;

	(void)state;
	along(0, SAID, 1000);
	along(1, SAID + 1024, 1000);
	many.one[0].has_xxh3 = many.one[1].has_xxh3 = true;
	many.one[0].xxh3 = rv_hash_xxh3(remote, 1000);
	many.one[1].xxh3 = many.one[0].xxh3 + 1;
	answer(RV_PEER_MANY, 0);
	m = ended(a);
	assert_int_equal(many.one[0].rc, 0);
	assert_int_equal(many.one[1].rc, -EBADMSG);
	assert_int_equal(m.block->holds, 1);
	fake_drop_block(&w, m.block);
}

/* What the call comes to, and what all gets do then. */
static const struct {
	int rc, all;
} failures[] = {
	{-ENOTSUP, -EAGAIN},        {-EREMOTEIO, -EAGAIN},    {-EPROTO, -EAGAIN},
	{-EAGAIN, -EAGAIN},         {-ESHUTDOWN, -EAGAIN},    {-EHOSTUNREACH, -EHOSTUNREACH},
	{-ECONNRESET, -ECONNRESET}, {-ETIMEDOUT, -ETIMEDOUT},
};

static void a_failure_gives_the_place_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(failures); i++) {
		uint64_t bad = gets(true);
		struct fake_ask *a = get_many(RV_GET_CHUNKED);
		struct rv_msg_get_many m;

		answer(RV_PEER_MANY, failures[i].rc);
		m = ended(a);
		assert_int_equal(m.rc, failures[i].all);
		assert_null(m.block);
		assert_int_equal(blocks(), 0);
		assert_int_equal(gets(true) - bad, failures[i].all == -EAGAIN ? 0 : NR);
	}
}

/* Until its cell is back, somebody may still be writing there. */
static void a_late_answer_keeps_its_place_until_it_comes_back(void **state)
{
	struct fake_ask *a = get_many(RV_GET_CHUNKED);

	(void)state;
	fake_engine_advance(&w, DEADLINE + RV_SEC(1));
	assert_int_equal(blocks(), 1);
	memset(call(RV_PEER_MANY)->dst, 0xff, call(RV_PEER_MANY)->bytes_max);
	answer(RV_PEER_MANY, -ETIMEDOUT);
	assert_int_equal(ended(a).rc, -ETIMEDOUT);
	assert_int_equal(blocks(), 0);
}

static void expect_alone(void)
{
	struct fake_ask *a = get_many(RV_GET_CHUNKED);
	struct rv_msg_get_many m = ended(a);

	assert_int_equal(m.rc, -EAGAIN);
	assert_null(m.block);
	assert_int_equal(w.calls.started[RV_PEER_MANY], 0);
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 0);
}

static void without_memory_at_hand_each_goes_alone(void **state)
{
	(void)state;
	finish(NULL);
	start_with(&(struct fake_engine_conf){.bytes_max = BYTES_MAX}); /* no arena yet */
	expect_alone();
}

static void where_no_bytes_come_along_each_goes_alone(void **state)
{
	(void)state;
	w.engine.conf.bytes_max = 0;
	expect_alone();
	w.engine.conf.bytes_max = BYTES_MAX;
	w.engine.draining = true;
	expect_alone();
	w.engine.draining = false;
}

/* So many exchanges with one owner as gets of it; so many owners as there are records. */
static void exchanges_count_among_what_a_peer_may_take(void **state)
{
	struct fake_ask *a[16];
	unsigned nr = 0;
	uint32_t most = w.engine.conf.max_gets / 2;

	(void)state;
	for (; nr < most; nr++)
		a[nr] = get_many(RV_GET_CHUNKED);
	assert_int_equal(ended(get_many(RV_GET_CHUNKED)).rc, -EAGAIN);
	for (unsigned i = 0; i < nr; i++) {
		answer(RV_PEER_MANY, -ENOTSUP);
		ended(a[i]);
	}
	assert_int_equal(blocks(), 0);
}

static void more_owners_than_records_are_told_to_come_again(void **state)
{
	struct fake_ask *a[32];
	uint32_t max = w.engine.conf.max_gets;

	(void)state;
	for (unsigned i = 0; i <= max; i++) {
		struct rv_msg_get_many m = request(RV_GET_CHUNKED);

		m.worker = 10000 + i;
		a[i] = fake_ask_start(&w, rv_engine_run_get_many, &m, sizeof(m));
		fake_engine_run(&w);
	}
	assert_int_equal(ended(a[max]).rc, -EAGAIN);
	for (unsigned i = 0; i < max; i++) {
		answer(RV_PEER_MANY, -ENOTSUP);
		assert_int_equal(ended(a[i]).rc, -EAGAIN);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_call_asks_for_all),
		TEST(what_rdma_could_bring_does_not_come_along),
		TEST(all_that_came_have_one_hold_together),
		TEST(of_empty_ones_no_memory_is_kept),
		TEST(what_is_much_shorter_than_its_place_moves_to_a_smaller_one),
		TEST(the_hash_that_was_told_is_checked),
		TEST(a_failure_gives_the_place_back),
		TEST(a_late_answer_keeps_its_place_until_it_comes_back),
		TEST(without_memory_at_hand_each_goes_alone),
		TEST(where_no_bytes_come_along_each_goes_alone),
		TEST(exchanges_count_among_what_a_peer_may_take),
		TEST(more_owners_than_records_are_told_to_come_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
