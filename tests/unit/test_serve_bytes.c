/* The owner side: payloads that go with the answer to an acquire. */
#include "dataplane/engine/msg.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "dataplane/rendezvous/descriptor.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define CONSUMER 500u
#define ALICE    1000u
#define BOB      1001u

static struct fake_engine w;

static int setup(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	fake_engine_init(&w, &(struct fake_engine_conf){0});
	return 0;
}

static int finish(void **state)
{
	(void)state;
	fake_engine_fini(&w);
	return 0;
}

static uint64_t path(enum rv_path_reason r)
{
	return rv_counter_get(&w.engine.stats.path[r]);
}

static uint64_t counted(enum rv_operation op, bool error)
{
	return rv_counter_get(&w.engine.stats.operation[op][error]);
}

#define BYTES_MAX ((uint32_t)RV_KIB(64))

static void restart(const struct fake_engine_conf *conf)
{
	fake_engine_fini(&w);
	memset(&w, 0, sizeof(w));
	fake_engine_init(&w, conf);
}

static int setup_bytes(void **state)
{
	setup(state);
	restart(&(struct fake_engine_conf){.bytes_max = BYTES_MAX});
	return 0;
}

static struct rv_msg_acquire acquire_bytes(uint64_t slot, uint64_t bytes_max, bool ends)
{
	struct rv_msg_acquire m = {
		.engine = &w.engine,
		.local = slot,
		.worker = CONSUMER,
		.bytes_max = bytes_max,
		.ends = ends,
	};

	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	return m;
}

static uint64_t paths(void)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		sum += path((enum rv_path_reason)r);
	return sum;
}

/* What the consumer takes with the answer, and what it gets. */
static const struct {
	bool offer, pinned;
	uint64_t len, asked;
	enum rv_peer_answer answer;
	enum rv_path_reason reason;
} with_bytes[] = {
	{false, true, 1, 0, RV_ANSWER_READY, RV_PATH_NO_OFFER},
	{false, false, 0, 0, RV_ANSWER_READY, RV_PATH_NO_OFFER},
	{false, false, 0, 1, RV_ANSWER_BYTES, RV_PATH_NO_OFFER},
	{false, true, 1, 1, RV_ANSWER_BYTES, RV_PATH_NO_OFFER},
	{false, true, 1000, 1000, RV_ANSWER_BYTES, RV_PATH_NO_OFFER},
	{false, true, 1001, 1000, RV_ANSWER_READY, RV_PATH_NO_OFFER},
	{false, false, BYTES_MAX, BYTES_MAX, RV_ANSWER_BYTES, RV_PATH_NO_OFFER},
	{false, true, BYTES_MAX + 1, BYTES_MAX, RV_ANSWER_READY, RV_PATH_NO_OFFER},
	/* The owner has a limit of its own. */
	{false, true, BYTES_MAX, UINT64_MAX, RV_ANSWER_BYTES, RV_PATH_NO_OFFER},
	{false, true, BYTES_MAX + 1, UINT64_MAX, RV_ANSWER_READY, RV_PATH_NO_OFFER},
	/* What goes by RDMA still does, whatever the consumer would take. */
	{true, true, BYTES_MAX, BYTES_MAX, RV_ANSWER_RDMA, RV_PATH_OK},
	{true, true, BYTES_MAX - 1, BYTES_MAX, RV_ANSWER_BYTES, RV_PATH_BELOW_MIN},
	{true, false, BYTES_MAX, BYTES_MAX, RV_ANSWER_BYTES, RV_PATH_NOT_PINNED},
};

