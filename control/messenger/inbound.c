/*
 * Requests from peers: who handles them, and the built-in handlers. Chunks are in transfers.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/json/rv_codec.h"
#include "control/messenger/headers.h"
#include "control/messenger/inbound_impl.h"
#include "control/messenger/served_impl.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/chunk_plan.h"

#define DEFER_NS        RV_MS(1)
/* Names of local programs that are listed; a scratch buffer holds them all. */
#define HANDLERS_LISTED 512u

struct handler {
	const char *name;
	bool am; /* gives no result: velo's "am" handlers */
	bool while_draining;
	void (*run)(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		    size_t len);
};

/* Later answers: the request rides in a heap record behind the cell. */

struct pending {
	struct request rq;
	struct rv_messenger *m;
	struct rv_handle handle;
	const char *name;
};

static struct pending *pending_new(struct rv_messenger *m, const struct request *rq,
				   struct rv_handle h, struct rv_cell **cell)
{
	struct pending *p = rv_slab_take(&m->pending);

	*cell = p ? rv_cell_alloc(m->reactor->port) : NULL;
	if (!*cell) {
		if (p)
			rv_slab_give(&m->pending, p);
		return NULL;
	}
	*p = (struct pending){.rq = *rq, .m = m, .handle = h};
	(*cell)->ctx = p;
	rv_mlink_hold(rq->link);
	rq->link->requests++;
	m->serving++;
	return p;
}

/* The cell stays: it still has something to do. */
static void pending_done(struct pending *p)
{
	p->m->serving--;
	rv_mlink_request_done(p->rq.link);
	rv_mlink_drop(p->rq.link);
	rv_slab_give(&p->m->pending, p);
}

static void pending_end(struct pending *p, struct rv_cell *cell)
{
	rv_cell_free(p->m->reactor->port, cell);
	pending_done(p);
}

/* Whose handle is it? Stock nodes look only at the low half; so do we, but a foreign one is not served. */
static const char *foreign_suffix(const struct rv_messenger *m, uint64_t worker)
{
	if (worker == m->conf.worker)
		return NULL;
	for (size_t i = 0; i < m->conf.former_nr; i++) {
		if (m->conf.former[i] == worker)
			return ": owner restarted";
	}
	return ": other owner";
}

static void not_found(const struct request *rq, const char *prefix, struct rv_handle h,
		      const char *suffix)
{
	rv_answer_error(rq, "%s: DataHandle(worker=%" PRIu64 ", local=%" PRIu64 ")%s", prefix,
			h.worker, h.local, suffix ? suffix : "");
}

/* The engine that owns @h, or NULL after a refusal was sent. */
static struct rv_engine *owner_of(struct rv_messenger *m, const struct request *rq,
				  const char *prefix, struct rv_handle h)
{
	const char *foreign = foreign_suffix(m, h.worker);
	struct rv_engine *e = foreign ? NULL : rv_engine_of(m->conf.engines, h.local);

	if (!e)
		not_found(rq, prefix, h, foreign);
	return e;
}

#define REF_NOT_FOUND "_rv_ref: handle not found"

/* _rv_metadata, _rv_ref */

static void slot_answered(struct rv_port *port, struct rv_cell *cell)
{
	struct pending *p = cell->ctx;
	const struct rv_msg_slot *s = (void *)cell->body;
	bool ref = s->op == RV_SLOT_REF;
	char body[RV_BODY_SMALL];
	struct rv_writer w = rv_writer(body, sizeof(body));

	(void)port;
	if (s->rc == -ENOENT) {
		not_found(&p->rq, ref ? REF_NOT_FOUND : NOT_FOUND, p->handle,
			  rv_end_cause_suffix(s->cause));
	} else if (s->rc) {
		rv_answer_error(&p->rq, BUSY);
	} else if (ref) {
		rv_answer_ok(&p->rq, NULL, 0);
	} else {
		struct rv_body_metadata md = {s->total_len, s->refcount, s->pinned};

		rv_body_metadata_encode(&w, &md);
		rv_answer_ok(&p->rq, body, w.len);
	}
	pending_end(p, cell);
}

