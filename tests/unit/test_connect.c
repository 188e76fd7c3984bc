/* Velo's protocol on a scripted carrier: connections by address, and who makes room for them. */
#include "tests/unit/messenger_fixture.h"

#include "control/messenger/messenger_impl.h"

#define READY \
	"{\"Ready\":{\"lease_id\":7,\"transfer_id\":8,\"total_len\":1200000,\"chunk_size\":524288,\"chunk_count\":3}}"

/* Connecting by address. */

static struct connects {
	unsigned nr;
	struct rv_connect_result last;
	char why[160];
} connects;

static void connected(void *ctx, const struct rv_connect_result *r)
{
	struct connects *c = ctx;

	c->nr++;
	c->last = *r;
	snprintf(c->why, sizeof(c->why), "%s", r->why);
}

static void connect_to(const char *host, uint64_t expected)
{
	connects.nr = 0;
	rv_messenger_connect(mess, host, 7000, expected, NULL, fake_now_ns + RV_SEC(3), connected,
			     &connects);
	fake_engine_run(&w);
}

static void connecting_to_whoever_answers_tells_who_that_is(void **state)
{
	struct fake_link *l;
	struct request r;

	(void)state;
	connect_to("192.0.2.9", 0);
	l = fake_carrier_link(&carrier, 0);
	assert_string_equal(l->host, "192.0.2.9");
	assert_int_equal(l->port, 7000);
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 3, true);
	assert_int_equal(connects.nr, 1);
	assert_int_equal(connects.last.rc, 0);
	assert_true(connects.last.told);
	assert_int_equal(connects.last.worker, peer_worker(3));
	assert_true(l->closing); /* it was only asked who it is */
}

/* Two people ask at once who is at two addresses. */
static void nobody_is_told_who_answers_at_another_address(void **state)
{
	static struct connects a, b;
	struct fake_link *l;
	struct request r;

	(void)state;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	rv_messenger_connect(mess, "192.0.2.9", 7000, 0, NULL, fake_now_ns + RV_SEC(3), connected,
			     &a);
	rv_messenger_connect(mess, "192.0.2.10", 7000, 0, NULL, fake_now_ns + RV_SEC(3), connected,
			     &b);
	fake_engine_run(&w);
	for (unsigned i = 0; i < carrier.link_nr; i++) {
		l = fake_carrier_link(&carrier, i);
		if (l->closing) {
			fake_link_closed(l, l->close_rc);
			continue;
		}
		fake_link_connected(l, 0);
		r = need_request(l, "_hello");
		hello_answer(l, &r.id, strcmp(l->host, "192.0.2.9") == 0 ? 3 : 4, true);
	}
	fake_engine_advance(&w, RV_SEC(4));
	assert_int_equal(a.nr, 1);
	assert_int_equal(b.nr, 1);
	assert_true(a.last.rc < 0 || a.last.worker == peer_worker(3));
	assert_true(b.last.rc < 0 || b.last.worker == peer_worker(4));
}

static void a_stock_node_does_not_say_who_it_is(void **state)
{
	(void)state;
	connect_to("192.0.2.9", 55555);
	greet();
	assert_int_equal(connects.nr, 1);
	assert_int_equal(connects.last.rc, 0);
	assert_false(connects.last.told);
	assert_int_equal(connects.last.worker, 55555);
	connect_to("192.0.2.9", 55555); /* it is up: no second connection */
	assert_int_equal(connects.nr, 1);
	assert_int_equal(carrier.dials, 1);
}

/* "127.0.0.1" in the reference of a node elsewhere. */
static void a_reference_that_leads_to_this_node_does_not_keep_the_right_one_out(void **state)
{
	uint64_t owner = peer_worker(3);
	struct fake_link *l;
	struct request r;

	(void)state;
	connect_to("127.0.0.1", owner);
	l = fake_carrier_link(&carrier, 0);
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 0xee, true); /* as this node answers, see the next */
	assert_int_equal(connects.last.rc, 0);
	assert_false(connects.last.told);
	assert_null(rv_peers_find(rv_messenger_peers(mess), peer_worker(0xee)));
	connect_to("192.0.2.9", owner);
	assert_true(l->closing);
	l = fake_carrier_link(&carrier, 1);
	assert_string_equal(l->host, "192.0.2.9");
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 3, true);
	assert_int_equal(connects.last.rc, 0);
	assert_true(connects.last.told);
	assert_int_equal(connects.last.worker, owner);
}

