#include "tests/fake/fake_fabric.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "dataplane/base/units.h"

static struct fake_fabric *self(struct rv_fabric *f)
{
	return RV_CONTAINER(f, struct fake_fabric, fabric);
}

static int open_reactor(struct rv_fabric *f, unsigned reactor, struct rv_poller **poller)
{
	(void)f;
	(void)reactor;
	*poller = NULL;
	return 0;
}

static void close_reactor(struct rv_fabric *f, unsigned reactor)
{
	(void)f;
	(void)reactor;
}

static size_t address(struct rv_fabric *f, unsigned reactor, void *buf, size_t cap)
{
	(void)f;
	(void)reactor;
	if (cap >= 4)
		memcpy(buf, "fake", 4);
	return 4;
}

static int map(struct rv_fabric *f, void *base, uint64_t len, enum rv_map_access access,
	       struct rv_fabric_map **out)
{
	struct fake_fabric *ff = self(f);
	int rc = fake_next(&ff->map_rc);
	struct rv_fabric_map *m;

	if (rc)
		return rc;
	m = calloc(1, sizeof(*m));
	assert_non_null(m);
	m->base = base;
	m->len = len;
	m->key_len = access == RV_MAP_DESTINATION ? 0 : ff->key_len;
	memset(m->key, 0x5a, m->key_len);
	ff->maps++;
	ff->live_maps++;
	*out = m;
	return 0;
}

static int unmap(struct rv_fabric *f, struct rv_fabric_map *m)
{
	struct fake_fabric *ff = self(f);
	int rc = fake_next(&ff->unmap_rc);

	ff->unmaps++;
	ff->live_maps--;
	free(m);
	return rc;
}

static int peer_up(struct rv_fabric *f, unsigned reactor, const struct rv_fabric_peer *p)
{
	struct fake_fabric *ff = self(f);

	(void)reactor;
	ff->peers_up++;
	ff->last_peer = p->worker;
	ff->last_addr_len = p->addr_len;
	memcpy(ff->last_addr, p->addr, rv_min_u64(p->addr_len, sizeof(ff->last_addr)));
	return fake_next(&ff->peer_up_rc);
}

static void peer_down(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	struct fake_fabric *ff = self(f);

	(void)reactor;
	ff->peers_down++;
	ff->last_peer = worker;
}

static enum rv_peer_state peer_state(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	struct fake_fabric *ff = self(f);

	(void)reactor;
	(void)worker;
	ff->states++;
	return (enum rv_peer_state)fake_next(&ff->state);
}

static int get(struct rv_fabric *f, unsigned reactor, struct rv_fabric_get *g)
{
	struct fake_fabric *ff = self(f);
	int rc = fake_next(&ff->get_rc);

	(void)reactor;
	ff->gets++;
	if (rc)
		return rc;
	assert_non_null(g->local_map);
	assert_true((uint8_t *)g->local >= (uint8_t *)g->local_map->base);
	assert_true((uint8_t *)g->local + g->len <=
		    (uint8_t *)g->local_map->base + g->local_map->len);
	rv_list_push(&ff->outstanding, &g->link);
	ff->outstanding_nr++;
	return 0;
}

/* It completes when the test says so, as a real endpoint's GETs do some polls later. */
static void abandon(struct rv_fabric *f, unsigned reactor, uint64_t worker)
{
	struct fake_fabric *ff = self(f);

	(void)reactor;
	ff->abandons++;
	ff->last_peer = worker;
}

static unsigned outstanding(struct rv_fabric *f, unsigned reactor)
{
	(void)reactor;
	return self(f)->outstanding_nr;
}

static int quiesce(struct rv_fabric *f, unsigned reactor)
{
	(void)reactor;
	return fake_next(&self(f)->quiesce_rc);
}

static void destroy(struct rv_fabric *f)
{
	(void)f;
}

void fake_fabric_init(struct fake_fabric *f, unsigned backend, unsigned offer_bit)
{
	*f = (struct fake_fabric){
		.ops =
			{
				.name = "fake",
				.backend = backend,
				.offer_bit = offer_bit,
				.open_reactor = open_reactor,
				.close_reactor = close_reactor,
				.address = address,
				.map = map,
				.unmap = unmap,
				.peer_up = peer_up,
				.peer_down = peer_down,
				.peer_state = peer_state,
				.get = get,
				.abandon = abandon,
				.outstanding = outstanding,
				.quiesce = quiesce,
				.destroy = destroy,
			},
		.state = {.then = RV_PEER_UP},
		.key_len = 40,
	};
	f->fabric.ops = &f->ops;
	rv_list_init(&f->outstanding);
}

void fake_fabric_remote(struct fake_fabric *f, uint64_t worker, uint64_t addr, const void *bytes,
			uint64_t len)
{
	assert_true(f->remote_nr < FAKE_REMOTES);
	f->remote[f->remote_nr++] = (struct fake_remote){worker, addr, len, bytes};
}

static const uint8_t *remote_bytes(const struct fake_fabric *f, const struct rv_fabric_get *g)
{
	for (unsigned i = 0; i < f->remote_nr; i++) {
		const struct fake_remote *r = &f->remote[i];

		if (r->worker == g->worker && g->remote_addr >= r->addr &&
		    g->remote_addr + g->len <= r->addr + r->len)
			return r->bytes + (g->remote_addr - r->addr);
	}
	fail_msg("a GET reads memory that no peer has");
	return NULL;
}

struct rv_fabric_get *fake_fabric_first(const struct fake_fabric *f)
{
	return rv_list_empty(&f->outstanding)
		       ? NULL
		       : RV_LIST_ENTRY(f->outstanding.next, struct rv_fabric_get, link);
}

void fake_fabric_write_half(struct fake_fabric *f)
{
	struct rv_fabric_get *g = fake_fabric_first(f);

	assert_non_null(g);
	memcpy(g->local, remote_bytes(f, g), g->len / 2);
}

void fake_fabric_complete(struct fake_fabric *f, int rc)
{
	struct rv_fabric_get *g = fake_fabric_first(f);

	assert_non_null(g);
	if (!rc)
		memcpy(g->local, remote_bytes(f, g), g->len);
	rv_list_del(&g->link);
	f->outstanding_nr--;
	g->done(g, rc);
}
