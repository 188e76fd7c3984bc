#include "dataplane/base/handle.h"

#include "tests/fake/fake_daemon.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "control/local/shmq.h"

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

/* Queues, of the one session there is; the daemon's thread's. */

bool fake_queues;

static struct {
	void *mem; /* NULL: none */
	struct rv_shmq_out out;
	struct rv_shmq_in in;
	struct fake_request held; /* came through the socket; what came before it is taken first */
	bool holds;
	int fd;         /* open for as long: tests count descriptors */
	unsigned looks; /* so many before it rests: changes */
} q;

static void open_queues(void)
{
	q.fd = memfd_create("queues", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	MUST(q.fd >= 0 && ftruncate(q.fd, RV_SHMQ_LEN) == 0);
	q.mem = mmap(NULL, RV_SHMQ_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, q.fd, 0);
	MUST(q.mem != MAP_FAILED && fcntl(q.fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	rv_shmq_init(q.mem, true, 0, 1, &q.out, &q.in);
}

static void close_queues(void)
{
	if (!q.mem)
		return;
	munmap(q.mem, RV_SHMQ_LEN);
	close(q.fd);
	if (q.holds)
		free(q.held.payload);
	q.mem = NULL;
	q.holds = false;
}

static struct rv_local_preamble take_head(const uint8_t head[RV_LOCAL_PREAMBLE],
					  struct fake_request *r)
{
	struct rv_local_preamble pre;

	memset(r, 0, sizeof(*r));
	MUST(rv_local_preamble_take(head, &pre) == 0);
	MUST(pre.header_len <= sizeof(r->rq));
	r->op = pre.op;
	r->len = pre.payload_len;
	r->payload = malloc(r->len + 1);
	MUST(r->payload);
	return pre;
}

static bool next_of_socket(int fd, struct fake_request *r)
{
	uint8_t head[RV_LOCAL_PREAMBLE];
	struct rv_local_preamble pre;

	memset(r, 0, sizeof(*r));
	if (!read_all(fd, head, sizeof(head)))
		return false;
	pre = take_head(head, r);
	MUST(read_all(fd, &r->rq, pre.header_len));
	MUST(read_all(fd, r->payload, r->len));
	return true;
}

static bool next_of_queue(struct fake_request *r)
{
	uint8_t frame[RV_SHMQ_FRAME];
	struct rv_local_preamble pre;
	int n = rv_shmq_take(&q.in, frame);

	MUST(n >= 0);
	if (!n)
		return false;
	pre = take_head(frame, r);
	MUST(RV_LOCAL_PREAMBLE + pre.header_len + r->len == (size_t)n);
	memcpy(&r->rq, frame + RV_LOCAL_PREAMBLE, pre.header_len);
	memcpy(r->payload, frame + RV_LOCAL_PREAMBLE + pre.header_len, r->len);
	return true;
}

static bool look_in_queue(struct fake_request *r)
{
	rv_shmq_look(&q.in);
	q.looks = (q.looks * 7 + 1) % 3001;
	for (unsigned i = 0; i < q.looks; i++)
		if (next_of_queue(r))
			return true;
	return !rv_shmq_rest(&q.in) && next_of_queue(r);
}

bool fake_next(int fd, struct fake_request *r)
{
	if (!q.mem)
		return next_of_socket(fd, r);
	for (;;) {
		if (q.holds ? next_of_queue(r) : look_in_queue(r))
			return true;
		if (q.holds) {
			*r = q.held;
			q.holds = false;
			rv_shmq_other_taken(&q.in);
			if (r->op != RV_LOCAL_BELL)
				return true;
			free(r->payload);
		} else if (next_of_socket(fd, &q.held)) {
			q.holds = true;
		} else {
			return next_of_queue(r); /* what was put before the end */
		}
	}
}

static bool say_through_queue(int fd, const struct iovec v[3])
{
	const struct rv_local_preamble pre = {.op = RV_LOCAL_BELL | RV_LOCAL_REPLY};
	uint8_t bell[RV_LOCAL_PREAMBLE];
	bool wake;

	if (!rv_shmq_put(&q.out, v, 3, &wake))
		return false;
	if (wake) {
		rv_local_preamble_put(bell, &pre);
		MUST(send(fd, bell, sizeof(bell), MSG_NOSIGNAL) == sizeof(bell));
		rv_shmq_other(&q.out);
	}
	return true;
}

/* The next request, which must be @op. */
struct rv_local_req fake_expect(int fd, uint8_t op)
{
	struct fake_request r;

	MUST(fake_next(fd, &r));
	MUST(r.op == op);
	free(r.payload);
	return r.rq;
}

static void say(int fd, uint8_t op, const struct rv_local_rep *rep, const char *text, int pass)
{
	struct rv_local_preamble pre = {op, sizeof(*rep), text ? (uint32_t)strlen(text) : 0};
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
	if (q.mem && pass < 0 && say_through_queue(fd, v))
		return;
	if (q.mem)
		rv_shmq_other(&q.out);
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

void fake_answer(int fd, uint8_t op, const struct rv_local_rep *rep, const char *text, int pass)
{
	say(fd, op | RV_LOCAL_REPLY, rep, text, pass);
}

void fake_request(int fd, const struct rv_local_rep *rep, const char *text, int pass)
{
	say(fd, RV_LOCAL_REQUEST, rep, text, pass);
}

uint32_t fake_version = RV_LOCAL_VERSION;

static void *serve(void *arg)
{
	struct fake_daemon *f = arg;
	struct rv_local_rep rep = {.version = fake_version,
				   .worker = FAKE_WORKER,
				   .len = FAKE_THRESHOLD};
	int fd = accept(f->listener, NULL, NULL);
	struct rv_local_req rq;

	MUST(fd >= 0);
	rq = fake_expect(fd, RV_LOCAL_HELLO);
	MUST(rq.flags & RV_LOCAL_QUEUES);
	if (fake_queues)
		open_queues();
	rep.id = rq.id;
	rep.has_fd = q.mem != NULL;
	rep.arena_len = q.mem ? RV_SHMQ_LEN : 0;
	fake_answer(fd, RV_LOCAL_HELLO, &rep, NULL, q.mem ? q.fd : -1);
	f->script(fd);
	close_queues();
	close(fd);
	return NULL;
}

void fake_start(struct fake_daemon *f, void (*script)(int fd))
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};

	memset(f, 0, sizeof(*f));
	fake_queues = fake_queues || getenv("RV_FAKE_QUEUES");
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
	assert_int_equal(rv_worker(f->c), FAKE_WORKER);
}

void fake_stop(struct fake_daemon *f)
{
	rv_close(f->c);
	pthread_join(f->thread, NULL);
	close(f->listener);
	unlink(f->path);
	rmdir(f->dir);
}

void fake_until_closed(int fd)
{
	struct fake_request r;

	while (fake_next(fd, &r))
		free(r.payload);
}

void fake_answer_metadata(int fd, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id, .len = rq->local * 100, .refcount = rq->local};

	fake_answer(fd, RV_LOCAL_METADATA, &rep, NULL, -1);
}

bool fake_is_mapped(void *p)
{
	return msync((void *)((uintptr_t)p & ~4095ul), 4096, MS_ASYNC) == 0;
}

struct rv_handle fake_handle(uint64_t local)
{
	return (struct rv_handle){5, local};
}

/* Memory to show. Byte i of it is i mod 251. */
int fake_make_arena(int seals)
{
	uint8_t *p;
	int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(fd >= 0 && ftruncate(fd, FAKE_ARENA_LEN) == 0);
	p = mmap(NULL, FAKE_ARENA_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(p != MAP_FAILED);
	for (unsigned i = 0; i < FAKE_ARENA_LEN; i++)
		p[i] = (uint8_t)(i % 251);
	munmap(p, FAKE_ARENA_LEN);
	MUST(fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

struct rv_local_rep fake_got(uint64_t id, uint64_t token, uint64_t off, uint64_t len)
{
	return (struct rv_local_rep){
		.id = id,
		.token = token,
		.arena = 9,
		.arena_len = FAKE_ARENA_LEN,
		.off = off,
		.len = len,
		.lease_id = 1000 + token,
		.path = RV_TOOK_RDMA,
		.path_name = "ucx tcp",
	};
}

void fake_answer_get(int fd, struct rv_local_rep rep, int arena)
{
	rep.has_fd = arena >= 0;
	fake_answer(fd, RV_LOCAL_GET, &rep, NULL, arena);
}
