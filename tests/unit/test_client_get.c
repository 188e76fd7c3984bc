/* Gets of librv's: where the bytes land, what becomes of the lease, many at once. */
#include "dataplane/base/handle.h"

#include "control/client/rv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "control/local/local_proto.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_daemon.h"

/* Copied into memory of the program's own. */

static void script_into(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);

	fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, 1, 0, 300), arena);
	close(arena);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 1);
	fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, 2, 0, 300), -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 2);
	MUST(fake_expect(fd, RV_LOCAL_DETACH).lease_id == 1002);
	/* An empty payload is nowhere. */
	fake_answer_get(
		fd, (struct rv_local_rep){.id = fake_expect(fd, RV_LOCAL_GET).id, .lease_id = 6},
		-1);
	fake_until_closed(fd);
}

static void bytes_are_copied_to_the_caller_or_not_kept(void **state)
{
	uint8_t dst[300];
	struct fake_daemon f;
	uint64_t len = 0, lease = 0;
	void *data;

	(void)state;
	fake_start(&f, script_into);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, dst, sizeof(dst), &len, &lease), 0);
	assert_int_equal(len, 300);
	assert_int_equal(dst[299], 299 % 251);
	len = 0;
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, dst, 299, &len, &lease), -ERANGE);
	assert_int_equal(len, 300);
	assert_int_equal(rv_get(f.c, fake_handle(1), NULL, &data, &len, &lease), 0);
	assert_non_null(data);
	assert_int_equal(len, 0);
	assert_int_equal(lease, 6);
	rv_free(data);
	fake_stop(&f);
}

/* Into the session's buffers. */

/* A daemon that puts bytes into the client's own buffer, which is at 4096 of its arena. */
#define ROOM 20000u

static void alloc_buffer(int fd, int arena, uint64_t token, uint64_t off)
{
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_ALLOC);
	struct rv_local_rep rep = fake_got(rq.id, token, off, rq.len);

	rep.has_fd = token == 3;
	rep.writable = 1;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, rep.has_fd ? arena : -1);
}

static void script_in_place(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq;
	struct rv_local_rep rep;

	alloc_buffer(fd, arena, 3, 4096);
	alloc_buffer(fd, arena, 4, 28672);
	rq = fake_expect(fd, RV_LOCAL_GET);
	MUST(rq.flags == RV_LOCAL_INTO && rq.token == 3 && rq.off == 100 && rq.len == 500);
	MUST(pwrite(arena, "here", 4, 4096 + 100) == 4);
	rep = (struct rv_local_rep){.id = rq.id, .len = 4, .lease_id = 9};
	fake_answer(fd, RV_LOCAL_GET, &rep, NULL, -1);

	rq = fake_expect(fd, RV_LOCAL_GET);
	MUST(rq.flags == (RV_LOCAL_INTO | RV_LOCAL_KEEP) && rq.token == 4 && rq.off == 0 &&
	     rq.len == ROOM);
	rep = (struct rv_local_rep){.id = rq.id, .rc = -ERANGE, .len = ROOM + 1};
	fake_answer(fd, RV_LOCAL_GET, &rep, "it does not fit", -1);

	/* It may come as a view all the same: it is copied, and the view goes back. */
	rq = fake_expect(fd, RV_LOCAL_GET);
	MUST(rq.token == 4 && rq.off == ROOM - 5 && rq.len == 5);
	fake_answer_get(fd, fake_got(rq.id, 77, 60000, 5), -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 77);

	/* Ranges that are in no buffer, or not all of it, and memory of the program's own. */
	for (unsigned i = 0; i < 4; i++) {
		rq = fake_expect(fd, RV_LOCAL_GET);
		MUST(rq.flags == RV_LOCAL_INTO && rq.token == 0 && rq.len == (i == 3 ? 0 : 5));
		rep = (struct rv_local_rep){.id = rq.id, .rc = -ENOENT};
		fake_answer(fd, RV_LOCAL_GET, &rep, "no such handle", -1);
	}
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 3);
	rq = fake_expect(fd, RV_LOCAL_COMMIT);
	rep = (struct rv_local_rep){.id = rq.id, .worker = FAKE_WORKER, .local = 4};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	for (unsigned i = 0; i < 2; i++) {
		rq = fake_expect(fd, RV_LOCAL_GET);
		MUST(rq.token == 0);
		rep = (struct rv_local_rep){.id = rq.id, .rc = -ENOENT};
		fake_answer(fd, RV_LOCAL_GET, &rep, "no such handle", -1);
	}
	close(arena);
	fake_until_closed(fd);
}

