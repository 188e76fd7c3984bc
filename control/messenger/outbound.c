/*
 * peer_calls: typed calls of the engines become requests, and answers become outcomes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "control/json/rv_codec.h"
#include "control/messenger/headers.h"
#include "control/messenger/many_codec.h"
#include "control/messenger/messenger_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

/* A detach or release must reach the owner even if its get is out of time. */
#define ONEWAY_NS RV_SEC(10)

static struct rv_peer_call *call_of(const struct rv_call *c)
{
	return (struct rv_peer_call *)(void *)((struct rv_cell *)c->ctx)->body;
}

static int set_handler(struct rv_request_header *h, enum rv_call_kind kind, const char *name)
{
	h->kind = kind;
	h->name = name;
	h->name_len = (uint16_t)strlen(name);
	return 0;
}

static int encode_handle(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	const struct rv_peer_call *pc = call_of(c);

	rv_body_handle_encode(body, pc->handle);
	/* Where another node answers than the handle names, an acquire only asks it for the cause. */
	return set_handler(h, RV_CALL_UNARY, pc->op == RV_PEER_REF ? "_rv_ref" : "_rv_metadata");
}

/* @param bytes  the payload may come along */
static void put_headers(struct rv_call *c, const struct rv_peer_call *pc, bool bytes)
{
	char most[RV_HEADER_DIGITS], lease_ms[RV_HEADER_DIGITS];
	struct rv_header_pair pair[3];
	struct rv_writer w = rv_writer(c->headers, sizeof(c->headers));
	size_t nr = 0;

	if (bytes)
		pair[nr++] = rv_header_number(RV_HEADER_BYTES, most, pc->bytes_max);
	if (bytes && pc->ends)
		pair[nr++] = (struct rv_header_pair){RV_HEADER_ENDS, "1", 1};
	if (pc->lease_ms)
		pair[nr++] = rv_header_number(RV_HEADER_LEASE_MS, lease_ms, pc->lease_ms);
	if (!nr)
		return;
	RV_CHECK(!rv_headers_encode(&w, pair, nr));
	c->headers_len = (uint16_t)w.len;
}

static int encode_acquire(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	const struct rv_peer_call *pc = call_of(c);
	const struct rv_messenger *m = rv_messenger_of_cell(c->ctx);
	const struct rv_peer *p = rv_peers_find(&m->peers, pc->handle.worker);
	const struct rv_route *r = p ? p->link : NULL;
	bool bytes = pc->bytes_max && r && r->gives_bytes && r->control && !r->control->datagram;
	struct rv_body_acquire a = {
		.handle = pc->handle,
		.has_offer = pc->offer != 0,
		.offer = pc->offer,
		.verbs_qp = pc->offer_qp,
	};

	rv_body_acquire_encode(body, &a);
	put_headers(c, pc, bytes);
	return set_handler(h, RV_CALL_UNARY, bytes ? RV_GET : "_rv_acquire");
}

static int encode_many(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	const struct rv_peer_call *pc = call_of(c);
	const struct rv_messenger *m = rv_messenger_of_cell(c->ctx);
	const struct rv_peer *p = rv_peers_find(&m->peers, pc->handle.worker);
	const struct rv_route *r = p ? p->link : NULL;

	if (!r || r->other_owner || !r->gives_many || !r->control || r->control->datagram)
		return -ENOTSUP;
	rv_many_request_encode(body, pc->many, pc->bytes_max);
	return set_handler(h, RV_CALL_UNARY, RV_GET_MANY);
}

static int encode_lease(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	const struct rv_peer_call *pc = call_of(c);
	struct rv_body_lease l = {pc->handle, pc->lease_id};

	rv_body_lease_encode(body, &l);
	return set_handler(h, pc->sync ? RV_CALL_SYNC : RV_CALL_FIRE,
			   pc->op == RV_PEER_RENEW    ? "_rv_lease_renew"
			   : pc->op == RV_PEER_DETACH ? "_rv_detach"
						      : "_rv_release");
}

static bool says_not_found(const uint8_t *text, size_t len)
{
	static const char *const starts[] = {"rendezvous handle not found",
					     "_rv_ref: handle not found",
					     "slot vanished after lock acquire"};

	for (size_t i = 0; i < RV_ARRAY_NR(starts); i++) {
		if (len >= strlen(starts[i]) && memcmp(text, starts[i], strlen(starts[i])) == 0)
			return true;
	}
	return false;
}

