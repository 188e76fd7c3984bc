#include "control/json/rv_codec.h"

#include "control/json/canonical.h"
#include "control/json/json.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

static int wrong(const char **why, const char *text)
{
	if (why)
		*why = text;
	return -EPROTO;
}

/*
 * What is no canonical spelling: parse it, let @read make of it what it can. @read sees a value
 * that is not NULL; @out is the caller's until it succeeds.
 */
static int decode_tree(const void *text, size_t len, size_t max,
		       int (*read)(const struct rv_json *v, void *out, const char **why), void *out,
		       const char **why)
{
	struct rv_json *doc;
	int rc;

	if (len > max)
		return wrong(why, "body is too long");
	rc = rv_json_parse(text, len, &doc, why);
	if (rc)
		return rc;
	rc = read(doc, out, why);
	rv_json_free(doc);
	return rc;
}

/* An object, or an array of @min to @max elements in its place. */
static bool is_struct(const struct rv_json *v, size_t min, size_t max)
{
	if (!v)
		return false;
	if (rv_json_kind(v) == RV_JSON_ARRAY)
		return rv_json_nr(v) >= min && rv_json_nr(v) <= max;
	return rv_json_kind(v) == RV_JSON_OBJECT;
}

static int field_uint(const struct rv_json *v, const char *key, size_t i, uint64_t max,
		      uint64_t *out)
{
	return rv_json_uint(rv_json_field(v, key, i), max, out);
}

static int field_u32(const struct rv_json *v, const char *key, size_t i, uint32_t *out)
{
	uint64_t n;
	int rc = field_uint(v, key, i, UINT32_MAX, &n);

	if (!rc)
		*out = (uint32_t)n;
	return rc;
}

/* "key":number, with what comes before the number spelled by the caller. */
static void put_field(struct rv_writer *w, const char *before, uint64_t n)
{
	rv_put_text(w, before);
	rv_json_put_u64(w, n);
}

static uint64_t take_field(struct rv_cursor *c, const char *before, uint64_t max)
{
	rv_canon_text(c, before);
	return rv_canon_u64(c, max);
}

/* ---- handle ---- */

static void put_handle(struct rv_writer *w, struct rv_handle h)
{
	put_field(w, "{\"handle\":{\"hi\":", h.worker);
	put_field(w, ",\"lo\":", h.local);
	rv_put_text(w, "}");
}

static struct rv_handle take_handle(struct rv_cursor *c)
{
	struct rv_handle h;

	h.worker = take_field(c, "{\"handle\":{\"hi\":", UINT64_MAX);
	h.local = take_field(c, ",\"lo\":", UINT64_MAX);
	rv_canon_text(c, "}");
	return h;
}

static int read_handle(const struct rv_json *body, struct rv_handle *out, const char **why)
{
	const struct rv_json *v = rv_json_field(body, "handle", 0);

	if (!is_struct(v, 2, 2))
		return wrong(why, "handle is missing or no object");
	if (field_uint(v, "hi", 0, UINT64_MAX, &out->worker) ||
	    field_uint(v, "lo", 1, UINT64_MAX, &out->local))
		return wrong(why, "handle needs unsigned hi and lo");
	return 0;
}

void rv_body_handle_encode(struct rv_writer *w, struct rv_handle h)
{
	put_handle(w, h);
	rv_put_text(w, "}");
}

static int read_handle_body(const struct rv_json *v, void *out, const char **why)
{
	return is_struct(v, 1, 1) ? read_handle(v, out, why) : wrong(why, "body is no object");
}

int rv_body_handle_decode(const void *text, size_t len, struct rv_handle *out, const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_handle h = take_handle(&c);
	int rc = 0;

	rv_canon_text(&c, "}");
	if (!rv_canon_done(&c))
		rc = decode_tree(text, len, RV_BODY_MAX, read_handle_body, &h, why);
	if (!rc)
		*out = h;
	return rc;
}

/* ---- lease ---- */

void rv_body_lease_encode(struct rv_writer *w, const struct rv_body_lease *in)
{
	put_handle(w, in->handle);
	put_field(w, ",\"lease_id\":", in->lease_id);
	rv_put_text(w, "}");
}

