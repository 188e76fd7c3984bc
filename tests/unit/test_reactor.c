#include "dataplane/lcore/reactor.h"

#include <errno.h>

#include "dataplane/base/units.h"
#include "tests/fake/fake_clock.h"
#include "tests/unit/exact.h"

static struct rv_mesh *mesh;
static struct rv_reactor r;
static char history[64];

static void note(char c)
{
	size_t n = strlen(history);

	if (n + 1 < sizeof(history)) {
		history[n] = c;
		history[n + 1] = '\0';
	}
}

static int setup(void **state)
{
	struct rv_reactor_conf c = {.clock = fake_clock};

	(void)state;
	mesh = rv_mesh_create(1, 512);
	if (!mesh)
		return -1;
	c.port = rv_mesh_port(mesh, 0);
	rv_reactor_init(&r, &c);
	history[0] = '\0';
	return 0;
}

static int finish(void **state)
{
	(void)state;
	rv_mesh_destroy(mesh);
	return 0;
}

static void cell_run(struct rv_port *p, struct rv_cell *c)
{
	note('c');
	rv_cell_reply(p, c);
}

static void cell_done(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_free(p, c);
}

static void send_to_self(void)
{
	struct rv_cell *c = rv_cell_alloc(r.port);

	c->run = cell_run;
	c->done = cell_done;
	rv_cell_send(r.port, 0, c);
}

static unsigned poll_noting(struct rv_poller *p, uint64_t now_ns)
{
	(void)p;
	assert_int_equal(now_ns, fake_now_ns);
	note('p');
	return 0;
}

static unsigned poll_that_brings(struct rv_poller *p, uint64_t now_ns)
{
	(void)p;
	(void)now_ns;
	note('b');
	send_to_self();
	return 1;
}

static void flush_noting(struct rv_poller *p)
{
	(void)p;
	note('f');
}

static const struct rv_poller_ops noting_ops = {.name = "noting",
						.poll = poll_noting,
						.flush = flush_noting};
static const struct rv_poller_ops bringing_ops = {.name = "bringing", .poll = poll_that_brings};

static void task_fn(struct rv_reactor *x, struct rv_task *t)
{
	(void)x;
	(void)t;
	note('t');
}

static void a_pass_is_inbox_pollers_inbox_flush_and_timers_last(void **state)
{
	struct rv_poller p = {&noting_ops}, b = {&bringing_ops};
	struct rv_task t = {.fn = task_fn};

	(void)state;
	assert_int_equal(rv_reactor_add(&r, &p), 0);
	assert_int_equal(rv_reactor_add(&r, &b), 0);
	rv_task_at(&r, &t, fake_now_ns + RV_MS(1));
	fake_now_ns += RV_MS(1);
	send_to_self();
	rv_reactor_step(&r);
	assert_string_equal(history, "cpbcft");
}

static void an_idle_pass_does_no_work(void **state)
{
	(void)state;
	assert_int_equal(rv_reactor_step(&r), 0);
	assert_int_equal(r.pass_nr, 1);
}

static void a_task_runs_once_at_its_time(void **state)
{
	struct rv_task t = {.fn = task_fn};

	(void)state;
	rv_task_at(&r, &t, fake_now_ns + RV_MS(7));
	fake_now_ns += RV_MS(6);
	rv_reactor_step(&r);
	assert_string_equal(history, "");
	fake_now_ns += RV_MS(1);
	assert_int_equal(rv_reactor_step(&r), 1);
	rv_reactor_step(&r);
	assert_string_equal(history, "t");
}

static struct rv_task other = {.fn = task_fn};

static void cancels_the_other(struct rv_reactor *x, struct rv_task *t)
{
	(void)t;
	note('x');
	rv_task_cancel(x, &other);
}

static void a_task_may_cancel_one_that_is_due_in_the_same_pass(void **state)
{
	struct rv_task t = {.fn = cancels_the_other};

	(void)state;
	rv_task_at(&r, &t, fake_now_ns + RV_MS(1));
	rv_task_at(&r, &other, fake_now_ns + RV_MS(1));
	fake_now_ns += RV_MS(5);
	rv_reactor_step(&r);
	rv_reactor_step(&r);
	assert_string_equal(history, "x");
}

static void arms_itself(struct rv_reactor *x, struct rv_task *t)
{
	note('r');
	if (strlen(history) < 3)
		rv_task_at(x, t, x->now_ns);
}

static void a_task_may_arm_itself_for_now(void **state)
{
	struct rv_task t = {.fn = arms_itself};

	(void)state;
	rv_task_at(&r, &t, fake_now_ns);
	for (unsigned i = 0; i < 5; i++)
		rv_reactor_step(&r);
	assert_string_equal(history, "rrr");
}

/* A cell that comes with the poll, before its deadline is acted on. */
static struct rv_task deadline = {.fn = task_fn};

