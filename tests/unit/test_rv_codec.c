#include "control/json/rv_codec.h"

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define H "{\"hi\":18295945282392615379,\"lo\":1}"

static uint8_t out_buf[RV_BODY_RDMA_ROOM];
static uint8_t desc_buf[RV_BODY_DESC_MAX];

/*
 * Every body as one decode-and-encode function: what was written, as text, or NULL when refused.
 * Peer infos are left to their own tests.
 */
static const char *written(const struct rv_writer *w)
{
	assert_false(w->bad);
	out_buf[w->len] = '\0';
	return (const char *)out_buf;
}

static const char *again_handle(const void *text, size_t len)
{
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
	struct rv_handle h;

	if (rv_body_handle_decode(text, len, &h, NULL))
		return NULL;
	rv_body_handle_encode(&w, h);
	return written(&w);
}

static const char *again_lease(const void *text, size_t len)
{
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
	struct rv_body_lease b;

	if (rv_body_lease_decode(text, len, &b, NULL))
		return NULL;
	rv_body_lease_encode(&w, &b);
	return written(&w);
}

static const char *again_pull(const void *text, size_t len)
{
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
	struct rv_body_pull b;

	if (rv_body_pull_decode(text, len, &b, NULL))
		return NULL;
	rv_body_pull_encode(&w, &b);
	return written(&w);
}

static const char *again_metadata(const void *text, size_t len)
{
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
	struct rv_body_metadata b;

	if (rv_body_metadata_decode(text, len, &b, NULL))
		return NULL;
	rv_body_metadata_encode(&w, &b);
	return written(&w);
}

static const char *again_acquire(const void *text, size_t len)
{
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
	struct rv_body_acquire b;

	if (rv_body_acquire_decode(text, len, &b, NULL))
		return NULL;
	rv_body_acquire_encode(&w, &b);
	return written(&w);
}

static const char *again_grant(const void *text, size_t len)
{
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
	struct rv_body_grant b;

	if (rv_body_grant_decode(text, len, desc_buf, sizeof(desc_buf), &b, NULL))
		return NULL;
	rv_body_grant_encode(&w, &b);
	return written(&w);
}

#define READY \
	"{\"Ready\":{\"lease_id\":1,\"transfer_id\":2,\"total_len\":1200000,\"chunk_size\":524288,\"chunk_count\":3}}"
#define RDMA "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[1,1,0,255],\"lease_timeout_ms\":30000}}"

