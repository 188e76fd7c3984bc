#include "dataplane/rendezvous/acquire.h"

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

#define MIN RV_KIB(64)

/* The specification's order: whatever else is wrong behind the first refusal does not show. */
static const struct {
	struct rv_acquire_facts facts;
	enum rv_path_reason reason;
} rows[] = {
	/* offer registry enabled pinned len min named draining describable */
	{{true, true, true, true, RV_MIB(1), MIN, true, false, true}, RV_PATH_OK},
	{{true, true, true, true, MIN, MIN, true, false, true}, RV_PATH_OK},
	{{true, true, true, true, 1, 0, true, false, true}, RV_PATH_OK},

	{{false, true, true, true, RV_MIB(1), MIN, true, false, true}, RV_PATH_NO_OFFER},
	{{false, false, false, false, 1, MIN, false, true, false}, RV_PATH_NO_OFFER},

	{{true, false, true, true, RV_MIB(1), MIN, true, false, true}, RV_PATH_NOT_CONFIGURED},
	{{true, false, false, false, 1, MIN, false, true, false}, RV_PATH_NOT_CONFIGURED},

	{{true, true, false, true, RV_MIB(1), MIN, true, false, true}, RV_PATH_KILL_SWITCH},
	{{true, true, false, false, 1, MIN, false, true, false}, RV_PATH_KILL_SWITCH},

	{{true, true, true, false, RV_MIB(1), MIN, true, false, true}, RV_PATH_NOT_PINNED},
	{{true, true, true, false, 1, MIN, false, true, false}, RV_PATH_NOT_PINNED},

	{{true, true, true, true, MIN - 1, MIN, true, false, true}, RV_PATH_BELOW_MIN},
	{{true, true, true, true, 0, MIN, false, true, false}, RV_PATH_BELOW_MIN},

	{{true, true, true, true, MIN, MIN, false, false, true}, RV_PATH_NO_OFFER},
	{{true, true, true, true, MIN, MIN, false, true, false}, RV_PATH_NO_OFFER},

	{{true, true, true, true, MIN, MIN, true, true, true}, RV_PATH_DRAINING},
	{{true, true, true, true, MIN, MIN, true, true, false}, RV_PATH_DRAINING},

	{{true, true, true, true, MIN, MIN, true, false, false}, RV_PATH_NOT_PINNED},
};

static void the_eight_checks_in_their_order(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++)
		if (rv_acquire_decide(&rows[i].facts) != rows[i].reason)
			fail_msg("row %zu: %s", i,
				 rv_path_reason_name(rv_acquire_decide(&rows[i].facts)));
}

static void the_labels_are_the_protocols(void **state)
{
	static const char *const names[] = {
		"ok",       "no_offer", "not_configured", "kill_switch",  "not_pinned", "below_min",
		"draining", "budget",   "pool_exhausted", "decode_error", "get_failed",
	};

	(void)state;
	assert_int_equal(RV_ARRAY_NR(names), RV_PATH_REASONS);
	for (unsigned i = 0; i < RV_PATH_REASONS; i++)
		assert_string_equal(rv_path_reason_name((enum rv_path_reason)i), names[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_eight_checks_in_their_order),
		cmocka_unit_test(the_labels_are_the_protocols),
	};

	return cmocka_run_group_tests_name("acquire", tests, NULL, NULL);
}