/* What went wrong, in words; the peer's own where it said something. */
static void explain(struct rv_messenger *m, struct rv_peer_call *pc, const struct rv_call_answer *a)
{
	const struct rv_peer *p = rv_peers_find(&m->peers, pc->handle.worker);
	char why[RV_PEER_TEXT - 16];

	pc->rc = a->rc;
	if (a->rc == -EREMOTEIO || (a->rc == -ESHUTDOWN && a->len)) {
		if (says_not_found(a->payload, a->len))
			pc->rc = -ENOENT;
		snprintf(pc->text, sizeof(pc->text), "owner: %.*s",
			 (int)rv_min_u64(a->len, sizeof(pc->text) - 16), (const char *)a->payload);
		return;
	}
	if (p && p->link) {
		rv_route_why(p->link, a->rc, why, sizeof(why));
		snprintf(pc->text, sizeof(pc->text), "owner at %s", why);
	} else {
		snprintf(pc->text, sizeof(pc->text), "owner: %s", rv_err_name(a->rc));
	}
}

static int decode_grant(struct rv_peer_call *pc, const struct rv_call_answer *a, const char **why)
{
	struct rv_body_grant g;
	int rc = rv_body_grant_decode(a->payload, a->len, pc->rdma.desc, sizeof(pc->rdma.desc), &g,
				      why);

	if (rc)
		return rc;
	pc->has_xxh3 = g.has_xxh3;
	pc->xxh3 = g.xxh3;
	if (!g.is_rdma) {
		pc->answer = RV_ANSWER_READY;
		pc->ready.lease_id = g.ready.lease_id;
		pc->ready.transfer_id = g.ready.transfer_id;
		pc->ready.total_len = g.ready.total_len;
		pc->ready.chunk_size = g.ready.chunk_size;
		pc->ready.chunk_count = g.ready.chunk_count;
		return 0;
	}
	pc->answer = RV_ANSWER_RDMA;
	pc->rdma.lease_id = g.rdma.lease_id;
	pc->rdma.lease_timeout_ms = g.rdma.lease_timeout_ms;
	/* Longer than any key we take: the engine's decoder refuses the empty one in its stead. */
	pc->rdma.desc_len = g.rdma.descriptor ? g.rdma.descriptor_len : 0;
	return 0;
}

/* The payload came along. */
static int take_bytes(struct rv_peer_call *pc, const struct rv_call_answer *a, const char **why)
{
	if (a->len > pc->bytes_max) {
		*why = "more bytes than were asked for";
		return -EPROTO;
	}
	if (!a->placed && a->len)
		memcpy(pc->dst, a->payload, a->len);
	pc->has_xxh3 = rv_headers_find_u64(a->headers, a->headers_len, RV_HEADER_XXH3, &pc->xxh3);
	pc->answer = RV_ANSWER_BYTES;
	pc->ready.total_len = a->len;
	return 0;
}

/* Many payloads came along, or word that they did not. */
static int take_many(struct rv_peer_call *pc, const struct rv_call_answer *a, const char **why)
{
	*why = "what it says of its payloads is not in it";
	if (a->len > pc->bytes_max ||
	    rv_many_answer_decode(a->placed ? pc->dst : a->payload, a->len, pc->many))
		return -EPROTO;
	if (!a->placed)
		memcpy(pc->dst, a->payload, a->len);
	return 0;
}

/* @param[out] lease  that the owner granted with it; 0: none */
static int decode_acquired(struct rv_peer_call *pc, const struct rv_call_answer *a, uint64_t *lease,
			   const char **why)
{
	int rc;

	*lease = 0;
	if (!pc->bytes_max ||
	    !rv_headers_find_u64(a->headers, a->headers_len, RV_HEADER_LEASE, lease))
		return decode_grant(pc, a, why);
	rc = take_bytes(pc, a, why);
	pc->ready.lease_id = rc ? 0 : *lease;
	return rc;
}

static int decode_answer(struct rv_peer_call *pc, const struct rv_call_answer *a, bool asked_only,
			 uint64_t *lease, const char **why)
{
	struct rv_body_metadata md;
	int rc;

	if (pc->op == RV_PEER_ACQUIRE && !asked_only)
		return decode_acquired(pc, a, lease, why);
	if (pc->op == RV_PEER_MANY)
		return take_many(pc, a, why);
	if (pc->op != RV_PEER_METADATA)
		return 0;
	rc = rv_body_metadata_decode(a->payload, a->len, &md, why);
	if (rc)
		return rc;
	pc->meta.total_len = md.total_len;
	pc->meta.refcount = md.refcount;
	pc->meta.pinned = md.pinned;
	return 0;
}

