/* `_rvd_get`: payloads that come with the answer to an acquire, on both ends, and what becomes of their leases. */
#include "tests/unit/messenger_fixture.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/messenger/headers.h"
#include "dataplane/mem/region.h"

#define CONSUMER  4242u
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

/* A number among the headers; @none if there is none. */
static uint64_t number(const uint8_t *map, size_t len, const char *key, uint64_t none)
{
	uint64_t n = none;

	rv_headers_find_u64(map, len, key, &n);
	return n;
}

#define NONE 999999u

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

/* The owner. */

static struct fake_link *in;

static int setup_in(void **state)
{
	setup_bytes(state);
	in = fake_link_accept(&carrier);
	return 0;
}

/* @param map  the headers; NULL: none. @return the request's number */
static uint16_t request_with(const char *name, uint64_t slot, const struct rv_header_pair *pairs,
			     size_t nr)
{
	static uint16_t next;
	uint8_t map[256], head[400];
	char body[100];
	struct rv_writer mw = rv_writer(map, sizeof(map)), wr = rv_writer(head, sizeof(head));
	struct rv_request_header h = {
		.kind = RV_CALL_UNARY,
		.id = rv_msg_id_make(CONSUMER, ++next, 1),
		.name = name,
		.name_len = (uint16_t)strlen(name),
		.headers = map,
	};

	if (nr)
		assert_int_equal(rv_headers_encode(&mw, pairs, nr), 0);
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_request_header_encode(&wr, &h), 0);
	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":%u,\"lo\":%" PRIu64 "},\"rdma\":null}",
		 FAKE_WORKER, slot);
	fake_link_frame(in, RV_FRAME_MESSAGE, head, wr.len, body, strlen(body));
	return next;
}

static void request_bytes(uint64_t slot, const char *bytes, const char *ends)
{
	struct rv_header_pair pairs[2];
	size_t nr = 0;

	if (bytes)
		pairs[nr++] = (struct rv_header_pair){RV_HEADER_BYTES, bytes, strlen(bytes)};
	if (ends)
		pairs[nr++] = (struct rv_header_pair){RV_HEADER_ENDS, ends, strlen(ends)};
	request_with("_rvd_get", slot, pairs, nr);
	fake_engine_run(&w);
}

/* A response of ours; it counts as sent once it was put back with fake_sent_free(). */
struct said {
	struct fake_sent *sent;
	bool error, bytes;
	uint64_t lease;
	bool has_xxh3;
	uint64_t xxh3;
};

static struct said take_said(void)
{
	struct said r = {.sent = fake_link_take(in)};
	struct rv_response_header h;

	assert_int_equal(r.sent->type, RV_FRAME_RESPONSE);
	assert_int_equal(rv_response_header_decode(r.sent->header, r.sent->header_len, &h), 0);
	r.error = h.outcome != 0;
	r.bytes = rv_headers_find_u64(h.headers, h.headers_len, "_rvd_lease", &r.lease);
	r.has_xxh3 = rv_headers_find_u64(h.headers, h.headers_len, "_rvd_xxh3", &r.xxh3);
	assert_int_equal(h.headers_len != 0, r.bytes); /* a plain answer has none */
	return r;
}

/* A plain grant of chunks, and its lease. */
static uint64_t take_grant(void)
{
	struct said r = take_said();
	struct rv_body_grant g;
	const char *why;

	assert_false(r.error);
	assert_false(r.bytes);
	assert_int_equal(
		rv_body_grant_decode(r.sent->payload, r.sent->payload_len, NULL, 0, &g, &why), 0);
	assert_false(g.is_rdma);
	fake_sent_free(r.sent);
	return g.ready.lease_id;
}

static uint64_t stage(uint64_t len)
{
	uint64_t slot = fake_stage(&w, len, 0, true, 1000);

	if (len)
		memcpy(rv_block_ptr(fake_slot(&w, slot)->block), source, len);
	return slot;
}

static uint64_t bytes_out(void)
{
	return rv_messenger_bytes_out(mess);
}

