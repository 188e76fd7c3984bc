/* Nodes that are not known here, and who waits for them to be found. */
#include "tests/unit/messenger_fixture.h"

static uint64_t asked[8];
static unsigned asked_nr;
static int ask_rc;

static int ask(void *user, uint64_t worker)
{
	(void)user;
	if (!ask_rc)
		asked[asked_nr++ % RV_ARRAY_NR(asked)] = worker;
	return ask_rc;
}

struct waiter {
	unsigned nr;
	int rc;
	uint64_t worker;
	char why[256];
};

static void done(void *ctx, const struct rv_connect_result *r)
{
	struct waiter *w_ = ctx;

	w_->nr++;
	w_->rc = r->rc;
	w_->worker = r->worker;
	snprintf(w_->why, sizeof(w_->why), "%s", r->why);
}

static int setup_find(void **state)
{
	setup(state);
	asked_nr = 0;
	ask_rc = 0;
	mess->conf.find = ask;
	return 0;
}

static void find(struct waiter *x, uint64_t worker)
{
	*x = (struct waiter){.rc = 77};
	rv_messenger_find(mess, worker, fake_now_ns + RV_SEC(5), done, x);
}

static void one_that_is_known_is_not_asked_for(void **state)
{
	uint64_t worker = add_peer(1, true);
	struct waiter x;

	(void)state;
	find(&x, worker);
	assert_int_equal(x.nr, 1);
	assert_int_equal(x.rc, 0);
	assert_int_equal(asked_nr, 0);
}

static void where_there_is_nowhere_to_look_nothing_is_waited_for(void **state)
{
	struct waiter x;

	(void)state;
	mess->conf.find = NULL;
	find(&x, 4711);
	assert_int_equal(x.nr, 1);
	assert_int_equal(x.rc, 0); /* what follows says that it is not known */
}

static void all_who_wait_for_one_node_are_told_by_one_answer(void **state)
{
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(1, true, "192.0.2.7", buf, sizeof(buf));
	struct waiter x[3], other;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		find(&x[i], peer_worker(1));
	find(&other, 99);
	assert_int_equal(asked_nr, 2);
	assert_true(asked[0] == peer_worker(1) && asked[1] == 99);
	rv_messenger_found(mess, peer_worker(1), 0, &pi, "");
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(x[i].nr, 1);
		assert_int_equal(x[i].rc, 0);
		assert_true(x[i].worker == peer_worker(1));
	}
	assert_int_equal(other.nr, 0);
	find(&x[0], peer_worker(1)); /* it is a peer like any other now */
	assert_int_equal(x[0].nr, 1);
	assert_int_equal(asked_nr, 2);
	rv_messenger_found(mess, 99, -ENOENT, NULL, "");
	assert_int_equal(other.rc, -EHOSTUNREACH);
	assert_non_null(strstr(other.why, "worker 99"));
	find(&other, 99); /* and asked for again */
	assert_int_equal(asked_nr, 3);
	rv_messenger_found(mess, 99, -EHOSTUNREACH, NULL, "etcd is silent");
	assert_int_equal(other.rc, -EHOSTUNREACH);
	assert_non_null(strstr(other.why, "etcd is silent"));
}

static void another_nodes_address_is_not_believed(void **state)
{
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(2, true, "192.0.2.7", buf, sizeof(buf));
	struct waiter x;

	(void)state;
	find(&x, peer_worker(1));
	rv_messenger_found(mess, peer_worker(1), 0, &pi, "");
	assert_int_equal(x.rc, -EHOSTUNREACH);
	assert_null(rv_peers_find(&mess->peers, peer_worker(2)));
}

static void who_waits_is_told_at_its_deadline_and_not_again(void **state)
{
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(1, true, "192.0.2.7", buf, sizeof(buf));
	struct waiter x;

	(void)state;
	find(&x, peer_worker(1));
	fake_engine_advance(&w, RV_SEC(5));
	assert_int_equal(x.nr, 1);
	assert_int_equal(x.rc, -ETIMEDOUT);
	rv_messenger_found(mess, peer_worker(1), 0, &pi, ""); /* late, and good to know */
	assert_int_equal(x.nr, 1);
	assert_non_null(rv_peers_find(&mess->peers, peer_worker(1)));
}

static void a_question_that_cannot_be_put_is_told_at_once(void **state)
{
	struct waiter x;

	(void)state;
	ask_rc = -EAGAIN;
	find(&x, 4711);
	assert_int_equal(x.nr, 1);
	assert_int_equal(x.rc, -EAGAIN);
	ask_rc = 0;
	find(&x, 4711);
	assert_int_equal(x.nr, 0);
	assert_int_equal(asked_nr, 1);
	rv_messenger_stop(mess);
}

static void those_who_wait_are_bounded(void **state)
{
	static struct waiter x[4097];

	(void)state;
	for (unsigned i = 0; i < 4097; i++)
		find(&x[i], 1000 + i % 1000);
	assert_int_equal(x[4095].nr, 0);
	assert_int_equal(asked_nr, 1000);
	assert_int_equal(x[4096].nr, 1);
	assert_int_equal(x[4096].rc, -EAGAIN);
	rv_messenger_stop(mess);
	for (unsigned i = 0; i < 4096; i++)
		assert_true(x[i].nr == 1 && x[i].rc == -ESHUTDOWN);
	find(&x[0], 1000);
	assert_int_equal(x[0].nr, 1);
}

/* Each holds a cell of the net core. */
static void questions_that_are_out_are_bounded_when_nobody_waits_any_more(void **state)
{
	struct waiter x;

	(void)state;
	for (unsigned i = 0; i < 5000; i++) {
		find(&x, 1000 + i);
		assert_int_equal(x.nr, i < 1024 ? 0 : 1);
		assert_int_equal(x.rc, i < 1024 ? 77 : -EAGAIN);
		fake_engine_advance(&w, RV_SEC(5));
		assert_int_equal(x.nr, 1);
	}
	assert_int_equal(asked_nr, 1024);
	rv_messenger_found(mess, 1000, -ENOENT, NULL, "");
	find(&x, 9000); /* in its stead */
	assert_int_equal(x.nr, 0);
	assert_int_equal(asked_nr, 1025);
	rv_messenger_stop(mess);
}

static void who_asks_again_waits_for_the_question_that_is_out(void **state)
{
	struct waiter x;

	(void)state;
	find(&x, 99);
	fake_engine_advance(&w, RV_SEC(5));
	assert_int_equal(x.rc, -ETIMEDOUT);
	find(&x, 99);
	assert_int_equal(x.nr, 0);
	assert_int_equal(asked_nr, 1);
	rv_messenger_found(mess, 99, -ENOENT, NULL, "");
	assert_int_equal(x.rc, -EHOSTUNREACH);
	find(&x, 99); /* that was its end */
	assert_int_equal(asked_nr, 2);
	rv_messenger_stop(mess);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup_find, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(one_that_is_known_is_not_asked_for),
		TEST(where_there_is_nowhere_to_look_nothing_is_waited_for),
		TEST(all_who_wait_for_one_node_are_told_by_one_answer),
		TEST(another_nodes_address_is_not_believed),
		TEST(who_waits_is_told_at_its_deadline_and_not_again),
		TEST(a_question_that_cannot_be_put_is_told_at_once),
		TEST(those_who_wait_are_bounded),
		TEST(questions_that_are_out_are_bounded_when_nobody_waits_any_more),
		TEST(who_asks_again_waits_for_the_question_that_is_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
