/* A stream as frames, over socket pairs and a real io_uring. */
#include <sys/stat.h>

#include "tests/unit/conn_fixture.h"

static size_t all_shapes(uint64_t *sums)
{
	size_t len = 0;

	for (size_t i = 0; i < RV_ARRAY_NR(shapes); i++)
		len = put_frame(len, &shapes[i], &sums[i]);
	return len;
}

static void assert_all_shapes(const uint64_t *sums)
{
	assert_int_equal(s.frames, RV_ARRAY_NR(shapes));
	for (size_t i = 0; i < RV_ARRAY_NR(shapes); i++) {
		assert_int_equal(s.seen[i].type, shapes[i].type);
		assert_int_equal(s.seen[i].header_len, shapes[i].header_len);
		assert_int_equal(s.seen[i].payload_len, shapes[i].payload_len);
		assert_int_equal(s.seen[i].sum, sums[i]);
	}
}

static void frames_may_be_cut_at_every_byte(void **state)
{
	uint64_t sums[RV_ARRAY_NR(shapes)];
	size_t len = all_shapes(sums);

	NEED_RING();
	for (size_t cut = 0; cut <= len; cut++) {
		s.frames = 0;
		peer_writes(stream, cut);
		settle();
		peer_writes(stream + cut, len - cut);
		UNTIL(s.frames == RV_ARRAY_NR(shapes));
		assert_all_shapes(sums);
	}
}

static void frames_may_come_byte_by_byte(void **state)
{
	uint64_t sums[RV_ARRAY_NR(shapes)];
	size_t len = all_shapes(sums);
	static uint8_t place[512];

	NEED_RING();
	s.place = place;
	for (size_t i = 0; i < len; i++) {
		peer_writes(stream + i, 1);
		settle();
	}
	UNTIL(s.frames == RV_ARRAY_NR(shapes));
	assert_all_shapes(sums);
	assert_int_equal(s.placed, 4);
}

static void many_frames_may_be_packed_into_one_write(void **state)
{
	static uint64_t sums[3000];
	size_t len = 0;

	NEED_RING();
	for (unsigned i = 0; i < 3000; i++)
		len = put_frame(len, &(struct shape){i % 5, i % 37, i % 101}, &sums[i]);
	peer_writes(stream, len);
	UNTIL(s.frames == 3000);
	for (unsigned i = 0; i < 3000; i++)
		assert_int_equal(s.seen[i].sum, sums[i]);
}

static const uint32_t lengths[] = {1,     4095,    4096,          4097, 16384, 16384 - 11 - 19,
				   65536, 1 << 20, (3u << 20) + 5};

static void a_payload_goes_straight_to_its_place(void **state)
{
	static uint8_t place[4u << 20];

	NEED_RING();
	for (size_t i = 0; i < RV_ARRAY_NR(lengths); i++) {
		uint64_t sum, sum_2;
		size_t len = put_frame(0, &(struct shape){1, 19, lengths[i]}, &sum);

		s.frames = s.placed = s.places = 0;
		s.place = place;
		memset(place, 0, sizeof(place));
		len = put_frame(len, &(struct shape){2, 17, 0},
				&sum_2); /* and the stream goes on behind it */
		peer_writes(stream, len);
		UNTIL(s.frames == 2);
		assert_int_equal(s.placed, 1);
		assert_int_equal(s.places, 1);
		assert_int_equal(s.seen[0].sum, sum);
		assert_int_equal(s.seen[1].sum, sum_2);
		assert_int_equal(place[lengths[i]], 0);
	}
}

static void a_payload_without_a_place_is_gathered(void **state)
{
	NEED_RING();
	for (size_t i = 0; i < RV_ARRAY_NR(lengths); i++) {
		uint64_t sum;
		size_t len = put_frame(0, &(struct shape){1, 19, lengths[i]}, &sum);

		s.frames = 0;
		peer_writes(stream, len);
		UNTIL(s.frames == 1);
		assert_int_equal(s.seen[0].sum, sum);
		assert_false(s.seen[0].placed);
	}
}

/* Taking the place away. */

