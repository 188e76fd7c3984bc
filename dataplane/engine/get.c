#include "dataplane/engine/get_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/probe.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/chunk_plan.h"

#define WIRE_POLL_NS RV_MS(1)

int rv_gets_init(struct rv_engine *e)
{
	rv_list_init(&e->free_gets);
	rv_list_init(&e->live_gets);
	e->gets = calloc(e->conf.max_gets, sizeof(*e->gets));
	if (!e->gets)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->conf.max_gets; i++)
		rv_list_push(&e->free_gets, &e->gets[i].link);
	if (rv_loads_init(e)) {
		free(e->gets);
		return -ENOMEM;
	}
	return 0;
}

void rv_gets_fini(struct rv_engine *e)
{
	rv_loads_fini(e);
	free(e->gets);
	e->gets = NULL;
}

/* Ends. */

static void retire(struct rv_get *g)
{
	struct rv_engine *e = g->e;

	RV_CHECK(!g->asker && !g->block && !g->into && !g->src && !g->call_out);
	rv_task_cancel(e->reactor, &g->deadline);
	rv_task_cancel(e->reactor, &g->renew);
	if (g->late)
		g->load->late_bytes -= g->len;
	if (g->load)
		rv_load_leave(e, g->load);
	rv_cell_free(rv_get_port(g), g->cell);
	rv_list_del(&g->link);
	rv_list_push(&e->free_gets, &g->link);
	rv_counter_sub(&e->stats.gets, 1);
}

void rv_get_answer(struct rv_get *g, int rc)
{
	struct rv_msg_get *m = g->req;

	if (!g->asker)
		return;
	m->rc = rc;
	m->elapsed_ns = rv_get_now(g) - g->began_ns;
	rv_stats_operation(&g->e->stats, RV_OP_GET, rc);
	rv_probe_get_end(g->handle.worker, g->len, rc, m->elapsed_ns);
	rv_cell_reply(rv_get_port(g), g->asker);
	g->asker = NULL;
	g->req = NULL;
}

void rv_get_say(struct rv_get *g, const char *fmt, ...)
{
	va_list ap;

	if (!g->req)
		return;
	va_start(ap, fmt);
	vsnprintf(g->req->text, sizeof(g->req->text), fmt, ap);
	va_end(ap);
}

static void call_back(struct rv_port *p, struct rv_cell *c);

static struct rv_peer_call *call_new(struct rv_get *g, enum rv_peer_op op)
{
	struct rv_peer_call *call = (void *)g->cell->body;

	RV_CHECK(!g->call_out);
	*call = (struct rv_peer_call){
		.op = op,
		.handle = g->handle,
		.deadline_ns = rv_get_step_deadline(g),
		.lease_id = g->lease_id,
	};
	g->cell->ctx = g;
	g->cell->done = call_back;
	return call;
}

static void call_start(struct rv_get *g)
{
	struct rv_peer_calls *pc = g->e->conf.calls;

	g->call_out = true;
	pc->ops->start(pc, rv_get_port(g), g->cell);
}

static void drop_block(struct rv_get *g)
{
	if (g->block)
		rv_block_drop(g->block);
	g->block = NULL;
}

static void wound(struct rv_port *p, struct rv_cell *c)
{
	struct rv_get *g = c->ctx;

	(void)p;
	g->call_out = false;
	rv_get_wind_up(g);
}

static void give_src_back(struct rv_get *g)
{
	*(struct rv_msg_drop *)(void *)g->cell->body = (struct rv_msg_drop){g->src_engine, g->src};
	g->src = NULL;
	g->cell->run = rv_engine_run_drop;
	rv_engine_send(rv_get_port(g), g->src_engine, g->cell);
}

static void give_local_lease_back(struct rv_get *g, struct rv_engine *owner)
{
	*(struct rv_msg_lease *)(void *)g->cell->body = (struct rv_msg_lease){
		.engine = owner,
		.op = g->release ? RV_LEASE_RELEASE : RV_LEASE_DETACH,
		.local = g->handle.local,
		.lease_id = g->lease_id,
		.worker = g->handle.worker,
	};
	g->cell->run = rv_engine_run_lease;
	rv_engine_send(rv_get_port(g), owner, g->cell);
}

static void give_lease_back(struct rv_get *g)
{
	struct rv_peer_calls *pc = g->e->conf.calls;
	struct rv_peer_call *call;

	call = call_new(g, g->release ? RV_PEER_RELEASE : RV_PEER_DETACH);
	call->deadline_ns = RV_NEVER;
	g->cell->done = wound;
	g->call_out = true;
	pc->ops->start(pc, rv_get_port(g), g->cell);
}

