/* The line that rvctl draws of a long transfer. */
#include <string.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"
#include "tools/rvctl_progress.h"

static void the_line_says_how_far_how_fast_and_how_long(void **state)
{
	static const struct {
		int width;
		uint64_t done, total;
		double seconds;
		const char *line;
	} t[] = {
		{79, RV_MIB(50), RV_MIB(100), 2,
		 "reading [####################--------------------]  50 %, 0.03 GB/s, 2 s left"},
		{60, RV_MIB(100), RV_MIB(100), 2,
		 "reading [#######################] 100 %, 0.05 GB/s, 0 s left"},
		{60, 0, RV_MIB(100), 2,
		 "reading [---------------------------------]   0 %, 0.00 GB/s"},
		{30, RV_MIB(25), RV_MIB(100), 2, "reading  25 %"},
		{79, RV_MIB(3) + RV_KIB(512), 0, 4, "reading: 3.5 MiB in 4 s"},
		{79, 0, 0, 7, "reading: 7 s"},
		{8, 0, 0, 7, "reading:"},
		/* A file that grew meanwhile. */
		{60, RV_MIB(101), RV_MIB(100), 1,
		 "reading [#######################] 100 %, 0.11 GB/s, 0 s left"},
	};
	char line[256];

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		int n = rv_progress_line(line, t[i].width, "reading", t[i].done, t[i].total,
					 t[i].seconds);

		assert_string_equal(line, t[i].line);
		assert_int_equal(n, strlen(line));
		assert_in_range(n, 1, t[i].width);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_line_says_how_far_how_fast_and_how_long),
	};

	return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