static void connecting_fails_with_words_or_at_its_deadline(void **state)
{
	(void)state;
	connect_to("192.0.2.9", 55555);
	fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNREFUSED);
	assert_int_equal(connects.nr, 1);
	assert_int_equal(connects.last.rc, -EHOSTUNREACH);
	assert_string_equal(connects.why, "192.0.2.9:7000: connection refused");
	connect_to("192.0.2.9", 55555);
	assert_int_equal(carrier.dials, 1);
	fake_engine_advance(&w, RV_MS(76)); /* the backoff is waited for */
	assert_int_equal(carrier.dials, 2);
	fake_engine_advance(&w, RV_SEC(3));
	assert_int_equal(connects.nr, 1);
	assert_int_equal(connects.last.rc, -ETIMEDOUT);
	fake_link_connected(fake_carrier_link(&carrier, 1), -ETIMEDOUT);
	assert_int_equal(connects.nr, 1);
	connect_to(
		"a name much too long for an address "
		"................................................................................................"
		"................................................................................................"
		"................................................................................................",
		55555);
	assert_int_equal(connects.nr, 1);
	assert_true(connects.last.rc < 0);
}

static void connecting_again_and_again_dials_no_more_often_than_the_backoff_allows(void **state)
{
	unsigned failed = 0;

	(void)state;
	connect_to("192.0.2.9", 55555);
	for (unsigned ms = 0; ms < 3000; ms++) {
		struct fake_link *l = fake_carrier_link(&carrier, carrier.link_nr - 1);

		if (l->connecting)
			fake_link_connected(l, -ECONNREFUSED);
		if (connects.nr) {
			assert_string_equal(connects.why, "192.0.2.9:7000: connection refused");
			failed++;
			connect_to("192.0.2.9", 55555);
		}
		fake_engine_advance(&w, RV_MS(1));
	}
	assert_in_range(carrier.dials, 4,
			7); /* 50, 100, 200, 400, 800, 1600 ms apart, and up to half more */
	assert_in_range(failed, carrier.dials - 1, carrier.dials);
	/* Its deadline comes before its turn: it is told why nobody is dialed. */
	fake_engine_advance(&w, RV_SEC(3));
	for (unsigned i = 0; i < 3; i++) {
		struct fake_link *l = fake_carrier_link(&carrier, carrier.link_nr - 1);

		if (l->connecting)
			fake_link_connected(l, -ECONNREFUSED);
		connect_to("192.0.2.9", 55555);
		fake_engine_advance(&w, RV_SEC(3));
	}
	assert_int_equal(connects.last.rc, -EHOSTUNREACH);
	assert_string_equal(connects.why, "192.0.2.9:7000: connection refused");
}

/* A call on a new connection, which breaks off after so long. */
static void break_off_after(uint64_t owner, uint64_t ns)
{
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct fake_link *l = greet();

	fake_engine_advance(&w, ns);
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(call_outcome(a).rc, -ECONNRESET);
}

static void connections_that_never_last_are_made_less_and_less_often(void **state)
{
	uint64_t owner = add_peer(1, false);

	(void)state;
	break_off_after(owner, 0);
	break_off_after(owner, 0); /* the first is missed at once */
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, owner)).rc, -EHOSTUNREACH);
	assert_int_equal(carrier.dials, 2);
	fake_engine_advance(&w, RV_MS(76));
	break_off_after(owner, 0);
	fake_engine_advance(&w, RV_MS(99));
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, owner)).rc, -EHOSTUNREACH);
	fake_engine_advance(&w, RV_MS(52));
	break_off_after(owner, RV_SEC(1)); /* this one lasted */
	break_off_after(owner, 0);
	assert_int_equal(carrier.dials, 5);
}

