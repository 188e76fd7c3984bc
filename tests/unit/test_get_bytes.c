/* Gets whose bytes come with the answer to their acquire, and leases that end with their get. */
#include "dataplane/engine/get.h"

#include <errno.h>

#include "dataplane/base/hash.h"
#include "tests/unit/get_fixture.h"

#define BYTES_MAX ((uint32_t)RV_KIB(64))
#define DEADLINE  RV_SEC(20)
#define SESSION   5u
#define OFF       4097u
#define UNTOUCHED 0x5a

static struct rv_msg_get request(void)
{
	return (struct rv_msg_get){.engine = &w.engine,
				   .handle = {FAKE_OWNER, 64},
				   .path = RV_GET_CHUNKED,
				   .deadline_ns = fake_now_ns + DEADLINE,
				   .uid = ALICE,
				   .rc = 1};
}

static struct fake_ask *get(enum rv_get_path path, enum rv_get_then then)
{
	struct rv_msg_get m = request();

	m.path = path;
	m.then = then;
	return start(&m);
}

static void answer_ready(uint64_t lease, uint64_t len)
{
	fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), lease, len, CHUNK, len != 0);
	fake_engine_run(&w);
}

static void answer_rdma(void)
{
	fake_calls_rdma(&w.calls, call(RV_PEER_ACQUIRE), LEASE, ADDR, LEN, LEASE_MS);
	fake_engine_run(&w);
}

static void answer_pull(void)
{
	struct rv_peer_call *c = call(RV_PEER_PULL);

	memcpy(c->dst, remote, c->total_len);
	answer(RV_PEER_PULL, 0);
}

/* The first @len bytes of `remote` come with the answer. */
static void answer_bytes(uint64_t lease, uint64_t len)
{
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);

	assert_true(len <= c->bytes_max);
	memcpy(c->dst, remote, len);
	c->answer = RV_ANSWER_BYTES;
	c->ready.lease_id = lease;
	c->ready.total_len = len;
	answer(RV_PEER_ACQUIRE, 0);
}

static void answer_bytes_with_hash(uint64_t lease, uint64_t len, uint64_t xxh3)
{
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);

	c->has_xxh3 = true;
	c->xxh3 = xxh3;
	answer_bytes(lease, len);
}

static void expect_end(enum rv_peer_op op, uint64_t lease)
{
	struct rv_peer_call *c = call(op);

	assert_int_equal(c->lease_id, lease);
	assert_int_equal(c->handle.worker, FAKE_OWNER);
	assert_int_equal(c->handle.local, 64);
	assert_false(c->sync);
	answer(op, 0);
}

static unsigned ends(void)
{
	return w.calls.started[RV_PEER_DETACH] + w.calls.started[RV_PEER_RELEASE];
}

static uint64_t blocks(void)
{
	return rv_counter_get(&w.engine.pool.blocks);
}

static uint64_t used(void)
{
	return rv_counter_get(&w.engine.pool.used_bytes);
}

/* A landing arena of ALICE's. */
static void warm(void)
{
	struct rv_msg_get m;
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);

	answer_ready(LEASE, 1);
	answer_pull();
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	drop(&m);
	memset(w.calls.started, 0, sizeof(w.calls.started));
	assert_int_equal(blocks(), 0);
}

static int setup_cold(void **state)
{
	(void)state;
	start_with(&(struct fake_engine_conf){.bytes_max = BYTES_MAX});
	return 0;
}

static int setup(void **state)
{
	setup_cold(state);
	warm();
	return 0;
}

static int finish(void **state)
{
	(void)state;
	fake_engine_fini(&w);
	return 0;
}

/* A place ahead. */

static void the_first_get_asks_for_no_memory_ahead(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_DETACH);

	(void)state;
	assert_int_equal(call(RV_PEER_ACQUIRE)->bytes_max, 0);
	assert_null(call(RV_PEER_ACQUIRE)->dst);
	assert_int_equal(w.grow.asked, 0);
	assert_int_equal(blocks(), 0);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	assert_int_equal(outcome(a).rc, -ENOENT);
	assert_int_equal(w.grow.asked, 0);
}

