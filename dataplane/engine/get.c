#include "dataplane/engine/get.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/hash.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/chunk_plan.h"
#include "dataplane/engine/msg.h"
#include "dataplane/engine/proof.h"
#include "dataplane/rendezvous/descriptor.h"

#define RENEW_FLOOR_NS RV_MS(5)
#define WIRE_POLL_NS   RV_MS(1)
#define COPY_SLICE     RV_KIB(512)

enum get_state {
	GET_WIRING, /* --path rdma: waits for the endpoint */
	GET_ACQUIRE,
	GET_RESERVE, /* waits for a destination */
	GET_PULL,
	GET_RDMA,
	GET_VERIFY, /* hashing what landed against the owner's word */
	GET_COPY,   /* another user's slot of this node */
	GET_LOCAL,
	GET_ENDING, /* only its detach is on the way */
};

struct rv_get {
	struct rv_list link;
	struct rv_engine *e;
	struct rv_cell *asker;  /* NULL once answered */
	struct rv_msg_get *req; /* the asker's body; NULL once answered */
	struct rv_cell *cell;   /* ours, reused for each call in turn */
	enum get_state state;
	struct rv_handle handle;
	enum rv_get_path path;
	uid_t uid;
	uint64_t max_len, lease_ns;
	uint64_t began_ns;
	struct rv_task
		deadline;     /* also the poll while wiring, and the force-close after a timeout */
	uint64_t deadline_ns; /* RV_NEVER: one for each step */
	uint64_t wire_until_ns;
	bool call_out;  /* `cell` is under way */
	bool late;      /* answered -ETIMEDOUT while the fabric was busy */
	bool release;   /* the lease ends with a release, not a detach */
	bool fell_back; /* the acquire without an offer */
	uint64_t tag;   /* tells this get's renewals from those of the record's former uses */
	struct rv_task renew;

	uint64_t lease_id; /* 0: none */
	uint64_t len;
	struct rv_proof proof;
	struct {
		uint64_t transfer_id;
		uint32_t chunk_size, chunk_count;
	} plan;
	bool has_xxh3;
	uint64_t xxh3;
	struct rv_hasher *hasher;
	uint64_t hashed;
	struct rv_task verify;
	enum rv_path took;
	bool rdma; /* the answer was a descriptor */
	struct rv_fabric *fabric;
	struct rv_pool_req reserve;
	struct rv_block *block; /* destination */
	struct rv_fabric_get get;
	uint64_t get_began_ns;
	uint64_t remote_addr;
	size_t key_len;
	uint8_t key[RV_FABRIC_KEY_MAX];

	struct rv_block *src; /* COPY: the slot's, held */
	struct rv_engine *src_engine;
	uint64_t copied;
	struct rv_task copy;
};

static void deadline_passed(struct rv_reactor *r, struct rv_task *t);
static void renew_due(struct rv_reactor *r, struct rv_task *t);
static void copy_slice(struct rv_reactor *r, struct rv_task *t);
static void verify_slice(struct rv_reactor *r, struct rv_task *t);
static void begin(struct rv_get *g);
static void fall_back(struct rv_get *g, enum rv_path_reason why, const char *text);
static void get_done(struct rv_fabric_get *fg, int rc);
static void reserved(struct rv_pool *p, struct rv_pool_req *req, int rc);

int rv_gets_init(struct rv_engine *e)
{
	rv_list_init(&e->free_gets);
	rv_list_init(&e->live_gets);
	e->gets = calloc(e->conf.max_gets, sizeof(*e->gets));
	if (!e->gets)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->conf.max_gets; i++)
		rv_list_push(&e->free_gets, &e->gets[i].link);
	return 0;
}

void rv_gets_fini(struct rv_engine *e)
{
	free(e->gets);
	e->gets = NULL;
}

static struct rv_port *port_of(const struct rv_get *g)
{
	return g->e->reactor->port;
}

static uint64_t now(const struct rv_get *g)
{
	return g->e->reactor->now_ns;
}

