#include "control/local/shmq.h"

#include <errno.h>
#include <string.h>

/* Before each frame; entries begin at multiples of it, so that it lies in one piece. */
struct entry {
	uint32_t len;
	uint32_t others; /* frames of the socket that come before it */
};

#define MASK (RV_SHMQ_BYTES - 1)

_Static_assert(sizeof(struct entry) == 8, "entries are as long as their alignment");
_Static_assert(2 * sizeof(struct rv_shmq_words) <= 4096, "the words have a page");
_Static_assert((RV_SHMQ_BYTES & MASK) == 0, "a power of two");

static uint32_t whole(uint32_t len)
{
	return (uint32_t)sizeof(struct entry) + ((len + 7u) & ~7u);
}

void rv_shmq_init(void *mem, bool daemon, uint32_t sent, uint32_t taken, struct rv_shmq_out *out,
		  struct rv_shmq_in *in)
{
	struct rv_shmq_words *w = mem;
	uint8_t *data = (uint8_t *)mem + 4096;

	*out = (struct rv_shmq_out){.w = &w[daemon],
				    .data = data + (size_t)daemon * RV_SHMQ_BYTES,
				    .others = sent};
	*in = (struct rv_shmq_in){.w = &w[!daemon],
				  .data = data + (size_t)!daemon * RV_SHMQ_BYTES,
				  .others = taken};
	atomic_store_explicit(&in->w->rests, 1, memory_order_relaxed);
	if (daemon) /* until it knows of it */
		atomic_store_explicit(&out->w->rests, 1, memory_order_relaxed);
}

static void copy_in(struct rv_shmq_out *q, uint32_t at, const void *from, size_t n)
{
	size_t first = RV_SHMQ_BYTES - (at & MASK);

	if (!n) /* then there may be no bytes to point at */
		return;
	if (first > n)
		first = n;
	memcpy(q->data + (at & MASK), from, first);
	memcpy(q->data, (const uint8_t *)from + first, n - first);
}

bool rv_shmq_put(struct rv_shmq_out *q, const struct iovec *part, unsigned nr, bool *wake)
{
	uint32_t at = q->tail + (uint32_t)sizeof(struct entry), used;
	struct entry e = {.others = q->others};
	size_t len = 0;

	for (unsigned i = 0; i < nr; i++)
		len += part[i].iov_len;
	if (len > RV_SHMQ_FRAME || atomic_load_explicit(&q->w->rests, memory_order_relaxed))
		return false;
	/* Pairs with the release in rv_shmq_take(): what lay there was copied. */
	used = q->tail - atomic_load_explicit(&q->w->head, memory_order_acquire);
	e.len = (uint32_t)len;
	if (used > RV_SHMQ_BYTES || RV_SHMQ_BYTES - used < whole(e.len))
		return false;
	copy_in(q, q->tail, &e, sizeof(e));
	for (unsigned i = 0; i < nr; at += (uint32_t)part[i++].iov_len)
		copy_in(q, at, part[i].iov_base, part[i].iov_len);
	q->tail += whole(e.len);
	/* Pairs with the acquire in rv_shmq_ready(): the frame is there. */
	atomic_store_explicit(&q->w->tail, q->tail, memory_order_release);
	/* Pairs with the fence in rv_shmq_rest(): the reader sees the tail, or we see that it rests. */
	atomic_thread_fence(memory_order_seq_cst);
	*wake = atomic_load_explicit(&q->w->rests, memory_order_relaxed);
	return true;
}

void rv_shmq_other(struct rv_shmq_out *q)
{
	atomic_store_explicit(&q->w->others, ++q->others, memory_order_relaxed);
}

/* The entry at the head. @return how many bytes there are; 0: none whose turn it is */
static uint32_t next(const struct rv_shmq_in *q, struct entry *e)
{
	/* Pairs with the release in rv_shmq_put(). */
	uint32_t there = atomic_load_explicit(&q->w->tail, memory_order_acquire) - q->head;
	uint64_t word;

	if (!there)
		return 0;
	/* Once, and whole. */
	word = atomic_load_explicit(
		(const _Atomic uint64_t *)(const void *)(q->data + (q->head & MASK)),
		memory_order_relaxed);
	memcpy(e, &word, sizeof(*e));
	return (int32_t)(e->others - q->others) > 0 ? 0 : there;
}

int rv_shmq_take(struct rv_shmq_in *q, uint8_t *buf)
{
	struct entry e;
	uint32_t there = next(q, &e), at = (q->head + (uint32_t)sizeof(e)) & MASK, first;

	if (!there)
		return 0;
	if (there > RV_SHMQ_BYTES || e.len == 0 || e.len > RV_SHMQ_FRAME || whole(e.len) > there)
		return -EPROTO;
	first = RV_SHMQ_BYTES - at;
	if (first > e.len)
		first = e.len;
	memcpy(buf, q->data + at, first);
	memcpy(buf + first, q->data, e.len - first);
	q->head += whole(e.len);
	/* Pairs with the acquire in rv_shmq_put(). */
	atomic_store_explicit(&q->w->head, q->head, memory_order_release);
	return (int)e.len;
}

bool rv_shmq_ready(const struct rv_shmq_in *q)
{
	struct entry e;

	return next(q, &e) != 0;
}

bool rv_shmq_rest(struct rv_shmq_in *q)
{
	atomic_store_explicit(&q->w->rests, 1, memory_order_relaxed);
	/* Pairs with the fence in rv_shmq_put(). */
	atomic_thread_fence(memory_order_seq_cst);
	return !rv_shmq_ready(q);
}
