/*
 * base64.h - keys and values as etcd's JSON has them: RFC 4648, with padding.
 *
 * @thread any (no state)   @cost O(bytes)
 */
#ifndef RV_CONTROL_DISCOVERY_BASE64_H
#define RV_CONTROL_DISCOVERY_BASE64_H

#include <stddef.h>
#include <stdint.h>

/** Characters of @len bytes, without the terminator. */
#define RV_BASE64_LEN(len) (((size_t)(len) + 2) / 3 * 4)

/** Write RV_BASE64_LEN(@len) characters and a terminator. */
void rv_base64_encode(const uint8_t *in, size_t len, char *out);

/**
 * Read all of the text, spelt as rv_base64_encode() spells it.
 *
 * @param cap  of @out: 3 for each 4 characters are enough
 * @return 0 and *out_len; -EPROTO: anything else, white space too; -ENOSPC
 */
int rv_base64_decode(const char *in, size_t len, uint8_t *out, size_t cap, size_t *out_len);

#endif
