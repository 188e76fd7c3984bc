#include "dataplane/base/map64.h"

#include <errno.h>
#include <stdlib.h>

#include "dataplane/base/check.h"
#include "dataplane/base/hash.h"

void rv_map64_fini(struct rv_map64 *m)
{
	free(m->entry);
	*m = (struct rv_map64){0};
}

static size_t find(const struct rv_map64 *m, uint64_t key)
{
	size_t i = rv_hash_u64(key) & (m->cap - 1);

	while (m->entry[i].value && m->entry[i].key != key)
		i = (i + 1) & (m->cap - 1);
	return i;
}

void *rv_map64_get(const struct rv_map64 *m, uint64_t key)
{
	return m->cap ? m->entry[find(m, key)].value : NULL;
}

static int grow(struct rv_map64 *m)
{
	struct rv_map64 bigger = {.cap = m->cap ? m->cap * 2 : 16};

	bigger.entry = calloc(bigger.cap, sizeof(*bigger.entry));
	if (!bigger.entry)
		return -ENOMEM;
	for (size_t i = 0; i < m->cap; i++) {
		if (m->entry[i].value)
			bigger.entry[find(&bigger, m->entry[i].key)] = m->entry[i];
	}
	bigger.nr = m->nr;
	free(m->entry);
	*m = bigger;
	return 0;
}

int rv_map64_put(struct rv_map64 *m, uint64_t key, void *value)
{
	size_t i;
	int rc;

	RV_CHECK(value);
	if (m->nr * 4 >= m->cap * 3) {
		rc = grow(m);
		if (rc)
			return rc;
	}
	i = find(m, key);
	if (!m->entry[i].value)
		m->nr++;
	m->entry[i] = (struct rv_map64_entry){key, value};
	return 0;
}

void *rv_map64_del(struct rv_map64 *m, uint64_t key)
{
	size_t i, j, home;
	void *was;

	if (!m->cap)
		return NULL;
	i = find(m, key);
	was = m->entry[i].value;
	if (!was)
		return NULL;
	m->nr--;
	/* Close the gap: move back every follower whose home is not between the gap and itself. */
	for (j = (i + 1) & (m->cap - 1); m->entry[j].value; j = (j + 1) & (m->cap - 1)) {
		home = rv_hash_u64(m->entry[j].key) & (m->cap - 1);
		if (((j - home) & (m->cap - 1)) >= ((j - i) & (m->cap - 1))) {
			m->entry[i] = m->entry[j];
			i = j;
		}
	}
	m->entry[i].value = NULL;
	return was;
}

void *rv_map64_next(const struct rv_map64 *m, size_t *pos)
{
	while (*pos < m->cap) {
		void *v = m->entry[(*pos)++].value;

		if (v)
			return v;
	}
	return NULL;
}
