#include "control/messenger/address.h"

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "dataplane/rendezvous/peers.h"
#include "tests/unit/exact.h"

static struct rv_address addr; /* too large for the stack */

static int decode_hex(const char *hex)
{
	uint8_t in[512];
	size_t len = from_hex(hex, in, sizeof(in));

	return rv_address_decode(in, len, 2, &addr);
}

static bool takes(const uint8_t *buf, size_t len)
{
	return rv_address_decode(buf, len, 2, &addr) == 0 && rv_address_usable(&addr);
}

static const char array_form[] =
	"81a3746370dc0012cc91cc95cca0cca93132372e302e302e31cccd15ccb320ccc0";
static const char bin_form[] = "81a3746370c4129195a0a93132372e302e302e31cd15b320c0";

static void both_forms_of_a_byte_string_say_the_same(void **state)
{
	static const char *const forms[] = {array_form, bin_form};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(forms); i++) {
		assert_int_equal(decode_hex(forms[i]), 0);
		assert_int_equal(addr.tcp_nr, 1);
		assert_false(addr.tcp_refused);
		assert_string_equal(addr.tcp[0].name, "");
		assert_string_equal(addr.tcp[0].ip, "127.0.0.1");
		assert_int_equal(addr.tcp[0].port, 5555);
		assert_int_equal(addr.tcp[0].prefix_len, 32);
		assert_int_equal(addr.tcp[0].numa, -1);
		assert_false(addr.has_ucx || addr.ucx_refused || addr.has_rvd);
		assert_true(rv_address_usable(&addr));
	}
}

static void encoding_gives_stock_bytes(void **state)
{
	uint8_t want[64], out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	size_t len = from_hex(array_form, want, sizeof(want));

	(void)state;
	assert_int_equal(decode_hex(bin_form), 0);
	assert_int_equal(rv_address_encode(&w, &addr), 0);
	assert_int_equal(w.len, len);
	assert_memory_equal(out, want, len);
}

static void an_address_cut_anywhere_is_refused(void **state)
{
	uint8_t in[64];

	(void)state;
	exact_cut_everywhere(in, from_hex(array_form, in, sizeof(in)), takes);
	exact_cut_everywhere(in, from_hex(bin_form, in, sizeof(in)), takes);
}

static const struct {
	const char *what;
	const char *hex;
	int rc;
} wholes[] = {
	{"empty map", "80", 0},
	{"nothing", "", -EPROTO},
	{"array", "90", -EPROTO},
	{"bytes behind the map", "80ffff", 0},
	{"unknown key", "81a3756473c401ff", 0},
	{"unknown key, empty value", "81a375647390", 0},
	{"str value", "81a3756473a161", -EPROTO},
	{"int value", "81a375647305", -EPROTO},
	{"nil value", "81a3756473c0", -EPROTO},
	{"map value", "81a375647380", -EPROTO},
	{"element over 255", "81a375647391cd0100", -EPROTO},
	{"negative element", "81a375647391ff", -EPROTO},
	{"str element", "81a375647391a161", -EPROTO},
	{"element in a wide form", "81a375647391cf00000000000000ff", 0},
	{"element in a signed form", "81a375647391d07f", 0},
	{"int key", "8101c401ff", -EPROTO},
	{"int key, and another pair", "8201c401ffa3756473c401ff", -EPROTO},
	{"key that is no UTF-8", "81a1ffc401ff", -EPROTO},
	{"2^32 - 1 elements", "81a3756473ddffffffff", -EPROTO},
	{"bin of 2^32 - 1 bytes", "81a3756473c6ffffffff", -EPROTO},
	{"2^32 - 1 pairs", "dfffffffff", -EPROTO},
};

static void odd_maps_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(wholes); i++)
		if (decode_hex(wholes[i].hex) != wholes[i].rc)
			fail_msg("%s", wholes[i].what);
}

