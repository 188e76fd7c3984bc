/*
 * rkey.h - a peer's packed key, for one GET.
 *
 *   bytes --rv_rkey_parse--> framing holds --copy before a pad of ff--> ucp_ep_rkey_unpack --> one GET --> destroyed
 *
 * Never cached: a stale key on a native lane costs the connection, and only the acquire at hand knows it fresh.
 */
#ifndef RV_UCX_RKEY_H
#define RV_UCX_RKEY_H

#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp.h>

/**
 * @return 0; -EPROTO when the key must not reach UCX, or UCX cannot use it; -ENOMEM
 * @thread owning reactor   @cost O(len), no allocation of ours   @owns the caller destroys *out
 */
int rv_ucx_rkey_unpack(ucp_ep_h ep, const uint8_t *key, size_t len, ucp_rkey_h *out);

#endif
