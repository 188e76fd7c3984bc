#include "control/messenger/address.h"

#include <arpa/inet.h>
#include <msgpack/pack.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "control/messenger/mp_read.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "dataplane/rendezvous/peers.h"

static bool text_is(const char *text, size_t len, const char *want)
{
	return len == strlen(want) && memcmp(text, want, len) == 0;
}

/* Which of @names a key is, or @nr. */
static size_t name_index(const char *key, size_t len, const char *const *names, size_t nr)
{
	size_t i = 0;

	while (i < nr && !text_is(key, len, names[i]))
		i++;
	return i;
}

/*
 * A record arrives as an array of its fields in order, or as a map by their names: @take reads
 * field i into @rec. A field in @optional (a bit each) may be missing from the map; a name twice is
 * an error.
 */
static bool take_record(struct rv_cursor *c, const char *const *names, size_t nr, unsigned optional,
			bool (*take)(struct rv_cursor *c, size_t i, void *rec), void *rec)
{
	struct rv_mp head = rv_mp_take(c);
	unsigned seen = 0;

	if (head.kind == RV_MP_ARRAY) {
		for (size_t i = 0; i < nr && head.nr == nr; i++)
			if (!take(c, i, rec))
				return false;
		return head.nr == nr;
	}
	if (head.kind != RV_MP_MAP)
		return false;
	for (uint32_t n = 0; n < head.nr; n++) {
		const char *key;
		size_t len, i;

		if (!rv_mp_take_text(c, &key, &len))
			return false;
		i = name_index(key, len, names, nr);
		if (i == nr) {
			if (!rv_mp_skip(c))
				return false;
			continue;
		}
		if ((seen & 1u << i) || !take(c, i, rec))
			return false;
		seen |= 1u << i;
	}
	return (seen | optional) == (1u << nr) - 1;
}

/* ---- tcp ---- */

/* What may be handed to a resolver and printed in a log: no blanks, no controls. */
static bool copy_host(char out[RV_ADDRESS_HOST_MAX], const char *text, size_t len)
{
	if (len == 0 || len >= RV_ADDRESS_HOST_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] > '~')
			return false;
	memcpy(out, text, len);
	out[len] = '\0';
	return true;
}

/* An interface name is only shown: what is not printable becomes '?', what is too long is cut. */
static void copy_name(char out[16], const char *text, size_t len)
{
	size_t n = len < 15 ? len : 15;

	for (size_t i = 0; i < n; i++)
		out[i] = text[i] > ' ' && text[i] <= '~' ? text[i] : '?';
	out[n] = '\0';
}

static bool is_v6(const char *host)
{
	struct in6_addr a;

	return inet_pton(AF_INET6, host, &a) == 1;
}

static bool take_numa(struct rv_cursor *c, int *numa)
{
	struct rv_mp e = rv_mp_take(c);

	*numa = e.kind == RV_MP_UINT && e.u <= INT32_MAX ? (int)e.u : -1;
	return e.kind == RV_MP_NIL || e.kind == RV_MP_NEGATIVE || e.kind == RV_MP_UINT;
}

static const char *const tcp_fields[] = {"name", "ip", "port", "prefix_len", "numa_node"};

static bool take_tcp_field(struct rv_cursor *c, size_t i, void *rec)
{
	struct rv_tcp_endpoint *e = rec;
	const char *text;
	size_t len;
	uint64_t n;

	switch (i) {
	case 0:
		if (!rv_mp_take_text(c, &text, &len))
			return false;
		copy_name(e->name, text, len);
		return true;
	case 1:
		return rv_mp_take_text(c, &text, &len) && copy_host(e->ip, text, len);
	case 2:
		if (!rv_mp_take_uint(c, UINT16_MAX, &n))
			return false;
		e->port = (uint16_t)n;
		return true;
	case 3:
		if (!rv_mp_take_uint(c, UINT8_MAX, &n))
			return false;
		e->prefix_len = (uint8_t)n;
		return true;
	default:
		return take_numa(c, &e->numa);
	}
}