static void a_refused_address_leaves_the_output_alone(void **state)
{
	(void)state;
	assert_int_equal(decode_hex(bin_form), 0);
	assert_int_equal(decode_hex("81a3746370c0"), -EPROTO);
	assert_int_equal(addr.tcp_nr, 1);
}

/* A map of one key with this byte string as its value. */
static int decode_value(const char *key, const uint8_t *value, size_t len, unsigned version)
{
	static uint8_t in[8192];
	struct rv_writer w = rv_writer(in, sizeof(in));

	rv_put_u8(&w, 0x81);
	rv_put_u8(&w, (uint8_t)(0xa0 + strlen(key)));
	rv_put_text(&w, key);
	rv_put_u8(&w, 0xc5);
	rv_put_be(&w, len, 2);
	rv_put_bytes(&w, value, len);
	assert_false(w.bad);
	return rv_address_decode(in, w.len, version, &addr);
}

static const struct {
	const char *what;
	const char *hex;
	size_t nr;
} records[] = {
	{"two", "92 95a0a1310120c0 95a0a1320220c0", 2},
	{"interface, v4, numa", "9195a465746830a831302e302e302e35cd9c401801", 1},
	{"negative numa", "9195a0a93132372e302e302e31cd15b320ff", 1},
	{"map form",
	 "9185a46e616d65a0a26970a93132372e302e302e31a4706f7274cd15b3aa7072656669785f6c656e20"
	 "a96e756d615f6e6f6465c0",
	 1},
	{"map form without numa",
	 "9184a46e616d65a0a26970a93132372e302e302e31a4706f7274cd15b3"
	 "aa7072656669785f6c656e20",
	 1},
	{"map form without port",
	 "9183a46e616d65a0a26970a93132372e302e302e31aa7072656669785f6c656e20", 0},
	{"map form with a name twice",
	 "9185a46e616d65a0a46e616d65a0a26970a93132372e302e302e31a4706f7274"
	 "cd15b3aa7072656669785f6c656e20",
	 0},
	{"map form with an unknown key",
	 "9185a178929190a0a46e616d65a0a26970a93132372e302e302e31a4706f7274cd15b3"
	 "aa7072656669785f6c656e20",
	 1},
	{"array of 4", "9194a0a93132372e302e302e31cd15b320", 0},
	{"array of 6", "9196a0a93132372e302e302e31cd15b320c0c0", 0},
	{"port 65536", "9195a0a93132372e302e302e31ce0001000020c0", 0},
	{"port 0", "9195a0a93132372e302e302e310020c0", 0},
	{"prefix 256", "9195a0a93132372e302e302e31cd15b3cd0100c0", 0},
	{"empty ip", "9195a0a0cd15b320c0", 0},
	{"ip with a delete", "9195a0a3317f31cd15b320c0", 0},
	{"name as a number", "919500a93132372e302e302e31cd15b320c0", 0},
	{"numa as a str", "9195a0a93132372e302e302e31cd15b320a130", 0},
	{"numa over 31 bits", "9195a0a93132372e302e302e31cd15b320ceffffffff", 1},
	{"map form with an int key",
	 "918500a0a26970a93132372e302e302e31a4706f7274cd15b3aa7072656669785f6c656e20"
	 "a96e756d615f6e6f6465c0",
	 0},
	{"ip with a blank", "9195a0a33120 31cd15b320c0", 0},
	{"ip as a number", "9195a001cd15b320c0", 0},
	{"empty list", "90", 0},
	{"bytes behind the list", "9195a0a93132372e302e302e31cd15b320c0ff", 1},
};

static void odd_tcp_records_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(records); i++) {
		uint8_t value[256];
		size_t len = from_hex(records[i].hex, value, sizeof(value));

		assert_int_equal(decode_value("tcp", value, len, 2), 0);
		if (addr.tcp_nr != records[i].nr || addr.tcp_refused != (records[i].nr == 0))
			fail_msg("%s: %zu", records[i].what, addr.tcp_nr);
	}
}

