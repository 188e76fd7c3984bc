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

static int check_name(const char *name)
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
		rc = check_name(name);
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
		rc = check_name(name);
	if (!rc)
		rc = ask_about_name(c, RV_LOCAL_UNSERVE, name);
	if (!rc)
		end_handler(c, name);
	return rc;
}

/* Calling. */

static int aim(struct rv_call *call, const char *peer, const char *literal, uint16_t port)
{
	char *end;
	uint64_t worker;

	if (literal) {
		strcpy(call->rq.host, literal);
		call->rq.port = port;
		return 0;
	}
	errno = 0;
	worker = strtoull(peer, &end, 10);
	if (peer[0] >= '0' && peer[0] <= '9' && !*end && !errno) {
		call->rq.worker = worker;
		return 0;
	}
	if (strlen(peer) >= sizeof(call->rq.host))
		return rv_client_fail(-EINVAL, "the peer's name is too long");
	strcpy(call->rq.host, peer);
	return 0;
}

/* One attempt, at one address or by name. @owns on success the caller has the call */
static int attempt(struct rv_client *c, uint8_t op, const char *peer, const char *literal,
		   uint16_t port, const struct rv_local_req *like, const void *data, uint64_t len,
		   const struct rv_client_budget *b, struct rv_call **out)
{
	struct rv_call *call = rv_client_call(op);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq = *like;
	rc = aim(call, peer, literal, port);
	if (rc) {
		rv_call_free(call);
		return rc;
	}
	call->rq.timeout_ns = b->timeout_ns ? rv_budget_left_ns(b) : 0;
	rc = rv_client_ask(c, call, data, len, b);
	if (!rc)
		*out = call;
	return rc;
}

static int ask_peer(struct rv_client *c, uint8_t op, const char *peer,
		    const struct rv_local_req *like, const void *data, uint64_t len,
		    const struct rv_client_budget *b, struct rv_call **out)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct rv_ref at = {0};
	int nr, rc = -EHOSTUNREACH;

	if (!strchr(peer, ':') || rv_host_parse(peer, at.host, &at.port))
		return attempt(c, op, peer, NULL, 0, like, data, len, b, out);
	nr = rv_client_addresses(c, &at, literal);
	if (nr < 0)
		return nr;
	for (int i = 0; i < nr && rc == -EHOSTUNREACH; i++)
		rc = attempt(c, op, peer, literal[i], at.port, like, data, len, b, out);
	return rc;
}

static int message(struct rv_client *c, const char *peer, const char *name, uint32_t kind,
		   const void *data, uint64_t len, const struct rv_opts *opts, struct rv_call **out)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_local_req like = {.what = kind};
	struct rv_handle staged = {0};
	struct rv_client_budget b;
	int rc = rv_client_check(c);

	if (!rc)
		rc = check_name(name);
	if (rc)
		return rc;
	if (!peer || !*peer || (!data && len))
		return rv_client_fail(-EINVAL, "no peer, or no data");
	b = rv_client_budget_of(c, o);
	strcpy(like.name, name);
	if (len > c->threshold) {
		/* Nobody fetches it after the caller has given up. */
		struct rv_opts so = {.timeout_ns = o->timeout_ns, .ttl_ns = b.timeout_ns};

		rc = rv_client_stage_message(c, data, len, &so, &staged);
		if (rc)
			return rc;
		like.local = staged.local;
		len = 0;
	}
	rc = ask_peer(c, RV_LOCAL_CALL, peer, &like, data, len, &b, out);
	/* Fetched payloads were released by the peer; what was not fetched must not stay. */
	if (staged.local && (rc || kind != RV_LOCAL_FIRE))
		rv_wire_post(
			&c->wire, RV_LOCAL_DROP,
			&(struct rv_local_req){.worker = staged.worker, .local = staged.local});
	return rc;
}

int rv_send(struct rv_client *c, const char *peer, const char *name, const void *data, uint64_t len,
	    const struct rv_opts *opts)
{
	struct rv_call *call;
	int rc = message(c, peer, name, RV_LOCAL_FIRE, data, len, opts, &call);

	if (!rc)
		rv_call_free(call);
	return rc;
}

int rv_sync(struct rv_client *c, const char *peer, const char *name, const void *data, uint64_t len,
	    const struct rv_opts *opts)
{
	struct rv_call *call;
	int rc = message(c, peer, name, RV_LOCAL_SYNC, data, len, opts, &call);

	if (!rc)
		rv_call_free(call);
	return rc;
}

/* A payload that may be empty, as text that is always there. */
static int take_payload(struct rv_call *call, char **out, size_t *len)
{
	char *text = call->payload ? call->payload : calloc(1, 1);

	if (!text)
		return rv_client_no_memory();
	*out = text;
	if (len)
		*len = call->payload_len;
	call->payload = NULL;
	return 0;
}

int rv_call(struct rv_client *c, const char *peer, const char *name, const void *data, uint64_t len,
	    const struct rv_opts *opts, void **reply, uint64_t *reply_len)
{
	struct rv_call *call;
	char *text = NULL;
	size_t n = 0;
	int rc = message(c, peer, name, RV_LOCAL_UNARY, data, len, opts, &call);

	if (rc)
		return rc;
	if (reply) {
		rc = take_payload(call, &text, &n);
		if (!rc)
			*reply = text;
		if (!rc && reply_len)
			*reply_len = n;
	}
	rv_call_free(call);
	return rc;
}

int rv_handlers(struct rv_client *c, const char *peer, const struct rv_opts *opts, char **json,
		size_t *len)
{
	static const struct rv_local_req like;
	struct rv_client_budget b;
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!peer || !*peer || !json)
		return rv_client_fail(-EINVAL, "no peer, or nowhere to put the answer");
	b = rv_client_budget_of(c, opts ? opts : &rv_client_no_opts);
	rc = ask_peer(c, RV_LOCAL_HANDLERS, peer, &like, NULL, 0, &b, &call);
	if (rc)
		return rc;
	rc = take_payload(call, json, len);
	rv_call_free(call);
	return rc;
}
