/* Velo's protocol on a scripted carrier: what we ask peers. */
#include "tests/unit/messenger_fixture.h"

#include "control/messenger/headers.h"
#include "control/messenger/messenger_impl.h"
#include "control/messenger/served.h"
#include "dataplane/rendezvous/descriptor.h"

#define CONSUMER 4242u

/* Outbound: routes. */

static void the_first_frame_is_hello_and_then_the_calls_that_waited(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner), *b = call_peer(RV_PEER_REF, owner);
	struct fake_link *l = fake_carrier_link(&carrier, 0);
	struct request hello, r;
	struct rv_peer_info pi;
	const char *why;

	(void)state;
	assert_int_equal(carrier.dials, 1);
	assert_string_equal(l->host, "192.0.2.7");
	assert_int_equal(l->port, 7471);
	assert_true(fake_link_quiet(l));
	fake_link_connected(l, 0);
	hello = need_request(l, "_hello");
	assert_int_equal(hello.kind, RV_CALL_UNARY);
	assert_int_equal(rv_body_hello_decode(hello.body, hello.body_len, &pi, &why), 0);
	assert_int_equal(pi.instance[0], 0xee);
	rv_peer_info_fini(&pi);
	assert_true(fake_link_quiet(l)); /* nothing before the answer */
	hello_answer(l, &hello.id, -1, false);
	r = need_request(l, "_rv_metadata");
	respond_text(l, &r.id, 0, "{\"total_len\":5,\"refcount\":1,\"pinned\":true}");
	r = need_request(l, "_rv_ref");
	respond(l, &r.id, 0, NULL, 0);
	assert_int_equal(call_outcome(a).meta.total_len, 5);
	assert_int_equal(call_outcome(b).rc, 0);
}

static void a_hello_that_is_refused_is_an_answer_too(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct fake_link *l = fake_carrier_link(&carrier, 0);
	struct request r;

	(void)state;
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	ack(l, &r.id, true, "Handler '_hello' not found");
	r = need_request(l, "_rv_metadata");
	respond_text(l, &r.id, 1, "x");
	assert_int_equal(call_outcome(a).rc, -EREMOTEIO);
}

static void a_peer_that_never_answers_hello_is_given_up(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct fake_link *l = fake_carrier_link(&carrier, 0);

	(void)state;
	fake_link_connected(l, 0);
	fake_engine_advance(&w, CALL_NS);
	assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
	fake_engine_advance(&w, RV_SEC(30));
	assert_true(l->closing);
}

static void a_refused_connection_fails_who_waits_and_is_left_alone_for_a_while(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner),
			*b = call_peer(RV_PEER_ACQUIRE, owner);
	struct rv_peer_call pc;

	(void)state;
	fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNREFUSED);
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -EHOSTUNREACH);
	assert_string_equal(pc.text, "owner at 192.0.2.7:7471: connection refused");
	assert_int_equal(call_outcome(b).rc, -EHOSTUNREACH);
	fake_engine_advance(&w, RV_MS(49));
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, owner)).rc, -EHOSTUNREACH);
	assert_int_equal(carrier.dials, 1);
	fake_engine_advance(&w, RV_MS(30)); /* 50 ms and up to 25 by chance */
	a = call_peer(RV_PEER_METADATA, owner);
	assert_int_equal(carrier.dials, 2);
	fake_link_connected(fake_carrier_link(&carrier, 1), -ECONNREFUSED);
	call_outcome(a);
	fake_engine_advance(&w, RV_MS(99));
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, owner)).rc, -EHOSTUNREACH);
	assert_int_equal(carrier.dials, 2); /* twice as long, and half of that by chance */
	fake_engine_advance(&w, RV_MS(51));
	a = call_peer(RV_PEER_METADATA, owner);
	assert_int_equal(carrier.dials, 3);
	{
		struct fake_link *l = greet();
		struct request r = need_request(l, "_rv_metadata");

		respond_text(l, &r.id, 0, "{\"total_len\":5,\"refcount\":1,\"pinned\":true}");
		assert_int_equal(call_outcome(a).rc, 0);
		fake_link_closed(l, 0); /* a connection that worked is made again at once */
		a = call_peer(RV_PEER_METADATA, owner);
		assert_int_equal(carrier.dials, 4);
	}
	fake_link_connected(fake_carrier_link(&carrier, 3), -ECONNREFUSED);
	call_outcome(a);
}

