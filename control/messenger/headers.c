#include "control/messenger/headers.h"

#include <msgpack/pack.h>

#include "control/frame/frame.h"
#include "control/json/json.h"
#include "control/messenger/mp_read.h"
#include "dataplane/base/err.h"

static void note(struct rv_header_pair *want, size_t nr, const char *key, size_t key_len,
		 const char *val, size_t val_len)
{
	for (size_t i = 0; i < nr; i++) {
		if (strlen(want[i].key) == key_len && memcmp(want[i].key, key, key_len) == 0) {
			want[i].val = val;
			want[i].val_len = val_len;
		}
	}
}

int rv_headers_find_each(const uint8_t *buf, size_t len, struct rv_header_pair *want, size_t nr)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_mp map;

	for (size_t i = 0; i < nr; i++)
		want[i].val = NULL;
	if (len == 0)
		return 0;
	map = rv_mp_take(&c);
	if (map.kind != RV_MP_MAP)
		return -EPROTO;
	for (uint32_t i = 0; i < map.nr; i++) {
		const char *k, *v;
		size_t k_len, v_len;

		if (!rv_mp_take_text(&c, &k, &k_len) || !rv_mp_take_text(&c, &v, &v_len))
			return -EPROTO;
		note(want, nr, k, k_len, v, v_len);
	}
	return 0;
}

int rv_headers_find(const uint8_t *buf, size_t len, const char *key, const char **val,
		    size_t *val_len)
{
	struct rv_header_pair want = {.key = key};
	int rc = rv_headers_find_each(buf, len, &want, 1);

	if (!rc && !want.val)
		rc = -ENOENT;
	if (rc)
		return rc;
	*val = want.val;
	*val_len = want.val_len;
	return 0;
}

int rv_headers_check(const uint8_t *buf, size_t len)
{
	return rv_headers_find_each(buf, len, NULL, 0);
}

int rv_headers_find_staged(const uint8_t *buf, size_t len, struct rv_handle *out)
{
	const char *val;
	size_t val_len;
	int rc = rv_headers_find(buf, len, RV_HEADER_STAGED, &val, &val_len);

	return rc ? rc : rv_handle_parse_text(val, val_len, out);
}

bool rv_header_u64(const struct rv_header_pair *p, uint64_t *out)
{
	uint64_t n = 0;

	if (!p->val || !p->val_len)
		return false;
	for (size_t i = 0; i < p->val_len; i++) {
		if (p->val[i] < '0' || p->val[i] > '9')
			return false;
		if (__builtin_mul_overflow(n, 10u, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(p->val[i] - '0'), &n))
			return false;
	}
	*out = n;
	return true;
}

bool rv_headers_find_u64(const uint8_t *buf, size_t len, const char *key, uint64_t *out)
{
	struct rv_header_pair want = {.key = key};

	return !rv_headers_find_each(buf, len, &want, 1) && rv_header_u64(&want, out);
}

struct rv_header_pair rv_header_number(const char *key, char text[RV_HEADER_DIGITS], uint64_t n)
{
	struct rv_writer w = rv_writer(text, RV_HEADER_DIGITS);

	rv_json_put_u64(&w, n);
	return (struct rv_header_pair){key, text, w.len};
}

bool rv_headers_find_ms(const uint8_t *buf, size_t len, const char *key, uint64_t *ms)
{
	uint64_t n;

	if (!rv_headers_find_u64(buf, len, key, &n) || !n)
		return false;
	*ms = n;
	return true;
}

static void put_str(msgpack_packer *pk, const char *s, size_t len)
{
	msgpack_pack_str(pk, len);
	msgpack_pack_str_body(pk, s, len);
}

int rv_headers_encode(struct rv_writer *w, const struct rv_header_pair *pairs, size_t nr)
{
	size_t before = w->len;
	msgpack_packer pk;

	for (size_t i = 0; i < nr; i++)
		if (pairs[i].val_len > RV_HEADER_VALUE_MAX)
			return -EINVAL;

	msgpack_packer_init(&pk, w, rv_mp_write);
	msgpack_pack_map(&pk, nr);
	for (size_t i = 0; i < nr; i++) {
		put_str(&pk, pairs[i].key, strlen(pairs[i].key));
		put_str(&pk, pairs[i].val, pairs[i].val_len);
	}
	return w->bad || w->len - before > RV_HEADERS_MAX ? -ENOSPC : 0;
}
