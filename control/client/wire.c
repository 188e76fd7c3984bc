#include "control/client/wire_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

/* For what is sent without waiting for an answer. */
#define POST_NS RV_SEC(5)

/* How long who waits for room leaves the reading to another, before it looks whether it must read itself. */
#define ROOM_SLICE_NS RV_MS(50)

static const char text_closed[] = "the daemon closed the connection";

static void set_text(char out[RV_WIRE_TEXT], const char *text)
{
	snprintf(out, RV_WIRE_TEXT, "%s", text);
}

/*
 * rv_event_fd() is to be seen. Under the lock. Once is enough until it is taken note of; but not for who waits for an
 * edge while nobody would wake it for what comes into the queue: that one must come back after each turn.
 */
void rv_wire_kick(struct rv_wire *w)
{
	uint64_t one = 1;

	if (w->ep < 0 || (w->kicked && rv_wire_queue_rests(w)))
		return;
	w->kicked = write(w->event, &one, sizeof(one)) == sizeof(one);
}

void rv_wire_settle(struct rv_wire *w, struct rv_call *call, int rc, const char *text)
{
	rv_map64_del(&w->calls, call->rq.id);
	rv_list_del(&call->link);
	rv_list_del(&call->naming);
	w->async_nr -= call->async;
	call->rc = rc;
	if (text)
		set_text(call->text, text);
	call->done = true;
	if (call->given_up) {
		rv_list_push(&w->undo, &call->link);
	} else if (call->async) {
		rv_list_push(&w->ready, &call->link);
		if (!w->turning)
			rv_wire_kick(w);
	} else {
		rv_call_wake(call);
	}
}

/* Nothing works any more: every call ends. Under the lock. */
void rv_wire_kill_locked(struct rv_wire *w, int rc, const char *text)
{
	if (!w->dead) {
		w->dead = rc;
		set_text(w->dead_text, text);
		shutdown(w->fd, SHUT_RDWR); /* wakes the reading thread */
	}
	while (!rv_list_empty(&w->order))
		rv_wire_settle(w, RV_LIST_ENTRY(w->order.next, struct rv_call, link), w->dead,
			       w->dead_text);
	if (w->server)
		rv_call_wake(w->server);
}

static void kill_wire(struct rv_wire *w, int rc, const char *text)
{
	pthread_mutex_lock(&w->lock);
	rv_wire_kill_locked(w, rc, text);
	pthread_mutex_unlock(&w->lock);
}

