/* A stream as frames, over socket pairs and a real io_uring. */
#include "control/uring/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control/uring/uring.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_clock.h"
#include "tests/unit/exact.h"

#define FRAMES 4096u

static struct rv_mesh *mesh;
static struct rv_reactor reactor;
static struct rv_uring ring;
static bool have_ring;

/* Our end, and what was told about it. */
static struct side {
	int peer; /* the other end's descriptor */
	unsigned frames, placed, connected, displaced, drained, closed;
	int connected_rc, closed_rc;
	size_t bytes;
	struct seen {
		unsigned type;
		uint32_t header_len, payload_len;
		uint64_t sum; /* of header and payload */
		bool placed;
	} seen[FRAMES];
	uint8_t *place; /* where payloads go; NULL: nowhere */
	uint32_t place_min;
	void (*on_frame)(struct side *s);
	unsigned places;
	struct rv_conn conn;
} s;

static uint64_t sum_of(const uint8_t *p, size_t n, uint64_t sum)
{
	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + p[i] + 1;
	return sum;
}

static void *on_place(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header)
{
	(void)c;
	(void)header;
	s.places++;
	return s.place && pre->payload_len >= s.place_min ? s.place : NULL;
}

static void on_frame(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header,
		     const uint8_t *payload, bool placed)
{
	assert_ptr_equal(c, &s.conn);
	assert_int_equal(s.closed, 0);
	assert_true(s.frames < FRAMES);
	if (placed)
		assert_ptr_equal(payload, s.place);
	s.seen[s.frames++] = (struct seen){
		.type = pre->type,
		.header_len = pre->header_len,
		.payload_len = pre->payload_len,
		.sum = sum_of(payload, pre->payload_len, sum_of(header, pre->header_len, 7)),
		.placed = placed,
	};
	s.placed += placed;
	s.bytes += pre->payload_len;
	if (s.on_frame)
		s.on_frame(&s);
}

static void on_connected(struct rv_conn *c, int rc)
{
	(void)c;
	s.connected++;
	s.connected_rc = rc;
}

static void on_displaced(struct rv_conn *c)
{
	(void)c;
	assert_int_equal(s.closed, 0);
	s.displaced++;
}

static void on_drained(struct rv_conn *c)
{
	(void)c;
	s.drained++;
}

static void on_closed(struct rv_conn *c, int rc)
{
	(void)c;
	s.closed++;
	s.closed_rc = rc;
}

static const struct rv_conn_ops ops = {
	.decode = rv_preamble_decode,
	.encode = rv_preamble_encode,
	.place = on_place,
	.frame = on_frame,
	.connected = on_connected,
	.displaced = on_displaced,
	.drained = on_drained,
	.closed = on_closed,
};

static int start_ring(void **state)
{
	struct rv_reactor_conf rc = {.clock = fake_clock};
	int err;

	(void)state;
	mesh = rv_mesh_create(1, 4);
	rc.port = rv_mesh_port(mesh, 0);
	rv_reactor_init(&reactor, &rc);
	err = rv_uring_init(&ring, 64);
	have_ring = err == 0;
	if (!have_ring) {
		print_message("no io_uring here: %s\n", strerrordesc_np(-err));
		return 0;
	}
	return rv_reactor_add(&reactor, &ring.poller);
}

static int stop_ring(void **state)
{
	(void)state;
	if (have_ring)
		rv_uring_fini(&ring);
	rv_mesh_destroy(mesh);
	return 0;
}

static void turn(void)
{
	if (!rv_reactor_step(&reactor))
		ring.poller.ops->sleep(&ring.poller, RV_US(200));
}

static void settle(void)
{
	for (unsigned idle = 0; idle < 3;)
		idle = rv_reactor_step(&reactor) ? 0 : idle + 1;
}

