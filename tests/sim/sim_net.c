/*
 * The carrier: connections between nodes, in a kernel and on wires of our own.
 *
 *   send() -> tx, read from the sender's memory piece by piece -> [sent()] -> wire, late -> place()
 *     -> written to the receiver's memory piece by piece -> frame()
 *
 * Reading and writing go on without the node's own steps, as a kernel's do; callbacks come from its net
 * reactor's poller only. Order holds within a connection, not between two. A connection may be cut at any
 * point: each end finds out in its own time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

#define FULL RV_MIB(8)

struct wire_frame {
	struct rv_list link;
	unsigned type;
	size_t header_len, len, read;
	uint8_t header[512];
	const uint8_t *payload; /* the sender's, or own */
	uint8_t *own, *buf;
	rv_sent_fn *sent;
	void *ctx;
	uint64_t at_ns; /* next piece is read; then: there for the receiver */
	bool ghost;     /* mutation: sent() was called before the end */
};

struct sim_link {
	struct rv_link link;
	struct rv_list all;
	struct sim_node *node;
	struct sim_link *peer;
	char name[32];
	unsigned to; /* dialed: whose place */
	uint16_t port;
	bool opened, reported; /* told to the messenger */
	uint64_t open_ns;      /* accepted: opened(); dialed: connected() */
	int connect_rc;
	bool closing;
	int close_rc;
	uint64_t close_ns;
	bool eof;
	uint64_t eof_ns;
	bool paused, was_full;
	uint64_t latency_ns, last_ns, frozen_until;
	size_t queued;
	struct rv_list tx, told, wire; /* wire: coming to us */

	struct wire_frame *rx; /* arriving */
	uint8_t *place, *old_place;
	size_t got;
	uint64_t piece_ns;
	bool direct, discard, displacing;
};

static struct sim_link *self(const struct rv_link *l)
{
	return RV_CONTAINER((struct rv_link *)(uintptr_t)l, struct sim_link, link);
}

static void frame_free(struct wire_frame *f)
{
	sim_free(f->own);
	sim_free(f->buf);
	sim_free(f);
}

static uint64_t delay(void)
{
	return sim_chance(850) ? sim_between(RV_US(1), RV_US(200))
			       : sim_between(RV_US(200), RV_MS(8));
}

/* What the messenger calls. */

static int link_send(struct rv_link *rl, unsigned type, const void *header, size_t header_len,
		     const void *payload, size_t payload_len, rv_sent_fn *sent, void *ctx)
{
	struct sim_link *l = self(rl);
	struct wire_frame *f;

	if (l->closing)
		return -ESHUTDOWN;
	if (sim_fault(sim.c.wire_fail))
		return -ENOMEM;
	f = sim_new(sizeof(*f));
	if (header_len > sizeof(f->header) || payload_len + header_len > RV_FRAME_MAX)
		sim_fail("carrier: a frame of %zu and %zu bytes", header_len, payload_len);
	f->type = type;
	memcpy(f->header, header, header_len);
	f->header_len = header_len;
	f->len = payload_len;
	f->buf = sim_new(payload_len);
	f->sent = sent;
	f->ctx = ctx;
	if (sent) {
		f->payload = payload;
	} else {
		f->own = sim_new(payload_len);
		if (payload_len)
			memcpy(f->own, payload, payload_len);
		f->payload = f->own;
	}
	f->at_ns = sim.now_ns;
	rv_list_push(&l->tx, &f->link);
	l->queued += header_len + payload_len;
	if (l->queued * sim.c.queue_scale >= FULL)
		l->was_full = true;
	return 0;
}

static bool link_displace(struct rv_link *rl)
{
	struct sim_link *l = self(rl);

	if (!l->rx || !l->place)
		return true;
	l->discard = true;
	if (l->direct) {
		l->displacing = true;
		return false;
	}
	l->old_place = l->place;
	l->place = NULL;
	return true;
}

static size_t link_queued(const struct rv_link *rl)
{
	return self(rl)->queued * sim.c.queue_scale;
}

static void link_pause(struct rv_link *rl, bool on)
{
	self(rl)->paused = on;
}

static void link_close(struct rv_link *rl, int rc)
{
	struct sim_link *l = self(rl);

	if (l->closing)
		return;
	l->closing = true;
	l->close_rc = rc;
	l->close_ns = sim.now_ns + sim_below(RV_US(100));
	if (!l->peer)
		return;
	l->peer->eof = true;
	l->peer->eof_ns = sim.now_ns + delay();
	if (sim_chance(300)) { /* a reset throws away what was not read */
		struct rv_list *it;

		while ((it = rv_list_pop(&l->peer->wire)))
			frame_free(RV_LIST_ENTRY(it, struct wire_frame, link));
	}
}