static void run_slot(struct rv_messenger *m, const struct request *rq, struct rv_handle h,
		     enum rv_slot_op op)
{
	struct rv_engine *e = owner_of(m, rq, op == RV_SLOT_REF ? REF_NOT_FOUND : NOT_FOUND, h);
	struct rv_cell *cell;

	if (!e)
		return;
	if (!pending_new(m, rq, h, &cell)) {
		rv_answer_error(rq, BUSY);
		return;
	}
	*(struct rv_msg_slot *)(void *)cell->body =
		(struct rv_msg_slot){.engine = e, .op = op, .local = h.local};
	cell->run = rv_engine_run_slot;
	cell->done = slot_answered;
	rv_engine_send(m->reactor->port, e, cell);
}

static void run_metadata(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			 size_t len)
{
	struct rv_handle h;
	const char *why;

	if (rv_body_handle_decode(body, len, &h, &why))
		rv_answer_error(rq, "Failed to deserialize input: %s", why);
	else
		run_slot(m, rq, h, RV_SLOT_METADATA);
}

static void run_ref(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		    size_t len)
{
	struct rv_handle h;
	const char *why;

	if (rv_body_handle_decode(body, len, &h, &why))
		rv_answer_error(rq, "%s", why);
	else
		run_slot(m, rq, h, RV_SLOT_REF);
}

/* _rv_acquire */

static void grant_ready(struct pending *p, const struct rv_msg_acquire *a,
			const struct rv_transfer *t)
{
	char body[RV_BODY_SMALL];
	struct rv_writer w = rv_writer(body, sizeof(body));
	struct rv_body_grant g = {
		.has_xxh3 = a->has_xxh3,
		.xxh3 = a->xxh3,
		.ready =
			{
				.lease_id = a->lease_id,
				.transfer_id = t->rec.id,
				.total_len = a->total_len,
				.chunk_size = a->chunk_size,
				.chunk_count =
					(uint32_t)rv_chunk_count(a->total_len, a->chunk_size),
			},
	};

	rv_body_grant_encode(&w, &g);
	rv_answer_ok(&p->rq, body, w.len);
}

static void grant_rdma(struct pending *p, const struct rv_msg_acquire *a)
{
	char body[4 * RV_PEER_DESC_MAX + 256];
	struct rv_writer w = rv_writer(body, sizeof(body));
	struct rv_body_grant g = {
		.is_rdma = true,
		.has_xxh3 = a->has_xxh3,
		.xxh3 = a->xxh3,
		.rdma =
			{
				.lease_id = a->lease_id,
				.descriptor = a->desc,
				.descriptor_len = a->desc_len,
				.lease_timeout_ms = a->lease_timeout_ms,
			},
	};

	rv_body_grant_encode(&w, &g);
	rv_answer_ok(&p->rq, body, w.len);
}

/* No transfer could be made: the lease that was granted must not stay. The acquire's own cell takes it back. */
static void take_lease_back(struct rv_messenger *m, struct rv_cell *cell)
{
	struct rv_msg_acquire a = *(struct rv_msg_acquire *)(void *)cell->body;

	*(struct rv_msg_lease *)(void *)cell->body = (struct rv_msg_lease){
		.engine = a.engine,
		.op = RV_LEASE_DETACH,
		.local = a.local,
		.lease_id = a.lease_id,
		.worker = a.worker,
	};
	cell->run = rv_engine_run_lease;
	cell->done = rv_lease_forgotten;
	rv_engine_send(m->reactor->port, a.engine, cell);
}

static void acquire_answered(struct rv_port *port, struct rv_cell *cell)
{
	struct pending *p = cell->ctx;
	struct rv_messenger *m = p->m;
	const struct rv_msg_acquire *a = (void *)cell->body;
	const struct rv_transfer *t;

	(void)port;
	if (!a->rc && a->answer == RV_ANSWER_BYTES) {
		rv_answer_bytes(m, &p->rq, cell);
		pending_done(p);
		return;
	}
	if (a->rc == -ENOENT) {
		not_found(&p->rq, NOT_FOUND, p->handle, rv_end_cause_suffix(a->cause));
	} else if (a->rc) {
		rv_answer_error(&p->rq, BUSY);
	} else if (a->answer == RV_ANSWER_RDMA) {
		grant_rdma(p, a);
	} else {
		t = rv_transfer_new(m, a);
		if (t)
			grant_ready(p, a, t);
		else
			rv_answer_error(&p->rq, BUSY);
		if (!t) {
			pending_done(p);
			take_lease_back(m, cell);
			return;
		}
	}
	pending_end(p, cell);
}

