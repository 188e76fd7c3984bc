/*
 * fence.h - keys that end with their lease, and the protection domain each consumer has here.
 *
 * A domain lives while a queue pair or a key is in it. A key is good only on queue pairs of its domain, so no consumer
 * can use another's.
 */
#ifndef RV_VERBS_FENCE_H
#define RV_VERBS_FENCE_H

#include "verbs/verbs.h"

struct rv_verbs_domain {
	uint64_t worker;
	struct ibv_pd *pd;
	unsigned users; /* queue pairs and keys; under domains_lock */
};

/** The domain of a consumer, made where there is none. @return 0, -ENOMEM. @thread any */
int rv_verbs_domain_enter(struct rv_verbs *v, uint64_t worker, struct rv_verbs_domain **out);
/** A queue pair or key of it is gone. @thread any */
void rv_verbs_domain_leave(struct rv_verbs *v, struct rv_verbs_domain *d);

/** rv_fabric_ops.export_key, revoke_key @thread prompt */
int rv_verbs_export(struct rv_verbs *v, struct rv_fabric_map *m, void *addr, uint64_t len,
		    uint64_t worker, struct rv_fabric_key **out);
int rv_verbs_revoke(struct rv_verbs *v, struct rv_fabric_key *k);

#endif
