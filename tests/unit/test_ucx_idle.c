/*
 * Endpoints that nobody uses: when one counts as idle, who is asked, and what the answer does. The clock is moved.
 */
#include "tests/unit/ucx_am_fixture.h"

#define IDLE RV_SEC(10)
#define SCAN RV_SEC(1) /* a scan's period: half of it, a second at most */

static void watch_idle(struct node *n)
{
	rv_ucx_set_idle(n->f, IDLE);
}

/* Move the clock, and let everybody see it. */
static void pass(uint64_t ns)
{
	step();
	step();
	skew_ns += ns;
	for (unsigned i = 0; i < 8; i++)
		step();
}

static unsigned endpoints(struct node *n)
{
	return (unsigned)rv_counter_get(&n->f->ops->counts(n->f, 0)->endpoints);
}

static unsigned closed_for(struct node *n, enum rv_endpoint_end why)
{
	return (unsigned)rv_counter_get(&n->f->ops->counts(n->f, 0)->closed[why]);
}

/* `a` has an endpoint to `b`, wired and at rest. */
static struct rv_link *connected(void)
{
	struct rv_link *l;

	watch_idle(&a);
	l = reach(&a, &b);
	put(l, 1, 19, 3);
	expect(&b, 0, 1, 19, 3);
	STEP_UNTIL(l->ops->queued(l) == 0);
	step_a_while();
	return l;
}

static int retire(struct node *n, const struct node *peer, bool agreed)
{
	struct rv_carrier *c = rv_ucx_am_carrier(n->am);
	unsigned before = n->retired;

	assert_int_equal(c->ops->retire(c, peer->worker, agreed, n), 0);
	STEP_UNTIL(n->retired == before + 1);
	return n->retired_rc;
}

static void after_its_time_and_a_scan_at_most_its_user_is_asked_once(void **state)
{
	(void)state;
	connected();
	pass(IDLE - RV_SEC(1));
	assert_int_equal(a.idle, 0);
	pass(RV_SEC(1) + SCAN);
	assert_int_equal(a.idle, 1);
	assert_int_equal(a.idle_worker, b.worker);
	assert_int_equal(a.closed, 0); /* its link is not over: what is sent makes another way */
	assert_int_equal(endpoints(&a), 1);
	pass(3 * IDLE);
	assert_int_equal(a.idle, 1);
}

static void without_a_time_nobody_is_asked_and_nothing_ticks(void **state)
{
	(void)state;
	connected();
	rv_ucx_set_idle(a.f, 0);
	assert_true(a.poller->ops->next_ns(a.poller) == RV_NEVER);
	pass(100 * IDLE);
	assert_int_equal(a.idle, 0);
	rv_ucx_set_idle(a.f, IDLE);
	assert_true(a.poller->ops->next_ns(a.poller) != RV_NEVER);
}

static void what_we_send_counts_as_use(void **state)
{
	struct rv_link *l = connected();

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		pass(IDLE / 2 + RV_SEC(1));
		put(l, 1, 19, 3);
		STEP_UNTIL(l->ops->queued(l) == 0);
	}
	assert_int_equal(a.idle, 0);
	pass(IDLE + 2 * SCAN);
	assert_int_equal(a.idle, 1);
}

static void what_the_peer_sends_counts_whatever_its_kind(void **state)
{
	struct rv_link *back;

	(void)state;
	connected();
	back = reach(&b, &a);
	for (unsigned type = 0; type <= 4; type++) {
		unsigned before = a.seen_nr;

		pass(IDLE / 2 + RV_SEC(1));
		put(back, type, 19, 3);
		STEP_UNTIL(a.seen_nr == before + 1);
		step();
	}
	assert_int_equal(a.idle, 0);
	pass(IDLE + 2 * SCAN);
	assert_int_equal(a.idle, 1);
}

