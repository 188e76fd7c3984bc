/*
 * arena_map.h - the daemon's arenas as this process sees them: each mapped once a session.
 *
 *   shown (descriptor came) -> mapped, held by buffers and views -> idle -> unmapped
 *
 * A pooled arena stays mapped until the session ends. A single-use one goes when its last hold
 * is dropped and no request is under way whose reply may still name it: the daemon sends the
 * descriptor again only for requests that it reads after the buffer was given back. But one that
 * this session may write, the last that became idle, stays until another does, for mapping costs
 * more than all else of a view: the daemon can take the memory of such an arena from under it.
 *
 * Of the buffers in writable arenas it knows where they are: a pointer into one names the buffer.
 *
 * @thread under the wire's lock, all of it
 */
#ifndef RV_CONTROL_CLIENT_ARENA_MAP_H
#define RV_CONTROL_CLIENT_ARENA_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/map64.h"

/** A buffer to fill. */
struct rv_arena_buf {
	uint64_t off, len, token;
};

struct rv_arena {
	uint64_t id;
	uint8_t *base;
	uint64_t len;
	bool writable;
	bool single_use;
	uint64_t holds;
	uint64_t idle_since;      /* single-use, no holds: the newest request then; else 0 */
	struct rv_arena_buf *buf; /* by offset */
	size_t buf_nr, buf_cap;
};

/** A zeroed one is empty. */
struct rv_arena_map {
	struct rv_map64 by_id;
	uint64_t idle_nr;      /* single-use arenas without holds, but for this one: */
	struct rv_arena *kept; /* NULL: none */
	struct rv_arena *last; /* that was named; NULL: it is gone */
};

/** What a reply says about an arena. */
struct rv_arena_word {
	uint32_t id;
	uint64_t arena_len, off, len;
	bool writable, single_use;
	int fd; /* or -1 */
};

/**
 * Find or map the arena that a reply names, and hold it.
 *
 * @param[out] out  the arena
 * @param[out] why  on failure, static text
 * @return 0; -EPROTO: unknown and no descriptor, not sealed, too short, or the range is not
 *         inside; -ENOMEM
 *
 * @owns w->fd is closed in any case
 */
int rv_arena_map_take(struct rv_arena_map *m, const struct rv_arena_word *w, struct rv_arena **out,
		      const char **why);

/** There is a buffer. Without memory it is not known: its bytes are copied then. @cost O(buffers behind it) */
void rv_arena_add_buf(struct rv_arena *a, const struct rv_arena_buf *b);
/** There is none at @off any more. @cost O(buffers behind it) */
void rv_arena_del_buf(struct rv_arena *a, uint64_t off);

/**
 * The buffer that all of [@p, @p + @len) lies in.
 *
 * @param[out] off  of @p in it
 * @return its token, or 0: there is none
 * @cost O(arenas), and O(log buffers)
 */
uint64_t rv_arena_map_find_buf(const struct rv_arena_map *m, const void *p, uint64_t len,
			       uint64_t *off);

/** Drop a hold. @param newest the newest request that may have been sent before the buffer's end */
void rv_arena_map_drop(struct rv_arena_map *m, struct rv_arena *a, uint64_t newest);

/**
 * Unmap idle arenas that no request at or after @oldest can name without showing them.
 * @cost O(arenas) if any is idle
 */
void rv_arena_map_sweep(struct rv_arena_map *m, uint64_t oldest);

/** Forget all; @unmap false leaves the mappings to the parent process. */
void rv_arena_map_fini(struct rv_arena_map *m, bool unmap);

/** Is it memory of @len bytes, or more, that cannot shrink? */
bool rv_arena_usable(int fd, uint64_t len);

#endif
