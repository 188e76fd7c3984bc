#include "control/discovery/base64.h"

#include <errno.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void rv_base64_encode(const uint8_t *in, size_t len, char *out)
{
	for (size_t i = 0; i < len; i += 3) {
		size_t n = len - i < 3 ? len - i : 3;
		uint32_t v = (uint32_t)in[i] << 16;

		if (n > 1)
			v |= (uint32_t)in[i + 1] << 8;
		if (n > 2)
			v |= in[i + 2];
		*out++ = digits[v >> 18];
		*out++ = digits[v >> 12 & 63];
		*out++ = n > 1 ? digits[v >> 6 & 63] : '=';
		*out++ = n > 2 ? digits[v & 63] : '=';
	}
	*out = '\0';
}

/* @return 0 .. 63, or -1 */
static int digit(char c)
{
	const char *p = c ? strchr(digits, c) : NULL;

	return p ? (int)(p - digits) : -1;
}

/* Four characters of which the last @pad are padding. @return bytes, or -1 */
static int take_four(const char in[4], unsigned pad, uint8_t out[3])
{
	uint32_t v = 0;

	for (unsigned i = 0; i < 4 - pad; i++) {
		int d = digit(in[i]);

		if (d < 0)
			return -1;
		v |= (uint32_t)d << (18 - 6 * i);
	}
	if (v & ((1u << 8 * pad) - 1))
		return -1; /* bits that belong to no byte */
	out[0] = (uint8_t)(v >> 16);
	out[1] = (uint8_t)(v >> 8);
	out[2] = (uint8_t)v;
	return (int)(3 - pad);
}

int rv_base64_decode(const char *in, size_t len, uint8_t *out, size_t cap, size_t *out_len)
{
	size_t got = 0;

	if (len % 4)
		return -EPROTO;
	for (size_t i = 0; i < len; i += 4) {
		unsigned pad = 0;
		uint8_t three[3];
		int n;

		if (i + 4 == len)
			pad = in[i + 3] != '=' ? 0 : in[i + 2] != '=' ? 1 : 2;
		n = take_four(in + i, pad, three);
		if (n < 0)
			return -EPROTO;
		if ((size_t)n > cap - got)
			return -ENOSPC;
		memcpy(out + got, three, (size_t)n);
		got += (size_t)n;
	}
	*out_len = got;
	return 0;
}