static const char *link_name(const struct rv_link *rl)
{
	return self(rl)->name;
}

static const struct rv_link_ops link_ops = {
	.send = link_send,
	.displace = link_displace,
	.queued = link_queued,
	.pause = link_pause,
	.close = link_close,
	.name = link_name,
};

static struct sim_link *link_new(struct sim_node *n)
{
	struct sim_link *l = sim_new(sizeof(*l));

	l->link.ops = &link_ops;
	l->node = n;
	l->latency_ns = sim_small(RV_US(1), RV_MS(2));
	rv_list_init(&l->tx);
	rv_list_init(&l->told);
	rv_list_init(&l->wire);
	rv_list_push(&n->carrier.links, &l->all);
	return l;
}

static struct rv_link *dial(struct rv_carrier *rc, const char *host, uint16_t port, void *link_user)
{
	struct sim_carrier *c = RV_CONTAINER(rc, struct sim_carrier, carrier);
	struct sim_link *l;

	if (sim_fault(sim.c.wire_fail))
		return NULL;
	l = link_new(c->poller.node);
	l->link.user = link_user;
	l->link.dialed = true;
	snprintf(l->name, sizeof(l->name), "%s:%u", host, port);
	l->to = SIM_NODES;
	for (unsigned i = 0; i < SIM_NODES; i++) {
		char name[16];

		sim_node_host(i, name);
		if (strcmp(name, host) == 0 && sim_node_port(i) == port)
			l->to = i;
	}
	l->open_ns = sim.now_ns + delay();
	return &l->link;
}

static const struct rv_carrier_ops carrier_ops = {.dial = dial};

/* The kernel's part. */

static void read_piece(struct sim_link *l, struct wire_frame *f)
{
	size_t left = f->len - f->read, n = left;

	if (left > 256 && sim_chance(400))
		n = sim_between(1, left);
	if (f->sent && sim.mutation == SIM_SENT_TOO_EARLY && !f->ghost) {
		f->ghost = true;
		f->at_ns = sim.now_ns + RV_MS(2);
		return;
	}
	if ((f->sent || f->ghost) && !sim_mem_readable(f->payload + f->read, n) &&
	    !sim_mem_allocated(f->payload, f->len))
		sim_fail("carrier: a payload is no longer mapped while it is sent");
	if (n)
		memcpy(f->buf + f->read, f->payload + f->read, n);
	f->read += n;
	f->at_ns = sim.now_ns + (sim_chance(700) ? sim_below(RV_US(50)) : sim_below(RV_MS(3)));
	(void)l;
}

static void frame_leaves(struct sim_link *l, struct wire_frame *f)
{
	struct wire_frame *t;

	rv_list_del(&f->link);
	l->queued -= f->header_len + f->len;
	if (l->peer && !l->closing) {
		t = sim_new(sizeof(*t));
		*t = *f;
		rv_list_init(&t->link);
		t->sent = NULL;
		t->own = NULL;
		f->buf = NULL;
		t->at_ns = rv_max_u64(l->last_ns,
				      sim.now_ns + l->latency_ns + sim_below(l->latency_ns));
		l->last_ns = t->at_ns;
		rv_list_push(&l->peer->wire, &t->link);
	}
	if (f->sent)
		rv_list_push(&l->told, &f->link);
	else
		frame_free(f);
}

static unsigned transmit(struct sim_link *l)
{
	unsigned n = 0;

	while (n < 16 && !rv_list_empty(&l->tx) && sim.now_ns >= l->frozen_until) {
		struct wire_frame *f = RV_LIST_ENTRY(l->tx.next, struct wire_frame, link);

		if (f->at_ns > sim.now_ns)
			break;
		n++;
		if (f->read < f->len)
			read_piece(l, f);
		if (f->read == f->len)
			frame_leaves(l, f);
	}
	return n;
}

static void write_piece(struct sim_link *l, size_t n)
{
	uint8_t *to = l->place;

	if (!to && sim.mutation == SIM_PLACE_KEPT && l->old_place) {
		to = l->old_place;
		sim.mutated = true;
	}
	if (to && !sim_mem_readable(to + l->got, n))
		sim_fail("carrier: a place is no longer mapped while it is written");
	if (to && n)
		memcpy(to + l->got, l->rx->buf + l->got, n);
	l->got += n;
}