static const struct {
	const char *text;
	const char *ip; /* NULL: refused */
	uint16_t port;
	uint8_t prefix;
} legacy[] = {
	{"tcp://10.0.0.1:7471", "10.0.0.1", 7471, 32},
	{"grpc://10.0.0.1:1", "10.0.0.1", 1, 32},
	{"10.0.0.1:65535", "10.0.0.1", 65535, 32},
	{"tcp://node-7.example:80", "node-7.example", 80, 32},
	{"[::1]:7471", "::1", 7471, 128},
	{"tcp://[fe80::1]:7471", "fe80::1", 7471, 128},
	{"10.0.0.1", NULL, 0, 0},
	{"10.0.0.1:", NULL, 0, 0},
	{"10.0.0.1:0", NULL, 0, 0},
	{"10.0.0.1:65536", NULL, 0, 0},
	{"10.0.0.1:7471/", NULL, 0, 0},
	{"10.0.0.1:-1", NULL, 0, 0},
	{"10.0.0.1:7a", NULL, 0, 0},
	{"[::1:7471", NULL, 0, 0},
	{":7471", NULL, 0, 0},
	{"::1:7471", NULL, 0, 0},
	{"[::1]7471", NULL, 0, 0},
	{"udp://10.0.0.1:7471", NULL, 0, 0},
	{"a b:7471", NULL, 0, 0},
	{"", NULL, 0, 0},
	{"tcp://", NULL, 0, 0},
};

static void the_legacy_text_form_is_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(legacy); i++) {
		assert_int_equal(decode_value("tcp", (const uint8_t *)legacy[i].text,
					      strlen(legacy[i].text), 2),
				 0);
		if (!legacy[i].ip) {
			if (addr.tcp_nr != 0 || !addr.tcp_refused)
				fail_msg("\"%s\" was taken", legacy[i].text);
			continue;
		}
		assert_int_equal(addr.tcp_nr, 1);
		assert_string_equal(addr.tcp[0].ip, legacy[i].ip);
		assert_int_equal(addr.tcp[0].port, legacy[i].port);
		assert_int_equal(addr.tcp[0].prefix_len, legacy[i].prefix);
	}
}

static void records_past_the_sixteenth_are_left_out(void **state)
{
	uint8_t value[1024], record[32];
	struct rv_writer w = rv_writer(value, sizeof(value));
	size_t len = from_hex("95a0a93132372e302e302e31cd15b320c0", record, sizeof(record));

	(void)state;
	rv_put_u8(&w, 0xdc);
	rv_put_be(&w, 20, 2);
	for (int i = 0; i < 20; i++)
		rv_put_bytes(&w, record, len);
	assert_int_equal(decode_value("tcp", value, w.len, 2), 0);
	assert_int_equal(addr.tcp_nr, RV_ADDRESS_TCP_MAX);
}

static void a_long_interface_name_is_cut_and_made_printable(void **state)
{
	uint8_t value[64];
	size_t len = from_hex("9195b5 65 0a 20 7f 6161616161616161616161616161616161 a131 01 20 c0",
			      value, sizeof(value));

	(void)state;
	assert_int_equal(decode_value("tcp", value, len, 2), 0);
	assert_int_equal(addr.tcp_nr, 1);
	assert_string_equal(addr.tcp[0].name, "e???aaaaaaaaaaa");
}

