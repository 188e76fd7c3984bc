/* librv's session: requests and replies, views of arenas, forks; and references as text. */
#include "dataplane/base/handle.h"

#include "control/client/rv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "control/local/local_proto.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_daemon.h"

/* Requests and replies. */

struct asker {
	pthread_t thread;
	struct rv_client *c;
	uint64_t local, first, calls;
	int rc;
	char error[200];
	struct rv_meta meta;
};

static void *ask(void *arg)
{
	struct asker *a = arg;

	for (uint64_t i = 0; i < a->calls; i++) {
		a->rc = rv_metadata(a->c, fake_handle(a->local), &a->meta);
		snprintf(a->error, sizeof(a->error), "%.*s", 199, rv_last_error());
		if (!a->rc)
			MUST(a->meta.len == a->local * 100);
	}
	return NULL;
}

static void run_askers(struct fake_daemon *f, struct asker *a, unsigned nr, uint64_t calls)
{
	for (unsigned i = 0; i < nr; i++) {
		a[i] = (struct asker){.c = f->c, .local = i + 1, .calls = calls};
		assert_int_equal(pthread_create(&a[i].thread, NULL, ask, &a[i]), 0);
	}
	for (unsigned i = 0; i < nr; i++)
		pthread_join(a[i].thread, NULL);
}

static void script_backwards(int fd)
{
	struct rv_local_req rq[4];

	for (unsigned i = 0; i < 4; i++)
		rq[i] = fake_expect(fd, RV_LOCAL_METADATA);
	for (unsigned i = 4; i-- > 0;)
		fake_answer_metadata(fd, &rq[i]);
	fake_until_closed(fd);
}

static void replies_out_of_order_find_their_callers(void **state)
{
	struct fake_daemon f;
	struct asker a[4];

	(void)state;
	fake_start(&f, script_backwards);
	run_askers(&f, a, 4, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(a[i].rc, 0);
		assert_int_equal(a[i].meta.refcount, i + 1);
	}
	fake_stop(&f);
}

/* Holds up to two requests back while others are sure to come, and answers the newest first. */
#define ASKERS 8u
#define CALLS  400u

static void script_shuffle(int fd)
{
	struct rv_local_req held[3];
	unsigned nr = 0, turn = 0, seen = 0;
	struct fake_request r;

	while (fake_next(fd, &r)) {
		MUST(r.op == RV_LOCAL_METADATA);
		free(r.payload);
		held[nr++] = r.rq;
		if (++seen < ASKERS * CALLS - CALLS * 2 && nr < 1 + turn % 3)
			continue;
		turn++;
		while (nr)
			fake_answer_metadata(fd, &held[--nr]);
	}
}

static void many_threads_share_one_socket(void **state)
{
	struct fake_daemon f;
	struct asker a[ASKERS];

	(void)state;
	fake_start(&f, script_shuffle);
	run_askers(&f, a, ASKERS, CALLS);
	for (unsigned i = 0; i < ASKERS; i++)
		assert_int_equal(a[i].rc, 0);
	fake_stop(&f);
}

static void script_refuse(int fd)
{
	struct rv_local_rep rep = {.rc = -ENOENT};

	rep.id = fake_expect(fd, RV_LOCAL_METADATA).id;
	fake_answer(fd, RV_LOCAL_METADATA, &rep, "no such handle: released", -1);
	rep.id = fake_expect(fd, RV_LOCAL_METADATA).id;
	rep.rc = -EAGAIN;
	fake_answer(fd, RV_LOCAL_METADATA, &rep, NULL, -1);
	fake_until_closed(fd);
}

static void a_refusal_brings_its_text(void **state)
{
	struct rv_meta m = {.len = 3};
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_refuse);
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &m), -ENOENT);
	assert_string_equal(rv_last_error(), "no such handle: released");
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &m), -EAGAIN);
	assert_string_equal(rv_last_error(), "busy");
	assert_int_equal(m.len, 3); /* outputs stay untouched on failure */
	fake_stop(&f);
}

/* What was said before the end is heard, whichever way it came. */
static void script_last_words(int fd)
{
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_METADATA);

	fake_answer_metadata(fd, &rq);
}

