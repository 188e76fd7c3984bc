/*
 * cq.h - a reactor's completion queue, and its poller.
 *
 *   poll:  news of the fabric's thread --> completions (bounded) --> connections that drained go --> done() of GETs
 *   idle:  the queue's channel and the thread's eventfd, in one descriptor
 */
#ifndef RV_VERBS_CQ_H
#define RV_VERBS_CQ_H

#include "verbs/verbs.h"

/** @return 0 or a negative errno, logged. @thread owning reactor */
int rv_verbs_reactor_open(struct rv_verbs *v, unsigned index, struct rv_verbs_reactor **out);

/**
 * Ends what is left: queue pairs are destroyed, then GETs get their done(-ECONNRESET).
 *
 * @return false: a queue pair could not be destroyed in time. Its device may still write, so all of @r is leaked.
 * @thread owning reactor @cost may block
 */
bool rv_verbs_reactor_close(struct rv_verbs_reactor *r);

/** Take what is there, bounded. @return how many. @thread owning reactor */
unsigned rv_verbs_cq_poll(struct rv_verbs_reactor *r);

/** What a completion means to a GET: 0; -EPROTO: the key was refused; -ECONNRESET; -EIO: our own fault. @thread any */
int rv_verbs_status_err(enum ibv_wc_status status);

#endif
