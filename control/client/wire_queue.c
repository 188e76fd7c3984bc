/*
 * Frames through memory that is shared with the daemon (shmq.h), where it has given some.
 *
 * Who waits for a reply that comes soon looks for it in the queue for a moment, before it sleeps at the socket;
 * where that was in vain a few times, more rarely. For asynchronous calls rv_progress() looks: a program that calls it
 * again and again finds replies there, and neither reads the socket nor asks what woke it. Until it has been quiet for a
 * moment each turn writes the eventfd, so that a program that polls, or waits for an edge, comes back; only then does the
 * daemon have to wake it.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/client/wire_impl.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

#define LOOK_NS RV_US(20)

/* Waits without a look, after looks in vain. */
#define SKIP_MIN 8u
#define SKIP_MAX 256u

void rv_wire_queue_open(struct rv_wire *w, const struct rv_local_rep *rep, int fd)
{
	struct rv_wire_queue *q;
	void *mem;

	w->worker = rep->worker;
	if (fd < 0 || w->queue || rep->arena_len != RV_SHMQ_LEN ||
	    !rv_arena_usable(fd, RV_SHMQ_LEN))
		return;
	q = calloc(1, sizeof(*q));
	mem = q ? mmap(NULL, RV_SHMQ_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
	if (mem == MAP_FAILED) {
		free(q);
		return;
	}
	madvise(mem, RV_SHMQ_LEN, MADV_DONTFORK);
	q->mem = mem;
	q->alone = sysconf(_SC_NPROCESSORS_ONLN) < 2;
	/* So far the socket has carried HELLO; its reply counts as taken when it has been handed over. */
	rv_shmq_init(mem, false, 1, 0, &q->out, &q->in);
	w->queue = q;
	w->tx.shared = &q->out;
}

void rv_wire_queue_close(struct rv_wire *w)
{
	if (!w->queue)
		return;
	munmap(w->queue->mem, RV_SHMQ_LEN);
	free(w->queue);
	w->queue = NULL;
	w->tx.shared = NULL;
}

int rv_wire_queue_take(struct rv_wire *w)
{
	struct rv_wire_queue *q = w->queue;
	int n, nr = 0, rc = 0;

	if (!q)
		return 0;
	for (; !rc && (n = rv_shmq_take(&q->in, q->frame)) != 0; nr++)
		rc = n < 0 ? n : rv_rx_whole(q->frame, (size_t)n, rv_wire_take_frame, w);
	return rc ? rc : nr;
}

/* A frame of the socket: what came before it comes first. */
static int take_from_socket(void *user, struct rv_rx_frame *f)
{
	struct rv_wire *w = user;
	int rc = rv_wire_queue_take(w);

	if (rc >= 0)
		rc = rv_wire_take_frame(w, f);
	if (w->queue)
		rv_shmq_other_taken(&w->queue->in);
	return rc;
}

int rv_wire_read(struct rv_wire *w, int flags)
{
	int rc = rv_rx_read(&w->rx, w->fd, flags, take_from_socket, w), taken = 0;

	if (!rc || rc == -ENOTCONN) /* what was put before the end, too */
		taken = rv_wire_queue_take(w);
	return rc || taken > 0 ? rc : taken;
}

/* Both ways, until something has come. @return 1: it has; 0: it has not; or a negative errno */
static int look(struct rv_wire *w, uint64_t until_ns)
{
	struct rv_wire_queue *q = w->queue;
	uint64_t before = w->frames;

	rv_shmq_look(&q->in);
	do {
		int rc = rv_wire_queue_take(w);

		if (rc >= 0 && rv_shmq_others(&q->in))
			rc = rv_wire_read(w, MSG_DONTWAIT);
		if (rc < 0 || w->frames != before)
			return rc < 0 ? rc : 1;
		__builtin_ia32_pause();
	} while (rv_clock_ns() < until_ns);
	return 0;
}

int rv_wire_queue_rest(struct rv_wire *w)
{
	return !w->queue || rv_shmq_rest(&w->queue->in) ? 0 : rv_wire_queue_take(w);
}

int rv_wire_queue_look(struct rv_wire *w, uint64_t look_ns, uint64_t deadline_ns)
{
	uint64_t until_ns = rv_min_u64(rv_sat_add(rv_clock_ns(), look_ns), deadline_ns);
	int rc = w->queue && look_ns ? look(w, until_ns) : 0;

	return rc ? rc : rv_wire_queue_rest(w);
}

/* How long to look. */

/* Is it answered by the daemon alone? */
static bool is_near(const struct rv_wire *w, const struct rv_call *call)
{
	switch ((enum rv_local_op)call->op) {
	case RV_LOCAL_ALLOC:
	case RV_LOCAL_COMMIT:
	case RV_LOCAL_REGION_STAGE:
		return true;
	case RV_LOCAL_GET:
	case RV_LOCAL_METADATA:
	case RV_LOCAL_REF:
	case RV_LOCAL_DETACH:
	case RV_LOCAL_RELEASE:
	case RV_LOCAL_DROP:
		return call->rq.worker == w->worker;
	default:
		return false;
	}
}

static uint64_t may_look_ns(struct rv_wire_queue *q, struct rv_looks *l)
{
	if (q->alone)
		return 0;
	if (!l->skip)
		return LOOK_NS;
	l->skip--;
	return 0;
}

static void looked(struct rv_looks *l, bool found)
{
	if (found)
		l->vain = 0;
	else
		l->vain = l->vain ? (unsigned)rv_min_u64(2ull * l->vain, SKIP_MAX) : SKIP_MIN;
	l->skip = l->vain;
}

uint64_t rv_wire_look_ns(struct rv_wire *w, const struct rv_call *call)
{
	struct rv_wire_queue *q = w->queue;

	return q ? may_look_ns(q, &q->looks[is_near(w, call)]) : 0;
}

void rv_wire_looked(struct rv_wire *w, const struct rv_call *call, bool found)
{
	looked(&w->queue->looks[is_near(w, call)], found);
}

/* Turns of asynchronous calls. */

bool rv_wire_queue_rests(const struct rv_wire *w)
{
	return !w->queue || rv_shmq_rests(&w->queue->in);
}

bool rv_wire_turn_quiet(struct rv_wire *w, bool again)
{
	struct rv_wire_queue *q = w->queue;
	uint64_t now_ns = rv_clock_ns();

	if (rv_shmq_rests(&q->in)) {
		if (again && may_look_ns(q, &q->turns)) {
			rv_shmq_look(&q->in);
			q->quiet_ns = now_ns;
		}
		return false;
	}
	if (!q->quiet_ns)
		q->quiet_ns = now_ns;
	if (now_ns - q->quiet_ns < LOOK_NS)
		return false;
	looked(&q->turns, false);
	q->quiet_ns = 0;
	return true;
}

void rv_wire_turn_found(struct rv_wire *w)
{
	struct rv_wire_queue *q = w->queue;

	if (rv_shmq_rests(&q->in))
		return;
	q->quiet_ns = 0;
	looked(&q->turns, true);
}
