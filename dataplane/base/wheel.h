/*
 * wheel.h - deadlines by the thousand: one hashed timing wheel a reactor, O(1) to add and to cancel.
 *
 *   tick = 1 ms, 4096 buckets; a node sits in bucket ceil(deadline / tick) mod 4096, so it is never handed
 *   out early and at most a tick late. A deadline farther away than one turn stays in its bucket and is
 *   looked at again each turn.
 *
 * @thread owner only   @cost O(1); rv_wheel_pop O(nodes in the buckets passed)
 */
#ifndef RV_DATAPLANE_BASE_WHEEL_H
#define RV_DATAPLANE_BASE_WHEEL_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/list.h"

#define RV_WHEEL_BUCKETS 4096u
#define RV_WHEEL_TICK_NS 1000000u

/** Embedded in whatever has a deadline. Zeroed memory is a node that is not armed. */
struct rv_timer {
	struct rv_list link;
	uint64_t deadline_ns;
	uint32_t bucket;
	bool armed;
};

struct rv_wheel {
	struct rv_list bucket[RV_WHEEL_BUCKETS];
	uint64_t occupied[RV_WHEEL_BUCKETS / 64];
	struct rv_list due;
	uint64_t tick; /* the last tick looked at */
	uint64_t armed_nr;
};

/** Start an empty wheel at @now_ns. */
void rv_wheel_init(struct rv_wheel *w, uint64_t now_ns);

/** Arm @t (re-arm if armed) for @deadline_ns; RV_NEVER disarms. */
void rv_wheel_add(struct rv_wheel *w, struct rv_timer *t, uint64_t deadline_ns);

/** Disarm; harmless when not armed. */
void rv_wheel_del(struct rv_wheel *w, struct rv_timer *t);

/** One timer whose deadline is at or before @now_ns, disarmed; NULL when there is none. */
struct rv_timer *rv_wheel_pop(struct rv_wheel *w, uint64_t now_ns);

/** No timer is due before this time (a lower bound); RV_NEVER when none is armed. */
uint64_t rv_wheel_next_ns(const struct rv_wheel *w);

#endif
