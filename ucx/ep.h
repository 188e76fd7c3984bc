/*
 * ep.h - peers and the endpoints to them, one table for each reactor.
 *
 *   peer:      unknown --peer_up--> known --peer_down--> unknown
 *   endpoint:  (first peer_state) --> wiring --flush done--> up
 *                    ^                   |                   |
 *                    |                   '--- UCX error -----+--> broken --> closing --> freed
 *                    '---- backoff ------------'             '--> abandon, new incarnation, peer_down, quiesce
 *
 * An endpoint is always closed by force. It is freed when its close is complete and nothing it carried is
 * pending: GETs complete after the close, through progress.
 */
#ifndef RV_UCX_EP_H
#define RV_UCX_EP_H

#include <stdatomic.h>

#include "dataplane/interfaces/fabric.h"
#include "ucx/worker.h"

struct rv_am_link;

/** Before another wire-up is tried; doubles with each failure, until a GET succeeds. */
#define RV_UCX_BACKOFF_MIN_NS RV_MS(100)
#define RV_UCX_BACKOFF_MAX_NS RV_SEC(5)

struct rv_ucx_peer {
	uint64_t worker;
	uint64_t incarnation;
	struct rv_ucx_ep *ep; /* NULL: none, or the last one failed */
	uint64_t backoff_ns;
	uint64_t retry_ns; /* no wire-up before */
	uint8_t *addr;
	struct rv_am_link
		*am; /* frames go to it; NULL: no such link, and never one without an endpoint */
};

struct rv_ucx_ep {
	struct rv_list link;    /* of the worker: live, leaving, broken or closing */
	struct rv_list touched; /* of the worker, while a stamp is due */
	uint64_t worker;
	uint64_t used_ns;
	bool fresh; /* making it took time: the stamp waits for the next poll */
	bool asked; /* leaving: the user was told of it */
	struct rv_ucx_worker *w;
	struct rv_ucx_peer *peer; /* NULL: the peer has no more to do with it */
	ucp_ep_h ucp;
	struct rv_list gets;  /* posted, not completed by UCX */
	struct rv_list sends; /* frames: struct rv_am_note */
	unsigned pending;     /* those, and the flush */
	unsigned gets_nr, sends_nr;
	ucs_status_t error; /* what broke it */
	bool wired;
	bool closing;
	bool closed;
};

/** rv_fabric_ops.peer_up @thread owning reactor */
int rv_ucx_peer_up(struct rv_ucx_worker *w, const struct rv_fabric_peer *p);

/** rv_fabric_ops.peer_down @thread owning reactor */
void rv_ucx_peer_down(struct rv_ucx_worker *w, uint64_t worker);

/** rv_fabric_ops.peer_state @thread owning reactor */
enum rv_peer_state rv_ucx_peer_state(struct rv_ucx_worker *w, uint64_t worker);

/** rv_fabric_ops.abandon @thread owning reactor */
void rv_ucx_peer_abandon(struct rv_ucx_worker *w, uint64_t worker);

/** A peer answered as it should: the next failure starts with the short backoff. @thread owning reactor */
static inline void rv_ucx_peer_good(struct rv_ucx_ep *ep)
{
	if (ep->peer)
		ep->peer->backoff_ns = 0;
}

/** The endpoint to a peer that is up; starts the wire-up where there is none. @return NULL: not up. @thread owning reactor */
struct rv_ucx_ep *rv_ucx_ep_up(struct rv_ucx_worker *w, uint64_t worker);

/** The endpoint to a peer, made where there is none, wired or not; @return the peer, or NULL: unknown, or not now. @thread owning reactor */
struct rv_ucx_peer *rv_ucx_ep_reach(struct rv_ucx_worker *w, uint64_t worker);

/** Its endpoint, if nothing is wrong with it. @thread owning reactor */
static inline struct rv_ucx_ep *rv_ucx_ep_usable(const struct rv_ucx_peer *p)
{
	return p->ep && p->ep->error == UCS_OK ? p->ep : NULL;
}

/** A frame is handed to UCX; and it is over. @thread owning reactor */
void rv_ucx_ep_sending(struct rv_ucx_ep *ep, struct rv_list *note);
void rv_ucx_ep_sent(struct rv_ucx_ep *ep, bool ok);

/*
 * Idle endpoints.
 *
 *   live --nobody used it--> leaving, the user is asked --agreed--> closed
 *     '------ keep, unless another was made meanwhile ----'
 *
 * A leaving endpoint is open, but has nothing to do with its peer: what is sent makes another one. Without anybody
 * to ask an endpoint closes at once.
 */

/** How long unused is idle. @thread any */
static inline uint64_t rv_ucx_idle_ns(const struct rv_ucx_worker *w)
{
	return atomic_load_explicit(w->idle_ns, memory_order_relaxed);
}

/** It is used, by us or by the peer. @thread owning reactor @cost O(1) */
static inline void rv_ucx_ep_touch(struct rv_ucx_ep *ep)
{
	if (rv_list_empty(&ep->touched))
		rv_list_push(&ep->w->touched, &ep->touched);
}

/** A frame came from whoever has this incarnation; 0: from nobody knows whom. @thread owning reactor @cost O(1) */
void rv_ucx_ep_heard(struct rv_ucx_worker *w, uint64_t incarnation);

/** Note the time of what was used. @thread owning reactor, from poll */
void rv_ucx_ep_stamp(struct rv_ucx_worker *w);

/** Look for idle endpoints, when it is time. @thread owning reactor, from poll */
void rv_ucx_ep_scan(struct rv_ucx_worker *w);

/* What ep_idle.c asks of ep.c. @thread owning reactor */
enum rv_peer_state rv_ucx_ep_state(const struct rv_ucx_ep *ep);
void rv_ucx_ep_leave(struct rv_ucx_ep *ep);
/** It is its peer's again, unless the peer has another by now. */
void rv_ucx_ep_come_back(struct rv_ucx_ep *ep);
void rv_ucx_ep_close_idle(struct rv_ucx_ep *ep);
void rv_ucx_ep_close_leaving(struct rv_ucx_worker *w, uint64_t worker, enum rv_endpoint_end why);

/** rv_carrier_ops.retire @return 0, -EBUSY @thread owning reactor */
int rv_ucx_ep_retire(struct rv_ucx_worker *w, uint64_t worker, bool agreed);

/** rv_carrier_ops.keep @thread owning reactor */
void rv_ucx_ep_keep(struct rv_ucx_worker *w, uint64_t worker);

/** rv_fabric_ops.endpoint @thread owning reactor */
bool rv_ucx_ep_next(const struct rv_ucx_worker *w, size_t *pos, struct rv_fabric_endpoint *out);

/** Close what broke, free what is closed and idle. @return how many. @thread owning reactor, from poll */
unsigned rv_ucx_ep_reap(struct rv_ucx_worker *w);

/** Begin to close every endpoint. @thread owning reactor */
void rv_ucx_ep_close_all(struct rv_ucx_worker *w);

/** The worker is destroyed: fail what UCX did not complete, free every endpoint. @thread owning reactor */
void rv_ucx_ep_drop_all(struct rv_ucx_worker *w);

/** Forget every peer; no endpoint is left. @thread owning reactor */
void rv_ucx_peers_fini(struct rv_ucx_worker *w);

#endif
