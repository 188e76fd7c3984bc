#include "control/local/session.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control/local/lists.h"
#include "control/local/local_proto.h"
#include "control/local/session_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

static void release_all(struct session *s);

/* Replies. */

void rv_session_reply(struct session *s, const struct rv_local_rep *rep, unsigned op,
		      const void *payload, size_t len, int fd)
{
	if (!s->open)
		return;
	if (rv_session_send(s, op | RV_LOCAL_REPLY, rep, payload, len, fd))
		rv_conn_close(&s->conn, -ENOMEM);
}

int rv_session_show(struct session *s, struct rv_local_rep *rep, unsigned op, struct buffer *b)
{
	int fd = rv_session_describe_block(s, b->block, rep);
	int rc = s->open ? rv_session_send(s, op | RV_LOCAL_REPLY, rep, NULL, 0, fd) : 0;

	if (rc == -EMFILE) {
		rv_map64_del(&s->shown, b->block->arena->id);
		rv_buffer_free(s, b, true);
		return rc;
	}
	if (rc)
		rv_conn_close(&s->conn, -ENOMEM);
	return 0;
}

void rv_session_refuse(struct session *s, const struct rv_local_req *rq, unsigned op, int rc,
		       const char *fmt, ...)
{
	struct rv_local_rep rep = {.id = rq->id, .rc = rc};
	char text[400];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	n = n < (int)sizeof(text) ? n : (int)sizeof(text) - 1;
	rv_session_reply(s, &rep, op, text, (size_t)n, -1);
}

static bool nobody_hears(const struct session *s)
{
	return s->process_over || s->conn.unheard;
}

/*
 * A program that does not read its replies, or has very many requests open, is not read any further. One that is no more is
 * read to its end, but does not get to open more requests either.
 */
static void update_pause(struct session *s)
{
	bool before = s->conn.paused, many = s->requests >= RV_SESSION_REQUESTS;

	if (!s->open)
		return;
	if (many && nobody_hears(s)) {
		rv_conn_close(&s->conn, -ECONNRESET);
		return;
	}
	rv_conn_pause(&s->conn,
		      many || (s->conn.tx_queued >= RV_SESSION_UNREAD && !nobody_hears(s)));
	if (before && !s->conn.paused)
		rv_session_queue_look(s);
}

struct pending *rv_pending_new(struct session *s, unsigned op, const struct rv_local_req *rq)
{
	struct pending *p = calloc(1, sizeof(*p));

	if (!p) {
		rv_session_refuse(s, rq, op, -ENOMEM, "out of memory");
		return NULL;
	}
	rv_list_init(&p->link);
	p->s = s;
	p->op = op;
	p->rq = *rq;
	s->refs++;
	s->requests++;
	s->local->pending++;
	return p;
}

void rv_pending_end(struct pending *p)
{
	struct session *s = p->s;

	s->local->pending--;
	s->requests--;
	update_pause(s);
	free(p);
	rv_session_drop(s);
}

void rv_pending_refuse(struct pending *p, int rc, const char *text)
{
	rv_session_refuse(p->s, &p->rq, p->op, rc, "%s", text && *text ? text : rv_err_name(rc));
	rv_pending_end(p);
}

struct rv_port *rv_session_port(const struct session *s)
{
	return s->local->conf.reactor->port;
}

/* A cell for @p; without one the request is refused. */
struct rv_cell *rv_pending_cell(struct pending *p)
{
	struct rv_cell *c = rv_cell_alloc(rv_session_port(p->s));

	if (!c) {
		rv_pending_refuse(p, -EAGAIN, "the daemon is too busy, try again");
		return NULL;
	}
	c->ctx = p;
	return c;
}

/* With queues, if it asks for them and they can be had. */
static void welcome(struct session *s, const struct rv_local_req *rq, struct rv_local_rep *rep)
{
	int fd = rq->flags & RV_LOCAL_QUEUES ? rv_session_queue_open(s) : -1;
	int rc;

	rep->has_fd = fd >= 0;
	rep->arena_len = fd >= 0 ? RV_SHMQ_LEN : 0;
	rc = rv_session_send(s, RV_LOCAL_HELLO | RV_LOCAL_REPLY, rep, NULL, 0, fd);
	if (rc == -EMFILE) {
		rv_session_queue_close(s);
		rep->has_fd = 0;
		rep->arena_len = 0;
		rc = rv_session_send(s, RV_LOCAL_HELLO | RV_LOCAL_REPLY, rep, NULL, 0, -1);
	}
	if (fd >= 0)
		close(fd);
	if (rc)
		rv_conn_close(&s->conn, -ENOMEM);
}

