/* Velo's protocol on a scripted carrier: what we answer peers. */
#include "tests/unit/messenger_fixture.h"

#include "control/messenger/headers.h"
#include "control/messenger/messenger_impl.h"
#include "control/messenger/served.h"
#include "dataplane/rendezvous/descriptor.h"

#define CONSUMER 4242u

static struct fake_link *in;

static int setup_in(void **state)
{
	setup(state);
	in = fake_link_accept(&carrier);
	return 0;
}

/* What we answered: "ok TEXT", "error TEXT", "ack TEXT", "nack TEXT", "down", or "" for nothing. */
static const char *answered(uint16_t slot)
{
	static char text[4096];
	struct fake_sent *s;
	struct rv_msg_id want = rv_msg_id_make(CONSUMER, slot, 1);

	fake_engine_run(&w);
	if (fake_link_quiet(in))
		return "";
	s = fake_link_take(in);
	switch (s->type) {
	case RV_FRAME_RESPONSE: {
		struct rv_response_header h;

		assert_int_equal(rv_response_header_decode(s->header, s->header_len, &h), 0);
		assert_true(rv_msg_id_equal(&h.id, &want));
		assert_int_equal(h.headers_len, 0);
		snprintf(text, sizeof(text), "%s%.*s", h.outcome ? "error " : "ok ",
			 (int)s->payload_len, (const char *)s->payload);
		break;
	}
	case RV_FRAME_ACK: {
		struct rv_ack_header h;

		assert_int_equal(rv_ack_header_decode(s->header, s->header_len, &h), 0);
		assert_true(rv_msg_id_equal(&h.id, &want));
		assert_false(h.event);
		snprintf(text, sizeof(text), "%s%.*s", h.error ? "nack " : "ack ",
			 (int)s->payload_len, (const char *)s->payload);
		break;
	}
	case RV_FRAME_SHUTTING_DOWN:
		assert_int_equal(s->payload_len, 0);
		snprintf(text, sizeof(text), "down");
		break;
	default:
		fail_msg("a frame of type %u", s->type);
	}
	fake_sent_free(s);
	return text;
}

static const char *ask(enum rv_call_kind kind, const char *name, const char *body)
{
	static uint16_t slot;

	request(in, CONSUMER, ++slot, kind, name, body);
	return answered(slot);
}

static void assert_starts(const char *text, const char *start)
{
	if (strncmp(text, start, strlen(start)) != 0)
		fail_msg("\"%s\" does not start with \"%s\"", text, start);
}

#define FIRE  RV_CALL_FIRE
#define SYNC  RV_CALL_SYNC
#define UNARY RV_CALL_UNARY
#define H     "{\"handle\":{\"hi\":77,\"lo\":64}}"
#define L     "{\"handle\":{\"hi\":77,\"lo\":64},\"lease_id\":1}"
#define LOST  "rendezvous lease is over: lease lost"

