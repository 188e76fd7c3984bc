/*
 * chunk_plan.h - the arithmetic of a chunked transfer, checked before anything of its size is allocated.
 */
#ifndef RV_DATAPLANE_ENGINE_CHUNK_PLAN_H
#define RV_DATAPLANE_ENGINE_CHUNK_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/units.h"

/** A chunk must fit one frame of any carrier: header, then the bytes, under 16 MiB. */
#define RV_CHUNK_MAX (RV_MIB(16) - RV_KIB(128))

/** Chunks of @chunk_size that @total_len needs; 0 for nothing. */
static inline uint64_t rv_chunk_count(uint64_t total_len, uint32_t chunk_size)
{
	return total_len / chunk_size + (total_len % chunk_size != 0);
}

static inline uint64_t rv_chunk_offset(uint64_t index, uint32_t chunk_size)
{
	return index * chunk_size;
}

/** Bytes of chunk @index, which exists. */
static inline uint64_t rv_chunk_len(uint64_t index, uint64_t total_len, uint32_t chunk_size)
{
	return rv_min_u64(chunk_size, total_len - rv_chunk_offset(index, chunk_size));
}

/** Do the three numbers of an owner's answer agree with each other? */
static inline bool rv_chunk_plan_sound(uint64_t total_len, uint32_t chunk_size,
				       uint32_t chunk_count)
{
	if (!total_len)
		return chunk_count == 0;
	return chunk_size > 0 && chunk_size <= RV_CHUNK_MAX &&
	       rv_chunk_count(total_len, chunk_size) == chunk_count;
}

/** The chunk size we state for @total_len: @preferred, larger only where the count would not fit its field. */
static inline uint32_t rv_chunk_size_for(uint64_t total_len, uint32_t preferred)
{
	uint32_t size = preferred;

	while (size <= RV_CHUNK_MAX / 2 && rv_chunk_count(total_len, size) > UINT32_MAX)
		size *= 2;
	return size;
}

#endif