static void a_place_taken_away_in_mid_payload_is_not_written_any_more(void **state)
{
	static uint8_t place[2u << 20];
	uint64_t sum;
	size_t first = put_frame(0, &(struct shape){1, 19, 1 << 20}, &sum), len = first;
	static const size_t cuts[] = {30, 31, 5000, 1 << 19, (1 << 20) + 29, (1 << 20) + 20};

	NEED_RING();
	len = put_frame(len, &(struct shape){2, 17, 3}, &sum);
	for (size_t i = 0; i < RV_ARRAY_NR(cuts); i++) {
		unsigned before = s.displaced;

		s.frames = 0;
		s.place = place;
		s.place_min = 4096;
		memset(place, 0, sizeof(place));
		peer_writes(stream, cuts[i]);
		settle();
		if (!rv_conn_displace(&s.conn))
			UNTIL(s.displaced == before + 1);
		memset(place, 0, sizeof(place));
		peer_writes(stream + cuts[i], len - cuts[i]);
		UNTIL(s.frames ==
		      1); /* only the second: the first is read to its end and dropped */
		assert_int_equal(s.seen[0].type, 2);
		assert_int_equal(s.seen[0].sum, sum);
		for (size_t b = 0; b < sizeof(place); b++)
			if (place[b])
				fail_msg("cut %zu: byte %zu was written", cuts[i], b);
		assert_in_range(s.displaced, before, before + 1);
	}
	assert_int_equal(s.placed, 0);
}

/* The rest is there already when the place is taken away: the receive may be over, and nobody knows it yet. */
static void a_place_taken_away_when_all_has_arrived_is_let_go_too(void **state)
{
	static uint8_t place[1u << 20];
	uint64_t sum;
	size_t len = put_frame(0, &(struct shape){1, 19, 100000}, &sum),
	       all = put_frame(len, &shapes[0], &sum);

	NEED_RING();
	s.place = place;
	s.place_min = 4096;
	peer_writes(stream, 50000);
	settle();
	peer_writes(stream + 50000, all - 50000);
	if (!rv_conn_displace(&s.conn))
		UNTIL(s.displaced == 1);
	memset(place, 0, sizeof(place));
	UNTIL(s.frames == 1);
	assert_int_equal(s.seen[0].sum, sum);
	for (size_t b = 0; b < sizeof(place); b++)
		assert_int_equal(place[b], 0);
}

static void without_a_place_there_is_nothing_to_take_away(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &(struct shape){1, 19, 100000}, &sum);

	NEED_RING();
	assert_true(rv_conn_displace(&s.conn));
	peer_writes(stream, 50000);
	settle();
	assert_true(rv_conn_displace(&s.conn));
	peer_writes(stream + 50000, len - 50000);
	UNTIL(s.frames == 1);
	assert_int_equal(s.seen[0].sum, sum);
	assert_int_equal(s.displaced, 0);
}

static void a_close_in_mid_payload_lets_the_place_go_first(void **state)
{
	static uint8_t place[2u << 20];
	uint64_t sum;

	NEED_RING();
	s.place = place;
	put_frame(0, &(struct shape){1, 19, 1 << 20}, &sum);
	peer_writes(stream, 1 << 19);
	settle();
	rv_conn_close(&s.conn, -ETIMEDOUT);
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -ETIMEDOUT);
	memset(place, 0, sizeof(place));
	(void)!send(s.peer, stream + 1000, 1000, MSG_NOSIGNAL);
	settle();
	for (size_t b = 0; b < sizeof(place); b++)
		assert_int_equal(place[b], 0);
	assert_int_equal(s.frames, 0);
}

/* The end. */

static void the_other_sides_end_closes(void **state)
{
	NEED_RING();
	close(s.peer);
	s.peer = -1;
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -ECONNRESET);
}

static void an_end_inside_a_frame_closes_without_it(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &(struct shape){1, 19, 100}, &sum);

	NEED_RING();
	peer_writes(stream, len - 1);
	close(s.peer);
	s.peer = -1;
	UNTIL(s.closed);
	assert_int_equal(s.frames, 0);
}

static const uint8_t bad[][RV_FRAME_PREAMBLE] = {
	{0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0},             /* version */
	{0, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0},             /* type */
	{0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0},             /* one byte over 16 MiB */
	{0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 9}, /* wraps */
};