/* PROTOCOL 5: each kind on each sort of handler. Nothing is staged. */
static const struct {
	enum rv_call_kind kind;
	const char *name, *body, *answer;
} kinds[] = {
	{UNARY, "nobody", "", "nack Handler 'nobody' not found"},
	{SYNC, "nobody", "", "nack Handler 'nobody' not found"},
	{FIRE, "nobody", "", ""},
	{UNARY, "_rv_pul", "", "nack Handler '_rv_pul' not found"},
	{UNARY, "_rv_pulll", "", "nack Handler '_rv_pulll' not found"},

	{UNARY, "_rv_metadata", H,
	 "error rendezvous handle not found: DataHandle(worker=77, local=64)"},
	{SYNC, "_rv_metadata", H,
	 "nack rendezvous handle not found: DataHandle(worker=77, local=64)"},
	{FIRE, "_rv_metadata", H, ""},
	{UNARY, "_rv_metadata", "{", "error Failed to deserialize input: "},
	{UNARY, "_rv_metadata", "", "error Failed to deserialize input: "},
	{UNARY, "_rv_acquire", "{", "error Failed to deserialize input: "},
	{UNARY, "_rv_acquire", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}",
	 "error rendezvous handle not found: "},
	{SYNC, "_rv_acquire", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}", "ack "},
	{FIRE, "_rv_acquire", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}", ""},
	{UNARY, "_rvd_get", "{", "error Failed to deserialize input: "},
	{UNARY, "_rvd_get", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}",
	 "error rendezvous handle not found: DataHandle(worker=77, local=64)"},
	{SYNC, "_rvd_get", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}", "ack "},
	{FIRE, "_rvd_get", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}", ""},
	{UNARY, "_rv_ref", H, "error _rv_ref: handle not found: DataHandle(worker=77, local=64)"},
	{UNARY, "_rv_pull", "{\"transfer_id\":5,\"chunk_index\":2}",
	 "error chunk not found: transfer_id=5, chunk_index=2"},
	{SYNC, "_rv_pull", "{\"transfer_id\":5,\"chunk_index\":2}",
	 "nack chunk not found: transfer_id=5, chunk_index=2"},
	{FIRE, "_rv_pull", "{\"transfer_id\":5,\"chunk_index\":2}", ""},

	/* "am" handlers; ours tell a dead lease. */
	{FIRE, "_rv_detach", L, ""},
	{SYNC, "_rv_detach", L, "nack " LOST},
	{SYNC, "_rv_release", L, "nack " LOST},
	{SYNC, "_rv_lease_renew", L, "nack " LOST},
	{UNARY, "_rv_detach", L,
	 "error Unary message incorrectly routed to AM handler '_rv_detach': " LOST},
	{UNARY, "_rv_release", L,
	 "error Unary message incorrectly routed to AM handler '_rv_release': " LOST},
	{SYNC, "_rv_detach", "{", "nack "},
	{FIRE, "_rv_detach", "{", ""},

	/* Whose handle it is. */
	{UNARY, "_rv_metadata", "{\"handle\":{\"hi\":78,\"lo\":64}}",
	 "error rendezvous handle not found: DataHandle(worker=78, local=64): other owner"},
	{UNARY, "_rv_metadata", "{\"handle\":{\"hi\":70,\"lo\":64}}",
	 "error rendezvous handle not found: DataHandle(worker=70, local=64): owner restarted"},
	{UNARY, "_rv_ref", "{\"handle\":{\"hi\":70,\"lo\":64}}",
	 "error _rv_ref: handle not found: DataHandle(worker=70, local=64): owner restarted"},
	{UNARY, "_rv_acquire", "{\"handle\":{\"hi\":69,\"lo\":1},\"rdma\":null}",
	 "error rendezvous handle not found: DataHandle(worker=69, local=1): owner restarted"},
	{UNARY, "_rvd_get", "{\"handle\":{\"hi\":69,\"lo\":1},\"rdma\":null}",
	 "error rendezvous handle not found: DataHandle(worker=69, local=1): owner restarted"},
	{UNARY, "_rvd_get", "{\"handle\":{\"hi\":78,\"lo\":64},\"rdma\":null}",
	 "error rendezvous handle not found: DataHandle(worker=78, local=64): other owner"},
	{SYNC, "_rv_lease_renew", "{\"handle\":{\"hi\":78,\"lo\":64},\"lease_id\":1}",
	 "nack " LOST},
	{UNARY, "_rv_metadata", "{\"handle\":{\"hi\":77,\"lo\":5}}",
	 "error rendezvous handle not found: DataHandle(worker=77, local=5)"}, /* no such reactor */

	{UNARY, "_list_handlers", "", "ok {\"handlers\":[\"_hello\","},
	{UNARY, "_list_handlers", "null", "ok {\"handlers\":[\"_hello\","},
	{UNARY, "_list_handlers", "{}", "error Failed to deserialize input: "},
	{SYNC, "_list_handlers", "", "ack "},
	{FIRE, "_list_handlers", "", ""},
	{UNARY, "_hello", "{}", "error Failed to deserialize input: "},
};

static void each_kind_of_call_is_answered_as_the_protocol_says(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(kinds); i++) {
		const char *got = ask(kinds[i].kind, kinds[i].name, kinds[i].body);

		if (strncmp(got, kinds[i].answer, strlen(kinds[i].answer)) != 0 ||
		    (!kinds[i].answer[0] && got[0]))
			fail_msg("row %zu: \"%s\"", i, got);
	}
	assert_true(fake_link_quiet(in));
	assert_false(in->closing);
}

static void a_hello_makes_the_sender_known_and_tells_who_we_are(void **state)
{
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(5, true, "192.0.2.7", buf, sizeof(buf));
	char body[2048];
	struct rv_writer wr = rv_writer(body, sizeof(body) - 1);
	const char *got;

	(void)state;
	rv_body_hello_encode(&wr, &pi);
	body[wr.len] = '\0';
	got = ask(UNARY, "_hello", body);
	assert_starts(got, "ok {\"handlers\":[\"_hello\",");
	assert_non_null(strstr(got, "\"peer_info\":{\"instance_id\":\"eeeeeeee-"));
	assert_non_null(rv_peers_find(rv_messenger_peers(mess), peer_worker(5)));
	assert_int_equal(carrier.dials, 0);
}