static void bytes_are_put_into_a_buffer_of_the_session_without_a_copy(void **state)
{
	struct rv_opts keep = {.keep = true};
	struct rv_buf one = {0}, two = {0};
	uint8_t *p, *q, own[8];
	struct fake_daemon f;
	uint64_t len, lease = 0;
	struct rv_handle h;

	(void)state;
	fake_start(&f, script_in_place);
	assert_int_equal(rv_alloc_pinned(f.c, ROOM, &one), 0);
	assert_int_equal(rv_alloc_pinned(f.c, ROOM, &two), 0);
	p = one.data;
	q = two.data;
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, p + 100, 500, &len, &lease), 0);
	assert_memory_equal(p + 100, "here", 4);
	assert_int_equal(len, 4);
	assert_int_equal(lease, 9);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), &keep, q, ROOM, &len, &lease), -ERANGE);
	assert_int_equal(len, ROOM + 1);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, q + ROOM - 5, 5, &len, &lease), 0);
	assert_int_equal(q[ROOM - 1], 60004 % 251);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, p - 1, 5, &len, &lease), -ENOENT);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, q + ROOM - 4, 5, &len, &lease),
			 -ENOENT);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, own, 5, &len, &lease), -ENOENT);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, NULL, 0, &len, &lease), -ENOENT);
	rv_buf_free(&one);
	assert_int_equal(rv_register_pinned(f.c, &two, NULL, &h), 0);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, p, 5, &len, &lease), -ENOENT);
	assert_int_equal(rv_get_into(f.c, fake_handle(1), NULL, q, 5, &len, &lease), -ENOENT);
	fake_stop(&f);
}

/* Leases. */

/* What becomes of a get's lease: the flag that says it, and the lease that comes back. */
static const struct {
	enum rv_then then;
	bool keep;
	uint32_t flags;
	uint64_t lease;
} thens[] = {
	{RV_THEN_KEEP, false, 0, 9},
	{RV_THEN_KEEP, true, RV_LOCAL_KEEP, 9},
	{RV_THEN_DETACH, false, RV_LOCAL_THEN_DETACH, 0},
	{RV_THEN_RELEASE, false, RV_LOCAL_THEN_RELEASE, 0},
	{RV_THEN_RELEASE, true, RV_LOCAL_KEEP | RV_LOCAL_THEN_RELEASE, 0},
};

static void script_then(int fd)
{
	for (unsigned i = 0; i < 4 * RV_ARRAY_NR(thens); i++) {
		uint32_t into = i % 4 == 2 ? RV_LOCAL_INTO : 0;
		struct rv_local_req rq = fake_expect(fd, RV_LOCAL_GET);
		struct rv_local_rep rep = {.id = rq.id, .lease_id = thens[i / 4].lease};

		MUST(rq.flags == (thens[i / 4].flags | into));
		fake_answer(fd, RV_LOCAL_GET, &rep, NULL, -1);
	}
	fake_until_closed(fd);
}

static void what_becomes_of_a_lease_is_said_with_its_get(void **state)
{
	struct rv_handle h = fake_handle(1);
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_then);
	for (unsigned i = 0; i < RV_ARRAY_NR(thens); i++) {
		struct rv_opts o = {.then = thens[i].then, .keep = thens[i].keep};
		struct rv_result res = {.lease = 77};
		uint64_t lease = 77, len;
		struct rv_buf buf;
		void *data;
		char own[4];

		assert_int_equal(rv_get_pinned(f.c, h, &o, &buf, &lease), 0);
		assert_int_equal(lease, thens[i].lease);
		rv_buf_free(&buf);
		lease = 77;
		assert_int_equal(rv_get(f.c, h, &o, &data, &len, &lease), 0);
		assert_int_equal(lease, thens[i].lease);
		rv_free(data);
		lease = 77;
		assert_int_equal(rv_get_into(f.c, h, &o, own, sizeof(own), &len, &lease), 0);
		assert_int_equal(lease, thens[i].lease);
		assert_int_equal(rv_get_many(f.c, &h, 1, &o, &res), 0);
		assert_int_equal(res.lease, thens[i].lease);
		rv_buf_free(&res.buf);
	}
	fake_stop(&f);
}

