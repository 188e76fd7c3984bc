/* Gets into a session's own buffer: where the bytes land, what is checked before, who holds the place. */
#include "dataplane/engine/get.h"

#include <errno.h>

#include "dataplane/base/hash.h"
#include "tests/unit/get_fixture.h"

#define ROOM      RV_KIB(300)
#define OFF       4097u
#define SESSION   5u
#define UNTOUCHED 0x5a

static struct rv_block *buffer;
static uint64_t off; /* where in it */

static struct rv_block *session_block(uint64_t len, bool plain)
{
	struct rv_msg_alloc m = {
		.engine = &w.engine,
		.req = {.cls = {RV_ARENA_SESSION, ALICE, SESSION, plain}, .len = len},
	};

	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
	memset(rv_block_ptr(m.req.block), UNTOUCHED, len);
	return m.req.block;
}

static int setup(void **state)
{
	(void)state;
	start_with(&(struct fake_engine_conf){0});
	buffer = session_block(OFF + ROOM, false);
	off = OFF;
	return 0;
}

static int finish(void **state)
{
	(void)state;
	if (buffer)
		fake_drop_block(&w, buffer);
	fake_engine_fini(&w);
	return 0;
}

static struct fake_ask *get_of(struct rv_handle h, enum rv_get_path p, uint64_t cap)
{
	struct rv_msg_get m = {
		.engine = &w.engine,
		.handle = h,
		.path = p,
		.deadline_ns = fake_now_ns + RV_SEC(20),
		.uid = ALICE,
		.has_cap = true,
		.cap = cap,
		.into = buffer,
		.into_off = off,
		.rc = 1,
	};
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get, &m, sizeof(m));

	fake_engine_run(&w);
	return a;
}

static struct fake_ask *get(enum rv_get_path p)
{
	return get_of((struct rv_handle){FAKE_OWNER, 64}, p, ROOM);
}

static void answer_ready(uint64_t lease)
{
	fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), lease, LEN, CHUNK, 1);
	fake_engine_run(&w);
}

static void answer_rdma(void)
{
	fake_calls_rdma(&w.calls, call(RV_PEER_ACQUIRE), LEASE, ADDR, LEN, LEASE_MS);
	fake_engine_run(&w);
}

static uint8_t *place(void)
{
	return rv_block_ptr(buffer) + off;
}

static void answer_pull(void)
{
	struct rv_peer_call *c = call(RV_PEER_PULL);

	assert_ptr_equal(c->dst, place());
	memcpy(c->dst, remote, c->total_len);
	fake_calls_answer(&w.calls, c, 0);
	fake_engine_run(&w);
}

static void expect_detach(uint64_t lease)
{
	assert_int_equal(call(RV_PEER_DETACH)->lease_id, lease);
	answer(RV_PEER_DETACH, 0);
}

static bool untouched(const uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != UNTOUCHED)
			return false;
	return true;
}

/* All of it is in its place, nothing beside it, and no memory of another kind was needed. */
static void assert_in_place(const struct rv_msg_get *m, enum rv_path took)
{
	assert_int_equal(m->rc, 0);
	assert_true(m->in_place);
	assert_null(m->block);
	assert_int_equal(m->len, LEN);
	assert_int_equal(m->took, took);
	assert_memory_equal(place(), remote, LEN);
	assert_true(untouched(rv_block_ptr(buffer), OFF));
	assert_true(untouched(place() + LEN, ROOM - LEN));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	assert_int_equal(buffer->holds, 1);
}

static void rdma_reads_straight_into_the_buffer(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_msg_get m;

	(void)state;
	answer_rdma();
	assert_ptr_equal(fake_fabric_first(&w.fabric)->local, place());
	assert_ptr_equal(fake_fabric_first(&w.fabric)->local_map,
			 buffer->arena->map[w.fabric.fabric.index]);
	fake_fabric_complete(&w.fabric, 0);
	m = outcome(a);
	assert_in_place(&m, RV_PATH_RDMA);
	assert_int_equal(m.lease_id, LEASE);
}

static void chunks_are_received_into_the_buffer(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_msg_get m;

	(void)state;
	answer_ready(LEASE);
	answer_pull();
	m = outcome(a);
	assert_in_place(&m, RV_PATH_CHUNKED);
	assert_int_equal(m.lease_id, LEASE);
}

static void a_fallback_uses_the_same_place(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_msg_get m;

	(void)state;
	answer_rdma();
	fake_fabric_write_half(&w.fabric);
	fake_fabric_complete(&w.fabric, -EIO);
	expect_detach(LEASE);
	answer_ready(LEASE_2);
	answer_pull();
	m = outcome(a);
	assert_in_place(&m, RV_PATH_CHUNKED);
	assert_int_equal(m.lease_id, LEASE_2);
}