/* Records past the last place, and those nobody could dial (port 0), are read and left out. */
static bool decode_tcp_records(const uint8_t *buf, size_t len, struct rv_address *a)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_mp list = rv_mp_take(&c);

	a->tcp_nr = 0;
	if (list.kind != RV_MP_ARRAY || list.nr == 0)
		return false;
	for (uint32_t i = 0; i < list.nr; i++) {
		struct rv_tcp_endpoint e = {.numa = -1};

		if (!take_record(&c, tcp_fields, RV_ARRAY_NR(tcp_fields), 1u << 4, take_tcp_field,
				 &e)) {
			a->tcp_nr = 0;
			return false;
		}
		if (e.port != 0 && a->tcp_nr < RV_ADDRESS_TCP_MAX)
			a->tcp[a->tcp_nr++] = e;
	}
	return a->tcp_nr > 0;
}

static bool parse_port(const char *text, size_t len, uint16_t *port)
{
	unsigned n = 0;

	if (len == 0 || len > 5)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		n = n * 10 + (unsigned)(text[i] - '0');
	}
	*port = (uint16_t)n;
	return n > 0 && n <= UINT16_MAX;
}

/* Cut a known scheme off the front. */
static void strip_scheme(const char **text, size_t *len)
{
	static const char *const schemes[] = {"tcp://", "grpc://"};

	for (size_t i = 0; i < RV_ARRAY_NR(schemes); i++) {
		size_t n = strlen(schemes[i]);

		if (*len >= n && memcmp(*text, schemes[i], n) == 0) {
			*text += n;
			*len -= n;
			return;
		}
	}
}

/* Old form: "tcp://host:port", "grpc://host:port" or "host:port"; IPv6 in brackets. */
static bool decode_tcp_legacy(const uint8_t *buf, size_t buf_len, struct rv_address *a)
{
	const char *text = (const char *)buf;
	struct rv_tcp_endpoint e = {.numa = -1};
	size_t len = buf_len;
	const char *colon;
	size_t host_len;

	strip_scheme(&text, &len);
	colon = len ? memrchr(text, ':', len) : NULL;
	if (!colon)
		return false;
	host_len = (size_t)(colon - text);
	if (!parse_port(colon + 1, len - host_len - 1, &e.port))
		return false;
	if (host_len > 2 && text[0] == '[' && text[host_len - 1] == ']') {
		text++;
		host_len -= 2;
	} else if (host_len && memchr(text, ':', host_len)) {
		return false;
	}
	if (!copy_host(e.ip, text, host_len))
		return false;
	e.prefix_len = is_v6(e.ip) ? 128 : 32;
	a->tcp[0] = e;
	a->tcp_nr = 1;
	return true;
}

static void decode_tcp(const uint8_t *buf, size_t len, struct rv_address *a)
{
	a->tcp_refused = !decode_tcp_records(buf, len, a) && !decode_tcp_legacy(buf, len, a);
}

/* ---- ucx ---- */

struct blob_reading {
	struct rv_ucx_blob blob;
	uint64_t am_id_base;
	struct rv_writer addr;
};

static const char *const ucx_fields[] = {"v", "am_id_base", "eager_max", "incarnation",
					 "worker_addr"};

static bool take_ucx_field(struct rv_cursor *c, size_t i, void *rec)
{
	struct blob_reading *r = rec;
	uint64_t n;

	switch (i) {
	case 0:
		if (!rv_mp_take_uint(c, UINT8_MAX, &n))
			return false;
		r->blob.version = (uint8_t)n;
		return true;
	case 1:
		return rv_mp_take_uint(c, UINT16_MAX, &r->am_id_base);
	case 2:
		if (!rv_mp_take_uint(c, UINT32_MAX, &n))
			return false;
		r->blob.eager_max = (uint32_t)n;
		return true;
	case 3:
		return rv_mp_take_uint(c, UINT64_MAX, &r->blob.incarnation);
	default:
		return rv_mp_take_byte_string(c, &r->addr);
	}
}

