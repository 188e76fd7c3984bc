/* What control groups say, from files of the test's own. */
#include "control/config/memory_limit.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static char dir[] = "/tmp/rv-groups-XXXXXX";
static char list[64], root[64];

__attribute__((format(printf, 2, 3))) static void put(const char *name, const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (char *p = path + sizeof(dir); (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(path, 0700);
		*p = '/';
	}
	f = fopen(path, "we");
	assert_non_null(f);
	va_start(ap, fmt);
	vfprintf(f, fmt, ap);
	va_end(ap);
	fclose(f);
}

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/rv-groups-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(list, sizeof(list), "%s/list", dir);
	snprintf(root, sizeof(root), "%s/fs", dir);
	return 0;
}

static int teardown(void **state)
{
	char cmd[64];

	(void)state;
	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	return system(cmd);
}

static void without_groups_or_limits_there_is_no_limit(void **state)
{
	(void)state;
	assert_true(rv_memory_limit_at(list, root) == RV_NEVER);
	assert_true(rv_memory_room_at(list, root) == RV_NEVER);
	put("list", "0::/a/b\n1:cpu:/a\nnonsense\nmore:nonsense\n");
	assert_true(rv_memory_limit_at(list, root) == RV_NEVER);
	put("fs/a/b/memory.max", "max\n");
	put("fs/a/b/memory.current", "1000\n");
	assert_true(rv_memory_limit_at(list, root) == RV_NEVER);
	assert_true(rv_memory_room_at(list, root) == RV_NEVER);
}

static void the_least_limit_up_to_the_root_counts(void **state)
{
	(void)state;
	put("list", "0::/a/b/c\n");
	put("fs/a/b/c/memory.max", "max\n");
	put("fs/a/b/memory.max", "3000000\n");
	put("fs/a/memory.max", "2000000\n");
	assert_int_equal(rv_memory_limit_at(list, root), 2000000);
	put("fs/a/b/c/memory.max", "1000000\n");
	assert_int_equal(rv_memory_limit_at(list, root), 1000000);
}

static void room_ends_at_nine_tenths_of_the_tightest_limit(void **state)
{
	(void)state;
	put("list", "0::/a/b\n");
	put("fs/a/b/memory.max", "1000000\n");
	put("fs/a/b/memory.current", "100000\n");
	assert_int_equal(rv_memory_room_at(list, root), 800000);
	put("fs/a/memory.max", "2000000\n"); /* roomier, and fuller: others are in it too */
	put("fs/a/memory.current", "1700000\n");
	assert_int_equal(rv_memory_room_at(list, root), 100000);
	put("fs/a/memory.current", "1800000\n");
	assert_int_equal(rv_memory_room_at(list, root), 0);
	put("fs/a/memory.current", "1999999\n");
	assert_int_equal(rv_memory_room_at(list, root), 0);
}

static void file_pages_that_nobody_uses_are_room(void **state)
{
	(void)state;
	put("list", "0::/\n");
	put("fs/memory.max", "1000000\n");
	put("fs/memory.current", "900000\n");
	assert_int_equal(rv_memory_room_at(list, root), 0);
	put("fs/memory.stat", "anon 100\ninactive_file 300000\nactive_file 400000\n");
	assert_int_equal(rv_memory_room_at(list, root), 300000);
	put("fs/memory.stat", "inactive_file 99999999\n"); /* more than there is of all */
	assert_int_equal(rv_memory_room_at(list, root), 900000);
}

static void version_1_has_other_names_for_it(void **state)
{
	(void)state;
	put("list", "9:cpu,cpuacct:/x\n4:memory:/a\n0::/x\n");
	put("fs/memory/a/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
	put("fs/memory/a/memory.usage_in_bytes", "5\n");
	assert_true(rv_memory_room_at(list, root) == RV_NEVER);
	put("fs/memory/a/memory.limit_in_bytes", "1000000\n");
	put("fs/memory/a/memory.usage_in_bytes", "500000\n");
	put("fs/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n");
	assert_int_equal(rv_memory_limit_at(list, root), 1000000);
	assert_int_equal(rv_memory_room_at(list, root), 500000);
}

#define GROUPS(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		GROUPS(without_groups_or_limits_there_is_no_limit),
		GROUPS(the_least_limit_up_to_the_root_counts),
		GROUPS(room_ends_at_nine_tenths_of_the_tightest_limit),
		GROUPS(file_pages_that_nobody_uses_are_room),
		GROUPS(version_1_has_other_names_for_it),
	};

	return cmocka_run_group_tests_name("memory_limit", tests, NULL, NULL);
}
