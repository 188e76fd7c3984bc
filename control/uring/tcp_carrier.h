/*
 * tcp_carrier.h - the carrier that stock nodes always have: frames over TCP.
 *
 * @thread the net core's
 */
#ifndef RV_CONTROL_URING_TCP_CARRIER_H
#define RV_CONTROL_URING_TCP_CARRIER_H

#include <sys/socket.h>

#include "control/config/config.h"
#include "control/uring/listener.h"
#include "dataplane/base/counter.h"
#include "dataplane/interfaces/carrier.h"

#define RV_TCP_LISTENERS 8

/** Who may connect, and how many: the owner's, who may change it while connections come. */
struct rv_admission {
	_Atomic(const struct rv_config_cidrs *) allow; /* lists that were in force stay readable */
	_Atomic uint32_t max_connections;
};

struct rv_tcp_conf {
	struct rv_uring *ring;
	struct rv_reactor *reactor;
	const struct rv_carrier_events *events;
	void *user;
	uint64_t connect_timeout_ns;
	uint64_t
		handshake_timeout_ns; /* of who connects, until its first frame has come; RV_NEVER */
	uint64_t stall_timeout_ns;    /* of who stops, whether in a frame or altogether */
	const struct rv_admission *admission; /* borrowed */
};

struct rv_tcp_carrier {
	struct rv_carrier carrier;
	struct rv_tcp_conf conf;
	struct rv_list conns;
	struct rv_listener listener[RV_TCP_LISTENERS];
	unsigned listener_nr;
	struct rv_counter connections, refused;
	struct rv_counter silent,
		stalled; /* closed for want of a first frame, or of the rest of one */
};

void rv_tcp_carrier_init(struct rv_tcp_carrier *t, const struct rv_tcp_conf *conf);

/** Serve a socket of rv_listen_tcp(). @return 0 or -ENOSPC */
int rv_tcp_carrier_listen(struct rv_tcp_carrier *t, int fd);

/** Is an address in one of the ranges in force, or is there none? @thread any */
bool rv_tcp_allowed(const struct rv_admission *a, const struct sockaddr *peer);

/** Accept no more. */
void rv_tcp_carrier_stop_listening(struct rv_tcp_carrier *t);

/** Close every connection; finished when none is left. @return how many are */
unsigned rv_tcp_carrier_close_all(struct rv_tcp_carrier *t);

/** Bytes queued over all connections: what a shutdown flushes first. */
size_t rv_tcp_carrier_queued(const struct rv_tcp_carrier *t);

#endif