static const struct {
	const char *what;
	const char *hex;
	unsigned version;
	bool taken;
} blobs[] = {
	{"as written", "9502cd5645ce00100000cf1122334455667788c403aabb03", 2, true},
	{"version 1 where 1 is spoken", "9501cd5645ce00100000cf1122334455667788c403aabb03", 1,
	 true},
	{"version 2 where 1 is spoken", "9502cd5645ce00100000cf1122334455667788c403aabb03", 1,
	 false},
	{"version 1 where 2 is spoken", "9501cd5645ce00100000cf1122334455667788c403aabb03", 2,
	 false},
	{"version 258", "95cd0102cd5645ce00100000cf1122334455667788c403aabb03", 2, false},
	{"wide integers", "95cf0000000000000002ce00005645cf000000000010000007c403aabb03", 2, true},
	{"address as integers", "9502cd5645ce00100000cf112233445566778893ccaaccbb03", 2, true},
	{"eager_max and incarnation 0", "9502cd56450000c403aabb03", 2, true},
	{"bytes behind", "9502cd56450000c403aabb03ff", 2, true},
	{"map form",
	 "85a17602aa616d5f69645f62617365cd5645a965616765725f6d617800ab696e6361726e6174696f6e00"
	 "ab776f726b65725f61646472c403aabb03",
	 2, true},
	{"array of 4", "9402cd56450000", 2, false},
	{"array of 6", "9602cd56450000c403aabb0300", 2, false},
	{"other base", "9502cd56460000c403aabb03", 2, false},
	{"empty address", "9502cd56450000c400", 2, false},
	{"eager_max over 32 bits", "9502cd5645cf000000010000000000c403aabb03", 2, false},
	{"negative incarnation", "9502cd564500ffc403aabb03", 2, false},
	{"address as str", "9502cd56450000a3616263", 2, false},
	{"no msgpack", "c1", 2, false},
	{"nothing", "", 2, false},
};

static void odd_blobs_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(blobs); i++) {
		uint8_t value[256];
		size_t len = from_hex(blobs[i].hex, value, sizeof(value));

		assert_int_equal(decode_value("ucx", value, len, blobs[i].version), 0);
		if (addr.has_ucx != blobs[i].taken || addr.ucx_refused == blobs[i].taken)
			fail_msg("%s", blobs[i].what);
		if (addr.has_ucx) {
			assert_int_equal(addr.ucx.worker_addr_len, 3);
			assert_memory_equal(addr.ucx.worker_addr, "\xaa\xbb\x03", 3);
			assert_ptr_equal(addr.ucx.worker_addr, addr.ucx_bytes);
		}
	}
}

static bool takes_blob(const uint8_t *buf, size_t len)
{
	return decode_value("ucx", buf, len, 2) == 0 && addr.has_ucx;
}

static void a_blob_cut_anywhere_is_refused(void **state)
{
	uint8_t in[64];

	(void)state;
	exact_cut_everywhere(in, from_hex(blobs[0].hex, in, sizeof(in)), takes_blob);
}

static void a_worker_address_that_is_too_long_is_refused(void **state)
{
	static uint8_t value[RV_ADDRESS_UCX_MAX + 64];
	struct rv_writer w = rv_writer(value, sizeof(value));

	(void)state;
	rv_put_bytes(&w, "\x95\x02\xcd\x56\x45\x00\x00\xc5", 8);
	rv_put_be(&w, RV_ADDRESS_UCX_MAX, 2);
	w.len += RV_ADDRESS_UCX_MAX;
	assert_int_equal(decode_value("ucx", value, w.len, 2), 0);
	assert_true(addr.has_ucx);
	value[9]++;
	assert_int_equal(decode_value("ucx", value, w.len + 1, 2), 0);
	assert_false(addr.has_ucx);
	assert_true(addr.ucx_refused);
}

