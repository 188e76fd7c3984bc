/* Real threads that send each other cells, polling or sleeping; also run under the thread sanitizer. */
#include "dataplane/lcore/cells.h"

#include <pthread.h>
#include <stdatomic.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define MOST_PORTS 3u
#define CELLS      16u

struct side {
	struct rv_port *port;
	unsigned index, ports;
	bool sleeps;
	unsigned to_send, sent, back;
	unsigned served;
	uint64_t sum;
	atomic_uint *busy; /* sides that are not finished */
};

static struct side side[MOST_PORTS];

static void run_add(struct rv_port *p, struct rv_cell *c)
{
	struct side *s = rv_port_user(p);
	uint64_t *body = (void *)c->body;

	s->served++;
	body[1] = body[0] + 1; /* written here, read at home */
	rv_cell_reply(p, c);
}

static void done_add(struct rv_port *p, struct rv_cell *c)
{
	struct side *s = rv_port_user(p);
	const uint64_t *body = (const void *)c->body;

	assert_int_equal(body[1], body[0] + 1);
	s->sum += body[1];
	s->back++;
	rv_cell_free(p, c);
}

static void send_some(struct side *s)
{
	struct rv_cell *c;

	while (s->sent < s->to_send && (c = rv_cell_alloc(s->port))) {
		uint64_t *body = (void *)c->body;

		body[0] = s->sent++;
		c->run = run_add;
		c->done = done_add;
		rv_cell_send(s->port, (s->index + 1 + s->sent % (s->ports - 1)) % s->ports, c);
		if (s->sent % 3 == 0)
			return; /* so that rounds differ in length */
	}
}

static void *main_loop(void *arg)
{
	struct side *s = arg;
	bool told = false;

	while (atomic_load(s->busy)) {
		send_some(s);
		if (!told && s->back == s->to_send) {
			told = true;
			if (atomic_fetch_sub(s->busy, 1) == 1) {
				for (unsigned i = 0; i < s->ports; i++)
					rv_port_kick(side[i].port);
			}
			continue;
		}
		if (s->sleeps && (s->sent == s->to_send || s->sent - s->back == CELLS))
			rv_port_wait(s->port, 1000);
		else
			rv_port_poll(s->port, 5);
	}
	return NULL;
}

static void play(unsigned ports, const bool *sleeps, unsigned messages)
{
	struct rv_mesh *mesh = rv_mesh_create(ports, CELLS);
	pthread_t thread[MOST_PORTS];
	atomic_uint busy = ports;
	unsigned served = 0;

	assert_non_null(mesh);
	for (unsigned i = 0; i < ports; i++) {
		side[i] = (struct side){
			.port = rv_mesh_port(mesh, i),
			.index = i,
			.ports = ports,
			.sleeps = sleeps[i],
			.to_send = messages,
			.busy = &busy,
		};
		rv_port_set_user(side[i].port, &side[i]);
	}
	for (unsigned i = 0; i < ports; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, main_loop, &side[i]), 0);
	for (unsigned i = 0; i < ports; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < ports; i++) {
		assert_int_equal(side[i].back, messages);
		assert_int_equal(side[i].sum, (uint64_t)messages * (messages + 1) / 2);
		served += side[i].served;
	}
	assert_int_equal(served, ports * messages);
	rv_mesh_destroy(mesh);
}

static void two_threads_that_poll(void **state)
{
	(void)state;
	play(2, (const bool[]){false, false}, 3000);
}

static void two_threads_that_sleep_lose_no_wake_up(void **state)
{
	(void)state;
	play(2, (const bool[]){true, true}, 3000);
}

static void a_sleeper_and_two_pollers(void **state)
{
	(void)state;
	play(3, (const bool[]){true, false, false}, 2000);
}

static void three_threads_that_sleep_lose_no_wake_up(void **state)
{
	(void)state;
	play(3, (const bool[]){true, true, true}, 2000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_threads_that_poll),
		cmocka_unit_test(two_threads_that_sleep_lose_no_wake_up),
		cmocka_unit_test(a_sleeper_and_two_pollers),
		cmocka_unit_test(three_threads_that_sleep_lose_no_wake_up),
	};

	return cmocka_run_group_tests_name("cells_threads", tests, NULL, NULL);
}
