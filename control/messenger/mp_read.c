#include "control/messenger/mp_read.h"

#include <msgpack/pack.h>

#include "control/frame/frame.h"

static struct rv_mp bad(struct rv_cursor *c)
{
	c->bad = true;
	return (struct rv_mp){.kind = RV_MP_BAD};
}

static struct rv_mp take_scalar(struct rv_cursor *c, enum rv_mp_kind kind, uint64_t u)
{
	return c->bad ? bad(c) : (struct rv_mp){.kind = kind, .u = u};
}

static struct rv_mp take_blob(struct rv_cursor *c, enum rv_mp_kind kind, uint64_t nr)
{
	const uint8_t *p = rv_take_bytes(c, nr);

	return c->bad ? bad(c) : (struct rv_mp){.kind = kind, .nr = (uint32_t)nr, .data = p};
}

/*
 * Every element takes a byte at least: a count that cannot come true is refused here, once for all.
 */
static struct rv_mp take_head(struct rv_cursor *c, enum rv_mp_kind kind, uint64_t nr)
{
	uint64_t elements = kind == RV_MP_MAP ? 2 * nr : nr;

	if (c->bad || elements > rv_cursor_left(c))
		return bad(c);
	return (struct rv_mp){.kind = kind, .nr = (uint32_t)nr};
}

static struct rv_mp take_signed(struct rv_cursor *c, size_t width)
{
	uint64_t u = rv_take_be(c, width);
	unsigned unused = 64 - 8 * (unsigned)width;
	int64_t i = (int64_t)(u << unused) >> unused;

	return take_scalar(c, i < 0 ? RV_MP_NEGATIVE : RV_MP_UINT, (uint64_t)i);
}

/* An ext's type byte comes before its data. */
static struct rv_mp take_ext(struct rv_cursor *c, uint64_t nr)
{
	rv_take_u8(c);
	return take_blob(c, RV_MP_EXT, nr);
}

/* 0xc0 to 0xdf, where the first byte says only which form follows. */
static struct rv_mp take_typed(struct rv_cursor *c, uint8_t b)
{
	switch (b) {
	case 0xc0:
		return take_scalar(c, RV_MP_NIL, 0);
	case 0xc2:
	case 0xc3:
		return take_scalar(c, RV_MP_BOOL, b & 1u);
	case 0xc4:
	case 0xc5:
	case 0xc6:
		return take_blob(c, RV_MP_BIN, rv_take_be(c, 1u << (b - 0xc4)));
	case 0xc7:
	case 0xc8:
	case 0xc9:
		return take_ext(c, rv_take_be(c, 1u << (b - 0xc7)));
	case 0xca:
		return take_scalar(c, RV_MP_FLOAT, rv_take_be(c, 4));
	case 0xcb:
		return take_scalar(c, RV_MP_FLOAT, rv_take_be(c, 8));
	case 0xcc:
	case 0xcd:
	case 0xce:
	case 0xcf:
		return take_scalar(c, RV_MP_UINT, rv_take_be(c, 1u << (b - 0xcc)));
	case 0xd0:
	case 0xd1:
	case 0xd2:
	case 0xd3:
		return take_signed(c, 1u << (b - 0xd0));
	case 0xd4:
	case 0xd5:
	case 0xd6:
	case 0xd7:
	case 0xd8:
		return take_ext(c, 1u << (b - 0xd4));
	case 0xd9:
	case 0xda:
	case 0xdb:
		return take_blob(c, RV_MP_STR, rv_take_be(c, 1u << (b - 0xd9)));
	case 0xdc:
	case 0xdd:
		return take_head(c, RV_MP_ARRAY, rv_take_be(c, 2u << (b - 0xdc)));
	case 0xde:
	case 0xdf:
		return take_head(c, RV_MP_MAP, rv_take_be(c, 2u << (b - 0xde)));
	default: /* 0xc1 is never used */
		return bad(c);
	}
}

struct rv_mp rv_mp_take(struct rv_cursor *c)
{
	uint8_t b = rv_take_u8(c);

	if (c->bad)
		return bad(c);
	if (b < 0x80)
		return take_scalar(c, RV_MP_UINT, b);
	if (b < 0x90)
		return take_head(c, RV_MP_MAP, b & 0x0fu);
	if (b < 0xa0)
		return take_head(c, RV_MP_ARRAY, b & 0x0fu);
	if (b < 0xc0)
		return take_blob(c, RV_MP_STR, b & 0x1fu);
	if (b >= 0xe0)
		return take_scalar(c, RV_MP_NEGATIVE, (uint64_t)(int64_t)(int8_t)b);
	return take_typed(c, b);
}

bool rv_mp_skip(struct rv_cursor *c)
{
	/* Cannot wrap: each head adds no more than the bytes that are left. */
	uint64_t pending = 1;

	for (; pending > 0; pending--) {
		struct rv_mp e = rv_mp_take(c);

		if (e.kind == RV_MP_BAD)
			return false;
		if (e.kind == RV_MP_ARRAY)
			pending += e.nr;
		else if (e.kind == RV_MP_MAP)
			pending += 2 * (uint64_t)e.nr;
	}
	return true;
}

bool rv_mp_take_uint(struct rv_cursor *c, uint64_t max, uint64_t *out)
{
	struct rv_mp e = rv_mp_take(c);

	if (e.kind != RV_MP_UINT || e.u > max)
		return false;
	*out = e.u;
	return true;
}

bool rv_mp_take_text(struct rv_cursor *c, const char **text, size_t *len)
{
	struct rv_mp e = rv_mp_take(c);

	if ((e.kind != RV_MP_STR && e.kind != RV_MP_BIN) || !rv_utf8_valid(e.data, e.nr))
		return false;
	*text = (const char *)e.data;
	*len = e.nr;
	return true;
}

bool rv_mp_take_byte_string(struct rv_cursor *c, struct rv_writer *w)
{
	struct rv_mp e = rv_mp_take(c);

	if (e.kind == RV_MP_BIN) {
		rv_put_bytes(w, e.data, e.nr);
		return true;
	}
	if (e.kind != RV_MP_ARRAY)
		return false;
	for (uint32_t i = 0; i < e.nr; i++) {
		uint64_t b;

		if (!rv_mp_take_uint(c, UINT8_MAX, &b))
			return false;
		rv_put_u8(w, (uint8_t)b);
	}
	return true;
}

int rv_mp_write(void *writer, const char *buf, size_t len)
{
	rv_put_bytes(writer, buf, len);
	return 0;
}

void rv_mp_put_byte_string(struct rv_writer *w, const uint8_t *bytes, size_t len)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, w, rv_mp_write);
	msgpack_pack_array(&pk, len);
	for (size_t i = 0; i < len; i++)
		msgpack_pack_uint8(&pk, bytes[i]);
}
