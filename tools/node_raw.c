/*
 * Raw reads, asked for by the thread that started the node.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tools/node_impl.h"

#define LOOK_MS 20

static void back(struct rv_port *port, struct rv_cell *c)
{
	bool *over = c->ctx;

	(void)port;
	*over = true;
}

int rv_node_raw(struct rv_node *n, uint64_t worker, uint64_t local, struct rv_raw *raw,
		void (*meanwhile)(void *), void *user, char *why, size_t why_cap)
{
	struct rv_engine *e = n->engines.engine[0];
	struct rv_cell *c = rv_cell_alloc(n->main_port);
	struct rv_msg_get *m;
	bool over = false;
	int rc;

	if (!c)
		return rv_node_fail(-EAGAIN, why, why_cap, "no message cell is free");
	m = (void *)c->body;
	*m = (struct rv_msg_get){
		.engine = e,
		.handle = {worker, local},
		.path = RV_GET_RDMA,
		.deadline_ns = RV_NEVER,
		.uid = geteuid(),
		.raw = raw,
	};
	c->run = rv_engine_run_get;
	c->done = back;
	c->ctx = &over;
	rv_engine_send(n->main_port, e, c);
	while (!over) {
		rv_port_wait(n->main_port, LOOK_MS);
		if (meanwhile)
			meanwhile(user);
	}
	rc = m->rc;
	if (rc)
		snprintf(why, why_cap, "%s", m->text[0] ? m->text : rv_err_name(rc));
	rv_cell_free(n->main_port, c);
	return rc;
}
