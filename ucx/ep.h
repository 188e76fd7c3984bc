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
	struct rv_list link; /* of the worker: live, broken or closing */
	struct rv_ucx_worker *w;
	struct rv_ucx_peer *peer; /* NULL: the peer has no more to do with it */
	ucp_ep_h ucp;
	struct rv_list gets;  /* posted, not completed by UCX */
	struct rv_list sends; /* frames: struct rv_am_note */
	unsigned pending;     /* those, and the flush */
	ucs_status_t error;   /* what broke it */
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

/** Close what broke, free what is closed and idle. @return how many. @thread owning reactor, from poll */
unsigned rv_ucx_ep_reap(struct rv_ucx_worker *w);

/** Begin to close every endpoint. @thread owning reactor */
void rv_ucx_ep_close_all(struct rv_ucx_worker *w);

/** The worker is destroyed: fail what UCX did not complete, free every endpoint. @thread owning reactor */
void rv_ucx_ep_drop_all(struct rv_ucx_worker *w);

/** Forget every peer; no endpoint is left. @thread owning reactor */
void rv_ucx_peers_fini(struct rv_ucx_worker *w);

#endif
