#include "verbs/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "verbs/cm.h"
#include "verbs/cq.h"
#include "verbs/read.h"

/* A device that does not flush within this loses its queue pair. */
#define DRAIN_NS RV_SEC(1)

static void destroy(struct rv_verbs_conn *c)
{
	c->state = RV_VERBS_DESTROYING;
	rv_verbs_cm_want(c->r->v, c, RV_VERBS_WANT_DESTROY);
}

static void drain(struct rv_verbs_conn *c)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	c->state = RV_VERBS_DRAINING;
	c->drain_ns = rv_sat_add(c->r->now_ns, DRAIN_NS);
	if (c->posted && ibv_modify_qp(c->end.qp, &attr, IBV_QP_STATE))
		c->drain_ns = c->r->now_ns; /* nothing will be flushed */
	rv_verbs_read_cut(c);
	if (!c->posted)
		destroy(c);
}

static void close_conn(struct rv_verbs_conn *c, enum rv_endpoint_end why)
{
	if (c->peer)
		c->peer->conn = NULL;
	c->peer = NULL;
	if (c->state != RV_VERBS_CONNECTING && c->state != RV_VERBS_UP)
		return;
	rv_counter_sub(&c->r->counts->endpoints, 1);
	rv_counter_add(&c->r->counts->closed[why], 1);
	rv_list_del(&c->link);
	rv_list_push(&c->r->closing, &c->link);
	if (c->state == RV_VERBS_UP)
		drain(c);
	else
		destroy(c);
}

static void back_off(struct rv_verbs_peer *p, uint64_t now_ns)
{
	p->backoff_ns = p->backoff_ns ? rv_min_u64(2 * p->backoff_ns, RV_VERBS_BACKOFF_MAX_NS)
				      : RV_VERBS_BACKOFF_MIN_NS;
	p->retry_ns = rv_sat_add(now_ns, p->backoff_ns);
}

void rv_verbs_conn_broke(struct rv_verbs_conn *c, int rc)
{
	rv_log_info("verbs: the connection to worker %" PRIu64 " is over: %s", c->worker,
		    rv_err_name(rc));
	if (c->peer)
		back_off(c->peer, c->r->now_ns);
	close_conn(c, RV_EP_ERROR);
}

static struct rv_verbs_conn *new_conn(struct rv_verbs_reactor *r, struct rv_verbs_peer *p)
{
	struct rv_verbs_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->ring = calloc(r->v->dev.reads_out, sizeof(struct rv_fabric_get *));
	do
		c->serial = ++r->last_serial;
	while (!c->serial || rv_map64_get(&r->conns, c->serial));
	if (!c->ring || rv_map64_put(&r->conns, c->serial, c)) {
		free(c->ring);
		free(c);
		return NULL;
	}
	rv_list_init(&c->waiting);
	rv_list_init(&c->starved);
	rv_list_init(&c->todo);
	rv_list_init(&c->inbox);
	rv_list_init(&c->end.link);
	c->end.role = RV_VERBS_READS;
	c->r = r;
	c->peer = p;
	c->worker = p->worker;
	c->used_ns = r->now_ns;
	c->dst = p->addr;
	return c;
}

static void begin(struct rv_verbs_reactor *r, struct rv_verbs_peer *p)
{
	struct rv_verbs_conn *c = new_conn(r, p);

	back_off(p, r->now_ns);
	if (!c)
		return;
	p->conn = c;
	rv_list_push(&r->live, &c->link);
	rv_counter_add(&r->counts->endpoints, 1);
	rv_verbs_cm_want(r->v, c, RV_VERBS_WANT_CONNECT);
}

/* Peers. */