static void a_bad_preamble_closes_at_once(void **state)
{
	NEED_RING();
	for (size_t i = 0; i < RV_ARRAY_NR(bad); i++) {
		for (size_t cut = 0; cut < RV_FRAME_PREAMBLE; cut += 5) {
			peer_writes(bad[i], cut);
			if (cut)
				settle();
			peer_writes(bad[i] + cut, RV_FRAME_PREAMBLE - cut);
			UNTIL(s.closed);
			assert_int_equal(s.closed_rc, -EPROTO);
			assert_int_equal(s.frames, 0);
			close(s.peer);
			open_pair(NULL);
		}
	}
}

static void close_it(struct side *x)
{
	rv_conn_close(&x->conn, -ECANCELED);
}

static void a_close_from_inside_a_frame_is_the_last_frame(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	len = put_frame(len, &shapes[0], &sum);
	s.on_frame = close_it;
	peer_writes(stream, len);
	UNTIL(s.closed);
	settle();
	assert_int_equal(s.frames, 1);
	assert_int_equal(s.closed, 1);
	assert_int_equal(s.closed_rc, -ECANCELED);
	rv_conn_close(&s.conn, -EIO); /* harmless */
}

static void closing_is_never_nested(void **state)
{
	NEED_RING();
	rv_conn_close(&s.conn, -EIO);
	assert_int_equal(s.closed, 0);
	UNTIL(s.closed);
	settle();
	assert_int_equal(s.closed, 1);
}

static void a_paused_connection_can_be_closed(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	settle();
	rv_conn_pause(&s.conn, true);
	peer_writes(stream, len); /* a receive that is under way still brings this */
	settle();
	rv_conn_close(&s.conn, -EIO);
	UNTIL(s.closed);
}

/* Pausing. */

static void a_paused_connection_reads_no_more_until_it_goes_on(void **state)
{
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_pause(&s.conn, true);
	peer_writes(stream, len);
	settle();
	peer_writes(stream, len);
	peer_writes(stream, len);
	settle();
	assert_in_range(s.frames, 0, 1);
	rv_conn_pause(&s.conn, false);
	UNTIL(s.frames == 3);
}

/* Sending. */

struct sent {
	unsigned nr;
	int rc;
};

static void note_sent(void *ctx, int rc)
{
	struct sent *x = ctx;

	x->nr++;
	x->rc = rc;
}

static uint8_t got[6u << 20];

static size_t peer_reads(size_t want)
{
	size_t n = 0;

	for (unsigned idle = 0; n < want && idle < 20000; idle++) {
		ssize_t k = read(s.peer, got + n, want - n);

		if (k > 0) {
			n += (size_t)k;
			idle = 0;
		} else if (k == 0) {
			break;
		}
		turn();
	}
	return n;
}

static void frames_leave_in_order_copied_or_borrowed(void **state)
{
	static uint8_t big[(2u << 20) + 77];
	struct sent sent[2] = {{0}};
	struct rv_preamble pre;
	size_t at = 0;
	const struct {
		unsigned type;
		const void *h;
		size_t h_len;
		const void *p;
		size_t p_len;
		int copied;
	} out[] = {
		{0, "head", 4, "payload", 7, 1},  {1, NULL, 0, NULL, 0, 1},
		{1, "h", 1, big, sizeof(big), 0}, {2, "seventeen bytes..", 17, NULL, 0, 1},
		{4, "x", 1, big, 100, 0},
	};

	NEED_RING();
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (uint8_t)(i * 7 + i / 253);
	for (size_t i = 0, b = 0; i < RV_ARRAY_NR(out); i++) {
		struct sent *x = out[i].copied ? NULL : &sent[b++];

		assert_int_equal(rv_conn_send(&s.conn, out[i].type, out[i].h, out[i].h_len,
					      out[i].p, out[i].p_len, -1, x ? note_sent : NULL, x),
				 0);
	}
	assert_int_equal(sent[0].nr + sent[1].nr, 0); /* never from inside */
	assert_int_equal(s.conn.tx_queued,
			 5 * RV_FRAME_PREAMBLE + 4 + 7 + 1 + sizeof(big) + 17 + 1 + 100);
	assert_int_equal(peer_reads(s.conn.tx_queued),
			 5 * RV_FRAME_PREAMBLE + 4 + 7 + 1 + sizeof(big) + 17 + 1 + 100);
	for (size_t i = 0; i < RV_ARRAY_NR(out); i++) {
		assert_int_equal(rv_preamble_decode(got + at, &pre), 0);
		assert_int_equal(pre.type, out[i].type);
		assert_int_equal(pre.header_len, out[i].h_len);
		assert_int_equal(pre.payload_len, out[i].p_len);
		at += RV_FRAME_PREAMBLE;
		if (out[i].h_len)
			assert_memory_equal(got + at, out[i].h, out[i].h_len);
		at += out[i].h_len;
		if (out[i].p_len)
			assert_memory_equal(got + at, out[i].p, out[i].p_len);
		at += out[i].p_len;
	}
	UNTIL(sent[0].nr && sent[1].nr);
	assert_int_equal(sent[0].nr, 1);
	assert_int_equal(sent[0].rc, 0);
	assert_int_equal(sent[1].rc, 0);
	assert_int_equal(s.conn.tx_queued, 0);
}

