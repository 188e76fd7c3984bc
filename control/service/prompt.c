#include "control/service/prompt.h"

#include <errno.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

struct ask_msg {
	struct rv_prompt *p;
	struct rv_export_ask ask;
};

void rv_prompt_init(struct rv_prompt *p, struct rv_port *port, struct rv_registrar *registrar)
{
	*p = (struct rv_prompt){.thread = {.port = port, .name = "rvd-prompt"},
				.registrar = registrar};
}

/* Taken for the most it can pin; what it does not is given back. */
static int make(struct rv_prompt *p, struct rv_export_ask *a)
{
	struct rv_budget *b = &p->registrar->registered;
	uint64_t most = rv_granules(a->len) * RV_GRANULE + RV_GRANULE;
	int rc;

	if (!rv_budget_take(b, most))
		return -ENOSPC;
	rc = a->fabric->ops->export_key(a->fabric, a->map, a->addr, a->len, &a->to, &a->key);
	if (rc) {
		rv_budget_give(b, most);
		return rc;
	}
	RV_CHECK(a->key->pinned <= most);
	rv_budget_give(b, most - a->key->pinned);
	rv_counter_add(&p->pinned_bytes, a->key->pinned);
	rv_counter_add(&p->made, 1);
	return 0;
}

static int revoke(struct rv_prompt *p, struct rv_export_ask *a)
{
	uint64_t pinned = a->key->pinned;
	int rc = a->fabric->ops->revoke_key(a->fabric, a->key);

	if (rc) {
		rv_counter_add(&p->stuck, 1);
		return rc;
	}
	rv_budget_give(&p->registrar->registered, pinned);
	rv_counter_sub(&p->pinned_bytes, pinned);
	return 0;
}

static void run_ask(struct rv_port *port, struct rv_cell *c)
{
	struct ask_msg *m = (void *)c->body;

	m->ask.rc = m->ask.op == RV_EXPORT_MAKE ? make(m->p, &m->ask) : revoke(m->p, &m->ask);
	if (m->ask.rc && m->ask.op == RV_EXPORT_MAKE)
		rv_counter_add(&m->p->refused, 1);
	rv_cell_reply(port, c);
}

static void asked(struct rv_port *port, struct rv_cell *c)
{
	struct ask_msg m = *(struct ask_msg *)(void *)c->body;

	rv_cell_free(port, c);
	rv_export_asked(&m.ask);
}

int rv_prompt_ask(void *user, const struct rv_export_ask *a)
{
	struct rv_registrar_client *cl = user;
	struct rv_port *port = cl->engine->reactor->port;
	struct rv_cell *c = rv_cell_alloc(port);

	if (!c)
		return -EAGAIN;
	*(struct ask_msg *)(void *)c->body = (struct ask_msg){cl->prompt, *a};
	c->run = run_ask;
	c->done = asked;
	rv_cell_send(port, rv_port_index(cl->prompt->thread.port), c);
	return 0;
}

_Static_assert(sizeof(struct ask_msg) <= RV_CELL_BODY, "fits a cell");

int rv_prompt_start(struct rv_prompt *p)
{
	return rv_port_thread_start(&p->thread);
}

void rv_prompt_stop(struct rv_prompt *p)
{
	rv_port_thread_stop(&p->thread);
}
