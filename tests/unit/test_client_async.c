/*
 * Asynchronous calls against a scripted daemon.
 */
#include "dataplane/base/handle.h"

#include "control/client/rv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "control/client/ref.h"
#include "control/local/local_proto.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_daemon.h"

/* What a call's end looked like. */
struct end {
	unsigned called;
	int rc;
	char error[200];
	bool from_progress;
	struct rv_meta meta;
	struct rv_handle handle;
	struct rv_buf buf;
	void *data;
	uint64_t len, lease;
};

static _Thread_local bool progressing;

static void done(void *user, int rc)
{
	struct end *e = user;

	e->called++;
	e->rc = rc;
	e->from_progress = progressing;
	snprintf(e->error, sizeof(e->error), "%.*s", 199, rv_last_error());
}

static int progress(struct rv_client *c)
{
	int n;

	progressing = true;
	n = rv_progress(c);
	progressing = false;
	return n;
}

static bool readable(struct rv_client *c, int ms)
{
	struct pollfd p = {.fd = rv_event_fd(c), .events = POLLIN};

	assert_true(p.fd >= 0);
	return poll(&p, 1, ms) > 0;
}

/* With queues it comes back for a moment before it rests. */
static bool falls_quiet(struct rv_client *c)
{
	for (unsigned i = 0; i < 10000; i++) {
		assert_int_equal(progress(c), 0);
		if (!readable(c, 20))
			return true;
	}
	return false;
}

/* As an event loop does it. @return turns it took */
static unsigned run_until(struct rv_client *c, const struct end *e, unsigned nr)
{
	unsigned turns = 0;

	for (unsigned i = 0; i < nr; i++)
		for (; !e[i].called; turns++) {
			assert_true(readable(c, 10000));
			assert_true(progress(c) >= 0);
		}
	return turns;
}

/* A gate between test and script. */
static atomic_bool open_gate;

static void wait_at_gate(void)
{
	while (!atomic_exchange(&open_gate, false))
		usleep(200);
}

static void let_through(void)
{
	atomic_store(&open_gate, true);
}

/* Ends. */

static void script_two(int fd)
{
	struct rv_local_req one = fake_expect(fd, RV_LOCAL_METADATA);
	struct rv_local_req two = fake_expect(fd, RV_LOCAL_METADATA);
	struct rv_local_rep rep = {.id = two.id, .rc = -ENOENT};

	fake_answer(fd, RV_LOCAL_METADATA, &rep, "no such handle: released", -1);
	fake_answer_metadata(fd, &one);
	fake_until_closed(fd);
}

static void done_is_called_once_from_progress(void **state)
{
	struct fake_daemon f;
	struct end e[2] = {0};

	(void)state;
	fake_start(&f, script_two);
	e[1].meta.len = 5;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(rv_metadata_nb(f.c, fake_handle(i + 3), &e[i].meta, done, &e[i]),
				 0);
	assert_false(e[0].called);
	run_until(f.c, e, 2);
	assert_int_equal(e[0].called, 1);
	assert_int_equal(e[0].rc, 0);
	assert_int_equal(e[0].meta.len, 300);
	assert_true(e[0].from_progress);
	assert_string_equal(e[0].error, "");
	assert_int_equal(e[1].rc, -ENOENT);
	assert_string_equal(e[1].error, "no such handle: released");
	assert_int_equal(e[1].meta.len, 5); /* outputs stay untouched on failure */
	assert_int_equal(progress(f.c), 0);
	fake_stop(&f);
	assert_int_equal(e[0].called, 1);
	assert_int_equal(e[1].called, 1);
}

static void what_cannot_begin_says_so_at_once(void **state)
{
	struct rv_ref ref = {.handle = {5, 6}};
	struct fake_daemon f;
	struct rv_buf none = {0};
	struct rv_handle h;
	struct end e = {0};

	(void)state;
	fake_start(&f, fake_until_closed);
	assert_int_equal(rv_metadata_nb(NULL, fake_handle(1), &e.meta, done, &e), -EINVAL);
	assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), &e.meta, NULL, &e), -EINVAL);
	assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), NULL, done, &e), -EINVAL);
	assert_int_equal(rv_metadata_at_nb(f.c, NULL, NULL, &e.meta, done, &e), -EINVAL);
	assert_int_equal(rv_get_at_nb(f.c, &ref, NULL, NULL, &e.len, &e.lease, done, &e), -EINVAL);
	assert_int_equal(rv_get_into_nb(f.c, ref.handle, NULL, NULL, 1, &e.len, &e.lease, done, &e),
			 -EINVAL);
	assert_int_equal(rv_detach_nb(f.c, ref.handle, RV_NO_LEASE, done, &e), -EINVAL);
	assert_int_equal(rv_register_data_nb(f.c, NULL, 1, NULL, &h, done, &e), -EINVAL);
	assert_int_equal(rv_register_pinned_nb(f.c, &none, NULL, &h, done, &e), -EINVAL);
	assert_int_equal(rv_send_nb(f.c, "", "x", NULL, 0, NULL, done, &e), -EINVAL);
	assert_int_equal(rv_send_nb(f.c, "p", "_x", NULL, 0, NULL, done, &e), -EINVAL);
	assert_true(*rv_last_error());
	assert_int_equal(progress(f.c), 0);
	assert_int_equal(rv_progress(NULL), -EINVAL);
	assert_int_equal(rv_event_fd(NULL), -EINVAL);
	fake_stop(&f);
	assert_int_equal(e.called, 0);
}