/* @param bytes_max  of a payload that goes with the answer; 0: none  @param ends  it takes no lease then */
static void acquire(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		    size_t len, uint64_t bytes_max, bool ends)
{
	struct rv_body_acquire b;
	struct rv_engine *e;
	struct rv_cell *cell;
	const char *why;

	if (rv_body_acquire_decode(body, len, &b, &why)) {
		rv_answer_error(rq, "Failed to deserialize input: %s", why);
		return;
	}
	if (rq->kind != RV_CALL_UNARY) {
		/* Nobody would learn the lease's id, so none is granted. */
		rv_answer_ok(rq, NULL, 0);
		return;
	}
	e = owner_of(m, rq, NOT_FOUND, b.handle);
	if (!e)
		return;
	if (!pending_new(m, rq, b.handle, &cell)) {
		rv_answer_error(rq, BUSY);
		return;
	}
	*(struct rv_msg_acquire *)(void *)cell->body = (struct rv_msg_acquire){
		.engine = e,
		.local = b.handle.local,
		.worker = rv_msg_id_worker(&rq->id),
		.has_offer = b.has_offer,
		.offer = b.offer,
		.offer_qp = b.verbs_qp,
		.chunk_lease_ns =
			rq->lease_ms > RV_NEVER / RV_MS(1) ? RV_NEVER : RV_MS(rq->lease_ms),
		.bytes_max = bytes_max,
		.ends = ends,
	};
	cell->run = rv_engine_run_acquire;
	cell->done = acquire_answered;
	rv_engine_send(m->reactor->port, e, cell);
}

static void run_acquire(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			size_t len)
{
	acquire(m, rq, body, len, 0, false);
}

static void run_get(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		    size_t len)
{
	acquire(m, rq, body, len, rq->link->datagram ? 0 : rq->bytes_max, rq->ends != 0);
}

/* _rv_lease_renew, _rv_detach, _rv_release */

struct deferred {
	struct rv_list link;
	struct request rq;
	struct rv_handle handle;
	uint64_t lease_id;
	enum rv_lease_op op;
};

static const char *lease_op_name(enum rv_lease_op op)
{
	static const char *const names[] = {
		[RV_LEASE_RENEW] = "_rv_lease_renew",
		[RV_LEASE_DETACH] = "_rv_detach",
		[RV_LEASE_RELEASE] = "_rv_release",
	};

	return names[op];
}

static void lease_answered(struct rv_port *port, struct rv_cell *cell)
{
	struct pending *p = cell->ctx;
	const struct rv_msg_lease *l = (void *)cell->body;

	(void)port;
	/* Stock owners ack a dead lease too; a nack is what lets our own consumers prove one alive. */
	rv_answer_am(&p->rq, lease_op_name(l->op),
		     l->rc ? "rendezvous lease is over: lease lost" : NULL);
	pending_end(p, cell);
}

static bool try_lease(struct rv_messenger *m, const struct request *rq, struct rv_handle h,
		      uint64_t lease_id, enum rv_lease_op op)
{
	struct rv_engine *e =
		foreign_suffix(m, h.worker) ? NULL : rv_engine_of(m->conf.engines, h.local);
	struct rv_cell *cell;

	if (!e) {
		rv_answer_am(rq, lease_op_name(op), "rendezvous lease is over: lease lost");
		return true;
	}
	if (!pending_new(m, rq, h, &cell))
		return false;
	*(struct rv_msg_lease *)(void *)cell->body = (struct rv_msg_lease){
		.engine = e,
		.op = op,
		.local = h.local,
		.lease_id = lease_id,
		.worker = rv_msg_id_worker(&rq->id),
		.arrival_ns = rq->arrival_ns,
	};
	cell->run = rv_engine_run_lease;
	cell->done = lease_answered;
	rv_engine_send(m->reactor->port, e, cell);
	return true;
}