/* Give back what the get still has, one thing after another with its one cell; then its record is free. */
void rv_get_wind_up(struct rv_get *g)
{
	struct rv_engine *owner = NULL;

	rv_task_cancel(g->e->reactor, &g->renew);
	rv_task_cancel(g->e->reactor, &g->deadline);
	g->rdma = false;
	g->state = GET_ENDING;
	drop_block(g);
	if (g->into)
		rv_block_drop(g->into);
	g->into = NULL;
	if (g->lease_id && g->handle.worker == g->e->conf.worker)
		owner = rv_engine_of(g->e->conf.set, g->handle.local);
	if (!g->src && !g->lease_id) {
		retire(g);
		return;
	}
	if (g->src || owner) {
		g->cell->ctx = g;
		g->cell->done = wound;
		g->call_out = true;
	}
	if (g->src) {
		give_src_back(g);
		return;
	}
	if (owner)
		give_local_lease_back(g, owner);
	else
		give_lease_back(g);
	g->lease_id = 0;
}

void rv_get_fail(struct rv_get *g, int rc)
{
	rv_get_answer(g, rc);
	rv_get_wind_up(g);
}

void rv_get_done(struct rv_get *g)
{
	bool keep = g->then == RV_GET_THEN_KEEP;

	g->req->lease_id = keep ? g->lease_id : 0;
	rv_get_answer(g, 0);
	g->release = g->then == RV_GET_THEN_RELEASE;
	if (keep)
		g->lease_id = 0; /* the asker's from now on */
	rv_get_wind_up(g);
}

void rv_get_report(struct rv_get *g, enum rv_path took)
{
	struct rv_msg_get *m = g->req;
	struct rv_stats *s = &g->e->stats;

	m->in_place = g->block && g->block == g->into;
	if (m->in_place)
		drop_block(g);
	m->block = g->block;
	m->block_engine = g->e;
	m->len = g->len;
	m->took = took;
	m->fabric = g->fabric ? g->fabric->index : 0;
	m->text[0] = '\0';
	g->block = NULL; /* the hold goes with the answer */
	rv_counter_add(&s->bytes_in, g->len);
	rv_counter_add(&s->get_bytes[took], g->len);
	rv_get_done(g);
}

/* Chunked. */

static void begin_pull(struct rv_get *g)
{
	struct rv_peer_call *call;

	if (!g->len) {
		rv_get_succeed(g, RV_PATH_CHUNKED);
		return;
	}
	g->state = GET_PULL;
	rv_task_at(g->e->reactor, &g->deadline, g->deadline_ns); /* each chunk has its own */
	call = call_new(g, RV_PEER_PULL);
	call->transfer_id = g->plan.transfer_id;
	call->total_len = g->len;
	call->chunk_size = g->plan.chunk_size;
	call->chunk_count = g->plan.chunk_count;
	call->idle_ns = g->e->conf.call_timeout_ns;
	call->dst = rv_get_dst(g);
	rv_probe_get_start(g->handle.worker, g->len, 0);
	call_start(g);
}

static void pulled(struct rv_get *g, const struct rv_peer_call *call)
{
	if (call->rc) {
		rv_get_say(g, "%s", call->text);
		rv_get_fail(g, call->rc);
		return;
	}
	rv_get_succeed(g, RV_PATH_CHUNKED);
}

/* The one fallback: detach, acquire without an offer, chunks. */

void rv_get_fall_back(struct rv_get *g, enum rv_path_reason why, const char *text)
{
	rv_counter_add(&g->e->stats.path[why], 1);
	rv_task_cancel(g->e->reactor, &g->renew);
	drop_block(g);
	rv_log_debug("get: rdma failed (%s: %s), falling back to chunks", rv_path_reason_name(why),
		     text);
	if (g->path == RV_GET_RDMA) {
		rv_get_say(g, "rdma failed here: %s (%s)", text, rv_path_reason_name(why));
		rv_get_fail(g, why == RV_PATH_BUDGET || why == RV_PATH_POOL_EXHAUSTED ? -ENOSPC
										      : -EIO);
		return;
	}
	g->fell_back = true;
	g->rdma = false;
	g->state = GET_ACQUIRE;
	call_new(g, RV_PEER_DETACH);
	g->lease_id = 0;
	call_start(g); /* call_back() goes on with the acquire */
}

