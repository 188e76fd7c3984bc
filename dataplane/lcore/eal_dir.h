/*
 * eal_dir.h - where EAL's telemetry socket is: <runtime_dir>/dpdk/rvd/dpdk_telemetry.v2, this user's alone.
 *
 *   make --> enter --rte_eal_init()--> leave --> at exit: EAL removes the socket, then we the directories
 *
 * EAL chooses its directory by the environment, makes its socket anew over one that nobody listens on (of a process
 * that was killed), and takes another name, with ":1", beside one that is in use. eal.c alone calls this.
 *
 * @thread init, while no other thread reads the environment
 */
#ifndef RV_DATAPLANE_LCORE_EAL_DIR_H
#define RV_DATAPLANE_LCORE_EAL_DIR_H

/** EAL's file prefix. */
#define RV_EAL_DIR_PREFIX "rvd"

/** Make the directory and see whether a socket can be in it: EAL would not start without. @return 0 or a negative errno */
int rv_eal_dir_make(const char *runtime_dir);

/** Have EAL find it; afterwards put the environment back, and find out which name EAL chose. */
void rv_eal_dir_enter(const char *runtime_dir);
void rv_eal_dir_leave(void);

/** The socket, or NULL where no directory was made. @thread any, after leaving */
const char *rv_eal_dir_socket(void);

#endif