/* Without a deadline of its own a get has one for each step, a call's. */
static uint64_t step_deadline(const struct rv_get *g)
{
	if (g->deadline_ns != RV_NEVER)
		return g->deadline_ns;
	return rv_sat_add(now(g), g->e->conf.call_timeout_ns);
}

/* Ends. */

static void retire(struct rv_get *g)
{
	struct rv_engine *e = g->e;

	RV_CHECK(!g->asker && !g->block && !g->src && !g->call_out);
	rv_task_cancel(e->reactor, &g->deadline);
	rv_task_cancel(e->reactor, &g->renew);
	rv_cell_free(port_of(g), g->cell);
	rv_list_del(&g->link);
	rv_list_push(&e->free_gets, &g->link);
	rv_counter_sub(&e->stats.gets, 1);
}

static void answer(struct rv_get *g, int rc)
{
	struct rv_msg_get *m = g->req;

	if (!g->asker)
		return;
	m->rc = rc;
	m->elapsed_ns = now(g) - g->began_ns;
	rv_stats_operation(&g->e->stats, RV_OP_GET, rc);
	rv_cell_reply(port_of(g), g->asker);
	g->asker = NULL;
	g->req = NULL;
}

static void __attribute__((format(printf, 2, 3))) say(struct rv_get *g, const char *fmt, ...)
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
		.deadline_ns = step_deadline(g),
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
	pc->ops->start(pc, port_of(g), g->cell);
}

static void drop_block(struct rv_get *g)
{
	if (g->block)
		rv_block_drop(g->block);
	g->block = NULL;
}

static void wind_up(struct rv_get *g);

static void wound(struct rv_port *p, struct rv_cell *c)
{
	struct rv_get *g = c->ctx;

	(void)p;
	g->call_out = false;
	wind_up(g);
}

static void give_src_back(struct rv_get *g)
{
	*(struct rv_msg_drop *)(void *)g->cell->body = (struct rv_msg_drop){g->src_engine, g->src};
	g->src = NULL;
	g->cell->run = rv_engine_run_drop;
	rv_engine_send(port_of(g), g->src_engine, g->cell);
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
	rv_engine_send(port_of(g), owner, g->cell);
}

static void give_lease_back(struct rv_get *g)
{
	struct rv_peer_calls *pc = g->e->conf.calls;
	struct rv_peer_call *call;

	call = call_new(g, g->release ? RV_PEER_RELEASE : RV_PEER_DETACH);
	call->deadline_ns = RV_NEVER;
	g->cell->done = wound;
	g->call_out = true;
	pc->ops->start(pc, port_of(g), g->cell);
}

/* Give back what the get still has, one thing after another with its one cell; then its record is free. */
static void wind_up(struct rv_get *g)
{
	struct rv_engine *owner = NULL;

	rv_task_cancel(g->e->reactor, &g->renew);
	rv_task_cancel(g->e->reactor, &g->deadline);
	g->rdma = false;
	g->state = GET_ENDING;
	drop_block(g);
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

static void fail(struct rv_get *g, int rc)
{
	answer(g, rc);
	wind_up(g);
}

static void report(struct rv_get *g, enum rv_path took)
{
	struct rv_msg_get *m = g->req;
	struct rv_stats *s = &g->e->stats;

	m->block = g->block;
	m->block_engine = g->e;
	m->len = g->len;
	m->lease_id = g->lease_id;
	m->took = took;
	m->fabric = g->fabric ? g->fabric->index : 0;
	m->text[0] = '\0';
	g->block = NULL; /* the hold goes with the answer */
	rv_counter_add(&s->bytes_in, g->len);
	rv_counter_add(&s->get_bytes[took], g->len);
	answer(g, 0);
	g->lease_id = 0; /* the asker's from now on */
	wind_up(g);
}

/* Content, where the owner said what it hashes to: landing memory is written by nobody any more. */

static void verify_end(struct rv_get *g)
{
	bool same = rv_hasher_sum(g->hasher) == g->xxh3;

	rv_hasher_destroy(g->hasher);
	g->hasher = NULL;
	if (same) {
		report(g, g->took);
		return;
	}
	say(g, "the bytes that arrived are not the bytes that were staged (xxh3)");
	fail(g, -EBADMSG);
}

static void verify_slice(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, verify);
	uint64_t n = rv_min_u64(COPY_SLICE, g->len - g->hashed);

	if (!g->asker) {
		rv_hasher_destroy(g->hasher);
		g->hasher = NULL;
		wind_up(g); /* its deadline passed meanwhile */
		return;
	}
	rv_hasher_add(g->hasher, rv_block_ptr(g->block) + g->hashed, n);
	g->hashed += n;
	if (g->hashed < g->len)
		rv_task_at(r, t, r->now_ns);
	else
		verify_end(g);
}

