/* The consumer side: every way a get can go, and that nothing is left of it. */
#include "dataplane/engine/get.h"

#include <errno.h>
#include <unistd.h>

#include "dataplane/rendezvous/descriptor.h"
#include "tests/unit/get_flow.h"

/* Chunks. */

static void a_chunked_get_brings_the_bytes_and_the_lease(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);
	struct rv_msg_get m;

	(void)state;
	assert_int_equal(c->offer, 0);
	assert_int_equal(c->deadline_ns, fake_now_ns + DEADLINE);
	fake_calls_ready(&w.calls, c, LEASE, LEN, CHUNK, 1);
	c = call(RV_PEER_PULL);
	assert_int_equal(c->transfer_id, LEASE + 1000);
	assert_int_equal(c->total_len, LEN);
	assert_int_equal(c->chunk_size, CHUNK);
	assert_int_equal(c->chunk_count, 1);
	assert_int_equal(c->idle_ns, CALL_TIME);
	fake_engine_advance(&w, RV_MS(30));
	answer_pull();
	m = outcome(a);
	assert_bytes(&m, remote);
	assert_int_equal(m.took, RV_PATH_CHUNKED);
	assert_int_equal(m.lease_id, LEASE);
	assert_int_equal(m.len, LEN);
	assert_int_equal(m.elapsed_ns, RV_MS(30));
	assert_int_equal(m.block->holds, 1);
	assert_ptr_equal(m.block_engine, &w.engine);
	assert_int_equal(w.calls.started[RV_PEER_DETACH], 0); /* the lease is the asker's to end */
	assert_int_equal(rv_counter_get(&w.engine.stats.get_bytes[RV_PATH_CHUNKED]), LEN);
	assert_int_equal(paths(), 0); /* nobody wanted RDMA */
	drop(&m);
}

static void nothing_is_fetched_without_a_pull(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_msg_get m;

	(void)state;
	fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), LEASE, 0, CHUNK, 0);
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.len, 0);
	assert_null(m.block);
	assert_int_equal(m.lease_id, LEASE);
	assert_int_equal(w.calls.started[RV_PEER_PULL], 0);
	assert_int_equal(w.grow.asked, 0);
}

static const struct {
	uint64_t total_len;
	uint32_t chunk_size, chunk_count;
} unsound[] = {
	{LEN, CHUNK, 2},
	{LEN, CHUNK, 0},
	{LEN, 0, 0},
	{0, CHUNK, 1},
	{UINT64_MAX, CHUNK, UINT32_MAX},
	{LEN, (uint32_t)RV_MIB(17), 1},
	{LEN, 1, UINT32_MAX},
};

static void a_plan_that_does_not_add_up_is_refused_before_anything_is_reserved(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(unsound); i++) {
		struct fake_ask *a = get(RV_GET_CHUNKED);

		fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), LEASE, unsound[i].total_len,
				 unsound[i].chunk_size, unsound[i].chunk_count);
		assert_int_equal(outcome(a).rc, -EPROTO);
		expect_detach(LEASE);
	}
	assert_int_equal(w.grow.asked, 0);
	assert_int_equal(w.calls.started[RV_PEER_PULL], 0);
}

/* A limit of the asker: what is longer is released, so that the owner frees it, and not fetched. */
static const struct {
	uint64_t max_len;
	int rc;
} limits[] = {{0, 0}, {LEN, 0}, {LEN - 1, -EMSGSIZE}, {1, -EMSGSIZE}};

static void a_payload_over_the_limit_is_released_and_not_fetched(void **state)
{
	static const enum rv_get_path by[] = {RV_GET_CHUNKED, RV_GET_ANY};

	(void)state;
	for (size_t i = 0; i < 2 * RV_ARRAY_NR(limits); i++) {
		struct rv_msg_get m = {
			.engine = &w.engine,
			.handle = {FAKE_OWNER, 64},
			.path = by[i % 2],
			.deadline_ns = fake_now_ns + DEADLINE,
			.max_len = limits[i / 2].max_len,
			.lease_ns = RV_MS(1500),
		};
		struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get, &m, sizeof(m));
		unsigned asked = w.grow.asked;

		assert_int_equal(call(RV_PEER_ACQUIRE)->lease_ms, 1500);
		if (i % 2)
			answer_rdma(LEASE_MS);
		else
			answer_ready(LEASE);
		if (limits[i / 2].rc) {
			assert_int_equal(call(RV_PEER_RELEASE)->lease_id, LEASE);
			answer(RV_PEER_RELEASE, 0);
			assert_int_equal(w.grow.asked, asked);
			assert_null(fake_fabric_first(&w.fabric));
			assert_int_equal(w.calls.started[RV_PEER_METADATA],
					 0); /* it was not asked first */
		} else if (i % 2) {
			complete(0);
		} else {
			answer_pull();
		}
		m = outcome(a);
		assert_int_equal(m.rc, limits[i / 2].rc);
		drop(&m);
	}
}

