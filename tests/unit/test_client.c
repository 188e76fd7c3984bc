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

#define WORKER    77u
#define ARENA_LEN 65536u

/* In the daemon's thread and in children a failed check ends the test program. */
#define MUST(cond)                                                                 \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                   \
		}                                                                  \
	} while (0)

/* A daemon that does what the test says. */

struct fake {
	char dir[64], path[96];
	int listener;
	pthread_t thread;
	void (*script)(int fd);
	struct rv_client *c;
};

struct request {
	uint8_t op;
	struct rv_local_req rq;
	uint8_t *payload;
	size_t len;
};

static bool read_all(int fd, void *p, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = read(fd, (uint8_t *)p + got, len - got);

		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

static bool next(int fd, struct request *r)
{
	uint8_t head[RV_LOCAL_PREAMBLE];
	struct rv_local_preamble pre;

	memset(r, 0, sizeof(*r));
	if (!read_all(fd, head, sizeof(head)))
		return false;
	MUST(rv_local_preamble_take(head, &pre) == 0);
	MUST(pre.header_len == sizeof(r->rq));
	MUST(read_all(fd, &r->rq, sizeof(r->rq)));
	r->op = pre.op;
	r->len = pre.payload_len;
	r->payload = malloc(r->len + 1);
	MUST(r->payload && read_all(fd, r->payload, r->len));
	return true;
}

/* The next request, which must be @op. */
static struct rv_local_req expect(int fd, uint8_t op)
{
	struct request r;

	MUST(next(fd, &r));
	MUST(r.op == op);
	free(r.payload);
	return r.rq;
}

static void answer(int fd, uint8_t op, const struct rv_local_rep *rep, const char *text, int pass)
{
	struct rv_local_preamble pre = {op | RV_LOCAL_REPLY, sizeof(*rep),
					text ? (uint32_t)strlen(text) : 0};
	uint8_t head[RV_LOCAL_PREAMBLE];
	struct iovec v[3] = {{head, sizeof(head)},
			     {(void *)(uintptr_t)rep, sizeof(*rep)},
			     {(void *)(uintptr_t)text, pre.payload_len}};
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr msg = {.msg_iov = v, .msg_iovlen = 3};

	rv_local_preamble_put(head, &pre);
	if (pass >= 0) {
		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_LEN(sizeof(int));
		control.align.cmsg_len = CMSG_LEN(sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		memcpy(CMSG_DATA(&control.align), &pass, sizeof(int));
	}
	MUST(sendmsg(fd, &msg, MSG_NOSIGNAL) >= 0);
}

static void *serve(void *arg)
{
	struct fake *f = arg;
	struct rv_local_rep rep = {.version = RV_LOCAL_VERSION, .worker = WORKER};
	int fd = accept(f->listener, NULL, NULL);

	MUST(fd >= 0);
	rep.id = expect(fd, RV_LOCAL_HELLO).id;
	answer(fd, RV_LOCAL_HELLO, &rep, NULL, -1);
	f->script(fd);
	close(fd);
	return NULL;
}

static void start(struct fake *f, void (*script)(int fd))
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};

	memset(f, 0, sizeof(*f));
	strcpy(f->dir, "/tmp/rv-client-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->path, sizeof(f->path), "%s/sock", f->dir);
	strcpy(sun.sun_path, f->path);
	f->script = script;
	f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(f->listener, (struct sockaddr *)&sun, sizeof(sun)), 0);
	assert_int_equal(listen(f->listener, 4), 0);
	assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
	assert_int_equal(rv_open(f->path, &f->c), 0);
	assert_int_equal(rv_worker(f->c), WORKER);
}

static void stop(struct fake *f)
{
	rv_close(f->c);
	pthread_join(f->thread, NULL);
	close(f->listener);
	unlink(f->path);
	rmdir(f->dir);
}

static void until_closed(int fd)
{
	struct request r;

	while (next(fd, &r))
		free(r.payload);
}

static struct rv_handle handle(uint64_t local)
{
	return (struct rv_handle){5, local};
}