/* Gets. */

static void script_gets(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);

	for (uint64_t i = 1; i <= 4; i++)
		fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, i, i * 10, 10 * i),
				i == 1 ? arena : -1);
	close(arena);
	fake_until_closed(fd);
}

static void gets_end_where_their_callers_said(void **state)
{
	struct rv_how how = {0};
	struct rv_opts o = {.how = &how};
	struct fake_daemon f;
	struct end e[4] = {0};
	uint8_t dst[64];

	(void)state;
	fake_start(&f, script_gets);
	assert_int_equal(
		rv_get_nb(f.c, fake_handle(1), &o, &e[0].data, &e[0].len, &e[0].lease, done, &e[0]),
		0);
	assert_int_equal(
		rv_get_pinned_nb(f.c, fake_handle(2), NULL, &e[1].buf, &e[1].lease, done, &e[1]),
		0);
	assert_int_equal(rv_get_into_nb(f.c, fake_handle(3), NULL, dst, sizeof(dst), &e[2].len,
					&e[2].lease, done, &e[2]),
			 0);
	assert_int_equal(rv_get_into_nb(f.c, fake_handle(4), NULL, dst, 39, &e[3].len, &e[3].lease,
					done, &e[3]),
			 0);
	run_until(f.c, e, 4);
	assert_int_equal(e[0].rc, 0);
	assert_int_equal(e[0].len, 10);
	assert_int_equal(((uint8_t *)e[0].data)[9], 19);
	assert_int_equal(e[0].lease, 1001);
	assert_string_equal(how.path, "ucx tcp");
	assert_int_equal(how.took, RV_TOOK_RDMA);
	rv_free(e[0].data);
	assert_int_equal(e[1].rc, 0);
	assert_int_equal(e[1].buf.len, 20);
	assert_int_equal(((uint8_t *)e[1].buf.data)[19], 39);
	rv_buf_free(&e[1].buf);
	assert_int_equal(e[2].rc, 0);
	assert_int_equal(e[2].len, 30);
	assert_int_equal(dst[29], 59);
	assert_int_equal(e[3].rc, -ERANGE);
	assert_int_equal(e[3].len, 40);
	assert_int_equal(e[3].lease, 0);
	fake_stop(&f);
}

/* What the name servers say: two addresses. */
int __wrap_rv_host_resolve(const char *host, char out[RV_LITERALS][RV_LITERAL_MAX],
			   const char **why);

int __wrap_rv_host_resolve(const char *host, char out[RV_LITERALS][RV_LITERAL_MAX],
			   const char **why)
{
	if (strcmp(host, "nowhere") == 0) {
		*why = "no such name";
		return -EHOSTUNREACH;
	}
	strcpy(out[0], "::1");
	strcpy(out[1], "127.0.0.1");
	return 2;
}

static struct rv_local_rep refuse_first(int fd, uint8_t op)
{
	struct rv_local_rep rep = {.rc = -EHOSTUNREACH};
	struct fake_request r;

	for (unsigned i = 0; i < 2; i++) {
		MUST(fake_next(fd, &r));
		MUST(r.op == op && r.rq.port == 7471);
		MUST(strcmp(r.rq.host, i ? "127.0.0.1" : "::1") == 0);
		MUST(op != RV_LOCAL_CALL || (r.len == 5 && memcmp(r.payload, "hello", 5) == 0));
		free(r.payload);
		rep.id = r.rq.id;
		if (!i)
			fake_answer(fd, op, &rep, "nobody there", -1);
	}
	rep.rc = 0;
	rep.len = 5;
	return rep;
}

static void script_second_address(int fd)
{
	struct rv_local_rep rep = refuse_first(fd, RV_LOCAL_METADATA);

	fake_answer(fd, RV_LOCAL_METADATA, &rep, NULL, -1);
	fake_until_closed(fd);
}

static void each_address_of_an_owner_is_tried(void **state)
{
	struct rv_ref ref = {.handle = {5, 6}, .port = 7471, .host = "two"};
	struct rv_ref nowhere = {.handle = {5, 6}, .port = 7471, .host = "nowhere"};
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	fake_start(&f, script_second_address);
	assert_int_equal(rv_metadata_at_nb(f.c, &nowhere, NULL, &e.meta, done, &e), -EHOSTUNREACH);
	assert_non_null(strstr(rv_last_error(), "no such name"));
	assert_int_equal(rv_metadata_at_nb(f.c, &ref, NULL, &e.meta, done, &e), 0);
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, 0);
	assert_int_equal(e.meta.len, 5);
	fake_stop(&f);
	assert_int_equal(e.called, 1);
}

static void script_addresses(int fd)
{
	struct rv_local_rep rep = {.rc = -EHOSTUNREACH};

	for (unsigned i = 0; i < 2; i++) {
		rep.id = fake_expect(fd, RV_LOCAL_METADATA).id;
		fake_answer(fd, RV_LOCAL_METADATA, &rep, "nobody there", -1);
	}
	fake_until_closed(fd);
}

