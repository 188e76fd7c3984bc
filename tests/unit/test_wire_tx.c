/* Requests into a socket that has little room. */
#include "control/client/wire_tx.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

/* Of requests that name nothing: what is empty at the end is left out. */
#define SHORT offsetof(struct rv_local_req, host)
#define HEAD  (RV_LOCAL_PREAMBLE + SHORT)

static struct {
	struct rv_tx tx;
	int mine, theirs;
	bool waiting;
	unsigned told;
	int dead;
	uint8_t *in; /* what came out at the other end and was not looked at */
	size_t len, at;
} f;

static int wait_for_room(void *user, uint64_t deadline_ns)
{
	struct pollfd p = {.fd = f.mine, .events = POLLOUT};
	uint64_t now_ns = rv_clock_ns();

	(void)user;
	if (now_ns >= deadline_ns)
		return -ETIMEDOUT;
	return poll(&p, 1, (int)rv_min_u64((deadline_ns - now_ns) / RV_MS(1) + 1, 10000)) > 0
		       ? 0
		       : -ETIMEDOUT;
}

static void told(void *user, bool any)
{
	(void)user;
	f.waiting = any;
	f.told++;
}

static int is_dead(void *user)
{
	(void)user;
	return f.dead;
}

static void broken(void *user, const char *text)
{
	(void)user;
	assert_true(*text);
	f.dead = -ENOTCONN;
}

static const struct rv_tx_ops ops = {wait_for_room, told, is_dead, broken};

static int setup(void **state)
{
	int fd[2], size = 4096;

	(void)state;
	memset(&f, 0, sizeof(f));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	f.mine = fd[0];
	f.theirs = fd[1];
	setsockopt(f.mine, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	rv_tx_init(&f.tx, f.mine, &ops, NULL);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	rv_tx_fini(&f.tx);
	close(f.mine);
	close(f.theirs);
	free(f.in);
	return 0;
}

/* Everything the other end can have by now, and by sending on. */
static void receive(void)
{
	for (bool more = true; more;) {
		ssize_t n;

		f.in = realloc(f.in, f.len + RV_MIB(1));
		assert_non_null(f.in);
		n = recv(f.theirs, f.in + f.len, RV_MIB(1), MSG_DONTWAIT);
		more = n > 0;
		f.len += n > 0 ? (size_t)n : 0;
		rv_tx_flush(&f.tx);
	}
}

/* The next frame, whole. @return its id, 0: there is none */
static uint64_t next(uint8_t *op, struct rv_local_req *rq, const uint8_t **payload, size_t *len)
{
	struct rv_local_preamble pre;

	receive();
	if (f.len - f.at < HEAD)
		return 0;
	assert_int_equal(rv_local_preamble_take(f.in + f.at, &pre), 0);
	assert_int_equal(pre.header_len, SHORT);
	*rq = (struct rv_local_req){0};
	memcpy(rq, f.in + f.at + RV_LOCAL_PREAMBLE, SHORT);
	assert_true(f.len - f.at >= HEAD + pre.payload_len);
	*op = pre.op;
	*payload = f.in + f.at + HEAD;
	*len = pre.payload_len;
	f.at += HEAD + pre.payload_len;
	return rq->id;
}

static uint64_t next_id(void)
{
	struct rv_local_req rq;
	const uint8_t *p;
	size_t len;
	uint8_t op;

	return next(&op, &rq, &p, &len);
}

static struct rv_tx_frame *frame(uint64_t id, uint8_t op, const void *data, uint64_t len)
{
	struct rv_tx_frame *t = rv_tx_frame_new(op, &(struct rv_local_req){.id = id}, data, len);

	assert_non_null(t);
	return t;
}

static void queue(uint64_t id, const void *data, uint64_t len)
{
	assert_int_equal(rv_tx_queue(&f.tx, frame(id, RV_LOCAL_CALL, data, len), false), 0);
}

static void frames_come_out_whole_and_in_order(void **state)
{
	static uint8_t data[9000];
	struct rv_local_req rq;
	const uint8_t *p;
	size_t len;
	uint8_t op;

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i % 251);
	for (uint64_t id = 1; id <= 200; id++)
		queue(id, data, id * 45);
	assert_true(f.waiting);
	for (uint64_t id = 1; id <= 200; id++) {
		assert_int_equal(next(&op, &rq, &p, &len), id);
		assert_int_equal(op, RV_LOCAL_CALL);
		assert_int_equal(len, id * 45);
		assert_memory_equal(p, data, len);
	}
	assert_int_equal(next_id(), 0);
	assert_false(f.waiting);
	assert_int_equal(f.told, 2); /* when it began to wait, and when nothing did any more */
}