/* Memory to show. Byte i of it is i mod 251. */
static int make_arena(int seals)
{
	uint8_t *p;
	int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(fd >= 0 && ftruncate(fd, ARENA_LEN) == 0);
	p = mmap(NULL, ARENA_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(p != MAP_FAILED);
	for (unsigned i = 0; i < ARENA_LEN; i++)
		p[i] = (uint8_t)(i % 251);
	munmap(p, ARENA_LEN);
	MUST(fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static struct rv_local_rep got(uint64_t id, uint64_t token, uint64_t off, uint64_t len)
{
	return (struct rv_local_rep){
		.id = id,
		.token = token,
		.arena = 9,
		.arena_len = ARENA_LEN,
		.off = off,
		.len = len,
		.lease_id = 1000 + token,
		.path = RV_TOOK_RDMA,
		.path_name = "ucx tcp",
	};
}

static void answer_get(int fd, struct rv_local_rep rep, int arena)
{
	rep.has_fd = arena >= 0;
	answer(fd, RV_LOCAL_GET, &rep, NULL, arena);
}

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
		a->rc = rv_metadata(a->c, handle(a->local), &a->meta);
		snprintf(a->error, sizeof(a->error), "%.*s", 199, rv_last_error());
		if (!a->rc)
			MUST(a->meta.len == a->local * 100);
	}
	return NULL;
}

static void run_askers(struct fake *f, struct asker *a, unsigned nr, uint64_t calls)
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

	answer(fd, RV_LOCAL_METADATA, &rep, NULL, -1);
}

static void script_backwards(int fd)
{
	struct rv_local_req rq[4];

	for (unsigned i = 0; i < 4; i++)
		rq[i] = expect(fd, RV_LOCAL_METADATA);
	for (unsigned i = 4; i-- > 0;)
		metadata_for(fd, &rq[i]);
	until_closed(fd);
}

static void replies_out_of_order_find_their_callers(void **state)
{
	struct fake f;
	struct asker a[4];

	(void)state;
	start(&f, script_backwards);
	run_askers(&f, a, 4, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(a[i].rc, 0);
		assert_int_equal(a[i].meta.refcount, i + 1);
	}
	stop(&f);
}

/* Holds up to two requests back while others are sure to come, and answers the newest first. */
#define ASKERS 8u
#define CALLS  400u