/* "What is known and works is not re-pointed by a reference": its advertised address differs from the dialed one. */
static void a_reference_to_a_peer_that_is_up_keeps_its_connection(void **state)
{
	struct fake_link *l;
	struct request r;
	struct fake_ask *a;

	(void)state;
	connect_to("192.0.2.9", peer_worker(1));
	l = fake_carrier_link(&carrier, 0);
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 1, true); /* and says that it is to be dialed at 192.0.2.7 */
	assert_int_equal(connects.last.rc, 0);
	a = call_peer(RV_PEER_ACQUIRE, peer_worker(1));
	r = take_request(l);
	connect_to("192.0.2.9", peer_worker(1)); /* the next get by the same reference */
	if (l->closing)
		fake_link_closed(l, l->close_rc);
	else
		respond_text(l, &r.id, 0, READY);
	assert_int_equal(call_outcome(a).rc, 0);
	assert_int_equal(connects.nr, 1);
	assert_int_equal(carrier.dials, 1);
}

/* Another node answers there, so what is known does not work: a reference to elsewhere is followed. */
static void a_reference_re_points_a_peer_that_is_not_where_it_was_looked_for(void **state)
{
	struct fake_link *l;
	struct request r;

	(void)state;
	connect_to("192.0.2.9", peer_worker(1));
	l = fake_carrier_link(&carrier, 0);
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 2, true);
	connect_to("192.0.2.10", peer_worker(1));
	assert_int_equal(carrier.dials, 2);
	l = fake_carrier_link(&carrier, 1);
	assert_string_equal(l->host, "192.0.2.10");
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 1, true);
	assert_int_equal(connects.last.rc, 0);
	assert_int_equal(connects.last.worker, peer_worker(1));
}

/* The old connection's end is told after the new one is up: its `_hello` is not the new one's. */
static void an_old_connections_hello_does_not_end_the_new_connection(void **state)
{
	struct fake_link *first, *second;
	struct request r;

	(void)state;
	connect_to("192.0.2.9", 55555);
	first = fake_carrier_link(&carrier, 0);
	fake_link_connected(first, 0);
	need_request(first, "_hello"); /* never answered */
	connect_to("192.0.2.10", 55555);
	assert_true(first->closing);
	second = fake_carrier_link(&carrier, 1);
	fake_link_connected(second, 0);
	r = need_request(second, "_hello");
	fake_link_closed(first, -ECONNRESET);
	fake_engine_run(&w);
	assert_false(second->closing);
	hello_answer(second, &r.id, -1, false);
	assert_true(connects.nr > 0);
	assert_int_equal(connects.last.rc, 0);
}

static void a_full_table_of_peers_has_room_when_nothing_is_asked_of_some(void **state)
{
	enum { UP = 1, DIALING, NAMED };
	uint64_t up_to = add_peer(UP, true), dialing = add_peer(DIALING, true),
		 named = add_peer(NAMED, true);
	struct fake_link *l = up(up_to);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, dialing);
	unsigned heard = 0, asked = 0;

	(void)state;
	rv_peers_find(&mess->peers, named)->name[0] = 'x';
	for (uint64_t i = 1; mess->peers.by_worker.nr < RV_PEERS_MAX; i++) {
		struct rv_peer *p = rv_peers_get(&mess->peers, i);

		assert_non_null(p);
		if (i % 8)
			assert_non_null(rv_route_of(mess, p));
	}
	for (uint64_t i = 0; i < 1000; i++) {
		struct rv_peer *p = rv_messenger_peer(mess, RV_NEVER - 1 - i);

		assert_non_null(p);
		assert_int_equal(mess->peers.by_worker.nr, RV_PEERS_MAX);
		p->name[0] = 'x';
	}
	for (uint64_t i = 1; i < RV_PEERS_MAX - 3; i++) {
		heard += i % 8 == 0 && !rv_peers_find(&mess->peers, i);
		asked += i % 8 != 0 && !rv_peers_find(&mess->peers, i);
	}
	assert_int_equal(heard, 1000); /* first those that were never asked for anything */
	assert_int_equal(asked, 0);
	/* Who is in use, or has a name, stays. */
	while (rv_messenger_evict_peer(mess))
		;
	assert_int_equal(mess->peers.by_worker.nr, 3 + 1000);
	assert_non_null(rv_peers_find(&mess->peers, up_to));
	assert_non_null(rv_peers_find(&mess->peers, dialing));
	assert_non_null(rv_peers_find(&mess->peers, named));
	/* What was under way goes on, and once it is over there is nothing that keeps them. */
	fake_link_connected(fake_carrier_link(&carrier, 1), -ECONNREFUSED);
	assert_int_equal(call_outcome(a).rc, -EHOSTUNREACH);
	fake_link_closed(l, -ECONNRESET);
	assert_true(rv_messenger_evict_peer(mess) && rv_messenger_evict_peer(mess));
	assert_false(rv_messenger_evict_peer(mess));
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, up_to)).rc, -EHOSTUNREACH);
}

