/*
 * Buffers: given out, filled by the daemon or by the client itself, named, given back.
 */
#include <errno.h>
#include <stdlib.h>

#include "control/local/session_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

/* Blocks a client may touch. */

struct buffer *rv_buffer_add(struct session *s, struct rv_engine *e, struct rv_block *b,
			     uint64_t len)
{
	struct buffer *buf = s->buffers.nr < RV_SESSION_BUFFERS ? calloc(1, sizeof(*buf)) : NULL;

	if (!buf)
		return NULL;
	buf->token = ++s->last_token;
	buf->engine = e;
	buf->block = b;
	buf->len = len;
	buf->single_use = b && b->arena->dedicated;
	buf->arena = b ? b->arena->id : 0;
	if (rv_map64_put(&s->buffers, buf->token, buf)) {
		free(buf);
		return NULL;
	}
	rv_list_push(&s->buffer_list, &buf->link);
	return buf;
}

void rv_buffer_free(struct session *s, struct buffer *b, bool give_back)
{
	rv_map64_del(&s->buffers, b->token);
	rv_list_del(&b->link);
	if (b->block && b->single_use)
		rv_map64_del(&s->shown, b->arena); /* the client unmaps it with this */
	if (give_back && b->block)
		rv_local_drop_block(s->local, b->engine, b->block);
	free(b);
}

/* Fill in where a block is, and whether the arena's descriptor must come along. @return the descriptor or -1 */
int rv_session_describe_block(struct session *s, const struct rv_block *b, struct rv_local_rep *rep)
{
	const struct rv_arena *a = b->arena;

	RV_CHECK(a->cls.uid == s->uid); /* its descriptor shows all of the arena */
	rep->arena = a->id;
	rep->arena_len = a->pages.len;
	rep->off = b->off;
	rep->single_use = a->dedicated;
	rep->writable = a->cls.kind == RV_ARENA_SESSION && a->cls.session == s->id;
	if (rv_map64_get(&s->shown, a->id))
		return -1;
	if (rv_map64_put(&s->shown, a->id, s))
		return -1; /* sent again next time; the client keeps the first */
	rep->has_fd = 1;
	return a->pages.memfd;
}

/* ALLOC, WRITE, COMMIT, FREE */

static void allocated(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct session *s = p->s;
	const struct rv_msg_alloc *m = (void *)c->body;
	struct rv_local_rep rep = {.id = p->rq.id};
	struct buffer *b = NULL;

	if (!m->rc && s->open)
		b = rv_buffer_add(s, m->engine, m->req.block, p->rq.len);
	if (!m->rc && !b)
		rv_local_drop_block(s->local, m->engine, m->req.block);
	if (!b) {
		int rc = m->rc ? m->rc : -ENOMEM;

		rv_cell_free(port, c);
		rv_pending_refuse(p, rc,
				  rc == -ENOSPC
					  ? "no memory: raise memory.registered_bytes_budget or "
					    "memory.plain_bytes_budget, or release some handles"
				  : rc == -EMFILE ? RV_SESSION_NO_FD
						  : NULL);
		return;
	}
	b->fillable = !(p->rq.flags & RV_LOCAL_SHARED);
	b->wants_pinned = !(p->rq.flags & RV_LOCAL_PLAIN);
	rep.token = b->token;
	rep.len = b->len;
	rep.pinned = rv_arena_registered(b->block->arena);
	rep.refusal = (uint32_t)m->req.refusal;
	if (m->switched_off)
		rep.refusal = 3;
	else if (b->wants_pinned && !s->local->conf.has_fabric)
		rep.refusal = 4;
	rv_cell_free(port, c);
	if (!(p->rq.flags & RV_LOCAL_SHARED))
		rv_session_reply(s, &rep, p->op, NULL, 0, -1);
	else if (rv_session_show(s, &rep, p->op, b)) {
		rv_pending_refuse(p, -EMFILE, RV_SESSION_NO_FD);
		return;
	}
	rv_pending_end(p);
}

static void alloc_empty(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id};
	struct buffer *b = rv_buffer_add(s, s->home, NULL, 0);

	if (!b) {
		rv_session_refuse(s, rq, RV_LOCAL_ALLOC, -ENOSPC,
				  "too many buffers of this session are open");
		return;
	}
	rep.token = b->token;
	b->wants_pinned = !(rq->flags & RV_LOCAL_PLAIN);
	rv_session_reply(s, &rep, RV_LOCAL_ALLOC, NULL, 0, -1);
}

void rv_session_alloc(struct session *s, const struct rv_local_req *rq)
{
	bool plain = rq->flags & RV_LOCAL_PLAIN || !s->local->conf.has_fabric;
	struct pending *p;
	struct rv_cell *c;
	struct rv_msg_alloc *m;

	if (!rq->len) {
		alloc_empty(s, rq); /* zero length is plain memory, and none of it */
		return;
	}
	if (s->buffers.nr >= RV_SESSION_BUFFERS) {
		rv_session_refuse(s, rq, RV_LOCAL_ALLOC, -ENOSPC,
				  "too many buffers of this session are open");
		return;
	}
	p = rv_pending_new(s, RV_LOCAL_ALLOC, rq);
	c = p ? rv_pending_cell(p) : NULL;
	if (!c)
		return;
	m = (void *)c->body;
	*m = (struct rv_msg_alloc){
		.engine = s->home,
		.pinned = !plain,
		.req = {.len = rq->len,
			.allow_plain = !(rq->flags & RV_LOCAL_STRICT),
			.mapped_only = rq->flags & RV_LOCAL_MAPPED},
	};
	if (rq->flags & RV_LOCAL_SHARED)
		m->req.cls = (struct rv_arena_class){RV_ARENA_SESSION, s->uid, s->id, plain};
	else
		m->req.cls =
			(struct rv_arena_class){.kind = plain ? RV_ARENA_PLAIN : RV_ARENA_STAGING,
						.uid = s->uid};
	c->run = rv_engine_run_alloc;
	c->done = allocated;
	rv_engine_send(rv_session_port(s), m->engine, c);
}