static int read_lease(const struct rv_json *v, void *out, const char **why)
{
	struct rv_body_lease *b = out;
	int rc;

	if (!is_struct(v, 2, 2))
		return wrong(why, "body is no object");
	rc = read_handle(v, &b->handle, why);
	if (!rc && field_uint(v, "lease_id", 1, UINT64_MAX, &b->lease_id))
		rc = wrong(why, "lease_id is missing or no unsigned integer");
	return rc;
}

int rv_body_lease_decode(const void *text, size_t len, struct rv_body_lease *out, const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_body_lease b;
	int rc = 0;

	b.handle = take_handle(&c);
	b.lease_id = take_field(&c, ",\"lease_id\":", UINT64_MAX);
	rv_canon_text(&c, "}");
	if (!rv_canon_done(&c))
		rc = decode_tree(text, len, RV_BODY_MAX, read_lease, &b, why);
	if (!rc)
		*out = b;
	return rc;
}

/* ---- pull ---- */

void rv_body_pull_encode(struct rv_writer *w, const struct rv_body_pull *in)
{
	put_field(w, "{\"transfer_id\":", in->transfer_id);
	put_field(w, ",\"chunk_index\":", in->chunk_index);
	rv_put_text(w, "}");
}

static int read_pull(const struct rv_json *v, void *out, const char **why)
{
	struct rv_body_pull *b = out;

	if (!is_struct(v, 2, 2))
		return wrong(why, "body is no object");
	if (field_uint(v, "transfer_id", 0, UINT64_MAX, &b->transfer_id) ||
	    field_u32(v, "chunk_index", 1, &b->chunk_index))
		return wrong(why, "pull needs unsigned transfer_id and chunk_index");
	return 0;
}

int rv_body_pull_decode(const void *text, size_t len, struct rv_body_pull *out, const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_body_pull b;
	int rc = 0;

	b.transfer_id = take_field(&c, "{\"transfer_id\":", UINT64_MAX);
	b.chunk_index = (uint32_t)take_field(&c, ",\"chunk_index\":", UINT32_MAX);
	rv_canon_text(&c, "}");
	if (!rv_canon_done(&c))
		rc = decode_tree(text, len, RV_BODY_MAX, read_pull, &b, why);
	if (!rc)
		*out = b;
	return rc;
}

/* ---- metadata ---- */

void rv_body_metadata_encode(struct rv_writer *w, const struct rv_body_metadata *in)
{
	put_field(w, "{\"total_len\":", in->total_len);
	put_field(w, ",\"refcount\":", in->refcount);
	rv_put_text(w, in->pinned ? ",\"pinned\":true}" : ",\"pinned\":false}");
}

static int read_metadata(const struct rv_json *v, void *out, const char **why)
{
	struct rv_body_metadata *b = out;

	if (!is_struct(v, 3, 3))
		return wrong(why, "body is no object");
	if (field_uint(v, "total_len", 0, UINT64_MAX, &b->total_len) ||
	    field_uint(v, "refcount", 1, UINT64_MAX, &b->refcount))
		return wrong(why, "metadata needs unsigned total_len and refcount");
	if (rv_json_bool(rv_json_field(v, "pinned", 2), &b->pinned))
		return wrong(why, "pinned is missing or no boolean");
	return 0;
}

int rv_body_metadata_decode(const void *text, size_t len, struct rv_body_metadata *out,
			    const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_body_metadata b;
	int rc = 0;

	b.total_len = take_field(&c, "{\"total_len\":", UINT64_MAX);
	b.refcount = take_field(&c, ",\"refcount\":", UINT64_MAX);
	rv_canon_text(&c, ",\"pinned\":");
	b.pinned = rv_canon_next(&c, 't');
	rv_canon_text(&c, b.pinned ? "true}" : "false}");
	if (!rv_canon_done(&c))
		rc = decode_tree(text, len, RV_BODY_MAX, read_metadata, &b, why);
	if (!rc)
		*out = b;
	return rc;
}

/* ---- acquire ---- */

