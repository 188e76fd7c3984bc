/* Every form that msgpack has, and each cut short. */
#include "control/messenger/mp_read.h"

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define NEG(n) (uint64_t)(int64_t)(-(n))

static const struct {
	const char *hex;
	enum rv_mp_kind kind;
	uint64_t u;
	uint32_t nr;
} forms[] = {
	{"c0", RV_MP_NIL, 0, 0},
	{"c2", RV_MP_BOOL, 0, 0},
	{"c3", RV_MP_BOOL, 1, 0},
	{"00", RV_MP_UINT, 0, 0},
	{"7f", RV_MP_UINT, 127, 0},
	{"cc80", RV_MP_UINT, 128, 0},
	{"cd0100", RV_MP_UINT, 256, 0},
	{"ce00010000", RV_MP_UINT, 65536, 0},
	{"cfffffffffffffffff", RV_MP_UINT, UINT64_MAX, 0},
	{"d07f", RV_MP_UINT, 127, 0},
	{"d17fff", RV_MP_UINT, 32767, 0},
	{"d37fffffffffffffff", RV_MP_UINT, INT64_MAX, 0},
	{"ff", RV_MP_NEGATIVE, NEG(1), 0},
	{"e0", RV_MP_NEGATIVE, NEG(32), 0},
	{"d080", RV_MP_NEGATIVE, NEG(128), 0},
	{"d18000", RV_MP_NEGATIVE, NEG(32768), 0},
	{"d2ffffffff", RV_MP_NEGATIVE, NEG(1), 0},
	{"d38000000000000000", RV_MP_NEGATIVE, 1ull << 63, 0},
	{"ca3f800000", RV_MP_FLOAT, 0x3f800000, 0},
	{"cb3ff0000000000000", RV_MP_FLOAT, 0x3ff0000000000000, 0},
	{"a0", RV_MP_STR, 0, 0},
	{"a161", RV_MP_STR, 0, 1},
	{"d90161", RV_MP_STR, 0, 1},
	{"da000161", RV_MP_STR, 0, 1},
	{"db0000000161", RV_MP_STR, 0, 1},
	{"c402aabb", RV_MP_BIN, 0, 2},
	{"c50002aabb", RV_MP_BIN, 0, 2},
	{"c600000002aabb", RV_MP_BIN, 0, 2},
	{"c70201aabb", RV_MP_EXT, 0, 2},
	{"c8000201aabb", RV_MP_EXT, 0, 2},
	{"c90000000201aabb", RV_MP_EXT, 0, 2},
	{"d401aa", RV_MP_EXT, 0, 1},
	{"d501aabb", RV_MP_EXT, 0, 2},
	{"d601aabbccdd", RV_MP_EXT, 0, 4},
	{"d7010011223344556677", RV_MP_EXT, 0, 8},
	{"d80100112233445566770011223344556677", RV_MP_EXT, 0, 16},
	{"90", RV_MP_ARRAY, 0, 0},
	{"9201 9103", RV_MP_ARRAY, 0, 2},
	{"dc0002 01c3", RV_MP_ARRAY, 0, 2},
	{"dd00000001 c0", RV_MP_ARRAY, 0, 1},
	{"80", RV_MP_MAP, 0, 0},
	{"8201 8102a0 0390", RV_MP_MAP, 0, 2},
	{"de0001 01c2", RV_MP_MAP, 0, 1},
	{"df00000001 0190", RV_MP_MAP, 0, 1},
};

static void every_form_is_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(forms); i++) {
		uint8_t in[64];
		struct rv_cursor c = rv_cursor(in, from_hex(forms[i].hex, in, sizeof(in)));
		struct rv_mp e = rv_mp_take(&c);

		if (e.kind != forms[i].kind || e.u != forms[i].u || e.nr != forms[i].nr)
			fail_msg("%s: kind %u u %llu nr %u", forms[i].hex, (unsigned)e.kind,
				 (unsigned long long)e.u, e.nr);
	}
}

static bool skips_all(const uint8_t *buf, size_t len)
{
	struct rv_cursor c = rv_cursor(buf, len);

	return rv_mp_skip(&c) && rv_cursor_left(&c) == 0;
}

static void every_form_is_skipped_whole_and_refused_when_cut(void **state)
{
	uint8_t in[64];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(forms); i++)
		exact_cut_everywhere(in, from_hex(forms[i].hex, in, sizeof(in)), skips_all);
}

static const char *const refused[] = {
	"",
	"c1",            /* never used */
	"92 01 c1",      /* inside something */
	"ddffffffff",    /* more elements than bytes */
	"df80000001 00", /* twice the pairs does not fit 32 bits */
	"c9ffffffff01",  /* a longer ext than there are bytes */
};

static void what_is_no_msgpack_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(refused); i++) {
		uint8_t in[64];

		if (exact_accepts(in, from_hex(refused[i], in, sizeof(in)), skips_all))
			fail_msg("%s", refused[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_form_is_read),
		cmocka_unit_test(every_form_is_skipped_whole_and_refused_when_cut),
		cmocka_unit_test(what_is_no_msgpack_is_refused),
	};

	return cmocka_run_group_tests_name("mp_read", tests, NULL, NULL);
}
