/*
 * pieces.h - the bytes of many short blocks, copied into one buffer.
 */
#ifndef RV_DATAPLANE_MEM_PIECES_H
#define RV_DATAPLANE_MEM_PIECES_H

#include <stddef.h>
#include <stdint.h>

#include "dataplane/mem/arena.h"

struct rv_piece {
	const struct rv_block *block; /* of an arena, or a region's */
	void *dst; /* behind that of the piece before; less than 64 bytes between them become zeros */
	uint64_t len; /* from the block's start; 0: nothing is read, there may be no block */
	int rc;       /* set: 0; or as rv_block_read(), with nothing to be read at @dst */
};

/**
 * Copy each to its place. Memory that a client may write is read by the kernel, all of it that lies in arenas at once.
 *
 * @thread any that has the blocks   @cost two or three system calls and a copy; a call for each piece in a region
 */
void rv_pieces_read(struct rv_piece *p, size_t nr);

#endif
