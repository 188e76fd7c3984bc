/* Gets and time: renewals and their proof, deadlines in each state. */
#include "dataplane/engine/get.h"

#include <errno.h>
#include <unistd.h>

#include "tests/unit/get_flow.h"

/* Leases while a GET runs. */

static void a_slow_get_renews_every_half_lease_with_proof(void **state)
{
	struct fake_ask *a = slow_get();
	struct rv_msg_get m;

	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		struct rv_peer_call *c;

		fake_engine_advance(&w, RV_MS(199));
		assert_null(fake_calls_find(&w.calls, RV_PEER_RENEW));
		fake_engine_advance(&w, RV_MS(1));
		c = call(RV_PEER_RENEW);
		assert_int_equal(c->lease_id, LEASE);
		assert_true(c->sync);
		fake_calls_answer(&w.calls, c, 0);
	}
	fake_engine_run(&w);
	fake_now_ns += RV_MS(150);
	complete(0);
	m = outcome(a);
	assert_bytes(&m, remote);
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 10);
	drop(&m);
}

static void a_short_lease_is_renewed_every_five_milliseconds_at_most(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);

	(void)state;
	answer_rdma(1);
	for (unsigned i = 0; i < 20; i++)
		fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 4);
	while (fake_calls_find(&w.calls, RV_PEER_RENEW))
		answer(RV_PEER_RENEW, 0);
	complete(0);
	assert_int_equal(outcome(a).rc,
			 -EKEYREVOKED); /* each ack came too late to prove anything */
	expect_detach(LEASE);
}

static void a_lease_without_deadline_is_not_renewed_and_never_lost(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_msg_get m;

	(void)state;
	answer_rdma(0);
	fake_engine_advance(&w, RV_SEC(15));
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 0);
	complete(0);
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
}

/* One renewal: what it is answered and when, when the GET ends, and whether the bytes are given out. */
static const struct {
	int rc;
	unsigned acked_ms, ends_ms;
	bool ok;
} renewals
	[] =
		{
			{0, 250, 350, true},
			{0, 250, 401, true},
			{0, 250, 600, true},
			{0, 250, 601, false}, /* the renewal was sent at 200 */
			{0, 400, 600, true},
			{0, 401, 500, false}, /* the ack came when the lease may have been dead already */
			{-EREMOTEIO, 250, 500, false},
			{-EREMOTEIO, 250, 400, true}, /* the acquire itself is proof until then */
			{-ETIMEDOUT, 300, 500, false},
};

static void bytes_are_given_out_only_with_a_lease_that_is_proven(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(renewals); i++) {
		uint64_t t0;
		struct fake_ask *a;
		struct rv_msg_get m;
		struct rv_peer_call *c;

		setup(NULL);
		a = slow_get();
		t0 = fake_now_ns;
		fake_engine_advance(&w, RV_MS(200));
		c = call(RV_PEER_RENEW);
		w.reactor.now_ns = fake_now_ns = t0 + RV_MS(renewals[i].acked_ms);
		fake_calls_answer(&w.calls, c, renewals[i].rc);
		fake_engine_run(&w);
		fake_now_ns = t0 + RV_MS(rv_max_u64(renewals[i].ends_ms, renewals[i].acked_ms));
		complete(0);
		m = outcome(a);
		if (m.rc != (renewals[i].ok ? 0 : -EKEYREVOKED))
			fail_msg("row %zu: %d", i, m.rc);
		if (renewals[i].ok) {
			assert_bytes(&m, remote);
			drop(&m);
		} else {
			assert_null(m.block);
			assert_non_null(strstr(m.text, "lease lost"));
			assert_int_equal(path(RV_PATH_OK), 0);
			expect_detach(LEASE);
		}
		while ((c = fake_calls_find(&w.calls, RV_PEER_RENEW)))
			answer(RV_PEER_RENEW, 0);
		if (i + 1 < RV_ARRAY_NR(renewals))
			fake_engine_fini(&w);
	}
}

