#include "dataplane/base/hash.h"

#include <xxhash.h>

uint64_t rv_hash_xxh3(const void *buf, size_t len)
{
	return XXH3_64bits(buf, len);
}

/* struct rv_hasher is an XXH3_state_t; the name keeps xxhash.h out of other files. */
static XXH3_state_t *state(struct rv_hasher *h)
{
	return (XXH3_state_t *)(void *)h;
}

struct rv_hasher *rv_hasher_create(void)
{
	XXH3_state_t *s = XXH3_createState();

	if (s)
		XXH3_64bits_reset(s);
	return (struct rv_hasher *)(void *)s;
}

void rv_hasher_add(struct rv_hasher *h, const void *buf, size_t len)
{
	XXH3_64bits_update(state(h), buf, len);
}

uint64_t rv_hasher_sum(const struct rv_hasher *h)
{
	return XXH3_64bits_digest((const XXH3_state_t *)(const void *)h);
}

void rv_hasher_destroy(struct rv_hasher *h)
{
	XXH3_freeState(state(h));
}