/* What cannot be taken is given back; a lease that is over is not. */
static void script_late_then(int fd)
{
	struct rv_local_rep rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, 4, 0, 10);
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_METADATA);
	int arena = fake_make_arena(F_SEAL_SHRINK);

	rep.lease_id = 0;
	fake_answer_get(fd, rep, arena);
	close(arena);
	fake_answer_metadata(fd, &rq);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 4);
	rq = fake_expect(fd, RV_LOCAL_METADATA);
	fake_answer_metadata(fd, &rq);
	fake_until_closed(fd);
}

static void a_late_reply_whose_lease_is_over_gives_back_its_bytes_alone(void **state)
{
	struct rv_opts o = {.timeout_ns = RV_MS(10), .then = RV_THEN_RELEASE};
	uint64_t lease = 7;
	struct fake_daemon f;
	struct rv_buf buf;
	struct rv_meta m;

	(void)state;
	fake_start(&f, script_late_then);
	assert_int_equal(rv_get_pinned(f.c, fake_handle(3), &o, &buf, &lease), -ETIMEDOUT);
	assert_int_equal(lease, 7);
	assert_int_equal(rv_metadata(f.c, fake_handle(2), &m), 0);
	assert_int_equal(rv_metadata(f.c, fake_handle(2), &m), 0);
	fake_stop(&f);
}

/* Many at once. */

static void script_many(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_one rq[3];
	struct rv_local_rep no = {.rc = -ENOENT};
	struct fake_request many;

	MUST(fake_next(fd, &many) && many.op == RV_LOCAL_GET_MANY && many.len == sizeof(rq));
	memcpy(rq, many.payload, sizeof(rq));
	free(many.payload);
	for (unsigned i = 0; i < 3; i++)
		MUST(rq[i].worker == fake_handle(1).worker && rq[i].local == i + 1);
	no.id = rq[1].id;
	fake_answer_get(fd, fake_got(rq[2].id, 12, 20, 2), arena);
	fake_answer(fd, RV_LOCAL_GET, &no, "gone", -1);
	fake_answer_get(fd, fake_got(rq[0].id, 10, 10, 1), -1);
	close(arena);
	fake_until_closed(fd);
}

static void many_gets_are_under_way_together(void **state)
{
	const struct rv_handle h[3] = {fake_handle(1), fake_handle(2), fake_handle(3)};
	struct rv_result res[3];
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_many);
	assert_int_equal(rv_get_many(f.c, h, 3, NULL, res), -ENOENT);
	assert_int_equal(res[0].rc, 0);
	assert_int_equal(*(uint8_t *)res[0].buf.data, 10);
	assert_int_equal(res[0].lease, 1010);
	assert_int_equal(res[1].rc, -ENOENT);
	assert_string_equal(res[1].error, "gone");
	assert_int_equal(res[2].rc, 0);
	assert_int_equal(res[2].buf.len, 2);
	fake_stop(&f); /* gives the views back */
}

/* Of a daemon that does not know how, and of one owner after another. */

#define MANY_OWNERS 4u
#define MANY_NR     500u

static struct {
	uint32_t version;
	unsigned longest; /* of its requests */
} manys[] = {{1, 1}, {RV_LOCAL_VERSION, RV_LOCAL_MANY_MAX}};
static unsigned requests, longest;

/* Every one is answered by a payload of no bytes, with its handle's number as the lease. */
static void script_many_owners(int fd)
{
	struct fake_request r;
	unsigned next = 0;

	requests = longest = 0;
	while (next < MANY_NR && fake_next(fd, &r)) {
		struct rv_local_one one[RV_LOCAL_MANY_MAX] = {{r.rq.id, r.rq.worker, r.rq.local}};
		unsigned nr = r.op == RV_LOCAL_GET ? 1 : (unsigned)(r.len / sizeof(one[0]));

		MUST(r.op == RV_LOCAL_GET ||
		     (r.op == RV_LOCAL_GET_MANY && nr <= RV_LOCAL_MANY_MAX));
		if (r.op == RV_LOCAL_GET_MANY)
			memcpy(one, r.payload, r.len);
		free(r.payload);
		requests++;
		longest = nr > longest ? nr : longest;
		for (unsigned i = 0; i < nr; i++, next++) {
			struct rv_local_rep rep = {.id = one[i].id, .lease_id = one[i].local};

			MUST(one[i].local == next + 1);
			MUST(r.rq.port == 7000 + next * MANY_OWNERS / MANY_NR);
			fake_answer(fd, RV_LOCAL_GET, &rep, NULL, -1);
		}
	}
	fake_until_closed(fd);
}