static const int call_failures[] = {-ENOENT,    -EREMOTEIO, -EHOSTUNREACH, -ECONNRESET,
				    -ETIMEDOUT, -EPROTO,    -EAGAIN};

static void a_failed_acquire_is_told_in_the_peers_words(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(call_failures); i++) {
		struct fake_ask *a = get(RV_GET_ANY);
		struct rv_msg_get m;

		snprintf(call(RV_PEER_ACQUIRE)->text, RV_PEER_TEXT, "owner: words %zu", i);
		answer(RV_PEER_ACQUIRE, call_failures[i]);
		m = outcome(a);
		assert_int_equal(m.rc, call_failures[i]);
		assert_int_equal(m.text[strlen("owner: words ")], '0' + (int)i);
		assert_null(m.block);
	}
	assert_int_equal(w.calls.started[RV_PEER_DETACH], 0); /* there was no lease */
}

static void a_failed_pull_detaches_and_gives_the_destination_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(call_failures); i++) {
		struct fake_ask *a = get(RV_GET_CHUNKED);

		answer_ready(LEASE);
		answer(RV_PEER_PULL, call_failures[i]);
		assert_int_equal(outcome(a).rc, call_failures[i]);
		assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
		expect_detach(LEASE);
	}
}

static void no_memory_at_all_is_an_error_with_a_detach(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_msg_get m;

	(void)state;
	w.serve_growths = false;
	answer_ready(LEASE);
	fake_grow_refuse(&w.grow, -ENOSPC); /* registered */
	fake_grow_refuse(&w.grow, -ENOSPC); /* plain */
	m = outcome(a);
	assert_int_equal(m.rc, -ENOSPC);
	assert_non_null(strstr(m.text, "plain_bytes_budget"));
	expect_detach(LEASE);
	assert_int_equal(paths(), 0); /* chunks were asked for, and no label is for them */
}

static void chunks_land_in_plain_memory_where_registered_is_not_to_be_had(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_msg_get m;

	(void)state;
	w.serve_growths = false;
	answer_ready(LEASE);
	fake_grow_refuse(&w.grow, -ENOSPC);
	fake_grow_serve(&w.grow);
	answer_pull();
	m = outcome(a);
	assert_bytes(&m, remote);
	assert_int_equal(m.block->arena->cls.kind, RV_ARENA_PLAIN);
	drop(&m);
}

/* RDMA. */

static void an_rdma_get_brings_the_bytes_and_the_lease(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);
	struct rv_msg_get m;

	(void)state;
	assert_int_equal(c->offer, RV_PEER_OFFER_UCX);
	answer_rdma(LEASE_MS);
	assert_int_equal(w.fabric.gets, 1);
	assert_int_equal(fake_fabric_first(&w.fabric)->worker, FAKE_OWNER);
	assert_int_equal(fake_fabric_first(&w.fabric)->remote_addr, ADDR);
	assert_int_equal(fake_fabric_first(&w.fabric)->key_len, 12);
	fake_now_ns += RV_MS(10);
	complete(0);
	m = outcome(a);
	assert_bytes(&m, remote);
	assert_int_equal(m.took, RV_PATH_RDMA);
	assert_int_equal(m.lease_id, LEASE);
	assert_true(rv_arena_registered(m.block->arena));
	assert_int_equal(path(RV_PATH_OK), 1);
	assert_int_equal(paths(), 1);
	assert_int_equal(rv_counter_get(&w.engine.stats.get_sum_ns), RV_MS(10));
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 0); /* a fast one needs none */
	assert_int_equal(w.calls.started[RV_PEER_DETACH], 0);
	drop(&m);
	fake_engine_advance(&w, RV_SEC(60)); /* no timer is left behind */
	assert_int_equal(w.calls.started[RV_PEER_RENEW], 0);
}

static uint32_t reads_by_17(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	(void)f;
	(void)reactor;
	return worker == FAKE_OWNER ? 17 : 0;
}

