/* `_rvd_get_many`, on both ends. */
#include "tests/unit/messenger_fixture.h"

#include "control/messenger/headers.h"
#include "control/messenger/many_codec.h"

#define BYTES_MAX 65536u
#define CONSUMER  4242u

static struct rv_peer_many many;
static uint8_t landing[4096];

static int setup_many(void **state)
{
	setup(state);
	w.engine.conf.bytes_max = BYTES_MAX;
	memset(landing, 0x5a, sizeof(landing));
	return 0;
}

static const char *const ours[] = {"_hello", "_rv_acquire", "_rvd_get_many"};

static struct fake_ask *ask(uint64_t owner)
{
	struct rv_peer_call pc = {
		.op = RV_PEER_MANY,
		.handle = {owner, 0},
		.deadline_ns = fake_now_ns + CALL_NS,
		.many = &many,
		.bytes_max = sizeof(landing),
		.dst = landing,
		.rc = 1,
	};
	struct fake_ask *a;

	many = (struct rv_peer_many){.nr = 2, .each = 100, .one = {{.local = 64}, {.local = 128}}};
	many.one[0].rc = many.one[1].rc = -EAGAIN;
	a = fake_call_start(&w, rv_messenger_calls(mess), &pc);
	fake_engine_run(&w);
	return a;
}

/* An answer with what each payload is said to be, and 8 bytes; @lease NULL: no headers. */
static size_t answer_head(uint8_t *buf, size_t cap, const struct rv_msg_id *id, const char *lease)
{
	struct rv_header_pair pair = {RV_HEADER_LEASE, lease, lease ? strlen(lease) : 0};
	uint8_t map[64];
	struct rv_writer mw = rv_writer(map, sizeof(map)), wr = rv_writer(buf, cap);
	struct rv_response_header h = {.id = *id, .headers = lease ? map : NULL};

	if (lease)
		assert_int_equal(rv_headers_encode(&mw, &pair, 1), 0);
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_response_header_encode(&wr, &h), 0);
	return wr.len;
}

#define ANSWER_LEN (RV_MANY_SAID(2) + 8)

static void answer_body(uint8_t body[ANSWER_LEN], uint32_t len)
{
	struct rv_peer_many said = {.nr = 2, .one = {{.off = 48, .len = len}, {.rc = -EAGAIN}}};
	struct rv_writer wr = rv_writer(body, ANSWER_LEN);

	rv_many_answer_encode(&wr, &said);
	memcpy(body + wr.len, "payload!", 8);
}

static void only_who_lists_it_is_asked(void **state)
{
	static const struct {
		const char *const names[2];
		bool asked;
	} listed[] = {{{"_rvd_get_many", "x"}, true},
		      {{"_rvd_get", "_rvd_get_man"}, false},
		      {{"_rvd_get_many_", "_RVD_GET_MANY"}, false}};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(listed); i++) {
		uint64_t owner = add_peer((uint8_t)(i + 1), true);
		struct fake_link *l = route_up(owner, listed[i].names, 2);
		struct fake_ask *a = ask(owner);

		if (listed[i].asked) {
			struct request r = need_request(l, "_rvd_get_many");
			static struct rv_peer_many got;
			uint32_t room;

			assert_int_equal(r.kind, RV_CALL_UNARY);
			assert_int_equal(rv_many_request_decode((const uint8_t *)r.body, r.body_len,
								&got, &room),
					 0);
			assert_int_equal(room, sizeof(landing));
			assert_int_equal(got.each, 100);
			assert_int_equal(got.nr, 2);
			assert_true(got.one[0].local == 64 && got.one[1].local == 128);
			respond_text(l, &r.id, 1, "rendezvous owner busy");
			assert_int_equal(call_outcome(a).rc, -EREMOTEIO);
		} else {
			assert_true(fake_link_quiet(l));
			assert_int_equal(call_outcome(a).rc, -ENOTSUP);
		}
	}
}

static void payloads_land_in_their_place_or_are_put_there(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = route_up(owner, ours, RV_ARRAY_NR(ours));
	uint8_t body[ANSWER_LEN], head[128];

	(void)state;
	answer_body(body, 8);
	for (unsigned placed = 0; placed < 2; placed++) {
		struct fake_ask *a = ask(owner);
		struct request r = need_request(l, "_rvd_get_many");
		size_t n = answer_head(head, sizeof(head), &r.id, placed ? "0" : NULL);

		memset(landing, 0x5a, sizeof(landing));
		if (placed) {
			assert_ptr_equal(
				fake_link_begin(l, RV_FRAME_RESPONSE, head, n, sizeof(body)),
				landing);
			fake_link_arrive(l, body, sizeof(body));
			fake_link_end(l);
		} else {
			fake_link_frame(l, RV_FRAME_RESPONSE, head, n, body, sizeof(body));
		}
		assert_int_equal(call_outcome(a).rc, 0);
		assert_int_equal(many.one[0].rc, 0);
		assert_int_equal(many.one[1].rc, -EAGAIN);
		assert_memory_equal(landing + many.one[0].off, "payload!", many.one[0].len);
		assert_int_equal(landing[sizeof(body)], 0x5a);
	}
	assert_true(fake_link_quiet(l));
}