static void an_owner_nobody_knows_is_said_to_be_unknown(void **state)
{
	struct rv_peer_call pc = call_outcome(call_peer(RV_PEER_ACQUIRE, 987654321));

	(void)state;
	assert_int_equal(pc.rc, -EHOSTUNREACH);
	assert_non_null(strstr(pc.text, "987654321"));
	assert_int_equal(carrier.dials, 0);
}

static void without_memory_to_dial_the_owner_is_unreachable(void **state)
{
	uint64_t owner = add_peer(1, false);

	(void)state;
	carrier.no_dial = true;
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, owner)).rc, -EHOSTUNREACH);
}

/* Outbound: answers. */

enum how { BY_RESPONSE, BY_ERROR, BY_ACK, BY_NACK };

#define READY \
	"{\"Ready\":{\"lease_id\":7,\"transfer_id\":8,\"total_len\":1200000,\"chunk_size\":524288,\"chunk_count\":3}}"
#define RDMA "{\"Rdma\":{\"lease_id\":9,\"descriptor\":[1,2,3],\"lease_timeout_ms\":400}}"
#define META "{\"total_len\":5,\"refcount\":1,\"pinned\":true}"
#define GONE "rendezvous handle not found: DataHandle(worker=1, local=2): released"

static const struct {
	enum rv_peer_op op;
	enum how how;
	const char *text;
	int rc;
	enum rv_peer_answer answer;
} answers[] = {
	{RV_PEER_ACQUIRE, BY_RESPONSE, READY, 0, RV_ANSWER_READY},
	{RV_PEER_ACQUIRE, BY_ACK, READY, 0, RV_ANSWER_READY},
	{RV_PEER_ACQUIRE, BY_RESPONSE, RDMA, 0, RV_ANSWER_RDMA},
	{RV_PEER_ACQUIRE, BY_RESPONSE, "{}", -EPROTO, RV_ANSWER_NONE},
	{RV_PEER_ACQUIRE, BY_RESPONSE, "", -EPROTO, RV_ANSWER_NONE},
	{RV_PEER_ACQUIRE, BY_ERROR, GONE, -ENOENT, RV_ANSWER_NONE},
	{RV_PEER_ACQUIRE, BY_NACK, GONE, -ENOENT, RV_ANSWER_NONE},
	{RV_PEER_ACQUIRE, BY_ERROR, "slot vanished after lock acquire", -ENOENT, RV_ANSWER_NONE},
	{RV_PEER_ACQUIRE, BY_ERROR, "rendezvous owner busy", -EREMOTEIO, RV_ANSWER_NONE},
	{RV_PEER_ACQUIRE, BY_NACK, "Handler '_rv_acquire' not found", -EREMOTEIO, RV_ANSWER_NONE},
	{RV_PEER_METADATA, BY_RESPONSE, META, 0, RV_ANSWER_NONE},
	{RV_PEER_METADATA, BY_RESPONSE, READY, -EPROTO, RV_ANSWER_NONE},
	{RV_PEER_METADATA, BY_ERROR, GONE, -ENOENT, RV_ANSWER_NONE},
	{RV_PEER_REF, BY_RESPONSE, "", 0, RV_ANSWER_NONE},
	{RV_PEER_REF, BY_ERROR, "_rv_ref: handle not found: DataHandle(worker=1, local=2)", -ENOENT,
	 RV_ANSWER_NONE},
};

static void an_answer_is_a_response_or_an_ack(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(answers); i++) {
		struct fake_ask *a = call_peer(answers[i].op, owner);
		struct request r;
		struct rv_peer_call pc;

		r = take_request(l);
		fake_engine_advance(&w, RV_MS(3));
		if (answers[i].how == BY_ACK || answers[i].how == BY_NACK)
			ack(l, &r.id, answers[i].how == BY_NACK, answers[i].text);
		else
			respond_text(l, &r.id, answers[i].how == BY_ERROR ? 7 : 0, answers[i].text);
		pc = call_outcome(a);
		if (pc.rc != answers[i].rc || pc.answer != answers[i].answer)
			fail_msg("row %zu: %d", i, pc.rc);
		assert_int_equal(pc.replied_ns - pc.sent_ns, RV_MS(3));
		if (answers[i].how == BY_ERROR || answers[i].how == BY_NACK) {
			assert_int_equal(memcmp(pc.text, "owner: ", 7), 0);
			assert_string_equal(pc.text + 7, answers[i].text);
		}
	}
}