static void a_hello_that_is_not_taken_is_counted_by_why(void **state)
{
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(5, true, "192.0.2.7", buf, sizeof(buf));
	char body[2048];
	struct rv_writer wr = rv_writer(body, sizeof(body) - 1);

	(void)state;
	pi.address[0] = 0x80; /* an empty map: nothing there to be dialed */
	pi.address_len = 1;
	rv_body_hello_encode(&wr, &pi);
	body[wr.len] = '\0';
	assert_starts(ask(UNARY, "_hello", "{}"), "error ");
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_MALFORMED), 1);
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_UNUSABLE), 0);
	assert_starts(ask(UNARY, "_hello", body), "error No compatible transports found");
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_UNUSABLE), 1);
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_MALFORMED), 1);
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_NO_ROOM), 0);
}

static const char *hello_of(uint8_t number, const char *ip)
{
	static char body[2048];
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(number, true, ip, buf, sizeof(buf));
	struct rv_writer wr = rv_writer(body, sizeof(body) - 1);

	rv_body_hello_encode(&wr, &pi);
	body[wr.len] = '\0';
	return body;
}

static void this_node_tells_itself_who_it_is(void **state)
{
	size_t known = rv_messenger_peers(mess)->by_worker.nr;

	(void)state;
	assert_non_null(strstr(ask(UNARY, "_hello", hello_of(0xee, "192.0.2.1")), "\"peer_info\""));
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_UNUSABLE), 0);
	assert_int_equal(rv_messenger_peers(mess)->by_worker.nr, known);
}

static void a_known_peer_is_moved_by_a_hello_from_where_it_is_alone(void **state)
{
	static const char *const elsewhere[] = {"203.0.113.9:4000", "[2001:db8::9]:4000",
						"192.0.2.70:7471", "ucx 5", ""};
	const struct rv_peer *p;
	uint64_t rejected = 0;

	(void)state;
	snprintf(in->host, sizeof(in->host), "192.0.2.7:4000");
	assert_starts(ask(UNARY, "_hello", hello_of(5, "192.0.2.7")), "ok ");
	p = rv_peers_find(rv_messenger_peers(mess), peer_worker(5));
	assert_string_equal(p->host, "192.0.2.7");
	for (size_t i = 0; i < RV_ARRAY_NR(elsewhere); i++) {
		snprintf(in->host, sizeof(in->host), "%s", elsewhere[i]);
		/* It is answered all the same: it may serve and ask, from where it is. */
		assert_starts(ask(UNARY, "_hello", hello_of(5, "203.0.113.9")), "ok ");
		assert_string_equal(p->host, "192.0.2.7");
		assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_ELSEWHERE),
				 ++rejected);
	}
	/* Nothing new is nothing to be refused: another interface of the same host. */
	assert_starts(ask(UNARY, "_hello", hello_of(5, "192.0.2.7")), "ok ");
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_ELSEWHERE), rejected);
	snprintf(in->host, sizeof(in->host), "192.0.2.7:9999");
	assert_starts(ask(UNARY, "_hello", hello_of(5, "192.0.2.8")), "ok ");
	assert_string_equal(p->host, "192.0.2.8");
	assert_int_equal(rv_messenger_rejected_hellos(mess, RV_REJECTED_ELSEWHERE), rejected);
	/* Who is unknown may be anywhere. */
	snprintf(in->host, sizeof(in->host), "203.0.113.9:4000");
	assert_starts(ask(UNARY, "_hello", hello_of(6, "192.0.2.9")), "ok ");
	assert_string_equal(rv_peers_find(rv_messenger_peers(mess), peer_worker(6))->host,
			    "192.0.2.9");
}

static void a_staged_payload_is_not_taken_by_a_built_in_handler(void **state)
{
	/* A headers map {"_rv":"1"} behind the request header. */
	static const uint8_t map[] = {0x81, 0xa3, '_', 'r', 'v', 0xa1, '1'};
	struct rv_request_header h = {
		.kind = UNARY,
		.id = rv_msg_id_make(CONSUMER, 9, 1),
		.name = "_rv_ref",
		.name_len = 7,
		.headers = map,
		.headers_len = sizeof(map),
	};
	uint8_t head[128];
	struct rv_writer wr = rv_writer(head, sizeof(head));

	(void)state;
	assert_int_equal(rv_request_header_encode(&wr, &h), 0);
	fake_link_frame(in, RV_FRAME_MESSAGE, head, wr.len, "", 0);
	assert_starts(answered(9), "nack Failed to resolve large payload: ");
}

/* Staged messages to a program of this node: a headers map {"_rv": HANDLE, "_rv_budget_ms": "300"}. */

static unsigned delivered;

static bool deliver(struct rv_server *s, const struct rv_served_request *r)
{
	(void)s;
	(void)r;
	delivered++;
	return true;
}