static void saves(struct rv_port *p, struct rv_cell *c)
{
	note('s');
	rv_task_at(&r, &deadline, fake_now_ns + RV_SEC(1));
	rv_cell_reply(p, c);
}

static unsigned poll_that_saves(struct rv_poller *p, uint64_t now_ns)
{
	struct rv_cell *c = rv_cell_alloc(r.port);

	(void)p;
	(void)now_ns;
	c->run = saves;
	c->done = cell_done;
	rv_cell_send(r.port, 0, c);
	return 1;
}

static const struct rv_poller_ops saving_ops = {.name = "saving", .poll = poll_that_saves};

static void what_arrived_before_a_deadline_is_seen_before_it(void **state)
{
	struct rv_poller p = {&saving_ops};

	(void)state;
	rv_reactor_add(&r, &p);
	rv_task_at(&r, &deadline, fake_now_ns + RV_MS(1));
	fake_now_ns += RV_MS(50);
	rv_reactor_step(&r);
	assert_string_equal(history, "s");
}

static void a_pass_is_bounded(void **state)
{
	static struct rv_task many[1000];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(many); i++) {
		many[i] = (struct rv_task){.fn = task_fn};
		rv_task_at(&r, &many[i], fake_now_ns);
	}
	assert_in_range(rv_reactor_step(&r), 1, 999);
	for (unsigned i = 0; i < 10; i++)
		rv_reactor_step(&r);
	assert_int_equal(r.wheel.armed_nr, 0);
}

/* Sleeping, on a reactor whose sleeper is a script: it ends the run after some sleeps. */
static struct sleeper {
	struct rv_poller poller;
	unsigned sleeps, arms, stop_after;
	int watched, arm_rc;
	uint64_t timeout;
} sl;

static unsigned sleeper_poll(struct rv_poller *p, uint64_t now_ns)
{
	(void)p;
	(void)now_ns;
	return 0;
}

static int sleeper_watch(struct rv_poller *p, int fd)
{
	(void)p;
	(void)fd;
	sl.watched++;
	return 0;
}

static void sleeper_sleep(struct rv_poller *p, uint64_t timeout_ns)
{
	(void)p;
	sl.timeout = timeout_ns;
	if (++sl.sleeps == sl.stop_after)
		rv_reactor_stop(&r);
	if (timeout_ns != RV_NEVER)
		fake_now_ns += timeout_ns;
}

static int other_arm(struct rv_poller *p)
{
	(void)p;
	if (++sl.arms == 50)
		rv_reactor_stop(&r);
	return sl.arm_rc;
}

static int other_fd(struct rv_poller *p)
{
	(void)p;
	return 0;
}

static uint64_t other_next(struct rv_poller *p)
{
	(void)p;
	return fake_now_ns + RV_MS(3);
}

static const struct rv_poller_ops sleeper_ops = {
	.name = "sleeper",
	.poll = sleeper_poll,
	.watch = sleeper_watch,
	.sleep = sleeper_sleep,
};
static const struct rv_poller_ops other_ops = {
	.name = "other",
	.poll = sleeper_poll,
	.arm = other_arm,
	.fd = other_fd,
};
static const struct rv_poller_ops timed_ops = {.name = "timed",
					       .poll = sleeper_poll,
					       .next_ns = other_next};

static void start_sleeper(unsigned stop_after)
{
	memset(&sl, 0, sizeof(sl));
	sl.poller.ops = &sleeper_ops;
	sl.stop_after = stop_after;
	assert_int_equal(rv_reactor_add(&r, &sl.poller), 0);
	assert_int_equal(sl.watched, 1); /* the inbox */
}

static void an_idle_reactor_sleeps_until_the_next_timer(void **state)
{
	struct rv_task t = {.fn = task_fn};

	(void)state;
	start_sleeper(2);
	rv_task_at(&r, &t, fake_now_ns + RV_MS(20));
	rv_reactor_run(&r);
	assert_string_equal(history, "t");
	assert_int_equal(sl.timeout, RV_NEVER); /* afterwards there is nothing to wake up for */
	assert_int_equal(rv_counter_get(&r.sleeps), 2);
	assert_true(rv_counter_get(&r.idle_ns) <= RV_MS(21));
}

static void a_pollers_own_time_ends_the_sleep(void **state)
{
	struct rv_poller p = {&timed_ops};

	(void)state;
	start_sleeper(1);
	rv_reactor_add(&r, &p);
	rv_reactor_run(&r);
	assert_in_range(sl.timeout, 1, RV_MS(3));
}

static void a_poller_that_will_not_arm_keeps_the_reactor_awake(void **state)
{
	struct rv_poller p = {&other_ops};

	(void)state;
	start_sleeper(1);
	rv_reactor_add(&r, &p);
	assert_int_equal(sl.watched, 2);
	sl.arm_rc = -EAGAIN;
	rv_reactor_run(&r); /* the 50th attempt stops it */
	assert_int_equal(sl.arms, 50);
	assert_int_equal(sl.sleeps, 0);
}