static void an_answer_before_the_end_is_had(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 200; i++) {
		struct fake_daemon f;
		struct rv_meta m;

		fake_start(&f, script_last_words);
		assert_int_equal(rv_metadata(f.c, fake_handle(3), &m), 0);
		assert_int_equal(m.len, 300);
		assert_int_equal(rv_metadata(f.c, fake_handle(3), &m), -ENOTCONN);
		fake_stop(&f);
	}
}

static void script_die(int fd)
{
	for (unsigned i = 0; i < 4; i++)
		fake_expect(fd, RV_LOCAL_METADATA);
}

static void when_the_daemon_dies_everybody_is_told(void **state)
{
	struct rv_handle h;
	struct asker a[4];
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_die);
	run_askers(&f, a, 4, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(a[i].rc, -ENOTCONN);
		assert_string_equal(a[i].error, "the daemon closed the connection");
	}
	assert_int_equal(rv_register_data(f.c, "x", 1, NULL, &h), -ENOTCONN);
	assert_string_equal(rv_last_error(), "the daemon closed the connection");
	fake_stop(&f);
}

static void script_garbage(int fd)
{
	static const char junk[] = "HTTP/1.1 400 Bad Request\r\n\r\n";

	fake_expect(fd, RV_LOCAL_METADATA);
	MUST(write(fd, junk, sizeof(junk)) == sizeof(junk));
	fake_until_closed(fd);
}

static void another_protocol_is_not_believed(void **state)
{
	struct rv_meta m;
	struct fake_daemon f;

	(void)state;
	fake_start(&f, script_garbage);
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &m), -EPROTO);
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &m), -EPROTO);
	fake_stop(&f);
}

static void nobody_listens(void **state)
{
	struct rv_client *c = NULL;

	(void)state;
	assert_int_equal(rv_open("/tmp/rv-client-nobody/sock", &c), -ENOTCONN);
	assert_non_null(strstr(rv_last_error(), "/tmp/rv-client-nobody/sock"));
	assert_null(c);
}

static void script_late(int fd)
{
	struct rv_local_rep rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, 4, 0, 10);
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_METADATA);
	int arena = fake_make_arena(F_SEAL_SHRINK);

	fake_answer_get(fd, rep, arena);
	close(arena);
	fake_answer_metadata(fd, &rq);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 4);
	rq = fake_expect(fd, RV_LOCAL_DETACH);
	MUST(rq.lease_id == 1004 && rq.local == 3 && rq.id == 0);
	fake_until_closed(fd);
}

static void what_a_late_reply_brings_is_given_back(void **state)
{
	struct rv_opts o = {.timeout_ns = RV_MS(10)};
	struct rv_buf buf;
	struct rv_meta m;
	struct fake_daemon f;
	uint64_t lease;

	(void)state;
	fake_start(&f, script_late);
	assert_int_equal(
		rv_get_pinned_at(f.c, &(struct rv_ref){.handle = fake_handle(3)}, &o, &buf, &lease),
		-ETIMEDOUT);
	assert_int_equal(rv_metadata(f.c, fake_handle(2), &m), 0);
	fake_stop(&f);
}

/* A request although nothing is served here, and then a reply that names the memory it came in. */
static void script_unasked(int fd)
{
	struct rv_local_rep rep = fake_got(42, 6, 1000, 500);
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq = fake_expect(fd, RV_LOCAL_GET);
	struct fake_request r;

	rep.has_fd = true;
	rep.path = RV_LOCAL_UNARY;
	snprintf(rep.path_name, sizeof(rep.path_name), "echo");
	fake_request(fd, &rep, NULL, arena);
	close(arena);
	fake_answer_get(fd, fake_got(rq.id, 7, 0, 300), -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 6);
	MUST(fake_next(fd, &r) && r.op == RV_LOCAL_ANSWER);
	MUST(r.rq.token == 42 && r.rq.flags == RV_LOCAL_FAILED);
	MUST(r.len && !memcmp(r.payload, "this program serves no handler", r.len));
	free(r.payload);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 7);
	fake_until_closed(fd);
}

static void a_request_that_nobody_serves_is_refused_and_its_memory_known(void **state)
{
	struct fake_daemon f;
	struct rv_buf buf;
	uint64_t lease;

	(void)state;
	fake_start(&f, script_unasked);
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &buf, &lease), 0);
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(((uint8_t *)buf.data)[i], i % 251);
	rv_buf_free(&buf);
	fake_stop(&f);
}

