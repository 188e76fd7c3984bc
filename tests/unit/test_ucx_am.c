/*
 * Frames between two nodes, and what a stock node would see of them: looked at with UCX itself.
 */
#include "tests/unit/ucx_am_fixture.h"

/* A stock node's eyes: UCX's own callback and send on `b`. */

static struct {
	unsigned nr;
	size_t header_len;
	uint8_t header[64];
	bool reply;
} eye;

static ucs_status_t on_raw(void *arg, const void *header, size_t header_len, void *data, size_t len,
			   const ucp_am_recv_param_t *param)
{
	(void)arg, (void)data, (void)len;
	eye.nr++;
	eye.header_len = header_len;
	eye.reply = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
	memcpy(eye.header, header, rv_min_u64(header_len, sizeof(eye.header)));
	return UCS_OK;
}

static void watch(const struct node *n, unsigned type)
{
	const ucp_am_handler_param_t param = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
			      UCP_AM_HANDLER_PARAM_FIELD_CB,
		.id = RV_AM_ID_BASE + type,
		.flags = UCP_AM_FLAG_WHOLE_MSG,
		.cb = on_raw,
	};

	memset(&eye, 0, sizeof(eye));
	assert_int_equal(ucp_worker_set_am_recv_handler(worker_of(n)->ucp, &param), UCS_OK);
}

/* Send as another node would; @return what it ended with. */
static ucs_status_t raw_send(const struct node *from, const struct node *to, unsigned type,
			     const void *header, size_t header_len, size_t len, uint32_t flags)
{
	const struct rv_ucx_peer *p = rv_map64_get(&worker_of(from)->peers, to->worker);
	const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = flags};
	uint8_t *payload = bytes(len, 1);
	ucs_status_ptr_t request = ucp_am_send_nbx(p->ep->ucp, RV_AM_ID_BASE + type, header,
						   header_len, payload, len, &param);
	ucs_status_t status = UCS_PTR_STATUS(request);

	if (UCS_PTR_IS_PTR(request)) {
		STEP_UNTIL(ucp_request_check_status(request) != UCS_INPROGRESS);
		status = ucp_request_check_status(request);
		ucp_request_free(request);
	}
	free(payload);
	return status;
}

/* A header with @from's tag, where this version has one. */
static size_t tagged(const struct node *from, uint8_t *out, const void *header, size_t len)
{
	struct rv_writer w = rv_writer(out, 64);

	if (version >= 2)
		rv_put_le(&w, from->incarnation, 8);
	rv_put_bytes(&w, header, len);
	return w.len;
}

#define EAGER_REPLY (UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY)

static void every_type_arrives_as_it_was_sent(void **state)
{
	static const size_t sizes[] = {0, 1, 8000, 65536, EAGER - 100};
	struct rv_link *l = reach(&a, &b);
	unsigned at = 0;

	(void)state;
	for (unsigned type = 0; type <= 4; type++) {
		for (unsigned i = 0; i < RV_ARRAY_NR(sizes); i++)
			put(l, type, 19, sizes[i]);
	}
	put(l, 0, 4000, 10);
	for (unsigned type = 0; type <= 4; type++) {
		for (unsigned i = 0; i < RV_ARRAY_NR(sizes); i++)
			expect(&b, at++, type, 19, sizes[i]);
	}
	expect(&b, at, 0, 4000, 10);
	STEP_UNTIL(l->ops->queued(l) == 0);
	l = reach(&b, &a);
	put(l, 1, 19, 5);
	expect(&a, 0, 1, 19, 5);
}

static void the_tag_goes_before_every_header_and_only_messages_ask_for_a_reply(void **state)
{
	struct rv_link *l = reach(&a, &b);

	(void)state;
	for (unsigned type = 0; type <= 4; type++) {
		uint8_t want[64], header[19] = "a header of 19 byte";
		size_t len = tagged(&a, want, header, sizeof(header));

		watch(&b, type);
		assert_int_equal(l->ops->send(l, type, header, sizeof(header), "x", 1, NULL, NULL),
				 0);
		STEP_UNTIL(eye.nr == 1);
		assert_int_equal(eye.header_len, len);
		assert_memory_equal(eye.header, want, len);
		assert_int_equal(eye.reply, type == 0);
	}
}

static void a_ping_is_answered_with_its_token(void **state)
{
	uint8_t ping[64], want[64];
	size_t len = tagged(&b, ping, "\1\2\3\4\5\6\7\10", 8);

	(void)state;
	reach(&b, &a);
	watch(&b, 6);
	assert_int_equal(raw_send(&b, &a, 5, ping, len, 0, EAGER_REPLY), UCS_OK);
	STEP_UNTIL(eye.nr == 1);
	assert_int_equal(eye.header_len, tagged(&a, want, "\1\2\3\4\5\6\7\10", 8));
	assert_memory_equal(eye.header, want, eye.header_len);
	assert_false(eye.reply);
	/* Too short, or no way back: nothing. */
	assert_int_equal(raw_send(&b, &a, 5, ping, len - 1, 0, EAGER_REPLY), UCS_OK);
	assert_int_equal(raw_send(&b, &a, 5, ping, len, 0, UCP_AM_SEND_FLAG_EAGER), UCS_OK);
	step_a_while();
	assert_int_equal(eye.nr, 1);
	assert_int_equal(a.seen_nr, 0);
}

