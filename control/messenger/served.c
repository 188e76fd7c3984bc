#include "control/messenger/served.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/messenger/headers.h"
#include "control/messenger/served_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

/* A request on its way to a program, or answered by none yet. */
struct inbound {
	struct rv_list link; /* rv_messenger.asked */
	uint64_t id;
	struct rv_messenger *m;
	struct rv_mlink *from;
	struct rv_msg_id msg_id;
	enum rv_call_kind kind;
	char name[RV_SERVED_NAME];
	const struct rv_server *server; /* it was delivered there */
	struct rv_handle staged;
	uint64_t budget_ends_ns; /* when the caller gives up; RV_NEVER: it did not say */
};

static bool name_is(const struct rv_served *sv, const char *name, size_t len)
{
	return strlen(sv->name) == len && memcmp(sv->name, name, len) == 0;
}

struct rv_served *rv_served_find(struct rv_messenger *m, const char *name, size_t len)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &m->served)
	{
		struct rv_served *sv = RV_LIST_ENTRY(it, struct rv_served, link);

		if (name_is(sv, name, len))
			return sv;
	}
	return NULL;
}

int rv_served_add(struct rv_messenger *m, const char *name, struct rv_server *server)
{
	struct rv_served *sv = rv_served_find(m, name, strlen(name));

	if (!name[0] || name[0] == '_' || strlen(name) >= sizeof(sv->name))
		return -EINVAL;
	if (sv)
		return sv->server == server ? 0 : -EEXIST;
	sv = calloc(1, sizeof(*sv));
	if (!sv)
		return -ENOMEM;
	memcpy(sv->name, name, strlen(name));
	sv->server = server;
	rv_list_push(&m->served, &sv->link);
	return 0;
}

int rv_served_remove(struct rv_messenger *m, const char *name, const struct rv_server *server)
{
	struct rv_served *sv = rv_served_find(m, name, strlen(name));

	if (!sv || sv->server != server)
		return -ENOENT;
	rv_list_del(&sv->link);
	free(sv);
	return 0;
}

/* Answers. */

static void forget(struct inbound *in)
{
	struct rv_messenger *m = in->m;

	rv_list_del(&in->link);
	rv_map64_del(&m->asked_by_id, in->id);
	m->serving--;
	in->from->asked--;
	rv_mlink_drop(in->from);
	free(in);
}

static void answer(struct inbound *in, bool failed, const void *body, size_t len)
{
	rv_inbound_answer(in->from, &in->msg_id, in->kind, failed, body, len);
	forget(in);
}

static void answer_text(struct inbound *in, const char *text)
{
	answer(in, true, text, strlen(text));
}

int rv_served_answer(struct rv_messenger *m, const struct rv_server *server, uint64_t id,
		     bool failed, const void *payload, size_t len)
{
	struct inbound *in = rv_map64_get(&m->asked_by_id, id);

	if (!in || in->server != server)
		return -ENOENT;
	if (len > RV_FRAME_MAX - RV_RESPONSE_HEADER_MIN) {
		answer_text(in, "Failed to serialize output: longer than a frame");
		return -EMSGSIZE;
	}
	answer(in, failed, payload, len);
	return 0;
}

void rv_served_remove_all(struct rv_messenger *m, const struct rv_server *server)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &m->served)
	{
		struct rv_served *sv = RV_LIST_ENTRY(it, struct rv_served, link);

		if (sv->server != server)
			continue;
		rv_list_del(&sv->link);
		free(sv);
	}
	RV_LIST_EACH_SAFE(it, tmp, &m->asked)
	{
		struct inbound *in = RV_LIST_ENTRY(it, struct inbound, link);

		if (in->server == server)
			answer_text(in, "Handler failed: the program that served it has gone");
	}
}

/* Delivery. */

static void deliver(struct inbound *in, const uint8_t *payload, uint64_t len,
		    struct rv_block *block, struct rv_engine *engine)
{
	/* Looked up again: a fetch takes time, and the name may be served by another program by now. */
	struct rv_served *sv = rv_served_find(in->m, in->name, strlen(in->name));
	struct rv_served_request r = {
		.id = in->kind == RV_CALL_FIRE ? 0 : in->id,
		.name = in->name,
		.worker = rv_msg_id_worker(&in->msg_id),
		.kind = in->kind,
		.payload = payload,
		.len = len,
		.block = block,
		.engine = engine,
	};
	char text[RV_SERVED_NAME + 32];

	in->server = sv ? sv->server : NULL;
	if (!sv || !sv->server->deliver(sv->server, &r)) {
		if (block)
			in->m->conf.drop_block(in->m->conf.drop_user, engine, block);
		snprintf(text, sizeof(text), "Handler '%s' not found", in->name);
		rv_inbound_nack(in->from, &in->msg_id, in->kind, text);
		forget(in);
		return;
	}
	if (in->kind == RV_CALL_FIRE)
		forget(in);
}

