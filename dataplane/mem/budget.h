/*
 * budget.h - how many bytes may be registered, and how many plain ones may be held.
 *
 * Whole pages are counted, once for each arena whatever fabrics know it. Over the budget is never an
 * error: the caller takes plain memory and the chunked path.
 */
#ifndef RV_DATAPLANE_MEM_BUDGET_H
#define RV_DATAPLANE_MEM_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Taken and given by the slow thread, and for leases' keys by the prompt one. Relaxed: the numbers order nothing.
 */
struct rv_budget {
	_Atomic uint64_t limit; /* written by the slow thread */
	_Atomic uint64_t used;
};

/** @return false when @bytes do not fit. @thread slow, prompt */
static inline bool rv_budget_take(struct rv_budget *b, uint64_t bytes)
{
	uint64_t used = atomic_load_explicit(&b->used, memory_order_relaxed);
	uint64_t limit = atomic_load_explicit(&b->limit, memory_order_relaxed);

	do {
		if (bytes > limit || used > limit - bytes)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
		&b->used, &used, used + bytes, memory_order_relaxed, memory_order_relaxed));
	return true;
}

static inline void rv_budget_give(struct rv_budget *b, uint64_t bytes)
{
	atomic_fetch_sub_explicit(&b->used, bytes, memory_order_relaxed);
}

/** @thread any */
static inline uint64_t rv_budget_used(const struct rv_budget *b)
{
	return atomic_load_explicit(&b->used, memory_order_relaxed);
}

static inline uint64_t rv_budget_limit(const struct rv_budget *b)
{
	return atomic_load_explicit(&b->limit, memory_order_relaxed);
}

static inline uint64_t rv_budget_left(const struct rv_budget *b)
{
	uint64_t used = rv_budget_used(b), limit = rv_budget_limit(b);

	return used < limit ? limit - used : 0;
}

#endif