/* Two under way: the first was acked just in time, but told after the second had gone out. */
static void a_second_renewal_counts_though_the_first_was_told_after_it_was_sent(void **state)
{
	struct fake_ask *a = slow_get();
	uint64_t t0 = fake_now_ns;
	struct rv_peer_call *first, *second;
	struct rv_msg_get m;

	(void)state;
	fake_engine_advance(&w, RV_MS(200));
	first = call(RV_PEER_RENEW);
	fake_engine_advance(&w, RV_MS(200)); /* at 400 the second goes out */
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 2);
	fake_calls_answer(&w.calls, first, 0);
	first->replied_ns = t0 + RV_MS(390);
	fake_engine_run(&w); /* proven until 600 */
	fake_engine_advance(&w, RV_MS(50));
	second = call(RV_PEER_RENEW);
	assert_int_equal(second->sent_ns, t0 + RV_MS(400));
	fake_calls_answer(&w.calls, second, 0); /* proven until 800 */
	fake_engine_run(&w);
	fake_now_ns = t0 + RV_MS(700);
	complete(0);
	m = outcome(a);
	while (fake_calls_find(&w.calls, RV_PEER_RENEW))
		answer(RV_PEER_RENEW, 0);
	if (m.rc)
		expect_detach(LEASE);
	drop(&m);
	assert_int_equal(m.rc, 0);
}

/* Stock owners count their leases from 1, so two owners' ids are easily the same. */
static void a_late_ack_of_another_owners_lease_proves_nothing(void **state)
{
	struct fake_ask *a;
	struct rv_peer_call *late;
	uint64_t t0;
	struct rv_msg_get m;

	(void)state;
	finish(NULL);
	start_with(
		&(struct fake_engine_conf){.max_gets = 1}); /* the record is used again at once */
	fake_fabric_remote(&w.fabric, FAKE_OWNER + 1, ADDR, remote, sizeof(remote));
	a = slow_get();
	fake_engine_advance(&w, RV_MS(200));
	late = call(RV_PEER_RENEW); /* queued: the connection is being dialed */
	complete(0);
	m = outcome(a);
	drop(&m);

	a = get_of((struct rv_handle){FAKE_OWNER + 1, 64}, RV_GET_ANY, fake_now_ns + DEADLINE,
		   ALICE);
	answer_rdma(LEASE_MS);
	t0 = fake_now_ns;
	fake_engine_advance(&w, RV_MS(200));
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 2);
	late->sent_ns = t0 + RV_MS(250); /* only now it went out, to the first owner */
	fake_now_ns = t0 + RV_MS(260);
	fake_calls_answer(&w.calls, late, 0);
	fake_engine_run(&w);
	fake_now_ns = t0 + RV_MS(500);
	complete(0);
	m = outcome(a);
	while (fake_calls_find(&w.calls, RV_PEER_RENEW))
		answer(RV_PEER_RENEW, -ETIMEDOUT);
	if (m.rc)
		answer(RV_PEER_DETACH, 0);
	drop(&m);
	assert_int_equal(m.rc, -EKEYREVOKED);
}

static void a_lost_lease_in_a_failed_get_still_falls_back(void **state)
{
	struct fake_ask *a = slow_get();
	struct rv_msg_get m;

	(void)state;
	fake_engine_advance(&w, RV_MS(900));
	complete(-ECONNRESET);
	expect_detach(LEASE);
	answer_ready(LEASE_2);
	answer_pull();
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
	while (fake_calls_find(&w.calls, RV_PEER_RENEW))
		answer(RV_PEER_RENEW, 0);
}

/* The lease runs from the acquire, not from the moment its destination is there. */
static void a_slow_reservation_does_not_cost_the_lease(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_msg_get m;

	(void)state;
	w.serve_growths = false;
	answer_rdma(LEASE_MS);
	for (unsigned ms = 0; ms < 300; ms += 10) {
		fake_engine_advance(&w, RV_MS(10));
		while (fake_calls_find(&w.calls, RV_PEER_RENEW))
			answer(RV_PEER_RENEW, 0);
	}
	fake_grow_serve(&w.grow);
	for (unsigned ms = 300; ms < 500; ms += 10) {
		fake_engine_advance(&w, RV_MS(10));
		while (fake_calls_find(&w.calls, RV_PEER_RENEW))
			answer(RV_PEER_RENEW, 0);
	}
	complete(0);
	m = outcome(a);
	if (m.rc)
		expect_detach(LEASE);
	drop(&m);
	assert_int_equal(m.rc, 0);
}

