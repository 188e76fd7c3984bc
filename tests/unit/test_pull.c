/* A chunked transfer on the consumer's side. */
#include "tests/unit/messenger_fixture.h"

#include "dataplane/engine/chunk_plan.h"

#define CHUNK    1000u /* so a window is four */
#define IDLE_NS  RV_SEC(2)
#define TRANSFER 9001u

static uint8_t source[64 * CHUNK];
static uint8_t landing[64 * CHUNK];

static struct fake_ask *pull(uint64_t worker, uint64_t len)
{
	struct rv_peer_call pc = {
		.op = RV_PEER_PULL,
		.handle = {worker, 64},
		.deadline_ns = RV_NEVER,
		.idle_ns = IDLE_NS,
		.transfer_id = TRANSFER,
		.total_len = len,
		.chunk_size = CHUNK,
		.chunk_count = (uint32_t)rv_chunk_count(len, CHUNK),
		.dst = landing,
		.rc = 1,
	};
	struct fake_ask *a;

	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)(i * 31 + i / 256 + 1);
	memset(landing, 0, sizeof(landing));
	a = fake_call_start(&w, rv_messenger_calls(mess), &pc);
	fake_engine_run(&w);
	return a;
}

static struct rv_body_pull body_of(const struct request *r)
{
	struct rv_body_pull b;
	const char *why;

	assert_string_equal(r->name, "_rv_pull");
	assert_int_equal(r->kind, RV_CALL_UNARY);
	assert_int_equal(rv_body_pull_decode(r->body, r->body_len, &b, &why), 0);
	assert_int_equal(b.transfer_id, TRANSFER);
	return b;
}

/* Requests sent and not yet answered. */
static struct request asked[64];
static unsigned asked_nr;

static void collect(struct fake_link *l)
{
	fake_engine_run(&w);
	while (!fake_link_quiet(l)) {
		assert_true(asked_nr < RV_ARRAY_NR(asked));
		asked[asked_nr++] = take_request(l);
	}
}

static struct request forget(unsigned i)
{
	struct request r = asked[i];

	memmove(&asked[i], &asked[i + 1], (--asked_nr - i) * sizeof(asked[0]));
	return r;
}

static void answer_chunk(struct fake_link *l, unsigned i, uint64_t total_len)
{
	struct request r = forget(i);
	uint64_t index = body_of(&r).chunk_index;

	respond(l, &r.id, 0, source + index * CHUNK, rv_chunk_len(index, total_len, CHUNK));
}

static int start(void **state)
{
	asked_nr = 0;
	return setup(state);
}

static struct rv_peer_call finished(struct fake_ask *a)
{
	return call_outcome(a);
}

static void chunks_are_asked_for_a_window_at_a_time_and_in_order(void **state)
{
	uint64_t len = 10 * CHUNK + 1, owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *l = greet();
	struct rv_peer_call pc;

	(void)state;
	for (unsigned done = 0; done < 11; done++) {
		collect(l);
		assert_int_equal(asked_nr, rv_min_u64(4, 11 - done));
		assert_int_equal(body_of(&asked[0]).chunk_index, done);
		assert_int_equal(body_of(&asked[asked_nr - 1]).chunk_index, done + asked_nr - 1);
		assert_false(a->back);
		answer_chunk(l, 0, len);
	}
	pc = finished(a);
	assert_int_equal(pc.rc, 0);
	assert_memory_equal(landing, source, len);
	assert_int_equal(landing[len], 0);
	assert_int_equal(pc.replied_ns, fake_now_ns);
}

static void answers_may_come_in_any_order(void **state)
{
	uint64_t len = 20 * CHUNK - 7, owner = add_peer(1, false), rng = 7;
	struct fake_ask *a = pull(owner, len);
	struct fake_link *l = greet();

	(void)state;
	for (unsigned done = 0; done < 20; done++) {
		collect(l);
		rng = rng * 6364136223846793005u + 1442695040888963407u;
		answer_chunk(l, (unsigned)(rng >> 33) % asked_nr, len);
	}
	assert_int_equal(finished(a).rc, 0);
	assert_memory_equal(landing, source, len);
}

