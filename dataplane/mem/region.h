/*
 * region.h - memory that a client registered: how its bytes are read, and how it is let go.
 *
 *   open --close--> closing (no new slots; waits for blocks) --none left, or out of time--> unmapping
 *     unmapping --every fabric has let go, gate latched--> gone     the client may reuse its memory
 *               '-a fabric has not confirmed-------------> stuck    it may not, ever
 *
 * A region is an arena (mem/arena.h) without an allocator: its blocks are ranges the client named, and their
 * number is the in-flight guard. The client can change the bytes at any time, so they are only read through
 * the kernel, a piece at a time, inside the *copy gate*: the slow thread latches it before it lets the pages
 * go, waits for the copies that are inside, and later ones are refused.
 *
 * The gate is the one thing here that threads share; the rest belongs to the arena's reactor. The gate, the
 * guard and the messages between their threads are modelled in tests/spin/region.pml.
 */
#ifndef RV_DATAPLANE_MEM_REGION_H
#define RV_DATAPLANE_MEM_REGION_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/mem/arena.h"

/** Bytes copied in one go: what a latch may have to wait for. */
#define RV_COPY_PIECE (512u << 10)

struct rv_copy_gate {
	alignas(64) _Atomic uint32_t inside; /* written by every thread that copies */
	alignas(64) _Atomic bool closed;     /* written by the slow thread */
};

enum rv_region_state {
	RV_REGION_OPEN,
	RV_REGION_CLOSING,
	RV_REGION_UNMAPPING,
	RV_REGION_GONE,
	RV_REGION_STUCK,
};

/** What makes an arena a region: rv_arena.region. */
struct rv_region {
	struct rv_copy_gate gate;
	int fd; /* the client's memfd, or our own copy of it; the slow thread's to change */
	uint64_t fd_off; /* where in it the arena begins */
	uint64_t
		user_off; /* what the client named, from the arena's start; its own offsets count from here */
	uint64_t user_len;

	/* The owning reactor's. */
	enum rv_region_state state;
	bool lasting;    /* CLOSING, but handed over: peers read it until its last block goes */
	bool timed_out;  /* it was not empty when it was unmapped */
	bool no_copy;    /* there was no memory for one: it goes when it is empty */
	bool revoking;   /* UNMAPPING, once the keys of leases there are gone */
	bool keep_bytes; /* a shutdown: slots go on with a copy */
	bool unknown;    /* whoever registered it was told: it names it no more */
	struct rv_task deadline; /* of the wait for its blocks; then to ask again */
	struct rv_cell *closer;  /* whom to tell when it was let go */
	struct rv_arena *arena;
};

const char *rv_region_state_name(enum rv_region_state s);

/**
 * Begin a copy out of a region.
 *
 * @return false: the region was let go, its bytes must not be looked at
 * @thread any   @cost two atomic operations on success
 */
static inline bool rv_copy_enter(struct rv_copy_gate *g)
{
	/*
	 * G1/G2: store-buffer litmus with rv_copy_latch().
	 *
	 *   enter  G1: inside += 1, then read closed
	 *   latch  G2: closed = true, then read inside
	 *
	 * All four are seq_cst, so one side sees the other: we step back, or the latch waits for us. With less,
	 * both could miss, and a copy would read pages that the client was told are its own again.
	 */
	atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
	if (!atomic_load_explicit(&g->closed, memory_order_seq_cst))
		return true;
	/* G3: release, as in rv_copy_leave(). */
	atomic_fetch_sub_explicit(&g->inside, 1, memory_order_release);
	return false;
}

/** End a copy. @thread the one that entered */
static inline void rv_copy_leave(struct rv_copy_gate *g)
{
	/* G3: release, pairs with the acquire of rv_copy_latch(): what was read was read before the pages go. */
	atomic_fetch_sub_explicit(&g->inside, 1, memory_order_release);
}

/**
 * Refuse copies from now on, and wait for those that are inside: a piece each.
 *
 * @thread slow   @cost up to RV_COPY_PIECE bytes of copying by others
 */
void rv_copy_latch(struct rv_copy_gate *g);

/** Let copies in again: the region has other pages. @thread slow */
void rv_copy_unlatch(struct rv_copy_gate *g);

/**
 * Read a block's bytes through the kernel, whoever may be writing them.
 *
 * @param off  from the block's start; the block is that long
 * @return 0; -ESHUTDOWN: its region was let go; -EIO: it cannot be read
 * @thread any that holds the block   @cost a system call for each RV_COPY_PIECE
 */
int rv_block_read(const struct rv_block *b, uint64_t off, void *dst, uint64_t len);

/** May peers be given this arena's key now? @thread owning reactor */
static inline bool rv_arena_exports(const struct rv_arena *a)
{
	const struct rv_region *r = a->region;

	if (a->demoting)
		return false;
	return !r || r->state == RV_REGION_OPEN || (r->state == RV_REGION_CLOSING && r->lasting);
}

#endif