static const struct {
	uint64_t len;
	const char *bytes, *ends;
	bool come, leased;
} served[] = {
	{0, "1", NULL, true, true},
	{0, "1", "1", true, false},
	{1, "1", NULL, true, true},
	{1000, "1000", "1", true, false},
	{1001, "1000", "1", false, true},
	{BYTES_MAX, "65536", NULL, true, true},
	{BYTES_MAX, "18446744073709551615", "1", true, false},
	{BYTES_MAX + 1, "18446744073709551615", "1", false, true},
	/* No number of bytes: none come. */
	{1, NULL, NULL, false, true},
	{1, NULL, "1", false, true},
	{0, "0", "1", false, true},
	{1, "0", NULL, false, true},
	{1, "", NULL, false, true},
	{1, "-1", NULL, false, true},
	{1, "1x", NULL, false, true},
	{1, " 1", NULL, false, true},
	{1, "0x1", NULL, false, true},
	{1, "18446744073709551616", NULL, false, true},
	/* No number that ends it: it does not. */
	{1, "1", "0", true, true},
	{1, "1", "", true, true},
	{1, "1", "yes", true, true},
	{1, "1", "-1", true, true},
	{1, "1", "2", true, false},
};

static void a_request_for_bytes_is_answered_as_its_headers_say(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(served); i++) {
		uint64_t slot = stage(served[i].len), before = bytes_out(), lease;

		request_bytes(slot, served[i].bytes, served[i].ends);
		assert_int_equal(fake_slot(&w, slot)->locks, served[i].leased);
		if (served[i].come) {
			struct said r = take_said();

			if (r.error || !r.bytes || (r.lease != 0) != served[i].leased)
				fail_msg("row %zu", i);
			assert_false(r.has_xxh3);
			assert_int_equal(r.sent->payload_len, served[i].len);
			assert_memory_equal(r.sent->payload, source, served[i].len);
			assert_int_equal(rv_messenger_pending(mess), 1);
			assert_int_equal(bytes_out(), before);
			fake_sent_free(r.sent);
			fake_engine_run(&w);
			assert_int_equal(bytes_out(), before + served[i].len);
			assert_int_equal(mess->transfers.live_nr, 0);
			lease = r.lease;
		} else {
			lease = take_grant();
		}
		assert_int_equal(rv_messenger_pending(mess), 0);
		assert_int_equal(fake_slot(&w, slot)->locks, served[i].leased);
		if (served[i].leased)
			assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, slot, lease, CONSUMER),
					 0);
		assert_true(!served[i].len || fake_slot(&w, slot)->block->holds == 1);
		fake_drop_slot(&w, slot);
		assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	}
}

static void of_two_wishes_the_last_counts(void **state)
{
	static const struct rv_header_pair pairs[] = {
		{RV_HEADER_BYTES, "0", 1},
		{RV_HEADER_ENDS, "0", 1},
		{RV_HEADER_BYTES, "1000", 4},
		{RV_HEADER_ENDS, "1", 1},
	};
	uint64_t slot = stage(1000);
	struct said r;

	(void)state;
	request_with("_rvd_get", slot, pairs, 4);
	fake_engine_run(&w);
	r = take_said();
	assert_true(r.bytes && r.lease == 0);
	fake_sent_free(r.sent);
	request_with("_rvd_get", slot, pairs, 3); /* an end that is taken back */
	fake_engine_run(&w);
	r = take_said();
	assert_true(r.bytes && r.lease != 0);
	fake_sent_free(r.sent);
}

/* The stock name has no such headers. */
static void an_acquire_by_its_stock_name_is_answered_as_ever(void **state)
{
	static const struct rv_header_pair pairs[] = {{RV_HEADER_BYTES, "1000", 4},
						      {RV_HEADER_ENDS, "1", 1}};
	uint64_t slot = stage(1000);

	(void)state;
	request_with("_rv_acquire", slot, pairs, 2);
	fake_engine_run(&w);
	take_grant();
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
}