/* A frame of a node that has told us nothing of itself. */
static void a_strangers_frames_do_not_count_but_too_many_senders_count_for_all(void **state)
{
	(void)state;
	connected();
	pass(IDLE / 2);
	rv_ucx_ep_heard(worker_of(&a), 12345);
	step();
	pass(IDLE / 2 + 2 * SCAN);
	assert_int_equal(a.idle, 1);
	rv_ucx_am_carrier(a.am)->ops->keep(rv_ucx_am_carrier(a.am), b.worker);
	step_a_while();
	for (unsigned i = 0; i < 4; i++) {
		pass(IDLE / 2 + RV_SEC(1));
		for (uint64_t tag = 1; tag <= RV_UCX_HEARD + 1; tag++)
			rv_ucx_ep_heard(worker_of(&a), tag);
		step();
	}
	assert_int_equal(a.idle, 1);
}

static void an_endpoint_with_something_under_way_is_not_idle(void **state)
{
	struct rv_ucx_ep *ep;

	(void)state;
	connected();
	ep = ((struct rv_ucx_peer *)rv_map64_get(&worker_of(&a)->peers, b.worker))->ep;
	ep->pending++;
	pass(5 * IDLE);
	assert_int_equal(a.idle, 0);
	ep->pending--;
	pass(2 * SCAN);
	assert_int_equal(a.idle, 1);
}

static void once_the_peer_agreed_it_is_closed_and_the_next_use_makes_another(void **state)
{
	struct rv_link *l;

	(void)state;
	connected();
	pass(IDLE + 2 * SCAN);
	assert_int_equal(a.idle, 1);
	assert_int_equal(retire(&a, &b, true), 0);
	assert_int_equal(endpoints(&a), 0);
	assert_int_equal(closed_for(&a, RV_EP_IDLE), 1);
	l = reach_with(&a, &b, RV_MIB(1));
	assert_int_equal(a.connected_rc, 0);
	put(l, 1, 19, 4);
	expect(&b, 1, 1, 19, 4);
	/* It closes what was idle, not what is there now. */
	assert_int_equal(retire(&a, &b, true), 0);
	assert_int_equal(endpoints(&a), 1);
}

static void what_is_sent_while_the_peer_is_asked_goes_another_way(void **state)
{
	struct rv_link *l = connected();

	(void)state;
	pass(IDLE + 2 * SCAN);
	put(l, 1, 19, 4);
	expect(&b, 1, 1, 19, 4);
	assert_int_equal(endpoints(&a), 2);
	assert_int_equal(retire(&a, &b, true), 0);
	assert_int_equal(endpoints(&a), 1);
	put(l, 1, 19, 5);
	expect(&b, 2, 1, 19, 5);
	assert_int_equal(a.closed, 0);
}

static void kept_it_is_used_as_before_and_asked_for_again_later(void **state)
{
	struct rv_carrier *c = rv_ucx_am_carrier(a.am);
	struct rv_link *l = connected();

	(void)state;
	pass(IDLE + 2 * SCAN);
	c->ops->keep(c, b.worker);
	step_a_while();
	put(l, 1, 19, 4);
	expect(&b, 1, 1, 19, 4);
	assert_int_equal(endpoints(&a), 1);
	assert_int_equal(a.idle, 1);
	pass(IDLE + 2 * SCAN);
	assert_int_equal(a.idle, 2);
}

static void a_goodbye_closes_ours_unless_it_is_in_use(void **state)
{
	struct rv_link *l = connected();
	struct rv_ucx_ep *ep;

	(void)state;
	ep = ((struct rv_ucx_peer *)rv_map64_get(&worker_of(&a)->peers, b.worker))->ep;
	ep->pending++;
	assert_int_equal(retire(&a, &b, false), -EBUSY);
	assert_int_equal(endpoints(&a), 1);
	ep->pending--;
	assert_int_equal(retire(&a, &b, false), 0);
	assert_int_equal(endpoints(&a), 0);
	assert_int_equal(closed_for(&a, RV_EP_GOODBYE), 1);
	assert_int_equal(retire(&a, &b, false), 0); /* there is none any more */
	put(l, 1, 19, 4);
	expect(&b, 1, 1, 19, 4);
	assert_int_equal(a.closed, 0);
}