/* Queue pairs have numbers of 24 bits. */
#define QP_MAX 0xffffffu

/* How stock nodes and ours spell each offer; the index is the bit mask. */
static const char *const offers[] = {
	[0] = ",\"rdma\":{\"backends\":[]",
	[RV_OFFER_UCX] = ",\"rdma\":{\"backends\":[\"ucx\"]",
	[RV_OFFER_VERBS] = ",\"rdma\":{\"backends\":[\"verbs\"]",
	[RV_OFFER_UCX | RV_OFFER_VERBS] = ",\"rdma\":{\"backends\":[\"verbs\",\"ucx\"]",
};
static const char of_verbs[] = ",\"verbs\":{\"qp\":";

static const char no_offer[] = ",\"rdma\":null}";

void rv_body_acquire_encode(struct rv_writer *w, const struct rv_body_acquire *in)
{
	put_handle(w, in->handle);
	if (!in->has_offer) {
		rv_put_text(w, no_offer);
		return;
	}
	rv_put_text(w, offers[in->offer & (RV_OFFER_UCX | RV_OFFER_VERBS)]);
	if (in->offer & RV_OFFER_VERBS && in->verbs_qp) {
		rv_put_text(w, of_verbs);
		rv_json_put_u64(w, in->verbs_qp);
		rv_put_text(w, "}");
	}
	rv_put_text(w, "}}");
}

static uint32_t offer_bit(const char *name, size_t len)
{
	if (len == 3 && memcmp(name, "ucx", 3) == 0)
		return RV_OFFER_UCX;
	if (len == 5 && memcmp(name, "verbs", 5) == 0)
		return RV_OFFER_VERBS;
	return 0;
}

static int read_verbs(const struct rv_json *v, struct rv_body_acquire *b, const char **why)
{
	uint64_t qp;

	if (!v || rv_json_kind(v) == RV_JSON_NULL)
		return 0;
	if (rv_json_kind(v) != RV_JSON_OBJECT || rv_json_uint(rv_json_get(v, "qp"), QP_MAX, &qp) ||
	    !qp)
		return wrong(why, "offer of verbs needs the number of a queue pair");
	b->verbs_qp = (uint32_t)qp;
	return 0;
}

static int read_offer(const struct rv_json *v, struct rv_body_acquire *b, const char **why)
{
	const struct rv_json *list;

	if (!v || rv_json_kind(v) == RV_JSON_NULL)
		return 0;
	list = is_struct(v, 1, 1) ? rv_json_field(v, "backends", 0) : NULL;
	if (!list || rv_json_kind(list) != RV_JSON_ARRAY)
		return wrong(why, "offer needs a list of backends");
	for (size_t i = 0; i < rv_json_nr(list); i++) {
		size_t len;
		const char *name = rv_json_text(rv_json_at(list, i), &len);

		if (!name)
			return wrong(why, "backend name is no string");
		b->offer |= offer_bit(name, len);
	}
	b->has_offer = true;
	if (!(b->offer & RV_OFFER_VERBS) || rv_json_kind(v) != RV_JSON_OBJECT)
		return 0;
	return read_verbs(rv_json_get(v, "verbs"), b, why);
}

static int read_acquire(const struct rv_json *v, void *out, const char **why)
{
	struct rv_body_acquire *b = out;
	int rc;

	if (!is_struct(v, 1, 2))
		return wrong(why, "body is no object");
	*b = (struct rv_body_acquire){0};
	rc = read_handle(v, &b->handle, why);
	return rc ? rc : read_offer(rv_json_field(v, "rdma", 1), b, why);
}

/* As ours and stock nodes write it. */
static bool canonical_offer(struct rv_cursor c, uint32_t offer, struct rv_body_acquire *b)
{
	uint64_t qp = 0;

	rv_canon_text(&c, offers[offer]);
	if (offer & RV_OFFER_VERBS && !c.bad && rv_canon_next(&c, ',')) {
		rv_canon_text(&c, of_verbs);
		qp = rv_canon_u64(&c, QP_MAX);
		rv_canon_text(&c, "}");
		c.bad |= !qp;
	}
	rv_canon_text(&c, "}}");
	if (!rv_canon_done(&c))
		return false;
	b->has_offer = true;
	b->offer = offer;
	b->verbs_qp = (uint32_t)qp;
	return true;
}

