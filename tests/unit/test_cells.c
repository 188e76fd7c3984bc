#include "dataplane/lcore/cells.h"

#include <poll.h>

#include "dataplane/base/units.h"
#include "dataplane/lcore/ring.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"
#include "tests/unit/forked.h"

#define PORTS 3u
#define CELLS 8u

static struct rv_mesh *mesh;
static struct rv_port *port[PORTS];

static int setup(void **state)
{
	(void)state;
	mesh = rv_mesh_create(PORTS, CELLS);
	if (!mesh)
		return -1;
	for (unsigned i = 0; i < PORTS; i++)
		port[i] = rv_mesh_port(mesh, i);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	for (unsigned i = 0; i < PORTS; i++)
		assert_int_equal(fake_free_cells(port[i]), CELLS);
	rv_mesh_destroy(mesh);
	return 0;
}

/* What happened, in order. */
static char history[256];

static void note(char c)
{
	size_t n = strlen(history);

	if (n + 1 < sizeof(history)) {
		history[n] = c;
		history[n + 1] = '\0';
	}
}

static void run_upper(struct rv_port *p, struct rv_cell *c)
{
	note((char)(c->body[0] - 'a' + 'A'));
	rv_cell_reply(p, c);
}

static void done_lower(struct rv_port *p, struct rv_cell *c)
{
	note((char)c->body[0]);
	rv_cell_free(p, c);
}

static struct rv_cell *send(unsigned from, unsigned to, char name)
{
	struct rv_cell *c = rv_cell_alloc(port[from]);

	assert_non_null(c);
	c->run = run_upper;
	c->done = done_lower;
	c->body[0] = (uint8_t)name;
	rv_cell_send(port[from], to, c);
	return c;
}

static void a_cell_goes_there_and_comes_back(void **state)
{
	(void)state;
	history[0] = '\0';
	send(0, 1, 'a');
	assert_int_equal(rv_port_poll(port[0], 100), 0);
	assert_int_equal(rv_port_poll(port[2], 100), 0);
	assert_string_equal(history, "");
	assert_int_equal(rv_port_poll(port[1], 100), 1);
	assert_string_equal(history, "A");
	assert_int_equal(rv_port_poll(port[0], 100), 1);
	assert_string_equal(history, "Aa");
}

static void a_cell_to_oneself_is_served_in_the_same_pass(void **state)
{
	(void)state;
	history[0] = '\0';
	send(0, 0, 'a');
	assert_int_equal(rv_port_poll(port[0], 100), 2);
	assert_string_equal(history, "Aa");
}

static void each_ordered_pair_is_first_in_first_out(void **state)
{
	(void)state;
	history[0] = '\0';
	for (char c = 'a'; c < 'e'; c++)
		send(0, 1, c);
	send(2, 1, 'x');
	send(2, 1, 'y');
	rv_port_poll(port[1], 100);
	assert_string_equal(history, "ABCDXY");
	history[0] = '\0';
	rv_port_poll(port[0], 100);
	rv_port_poll(port[2], 100);
	assert_string_equal(history, "abcdxy");
}

static void all_cells_may_be_under_way_to_one_port_at_once(void **state)
{
	struct rv_cell *c;

	(void)state;
	history[0] = '\0';
	for (unsigned from = 0; from < PORTS; from++)
		for (unsigned i = 0; i < CELLS; i++)
			send(from, 1, 'a');
	c = rv_cell_alloc(port[0]);
	assert_null(c); /* busy */
	rv_port_poll(port[1], UINT32_MAX);
	for (unsigned from = 0; from < PORTS; from++)
		rv_port_poll(port[from], UINT32_MAX);
	assert_int_equal(strlen(history), 2 * PORTS * CELLS);
}

/* Both ends' cells in one ring: ours on their way out and theirs on their way back. */
static void a_ring_holds_both_ends_cells(void **state)
{
	(void)state;
	history[0] = '\0';
	for (unsigned i = 0; i < CELLS; i++) {
		send(0, 1, 'a');
		send(1, 0, 'b');
	}
	rv_port_poll(port[1], CELLS); /* answers, while its own are still unread over there */
	for (unsigned i = 0; i < 4; i++) {
		rv_port_poll(port[0], UINT32_MAX);
		rv_port_poll(port[1], UINT32_MAX);
	}
	assert_int_equal(strlen(history), 4 * CELLS);
}

static void a_poll_serves_no_more_than_it_was_told(void **state)
{
	(void)state;
	history[0] = '\0';
	for (unsigned i = 0; i < CELLS; i++)
		send(0, 1, 'a');
	assert_int_equal(rv_port_poll(port[1], 3), 3);
	assert_int_equal(rv_port_poll(port[1], 0), 0);
	assert_int_equal(rv_port_poll(port[1], 100), CELLS - 3);
	rv_port_poll(port[0], 100);
}

/* A holder may answer much later, and in another order. */
static struct rv_cell *held[2];

static void run_hold(struct rv_port *p, struct rv_cell *c)
{
	(void)p;
	held[held[0] != NULL] = c;
}

static void a_cell_can_be_held_and_answered_later(void **state)
{
	(void)state;
	history[0] = '\0';
	held[0] = held[1] = NULL;
	for (char c = 'a'; c < 'c'; c++) {
		struct rv_cell *cell = rv_cell_alloc(port[0]);

		cell->run = run_hold;
		cell->done = done_lower;
		cell->body[0] = (uint8_t)c;
		rv_cell_send(port[0], 1, cell);
	}
	rv_port_poll(port[1], 100);
	rv_port_poll(port[0], 100);
	assert_string_equal(history, "");
	rv_cell_reply(port[1], held[1]);
	rv_cell_reply(port[1], held[0]);
	rv_port_poll(port[0], 100);
	assert_string_equal(history, "ba");
}

