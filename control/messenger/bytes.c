/*
 * Payloads that go with the answer to an acquire (RV_GET).
 *
 *   engine --acquire's cell, with a hold--> send --sent--> engine: the hold goes back --> the cell is free
 *                                              '--failed--> and then the lease, of which nobody has learned
 */
#include <errno.h>
#include <stdlib.h>

#include "control/messenger/inbound_impl.h"

/* In the cell's body, from the moment the acquire in it was read. */
struct bytes_send {
	struct rv_msg_drop drop; /* first: what the cell is sent for */
	struct rv_messenger *m;
	struct rv_cell *cell;
	struct rv_mlink *link;
	uint64_t local, worker, lease_id;
	uint64_t len;
	void *copy;
	bool failed;
};

_Static_assert(sizeof(struct bytes_send) <= RV_CELL_BODY, "fits a cell");

static void end_lease(struct rv_port *port, struct rv_cell *cell)
{
	const struct bytes_send *s = (void *)cell->body;
	struct rv_engine *e = s->drop.engine;

	if (!s->failed || !s->lease_id) {
		rv_cell_free(port, cell);
		return;
	}
	*(struct rv_msg_lease *)(void *)cell->body = (struct rv_msg_lease){
		.engine = e,
		.op = RV_LEASE_DETACH,
		.local = s->local,
		.lease_id = s->lease_id,
		.worker = s->worker,
	};
	cell->run = rv_engine_run_lease;
	cell->done = rv_lease_forgotten;
	rv_engine_send(port, e, cell);
}

static void give_back(struct bytes_send *s)
{
	struct rv_port *port = s->m->reactor->port;

	s->m->serving--;
	rv_mlink_drop(s->link);
	free(s->copy);
	if (!s->drop.block) {
		end_lease(port, s->cell);
		return;
	}
	s->cell->run = rv_engine_run_drop;
	s->cell->done = end_lease;
	rv_engine_send(port, s->drop.engine, s->cell);
}

static void sent(void *ctx, int rc)
{
	struct bytes_send *s = ctx;

	s->failed = rc != 0;
	if (!rc)
		rv_counter_add(&s->m->bytes_out, s->len);
	give_back(s);
}

static int send(struct bytes_send *s, const struct request *rq, const struct rv_msg_acquire *a)
{
	char lease[RV_HEADER_DIGITS], xxh3[RV_HEADER_DIGITS];
	struct rv_header_pair pair[2] = {rv_header_number(RV_HEADER_LEASE, lease, a->lease_id),
					 rv_header_number(RV_HEADER_XXH3, xxh3, a->xxh3)};
	const void *bytes = NULL;
	int rc = a->block ? rv_sendable_bytes(a->block, 0, s->len, &bytes, &s->copy) : 0;

	if (rc)
		return rc;
	return rv_answer_with_headers(rq->link, &rq->id, pair, a->has_xxh3 ? 2 : 1, bytes, s->len,
				      sent, s);
}

void rv_answer_bytes(struct rv_messenger *m, const struct request *rq, struct rv_cell *cell)
{
	const struct rv_msg_acquire a = *(struct rv_msg_acquire *)(void *)cell->body;
	struct bytes_send *s = (void *)cell->body;
	int rc;

	*s = (struct bytes_send){
		.drop = {a.engine, a.block},
		.m = m,
		.cell = cell,
		.link = rq->link,
		.local = a.local,
		.worker = a.worker,
		.lease_id = a.lease_id,
		.len = a.total_len,
	};
	rv_mlink_hold(s->link);
	m->serving++;
	rc = send(s, rq, &a);
	if (!rc)
		return;
	if (a.block && a.block->arena->region && rc == -ESHUTDOWN)
		rv_answer_error(rq, NOT_FOUND ": its memory was deregistered");
	else
		rv_answer_error(rq, BUSY);
	s->failed = true;
	give_back(s);
}