static bool canonical_none(struct rv_cursor c)
{
	rv_canon_text(&c, no_offer);
	return rv_canon_done(&c);
}

int rv_body_acquire_decode(const void *text, size_t len, struct rv_body_acquire *out,
			   const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_body_acquire b = {.handle = take_handle(&c)};
	bool known = canonical_none(c);
	int rc = 0;

	for (uint32_t i = 0; i < RV_ARRAY_NR(offers) && !known; i++)
		known = canonical_offer(c, i, &b);
	if (!known)
		rc = decode_tree(text, len, RV_BODY_MAX, read_acquire, &b, why);
	if (!rc)
		*out = b;
	return rc;
}

/* ---- grant ---- */

/* A grant being read, and the caller's buffer for its descriptor. */
struct grant_reading {
	struct rv_body_grant grant;
	uint8_t *desc;
	size_t desc_cap;
};

/* An extension stands inside the variant: beside it stock nodes would refuse the answer. */
static void put_end(struct rv_writer *w, const struct rv_body_grant *g)
{
	if (g->has_xxh3)
		put_field(w, ",\"xxh3\":", g->xxh3);
	rv_put_text(w, "}}");
}

static void put_ready(struct rv_writer *w, const struct rv_body_ready *r)
{
	put_field(w, "{\"Ready\":{\"lease_id\":", r->lease_id);
	put_field(w, ",\"transfer_id\":", r->transfer_id);
	put_field(w, ",\"total_len\":", r->total_len);
	put_field(w, ",\"chunk_size\":", r->chunk_size);
	put_field(w, ",\"chunk_count\":", r->chunk_count);
}

static void put_rdma(struct rv_writer *w, const struct rv_body_rdma *r)
{
	put_field(w, "{\"Rdma\":{\"lease_id\":", r->lease_id);
	rv_put_text(w, ",\"descriptor\":[");
	for (size_t i = 0; i < r->descriptor_len; i++) {
		if (i > 0)
			rv_put_u8(w, ',');
		rv_json_put_u64(w, r->descriptor[i]);
	}
	put_field(w, "],\"lease_timeout_ms\":", r->lease_timeout_ms);
}

void rv_body_grant_encode(struct rv_writer *w, const struct rv_body_grant *in)
{
	if (in->is_rdma)
		put_rdma(w, &in->rdma);
	else
		put_ready(w, &in->ready);
	put_end(w, in);
}

static void keep_desc_byte(struct grant_reading *g, uint8_t b)
{
	if (g->grant.rdma.descriptor_len < g->desc_cap)
		g->desc[g->grant.rdma.descriptor_len] = b;
	g->grant.rdma.descriptor_len++;
}

static void end_desc(struct grant_reading *g)
{
	g->grant.rdma.descriptor = g->grant.rdma.descriptor_len <= g->desc_cap ? g->desc : NULL;
}

static void take_end(struct rv_cursor *c, struct rv_body_grant *g)
{
	g->has_xxh3 = rv_canon_next(c, ',');
	if (g->has_xxh3)
		g->xxh3 = take_field(c, ",\"xxh3\":", UINT64_MAX);
	rv_canon_text(c, "}}");
}

static void take_ready(struct rv_cursor *c, struct rv_body_ready *r)
{
	r->lease_id = take_field(c, "{\"Ready\":{\"lease_id\":", UINT64_MAX);
	r->transfer_id = take_field(c, ",\"transfer_id\":", UINT64_MAX);
	r->total_len = take_field(c, ",\"total_len\":", UINT64_MAX);
	r->chunk_size = (uint32_t)take_field(c, ",\"chunk_size\":", UINT32_MAX);
	r->chunk_count = (uint32_t)take_field(c, ",\"chunk_count\":", UINT32_MAX);
}