/* Whoever's it is: the caller wants it in that place. */
static void a_slot_of_this_node_is_copied_into_the_buffer(void **state)
{
	static const uid_t owners[] = {ALICE, BOB};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(owners); i++) {
		uint64_t slot = fake_stage(&w, LEN, 0x42, true, owners[i]);
		struct rv_msg_get m;

		memcpy(rv_block_ptr(fake_slot(&w, slot)->block), remote, LEN);
		m = outcome(get_of((struct rv_handle){FAKE_WORKER, slot}, RV_GET_ANY, ROOM));
		assert_int_equal(fake_slot(&w, slot)->locks, 1);
		assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
		fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, FAKE_WORKER);
		fake_drop_slot(&w, slot);
		assert_in_place(&m, RV_PATH_LOCAL);
		memset(place(), UNTOUCHED, LEN);
	}
}

static void nothing_needs_no_place(void **state)
{
	uint64_t slot = fake_stage(&w, 0, 0, false, ALICE);
	struct rv_msg_get m = outcome(get_of((struct rv_handle){FAKE_WORKER, slot}, RV_GET_ANY, 0));

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.len, 0);
	assert_null(m.block);
	fake_lease_op(&w, RV_LEASE_RELEASE, slot, m.lease_id, FAKE_WORKER);
	assert_int_equal(buffer->holds, 1);
}

/* What is too long. */

static void assert_too_long(struct fake_ask *a)
{
	struct rv_msg_get m = outcome(a);

	assert_int_equal(m.rc, -ERANGE);
	assert_int_equal(m.len, LEN);
	assert_true(m.text[0]);
	assert_false(m.in_place);
	assert_null(m.block);
	assert_true(!buffer || untouched(rv_block_ptr(buffer), OFF + ROOM));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), buffer != NULL);
}

static void what_does_not_fit_is_refused_before_anything_is_written(void **state)
{
	struct fake_ask *a;

	(void)state;
	a = get_of((struct rv_handle){FAKE_OWNER, 64}, RV_GET_ANY, LEN - 1);
	answer_rdma();
	assert_int_equal(w.fabric.gets, 0);
	assert_too_long(a);
	expect_detach(LEASE);
	a = get_of((struct rv_handle){FAKE_OWNER, 64}, RV_GET_CHUNKED, 0);
	answer_ready(LEASE_2);
	assert_int_equal(w.calls.started[RV_PEER_PULL], 0);
	assert_too_long(a);
	expect_detach(LEASE_2);
}

static void a_local_slot_that_does_not_fit_is_refused(void **state)
{
	uint64_t slot = fake_stage(&w, LEN, 0x42, true, ALICE);
	struct fake_ask *a = get_of((struct rv_handle){FAKE_WORKER, slot}, RV_GET_ANY, LEN - 1);
	bool locked;

	(void)state;
	fake_engine_run(&w);
	locked = fake_slot(&w, slot)->locks;
	fake_drop_slot(&w, slot);
	assert_too_long(a);
	assert_false(locked);
}

/* Memory of the program's own: a limit without a place. */
static void a_limit_holds_without_a_buffer_too(void **state)
{
	struct fake_ask *a;
	uint64_t slot;

	(void)state;
	fake_drop_block(&w, buffer);
	buffer = NULL;
	a = get_of((struct rv_handle){FAKE_OWNER, 64}, RV_GET_ANY, LEN - 1);
	answer_rdma();
	assert_too_long(a);
	expect_detach(LEASE);
	slot = fake_stage(&w, LEN, 0x42, true, ALICE);
	a = get_of((struct rv_handle){FAKE_WORKER, slot}, RV_GET_ANY, LEN - 1);
	fake_engine_run(&w);
	fake_drop_slot(&w, slot);
	assert_too_long(a);
}

/* Who holds the place. */

static void a_buffer_given_back_meanwhile_is_held_until_the_fabric_lets_go(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_block *b = buffer;

	(void)state;
	answer_rdma();
	fake_fabric_write_half(&w.fabric);
	fake_drop_block(&w, buffer);
	buffer = NULL;
	assert_true(b->holds > 0);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	fake_fabric_complete(&w.fabric, 0);
	assert_int_equal(outcome(a).rc, 0);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
}

static void a_session_that_ends_meanwhile_leaves_its_arena_until_the_fabric_lets_go(void **state)
{
	struct rv_msg_session_end end = {&w.engine, SESSION};
	struct fake_ask *a = get(RV_GET_ANY);

	(void)state;
	answer_rdma();
	fake_drop_block(&w, buffer);
	buffer = NULL;
	fake_ask(&w, rv_engine_run_session_end, &end, sizeof(end));
	fake_engine_run(&w);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	assert_false(rv_list_empty(&w.engine.pool.arenas));
	fake_fabric_complete(&w.fabric, 0); /* writes: under ASan the memory must be there */
	assert_int_equal(outcome(a).rc, 0);
	fake_engine_run(&w);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_true(rv_list_empty(&w.engine.pool.arenas));
}

