#include "dataplane/lcore/reactor.h"

#include <errno.h>
#include <poll.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

/* Cells and timers a pass: enough to batch, few enough that no poller waits long. */
#define PASS_CELLS  256
#define PASS_TIMERS 256

/*
 * Spinning pays where the next work is near: after so many sleeps in a row that were shorter than so many times the
 * spin. A lone request finds its next process often on this CPU, where a spin would only keep it waiting.
 */
#define BRISK_SLEEPS 3
#define BRISK_SPINS  20

void rv_reactor_init(struct rv_reactor *r, const struct rv_reactor_conf *conf)
{
	*r = (struct rv_reactor){
		.conf = *conf,
		.port = conf->port,
		.index = rv_port_index(conf->port),
		.short_sleeps = BRISK_SLEEPS,
	};
	r->now_ns = conf->clock();
	rv_wheel_init(&r->wheel, r->now_ns);
}

int rv_reactor_add(struct rv_reactor *r, struct rv_poller *p)
{
	int fd;

	if (r->poller_nr == RV_REACTOR_POLLERS)
		return -ENOSPC;
	if (p->ops->sleep) {
		RV_CHECK(!r->sleeper && r->poller_nr == 0);
		r->sleeper = p;
		fd = p->ops->watch(p, rv_port_fd(r->port));
		if (fd < 0)
			return fd;
	}
	fd = p->ops->fd ? p->ops->fd(p) : -1;
	if (fd >= 0 && r->sleeper) {
		int rc = r->sleeper->ops->watch(r->sleeper, fd);

		if (rc)
			return rc;
	}
	r->poller[r->poller_nr++] = p;
	return 0;
}

void rv_reactor_remove(struct rv_reactor *r, struct rv_poller *p)
{
	unsigned at = 0;

	while (at < r->poller_nr && r->poller[at] != p)
		at++;
	RV_CHECK(at < r->poller_nr && p != r->sleeper);
	for (r->poller_nr--; at < r->poller_nr; at++)
		r->poller[at] = r->poller[at + 1];
}

static unsigned run_timers(struct rv_reactor *r)
{
	struct rv_timer *t;
	unsigned n = 0;

	while (n < PASS_TIMERS && (t = rv_wheel_pop(&r->wheel, r->now_ns))) {
		struct rv_task *task = RV_CONTAINER(t, struct rv_task, timer);

		task->fn(r, task);
		n++;
	}
	return n;
}

unsigned rv_reactor_step(struct rv_reactor *r)
{
	unsigned work = 0;

	r->pass_nr++;
	r->now_ns = r->conf.clock();
	work += rv_port_poll(r->port, PASS_CELLS);
	for (unsigned i = 0; i < r->poller_nr; i++)
		work += r->poller[i]->ops->poll(r->poller[i], r->now_ns);
	work += rv_port_poll(r->port, PASS_CELLS);
	for (unsigned i = 0; work && i < r->poller_nr; i++) {
		if (r->poller[i]->ops->flush)
			r->poller[i]->ops->flush(r->poller[i]);
	}
	/* Timers last: what arrived before a deadline was seen before the deadline is acted on. */
	work += run_timers(r);
	return work;
}

static uint64_t sleep_until(struct rv_reactor *r)
{
	uint64_t until = rv_wheel_next_ns(&r->wheel);

	for (unsigned i = 0; i < r->poller_nr; i++) {
		if (r->poller[i]->ops->next_ns)
			until = rv_min_u64(until, r->poller[i]->ops->next_ns(r->poller[i]));
	}
	return until;
}

static int arm_all(struct rv_reactor *r)
{
	for (unsigned i = 0; i < r->poller_nr; i++) {
		if (r->poller[i]->ops->arm && r->poller[i]->ops->arm(r->poller[i]))
			return -EAGAIN;
	}
	return 0;
}

static void plain_sleep(struct rv_reactor *r, uint64_t timeout_ns)
{
	struct pollfd pfd[RV_REACTOR_POLLERS + 1];
	nfds_t n = 0;
	uint64_t ms = timeout_ns == RV_NEVER ? 60000 : rv_min_u64(timeout_ns / 1000000 + 1, 60000);

	pfd[n++] = (struct pollfd){.fd = rv_port_fd(r->port), .events = POLLIN};
	for (unsigned i = 0; i < r->poller_nr; i++) {
		int fd = r->poller[i]->ops->fd ? r->poller[i]->ops->fd(r->poller[i]) : -1;

		if (fd >= 0)
			pfd[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	poll(pfd, n, (int)ms);
}

static void try_sleep(struct rv_reactor *r)
{
	uint64_t until, now, slept;

	if (rv_port_sleep(r->port) && arm_all(r) == 0 &&
	    !atomic_load_explicit(&r->stop, memory_order_acquire)) {
		until = sleep_until(r);
		now = r->conf.clock();
		if (until > now) {
			uint64_t timeout = until == RV_NEVER ? RV_NEVER : until - now;

			rv_counter_add(&r->sleeps, 1);
			if (r->sleeper)
				r->sleeper->ops->sleep(r->sleeper, timeout);
			else
				plain_sleep(r, timeout);
			slept = r->conf.clock() - now;
			rv_counter_add(&r->idle_ns, slept);
			if (slept >= r->conf.idle_spin_ns * BRISK_SPINS)
				r->short_sleeps = 0;
			else if (r->short_sleeps < BRISK_SLEEPS)
				r->short_sleeps++;
		}
	}
	rv_port_wake(r->port);
}

static bool spins(const struct rv_reactor *r, uint64_t idle_ns)
{
	if (r->conf.never_sleep)
		return true;
	return r->short_sleeps == BRISK_SLEEPS && idle_ns < r->conf.idle_spin_ns;
}

void rv_reactor_run(struct rv_reactor *r)
{
	uint64_t last_work_ns = r->conf.clock();

	while (!atomic_load_explicit(&r->stop, memory_order_acquire)) {
		unsigned work = rv_reactor_step(r);
		uint64_t began = r->now_ns;

		rv_counter_add(&r->polls, 1);
		if (work) {
			last_work_ns = r->conf.clock();
			rv_counter_add(&r->busy_ns, last_work_ns - began);
			continue;
		}
		if (spins(r, began - last_work_ns)) {
			__builtin_ia32_pause();
			continue;
		}
		try_sleep(r);
		last_work_ns = 0; /* a wake-up that brings no work goes straight back to sleep */
	}
}

void rv_reactor_stop(struct rv_reactor *r)
{
	/* release: pairs with the acquire in rv_reactor_run(). */
	atomic_store_explicit(&r->stop, true, memory_order_release);
	rv_port_kick(r->port);
}
