/*
 * bench_serve.h - the server end: it stages what clients ask for, until it is stopped.
 *
 * Clients call the handler `rvd.bench` with one line of text, and get one back:
 *
 *   hello                         -> BOOT_ID UCX_VERSION|- FABRIC...       who this is
 *   stage LEN SEED pinned|plain   -> HANDLE pinned|plain                   a slot with rv_bench_pattern()
 *   keep HANDLE                   -> kept                                  it is still being read
 *   drop HANDLE                   -> dropped
 *
 * A slot that nobody has kept for RV_BENCH_KEEP_NS is dropped: its client is gone.
 */
#ifndef RV_TOOLS_BENCH_SERVE_H
#define RV_TOOLS_BENCH_SERVE_H

#include "dataplane/base/units.h"
#include "tools/bench_opt.h"

#define RV_BENCH_HANDLER "rvd.bench"
#define RV_BENCH_KEEP_NS RV_SEC(60)

/** Longest request or answer. */
#define RV_BENCH_LINE 256

/** Serve until SIGTERM or SIGINT. @return the exit code */
int rv_bench_serve(const struct rv_bench_opts *o);

#endif