/* A lease that nobody will use. */

static int encode_detach(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	struct rv_body_lease l = {c->handle, c->arg};

	rv_body_lease_encode(body, &l);
	return set_handler(h, RV_CALL_FIRE, "_rv_detach");
}

static void detached(struct rv_call *c, const struct rv_call_answer *a)
{
	(void)c;
	(void)a;
}

static void give_back(struct rv_messenger *m, struct rv_handle handle, uint64_t lease)
{
	struct rv_peer *p = rv_peers_find(&m->peers, handle.worker);
	struct rv_call *d;

	if (!lease || !p || !p->link)
		return;
	d = rv_call_begin(&m->calls, m->reactor->now_ns + ONEWAY_NS, detached, NULL);
	if (!d)
		return;
	d->handle = handle;
	d->arg = lease;
	d->oneway = true;
	d->encode = encode_detach;
	rv_route_submit(m, p->link, d);
}

static void answered(struct rv_call *c, const struct rv_call_answer *a)
{
	struct rv_cell *cell = c->ctx;
	struct rv_peer_call *pc = call_of(c);
	struct rv_messenger *m = rv_messenger_of_cell(cell);
	uint64_t lease = c->placed_lease; /* of a payload that broke off */
	struct rv_handle handle = pc->handle;
	const char *why = "";

	pc->rc = 0;
	pc->text[0] = '\0';
	pc->sent_ns = c->sent_ns;
	pc->replied_ns = m->reactor->conf.clock();
	if (a->rc) {
		explain(m, pc, a);
	} else if (c->arg && (pc->op == RV_PEER_ACQUIRE || pc->op == RV_PEER_REF)) {
		pc->rc = -ENOENT;
		snprintf(pc->text, sizeof(pc->text),
			 "owner: another node answers at that address: other owner");
	} else if (decode_answer(pc, a, c->arg != 0, &lease, &why)) {
		pc->rc = -EPROTO;
		snprintf(pc->text, sizeof(pc->text), "the owner's answer cannot be read: %s", why);
	}
	if (pc->rc)
		give_back(m, handle, lease);
	rv_cell_reply(m->reactor->port, cell);
}

/* The acquire timed out here and was granted all the same. */
static void granted_late(struct rv_call *c, const struct rv_call_answer *a)
{
	struct rv_messenger *m = rv_port_user(c->late_port);
	uint8_t desc[RV_PEER_DESC_MAX];
	struct rv_body_grant g;
	uint64_t lease;

	if (a->rc)
		return;
	if (rv_headers_find_u64(a->headers, a->headers_len, RV_HEADER_LEASE, &lease))
		give_back(m, c->handle, lease);
	else if (!rv_body_grant_decode(a->payload, a->len, desc, sizeof(desc), &g, NULL))
		give_back(m, c->handle, g.is_rdma ? g.rdma.lease_id : g.ready.lease_id);
}

static void refuse(struct rv_messenger *m, struct rv_cell *cell, int rc, const char *text)
{
	struct rv_peer_call *pc = (void *)cell->body;

	pc->rc = rc;
	snprintf(pc->text, sizeof(pc->text), "%s", text);
	rv_cell_reply(m->reactor->port, cell);
}

static void start_plain(struct rv_messenger *m, struct rv_route *r, struct rv_cell *cell)
{
	struct rv_peer_call *pc = (void *)cell->body;
	bool lease_op =
		pc->op == RV_PEER_DETACH || pc->op == RV_PEER_RELEASE || pc->op == RV_PEER_RENEW;
	uint64_t deadline = pc->deadline_ns;
	struct rv_call *c;

	if (lease_op && !pc->sync)
		deadline = rv_max_u64(deadline == RV_NEVER ? 0 : deadline,
				      m->reactor->now_ns + ONEWAY_NS);
	else if (deadline == RV_NEVER)
		deadline = rv_sat_add(m->reactor->now_ns, m->conf.call_timeout_ns);
	c = rv_call_begin(&m->calls, deadline, answered, cell);
	if (!c) {
		refuse(m, cell, -EAGAIN, "too many calls under way here");
		return;
	}
	c->handle = pc->handle;
	c->oneway = lease_op && !pc->sync;
	c->late_port = m->reactor->port;
	c->arg = r->other_owner;
	if (lease_op)
		c->encode = encode_lease;
	else if (pc->op == RV_PEER_ACQUIRE && !r->other_owner)
		c->encode = encode_acquire;
	else if (pc->op == RV_PEER_MANY)
		c->encode = encode_many;
	else
		c->encode = encode_handle;
	if (c->encode == encode_acquire)
		c->late = granted_late;
	if (c->encode == encode_acquire || c->encode == encode_many) {
		c->place = pc->bytes_max ? pc->dst : NULL;
		c->place_len = pc->bytes_max;
		c->place_upto = true;
	}
	rv_route_submit(m, r, c);
}