static void the_queue_pair_that_was_offered_is_the_one_that_reads(void **state)
{
	struct fake_ask *a;
	struct rv_msg_get m;

	(void)state;
	w.fabric.ops.reads_by = reads_by_17;
	a = get(RV_GET_CHUNKED);
	assert_int_equal(call(RV_PEER_ACQUIRE)->offer_qp, 0);
	answer(RV_PEER_ACQUIRE, -EREMOTEIO);
	m = outcome(a);
	assert_int_equal(m.rc, -EREMOTEIO);
	a = get(RV_GET_ANY);
	assert_int_equal(call(RV_PEER_ACQUIRE)->offer_qp, 17);
	answer_rdma(LEASE_MS);
	assert_int_equal(fake_fabric_first(&w.fabric)->qp, 17);
	complete(0);
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
}

/* Raw reads. */

static struct fake_ask *get_raw(struct rv_raw *raw)
{
	struct rv_msg_get m = {.engine = &w.engine,
			       .handle = {FAKE_OWNER, 64},
			       .path = RV_GET_RDMA,
			       .deadline_ns = RV_NEVER,
			       .uid = ALICE,
			       .raw = raw,
			       .rc = 1};
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get, &m, sizeof(m));

	fake_engine_run(&w);
	answer_rdma(60000);
	return a;
}

static void raw_reads_go_on_under_one_lease_and_give_everything_back(void **state)
{
	uint8_t bytes[LEN];
	uint64_t began[5], ended[5];
	struct rv_raw raw = {.iterations = 5,
			     .depth = 2,
			     .bytes = bytes,
			     .began_ns = began,
			     .ended_ns = ended};
	struct fake_ask *a = get_raw(&raw);
	struct rv_msg_get m;

	(void)state;
	for (unsigned i = 0; i < 5; i++) {
		assert_false(a->back);
		assert_int_equal(w.fabric.outstanding_nr, i < 4 ? 2 : 1);
		assert_int_equal(fake_fabric_first(&w.fabric)->remote_addr, ADDR);
		fake_now_ns += RV_US(10);
		complete(0);
	}
	m = outcome(a);
	assert_int_equal(m.rc, 0);
	assert_null(m.block);
	assert_int_equal(m.lease_id, 0);
	assert_int_equal(w.fabric.gets, 5);
	assert_int_equal(raw.done_nr, 5);
	assert_memory_equal(bytes, remote, LEN);
	assert_int_equal(raw.last_ns - raw.first_ns, RV_US(50));
	assert_int_equal(began[0], began[1]);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(ended[i] - raw.first_ns, RV_US(10) * (i + 1));
	assert_int_equal(w.calls.started[RV_PEER_ACQUIRE], 1);
	expect_detach(LEASE);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 0);
}

static void a_raw_read_that_fails_ends_them_all_and_none_falls_back(void **state)
{
	struct rv_raw raw = {.iterations = 100, .depth = 3};
	struct fake_ask *a = get_raw(&raw);
	struct rv_msg_get m;

	(void)state;
	complete(0);
	complete(-EPROTO);
	assert_false(a->back); /* the device still writes for the others */
	complete(0);
	complete(-ECONNRESET);
	m = outcome(a);
	assert_int_equal(m.rc, -EPROTO);
	assert_string_equal(m.text, "a read failed: protocol violation");
	expect_detach(LEASE);
	assert_int_equal(w.fabric.gets, 4);
	assert_int_equal(w.calls.started[RV_PEER_ACQUIRE], 1);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
}

static void raw_reads_that_stall_are_late_and_touch_their_asker_no_more(void **state)
{
	struct rv_raw *raw = calloc(1, sizeof(*raw));
	struct fake_ask *a;
	struct rv_msg_get m;

	(void)state;
	assert_non_null(raw);
	raw->iterations = 100;
	raw->depth = 2;
	a = get_raw(raw);
	fake_engine_advance(&w, RV_SEC(4));
	complete(0);
	fake_engine_advance(&w, RV_SEC(4)); /* its deadline starts anew with each read */
	assert_false(a->back);
	fake_engine_advance(&w, RV_SEC(2));
	m = outcome(a);
	assert_int_equal(m.rc, -ETIMEDOUT);
	assert_int_equal(raw->done_nr, 1);
	free(raw);
	complete(0);
	assert_int_equal(w.fabric.gets, 3); /* none is begun any more */
	complete(0);
	expect_detach(LEASE);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 0);
}

