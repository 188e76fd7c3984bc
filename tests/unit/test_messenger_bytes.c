/* `_rvd_get`: payloads that come with the answer to an acquire, the consumer, and what becomes of their leases. */
#include "tests/unit/messenger_fixture.h"

#include <inttypes.h>

#include "control/messenger/headers.h"

#define BYTES_MAX 65536u
#define UNTOUCHED 0x5a

static uint8_t source[BYTES_MAX + 1];
static uint8_t landing[BYTES_MAX + 64];

static int setup_bytes(void **state)
{
	setup(state);
	w.engine.conf.bytes_max = BYTES_MAX;
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)(i * 31 + i / 256 + 1);
	memset(landing, UNTOUCHED, sizeof(landing));
	return 0;
}

static bool untouched(size_t from)
{
	for (size_t i = from; i < sizeof(landing); i++)
		if (landing[i] != UNTOUCHED)
			return false;
	return true;
}

/* What we asked. */

struct asked {
	struct rv_msg_id id;
	enum rv_call_kind kind;
	char name[32], body[600];
	size_t body_len;
	uint8_t map[200];
	size_t map_len;
};

static struct asked take_asked(struct fake_link *l)
{
	struct asked r = {0};
	struct rv_request_header h;
	struct fake_sent *s;

	fake_engine_run(&w);
	s = fake_link_take(l);
	assert_int_equal(s->type, RV_FRAME_MESSAGE);
	assert_int_equal(rv_request_header_decode(s->header, s->header_len, &h), 0);
	assert_true(h.name_len < sizeof(r.name) && s->payload_len < sizeof(r.body));
	assert_true(h.headers_len <= sizeof(r.map));
	r.id = h.id;
	r.kind = h.kind;
	memcpy(r.name, h.name, h.name_len);
	memcpy(r.body, s->payload, s->payload_len);
	r.body_len = s->payload_len;
	if (h.headers_len)
		memcpy(r.map, h.headers, h.headers_len);
	r.map_len = h.headers_len;
	fake_sent_free(s);
	return r;
}

static const char *const ours[] = {"_hello", "_rv_acquire", "_rvd_get", "_rv_pull"};

static struct fake_link *up_ours(uint64_t owner)
{
	return route_up(owner, ours, RV_ARRAY_NR(ours));
}

static struct fake_ask *ask(uint64_t owner, uint32_t bytes_max, bool ends, uint64_t lease_ms)
{
	struct rv_peer_call pc = {
		.op = RV_PEER_ACQUIRE,
		.handle = {owner, 64},
		.deadline_ns = fake_now_ns + CALL_NS,
		.lease_ms = lease_ms,
		.bytes_max = bytes_max,
		.dst = bytes_max ? landing : NULL,
		.ends = ends,
		.rc = 1,
	};
	struct fake_ask *a = fake_call_start(&w, rv_messenger_calls(mess), &pc);

	fake_engine_run(&w);
	return a;
}

/* An answer with a lease in its headers, and what the payload hashes to if @xxh3. @return the length of its header */
static size_t answer_header(uint8_t *buf, size_t cap, const struct rv_msg_id *id, unsigned outcome,
			    const char *lease, const char *xxh3)
{
	struct rv_header_pair pair[] = {{RV_HEADER_LEASE, lease, strlen(lease)},
					{RV_HEADER_XXH3, xxh3, xxh3 ? strlen(xxh3) : 0}};
	uint8_t map[128];
	struct rv_writer mw = rv_writer(map, sizeof(map)), wr = rv_writer(buf, cap);
	struct rv_response_header h = {.id = *id, .outcome = (uint8_t)outcome, .headers = map};

	assert_int_equal(rv_headers_encode(&mw, pair, xxh3 ? 2 : 1), 0);
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_response_header_encode(&wr, &h), 0);
	assert_false(wr.bad);
	return wr.len;
}

static void respond_bytes(struct fake_link *l, const struct rv_msg_id *id, const char *lease,
			  const char *xxh3, const void *body, size_t len)
{
	uint8_t head[256];
	size_t n = answer_header(head, sizeof(head), id, 0, lease, xxh3);

	fake_link_frame(l, RV_FRAME_RESPONSE, head, n, body, len);
	fake_engine_run(&w);
}

