/*
 * cells.h - how threads talk: message cells that travel to another thread and come back.
 *
 *   home: rv_cell_alloc -> fill body, run, done -> rv_cell_send(to)
 *   there: run(cell) ... (at once, or whenever it is finished) ... rv_cell_reply
 *   home: done(cell) -> rv_cell_free, or send it again
 *
 * Every thread that takes part owns a port. A cell always returns to its home, in the same memory, so a
 * ring that has room for both ends' cells can never be full: sending cannot fail, only allocating can.
 * A cell sent to oneself waits in a local list and is served in the same pass. Order is FIFO for each
 * ordered pair of ports.
 */
#ifndef RV_DATAPLANE_LCORE_CELLS_H
#define RV_DATAPLANE_LCORE_CELLS_H

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/list.h"

/** Bytes of a message; engine/msg.h checks that its messages fit. */
#define RV_CELL_BODY 1600

struct rv_mesh;
struct rv_port;
struct rv_cell;

typedef void rv_cell_fn(struct rv_port *port, struct rv_cell *cell);

struct rv_cell {
	struct rv_list link; /* for whoever holds the cell */
	rv_cell_fn *run;     /* at the destination; from then on the destination holds the cell */
	rv_cell_fn *done;    /* back home */
	void *ctx;           /* the sender's */
	uint16_t home;
	uint16_t at; /* where it was sent */
	bool returning;
	alignas(16) uint8_t body[RV_CELL_BODY];
};

/**
 * @param ports  how many threads
 * @param cells  cells of each
 * @return NULL without memory
 * @thread init
 */
struct rv_mesh *rv_mesh_create(unsigned ports, unsigned cells);
void rv_mesh_destroy(struct rv_mesh *m);

/** Port @i; each is used by one thread only, from rv_port_bind() on. */
struct rv_port *rv_mesh_port(struct rv_mesh *m, unsigned i);
unsigned rv_port_index(const struct rv_port *p);
unsigned rv_port_cells(const struct rv_port *p);

/** What run and done reach their own thread's objects by. @thread init, or the port's */
void rv_port_set_user(struct rv_port *p, void *user);
void *rv_port_user(const struct rv_port *p);

/** @return a cell of this port, or NULL when all are under way: answer "busy". @thread the port's @cost O(1) */
struct rv_cell *rv_cell_alloc(struct rv_port *p);

/** @thread the cell's home port's */
void rv_cell_free(struct rv_port *p, struct rv_cell *c);

/** Hand @c to port @to, which calls c->run. Cannot fail. @thread the home port's @cost O(1), one write(2) if @to sleeps */
void rv_cell_send(struct rv_port *p, unsigned to, struct rv_cell *c);

/** Send @c home, where c->done is called. @thread the port's that holds it */
void rv_cell_reply(struct rv_port *p, struct rv_cell *c);

/** Serve up to @max cells. @return how many. @thread the port's */
unsigned rv_port_poll(struct rv_port *p, unsigned max);

/**
 * Going to sleep: rv_port_sleep() sets `asleep` and looks again; true means nothing is waiting, and any
 * later send writes the eventfd. rv_port_wake() ends that state and empties the eventfd.
 *
 * @thread the port's
 */
bool rv_port_sleep(struct rv_port *p);
void rv_port_wake(struct rv_port *p);

/** Readable when something arrived while asleep. */
int rv_port_fd(const struct rv_port *p);

/** End another thread's sleep without a cell (stop flags). @thread any */
void rv_port_kick(struct rv_port *p);

/** For threads without pollers: sleep up to @timeout_ms (-1: for ever), then serve what came. */
void rv_port_wait(struct rv_port *p, int timeout_ms);

#endif