static void our_own_key_survives_a_round_trip(void **state)
{
	static struct rv_address a;
	uint8_t out[512];
	struct rv_writer w = rv_writer(out, sizeof(out));

	(void)state;
	a = (struct rv_address){
		.tcp = {{.ip = "10.0.0.1", .port = 7471, .prefix_len = 24, .numa = 1}},
		.tcp_nr = 1,
		.has_ucx = true,
		.ucx = {2, 1u << 20, 7, (const uint8_t *)"abc", 3},
		.has_rvd = true,
		.rvd_version = 1,
		.verbs = "verbs address",
		.verbs_len = 13,
	};
	assert_int_equal(rv_address_encode(&w, &a), 0);
	assert_int_equal(rv_address_decode(out, w.len, 2, &addr), 0);
	assert_int_equal(addr.tcp_nr, 1);
	assert_int_equal(addr.tcp[0].numa, 1);
	assert_true(addr.has_ucx && addr.ucx.incarnation == 7 && addr.ucx.eager_max == 1u << 20);
	assert_true(addr.has_rvd);
	assert_int_equal(addr.rvd_version, 1);
	assert_int_equal(addr.verbs_len, 13);
	assert_memory_equal(addr.verbs, "verbs address", 13);
	w = rv_writer(out, 20);
	assert_int_equal(rv_address_encode(&w, &a), -ENOSPC);
	a.ucx.worker_addr_len = 0;
	assert_int_equal(rv_address_encode(&w, &a), -EINVAL);
}

static void the_workers_of_other_cores_travel_in_our_own_key(void **state)
{
	static struct rv_address a;
	uint8_t out[512], list[64];
	struct rv_writer w = rv_writer(list, sizeof(list));
	const uint8_t *one;
	size_t len;

	(void)state;
	rv_peer_workers_add(&w, (const uint8_t *)"second", 6);
	rv_peer_workers_add(&w, (const uint8_t *)"3", 1);
	a = (struct rv_address){.has_ucx = true,
				.ucx = {2, 4096, 7, (const uint8_t *)"first", 5},
				.has_rvd = true,
				.rvd_version = 1,
				.workers_len = w.len};
	memcpy(a.workers, list, w.len);
	w = rv_writer(out, sizeof(out));
	assert_int_equal(rv_address_encode(&w, &a), 0);
	assert_int_equal(rv_address_decode(out, w.len, 2, &addr), 0);
	assert_int_equal(rv_peer_workers_nr(addr.workers, addr.workers_len), 2);
	one = rv_peer_workers_at(addr.workers, addr.workers_len, 0, &len);
	assert_int_equal(len, 6);
	assert_memory_equal(one, "second", 6);
	one = rv_peer_workers_at(addr.workers, addr.workers_len, 1, &len);
	assert_int_equal(len, 1);
	assert_memory_equal(one, "3", 1);
	assert_null(rv_peer_workers_at(addr.workers, addr.workers_len, 2, &len));
	/* A list that is cut gives no worker that is not whole. */
	for (size_t n = 0; n < addr.workers_len; n++)
		assert_int_equal(rv_peer_workers_nr(addr.workers, n), n >= 8 ? 1 : 0);
}

static void our_own_key_may_grow_and_may_be_broken(void **state)
{
	static const struct {
		const char *hex;
		bool taken;
	} rows[] = {
		{"81a17601", true},
		{"82a17602a178929192", false},
		{"82a17602a1789190", true},
		{"81a178c0", false},
		{"9101", false},
		{"81a176a131", false},
		{"82a17601a17602", false},
		{"82a17601a57665726273c401ff", true},
		{"82a17601a576657262730f", false},
		/* workers: none, one, one that is empty, no list, an element that is no byte string */
		{"82a17601a7776f726b65727390", true},
		{"82a17601a7776f726b65727391c401ff", true},
		{"82a17601a7776f726b65727391c400", false},
		{"82a17601a7776f726b657273c401ff", false},
		{"82a17601a7776f726b65727391c0", false},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		uint8_t value[64];

		assert_int_equal(
			decode_value("rvd", value, from_hex(rows[i].hex, value, sizeof(value)), 2),
			0);
		if (addr.has_rvd != rows[i].taken)
			fail_msg("%s", rows[i].hex);
	}
}

