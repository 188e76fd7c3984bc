/*
 * get_fixture.h - a real engine that gets from a scripted owner: the slot of FAKE_OWNER's that is asked for holds `remote`,
 * and the test answers each call.
 */
#ifndef RV_TESTS_UNIT_GET_FIXTURE_H
#define RV_TESTS_UNIT_GET_FIXTURE_H

#include "dataplane/base/units.h"
#include "dataplane/engine/msg.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define LEN      RV_KIB(200)
#define ADDR     0x7000000000u
#define LEASE    4711u
#define LEASE_2  4712u
#define ALICE    1000u
#define BOB      1001u
#define CHUNK    ((uint32_t)RV_KIB(512))
#define LEASE_MS 400u

static struct fake_engine w;
static uint8_t remote[LEN];

static inline void start_with(const struct fake_engine_conf *c)
{
	memset(&w, 0, sizeof(w));
	fake_engine_init(&w, c);
	for (size_t i = 0; i < sizeof(remote); i++)
		remote[i] = (uint8_t)(i * 7 + i / 251);
	fake_fabric_remote(&w.fabric, FAKE_OWNER, ADDR, remote, sizeof(remote));
}

/** Begin a get. */
static inline struct fake_ask *start(const struct rv_msg_get *m)
{
	struct fake_ask *a = fake_ask_start(&w, rv_engine_run_get, m, sizeof(*m));

	fake_engine_run(&w);
	return a;
}

static inline struct rv_msg_get outcome(struct fake_ask *a)
{
	struct rv_msg_get m;

	fake_engine_run(&w);
	assert_true(a->back);
	m = *(struct rv_msg_get *)fake_ask_body(a);
	fake_ask_end(&w, a);
	return m;
}

/** The asker's hold goes back. */
static inline void drop(const struct rv_msg_get *m)
{
	if (m->block)
		fake_drop_block(&w, m->block);
}

/** The call of this kind that is under way. */
static inline struct rv_peer_call *call(enum rv_peer_op op)
{
	fake_engine_run(&w);
	return fake_calls_need(&w.calls, op);
}

static inline void answer(enum rv_peer_op op, int rc)
{
	fake_calls_answer(&w.calls, call(op), rc);
	fake_engine_run(&w);
}

#endif
