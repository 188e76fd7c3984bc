/*
 * etcd_codec.h - what etcd's JSON gateway answers, as far as it is of use here. Numbers come as text, bytes in base64.
 *
 * @thread any (no state)
 */
#ifndef RV_CONTROL_DISCOVERY_ETCD_CODEC_H
#define RV_CONTROL_DISCOVERY_ETCD_CODEC_H

#include <stdint.h>

#include "control/json/peer_info.h"

/** A lease's number as text, terminated. */
#define RV_ETCD_LEASE 24u

/** The answer to /v3/lease/grant. @return 0 or -EPROTO */
int rv_etcd_take_lease(const char *text, size_t len, char lease[RV_ETCD_LEASE]);

/** The answer to /v3/lease/keepalive. @return 0; -ESTALE: the lease is over; -EPROTO */
int rv_etcd_take_alive(const char *text, size_t len);

/**
 * The answer to /v3/kv/range of one node's key.
 *
 * @return 0 and *out, the caller's to end; -ENOENT: there is no such key; -EPROTO: it is not @worker's PeerInfo; -ENOMEM
 */
int rv_etcd_take_peer(const char *text, size_t len, uint64_t worker, struct rv_peer_info *out);

/** What a refusal says, borrowed into @out; empty: nothing that can be read. */
void rv_etcd_take_error(const char *text, size_t len, char *out, size_t cap);

#endif