static void short_payloads_go_with_the_answer_where_chunks_would(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(with_bytes); i++) {
		uint64_t before = path(with_bytes[i].reason), all = paths();
		uint64_t slot = fake_stage(&w, with_bytes[i].len, 7, with_bytes[i].pinned, ALICE);
		struct rv_msg_acquire m = {
			.engine = &w.engine,
			.local = slot,
			.worker = CONSUMER,
			.has_offer = with_bytes[i].offer,
			.offer = with_bytes[i].offer ? RV_PEER_OFFER_UCX : 0,
			.bytes_max = with_bytes[i].asked,
		};
		struct rv_slot *s = fake_slot(&w, slot);

		s->has_xxh3 = true;
		s->xxh3 = 1000 + i;
		fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
		if (m.rc || m.answer != with_bytes[i].answer)
			fail_msg("row %zu: %d, answer %d", i, m.rc, (int)m.answer);
		assert_int_equal(path(with_bytes[i].reason), before + 1);
		assert_int_equal(paths(), all + 1);
		assert_true(m.has_xxh3);
		assert_int_equal(m.xxh3, 1000 + i);
		assert_int_equal(m.total_len, with_bytes[i].len);
		assert_int_not_equal(m.lease_id, 0);
		assert_int_equal(s->locks, 1);
		if (m.answer == RV_ANSWER_BYTES) {
			assert_ptr_equal(m.block, s->block);
			assert_true(!s->block ||
				    s->block->holds == 2); /* the slot's, the answer's */
			if (m.block)
				fake_drop_block(&w, m.block);
			assert_int_equal(
				fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, CONSUMER), 0);
			assert_int_equal(s->locks, 0);
			assert_true(!s->block || s->block->holds == 1);
		}
		fake_drop_slot(&w, slot);
		fake_engine_advance(&w, RV_SEC(2));
	}
}

static void a_node_that_sends_none_answers_with_chunks(void **state)
{
	uint64_t slot;

	(void)state;
	restart(&(struct fake_engine_conf){0});
	slot = fake_stage(&w, 1, 7, true, ALICE);
	assert_int_equal(acquire_bytes(slot, UINT64_MAX, true).answer, RV_ANSWER_READY);
	fake_drop_slot(&w, slot);
	slot = fake_stage(&w, 0, 0, false, ALICE);
	assert_int_equal(acquire_bytes(slot, UINT64_MAX, true).answer, RV_ANSWER_READY);
	fake_drop_slot(&w, slot);
}

static void a_get_of_this_node_needs_no_bytes_beside_its_answer(void **state)
{
	uint64_t slot = fake_stage(&w, 100, 7, true, ALICE);
	struct rv_msg_acquire m = {.engine = &w.engine,
				   .local = slot,
				   .worker = FAKE_WORKER,
				   .for_us = true,
				   .uid = ALICE,
				   .bytes_max = BYTES_MAX,
				   .ends = true};

	(void)state;
	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	fake_drop_block(&w, m.block);
	fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, FAKE_WORKER);
	fake_drop_slot(&w, slot);
}

/* Whoever needs no lease takes none; the bytes are held for their answer, and for nothing else. */
static void bytes_that_end_their_lease_take_none_and_are_held_until_they_are_sent(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 0x42, true, ALICE);
	struct rv_msg_acquire m = acquire_bytes(slot, BYTES_MAX, true);

	(void)state;
	assert_int_equal(m.answer, RV_ANSWER_BYTES);
	assert_int_equal(m.lease_id, 0);
	assert_int_equal(m.total_len, 1000);
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 1);
	assert_int_equal(w.engine.store.leases.live_nr, 0);
	assert_int_equal(m.block->holds, 2);
	assert_int_equal(path(RV_PATH_NO_OFFER), 1);
	fake_drop_slot(&w, slot); /* nothing is in its way */
	assert_null(fake_slot(&w, slot));
	fake_engine_advance(&w, RV_SEC(3600));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	for (size_t i = 0; i < m.total_len; i++)
		assert_int_equal(rv_block_ptr(m.block)[i], 0x42);
	fake_drop_block(&w, m.block);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(w.transfers_ended, 0);
	assert_int_equal(counted(RV_OP_DETACH, false) + counted(RV_OP_DETACH, true), 0);
	assert_int_equal(paths(), 1);
}

static void nothing_that_ends_its_lease_takes_and_holds_nothing(void **state)
{
	uint64_t slot = fake_stage(&w, 0, 0, false, ALICE);
	struct rv_msg_acquire m = acquire_bytes(slot, 1, true);

	(void)state;
	assert_int_equal(m.answer, RV_ANSWER_BYTES);
	assert_int_equal(m.lease_id, 0);
	assert_null(m.block);
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	fake_drop_slot(&w, slot);
}

/* Only with bytes: what else is granted is pulled or read under its lease. */
static void whoever_wants_no_lease_has_one_where_no_bytes_come(void **state)
{
	uint64_t slot = fake_stage(&w, BYTES_MAX + 1, 7, true, ALICE);
	struct rv_msg_acquire m = acquire_bytes(slot, BYTES_MAX, true);

	(void)state;
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_not_equal(m.lease_id, 0);
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	m = (struct rv_msg_acquire){.engine = &w.engine,
				    .local = slot,
				    .worker = CONSUMER,
				    .has_offer = true,
				    .offer = RV_PEER_OFFER_UCX,
				    .bytes_max = BYTES_MAX,
				    .ends = true};
	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	assert_int_not_equal(m.lease_id, 0);
	fake_drop_slot(&w, slot);
	fake_engine_advance(&w, RV_SEC(2));
}

