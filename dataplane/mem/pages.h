/*
 * pages.h - sealed shared memory: what arenas are made of, and where it rests when their arena is gone.
 *
 *   create --> in an arena --> unmapped? munmap
 *                         '--> parked (a stray emulated GET may still read here) --> next arena that fits
 *                                                                     '--> hollow: read-only zero pages
 *
 * A memfd sealed against shrinking and growing: no holder of the descriptor can make us or a client fault.
 * Every page is allocated before anyone sees it, so memory that is not there is an error here, not a SIGBUS
 * later.
 */
#ifndef RV_DATAPLANE_MEM_PAGES_H
#define RV_DATAPLANE_MEM_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/list.h"
#include "dataplane/base/units.h"

enum rv_hugepages { RV_HUGEPAGES_AUTO, RV_HUGEPAGES_NO, RV_HUGEPAGES_REQUIRE };

struct rv_pages {
	void *base;
	uint64_t len;
	int memfd; /* -1 once hollow */
	bool huge;
	bool reclaim; /* at its end, even from those who have it mapped: they may write it */
	bool hollow;
	bool warm; /* of a parking: nobody else can reach them, so they may go at any time */
};

/**
 * @param len       bytes, rounded up to whole (huge) pages
 * @param writable  others may map it writable (session arenas); otherwise only this mapping can write
 * @return 0, -ENOMEM (also: no huge pages where they are required), or another negative errno
 * @thread slow   @cost about 0.3 s/GiB
 */
int rv_pages_create(struct rv_pages *p, uint64_t len, bool writable, enum rv_hugepages huge);

/** Unmap and close. Nothing may reach the addresses any more. With `reclaim` the memory goes even while others map it. @thread slow */
void rv_pages_destroy(struct rv_pages *p);

/**
 * Put the memory of @by, of the same length, where @p is: readers of the addresses see the one or the other.
 *
 * @return 0: *by is empty, and what @p had is unmapped (its memfd stays open, the caller's); or a negative errno
 * @thread slow
 */
int rv_pages_replace(struct rv_pages *p, struct rv_pages *by);

/** Give the memory back, keep the addresses readable (as zeros). @thread slow */
void rv_pages_hollow(struct rv_pages *p);

/** How long pages that nobody else can reach are kept for the next arena. */
#define RV_PAGES_WARM_NS RV_SEC(10)

/** Pages of former arenas. @thread slow only */
struct rv_parking {
	struct rv_list parked;
	struct rv_list warm;
	struct rv_list hollow;
	uint64_t parked_bytes; /* whole, warm ones included */
	uint64_t warm_bytes;
	uint64_t retain_bytes; /* more than this is hollowed */
};

void rv_parking_init(struct rv_parking *pk, uint64_t retain_bytes);

/**
 * Take over @p: whole, to be given out again only for the same @owner (user and kind), or hollowed when
 * @keep is false or enough is parked.
 *
 * @return true if it is kept whole: its bytes still count
 */
bool rv_parking_put(struct rv_parking *pk, struct rv_pages *p, uint64_t owner, bool keep);

/**
 * Take over pages of which no key is out and that no device can reach, warm: making and zeroing others costs as much
 * time as filling these three times. They go after RV_PAGES_WARM_NS, or when somebody needs the room.
 *
 * @return false: they are gone already
 */
bool rv_parking_warm(struct rv_parking *pk, struct rv_pages *p, uint64_t owner);

/**
 * Let go of what has been warm for long enough; with RV_NEVER of all that is warm.
 *
 * @param[out] next_ns  when to ask again; RV_NEVER: nothing is warm
 * @return bytes that do not count any more
 */
uint64_t rv_parking_cool(struct rv_parking *pk, uint64_t now_ns, uint64_t *next_ns);

/** Pages of at least @len and less than twice that, of the same @owner. @return 0 or -ENOENT */
int rv_parking_take(struct rv_parking *pk, uint64_t len, uint64_t owner, struct rv_pages *out);

/** Unmap everything: no emulated lane is left. */
void rv_parking_fini(struct rv_parking *pk);

#endif
