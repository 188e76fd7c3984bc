/*
 * serve_impl.h - what the files of the owner side share: serve.c, serve_many.c, export.c. Nobody else includes this.
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

/** Why an acquire of this slot that offers nothing is not answered with RDMA. Never RV_PATH_OK. */
enum rv_path_reason rv_serve_without_offer(const struct rv_engine *e, const struct rv_slot *slot);

#endif
