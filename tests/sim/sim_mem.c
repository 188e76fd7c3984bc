/*
 * The kernel's memory, the heap and random numbers: the product's calls for them end here (ld --wrap).
 *
 * Arena memory comes from one reserve and an address is never given out twice in a run. What was unmapped
 * faults. The heap knows whose each allocation is: a killed node's is freed with it, a stopped one's must be
 * empty.
 */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/log.h"
#include "tests/sim/sim.h"

#define RESERVE    RV_GIB(4)
#define RESERVE_AT ((void *)0x200000000000)
#define KEEP       RV_MIB(64)
#define REGIONS    4096
#define FD_REGION  (1 << 20)
#define FD_EVENT   (1 << 21)
#define HEAP_MAGIC 0x5ea9u
#define HASH_STATE 1024

struct region {
	uint64_t life;
	uint8_t *base;
	uint64_t len;
	bool mapped, hollow;
	unsigned fds;  /* descriptors that the daemon has */
	bool client;   /* a program's file: `mapped` is the program's own */
	uint64_t size; /* of that */
	int file;      /* the program's file that is mapped here, or -1 */
	uint64_t off;  /* in it */
};

static struct region region[REGIONS];
static unsigned region_nr;
static uint8_t *reserve;
static uint64_t reserve_used, reserve_dirty;

/* In front of every allocation. */
struct chunk {
	struct rv_list link;
	void *raw;
	uint64_t len;
	uint64_t magic;
	const void *site; /* who asked; for a debugger */
};