/* What is offered, and what is counted when nothing is. */
static const struct {
	bool no_fabric, off;
	enum rv_peer_state state;
	enum rv_get_path path;
	unsigned offer;
	enum rv_path_reason reason; /* RV_PATH_REASONS: nothing is counted yet */
} offers[] = {
	{false, false, RV_PEER_UP, RV_GET_ANY, RV_PEER_OFFER_UCX, RV_PATH_REASONS},
	{false, false, RV_PEER_UP, RV_GET_RDMA, RV_PEER_OFFER_UCX, RV_PATH_REASONS},
	{false, false, RV_PEER_UP, RV_GET_CHUNKED, 0, RV_PATH_REASONS},
	{false, false, RV_PEER_UNKNOWN, RV_GET_ANY, 0, RV_PATH_NO_OFFER},
	{false, false, RV_PEER_WIRING, RV_GET_ANY, 0, RV_PATH_NO_OFFER},
	{false, false, RV_PEER_FAILED, RV_GET_ANY, 0, RV_PATH_NO_OFFER},
	{false, true, RV_PEER_UP, RV_GET_ANY, 0, RV_PATH_KILL_SWITCH},
	{true, false, RV_PEER_UP, RV_GET_ANY, 0, RV_PATH_NOT_CONFIGURED},
	{true, true, RV_PEER_UP, RV_GET_ANY, 0, RV_PATH_NOT_CONFIGURED},
};

static void an_offer_is_made_of_what_is_up(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(offers); i++) {
		struct fake_ask *a;

		start_with(&(struct fake_engine_conf){.no_fabric = offers[i].no_fabric});
		w.fabric.state = (struct fake_script){.then = (int)offers[i].state};
		atomic_store(&w.set.rdma_off, offers[i].off);
		a = get(offers[i].path);
		assert_int_equal(call(RV_PEER_ACQUIRE)->offer, offers[i].offer);
		assert_int_equal(paths(), offers[i].reason != RV_PATH_REASONS);
		if (offers[i].reason != RV_PATH_REASONS)
			assert_int_equal(path(offers[i].reason), 1);
		answer(RV_PEER_ACQUIRE, -ENOENT);
		outcome(a);
		if (i + 1 < RV_ARRAY_NR(offers))
			fake_engine_fini(&w);
	}
}

/* The one fallback. Each way into it: what went wrong, and its label. */

static void bad_descriptor(void)
{
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);

	c->answer = RV_ANSWER_RDMA;
	c->rdma.lease_id = LEASE;
	c->rdma.lease_timeout_ms = LEASE_MS;
	c->rdma.desc_len = 3;
	fake_calls_answer(&w.calls, c, 0);
	fake_engine_run(&w);
}

static void other_backend(void)
{
	struct rv_peer_call *c = call(RV_PEER_ACQUIRE);

	fake_calls_rdma(&w.calls, c, LEASE, ADDR, LEN, LEASE_MS);
	c->rdma.desc[0] = RV_BACKEND_VERBS;
	fake_engine_run(&w);
}

static void length_beyond_reason(void)
{
	fake_calls_rdma(&w.calls, call(RV_PEER_ACQUIRE), LEASE, ADDR, 1ULL << 63, LEASE_MS);
	fake_engine_run(&w);
}

static void no_budget(void)
{
	w.serve_growths = false;
	answer_rdma(LEASE_MS);
	fake_grow_refuse(&w.grow, -ENOSPC);
	w.serve_growths = true;
	fake_engine_run(&w);
}

static void no_pool(void)
{
	w.serve_growths = false;
	answer_rdma(LEASE_MS);
	fake_grow_refuse(&w.grow, -ENOMEM);
	w.serve_growths = true;
	fake_engine_run(&w);
}

static void key_refused(void)
{
	w.fabric.get_rc = (struct fake_script){.then = -EPROTO};
	answer_rdma(LEASE_MS);
}

static void not_posted(void)
{
	w.fabric.get_rc = (struct fake_script){.then = -EAGAIN};
	answer_rdma(LEASE_MS);
}

static void endpoint_failed(void)
{
	answer_rdma(LEASE_MS);
	fake_fabric_write_half(&w.fabric);
	complete(-ECONNRESET);
}