static void a_late_get_holds_its_place_after_it_was_answered(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_msg_get m;

	(void)state;
	answer_rdma();
	for (unsigned i = 0; i < 100; i++) {
		fake_engine_advance(&w, RV_MS(200));
		while (fake_calls_find(&w.calls, RV_PEER_RENEW))
			answer(RV_PEER_RENEW, 0);
	}
	m = outcome(a);
	assert_int_equal(m.rc, -ETIMEDOUT);
	assert_false(m.in_place);
	fake_drop_block(&w, buffer);
	buffer = NULL;
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	fake_fabric_complete(&w.fabric, 0);
	fake_engine_run(&w);
	expect_detach(LEASE);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
}

static void two_gets_fill_two_parts_of_one_buffer(void **state)
{
	struct fake_ask *a, *b;

	(void)state;
	fake_drop_block(&w, buffer);
	buffer = session_block(OFF + 2 * ROOM, false);
	a = get(RV_GET_ANY);
	answer_rdma();
	off = OFF + ROOM;
	b = get(RV_GET_CHUNKED);
	assert_int_equal(buffer->holds, 4); /* the client's, one of each get, one of the RDMA GET */
	answer_ready(LEASE_2);
	assert_int_equal(buffer->holds, 5);
	answer_pull();
	assert_int_equal(outcome(b).rc, 0);
	fake_fabric_complete(&w.fabric, 0);
	assert_int_equal(outcome(a).rc, 0);
	assert_int_equal(buffer->holds, 1);
	assert_memory_equal(rv_block_ptr(buffer) + OFF, remote, LEN);
	assert_true(untouched(rv_block_ptr(buffer) + OFF + LEN, ROOM - LEN));
	assert_memory_equal(rv_block_ptr(buffer) + OFF + ROOM, remote, LEN);
}

/* A device may not write to memory it was not told of: such bytes take the way of any other get. */
static void an_unregistered_buffer_takes_chunks_and_no_rdma(void **state)
{
	struct fake_ask *a;
	struct rv_msg_get m;

	(void)state;
	fake_drop_block(&w, buffer);
	buffer = session_block(OFF + ROOM, true);
	a = get(RV_GET_ANY);
	answer_rdma();
	fake_fabric_complete(&w.fabric, 0);
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_false(m.in_place);
	assert_int_equal(m.block->arena->cls.kind, RV_ARENA_LANDING);
	assert_memory_equal(rv_block_ptr(m.block), remote, LEN);
	assert_true(untouched(place(), ROOM));
	fake_drop_block(&w, m.block);
	a = get(RV_GET_CHUNKED);
	answer_ready(LEASE_2);
	answer_pull();
	m = outcome(a);
	assert_in_place(&m, RV_PATH_CHUNKED);
}

/* Content. */

static void ready_with_hash(uint64_t xxh3)
{
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);

	c->has_xxh3 = true;
	c->xxh3 = xxh3;
	fake_calls_ready(&w.calls, c, LEASE, LEN, CHUNK, 1);
	fake_engine_run(&w);
}

static void content_is_checked_where_it_landed(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_msg_get m;

	(void)state;
	ready_with_hash(rv_hash_xxh3(remote, LEN));
	answer_pull();
	m = outcome(a);
	assert_in_place(&m, RV_PATH_CHUNKED);
	a = get(RV_GET_CHUNKED);
	ready_with_hash(rv_hash_xxh3(remote, LEN) + 1);
	answer_pull();
	assert_int_equal(outcome(a).rc, -EBADMSG);
	expect_detach(LEASE);
	assert_int_equal(buffer->holds, 1);
}

#define T(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(rdma_reads_straight_into_the_buffer),
		T(chunks_are_received_into_the_buffer),
		T(a_fallback_uses_the_same_place),
		T(a_slot_of_this_node_is_copied_into_the_buffer),
		T(nothing_needs_no_place),
		T(what_does_not_fit_is_refused_before_anything_is_written),
		T(a_local_slot_that_does_not_fit_is_refused),
		T(a_limit_holds_without_a_buffer_too),
		T(a_buffer_given_back_meanwhile_is_held_until_the_fabric_lets_go),
		T(a_session_that_ends_meanwhile_leaves_its_arena_until_the_fabric_lets_go),
		T(a_late_get_holds_its_place_after_it_was_answered),
		T(two_gets_fill_two_parts_of_one_buffer),
		T(an_unregistered_buffer_takes_chunks_and_no_rdma),
		T(content_is_checked_where_it_landed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
