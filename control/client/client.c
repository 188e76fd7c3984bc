#include "control/client/client_impl.h"

#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

/* A daemon that was given a timeout answers by then; so long after it we stop waiting for it. */
#define GRACE_NS RV_SEC(1)

/* The first answer of a daemon that is alive. */
#define HELLO_NS RV_SEC(10)

const struct rv_opts rv_client_no_opts;

/* Errors. */

static _Thread_local char last_error[RV_WIRE_TEXT];

const char *rv_last_error(void)
{
	return last_error;
}

int rv_client_fail(int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_error, sizeof(last_error), fmt, ap);
	va_end(ap);
	return rc;
}

void rv_client_clear_error(void)
{
	last_error[0] = '\0';
}

int rv_client_no_memory(void)
{
	return rv_client_fail(-ENOMEM, "out of memory");
}

/* A word that is 0 in a child. @return NULL: there is none to be had */
static _Atomic pid_t *wiped_on_fork(void)
{
	static _Atomic(_Atomic pid_t *) page;
	_Atomic pid_t *own, *p = atomic_load_explicit(&page, memory_order_acquire);
	size_t len;

	if (p)
		return p;
	len = (size_t)sysconf(_SC_PAGESIZE);
	own = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (own == MAP_FAILED)
		return NULL;
	/* release: pairs with the acquire above; the page is empty until somebody asks. */
	if (madvise(own, len, MADV_WIPEONFORK) == 0 &&
	    atomic_compare_exchange_strong_explicit(&page, &p, own, memory_order_release,
						    memory_order_acquire))
		return own;
	munmap(own, len);
	return p; /* another thread's, which was quicker */
}

pid_t rv_client_pid(void)
{
	_Atomic pid_t *kept = wiped_on_fork();
	pid_t pid = kept ? atomic_load_explicit(kept, memory_order_relaxed) : 0;

	if (pid)
		return pid;
	pid = getpid();
	/* relaxed: whoever finds nothing there writes the same number. */
	if (kept)
		atomic_store_explicit(kept, pid, memory_order_relaxed);
	return pid;
}

int rv_client_check(const struct rv_client *c)
{
	rv_client_clear_error();
	if (!c)
		return rv_client_fail(-EINVAL, "no session: call rv_open() first");
	if (rv_client_pid() != c->pid)
		return rv_client_fail(-EOWNERDEAD,
				      "this process was forked after rv_open(): open a session "
				      "of its own");
	return 0;
}

/* Requests. */

struct rv_client_budget rv_client_budget_of(struct rv_client *c, const struct rv_opts *o)
{
	struct rv_client_budget b = {.until_ns = RV_NEVER, .deadline_ns = RV_NEVER};

	/* relaxed: a number on its own */
	b.timeout_ns = o->timeout_ns ? o->timeout_ns
				     : atomic_load_explicit(&c->timeout_ns, memory_order_relaxed);
	if (b.timeout_ns) {
		b.until_ns = rv_sat_add(rv_clock_ns(), b.timeout_ns);
		b.deadline_ns = rv_sat_add(b.until_ns, GRACE_NS);
	}
	return b;
}

uint64_t rv_budget_left_ns(const struct rv_client_budget *b)
{
	uint64_t now;

	if (!b->timeout_ns)
		return 0;
	now = rv_clock_ns();
	return now < b->until_ns ? b->until_ns - now : 1;
}

struct rv_call *rv_client_call(uint8_t op)
{
	struct rv_call *call = rv_call_new(op);

	if (!call)
		rv_client_no_memory();
	return call;
}

int rv_client_end_failed(struct rv_client *c, struct rv_call *call, int rc)
{
	rv_client_fail(rc, "%s", call->text);
	rv_wire_give_up(&c->wire, call);
	return rc;
}

static int send_and_wait(struct rv_client *c, struct rv_call *call, const void *payload, size_t len,
			 const struct rv_client_budget *b)
{
	int rc;

	call->rq.timeout_ns = rv_budget_left_ns(b);
	rc = rv_wire_send(&c->wire, call, payload, len, b->deadline_ns);
	return rc ? rc : rv_wire_wait(&c->wire, call, b->deadline_ns);
}

int rv_client_ask(struct rv_client *c, struct rv_call *call, const void *payload, size_t len,
		  const struct rv_client_budget *b)
{
	int rc = send_and_wait(c, call, payload, len, b);

	return rc ? rv_client_end_failed(c, call, rc) : 0;
}