/* The end of a lease must not get lost because cells are scarce for a moment. */
static void defer(struct rv_messenger *m, const struct request *rq, struct rv_handle h,
		  uint64_t lease_id, enum rv_lease_op op)
{
	struct deferred *d = malloc(sizeof(*d));

	if (!d) {
		rv_answer_error(rq, BUSY);
		return;
	}
	*d = (struct deferred){.rq = *rq, .handle = h, .lease_id = lease_id, .op = op};
	rv_mlink_hold(rq->link);
	rq->link->requests++; /* enough of these pause the link */
	rv_list_push(&m->deferred, &d->link);
	if (!m->deferred_task.timer.armed)
		rv_task_at(m->reactor, &m->deferred_task, m->reactor->now_ns + DEFER_NS);
}

static void deferred_due(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_messenger *m = RV_CONTAINER(t, struct rv_messenger, deferred_task);

	while (!rv_list_empty(&m->deferred)) {
		struct deferred *d = RV_LIST_ENTRY(m->deferred.next, struct deferred, link);

		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		if (!try_lease(m, &d->rq, d->handle, d->lease_id, d->op)) {
			rv_task_at(r, t, r->now_ns + DEFER_NS);
			return;
		}
		rv_list_del(&d->link);
		rv_mlink_request_done(d->rq.link);
		rv_mlink_drop(d->rq.link);
		free(d);
	}
}

static void run_lease(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		      size_t len, enum rv_lease_op op)
{
	struct rv_body_lease b;
	const char *why;

	if (rv_body_lease_decode(body, len, &b, &why))
		rv_answer_am(rq, lease_op_name(op), why);
	else if (!try_lease(m, rq, b.handle, b.lease_id, op))
		defer(m, rq, b.handle, b.lease_id, op);
}

static void run_renew(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		      size_t len)
{
	run_lease(m, rq, body, len, RV_LEASE_RENEW);
}

static void run_detach(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		       size_t len)
{
	run_lease(m, rq, body, len, RV_LEASE_DETACH);
}

static void run_release(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			size_t len)
{
	run_lease(m, rq, body, len, RV_LEASE_RELEASE);
}

/* _rvd_goodbye */

struct goodbye {
	struct rv_messenger *m;
	struct request rq;
};

void rv_inbound_retired(void *user, void *ctx, int rc)
{
	struct goodbye *g = ctx;

	(void)user;
	if (rc)
		rv_answer_error(&g->rq, "the way between us is in use");
	else
		rv_answer_ok(&g->rq, NULL, 0);
	g->m->serving--;
	rv_mlink_drop(g->rq.link);
	free(g);
}

static void run_goodbye(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			size_t len)
{
	uint64_t worker = rv_msg_id_worker(&rq->id);
	struct rv_carrier *c = rv_messenger_paired(m, worker, body, len);
	struct goodbye *g;

	if (!c) {
		rv_answer_ok(rq, NULL, 0); /* nothing of ours goes that way */
		return;
	}
	g = malloc(sizeof(*g));
	if (!g) {
		rv_answer_error(rq, BUSY);
		return;
	}
	*g = (struct goodbye){m, *rq};
	if (c->ops->retire(c, worker, false, g)) {
		rv_answer_error(rq, BUSY);
		free(g);
		return;
	}
	rv_mlink_hold(rq->link);
	m->serving++;
	/* cppcheck-suppress memleak ; retire() has it, and hands it to retired() */
}

/* _hello, _list_handlers */

static void answer_handlers(struct rv_messenger *m, const struct request *rq);