static const struct failure {
	void (*happens)(void);
	enum rv_path_reason label;
	int rdma_rc; /* with --path rdma, where there is no fallback */
} failures[] = {
	{bad_descriptor, RV_PATH_DECODE_ERROR, -EIO},
	{other_backend, RV_PATH_DECODE_ERROR, -EIO},
	{length_beyond_reason, RV_PATH_DECODE_ERROR, -EIO},
	{no_budget, RV_PATH_BUDGET, -ENOSPC},
	{no_pool, RV_PATH_POOL_EXHAUSTED, -ENOSPC},
	{key_refused, RV_PATH_DECODE_ERROR, -EIO},
	{not_posted, RV_PATH_GET_FAILED, -EIO},
	{endpoint_failed, RV_PATH_GET_FAILED, -EIO},
};

static void every_failure_detaches_and_falls_back_to_chunks_once(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(failures); i++) {
		struct fake_ask *a;
		struct rv_msg_get m;

		setup(NULL);
		a = get(RV_GET_ANY);
		failures[i].happens();
		assert_false(a->back);
		assert_int_equal(w.calls.started[RV_PEER_ACQUIRE], 1); /* the detach comes first */
		expect_detach(LEASE);
		assert_int_equal(call(RV_PEER_ACQUIRE)->offer, 0);
		answer_ready(LEASE_2);
		answer_pull();
		m = outcome(a);
		assert_bytes(&m, remote);
		assert_int_equal(m.took, RV_PATH_CHUNKED);
		assert_int_equal(m.lease_id, LEASE_2);
		assert_int_equal(path(failures[i].label), 1);
		assert_int_equal(paths(), 1);
		drop(&m);
		if (i + 1 < RV_ARRAY_NR(failures))
			fake_engine_fini(&w);
	}
}

static void with_path_rdma_a_failure_is_an_error(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(failures); i++) {
		struct fake_ask *a;
		struct rv_msg_get m;

		setup(NULL);
		a = get(RV_GET_RDMA);
		failures[i].happens();
		m = outcome(a);
		assert_int_equal(m.rc, failures[i].rdma_rc);
		assert_non_null(strstr(m.text, rv_path_reason_name(failures[i].label)));
		assert_int_equal(path(failures[i].label), 1);
		expect_detach(LEASE);
		assert_int_equal(w.calls.started[RV_PEER_ACQUIRE], 1);
		if (i + 1 < RV_ARRAY_NR(failures))
			fake_engine_fini(&w);
	}
}

static void a_second_descriptor_is_an_error(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);

	(void)state;
	endpoint_failed();
	expect_detach(LEASE);
	fake_calls_rdma(&w.calls, call(RV_PEER_ACQUIRE), LEASE_2, ADDR, LEN, LEASE_MS);
	assert_int_equal(outcome(a).rc, -EPROTO);
	expect_detach(LEASE_2);
	assert_int_equal(w.calls.started[RV_PEER_ACQUIRE], 2);
	assert_int_equal(w.fabric.gets, 1);
}

static void a_descriptor_without_an_offer_is_an_error(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);

	(void)state;
	answer_rdma(LEASE_MS);
	assert_int_equal(outcome(a).rc, -EPROTO);
	expect_detach(LEASE);
	assert_int_equal(w.fabric.gets, 0);
}

static void a_fallback_that_fails_is_an_error(void **state)
{
	struct fake_ask *a = get(RV_GET_ANY);

	(void)state;
	endpoint_failed();
	expect_detach(LEASE);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	assert_int_equal(outcome(a).rc, -ENOENT);
}

static void chunks_where_rdma_was_insisted_on_are_an_error(void **state)
{
	struct fake_ask *a = get(RV_GET_RDMA);

	(void)state;
	answer_ready(LEASE);
	assert_int_equal(outcome(a).rc, -ENOTSUP);
	expect_detach(LEASE);
}

/* Waiting for the endpoint, with --path rdma. */

static void path_rdma_waits_until_the_endpoint_is_up(void **state)
{
	struct fake_ask *a;
	struct rv_msg_get m;

	(void)state;
	w.fabric.state = (struct fake_script){
		.nr = 4,
		.outcome = {RV_PEER_WIRING, RV_PEER_WIRING, RV_PEER_FAILED, RV_PEER_WIRING},
		.then = RV_PEER_UP,
	};
	a = get(RV_GET_RDMA);
	for (unsigned i = 0; i < 4; i++) {
		assert_null(fake_calls_find(&w.calls, RV_PEER_ACQUIRE));
		fake_engine_advance(&w, RV_MS(1));
	}
	assert_int_equal(call(RV_PEER_ACQUIRE)->offer, RV_PEER_OFFER_UCX);
	answer_rdma(LEASE_MS);
	complete(0);
	m = outcome(a);
	assert_bytes(&m, remote);
	assert_int_equal(paths(), 1);
	drop(&m);
}

