/* What is to come in time on a connection, and what ends it when it does not. */
#include "tests/unit/conn_fixture.h"

#define FIRST RV_SEC(10)
#define STALL RV_SEC(150)

static void pass(uint64_t ns)
{
	settle();
	fake_now_ns += ns;
	settle();
}

/* Just before and just after the limit; the wheel may be a tick late. */
static void assert_ends_after(uint64_t ns, enum rv_conn_overdue why)
{
	pass(ns - RV_MS(1));
	assert_int_equal(s.closed, 0);
	pass(RV_MS(2));
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -ETIMEDOUT);
	assert_int_equal(s.conn.overdue, why);
}

static void who_says_nothing_is_put_out_in_time(void **state)
{
	NEED_RING();
	rv_conn_limit(&s.conn, FIRST, STALL);
	assert_ends_after(FIRST, RV_CONN_SILENT);
}

static void a_byte_now_and_then_is_no_first_frame(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[4], &sum);

	NEED_RING();
	assert_true(len > 9);
	rv_conn_limit(&s.conn, FIRST, STALL);
	for (size_t i = 0; i < 9; i++) {
		peer_writes(stream + i, 1);
		pass(FIRST / 10);
		assert_int_equal(s.closed, 0);
	}
	assert_ends_after(FIRST / 10, RV_CONN_SILENT);
	assert_int_equal(s.frames, 0);
}

static void after_a_whole_frame_it_may_rest_for_ever(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_limit(&s.conn, FIRST, STALL);
	pass(FIRST - RV_MS(1));
	peer_writes(stream, len);
	UNTIL(s.frames == 1);
	for (unsigned day = 0; day < 30; day++)
		pass(RV_SEC(86400));
	assert_int_equal(s.closed, 0);
	peer_writes(stream, len);
	UNTIL(s.frames == 2);
}

static void who_stops_in_a_frame_is_put_out_whether_it_was_the_first_or_not(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_limit(&s.conn, FIRST, STALL);
	peer_writes(stream, len);
	UNTIL(s.frames == 1);
	pass(RV_SEC(3600));
	peer_writes(stream, len - 1);
	assert_ends_after(STALL, RV_CONN_STALLED);
	assert_int_equal(s.frames, 1);
}

static void who_was_dialed_need_say_nothing_but_may_not_stop_in_a_frame(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_limit(&s.conn, RV_NEVER, STALL);
	pass(RV_SEC(86400));
	assert_int_equal(s.closed, 0);
	peer_writes(stream, len - 1);
	assert_ends_after(STALL, RV_CONN_STALLED);
}

static void without_limits_half_a_frame_may_wait_for_ever(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_limit(&s.conn, RV_NEVER, RV_NEVER);
	peer_writes(stream, len - 1);
	pass(RV_SEC(86400));
	assert_int_equal(s.closed, 0);
	peer_writes(stream + len - 1, 1);
	UNTIL(s.frames == 1);
}

/* Frames that end keep it alive, however slowly; so does enough of a long one, placed or not. */
static void slow_frames_and_long_ones_that_go_on_are_waited_for(void **state)
{
	static uint8_t place[4 * RV_CONN_PROGRESS];
	static const struct shape longer = {0, 30, sizeof(place)};
	uint64_t sum, long_sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_limit(&s.conn, FIRST, STALL);
	for (unsigned i = 0; i < 5; i++) {
		peer_writes(stream, len - 1);
		pass(i ? STALL / 2 + RV_SEC(1) : RV_SEC(1));
		peer_writes(stream + len - 1, 1);
		UNTIL(s.frames == i + 1);
	}
	for (unsigned placed = 0; placed < 2; placed++) {
		s.place = placed ? place : NULL;
		len = put_frame(0, &longer, &long_sum);
		for (size_t at = 0; at < len;) {
			size_t n = rv_min_u64(RV_CONN_PROGRESS, len - at);

			peer_writes(stream + at, n);
			at += n;
			if (at < len && !placed)
				pass(STALL - RV_SEC(1));
		}
		UNTIL(s.frames == 6 + placed);
		assert_true(s.seen[5 + placed].sum == long_sum);
	}
	s.place = NULL;
	peer_writes(stream, 4 * 1000);
	for (unsigned i = 0; i < 4 && !s.closed;
	     i++) { /* goes on, but too slowly; one timer sees it within two such times */
		pass(STALL / 2 + RV_SEC(1));
		if (!s.closed)
			peer_writes(stream + 4000 + i, 1);
	}
	UNTIL(s.closed);
	assert_int_equal(s.conn.overdue, RV_CONN_STALLED);
}

static void time_in_which_we_do_not_read_is_not_the_peers(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_limit(&s.conn, FIRST, STALL);
	peer_writes(stream, len - 1);
	settle();
	rv_conn_pause(&s.conn, true);
	pass(10 * STALL);
	pass(10 * STALL);
	assert_int_equal(s.closed, 0);
	rv_conn_pause(&s.conn, false);
	peer_writes(stream + len - 1, 1);
	UNTIL(s.frames == 1);
}

/* A long receive straight into its place ends when all is there; what came until then is the kernel's to say. */
static void what_the_kernel_has_received_is_progress_too(void **state)
{
	static uint8_t place[RV_MIB(1)];
	static const struct shape longer = {0, 30, sizeof(place)};
	struct sockaddr_in sa;
	int l = listener(&sa), fd;
	uint64_t sum;
	size_t len = put_frame(0, &longer, &sum), at = 0;

	NEED_RING();
	close_pair(NULL);
	assert_int_equal(listen(l, 1), 0);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	memset(&s, 0, sizeof(s));
	s.peer = fd;
	fcntl(fd, F_SETFL, O_NONBLOCK);
	s.place = place;
	rv_conn_open(&s.conn, &ops, &ring, &reactor, accept(l, NULL, NULL));
	rv_conn_limit(&s.conn, FIRST, STALL);
	while (at < len) {
		size_t n = rv_min_u64(2 * RV_CONN_PROGRESS, len - at);

		peer_writes(stream + at, n);
		at += n;
		if (at < len)
			pass(FIRST + RV_SEC(1));
		assert_int_equal(s.closed, 0);
	}
	UNTIL(s.frames == 1);
	assert_true(s.seen[0].placed && s.seen[0].sum == sum);
	close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CONN(who_says_nothing_is_put_out_in_time),
		CONN(a_byte_now_and_then_is_no_first_frame),
		CONN(after_a_whole_frame_it_may_rest_for_ever),
		CONN(who_stops_in_a_frame_is_put_out_whether_it_was_the_first_or_not),
		CONN(who_was_dialed_need_say_nothing_but_may_not_stop_in_a_frame),
		CONN(without_limits_half_a_frame_may_wait_for_ever),
		CONN(slow_frames_and_long_ones_that_go_on_are_waited_for),
		CONN(time_in_which_we_do_not_read_is_not_the_peers),
		CONN(what_the_kernel_has_received_is_progress_too),
	};

	return cmocka_run_group_tests_name("conn_overdue", tests, start_ring, stop_ring);
}