struct mapping {
	struct rv_list link;
	void *base;
	size_t len;
};

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void __real_free(void *p);
void *__real_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off);
int __real_munmap(void *addr, size_t len);
int __real_madvise(void *addr, size_t len, int advice);
int __real_close(int fd);
int __real_ftruncate(int fd, off_t len);
ssize_t __real_pread(int fd, void *buf, size_t n, off_t off);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);
void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mremap(void *old, size_t old_len, size_t new_len, int flags, ...);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);
int __wrap_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs64(int fd, struct statfs *fs);
int __wrap_dup(int fd);
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off);
int __wrap_munmap(void *addr, size_t len);
int __wrap_madvise(void *addr, size_t len, int advice);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_ftruncate(int fd, off_t len);
int __wrap_ftruncate64(int fd, off_t len);
int __wrap_fcntl(int fd, int cmd, ...);
int __wrap_fcntl64(int fd, int cmd, ...);
int __wrap_close(int fd);
ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off);
int __wrap_eventfd(unsigned initial, int flags);
int __wrap_getifaddrs(struct ifaddrs **out);
void __wrap_freeifaddrs(struct ifaddrs *all);
void __wrap_rv_random_bytes(void *buf, size_t len);
uint64_t __wrap_rv_random_u64(void);
uint64_t __wrap_rv_clock_ns(void);
void *__wrap_XXH3_createState(void);
int __wrap_XXH3_freeState(void *state);
void __wrap_rv_log_write(struct rv_log_site *site, enum rv_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
_Noreturn void __wrap_rv_check_failed(const char *cond, const char *file, int line);

/* The simulator's own memory. */

void *sim_new(size_t len)
{
	void *p = __real_calloc(1, len ? len : 1);

	if (!p)
		sim_fail("the simulator itself is out of memory");
	return p;
}

void sim_free(void *p)
{
	__real_free(p);
}

/* Heap. */

static bool heap_fails(void)
{
	return sim.cur && sim.cur->started && sim_fault(sim.c.heap_fail);
}

static void *take(size_t n, size_t align, const void *site)
{
	size_t room = sizeof(struct chunk) + (align > 16 ? align : 0);
	char *raw, *p;
	struct chunk *c;

	if (heap_fails())
		return NULL;
	raw = __real_malloc(room + n);
	if (!raw)
		return NULL;
	p = raw + sizeof(struct chunk);
	if (align > 16)
		p = (char *)rv_align_up((uintptr_t)p, align);
	c = (struct chunk *)(void *)(p - sizeof(struct chunk));
	*c = (struct chunk){.raw = raw, .len = n, .magic = HEAP_MAGIC, .site = site};
	rv_list_init(&c->link);
	if (sim.cur)
		rv_list_push(&sim.cur->heap, &c->link);
	return p;
}

static struct chunk *chunk_of(void *p)
{
	struct chunk *c = (struct chunk *)(void *)((char *)p - sizeof(struct chunk));

	if (c->magic != HEAP_MAGIC)
		sim_fail("heap: freed twice, or never allocated: %p", p);
	return c;
}

bool sim_mem_allocated(const void *p, uint64_t len)
{
	const uint8_t *at = p;
	const struct chunk *c = (const void *)(at - sizeof(struct chunk));

	return (at < reserve || at >= reserve + RESERVE) && c->magic == HEAP_MAGIC && c->len >= len;
}

void *__wrap_malloc(size_t n)
{
	return take(n, 16, __builtin_return_address(0));
}

void *__wrap_calloc(size_t n, size_t m)
{
	void *p = take(n * m, 16, __builtin_return_address(0));

	if (p)
		memset(p, 0, n * m);
	return p;
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
	return take(n, align, __builtin_return_address(0));
}

static void give(struct chunk *c)
{
	rv_list_del(&c->link);
	c->magic = 0;
	__real_free(c->raw);
}

void __wrap_free(void *p)
{
	if (p)
		give(chunk_of(p));
}

void *__wrap_realloc(void *p, size_t n)
{
	void *q = take(n, 16, __builtin_return_address(0));

	if (p && q) {
		memcpy(q, p, rv_min_u64(n, chunk_of(p)->len));
		give(chunk_of(p));
	}
	return q;
}

/* Hash states come from a shared library's heap otherwise. */
void *__wrap_XXH3_createState(void)
{
	return take(HASH_STATE, 64, __builtin_return_address(0));
}

int __wrap_XXH3_freeState(void *state)
{
	if (state)
		give(chunk_of(state));
	return 0;
}

/* Mappings. */

static struct region *region_of(const void *p)
{
	const uint8_t *at = p;
	unsigned lo = 0, hi = region_nr;

	if (at < reserve || at >= reserve + reserve_used)
		return NULL;
	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (at >= region[mid].base + region[mid].len)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < region_nr && at >= region[lo].base ? &region[lo] : NULL;
}

static struct region *region_of_fd(int fd)
{
	return fd >= FD_REGION && fd < FD_REGION + (int)region_nr ? &region[fd - FD_REGION] : NULL;
}

bool sim_mem_readable(const void *p, uint64_t len)
{
	const struct region *r = region_of(p);

	return r && r->mapped && (uint64_t)((const uint8_t *)p - r->base) + len <= r->len;
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
	(void)name;
	(void)flags;
	if (region_nr == REGIONS || sim_fault(sim.c.memory_fail)) {
		errno = ENOMEM;
		return -1;
	}
	region[region_nr] = (struct region){.life = sim.cur ? sim.cur->life : 0,
					    .base = reserve + reserve_used,
					    .fds = 1,
					    .file = -1};
	return FD_REGION + (int)region_nr++;
}

int __wrap_ftruncate(int fd, off_t len)
{
	struct region *r = region_of_fd(fd);

	if (!r)
		return __real_ftruncate(fd, len);
	if (reserve_used + (uint64_t)len > RESERVE) {
		errno = ENOSPC;
		return -1;
	}
	r->len = (uint64_t)len;
	reserve_used += r->len;
	return 0;
}

int __wrap_ftruncate64(int fd, off_t len)
{
	return __wrap_ftruncate(fd, len);
}

static int control(int fd, int cmd)
{
	if (!region_of_fd(fd))
		return -1;
	return cmd == F_GET_SEALS ? F_SEAL_SHRINK : cmd == F_GETFL ? O_RDWR : 0;
}

int __wrap_fcntl(int fd, int cmd, ...)
{
	return control(fd, cmd);
}

int __wrap_fcntl64(int fd, int cmd, ...)
{
	return control(fd, cmd);
}

int __wrap_fstat(int fd, struct stat *st)
{
	const struct region *r = region_of_fd(fd);

	if (!r)
		return -1;
	*st = (struct stat){.st_size = (off_t)(r->client ? r->size : r->len)};
	return 0;
}

int __wrap_fstat64(int fd, struct stat *st)
{
	return __wrap_fstat(fd, st);
}

int __wrap_fstatfs(int fd, struct statfs *fs)
{
	*fs = (struct statfs){.f_type = 0x01021994, .f_bsize = RV_GRANULE};
	return region_of_fd(fd) ? 0 : -1;
}

int __wrap_fstatfs64(int fd, struct statfs *fs)
{
	return __wrap_fstatfs(fd, fs);
}

int __wrap_dup(int fd)
{
	struct region *r = region_of_fd(fd);

	if (!r || !r->fds || sim_fault(sim.c.memory_fail)) {
		errno = EMFILE;
		return -1;
	}
	r->fds++;
	return fd;
}

/* Programs' files. Where a daemon maps one it has other addresses, and the same bytes. */

static struct region *reserve_region(uint64_t life, uint64_t len)
{
	struct region *r;

	len = rv_align_up(len, RV_GRANULE);
	if (region_nr == REGIONS || reserve_used + len > RESERVE)
		return NULL;
	r = &region[region_nr++];
	*r = (struct region){.life = life,
			     .base = reserve + reserve_used,
			     .len = len,
			     .mapped = true,
			     .file = -1};
	reserve_used += len;
	return r;
}

int sim_client_file(const struct sim_node *n, uint64_t size)
{
	struct region *r = reserve_region(n->life, size);

	if (!r)
		return -1;
	r->client = true;
	r->size = size;
	r->fds = 1;
	memset(r->base, 0xc1, r->len);
	return FD_REGION + (int)(r - region);
}

uint8_t *sim_client_bytes(int fd)
{
	return region_of_fd(fd)->base;
}

void sim_client_wrote(int fd, uint64_t off, uint64_t len)
{
	const struct region *f = region_of_fd(fd);

	for (unsigned i = 0; i < region_nr; i++) {
		struct region *r = &region[i];
		uint64_t from = rv_max_u64(off, r->off);
		uint64_t to = rv_min_u64(off + len, r->off + r->len);

		if (r->file == fd && r->mapped && !r->hollow && from < to)
			memcpy(r->base + (from - r->off), f->base + from, to - from);
	}
}

bool sim_client_maps(const void *p)
{
	const struct region *r = region_of(p);

	return r && r->file >= 0;
}

static void *map_client(int fd, size_t len, uint64_t off)
{
	struct region *f = region_of_fd(fd), *r;

	if (!f->fds || off + len > f->len)
		sim_fail("memory: a program's file is mapped beyond its end, or closed");
	r = sim_fault(sim.c.memory_fail) ? NULL : reserve_region(f->life, len);
	if (!r) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	r->file = fd;
	r->off = off;
	memcpy(r->base, f->base + off, len);
	return r->base;
}

static void *map_region(struct region *r)
{
	if (sim_fault(sim.c.memory_fail)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	r->mapped = true;
	memset(r->base, 0xa5, r->len);
	return r->base;
}

/* A program's memory may be taken from under GETs that the device refuses from then on. */
static void check_gone(const struct region *r, const char *what)
{
	if (r->file >= 0 && sim.c.native)
		sim_check_unwritten(sim.cur, r->base, r->len, what);
	else
		sim_check_gone(sim.cur, r->base, r->len, what);
}

static void *hollow(struct region *r, size_t len)
{
	if (!r->mapped || r->hollow || len != r->len)
		sim_fail("memory: a range is hollowed that is not wholly mapped");
	check_gone(r, "hollowed");
	r->hollow = true;
	memset(r->base, 0, r->len);
	return r->base;
}

static void *map_own(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	void *p = __real_mmap(addr, len, prot, flags, fd, off);
	struct mapping *m;

	if (p == MAP_FAILED || !sim.cur)
		return p;
	m = sim_new(sizeof(*m));
	*m = (struct mapping){.base = p, .len = len};
	rv_list_push(&sim.cur->pages, &m->link);
	return p;
}

void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	struct region *r = region_of_fd(fd);

	if (r && r->client)
		return map_client(fd, len, (uint64_t)off);
	if (r)
		return map_region(r);
	r = addr ? region_of(addr) : NULL;
	if (r && (flags & MAP_FIXED))
		return hollow(r, len);
	return map_own(addr, len, prot, flags, fd, off);
}

void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	return __wrap_mmap(addr, len, prot, flags, fd, off);
}