/* Its payload begins to arrive. @return its place */
static void *begin_bytes(struct fake_link *l, const struct rv_msg_id *id, const char *lease,
			 size_t len)
{
	uint8_t head[256];
	size_t n = answer_header(head, sizeof(head), id, 0, lease, NULL);

	return fake_link_begin(l, RV_FRAME_RESPONSE, head, n, len);
}

static void expect_detach(struct fake_link *l, uint64_t owner, uint64_t lease)
{
	struct request d = need_request(l, "_rv_detach");
	struct rv_body_lease b;
	const char *why;

	assert_int_equal(d.kind, RV_CALL_FIRE);
	assert_int_equal(rv_body_lease_decode(d.body, d.body_len, &b, &why), 0);
	assert_true(b.lease_id == lease);
	assert_true(b.handle.worker == owner);
	assert_int_equal(b.handle.local, 64);
	assert_true(fake_link_quiet(l));
}

/* The consumer: whom it asks, and what. */

static const struct {
	const char *const names[3];
	size_t nr;
	uint32_t bytes_max;
	const char *asked;
} listed[] = {
	{{"_hello", "_rvd_get"}, 2, 1000, "_rvd_get"},
	{{"_rvd_get"}, 1, 1, "_rvd_get"},
	{{"_rvd_get", "_rv_acquire", "_rvd_get"}, 3, 1000, "_rvd_get"},
	{{"_rvd_get"}, 1, 0, "_rv_acquire"},
	{{"_hello", "_rv_acquire"}, 2, 1000, "_rv_acquire"},
	{{"_rvd_ge", "_rvd_gets", "x_rvd_get"}, 3, 1000, "_rv_acquire"},
	{{"_RVD_GET", "_rvd_get ", ""}, 3, 1000, "_rv_acquire"},
	{{NULL}, 0, 1000, "_rv_acquire"},
};

static void only_who_lists_it_is_asked_for_bytes(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(listed); i++) {
		uint64_t owner = add_peer((uint8_t)(i + 1), i % 2);
		struct fake_link *l = route_up(owner, listed[i].names, listed[i].nr);
		struct fake_ask *a = ask(owner, listed[i].bytes_max, true, 0);
		struct asked r = take_asked(l);

		if (strcmp(r.name, listed[i].asked) != 0)
			fail_msg("row %zu: %s", i, r.name);
		assert_int_equal(r.kind, RV_CALL_UNARY);
		assert_int_equal(r.map_len != 0, strcmp(r.name, "_rvd_get") == 0);
		respond_text(l, &r.id, 1, "no");
		assert_int_equal(call_outcome(a).rc, -EREMOTEIO);
	}
}

/* A peer may be another program after it was gone: what it listed is forgotten. */
static void what_was_listed_counts_for_its_connection_only(void **state)
{
	static const char *const stock[] = {"_hello", "_rv_acquire"};
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);
	struct fake_ask *a;
	struct asked r;

	(void)state;
	fake_link_closed(l, 0);
	l = route_up(owner, stock, 2);
	a = ask(owner, 1000, false, 0);
	r = take_asked(l);
	assert_string_equal(r.name, "_rv_acquire");
	respond_text(l, &r.id, 1, "no");
	call_outcome(a);
	fake_engine_advance(&w, RV_SEC(1)); /* it lasted: the next is dialed at once */
	fake_link_closed(l, 0);
	/* A `_hello` that is refused lists nothing. */
	a = ask(owner, 1000, false, 0);
	l = fake_carrier_link(&carrier, carrier.link_nr - 1);
	fake_link_connected(l, 0);
	r = take_asked(l);
	ack(l, &r.id, true, "Handler '_hello' not found");
	r = take_asked(l);
	assert_string_equal(r.name, "_rv_acquire");
	respond_text(l, &r.id, 1, "no");
	call_outcome(a);
	fake_link_closed(l, 0);
	/* An acquire that waits for the connection is put as its `_hello` says. */
	a = ask(owner, 1000, false, 0);
	l = fake_carrier_link(&carrier, carrier.link_nr - 1);
	fake_link_connected(l, 0);
	r = take_asked(l);
	respond_text(l, &r.id, 0, "{\"handlers\":[\"_rvd_get\"]}");
	r = take_asked(l);
	assert_string_equal(r.name, "_rvd_get");
	respond_text(l, &r.id, 1, "no");
	call_outcome(a);
}

