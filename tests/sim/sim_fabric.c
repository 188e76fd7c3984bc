/*
 * The fabric: a device that reads other nodes' memory, sooner, later, in part, or never.
 *
 * Native: the owner need not do anything; a key whose pages are not registered any more is refused.
 * Emulated: software of the owner reads whatever address it was told, in a pass of its own, and nobody
 * checks. Bytes that were read are written some time later. A GET that was given up may go on writing
 * until it is told done.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "control/json/rv_codec.h"
#include "dataplane/rendezvous/descriptor.h"
#include "tests/sim/sim.h"

#define KEY_MAGIC 0x73696d6bu
#define GRANTS    256

struct sim_map {
	struct rv_fabric_map m;
	struct rv_list link;
	uint64_t id;
};

/* Of a lease's own key `map` is its number. */
struct sim_key {
	uint32_t magic, of_lease;
	uint64_t life, map;
};

struct sim_lease_key {
	struct rv_fabric_key k;
	struct rv_list link;
	uint64_t id, worker;
	uint64_t addr, len;
};

/* A GET under way. */
struct xfer {
	struct rv_list link;
	struct rv_fabric_get *g;
	struct sim_node *node;
	unsigned reactor;
	uint64_t life; /* the owner's */
	uint64_t addr, len;
	uint8_t *local;
	struct sim_key key;
	uint8_t *buf;
	uint64_t read, written, piece, gap_ns, next_ns;
	uint64_t fail_at; /* bytes after which it fails; RV_NEVER */
	bool hangs, aborted, ended, dead_seen;
	uint64_t end_ns;
	int rc;

	/* The owner's lease it runs under, as far as it can be told. */
	unsigned lease_engine;
	uint64_t lease, until_ns;

	bool ghost; /* mutation: done, and writes once more */
};

static uint64_t last_map;

static struct sim_fabric *self(struct rv_fabric *f)
{
	return RV_CONTAINER(f, struct sim_fabric, fabric);
}

static struct xfer *xfer_of(struct rv_list *it)
{
	return RV_LIST_ENTRY(it, struct xfer, link);
}

/* Pages. */

static int map(struct rv_fabric *f, void *base, uint64_t len, enum rv_map_access access,
	       struct rv_fabric_map **out)
{
	struct sim_fabric *sf = self(f);
	struct sim_map *m;

	if (sim_fault(sim.c.map_fail))
		return sim_chance(500) ? -ENOMEM : -EPERM;
	if (!sim_mem_readable(base, len))
		sim_fail("fabric: pages are registered that are not mapped");
	sim_check_gone(sf->node, base, len, "registered anew");
	m = sim_new(sizeof(*m));
	m->id = ++last_map;
	m->m.base = base;
	m->m.len = len;
	if (access != RV_MAP_DESTINATION) {
		struct sim_key k = {.magic = KEY_MAGIC, .life = sf->node->life, .map = m->id};

		memcpy(m->m.key, &k, sizeof(k));
		m->m.key_len = sizeof(k);
	}
	rv_list_push(&sf->maps, &m->link);
	*out = &m->m;
	return 0;
}

static int unmap(struct rv_fabric *f, struct rv_fabric_map *fm)
{
	struct sim_fabric *sf = self(f);
	struct sim_map *m = RV_CONTAINER(fm, struct sim_map, m);

	if (sf->node->stop >= SIM_STOP_DEMOTE || sim_client_maps(fm->base))
		sim_check_unwritten(sf->node, fm->base, fm->len, "deregistered");
	else
		sim_check_gone(sf->node, fm->base, fm->len, "deregistered");
	rv_list_del(&m->link);
	sim_free(m);
	if (!sim_fault(sim.c.unmap_fail))
		return 0;
	sf->unconfirmed++;
	return -EIO;
}

static int export_key(struct rv_fabric *f, struct rv_fabric_map *m, void *addr, uint64_t len,
		      const struct rv_fabric_reader *to, struct rv_fabric_key **out)
{
	struct sim_fabric *sf = self(f);
	struct sim_lease_key *k;
	struct sim_key bytes = {.magic = KEY_MAGIC, .of_lease = 1, .life = sf->node->life};
	uint64_t off = (uint64_t)((uint8_t *)addr - (uint8_t *)m->base);

	if (off > m->len || len > m->len - off)
		sim_fail("fabric: a key for a range that is not in its map");
	if (sim_fault(sim.c.map_fail))
		return sim_chance(500) ? -ENOMEM : -EPERM;
	k = sim_new(sizeof(*k));
	k->id = bytes.map = ++last_map;
	k->worker = to->worker;
	k->addr = (uintptr_t)addr;
	k->len = len;
	k->k.pinned = rv_granules(len) * RV_GRANULE;
	memcpy(k->k.key, &bytes, sizeof(bytes));
	k->k.key_len = sizeof(bytes);
	rv_list_init(&k->link);
	rv_list_push(&sf->keys, &k->link);
	*out = &k->k;
	return 0;
}