static void a_message_that_is_refused_is_echoed_and_everything_else_arrives(void **state)
{
	struct rv_link *l = reach(&b, &a);
	uint8_t want[64], header[30];

	(void)state;
	memset(header, 'h', sizeof(header));
	a.refuses = true;
	watch(&b, 4);
	assert_int_equal(l->ops->send(l, 0, header, sizeof(header), "payload", 7, NULL, NULL), 0);
	STEP_UNTIL(eye.nr == 1);
	assert_int_equal(eye.header_len, tagged(&a, want, header, sizeof(header)));
	assert_memory_equal(eye.header, want, eye.header_len);
	assert_int_equal(a.seen_nr, 0);
	put(l, 1, 19, 3);
	expect(&a, 0, 1, 19, 3);
}

static void a_message_in_rendezvous_mode_is_refused_and_the_endpoint_lives(void **state)
{
	struct rv_link *l = reach(&b, &a);
	uint8_t header[64];
	size_t len = tagged(&b, header, "header", 6);

	(void)state;
	assert_int_equal(raw_send(&b, &a, 0, header, len, 500000, UCP_AM_SEND_FLAG_RNDV),
			 UCS_ERR_UNSUPPORTED);
	assert_int_equal(a.seen_nr, 0);
	put(l, 0, 19, 3);
	expect(&a, 0, 0, 19, 3);
	assert_int_equal(b.closed, 0);
}

static void a_header_without_room_for_the_tag_is_dropped_and_counted(void **state)
{
	(void)state;
	reach(&b, &a);
	assert_int_equal(raw_send(&b, &a, 0, "1234567", 7, 3, EAGER_REPLY), UCS_OK);
	if (version >= 2) {
		STEP_UNTIL(rv_ucx_am_dropped(a.am) == 1);
		assert_int_equal(a.seen_nr, 0);
	} else {
		STEP_UNTIL(a.seen_nr == 1);
		assert_int_equal(rv_ucx_am_dropped(a.am), 0);
	}
}

static void a_frame_over_either_sides_limit_is_not_taken(void **state)
{
	uint8_t *p = bytes(EAGER, 1), header[19] = {0};
	size_t header_max = a.am->header_max - (version >= 2 ? 8 : 0);
	struct rv_link *l;

	(void)state;
	introduce_as(&a, &b, b.incarnation);
	l = reach_with(&a, &b, 5000); /* the peer's is the smaller */
	assert_int_equal(l->ops->send(l, 1, header, 19, p, 4981, NULL, NULL), 0);
	assert_int_equal(l->ops->send(l, 1, header, 19, p, 4982, NULL, NULL), -EMSGSIZE);
	l->ops->close(l, 0);
	STEP_UNTIL(a.closed == 1);
	l = reach_with(&a, &b, RV_MIB(16)); /* ours is the smaller */
	assert_int_equal(l->ops->send(l, 1, header, 19, p, EAGER - 19, NULL, NULL), 0);
	assert_int_equal(l->ops->send(l, 1, header, 19, p, EAGER - 18, NULL, NULL), -EMSGSIZE);
	assert_int_equal(l->ops->send(l, 1, p, header_max, p, 0, NULL, NULL), 0);
	assert_int_equal(l->ops->send(l, 1, p, header_max + 1, p, 0, NULL, NULL), -EMSGSIZE);
	STEP_UNTIL(b.seen_nr == 3);
	assert_int_equal(b.seen[2].header_len, header_max);
	l->ops->close(l, 0);
	STEP_UNTIL(a.closed == 2);
	l = reach_with(&a, &b, 0); /* nothing at all */
	assert_int_equal(l->ops->send(l, 1, header, 1, NULL, 0, NULL, NULL), -EMSGSIZE);
	free(p);
}

static void on_sent(void *ctx, int rc)
{
	int *told = ctx;

	assert_int_equal(*told, PENDING);
	*told = rc;
}

