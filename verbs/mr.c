#include "verbs/mr.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "verbs/events.h"

/* The kernel says ENOMEM for the memlock limit too. */
static int reason(int err, uint64_t len)
{
	struct rlimit lim;

	if (err != ENOMEM)
		return err == EINVAL || err == EOPNOTSUPP ? -ENOTSUP : -EIO;
	if (!getrlimit(RLIMIT_MEMLOCK, &lim) && lim.rlim_cur != RLIM_INFINITY && lim.rlim_cur < len)
		return -EPERM;
	return -ENOMEM;
}

int rv_verbs_register(struct rv_verbs *v, struct ibv_pd *pd, void *addr, uint64_t len, int access,
		      struct ibv_mr **out)
{
	struct ibv_mr *mr;
	int rc;

	RV_CHECK(!(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)));
	if (len > v->dev.region_max) {
		rv_log_warn("verbs: %" PRIu64
			    " bytes are more than a region of %s may have (%" PRIu64 ")",
			    len, v->dev.name, v->dev.region_max);
		return -ENOTSUP;
	}
	/* Relaxed ordering is optional by definition: devices without it ignore the flag. */
	mr = ibv_reg_mr(pd, addr, len, (unsigned)access | IBV_ACCESS_RELAXED_ORDERING);
	if (!mr) {
		rc = reason(errno, len);
		rv_log_warn("verbs: ibv_reg_mr of %" PRIu64 " bytes failed: %m%s", len,
			    rc == -EPERM ? " (memlock limit?)" : "");
		return rc;
	}
	*out = mr;
	return 0;
}

static int access_of(const struct rv_verbs *v, enum rv_map_access access)
{
	int flags = access == RV_MAP_SOURCE ? 0 : IBV_ACCESS_LOCAL_WRITE;

	if (access != RV_MAP_DESTINATION && v->fence == RV_VERBS_FENCE_NO)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access != RV_MAP_DESTINATION && v->fence == RV_VERBS_FENCE_WINDOW)
		flags |= IBV_ACCESS_MW_BIND;
	return flags;
}

int rv_verbs_map(struct rv_verbs *v, void *base, uint64_t len, enum rv_map_access access,
		 struct rv_fabric_map **out)
{
	int flags = access_of(v, access);
	struct rv_verbs_map *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return -ENOMEM;
	rc = rv_verbs_register(v, v->pd, base, len, flags, &m->mr);
	if (rc) {
		free(m);
		return rc;
	}
	m->base.base = base;
	m->base.len = len;
	if (flags & IBV_ACCESS_REMOTE_READ) {
		rv_verbs_key_encode(m->base.key, m->mr->rkey);
		m->base.key_len = RV_VERBS_KEY;
	}
	atomic_fetch_add(&v->maps_nr, 1);
	*out = &m->base;
	return 0;
}

int rv_verbs_unmap(struct rv_verbs *v, struct rv_fabric_map *map)
{
	struct rv_verbs_map *m = (struct rv_verbs_map *)map;
	int err = ibv_dereg_mr(m->mr);

	if (!rv_verbs_let_go(v, err)) {
		rv_log_err("verbs: ibv_dereg_mr of %" PRIu64 " bytes failed: %s", map->len,
			   strerrordesc_np(err));
		return -EIO;
	}
	atomic_fetch_sub(&v->maps_nr, 1);
	free(m);
	return 0;
}
