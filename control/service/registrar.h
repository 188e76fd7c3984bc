/*
 * registrar.h - the slow thread: makes arenas, registers them with every fabric, and takes them back.
 *
 *   pool --grow--> pages (created or unparked) -> map in each fabric -> budget -> arena back to the pool
 *   pool --shrink--> unmap in each fabric, confirmed -> budget returned -> pages unmapped, or parked while a
 *                    software GET may still reach the addresses
 *
 *   region: a client's memfd --checked, mapped, registered--> arena; later unmapped and let go, whatever refers
 *           to it (its pages become read-only zeros, or a copy where a shutdown has slots go on)
 *
 * It owns the budgets. An unmap that a fabric does not confirm leaks the pages on purpose.
 */
#ifndef RV_CONTROL_SERVICE_REGISTRAR_H
#define RV_CONTROL_SERVICE_REGISTRAR_H

#include "dataplane/lcore/port_thread.h"
#include "dataplane/base/counter.h"
#include "dataplane/engine/engine.h"
#include "dataplane/mem/budget.h"
#include "dataplane/mem/pages.h"

struct rv_prompt;

struct rv_registrar_conf {
	struct rv_port *port; /* the slow thread's */
	struct rv_fabric *fabric[RV_FABRICS];
	unsigned fabric_nr;
	uint64_t registered_budget, plain_budget;
	uint64_t retain_bytes;
	enum rv_hugepages hugepages;
	/** Bytes that the system lets us have yet, asked before each growth; NULL: any number. */
	uint64_t (*room)(void);
};

enum rv_registration_failure {
	RV_REG_FAIL_BUDGET,
	RV_REG_FAIL_MEMORY,
	RV_REG_FAIL_MAP,
	RV_REG_FAILURES
};

struct rv_registrar {
	struct rv_registrar_conf conf;
	struct rv_port_thread thread;
	/* Read by metrics too. The first limit is lower than configured after the system has refused. */
	struct rv_budget registered, plain;
	uint64_t refused_ns; /* when it last did; slow thread */
	struct rv_parking parking;
	uint32_t last_arena;
	uint64_t generation;
	_Atomic bool leaving;

	/* Written by the slow thread, read by metrics. */
	struct rv_counter parked_bytes, live_regions, registrations, external, external_bytes,
		unconfirmed;
	struct rv_counter failures[RV_REG_FAILURES];
};

const char *rv_registration_failure_name(enum rv_registration_failure f);

/** @thread init */
void rv_registrar_init(struct rv_registrar *r, const struct rv_registrar_conf *conf);

/** Start the thread. @return 0 or a negative errno */
int rv_registrar_start(struct rv_registrar *r);

/**
 * Let go of pages that were warm for long enough; with RV_NEVER of all. The thread does so by itself.
 *
 * @return when to look again; RV_NEVER: nothing is warm
 * @thread slow
 */
uint64_t rv_registrar_cool(struct rv_registrar *r, uint64_t now_ns);

/** The daemon ends: what programs have mapped keeps its bytes, whatever is given back from now on. @thread any */
void rv_registrar_leave(struct rv_registrar *r);

/** Every reactor has ended: serve what is queued, end the thread, unmap what is parked. */
void rv_registrar_stop(struct rv_registrar *r);

/** For rv_pool_conf; the user of each pool is a struct rv_registrar_client. @thread the pool's reactor */
struct rv_registrar_client {
	struct rv_registrar *registrar;
	struct rv_engine *engine;
	struct rv_prompt *prompt; /* NULL: no fabric has keys of leases */
};
int rv_registrar_grow(void *user, const struct rv_pool_grow *g);
int rv_registrar_shrink(void *user, struct rv_arena *a);
int rv_registrar_ask(void *user, const struct rv_pool_ask *a);

#endif
