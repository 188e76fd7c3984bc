#include "control/client/rv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/client/ref.h"
#include "control/client/wire.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

/* A daemon that was given a timeout answers by then; so long after it we stop waiting for it. */
#define GRACE_NS RV_SEC(1)

/* The first answer of a daemon that is alive. */
#define HELLO_NS RV_SEC(10)

/* Gets under way at once in rv_get_many(). */
#define MANY_WINDOW 128u

struct rv_client {
	struct rv_wire wire;
	pid_t pid;
	uint64_t worker;
	_Atomic uint64_t timeout_ns;
};

static const struct rv_opts no_opts;

/* Errors. */

static _Thread_local char last_error[RV_WIRE_TEXT];

const char *rv_last_error(void)
{
	return last_error;
}

static int __attribute__((format(printf, 2, 3))) fail(int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_error, sizeof(last_error), fmt, ap);
	va_end(ap);
	return rc;
}

static int no_memory(void)
{
	return fail(-ENOMEM, "out of memory");
}

/* Every call begins here. */
static int check(const struct rv_client *c)
{
	last_error[0] = '\0';
	if (!c)
		return fail(-EINVAL, "no session: call rv_open() first");
	if (getpid() != c->pid)
		return fail(-EOWNERDEAD, "this process was forked after rv_open(): open a session "
					 "of its own");
	return 0;
}

/* Requests. */

/** When a call must have ended, and what the daemon is told about that. */
struct budget {
	uint64_t timeout_ns; /* 0: the daemon's */
	uint64_t until_ns;   /* without the grace */
	uint64_t deadline_ns;
};

static struct budget budget_of(struct rv_client *c, const struct rv_opts *o)
{
	struct budget b = {.until_ns = RV_NEVER, .deadline_ns = RV_NEVER};

	/* relaxed: a number on its own */
	b.timeout_ns = o->timeout_ns ? o->timeout_ns
				     : atomic_load_explicit(&c->timeout_ns, memory_order_relaxed);
	if (b.timeout_ns) {
		b.until_ns = rv_sat_add(rv_clock_ns(), b.timeout_ns);
		b.deadline_ns = rv_sat_add(b.until_ns, GRACE_NS);
	}
	return b;
}

/* What is left for the next step. */
static uint64_t left_of(const struct budget *b)
{
	uint64_t now;

	if (!b->timeout_ns)
		return 0;
	now = rv_clock_ns();
	return now < b->until_ns ? b->until_ns - now : 1;
}

static struct rv_call *new_call(uint8_t op)
{
	struct rv_call *call = rv_call_new(op);

	if (!call)
		no_memory();
	return call;
}

/* A call that failed ends here. */
static int end_failed(struct rv_client *c, struct rv_call *call, int rc)
{
	fail(rc, "%s", call->text);
	rv_wire_give_up(&c->wire, call);
	return rc;
}

/* Send, and wait for the reply. On failure the call is gone. */
static int ask(struct rv_client *c, struct rv_call *call, const void *payload, size_t len,
	       const struct budget *b)
{
	int rc;

	call->rq.timeout_ns = left_of(b);
	rc = rv_wire_send(&c->wire, call, payload, len, b->deadline_ns);
	if (!rc)
		rc = rv_wire_wait(&c->wire, call, b->deadline_ns);
	return rc ? end_failed(c, call, rc) : 0;
}

/* Session. */

static int default_path(const char *given, char *out, size_t size)
{
	const char *dir = getenv("XDG_RUNTIME_DIR");
	int n;

	if (!given || !*given)
		given = getenv("RVD_SOCKET");
	if (given && *given)
		n = snprintf(out, size, "%s", given);
	else if (geteuid() == 0)
		n = snprintf(out, size, "/run/rvd/rvd.sock");
	else if (dir && *dir == '/')
		n = snprintf(out, size, "%s/rvd/rvd.sock", dir);
	else
		n = snprintf(out, size, "/tmp/rvd-%u/rvd.sock", (unsigned)geteuid());
	if (n < 0 || (size_t)n >= size)
		return fail(-ENAMETOOLONG,
			    "the path of the daemon's socket is too long: at most "
			    "%zu bytes",
			    size - 1);
	return 0;
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
		return fail(-errno, "no socket: %m");
	if (connect(fd, (const struct sockaddr *)&sun, sizeof(sun)) == 0) {
		*out = fd;
		return 0;
	}
	rc = -errno;
	close(fd);
	if (rc == -EACCES || rc == -EPERM)
		return fail(-EACCES,
			    "no permission for %s: ask for membership in its group, or "
			    "see local.mode and local.group",
			    sun.sun_path);
	if (rc == -ENOENT || rc == -ECONNREFUSED || rc == -ENOTDIR)
		return fail(-ENOTCONN, "no daemon answers on %s: start rvd, or name its socket",
			    sun.sun_path);
	return fail(rc, "cannot connect to %s: %s", sun.sun_path, strerrordesc_np(-rc));
}

