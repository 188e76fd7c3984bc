/* The owner side: every message an engine answers. */
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

/* Acquire. */

static void an_unknown_slot_is_not_found_with_its_cause(void **state)
{
	uint64_t slot = fake_stage(&w, 100, 1, false, ALICE);
	struct rv_msg_acquire m;

	(void)state;
	m = fake_acquire(&w, slot + 64, CONSUMER, false, 0);
	assert_int_equal(m.rc, -ENOENT);
	assert_int_equal(m.cause, RV_END_NONE);
	fake_drop_slot(&w, slot);
	m = fake_acquire(&w, slot, CONSUMER, true, RV_PEER_OFFER_UCX);
	assert_int_equal(m.rc, -ENOENT);
	assert_int_equal(m.cause, RV_END_DROPPED);
	assert_int_equal(path(RV_PATH_NO_OFFER) + path(RV_PATH_OK), 0); /* no path was decided */
}

static void without_an_offer_the_answer_is_chunks(void **state)
{
	uint64_t slot = fake_stage(&w, 1200000, 7, true, ALICE);
	struct rv_msg_acquire m = fake_acquire(&w, slot, CONSUMER, false, 0);

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_equal(m.total_len, 1200000);
	assert_int_equal(m.chunk_size, RV_KIB(512));
	assert_ptr_equal(m.block, fake_slot(&w, slot)->block);
	assert_int_equal(m.block->holds, 2); /* the slot's and the transfer's */
	assert_int_equal(path(RV_PATH_NO_OFFER), 1);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, CONSUMER), 0);
	assert_int_equal(w.transfers_ended, 1);
	assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
	fake_drop_slot(&w, slot);
}

static void with_an_offer_the_answer_describes_the_whole_slot(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(100), 7, true, ALICE);
	struct rv_msg_acquire m =
		fake_acquire(&w, slot, CONSUMER, true, RV_PEER_OFFER_UCX | RV_PEER_OFFER_VERBS);
	const struct rv_slot *s = fake_slot(&w, slot);
	struct rv_desc d;

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	assert_int_equal(m.lease_timeout_ms, 400);
	assert_null(m.block);
	assert_int_equal(rv_desc_decode(m.desc, m.desc_len, &d), RV_ACCEPT);
	assert_int_equal(d.backend, RV_BACKEND_UCX);
	assert_int_equal(d.addr, (uintptr_t)rv_block_ptr(s->block));
	assert_int_equal(d.len, RV_KIB(100));
	assert_int_equal(d.rkey_len, 40);
	assert_int_equal(d.generation, s->block->arena->generation);
	assert_int_equal(path(RV_PATH_OK), 1);
	assert_int_equal(s->locks, 1);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, slot, m.lease_id, CONSUMER), 0);
	assert_null(fake_slot(&w, slot));
}

/* Each fact of the decision is the engine's own. */

struct situation {
	bool has_offer;
	unsigned offer;
	bool no_fabric, off, pinned;
	uint64_t len;
	bool draining;
	size_t key_len;
	enum rv_path_reason reason;
};

static const struct situation situations[] = {
	{true, 1, false, false, true, RV_KIB(64), false, 40, RV_PATH_OK},
	{false, 0, false, false, true, RV_KIB(64), false, 40, RV_PATH_NO_OFFER},
	{true, 1, true, false, true, RV_KIB(64), false, 40, RV_PATH_NOT_CONFIGURED},
	{true, 1, false, true, true, RV_KIB(64), false, 40, RV_PATH_KILL_SWITCH},
	{true, 1, false, false, false, RV_KIB(64), false, 40, RV_PATH_NOT_PINNED},
	{true, 1, false, false, true, RV_KIB(64) - 1, false, 40, RV_PATH_BELOW_MIN},
	{true, 2, false, false, true, RV_KIB(64), false, 40, RV_PATH_NO_OFFER},
	{true, 0, false, false, true, RV_KIB(64), false, 40, RV_PATH_NO_OFFER},
	{true, 1, false, false, true, RV_KIB(64), true, 40, RV_PATH_DRAINING},
	{true, 1, false, false, true, RV_KIB(64), false, 0, RV_PATH_NOT_PINNED},
	{true, 1, false, false, false, 0, false, 40,
	 RV_PATH_NOT_PINNED}, /* nothing is never pinned */
};

