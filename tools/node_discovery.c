/*
 * Being found, and finding others: the messenger asks, the discovery thread looks, the net core hears of it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "tools/node_impl.h"

static void found(struct rv_port *port, struct rv_cell *c)
{
	struct rv_node *n = c->ctx;
	struct rv_msg_find m = *(struct rv_msg_find *)(void *)c->body;

	rv_cell_free(port, c);
	rv_messenger_found(n->messenger, m.worker, m.rc, m.pi,
			   m.why[0] ? m.why : rv_err_name(m.rc));
	if (m.pi)
		rv_peer_info_fini(m.pi);
	free(m.pi);
}

int rv_node_find(void *user, uint64_t worker)
{
	struct rv_node *n = user;
	struct rv_port *port = n->net->reactor.port;
	struct rv_cell *c = rv_cell_alloc(port);

	if (!c)
		return -EAGAIN;
	*(struct rv_msg_find *)(void *)c->body =
		(struct rv_msg_find){.discovery = n->discovery, .worker = worker};
	c->ctx = n;
	c->run = rv_discovery_run_find;
	c->done = found;
	rv_cell_send(port, rv_discovery_port(n->discovery), c);
	return 0;
}

int rv_node_start_discovery(struct rv_node *n, char *why, size_t cap)
{
	const struct rv_config *cfg = n->cfg;
	bool file = cfg->discovery.kind == RV_CONFIG_DISCOVERY_FILE;
	char *json = rv_messenger_peer_info_json(n->messenger);
	struct rv_discovery_conf dc = {
		.kind = file ? RV_DISCOVERY_FILE : RV_DISCOVERY_ETCD,
		.path = cfg->discovery.path,
		.endpoints = cfg->discovery.endpoints,
		.prefix = cfg->discovery.prefix,
		.former = n->id.former,
		.former_nr = n->id.former_nr,
		.port = rv_mesh_port(n->mesh, n->core_nr + 3),
	};
	char text[RV_DISCOVERY_TEXT] = "out of memory";
	int rc = json ? rv_peer_info_decode(json, strlen(json), &dc.self, NULL) : -ENOMEM;

	free(json);
	if (!rc) {
		rc = rv_discovery_start(&dc, &n->discovery, text);
		rv_peer_info_fini(&dc.self);
	}
	if (rc)
		return rv_node_fail(rc, why, cap, "discovery: %s", text);
	rv_log_info("discovery: nodes are looked up in %s",
		    file ? cfg->discovery.path : cfg->discovery.endpoints);
	return 0;
}
