/*
 * fabric_ucx.h - the fabric over UCX: one context for the node, one worker for each reactor.
 *
 * With RMA on, any peer that reaches a worker can read and write this process: UCX is for trusted fabrics.
 * `auto` arms it only where a native lane exists (the device reads remote memory) and names native lanes and
 * their wire-up helpers alone; `yes` takes tcp too, where UCX emulates the GET in software on the owner's
 * worker.
 *
 * Before the fabric is handed out it has read its own memory through itself, and its own key has passed the
 * check that peers' keys must pass.
 */
#ifndef RV_UCX_FABRIC_UCX_H
#define RV_UCX_FABRIC_UCX_H

#include "dataplane/interfaces/fabric.h"

/** Bytes for a refusal in words. */
#define RV_UCX_WHY 160

enum rv_ucx_mode {
	RV_UCX_AUTO, /* native lanes or nothing */
	RV_UCX_YES,  /* whatever UCX finds */
};

struct rv_ucx_conf {
	enum rv_ucx_mode mode;
	const char *tls;         /* UCX_TLS, or NULL or "auto"; the environment wins */
	const char *net_devices; /* UCX_NET_DEVICES, or NULL or "auto"; the environment wins */
	bool eager_endpoints; /* make a peer's endpoint when it becomes known, not at its first use */
	uint64_t idle_ns;     /* rv_ucx_set_idle() */
	unsigned reactors;    /* reactors 0 to reactors - 1 may be opened */
	char *why;            /* RV_UCX_WHY bytes, written when create fails; or NULL */
};

/**
 * Make the fabric and prove that it works.
 *
 * @return 0; -ENOTSUP when this machine or configuration has no lane to use; -ETIMEDOUT, -EIO and others
 *         when the self-check failed. After any failure conf->why says it in words.
 *
 * @thread init   @cost 50 to 400 ms   @owns the caller destroys *out
 */
int rv_ucx_create(const struct rv_ucx_conf *conf, struct rv_fabric **out);

/** Version of the UCX library, whether or not a fabric uses it. @thread any */
const char *rv_ucx_version(void);

/** Endpoints that neither side used for @idle_ns are closed from now on; 0 or RV_NEVER: none is. @thread any */
void rv_ucx_set_idle(struct rv_fabric *f, uint64_t idle_ns);

/**
 * Read our own memory through a worker of our own: the packed key must parse to its last byte, and a GET must
 * bring the right bytes. rv_ucx_create() runs it; no reactor may be open.
 *
 * @param deadline_ns  how long it may take
 * @param why          RV_UCX_WHY bytes; written on failure
 * @return 0, or a negative errno
 *
 * @thread init   @cost a few ms; blocks for @deadline_ns at most
 */
int rv_ucx_self_check(struct rv_fabric *f, uint64_t deadline_ns, char *why);

#endif