static void run_hello(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		      size_t len)
{
	enum rv_rejected_hello reason;
	struct rv_peer_info pi;
	const char *why = "";
	int rc = rv_body_hello_decode(body, len, &pi, &why);

	if (rc) {
		rv_counter_add(&m->rejected_hellos[RV_REJECTED_MALFORMED], 1);
		rv_answer_error(rq, "Failed to deserialize input: %s", why);
		return;
	}
	if (memcmp(pi.instance, m->conf.instance, sizeof(pi.instance)) == 0) {
		/* We dialed ourselves, by an address that was given for a peer's: the answer says who is there. */
		rv_peer_info_fini(&pi);
		answer_handlers(m, rq);
		return;
	}
	rc = rv_messenger_hear(m, &pi, rq->link->link->ops->name(rq->link->link), &why);
	rv_peer_info_fini(&pi);
	if (rc) {
		reason = rc == -ENOMEM ? RV_REJECTED_NO_ROOM : RV_REJECTED_UNUSABLE;
		rv_counter_add(&m->rejected_hellos[reason], 1);
		rv_answer_error(rq, "%s", why);
	} else {
		answer_handlers(m, rq);
	}
}

static void run_list_handlers(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			      size_t len)
{
	if (len && (len != 4 || memcmp(body, "null", 4) != 0))
		rv_answer_error(rq, "Failed to deserialize input: expected null");
	else
		answer_handlers(m, rq);
}

static const struct handler handlers[] = {
	{"_hello", false, false, run_hello},
	{"_list_handlers", false, false, run_list_handlers},
	{"_rv_metadata", false, false, run_metadata},
	{"_rv_acquire", false, true, run_acquire},
	{"_rv_pull", false, true, rv_inbound_pull},
	{"_rv_ref", false, false, run_ref},
	{"_rv_detach", true, true, run_detach},
	{"_rv_release", true, true, run_release},
	{"_rv_lease_renew", true, true, run_renew},
	{RV_GET, false, true, run_get},
	{RV_GET_MANY, false, true, rv_inbound_get_many},
	{RV_GOODBYE, false, true, run_goodbye},
};

static void answer_handlers(struct rv_messenger *m, const struct request *rq)
{
	struct rv_peer_info pi = {.address = m->address, .address_len = m->address_len};
	struct rv_writer w = rv_writer(m->scratch, sizeof(m->scratch));
	const char *names[RV_ARRAY_NR(handlers) + HANDLERS_LISTED];
	size_t nr = RV_ARRAY_NR(handlers);
	struct rv_list *it;

	for (size_t i = 0; i < nr; i++)
		names[i] = handlers[i].name;
	RV_LIST_EACH(it, &m->served)
	{
		if (nr < RV_ARRAY_NR(names))
			names[nr++] = RV_LIST_ENTRY(it, struct rv_served, link)->name;
	}
	memcpy(pi.instance, m->conf.instance, sizeof(pi.instance));
	rv_body_handlers_encode(&w, names, nr, &pi);
	if (w.bad)
		rv_answer_error(rq, "Failed to serialize output: too long");
	else
		rv_answer_ok(rq, m->scratch, w.len);
}

static const struct handler *find_handler(const struct rv_request_header *h)
{
	for (size_t i = 0; i < RV_ARRAY_NR(handlers); i++) {
		if (strlen(handlers[i].name) == h->name_len &&
		    memcmp(handlers[i].name, h->name, h->name_len) == 0)
			return &handlers[i];
	}
	return NULL;
}

void rv_inbound_answer(struct rv_mlink *l, const struct rv_msg_id *id, enum rv_call_kind kind,
		       bool error, const void *body, size_t len)
{
	if (kind == RV_CALL_UNARY)
		rv_answer_response(l, id, error, body, len, NULL, NULL);
	else if (kind == RV_CALL_SYNC)
		rv_answer_ack(l, id, error, error ? body : NULL,
			      error ? len : 0); /* a result is discarded */
}

/* Errors that stock nodes send as an ack whatever the kind of call. */
void rv_inbound_nack(struct rv_mlink *l, const struct rv_msg_id *id, enum rv_call_kind kind,
		     const char *text)
{
	if (kind != RV_CALL_FIRE)
		rv_answer_ack(l, id, true, text, strlen(text));
}

static void no_such_handler(struct rv_mlink *l, const struct rv_request_header *h, const char *fmt)
{
	char text[400];

	snprintf(text, sizeof(text), fmt, (int)rv_min_u64(h->name_len, 256), h->name);
	rv_inbound_nack(l, &h->id, h->kind, text);
}

