/*
 * Peers that are reached by datagrams: which way a request and its answer take, and what happens to those that are
 * too long for it.
 */
#include "tests/unit/messenger_fixture.h"

#include <inttypes.h>

#include "control/messenger/headers.h"
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
	rv_messenger_set_datagrams(mess, 0, &air.carrier);
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
	rv_messenger_set_datagrams(mess, 0, NULL);
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

static void long_answers_that_nobody_reads_are_bounded(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	const unsigned fit = RV_LINK_QUEUE / RV_MIB(1);
	struct fake_link *tcp;
	char text[192];
	size_t len;

	(void)state;
	/* It never takes the connection. */
	for (uint16_t i = 1; i <= fit; i++)
		answer_with(worker, i, RV_MIB(1));
	assert_true(fake_link_quiet(newest()));
	answer_with(worker, fit + 1, RV_MIB(1));
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_non_null(strstr(text, "does not read"));
	/* What waited fails with the connection, and there is room again. */
	fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNREFUSED);
	for (unsigned i = 0; i < fit; i++)
		assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	fake_engine_advance(&w, RV_SEC(10));
	answer_with(worker, fit + 2, RV_MIB(1));
	tcp = greet();
	assert_int_equal(need_response(tcp, text, sizeof(text), &len), 0);
	/* Now it takes the connection, and reads nothing. */
	tcp->queued = RV_LINK_QUEUE;
	answer_with(worker, fit + 3, RV_MIB(1));
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_non_null(strstr(text, "does not read"));
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

/* Ways that are idle. */

static uint64_t add_ours(uint8_t number)
{
	uint64_t worker = add(number, "192.0.2.7", FRAME_MAX);

	rv_peers_find(&mess->peers, worker)->is_rvd = true;
	return worker;
}

static void idle(uint64_t worker)
{
	rv_messenger_events()->idle(mess, &air.carrier, worker);
	fake_engine_run(&w);
}

static void a_node_of_ours_is_told_goodbye_before_our_way_to_it_closes(void **state)
{
	uint64_t worker = add_ours(NUMBER);
	struct fake_link *l;
	struct request r;

	(void)state;
	idle(worker);
	assert_int_equal(air.retires + air.keeps, 0);
	l = greet();
	r = need_request(l, "_rvd_goodbye");
	assert_int_equal(r.kind, RV_CALL_SYNC);
	assert_int_equal(air.retires, 0);
	ack(l, &r.id, false, "");
	assert_int_equal(air.retires, 1);
	assert_int_equal(air.told_worker, worker);
	assert_true(air.agreed && !air.retire_ctx);
	/* One that uses it does not agree. */
	idle(worker);
	r = need_request(l, "_rvd_goodbye");
	ack(l, &r.id, true, "the way between us is in use");
	assert_int_equal(air.retires, 1);
	assert_int_equal(air.keeps, 1);
	/* The answer is lost: it may have closed. */
	idle(worker);
	need_request(l, "_rvd_goodbye");
	fake_engine_advance(&w, RV_SEC(11));
	assert_int_equal(air.retires, 2);
}

/* The incarnation in the address of a `_hello`. */
static uint64_t told_incarnation(const char *body, size_t len)
{
	static struct rv_address a;
	struct rv_peer_info pi;
	const char *why;

	assert_int_equal(rv_body_hello_decode((const uint8_t *)body, len, &pi, &why), 0);
	assert_int_equal(rv_address_decode(pi.address, pi.address_len, 2, &a), 0);
	rv_peer_info_fini(&pi);
	assert_true(a.has_ucx);
	return a.ucx.incarnation;
}

static void give_ourselves_ucx(void)
{
	static struct rv_address a;
	uint8_t buf[512];
	struct rv_writer wr = rv_writer(buf, sizeof(buf));

	memset(&a, 0, sizeof(a));
	a.has_ucx = true;
	a.ucx = (struct rv_ucx_blob){2, FRAME_MAX, 7, (const uint8_t *)"ours", 4};
	assert_int_equal(rv_address_encode(&wr, &a), 0);
	assert_int_equal(rv_messenger_set_address(mess, buf, wr.len), 0);
}