static void run_hello(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id,
				   .version = RV_LOCAL_VERSION,
				   .worker = s->local->conf.worker};

	if (rq->version < 1) {
		rv_session_refuse(s, rq, RV_LOCAL_HELLO, -EPROTO,
				  "version %u of the local protocol is not spoken here",
				  rq->version);
		return;
	}
	if (s->unwatched) {
		rv_session_refuse(
			s, rq, RV_LOCAL_HELLO, -EMFILE,
			"the daemon has no file descriptor left for this session (LimitNOFILE)");
		rv_conn_finish(&s->conn, -EMFILE);
		return;
	}
	s->greeted = true;
	rep.len = s->local->conf.threshold;
	welcome(s, rq, &rep);
}

/* Frames. */

static struct session *of_conn(struct rv_conn *c)
{
	return RV_CONTAINER(c, struct session, conn);
}

int rv_session_decode(const uint8_t p[RV_FRAME_PREAMBLE], struct rv_preamble *out)
{
	struct rv_local_preamble lp;
	int rc = rv_local_preamble_take(p, &lp);

	if (rc)
		return rc;
	*out = (struct rv_preamble){(enum rv_frame_type)lp.op, lp.header_len, lp.payload_len};
	return 0;
}

static void encode(uint8_t p[RV_FRAME_PREAMBLE], const struct rv_preamble *in)
{
	struct rv_local_preamble lp = {(uint8_t)in->type, in->header_len, in->payload_len};

	rv_local_preamble_put(p, &lp);
}

static void take_request(const struct rv_preamble *pre, const uint8_t *header,
			 struct rv_local_req *rq)
{
	memset(rq, 0, sizeof(*rq));
	memcpy(rq, header, rv_min_u64(pre->header_len, sizeof(*rq)));
	rq->host[sizeof(rq->host) - 1] = '\0';
	rq->name[sizeof(rq->name) - 1] = '\0';
}

static void *place(struct session *s, const struct rv_preamble *pre, const uint8_t *header)
{
	struct rv_local_req rq;

	if (pre->type != (enum rv_frame_type)RV_LOCAL_WRITE || !s->greeted)
		return NULL;
	take_request(pre, header, &rq);
	return rv_session_write_place(s, &rq, pre->payload_len);
}