static void each_situation_has_its_label_and_its_answer(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(situations); i++) {
		const struct situation *s = &situations[i];
		struct rv_msg_acquire m;
		uint64_t slot;

		memset(&w, 0, sizeof(w));
		fake_engine_init(&w, &(struct fake_engine_conf){.no_fabric = s->no_fabric});
		w.fabric.key_len = s->key_len;
		slot = fake_stage(&w, s->len, 1, s->pinned, ALICE);
		w.engine.draining = s->draining;
		atomic_store(&w.set.rdma_off, s->off);
		m = fake_acquire(&w, slot, CONSUMER, s->has_offer, s->offer);
		if (m.answer != (s->reason == RV_PATH_OK ? RV_ANSWER_RDMA : RV_ANSWER_READY) ||
		    path(s->reason) != 1)
			fail_msg("row %zu", i);
		fake_drop_slot(&w, slot);
		fake_engine_advance(&w, RV_SEC(2)); /* the rest */
		if (i + 1 < RV_ARRAY_NR(situations))
			fake_engine_fini(&w);
	}
}

/* A chunked lease's deadline: the node's, or the shorter one that the consumer asks for. In milliseconds, 0: none. */
static const struct {
	unsigned node, asked, lives;
} chunk_leases[] = {
	{0, 0, 0}, {0, 300, 300}, {500, 0, 500}, {500, 300, 300}, {500, 900, 500},
};

static void a_chunked_lease_has_the_deadline_its_consumer_asked_for(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(chunk_leases); i++) {
		unsigned lives = chunk_leases[i].lives;
		uint64_t slot;
		struct rv_msg_acquire m;

		memset(&w, 0, sizeof(w));
		fake_engine_init(&w, &(struct fake_engine_conf){
					     .chunk_lease_ns = RV_MS(chunk_leases[i].node)});
		slot = fake_stage(&w, 100, 1, false, ALICE);
		fake_slot(&w, slot)->refcount = 2;
		m = (struct rv_msg_acquire){
			.engine = &w.engine,
			.local = slot,
			.worker = CONSUMER,
			.chunk_lease_ns = RV_MS(chunk_leases[i].asked),
		};
		fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
		assert_int_equal(m.answer, RV_ANSWER_READY);
		assert_int_equal(m.renew_ns == RV_NEVER, !lives);
		fake_engine_advance(&w, lives ? RV_MS(lives - 1) : RV_SEC(3600));
		assert_int_equal(fake_slot(&w, slot)->locks, 1);
		if (lives) {
			assert_true(m.renew_ns < RV_MS(lives));
			assert_int_equal(
				fake_lease_op(&w, RV_LEASE_RENEW, slot, m.lease_id, CONSUMER), 0);
			fake_engine_advance(&w, RV_MS(lives - 1));
			assert_int_equal(fake_slot(&w, slot)->locks, 1);
			fake_engine_advance(&w, RV_MS(1));
			assert_int_equal(fake_slot(&w, slot)->locks, 0);
			assert_int_equal(fake_slot(&w, slot)->refcount, 1);
			assert_int_equal(w.transfers_ended, 1); /* and its transfer went with it */
			assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
		}
		fake_drop_slot(&w, slot);
		if (i + 1 < RV_ARRAY_NR(chunk_leases))
			fake_engine_fini(&w);
	}
}

static void nothing_has_a_lease_and_no_block(void **state)
{
	uint64_t slot = fake_stage(&w, 0, 0, false, ALICE);
	struct rv_msg_acquire m = fake_acquire(&w, slot, CONSUMER, false, 0);

	(void)state;
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_equal(m.total_len, 0);
	assert_null(m.block);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, slot, m.lease_id, CONSUMER), 0);
	assert_null(fake_slot(&w, slot));
	assert_int_equal(w.transfers_ended, 0);
}