static int revoke_key(struct rv_fabric *f, struct rv_fabric_key *fk)
{
	struct sim_lease_key *k = RV_CONTAINER(fk, struct sim_lease_key, k);

	if (sim_fault(sim.c.unmap_fail)) {
		self(f)->unconfirmed++; /* it goes on reading */
		return -EIO;
	}
	if (sim.mutation == SIM_KEY_NOT_REVOKED) {
		sim.mutated = true;
		return 0;
	}
	rv_list_del(&k->link);
	sim_free(k);
	return 0;
}

static const struct sim_lease_key *lease_key(const struct sim_node *owner, const struct sim_key *k)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &owner->fabric.keys)
	{
		const struct sim_lease_key *l = RV_LIST_ENTRY(it, struct sim_lease_key, link);

		if (l->id == k->map && owner->life == k->life)
			return l;
	}
	return NULL;
}

static struct sim_map *map_of_key(const struct sim_node *owner, const struct sim_key *k)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &owner->fabric.maps)
	{
		struct sim_map *m = RV_LIST_ENTRY(it, struct sim_map, link);

		if (m->id == k->map && owner->life == k->life)
			return m;
	}
	return NULL;
}

unsigned sim_fabric_maps(const struct sim_fabric *f)
{
	struct rv_list *it;
	unsigned nr = 0;

	RV_LIST_EACH(it, &f->maps)
	nr++;
	return nr;
}

/* Peers. */

static struct sim_peer *peer_find(struct sim_fabric *f, unsigned reactor, uint64_t worker)
{
	for (unsigned i = 0; i < f->peer_nr[reactor]; i++) {
		if (f->peer[reactor][i].worker == worker)
			return &f->peer[reactor][i];
	}
	return NULL;
}

static void abort_xfer(struct xfer *x)
{
	if (x->aborted || x->ended)
		return;
	x->aborted = true;
	x->end_ns = sim.now_ns + sim_small(0, RV_MS(30));
	x->rc = -ECONNRESET;
}

static void abort_all(struct sim_node *n, unsigned reactor, uint64_t life)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &sim.xfers)
	{
		struct xfer *x = xfer_of(it);

		if (x->node == n && x->reactor == reactor && (!life || x->life == life))
			abort_xfer(x);
	}
}

static void ep_failed(struct sim_node *n, unsigned reactor, struct sim_peer *p)
{
	p->state = SIM_EP_FAILED;
	p->at_ns = sim.now_ns + sim_between(RV_US(10), RV_MS(20));
	abort_all(n, reactor, p->life);
}

static int peer_up(struct rv_fabric *f, unsigned reactor, const struct rv_fabric_peer *in)
{
	struct sim_fabric *sf = self(f);
	struct sim_peer *p = peer_find(sf, reactor, in->worker);
	uint64_t life;

	if (in->addr_len != 4 + sizeof(life))
		return -EPROTO;
	memcpy(&life, in->addr + 4, sizeof(life));
	if (p && p->life == life)
		return 0;
	if (!p) {
		if (sf->peer_nr[reactor] == SIM_PEERS)
			return -ENOMEM;
		p = &sf->peer[reactor][sf->peer_nr[reactor]++];
	} else {
		ep_failed(sf->node, reactor, p);
	}
	*p = (struct sim_peer){.worker = in->worker, .life = life};
	return 0;
}

static void peer_down(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	struct sim_fabric *sf = self(f);
	struct sim_peer *p = peer_find(sf, reactor, worker);

	if (!p)
		return;
	ep_failed(sf->node, reactor, p);
	*p = sf->peer[reactor][--sf->peer_nr[reactor]];
}

/* Creating an endpoint holds the whole reactor up, and nobody else. */
static void wire(struct sim_node *n, unsigned reactor, struct sim_peer *p)
{
	if (sim_fault(sim.c.block))
		sim_world_go_on_without(n, reactor, sim.now_ns + sim_small(RV_MS(1), RV_MS(400)));
	p->state = SIM_EP_WIRING;
	p->at_ns = sim.now_ns + sim_small(0, RV_MS(5));
}

