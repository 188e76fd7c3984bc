/* Gets of this node's own slots: views and copies, and that nothing is left of them. */
#include "dataplane/engine/get.h"

#include <errno.h>
#include <unistd.h>

#include "tests/unit/forked.h"
#include "tests/unit/get_flow.h"

/* This node's own slots. */

static struct fake_ask *local_get(uint64_t slot, uid_t uid, uint64_t deadline_ns)
{
	return get_of((struct rv_handle){FAKE_WORKER, slot}, RV_GET_ANY, deadline_ns, uid);
}

static void a_slot_of_the_same_user_is_seen_and_not_copied(void **state)
{
	uint64_t slot = fake_stage(&w, LEN, 0x42, true, ALICE);
	struct rv_msg_get m = outcome(local_get(slot, ALICE, RV_NEVER));

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_ptr_equal(m.block, fake_slot(&w, slot)->block);
	assert_int_equal(m.block->holds, 2);
	assert_int_equal(m.took, RV_PATH_LOCAL);
	assert_int_equal(m.len, LEN);
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	assert_int_equal(paths(), 0);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, slot, m.lease_id, FAKE_WORKER), 0);
	assert_null(fake_slot(&w, slot));
	assert_int_equal(rv_block_ptr(m.block)[LEN - 1],
			 0x42); /* the view's hold keeps the bytes */
	drop(&m);
}

static void a_slot_of_another_user_is_copied(void **state)
{
	uint64_t slot = fake_stage(&w, RV_MIB(2) + 5, 0x43, true, ALICE);
	struct rv_msg_get m = outcome(local_get(slot, BOB, RV_NEVER));

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_ptr_not_equal(m.block, fake_slot(&w, slot)->block);
	assert_int_equal(m.block->arena->cls.uid, BOB);
	assert_int_equal(m.block->arena->cls.kind, RV_ARENA_LANDING);
	assert_int_equal(m.len, RV_MIB(2) + 5);
	for (size_t i = 0; i < m.len; i++)
		if (rv_block_ptr(m.block)[i] != 0x43)
			fail_msg("byte %zu", i);
	assert_int_equal(m.took, RV_PATH_LOCAL);
	assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, FAKE_WORKER), 0);
	fake_drop_slot(&w, slot);
	drop(&m);
}

static void nothing_of_this_node_is_nothing(void **state)
{
	uint64_t slot = fake_stage(&w, 0, 0, false, ALICE);
	struct rv_msg_get m = outcome(local_get(slot, BOB, RV_NEVER));

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_null(m.block);
	assert_int_equal(m.len, 0);
	fake_lease_op(&w, RV_LEASE_RELEASE, slot, m.lease_id, FAKE_WORKER);
}

static void an_unknown_handle_of_this_node_is_not_found(void **state)
{
	(void)state;
	assert_int_equal(outcome(local_get(64, ALICE, RV_NEVER)).rc, -ENOENT);
	assert_int_equal(outcome(local_get(64 | 5, ALICE, RV_NEVER)).rc,
			 -ENOENT); /* no such reactor */
	assert_int_equal(w.calls.open_nr, 0);
}

/* A local get that cannot be completed ends its lease itself, on this node: no messenger knows this node as a peer. */
static void end_of_a_failed_local_get(uint64_t slot)
{
	struct rv_peer_call *c = fake_calls_find(&w.calls, RV_PEER_DETACH);
	bool asked_a_peer = c != NULL;

	if (c)
		answer(RV_PEER_DETACH, -EHOSTUNREACH);
	asked_a_peer |= fake_slot(&w, slot)->locks != 0;
	fake_drop_slot(&w, slot);
	assert_false(asked_a_peer);
}

/* A get by another user for whose copy there is none. */
static struct fake_ask *copy_without_memory(uint64_t *slot)
{
	struct fake_ask *a;

	setup(NULL);
	*slot = fake_stage(&w, LEN, 1, true, ALICE);
	w.serve_growths = false;
	a = local_get(*slot, BOB, RV_NEVER);
	fake_grow_refuse(&w.grow, -ENOSPC);
	if (w.grow.pending_nr)
		fake_grow_refuse(&w.grow, -ENOSPC);
	fake_engine_run(&w);
	return a;
}

static bool a_copy_without_memory(void)
{
	uint64_t slot;
	struct fake_ask *a;

	a = copy_without_memory(&slot);
	if (fake_calls_find(&w.calls, RV_PEER_DETACH))
		answer(RV_PEER_DETACH, 0);
	return a->back && outcome(a).rc == -ENOSPC;
}

static void a_copy_without_memory_does_not_stop_the_daemon(void **state)
{
	(void)state;
	assert_int_equal(forked(a_copy_without_memory), 0);
}

