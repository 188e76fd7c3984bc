/*
 * fake_calls.h - peers that answer when, and what, the test says.
 *
 * Started cells wait in a list. An answer is filled into the call's own body and sent home; the engine
 * sees it in its next pass.
 */
#ifndef RV_TESTS_FAKE_CALLS_H
#define RV_TESTS_FAKE_CALLS_H

#include "dataplane/interfaces/peer_calls.h"
#include "dataplane/lcore/cells.h"
#include "tests/fake/fake_script.h"

#define FAKE_OPS 8

struct fake_calls {
	struct rv_peer_calls calls;
	struct rv_port *port; /* where started cells wait */
	struct rv_list open;  /* struct rv_cell.link, oldest first */
	unsigned open_nr;
	unsigned started[FAKE_OPS]; /* by enum rv_peer_op */
	unsigned cancels;
	struct fake_script cancel_rc;
};

void fake_calls_init(struct fake_calls *f, struct rv_port *port);

/** The oldest call of this kind that waits, or NULL. */
struct rv_peer_call *fake_calls_find(const struct fake_calls *f, enum rv_peer_op op);

/** The same; the test fails when there is none. */
struct rv_peer_call *fake_calls_need(const struct fake_calls *f, enum rv_peer_op op);

/** Send a call home. What it says besides @rc the test has filled in. */
void fake_calls_answer(struct fake_calls *f, struct rv_peer_call *call, int rc);

/** Fill in and send the two answers to an acquire. */
void fake_calls_ready(struct fake_calls *f, struct rv_peer_call *call, uint64_t lease,
		      uint64_t total_len, uint32_t chunk_size, uint32_t chunk_count);
void fake_calls_rdma(struct fake_calls *f, struct rv_peer_call *call, uint64_t lease, uint64_t addr,
		     uint64_t len, uint64_t timeout_ms);

#endif
