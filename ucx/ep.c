#include "ucx/ep.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "ucx/am_impl.h"
#include "ucx/get.h"

/* UCX gets an address without its length; it finds marks of an end behind a short one. */
#define ADDR_PAD 512

static void move(struct rv_ucx_ep *ep, struct rv_list *to)
{
	rv_list_del(&ep->link);
	rv_list_push(to, &ep->link);
}

static void end_frames(struct rv_ucx_peer *p)
{
	if (p->am)
		rv_am_lost(p->am);
}

static void detach(struct rv_ucx_ep *ep)
{
	struct rv_ucx_peer *p = ep->peer;

	if (!p)
		return;
	p->ep = NULL;
	ep->peer = NULL;
	end_frames(p);
}

static void back_off(struct rv_ucx_worker *w, struct rv_ucx_peer *p)
{
	p->backoff_ns = p->backoff_ns ? rv_min_u64(p->backoff_ns * 2, RV_UCX_BACKOFF_MAX_NS)
				      : RV_UCX_BACKOFF_MIN_NS;
	p->retry_ns = rv_sat_add(w->now_ns, p->backoff_ns);
}

/* UCX's callbacks. They touch our lists and flags only. */

static void on_error(void *arg, ucp_ep_h ucp, ucs_status_t status)
{
	struct rv_ucx_ep *ep = arg;

	if (ep->closing || ep->error != UCS_OK)
		return;
	ep->error = status;
	move(ep, &ep->w->broken);
}

static void on_flushed(void *request, ucs_status_t status, void *arg)
{
	struct rv_ucx_ep *ep = arg;

	ep->pending--;
	ep->wired = status == UCS_OK;
	ucp_request_free(request);
	/* Where UCX calls no error handler for it, the flush is the one to tell. */
	if (status != UCS_OK)
		on_error(ep, ep->ucp, status);
}

static void on_closed(void *request, ucs_status_t status, void *arg)
{
	struct rv_ucx_ep *ep = arg;

	ep->closed = true;
	ucp_request_free(request);
}

static void close_by_force(struct rv_ucx_ep *ep, enum rv_endpoint_end why)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
				UCP_OP_ATTR_FIELD_USER_DATA,
		.flags = UCP_EP_CLOSE_FLAG_FORCE,
		.cb.send = on_closed,
		.user_data = ep,
	};
	ucs_status_ptr_t request;

	detach(ep);
	rv_list_del(&ep->touched);
	rv_counter_sub(&ep->w->counts->endpoints, 1);
	rv_counter_add(&ep->w->counts->closed[why], 1);
	ep->closing = true;
	move(ep, &ep->w->closing);
	request = ucp_ep_close_nbx(ep->ucp, &param);
	if (!UCS_PTR_IS_PTR(request))
		ep->closed = true;
}

static ucs_status_t create(struct rv_ucx_ep *ep, const struct rv_ucx_peer *p)
{
	const ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
			      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = (const ucp_address_t *)p->addr,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler = {.cb = on_error, .arg = ep},
	};

	return ucp_ep_create(ep->w->ucp, &params, &ep->ucp);
}

static void begin_flush(struct rv_ucx_ep *ep)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = on_flushed,
		.user_data = ep,
	};
	ucs_status_ptr_t request;

	ep->pending++;
	request = ucp_ep_flush_nbx(ep->ucp, &param);
	if (UCS_PTR_IS_PTR(request))
		return;
	ep->pending--;
	if (UCS_PTR_IS_ERR(request))
		on_error(ep, ep->ucp, UCS_PTR_STATUS(request));
	else
		ep->wired = true;
}

static int wire_up(struct rv_ucx_worker *w, struct rv_ucx_peer *p)
{
	struct rv_ucx_ep *ep = calloc(1, sizeof(*ep));
	ucs_status_t status;

	if (!ep)
		return -ENOMEM;
	ep->w = w;
	ep->worker = p->worker;
	ep->error = UCS_OK;
	rv_list_init(&ep->touched);
	rv_list_init(&ep->gets);
	rv_list_init(&ep->sends);
	rv_list_init(&ep->link);
	rv_list_push(&w->live, &ep->link);
	status = create(ep, p);
	if (status != UCS_OK) {
		rv_log_warn("ucx: no endpoint to worker %" PRIu64 ": %s", p->worker,
			    ucs_status_string(status));
		rv_list_del(&ep->link);
		free(ep);
		return -EHOSTUNREACH;
	}
	ep->peer = p;
	p->ep = ep;
	ep->fresh = true;
	rv_ucx_ep_touch(ep);
	rv_counter_add(&w->counts->endpoints, 1);
	begin_flush(ep);
	return 0;
}

