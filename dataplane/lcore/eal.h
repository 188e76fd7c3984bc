/*
 * eal.h - DPDK's environment for our reactors: named lcore threads, pinned or not.
 *
 * EAL is started once in a process, without PCI and without huge pages of its own, and pins whoever calls
 * it; the caller's affinity is put back. Reactors are EAL lcores, so DPDK's libraries know them. EAL's own threads
 * keep off the CPUs that reactors are pinned to, where there are others.
 */
#ifndef RV_DATAPLANE_LCORE_EAL_H
#define RV_DATAPLANE_LCORE_EAL_H

#include <stdbool.h>

#define RV_EAL_CPU_ANY (-1)

/**
 * Start EAL with one lcore for each of @nr reactors.
 *
 * @param cpu  CPU of each, or RV_EAL_CPU_ANY: all CPUs this process may use
 * @param runtime_dir  a directory that is there, in which EAL's telemetry (telemetry.h) is to have its socket; NULL:
 *                     no telemetry. Where it cannot have one a warning says why, and EAL starts without
 * @return 0; -EBUSY if this process started EAL before; -ENXIO: sysfs, which has the CPUs, is not mounted; -EIO if EAL
 *         refuses (its own log says why)
 * @thread init, while no other thread reads the environment   @cost 0.15 to 0.4 s
 */
int rv_eal_start(const int *cpu, unsigned nr, const char *runtime_dir);

/** The telemetry socket, or NULL where there is none. @thread any, after rv_eal_start() */
const char *rv_eal_telemetry_socket(void);

/** Run @fn(@arg) on reactor lcore @i of rv_eal_start(). @return 0 or -EBUSY. @thread init */
int rv_eal_launch(unsigned i, const char *name, void (*fn)(void *), void *arg);

/** Wait until lcore @i has returned. @thread the one that started EAL */
void rv_eal_join(unsigned i);

/** DPDK's version text. */
const char *rv_eal_version(void);

#endif
