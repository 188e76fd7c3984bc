#include "dataplane/base/hash.h"

#include <xxhash.h>

uint64_t rv_hash_xxh3(const void *buf, size_t len)
{
	return XXH3_64bits(buf, len);
}
