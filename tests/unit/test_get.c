/* The consumer side: every way a get can go, and that nothing is left of it. */
#include "dataplane/engine/get.h"

#include <errno.h>
#include <unistd.h>

#include "dataplane/rendezvous/descriptor.h"
#include "tests/unit/forked.h"
#include "tests/unit/get_fixture.h"

#define OTHER     99u
#define DEADLINE  RV_SEC(20)
#define CALL_TIME RV_SEC(5) /* fake_engine's call_timeout_ns */

static int setup(void **state)
{
	(void)state;
	start_with(&(struct fake_engine_conf){0});
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

static uint64_t paths(void)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		sum += path((enum rv_path_reason)r);
	return sum;
}

static struct fake_ask *get_of(struct rv_handle h, enum rv_get_path p, uint64_t deadline_ns,
			       uid_t uid)
{
	struct rv_msg_get m = {.engine = &w.engine,
			       .handle = h,
			       .path = p,
			       .deadline_ns = deadline_ns,
			       .uid = uid,
			       .rc = 1};
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get, &m, sizeof(m));

	fake_engine_run(&w);
	return a;
}

/* A get of the owner's slot, with twenty seconds to do it. */
static struct fake_ask *get(enum rv_get_path p)
{
	return get_of((struct rv_handle){FAKE_OWNER, 64}, p, fake_now_ns + DEADLINE, ALICE);
}

static void assert_bytes(const struct rv_msg_get *m, const void *want)
{
	assert_int_equal(m->rc, 0);
	assert_non_null(m->block);
	assert_memory_equal(rv_block_ptr(m->block), want, m->len);
}

static void answer_ready(uint64_t lease)
{
	fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), lease, LEN, CHUNK, 1);
	fake_engine_run(&w);
}

static void answer_rdma(uint64_t timeout_ms)
{
	fake_calls_rdma(&w.calls, call(RV_PEER_ACQUIRE), LEASE, ADDR, LEN, timeout_ms);
	fake_engine_run(&w);
}

static void answer_pull(void)
{
	struct rv_peer_call *c = call(RV_PEER_PULL);

	memcpy(c->dst, remote, c->total_len);
	fake_calls_answer(&w.calls, c, 0);
	fake_engine_run(&w);
}

static void complete(int rc)
{
	fake_fabric_complete(&w.fabric, rc);
	fake_engine_run(&w);
}

/* Detach without an answer is what ends every get that failed with a lease. */
static void expect_detach(uint64_t lease)
{
	struct rv_peer_call *c = call(RV_PEER_DETACH);

	assert_int_equal(c->lease_id, lease);
	assert_int_equal(c->handle.worker, FAKE_OWNER);
	assert_false(c->sync);
	fake_calls_answer(&w.calls, c, 0);
	fake_engine_run(&w);
}

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

/* Leases while a GET runs. */

static struct fake_ask *slow_get(void)
{
	struct fake_ask *a = get(RV_GET_ANY);

	answer_rdma(LEASE_MS);
	return a;
}

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

static bool a_copy_without_memory(void)
{
	uint64_t slot;
	struct fake_ask *a;

	setup(NULL);
	slot = fake_stage(&w, LEN, 1, true, ALICE);
	w.serve_growths = false;
	a = local_get(slot, BOB, RV_NEVER);
	fake_grow_refuse(&w.grow, -ENOSPC);
	if (w.grow.pending_nr)
		fake_grow_refuse(&w.grow, -ENOSPC);
	fake_engine_run(&w);
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

	setup(NULL);
	slot = fake_stage(&w, LEN, 1, true, ALICE);
	w.serve_growths = false;
	a = local_get(slot, BOB, RV_NEVER);
	fake_grow_refuse(&w.grow, -ENOSPC);
	if (w.grow.pending_nr)
		fake_grow_refuse(&w.grow, -ENOSPC);
	fake_engine_run(&w);
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

#define GET(t) cmocka_unit_test_setup_teardown(t, setup, finish)
#define OWN(t) cmocka_unit_test_teardown(t, finish)

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
		GET(a_slow_get_renews_every_half_lease_with_proof),
		GET(a_short_lease_is_renewed_every_five_milliseconds_at_most),
		GET(a_lease_without_deadline_is_not_renewed_and_never_lost),
		OWN(bytes_are_given_out_only_with_a_lease_that_is_proven),
		GET(a_second_renewal_counts_though_the_first_was_told_after_it_was_sent),
		GET(a_late_ack_of_another_owners_lease_proves_nothing),
		GET(a_lost_lease_in_a_failed_get_still_falls_back),
		GET(a_slow_reservation_does_not_cost_the_lease),
		GET(without_a_cell_a_renewal_is_skipped_and_the_next_one_made),
		GET(raw_reads_go_on_under_one_lease_and_give_everything_back),
		GET(a_raw_read_that_fails_ends_them_all_and_none_falls_back),
		GET(raw_reads_that_stall_are_late_and_touch_their_asker_no_more),
		GET(a_late_get_is_answered_at_its_deadline_and_its_destination_stays_held),
		GET(a_late_get_that_completes_well_after_all_is_only_cleaned_up),
		GET(a_pull_that_is_late_is_cancelled_and_answered_when_its_cell_is_back),
		GET(a_reservation_that_is_late_is_answered_and_cleaned_up_when_it_comes),
		GET(an_acquire_carries_the_deadline_and_comes_back_by_itself),
		GET(without_a_deadline_each_step_has_a_calls_time),
		GET(without_a_deadline_a_reservation_after_a_fallback_has_its_own_time),
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