static void the_hash_of_what_was_staged_goes_along(void **state)
{
	static const uint64_t hashes[] = {0, 1, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(hashes); i++) {
		uint64_t slot = stage(1000);
		struct said r;

		fake_slot(&w, slot)->has_xxh3 = true;
		fake_slot(&w, slot)->xxh3 = hashes[i];
		request_bytes(slot, "1000", "1");
		r = take_said();
		assert_true(r.bytes && r.has_xxh3 && r.xxh3 == hashes[i]);
		fake_sent_free(r.sent);
	}
}

static void a_lease_that_came_with_bytes_has_the_deadline_that_was_asked_for(void **state)
{
	static const struct rv_header_pair pairs[] = {{RV_HEADER_BYTES, "1000", 4},
						      {RV_HEADER_LEASE_MS, "300", 3}};
	uint64_t slot = stage(1000);

	(void)state;
	request_with("_rvd_get", slot, pairs, 2);
	fake_engine_run(&w);
	fake_sent_free(take_said().sent);
	fake_slot(&w, slot)->refcount = 2;
	fake_engine_advance(&w, RV_MS(299));
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
}

static void bytes_on_their_way_out_are_held_though_all_is_over(void **state)
{
	uint64_t slot = stage(1000);
	struct said r;

	(void)state;
	request_bytes(slot, "1000", "1");
	r = take_said();
	fake_drop_slot(&w, slot);
	fake_engine_advance(&w, RV_SEC(3600));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	assert_int_equal(rv_messenger_pending(mess), 1); /* a shutdown waits for it */
	fake_sent_free(r.sent);
	fake_engine_run(&w);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(rv_messenger_pending(mess), 0);
}

/* Nobody has learned of its lease. */
static void assert_nothing_left(uint64_t slot)
{
	fake_engine_run(&w);
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 1);
	assert_true(!fake_slot(&w, slot)->len || fake_slot(&w, slot)->block->holds == 1);
	assert_int_equal(w.engine.store.leases.live_nr, 0);
	assert_int_equal(rv_messenger_pending(mess), 0);
	assert_int_equal(bytes_out(), 0);
}

static void bytes_that_cannot_be_sent_leave_no_lease(void **state)
{
	static const uint64_t lens[] = {0, 1000};

	(void)state;
	for (size_t i = 0; i < 2 * RV_ARRAY_NR(lens); i++) {
		uint64_t slot = stage(lens[i / 2]);
		const char *ends = i % 2 ? "1" : NULL;

		in->send_rc = -ENOMEM; /* at once */
		request_bytes(slot, "1000", ends);
		assert_nothing_left(slot);
		in->send_rc = 0;

		request_bytes(slot, "1000", ends); /* while they are going out */
		assert_int_equal(fake_slot(&w, slot)->locks, !ends);
		fake_link_closed(in, -ECONNRESET);
		assert_nothing_left(slot);
		in = fake_link_accept(&carrier);

		request_with("_rvd_get", slot,
			     (struct rv_header_pair[]){{RV_HEADER_BYTES, "1000", 4},
						       {RV_HEADER_ENDS, "1", 1}},
			     ends ? 2 : 1);
		fake_link_closed(in, -ECONNRESET); /* while the engine is asked */
		assert_nothing_left(slot);
		in = fake_link_accept(&carrier);
		fake_drop_slot(&w, slot);
	}
}

