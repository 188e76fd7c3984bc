/* Reactors in threads of their own that ask each other things and sleep in between. */
#include "dataplane/lcore/reactor.h"

#include <pthread.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define REACTORS 2u
#define ROUNDS   500u

static struct rv_mesh *mesh;
static struct rv_reactor reactor[REACTORS];
static unsigned answered[REACTORS];

static void ping_run(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_reply(p, c);
}

static void ping_done(struct rv_port *p, struct rv_cell *c)
{
	unsigned me = rv_port_index(p);

	if (++answered[me] < ROUNDS) {
		rv_cell_send(p, me ? 0 : 1, c);
		return;
	}
	rv_cell_free(p, c);
}

/* The first ping leaves from a timer, so that its reactor is awake for it. */
static void first_ping(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_cell *c = rv_cell_alloc(r->port);

	(void)t;
	c->run = ping_run;
	c->done = ping_done;
	rv_cell_send(r->port, r->index ? 0 : 1, c);
}

static void *main_loop(void *arg)
{
	rv_reactor_run(arg);
	return NULL;
}

/* Metrics read while the reactor writes. */
static void read_counters(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < REACTORS; i++)
		sum += rv_counter_get(&reactor[i].polls) + rv_counter_get(&reactor[i].sleeps) +
		       rv_counter_get(&reactor[i].busy_ns) + rv_counter_get(&reactor[i].idle_ns);
	(void)sum;
}

static void play(uint64_t idle_spin_ns, bool never_sleep)
{
	pthread_t thread[REACTORS];
	struct rv_task first[REACTORS];

	mesh = rv_mesh_create(REACTORS, 4);
	assert_non_null(mesh);
	for (unsigned i = 0; i < REACTORS; i++) {
		struct rv_reactor_conf c = {
			.port = rv_mesh_port(mesh, i),
			.idle_spin_ns = idle_spin_ns,
			.never_sleep = never_sleep,
			.clock = rv_clock_ns,
		};

		answered[i] = 0;
		rv_reactor_init(&reactor[i], &c);
		first[i] = (struct rv_task){.fn = first_ping};
		rv_task_at(&reactor[i], &first[i], reactor[i].now_ns + RV_MS(2));
	}
	for (unsigned i = 0; i < REACTORS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, main_loop, &reactor[i]), 0);
	for (unsigned i = 0; i < 100; i++) {
		struct timespec ms = {0, 3000000};

		read_counters();
		nanosleep(&ms, NULL);
		if (rv_counter_get(&reactor[0].polls) > 4 * ROUNDS && i > 20)
			break;
	}
	for (unsigned i = 0; i < REACTORS; i++)
		rv_reactor_stop(&reactor[i]);
	for (unsigned i = 0; i < REACTORS; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < REACTORS; i++)
		assert_true(answered[i] > 0);
	rv_mesh_destroy(mesh);
}

static void reactors_that_sleep_at_once_answer_each_other(void **state)
{
	(void)state;
	play(0, false);
	assert_true(rv_counter_get(&reactor[0].sleeps) > 0);
}

static void reactors_that_spin_answer_each_other(void **state)
{
	(void)state;
	play(RV_SEC(10), false);
	assert_int_equal(rv_counter_get(&reactor[0].sleeps), 0);
	play(0, true);
	assert_int_equal(rv_counter_get(&reactor[0].sleeps), 0);
}

/* Stopping is from another thread, and ends even the longest sleep. */
static void a_stop_ends_a_sleep_without_a_timer(void **state)
{
	struct rv_reactor_conf c = {.clock = rv_clock_ns};
	struct timespec ms = {0, 20000000};
	pthread_t thread;
	uint64_t began;

	(void)state;
	mesh = rv_mesh_create(1, 1);
	c.port = rv_mesh_port(mesh, 0);
	rv_reactor_init(&reactor[0], &c);
	assert_int_equal(pthread_create(&thread, NULL, main_loop, &reactor[0]), 0);
	nanosleep(&ms, NULL);
	began = rv_clock_ns();
	rv_reactor_stop(&reactor[0]);
	pthread_join(thread, NULL);
	assert_true(rv_clock_ns() - began < RV_SEC(5));
	rv_mesh_destroy(mesh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reactors_that_sleep_at_once_answer_each_other),
		cmocka_unit_test(reactors_that_spin_answer_each_other),
		cmocka_unit_test(a_stop_ends_a_sleep_without_a_timer),
	};

	return cmocka_run_group_tests_name("reactor_threads", tests, NULL, NULL);
}