/* It has no deadline of its own, and nobody but the shutdown would end it. */
static void a_shutdown_ends_a_get_that_waits_for_its_endpoint(void **state)
{
	struct fake_ask *a;
	struct rv_msg_get m;

	(void)state;
	w.fabric.state = (struct fake_script){.then = RV_PEER_WIRING};
	a = get(RV_GET_RDMA);
	fake_engine_advance(&w, RV_MS(1));
	rv_gets_abandon(&w.engine);
	m = outcome(a);
	assert_int_equal(m.rc, -ESHUTDOWN);
	assert_non_null(strstr(m.text, "shutting down"));
}

static void path_rdma_waits_no_longer_than_its_deadline(void **state)
{
	struct fake_ask *a;
	struct rv_msg_get m;

	(void)state;
	w.fabric.state = (struct fake_script){.then = RV_PEER_WIRING};
	a = get_of((struct rv_handle){FAKE_OWNER, 64}, RV_GET_RDMA, fake_now_ns + RV_MS(50), ALICE);
	for (unsigned i = 0; i < 49; i++)
		fake_engine_advance(&w, RV_MS(1));
	assert_false(a->back);
	fake_engine_advance(&w, RV_MS(1));
	m = outcome(a);
	assert_int_equal(m.rc, -ETIMEDOUT);
	assert_true(m.text[0]);
	assert_int_equal(w.calls.started[RV_PEER_ACQUIRE], 0);
}

static const struct {
	bool no_fabric, off;
	enum rv_path_reason reason;
	int rc;
	const char *text;
} hopeless[] = {
	{false, false, RV_PATH_NO_OFFER, -EHOSTUNREACH, "peer-add"},
	{false, true, RV_PATH_KILL_SWITCH, -ENOTSUP, "kill switch"},
	{true, false, RV_PATH_NOT_CONFIGURED, -ENOTSUP, "ucx.enabled"},
};

static void path_rdma_that_cannot_be_says_why(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(hopeless); i++) {
		struct rv_msg_get m;

		start_with(&(struct fake_engine_conf){.no_fabric = hopeless[i].no_fabric});
		w.fabric.state = (struct fake_script){.then = RV_PEER_UNKNOWN};
		atomic_store(&w.set.rdma_off, hopeless[i].off);
		m = outcome(get(RV_GET_RDMA));
		assert_int_equal(m.rc, hopeless[i].rc);
		assert_non_null(strstr(m.text, hopeless[i].text));
		assert_int_equal(path(hopeless[i].reason), 1);
		if (i + 1 < RV_ARRAY_NR(hopeless))
			fake_engine_fini(&w);
	}
}

/* Limits. */

static void too_many_gets_are_refused_and_nothing_is_lost(void **state)
{
	struct fake_ask *a[2];

	(void)state;
	finish(NULL);
	start_with(&(struct fake_engine_conf){.max_gets = 2});
	a[0] = get(RV_GET_CHUNKED);
	a[1] = get_of((struct rv_handle){OTHER, 64}, RV_GET_CHUNKED, RV_NEVER, ALICE);
	assert_int_equal(outcome(get(RV_GET_CHUNKED)).rc, -EAGAIN);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	outcome(a[0]);
	outcome(a[1]);
	a[0] = get(RV_GET_CHUNKED); /* there is room again */
	answer(RV_PEER_ACQUIRE, -ENOENT);
	assert_int_equal(outcome(a[0]).rc, -ENOENT);
}

static void one_owner_takes_half_of_the_gets_at_most(void **state)
{
	struct fake_ask *a[4];
	struct rv_msg_get m;

	(void)state;
	finish(NULL);
	start_with(&(struct fake_engine_conf){.max_gets = 6});
	for (unsigned i = 0; i < 3; i++)
		a[i] = get(RV_GET_CHUNKED);
	m = outcome(get(RV_GET_CHUNKED));
	assert_int_equal(m.rc, -EAGAIN);
	assert_non_null(strstr(m.text, "from that owner"));
	a[3] = get_of((struct rv_handle){OTHER, 64}, RV_GET_CHUNKED, RV_NEVER, ALICE);
	for (unsigned i = 0; i < 4; i++)
		answer(RV_PEER_ACQUIRE, -ENOENT);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(outcome(a[i]).rc, -ENOENT);
	a[0] = get(RV_GET_CHUNKED);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	outcome(a[0]);
	assert_int_equal(w.engine.load_by_worker.nr, 0);
}