static void deal_with(struct session *s, const struct rv_preamble *pre, const uint8_t *header,
		      const uint8_t *payload, bool placed)
{
	unsigned op = (unsigned)pre->type;
	struct rv_local_req rq;

	take_request(pre, header, &rq);
	if (!s->greeted && op != RV_LOCAL_HELLO) {
		rv_session_refuse(s, &rq, op, -EPROTO, "the first request must be HELLO");
		rv_conn_finish(&s->conn, -EPROTO);
		return;
	}
	switch ((enum rv_local_op)op) {
	case RV_LOCAL_HELLO:
		run_hello(s, &rq);
		break;
	case RV_LOCAL_ALLOC:
		rv_session_alloc(s, &rq);
		break;
	case RV_LOCAL_WRITE:
		rv_session_write(s, &rq, pre->payload_len, placed);
		break;
	case RV_LOCAL_COMMIT:
		rv_session_commit(s, &rq);
		break;
	case RV_LOCAL_FREE:
		rv_session_free(s, &rq);
		break;
	case RV_LOCAL_GET:
	case RV_LOCAL_METADATA:
	case RV_LOCAL_REF:
	case RV_LOCAL_DETACH:
	case RV_LOCAL_RELEASE:
	case RV_LOCAL_DROP:
		rv_session_op(s, op, &rq);
		break;
	case RV_LOCAL_GET_MANY:
		rv_session_get_many(s, &rq, payload, pre->payload_len);
		break;
	case RV_LOCAL_PEER_ADD:
		rv_session_peer_add(s, &rq, payload, pre->payload_len);
		break;
	case RV_LOCAL_PEER_INFO:
		rv_session_peer_info(s, &rq);
		break;
	case RV_LOCAL_LIST:
		rv_local_list(s, &rq);
		break;
	case RV_LOCAL_ADMIN:
		rv_session_admin(s, &rq);
		break;
	case RV_LOCAL_SERVE:
		rv_session_serve(s, &rq);
		break;
	case RV_LOCAL_UNSERVE:
		rv_session_unserve(s, &rq);
		break;
	case RV_LOCAL_ANSWER:
		rv_session_answer(s, &rq, payload, pre->payload_len);
		break;
	case RV_LOCAL_CALL:
	case RV_LOCAL_HANDLERS:
		rv_session_call(s, op, &rq, payload, pre->payload_len);
		break;
	case RV_LOCAL_REGION_REGISTER:
		rv_session_region_register(s, &rq, rv_conn_take_fd(&s->conn));
		break;
	case RV_LOCAL_REGION_STAGE:
		rv_session_region_stage(s, &rq);
		break;
	case RV_LOCAL_REGION_UNREGISTER:
		rv_session_region_unregister(s, &rq);
		break;
	case RV_LOCAL_REGION_WATCH:
		rv_session_region_watch(s, &rq);
		break;
	case RV_LOCAL_BELL: /* what it is for was done before */
		break;
	default:
		rv_session_refuse(s, &rq, op, -ENOTSUP, "operation %u is not known to this daemon",
				  op);
		break;
	}
	update_pause(s);
}

void rv_session_take_whole(struct session *s, const struct rv_preamble *pre, const uint8_t *bytes)
{
	const uint8_t *payload = bytes + pre->header_len;
	void *to = pre->payload_len ? place(s, pre, bytes) : NULL;

	if (to)
		memcpy(to, payload, pre->payload_len);
	deal_with(s, pre, bytes, payload, to != NULL);
}

/* What came before it comes first. */
static void *on_place(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header)
{
	struct session *s = of_conn(c);

	rv_session_queue_drain(s);
	return c->closing ? NULL : place(s, pre, header);
}

static void on_frame(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header,
		     const uint8_t *payload, bool placed)
{
	struct session *s = of_conn(c);

	rv_session_queue_drain(s);
	if (c->closing)
		return;
	deal_with(s, pre, header, payload, placed);
	s->frames++;
	if (s->queue)
		rv_shmq_other_taken(&s->queue->in);
	rv_session_queue_look(s);
}

/* The end of a session. */

/* The process can touch nothing any more: every range it held goes back. */
static void release_all(struct session *s)
{
	struct rv_list *it, *tmp;

	if (s->gone)
		return;
	s->gone = true;
	RV_LIST_EACH_SAFE(it, tmp, &s->buffer_list)
	{
		struct buffer *b = RV_LIST_ENTRY(it, struct buffer, link);

		if (!b->busy) /* committed() ends those */
			rv_buffer_free(s, b, true);
	}
	rv_session_tell_end(s);
	if (s->exit_op.pending) /* its process may live on, and open others */
		rv_uring_cancel(s->local->conf.ring, &s->exit_op);
	rv_session_drop(s);
}

void rv_session_settle(struct session *s)
{
	if (!s->open && !s->buffers.nr)
		release_all(s);
}

static void process_ended(struct rv_op *op, int res, uint32_t flags)
{
	struct session *s = RV_CONTAINER(op, struct session, exit_op);

	(void)res;
	(void)flags;
	close(s->pidfd);
	s->pidfd = -1;
	s->process_over = true;
	if (s->open) { /* its last frames may be unread, and a child of its may hold the socket */
		rv_conn_hang_up(&s->conn);
		update_pause(s);
	} else {
		release_all(s);
	}
	rv_session_drop(s);
}