static void take_rdma(struct rv_cursor *c, struct grant_reading *g)
{
	g->grant.is_rdma = true;
	g->grant.rdma.lease_id = take_field(c, "{\"Rdma\":{\"lease_id\":", UINT64_MAX);
	rv_canon_text(c, ",\"descriptor\":[");
	keep_desc_byte(g, (uint8_t)rv_canon_u64(c, UINT8_MAX));
	while (rv_canon_next(c, ','))
		keep_desc_byte(g, (uint8_t)take_field(c, ",", UINT8_MAX));
	end_desc(g);
	g->grant.rdma.lease_timeout_ms = take_field(c, "],\"lease_timeout_ms\":", UINT64_MAX);
}

static int read_ready(const struct rv_json *v, struct rv_body_ready *r, const char **why)
{
	if (!is_struct(v, 5, 5))
		return wrong(why, "Ready is no object");
	if (field_uint(v, "lease_id", 0, UINT64_MAX, &r->lease_id) ||
	    field_uint(v, "transfer_id", 1, UINT64_MAX, &r->transfer_id) ||
	    field_uint(v, "total_len", 2, UINT64_MAX, &r->total_len) ||
	    field_u32(v, "chunk_size", 3, &r->chunk_size) ||
	    field_u32(v, "chunk_count", 4, &r->chunk_count))
		return wrong(why, "Ready lacks a field, or one is no unsigned integer");
	return 0;
}

static int read_desc(const struct rv_json *list, struct grant_reading *g, const char **why)
{
	if (!list || rv_json_kind(list) != RV_JSON_ARRAY)
		return wrong(why, "descriptor is missing or no list");
	for (size_t i = 0; i < rv_json_nr(list); i++) {
		uint64_t b;

		if (rv_json_uint(rv_json_at(list, i), UINT8_MAX, &b))
			return wrong(why, "descriptor holds something that is no byte");
		keep_desc_byte(g, (uint8_t)b);
	}
	end_desc(g);
	return 0;
}

static int read_rdma(const struct rv_json *v, struct grant_reading *g, const char **why)
{
	const struct rv_json *timeout;
	int rc;

	if (!is_struct(v, 2, 3))
		return wrong(why, "Rdma is no object");
	if (field_uint(v, "lease_id", 0, UINT64_MAX, &g->grant.rdma.lease_id))
		return wrong(why, "lease_id is missing or no unsigned integer");
	rc = read_desc(rv_json_field(v, "descriptor", 1), g, why);
	if (rc)
		return rc;
	timeout = rv_json_field(v, "lease_timeout_ms", 2);
	if (timeout && rv_json_uint(timeout, UINT64_MAX, &g->grant.rdma.lease_timeout_ms))
		return wrong(why, "lease_timeout_ms is no unsigned integer");
	return 0;
}

static int read_xxh3(const struct rv_json *v, struct rv_body_grant *g)
{
	const struct rv_json *hash =
		rv_json_kind(v) == RV_JSON_OBJECT ? rv_json_get(v, "xxh3") : NULL;

	g->has_xxh3 = hash != NULL;
	return hash ? rv_json_uint(hash, UINT64_MAX, &g->xxh3) : 0;
}

static int read_grant(const struct rv_json *v, void *out, const char **why)
{
	struct grant_reading *g = out;
	const struct rv_json *ready = rv_json_get(v, "Ready");
	const struct rv_json *rdma = rv_json_get(v, "Rdma");

	g->grant = (struct rv_body_grant){.is_rdma = rdma != NULL};
	if (rv_json_kind(v) != RV_JSON_OBJECT || rv_json_nr(v) != 1 || (!ready && !rdma))
		return wrong(why, "answer is not just one of Ready and Rdma");
	if (read_xxh3(rdma ? rdma : ready, &g->grant))
		return wrong(why, "xxh3 is no unsigned integer");
	return rdma ? read_rdma(rdma, g, why) : read_ready(ready, &g->grant.ready, why);
}

int rv_body_grant_decode(const void *text, size_t len, uint8_t *desc, size_t desc_cap,
			 struct rv_body_grant *out, const char **why)
{
	struct grant_reading g = {.desc = desc, .desc_cap = desc_cap};
	struct rv_cursor c = rv_cursor(text, len);
	int rc = 0;

