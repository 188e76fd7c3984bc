/*
 * fake_engine.h - a real engine on a real reactor, one thread and no socket: time, fabric, peers and the
 * slow thread are the test's.
 */
#ifndef RV_TESTS_FAKE_ENGINE_H
#define RV_TESTS_FAKE_ENGINE_H

#include "dataplane/engine/msg.h"
#include "tests/fake/fake_calls.h"
#include "tests/fake/fake_clock.h"
#include "tests/fake/fake_fabric.h"
#include "tests/fake/fake_grow.h"

#define FAKE_WORKER 77u /* this node */
#define FAKE_OWNER  88u /* some other */

struct fake_engine_conf {
	unsigned cells; /* 0: 64 */
	bool no_fabric;
	uint32_t max_gets, max_slots, max_leases;                     /* 0: 16, 64, 64 */
	uint64_t dedicated_min;                                       /* 0: 1 MiB */
	uint32_t bytes_max;                                           /* 0: none */
	uint64_t chunk_lease_ns;                                      /* 0: none */
	uint64_t late_max;                                            /* 0: none */
	struct rv_peer_calls *calls;                                  /* NULL: w->calls */
	int (*export_ask)(void *user, const struct rv_export_ask *a); /* NULL: no keys of leases */
	rv_cell_fn *run_transfer_end;                                 /* NULL: answered at once */
};

struct fake_engine {
	struct rv_mesh *mesh;
	struct rv_port *port;
	struct rv_reactor reactor;
	struct rv_engines set;
	struct rv_engine engine;
	struct fake_fabric fabric;
	struct fake_calls calls;
	struct fake_grow grow;
	bool serve_growths; /* in fake_engine_run() */
	unsigned transfers_ended;
};

/** Before rv_engine_init() a messenger may want the reactor. */
void fake_engine_prepare(struct fake_engine *w, unsigned cells);
void fake_engine_init(struct fake_engine *w, const struct fake_engine_conf *conf);

/** Nothing may be left: no block, lease, slot, get, call, GET or cell. */
void fake_engine_fini(struct fake_engine *w);

/** Passes until nothing moves. */
void fake_engine_run(struct fake_engine *w);

/** The same @ns later. */
void fake_engine_advance(struct fake_engine *w, uint64_t ns);

/** Cells that are not under way. */
unsigned fake_free_cells(struct rv_port *p);

/** A message under way, and its way back. */
struct fake_ask {
	struct rv_cell *cell;
	bool back;
};

struct fake_ask *fake_ask_start(struct fake_engine *w, rv_cell_fn *run, const void *body,
				size_t len);
/** The same with a call, handed to @pc. */
struct fake_ask *fake_call_start(struct fake_engine *w, struct rv_peer_calls *pc,
				 const struct rv_peer_call *call);
void *fake_ask_body(const struct fake_ask *a);
void fake_ask_end(struct fake_engine *w, struct fake_ask *a);

/** Ask, wait, and copy the answer back over @body. */
void fake_ask(struct fake_engine *w, rv_cell_fn *run, void *body, size_t len);

/* The messages tests need again and again. */

/** A staged slot of @len bytes of @byte in registered (or plain) memory. @return its local id */
uint64_t fake_stage(struct fake_engine *w, uint64_t len, int byte, bool pinned, uid_t uid);
struct rv_slot *fake_slot(struct fake_engine *w, uint64_t local);
struct rv_msg_acquire fake_acquire(struct fake_engine *w, uint64_t local, uint64_t worker,
				   bool has_offer, unsigned offer);
int fake_lease_op(struct fake_engine *w, enum rv_lease_op op, uint64_t local, uint64_t lease,
		  uint64_t worker);
void fake_drop_slot(struct fake_engine *w, uint64_t local);
void fake_drop_block(struct fake_engine *w, struct rv_block *b);

#endif
