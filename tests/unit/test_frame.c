#include "control/frame/frame.h"

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define WORKER 0xfde8414c5afee9d3ULL

static const char pull_hex[] =
	"01 02 d3e9fe5a4c41e8fd 0300 050000000000 0800 5f72765f70756c6c 0000";

static const struct {
	const char *hex;
	int rc;
	struct rv_preamble want;
} preambles[] = {
	{"0001 00 0000001e 00000021", 0, {RV_FRAME_MESSAGE, 30, 33}},
	{"0001 01 00000013 00000002", 0, {RV_FRAME_RESPONSE, 19, 2}},
	{"0001 02 00000011 00000000", 0, {RV_FRAME_ACK, 17, 0}},
	{"0001 03 00000011 00000000", 0, {RV_FRAME_EVENT, 17, 0}},
	{"0001 04 0000001e 00000000", 0, {RV_FRAME_SHUTTING_DOWN, 30, 0}},
	{"0001 00 00000000 01000000", 0, {RV_FRAME_MESSAGE, 0, 1u << 24}},
	{"0001 00 00000028 00ffffd8", 0, {RV_FRAME_MESSAGE, 40, (1u << 24) - 40}},
	{"0001 05 00000000 00000000", -EPROTO, {0}},
	{"0001 ff 00000000 00000000", -EPROTO, {0}},
	{"0000 00 00000000 00000000", -EPROTO, {0}},
	{"0100 00 00000000 00000000", -EPROTO, {0}},
	{"0002 00 00000000 00000000", -EPROTO, {0}},
	{"0001 00 00000028 00ffffd9", -EPROTO, {0}},
	{"0001 00 00000001 01000000", -EPROTO, {0}},
	{"0001 00 ffffffff 00000001", -EPROTO, {0}},
	{"0001 00 ffffffff ffffffff", -EPROTO, {0}},
};

static void preambles_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(preambles); i++) {
		struct rv_preamble p = {RV_FRAME_EVENT, 9, 9};
		uint8_t in[RV_FRAME_PREAMBLE], out[RV_FRAME_PREAMBLE];

		assert_int_equal(from_hex(preambles[i].hex, in, sizeof(in)), sizeof(in));
		assert_int_equal(rv_preamble_decode(in, &p), preambles[i].rc);
		if (preambles[i].rc) {
			assert_int_equal(p.header_len, 9);
			continue;
		}
		assert_int_equal(p.type, preambles[i].want.type);
		assert_int_equal(p.header_len, preambles[i].want.header_len);
		assert_int_equal(p.payload_len, preambles[i].want.payload_len);
		rv_preamble_encode(out, &p);
		assert_memory_equal(out, in, sizeof(in));
	}
}

static void a_message_id_holds_worker_slot_and_generation(void **state)
{
	struct rv_msg_id id = rv_msg_id_make(WORKER, 3, 5);
	uint8_t want[16];

	(void)state;
	from_hex("d3e9fe5a4c41e8fd 0300 050000000000", want, sizeof(want));
	assert_memory_equal(id.b, want, sizeof(want));
	assert_true(rv_msg_id_worker(&id) == WORKER);
	assert_int_equal(rv_msg_id_slot(&id), 3);
	assert_int_equal(rv_msg_id_generation(&id), 5);

	id = rv_msg_id_make(1, UINT16_MAX, UINT64_MAX);
	assert_int_equal(rv_msg_id_slot(&id), UINT16_MAX);
	assert_true(rv_msg_id_generation(&id) == (1ULL << 48) - 1);
}

static bool takes_request(const uint8_t *buf, size_t len)
{
	struct rv_request_header h;

	return rv_request_header_decode(buf, len, &h) == 0;
}

static bool takes_response(const uint8_t *buf, size_t len)
{
	struct rv_response_header h;

	return rv_response_header_decode(buf, len, &h) == 0;
}

static bool takes_ack(const uint8_t *buf, size_t len)
{
	struct rv_ack_header h;

	return rv_ack_header_decode(buf, len, &h) == 0;
}

static void a_request_header_survives_a_round_trip(void **state)
{
	struct rv_request_header h;
	uint8_t in[64], out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	size_t len = from_hex(pull_hex, in, sizeof(in));

	(void)state;
	assert_int_equal(len, 30);
	assert_int_equal(rv_request_header_decode(in, len, &h), 0);
	assert_int_equal(h.kind, RV_CALL_UNARY);
	assert_true(rv_msg_id_worker(&h.id) == WORKER);
	assert_int_equal(h.name_len, 8);
	assert_memory_equal(h.name, "_rv_pull", 8);
	assert_int_equal(h.headers_len, 0);
	assert_null(h.headers);
	assert_int_equal(rv_request_header_encode(&w, &h), 0);
	assert_int_equal(w.len, len);
	assert_memory_equal(out, in, len);
}

static void a_request_header_cut_anywhere_is_refused(void **state)
{
	uint8_t in[64];
	size_t len = from_hex("01 00 d3e9fe5a4c41e8fd 0300 050000000000 0100 61 0500 81a161a162",
			      in, sizeof(in));

	(void)state;
	exact_cut_everywhere(in, len, takes_request);
	len = from_hex(pull_hex, in, sizeof(in));
	exact_cut_everywhere(in, len, takes_request);
}

#define ID "d3e9fe5a4c41e8fd0300050000000000"

