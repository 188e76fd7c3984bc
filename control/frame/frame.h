/*
 * frame.h - the bytes around every message: preamble, request, response and ack headers, message
 * ids.
 *
 *   TCP:   | version 1 u16be | type u8 | H u32be | P u32be | header H | payload P |
 *   UCX:   the active-message id carries the type; header and payload travel as its two parts
 *
 * The framing is big-endian, everything inside a header is little-endian. Decoders borrow from the
 * buffer and copy nothing; they refuse what a stock node would drop. What the headers map holds is
 * checked in messenger/headers.h.
 *
 * @thread any (no state)   @cost O(bytes), no allocation
 */
#ifndef RV_CONTROL_FRAME_FRAME_H
#define RV_CONTROL_FRAME_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dataplane/base/bytes.h"

enum rv_frame_type {
	RV_FRAME_MESSAGE = 0,
	RV_FRAME_RESPONSE = 1,
	RV_FRAME_ACK = 2,
	RV_FRAME_EVENT = 3,
	RV_FRAME_SHUTTING_DOWN = 4,
};

#define RV_FRAME_VERSION  1u
#define RV_FRAME_PREAMBLE 11u
/** Header and payload together; the preamble does not count. */
#define RV_FRAME_MAX      (16u << 20)

#define RV_REQUEST_HEADER_MIN  22u
#define RV_RESPONSE_HEADER_MIN 19u
#define RV_ACK_HEADER_LEN      17u
/** Largest headers map, in bytes, that either side takes. */
#define RV_HEADERS_MAX         16384u

struct rv_preamble {
	enum rv_frame_type type;
	uint32_t header_len;
	uint32_t payload_len;
};

/**
 * Read a preamble.
 *
 * @return 0, or -EPROTO for another version, an unknown type, or a frame over RV_FRAME_MAX: close
 *         the connection, the stream has no other way to get back in step
 */
int rv_preamble_decode(const uint8_t p[RV_FRAME_PREAMBLE], struct rv_preamble *out);

/** Write a preamble. The caller has kept header + payload within RV_FRAME_MAX. */
void rv_preamble_encode(uint8_t p[RV_FRAME_PREAMBLE], const struct rv_preamble *in);

enum rv_call_kind {
	RV_CALL_FIRE = 0,  /* no answer */
	RV_CALL_SYNC = 1,  /* ack or nack */
	RV_CALL_UNARY = 2, /* response */
};

/*
 * Who called, and which of its calls: | WorkerId u64le | slot u16le | generation u48le |
 * Opaque to the callee but for the WorkerId.
 */
struct rv_msg_id {
	uint8_t b[16];
};

/** @param generation only its low 48 bits travel */
static inline struct rv_msg_id rv_msg_id_make(uint64_t worker, uint16_t slot, uint64_t generation)
{
	struct rv_msg_id id;
	struct rv_writer w = rv_writer(id.b, sizeof(id.b));

	rv_put_le(&w, worker, 8);
	rv_put_le(&w, slot, 2);
	rv_put_le(&w, generation, 6);
	/* cppcheck-suppress uninitvar ; it is written through w */
	return id;
}

static inline uint64_t rv_msg_id_worker(const struct rv_msg_id *id)
{
	struct rv_cursor c = rv_cursor(id->b, 8);

	return rv_take_le64(&c);
}

static inline uint16_t rv_msg_id_slot(const struct rv_msg_id *id)
{
	struct rv_cursor c = rv_cursor(id->b + 8, 2);

	return rv_take_le16(&c);
}

static inline uint64_t rv_msg_id_generation(const struct rv_msg_id *id)
{
	struct rv_cursor c = rv_cursor(id->b + 10, 6);

	return rv_take_le(&c, 6);
}

static inline bool rv_msg_id_equal(const struct rv_msg_id *a, const struct rv_msg_id *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

/** Header of a Message, and the whole of a ShuttingDown. Pointers are borrowed. */
struct rv_request_header {
	enum rv_call_kind kind;
	struct rv_msg_id id;
	const char *name; /* handler, UTF-8, not terminated */
	uint16_t name_len;
	const uint8_t *headers; /* msgpack map str -> str; NULL when there is none */
	uint16_t headers_len;
};

/**
 * Read a request header; bytes behind the headers map are ignored.
 *
 * @return 0, or -EPROTO: drop the frame without an answer and keep the connection
 */
int rv_request_header_decode(const uint8_t *buf, size_t len, struct rv_request_header *out);

/**
 * Write a request header.
 *
 * @return 0, or -EINVAL for an empty name, an unknown kind or too many headers; room is w->bad's
 *         affair
 */
int rv_request_header_encode(struct rv_writer *w, const struct rv_request_header *in);

/** Header of a Response. Pointers are borrowed. */
struct rv_response_header {
	struct rv_msg_id id;
	uint8_t outcome; /* 0 is ok; anything else: the payload is an error text */
	const uint8_t *headers;
	uint16_t headers_len;
};

/** @return 0, or -EPROTO: drop the frame. */
int rv_response_header_decode(const uint8_t *buf, size_t len, struct rv_response_header *out);

/** @return 0, or -EINVAL for too many headers; room is w->bad's affair. */
int rv_response_header_encode(struct rv_writer *w, const struct rv_response_header *in);

/** Header of an Ack or an Event. */
struct rv_ack_header {
	bool event;
	bool error; /* the payload is an error text */
	struct rv_msg_id id;
};

/** Longer headers are tolerated. @return 0, or -EPROTO: drop the frame. */
int rv_ack_header_decode(const uint8_t *buf, size_t len, struct rv_ack_header *out);

void rv_ack_header_encode(struct rv_writer *w, const struct rv_ack_header *in);

/** Is this well-formed UTF-8 (no surrogates, no over-long forms, nothing above U+10FFFF)? */
bool rv_utf8_valid(const void *text, size_t len);

#endif
