/*
 * wire_tx.h - requests into the socket, or the queue beside it, whole and in order.
 *
 *   queue --the socket takes it--> sent
 *     '--it is full--> waits here --flush, or whoever sends next--> sent
 *   send  (waits for its turn and for room) --> sent
 *
 * The lock is never held while somebody waits: whoever waits for room marks the socket as busy, and
 * what others queue meanwhile goes out behind its frame.
 */
#ifndef RV_CONTROL_CLIENT_WIRE_TX_H
#define RV_CONTROL_CLIENT_WIRE_TX_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/local/local_proto.h"
#include "control/local/shmq.h"
#include "dataplane/base/list.h"

/** Frames that may wait; more are refused unless they must go out. */
#define RV_TX_WAITING 16384u

/** Bytes of a long write that go out in one frame, so that others have their turn. */
#define RV_TX_PIECE (1u << 20)

/** One request on its way out. */
struct rv_tx_frame {
	struct rv_list link;
	struct rv_local_req rq;
	uint8_t op;
	const uint8_t *data;      /* borrowed until it is sent or withdrawn, unless `own` */
	uint64_t len;             /* of this frame's payload */
	uint64_t left;            /* WRITE: payload of the frames that follow this one */
	struct rv_tx_frame *next; /* goes out after the last of them: COMMIT */
	void *own;
	bool with_fd;
	int fd;      /* a duplicate goes with the first byte; the sender's */
	size_t sent; /* bytes of this frame that the socket has */
};

struct rv_tx_ops {
	/** Wait for room in the socket. @return 0: try again; -ETIMEDOUT; not under the lock */
	int (*wait)(void *user, uint64_t deadline_ns);
	/** Frames wait for room, or none does any more. Under the lock. */
	void (*waiting)(void *user, bool any);
	/** Does the connection still work? @return 0, or why not. Under the lock. */
	int (*dead)(void *user);
	/** It does no more. Under the lock. */
	void (*broken)(void *user, const char *text);
};

struct rv_tx {
	int fd;
	struct rv_shmq_out *shared; /* frames go through it where they can; NULL: there is none */
	const struct rv_tx_ops *ops;
	void *user;
	pthread_mutex_t lock;
	pthread_cond_t turn;
	bool busy; /* somebody sends, and waits for room */
	bool told; /* the owner knows that frames wait */
	struct rv_list queue;
	size_t nr;
};

/** @data is borrowed. @return NULL without memory */
struct rv_tx_frame *rv_tx_frame_new(uint8_t op, const struct rv_local_req *rq, const void *data,
				    uint64_t len);
void rv_tx_frame_free(struct rv_tx_frame *f);

void rv_tx_init(struct rv_tx *tx, int fd, const struct rv_tx_ops *ops, void *user);
/** What still waits is forgotten. */
void rv_tx_fini(struct rv_tx *tx);

/**
 * Send one frame, whatever waits before it.
 *
 * @param deadline_ns  rv_clock_ns() when to stop trying; RV_NEVER: no limit
 * @return 0; -ETIMEDOUT: nothing of it was sent; -EBADF: its descriptor is none; -ENOTCONN and others: the
 *         connection is no more
 * @thread any
 */
int rv_tx_send(struct rv_tx *tx, struct rv_tx_frame *f, uint64_t deadline_ns);

/**
 * Send one frame now, or when there is room: never waits.
 *
 * @param must  it may not be refused
 * @return 0; -EAGAIN: too many wait already; -ENOTCONN and others
 * @thread any   @owns takes over @f on success
 */
int rv_tx_queue(struct rv_tx *tx, struct rv_tx_frame *f, bool must);

/** Send what waits, for as long as that takes, but not beyond the deadline. @thread any */
void rv_tx_drain(struct rv_tx *tx, uint64_t deadline_ns);

/** Send what waits, as far as there is room. @thread any */
void rv_tx_flush(struct rv_tx *tx);

/**
 * No frame of request @id needs its caller's bytes any more: what has not begun is withdrawn, the
 * rest of one that has is copied.
 *
 * @return whether the request was withdrawn before the daemon saw any of it
 * @thread any   @cost O(frames that wait)
 */
bool rv_tx_withdraw(struct rv_tx *tx, uint64_t id);

#endif