static void a_stock_node_is_greeted_under_another_incarnation_and_used_under_it(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX), first;
	struct fake_ask *ask;
	struct fake_link *l;
	struct request r;

	(void)state;
	give_ourselves_ucx();
	ask = call_peer(RV_PEER_METADATA, worker);
	fake_engine_run(&w);
	l = fake_carrier_link(&carrier, 0);
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	assert_int_equal(told_incarnation(r.body, r.body_len), 7);
	hello_answer(l, &r.id, -1, false);
	r = need_request(l, "_rv_metadata");
	respond_text(l, &r.id, 1, "no");
	call_outcome(ask);
	idle(worker);
	r = need_request(l, "_hello");
	first = told_incarnation(r.body, r.body_len);
	assert_true(first != 7 && first != 0);
	assert_int_equal(air.retires, 0);
	hello_answer(l, &r.id, -1, false);
	assert_int_equal(air.retires, 1);
	assert_true(air.agreed);
	request(common(), worker, 1, RV_CALL_UNARY, "_list_handlers", "null");
	assert_true(newest()->as == first);
	/* Each time another. */
	idle(worker);
	r = need_request(l, "_hello");
	assert_true(told_incarnation(r.body, r.body_len) != first);
	respond_text(l, &r.id, 1, "refused");
	assert_int_equal(air.retires, 1);
	assert_int_equal(air.keeps, 1);
}

static void a_stock_node_that_may_be_reading_from_us_keeps_its_way(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	uint64_t slot = fake_stage(&w, RV_KIB(64), 0x33, true, 1000);
	char text[4 * RV_PEER_DESC_MAX], body[160];
	size_t len;

	(void)state;
	snprintf(body, sizeof(body),
		 "{\"handle\":{\"hi\":%" PRIu64 ",\"lo\":%" PRIu64
		 "},\"rdma\":{\"backends\":[\"ucx\"]}}",
		 (uint64_t)FAKE_WORKER, slot);
	request(common(), worker, 1, RV_CALL_UNARY, "_rv_acquire", body);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 0);
	assert_non_null(strstr(text, "Rdma"));
	idle(worker);
	assert_int_equal(air.keeps, 1);
	assert_int_equal(carrier.dials, 0);
}

static void who_cannot_be_told_keeps_its_way(void **state)
{
	uint64_t only_air = add(NUMBER, NULL, FRAME_MAX), ours = add_ours(NUMBER + 1);

	(void)state;
	idle(only_air);
	idle(12345); /* nobody */
	assert_int_equal(air.keeps, 2);
	idle(ours);
	fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNREFUSED);
	fake_engine_run(&w);
	assert_int_equal(air.keeps, 3);
	rv_messenger_drain(mess);
	idle(ours);
	assert_int_equal(air.keeps, 4);
	assert_int_equal(air.retires, 0);
}

static void a_goodbye_is_answered_once_our_end_is_closed_or_in_use(void **state)
{
	uint64_t worker = add_ours(NUMBER);
	struct fake_link *in = fake_link_accept(&carrier);
	uint8_t head[64];
	size_t head_len =
		request_header(head, sizeof(head), worker, 1, RV_CALL_SYNC, "_rvd_goodbye");
	struct rv_ack_header h;
	struct fake_sent *s;

	(void)state;
	for (int rc = 0; rc >= -EBUSY; rc -= EBUSY) {
		fake_link_frame(in, RV_FRAME_MESSAGE, head, head_len, "\0\0\0\0", 4);
		fake_engine_run(&w);
		assert_true(fake_link_quiet(in));
		assert_false(air.agreed);
		assert_int_equal(air.told_worker, worker);
		rv_messenger_events()->retired(mess, air.retire_ctx, rc);
		s = fake_link_take(in);
		assert_int_equal(s->type, RV_FRAME_ACK);
		assert_int_equal(rv_ack_header_decode(s->header, s->header_len, &h), 0);
		assert_int_equal(h.error, rc != 0);
		fake_sent_free(s);
	}
}

static void a_goodbye_for_a_way_that_is_none_of_ours_is_answered_at_once(void **state)
{
	static const char *const bodies[] = {"\1\0\0\0", "\0\0\1\0"};
	uint64_t worker = add_ours(NUMBER);
	struct fake_link *in = fake_link_accept(&carrier);
	uint8_t head[64];
	size_t len = request_header(head, sizeof(head), worker, 1, RV_CALL_SYNC, "_rvd_goodbye");

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		fake_link_frame(in, RV_FRAME_MESSAGE, head, len, bodies[i % 2], i < 2 ? 4 : 3);
		fake_sent_free(fake_link_take(in));
	}
	assert_int_equal(air.retires, 0);
}

/* A stock node knows one worker of ours: from the others it is only read. */
static void a_way_that_the_peer_does_not_use_closes_without_a_word(void **state)
{
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX);
	struct fake_carrier other = {.carrier = air.carrier};

	(void)state;
	rv_messenger_set_datagrams(mess, 1, &other.carrier);
	rv_messenger_events()->idle(mess, &other.carrier, worker);
	assert_int_equal(other.retires, 1);
	assert_true(other.agreed);
	assert_int_equal(carrier.dials + air.retires, 0);
	rv_messenger_set_datagrams(mess, 1, NULL);
}