/* Memory for a payload of at most @max bytes, if there is any at hand. */
static void take_landing(struct rv_get *g, uint64_t max)
{
	g->reserve = (struct rv_pool_req){
		.cls = {.kind = RV_ARENA_LANDING, .uid = g->uid},
		.len = max,
		.now = true,
	};
	if (!rv_pool_alloc(&g->e->pool, &g->reserve)) {
		g->block = g->reserve.block;
		g->off = 0;
	}
}

/* Whoever gets much at once gets little things: the places of all gets under way share this. */
#define AHEAD_TOTAL RV_MIB(1)
#define AHEAD_MIN   RV_KIB(4)

/* A place for a payload that may come with the answer. @return its bytes; 0: none */
static uint32_t place_ahead(struct rv_get *g)
{
	uint64_t share = AHEAD_TOTAL / rv_max_u64(1, rv_counter_get(&g->e->stats.gets));
	uint64_t max = g->e->conf.bytes_max;

	if (!g->into)
		max = rv_min_u64(max, rv_max_u64(share, AHEAD_MIN));

	if (g->path == RV_GET_RDMA)
		return 0;
	if (g->max_len)
		max = rv_min_u64(max, g->max_len);
	if (g->has_cap)
		max = rv_min_u64(max, g->cap);
	if (!max)
		return 0;
	if (g->into) {
		rv_block_hold(g->into);
		g->block = g->into;
		g->off = g->into_off;
	} else {
		take_landing(g, max);
	}
	return g->block ? (uint32_t)max : 0;
}

static void begin_acquire(struct rv_get *g, unsigned offer)
{
	struct rv_peer_call *call = call_new(g, RV_PEER_ACQUIRE);

	g->state = GET_ACQUIRE;
	call->offer = offer;
	call->offer_qp = rv_get_reads_by(g, offer);
	call->lease_ms = g->lease_ns / RV_MS(1);
	call->bytes_max = place_ahead(g);
	call->dst = call->bytes_max ? rv_get_dst(g) : NULL;
	call->ends = g->then == RV_GET_THEN_DETACH;
	call_start(g);
}

/* The destination is there. */
static void go_on(struct rv_get *g)
{
	if (g->rdma)
		rv_get_begin_rdma(g);
	else if (g->src)
		rv_get_begin_copy(g);
	else
		begin_pull(g);
}

/* What arrived in the destination's stead: plain memory cannot take a GET. */
static void reserved(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	struct rv_get *g = req->ctx;

	(void)p;
	if (!rc) {
		g->block = req->block;
		g->off = 0;
	}
	if (!g->asker) {
		rv_get_wind_up(g); /* its deadline passed meanwhile */
		return;
	}
	if (rc && g->rdma) {
		rv_get_fall_back(
			g, req->refusal == RV_POOL_BUDGET ? RV_PATH_BUDGET : RV_PATH_POOL_EXHAUSTED,
			"no registered destination");
		return;
	}
	if (rc == -EMFILE) {
		rv_get_say(g, "no memory here for %" PRIu64 " bytes: %s", g->len, rv_err_name(rc));
		rv_get_fail(g, rc);
		return;
	}
	if (rc) {
		rv_get_say(g,
			   "no memory here for %" PRIu64
			   " bytes: raise memory.plain_bytes_budget or free some",
			   g->len);
		rv_get_fail(g, rc);
		return;
	}
	go_on(g);
}

/* Checked from the answer, before anything of the stated size is allocated; the owner frees the staged copy. */
bool rv_get_too_long(struct rv_get *g)
{
	if (g->has_cap && g->len > g->cap) {
		rv_get_say(g, "%" PRIu64 " bytes do not fit into %" PRIu64, g->len, g->cap);
		if (g->req)
			g->req->len = g->len;
		rv_get_fail(g, -ERANGE);
		return true;
	}
	if (!g->max_len || g->len <= g->max_len)
		return false;
	rv_get_say(g, "the payload has %" PRIu64 " bytes, the limit here is %" PRIu64, g->len,
		   g->max_len);
	rv_get_answer(g, -EMSGSIZE);
	g->release = true; /* nobody is left to read it */
	rv_get_wind_up(g);
	return true;
}

/* A device writes only where it was told it may. */
static bool takes_it(const struct rv_get *g)
{
	return g->into && (!g->rdma || g->into->arena->map[g->fabric->index]);
}