/* A receive that is in the kernel goes on by itself. */
static unsigned receive_direct(struct sim_link *l)
{
	size_t left;

	if (!l->rx || !l->direct || l->piece_ns > sim.now_ns || l->got == l->rx->len)
		return 0;
	left = l->rx->len - l->got;
	write_piece(l, sim_chance(500) ? left : sim_between(1, left));
	l->piece_ns = sim.now_ns + sim_below(RV_US(200));
	return 1;
}

unsigned sim_net_device(void)
{
	unsigned work = 0;

	for (unsigned i = 0; i < SIM_NODES; i++) {
		struct rv_list *it;

		if (!sim.node[i])
			continue;
		RV_LIST_EACH(it, &sim.node[i]->carrier.links)
		{
			struct sim_link *l = RV_LIST_ENTRY(it, struct sim_link, all);

			if (l->opened)
				work += transmit(l);
			work += receive_direct(l);
		}
	}
	return work;
}

/* The net reactor's part: everything that calls the messenger. */

static const struct rv_carrier_events *events(void)
{
	return rv_messenger_events();
}

static void link_free(struct sim_link *l)
{
	struct rv_list *it;

	if (l->peer) {
		l->peer->peer = NULL;
		if (!l->peer->eof)
			l->peer->eof_ns = sim.now_ns + delay();
		l->peer->eof = true;
	}
	while ((it = rv_list_pop(&l->tx)) || (it = rv_list_pop(&l->told)) ||
	       (it = rv_list_pop(&l->wire)))
		frame_free(RV_LIST_ENTRY(it, struct wire_frame, link));
	if (l->rx)
		frame_free(l->rx);
	rv_list_del(&l->all);
	sim_free(l);
}

static void end_displace(struct sim_link *l)
{
	if (!l->displacing)
		return;
	l->displacing = false;
	l->old_place = l->place;
	l->place = NULL;
	events()->displaced(l->node->m, &l->link);
}

static void finish_close(struct sim_link *l)
{
	struct rv_list *it;
	struct wire_frame *f;

	end_displace(l);
	l->place = NULL;
	while ((it = rv_list_pop(&l->told)) || (it = rv_list_pop(&l->tx))) {
		f = RV_LIST_ENTRY(it, struct wire_frame, link);
		if (f->sent)
			f->sent(f->ctx, l->close_rc ? l->close_rc : -ESHUTDOWN);
		frame_free(f);
	}
	l->queued = 0;
	if (l->link.dialed && !l->reported) {
		l->reported = true;
		events()->connected(l->node->m, &l->link, l->close_rc);
	}
	events()->closed(l->node->m, &l->link, l->close_rc);
	link_free(l);
}

static void connect_done(struct sim_link *l)
{
	struct sim_node *to = l->to < SIM_NODES ? sim.node[l->to] : NULL;
	struct sim_link *p;

	if (sim_fault(sim.c.dial_fail)) {
		link_close(&l->link, sim_chance(500) ? -ETIMEDOUT : -ECONNREFUSED);
		return;
	}
	if (!to || !to->carrier.listening) {
		link_close(&l->link, -ECONNREFUSED);
		return;
	}
	p = link_new(to);
	p->open_ns = sim.now_ns + delay();
	p->peer = l;
	l->peer = p;
	l->opened = true;
	l->reported = true;
	events()->connected(l->node->m, &l->link, 0);
}

static bool open_up(struct sim_link *l)
{
	if (l->link.dialed) {
		connect_done(l);
		return true;
	}
	l->opened = true;
	if (events()->opened(l->node->m, &l->link))
		return true;
	link_free(l);
	return false;
}

static void tell_sent(struct sim_link *l)
{
	struct rv_list *it;

	while (!l->closing && (it = rv_list_pop(&l->told))) {
		struct wire_frame *f = RV_LIST_ENTRY(it, struct wire_frame, link);

		f->sent(f->ctx, 0);
		frame_free(f);
	}
	if (sim.mutation == SIM_SENT_TOO_EARLY) {
		RV_LIST_EACH(it, &l->tx)
		{
			struct wire_frame *f = RV_LIST_ENTRY(it, struct wire_frame, link);

			if (f->ghost && f->sent) {
				f->sent(f->ctx, 0);
				f->sent = NULL;
				sim.mutated = true;
				break;
			}
		}
	}
	if (l->was_full && l->queued * sim.c.queue_scale < FULL / 2 && !l->closing) {
		l->was_full = false;
		events()->drained(l->node->m, &l->link);
	}
}

static struct rv_frame frame_of(const struct sim_link *l)
{
	return (struct rv_frame){
		.type = l->rx->type,
		.header = l->rx->header,
		.header_len = l->rx->header_len,
		.payload = l->place ? l->place : l->rx->buf,
		.payload_len = l->rx->len,
		.placed = l->place != NULL,
	};
}