static int greet(struct rv_client *c)
{
	struct budget b = {.deadline_ns = rv_sat_add(rv_clock_ns(), HELLO_NS)};
	struct rv_call *call = new_call(RV_LOCAL_HELLO);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.version = RV_LOCAL_VERSION;
	rc = ask(c, call, NULL, 0, &b);
	if (rc == -EPROTO)
		return -ENOTSUP;
	if (rc)
		return rc;
	c->worker = call->rep.worker;
	rv_call_free(call);
	return 0;
}

int rv_open(const char *socket, struct rv_client **out)
{
	struct rv_client *c;
	int rc, fd = -1;

	last_error[0] = '\0';
	if (!out)
		return fail(-EINVAL, "nowhere to put the session");
	c = calloc(1, sizeof(*c));
	if (!c)
		return no_memory();
	rc = dial(socket, &fd);
	if (rc)
		goto err_free;
	c->pid = getpid();
	rv_wire_init(&c->wire, fd);
	rc = greet(c);
	if (rc)
		goto err_wire;
	*out = c;
	return 0;

err_wire:
	rv_wire_fini(&c->wire);
err_free:
	free(c);
	return rc;
}

void rv_close(struct rv_client *c)
{
	if (!c)
		return;
	if (getpid() != c->pid) {
		/* The parent's locks and maps may have been in any state: only the descriptor is ours. */
		close(c->wire.fd);
		return;
	}
	rv_wire_fini(&c->wire);
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

/* Staging. */

static struct rv_buf buf_of(struct rv_client *c, const struct rv_call *call)
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

static int alloc(struct rv_client *c, uint64_t len, uint32_t flags, const struct budget *b,
		 struct rv_buf *buf)
{
	struct rv_call *call = new_call(RV_LOCAL_ALLOC);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.len = len;
	call->rq.flags = flags;
	rc = ask(c, call, NULL, 0, b);
	if (rc)
		return rc;
	if (call->rep.len < len || (len && flags & RV_LOCAL_SHARED && !call->arena)) {
		rv_wire_give_up(&c->wire, call); /* which gives the buffer back */
		return fail(-EPROTO, "the daemon gave a buffer that is too short");
	}
	*buf = buf_of(c, call);
	buf->len = len;
	rv_call_free(call);
	return 0;
}

static int commit(struct rv_client *c, const struct rv_buf *buf, const struct rv_opts *o,
		  const struct budget *b, struct rv_handle *handle)
{
	struct rv_call *call = new_call(RV_LOCAL_COMMIT);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.token = buf->token;
	call->rq.len = buf->len;
	call->rq.ttl_ns = o->ttl_ns;
	call->rq.refs = o->refs;
	call->rq.flags = o->session ? RV_LOCAL_SESSION : 0;
	rc = ask(c, call, NULL, 0, b);
	if (rc)
		return rc;
	*handle = (struct rv_handle){call->rep.worker, call->rep.local};
	if (o->how)
		*o->how = (struct rv_how){.pinned = call->rep.pinned, .plain = buf->plain};
	rv_call_free(call);
	return 0;
}

static int write_all(struct rv_client *c, struct rv_call *call, const uint8_t *data, uint64_t len,
		     const struct budget *b)
{
	int rc = 0;

	for (uint64_t off = 0; off < len && !rc; off += RV_LOCAL_PAYLOAD_MAX) {
		size_t n = rv_min_u64(len - off, RV_LOCAL_PAYLOAD_MAX);

		call->rq.off = off;
		if (off)
			rc = rv_wire_send_more(&c->wire, call, data + off, n, b->deadline_ns);
		else
			rc = rv_wire_send(&c->wire, call, data, n, b->deadline_ns);
	}
	return rc ? fail(rc, "%s",
			 rc == -ETIMEDOUT ? "the daemon does not read its socket"
					  : "the daemon closed the connection")
		  : 0;
}

/* WRITE is answered only when it fails, and before the COMMIT that follows it. */
static int fill_and_commit(struct rv_client *c, struct rv_buf *buf, const void *data,
			   const struct rv_opts *o, const struct budget *b,
			   struct rv_handle *handle)
{
	struct rv_call *call = new_call(RV_LOCAL_WRITE);
	struct rv_handle h;
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.token = buf->token;
	rc = write_all(c, call, data, buf->len, b);
	if (!rc)
		rc = commit(c, buf, o, b, &h);
	if (!rc && rv_wire_done(&c->wire, call)) {
		struct rv_local_req drop = {.worker = h.worker, .local = h.local};

		rv_wire_post(&c->wire, RV_LOCAL_DROP, &drop);
		rc = fail(call->rc ? call->rc : -EPROTO, "%s", call->text);
	}
	rv_wire_give_up(&c->wire, call);
	if (!rc)
		*handle = h;
	return rc;
}

static int register_copy(struct rv_client *c, const void *data, uint64_t len, uint32_t flags,
			 const struct rv_opts *opts, struct rv_handle *handle)
{
	const struct rv_opts *o = opts ? opts : &no_opts;
	struct budget b;
	struct rv_buf buf;
	int rc = check(c);

	if (rc)
		return rc;
	if (!handle || (!data && len))
		return fail(-EINVAL, "no data, or nowhere to put the handle");
	b = budget_of(c, o);
	rc = alloc(c, len, flags, &b, &buf);
	if (rc)
		return rc;
	rc = fill_and_commit(c, &buf, data, o, &b, handle);
	if (rc)
		rv_wire_post(&c->wire, RV_LOCAL_FREE, &(struct rv_local_req){.token = buf.token});
	return rc;
}

int rv_register_data(struct rv_client *c, const void *data, uint64_t len,
		     const struct rv_opts *opts, struct rv_handle *handle)
{
	return register_copy(c, data, len, RV_LOCAL_PLAIN, opts, handle);
}

int rv_register_data_pinned(struct rv_client *c, const void *data, uint64_t len,
			    const struct rv_opts *opts, struct rv_handle *handle)
{
	return register_copy(c, data, len, 0, opts, handle);
}

int rv_alloc_pinned(struct rv_client *c, uint64_t len, struct rv_buf *buf)
{
	struct budget b;
	int rc = check(c);

	if (rc)
		return rc;
	if (!buf)
		return fail(-EINVAL, "nowhere to put the buffer");
	b = budget_of(c, &no_opts);
	return alloc(c, len, RV_LOCAL_SHARED, &b, buf);
}

int rv_register_pinned(struct rv_client *c, struct rv_buf *buf, const struct rv_opts *opts,
		       struct rv_handle *handle)
{
	const struct rv_opts *o = opts ? opts : &no_opts;
	struct budget b;
	int rc = check(c);

	if (rc)
		return rc;
	if (!buf || !handle || buf->client != c || !buf->token)
		return fail(-EINVAL, "no buffer of this session, or nowhere to put the handle");
	b = budget_of(c, o);
	rc = commit(c, buf, o, &b, handle);
	if (rc)
		return rc;
	if (buf->arena)
		rv_wire_drop_arena(&c->wire, buf->arena);
	memset(buf, 0, sizeof(*buf));
	return 0;
}

void rv_buf_free(struct rv_buf *buf)
{
	struct rv_client *c = buf ? buf->client : NULL;

	if (!c)
		return;
	if (getpid() == c->pid) {
		if (buf->token)
			rv_wire_post(&c->wire, RV_LOCAL_FREE,
				     &(struct rv_local_req){.token = buf->token});
		if (buf->arena)
			rv_wire_drop_arena(&c->wire, buf->arena);
	}
	memset(buf, 0, sizeof(*buf));
}

/* Asking about a handle. */

/* Where a request goes: the handle, and one address of the owner. */
static void aim(struct rv_call *call, const struct rv_ref *ref, const char *literal)
{
	call->rq.worker = ref->handle.worker;
	call->rq.local = ref->handle.local;
	if (!literal)
		return;
	snprintf(call->rq.host, sizeof(call->rq.host), "%s", literal);
	call->rq.port = ref->port;
}

static struct rv_call *aimed_call(uint8_t op, const struct rv_ref *ref, const char *literal,
				  const struct rv_local_req *like)
{
	struct rv_call *call = new_call(op);

	if (!call)
		return NULL;
	call->rq.lease_id = like->lease_id;
	call->rq.path = like->path;
	call->rq.flags = like->flags;
	aim(call, ref, literal);
	return call;
}

/* The owner's addresses; none are needed where none was told, or for this node's own. @return how many, or a negative errno */
static int addresses(const struct rv_client *c, const struct rv_ref *ref,
		     char out[RV_LITERALS][RV_LITERAL_MAX])
{
	const char *why = "";
	int n;

	if (!ref->host[0] || ref->handle.worker == c->worker)
		return 0;
	n = rv_host_resolve(ref->host, out, &why);
	return n < 0 ? fail(n, "cannot find the owner's host %s: %s", ref->host, why) : n;
}

/* Ask one owner, at each of its addresses until one leads somewhere. On success the call is the caller's. */
static int ask_owner(struct rv_client *c, uint8_t op, const struct rv_ref *ref,
		     const struct rv_local_req *like, const struct rv_opts *o, struct rv_call **out)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct budget b = budget_of(c, o);
	struct rv_call *call;
	int nr, rc, i = 0;

	nr = addresses(c, ref, literal);
	if (nr < 0)
		return nr;
	do {
		call = aimed_call(op, ref, nr ? literal[i] : NULL, like);
		if (!call)
			return -ENOMEM;
		rc = ask(c, call, NULL, 0, &b);
	} while (rc == -EHOSTUNREACH && ++i < nr);
	if (!rc)
		*out = call;
	return rc;
}

