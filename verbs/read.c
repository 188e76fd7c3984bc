#include "verbs/read.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "verbs/conn.h"
#include "verbs/cq.h"
#include "verbs/mr.h"

#define CHAIN 16u

/* What lies in rv_fabric_get.priv. */
enum {
	PRIV_CONN,
	PRIV_NEXT,  /* the first byte that was not asked for */
	PRIV_READS, /* under way: the low half; the key: the high half */
	PRIV_RC     /* 0, or what was the first to go wrong */
};
_Static_assert(sizeof(void *) == 8, "two halves in a pointer");

static uint64_t field(const struct rv_fabric_get *g, unsigned i)
{
	return (uint64_t)(uintptr_t)g->priv[i];
}

static void set_field(struct rv_fabric_get *g, unsigned i, uint64_t v)
{
	g->priv[i] = (void *)(uintptr_t)v;
}

static uint32_t reads_of(const struct rv_fabric_get *g)
{
	return (uint32_t)field(g, PRIV_READS);
}

static void add_reads(struct rv_fabric_get *g, int by)
{
	set_field(g, PRIV_READS, field(g, PRIV_READS) + (uint64_t)(int64_t)by);
}

static void spoil(struct rv_fabric_get *g, int rc)
{
	if (!field(g, PRIV_RC))
		set_field(g, PRIV_RC, (uint64_t)(int64_t)rc);
}

static void finish(struct rv_fabric_get *g)
{
	struct rv_verbs_conn *c = g->priv[PRIV_CONN];

	rv_list_del(&g->link);
	c->gets_nr--;
	c->used_ns = c->r->now_ns;
	if (!field(g, PRIV_RC) && c->peer)
		c->peer->backoff_ns = 0;
	rv_list_push(&c->r->done, &g->link);
}

static unsigned room(const struct rv_verbs_conn *c)
{
	unsigned own = c->depth - c->posted, shared = c->r->v->dev.cqe_max - c->r->cq_used;

	return own < shared ? own : shared;
}

struct chain {
	struct ibv_send_wr wr[CHAIN];
	struct ibv_sge sge[CHAIN];
	struct rv_fabric_get *get[CHAIN];
	unsigned nr;
};

static void add(struct chain *ch, struct rv_verbs_conn *c, struct rv_fabric_get *g)
{
	uint64_t next = field(g, PRIV_NEXT);
	uint32_t len = rv_verbs_read_len(g->len, next, c->r->v->dev.read_max);
	unsigned i = ch->nr++;

	ch->get[i] = g;
	ch->sge[i] = (struct ibv_sge){
		.addr = (uint64_t)(uintptr_t)g->local + next,
		.length = len,
		.lkey = ((const struct rv_verbs_map *)g->local_map)->mr->lkey,
	};
	/* A READ's fields and no others: most of the structure is for other operations. */
	ch->wr[i].wr_id = c->serial;
	ch->wr[i].next = NULL;
	ch->wr[i].sg_list = &ch->sge[i];
	ch->wr[i].num_sge = 1;
	ch->wr[i].opcode = IBV_WR_RDMA_READ;
	ch->wr[i].send_flags = IBV_SEND_SIGNALED;
	ch->wr[i].wr.rdma.remote_addr = g->remote_addr + next;
	ch->wr[i].wr.rdma.rkey = (uint32_t)(field(g, PRIV_READS) >> 32);
	if (i)
		ch->wr[i - 1].next = &ch->wr[i];
	set_field(g, PRIV_NEXT, next + len);
	add_reads(g, 1);
	c->ring[(c->head + c->posted++) % c->depth] = g;
	c->r->cq_used++;
	if (next + len == g->len)
		rv_list_del(&g->link); /* its completions find it */
}

/* The device took none of these, and will not answer for them. */
static void take_back(struct chain *ch, struct rv_verbs_conn *c, const struct ibv_send_wr *bad,
		      int rc)
{
	for (unsigned i = (unsigned)(bad - ch->wr); i < ch->nr; i++) {
		struct rv_fabric_get *g = ch->get[i];

		add_reads(g, -1);
		spoil(g, rc);
		c->posted--;
		c->r->cq_used--;
		rv_list_del(&g->link);
		if (reads_of(g))
			continue;
		finish(g);
	}
}

/* Ask for as much as there is room for. @return false: the queue pair does not take it. */
static bool pump(struct rv_verbs_conn *c)
{
	struct chain ch;
	struct ibv_send_wr *bad = NULL;
	int err;

	while (!rv_list_empty(&c->waiting) && room(c)) {
		ch.nr = 0;
		while (!rv_list_empty(&c->waiting) && room(c) && ch.nr < CHAIN)
			add(&ch, c, RV_LIST_ENTRY(c->waiting.next, struct rv_fabric_get, link));
		err = ibv_post_send(c->end.qp, ch.wr, &bad);
		if (err) {
			rv_log_warn("verbs: ibv_post_send failed: %s", strerrordesc_np(err));
			take_back(&ch, c, bad, -ECONNRESET);
			return false;
		}
	}
	if (!rv_list_empty(&c->waiting) && c->posted < c->depth && rv_list_empty(&c->starved))
		rv_list_push(&c->r->starved, &c->starved);
	return true;
}

