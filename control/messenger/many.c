/*
 * `_rvd_get_many`: short payloads of many slots in one answer. No lease is granted for any: if the answer is lost,
 * nothing else is.
 *
 *   request --> engine 0 --> engine 1 ... each copies what it has --> send --sent--> the record is free
 */
#include <errno.h>

#include "control/messenger/inbound_impl.h"
#include "control/messenger/many_codec.h"
#include "dataplane/base/units.h"

/*
 * What an answer may have in it, whatever is asked; and answers at once: to all peers together, and by one connection,
 * whose peer may be slow to read them.
 */
#define ANSWER_MAX RV_KIB(512)
#define AT_ONCE    16u
#define OF_LINK    4u

struct many {
	struct rv_messenger *m;
	struct request rq;
	struct rv_peer_many many;
	uint32_t room;
	unsigned engine; /* whose turn it is */
	uint32_t used;
	uint8_t buf[ANSWER_MAX];
};

void rv_many_init(struct rv_messenger *m)
{
	rv_slab_init(&m->many, sizeof(struct many), 1);
}

void rv_many_fini(struct rv_messenger *m)
{
	rv_slab_fini(&m->many);
}

static void many_end(struct many *n)
{
	struct rv_messenger *m = n->m;

	m->serving--;
	n->rq.link->many--;
	rv_mlink_request_done(n->rq.link);
	rv_mlink_drop(n->rq.link);
	m->many_live--;
	rv_slab_give(&m->many, n);
}

static void sent(void *ctx, int rc)
{
	struct many *n = ctx;

	if (!rc)
		rv_counter_add(&n->m->bytes_out, n->used);
	many_end(n);
}

static void answer(struct many *n)
{
	struct rv_header_pair none = {RV_HEADER_LEASE, "0",
				      1}; /* the sign of an answer with bytes */
	struct rv_writer w = rv_writer(n->buf, RV_MANY_SAID(n->many.nr));
	uint32_t len = n->used;

	rv_many_answer_encode(&w, &n->many);
	n->used = 0;
	for (uint32_t i = 0; i < n->many.nr; i++)
		n->used += n->many.one[i].rc ? 0 : n->many.one[i].len;
	if (rv_answer_with_headers(n->rq.link, &n->rq.id, &none, 1, n->buf, len, sent, n)) {
		rv_answer_error(&n->rq, BUSY);
		many_end(n);
	}
}

static void next_engine(struct many *n, struct rv_cell *cell);

static void served(struct rv_port *port, struct rv_cell *cell)
{
	struct many *n = cell->ctx;

	(void)port;
	n->used = ((const struct rv_msg_serve_many *)(const void *)cell->body)->used;
	next_engine(n, cell);
}

static void next_engine(struct many *n, struct rv_cell *cell)
{
	const struct rv_engines *set = n->m->conf.engines;
	struct rv_port *port = n->m->reactor->port;

	if (n->engine == set->nr) {
		rv_cell_free(port, cell);
		answer(n);
		return;
	}
	*(struct rv_msg_serve_many *)(void *)cell->body = (struct rv_msg_serve_many){
		.engine = set->engine[n->engine],
		.worker = rv_msg_id_worker(&n->rq.id),
		.many = &n->many,
		.buf = n->buf,
		.cap = n->room,
		.used = n->used,
	};
	cell->ctx = n;
	cell->run = rv_engine_run_serve_many;
	cell->done = served;
	rv_engine_send(port, set->engine[n->engine++], cell);
}

static struct many *many_new(struct rv_messenger *m, const struct request *rq,
			     struct rv_cell **cell)
{
	bool room = m->many_live < AT_ONCE && rq->link->many < OF_LINK;
	struct many *n = room ? rv_slab_take(&m->many) : NULL;

	*cell = n ? rv_cell_alloc(m->reactor->port) : NULL;
	if (!*cell) {
		if (n)
			rv_slab_give(&m->many, n);
		return NULL;
	}
	n->m = m;
	n->rq = *rq;
	n->engine = 0;
	m->many_live++;
	m->serving++;
	rq->link->requests++;
	rq->link->many++;
	rv_mlink_hold(rq->link);
	return n;
}

void rv_inbound_get_many(struct rv_messenger *m, const struct request *rq, const uint8_t *body,
			 size_t len)
{
	struct rv_peer_many many;
	struct rv_cell *cell;
	struct many *n;
	uint32_t room;

	if (rv_many_request_decode(body, len, &many, &room) || room < RV_MANY_SAID(many.nr)) {
		rv_answer_error(rq, "Failed to deserialize input: not a request for many slots");
		return;
	}
	if (rq->link->datagram || rq->kind != RV_CALL_UNARY) {
		rv_answer_error(rq, "answered by connections only, with their bytes");
		return;
	}
	n = many_new(m, rq, &cell);
	if (!n) {
		rv_answer_error(rq, BUSY);
		return;
	}
	n->many = many;
	n->room = (uint32_t)rv_min_u64(room, ANSWER_MAX);
	n->used = (uint32_t)RV_MANY_SAID(many.nr);
	next_engine(n, cell);
}