static int simple(struct rv_client *c, uint8_t op, const struct rv_ref *ref, uint64_t lease,
		  const struct rv_opts *opts)
{
	struct rv_local_req like = {.lease_id = lease};
	struct rv_call *call;
	int rc = check(c);

	if (rc)
		return rc;
	if (!ref)
		return fail(-EINVAL, "no reference");
	rc = ask_owner(c, op, ref, &like, opts ? opts : &no_opts, &call);
	if (!rc)
		rv_call_free(call);
	return rc;
}

static struct rv_ref ref_of(struct rv_handle handle)
{
	return (struct rv_ref){.handle = handle};
}

int rv_metadata_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   struct rv_meta *meta)
{
	struct rv_local_req like = {0};
	struct rv_call *call;
	int rc = check(c);

	if (rc)
		return rc;
	if (!ref || !meta)
		return fail(-EINVAL, "no reference, or nowhere to put the answer");
	rc = ask_owner(c, RV_LOCAL_METADATA, ref, &like, opts ? opts : &no_opts, &call);
	if (rc)
		return rc;
	*meta = (struct rv_meta){call->rep.len, call->rep.refcount, call->rep.pinned};
	rv_call_free(call);
	return 0;
}

int rv_metadata(struct rv_client *c, struct rv_handle handle, struct rv_meta *meta)
{
	struct rv_ref ref = ref_of(handle);

	return rv_metadata_at(c, &ref, NULL, meta);
}