static void what_an_acquire_was_granted_comes_back_whole(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);
	struct fake_ask *a = call_peer(RV_PEER_ACQUIRE, owner);
	struct request r = take_request(l);
	struct rv_peer_call pc;

	(void)state;
	assert_string_equal(r.name, "_rv_acquire");
	assert_non_null(strstr(r.body, "\"rdma\":null"));
	respond_text(l, &r.id, 0, READY);
	pc = call_outcome(a);
	assert_int_equal(pc.ready.lease_id, 7);
	assert_int_equal(pc.ready.transfer_id, 8);
	assert_int_equal(pc.ready.total_len, 1200000);
	assert_int_equal(pc.ready.chunk_size, 524288);
	assert_int_equal(pc.ready.chunk_count, 3);
	a = call_peer(RV_PEER_ACQUIRE, owner);
	r = take_request(l);
	respond_text(l, &r.id, 0, RDMA);
	pc = call_outcome(a);
	assert_int_equal(pc.rdma.lease_id, 9);
	assert_int_equal(pc.rdma.lease_timeout_ms, 400);
	assert_int_equal(pc.rdma.desc_len, 3);
	assert_memory_equal(pc.rdma.desc, "\1\2\3", 3);
}

static void a_deadline_for_a_chunked_lease_travels_in_the_headers(void **state)
{
	uint64_t owner = add_peer(1, false), ms;
	struct fake_link *l = up(owner);
	struct rv_peer_call pc = {.op = RV_PEER_ACQUIRE,
				  .handle = {owner, 64},
				  .deadline_ns = RV_NEVER,
				  .lease_ms = 1500};
	struct fake_ask *a = fake_call_start(&w, rv_messenger_calls(mess), &pc);
	struct rv_request_header h;
	struct fake_sent *sent;
	struct rv_msg_id id;

	(void)state;
	fake_engine_run(&w);
	sent = fake_link_take(l);
	assert_int_equal(rv_request_header_decode(sent->header, sent->header_len, &h), 0);
	assert_true(rv_headers_find_ms(h.headers, h.headers_len, RV_HEADER_LEASE_MS, &ms));
	assert_int_equal(ms, 1500);
	id = h.id;
	fake_sent_free(sent);
	respond_text(l, &id, 1, GONE);
	call_outcome(a);
	a = call_peer(RV_PEER_ACQUIRE, owner); /* and is not there when nobody wants one */
	sent = fake_link_take(l);
	assert_int_equal(rv_request_header_decode(sent->header, sent->header_len, &h), 0);
	assert_int_equal(h.headers_len, 0);
	id = h.id;
	fake_sent_free(sent);
	respond_text(l, &id, 1, GONE);
	call_outcome(a);
}

static void a_descriptor_too_long_for_us_leaves_its_lease(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);
	struct fake_ask *a = call_peer(RV_PEER_ACQUIRE, owner);
	struct request r = take_request(l);
	static char body[8192];
	size_t n =
		(size_t)snprintf(body, sizeof(body), "{\"Rdma\":{\"lease_id\":9,\"descriptor\":[1");
	struct rv_peer_call pc;

	(void)state;
	for (unsigned i = 0; i < 2000; i++)
		n += (size_t)snprintf(body + n, sizeof(body) - n, ",1");
	snprintf(body + n, sizeof(body) - n, "],\"lease_timeout_ms\":400}}");
	respond_text(l, &r.id, 0, body);
	pc = call_outcome(a);
	assert_int_equal(pc.rc, 0);
	assert_int_equal(pc.rdma.lease_id, 9);
	assert_int_equal(pc.rdma.desc_len, 0);
}

static void foreign_stale_and_repeated_ids_are_dropped(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner), *other = fake_link_accept(&carrier);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct request r = take_request(l);

	(void)state;
	for (unsigned bit = 0; bit < 128; bit++) {
		struct rv_msg_id id = r.id;

		id.b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		respond_text(l, &id, 0, META);
		ack(other, &id, true, "no");
	}
	assert_false(a->back);
	respond_text(other, &r.id, 0, META); /* on whatever connection */
	assert_int_equal(call_outcome(a).rc, 0);
	respond_text(l, &r.id, 1, "again");
	respond_text(l, &r.id, 0, META);
	assert_true(l->open);
}

static void headers_that_do_not_parse_are_dropped_and_the_connection_stays(void **state)
{
	static const unsigned types[] = {RV_FRAME_MESSAGE, RV_FRAME_RESPONSE, RV_FRAME_ACK,
					 RV_FRAME_EVENT, RV_FRAME_SHUTTING_DOWN};
	struct fake_link *l = fake_link_accept(&carrier);
	uint8_t junk[40];

	(void)state;
	memset(junk, 0xff, sizeof(junk));
	for (size_t i = 0; i < RV_ARRAY_NR(types); i++)
		for (size_t len = 0; len <= sizeof(junk); len++)
			fake_link_frame(l, types[i], junk, len, "x", 1);
	fake_engine_run(&w);
	assert_true(fake_link_quiet(l));
	assert_false(l->closing);
}

