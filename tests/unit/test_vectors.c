/*
 * Bytes that stock nodes exchanged (tests/vectors), taken apart by our decoders and put together
 * again by our encoders. Where stock nodes have one spelling, ours must be the same to the byte.
 */
#include <dirent.h>
#include <stdio.h>

#include "control/frame/frame.h"
#include "control/json/json.h"
#include "control/json/rv_codec.h"
#include "control/messenger/address.h"
#include "control/messenger/headers.h"
#include "control/messenger/mp_read.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "dataplane/rendezvous/descriptor.h"
#include "tests/unit/exact.h"
#include "ucx/rkey_parse.h"

#define FRAME_CAP 8192u

/* What has been seen of each kind: a test that looks at nothing must not pass. */
static struct {
	size_t frames, requests, responses, acks, refusals, staged;
	size_t hellos, handler_lists, metadata, readies, rdmas, pulls, leases, handles;
	size_t descriptors, keys, addresses, blobs;
} seen;

static char where[320]; /* for failures */

static char *read_file(const char *name, size_t *len)
{
	const char *dir = getenv("RV_VECTORS");
	char path[1024];
	char *text;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir ? dir : "tests/vectors", name);
	f = fopen(path, "re");
	if (!f)
		fail_msg("%s cannot be opened: set RV_VECTORS", path);
	text = malloc(1u << 20);
	*len = fread(text, 1, 1u << 20, f);
	assert_true(*len < 1u << 20);
	fclose(f);
	return text;
}

static struct rv_json *load(const char *name)
{
	struct rv_json *doc = NULL;
	size_t len;
	char *text = read_file(name, &len);
	const char *why = "";

	snprintf(where, sizeof(where), "%s", name);
	if (rv_json_parse(text, len, &doc, &why))
		fail_msg("%s: %s", name, why);
	free(text);
	return doc;
}

static const char *text_of(const struct rv_json *v, const char *key)
{
	size_t len;

	return rv_json_text(rv_json_get(v, key), &len);
}

/* Calls @fn for each file whose name starts with @prefix. */
static void each_file(const char *prefix, void (*fn)(const char *name, const struct rv_json *doc))
{
	const char *dir = getenv("RV_VECTORS");
	DIR *d = opendir(dir ? dir : "tests/vectors");
	struct dirent *e;
	size_t nr = 0;

	assert_non_null(d);
	while ((e = readdir(d))) {
		struct rv_json *doc;

		if (strncmp(e->d_name, prefix, strlen(prefix)) != 0 || !strstr(e->d_name, ".json"))
			continue;
		doc = load(e->d_name);
		fn(e->d_name, doc);
		rv_json_free(doc);
		nr++;
	}
	closedir(d);
	assert_true(nr > 0);
}

static void same(const struct rv_writer *w, const void *bytes, size_t len, const char *what)
{
	if (w->bad || w->len != len || memcmp(w->buf, bytes, len) != 0)
		fail_msg("%s: %s is written differently", where, what);
}

static void must(bool ok, const char *what)
{
	if (!ok)
		fail_msg("%s: %s", where, what);
}

/* ---- addresses ---- */

static struct rv_address addr;

static unsigned blob_version(const char *file)
{
	return strstr(file, "012") && !strstr(file, "mixed") ? 1 : 2;
}

/* The `ucx` value as we write it, against the recorded bytes. */
static void same_blob(const struct rv_ucx_blob *blob, const char *hex)
{
	static struct rv_address one;
	uint8_t out[FRAME_CAP], want[FRAME_CAP], value[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_writer v = rv_writer(value, sizeof(value));
	struct rv_cursor c;
	const char *key;
	size_t key_len;

	one = (struct rv_address){.has_ucx = true, .ucx = *blob};
	assert_int_equal(rv_address_encode(&w, &one), 0);
	c = rv_cursor(out, w.len);
	rv_mp_take(&c);
	must(rv_mp_take_text(&c, &key, &key_len) && rv_mp_take_byte_string(&c, &v), "our blob");
	same(&v, want, from_hex(hex, want, sizeof(want)), "ucx blob");
	seen.blobs++;
}

static void check_address(const uint8_t *bytes, size_t len, unsigned version)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));

	must(rv_address_decode(bytes, len, version, &addr) == 0, "address is refused");
	must(addr.tcp_nr == 1 && !addr.tcp_refused && !addr.has_rvd, "address has no tcp");
	seen.addresses++;
	/*
	 * Their maps come in any order and may hold more keys: with tcp alone there is one
	 * spelling.
	 */
	if (bytes[0] == 0x81) {
		assert_int_equal(rv_address_encode(&w, &addr), 0);
		same(&w, bytes, len, "address");
	}
}