/* One frame after another, each of so many pieces: more than one send takes, empty ones, and one longer than a send. */
static void a_payload_in_pieces_leaves_whole(void **state)
{
	static const size_t numbers[] = {0,  1, RV_CONN_IOVS - 1, RV_CONN_IOVS, RV_CONN_IOVS + 1,
					 300};
	static uint8_t big[RV_CONN_SEND_BYTES + 999];
	static struct iovec piece[RV_ARRAY_NR(numbers)][300];
	struct sent sent[RV_ARRAY_NR(numbers)] = {{0}};
	struct rv_preamble pre;
	size_t at = 0;

	NEED_RING();
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (uint8_t)(i * 7 + i / 253);
	for (size_t k = 0; k < RV_ARRAY_NR(numbers); k++) {
		for (size_t i = 0; i < numbers[k]; i++)
			piece[k][i] = (struct iovec){big + i, i == 17 ? sizeof(big) - i
								      : i % 5 * 100 + k % 2};
		assert_int_equal(rv_conn_send_pieces(&s.conn, 2, "h", 1, piece[k], numbers[k],
						     note_sent, &sent[k]),
				 0);
		assert_int_equal(sent[k].nr, 0); /* never from inside */
	}
	at = peer_reads(s.conn.tx_queued);
	UNTIL(!s.conn.tx_queued);
	assert_true(at > 4 * sizeof(big) && at < sizeof(got));
	at = 0;
	for (size_t k = 0; k < RV_ARRAY_NR(numbers); k++) {
		size_t end;

		assert_int_equal(rv_preamble_decode(got + at, &pre), 0);
		assert_int_equal(pre.header_len, 1);
		at += RV_FRAME_PREAMBLE + 1;
		end = at + pre.payload_len;
		for (size_t i = 0; i < numbers[k]; at += piece[k][i++].iov_len)
			assert_memory_equal(got + at, piece[k][i].iov_base, piece[k][i].iov_len);
		assert_int_equal(at, end);
		assert_int_equal(sent[k].nr, 1);
		assert_int_equal(sent[k].rc, 0);
	}
	rv_conn_close(&s.conn, -ETIMEDOUT);
	assert_int_equal(rv_conn_send_pieces(&s.conn, 2, "h", 1, piece[1], 1, note_sent, &sent[0]),
			 -ESHUTDOWN);
	assert_int_equal(sent[0].nr, 1);
}

#define QUEUED 200u