/* A region's bytes are copied out before they are sent, unless it has been let go. */
static void bytes_of_a_region_are_copied_and_those_of_one_that_is_gone_are_not_there(void **state)
{
	static struct rv_region region;
	uint64_t slot = stage(1000);
	struct rv_arena *arena = fake_slot(&w, slot)->block->arena;
	struct said r;

	(void)state;
	region = (struct rv_region){.fd = memfd_create("client", MFD_CLOEXEC)};
	assert_true(region.fd >= 0);
	assert_int_equal(
		pwrite(region.fd, source + 1, 1000, (off_t)fake_slot(&w, slot)->block->off), 1000);
	arena->region = &region;
	request_bytes(slot, "1000", "1");
	r = take_said();
	assert_true(r.bytes);
	assert_int_equal(r.sent->payload_len, 1000);
	assert_memory_equal(r.sent->payload, source + 1, 1000);
	fake_sent_free(r.sent);
	fake_engine_run(&w);
	for (unsigned ends = 0; ends < 2; ends++) {
		rv_copy_latch(&region.gate);
		request_bytes(slot, "1000", ends ? "1" : NULL);
		r = take_said();
		assert_true(r.error);
		assert_memory_equal(r.sent->payload, "rendezvous handle not found: ", 29);
		assert_non_null(memmem(r.sent->payload, r.sent->payload_len, "deregistered", 12));
		fake_sent_free(r.sent);
		fake_engine_run(&w);
		assert_int_equal(fake_slot(&w, slot)->locks, 0);
		assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
		rv_copy_unlatch(&region.gate);
	}
	assert_int_equal(bytes_out(), 1000);
	arena->region = NULL;
	close(region.fd);
}

static void a_draining_node_still_serves_bytes(void **state)
{
	uint64_t slot = stage(1000);
	struct said r;

	(void)state;
	rv_messenger_drain(mess);
	request_bytes(slot, "1000", "1");
	r = take_said();
	assert_true(r.bytes);
	assert_memory_equal(r.sent->payload, source, 1000);
	fake_sent_free(r.sent);
}

static void without_cells_or_leases_a_request_for_bytes_is_told_busy(void **state)
{
	uint64_t slot = stage(1000);
	struct rv_list taken, *it;
	struct rv_cell *c;
	struct said r;

	(void)state;
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	request_bytes(slot, "1000", "1");
	r = take_said();
	assert_true(r.error);
	assert_int_equal(r.sent->payload_len, strlen("rendezvous owner busy"));
	fake_sent_free(r.sent);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
	assert_nothing_left(slot);

	for (unsigned i = 0; i < 64; i++) { /* as many as the engine has leases */
		request_bytes(slot, "1000", NULL);
		fake_sent_free(take_said().sent);
	}
	request_bytes(slot, "1000", NULL);
	r = take_said();
	assert_true(r.error);
	assert_memory_equal(r.sent->payload, "rendezvous owner busy", 21);
	fake_sent_free(r.sent);
	request_bytes(slot, "1000", "1"); /* and none is needed for this */
	r = take_said();
	assert_true(r.bytes && r.lease == 0);
	fake_sent_free(r.sent);
}

/* A request that is being answered counts as one of its connection's, until its answer is handed over. */
static void a_connection_is_not_paused_for_ever_by_requests_for_bytes(void **state)
{
	uint64_t slot = stage(1000);

	(void)state;
	for (unsigned i = 0; i < 2 * RV_LINK_REQUESTS; i++) {
		request_bytes(slot, "1000", "1");
		fake_sent_free(take_said().sent);
	}
	fake_engine_run(&w);
	assert_false(in->paused);
}

#define OUT(t) cmocka_unit_test_setup_teardown(t, setup_bytes, finish)
#define IN(t)  cmocka_unit_test_setup_teardown(t, setup_in, finish)

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
		IN(a_request_for_bytes_is_answered_as_its_headers_say),
		IN(of_two_wishes_the_last_counts),
		IN(an_acquire_by_its_stock_name_is_answered_as_ever),
		IN(the_hash_of_what_was_staged_goes_along),
		IN(a_lease_that_came_with_bytes_has_the_deadline_that_was_asked_for),
		IN(bytes_on_their_way_out_are_held_though_all_is_over),
		IN(bytes_that_cannot_be_sent_leave_no_lease),
		IN(bytes_of_a_region_are_copied_and_those_of_one_that_is_gone_are_not_there),
		IN(a_draining_node_still_serves_bytes),
		IN(without_cells_or_leases_a_request_for_bytes_is_told_busy),
		IN(a_connection_is_not_paused_for_ever_by_requests_for_bytes),
	};

	return cmocka_run_group_tests_name("messenger_bytes", tests, NULL, NULL);
}
