/*
 * mem.h - pages that UCX knows, and the key by which peers read them.
 *
 * Address and length are all that is asked of UCX: it registers with every remote right anyway, so what is
 * mapped must be fit to be read and written by every peer of a trusted fabric.
 */
#ifndef RV_UCX_MEM_H
#define RV_UCX_MEM_H

#include "dataplane/interfaces/fabric.h"
#include "ucx/context.h"

struct rv_ucx_map {
	struct rv_fabric_map base;
	ucp_mem_h memh;
};

static inline ucp_mem_h rv_ucx_map_memh(struct rv_fabric_map *m)
{
	return ((struct rv_ucx_map *)m)->memh;
}

/** rv_fabric_ops.map @thread slow @cost microseconds over tcp; pins the pages on a native lane */
int rv_ucx_map(struct rv_ucx *u, void *base, uint64_t len, enum rv_map_access access,
	       struct rv_fabric_map **out);

/** rv_fabric_ops.unmap. A failure leaves the map as it was. @thread slow */
int rv_ucx_unmap(struct rv_ucx *u, struct rv_fabric_map *m);

#endif