static void an_answer_may_come_as_an_ack_or_on_another_connection(void **state)
{
	uint64_t len = 2 * CHUNK, owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *l = greet(), *theirs = fake_link_accept(&carrier);
	struct rv_ack_header h = {0};
	uint8_t head[RV_ACK_HEADER_LEN];
	struct rv_writer wr = rv_writer(head, sizeof(head));
	struct request r;

	(void)state;
	collect(l);
	answer_chunk(theirs, 0, len); /* as stock owners do */
	r = forget(0);
	h.id = r.id;
	rv_ack_header_encode(&wr, &h);
	fake_link_frame(l, RV_FRAME_ACK, head, wr.len, source + CHUNK, CHUNK);
	assert_int_equal(finished(a).rc, 0);
	assert_memory_equal(landing, source, len);
}

static void a_chunk_lands_in_its_place_without_a_copy(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 2 * CHUNK);
	struct fake_link *l = greet();
	struct rv_response_header h = {0};
	uint8_t head[RV_RESPONSE_HEADER_MIN];
	struct rv_writer wr = rv_writer(head, sizeof(head));

	(void)state;
	collect(l);
	h.id = asked[1].id;
	rv_response_header_encode(&wr, &h);
	assert_ptr_equal(fake_link_begin(l, RV_FRAME_RESPONSE, head, wr.len, CHUNK),
			 landing + CHUNK);
	fake_link_arrive(l, source + CHUNK, CHUNK);
	fake_link_end(l);
	assert_int_equal(asked_nr, 2);
	forget(1);
	answer_chunk(l, 0, 2 * CHUNK);
	assert_int_equal(finished(a).rc, 0);
	assert_memory_equal(landing, source, 2 * CHUNK);
}

static const struct {
	unsigned index;
	size_t len;
} wrong[] = {{0, CHUNK - 1}, {0, CHUNK + 1}, {0, 0}, {2, 500}, {2, 498}};

static void a_chunk_of_another_length_is_a_protocol_error(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(wrong); i++) {
		uint64_t owner;
		struct fake_ask *a;
		struct fake_link *l;
		struct request r;
		struct rv_peer_call pc;

		start(NULL);
		owner = add_peer(1, false);
		a = pull(owner, 2 * CHUNK + 499);
		l = greet();
		collect(l);
		r = forget(wrong[i].index);
		respond(l, &r.id, 0, source, wrong[i].len);
		pc = finished(a);
		assert_int_equal(pc.rc, -EPROTO);
		assert_non_null(strstr(pc.text, "another length"));
		for (size_t b = 0; b < sizeof(landing); b++)
			assert_int_equal(landing[b], 0);
		if (i + 1 < RV_ARRAY_NR(wrong))
			finish(NULL);
	}
}

static void an_error_in_the_middle_ends_it_with_the_owners_words(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct fake_link *l = greet();
	struct rv_peer_call pc;
	struct request late;

	(void)state;
	collect(l);
	answer_chunk(l, 0, 10 * CHUNK);
	collect(l);
	respond_text(l, &asked[1].id, 1, "chunk not found: transfer_id=9001, chunk_index=2");
	pc = finished(a);
	assert_int_equal(pc.rc, -EREMOTEIO);
	assert_string_equal(pc.text, "owner: chunk not found: transfer_id=9001, chunk_index=2");
	assert_true(fake_link_quiet(l)); /* nothing more is asked for */
	late = asked[0];
	respond(l, &late.id, 0, source, CHUNK); /* finds no call */
	assert_int_equal(landing[CHUNK], 0);
}

static void a_connection_that_breaks_ends_it(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct fake_link *l = greet();

	(void)state;
	collect(l);
	answer_chunk(l, 2, 10 * CHUNK);
	fake_link_closed(l, -ECONNRESET);
	assert_int_equal(finished(a).rc, -ECONNRESET);
}

static void an_owner_that_cannot_be_reached_ends_it(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct rv_peer_call pc;

	(void)state;
	fake_link_connected(fake_carrier_link(&carrier, 0), -ECONNREFUSED);
	pc = finished(a);
	assert_int_equal(pc.rc, -EHOSTUNREACH);
	assert_non_null(strstr(pc.text, "connection refused"));
}