/* More than there is room for is refused, not cut. */
static void our_own_key_is_bounded(void **state)
{
	static const struct {
		size_t workers, each, verbs;
		bool taken;
	} rows[] = {
		{RV_ADDRESS_WORKERS_MAX, 8, 8, true},
		{RV_ADDRESS_WORKERS_MAX + 1, 1, 8, false}, /* too many */
		{1, RV_ADDRESS_UCX_MAX + 1, 8, false},     /* one too long */
		{2, 3000, 8, false},                       /* too long together */
		{1, 8, RV_ADDRESS_VERBS_MAX, true},
		{1, 8, RV_ADDRESS_VERBS_MAX + 1, false},
	};
	static uint8_t value[8000], zeros[8000];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		struct rv_writer w = rv_writer(value, sizeof(value));

		rv_put_text(&w, "\x83\xa1v\x01\xa5verbs\xc5");
		rv_put_be(&w, rows[i].verbs, 2);
		rv_put_bytes(&w, zeros, rows[i].verbs);
		rv_put_text(&w, "\xa7workers\xdc");
		rv_put_be(&w, rows[i].workers, 2);
		for (size_t k = 0; k < rows[i].workers; k++) {
			rv_put_u8(&w, 0xc5);
			rv_put_be(&w, rows[i].each, 2);
			rv_put_bytes(&w, zeros, rows[i].each);
		}
		assert_false(w.bad);
		assert_int_equal(decode_value("rvd", value, w.len, 2), 0);
		if (addr.has_rvd != rows[i].taken)
			fail_msg("row %zu", i);
	}
}

static void addresses_that_are_too_long_are_refused(void **state)
{
	static uint8_t in[RV_ADDRESS_MAX + 100];
	struct rv_writer w = rv_writer(in, sizeof(in));
	struct rv_peer_info p;

	(void)state;
	in[0] = 0x80;
	assert_int_equal(rv_address_decode(in, RV_ADDRESS_MAX + 1, 2, &addr), -EPROTO);
	rv_put_text(&w, "\x92\xc4\x10"
			"0123456789abcdef"
			"\xc6");
	rv_put_be(&w, RV_ADDRESS_MAX + 1, 4);
	assert_int_equal(rv_peer_info_decode_msgpack(in, w.len + RV_ADDRESS_MAX + 1, &p), -EPROTO);
}

static void of_two_equal_keys_the_last_counts(void **state)
{
	(void)state;
	assert_int_equal(
		decode_hex("82a3746370c4129195a0a93132372e302e302e31cd15b320c0a3746370c400"), 0);
	assert_int_equal(addr.tcp_nr, 0);
	assert_true(addr.tcp_refused);
}

static void msgpack_peer_info_survives_a_round_trip(void **state)
{
	struct rv_peer_info p;
	uint8_t in[64], out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	size_t len = from_hex("92 c410 00112233445546778899aabbccddeeff c401 80", in, sizeof(in));

	(void)state;
	assert_int_equal(rv_peer_info_decode_msgpack(in, len, &p), 0);
	assert_int_equal(p.address_len, 1);
	assert_int_equal(p.address[0], 0x80);
	assert_true(rv_worker_id(p.instance) == 0xfde8414c5afee9d3ULL);
	assert_int_equal(rv_peer_info_encode_msgpack(&w, &p), 0);
	assert_int_equal(w.len, len);
	assert_memory_equal(out, in, len);
	rv_peer_info_fini(&p);
	for (size_t n = 0; n < len; n++)
		assert_int_equal(rv_peer_info_decode_msgpack(in, n, &p), -EPROTO);
}

static const struct {
	const char *what;
	const char *hex;
	bool taken;
} peers[] = {
	{"text form of the instance",
	 "92 d924 30303131323233332d343435352d343637372d383839392d616162626363646465656666 c40180",
	 true},
	{"text that is no instance", "92 a3616263 c40180", false},
	{"instance of 15 bytes", "92 c40f 00112233445546778899aabbccddee c40180", false},
	{"instance as a number", "92 05 c40180", false},
	{"address as a number", "92 c410 00112233445546778899aabbccddeeff 05", false},
	{"one field", "91 c410 00112233445546778899aabbccddeeff", false},
};