static const struct {
	enum rv_get_path path;
	uid_t uid;
	uint64_t max_len;
	bool has_cap;
	uint64_t cap;
	enum rv_get_then then;
	uint32_t bytes_max;
	bool ends;
} wishes[] = {
	{RV_GET_CHUNKED, ALICE, 0, false, 0, RV_GET_THEN_KEEP, BYTES_MAX, false},
	{RV_GET_CHUNKED, ALICE, 0, false, 0, RV_GET_THEN_DETACH, BYTES_MAX, true},
	/* A release needs a lease. */
	{RV_GET_CHUNKED, ALICE, 0, false, 0, RV_GET_THEN_RELEASE, BYTES_MAX, false},
	{RV_GET_ANY, ALICE, 0, false, 0, RV_GET_THEN_KEEP, BYTES_MAX, false},
	{RV_GET_RDMA, ALICE, 0, false, 0, RV_GET_THEN_KEEP, 0, false},
	{RV_GET_CHUNKED, ALICE, 1, false, 0, RV_GET_THEN_KEEP, 1, false},
	{RV_GET_CHUNKED, ALICE, BYTES_MAX - 1, false, 0, RV_GET_THEN_KEEP, BYTES_MAX - 1, false},
	{RV_GET_CHUNKED, ALICE, BYTES_MAX + 1, false, 0, RV_GET_THEN_KEEP, BYTES_MAX, false},
	{RV_GET_CHUNKED, ALICE, UINT64_MAX, false, 0, RV_GET_THEN_KEEP, BYTES_MAX, false},
	{RV_GET_CHUNKED, ALICE, 0, true, 0, RV_GET_THEN_KEEP, 0, false},
	{RV_GET_CHUNKED, ALICE, 0, true, 1, RV_GET_THEN_KEEP, 1, false},
	{RV_GET_CHUNKED, ALICE, 0, true, UINT64_MAX, RV_GET_THEN_KEEP, BYTES_MAX, false},
	{RV_GET_CHUNKED, ALICE, 300, true, 200, RV_GET_THEN_KEEP, 200, false},
	{RV_GET_CHUNKED, ALICE, 200, true, 300, RV_GET_THEN_KEEP, 200, false},
	/* Nobody lands in another user's memory, and none is made for this. */
	{RV_GET_CHUNKED, BOB, 0, false, 0, RV_GET_THEN_KEEP, 0, false},
};

static void a_place_is_taken_for_as_much_as_may_come(void **state)
{
	unsigned asked = w.grow.asked;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(wishes); i++) {
		struct rv_msg_get m = request();
		struct rv_peer_call *c;
		struct fake_ask *a;

		m.path = wishes[i].path;
		m.uid = wishes[i].uid;
		m.max_len = wishes[i].max_len;
		m.has_cap = wishes[i].has_cap;
		m.cap = wishes[i].cap;
		m.then = wishes[i].then;
		a = start(&m);
		c = call(RV_PEER_ACQUIRE);
		if (c->bytes_max != wishes[i].bytes_max || (c->dst != NULL) != (c->bytes_max != 0))
			fail_msg("row %zu: %u bytes", i, c->bytes_max);
		assert_int_equal(c->ends, wishes[i].ends);
		assert_int_equal(blocks(), c->bytes_max != 0);
		assert_int_equal(used(), c->bytes_max ? rv_granules(c->bytes_max) * RV_GRANULE : 0);
		answer(RV_PEER_ACQUIRE, -ENOENT);
		assert_int_equal(outcome(a).rc, -ENOENT);
		assert_int_equal(blocks(), 0);
	}
	assert_int_equal(w.grow.asked, asked);
	assert_int_equal(ends(), 0);
}

static void a_node_that_takes_none_has_no_place_for_bytes(void **state)
{
	struct fake_ask *a;

	(void)state;
	w.engine.conf.bytes_max = 0;
	a = get(RV_GET_CHUNKED, RV_GET_THEN_DETACH);
	assert_int_equal(call(RV_PEER_ACQUIRE)->bytes_max, 0);
	assert_null(call(RV_PEER_ACQUIRE)->dst);
	assert_int_equal(blocks(), 0);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	outcome(a);
}

static struct rv_block *take(struct rv_arena_class cls, uint64_t len)
{
	struct rv_msg_alloc m = {.engine = &w.engine, .req = {.cls = cls, .len = len}};

	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
	return m.req.block;
}

