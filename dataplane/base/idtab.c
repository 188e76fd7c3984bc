#include "dataplane/base/idtab.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "dataplane/base/check.h"
#include "dataplane/base/handle.h"
#include "dataplane/base/hash.h"

#define NIL       UINT32_MAX
#define TAG_SHIFT (RV_LOCAL_REACTOR_BITS + RV_IDTAB_INDEX_BITS)

static struct rv_idrec *rec_at(const struct rv_idtab *t, uint32_t i)
{
	return (struct rv_idrec *)(void *)(t->rec + (size_t)i * t->rec_size);
}

const char *rv_end_cause_suffix(enum rv_end_cause c)
{
	switch (c) {
	case RV_END_RELEASED:
	case RV_END_DROPPED:
		return ": released";
	case RV_END_EXPIRED:
		return ": expired";
	case RV_END_NONE:
	default:
		return "";
	}
}

int rv_idtab_init(struct rv_idtab *t, size_t rec_size, uint32_t max, unsigned reactor,
		  uint64_t seed)
{
	void *mem;

	RV_CHECK(max > 0 && max <= RV_IDTAB_MAX);
	RV_CHECK(rec_size >= sizeof(struct rv_idrec) && rec_size % 8 == 0);
	mem = mmap(NULL, rec_size * max, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED)
		return -ENOMEM;
	*t = (struct rv_idtab){
		.rec = mem,
		.rec_size = rec_size,
		.max = max,
		.free_head = NIL,
		.free_tail = NIL,
		.reactor = reactor,
		.random = seed != 0,
		.seed = seed,
	};
	return 0;
}

void rv_idtab_fini(struct rv_idtab *t)
{
	if (t->rec)
		munmap(t->rec, t->rec_size * t->max);
	t->rec = NULL;
}

static struct rv_idrec *take_record(struct rv_idtab *t)
{
	struct rv_idrec *r;

	if (t->fresh < t->max && t->free_nr <= RV_IDTAB_REMEMBER)
		return rec_at(t, t->fresh++);
	if (t->free_head == NIL)
		return NULL;
	r = rec_at(t, t->free_head);
	t->free_head = r->next_free;
	if (t->free_head == NIL)
		t->free_tail = NIL;
	t->free_nr--;
	return r;
}

static uint64_t next_tag(struct rv_idtab *t, uint64_t last_id)
{
	uint64_t tag;

	if (!t->random)
		return (last_id >> TAG_SHIFT) + 1;
	do {
		t->seed += 0x9e3779b97f4a7c15ULL;
		tag = rv_hash_u64(t->seed) >> TAG_SHIFT;
	} while (!tag || tag == last_id >> TAG_SHIFT);
	return tag;
}

void *rv_idtab_alloc(struct rv_idtab *t)
{
	struct rv_idrec *r = take_record(t);
	uint64_t index, last;

	if (!r)
		return NULL;
	index = (uint64_t)((uint8_t *)r - t->rec) / t->rec_size;
	last = r->id;
	memset(r, 0, t->rec_size);
	r->id = next_tag(t, last) << TAG_SHIFT | index << RV_LOCAL_REACTOR_BITS | t->reactor;
	r->live = 1;
	t->live_nr++;
	return r;
}

static struct rv_idrec *rec_of(const struct rv_idtab *t, uint64_t id)
{
	uint32_t index = (uint32_t)(id >> RV_LOCAL_REACTOR_BITS) & (RV_IDTAB_MAX - 1);

	if (rv_local_reactor(id) != t->reactor || index >= t->fresh)
		return NULL;
	return rec_at(t, index);
}

void *rv_idtab_get(const struct rv_idtab *t, uint64_t id)
{
	struct rv_idrec *r = rec_of(t, id);

	return r && r->live && r->id == id ? r : NULL;
}

void rv_idtab_free(struct rv_idtab *t, void *rec, enum rv_end_cause cause)
{
	struct rv_idrec *r = rec;
	uint32_t index = (uint32_t)(((size_t)((uint8_t *)rec - t->rec)) / t->rec_size);

	RV_CHECK(r->live);
	r->live = 0;
	r->cause = (uint8_t)cause;
	r->next_free = NIL;
	if (t->free_tail == NIL)
		t->free_head = index;
	else
		rec_at(t, t->free_tail)->next_free = index;
	t->free_tail = index;
	t->free_nr++;
	t->live_nr--;
}

enum rv_end_cause rv_idtab_cause(const struct rv_idtab *t, uint64_t id)
{
	const struct rv_idrec *r = rec_of(t, id);

	return r && !r->live && r->id == id ? (enum rv_end_cause)r->cause : RV_END_NONE;
}

void *rv_idtab_next(const struct rv_idtab *t, uint32_t *pos)
{
	while (*pos < t->fresh) {
		struct rv_idrec *r = rec_at(t, (*pos)++);

		if (r->live)
			return r;
	}
	return NULL;
}