static void a_full_lease_table_is_busy(void **state)
{
	uint64_t slot;

	(void)state;
	finish(NULL);
	memset(&w, 0, sizeof(w));
	fake_engine_init(&w, &(struct fake_engine_conf){.max_leases = 2});
	slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	assert_int_equal(fake_acquire(&w, slot, CONSUMER, false, 0).rc, 0);
	assert_int_equal(fake_acquire(&w, slot, CONSUMER, true, 1).rc, 0);
	assert_int_equal(fake_acquire(&w, slot, CONSUMER, false, 0).rc, -EAGAIN);
	assert_int_equal(fake_acquire(&w, slot, CONSUMER, true, 1).rc, -EAGAIN);
	assert_int_equal(fake_slot(&w, slot)->locks, 2);
	fake_drop_slot(&w, slot);
	fake_engine_advance(&w, RV_SEC(2));
}

static void a_get_of_this_node_decides_no_path_and_tells_whose_slot_it_is(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	struct rv_msg_acquire m = {.engine = &w.engine,
				   .local = slot,
				   .worker = FAKE_WORKER,
				   .for_us = true,
				   .uid = ALICE};

	(void)state;
	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
	assert_true(m.same_user);
	assert_int_equal(m.block->holds, 2);
	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		assert_int_equal(path((enum rv_path_reason)r), 0);
	fake_drop_block(&w, m.block);
	fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, FAKE_WORKER);
	assert_int_equal(w.transfers_ended, 0); /* a local lease has no transfer */

	m = (struct rv_msg_acquire){.engine = &w.engine,
				    .local = slot,
				    .worker = FAKE_WORKER,
				    .for_us = true,
				    .uid = BOB};
	fake_ask(&w, rv_engine_run_acquire, &m, sizeof(m));
	assert_false(m.same_user);
	fake_drop_block(&w, m.block);
	fake_drop_slot(&w, slot);
}

/* Leases. */

static void a_lease_operation_that_does_not_match_changes_nothing(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE),
		 other = fake_stage(&w, 1, 1, true, ALICE);
	uint64_t lease = fake_acquire(&w, slot, CONSUMER, true, 1).lease_id;
	static const enum rv_lease_op ops[] = {RV_LEASE_RENEW, RV_LEASE_DETACH, RV_LEASE_RELEASE};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(ops); i++) {
		assert_int_equal(fake_lease_op(&w, ops[i], slot, lease + 64, CONSUMER), -ESTALE);
		assert_int_equal(fake_lease_op(&w, ops[i], slot, lease, CONSUMER + 1), -ESTALE);
		assert_int_equal(fake_lease_op(&w, ops[i], other, lease, CONSUMER), -ESTALE);
		assert_int_equal(fake_lease_op(&w, ops[i], slot + 64, lease, CONSUMER), -ESTALE);
	}
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	assert_int_equal(fake_slot(&w, slot)->refcount, 1);
	assert_int_equal(counted(RV_OP_DETACH, true), 4);
	assert_int_equal(counted(RV_OP_RELEASE, true), 4);
	fake_lease_op(&w, RV_LEASE_DETACH, slot, lease, CONSUMER);
	assert_int_equal(counted(RV_OP_DETACH, false), 1);
	fake_drop_slot(&w, slot);
	fake_drop_slot(&w, other);
}

/* What it was granted is over: the reaper released, lock and reference. */
static void a_holder_that_overslept_has_lost_lock_and_reference(void **state)
{
	static const enum rv_lease_op ops[] = {RV_LEASE_RENEW, RV_LEASE_DETACH, RV_LEASE_RELEASE};
	uint64_t slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	struct rv_msg_acquire m = fake_acquire(&w, slot, CONSUMER, true, 1);

	(void)state;
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	fake_slot(&w, slot)->refcount = 3;
	fake_engine_advance(&w, RV_MS(m.lease_timeout_ms) - RV_MS(1));
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	fake_engine_advance(&w, RV_MS(2));
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 2);
	for (size_t i = 0; i < RV_ARRAY_NR(ops); i++)
		assert_int_equal(fake_lease_op(&w, ops[i], slot, m.lease_id, CONSUMER), -ESTALE);
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 2);
	fake_drop_slot(&w, slot);
	fake_engine_advance(&w, RV_SEC(2)); /* the rest */
}