static void an_owner_that_is_nowhere_is_told(void **state)
{
	struct rv_ref ref = {.handle = {5, 6}, .port = 7471, .host = "two"};
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	fake_start(&f, script_addresses);
	assert_int_equal(rv_metadata_at_nb(f.c, &ref, NULL, &e.meta, done, &e), 0);
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, -EHOSTUNREACH);
	assert_string_equal(e.error, "nobody there");
	fake_stop(&f);
}

static void script_slow_call(int fd)
{
	struct rv_local_req slow = fake_expect(fd, RV_LOCAL_METADATA);
	struct rv_local_rep rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, 1, 0, 100);
	int arena = fake_make_arena(F_SEAL_SHRINK);

	rep.single_use = 1;
	fake_answer_get(fd, rep, arena);
	close(arena);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 1);
	fake_answer_metadata(fd, &slow);
	fake_until_closed(fd);
}

/* A call may be under way for minutes; memory that was given back does not wait for it. */
static void a_slow_call_does_not_keep_arenas_mapped(void **state)
{
	struct fake_daemon f;
	struct end e[2] = {0};
	void *was;

	(void)state;
	fake_start(&f, script_slow_call);
	assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), &e[0].meta, done, &e[0]), 0);
	assert_int_equal(
		rv_get_pinned_nb(f.c, fake_handle(2), NULL, &e[1].buf, &e[1].lease, done, &e[1]),
		0);
	run_until(f.c, &e[1], 1);
	was = e[1].buf.data;
	assert_true(fake_is_mapped(was));
	assert_false(e[0].called);
	rv_buf_free(&e[1].buf);
	assert_false(fake_is_mapped(was));
	run_until(f.c, e, 1);
	fake_stop(&f);
}

/* Staging. */

#define BIG (3u << 20)

static void script_big(int fd)
{
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_ALLOC);
	struct rv_local_rep rep = {.id = rq.id, .token = 7, .len = rq.len, .pinned = 1};
	uint64_t at = 0;
	struct fake_request r;

	MUST(rq.len == BIG + 5);
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	for (;;) {
		MUST(fake_next(fd, &r));
		if (r.op != RV_LOCAL_WRITE)
			break;
		MUST(r.rq.token == 7 && r.rq.off == at && r.len <= (1u << 20));
		for (size_t i = 0; i < r.len; i++)
			MUST(r.payload[i] == (uint8_t)((at + i) % 249));
		at += r.len;
		free(r.payload);
	}
	MUST(r.op == RV_LOCAL_COMMIT && r.rq.token == 7 && at == BIG + 5);
	MUST(r.rq.ttl_ns == 99 && r.rq.refs == 3 && r.rq.flags == RV_LOCAL_SESSION);
	free(r.payload);
	rep = (struct rv_local_rep){.id = r.rq.id, .worker = FAKE_WORKER, .local = 12, .pinned = 1};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	fake_until_closed(fd);
}

static void data_goes_out_in_pieces_as_there_is_room(void **state)
{
	struct rv_how how = {0};
	struct rv_opts o = {.ttl_ns = 99, .refs = 3, .session = true, .how = &how};
	uint8_t *data = malloc(BIG + 5);
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	for (unsigned i = 0; i < BIG + 5; i++)
		data[i] = (uint8_t)(i % 249);
	fake_start(&f, script_big);
	assert_int_equal(rv_register_data_nb(f.c, data, BIG + 5, &o, &e.handle, done, &e), 0);
	o.ttl_ns = 1; /* copied */
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, 0);
	assert_int_equal(e.handle.local, 12);
	assert_true(how.pinned);
	fake_stop(&f);
	free(data);
}

static void script_refuse_write(int fd)
{
	struct rv_local_rep rep = {.id = fake_expect(fd, RV_LOCAL_ALLOC).id, .token = 7, .len = 4};

	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	rep = (struct rv_local_rep){.id = fake_expect(fd, RV_LOCAL_WRITE).id, .rc = -ERANGE};
	fake_answer(fd, RV_LOCAL_WRITE, &rep, "it does not fit", -1);
	rep = (struct rv_local_rep){.id = fake_expect(fd, RV_LOCAL_COMMIT).id,
				    .worker = FAKE_WORKER,
				    .local = 12};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	MUST(fake_expect(fd, RV_LOCAL_DROP).local == 12);
	fake_until_closed(fd);
}

static void a_copy_with_missing_bytes_is_dropped(void **state)
{
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	fake_start(&f, script_refuse_write);
	assert_int_equal(rv_register_data_nb(f.c, "abcd", 4, NULL, &e.handle, done, &e), 0);
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, -ERANGE);
	assert_string_equal(e.error, "it does not fit");
	assert_int_equal(e.handle.local, 0);
	fake_stop(&f);
}

static void script_shared(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_ALLOC);
	struct rv_local_rep rep = fake_got(rq.id, 3, 4096, 10);

	MUST(rq.flags == RV_LOCAL_SHARED);
	rep.has_fd = rep.writable = 1;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, arena);
	rq = fake_expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == 3 && rq.len == 10);
	rep = (struct rv_local_rep){.id = rq.id, .worker = FAKE_WORKER, .local = 4};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	close(arena);
	fake_until_closed(fd);
}