static void run_call(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_messenger *m = rv_port_user(port);
	struct rv_peer_call *pc = (void *)cell->body;
	struct rv_peer *p = rv_peers_find(&m->peers, pc->handle.worker);
	struct rv_route *r = p ? rv_route_of(m, p) : NULL;
	char text[RV_PEER_TEXT];

	if (!r) {
		snprintf(
			text, sizeof(text),
			"the owner (worker %" PRIu64
			") is not known here: give a reference (rv://HOST:PORT/HANDLE) or use `rvctl peer-add`",
			pc->handle.worker);
		refuse(m, cell, -EHOSTUNREACH, text);
		return;
	}
	if (pc->op == RV_PEER_PULL)
		rv_pull_start(m, r, cell);
	else
		start_plain(m, r, cell);
}

struct rv_messenger *rv_messenger_of_cell(const struct rv_cell *cell)
{
	const struct rv_peer_call *pc = (const void *)cell->body;

	return RV_CONTAINER(pc->via, struct rv_messenger, calls_iface);
}

static void start(struct rv_peer_calls *pc, struct rv_port *from, struct rv_cell *cell)
{
	struct rv_messenger *m = RV_CONTAINER(pc, struct rv_messenger, calls_iface);

	((struct rv_peer_call *)(void *)cell->body)->via = pc;
	cell->run = run_call;
	rv_cell_send(from, m->reactor->index, cell);
}

/* The pull's own cell is away, so the wish travels in another. */
struct cancel_msg {
	struct rv_messenger *m;
	struct rv_cell *pull;
};

static void run_cancel(struct rv_port *port, struct rv_cell *cell)
{
	struct cancel_msg *cm = (void *)cell->body;

	rv_pull_cancel(cm->m, cm->pull);
	rv_cell_reply(port, cell);
}

static void cancelled(struct rv_port *port, struct rv_cell *cell)
{
	rv_cell_free(port, cell);
}

static int cancel(struct rv_peer_calls *pc, struct rv_port *from, struct rv_cell *pull)
{
	struct rv_cell *cell = rv_cell_alloc(from);
	struct cancel_msg *cm;

	if (!cell)
		return -EAGAIN;
	cm = (void *)cell->body;
	*cm = (struct cancel_msg){RV_CONTAINER(pc, struct rv_messenger, calls_iface), pull};
	cell->run = run_cancel;
	cell->done = cancelled;
	rv_cell_send(from, cm->m->reactor->index, cell);
	return 0;
}

const struct rv_peer_calls_ops rv_messenger_peer_calls_ops = {.start = start, .cancel = cancel};

static void lease_ended(struct rv_port *port, struct rv_cell *c)
{
	rv_cell_free(port, c);
}

void rv_messenger_end_lease(struct rv_messenger *m, struct rv_cell *c, struct rv_handle h,
			    uint64_t lease_id, bool release)
{
	struct rv_port *port = m->reactor->port;
	struct rv_engine *e = rv_engine_of(m->conf.engines, h.local);

	c->done = lease_ended;
	if (h.worker != m->conf.worker) {
		*(struct rv_peer_call *)(void *)c->body = (struct rv_peer_call){
			.op = release ? RV_PEER_RELEASE : RV_PEER_DETACH,
			.handle = h,
			.lease_id = lease_id,
			.deadline_ns = RV_NEVER,
		};
		m->calls_iface.ops->start(&m->calls_iface, port, c);
		return;
	}
	RV_CHECK(e); /* it granted the lease */
	*(struct rv_msg_lease *)(void *)c->body = (struct rv_msg_lease){
		.engine = e,
		.op = release ? RV_LEASE_RELEASE : RV_LEASE_DETACH,
		.local = h.local,
		.lease_id = lease_id,
		.worker = h.worker,
	};
	c->run = rv_engine_run_lease;
	rv_engine_send(port, e, c);
}
