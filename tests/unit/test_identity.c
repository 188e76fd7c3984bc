#include "control/service/identity.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataplane/base/hash.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static char dir[64], file[96];

static int make_dir(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/rv-identity-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(file, sizeof(file), "%s/workers", dir);
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	unlink(file);
	rmdir(dir);
	return 0;
}

static void write_file(const char *text)
{
	FILE *f = fopen(file, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void an_identity_is_a_version_4_uuid_and_its_hash(void **state)
{
	struct rv_identity id;

	(void)state;
	assert_int_equal(rv_identity_make(&id, dir), 0);
	assert_int_equal(id.instance[6] >> 4, 4);
	assert_int_equal(id.instance[8] >> 6, 2);
	assert_int_equal(id.worker, rv_hash_xxh3(id.instance, 16));
	assert_int_not_equal(id.worker, 0);
	assert_int_equal(id.former_nr, 0);
}

static void each_start_is_somebody_new_and_remembers_the_last(void **state)
{
	struct rv_identity a, b, c;

	(void)state;
	assert_int_equal(rv_identity_make(&a, dir), 0);
	assert_int_equal(rv_identity_make(&b, dir), 0);
	assert_int_equal(rv_identity_make(&c, dir), 0);
	assert_true(a.worker != b.worker && b.worker != c.worker);
	assert_int_equal(c.former_nr, 2);
	assert_int_equal(c.former[0], a.worker);
	assert_int_equal(c.former[1], b.worker);
}

static void what_is_no_id_is_skipped(void **state)
{
	struct rv_identity id;

	(void)state;
	write_file("12\nnonsense\n\n0\n18446744073709551615\n-\n");
	assert_int_equal(rv_identity_make(&id, dir), 0);
	assert_int_equal(id.former_nr, 2);
	assert_int_equal(id.former[0], 12);
	assert_int_equal(id.former[1], UINT64_MAX);
}

static void the_last_1024_are_kept(void **state)
{
	struct rv_identity id;
	FILE *f = fopen(file, "w");
	unsigned lines = 0;
	char line[64];

	(void)state;
	for (unsigned i = 1; i <= 1500; i++)
		fprintf(f, "%u\n", i);
	fclose(f);
	assert_int_equal(rv_identity_make(&id, dir), 0);
	assert_int_equal(id.former_nr, RV_FORMER_MAX);
	assert_int_equal(id.former[0], 1500 - RV_FORMER_MAX + 1);
	assert_int_equal(id.former[RV_FORMER_MAX - 1], 1500);
	f = fopen(file, "r");
	while (fgets(line, sizeof(line), f))
		lines++;
	fclose(f);
	assert_int_equal(lines, RV_FORMER_MAX);
	assert_int_equal(strtoull(line, NULL, 10), id.worker); /* the newest is the last line */
}

static void without_a_directory_the_identity_is_good_all_the_same(void **state)
{
	struct rv_identity id;

	(void)state;
	assert_int_equal(rv_identity_make(&id, ""), -ENOENT);
	assert_int_not_equal(id.worker, 0);
	assert_int_equal(rv_identity_make(&id, "/dev/null/x"), -ENOTDIR);
	assert_int_not_equal(id.worker, 0);
}

static unsigned drawn;

static uint64_t draw(void)
{
	static const uint64_t numbers[] = {0, 0, 7, 9};

	return numbers[drawn++];
}

static void an_incarnation_is_never_0(void **state)
{
	(void)state;
	drawn = 0;
	assert_int_equal(rv_incarnation_make(draw), 7);
	assert_int_equal(drawn, 3);
}

static void a_directory_that_is_missing_is_made(void **state)
{
	char deeper[96];
	struct rv_identity id;
	struct stat st;

	(void)state;
	snprintf(deeper, sizeof(deeper), "%s/new", dir);
	assert_int_equal(rv_identity_make(&id, deeper), 0);
	assert_int_equal(stat(deeper, &st), 0);
	snprintf(file, sizeof(file), "%s/new/workers", dir);
	unlink(file);
	rmdir(deeper);
}

#define IN_DIR(t) cmocka_unit_test_setup_teardown(t, make_dir, remove_dir)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(an_identity_is_a_version_4_uuid_and_its_hash),
		IN_DIR(each_start_is_somebody_new_and_remembers_the_last),
		IN_DIR(what_is_no_id_is_skipped),
		IN_DIR(the_last_1024_are_kept),
		IN_DIR(without_a_directory_the_identity_is_good_all_the_same),
		IN_DIR(a_directory_that_is_missing_is_made),
		cmocka_unit_test(an_incarnation_is_never_0),
	};

	return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
