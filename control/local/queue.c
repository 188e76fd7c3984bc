/*
 * A session's queues in shared memory (shmq.h): who asks for them in HELLO gets them. The sessions that use theirs are
 * looked at in each pass; one that does not for a while rests, and is woken by what comes through its socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/local/session_impl.h"
#include "dataplane/base/units.h"

/* Sessions looked at in each pass: each costs a cache line that its program writes to. */
#define LOOKED_AT   16u
/* Frames of one session in one pass, where nothing of the socket comes behind them. */
#define PASS_FRAMES 16u
/*
 * And in all: what comes before frames that were received together was in the queue when the last of them was sent,
 * and a pass has few receives. Who puts more lies about its order, to be dealt with out of its turn.
 */
#define PASS_LIMIT  8192u

/* @return a memfd that nobody can shrink, or -1 */
static int make_memory(void **mem)
{
	int fd = memfd_create("rvd-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	*mem = MAP_FAILED;
	if (!ftruncate(fd, RV_SHMQ_LEN) &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		*mem = mmap(NULL, RV_SHMQ_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*mem != MAP_FAILED)
		return fd;
	close(fd);
	return -1;
}

int rv_session_queue_open(struct session *s)
{
	struct session_queue *q;
	int fd;

	if (s->queue || !s->local->polls_queues)
		return -1;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -1;
	fd = make_memory(&q->mem);
	if (fd < 0) {
		free(q);
		return -1;
	}
	rv_list_init(&q->looked_at);
	q->s = s;
	/* The frame that asks counts as taken when it has been dealt with. */
	rv_shmq_init(q->mem, true, 0, s->frames, &q->out, &q->in);
	s->queue = q;
	return fd;
}

static void stop_looking(struct rv_local *l, struct session_queue *q)
{
	if (rv_list_empty(&q->looked_at))
		return;
	rv_list_del(&q->looked_at);
	l->looked_at_nr--;
}

void rv_session_queue_close(struct session *s)
{
	struct session_queue *q = s->queue;

	if (!q)
		return;
	s->queue = NULL;
	stop_looking(s->local, q);
	munmap(q->mem, RV_SHMQ_LEN);
	free(q);
}

/* While a WRITE of the socket is received into its buffer nothing may take that away. */
static bool held(const struct session *s)
{
	return s->conn.closing || s->conn.paused || s->conn.placed;
}

/* @return false: something has come */
static bool rest(struct rv_local *l, struct session_queue *q)
{
	/* Who is not read at present is looked at again when it is: rv_session_queue_look(). */
	if (!rv_shmq_rest(&q->in) && !held(q->s)) {
		rv_shmq_look(&q->in);
		return false;
	}
	stop_looking(l, q);
	return true;
}

void rv_session_queue_look(struct session *s)
{
	struct rv_local *l = s->local;
	struct session_queue *q = s->queue;

	if (!q)
		return;
	q->used_ns = l->conf.reactor->now_ns;
	if (!rv_list_empty(&q->looked_at))
		return;
	rv_shmq_look(&q->in);
	rv_list_push(&l->looked_at, &q->looked_at);
	l->looked_at_nr++;
}

/* One frame. @return whether there was one */
static bool take(struct session *s, struct session_queue *q)
{
	uint8_t *frame = s->local->frame;
	struct rv_preamble pre;
	int n = rv_shmq_take(&q->in, frame);

	if (n == 0)
		return false;
	if (q->pass_nr != s->local->conf.reactor->pass_nr) {
		q->pass_nr = s->local->conf.reactor->pass_nr;
		q->taken = 0;
	}
	if (q->taken++ == PASS_LIMIT || n < (int)RV_LOCAL_PREAMBLE ||
	    rv_session_decode(frame, &pre) ||
	    RV_LOCAL_PREAMBLE + (size_t)pre.header_len + pre.payload_len != (size_t)n) {
		rv_conn_close(&s->conn, -EPROTO);
		return false;
	}
	rv_session_take_whole(s, &pre, frame + RV_LOCAL_PREAMBLE);
	return true;
}

void rv_session_queue_drain(struct session *s)
{
	while (s->queue && take(s, s->queue))
		;
}

static unsigned take_some(struct session *s)
{
	unsigned n = 0;

	/* One of its frames may close it, or be one too many. */
	while (n < PASS_FRAMES && !held(s) && take(s, s->queue))
		n++;
	return n;
}

static unsigned poll_queues(struct rv_poller *p, uint64_t now_ns)
{
	struct rv_local *l = RV_CONTAINER(p, struct rv_local, queues);
	struct rv_list *it, *tmp;
	unsigned all = 0;

	RV_LIST_EACH_SAFE(it, tmp, &l->looked_at)
	{
		struct session_queue *q = RV_LIST_ENTRY(it, struct session_queue, looked_at);
		unsigned n = take_some(q->s);

		all += n;
		if (n)
			q->used_ns = now_ns;
		else if (l->looked_at_nr > LOOKED_AT ||
			 now_ns - q->used_ns >= l->conf.ring->look_ns)
			rest(l, q);
	}
	return all;
}

static int arm_queues(struct rv_poller *p)
{
	struct rv_local *l = RV_CONTAINER(p, struct rv_local, queues);
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &l->looked_at)
	{
		if (!rest(l, RV_LIST_ENTRY(it, struct session_queue, looked_at)))
			return -EAGAIN;
	}
	return 0;
}

static const struct rv_poller_ops queue_ops = {
	.name = "queues",
	.poll = poll_queues,
	.arm = arm_queues,
};

void rv_local_poll_queues(struct rv_local *l)
{
	l->queues.ops = &queue_ops;
	l->polls_queues = rv_reactor_add(l->conf.reactor, &l->queues) == 0;
}

/* Its program has stopped looking, and sleeps at its socket. */
static void wake_program(struct session *s)
{
	if (rv_conn_send(&s->conn, RV_LOCAL_BELL | RV_LOCAL_REPLY, NULL, 0, NULL, 0, -1, NULL,
			 NULL))
		rv_conn_close(&s->conn, -ENOMEM);
	else
		rv_shmq_other(&s->queue->out);
}

int rv_session_send(struct session *s, unsigned op, const struct rv_local_rep *rep,
		    const void *payload, size_t len, int fd)
{
	struct session_queue *q = s->queue;
	uint8_t head[RV_LOCAL_PREAMBLE];
	struct rv_local_preamble pre = {(uint8_t)op, sizeof(*rep), (uint32_t)len};
	const struct iovec part[] = {
		{head, sizeof(head)},
		{(void *)(uintptr_t)rep, sizeof(*rep)},
		{(void *)(uintptr_t)payload, len},
	};
	bool wake;
	int rc;

	if (s->conn.closing)
		return -ESHUTDOWN;
	if (q && fd < 0) {
		rv_local_preamble_put(head, &pre);
		if (rv_shmq_put(&q->out, part, len ? 3 : 2, &wake)) {
			if (wake)
				wake_program(s);
			return 0;
		}
	}
	rc = rv_conn_send(&s->conn, op, rep, sizeof(*rep), payload, len, fd, NULL, NULL);
	if (!rc && q)
		rv_shmq_other(&q->out);
	return rc;
}