static void on_closed(struct rv_conn *c, int rc)
{
	struct session *s = of_conn(c);

	/* As what was in the socket when the program closed it. */
	if (rc == -ECONNRESET && !s->local->stopping)
		rv_session_queue_drain(s);
	rv_session_queue_close(s);
	s->open = false;
	rv_served_remove_all(s->local->conf.messenger, &s->server);
	rv_session_end_leases(s);
	rv_session_end_regions(s);
	rv_counter_sub(&s->local->open, 1);
	/* Closed in good order it has nothing mapped that we gave it; else wait for the process to end. */
	if (s->process_over || s->pidfd < 0 || !s->buffers.nr || s->local->stopping)
		release_all(s);
	rv_session_drop(s);
}

void rv_session_drop(struct session *s)
{
	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the caller has a reference, it is there */
	if (--s->refs)
		return;
	RV_CHECK(!s->buffers.nr);
	rv_list_del(&s->link);
	rv_map64_fini(&s->buffers);
	rv_map64_fini(&s->shown);
	free(s);
}

static void on_drained(struct rv_conn *c)
{
	if (c->unheard)
		rv_conn_hang_up(c);
	update_pause(of_conn(c));
}

static const struct rv_conn_ops conn_ops = {
	.fds = true,
	.drained = on_drained,
	.decode = rv_session_decode,
	.encode = encode,
	.place = on_place,
	.frame = on_frame,
	.closed = on_closed,
};

static void watch_process(struct session *s, pid_t pid)
{
	struct io_uring_sqe *sqe;

	s->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (s->pidfd < 0) {
		/* Its ranges would go back when it closes, while its process may still have them mapped. */
		s->unwatched = errno == EMFILE || errno == ENFILE;
		return;
	}
	s->exit_op.done = process_ended;
	sqe = rv_uring_sqe(s->local->conf.ring);
	io_uring_prep_poll_add(sqe, s->pidfd, POLLIN);
	rv_uring_bind(s->local->conf.ring, sqe, &s->exit_op);
	s->refs++;
}

static void accepted(void *user, int fd)
{
	struct rv_local *l = user;
	struct session *s = calloc(1, sizeof(*s));
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int buf = 4 << 20;

	if (!s || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
		free(s);
		close(fd);
		return;
	}
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buf, sizeof(buf));
	s->local = l;
	s->id = ++l->last_session;
	s->uid = cred.uid;
	s->home = l->conf.engines->engine[s->id % l->conf.engines->nr];
	s->refs = 2; /* the connection's, and the memory's until release_all() */
	s->open = true;
	rv_list_init(&s->regions);
	rv_list_init(&s->buffer_list);
	rv_list_push(&l->sessions, &s->link);
	rv_counter_add(&l->open, 1);
	rv_conn_open(&s->conn, &conn_ops, l->conf.ring, l->conf.reactor, fd);
	watch_process(s, cred.pid);
}

struct rv_local *rv_local_create(const struct rv_local_conf *conf)
{
	struct rv_local *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->conf = *conf;
	l->retry.fn = rv_local_pay_owed;
	l->get_retry.fn = rv_local_retry_gets;
	rv_list_init(&l->waiting_gets);
	rv_list_init(&l->sessions);
	rv_list_init(&l->owed);
	rv_list_init(&l->looked_at);
	return l;
}

void rv_local_listen(struct rv_local *l, int fd)
{
	rv_local_poll_queues(l);
	rv_listener_start(&l->listener, l->conf.ring, l->conf.reactor, fd, accepted, l);
}

unsigned rv_local_stop(struct rv_local *l)
{
	struct rv_list *it;
	unsigned left = 0;

	l->stopping = true;
	rv_listener_stop(&l->listener);
	RV_LIST_EACH(it, &l->sessions)
	{
		struct session *s = RV_LIST_ENTRY(it, struct session, link);

		left++;
		if (s->open)
			rv_conn_close(&s->conn, -ESHUTDOWN);
		if (s->exit_op.pending)
			rv_uring_cancel(l->conf.ring, &s->exit_op);
	}
	return left + l->listener.op.pending + !rv_list_empty(&l->owed);
}

void rv_local_destroy(struct rv_local *l)
{
	if (!l)
		return;
	RV_CHECK(rv_list_empty(&l->sessions));
	if (l->polls_queues)
		rv_reactor_remove(l->conf.reactor, &l->queues);
	free(l);
}

uint64_t rv_local_sessions(const struct rv_local *l)
{
	return rv_counter_get(&l->open);
}
