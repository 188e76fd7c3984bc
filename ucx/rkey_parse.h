/*
 * rkey_parse.h - proof that UCX's own walk through a packed remote key stays inside the blob.
 *
 * ucp_ep_rkey_unpack() takes no length, so a peer's key is walked here first:
 *
 *   | md_map 8 | mem_type 1 | {n 1, n bytes} per set bit | sys_dev 1 | {dev, lat, bw}* | ff |
 *
 * With an empty md_map UCX stops after mem_type; with sys_dev ff it stops there. The distances that
 * follow any other sys_dev have no bound in UCX: their end mark must lie inside the blob, on the
 * 3-byte stride. This proves the framing only: a well-framed but stale key is not detectable.
 *
 * No UCX header is used here. The one who unpacks still copies the key in front of RV_RKEY_PAD
 * bytes of ff, since a transport's key parser may read up to 8 bytes behind a short entry.
 *
 * @thread any (no state)   @cost O(len), no allocation
 */
#ifndef RV_UCX_RKEY_PARSE_H
#define RV_UCX_RKEY_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RV_RKEY_MAX 1024u
#define RV_RKEY_PAD 512u

enum rv_rkey_verdict {
	RV_RKEY_OK = 0,
	RV_RKEY_TRUNCATED, /* ends inside md_map, mem_type or a domain's key, or has no sys_dev */
	RV_RKEY_TOO_LONG,
	RV_RKEY_MEM_TYPE, /* unknown, or not host memory where only that is wanted */
	RV_RKEY_NO_END,   /* distances without their end mark */
	RV_RKEY_VERDICT_NR,
};

/**
 * Walk a packed key.
 *
 * @param host_only  refuse every memory type but host memory
 * @return RV_RKEY_OK, or why the key must not reach UCX
 */
enum rv_rkey_verdict rv_rkey_parse(const uint8_t *key, size_t len, bool host_only);

/** A word for logs and counters; never NULL. */
const char *rv_rkey_verdict_name(enum rv_rkey_verdict v);

#endif
