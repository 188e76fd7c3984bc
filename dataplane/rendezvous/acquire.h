/*
 * acquire.h - the owner's decision: RDMA, or chunks and why not RDMA.
 *
 * Pure: eight facts in, one label out. The order of the checks is the specification's, because the label
 * of the first that refuses is what people read in the metric.
 */
#ifndef RV_DATAPLANE_RENDEZVOUS_ACQUIRE_H
#define RV_DATAPLANE_RENDEZVOUS_ACQUIRE_H

#include <stdbool.h>
#include <stdint.h>

/** Labels of velo_rendezvous_rdma_path_total; RV_PATH_OK is the only one with path="rdma". */
enum rv_path_reason {
	RV_PATH_OK,
	RV_PATH_NO_OFFER,
	RV_PATH_NOT_CONFIGURED,
	RV_PATH_KILL_SWITCH,
	RV_PATH_NOT_PINNED,
	RV_PATH_BELOW_MIN,
	RV_PATH_DRAINING,
	RV_PATH_BUDGET,
	RV_PATH_POOL_EXHAUSTED,
	RV_PATH_DECODE_ERROR,
	RV_PATH_GET_FAILED,
	RV_PATH_REASONS
};

const char *rv_path_reason_name(enum rv_path_reason r);

struct rv_acquire_facts {
	bool has_offer;     /* 1: the consumer sent an offer */
	bool has_registry;  /* 2: this node has a fabric */
	bool enabled;       /* 3: the kill switch is off */
	bool pinned;        /* 4: the slot is in registered memory */
	uint64_t len;       /* 5: against ... */
	uint64_t min_bytes; /*    ... rdma_min_bytes */
	bool backend_named; /* 6: the offer names a backend we serve */
	bool draining;      /* 7 */
	bool describable;   /* 8: the registration is still there and its key fits a descriptor */
};

/** @return RV_PATH_OK to answer with a descriptor; else the label, and chunks. @thread any @cost O(1) */
enum rv_path_reason rv_acquire_decide(const struct rv_acquire_facts *f);

#endif
