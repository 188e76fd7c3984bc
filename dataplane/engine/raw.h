/*
 * raw.h - READs alone, for those who measure: what is asked of a get, and what came of it.
 */
#ifndef RV_DATAPLANE_ENGINE_RAW_H
#define RV_DATAPLANE_ENGINE_RAW_H

#include <stdint.h>

/**
 * Reads of one payload over and over, as fast as the path carries them. The asker's; not touched once it was answered.
 * With it a get by RDMA has no block and no lease for its asker, and never falls back.
 */
struct rv_raw {
	uint64_t iterations;           /* at most */
	uint64_t until_ns;             /* none is begun from then on; 0: no such end */
	unsigned depth;                /* at once, 1 or more */
	uint8_t *bytes;                /* room for what was read last; NULL: not wanted */
	uint64_t *began_ns, *ended_ns; /* of each, room for all; NULL: not wanted */

	uint64_t done_nr, first_ns, last_ns;
};

#endif
