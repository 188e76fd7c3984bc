/*
 * metrics_http.h - a small web server for dashboards and probes, on a thread of its own.
 *
 *   GET /metrics   200, Prometheus text 0.0.4
 *   GET /health    200 as long as the process serves
 *   GET /ready     200, or 503 while starting or draining
 *
 * Anything else is 404, any other method 405.
 */
#ifndef RV_CONTROL_SERVICE_METRICS_HTTP_H
#define RV_CONTROL_SERVICE_METRICS_HTTP_H

#include <stdint.h>

#include "control/service/metrics.h"

struct rv_metrics_http;

/**
 * Listen and serve.
 *
 * @param m     filled in; stays valid until rv_metrics_http_stop()
 * @param host  an IP literal
 * @param port  where to listen, 0 for any free one; on success the real one
 * @param[out] out  the server
 * @return 0 or a negative errno: -EADDRINUSE, -EACCES, -EINVAL (no IP literal), -ENOMEM
 *
 * @thread init   @owns the caller ends it with rv_metrics_http_stop()
 */
int rv_metrics_http_start(struct rv_metrics *m, const char *host, uint16_t *port,
			  struct rv_metrics_http **out);

/** Close every connection and end the thread; NULL is fine. @thread the one that started it */
void rv_metrics_http_stop(struct rv_metrics_http *h);

#endif