static const struct {
	uint32_t bytes_max;
	bool ends;
	uint64_t lease_ms;
} wishes[] = {
	{1, false, 0},
	{BYTES_MAX, true, 0},
	{1000, false, 1500},
	{UINT32_MAX, true, UINT64_MAX}, /* the longest headers there are */
};

static void a_wish_for_bytes_travels_in_the_headers(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(wishes); i++) {
		struct fake_ask *a =
			ask(owner, wishes[i].bytes_max, wishes[i].ends, wishes[i].lease_ms);
		struct asked r = take_asked(l);
		struct rv_body_acquire b;
		const char *why;

		assert_string_equal(r.name, "_rvd_get");
		assert_int_equal(number(r.map, r.map_len, "_rvd_bytes", NONE), wishes[i].bytes_max);
		assert_int_equal(number(r.map, r.map_len, "_rvd_ends", NONE),
				 wishes[i].ends ? 1 : NONE);
		assert_true(number(r.map, r.map_len, "_rv_lease_ms", NONE) ==
			    (wishes[i].lease_ms ? wishes[i].lease_ms : NONE));
		assert_int_equal(
			rv_body_acquire_decode((const uint8_t *)r.body, r.body_len, &b, &why), 0);
		assert_true(b.handle.worker == owner);
		assert_int_equal(b.handle.local, 64);
		assert_false(b.has_offer);
		respond_text(l, &r.id, 1, "no");
		call_outcome(a);
	}
}

/* The consumer: answers. */

enum arrival { PLACED, UNPLACED };

static const struct {
	enum arrival arrival;
	size_t len;
	const char *lease, *xxh3;
} arrivals[] = {
	{PLACED, 1, "7", NULL},
	{PLACED, 1000, "0", NULL},
	{PLACED, 1000, "7", "12345"},
	{PLACED, BYTES_MAX, "18446744073709551615", "18446744073709551615"},
	{UNPLACED, 1, "7", NULL},
	{UNPLACED, 1000, "0", "0"},
	{UNPLACED, BYTES_MAX, "7", "1"},
	{UNPLACED, 0, "7", NULL},
	{UNPLACED, 0, "0", "1"},
};

static void bytes_land_in_their_place_or_are_put_there(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(arrivals); i++) {
		struct fake_ask *a = ask(owner, BYTES_MAX, false, 0);
		struct asked r = take_asked(l);
		struct rv_peer_call pc;
		uint8_t head[256];
		size_t n = answer_header(head, sizeof(head), &r.id, 0, arrivals[i].lease,
					 arrivals[i].xxh3);
		struct rv_frame f = {.type = RV_FRAME_RESPONSE,
				     .header = head,
				     .header_len = n,
				     .payload = source,
				     .payload_len = arrivals[i].len};

		memset(landing, UNTOUCHED, sizeof(landing));
		if (arrivals[i].arrival == UNPLACED) {
			carrier.events->frame(carrier.user, &l->link, &f);
		} else {
			assert_ptr_equal(
				fake_link_begin(l, RV_FRAME_RESPONSE, head, n, arrivals[i].len),
				landing);
			fake_link_arrive(l, source, arrivals[i].len / 2);
			assert_false(a->back);
			fake_link_arrive(l, source + arrivals[i].len / 2,
					 arrivals[i].len - arrivals[i].len / 2);
			fake_link_end(l);
		}
		pc = call_outcome(a);
		assert_int_equal(pc.rc, 0);
		assert_int_equal(pc.answer, RV_ANSWER_BYTES);
		assert_int_equal(pc.ready.total_len, arrivals[i].len);
		assert_true(pc.ready.lease_id == strtoull(arrivals[i].lease, NULL, 10));
		assert_int_equal(pc.has_xxh3, arrivals[i].xxh3 != NULL);
		assert_true(!arrivals[i].xxh3 || pc.xxh3 == strtoull(arrivals[i].xxh3, NULL, 10));
		assert_memory_equal(landing, source, arrivals[i].len);
		assert_true(untouched(arrivals[i].len));
	}
	assert_true(fake_link_quiet(l)); /* the leases are the caller's */
}

