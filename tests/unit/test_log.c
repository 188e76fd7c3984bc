#include "dataplane/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/exact.h"

static char captured[65536];
static int saved_stderr = -1;
static int pipe_end = -1;

static void capture_begin(void)
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	saved_stderr = dup(STDERR_FILENO);
	assert_true(saved_stderr >= 0);
	assert_true(dup2(fds[1], STDERR_FILENO) >= 0);
	close(fds[1]);
	pipe_end = fds[0];
}

static const char *capture_end(void)
{
	ssize_t n;

	dup2(saved_stderr, STDERR_FILENO); /* the last writing end: read sees the end */
	close(saved_stderr);
	n = read(pipe_end, captured, sizeof(captured) - 1);
	close(pipe_end);
	captured[n > 0 ? n : 0] = '\0';
	return captured;
}

static size_t lines(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static int restore(void **state)
{
	(void)state;
	rv_log_set_level(RV_LOG_INFO);
	rv_log_set_json(false);
	rv_log_set_journal(false);
	unsetenv("JOURNAL_STREAM");
	return 0;
}

static void a_line_has_time_level_and_text(void **state)
{
	const char *text;

	(void)state;
	capture_begin();
	rv_log_warn("core %u: slow", 3u);
	text = capture_end();
	assert_int_equal(strlen(text), strlen("2026-01-02T03:04:05.678Z warn  core 3: slow\n"));
	assert_int_equal(text[10], 'T');
	assert_int_equal(text[23], 'Z');
	assert_string_equal(text + 24, " warn  core 3: slow\n");
}

static void lines_over_the_level_are_not_written(void **state)
{
	(void)state;
	rv_log_set_level(RV_LOG_WARN);
	assert_int_equal(rv_log_get_level(), RV_LOG_WARN);
	capture_begin();
	rv_log_err("one");
	rv_log_warn("two");
	rv_log_info("three");
	rv_log_debug("four");
	assert_int_equal(lines(capture_end()), 2);
	rv_log_set_level(RV_LOG_DEBUG);
	capture_begin();
	rv_log_info("three");
	rv_log_debug("four");
	assert_int_equal(lines(capture_end()), 2);
}

static void a_message_cannot_forge_a_line(void **state)
{
	const char *text;

	(void)state;
	capture_begin();
	rv_log_err("peer said \"a\nb\x1b[31m\"");
	text = capture_end();
	assert_int_equal(lines(text), 1);
	assert_non_null(strstr(text, "peer said \"a\\x0ab\\x1b[31m\"\n"));
}

static void json_lines_are_one_escaped_object(void **state)
{
	const char *text;

	(void)state;
	rv_log_set_json(true);
	capture_begin();
	rv_log_info("said \"a\nb\\\"");
	text = capture_end();
	assert_int_equal(strncmp(text, "{\"time\":\"", 9), 0);
	assert_non_null(strstr(
		text, "\",\"level\":\"info\",\"message\":\"said \\\"a\\u000ab\\\\\\\"\"}\n"));
}

static void the_journal_gets_priorities_and_keeps_the_time_itself(void **state)
{
	const char *text;

	(void)state;
	rv_log_set_journal(true);
	rv_log_set_level(RV_LOG_DEBUG);
	capture_begin();
	rv_log_err("e");
	rv_log_warn("w");
	rv_log_info("i");
	rv_log_debug("d");
	assert_string_equal(capture_end(), "<3>e\n<4>w\n<6>i\n<7>d\n");
	rv_log_set_json(true);
	capture_begin();
	rv_log_warn("w");
	text = capture_end();
	assert_int_equal(strncmp(text, "<4>{\"time\":\"", 12), 0);
}

static void the_journal_is_known_by_its_stream(void **state)
{
	char stream[64];
	struct stat st;

	(void)state;
	unsetenv("JOURNAL_STREAM");
	assert_false(rv_log_is_journal());
	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	assert_true(rv_log_is_journal());
	strcat(stream, "0"); /* stderr was sent elsewhere */
	setenv("JOURNAL_STREAM", stream, 1);
	assert_false(rv_log_is_journal());
	setenv("JOURNAL_STREAM", "no:1", 1);
	assert_false(rv_log_is_journal());
}

/* Twice as many as allowed from one place, all within one second of the clock. */
static const char *burst(void)
{
	for (;;) {
		time_t second = time(NULL);

		capture_begin();
		for (int i = 0; i < 2 * RV_LOG_BURST; i++)
			rv_log_err("again");
		capture_end();
		if (time(NULL) == second)
			return captured;
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
}

static void a_place_that_repeats_itself_goes_quiet(void **state)
{
	(void)state;
	assert_int_equal(lines(burst()), RV_LOG_BURST);
}

static void logging_keeps_errno_and_knows_its_text(void **state)
{
	const char *text;

	(void)state;
	capture_begin();
	errno = ENOSPC;
	rv_log_err("failed: %m");
	assert_int_equal(errno, ENOSPC);
	text = capture_end();
	assert_non_null(strstr(text, "failed: No space left on device\n"));
}

static void a_long_message_is_cut_to_one_line(void **state)
{
	static char longest[4000];
	const char *text;

	(void)state;
	memset(longest, '\n', sizeof(longest) - 1);
	capture_begin();
	rv_log_err("%s", longest);
	text = capture_end();
	assert_int_equal(lines(text), 1);
	assert_true(strlen(text) < 2300);
}

static void level_words_are_known(void **state)
{
	enum rv_log_level level;

	(void)state;
	for (int i = RV_LOG_ERROR; i <= RV_LOG_DEBUG; i++) {
		assert_true(rv_log_level_parse(rv_log_level_name((enum rv_log_level)i), &level));
		assert_int_equal(level, i);
	}
	assert_false(rv_log_level_parse("trace", &level));
	assert_false(rv_log_level_parse("", &level));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_line_has_time_level_and_text, restore),
		cmocka_unit_test_teardown(lines_over_the_level_are_not_written, restore),
		cmocka_unit_test_teardown(a_message_cannot_forge_a_line, restore),
		cmocka_unit_test_teardown(json_lines_are_one_escaped_object, restore),
		cmocka_unit_test_teardown(the_journal_gets_priorities_and_keeps_the_time_itself,
					  restore),
		cmocka_unit_test_teardown(the_journal_is_known_by_its_stream, restore),
		cmocka_unit_test_teardown(a_place_that_repeats_itself_goes_quiet, restore),
		cmocka_unit_test_teardown(logging_keeps_errno_and_knows_its_text, restore),
		cmocka_unit_test_teardown(a_long_message_is_cut_to_one_line, restore),
		cmocka_unit_test_teardown(level_words_are_known, restore),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