/* Staged payloads: fetched with an engine's get, released before the handler runs. */

static void fetch_failed(struct inbound *in, int rc, const char *why)
{
	char text[RV_MSG_TEXT + 48];
	enum rv_refused_payload reason =
		rc == -EMSGSIZE ? RV_REFUSED_TOO_LONG : RV_REFUSED_FETCH_FAILED;

	if (rc == -ETIMEDOUT)
		reason = RV_REFUSED_TIMEOUT;
	rv_counter_add(&in->m->refused_payloads[reason], 1);
	/* The caller's own timer has run out or is about to: a reply would race it with another error. */
	if (rc == -ETIMEDOUT && in->m->reactor->conf.clock() >= in->budget_ends_ns) {
		forget(in);
		return;
	}
	if (in->kind == RV_CALL_FIRE)
		rv_log_warn("messenger: a staged message to '%s' is lost: %s", in->name, why);
	snprintf(text, sizeof(text), "Failed to resolve large payload: %s%s", why,
		 rc == -ETIMEDOUT ? " (the fetch did not finish in time)" : "");
	rv_inbound_nack(in->from, &in->msg_id, in->kind, text);
	forget(in);
}

static void fetched(struct rv_port *port, struct rv_cell *c)
{
	struct inbound *in = c->ctx;
	struct rv_messenger *m = in->m;
	struct rv_msg_get g = *(struct rv_msg_get *)(void *)c->body;

	if (g.rc) {
		rv_cell_free(port, c);
		fetch_failed(in, g.rc, g.text[0] ? g.text : rv_err_name(g.rc));
		return;
	}
	rv_messenger_end_lease(m, c, g.handle, g.lease_id, true);
	deliver(in, NULL, g.len, g.block, g.block_engine);
}

static void fetch(struct inbound *in, uid_t uid)
{
	struct rv_messenger *m = in->m;
	struct rv_cell *c = rv_cell_alloc(m->reactor->port);
	uint64_t limit = m->conf.staged_fetch_timeout_ns, ends, now_ns = m->reactor->conf.clock();
	struct rv_msg_get *g;

	if (!c) {
		fetch_failed(in, -EAGAIN, "this node is too busy");
		return;
	}
	ends = rv_min_u64(in->budget_ends_ns, rv_sat_add(now_ns, limit));
	g = (void *)c->body;
	*g = (struct rv_msg_get){
		.engine = m->conf.engines->engine[in->id % m->conf.engines->nr],
		.handle = in->staged,
		.deadline_ns = ends,
		.uid = uid,
		.max_len = m->conf.staged_payload_max,
		.lease_ns = ends == RV_NEVER
				    ? 0
				    : rv_max_u64(RV_MS(1), ends - rv_min_u64(ends, now_ns)),
	};
	c->ctx = in;
	c->run = rv_engine_run_get;
	c->done = fetched;
	rv_engine_send(m->reactor->port, g->engine, c);
}

static struct inbound *inbound_new(struct rv_messenger *m, struct rv_served *sv, struct rv_mlink *l,
				   const struct rv_request_header *h)
{
	struct inbound *in = calloc(1, sizeof(*in));

	if (!in)
		return NULL;
	*in = (struct inbound){
		.id = ++m->last_asked,
		.m = m,
		.from = l,
		.msg_id = h->id,
		.kind = h->kind,
		.budget_ends_ns = RV_NEVER,
	};
	memcpy(in->name, sv->name, sizeof(in->name));
	if (rv_map64_put(&m->asked_by_id, in->id, in)) {
		free(in);
		return NULL;
	}
	rv_list_push(&m->asked, &in->link);
	rv_mlink_hold(l);
	l->asked++;
	m->serving++;
	return in;
}

void rv_served_dispatch(struct rv_messenger *m, struct rv_served *sv, struct rv_mlink *l,
			const struct rv_request_header *h, const struct rv_frame *f)
{
	struct inbound *in = NULL;
	uint64_t ms;
	int rc;

	/* The link must go on reading: the answers to what the programs ask in turn may come on it. */
	if (l->asked >= RV_LINK_ASKED) {
		rv_inbound_nack(l, &h->id, h->kind, "Handler failed: ordered lane queue full");
		return;
	}
	in = inbound_new(m, sv, l, h);
	if (!in) {
		rv_inbound_nack(l, &h->id, h->kind, "Handler failed: out of memory");
		return;
	}
	rc = rv_headers_find_staged(h->headers, h->headers_len, &in->staged);
	if (rc == -ENOENT) {
		deliver(in, f->payload, f->payload_len, NULL, NULL);
		return;
	}
	/* From now, not from when the pass began: it must not end before the caller's own timer. */
	if (rv_headers_find_ms(h->headers, h->headers_len, RV_HEADER_BUDGET_MS, &ms))
		in->budget_ends_ns = rv_sat_add(m->reactor->conf.clock(),
						ms > RV_NEVER / RV_MS(1) ? RV_NEVER : RV_MS(ms));
	if (rc)
		fetch_failed(in, rc, "invalid rendezvous handle: not a 128-bit decimal");
	else
		fetch(in, sv->server->uid);
}

