#include "dataplane/lcore/cells.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/lcore/ring.h"

struct rv_port {
	struct rv_mesh *mesh;
	unsigned index;
	void *user;
	struct rv_list local; /* cells to oneself */
	struct rv_list free;
	struct rv_cell *cells; /* their pages are touched when they are first used */
	unsigned fresh;        /* never used yet: from here on */
	int event_fd;

	/* Written by this port's thread, read by every sender. */
	alignas(RV_CACHE_LINE) _Atomic bool asleep;
};

struct rv_mesh {
	unsigned ports;
	unsigned cells;
	struct rv_port *port;
	struct rv_ring **ring; /* [from * ports + to] */
};

struct rv_mesh *rv_mesh_create(unsigned ports, unsigned cells)
{
	struct rv_mesh *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->ports = ports;
	m->cells = cells;
	m->port =
		aligned_alloc(RV_CACHE_LINE, rv_align_up(sizeof(*m->port), RV_CACHE_LINE) * ports);
	m->ring = calloc((size_t)ports * ports, sizeof(struct rv_ring *));
	if (!m->port || !m->ring) {
		m->ports = 0;
		goto fail;
	}
	for (unsigned i = 0; i < ports; i++) {
		struct rv_port *p = &m->port[i];

		*p = (struct rv_port){.mesh = m, .index = i};
		rv_list_init(&p->local);
		rv_list_init(&p->free);
		p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		p->cells = calloc(cells, sizeof(*p->cells));
		if (!p->cells || p->event_fd < 0) {
			m->ports = i + 1;
			goto fail;
		}
	}
	for (unsigned i = 0; i < ports * ports; i++) {
		m->ring[i] = rv_ring_create(2 * cells);
		if (!m->ring[i])
			goto fail;
	}
	return m;
fail:
	rv_mesh_destroy(m);
	return NULL;
}

void rv_mesh_destroy(struct rv_mesh *m)
{
	if (!m)
		return;
	for (unsigned i = 0; m->ring && i < m->ports * m->ports; i++)
		rv_ring_destroy(m->ring[i]);
	for (unsigned i = 0; i < m->ports; i++) {
		free(m->port[i].cells);
		if (m->port[i].event_fd >= 0)
			close(m->port[i].event_fd);
	}
	free(m->ring);
	free(m->port);
	free(m);
}

struct rv_port *rv_mesh_port(struct rv_mesh *m, unsigned i)
{
	RV_CHECK(i < m->ports);
	return &m->port[i];
}

unsigned rv_port_index(const struct rv_port *p)
{
	return p->index;
}

unsigned rv_port_cells(const struct rv_port *p)
{
	return p->mesh->cells;
}

void rv_port_set_user(struct rv_port *p, void *user)
{
	p->user = user;
}

void *rv_port_user(const struct rv_port *p)
{
	return p->user;
}

struct rv_cell *rv_cell_alloc(struct rv_port *p)
{
	struct rv_list *l = p->free.prev; /* last freed first: warm in the cache */
	struct rv_cell *c;

	if (l != &p->free) {
		rv_list_del(l);
		return RV_LIST_ENTRY(l, struct rv_cell, link);
	}
	if (p->fresh == p->mesh->cells)
		return NULL;
	c = &p->cells[p->fresh++];
	c->home = (uint16_t)p->index;
	rv_list_init(&c->link);
	return c;
}

void rv_cell_free(struct rv_port *p, struct rv_cell *c)
{
	RV_CHECK(c->home == p->index);
	rv_list_push(&p->free, &c->link);
}

void rv_port_kick(struct rv_port *p)
{
	uint64_t one = 1;

	if (write(p->event_fd, &one, sizeof(one)) < 0) {
		/* EAGAIN: it is readable already. */
	}
}

static void deliver(struct rv_port *from, unsigned to, struct rv_cell *c)
{
	struct rv_port *dst;

	if (to == from->index) {
		rv_list_push(&from->local, &c->link);
		return;
	}
	RV_CHECK(rv_ring_push(from->mesh->ring[from->index * from->mesh->ports + to], c));

	/*
	 * W1: store-buffer litmus with rv_port_sleep(). We pushed, then read `asleep`; the sleeper sets
	 * `asleep`, then looks at its rings. Both fences are seq_cst, so one side sees the other: either
	 * we write the eventfd or it does not go to sleep. Without them a cell could wait for ever.
	 */
	atomic_thread_fence(memory_order_seq_cst);
	dst = &from->mesh->port[to];
	if (atomic_load_explicit(&dst->asleep, memory_order_relaxed))
		rv_port_kick(dst);
}

void rv_cell_send(struct rv_port *p, unsigned to, struct rv_cell *c)
{
	RV_CHECK(c->home == p->index);
	c->at = (uint16_t)to;
	c->returning = false;
	deliver(p, to, c);
}

void rv_cell_reply(struct rv_port *p, struct rv_cell *c)
{
	RV_CHECK(c->at == p->index && !c->returning);
	c->returning = true;
	deliver(p, c->home, c);
}

static void serve(struct rv_port *p, struct rv_cell *c)
{
	rv_list_init(&c->link);
	if (c->returning)
		c->done(p, c);
	else
		c->run(p, c);
}

unsigned rv_port_poll(struct rv_port *p, unsigned max)
{
	unsigned served = 0, before;
	struct rv_list *l;

	do {
		before = served;
		for (unsigned from = 0; from < p->mesh->ports; from++) {
			struct rv_ring *r = p->mesh->ring[from * p->mesh->ports + p->index];
			struct rv_cell *c;

			while (served < max && (c = rv_ring_pop(r))) {
				serve(p, c);
				served++;
			}
		}
		while (served < max && (l = rv_list_pop(&p->local))) {
			serve(p, RV_LIST_ENTRY(l, struct rv_cell, link));
			served++;
		}
	} while (served != before && served < max);
	return served;
}

static bool pending(const struct rv_port *p)
{
	if (!rv_list_empty(&p->local))
		return true;
	for (unsigned from = 0; from < p->mesh->ports; from++) {
		if (!rv_ring_empty(p->mesh->ring[from * p->mesh->ports + p->index]))
			return true;
	}
	return false;
}

bool rv_port_sleep(struct rv_port *p)
{
	atomic_store_explicit(&p->asleep, true, memory_order_relaxed);
	/* W2: pairs with W1 in deliver(). */
	atomic_thread_fence(memory_order_seq_cst);
	return !pending(p);
}

void rv_port_wake(struct rv_port *p)
{
	uint64_t n;

	/* relaxed: a sender that still reads true only writes an eventfd nobody waits for. */
	atomic_store_explicit(&p->asleep, false, memory_order_relaxed);
	if (read(p->event_fd, &n, sizeof(n)) < 0) {
		/* EAGAIN: nobody kicked. */
	}
}

int rv_port_fd(const struct rv_port *p)
{
	return p->event_fd;
}

void rv_port_wait(struct rv_port *p, int timeout_ms)
{
	struct pollfd pfd = {.fd = p->event_fd, .events = POLLIN};

	if (rv_port_sleep(p))
		poll(&pfd, 1, timeout_ms);
	rv_port_wake(p);
	rv_port_poll(p, UINT32_MAX);
}
