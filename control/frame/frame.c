#include "control/frame/frame.h"

#include "dataplane/base/err.h"

#define HEADER_SCHEMA 1u

#define ACK_EVENT 0x01u
#define ACK_ERROR 0x02u

int rv_preamble_decode(const uint8_t p[RV_FRAME_PREAMBLE], struct rv_preamble *out)
{
	struct rv_cursor c = rv_cursor(p, RV_FRAME_PREAMBLE);
	uint16_t version = rv_take_be16(&c);
	uint8_t type = rv_take_u8(&c);
	uint32_t header_len = rv_take_be32(&c);
	uint32_t payload_len = rv_take_be32(&c);

	if (version != RV_FRAME_VERSION || type > RV_FRAME_SHUTTING_DOWN)
		return -EPROTO;
	if ((uint64_t)header_len + payload_len > RV_FRAME_MAX)
		return -EPROTO;

	*out = (struct rv_preamble){
		.type = (enum rv_frame_type)type,
		.header_len = header_len,
		.payload_len = payload_len,
	};
	return 0;
}

void rv_preamble_encode(uint8_t p[RV_FRAME_PREAMBLE], const struct rv_preamble *in)
{
	struct rv_writer w = rv_writer(p, RV_FRAME_PREAMBLE);

	rv_put_be(&w, RV_FRAME_VERSION, 2);
	rv_put_u8(&w, (uint8_t)in->type);
	rv_put_be(&w, in->header_len, 4);
	rv_put_be(&w, in->payload_len, 4);
}

static struct rv_msg_id take_id(struct rv_cursor *c)
{
	struct rv_msg_id id = {{0}};
	const uint8_t *p = rv_take_bytes(c, sizeof(id.b));

	if (p)
		memcpy(id.b, p, sizeof(id.b));
	return id;
}

static void put_id(struct rv_writer *w, const struct rv_msg_id *id)
{
	rv_put_bytes(w, id->b, sizeof(id->b));
}

/*
 * The length-prefixed map both headers end with. Too long a map spoils the cursor like a short
 * buffer.
 */
static const uint8_t *take_headers(struct rv_cursor *c, uint16_t *len)
{
	const uint8_t *p;

	*len = rv_take_le16(c);
	p = rv_take_bytes(c, *len);
	if (*len > RV_HEADERS_MAX)
		c->bad = true;
	return *len ? p : NULL;
}

static void put_headers(struct rv_writer *w, const uint8_t *headers, uint16_t len)
{
	rv_put_le(w, len, 2);
	rv_put_bytes(w, headers, len);
}

int rv_request_header_decode(const uint8_t *buf, size_t len, struct rv_request_header *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_request_header h = {0};
	uint8_t schema = rv_take_u8(&c);
	uint8_t kind = rv_take_u8(&c);

	h.kind = (enum rv_call_kind)kind;
	h.id = take_id(&c);
	h.name_len = rv_take_le16(&c);
	h.name = (const char *)rv_take_bytes(&c, h.name_len);
	h.headers = take_headers(&c, &h.headers_len);

	if (c.bad || schema != HEADER_SCHEMA || kind > RV_CALL_UNARY || h.name_len == 0)
		return -EPROTO;
	if (!rv_utf8_valid(h.name, h.name_len))
		return -EPROTO;

	*out = h;
	return 0;
}

int rv_request_header_encode(struct rv_writer *w, const struct rv_request_header *in)
{
	if (in->name_len == 0 || (unsigned)in->kind > RV_CALL_UNARY ||
	    in->headers_len > RV_HEADERS_MAX)
		return -EINVAL;

	rv_put_u8(w, HEADER_SCHEMA);
	rv_put_u8(w, (uint8_t)in->kind);
	put_id(w, &in->id);
	rv_put_le(w, in->name_len, 2);
	rv_put_bytes(w, in->name, in->name_len);
	put_headers(w, in->headers, in->headers_len);
	return 0;
}

int rv_response_header_decode(const uint8_t *buf, size_t len, struct rv_response_header *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_response_header h = {0};

	h.id = take_id(&c);
	h.outcome = rv_take_u8(&c);
	h.headers = take_headers(&c, &h.headers_len);

	if (c.bad)
		return -EPROTO;

	*out = h;
	return 0;
}

int rv_response_header_encode(struct rv_writer *w, const struct rv_response_header *in)
{
	if (in->headers_len > RV_HEADERS_MAX)
		return -EINVAL;

	put_id(w, &in->id);
	rv_put_u8(w, in->outcome);
	put_headers(w, in->headers, in->headers_len);
	return 0;
}

int rv_ack_header_decode(const uint8_t *buf, size_t len, struct rv_ack_header *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	uint8_t flags = rv_take_u8(&c);
	struct rv_msg_id id = take_id(&c);

	if (c.bad || (flags & ~(ACK_EVENT | ACK_ERROR)) != 0)
		return -EPROTO;

	*out = (struct rv_ack_header){
		.event = (flags & ACK_EVENT) != 0,
		.error = (flags & ACK_ERROR) != 0,
		.id = id,
	};
	return 0;
}

void rv_ack_header_encode(struct rv_writer *w, const struct rv_ack_header *in)
{
	rv_put_u8(w, (uint8_t)((in->event ? ACK_EVENT : 0) | (in->error ? ACK_ERROR : 0)));
	put_id(w, &in->id);
}

/* One multi-byte character whose first byte is taken already. */
static bool utf8_rest(struct rv_cursor *c, uint32_t first)
{
	unsigned more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
	uint32_t smallest = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
	uint32_t code = first & (0x3fu >> more);

	if (first < 0xc2 || first > 0xf4)
		return false;
	for (unsigned i = 0; i < more; i++) {
		uint8_t b = rv_take_u8(c);

		if ((b & 0xc0) != 0x80) /* also what a cursor gone bad returns */
			return false;
		code = code << 6 | (b & 0x3fu);
	}
	return code >= smallest && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

bool rv_utf8_valid(const void *text, size_t len)
{
	struct rv_cursor c = rv_cursor(text, len);

	while (rv_cursor_left(&c) > 0) {
		uint8_t b = rv_take_u8(&c);

		if (b >= 0x80 && !utf8_rest(&c, b))
			return false;
	}
	return true;
}