#define LONG (3 * RV_TX_PIECE + 7)

static void queue_write(const uint8_t *data, uint64_t len)
{
	struct rv_tx_frame *t = frame(1, RV_LOCAL_WRITE, data, len);

	t->next = frame(2, RV_LOCAL_COMMIT, NULL, 0);
	assert_int_equal(rv_tx_queue(&f.tx, t, true), 0);
}

static void a_long_write_lets_others_in_between_and_its_commit_is_last(void **state)
{
	static const uint64_t order[] = {1, 3, 1, 1, 1, 2};
	uint8_t *data = malloc(LONG), op;
	struct rv_local_req rq;
	const uint8_t *p;
	uint64_t at = 0;
	size_t len;

	(void)state;
	for (size_t i = 0; i < LONG; i++)
		data[i] = (uint8_t)(i % 251);
	queue_write(data, LONG);
	queue(3, NULL, 0);
	for (size_t i = 0; i < RV_ARRAY_NR(order); i++) {
		assert_int_equal(next(&op, &rq, &p, &len), order[i]);
		if (order[i] != 1)
			continue;
		assert_int_equal(rq.off, at);
		assert_memory_equal(p, data + at, len);
		at += len;
	}
	assert_int_equal(at, LONG);
	assert_int_equal(op, RV_LOCAL_COMMIT);
	assert_int_equal(next_id(), 0);
	free(data);
}

static void what_has_not_begun_is_withdrawn(void **state)
{
	static const uint8_t data[20000];

	(void)state;
	queue(1, data, sizeof(data));
	queue(2, data, sizeof(data));
	queue(3, NULL, 0);
	assert_true(rv_tx_withdraw(&f.tx, 2));
	assert_false(rv_tx_withdraw(&f.tx, 2));
	assert_false(rv_tx_withdraw(&f.tx, 99));
	assert_int_equal(next_id(), 1);
	assert_int_equal(next_id(), 3);
	assert_int_equal(next_id(), 0);
}

static void the_rest_of_what_has_begun_no_longer_needs_its_callers_bytes(void **state)
{
	uint8_t *data = malloc(LONG), op;
	struct rv_local_req rq;
	const uint8_t *p;
	size_t len;

	(void)state;
	memset(data, 'a', LONG);
	queue_write(data, LONG);
	assert_true(rv_tx_withdraw(&f.tx, 2)); /* the COMMIT goes with it */
	rv_tx_withdraw(&f.tx, 1);
	memset(data, 'b', LONG);
	free(data);
	queue(3, NULL, 0);
	assert_int_equal(next(&op, &rq, &p, &len), 1);
	assert_int_equal(len, RV_TX_PIECE);
	for (size_t i = 0; i < len; i++)
		if (p[i] != 'a')
			fail_msg("byte %zu", i);
	assert_int_equal(next_id(), 3);
	assert_int_equal(next_id(), 0);
}

/* Between two pieces nothing of the next one is out. */
static void a_write_between_two_pieces_is_withdrawn_whole(void **state)
{
	uint8_t *data = calloc(1, LONG);
	static const uint8_t filler[50000];

	(void)state;
	queue_write(data, LONG);
	queue(3, filler, sizeof(filler));
	while (f.len < HEAD + RV_TX_PIECE) {
		ssize_t n;

		f.in = realloc(f.in, f.len + 1000);
		n = recv(f.theirs, f.in + f.len, rv_min_u64(1000, HEAD + RV_TX_PIECE - f.len), 0);
		assert_true(n > 0);
		f.len += (size_t)n;
		rv_tx_flush(&f.tx);
	}
	assert_true(rv_tx_withdraw(&f.tx, 2));
	assert_true(rv_tx_withdraw(&f.tx, 1));
	free(data);
	assert_int_equal(next_id(), 1);
	assert_int_equal(next_id(), 3);
	assert_int_equal(next_id(), 0);
}

static void too_many_are_refused_unless_they_must(void **state)
{
	struct rv_tx_frame *t;
	unsigned nr = 0;

	(void)state;
	for (;; nr++) {
		t = frame(nr + 1, RV_LOCAL_CALL, NULL, 0);
		if (rv_tx_queue(&f.tx, t, false))
			break;
	}
	assert_true(nr >= RV_TX_WAITING && nr < RV_TX_WAITING + 100);
	assert_int_equal(rv_tx_queue(&f.tx, t, false), -EAGAIN);
	assert_int_equal(rv_tx_queue(&f.tx, t, true), 0);
	for (unsigned i = 0; i <= nr; i++)
		assert_int_equal(next_id(), i + 1);
}

