#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "control/json/json.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Longest spelling of one byte inside a string: \u0000. */
#define ESCAPED_MAX 6u

void rv_json_put_u64(struct rv_writer *w, uint64_t v)
{
	char digits[20];
	size_t i = sizeof(digits);

	do {
		digits[--i] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	rv_put_bytes(w, digits + i, sizeof(digits) - i);
}

/* Length of the well-formed UTF-8 character in front of @left bytes, or 0. */
static size_t utf8_len(const uint8_t *p, size_t left)
{
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;

	if (n == 0 || n > left || p[0] > 0xf4)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
	    (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

static void put_ascii(struct rv_writer *w, uint8_t b)
{
	static const char named[32] =
		{['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
	char text[8];

	if (b == '"' || b == '\\') {
		rv_put_u8(w, '\\');
		rv_put_u8(w, b);
	} else if (b >= 0x20) {
		rv_put_u8(w, b);
	} else if (named[b]) {
		rv_put_u8(w, '\\');
		rv_put_u8(w, (uint8_t)named[b]);
	} else {
		snprintf(text, sizeof(text), "\\u%04x", b);
		rv_put_text(w, text);
	}
}

void rv_json_put_text(struct rv_writer *w, const char *text, size_t len)
{
	const uint8_t *p = (const uint8_t *)text;

	rv_put_u8(w, '"');
	for (size_t i = 0; i < len;) {
		size_t n = utf8_len(p + i, len - i);

		if (n == 1)
			put_ascii(w, p[i]);
		else if (n > 1)
			rv_put_bytes(w, p + i, n);
		else
			rv_put_text(w, REPLACEMENT);
		i += n ? n : 1;
	}
	rv_put_u8(w, '"');
}

void rv_json_out_init(struct rv_json_out *o)
{
	*o = (struct rv_json_out){0};
}

void rv_json_out_fini(struct rv_json_out *o)
{
	free(o->buf);
	*o = (struct rv_json_out){0};
}

void rv_json_out_reset(struct rv_json_out *o)
{
	o->len = 0;
	o->comma = false;
	o->bad = false;
}

/* Room for @more bytes and a terminator, as a writer on the free end of the buffer. */
static struct rv_writer reserve(struct rv_json_out *o, size_t more)
{
	size_t cap = o->cap ? o->cap : 256;
	char *buf;

	while (cap - o->len <= more)
		cap *= 2;
	if (cap != o->cap) {
		buf = realloc(o->buf, cap);
		if (!buf) {
			o->bad = true;
			return rv_writer(NULL, 0);
		}
		o->buf = buf;
		o->cap = cap;
	}
	return rv_writer(o->buf + o->len, o->cap - o->len - 1);
}

static void commit(struct rv_json_out *o, const struct rv_writer *w)
{
	if (o->bad)
		return;
	o->len += w->len;
	o->buf[o->len] = '\0';
}

/* One value, already spelled, behind its comma. */
static void put_value(struct rv_json_out *o, const char *text)
{
	struct rv_writer w = reserve(o, strlen(text) + 1);

	if (o->comma)
		rv_put_u8(&w, ',');
	rv_put_text(&w, text);
	commit(o, &w);
	o->comma = true;
}

static void put_end(struct rv_json_out *o, char bracket)
{
	struct rv_writer w = reserve(o, 1);

	rv_put_u8(&w, (uint8_t)bracket);
	commit(o, &w);
	o->comma = true;
}

void rv_json_out_object(struct rv_json_out *o)
{
	put_value(o, "{");
	o->comma = false;
}

void rv_json_out_object_end(struct rv_json_out *o)
{
	put_end(o, '}');
}

void rv_json_out_array(struct rv_json_out *o)
{
	put_value(o, "[");
	o->comma = false;
}

void rv_json_out_array_end(struct rv_json_out *o)
{
	put_end(o, ']');
}

void rv_json_out_text(struct rv_json_out *o, const char *text, size_t len)
{
	struct rv_writer w = reserve(o, len * ESCAPED_MAX + 3);

	if (o->comma)
		rv_put_u8(&w, ',');
	rv_json_put_text(&w, text, len);
	commit(o, &w);
	o->comma = true;
}

void rv_json_out_str(struct rv_json_out *o, const char *text)
{
	if (text)
		rv_json_out_text(o, text, strlen(text));
	else
		rv_json_out_null(o);
}

void rv_json_out_key(struct rv_json_out *o, const char *key)
{
	rv_json_out_text(o, key, strlen(key));
	put_end(o, ':');
	o->comma = false;
}

void rv_json_out_null(struct rv_json_out *o)
{
	put_value(o, "null");
}

void rv_json_out_bool(struct rv_json_out *o, bool v)
{
	put_value(o, v ? "true" : "false");
}

void rv_json_out_u64(struct rv_json_out *o, uint64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	put_value(o, text);
}

void rv_json_out_i64(struct rv_json_out *o, int64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, v);
	put_value(o, text);
}

void rv_json_out_double(struct rv_json_out *o, double v)
{
	char text[40];

	if (!isfinite(v)) {
		rv_json_out_null(o);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			break;
	}
	/* A program may have set a locale with another decimal mark; JSON knows the point only. */
	for (char *p = text; *p; p++)
		if (*p == ',')
			*p = '.';
	put_value(o, text);
}
