/*
 * fabric_verbs.h - the fabric over native verbs: the safe RDMA path. What a peer may read the device checks, nothing
 * is ever registered with remote write, and a key ends with its lease.
 *
 *   owner:     listens with rdma_cm; each consumer has a queue pair and a protection domain of its own here
 *   consumer:  connects the queue pair that it reads with; so there is one each way, for each reactor that reads,
 *              and a refused READ, which breaks its queue pair on both ends, harms nobody else
 *
 * Fence `region`: each lease has a memory region of exactly its bytes, in its consumer's domain; deregistering it is
 * the end of the key, and its return the proof. Fence `window`: it has a memory window of exactly its bytes, bound to
 * the one queue pair that the consumer named; a completed invalidation is the proof. A test at start finds out whether
 * the device enforces all that of windows. Fence `no`: whole maps are readable, by every connected peer.
 *
 * Threads: reactors post READs and poll their own completion queue. The fabric's own thread (cm.h) does all that
 * rdma_cm, the device's events and the making and destroying of queue pairs take: these block, and the prompt
 * thread's keys must not wait for them. See verbs.h for how the two meet.
 */
#ifndef RV_VERBS_FABRIC_VERBS_H
#define RV_VERBS_FABRIC_VERBS_H

#include <sys/socket.h>

#include "dataplane/interfaces/fabric.h"

/** Bytes for a refusal in words. */
#define RV_VERBS_WHY 200

enum rv_verbs_fence {
	RV_VERBS_FENCE_AUTO, /* windows where the device enforces them, else regions */
	RV_VERBS_FENCE_WINDOW,
	RV_VERBS_FENCE_REGION,
	RV_VERBS_FENCE_NO,
};

struct rv_verbs_conf {
	const char *device; /* NULL: the first that is of use */
	unsigned port;
	uint32_t gid_index;   /* UINT32_MAX: auto */
	const char *host;     /* to listen on; a wildcard is the GID's own address */
	uint16_t listen_port; /* 0: any */
	int traffic_class;    /* -1: the system's */
	enum rv_verbs_fence fence;
	uint64_t worker;   /* this node */
	unsigned reactors; /* reactors 0 to reactors - 1 may be opened */
	/** May a peer with this address connect? @thread the fabric's */
	bool (*allows)(void *user, const struct sockaddr *peer);
	void *user;
	char *why; /* RV_VERBS_WHY bytes, written when create fails */
};

/**
 * Open the device, listen, start the thread.
 *
 * @return 0; -ENODEV: no device of use; another negative errno. After any failure conf->why says it in words.
 *
 * @thread init   @cost a few ms   @owns the caller destroys *out
 */
int rv_verbs_create(const struct rv_verbs_conf *conf, struct rv_fabric **out);

/** The port listened on. @thread any */
uint16_t rv_verbs_port(const struct rv_fabric *f);

#endif
