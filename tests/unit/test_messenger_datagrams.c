/*
 * Peers that are reached by datagrams: which way a request and its answer take, and what happens to those that are
 * too long for it.
 */
#include "tests/unit/messenger_fixture.h"

#include <inttypes.h>

#include "control/messenger/served.h"

#define FRAME_MAX 4096u
#define NUMBER    0x51

static struct fake_carrier air; /* the datagrams */

/* A peer of the number's instance with a fabric address, and a TCP one if @ip. */
static uint64_t add(uint8_t number, const char *ip, uint32_t frame_max)
{
	static struct rv_address a; /* large */
	uint8_t buf[512], worker_addr[8] = "address";
	struct rv_writer wr = rv_writer(buf, sizeof(buf));
	struct rv_peer_info pi = {.address = buf};
	uint64_t worker = 0;
	const char *why;

	memset(&a, 0, sizeof(a));
	if (ip) {
		a.tcp_nr = 1;
		a.tcp[0] = (struct rv_tcp_endpoint){.port = 7471, .numa = -1};
		snprintf(a.tcp[0].ip, sizeof(a.tcp[0].ip), "%s", ip);
	}
	a.has_ucx = true;
	a.ucx = (struct rv_ucx_blob){2, frame_max, 5, worker_addr, sizeof(worker_addr)};
	assert_int_equal(rv_address_encode(&wr, &a), 0);
	pi.address_len = wr.len;
	memset(pi.instance, number, sizeof(pi.instance));
	if (rv_messenger_add_peer(mess, &pi, NULL, &worker, &why))
		return 0;
	fake_engine_run(&w);
	return worker;
}

static int setup_air(void **state)
{
	setup(state);
	fake_carrier_init_datagrams(&air, rv_messenger_events(), mess);
	rv_messenger_set_datagrams(mess, &air.carrier);
	return 0;
}

static int finish_air(void **state)
{
	rv_messenger_stop(mess);
	fake_carrier_fini(&air);
	assert_int_equal(mess->reached.nr, 0);
	return finish(state);
}

static struct fake_link *common(void)
{
	return fake_carrier_link(&air, 0);
}

static struct fake_link *newest(void)
{
	return fake_carrier_link(&air, air.link_nr - 1);
}

/* Bring the route to a peer without a TCP address up. */
static struct fake_link *greet_by_air(void)
{
	struct fake_link *l;
	struct request r;

	fake_engine_run(&w);
	l = newest();
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(common(), &r.id, -1, false);
	return l;
}

/* The oldest frame sent on @l; the outcome of the response it is. */
static unsigned need_response(struct fake_link *l, char *text, size_t cap, size_t *len)
{
	struct rv_response_header h;
	struct fake_sent *s;
	unsigned outcome;

	fake_engine_run(&w);
	s = fake_link_take(l);
	assert_int_equal(s->type, RV_FRAME_RESPONSE);
	assert_int_equal(rv_response_header_decode(s->header, s->header_len, &h), 0);
	outcome = h.outcome;
	*len = s->payload_len;
	memset(text, 0, cap);
	memcpy(text, s->payload, rv_min_u64(s->payload_len, cap - 1));
	fake_sent_free(s);
	return outcome;
}

static void a_peer_with_a_tcp_address_is_asked_by_tcp(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	struct fake_ask *ask = call_peer(RV_PEER_METADATA, worker);
	struct request r;

	(void)state;
	assert_int_equal(air.reached, 0);
	r = need_request(greet(), "_rv_metadata");
	respond_text(fake_carrier_link(&carrier, 0), &r.id, 1, "no");
	assert_int_equal(call_outcome(ask).rc, -EREMOTEIO);
}

static void a_peer_without_one_is_greeted_and_asked_by_datagrams(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	struct fake_ask *ask = call_peer(RV_PEER_METADATA, worker);
	struct fake_link *l = greet_by_air();
	struct request r = need_request(l, "_rv_metadata");
	struct rv_peer_call pc;

	(void)state;
	assert_int_equal(l->worker, worker);
	assert_int_equal(l->frame_max, FRAME_MAX);
	assert_int_equal(carrier.dials, 0);
	respond_text(common(), &r.id, 0, "{\"total_len\":9,\"refcount\":1,\"pinned\":true}");
	pc = call_outcome(ask);
	assert_int_equal(pc.rc, 0);
	assert_int_equal(pc.meta.total_len, 9);
	/* The way is made: the next call goes out at once. */
	ask = call_peer(RV_PEER_METADATA, worker);
	r = need_request(l, "_rv_metadata");
	respond_text(common(), &r.id, 1, "no");
	assert_int_equal(call_outcome(ask).rc, -EREMOTEIO);
	assert_int_equal(air.reached, 1);
}