/* Memory. */

static void script_views(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);

	fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, 1, 1000, 500), arena);
	close(arena);
	fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, 2, 0, FAKE_ARENA_LEN), -1);
	fake_until_closed(fd);
}

static void an_arena_is_shown_once_and_named_again(void **state)
{
	struct rv_how how = {0};
	struct rv_opts o = {.how = &how};
	struct rv_buf a, b;
	struct fake_daemon f;
	uint64_t lease;

	(void)state;
	fake_start(&f, script_views);
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), &o, &a, &lease), 0);
	assert_int_equal(a.len, 500);
	assert_int_equal(lease, 1001);
	assert_int_equal(how.took, RV_TOOK_RDMA);
	assert_string_equal(how.path, "ucx tcp");
	for (unsigned i = 0; i < 500; i++)
		assert_int_equal(((uint8_t *)a.data)[i], (1000 + i) % 251);
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &b, &lease), 0);
	assert_ptr_equal((uint8_t *)b.data + 1000, a.data);
	rv_buf_free(&a);
	assert_null(a.data);
	rv_buf_free(&a);
	rv_buf_free(&b);
	fake_stop(&f);
}

static struct {
	uint64_t off, len, arena_len;
	int seals;
	bool show;
} bad[] = {
	{1, FAKE_ARENA_LEN, FAKE_ARENA_LEN, F_SEAL_SHRINK, true},
	{UINT64_MAX, 2, FAKE_ARENA_LEN, F_SEAL_SHRINK, true},
	{0, UINT64_MAX, FAKE_ARENA_LEN, F_SEAL_SHRINK, true},
	{FAKE_ARENA_LEN + 1, 1, FAKE_ARENA_LEN, F_SEAL_SHRINK, true},
	{0, 1, FAKE_ARENA_LEN + 4096, F_SEAL_SHRINK, true},
	{0, 1, 0, F_SEAL_SHRINK, true},
	{0, 1, UINT64_MAX, F_SEAL_SHRINK, true},
	{0, 1, FAKE_ARENA_LEN, F_SEAL_GROW, true},
	{0, 1, FAKE_ARENA_LEN, F_SEAL_SHRINK, false},
};

static void script_bad(int fd)
{
	for (unsigned i = 0; i < RV_ARRAY_NR(bad); i++) {
		struct rv_local_rep rep =
			fake_got(fake_expect(fd, RV_LOCAL_GET).id, 50 + i, bad[i].off, bad[i].len);
		int arena = bad[i].show ? fake_make_arena(bad[i].seals) : -1;

		rep.arena = 100 + i;
		rep.arena_len = bad[i].arena_len;
		fake_answer_get(fd, rep, arena);
		if (arena >= 0)
			close(arena);
		MUST(fake_expect(fd, RV_LOCAL_FREE).token == 50 + i);
		MUST(fake_expect(fd, RV_LOCAL_DETACH).lease_id == 1050 + i);
	}
	fake_until_closed(fd);
}

static void memory_that_cannot_be_trusted_is_refused_and_given_back(void **state)
{
	struct rv_buf buf = {.len = 3};
	struct fake_daemon f;
	uint64_t lease = 8;

	(void)state;
	fake_start(&f, script_bad);
	for (unsigned i = 0; i < RV_ARRAY_NR(bad); i++) {
		assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &buf, &lease), -EPROTO);
		assert_true(strlen(rv_last_error()) > 0);
	}
	assert_int_equal(buf.len, 3);
	assert_int_equal(lease, 8);
	fake_stop(&f);
}

static void script_single_use(int fd)
{
	int arena = fake_make_arena(F_SEAL_SHRINK);
	struct rv_local_rep rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, 1, 0, 100);
	struct rv_local_req second, rq;

	rep.single_use = 1;
	fake_answer_get(fd, rep, arena);
	/* The second get is under way while the view of the first is given back. */
	second = fake_expect(fd, RV_LOCAL_GET);
	rq = fake_expect(fd, RV_LOCAL_FREE);
	MUST(rq.token == 1);
	rq = fake_expect(fd, RV_LOCAL_METADATA);
	fake_answer_metadata(fd, &rq);
	rep = fake_got(second.id, 2, 0, 100);
	rep.single_use = 1;
	fake_answer_get(fd, rep, -1);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 2);
	/* Now it was unmapped, so it is shown again. */
	rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, 3, 0, 100);
	rep.single_use = 1;
	fake_answer_get(fd, rep, arena);
	close(arena);
	fake_until_closed(fd);
}