/* A payload that would go with the answer is longer than most datagrams: neither end asks for one. */

static void who_is_reached_by_datagrams_is_not_asked_for_bytes(void **state)
{
	static const char *const ours[] = {"_rvd_get"};
	static uint8_t landing[1000];
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	struct rv_peer_call pc = {
		.op = RV_PEER_ACQUIRE,
		.handle = {worker, 64},
		.deadline_ns = fake_now_ns + CALL_NS,
		.bytes_max = sizeof(landing),
		.dst = landing,
		.ends = true,
	};
	struct fake_ask *ask = fake_call_start(&w, rv_messenger_calls(mess), &pc);
	char body[256];
	struct rv_writer wr = rv_writer(body, sizeof(body));
	struct fake_link *l;
	struct request r;

	(void)state;
	fake_engine_run(&w);
	l = newest();
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	rv_body_handlers_encode(&wr, ours, 1, NULL);
	respond(common(), &r.id, 0, body, wr.len);
	r = need_request(l, "_rv_acquire");
	respond_text(common(), &r.id, 1, "no");
	assert_int_equal(call_outcome(ask).rc, -EREMOTEIO);
}

static void a_datagram_that_asks_for_bytes_is_answered_with_a_grant(void **state)
{
	static const struct rv_header_pair pairs[] = {{RV_HEADER_BYTES, "1000", 4},
						      {RV_HEADER_ENDS, "1", 1}};
	uint64_t worker = add(NUMBER, "192.0.2.7", FRAME_MAX),
		 slot = fake_stage(&w, 10, 1, false, 1000);
	uint8_t map[64], head[256];
	struct rv_writer mw = rv_writer(map, sizeof(map)), wr = rv_writer(head, sizeof(head));
	struct rv_request_header h = {.kind = RV_CALL_UNARY,
				      .id = rv_msg_id_make(worker, 1, 1),
				      .name = "_rvd_get",
				      .name_len = 8,
				      .headers = map};
	char body[100], text[300];
	struct rv_body_grant g;
	const char *why;
	size_t len;

	(void)state;
	w.engine.conf.bytes_max = 65536;
	assert_int_equal(rv_headers_encode(&mw, pairs, 2), 0);
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_request_header_encode(&wr, &h), 0);
	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":%u,\"lo\":%" PRIu64 "},\"rdma\":null}",
		 FAKE_WORKER, slot);
	fake_link_frame(common(), RV_FRAME_MESSAGE, head, wr.len, body, strlen(body));
	fake_engine_run(&w);
	assert_int_equal(newest()->worker, worker);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 0);
	assert_int_equal(rv_body_grant_decode((const uint8_t *)text, len, NULL, 0, &g, &why), 0);
	assert_false(g.is_rdma);
	assert_int_equal(g.ready.total_len, 10);
	assert_int_equal(fake_slot(&w, slot)->locks, 1); /* what is pulled needs a lease */
}

/* Their payloads would be more than one holds. */
static void many_by_a_datagram_are_refused(void **state)
{
	uint64_t worker = add(NUMBER, NULL, FRAME_MAX);
	char text[512];
	size_t len;

	(void)state;
	request(common(), worker, 1, RV_CALL_UNARY, "_rvd_get_many",
		"room" /* and */ "each" /* of */ "the slot");
	fake_engine_run(&w);
	fake_link_connected(newest(), 0);
	assert_int_equal(need_response(newest(), text, sizeof(text), &len), 1);
	assert_string_equal(text, "answered by connections only, with their bytes");
	assert_int_equal(rv_messenger_pending(mess), 0);
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
		AIR(long_answers_that_nobody_reads_are_bounded),
		AIR(a_chunk_too_long_for_a_datagram_is_an_error_and_leaves_the_transfer),
		AIR(a_draining_node_refuses_datagrams_too),
		AIR(beyond_what_pauses_a_connection_calls_are_told_busy),
		AIR(a_node_of_ours_is_told_goodbye_before_our_way_to_it_closes),
		AIR(a_stock_node_is_greeted_under_another_incarnation_and_used_under_it),
		AIR(a_stock_node_that_may_be_reading_from_us_keeps_its_way),
		AIR(who_cannot_be_told_keeps_its_way),
		AIR(a_goodbye_is_answered_once_our_end_is_closed_or_in_use),
		AIR(a_goodbye_for_a_way_that_is_none_of_ours_is_answered_at_once),
		AIR(a_way_that_the_peer_does_not_use_closes_without_a_word),
		AIR(who_is_reached_by_datagrams_is_not_asked_for_bytes),
		AIR(a_datagram_that_asks_for_bytes_is_answered_with_a_grant),
		AIR(many_by_a_datagram_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