static const struct rv_arena_class landing = {.kind = RV_ARENA_LANDING, .uid = ALICE};

static void where_landing_memory_is_used_up_nothing_comes_along(void **state)
{
	struct rv_block *all = take(landing, RV_MIB(1) - BYTES_MAX + RV_GRANULE);
	unsigned asked = w.grow.asked;
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);

	(void)state;
	assert_int_equal(call(RV_PEER_ACQUIRE)->bytes_max, 0);
	assert_int_equal(w.grow.asked, asked);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	outcome(a);
	fake_drop_block(&w, all);
}

/* Bytes that came. */

static const struct {
	uint64_t len, used;
} lengths[] = {
	{1, RV_GRANULE},
	{RV_GRANULE, RV_GRANULE},
	{RV_GRANULE + 1, 2 * RV_GRANULE},
	{BYTES_MAX / 2, BYTES_MAX / 2},
	{BYTES_MAX / 2 + 1, BYTES_MAX}, /* it stays where it is */
	{BYTES_MAX - 1, BYTES_MAX},
	{BYTES_MAX, BYTES_MAX},
};

static void bytes_that_come_with_the_answer_are_the_get(void **state)
{
	struct rv_stats *s = &w.engine.stats;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(lengths); i++) {
		uint64_t in = rv_counter_get(&s->bytes_in),
			 got = rv_counter_get(&s->get_bytes[RV_PATH_CHUNKED]);
		struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);
		struct rv_msg_get m;

		fake_engine_advance(&w, RV_MS(3));
		answer_bytes(LEASE, lengths[i].len);
		m = outcome(a);
		assert_int_equal(m.rc, 0);
		assert_int_equal(m.len, lengths[i].len);
		assert_int_equal(m.lease_id, LEASE);
		assert_int_equal(m.took, RV_PATH_CHUNKED);
		assert_int_equal(m.elapsed_ns, RV_MS(3));
		assert_false(m.in_place);
		assert_non_null(m.block);
		assert_ptr_equal(m.block_engine, &w.engine);
		assert_int_equal(m.block->holds, 1);
		assert_int_equal(m.block->arena->cls.uid, ALICE);
		assert_memory_equal(rv_block_ptr(m.block), remote, m.len);
		assert_int_equal(blocks(), 1);
		if (used() != lengths[i].used)
			fail_msg("%zu bytes hold %zu", (size_t)m.len, (size_t)used());
		drop(&m);
		assert_int_equal(blocks(), 0);
		assert_int_equal(rv_counter_get(&s->bytes_in) - in, lengths[i].len);
		assert_int_equal(rv_counter_get(&s->get_bytes[RV_PATH_CHUNKED]) - got,
				 lengths[i].len);
	}
	assert_int_equal(w.calls.started[RV_PEER_PULL], 0);
	assert_int_equal(ends(), 0); /* the leases are the asker's */
}

static void a_short_payload_stays_where_it_is_if_there_is_no_smaller_place(void **state)
{
	struct rv_block *rest = take(landing, RV_MIB(1) - BYTES_MAX);
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);
	struct rv_msg_get m;

	(void)state;
	answer_bytes(LEASE, 100);
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.len, 100);
	assert_memory_equal(rv_block_ptr(m.block), remote, 100);
	assert_int_equal(used(), RV_MIB(1));
	drop(&m);
	fake_drop_block(&w, rest);
}

static void nothing_comes_without_a_block(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);
	struct rv_msg_get m;

	(void)state;
	answer_bytes_with_hash(LEASE, 0, 1); /* there is nothing to check */
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.len, 0);
	assert_null(m.block);
	assert_int_equal(m.lease_id, LEASE);
	assert_int_equal(blocks(), 0);
}

static const struct {
	uint64_t len;
	bool right;
	uint64_t lease;
	enum rv_get_then then;
} hashed[] = {
	{100, true, LEASE, RV_GET_THEN_KEEP},       {100, false, LEASE, RV_GET_THEN_KEEP},
	{BYTES_MAX, true, LEASE, RV_GET_THEN_KEEP}, {BYTES_MAX, false, LEASE, RV_GET_THEN_KEEP},
	{100, true, 0, RV_GET_THEN_DETACH},         {100, false, 0, RV_GET_THEN_DETACH},
	{100, false, LEASE, RV_GET_THEN_RELEASE}, /* a get that failed releases nothing */
};