static void many_gets_go_to_each_owner_in_few_requests(void **state)
{
	static struct rv_ref refs[MANY_NR];
	static struct rv_result res[MANY_NR];
	struct fake_daemon f;

	(void)state;
	for (unsigned i = 0; i < MANY_NR; i++)
		refs[i] = (struct rv_ref){.handle = {FAKE_WORKER + 1, i + 1},
					  .port = (uint16_t)(7000 + i * MANY_OWNERS / MANY_NR),
					  .host = "127.0.0.1"};
	for (unsigned v = 0; v < 2; v++) {
		fake_version = manys[v].version;
		fake_start(&f, script_many_owners);
		assert_int_equal(rv_get_many_at(f.c, refs, MANY_NR, NULL, res), 0);
		for (unsigned i = 0; i < MANY_NR; i++)
			assert_true(!res[i].rc && res[i].lease == i + 1);
		fake_stop(&f);
		assert_in_range(longest, 1, manys[v].longest);
		assert_int_equal(requests == MANY_NR, v == 0);
		assert_true(v == 0 || requests <= 24);
	}
}

/* What the daemon got together comes in one reply; the others in one each. */

#define TOGETHER_NR 5u

static void reply_together(int fd, const struct rv_local_rep *rep, const struct rv_local_got *got,
			   size_t nr, int arena)
{
	struct iovec v[3];
	uint8_t pre[RV_LOCAL_PREAMBLE];
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
	struct rv_local_preamble lp = {RV_LOCAL_GET_MANY | RV_LOCAL_REPLY, sizeof(*rep),
				       (uint32_t)(nr * sizeof(*got))};

	rv_local_preamble_put(pre, &lp);
	v[0] = (struct iovec){pre, sizeof(pre)};
	v[1] = (struct iovec){(void *)(uintptr_t)rep, sizeof(*rep)};
	v[2] = (struct iovec){(void *)(uintptr_t)got, nr * sizeof(*got)};
	if (arena >= 0) {
		m.msg_control = control.space;
		m.msg_controllen = sizeof(control.space);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &arena, sizeof(arena));
	}
	MUST(sendmsg(fd, &m, MSG_NOSIGNAL) ==
	     (ssize_t)(sizeof(pre) + sizeof(*rep) + nr * sizeof(*got)));
}

/* 11: both views of the one reply go before the one that came alone, 13. */
static uint64_t freed_first;

/* The second is empty, the fourth is gone; the fifth comes late and alone. */
static void script_together(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_one one[TOGETHER_NR];
	struct rv_local_rep rep = fake_got(0, 0, 0, 0), alone;
	struct rv_local_got got[3];
	struct fake_request r;

	MUST(fake_next(fd, &r) && r.op == RV_LOCAL_GET_MANY && r.len == sizeof(one));
	MUST(r.rq.flags == (RV_LOCAL_THEN_DETACH | RV_LOCAL_TOGETHER));
	memcpy(one, r.payload, sizeof(one));
	free(r.payload);
	rep.id = r.rq.id;
	rep.has_fd = 1;
	rep.lease_id = 0;
	got[0] = (struct rv_local_got){one[1].id, 0, 0, 0};
	got[1] = (struct rv_local_got){one[2].id, 11, 4096, 10};
	got[2] = (struct rv_local_got){one[0].id, 11, 128, 20};
	reply_together(fd, &rep, got, 3, arena);
	close(arena);
	alone = (struct rv_local_rep){.id = one[3].id, .rc = -ENOENT};
	fake_answer(fd, RV_LOCAL_GET, &alone, "gone: dropped", -1);
	alone = fake_got(one[4].id, 13, 64, 5);
	alone.lease_id = 0;
	fake_answer(fd, RV_LOCAL_GET, &alone, NULL, -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == freed_first);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 24 - freed_first);
	fake_until_closed(fd);
}

