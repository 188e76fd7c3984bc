#include "control/client/arena_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* An arena that can shrink under us would turn a read into SIGBUS. */
bool rv_arena_usable(int fd, uint64_t len)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st))
		return false;
	return len > 0 && len <= SIZE_MAX && st.st_size >= 0 && (uint64_t)st.st_size >= len;
}

static int map(struct rv_arena *a, int fd, const char **why)
{
	int prot = PROT_READ | (a->writable ? PROT_WRITE : 0);
	void *p;

	if (!rv_arena_usable(fd, a->len)) {
		*why = "the daemon sent memory that is too short or not sealed";
		return -EPROTO;
	}
	p = mmap(NULL, a->len, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		*why = "the daemon's memory cannot be mapped into this process";
		return -errno;
	}
	madvise(p, a->len, MADV_DONTFORK);
	a->base = p;
	return 0;
}

static int show(struct rv_arena_map *m, const struct rv_arena_word *w, struct rv_arena **out,
		const char **why)
{
	struct rv_arena *a = calloc(1, sizeof(*a));
	int rc;

	*why = "out of memory";
	if (!a)
		return -ENOMEM;
	a->id = w->id;
	a->len = w->arena_len;
	a->writable = w->writable;
	a->single_use = w->single_use;
	rc = map(a, w->fd, why);
	if (rc == 0 && rv_map64_put(&m->by_id, a->id, a)) {
		munmap(a->base, a->len);
		rc = -ENOMEM;
	}
	if (rc) {
		free(a);
		return rc;
	}
	*out = a;
	return 0;
}

static int find(struct rv_arena_map *m, const struct rv_arena_word *w, struct rv_arena **out,
		const char **why)
{
	struct rv_arena *a =
		m->last && m->last->id == w->id ? m->last : rv_map64_get(&m->by_id, w->id);

	if (a) {
		*out = m->last = a;
		return 0;
	}
	if (w->fd < 0) {
		*why = "the daemon named memory that this session was not shown";
		return -EPROTO;
	}
	return show(m, w, out, why);
}

int rv_arena_map_take(struct rv_arena_map *m, const struct rv_arena_word *w, struct rv_arena **out,
		      const char **why)
{
	struct rv_arena *a = NULL;
	int rc = find(m, w, &a, why);

	if (w->fd >= 0)
		close(w->fd);
	if (rc)
		return rc;
	if (w->off > a->len || w->len > a->len - w->off) {
		*why = "the daemon named bytes outside its memory";
		return -EPROTO;
	}
	if (a == m->kept) {
		m->kept = NULL;
		a->idle_since = 0;
	} else if (a->single_use && a->idle_since) {
		a->idle_since = 0;
		m->idle_nr--;
	}
	a->holds++;
	*out = a;
	return 0;
}

/* Buffers. */

/* How many begin at or before @off. */
static size_t bufs_to(const struct rv_arena *a, uint64_t off)
{
	size_t low = 0, high = a->buf_nr;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (a->buf[mid].off <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

void rv_arena_add_buf(struct rv_arena *a, const struct rv_arena_buf *b)
{
	size_t i = bufs_to(a, b->off);

	if (a->buf_nr == a->buf_cap) {
		size_t cap = a->buf_cap ? 2 * a->buf_cap : 8;
		struct rv_arena_buf *more = realloc(a->buf, cap * sizeof(*more));

		if (!more)
			return;
		a->buf = more;
		a->buf_cap = cap;
	}
	memmove(a->buf + i + 1, a->buf + i, (a->buf_nr++ - i) * sizeof(*a->buf));
	a->buf[i] = *b;
}

void rv_arena_del_buf(struct rv_arena *a, uint64_t off)
{
	size_t i = bufs_to(a, off);

	if (i && a->buf[i - 1].off == off)
		memmove(a->buf + i - 1, a->buf + i, (a->buf_nr-- - i) * sizeof(*a->buf));
}

static uint64_t find_buf(const struct rv_arena *a, uint64_t at, uint64_t len, uint64_t *off)
{
	size_t i = bufs_to(a, at);
	const struct rv_arena_buf *b = i ? &a->buf[i - 1] : NULL;

	if (!b || at - b->off > b->len || len > b->len - (at - b->off))
		return 0;
	*off = at - b->off;
	return b->token;
}

uint64_t rv_arena_map_find_buf(const struct rv_arena_map *m, const void *p, uint64_t len,
			       uint64_t *off)
{
	struct rv_arena *a;
	size_t pos = 0;

	while ((a = rv_map64_next(&m->by_id, &pos))) {
		uintptr_t at = (uintptr_t)p - (uintptr_t)a->base;

		if (a->buf_nr && (uintptr_t)p >= (uintptr_t)a->base && at < a->len)
			return find_buf(a, at, len, off);
	}
	return 0;
}

static void forget(struct rv_arena *a)
{
	free(a->buf);
	free(a);
}

/* Holds. */

void rv_arena_map_drop(struct rv_arena_map *m, struct rv_arena *a, uint64_t newest)
{
	if (--a->holds || !a->single_use)
		return;
	a->idle_since = newest;
	if (!a->writable) {
		m->idle_nr++;
		return;
	}
	m->idle_nr += m->kept != NULL;
	m->kept = a;
}

void rv_arena_map_sweep(struct rv_arena_map *m, uint64_t oldest)
{
	struct rv_arena *a;
	size_t pos = 0;

	while (m->idle_nr && (a = rv_map64_next(&m->by_id, &pos))) {
		if (!a->idle_since || oldest <= a->idle_since || a == m->kept)
			continue;
		rv_map64_del(&m->by_id, a->id);
		m->last = NULL;
		munmap(a->base, a->len);
		forget(a);
		m->idle_nr--;
		pos = 0; /* the map changed */
	}
}

void rv_arena_map_fini(struct rv_arena_map *m, bool unmap)
{
	struct rv_arena *a;
	size_t pos = 0;

	while ((a = rv_map64_next(&m->by_id, &pos))) {
		if (unmap)
			munmap(a->base, a->len);
		forget(a);
	}
	m->last = m->kept = NULL;
	rv_map64_fini(&m->by_id);
}