static enum rv_peer_state peer_state(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	struct sim_fabric *sf = self(f);
	struct sim_peer *p = peer_find(sf, reactor, worker);

	if (!p)
		return RV_PEER_UNKNOWN;
	if (sf->quiescing[reactor])
		return RV_PEER_FAILED;
	if (p->state == SIM_EP_FAILED && sim.now_ns >= p->at_ns)
		p->state = SIM_EP_IDLE;
	if (p->state == SIM_EP_IDLE)
		wire(sf->node, reactor, p);
	if (p->state == SIM_EP_WIRING && sim.now_ns >= p->at_ns) {
		p->state = sim_node_of_life(p->life) && !sim_fault(sim.c.get_fail) ? SIM_EP_UP
										   : SIM_EP_FAILED;
		p->at_ns = sim.now_ns + sim_between(RV_MS(1), RV_MS(20));
	}
	return p->state == SIM_EP_UP       ? RV_PEER_UP
	       : p->state == SIM_EP_FAILED ? RV_PEER_FAILED
					   : RV_PEER_WIRING;
}

/* GETs. */

/*
 * Which lease of the owner's protects this GET? The answers to acquires tell, as they come in; where two
 * name the same bytes and were not used yet, there is doubt, and nothing is claimed.
 */
static struct grant {
	uint64_t life, addr, lease;
} grant[GRANTS];
static unsigned grant_nr;

void sim_fabric_granted(const struct sim_node *n, const void *body, size_t len)
{
	uint8_t buf[RV_PEER_DESC_MAX];
	struct rv_body_grant g;
	struct rv_desc d;
	const char *why;

	if (!memmem(body, len, "descriptor", 10) ||
	    rv_body_grant_decode(body, len, buf, sizeof(buf), &g, &why) || !g.is_rdma ||
	    rv_desc_decode(g.rdma.descriptor, g.rdma.descriptor_len, &d) != RV_ACCEPT)
		return;
	grant[grant_nr++ % GRANTS] = (struct grant){n->life, d.addr, g.rdma.lease_id};
}

static void find_lease(struct xfer *x)
{
	struct sim_node *o = sim_node_of_life(x->life);
	struct grant *found = NULL;
	const struct rv_lease *l;

	for (unsigned i = 0; i < GRANTS && i < grant_nr; i++) {
		if (grant[i].life != x->node->life || grant[i].addr != x->addr)
			continue;
		if (found)
			return;
		found = &grant[i];
	}
	if (!o || !found)
		return;
	x->lease_engine = rv_local_reactor(found->lease);
	l = x->lease_engine < o->set.nr
		    ? rv_idtab_get(&o->engine[x->lease_engine].store.leases, found->lease)
		    : NULL;
	if (l && l->slot) {
		x->lease = found->lease;
		x->until_ns = l->deadline.timer.deadline_ns;
	}
	found->life = 0;
}

void sim_fabric_watch(void)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &sim.xfers)
	{
		struct xfer *x = xfer_of(it);
		struct sim_node *o = x->lease ? sim_node_of_life(x->life) : NULL;
		const struct rv_lease *l;

		if (!o)
			continue;
		l = rv_idtab_get(&o->engine[x->lease_engine].store.leases, x->lease);
		if (l && l->slot)
			x->until_ns = rv_max_u64(x->until_ns, l->deadline.timer.deadline_ns);
	}
}

static void fate(struct xfer *x)
{
	x->fail_at = RV_NEVER;
	x->piece = sim_chance(600) ? x->len : sim_between(1, x->len);
	if (x->piece < x->len / 8)
		x->piece = x->len / 8 + 1;
	x->gap_ns = sim_small(RV_US(1), RV_MS(3));
	if (sim_fault(sim.c.get_fail)) {
		x->fail_at = sim_below(x->len + 1);
	} else if (sim_fault(sim.c.get_hang)) {
		x->hangs = true;
		x->fail_at = sim_below(x->len + 1);
	} else if (sim_fault(sim.c.get_late)) {
		x->gap_ns = sim_between(sim.c.lease_timeout_ns / 4, 3 * sim.c.lease_timeout_ns);
	}
	x->next_ns = sim.now_ns + sim_below(x->gap_ns + 1);
}