static void a_shared_buffer_is_named_without_waiting(void **state)
{
	struct fake_daemon f;
	struct end e[2] = {0};

	(void)state;
	fake_start(&f, script_shared);
	assert_int_equal(rv_alloc_pinned_nb(f.c, 10, &e[0].buf, done, &e[0]), 0);
	run_until(f.c, e, 1);
	assert_int_equal(e[0].rc, 0);
	memset(e[0].buf.data, 1, 10);
	assert_int_equal(rv_register_pinned_nb(f.c, &e[0].buf, NULL, &e[1].handle, done, &e[1]), 0);
	run_until(f.c, &e[1], 1);
	assert_int_equal(e[1].rc, 0);
	assert_int_equal(e[1].handle.local, 4);
	assert_null(e[0].buf.data);
	assert_null(e[0].buf.client);
	fake_stop(&f);
}

static void script_copy(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq;
	struct rv_local_rep rep;
	struct fake_request r;
	uint8_t last;

	for (unsigned i = 0; i < 4; i++) { /* to the arenas of everybody */
		rq = fake_expect(fd, RV_LOCAL_ALLOC);
		MUST(!rq.flags);
		rep = (struct rv_local_rep){.id = rq.id, .token = 9, .len = rq.len};
		fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
		do { /* in pieces */
			MUST(fake_next(fd, &r));
			free(r.payload);
		} while (r.op == RV_LOCAL_WRITE);
		MUST(r.op == RV_LOCAL_COMMIT);
		rep = (struct rv_local_rep){.id = r.rq.id, .worker = FAKE_WORKER, .local = 4};
		fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	}
	rq = fake_expect(fd, RV_LOCAL_ALLOC);
	rep = fake_got(rq.id, 3, 4096, rq.len);

	MUST(rq.flags == RV_LOCAL_SHARED && rq.len == RV_KIB(64));
	rep.has_fd = rep.writable = 1;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, arena);
	rq = fake_expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == 3 && rq.len == RV_KIB(64));
	MUST(pread(arena, &last, 1, 4096 + RV_KIB(64) - 1) == 1 && last == 0xcd);
	rep = (struct rv_local_rep){.id = rq.id, .worker = FAKE_WORKER, .local = 4};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	close(arena);
	MUST(!fake_next(fd, &(struct fake_request){0})); /* nothing is left to give back */
}

static void a_fifth_copy_into_registered_memory_is_made_in_a_turn(void **state)
{
	static uint8_t data[RV_KIB(64)];
	struct fake_daemon f;

	(void)state;
	memset(data, 0xcd, sizeof(data));
	fake_start(&f, script_copy);
	for (unsigned i = 0; i < 5; i++) {
		struct end e = {0};

		assert_int_equal(rv_register_data_pinned_nb(f.c, data, sizeof(data), NULL,
							    &e.handle, done, &e),
				 0);
		run_until(f.c, &e, 1);
		assert_int_equal(e.rc, 0);
		assert_int_equal(e.handle.local, 4);
	}
	fake_stop(&f);
}

/* Messages. */

/* Over the threshold: staged, named in the call, dropped behind it. */
static void script_staged_call(int fd)
{
	struct rv_local_rep rep = {.id = fake_expect(fd, RV_LOCAL_ALLOC).id,
				   .token = 7,
				   .len = FAKE_THRESHOLD + 1};
	struct rv_local_req rq;

	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	fake_expect(fd, RV_LOCAL_WRITE);
	rep = (struct rv_local_rep){.id = fake_expect(fd, RV_LOCAL_COMMIT).id,
				    .worker = FAKE_WORKER,
				    .local = 12};
	fake_answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	rq = fake_expect(fd, RV_LOCAL_CALL);
	MUST(rq.local == 12 && !strcmp(rq.name, "echo") && rq.worker == 123);
	rep = (struct rv_local_rep){.id = rq.id};
	fake_answer(fd, RV_LOCAL_CALL, &rep, "result", -1);
	MUST(fake_expect(fd, RV_LOCAL_DROP).local == 12);
	fake_until_closed(fd);
}

static void script_inline_call(int fd)
{
	struct rv_local_rep rep = refuse_first(fd, RV_LOCAL_CALL);

	fake_answer(fd, RV_LOCAL_CALL, &rep, "result", -1);
	fake_until_closed(fd);
}

static void a_call_is_tried_at_each_address_with_its_payload(void **state)
{
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	fake_start(&f, script_inline_call);
	assert_int_equal(
		rv_call_nb(f.c, "two:7471", "echo", "hello", 5, NULL, &e.data, &e.len, done, &e),
		0);
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, 0);
	assert_string_equal(e.data, "result");
	rv_free(e.data);
	fake_stop(&f);
}

static void a_call_brings_its_result(void **state)
{
	static const char big[FAKE_THRESHOLD + 1];
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	fake_start(&f, script_staged_call);
	assert_int_equal(
		rv_call_nb(f.c, "123", "echo", big, sizeof(big), NULL, &e.data, &e.len, done, &e),
		0);
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, 0);
	assert_int_equal(e.len, 6);
	assert_string_equal(e.data, "result");
	rv_free(e.data);
	fake_stop(&f);
}

/* Who waits for an edge after each turn, as many event loops do, is woken for each answer. */
static void script_metadata(int fd)
{
	struct fake_request r;

	while (fake_next(fd, &r)) {
		MUST(r.op == RV_LOCAL_METADATA);
		free(r.payload);
		if (r.rq.local % 3 == 0)
			usleep(100); /* it rests by then */
		fake_answer_metadata(fd, &r.rq);
	}
}

