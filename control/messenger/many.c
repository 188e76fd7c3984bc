/*
 * `_rvd_get_many`: short payloads of many slots in one answer, gathered from where they lie. No lease is granted for
 * any: if the answer is lost, nothing else is.
 *
 *   request --> each engine: what it has, held --> send --sent--> each engine: holds go back --> the record is free
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
	struct rv_cell *cell; /* goes to the engines, and back */
	struct rv_peer_many many;
	uint32_t room;
	unsigned engine; /* whose turn it is */
	uint32_t used;
	uint32_t along_nr;
	struct rv_along along[RV_PEER_MANY_MAX];
	struct iovec piece[1 + 2 * RV_PEER_MANY_MAX];
	uint8_t buf[ANSWER_MAX]; /* what is said of them, and what is copied */
};

static const uint8_t zeros[RV_MANY_ALIGN];

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

	rv_cell_free(m->reactor->port, n->cell);
	m->serving--;
	rv_slab_give(&m->many, n);
}

/* The cell goes to the engine whose turn it is. */
static void to_engine(struct many *n, rv_cell_fn *run, rv_cell_fn *done)
{
	n->cell->ctx = n;
	n->cell->run = run;
	n->cell->done = done;
	rv_engine_send(n->m->reactor->port, n->m->conf.engines->engine[n->engine++], n->cell);
}

static void give_back(struct many *n);

static void gave_back(struct rv_port *port, struct rv_cell *cell)
{
	(void)port;
	give_back(cell->ctx);
}

static bool holds_any(const struct many *n, const struct rv_engine *e)
{
	for (uint32_t i = 0; i < n->along_nr; i++) {
		if (n->along[i].block && n->along[i].engine == e)
			return true;
	}
	return false;
}

static void give_back(struct many *n)
{
	const struct rv_engines *set = n->m->conf.engines;

	while (n->engine < set->nr && !holds_any(n, set->engine[n->engine]))
		n->engine++;
	if (n->engine == set->nr) {
		many_end(n);
		return;
	}
	*(struct rv_msg_served *)(void *)n->cell->body = (struct rv_msg_served){
		.engine = set->engine[n->engine],
		.along = n->along,
		.along_nr = n->along_nr,
	};
	to_engine(n, rv_engine_run_served, gave_back);
}

static void sent(void *ctx, int rc)
{
	struct many *n = ctx;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n->along_nr && !rc; i++)
		bytes += n->along[i].len;
	rv_counter_add(&n->m->bytes_out, bytes);
	/* From now on its peer may ask again: what is left is between us and the engines. */
	n->m->many_live--;
	n->rq.link->many--;
	rv_mlink_request_done(n->rq.link);
	rv_mlink_drop(n->rq.link);
	n->engine = 0;
	give_back(n);
}

/* What is said of them, and each at its place. @return how many pieces */
static size_t put_together(struct many *n)
{
	uint32_t at = (uint32_t)RV_MANY_SAID(n->many.nr);
	struct rv_writer w = rv_writer(n->buf, at);
	size_t nr = 0;

	rv_many_answer_encode(&w, &n->many);
	n->piece[nr++] = (struct iovec){n->buf, at};
	for (uint32_t i = 0; i < n->along_nr; i++) {
		const struct rv_along *s = &n->along[i];

		if (s->off > at)
			n->piece[nr++] = (struct iovec){(void *)(uintptr_t)zeros, s->off - at};
		n->piece[nr++] = (struct iovec){(void *)(uintptr_t)s->bytes, s->len};
		at = s->off + s->len;
	}
	return nr;
}

static void answer(struct many *n)
{
	struct rv_header_pair none = {RV_HEADER_LEASE, "0",
				      1}; /* the sign of an answer with bytes */
	int rc = rv_answer_in_pieces(n->rq.link, &n->rq.id, &none, n->piece, put_together(n), sent,
				     n);

	if (!rc)
		return;
	rv_answer_error(&n->rq, BUSY);
	sent(n, rc);
}

static void next_engine(struct many *n);

static void served(struct rv_port *port, struct rv_cell *cell)
{
	const struct rv_msg_serve_many *s = (void *)cell->body;
	struct many *n = cell->ctx;

	(void)port;
	n->used = s->used;
	n->along_nr = s->along_nr;
	next_engine(n);
}

static void next_engine(struct many *n)
{
	const struct rv_engines *set = n->m->conf.engines;

	if (n->engine == set->nr) {
		answer(n);
		return;
	}
	*(struct rv_msg_serve_many *)(void *)n->cell->body = (struct rv_msg_serve_many){
		.engine = set->engine[n->engine],
		.worker = rv_msg_id_worker(&n->rq.id),
		.many = &n->many,
		.along = n->along,
		.along_nr = n->along_nr,
		.buf = n->buf,
		.cap = n->room,
		.used = n->used,
	};
	to_engine(n, rv_engine_run_serve_many, served);
}

static struct many *many_new(struct rv_messenger *m, const struct request *rq)
{
	bool room = m->many_live < AT_ONCE && rq->link->many < OF_LINK;
	struct rv_cell *cell = room ? rv_cell_alloc(m->reactor->port) : NULL;
	struct many *n = cell ? rv_slab_take(&m->many) : NULL;

	if (!n) {
		if (cell)
			rv_cell_free(m->reactor->port, cell);
		return NULL;
	}
	n->cell = cell;
	n->m = m;
	n->rq = *rq;
	n->engine = 0;
	n->along_nr = 0;
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
	n = many_new(m, rq);
	if (!n) {
		rv_answer_error(rq, BUSY);
		return;
	}
	n->many = many;
	n->room = (uint32_t)rv_min_u64(room, ANSWER_MAX);
	n->used = (uint32_t)RV_MANY_SAID(many.nr);
	next_engine(n);
}
