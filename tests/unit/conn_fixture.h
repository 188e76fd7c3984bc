/*
 * conn_fixture.h - one end of a socket pair as a connection on a real io_uring and a scripted clock; the test is the other.
 */
#ifndef RV_TESTS_UNIT_CONN_FIXTURE_H
#define RV_TESTS_UNIT_CONN_FIXTURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include "control/uring/conn.h"
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

static inline uint64_t sum_of(const uint8_t *p, size_t n, uint64_t sum)
{
	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + p[i] + 1;
	return sum;
}

static inline void *on_place(struct rv_conn *c, const struct rv_preamble *pre,
			     const uint8_t *header)
{
	(void)c;
	(void)header;
	s.places++;
	return s.place && pre->payload_len >= s.place_min ? s.place : NULL;
}

static inline void on_frame(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header,
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

static inline void on_connected(struct rv_conn *c, int rc)
{
	(void)c;
	s.connected++;
	s.connected_rc = rc;
}

static inline void on_displaced(struct rv_conn *c)
{
	(void)c;
	assert_int_equal(s.closed, 0);
	s.displaced++;
}

static inline void on_drained(struct rv_conn *c)
{
	(void)c;
	s.drained++;
}

static inline void on_closed(struct rv_conn *c, int rc)
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

static inline int start_ring(void **state)
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

static inline int stop_ring(void **state)
{
	(void)state;
	if (have_ring)
		rv_uring_fini(&ring);
	rv_mesh_destroy(mesh);
	return 0;
}

static inline void turn(void)
{
	if (!rv_reactor_step(&reactor))
		ring.poller.ops->sleep(&ring.poller, RV_US(200));
}

static inline void settle(void)
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

static inline int open_pair(void **state)
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

static inline int close_pair(void **state)
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

static inline size_t put_frame(size_t at, const struct shape *f, uint64_t *sum)
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

static inline void peer_writes(const uint8_t *p, size_t n)
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

static inline int listener(struct sockaddr_in *sa)
{
	socklen_t len = sizeof(*sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	assert_int_equal(bind(fd, (struct sockaddr *)sa, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)sa, &len), 0);
	return fd;
}

/* The ring sends and receives, or the connection itself does while its socket is busy. */

static inline int open_for_ring(void **state)
{
	ring.look_ns = 0;
	return open_pair(state);
}

static inline int open_by_hand(void **state)
{
	ring.look_ns = RV_NEVER;
	return open_pair(state);
}

/* clang-format off */
#define CONN(t) {#t, t, open_for_ring, close_pair, NULL}, {#t ", by hand", t, open_by_hand, close_pair, NULL}
/* clang-format on */

#endif
