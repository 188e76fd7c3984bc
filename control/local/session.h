/*
 * session.h - the daemon's end of the UNIX socket: one session a connection, one connection a program.
 *
 *   connect --> HELLO --> requests ... --> socket closes or process ends
 *                                            '--> leases detached, session slots dropped, buffers given back
 *                                                 once the process can no longer touch them
 *
 * Requests become messages to engines and calls of the messenger; everything asynchronous holds the session.
 *
 * @thread the net core's
 */
#ifndef RV_CONTROL_LOCAL_SESSION_H
#define RV_CONTROL_LOCAL_SESSION_H

#include <sys/types.h>

#include "control/json/json.h"
#include "control/messenger/messenger.h"
#include "control/uring/listener.h"
#include "dataplane/engine/msg.h"

struct rv_local;

struct rv_local_conf {
	struct rv_reactor *reactor;
	struct rv_uring *ring;
	struct rv_messenger *messenger;
	struct rv_engines *engines;
	uint64_t worker;
	uint64_t default_ttl_ns, call_timeout_ns, drop_dereg_timeout_ns;
	bool has_fabric;
	uint64_t threshold; /* longer payloads of messages are staged */

	/** Add the node's own facts to the status object being written. */
	void (*status)(void *user, struct rv_json_out *o);
	/** An array of its cores, and one of its options, as the next value. */
	void (*cores)(void *user, struct rv_json_out *o);
	void (*config)(void *user, struct rv_json_out *o);
	/** No new work from now on. */
	void (*drain)(void *user);
	/** "ucx tcp" of fabric @index. */
	const char *(*path_name)(void *user, unsigned fabric);
	void *user;
};

struct rv_local *rv_local_create(const struct rv_local_conf *conf);

/** Give back a block nobody will fetch: rv_messenger_conf.drop_block; @local is the struct rv_local. */
void rv_local_drop(void *local, struct rv_engine *e, struct rv_block *b);

/** Serve a socket of rv_listen_unix(). */
void rv_local_listen(struct rv_local *l, int fd);

/** Give every client its regions back, and say so (shutdown). @return how many are left; ask again */
unsigned rv_local_end_regions(struct rv_local *l);

/** Accept no more, close every session. @return what is still there; ask again after polling */
unsigned rv_local_stop(struct rv_local *l);

/** No session may be left. */
void rv_local_destroy(struct rv_local *l);

/** Sessions open. */
uint64_t rv_local_sessions(const struct rv_local *l);

#endif