static int unmap_own(void *addr, size_t len)
{
	struct rv_list *it;

	if (!sim.cur)
		return __real_munmap(addr, len);
	RV_LIST_EACH(it, &sim.cur->pages)
	{
		struct mapping *m = RV_LIST_ENTRY(it, struct mapping, link);

		if (m->base != addr)
			continue;
		rv_list_del(&m->link);
		sim_free(m);
		return __real_munmap(addr, len);
	}
	sim_fail("memory: unmapped what was not mapped");
}

int __wrap_munmap(void *addr, size_t len)
{
	struct region *r = region_of(addr);
	uint8_t *at = addr;

	if (!r)
		return unmap_own(addr, len);
	/* Hollow ranges side by side are unmapped as one. */
	while (len) {
		r = region_of(at);
		if (!r || !r->mapped || at != r->base || len < r->len ||
		    (len > r->len && !r->hollow))
			sim_fail("memory: a range is unmapped that is not wholly mapped");
		check_gone(r, "unmapped");
		r->mapped = false;
		mprotect(r->base, r->len, PROT_NONE);
		at += r->len;
		len -= r->len;
	}
	return 0;
}

/* The pages of @old are from now on where other pages were. */
void *__wrap_mremap(void *old, size_t old_len, size_t new_len, int flags, ...)
{
	struct region *from = region_of(old), *to;
	va_list ap;

	va_start(ap, flags);
	to = region_of(va_arg(ap, void *));
	va_end(ap);
	if (!from || !to || from->len != old_len || to->len != new_len || !from->mapped ||
	    !to->mapped || to->hollow)
		sim_fail("memory: pages are moved that are not wholly mapped");
	if (sim_fault(sim.c.memory_fail)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	memcpy(to->base, from->base, to->len);
	from->mapped = false;
	to->file = -1;
	return to->base;
}

int __wrap_madvise(void *addr, size_t len, int advice)
{
	if (!region_of(addr))
		return __real_madvise(addr, len, advice);
	if (advice == MADV_HUGEPAGE || !sim_fault(sim.c.memory_fail))
		return 0;
	errno = EFAULT;
	return -1;
}

int __wrap_close(int fd)
{
	struct region *r = region_of_fd(fd);

	if (fd == FD_EVENT)
		return 0;
	if (!r)
		return __real_close(fd);
	if (!r->fds)
		sim_fail("memory: an arena's descriptor is closed twice");
	r->fds--;
	return 0;
}

ssize_t __wrap_pread(int fd, void *buf, size_t n, off_t off)
{
	struct region *r = region_of_fd(fd);

	if (!r)
		return __real_pread(fd, buf, n, off);
	if (!r->fds || (uint64_t)off + n > r->len)
		sim_fail("memory: read behind an arena's end, or from a closed one");
	if (sim_fault(sim.c.pread_fail)) {
		errno = EIO;
		return -1;
	}
	n = n > 4096 && sim_chance(300) ? 4096 : n;
	memcpy(buf, r->base + off, n);
	return (ssize_t)n;
}

ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off)
{
	return __wrap_pread(fd, buf, n, off);
}

