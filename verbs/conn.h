/*
 * conn.h - peers, and the connections a reactor reads over, one to each.
 *
 *   peer:  unknown --peer_up--> known --peer_down--> unknown
 *   conn:  (first peer_state) --> connecting --> up --> draining --> destroying --> freed     (verbs.h)
 *              ^                      |          '--- error, lost, abandon, new address, peer_down, quiesce
 *              '------ backoff -------'
 */
#ifndef RV_VERBS_CONN_H
#define RV_VERBS_CONN_H

#include "verbs/verbs.h"

/** Before another connection is tried; doubles with each failure, until a GET succeeds. */
#define RV_VERBS_BACKOFF_MIN_NS RV_MS(50)
#define RV_VERBS_BACKOFF_MAX_NS RV_SEC(5)

/** rv_fabric_ops of the same names. @thread owning reactor */
int rv_verbs_peer_up(struct rv_verbs_reactor *r, const struct rv_fabric_peer *p);
void rv_verbs_peer_down(struct rv_verbs_reactor *r, uint64_t worker);
enum rv_peer_state rv_verbs_peer_state(struct rv_verbs_reactor *r, uint64_t worker);
void rv_verbs_abandon(struct rv_verbs_reactor *r, uint64_t worker);
bool rv_verbs_endpoint(struct rv_verbs_reactor *r, size_t *pos, struct rv_fabric_endpoint *out);
int rv_verbs_quiesce(struct rv_verbs_reactor *r);

/** The connection to a peer, if it is up. @thread owning reactor */
struct rv_verbs_conn *rv_verbs_conn_up(struct rv_verbs_reactor *r, uint64_t worker);

/** It is of no use any more. @thread owning reactor */
void rv_verbs_conn_broke(struct rv_verbs_conn *c, int rc);

/** What the fabric's thread has to say. @return how many. @thread owning reactor, from poll */
unsigned rv_verbs_conn_news(struct rv_verbs_reactor *r);

/** Let go of connections that have drained, or will not. @return how many. @thread owning reactor, from poll */
unsigned rv_verbs_conn_reap(struct rv_verbs_reactor *r);

/** When that is due at the latest. @thread owning reactor */
uint64_t rv_verbs_conn_next_ns(const struct rv_verbs_reactor *r);

/** Forget every peer; no connection is left. @thread owning reactor */
void rv_verbs_peers_fini(struct rv_verbs_reactor *r);

#endif