bool rv_messenger_refuses(void *user, const uint8_t *header, size_t len)
{
	const struct rv_messenger *m = user;
	struct rv_request_header h;
	const struct handler *hd;

	if (!rv_messenger_is_draining(m) || rv_request_header_decode(header, len, &h))
		return false;
	hd = find_handler(&h);
	return !(hd && hd->while_draining);
}

static void refuse(struct rv_mlink *l, const struct rv_request_header *h, const struct rv_frame *f)
{
	struct rv_link *link = rv_answer_link(l, rv_msg_id_worker(&h->id));

	if (link)
		link->ops->send(link, RV_FRAME_SHUTTING_DOWN, f->header, f->header_len, NULL, 0,
				NULL, NULL);
}

/*
 * Datagrams cannot be left unread: beyond what a connection would be paused at, calls are told "busy", and the
 * ends of leases, which nobody would repeat, are taken for a while longer.
 */
static bool too_many(const struct rv_mlink *l, enum rv_call_kind kind)
{
	return l->datagram &&
	       l->requests >= (kind == RV_CALL_FIRE ? RV_LINK_ASKED : RV_LINK_REQUESTS);
}

void rv_inbound_message(struct rv_messenger *m, struct rv_mlink *l, const struct rv_frame *f)
{
	struct rv_mlink *known;
	struct rv_request_header h;
	const struct handler *hd;
	struct rv_served *sv;
	struct request rq;
	struct rv_header_pair want[] = {{.key = RV_HEADER_STAGED},
					{.key = RV_HEADER_LEASE_MS},
					{.key = RV_HEADER_BYTES},
					{.key = RV_HEADER_ENDS}};

	if (rv_request_header_decode(f->header, f->header_len, &h) ||
	    rv_headers_check(h.headers, h.headers_len))
		return; /* dropped without an answer, as everywhere */
	known = l->datagram ? rv_mlink_reach(m, rv_msg_id_worker(&h.id)) : NULL;
	l = known ? known : l; /* a stranger's first message, its `_hello`, is the common link's */
	rq = (struct request){.link = l,
			      .id = h.id,
			      .kind = h.kind,
			      .arrival_ns = m->reactor->conf.clock()};
	hd = find_handler(&h);
	if (rv_messenger_is_draining(m) && !(hd && hd->while_draining)) {
		refuse(l, &h, f);
		return;
	}
	if (too_many(l, h.kind)) {
		rv_inbound_nack(l, &h.id, h.kind, BUSY);
		return;
	}
	sv = hd ? NULL : rv_served_find(m, h.name, h.name_len);
	if (sv) {
		rv_served_dispatch(m, sv, l, &h, f);
		return;
	}
	if (!hd) {
		no_such_handler(l, &h, "Handler '%.*s' not found");
		return;
	}
	if (rv_headers_find_each(h.headers, h.headers_len, want, RV_ARRAY_NR(want)) ||
	    want[0].val) {
		/* A body of a built-in handler is never as long as a staged payload. */
		no_such_handler(l, &h, "Failed to resolve large payload: not taken by '%.*s'");
		return;
	}
	rv_header_u64(&want[1], &rq.lease_ms);
	rv_header_u64(&want[2], &rq.bytes_max);
	rv_header_u64(&want[3], &rq.ends);
	hd->run(m, &rq, f->payload, f->payload_len);
}

int rv_inbound_init(struct rv_messenger *m)
{
	rv_list_init(&m->deferred);
	rv_slab_init(&m->pending, sizeof(struct pending), 256);
	m->deferred_task.fn = deferred_due;
	rv_many_init(m);
	return rv_transfers_init(m);
}

void rv_inbound_fini(struct rv_messenger *m)
{
	while (!rv_list_empty(&m->deferred)) {
		struct deferred *d =
			RV_LIST_ENTRY(rv_list_pop(&m->deferred), struct deferred, link);

		rv_mlink_drop(d->rq.link);
		free(d);
	}
	rv_slab_fini(&m->pending);
	rv_many_fini(m);
	rv_transfers_fini(m);
}