static void script_shuffle(int fd)
{
	struct rv_local_req held[3];
	unsigned nr = 0, turn = 0, seen = 0;
	struct request r;

	while (next(fd, &r)) {
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
	struct fake f;
	struct asker a[ASKERS];

	(void)state;
	start(&f, script_shuffle);
	run_askers(&f, a, ASKERS, CALLS);
	for (unsigned i = 0; i < ASKERS; i++)
		assert_int_equal(a[i].rc, 0);
	stop(&f);
}

static void script_refuse(int fd)
{
	struct rv_local_rep rep = {.rc = -ENOENT};

	rep.id = expect(fd, RV_LOCAL_METADATA).id;
	answer(fd, RV_LOCAL_METADATA, &rep, "no such handle: released", -1);
	rep.id = expect(fd, RV_LOCAL_METADATA).id;
	rep.rc = -EAGAIN;
	answer(fd, RV_LOCAL_METADATA, &rep, NULL, -1);
	until_closed(fd);
}

static void a_refusal_brings_its_text(void **state)
{
	struct rv_meta m = {.len = 3};
	struct fake f;

	(void)state;
	start(&f, script_refuse);
	assert_int_equal(rv_metadata(f.c, handle(1), &m), -ENOENT);
	assert_string_equal(rv_last_error(), "no such handle: released");
	assert_int_equal(rv_metadata(f.c, handle(1), &m), -EAGAIN);
	assert_string_equal(rv_last_error(), "busy");
	assert_int_equal(m.len, 3); /* outputs stay untouched on failure */
	stop(&f);
}

static void script_die(int fd)
{
	for (unsigned i = 0; i < 4; i++)
		expect(fd, RV_LOCAL_METADATA);
}

static void when_the_daemon_dies_everybody_is_told(void **state)
{
	struct rv_handle h;
	struct asker a[4];
	struct fake f;

	(void)state;
	start(&f, script_die);
	run_askers(&f, a, 4, 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(a[i].rc, -ENOTCONN);
		assert_string_equal(a[i].error, "the daemon closed the connection");
	}
	assert_int_equal(rv_register_data(f.c, "x", 1, NULL, &h), -ENOTCONN);
	assert_string_equal(rv_last_error(), "the daemon closed the connection");
	stop(&f);
}

static void script_garbage(int fd)
{
	static const char junk[] = "HTTP/1.1 400 Bad Request\r\n\r\n";

	expect(fd, RV_LOCAL_METADATA);
	MUST(write(fd, junk, sizeof(junk)) == sizeof(junk));
	until_closed(fd);
}

static void another_protocol_is_not_believed(void **state)
{
	struct rv_meta m;
	struct fake f;

	(void)state;
	start(&f, script_garbage);
	assert_int_equal(rv_metadata(f.c, handle(1), &m), -EPROTO);
	assert_int_equal(rv_metadata(f.c, handle(1), &m), -EPROTO);
	stop(&f);
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
	struct rv_local_rep rep = got(expect(fd, RV_LOCAL_GET).id, 4, 0, 10);
	struct rv_local_req rq = expect(fd, RV_LOCAL_METADATA);
	int arena = make_arena(F_SEAL_SHRINK);

	answer_get(fd, rep, arena);
	close(arena);
	metadata_for(fd, &rq);
	MUST(expect(fd, RV_LOCAL_FREE).token == 4);
	rq = expect(fd, RV_LOCAL_DETACH);
	MUST(rq.lease_id == 1004 && rq.local == 3 && rq.id == 0);
	until_closed(fd);
}

static void what_a_late_reply_brings_is_given_back(void **state)
{
	struct rv_opts o = {.timeout_ns = RV_MS(10)};
	struct rv_buf buf;
	struct rv_meta m;
	struct fake f;
	uint64_t lease;

	(void)state;
	start(&f, script_late);
	assert_int_equal(
		rv_get_pinned_at(f.c, &(struct rv_ref){.handle = handle(3)}, &o, &buf, &lease),
		-ETIMEDOUT);
	assert_int_equal(rv_metadata(f.c, handle(2), &m), 0);
	stop(&f);
}

/* Memory. */

static void script_views(int fd)
{
	int arena = make_arena(F_SEAL_SHRINK);

	answer_get(fd, got(expect(fd, RV_LOCAL_GET).id, 1, 1000, 500), arena);
	close(arena);
	answer_get(fd, got(expect(fd, RV_LOCAL_GET).id, 2, 0, ARENA_LEN), -1);
	until_closed(fd);
}

static void an_arena_is_shown_once_and_named_again(void **state)
{
	struct rv_how how = {0};
	struct rv_opts o = {.how = &how};
	struct rv_buf a, b;
	struct fake f;
	uint64_t lease;

	(void)state;
	start(&f, script_views);
	assert_int_equal(rv_get_pinned(f.c, handle(1), &o, &a, &lease), 0);
	assert_int_equal(a.len, 500);
	assert_int_equal(lease, 1001);
	assert_int_equal(how.took, RV_TOOK_RDMA);
	assert_string_equal(how.path, "ucx tcp");
	for (unsigned i = 0; i < 500; i++)
		assert_int_equal(((uint8_t *)a.data)[i], (1000 + i) % 251);
	assert_int_equal(rv_get_pinned(f.c, handle(1), NULL, &b, &lease), 0);
	assert_ptr_equal((uint8_t *)b.data + 1000, a.data);
	rv_buf_free(&a);
	assert_null(a.data);
	rv_buf_free(&a);
	rv_buf_free(&b);
	stop(&f);
}

static struct {
	uint64_t off, len, arena_len;
	int seals;
	bool show;
} bad[] = {
	{1, ARENA_LEN, ARENA_LEN, F_SEAL_SHRINK, true},
	{UINT64_MAX, 2, ARENA_LEN, F_SEAL_SHRINK, true},
	{0, UINT64_MAX, ARENA_LEN, F_SEAL_SHRINK, true},
	{ARENA_LEN + 1, 1, ARENA_LEN, F_SEAL_SHRINK, true},
	{0, 1, ARENA_LEN + 4096, F_SEAL_SHRINK, true},
	{0, 1, 0, F_SEAL_SHRINK, true},
	{0, 1, UINT64_MAX, F_SEAL_SHRINK, true},
	{0, 1, ARENA_LEN, F_SEAL_GROW, true},
	{0, 1, ARENA_LEN, F_SEAL_SHRINK, false},
};

static void script_bad(int fd)
{
	for (unsigned i = 0; i < RV_ARRAY_NR(bad); i++) {
		struct rv_local_rep rep =
			got(expect(fd, RV_LOCAL_GET).id, 50 + i, bad[i].off, bad[i].len);
		int arena = bad[i].show ? make_arena(bad[i].seals) : -1;

		rep.arena = 100 + i;
		rep.arena_len = bad[i].arena_len;
		answer_get(fd, rep, arena);
		if (arena >= 0)
			close(arena);
		MUST(expect(fd, RV_LOCAL_FREE).token == 50 + i);
		MUST(expect(fd, RV_LOCAL_DETACH).lease_id == 1050 + i);
	}
	until_closed(fd);
}

static void memory_that_cannot_be_trusted_is_refused_and_given_back(void **state)
{
	struct rv_buf buf = {.len = 3};
	struct fake f;
	uint64_t lease = 8;

	(void)state;
	start(&f, script_bad);
	for (unsigned i = 0; i < RV_ARRAY_NR(bad); i++) {
		assert_int_equal(rv_get_pinned(f.c, handle(1), NULL, &buf, &lease), -EPROTO);
		assert_true(strlen(rv_last_error()) > 0);
	}
	assert_int_equal(buf.len, 3);
	assert_int_equal(lease, 8);
	stop(&f);
}

static bool is_mapped(void *p)
{
	return msync((void *)((uintptr_t)p & ~4095ul), 4096, MS_ASYNC) == 0;
}

static void script_single_use(int fd)
{
	int arena = make_arena(F_SEAL_SHRINK);
	struct rv_local_rep rep = got(expect(fd, RV_LOCAL_GET).id, 1, 0, 100);
	struct rv_local_req second, rq;

	rep.single_use = 1;
	answer_get(fd, rep, arena);
	/* The second get is under way while the view of the first is given back. */
	second = expect(fd, RV_LOCAL_GET);
	rq = expect(fd, RV_LOCAL_FREE);
	MUST(rq.token == 1);
	rq = expect(fd, RV_LOCAL_METADATA);
	metadata_for(fd, &rq);
	rep = got(second.id, 2, 0, 100);
	rep.single_use = 1;
	answer_get(fd, rep, -1);
	MUST(expect(fd, RV_LOCAL_FREE).token == 2);
	/* Now it was unmapped, so it is shown again. */
	rep = got(expect(fd, RV_LOCAL_GET).id, 3, 0, 100);
	rep.single_use = 1;
	answer_get(fd, rep, arena);
	close(arena);
	until_closed(fd);
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
	g->rc = rv_get_pinned(g->c, handle(1), NULL, &g->buf, &lease);
	return NULL;
}

static void a_single_use_arena_goes_with_its_last_view(void **state)
{
	struct getter g = {0};
	struct rv_buf a;
	struct rv_meta m;
	struct fake f;
	pthread_t t;
	uint64_t lease;
	void *was;

	(void)state;
	start(&f, script_single_use);
	assert_int_equal(rv_get_pinned(f.c, handle(1), NULL, &a, &lease), 0);
	was = a.data;
	g.c = f.c;
	assert_int_equal(pthread_create(&t, NULL, get_one, &g), 0);
	while (!g.begun)
		usleep(1000);
	usleep(50000);
	rv_buf_free(&a);
	assert_true(is_mapped(was)); /* the reply under way may name it without showing it */
	assert_int_equal(rv_metadata(f.c, handle(1), &m), 0);
	pthread_join(t, NULL);
	assert_int_equal(g.rc, 0);
	assert_ptr_equal(g.buf.data, was);
	rv_buf_free(&g.buf);
	assert_false(is_mapped(was));
	assert_int_equal(rv_get_pinned(f.c, handle(1), NULL, &a, &lease), 0);
	assert_int_equal(((uint8_t *)a.data)[99], 99);
	stop(&f);
}

static void script_into(int fd)
{
	int arena = make_arena(F_SEAL_SHRINK);

	answer_get(fd, got(expect(fd, RV_LOCAL_GET).id, 1, 0, 300), arena);
	close(arena);
	MUST(expect(fd, RV_LOCAL_FREE).token == 1);
	answer_get(fd, got(expect(fd, RV_LOCAL_GET).id, 2, 0, 300), -1);
	MUST(expect(fd, RV_LOCAL_FREE).token == 2);
	MUST(expect(fd, RV_LOCAL_DETACH).lease_id == 1002);
	/* An empty payload is nowhere. */
	answer_get(fd, (struct rv_local_rep){.id = expect(fd, RV_LOCAL_GET).id, .lease_id = 6}, -1);
	until_closed(fd);
}

static void bytes_are_copied_to_the_caller_or_not_kept(void **state)
{
	uint8_t dst[300];
	struct fake f;
	uint64_t len = 0, lease = 0;
	void *data;

	(void)state;
	start(&f, script_into);
	assert_int_equal(rv_get_into(f.c, handle(1), NULL, dst, sizeof(dst), &len, &lease), 0);
	assert_int_equal(len, 300);
	assert_int_equal(dst[299], 299 % 251);
	len = 0;
	assert_int_equal(rv_get_into(f.c, handle(1), NULL, dst, 299, &len, &lease), -ERANGE);
	assert_int_equal(len, 300);
	assert_int_equal(rv_get(f.c, handle(1), NULL, &data, &len, &lease), 0);
	assert_non_null(data);
	assert_int_equal(len, 0);
	assert_int_equal(lease, 6);
	rv_free(data);
	stop(&f);
}

static void script_many(int fd)
{
	int arena = make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq[3];
	struct rv_local_rep no = {.rc = -ENOENT};

	for (unsigned i = 0; i < 3; i++)
		rq[i] = expect(fd, RV_LOCAL_GET);
	no.id = rq[1].id;
	answer_get(fd, got(rq[2].id, 12, 20, 2), arena);
	answer(fd, RV_LOCAL_GET, &no, "gone", -1);
	answer_get(fd, got(rq[0].id, 10, 10, 1), -1);
	close(arena);
	until_closed(fd);
}

static void many_gets_are_under_way_together(void **state)
{
	const struct rv_handle h[3] = {handle(1), handle(2), handle(3)};
	struct rv_result res[3];
	struct fake f;

	(void)state;
	start(&f, script_many);
	assert_int_equal(rv_get_many(f.c, h, 3, NULL, res), -ENOENT);
	assert_int_equal(res[0].rc, 0);
	assert_int_equal(*(uint8_t *)res[0].buf.data, 10);
	assert_int_equal(res[0].lease, 1010);
	assert_int_equal(res[1].rc, -ENOENT);
	assert_string_equal(res[1].error, "gone");
	assert_int_equal(res[2].rc, 0);
	assert_int_equal(res[2].buf.len, 2);
	stop(&f); /* gives the views back */
}

/* Staging. */

#define BIG (9u << 20)

static void script_stage(int fd)
{
	struct rv_local_rep rep = {.token = 3, .len = BIG, .refusal = 1};
	struct rv_local_req rq = expect(fd, RV_LOCAL_ALLOC);
	uint64_t at = 0;

	MUST(rq.len == BIG && rq.flags == 0);
	rep.id = rq.id;
	answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	while (at < BIG) {
		struct request r;

		MUST(next(fd, &r));
		MUST(r.op == RV_LOCAL_WRITE && r.rq.token == 3 && r.rq.off == at);
		for (size_t i = 0; i < r.len; i++)
			MUST(r.payload[i] == (uint8_t)((at + i) % 249));
		at += r.len;
		free(r.payload);
	}
	rq = expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == 3 && rq.len == BIG && rq.ttl_ns == 7 && rq.refs == 2);
	MUST(rq.flags == RV_LOCAL_SESSION);
	rep = (struct rv_local_rep){.id = rq.id, .worker = WORKER, .local = 65};
	answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	MUST(!next(fd, &(struct request){0})); /* nothing is left to give back */
}