struct getter {
	struct rv_client *c;
	struct rv_buf buf;
	_Atomic bool begun;
	int rc;
};

static void *get_one(void *arg)
{
	struct getter *g = arg;
	uint64_t lease;

	g->begun = true;
	g->rc = rv_get_pinned(g->c, fake_handle(1), NULL, &g->buf, &lease);
	return NULL;
}

static void a_single_use_arena_goes_with_its_last_view(void **state)
{
	struct getter g = {0};
	struct rv_buf a;
	struct rv_meta m;
	struct fake_daemon f;
	pthread_t t;
	uint64_t lease;
	void *was;

	(void)state;
	fake_start(&f, script_single_use);
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &a, &lease), 0);
	was = a.data;
	g.c = f.c;
	assert_int_equal(pthread_create(&t, NULL, get_one, &g), 0);
	while (!g.begun)
		usleep(1000);
	usleep(50000);
	rv_buf_free(&a);
	assert_true(fake_is_mapped(was)); /* the reply under way may name it without showing it */
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &m), 0);
	pthread_join(t, NULL);
	assert_int_equal(g.rc, 0);
	assert_ptr_equal(g.buf.data, was);
	rv_buf_free(&g.buf);
	assert_false(fake_is_mapped(was));
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &a, &lease), 0);
	assert_int_equal(((uint8_t *)a.data)[99], 99);
	fake_stop(&f);
}

/* One that this session may write stays mapped, and its descriptor, when it comes again, is not needed. */
static void script_writable(int fd)
{
	int arena = -1;

	for (unsigned i = 0; i < 4; i++) {
		struct rv_local_rep rep = fake_got(fake_expect(fd, RV_LOCAL_GET).id, i + 1, 0, 100);

		if (i == 0)
			arena = fake_make_arena(F_SEAL_SHRINK); /* the caller counts it */
		rep.single_use = rep.writable = 1;
		rep.arena = i < 2 ? 9 : 10;
		fake_answer_get(fd, rep, arena);
		MUST(fake_expect(fd, RV_LOCAL_FREE).token == i + 1);
	}
	fake_until_closed(fd);
	close(arena);
}

static void the_last_writable_single_use_arena_stays_mapped(void **state)
{
	struct rv_buf a;
	struct fake_daemon f;
	uint64_t lease;
	void *first = NULL, *second = NULL;
	int fds, next;

	(void)state;
	fake_start(&f, script_writable);
	fds = open("/dev/null", O_RDONLY);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &a, &lease), 0);
		assert_int_equal(((uint8_t *)a.data)[99], 99);
		if (i == 0)
			first = a.data;
		if (i == 2)
			second = a.data;
		assert_ptr_equal(a.data, i < 2 ? first : second);
		assert_true(i == 3 || fake_is_mapped(first)); /* until the next is idle */
		rv_buf_free(&a);
		assert_true(fake_is_mapped(i < 2 ? first : second));
	}
	assert_false(fake_is_mapped(first));
	next = open("/dev/null", O_RDONLY);
	assert_int_equal(next, fds + 2); /* the daemon's own; no descriptor was kept */
	close(next);
	close(fds);
	fake_stop(&f);
}

/* Forks. */

static void script_wait(int fd)
{
	struct rv_local_req rq;
	int arena = fake_make_arena(F_SEAL_SHRINK);

	fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, 1, 0, 100), arena);
	close(arena);
	rq = fake_expect(fd, RV_LOCAL_METADATA);
	fake_answer_metadata(fd, &rq);
	fake_until_closed(fd);
}

static int in_the_child(struct fake_daemon *f, struct rv_buf *buf)
{
	struct rv_meta m;

	MUST(rv_metadata(f->c, fake_handle(1), &m) == -EOWNERDEAD);
	MUST(strstr(rv_last_error(), "forked"));
	MUST(!fake_is_mapped(buf->data));
	rv_buf_free(buf);
	rv_close(f->c);
	return 0;
}