static void decode_ucx(const uint8_t *buf, size_t len, unsigned want_version, struct rv_address *a)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct blob_reading r = {.addr = rv_writer(a->ucx_bytes, sizeof(a->ucx_bytes))};

	a->has_ucx = take_record(&c, ucx_fields, RV_ARRAY_NR(ucx_fields), 0, take_ucx_field, &r) &&
		     r.blob.version == want_version && r.am_id_base == RV_UCX_AM_ID_BASE &&
		     r.addr.len > 0 && !r.addr.bad;
	a->ucx_refused = !a->has_ucx;
	if (!a->has_ucx)
		return;
	a->ucx = r.blob;
	a->ucx.worker_addr = a->ucx_bytes;
	a->ucx.worker_addr_len = r.addr.len;
}

/* ---- rvd ---- */

static const char *const rvd_fields[] = {"v", "verbs", "workers"};

struct rvd_reading {
	uint64_t version;
	struct rv_writer verbs, workers;
	uint8_t one[RV_ADDRESS_UCX_MAX];
};

static bool take_workers(struct rv_cursor *c, struct rvd_reading *r)
{
	struct rv_mp head = rv_mp_take(c);

	if (head.kind != RV_MP_ARRAY || head.nr > RV_ADDRESS_WORKERS_MAX)
		return false;
	for (uint32_t i = 0; i < head.nr; i++) {
		struct rv_writer w = rv_writer(r->one, sizeof(r->one));

		if (!rv_mp_take_byte_string(c, &w) || w.bad || !w.len)
			return false;
		rv_peer_workers_add(&r->workers, r->one, w.len);
	}
	return true;
}

static bool take_rvd_field(struct rv_cursor *c, size_t i, void *rec)
{
	struct rvd_reading *r = rec;

	if (i == 0)
		return rv_mp_take_uint(c, UINT32_MAX, &r->version);
	return i == 1 ? rv_mp_take_byte_string(c, &r->verbs) : take_workers(c, r);
}

/* Only a map will do here; keys that a later release adds are skipped. */
static void decode_rvd(const uint8_t *buf, size_t len, struct rv_address *a)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_cursor peek = c;
	struct rvd_reading r = {.verbs = rv_writer(a->verbs, sizeof(a->verbs)),
				.workers = rv_writer(a->workers, sizeof(a->workers))};

	a->has_rvd = rv_mp_take(&peek).kind == RV_MP_MAP &&
		     take_record(&c, rvd_fields, RV_ARRAY_NR(rvd_fields), 1u << 1 | 1u << 2,
				 take_rvd_field, &r) &&
		     !r.verbs.bad && !r.workers.bad;
	a->workers_len = a->has_rvd ? r.workers.len : 0;
	a->rvd_version = a->has_rvd ? (uint32_t)r.version : 0;
	a->verbs_len = a->has_rvd ? r.verbs.len : 0;
}

/* ---- the whole ---- */

static const char *const transports[] = {"tcp", "ucx", "rvd"};

/* @value holds the byte strings one after the other; it has room for all of them. */
static bool take_transport(struct rv_cursor *c, unsigned want_version, uint8_t *value, size_t cap,
			   struct rv_address *a)
{
	struct rv_writer w = rv_writer(value, cap);
	const char *key;
	size_t len;

	if (!rv_mp_take_text(c, &key, &len) || !rv_mp_take_byte_string(c, &w) ||
	    w.bad) /* GCOVR_EXCL_BR_LINE: it has room for all that there may be */
		return false;
	switch (name_index(key, len, transports, RV_ARRAY_NR(transports))) {
	case 0:
		decode_tcp(value, w.len, a);
		break;
	case 1:
		decode_ucx(value, w.len, want_version, a);
		break;
	case 2:
		decode_rvd(value, w.len, a);
		break;
	default:
		break;
	}
	return true;
}

