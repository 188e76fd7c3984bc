/*
 * What the engines need to know of a peer: where each of their fabrics finds it.
 */
#include <stdlib.h>
#include <string.h>

#include "control/messenger/messenger_impl.h"
#include "dataplane/base/units.h"
#include "dataplane/rendezvous/descriptor.h"

#define RETELL_NS RV_MS(10)

struct tell {
	uint8_t *addr;
	unsigned refs;
};

static void told(struct rv_port *port, struct rv_cell *c)
{
	struct tell *t = c->ctx;

	rv_cell_free(port, c);
	if (--t->refs)
		return;
	free(t->addr);
	free(t);
}

/* Both addresses, one behind the other: each goes to the fabric that understands it. */
static struct tell *tell_begin(const struct rv_peer *p)
{
	struct tell *t = calloc(1, sizeof(*t));
	size_t len = p->fabric_addr_len + p->verbs_addr_len;

	if (!t)
		return NULL;
	t->refs = 1;
	if (!len)
		return t;
	t->addr = malloc(len);
	if (!t->addr) {
		free(t);
		return NULL;
	}
	if (p->fabric_addr_len)
		memcpy(t->addr, p->fabric_addr, p->fabric_addr_len);
	if (p->verbs_addr_len)
		memcpy(t->addr + p->fabric_addr_len, p->verbs_addr, p->verbs_addr_len);
	return t;
}

/* What core @i's fabric needs to know; no address: the peer has none there (any more). */
static void address_for(struct rv_fabric_peer *to, const struct rv_fabric *f, const struct tell *t,
			const struct rv_peer *p, unsigned i)
{
	size_t workers = rv_peer_workers_nr(p->fabric_addr, p->fabric_addr_len);

	*to = (struct rv_fabric_peer){.worker = p->worker, .incarnation = p->incarnation};
	if (f->ops->backend == RV_BACKEND_VERBS) {
		to->incarnation = 0; /* its WorkerId says it all */
		to->addr_len = p->verbs_addr_len;
		to->addr = p->verbs_addr_len ? t->addr + p->fabric_addr_len : NULL;
	} else if (workers) {
		/* Each of our polling cores has one of the peer's to read from. */
		to->addr =
			rv_peer_workers_at(t->addr, p->fabric_addr_len, i % workers, &to->addr_len);
	}
}

static bool tell_one(struct rv_messenger *m, struct tell *t, const struct rv_peer *p, unsigned i,
		     const struct rv_fabric *f)
{
	struct rv_cell *c = rv_cell_alloc(m->reactor->port);
	struct rv_msg_peer *msg;

	if (!c)
		return false;
	msg = (void *)c->body;
	*msg = (struct rv_msg_peer){.engine = m->conf.engines->engine[i], .fabric = f->index};
	address_for(&msg->peer, f, t, p, i);
	c->run = rv_engine_run_peer;
	c->done = told;
	c->ctx = t;
	t->refs++;
	rv_engine_send(m->reactor->port, msg->engine, c);
	return true;
}

static bool tell_engines(struct rv_messenger *m, const struct rv_peer *p)
{
	struct tell *t = tell_begin(p);
	bool all = t != NULL;

	for (unsigned i = 0; all && i < m->conf.engines->nr; i++) {
		const struct rv_engine_conf *ec = &m->conf.engines->engine[i]->conf;

		for (unsigned k = 0; all && k < ec->fabric_nr; k++)
			all = tell_one(m, t, p, i, ec->fabric[k]);
	}
	if (t && !--t->refs) {
		free(t->addr);
		free(t);
	}
	return all;
}

bool rv_messenger_tell_fabric(struct rv_messenger *m, struct rv_peer *p)
{
	p->fabric_untold = !tell_engines(m, p);
	if (p->fabric_untold && !m->stopped)
		rv_task_at(m->reactor, &m->retell, m->reactor->now_ns + RETELL_NS);
	return !p->fabric_untold;
}

/* There were no cells, or no memory: RDMA to some peers is not known of everywhere yet. */
void rv_messenger_retell(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_messenger *m = RV_CONTAINER(t, struct rv_messenger, retell);
	struct rv_peer *p;
	size_t pos = 0;

	(void)r;
	while ((p = rv_peers_next(&m->peers, &pos))) {
		if (p->fabric_untold && !rv_messenger_tell_fabric(m, p))
			return;
	}
}
