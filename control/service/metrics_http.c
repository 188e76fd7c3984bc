#include "control/service/metrics_http.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <microhttpd.h>

#include "control/uring/listener.h"

#define CONNECTIONS_MAX   64u
#define CONNECTION_IDLE_S 10u
#define CONNECTION_MEMORY 16384u
#define TEXT_PLAIN        "text/plain; charset=utf-8"
#define TEXT_EXPOSITION   "text/plain; version=0.0.4; charset=utf-8"

struct rv_metrics_http {
	struct MHD_Daemon *daemon;
	struct rv_metrics *metrics;
};

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, struct MHD_Response *r,
			      const char *type)
{
	enum MHD_Result rc;

	if (!r)
		return MHD_NO;
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET");
	rc = MHD_queue_response(c, status, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned status, const char *text)
{
	return answer(c, status,
		      MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text,
						      MHD_RESPMEM_PERSISTENT),
		      TEXT_PLAIN);
}

static enum MHD_Result serve_metrics(struct rv_metrics_http *h, struct MHD_Connection *c)
{
	struct MHD_Response *r;
	size_t len;
	char *text = rv_metrics_render(h->metrics, &len);

	if (!text)
		return say(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
	r = MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE);
	if (!r)
		free(text);
	return answer(c, MHD_HTTP_OK, r, TEXT_EXPOSITION);
}

static enum MHD_Result route(void *user, struct MHD_Connection *c, const char *url,
			     const char *method, const char *version, const char *body,
			     size_t *body_len, void **state)
{
	static int seen;
	struct rv_metrics_http *h = user;

	(void)version;
	(void)body;
	/* The first call has only the head of the request; what a body brings is not looked at. */
	if (!*state) {
		*state = &seen;
		return MHD_YES;
	}
	if (*body_len) {
		*body_len = 0;
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
		return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
	if (strcmp(url, "/metrics") == 0)
		return serve_metrics(h, c);
	if (strcmp(url, "/health") == 0)
		return say(c, MHD_HTTP_OK, "ok\n");
	if (strcmp(url, "/ready") == 0 && rv_metrics_ready(h->metrics))
		return say(c, MHD_HTTP_OK, "ready\n");
	if (strcmp(url, "/ready") == 0)
		return say(c, MHD_HTTP_SERVICE_UNAVAILABLE, "not ready\n");
	return say(c, MHD_HTTP_NOT_FOUND, "there are /metrics, /health and /ready\n");
}

/* Signals are for the daemon's own threads. */
static struct MHD_Daemon *start_quiet(struct rv_metrics_http *h, int fd)
{
	struct MHD_Daemon *d;
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	d = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, 0, NULL, NULL, route,
			     h, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
			     CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_IDLE_S,
			     MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
			     MHD_OPTION_END);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return d;
}

int rv_metrics_http_start(struct rv_metrics *m, const char *host, uint16_t *port,
			  struct rv_metrics_http **out)
{
	struct rv_metrics_http *h;
	uint16_t real = *port;
	int fd;

	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	h->metrics = m;
	fd = rv_listen_tcp(host, &real);
	if (fd < 0) {
		free(h);
		return fd;
	}
	h->daemon = start_quiet(h, fd);
	if (!h->daemon) {
		close(fd);
		free(h);
		return -ENOMEM;
	}
	*port = real;
	*out = h;
	return 0;
}

void rv_metrics_http_stop(struct rv_metrics_http *h)
{
	if (!h)
		return;
	MHD_stop_daemon(h->daemon); /* closes the listening socket as well */
	free(h);
}