static void a_borrowed_payload_is_given_back_once_and_never_from_inside(void **state)
{
	struct rv_link *l = reach(&a, &b);
	uint8_t *p = bytes(EAGER - 19, 1), header[19] = {0};
	int told[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		told[i] = PENDING;
		assert_int_equal(l->ops->send(l, 1, header, 19, p, EAGER - 19, on_sent, &told[i]),
				 0);
		assert_int_equal(told[i], PENDING);
	}
	STEP_UNTIL(told[3] != PENDING && b.seen_nr == 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(told[i], 0);
	free(p);
}

static void a_peer_the_fabric_does_not_know_is_out_of_reach(void **state)
{
	(void)state;
	reach_with(&a, &b, 5000);
	assert_int_equal(a.connected_rc, -EHOSTUNREACH);
	STEP_UNTIL(a.closed == 1);
	assert_int_equal(a.closed_rc, -EHOSTUNREACH);
}

static void another_incarnation_ends_the_link_and_its_sends(void **state)
{
	struct rv_link *l = reach(&a, &b);
	int told = PENDING;

	(void)state;
	put(l, 0, 19, 3);
	expect(&b, 0, 0, 19, 3);
	introduce_as(&a, &b, 77);
	/* Its endpoint is gone already; the link does not know it yet. */
	assert_int_equal(l->ops->send(l, 0, "h", 1, "p", 1, on_sent, &told), 0);
	STEP_UNTIL(a.closed == 1);
	assert_int_equal(told, -ECONNRESET);
	assert_int_equal(a.closed_rc, -ECONNRESET);
	l = reach_with(&a, &b, RV_MIB(1));
	put(l, 1, 19, 4);
	expect(&b, 1, 1, 19, 4);
}

static void forgetting_a_peer_ends_its_link(void **state)
{
	reach(&a, &b);
	(void)state;
	a.f->ops->peer_down(a.f, 0, b.worker);
	STEP_UNTIL(a.closed == 1);
}

static void a_peer_that_dies_ends_the_link(void **state)
{
	struct rv_link *l = reach(&a, &b);
	const struct conf *c = *state;

	put(l, 0, 19, 3);
	expect(&b, 0, 0, 19, 3);
	stop(&b);
	STEP_UNTIL(a.closed == 1);
	start(&b, 0xbb, c->apart);
	b.incarnation++;
	l = reach(&a, &b);
	put(l, 0, 19, 3);
	expect(&b, 0, 0, 19, 3);
}

static void a_net_core_that_stands_still_makes_the_senders_wait(void **state)
{
	const struct conf *c = *state;
	struct rv_link *l = reach(&a, &b);
	const unsigned nr = 30;

	if (!c->apart)
		return; /* there it cannot */
	b.net_stands = true;
	for (unsigned i = 0; i < nr; i++)
		put(l, 1, 19, EAGER - 100);
	step_a_while();
	STEP_UNTIL(rv_am_full(b.am));
	step_a_while();
	assert_true(b.am->up_bytes < 3 * RV_AM_BACKLOG); /* one round of progress more */
	assert_true(l->ops->queued(l) > 0);
	b.net_stands = false;
	for (unsigned i = 0; i < nr; i++)
		expect(&b, i, 1, 19, EAGER - 100);
	STEP_UNTIL(l->ops->queued(l) == 0);
}

static void a_queue_that_does_not_empty_is_bounded(void **state)
{
	struct rv_link *l = reach(&a, &b);
	uint8_t *p = bytes(EAGER - 19, 1), header[19] = {0};
	unsigned taken = 0;
	int rc;

	(void)state;
	do {
		rc = l->ops->send(l, 1, header, 19, p, EAGER - 19, NULL, NULL);
		taken += rc == 0;
	} while (!rc && taken < 100);
	assert_int_equal(rc, -ENOMEM);
	assert_int_equal(taken, RV_AM_QUEUE / EAGER + 1);
	STEP_UNTIL(b.seen_nr == taken);
	STEP_UNTIL(l->ops->queued(l) == 0);
	assert_int_equal(l->ops->send(l, 1, header, 19, p, 1, NULL, NULL), 0);
	free(p);
}

static void a_stopped_carrier_is_deaf_and_reaches_nobody(void **state)
{
	struct rv_link *l = reach(&b, &a);
	struct rv_carrier *c = rv_ucx_am_carrier(a.am);

	(void)state;
	introduce_as(&a, &b, b.incarnation);
	STEP_UNTIL(rv_ucx_am_close_all(a.am) == 0);
	assert_null(c->ops->reach(c, b.worker, 0, 5000, NULL));
	put(l, 0, 19, 3);
	step_a_while();
	assert_int_equal(a.seen_nr, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EVERY(every_type_arrives_as_it_was_sent),
		EVERY(the_tag_goes_before_every_header_and_only_messages_ask_for_a_reply),
		EVERY(a_ping_is_answered_with_its_token),
		EVERY(a_message_that_is_refused_is_echoed_and_everything_else_arrives),
		BOTH(a_message_in_rendezvous_mode_is_refused_and_the_endpoint_lives),
		EVERY(a_header_without_room_for_the_tag_is_dropped_and_counted),
		EVERY(a_frame_over_either_sides_limit_is_not_taken),
		BOTH(a_borrowed_payload_is_given_back_once_and_never_from_inside),
		BOTH(a_peer_the_fabric_does_not_know_is_out_of_reach),
		BOTH(another_incarnation_ends_the_link_and_its_sends),
		BOTH(forgetting_a_peer_ends_its_link),
		BOTH(a_peer_that_dies_ends_the_link),
		TEST(a_net_core_that_stands_still_makes_the_senders_wait, apart2),
		BOTH(a_queue_that_does_not_empty_is_bounded),
		BOTH(a_stopped_carrier_is_deaf_and_reaches_nobody),
	};

	rv_log_set_level(RV_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