static void succeed(struct rv_get *g, enum rv_path took)
{
	if (!g->has_xxh3 || !g->len || took == RV_PATH_LOCAL) {
		report(g, took);
		return;
	}
	g->hasher = rv_hasher_create();
	if (!g->hasher) {
		say(g, "no memory to check the content");
		fail(g, -ENOMEM);
		return;
	}
	g->state = GET_VERIFY;
	g->took = took;
	g->hashed = 0;
	rv_task_at(g->e->reactor, &g->deadline, step_deadline(g));
	rv_task_at(g->e->reactor, &g->verify, now(g));
}

/* Chunked. */

static void begin_pull(struct rv_get *g)
{
	struct rv_peer_call *call;

	if (!g->len) {
		succeed(g, RV_PATH_CHUNKED);
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
	call->dst = rv_block_ptr(g->block);
	call_start(g);
}

static void pulled(struct rv_get *g, const struct rv_peer_call *call)
{
	if (call->rc) {
		say(g, "%s", call->text);
		fail(g, call->rc);
		return;
	}
	succeed(g, RV_PATH_CHUNKED);
}

/* RDMA. */

static uint64_t renew_period(const struct rv_get *g)
{
	return rv_max_u64(g->proof.timeout_ns / 2, RENEW_FLOOR_NS);
}

static void begin_rdma(struct rv_get *g)
{
	struct rv_fabric *f = g->fabric;
	int rc;

	g->state = GET_RDMA;
	rv_task_at(g->e->reactor, &g->deadline, step_deadline(g));
	g->get_began_ns = g->e->reactor->conf.clock();
	g->get = (struct rv_fabric_get){
		.worker = g->handle.worker,
		.remote_addr = g->remote_addr,
		.len = g->len,
		.key = g->key,
		.key_len = g->key_len,
		.local = rv_block_ptr(g->block),
		.local_map = g->block->arena->map[f->index],
		.done = get_done,
		.ctx = g,
	};
	rc = f->ops->get(f, g->e->reactor->index, &g->get);
	if (rc)
		fall_back(g, rc == -EPROTO ? RV_PATH_DECODE_ERROR : RV_PATH_GET_FAILED,
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
		wind_up(g);
		return;
	}
	if (rc) {
		fall_back(g, RV_PATH_GET_FAILED, rv_err_name(rc));
		return;
	}
	if (!rv_proof_holds(&g->proof, at)) {
		say(g,
		    "lease lost: the owner may have reused the bytes before the last one landed");
		fail(g, -EKEYREVOKED);
		return;
	}
	rv_counter_add(&g->e->stats.path[RV_PATH_OK], 1);
	rv_stats_get_time(&g->e->stats, at - g->get_began_ns);
	succeed(g, RV_PATH_RDMA);
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
	struct rv_cell *c = rv_cell_alloc(port_of(g));
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
	g->e->conf.calls->ops->start(g->e->conf.calls, port_of(g), c);
}

/* The one fallback: detach, acquire without an offer, chunks. */

static void fall_back(struct rv_get *g, enum rv_path_reason why, const char *text)
{
	rv_counter_add(&g->e->stats.path[why], 1);
	rv_task_cancel(g->e->reactor, &g->renew);
	drop_block(g);
	rv_log_debug("get: rdma failed (%s: %s), falling back to chunks", rv_path_reason_name(why),
		     text);
	if (g->path == RV_GET_RDMA) {
		say(g, "rdma failed here: %s (%s)", text, rv_path_reason_name(why));
		fail(g, why == RV_PATH_BUDGET || why == RV_PATH_POOL_EXHAUSTED ? -ENOSPC : -EIO);
		return;
	}
	g->fell_back = true;
	g->rdma = false;
	g->state = GET_ACQUIRE;
	call_new(g, RV_PEER_DETACH);
	g->lease_id = 0;
	call_start(g); /* call_back() goes on with the acquire */
}

static void begin_acquire(struct rv_get *g, unsigned offer)
{
	struct rv_peer_call *call = call_new(g, RV_PEER_ACQUIRE);

	g->state = GET_ACQUIRE;
	call->offer = offer;
	call->lease_ms = g->lease_ns / RV_MS(1);
	call_start(g);
}

/* What arrived in the destination's stead: plain memory cannot take a GET. */
static void reserved(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	struct rv_get *g = req->ctx;

	(void)p;
	if (!rc)
		g->block = req->block;
	if (!g->asker) {
		wind_up(g); /* its deadline passed meanwhile */
		return;
	}
	if (rc && g->rdma) {
		fall_back(g,
			  req->refusal == RV_POOL_BUDGET ? RV_PATH_BUDGET : RV_PATH_POOL_EXHAUSTED,
			  "no registered destination");
		return;
	}
	if (rc) {
		say(g,
		    "no memory here for %" PRIu64
		    " bytes: raise memory.plain_bytes_budget or free some",
		    g->len);
		fail(g, rc);
		return;
	}
	if (g->rdma)
		begin_rdma(g);
	else if (g->src)
		rv_task_at(g->e->reactor, &g->copy, now(g));
	else
		begin_pull(g);
}

/* Checked from the answer, before anything of the stated size is allocated; the owner frees the staged copy. */
static bool too_long(struct rv_get *g)
{
	if (!g->max_len || g->len <= g->max_len)
		return false;
	say(g, "the payload has %" PRIu64 " bytes, the limit here is %" PRIu64, g->len, g->max_len);
	answer(g, -EMSGSIZE);
	g->release = true; /* nobody is left to read it */
	wind_up(g);
	return true;
}

static void begin_reserve(struct rv_get *g)
{
	int rc;

	if (too_long(g))
		return;

	if (!g->len) {
		begin_pull(g);
		return;
	}
	g->state = GET_RESERVE;
	rv_task_at(g->e->reactor, &g->deadline, step_deadline(g));
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
		say(g, "the owner's answer does not add up: %" PRIu64 " bytes in %u chunks of %u",
		    g->len, g->plan.chunk_count, g->plan.chunk_size);
		fail(g, -EPROTO);
		return;
	}
	if (g->path == RV_GET_RDMA) {
		say(g,
		    "the owner answered with chunks: see its velo_rendezvous_rdma_path_total for why");
		fail(g, -ENOTSUP);
		return;
	}
	begin_reserve(g);
}