static const struct {
	const char *(*again)(const void *text, size_t len);
	const char *in;
	const char *want; /* NULL: refused; "": the same as @in */
} bodies[] = {
	{again_handle, "{\"handle\":" H "}", ""},
	{again_handle, "{\"handle\":{\"hi\":18446744073709551615,\"lo\":18446744073709551615}}",
	 ""},
	{again_handle, "{\"handle\":{\"lo\":1,\"hi\":2}}", "{\"handle\":{\"hi\":2,\"lo\":1}}"},
	{again_handle, " { \"handle\" : { \"hi\" : 2 , \"lo\" : 1 } } ",
	 "{\"handle\":{\"hi\":2,\"lo\":1}}"},
	{again_handle, "{\"handle\":[2,1]}", "{\"handle\":{\"hi\":2,\"lo\":1}}"},
	{again_handle, "[[2,1]]", "{\"handle\":{\"hi\":2,\"lo\":1}}"},
	{again_handle, "{\"x\":[{}],\"handle\":{\"hi\":2,\"lo\":1,\"y\":null}}",
	 "{\"handle\":{\"hi\":2,\"lo\":1}}"},
	{again_handle, "{\"h\\u0061ndle\":{\"hi\":2,\"lo\":1}}",
	 "{\"handle\":{\"hi\":2,\"lo\":1}}"},
	{again_handle, "", NULL},
	{again_handle, "null", NULL},
	{again_handle, "{}", NULL},
	{again_handle, "[]", NULL},
	{again_handle, "[[2,1],3]", NULL},
	{again_handle, "[[2,1,3]]", NULL},
	{again_handle, "{\"handle\":null}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":1,\"lo\":1}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":-1}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":1.0}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":\"1\"}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":01}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":18446744073709551616,\"lo\":1}}", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":1}}x", NULL},
	{again_handle, "{\"handle\":{\"hi\":2,\"lo\":1}}}", NULL},

	{again_lease, "{\"handle\":" H ",\"lease_id\":11}", ""},
	{again_lease, "{\"lease_id\":11,\"handle\":" H "}", "{\"handle\":" H ",\"lease_id\":11}"},
	{again_lease, "[[2,1],11]", "{\"handle\":{\"hi\":2,\"lo\":1},\"lease_id\":11}"},
	{again_lease, "{\"handle\":" H "}", NULL},
	{again_lease, "{\"handle\":[2],\"lease_id\":11}", NULL},
	{again_lease, "{\"lease_id\":11}", NULL},
	{again_lease, "null", NULL},
	{again_lease, "{\"handle\":" H ",\"lease_id\":null}", NULL},
	{again_lease, "{\"handle\":" H ",\"lease_id\":1,\"lease_id\":1}", NULL},

	{again_pull, "{\"transfer_id\":1,\"chunk_index\":0}", ""},
	{again_pull, "{\"transfer_id\":18446744073709551615,\"chunk_index\":4294967295}", ""},
	{again_pull, "[5,6]", "{\"transfer_id\":5,\"chunk_index\":6}"},
	{again_pull, "{\"transfer_id\":1,\"chunk_index\":4294967296}", NULL},
	{again_pull, "{\"transfer_id\":1}", NULL},
	{again_pull, "[5]", NULL},
	{again_pull, "{\"chunk_index\":1}", NULL},
	{again_pull, "{\"transfer_id\":1,\"chunk_index\":-1}", NULL},
	{again_pull, "null", NULL},

	{again_metadata, "{\"total_len\":1200000,\"refcount\":1,\"pinned\":false}", ""},
	{again_metadata, "{\"total_len\":0,\"refcount\":0,\"pinned\":true}", ""},
	{again_metadata, "[1,2,true]", "{\"total_len\":1,\"refcount\":2,\"pinned\":true}"},
	{again_metadata, "{\"total_len\":0,\"refcount\":0,\"pinned\":1}", NULL},
	{again_metadata, "{\"total_len\":0,\"refcount\":0}", NULL},
	{again_metadata, "{\"refcount\":0,\"pinned\":true}", NULL},
	{again_metadata, "{\"total_len\":0,\"pinned\":true}", NULL},
	{again_metadata, "null", NULL},
	{again_metadata, "{\"total_len\":0,\"refcount\":0,\"pinned\":trux}", NULL},

	{again_acquire, "{\"handle\":" H ",\"rdma\":null}", ""},
	{again_acquire, "{\"handle\":" H "}", "{\"handle\":" H ",\"rdma\":null}"},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"ucx\"]}}", ""},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"]}}", ""},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[]}}", ""},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\",\"ucx\"]}}", ""},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"ucx\",\"verbs\"]}}",
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\",\"ucx\"]}}"},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"nvlink\",\"ucx\"],\"x\":1}}",
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"ucx\"]}}"},
	{again_acquire, "[[2,1],null]", "{\"handle\":{\"hi\":2,\"lo\":1},\"rdma\":null}"},
	{again_acquire, "[[2,1],[[\"ucx\"]]]",
	 "{\"handle\":{\"hi\":2,\"lo\":1},\"rdma\":{\"backends\":[\"ucx\"]}}"},
	{again_acquire,
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\",\"ucx\"],\"verbs\":{\"qp\":17}}}",
	 ""},
	{again_acquire,
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":{\"qp\":16777215}}}", ""},
	{again_acquire,
	 "{\"handle\":" H ",\"rdma\":{\"verbs\":{\"x\":0,\"qp\":5},\"backends\":[\"verbs\"]}}",
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":{\"qp\":5}}}"},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":null}}",
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"]}}"},
	/* Whoever does not offer verbs may call something else of its so. */
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"ucx\"],\"verbs\":7}}",
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"ucx\"]}}"},
	{again_acquire,
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":{\"qp\":16777216}}}",
	 NULL},
	{again_acquire,
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":{\"qp\":0}}}", NULL},
	{again_acquire,
	 "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":{\"qp\":-1}}}", NULL},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":{}}}",
	 NULL},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[\"verbs\"],\"verbs\":[5]}}",
	 NULL},
	{again_acquire, "{\"handle\":" H ",\"rdma\":true}", NULL},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{}}", NULL},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":\"ucx\"}}", NULL},
	{again_acquire, "{\"handle\":" H ",\"rdma\":{\"backends\":[1]}}", NULL},
	{again_acquire, "{\"rdma\":null}", NULL},
	{again_acquire, "null", NULL},
	{again_acquire, "[[2,1],[[\"verbs\"]]]",
	 "{\"handle\":{\"hi\":2,\"lo\":1},\"rdma\":{\"backends\":[\"verbs\"]}}"},
	{again_acquire, "{\"handle\":" H ",\"rdma\":null,\"rdma\":null}", NULL},

	{again_grant, READY, ""},
	{again_grant,
	 "{\"Ready\":{\"lease_id\":1,\"transfer_id\":1,\"total_len\":0,\"chunk_size\":524288,\"chunk_count\":0}}",
	 ""},
	{again_grant, "{\"Ready\":[1,2,1200000,524288,3]}", READY},
	{again_grant,
	 "{ \"Ready\" : {\"x\":1,\"lease_id\":1,\"transfer_id\":2,\"total_len\":1200000,\"chunk_size\":524288,\"chunk_count\":3}}",
	 READY},
	{again_grant, RDMA, ""},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[],\"lease_timeout_ms\":0}}", ""},
	{again_grant,
	 "{\"Rdma\":{\"descriptor\":[1,1,0,255],\"lease_id\":1,\"lease_timeout_ms\":30000}}", RDMA},
	{again_grant, "{\"Rdma\":[1,[1,1,0,255],30000]}", RDMA},
	{again_grant, "{\"Rdma\":{\"lease_id\":7,\"descriptor\":[9]}}",
	 "{\"Rdma\":{\"lease_id\":7,\"descriptor\":[9],\"lease_timeout_ms\":0}}"},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":\"abc\",\"lease_timeout_ms\":1}}",
	 NULL},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[256],\"lease_timeout_ms\":1}}",
	 NULL},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[-1],\"lease_timeout_ms\":1}}",
	 NULL},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[1],\"lease_timeout_ms\":null}}",
	 NULL},
	{again_grant, "{\"Rdma\":{\"descriptor\":[1],\"lease_timeout_ms\":1}}", NULL},
	{again_grant,
	 "{\"Ready\":{\"lease_id\":1,\"transfer_id\":2,\"total_len\":1,\"chunk_size\":4294967296,\"chunk_count\":3}}",
	 NULL},
	{again_grant,
	 "{\"Ready\":{\"lease_id\":1,\"transfer_id\":2,\"total_len\":1,\"chunk_size\":1},\"x\":1}",
	 NULL},
	{again_grant, "{\"Ready\":[1,2,1200000,524288,3],\"x\":1}", NULL},
	{again_grant, "{\"Ready\":[1,2,1200000,524288,3],\"Rdma\":[1,[1],1]}", NULL},
	{again_grant,
	 "{\"Ready\":{\"transfer_id\":2,\"total_len\":1,\"chunk_size\":1,\"chunk_count\":3}}",
	 NULL},
	{again_grant,
	 "{\"Ready\":{\"lease_id\":1,\"total_len\":1,\"chunk_size\":1,\"chunk_count\":3}}", NULL},
	{again_grant,
	 "{\"Ready\":{\"lease_id\":1,\"transfer_id\":2,\"chunk_size\":1,\"chunk_count\":3}}", NULL},
	{again_grant,
	 "{\"Ready\":{\"lease_id\":1,\"transfer_id\":2,\"total_len\":1,\"chunk_size\":1}}", NULL},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[1],\"xxh3\":-1}}", NULL},
	{again_grant, "{\"Rdma\":{\"lease_id\":1,\"descriptor\":[1],\"xxh3\":\"1\"}}", NULL},
	{again_grant, "{\"Rdma\":{\"lease_id\":1}}", NULL},
	{again_grant, "{\"Rdma\":5}", NULL},
	{again_grant, "{\"Ready\":null}", NULL},
	{again_grant, "{\"Other\":{}}", NULL},
	{again_grant, "\"Ready\"", NULL},
	{again_grant, "[1]", NULL},
	{again_grant, "{}", NULL},
};