/* Stock owners answer on a connection of their own; so may anybody. */
static void bytes_may_come_by_another_connection(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner), *theirs = fake_link_accept(&carrier);
	struct fake_ask *a = ask(owner, BYTES_MAX, false, 0);
	struct asked r = take_asked(l);

	(void)state;
	respond_bytes(theirs, &r.id, "7", NULL, source, 1000);
	assert_int_equal(call_outcome(a).answer, RV_ANSWER_BYTES);
	assert_memory_equal(landing, source, 1000);
}

#define READY \
	"{\"Ready\":{\"lease_id\":8,\"transfer_id\":9,\"total_len\":1200000,\"chunk_size\":524288,\"chunk_count\":3}}"
#define GONE "rendezvous handle not found: DataHandle(worker=1, local=2): released"

static void a_wish_for_bytes_may_be_answered_with_a_plain_grant(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (unsigned by_ack = 0; by_ack < 2; by_ack++) {
		struct fake_ask *a = ask(owner, BYTES_MAX, true, 0);
		struct asked r = take_asked(l);
		struct rv_peer_call pc;

		if (by_ack)
			ack(l, &r.id, false, READY);
		else
			respond_text(l, &r.id, 0, READY);
		pc = call_outcome(a);
		assert_int_equal(pc.rc, 0);
		assert_int_equal(pc.answer, RV_ANSWER_READY);
		assert_int_equal(pc.ready.lease_id, 8);
		assert_int_equal(pc.ready.total_len, 1200000);
		assert_true(untouched(0)); /* not even for a moment in the caller's place */
	}
}

/* What is not said to be the bytes is not taken for them. */
static const struct {
	const char *lease; /* NULL: no headers */
	const char *body;
	int rc;
} doubtful[] = {
	{NULL, "twelve bytes", -EPROTO},
	{"", "twelve bytes", -EPROTO},
	{"x", "twelve bytes", -EPROTO},
	{"-1", "twelve bytes", -EPROTO},
	{"18446744073709551616", "twelve bytes", -EPROTO},
	{"x", READY, 0},
};

static void bytes_without_a_lease_of_a_number_are_no_bytes(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(doubtful); i++) {
		struct fake_ask *a = ask(owner, BYTES_MAX, true, 0);
		struct asked r = take_asked(l);
		struct rv_peer_call pc;

		if (doubtful[i].lease)
			respond_bytes(l, &r.id, doubtful[i].lease, NULL, doubtful[i].body,
				      strlen(doubtful[i].body));
		else
			respond_text(l, &r.id, 0, doubtful[i].body);
		pc = call_outcome(a);
		assert_int_equal(pc.rc, doubtful[i].rc);
		assert_int_equal(pc.answer, doubtful[i].rc ? RV_ANSWER_NONE : RV_ANSWER_READY);
		assert_true(untouched(0));
		assert_true(fake_link_quiet(l));
	}
}

static void an_error_is_an_error_whatever_its_headers_say(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);
	struct fake_ask *a = ask(owner, BYTES_MAX, true, 0);
	struct asked r = take_asked(l);
	struct rv_peer_call pc;
	uint8_t head[256];
	size_t n = answer_header(head, sizeof(head), &r.id, 1, "7", NULL);

	(void)state;
	fake_link_frame(l, RV_FRAME_RESPONSE, head, n, GONE, strlen(GONE));
	pc = call_outcome(a);
	assert_int_equal(pc.rc, -ENOENT);
	assert_string_equal(pc.text, "owner: " GONE);
	assert_true(untouched(0));
	assert_true(fake_link_quiet(l));
}

static void more_bytes_than_were_asked_for_are_refused_and_their_lease_is_ended(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (unsigned with_lease = 0; with_lease < 2; with_lease++) {
		struct fake_ask *a = ask(owner, 1000, false, 0);
		struct asked r = take_asked(l);
		struct rv_peer_call pc;

		respond_bytes(l, &r.id, with_lease ? "7" : "0", NULL, source, 1001);
		pc = call_outcome(a);
		assert_int_equal(pc.rc, -EPROTO);
		assert_non_null(strstr(pc.text, "more bytes than were asked for"));
		assert_int_equal(pc.answer, RV_ANSWER_NONE);
		assert_true(untouched(0));
		if (with_lease)
			expect_detach(l, owner, 7);
		assert_true(fake_link_quiet(l));
	}
}

