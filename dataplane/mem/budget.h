/*
 * budget.h - how many bytes may be registered, and how many plain ones may be held.
 *
 * Whole pages are counted, once for each arena whatever fabrics know it. Over the budget is never an
 * error: the caller takes plain memory and the chunked path.
 */
#ifndef RV_DATAPLANE_MEM_BUDGET_H
#define RV_DATAPLANE_MEM_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

struct rv_budget {
	uint64_t limit;
	uint64_t used;
};

/** @return false when @bytes do not fit. @thread slow (the budget's owner) */
static inline bool rv_budget_take(struct rv_budget *b, uint64_t bytes)
{
	if (bytes > b->limit || b->used > b->limit - bytes)
		return false;
	b->used += bytes;
	return true;
}

static inline void rv_budget_give(struct rv_budget *b, uint64_t bytes)
{
	b->used -= bytes;
}

static inline uint64_t rv_budget_left(const struct rv_budget *b)
{
	return b->used < b->limit ? b->limit - b->used : 0;
}

#endif