static void a_second_release_is_stale(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	uint64_t lease = fake_acquire(&w, slot, CONSUMER, true, 1).lease_id;

	(void)state;
	fake_slot(&w, slot)->refcount = 5;
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, slot, lease, CONSUMER), 0);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, slot, lease, CONSUMER), -ESTALE);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, slot, lease, CONSUMER), -ESTALE);
	assert_int_equal(fake_slot(&w, slot)->refcount, 4);
	fake_drop_slot(&w, slot);
}

static void renewals_keep_an_rdma_lease_alive(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	uint64_t lease = fake_acquire(&w, slot, CONSUMER, true, 1).lease_id;

	(void)state;
	for (unsigned i = 0; i < 5; i++) {
		fake_engine_advance(&w, RV_MS(300));
		assert_int_equal(fake_lease_op(&w, RV_LEASE_RENEW, slot, lease, CONSUMER), 0);
	}
	fake_engine_advance(&w, RV_MS(400));
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RENEW, slot, lease, CONSUMER), -ESTALE);
	assert_null(fake_slot(&w, slot)); /* a forced release took the only reference */
	fake_engine_advance(&w, RV_SEC(1));
}

static void transfers_that_end_without_a_free_cell_end_later(void **state)
{
	uint64_t slot = fake_stage(&w, 100, 1, false, ALICE);
	struct rv_list taken, *it;
	struct rv_cell *c;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		fake_acquire(&w, slot, CONSUMER, false, 0);
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	rv_slot_end(fake_slot(&w, slot), RV_END_DROPPED);
	fake_engine_advance(&w, RV_MS(10));
	assert_int_equal(w.transfers_ended, 0);
	rv_cell_free(w.port, RV_LIST_ENTRY(rv_list_pop(&taken), struct rv_cell, link));
	fake_engine_advance(&w, RV_MS(10));
	assert_int_equal(w.transfers_ended, 3); /* one cell is enough, one after the other */
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
}

/* Slots. */

static struct rv_msg_slot slot_op(enum rv_slot_op op, uint64_t local, bool check_uid, uid_t uid)
{
	struct rv_msg_slot m = {.engine = &w.engine,
				.op = op,
				.local = local,
				.check_uid = check_uid,
				.uid = uid};

	fake_ask(&w, rv_engine_run_slot, &m, sizeof(m));
	return m;
}

static void metadata_tells_and_takes_no_lock(void **state)
{
	uint64_t slot = fake_stage(&w, 12345, 1, true, ALICE);
	struct rv_msg_slot m = slot_op(RV_SLOT_METADATA, slot, false, 0);

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.total_len, 12345);
	assert_int_equal(m.refcount, 1);
	assert_true(m.pinned);
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(counted(RV_OP_METADATA, false), 1);
	fake_drop_slot(&w, slot);
	m = slot_op(RV_SLOT_METADATA, slot, false, 0);
	assert_int_equal(m.rc, -ENOENT);
	assert_int_equal(m.cause, RV_END_DROPPED);
	assert_int_equal(counted(RV_OP_METADATA, true), 1);
}

static void a_reference_adds_one_and_never_wraps(void **state)
{
	uint64_t slot = fake_stage(&w, 1, 1, true, ALICE);

	(void)state;
	assert_int_equal(slot_op(RV_SLOT_REF, slot, false, 0).rc, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 2);
	fake_slot(&w, slot)->refcount = UINT32_MAX;
	assert_int_equal(slot_op(RV_SLOT_REF, slot, false, 0).rc, -EAGAIN);
	assert_int_equal(fake_slot(&w, slot)->refcount, UINT32_MAX);
	fake_drop_slot(&w, slot);
}