static void what_is_said_of_bytes_that_are_not_there_is_not_believed(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = route_up(owner, ours, RV_ARRAY_NR(ours));
	uint8_t body[ANSWER_LEN], head[128];
	static uint8_t longer[sizeof(landing) + 1];

	(void)state;
	answer_body(body, 9);
	for (unsigned i = 0; i < 2; i++) {
		struct fake_ask *a = ask(owner);
		struct request r = need_request(l, "_rvd_get_many");
		size_t n = answer_head(head, sizeof(head), &r.id, "0");

		if (i)
			fake_link_frame(l, RV_FRAME_RESPONSE, head, n, longer, sizeof(longer));
		else
			fake_link_frame(l, RV_FRAME_RESPONSE, head, n, body, sizeof(body));
		assert_int_equal(call_outcome(a).rc, -EPROTO);
	}
}

static void a_lost_connection_ends_it_and_leaves_no_lease_to_end(void **state)
{
	uint64_t owner = add_peer(1, true);
	struct fake_link *l = route_up(owner, ours, RV_ARRAY_NR(ours));
	struct fake_ask *a = ask(owner);
	struct request r = need_request(l, "_rvd_get_many");
	uint8_t head[128];
	size_t n = answer_head(head, sizeof(head), &r.id, "0");

	(void)state;
	assert_non_null(fake_link_begin(l, RV_FRAME_RESPONSE, head, n, ANSWER_LEN));
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(call_outcome(a).rc, -ECONNRESET);
}

/* The owner. */

static struct fake_link *in;

static int setup_in(void **state)
{
	setup_many(state);
	in = fake_link_accept(&carrier);
	return 0;
}

static void request_many_on(struct fake_link *l, const uint64_t *slot, unsigned nr, uint32_t room)
{
	static uint16_t next;
	struct rv_peer_many rq = {.nr = nr, .each = 1000};
	uint8_t head[256], body[256];
	struct rv_writer wr = rv_writer(body, sizeof(body));
	size_t n = request_header(head, sizeof(head), CONSUMER, ++next, RV_CALL_UNARY,
				  "_rvd_get_many");

	for (unsigned i = 0; i < nr; i++)
		rq.one[i].local = slot[i];
	rv_many_request_encode(&wr, &rq, room);
	assert_false(wr.bad);
	fake_link_frame(l, RV_FRAME_MESSAGE, head, n, body, wr.len);
	fake_engine_run(&w);
}

static void request_many(const uint64_t *slot, unsigned nr, uint32_t room)
{
	request_many_on(in, slot, nr, room);
}

static struct fake_sent *take_answer_of(struct fake_link *l, bool *error)
{
	struct fake_sent *s = fake_link_take(l);
	struct rv_response_header h;
	uint64_t lease = 1;

	assert_int_equal(s->type, RV_FRAME_RESPONSE);
	assert_int_equal(rv_response_header_decode(s->header, s->header_len, &h), 0);
	*error = h.outcome != 0;
	if (!*error) {
		assert_true(rv_headers_find_u64(h.headers, h.headers_len, "_rvd_lease", &lease));
		assert_true(lease == 0);
	}
	return s;
}

/* It has left, and the engines have their holds back. */
static void answer_leaves(struct fake_sent *s)
{
	fake_sent_free(s);
	fake_engine_run(&w);
}

static struct fake_sent *take_answer(bool *error)
{
	return take_answer_of(in, error);
}

