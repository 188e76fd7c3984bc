/*
 * cm.h - the fabric's thread: rdma_cm on an event channel, the device's own events, queue pairs made and destroyed.
 *
 *   consumer:  resolve address, route -> queue pair -> REQ with our hello -> REP with the owner's -> up
 *   owner:     REQ -> is the hello for us, its sender known and allowed, the device ours? -> queue pair in the
 *              consumer's domain -> REP; closed when the consumer disconnects, its queue pair is in error, it connects
 *              anew, or it is known no more
 *
 * A thread of its own, and not the prompt one: resolving, destroying and the kernel's locks behind them take
 * milliseconds here and there, and a key of a lease must not wait for that.
 */
#ifndef RV_VERBS_CM_H
#define RV_VERBS_CM_H

#include "verbs/verbs.h"

/** Listen and start the thread. @return 0 or a negative errno, and @why (RV_VERBS_WHY bytes) in words. @thread init */
int rv_verbs_cm_start(struct rv_verbs *v, const char *host, uint16_t port, char *why);

/** End the thread, and all that is served. No reactor is open. @thread init */
void rv_verbs_cm_stop(struct rv_verbs *v);

/** RV_VERBS_WANT_*: do that with @c. @thread owning reactor @cost a lock, a write(2) */
void rv_verbs_cm_want(struct rv_verbs *v, struct rv_verbs_conn *c, unsigned want);

#endif
