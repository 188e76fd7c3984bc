/*
 * The records of calls: each by itself, or many in one piece of memory.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "control/client/wire_impl.h"
#include "dataplane/base/units.h"

/* Larger groups are kept. */
#define GROUP_SMALL 16u

/* The rest is the caller's to set. */
static void call_init(struct rv_call *call)
{
	rv_list_init(&call->link);
	rv_list_init(&call->waiting);
	rv_list_init(&call->naming);
}

struct rv_call *rv_call_new(uint8_t op)
{
	struct rv_call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->op = op;
	call_init(call);
	return call;
}

/* Of as many calls or more. Acquire and release: who takes it sees what its last calls left. */
static struct rv_call_group *take_group(struct rv_wire *w, size_t nr)
{
	size_t room = nr > GROUP_SMALL ? RV_LOCAL_MANY_MAX : nr;
	struct rv_call_group *g = NULL;

	for (size_t i = 0; nr > GROUP_SMALL && !g && i < RV_ARRAY_NR(w->spare); i++)
		g = atomic_exchange_explicit(&w->spare[i], NULL, memory_order_acquire);
	if (!g)
		g = malloc(sizeof(*g) + room * sizeof(g->call[0]));
	if (g)
		g->wire = nr > GROUP_SMALL ? w : NULL;
	return g;
}

static void give_group(struct rv_call_group *g)
{
	struct rv_wire *w = g->wire;

	for (size_t i = 0; w && g && i < RV_ARRAY_NR(w->spare); i++)
		g = atomic_exchange_explicit(&w->spare[i], g, memory_order_acq_rel);
	free(g);
}

struct rv_call_group *rv_call_group_new(struct rv_wire *w, const struct rv_call *first, size_t nr)
{
	struct rv_call_group *g = take_group(w, nr);

	if (!g)
		return NULL;
	atomic_init(&g->live, nr);
	for (size_t i = 0; i < nr; i++) {
		struct rv_call *call = &g->call[i];

		memset(call, 0, offsetof(struct rv_call, rq));
		memcpy(&call->rq, &first->rq, offsetof(struct rv_local_req, host));
		call->rq.host[0] = call->rq.name[0] = call->text[0] = '\0';
		call->group = g;
		call->op = first->op;
		call_init(call);
	}
	g->call[0].rq = first->rq;
	return g;
}

void rv_call_free(struct rv_call *call)
{
	struct rv_call_group *g = call ? call->group : NULL;

	if (!call)
		return;
	if (call->has_changed)
		pthread_cond_destroy(&call->changed);
	free(call->payload);
	if (!g)
		free(call);
	/* acq_rel: what others did with theirs is over when the memory goes. */
	else if (atomic_fetch_sub_explicit(&g->live, 1, memory_order_acq_rel) == 1)
		give_group(g);
}