/* done() may send the same cell on. */
static void done_again(struct rv_port *p, struct rv_cell *c)
{
	note('1');
	c->done = done_lower;
	rv_cell_send(p, 2, c);
}

static void a_cell_that_is_back_can_be_sent_again(void **state)
{
	struct rv_cell *c = send(0, 1, 'a');

	(void)state;
	history[0] = '\0';
	c->done = done_again;
	for (unsigned i = 0; i < 3; i++)
		for (unsigned k = 0; k < PORTS; k++)
			rv_port_poll(port[k], 100);
	assert_string_equal(history, "A1Aa");
}

static bool readable(unsigned i)
{
	struct pollfd p = {.fd = rv_port_fd(port[i]), .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void only_a_sleeper_is_woken(void **state)
{
	(void)state;
	send(0, 1, 'a');
	assert_false(readable(1));
	assert_false(rv_port_sleep(port[1])); /* something waits: do not sleep */
	rv_port_wake(port[1]);
	rv_port_poll(port[1], 100);
	assert_true(rv_port_sleep(port[1]));
	send(0, 1, 'b');
	assert_true(readable(1));
	rv_port_wake(port[1]);
	assert_false(readable(1));
	rv_port_poll(port[1], 100);
	rv_port_poll(port[0], 100);
}

static void a_message_to_oneself_keeps_awake(void **state)
{
	(void)state;
	send(0, 0, 'a');
	assert_false(rv_port_sleep(port[0]));
	rv_port_wake(port[0]);
	rv_port_poll(port[0], 100);
	assert_true(rv_port_sleep(port[0]));
	rv_port_wake(port[0]);
}

static void a_kick_ends_a_sleep_without_a_cell(void **state)
{
	(void)state;
	assert_true(rv_port_sleep(port[0]));
	rv_port_kick(port[0]);
	rv_port_kick(port[0]);
	assert_true(readable(0));
	rv_port_wake(port[0]);
	assert_false(readable(0));
}

static void waiting_serves_what_came(void **state)
{
	(void)state;
	history[0] = '\0';
	send(0, 1, 'a');
	rv_port_wait(port[1], 0);
	assert_string_equal(history, "A");
	rv_port_wait(port[0], 0);
	assert_string_equal(history, "Aa");
}

static void a_port_knows_its_user_and_its_number(void **state)
{
	int x;

	(void)state;
	rv_port_set_user(port[2], &x);
	assert_ptr_equal(rv_port_user(port[2]), &x);
	assert_int_equal(rv_port_index(port[2]), 2);
	assert_int_equal(rv_port_cells(port[2]), CELLS);
}

static bool free_anothers_cell(void)
{
	rv_cell_free(port[1], rv_cell_alloc(port[0]));
	return true;
}

static bool send_anothers_cell(void)
{
	rv_cell_send(port[1], 2, rv_cell_alloc(port[0]));
	return true;
}

static bool reply_twice(void)
{
	struct rv_cell *c = rv_cell_alloc(port[0]);

	c->run = run_hold;
	held[0] = NULL;
	rv_cell_send(port[0], 1, c);
	rv_port_poll(port[1], 1);
	rv_cell_reply(port[1], c);
	rv_cell_reply(port[1], c);
	return true;
}

static void misuse_stops_the_daemon(void **state)
{
	(void)state;
	assert_int_equal(forked(free_anothers_cell), -SIGABRT);
	assert_int_equal(forked(send_anothers_cell), -SIGABRT);
	assert_int_equal(forked(reply_twice), -SIGABRT);
}

static void a_ring_is_a_bounded_queue(void **state)
{
	struct rv_ring *r = rv_ring_create(5);
	static int x[64];
	size_t n = 0;

	(void)state;
	assert_true(rv_ring_empty(r));
	assert_null(rv_ring_pop(r));
	while (n < 64 && rv_ring_push(r, &x[n]))
		n++;
	assert_in_range(n, 5, 63);
	for (size_t i = 0; i < n; i++)
		assert_ptr_equal(rv_ring_pop(r), &x[i]);
	assert_true(rv_ring_empty(r));
	rv_ring_destroy(r);
}

#define MESH(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		MESH(a_cell_goes_there_and_comes_back),
		MESH(a_cell_to_oneself_is_served_in_the_same_pass),
		MESH(each_ordered_pair_is_first_in_first_out),
		MESH(all_cells_may_be_under_way_to_one_port_at_once),
		MESH(a_ring_holds_both_ends_cells),
		MESH(a_poll_serves_no_more_than_it_was_told),
		MESH(a_cell_can_be_held_and_answered_later),
		MESH(a_cell_that_is_back_can_be_sent_again),
		MESH(only_a_sleeper_is_woken),
		MESH(a_message_to_oneself_keeps_awake),
		MESH(a_kick_ends_a_sleep_without_a_cell),
		MESH(waiting_serves_what_came),
		MESH(a_port_knows_its_user_and_its_number),
		MESH(misuse_stops_the_daemon),
		cmocka_unit_test(a_ring_is_a_bounded_queue),
	};

	return cmocka_run_group_tests_name("cells", tests, NULL, NULL);
}