int __wrap_eventfd(unsigned initial, int flags)
{
	(void)initial;
	(void)flags;
	return FD_EVENT;
}

/* What would make a run differ from its replay. */

int __wrap_getifaddrs(struct ifaddrs **out)
{
	(void)out;
	return -1;
}

void __wrap_freeifaddrs(struct ifaddrs *all)
{
	(void)all;
}

uint64_t __wrap_rv_random_u64(void)
{
	uint64_t v;

	do {
		sim.rng_product += 0x9e3779b97f4a7c15ULL;
		v = sim_mix(sim.rng_product);
	} while (!v);
	return v;
}

void __wrap_rv_random_bytes(void *buf, size_t len)
{
	uint8_t *p = buf;

	while (len--)
		*p++ = (uint8_t)__wrap_rv_random_u64();
}

uint64_t __wrap_rv_clock_ns(void)
{
	return sim.now_ns;
}

/* What nodes say about the faults we inject is heard only when asked for. */
void __wrap_rv_log_write(struct rv_log_site *site, enum rv_log_level level, const char *fmt, ...)
{
	char line[400];
	va_list ap;

	(void)site;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	sim_trace("%s: %s", rv_log_level_name(level), line);
}

_Noreturn void __wrap_rv_check_failed(const char *cond, const char *file, int line)
{
	const char *at = strstr(file, "dataplane/");

	at = at ? at : strstr(file, "control/");
	sim_fail("check failed: %s (%s:%d)", cond, at ? at : file, line);
}

