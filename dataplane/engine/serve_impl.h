/*
 * serve_impl.h - how an acquire that waited for its key is answered. Nobody but serve.c and export.c includes this.
 *
 * @thread owning reactor
 */
#ifndef RV_DATAPLANE_ENGINE_SERVE_IMPL_H
#define RV_DATAPLANE_ENGINE_SERVE_IMPL_H

#include "dataplane/engine/export.h"
#include "dataplane/engine/msg.h"

/** Answer with a descriptor. @return false: it does not fit, and nothing was answered */
bool rv_serve_key(struct rv_engine *e, struct rv_lease *l, const struct rv_fabric *f,
		  const struct rv_fabric_key *key, struct rv_cell *c);

/** Answer with chunks; the lease @l was for RDMA and is taken back. */
void rv_serve_chunks_instead(struct rv_engine *e, struct rv_lease *l, struct rv_cell *c);

/** Answer that the slot is over. */
void rv_serve_gone(struct rv_engine *e, struct rv_cell *c);

#endif
