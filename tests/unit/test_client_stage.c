/* Staging through librv: bytes through the socket, and copies made in shared memory. */
#include "dataplane/base/handle.h"

#include "control/client/rv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "control/local/local_proto.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_daemon.h"

/* Staging. */

#define BIG (9u << 20)

static void script_stage(int fd)
{
	struct rv_local_rep rep = {.token = 3, .len = BIG, .refusal = 1};
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_ALLOC);
	uint64_t at = 0;

	MUST(rq.len == BIG && rq.flags == RV_LOCAL_PLAIN);
	rep.id = rq.id;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	while (at < BIG) {
		struct fake_request r;

		MUST(fake_next(fd, &r));
		MUST(r.op == RV_LOCAL_WRITE && r.rq.token == 3 && r.rq.off == at);
		for (size_t i = 0; i < r.len; i++)
			MUST(r.payload[i] == (uint8_t)((at + i) % 249));
		at += r.len;
		free(r.payload);
	}
	rq = fake_expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == 3 && rq.len == BIG && rq.ttl_ns == 7 && rq.refs == 2);
	MUST(rq.flags == RV_LOCAL_SESSION);
	rep = (struct rv_local_rep){.id = rq.id, .worker = FAKE_WORKER, .local = 65};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	MUST(!fake_next(fd, &(struct fake_request){0})); /* nothing is left to give back */
}

static void data_arrives_whole_and_is_named(void **state)
{
	struct rv_how how = {0};
	struct rv_opts o = {.ttl_ns = 7, .refs = 2, .session = true, .how = &how};
	uint8_t *data = malloc(BIG);
	struct rv_handle h;
	struct fake_daemon f;

	(void)state;
	assert_non_null(data);
	for (unsigned i = 0; i < BIG; i++)
		data[i] = (uint8_t)(i % 249);
	fake_start(&f, script_stage);
	assert_int_equal(rv_register_data(f.c, data, BIG, &o, &h), 0);
	assert_int_equal(h.worker, FAKE_WORKER);
	assert_int_equal(h.local, 65);
	assert_false(how.pinned);
	assert_int_equal(how.plain, RV_PLAIN_BUDGET);
	fake_stop(&f);
	free(data);
}

static void script_bad_write(int fd)
{
	struct rv_local_rep rep = {.token = 3, .len = 5};
	struct rv_local_req rq;

	rep.id = fake_expect(fd, RV_LOCAL_ALLOC).id;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	rep = (struct rv_local_rep){.rc = -ERANGE};
	rep.id = fake_expect(fd, RV_LOCAL_WRITE).id;
	fake_answer(fd, RV_LOCAL_WRITE, &rep, "does not fit", -1);
	rep = (struct rv_local_rep){.worker = FAKE_WORKER, .local = 65};
	rep.id = fake_expect(fd, RV_LOCAL_COMMIT).id;
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	rq = fake_expect(fd, RV_LOCAL_DROP);
	MUST(rq.worker == FAKE_WORKER && rq.local == 65);
	fake_until_closed(fd);
}

static void a_slot_with_missing_bytes_is_dropped(void **state)
{
	struct rv_handle h = {1, 2};
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_bad_write);
	assert_int_equal(rv_register_data(f.c, "12345", 5, NULL, &h), -ERANGE);
	assert_string_equal(rv_last_error(), "does not fit");
	assert_int_equal(h.local, 2);
	fake_stop(&f);
}

static void script_alloc(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_ALLOC);
	struct rv_local_rep rep = fake_got(rq.id, 6, 4096, 100);
	uint8_t byte;

	MUST(rq.flags == RV_LOCAL_SHARED);
	rep.has_fd = rep.writable = rep.pinned = 1;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, arena);
	rq = fake_expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == 6 && rq.len == 40);
	MUST(pread(arena, &byte, 1, 4096 + 39) == 1 && byte == 0xab);
	close(arena);
	rep = (struct rv_local_rep){.id = rq.id, .worker = FAKE_WORKER, .local = 65, .pinned = 1};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	/* One that is shorter than asked for. */
	rep = fake_got(fake_expect(fd, RV_LOCAL_ALLOC).id, 7, 0, 99);
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 7);
	/* One that the session leaves behind. */
	rep = fake_got(fake_expect(fd, RV_LOCAL_ALLOC).id, 8, 0, 99);
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 8);
	MUST(!fake_next(fd, &(struct fake_request){0}));
}

