#include "dataplane/mem/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

#define HUGE_BYTES RV_MIB(2)
#define SLICE      RV_MIB(64)

struct parked {
	struct rv_list link;
	struct rv_pages pages;
	uint64_t owner;
	uint64_t until_ns; /* warm: 0 till it was looked at */
};

/* Allocate every page now; in slices, so that a signal is not held up for seconds. */
static int populate(void *base, uint64_t len)
{
	for (uint64_t off = 0; off < len; off += SLICE) {
		uint64_t n = rv_min_u64(SLICE, len - off);

		while (madvise((char *)base + off, n, MADV_POPULATE_WRITE)) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			return errno == EFAULT || errno == ENOSPC ? -ENOMEM : -errno;
		}
	}
	return 0;
}

static int create(struct rv_pages *p, uint64_t len, bool writable, bool huge)
{
	int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	int fd, rc;
	void *base;

	len = rv_align_up(len, huge ? HUGE_BYTES : RV_GRANULE);
	fd = memfd_create("rvd-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0u));
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)len)) {
		rc = -errno;
		goto err_close;
	}
	base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		rc = -errno;
		goto err_close;
	}
	if (!huge)
		madvise(base, len, MADV_HUGEPAGE); /* a wish */
	rc = populate(base, len);
	if (rc)
		goto err_unmap;
	if (!writable)
		seals |= F_SEAL_FUTURE_WRITE; /* after our own writable mapping exists */
	if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SEAL)) {
		rc = -errno;
		goto err_unmap;
	}
	*p = (struct rv_pages){.base = base,
			       .len = len,
			       .memfd = fd,
			       .huge = huge,
			       .reclaim = writable};
	return 0;

err_unmap:
	munmap(base, len);
err_close:
	close(fd);
	return rc;
}

int rv_pages_create(struct rv_pages *p, uint64_t len, bool writable, enum rv_hugepages huge)
{
	int rc;

	RV_CHECK(len > 0);
	if (len > INT64_MAX - HUGE_BYTES)
		return -ENOMEM;
	if (huge != RV_HUGEPAGES_NO) {
		rc = create(p, len, writable, true);
		if (!rc || huge == RV_HUGEPAGES_REQUIRE)
			return rc;
	}
	return create(p, len, writable, false);
}

/* A program that keeps its mapping keeps addresses with it, no memory; sealed against writing it cannot be taken so. */
static void close_memory(struct rv_pages *p)
{
	if (p->memfd < 0)
		return;
	if (p->reclaim)
		fallocate(p->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)p->len);
	close(p->memfd);
	p->memfd = -1;
}

void rv_pages_destroy(struct rv_pages *p)
{
	if (p->base)
		munmap(p->base, p->len);
	close_memory(p);
	*p = (struct rv_pages){.memfd = -1};
}

int rv_pages_replace(struct rv_pages *p, struct rv_pages *by)
{
	RV_CHECK(p->len == by->len);
	if (mremap(by->base, by->len, by->len, MREMAP_MAYMOVE | MREMAP_FIXED, p->base) ==
	    MAP_FAILED)
		return -errno;
	p->memfd = by->memfd;
	p->huge = by->huge;
	p->reclaim = by->reclaim;
	*by = (struct rv_pages){.memfd = -1};
	return 0;
}

void rv_pages_hollow(struct rv_pages *p)
{
	void *z = mmap(p->base, p->len, PROT_READ,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);

	RV_CHECK(z == p->base);
	close_memory(p);
	p->hollow = true;
}

void rv_parking_init(struct rv_parking *pk, uint64_t retain_bytes)
{
	*pk = (struct rv_parking){.retain_bytes = retain_bytes};
	rv_list_init(&pk->parked);
	rv_list_init(&pk->warm);
	rv_list_init(&pk->hollow);
}

/* So far apart two hollow ranges may lie to be made one. */
#define GAP_MAX RV_GIB(1)