static void shutting_down_fails_the_call_it_names(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner),
			*b = call_peer(RV_PEER_METADATA, owner);
	struct fake_sent *s = fake_link_take(l);
	struct rv_peer_call pc;
	struct request r;

	(void)state;
	fake_link_frame(l, RV_FRAME_SHUTTING_DOWN, s->header, s->header_len, NULL,
			0); /* the header verbatim */
	fake_sent_free(s);
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -ESHUTDOWN);
	assert_non_null(strstr(pc.text, "shutting down"));
	r = take_request(l);
	assert_false(b->back);
	respond_text(l, &r.id, 0, META); /* the connection is good for others */
	assert_int_equal(call_outcome(b).rc, 0);
}

static void a_connection_that_closes_fails_its_calls_and_the_next_call_dials(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner),
			*b = call_peer(RV_PEER_ACQUIRE, owner);
	struct rv_peer_call pc;

	(void)state;
	fake_link_closed(l, -ECONNRESET);
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -ECONNRESET);
	assert_true(pc.text[0]);
	assert_int_equal(call_outcome(b).rc, -ECONNRESET);
	a = call_peer(RV_PEER_METADATA, owner);
	assert_int_equal(carrier.dials, 2);
	fake_link_connected(fake_carrier_link(&carrier, 1), -ECONNREFUSED);
	call_outcome(a);
}

static void a_call_ends_at_its_deadline_in_every_state(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct rv_peer_call pc;
	struct fake_link *l;

	(void)state;
	fake_engine_advance(&w, CALL_NS - RV_MS(1));
	assert_false(a->back);
	fake_engine_advance(&w, RV_MS(1)); /* still dialing */
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -ETIMEDOUT);
	assert_non_null(strstr(pc.text, "192.0.2.7:7471"));
	l = greet();
	assert_true(fake_link_quiet(l)); /* it is not sent any more */
	a = call_peer(RV_PEER_METADATA, owner);
	take_request(l);
	fake_engine_advance(&w, CALL_NS);
	assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
}

static void an_acquire_granted_too_late_is_detached(void **state)
{
	static const struct {
		const char *grant;
		uint64_t lease;
	} grants[] = {{READY, 7}, {RDMA, 9}};
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(grants); i++) {
		struct fake_ask *a = call_peer(RV_PEER_ACQUIRE, owner);
		struct request r = take_request(l), d;
		struct rv_body_lease b;
		const char *why;

		fake_engine_advance(&w, CALL_NS);
		assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
		fake_engine_advance(&w, RV_SEC(20));
		respond_text(l, &r.id, 0, grants[i].grant);
		d = take_request(l);
		assert_string_equal(d.name, "_rv_detach");
		assert_int_equal(d.kind, RV_CALL_FIRE);
		assert_int_equal(rv_body_lease_decode(d.body, d.body_len, &b, &why), 0);
		assert_int_equal(b.lease_id, grants[i].lease);
		assert_int_equal(b.handle.worker, owner);
		assert_int_equal(b.handle.local, 64);
	}
	/* A refusal, or an answer after a minute, has nothing to detach. */
	for (unsigned i = 0; i < 2; i++) {
		struct fake_ask *a = call_peer(RV_PEER_ACQUIRE, owner);
		struct request r = take_request(l);

		fake_engine_advance(&w, CALL_NS);
		call_outcome(a);
		fake_engine_advance(&w, i ? RV_SEC(61) : 0);
		respond_text(l, &r.id, i ? 0 : 1, i ? READY : GONE);
		assert_true(fake_link_quiet(l));
	}
}

static const struct {
	enum rv_peer_op op;
	const char *name;
} lease_ops[] = {{RV_PEER_RENEW, "_rv_lease_renew"},
		 {RV_PEER_DETACH, "_rv_detach"},
		 {RV_PEER_RELEASE, "_rv_release"}};

static void lease_operations_go_one_way_or_with_an_ack(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_link *l = up(owner);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(lease_ops); i++) {
		struct fake_ask *a = call_peer(lease_ops[i].op, owner);
		struct request r = take_request(l);
		struct rv_peer_call pc = {.op = lease_ops[i].op,
					  .handle = {owner, 64},
					  .lease_id = 55,
					  .sync = true,
					  .deadline_ns = RV_NEVER};

		assert_string_equal(r.name, lease_ops[i].name);
		assert_int_equal(r.kind, RV_CALL_FIRE);
		assert_int_equal(call_outcome(a).rc, 0); /* over once sent */
		a = fake_call_start(&w, rv_messenger_calls(mess), &pc);
		fake_engine_run(&w);
		r = take_request(l);
		assert_int_equal(r.kind, RV_CALL_SYNC);
		assert_false(a->back);
		ack(l, &r.id, i == 1, i == 1 ? "rendezvous lease is over: lease lost" : "");
		assert_int_equal(call_outcome(a).rc, i == 1 ? -EREMOTEIO : 0);
	}
}