static int get(struct rv_fabric *f, unsigned reactor, struct rv_fabric_get *g)
{
	struct sim_fabric *sf = self(f);
	struct sim_peer *p = peer_find(sf, reactor, g->worker);
	uintptr_t base = (uintptr_t)(g->local_map ? g->local_map->base : NULL),
		  at = (uintptr_t)g->local;
	struct xfer *x;

	if (!g->local_map || at < base || at + g->len > base + g->local_map->len)
		sim_fail("fabric: a GET's destination is not in its map");
	if (sf->quiescing[reactor])
		return -ESHUTDOWN;
	if (peer_state(f, reactor, g->worker) != RV_PEER_UP)
		return -EHOSTUNREACH;
	if (g->key_len != sizeof(x->key) || sim_fault(sim.c.get_fail / 4))
		return -EPROTO;
	x = sim_new(sizeof(*x));
	memcpy(&x->key, g->key, sizeof(x->key));
	if (x->key.magic != KEY_MAGIC)
		sim_fail("fabric: a key's bytes were changed on their way");
	x->g = g;
	x->node = sf->node;
	x->reactor = reactor;
	x->life = p->life;
	x->addr = g->remote_addr;
	x->len = g->len;
	x->local = g->local;
	x->buf = sim_new(x->len);
	fate(x);
	find_lease(x);
	rv_list_init(&x->link);
	rv_list_push(&sim.xfers, &x->link);
	if (sim.mutation == SIM_CLOCK_BEHIND) {
		if (!sf->node->frozen_ns)
			sf->node->frozen_ns = sim.now_ns;
		sim.mutated = true;
	}
	return 0;
}

static void abandon(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	struct sim_fabric *sf = self(f);
	struct sim_peer *p = peer_find(sf, reactor, worker);

	if (!p)
		return;
	abort_all(sf->node, reactor, p->life);
	p->state = SIM_EP_IDLE;
}

static unsigned outstanding(struct rv_fabric *f, unsigned reactor)
{
	struct sim_fabric *sf = self(f);
	struct rv_list *it;
	unsigned nr = 0;

	RV_LIST_EACH(it, &sim.xfers)
	{
		const struct xfer *x = xfer_of(it);

		nr += x->node == sf->node && x->reactor == reactor && !x->ghost;
	}
	return nr;
}

static int quiesce(struct rv_fabric *f, unsigned reactor)
{
	struct sim_fabric *sf = self(f);

	sf->quiescing[reactor] = true;
	abort_all(sf->node, reactor, 0);
	return outstanding(f, reactor) ? -EAGAIN : 0;
}

/* The device. */

static void end(struct xfer *x, int rc)
{
	x->ended = true;
	x->rc = rc;
}

static void read_now(struct xfer *x, uint64_t n)
{
	const uint8_t *from = (const uint8_t *)(uintptr_t)x->addr + x->read;

	if (!sim_mem_readable(from, n))
		sim_fail("fabric: a GET reads memory that was unmapped, of node life %" PRIu64,
			 x->life);
	memcpy(x->buf + x->read, from, n);
	x->read += n;
}

static void read_native(struct xfer *x, const struct sim_node *owner)
{
	const struct sim_map *m = map_of_key(owner, &x->key);
	uint64_t off = m ? x->addr - (uintptr_t)m->m.base : 0;

	if (x->key.of_lease) {
		const struct sim_lease_key *k = lease_key(owner, &x->key);

		if (k && (k->addr != x->addr || k->len != x->len || k->worker != x->node->worker))
			sim_fail("fabric: a lease's key is used for something else");
		if (k)
			read_now(x, rv_min_u64(x->piece, x->len - x->read));
		else
			end(x, -ECONNRESET); /* revoked: remote access error */
		return;
	}
	if (!m || off > m->m.len || x->len > m->m.len - off) {
		end(x, -ECONNRESET); /* remote access error */
		return;
	}
	read_now(x, rv_min_u64(x->piece, x->len - x->read));
}

static void write_now(struct xfer *x)
{
	if (!sim_mem_readable(x->local + x->written, x->read - x->written))
		sim_fail("fabric: a GET writes memory that was unmapped");
	memcpy(x->local + x->written, x->buf + x->written, x->read - x->written);
	x->written = x->read;
}

/* Nobody answers: some find out, some wait for ever. */
static void owner_gone(struct xfer *x)
{
	if (x->dead_seen)
		return;
	x->dead_seen = true;
	if (sim_chance(600)) {
		x->aborted = true;
		x->rc = -ECONNRESET;
		x->end_ns = sim.now_ns + sim_small(RV_US(10), RV_MS(100));
	}
}

