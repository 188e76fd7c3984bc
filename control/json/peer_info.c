#include "control/json/peer_info.h"

#include <stdlib.h>

#include "control/json/canonical.h"
#include "control/json/json.h"
#include "dataplane/base/err.h"
#include "dataplane/base/hash.h"

/* An address of the largest size, four characters a byte, and some room for what we do not know. */
#define PEER_INFO_TEXT_MAX (4u * RV_ADDRESS_MAX + 65536u)

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)(c | 0x20);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hyphen_before(size_t byte)
{
	return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

int rv_uuid_parse(const char *text, size_t len, uint8_t out[RV_UUID_LEN])
{
	uint8_t id[RV_UUID_LEN];
	size_t at = 0;

	if (len != 32 && len != 36)
		return -EINVAL;
	for (size_t i = 0; i < RV_UUID_LEN; i++) {
		int hi, lo;

		if (len == 36 && hyphen_before(i) && text[at++] != '-')
			return -EINVAL;
		hi = hex_digit(text[at++]);
		lo = hex_digit(text[at++]);
		if (hi < 0 || lo < 0)
			return -EINVAL;
		id[i] = (uint8_t)(hi << 4 | lo);
	}
	memcpy(out, id, sizeof(id));
	return 0;
}

void rv_uuid_format(const uint8_t id[RV_UUID_LEN], char out[RV_UUID_TEXT])
{
	static const char digits[] = "0123456789abcdef";
	size_t at = 0;

	for (size_t i = 0; i < RV_UUID_LEN; i++) {
		if (hyphen_before(i))
			out[at++] = '-';
		out[at++] = digits[id[i] >> 4];
		out[at++] = digits[id[i] & 15];
	}
	out[at] = '\0';
}

uint64_t rv_worker_id(const uint8_t id[RV_UUID_LEN])
{
	return rv_hash_xxh3(id, RV_UUID_LEN);
}

int rv_peer_info_init(struct rv_peer_info *out, const uint8_t instance[RV_UUID_LEN],
		      const uint8_t *address, size_t len)
{
	uint8_t *copy;

	if (len == 0 || len > RV_ADDRESS_MAX)
		return -EPROTO;
	copy = malloc(len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, address, len);
	memcpy(out->instance, instance, RV_UUID_LEN);
	out->address = copy;
	out->address_len = len;
	return 0;
}

void rv_peer_info_fini(struct rv_peer_info *p)
{
	free(p->address);
	*p = (struct rv_peer_info){0};
}

void rv_peer_info_encode(struct rv_writer *w, const struct rv_peer_info *in)
{
	char uuid[RV_UUID_TEXT];

	rv_uuid_format(in->instance, uuid);
	rv_put_text(w, "{\"instance_id\":\"");
	rv_put_text(w, uuid);
	rv_put_text(w, "\",\"worker_address\":[");
	for (size_t i = 0; i < in->address_len; i++) {
		if (i > 0)
			rv_put_u8(w, ',');
		rv_json_put_u64(w, in->address[i]);
	}
	rv_put_text(w, "]}");
}

/* [n,n,...] into @bytes, which holds RV_ADDRESS_MAX. */
static size_t take_byte_array(struct rv_cursor *c, uint8_t *bytes)
{
	size_t n = 0;

	rv_canon_text(c, "[");
	do {
		if (n > 0)
			rv_canon_text(c, ",");
		if (n == RV_ADDRESS_MAX)
			c->bad = true;
		else
			bytes[n++] = (uint8_t)rv_canon_u64(c, UINT8_MAX);
	} while (rv_canon_next(c, ','));
	rv_canon_text(c, "]");
	return n;
}

int rv_peer_info_take(struct rv_cursor *c, struct rv_peer_info *out)
{
	uint8_t *bytes = malloc(RV_ADDRESS_MAX);
	uint8_t instance[RV_UUID_LEN];
	const uint8_t *uuid;
	size_t len;
	int rc = -EAGAIN;

	if (!bytes)
		return -ENOMEM;
	rv_canon_text(c, "{\"instance_id\":\"");
	uuid = rv_take_bytes(c, RV_UUID_TEXT - 1);
	rv_canon_text(c, "\",\"worker_address\":");
	len = take_byte_array(c, bytes);
	rv_canon_text(c, "}");
	if (!c->bad && !rv_uuid_parse((const char *)uuid, RV_UUID_TEXT - 1, instance))
		rc = rv_peer_info_init(out, instance, bytes, len);
	free(bytes);
	return rc;
}

static int wrong(const char **why, const char *text)
{
	if (why)
		*why = text;
	return -EPROTO;
}

static int uuid_from_json(const struct rv_json *v, uint8_t out[RV_UUID_LEN])
{
	size_t len;
	const char *text = rv_json_text(v, &len);

	return text ? rv_uuid_parse(text, len, out) : -EINVAL;
}

/* The address as an array of numbers, or as a string whose characters are its bytes. */
static int address_from_json(const struct rv_json *v, struct rv_peer_info *out,
			     const uint8_t instance[RV_UUID_LEN])
{
	size_t nr = rv_json_nr(v);
	const char *text = rv_json_text(v, &nr);
	uint8_t *bytes;
	int rc = 0;

	if (text)
		return rv_peer_info_init(out, instance, (const uint8_t *)text, nr);
	if (rv_json_kind(v) != RV_JSON_ARRAY || nr == 0 || nr > RV_ADDRESS_MAX)
		return -EPROTO;
	bytes = malloc(nr);
	if (!bytes) /* GCOVR_EXCL_BR_LINE: without memory */
		return -ENOMEM;
	for (size_t i = 0; i < nr && !rc; i++) {
		uint64_t b = 0;

		rc = rv_json_uint(rv_json_at(v, i), UINT8_MAX, &b);
		bytes[i] = (uint8_t)b;
	}
	if (!rc)
		rc = rv_peer_info_init(out, instance, bytes, nr);
	free(bytes);
	return rc;
}

int rv_peer_info_from_json(const struct rv_json *v, struct rv_peer_info *out, const char **why)
{
	const struct rv_json *id = rv_json_field(v, "instance_id", 0);
	const struct rv_json *address = rv_json_field(v, "worker_address", 1);
	uint8_t instance[RV_UUID_LEN];
	int rc;

	if (!id || !address || (rv_json_kind(v) == RV_JSON_ARRAY && rv_json_nr(v) != 2))
		return wrong(why, "peer info needs instance_id and worker_address");
	if (uuid_from_json(id, instance))
		return wrong(why, "instance_id is no UUID");
	rc = address_from_json(address, out, instance);
	return rc == -EPROTO ? wrong(why, "worker_address is no list of 1 to 65536 bytes") : rc;
}

int rv_peer_info_decode(const char *text, size_t len, struct rv_peer_info *out, const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_peer_info info;
	struct rv_json *doc;
	int rc;

	if (len > PEER_INFO_TEXT_MAX)
		return wrong(why, "peer info is too long");
	rc = rv_peer_info_take(&c, &info);
	if (!rc && rv_canon_done(&c)) {
		*out = info;
		return 0;
	}
	if (!rc)
		rv_peer_info_fini(&info);
	else if (rc != -EAGAIN)
		return rc;
	rc = rv_json_parse(text, len, &doc, why);
	if (rc)
		return rc;
	rc = rv_peer_info_from_json(doc, out, why);
	rv_json_free(doc);
	return rc;
}
