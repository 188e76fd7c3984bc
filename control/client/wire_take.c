/*
 * What arrives from the daemon, and to whom it is handed: replies to calls, answers to several of them at once,
 * requests of handlers that are served here. By the one thread that reads, under the lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control/client/wire_impl.h"
#include "dataplane/base/err.h"

static bool names_arena(const struct rv_call *call)
{
	const struct rv_local_rep *rep = &call->rep;

	if (rep->rc || !rep->token || !rep->len)
		return false;
	return call->op == RV_LOCAL_GET ||
	       (call->op == RV_LOCAL_ALLOC && call->rq.flags & RV_LOCAL_SHARED);
}

/* A descriptor that came goes over to the map. */
static int adopt(struct rv_wire *w, const struct rv_local_rep *rep, struct rv_rx_frame *f,
		 struct rv_arena **arena, const char **why)
{
	struct rv_arena_word word = {
		.id = rep->arena,
		.arena_len = rep->arena_len,
		.off = rep->off,
		.len = rep->len,
		.writable = rep->writable,
		.single_use = rep->single_use,
		.fd = f->fd,
	};

	f->fd = -1;
	return rv_arena_map_take(&w->arenas, &word, arena, why);
}

/*
 * Buffers that a session leaves behind are given back when it ends. Without memory the daemon
 * does it.
 */
static void note_token(struct rv_wire *w, const struct rv_call *call)
{
	if (call->rep.rc)
		return;
	if (call->op == RV_LOCAL_COMMIT)
		rv_map64_del(&w->tokens, call->rq.token);
	else if (call->rep.token && call->op != RV_LOCAL_REGION_REGISTER)
		rv_map64_put(&w->tokens, call->rep.token, (void *)(uintptr_t)call->rep.token);
}

/* @param noted  its token is known already */
static void deliver(struct rv_wire *w, struct rv_call *call, struct rv_rx_frame *f, bool noted)
{
	const char *why = NULL;
	int rc;

	call->rep = f->rep;
	call->payload = f->payload;
	call->payload_len = f->payload_len;
	f->payload = NULL;
	if (call->op == RV_LOCAL_HELLO && !f->rep.rc)
		rv_wire_queue_open(w, &f->rep, f->fd);
	rc = names_arena(call) ? adopt(w, &call->rep, f, &call->arena, &why) : 0;
	if (!noted)
		note_token(w, call);
	if (!rc && call->rep.rc) {
		rc = call->rep.rc < 0 ? call->rep.rc : -EPROTO;
		why = call->payload && *call->payload ? call->payload : rv_err_name(rc);
	}
	rv_wire_settle(w, call, rc, why);
}

/* All views of a reply have one token. @return 0, -EPROTO or -ENOMEM */
static int share_token(struct rv_wire *w, const struct rv_rx_frame *f)
{
	struct rv_local_got got;
	uint64_t token = 0;
	uintptr_t nr = 0;

	for (size_t off = 0; off < f->payload_len; off += sizeof(got)) {
		memcpy(&got, f->payload + off, sizeof(got));
		if (!got.token)
			continue;
		if (token && got.token != token)
			return -EPROTO;
		token = got.token;
		nr++;
	}
	return nr > 1 ? rv_map64_put(&w->shared, token, (void *)(nr - 1)) : 0;
}

/* What several GETs got together: each has its reply, as it would have come alone. Under the lock. */
static int deliver_many(struct rv_wire *w, struct rv_rx_frame *f)
{
	struct rv_rx_frame one = {.op = RV_LOCAL_GET | RV_LOCAL_REPLY, .rep = f->rep, .fd = f->fd};
	struct rv_local_got got;
	struct rv_call *call;
	uint64_t noted = 0;
	int rc;

	if (f->rep.rc || !f->payload_len || f->payload_len % sizeof(got))
		return -EPROTO;
	rc = share_token(w, f);
	if (rc)
		return rc;
	for (size_t off = 0; off < f->payload_len; off += sizeof(got)) {
		memcpy(&got, f->payload + off, sizeof(got));
		one.rep.id = got.id;
		one.rep.token = got.token;
		one.rep.off = got.off;
		one.rep.len = got.len;
		call = rv_map64_get(&w->calls, got.id);
		if (call && call->op != RV_LOCAL_GET)
			return -EPROTO;
		if (call) {
			deliver(w, call, &one, got.token && got.token == noted);
			noted = got.token;
		}
		f->fd = one.fd; /* the map has it now, if it wanted it */
	}
	rv_wire_sweep(w);
	return 0;
}

/*
 * Nobody serves here: the memory it came in is known from now on, what it brought goes back, and who asked is told.
 * Later, when the lock is not held: as for a call that nobody waits for any more.
 */
static int refuse_request(struct rv_wire *w, struct rv_rx_frame *f)
{
	struct rv_call *call = rv_call_new(RV_LOCAL_REQUEST);
	const char *why = NULL;
	int rc = 0;

	if (!call)
		return -ENOMEM;
	call->rep = f->rep;
	call->done = true;
	if (call->rep.token) {
		rv_map64_put(&w->tokens, call->rep.token, (void *)(uintptr_t)call->rep.token);
		rc = adopt(w, &call->rep, f, &call->arena, &why);
	}
	if (rc)
		rv_call_free(call);
	else
		rv_list_push(&w->undo, &call->link);
	return rc;
}

/* Somebody calls a handler of ours. Under the lock. */
static int take_request(struct rv_wire *w, struct rv_rx_frame *f)
{
	struct rv_wire_request *r;
	const char *why = NULL;
	int rc = 0;

	if (!w->server)
		return refuse_request(w, f);
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->rep = f->rep;
	r->payload = f->payload;
	r->payload_len = f->payload_len;
	f->payload = NULL;
	rv_list_init(&r->link);
	if (r->rep.token) {
		rv_map64_put(&w->tokens, r->rep.token, (void *)(uintptr_t)r->rep.token);
		rc = adopt(w, &r->rep, f, &r->arena, &why);
	}
	if (rc) {
		free(r->payload);
		free(r);
		return rc;
	}
	rv_list_push(&w->requests, &r->link);
	rv_call_wake(w->server);
	return 0;
}

/* A whole frame is here. @return 0, or negative: the stream cannot be trusted any more */
int rv_wire_take_frame(void *user, struct rv_rx_frame *f)
{
	struct rv_wire *w = user;
	struct rv_call *call;
	int rc = 0;

	if (f->op == (RV_LOCAL_BELL | RV_LOCAL_REPLY))
		return 0;
	w->frames++;
	pthread_mutex_lock(&w->lock);
	call = rv_map64_get(&w->calls, f->rep.id);
	if (f->op == RV_LOCAL_REQUEST) {
		rc = take_request(w, f);
	} else if (f->op == (RV_LOCAL_GET_MANY | RV_LOCAL_REPLY)) {
		rc = deliver_many(w, f);
	} else if (call && (call->op | RV_LOCAL_REPLY) != f->op) {
		rc = -EPROTO;
	} else if (call) {
		deliver(w, call, f, false);
		rv_wire_sweep(w);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}