static void a_detach_outlives_the_deadline_of_its_get(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct rv_peer_call pc = {.op = RV_PEER_DETACH,
				  .handle = {owner, 64},
				  .lease_id = 55,
				  .deadline_ns = 1};
	struct fake_ask *a = fake_call_start(&w, rv_messenger_calls(mess), &pc);
	struct fake_link *l;

	(void)state;
	fake_engine_advance(&w, RV_SEC(9));
	assert_false(a->back);
	l = greet();
	need_request(l, "_rv_detach");
	assert_int_equal(call_outcome(a).rc, 0);
}

/* Who answers there. */

static void another_node_at_that_address_is_only_asked_for_the_cause(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct fake_link *l = fake_carrier_link(&carrier, 0);
	struct request r;
	struct rv_peer_call pc;

	(void)state;
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 2, true);
	r = need_request(l, "_rv_metadata");
	respond_text(l, &r.id, 1,
		     "rendezvous handle not found: DataHandle(worker=1, local=2): owner restarted");
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -ENOENT);
	assert_non_null(strstr(pc.text, "owner restarted"));
	assert_non_null(rv_peers_find(rv_messenger_peers(mess),
				      peer_worker(2))); /* who answered is known now */

	a = call_peer(RV_PEER_ACQUIRE, owner);
	r = take_request(l);
	assert_string_equal(r.name, "_rv_metadata"); /* no lease is taken there */
	respond_text(l, &r.id, 0, META);
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -ENOENT);
	assert_int_equal(pc.answer, RV_ANSWER_NONE);
	assert_non_null(strstr(pc.text, "other owner"));
}

static void who_says_that_it_is_the_owner_is(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_ask *a = call_peer(RV_PEER_ACQUIRE, owner);
	struct fake_link *l = fake_carrier_link(&carrier, 0);
	struct request r;

	(void)state;
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, 1, true);
	r = need_request(l, "_rv_acquire");
	respond_text(l, &r.id, 0, READY);
	assert_int_equal(call_outcome(a).rc, 0);
}

static void a_stopped_messenger_dials_nobody(void **state)
{
	uint64_t owner = add_peer(1, false);

	(void)state;
	rv_messenger_stop(mess);
	assert_int_equal(call_outcome(call_peer(RV_PEER_METADATA, owner)).rc, -EHOSTUNREACH);
	assert_int_equal(carrier.dials, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MESSENGER(the_first_frame_is_hello_and_then_the_calls_that_waited),
		MESSENGER(a_hello_that_is_refused_is_an_answer_too),
		MESSENGER(a_peer_that_never_answers_hello_is_given_up),
		MESSENGER(a_refused_connection_fails_who_waits_and_is_left_alone_for_a_while),
		MESSENGER(an_owner_nobody_knows_is_said_to_be_unknown),
		MESSENGER(without_memory_to_dial_the_owner_is_unreachable),
		MESSENGER(an_answer_is_a_response_or_an_ack),
		MESSENGER(what_an_acquire_was_granted_comes_back_whole),
		MESSENGER(a_deadline_for_a_chunked_lease_travels_in_the_headers),
		MESSENGER(a_descriptor_too_long_for_us_leaves_its_lease),
		MESSENGER(foreign_stale_and_repeated_ids_are_dropped),
		MESSENGER(headers_that_do_not_parse_are_dropped_and_the_connection_stays),
		MESSENGER(shutting_down_fails_the_call_it_names),
		MESSENGER(a_connection_that_closes_fails_its_calls_and_the_next_call_dials),
		MESSENGER(a_call_ends_at_its_deadline_in_every_state),
		MESSENGER(an_acquire_granted_too_late_is_detached),
		MESSENGER(lease_operations_go_one_way_or_with_an_ack),
		MESSENGER(a_detach_outlives_the_deadline_of_its_get),
		MESSENGER(another_node_at_that_address_is_only_asked_for_the_cause),
		MESSENGER(who_says_that_it_is_the_owner_is),
		MESSENGER(a_stopped_messenger_dials_nobody),
	};

	return cmocka_run_group_tests_name("messenger", tests, NULL, NULL);
}
