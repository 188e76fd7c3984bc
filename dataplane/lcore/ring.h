/*
 * ring.h - a bounded FIFO of pointers between exactly one producer and one consumer thread.
 *
 * rte_ring in single-producer, single-consumer mode on memory of our own: no EAL needed. What the producer
 * wrote before rv_ring_push() the consumer sees after rv_ring_pop() (release and acquire inside rte_ring).
 */
#ifndef RV_DATAPLANE_LCORE_RING_H
#define RV_DATAPLANE_LCORE_RING_H

#include <stdbool.h>
#include <stddef.h>

struct rv_ring;

/** Room for at least @nr pointers. @return NULL without memory. @thread init */
struct rv_ring *rv_ring_create(unsigned nr);
void rv_ring_destroy(struct rv_ring *r);

/** @return false when full. @thread the producer @cost O(1) */
bool rv_ring_push(struct rv_ring *r, void *p);

/** @return NULL when empty. @thread the consumer @cost O(1) */
void *rv_ring_pop(struct rv_ring *r);

/** @thread the consumer: a push that happened before is seen. */
bool rv_ring_empty(const struct rv_ring *r);

#endif