static void content_that_came_along_is_checked(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(hashed); i++) {
		struct fake_ask *a = get(RV_GET_CHUNKED, hashed[i].then);
		uint64_t xxh3 = rv_hash_xxh3(remote, hashed[i].len);
		struct rv_msg_get m;

		answer_bytes_with_hash(hashed[i].lease, hashed[i].len, xxh3 ^ !hashed[i].right);
		m = outcome(a);
		assert_int_equal(m.rc, hashed[i].right ? 0 : -EBADMSG);
		if (hashed[i].right)
			assert_memory_equal(rv_block_ptr(m.block), remote, hashed[i].len);
		drop(&m);
		assert_int_equal(blocks(), 0);
		if (!hashed[i].right && hashed[i].lease)
			expect_end(RV_PEER_DETACH, hashed[i].lease);
		assert_null(fake_calls_find(&w.calls, RV_PEER_DETACH));
		assert_null(fake_calls_find(&w.calls, RV_PEER_RELEASE));
	}
}

/* Bytes that did not come. */

static void another_answer_gives_the_place_back(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);
	struct rv_msg_get m;

	(void)state;
	answer_ready(LEASE, LEN);
	assert_int_equal(blocks(), 1);
	assert_int_equal(used(), LEN); /* its own destination and nothing else */
	answer_pull();
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_memory_equal(rv_block_ptr(m.block), remote, LEN);
	drop(&m);

	a = get(RV_GET_ANY, RV_GET_THEN_KEEP);
	assert_int_equal(call(RV_PEER_ACQUIRE)->bytes_max, BYTES_MAX);
	answer_rdma();
	assert_int_equal(used(), LEN);
	fake_fabric_complete(&w.fabric, 0);
	m = outcome(a);
	assert_int_equal(m.took, RV_PATH_RDMA);
	assert_memory_equal(rv_block_ptr(m.block), remote, LEN);
	drop(&m);

	a = get(RV_GET_CHUNKED, RV_GET_THEN_KEEP);
	answer_ready(LEASE, 0);
	m = outcome(a);
	assert_null(m.block);
	assert_int_equal(blocks(), 0);
}

static void too_long_for_its_caller_is_answered_with_chunks_and_refused(void **state)
{
	struct rv_msg_get m = request();
	struct fake_ask *a;

	(void)state;
	m.max_len = 100;
	a = start(&m);
	answer_ready(LEASE, 101);
	assert_int_equal(outcome(a).rc, -EMSGSIZE);
	expect_end(RV_PEER_RELEASE, LEASE);
	assert_int_equal(blocks(), 0);
}

static const int failures[] = {-ENOENT,    -EREMOTEIO, -EHOSTUNREACH, -ECONNRESET,
			       -ETIMEDOUT, -EPROTO,    -EAGAIN};

static void a_failed_acquire_gives_the_place_back_and_has_no_lease_to_end(void **state)
{
	static const enum rv_get_then thens[] = {RV_GET_THEN_KEEP, RV_GET_THEN_DETACH,
						 RV_GET_THEN_RELEASE};

	(void)state;
	for (size_t i = 0; i < 3 * RV_ARRAY_NR(failures); i++) {
		struct fake_ask *a = get(RV_GET_CHUNKED, thens[i % 3]);
		struct rv_msg_get m;

		answer(RV_PEER_ACQUIRE, failures[i / 3]);
		m = outcome(a);
		assert_int_equal(m.rc, failures[i / 3]);
		assert_null(m.block);
		assert_int_equal(blocks(), 0);
	}
	assert_int_equal(ends(), 0);
}

/* Until its cell is back, somebody may still be writing there. */
static void a_late_acquire_keeps_its_place_until_it_comes_back(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_DETACH);

	(void)state;
	fake_engine_advance(&w, DEADLINE + RV_SEC(1));
	assert_int_equal(blocks(), 1);
	memset(call(RV_PEER_ACQUIRE)->dst, 0xff, BYTES_MAX);
	answer(RV_PEER_ACQUIRE, -ETIMEDOUT);
	assert_int_equal(outcome(a).rc, -ETIMEDOUT);
	assert_int_equal(blocks(), 0);
}

