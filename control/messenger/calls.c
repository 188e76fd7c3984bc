#include "control/messenger/calls.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "control/messenger/messenger_impl.h"
#include "dataplane/base/check.h"

static void deadline_passed(struct rv_reactor *r, struct rv_task *t);

int rv_calls_init(struct rv_calls *t, struct rv_reactor *r, uint64_t worker)
{
	void *mem = mmap(NULL, sizeof(struct rv_call) * RV_CALLS_MAX, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mem == MAP_FAILED)
		return -ENOMEM;
	*t = (struct rv_calls){.reactor = r, .worker = worker, .call = mem};
	rv_list_init(&t->free);
	return 0;
}

void rv_calls_fini(struct rv_calls *t)
{
	munmap(t->call, sizeof(struct rv_call) * RV_CALLS_MAX);
}

/* A record that was used before, oldest first, once a thousand wait; else the next fresh one. */
static struct rv_call *take(struct rv_calls *t)
{
	struct rv_list *l;

	if (t->fresh < RV_CALLS_MAX && t->freed < 1024) {
		struct rv_call *c = &t->call[t->fresh];

		c->slot = (uint16_t)t->fresh++;
		return c;
	}
	l = rv_list_pop(&t->free);
	if (!l)
		return NULL;
	t->freed--;
	return RV_LIST_ENTRY(l, struct rv_call, link);
}

struct rv_call *rv_call_begin(struct rv_calls *t, uint64_t deadline_ns, rv_call_fn *done, void *ctx)
{
	struct rv_call *c = take(t);
	uint64_t generation;
	uint16_t slot;

	if (!c)
		return NULL;
	generation = c->generation + 1;
	slot = c->slot;
	*c = (struct rv_call){
		.generation = generation & ((1ULL << 48) - 1),
		.slot = slot,
		.state = RV_CALL_WAITING,
		.done = done,
		.ctx = ctx,
		.deadline = {.fn = deadline_passed},
	};
	rv_list_init(&c->link);
	t->live++;
	rv_task_at(t->reactor, &c->deadline, deadline_ns);
	return c;
}

struct rv_msg_id rv_call_id(const struct rv_calls *t, const struct rv_call *c)
{
	return rv_msg_id_make(t->worker, c->slot, c->generation);
}

struct rv_call *rv_call_find(struct rv_calls *t, const struct rv_msg_id *id)
{
	struct rv_call *c;

	if (rv_msg_id_worker(id) != t->worker || rv_msg_id_slot(id) >= t->fresh)
		return NULL;
	c = &t->call[rv_msg_id_slot(id)];
	return c->state == RV_CALL_SENT && c->generation == rv_msg_id_generation(id) ? c : NULL;
}

static void release(struct rv_calls *t, struct rv_call *c)
{
	RV_CHECK(c->state != RV_CALL_FREE && !c->placing);
	rv_task_cancel(t->reactor, &c->deadline);
	free(c->body);
	c->body = NULL;
	if (c->route)
		c->route->holds--;
	rv_list_del(&c->link);
	c->state = RV_CALL_FREE;
	rv_list_push(&t->free, &c->link);
	t->freed++;
	t->live--;
}

void rv_call_finish(struct rv_calls *t, struct rv_call *c, const struct rv_call_answer *a)
{
	rv_call_fn *done = c->done;
	struct rv_call copy = *c;

	release(t, c);
	done(&copy, a);
}

void rv_call_forget(struct rv_calls *t, struct rv_call *c)
{
	release(t, c);
}

static void deadline_passed(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_messenger *m = rv_port_user(r->port);

	rv_messenger_end_call(m, RV_CONTAINER(t, struct rv_call, deadline), -ETIMEDOUT);
}