static void check_peer_info_file(const char *name, const struct rv_json *doc)
{
	const char *json = text_of(doc, "json");
	const struct rv_json *ucx =
		rv_json_get(rv_json_get(rv_json_get(doc, "decoded"), "entries"), "ucx");
	unsigned version = blob_version(name);
	uint8_t msgpack[FRAME_CAP], out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	size_t len = from_hex(text_of(doc, "msgpack_hex"), msgpack, sizeof(msgpack));
	struct rv_peer_info a, b;

	assert_int_equal(rv_peer_info_decode(json, strlen(json), &a, NULL), 0);
	assert_int_equal(rv_peer_info_decode_msgpack(msgpack, len, &b), 0);
	assert_memory_equal(a.instance, b.instance, RV_UUID_LEN);
	assert_int_equal(a.address_len, b.address_len);
	assert_memory_equal(a.address, b.address, a.address_len);
	rv_peer_info_encode(&w, &a);
	same(&w, json, strlen(json), "JSON form");
	w = rv_writer(out, sizeof(out));
	assert_int_equal(rv_peer_info_encode_msgpack(&w, &b), 0);
	same(&w, msgpack, len, "msgpack form");

	check_address(a.address, a.address_len, version);
	must(addr.has_ucx == (ucx != NULL) && !addr.ucx_refused, "ucx entry");
	if (ucx)
		same_blob(&addr.ucx, text_of(ucx, "hex"));
	check_address(a.address, a.address_len, 3 - version);
	must(!addr.has_ucx && addr.ucx_refused == (ucx != NULL), "other version's ucx entry");
	rv_peer_info_fini(&a);
	rv_peer_info_fini(&b);
}

static void peer_infos_are_read_and_written(void **state)
{
	(void)state;
	each_file("peerinfo-", check_peer_info_file);
	assert_true(seen.blobs >= 2);
}

/* ---- bodies ---- */

static void check_descriptor(const struct rv_body_rdma *r)
{
	uint8_t out[RV_DESC_MAX];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_desc d;

	must(rv_desc_decode(r->descriptor, r->descriptor_len, &d) == RV_ACCEPT,
	     "descriptor is refused");
	must(d.backend == RV_BACKEND_UCX && d.len > 0, "descriptor is odd");
	assert_int_equal(rv_desc_encode(&w, &d), 0);
	same(&w, r->descriptor, r->descriptor_len, "descriptor");
	must(rv_rkey_parse(d.rkey, d.rkey_len, true) == RV_RKEY_OK, "key is refused");
	seen.descriptors++;
	seen.keys++;
}

static void check_grant(const void *text, size_t len)
{
	static uint8_t out[RV_BODY_RDMA_ROOM], desc[RV_BODY_DESC_MAX];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_body_grant g;

	must(rv_body_grant_decode(text, len, desc, sizeof(desc), &g, NULL) == 0,
	     "grant is refused");
	rv_body_grant_encode(&w, &g);
	same(&w, text, len, "grant");
	if (g.is_rdma) {
		check_descriptor(&g.rdma);
		seen.rdmas++;
	} else {
		must(g.ready.chunk_size == RV_KIB(512), "chunk size");
		seen.readies++;
	}
}

/* The names of a list, to be written again. */
static char names[128][64];
static const char *name_ptrs[128];
static size_t names_nr;

