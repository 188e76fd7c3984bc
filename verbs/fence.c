#include "verbs/fence.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "verbs/events.h"
#include "verbs/mr.h"
#include "verbs/window.h"

struct region_key {
	struct rv_fabric_key base;
	struct rv_verbs_domain *domain;
	struct ibv_mr *mr;
};

static struct rv_verbs_domain *make_domain(struct rv_verbs *v, uint64_t worker)
{
	struct rv_verbs_domain *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->worker = worker;
	rv_list_init(&d->served);
	d->pd = v->fence == RV_VERBS_FENCE_REGION ? ibv_alloc_pd(v->dev.ctx) : v->pd;
	if (!d->pd) {
		rv_log_warn("verbs: ibv_alloc_pd failed: %m");
		goto err_free;
	}
	if (rv_map64_put(&v->domains, worker, d))
		goto err_pd;
	return d;

err_pd:
	if (d->pd != v->pd)
		ibv_dealloc_pd(d->pd);
err_free:
	free(d);
	return NULL;
}

int rv_verbs_domain_enter(struct rv_verbs *v, uint64_t worker, struct rv_verbs_domain **out)
{
	struct rv_verbs_domain *d;

	pthread_mutex_lock(&v->domains_lock);
	d = rv_map64_get(&v->domains, worker);
	if (!d)
		d = make_domain(v, worker);
	if (d)
		d->users++;
	pthread_mutex_unlock(&v->domains_lock);
	if (!d)
		return -ENOMEM;
	*out = d;
	return 0;
}

void rv_verbs_domain_leave(struct rv_verbs *v, struct rv_verbs_domain *d)
{
	int err = 0;

	pthread_mutex_lock(&v->domains_lock);
	if (--d->users == 0) {
		rv_map64_del(&v->domains, d->worker);
		err = d->pd == v->pd ? 0 : ibv_dealloc_pd(d->pd);
		if (!rv_verbs_let_go(v, err))
			rv_log_err("verbs: ibv_dealloc_pd failed: %s", strerrordesc_np(err));
		free(d);
	}
	pthread_mutex_unlock(&v->domains_lock);
}

static uint64_t pages_of(const void *addr, uint64_t len)
{
	uint64_t at = (uint64_t)(uintptr_t)addr;

	return rv_align_up(at + len, RV_GRANULE) - at / RV_GRANULE * RV_GRANULE;
}

static int export_region(struct rv_verbs *v, void *addr, uint64_t len,
			 const struct rv_fabric_reader *to, struct rv_fabric_key **out)
{
	struct region_key *k = calloc(1, sizeof(*k));
	int rc;

	if (!k)
		return -ENOMEM;
	rc = rv_verbs_domain_enter(v, to->worker, &k->domain);
	if (rc)
		goto err_free;
	rc = rv_verbs_register(v, k->domain->pd, addr, len, IBV_ACCESS_REMOTE_READ, &k->mr);
	if (rc)
		goto err_domain;
	rv_verbs_key_encode(k->base.key, k->mr->rkey);
	k->base.key_len = RV_VERBS_KEY;
	k->base.pinned = pages_of(addr, len);
	atomic_fetch_add(&v->keys_nr, 1);
	*out = &k->base;
	return 0;

err_domain:
	rv_verbs_domain_leave(v, k->domain);
err_free:
	free(k);
	return rc;
}

static int revoke_region(struct rv_verbs *v, struct region_key *k)
{
	/* The proof: once this has returned 0 the device finds no region for the key. */
	int err = ibv_dereg_mr(k->mr);

	if (!rv_verbs_let_go(v, err)) {
		rv_log_err("verbs: ibv_dereg_mr of a lease's region failed: %s",
			   strerrordesc_np(err));
		return -EIO;
	}
	rv_verbs_domain_leave(v, k->domain);
	atomic_fetch_sub(&v->keys_nr, 1);
	free(k);
	return 0;
}

int rv_verbs_export(struct rv_verbs *v, struct rv_fabric_map *m, void *addr, uint64_t len,
		    const struct rv_fabric_reader *to, struct rv_fabric_key **out)
{
	RV_CHECK(len > 0);
	rv_fabric_map_check(m, addr, len);
	return v->fence == RV_VERBS_FENCE_WINDOW ? rv_verbs_window_bind(v, m, addr, len, to, out)
						 : export_region(v, addr, len, to, out);
}

int rv_verbs_revoke(struct rv_verbs *v, struct rv_fabric_key *key)
{
	return v->fence == RV_VERBS_FENCE_WINDOW ? rv_verbs_window_revoke(v, key)
						 : revoke_region(v, (struct region_key *)key);
}
