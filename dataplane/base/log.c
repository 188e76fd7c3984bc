#include "dataplane/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* relaxed throughout: a level or format that takes effect a line later is as good. */
_Atomic int rv_log_threshold = RV_LOG_INFO;
static _Atomic bool log_json, log_journal;

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const int priorities[] = {3, 4, 6, 7}; /* syslog's */

void rv_log_set_level(enum rv_log_level level)
{
	atomic_store_explicit(&rv_log_threshold, (int)level, memory_order_relaxed);
}

enum rv_log_level rv_log_get_level(void)
{
	return (enum rv_log_level)atomic_load_explicit(&rv_log_threshold, memory_order_relaxed);
}

void rv_log_set_json(bool on)
{
	atomic_store_explicit(&log_json, on, memory_order_relaxed);
}

void rv_log_set_journal(bool on)
{
	atomic_store_explicit(&log_journal, on, memory_order_relaxed);
}

bool rv_log_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;
	int end = 0;

	return stream && sscanf(stream, "%llu:%llu%n", &dev, &ino, &end) == 2 && !stream[end] &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

bool rv_log_level_parse(const char *word, enum rv_log_level *level)
{
	for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
		if (strcmp(word, level_names[i]) == 0) {
			*level = (enum rv_log_level)i;
			return true;
		}
	}
	return false;
}

const char *rv_log_level_name(enum rv_log_level level)
{
	return level_names[level];
}

/* True if the line may go out; *dropped is what was suppressed before it. */
static bool site_admit(struct rv_log_site *site, uint64_t second, uint32_t *dropped)
{
	uint64_t was = atomic_load_explicit(&site->window, memory_order_relaxed);
	uint32_t fired;

	*dropped = 0;
	if (was != second &&
	    atomic_compare_exchange_strong_explicit(&site->window, &was, second,
						    memory_order_relaxed, memory_order_relaxed)) {
		fired = atomic_exchange_explicit(&site->fired, 1, memory_order_relaxed);
		if (fired > RV_LOG_BURST)
			*dropped = fired - RV_LOG_BURST;
		return true;
	}
	fired = atomic_fetch_add_explicit(&site->fired, 1, memory_order_relaxed);
	return fired < RV_LOG_BURST;
}

/* Control characters and quotes cannot break the line or forge another one. */
static size_t put_escaped(char *out, size_t cap, const char *s, bool json)
{
	size_t n = 0;

	for (; *s && n + 7 < cap; s++) {
		unsigned char ch = (unsigned char)*s;

		if (json && (ch == '"' || ch == '\\')) {
			out[n++] = '\\';
			out[n++] = (char)ch;
		} else if (ch < 0x20 || ch == 0x7f) {
			n += (size_t)snprintf(out + n, cap - n, json ? "\\u%04x" : "\\x%02x", ch);
		} else {
			out[n++] = (char)ch;
		}
	}
	return n;
}

/* Priority, time and level, as far as the reader wants them. @return at most 128 */
static size_t put_start(char *line, enum rv_log_level level, const struct timespec *ts, bool json)
{
	bool journal = atomic_load_explicit(&log_journal, memory_order_relaxed);
	struct tm tm;
	size_t n = 0;

	if (journal)
		n = (size_t)snprintf(line, 8, "<%d>", priorities[level]);
	if (journal && !json)
		return n;
	gmtime_r(&ts->tv_sec, &tm);
	n += strftime(line + n, 64, json ? "{\"time\":\"%Y-%m-%dT%H:%M:%S" : "%Y-%m-%dT%H:%M:%S",
		      &tm);
	n += (size_t)snprintf(line + n, 64,
			      json ? ".%03ldZ\",\"level\":\"%s\",\"message\":\"" : ".%03ldZ %-5s ",
			      ts->tv_nsec / 1000000, level_names[level]);
	return n;
}

void rv_log_write(struct rv_log_site *site, enum rv_log_level level, const char *fmt, ...)
{
	int saved = errno;
	bool json = atomic_load_explicit(&log_json, memory_order_relaxed);
	char msg[1024], line[2300];
	struct timespec ts;
	uint32_t dropped;
	size_t n;
	va_list ap;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (!site_admit(site, (uint64_t)ts.tv_sec, &dropped))
		return;

	errno = saved; /* for %m */
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);

	n = put_start(line, level, &ts, json);
	n += put_escaped(line + n, sizeof(line) - n - 80, msg, json);
	if (dropped)
		n += (size_t)snprintf(line + n, 64, " (%u repeats suppressed)", dropped);
	n += (size_t)snprintf(line + n, 8, json ? "\"}\n" : "\n");
	if (write(STDERR_FILENO, line, n) < 0) {
		/* Nobody is left to tell. */
	}
	errno = saved;
}
