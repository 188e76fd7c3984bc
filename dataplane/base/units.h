/*
 * units.h - sizes and durations as constants, and the arithmetic of granules and alignment.
 */
#ifndef RV_DATAPLANE_BASE_UNITS_H
#define RV_DATAPLANE_BASE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RV_KIB(n) ((uint64_t)(n) << 10)
#define RV_MIB(n) ((uint64_t)(n) << 20)
#define RV_GIB(n) ((uint64_t)(n) << 30)

#define RV_US(n)  ((uint64_t)(n)*1000u)
#define RV_MS(n)  ((uint64_t)(n)*1000000u)
#define RV_SEC(n) ((uint64_t)(n)*1000000000u)

/** The allocation unit of arenas. */
#define RV_GRANULE 4096u

/** No deadline, no limit. */
#define RV_NEVER UINT64_MAX

#define RV_CACHE_LINE 64

#define RV_ARRAY_NR(a) (sizeof(a) / sizeof((a)[0]))

#define RV_CONTAINER(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline uint64_t rv_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t rv_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/** @n rounded up to a multiple of @align (a power of two). The caller knows that it does not wrap. */
static inline uint64_t rv_align_up(uint64_t n, uint64_t align)
{
	return (n + align - 1) & ~(align - 1);
}

/** Granules that @len bytes need; at least one. */
static inline uint64_t rv_granules(uint64_t len)
{
	return len ? (len - 1) / RV_GRANULE + 1 : 1;
}

/** @a + @b, or RV_NEVER instead of a wrap: deadlines far away stay far away. */
static inline uint64_t rv_sat_add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif
