/*
 * counter.h - statistics with one writing thread, readable by any.
 *
 * relaxed: a counter orders nothing; the reader only wants a value that was once true and is not torn.
 */
#ifndef RV_DATAPLANE_BASE_COUNTER_H
#define RV_DATAPLANE_BASE_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

struct rv_counter {
	_Atomic uint64_t v;
};

/** @thread the counter's one writer   @cost a load and a store */
static inline void rv_counter_add(struct rv_counter *c, uint64_t n)
{
	uint64_t v = atomic_load_explicit(&c->v, memory_order_relaxed);

	atomic_store_explicit(&c->v, v + n, memory_order_relaxed);
}

/** @thread the counter's one writer */
static inline void rv_counter_sub(struct rv_counter *c, uint64_t n)
{
	uint64_t v = atomic_load_explicit(&c->v, memory_order_relaxed);

	atomic_store_explicit(&c->v, v - n, memory_order_relaxed);
}

/** @thread the counter's one writer */
static inline void rv_counter_set(struct rv_counter *c, uint64_t n)
{
	atomic_store_explicit(&c->v, n, memory_order_relaxed);
}

/** @thread any */
static inline uint64_t rv_counter_get(const struct rv_counter *c)
{
	return atomic_load_explicit(&c->v, memory_order_relaxed);
}

#endif
