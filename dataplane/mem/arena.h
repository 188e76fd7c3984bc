/*
 * arena.h - one stretch of shared pages, one registration per fabric, cut into blocks.
 *
 *   kind      written by            read by                 given to peers
 *   landing   device or daemon      clients of its user     never
 *   staging   daemon                peers' devices, clients its key
 *   session   one session's client  peers' devices          its key
 *   plain     daemon                clients of its user     never: not registered
 *   region    the client it is of   peers' devices          its key (mem/region.h)
 *
 * A *block* is a range in use. Its holds say who may still touch the bytes: the slot that names it, a
 * transfer, a GET into it, a client's view. At zero holds it rests until `rest_until_ns` (a consumer may
 * still be reading through a key that cannot be revoked) and only then returns to the allocator.
 */
#ifndef RV_DATAPLANE_MEM_ARENA_H
#define RV_DATAPLANE_MEM_ARENA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "dataplane/base/list.h"
#include "dataplane/interfaces/fabric.h"
#include "dataplane/lcore/reactor.h"
#include "dataplane/mem/offset_alloc.h"
#include "dataplane/mem/pages.h"

enum rv_arena_kind {
	RV_ARENA_LANDING,
	RV_ARENA_STAGING,
	RV_ARENA_SESSION,
	RV_ARENA_PLAIN,
	RV_ARENA_REGION,
};
#define RV_ARENA_KINDS 5

/** What decides who may share an arena. */
struct rv_arena_class {
	enum rv_arena_kind kind;
	uid_t uid;
	uint64_t session; /* session arenas and regions only */
	bool plain;       /* a session arena without registration */
};

struct rv_pool;
struct rv_region;

struct rv_arena {
	struct rv_list link;
	struct rv_pool *pool;
	struct rv_arena_class cls;
	uint32_t id; /* never reused within a node */
	unsigned reactor;
	bool dedicated;    /* one block, never offered again */
	bool session_over; /* a session arena whose session has ended */
	bool reachable; /* peers were given its key: software GETs may come as long as they like */
	bool stuck;     /* a fabric has not let go of it: its pages are never given back */
	bool demoting;  /* its registration is being taken away, its bytes stay (shutdown) */
	struct rv_pages pages;
	struct rv_region *region;      /* NULL: memory of our own */
	struct rv_offset_alloc *alloc; /* NULL when dedicated, or a region */
	struct rv_fabric_map *map[RV_FABRICS];
	uint64_t generation; /* of the registration; 0 when not registered */
	uint64_t used_gr;
	uint32_t block_nr;
	uint32_t key_nr; /* keys of leases on its blocks: none may be left when its pages go */
	uint64_t empty_since_ns;
};

struct rv_block {
	struct rv_arena *arena;
	uint64_t off; /* bytes from the arena's start */
	uint64_t len; /* bytes asked for */
	struct rv_offset_slice slice;
	uint32_t holds;
	uint64_t rest_until_ns;
	struct rv_task rest; /* armed while resting */
	struct rv_list link; /* the pool's free list */
};

static inline uint8_t *rv_block_ptr(const struct rv_block *b)
{
	return (uint8_t *)b->arena->pages.base + b->off;
}

static inline bool rv_arena_registered(const struct rv_arena *a)
{
	return a->generation != 0;
}

static inline uint64_t rv_arena_size_gr(const struct rv_arena *a)
{
	return a->pages.len / RV_GRANULE;
}

const char *rv_arena_kind_name(enum rv_arena_kind k);

/** The parking owner of a class: pages shown to a user are only ever reused for the same user and kind. */
uint64_t rv_arena_class_owner(const struct rv_arena_class *c);

#endif
