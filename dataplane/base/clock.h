/*
 * clock.h - monotonic nanoseconds, and random numbers from the kernel.
 *
 * State machines never call these: time comes in as an argument, so that tests and the simulator own it.
 */
#ifndef RV_DATAPLANE_BASE_CLOCK_H
#define RV_DATAPLANE_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/** CLOCK_MONOTONIC in nanoseconds. @thread any @cost about 25 ns, no system call */
uint64_t rv_clock_ns(void);

/** Fill @len bytes from the kernel's generator; never fails (aborts if the kernel has none). @thread any */
void rv_random_bytes(void *buf, size_t len);

/** A random non-zero 64-bit number. @thread any @cost one system call */
uint64_t rv_random_u64(void);

#endif