static const struct {
	bool check;
	uid_t uid;
	int rc;
} drops[] = {
	{true, BOB, -EPERM},
	{true, ALICE, 0},
	{true, 0, 0},
	{false, BOB, 0},
};

static void only_its_user_or_root_drops_a_slot(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(drops); i++) {
		uint64_t slot = fake_stage(&w, 1, 1, true, ALICE);

		assert_int_equal(slot_op(RV_SLOT_DROP, slot, drops[i].check, drops[i].uid).rc,
				 drops[i].rc);
		assert_int_equal(fake_slot(&w, slot) == NULL, drops[i].rc == 0);
		if (drops[i].rc)
			fake_drop_slot(&w, slot);
	}
}

static void a_drop_under_an_rdma_lease_lets_the_block_rest(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);

	(void)state;
	fake_acquire(&w, slot, CONSUMER, true, 1);
	fake_drop_slot(&w, slot);
	assert_int_equal(rv_counter_get(&w.engine.pool.resting_blocks), 1);
	fake_engine_advance(&w, RV_MS(499));
	assert_int_equal(rv_counter_get(&w.engine.pool.resting_blocks), 1);
	fake_engine_advance(&w, RV_MS(1)); /* 400 for the lease, 100 of quarantine */
	assert_int_equal(rv_counter_get(&w.engine.pool.resting_blocks), 0);
}

/* Staging. */

static struct rv_msg_alloc alloc_msg(enum rv_arena_kind kind, uint64_t len, bool plain_will_do)
{
	return (struct rv_msg_alloc){
		.engine = &w.engine,
		.req = {.cls = {.kind = kind, .uid = ALICE},
			.len = len,
			.allow_plain = plain_will_do},
		.pinned = kind != RV_ARENA_PLAIN,
	};
}

static const struct {
	int why;
	enum rv_path_reason label;
} refusals[] = {{-ENOSPC, RV_PATH_BUDGET}, {-ENOMEM, RV_PATH_POOL_EXHAUSTED}};

static void pinned_memory_that_is_not_to_be_had_is_plain_and_counted(void **state)
{
	(void)state;
	w.serve_growths = false;
	for (size_t i = 0; i < RV_ARRAY_NR(refusals); i++) {
		struct rv_msg_alloc m = alloc_msg(RV_ARENA_STAGING, RV_MIB(2), true);
		struct fake_ask *a = fake_ask_start(&w, rv_engine_run_alloc, &m, sizeof(m));

		fake_engine_run(&w);
		fake_grow_refuse(&w.grow, refusals[i].why);
		fake_grow_serve(&w.grow);
		fake_engine_run(&w);
		m = *(struct rv_msg_alloc *)fake_ask_body(a);
		assert_int_equal(m.rc, 0);
		assert_false(rv_arena_registered(m.req.block->arena));
		assert_int_equal(path(refusals[i].label), 1);
		fake_ask_end(&w, a);
		fake_drop_block(&w, m.req.block);
	}
}

static void plain_memory_that_was_asked_for_is_not_counted_as_a_refusal(void **state)
{
	struct rv_msg_alloc m = alloc_msg(RV_ARENA_PLAIN, 100, true);

	(void)state;
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		assert_int_equal(path((enum rv_path_reason)r), 0);
	fake_drop_block(&w, m.req.block);
}

static void the_kill_switch_stages_in_plain_memory(void **state)
{
	struct rv_msg_alloc m = alloc_msg(RV_ARENA_STAGING, 100, true);

	(void)state;
	atomic_store(&w.set.rdma_off, true);
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
	assert_true(m.switched_off);
	assert_int_equal(m.req.block->arena->cls.kind, RV_ARENA_PLAIN);
	assert_int_equal(path(RV_PATH_KILL_SWITCH), 1);
	fake_drop_block(&w, m.req.block);

	m = alloc_msg(RV_ARENA_SESSION, 100, true);
	m.req.cls.session = 4;
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_int_equal(m.req.block->arena->cls.kind, RV_ARENA_SESSION);
	assert_true(m.req.block->arena->cls.plain);
	fake_drop_block(&w, m.req.block);

	m = alloc_msg(RV_ARENA_STAGING, 100, false); /* who insists gets it */
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_true(rv_arena_registered(m.req.block->arena));
	fake_drop_block(&w, m.req.block);
}