static void addresses_that_were_asked_once_make_room_for_others(void **state)
{
	char host[32];

	(void)state;
	for (unsigned i = 0; i < RV_PEERS_MAX; i++) {
		snprintf(host, sizeof(host), "10.1.%u.%u", i >> 8, i & 255);
		carrier.no_dial = i != 7;
		connect_to(host, 0);
	}
	assert_int_equal(mess->unknown.nr, RV_PEERS_MAX);
	for (unsigned i = 0; i < RV_PEERS_MAX + 3; i++)
		assert_int_equal(rv_messenger_evict_unknown(mess), i < RV_PEERS_MAX - 1);
	assert_int_equal(mess->unknown.nr, 1);
	connect_to("10.2.0.1", 0);
	assert_int_equal(mess->unknown.nr, 2);
}

static void make_all_room(void *ctx, const struct rv_connect_result *r)
{
	while (rv_messenger_evict_peer(mess) || rv_messenger_evict_unknown(mess))
		;
	connected(ctx, r);
}

static void who_is_told_of_a_failure_may_need_room_for_another_peer(void **state)
{
	(void)state;
	for (uint64_t expected = 0; expected < 2; expected++) {
		connects.nr = 0;
		for (unsigned i = 0; i < 2; i++)
			rv_messenger_connect(mess, "192.0.2.7", 7000, expected, NULL,
					     fake_now_ns + RV_SEC(3), make_all_room, &connects);
		fake_link_connected(fake_carrier_link(&carrier, (unsigned)expected), -ECONNREFUSED);
		assert_int_equal(connects.nr, 2);
		assert_int_equal(connects.last.rc, -EHOSTUNREACH);
		make_all_room(&connects, &connects.last);
		assert_int_equal(mess->unknown.nr, 0);
		assert_int_equal(mess->peers.by_worker.nr, 0);
	}
}

static void stopping_fails_everything_that_waits_for_a_peer(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	bool told;

	(void)state;
	connect_to("192.0.2.9", 55555);
	rv_messenger_stop(mess);
	fake_engine_run(&w);
	told = a->back && connects.nr == 1;
	if (!told) {
		fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNRESET);
		fake_link_connected(fake_carrier_link(&carrier, 1), -ECONNRESET);
	}
	assert_true(call_outcome(a).rc < 0);
	assert_true(told);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MESSENGER(connecting_to_whoever_answers_tells_who_that_is),
		MESSENGER(nobody_is_told_who_answers_at_another_address),
		MESSENGER(a_stock_node_does_not_say_who_it_is),
		MESSENGER(a_reference_that_leads_to_this_node_does_not_keep_the_right_one_out),
		MESSENGER(connecting_fails_with_words_or_at_its_deadline),
		MESSENGER(connecting_again_and_again_dials_no_more_often_than_the_backoff_allows),
		MESSENGER(connections_that_never_last_are_made_less_and_less_often),
		MESSENGER(a_reference_to_a_peer_that_is_up_keeps_its_connection),
		MESSENGER(a_reference_re_points_a_peer_that_is_not_where_it_was_looked_for),
		MESSENGER(an_old_connections_hello_does_not_end_the_new_connection),
		MESSENGER(a_full_table_of_peers_has_room_when_nothing_is_asked_of_some),
		MESSENGER(addresses_that_were_asked_once_make_room_for_others),
		MESSENGER(who_is_told_of_a_failure_may_need_room_for_another_peer),
		MESSENGER(stopping_fails_everything_that_waits_for_a_peer),
	};

	return cmocka_run_group_tests_name("connect", tests, NULL, NULL);
}
