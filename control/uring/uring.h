/*
 * uring.h - one io_uring for one reactor: every socket operation, and the reactor's only sleep.
 *
 * Operations are submitted once a pass and complete through their rv_op's function. Small receives share a
 * ring of provided buffers, so an idle connection costs no buffer. A busy socket's owner may make its sends and receives
 * itself, without the ring (rv_uring_later).
 *
 * @thread owning reactor
 */
#ifndef RV_CONTROL_URING_URING_H
#define RV_CONTROL_URING_URING_H

#include <liburing.h>

#include "dataplane/base/list.h"
#include "dataplane/base/slab.h"
#include "dataplane/interfaces/poller.h"

#define RV_URING_BUFFERS   128u
#define RV_URING_BUF_BYTES 16384u
#define RV_URING_GROUP     0
#define RV_URING_TX_BYTES  1024u /* of a send's record: larger ones are allocated */
#define RV_URING_WATCHES   16

/** One operation under way; embedded, and not reused before its completion (or the last, for multishot). */
struct rv_op {
	/** @res the CQE's: a count or a negative errno; @flags IORING_CQE_F_* */
	void (*done)(struct rv_op *op, int res, uint32_t flags);
	bool pending;
};

/**
 * A send or receive that is not under way yet, but will be when the ring is next entered: what a pass has to send is
 * gathered until then. While its socket is busy it is made by hand instead, in each pass if it is a receive, which spares
 * a poll, a wake-up and a completion.
 */
struct rv_uring_later {
	struct rv_list link;
	/** @must the ring goes to sleep, or too many others look. @return whether it looks for itself instead */
	bool (*prepare)(struct rv_uring_later *l, bool must);
	/** Receive without waiting; NULL: it does not. @return whether there was anything */
	bool (*look)(struct rv_uring_later *l);
};

struct rv_uring {
	struct rv_poller poller;
	struct io_uring ring;
	struct io_uring_buf_ring *bufs;
	uint8_t *buf_mem;
	uint64_t ops_pending;
	struct rv_watch {
		struct rv_op op;
		int fd;
	} watch[RV_URING_WATCHES];
	unsigned watch_nr;
	struct rv_list later;
	/* So long after it last had something a socket is received from by hand; 0: never, nor sent to. */
	uint64_t look_ns;
	unsigned entries;  /* of the submission ring */
	struct rv_slab tx; /* records of small sends, shared by the ring's connections (conn.c) */
};

/**
 * Set the ring up with @entries, or with fewer where the user's memlock limit (to which rings count) has no
 * room: u->entries says how many. A small ring costs more system calls under load, nothing else.
 *
 * @return 0; -ENOSYS, -EPERM: this kernel or container has no io_uring for us; -ENOMEM
 * @thread the one that will poll it
 */
int rv_uring_init(struct rv_uring *u, unsigned entries);
void rv_uring_fini(struct rv_uring *u);

/** A submission entry, to be prepared and bound with rv_uring_bind(). Submits what is queued when full. */
struct io_uring_sqe *rv_uring_sqe(struct rv_uring *u);
void rv_uring_bind(struct rv_uring *u, struct io_uring_sqe *sqe, struct rv_op *op);

/** Call l->prepare() when the ring is next entered. Twice is once; unlinking it calls it off. */
static inline void rv_uring_later(struct rv_uring *u, struct rv_uring_later *l)
{
	if (rv_list_empty(&l->link))
		rv_list_push(&u->later, &l->link);
}

/** Ask for @op's end; it still completes. */
void rv_uring_cancel(struct rv_uring *u, struct rv_op *op);

/** A provided buffer that a CQE names, and giving it back. */
static inline uint8_t *rv_uring_buf(struct rv_uring *u, uint32_t flags)
{
	return u->buf_mem + (size_t)(flags >> IORING_CQE_BUFFER_SHIFT) * RV_URING_BUF_BYTES;
}
void rv_uring_buf_return(struct rv_uring *u, uint32_t flags);

#endif