static void an_owner_whose_late_reads_hold_much_is_read_in_chunks(void **state)
{
	struct fake_ask *a;

	(void)state;
	finish(NULL);
	start_with(&(struct fake_engine_conf){.late_max = LEN - 1});
	a = slow_get();
	fake_engine_advance(&w, DEADLINE);
	assert_int_equal(outcome(a).rc, -ETIMEDOUT);
	while (fake_calls_find(&w.calls, RV_PEER_RENEW))
		answer(RV_PEER_RENEW, -ETIMEDOUT);
	a = get(RV_GET_ANY);
	assert_false(call(RV_PEER_ACQUIRE)->offer);
	assert_int_equal(rv_counter_get(&w.engine.stats.path[RV_PATH_POOL_EXHAUSTED]), 1);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	outcome(a);
	complete(-ECONNRESET);
	expect_detach(LEASE);
	a = get(RV_GET_ANY);
	assert_true(call(RV_PEER_ACQUIRE)->offer);
	answer(RV_PEER_ACQUIRE, -ENOENT);
	outcome(a);
}

static void without_a_cell_a_get_is_refused(void **state)
{
	struct rv_list taken, *it;
	struct rv_cell *c;
	struct rv_msg_get m = {.engine = &w.engine,
			       .handle = {FAKE_OWNER, 64},
			       .deadline_ns = RV_NEVER};
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get, &m, sizeof(m));

	(void)state;
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	fake_engine_run(&w);
	assert_true(a->back);
	m = *(struct rv_msg_get *)fake_ask_body(a);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
	fake_ask_end(&w, a);
	assert_int_equal(m.rc, -EAGAIN);
	assert_true(m.text[0]);
}

static void a_draining_engine_refuses_new_gets_and_finishes_those_under_way(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_msg_get m;

	(void)state;
	w.engine.draining = true;
	assert_int_equal(outcome(get(RV_GET_CHUNKED)).rc, -ESHUTDOWN);
	answer_ready(LEASE);
	answer_pull();
	m = outcome(a);
	assert_bytes(&m, remote);
	drop(&m);
}