/* The path counter counts decisions: one slot may add to it many times, and a transfer adds nothing. */
static void the_path_counter_counts_decisions(void **state)
{
	struct rv_msg_acquire m;
	uint64_t slot;

	(void)state;
	slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	/* A consumer whose GET failed: its second acquire carries no offer. */
	m = fake_acquire(&w, slot, CONSUMER, true, RV_PEER_OFFER_UCX);
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, CONSUMER);
	m = fake_acquire(&w, slot, CONSUMER, false, 0);
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_equal(path(RV_PATH_OK), 1);
	assert_int_equal(path(RV_PATH_NO_OFFER), 1);
	fake_drop_slot(&w, slot);

	/* The kill switch: once when it is staged, and again at each acquire. */
	atomic_store(&w.set.rdma_off, true);
	slot = fake_stage(&w, RV_KIB(64), 1, true, ALICE);
	assert_int_equal(path(RV_PATH_KILL_SWITCH), 1);
	for (unsigned i = 0; i < 3; i++) {
		m = fake_acquire(&w, slot, CONSUMER, true, RV_PEER_OFFER_UCX);
		assert_int_equal(m.answer, RV_ANSWER_READY);
		assert_int_equal(path(RV_PATH_KILL_SWITCH), 2 + i);
	}
	assert_int_equal(path(RV_PATH_OK), 1);
	fake_drop_slot(&w, slot);
	fake_engine_advance(&w, RV_SEC(2));
}

static void a_draining_engine_stages_nothing_new(void **state)
{
	struct rv_msg_alloc m = alloc_msg(RV_ARENA_PLAIN, 100, true);

	(void)state;
	w.engine.draining = true;
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	assert_int_equal(m.rc, -ESHUTDOWN);
}

static void a_full_slot_table_leaves_the_block_with_the_asker(void **state)
{
	struct rv_msg_alloc m = alloc_msg(RV_ARENA_PLAIN, 100, true);
	struct rv_msg_stage s = {.engine = &w.engine, .opts = {.refs = 1, .ttl_ns = RV_NEVER}};

	(void)state;
	for (unsigned i = 0; i < 64; i++) {
		s.rc = 1;
		fake_ask(&w, rv_engine_run_stage, &s, sizeof(s));
		assert_int_equal(s.rc, 0);
	}
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	s.block = m.req.block;
	s.len = 100;
	s.pinned = true;
	fake_ask(&w, rv_engine_run_stage, &s, sizeof(s));
	assert_int_equal(s.rc, -ENOSPC);
	assert_int_equal(m.req.block->holds, 1);
	assert_int_equal(counted(RV_OP_REGISTER, false), 64);
	assert_int_equal(counted(RV_OP_REGISTER_PINNED, true), 1);
	fake_drop_block(&w, m.req.block);
	for (uint32_t pos = 0;;) {
		struct rv_slot *slot = rv_idtab_next(&w.engine.store.slots, &pos);

		if (!slot)
			break;
		rv_slot_end(slot, RV_END_DROPPED);
	}
}

/* Sessions, peers. */

static void a_session_ends_with_its_slots_and_arenas(void **state)
{
	struct rv_msg_alloc m = alloc_msg(RV_ARENA_SESSION, 100, true);
	struct rv_msg_stage s = {.engine = &w.engine,
				 .len = 100,
				 .opts = {.refs = 1, .ttl_ns = RV_NEVER, .session = 4}};
	struct rv_msg_session_end e = {&w.engine, 4};

	(void)state;
	m.req.cls.session = 4;
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	s.block = m.req.block;
	fake_ask(&w, rv_engine_run_stage, &s, sizeof(s));
	assert_int_equal(w.grow.live, 1);
	fake_ask(&w, rv_engine_run_session_end, &e, sizeof(e));
	assert_null(fake_slot(&w, s.handle.local));
	assert_int_equal(w.grow.live, 0);
}