/* The payload goes straight into the buffer; NULL leaves the complaint to rv_session_write(). */
void *rv_session_write_place(struct session *s, const struct rv_local_req *rq, uint64_t len)
{
	struct buffer *b = rv_map64_get(&s->buffers, rq->token);

	if (!b || !b->fillable || b->busy || rq->off > b->len || len > b->len - rq->off)
		return NULL;
	return rv_block_ptr(b->block) + rq->off;
}

void rv_session_write(struct session *s, const struct rv_local_req *rq, size_t len, bool placed)
{
	if (!placed && len)
		rv_session_refuse(s, rq, RV_LOCAL_WRITE, -ERANGE,
				  "the bytes do not fit into a buffer of this session");
}

static void late_slot_dropped(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;

	rv_cell_free(port, c);
	rv_session_settle(p->s);
	rv_pending_end(p);
}

/* Its session ended while it was being staged: the slot must not outlive it. */
static void drop_late_slot(struct pending *p, struct rv_cell *c, struct buffer *b)
{
	const struct rv_msg_stage m = *(const struct rv_msg_stage *)(void *)c->body;

	rv_buffer_free(p->s, b, m.block == NULL);
	*(struct rv_msg_slot *)(void *)c->body = (struct rv_msg_slot){.engine = m.engine,
								      .op = RV_SLOT_DROP,
								      .local = m.handle.local};
	c->run = rv_engine_run_slot;
	c->done = late_slot_dropped;
	rv_engine_send(rv_session_port(p->s), m.engine, c);
}

static void committed(struct rv_port *port, struct rv_cell *c)
{
	struct pending *p = c->ctx;
	struct session *s = p->s;
	const struct rv_msg_stage *m = (void *)c->body;
	struct rv_local_rep rep = {.id = p->rq.id, .rc = m->rc};
	struct buffer *b = rv_map64_get(&s->buffers, p->rq.token);

	RV_CHECK(b);
	b->busy = false;
	if (m->rc) {
		rv_cell_free(port, c);
		if (s->gone)
			rv_buffer_free(s, b, true);
		rv_session_settle(s);
		rv_pending_refuse(p, m->rc, "the slot table is full (rendezvous.max_slots)");
		return;
	}
	if (!s->open && p->rq.flags & RV_LOCAL_SESSION) {
		drop_late_slot(p, c, b);
		return;
	}
	rep.worker = m->handle.worker;
	rep.local = m->handle.local;
	rep.pinned = m->in_registered;
	/* An empty payload names no bytes: its buffer goes back now. */
	rv_buffer_free(s, b, m->block == NULL);
	rv_cell_free(port, c);
	rv_session_settle(s);
	rv_session_reply(s, &rep, p->op, NULL, 0, -1);
	rv_pending_end(p);
}

void rv_session_commit(struct session *s, const struct rv_local_req *rq)
{
	struct buffer *b = rv_map64_get(&s->buffers, rq->token);
	struct pending *p;
	struct rv_cell *c;
	struct rv_msg_stage *m;

	if (!b || b->busy || b->view || rq->len > b->len) {
		rv_session_refuse(s, rq, RV_LOCAL_COMMIT, -EINVAL,
				  "no such buffer in this session, or it is shorter");
		return;
	}
	if (b->gets || b->spoiled) {
		rv_session_refuse(s, rq, RV_LOCAL_COMMIT, -EBUSY,
				  "a get may still write into this buffer");
		return;
	}
	p = rv_pending_new(s, RV_LOCAL_COMMIT, rq);
	c = p ? rv_pending_cell(p) : NULL;
	if (!c)
		return;
	b->busy = true;
	m = (void *)c->body;
	*m = (struct rv_msg_stage){
		.engine = b->engine,
		.block = rq->len ? b->block : NULL,
		.len = rq->len,
		.pinned = b->wants_pinned,
		.opts =
			{
				.refs = rq->refs ? rq->refs : 1,
				.ttl_ns = rq->ttl_ns ? rq->ttl_ns : s->local->conf.default_ttl_ns,
				.uid = s->uid,
				.session = rq->flags & RV_LOCAL_SESSION ? s->id : 0,
			},
	};
	c->run = rv_engine_run_stage;
	c->done = committed;
	rv_engine_send(rv_session_port(s), m->engine, c);
}

void rv_session_free(struct session *s, const struct rv_local_req *rq)
{
	struct buffer *b = rv_map64_get(&s->buffers, rq->token);

	if (b && !b->busy)
		rv_buffer_free(s, b, true);
}
