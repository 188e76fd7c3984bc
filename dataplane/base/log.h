/*
 * log.h - one line a cause, to stderr, from any thread.
 *
 * error needs a person, warn is odd but served, info is lifecycle, debug per object. Text:
 *
 *   2026-01-02T03:04:05.678Z info  tcp: listening on 127.0.0.1:7471
 *
 * or, with `log.format = json`, one JSON object a line. A call site that fires more than RV_LOG_BURST
 * times a second is quiet for the rest of that second; the next line tells how many were suppressed.
 */
#ifndef RV_DATAPLANE_BASE_LOG_H
#define RV_DATAPLANE_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum rv_log_level { RV_LOG_ERROR, RV_LOG_WARN, RV_LOG_INFO, RV_LOG_DEBUG };

#define RV_LOG_BURST 10

/** What a call site remembers between its lines. */
struct rv_log_site {
	_Atomic uint64_t window; /* the second it counts in */
	_Atomic uint32_t fired;
};

/** @thread any */
void rv_log_set_level(enum rv_log_level level);
enum rv_log_level rv_log_get_level(void);

/** JSON lines instead of text. @thread any */
void rv_log_set_json(bool on);

/**
 * stderr is systemd's journal, which keeps the time itself and takes the priority from the line's start: "<4>tcp: ..."
 *
 * @thread any
 */
void rv_log_set_journal(bool on);

/** Does JOURNAL_STREAM name what stderr is? @thread init @cost one fstat(2) */
bool rv_log_is_journal(void);

/** "error", "warn", "info", "debug" to a level; false for any other word. @thread any */
bool rv_log_level_parse(const char *word, enum rv_log_level *level);
const char *rv_log_level_name(enum rv_log_level level);

/** Write one line; use the macros. @thread any @cost one write(2) */
void rv_log_write(struct rv_log_site *site, enum rv_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

extern _Atomic int rv_log_threshold;

#define RV_LOG_AT(level, ...)                                                                      \
	do {                                                                                       \
		static struct rv_log_site rv_log_site_;                                            \
		if ((int)(level) <= atomic_load_explicit(&rv_log_threshold, memory_order_relaxed)) \
			rv_log_write(&rv_log_site_, level, __VA_ARGS__);                           \
	} while (0)

#define rv_log_err(...)   RV_LOG_AT(RV_LOG_ERROR, __VA_ARGS__)
#define rv_log_warn(...)  RV_LOG_AT(RV_LOG_WARN, __VA_ARGS__)
#define rv_log_info(...)  RV_LOG_AT(RV_LOG_INFO, __VA_ARGS__)
#define rv_log_debug(...) RV_LOG_AT(RV_LOG_DEBUG, __VA_ARGS__)

#endif
