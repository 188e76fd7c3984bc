#include "tests/fake/fake_grow.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "dataplane/base/units.h"

void fake_grow_init(struct fake_grow *f, struct rv_pool *pool, struct fake_fabric *fabric)
{
	*f = (struct fake_grow){.pool = pool, .fabric = fabric};
}

int fake_grow_ask(void *user, const struct rv_pool_grow *g)
{
	struct fake_grow *f = user;
	int rc = fake_next(&f->grow_rc);

	if (rc)
		return rc;
	assert_true(f->pending_nr < FAKE_GROWTHS);
	f->pending[f->pending_nr++] = *g;
	f->asked++;
	return 0;
}

static void pages_make(struct rv_pages *p, uint64_t len)
{
	p->memfd = memfd_create("fake-arena", MFD_CLOEXEC);
	assert_true(p->memfd >= 0);
	assert_int_equal(ftruncate(p->memfd, (off_t)len), 0);
	p->base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, p->memfd, 0);
	assert_true(p->base != MAP_FAILED);
	p->len = len;
}

static struct rv_arena *arena_make(struct fake_grow *f, const struct rv_pool_grow *g)
{
	struct rv_arena *a = calloc(1, sizeof(*a));
	uint64_t len = rv_align_up(g->len_want, RV_GRANULE);

	assert_non_null(a);
	if (f->len_cap && len > f->len_cap)
		len = rv_max_u64(f->len_cap, rv_align_up(g->len_min, RV_GRANULE));
	a->cls = g->cls;
	a->reactor = g->reactor;
	a->dedicated = g->dedicated;
	a->id = ++f->last_id;
	rv_list_init(&a->link);
	pages_make(&a->pages, len);
	if (!a->dedicated) {
		a->alloc = rv_offset_alloc_create((uint32_t)(len / RV_GRANULE));
		assert_non_null(a->alloc);
	}
	if (f->fabric && g->cls.kind != RV_ARENA_PLAIN && !g->cls.plain) {
		struct rv_fabric *fab = &f->fabric->fabric;

		assert_int_equal(fab->ops->map(fab, a->pages.base, len,
					       g->cls.kind == RV_ARENA_LANDING ? RV_MAP_DESTINATION
									       : RV_MAP_BOTH,
					       &a->map[fab->index]),
				 0);
		a->generation = ++f->generation;
	}
	f->live++;
	return a;
}

int fake_grow_shrink(void *user, struct rv_arena *a)
{
	struct fake_grow *f = user;
	int rc = fake_next(&f->shrink_rc);

	if (rc)
		return rc;
	assert_int_equal(a->block_nr, 0);
	if (a->generation) {
		struct rv_fabric *fab = &f->fabric->fabric;

		assert_int_equal(fab->ops->unmap(fab, a->map[fab->index]), 0);
	}
	rv_offset_alloc_destroy(a->alloc);
	munmap(a->pages.base, a->pages.len);
	close(a->pages.memfd);
	free(a);
	f->given_back++;
	f->live--;
	return 0;
}

static struct rv_pool_grow take(struct fake_grow *f)
{
	struct rv_pool_grow g;

	assert_true(f->pending_nr > 0);
	g = f->pending[0];
	f->pending_nr--;
	memmove(f->pending, f->pending + 1, f->pending_nr * sizeof(f->pending[0]));
	return g;
}

void fake_grow_serve(struct fake_grow *f)
{
	struct rv_pool_grow g = take(f);

	g.rc = 0;
	g.arena = arena_make(f, &g);
	f->served++;
	rv_pool_grown(f->pool, &g);
}

void fake_grow_refuse(struct fake_grow *f, int rc)
{
	struct rv_pool_grow g = take(f);

	g.rc = rc;
	g.arena = NULL;
	f->refused++;
	rv_pool_grown(f->pool, &g);
}

void fake_grow_serve_all(struct fake_grow *f)
{
	while (f->pending_nr)
		fake_grow_serve(f);
}