int rv_verbs_read(struct rv_verbs_reactor *r, struct rv_fabric_get *g)
{
	struct rv_verbs_conn *c;
	uint32_t rkey;

	rv_fabric_map_check(g->local_map, g->local, g->len);
	RV_CHECK(g->len > 0);
	if (r->quiescing)
		return -ESHUTDOWN;
	if (!rv_verbs_key_decode(g->key, g->key_len, &rkey))
		return -EPROTO;
	c = rv_verbs_conn_up(r, g->worker);
	/* A key may be for the one queue pair that was there when it was asked for. */
	if (!c || (g->qp && g->qp != c->end.qp->qp_num))
		return -EHOSTUNREACH;
	g->priv[PRIV_CONN] = c;
	set_field(g, PRIV_NEXT, 0);
	set_field(g, PRIV_READS, (uint64_t)rkey << 32);
	set_field(g, PRIV_RC, 0);
	rv_list_push(&c->waiting, &g->link);
	c->gets_nr++;
	c->used_ns = r->now_ns;
	r->outstanding++;
	if (!pump(c))
		rv_verbs_conn_broke(c, -ECONNRESET);
	return 0;
}

static void feed_starved(struct rv_verbs_reactor *r)
{
	struct rv_list now, *it;

	rv_list_init(&now);
	rv_list_splice(&now, &r->starved);
	while ((it = rv_list_pop(&now))) {
		struct rv_verbs_conn *c = RV_LIST_ENTRY(it, struct rv_verbs_conn, starved);

		if (c->state == RV_VERBS_UP && !pump(c))
			rv_verbs_conn_broke(c, -ECONNRESET);
	}
}

static void one_over(struct rv_verbs_conn *c, struct rv_fabric_get *g)
{
	add_reads(g, -1);
	c->head = (c->head + 1) % c->depth;
	c->posted--;
	c->r->cq_used--;
}

void rv_verbs_read_completed(struct rv_verbs_reactor *r, const struct ibv_wc *wc)
{
	struct rv_verbs_conn *c = rv_map64_get(&r->conns, wc->wr_id);
	int rc = rv_verbs_status_err(wc->status);
	struct rv_fabric_get *g;

	if (!c || !c->posted)
		return; /* of a queue pair that is gone, with all that was under way on it */
	g = c->ring[c->head];
	one_over(c, g);
	if (rc) {
		spoil(g, rc);
		rv_list_del(&g->link); /* it asks for nothing more */
		if (wc->status != IBV_WC_WR_FLUSH_ERR)
			rv_log_warn("verbs: a read from worker %" PRIu64 " failed: %s (0x%x)",
				    c->worker, ibv_wc_status_str(wc->status), wc->vendor_err);
		if (c->state == RV_VERBS_UP)
			rv_verbs_conn_broke(c, rc);
	}
	if (!reads_of(g) && (field(g, PRIV_NEXT) == g->len || field(g, PRIV_RC)))
		finish(g);
	if (c->state == RV_VERBS_UP && !rv_list_empty(&c->waiting) && !pump(c))
		rv_verbs_conn_broke(c, -ECONNRESET);
	if (!rv_list_empty(&r->starved))
		feed_starved(r);
}

void rv_verbs_read_cut(struct rv_verbs_conn *c)
{
	struct rv_list *it;

	rv_list_del(&c->starved);
	while ((it = rv_list_pop(&c->waiting))) {
		struct rv_fabric_get *g = RV_LIST_ENTRY(it, struct rv_fabric_get, link);

		spoil(g, -ECONNRESET);
		if (!reads_of(g))
			finish(g);
	}
}

void rv_verbs_read_lost(struct rv_verbs_conn *c)
{
	while (c->posted) {
		struct rv_fabric_get *g = c->ring[c->head];

		one_over(c, g);
		spoil(g, -ECONNRESET);
		if (!reads_of(g))
			finish(g);
	}
}

unsigned rv_verbs_read_deliver(struct rv_verbs_reactor *r)
{
	struct rv_list over, *it;
	unsigned n = 0;

	/* done() may post again; what completes at once then waits for the next poll. */
	rv_list_init(&over);
	rv_list_splice(&over, &r->done);
	while ((it = rv_list_pop(&over))) {
		struct rv_fabric_get *g = RV_LIST_ENTRY(it, struct rv_fabric_get, link);

		r->outstanding--;
		g->done(g, (int)(int64_t)field(g, PRIV_RC));
		n++;
	}
	return n;
}