static void without_a_cell_a_renewal_is_skipped_and_the_next_one_made(void **state)
{
	struct fake_ask *a = slow_get();
	struct rv_list taken, *it;
	struct rv_cell *c;
	struct rv_msg_get m;

	(void)state;
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	fake_engine_advance(&w, RV_MS(200));
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 0);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
	fake_engine_advance(&w, RV_MS(199));
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 0);
	fake_engine_advance(&w, RV_MS(1));
	answer(RV_PEER_RENEW, 0);
	fake_engine_advance(&w, RV_MS(100));
	complete(0);
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
}

/* Deadlines, in each state. */

static void a_late_get_is_answered_at_its_deadline_and_its_destination_stays_held(void **state)
{
	struct fake_ask *a = slow_get();
	struct rv_msg_get m;
	unsigned renewals_before;

	(void)state;
	for (unsigned i = 0; i < 99; i++) {
		fake_engine_advance(&w, RV_MS(200));
		answer(RV_PEER_RENEW, 0);
	}
	fake_engine_advance(&w, RV_MS(199));
	assert_false(a->back);
	renewals_before = w.calls.started[RV_PEER_RENEW];
	fake_engine_advance(&w, RV_MS(1));
	m = outcome(a);
	assert_int_equal(m.rc, -ETIMEDOUT);
	assert_null(m.block);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 1);
	fake_fabric_write_half(&w.fabric); /* the device goes on writing */
	fake_engine_advance(&w, RV_MS(399));
	assert_int_equal(w.fabric.abandons, 0);
	assert_int_equal(w.calls.started[RV_PEER_DETACH],
			 0); /* neither renewed nor detached before it completes */
	assert_in_range(w.calls.started[RV_PEER_RENEW], renewals_before, renewals_before + 1);
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(w.fabric.abandons, 1); /* one lease timeout later */
	fake_engine_advance(&w, RV_SEC(60));
	assert_int_equal(w.fabric.abandons, 1);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	complete(-ECONNRESET);
	expect_detach(LEASE);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(paths(), 0); /* never a fallback */
	while (fake_calls_find(&w.calls, RV_PEER_RENEW))
		answer(RV_PEER_RENEW, -ETIMEDOUT);
}

static void a_late_get_that_completes_well_after_all_is_only_cleaned_up(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);

	(void)state;
	answer_rdma(0);
	fake_engine_advance(&w, DEADLINE);
	assert_int_equal(outcome(a).rc, -ETIMEDOUT);
	fake_engine_advance(&w, RV_SEC(29));
	assert_int_equal(w.fabric.abandons, 0);
	complete(0);
	expect_detach(LEASE);
	fake_engine_advance(&w, RV_SEC(60));
	assert_int_equal(w.fabric.abandons, 0); /* its timer went with it */
	assert_int_equal(path(RV_PATH_OK), 0);
}

static void a_pull_that_is_late_is_cancelled_and_answered_when_its_cell_is_back(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_peer_call *c;

	(void)state;
	answer_ready(LEASE);
	c = call(RV_PEER_PULL);
	w.calls.cancel_rc = (struct fake_script){.nr = 2, .outcome = {-EAGAIN, -EAGAIN}};
	fake_engine_advance(&w, DEADLINE);
	assert_int_equal(w.calls.cancels, 0); /* no cell; it is tried again */
	fake_engine_advance(&w, RV_MS(1));
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(w.calls.cancels, 1);
	assert_false(a->back);
	memset(c->dst, 0xff, c->total_len); /* until the cell is back the socket may write */
	answer(RV_PEER_PULL, -ETIMEDOUT);
	assert_int_equal(outcome(a).rc, -ETIMEDOUT);
	expect_detach(LEASE);
}

static void a_reservation_that_is_late_is_answered_and_cleaned_up_when_it_comes(void **state)
{
	static const enum rv_get_path by[] = {RV_GET_CHUNKED, RV_GET_ANY};

	(void)state;
	w.serve_growths = false;
	for (size_t i = 0; i < RV_ARRAY_NR(by); i++) {
		struct fake_ask *a = get(by[i]);

		if (by[i] == RV_GET_ANY)
			answer_rdma(LEASE_MS);
		else
			answer_ready(LEASE);
		fake_engine_advance(&w, DEADLINE);
		assert_int_equal(outcome(a).rc, -ETIMEDOUT);
		assert_int_equal(w.calls.started[RV_PEER_DETACH], i);
		if (i)
			fake_grow_refuse(&w.grow, -ENOSPC);
		else
			fake_grow_serve(&w.grow);
		expect_detach(LEASE);
		while (fake_calls_find(&w.calls, RV_PEER_RENEW))
			answer(RV_PEER_RENEW, -ETIMEDOUT);
		rv_pool_shrink_all(&w.engine.pool);
	}
}

