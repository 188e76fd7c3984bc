/* The file that nodes share. */
#include "control/discovery/discovery.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

static char dir[64], path[96];
static char why[RV_DISCOVERY_TEXT];
static const struct rv_discovery_ops *const ops = &rv_discovery_file_ops;

/* Somebody renames theirs over the file between our open(2) and our lock, once. */
static const char *overtaken_by;

int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);

int __wrap_flock(int fd, int how)
{
	if (overtaken_by) {
		assert_int_equal(rename(overtaken_by, path), 0);
		overtaken_by = NULL;
		errno = EACCES; /* an earlier call's */
	}
	return __real_flock(fd, how);
}

static int setup(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/rvd-unit-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/peers.json", dir);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	unlink(path);
	assert_int_equal(rmdir(dir), 0); /* nothing was left beside it */
	return 0;
}

/* A node, by its number. */
static void *node(uint8_t number, const uint64_t *former, size_t former_nr)
{
	uint8_t address[] = {129, 163, number};
	struct rv_discovery_conf c = {
		.path = path,
		.self = {.instance = {number}, .address = address, .address_len = sizeof(address)},
		.former = former,
		.former_nr = former_nr,
	};
	void *f = rv_discovery_file_open(&c, why);

	assert_non_null(f);
	return f;
}

static uint64_t worker_of(uint8_t number)
{
	uint8_t id[RV_UUID_LEN] = {number};

	return rv_worker_id(id);
}

static bool finds(void *f, uint8_t number)
{
	struct rv_peer_info pi;
	int rc = ops->find(f, worker_of(number), &pi, why);

	if (rc) {
		assert_int_equal(rc, -ENOENT);
		return false;
	}
	assert_int_equal(pi.instance[0], number);
	assert_int_equal(pi.address_len, 3);
	assert_int_equal(pi.address[2], number);
	rv_peer_info_fini(&pi);
	return true;
}

static void nodes_find_each_other_until_they_leave(void **state)
{
	void *a = node(1, NULL, 0), *b = node(2, NULL, 0);

	(void)state;
	assert_false(finds(a, 2)); /* there is no file */
	assert_int_equal(ops->publish(a, why), 0);
	assert_int_equal(ops->publish(b, why), 0);
	assert_int_equal(ops->publish(a, why), 0);
	assert_true(finds(a, 2) && finds(b, 1) && finds(a, 1));
	ops->withdraw(a);
	assert_false(finds(b, 1));
	assert_true(finds(b, 2));
	ops->withdraw(b);
	ops->withdraw(b);
	ops->close(a);
	ops->close(b);
}

/* Stock nodes read before they lock. */
static void an_entry_that_was_lost_comes_back(void **state)
{
	void *a = node(1, NULL, 0), *b = node(2, NULL, 0);
	char text[4096];
	int fd;
	ssize_t n;

	(void)state;
	assert_int_equal(ops->publish(a, why), 0);
	fd = open(path, O_RDONLY);
	n = read(fd, text, sizeof(text));
	close(fd);
	assert_int_equal(ops->publish(b, why), 0);
	fd = open(path, O_WRONLY | O_TRUNC);
	assert_int_equal(write(fd, text, (size_t)n), n);
	close(fd);
	assert_false(finds(a, 2));
	assert_int_equal(ops->publish(b, why), 0);
	assert_true(finds(a, 2) && finds(a, 1));
	ops->close(a);
	ops->close(b);
}

static void a_former_life_goes_with_the_next(void **state)
{
	uint64_t former[] = {12345, worker_of(1)};
	void *a = node(1, NULL, 0), *b = node(2, NULL, 0), *next = node(3, former, 2);

	(void)state;
	assert_int_equal(ops->publish(a, why), 0);
	assert_int_equal(ops->publish(b, why), 0);
	assert_int_equal(ops->publish(next, why), 0);
	assert_true(finds(b, 3) && finds(b, 2) && !finds(b, 1));
	ops->close(a);
	ops->close(b);
	ops->close(next);
}