int rv_ref_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts)
{
	return simple(c, RV_LOCAL_REF, ref, 0, opts);
}

int rv_ref(struct rv_client *c, struct rv_handle handle)
{
	struct rv_ref ref = ref_of(handle);

	return simple(c, RV_LOCAL_REF, &ref, 0, NULL);
}

int rv_detach_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		 const struct rv_opts *opts)
{
	last_error[0] = '\0';
	if (lease == RV_NO_LEASE)
		return fail(-EINVAL, "no lease to end");
	return simple(c, RV_LOCAL_DETACH, ref, lease, opts);
}

int rv_detach(struct rv_client *c, struct rv_handle handle, uint64_t lease)
{
	struct rv_ref ref = ref_of(handle);

	return rv_detach_at(c, &ref, lease, NULL);
}

int rv_release_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		  const struct rv_opts *opts)
{
	return simple(c, RV_LOCAL_RELEASE, ref, lease, opts);
}

int rv_release(struct rv_client *c, struct rv_handle handle, uint64_t lease)
{
	struct rv_ref ref = ref_of(handle);

	return simple(c, RV_LOCAL_RELEASE, &ref, lease, NULL);
}

int rv_drop(struct rv_client *c, struct rv_handle handle)
{
	struct rv_ref ref = ref_of(handle);

	return simple(c, RV_LOCAL_DROP, &ref, 0, NULL);
}