static void a_peers_address_goes_to_the_fabric_it_is_for(void **state)
{
	struct rv_msg_peer m = {.engine = &w.engine, .peer = {42, 1, (const uint8_t *)"x", 1}};

	(void)state;
	fake_ask(&w, rv_engine_run_peer, &m, sizeof(m));
	assert_int_equal(w.fabric.peers_up, 1);
	assert_int_equal(w.fabric.last_peer, 42);
	m.fabric = 1;
	fake_ask(&w, rv_engine_run_peer, &m, sizeof(m));
	assert_int_equal(w.fabric.peers_up, 1);
	m.fabric = 0;
	m.peer.addr = NULL;
	fake_ask(&w, rv_engine_run_peer, &m, sizeof(m));
	assert_int_equal(w.fabric.peers_down, 1);
	w.fabric.peer_up_rc = (struct fake_script){.then = -EPROTO};
	m.peer.addr = (const uint8_t *)"x";
	fake_ask(&w, rv_engine_run_peer, &m, sizeof(m)); /* answered all the same */
}

/* Lists. */

static void lists_show_what_there_is_up_to_their_room(void **state)
{
	uint64_t a = fake_stage(&w, 100, 1, true, ALICE), b = fake_stage(&w, 0, 0, false, BOB);
	uint64_t lease = fake_acquire(&w, a, CONSUMER, false, 0).lease_id;
	struct rv_slot_info slots[4];
	struct rv_lease_info leases[4];
	struct rv_arena_info arenas[4];
	struct rv_msg_list m = {.engine = &w.engine,
				.what = RV_LIST_SLOTS,
				.out = {.slot = slots},
				.max = 4};

	(void)state;
	fake_ask(&w, rv_engine_run_list, &m, sizeof(m));
	assert_int_equal(m.nr, 2);
	assert_int_equal(slots[0].id, a);
	assert_int_equal(slots[0].locks, 1);
	assert_int_equal(slots[0].ttl_left_ns, RV_NEVER);
	assert_int_equal(slots[1].id, b);
	assert_int_equal(slots[1].uid, BOB);
	m.max = 1;
	fake_ask(&w, rv_engine_run_list, &m, sizeof(m));
	assert_int_equal(m.nr, 1);
	assert_int_equal(m.total, 2);

	fake_engine_advance(&w, RV_MS(30));
	m = (struct rv_msg_list){.engine = &w.engine,
				 .what = RV_LIST_LEASES,
				 .out = {.lease = leases},
				 .max = 4};
	fake_ask(&w, rv_engine_run_list, &m, sizeof(m));
	assert_int_equal(m.nr, 1);
	assert_int_equal(leases[0].id, lease);
	assert_int_equal(leases[0].slot, a);
	assert_int_equal(leases[0].worker, CONSUMER);
	assert_int_equal(leases[0].age_ns, RV_MS(30));
	assert_int_equal(leases[0].left_ns, RV_NEVER);

	m = (struct rv_msg_list){.engine = &w.engine,
				 .what = RV_LIST_ARENAS,
				 .out = {.arena = arenas},
				 .max = 4};
	fake_ask(&w, rv_engine_run_list, &m, sizeof(m));
	assert_int_equal(m.nr, 1);
	assert_int_equal(arenas[0].kind, RV_ARENA_STAGING);
	assert_true(arenas[0].registered);
	assert_int_equal(arenas[0].used, 4096);
	assert_int_equal(arenas[0].blocks, 1);
	fake_drop_slot(&w, a);
	fake_drop_slot(&w, b);
}

/* Shutdown. */

static struct rv_msg_stop stop_step(enum rv_stop_step step)
{
	struct rv_msg_stop m = {.engine = &w.engine, .step = step};

	fake_ask(&w, rv_engine_run_stop, &m, sizeof(m));
	return m;
}