/* A run's beginning, a node's end. */

void sim_mem_reset(void)
{
	if (!reserve) {
		/* Addresses are written into messages as numbers: they must be the same in a replay. */
		reserve = __real_mmap(
			RESERVE_AT, RESERVE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		if (reserve == MAP_FAILED)
			sim_fail("no memory for the simulated arenas");
	}
	mprotect(reserve, reserve_used, PROT_READ | PROT_WRITE);
	reserve_dirty = rv_max_u64(reserve_dirty, reserve_used);
	if (reserve_dirty > KEEP) {
		__real_madvise(reserve + KEEP, reserve_dirty - KEEP, MADV_DONTNEED);
		reserve_dirty = KEEP;
	}
	reserve_used = 0;
	region_nr = 0;
}

void sim_mem_node_died(struct sim_node *n)
{
	struct rv_list *it;

	while (!rv_list_empty(&n->heap))
		give(RV_LIST_ENTRY(n->heap.next, struct chunk, link));
	while ((it = rv_list_pop(&n->pages))) {
		struct mapping *m = RV_LIST_ENTRY(it, struct mapping, link);

		__real_munmap(m->base, m->len);
		sim_free(m);
	}
	for (unsigned i = 0; i < region_nr; i++) {
		if (region[i].life != n->life)
			continue;
		region[i].mapped = false;
		region[i].fds = 0;
	}
}

unsigned sim_mem_mapped(const struct sim_node *n)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < region_nr; i++)
		nr += region[i].life == n->life && !(region[i].hollow && sim.c.heap_fail) &&
		      ((region[i].mapped && !region[i].client) || region[i].fds);
	return nr;
}

void sim_mem_check_empty(struct sim_node *n)
{
	struct rv_list *it;
	unsigned nr = 0;
	uint64_t len = 0;

	RV_LIST_EACH(it, &n->heap)
	{
		const struct chunk *c = RV_LIST_ENTRY(it, struct chunk, link);

		len = c->len;
		nr++;
	}
	if (nr)
		sim_fail("node %u stopped and leaks %u allocations, the last of %" PRIu64 " bytes",
			 n->at, nr, len);
	if (!rv_list_empty(&n->pages))
		sim_fail("node %u stopped and leaks a mapping", n->at);
}
