/* What a program has mapped of its daemon's memory. */
#include "control/client/arena_map.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN 8192u

static struct rv_arena_map m;

static int memory(int seals)
{
	int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, LEN), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int take(uint32_t id, int fd, bool single_use, struct rv_arena **a)
{
	const struct rv_arena_word w = {
		.id = id,
		.arena_len = LEN,
		.off = 4096,
		.len = 4096,
		.single_use = single_use,
		.fd = fd,
	};
	const char *why = NULL;
	int rc = rv_arena_map_take(&m, &w, a, &why);

	if (rc)
		assert_non_null(why);
	return rc;
}

static void an_arena_is_shown_once_and_then_named(void **state)
{
	struct rv_arena *a, *again, *other;

	(void)state;
	assert_int_equal(take(1, -1, false, &a), -EPROTO);
	assert_int_equal(take(1, memory(F_SEAL_SHRINK), false, &a), 0);
	assert_int_equal(take(2, memory(F_SEAL_SHRINK), false, &other), 0);
	assert_int_equal(take(1, -1, false, &again), 0);
	assert_ptr_equal(again, a);
	assert_int_equal(take(2, -1, false, &again), 0);
	assert_ptr_equal(again, other);
	assert_int_equal(take(3, -1, false, &again), -EPROTO);
	rv_arena_map_fini(&m, true);
}

static void memory_that_may_shrink_is_not_believed(void **state)
{
	struct rv_arena *a;
	int fd = memory(F_SEAL_SHRINK);

	(void)state;
	assert_int_equal(take(1, memory(F_SEAL_GROW), false, &a), -EPROTO);
	assert_true(rv_arena_usable(fd, LEN));
	assert_false(rv_arena_usable(fd, LEN + 1));
	assert_false(rv_arena_usable(fd, 0));
	close(fd);
	rv_arena_map_fini(&m, true);
}

/* The one that was named last is kept at hand, but not beyond its end. */
static void what_has_gone_is_not_found_any_more(void **state)
{
	struct rv_arena *a;

	(void)state;
	assert_int_equal(take(1, memory(F_SEAL_SHRINK), true, &a), 0);
	rv_arena_map_drop(&m, a, 5);
	rv_arena_map_sweep(&m, 6);
	assert_int_equal(take(1, -1, true, &a), -EPROTO);
	assert_int_equal(take(1, memory(F_SEAL_SHRINK), false, &a), 0);
	rv_arena_map_fini(&m, true);
	/* A late reply is still read while a session closes. */
	assert_int_equal(take(1, -1, false, &a), -EPROTO);
	rv_arena_map_fini(&m, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_arena_is_shown_once_and_then_named),
		cmocka_unit_test(memory_that_may_shrink_is_not_believed),
		cmocka_unit_test(what_has_gone_is_not_found_any_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
