/*
 * JSON of any bytes: what is taken is walked to its leaves; a PeerInfo that is taken is written in the canonical form, and
 * that is taken again, by the quick reader as by the tree.
 */
#include "control/json/json.h"

#include <string.h>

#include "control/json/peer_info.h"
#include "dataplane/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned walk(const struct rv_json *v, unsigned depth);

static int member(void *user, const char *key, const struct rv_json *m)
{
	unsigned *depth = user;

	RV_CHECK(key);
	walk(m, *depth + 1);
	return 0;
}

static unsigned walk(const struct rv_json *v, unsigned depth)
{
	enum rv_json_kind kind = rv_json_kind(v);
	uint64_t n;
	size_t len;
	double d;
	bool b;

	RV_CHECK(depth <= RV_JSON_DEPTH);
	RV_CHECK((rv_json_bool(v, &b) == 0) == (kind == RV_JSON_BOOL));
	RV_CHECK((rv_json_double(v, &d) == 0) == (kind == RV_JSON_INT || kind == RV_JSON_DOUBLE));
	RV_CHECK((rv_json_text(v, &len) != NULL) == (kind == RV_JSON_STRING));
	if (kind == RV_JSON_STRING)
		RV_CHECK(rv_json_text(v, &len)[len] == '\0');
	if (rv_json_uint(v, UINT64_MAX, &n) == 0)
		RV_CHECK(kind == RV_JSON_INT);
	if (kind == RV_JSON_OBJECT)
		rv_json_each(v, member, &depth);
	for (size_t i = 0; kind == RV_JSON_ARRAY && i < rv_json_nr(v); i++)
		walk(rv_json_at(v, i), depth + 1);
	return depth;
}

static void try_peer_info(const char *text, size_t len)
{
	static uint8_t again[RV_ADDRESS_MAX * 4 + 200];
	struct rv_writer w = rv_writer(again, sizeof(again));
	struct rv_peer_info p, q;
	struct rv_cursor c;

	if (rv_peer_info_decode(text, len, &p, NULL))
		return;
	rv_peer_info_encode(&w, &p);
	RV_CHECK(!w.bad);
	c = rv_cursor(again, w.len);
	RV_CHECK(rv_peer_info_take(&c, &q) == 0 && rv_cursor_left(&c) == 0);
	RV_CHECK(memcmp(p.instance, q.instance, sizeof(p.instance)) == 0);
	RV_CHECK(p.address_len == q.address_len);
	RV_CHECK(memcmp(p.address, q.address, p.address_len) == 0);
	rv_peer_info_fini(&p);
	rv_peer_info_fini(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rv_json *doc;
	const char *why = NULL;

	if (rv_json_parse((const char *)data, size, &doc, &why) == 0) {
		walk(doc, 0);
		rv_json_free(doc);
	} else {
		RV_CHECK(why && *why);
	}
	try_peer_info((const char *)data, size);
	return 0;
}
