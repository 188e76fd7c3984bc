/*
 * exact.h - hand a decoder bytes in a heap block of exactly their size, so that ASan sees any byte
 * read behind them.
 */
#ifndef RV_TESTS_UNIT_EXACT_H
#define RV_TESTS_UNIT_EXACT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

/** Does @decode take these bytes, seen in a block of exactly their size? */
static inline bool exact_accepts(const void *bytes, size_t len,
				 bool (*decode)(const uint8_t *buf, size_t len))
{
	uint8_t *block = malloc(len ? len : 1);
	bool ok;

	assert_non_null(block);
	if (len)
		memcpy(block, bytes, len);
	ok = decode(block, len);
	free(block);
	return ok;
}

/** The whole message is taken, and cut at any byte before its end it is not. */
static inline void exact_cut_everywhere(const void *bytes, size_t len,
					bool (*decode)(const uint8_t *buf, size_t len))
{
	assert_true(exact_accepts(bytes, len, decode));
	for (size_t n = 0; n < len; n++)
		if (exact_accepts(bytes, n, decode))
			fail_msg("%zu of %zu bytes were taken", n, len);
}

/** Two characters a byte, blanks ignored. @return the number of bytes */
static inline size_t from_hex(const char *hex, uint8_t *out, size_t cap)
{
	size_t n = 0;

	for (; *hex; hex++) {
		char pair[3] = {hex[0], hex[0] == ' ' ? '\0' : hex[1], '\0'};

		if (*hex == ' ')
			continue;
		assert_true(n < cap);
		out[n++] = (uint8_t)strtoul(pair, NULL, 16);
		hex++;
	}
	return n;
}

#endif
