/*
 * fence.h - keys that end with their lease, and what each consumer has here.
 *
 *   region: a memory region for each lease, in a protection domain of the consumer's own: good only on its queue pairs
 *   window: a memory window for each lease, bound to one of the consumer's queue pairs (window.h)
 *
 * A consumer's domain lives while a queue pair or a region's key is in it.
 */
#ifndef RV_VERBS_FENCE_H
#define RV_VERBS_FENCE_H

#include "verbs/verbs.h"

struct rv_verbs_domain {
	uint64_t worker;
	struct ibv_pd *pd;     /* the common one, but with fence region */
	unsigned users;        /* queue pairs and keys; all under domains_lock */
	struct rv_list served; /* queue pairs to which windows may be bound */
};

/** The domain of a consumer, made where there is none. @return 0, -ENOMEM. @thread any */
int rv_verbs_domain_enter(struct rv_verbs *v, uint64_t worker, struct rv_verbs_domain **out);
/** A queue pair or key of it is gone. @thread any */
void rv_verbs_domain_leave(struct rv_verbs *v, struct rv_verbs_domain *d);

/** rv_fabric_ops.export_key, revoke_key @thread prompt */
int rv_verbs_export(struct rv_verbs *v, struct rv_fabric_map *m, void *addr, uint64_t len,
		    const struct rv_fabric_reader *to, struct rv_fabric_key **out);
int rv_verbs_revoke(struct rv_verbs *v, struct rv_fabric_key *k);

#endif