static void who_holds_the_lock_is_waited_for_but_not_for_ever(void **state)
{
	void *a = node(1, NULL, 0);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	struct stat st;

	(void)state;
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(ops->publish(a, why), -ETIMEDOUT);
	assert_non_null(strstr(why, "somebody else holds it"));
	assert_int_equal(flock(fd, LOCK_UN), 0);
	assert_int_equal(ops->publish(a, why), 0);
	close(fd);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600); /* as it was */
	ops->close(a);
}

static void who_is_overtaken_by_a_rename_takes_the_new_file(void **state)
{
	void *a = node(1, NULL, 0);
	char theirs[128];
	int fd;

	(void)state;
	snprintf(theirs, sizeof(theirs), "%s/theirs", dir);
	fd = open(theirs, O_RDWR | O_CREAT, 0640);
	assert_true(fd >= 0);
	close(fd);
	overtaken_by = theirs;
	assert_int_equal(ops->publish(a, why), 0);
	assert_null(overtaken_by);
	assert_true(finds(a, 1));
	ops->close(a);
}

static void what_is_empty_and_no_file_is_left_alone(void **state)
{
	void *a = node(1, NULL, 0);
	struct stat st;

	(void)state;
	assert_int_equal(mkfifo(path, 0644), 0);
	assert_int_equal(ops->publish(a, why), -EPROTO);
	assert_non_null(strstr(why, "no discovery file"));
	ops->withdraw(a);
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	ops->close(a);
}

static void a_link_with_the_temporary_files_name_is_not_followed(void **state)
{
	static const uint8_t id[RV_UUID_LEN] = {1};
	void *a = node(1, NULL, 0);
	char uuid[RV_UUID_TEXT], link[192], victim[128];
	struct stat st;
	int fd;

	(void)state;
	rv_uuid_format(id, uuid);
	snprintf(link, sizeof(link), "%s.tmp.%s", path, uuid);
	snprintf(victim, sizeof(victim), "%s/victim", dir);
	fd = open(victim, O_WRONLY | O_CREAT, 0644);
	assert_int_equal(write(fd, "precious", 8), 8);
	close(fd);
	assert_int_equal(symlink(victim, link), 0);
	assert_int_equal(ops->publish(a, why), 0);
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(stat(victim, &st), 0);
	assert_int_equal(st.st_size, 8);
	assert_true(finds(a, 1));
	unlink(victim);
	ops->close(a);
}

/* What is in the file, and what it is refused for. */
static const char *const broken[] = {"{",
				     "[]",
				     "7",
				     "{\"peers\":{}}",
				     "{\"peer\":[]}",
				     "{\"peers\":[]} x",
				     "\x01",
				     "{\"peers\":[],\"peers\":[]}"};

static void a_file_of_another_kind_is_left_alone(void **state)
{
	void *a = node(1, NULL, 0);

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(broken); i++) {
		char back[64] = "";
		struct rv_peer_info pi;
		int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

		assert_int_equal(write(fd, broken[i], strlen(broken[i])), strlen(broken[i]));
		if (ops->publish(a, why) != -EPROTO)
			fail_msg("%s", broken[i]);
		assert_non_null(strstr(why, path));
		assert_int_equal(ops->find(a, worker_of(2), &pi, why), -EHOSTUNREACH);
		ops->withdraw(a);
		assert_true(pread(fd, back, sizeof(back) - 1, 0) >= 0);
		assert_string_equal(back, broken[i]);
		close(fd);
	}
	ops->close(a);
}

static void a_folder_is_no_file(void **state)
{
	struct rv_discovery_conf c = {.path = dir,
				      .self = {.address = (uint8_t[]){1}, .address_len = 1}};
	void *f = rv_discovery_file_open(&c, why);

	(void)state;
	assert_non_null(f);
	assert_true(ops->publish(f, why) < 0);
	assert_non_null(strstr(why, dir));
	ops->close(f);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nodes_find_each_other_until_they_leave),
		TEST(an_entry_that_was_lost_comes_back),
		TEST(a_former_life_goes_with_the_next),
		TEST(who_holds_the_lock_is_waited_for_but_not_for_ever),
		TEST(who_is_overtaken_by_a_rename_takes_the_new_file),
		TEST(what_is_empty_and_no_file_is_left_alone),
		TEST(a_link_with_the_temporary_files_name_is_not_followed),
		TEST(a_file_of_another_kind_is_left_alone),
		TEST(a_folder_is_no_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