static void an_owner_that_falls_silent_is_given_up_after_the_idle_time(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct fake_link *l = greet();
	struct rv_peer_call pc;

	(void)state;
	collect(l);
	answer_chunk(l, 0, 10 * CHUNK);
	fake_engine_advance(&w, IDLE_NS - RV_MS(1));
	assert_false(a->back);
	fake_engine_advance(&w, RV_MS(1));
	pc = finished(a);
	assert_int_equal(pc.rc, -ETIMEDOUT);
	assert_true(pc.text[0]);
}

/* One chunk comes every 1.5 s: slow, but never silent for two. */
static void an_owner_that_is_slow_but_not_silent_is_waited_for(void **state)
{
	uint64_t len = 8 * CHUNK, owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *l = greet();

	(void)state;
	for (unsigned done = 0; done < 8 && !a->back; done++) {
		fake_engine_advance(&w, RV_MS(1500));
		collect(l);
		if (!a->back)
			answer_chunk(l, 0, len);
	}
	assert_int_equal(finished(a).rc, 0);
}

/* Cancelling. */

static void cancel(struct fake_ask *a)
{
	struct rv_peer_calls *pc = rv_messenger_calls(mess);

	assert_int_equal(pc->ops->cancel(pc, w.port, a->cell), 0);
	fake_engine_run(&w);
}

static void a_cancelled_pull_comes_back_and_says_how_far_it_was(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct fake_link *l = greet();
	struct rv_peer_call pc;

	(void)state;
	collect(l);
	answer_chunk(l, 0, 10 * CHUNK);
	cancel(a);
	pc = finished(a);
	assert_int_equal(pc.rc, -ETIMEDOUT);
	assert_non_null(strstr(pc.text, "1 of 10"));
}

static void a_cancel_that_comes_too_late_is_harmless(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, CHUNK);
	struct fake_link *l = greet();

	(void)state;
	collect(l);
	answer_chunk(l, 0, CHUNK);
	assert_true(a->back);
	cancel(a);
	assert_int_equal(finished(a).rc, 0);
}

static void a_pull_still_being_dialed_can_be_cancelled(void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct fake_link *l;

	(void)state;
	cancel(a);
	assert_int_equal(finished(a).rc, -ETIMEDOUT);
	l = greet();
	assert_true(fake_link_quiet(l));
}

/* A payload is half there. Whatever ends the pull, nothing is written once its cell is back. */

static void arrive_half(struct fake_link *l, unsigned i)
{
	struct rv_response_header h = {.id = asked[i].id};
	uint8_t head[RV_RESPONSE_HEADER_MIN];
	struct rv_writer wr = rv_writer(head, sizeof(head));

	rv_response_header_encode(&wr, &h);
	assert_ptr_equal(fake_link_begin(l, RV_FRAME_RESPONSE, head, wr.len, CHUNK),
			 landing + i * CHUNK);
	fake_link_arrive(l, source + i * CHUNK, CHUNK / 2);
}

static void end_by_cancel(struct fake_ask *a, struct fake_link *l)
{
	(void)l;
	cancel(a);
}

static void end_by_silence(struct fake_ask *a, struct fake_link *l)
{
	(void)a;
	(void)l;
	fake_engine_advance(&w, IDLE_NS);
}

static void end_by_error(struct fake_ask *a, struct fake_link *l)
{
	struct fake_link *theirs = fake_link_accept(&carrier);

	(void)a;
	(void)l;
	respond_text(theirs, &asked[0].id, 1, "no");
}

static const struct {
	void (*end)(struct fake_ask *a, struct fake_link *l);
	bool pends;
	int rc;
} ends[] = {
	{end_by_cancel, false, -ETIMEDOUT},  {end_by_cancel, true, -ETIMEDOUT},
	{end_by_silence, false, -ETIMEDOUT}, {end_by_silence, true, -ETIMEDOUT},
	{end_by_error, false, -EREMOTEIO},   {end_by_error, true, -EREMOTEIO},
};