static bool begin_frame(struct sim_link *l)
{
	struct wire_frame *f;
	struct rv_frame head;

	if (rv_list_empty(&l->wire) || l->paused)
		return false;
	f = RV_LIST_ENTRY(l->wire.next, struct wire_frame, link);
	if (f->at_ns > sim.now_ns || sim.now_ns < l->frozen_until)
		return false;
	rv_list_del(&f->link);
	l->rx = f;
	l->got = 0;
	l->discard = false;
	l->place = NULL;
	l->old_place = NULL;
	l->direct = false;
	head = frame_of(l);
	head.payload = NULL;
	if (f->len)
		l->place = events()->place(l->node->m, &l->link, &head);
	/* A long payload is received in its place by the kernel, or waits half written. */
	l->direct = l->place && f->len >= 64 && sim_chance(500);
	l->piece_ns = sim.now_ns + (l->direct ? sim_small(0, RV_MS(2)) : 0);
	return true;
}

static bool go_on(struct sim_link *l)
{
	struct wire_frame *f = l->rx;
	struct rv_frame whole;

	if (l->direct && l->displacing) {
		if (sim_chance(300))
			return false; /* the cancelled receive has not come back */
		l->direct = false;
		end_displace(l);
	}
	if (l->direct && l->got < f->len)
		return false;
	l->direct = false;
	if (l->got < f->len) {
		size_t left = f->len - l->got;

		write_piece(l, left > 64 && sim_chance(200) ? sim_between(1, left) : left);
		if (l->got < f->len)
			return false;
	}
	whole = frame_of(l);
	l->rx = NULL;
	if (!l->discard && !l->place && f->type == RV_FRAME_RESPONSE)
		sim_fabric_granted(l->node, f->buf, f->len);
	if (!l->discard)
		events()->frame(l->node->m, &l->link, &whole);
	l->place = NULL;
	l->old_place = NULL;
	frame_free(f);
	return true;
}

static unsigned receive(struct sim_link *l)
{
	unsigned n = 0;

	for (unsigned max = (unsigned)sim_between(1, 6); n < max && !l->closing; n++) {
		if (!l->rx && !begin_frame(l))
			break;
		if (l->closing || !go_on(l))
			break;
	}
	if (!l->closing && l->eof && sim.now_ns >= l->eof_ns &&
	    (!l->peer || rv_list_empty(&l->wire)) &&
	    (rv_list_empty(&l->wire) || l->paused || sim_chance(200)) &&
	    !(l->rx && l->direct && sim_chance(500)))
		link_close(&l->link, -ECONNRESET);
	return n;
}

static unsigned poll_link(struct sim_link *l)
{
	if (l->closing) {
		if (l->close_ns > sim.now_ns)
			return 0;
		finish_close(l);
		return 1;
	}
	if (!l->opened) {
		if (l->open_ns > sim.now_ns)
			return 0;
		open_up(l);
		return 1;
	}
	tell_sent(l);
	return receive(l);
}

static unsigned carrier_poll(struct rv_poller *p, uint64_t now_ns)
{
	struct sim_poller *sp = RV_CONTAINER(p, struct sim_poller, poller);
	struct rv_list *it, *tmp;
	unsigned work = 0;

	(void)now_ns;
	RV_LIST_EACH_SAFE(it, tmp, &sp->node->carrier.links)
	work += poll_link(RV_LIST_ENTRY(it, struct sim_link, all));
	return work;
}

static const struct rv_poller_ops poller_ops = {.name = "sim carrier", .poll = carrier_poll};

void sim_carrier_init(struct sim_carrier *c, struct sim_node *n)
{
	*c = (struct sim_carrier){
		.carrier = {&carrier_ops},
		.poller = {.poller = {&poller_ops}, .node = n},
		.listening = true,
	};
	rv_list_init(&c->links);
}

/* Faults, and what others ask. */

static void cut(struct sim_link *l)
{
	struct sim_link *p = l->peer;
	struct rv_list *it;

	/* What is on the wire gets through or not; nothing behind a hole does. */
	for (struct rv_list *w = l->wire.next; w != &l->wire;) {
		it = w;
		w = w->next;
		if (!sim_chance(500))
			continue;
		while (it != &l->wire) {
			w = it->next;
			rv_list_del(it);
			frame_free(RV_LIST_ENTRY(it, struct wire_frame, link));
			it = w;
		}
		break;
	}
	l->peer = NULL;
	l->eof = true;
	l->eof_ns = sim.now_ns +
		    (sim_chance(sim.c.silent) ? sim_between(RV_MS(10), RV_SEC(3)) : delay());
	if (p && p->peer)
		cut(p);
}

