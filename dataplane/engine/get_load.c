/*
 * What one peer may take of an engine's gets: half of the records, so that an owner that does not answer leaves
 * room for the others, and so much memory in late reads, which only the fabric's completion gives back.
 */
#include <errno.h>
#include <stdlib.h>

#include "dataplane/base/check.h"
#include "dataplane/engine/get_impl.h"

int rv_loads_init(struct rv_engine *e)
{
	rv_list_init(&e->free_loads);
	e->loads = calloc(e->conf.max_gets, sizeof(*e->loads));
	if (!e->loads)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->conf.max_gets; i++)
		rv_list_push(&e->free_loads, &e->loads[i].link);
	return 0;
}

void rv_loads_fini(struct rv_engine *e)
{
	rv_map64_fini(&e->load_by_worker);
	free(e->loads);
	e->loads = NULL;
}

struct rv_peer_load *rv_load_enter(struct rv_engine *e, uint64_t worker)
{
	struct rv_peer_load *l = rv_map64_get(&e->load_by_worker, worker);
	uint32_t most = e->conf.max_gets > 1 ? e->conf.max_gets / 2 : 1;

	if (l && l->gets >= most)
		return NULL;
	if (!l && rv_list_empty(&e->free_loads))
		return NULL; /* there are as many as gets; those of many at once take of them too */
	if (!l) {
		l = RV_LIST_ENTRY(rv_list_pop(&e->free_loads), struct rv_peer_load, link);
		*l = (struct rv_peer_load){.worker = worker};
		if (rv_map64_put(&e->load_by_worker, worker, l)) {
			rv_list_push(&e->free_loads, &l->link);
			return NULL;
		}
	}
	l->gets++;
	return l;
}

void rv_load_leave(struct rv_engine *e, struct rv_peer_load *l)
{
	RV_CHECK(l->gets > 0);
	if (--l->gets)
		return;
	RV_CHECK(l->late_bytes == 0);
	rv_map64_del(&e->load_by_worker, l->worker);
	rv_list_push(&e->free_loads, &l->link);
}
