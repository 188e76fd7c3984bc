/*
 * reactor.h - one thread that runs pollers and owns everything it touches.
 *
 *   pass:   inbox -> each poller's poll()
 *   idle:   after `idle_spin` without work: asleep, look again, arm, sleep in the sleeper, wake
 *
 * The clock comes from outside, and rv_reactor_step() makes one pass, so tests and the simulator run
 * reactors without threads.
 */
#ifndef RV_DATAPLANE_LCORE_REACTOR_H
#define RV_DATAPLANE_LCORE_REACTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/counter.h"
#include "dataplane/base/wheel.h"
#include "dataplane/interfaces/poller.h"
#include "dataplane/lcore/cells.h"

#define RV_REACTOR_POLLERS 16

struct rv_reactor;

/** A timer with what to do; runs on the reactor that armed it. */
struct rv_task {
	struct rv_timer timer;
	void (*fn)(struct rv_reactor *r, struct rv_task *t);
};

struct rv_reactor_conf {
	struct rv_port *port;
	uint64_t idle_spin_ns; /* spin so long before a sleep, while sleeps are short */
	bool never_sleep;      /* idle = poll */
	uint64_t (*clock)(void);
};

struct rv_reactor {
	struct rv_reactor_conf conf;
	struct rv_port *port;
	unsigned index;
	uint64_t now_ns;  /* of this pass */
	uint64_t pass_nr; /* passes begun */
	struct rv_wheel wheel;
	struct rv_poller *poller[RV_REACTOR_POLLERS];
	unsigned poller_nr;
	struct rv_poller *sleeper;
	unsigned
		short_sleeps; /* in a row, up to the number from which on it spins before the next */
	_Atomic bool stop;

	/* Written by this reactor, read by metrics. */
	struct rv_counter polls, busy_ns, idle_ns, sleeps;
};

/** @thread init */
void rv_reactor_init(struct rv_reactor *r, const struct rv_reactor_conf *conf);

/** Pollers are polled in the order added; one with `sleep` becomes the sleeper and must come first. @thread init */
int rv_reactor_add(struct rv_reactor *r, struct rv_poller *p);

/** It is not run any more; not the sleeper, and not one that has a descriptor. @thread owning reactor, not from a poller; or none runs it */
void rv_reactor_remove(struct rv_reactor *r, struct rv_poller *p);

/** One pass. @return work done. @thread owning reactor */
unsigned rv_reactor_step(struct rv_reactor *r);

/** Passes and sleeps until rv_reactor_stop(). @thread owning reactor */
void rv_reactor_run(struct rv_reactor *r);

/** @thread any */
void rv_reactor_stop(struct rv_reactor *r);

/** Run @t->fn at @deadline_ns (re-arms; RV_NEVER cancels). @thread owning reactor @cost O(1) */
static inline void rv_task_at(struct rv_reactor *r, struct rv_task *t, uint64_t deadline_ns)
{
	rv_wheel_add(&r->wheel, &t->timer, deadline_ns);
}

static inline void rv_task_cancel(struct rv_reactor *r, struct rv_task *t)
{
	rv_wheel_del(&r->wheel, &t->timer);
}

#endif
