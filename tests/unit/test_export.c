/* Keys that end with their lease: an engine, and a prompt thread whose every answer is the test's. */
#include "dataplane/engine/export.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "dataplane/rendezvous/descriptor.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define LEN      RV_KIB(100)
#define CONSUMER 500u
#define ALICE    1000u
#define LEASE    RV_MS(400) /* fake_engine's lease_timeout_ns */

static struct fake_engine w;
static struct rv_fabric_key key = {.key = "a key of its own", .key_len = 16};

/* What the prompt thread was asked and has not answered. */
static struct rv_export_ask asked[16];
static unsigned asked_nr, refusals;

static int export_ask(void *user, const struct rv_export_ask *a)
{
	(void)user;
	if (refusals) {
		refusals--;
		return -EAGAIN;
	}
	assert_true(asked_nr < RV_ARRAY_NR(asked));
	asked[asked_nr++] = *a;
	return 0;
}

static int setup(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	asked_nr = refusals = 0;
	fake_engine_init(&w, &(struct fake_engine_conf){.export_ask = export_ask});
	w.fabric.fabric.exports = true;
	return 0;
}

static int finish(void **state)
{
	(void)state;
	assert_int_equal(asked_nr, 0);
	assert_int_equal(rv_counter_get(&w.engine.exports_live), 0);
	fake_engine_fini(&w);
	return 0;
}

/* Answer the oldest question. */
static void answer(int op, int rc)
{
	struct rv_export_ask a = asked[0];

	assert_true(asked_nr > 0);
	assert_int_equal(a.op, op);
	memmove(asked, asked + 1, --asked_nr * sizeof(asked[0]));
	a.rc = rc;
	if (op == RV_EXPORT_MAKE && !rc)
		a.key = &key;
	else if (!rc)
		assert_ptr_equal(a.key, &key);
	rv_export_asked(&a);
	fake_engine_run(&w);
}

static uint64_t stage(void)
{
	return fake_stage(&w, LEN, 0x42, true, ALICE);
}

static uint32_t offer_qp;

static struct fake_ask *acquire(uint64_t local)
{
	struct rv_msg_acquire m = {.engine = &w.engine,
				   .local = local,
				   .worker = CONSUMER,
				   .has_offer = true,
				   .offer = RV_PEER_OFFER_UCX,
				   .offer_qp = offer_qp};
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_acquire, &m, sizeof(m));

	fake_engine_run(&w);
	return a;
}

static struct rv_msg_acquire answered(struct fake_ask *a)
{
	struct rv_msg_acquire m;

	fake_engine_run(&w);
	assert_true(a->back);
	m = *(struct rv_msg_acquire *)fake_ask_body(a);
	fake_ask_end(&w, a);
	return m;
}

static struct rv_msg_acquire granted(uint64_t local)
{
	struct fake_ask *a = acquire(local);

	answer(RV_EXPORT_MAKE, 0);
	return answered(a);
}

static uint64_t count(enum rv_path_reason why)
{
	return rv_counter_get(&w.engine.stats.path[why]);
}

static void end_chunked(uint64_t local, const struct rv_msg_acquire *m)
{
	assert_int_equal(m->answer, RV_ANSWER_READY);
	assert_int_equal(m->desc_len, 0);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, m->lease_id, CONSUMER), 0);
}

/* Tests. */

static void the_answer_waits_for_the_key_and_names_exactly_the_slot(void **state)
{
	uint64_t local = stage();
	struct fake_ask *a = acquire(local);
	struct rv_msg_acquire m;
	struct rv_desc d;

	(void)state;
	assert_false(a->back);
	assert_int_equal(asked_nr, 1);
	assert_ptr_equal(asked[0].addr, rv_block_ptr(fake_slot(&w, local)->block));
	assert_int_equal(asked[0].len, LEN);
	assert_int_equal(asked[0].to.worker, CONSUMER);
	assert_int_equal(count(RV_PATH_OK), 0);
	answer(RV_EXPORT_MAKE, 0);
	m = answered(a);
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	assert_int_equal(m.lease_timeout_ms, 400);
	assert_int_equal(rv_desc_decode(m.desc, m.desc_len, &d), RV_ACCEPT);
	assert_int_equal(d.len, LEN);
	assert_int_equal(d.rkey_len, 16);
	assert_memory_equal(d.rkey, "a key of its own", 16);
	assert_int_equal(count(RV_PATH_OK), 1);
	assert_int_equal(rv_store_rdma_leases(&w.engine.store),
			 0); /* nothing a drain must wait for */
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, m.lease_id, CONSUMER), 0);
	answer(RV_EXPORT_REVOKE, 0);
}

