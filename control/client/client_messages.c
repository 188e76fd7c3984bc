#include "control/client/client_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/units.h"

#define RESULT_MAX (RV_LOCAL_PAYLOAD_MAX - 64u)

/* Serving. */

struct handler {
	struct rv_list link;
	char name[RV_LOCAL_NAME];
	rv_handler_fn *fn;
	void *user;
};

/* Under serve_lock. */
static struct handler *find(struct rv_client *c, const char *name)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &c->handlers)
	{
		struct handler *h = RV_LIST_ENTRY(it, struct handler, link);

		if (strcmp(h->name, name) == 0)
			return h;
	}
	return NULL;
}

static int run_handler(struct rv_client *c, const struct rv_wire_request *r, struct rv_answer *a)
{
	struct rv_request rq = {
		.sender = r->rep.worker,
		.data = r->arena ? (const uint8_t *)r->arena->base + r->rep.off
				 : (const uint8_t *)r->payload,
		.len = r->arena ? r->rep.len : r->payload_len,
		.wants_result = r->rep.path == RV_LOCAL_UNARY,
	};
	char name[sizeof(r->rep.path_name)];
	struct handler *h;
	int rc;

	snprintf(name, sizeof(name), "%.*s", (int)sizeof(name) - 1, r->rep.path_name);
	rq.handler = name;
	pthread_mutex_lock(&c->serve_lock);
	h = c->running = find(c, name);
	pthread_mutex_unlock(&c->serve_lock);
	if (!h) {
		snprintf(a->error, sizeof(a->error), "Handler '%s' not found", name);
		return -ENOENT;
	}
	rc = h->fn(h->user, &rq, a);
	pthread_mutex_lock(&c->serve_lock);
	c->running = NULL;
	pthread_cond_broadcast(&c->served);
	pthread_mutex_unlock(&c->serve_lock);
	return rc;
}

/* Off the list, and no call of it runs any more; one that unserves itself is past looking at its record. */
static void end_handler(struct rv_client *c, const char *name)
{
	struct handler *h;

	pthread_mutex_lock(&c->serve_lock);
	h = find(c, name);
	if (h)
		rv_list_del(&h->link);
	while (h && c->running == h && !pthread_equal(pthread_self(), c->server))
		pthread_cond_wait(&c->served, &c->serve_lock);
	pthread_mutex_unlock(&c->serve_lock);
	free(h);
}

static void serve(struct rv_client *c, const struct rv_wire_request *r)
{
	struct rv_answer a = {0};
	struct rv_local_req rq = {.token = r->rep.id};
	int rc = run_handler(c, r, &a);

	if (!rc && a.len > RESULT_MAX) {
		rc = -EMSGSIZE;
		snprintf(a.error, sizeof(a.error), "the result is longer than a frame");
	}
	if (rc) {
		a.error[sizeof(a.error) - 1] = '\0';
		rq.flags = RV_LOCAL_FAILED;
		if (!a.error[0])
			snprintf(a.error, sizeof(a.error), "the handler failed: %d", rc);
	}
	if (r->rep.id)
		rv_wire_send_oneway(&c->wire, RV_LOCAL_ANSWER, &rq, rc ? a.error : a.data,
				    rc ? strlen(a.error) : a.len);
	free(a.data);
}

static void *serve_loop(void *arg)
{
	struct rv_client *c = arg;
	struct rv_wire_request *r;

	while ((r = rv_wire_next_request(&c->wire))) {
		serve(c, r);
		rv_wire_request_free(&c->wire, r);
	}
	return NULL;
}

static int start_thread(struct rv_client *c)
{
	int rc;

	if (c->serving)
		return 0;
	rc = rv_wire_start_serving(&c->wire);
	if (!rc)
		rc = -pthread_create(&c->server, NULL, serve_loop, c);
	c->serving = rc == 0;
	return rc;
}

/* The daemon's answer to anything wakes a serving thread that is reading. */
static void wake_reader(struct rv_client *c)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_HELLO);
	struct rv_client_budget b = rv_client_budget_of(c, &rv_client_no_opts);

	if (!call)
		return;
	call->rq.version = RV_LOCAL_VERSION;
	if (!rv_client_ask(c, call, NULL, 0, &b))
		rv_call_free(call);
}

void rv_client_stop_serving(struct rv_client *c)
{
	struct rv_list *it;

	if (c->serving) {
		rv_wire_stop_serving(&c->wire);
		wake_reader(c);
		pthread_join(c->server, NULL);
	}
	while ((it = rv_list_pop(&c->handlers)))
		free(RV_LIST_ENTRY(it, struct handler, link));
}

static int ask_about_name(struct rv_client *c, uint8_t op, const char *name)
{
	struct rv_call *call = rv_client_call(op);
	struct rv_client_budget b = rv_client_budget_of(c, &rv_client_no_opts);
	int rc;

	if (!call)
		return -ENOMEM;
	strcpy(call->rq.name, name);
	rc = rv_client_ask(c, call, NULL, 0, &b);
	if (!rc)
		rv_call_free(call);
	return rc;
}

int rv_client_check_name(const char *name)
{
	if (!name || !*name || *name == '_' || strlen(name) >= RV_LOCAL_NAME)
		return rv_client_fail(
			-EINVAL, "a handler's name has 1 to %u bytes and does not start with '_'",
			RV_LOCAL_NAME - 1);
	return 0;
}

int rv_handle_serve(struct rv_client *c, const char *name, rv_handler_fn *fn, void *user)
{
	struct handler *h = NULL;
	int rc = rv_client_check(c);

	if (!rc)
		rc = rv_client_check_name(name);
	if (rc)
		return rc;
	if (!fn)
		return rv_client_fail(-EINVAL, "no function to call");
	pthread_mutex_lock(&c->serve_lock);
	if (find(c, name))
		rc = rv_client_fail(-EEXIST, "this program serves '%s' already", name);
	else if (!(h = calloc(1, sizeof(*h))) || start_thread(c))
		rc = rv_client_no_memory();
	if (!rc) {
		/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): its name is checked, rv_client_fail() never returns 0 */
		strcpy(h->name, name);
		h->fn = fn;
		h->user = user;
		rv_list_push(&c->handlers, &h->link);
	} else {
		free(h);
	}
	pthread_mutex_unlock(&c->serve_lock);
	if (rc)
		return rc;
	/* Known here before the daemon sends the first request. */
	rc = ask_about_name(c, RV_LOCAL_SERVE, name);
	if (rc)
		end_handler(c, name);
	return rc;
}

int rv_handle_unserve(struct rv_client *c, const char *name)
{
	int rc = rv_client_check(c);

	if (!rc)
		rc = rv_client_check_name(name);
	if (!rc)
		rc = ask_about_name(c, RV_LOCAL_UNSERVE, name);
	if (!rc)
		end_handler(c, name);
	return rc;
}