static void a_close_calls_every_sent_of_what_is_queued_once(void **state)
{
	static struct sent sent[QUEUED];
	static uint8_t big[1u << 18];

	NEED_RING();
	memset(sent, 0, sizeof(sent));
	for (unsigned i = 0; i < QUEUED; i++)
		assert_int_equal(
			rv_conn_send(&s.conn, 1, "h", 1, big, sizeof(big), -1, note_sent, &sent[i]),
			0);
	peer_reads(5 * sizeof(big)); /* some go, at least one send's; the rest is stuck */
	settle();
	rv_conn_close(&s.conn, -ETIMEDOUT);
	UNTIL(s.closed);
	for (unsigned i = 0, over = 0; i < QUEUED; i++) {
		assert_int_equal(sent[i].nr, 1);
		assert_true(sent[i].rc == 0 || sent[i].rc == -ETIMEDOUT);
		over |= sent[i].rc != 0;
		assert_true(!over ||
			    sent[i].rc); /* in order: none was sent behind one that was not */
	}
	assert_int_equal(sent[0].rc, 0);
	assert_int_equal(sent[QUEUED - 1].rc, -ETIMEDOUT);
	assert_int_equal(rv_conn_send(&s.conn, 1, "h", 1, NULL, 0, -1, NULL, NULL), -ESHUTDOWN);
}

static void a_broken_pipe_fails_what_is_queued(void **state)
{
	static struct sent sent[QUEUED];
	static uint8_t big[1u << 18];

	NEED_RING();
	memset(sent, 0, sizeof(sent));
	for (unsigned i = 0; i < QUEUED; i++)
		rv_conn_send(&s.conn, 1, "h", 1, big, sizeof(big), -1, note_sent, &sent[i]);
	settle();
	close(s.peer);
	s.peer = -1;
	UNTIL(s.closed);
	for (unsigned i = 0; i < QUEUED; i++)
		assert_int_equal(sent[i].nr, 1);
	assert_int_equal(sent[QUEUED - 1].rc, -ECONNRESET);
}

/* Its last frames are unread when we first find out, by a send, that it has closed. */
static void closes_behind_its_last_frames(void)
{
	uint64_t sums[RV_ARRAY_NR(shapes)];
	size_t len = all_shapes(sums);
	struct sent sent[3] = {{0}};
	int fd[2];

	rv_conn_send(&s.conn, 1, "h", 1, "unread", 6, -1, note_sent, &sent[0]);
	UNTIL(sent[0].nr);
	assert_int_equal(sent[0].rc, 0);
	settle();
	peer_writes(stream, len);
	close(s.peer);
	s.peer = -1;
	assert_int_equal(pipe(fd), 0);
	for (unsigned i = 1; i < 3; i++) { /* the error, and that it is known */
		rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, note_sent, &sent[i]);
		rv_conn_send(&s.conn, 1, "h", 1, "p", 1, fd[1], NULL, NULL);
		assert_int_equal(sent[i].nr, 0); /* never from inside */
		UNTIL(sent[i].nr);
		assert_int_equal(sent[i].rc, -ECONNRESET);
		UNTIL(!s.conn.tx_queued);
		settle();
	}
	close(fd[1]);
	assert_int_equal(read(fd[0], stream, 1), 0); /* the duplicates are closed */
	close(fd[0]);
	assert_int_equal(s.drained, 1); /* who waits for room learns of it */
	assert_int_equal(s.frames, 0);
	assert_int_equal(s.closed, 0);
	rv_conn_pause(&s.conn, false);
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -ECONNRESET);
	assert_all_shapes(sums);
}

static void hang_up(bool sends)
{
	uint64_t sums[RV_ARRAY_NR(shapes)];
	static uint8_t big[1u << 18];
	size_t len = all_shapes(sums);
	struct sent sent[9] = {{0}};

	rv_conn_pause(&s.conn, true);
	for (unsigned i = 0; i < 9 && sends; i++)
		rv_conn_send(&s.conn, 1, "h", 1, big, sizeof(big), -1, note_sent, &sent[i]);
	settle();
	peer_writes(stream, len);
	rv_conn_hang_up(&s.conn);
	UNTIL(!s.conn.tx_queued);
	assert_int_equal(sent[8].rc, sends ? -ECONNRESET : 0);
	assert_int_equal(send(s.peer, "x", 1, MSG_NOSIGNAL), -1); /* though it is open */
	assert_int_equal(errno, EPIPE);
	assert_int_equal(s.frames, 0);
	rv_conn_pause(&s.conn, false);
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -ECONNRESET);
	assert_all_shapes(sums);
}

static void what_came_before_it_was_hung_up_is_read(void **state)
{
	NEED_RING();
	hang_up(false);
}

