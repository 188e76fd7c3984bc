/*
 * mr.h - whole maps: landing and session arenas that we read into, sources that peers may read where there is no fence.
 */
#ifndef RV_VERBS_MR_H
#define RV_VERBS_MR_H

#include "verbs/verbs.h"

struct rv_verbs_map {
	struct rv_fabric_map base;
	struct ibv_mr *mr;
};

/** ibv_reg_mr with its errors told apart, the cause logged. @return 0; -ENOMEM, -EPERM (memlock), -ENOTSUP, -EIO. @thread any */
int rv_verbs_register(struct rv_verbs *v, struct ibv_pd *pd, void *addr, uint64_t len, int access,
		      struct ibv_mr **out);

/** rv_fabric_ops.map, unmap @thread slow */
int rv_verbs_map(struct rv_verbs *v, void *base, uint64_t len, enum rv_map_access access,
		 struct rv_fabric_map **out);
int rv_verbs_unmap(struct rv_verbs *v, struct rv_fabric_map *m);

#endif