/* The fabric's thread lets only those in that some reactor knows. @return false: no memory */
static bool know(struct rv_verbs *v, uint64_t worker, int by)
{
	uintptr_t nr;
	int rc = 0;

	pthread_mutex_lock(&v->lock);
	nr = (uintptr_t)rv_map64_get(&v->known, worker) + (uintptr_t)(intptr_t)by;
	if (nr)
		rc = rv_map64_put(&v->known, worker, (void *)nr);
	else
		rv_map64_del(&v->known, worker);
	v->forgot |= nr == 0;
	pthread_mutex_unlock(&v->lock);
	return rc == 0;
}

static struct rv_verbs_peer *new_peer(struct rv_verbs_reactor *r, uint64_t worker)
{
	struct rv_verbs_peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->worker = worker;
	if (!know(r->v, worker, 1))
		goto err_free;
	if (rv_map64_put(&r->peers, worker, p))
		goto err_known;
	return p;

err_known:
	know(r->v, worker, -1);
err_free:
	free(p);
	return NULL;
}

int rv_verbs_peer_up(struct rv_verbs_reactor *r, const struct rv_fabric_peer *fp)
{
	struct rv_verbs_peer *p = rv_map64_get(&r->peers, fp->worker);
	struct sockaddr_storage addr;

	if (!rv_verbs_addr_decode(fp->addr, fp->addr_len, &addr))
		return -EPROTO;
	if (!p)
		p = new_peer(r, fp->worker);
	if (!p)
		return -ENOMEM;
	if (p->incarnation == fp->incarnation && memcmp(&p->addr, &addr, sizeof(addr)) == 0)
		return 0;
	p->addr = addr;
	p->incarnation = fp->incarnation;
	p->backoff_ns = 0;
	p->retry_ns = 0;
	if (p->conn)
		close_conn(p->conn, RV_EP_REPLACED);
	return 0;
}

void rv_verbs_peer_down(struct rv_verbs_reactor *r, uint64_t worker)
{
	struct rv_verbs_peer *p = rv_map64_del(&r->peers, worker);

	if (!p)
		return;
	if (p->conn)
		close_conn(p->conn, RV_EP_FORGOTTEN);
	know(r->v, worker, -1);
	free(p);
}

static enum rv_peer_state state_of(const struct rv_verbs_conn *c)
{
	return c->state == RV_VERBS_UP ? RV_PEER_UP : RV_PEER_WIRING;
}

enum rv_peer_state rv_verbs_peer_state(struct rv_verbs_reactor *r, uint64_t worker)
{
	struct rv_verbs_peer *p = rv_map64_get(&r->peers, worker);

	if (!p)
		return RV_PEER_UNKNOWN;
	if (!p->conn && r->now_ns >= p->retry_ns && !r->quiescing &&
	    !atomic_load_explicit(&r->v->base.dead, memory_order_relaxed))
		begin(r, p);
	return p->conn ? state_of(p->conn) : RV_PEER_FAILED;
}

struct rv_verbs_conn *rv_verbs_conn_up(struct rv_verbs_reactor *r, uint64_t worker)
{
	struct rv_verbs_peer *p = rv_map64_get(&r->peers, worker);

	return p && p->conn && p->conn->state == RV_VERBS_UP ? p->conn : NULL;
}

void rv_verbs_abandon(struct rv_verbs_reactor *r, uint64_t worker)
{
	struct rv_verbs_peer *p = rv_map64_get(&r->peers, worker);

	if (p && p->conn)
		close_conn(p->conn, RV_EP_ABANDONED);
}

bool rv_verbs_endpoint(struct rv_verbs_reactor *r, size_t *pos, struct rv_fabric_endpoint *out)
{
	const struct rv_verbs_peer *p;

	while ((p = rv_map64_next(&r->peers, pos))) {
		const struct rv_verbs_conn *c = p->conn;

		if (!c)
			continue;
		*out = (struct rv_fabric_endpoint){
			.worker = p->worker,
			.incarnation = p->incarnation,
			.state = state_of(c),
			.idle_ns = r->now_ns > c->used_ns ? r->now_ns - c->used_ns : 0,
			.gets = c->gets_nr,
		};
		return true;
	}
	return false;
}

