/*
 * eal_log.h - DPDK's own log lines join ours: its errors and warnings as such, the rest as debug.
 */
#ifndef RV_DATAPLANE_LCORE_EAL_LOG_H
#define RV_DATAPLANE_LCORE_EAL_LOG_H

/** Before EAL starts; for as long as the process lives. @thread init */
void rv_eal_log_join(void);

/** The --log-level that EAL is to start with: no more than somebody listens to. @thread init */
const char *rv_eal_log_level(void);

#endif