static void after_a_failed_read_the_bytes_may_come_with_the_second_answer(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY, RV_GET_THEN_DETACH);
	struct rv_msg_get m;

	(void)state;
	answer_rdma();
	fake_fabric_write_half(&w.fabric);
	fake_fabric_complete(&w.fabric, -EIO);
	expect_end(RV_PEER_DETACH, LEASE);
	assert_int_equal(call(RV_PEER_ACQUIRE)->offer, 0);
	assert_int_equal(call(RV_PEER_ACQUIRE)->bytes_max, BYTES_MAX);
	answer_bytes(0, 5000);
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.took, RV_PATH_CHUNKED);
	assert_memory_equal(rv_block_ptr(m.block), remote, 5000);
	drop(&m);
	assert_int_equal(ends(), 1);
}

/* Into a buffer of the session's. */

static const struct rv_arena_class session = {.kind = RV_ARENA_SESSION,
					      .uid = ALICE,
					      .session = SESSION};

static struct fake_ask *get_into(struct rv_block *buffer, uint64_t cap)
{
	struct rv_msg_get m = request();

	memset(rv_block_ptr(buffer), UNTOUCHED, buffer->len);
	m.has_cap = true;
	m.cap = cap;
	m.into = buffer;
	m.into_off = OFF;
	m.then = RV_GET_THEN_DETACH;
	return start(&m);
}

static bool untouched(const uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != UNTOUCHED)
			return false;
	return true;
}

static const struct {
	uint64_t cap, len;
	bool hash;
} intos[] = {
	{LEN, 1, false},
	{LEN, 1, true},
	{LEN, BYTES_MAX, false},
	{LEN, BYTES_MAX, true},
	{BYTES_MAX, 1000, false},
	{700, 700, true},
	{700, 699, false},
	{1, 1, true},
	{1, 0, false},
};

static void bytes_come_into_the_callers_buffer_and_stay_there(void **state)
{
	struct rv_block *buffer = take(session, OFF + LEN);
	uint64_t before = used();

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(intos); i++) {
		struct fake_ask *a = get_into(buffer, intos[i].cap);
		uint8_t *place = rv_block_ptr(buffer) + OFF;
		struct rv_peer_call *c = call(RV_PEER_ACQUIRE);
		struct rv_msg_get m;

		assert_ptr_equal(c->dst, place);
		assert_int_equal(c->bytes_max, rv_min_u64(intos[i].cap, BYTES_MAX));
		if (intos[i].hash)
			answer_bytes_with_hash(0, intos[i].len, rv_hash_xxh3(remote, intos[i].len));
		else
			answer_bytes(0, intos[i].len);
		m = outcome(a);
		assert_int_equal(m.rc, 0);
		assert_int_equal(m.in_place, intos[i].len != 0);
		assert_null(m.block);
		assert_int_equal(m.len, intos[i].len);
		assert_int_equal(m.lease_id, 0);
		assert_memory_equal(place, remote, intos[i].len);
		assert_true(untouched(rv_block_ptr(buffer), OFF));
		assert_true(untouched(place + intos[i].len, LEN - intos[i].len));
		assert_int_equal(buffer->holds, 1);
		assert_int_equal(used(), before); /* no memory of another kind was needed */
	}
	assert_int_equal(ends(), 0);
	fake_drop_block(&w, buffer);
}

static void a_callers_buffer_is_held_while_bytes_may_come(void **state)
{
	struct rv_block *buffer = take(session, OFF + LEN);
	struct fake_ask *a = get_into(buffer, LEN);

	(void)state;
	answer(RV_PEER_ACQUIRE, -ECONNRESET);
	assert_int_equal(outcome(a).rc, -ECONNRESET);
	assert_int_equal(buffer->holds, 1);
	a = get_into(buffer, LEN);
	answer_ready(LEASE, LEN); /* chunks go to the same place */
	assert_int_equal(buffer->holds, 3);
	answer_pull();
	assert_true(outcome(a).in_place);
	expect_end(RV_PEER_DETACH, LEASE);
	assert_int_equal(buffer->holds, 1);
	a = get_into(buffer, LEN);
	fake_drop_block(&w, buffer);
	assert_int_equal(blocks(), 1);
	answer_bytes(0, 1000); /* writes: under ASan the memory must be there */
	assert_int_equal(outcome(a).rc, 0);
	assert_int_equal(blocks(), 0);
}