static void an_acquire_carries_the_deadline_and_comes_back_by_itself(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);

	(void)state;
	fake_engine_advance(&w, DEADLINE);
	assert_false(a->back);
	answer(RV_PEER_ACQUIRE, -ETIMEDOUT);
	assert_int_equal(outcome(a).rc, -ETIMEDOUT);
}

static void without_a_deadline_each_step_has_a_calls_time(void **state)
{
	struct fake_ask *a =
		get_of((struct rv_handle){FAKE_OWNER, 64}, RV_GET_ANY, RV_NEVER, ALICE);
	struct rv_msg_get m;

	(void)state;
	assert_int_equal(call(RV_PEER_ACQUIRE)->deadline_ns, fake_now_ns + CALL_TIME);
	fake_engine_advance(&w, CALL_TIME - 1);
	answer_rdma(0);
	fake_engine_advance(&w, CALL_TIME - 1);
	assert_false(a->back);
	complete(-ECONNRESET);
	assert_int_equal(call(RV_PEER_DETACH)->deadline_ns, fake_now_ns + CALL_TIME);
	expect_detach(LEASE);
	assert_int_equal(call(RV_PEER_ACQUIRE)->deadline_ns, fake_now_ns + CALL_TIME);
	answer_ready(LEASE_2);
	fake_engine_advance(&w,
			    RV_SEC(3600)); /* a pull has a deadline a chunk, and keeps it itself */
	assert_int_equal(w.calls.cancels, 0);
	answer_pull();
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
}

/* The time of the failed GET is no deadline of the step that follows it. */
static void without_a_deadline_a_reservation_after_a_fallback_has_its_own_time(void **state)
{
	struct fake_ask *a =
		get_of((struct rv_handle){FAKE_OWNER, 64}, RV_GET_ANY, RV_NEVER, ALICE);
	struct rv_msg_get m;

	(void)state;
	answer_rdma(0);
	fake_engine_advance(&w, CALL_TIME - RV_MS(10));
	w.serve_growths = false;
	complete(-ECONNRESET);
	expect_detach(LEASE);
	fake_grow_serve_all(&w.grow);
	rv_pool_shrink_all(&w.engine.pool); /* so that the second destination must wait */
	answer_ready(LEASE_2);
	assert_int_equal(w.grow.pending_nr, 1);
	fake_engine_advance(&w, RV_MS(20));
	fake_grow_serve(&w.grow);
	fake_engine_run(&w);
	if (a->back) {
		expect_detach(LEASE_2);
		m = outcome(a);
		fail_msg("answered %d after 20 ms of a step", m.rc);
	}
	answer_pull();
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GET(a_slow_get_renews_every_half_lease_with_proof),
		GET(a_short_lease_is_renewed_every_five_milliseconds_at_most),
		GET(a_lease_without_deadline_is_not_renewed_and_never_lost),
		OWN(bytes_are_given_out_only_with_a_lease_that_is_proven),
		GET(a_second_renewal_counts_though_the_first_was_told_after_it_was_sent),
		GET(a_late_ack_of_another_owners_lease_proves_nothing),
		GET(a_lost_lease_in_a_failed_get_still_falls_back),
		GET(a_slow_reservation_does_not_cost_the_lease),
		GET(without_a_cell_a_renewal_is_skipped_and_the_next_one_made),
		GET(a_late_get_is_answered_at_its_deadline_and_its_destination_stays_held),
		GET(a_late_get_that_completes_well_after_all_is_only_cleaned_up),
		GET(a_pull_that_is_late_is_cancelled_and_answered_when_its_cell_is_back),
		GET(a_reservation_that_is_late_is_answered_and_cleaned_up_when_it_comes),
		GET(an_acquire_carries_the_deadline_and_comes_back_by_itself),
		GET(without_a_deadline_each_step_has_a_calls_time),
		GET(without_a_deadline_a_reservation_after_a_fallback_has_its_own_time),
	};

	return cmocka_run_group_tests_name("get_time", tests, NULL, NULL);
}