#define UNTIL(cond)                                            \
	do {                                                   \
		for (unsigned turns_ = 0; !(cond); turns_++) { \
			if (turns_ > 20000)                    \
				fail_msg("never: %s", #cond);  \
			turn();                                \
		}                                              \
	} while (0)

static int open_pair(void **state)
{
	int fd[2];

	(void)state;
	memset(&s, 0, sizeof(s));
	s.peer = -1;
	if (!have_ring)
		return 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return -1;
	s.peer = fd[1];
	fcntl(s.peer, F_SETFL, O_NONBLOCK);
	rv_conn_open(&s.conn, &ops, &ring, &reactor, fd[0]);
	return 0;
}

static int close_pair(void **state)
{
	unsigned sleepers = 0;

	(void)state;
	if (!have_ring)
		return 0;
	if (s.peer >= 0)
		close(s.peer);
	s.on_frame = NULL;
	s.place = NULL;
	rv_conn_close(&s.conn, -ESHUTDOWN);
	UNTIL(s.closed);
	settle();
	assert_int_equal(s.closed, 1);
	for (unsigned i = 0; i < ring.watch_nr; i++)
		sleepers += ring.watch[i].op.pending;
	assert_int_equal(ring.ops_pending, sleepers);
	return 0;
}

#define NEED_RING()             \
	do {                    \
		(void)state;    \
		if (!have_ring) \
			skip(); \
	} while (0)

/* The peer's stream: frames of known lengths and bytes. */

struct shape {
	unsigned type;
	uint32_t header_len, payload_len;
};

static uint8_t stream[4u << 20];

static size_t put_frame(size_t at, const struct shape *f, uint64_t *sum)
{
	struct rv_preamble pre = {(enum rv_frame_type)f->type, f->header_len, f->payload_len};
	uint8_t *p = stream + at;

	rv_preamble_encode(p, &pre);
	p += RV_FRAME_PREAMBLE;
	for (uint32_t i = 0; i < f->header_len + f->payload_len; i++)
		p[i] = (uint8_t)(i * 13 + at + f->type);
	*sum = sum_of(p + f->header_len, f->payload_len, sum_of(p, f->header_len, 7));
	return at + RV_FRAME_PREAMBLE + f->header_len + f->payload_len;
}

static void peer_writes(const uint8_t *p, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t k = send(s.peer, p + done, n - done, MSG_NOSIGNAL);

		if (k > 0) {
			done += (size_t)k;
			continue;
		}
		assert_int_equal(errno, EAGAIN);
		turn();
	}
}

static const struct shape shapes[] = {
	{0, 30, 50}, {1, 0, 0}, {2, 17, 0}, {4, 0, 9}, {1, 300, 200}, {0, 22, 1},
};

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

static uint8_t got[4u << 20];

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

static int listener(struct sockaddr_in *sa)
{
	socklen_t len = sizeof(*sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	assert_int_equal(bind(fd, (struct sockaddr *)sa, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)sa, &len), 0);
	return fd;
}

static void connect_to(const struct sockaddr_in *sa)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(&s, 0, sizeof(s));
	s.peer = -1;
	rv_conn_connect(&s.conn, &ops, &ring, &reactor, fd, (const struct sockaddr *)sa,
			sizeof(*sa), RV_SEC(5));
}

static void a_connect_is_told_and_then_sends_what_was_queued(void **state)
{
	struct sockaddr_in sa;
	int l = listener(&sa);

	NEED_RING();
	close_pair(NULL);
	assert_int_equal(listen(l, 1), 0);
	connect_to(&sa);
	assert_int_equal(rv_conn_send(&s.conn, 1, "h", 1, "p", 1, -1, NULL, NULL), 0);
	UNTIL(s.connected);
	assert_int_equal(s.connected_rc, 0);
	s.peer = accept(l, NULL, NULL);
	fcntl(s.peer, F_SETFL, O_NONBLOCK);
	assert_int_equal(peer_reads(RV_FRAME_PREAMBLE + 2), RV_FRAME_PREAMBLE + 2);
	assert_int_equal(s.connected, 1);
	close(l);
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

/* What is to come in time. */

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

/* The ring sends and receives, or the connection itself does while its socket is busy. */

static int open_for_ring(void **state)
{
	ring.look_ns = 0;
	return open_pair(state);
}

static int open_by_hand(void **state)
{
	ring.look_ns = RV_NEVER;
	return open_pair(state);
}

/* clang-format off */
#define CONN(t) {#t, t, open_for_ring, close_pair, NULL}, {#t ", by hand", t, open_by_hand, close_pair, NULL}
/* clang-format on */

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
		CONN(a_close_calls_every_sent_of_what_is_queued_once),
		CONN(a_broken_pipe_fails_what_is_queued),
		CONN(a_close_from_inside_sent_is_clean),
		CONN(room_again_after_much_was_queued_is_told_once),
		CONN(a_descriptor_travels_with_its_frame),
		CONN(finishing_flushes_and_then_closes),
		CONN(finishing_with_nothing_queued_closes_at_once),
		CONN(a_connect_is_told_and_then_sends_what_was_queued),
		CONN(a_refused_connect_is_told_before_the_close),
		CONN(a_connect_ends_at_its_timeout),
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

	return cmocka_run_group_tests_name("conn", tests, start_ring, stop_ring);
}