/* Senders that wait. */

static void a_sender_that_waits_sends_what_waits_before_it(void **state)
{
	struct rv_tx_frame own = {.rq = {.id = 9}, .op = RV_LOCAL_CALL};

	(void)state;
	queue(1, NULL, 0);
	queue(2, NULL, 0);
	assert_int_equal(rv_tx_send(&f.tx, &own, RV_NEVER), 0);
	assert_int_equal(next_id(), 1);
	assert_int_equal(next_id(), 2);
	assert_int_equal(next_id(), 9);
}

static void a_sender_without_room_gives_up_at_its_deadline_and_harms_nobody(void **state)
{
	struct rv_tx_frame own = {.rq = {.id = 9}, .op = RV_LOCAL_CALL};
	static const uint8_t data[60000];

	(void)state;
	queue(1, data, sizeof(data));
	assert_int_equal(rv_tx_send(&f.tx, &own, rv_clock_ns() + RV_MS(20)), -ETIMEDOUT);
	assert_int_equal(own.sent, 0);
	assert_int_equal(f.dead, 0);
	assert_int_equal(next_id(), 1);
	assert_int_equal(next_id(), 0);
}

static void a_frame_cut_off_in_the_middle_is_the_connections_end(void **state)
{
	static const uint8_t data[60000];
	struct rv_tx_frame own = {.rq = {.id = 9},
				  .op = RV_LOCAL_CALL,
				  .data = data,
				  .len = sizeof(data)};
	struct rv_tx_frame *t = frame(3, RV_LOCAL_CALL, NULL, 0);

	(void)state;
	assert_int_equal(rv_tx_send(&f.tx, &own, rv_clock_ns() + RV_MS(20)), -ENOTCONN);
	assert_int_equal(f.dead, -ENOTCONN);
	assert_int_equal(rv_tx_queue(&f.tx, t, true), -ENOTCONN);
	rv_tx_frame_free(t);
}

static bool whole_frame(void)
{
	struct rv_local_preamble pre;

	if (f.len - f.at < HEAD)
		return false;
	assert_int_equal(rv_local_preamble_take(f.in + f.at, &pre), 0);
	return f.len - f.at >= HEAD + pre.payload_len;
}

static void *send_one(void *arg)
{
	struct rv_tx_frame *own = arg;

	return (void *)(intptr_t)rv_tx_send(&f.tx, own, RV_NEVER);
}

/* A sender in the middle of its frame has the socket; what is queued meanwhile comes behind it. */
static void nothing_gets_into_the_middle_of_a_frame(void **state)
{
	static uint8_t data[2][200000];
	struct rv_tx_frame own[2];
	pthread_t thread[2];
	void *rc;
	unsigned seen = 0;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		memset(data[i], 'a' + (int)i, sizeof(data[i]));
		own[i] = (struct rv_tx_frame){.rq = {.id = 100 + i},
					      .op = RV_LOCAL_CALL,
					      .data = data[i],
					      .len = sizeof(data[i])};
		assert_int_equal(pthread_create(&thread[i], NULL, send_one, &own[i]), 0);
	}
	for (uint64_t id = 1; id <= 50; id++) {
		queue(id, data[0], 10);
		receive();
	}
	while (seen < 52) {
		struct rv_local_req rq;
		const uint8_t *p;
		size_t len;
		uint8_t op;

		receive();
		if (!whole_frame())
			continue;
		assert_true(next(&op, &rq, &p, &len) > 0);
		if (rq.id >= 100)
			for (size_t i = 0; i < len; i++)
				assert_int_equal(p[i], 'a' + (int)(rq.id - 100));
		seen++;
	}
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(thread[i], &rc);
		assert_int_equal((intptr_t)rc, 0);
	}
}

/* With a queue beside the socket. */

static struct {
	_Alignas(4096) uint8_t mem[RV_SHMQ_LEN];
	struct rv_shmq_out out, back;
	struct rv_shmq_in in, replies;
} q;

static int setup_queue(void **state)
{
	memset(&q, 0, sizeof(q));
	rv_shmq_init(q.mem, true, 0, 0, &q.back, &q.in);
	rv_shmq_init(q.mem, false, 0, 0, &q.out, &q.replies);
	rv_shmq_look(&q.in);
	setup(state);
	f.tx.shared = &q.out;
	return 0;
}