int rv_verbs_quiesce(struct rv_verbs_reactor *r)
{
	struct rv_list *it, *tmp;

	r->quiescing = true;
	RV_LIST_EACH_SAFE(it, tmp, &r->live)
	close_conn(RV_LIST_ENTRY(it, struct rv_verbs_conn, link), RV_EP_SHUTDOWN);
	return rv_list_empty(&r->closing) && r->outstanding == 0 ? 0 : -EAGAIN;
}

void rv_verbs_peers_fini(struct rv_verbs_reactor *r)
{
	struct rv_verbs_peer *p;
	size_t pos = 0;

	while ((p = rv_map64_next(&r->peers, &pos))) {
		know(r->v, p->worker, -1);
		free(p);
	}
	rv_map64_fini(&r->peers);
}

/* What the fabric's thread did. */

static void destroyed(struct rv_verbs_conn *c)
{
	/* What it left in the queue was written before it went; nothing is added any more. */
	while (c->posted && rv_verbs_cq_poll(c->r))
		;
	rv_verbs_read_lost(c);
	rv_map64_del(&c->r->conns, c->serial);
	rv_list_del(&c->link);
	free(c->ring);
	free(c);
}

static void heard(struct rv_verbs_conn *c, unsigned news)
{
	if (news & RV_VERBS_NEWS_UP && c->state == RV_VERBS_CONNECTING)
		c->state = RV_VERBS_UP;
	if (news & RV_VERBS_NEWS_FAILED && c->state == RV_VERBS_CONNECTING)
		close_conn(c, RV_EP_ERROR);
	if (news & RV_VERBS_NEWS_LOST && c->state == RV_VERBS_UP)
		rv_verbs_conn_broke(c, -ECONNRESET);
	if (news & RV_VERBS_NEWS_DESTROYED)
		destroyed(c);
}

unsigned rv_verbs_conn_news(struct rv_verbs_reactor *r)
{
	struct rv_list now, *it;
	eventfd_t ignored;
	unsigned n = 0;

	rv_list_init(&now);
	pthread_mutex_lock(&r->v->lock);
	/* All three under the lock, as in tell(): a descriptor left readable would keep the reactor awake. */
	eventfd_read(r->efd, &ignored);
	atomic_store_explicit(&r->news, false, memory_order_relaxed);
	rv_list_splice(&now, &r->inbox);
	while ((it = rv_list_pop(&now))) {
		struct rv_verbs_conn *c = RV_LIST_ENTRY(it, struct rv_verbs_conn, inbox);
		unsigned news = c->news;

		c->news = 0;
		pthread_mutex_unlock(&r->v->lock);
		heard(c, news);
		n++;
		pthread_mutex_lock(&r->v->lock);
	}
	pthread_mutex_unlock(&r->v->lock);
	return n;
}

unsigned rv_verbs_conn_reap(struct rv_verbs_reactor *r)
{
	struct rv_list *it;
	unsigned n = 0;

	RV_LIST_EACH(it, &r->closing)
	{
		struct rv_verbs_conn *c = RV_LIST_ENTRY(it, struct rv_verbs_conn, link);

		if (c->state != RV_VERBS_DRAINING || (c->posted && r->now_ns < c->drain_ns))
			continue;
		destroy(c);
		n++;
	}
	return n;
}

uint64_t rv_verbs_conn_next_ns(const struct rv_verbs_reactor *r)
{
	const struct rv_list *it;
	uint64_t next = RV_NEVER;

	RV_LIST_EACH(it, &r->closing)
	{
		const struct rv_verbs_conn *c = RV_LIST_ENTRY(it, const struct rv_verbs_conn, link);

		if (c->state == RV_VERBS_DRAINING)
			next = rv_min_u64(next, c->drain_ns);
	}
	return next;
}
