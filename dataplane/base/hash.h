/*
 * hash.h - the one hash of the protocol: XXH3, 64 bits, seed 0 (WorkerIds, discovery checksums, verify).
 */
#ifndef RV_DATAPLANE_BASE_HASH_H
#define RV_DATAPLANE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/** XXH3-64, seed 0, of @len bytes. @thread any @cost about 10 GB/s */
uint64_t rv_hash_xxh3(const void *buf, size_t len);

struct rv_hasher;

/** XXH3-64 piece by piece. @return NULL without memory @thread any */
struct rv_hasher *rv_hasher_create(void);
void rv_hasher_add(struct rv_hasher *h, const void *buf, size_t len);
/** The hash of all that was added. */
uint64_t rv_hasher_sum(const struct rv_hasher *h);
void rv_hasher_destroy(struct rv_hasher *h);

/** Spread a 64-bit key over table indices. Not a protocol value. */
static inline uint64_t rv_hash_u64(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

#endif