static void without_datagrams_such_a_peer_is_of_no_use(void **state)
{
	(void)state;
	rv_messenger_set_datagrams(mess, NULL);
	assert_int_equal(add(NUMBER, NULL, FRAME_MAX), 0);
	assert_int_not_equal(add(NUMBER, "192.0.2.7", FRAME_MAX), 0);
}

static void a_way_that_cannot_be_made_or_breaks_fails_who_waits(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	struct fake_ask *ask = call_peer(RV_PEER_METADATA, worker);
	struct rv_peer_call pc;
	struct fake_link *l;

	(void)state;
	fake_link_connected(newest(), -EHOSTUNREACH);
	pc = call_outcome(ask);
	assert_int_equal(pc.rc, -EHOSTUNREACH);
	assert_non_null(strstr(pc.text, "by UCX"));
	fake_engine_advance(&w, RV_SEC(1));
	ask = call_peer(RV_PEER_METADATA, worker);
	l = greet_by_air();
	need_request(l, "_rv_metadata");
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(call_outcome(ask).rc, -ECONNRESET);
	/* Whoever comes next makes it anew. */
	ask = call_peer(RV_PEER_METADATA, worker);
	l = greet_by_air();
	need_request(l, "_rv_metadata");
	assert_int_equal(air.reached, 3);
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(call_outcome(ask).rc, -ECONNRESET);
}

static void a_request_is_answered_to_who_its_id_names(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	char text[256];
	size_t len;

	(void)state;
	request(common(), worker, 1, RV_CALL_UNARY, "_rv_metadata",
		"{\"handle\":{\"hi\":1,\"lo\":64}}");
	assert_int_equal(newest()->worker, worker);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_non_null(strstr(text, "rendezvous handle not found"));
	assert_int_equal(carrier.dials, 0);
	/* The way was closed meanwhile: a new one is made for the next answer. */
	fake_link_closed(newest(), -ECONNRESET);
	request(common(), worker, 2, RV_CALL_SYNC, "nobody", "");
	assert_int_equal(air.reached, 2);
	assert_false(fake_link_quiet(newest()));
}

static void a_stranger_is_answered_once_he_said_hello(void **state)
{
	char body[2048], text[64];
	uint8_t buf[512];
	struct rv_writer wr = rv_writer(body, sizeof(body));
	struct rv_peer_info pi;
	static struct rv_address a;
	struct rv_writer aw = rv_writer(buf, sizeof(buf));
	size_t len;

	(void)state;
	request(common(), peer_worker(NUMBER), 1, RV_CALL_UNARY, "_list_handlers", "null");
	assert_int_equal(air.link_nr, 1); /* nobody knows where to */
	memset(&a, 0, sizeof(a));
	a.has_ucx = true;
	a.ucx = (struct rv_ucx_blob){2, FRAME_MAX, 5, (const uint8_t *)"address", 7};
	assert_int_equal(rv_address_encode(&aw, &a), 0);
	pi = (struct rv_peer_info){.address = buf, .address_len = aw.len};
	memset(pi.instance, NUMBER, sizeof(pi.instance));
	rv_body_hello_encode(&wr, &pi);
	body[wr.len] = '\0';
	request(common(), peer_worker(NUMBER), 2, RV_CALL_UNARY, "_hello", body);
	assert_int_equal(newest()->worker, peer_worker(NUMBER));
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 0);
}

/* A program that serves `long`. */

static uint64_t asked;

static bool deliver(struct rv_server *s, const struct rv_served_request *r)
{
	(void)s;
	asked = r->id;
	return true;
}

static struct rv_server server = {.deliver = deliver};

/* @worker calls it by datagram, and is answered with @len bytes. */
static void answer_with(uint64_t worker, uint16_t slot, size_t len)
{
	uint8_t *reply = calloc(1, len);

	assert_non_null(reply);
	if (slot == 1)
		assert_int_equal(rv_served_add(mess, "long", &server), 0);
	request(common(), worker, slot, RV_CALL_UNARY, "long", "");
	assert_int_equal(rv_served_answer(mess, &server, asked, false, reply, len), 0);
	free(reply);
	fake_engine_run(&w);
}

static void an_answer_too_long_for_a_datagram_goes_by_tcp(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	const size_t most = FRAME_MAX - RV_RESPONSE_HEADER_MIN;
	char text[8];
	size_t len;

	(void)state;
	answer_with(worker, 1, most);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 0);
	assert_int_equal(len, most);
	assert_int_equal(carrier.dials, 0);
	answer_with(worker, 2, most + 1);
	assert_true(fake_link_quiet(newest()));
	assert_int_equal(need_response(greet(), text, sizeof(text), &len), 0);
	assert_int_equal(len, most + 1);
}

