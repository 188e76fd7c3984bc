/*
 * Calls that nobody waits for: their steps are taken, and their ends told, in rv_progress().
 *
 *   new -> begin --reply--> then() --another request--> ... --> end --> done(), once
 *                '--deadline, close------------------------------^
 */
#include "control/client/client_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

/* Calls whose steps are taken in one turn; with more the descriptor stays readable. */
#define TURN 1024u

#define NOT_DUE SIZE_MAX

/* The session in whose rv_progress() this thread is. */
static _Thread_local const struct rv_client *inside;

/* Deadlines: a heap, the next one first. Under the set's lock. */

static void put(struct rv_async_set *s, size_t i, struct rv_async *a)
{
	s->due[i] = a;
	a->due = i;
}

static void sift_up(struct rv_async_set *s, size_t i, struct rv_async *a)
{
	while (i && s->due[(i - 1) / 2]->b.deadline_ns > a->b.deadline_ns) {
		put(s, i, s->due[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	put(s, i, a);
}

static void sift_down(struct rv_async_set *s, size_t i, struct rv_async *a)
{
	for (size_t kid; (kid = 2 * i + 1) < s->due_nr; i = kid) {
		if (kid + 1 < s->due_nr &&
		    s->due[kid + 1]->b.deadline_ns < s->due[kid]->b.deadline_ns)
			kid++;
		if (s->due[kid]->b.deadline_ns >= a->b.deadline_ns)
			break;
		put(s, i, s->due[kid]);
	}
	put(s, i, a);
}

static int due_add(struct rv_async_set *s, struct rv_async *a)
{
	if (a->b.deadline_ns == RV_NEVER)
		return 0;
	if (s->due_nr == s->due_cap) {
		size_t cap = s->due_cap ? 2 * s->due_cap : 64;
		/* NOLINTNEXTLINE(bugprone-sizeof-expression): it holds pointers */
		struct rv_async **more = realloc(s->due, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		s->due = more;
		s->due_cap = cap;
	}
	sift_up(s, s->due_nr++, a);
	return 0;
}

static void due_del(struct rv_async_set *s, struct rv_async *a)
{
	size_t i = a->due;
	struct rv_async *last;

	if (i == NOT_DUE)
		return;
	a->due = NOT_DUE;
	last = s->due[--s->due_nr];
	if (last == a)
		return;
	if (i && s->due[(i - 1) / 2]->b.deadline_ns > last->b.deadline_ns)
		sift_up(s, i, last);
	else
		sift_down(s, i, last);
}

/* One timer for all: it fires no later than the next deadline. */
static void arm(struct rv_client *c)
{
	struct rv_async_set *s = &c->async;

	if (!s->due_nr || s->due[0]->b.deadline_ns >= s->armed_ns)
		return;
	s->armed_ns = s->due[0]->b.deadline_ns;
	rv_wire_timer(&c->wire, s->armed_ns);
}

/* Begin. */

void rv_async_init(struct rv_async_set *s)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->turn, NULL);
	rv_list_init(&s->live);
	s->armed_ns = RV_NEVER;
}

int rv_async_new(struct rv_client *c, const struct rv_opts *opts, rv_done_fn *done, void *user,
		 struct rv_async **out)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_async *a;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!done)
		return rv_client_fail(-EINVAL, "no function to call when it is done");
	rc = rv_wire_async(&c->wire);
	if (rc < 0)
		return rv_client_fail(rc, "no descriptors for asynchronous calls: %s",
				      strerrordesc_np(-rc));
	a = calloc(1, sizeof(*a));
	if (!a)
		return rv_client_no_memory();
	rv_list_init(&a->link);
	a->c = c;
	a->o = *o;
	a->b = rv_client_budget_of(c, o);
	a->due = NOT_DUE;
	a->done = done;
	a->user = user;
	*out = a;
	return 0;
}

int rv_async_drop(struct rv_async *a, int rc)
{
	if (a->call)
		rv_call_free(a->call);
	free(a);
	return rc;
}

