#include "control/messenger/many_codec.h"

#include <errno.h>
#include <stdbool.h>

#include "dataplane/base/err.h"

void rv_many_request_encode(struct rv_writer *w, const struct rv_peer_many *many, uint32_t room)
{
	rv_put_le(w, room, 4);
	rv_put_le(w, many->each, 4);
	for (uint32_t i = 0; i < many->nr; i++)
		rv_put_le(w, many->one[i].local, 8);
}

int rv_many_request_decode(const uint8_t *buf, size_t len, struct rv_peer_many *many,
			   uint32_t *room)
{
	struct rv_cursor c = rv_cursor(buf, len);
	size_t nr;

	*room = rv_take_le32(&c);
	many->each = rv_take_le32(&c);
	nr = rv_cursor_left(&c) / 8;
	if (c.bad || rv_cursor_left(&c) % 8 || !nr || nr > RV_PEER_MANY_MAX)
		return -EPROTO;
	many->nr = (uint32_t)nr;
	for (size_t i = 0; i < nr; i++)
		many->one[i] = (struct rv_peer_one){.local = rv_take_le64(&c), .rc = -EAGAIN};
	return 0;
}

void rv_many_answer_encode(struct rv_writer *w, const struct rv_peer_many *many)
{
	for (uint32_t i = 0; i < many->nr; i++) {
		const struct rv_peer_one *one = &many->one[i];
		bool along = one->rc == 0;

		rv_put_le(w, along, 4);
		rv_put_le(w, along ? one->len : 0, 4);
		rv_put_le(w, along ? one->off : 0, 4);
		rv_put_le(w, along && one->has_xxh3, 4);
		rv_put_le(w, along ? one->xxh3 : 0, 8);
	}
}

int rv_many_answer_decode(const uint8_t *buf, size_t len, struct rv_peer_many *many)
{
	struct rv_cursor c = rv_cursor(buf, len);

	if (len < RV_MANY_SAID(many->nr))
		return -EPROTO;
	for (uint32_t i = 0; i < many->nr; i++) {
		struct rv_peer_one *one = &many->one[i];
		uint32_t along = rv_take_le32(&c), has_xxh3;

		one->len = rv_take_le32(&c);
		one->off = rv_take_le32(&c);
		has_xxh3 = rv_take_le32(&c);
		one->xxh3 = rv_take_le64(&c);
		one->has_xxh3 = has_xxh3 == 1;
		one->rc = along ? 0 : -EAGAIN;
		if (along > 1 || has_xxh3 > 1 || one->off > len || one->len > len - one->off ||
		    one->len > many->each)
			return -EPROTO;
	}
	return 0;
}
