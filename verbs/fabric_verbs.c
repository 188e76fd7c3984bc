#include "verbs/fabric_verbs.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/interfaces/peer_calls.h"
#include "dataplane/rendezvous/descriptor.h"
#include "verbs/cm.h"
#include "verbs/conn.h"
#include "verbs/cq.h"
#include "verbs/events.h"
#include "verbs/fence.h"
#include "verbs/mr.h"
#include "verbs/read.h"
#include "verbs/selftest.h"
#include "verbs/window.h"

static struct rv_verbs *self(struct rv_fabric *f)
{
	return (struct rv_verbs *)f;
}

static struct rv_verbs_reactor *reactor_of(struct rv_fabric *f, unsigned reactor)
{
	RV_CHECK(reactor < self(f)->reactors);
	RV_CHECK(self(f)->reactor[reactor]);
	return self(f)->reactor[reactor];
}

static int open_reactor(struct rv_fabric *f, unsigned reactor, struct rv_poller **poller)
{
	struct rv_verbs *v = self(f);
	int rc;

	RV_CHECK(reactor < v->reactors);
	RV_CHECK(!v->reactor[reactor]);
	rc = rv_verbs_reactor_open(v, reactor, &v->reactor[reactor]);
	if (!rc)
		*poller = &v->reactor[reactor]->poller;
	return rc;
}

static void close_reactor(struct rv_fabric *f, unsigned reactor)
{
	if (rv_verbs_reactor_close(reactor_of(f, reactor)))
		self(f)->reactor[reactor] = NULL;
}

static size_t address(struct rv_fabric *f, unsigned reactor, void *buf, size_t cap)
{
	uint8_t addr[RV_VERBS_ADDR_MAX];
	size_t len = rv_verbs_addr_encode(addr, &self(f)->listen_addr);

	(void)reactor;
	if (len <= cap)
		memcpy(buf, addr, len);
	return len;
}

static int map(struct rv_fabric *f, void *base, uint64_t len, enum rv_map_access access,
	       struct rv_fabric_map **out)
{
	return rv_verbs_map(self(f), base, len, access, out);
}

static int unmap(struct rv_fabric *f, struct rv_fabric_map *m)
{
	return rv_verbs_unmap(self(f), m);
}

static int export_key(struct rv_fabric *f, struct rv_fabric_map *m, void *addr, uint64_t len,
		      const struct rv_fabric_reader *to, struct rv_fabric_key **out)
{
	return rv_verbs_export(self(f), m, addr, len, to, out);
}

static int revoke_key(struct rv_fabric *f, struct rv_fabric_key *k)
{
	return rv_verbs_revoke(self(f), k);
}

static int peer_up(struct rv_fabric *f, unsigned reactor, const struct rv_fabric_peer *p)
{
	return rv_verbs_peer_up(reactor_of(f, reactor), p);
}

static void peer_down(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	rv_verbs_peer_down(reactor_of(f, reactor), worker);
}

static enum rv_peer_state peer_state(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	return rv_verbs_peer_state(reactor_of(f, reactor), worker);
}

static uint32_t reads_by(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	const struct rv_verbs_conn *c = rv_verbs_conn_up(reactor_of(f, reactor), worker);

	return c ? c->end.qp->qp_num : 0;
}

static int get(struct rv_fabric *f, unsigned reactor, struct rv_fabric_get *g)
{
	return rv_verbs_read(reactor_of(f, reactor), g);
}

static void abandon(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	rv_verbs_abandon(reactor_of(f, reactor), worker);
}

static const struct rv_fabric_counts *counts(struct rv_fabric *f, unsigned reactor)
{
	return &self(f)->counts[reactor];
}

static bool endpoint(struct rv_fabric *f, unsigned reactor, size_t *pos,
		     struct rv_fabric_endpoint *out)
{
	return rv_verbs_endpoint(reactor_of(f, reactor), pos, out);
}

static unsigned outstanding(struct rv_fabric *f, unsigned reactor)
{
	return reactor_of(f, reactor)->outstanding;
}

static int quiesce(struct rv_fabric *f, unsigned reactor)
{
	return rv_verbs_quiesce(reactor_of(f, reactor));
}

static bool is_open(const struct rv_verbs *v)
{
	for (unsigned i = 0; i < v->reactors; i++) {
		if (v->reactor[i])
			return true;
	}
	return false;
}

static void free_fabric(struct rv_verbs *v)
{
	rv_map64_fini(&v->known);
	rv_map64_fini(&v->domains);
	pthread_mutex_destroy(&v->lock);
	pthread_mutex_destroy(&v->domains_lock);
	pthread_mutex_destroy(&v->events_lock);
	free(v->counts);
	free(v);
}

static void destroy(struct rv_fabric *f)
{
	struct rv_verbs *v = self(f);
	unsigned maps = atomic_load(&v->maps_nr), keys = atomic_load(&v->keys_nr);
	int err;

	rv_verbs_cm_stop(v);
	if (maps || keys || is_open(v)) {
		rv_log_err(
			"verbs: %u regions and %u keys are there, reactors are %s: the device is "
			"left as it is",
			maps, keys, is_open(v) ? "open" : "closed");
		return;
	}
	rv_verbs_windows_fini(v);
	err = ibv_dealloc_pd(v->pd);
	if (!rv_verbs_let_go(v, err))
		rv_log_err("verbs: ibv_dealloc_pd failed: %s", strerrordesc_np(err));
	rv_verbs_device_close(&v->dev);
	free_fabric(v);
}