static void edges_are_enough(void **state)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
	struct fake_daemon f;
	struct rv_meta m;
	int ep = epoll_create1(EPOLL_CLOEXEC);

	(void)state;
	fake_start(&f, script_metadata);
	assert_int_equal(epoll_ctl(ep, EPOLL_CTL_ADD, rv_event_fd(f.c), &ev), 0);
	for (uint64_t i = 1; i <= 2000; i++) {
		struct end e = {0};

		assert_int_equal(rv_metadata_nb(f.c, fake_handle(i), &e.meta, done, &e), 0);
		if (i % 5 == 0) /* finds its answer by looking, perhaps */
			assert_int_equal(rv_metadata(f.c, fake_handle(i + 1), &m), 0);
		if (i % 2)
			assert_true(progress(f.c) >= 0);
		while (!e.called) {
			if (epoll_wait(ep, &ev, 1, 20000) != 1)
				fail_msg("no edge for call %u", (unsigned)i);
			assert_true(progress(f.c) >= 0);
		}
		assert_int_equal(e.meta.len, i * 100);
	}
	close(ep);
	fake_stop(&f);
}

/* Deadlines. */

static void script_late(int fd)
{
	struct rv_local_rep rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, 4, 0, 10);
	struct rv_local_req rq;
	int arena = fake_make_arena(F_SEAL_SHRINK);

	wait_at_gate();
	fake_answer_get(fd, rep, arena);
	close(arena);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 4);
	rq = fake_expect(fd, RV_LOCAL_DETACH);
	MUST(rq.lease_id == 1004 && rq.local == 3 && rq.id == 0);
	fake_answer_metadata(fd,
			     &(struct rv_local_req){.id = fake_expect(fd, RV_LOCAL_METADATA).id});
	fake_until_closed(fd);
}

static void a_deadline_wakes_the_loop_and_a_late_answer_is_given_back(void **state)
{
	struct rv_opts o = {.timeout_ns = RV_MS(10)};
	uint64_t began = rv_clock_ns();
	struct fake_daemon f;
	struct end e = {0};
	unsigned turns;

	(void)state;
	fake_start(&f, script_late);
	assert_int_equal(rv_get_pinned_nb(f.c, fake_handle(3), &o, &e.buf, &e.lease, done, &e), 0);
	turns = run_until(f.c, &e, 1);
	assert_int_equal(e.rc, -ETIMEDOUT);
	assert_true(*e.error);
	assert_true(rv_clock_ns() - began >= RV_MS(10));
	assert_in_range(turns, 1, 4); /* it slept in between */
	let_through();
	assert_true(readable(f.c, 10000));
	assert_int_equal(progress(f.c), 0);
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &e.meta), 0);
	fake_stop(&f);
	assert_int_equal(e.called, 1);
}

static void script_silent(int fd)
{
	struct fake_request r;

	while (fake_next(fd, &r))
		free(r.payload);
}

static void deadlines_pass_in_their_order(void **state)
{
	uint64_t soonest[64], latest[64], passed = 0;
	unsigned nr = 0;
	struct fake_daemon f;
	struct end e[64] = {0};

	(void)state;
	fake_start(&f, script_silent);
	for (unsigned i = 0; i < 64; i++) {
		struct rv_opts o = {.timeout_ns = RV_MS(1) + RV_MS(1) * ((i * 37) % 64)};
		struct rv_ref ref = {.handle = fake_handle(i + 1)};

		/* However long the machine lets us wait meanwhile. */
		soonest[i] = rv_clock_ns() + o.timeout_ns;
		assert_int_equal(rv_metadata_at_nb(f.c, &ref, &o, &e[i].meta, done, &e[i]), 0);
		latest[i] = rv_clock_ns() + o.timeout_ns;
	}
	while (nr < 64) {
		assert_true(readable(f.c, 10000));
		progress(f.c);
		nr = 0;
		for (unsigned i = 0; i < 64; i++) {
			nr += e[i].called;
			if (e[i].called)
				passed = rv_max_u64(passed, soonest[i]);
		}
		/* Those whose deadline is earlier than one that has passed have passed too. */
		for (unsigned i = 0; i < 64; i++)
			assert_true(e[i].called || latest[i] >= passed);
	}
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(e[i].rc, -ETIMEDOUT);
	fake_stop(&f);
}

/* Ends of the connection and of the session. */

static void script_die(int fd)
{
	for (unsigned i = 0; i < 8; i++)
		fake_expect(fd, RV_LOCAL_METADATA);
}

static void when_the_daemon_dies_each_is_told_once(void **state)
{
	struct fake_daemon f;
	struct end e[9] = {0};

	(void)state;
	fake_start(&f, script_die);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), &e[i].meta, done, &e[i]), 0);
	run_until(f.c, e, 8);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(e[i].called, 1);
		assert_int_equal(e[i].rc, -ENOTCONN);
		assert_string_equal(e[i].error, "the daemon closed the connection");
	}
	assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), &e[8].meta, done, &e[8]), -ENOTCONN);
	progress(f.c);
	assert_false(readable(f.c, 20)); /* nothing to do: no busy loop */
	fake_stop(&f);
	assert_int_equal(e[8].called, 0);
}

struct closer {
	struct end end;
	struct rv_client *c;
	int rc;
};

