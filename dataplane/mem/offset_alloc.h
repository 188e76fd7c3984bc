/*
 * offset_alloc.h - suballocate granules of an arena in O(1), without touching the arena's memory.
 *
 * Free ranges hang in 256 bins whose sizes grow like a small float (3 bits of mantissa), so a bin found by
 * two bit scans always fits. Of the first ranges of a bin the closest fit is taken, and the bin below is looked at first:
 * a hole that a block of the same size left is used again, without splitting and merging. Neighbours merge when freed.
 * The node pool has one node a granule, so it never runs out before the arena does.
 *
 * @thread owner only   @cost O(1), no allocation after create
 */
#ifndef RV_DATAPLANE_MEM_OFFSET_ALLOC_H
#define RV_DATAPLANE_MEM_OFFSET_ALLOC_H

#include <stdint.h>

struct rv_offset_alloc;

/** What alloc hands out; needed to free. A peer that knows the offset cannot free. */
struct rv_offset_slice {
	uint32_t off_gr;
	uint32_t node;
};

/** @param size_gr granules to hand out, at least 1 @return NULL without memory (about 28 bytes a granule, touched as used) */
struct rv_offset_alloc *rv_offset_alloc_create(uint32_t size_gr);
void rv_offset_alloc_destroy(struct rv_offset_alloc *a);

/** @return 0, or -ENOSPC when no free range surely holds @len_gr granules */
int rv_offset_alloc_get(struct rv_offset_alloc *a, uint32_t len_gr, struct rv_offset_slice *out);
void rv_offset_alloc_put(struct rv_offset_alloc *a, struct rv_offset_slice s);

uint32_t rv_offset_alloc_free_gr(const struct rv_offset_alloc *a);
/** The largest request that surely succeeds now. */
uint32_t rv_offset_alloc_largest_gr(const struct rv_offset_alloc *a);

#endif
