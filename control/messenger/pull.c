/*
 * A chunked transfer on the consumer's side: a window of pulls, each answer landing in its place.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/json/rv_codec.h"
#include "control/messenger/messenger_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/engine/chunk_plan.h"

struct rv_pull {
	struct rv_list link; /* the messenger's */
	struct rv_messenger *m;
	struct rv_route *route;
	struct rv_cell *cell;
	struct rv_peer_call *call; /* its body */
	uint64_t next, landed;     /* chunks */
	uint32_t window, out;
	struct rv_list calls; /* struct pull_call: under way, and their records */
	struct rv_list spare;
	int rc;
	bool pumping;
	struct rv_task idle; /* re-armed by each chunk */
	struct pull_call {
		struct rv_list link;
		struct rv_pull *pull;
		struct rv_call *call;
		uint64_t index;
	} record[];
};

static void pump(struct rv_pull *p);

static void finish(struct rv_pull *p)
{
	struct rv_messenger *m = p->m;

	RV_CHECK(p->out == 0);
	rv_task_cancel(m->reactor, &p->idle);
	p->call->rc = p->rc;
	p->call->replied_ns = m->reactor->conf.clock();
	rv_cell_reply(m->reactor->port, p->cell);
	rv_list_del(&p->link);
	p->route->holds--;
	free(p);
}

static void stop(struct rv_pull *p, int rc)
{
	struct rv_list *it, *tmp;
	bool was = p->pumping;

	if (!p->rc)
		p->rc = rc;
	p->pumping = true; /* ending a call must not end the pull under our feet */
	RV_LIST_EACH_SAFE(it, tmp, &p->calls)
	rv_messenger_end_call(p->m, RV_LIST_ENTRY(it, struct pull_call, link)->call, rc);
	p->pumping = was;
	pump(p);
}

static int encode(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	const struct pull_call *pc = c->ctx;
	struct rv_body_pull b = {pc->pull->call->transfer_id, (uint32_t)pc->index};

	rv_body_pull_encode(body, &b);
	h->kind = RV_CALL_UNARY;
	h->name = "_rv_pull";
	h->name_len = 8;
	return 0;
}

static void say(struct rv_pull *p, const struct rv_call_answer *a, int rc)
{
	char why[RV_PEER_TEXT - 16];

	if (p->rc)
		return;
	if (a->rc == -EREMOTEIO || a->rc == -ESHUTDOWN) {
		snprintf(p->call->text, sizeof(p->call->text), "owner: %.*s",
			 (int)rv_min_u64(a->len, sizeof(p->call->text) - 16),
			 (const char *)a->payload);
	} else if (rc == -EPROTO) {
		snprintf(p->call->text, sizeof(p->call->text),
			 "the owner sent a chunk of %zu bytes where another "
			 "length was agreed",
			 a->len);
	} else {
		rv_route_why(p->route, a->rc, why, sizeof(why));
		snprintf(p->call->text, sizeof(p->call->text), "owner at %s", why);
	}
}

static void chunk_answered(struct rv_call *c, const struct rv_call_answer *a)
{
	struct pull_call *pc = c->ctx;
	struct rv_pull *p = pc->pull;
	uint64_t want = rv_chunk_len(pc->index, p->call->total_len, p->call->chunk_size);
	int rc = a->rc;

	rv_list_del(&pc->link);
	rv_list_push(&p->spare, &pc->link);
	p->out--;
	if (!rc && a->len != want)
		rc = -EPROTO;
	if (!rc && !p->rc) {
		if (!a->placed)
			memcpy(p->call->dst + rv_chunk_offset(pc->index, p->call->chunk_size),
			       a->payload, want);
		p->landed++;
		rv_task_at(p->m->reactor, &p->idle,
			   rv_sat_add(p->m->reactor->now_ns, p->call->idle_ns));
		pump(p);
		return;
	}
	say(p, a, rc);
	if (!p->rc)
		stop(p, rc);
	else
		pump(p);
}

static int pull_one(struct rv_pull *p)
{
	struct rv_messenger *m = p->m;
	struct pull_call *pc = RV_LIST_ENTRY(rv_list_pop(&p->spare), struct pull_call, link);
	struct rv_call *c = rv_call_begin(&m->calls, RV_NEVER, chunk_answered, pc);

	if (!c) {
		rv_list_push(&p->spare, &pc->link);
		return -EAGAIN;
	}
	pc->call = c;
	pc->index = p->next++;
	c->handle = p->call->handle;
	c->bulk = true;
	c->encode = encode;
	c->place = p->call->dst + rv_chunk_offset(pc->index, p->call->chunk_size);
	c->place_len = rv_chunk_len(pc->index, p->call->total_len, p->call->chunk_size);
	rv_list_push(&p->calls, &pc->link);
	p->out++;
	rv_route_submit(m, p->route, c);
	return 0;
}

static void pump(struct rv_pull *p)
{
	if (p->pumping)
		return;
	p->pumping = true;
	while (!p->rc && p->next < p->call->chunk_count && p->out < p->window) {
		if (pull_one(p)) {
			if (!p->out) {
				p->rc = -EAGAIN;
				snprintf(p->call->text, sizeof(p->call->text),
					 "too many calls under way here");
			}
			break;
		}
	}
	p->pumping = false;
	if (!p->out && (p->rc || p->landed == p->call->chunk_count))
		finish(p);
}

static void too_late(struct rv_pull *p)
{
	if (!p->rc)
		snprintf(p->call->text, sizeof(p->call->text),
			 "the owner did not deliver every chunk in time (%" PRIu64 " of %u came)",
			 p->landed, p->call->chunk_count);
	stop(p, -ETIMEDOUT);
}

static void silent(struct rv_reactor *r, struct rv_task *t)
{
	(void)r;
	too_late(RV_CONTAINER(t, struct rv_pull, idle));
}

void rv_pull_start(struct rv_messenger *m, struct rv_route *r, struct rv_cell *cell)
{
	struct rv_peer_call *call = (void *)cell->body;
	uint32_t window = (uint32_t)rv_max_u64(1, m->conf.pull_window_bytes / call->chunk_size);
	struct rv_pull *p;

	window = (uint32_t)rv_min_u64(rv_min_u64(window, call->chunk_count), 1024);
	p = calloc(1, sizeof(*p) + window * sizeof(p->record[0]));
	if (!p) {
		call->rc = -ENOMEM;
		snprintf(call->text, sizeof(call->text), "out of memory here");
		rv_cell_reply(m->reactor->port, cell);
		return;
	}
	p->m = m;
	p->route = r;
	r->holds++;
	p->cell = cell;
	p->call = call;
	p->window = window;
	rv_list_init(&p->calls);
	rv_list_init(&p->spare);
	for (uint32_t i = 0; i < window; i++) {
		p->record[i].pull = p;
		rv_list_push(&p->spare, &p->record[i].link);
	}
	call->rc = 0;
	call->text[0] = '\0';
	call->sent_ns = m->reactor->conf.clock();
	p->idle.fn = silent;
	rv_task_at(m->reactor, &p->idle, rv_sat_add(m->reactor->now_ns, call->idle_ns));
	rv_list_push(&m->pulls, &p->link);
	pump(p);
}

void rv_pull_cancel(struct rv_messenger *m, struct rv_cell *cell)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &m->pulls)
	{
		struct rv_pull *p = RV_LIST_ENTRY(it, struct rv_pull, link);

		if (p->cell != cell)
			continue;
		too_late(p);
		return;
	}
}
