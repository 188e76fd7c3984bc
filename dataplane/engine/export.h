/*
 * export.h - keys that end with their lease, where a fabric has them (rv_fabric.exports).
 *
 *   acquire --lease minted--> making --key there--> the acquire is answered, live --lease ends--> revoking --> gone
 *                               |--refused-----> the acquire is answered with chunks; gone
 *                               '--late, or the lease ended meanwhile--> revoked as soon as it is there
 *
 * The block is held from the first step to the proof of the last: a range whose key is not provably dead is never
 * given to anybody else.
 *
 * @thread owning reactor; making and revoking are the prompt thread's
 */
#ifndef RV_DATAPLANE_ENGINE_EXPORT_H
#define RV_DATAPLANE_ENGINE_EXPORT_H

#include "dataplane/engine/engine.h"

/** What the prompt thread is asked; comes back through rv_export_asked(). */
struct rv_export_ask {
	enum { RV_EXPORT_MAKE, RV_EXPORT_REVOKE } op;
	struct rv_export *x;
	struct rv_fabric *fabric;
	struct rv_fabric_map *map;
	void *addr;
	uint64_t len;
	struct rv_fabric_reader to;
	struct rv_fabric_key *key; /* MAKE: the outcome */
	int rc;
};

struct rv_export {
	struct rv_list link; /* those that wait for a cell */
	struct rv_engine *e;
	enum { RV_EXPORT_MAKING, RV_EXPORT_LIVE, RV_EXPORT_REVOKING } state;
	struct rv_fabric *fabric;
	struct rv_fabric_key *key;
	struct rv_block *block;
	struct rv_lease *lease; /* NULL: over */
	struct rv_cell *cell;   /* the acquire; NULL once answered */
	struct rv_task late;
};

/** @thread init */
void rv_exports_init(struct rv_engine *e);
void rv_exports_fini(struct rv_engine *e);

/**
 * Make a key for a lease that was just minted; the acquire in @c is answered later.
 *
 * @return false: it cannot be begun, and nothing was changed
 */
bool rv_export_begin(struct rv_engine *e, struct rv_fabric *f, struct rv_lease *l,
		     struct rv_cell *c);

/** rv_store_conf.end_export: its lease is over. */
void rv_export_end(void *user, struct rv_export *x);

/** The prompt thread has done what it was asked. */
void rv_export_asked(const struct rv_export_ask *a);

#endif