static void where_there_is_no_tcp_it_is_an_error(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	char text[128];
	size_t len;

	(void)state;
	answer_with(worker, 1, FRAME_MAX);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_non_null(strstr(text, "4096 bytes are more than fit"));
}

static void and_where_tcp_fails_too(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	char text[128];
	size_t len;

	(void)state;
	answer_with(worker, 1, FRAME_MAX);
	fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNREFUSED);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_non_null(strstr(text, "are more than fit"));
}

static void a_chunk_too_long_for_a_datagram_is_an_error_and_leaves_the_transfer(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	uint64_t slot = fake_stage(&w, 9000, 0x33, true, 1000);
	char text[256], body[160];
	struct rv_body_grant g;
	uint8_t desc[RV_PEER_DESC_MAX];
	size_t len;

	(void)state;
	snprintf(body, sizeof(body),
		 "{\"handle\":{\"hi\":%" PRIu64 ",\"lo\":%" PRIu64 "},\"rdma\":null}",
		 (uint64_t)FAKE_WORKER, slot);
	request(common(), worker, 1, RV_CALL_UNARY, "_rv_acquire", body);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 0);
	assert_int_equal(rv_body_grant_decode((uint8_t *)text, len, desc, sizeof(desc), &g, NULL),
			 0);
	assert_true(g.ready.chunk_size > FRAME_MAX);
	snprintf(body, sizeof(body), "{\"transfer_id\":%" PRIu64 ",\"chunk_index\":0}",
		 g.ready.transfer_id);
	request(common(), worker, 2, RV_CALL_UNARY, "_rv_pull", body);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_non_null(strstr(text, "are more than fit"));
	assert_int_equal(rv_messenger_pending(mess), 0);
}

static void a_draining_node_refuses_datagrams_too(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	uint8_t head[128];
	size_t len = request_header(head, sizeof(head), worker, 1, RV_CALL_UNARY, "_rv_ref");
	struct fake_sent *s;

	(void)state;
	assert_false(rv_messenger_refuses(mess, head, len));
	rv_messenger_drain(mess);
	assert_true(rv_messenger_refuses(mess, head, len));
	assert_false(
		rv_messenger_refuses(mess, head, 5)); /* no header: dropped later, as everywhere */
	fake_link_frame(common(), RV_FRAME_MESSAGE, head, len, "", 0);
	s = fake_link_take(newest());
	assert_int_equal(s->type, RV_FRAME_SHUTTING_DOWN);
	assert_int_equal(s->header_len, len);
	assert_memory_equal(s->header, head, len);
	fake_sent_free(s);
	len = request_header(head, sizeof(head), worker, 1, RV_CALL_FIRE, "_rv_detach");
	assert_false(rv_messenger_refuses(mess, head, len));
}

static void beyond_what_pauses_a_connection_calls_are_told_busy(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	struct rv_ack_header h;
	struct fake_sent *s;
	struct rv_mlink *l;

	(void)state;
	l = rv_mlink_reach(mess, worker);
	assert_non_null(l);
	l->requests = RV_LINK_REQUESTS;
	request(common(), worker, 1, RV_CALL_UNARY, "_list_handlers", "null");
	s = fake_link_take(newest());
	assert_int_equal(s->type, RV_FRAME_ACK);
	assert_int_equal(rv_ack_header_decode(s->header, s->header_len, &h), 0);
	assert_true(h.error);
	fake_sent_free(s);
	l->requests = 0;
}

#define AIR(t) cmocka_unit_test_setup_teardown(t, setup_air, finish_air)

int main(void)
{
	const struct CMUnitTest tests[] = {
		AIR(a_peer_with_a_tcp_address_is_asked_by_tcp),
		AIR(a_peer_without_one_is_greeted_and_asked_by_datagrams),
		AIR(without_datagrams_such_a_peer_is_of_no_use),
		AIR(a_way_that_cannot_be_made_or_breaks_fails_who_waits),
		AIR(a_request_is_answered_to_who_its_id_names),
		AIR(a_stranger_is_answered_once_he_said_hello),
		AIR(an_answer_too_long_for_a_datagram_goes_by_tcp),
		AIR(where_there_is_no_tcp_it_is_an_error),
		AIR(and_where_tcp_fails_too),
		AIR(a_chunk_too_long_for_a_datagram_is_an_error_and_leaves_the_transfer),
		AIR(a_draining_node_refuses_datagrams_too),
		AIR(beyond_what_pauses_a_connection_calls_are_told_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