static void released(uint64_t local, uint64_t lease)
{
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, lease, CONSUMER), 0);
}

static void detached_and_dropped(uint64_t local, uint64_t lease)
{
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, local, lease, CONSUMER), 0);
	fake_drop_slot(&w, local);
}

static void reaped(uint64_t local, uint64_t lease)
{
	(void)local, (void)lease;
	fake_engine_advance(&w, LEASE);
}

static void dropped(uint64_t local, uint64_t lease)
{
	(void)lease;
	fake_drop_slot(&w, local);
}

static void a_range_is_used_again_once_the_key_is_dead_and_not_before(void **state)
{
	void (*const ends[])(uint64_t local, uint64_t lease) = {released, detached_and_dropped,
								reaped, dropped};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(ends); i++) {
		uint64_t local = stage();
		struct rv_msg_acquire m = granted(local);

		ends[i](local, m.lease_id);
		assert_int_equal(w.engine.store.slots.live_nr, 0);
		assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
		answer(RV_EXPORT_REVOKE, 0);
		assert_int_equal(rv_counter_get(&w.engine.pool.blocks),
				 0); /* at once, without rest */
		assert_int_equal(rv_counter_get(&w.engine.pool.resting_blocks), 0);
	}
}

static void two_consumers_never_share_a_key(void **state)
{
	uint64_t local = stage();
	struct fake_ask *a = acquire(local), *b = acquire(local);
	struct rv_msg_acquire ma, mb;

	(void)state;
	assert_int_equal(asked_nr, 2);
	answer(RV_EXPORT_MAKE, 0);
	answer(RV_EXPORT_MAKE, 0);
	ma = answered(a);
	mb = answered(b);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, local, ma.lease_id, CONSUMER), 0);
	answer(RV_EXPORT_REVOKE, 0);
	assert_int_equal(asked_nr, 0); /* the other's lives on */
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, mb.lease_id, CONSUMER), 0);
	answer(RV_EXPORT_REVOKE, 0);
}

static void a_key_that_cannot_be_made_is_chunks(void **state)
{
	uint64_t local = stage();
	struct fake_ask *a = acquire(local);
	struct rv_msg_acquire m;

	(void)state;
	answer(RV_EXPORT_MAKE, -ENOMEM);
	m = answered(a);
	assert_int_equal(count(RV_PATH_NOT_PINNED), 1);
	assert_int_equal(count(RV_PATH_OK), 0);
	end_chunked(local, &m);
}

static void a_key_that_is_not_there_in_a_quarter_of_the_lease_is_chunks(void **state)
{
	uint64_t local = stage();
	struct fake_ask *a = acquire(local);
	struct rv_msg_acquire m;

	(void)state;
	fake_engine_advance(&w, LEASE / 4 - 1);
	assert_false(a->back);
	fake_engine_advance(&w, 1);
	m = answered(a);
	assert_int_equal(count(RV_PATH_NOT_PINNED), 1);
	answer(RV_EXPORT_MAKE, 0); /* it comes after all, and goes at once */
	answer(RV_EXPORT_REVOKE, 0);
	end_chunked(local, &m);
}

static void a_slot_that_ends_while_its_key_is_made_is_not_found(void **state)
{
	uint64_t local = stage();
	struct fake_ask *a = acquire(local);
	struct rv_msg_acquire m;

	(void)state;
	fake_drop_slot(&w, local);
	assert_false(a->back);
	answer(RV_EXPORT_MAKE, 0);
	m = answered(a);
	assert_int_equal(m.rc, -ENOENT);
	assert_int_equal(m.cause, RV_END_DROPPED);
	answer(RV_EXPORT_REVOKE, 0);
}

