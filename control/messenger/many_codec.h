/*
 * many_codec.h - the bodies of `_rvd_get_many`, all little-endian.
 *
 *   request   | room u32 | each u32 | slot u64, as many as there are |
 *   answer    | for each slot, in their order: along u32 | len u32 | off u32 | has_xxh3 u32 | xxh3 u64 | the payloads
 *
 * `room` is for the whole answer, `each` for the longest payload that is wanted. `off` counts from the answer's first
 * byte. What does not come along (along 0) is to be asked for alone.
 *
 * @thread any (no state)   @cost O(slots), no allocation
 */
#ifndef RV_CONTROL_MESSENGER_MANY_CODEC_H
#define RV_CONTROL_MESSENGER_MANY_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"
#include "dataplane/interfaces/peer_calls.h"

/** Bytes of an answer that @nr payloads stand behind. */
#define RV_MANY_SAID(nr) ((size_t)(nr)*24u)

void rv_many_request_encode(struct rv_writer *w, const struct rv_peer_many *many, uint32_t room);

/**
 * Every `one` of @many is -EAGAIN then.
 *
 * @return 0; -EPROTO: not such a body, no slot, or too many
 */
int rv_many_request_decode(const uint8_t *buf, size_t len, struct rv_peer_many *many,
			   uint32_t *room);

/** What stands before the payloads; whatever failed is told to be asked for alone. */
void rv_many_answer_encode(struct rv_writer *w, const struct rv_peer_many *many);

/**
 * Fill in @many from the answer to it; each that came along lies within the answer, and is at most `each` long.
 *
 * @return 0; -EPROTO: not such a body, and nothing of it is to be used
 */
int rv_many_answer_decode(const uint8_t *buf, size_t len, struct rv_peer_many *many);

#endif
