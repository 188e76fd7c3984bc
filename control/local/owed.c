/*
 * What a session leaves behind: holds, leases, regions, and the word to the engines that it is over. Each takes a message
 * cell; what finds none waits here, in order, and is never forgotten.
 */
#include <errno.h>
#include <stdlib.h>

#include "control/local/session_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

#define RETRY_NS RV_MS(1)

static void freed(struct rv_port *port, struct rv_cell *c)
{
	rv_cell_free(port, c);
}

static void engine_told(struct rv_port *port, struct rv_cell *c)
{
	struct session *s = c->ctx;

	rv_cell_free(port, c);
	s->local->pending--;
	rv_session_drop(s);
}

static void give_hold(struct rv_port *port, struct rv_cell *c, const struct owed *o)
{
	*(struct rv_msg_drop *)(void *)c->body = (struct rv_msg_drop){o->engine, o->block};
	c->done = freed;
	c->run = rv_engine_run_drop;
	rv_engine_send(port, o->engine, c);
}

static void tell_end(struct rv_port *port, struct rv_cell *c, const struct owed *o)
{
	*(struct rv_msg_session_end *)(void *)c->body =
		(struct rv_msg_session_end){o->engine, o->s->id};
	c->ctx = o->s;
	c->run = rv_engine_run_session_end;
	c->done = engine_told;
	rv_engine_send(port, o->engine, c);
}

static void tell_region(struct rv_port *port, struct rv_cell *c, const struct owed *o)
{
	*(struct rv_msg_region_close *)(void *)c->body = (struct rv_msg_region_close){
		.engine = o->region->engine,
		.arena = o->region->arena,
		.wait_ns = o->region->wait_ns,
		.handed_over = o->region->kept,
	};
	c->ctx = o->region;
	c->run = rv_engine_run_region_close;
	c->done = rv_region_closed;
	rv_engine_send(port, o->region->engine, c);
}

static bool pay(struct rv_local *l, const struct owed *o)
{
	struct rv_port *port = l->conf.reactor->port;
	struct rv_cell *c = rv_cell_alloc(port);

	if (!c)
		return false;
	switch (o->what) {
	case OWED_HOLD:
		give_hold(port, c, o);
		break;
	case OWED_LEASE:
		rv_messenger_end_lease(l->conf.messenger, c, o->handle, o->lease_id, false);
		break;
	case OWED_END:
		tell_end(port, c, o);
		break;
	case OWED_REGION:
		tell_region(port, c, o);
		break;
	}
	return true;
}

static void owe(struct rv_local *l, const struct owed *o)
{
	struct owed *later;

	if (rv_list_empty(&l->owed) && pay(l, o))
		return;
	later = malloc(sizeof(*later));
	RV_CHECK(
		later); /* a hold that is forgotten is memory that is lost, one given back twice is worse */
	*later = *o;
	rv_list_push(&l->owed, &later->link);
	if (!l->retry.timer.armed)
		rv_task_at(l->conf.reactor, &l->retry, l->conf.reactor->now_ns + RETRY_NS);
}

void rv_local_pay_owed(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_local *l = RV_CONTAINER(t, struct rv_local, retry);

	while (!rv_list_empty(&l->owed)) {
		struct owed *o = RV_LIST_ENTRY(l->owed.next, struct owed, link);

		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		if (!pay(l, o)) {
			rv_task_at(r, t, r->now_ns + RETRY_NS);
			return;
		}
		rv_list_del(&o->link);
		free(o);
	}
}

void rv_local_drop_block(struct rv_local *l, struct rv_engine *e, struct rv_block *b)
{
	owe(l, &(struct owed){.what = OWED_HOLD, .engine = e, .block = b});
}

void rv_local_drop(void *local, struct rv_engine *e, struct rv_block *b)
{
	rv_local_drop_block(local, e, b);
}

void rv_local_detach(struct rv_local *l, struct rv_handle h, uint64_t lease_id)
{
	owe(l, &(struct owed){.what = OWED_LEASE, .handle = h, .lease_id = lease_id});
}

void rv_local_close_region(struct rv_local *l, struct region *g)
{
	owe(l, &(struct owed){.what = OWED_REGION, .region = g});
}

void rv_session_tell_end(struct session *s)
{
	for (unsigned i = 0; i < s->local->conf.engines->nr; i++) {
		s->refs++;
		s->local->pending++;
		owe(s->local, &(struct owed){.what = OWED_END,
					     .engine = s->local->conf.engines->engine[i],
					     .s = s});
	}
}
