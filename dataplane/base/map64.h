/*
 * map64.h - a small hash map from a 64-bit key to a pointer; open addressing, linear probing, grows by
 * doubling. For control-plane tables (peers, transfers); slots and leases use mem-indexed ids instead.
 *
 * @thread owner only   @cost O(1) expected; rv_map64_put O(n) when it grows
 */
#ifndef RV_DATAPLANE_BASE_MAP64_H
#define RV_DATAPLANE_BASE_MAP64_H

#include <stddef.h>
#include <stdint.h>

struct rv_map64 {
	struct rv_map64_entry {
		uint64_t key;
		void *value; /* NULL: free */
	} * entry;
	size_t cap; /* 0 or a power of two */
	size_t nr;
};

/** Free the table; the values are the caller's. A zeroed map is an empty one. */
void rv_map64_fini(struct rv_map64 *m);

/** @return the value, or NULL */
void *rv_map64_get(const struct rv_map64 *m, uint64_t key);

/** Put or replace; @value must not be NULL. @return 0 or -ENOMEM */
int rv_map64_put(struct rv_map64 *m, uint64_t key, void *value);

/** Remove. @return what was there, or NULL */
void *rv_map64_del(struct rv_map64 *m, uint64_t key);

/**
 * Walk: start with *@pos = 0, ends with NULL. The map must not change between calls.
 */
void *rv_map64_next(const struct rv_map64 *m, size_t *pos);

#endif