static void keep_name(void *user, const char *name, size_t len)
{
	(void)user;
	assert_true(names_nr < 128 && len < 64);
	memcpy(names[names_nr], name, len);
	names[names_nr][len] = '\0';
	name_ptrs[names_nr] = names[names_nr];
	names_nr++;
}

static void check_handlers(const void *text, size_t len)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));

	names_nr = 0;
	must(rv_body_handlers_decode(text, len, keep_name, NULL, NULL, NULL, NULL) == 0,
	     "handler list is refused");
	must(names_nr > 20, "handler list is short");
	rv_body_handlers_encode(&w, name_ptrs, names_nr, NULL);
	same(&w, text, len, "handler list");
	seen.handler_lists++;
}

static void check_metadata_answer(const void *text, size_t len)
{
	uint8_t out[RV_BODY_SMALL];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_body_metadata m;

	must(rv_body_metadata_decode(text, len, &m, NULL) == 0, "metadata is refused");
	rv_body_metadata_encode(&w, &m);
	same(&w, text, len, "metadata");
	seen.metadata++;
}

static void check_hello(const void *text, size_t len)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_peer_info p;

	must(rv_body_hello_decode(text, len, &p, NULL) == 0, "_hello is refused");
	rv_body_hello_encode(&w, &p);
	same(&w, text, len, "_hello");
	check_address(p.address, p.address_len, 2);
	rv_peer_info_fini(&p);
	seen.hellos++;
}

static void check_small_request(const char *name, const void *text, size_t len)
{
	uint8_t out[RV_BODY_SMALL];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_body_acquire a;
	struct rv_body_lease l;
	struct rv_body_pull p;
	struct rv_handle h;

	if (strcmp(name, "_rv_metadata") == 0 || strcmp(name, "_rv_ref") == 0) {
		must(rv_body_handle_decode(text, len, &h, NULL) == 0, "handle is refused");
		rv_body_handle_encode(&w, h);
		seen.handles++;
	} else if (strcmp(name, "_rv_acquire") == 0) {
		must(rv_body_acquire_decode(text, len, &a, NULL) == 0, "acquire is refused");
		rv_body_acquire_encode(&w, &a);
	} else if (strcmp(name, "_rv_pull") == 0) {
		must(rv_body_pull_decode(text, len, &p, NULL) == 0, "pull is refused");
		rv_body_pull_encode(&w, &p);
		seen.pulls++;
	} else {
		must(rv_body_lease_decode(text, len, &l, NULL) == 0, "lease is refused");
		rv_body_lease_encode(&w, &l);
		seen.leases++;
	}
	same(&w, text, len, name);
}

static void check_request_body(const char *name, const void *text, size_t len)
{
	if (strcmp(name, "_hello") == 0)
		check_hello(text, len);
	else if (strncmp(name, "_rv_", 4) == 0)
		check_small_request(name, text, len);
}

static void check_answer_body(const char *name, const void *text, size_t len)
{
	if (strcmp(name, "_hello") == 0 || strcmp(name, "_list_handlers") == 0)
		check_handlers(text, len);
	else if (strcmp(name, "_rv_metadata") == 0)
		check_metadata_answer(text, len);
	else if (strcmp(name, "_rv_acquire") == 0)
		check_grant(text, len);
}

/* ---- frames ---- */

/* Which handler each call of a file asked for. */
static struct {
	struct rv_msg_id id;
	char name[64];
} calls[256];
static size_t calls_nr;

static void remember_call(const struct rv_request_header *h)
{
	assert_true(calls_nr < 256 && h->name_len < 64);
	calls[calls_nr].id = h->id;
	memcpy(calls[calls_nr].name, h->name, h->name_len);
	calls[calls_nr].name[h->name_len] = '\0';
	calls_nr++;
}

static const char *call_name(const struct rv_msg_id *id)
{
	for (size_t i = calls_nr; i-- > 0;)
		if (rv_msg_id_equal(&calls[i].id, id))
			return calls[i].name;
	return "";
}