static void a_second_answer_writes_nothing(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner), *theirs = fake_link_accept(&carrier);
	struct fake_ask *a = ask(owner, BYTES_MAX, false, 0);
	struct asked r = take_asked(l);

	(void)state;
	assert_ptr_equal(begin_bytes(l, &r.id, "7", 1000), landing);
	assert_null(begin_bytes(theirs, &r.id, "8", 900)); /* while the first is arriving */
	fake_link_arrive(theirs, source + 1, 900);
	fake_link_end(theirs);
	assert_false(a->back);
	fake_link_arrive(l, source, 1000);
	fake_link_end(l);
	assert_int_equal(call_outcome(a).ready.lease_id, 7);
	memset(landing, UNTOUCHED, sizeof(landing));
	assert_null(begin_bytes(l, &r.id, "7", 1000)); /* and after it */
	fake_link_arrive(l, source, 1000);
	fake_link_end(l);
	assert_true(untouched(0));
}

/* The consumer: bytes nobody waits for. */

static void bytes_that_come_after_the_deadline_write_nothing_and_end_their_lease(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (unsigned with_lease = 0; with_lease < 2; with_lease++) {
		struct fake_ask *a = ask(owner, BYTES_MAX, false, 0);
		struct asked r = take_asked(l);

		fake_engine_advance(&w, CALL_NS);
		assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
		fake_engine_advance(&w, RV_SEC(20));
		respond_bytes(l, &r.id, with_lease ? "7" : "0", NULL, source, 1000);
		assert_true(untouched(0));
		if (with_lease)
			expect_detach(l, owner, 7);
		assert_true(fake_link_quiet(l));
	}
	{
		struct fake_ask *a = ask(owner, BYTES_MAX, false, 0);
		struct asked r = take_asked(l);

		fake_engine_advance(&w, CALL_NS);
		assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
		respond_text(l, &r.id, 0, READY); /* a plain grant has a lease too */
		expect_detach(l, owner, 8);
	}
}

/* The first half is in its place, and the caller's memory is its own again. */
static struct fake_ask *half(struct fake_link *l, struct fake_link *by, uint64_t owner,
			     const char *lease)
{
	struct fake_ask *a = ask(owner, BYTES_MAX, false, 0);
	struct asked r = take_asked(l);

	assert_ptr_equal(begin_bytes(by, &r.id, lease, 1000), landing);
	fake_link_arrive(by, source, 500);
	return a;
}

static void the_rest_comes_and_writes_nothing(struct fake_link *by)
{
	memset(landing, UNTOUCHED, sizeof(landing));
	fake_link_arrive(by, source + 500, 500);
	fake_link_end(by);
	fake_engine_run(&w);
	assert_true(untouched(0));
}

static void bytes_that_are_arriving_at_the_deadline_end_their_lease_and_write_no_more(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);

	(void)state;
	for (unsigned with_lease = 0; with_lease < 2; with_lease++) {
		struct fake_ask *a = half(l, l, owner, with_lease ? "7" : "0");

		fake_engine_advance(&w, CALL_NS - RV_MS(1));
		assert_false(a->back);
		fake_engine_advance(&w, RV_MS(1));
		assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
		if (with_lease)
			expect_detach(l, owner, 7);
		the_rest_comes_and_writes_nothing(l);
		assert_true(fake_link_quiet(l)); /* the lease ends once */
	}
	fake_engine_advance(&w, RV_SEC(120));
	assert_int_equal(mess->calls.live, 0);
}

static void a_place_that_is_let_go_later_keeps_its_caller_waiting(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);
	struct fake_ask *a = half(l, l, owner, "7");

	(void)state;
	carrier.displace_pends = true;
	fake_engine_advance(&w, CALL_NS + RV_SEC(1));
	assert_false(a->back); /* the carrier may still write */
	assert_true(fake_link_quiet(l));
	fake_link_arrive(l, source + 500, 200);
	fake_link_displaced(l);
	assert_int_equal(call_outcome(a).rc, -ETIMEDOUT);
	expect_detach(l, owner, 7);
	memset(landing, UNTOUCHED, sizeof(landing));
	fake_link_arrive(l, source + 700, 300);
	fake_link_end(l);
	assert_true(untouched(0));
	fake_engine_advance(&w, RV_SEC(120)); /* nothing waits for an answer that has come */
	assert_int_equal(mess->calls.live, 0);
	assert_true(fake_link_quiet(l));
}