void rv_served_fini(struct rv_messenger *m)
{
	struct rv_list *it;

	while ((it = rv_list_pop(&m->asked)))
		free(RV_LIST_ENTRY(it, struct inbound, link));
	while ((it = rv_list_pop(&m->served)))
		free(RV_LIST_ENTRY(it, struct rv_served, link));
	rv_map64_fini(&m->asked_by_id);
}

/* Calls of local programs. */

struct outcall {
	struct rv_messenger *m;
	char handler[RV_SERVED_NAME];
	enum rv_call_kind kind;
	void (*done)(void *ctx, const struct rv_called *r);
	void *ctx;
};

static int encode(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	const struct outcall *o = c->ctx;

	(void)body; /* c->body, or nothing */
	h->kind = o->kind;
	h->name = o->handler;
	h->name_len = (uint16_t)strlen(o->handler);
	return 0;
}

static void called(struct rv_call *c, const struct rv_call_answer *a)
{
	struct outcall *o = c->ctx;
	struct rv_called r = {.rc = a->rc, .text = rv_err_name(a->rc)};
	struct rv_peer *p = rv_peers_find(&o->m->peers, c->handle.worker);
	char why[200], text[512];

	if (!a->rc) {
		r.payload = a->payload;
		r.len = a->len;
	} else if (a->rc == -EREMOTEIO || a->rc == -ESHUTDOWN) {
		snprintf(text, sizeof(text), "peer: %.*s",
			 (int)rv_min_u64(a->len, sizeof(text) - 8), (const char *)a->payload);
		r.text = text;
	} else if (p && p->link) {
		rv_route_why(p->link, a->rc, why, sizeof(why));
		snprintf(text, sizeof(text), "peer at %s", why);
		r.text = text;
	}
	o->done(o->ctx, &r);
	free(o);
}

static void refuse(void (*done)(void *ctx, const struct rv_called *r), void *ctx, int rc,
		   const char *text)
{
	struct rv_called r = {.rc = rc, .text = text};

	done(ctx, &r);
}

/* The handle, and what is left of the caller's time: written by the send that staged, and by no other. */
static int put_staging(struct rv_call *c, const struct rv_call_request *q)
{
	char handle[RV_HANDLE_TEXT], budget[24];
	struct rv_header_pair pairs[2] = {{RV_HEADER_STAGED, handle, 0},
					  {RV_HEADER_BUDGET_MS, budget, 0}};
	struct rv_writer w = rv_writer(c->headers, sizeof(c->headers));
	int rc;

	pairs[0].val_len = rv_handle_format_text(q->staged, handle);
	pairs[1].val_len =
		(size_t)snprintf(budget, sizeof(budget), "%" PRIu64,
				 q->timeout_ns / RV_MS(1) + (q->timeout_ns % RV_MS(1) != 0));
	rc = rv_headers_encode(&w, pairs, q->timeout_ns ? 2 : 1);
	c->headers_len = (uint16_t)w.len;
	return rc;
}

void rv_served_call(struct rv_messenger *m, const struct rv_call_request *q,
		    void (*done)(void *ctx, const struct rv_called *r), void *ctx)
{
	uint64_t timeout = q->timeout_ns ? q->timeout_ns : m->conf.call_timeout_ns;
	struct rv_peer *p = rv_peers_find(&m->peers, q->worker);
	struct rv_route *r = p ? rv_route_of(m, p) : NULL;
	struct outcall *o = r ? calloc(1, sizeof(*o)) : NULL;
	struct rv_call *c;

	if (!r) {
		refuse(done, ctx, -EHOSTUNREACH,
		       "the peer is not known here: use `rvctl peer-add`");
		return;
	}
	c = o ? rv_call_begin(&m->calls, rv_sat_add(m->reactor->now_ns, timeout), called, o) : NULL;
	if (!c) {
		free(o);
		refuse(done, ctx, -EAGAIN, "too many calls under way here");
		return;
	}
	*o = (struct outcall){.m = m, .kind = q->kind, .done = done, .ctx = ctx};
	snprintf(o->handler, sizeof(o->handler), "%s", q->handler);
	c->handle.worker = q->worker;
	c->encode = encode;
	c->oneway = q->kind == RV_CALL_FIRE;
	if (q->len) {
		c->body = malloc(q->len);
		if (c->body)
			memcpy(c->body, q->payload, q->len);
		c->body_len = q->len;
	}
	if ((q->len && !c->body) || (q->staged.local && put_staging(c, q))) {
		rv_messenger_end_call(m, c, -ENOMEM);
		return;
	}
	rv_route_submit(m, r, c);
}
