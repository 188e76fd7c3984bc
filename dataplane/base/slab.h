/*
 * slab.h - records of one size, reused last freed first: after warming up, the hot path allocates nothing.
 *
 * Grows by a chunk when empty, never shrinks before fini. A taken record is not zeroed.
 *
 * @thread owner only   @cost O(1); an allocation only when more records are out than ever before
 */
#ifndef RV_DATAPLANE_BASE_SLAB_H
#define RV_DATAPLANE_BASE_SLAB_H

#include <stddef.h>

struct rv_slab {
	size_t size;
	unsigned chunk_nr; /* records a chunk */
	void *free;        /* each free record starts with the next one's address */
	void *chunks;
	size_t out;
};

/** @param size of a record, at least a pointer's @param chunk_nr records allocated at once */
void rv_slab_init(struct rv_slab *s, size_t size, unsigned chunk_nr);

/** Free everything, records that are out too: nobody may use them any more. */
void rv_slab_fini(struct rv_slab *s);

/** @return NULL without memory */
void *rv_slab_take(struct rv_slab *s);
void rv_slab_give(struct rv_slab *s, void *rec);

#endif