void rv_get_reserve(struct rv_get *g)
{
	int rc;

	if (rv_get_too_long(g))
		return;

	if (!g->len) {
		begin_pull(g);
		return;
	}
	if (takes_it(g)) {
		rv_block_hold(g->into);
		g->block = g->into;
		g->off = g->into_off;
		go_on(g);
		return;
	}
	g->state = GET_RESERVE;
	rv_task_at(g->e->reactor, &g->deadline, rv_get_step_deadline(g));
	g->reserve = (struct rv_pool_req){
		.cls = {.kind = RV_ARENA_LANDING, .uid = g->uid},
		.len = g->len,
		.allow_plain = !g->rdma,
		.done = reserved,
		.ctx = g,
	};
	rc = rv_pool_alloc(&g->e->pool, &g->reserve);
	if (rc != -EINPROGRESS)
		reserved(&g->e->pool, &g->reserve, rc);
}

/* Answers. */

static void on_ready(struct rv_get *g, const struct rv_peer_call *call)
{
	g->lease_id = call->ready.lease_id;
	g->len = call->ready.total_len;
	g->plan.transfer_id = call->ready.transfer_id;
	g->plan.chunk_size = call->ready.chunk_size;
	g->plan.chunk_count = call->ready.chunk_count;
	g->rdma = false;
	if (!rv_chunk_plan_sound(g->len, g->plan.chunk_size, g->plan.chunk_count)) {
		rv_get_say(g,
			   "the owner's answer does not add up: %" PRIu64
			   " bytes in %u chunks of %u",
			   g->len, g->plan.chunk_count, g->plan.chunk_size);
		rv_get_fail(g, -EPROTO);
		return;
	}
	if (g->path == RV_GET_RDMA) {
		rv_get_say(
			g,
			"the owner answered with chunks: see its velo_rendezvous_rdma_path_total for why");
		rv_get_fail(g, -ENOTSUP);
		return;
	}
	rv_get_reserve(g);
}

/* What came is much shorter than its place: the rest of that is for others. */
static void fit_block(struct rv_get *g)
{
	struct rv_block *roomy = g->block;

	if (roomy == g->into || g->len > roomy->len / 2)
		return;
	take_landing(g, g->len);
	if (g->block == roomy)
		return;
	memcpy(rv_block_ptr(g->block), rv_block_ptr(roomy), g->len);
	rv_block_drop(roomy);
}

static void on_bytes(struct rv_get *g, const struct rv_peer_call *call)
{
	g->lease_id = call->ready.lease_id;
	g->len = call->ready.total_len;
	g->rdma = false;
	rv_probe_get_start(g->handle.worker, g->len, 0);
	if (g->len)
		fit_block(g);
	else
		drop_block(g);
	rv_get_succeed(g, RV_PATH_CHUNKED);
}

static void acquired(struct rv_get *g, const struct rv_peer_call *call)
{
	if (call->rc) {
		rv_get_say(g, "%s", call->text);
		rv_get_fail(g, call->rc);
		return;
	}
	g->has_xxh3 = call->has_xxh3;
	g->xxh3 = call->xxh3;
	if (call->answer == RV_ANSWER_BYTES) {
		on_bytes(g, call);
		return;
	}
	drop_block(g); /* of place_ahead() */
	if (call->answer == RV_ANSWER_RDMA)
		rv_get_on_descriptor(g, call);
	else
		on_ready(g, call);
}

static void call_back(struct rv_port *p, struct rv_cell *c)
{
	struct rv_get *g = c->ctx;
	const struct rv_peer_call *call = (void *)c->body;

	(void)p;
	g->call_out = false;
	switch (call->op) {
	case RV_PEER_ACQUIRE:
		acquired(g, call);
		break;
	case RV_PEER_PULL:
		pulled(g, call);
		break;
	case RV_PEER_DETACH:
		begin_acquire(g, 0); /* the fallback's second acquire */
		break;
	default:
		RV_CHECK(false); /* a call nobody made */
	}
}

/* Begin. */

static void begin(struct rv_get *g)
{
	unsigned offer = 0;
	const char *why = "";
	bool wait = false;

	if (g->path != RV_GET_CHUNKED)
		offer = rv_get_offer(g, &wait, &why);
	if (offer || g->path != RV_GET_RDMA) {
		rv_task_at(g->e->reactor, &g->deadline, g->deadline_ns);
		begin_acquire(g, offer);
		return;
	}
	if (!wait) {
		rv_get_say(g, "%s", why);
		rv_get_fail(g, rv_get_rdma_possible(g->e) ? -EHOSTUNREACH : -ENOTSUP);
		return;
	}
	rv_get_say(g, "%s", why);
	if (g->state != GET_WIRING)
		g->wire_until_ns = rv_get_step_deadline(g);
	g->state = GET_WIRING;
	rv_task_at(g->e->reactor, &g->deadline,
		   rv_min_u64(g->wire_until_ns, rv_get_now(g) + WIRE_POLL_NS));
}