static void done_and_again(void *user, int rc)
{
	struct closer *k = user;

	done(&k->end, rc);
	assert_int_equal(rv_progress(k->c), 0);
	k->rc = rv_metadata_nb(k->c, fake_handle(1), &k->end.meta, done_and_again, k);
}

static void closing_cancels_what_is_outstanding(void **state)
{
	struct fake_daemon f;
	struct closer k[3] = {0};
	uint8_t *data = calloc(1, BIG);

	(void)state;
	fake_start(&f, script_silent);
	for (unsigned i = 0; i < 2; i++) {
		k[i].c = f.c;
		assert_int_equal(
			rv_metadata_nb(f.c, fake_handle(1), &k[i].end.meta, done_and_again, &k[i]),
			0);
	}
	k[2].c = f.c;
	assert_int_equal(
		rv_register_data_nb(f.c, data, BIG, NULL, &k[2].end.handle, done_and_again, &k[2]),
		0);
	fake_stop(&f);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(k[i].end.called, 1);
		assert_int_equal(k[i].end.rc, -ECANCELED);
		assert_int_equal(k[i].rc, -ENOTCONN); /* no new ones while it closes */
	}
	free(data);
}

/* A registration that is given up while its bytes are on the way. */
static void script_stuck(int fd)
{
	struct rv_local_rep rep = {.id = fake_expect(fd, RV_LOCAL_ALLOC).id,
				   .token = 7,
				   .len = BIG};
	struct fake_request r;

	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	wait_at_gate();
	/* What had begun is whole; then comes what is left: the buffer goes back. */
	MUST(fake_next(fd, &r) && r.op == RV_LOCAL_WRITE && r.len == 1u << 20);
	for (size_t i = 0; i < r.len; i++)
		MUST(r.payload[i] == 'a');
	free(r.payload);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 7);
	fake_answer_metadata(fd,
			     &(struct rv_local_req){.id = fake_expect(fd, RV_LOCAL_METADATA).id});
	fake_until_closed(fd);
}

static void bytes_are_not_looked_at_after_done(void **state)
{
	struct rv_opts o = {.timeout_ns = RV_MS(20)};
	uint8_t *data = malloc(BIG);
	struct fake_daemon f;
	struct end e = {0};

	(void)state;
	memset(data, 'a', BIG);
	fake_start(&f, script_stuck);
	assert_int_equal(rv_register_data_nb(f.c, data, BIG, &o, &e.handle, done, &e), 0);
	run_until(f.c, &e, 1);
	assert_int_equal(e.rc, -ETIMEDOUT);
	memset(data, 'b', BIG);
	free(data);
	let_through();
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &e.meta), 0);
	fake_stop(&f);
}

/* As many calls as one turn looks at. */
#define TURN 1024u

/* The answer to its first step is there when its deadline passes, and is looked at in the turn after that. */
static void script_first_step(int fd)
{
	struct rv_local_rep rep = {.token = 7, .len = 4096};

	for (unsigned i = 0; i < TURN; i++)
		fake_answer_metadata(
			fd, &(struct rv_local_req){.id = fake_expect(fd, RV_LOCAL_METADATA).id});
	rep.id = fake_expect(fd, RV_LOCAL_ALLOC).id;
	fake_answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	fake_answer_metadata(fd,
			     &(struct rv_local_req){.id = fake_expect(fd, RV_LOCAL_METADATA).id});
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 7);
	fake_until_closed(fd);
}

static void no_step_begins_after_the_deadline(void **state)
{
	struct rv_opts o = {.timeout_ns = RV_MS(1)};
	static struct end others[TURN];
	struct rv_meta meta;
	uint8_t data[4096] = {0};
	struct fake_daemon f;
	struct end e = {0};
	uint64_t began;

	(void)state;
	fake_start(&f, script_first_step);
	for (unsigned i = 0; i < TURN; i++)
		assert_int_equal(
			rv_metadata_nb(f.c, fake_handle(1), &others[i].meta, done, &others[i]), 0);
	began = rv_clock_ns();
	assert_int_equal(rv_register_data_nb(f.c, data, sizeof(data), &o, &e.handle, done, &e), 0);
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &meta), 0); /* it reads all answers */
	while (rv_clock_ns() - began < RV_MS(10) + RV_SEC(1)) /* a client waits a second longer */
		usleep(10000);
	progress(f.c);
	assert_int_equal(e.called, 0);
	progress(f.c);
	assert_int_equal(e.called, 1);
	assert_int_equal(e.rc, -ETIMEDOUT);
	for (unsigned i = 0; i < TURN; i++)
		assert_int_equal(others[i].called, 1);
	fake_stop(&f);
}

/* A daemon that answers before it has read what it answers. */
#define MANY 3000u

static void script_hasty(int fd)
{
	struct rv_local_rep rep = {.id = 1 + MANY + 1}; /* after HELLO and the others */
	struct fake_request r;

	wait_at_gate();
	fake_answer(fd, RV_LOCAL_CALL, &rep, NULL, -1);
	wait_at_gate();
	while (fake_next(fd, &r)) {
		MUST(r.op == RV_LOCAL_METADATA || r.op == RV_LOCAL_CALL);
		for (size_t i = 0; i < r.len; i++)
			MUST(r.payload[i] == 'a');
		free(r.payload);
		if (r.op == RV_LOCAL_METADATA)
			fake_answer_metadata(fd, &r.rq);
	}
}

