/*
 * pool.h - one reactor's arenas: hand out blocks, grow when full, give back what is empty.
 *
 *   rv_pool_alloc --room--> block
 *        '--no room--> grow (slow thread) --> rv_pool_grown --> block through req->done
 *                        '--refused--> plain memory if the request allows it, else an error
 *
 * Growing is asked for through a hook and finishes later; everything else is the reactor's own.
 *
 * @thread owning reactor
 */
#ifndef RV_DATAPLANE_MEM_POOL_H
#define RV_DATAPLANE_MEM_POOL_H

#include "dataplane/mem/arena.h"

struct rv_pool;

/** Why pinned memory was not had; the metric's label. */
enum rv_pool_refusal { RV_POOL_GRANTED, RV_POOL_BUDGET, RV_POOL_EXHAUSTED };

struct rv_pool_req {
	/* request */
	struct rv_arena_class cls; /* kind: what is wanted */
	uint64_t len;              /* bytes, at least 1 */
	bool allow_plain; /* plain memory will do where registered memory is not to be had */
	bool mapped_only; /* never wait for registered memory to be made */
	bool now;         /* from what is there, or -EAGAIN */
	/** Called once if rv_pool_alloc() returned -EINPROGRESS; never from inside it. @rc 0, -ENOSPC or -EMFILE */
	void (*done)(struct rv_pool *p, struct rv_pool_req *req, int rc);
	void *ctx;

	/* outcome */
	struct rv_block *block; /* with one hold, the caller's */
	enum rv_pool_refusal refusal;

	struct rv_list link; /* the pool's, until done */
	uint64_t seq; /* the pool's: the growth that was asked for it; 0: waits for another's */
	bool plain;   /* the pool's: now after plain memory */
};

/** What the pool asks of the slow thread; comes back through rv_pool_grown(). */
struct rv_pool_grow {
	struct rv_arena_class cls;
	unsigned reactor;
	uint64_t len_min;  /* with less the request that asked is not helped */
	uint64_t len_want; /* at most this */
	bool dedicated;
	uint64_t seq; /* comes back unchanged */

	int rc; /* 0; -ENOSPC over the budget; -ENOMEM and others */
	struct rv_arena *arena;
};

/** What else the slow thread does with arenas; comes back through rv_engine_asked(). */
struct rv_pool_ask {
	enum {
		RV_ASK_REGION_MAP,   /* make a client's memory known: a region's arena */
		RV_ASK_REGION_UNMAP, /* take it from the fabrics and give it back to the client */
		RV_ASK_REGION_FREE,  /* nothing refers to the region any more */
		RV_ASK_DEMOTE,       /* take an arena from the fabrics; its bytes stay */
	} op;
	struct rv_arena *arena; /* MAP: the outcome */

	/* REGION_UNMAP; rc -EAGAIN: in use, and no memory to go on with a copy: ask again when it is not */
	bool in_use;     /* blocks are left */
	bool keep_bytes; /* what is staged there goes on, in chunks */

	/* REGION_MAP */
	struct rv_arena_class cls;
	unsigned reactor;
	int fd;            /* taken over, also on a failure */
	uint64_t off, len; /* in the file */
	void *ctx;         /* the asker's */

	int rc;
	char text[160]; /* REGION_MAP, on a failure: why, for people */
};

struct rv_pool_conf {
	struct rv_reactor *reactor;
	uint64_t initial_bytes, max_bytes, dedicated_min;
	uint64_t retain_bytes;     /* empty pooled arenas kept when reclaiming */
	uint64_t reclaim_after_ns; /* RV_NEVER: only dedicated arenas are given back */
	uint64_t
		lease_timeout_ns; /* reclaiming keeps the reaper's pace if that is faster; 0: it does not */
	bool registers; /* there is a fabric: landing, staging and session arenas are registered */

	/** Ask for an arena. @return 0 (rv_pool_grown follows), or -EAGAIN: no cell, -ENOSPC now. */
	int (*grow)(void *user, const struct rv_pool_grow *g);
	/** Give an empty arena back; it is gone from the pool. @return 0, or -EAGAIN: offer it again later. */
	int (*shrink)(void *user, struct rv_arena *a);
	/** Ask the slow thread for more than that. @return 0 (rv_engine_asked() follows), or -EAGAIN: no cell */
	int (*ask)(void *user, const struct rv_pool_ask *a);
	void *user;

	/** The last block of a region was given back. */
	void (*region_emptied)(struct rv_pool *p, struct rv_arena *a);
};

struct rv_pool {
	struct rv_pool_conf conf;
	struct rv_list arenas;
	struct rv_list
		regions; /* arenas that are clients' memory; nothing is ever carved from them */
	struct rv_list waiting;     /* requests that wait for a growth */
	struct rv_list free_blocks; /* records */
	struct rv_list slabs;
	unsigned growing; /* growths under way */
	uint64_t last_seq;
	struct rv_task sweep, note;
	bool stopped;

	struct rv_counter blocks, used_bytes, resting_blocks;
	struct rv_counter free_bytes;   /* of its arenas; a moment late, as ... */
	struct rv_counter largest_free; /* ... bytes that surely fit in one arena */
};

/** @thread init */
void rv_pool_init(struct rv_pool *p, const struct rv_pool_conf *conf);

/** Free the records; the arenas must be gone. */
void rv_pool_fini(struct rv_pool *p);

/**
 * A block of @req->len bytes.
 *
 * @return 0 and req->block; -EINPROGRESS: req->done follows; -ENOSPC; -EAGAIN: too busy to ask
 * @cost O(arenas of the class)
 */
int rv_pool_alloc(struct rv_pool *p, struct rv_pool_req *req);

/**
 * A range of a region as a block, with one hold for the caller.
 *
 * @param off  from the arena's start; the range lies within it
 * @return NULL without memory for the record   @cost O(1)
 */
struct rv_block *rv_pool_region_block(struct rv_pool *p, struct rv_arena *a, uint64_t off,
				      uint64_t len);

/** A growth came back. */
void rv_pool_grown(struct rv_pool *p, const struct rv_pool_grow *g);

static inline void rv_block_hold(struct rv_block *b)
{
	b->holds++;
}

/** Drop a hold; the last one lets the block rest and then frees it. */
void rv_block_drop(struct rv_block *b);

/** The block must rest at least until @until_ns once its last hold is gone. */
void rv_block_rest_until(struct rv_block *b, uint64_t until_ns);

/** No new blocks; requests that wait fail; rest is over: nobody can reach the bytes any more (shutdown). */
void rv_pool_stop(struct rv_pool *p);

/** A session is over: its arenas go as soon as they are empty. */
void rv_pool_end_session(struct rv_pool *p, uint64_t session);

/** Offer every empty arena to shrink(), whatever its age (shutdown, budget pressure). @return how many are left */
unsigned rv_pool_shrink_all(struct rv_pool *p);

/** Sums for metrics and `rvctl arenas`. */
struct rv_pool_stats {
	uint64_t used_bytes, free_bytes, largest_free_bytes;
};
void rv_pool_measure(const struct rv_pool *p, struct rv_pool_stats *out);

#endif
