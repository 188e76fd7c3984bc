#include "dataplane/base/handle.h"

#include "control/client/rv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
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

static void metadata_for(int fd, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id, .len = rq->local * 100, .refcount = rq->local};

	fake_answer(fd, RV_LOCAL_METADATA, &rep, NULL, -1);
}

static void script_backwards(int fd)
{
	struct rv_local_req rq[4];

	for (unsigned i = 0; i < 4; i++)
		rq[i] = fake_expect(fd, RV_LOCAL_METADATA);
	for (unsigned i = 4; i-- > 0;)
		metadata_for(fd, &rq[i]);
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
			metadata_for(fd, &held[--nr]);
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
	metadata_for(fd, &rq);
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

static bool is_mapped(void *p)
{
	return msync((void *)((uintptr_t)p & ~4095ul), 4096, MS_ASYNC) == 0;
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
	metadata_for(fd, &rq);
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
	assert_true(is_mapped(was)); /* the reply under way may name it without showing it */
	assert_int_equal(rv_metadata(f.c, fake_handle(1), &m), 0);
	pthread_join(t, NULL);
	assert_int_equal(g.rc, 0);
	assert_ptr_equal(g.buf.data, was);
	rv_buf_free(&g.buf);
	assert_false(is_mapped(was));
	assert_int_equal(rv_get_pinned(f.c, fake_handle(1), NULL, &a, &lease), 0);
	assert_int_equal(((uint8_t *)a.data)[99], 99);
	fake_stop(&f);
}

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

/* Forks. */

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
	metadata_for(fd, &rq);
	MUST(fake_expect(fd, RV_LOCAL_FREE).token == 4);
	rq = fake_expect(fd, RV_LOCAL_METADATA);
	metadata_for(fd, &rq);
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

static void script_wait(int fd)
{
	struct rv_local_req rq;
	int arena = fake_make_arena(F_SEAL_SHRINK);

	fake_answer_get(fd, fake_got(fake_expect(fd, RV_LOCAL_GET).id, 1, 0, 100), arena);
	close(arena);
	rq = fake_expect(fd, RV_LOCAL_METADATA);
	metadata_for(fd, &rq);
	fake_until_closed(fd);
}

static int in_the_child(struct fake_daemon *f, struct rv_buf *buf)
{
	struct rv_meta m;

	MUST(rv_metadata(f->c, fake_handle(1), &m) == -EOWNERDEAD);
	MUST(strstr(rv_last_error(), "forked"));
	MUST(!is_mapped(buf->data));
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
		cmocka_unit_test(when_the_daemon_dies_everybody_is_told),
		cmocka_unit_test(another_protocol_is_not_believed),
		cmocka_unit_test(nobody_listens),
		cmocka_unit_test(what_a_late_reply_brings_is_given_back),
		cmocka_unit_test(an_arena_is_shown_once_and_named_again),
		cmocka_unit_test(memory_that_cannot_be_trusted_is_refused_and_given_back),
		cmocka_unit_test(a_single_use_arena_goes_with_its_last_view),
		cmocka_unit_test(bytes_are_copied_to_the_caller_or_not_kept),
		cmocka_unit_test(many_gets_are_under_way_together),
		cmocka_unit_test(many_gets_go_to_each_owner_in_few_requests),
		cmocka_unit_test(data_arrives_whole_and_is_named),
		cmocka_unit_test(a_slot_with_missing_bytes_is_dropped),
		cmocka_unit_test(a_shared_buffer_is_filled_in_place),
		cmocka_unit_test(
			long_copies_into_registered_memory_are_made_here_but_for_the_first),
		cmocka_unit_test(bytes_are_put_into_a_buffer_of_the_session_without_a_copy),
		cmocka_unit_test(what_becomes_of_a_lease_is_said_with_its_get),
		cmocka_unit_test(a_late_reply_whose_lease_is_over_gives_back_its_bytes_alone),
		cmocka_unit_test(a_forked_child_is_refused_and_harms_nobody),
		cmocka_unit_test(references_are_read_and_written),
		cmocka_unit_test(what_is_no_reference_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
