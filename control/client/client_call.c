/*
 * Calls to handlers of peers; handlers of this program's own are in client_messages.c.
 */
#include "control/client/client_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

/* What a message says; everything but where it goes. */
static int check_message(const char *peer, const char *name, const void *data, uint64_t len)
{
	int rc = rv_client_check_name(name);

	if (!rc && (!peer || !*peer || (!data && len)))
		rc = rv_client_fail(-EINVAL, "no peer, or no data");
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
		rc = check_message(peer, name, data, len);
	if (rc)
		return rc;
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

/* The same without waiting. */

static struct rv_call *message_call(const struct rv_async *a)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_CALL);

	if (!call)
		return NULL;
	call->rq = a->like;
	if (!a->literals)
		return call;
	strcpy(call->rq.host, a->literal[a->at]);
	call->rq.port = a->ref.port;
	return call;
}

static void message_answered(struct rv_async *a, int rc);

static void message_step(struct rv_async *a)
{
	bool inside = !a->staged.local; /* its payload goes with it */

	rv_async_step(a, message_call(a), inside ? a->data : NULL, inside ? a->len : 0,
		      message_answered);
}

static void message_answered(struct rv_async *a, int rc)
{
	char *text = NULL;
	size_t n = 0;

	if (rc == -EHOSTUNREACH && a->at + 1 < a->literals) {
		a->at++;
		message_step(a);
		return;
	}
	if (!rc && a->reply)
		rc = take_payload(a->call, &text, &n);
	if (!rc && a->reply) {
		*a->reply = text;
		if (a->reply_len)
			*a->reply_len = n;
	}
	rv_async_end(a, rc);
}

static void message_staged(struct rv_async *a, int rc)
{
	if (rc) {
		rv_async_end(a, rc);
		return;
	}
	a->like.local = a->staged.local;
	a->drop_staged = a->like.what != RV_LOCAL_FIRE;
	message_step(a);
}

/* Where it goes. @return 0, or a negative errno with the error set */
static int aim_nb(struct rv_async *a, const char *peer)
{
	struct rv_call to = {.rq = a->like};
	int rc;

	if (strchr(peer, ':') && !rv_host_parse(peer, a->ref.host, &a->ref.port)) {
		a->literals = rv_client_addresses(a->c, &a->ref, a->literal);
		return a->literals < 0 ? a->literals : 0;
	}
	rc = aim(&to, peer, NULL, 0);
	a->like = to.rq;
	return rc;
}

static int message_nb(struct rv_client *c, const char *peer, const char *name, uint32_t kind,
		      const void *data, uint64_t len, const struct rv_opts *opts, void **reply,
		      uint64_t *reply_len, rv_done_fn *done, void *user)
{
	struct rv_async *a;
	int rc = rv_async_new(c, opts, done, user, &a);

	if (rc)
		return rc;
	rc = check_message(peer, name, data, len);
	if (!rc) {
		a->like.what = kind;
		strcpy(a->like.name, name);
		rc = aim_nb(a, peer);
	}
	if (rc)
		return rv_async_drop(a, rc);
	a->data = data;
	a->len = len;
	a->reply = reply;
	a->reply_len = reply_len;
	if (len <= c->threshold)
		return rv_async_begin(a, message_call(a), data, len, message_answered);
	a->o = (struct rv_opts){.ttl_ns = a->b.timeout_ns};
	return rv_client_stage_nb(a, RV_LOCAL_MAPPED, message_staged);
}

int rv_send_nb(struct rv_client *c, const char *peer, const char *name, const void *data,
	       uint64_t len, const struct rv_opts *opts, rv_done_fn *done, void *user)
{
	return message_nb(c, peer, name, RV_LOCAL_FIRE, data, len, opts, NULL, NULL, done, user);
}

int rv_sync_nb(struct rv_client *c, const char *peer, const char *name, const void *data,
	       uint64_t len, const struct rv_opts *opts, rv_done_fn *done, void *user)
{
	return message_nb(c, peer, name, RV_LOCAL_SYNC, data, len, opts, NULL, NULL, done, user);
}

int rv_call_nb(struct rv_client *c, const char *peer, const char *name, const void *data,
	       uint64_t len, const struct rv_opts *opts, void **reply, uint64_t *reply_len,
	       rv_done_fn *done, void *user)
{
	return message_nb(c, peer, name, RV_LOCAL_UNARY, data, len, opts, reply, reply_len, done,
			  user);
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
