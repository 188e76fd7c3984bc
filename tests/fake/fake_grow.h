/*
 * fake_grow.h - the slow thread of a pool, by hand: growths wait until the test serves or refuses them.
 */
#ifndef RV_TESTS_FAKE_GROW_H
#define RV_TESTS_FAKE_GROW_H

#include "dataplane/mem/pool.h"
#include "tests/fake/fake_fabric.h"

#define FAKE_GROWTHS 64

struct fake_grow {
	struct rv_pool *pool;
	struct fake_fabric *fabric; /* maps the arenas; NULL: none is registered */

	/* script */
	struct fake_script grow_rc, shrink_rc; /* of the hooks themselves */
	uint64_t len_cap;                      /* no arena above this; 0: as wanted */

	/* what happened */
	struct rv_pool_grow pending[FAKE_GROWTHS];
	unsigned pending_nr, asked, served, refused, given_back, live;
	uint64_t generation;
	uint32_t last_id;
};

void fake_grow_init(struct fake_grow *f, struct rv_pool *pool, struct fake_fabric *fabric);

/** Hooks for rv_pool_conf; the user is the struct fake_grow. */
int fake_grow_ask(void *user, const struct rv_pool_grow *g);
int fake_grow_shrink(void *user, struct rv_arena *a);

/** Serve, or refuse with @rc, the oldest growth. */
void fake_grow_serve(struct fake_grow *f);
void fake_grow_refuse(struct fake_grow *f, int rc);

/** Serve all there are, and those that this asks for. */
void fake_grow_serve_all(struct fake_grow *f);

#endif
