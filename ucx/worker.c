#include "ucx/worker.h"

#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "ucx/am_impl.h"
#include "ucx/ep.h"
#include "ucx/get.h"
#include "ucx/ucx_err.h"

/*
 * Rounds of progress in one poll: enough to keep a pipe full, few enough for the other pollers. What has completed is
 * told after each: the next read may wait for it, and until it is asked for the owner has nothing to send.
 */
#define ROUNDS 16

/* How long a close that was not quiesced waits for its endpoints. */
#define GIVE_UP_NS RV_MS(100)

static unsigned progress(struct rv_ucx_worker *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned events = ucp_worker_progress(w->ucp);

		n += events + rv_ucx_get_deliver(w);
		if (!events)
			break;
	}
	return n;
}

static unsigned poll_worker(struct rv_poller *p, uint64_t now_ns)
{
	struct rv_ucx_worker *w = RV_CONTAINER(p, struct rv_ucx_worker, poller);
	unsigned n;

	w->now_ns = now_ns;
	n = w->am && rv_am_full(w->am) ? 0 : progress(w);
	n += rv_ucx_ep_reap(w);
	n += rv_ucx_get_deliver(w);
	if (w->am)
		n += rv_am_poll(w->am);
	rv_ucx_ep_stamp(w);
	rv_ucx_ep_scan(w);
	return n;
}

static int arm_worker(struct rv_poller *p)
{
	struct rv_ucx_worker *w = RV_CONTAINER(p, struct rv_ucx_worker, poller);

	if (!rv_list_empty(&w->done) || !rv_list_empty(&w->broken))
		return -EAGAIN;
	if (!rv_list_empty(&w->touched) || (w->am && rv_am_busy(w->am)))
		return -EAGAIN;
	if (w->am && rv_am_full(w->am))
		return 0; /* the cell that comes back wakes us */
	return rv_ucx_err(ucp_worker_arm(w->ucp));
}

static int worker_fd(struct rv_poller *p)
{
	return RV_CONTAINER(p, struct rv_ucx_worker, poller)->efd;
}

static uint64_t next_ns(struct rv_poller *p)
{
	const struct rv_ucx_worker *w = RV_CONTAINER(p, struct rv_ucx_worker, poller);
	bool any = !rv_list_empty(&w->live) || !rv_list_empty(&w->leaving);

	return any && rv_ucx_idle_ns(w) != RV_NEVER ? w->scan_ns : RV_NEVER;
}

static const struct rv_poller_ops poller_ops = {
	.name = "ucx",
	.poll = poll_worker,
	.arm = arm_worker,
	.fd = worker_fd,
	.next_ns = next_ns,
};

/* Keep a copy of the address: other threads ask for it, and the worker is the reactor's alone. */
static int copy_address(struct rv_ucx_worker *w)
{
	ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
	ucs_status_t status = ucp_worker_query(w->ucp, &attr);
	int rc = 0;

	if (status != UCS_OK) {
		rv_log_err("ucx: ucp_worker_query failed: %s", ucs_status_string(status));
		return rv_ucx_err(status);
	}
	if (attr.address_length > sizeof(w->addr)) {
		rv_log_err("ucx: a worker address of %zu bytes is too long; name fewer net_devices",
			   attr.address_length);
		rc = -ENOTSUP;
	} else {
		memcpy(w->addr, attr.address, attr.address_length);
		w->addr_len = attr.address_length;
		w->addr_form = rv_addr_form_of(w->addr, w->addr_len);
	}
	ucp_worker_release_address(w->ucp, attr.address);
	return rc;
}

static int create(ucp_context_h context, struct rv_ucx_worker *w)
{
	const ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	ucs_status_t status = ucp_worker_create(context, &params, &w->ucp);

	if (status != UCS_OK) {
		rv_log_err("ucx: ucp_worker_create failed: %s", ucs_status_string(status));
		return rv_ucx_err(status);
	}
	status = ucp_worker_get_efd(w->ucp, &w->efd);
	if (status != UCS_OK) {
		rv_log_err("ucx: ucp_worker_get_efd failed: %s", ucs_status_string(status));
		ucp_worker_destroy(w->ucp);
		return rv_ucx_err(status);
	}
	return 0;
}

int rv_ucx_worker_open(const struct rv_ucx_worker_conf *conf, struct rv_ucx_worker **out)
{
	struct rv_ucx_worker *w = calloc(1, sizeof(*w));
	int rc;

	if (!w)
		return -ENOMEM;
	w->poller.ops = &poller_ops;
	rv_list_init(&w->done);
	w->idle_ns = conf->idle_ns;
	w->counts = conf->counts;
	rv_list_init(&w->live);
	rv_list_init(&w->leaving);
	rv_list_init(&w->touched);
	rv_list_init(&w->broken);
	rv_list_init(&w->closing);

	rc = create(conf->context, w);
	if (rc)
		goto err_free;
	rc = copy_address(w);
	if (rc)
		goto err_worker;
	rc = conf->am ? rv_am_attach(conf->am, w) : 0;
	if (rc)
		goto err_worker;
	w->am = conf->am;
	*out = w;
	return 0;

err_worker:
	ucp_worker_destroy(w->ucp);
err_free:
	free(w);
	return rc;
}

int rv_ucx_worker_quiesce(struct rv_ucx_worker *w)
{
	w->quiescing = true;
	rv_ucx_ep_close_all(w);
	return rv_list_empty(&w->broken) && rv_list_empty(&w->closing) && w->outstanding == 0
		       ? 0
		       : -EAGAIN;
}

void rv_ucx_worker_close(struct rv_ucx_worker *w)
{
	uint64_t deadline = rv_clock_ns() + GIVE_UP_NS;

	while (rv_ucx_worker_quiesce(w) && rv_clock_ns() < deadline)
		poll_worker(&w->poller, w->now_ns);

	if (w->am)
		rv_am_detach(w->am);
	ucp_worker_destroy(w->ucp);
	rv_ucx_ep_drop_all(w); /* what UCX never completed */
	rv_ucx_get_deliver(w);
	rv_ucx_peers_fini(w);
	free(w);
}