static void staged_message(uint16_t slot, struct rv_handle handle, const char *budget_ms)
{
	char text[RV_HANDLE_TEXT];
	struct rv_header_pair pairs[2] = {{"_rv", text, rv_handle_format_text(handle, text)},
					  {"_rv_budget_ms", budget_ms, strlen(budget_ms)}};
	uint8_t map[200], head[300];
	struct rv_writer mw = rv_writer(map, sizeof(map)), wr = rv_writer(head, sizeof(head));
	struct rv_request_header h = {
		.kind = UNARY,
		.id = rv_msg_id_make(CONSUMER, slot, 1),
		.name = "mine",
		.name_len = 4,
		.headers = map,
	};

	assert_int_equal(rv_headers_encode(&mw, pairs, *budget_ms ? 2 : 1), 0);
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_request_header_encode(&wr, &h), 0);
	fake_link_frame(in, RV_FRAME_MESSAGE, head, wr.len, "", 0);
}

/* However long ago the pass that reads it began: it must not end before the caller's own timer. */
static void a_callers_budget_begins_when_its_message_is_taken(void **state)
{
	struct rv_server server = {.deliver = deliver};
	struct rv_handle h = {add_peer(1, false), 64};

	(void)state;
	delivered = 0;
	mess->conf.staged_fetch_timeout_ns = RV_NEVER;
	assert_int_equal(rv_served_add(mess, "mine", &server), 0);
	fake_engine_run(&w);
	fake_now_ns += RV_MS(500); /* the pass was held up */
	staged_message(1, h, "300");
	fake_engine_run(&w);
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 1);
	fake_engine_advance(&w, RV_MS(299));
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 1);
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(rv_counter_get(&w.engine.stats.gets), 0);
	assert_string_equal(answered(1), ""); /* the caller has given up: no reply */

	/* The node's own limit is an error, whenever the pass began. */
	mess->conf.staged_fetch_timeout_ns = RV_MS(200);
	fake_now_ns += RV_MS(500);
	staged_message(2, h, "300");
	fake_engine_run(&w);
	fake_engine_advance(&w, RV_MS(199));
	assert_true(fake_link_quiet(in));
	fake_engine_advance(&w, RV_MS(1));
	assert_non_null(strstr(answered(2), "did not finish in time"));
	assert_int_equal(delivered, 0);
	rv_served_remove_all(mess, &server);
}

/* A transfer, from the acquire to its end. */

static struct rv_body_grant granted;
static uint8_t granted_desc[RV_BODY_DESC_MAX];

static void acquire(uint64_t slot, const char *rdma)
{
	char body[200];
	const char *got, *why = "";

	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":77,\"lo\":%llu},\"rdma\":%s}",
		 (unsigned long long)slot, rdma);
	got = ask(UNARY, "_rv_acquire", body);
	assert_starts(got, "ok ");
	assert_int_equal(rv_body_grant_decode(got + 3, strlen(got + 3), granted_desc,
					      sizeof(granted_desc), &granted, &why),
			 0);
}

static const char *lease_op(enum rv_call_kind kind, const char *name, uint64_t slot, uint64_t lease)
{
	char body[200];

	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":77,\"lo\":%llu},\"lease_id\":%llu}",
		 (unsigned long long)slot, (unsigned long long)lease);
	return ask(kind, name, body);
}

static struct fake_sent *pull_raw(uint64_t worker, uint64_t transfer, unsigned index)
{
	char body[100];

	snprintf(body, sizeof(body), "{\"transfer_id\":%llu,\"chunk_index\":%u}",
		 (unsigned long long)transfer, index);
	request(in, worker, 500, UNARY, "_rv_pull", body);
	return fake_link_take(in);
}

static bool is_chunk(const struct fake_sent *s)
{
	return s->type == RV_FRAME_RESPONSE && s->header[16] == 0;
}

static void a_transfer_serves_its_chunks_to_its_consumer_until_its_lease_ends(void **state)
{
	uint64_t slot = fake_stage(&w, 1200000, 0x33, true, 1000);
	struct fake_sent *s;

	(void)state;
	acquire(slot, "null");
	assert_false(granted.is_rdma);
	assert_int_equal(granted.ready.total_len, 1200000);
	assert_int_equal(granted.ready.chunk_size, 524288);
	assert_int_equal(granted.ready.chunk_count, 3);
	for (unsigned round = 0; round < 2; round++) { /* any number of times */
		for (unsigned i = 3; i-- > 0;) {
			s = pull_raw(CONSUMER, granted.ready.transfer_id, i);
			assert_true(is_chunk(s));
			assert_int_equal(s->payload_len, i == 2 ? 151424 : 524288);
			for (size_t b = 0; b < s->payload_len; b++)
				if (s->payload[b] != 0x33)
					fail_msg("byte %zu of chunk %u", b, i);
			fake_sent_free(s);
		}
	}
	assert_int_equal(rv_messenger_bytes_out(mess), 2400000);
	s = pull_raw(CONSUMER, granted.ready.transfer_id, 3);
	assert_false(is_chunk(s));
	fake_sent_free(s);
	s = pull_raw(CONSUMER + 1, granted.ready.transfer_id, 0); /* not granted to this one */
	assert_false(is_chunk(s));
	fake_sent_free(s);
	s = pull_raw(CONSUMER, granted.ready.transfer_id ^ 1ULL << 40, 0);
	assert_false(is_chunk(s));
	fake_sent_free(s);
	assert_string_equal(lease_op(SYNC, "_rv_detach", slot, granted.ready.lease_id), "ack ");
	s = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
	assert_false(is_chunk(s));
	fake_sent_free(s);
	assert_string_equal(lease_op(SYNC, "_rv_detach", slot, granted.ready.lease_id),
			    "nack " LOST);
	assert_int_equal(mess->transfers.live_nr, 0);
}