static void nothing_is_written_after_the_cell_came_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(ends); i++) {
		uint64_t owner;
		struct fake_ask *a;
		struct fake_link *l;
		struct rv_peer_call pc;

		start(NULL);
		owner = add_peer(1, false);
		carrier.displace_pends = ends[i].pends;
		a = pull(owner, 10 * CHUNK);
		l = greet();
		collect(l);
		arrive_half(l, 1);
		ends[i].end(a, l);
		if (ends[i].pends) {
			assert_false(a->back); /* the kernel may still write */
			fake_link_arrive(l, source, 100);
			fake_link_displaced(l);
			fake_engine_run(&w);
		}
		pc = finished(a);
		assert_int_equal(pc.rc, ends[i].rc);
		memset(landing, 0, sizeof(landing));
		fake_link_arrive(l, source, l->payload_len - l->got);
		fake_link_end(l);
		for (size_t b = 0; b < sizeof(landing); b++)
			assert_int_equal(landing[b], 0);
		carrier.displace_pends = false;
		if (i + 1 < RV_ARRAY_NR(ends))
			finish(NULL);
	}
}

static void a_connection_that_breaks_in_mid_payload_ends_it(void **state)
{
	for (int pends = 0; pends < 2; pends++) {
		uint64_t owner;
		struct fake_ask *a;
		struct fake_link *l;

		(void)state;
		start(NULL);
		owner = add_peer(1, false);
		carrier.displace_pends = pends;
		a = pull(owner, 10 * CHUNK);
		l = greet();
		collect(l);
		arrive_half(l, 1);
		if (pends)
			cancel(a);
		fake_link_closed(l, -ECONNRESET);
		assert_int_equal(finished(a).rc, pends ? -ETIMEDOUT : -ECONNRESET);
		if (!pends)
			finish(NULL);
	}
}

static void a_payload_arriving_on_another_connection_is_given_up_when_the_requests_breaks(
	void **state)
{
	uint64_t owner = add_peer(1, false);
	struct fake_ask *a = pull(owner, 10 * CHUNK);
	struct fake_link *l = greet(), *theirs = fake_link_accept(&carrier);

	(void)state;
	collect(l);
	carrier.displace_pends = true;
	arrive_half(theirs, 0);
	fake_link_closed(l, -ECONNRESET);
	fake_engine_run(&w);
	assert_false(a->back);
	fake_link_displaced(theirs);
	assert_int_equal(finished(a).rc, -ECONNRESET);
	carrier.displace_pends = false;
}

/* Two connections to our own nodes. */

static void our_own_nodes_have_a_second_connection_for_chunks(void **state)
{
	uint64_t len = 3 * CHUNK, owner = add_peer(1, true);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *control = greet(), *bulk;

	(void)state;
	fake_engine_run(&w);
	assert_int_equal(carrier.dials, 2);
	bulk = fake_carrier_link(&carrier, 1);
	assert_true(fake_link_quiet(control));
	fake_link_connected(bulk, 0);
	collect(bulk); /* no `_hello` on this one */
	assert_int_equal(asked_nr, 3);
	for (unsigned i = 0; i < 3; i++)
		answer_chunk(bulk, 0, len);
	assert_int_equal(finished(a).rc, 0);
	assert_memory_equal(landing, source, len);
	assert_true(fake_link_quiet(control));

	a = pull(owner, len);
	collect(bulk);
	assert_int_equal(asked_nr, 3);
	assert_int_equal(carrier.dials, 2);
	for (unsigned i = 0; i < 3; i++)
		answer_chunk(bulk, 0, len);
	assert_int_equal(finished(a).rc, 0);
}

static void a_second_connection_that_is_refused_does_not_hold_the_pull_up(void **state)
{
	uint64_t len = 3 * CHUNK, owner = add_peer(1, true);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *control = greet();

	(void)state;
	fake_engine_run(&w);
	fake_link_connected(fake_carrier_link(&carrier, 1), -ECONNREFUSED);
	fake_engine_advance(&w, RV_MS(100));
	if (!a->back && fake_link_quiet(control) && carrier.dials == 2) {
		fake_engine_advance(&w, IDLE_NS);
		finished(a);
		fail_msg("the pull waits for a connection that nobody makes");
	}
	if (!a->back) {
		collect(control);
		while (asked_nr)
			answer_chunk(control, 0, len);
	}
	(void)finished(a);
}

