/*
 * prompt.h - the prompt thread: makes and revokes the keys of leases, which must not wait behind the slow thread's
 * registrations.
 *
 *   engine --make--> budget -> fabric's export_key -> key back to the engine
 *   engine --revoke--> fabric's revoke_key, proven -> budget returned
 *
 * What a key pins counts against the registered-bytes budget again. Of a key that cannot be revoked it stays taken.
 */
#ifndef RV_CONTROL_SERVICE_PROMPT_H
#define RV_CONTROL_SERVICE_PROMPT_H

#include "dataplane/lcore/port_thread.h"
#include "control/service/registrar.h"
#include "dataplane/engine/export.h"

struct rv_prompt {
	struct rv_registrar *registrar;
	struct rv_port_thread thread;

	/* Written by the prompt thread, read by metrics. */
	struct rv_counter
		pinned_bytes; /* of keys that are there: they are in the budget, and in no arena */
	struct rv_counter made, refused, stuck;
};

/** @thread init */
void rv_prompt_init(struct rv_prompt *p, struct rv_port *port, struct rv_registrar *registrar);

/** Start the thread. @return 0 or a negative errno */
int rv_prompt_start(struct rv_prompt *p);

/** Every reactor has ended: serve what is queued, end the thread. */
void rv_prompt_stop(struct rv_prompt *p);

/** For rv_engine_conf.export_ask; the user is a struct rv_registrar_client. @thread the engine's reactor */
int rv_prompt_ask(void *user, const struct rv_export_ask *a);

#endif
