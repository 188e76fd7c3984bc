/*
 * node.h - librvnode: a whole node inside a process. The daemon and the benches are thin programs over it.
 *
 *   rv_node_start: identity -> fabrics -> EAL and reactors -> address -> listeners -> serving
 *   rv_node_stop:  drain -> wait for what must end -> close -> unmap -> join, within shutdown.timeout
 *
 * One node a process (EAL is started once).
 *
 * @thread the one that started it, which must not be a reactor's
 */
#ifndef RV_TOOLS_NODE_H
#define RV_TOOLS_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/config/config.h"

struct rv_node;
struct rv_raw; /* dataplane/engine/raw.h */

/**
 * Start serving.
 *
 * @param cfg  a finished configuration; the node's until rv_node_stop() has returned
 * @param why  on failure: one line that says what and where
 * @return 0, or a negative errno and nothing is left running
 * @cost   half a second to a second
 */
int rv_node_start(struct rv_config *cfg, struct rv_node **out, char *why, size_t why_cap);

/** What rv_node_stop() found. */
struct rv_node_end {
	uint64_t cut;     /* gets, requests and leases that did not end in time */
	bool unconfirmed; /* memory whose unmap was not confirmed: leave with _exit(3) */
};

/**
 * Stop and free the node.
 *
 * @param hurry  asked now and then; true cuts the waiting short. May be NULL.
 * @return 0: drained and everything deregistered; 3: something was cut
 */
int rv_node_stop(struct rv_node *n, bool (*hurry)(void *), void *ctx, struct rv_node_end *end);

/**
 * Has each core come by since the last call, and is it asked anew? A thread that hangs makes it false until it goes on;
 * one that sleeps for want of work is woken to answer. The first call knows nothing yet and says true.
 */
bool rv_node_is_turning(struct rv_node *n);

/**
 * Read one payload of a known peer over and over by RDMA, as @raw says, under one lease.
 *
 * @param worker, local  the handle's halves
 * @param meanwhile  called now and then until it ends; may be NULL
 * @param why        on failure: one line
 * @return 0, or a negative errno
 * @cost   blocks until it is over
 */
int rv_node_raw(struct rv_node *n, uint64_t worker, uint64_t local, struct rv_raw *raw,
		void (*meanwhile)(void *), void *user, char *why, size_t why_cap);

/** What is asked of another node's slot, over and over. */
enum rv_node_ask {
	RV_NODE_GET, /* a whole get, by RDMA where there is a way: acquire, bytes, the lease's end */
	RV_NODE_GET_CHUNKED, /* without */
	RV_NODE_METADATA,    /* what it says of the slot */
};

/**
 * Requests begun on the node's first polling core. What there is of @raw is done; `bytes` is not filled in.
 *
 * @return, @cost  as rv_node_raw()
 */
int rv_node_gets(struct rv_node *n, uint64_t worker, uint64_t local, enum rv_node_ask what,
		 struct rv_raw *raw, void (*meanwhile)(void *), void *user, char *why,
		 size_t why_cap);

/** The ports really listened on; 0 for none. */
uint16_t rv_node_tcp_port(const struct rv_node *n);
uint16_t rv_node_metrics_port(const struct rv_node *n);

/**
 * Take over from @fresh what may change while running (SIGHUP). RDMA is switched only where the
 * configured value changes: an operator's `rvctl kill-switch on` stays.
 */
void rv_node_reload(struct rv_node *n, const struct rv_config *fresh);

#endif
