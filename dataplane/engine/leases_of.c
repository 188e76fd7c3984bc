/*
 * How many leases one consumer has here.
 */
#include "dataplane/engine/msg.h"

void rv_engine_run_leases_of(struct rv_port *p, struct rv_cell *c)
{
	struct rv_msg_leases_of *m = (void *)c->body;
	const struct rv_lease *l;
	uint32_t pos = 0;

	m->nr = 0;
	while ((l = rv_idtab_next(&m->engine->store.leases, &pos)))
		m->nr += l->slot && l->worker == m->worker && l->kind == RV_LEASE_RDMA;
	rv_cell_reply(p, c);
}