/* An acquire that asks for a second: pulls renew it, silence does not. */
static void pulls_keep_a_lease_with_a_deadline_alive(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 0x33, true, 1000);
	struct rv_header_pair pair = {RV_HEADER_LEASE_MS, "1000", 4};
	uint8_t map[64], head[256];
	struct rv_writer mw = rv_writer(map, sizeof(map)), hw = rv_writer(head, sizeof(head));
	struct rv_request_header h = {.kind = UNARY,
				      .id = rv_msg_id_make(CONSUMER, 77, 1),
				      .name = "_rv_acquire",
				      .name_len = 11};
	char body[100];
	const char *got;
	struct fake_sent *sent;

	(void)state;
	assert_int_equal(rv_headers_encode(&mw, &pair, 1), 0);
	h.headers = map;
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_request_header_encode(&hw, &h), 0);
	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":77,\"lo\":%llu},\"rdma\":null}",
		 (unsigned long long)slot);
	fake_link_frame(in, RV_FRAME_MESSAGE, head, hw.len, body, strlen(body));
	got = answered(77);
	assert_starts(got, "ok ");
	assert_int_equal(rv_body_grant_decode(got + 3, strlen(got + 3), granted_desc,
					      sizeof(granted_desc), &granted, NULL),
			 0);
	for (unsigned i = 0; i < 20; i++) {
		fake_engine_advance(&w, RV_MS(300));
		sent = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
		if (!is_chunk(sent))
			fail_msg("the lease was gone before pull %u", i);
		fake_sent_free(sent);
	}
	fake_engine_advance(&w, RV_SEC(2));
	sent = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
	assert_false(is_chunk(sent));
	fake_sent_free(sent);
	assert_null(fake_slot(&w, slot));
}

/* At worst: a pull just before the engine would be told again, and then as long as a lease may be silent. */
static void a_pull_counts_though_the_engine_was_told_a_moment_before(void **state)
{
	uint64_t slot;
	struct fake_sent *sent;

	(void)state;
	w.engine.conf.chunk_lease_ns = RV_MS(1000);
	slot = fake_stage(&w, 1000, 0x33, true, 1000);
	acquire(slot, "null");
	fake_engine_advance(&w, RV_MS(249));
	fake_sent_free(pull_raw(CONSUMER, granted.ready.transfer_id,
				0));         /* a quarter is not over: not told */
	fake_engine_advance(&w, RV_MS(740)); /* silent for less than three quarters */
	sent = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
	assert_true(is_chunk(sent));
	fake_sent_free(sent);
	fake_engine_advance(&w, RV_MS(999));
	assert_non_null(fake_slot(&w, slot));
	fake_engine_advance(&w, RV_MS(2));
	assert_null(fake_slot(&w, slot));
}

static void a_chunk_on_its_way_out_holds_the_bytes_though_all_is_over(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 0x33, true, 1000);
	struct fake_sent *s;

	(void)state;
	acquire(slot, "null");
	s = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
	assert_int_equal(rv_messenger_pending(mess), 1);
	assert_string_equal(lease_op(SYNC, "_rv_release", slot, granted.ready.lease_id), "ack ");
	assert_null(fake_slot(&w, slot));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	fake_sent_free(s); /* sent */
	fake_engine_run(&w);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(rv_messenger_pending(mess), 0);
}

static void a_connection_that_closes_ends_no_lease(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 0x33, true, 1000);
	struct fake_sent *s;

	(void)state;
	acquire(slot, "null");
	fake_link_closed(in, -ECONNRESET);
	in = fake_link_accept(&carrier);
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	s = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
	assert_true(is_chunk(s));
	fake_sent_free(s);
	assert_string_equal(lease_op(SYNC, "_rv_release", slot, granted.ready.lease_id), "ack ");
}