static void a_shutdown_goes_step_by_step(void **state)
{
	uint64_t a = fake_stage(&w, RV_KIB(64), 1, true, ALICE),
		 b = fake_stage(&w, RV_MIB(2), 1, true, ALICE);

	(void)state;
	fake_acquire(&w, a, CONSUMER, true, 1);
	fake_acquire(&w, b, CONSUMER, false, 0);
	assert_int_equal(stop_step(RV_STOP_DRAIN).busy_leases, 1);
	assert_int_equal(fake_acquire(&w, a, CONSUMER, true, 1).answer, RV_ANSWER_READY);
	assert_int_equal(stop_step(RV_STOP_LEASES).busy_leases, 0);
	assert_null(fake_slot(&w, a));
	assert_int_equal(w.transfers_ended, 2);
	assert_int_equal(rv_counter_get(&w.engine.pool.resting_blocks), 1);
	assert_int_equal(stop_step(RV_STOP_MEMORY).busy_arenas,
			 0); /* nobody can reach the bytes any more */
	assert_int_equal(w.grow.live, 0);
	w.fabric.quiesce_rc = (struct fake_script){.nr = 2, .outcome = {-EAGAIN, -EAGAIN}};
	assert_int_equal(stop_step(RV_STOP_FABRICS).busy_fabrics, 1);
	assert_int_equal(stop_step(RV_STOP_FABRICS).busy_fabrics, 1);
	assert_int_equal(stop_step(RV_STOP_FABRICS).busy_fabrics, 0);
}

static void memory_a_client_still_holds_keeps_the_shutdown_busy(void **state)
{
	struct rv_msg_alloc m = alloc_msg(RV_ARENA_STAGING, 100, true);

	(void)state;
	fake_ask(&w, rv_engine_run_alloc, &m, sizeof(m));
	stop_step(RV_STOP_DRAIN);
	assert_int_equal(stop_step(RV_STOP_MEMORY).busy_arenas, 1);
	fake_drop_block(&w, m.req.block);
	assert_int_equal(stop_step(RV_STOP_MEMORY).busy_arenas, 0);
}

#define SERVE(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SERVE(an_unknown_slot_is_not_found_with_its_cause),
		SERVE(without_an_offer_the_answer_is_chunks),
		SERVE(with_an_offer_the_answer_describes_the_whole_slot),
		cmocka_unit_test_teardown(each_situation_has_its_label_and_its_answer, finish),
		cmocka_unit_test_teardown(a_chunked_lease_has_the_deadline_its_consumer_asked_for,
					  finish),
		SERVE(nothing_has_a_lease_and_no_block),
		SERVE(a_full_lease_table_is_busy),
		SERVE(a_get_of_this_node_decides_no_path_and_tells_whose_slot_it_is),
		SERVE(a_lease_operation_that_does_not_match_changes_nothing),
		SERVE(a_holder_that_overslept_has_lost_lock_and_reference),
		SERVE(a_second_release_is_stale),
		SERVE(renewals_keep_an_rdma_lease_alive),
		SERVE(transfers_that_end_without_a_free_cell_end_later),
		SERVE(metadata_tells_and_takes_no_lock),
		SERVE(a_reference_adds_one_and_never_wraps),
		SERVE(only_its_user_or_root_drops_a_slot),
		SERVE(a_drop_under_an_rdma_lease_lets_the_block_rest),
		SERVE(pinned_memory_that_is_not_to_be_had_is_plain_and_counted),
		SERVE(plain_memory_that_was_asked_for_is_not_counted_as_a_refusal),
		SERVE(the_kill_switch_stages_in_plain_memory),
		SERVE(the_path_counter_counts_decisions),
		SERVE(a_draining_engine_stages_nothing_new),
		SERVE(a_full_slot_table_leaves_the_block_with_the_asker),
		SERVE(a_session_ends_with_its_slots_and_arenas),
		SERVE(a_peers_address_goes_to_the_fabric_it_is_for),
		SERVE(lists_show_what_there_is_up_to_their_room),
		SERVE(a_shutdown_goes_step_by_step),
		SERVE(memory_a_client_still_holds_keeps_the_shutdown_busy),
	};

	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
