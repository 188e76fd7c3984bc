/*
 * bytes.h - reading and writing wire bytes without ever leaving the buffer.
 *
 * A cursor goes bad instead of past the end: after the first bad take every further take returns 0 or
 * NULL, so a decoder reads all its fields and looks at `bad` once. A writer counts what it would have
 * needed, so one look at `bad` at the end suffices there too.
 *
 * @thread any (no shared state)   @cost O(1) a field
 */
#ifndef RV_DATAPLANE_BASE_BYTES_H
#define RV_DATAPLANE_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct rv_cursor {
	const uint8_t *p;
	const uint8_t *end;
	bool bad;
};

static inline struct rv_cursor rv_cursor(const void *buf, size_t len)
{
	const uint8_t *p = buf;

	return (struct rv_cursor){.p = p, .end = p ? p + len : p, .bad = false};
}

static inline size_t rv_cursor_left(const struct rv_cursor *c)
{
	return (size_t)(c->end - c->p);
}

/** @len bytes borrowed from the buffer, or NULL when fewer are left. */
static inline const uint8_t *rv_take_bytes(struct rv_cursor *c, size_t len)
{
	const uint8_t *p = c->p;

	if (c->bad || rv_cursor_left(c) < len) {
		c->bad = true;
		return NULL;
	}
	c->p += len;
	return p;
}

static inline uint64_t rv_take_le(struct rv_cursor *c, size_t width)
{
	const uint8_t *p = rv_take_bytes(c, width);
	uint64_t v = 0;

	for (size_t i = 0; p && i < width; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static inline uint64_t rv_take_be(struct rv_cursor *c, size_t width)
{
	const uint8_t *p = rv_take_bytes(c, width);
	uint64_t v = 0;

	for (size_t i = 0; p && i < width; i++)
		v = v << 8 | p[i];
	return v;
}

static inline uint8_t rv_take_u8(struct rv_cursor *c)
{
	return (uint8_t)rv_take_le(c, 1);
}

static inline uint16_t rv_take_le16(struct rv_cursor *c)
{
	return (uint16_t)rv_take_le(c, 2);
}

static inline uint32_t rv_take_le32(struct rv_cursor *c)
{
	return (uint32_t)rv_take_le(c, 4);
}

static inline uint64_t rv_take_le64(struct rv_cursor *c)
{
	return rv_take_le(c, 8);
}

static inline uint16_t rv_take_be16(struct rv_cursor *c)
{
	return (uint16_t)rv_take_be(c, 2);
}

static inline uint32_t rv_take_be32(struct rv_cursor *c)
{
	return (uint32_t)rv_take_be(c, 4);
}

static inline uint64_t rv_take_be64(struct rv_cursor *c)
{
	return rv_take_be(c, 8);
}

struct rv_writer {
	uint8_t *buf;
	size_t cap;
	size_t len; /* what was, or would have been, written */
	bool bad;   /* it did not fit */
};

static inline struct rv_writer rv_writer(void *buf, size_t cap)
{
	return (struct rv_writer){.buf = buf, .cap = cap};
}

static inline void rv_put_bytes(struct rv_writer *w, const void *p, size_t len)
{
	if (len > w->cap || w->len > w->cap - len)
		w->bad = true;
	else if (len)
		memcpy(w->buf + w->len, p, len);
	w->len += len;
}

static inline void rv_put_le(struct rv_writer *w, uint64_t v, size_t width)
{
	uint8_t b[8];

	for (size_t i = 0; i < width; i++)
		b[i] = (uint8_t)(v >> (8 * i));
	rv_put_bytes(w, b, width);
}

static inline void rv_put_be(struct rv_writer *w, uint64_t v, size_t width)
{
	uint8_t b[8];

	for (size_t i = 0; i < width; i++)
		b[i] = (uint8_t)(v >> (8 * (width - 1 - i)));
	rv_put_bytes(w, b, width);
}

static inline void rv_put_u8(struct rv_writer *w, uint8_t v)
{
	rv_put_bytes(w, &v, 1);
}

/** The characters of a C string, without its terminator. */
static inline void rv_put_text(struct rv_writer *w, const char *s)
{
	rv_put_bytes(w, s, strlen(s));
}

#endif