void sim_net_cut_one(void)
{
	struct sim_node *n = sim.node[sim_below(SIM_NODES)];
	struct rv_list *it;
	unsigned nr = 0, pick;

	if (!n)
		return;
	RV_LIST_EACH(it, &n->carrier.links)
	nr++;
	if (!nr)
		return;
	pick = (unsigned)sim_below(nr);
	RV_LIST_EACH(it, &n->carrier.links)
	{
		struct sim_link *l = RV_LIST_ENTRY(it, struct sim_link, all);

		if (pick--)
			continue;
		if (sim_chance(sim.c.partition)) {
			l->frozen_until = sim.now_ns + sim_between(RV_MS(1), RV_MS(500));
			sim_trace("link of node %u freezes", n->at);
		} else if (l->opened && l->peer) {
			sim_trace("link of node %u is cut", n->at);
			sim.totals.cuts++;
			cut(l);
		}
		break;
	}
}

void sim_net_node_died(struct sim_node *n)
{
	while (!rv_list_empty(&n->carrier.links)) {
		struct sim_link *l = RV_LIST_ENTRY(n->carrier.links.next, struct sim_link, all);

		if (l->peer && sim_chance(sim.c.silent)) {
			l->peer->eof = true;
			l->peer->eof_ns = sim.now_ns + sim_between(RV_MS(10), RV_SEC(2));
		}
		link_free(l);
	}
}

uint64_t sim_carrier_queued(const struct sim_carrier *c)
{
	struct rv_list *it;
	uint64_t sum = 0;

	RV_LIST_EACH(it, &c->links)
	sum += RV_LIST_ENTRY(it, struct sim_link, all)->queued;
	return sum;
}

unsigned sim_carrier_links(const struct sim_carrier *c)
{
	struct rv_list *it;
	unsigned nr = 0;

	RV_LIST_EACH(it, &c->links)
	nr++;
	return nr;
}

unsigned sim_carrier_close_all(struct sim_carrier *c)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &c->links)
	link_close(&RV_LIST_ENTRY(it, struct sim_link, all)->link, -ESHUTDOWN);
	return sim_carrier_links(c);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return b > sim.now_ns && b < a ? b : a;
}

static uint64_t link_next(const struct sim_link *l)
{
	uint64_t t = RV_NEVER;

	t = earlier(t, l->opened ? RV_NEVER : l->open_ns);
	t = earlier(t, l->closing ? l->close_ns : RV_NEVER);
	t = earlier(t, l->eof ? l->eof_ns : RV_NEVER);
	t = earlier(t, l->frozen_until);
	if (!rv_list_empty(&l->tx))
		t = earlier(t, RV_LIST_ENTRY(l->tx.next, struct wire_frame, link)->at_ns);
	if (!rv_list_empty(&l->wire))
		t = earlier(t, RV_LIST_ENTRY(l->wire.next, struct wire_frame, link)->at_ns);
	if (l->rx && (!l->direct || l->displacing || l->got == l->rx->len))
		t = earlier(t, sim.now_ns + RV_US(1)); /* the next poll goes on with it */
	else if (l->rx)
		t = earlier(t, l->piece_ns);
	return t;
}

uint64_t sim_net_next(void)
{
	uint64_t t = RV_NEVER;

	for (unsigned i = 0; i < SIM_NODES; i++) {
		struct rv_list *it;

		if (!sim.node[i])
			continue;
		RV_LIST_EACH(it, &sim.node[i]->carrier.links)
		t = rv_min_u64(t, link_next(RV_LIST_ENTRY(it, struct sim_link, all)));
	}
	return t;
}

static bool overlaps(const uint8_t *a, uint64_t a_len, const uint8_t *b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

static bool frames_touch(const struct rv_list *frames, const uint8_t *base, uint64_t len)
{
	struct rv_list *it;

	RV_LIST_EACH(it, frames)
	{
		const struct wire_frame *f = RV_LIST_ENTRY(it, struct wire_frame, link);

		if (f->sent && overlaps(f->payload, f->len, base, len))
			return true;
	}
	return false;
}

const char *sim_net_pin(const struct sim_node *n, const uint8_t *base, uint64_t len)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &n->carrier.links)
	{
		const struct sim_link *l = RV_LIST_ENTRY(it, struct sim_link, all);

		if (frames_touch(&l->tx, base, len) || frames_touch(&l->told, base, len))
			return "a chunk is being sent from it";
		if (l->rx && l->place && overlaps(l->place, l->rx->len, base, len))
			return "a chunk is arriving in it";
	}
	return NULL;
}
