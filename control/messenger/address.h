/*
 * address.h - a WorkerAddress: by which ways a peer can be reached, one byte string a transport.
 *
 *   map { "tcp": [[name, ip, port, prefix, numa], ...]
 *         "ucx": [blob version, 0x5645, eager_max, incarnation, worker address]
 *         "rvd": {"v": 1, ...}                            our own nodes only
 *         any other key: skipped }
 *
 * A value that is no byte string, under any key, spoils the whole address. A byte string that its
 * own transport cannot read spoils only that transport: it shows as `tcp_refused`, `ucx_refused`,
 * or no `rvd`.
 *
 * @thread any (no state)   @cost O(bytes); decoding holds one value at a time on the heap
 */
#ifndef RV_CONTROL_MESSENGER_ADDRESS_H
#define RV_CONTROL_MESSENGER_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/json/peer_info.h"
#include "dataplane/base/bytes.h"

#define RV_ADDRESS_TCP_MAX     16u
#define RV_ADDRESS_HOST_MAX    256u
#define RV_ADDRESS_UCX_MAX     4096u
#define RV_ADDRESS_VERBS_MAX   512u
/** Polling cores of a peer beyond its first. */
#define RV_ADDRESS_WORKERS_MAX 63u

/** First active-message id of the messenger over UCX; part of every blob. */
#define RV_UCX_AM_ID_BASE 0x5645u

struct rv_tcp_endpoint {
	char name[16];                /* interface, cut to fit; may be empty */
	char ip[RV_ADDRESS_HOST_MAX]; /* literal; from the legacy text form also a host name */
	uint16_t port;
	uint8_t prefix_len;
	int numa; /* -1: not told */
};

struct rv_ucx_blob {
	uint8_t version;
	uint32_t eager_max;
	uint64_t incarnation;
	const uint8_t *worker_addr;
	size_t worker_addr_len;
};

/*
 * Decoded: ucx.worker_addr points into ucx_bytes, so do not copy the struct by assignment.
 * To encode: ucx.worker_addr may point anywhere.
 */
struct rv_address {
	struct rv_tcp_endpoint tcp[RV_ADDRESS_TCP_MAX];
	size_t tcp_nr;
	bool tcp_refused; /* the key is there, and nothing in it can be dialed */
	bool has_ucx;
	bool ucx_refused; /* the key is there: other version or id base, empty, too long, broken */
	struct rv_ucx_blob ucx;
	uint8_t ucx_bytes[RV_ADDRESS_UCX_MAX];
	bool has_rvd;
	uint32_t rvd_version;
	uint8_t verbs[RV_ADDRESS_VERBS_MAX]; /* the peer's verbs backend's own bytes */
	size_t verbs_len;
	/* UCX workers of its other polling cores, with ucx's incarnation; a list as in rv_peer_workers_add(). */
	uint8_t workers[RV_ADDRESS_UCX_MAX];
	size_t workers_len;
};

/**
 * Read a WorkerAddress. Bytes behind the map are ignored.
 *
 * @param want_blob_version  the blob version this node speaks: 1 or 2
 * @param[out] out           written only on success; it is about 10 KiB, keep it off deep stacks
 * @return 0 (even when no transport is usable: see rv_address_usable()); -EPROTO; -ENOMEM
 */
int rv_address_decode(const uint8_t *buf, size_t len, unsigned want_blob_version,
		      struct rv_address *out);

/** Is there a transport by which this node could reach the peer? */
static inline bool rv_address_usable(const struct rv_address *a)
{
	return a->tcp_nr > 0 || a->has_ucx;
}

/**
 * Write a WorkerAddress: `tcp` when there are endpoints, `ucx` and `rvd` where present, in this
 * order.
 *
 * @return 0; -EINVAL for an empty or too long part; -ENOSPC when the writer is too small
 */
int rv_address_encode(struct rv_writer *w, const struct rv_address *a);

/**
 * PeerInfo as msgpack: [uuid, WorkerAddress], or a map of both; the caller frees it with
 * rv_peer_info_fini().
 */
int rv_peer_info_decode_msgpack(const uint8_t *buf, size_t len, struct rv_peer_info *out);

/** PeerInfo as msgpack, as stock nodes write it. @return 0, or -ENOSPC */
int rv_peer_info_encode_msgpack(struct rv_writer *w, const struct rv_peer_info *in);

#endif