static void data_arrives_whole_and_is_named(void **state)
{
	struct rv_how how = {0};
	struct rv_opts o = {.ttl_ns = 7, .refs = 2, .session = true, .how = &how};
	uint8_t *data = malloc(BIG);
	struct rv_handle h;
	struct fake f;

	(void)state;
	assert_non_null(data);
	for (unsigned i = 0; i < BIG; i++)
		data[i] = (uint8_t)(i % 249);
	start(&f, script_stage);
	assert_int_equal(rv_register_data_pinned(f.c, data, BIG, &o, &h), 0);
	assert_int_equal(h.worker, WORKER);
	assert_int_equal(h.local, 65);
	assert_false(how.pinned);
	assert_int_equal(how.plain, RV_PLAIN_BUDGET);
	stop(&f);
	free(data);
}

static void script_bad_write(int fd)
{
	struct rv_local_rep rep = {.token = 3, .len = 5};
	struct rv_local_req rq;

	rep.id = expect(fd, RV_LOCAL_ALLOC).id;
	answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	rep = (struct rv_local_rep){.rc = -ERANGE};
	rep.id = expect(fd, RV_LOCAL_WRITE).id;
	answer(fd, RV_LOCAL_WRITE, &rep, "does not fit", -1);
	rep = (struct rv_local_rep){.worker = WORKER, .local = 65};
	rep.id = expect(fd, RV_LOCAL_COMMIT).id;
	answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	rq = expect(fd, RV_LOCAL_DROP);
	MUST(rq.worker == WORKER && rq.local == 65);
	until_closed(fd);
}