static void advance(struct xfer *x)
{
	struct sim_node *owner = sim_node_of_life(x->life);

	x->next_ns = sim.now_ns + sim_between(1, x->gap_ns);
	if (x->written < x->read) {
		write_now(x);
		if (x->written == x->len)
			end(x, 0);
		return;
	}
	if (x->read >= x->fail_at) {
		if (!x->hangs)
			end(x, -ECONNRESET);
		return;
	}
	if (!owner)
		owner_gone(x);
	else
		read_native(x, owner);
}

/* Nothing happens by itself any more; what was read is still written. */
static bool stuck(const struct xfer *x)
{
	if (x->written < x->read)
		return false;
	if (x->read >= x->fail_at)
		return x->hangs;
	if (!sim_node_of_life(x->life))
		return x->dead_seen;
	return !sim.c.native; /* the owner's next pass */
}

static void ghost_writes(struct xfer *x)
{
	if (sim_mem_readable(x->local, x->len)) {
		memset(x->local, 0x5e, x->len);
		sim.mutated = true;
	}
	rv_list_del(&x->link);
	sim_free(x->buf);
	sim_free(x);
}

unsigned sim_fabric_device(void)
{
	struct rv_list *it, *tmp;
	unsigned work = 0;

	RV_LIST_EACH_SAFE(it, tmp, &sim.xfers)
	{
		struct xfer *x = xfer_of(it);

		if (x->ghost) {
			if (x->next_ns <= sim.now_ns)
				ghost_writes(x);
			continue;
		}
		if (x->ended)
			continue;
		if (x->aborted && sim.now_ns >= x->end_ns) {
			end(x, -ECONNRESET);
			work++;
		} else if (sim.now_ns >= x->next_ns && !stuck(x)) {
			advance(x);
			work++;
		}
	}
	return work;
}

/* The owner's software reads for others. */
static unsigned serve_others(struct sim_node *n)
{
	struct rv_list *it;
	unsigned work = 0;

	RV_LIST_EACH(it, &sim.xfers)
	{
		struct xfer *x = xfer_of(it);

		if (x->life != n->life || x->ended || x->ghost || x->read == x->len ||
		    x->read > x->written || x->read >= x->fail_at || x->next_ns > sim.now_ns)
			continue;
		read_now(x, rv_min_u64(x->piece, x->len - x->read));
		x->next_ns = sim.now_ns + sim_between(1, x->gap_ns);
		work++;
	}
	return work;
}

static void deliver(struct xfer *x)
{
	struct rv_fabric_get *g = x->g;
	struct sim_peer *p = peer_find(&x->node->fabric, x->reactor, g->worker);
	struct sim_node *n = x->node;
	int rc = x->rc;

	if (sim.mutation == SIM_WRITE_AFTER_DONE && !rc) {
		x->ghost = true;
		x->next_ns = sim.now_ns + sim_below(RV_MS(1));
	} else {
		rv_list_del(&x->link);
		sim_free(x->buf);
	}
	if (rc && p && p->life == x->life && p->state == SIM_EP_UP)
		ep_failed(n, x->reactor, p);
	if (!x->ghost)
		sim_free(x);
	g->done(g, rc);
	if (!outstanding(&n->fabric.fabric, 0))
		n->frozen_ns = 0;
}

static struct xfer *first_ended(const struct sim_poller *sp)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &sim.xfers)
	{
		struct xfer *x = xfer_of(it);

		if (x->ended && !x->ghost && x->node == sp->node && x->reactor == sp->reactor)
			return x;
	}
	return NULL;
}

static unsigned fabric_poll(struct rv_poller *p, uint64_t now_ns)
{
	struct sim_poller *sp = RV_CONTAINER(p, struct sim_poller, poller);
	unsigned work = 0;
	struct xfer *x;

	(void)now_ns;
	if (sp->node->fabric.closed[sp->reactor])
		return 0;
	if (!sim.c.native && sp->reactor == 0)
		work += serve_others(sp->node);
	while (work < 64 && (x = first_ended(sp))) {
		deliver(x);
		work++;
	}
	return work;
}

static const struct rv_poller_ops poller_ops = {.name = "sim fabric", .poll = fabric_poll};

static int open_reactor(struct rv_fabric *f, unsigned reactor, struct rv_poller **poller)
{
	struct sim_fabric *sf = self(f);

	sf->poller[reactor] =
		(struct sim_poller){.poller = {&poller_ops}, .node = sf->node, .reactor = reactor};
	*poller = &sf->poller[reactor].poller;
	return 0;
}

