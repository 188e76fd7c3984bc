#include "verbs/wire.h"

#include <netinet/in.h>
#include <string.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/check.h"

#define VERSION 1u

static const char magic[4] = {'r', 'v', 'd', 'V'};

void rv_verbs_hello_encode(uint8_t out[RV_VERBS_HELLO], const struct rv_verbs_hello *h)
{
	struct rv_writer w = rv_writer(out, RV_VERBS_HELLO);

	rv_put_bytes(&w, magic, sizeof(magic));
	rv_put_u8(&w, VERSION);
	rv_put_u8(&w, 0);
	rv_put_le(&w, h->reactor, 2);
	rv_put_le(&w, h->from, 8);
	rv_put_le(&w, h->to, 8);
	RV_CHECK(!w.bad && w.len == RV_VERBS_HELLO);
}

bool rv_verbs_hello_decode(const void *buf, size_t len, struct rv_verbs_hello *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	const uint8_t *m = rv_take_bytes(&c, sizeof(magic));
	unsigned version = rv_take_u8(&c), zero = rv_take_u8(&c);
	struct rv_verbs_hello h;

	h.reactor = rv_take_le16(&c);
	h.from = rv_take_le64(&c);
	h.to = rv_take_le64(&c);
	if (c.bad || memcmp(m, magic, sizeof(magic)) != 0 || version != VERSION || zero)
		return false;
	if (!h.from || !h.to)
		return false;
	while (rv_cursor_left(&c)) {
		if (rv_take_u8(&c))
			return false;
	}
	*out = h;
	return true;
}

size_t rv_verbs_addr_encode(uint8_t out[RV_VERBS_ADDR_MAX], const struct sockaddr_storage *sa)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
	bool is_v6 = sa->ss_family == AF_INET6;
	struct rv_writer w = rv_writer(out, RV_VERBS_ADDR_MAX);

	rv_put_u8(&w, VERSION);
	rv_put_u8(&w, is_v6 ? 6 : 4);
	rv_put_le(&w, ntohs(is_v6 ? v6->sin6_port : v4->sin_port), 2);
	if (is_v6)
		rv_put_bytes(&w, &v6->sin6_addr, 16);
	else
		rv_put_bytes(&w, &v4->sin_addr, 4);
	return w.len;
}

bool rv_verbs_addr_decode(const void *buf, size_t len, struct sockaddr_storage *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	unsigned version = rv_take_u8(&c), family = rv_take_u8(&c);
	uint16_t port = rv_take_le16(&c);
	size_t ip_len = family == 6 ? 16 : 4;
	const uint8_t *ip = rv_take_bytes(&c, ip_len);
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	if (c.bad || rv_cursor_left(&c) || version != VERSION || !port)
		return false;
	if (family != 4 && family != 6)
		return false;
	memset(out, 0, sizeof(*out));
	if (family == 6) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		memcpy(&v6->sin6_addr, ip, 16);
	} else {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		memcpy(&v4->sin_addr, ip, 4);
	}
	return true;
}

void rv_verbs_key_encode(uint8_t out[RV_VERBS_KEY], uint32_t rkey)
{
	struct rv_writer w = rv_writer(out, RV_VERBS_KEY);

	rv_put_u8(&w, VERSION);
	rv_put_le(&w, rkey, 4);
}

bool rv_verbs_key_decode(const void *buf, size_t len, uint32_t *rkey)
{
	struct rv_cursor c = rv_cursor(buf, len);
	unsigned version = rv_take_u8(&c);
	uint32_t key = rv_take_le32(&c);

	if (c.bad || rv_cursor_left(&c) || version != VERSION)
		return false;
	*rkey = key;
	return true;
}

const char *rv_verbs_refusal_name(unsigned r)
{
	static const char *const names[RV_VERBS_REFUSALS] = {
		"no reason was given",
		"it does not understand us",
		"it is another worker",
		"it does not know us yet",
		"its tcp.allow does not name us",
		"we came in by another device than its own",
		"it has no room",
	};

	return r < RV_VERBS_REFUSALS ? names[r] : names[0];
}
