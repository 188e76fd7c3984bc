/*
 * Requests to handlers of this program: kept for the thread that serves them.
 */
#include "control/client/wire_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "dataplane/base/units.h"

int rv_wire_start_serving(struct rv_wire *w)
{
	struct rv_call *stand_in;

	if (w->server)
		return 0; /* its thread could not be made, the last time */
	stand_in = rv_call_new(0);
	if (!stand_in)
		return -ENOMEM;
	pthread_mutex_lock(&w->lock);
	w->server = stand_in;
	pthread_mutex_unlock(&w->lock);
	return 0;
}

void rv_wire_stop_serving(struct rv_wire *w)
{
	pthread_mutex_lock(&w->lock);
	w->server_stop = true;
	if (w->server)
		rv_call_wake(w->server);
	pthread_mutex_unlock(&w->lock);
}

struct rv_wire_request *rv_wire_next_request(struct rv_wire *w)
{
	struct rv_list *it = NULL;
	bool undo;

	pthread_mutex_lock(&w->lock);
	while (!w->dead && !w->server_stop && !(it = rv_list_pop(&w->requests))) {
		if (w->reading)
			rv_wire_sleep_on(w, w->server, RV_NEVER);
		else
			rv_wire_lead(w, 0, RV_NEVER);
	}
	rv_wire_pass_on(w);
	undo = !rv_list_empty(&w->undo);
	pthread_mutex_unlock(&w->lock);
	if (undo)
		rv_wire_run_undo(w);
	return it ? RV_LIST_ENTRY(it, struct rv_wire_request, link) : NULL;
}

void rv_wire_request_free(struct rv_wire *w, struct rv_wire_request *r)
{
	if (r->rep.token)
		rv_wire_post(w, RV_LOCAL_FREE, &(struct rv_local_req){.token = r->rep.token});
	if (r->arena)
		rv_wire_drop_arena(w, r->arena);
	free(r->payload);
	free(r);
}