static void bodies_are_written_again_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(bodies); i++) {
		size_t len = strlen(bodies[i].in);
		char *block = malloc(len ? len : 1);
		const char *want =
			bodies[i].want && !*bodies[i].want ? bodies[i].in : bodies[i].want;
		const char *got;

		memcpy(block, bodies[i].in, len);
		got = bodies[i].again(block, len);
		free(block);
		if (!got != !want || (got && strcmp(got, want) != 0))
			fail_msg("%s -> %s", bodies[i].in, got ? got : "refused");
	}
}

static const char *(*cut_again)(const void *text, size_t len);

static bool cut_takes(const uint8_t *buf, size_t len)
{
	return cut_again(buf, len) != NULL;
}

static void bodies_cut_anywhere_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(bodies); i++) {
		size_t len = strlen(bodies[i].in);

		/* Blanks at the end can be missed. */
		if (!bodies[i].want || bodies[i].in[len - 1] == ' ')
			continue;
		cut_again = bodies[i].again;
		exact_cut_everywhere(bodies[i].in, len, cut_takes);
	}
}

static void a_refused_body_says_why_and_leaves_the_output_alone(void **state)
{
	struct rv_body_pull b = {7, 7};
	const char *why = NULL;

	(void)state;
	assert_int_equal(rv_body_pull_decode("{\"transfer_id\":1}", 17, &b, &why), -EPROTO);
	assert_string_equal(why, "pull needs unsigned transfer_id and chunk_index");
	assert_true(b.transfer_id == 7 && b.chunk_index == 7);
}

