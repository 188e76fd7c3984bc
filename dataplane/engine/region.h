/*
 * region.h - an engine's part in clients' regions (mem/region.h): who waits for what.
 *
 * @thread owning reactor
 */
#ifndef RV_DATAPLANE_ENGINE_REGION_H
#define RV_DATAPLANE_ENGINE_REGION_H

#include "dataplane/engine/engine.h"
#include "dataplane/mem/region.h"

/**
 * Guard a range of a region, counted from what the client named.
 *
 * @param[out] out  a block with one hold, the caller's; NULL for an empty range
 * @return 0; -ERANGE: outside; -ESHUTDOWN: the region is being let go; -ENOMEM
 */
int rv_region_take(struct rv_engine *e, struct rv_arena *a, uint64_t off, uint64_t len,
		   struct rv_block **out);

/** The last key of a lease in a region is gone, or (@rc) one could not be revoked. */
void rv_region_keys_gone(struct rv_engine *e, struct rv_arena *a, int rc);

/** rv_pool_conf.region_emptied */
void rv_region_emptied(struct rv_pool *p, struct rv_arena *a);

/**
 * Shutdown: take every registration away; slots in arenas keep their bytes, those in regions get a copy.
 *
 * @return how many arenas and regions are still registered; ask again
 */
uint64_t rv_regions_demote(struct rv_engine *e);

#endif