enum rv_peer_state rv_ucx_ep_state(const struct rv_ucx_ep *ep)
{
	if (ep->error != UCS_OK)
		return RV_PEER_FAILED;
	return ep->wired ? RV_PEER_UP : RV_PEER_WIRING;
}

static enum rv_peer_state known_state(struct rv_ucx_worker *w, struct rv_ucx_peer *p)
{
	if (p->ep)
		return rv_ucx_ep_state(p->ep);
	if (w->quiescing || w->now_ns < p->retry_ns)
		return RV_PEER_FAILED;
	if (wire_up(w, p)) {
		back_off(w, p);
		return RV_PEER_FAILED;
	}
	return rv_ucx_ep_state(p->ep);
}

struct rv_ucx_peer *rv_ucx_ep_reach(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_ucx_peer *p = rv_map64_get(&w->peers, worker);

	return p && known_state(w, p) != RV_PEER_FAILED ? p : NULL;
}

void rv_ucx_ep_sending(struct rv_ucx_ep *ep, struct rv_list *note)
{
	rv_list_push(&ep->sends, note);
	ep->pending++;
	ep->sends_nr++;
	rv_ucx_ep_touch(ep);
}

void rv_ucx_ep_sent(struct rv_ucx_ep *ep, bool ok)
{
	ep->pending--;
	ep->sends_nr--;
	if (!ep->closing)
		rv_ucx_ep_touch(ep);
	if (ok)
		rv_ucx_peer_good(ep);
}

enum rv_peer_state rv_ucx_peer_state(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_ucx_peer *p = rv_map64_get(&w->peers, worker);

	return p ? known_state(w, p) : RV_PEER_UNKNOWN;
}

struct rv_ucx_ep *rv_ucx_ep_up(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_ucx_peer *p = rv_map64_get(&w->peers, worker);

	return p && known_state(w, p) == RV_PEER_UP ? p->ep : NULL;
}

void rv_ucx_ep_close_leaving(struct rv_ucx_worker *w, uint64_t worker, enum rv_endpoint_end why)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &w->leaving)
	{
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (ep->worker == worker)
			close_by_force(ep, why);
	}
}

void rv_ucx_ep_close_idle(struct rv_ucx_ep *ep)
{
	close_by_force(ep, RV_EP_IDLE);
}

/* The link for frames stays: what is sent on it makes another endpoint. */
void rv_ucx_ep_leave(struct rv_ucx_ep *ep)
{
	if (ep->peer)
		ep->peer->ep = NULL;
	ep->peer = NULL;
	move(ep, &ep->w->leaving);
}

void rv_ucx_ep_come_back(struct rv_ucx_ep *ep)
{
	struct rv_ucx_peer *p = rv_map64_get(&ep->w->peers, ep->worker);

	if (!p || p->ep)
		return;
	p->ep = ep;
	ep->peer = p;
	move(ep, &ep->w->live);
}

static void close_peer(struct rv_ucx_worker *w, struct rv_ucx_peer *p, enum rv_endpoint_end why)
{
	if (p->ep)
		close_by_force(p->ep, why);
	rv_ucx_ep_close_leaving(w, p->worker, why);
	end_frames(p);
}

static void forget_sender(struct rv_ucx_worker *w, const struct rv_ucx_peer *p)
{
	if (rv_map64_get(&w->senders, p->incarnation) == p)
		rv_map64_del(&w->senders, p->incarnation);
}

static uint8_t *copy_padded(const uint8_t *addr, size_t len)
{
	uint8_t *copy = malloc(len + ADDR_PAD);

	if (!copy)
		return NULL;
	memcpy(copy, addr, len);
	memset(copy + len, 0xff, ADDR_PAD);
	return copy;
}

static int add_peer(struct rv_ucx_worker *w, uint64_t worker, struct rv_ucx_peer **out)
{
	struct rv_ucx_peer *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return -ENOMEM;
	p->worker = worker;
	rc = rv_map64_put(&w->peers, worker, p);
	if (rc) {
		free(p);
		return rc;
	}
	*out = p;
	return 0;
}

