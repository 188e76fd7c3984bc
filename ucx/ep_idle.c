/*
 * Which endpoints are used, and what becomes of those that are not.
 */
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "ucx/am_impl.h"
#include "ucx/ep.h"

#define SCAN_MAX_NS RV_SEC(1)

/* Uses. */

void rv_ucx_ep_heard(struct rv_ucx_worker *w, uint64_t incarnation)
{
	if (!incarnation || w->heard_many) {
		w->heard_many = true;
		return;
	}
	for (unsigned i = 0; i < w->heard_nr; i++) {
		if (w->heard[i] == incarnation)
			return;
	}
	if (w->heard_nr == RV_UCX_HEARD)
		w->heard_many = true;
	else
		w->heard[w->heard_nr++] = incarnation;
}

static void touch_list(struct rv_list *l)
{
	struct rv_list *it;

	RV_LIST_EACH(it, l)
	rv_ucx_ep_touch(RV_LIST_ENTRY(it, struct rv_ucx_ep, link));
}

static void touch_leaving(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &w->leaving)
	{
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (ep->worker == worker)
			rv_ucx_ep_touch(ep);
	}
}

static void touch_heard(struct rv_ucx_worker *w)
{
	for (unsigned i = 0; i < w->heard_nr && !w->heard_many; i++) {
		const struct rv_ucx_peer *p = rv_map64_get(&w->senders, w->heard[i]);

		if (p && p->ep)
			rv_ucx_ep_touch(p->ep);
		if (p)
			touch_leaving(w, p->worker);
	}
	if (w->heard_many) {
		touch_list(&w->live);
		touch_list(&w->leaving);
	}
	w->heard_nr = 0;
	w->heard_many = false;
}

void rv_ucx_ep_stamp(struct rv_ucx_worker *w)
{
	struct rv_list now, *it;

	touch_heard(w);
	rv_list_init(&now);
	rv_list_splice(&now, &w->touched);
	while ((it = rv_list_pop(&now))) {
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, touched);

		/* This poll began before it was made, perhaps long before. */
		if (ep->fresh)
			rv_list_push(&w->touched, it);
		ep->fresh = false;
		ep->used_ns = w->now_ns;
	}
}

/* What becomes of them. */

static bool is_idle(const struct rv_ucx_ep *ep, uint64_t idle_ns)
{
	return ep->pending == 0 && rv_list_empty(&ep->touched) &&
	       ep->w->now_ns - ep->used_ns >= idle_ns;
}

static void let_go(struct rv_ucx_ep *ep)
{
	struct rv_ucx_worker *w = ep->w;

	if (!w->am) {
		rv_ucx_ep_close_idle(ep);
		return;
	}
	if (rv_am_ask_idle(w->am, ep->worker))
		return; /* nobody to ask, or no memory: another time */
	ep->asked = true;
	rv_ucx_ep_leave(ep);
}

void rv_ucx_ep_scan(struct rv_ucx_worker *w)
{
	uint64_t idle_ns = rv_ucx_idle_ns(w);
	struct rv_list *it, *tmp;

	if (idle_ns == RV_NEVER || w->now_ns < w->scan_ns)
		return;
	w->scan_ns = w->now_ns + rv_min_u64(idle_ns / 2, SCAN_MAX_NS);
	RV_LIST_EACH_SAFE(it, tmp, &w->leaving)
	{
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (!ep->asked && is_idle(ep, idle_ns))
			ep->asked = rv_am_ask_idle(w->am, ep->worker) == 0;
	}
	RV_LIST_EACH_SAFE(it, tmp, &w->live)
	{
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (is_idle(ep, idle_ns))
			let_go(ep);
	}
}

static bool any_pending(const struct rv_ucx_worker *w, uint64_t worker)
{
	const struct rv_ucx_peer *p = rv_map64_get(&w->peers, worker);
	struct rv_list *it;

	if (p && p->ep && p->ep->pending)
		return true;
	RV_LIST_EACH(it, &w->leaving)
	{
		const struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (ep->worker == worker && ep->pending)
			return true;
	}
	return false;
}

int rv_ucx_ep_retire(struct rv_ucx_worker *w, uint64_t worker, bool agreed)
{
	const struct rv_ucx_peer *p;

	if (!agreed && any_pending(w, worker))
		return -EBUSY;
	p = rv_map64_get(&w->peers, worker);
	if (!agreed && p && p->ep)
		rv_ucx_ep_leave(p->ep);
	rv_ucx_ep_close_leaving(w, worker, agreed ? RV_EP_IDLE : RV_EP_GOODBYE);
	return 0;
}

void rv_ucx_ep_keep(struct rv_ucx_worker *w, uint64_t worker)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &w->leaving)
	{
		struct rv_ucx_ep *ep = RV_LIST_ENTRY(it, struct rv_ucx_ep, link);

		if (ep->worker != worker)
			continue;
		ep->asked = false;
		rv_ucx_ep_touch(ep);
		rv_ucx_ep_come_back(ep);
	}
}

bool rv_ucx_ep_next(const struct rv_ucx_worker *w, size_t *pos, struct rv_fabric_endpoint *out)
{
	const struct rv_ucx_peer *p;

	while ((p = rv_map64_next(&w->peers, pos))) {
		if (!p->ep)
			continue;
		*out = (struct rv_fabric_endpoint){
			.worker = p->worker,
			.incarnation = p->incarnation,
			.state = rv_ucx_ep_state(p->ep),
			.idle_ns = w->now_ns - rv_min_u64(w->now_ns, p->ep->used_ns),
			.gets = p->ep->gets_nr,
			.sends = p->ep->sends_nr,
		};
		return true;
	}
	return false;
}
