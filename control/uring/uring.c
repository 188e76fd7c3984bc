#include "control/uring/uring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

/* Completions a pass: enough to batch, few enough that the other pollers get their turn. */
#define PASS_CQES   128
#define ENTRIES_MIN 16u
/* Sockets looked at in each pass: a look that finds nothing costs as much as a clock's ten. */
#define LOOKING_MAX 4u

static const struct rv_poller_ops poller_ops;

static int init_buffers(struct rv_uring *u)
{
	size_t ring_bytes = RV_URING_BUFFERS * sizeof(struct io_uring_buf);
	struct io_uring_buf_reg reg = {.ring_entries = RV_URING_BUFFERS, .bgid = RV_URING_GROUP};
	void *mem =
		mmap(NULL, ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc;

	if (mem == MAP_FAILED)
		return -ENOMEM;
	u->bufs = mem;
	reg.ring_addr = (uintptr_t)mem;
	rc = io_uring_register_buf_ring(&u->ring, &reg, 0);
	if (rc)
		goto err_ring;
	u->buf_mem = mmap(NULL, (size_t)RV_URING_BUFFERS * RV_URING_BUF_BYTES,
			  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (u->buf_mem == MAP_FAILED) {
		rc = -ENOMEM;
		goto err_ring;
	}
	io_uring_buf_ring_init(u->bufs);
	for (unsigned i = 0; i < RV_URING_BUFFERS; i++)
		io_uring_buf_ring_add(u->bufs, u->buf_mem + (size_t)i * RV_URING_BUF_BYTES,
				      RV_URING_BUF_BYTES, (unsigned short)i,
				      io_uring_buf_ring_mask(RV_URING_BUFFERS), (int)i);
	io_uring_buf_ring_advance(u->bufs, RV_URING_BUFFERS);
	return 0;

err_ring:
	munmap(u->bufs, ring_bytes);
	return rc;
}

static int init(struct rv_uring *u, unsigned entries)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
		.cq_entries = entries * 8,
	};
	int rc;

	*u = (struct rv_uring){.poller = {.ops = &poller_ops}, .entries = entries};
	rv_list_init(&u->later);
	rc = io_uring_queue_init_params(entries, &u->ring, &p);
	if (rc)
		return rc;
	rc = init_buffers(u);
	if (rc)
		io_uring_queue_exit(&u->ring);
	return rc;
}

int rv_uring_init(struct rv_uring *u, unsigned entries)
{
	int rc = init(u, entries);

	while (rc == -ENOMEM && entries > ENTRIES_MIN) {
		entries /= 2;
		rc = init(u, entries);
	}
	if (rc)
		u->buf_mem = NULL;
	else
		rv_slab_init(&u->tx, RV_URING_TX_BYTES, 256);
	return rc;
}

void rv_uring_fini(struct rv_uring *u)
{
	io_uring_queue_exit(&u->ring);
	rv_slab_fini(&u->tx);
	munmap(u->bufs, RV_URING_BUFFERS * sizeof(struct io_uring_buf));
	munmap(u->buf_mem, (size_t)RV_URING_BUFFERS * RV_URING_BUF_BYTES);
}

struct io_uring_sqe *rv_uring_sqe(struct rv_uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	while (!sqe) {
		io_uring_submit(&u->ring);
		sqe = io_uring_get_sqe(&u->ring);
	}
	return sqe;
}

void rv_uring_bind(struct rv_uring *u, struct io_uring_sqe *sqe, struct rv_op *op)
{
	RV_CHECK(!op->pending);
	op->pending = true;
	u->ops_pending++;
	io_uring_sqe_set_data(sqe, op);
}

void rv_uring_cancel(struct rv_uring *u, struct rv_op *op)
{
	struct io_uring_sqe *sqe;

	if (!op->pending)
		return;
	sqe = rv_uring_sqe(u);
	io_uring_prep_cancel(sqe, op, 0);
	io_uring_sqe_set_data(sqe, NULL); /* its own completion says nothing we need */
}