/* @return the id of the next frame of the queue, 0: none */
static uint64_t next_of_queue(void)
{
	static uint8_t frame[RV_SHMQ_FRAME];
	struct rv_local_preamble pre;
	struct rv_local_req rq = {0};
	int n = rv_shmq_take(&q.in, frame);

	if (!n)
		return 0;
	assert_int_equal(rv_local_preamble_take(frame, &pre), 0);
	assert_int_equal(n, RV_LOCAL_PREAMBLE + pre.header_len + pre.payload_len);
	memcpy(&rq, frame + RV_LOCAL_PREAMBLE, pre.header_len);
	return rq.id;
}

static void next_of_socket(uint64_t id)
{
	assert_int_equal(next_id(), id);
	rv_shmq_other_taken(&q.in);
}

static void frames_take_either_way_and_keep_their_order(void **state)
{
	static const uint8_t data[RV_SHMQ_FRAME];

	(void)state;
	queue(1, data, 100);
	queue(2, data, sizeof(data)); /* with its head it is too long */
	queue(3, NULL, 0);
	assert_int_equal(next_of_queue(), 1);
	assert_int_equal(next_of_queue(), 0);
	next_of_socket(2);
	assert_int_equal(next_of_queue(), 3);
	assert_true(rv_shmq_rest(&q.in));
	queue(4, NULL, 0);
	assert_int_equal(next_of_queue(), 0);
	next_of_socket(4);
	rv_shmq_look(&q.in);
	queue(5, NULL, 0);
	assert_int_equal(next_of_queue(), 5);
	assert_int_equal(f.len, f.at);
}

static void a_descriptor_goes_through_the_socket(void **state)
{
	struct rv_tx_frame t = {.op = RV_LOCAL_REGION_REGISTER, .with_fd = true, .fd = 0};

	(void)state;
	t.rq.id = 1;
	assert_int_equal(rv_tx_send(&f.tx, &t, RV_NEVER), 0);
	queue(2, NULL, 0);
	assert_int_equal(next_of_queue(), 0);
	next_of_socket(1);
	assert_int_equal(next_of_queue(), 2);
}

/* What waits for room in the socket is in nobody's way that comes after it: it is in front. */
static void behind_what_waits_nothing_takes_the_queue(void **state)
{
	static const uint8_t data[RV_SHMQ_FRAME];
	uint64_t id = 0, in_queue = 0;

	(void)state;
	while (!f.waiting)
		queue(++id, data, sizeof(data));
	queue(++id, NULL, 0);
	assert_int_equal(next_of_queue(), 0);
	for (uint64_t i = 1; i < id; i++)
		next_of_socket(i);
	in_queue = next_of_queue();
	assert_int_equal(in_queue, id);
	assert_false(f.waiting);
}

static void who_gives_up_was_not_counted(void **state)
{
	static const uint8_t data[RV_SHMQ_FRAME];
	struct rv_tx_frame *late = frame(1000, RV_LOCAL_CALL, data, sizeof(data));
	uint64_t id = 0;

	(void)state;
	while (!f.waiting)
		queue(++id, data, sizeof(data));
	assert_int_equal(rv_tx_send(&f.tx, late, rv_clock_ns()), -ETIMEDOUT);
	rv_tx_frame_free(late);
	queue(++id, data, sizeof(data));
	assert_true(rv_tx_withdraw(&f.tx, id--));
	queue(++id, NULL, 0);
	for (uint64_t i = 1; i < id; i++)
		next_of_socket(i);
	assert_int_equal(next_of_queue(), id);
}

#define TX(t)    cmocka_unit_test_setup_teardown(t, setup, finish)
#define QUEUE(t) cmocka_unit_test_setup_teardown(t, setup_queue, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TX(frames_come_out_whole_and_in_order),
		TX(a_long_write_lets_others_in_between_and_its_commit_is_last),
		TX(what_has_not_begun_is_withdrawn),
		TX(the_rest_of_what_has_begun_no_longer_needs_its_callers_bytes),
		TX(a_write_between_two_pieces_is_withdrawn_whole),
		TX(too_many_are_refused_unless_they_must),
		TX(a_sender_that_waits_sends_what_waits_before_it),
		TX(a_sender_without_room_gives_up_at_its_deadline_and_harms_nobody),
		TX(a_frame_cut_off_in_the_middle_is_the_connections_end),
		TX(nothing_gets_into_the_middle_of_a_frame),
		QUEUE(frames_take_either_way_and_keep_their_order),
		QUEUE(a_descriptor_goes_through_the_socket),
		QUEUE(behind_what_waits_nothing_takes_the_queue),
		QUEUE(who_gives_up_was_not_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
