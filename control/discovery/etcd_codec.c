#include "control/discovery/etcd_codec.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/discovery/base64.h"
#include "control/json/json.h"

/* Digits alone: it goes into what is asked next. */
static bool take_number(const struct rv_json *v, char out[RV_ETCD_LEASE])
{
	size_t len = 0;
	const char *text = rv_json_text(v, &len);

	if (!text || !len || len >= RV_ETCD_LEASE || strspn(text, "0123456789") != len)
		return false;
	memcpy(out, text, len + 1);
	return true;
}

int rv_etcd_take_lease(const char *text, size_t len, char lease[RV_ETCD_LEASE])
{
	struct rv_json *doc;
	int rc = rv_json_parse(text, len, &doc, NULL);

	if (rc)
		return rc;
	if (!take_number(rv_json_get(doc, "ID"), lease))
		rc = -EPROTO;
	rv_json_free(doc);
	return rc;
}

/* Of a lease that is over the time left is absent, or "0". */
int rv_etcd_take_alive(const char *text, size_t len)
{
	const struct rv_json *result;
	char ttl[RV_ETCD_LEASE] = "0";
	struct rv_json *doc;
	int rc = rv_json_parse(text, len, &doc, NULL);

	if (rc)
		return rc;
	result = rv_json_get(doc, "result");
	if (rv_json_kind(result) != RV_JSON_OBJECT)
		rc = -EPROTO;
	else if (!take_number(rv_json_get(result, "TTL"), ttl) || strspn(ttl, "0") == strlen(ttl))
		rc = -ESTALE;
	rv_json_free(doc);
	return rc;
}

static int take_value(const struct rv_json *v, uint64_t worker, struct rv_peer_info *out)
{
	size_t len = 0, got = 0, cap;
	const char *text = rv_json_text(v, &len);
	uint8_t *value;
	int rc;

	if (!text)
		return -EPROTO;
	cap = len / 4 * 3 + 1;
	value = malloc(cap);
	if (!value) /* GCOVR_EXCL_BR_LINE: without memory */
		return -ENOMEM;
	rc = rv_base64_decode(text, len, value, cap, &got);
	if (!rc)
		rc = rv_peer_info_decode((const char *)value, got, out, NULL);
	free(value);
	if (!rc && rv_worker_id(out->instance) != worker) {
		rv_peer_info_fini(out);
		rc = -EPROTO;
	}
	return rc;
}

int rv_etcd_take_peer(const char *text, size_t len, uint64_t worker, struct rv_peer_info *out)
{
	const struct rv_json *kv;
	struct rv_json *doc;
	int rc = rv_json_parse(text, len, &doc, NULL);

	if (rc)
		return rc;
	kv = rv_json_at(rv_json_get(doc, "kvs"), 0);
	if (rv_json_kind(doc) != RV_JSON_OBJECT)
		rc = -EPROTO;
	else
		rc = kv ? take_value(rv_json_get(kv, "value"), worker, out) : -ENOENT;
	rv_json_free(doc);
	return rc;
}

void rv_etcd_take_error(const char *text, size_t len, char *out, size_t cap)
{
	struct rv_json *doc = NULL;
	const char *error = NULL;
	size_t error_len;

	if (len && !rv_json_parse(text, len, &doc, NULL))
		error = rv_json_text(rv_json_get(doc, "error"), &error_len);
	snprintf(out, cap, "%s", error ? error : "");
	for (char *p = out; *p; p++) {
		if ((unsigned char)*p < 0x20)
			*p = ' '; /* it goes into the log */
	}
	rv_json_free(doc);
}