static const struct {
	const char *what;
	const char *hex;
	bool taken;
} requests[] = {
	{"smallest", "01 00" ID "0100 61 0000", true},
	{"bytes behind the map", "01 00" ID "0100 61 0000 ffff", true},
	{"empty map", "01 00" ID "0100 61 0100 80", true},
	{"name in UTF-8", "01 01" ID "0200 c3a9 0000", true},
	{"empty name", "01 00" ID "0000 0000", false},
	{"schema 0", "00 00" ID "0100 61 0000", false},
	{"schema 2", "02 00" ID "0100 61 0000", false},
	{"kind 3", "01 03" ID "0100 61 0000", false},
	{"name past the end", "01 00" ID "ffff 61 0000", false},
	{"map past the end", "01 00" ID "0100 61 0200 80", false},
	{"stray continuation byte", "01 00" ID "0100 80 0000", false},
	{"cut character", "01 00" ID "0100 c3 0000", false},
	{"over-long form", "01 00" ID "0200 c080 0000", false},
	{"surrogate", "01 00" ID "0300 eda080 0000", false},
	{"above U+10FFFF", "01 00" ID "0400 f4908080 0000", false},
};

static void odd_request_headers_are_taken_or_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(requests); i++) {
		uint8_t in[64];
		size_t len = from_hex(requests[i].hex, in, sizeof(in));

		if (exact_accepts(in, len, takes_request) != requests[i].taken)
			fail_msg("%s", requests[i].what);
	}
}

static void a_headers_map_of_16384_bytes_is_the_largest(void **state)
{
	static uint8_t in[RV_REQUEST_HEADER_MIN + 1 + RV_HEADERS_MAX + 1];
	struct rv_writer w = rv_writer(in, sizeof(in));
	static uint8_t map[RV_HEADERS_MAX + 1];
	struct rv_request_header h = {.name = "a",
				      .name_len = 1,
				      .headers = map,
				      .headers_len = RV_HEADERS_MAX};

	(void)state;
	assert_int_equal(rv_request_header_encode(&w, &h), 0);
	assert_true(exact_accepts(in, w.len, takes_request));
	in[21] = 0x01; /* 0x4001 */
	in[22] = 0x40;
	assert_false(exact_accepts(in, w.len + 1, takes_request));
	h.headers_len = RV_HEADERS_MAX + 1;
	assert_int_equal(rv_request_header_encode(&w, &h), -EINVAL);
}

static void what_no_receiver_takes_is_not_written(void **state)
{
	struct rv_request_header h = {.name = "", .name_len = 0};
	struct rv_response_header r = {.headers_len = RV_HEADERS_MAX + 1};
	struct rv_writer w = rv_writer(NULL, 0);

	(void)state;
	assert_int_equal(rv_request_header_encode(&w, &h), -EINVAL);
	h.name_len = 1;
	h.name = "a";
	h.kind = (enum rv_call_kind)3;
	assert_int_equal(rv_request_header_encode(&w, &h), -EINVAL);
	h.kind = RV_CALL_FIRE;
	assert_int_equal(rv_request_header_encode(&w, &h), 0);
	assert_true(w.bad);
	assert_int_equal(w.len, 23);
	assert_int_equal(rv_response_header_encode(&w, &r), -EINVAL);
}

static void a_response_header_survives_a_round_trip(void **state)
{
	struct rv_response_header h;
	uint8_t in[64], out[64];
	struct rv_writer w = rv_writer(out, sizeof(out));
	size_t len = from_hex(ID "00 0500 81a161a162", in, sizeof(in));

	(void)state;
	exact_cut_everywhere(in, len, takes_response);
	assert_int_equal(rv_response_header_decode(in, len, &h), 0);
	assert_int_equal(h.outcome, 0);
	assert_int_equal(h.headers_len, 5);
	assert_int_equal(rv_response_header_encode(&w, &h), 0);
	assert_int_equal(w.len, len);
	assert_memory_equal(out, in, len);

	in[16] = 7; /* not 0: an error, whatever it is */
	assert_int_equal(rv_response_header_decode(in, len, &h), 0);
	assert_int_equal(h.outcome, 7);
}

static void acks_nacks_and_events_are_told_apart(void **state)
{
	static const struct {
		uint8_t flags;
		bool taken, event, error;
	} rows[] = {
		{0x00, true, false, false}, {0x01, true, true, false}, {0x02, true, false, true},
		{0x03, true, true, true},   {0x04, false, 0, 0},       {0x80, false, 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		struct rv_ack_header h;
		uint8_t in[32], out[32];
		struct rv_writer w = rv_writer(out, sizeof(out));
		size_t len = from_hex("00" ID, in, sizeof(in));

		in[0] = rows[i].flags;
		assert_int_equal(rv_ack_header_decode(in, len, &h), rows[i].taken ? 0 : -EPROTO);
		if (!rows[i].taken)
			continue;
		exact_cut_everywhere(in, len, takes_ack);
		assert_int_equal(h.event, rows[i].event);
		assert_int_equal(h.error, rows[i].error);
		rv_ack_header_encode(&w, &h);
		assert_int_equal(w.len, RV_ACK_HEADER_LEN);
		assert_memory_equal(out, in, len);
		assert_int_equal(rv_ack_header_decode(in, len + 1, &h), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(preambles_are_taken_or_refused),
		cmocka_unit_test(a_message_id_holds_worker_slot_and_generation),
		cmocka_unit_test(a_request_header_survives_a_round_trip),
		cmocka_unit_test(a_request_header_cut_anywhere_is_refused),
		cmocka_unit_test(odd_request_headers_are_taken_or_refused),
		cmocka_unit_test(a_headers_map_of_16384_bytes_is_the_largest),
		cmocka_unit_test(what_no_receiver_takes_is_not_written),
		cmocka_unit_test(a_response_header_survives_a_round_trip),
		cmocka_unit_test(acks_nacks_and_events_are_told_apart),
	};

	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
