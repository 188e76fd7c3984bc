#include "tools/bench_serve.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "tools/bench_end.h"
#include "tools/bench_math.h"

struct staged {
	struct staged *next;
	struct rv_handle handle;
	uint64_t kept_ns;
};

struct server {
	struct rv_bench_end end;
	struct rv_client *c;
	pthread_mutex_t lock; /* of the list: the library's thread answers, the main one sweeps */
	struct staged *staged;
};

static int answer(struct rv_answer *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int answer(struct rv_answer *a, const char *fmt, ...)
{
	char line[RV_BENCH_LINE];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	a->data = strdup(line);
	a->len = a->data ? strlen(line) : 0;
	return a->data ? 0 : -ENOMEM;
}

static int refuse(struct rv_answer *a, const char *step, const char *why)
{
	snprintf(a->error, sizeof(a->error), "server: %s: %s", step, why);
	return -1;
}

/* ---- slots ---- */

static void drop_all(struct server *s, struct staged *list)
{
	while (list) {
		struct staged *next = list->next;

		rv_drop(s->c, list->handle); /* gone already: so much the better */
		free(list);
		list = next;
	}
}

/* Take those off the list that were not kept since @before_ns. */
static struct staged *take_older(struct server *s, uint64_t before_ns)
{
	struct staged *old = NULL;

	pthread_mutex_lock(&s->lock);
	for (struct staged **p = &s->staged; *p;) {
		struct staged *it = *p;

		if (it->kept_ns >= before_ns) {
			p = &it->next;
			continue;
		}
		*p = it->next;
		it->next = old;
		old = it;
	}
	pthread_mutex_unlock(&s->lock);
	return old;
}

static struct staged **find(struct server *s, struct rv_handle h)
{
	struct staged **p = &s->staged;

	while (*p && ((*p)->handle.worker != h.worker || (*p)->handle.local != h.local))
		p = &(*p)->next;
	return p;
}

static int fill_pinned(struct server *s, uint64_t len, uint64_t seed, struct rv_handle *h,
		       struct rv_how *how)
{
	struct rv_opts opts = {.session = true, .how = how};
	struct rv_buf buf;
	int rc = rv_alloc_pinned(s->c, len, &buf);

	if (rc)
		return rc;
	rv_bench_pattern(buf.data, len, seed);
	rc = rv_register_pinned(s->c, &buf, &opts, h);
	if (rc)
		rv_buf_free(&buf);
	return rc;
}

static int fill_plain(struct server *s, uint64_t len, uint64_t seed, struct rv_handle *h,
		      struct rv_how *how)
{
	struct rv_opts opts = {.session = true, .how = how};
	void *data = malloc(len);
	int rc;

	if (!data)
		return -ENOMEM;
	rv_bench_pattern(data, len, seed);
	rc = rv_register_data(s->c, data, len, &opts, h);
	free(data);
	return rc;
}

static int stage(struct server *s, const char *args, struct rv_answer *a)
{
	struct staged *it;
	struct rv_how how = {0};
	uint64_t len, seed;
	char kind[16], text[RV_HANDLE_TEXT_MAX];
	int rc;

	if (sscanf(args, "%" SCNu64 " %" SCNu64 " %15s", &len, &seed, kind) != 3 || !len)
		return refuse(a, "stage", "what is asked for cannot be read");
	it = calloc(1, sizeof(*it));
	if (!it)
		return refuse(a, "stage", "out of memory");
	rc = strcmp(kind, "plain") == 0 ? fill_plain(s, len, seed, &it->handle, &how)
					: fill_pinned(s, len, seed, &it->handle, &how);
	if (rc) {
		free(it);
		return refuse(a, "stage", rc == -ENOMEM ? "out of memory" : rv_last_error());
	}
	it->kept_ns = rv_clock_ns();
	pthread_mutex_lock(&s->lock);
	it->next = s->staged;
	s->staged = it;
	pthread_mutex_unlock(&s->lock);
	rv_handle_format(it->handle, text, sizeof(text));
	return answer(a, "%s %s", text, how.pinned ? "pinned" : "plain");
}

static int keep(struct server *s, const char *args, struct rv_answer *a)
{
	struct rv_handle h;
	struct staged *it;

	if (rv_handle_parse(args, &h))
		return refuse(a, "keep", "no handle");
	pthread_mutex_lock(&s->lock);
	it = *find(s, h);
	if (it)
		it->kept_ns = rv_clock_ns();
	pthread_mutex_unlock(&s->lock);
	return it ? answer(a, "kept") : refuse(a, "keep", "the slot was dropped");
}

static int drop(struct server *s, const char *args, struct rv_answer *a)
{
	struct rv_handle h;
	struct staged **p, *it;

	if (rv_handle_parse(args, &h))
		return refuse(a, "drop", "no handle");
	pthread_mutex_lock(&s->lock);
	p = find(s, h);
	it = *p;
	if (it) {
		*p = it->next;
		it->next = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	drop_all(s, it);
	return answer(a, "dropped");
}

static int serve(void *user, const struct rv_request *rq, struct rv_answer *a)
{
	struct server *s = user;
	const struct rv_bench_end *e = &s->end;
	char line[RV_BENCH_LINE];

	if (!rq->len || rq->len >= sizeof(line))
		return refuse(a, "request", "it is too long");
	memcpy(line, rq->data, rq->len);
	line[rq->len] = '\0';
	if (!strcmp(line, "hello"))
		return answer(a, "%s %s %s", e->boot[0] ? e->boot : "-",
			      e->version[0] ? e->version : "-", e->fabric);
	if (!strncmp(line, "stage ", 6))
		return stage(s, line + 6, a);
	if (!strncmp(line, "keep ", 5))
		return keep(s, line + 5, a);
	if (!strncmp(line, "drop ", 5))
		return drop(s, line + 5, a);
	return refuse(a, "request", "no such request: both ends must be of one version");
}

/* ---- until stopped ---- */

static void announce(const struct server *s)
{
	const struct rv_bench_end *e = &s->end;

	printf("%s: serving on port %u, RDMA by %s", rv_bench_prog(e->o->kind), e->port,
	       e->fabric[0] ? e->fabric : "nothing: gets go in chunks");
	if (strncmp(e->fabric, "ucx", 3) == 0 && e->version[0])
		printf(", UCX %s", e->version);
	else if (strncmp(e->fabric, "verbs", 5) == 0)
		printf(", %s", e->verbs);
	printf("\n");
	if (e->emulated)
		printf("UCX over tcp: GETs are software at this end, and any peer that reaches this process can read "
		       "and write it\n");
	fflush(stdout);
}

static int wait_for_end(struct server *s, const sigset_t *ends)
{
	struct timespec second = {.tv_sec = 1};
	char *text;

	while (sigtimedwait(ends, NULL, &second) < 0) {
		uint64_t now = rv_clock_ns();

		if (now > RV_BENCH_KEEP_NS)
			drop_all(s, take_older(s, now - RV_BENCH_KEEP_NS));
		if (!s->end.o->socket)
			continue;
		/* A daemon may go away under us. */
		if (rv_list(s->c, RV_TABLE_STATUS, &text, NULL))
			return rv_bench_fail(s->end.o, "serve: %s", rv_last_error());
		rv_free(text);
	}
	return 0;
}

int rv_bench_serve(const struct rv_bench_opts *o)
{
	struct server s = {.lock = PTHREAD_MUTEX_INITIALIZER};
	sigset_t ends;
	int rc, stopped;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	/* Before any thread is made, so that all inherit it. */
	sigprocmask(SIG_BLOCK, &ends, NULL);
	rc = rv_bench_end_start(&s.end, o, 1);
	if (rc)
		return rc;
	s.c = s.end.session[0];
	rc = rv_handle_serve(s.c, RV_BENCH_HANDLER, serve, &s);
	if (rc)
		rc = rv_bench_fail(o, "serve %s: %s", RV_BENCH_HANDLER,
				   rc == -EEXIST ? "another bench serves there already"
						 : rv_last_error());
	if (!rc) {
		announce(&s);
		rc = wait_for_end(&s, &ends);
		rv_handle_unserve(s.c, RV_BENCH_HANDLER);
	}
	drop_all(&s, take_older(&s, UINT64_MAX));
	stopped = rv_bench_end_stop(&s.end);
	return rc ? rc : stopped;
}