static void a_request_is_answered_with_what_there_is(void **state)
{
	uint64_t slot[] = {fake_stage(&w, 100, 7, true, 1000), 64 * 999,
			   fake_stage(&w, 0, 0, false, 1000), fake_stage(&w, 33, 8, true, 1000)};
	uint64_t before = rv_messenger_bytes_out(mess);
	struct rv_peer_many said = {.nr = 4, .each = 1000};
	const uint8_t *bytes;
	struct fake_sent *s;
	bool error;

	(void)state;
	request_many(slot, 4, 4096);
	s = take_answer(&error);
	assert_false(error);
	assert_int_equal(rv_many_answer_decode(s->payload, s->payload_len, &said), 0);
	assert_int_equal(said.one[0].rc, 0);
	assert_int_equal(said.one[0].len, 100);
	/* What is said takes 96 bytes; between the payloads there is nothing. */
	assert_int_equal(said.one[0].off, 128);
	assert_int_equal(said.one[3].off, 256);
	assert_int_equal(s->payload_len, 256 + 33);
	bytes = s->payload;
	for (unsigned i = 96; i < 256 + 33; i++)
		assert_int_equal(bytes[i], i < 128 ? 0 : i < 228 ? 7 : i < 256 ? 0 : 8);
	assert_int_equal(said.one[1].rc, -EAGAIN);
	assert_int_equal(said.one[2].rc, 0);
	assert_int_equal(rv_messenger_pending(mess), 1);
	assert_int_equal(fake_slot(&w, slot[0])->locks, 0);
	answer_leaves(s);
	assert_int_equal(rv_messenger_pending(mess), 0);
	assert_int_equal(rv_messenger_bytes_out(mess) - before, 133);
}

/* The slot ends while nobody reads the answer: its bytes stay as they are until they were sent, or the connection ends. */
static void what_is_being_sent_outlives_its_slot(void **state)
{
	bool error;

	(void)state;
	for (unsigned closes = 0; closes < 2; closes++) {
		uint64_t slot = fake_stage(&w, 100, 7, true, 1000), next;
		struct fake_sent *s;

		request_many(&slot, 1, 4096);
		fake_drop_slot(&w, slot);
		next = fake_stage(&w, 100, 9, true, 1000); /* would have its place */
		if (closes) {
			fake_link_closed(in, -ECONNRESET);
			s = take_answer(&error);
		} else {
			s = take_answer(&error);
		}
		assert_false(error);
		assert_int_equal(s->payload_len, 64 + 100);
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(((const uint8_t *)s->payload)[64 + i], 7);
		answer_leaves(s);
		fake_drop_slot(&w, next);
		assert_int_equal(rv_counter_get(&w.engine.pool.used_bytes), 0);
		assert_int_equal(rv_messenger_pending(mess), 0);
	}
}

/* Four by one connection, sixteen by all, that nobody reads; one more is told to come again, until one of them is gone. */
static void so_many_answers_are_under_way_and_no_more(void **state)
{
	uint64_t slot = fake_stage(&w, 100, 7, true, 1000);
	struct fake_sent *s[5][5];
	struct fake_link *l[5];
	bool error;

	(void)state;
	for (unsigned k = 0; k < 5; k++) {
		l[k] = fake_link_accept(&carrier);
		for (unsigned i = 0; i < 5; i++) {
			request_many_on(l[k], &slot, 1, 4096);
			s[k][i] = take_answer_of(l[k], &error);
			assert_int_equal(error, i == 4 || k == 4);
		}
	}
	assert_int_equal(rv_messenger_pending(mess), 16);
	fake_sent_free(s[0][0]); /* the engine has its hold still: that is not its peer's matter */
	request_many_on(l[0], &slot, 1, 4096);
	s[0][0] = take_answer_of(l[0], &error);
	assert_false(error);
	for (unsigned k = 1; k < 3; k++) {
		request_many_on(l[k], &slot, 1, 4096);
		answer_leaves(take_answer_of(l[k], &error));
		assert_true(error);
	}
	for (unsigned i = 0; i < 25; i++)
		answer_leaves(s[i / 5][i % 5]);
	assert_int_equal(rv_messenger_pending(mess), 0);
}

static void a_request_without_room_for_what_is_to_be_said_is_refused(void **state)
{
	uint64_t slot = fake_stage(&w, 100, 7, true, 1000);
	bool error;

	(void)state;
	request_many(&slot, 1, 23);
	answer_leaves(take_answer(&error));
	assert_true(error);
	request_many(&slot, 1, 24);
	answer_leaves(take_answer(&error));
	assert_false(error);
	assert_int_equal(rv_messenger_pending(mess), 0);
}

#define TEST(f)    cmocka_unit_test_setup_teardown(f, setup_many, finish)
#define TEST_IN(f) cmocka_unit_test_setup_teardown(f, setup_in, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(only_who_lists_it_is_asked),
		TEST(payloads_land_in_their_place_or_are_put_there),
		TEST(what_is_said_of_bytes_that_are_not_there_is_not_believed),
		TEST(a_lost_connection_ends_it_and_leaves_no_lease_to_end),
		TEST_IN(a_request_is_answered_with_what_there_is),
		TEST_IN(what_is_being_sent_outlives_its_slot),
		TEST_IN(so_many_answers_are_under_way_and_no_more),
		TEST_IN(a_request_without_room_for_what_is_to_be_said_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