static void attach(struct rv_async *a, struct rv_call *call, rv_async_fn *then)
{
	a->call = call;
	a->then = then;
	call->user = a;
	call->rq.timeout_ns = rv_budget_left_ns(&a->b);
}

/* From here on it may end in another thread's turn, which waits for this lock: until it is known everywhere. */
int rv_async_begin(struct rv_async *a, struct rv_call *call, const void *payload, size_t len,
		   rv_async_fn *then)
{
	struct rv_client *c = a->c;
	struct rv_async_set *s = &c->async;
	int rc;

	if (!call)
		return rv_async_drop(a, -ENOMEM);
	attach(a, call, then);
	pthread_mutex_lock(&s->lock);
	rc = s->closing ? -ENOTCONN : due_add(s, a);
	if (rc) {
		pthread_mutex_unlock(&s->lock);
		rv_client_fail(rc, rc == -ENOMEM ? "out of memory" : "the session is being closed");
		return rv_async_drop(a, rc);
	}
	rv_list_push(&s->live, &a->link);
	rc = rv_wire_start(&c->wire, call, payload, len, false);
	if (rc) {
		due_del(s, a);
		rv_list_del(&a->link);
	} else {
		arm(c);
	}
	pthread_mutex_unlock(&s->lock);
	if (!rc)
		return 0;
	if (rc == -EAGAIN)
		rv_client_fail(rc, "too many requests wait for the daemon to read them: call "
				   "rv_progress() first");
	else
		rv_client_fail(rc, "%s", call->text);
	return rv_async_drop(a, rc);
}

/* On. */

/* The step under way has ended. */
static void forget_step(struct rv_async *a, int rc)
{
	/* Who answers before it has read all would leave us with frames of bytes that are the caller's again. */
	if (a->call && a->data)
		rv_tx_withdraw(&a->c->wire.tx, a->call->rq.id);
	if (a->call && rc)
		rv_wire_give_up(&a->c->wire, a->call);
	else if (a->call)
		rv_call_free(a->call);
	if (a->write) /* last: the request behind it may go with it */
		rv_wire_give_up(&a->c->wire, a->write);
	a->call = a->write = NULL;
}

/* A step may be over just when its deadline passes; then nobody watches over the next one any more. */
static bool too_late(struct rv_async *a)
{
	if (rv_clock_ns() < a->b.deadline_ns)
		return false;
	rv_async_end(a, rv_client_fail(-ETIMEDOUT, "the daemon did not answer in time"));
	return true;
}

void rv_async_step(struct rv_async *a, struct rv_call *call, const void *payload, size_t len,
		   rv_async_fn *then)
{
	int rc;

	forget_step(a, 0);
	if (!call) {
		rv_async_end(a, -ENOMEM);
		return;
	}
	if (too_late(a)) {
		rv_call_free(call);
		return;
	}
	attach(a, call, then);
	rc = rv_wire_start(&a->c->wire, call, payload, len, true);
	if (rc)
		then(a, rv_client_fail(rc, "%s", call->text));
}

void rv_async_step_write(struct rv_async *a, struct rv_call *write, const void *data, uint64_t len,
			 struct rv_call *commit, rv_async_fn *then)
{
	int rc;

	forget_step(a, 0);
	if (!write || !commit) {
		rv_call_free(write);
		rv_call_free(commit);
		rv_async_end(a, -ENOMEM);
		return;
	}
	if (too_late(a)) {
		rv_call_free(write);
		rv_call_free(commit);
		return;
	}
	attach(a, commit, then);
	a->write = write;
	rc = rv_wire_start_write(&a->c->wire, write, data, len, commit);
	if (rc)
		then(a, rv_client_fail(rc, "%s", commit->text));
}

