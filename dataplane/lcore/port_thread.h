/*
 * port_thread.h - a control thread that does nothing but serve the cells sent to its port.
 */
#ifndef RV_DATAPLANE_LCORE_PORT_THREAD_H
#define RV_DATAPLANE_LCORE_PORT_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "dataplane/lcore/cells.h"

struct rv_port_thread {
	struct rv_port *port;
	const char *name; /* the thread's, at most 15 characters */
	int (*turn)(
		void *user); /* before each wait: milliseconds to wait at most, -1 for ever; may be NULL */
	void *user;
	pthread_t thread;
	bool running;
	_Atomic bool stop;
};

/** Start it; port, name, turn and user are filled in. @return 0 or a negative errno. @thread init */
int rv_port_thread_start(struct rv_port_thread *t);

/** Nobody sends any more: serve what is queued, end the thread. Harmless when it does not run. @thread init */
void rv_port_thread_stop(struct rv_port_thread *t);

#endif