static void a_forked_child_is_refused_and_harms_nobody(void **state)
{
	struct rv_buf buf;
	struct rv_meta m;
	struct fake_daemon f;
	uint64_t lease;
	int status;
	pid_t pid;

	(void)state;
	fake_start(&f, script_wait);
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &buf, &lease), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(in_the_child(&f, &buf));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(rv_metadata(f.c, fake_handle(4), &m), 0);
	assert_int_equal(m.len, 400);
	fake_stop(&f);
}

/* Text. */

static const struct {
	const char *text, *host;
	uint16_t port;
	uint64_t worker, local;
} refs[] = {
	{"18446744073709551617", "", 0, 1, 1},
	{"340282366920938463463374607431768211455", "", 0, UINT64_MAX, UINT64_MAX},
	{"rv://10.0.0.1:7471/64", "10.0.0.1", 7471, 0, 64},
	{"rv://node-1.example.org:1/64", "node-1.example.org", 1, 0, 64},
	{"rv://[::1]:65535/64", "::1", 65535, 0, 64},
	{"rv://[fe80::1%eth0]:7471/64", "fe80::1%eth0", 7471, 0, 64},
};

static void references_are_read_and_written(void **state)
{
	char text[RV_REF_TEXT_MAX];
	struct rv_ref r;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(refs); i++) {
		assert_int_equal(rv_ref_parse(refs[i].text, &r), 0);
		assert_string_equal(r.host, refs[i].host);
		assert_int_equal(r.port, refs[i].port);
		assert_int_equal(r.handle.worker, refs[i].worker);
		assert_int_equal(r.handle.local, refs[i].local);
		assert_int_equal(rv_ref_format(&r, text, sizeof(text)), strlen(refs[i].text));
		assert_string_equal(text, refs[i].text);
		assert_int_equal(rv_ref_format(&r, text, strlen(refs[i].text)), -ERANGE);
	}
}

static const char *const no_refs[] = {
	"",
	"x",
	"-1",
	"+1",
	"1 ",
	" 1",
	"0x10",
	"1.0",
	"340282366920938463463374607431768211456",
	"rv://",
	"rv:///1",
	"rv://h/1",
	"rv://h:/1",
	"rv://h:0/1",
	"rv://h:65536/1",
	"rv://h:1",
	"rv://h:1/",
	"rv://h:1/x",
	"rv://h:1/1/2",
	"rv://:1/1",
	"rv://::1:7471/1",
	"rv://[::1]/1",
	"rv://[::1:7471/1",
	"rv://[]:1/1",
	"rv://h h:1/1",
	"rv://h:1 /1",
	"rv://h\n:1/1",
	"RV://h:1/1",
	"rv://h:+1/1",
	"rv://h:1/+1",
	"rv://h:000001/1",
};

static void what_is_no_reference_is_refused(void **state)
{
	struct rv_ref r;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(no_refs); i++)
		if (rv_ref_parse(no_refs[i], &r) == 0)
			fail_msg("%s", no_refs[i]);
	assert_int_equal(rv_ref_parse(NULL, &r), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replies_out_of_order_find_their_callers),
		cmocka_unit_test(many_threads_share_one_socket),
		cmocka_unit_test(a_refusal_brings_its_text),
		cmocka_unit_test(an_answer_before_the_end_is_had),
		cmocka_unit_test(when_the_daemon_dies_everybody_is_told),
		cmocka_unit_test(another_protocol_is_not_believed),
		cmocka_unit_test(nobody_listens),
		cmocka_unit_test(what_a_late_reply_brings_is_given_back),
		cmocka_unit_test(a_request_that_nobody_serves_is_refused_and_its_memory_known),
		cmocka_unit_test(an_arena_is_shown_once_and_named_again),
		cmocka_unit_test(memory_that_cannot_be_trusted_is_refused_and_given_back),
		cmocka_unit_test(a_single_use_arena_goes_with_its_last_view),
		cmocka_unit_test(the_last_writable_single_use_arena_stays_mapped),
		cmocka_unit_test(a_forked_child_is_refused_and_harms_nobody),
		cmocka_unit_test(references_are_read_and_written),
		cmocka_unit_test(what_is_no_reference_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
