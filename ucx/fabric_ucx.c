#include "ucx/fabric_ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/interfaces/peer_calls.h"
#include "dataplane/rendezvous/descriptor.h"
#include "ucx/context.h"
#include "ucx/ep.h"
#include "ucx/get.h"
#include "ucx/mem.h"
#include "ucx/signals.h"
#include "ucx/ucx_log.h"
#include "ucx/worker.h"

#define SELF_CHECK_NS RV_SEC(5)

static struct rv_ucx *self(struct rv_fabric *f)
{
	return (struct rv_ucx *)f;
}

static struct rv_ucx_worker *worker_of(struct rv_fabric *f, unsigned reactor)
{
	RV_CHECK(reactor < self(f)->reactors);
	RV_CHECK(self(f)->worker[reactor]);
	return self(f)->worker[reactor];
}

static int open_reactor(struct rv_fabric *f, unsigned reactor, struct rv_poller **poller)
{
	struct rv_ucx *u = self(f);
	const struct rv_ucx_worker_conf conf = {
		.context = u->context,
		.am = u->am[reactor],
		.idle_ns = &u->idle_ns,
		.counts = &u->counts[reactor],
	};
	int rc;

	RV_CHECK(reactor < u->reactors);
	RV_CHECK(!u->worker[reactor]);
	rc = rv_ucx_worker_open(&conf, &u->worker[reactor]);
	if (!rc)
		*poller = &u->worker[reactor]->poller;
	return rc;
}

static void close_reactor(struct rv_fabric *f, unsigned reactor)
{
	rv_ucx_worker_close(worker_of(f, reactor));
	self(f)->worker[reactor] = NULL;
}

static size_t address(struct rv_fabric *f, unsigned reactor, void *buf, size_t cap)
{
	const struct rv_ucx_worker *w = worker_of(f, reactor);

	if (w->addr_len <= cap)
		memcpy(buf, w->addr, w->addr_len);
	return w->addr_len;
}

static int map(struct rv_fabric *f, void *base, uint64_t len, enum rv_map_access access,
	       struct rv_fabric_map **out)
{
	return rv_ucx_map(self(f), base, len, access, out);
}

static int unmap(struct rv_fabric *f, struct rv_fabric_map *m)
{
	return rv_ucx_unmap(self(f), m);
}

static int peer_up(struct rv_fabric *f, unsigned reactor, const struct rv_fabric_peer *p)
{
	int rc = rv_ucx_peer_up(worker_of(f, reactor), p);

	if (!rc && self(f)->eager)
		rv_ucx_peer_state(worker_of(f, reactor), p->worker);
	return rc;
}

static const struct rv_fabric_counts *counts(struct rv_fabric *f, unsigned reactor)
{
	return &self(f)->counts[reactor];
}

static bool endpoint(struct rv_fabric *f, unsigned reactor, size_t *pos,
		     struct rv_fabric_endpoint *out)
{
	return rv_ucx_ep_next(worker_of(f, reactor), pos, out);
}

static void peer_down(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	rv_ucx_peer_down(worker_of(f, reactor), worker);
}

static enum rv_peer_state peer_state(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	return rv_ucx_peer_state(worker_of(f, reactor), worker);
}

static int get(struct rv_fabric *f, unsigned reactor, struct rv_fabric_get *g)
{
	return rv_ucx_get_post(worker_of(f, reactor), g);
}

static void abandon(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	rv_ucx_peer_abandon(worker_of(f, reactor), worker);
}

static unsigned outstanding(struct rv_fabric *f, unsigned reactor)
{
	return worker_of(f, reactor)->outstanding;
}

static int quiesce(struct rv_fabric *f, unsigned reactor)
{
	return rv_ucx_worker_quiesce(worker_of(f, reactor));
}

static void free_fabric(struct rv_ucx *u)
{
	if (u) {
		free(u->counts);
		free(u->am);
	}
	free(u);
}

static bool is_open(const struct rv_ucx *u)
{
	for (unsigned i = 0; i < u->reactors; i++) {
		if (u->worker[i])
			return true;
	}
	return false;
}

static void destroy(struct rv_fabric *f)
{
	struct rv_ucx *u = self(f);

	if (u->maps_nr || is_open(u)) {
		/* ucp_cleanup would abort: the process is about to end, so let it keep the context. */
		rv_log_err("ucx: %u regions are mapped, workers are %s: the context is leaked",
			   u->maps_nr, is_open(u) ? "open" : "closed");
		return;
	}
	rv_ucx_context_close(u->context);
	free_fabric(u);
}

static const struct rv_fabric_ops ops = {
	.name = "ucx",
	.backend = RV_BACKEND_UCX,
	.offer_bit = RV_PEER_OFFER_UCX,
	.open_reactor = open_reactor,
	.close_reactor = close_reactor,
	.address = address,
	.map = map,
	.unmap = unmap,
	.peer_up = peer_up,
	.peer_down = peer_down,
	.peer_state = peer_state,
	.get = get,
	.abandon = abandon,
	.counts = counts,
	.endpoint = endpoint,
	.outstanding = outstanding,
	.quiesce = quiesce,
	.destroy = destroy,
};

void rv_ucx_set_idle(struct rv_fabric *f, uint64_t idle_ns)
{
	atomic_store_explicit(&self(f)->idle_ns, idle_ns ? idle_ns : RV_NEVER,
			      memory_order_relaxed);
}

static int create(const struct rv_ucx_conf *conf, char *why, struct rv_ucx **out)
{
	struct rv_ucx *u = calloc(1, sizeof(*u) + conf->reactors * sizeof(struct rv_ucx_worker *));
	int rc;

	if (u) {
		u->counts = calloc(conf->reactors, sizeof(*u->counts));
		u->am = calloc(conf->reactors, sizeof(struct rv_ucx_am *));
	}
	if (!u || !u->counts || !u->am) {
		free_fabric(u);
		snprintf(why, RV_UCX_WHY, "out of memory");
		return -ENOMEM;
	}
	u->base.ops = &ops;
	u->base.fence = "none";
	/* One key serves a whole arena for its life: a lease's end takes nobody's key away. */
	u->reactors = conf->reactors;
	rv_ucx_set_idle(&u->base, conf->idle_ns);
	snprintf(u->base.version, sizeof(u->base.version), "%s", rv_ucx_version());
	rc = rv_ucx_context_open(conf, why, &u->base.native, &u->context);
	if (rc)
		free_fabric(u);
	else
		*out = u;
	return rc;
}

const char *rv_ucx_version(void)
{
	return ucp_get_version_string();
}

int rv_ucx_create(const struct rv_ucx_conf *conf, struct rv_fabric **out)
{
	char why[RV_UCX_WHY] = "";
	struct rv_ucx *u;
	int rc;

	RV_CHECK(conf->reactors > 0);
	rv_ucx_log_capture();
	rv_ucx_signals_release();

	rc = create(conf, why, &u);
	if (rc)
		goto refused;
	rc = rv_ucx_self_check(&u->base, SELF_CHECK_NS, why);
	if (rc)
		goto err_destroy;
	/* What the check did is no news. */
	memset(u->counts, 0, conf->reactors * sizeof(*u->counts));
	u->eager = conf->eager_endpoints;
	rv_log_info("ucx: %s over %s, self-check ok", u->base.version, u->base.path_name);
	*out = &u->base;
	return 0;

err_destroy:
	destroy(&u->base);
refused:
	rv_ucx_name_suspects(why);
	if (conf->why)
		memcpy(conf->why, why, sizeof(why));
	return rc;
}