static void odd_peer_infos_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(peers); i++) {
		struct rv_peer_info p;
		uint8_t in[64];
		int rc =
			rv_peer_info_decode_msgpack(in, from_hex(peers[i].hex, in, sizeof(in)), &p);

		if (rc != (peers[i].taken ? 0 : -EPROTO))
			fail_msg("%s: %d", peers[i].what, rc);
		if (!rc)
			rv_peer_info_fini(&p);
	}
}

static void a_host_of_255_characters_is_the_longest(void **state)
{
	(void)state;
	for (size_t len = 254; len <= 257; len++) {
		uint8_t value[320];
		struct rv_writer w = rv_writer(value, sizeof(value));

		rv_put_bytes(&w, "\x91\x95\xa0\xda", 4);
		rv_put_be(&w, len, 2);
		for (size_t i = 0; i < len; i++)
			rv_put_u8(&w, '1');
		rv_put_bytes(&w, "\xcd\x15\xb3\x20\xc0", 5);
		assert_int_equal(decode_value("tcp", value, w.len, 2), 0);
		assert_int_equal(addr.tcp_nr, len < RV_ADDRESS_HOST_MAX);
	}
}

static void what_has_no_room_is_not_encoded(void **state)
{
	static struct rv_address a;
	uint8_t out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	struct rv_peer_info p = {.address = out, .address_len = sizeof(out)};

	(void)state;
	a.tcp_nr = RV_ADDRESS_TCP_MAX + 1;
	assert_int_equal(rv_address_encode(&w, &a), -EINVAL);
	a = (struct rv_address){.verbs_len = RV_ADDRESS_VERBS_MAX + 1};
	assert_int_equal(rv_address_encode(&w, &a), -EINVAL);
	a = (struct rv_address){.has_ucx = true};
	assert_int_equal(rv_address_encode(&w, &a), -EINVAL);
	a.ucx.worker_addr_len = RV_ADDRESS_UCX_MAX + 1;
	assert_int_equal(rv_address_encode(&w, &a), -EINVAL);
	assert_int_equal(w.len, 0);
	w = rv_writer(out, 8);
	assert_int_equal(rv_peer_info_encode_msgpack(&w, &p), -ENOSPC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_forms_of_a_byte_string_say_the_same),
		cmocka_unit_test(encoding_gives_stock_bytes),
		cmocka_unit_test(an_address_cut_anywhere_is_refused),
		cmocka_unit_test(odd_maps_are_taken_or_refused),
		cmocka_unit_test(a_refused_address_leaves_the_output_alone),
		cmocka_unit_test(odd_tcp_records_are_taken_or_refused),
		cmocka_unit_test(the_legacy_text_form_is_read),
		cmocka_unit_test(records_past_the_sixteenth_are_left_out),
		cmocka_unit_test(a_long_interface_name_is_cut_and_made_printable),
		cmocka_unit_test(odd_blobs_are_taken_or_refused),
		cmocka_unit_test(a_blob_cut_anywhere_is_refused),
		cmocka_unit_test(a_worker_address_that_is_too_long_is_refused),
		cmocka_unit_test(our_own_key_survives_a_round_trip),
		cmocka_unit_test(the_workers_of_other_cores_travel_in_our_own_key),
		cmocka_unit_test(our_own_key_is_bounded),
		cmocka_unit_test(addresses_that_are_too_long_are_refused),
		cmocka_unit_test(our_own_key_may_grow_and_may_be_broken),
		cmocka_unit_test(of_two_equal_keys_the_last_counts),
		cmocka_unit_test(msgpack_peer_info_survives_a_round_trip),
		cmocka_unit_test(odd_peer_infos_are_taken_or_refused),
		cmocka_unit_test(a_host_of_255_characters_is_the_longest),
		cmocka_unit_test(what_has_no_room_is_not_encoded),
	};

	return cmocka_run_group_tests_name("address", tests, NULL, NULL);
}
