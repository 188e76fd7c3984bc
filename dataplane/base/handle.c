#include "dataplane/base/handle.h"

#include <errno.h>
#include <string.h>

int rv_handle_parse_text(const char *text, size_t len, struct rv_handle *out)
{
	unsigned __int128 v = 0;
	size_t i = len && text[0] == '+' ? 1 : 0;

	if (i == len)
		return -EINVAL;
	for (; i < len; i++) {
		unsigned digit = (unsigned)((unsigned char)text[i] - '0');

		if (digit > 9)
			return -EINVAL;
		if (v > (~(unsigned __int128)0 - digit) / 10)
			return -ERANGE;
		v = v * 10 + digit;
	}
	out->worker = (uint64_t)(v >> 64);
	out->local = (uint64_t)v;
	return 0;
}

size_t rv_handle_format_text(struct rv_handle h, char out[RV_HANDLE_TEXT])
{
	unsigned __int128 v = (unsigned __int128)h.worker << 64 | h.local;
	char rev[RV_HANDLE_TEXT];
	size_t n = 0;

	do {
		rev[n++] = (char)('0' + (int)(v % 10));
		v /= 10;
	} while (v);
	for (size_t i = 0; i < n; i++)
		out[i] = rev[n - 1 - i];
	out[n] = '\0';
	return n;
}
