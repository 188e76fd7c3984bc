/*
 * poller.h - anything a reactor runs each pass: a fabric, sockets, timers.
 *
 *   pass:  poll() of each, in the order they were added
 *   idle:  arm() of each (busy: another pass), then one sleep() in the reactor's sleeper
 */
#ifndef RV_DATAPLANE_INTERFACES_POLLER_H
#define RV_DATAPLANE_INTERFACES_POLLER_H

#include <stdint.h>

struct rv_poller;

struct rv_poller_ops {
	const char *name;

	/** Do what is there to do, bounded. @return how much was done, 0 for nothing. @thread owning reactor */
	unsigned (*poll)(struct rv_poller *p, uint64_t now_ns);

	/** What this pass has brought about leaves now, and not with the next poll(). After a pass that did something. NULL: nothing waits. */
	void (*flush)(struct rv_poller *p);

	/** Ask for a wake-up through fd(). @return 0, or -EAGAIN: something arrived, poll again. NULL: never busy. */
	int (*arm)(struct rv_poller *p);

	/** The descriptor that becomes readable once armed, or -1. NULL: none. Asked once, when added. */
	int (*fd)(struct rv_poller *p);

	/** The time at which poll() must be called even if nothing arrives. NULL: none. */
	uint64_t (*next_ns)(struct rv_poller *p);

	/*
	 * Only the reactor's sleeper has these two.
	 * watch: from now on, end a sleep when @fd is readable. sleep: block for at most @timeout_ns.
	 */
	int (*watch)(struct rv_poller *p, int fd);
	void (*sleep)(struct rv_poller *p, uint64_t timeout_ns);
};

/** Embedded in the implementation's own struct. */
struct rv_poller {
	const struct rv_poller_ops *ops;
};

#endif