/* Fetching. */

static struct rv_local_req get_like(const struct rv_opts *o)
{
	return (struct rv_local_req){
		.path = (uint32_t)o->path,
		.flags = o->keep ? RV_LOCAL_KEEP : 0,
	};
}

static void tell_how(const struct rv_local_rep *rep, struct rv_how *how)
{
	*how = (struct rv_how){.elapsed_ns = rep->elapsed_ns, .took = (enum rv_took)rep->path};
	snprintf(how->path, sizeof(how->path), "%s", rep->path_name);
}

/* Bytes without a place cannot be looked at. */
static int check_got(struct rv_client *c, struct rv_call *call)
{
	if (!call->rep.len || call->arena)
		return 0;
	rv_wire_give_up(&c->wire, call);
	return fail(-EPROTO, "the daemon did not say where the bytes are");
}

int rv_get_pinned_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		     struct rv_buf *buf, uint64_t *lease)
{
	const struct rv_opts *o = opts ? opts : &no_opts;
	struct rv_local_req like = get_like(o);
	struct rv_call *call;
	int rc = check(c);

	if (rc)
		return rc;
	if (!ref || !buf || !lease)
		return fail(-EINVAL, "no reference, or nowhere to put view and lease");
	rc = ask_owner(c, RV_LOCAL_GET, ref, &like, o, &call);
	if (!rc)
		rc = check_got(c, call);
	if (rc)
		return rc;
	*buf = buf_of(c, call);
	*lease = call->rep.lease_id;
	if (o->how)
		tell_how(&call->rep, o->how);
	rv_call_free(call);
	return 0;
}

int rv_get_pinned(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		  struct rv_buf *buf, uint64_t *lease)
{
	struct rv_ref ref = ref_of(handle);

	return rv_get_pinned_at(c, &ref, opts, buf, lease);
}

/* The caller gets nothing after all. */
static void forget_get(struct rv_client *c, const struct rv_ref *ref, struct rv_buf *buf,
		       uint64_t lease)
{
	struct rv_local_req rq = {
		.worker = ref->handle.worker,
		.local = ref->handle.local,
		.lease_id = lease,
	};

	rv_buf_free(buf);
	rv_wire_post(&c->wire, RV_LOCAL_DETACH, &rq);
}

int rv_get_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
	      void **data, uint64_t *len, uint64_t *lease)
{
	struct rv_buf buf;
	uint64_t id;
	void *copy;
	int rc;

	last_error[0] = '\0';
	if (!data || !len || !lease)
		return fail(-EINVAL, "nowhere to put data, length and lease");
	rc = rv_get_pinned_at(c, ref, opts, &buf, &id);
	if (rc)
		return rc;
	copy = malloc(buf.len ? buf.len : 1);
	if (!copy) {
		forget_get(c, ref, &buf, id);
		return no_memory();
	}
	if (buf.len)
		memcpy(copy, buf.data, buf.len);
	*data = copy;
	*len = buf.len;
	*lease = id;
	rv_buf_free(&buf);
	return 0;
}

int rv_get(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void **data,
	   uint64_t *len, uint64_t *lease)
{
	struct rv_ref ref = ref_of(handle);

	return rv_get_at(c, &ref, opts, data, len, lease);
}

int rv_get_into_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   void *dst, uint64_t cap, uint64_t *len, uint64_t *lease)
{
	struct rv_buf buf;
	uint64_t id;
	int rc;

	last_error[0] = '\0';
	if ((!dst && cap) || !len || !lease)
		return fail(-EINVAL, "nowhere to put data, length and lease");
	rc = rv_get_pinned_at(c, ref, opts, &buf, &id);
	if (rc)
		return rc;
	*len = buf.len;
	if (buf.len > cap) {
		forget_get(c, ref, &buf, id);
		return fail(-ERANGE, "%" PRIu64 " bytes do not fit into %" PRIu64, *len, cap);
	}
	if (buf.len)
		memcpy(dst, buf.data, buf.len);
	*lease = id;
	rv_buf_free(&buf);
	return 0;
}