static int dead(struct rv_wire *w)
{
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = w->dead;
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Sending. */

/* Wait until one of @events. @return 0, -ETIMEDOUT or another negative errno */
static int until_ready(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd p = {.fd = fd, .events = events};

	for (;;) {
		uint64_t now = rv_clock_ns();
		struct timespec left = {0};
		int rc;

		if (now < deadline_ns) {
			uint64_t ns = deadline_ns - now;

			left.tv_sec = (time_t)rv_min_u64(ns / RV_SEC(1), INT32_MAX);
			left.tv_nsec = (long)(ns % RV_SEC(1));
		}
		rc = ppoll(&p, 1, deadline_ns == RV_NEVER ? NULL : &left, NULL);
		if (rc > 0)
			return 0;
		if (rc == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

static int tx_dead(void *user)
{
	return dead(user);
}

static void tx_broken(void *user, const char *text)
{
	kill_wire(user, -ENOTCONN, text);
}

/*
 * A daemon whose replies nobody reads reads no requests either: who waits for room reads as well, unless
 * somebody does already.
 */
static int tx_wait(void *user, uint64_t deadline_ns)
{
	struct rv_wire *w = user;
	uint64_t slice_ns = rv_sat_add(rv_clock_ns(), ROOM_SLICE_NS);
	bool mine;
	int rc, broken = 0;

	pthread_mutex_lock(&w->lock);
	mine = !w->reading;
	w->reading = true;
	pthread_mutex_unlock(&w->lock);
	if (mine) {
		rc = rv_wire_queue_rest(w);
		broken = rc < 0 ? rc : 0;
	}
	rc = until_ready(w->fd, (short)(POLLOUT | (mine ? POLLIN : 0)),
			 rv_min_u64(deadline_ns, slice_ns));
	if (mine && !rc && !broken)
		broken = rv_wire_read(w, MSG_DONTWAIT);
	if (mine) {
		pthread_mutex_lock(&w->lock);
		w->reading = false;
		if (broken)
			rv_wire_kill_locked(w, broken, rv_wire_broken_text(broken));
		rv_wire_pass_on(w);
		pthread_mutex_unlock(&w->lock);
	}
	return rc == -ETIMEDOUT && rv_clock_ns() < deadline_ns ? 0 : rc;
}

/* Frames wait for room: only then does room wake rv_event_fd(). */
static void tx_waiting(void *user, bool any)
{
	struct rv_wire *w = user;
	struct epoll_event ev = {
		.events = EPOLLIN | EPOLLET | (any ? (uint32_t)EPOLLOUT : 0),
		.data.fd = w->fd,
	};

	pthread_mutex_lock(&w->lock);
	if (w->ep >= 0)
		epoll_ctl(w->ep, EPOLL_CTL_MOD, w->fd, &ev);
	pthread_mutex_unlock(&w->lock);
}

static const struct rv_tx_ops tx_ops = {
	.wait = tx_wait,
	.waiting = tx_waiting,
	.dead = tx_dead,
	.broken = tx_broken,
};

static int send_frame(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq,
		      const void *payload, size_t len, uint64_t deadline_ns)
{
	struct rv_tx_frame f = {.rq = *rq, .op = op, .data = payload, .len = len};

	return rv_tx_send(&w->tx, &f, deadline_ns);
}

void rv_wire_explain(struct rv_wire *w, struct rv_call *call, int rc)
{
	pthread_mutex_lock(&w->lock);
	call->rc = rc;
	set_text(call->text, rc == -ETIMEDOUT ? "the daemon does not read its socket"
			     : w->dead        ? w->dead_text
					      : rv_err_name(rc));
	pthread_mutex_unlock(&w->lock);
}

static int enter(struct rv_wire *w, struct rv_call *call)
{
	int rc = w->dead;

	call->rq.id = ++w->last_id;
	if (!rc)
		rc = rv_map64_put(&w->calls, call->rq.id, call);
	if (!rc) {
		rv_list_push(&w->order, &call->link);
		if (call->op == RV_LOCAL_GET || call->op == RV_LOCAL_ALLOC)
			rv_list_push(&w->naming, &call->naming);
		w->async_nr += call->async;
		call->sent = true;
		/* Its reply may come where only rv_progress() looks. */
		if (call->async && !w->reading && !rv_wire_queue_rests(w))
			rv_wire_kick(w);
	}
	return rc;
}

/* The reply may come before the send returns, so the call is known first. */
int rv_wire_enter(struct rv_wire *w, struct rv_call *call)
{
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = enter(w, call);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Take back a call that was not sent, unless it has ended with the connection. @return whether it had not */
bool rv_wire_leave(struct rv_wire *w, struct rv_call *call)
{
	bool left;

	pthread_mutex_lock(&w->lock);
	left = !call->done;
	if (left) {
		rv_map64_del(&w->calls, call->rq.id);
		rv_list_del(&call->link);
		rv_list_del(&call->naming);
		w->async_nr -= call->async;
		call->sent = false;
	}
	pthread_mutex_unlock(&w->lock);
	return left;
}

int rv_wire_send(struct rv_wire *w, struct rv_call *call, const void *payload, size_t len,
		 uint64_t deadline_ns)
{
	int rc = rv_wire_enter(w, call);

	if (!rc) {
		rc = send_frame(w, call->op, &call->rq, payload, len, deadline_ns);
		if (rc)
			rv_wire_leave(w, call);
	}
	if (rc)
		rv_wire_explain(w, call, rc);
	return rc;
}

int rv_wire_send_many(struct rv_wire *w, struct rv_call *const *calls, size_t nr,
		      uint64_t deadline_ns)
{
	struct rv_local_one one[RV_LOCAL_MANY_MAX];
	struct rv_local_req rq;
	size_t known = 0;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	for (; known < nr && !rc; known++) {
		struct rv_call *c = calls[known];

		rc = enter(w, c);
		one[known] = (struct rv_local_one){c->rq.id, c->rq.worker, c->rq.local};
	}
	pthread_mutex_unlock(&w->lock);
	rq = calls[0]->rq;
	rq.flags |= RV_LOCAL_TOGETHER;
	if (!rc)
		rc = send_frame(w, RV_LOCAL_GET_MANY, &rq, one, nr * sizeof(one[0]), deadline_ns);
	for (size_t i = 0; i < nr && rc; i++) {
		if (i < known)
			rv_wire_leave(w, calls[i]);
		rv_wire_explain(w, calls[i], rc);
	}
	return rc;
}

int rv_wire_send_fd(struct rv_wire *w, struct rv_call *call, int fd, uint64_t deadline_ns)
{
	struct rv_tx_frame f = {.op = call->op, .with_fd = true, .fd = fd};
	int rc = rv_wire_enter(w, call);

	f.rq = call->rq;
	if (!rc) {
		rc = rv_tx_send(&w->tx, &f, deadline_ns);
		if (rc)
			rv_wire_leave(w, call);
	}
	if (rc)
		rv_wire_explain(w, call, rc);
	return rc;
}

int rv_wire_send_more(struct rv_wire *w, struct rv_call *call, const void *payload, size_t len,
		      uint64_t deadline_ns)
{
	return send_frame(w, call->op, &call->rq, payload, len, deadline_ns);
}

/*
 * A program that uses asynchronous calls does not wait for room. What is posted gives something back that came
 * with a reply: so there is an end to it. @return false: send it the other way
 */
static bool queue_frame(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq,
			const char *text)
{
	struct rv_tx_frame *f;
	bool queues;

	pthread_mutex_lock(&w->lock);
	queues = w->ep >= 0;
	pthread_mutex_unlock(&w->lock);
	f = queues ? rv_tx_frame_new(op, rq, text, strlen(text)) : NULL;
	if (f && rv_tx_queue(&w->tx, f, true))
		rv_tx_frame_free(f);
	return f != NULL;
}

/* @return whether other views have it still */
static bool leave_token(struct rv_wire *w, uint64_t token)
{
	uintptr_t others;

	pthread_mutex_lock(&w->lock);
	others = (uintptr_t)rv_map64_get(&w->shared, token);
	if (others > 1)
		rv_map64_put(&w->shared, token,
			     (void *)(others - 1)); /* there is room: it replaces */
	else
		rv_map64_del(&w->shared, token);
	if (!others)
		rv_map64_del(&w->tokens, token);
	pthread_mutex_unlock(&w->lock);
	return others != 0;
}

/* @param text  a literal: it is sent later, perhaps */
static void post(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq, const char *text)
{
	if (op == RV_LOCAL_FREE && leave_token(w, rq->token))
		return;
	if (!queue_frame(w, op, rq, text))
		send_frame(w, op, rq, text, strlen(text), rv_sat_add(rv_clock_ns(), POST_NS));
}

void rv_wire_post(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq)
{
	post(w, op, rq, "");
}

/*
 * What a reply gave us goes back: for a call that nobody waits for, or one whose gift is
 * unusable.
 */
static void undo_reply(struct rv_wire *w, const struct rv_call *call)
{
	struct rv_local_req rq = {.token = call->rep.token};

	if (call->rep.rc || !call->done)
		return;
	if (call->op == RV_LOCAL_REGION_REGISTER) {
		rq.flags = RV_LOCAL_DROPPED;
		rv_wire_post(w, RV_LOCAL_REGION_UNREGISTER, &rq);
		return;
	}
	if (rq.token)
		rv_wire_post(w, RV_LOCAL_FREE, &rq);
	if (call->op == RV_LOCAL_REQUEST) {
		rq = (struct rv_local_req){.token = call->rep.id, .flags = RV_LOCAL_FAILED};
		if (rq.token)
			post(w, RV_LOCAL_ANSWER, &rq, "this program serves no handler");
		return;
	}
	rq = call->rq;
	rq.id = 0; /* answers to nobody */
	if (call->op == RV_LOCAL_GET && call->rep.lease_id) {
		rq.lease_id = call->rep.lease_id;
		rv_wire_post(w, RV_LOCAL_DETACH, &rq);
	}
	if ((call->op == RV_LOCAL_COMMIT || call->op == RV_LOCAL_REGION_STAGE) && call->rep.local) {
		rq.worker = call->rep.worker;
		rq.local = call->rep.local;
		rv_wire_post(w, RV_LOCAL_DROP, &rq);
	}
}

static void end_given_up(struct rv_wire *w, struct rv_call *call)
{
	if (!dead(w))
		undo_reply(w, call);
	if (call->arena)
		rv_wire_drop_arena(w, call->arena);
	rv_call_free(call);
}

void rv_wire_run_undo(struct rv_wire *w)
{
	struct rv_list todo, *it;

	rv_list_init(&todo);
	pthread_mutex_lock(&w->lock);
	rv_list_splice(&todo, &w->undo);
	pthread_mutex_unlock(&w->lock);
	while ((it = rv_list_pop(&todo)))
		end_given_up(w, RV_LIST_ENTRY(it, struct rv_call, link));
}

/* Receiving: one thread at a time. */

/* Read once. @return 0; -ETIMEDOUT; else the connection cannot go on */
static int read_some(struct rv_wire *w, uint64_t look_ns, uint64_t deadline_ns)
{
	int rc = rv_wire_queue_look(w, look_ns, deadline_ns);

	w->slept = !rc;
	if (rc)
		return rc < 0 ? rc : 0;
	if (deadline_ns == RV_NEVER)
		return rv_wire_read(w, 0);
	rc = until_ready(w->fd, POLLIN, deadline_ns);
	return rc ? rc : rv_wire_read(w, MSG_DONTWAIT);
}

const char *rv_wire_broken_text(int rc)
{
	switch (rc) {
	case -EPROTO:
		return "the daemon speaks another protocol, or is broken";
	case -EMFILE:
		return "this process has no descriptors left for the daemon's memory: raise its limit";
	case -ENOMEM:
		return "out of memory";
	default:
		return text_closed;
	}
}

/* Waiting. */

/* Nobody reads now: let one of those who wait do it. Under the lock. @return whether there is one */
bool rv_wire_wake_waiter(struct rv_wire *w)
{
	if (rv_list_empty(&w->waiters))
		return false;
	rv_call_wake(RV_LIST_ENTRY(w->waiters.next, struct rv_call, waiting));
	return true;
}

/*
 * A thread that has read for everybody reads no more. If only asynchronous calls are left, their thread takes
 * over: what is in the socket by now makes no new edge, so it is woken.
 */
void rv_wire_pass_on(struct rv_wire *w)
{
	/* Of calls that were given up as well: nobody else would see their replies in the queue. */
	bool any = w->async_nr || (!rv_wire_queue_rests(w) && !rv_list_empty(&w->order));

	if (!w->reading && !rv_wire_wake_waiter(w) && any)
		rv_wire_kick(w);
}

static void make_changed(struct rv_call *call)
{
	pthread_condattr_t attr;

	if (call->has_changed)
		return;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&call->changed, &attr);
	pthread_condattr_destroy(&attr);
	call->has_changed = true;
}

/* Sleep until the call has ended or the reading is ours. Under the lock. @return 0 or -ETIMEDOUT */
int rv_wire_sleep_on(struct rv_wire *w, struct rv_call *call, uint64_t deadline_ns)
{
	struct timespec at = {
		.tv_sec = (time_t)(deadline_ns / RV_SEC(1)),
		.tv_nsec = (long)(deadline_ns % RV_SEC(1)),
	};
	int rc;

	make_changed(call);
	/* A serving thread reads for others only if nobody else does. */
	if (call == w->server)
		rv_list_push(&w->waiters, &call->waiting);
	else
		rv_list_push_front(&w->waiters, &call->waiting);
	if (deadline_ns == RV_NEVER)
		rc = pthread_cond_wait(&call->changed, &w->lock);
	else
		rc = pthread_cond_timedwait(&call->changed, &w->lock, &at);
	rv_list_del(&call->waiting);
	return rc == ETIMEDOUT && !call->done ? -ETIMEDOUT : 0;
}

/* Read for everybody until something has come. Under the lock, but not while reading. */
int rv_wire_lead(struct rv_wire *w, uint64_t look_ns, uint64_t deadline_ns)
{
	int rc;

	w->reading = true;
	pthread_mutex_unlock(&w->lock);
	rc = read_some(w, look_ns, deadline_ns);
	pthread_mutex_lock(&w->lock);
	w->reading = false;
	if (rc && rc != -ETIMEDOUT) {
		rv_wire_kill_locked(w, rc, rv_wire_broken_text(rc));
		rc = 0;
	}
	return rc;
}

/* As long as its reply does not come soon, less and less time is spent on looking for it. */
static int lead_for(struct rv_wire *w, const struct rv_call *call, uint64_t deadline_ns)
{
	uint64_t look_ns = rv_wire_look_ns(w, call);
	int rc = rv_wire_lead(w, look_ns, deadline_ns);

	if (look_ns)
		rv_wire_looked(w, call, !w->slept);
	return rc;
}

int rv_wire_wait(struct rv_wire *w, struct rv_call *call, uint64_t deadline_ns)
{
	bool undo;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	while (!call->done && !rc)
		rc = w->reading ? rv_wire_sleep_on(w, call, deadline_ns)
				: lead_for(w, call, deadline_ns);
	if (call->done)
		rc = call->rc;
	else
		set_text(call->text, "the daemon did not answer in time");
	rv_wire_pass_on(w);
	undo = !rv_list_empty(&w->undo);
	pthread_mutex_unlock(&w->lock);
	if (undo)
		rv_wire_run_undo(w);
	return rc;
}

int rv_wire_send_oneway(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq,
			const void *payload, size_t len)
{
	return send_frame(w, op, rq, payload, len, rv_sat_add(rv_clock_ns(), POST_NS));
}

bool rv_wire_done(struct rv_wire *w, struct rv_call *call)
{
	bool done;

	pthread_mutex_lock(&w->lock);
	done = call->done;
	pthread_mutex_unlock(&w->lock);
	return done;
}

void rv_wire_give_up(struct rv_wire *w, struct rv_call *call)
{
	bool late = false, withdrawn = false;

	if (call->async || call->op == RV_LOCAL_WRITE)
		withdrawn = rv_tx_withdraw(&w->tx, call->rq.id);

	pthread_mutex_lock(&w->lock);
	if (call->async && call->done)
		rv_list_del(&call->link); /* nobody has looked at it yet */
	if (call->sent && !call->done && (withdrawn || call->op == RV_LOCAL_WRITE)) {
		rv_map64_del(&w->calls, call->rq.id); /* of WRITE only failures are answered */
		rv_list_del(&call->link);
		rv_list_del(&call->naming);
		w->async_nr -= call->async;
	} else if (call->sent && !call->done) {
		call->given_up = true;
		late = true;
	}
	pthread_mutex_unlock(&w->lock);
	if (!late)
		end_given_up(w, call);
}

void rv_wire_add_buf(struct rv_wire *w, struct rv_arena *a, const struct rv_arena_buf *b)
{
	pthread_mutex_lock(&w->lock);
	rv_arena_add_buf(a, b);
	pthread_mutex_unlock(&w->lock);
}

void rv_wire_del_buf(struct rv_wire *w, struct rv_arena *a, uint64_t off)
{
	pthread_mutex_lock(&w->lock);
	rv_arena_del_buf(a, off);
	pthread_mutex_unlock(&w->lock);
}

uint64_t rv_wire_find_buf(struct rv_wire *w, const void *p, uint64_t len, uint64_t *off)
{
	uint64_t token;

	pthread_mutex_lock(&w->lock);
	token = rv_arena_map_find_buf(&w->arenas, p, len, off);
	pthread_mutex_unlock(&w->lock);
	return token;
}

void rv_wire_sweep(struct rv_wire *w)
{
	uint64_t oldest = UINT64_MAX;

	if (!rv_list_empty(&w->naming))
		oldest = RV_LIST_ENTRY(w->naming.next, struct rv_call, naming)->rq.id;
	rv_arena_map_sweep(&w->arenas, oldest);
}

void rv_wire_drop_arena(struct rv_wire *w, struct rv_arena *a)
{
	pthread_mutex_lock(&w->lock);
	rv_arena_map_drop(&w->arenas, a, w->last_id);
	rv_wire_sweep(w);
	pthread_mutex_unlock(&w->lock);
}

/* The whole. */

void rv_wire_init(struct rv_wire *w, int fd)
{
	memset(w, 0, sizeof(*w));
	w->fd = fd;
	rv_list_init(&w->order);
	rv_list_init(&w->undo);
	rv_list_init(&w->requests);
	rv_list_init(&w->ready);
	rv_list_init(&w->waiters);
	rv_list_init(&w->naming);
	w->ep = w->event = w->timer = -1;
	pthread_mutex_init(&w->lock, NULL);
	rv_tx_init(&w->tx, fd, &tx_ops, w);
}

/* The daemon may reuse the ranges at once: nothing of them is mapped here any more. */
static void give_all_back(struct rv_wire *w)
{
	uint64_t deadline_ns = rv_sat_add(rv_clock_ns(), POST_NS);
	struct rv_local_req rq = {0};
	size_t pos = 0;
	void *token;

	while ((token = rv_map64_next(&w->tokens, &pos))) {
		rq.token = (uintptr_t)token;
		if (send_frame(w, RV_LOCAL_FREE, &rq, NULL, 0, deadline_ns))
			break;
	}
	rv_map64_fini(&w->tokens);
	rv_map64_fini(&w->shared);
	rv_tx_drain(&w->tx, deadline_ns);
}

void rv_wire_fini(struct rv_wire *w)
{
	struct rv_list *it;

	while ((it = rv_list_pop(&w->requests))) {
		struct rv_wire_request *r = RV_LIST_ENTRY(it, struct rv_wire_request, link);

		if (r->arena)
			rv_wire_drop_arena(w, r->arena);
		free(r->payload);
		free(r);
	}
	rv_call_free(w->server);
	w->server = NULL;
	rv_arena_map_fini(&w->arenas, true);
	give_all_back(w);
	rv_list_splice(&w->undo, &w->order);
	rv_list_splice(&w->undo, &w->ready);
	while ((it = rv_list_pop(&w->undo)))
		rv_call_free(RV_LIST_ENTRY(it, struct rv_call, link));
	for (size_t i = 0; i < RV_ARRAY_NR(w->spare); i++)
		free(atomic_load_explicit(&w->spare[i], memory_order_acquire));
	rv_wire_queue_close(w);
	rv_map64_fini(&w->calls);
	rv_rx_fini(&w->rx);
	rv_tx_fini(&w->tx);
	rv_wire_close_fds(w);
	pthread_mutex_destroy(&w->lock);
}