static void deadline_passed(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, deadline);

	switch (g->state) {
	case GET_WIRING:
		if (r->now_ns < g->wire_until_ns) {
			begin(g);
			break;
		}
		rv_get_fail(g, -ETIMEDOUT);
		break;
	case GET_RDMA:
		if (rv_get_raw_deadline(g) > r->now_ns)
			rv_task_at(r, t, rv_get_raw_deadline(g));
		else
			rv_get_late_rdma(g);
		break;
	case GET_PULL:
		if (g->e->conf.calls->ops->cancel(g->e->conf.calls, rv_get_port(g), g->cell))
			rv_task_at(r, t, r->now_ns + RV_MS(1));
		break;
	case GET_RESERVE:
	case GET_VERIFY:
	case GET_COPY:
		rv_get_say(g, "%s in time",
			   g->state == GET_RESERVE ? "no memory could be had"
			   : g->state == GET_COPY  ? "the copy was not made"
						   : "the content was not checked");
		rv_get_answer(g, -ETIMEDOUT); /* reserved(), or the next slice, does the rest */
		break;
	case GET_ACQUIRE: /* the call has the same deadline and comes back by itself */
	case GET_LOCAL:
	case GET_ENDING:
		break;
	}
}

void rv_engine_run_get(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_get *m = (void *)c->body;
	struct rv_engine *e = m->engine;
	bool here = m->handle.worker == e->conf.worker;
	struct rv_list *l = rv_list_pop(&e->free_gets);
	struct rv_cell *mine = l ? rv_cell_alloc(p) : NULL;
	struct rv_peer_load *load =
		mine && !here && !e->draining ? rv_load_enter(e, m->handle.worker) : NULL;
	struct rv_get *g;

	m->block = NULL;
	m->in_place = false;
	m->text[0] = '\0';
	if (!mine || e->draining || (!here && !load)) {
		if (mine)
			rv_cell_free(p, mine);
		if (l)
			rv_list_push(&e->free_gets, l);
		m->rc = e->draining ? -ESHUTDOWN : -EAGAIN;
		snprintf(m->text, sizeof(m->text), "%s",
			 e->draining ? "this node is shutting down"
			 : mine      ? "too many gets from that owner under way here"
				     : "too many gets under way here");
		rv_cell_reply(p, c);
		return;
	}
	g = RV_LIST_ENTRY(l, struct rv_get, link);
	*g = (struct rv_get){
		.e = e,
		.load = load,
		.tag = ++e->last_tag,
		.asker = c,
		.req = m,
		.cell = mine,
		.handle = m->handle,
		.path = m->path,
		.uid = m->uid,
		.max_len = m->max_len,
		.lease_ns = m->lease_ns,
		.then = m->then,
		.has_cap = m->has_cap,
		.cap = m->cap,
		.into = m->into,
		.into_off = m->into_off,
		.began_ns = e->reactor->now_ns,
		.deadline = {.fn = deadline_passed},
		.deadline_ns = m->deadline_ns,
		.state = GET_ACQUIRE,
	};
	RV_CHECK(!g->into || g->into->arena->pool == &e->pool);
	if (g->into)
		rv_block_hold(g->into);
	rv_list_init(&g->link);
	rv_list_push(&e->live_gets, &g->link);
	rv_counter_add(&e->stats.gets, 1);
	if (here)
		rv_get_begin_local(g);
	else
		begin(g);
}

void rv_gets_abandon(struct rv_engine *e)
{
	struct rv_list *it, *next;

	RV_LIST_EACH_SAFE(it, next, &e->live_gets)
	{
		struct rv_get *g = RV_LIST_ENTRY(it, struct rv_get, link);

		if (g->state == GET_RDMA) {
			g->fabric->ops->abandon(g->fabric, e->reactor->index, g->handle.worker);
		} else if (g->state == GET_WIRING) {
			rv_get_say(g, "this node is shutting down");
			rv_get_fail(g, -ESHUTDOWN);
		}
	}
}