static void an_offer_of_nothing_is_still_an_offer(void **state)
{
	static const struct {
		const char *rdma;
		bool has_offer;
		uint32_t offer;
	} rows[] = {
		{"null", false, 0},
		{"{\"backends\":[]}", true, 0},
		{"{\"backends\":[\"other\"]}", true, 0},
		{"{\"backends\":[\"ucx\",\"ucx\"]}", true, RV_OFFER_UCX},
		{"{\"backends\":[\"UCX\"]}", true, 0},
		{"{\"backends\":[\"verbs\",\"ucx\"]}", true, RV_OFFER_UCX | RV_OFFER_VERBS},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		struct rv_body_acquire b;
		char text[256];
		int len = snprintf(text, sizeof(text), "{\"handle\":" H ",\"rdma\":%s}",
				   rows[i].rdma);

		assert_int_equal(rv_body_acquire_decode(text, (size_t)len, &b, NULL), 0);
		assert_int_equal(b.has_offer, rows[i].has_offer);
		assert_int_equal(b.offer, rows[i].offer);
		assert_true(b.handle.worker == 18295945282392615379ULL && b.handle.local == 1);
	}
}

static void a_descriptor_that_is_too_long_is_counted_but_the_lease_is_known(void **state)
{
	struct rv_body_grant b;
	uint8_t four[4];

	(void)state;
	assert_int_equal(rv_body_grant_decode(RDMA, strlen(RDMA), four, 4, &b, NULL), 0);
	assert_ptr_equal(b.rdma.descriptor, four);
	assert_memory_equal(four, "\x01\x01\x00\xff", 4);
	assert_int_equal(rv_body_grant_decode(RDMA, strlen(RDMA), four, 3, &b, NULL), 0);
	assert_true(b.is_rdma);
	assert_null(b.rdma.descriptor);
	assert_int_equal(b.rdma.descriptor_len, 4);
	assert_int_equal(b.rdma.lease_id, 1);
	assert_int_equal(b.rdma.lease_timeout_ms, 30000);
}

static void the_longest_descriptor_fits_the_stated_room(void **state)
{
	static uint8_t desc[RV_BODY_DESC_MAX];
	struct rv_body_grant b = {
		.is_rdma = true,
		.rdma = {UINT64_MAX, desc, sizeof(desc), UINT64_MAX},
	};
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf));

	(void)state;
	memset(desc, 0xff, sizeof(desc));
	rv_body_grant_encode(&w, &b);
	assert_false(w.bad);
	assert_int_equal(rv_body_grant_decode(out_buf, w.len, desc_buf, sizeof(desc_buf), &b, NULL),
			 0);
	assert_int_equal(b.rdma.descriptor_len, sizeof(desc));
	assert_memory_equal(b.rdma.descriptor, desc, sizeof(desc));
}

