#include "dataplane/lcore/eal_log.h"

#include <stdio.h>
#include <sys/types.h>

#include <rte_log.h>

#include "dataplane/base/log.h"

static enum rv_log_level our_level(int theirs)
{
	if (theirs <= (int)RTE_LOG_ERR)
		return RV_LOG_ERROR;
	return theirs == (int)RTE_LOG_WARNING ? RV_LOG_WARN : RV_LOG_DEBUG;
}

/* DPDK flushes behind each message: one call is one. */
static ssize_t take(void *cookie, const char *buf, size_t size)
{
	static struct rv_log_site site[RV_LOG_DEBUG + 1];
	enum rv_log_level ours = our_level(rte_log_cur_msg_loglevel());
	size_t len = size;

	(void)cookie;
	while (len && (buf[len - 1] == '\n' || buf[len - 1] == ' '))
		len--;
	if (len && ours <= rv_log_get_level())
		rv_log_write(&site[ours], ours, "dpdk: %.*s", (int)len, buf);
	return (ssize_t)size;
}

void rv_eal_log_join(void)
{
	static FILE *stream;

	if (stream)
		return;
	stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = take});
	if (stream)
		rte_openlog_stream(stream);
}

const char *rv_eal_log_level(void)
{
	return rv_log_get_level() >= RV_LOG_DEBUG ? "lib.*:info" : "lib.*:error";
}