static void abandoning_forces_every_running_get_to_complete(void **state)
{
	struct fake_ask *a = slow_get(), *b = slow_get(), *c = get(RV_GET_CHUNKED);
	struct rv_msg_stop stop = {.engine = &w.engine, .step = RV_STOP_ABANDON};

	(void)state;
	fake_ask(&w, rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(w.fabric.abandons, 2);
	assert_int_equal(stop.busy_gets, 3);
	complete(-ECONNRESET);
	complete(-ECONNRESET);
	for (unsigned i = 0; i < 2; i++)
		expect_detach(LEASE);
	while (fake_calls_find(&w.calls, RV_PEER_ACQUIRE))
		answer(RV_PEER_ACQUIRE, -ECONNRESET);
	assert_int_equal(outcome(a).rc, -ECONNRESET);
	assert_int_equal(outcome(b).rc, -ECONNRESET);
	assert_int_equal(outcome(c).rc, -ECONNRESET);
}

static void a_stopped_pool_ends_a_get_that_waits_for_memory(void **state)
{
	struct fake_ask *a = get(RV_GET_CHUNKED);
	struct rv_msg_stop stop = {.engine = &w.engine, .step = RV_STOP_MEMORY};

	(void)state;
	w.serve_growths = false;
	answer_ready(LEASE);
	fake_ask(&w, rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(stop.busy_arenas, 1);
	assert_int_equal(outcome(a).rc, -ESHUTDOWN);
	expect_detach(LEASE);
	fake_grow_refuse(&w.grow, -ENOMEM);
}

static void many_gets_in_a_random_order_leave_nothing(void **state)
{
	struct fake_ask *a[12] = {NULL};
	uint64_t rng = 99;

	(void)state;
	for (unsigned step = 0; step < 5000; step++) {
		unsigned i;
		struct rv_peer_call *c;

		rng = rng * 6364136223846793005u + 1442695040888963407u;
		i = (unsigned)(rng >> 33) % 12;
		if (!a[i])
			a[i] = get((rng >> 40) % 3 ? RV_GET_ANY : RV_GET_CHUNKED);
		else if (a[i]->back) {
			struct rv_msg_get m = outcome(a[i]);

			if (!m.rc)
				assert_memory_equal(rv_block_ptr(m.block), remote, m.len);
			drop(&m);
			a[i] = NULL;
		}
		if ((rng >> 45) % 3 == 0 && (c = fake_calls_find(&w.calls, RV_PEER_ACQUIRE))) {
			if ((rng >> 48) % 5 == 0)
				fake_calls_answer(&w.calls, c, -ECONNRESET);
			else if (c->offer)
				fake_calls_rdma(&w.calls, c, 1 + (rng >> 20), ADDR, LEN, LEASE_MS);
			else
				fake_calls_ready(&w.calls, c, 1 + (rng >> 20), LEN, CHUNK, 1);
		}
		if ((rng >> 50) % 3 == 0 && (c = fake_calls_find(&w.calls, RV_PEER_PULL))) {
			memcpy(c->dst, remote, LEN);
			fake_calls_answer(&w.calls, c, (rng >> 52) % 4 ? 0 : -ETIMEDOUT);
		}
		if ((c = fake_calls_find(&w.calls, RV_PEER_DETACH)))
			fake_calls_answer(&w.calls, c, 0);
		if ((rng >> 54) % 2 && (c = fake_calls_find(&w.calls, RV_PEER_RENEW)))
			fake_calls_answer(&w.calls, c, 0);
		if ((rng >> 55) % 3 == 0 && fake_fabric_first(&w.fabric))
			fake_fabric_complete(&w.fabric, (rng >> 57) % 4 ? 0 : -ECONNRESET);
		fake_engine_advance(&w, RV_MS((rng >> 58) * 2));
	}
	for (unsigned round = 0; round < 200; round++) {
		while (w.calls.open_nr) {
			fake_calls_answer(
				&w.calls,
				(void *)RV_LIST_ENTRY(w.calls.open.next, struct rv_cell, link)
					->body,
				-ECONNRESET);
			fake_engine_run(&w);
		}
		while (fake_fabric_first(&w.fabric))
			complete(-ECONNRESET);
	}
	for (unsigned i = 0; i < 12; i++) {
		if (a[i]) {
			struct rv_msg_get m = outcome(a[i]);

			drop(&m);
		}
	}
	assert_true(rv_counter_get(&w.engine.stats.operation[RV_OP_GET][0]) > 100);
	assert_true(rv_counter_get(&w.engine.stats.operation[RV_OP_GET][1]) > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GET(a_chunked_get_brings_the_bytes_and_the_lease),
		GET(nothing_is_fetched_without_a_pull),
		GET(a_plan_that_does_not_add_up_is_refused_before_anything_is_reserved),
		GET(a_payload_over_the_limit_is_released_and_not_fetched),
		GET(a_failed_acquire_is_told_in_the_peers_words),
		GET(a_failed_pull_detaches_and_gives_the_destination_back),
		GET(no_memory_at_all_is_an_error_with_a_detach),
		GET(chunks_land_in_plain_memory_where_registered_is_not_to_be_had),
		GET(an_rdma_get_brings_the_bytes_and_the_lease),
		GET(the_queue_pair_that_was_offered_is_the_one_that_reads),
		OWN(an_offer_is_made_of_what_is_up),
		OWN(every_failure_detaches_and_falls_back_to_chunks_once),
		OWN(with_path_rdma_a_failure_is_an_error),
		GET(a_second_descriptor_is_an_error),
		GET(a_descriptor_without_an_offer_is_an_error),
		GET(a_fallback_that_fails_is_an_error),
		GET(chunks_where_rdma_was_insisted_on_are_an_error),
		GET(path_rdma_waits_until_the_endpoint_is_up),
		GET(a_shutdown_ends_a_get_that_waits_for_its_endpoint),
		GET(path_rdma_waits_no_longer_than_its_deadline),
		OWN(path_rdma_that_cannot_be_says_why),
		GET(raw_reads_go_on_under_one_lease_and_give_everything_back),
		GET(a_raw_read_that_fails_ends_them_all_and_none_falls_back),
		GET(raw_reads_that_stall_are_late_and_touch_their_asker_no_more),
		GET(too_many_gets_are_refused_and_nothing_is_lost),
		GET(one_owner_takes_half_of_the_gets_at_most),
		GET(an_owner_whose_late_reads_hold_much_is_read_in_chunks),
		GET(without_a_cell_a_get_is_refused),
		GET(a_draining_engine_refuses_new_gets_and_finishes_those_under_way),
		GET(abandoning_forces_every_running_get_to_complete),
		GET(a_stopped_pool_ends_a_get_that_waits_for_memory),
		GET(many_gets_in_a_random_order_leave_nothing),
	};

	return cmocka_run_group_tests_name("get", tests, NULL, NULL);
}