static void a_connection_that_breaks_amid_the_bytes_ends_their_lease_on_the_next(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner), *next;
	struct fake_ask *a = half(l, l, owner, "7");

	(void)state;
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(call_outcome(a).rc, -ECONNRESET);
	assert_int_equal(carrier.dials, 2);
	next = greet();
	expect_detach(next, owner, 7);
	fake_engine_advance(&w, RV_SEC(120));
	assert_int_equal(mess->calls.live, 0);

	a = half(next, next, owner, "0"); /* there is nothing to end */
	fake_link_closed(next, -ECONNRESET);
	assert_int_equal(call_outcome(a).rc, -ECONNRESET);
	assert_int_equal(carrier.dials, 2);
}

static void bytes_by_another_connection_break_off_with_it(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner), *theirs = fake_link_accept(&carrier);
	struct fake_ask *a = half(l, theirs, owner, "7");

	(void)state;
	fake_link_closed(theirs, -ECONNRESET);
	assert_int_equal(call_outcome(a).rc, -ECONNRESET);
	expect_detach(l, owner, 7);
	assert_int_equal(carrier.dials, 1);
}

/* The call goes with its own connection, though its answer was arriving by another. */
static void bytes_by_another_connection_write_no_more_when_their_call_is_over(void **state)
{
	(void)state;
	for (unsigned pends = 0; pends < 2; pends++) {
		uint64_t owner = add_peer((uint8_t)(1 + pends), true);
		struct fake_link *l = up_ours(owner), *theirs = fake_link_accept(&carrier);
		struct fake_ask *a = half(l, theirs, owner, "7");
		unsigned dials = carrier.dials;

		carrier.displace_pends = pends;
		fake_link_closed(l, -ECONNRESET);
		fake_engine_run(&w);
		assert_int_equal(a->back, !pends);
		if (pends)
			fake_link_displaced(theirs);
		assert_int_equal(call_outcome(a).rc, -ECONNRESET);
		the_rest_comes_and_writes_nothing(theirs);
		assert_int_equal(carrier.dials, dials + 1);
		expect_detach(greet(), owner, 7);
	}
}

static void a_stopped_messenger_ends_no_lease(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = up_ours(owner);
	struct fake_ask *a = half(l, l, owner, "7");

	(void)state;
	rv_messenger_stop(mess);
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(call_outcome(a).rc, -ECONNRESET);
	assert_int_equal(carrier.dials, 1);
}

#define OUT(t) cmocka_unit_test_setup_teardown(t, setup_bytes, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		OUT(only_who_lists_it_is_asked_for_bytes),
		OUT(what_was_listed_counts_for_its_connection_only),
		OUT(a_wish_for_bytes_travels_in_the_headers),
		OUT(bytes_land_in_their_place_or_are_put_there),
		OUT(bytes_may_come_by_another_connection),
		OUT(a_wish_for_bytes_may_be_answered_with_a_plain_grant),
		OUT(bytes_without_a_lease_of_a_number_are_no_bytes),
		OUT(an_error_is_an_error_whatever_its_headers_say),
		OUT(more_bytes_than_were_asked_for_are_refused_and_their_lease_is_ended),
		OUT(a_second_answer_writes_nothing),
		OUT(bytes_that_come_after_the_deadline_write_nothing_and_end_their_lease),
		OUT(bytes_that_are_arriving_at_the_deadline_end_their_lease_and_write_no_more),
		OUT(a_place_that_is_let_go_later_keeps_its_caller_waiting),
		OUT(a_connection_that_breaks_amid_the_bytes_ends_their_lease_on_the_next),
		OUT(bytes_by_another_connection_break_off_with_it),
		OUT(bytes_by_another_connection_write_no_more_when_their_call_is_over),
		OUT(a_stopped_messenger_ends_no_lease),
	};

	return cmocka_run_group_tests_name("messenger_bytes", tests, NULL, NULL);
}