int rv_get_into(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void *dst,
		uint64_t cap, uint64_t *len, uint64_t *lease)
{
	struct rv_ref ref = ref_of(handle);

	return rv_get_into_at(c, &ref, opts, dst, cap, len, lease);
}

void rv_free(void *data)
{
	free(data);
}

/* Many at once. */

/** What rv_get_many() is about; refs is NULL when handles are given. */
struct many {
	struct rv_client *c;
	const struct rv_handle *handles;
	const struct rv_ref *refs;
	const struct rv_opts *opts;
	struct budget b;
	struct rv_call *call[MANY_WINDOW];
};

static struct rv_ref ref_at(const struct many *m, size_t i)
{
	return m->refs ? m->refs[i] : ref_of(m->handles[i]);
}

static void many_failed(struct rv_result *res, int rc)
{
	*res = (struct rv_result){.rc = rc};
	snprintf(res->error, sizeof(res->error), "%.*s", (int)sizeof(res->error) - 1, last_error);
}

static void many_start(struct many *m, size_t i, struct rv_result *res)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct rv_local_req like = get_like(m->opts);
	struct rv_ref ref = ref_at(m, i);
	struct rv_call *call;
	int rc = addresses(m->c, &ref, literal);

	m->call[i % MANY_WINDOW] = NULL;
	if (rc < 0) {
		many_failed(res, rc);
		return;
	}
	call = aimed_call(RV_LOCAL_GET, &ref, rc ? literal[0] : NULL, &like);
	if (!call) {
		many_failed(res, -ENOMEM);
		return;
	}
	call->rq.timeout_ns = left_of(&m->b);
	rc = rv_wire_send(&m->c->wire, call, NULL, 0, m->b.deadline_ns);
	if (rc) {
		many_failed(res, end_failed(m->c, call, rc));
		return;
	}
	m->call[i % MANY_WINDOW] = call;
}

/* The owner's first address led nowhere: try them all, one after another. */
static void many_again(struct many *m, size_t i, struct rv_result *res)
{
	struct rv_ref ref = ref_at(m, i);
	struct rv_opts o = *m->opts;
	struct rv_result r = {0};

	o.how = &r.how;
	r.rc = rv_get_pinned_at(m->c, &ref, &o, &r.buf, &r.lease);
	if (r.rc)
		many_failed(res, r.rc);
	else
		*res = r;
}

static void many_finish(struct many *m, size_t i, struct rv_result *res)
{
	struct rv_call *call = m->call[i % MANY_WINDOW];
	int rc;

	if (!call)
		return; /* it failed at once */
	rc = rv_wire_wait(&m->c->wire, call, m->b.deadline_ns);
	if (rc)
		end_failed(m->c, call, rc);
	else
		rc = check_got(m->c, call);
	if (rc == -EHOSTUNREACH && m->refs && m->refs[i].host[0]) {
		many_again(m, i, res);
		return;
	}
	if (rc) {
		many_failed(res, rc);
		return;
	}
	*res = (struct rv_result){.buf = buf_of(m->c, call), .lease = call->rep.lease_id};
	tell_how(&call->rep, &res->how);
	rv_call_free(call);
}

static int get_many(struct many *m, size_t nr, struct rv_result *res)
{
	size_t sent = 0, bad = nr;

	m->b = budget_of(m->c, m->opts);
	for (size_t i = 0; i < nr; i++) {
		for (; sent < nr && sent < i + MANY_WINDOW; sent++)
			many_start(m, sent, &res[sent]);
		many_finish(m, i, &res[i]);
		if (res[i].rc && bad == nr)
			bad = i;
	}
	return bad == nr ? 0 : fail(res[bad].rc, "%s", res[bad].error);
}

static int many_check(const struct rv_client *c, const void *what, size_t nr,
		      const struct rv_result *res)
{
	int rc = check(c);

	if (!rc && nr && (!what || !res))
		rc = fail(-EINVAL, "no handles, or nowhere to put the results");
	return rc;
}

int rv_get_many(struct rv_client *c, const struct rv_handle *handles, size_t nr,
		const struct rv_opts *opts, struct rv_result *res)
{
	struct many m = {.c = c, .handles = handles, .opts = opts ? opts : &no_opts};
	int rc = many_check(c, handles, nr, res);

	return rc ? rc : get_many(&m, nr, res);
}

