/*
 * shmq.h - frames between a program and its daemon through memory that both have mapped, beside their socket.
 *
 *   put --the other looks--> taken            no system call
 *    '--it does not, it is full, too long, with a descriptor--> the socket's, as without these
 *
 * One queue each way. Frames are in one order, whichever way they take: each entry says how many frames of the
 * socket came before it, and the reader takes what is here before it takes the socket's next one.
 *
 * Who looks no more says so (rest), and looks once again: what was put before is seen then, and who puts later sees
 * that it has to wake the reader, by a frame through the socket. Both are full fences: one of the two sees the other.
 *
 * The other end is not trusted: every word is read once, and a frame is copied before it is looked at.
 */
#ifndef RV_CONTROL_LOCAL_SHMQ_H
#define RV_CONTROL_LOCAL_SHMQ_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/** Of each queue; a power of two. */
#define RV_SHMQ_BYTES 32768u
/** The longest frame that goes through one. */
#define RV_SHMQ_FRAME 8192u
/** Of the memory of both. */
#define RV_SHMQ_LEN   (4096u + 2 * RV_SHMQ_BYTES)

/** The words of one queue, as they are in the shared memory. */
struct rv_shmq_words {
	alignas(64) _Atomic uint32_t tail; /* the writer's: bytes put since the beginning */
	_Atomic uint32_t others;           /* the writer's: frames it has given to the socket */
	alignas(64) _Atomic uint32_t head; /* the reader's: bytes taken */
	_Atomic uint32_t rests;            /* the reader's: it does not look */
};

/** What the writer keeps for itself. */
struct rv_shmq_out {
	struct rv_shmq_words *w;
	uint8_t *data;
	uint32_t tail, others;
};

/** What the reader keeps for itself. */
struct rv_shmq_in {
	struct rv_shmq_words *w;
	const uint8_t *data;
	uint32_t head, others; /* frames of the socket that were taken */
};

/**
 * The two ends in memory of RV_SHMQ_LEN bytes that begins as zeros. Frames that the socket has carried already:
 * @sent to the other end, @taken from it. Both readers rest until they say otherwise.
 *
 * @thread before the memory is shown to the other end (the daemon), or used (the program)
 */
void rv_shmq_init(void *mem, bool daemon, uint32_t sent, uint32_t taken, struct rv_shmq_out *out,
		  struct rv_shmq_in *in);

/* The writer. @thread one at a time */

/**
 * Put a frame, if the reader looks and there is room.
 *
 * @param[out] wake  it has stopped looking meanwhile: send it something through the socket
 * @return false: it goes through the socket
 * @cost a copy, no system call
 */
bool rv_shmq_put(struct rv_shmq_out *q, const struct iovec *part, unsigned nr, bool *wake);

/** A frame goes, or has gone, through the socket, in its turn. */
void rv_shmq_other(struct rv_shmq_out *q);

/* The reader. @thread one at a time */

/**
 * Take the next frame.
 *
 * @param buf  RV_SHMQ_FRAME bytes
 * @return its length; 0: none, or it comes behind one of the socket's; -EPROTO: the queue is broken
 */
int rv_shmq_take(struct rv_shmq_in *q, uint8_t *buf);

/** Would rv_shmq_take() return something else than 0? @cost O(1) */
bool rv_shmq_ready(const struct rv_shmq_in *q);

/** Has the writer given the socket frames that were not taken? What it says; a hint. */
static inline bool rv_shmq_others(const struct rv_shmq_in *q)
{
	return atomic_load_explicit(&q->w->others, memory_order_relaxed) != q->others;
}

/** A frame of the socket was taken. */
static inline void rv_shmq_other_taken(struct rv_shmq_in *q)
{
	q->others++;
}

/** The reader looks from now on. */
static inline void rv_shmq_look(struct rv_shmq_in *q)
{
	atomic_store_explicit(&q->w->rests, 0, memory_order_relaxed);
}

/** It does not any more. @return false: something has come, it should look once again */
bool rv_shmq_rest(struct rv_shmq_in *q);

/** Does it rest? */
static inline bool rv_shmq_rests(const struct rv_shmq_in *q)
{
	return atomic_load_explicit(&q->w->rests, memory_order_relaxed) != 0;
}

#endif
