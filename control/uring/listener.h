/*
 * listener.h - accept connections on a bound socket, TCP or UNIX, with one multishot operation.
 *
 * When descriptors run out (EMFILE) it pauses for RV_LISTENER_REST_NS instead of spinning. Whoever waits then is let in by a
 * spare one and out again: a connection that is ended is told more than one that nobody takes.
 *
 * @thread owning reactor, but for the bind functions (init)
 */
#ifndef RV_CONTROL_URING_LISTENER_H
#define RV_CONTROL_URING_LISTENER_H

#include <sys/types.h>

#include "control/uring/uring.h"
#include "dataplane/base/counter.h"
#include "dataplane/lcore/reactor.h"

#define RV_LISTENER_REST_NS RV_MS(100)

struct rv_listener {
	struct rv_op op;
	struct rv_uring *ring;
	struct rv_reactor *reactor;
	struct rv_task again;
	int fd;
	int spare;               /* -1: it could not be had back */
	uint64_t say_at_ns;      /* no sooner does the log hear of it again */
	struct rv_counter *away; /* of those turned away; may be NULL */
	bool stopping;
	/** Takes over @fd. */
	void (*accepted)(void *user, int fd);
	void *user;
};

/** Bind and listen; @host an IP literal. @return the descriptor or a negative errno; *@port is the real one. */
int rv_listen_tcp(const char *host, uint16_t *port);

/**
 * Bind and listen on a UNIX path. A stale socket (nobody answers) is replaced; a live one is -EADDRINUSE.
 *
 * @param mode permissions; @param gid group of the socket file, or (gid_t)-1
 */
int rv_listen_unix(const char *path, mode_t mode, gid_t gid);

void rv_listener_start(struct rv_listener *l, struct rv_uring *ring, struct rv_reactor *reactor,
		       int fd, void (*accepted)(void *user, int fd), void *user);

/** Accept no more; op.pending tells when it is over. The descriptor is closed then. */
void rv_listener_stop(struct rv_listener *l);

#endif