/* What lies between two hollow ranges becomes hollow too, unless anything is mapped there. */
static bool bridge(const uint8_t *end, const uint8_t *base)
{
	size_t gap = (size_t)(base - end);
	void *z;

	if (!gap)
		return true;
	if (gap > GAP_MAX)
		return false;
	z = mmap((void *)(uintptr_t)end, gap, PROT_READ,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
	if (z == MAP_FAILED)
		return false;
	if (z == end)
		return true;
	munmap(z, gap); /* a kernel that does not know the flag */
	return false;
}

static uint8_t *end_of(const struct parked *e)
{
	return (uint8_t *)e->pages.base + e->pages.len;
}

static void join(struct parked *e, struct parked *above)
{
	e->pages.len = (size_t)(end_of(above) - (uint8_t *)e->pages.base);
	rv_list_del(&above->link);
	free(above);
}

/*
 * Hollow ranges are never given back, and there is one for each region that ever was: as ranges of their own, with holes
 * between them that nothing fits into, they would one day be all the mappings that a process may have.
 */
static void keep_hollow(struct rv_parking *pk, struct parked *e)
{
	struct parked *below = NULL, *above = NULL;
	struct rv_list *it;

	RV_LIST_EACH(it, &pk->hollow)
	{
		struct parked *o = RV_LIST_ENTRY(it, struct parked, link);

		if ((uint8_t *)o->pages.base < (uint8_t *)e->pages.base) {
			if (!below || (uint8_t *)o->pages.base > (uint8_t *)below->pages.base)
				below = o;
		} else if (!above || (uint8_t *)o->pages.base < (uint8_t *)above->pages.base) {
			above = o;
		}
	}
	rv_list_push(&pk->hollow, &e->link);
	if (above && bridge(end_of(e), above->pages.base))
		join(e, above);
	if (below && bridge(end_of(below), e->pages.base))
		join(below, e);
}

bool rv_parking_put(struct rv_parking *pk, struct rv_pages *p, uint64_t owner, bool keep)
{
	struct parked *e = calloc(1, sizeof(*e));
	uint64_t kept = pk->parked_bytes - pk->warm_bytes;

	keep = keep && e && p->len <= pk->retain_bytes - rv_min_u64(kept, pk->retain_bytes);
	if (!keep && !p->hollow)
		rv_pages_hollow(p);
	if (!e)
		return false; /* the addresses stay reserved for good: a leak of nothing but addresses */
	e->pages = *p;
	e->owner = owner;
	if (keep) {
		rv_list_push(&pk->parked, &e->link);
		pk->parked_bytes += p->len;
	} else {
		keep_hollow(pk, e);
	}
	*p = (struct rv_pages){.memfd = -1};
	return keep;
}

bool rv_parking_warm(struct rv_parking *pk, struct rv_pages *p, uint64_t owner)
{
	struct parked *e = pk->retain_bytes && !p->hollow ? calloc(1, sizeof(*e)) : NULL;

	if (!e) {
		rv_pages_destroy(p);
		return false;
	}
	e->pages = *p;
	e->pages.warm = true;
	e->owner = owner;
	rv_list_push_front(&pk->warm, &e->link); /* the last that was used is taken first */
	pk->parked_bytes += p->len;
	pk->warm_bytes += p->len;
	*p = (struct rv_pages){.memfd = -1};
	return true;
}

uint64_t rv_parking_cool(struct rv_parking *pk, uint64_t now_ns, uint64_t *next_ns)
{
	uint64_t gone = 0;
	struct rv_list *it, *next;

	*next_ns = RV_NEVER;
	for (it = pk->warm.next; it != &pk->warm; it = next) {
		struct parked *e = RV_LIST_ENTRY(it, struct parked, link);

		next = it->next;
		if (!e->until_ns) /* it came since the last look */
			e->until_ns = rv_sat_add(now_ns, RV_PAGES_WARM_NS);
		if (now_ns != RV_NEVER && e->until_ns > now_ns) {
			*next_ns = rv_min_u64(*next_ns, e->until_ns);
			continue;
		}
		rv_list_del(&e->link);
		gone += e->pages.len;
		rv_pages_destroy(&e->pages);
		free(e);
	}
	pk->parked_bytes -= gone;
	pk->warm_bytes -= gone;
	return gone;
}

static struct parked *find(struct rv_list *l, uint64_t len, uint64_t owner)
{
	struct rv_list *it;

	RV_LIST_EACH(it, l)
	{
		struct parked *e = RV_LIST_ENTRY(it, struct parked, link);

		if (e->owner == owner && e->pages.len >= len && e->pages.len / 2 < len)
			return e;
	}
	return NULL;
}

int rv_parking_take(struct rv_parking *pk, uint64_t len, uint64_t owner, struct rv_pages *out)
{
	struct parked *e = find(&pk->parked, len, owner);

	if (!e)
		e = find(&pk->warm, len, owner);
	if (!e)
		return -ENOENT;
	rv_list_del(&e->link);
	pk->parked_bytes -= e->pages.len;
	if (e->pages.warm)
		pk->warm_bytes -= e->pages.len;
	*out = e->pages;
	free(e);
	return 0;
}

static void empty(struct rv_list *l)
{
	struct rv_list *it;

	while ((it = rv_list_pop(l))) {
		struct parked *e = RV_LIST_ENTRY(it, struct parked, link);

		rv_pages_destroy(&e->pages);
		free(e);
	}
}

void rv_parking_fini(struct rv_parking *pk)
{
	empty(&pk->parked);
	empty(&pk->warm);
	empty(&pk->hollow);
	pk->parked_bytes = pk->warm_bytes = 0;
}
