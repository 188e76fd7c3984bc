#include "dataplane/lcore/ring.h"

#include <stdlib.h>

#include <rte_ring.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

/* struct rv_ring is a struct rte_ring; the name keeps rte_* out of other folders. */
static struct rte_ring *rte(struct rv_ring *r)
{
	return (struct rte_ring *)(void *)r;
}

struct rv_ring *rv_ring_create(unsigned nr)
{
	unsigned count = 2;
	ssize_t size;
	void *mem;

	while (count < nr + 1) /* an rte_ring holds one less than its size */
		count *= 2;
	size = rte_ring_get_memsize(count);
	RV_CHECK(size > 0);
	mem = aligned_alloc(RTE_CACHE_LINE_SIZE, rv_align_up((uint64_t)size, RTE_CACHE_LINE_SIZE));
	if (!mem)
		return NULL;
	RV_CHECK(rte_ring_init(mem, "rv", count, RING_F_SP_ENQ | RING_F_SC_DEQ) == 0);
	return mem;
}

void rv_ring_destroy(struct rv_ring *r)
{
	free(r);
}

bool rv_ring_push(struct rv_ring *r, void *p)
{
	return rte_ring_sp_enqueue(rte(r), p) == 0;
}

void *rv_ring_pop(struct rv_ring *r)
{
	void *p;

	return rte_ring_sc_dequeue(rte(r), &p) == 0 ? p : NULL;
}

bool rv_ring_empty(const struct rv_ring *r)
{
	const struct rte_ring *x = (const struct rte_ring *)(const void *)r;

	/* acquire: pairs with the producer's release in rte_ring; rte_ring_empty() reads its tail as plain memory. */
	return __atomic_load_n(&x->prod.tail, __ATOMIC_ACQUIRE) == x->cons.tail;
}