static void what_waits_to_be_sent_goes_nowhere_when_it_is_hung_up(void **state)
{
	NEED_RING();
	hang_up(true);
}

static void what_came_before_a_close_is_read_though_nothing_can_be_sent(void **state)
{
	NEED_RING();
	rv_conn_pause(&s.conn, true);
	closes_behind_its_last_frames();
}

static void sent_and_send(void *ctx, int rc)
{
	struct sent *x = ctx;

	note_sent(ctx, rc);
	if (x->nr < 100)
		rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, sent_and_send, ctx);
}

static void what_is_sent_anew_when_nothing_is_taken_waits_its_turn(void **state)
{
	struct sent a = {0};

	NEED_RING();
	rv_conn_pause(&s.conn, true);
	close(s.peer);
	s.peer = -1;
	rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, sent_and_send, &a);
	UNTIL(a.nr);
	assert_true(a.nr < 10); /* a pass looks twice */
	UNTIL(a.nr == 100);
	assert_int_equal(s.conn.tx_queued, 0);
}

static void one_that_takes_no_more_is_finished_at_once(void **state)
{
	NEED_RING();
	rv_conn_pause(&s.conn, true);
	close(s.peer);
	s.peer = -1;
	rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, NULL, NULL);
	UNTIL(!s.conn.tx_queued);
	settle();
	assert_int_equal(s.closed, 0);
	rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, NULL, NULL);
	rv_conn_finish(&s.conn, -EPROTO);
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -EPROTO);
}

static void there_is_room_again_when_nothing_is_taken_any_more(void **state)
{
	static uint8_t big[1u << 20];
	struct sent sent[9] = {{0}};

	NEED_RING();
	rv_conn_pause(&s.conn, true);
	for (unsigned i = 0; i < 9; i++)
		rv_conn_send(&s.conn, 1, "h", 1, big, sizeof(big), -1, note_sent, &sent[i]);
	settle();
	close(s.peer);
	s.peer = -1;
	UNTIL(sent[8].nr);
	settle();
	assert_int_equal(s.conn.tx_queued, 0);
	assert_int_equal(s.drained, 1);
	assert_int_equal(s.closed, 0);
	rv_conn_pause(&s.conn, false);
	UNTIL(s.closed);
}

static void sent_and_close(void *ctx, int rc)
{
	note_sent(ctx, rc);
	rv_conn_close(&s.conn, -ECANCELED);
	assert_int_equal(rv_conn_send(&s.conn, 1, "h", 1, NULL, 0, -1, NULL, NULL), -ESHUTDOWN);
}

static void a_close_from_inside_sent_is_clean(void **state)
{
	struct sent a = {0}, b = {0};

	NEED_RING();
	rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, sent_and_close, &a);
	rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, note_sent, &b);
	UNTIL(s.closed);
	assert_int_equal(a.nr, 1);
	assert_int_equal(b.nr, 1);
	assert_int_equal(s.closed, 1);
}

static void room_again_after_much_was_queued_is_told_once(void **state)
{
	static uint8_t big[1u << 20];
	struct sent sent[9] = {{0}};

	NEED_RING();
	for (unsigned i = 0; i < 9; i++)
		rv_conn_send(&s.conn, 1, "h", 1, big, sizeof(big), -1, note_sent, &sent[i]);
	assert_true(s.conn.tx_queued > RV_MIB(8));
	settle();
	assert_int_equal(s.drained, 0);
	for (unsigned i = 0; i < 3; i++)
		peer_reads(3u << 20);
	UNTIL(s.conn.tx_queued < RV_MIB(1));
	assert_int_equal(s.drained, 1);
	peer_reads(sizeof(got));
	assert_int_equal(s.drained, 1);
}

/* Descriptors. */

