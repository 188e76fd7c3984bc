/*
 * get.h - one GET: post it, learn that it is over, say so from poll.
 *
 *   get() --> ep->gets --UCX's callback (key destroyed)--> w->done --poll--> done()
 *
 * All state is in the caller's struct rv_fabric_get. Nothing here allocates, locks or logs.
 */
#ifndef RV_UCX_GET_H
#define RV_UCX_GET_H

#include "dataplane/interfaces/fabric.h"
#include "ucx/worker.h"

/**
 * rv_fabric_ops.get
 *
 * @return 0; -EPROTO (key refused); -EHOSTUNREACH (the peer is not up); -ESHUTDOWN (quiescing); -EIO and
 *         others from UCX. Then done() is not called.
 *
 * @thread owning reactor   @owns success lends @g and its memory until done()
 */
int rv_ucx_get_post(struct rv_ucx_worker *w, struct rv_fabric_get *g);

/** Call done() of the GETs that were over when this began. @return how many. @thread owning reactor, from poll */
unsigned rv_ucx_get_deliver(struct rv_ucx_worker *w);

/** The worker is gone and UCX never completed @g: it is over with -ECONNRESET. @thread owning reactor */
void rv_ucx_get_lost(struct rv_fabric_get *g);

#endif