static bool a_copy_without_memory_leaves_no_lock_and_no_hold(void)
{
	uint64_t slot;
	struct fake_ask *a;
	struct rv_slot *s;

	a = copy_without_memory(&slot);
	s = fake_slot(&w, slot);
	return a->back && s && s->locks == 0 && s->block->holds == 1;
}

static void a_copy_that_fails_for_memory_leaves_its_source_alone(void **state)
{
	(void)state;
	assert_int_equal(forked(a_copy_without_memory_leaves_no_lock_and_no_hold), 0);
}

/* Cells are shared with everything else on this thread: peers' requests, clients', renewals. */
static bool a_copy_that_ends_without_a_cell(void)
{
	uint64_t slot;
	struct fake_ask *a;

	setup(NULL);
	slot = fake_stage(&w, LEN, 1, true, ALICE);
	w.serve_growths = false;
	a = local_get(slot, BOB, RV_NEVER);
	while (rv_cell_alloc(w.port))
		;
	fake_grow_serve(&w.grow);
	fake_engine_run(&w);
	return a->back;
}

static void a_copy_that_ends_without_a_free_cell_does_not_stop_the_daemon(void **state)
{
	(void)state;
	assert_int_equal(forked(a_copy_that_ends_without_a_cell), 0);
}

/* A peer's request may name a slot of this very node. */
static bool a_local_payload_over_the_limit(void)
{
	struct rv_msg_get m;
	struct fake_ask *a;
	struct rv_slot *s;
	uint64_t slot;

	setup(NULL);
	slot = fake_stage(&w, LEN, 1, true, ALICE);
	fake_slot(&w, slot)->refcount = 2;
	m = (struct rv_msg_get){
		.engine = &w.engine,
		.handle = {FAKE_WORKER, slot},
		.deadline_ns = RV_NEVER,
		.uid = BOB,
		.max_len = LEN - 1,
	};
	a = fake_ask_start(&w, rv_engine_run_get, &m, sizeof(m));
	fake_engine_run(&w);
	if (fake_calls_find(&w.calls, RV_PEER_RELEASE))
		answer(RV_PEER_RELEASE, -EHOSTUNREACH);
	s = fake_slot(&w, slot);
	return a->back && outcome(a).rc == -EMSGSIZE && s && s->locks == 0 && s->block->holds == 1;
}

static void a_local_payload_over_the_limit_does_not_stop_the_daemon(void **state)
{
	(void)state;
	assert_int_equal(forked(a_local_payload_over_the_limit), 0);
}

static void a_copy_whose_source_cannot_be_read_is_an_error(void **state)
{
	uint64_t slot = fake_stage(&w, LEN, 1, true, ALICE);
	struct rv_arena *arena = fake_slot(&w, slot)->block->arena;
	struct rv_msg_get m;
	int fd = arena->pages.memfd;

	(void)state;
	arena->pages.memfd = -1;
	m = outcome(local_get(slot, BOB, RV_NEVER));
	arena->pages.memfd = fd;
	assert_int_equal(m.rc, -EIO);
	assert_null(m.block);
	end_of_a_failed_local_get(slot);
}

static void a_copy_that_waits_for_memory_is_answered_at_its_deadline(void **state)
{
	uint64_t slot = fake_stage(&w, LEN, 1, true, ALICE);
	struct fake_ask *a;
	bool in_time;
	struct rv_msg_get m;

	(void)state;
	w.serve_growths = false;
	a = local_get(slot, BOB, fake_now_ns + RV_MS(100));
	fake_engine_advance(&w, RV_MS(200));
	in_time = a->back;
	if (!in_time) {
		fake_grow_serve_all(&w.grow);
		m = outcome(a);
		drop(&m);
		fake_lease_op(&w, RV_LEASE_DETACH, slot, m.lease_id, FAKE_WORKER);
		fake_drop_slot(&w, slot);
		fail_msg("a get with 100 ms was not answered after 200");
	}
	assert_int_equal(outcome(a).rc, -ETIMEDOUT);
	fake_grow_serve_all(&w.grow);
	fake_engine_run(&w);
	end_of_a_failed_local_get(slot);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GET(a_slot_of_the_same_user_is_seen_and_not_copied),
		GET(a_slot_of_another_user_is_copied),
		GET(nothing_of_this_node_is_nothing),
		GET(an_unknown_handle_of_this_node_is_not_found),
		cmocka_unit_test(a_copy_without_memory_does_not_stop_the_daemon),
		cmocka_unit_test(a_copy_that_fails_for_memory_leaves_its_source_alone),
		cmocka_unit_test(a_copy_that_ends_without_a_free_cell_does_not_stop_the_daemon),
		cmocka_unit_test(a_local_payload_over_the_limit_does_not_stop_the_daemon),
		GET(a_copy_whose_source_cannot_be_read_is_an_error),
		GET(a_copy_that_waits_for_memory_is_answered_at_its_deadline),
	};

	return cmocka_run_group_tests_name("get_local", tests, NULL, NULL);
}