int rv_address_decode(const uint8_t *buf, size_t len, unsigned want_blob_version,
		      struct rv_address *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	struct rv_mp map = rv_mp_take(&c);
	struct rv_address *a;
	uint8_t *value;
	int rc = 0;

	if (map.kind != RV_MP_MAP || len > RV_ADDRESS_MAX)
		return -EPROTO;
	a = calloc(1, sizeof(*a) +
			      len); /* a byte string is never longer than the bytes that spell it */
	if (!a)
		return -ENOMEM;
	value = (uint8_t *)(a + 1);
	for (uint32_t i = 0; i < map.nr && !rc; i++)
		if (!take_transport(&c, want_blob_version, value, len, a))
			rc = -EPROTO;
	if (!rc) {
		memcpy(out, a, sizeof(*out));
		if (out->has_ucx)
			out->ucx.worker_addr = out->ucx_bytes;
	}
	free(a);
	return rc;
}

/* Room for any one value of ours before it is spelled as an array of integers. */
struct value_buf {
	uint8_t bytes[RV_ADDRESS_TCP_MAX * (RV_ADDRESS_HOST_MAX + 40) + RV_ADDRESS_UCX_MAX];
	struct rv_writer w;
	msgpack_packer pk;
};

static void value_begin(struct value_buf *v)
{
	v->w = rv_writer(v->bytes, sizeof(v->bytes));
	msgpack_packer_init(&v->pk, &v->w, rv_mp_write);
}

static void put_str(msgpack_packer *pk, const char *s)
{
	msgpack_pack_str(pk, strlen(s));
	msgpack_pack_str_body(pk, s, strlen(s));
}

static void value_end(const struct value_buf *v, struct rv_writer *w, const char *key)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, w, rv_mp_write);
	put_str(&pk, key);
	rv_mp_put_byte_string(w, v->bytes, v->w.len);
}

static void encode_tcp(struct rv_writer *w, const struct rv_address *a, struct value_buf *v)
{
	value_begin(v);
	msgpack_pack_array(&v->pk, a->tcp_nr);
	for (size_t i = 0; i < a->tcp_nr; i++) {
		const struct rv_tcp_endpoint *e = &a->tcp[i];

		msgpack_pack_array(&v->pk, RV_ARRAY_NR(tcp_fields));
		put_str(&v->pk, e->name);
		put_str(&v->pk, e->ip);
		msgpack_pack_uint16(&v->pk, e->port);
		msgpack_pack_uint8(&v->pk, e->prefix_len);
		if (e->numa < 0)
			msgpack_pack_nil(&v->pk);
		else
			msgpack_pack_int(&v->pk, e->numa);
	}
	value_end(v, w, "tcp");
}

static void encode_ucx(struct rv_writer *w, const struct rv_ucx_blob *b, struct value_buf *v)
{
	value_begin(v);
	msgpack_pack_array(&v->pk, RV_ARRAY_NR(ucx_fields));
	msgpack_pack_uint8(&v->pk, b->version);
	msgpack_pack_uint16(&v->pk, RV_UCX_AM_ID_BASE);
	msgpack_pack_uint32(&v->pk, b->eager_max);
	msgpack_pack_uint64(&v->pk, b->incarnation);
	msgpack_pack_bin(&v->pk, b->worker_addr_len);
	msgpack_pack_bin_body(&v->pk, b->worker_addr, b->worker_addr_len);
	value_end(v, w, "ucx");
}