static void nothing_is_granted_with_a_transfer_of_no_chunks(void **state)
{
	uint64_t slot = fake_stage(&w, 0, 0, false, 1000);
	struct fake_sent *s;

	(void)state;
	acquire(slot, "null");
	assert_int_equal(granted.ready.chunk_count, 0);
	assert_int_not_equal(granted.ready.transfer_id, 0);
	s = pull_raw(CONSUMER, granted.ready.transfer_id, 0);
	assert_false(is_chunk(s));
	fake_sent_free(s);
	assert_string_equal(lease_op(SYNC, "_rv_release", slot, granted.ready.lease_id), "ack ");
	fake_engine_run(&w);
	/* A transfer of nothing holds nothing; it must go with its lease all the same. */
	assert_int_equal(mess->transfers.live_nr, 0);
}

static void add_peer_with(uint8_t number, bool ucx, const char *verbs)
{
	static struct rv_address a; /* large */
	uint8_t buf[512], worker_addr[8] = "address";
	struct rv_writer wr = rv_writer(buf, sizeof(buf));
	struct rv_peer_info pi = {.address = buf};
	uint64_t worker;
	const char *why;

	memset(&a, 0, sizeof(a));
	a.tcp_nr = 1;
	a.tcp[0] = (struct rv_tcp_endpoint){.ip = "192.0.2.7", .port = 7471, .numa = -1};
	a.has_ucx = ucx;
	a.has_rvd = true;
	a.rvd_version = 1;
	a.verbs_len = strlen(verbs);
	memcpy(a.verbs, verbs, a.verbs_len);
	a.ucx = (struct rv_ucx_blob){2, 8192, 5, worker_addr, sizeof(worker_addr)};
	assert_int_equal(rv_address_encode(&wr, &a), 0);
	pi.address_len = wr.len;
	memset(pi.instance, number, sizeof(pi.instance));
	assert_int_equal(rv_messenger_add_peer(mess, &pi, NULL, &worker, &why), 0);
}

static void add_peer_with_fabric(uint8_t number)
{
	add_peer_with(number, true, "");
}

/* A node that has both fabrics; the peer may have one or both. */
static void each_fabric_is_told_the_address_it_understands(void **state)
{
	struct fake_fabric verbs;

	(void)state;
	fake_fabric_init(&verbs, RV_BACKEND_VERBS, RV_PEER_OFFER_VERBS);
	verbs.fabric.index = 1;
	w.engine.conf.fabric[1] = &verbs.fabric;
	w.engine.conf.fabric_nr = 2;

	add_peer_with(0x31, true, "verbs at");
	fake_engine_run(&w);
	assert_int_equal(w.fabric.peers_up, 1);
	assert_memory_equal(w.fabric.last_addr, "address", 8);
	assert_int_equal(verbs.peers_up, 1);
	assert_int_equal(verbs.last_addr_len, 8);
	assert_memory_equal(verbs.last_addr, "verbs at", 8);

	add_peer_with(0x32, false, "elsewhere");
	fake_engine_run(&w);
	assert_int_equal(w.fabric.peers_up, 1);
	assert_int_equal(verbs.peers_up, 2);
	assert_memory_equal(verbs.last_addr, "elsewhere", 9);

	add_peer_with(0x33, true, "");
	fake_engine_run(&w);
	assert_int_equal(w.fabric.peers_up, 2);
	assert_int_equal(verbs.peers_up, 2);

	add_peer_with(0x32, false, "elsewhere"); /* nothing new */
	fake_engine_run(&w);
	assert_int_equal(verbs.peers_up, 2);
	w.engine.conf.fabric_nr = 1;
}

static void a_fabric_address_that_found_no_cell_is_told_later(void **state)
{
	struct rv_list taken, *it;
	struct rv_cell *c;

	(void)state;
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	add_peer_with_fabric(0x31);
	add_peer_with_fabric(0x32);
	fake_engine_advance(&w, RV_MS(50));
	assert_int_equal(w.fabric.peers_up, 0);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
	fake_engine_advance(&w, RV_MS(20));
	assert_int_equal(w.fabric.peers_up, 2);
	fake_engine_advance(&w, RV_SEC(1));
	assert_int_equal(w.fabric.peers_up, 2);
}

static void a_peer_is_not_forgotten_before_every_engine_has_heard_that_it_is_gone(void **state)
{
	struct rv_list taken, *it;
	struct rv_cell *c;
	struct rv_peer *p;

	(void)state;
	add_peer_with_fabric(0x31);
	fake_engine_run(&w);
	for (uint64_t i = 1; mess->peers.by_worker.nr < RV_PEERS_MAX; i++) {
		p = rv_peers_get(&mess->peers, i);
		assert_non_null(p);
		p->name[0] = 'x'; /* somebody asked for it: it stays */
	}
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	assert_null(rv_messenger_peer(mess, RV_NEVER - 1));
	assert_null(rv_messenger_peer(mess, RV_NEVER - 1));
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
	assert_non_null(rv_messenger_peer(mess, RV_NEVER - 1));
	fake_engine_run(&w);
	assert_int_equal(w.fabric.peers_down, 1);
}