int rv_ucx_peer_up(struct rv_ucx_worker *w, const struct rv_fabric_peer *in)
{
	struct rv_ucx_peer *p = rv_map64_get(&w->peers, in->worker);
	uint8_t *addr;

	if (in->addr_len == 0 || in->addr_len > RV_UCX_ADDR_MAX)
		return -EPROTO;
	if (p && p->incarnation == in->incarnation)
		return 0;
	if (!rv_addr_parse(in->addr, in->addr_len, w->addr_form))
		return -EPROTO;
	addr = copy_padded(in->addr, in->addr_len);
	if (!addr)
		return -ENOMEM;
	if (!p && add_peer(w, in->worker, &p)) {
		free(addr);
		return -ENOMEM;
	}
	close_peer(w, p, RV_EP_REPLACED);
	forget_sender(w, p);
	free(p->addr);
	p->addr = addr;
	p->incarnation = in->incarnation;
	/* Without memory its frames do not keep its endpoint open. */
	if (!rv_map64_get(&w->senders, p->incarnation))
		rv_map64_put(&w->senders, p->incarnation, p);
	p->backoff_ns = 0;
	p->retry_ns = 0;
	return 0;
}

static void free_peer(struct rv_ucx_peer *p)
{
	free(p->addr);
	free(p);
}

void rv_ucx_peer_down(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_ucx_peer *p = rv_map64_del(&w->peers, worker);

	if (!p)
		return;
	close_peer(w, p, RV_EP_FORGOTTEN);
	forget_sender(w, p);
	free_peer(p);
}

void rv_ucx_peer_abandon(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_ucx_peer *p = rv_map64_get(&w->peers, worker);

	if (!p || !p->ep)
		return;
	rv_log_info("ucx: connection to worker %" PRIu64 " is given up, %u operations pending",
		    worker, p->ep->pending);
	close_by_force(p->ep, RV_EP_ABANDONED);
}

static void close_broken(struct rv_ucx_ep *ep)
{
	if (ep->peer) {
		rv_log_warn("ucx: connection to worker %" PRIu64 " failed: %s", ep->peer->worker,
			    ucs_status_string(ep->error));
		back_off(ep->w, ep->peer);
	}
	close_by_force(ep, RV_EP_ERROR);
}

unsigned rv_ucx_ep_reap(struct rv_ucx_worker *w)
{
	struct rv_list *it, *tmp;
	unsigned n = 0;

	while (!rv_list_empty(&w->broken)) {
		close_broken(RV_LIST_ENTRY(w->broken.next, struct rv_ucx_ep, link));
		n++;
	}
	RV_LIST_EACH_SAFE(it, tmp, &w->closing)
	{
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (!ep->closed || ep->pending)
			continue;
		rv_list_del(&ep->link);
		free(ep);
		n++;
	}
	return n;
}

void rv_ucx_ep_close_all(struct rv_ucx_worker *w)
{
	while (!rv_list_empty(&w->live))
		close_by_force(RV_LIST_ENTRY(w->live.next, struct rv_ucx_ep, link), RV_EP_SHUTDOWN);
	while (!rv_list_empty(&w->leaving))
		close_by_force(RV_LIST_ENTRY(w->leaving.next, struct rv_ucx_ep, link),
			       RV_EP_SHUTDOWN);
}

static void drop(struct rv_ucx_ep *ep)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &ep->gets)
	rv_ucx_get_lost(RV_LIST_ENTRY(it, struct rv_fabric_get, link));
	RV_LIST_EACH_SAFE(it, tmp, &ep->sends)
	rv_am_send_lost(RV_LIST_ENTRY(it, struct rv_am_note, link));
	detach(ep);
	rv_list_del(&ep->touched);
	rv_list_del(&ep->link);
	free(ep);
}

static void drop_list(struct rv_list *eps)
{
	while (!rv_list_empty(eps))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		drop(RV_LIST_ENTRY(eps->next, struct rv_ucx_ep, link));
}

void rv_ucx_ep_drop_all(struct rv_ucx_worker *w)
{
	drop_list(&w->live);
	drop_list(&w->leaving);
	drop_list(&w->broken);
	drop_list(&w->closing);
}

void rv_ucx_peers_fini(struct rv_ucx_worker *w)
{
	struct rv_ucx_peer *p;
	size_t pos = 0;

	while ((p = rv_map64_next(&w->peers, &pos)))
		free_peer(p);
	rv_map64_fini(&w->peers);
	rv_map64_fini(&w->senders);
}