static void the_lease_that_comes_with_bytes_is_ended_like_any_other(void **state)
{
	static const enum rv_lease_op ops[] = {RV_LEASE_DETACH, RV_LEASE_RELEASE};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(ops); i++) {
		uint64_t slot = fake_stage(&w, 1000, 7, true, ALICE);
		struct rv_msg_acquire m = acquire_bytes(slot, BYTES_MAX, false);

		assert_int_equal(fake_lease_op(&w, ops[i], slot, m.lease_id, CONSUMER + 1),
				 -ESTALE);
		assert_int_equal(fake_lease_op(&w, ops[i], slot, m.lease_id, CONSUMER), 0);
		assert_int_equal(fake_lease_op(&w, ops[i], slot, m.lease_id, CONSUMER), -ESTALE);
		assert_int_equal(!fake_slot(&w, slot), ops[i] == RV_LEASE_RELEASE);
		assert_int_equal(rv_block_ptr(m.block)[999], 7); /* the answer's hold keeps them */
		fake_drop_block(&w, m.block);
		if (ops[i] == RV_LEASE_DETACH)
			fake_drop_slot(&w, slot);
	}
	assert_int_equal(w.transfers_ended, 0); /* there was none to end */
}

static void the_lease_that_comes_with_bytes_has_the_deadline_its_consumer_asked_for(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 7, true, ALICE);
	struct rv_msg_acquire m = {
		.engine = &w.engine,
		.local = slot,
		.worker = CONSUMER,
		.bytes_max = BYTES_MAX,
		.chunk_lease_ns = RV_MS(300),
	};

	(void)state;
	fake_slot(&w, slot)->refcount = 2;
	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	assert_int_equal(m.answer, RV_ANSWER_BYTES);
	fake_engine_advance(&w, RV_MS(299));
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RENEW, slot, m.lease_id, CONSUMER), 0);
	fake_engine_advance(&w, RV_MS(299));
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 1);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, CONSUMER), -ESTALE);
	fake_drop_block(&w, m.block);

	m.chunk_lease_ns = 0; /* and none if it asks for none */
	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	fake_engine_advance(&w, RV_SEC(3600));
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	fake_drop_block(&w, m.block);
	fake_drop_slot(&w, slot);
}

static void without_a_free_lease_only_who_needs_none_is_served(void **state)
{
	uint64_t slot;
	struct rv_msg_acquire m;

	(void)state;
	restart(&(struct fake_engine_conf){.bytes_max = BYTES_MAX, .max_leases = 1});
	slot = fake_stage(&w, 1000, 7, true, ALICE);
	m = acquire_bytes(slot, BYTES_MAX, false);
	assert_int_equal(m.rc, 0);
	fake_drop_block(&w, m.block);
	m = acquire_bytes(slot, BYTES_MAX, false);
	assert_int_equal(m.rc, -EAGAIN);
	assert_int_equal(m.answer, RV_ANSWER_NONE);
	assert_null(m.block);
	assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
	assert_int_equal(path(RV_PATH_NO_OFFER), 1);
	m = acquire_bytes(slot, BYTES_MAX, true);
	assert_int_equal(m.answer, RV_ANSWER_BYTES);
	assert_int_equal(path(RV_PATH_NO_OFFER), 2);
	fake_drop_block(&w, m.block);
	fake_drop_slot(&w, slot);
}

#define BYTES(t) cmocka_unit_test_setup_teardown(t, setup_bytes, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		BYTES(short_payloads_go_with_the_answer_where_chunks_would),
		BYTES(a_node_that_sends_none_answers_with_chunks),
		BYTES(a_get_of_this_node_needs_no_bytes_beside_its_answer),
		BYTES(bytes_that_end_their_lease_take_none_and_are_held_until_they_are_sent),
		BYTES(nothing_that_ends_its_lease_takes_and_holds_nothing),
		BYTES(whoever_wants_no_lease_has_one_where_no_bytes_come),
		BYTES(the_lease_that_comes_with_bytes_is_ended_like_any_other),
		BYTES(the_lease_that_comes_with_bytes_has_the_deadline_its_consumer_asked_for),
		BYTES(without_a_free_lease_only_who_needs_none_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
