/*
 * Calls nobody waits for: what wakes their thread, and its turn.
 */
#include "control/client/wire_impl.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "dataplane/base/units.h"

/* Reads in one turn. */
#define READS 64u

static int add(int ep, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};

	return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static void close_all(int fd[3])
{
	for (unsigned i = 0; i < 3; i++)
		if (fd[i] >= 0)
			close(fd[i]);
}

/*
 * The socket is seen once for each arrival, not for as long as there is something in it: the thread of a
 * blocking call may be about to read it.
 */
static int open_async(struct rv_wire *w)
{
	int fd[3] = {
		epoll_create1(EPOLL_CLOEXEC),
		eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
	};
	int rc = fd[0] < 0 || fd[1] < 0 || fd[2] < 0 ? -errno : 0;

	if (!rc)
		rc = add(fd[0], w->fd, EPOLLIN | EPOLLET);
	if (!rc)
		rc = add(fd[0], fd[1], EPOLLIN);
	if (!rc)
		rc = add(fd[0], fd[2], EPOLLIN);
	if (rc) {
		close_all(fd);
		return rc;
	}
	w->ep = fd[0];
	w->event = fd[1];
	w->timer = fd[2];
	return 0;
}

int rv_wire_async(struct rv_wire *w)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	if (w->ep < 0)
		rc = open_async(w);
	if (!rc)
		rc = w->ep;
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Its request could not be queued. @return 0: it has ended with the connection, which shows as for any other */
static int not_started(struct rv_wire *w, struct rv_call *call, int rc)
{
	if (!rv_wire_leave(w, call))
		return 0;
	rv_wire_explain(w, call, rc);
	return rc;
}

int rv_wire_start(struct rv_wire *w, struct rv_call *call, const void *payload, size_t len,
		  bool must)
{
	struct rv_tx_frame *f;
	int rc;

	call->async = true;
	rc = rv_wire_enter(w, call);
	if (rc) {
		rv_wire_explain(w, call, rc);
		return rc;
	}
	f = rv_tx_frame_new(call->op, &call->rq, payload, len);
	rc = f ? rv_tx_queue(&w->tx, f, must) : -ENOMEM;
	if (!rc)
		return 0;
	rv_tx_frame_free(f);
	return not_started(w, call, rc);
}

int rv_wire_start_write(struct rv_wire *w, struct rv_call *write, const void *data, uint64_t len,
			struct rv_call *commit)
{
	struct rv_tx_frame *f, *last;
	int rc;

	commit->async = true;
	rc = rv_wire_enter(w, commit);
	if (!rc) {
		rc = rv_wire_enter(w, write);
		if (rc)
			return not_started(w, commit, rc);
	}
	if (rc) {
		rv_wire_explain(w, commit, rc);
		return rc;
	}
	f = rv_tx_frame_new(write->op, &write->rq, data, len);
	last = rv_tx_frame_new(commit->op, &commit->rq, NULL, 0);
	if (f)
		f->next = last;
	else
		rv_tx_frame_free(last);
	rc = f && last ? rv_tx_queue(&w->tx, f, true) : -ENOMEM;
	if (!rc)
		return 0;
	rv_tx_frame_free(f);
	return not_started(w, commit, rc);
}

/* Take note of what woke rv_event_fd(): what comes from now on wakes it again. @return whether anything did */
static bool clear_events(struct rv_wire *w)
{
	struct epoll_event ev[4];
	uint64_t count;
	int nr;

	nr = epoll_wait(w->ep, ev, RV_ARRAY_NR(ev), 0);
	for (int i = 0; i < nr; i++)
		if (ev[i].data.fd == w->timer && read(w->timer, &count, sizeof(count)) < 0)
			continue; /* it was armed anew meanwhile */
	pthread_mutex_lock(&w->lock);
	if (w->kicked && read(w->event, &count, sizeof(count)) == sizeof(count))
		w->kicked = false;
	pthread_mutex_unlock(&w->lock);
	return nr > 0;
}

static int read_all(struct rv_wire *w)
{
	int rc = 0;

	w->rx.dry = false;
	for (unsigned i = 0; i < READS && !rc && !w->rx.dry; i++)
		rc = rv_wire_read(w, MSG_DONTWAIT);
	return rc;
}

/* The socket is read only if there is something in it, as long as the queue is looked at. @any calls are under way */
static int look_around(struct rv_wire *w, bool any)
{
	uint64_t before = w->frames;
	int rc;

	if (rv_wire_queue_rests(w)) {
		/* Who comes without having been woken may come again and again. */
		any = !clear_events(w) && any;
		rc = read_all(w);
	} else {
		rc = rv_wire_queue_take(w);
		if (rc >= 0 && rv_shmq_others(&w->queue->in))
			rc = read_all(w);
	}
	if (rc < 0 || !w->queue)
		return rc;
	if (w->frames != before) {
		rv_wire_turn_found(w);
		return 0;
	}
	if (!rv_wire_turn_quiet(w, any))
		return 0;
	clear_events(w);
	rc = read_all(w);
	return rc ? rc : rv_wire_queue_rest(w);
}

void rv_wire_turn(struct rv_wire *w)
{
	bool mine, any, undo;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	mine = !w->reading && !w->dead;
	any = w->async_nr != 0;
	if (mine)
		w->reading = w->turning = true;
	pthread_mutex_unlock(&w->lock);
	if (mine)
		rc = look_around(w, any);
	else
		clear_events(w);
	pthread_mutex_lock(&w->lock);
	if (mine) {
		w->reading = w->turning = false;
		if (rc < 0)
			rv_wire_kill_locked(w, rc, rv_wire_broken_text(rc));
		else if (rv_wire_queue_rests(w) ? !w->rx.dry : w->async_nr != 0)
			rv_wire_kick(w);
		rv_wire_wake_waiter(w);
	}
	undo = !rv_list_empty(&w->undo);
	pthread_mutex_unlock(&w->lock);
	rv_tx_flush(&w->tx);
	if (undo)
		rv_wire_run_undo(w);
}

struct rv_call *rv_wire_ready(struct rv_wire *w)
{
	struct rv_list *it;

	pthread_mutex_lock(&w->lock);
	it = rv_list_pop(&w->ready);
	pthread_mutex_unlock(&w->lock);
	return it ? RV_LIST_ENTRY(it, struct rv_call, link) : NULL;
}

void rv_wire_come_again(struct rv_wire *w)
{
	pthread_mutex_lock(&w->lock);
	rv_wire_kick(w);
	pthread_mutex_unlock(&w->lock);
}

void rv_wire_timer(struct rv_wire *w, uint64_t at_ns)
{
	struct itimerspec at = {
		.it_value = {.tv_sec = (time_t)(at_ns / RV_SEC(1)),
			     .tv_nsec = (long)(at_ns % RV_SEC(1))},
	};

	timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

void rv_wire_close_fds(struct rv_wire *w)
{
	close_all((int[3]){w->ep, w->event, w->timer});
	close(w->fd);
}
