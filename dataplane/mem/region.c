#include "dataplane/mem/region.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "dataplane/base/units.h"

const char *rv_region_state_name(enum rv_region_state s)
{
	static const char *const names[] = {
		[RV_REGION_OPEN] = "open",           [RV_REGION_CLOSING] = "draining",
		[RV_REGION_UNMAPPING] = "unmapping", [RV_REGION_GONE] = "deregistered",
		[RV_REGION_STUCK] = "stuck",
	};

	return names[s];
}

void rv_copy_latch(struct rv_copy_gate *g)
{
	/* G2: see rv_copy_enter(). */
	atomic_store_explicit(&g->closed, true, memory_order_seq_cst);
	/* The first read is G2's and seq_cst; each is an acquire that pairs with G3. */
	while (atomic_load_explicit(&g->inside, memory_order_seq_cst))
		sched_yield();
}

void rv_copy_unlatch(struct rv_copy_gate *g)
{
	/* G4: release, pairs with the load in rv_copy_enter(): who gets in sees the new pages. */
	atomic_store_explicit(&g->closed, false, memory_order_release);
}

static int read_all(int fd, uint64_t at, uint8_t *dst, uint64_t len)
{
	while (len) {
		ssize_t n = pread(fd, dst, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -EIO;
		at += (uint64_t)n;
		dst += n;
		len -= (uint64_t)n;
	}
	return 0;
}

static int read_region(struct rv_region *r, uint64_t off, uint8_t *dst, uint64_t len)
{
	while (len) {
		uint64_t n = rv_min_u64(len, RV_COPY_PIECE);
		int rc = -ESHUTDOWN;

		if (rv_copy_enter(&r->gate)) {
			rc = read_all(r->fd, r->fd_off + off, dst, n);
			rv_copy_leave(&r->gate);
		}
		if (rc)
			return rc;
		off += n;
		dst += n;
		len -= n;
	}
	return 0;
}

int rv_block_read(const struct rv_block *b, uint64_t off, void *dst, uint64_t len)
{
	const struct rv_arena *a = b->arena;

	if (a->region)
		return read_region(a->region, b->off + off, dst, len);
	return read_all(a->pages.memfd, b->off + off, dst, len);
}