/* So does an owner at its limit of connections. */
static void a_second_connection_that_is_closed_at_once_leaves_the_chunks_to_the_first(void **state)
{
	uint64_t len = 3 * CHUNK, owner = add_peer(1, true);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *control = greet(), *bulk;

	(void)state;
	for (unsigned round = 0; round < 2; round++) {
		fake_engine_run(&w);
		assert_int_equal(carrier.dials, 2); /* it is not tried again */
		bulk = fake_carrier_link(&carrier, 1);
		if (!round) {
			fake_link_connected(bulk, 0);
			collect(bulk);
			assert_int_equal(asked_nr, 3);
			fake_link_closed(bulk, -ECONNRESET);
			asked_nr = 0;
		}
		collect(control);
		assert_int_equal(asked_nr, 3);
		while (asked_nr)
			answer_chunk(control, 0, len);
		assert_int_equal(finished(a).rc, 0);
		assert_memory_equal(landing, source, len);
		if (!round)
			a = pull(owner, len);
	}
}

static void a_second_connection_that_breaks_is_made_again(void **state)
{
	uint64_t len = 3 * CHUNK, owner = add_peer(1, true);
	struct fake_ask *a = pull(owner, len);
	struct fake_link *bulk;

	(void)state;
	greet();
	fake_engine_run(&w);
	bulk = fake_carrier_link(&carrier, 1);
	fake_link_connected(bulk, 0);
	collect(bulk);
	answer_chunk(bulk, 0, len);
	fake_link_closed(bulk, -ECONNRESET);
	assert_int_equal(finished(a).rc, -ECONNRESET);
	asked_nr = 0;
	a = pull(owner, len);
	assert_int_equal(carrier.dials, 3);
	bulk = fake_carrier_link(&carrier, 2);
	fake_link_connected(bulk, 0);
	collect(bulk);
	while (asked_nr)
		answer_chunk(bulk, 0, len);
	assert_int_equal(finished(a).rc, 0);
}

static void where_no_second_connection_can_be_dialed_the_first_serves(void **state)
{
	uint64_t len = 3 * CHUNK, owner = add_peer(1, true);
	struct fake_ask *a;
	struct fake_link *control;

	(void)state;
	a = call_peer(RV_PEER_METADATA, owner);
	control = greet();
	need_request(control, "_rv_metadata");
	carrier.no_dial = true;
	{
		struct fake_ask *p = pull(owner, len);

		collect(control);
		while (asked_nr)
			answer_chunk(control, 0, len);
		assert_int_equal(finished(p).rc, 0);
	}
	carrier.no_dial = false;
	fake_link_closed(control, -ECONNRESET);
	finished(a);
}

#define PULL(t) cmocka_unit_test_setup_teardown(t, start, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PULL(chunks_are_asked_for_a_window_at_a_time_and_in_order),
		PULL(answers_may_come_in_any_order),
		PULL(an_answer_may_come_as_an_ack_or_on_another_connection),
		PULL(a_chunk_lands_in_its_place_without_a_copy),
		cmocka_unit_test_teardown(a_chunk_of_another_length_is_a_protocol_error, finish),
		PULL(an_error_in_the_middle_ends_it_with_the_owners_words),
		PULL(a_connection_that_breaks_ends_it),
		PULL(an_owner_that_cannot_be_reached_ends_it),
		PULL(an_owner_that_falls_silent_is_given_up_after_the_idle_time),
		PULL(an_owner_that_is_slow_but_not_silent_is_waited_for),
		PULL(a_cancelled_pull_comes_back_and_says_how_far_it_was),
		PULL(a_cancel_that_comes_too_late_is_harmless),
		PULL(a_pull_still_being_dialed_can_be_cancelled),
		cmocka_unit_test_teardown(nothing_is_written_after_the_cell_came_back, finish),
		cmocka_unit_test_teardown(a_connection_that_breaks_in_mid_payload_ends_it, finish),
		PULL(a_payload_arriving_on_another_connection_is_given_up_when_the_requests_breaks),
		PULL(our_own_nodes_have_a_second_connection_for_chunks),
		PULL(a_second_connection_that_is_refused_does_not_hold_the_pull_up),
		PULL(a_second_connection_that_is_closed_at_once_leaves_the_chunks_to_the_first),
		PULL(a_second_connection_that_breaks_is_made_again),
		PULL(where_no_second_connection_can_be_dialed_the_first_serves),
	};

	return cmocka_run_group_tests_name("pull", tests, NULL, NULL);
}
