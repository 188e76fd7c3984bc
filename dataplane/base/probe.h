/*
 * probe.h - places at which bpftrace, perf, SystemTap or gdb may watch a running daemon: USDT probes of provider `rvd`.
 *
 *   stage -----> acquire -----> release            owner: a slot, the leases on it, how each of them ends
 *                        '----> reap
 *   get__start -----> get__end                     consumer
 *
 * Unwatched, a probe is one no-op instruction: its arguments are values at hand, nothing is computed for it. Its name
 * and its arguments, in the order of the function's, are promises like the names of metrics; scripts/trace-*.bt use
 * them. Ids are those of `rvctl slots` and `rvctl leases`: a handle is its owner's worker and its slot.
 *
 * Where <sys/sdt.h> (package systemtap-sdt-dev) is missing at build time there are no probes.
 *
 * @thread owning reactor, all of it   @cost one instruction
 */
#ifndef RV_DATAPLANE_BASE_PROBE_H
#define RV_DATAPLANE_BASE_PROBE_H

#include <stdint.h>

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define RV_PROBE3(name, a, b, c)    STAP_PROBE3(rvd, name, a, b, c)
#define RV_PROBE4(name, a, b, c, d) STAP_PROBE4(rvd, name, a, b, c, d)
#else
#define RV_PROBE3(name, a, b, c)    ((void)(a), (void)(b), (void)(c))
#define RV_PROBE4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#endif

/** What `acquire` says of a lease for this node itself, where nothing is decided. */
#define RV_PROBE_LOCAL (-1)

/** How a lease ended, for `release`. */
enum rv_probe_end {
	RV_PROBE_DETACHED,  /* by its consumer: the slot keeps its reference */
	RV_PROBE_RELEASED,  /* by its consumer, with a reference */
	RV_PROBE_SLOT_OVER, /* by the owner: dropped, its time to live, its memory, a shutdown */
};

/** rvd:stage(slot, bytes, pinned): a slot can be fetched; @pinned 1: its bytes are in registered memory. */
static inline void rv_probe_stage(uint64_t slot, uint64_t bytes, int pinned)
{
	RV_PROBE3(stage, slot, bytes, pinned);
}

/**
 * rvd:acquire(slot, worker, reason, lease): a consumer is granted a lease.
 *
 * @param reason  enum rv_path_reason: 0 by RDMA, else why in chunks; or RV_PROBE_LOCAL
 */
static inline void rv_probe_acquire(uint64_t slot, uint64_t worker, int reason, uint64_t lease)
{
	RV_PROBE4(acquire, slot, worker, reason, lease);
}

/**
 * rvd:release(lease, slot, worker, how): a lease ended.
 *
 * One whose slot went while its key was made was never granted: it ends here without an `acquire`.
 *
 * @param how  enum rv_probe_end
 */
static inline void rv_probe_release(uint64_t lease, uint64_t slot, uint64_t worker, int how)
{
	RV_PROBE4(release, lease, slot, worker, how);
}

/** rvd:reap(lease, slot, worker): a lease ended at its deadline, its consumer went silent. */
static inline void rv_probe_reap(uint64_t lease, uint64_t slot, uint64_t worker)
{
	RV_PROBE3(reap, lease, slot, worker);
}

/**
 * rvd:get__start(worker, bytes, backend): the bytes of a get begin to move.
 *
 * Not fired where none move (refused, empty, shown where they are), and once more where RDMA failed and chunks follow.
 *
 * @param worker   the owner
 * @param backend  enum rv_backend; 0: chunks, or a copy on this node
 */
static inline void rv_probe_get_start(uint64_t worker, uint64_t bytes, unsigned backend)
{
	RV_PROBE3(get__start, worker, bytes, backend);
}

/**
 * rvd:get__end(worker, bytes, rc, ns): a get is answered, each once.
 *
 * @param bytes  the payload's length; 0 also where it did not become known
 * @param rc     0 or a negative errno
 * @param ns     since the get was asked for: the acquire and the waiting are in it; 0 where one pass did it all
 */
static inline void rv_probe_get_end(uint64_t worker, uint64_t bytes, int rc, uint64_t ns)
{
	RV_PROBE4(get__end, worker, bytes, rc, ns);
}

#endif