/* Recorded maps have one key, and a map of one pair has one spelling. */
static void check_headers(const uint8_t *map, size_t len)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_header_pair pair = {.key = RV_HEADER_STAGED};
	struct rv_handle h;
	char text[RV_HANDLE_TEXT];

	must(rv_headers_check(map, len) == 0, "headers are refused");
	if (len == 0 || rv_headers_find_staged(map, len, &h) != 0)
		return;
	pair.val_len = rv_handle_format_text(h, text);
	pair.val = text;
	assert_int_equal(rv_headers_encode(&w, &pair, 1), 0);
	same(&w, map, len, "headers");
	seen.staged++;
}

static void check_request(const uint8_t *header, size_t len, bool is_call)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_request_header h;

	must(rv_request_header_decode(header, len, &h) == 0, "request header is refused");
	assert_int_equal(rv_request_header_encode(&w, &h), 0);
	same(&w, header, len, "request header");
	check_headers(h.headers, h.headers_len);
	if (is_call)
		remember_call(&h);
	seen.requests += is_call;
	seen.refusals += !is_call;
}

static const char *check_response(const uint8_t *header, size_t len, bool *ok)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_response_header h;

	must(rv_response_header_decode(header, len, &h) == 0, "response header is refused");
	assert_int_equal(rv_response_header_encode(&w, &h), 0);
	same(&w, header, len, "response header");
	check_headers(h.headers, h.headers_len);
	*ok = h.outcome == 0;
	seen.responses++;
	return call_name(&h.id);
}

static void check_ack(const uint8_t *header, size_t len)
{
	uint8_t out[FRAME_CAP];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_ack_header h;

	must(rv_ack_header_decode(header, len, &h) == 0, "ack header is refused");
	rv_ack_header_encode(&w, &h);
	same(&w, header, len, "ack header");
	seen.acks++;
}

/* @body is NULL when the recording has only a part of it. */
static void check_frame(const char *preamble_hex, const char *header_hex, uint64_t payload_len,
			const void *body)
{
	uint8_t bytes[RV_FRAME_PREAMBLE], again[RV_FRAME_PREAMBLE], header[FRAME_CAP];
	size_t header_len = from_hex(header_hex, header, sizeof(header));
	struct rv_preamble p;
	const char *name;
	bool ok;

	assert_int_equal(from_hex(preamble_hex, bytes, sizeof(bytes)), sizeof(bytes));
	must(rv_preamble_decode(bytes, &p) == 0, "preamble is refused");
	must(p.header_len == header_len && p.payload_len == payload_len, "lengths");
	rv_preamble_encode(again, &p);
	assert_memory_equal(again, bytes, sizeof(bytes));
	seen.frames++;

	switch (p.type) {
	case RV_FRAME_MESSAGE:
		check_request(header, header_len, true);
		if (body && payload_len)
			check_request_body(calls[calls_nr - 1].name, body, payload_len);
		break;
	case RV_FRAME_SHUTTING_DOWN:
		check_request(header, header_len, false);
		break;
	case RV_FRAME_RESPONSE:
		name = check_response(header, header_len, &ok);
		if (ok && body && payload_len)
			check_answer_body(name, body, payload_len);
		break;
	default:
		check_ack(header, header_len);
	}
}

static void check_frames_of(const char *file, const struct rv_json *doc)
{
	const struct rv_json *frames = rv_json_get(doc, "frames");

	calls_nr = 0;
	for (size_t i = 0; i < rv_json_nr(frames); i++) {
		const struct rv_json *f = rv_json_at(frames, i);
		const char *hex = text_of(rv_json_get(f, "payload"), "hex");
		uint8_t *body = malloc(FRAME_CAP);
		uint64_t len;

		snprintf(where, sizeof(where), "%s frame %zu", file, i);
		assert_int_equal(rv_json_uint(rv_json_get(f, "payload_len"), UINT32_MAX, &len), 0);
		if (hex)
			assert_int_equal(from_hex(hex, body, FRAME_CAP), len);
		check_frame(text_of(f, "preamble_hex"), text_of(f, "header_hex"), len,
			    hex ? body : NULL);
		free(body);
	}
}