static void an_offer_is_answered_with_a_descriptor(void **state)
{
	uint64_t slot = fake_stage(&w, RV_KIB(64), 0x33, true, 1000);
	struct rv_desc d;

	(void)state;
	acquire(slot, "{\"backends\":[\"verbs\",\"ucx\",\"of the future\"]}");
	assert_true(granted.is_rdma);
	assert_int_equal(granted.rdma.lease_timeout_ms, 400);
	assert_int_equal(rv_desc_decode(granted_desc, granted.rdma.descriptor_len, &d), RV_ACCEPT);
	assert_int_equal(d.len, RV_KIB(64));
	for (unsigned i = 0; i < 4; i++) {
		fake_engine_advance(&w, RV_MS(300));
		assert_string_equal(lease_op(SYNC, "_rv_lease_renew", slot, granted.rdma.lease_id),
				    "ack ");
	}
	fake_engine_advance(&w, RV_MS(400));
	assert_string_equal(lease_op(SYNC, "_rv_lease_renew", slot, granted.rdma.lease_id),
			    "nack " LOST);
	assert_starts(ask(UNARY, "_rv_metadata", H), "error rendezvous handle not found: ");
	acquire(fake_stage(&w, RV_KIB(64), 0x33, true, 1000), "{\"backends\":[]}");
	assert_false(granted.is_rdma);
}

static void why_a_handle_is_over_is_told(void **state)
{
	static const enum rv_end_cause causes[] = {RV_END_RELEASED, RV_END_DROPPED, RV_END_EXPIRED};
	static const char *const suffix[] = {": released", ": released", ": expired"};
	char body[100], want[200];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(causes); i++) {
		uint64_t slot = fake_stage(&w, 10, 1, false, 1000);

		rv_slot_end(fake_slot(&w, slot), causes[i]);
		snprintf(body, sizeof(body), "{\"handle\":{\"hi\":77,\"lo\":%llu}}",
			 (unsigned long long)slot);
		snprintf(want, sizeof(want),
			 "error rendezvous handle not found: DataHandle(worker=77, local=%llu)%s",
			 (unsigned long long)slot, suffix[i]);
		assert_string_equal(ask(UNARY, "_rv_metadata", body), want);
	}
}

static void a_lease_can_only_be_ended_by_its_consumer(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 0x33, true, 1000);
	char body[200];

	(void)state;
	acquire(slot, "null");
	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":77,\"lo\":%llu},\"lease_id\":%llu}",
		 (unsigned long long)slot, (unsigned long long)granted.ready.lease_id);
	request(in, CONSUMER + 1, 3, FIRE, "_rv_release", body);
	assert_true(fake_link_quiet(in));
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	lease_op(FIRE, "_rv_release", slot, granted.ready.lease_id);
	assert_null(fake_slot(&w, slot));
}

/* The drain gate. */

static const struct {
	enum rv_call_kind kind;
	const char *name, *body;
	bool served;
} gate[] = {
	{UNARY, "_rv_metadata", H, false},
	{SYNC, "_rv_metadata", H, false},
	{FIRE, "_rv_metadata", H, false},
	{UNARY, "_rv_ref", H, false},
	{UNARY, "_hello", "{}", false},
	{UNARY, "_list_handlers", "", false},
	{UNARY, "nobody", "", false},
	{FIRE, "nobody", "", false},
	{UNARY, "_rv_pull", "{\"transfer_id\":5,\"chunk_index\":2}", true},
	{UNARY, "_rv_acquire", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}", true},
	{UNARY, "_rvd_get", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}", true},
	{SYNC, "_rv_detach", L, true},
	{SYNC, "_rv_release", L, true},
	{SYNC, "_rv_lease_renew", L, true},
};

static void a_draining_node_refuses_what_does_not_let_transfers_end(void **state)
{
	(void)state;
	rv_messenger_drain(mess);
	for (size_t i = 0; i < RV_ARRAY_NR(gate); i++) {
		const char *got = ask(gate[i].kind, gate[i].name, gate[i].body);

		if ((strcmp(got, "down") != 0) != gate[i].served)
			fail_msg("row %zu: \"%s\"", i, got);
	}
}

static void the_refusal_is_the_requests_own_header(void **state)
{
	uint8_t head[256];
	size_t len = request_header(head, sizeof(head), CONSUMER, 12, UNARY, "_rv_metadata");
	struct fake_sent *s;

	(void)state;
	rv_messenger_drain(mess);
	fake_link_frame(in, RV_FRAME_MESSAGE, head, len, H, strlen(H));
	s = fake_link_take(in);
	assert_int_equal(s->type, RV_FRAME_SHUTTING_DOWN);
	assert_int_equal(s->header_len, len);
	assert_memory_equal(s->header, head, len);
	fake_sent_free(s);
}

