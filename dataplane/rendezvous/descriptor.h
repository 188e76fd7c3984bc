/*
 * descriptor.h - what an owner tells a consumer about bytes it may read: 29 bytes and a packed key.
 *
 *   | backend 1 | version 1 | flags 1 | generation 8 | addr 8 | len 8 | K 2 | key K |   LE
 *
 * The key is the backend's own and is not looked into here. A refusal is a verdict on a peer's
 * bytes, not an error: the consumer detaches and takes the chunked path.
 *
 * @thread any (no state)   @cost O(1), no allocation
 */
#ifndef RV_DATAPLANE_RENDEZVOUS_DESCRIPTOR_H
#define RV_DATAPLANE_RENDEZVOUS_DESCRIPTOR_H

#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"

enum rv_backend {
	RV_BACKEND_UCX = 1,
	RV_BACKEND_VERBS = 2,
};

#define RV_DESC_VERSION 1u
#define RV_DESC_FIXED   29u
#define RV_DESC_KEY_MAX 4096u
#define RV_DESC_MAX     (RV_DESC_FIXED + RV_DESC_KEY_MAX)

enum rv_refusal {
	RV_ACCEPT = 0,
	RV_REFUSE_TRUNCATED,
	RV_REFUSE_TRAILING,
	RV_REFUSE_BACKEND,
	RV_REFUSE_VERSION,
	RV_REFUSE_FLAGS,
	RV_REFUSE_EMPTY,
	RV_REFUSE_KEY,
	RV_REFUSAL_NR,
};

struct rv_desc {
	uint8_t backend; /* enum rv_backend */
	uint8_t version;
	uint8_t flags;
	uint64_t generation; /* carried, never checked */
	uint64_t addr;       /* in the owner's process; the consumer never computes one */
	uint64_t len;        /* the whole slot, never 0 */
	uint16_t rkey_len;
	const uint8_t *rkey; /* borrowed */
};

/**
 * Read a descriptor; every byte must be accounted for.
 *
 * @param[out] out  written only when accepted; its rkey is borrowed from @buf
 * @return RV_ACCEPT, or the first rule that was broken
 */
enum rv_refusal rv_desc_decode(const uint8_t *buf, size_t len, struct rv_desc *out);

/**
 * Write a descriptor, with the version and flags of this release whatever @d says.
 *
 * @return 0; -EINVAL for an unknown backend, an empty range or a key that is empty or over
 *         RV_DESC_KEY_MAX; -ENOSPC when the writer is too small
 */
int rv_desc_encode(struct rv_writer *w, const struct rv_desc *d);

/** A word for logs and counters: "accept", "truncated", ...; never NULL. */
const char *rv_refusal_name(enum rv_refusal r);

#endif