static void recorded_frames_are_read_and_written(void **state)
{
	(void)state;
	each_file("tcp-", check_frames_of);
	each_file("lease-renew-", check_frames_of);
	each_file("mixed-", check_frames_of);
	each_file("offer-", check_frames_of);
	each_file("shutdown-", check_frames_of);
	assert_true(seen.frames > 200);
	assert_true(seen.requests > 90);
	assert_true(seen.responses > 80);
	assert_true(seen.acks >= 2);
	assert_true(seen.refusals >= 2);
	assert_true(seen.staged >= 4);
	assert_true(seen.hellos >= 8);
	assert_true(seen.handler_lists >= 8);
	assert_true(seen.metadata >= 4);
	assert_true(seen.handles >= 4);
	assert_true(seen.readies >= 8);
	assert_true(seen.rdmas >= 2);
	assert_true(seen.pulls >= 8);
	assert_true(seen.leases >= 8);
	assert_true(seen.addresses >= 8);
}

/* What the hand-made client sent is often broken on purpose; the replies never are. */
static void check_probes_of(const char *file, const struct rv_json *doc)
{
	const struct rv_json *probes = rv_json_get(doc, "probes");

	calls_nr = 0;
	for (size_t i = 0; i < rv_json_nr(probes); i++) {
		const struct rv_json *replies = rv_json_get(rv_json_at(probes, i), "replies");

		for (size_t j = 0; j < rv_json_nr(replies); j++) {
			const struct rv_json *r = rv_json_at(replies, j);
			const char *text = text_of(r, "payload_text");
			uint64_t len;

			snprintf(where, sizeof(where), "%s probe %zu reply %zu", file, i, j);
			assert_int_equal(
				rv_json_uint(rv_json_get(r, "payload_len"), UINT32_MAX, &len), 0);
			check_frame(text_of(r, "preamble_hex"), text_of(r, "header_hex"), len,
				    NULL);
			if (text && strncmp(text, "{\"handlers\":", 12) == 0)
				check_handlers(text, strlen(text));
			else if (text && strncmp(text, "{\"Re", 4) == 0)
				check_grant(text, strlen(text));
			else if (text && strncmp(text, "{\"tot", 5) == 0)
				check_metadata_answer(text, strlen(text));
		}
	}
}

static void answers_to_odd_requests_are_read(void **state)
{
	size_t before = seen.frames;

	(void)state;
	each_file("raw-probes-", check_probes_of);
	assert_true(seen.frames - before > 40);
}

static void check_case(const struct rv_json *c)
{
	const char *answer = text_of(c, "answer_payload_text");
	const char *entry = text_of(rv_json_get(c, "owner_ucx_entry"), "hex");
	uint8_t value[FRAME_CAP], in[FRAME_CAP];
	struct rv_writer w = rv_writer(in, sizeof(in));
	size_t len = from_hex(entry, value, sizeof(value));

	check_grant(answer, strlen(answer));
	rv_put_bytes(&w, "\x81\xa3ucx\xc5", 6);
	rv_put_be(&w, len, 2);
	rv_put_bytes(&w, value, len);
	must(rv_address_decode(in, w.len, 2, &addr) == 0 && addr.has_ucx, "ucx entry is refused");
	same_blob(&addr.ucx, entry);
}

static void descriptors_of_each_transport_are_read_and_written(void **state)
{
	struct rv_json *doc = load("rdma-descriptors-021.json");
	const struct rv_json *cases = rv_json_get(doc, "cases");

	(void)state;
	assert_true(rv_json_nr(cases) >= 5);
	for (size_t i = 0; i < rv_json_nr(cases); i++)
		check_case(rv_json_at(cases, i));
	rv_json_free(doc);
	assert_true(seen.descriptors >= 5 && seen.keys >= 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peer_infos_are_read_and_written),
		cmocka_unit_test(recorded_frames_are_read_and_written),
		cmocka_unit_test(answers_to_odd_requests_are_read),
		cmocka_unit_test(descriptors_of_each_transport_are_read_and_written),
	};

	return cmocka_run_group_tests_name("vectors", tests, NULL, NULL);
}
