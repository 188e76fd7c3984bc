/*
 * Transfers: payloads whose chunks a consumer pulls (`_rv_pull`), served from the arena to the socket.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "control/json/rv_codec.h"
#include "control/messenger/inbound_impl.h"
#include "dataplane/base/clock.h"
#include "dataplane/engine/chunk_plan.h"
#include "dataplane/mem/region.h"

struct rv_transfer *rv_transfer_new(struct rv_messenger *m, const struct rv_msg_acquire *a)
{
	struct rv_transfer *t = rv_idtab_alloc(&m->transfers);

	if (!t)
		return NULL;
	if (!a->total_len) {
		/* An id that names no chunks: every pull of it is an error. */
		rv_idtab_free(&m->transfers, t, RV_END_RELEASED);
		return t;
	}
	t->lease_id = a->lease_id;
	t->worker = a->worker;
	t->block = a->block;
	t->total_len = a->total_len;
	t->chunk_size = a->chunk_size;
	t->engine = a->engine;
	t->local = a->local;
	t->renew_ns = a->renew_ns;
	t->renewed_ns = m->reactor->now_ns;
	if (rv_map64_put(&m->by_lease, a->lease_id, t)) {
		rv_idtab_free(&m->transfers, t, RV_END_NONE);
		return NULL;
	}
	return t;
}

struct chunk_send {
	struct rv_messenger *m;
	struct rv_transfer *t;
	struct rv_mlink *link;
	uint64_t len;
	void *copy; /* of a region's bytes; NULL: sent from where they are */
};

static void chunk_not_found(const struct request *rq, uint64_t transfer_id, uint32_t index,
			    const char *why)
{
	rv_answer_error(rq, "chunk not found: transfer_id=%" PRIu64 ", chunk_index=%u%s",
			transfer_id, index, why);
}

static void transfer_free(struct rv_messenger *m, struct rv_transfer *t)
{
	struct rv_cell *ending = t->ending;

	rv_idtab_free(&m->transfers, t, RV_END_RELEASED);
	if (ending)
		rv_cell_reply(m->reactor->port, ending);
}

static void chunk_sent(void *ctx, int rc)
{
	struct chunk_send *s = ctx;

	if (!rc)
		rv_counter_add(&s->m->bytes_out, s->len);
	s->m->serving--;
	if (!--s->t->sends && s->t->ending)
		transfer_free(s->m, s->t);
	rv_mlink_drop(s->link);
	free(s->copy);
	rv_slab_give(&s->m->chunk_sends, s);
}

int rv_sendable_bytes(struct rv_block *b, uint64_t off, uint64_t len, const void **bytes,
		      void **copy)
{
	int rc;

	*copy = NULL;
	*bytes = rv_block_ptr(b) + off;
	if (!b->arena->region)
		return 0;
	*bytes = *copy = malloc(len);
	if (!*copy)
		return -ENOMEM;
	rc = rv_block_read(b, off, *copy, len);
	if (rc) {
		free(*copy);
		*copy = NULL;
	}
	return rc;
}

static void send_chunk(struct rv_messenger *m, const struct request *rq, struct rv_transfer *t,
		       uint64_t index)
{
	struct chunk_send *s = rv_slab_take(&m->chunk_sends);
	const void *bytes;
	int rc;

	if (!s) {
		rv_answer_error(rq, BUSY);
		return;
	}
	*s = (struct chunk_send){.m = m,
				 .t = t,
				 .link = rq->link,
				 .len = rv_chunk_len(index, t->total_len, t->chunk_size)};
	rc = rv_sendable_bytes(t->block, rv_chunk_offset(index, t->chunk_size), s->len, &bytes,
			       &s->copy);
	if (rc) {
		rv_slab_give(&m->chunk_sends, s);
		if (rc == -ENOMEM)
			rv_answer_error(rq, BUSY);
		else
			chunk_not_found(rq, t->rec.id, (uint32_t)index,
					": its memory was deregistered");
		return;
	}
	rc = rv_answer_response(rq->link, &rq->id, false, bytes, s->len, chunk_sent, s);
	if (rc) {
		if (rc == -EMSGSIZE)
			rv_answer_response(rq->link, &rq->id, false, bytes, s->len, NULL, NULL);
		free(s->copy);
		rv_slab_give(&m->chunk_sends, s);
		return;
	}
	t->sends++;
	m->serving++;
	rv_mlink_hold(rq->link);
}

/* A pull keeps a lease with a deadline alive; the engine is told now and then, not each time. */
static void renew_by_pull(struct rv_messenger *m, const struct request *rq, struct rv_transfer *t)
{
	struct rv_cell *cell;

	if (t->renew_ns == RV_NEVER || rq->arrival_ns - t->renewed_ns < t->renew_ns)
		return;
	cell = rv_cell_alloc(m->reactor->port);
	if (!cell)
		return; /* the next pull tries again */
	*(struct rv_msg_lease *)(void *)cell->body = (struct rv_msg_lease){
		.engine = t->engine,
		.op = RV_LEASE_RENEW,
		.local = t->local,
		.lease_id = t->lease_id,
		.worker = t->worker,
		.arrival_ns = rq->arrival_ns,
	};
	t->renewed_ns = rq->arrival_ns;
	cell->run = rv_engine_run_lease;
	cell->done = rv_lease_forgotten;
	rv_engine_send(m->reactor->port, t->engine, cell);
}

void rv_inbound_pull(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
		     size_t len)
{
	struct rv_body_pull b;
	struct rv_transfer *t;
	const char *why;

	if (rv_body_pull_decode(body, len, &b, &why)) {
		rv_answer_error(rq, "%s", why);
		return;
	}
	t = rv_idtab_get(&m->transfers, b.transfer_id);
	if (!t || t->ending || t->worker != rv_msg_id_worker(&rq->id) || !t->total_len ||
	    b.chunk_index >= rv_chunk_count(t->total_len, t->chunk_size)) {
		chunk_not_found(rq, b.transfer_id, b.chunk_index, "");
		return;
	}
	renew_by_pull(m, rq, t);
	if (rq->kind == RV_CALL_UNARY)
		send_chunk(m, rq, t, b.chunk_index);
	else
		rv_answer_ok(rq, NULL, 0);
}

void rv_messenger_run_transfer_end(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_messenger *m = rv_port_user(port);
	const struct rv_msg_transfer_end *e = (void *)cell->body;
	struct rv_transfer *t = rv_map64_del(&m->by_lease, e->lease_id);

	if (!t) {
		rv_cell_reply(port, cell);
		return;
	}
	t->ending = cell;
	if (!t->sends)
		transfer_free(m, t);
}

int rv_transfers_init(struct rv_messenger *m)
{
	rv_slab_init(&m->chunk_sends, sizeof(struct chunk_send), 256);
	return rv_idtab_init(&m->transfers, sizeof(struct rv_transfer), RV_IDTAB_MAX,
			     m->reactor->index, rv_random_u64());
}

void rv_transfers_fini(struct rv_messenger *m)
{
	rv_slab_fini(&m->chunk_sends);
	rv_map64_fini(&m->by_lease);
	rv_idtab_fini(&m->transfers);
}