/* Session. */

/* Of the daemon that the system starts. */
static const char system_socket[] = "/run/rvd/rvd.sock";

static int default_path(const char *given, char *out, size_t size)
{
	const char *dir = getenv("XDG_RUNTIME_DIR");
	int n;

	if (!given || !*given)
		given = getenv("RVD_SOCKET");
	if (given && *given)
		n = snprintf(out, size, "%s", given);
	else if (geteuid() == 0)
		n = snprintf(out, size, "%s", system_socket);
	else if (dir && *dir == '/')
		n = snprintf(out, size, "%s/rvd/rvd.sock", dir);
	else
		n = snprintf(out, size, "/tmp/rvd-%u/rvd.sock", (unsigned)geteuid());
	if (n < 0 || (size_t)n >= size)
		return rv_client_fail(-ENAMETOOLONG,
				      "the path of the daemon's socket is too long: at most "
				      "%zu bytes",
				      size - 1);
	return 0;
}

static int not_permitted(const char *path)
{
	struct group g, *found = NULL;
	char buf[1024], name[64] = "its group";
	struct stat st;

	/* The path may be what is not permitted. */
	if (stat(path, &st) == 0 && getgrgid_r(st.st_gid, &g, buf, sizeof(buf), &found) == 0 &&
	    found)
		snprintf(name, sizeof(name), "its group, %s,", g.gr_name);
	return rv_client_fail(-EACCES,
			      "no permission for %s: ask for membership in %s and log in anew, or "
			      "see local.mode and local.group",
			      path, name);
}

static int nobody_answers(const char *given, const char *path)
{
	const char *env = getenv("RVD_SOCKET");
	bool named = (given && *given) || (env && *env);

	if (!named && strcmp(path, system_socket) != 0 && access(system_socket, F_OK) == 0)
		return rv_client_fail(-ENOTCONN,
				      "no daemon answers on %s: the system's is on %s, so export "
				      "RVD_SOCKET=%s",
				      path, system_socket, system_socket);
	return rv_client_fail(-ENOTCONN,
			      "no daemon answers on %s: start rvd, or name its socket (--socket, "
			      "RVD_SOCKET)",
			      path);
}

static int dial(const char *path, int *out)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int fd, rc;

	rc = default_path(path, sun.sun_path, sizeof(sun.sun_path));
	if (rc)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return rv_client_fail(-errno, "no socket: %m");
	if (connect(fd, (const struct sockaddr *)&sun, sizeof(sun)) == 0) {
		*out = fd;
		return 0;
	}
	rc = -errno;
	close(fd);
	if (rc == -EACCES || rc == -EPERM)
		return not_permitted(sun.sun_path);
	if (rc == -ENOENT || rc == -ECONNREFUSED || rc == -ENOTDIR)
		return nobody_answers(path, sun.sun_path);
	return rv_client_fail(rc, "cannot connect to %s: %s", sun.sun_path, strerrordesc_np(-rc));
}

static int greet(struct rv_client *c, uint32_t flags)
{
	struct rv_client_budget b = {.deadline_ns = rv_sat_add(rv_clock_ns(), HELLO_NS)};
	struct rv_call *call = rv_client_call(RV_LOCAL_HELLO);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.version = RV_LOCAL_VERSION;
	call->rq.flags = flags;
	rc = rv_client_ask(c, call, NULL, 0, &b);
	if (rc == -EPROTO)
		return -ENOTSUP;
	if (rc)
		return rc;
	c->worker = call->rep.worker;
	c->threshold = call->rep.len;
	c->takes_many = call->rep.version >= 2;
	rv_call_free(call);
	return 0;
}

static int open_session(const char *socket, uint32_t flags, struct rv_client **out)
{
	struct rv_client *c = calloc(1, sizeof(*c));
	int rc, fd = -1;

	if (!c)
		return rv_client_no_memory();
	rc = dial(socket, &fd);
	if (rc)
		goto err_free;
	c->pid = rv_client_pid();
	rv_wire_init(&c->wire, fd);
	rv_async_init(&c->async);
	pthread_mutex_init(&c->serve_lock, NULL);
	pthread_cond_init(&c->served, NULL);
	rv_list_init(&c->handlers);
	rc = greet(c, flags);
	if (rc)
		goto err_wire;
	*out = c;
	return 0;

err_wire:
	rv_async_fini(c);
	rv_wire_fini(&c->wire);
err_free:
	free(c);
	return rc;
}

