/*
 * What the starting thread asks of the net core, by message.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/json/peer_info.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "tools/node_impl.h"

struct net_msg {
	struct rv_node *node;
	enum net_op op;
	uint64_t busy;
};

/* A configured peer that did not answer is tried again after a second, doubling to a minute, an eighth more or less. */
#define REDIAL_MIN_NS RV_SEC(1)
#define REDIAL_MAX_NS RV_SEC(60)

/* Of a file that holds a PeerInfo, in JSON or in MessagePack. */
#define PEER_INFO_MAX (RV_ADDRESS_MAX * 6ul)

struct rv_node_dial {
	struct rv_node *node;
	const struct rv_config_peer *peer;
	struct rv_task again;
	uint64_t delay_ns; /* 0: it was not tried yet */
};

static void dial(struct rv_node_dial *d);

static void dial_again(struct rv_reactor *r, struct rv_task *t)
{
	(void)r;
	dial(RV_CONTAINER(t, struct rv_node_dial, again));
}

static void redial_later(struct rv_node_dial *d, const char *why)
{
	uint64_t eighth;

	if (rv_messenger_is_draining(d->node->messenger))
		return;
	if (!d->delay_ns)
		rv_log_warn("peer %s: %s; it is tried again until it answers", d->peer->name, why);
	d->delay_ns = rv_min_u64(rv_max_u64(2 * d->delay_ns, REDIAL_MIN_NS), REDIAL_MAX_NS);
	eighth = d->delay_ns / 8;
	d->again.fn = dial_again;
	rv_task_at(&d->node->net->reactor, &d->again,
		   rv_sat_add(d->node->net->reactor.now_ns,
			      d->delay_ns - eighth + rv_random_u64() % (2 * eighth)));
}

static void peer_connected(void *ctx, const struct rv_connect_result *r)
{
	struct rv_node_dial *d = ctx;

	if (r->rc)
		redial_later(d, r->why);
	else if (!r->told)
		rv_log_warn("peer %s: the node there does not say who it is, or is this one: give "
			    "its peer_info file",
			    d->peer->name);
	else if (d->delay_ns)
		rv_log_info("peer %s: it answers now", d->peer->name);
}

static void dial(struct rv_node_dial *d)
{
	struct rv_node *n = d->node;
	const struct rv_config_peer *p = d->peer;

	rv_messenger_connect(n->messenger, p->address.host, p->address.port, 0, p->name,
			     rv_sat_add(n->net->reactor.now_ns, n->cfg->rendezvous.call_timeout_ns),
			     peer_connected, d);
}

static void add_peer_file(struct rv_node *n, const struct rv_config_peer *p)
{
	FILE *f = fopen(p->peer_info, "re");
	uint8_t *buf = malloc(PEER_INFO_MAX);
	const char *why = f ? "it is empty, or cannot be read" : strerrordesc_np(errno);
	uint64_t worker;
	size_t len = f && buf ? fread(buf, 1, PEER_INFO_MAX, f) : 0;

	if (!len || rv_messenger_add_peer_info(n->messenger, buf, len, p->name, &worker, &why))
		rv_log_warn("peer %s: %s: %s", p->name, p->peer_info, why);
	if (f)
		fclose(f);
	free(buf);
}

static void add_peers(struct rv_node *n)
{
	n->dials = calloc(n->cfg->peer_nr + 1, sizeof(*n->dials));
	if (!n->dials)
		rv_log_err("peers: out of memory: those of the configuration are not known");
	for (size_t i = 0; n->dials && i < n->cfg->peer_nr; i++) {
		const struct rv_config_peer *p = &n->cfg->peer[i];

		n->dials[i] = (struct rv_node_dial){.node = n, .peer = p};
		if (p->peer_info[0])
			add_peer_file(n, p);
		else
			dial(&n->dials[i]);
	}
}

static void drained(struct rv_port *port, struct rv_cell *c)
{
	rv_cell_free(port, c);
}

void rv_node_drain(void *user)
{
	struct rv_node *n = user;
	struct rv_port *port = n->net->reactor.port;

	if (!rv_messenger_is_draining(n->messenger))
		rv_log_info("drain: no new work from now on");
	rv_metrics_set_ready(&n->metrics, false);
	for (unsigned i = 0; i < n->engines.nr; i++) {
		struct rv_cell *c = rv_cell_alloc(port);

		if (!c)
			break; /* asked again, or by the shutdown */
		*(struct rv_msg_stop *)(void *)c->body =
			(struct rv_msg_stop){.engine = n->engines.engine[i], .step = RV_STOP_DRAIN};
		c->run = rv_engine_run_stop;
		c->done = drained;
		rv_engine_send(port, n->engines.engine[i], c);
	}
	rv_messenger_drain(n->messenger);
}

static void run_net(struct rv_port *port, struct rv_cell *c)
{
	struct net_msg *m = (void *)c->body;
	struct rv_node *n = m->node;

	m->busy = 0;
	switch (m->op) {
	case NET_PEERS:
		add_peers(n);
		break;
	case NET_DRAIN:
		rv_messenger_drain(n->messenger);
		m->busy = rv_messenger_pending(n->messenger);
		break;
	case NET_REGIONS:
		m->busy = rv_local_end_regions(n->local);
		break;
	case NET_LOCAL_STOP:
		m->busy = rv_local_stop(n->local);
		break;
	case NET_FLUSH:
		rv_messenger_stop(n->messenger);
		rv_tcp_carrier_stop_listening(&n->tcp);
		m->busy = rv_tcp_carrier_queued(&n->tcp);
		for (unsigned i = 0; n->am[i]; i++)
			m->busy += rv_ucx_am_queued(n->am[i]);
		break;
	case NET_CLOSE:
		m->busy = rv_tcp_carrier_close_all(&n->tcp);
		for (unsigned i = 0; n->am[i]; i++)
			m->busy += rv_ucx_am_close_all(n->am[i]);
		break;
	}
	rv_cell_reply(port, c);
}

static void asked(struct rv_port *port, struct rv_cell *c)
{
	(void)port;
	*(bool *)c->ctx = true;
}

/* Send a cell and wait for it to come back, on the starting thread. */
void rv_node_ask(struct rv_node *n, unsigned to, struct rv_cell *c)
{
	bool answered = false;

	/* cppcheck-suppress autoVariables ; the cell is back before this returns */
	c->ctx = &answered;
	c->done = asked;
	rv_cell_send(n->main_port, to, c);
	while (!answered)
		rv_port_wait(n->main_port, -1);
}

uint64_t rv_node_ask_net(struct rv_node *n, enum net_op op)
{
	struct rv_cell *c = rv_cell_alloc(n->main_port);
	struct net_msg *m = (void *)c->body;
	uint64_t busy;

	*m = (struct net_msg){.node = n, .op = op};
	c->run = run_net;
	rv_node_ask(n, n->net->reactor.index, c);
	busy = m->busy;
	rv_cell_free(n->main_port, c);
	return busy;
}
