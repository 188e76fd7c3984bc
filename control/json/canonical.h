/*
 * canonical.h - reading JSON that is spelled exactly as stock nodes spell it, without a parser.
 *
 * A mismatch spoils the cursor, like a short buffer: the caller then starts again with the real
 * parser.
 */
#ifndef RV_CONTROL_JSON_CANONICAL_H
#define RV_CONTROL_JSON_CANONICAL_H

#include <string.h>

#include "dataplane/base/bytes.h"

/** Exactly these characters. */
static inline void rv_canon_text(struct rv_cursor *c, const char *want)
{
	size_t len = strlen(want);
	const uint8_t *p = rv_take_bytes(c, len);

	if (p && memcmp(p, want, len) != 0)
		c->bad = true;
}

/** Is @b what comes next? Nothing is taken. */
static inline bool rv_canon_next(const struct rv_cursor *c, char b)
{
	return !c->bad && rv_cursor_left(c) > 0 && *c->p == (uint8_t)b;
}

/** An integer 0 .. @max, without a leading zero. */
static inline uint64_t rv_canon_u64(struct rv_cursor *c, uint64_t max)
{
	const uint8_t *first = c->p;
	uint64_t n = 0;

	while (!c->bad && rv_cursor_left(c) > 0 && *c->p >= '0' && *c->p <= '9') {
		if (__builtin_mul_overflow(n, 10u, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(*c->p - '0'), &n))
			c->bad = true;
		else
			c->p++;
	}
	if (c->p == first || (*first == '0' && c->p - first > 1) || n > max)
		c->bad = true;
	return c->bad ? 0 : n;
}

/** All was as expected, and nothing is left over. */
static inline bool rv_canon_done(const struct rv_cursor *c)
{
	return !c->bad && rv_cursor_left(c) == 0;
}

#endif
