/*
 * Gets by RDMA: what is offered, the read itself, and the lease it must be proven under.
 */
#include <errno.h>
#include <string.h>

#include "dataplane/base/err.h"
#include "dataplane/base/probe.h"
#include "dataplane/engine/get_impl.h"
#include "dataplane/rendezvous/descriptor.h"

#define RENEW_FLOOR_NS RV_MS(5)

static void get_done(struct rv_fabric_get *fg, int rc);

/* What we may offer now; counts why not. *wait: worth asking again. */
unsigned rv_get_offer(struct rv_get *g, bool *wait, const char **why)
{
	struct rv_engine *e = g->e;
	enum rv_path_reason reason = RV_PATH_NO_OFFER;
	unsigned offer = 0;

	*wait = false;
	*why = "the owner's RDMA address is not known here: give it with `rvctl peer-add`";
	if (!e->conf.fabric_nr) {
		reason = RV_PATH_NOT_CONFIGURED;
		*why = "this node has no RDMA backend (verbs.enabled, ucx.enabled)";
	} else if (atomic_load_explicit(&e->conf.set->rdma_off, memory_order_relaxed)) {
		reason = RV_PATH_KILL_SWITCH;
		*why = "the kill switch is on";
	} else if (g->load->late_bytes > e->conf.late_max) {
		reason = RV_PATH_POOL_EXHAUSTED;
		*why = "reads from that owner that are late hold as much memory as they may";
	} else {
		for (unsigned i = 0; i < e->conf.fabric_nr; i++) {
			struct rv_fabric *f = e->conf.fabric[i];
			enum rv_peer_state st =
				f->ops->peer_state(f, e->reactor->index, g->handle.worker);

			if (st == RV_PEER_UP)
				offer |= f->ops->offer_bit;
			if (st == RV_PEER_WIRING || st == RV_PEER_FAILED)
				*wait = true;
			if (st == RV_PEER_FAILED)
				*why = "the owner's RDMA address does not answer";
		}
	}
	if (!offer && !(*wait && g->path == RV_GET_RDMA))
		rv_counter_add(&e->stats.path[reason], 1);
	return offer;
}

uint32_t rv_get_reads_by(const struct rv_get *g, unsigned offer)
{
	for (unsigned i = 0; i < g->e->conf.fabric_nr; i++) {
		struct rv_fabric *f = g->e->conf.fabric[i];

		if (f->ops->offer_bit & offer && f->ops->reads_by)
			return f->ops->reads_by(f, g->e->reactor->index, g->handle.worker);
	}
	return 0;
}

/* Does this node do RDMA at all, now? */
bool rv_get_rdma_possible(const struct rv_engine *e)
{
	return e->conf.fabric_nr &&
	       !atomic_load_explicit(&e->conf.set->rdma_off, memory_order_relaxed);
}

static uint64_t renew_period(const struct rv_get *g)
{
	return rv_max_u64(g->proof.timeout_ns / 2, RENEW_FLOOR_NS);
}

struct rv_fabric_get rv_get_read(const struct rv_get *g,
				 void (*done)(struct rv_fabric_get *fg, int rc), void *ctx)
{
	const struct rv_fabric *f = g->fabric;

	return (struct rv_fabric_get){
		.worker = g->handle.worker,
		.remote_addr = g->remote_addr,
		.len = g->len,
		.key = g->key,
		.key_len = g->key_len,
		.qp = f->ops->reads_by ? g->offer_qp : 0,
		.local = rv_get_dst(g),
		.local_map = g->block->arena->map[f->index],
		.done = done,
		.ctx = ctx,
	};
}

void rv_get_begin_rdma(struct rv_get *g)
{
	struct rv_fabric *f = g->fabric;
	int rc;

	if (!g->block->arena->map[f->index]) { /* its device went before the memory came */
		rv_get_fall_back(g, RV_PATH_POOL_EXHAUSTED, "no registered destination");
		return;
	}
	if (g->req && g->req->raw) {
		rv_get_begin_raw(g);
		return;
	}
	g->state = GET_RDMA;
	rv_task_at(g->e->reactor, &g->deadline, rv_get_step_deadline(g));
	g->get_began_ns = g->e->reactor->conf.clock();
	g->get = rv_get_read(g, get_done, g);
	rv_probe_get_start(g->handle.worker, g->len, (unsigned)f->ops->backend);
	rc = f->ops->get(f, g->e->reactor->index, &g->get);
	if (rc)
		rv_get_fall_back(g, rc == -EPROTO ? RV_PATH_DECODE_ERROR : RV_PATH_GET_FAILED,
				 rv_err_name(rc));
}