static void wrong_content_in_a_callers_buffer_is_told(void **state)
{
	struct rv_block *buffer = take(session, OFF + LEN);
	struct fake_ask *a = get_into(buffer, LEN);

	(void)state;
	answer_bytes_with_hash(0, 1000, 1);
	assert_int_equal(outcome(a).rc, -EBADMSG);
	assert_int_equal(buffer->holds, 1);
	assert_int_equal(ends(), 0);
	fake_drop_block(&w, buffer);
}

/* Leases that end with their get. */

enum way { WITH_NO_LEASE, WITH_LEASE, NOTHING, BY_CHUNKS, BY_RDMA };

static const struct {
	enum way way;
	enum rv_get_then then;
	bool ends;
	enum rv_peer_op op;
} ends_of[] = {
	{WITH_LEASE, RV_GET_THEN_KEEP, false, 0},
	{WITH_LEASE, RV_GET_THEN_DETACH, true, RV_PEER_DETACH}, /* by an owner that heeds no wish */
	{WITH_LEASE, RV_GET_THEN_RELEASE, true, RV_PEER_RELEASE},
	{WITH_NO_LEASE, RV_GET_THEN_DETACH, false, 0},
	{WITH_NO_LEASE, RV_GET_THEN_RELEASE, false, 0},
	{NOTHING, RV_GET_THEN_KEEP, false, 0},
	{NOTHING, RV_GET_THEN_DETACH, true, RV_PEER_DETACH},
	{NOTHING, RV_GET_THEN_RELEASE, true, RV_PEER_RELEASE},
	{BY_CHUNKS, RV_GET_THEN_KEEP, false, 0},
	{BY_CHUNKS, RV_GET_THEN_DETACH, true, RV_PEER_DETACH},
	{BY_CHUNKS, RV_GET_THEN_RELEASE, true, RV_PEER_RELEASE},
	{BY_RDMA, RV_GET_THEN_KEEP, false, 0},
	{BY_RDMA, RV_GET_THEN_DETACH, true, RV_PEER_DETACH},
	{BY_RDMA, RV_GET_THEN_RELEASE, true, RV_PEER_RELEASE},
};

static void go(enum way way)
{
	switch (way) {
	case WITH_NO_LEASE:
		answer_bytes(0, 1000);
		break;
	case WITH_LEASE:
		answer_bytes(LEASE, 1000);
		break;
	case NOTHING:
		answer_ready(LEASE, 0);
		break;
	case BY_CHUNKS:
		answer_ready(LEASE, LEN);
		answer_pull();
		break;
	case BY_RDMA:
		answer_rdma();
		fake_fabric_complete(&w.fabric, 0);
		break;
	}
	fake_engine_run(&w);
}

static void a_lease_ends_as_its_get_said_and_once(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(ends_of); i++) {
		struct fake_ask *a = get(ends_of[i].way == BY_RDMA ? RV_GET_ANY : RV_GET_CHUNKED,
					 ends_of[i].then);
		unsigned before = ends();
		bool keeps = ends_of[i].then == RV_GET_THEN_KEEP;
		struct rv_msg_get m;

		go(ends_of[i].way);
		m = outcome(a); /* before its lease's end has come back */
		assert_int_equal(m.rc, 0);
		if (m.lease_id != (keeps ? LEASE : 0) || ends() - before != ends_of[i].ends)
			fail_msg("row %zu: lease %zu, %u ends", i, (size_t)m.lease_id,
				 ends() - before);
		if (ends_of[i].ends) {
			assert_int_equal(rv_counter_get(&w.engine.stats.gets), 1);
			assert_int_equal(call(ends_of[i].op)->deadline_ns, RV_NEVER);
			expect_end(ends_of[i].op, LEASE);
		}
		assert_int_equal(rv_counter_get(&w.engine.stats.gets), 0);
		drop(&m);
		fake_engine_advance(&w, RV_SEC(60));
		assert_int_equal(ends() - before, ends_of[i].ends);
		assert_int_equal(w.calls.started[RV_PEER_RENEW], 0);
	}
}