static void a_slot_with_missing_bytes_is_dropped(void **state)
{
	struct rv_handle h = {1, 2};
	struct fake f;

	(void)state;
	start(&f, script_bad_write);
	assert_int_equal(rv_register_data(f.c, "12345", 5, NULL, &h), -ERANGE);
	assert_string_equal(rv_last_error(), "does not fit");
	assert_int_equal(h.local, 2);
	stop(&f);
}

static void script_alloc(int fd)
{
	int arena = make_arena(F_SEAL_SHRINK);
	struct rv_local_req rq = expect(fd, RV_LOCAL_ALLOC);
	struct rv_local_rep rep = got(rq.id, 6, 4096, 100);
	uint8_t byte;

	MUST(rq.flags == RV_LOCAL_SHARED);
	rep.has_fd = rep.writable = rep.pinned = 1;
	answer(fd, RV_LOCAL_ALLOC, &rep, NULL, arena);
	rq = expect(fd, RV_LOCAL_COMMIT);
	MUST(rq.token == 6 && rq.len == 40);
	MUST(pread(arena, &byte, 1, 4096 + 39) == 1 && byte == 0xab);
	close(arena);
	rep = (struct rv_local_rep){.id = rq.id, .worker = WORKER, .local = 65, .pinned = 1};
	answer(fd, RV_LOCAL_COMMIT, &rep, NULL, -1);
	/* One that is shorter than asked for. */
	rep = got(expect(fd, RV_LOCAL_ALLOC).id, 7, 0, 99);
	answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	MUST(expect(fd, RV_LOCAL_FREE).token == 7);
	/* One that the session leaves behind. */
	rep = got(expect(fd, RV_LOCAL_ALLOC).id, 8, 0, 99);
	answer(fd, RV_LOCAL_ALLOC, &rep, NULL, -1);
	MUST(expect(fd, RV_LOCAL_FREE).token == 8);
	MUST(!next(fd, &(struct request){0}));
}

