/*
 * Clients' memory: looked at, mapped, registered; and let go, whoever still refers to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "control/service/registrar_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/mem/region.h"

#define HUGETLBFS 0x958458f6

__attribute__((format(printf, 3, 4))) static int refuse(struct rv_pool_ask *a, int rc,
							const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(a->text, sizeof(a->text), fmt, ap);
	va_end(ap);
	return rc;
}

/*
 * Whoever could cut the file short could make us, or UCX in our process, fault. Only a memfd has seals.
 *
 * @param[out] page  bytes of its pages
 */
static int check_file(const struct rv_registrar *r, struct rv_pool_ask *a, uint64_t *page)
{
	int seals = fcntl(a->fd, F_GET_SEALS), mode = fcntl(a->fd, F_GETFL);
	struct statfs fs;
	struct stat st;

	if (seals < 0 || mode < 0 || fstat(a->fd, &st) || fstatfs(a->fd, &fs))
		return refuse(a, -EPERM, "a region must be a memfd (memfd_create)");
	if (!(seals & F_SEAL_SHRINK))
		return refuse(
			a, -EPERM,
			"a region's memfd must be sealed with F_SEAL_SHRINK: nobody may cut it "
			"short");
	if ((mode & O_ACCMODE) != O_RDWR || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
		return refuse(
			a, -EPERM,
			"a region's memfd must be writable: devices cannot register it otherwise");
	if (!a->len)
		return refuse(a, -EINVAL, "a region must have a length");
	if (a->off > (uint64_t)st.st_size || a->len > (uint64_t)st.st_size - a->off)
		return refuse(a, -ERANGE, "the region is not within its file of %" PRIu64 " bytes",
			      (uint64_t)st.st_size);
	*page = fs.f_type == HUGETLBFS ? (uint64_t)fs.f_bsize : RV_GRANULE;
	if (*page > RV_GRANULE && r->conf.fabric_nr && rv_registrar_emulated(r))
		return refuse(
			a, -ENOTSUP,
			"huge pages cannot be a region here: software GETs fault on a hole in "
			"them (ucx.enabled = yes over tcp)");
	return 0;
}

/* Allocate every page now: what is not to be had is an error here, not a SIGBUS later. */
static int populate(struct rv_pool_ask *ask, void *base, uint64_t len)
{
	for (uint64_t off = 0; off < len; off += RV_MIB(64)) {
		while (madvise((char *)base + off, rv_min_u64(RV_MIB(64), len - off),
			       MADV_POPULATE_WRITE)) {
			if (errno != EINTR && errno != EAGAIN)
				return refuse(ask, -ENOMEM, "there is not the memory for it: %s",
					      strerrordesc_np(errno));
		}
	}
	return 0;
}

static int register_pages(struct rv_registrar *r, struct rv_pool_ask *ask, struct rv_arena *a)
{
	struct rv_pages *pg = &a->pages;
	int rc;

	pg->base = mmap(NULL, pg->len, PROT_READ | PROT_WRITE, MAP_SHARED, a->region->fd,
			(off_t)a->region->fd_off);
	if (pg->base == MAP_FAILED) {
		pg->base = NULL;
		rv_registrar_failed(r, RV_REG_FAIL_MEMORY, -ENOMEM);
		return refuse(ask, -ENOMEM, "mapping the region failed: %s",
			      strerrordesc_np(errno));
	}
	rc = populate(ask, pg->base, pg->len);
	if (rc) {
		rv_registrar_failed(r, RV_REG_FAIL_MEMORY, rc);
		goto err_unmap;
	}
	rc = rv_registrar_map(r, a);
	if (rc) {
		rv_registrar_lower_budget(r, pg->len, rc);
		rv_registrar_failed(r, RV_REG_FAIL_MAP, rc);
		refuse(ask, -EIO, "registering the region failed: %s", rv_err_name(rc));
		rc = -EIO;
		goto err_unmap;
	}
	a->generation = ++r->generation;
	a->reachable = true;
	rv_counter_add(&r->external, 1);
	return 0;

err_unmap:
	munmap(pg->base, pg->len);
	pg->base = NULL;
	return rc;
}

static struct rv_arena *region_new(const struct rv_pool_ask *ask, uint64_t page)
{
	struct rv_arena *a = calloc(1, sizeof(*a));
	struct rv_region *g = aligned_alloc(_Alignof(struct rv_region), sizeof(*g));

	if (!a || !g) {
		free(a);
		free(g);
		return NULL;
	}
	memset(g, 0, sizeof(*g));
	g->fd = ask->fd;
	g->fd_off = ask->off / page * page;
	g->user_off = ask->off - g->fd_off;
	g->user_len = ask->len;
	g->arena = a;
	a->region = g;
	a->cls = ask->cls;
	a->reactor = ask->reactor;
	a->pages = (struct rv_pages){
		.len = rv_align_up(g->user_off + ask->len, page),
		.memfd = -1,
		.huge = page > RV_GRANULE,
	};
	rv_list_init(&a->link);
	return a;
}

static void region_free(struct rv_arena *a)
{
	if (a->region->fd >= 0)
		close(a->region->fd);
	free(a->region);
	free(a);
}

static struct rv_budget *budget_of(struct rv_registrar *r)
{
	/* Unregistered it pins nothing, but we keep its memory alive. */
	return r->conf.fabric_nr ? &r->registered : &r->plain;
}

static int map_region(struct rv_registrar *r, struct rv_pool_ask *ask)
{
	struct rv_arena *a;
	uint64_t page = RV_GRANULE;
	int rc = check_file(r, ask, &page);

	if (rc) {
		close(ask->fd);
		return rc;
	}
	a = region_new(ask, page);
	if (!a) {
		close(ask->fd);
		rv_registrar_failed(r, RV_REG_FAIL_MEMORY, -ENOMEM);
		return refuse(ask, -ENOMEM, "out of memory");
	}
	rv_registrar_raise_budget(r, rv_clock_ns());
	if (!rv_registrar_take(r, budget_of(r), a->pages.len)) {
		rc = refuse(ask, -ENOSPC, "%" PRIu64 " bytes are over the budget (memory.%s)",
			    a->pages.len,
			    r->conf.fabric_nr ? "registered_bytes_budget" : "plain_bytes_budget");
		rv_registrar_failed(r, RV_REG_FAIL_BUDGET, rc);
		goto err_free;
	}
	rc = r->conf.fabric_nr ? register_pages(r, ask, a) : 0;
	if (rc)
		goto err_budget;
	a->id = ++r->last_arena;
	rv_counter_add(&r->external_bytes, a->pages.len);
	ask->arena = a;
	return 0;

err_budget:
	rv_budget_give(budget_of(r), a->pages.len);
err_free:
	region_free(a);
	return rc;
}

/*
 * Pages of our own with the same bytes, at the same addresses: software GETs under way, and chunks where they go on,
 * read what was staged, whatever the client does with its memory.
 */
static int copy_region(struct rv_registrar *r, struct rv_arena *a)
{
	struct rv_region *g = a->region;
	struct rv_pages own;
	int rc;

	if (!rv_registrar_take(r, &r->plain, a->pages.len))
		return -ENOSPC;
	rc = rv_pages_create(&own, a->pages.len, false, RV_HUGEPAGES_NO);
	if (rc)
		goto err_budget;
	rc = rv_block_read(&(struct rv_block){.arena = a, .len = a->pages.len}, 0, own.base,
			   g->user_off + g->user_len);
	if (!rc && a->pages.base)
		rc = rv_pages_replace(&a->pages, &own);
	else if (!rc)
		a->pages = own;
	if (rc)
		goto err_pages;
	return 0;

err_pages:
	rv_pages_destroy(&own);
err_budget:
	rv_budget_give(&r->plain, a->pages.len);
	return rc;
}

/*
 * After this nothing of ours, and no device, touches the client's memory.
 *
 * @param in_use  blocks are left: their bytes may be read by software GETs, and are still proven right by a lease
 * @return -EAGAIN: there is no memory for a copy of them
 */
static int let_go(struct rv_registrar *r, struct rv_arena *a, bool in_use, bool keep_bytes)
{
	struct rv_region *g = a->region;
	bool read_by_software = a->reachable && rv_registrar_emulated(r), copied = false;

	if (in_use && (keep_bytes || read_by_software)) {
		copied = !copy_region(r, a);
		if (!copied && read_by_software)
			return -EAGAIN;
	}
	rv_copy_latch(&g->gate);
	close(g->fd);
	g->fd = copied && keep_bytes ? dup(a->pages.memfd) : -1;
	g->fd_off = 0;
	if (g->fd >= 0)
		rv_copy_unlatch(&g->gate);
	if (!copied && a->pages.base)
		rv_pages_hollow(&a->pages);
	return 0;
}

static int unmap_region(struct rv_registrar *r, struct rv_pool_ask *ask)
{
	struct rv_arena *a = ask->arena;
	uint64_t len = a->pages.len;
	int rc;

	if (!rv_registrar_unmap(r, a)) {
		rv_counter_add(&r->unconfirmed, 1);
		rv_log_err("memory: an unmap of a region of %" PRIu64
			   " bytes was not confirmed: its client must never reuse the memory",
			   len);
		return -EIO;
	}
	rc = let_go(r, a, ask->in_use, ask->keep_bytes);
	if (rc)
		return rc;
	rv_budget_give(budget_of(r), len);
	rv_counter_sub(&r->external_bytes, len);
	return 0;
}

static void free_region(struct rv_registrar *r, struct rv_arena *a)
{
	if (a->pages.memfd >= 0) /* a copy */
		rv_budget_give(&r->plain, a->pages.len);
	if (a->reachable && rv_registrar_emulated(r))
		rv_parking_put(&r->parking, &a->pages, 0, false);
	else if (a->pages.base)
		rv_pages_destroy(&a->pages);
	region_free(a);
}

/* The pages stay where they are, and whoever reads them in chunks goes on. */
static int demote(struct rv_registrar *r, struct rv_arena *a)
{
	if (!rv_registrar_unmap(r, a)) {
		rv_log_err("memory: an unmap of %" PRIu64 " bytes was not confirmed", a->pages.len);
		return -EIO;
	}
	rv_budget_give(&r->registered, a->pages.len);
	r->plain.used += a->pages.len; /* it is there already, whatever the limit */
	return 0;
}

void rv_registrar_run_ask(struct rv_registrar *r, struct rv_pool_ask *a)
{
	switch (a->op) {
	case RV_ASK_REGION_MAP:
		a->rc = map_region(r, a);
		break;
	case RV_ASK_REGION_UNMAP:
		a->rc = unmap_region(r, a);
		break;
	case RV_ASK_REGION_FREE:
		free_region(r, a->arena);
		break;
	case RV_ASK_DEMOTE:
		a->rc = demote(r, a->arena);
		break;
	}
}