static void an_answer_that_comes_too_early_does_no_harm(void **state)
{
	struct end *e = calloc(MANY + 1, sizeof(*e));
	uint8_t *data = malloc(FAKE_THRESHOLD);
	struct fake_daemon f;

	(void)state;
	memset(data, 'a', FAKE_THRESHOLD);
	fake_start(&f, script_hasty);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(rv_metadata_nb(f.c, fake_handle(i + 1), &e[i].meta, done, &e[i]),
				 0);
	assert_int_equal(rv_sync_nb(f.c, "123", "echo", data, FAKE_THRESHOLD, NULL, done, &e[MANY]),
			 0);
	let_through();
	run_until(f.c, &e[MANY], 1);
	assert_int_equal(e[MANY].rc, 0);
	memset(data, 'b', FAKE_THRESHOLD);
	free(data);
	let_through();
	run_until(f.c, e, MANY);
	fake_stop(&f);
	free(e);
}

/* Queues. */

static void script_gate_then_answer(int fd)
{
	struct fake_request r;

	wait_at_gate();
	while (fake_next(fd, &r)) {
		MUST(r.op == RV_LOCAL_METADATA);
		free(r.payload);
		fake_answer_metadata(fd, &r.rq);
	}
}

static void a_daemon_that_does_not_read_fills_a_queue_that_has_an_end(void **state)
{
	enum { MOST = 30000 };
	struct end *e = calloc(MOST, sizeof(*e));
	struct fake_daemon f;
	uint64_t began;
	unsigned nr = 0;
	int rc = 0;

	(void)state;
	fake_start(&f, script_gate_then_answer);
	began = rv_clock_ns();
	while (nr < MOST &&
	       !(rc = rv_metadata_nb(f.c, fake_handle(nr + 1), &e[nr].meta, done, &e[nr])))
		nr++;
	assert_int_equal(rc, -EAGAIN);
	assert_true(*rv_last_error());
	assert_true(nr >= 16384 && nr < MOST);
	assert_true(rv_clock_ns() - began < RV_SEC(20));
	assert_false(readable(f.c, 0));
	let_through();
	/* A blocking call from here has its place behind them, and must read their answers meanwhile. */
	assert_int_equal(rv_metadata(f.c, fake_handle(7), &e[nr].meta), 0);
	assert_int_equal(e[nr].meta.len, 700);
	run_until(f.c, e, nr);
	for (unsigned i = 0; i < nr; i++) {
		assert_int_equal(e[i].rc, 0);
		assert_int_equal(e[i].called, 1);
		assert_int_equal(e[i].meta.len, (i + 1) * 100);
	}
	fake_stop(&f);
	free(e);
}

/* Other threads. */

static void script_echo(int fd)
{
	struct fake_request r;

	while (fake_next(fd, &r)) {
		MUST(r.op == RV_LOCAL_METADATA);
		free(r.payload);
		fake_answer_metadata(fd, &r.rq);
	}
}

struct blocker {
	pthread_t thread;
	struct rv_client *c;
	uint64_t local;
	atomic_bool stop;
};

static void *block(void *arg)
{
	struct blocker *b = arg;
	struct rv_meta m;

	for (unsigned i = 0; i < 500 || !atomic_load(&b->stop); i++) {
		MUST(rv_metadata(b->c, fake_handle(b->local), &m) == 0);
		MUST(m.len == b->local * 100);
	}
	return NULL;
}

/* Whichever thread reads an answer, the loop sees it: no answer waits for another event. */
static void blocking_and_asynchronous_calls_share_a_session(void **state)
{
	enum { ROUNDS = 300, EACH = 8 };
	struct blocker b[2];
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_echo);
	for (unsigned i = 0; i < 2; i++) {
		b[i] = (struct blocker){.c = f.c, .local = 50 + i};
		assert_int_equal(pthread_create(&b[i].thread, NULL, block, &b[i]), 0);
	}
	for (unsigned r = 0; r < ROUNDS; r++) {
		struct end e[EACH] = {0};

		for (unsigned i = 0; i < EACH; i++)
			assert_int_equal(
				rv_metadata_nb(f.c, fake_handle(i + 1), &e[i].meta, done, &e[i]),
				0);
		run_until(f.c, e, EACH);
		for (unsigned i = 0; i < EACH; i++)
			assert_int_equal(e[i].meta.len, (i + 1) * 100);
	}
	for (unsigned i = 0; i < 2; i++)
		atomic_store(&b[i].stop, true);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(b[i].thread, NULL);
	fake_stop(&f);
}

/* The reader of both answers is a blocking call; the second is in the socket already when it leaves. */
static void script_pair(int fd)
{
	struct rv_local_req one = fake_expect(fd, RV_LOCAL_METADATA);
	struct rv_local_req two = fake_expect(fd, RV_LOCAL_METADATA);

	fake_answer_metadata(fd, &two);
	fake_answer_metadata(fd, &one);
	fake_until_closed(fd);
}

static void an_answer_another_thread_read_wakes_the_loop(void **state)
{
	struct fake_daemon f;
	struct end e = {0};
	struct rv_meta m;

	(void)state;
	fake_start(&f, script_pair);
	assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), &e.meta, done, &e), 0);
	assert_int_equal(rv_metadata(f.c, fake_handle(2), &m), 0);
	assert_int_equal(m.len, 200);
	assert_false(e.called);
	run_until(f.c, &e, 1);
	assert_int_equal(e.meta.len, 100);
	assert_true(falls_quiet(f.c));
	fake_stop(&f);
}