static void a_shared_buffer_is_filled_in_place(void **state)
{
	struct rv_buf buf, other;
	struct rv_handle h;
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_alloc);
	assert_int_equal(rv_alloc_pinned(f.c, 100, &buf), 0);
	assert_true(buf.pinned && buf.writable);
	memset(buf.data, 0xab, 40);
	buf.len = 40;
	assert_int_equal(rv_register_pinned(f.c, &buf, NULL, &h), 0);
	assert_null(buf.data);
	assert_int_equal(rv_register_pinned(f.c, &buf, NULL, &h), -EINVAL);
	assert_int_equal(rv_alloc_pinned(f.c, 100, &buf), -EPROTO);
	assert_int_equal(rv_alloc_pinned(f.c, 99, &other), 0);
	fake_stop(&f);
}

/* A copy into registered memory: short ones go through the socket, others are made here. */

#define HERE RV_KIB(64)

static void expect_copy(int fd, int arena, uint64_t token, uint64_t len, bool here)
{
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_ALLOC);
	struct rv_local_rep rep = fake_got(rq.id, token, 4096, len);
	struct fake_request w;
	uint8_t got[HERE];

	MUST(rq.len == len && rq.flags == (here ? RV_LOCAL_SHARED : 0));
	rep.pinned = 1;
	rep.has_fd = here && len == HERE; /* the first time it is shown */
	rep.writable = here;
	rep.arena = here ? rep.arena : 0;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, rep.has_fd ? arena : -1);
	if (!here) {
		MUST(fake_next(fd, &w));
		MUST(w.op == RV_LOCAL_WRITE && w.len == len);
		free(w.payload);
	}
	rq = fake_expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == token && rq.len == len && rq.ttl_ns == 7);
	MUST(!here || pread(arena, got, HERE, 4096) == (ssize_t)HERE);
	for (size_t i = 0; here && i < HERE; i++)
		MUST(got[i] == (uint8_t)(i % 249));
	rep = (struct rv_local_rep){.id = rq.id,
				    .worker = FAKE_WORKER,
				    .local = 60 + token,
				    .pinned = 1};
	if (token == 3)
		rep.rc = -ENOSPC;
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
}

static void script_copies(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);

	for (unsigned i = 0; i < 4; i++)
		expect_copy(fd, arena, 4 + i, HERE, false);
	expect_copy(fd, arena, 1, HERE - 1, false);
	expect_copy(fd, arena, 2, HERE, true);
	expect_copy(fd, arena, 3, HERE + 1, true);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 3);
	close(arena);
	MUST(!fake_next(fd, &(struct fake_request){0}));
}

static void long_copies_into_registered_memory_are_made_here_but_for_the_first(void **state)
{
	static uint8_t data[HERE + 1];
	struct rv_opts o = {.ttl_ns = 7};
	struct fake_daemon f;
	struct rv_handle h;

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i % 249);
	fake_start(&f, script_copies);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(rv_register_data_pinned(f.c, data, HERE, &o, &h), 0);
		assert_int_equal(h.local, 64 + i);
	}
	assert_int_equal(rv_register_data_pinned(f.c, data, HERE - 1, &o, &h), 0);
	assert_int_equal(h.local, 61);
	assert_int_equal(rv_register_data_pinned(f.c, data, HERE, &o, &h), 0);
	assert_int_equal(h.local, 62);
	assert_int_equal(rv_register_data_pinned(f.c, data, HERE + 1, &o, &h), -ENOSPC);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(data_arrives_whole_and_is_named),
		cmocka_unit_test(a_slot_with_missing_bytes_is_dropped),
		cmocka_unit_test(a_shared_buffer_is_filled_in_place),
		cmocka_unit_test(
			long_copies_into_registered_memory_are_made_here_but_for_the_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