static void get_done(struct rv_fabric_get *fg, int rc)
{
	struct rv_get *g = fg->ctx;
	uint64_t at = g->e->reactor->conf.clock();

	if (!g->has_xxh3 || g->late || rc)
		rv_task_cancel(g->e->reactor,
			       &g->renew); /* else it lasts until the content was checked */
	if (g->late) {
		/* Its caller was answered at the deadline; only now may the bytes be reused. */
		rv_get_wind_up(g);
		return;
	}
	if (rc) {
		rv_get_fall_back(g, RV_PATH_GET_FAILED, rv_err_name(rc));
		return;
	}
	if (!rv_proof_holds(&g->proof, at)) {
		rv_get_say(
			g,
			"lease lost: the owner may have reused the bytes before the last one landed");
		rv_get_fail(g, -EKEYREVOKED);
		return;
	}
	rv_counter_add(&g->e->stats.path[RV_PATH_OK], 1);
	rv_stats_get_time(&g->e->stats, at - g->get_began_ns);
	rv_get_succeed(g, RV_PATH_RDMA);
}

static void renewed(struct rv_port *p, struct rv_cell *c)
{
	struct rv_get *g = c->ctx;
	const struct rv_peer_call *call = (void *)c->body;

	/* The get may be over and its record in use again. */
	if (g->tag == call->tag && g->rdma && !call->rc)
		rv_proof_renewed(&g->proof, call->sent_ns, call->replied_ns);
	rv_cell_free(p, c);
}

static void renew_due(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, renew);
	struct rv_cell *c = rv_cell_alloc(rv_get_port(g));
	struct rv_peer_call *call;

	rv_task_at(r, t, r->now_ns + renew_period(g));
	if (!c)
		return; /* the next one is half a deadline away */
	call = (void *)c->body;
	*call = (struct rv_peer_call){
		.op = RV_PEER_RENEW,
		.handle = g->handle,
		.lease_id = g->lease_id,
		.sync = true,
		.tag = g->tag,
		.deadline_ns = rv_sat_add(r->now_ns, g->proof.timeout_ns),
	};
	c->ctx = g;
	c->done = renewed;
	g->e->conf.calls->ops->start(g->e->conf.calls, rv_get_port(g), c);
}

/* The fabric still owns the destination: answer now, force the endpoint down a lease timeout later. */
void rv_get_late_rdma(struct rv_get *g)
{
	uint64_t grace = g->proof.timeout_ns == RV_NEVER ? RV_SEC(30) : g->proof.timeout_ns;

	if (g->late) {
		g->fabric->ops->abandon(g->fabric, g->e->reactor->index, g->handle.worker);
		return;
	}
	g->late = true;
	g->load->late_bytes += g->len;
	rv_task_cancel(g->e->reactor, &g->renew);
	rv_get_say(
		g,
		"the RDMA read did not end in time; its destination stays reserved until it does");
	rv_get_answer(g, -ETIMEDOUT);
	rv_task_at(g->e->reactor, &g->deadline, rv_sat_add(rv_get_now(g), grace));
}

static struct rv_fabric *fabric_of(const struct rv_get *g, unsigned backend)
{
	for (unsigned i = 0; i < g->e->conf.fabric_nr; i++) {
		if (g->e->conf.fabric[i]->ops->backend == backend)
			return g->e->conf.fabric[i];
	}
	return NULL;
}

void rv_get_on_descriptor(struct rv_get *g, const struct rv_peer_call *call)
{
	struct rv_desc d;
	enum rv_refusal why;

	g->lease_id = call->rdma.lease_id;
	if (g->fell_back || !call->offer) {
		rv_get_say(
			g,
			"the owner answered with an RDMA descriptor for an acquire that carried no offer");
		rv_get_fail(g, -EPROTO);
		return;
	}
	rv_proof_start(&g->proof, call->sent_ns,
		       call->rdma.lease_timeout_ms &&
				       call->rdma.lease_timeout_ms < RV_NEVER / RV_MS(1)
			       ? RV_MS(call->rdma.lease_timeout_ms)
			       : RV_NEVER);
	why = rv_desc_decode(call->rdma.desc, call->rdma.desc_len, &d);
	g->fabric = why == RV_ACCEPT ? fabric_of(g, d.backend) : NULL;
	if (!g->fabric || d.rkey_len > sizeof(g->key) || d.len > INT64_MAX) {
		rv_get_fall_back(g, RV_PATH_DECODE_ERROR, rv_refusal_name(why));
		return;
	}
	g->rdma = true;
	g->renew.fn = renew_due;
	/* The lease runs already, however long its destination takes. */
	if (g->proof.timeout_ns != RV_NEVER)
		rv_task_at(g->e->reactor, &g->renew, g->proof.at_ns + renew_period(g));
	g->len = d.len;
	g->remote_addr = d.addr;
	g->key_len = d.rkey_len;
	g->offer_qp = call->offer_qp;
	memcpy(g->key, d.rkey, d.rkey_len);
	rv_get_reserve(g);
}