static void encode_rvd(struct rv_writer *w, const struct rv_address *a, struct value_buf *v)
{
	const uint8_t *worker;
	size_t len, nr = rv_peer_workers_nr(a->workers, a->workers_len);

	value_begin(v);
	msgpack_pack_map(&v->pk, 1 + (size_t)(a->verbs_len > 0) + (nr > 0));
	put_str(&v->pk, "v");
	msgpack_pack_uint32(&v->pk, a->rvd_version);
	if (a->verbs_len) {
		put_str(&v->pk, "verbs");
		msgpack_pack_bin(&v->pk, a->verbs_len);
		msgpack_pack_bin_body(&v->pk, a->verbs, a->verbs_len);
	}
	if (nr) {
		put_str(&v->pk, "workers");
		msgpack_pack_array(&v->pk, nr);
	}
	for (size_t i = 0; i < nr; i++) {
		worker = rv_peer_workers_at(a->workers, a->workers_len, i, &len);
		msgpack_pack_bin(&v->pk, len);
		msgpack_pack_bin_body(&v->pk, worker, len);
	}
	value_end(v, w, "rvd");
}

int rv_address_encode(struct rv_writer *w, const struct rv_address *a)
{
	struct value_buf v;
	msgpack_packer pk;

	if (a->tcp_nr > RV_ADDRESS_TCP_MAX || a->verbs_len > RV_ADDRESS_VERBS_MAX)
		return -EINVAL;
	if (a->has_ucx &&
	    (a->ucx.worker_addr_len == 0 || a->ucx.worker_addr_len > RV_ADDRESS_UCX_MAX))
		return -EINVAL;

	msgpack_packer_init(&pk, w, rv_mp_write);
	msgpack_pack_map(&pk, (size_t)(a->tcp_nr > 0) + a->has_ucx + a->has_rvd);
	if (a->tcp_nr > 0)
		encode_tcp(w, a, &v);
	if (a->has_ucx)
		encode_ucx(w, &a->ucx, &v);
	if (a->has_rvd)
		encode_rvd(w, a, &v);
	return w->bad ? -ENOSPC : 0;
}

/* ---- PeerInfo ---- */

struct peer_reading {
	uint8_t instance[RV_UUID_LEN];
	struct rv_writer address;
};

static const char *const peer_fields[] = {"instance_id", "worker_address"};

/* The instance is 16 raw bytes; its text form is taken too. */
static bool take_peer_field(struct rv_cursor *c, size_t i, void *rec)
{
	struct peer_reading *r = rec;
	struct rv_mp e;

	if (i == 1)
		return rv_mp_take_byte_string(c, &r->address);
	e = rv_mp_take(c);
	if (e.kind == RV_MP_STR)
		return rv_uuid_parse((const char *)e.data, e.nr, r->instance) == 0;
	if (e.kind != RV_MP_BIN || e.nr != RV_UUID_LEN)
		return false;
	memcpy(r->instance, e.data, RV_UUID_LEN);
	return true;
}

int rv_peer_info_decode_msgpack(const uint8_t *buf, size_t len, struct rv_peer_info *out)
{
	struct rv_cursor c = rv_cursor(buf, len);
	uint8_t *bytes = malloc(RV_ADDRESS_MAX);
	struct peer_reading r = {.address = rv_writer(bytes, RV_ADDRESS_MAX)};
	int rc;

	if (!bytes) /* GCOVR_EXCL_BR_LINE: without memory */
		return -ENOMEM;
	if (!take_record(&c, peer_fields, RV_ARRAY_NR(peer_fields), 0, take_peer_field, &r) ||
	    r.address.bad)
		rc = -EPROTO;
	else
		rc = rv_peer_info_init(out, r.instance, bytes, r.address.len);
	free(bytes);
	return rc;
}

int rv_peer_info_encode_msgpack(struct rv_writer *w, const struct rv_peer_info *in)
{
	msgpack_packer pk;

	msgpack_packer_init(&pk, w, rv_mp_write);
	msgpack_pack_array(&pk, RV_ARRAY_NR(peer_fields));
	msgpack_pack_bin(&pk, RV_UUID_LEN);
	msgpack_pack_bin_body(&pk, in->instance, RV_UUID_LEN);
	msgpack_pack_bin(&pk, in->address_len);
	msgpack_pack_bin_body(&pk, in->address, in->address_len);
	return w->bad ? -ENOSPC : 0;
}
