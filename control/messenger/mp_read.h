/*
 * mp_read.h - reading msgpack that a stranger wrote, one element at a time, from the cursor.
 *
 * Nothing is allocated and nothing recurses: an element count is believed only as far as bytes are
 * left to hold the elements, and what is not wanted is skipped by counting. Writing goes through
 * msgpack-c (rv_mp_write below is its output callback).
 *
 * @thread any (no state)   @cost O(bytes)
 */
#ifndef RV_CONTROL_MESSENGER_MP_READ_H
#define RV_CONTROL_MESSENGER_MP_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"

enum rv_mp_kind {
	RV_MP_BAD, /* truncated or not msgpack; the cursor is bad too */
	RV_MP_NIL,
	RV_MP_BOOL,
	RV_MP_UINT, /* any integer that is not negative, however it was written */
	RV_MP_NEGATIVE,
	RV_MP_FLOAT,
	RV_MP_STR,
	RV_MP_BIN,
	RV_MP_ARRAY,
	RV_MP_MAP,
	RV_MP_EXT,
};

struct rv_mp {
	enum rv_mp_kind kind;
	uint64_t u;          /* UINT; NEGATIVE: two's complement; BOOL: 0 or 1 */
	uint32_t nr;         /* ARRAY: elements; MAP: pairs; STR, BIN, EXT: bytes */
	const uint8_t *data; /* STR, BIN, EXT: borrowed */
};

/** The next element; of an array or a map only its head. */
struct rv_mp rv_mp_take(struct rv_cursor *c);

/** Pass over the next element and all it contains. @return false when the bytes are not msgpack */
bool rv_mp_skip(struct rv_cursor *c);

/** An unsigned integer up to @max. @return false for anything else */
bool rv_mp_take_uint(struct rv_cursor *c, uint64_t max, uint64_t *out);

/** Text: a str or a bin that holds UTF-8; borrowed, not terminated. @return false for all else */
bool rv_mp_take_text(struct rv_cursor *c, const char **text, size_t *len);

/**
 * A byte string in either of its forms, bin or array of integers 0..255, appended to @w.
 *
 * @return false for anything else; what did not fit shows as w->bad and in w->len
 */
bool rv_mp_take_byte_string(struct rv_cursor *c, struct rv_writer *w);

/** msgpack_packer's output callback; its user pointer is a struct rv_writer. */
int rv_mp_write(void *writer, const char *buf, size_t len);

/** Write a byte string as stock nodes write it: an array of integers. */
void rv_mp_put_byte_string(struct rv_writer *w, const uint8_t *bytes, size_t len);

#endif
