/*
 * device.h - which device, port and GID this node uses, and what they can do.
 *
 * auto takes the first device whose port is active and has a GID to use. Of the GIDs a routable one goes before a
 * link-local one, RoCE v2 before v1.
 *
 * @thread init
 */
#ifndef RV_VERBS_DEVICE_H
#define RV_VERBS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <infiniband/verbs.h>

#define RV_VERBS_AUTO UINT32_MAX

struct rv_verbs_device {
	struct ibv_context *ctx;
	char name[64];
	uint8_t port;
	unsigned gid_index;
	bool has_ip; /* RoCE: the GID is an address of the port's interface */
	struct sockaddr_storage ip;
	uint32_t read_max;   /* bytes of one READ */
	unsigned reads_out;  /* READs that one queue pair may have under way */
	unsigned reads_in;   /* READs that it answers at once */
	unsigned cqe_max;    /* entries of one completion queue */
	uint64_t region_max; /* bytes of one memory region */
};

/** A usable entry of a port's GID table. */
struct rv_verbs_gid {
	uint32_t index;
	union ibv_gid gid;
	enum ibv_gid_type type;
};

/**
 * Which of @nr GIDs to use.
 *
 * @param wanted  the index to use whatever it is, or RV_VERBS_AUTO
 * @return its place in @g, or -1: none, or not the wanted one
 */
int rv_verbs_gid_choose(const struct rv_verbs_gid *g, size_t nr, uint32_t wanted);

/** A RoCE GID as an address. */
void rv_verbs_gid_ip(const union ibv_gid *gid, struct sockaddr_storage *out);

/**
 * Open the device.
 *
 * @param name  or NULL: the first of use
 * @param why   @why_cap bytes; written on failure
 * @return 0; -ENODEV: there is none, or none of use
 */
int rv_verbs_device_open(struct rv_verbs_device *d, const char *name, unsigned port,
			 uint32_t gid_index, char *why, size_t why_cap);
void rv_verbs_device_close(struct rv_verbs_device *d);

#endif