	/* {"Re.. or {"Rd..: the fourth character tells the two variants apart. */
	if (len > 3 && ((const char *)text)[3] == 'd')
		take_rdma(&c, &g);
	else
		take_ready(&c, &g.grant.ready);
	take_end(&c, &g.grant);
	if (!rv_canon_done(&c))
		rc = decode_tree(text, len, RV_BODY_MAX, read_grant, &g, why);
	if (!rc)
		*out = g.grant;
	return rc;
}

/* ---- hello ---- */

void rv_body_hello_encode(struct rv_writer *w, const struct rv_peer_info *in)
{
	rv_put_text(w, "{\"peer_info\":");
	rv_peer_info_encode(w, in);
	rv_put_text(w, "}");
}

static int read_hello(const struct rv_json *v, void *out, const char **why)
{
	const struct rv_json *info = is_struct(v, 1, 1) ? rv_json_field(v, "peer_info", 0) : NULL;

	return info ? rv_peer_info_from_json(info, out, why) : wrong(why, "peer_info is missing");
}

int rv_body_hello_decode(const void *text, size_t len, struct rv_peer_info *out, const char **why)
{
	struct rv_cursor c = rv_cursor(text, len);
	struct rv_peer_info info;
	int rc;

	rv_canon_text(&c, "{\"peer_info\":");
	rc = rv_peer_info_take(&c, &info);
	rv_canon_text(&c, "}");
	if (!rc && rv_canon_done(&c)) {
		*out = info;
		return 0;
	}
	if (!rc)
		rv_peer_info_fini(&info);
	else if (rc != -EAGAIN)
		return rc;
	return decode_tree(text, len, RV_BODY_HELLO_MAX, read_hello, out, why);
}

void rv_body_handlers_encode(struct rv_writer *w, const char *const *names, size_t nr,
			     const struct rv_peer_info *peer)
{
	rv_put_text(w, "{\"handlers\":[");
	for (size_t i = 0; i < nr; i++) {
		if (i > 0)
			rv_put_u8(w, ',');
		rv_json_put_text(w, names[i], strlen(names[i]));
	}
	rv_put_text(w, "]");
	if (peer) {
		rv_put_text(w, ",\"peer_info\":");
		rv_peer_info_encode(w, peer);
	}
	rv_put_text(w, "}");
}

/* Where the parts of a `_hello` answer go. */
struct handlers_reading {
	void (*name)(void *user, const char *name, size_t len);
	void *user;
	struct rv_peer_info *peer;
	bool has_peer;
};

static int read_handlers(const struct rv_json *v, void *out, const char **why)
{
	struct handlers_reading *r = out;
	const struct rv_json *list = is_struct(v, 1, 1) ? rv_json_field(v, "handlers", 0) : NULL;
	const struct rv_json *peer = rv_json_get(v, "peer_info");
	size_t nr = rv_json_nr(list);
	size_t len;

	if (!list || rv_json_kind(list) != RV_JSON_ARRAY)
		return wrong(why, "handlers is missing or no list");
	for (size_t i = 0; i < nr; i++)
		if (!rv_json_text(rv_json_at(list, i), &len))
			return wrong(why, "handler name is no string");
	for (size_t i = 0; i < nr && r->name; i++) {
		const char *name = rv_json_text(rv_json_at(list, i), &len);

		r->name(r->user, name, len);
	}
	r->has_peer = r->peer && peer && !rv_peer_info_from_json(peer, r->peer, NULL);
	return 0;
}

int rv_body_handlers_decode(const void *text, size_t len,
			    void (*name)(void *user, const char *name, size_t len), void *user,
			    struct rv_peer_info *peer, bool *has_peer, const char **why)
{
	struct handlers_reading r = {.name = name, .user = user, .peer = peer};
	int rc = decode_tree(text, len, RV_BODY_HELLO_MAX, read_handlers, &r, why);

	if (!rc && has_peer)
		*has_peer = r.has_peer;
	return rc;
}
