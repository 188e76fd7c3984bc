/*
 * metrics.h - everything the node counts, as Prometheus text (exposition format 0.0.4).
 *
 *   engines, registrar, messenger, carrier, reactors --counters--> rv_metrics_render() --> text
 *
 * All values are read when somebody scrapes; nothing is kept here but the last look at each
 * core's busy time. Only counters are read: lists and tables belong to reactors, and this is
 * another thread.
 */
#ifndef RV_CONTROL_SERVICE_METRICS_H
#define RV_CONTROL_SERVICE_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/service/busy.h"
#include "dataplane/base/handle.h"

struct rv_engines;
struct rv_registrar;
struct rv_prompt;
struct rv_messenger;
struct rv_tcp_carrier;
struct rv_reactor;

/** Filled in once, before the first scrape; what it points to must outlive the last. */
struct rv_metrics {
	struct rv_engines *engines;
	struct rv_registrar *registrar;
	const struct rv_prompt *prompt;
	struct rv_messenger *messenger; /* NULL: nothing served yet */
	struct rv_tcp_carrier *tcp;
	const char *version, *ucx_version, *dpdk_version, *verbs_version;
	unsigned core_nr;
	struct rv_reactor *core[RV_MAX_REACTORS];

	_Atomic bool ready;                   /* what /ready answers */
	struct rv_busy busy[RV_MAX_REACTORS]; /* written by the scraping thread only */
};

/**
 * Say whether /ready answers 200 (serving) or 503 (starting, draining).
 *
 * @thread any   @cost O(1)
 */
void rv_metrics_set_ready(struct rv_metrics *m, bool ready);

/** What rv_metrics_set_ready() said last. @thread any */
bool rv_metrics_ready(const struct rv_metrics *m);

/**
 * Write all series.
 *
 * @param[out] len  length of the text, without its terminator
 * @return the text, the caller frees it; NULL without memory
 *
 * @thread one at a time, no reactor's   @cost O(series x reactors), some 10 us
 */
char *rv_metrics_render(struct rv_metrics *m, size_t *len);

#endif