static void without_a_cell_the_answer_is_chunks_and_a_revocation_waits(void **state)
{
	uint64_t local = stage();
	struct rv_msg_acquire m;

	(void)state;
	refusals = 1;
	m = answered(acquire(local));
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, local, m.lease_id, CONSUMER), 0);
	m = granted(local);
	refusals = 3;
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, m.lease_id, CONSUMER), 0);
	assert_int_equal(asked_nr, 0);
	for (unsigned i = 0; i < 3; i++)
		fake_engine_advance(&w, RV_MS(1));
	answer(RV_EXPORT_REVOKE, 0);
}

static void a_key_that_cannot_be_revoked_keeps_its_range_for_good(void **state)
{
	uint64_t local = stage();
	struct rv_msg_acquire m = granted(local);
	struct rv_block *b = fake_slot(&w, local)->block;

	(void)state;
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, m.lease_id, CONSUMER), 0);
	answer(RV_EXPORT_REVOKE, -EIO);
	fake_engine_advance(&w, RV_SEC(1000));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	assert_int_equal(rv_counter_get(&w.engine.exports_stuck), 1);
	assert_true(b->arena->stuck);
	/* For the test's own order at the end. */
	b->arena->stuck = false;
	rv_block_drop(b);
	rv_counter_sub(&w.engine.exports_live, 1);
}

static void a_shutdown_revokes_before_it_deregisters(void **state)
{
	uint64_t local = stage();
	struct rv_msg_acquire m = granted(local);
	struct rv_msg_stop stop = {.engine = &w.engine, .step = RV_STOP_DEMOTE};

	(void)state;
	w.engine.pool.conf.ask = NULL; /* nothing is asked of the slow thread before */
	assert_int_equal(rv_store_rdma_leases(&w.engine.store), 0);
	w.engine.pool.conf.ask = (int (*)(void *, const struct rv_pool_ask *))(void (*)(void))abort;
	fake_ask(&w, rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(stop.busy_arenas, 1);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, m.lease_id, CONSUMER), -ESTALE);
	answer(RV_EXPORT_REVOKE, 0);
	w.engine.pool.conf.ask = NULL;
	fake_drop_slot(&w, local);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, finish)

static void a_key_for_one_queue_pair_needs_its_number(void **state)
{
	uint64_t local = stage();
	struct fake_ask *a;
	struct rv_msg_acquire m;

	(void)state;
	w.fabric.fabric.by_queue_pair = true;
	m = answered(acquire(local));
	assert_int_equal(asked_nr, 0);
	assert_int_equal(count(RV_PATH_NOT_PINNED), 1);
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, local, m.lease_id, CONSUMER), 0);
	offer_qp = 4711;
	a = acquire(local);
	offer_qp = 0;
	assert_int_equal(asked_nr, 1);
	assert_int_equal(asked[0].to.qp, 4711);
	answer(RV_EXPORT_MAKE, 0);
	m = answered(a);
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	assert_int_equal(fake_lease_op(&w, RV_LEASE_RELEASE, local, m.lease_id, CONSUMER), 0);
	answer(RV_EXPORT_REVOKE, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(the_answer_waits_for_the_key_and_names_exactly_the_slot),
		T(a_range_is_used_again_once_the_key_is_dead_and_not_before),
		T(two_consumers_never_share_a_key),
		T(a_key_that_cannot_be_made_is_chunks),
		T(a_key_that_is_not_there_in_a_quarter_of_the_lease_is_chunks),
		T(a_slot_that_ends_while_its_key_is_made_is_not_found),
		T(without_a_cell_the_answer_is_chunks_and_a_revocation_waits),
		T(a_key_that_cannot_be_revoked_keeps_its_range_for_good),
		T(a_shutdown_revokes_before_it_deregisters),
		T(a_key_for_one_queue_pair_needs_its_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
