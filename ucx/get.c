#include "ucx/get.h"

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "ucx/ep.h"
#include "ucx/mem.h"
#include "ucx/rkey.h"
#include "ucx/ucx_err.h"

/* What lies in rv_fabric_get.priv. */
enum { PRIV_EP, PRIV_RKEY, PRIV_RC };

static void finish(struct rv_fabric_get *g, int rc)
{
	struct rv_ucx_ep *ep = g->priv[PRIV_EP];

	rv_list_del(&g->link);
	ep->pending--;
	ep->gets_nr--;
	if (!ep->closing)
		rv_ucx_ep_touch(ep);
	if (rc == 0)
		rv_ucx_peer_good(ep);
	g->priv[PRIV_RC] = (void *)(intptr_t)rc;
	rv_list_push(&ep->w->done, &g->link);
}

static void on_completed(void *request, ucs_status_t status, void *arg)
{
	struct rv_fabric_get *g = arg;

	ucp_rkey_destroy(g->priv[PRIV_RKEY]);
	finish(g, rv_ucx_get_err(status));
	ucp_request_free(request);
}

static int post(struct rv_ucx_ep *ep, struct rv_fabric_get *g, ucp_rkey_h rkey)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_CALLBACK |
				UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
		.memh = rv_ucx_map_memh(g->local_map),
		.cb.send = on_completed,
		.user_data = g,
	};
	ucs_status_ptr_t request;

	/* All set before the call: the callback may come from inside it. */
	g->priv[PRIV_EP] = ep;
	g->priv[PRIV_RKEY] = rkey;
	rv_list_push(&ep->gets, &g->link);
	ep->pending++;
	ep->gets_nr++;
	rv_ucx_ep_touch(ep);
	request = ucp_get_nbx(ep->ucp, g->local, g->len, g->remote_addr, rkey, &param);
	if (UCS_PTR_IS_PTR(request))
		return 0;

	ucp_rkey_destroy(rkey);
	if (!request) {
		finish(g, 0);
		return 0;
	}
	rv_list_del(&g->link);
	ep->pending--;
	ep->gets_nr--;
	return rv_ucx_err(UCS_PTR_STATUS(request));
}

int rv_ucx_get_post(struct rv_ucx_worker *w, struct rv_fabric_get *g)
{
	struct rv_ucx_ep *ep;
	ucp_rkey_h rkey;
	int rc;

	rv_fabric_map_check(g->local_map, g->local, g->len);
	if (w->quiescing)
		return -ESHUTDOWN;
	ep = rv_ucx_ep_up(w, g->worker);
	if (!ep)
		return -EHOSTUNREACH;
	rc = rv_ucx_rkey_unpack(ep->ucp, g->key, g->key_len, &rkey);
	if (rc)
		return rc;
	rc = post(ep, g, rkey);
	if (!rc)
		w->outstanding++;
	return rc;
}

unsigned rv_ucx_get_deliver(struct rv_ucx_worker *w)
{
	struct rv_list over, *it;
	unsigned n = 0;

	/* done() may post again; what completes at once then waits for the next call. */
	rv_list_init(&over);
	rv_list_splice(&over, &w->done);
	while ((it = rv_list_pop(&over))) {
		struct rv_fabric_get *g = RV_LIST_ENTRY(it, struct rv_fabric_get, link);

		w->outstanding--;
		g->done(g, (int)(intptr_t)g->priv[PRIV_RC]);
		n++;
	}
	return n;
}

void rv_ucx_get_lost(struct rv_fabric_get *g)
{
	/* Its key is leaked: it belonged to the worker. */
	finish(g, -ECONNRESET);
}