/* One frame of this test, and the descriptor that came with it. */
static size_t peer_receives(int *fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct iovec iov = {got, RV_FRAME_PREAMBLE + 2};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.buf,
			   .msg_controllen = sizeof(control.buf)};
	ssize_t n = -1;

	for (unsigned i = 0; n < 0 && i < 20000; i++) {
		m.msg_controllen = sizeof(control.buf);
		n = recvmsg(s.peer, &m, MSG_CMSG_CLOEXEC);
		turn();
	}
	*fd = -1;
	if (n > 0 && m.msg_controllen) {
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);

		assert_int_equal(c->cmsg_type, SCM_RIGHTS);
		assert_int_equal(c->cmsg_len, CMSG_LEN(sizeof(int))); /* one at a time */
		memcpy(fd, CMSG_DATA(c), sizeof(int));
	}
	return n > 0 ? (size_t)n : 0;
}

static ino_t inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void a_descriptor_travels_with_its_frame(void **state)
{
	int pipes[3][2], fd;

	NEED_RING();
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pipe(pipes[i]), 0);
	for (unsigned i = 0; i < 9; i++)
		assert_int_equal(rv_conn_send(&s.conn, 1, &(uint8_t){(uint8_t)i}, 1, "p", 1,
					      i % 3 == 1 ? pipes[i / 3][0] : -1, NULL, NULL),
				 0);
	for (unsigned i = 0; i < 9; i++) {
		assert_int_equal(peer_receives(&fd), RV_FRAME_PREAMBLE + 2);
		assert_int_equal(got[RV_FRAME_PREAMBLE], i);
		assert_int_equal(fd >= 0, i % 3 == 1);
		if (fd < 0)
			continue;
		assert_int_equal(inode(fd), inode(pipes[i / 3][0]));
		close(fd);
	}
	for (size_t i = 0; i < 3; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
}

/* Finishing. */

static void finishing_flushes_and_then_closes(void **state)
{
	static uint8_t big[3u << 20];
	struct sent sent = {0};
	uint64_t sum;
	size_t len = put_frame(0, &shapes[0], &sum);

	NEED_RING();
	rv_conn_send(&s.conn, 1, "h", 1, big, sizeof(big), -1, note_sent, &sent);
	rv_conn_finish(&s.conn, -EPROTO);
	rv_conn_finish(&s.conn, -EIO);
	peer_writes(stream, len);
	settle();
	assert_int_equal(s.closed, 0);
	assert_int_equal(s.frames, 0); /* nothing is read any more */
	assert_int_equal(peer_reads(sizeof(got)), sizeof(big) + RV_FRAME_PREAMBLE + 1);
	UNTIL(s.closed);
	assert_int_equal(sent.nr, 1);
	assert_int_equal(sent.rc, 0);
	assert_int_equal(s.closed_rc, -EPROTO);
}

static void finishing_with_nothing_queued_closes_at_once(void **state)
{
	NEED_RING();
	rv_conn_finish(&s.conn, -EPROTO);
	UNTIL(s.closed);
	assert_int_equal(s.closed_rc, -EPROTO);
}

/* Connecting. */

static void connect_to(const struct sockaddr_in *sa)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(&s, 0, sizeof(s));
	s.peer = -1;
	rv_conn_connect(&s.conn, &ops, &ring, &reactor, fd, (const struct sockaddr *)sa,
			sizeof(*sa), RV_SEC(5));
}

/* @return the listener */
static int connect_to_a_listener(void)
{
	struct sockaddr_in sa;
	int l = listener(&sa);

	close_pair(NULL);
	assert_int_equal(listen(l, 1), 0);
	connect_to(&sa);
	return l;
}

static void the_peer_accepts(int l)
{
	s.peer = accept(l, NULL, NULL);
	fcntl(s.peer, F_SETFL, O_NONBLOCK);
	close(l);
}

static void a_connect_is_told_and_then_sends_what_was_queued(void **state)
{
	int l;

	NEED_RING();
	l = connect_to_a_listener();
	assert_int_equal(rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, NULL, NULL), 0);
	UNTIL(s.connected);
	assert_int_equal(s.connected_rc, 0);
	the_peer_accepts(l);
	assert_int_equal(peer_reads(RV_FRAME_PREAMBLE + 2), RV_FRAME_PREAMBLE + 2);
	assert_int_equal(s.connected, 1);
}

static void what_came_before_a_close_is_read_over_tcp_too(void **state)
{
	int l;

	NEED_RING();
	l = connect_to_a_listener();
	rv_conn_pause(&s.conn, true); /* before its first receive */
	UNTIL(s.connected);
	the_peer_accepts(l);
	closes_behind_its_last_frames();
}