/* What it has of the daemon's, and nobody will hear of. */
static void give_back(struct rv_async *a, int rc)
{
	struct rv_wire *w = &a->c->wire;

	if (rc && a->token)
		rv_wire_post(w, RV_LOCAL_FREE, &(struct rv_local_req){.token = a->token});
	if (a->staged.local && (rc || a->drop_staged))
		rv_wire_post(w, RV_LOCAL_DROP,
			     &(struct rv_local_req){.worker = a->staged.worker,
						    .local = a->staged.local});
}

void rv_async_end(struct rv_async *a, int rc)
{
	struct rv_async_set *s = &a->c->async;
	rv_done_fn *done = a->done;
	void *user = a->user;

	forget_step(a, rc);
	give_back(a, rc);
	pthread_mutex_lock(&s->lock);
	due_del(s, a);
	rv_list_del(&a->link);
	pthread_mutex_unlock(&s->lock);
	free(a);
	s->ended++;
	if (!rc)
		rv_client_clear_error();
	done(user, rc);
}

/* Turns. */

static struct rv_async *next_due(struct rv_client *c, uint64_t now_ns)
{
	struct rv_async_set *s = &c->async;
	struct rv_async *a = NULL;

	pthread_mutex_lock(&s->lock);
	if (s->due_nr && s->due[0]->b.deadline_ns <= now_ns) {
		a = s->due[0];
		due_del(s, a);
	} else if (s->armed_ns <= now_ns) {
		s->armed_ns = RV_NEVER;
		arm(c);
	}
	pthread_mutex_unlock(&s->lock);
	return a;
}

static void expire(struct rv_client *c)
{
	uint64_t now_ns = rv_clock_ns();
	struct rv_async *a;

	while ((a = next_due(c, now_ns)))
		if (!rv_wire_done(&c->wire, a->call)) /* else its answer is about to be seen */
			rv_async_end(
				a, rv_client_fail(-ETIMEDOUT, "the daemon did not answer in time"));
}

static void take_steps(struct rv_client *c)
{
	struct rv_call *call;

	for (unsigned i = 0; i < TURN; i++) {
		struct rv_async *a;

		call = rv_wire_ready(&c->wire);
		if (!call)
			return;
		/* It may have ended with the connection while another thread is still in rv_async_begin(). */
		pthread_mutex_lock(&c->async.lock);
		pthread_mutex_unlock(&c->async.lock);
		a = call->user;
		if (call->rc)
			rv_client_fail(call->rc, "%s", call->text);
		a->then(a, call->rc);
	}
	rv_wire_come_again(&c->wire);
}

int rv_event_fd(struct rv_client *c)
{
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	rc = rv_wire_async(&c->wire);
	return rc < 0 ? rv_client_fail(rc, "no descriptors for asynchronous calls: %s",
				       strerrordesc_np(-rc))
		      : rc;
}

int rv_progress(struct rv_client *c)
{
	const struct rv_client *before = inside;
	int rc = rv_event_fd(c);
	uint64_t ended;

	if (rc < 0)
		return rc;
	if (inside == c)
		return 0;
	pthread_mutex_lock(&c->async.turn);
	inside = c;
	ended = c->async.ended;
	rv_wire_turn(&c->wire);
	take_steps(c);
	expire(c);
	ended = c->async.ended - ended;
	inside = before;
	pthread_mutex_unlock(&c->async.turn);
	rv_client_clear_error();
	return (int)rv_min_u64(ended, INT32_MAX);
}

void rv_async_fini(struct rv_client *c)
{
	struct rv_async_set *s = &c->async;

	pthread_mutex_lock(&s->lock);
	s->closing = true;
	pthread_mutex_unlock(&s->lock);
	inside = c;
	while (!rv_list_empty(&s->live))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		rv_async_end(RV_LIST_ENTRY(s->live.next, struct rv_async, link),
			     rv_client_fail(-ECANCELED, "the session was closed"));
	inside = NULL;
	free(s->due);
	pthread_mutex_destroy(&s->lock);
	pthread_mutex_destroy(&s->turn);
}