/* Work comes @gap after the last; each look for it takes a microsecond. */
static struct rhythm {
	struct rv_poller poller;
	uint64_t due, gap, spun;
	unsigned sleeps, stop_after;
} rh;

static unsigned rhythm_poll(struct rv_poller *p, uint64_t now_ns)
{
	(void)p;
	(void)now_ns;
	fake_now_ns += RV_US(1);
	rh.spun++;
	if (fake_now_ns < rh.due)
		return 0;
	rh.due = fake_now_ns + rh.gap;
	return 1;
}

static void rhythm_sleep(struct rv_poller *p, uint64_t timeout_ns)
{
	(void)p;
	(void)timeout_ns;
	if (++rh.sleeps == rh.stop_after)
		rv_reactor_stop(&r);
	fake_now_ns = rv_max_u64(fake_now_ns, rh.due);
}

static const struct rv_poller_ops rhythm_ops = {
	.name = "rhythm",
	.poll = rhythm_poll,
	.watch = sleeper_watch,
	.sleep = rhythm_sleep,
};

/* @return looks for work over so many sleeps */
static uint64_t looks(uint64_t gap, unsigned sleeps)
{
	rh.gap = gap;
	rh.due = fake_now_ns + gap;
	rh.spun = rh.sleeps = 0;
	rh.stop_after = sleeps;
	rv_reactor_run(&r);
	atomic_store_explicit(&r.stop, false, memory_order_relaxed);
	return rh.spun;
}

static void a_core_spins_before_a_sleep_only_while_its_sleeps_are_short(void **state)
{
	const uint64_t spin = 50; /* microseconds, and looks */

	(void)state;
	r.conf.idle_spin_ns = RV_US(spin);
	rh = (struct rhythm){.poller.ops = &rhythm_ops};
	assert_int_equal(rv_reactor_add(&r, &rh.poller), 0);
	/* Requests far apart: none of them is waited for but the first. */
	assert_true(looks(RV_SEC(10), 10) <= spin + 30);
	assert_true(looks(RV_US(300), 3) <= 12); /* the first few of a row neither */
	assert_true(looks(RV_US(300), 10) >= 9 * spin);
	assert_true(looks(RV_SEC(10), 2) <= 2 * spin + 6); /* until one was long */
	assert_true(looks(RV_SEC(10), 10) <= 30);
}

static void a_stopped_reactor_does_not_sleep(void **state)
{
	(void)state;
	start_sleeper(1);
	rv_reactor_stop(&r);
	rv_reactor_run(&r);
	assert_int_equal(sl.sleeps, 0);
	assert_int_equal(r.pass_nr, 0);
}

static void there_is_room_for_sixteen_pollers(void **state)
{
	struct rv_poller p = {&noting_ops};

	(void)state;
	for (unsigned i = 0; i < RV_REACTOR_POLLERS; i++)
		assert_int_equal(rv_reactor_add(&r, &p), 0);
	assert_int_equal(rv_reactor_add(&r, &p), -ENOSPC);
}

static void a_removed_poller_is_polled_no_more(void **state)
{
	struct rv_poller p[3] = {{&noting_ops}, {&bringing_ops}, {&noting_ops}};

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(rv_reactor_add(&r, &p[i]), 0);
	rv_reactor_remove(&r, &p[1]);
	rv_reactor_step(&r);
	assert_string_equal(history, "pp");
	rv_reactor_remove(&r, &p[2]);
	rv_reactor_remove(&r, &p[0]);
	rv_reactor_step(&r);
	assert_string_equal(history, "pp");
	for (unsigned i = 0; i < RV_REACTOR_POLLERS; i++)
		assert_int_equal(rv_reactor_add(&r, &p[0]), 0);
}

#define REACTOR(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		REACTOR(a_pass_is_inbox_pollers_inbox_flush_and_timers_last),
		REACTOR(an_idle_pass_does_no_work),
		REACTOR(a_task_runs_once_at_its_time),
		REACTOR(a_task_may_cancel_one_that_is_due_in_the_same_pass),
		REACTOR(a_task_may_arm_itself_for_now),
		REACTOR(what_arrived_before_a_deadline_is_seen_before_it),
		REACTOR(a_pass_is_bounded),
		REACTOR(an_idle_reactor_sleeps_until_the_next_timer),
		REACTOR(a_pollers_own_time_ends_the_sleep),
		REACTOR(a_poller_that_will_not_arm_keeps_the_reactor_awake),
		REACTOR(a_core_spins_before_a_sleep_only_while_its_sleeps_are_short),
		REACTOR(a_stopped_reactor_does_not_sleep),
		REACTOR(there_is_room_for_sixteen_pollers),
		REACTOR(a_removed_poller_is_polled_no_more),
	};

	return cmocka_run_group_tests_name("reactor", tests, NULL, NULL);
}