static void a_refused_connect_is_told_before_the_close(void **state)
{
	struct sockaddr_in sa;
	int l = listener(&sa);
	struct sent sent = {0};

	NEED_RING();
	close_pair(NULL);
	connect_to(&sa); /* bound, and nobody listens */
	rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, note_sent, &sent);
	UNTIL(s.closed);
	assert_int_equal(s.connected, 1);
	assert_int_equal(s.connected_rc, -ECONNREFUSED);
	assert_int_equal(s.closed_rc, -ECONNREFUSED);
	assert_int_equal(sent.nr, 1);
	close(l);
}

static void a_connect_ends_at_its_timeout(void **state)
{
	struct sockaddr_in sa;
	int l = listener(&sa), fill[8];

	NEED_RING();
	close_pair(NULL);
	assert_int_equal(listen(l, 0), 0);
	for (size_t i = 0; i < RV_ARRAY_NR(fill);
	     i++) { /* a full queue: the next one hears nothing */
		fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		(void)!connect(fill[i], (struct sockaddr *)&sa, sizeof(sa));
	}
	connect_to(&sa);
	settle();
	assert_int_equal(s.connected, 0);
	fake_now_ns += RV_SEC(5) - RV_MS(1);
	settle();
	assert_int_equal(s.connected, 0);
	fake_now_ns += RV_MS(2);
	UNTIL(s.closed);
	assert_int_equal(s.connected, 1);
	assert_int_equal(s.connected_rc, -ETIMEDOUT);
	assert_int_equal(s.closed_rc, -ETIMEDOUT);
	for (size_t i = 0; i < RV_ARRAY_NR(fill); i++)
		close(fill[i]);
	close(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CONN(frames_may_be_cut_at_every_byte),
		CONN(frames_may_come_byte_by_byte),
		CONN(many_frames_may_be_packed_into_one_write),
		CONN(a_payload_goes_straight_to_its_place),
		CONN(a_payload_without_a_place_is_gathered),
		CONN(a_place_taken_away_in_mid_payload_is_not_written_any_more),
		CONN(a_place_taken_away_when_all_has_arrived_is_let_go_too),
		CONN(without_a_place_there_is_nothing_to_take_away),
		CONN(a_close_in_mid_payload_lets_the_place_go_first),
		CONN(the_other_sides_end_closes),
		CONN(an_end_inside_a_frame_closes_without_it),
		CONN(a_bad_preamble_closes_at_once),
		CONN(a_close_from_inside_a_frame_is_the_last_frame),
		CONN(closing_is_never_nested),
		CONN(a_paused_connection_can_be_closed),
		CONN(a_paused_connection_reads_no_more_until_it_goes_on),
		CONN(frames_leave_in_order_copied_or_borrowed),
		CONN(a_payload_in_pieces_leaves_whole),
		CONN(a_close_calls_every_sent_of_what_is_queued_once),
		CONN(a_broken_pipe_fails_what_is_queued),
		CONN(what_came_before_a_close_is_read_though_nothing_can_be_sent),
		CONN(what_came_before_it_was_hung_up_is_read),
		CONN(what_waits_to_be_sent_goes_nowhere_when_it_is_hung_up),
		CONN(what_is_sent_anew_when_nothing_is_taken_waits_its_turn),
		CONN(one_that_takes_no_more_is_finished_at_once),
		CONN(there_is_room_again_when_nothing_is_taken_any_more),
		CONN(a_close_from_inside_sent_is_clean),
		CONN(room_again_after_much_was_queued_is_told_once),
		CONN(a_descriptor_travels_with_its_frame),
		CONN(finishing_flushes_and_then_closes),
		CONN(finishing_with_nothing_queued_closes_at_once),
		CONN(a_connect_is_told_and_then_sends_what_was_queued),
		CONN(what_came_before_a_close_is_read_over_tcp_too),
		CONN(a_refused_connect_is_told_before_the_close),
		CONN(a_connect_ends_at_its_timeout),
	};

	return cmocka_run_group_tests_name("conn", tests, start_ring, stop_ring);
}
