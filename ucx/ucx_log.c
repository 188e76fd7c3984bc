#include "ucx/ucx_log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* That header is written for gnu11. */
#define asm __asm__
#include <ucs/debug/log_def.h>
#undef asm

#include "dataplane/base/log.h"

#define LINE_MAX_BYTES 512

/* relaxed: only how loud a line is depends on it. */
static _Atomic bool hushed;

/*
 * What UCX calls an error is mostly a peer's doing (refused connections, keys): that needs no person, and
 * where it does, the function that was let down says so. Its pools report every request that a broken
 * connection left behind, one line each.
 */
static enum rv_log_level our_level(const char *file, ucs_log_level_t level)
{
	if (level == UCS_LOG_LEVEL_FATAL)
		return RV_LOG_ERROR;
	if (level > UCS_LOG_LEVEL_WARN || strstr(file, "mpool.c"))
		return RV_LOG_DEBUG;
	return atomic_load_explicit(&hushed, memory_order_relaxed) ? RV_LOG_DEBUG : RV_LOG_WARN;
}

static ucs_log_func_rc_t to_our_log(const char *file, unsigned line, const char *function,
				    ucs_log_level_t level,
				    const ucs_log_component_config_t *component, const char *fmt,
				    va_list ap)
{
	static struct rv_log_site site[RV_LOG_DEBUG + 1];
	enum rv_log_level ours = our_level(file, level);
	char text[LINE_MAX_BYTES];

	if (ours > rv_log_get_level())
		return UCS_LOG_FUNC_RC_STOP;
	vsnprintf(text, sizeof(text), fmt, ap);
	rv_log_write(&site[ours], ours, "ucx: %s", text);
	return UCS_LOG_FUNC_RC_STOP;
}

void rv_ucx_log_capture(void)
{
	static bool captured;

	if (!captured)
		ucs_log_push_handler(to_our_log);
	captured = true;
}

void rv_ucx_log_hush(bool on)
{
	atomic_store_explicit(&hushed, on, memory_order_relaxed);
}