/* What came in one reply is given back with the last of it. */
static void what_came_together_is_a_view_each(void **state)
{
	static const struct {
		uint64_t off, len;
	} want[TOGETHER_NR] = {{128, 20}, {0, 0}, {4096, 10}, {0, 0}, {64, 5}};
	static const struct {
		uint64_t first;
		unsigned order[TOGETHER_NR];
	} frees[] = {{11, {0, 1, 2, 3, 4}}, {13, {2, 4, 3, 1, 0}}, {13, {0, 1, 4, 2, 3}}};
	struct rv_handle h[TOGETHER_NR];
	struct rv_result res[TOGETHER_NR];
	struct rv_opts o = {.then = RV_THEN_DETACH};
	struct fake_daemon f;

	(void)state;
	for (unsigned i = 0; i < TOGETHER_NR; i++)
		h[i] = fake_handle(i + 1);
	for (unsigned way = 0; way < RV_ARRAY_NR(frees); way++) {
		freed_first = frees[way].first;
		fake_start(&f, script_together);
		assert_int_equal(rv_get_many(f.c, h, TOGETHER_NR, &o, res), -ENOENT);
		for (unsigned i = 0; i < TOGETHER_NR; i++) {
			const uint8_t *p = res[i].buf.data;

			assert_int_equal(res[i].rc, i == 3 ? -ENOENT : 0);
			assert_int_equal(res[i].buf.len, want[i].len);
			for (uint64_t k = 0; k < want[i].len; k++)
				assert_int_equal(p[k], (want[i].off + k) % 251);
		}
		assert_string_equal(res[3].error, "gone: dropped");
		for (unsigned i = 0; i < TOGETHER_NR; i++)
			rv_buf_free(&res[frees[way].order[i]].buf);
		fake_stop(&f);
	}
}

/* A reply that no daemon would send ends the session, and each get with it. */
static void (*bad_reply)(int fd, struct rv_local_rep rep, struct rv_local_got got, int arena);

static void nothing_in_it(int fd, struct rv_local_rep rep, struct rv_local_got got, int arena)
{
	reply_together(fd, &rep, &got, 0, arena);
}

static void an_error(int fd, struct rv_local_rep rep, struct rv_local_got got, int arena)
{
	rep.rc = -EINVAL;
	reply_together(fd, &rep, &got, 1, arena);
}

static void no_memory_shown(int fd, struct rv_local_rep rep, struct rv_local_got got, int arena)
{
	(void)arena;
	rep.has_fd = 1;
	reply_together(fd, &rep, &got, 1, -1);
}

static void two_tokens(int fd, struct rv_local_rep rep, struct rv_local_got got, int arena)
{
	struct rv_local_got both[2] = {got, got};

	rep.has_fd = 1;
	both[1].id++;
	both[1].token++;
	reply_together(fd, &rep, both, 2, arena);
}

static void script_bad_reply(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_rep rep = fake_got(0, 0, 0, 0);
	struct rv_local_one one[2];
	struct rv_local_got got = {.token = 5, .len = 10};
	struct fake_request r;

	MUST(fake_next(fd, &r) && r.op == RV_LOCAL_GET_MANY && r.len == sizeof(one));
	memcpy(one, r.payload, sizeof(one));
	free(r.payload);
	rep.has_fd = 1;
	got.id = one[0].id;
	bad_reply(fd, rep, got, arena);
	close(arena);
	fake_until_closed(fd);
}

static void a_reply_of_many_that_makes_no_sense_ends_the_session(void **state)
{
	static void (*const bad[])(int, struct rv_local_rep, struct rv_local_got,
				   int) = {nothing_in_it, an_error, no_memory_shown, two_tokens};

	(void)state;
	for (unsigned i = 0; i < RV_ARRAY_NR(bad); i++) {
		struct rv_handle h[2] = {fake_handle(1), fake_handle(2)};
		struct rv_opts o = {.then = RV_THEN_DETACH};
		struct rv_result res[2];
		struct fake_daemon f;

		bad_reply = bad[i];
		fake_start(&f, script_bad_reply);
		assert_int_equal(rv_get_many(f.c, h, 2, &o, res), -EPROTO);
		assert_true(res[0].rc == -EPROTO && res[1].rc == -EPROTO);
		fake_stop(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_are_copied_to_the_caller_or_not_kept),
		cmocka_unit_test(bytes_are_put_into_a_buffer_of_the_session_without_a_copy),
		cmocka_unit_test(what_becomes_of_a_lease_is_said_with_its_get),
		cmocka_unit_test(a_late_reply_whose_lease_is_over_gives_back_its_bytes_alone),
		cmocka_unit_test(many_gets_are_under_way_together),
		cmocka_unit_test(many_gets_go_to_each_owner_in_few_requests),
		cmocka_unit_test(what_came_together_is_a_view_each),
		cmocka_unit_test(a_reply_of_many_that_makes_no_sense_ends_the_session),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
