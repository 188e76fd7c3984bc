/*
 * Closing the way to a peer that neither side uses, so that nothing is lost.
 *
 * UCX pairs the endpoints of both sides. Where only one closes its own, the other's messages vanish for some twenty
 * seconds, and reads stall. So the peer closes first:
 *
 *   one of ours:  _rvd_goodbye --it closes, unless it uses it--> ack --> we close
 *   stock:        _hello with another incarnation of ours: it takes that for a restart, and closes --> we close
 *
 * Both go by TCP. Without it, or where the peer does not agree, the way stays.
 */
#include <errno.h>
#include <stdlib.h>

#include "control/messenger/messenger_impl.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

#define TELL_NS RV_SEC(10)

static void keep(struct rv_messenger *m, unsigned core, uint64_t worker)
{
	m->way[core]->ops->keep(m->way[core], worker);
}

static void let_go(struct rv_messenger *m, unsigned core, uint64_t worker)
{
	m->way[core]->ops->retire(m->way[core], worker, true, NULL);
}

/*
 * Core i reads from the peer's worker i mod (its workers), and the peer's cores do the same, so two cores share a
 * way only where each has chosen the other.
 */
static unsigned partner(const struct rv_peer *p, unsigned core)
{
	size_t nr = rv_peer_workers_nr(p->fabric_addr, p->fabric_addr_len);

	return nr ? (unsigned)(core % nr) : 0;
}

/* @core is ours. Does the peer's core that it reads from read from it? */
static bool is_shared(const struct rv_messenger *m, const struct rv_peer *p, unsigned core)
{
	/* A stock node has one worker, and knows one of ours. */
	return partner(p, core) % (p->is_rvd ? m->conf.engines->nr : 1) == core;
}

struct rv_carrier *rv_messenger_paired(struct rv_messenger *m, uint64_t worker, const uint8_t *body,
				       size_t len)
{
	const struct rv_peer *p = rv_peers_find(&m->peers, worker);
	struct rv_cursor c = rv_cursor(body, len);
	unsigned theirs = rv_take_le16(&c), ours = rv_take_le16(&c);

	if (!p || c.bad || ours >= m->conf.engines->nr || partner(p, ours) != theirs)
		return NULL;
	return m->way[ours];
}

/* What was sent may have been done, whatever became of the answer; what was not, or was refused, was not. */
static void told(struct rv_call *c, const struct rv_call_answer *a)
{
	struct rv_messenger *m = c->ctx;

	if (a->rc == -EHOSTUNREACH || a->rc == -EREMOTEIO || a->rc == -ESHUTDOWN)
		keep(m, (unsigned)c->arg, c->handle.worker);
	else
		let_go(m, (unsigned)c->arg, c->handle.worker);
}

static int encode_goodbye(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	h->kind = RV_CALL_SYNC;
	h->name = RV_GOODBYE;
	h->name_len = sizeof(RV_GOODBYE) - 1;
	rv_put_le(body, c->arg, 2);
	rv_put_le(body, partner(c->route->peer, (unsigned)c->arg), 2);
	return 0;
}

static void tell(struct rv_messenger *m, unsigned core, struct rv_peer *p)
{
	struct rv_route *r = rv_route_of(m, p);
	struct rv_call *c =
		r ? rv_call_begin(&m->calls, m->reactor->now_ns + TELL_NS, told, m) : NULL;

	if (!c) {
		keep(m, core, p->worker);
		return;
	}
	c->handle.worker = p->worker;
	c->arg = core;
	rv_call_of_route(c, r);
	c->encode = encode_goodbye;
	if (!p->is_rvd) {
		p->own_incarnation = rv_random_u64() | 1;
		c->encode = rv_hello_encode;
		rv_mlink_renew(m, p->worker);
	}
	rv_route_submit(m, r, c);
}

/* A stock node cannot say that it is reading from us; its leases do. */

struct counting {
	struct rv_messenger *m;
	uint64_t worker, leases;
	unsigned out;
};

static void counted_all(struct counting *n)
{
	struct rv_peer *p = rv_peers_find(&n->m->peers, n->worker);

	if (!p || n->leases || n->m->stopped)
		keep(n->m, 0, n->worker);
	else
		tell(n->m, 0, p);
	free(n);
}

static void counted(struct rv_port *port, struct rv_cell *c)
{
	struct counting *n = c->ctx;

	n->leases += ((struct rv_msg_leases_of *)(void *)c->body)->nr;
	rv_cell_free(port, c);
	if (!--n->out)
		counted_all(n);
}

static void count_leases(struct rv_messenger *m, uint64_t worker)
{
	struct counting *n = malloc(sizeof(*n));

	if (!n) {
		keep(m, 0, worker);
		return;
	}
	*n = (struct counting){.m = m, .worker = worker, .out = 1};
	for (unsigned i = 0; i < m->conf.engines->nr; i++) {
		struct rv_cell *c = rv_cell_alloc(m->reactor->port);

		if (!c) {
			n->leases = 1; /* nobody knows */
			break;
		}
		*(struct rv_msg_leases_of *)(void *)c->body =
			(struct rv_msg_leases_of){.engine = m->conf.engines->engine[i],
						  .worker = worker};
		c->run = rv_engine_run_leases_of;
		c->done = counted;
		c->ctx = n;
		n->out++;
		rv_engine_send(m->reactor->port, m->conf.engines->engine[i], c);
	}
	if (!--n->out)
		counted_all(n);
}

static unsigned core_of(const struct rv_messenger *m, const struct rv_carrier *c)
{
	unsigned core = 0;

	while (m->way[core] != c)
		core++;
	return core;
}

void rv_messenger_on_idle(void *user, struct rv_carrier *c, uint64_t worker)
{
	struct rv_messenger *m = user;
	unsigned core = core_of(m, c);
	struct rv_peer *p = rv_peers_find(&m->peers, worker);
	const struct rv_route *r = p ? p->link : NULL;
	bool by_tcp = p && p->host[0] && !(r && r->control && r->control->datagram);

	if (!p || m->stopped || rv_messenger_is_draining(m))
		/* NOLINTNEXTLINE(bugprone-branch-clone): the order of the questions matters */
		keep(m, core, worker);
	else if (!is_shared(m, p, core))
		let_go(m, core, worker);
	else if (!by_tcp)
		keep(m, core, worker);
	else if (p->is_rvd)
		tell(m, core, p);
	else
		count_leases(m, worker);
}
