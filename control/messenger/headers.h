/*
 * headers.h - the map of names and values that a request may carry: msgpack, text to text.
 *
 * Keys with a meaning to the protocol start with `_rv`; all others belong to applications and
 * travel untouched. An absent map (length 0) is fine everywhere here and has no keys.
 *
 * @thread any (no state)   @cost O(bytes), no allocation
 */
#ifndef RV_CONTROL_MESSENGER_HEADERS_H
#define RV_CONTROL_MESSENGER_HEADERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/handle.h"

/** "The payload is staged under this handle." */
#define RV_HEADER_STAGED    "_rv"
/** How long the sender's call may still take, and how long its staged slot lives; milliseconds. */
#define RV_HEADER_BUDGET_MS "_rv_budget_ms"
#define RV_HEADER_LEASE_MS  "_rv_lease_ms"
/*
 * `_rvd_get`, all decimal. Request: the longest payload that may come with the answer, and whether it ends the lease.
 * Answer, if the payload came along: the lease (0: it is over), and what the payload hashes to.
 */
#define RV_HEADER_BYTES     "_rvd_bytes"
#define RV_HEADER_ENDS      "_rvd_ends"
#define RV_HEADER_LEASE     "_rvd_lease"
#define RV_HEADER_XXH3      "_rvd_xxh3"

/** Longest value that a sender may put in. */
#define RV_HEADER_VALUE_MAX 1024u

struct rv_header_pair {
	const char *key;
	const char *val; /* UTF-8, not terminated */
	size_t val_len;
};

/** Room for any number. */
#define RV_HEADER_DIGITS 20u

/** Is this a map of text to text? @return 0, or -EPROTO: drop the message */
int rv_headers_check(const uint8_t *buf, size_t len);

/**
 * Find the value of a key; of several the last, as stock nodes do.
 *
 * @param[out] val  borrowed from @buf, not terminated
 * @return 0; -ENOENT; -EPROTO for a map that rv_headers_check() refuses
 */
int rv_headers_find(const uint8_t *buf, size_t len, const char *key, const char **val,
		    size_t *val_len);

/**
 * The same for several keys at once: @want names them, and what is not there has no value then.
 *
 * @return 0; -EPROTO for a map that rv_headers_check() refuses
 */
int rv_headers_find_each(const uint8_t *buf, size_t len, struct rv_header_pair *want, size_t nr);

/** What was found, as a number. @return false when absent, empty, over 2^64 - 1 or not a plain decimal */
bool rv_header_u64(const struct rv_header_pair *p, uint64_t *n);

/** A number to be written. @param text  where its digits go, borrowed by the pair */
struct rv_header_pair rv_header_number(const char *key, char text[RV_HEADER_DIGITS], uint64_t n);

/** The handle of a staged payload. @return 0; -ENOENT; -EPROTO; -EINVAL or -ERANGE: not a handle */
int rv_headers_find_staged(const uint8_t *buf, size_t len, struct rv_handle *out);

/** A number. @return false when absent, empty, over 2^64 - 1 or not a plain decimal */
bool rv_headers_find_u64(const uint8_t *buf, size_t len, const char *key, uint64_t *n);

/** Milliseconds. @return false when absent, empty, 0, over 2^64 - 1 or not a plain decimal */
bool rv_headers_find_ms(const uint8_t *buf, size_t len, const char *key, uint64_t *ms);

/**
 * Write a map of @nr pairs, in their order.
 *
 * @return 0; -EINVAL for a value over RV_HEADER_VALUE_MAX; -ENOSPC when it does not fit, or is over
 *         RV_HEADERS_MAX
 */
int rv_headers_encode(struct rv_writer *w, const struct rv_header_pair *pairs, size_t nr);

#endif
