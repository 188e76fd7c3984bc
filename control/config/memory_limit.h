/*
 * memory_limit.h - what the control groups of this process let it have, version 1 or 2: the least of all groups up to the
 * root counts.
 *
 * @thread any   @cost reads a few small files
 */
#ifndef RV_CONTROL_CONFIG_MEMORY_LIMIT_H
#define RV_CONTROL_CONFIG_MEMORY_LIMIT_H

#include <stdint.h>

/** Bytes of memory that this process may use: the machine's, or a group's limit where that is less. */
uint64_t rv_memory_limit(void);

/**
 * Bytes that can still be allocated before a group has used 90 % of its limit; beyond that the kernel soon looks for
 * somebody to kill. Pages of files that nobody uses do not count: they go when they are in the way.
 *
 * @return RV_NEVER where there is no limit
 */
uint64_t rv_memory_room(void);

/** Both with files elsewhere: @list as /proc/self/cgroup, @root as /sys/fs/cgroup. The machine's own memory is no part. */
uint64_t rv_memory_limit_at(const char *list, const char *root);
uint64_t rv_memory_room_at(const char *list, const char *root);

#endif
