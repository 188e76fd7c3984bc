/*
 * get.h - the consumer side of a transfer, one state machine a get.
 *
 *   start --own handle--> LOCAL -----------------------------------------------.
 *     '--> [WIRING] --> ACQUIRE --Ready--> RESERVE --> PULL --------------------> finish
 *                          |--Rdma--> RESERVE --> GET --proven--------------------'
 *                          |                       '--failed--> detach, ACQUIRE without an offer, once
 *                          '--error--> finish
 *
 * A get that is merely late is answered -ETIMEDOUT at its deadline; its destination stays held until the
 * fabric, or the socket, has let go of it.
 */
#ifndef RV_DATAPLANE_ENGINE_GET_H
#define RV_DATAPLANE_ENGINE_GET_H

struct rv_engine;

/** @thread init */
int rv_gets_init(struct rv_engine *e);
void rv_gets_fini(struct rv_engine *e);

/** Force every RDMA GET under way to complete with an error (shutdown). @thread owning reactor */
void rv_gets_abandon(struct rv_engine *e);

#endif
