#include "dataplane/rendezvous/descriptor.h"

#include "dataplane/base/err.h"

enum rv_refusal rv_desc_decode(const uint8_t *buf, size_t len, struct rv_desc *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_desc d = {0};

	d.backend = rv_take_u8(&c);
	d.version = rv_take_u8(&c);
	d.flags = rv_take_u8(&c);
	d.generation = rv_take_le64(&c);
	d.addr = rv_take_le64(&c);
	d.len = rv_take_le64(&c);
	d.rkey_len = rv_take_le16(&c);
	d.rkey = rv_take_bytes(&c, d.rkey_len);

	if (c.bad)
		return RV_REFUSE_TRUNCATED;
	if (rv_cursor_left(&c) != 0)
		return RV_REFUSE_TRAILING;
	if (d.backend != RV_BACKEND_UCX && d.backend != RV_BACKEND_VERBS)
		return RV_REFUSE_BACKEND;
	if (d.version != RV_DESC_VERSION)
		return RV_REFUSE_VERSION;
	if (d.flags != 0)
		return RV_REFUSE_FLAGS;
	if (d.len == 0)
		return RV_REFUSE_EMPTY;
	if (d.rkey_len == 0 || d.rkey_len > RV_DESC_KEY_MAX)
		return RV_REFUSE_KEY;

	*out = d;
	return RV_ACCEPT;
}

int rv_desc_encode(struct rv_writer *w, const struct rv_desc *d)
{
	if (d->backend != RV_BACKEND_UCX && d->backend != RV_BACKEND_VERBS)
		return -EINVAL;
	if (d->len == 0 || d->rkey_len == 0 || d->rkey_len > RV_DESC_KEY_MAX)
		return -EINVAL;

	rv_put_u8(w, d->backend);
	rv_put_u8(w, RV_DESC_VERSION);
	rv_put_u8(w, 0);
	rv_put_le(w, d->generation, 8);
	rv_put_le(w, d->addr, 8);
	rv_put_le(w, d->len, 8);
	rv_put_le(w, d->rkey_len, 2);
	rv_put_bytes(w, d->rkey, d->rkey_len);
	return w->bad ? -ENOSPC : 0;
}

const char *rv_refusal_name(enum rv_refusal r)
{
	static const char *const names[RV_REFUSAL_NR] = {
		[RV_ACCEPT] = "accept",
		[RV_REFUSE_TRUNCATED] = "truncated",
		[RV_REFUSE_TRAILING] = "trailing",
		[RV_REFUSE_BACKEND] = "backend",
		[RV_REFUSE_VERSION] = "version",
		[RV_REFUSE_FLAGS] = "flags",
		[RV_REFUSE_EMPTY] = "empty",
		[RV_REFUSE_KEY] = "key",
	};

	return (unsigned)r < RV_REFUSAL_NR ? names[r] : "unknown";
}