/* Pressure. */

static void take_all_cells(struct rv_list *taken)
{
	struct rv_cell *c;

	rv_list_init(taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(taken, &c->link);
}

static void give_cells_back(struct rv_list *taken)
{
	struct rv_list *it;

	while ((it = rv_list_pop(taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
}

static void without_cells_requests_are_told_busy_and_lease_ends_wait(void **state)
{
	uint64_t slot = fake_stage(&w, 1000, 0x33, true, 1000);
	struct rv_list taken;

	(void)state;
	acquire(slot, "null");
	take_all_cells(&taken);
	assert_string_equal(ask(UNARY, "_rv_metadata", H), "error rendezvous owner busy");
	assert_string_equal(
		ask(UNARY, "_rv_acquire", "{\"handle\":{\"hi\":77,\"lo\":64},\"rdma\":null}"),
		"error rendezvous owner busy");
	assert_string_equal(lease_op(FIRE, "_rv_release", slot, granted.ready.lease_id), "");
	fake_engine_advance(&w, RV_MS(5));
	assert_non_null(fake_slot(&w, slot));
	give_cells_back(&taken);
	fake_engine_advance(&w, RV_MS(2));
	assert_null(fake_slot(&w, slot)); /* not lost */
	assert_int_equal(rv_messenger_pending(mess), 0);
}

static void a_connection_with_too_many_open_requests_is_paused(void **state)
{
	struct rv_list taken;

	(void)state;
	take_all_cells(&taken);
	for (unsigned i = 0; i < RV_LINK_REQUESTS; i++) {
		assert_false(in->paused);
		lease_op(FIRE, "_rv_detach", 64, i + 1);
	}
	assert_true(in->paused);
	give_cells_back(&taken);
	for (unsigned i = 0; i < 20; i++)
		fake_engine_advance(&w, RV_MS(2));
	assert_false(in->paused);
}

static void a_connection_that_does_not_read_its_answers_is_paused(void **state)
{
	(void)state;
	in->queued = RV_LINK_QUEUE;
	ask(UNARY, "_rv_metadata", H);
	assert_true(in->paused);
	in->queued = 0;
	carrier.events->drained(mess, &in->link);
	assert_false(in->paused);
}

static void an_answer_to_a_connection_that_is_gone_goes_nowhere(void **state)
{
	uint8_t head[256];
	size_t len = request_header(head, sizeof(head), CONSUMER, 12, UNARY, "_rv_metadata");

	(void)state;
	fake_link_frame(in, RV_FRAME_MESSAGE, head, len, H, strlen(H));
	fake_link_closed(in, -ECONNRESET); /* while the engine is being asked */
	fake_engine_run(&w);
	assert_int_equal(rv_messenger_pending(mess), 0);
}

#define IN(t) cmocka_unit_test_setup_teardown(t, setup_in, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		MESSENGER(each_fabric_is_told_the_address_it_understands),
		MESSENGER(a_fabric_address_that_found_no_cell_is_told_later),
		MESSENGER(a_peer_is_not_forgotten_before_every_engine_has_heard_that_it_is_gone),
		IN(each_kind_of_call_is_answered_as_the_protocol_says),
		IN(a_hello_makes_the_sender_known_and_tells_who_we_are),
		IN(a_hello_that_is_not_taken_is_counted_by_why),
		IN(this_node_tells_itself_who_it_is),
		IN(a_known_peer_is_moved_by_a_hello_from_where_it_is_alone),
		IN(a_staged_payload_is_not_taken_by_a_built_in_handler),
		IN(a_callers_budget_begins_when_its_message_is_taken),
		IN(a_transfer_serves_its_chunks_to_its_consumer_until_its_lease_ends),
		IN(pulls_keep_a_lease_with_a_deadline_alive),
		IN(a_pull_counts_though_the_engine_was_told_a_moment_before),
		IN(a_chunk_on_its_way_out_holds_the_bytes_though_all_is_over),
		IN(a_connection_that_closes_ends_no_lease),
		IN(nothing_is_granted_with_a_transfer_of_no_chunks),
		IN(an_offer_is_answered_with_a_descriptor),
		IN(why_a_handle_is_over_is_told),
		IN(a_lease_can_only_be_ended_by_its_consumer),
		IN(a_draining_node_refuses_what_does_not_let_transfers_end),
		IN(the_refusal_is_the_requests_own_header),
		IN(without_cells_requests_are_told_busy_and_lease_ends_wait),
		IN(a_connection_with_too_many_open_requests_is_paused),
		IN(a_connection_that_does_not_read_its_answers_is_paused),
		IN(an_answer_to_a_connection_that_is_gone_goes_nowhere),
	};

	return cmocka_run_group_tests_name("messenger_inbound", tests, NULL, NULL);
}