static void a_body_over_the_limit_is_not_parsed(void **state)
{
	static char text[RV_BODY_MAX + 64];
	struct rv_handle h;
	const char *why;

	(void)state;
	memset(text, ' ', sizeof(text));
	assert_int_equal(rv_body_handle_decode(text, sizeof(text), &h, &why), -EPROTO);
	assert_string_equal(why, "body is too long");
}

#define INFO \
	"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\",\"worker_address\":[129,163,0,255]}"

static const struct {
	const char *in;
	bool taken;
} infos[] = {
	{INFO, true},
	{"{\"worker_address\":[129,163,0,255],\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\"}",
	 true},
	{"{\"x\":1,\"instance_id\":\"00112233445546778899AABBCCDDEEFF\",\"worker_address\":[129, 163, 0, 255]}",
	 true},
	{"[\"00112233-4455-4677-8899-aabbccddeeff\",[129,163,0,255]]", true},
	{"{\"instance_id\":\"00112233-4455-4677-8899-AABBCCDDEEFF\",\"worker_address\":[129,163,0,255]}",
	 true},
	{"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\",\"worker_address\":[]}", false},
	{"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\",\"worker_address\":[256]}",
	 false},
	{"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\",\"worker_address\":[-1]}",
	 false},
	{"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\",\"worker_address\":null}",
	 false},
	{"{\"instance_id\":\"00112233-4455-4677-8899-aabbccddeeff\"}", false},
	{"{\"instance_id\":\"nonsense\",\"worker_address\":[1]}", false},
	{"{\"instance_id\":7,\"worker_address\":[1]}", false},
	{"{\"worker_address\":[1]}", false},
	{"[\"00112233-4455-4677-8899-aabbccddeeff\",[1],2]", false},
};

static void peer_infos_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(infos); i++) {
		struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
		struct rv_peer_info p;
		int rc = rv_peer_info_decode(infos[i].in, strlen(infos[i].in), &p, NULL);

		if ((rc == 0) != infos[i].taken)
			fail_msg("%s", infos[i].in);
		if (rc)
			continue;
		rv_peer_info_encode(&w, &p);
		assert_string_equal(written(&w), INFO);
		rv_peer_info_fini(&p);
	}
}

static bool takes_hello(const uint8_t *buf, size_t len)
{
	struct rv_peer_info p;

	if (rv_body_hello_decode(buf, len, &p, NULL))
		return false;
	rv_peer_info_fini(&p);
	return true;
}

static void a_hello_survives_a_round_trip_and_no_cut(void **state)
{
	static const char *const forms[] = {
		"{\"peer_info\":" INFO "}",
		"{\"later\":{\"x\":[]},\"peer_info\":" INFO "}",
		"[" INFO "]",
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(forms); i++) {
		struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);
		struct rv_peer_info p;

		exact_cut_everywhere(forms[i], strlen(forms[i]), takes_hello);
		assert_int_equal(rv_body_hello_decode(forms[i], strlen(forms[i]), &p, NULL), 0);
		rv_body_hello_encode(&w, &p);
		assert_string_equal(written(&w), forms[0]);
		rv_peer_info_fini(&p);
	}
	assert_false(takes_hello((const uint8_t *)"{}", 2));
}

static void an_address_of_65536_bytes_is_the_longest(void **state)
{
	static uint8_t bytes[RV_ADDRESS_MAX + 1];
	static uint8_t text[4 * RV_ADDRESS_MAX + 256];

	(void)state;
	memset(bytes, 0xff, sizeof(bytes));
	for (size_t more = 0; more < 2; more++) {
		struct rv_writer w = rv_writer(text, sizeof(text));
		struct rv_peer_info p = {.address = bytes, .address_len = RV_ADDRESS_MAX + more};

		rv_body_hello_encode(&w, &p);
		assert_false(w.bad);
		assert_int_equal(exact_accepts(text, w.len, takes_hello), more == 0);
	}
}