static void both_may_say_goodbye_at_once(void **state)
{
	struct rv_link *l;

	(void)state;
	connected();
	watch_idle(&b);
	l = reach(&b, &a);
	put(l, 1, 19, 3);
	expect(&a, 0, 1, 19, 3);
	step_a_while();
	pass(IDLE + 2 * SCAN);
	assert_int_equal(a.idle + b.idle, 2);
	assert_int_equal(retire(&a, &b, false), 0);
	assert_int_equal(retire(&b, &a, false), 0);
	assert_int_equal(retire(&a, &b, true), 0);
	assert_int_equal(retire(&b, &a, true), 0);
	assert_int_equal(endpoints(&a) + endpoints(&b), 0);
	/* And both speak again. */
	l = reach_with(&a, &b, RV_MIB(1));
	put(l, 0, 19, 4);
	expect(&b, 1, 0, 19, 4);
	l = reach_with(&b, &a, RV_MIB(1));
	put(l, 0, 19, 5);
	expect(&a, 1, 0, 19, 5);
}

static void every_end_is_counted_by_its_reason(void **state)
{
	(void)state;
	reach(&a, &b);
	introduce_as(&a, &b, 5);
	assert_int_equal(closed_for(&a, RV_EP_REPLACED), 1);
	reach_with(&a, &b, RV_MIB(1));
	a.f->ops->abandon(a.f, 0, b.worker);
	assert_int_equal(closed_for(&a, RV_EP_ABANDONED), 1);
	reach_with(&a, &b, RV_MIB(1));
	a.f->ops->peer_down(a.f, 0, b.worker);
	assert_int_equal(closed_for(&a, RV_EP_FORGOTTEN), 1);
	assert_int_equal(endpoints(&a), 0);
	reach(&a, &b);
	assert_int_equal(endpoints(&a), 1);
}

/* Who waits for an answer over UCX alone, longer than the timeout, must not be told that the connection broke. */
static void a_link_outlives_its_idle_endpoint_but_not_its_peer(void **state)
{
	(void)state;
	connected();
	pass(IDLE + 2 * SCAN);
	assert_int_equal(retire(&a, &b, true), 0);
	assert_int_equal(endpoints(&a), 0);
	assert_int_equal(a.closed, 0);
	a.f->ops->peer_down(a.f, 0, b.worker);
	STEP_UNTIL(a.closed == 1);
}

static void the_list_says_how_each_endpoint_is(void **state)
{
	struct rv_fabric_endpoint ep;
	size_t pos = 0;

	(void)state;
	connected();
	pass(RV_SEC(3));
	assert_true(a.f->ops->endpoint(a.f, 0, &pos, &ep));
	assert_int_equal(ep.worker, b.worker);
	assert_int_equal(ep.incarnation, b.incarnation);
	assert_int_equal(ep.state, RV_PEER_UP);
	assert_in_range(ep.idle_ns, RV_SEC(3), RV_SEC(4));
	assert_int_equal(ep.gets + ep.sends, 0);
	assert_false(a.f->ops->endpoint(a.f, 0, &pos, &ep));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(after_its_time_and_a_scan_at_most_its_user_is_asked_once),
		BOTH(without_a_time_nobody_is_asked_and_nothing_ticks),
		BOTH(what_we_send_counts_as_use),
		EVERY(what_the_peer_sends_counts_whatever_its_kind),
		BOTH(a_strangers_frames_do_not_count_but_too_many_senders_count_for_all),
		BOTH(an_endpoint_with_something_under_way_is_not_idle),
		BOTH(once_the_peer_agreed_it_is_closed_and_the_next_use_makes_another),
		BOTH(what_is_sent_while_the_peer_is_asked_goes_another_way),
		BOTH(kept_it_is_used_as_before_and_asked_for_again_later),
		BOTH(a_goodbye_closes_ours_unless_it_is_in_use),
		BOTH(both_may_say_goodbye_at_once),
		BOTH(every_end_is_counted_by_its_reason),
		BOTH(a_link_outlives_its_idle_endpoint_but_not_its_peer),
		BOTH(the_list_says_how_each_endpoint_is),
	};

	rv_log_set_level(RV_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
