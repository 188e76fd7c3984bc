/*
 * get_flow.h - the steps of a get, and what the owner answers at each.
 */
#ifndef RV_TESTS_UNIT_GET_FLOW_H
#define RV_TESTS_UNIT_GET_FLOW_H

#include "tests/unit/get_fixture.h"

#define OTHER     99u
#define DEADLINE  RV_SEC(20)
#define CALL_TIME RV_SEC(5) /* fake_engine's call_timeout_ns */

static inline int setup(void **state)
{
	(void)state;
	start_with(&(struct fake_engine_conf){0});
	return 0;
}

static inline int finish(void **state)
{
	(void)state;
	fake_engine_fini(&w);
	return 0;
}

static inline uint64_t path(enum rv_path_reason r)
{
	return rv_counter_get(&w.engine.stats.path[r]);
}

static inline uint64_t paths(void)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		sum += path((enum rv_path_reason)r);
	return sum;
}

static inline struct fake_ask *get_of(struct rv_handle h, enum rv_get_path p, uint64_t deadline_ns,
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
static inline struct fake_ask *get(enum rv_get_path p)
{
	return get_of((struct rv_handle){FAKE_OWNER, 64}, p, fake_now_ns + DEADLINE, ALICE);
}

static inline void assert_bytes(const struct rv_msg_get *m, const void *want)
{
	assert_int_equal(m->rc, 0);
	assert_non_null(m->block);
	assert_memory_equal(rv_block_ptr(m->block), want, m->len);
}

static inline void answer_ready(uint64_t lease)
{
	fake_calls_ready(&w.calls, call(RV_PEER_ACQUIRE), lease, LEN, CHUNK, 1);
	fake_engine_run(&w);
}

static inline void answer_rdma(uint64_t timeout_ms)
{
	fake_calls_rdma(&w.calls, call(RV_PEER_ACQUIRE), LEASE, ADDR, LEN, timeout_ms);
	fake_engine_run(&w);
}

static inline void answer_pull(void)
{
	struct rv_peer_call *c = call(RV_PEER_PULL);

	memcpy(c->dst, remote, c->total_len);
	fake_calls_answer(&w.calls, c, 0);
	fake_engine_run(&w);
}

static inline void complete(int rc)
{
	fake_fabric_complete(&w.fabric, rc);
	fake_engine_run(&w);
}

static inline struct fake_ask *slow_get(void)
{
	struct fake_ask *a = get(RV_GET_ANY);

	answer_rdma(LEASE_MS);
	return a;
}

/* Detach without an answer is what ends every get that failed with a lease. */
static inline void expect_detach(uint64_t lease)
{
	struct rv_peer_call *c = call(RV_PEER_DETACH);

	assert_int_equal(c->lease_id, lease);
	assert_int_equal(c->handle.worker, FAKE_OWNER);
	assert_false(c->sync);
	fake_calls_answer(&w.calls, c, 0);
	fake_engine_run(&w);
}

#define GET(t) cmocka_unit_test_setup_teardown(t, setup, finish)
#define OWN(t) cmocka_unit_test_teardown(t, finish)

#endif