static const struct rv_fabric_ops ops = {
	.name = "verbs",
	.backend = RV_BACKEND_VERBS,
	.offer_bit = RV_PEER_OFFER_VERBS,
	.open_reactor = open_reactor,
	.close_reactor = close_reactor,
	.address = address,
	.map = map,
	.unmap = unmap,
	.export_key = export_key,
	.revoke_key = revoke_key,
	.peer_up = peer_up,
	.peer_down = peer_down,
	.peer_state = peer_state,
	.reads_by = reads_by,
	.get = get,
	.abandon = abandon,
	.counts = counts,
	.endpoint = endpoint,
	.outstanding = outstanding,
	.quiesce = quiesce,
	.destroy = destroy,
};

static struct rv_verbs *new_fabric(const struct rv_verbs_conf *conf)
{
	struct rv_verbs *v =
		calloc(1, sizeof(*v) + conf->reactors * sizeof(struct rv_verbs_reactor *));

	if (!v)
		return NULL;
	v->counts = calloc(conf->reactors, sizeof(*v->counts));
	if (!v->counts) {
		free(v);
		return NULL;
	}
	v->base.ops = &ops;
	v->base.native = true;
	v->worker = conf->worker;
	v->traffic_class = conf->traffic_class;
	v->allows = conf->allows;
	v->user = conf->user;
	v->reactors = conf->reactors;
	v->wake = -1;
	pthread_mutex_init(&v->lock, NULL);
	pthread_mutex_init(&v->domains_lock, NULL);
	pthread_mutex_init(&v->events_lock, NULL);
	rv_list_init(&v->idle_windows);
	rv_list_init(&v->todo);
	rv_list_init(&v->reading);
	rv_list_init(&v->serving);
	return v;
}

static void name_it(struct rv_verbs *v)
{
	snprintf(v->base.path_name, sizeof(v->base.path_name), "verbs %.32s:%u gid %u", v->dev.name,
		 v->dev.port, v->dev.gid_index);
	snprintf(v->base.version, sizeof(v->base.version), "fence %s",
		 v->fence == RV_VERBS_FENCE_NO ? "no" : v->base.fence);
}

static bool choose_fence(struct rv_verbs *v, const struct rv_verbs_conf *conf)
{
	static const char *const names[] = {
		[RV_VERBS_FENCE_WINDOW] = "window",
		[RV_VERBS_FENCE_REGION] = "region",
		[RV_VERBS_FENCE_NO] = "none",
	};
	struct rv_verbs_windows w = {0};

	if (conf->fence == RV_VERBS_FENCE_AUTO || conf->fence == RV_VERBS_FENCE_WINDOW)
		rv_verbs_windows_try(&v->dev, &w);
	if (!rv_verbs_fence_choose(conf->fence, &w, &v->fence, conf->why, RV_VERBS_WHY))
		return false;
	if (v->fence == RV_VERBS_FENCE_WINDOW && !w.bounded)
		rv_log_warn("verbs: fence window: %s: with its window a consumer may read all of "
			    "the arena while its lease lasts",
			    w.why);
	else if (conf->fence == RV_VERBS_FENCE_AUTO && v->fence == RV_VERBS_FENCE_REGION)
		rv_log_info("verbs: no windows: %s", w.why);
	v->base.exports = v->fence != RV_VERBS_FENCE_NO;
	v->base.by_queue_pair = v->fence == RV_VERBS_FENCE_WINDOW;
	v->base.fence = names[v->fence];
	return true;
}

int rv_verbs_create(const struct rv_verbs_conf *conf, struct rv_fabric **out)
{
	struct rv_verbs *v = new_fabric(conf);
	int rc;

	RV_CHECK(conf->reactors > 0);
	if (!v) {
		snprintf(conf->why, RV_VERBS_WHY, "out of memory");
		return -ENOMEM;
	}
	rc = rv_verbs_device_open(&v->dev, conf->device, conf->port, conf->gid_index, conf->why,
				  RV_VERBS_WHY);
	if (rc)
		goto err_free;
	if (!choose_fence(v, conf)) {
		rc = -ENOTSUP;
		goto err_device;
	}
	v->pd = ibv_alloc_pd(v->dev.ctx);
	if (!v->pd) {
		rc = -errno;
		snprintf(conf->why, RV_VERBS_WHY, "%s: ibv_alloc_pd: %s", v->dev.name,
			 strerrordesc_np(-rc));
		goto err_device;
	}
	name_it(v);
	rc = rv_verbs_cm_start(v, conf->host, conf->listen_port, conf->why);
	if (rc)
		goto err_pd;
	*out = &v->base;
	return 0;

err_pd:
	ibv_dealloc_pd(v->pd);
err_device:
	rv_verbs_device_close(&v->dev);
err_free:
	free_fabric(v);
	return rc;
}

uint16_t rv_verbs_port(const struct rv_fabric *f)
{
	const struct sockaddr_storage *sa = &((const struct rv_verbs *)f)->listen_addr;

	return ntohs(sa->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)sa)->sin6_port
					       : ((const struct sockaddr_in *)sa)->sin_port);
}