static char names_seen[256];

static void see_name(void *user, const char *name, size_t len)
{
	(void)user;
	strncat(names_seen, name, len);
	strcat(names_seen, " ");
}

static const struct {
	const char *in;
	const char *names; /* NULL: refused */
	bool has_peer;
} answers[] = {
	{"{\"handlers\":[]}", "", false},
	{"{\"handlers\":[\"_hello\",\"echo\"]}", "_hello echo ", false},
	{"{\"handlers\":[\"a\\\"b\"],\"x\":1}", "a\"b ", false},
	{"{\"peer_info\":" INFO ",\"handlers\":[\"a\"]}", "a ", true},
	{"{\"handlers\":[\"a\"],\"peer_info\":null}", "a ", false},
	{"{\"handlers\":[\"a\"],\"peer_info\":{\"instance_id\":\"x\"}}", "a ", false},
	{"[[\"a\"]]", "a ", false},
	{"{\"handlers\":[\"a\",1]}", NULL, false},
	{"{\"handlers\":\"a\"}", NULL, false},
	{"{}", NULL, false},
	{"null", NULL, false},
};

static void handler_lists_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(answers); i++) {
		struct rv_peer_info p = {0};
		bool has_peer = false;
		int rc;

		names_seen[0] = '\0';
		rc = rv_body_handlers_decode(answers[i].in, strlen(answers[i].in), see_name, NULL,
					     &p, &has_peer, NULL);
		if ((rc == 0) != (answers[i].names != NULL))
			fail_msg("%s", answers[i].in);
		assert_string_equal(names_seen, answers[i].names ? answers[i].names : "");
		assert_int_equal(has_peer, answers[i].has_peer);
		rv_peer_info_fini(&p);
		p = (struct rv_peer_info){0};
		/* The same to who does not want the names. */
		assert_int_equal(rv_body_handlers_decode(answers[i].in, strlen(answers[i].in), NULL,
							 NULL, &p, &has_peer, NULL),
				 rc);
		rv_peer_info_fini(&p);
	}
}

static void a_handler_list_is_written_as_stock_nodes_do(void **state)
{
	static const char *const names[] = {"_hello", "_list_handlers", "a\"\x01\xc3\xa9"};
	uint8_t address[] = {129, 163, 0, 255};
	struct rv_peer_info p = {.address = address, .address_len = sizeof(address)};
	struct rv_writer w = rv_writer(out_buf, sizeof(out_buf) - 1);

	(void)state;
	assert_int_equal(rv_uuid_parse("00112233445546778899aabbccddeeff", 32, p.instance), 0);
	rv_body_handlers_encode(&w, names, 3, NULL);
	assert_string_equal(
		written(&w),
		"{\"handlers\":[\"_hello\",\"_list_handlers\",\"a\\\"\\u0001\xc3\xa9\"]}");
	w = rv_writer(out_buf, sizeof(out_buf) - 1);
	rv_body_handlers_encode(&w, names, 1, &p);
	assert_string_equal(written(&w), "{\"handlers\":[\"_hello\"],\"peer_info\":" INFO "}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bodies_are_written_again_or_refused),
		cmocka_unit_test(bodies_cut_anywhere_are_refused),
		cmocka_unit_test(a_refused_body_says_why_and_leaves_the_output_alone),
		cmocka_unit_test(an_offer_of_nothing_is_still_an_offer),
		cmocka_unit_test(a_descriptor_that_is_too_long_is_counted_but_the_lease_is_known),
		cmocka_unit_test(the_longest_descriptor_fits_the_stated_room),
		cmocka_unit_test(a_body_over_the_limit_is_not_parsed),
		cmocka_unit_test(peer_infos_are_taken_or_refused),
		cmocka_unit_test(a_hello_survives_a_round_trip_and_no_cut),
		cmocka_unit_test(an_address_of_65536_bytes_is_the_longest),
		cmocka_unit_test(handler_lists_are_taken_or_refused),
		cmocka_unit_test(a_handler_list_is_written_as_stock_nodes_do),
	};

	return cmocka_run_group_tests_name("rv_codec", tests, NULL, NULL);
}