void rv_uring_buf_return(struct rv_uring *u, uint32_t flags)
{
	unsigned short bid = (unsigned short)(flags >> IORING_CQE_BUFFER_SHIFT);

	io_uring_buf_ring_add(u->bufs, u->buf_mem + (size_t)bid * RV_URING_BUF_BYTES,
			      RV_URING_BUF_BYTES, bid, io_uring_buf_ring_mask(RV_URING_BUFFERS), 0);
	io_uring_buf_ring_advance(u->bufs, 1);
}

static void watch_done(struct rv_op *op, int res, uint32_t flags)
{
	/* The poller behind the descriptor is polled each pass anyway; this only ended a sleep. */
	(void)op;
	(void)res;
	(void)flags;
}

static struct rv_uring *self(struct rv_poller *p)
{
	return RV_CONTAINER(p, struct rv_uring, poller);
}

/* Those that look for themselves stay on the list, a few of them. */
static void prepare_later(struct rv_uring *u, bool must)
{
	struct rv_list due, *it;
	unsigned looking = 0;

	rv_list_init(&due);
	rv_list_splice(&due, &u->later);
	while ((it = rv_list_pop(&due))) {
		struct rv_uring_later *l = RV_LIST_ENTRY(it, struct rv_uring_later, link);

		rv_list_init(&l->link);
		if (l->prepare(l, must || looking == LOOKING_MAX)) {
			rv_uring_later(u, l);
			looking++;
		}
	}
}

static unsigned look(struct rv_uring *u)
{
	struct rv_list due, *it;
	unsigned found = 0;

	if (!u->look_ns || rv_list_empty(&u->later))
		return 0;
	rv_list_init(&due);
	rv_list_splice(&due, &u->later);
	while ((it = rv_list_pop(&due))) {
		struct rv_uring_later *l = RV_LIST_ENTRY(it, struct rv_uring_later, link);

		rv_list_init(&l->link);
		rv_uring_later(u, l);
		if (l->look)
			found += l->look(l);
	}
	return found;
}

static unsigned poll_cqes(struct rv_poller *p, uint64_t now_ns)
{
	struct rv_uring *u = self(p);
	struct io_uring_cqe *cqe;
	unsigned work = 0, seen = 0;

	(void)now_ns;
	prepare_later(u, false);
	if (io_uring_sq_ready(&u->ring) ||
	    (*u->ring.sq.kflags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)))
		io_uring_submit_and_get_events(&u->ring);
	while (seen < PASS_CQES && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
		struct rv_op *op = io_uring_cqe_get_data(cqe);
		int res = cqe->res;
		uint32_t flags = cqe->flags;

		io_uring_cqe_seen(&u->ring, cqe);
		seen++;
		if (!op)
			continue;
		if (!(flags & IORING_CQE_F_MORE)) {
			op->pending = false;
			u->ops_pending--;
		}
		work += op->done != watch_done;
		op->done(op, res, flags);
	}
	return work + look(u);
}

static void flush(struct rv_poller *p)
{
	prepare_later(self(p), false);
}

static int watch(struct rv_poller *p, int fd)
{
	struct rv_uring *u = self(p);

	if (u->watch_nr == RV_URING_WATCHES)
		return -ENOSPC;
	u->watch[u->watch_nr++] = (struct rv_watch){.op = {.done = watch_done}, .fd = fd};
	return 0;
}

static void sleep_in(struct rv_poller *p, uint64_t timeout_ns)
{
	struct rv_uring *u = self(p);
	struct __kernel_timespec ts = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000u),
		.tv_nsec = (long long)(timeout_ns % 1000000000u),
	};
	struct io_uring_cqe *cqe;

	prepare_later(u, true);
	for (unsigned i = 0; i < u->watch_nr; i++) {
		struct rv_watch *w = &u->watch[i];

		if (w->op.pending)
			continue;
		struct io_uring_sqe *sqe = rv_uring_sqe(u);

		io_uring_prep_poll_add(sqe, w->fd, POLLIN);
		rv_uring_bind(u, sqe, &w->op);
	}
	io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, timeout_ns == RV_NEVER ? NULL : &ts,
					 NULL);
}

static const struct rv_poller_ops poller_ops = {
	.name = "uring",
	.poll = poll_cqes,
	.flush = flush,
	.watch = watch,
	.sleep = sleep_in,
};