static void close_reactor(struct rv_fabric *f, unsigned reactor)
{
	if (outstanding(f, reactor))
		sim_fail("fabric: a reactor is closed with GETs outstanding");
	self(f)->closed[reactor] = true;
}

static size_t address(struct rv_fabric *f, unsigned reactor, void *buf, size_t cap)
{
	uint64_t life = self(f)->node->life;

	(void)reactor;
	if (cap >= 4 + sizeof(life)) {
		memcpy(buf, "sim!", 4);
		memcpy((uint8_t *)buf + 4, &life, sizeof(life));
	}
	return 4 + sizeof(life);
}

static void destroy(struct rv_fabric *f)
{
	if (!rv_list_empty(&self(f)->maps))
		sim_fail("fabric: destroyed with pages registered");
}

static const struct rv_fabric_ops ops = {
	.name = "ucx",
	.backend = RV_BACKEND_UCX,
	.offer_bit = RV_PEER_OFFER_UCX,
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
	.get = get,
	.abandon = abandon,
	.outstanding = outstanding,
	.quiesce = quiesce,
	.destroy = destroy,
};

void sim_fabric_init(struct sim_fabric *f, struct sim_node *n)
{
	*f = (struct sim_fabric){
		.fabric = {.ops = &ops, .native = sim.c.native, .exports = sim.c.exports},
		.node = n};
	snprintf(f->fabric.path_name, sizeof(f->fabric.path_name), "sim");
	rv_list_init(&f->maps);
	rv_list_init(&f->keys);
}

static void xfer_free(struct xfer *x)
{
	rv_list_del(&x->link);
	sim_free(x->buf);
	sim_free(x);
}

void sim_fabric_node_died(struct sim_node *n)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &sim.xfers)
	{
		if (xfer_of(it)->node == n)
			xfer_free(xfer_of(it));
	}
	while (!rv_list_empty(&n->fabric.keys)) {
		struct sim_lease_key *k =
			RV_LIST_ENTRY(rv_list_pop(&n->fabric.keys), struct sim_lease_key, link);

		sim_free(k);
	}
	while (!rv_list_empty(&n->fabric.maps)) {
		struct sim_map *m = RV_LIST_ENTRY(n->fabric.maps.next, struct sim_map, link);

		rv_list_del(&m->link);
		sim_free(m);
	}
}

void sim_fabric_forget(void)
{
	grant_nr = 0;
	last_map = 0;
	while (!rv_list_empty(&sim.xfers))
		xfer_free(xfer_of(sim.xfers.next));
}

uint64_t sim_fabric_next(void)
{
	uint64_t t = RV_NEVER;
	struct rv_list *it;

	RV_LIST_EACH(it, &sim.xfers)
	{
		const struct xfer *x = xfer_of(it);

		if (x->ended)
			continue;
		if (x->aborted)
			t = rv_min_u64(t, rv_max_u64(x->end_ns, sim.now_ns + 1));
		if (!stuck(x) || (!sim.c.native && x->next_ns > sim.now_ns))
			t = rv_min_u64(t, rv_max_u64(x->next_ns, sim.now_ns + 1));
	}
	return t;
}

static bool overlaps(uintptr_t a, uint64_t a_len, uintptr_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

const char *sim_fabric_writes(const struct sim_node *n, const uint8_t *base, uint64_t len)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &sim.xfers)
	{
		const struct xfer *x = xfer_of(it);

		if (!x->ghost && x->node == n &&
		    overlaps((uintptr_t)x->local, x->len, (uintptr_t)base, len))
			return "a GET may be writing it";
	}
	return NULL;
}

const char *sim_fabric_pin(const struct sim_node *n, const uint8_t *base, uint64_t len)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &sim.xfers)
	{
		const struct xfer *x = xfer_of(it);

		if (x->ghost)
			continue;
		if (x->node == n && overlaps((uintptr_t)x->local, x->len, (uintptr_t)base, len))
			return "a GET may be writing it";
		if (x->life != n->life || !x->lease || x->read == x->len ||
		    !overlaps((uintptr_t)x->addr, x->len, (uintptr_t)base, len))
			continue;
		if (x->key.of_lease && lease_key(n, &x->key))
			return "a GET may be reading it through a key that is not revoked";
		if (x->key.of_lease)
			continue;
		if (n->engine[x->lease_engine].pool.stopped)
			continue; /* the keys go before the pages do */
		if (sim.now_ns < rv_sat_add(x->until_ns, sim.c.quarantine_ns))
			return "a GET may be reading it under a lease that has not run out";
	}
	return NULL;
}