/* A detach that fails is not tried again, and the get has long been answered. */
static void an_end_that_cannot_be_told_is_no_ones_failure(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_RELEASE);
	struct rv_msg_get m;

	(void)state;
	answer_bytes(LEASE, 1000);
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	answer(RV_PEER_RELEASE, -ECONNRESET);
	fake_engine_advance(&w, RV_SEC(60));
	assert_int_equal(ends(), 1);
	drop(&m);
}

/* A get that failed leaves the slot's reference alone. */
static void what_failed_is_detached_whatever_its_get_said(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED, RV_GET_THEN_RELEASE);

	(void)state;
	answer_ready(LEASE, LEN);
	answer(RV_PEER_PULL, -ECONNRESET);
	assert_int_equal(outcome(a).rc, -ECONNRESET);
	expect_end(RV_PEER_DETACH, LEASE);
	assert_int_equal(ends(), 1);
}

/* Of this node: shown to its user, copied for another, or nothing. */
static const struct {
	uint64_t len;
	uid_t uid;
	enum rv_get_then then;
} locals[] = {
	{LEN, ALICE, RV_GET_THEN_KEEP},    {LEN, BOB, RV_GET_THEN_KEEP},
	{LEN, ALICE, RV_GET_THEN_DETACH},  {LEN, BOB, RV_GET_THEN_DETACH},
	{LEN, ALICE, RV_GET_THEN_RELEASE}, {LEN, BOB, RV_GET_THEN_RELEASE},
	{0, ALICE, RV_GET_THEN_DETACH},    {0, BOB, RV_GET_THEN_RELEASE},
};

static void the_lease_of_a_slot_of_this_node_ends_too(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(locals); i++) {
		uint64_t slot = fake_stage(&w, locals[i].len, 0x42, true, ALICE);
		struct rv_msg_get m = request();
		bool keeps = locals[i].then == RV_GET_THEN_KEEP;
		uint64_t lease;
		unsigned locks;
		bool there;

		m.handle = (struct rv_handle){FAKE_WORKER, slot};
		m.path = RV_GET_ANY;
		m.uid = locals[i].uid;
		m.then = locals[i].then;
		m = outcome(start(&m));
		there = fake_slot(&w, slot) != NULL;
		locks = there ? fake_slot(&w, slot)->locks : 0;
		lease = m.lease_id;
		if (m.block) /* the view, or the copy, is its asker's all the same */
			assert_int_equal(rv_block_ptr(m.block)[LEN - 1], 0x42);
		drop(&m);
		if (there)
			fake_drop_slot(&w, slot);
		assert_int_equal(m.rc, 0);
		assert_int_equal(m.len, locals[i].len);
		assert_int_equal(m.took, RV_PATH_LOCAL);
		if ((lease != 0) != keeps || locks != keeps ||
		    there != (locals[i].then != RV_GET_THEN_RELEASE))
			fail_msg("row %zu: lease %zu, %u locks", i, (size_t)lease, locks);
	}
	assert_int_equal(ends(), 0); /* no messenger knows this node as a peer */
}

#define T(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_first_get_asks_for_no_memory_ahead, setup_cold,
						finish),
		T(a_place_is_taken_for_as_much_as_may_come),
		T(a_node_that_takes_none_has_no_place_for_bytes),
		T(where_landing_memory_is_used_up_nothing_comes_along),
		T(bytes_that_come_with_the_answer_are_the_get),
		T(a_short_payload_stays_where_it_is_if_there_is_no_smaller_place),
		T(nothing_comes_without_a_block),
		T(content_that_came_along_is_checked),
		T(another_answer_gives_the_place_back),
		T(too_long_for_its_caller_is_answered_with_chunks_and_refused),
		T(a_failed_acquire_gives_the_place_back_and_has_no_lease_to_end),
		T(a_late_acquire_keeps_its_place_until_it_comes_back),
		T(after_a_failed_read_the_bytes_may_come_with_the_second_answer),
		T(bytes_come_into_the_callers_buffer_and_stay_there),
		T(a_callers_buffer_is_held_while_bytes_may_come),
		T(wrong_content_in_a_callers_buffer_is_told),
		T(a_lease_ends_as_its_get_said_and_once),
		T(an_end_that_cannot_be_told_is_no_ones_failure),
		T(what_failed_is_detached_whatever_its_get_said),
		T(the_lease_of_a_slot_of_this_node_ends_too),
	};

	return cmocka_run_group_tests_name("get_bytes", tests, NULL, NULL);
}
