#include "dataplane/base/slab.h"

#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

/* Both lists hang in the memory itself: a free record's, and a chunk's first 16 bytes. */
#define HEAD 16u

static void *next_of(const void *p)
{
	void *n;

	memcpy(&n, p, sizeof(n));
	return n;
}

static void link_to(void *p, void *next)
{
	memcpy(p, &next, sizeof(next));
}

void rv_slab_init(struct rv_slab *s, size_t size, unsigned chunk_nr)
{
	*s = (struct rv_slab){.size = rv_align_up(size, 16), .chunk_nr = chunk_nr};
}

void rv_slab_fini(struct rv_slab *s)
{
	while (s->chunks) {
		void *c = s->chunks;

		s->chunks = next_of(c);
		free(c);
	}
	s->free = NULL;
}

static int grow(struct rv_slab *s)
{
	char *c = malloc(HEAD + s->size * s->chunk_nr);

	RV_CHECK(s->chunk_nr > 0);
	if (!c)
		return -1;
	link_to(c, s->chunks);
	s->chunks = c;
	for (unsigned i = s->chunk_nr; i-- > 0;) {
		link_to(c + HEAD + s->size * i, s->free);
		s->free = c + HEAD + s->size * i;
	}
	return 0;
}

void *rv_slab_take(struct rv_slab *s)
{
	void *rec;

	if (!s->free && grow(s))
		return NULL;
	rec = s->free;
	s->free = next_of(rec);
	s->out++;
	return rec;
}

void rv_slab_give(struct rv_slab *s, void *rec)
{
	link_to(rec, s->free);
	s->free = rec;
	s->out--;
}
