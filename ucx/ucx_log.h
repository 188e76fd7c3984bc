/*
 * ucx_log.h - UCX's own messages, in our log instead of on stdout.
 */
#ifndef RV_UCX_UCX_LOG_H
#define RV_UCX_UCX_LOG_H

#include <stdbool.h>

/** Take over UCX's messages for the rest of the process; a second call does nothing. @thread init */
void rv_ucx_log_capture(void);

/** While set, UCX's complaints are debug lines: they are expected, and the caller says it better. @thread init */
void rv_ucx_log_hush(bool on);

#endif