static struct rv_fabric *fabric_of(const struct rv_get *g, unsigned backend)
{
	for (unsigned i = 0; i < g->e->conf.fabric_nr; i++) {
		if (g->e->conf.fabric[i]->ops->backend == backend)
			return g->e->conf.fabric[i];
	}
	return NULL;
}

static void on_rdma(struct rv_get *g, const struct rv_peer_call *call)
{
	struct rv_desc d;
	enum rv_refusal why;

	g->lease_id = call->rdma.lease_id;
	if (g->fell_back || !call->offer) {
		say(g,
		    "the owner answered with an RDMA descriptor for an acquire that carried no offer");
		fail(g, -EPROTO);
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
		fall_back(g, RV_PATH_DECODE_ERROR, rv_refusal_name(why));
		return;
	}
	g->rdma = true;
	/* The lease runs already, however long its destination takes. */
	if (g->proof.timeout_ns != RV_NEVER)
		rv_task_at(g->e->reactor, &g->renew, g->proof.at_ns + renew_period(g));
	g->len = d.len;
	g->remote_addr = d.addr;
	g->key_len = d.rkey_len;
	memcpy(g->key, d.rkey, d.rkey_len);
	begin_reserve(g);
}

static void acquired(struct rv_get *g, const struct rv_peer_call *call)
{
	if (call->rc) {
		say(g, "%s", call->text);
		fail(g, call->rc);
		return;
	}
	g->has_xxh3 = call->has_xxh3;
	g->xxh3 = call->xxh3;
	if (call->answer == RV_ANSWER_RDMA)
		on_rdma(g, call);
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

/* This node's own slots. */

/* Clients may write the source at any time, so the kernel does the copying. */
static void copy_slice(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_get *g = RV_CONTAINER(t, struct rv_get, copy);
	uint64_t n = rv_min_u64(COPY_SLICE, g->len - g->copied);
	ssize_t got;

	if (!g->asker) {
		wind_up(g);
		return;
	}
	got = pread(g->src->arena->pages.memfd, rv_block_ptr(g->block) + g->copied, n,
		    (off_t)(g->src->off + g->copied));
	if (got <= 0) {
		say(g, "copying from the arena failed: %s", strerrordesc_np(got ? errno : EIO));
		fail(g, -EIO);
		return;
	}
	g->copied += (uint64_t)got;
	if (g->copied < g->len) {
		rv_task_at(r, t, r->now_ns);
		return;
	}
	succeed(g, RV_PATH_LOCAL);
}

static void local_acquired(struct rv_port *p, struct rv_cell *c)
{
	struct rv_get *g = c->ctx;
	const struct rv_msg_acquire *m = (void *)c->body;

	(void)p;
	g->call_out = false;
	if (m->rc) {
		if (m->rc == -ENOENT)
			say(g, "no such handle on this node%s", rv_end_cause_suffix(m->cause));
		else
			say(g, "%s", rv_err_name(m->rc));
		fail(g, m->rc);
		return;
	}
	g->lease_id = m->lease_id;
	g->len = m->total_len;
	if (g->max_len && g->len > g->max_len) {
		g->src = m->block;
		g->src_engine = m->engine;
		too_long(g);
		return;
	}
	if (m->same_user || !m->block) {
		g->req->block = m->block;
		g->req->block_engine = m->engine;
		g->req->len = g->len;
		g->req->lease_id = g->lease_id;
		g->req->took = RV_PATH_LOCAL;
		g->req->text[0] = '\0';
		rv_counter_add(&g->e->stats.get_bytes[RV_PATH_LOCAL], g->len);
		answer(g, 0);
		g->lease_id = 0;
		wind_up(g);
		return;
	}
	g->src = m->block;
	g->src_engine = m->engine;
	g->copied = 0;
	begin_reserve(g);
}

static void begin_local(struct rv_get *g)
{
	struct rv_engine *owner = rv_engine_of(g->e->conf.set, g->handle.local);
	struct rv_msg_acquire *m = (void *)g->cell->body;

	if (!owner) {
		say(g, "no such handle on this node");
		fail(g, -ENOENT);
		return;
	}
	g->state = GET_LOCAL;
	*m = (struct rv_msg_acquire){
		.engine = owner,
		.local = g->handle.local,
		.worker = g->e->conf.worker,
		.for_us = true,
		.uid = g->uid,
	};
	g->cell->ctx = g;
	g->cell->run = rv_engine_run_acquire;
	g->cell->done = local_acquired;
	g->call_out = true;
	rv_engine_send(port_of(g), owner, g->cell);
}

/* Begin. */

/* What we may offer now; counts why not. *wait: worth asking again. */
static unsigned offer_now(struct rv_get *g, bool *wait, const char **why)
{
	struct rv_engine *e = g->e;
	enum rv_path_reason reason = RV_PATH_NO_OFFER;
	unsigned offer = 0;

	*wait = false;
	*why = "the owner's RDMA address is not known here: give it with `rvctl peer-add`";
	if (!e->conf.fabric_nr) {
		reason = RV_PATH_NOT_CONFIGURED;
		*why = "this node has no RDMA backend (ucx.enabled)";
	} else if (atomic_load_explicit(&e->conf.set->rdma_off, memory_order_relaxed)) {
		reason = RV_PATH_KILL_SWITCH;
		*why = "the kill switch is on";
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

/* Does this node do RDMA at all, now? */
static bool rdma_possible(const struct rv_engine *e)
{
	return e->conf.fabric_nr &&
	       !atomic_load_explicit(&e->conf.set->rdma_off, memory_order_relaxed);
}

static void begin(struct rv_get *g)
{
	unsigned offer = 0;
	const char *why = "";
	bool wait = false;

	if (g->path != RV_GET_CHUNKED)
		offer = offer_now(g, &wait, &why);
	if (offer || g->path != RV_GET_RDMA) {
		rv_task_at(g->e->reactor, &g->deadline, g->deadline_ns);
		begin_acquire(g, offer);
		return;
	}
	if (!wait) {
		say(g, "%s", why);
		fail(g, rdma_possible(g->e) ? -EHOSTUNREACH : -ENOTSUP);
		return;
	}
	say(g, "%s", why);
	if (g->state != GET_WIRING)
		g->wire_until_ns = step_deadline(g);
	g->state = GET_WIRING;
	rv_task_at(g->e->reactor, &g->deadline,
		   rv_min_u64(g->wire_until_ns, now(g) + WIRE_POLL_NS));
}

/* The fabric still owns the destination: answer now, force the endpoint down a lease timeout later. */
static void late_rdma(struct rv_get *g)
{
	uint64_t grace = g->proof.timeout_ns == RV_NEVER ? RV_SEC(30) : g->proof.timeout_ns;

	if (g->late) {
		g->fabric->ops->abandon(g->fabric, g->e->reactor->index, g->handle.worker);
		return;
	}
	g->late = true;
	rv_task_cancel(g->e->reactor, &g->renew);
	say(g, "the RDMA read did not end in time; its destination stays reserved until it does");
	answer(g, -ETIMEDOUT);
	rv_task_at(g->e->reactor, &g->deadline, rv_sat_add(now(g), grace));
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
		fail(g, -ETIMEDOUT);
		break;
	case GET_RDMA:
		late_rdma(g);
		break;
	case GET_PULL:
		if (g->e->conf.calls->ops->cancel(g->e->conf.calls, port_of(g), g->cell))
			rv_task_at(r, t, r->now_ns + RV_MS(1));
		break;
	case GET_RESERVE:
	case GET_VERIFY:
	case GET_COPY:
		say(g, g->state == GET_VERIFY ? "the content was not checked in time"
					      : "no memory could be had in time");
		answer(g, -ETIMEDOUT); /* reserved(), or the next slice, does the rest */
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
	struct rv_list *l = rv_list_pop(&e->free_gets);
	struct rv_cell *mine = l ? rv_cell_alloc(p) : NULL;
	struct rv_get *g;

	m->block = NULL;
	m->text[0] = '\0';
	if (!mine || e->draining) {
		if (mine)
			rv_cell_free(p, mine);
		if (l)
			rv_list_push(&e->free_gets, l);
		m->rc = e->draining ? -ESHUTDOWN : -EAGAIN;
		snprintf(m->text, sizeof(m->text), "%s",
			 e->draining ? "this node is shutting down"
				     : "too many gets under way here");
		rv_cell_reply(p, c);
		return;
	}
	g = RV_LIST_ENTRY(l, struct rv_get, link);
	*g = (struct rv_get){
		.e = e,
		.tag = ++e->last_tag,
		.asker = c,
		.req = m,
		.cell = mine,
		.handle = m->handle,
		.path = m->path,
		.uid = m->uid,
		.max_len = m->max_len,
		.lease_ns = m->lease_ns,
		.began_ns = e->reactor->now_ns,
		.deadline = {.fn = deadline_passed},
		.deadline_ns = m->deadline_ns,
		.state = GET_ACQUIRE,
		.renew = {.fn = renew_due},
		.copy = {.fn = copy_slice},
		.verify = {.fn = verify_slice},
	};
	rv_list_init(&g->link);
	rv_list_push(&e->live_gets, &g->link);
	rv_counter_add(&e->stats.gets, 1);
	if (g->handle.worker == e->conf.worker)
		begin_local(g);
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
			say(g, "this node is shutting down");
			fail(g, -ESHUTDOWN);
		}
	}
}
