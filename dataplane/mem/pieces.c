#include "dataplane/mem/pieces.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/mem/region.h"

/* Copied by one call: less than half of what a call takes (IOV_MAX), for there may be zeros between any two. */
#define RUN_MAX 256u

static const uint8_t zeros[64];

static uint8_t *end_of(const struct rv_piece *p)
{
	return (uint8_t *)p->dst + p->len;
}

static bool is_region(const struct rv_piece *p)
{
	return p->len && p->block->arena->region;
}

/* What is copied in pages that a client may have taken away is an error of the call, and no signal. */
static bool copy_run(const struct rv_piece *p, size_t nr)
{
	struct iovec from[2 * RUN_MAX], to = {.iov_base = p->dst};
	uint8_t *at = p->dst;
	size_t n = 0;

	for (size_t i = 0; i < nr; i++) {
		uint8_t *dst = p[i].dst;

		if (!p[i].len)
			continue;
		RV_CHECK(dst >= at && dst - at < (ptrdiff_t)sizeof(zeros));
		if (dst > at)
			from[n++] = (struct iovec){(void *)(uintptr_t)zeros, (size_t)(dst - at)};
		from[n++] = (struct iovec){rv_block_ptr(p[i].block), p[i].len};
		at = end_of(&p[i]);
	}
	to.iov_len = (size_t)(at - (uint8_t *)p->dst);
	return process_vm_writev(getpid(), from, n, &to, 1, 0) == (ssize_t)to.iov_len;
}

/* @return how many of the first may be copied by one call: at least one */
static size_t run_of(const struct rv_piece *p, size_t nr)
{
	size_t n = 1;

	while (n < nr && n < RUN_MAX && !is_region(&p[n - 1]) && !is_region(&p[n]))
		n++;
	return n;
}

static int read_one(const struct rv_piece *p)
{
	const struct rv_arena *a = p->len ? p->block->arena : NULL;

	if (!a)
		return 0;
	if (a->region || a->cls.kind == RV_ARENA_SESSION)
		return rv_block_read(p->block, 0, p->dst, p->len);
	memcpy(p->dst, rv_block_ptr(p->block), p->len);
	return 0;
}

void rv_pieces_read(struct rv_piece *p, size_t nr)
{
	for (size_t i = 0, n; i < nr; i += n) {
		bool all;

		n = run_of(&p[i], nr - i);
		all = n > 1 && copy_run(&p[i], n);
		for (size_t k = i; k < i + n; k++)
			p[k].rc = all ? 0 : read_one(&p[k]);
	}
}