int rv_get_many_at(struct rv_client *c, const struct rv_ref *refs, size_t nr,
		   const struct rv_opts *opts, struct rv_result *res)
{
	struct many m = {.c = c, .refs = refs, .opts = opts ? opts : &no_opts};
	int rc = many_check(c, refs, nr, res);

	return rc ? rc : get_many(&m, nr, res);
}

/* Peers and state. */

static int name_peer(struct rv_call *call, const char *name)
{
	if (name && strlen(name) >= sizeof(call->rq.name))
		return fail(-EINVAL, "a peer's name has at most %zu bytes",
			    sizeof(call->rq.name) - 1);
	if (name)
		strcpy(call->rq.name, name);
	return 0;
}

static int add_peer(struct rv_client *c, const char *name, const struct rv_ref *at,
		    const char *literal, const void *info, size_t len, uint64_t *worker)
{
	struct rv_call *call = new_call(RV_LOCAL_PEER_ADD);
	struct budget b = budget_of(c, &no_opts);
	int rc;

	if (!call)
		return -ENOMEM;
	aim(call, at, literal);
	rc = name_peer(call, name);
	if (rc) {
		rv_call_free(call);
		return rc;
	}
	rc = ask(c, call, info, len, &b);
	if (rc)
		return rc;
	if (worker)
		*worker = call->rep.worker;
	rv_call_free(call);
	return 0;
}

int rv_peer_add(struct rv_client *c, const char *name, const void *info, size_t len,
		uint64_t *worker)
{
	static const struct rv_ref nowhere;
	int rc = check(c);

	if (rc)
		return rc;
	if (!info || !len || len > RV_LOCAL_PAYLOAD_MAX)
		return fail(-EINVAL, "no PeerInfo: it is empty or too long");
	return add_peer(c, name, &nowhere, NULL, info, len, worker);
}

int rv_peer_add_at(struct rv_client *c, const char *name, const char *host, uint16_t port,
		   uint64_t *worker)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct rv_ref at = {.port = port};
	int nr, rc = check(c);

	if (rc)
		return rc;
	if (!host || !*host || strlen(host) >= sizeof(at.host) || !port)
		return fail(-EINVAL, "no host and port");
	strcpy(at.host, host);
	nr = addresses(c, &at, literal);
	if (nr < 0)
		return nr;
	for (int i = 0; i < nr; i++) {
		rc = add_peer(c, name, &at, literal[i], NULL, 0, worker);
		if (rc != -EHOSTUNREACH)
			break;
	}
	return rc;
}

/* A call whose answer is its payload. */
static int fetch_text(struct rv_client *c, uint8_t op, uint32_t what, char **out, size_t *len)
{
	struct rv_call *call = new_call(op);
	struct budget b = budget_of(c, &no_opts);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.what = what;
	rc = ask(c, call, NULL, 0, &b);
	if (rc)
		return rc;
	if (!call->payload) {
		rv_call_free(call);
		return fail(-EPROTO, "the daemon's answer is empty");
	}
	*out = call->payload;
	if (len)
		*len = call->payload_len;
	call->payload = NULL;
	rv_call_free(call);
	return 0;
}

int rv_peer_info(struct rv_client *c, bool msgpack, void **info, size_t *len)
{
	char *text;
	int rc = check(c);

	if (rc)
		return rc;
	if (!info || !len)
		return fail(-EINVAL, "nowhere to put the PeerInfo");
	rc = fetch_text(c, RV_LOCAL_PEER_INFO, msgpack, &text, len);
	if (!rc)
		*info = text;
	return rc;
}

int rv_list(struct rv_client *c, enum rv_table what, char **json, size_t *len)
{
	static const enum rv_local_list lists[] = {
		[RV_TABLE_STATUS] = RV_LOCAL_LIST_STATUS, [RV_TABLE_SLOTS] = RV_LOCAL_LIST_SLOTS,
		[RV_TABLE_LEASES] = RV_LOCAL_LIST_LEASES, [RV_TABLE_ARENAS] = RV_LOCAL_LIST_ARENAS,
		[RV_TABLE_PEERS] = RV_LOCAL_LIST_PEERS,
	};
	int rc = check(c);

	if (rc)
		return rc;
	if (!json || (unsigned)what >= RV_ARRAY_NR(lists))
		return fail(-EINVAL, "no such list, or nowhere to put it");
	return fetch_text(c, RV_LOCAL_LIST, lists[what], json, len);
}