int rv_open(const char *socket, struct rv_client **out)
{
	int rc;

	rv_client_clear_error();
	if (!out)
		return rv_client_fail(-EINVAL, "nowhere to put the session");
	rc = open_session(socket, RV_LOCAL_QUEUES, out);
	/* Their descriptor may have been one too many; without them it needs none. */
	return rc == -EMFILE ? open_session(socket, 0, out) : rc;
}

void rv_close(struct rv_client *c)
{
	if (!c)
		return;
	if (rv_client_pid() != c->pid) {
		/* The parent's locks and maps may have been in any state: only the descriptors are ours. */
		rv_wire_close_fds(&c->wire);
		return;
	}
	rv_client_stop_serving(c);
	rv_async_fini(c);
	rv_wire_fini(&c->wire);
	pthread_cond_destroy(&c->served);
	pthread_mutex_destroy(&c->serve_lock);
	free(c);
}

void rv_set_timeout(struct rv_client *c, uint64_t timeout_ns)
{
	/* relaxed: a number on its own */
	if (c)
		atomic_store_explicit(&c->timeout_ns, timeout_ns, memory_order_relaxed);
}

uint64_t rv_worker(const struct rv_client *c)
{
	return c ? c->worker : 0;
}

/* Asking about a handle. */

void rv_client_aim(struct rv_call *call, const struct rv_ref *ref, const char *literal)
{
	call->rq.worker = ref->handle.worker;
	call->rq.local = ref->handle.local;
	if (!literal)
		return;
	rv_client_text(call->rq.host, sizeof(call->rq.host), literal);
	call->rq.port = ref->port;
}

struct rv_call *rv_client_call_at(uint8_t op, const struct rv_ref *ref, const char *literal,
				  const struct rv_local_req *like)
{
	struct rv_call *call = rv_client_call(op);

	if (!call)
		return NULL;
	call->rq.lease_id = like->lease_id;
	call->rq.token = like->token;
	call->rq.off = like->off;
	call->rq.len = like->len;
	call->rq.path = like->path;
	call->rq.flags = like->flags;
	rv_client_aim(call, ref, literal);
	return call;
}

int rv_client_addresses(const struct rv_client *c, const struct rv_ref *ref,
			char out[RV_LITERALS][RV_LITERAL_MAX])
{
	const char *why = "";
	int n;

	if (!ref->host[0] || ref->handle.worker == c->worker)
		return 0;
	n = rv_host_resolve(ref->host, out, &why);
	return n < 0 ? rv_client_fail(n, "cannot find the owner's host %s: %s", ref->host, why) : n;
}

int rv_client_ask_owner(struct rv_client *c, uint8_t op, const struct rv_ref *ref,
			const struct rv_local_req *like, const struct rv_opts *o,
			uint64_t *too_long, struct rv_call **out)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct rv_client_budget b = rv_client_budget_of(c, o);
	struct rv_call *call;
	int nr, rc, i = 0;

	nr = rv_client_addresses(c, ref, literal);
	if (nr < 0)
		return nr;
	do {
		call = rv_client_call_at(op, ref, nr ? literal[i] : NULL, like);
		if (!call)
			return -ENOMEM;
		rc = send_and_wait(c, call, NULL, 0, &b);
		if (rc == -ERANGE && too_long)
			*too_long = call->rep.len;
		if (rc)
			rv_client_end_failed(c, call, rc);
	} while (rc == -EHOSTUNREACH && ++i < nr);
	/* cppcheck-suppress uninitvar ; the loop has run once */
	if (!rc)
		*out = call;
	return rc;
}

struct rv_buf rv_client_buf(struct rv_client *c, const struct rv_call *call)
{
	const struct rv_local_rep *rep = &call->rep;

	return (struct rv_buf){
		.data = call->arena ? call->arena->base + rep->off : NULL,
		.len = rep->len,
		.writable = call->arena && call->arena->writable,
		.pinned = rep->pinned,
		.plain = (enum rv_plain_why)rep->refusal,
		.client = c,
		.token = rep->token,
		.arena = call->arena,
	};
}