static void done_with_blocking_call(void *user, int rc)
{
	struct closer *k = user;
	struct rv_meta m;

	done(&k->end, rc);
	k->rc = rv_metadata(k->c, fake_handle(9), &m);
}

static void a_callback_may_make_blocking_calls(void **state)
{
	struct fake_daemon f;
	struct closer k = {0};

	(void)state;
	fake_start(&f, script_echo);
	k.c = f.c;
	assert_int_equal(
		rv_metadata_nb(f.c, fake_handle(1), &k.end.meta, done_with_blocking_call, &k), 0);
	run_until(f.c, &k.end, 1);
	assert_int_equal(k.rc, 0);
	fake_stop(&f);
}

static void a_forked_child_is_refused(void **state)
{
	struct fake_daemon f;
	struct end e[2] = {0};
	int status;
	pid_t pid;

	(void)state;
	fake_start(&f, script_echo);
	assert_int_equal(rv_metadata_nb(f.c, fake_handle(1), &e[0].meta, done, &e[0]), 0);
	pid = fork();
	if (!pid) {
		MUST(rv_progress(f.c) == -EOWNERDEAD);
		MUST(rv_event_fd(f.c) == -EOWNERDEAD);
		MUST(rv_metadata_nb(f.c, fake_handle(1), &e[1].meta, done, &e[1]) == -EOWNERDEAD);
		rv_close(f.c);
		MUST(!e[0].called && !e[1].called);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	run_until(f.c, e, 1);
	assert_int_equal(e[0].rc, 0);
	fake_stop(&f);
}

/* The lease ends with its get. */
static void script_then(int fd)
{
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_GET);
	struct rv_local_rep rep = {.id = rq.id};

	MUST(rq.flags == RV_LOCAL_THEN_DETACH);
	fake_answer(fd, RV_LOCAL_GET, &rep, NULL, -1);
	rq = fake_expect(fd, RV_LOCAL_GET);
	MUST(rq.flags == (RV_LOCAL_THEN_RELEASE | RV_LOCAL_INTO));
	rep.id = rq.id;
	fake_answer(fd, RV_LOCAL_GET, &rep, NULL, -1);
	fake_until_closed(fd);
}

static void what_becomes_of_a_lease_is_said_with_its_get(void **state)
{
	struct end e[2] = {{.lease = 77}, {.lease = 77}};
	struct rv_opts o = {.then = RV_THEN_DETACH};
	struct fake_daemon f;
	char own[4];

	(void)state;
	fake_start(&f, script_then);
	assert_int_equal(
		rv_get_pinned_nb(f.c, fake_handle(1), &o, &e[0].buf, &e[0].lease, done, &e[0]), 0);
	o.then = RV_THEN_RELEASE;
	assert_int_equal(rv_get_into_nb(f.c, fake_handle(1), &o, own, sizeof(own), &e[1].len,
					&e[1].lease, done, &e[1]),
			 0);
	o.then = RV_THEN_KEEP; /* it was copied */
	run_until(f.c, e, 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(e[i].rc, 0);
		assert_int_equal(e[i].lease, 0);
	}
	rv_buf_free(&e[0].buf);
	fake_stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_becomes_of_a_lease_is_said_with_its_get),
		cmocka_unit_test(edges_are_enough),
		cmocka_unit_test(done_is_called_once_from_progress),
		cmocka_unit_test(what_cannot_begin_says_so_at_once),
		cmocka_unit_test(gets_end_where_their_callers_said),
		cmocka_unit_test(a_slow_call_does_not_keep_arenas_mapped),
		cmocka_unit_test(each_address_of_an_owner_is_tried),
		cmocka_unit_test(an_owner_that_is_nowhere_is_told),
		cmocka_unit_test(data_goes_out_in_pieces_as_there_is_room),
		cmocka_unit_test(a_copy_with_missing_bytes_is_dropped),
		cmocka_unit_test(a_shared_buffer_is_named_without_waiting),
		cmocka_unit_test(a_fifth_copy_into_registered_memory_is_made_in_a_turn),
		cmocka_unit_test(a_call_brings_its_result),
		cmocka_unit_test(a_call_is_tried_at_each_address_with_its_payload),
		cmocka_unit_test(a_deadline_wakes_the_loop_and_a_late_answer_is_given_back),
		cmocka_unit_test(deadlines_pass_in_their_order),
		cmocka_unit_test(when_the_daemon_dies_each_is_told_once),
		cmocka_unit_test(closing_cancels_what_is_outstanding),
		cmocka_unit_test(bytes_are_not_looked_at_after_done),
		cmocka_unit_test(no_step_begins_after_the_deadline),
		cmocka_unit_test(an_answer_that_comes_too_early_does_no_harm),
		cmocka_unit_test(a_daemon_that_does_not_read_fills_a_queue_that_has_an_end),
		cmocka_unit_test(blocking_and_asynchronous_calls_share_a_session),
		cmocka_unit_test(an_answer_another_thread_read_wakes_the_loop),
		cmocka_unit_test(a_callback_may_make_blocking_calls),
		cmocka_unit_test(a_forked_child_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