static void a_shared_buffer_is_filled_in_place(void **state)
{
	struct rv_buf buf, other;
	struct rv_handle h;
	struct fake f;

	(void)state;
	start(&f, script_alloc);
	assert_int_equal(rv_alloc_pinned(f.c, 100, &buf), 0);
	assert_true(buf.pinned && buf.writable);
	memset(buf.data, 0xab, 40);
	buf.len = 40;
	assert_int_equal(rv_register_pinned(f.c, &buf, NULL, &h), 0);
	assert_null(buf.data);
	assert_int_equal(rv_register_pinned(f.c, &buf, NULL, &h), -EINVAL);
	assert_int_equal(rv_alloc_pinned(f.c, 100, &buf), -EPROTO);
	assert_int_equal(rv_alloc_pinned(f.c, 99, &other), 0);
	stop(&f);
}

/* Forks. */

static void script_wait(int fd)
{
	struct rv_local_req rq;
	int arena = make_arena(F_SEAL_SHRINK);

	answer_get(fd, got(expect(fd, RV_LOCAL_GET).id, 1, 0, 100), arena);
	close(arena);
	rq = expect(fd, RV_LOCAL_METADATA);
	metadata_for(fd, &rq);
	until_closed(fd);
}

static int in_the_child(struct fake *f, struct rv_buf *buf)
{
	struct rv_meta m;

	MUST(rv_metadata(f->c, handle(1), &m) == -EOWNERDEAD);
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
	struct fake f;
	uint64_t lease;
	int status;
	pid_t pid;

	(void)state;
	start(&f, script_wait);
	assert_int_equal(rv_get_pinned(f.c, handle(1), NULL, &buf, &lease), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(in_the_child(&f, &buf));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(rv_metadata(f.c, handle(4), &m), 0);
	assert_int_equal(m.len, 400);
	stop(&f);
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
		cmocka_unit_test(data_arrives_whole_and_is_named),
		cmocka_unit_test(a_slot_with_missing_bytes_is_dropped),
		cmocka_unit_test(a_shared_buffer_is_filled_in_place),
		cmocka_unit_test(a_forked_child_is_refused_and_harms_nobody),
		cmocka_unit_test(references_are_read_and_written),
		cmocka_unit_test(what_is_no_reference_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
