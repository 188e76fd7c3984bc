/*
 * serve.h - the owner's half of connections: which consumers may have a queue pair here, and when it goes.
 *
 * @thread the fabric's
 */
#ifndef RV_VERBS_SERVE_H
#define RV_VERBS_SERVE_H

#include "verbs/verbs.h"

/** A connection was asked for: served, or refused with a reason, and @id gone. */
void rv_verbs_requested(struct rv_verbs *v, struct rdma_cm_id *id, const struct rdma_conn_param *p);

/** @param e  of role RV_VERBS_SERVES; freed */
void rv_verbs_served_close(struct rv_verbs *v, struct rv_verbs_end *e, const char *why);

/**
 * Close what has no consumer any more. A refused access breaks a queue pair here without a word: it must be looked at.
 *
 * @param forgot  somebody is not known any more
 */
void rv_verbs_look_at_served(struct rv_verbs *v, uint64_t now_ns, bool forgot);

#endif
