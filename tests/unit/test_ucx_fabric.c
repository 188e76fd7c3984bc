/*
 * Two fabrics in one process over tcp, stepped by one thread: `a` reads what `b` owns. Time is injected; only
 * the bounds of the loops look at the clock. With RV_TEST_UCX_NATIVE set, over whatever `auto` finds.
 */
#include <setjmp.h>
#include <signal.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "ucx/addr_parse.h"
#include "ucx/ep.h"
#include "ucx/fabric_ucx.h"

#define OWNER   0xb0b0u
#define MANY    256
#define BIG     RV_MIB(64)
#define LIMIT   (native() ? RV_SEC(120) : RV_SEC(20)) /* a dead queue pair is noticed late */
#define PENDING 1
#define KEYS    (native() ? 2000u : 100000u)

struct side {
	struct rv_fabric *f;
	struct rv_poller *poller; /* NULL: closed */
};

struct fixture {
	struct side a, b;
	uint64_t now;
	uint64_t incarnation;
	uint8_t *src, *dst;
	struct rv_fabric_map *src_map, *dst_map;
};

struct read {
	struct rv_fabric_get g;
	int rc;
	unsigned dones;
};

static struct read reads[MANY];

/* The two sides. */

static void open_side(struct side *s)
{
	assert_int_equal(s->f->ops->open_reactor(s->f, 0, &s->poller), 0);
}

static void close_side(struct side *s)
{
	s->poller = NULL;
	s->f->ops->close_reactor(s->f, 0);
}

static bool native(void)
{
	return getenv("RV_TEST_UCX_NATIVE") != NULL;
}

static void create_side(struct side *s)
{
	char why[RV_UCX_WHY] = "";
	const struct rv_ucx_conf conf = {
		.mode = native() ? RV_UCX_AUTO : RV_UCX_YES,
		.tls = native() ? NULL : "tcp",
		.reactors = 2,
		.why = why,
	};

	if (rv_ucx_create(&conf, &s->f))
		fail_msg("rv_ucx_create: %s", why);
	open_side(s);
}

static void step(struct fixture *f)
{
	f->now += RV_US(1);
	if (f->a.poller)
		f->a.poller->ops->poll(f->a.poller, f->now);
	if (f->b.poller)
		f->b.poller->ops->poll(f->b.poller, f->now);
}

/* Poll both until @cond, but not for ever. */
#define STEP_UNTIL(f, cond)                                    \
	do {                                                   \
		uint64_t limit_ = rv_clock_ns() + LIMIT;       \
		while (!(cond)) {                              \
			step(f);                               \
			if (rv_clock_ns() > limit_)            \
				fail_msg("no end: %s", #cond); \
		}                                              \
	} while (0)

static enum rv_peer_state state(struct fixture *f)
{
	return f->a.f->ops->peer_state(f->a.f, 0, OWNER);
}

static int introduce_bytes(struct fixture *f, uint64_t incarnation, const uint8_t *addr, size_t len)
{
	const struct rv_fabric_peer p = {.worker = OWNER,
					 .incarnation = incarnation,
					 .addr = addr,
					 .addr_len = len};

	return f->a.f->ops->peer_up(f->a.f, 0, &p);
}

/* Tell `a` of a new incarnation of `b`. */
static void introduce(struct fixture *f)
{
	uint8_t addr[2048];
	size_t len = f->b.f->ops->address(f->b.f, 0, addr, sizeof(addr));

	assert_in_range(len, 1, sizeof(addr));
	assert_int_equal(introduce_bytes(f, ++f->incarnation, addr, len), 0);
}

static void connect_sides(struct fixture *f)
{
	introduce(f);
	STEP_UNTIL(f, state(f) == RV_PEER_UP);
}

/* One GET. */

static void on_done(struct rv_fabric_get *g, int rc)
{
	struct read *r = g->ctx;

	r->rc = rc;
	r->dones++;
}

static int post(struct fixture *f, struct read *r, uint64_t off, uint64_t len)
{
	*r = (struct read){.rc = PENDING};
	r->g = (struct rv_fabric_get){
		.worker = OWNER,
		.remote_addr = (uintptr_t)f->src + off,
		.len = len,
		.key = f->src_map->key,
		.key_len = f->src_map->key_len,
		.local = f->dst + off,
		.local_map = f->dst_map,
		.done = on_done,
		.ctx = r,
	};
	return f->a.f->ops->get(f->a.f, 0, &r->g);
}

static void get_and_compare(struct fixture *f, uint64_t len)
{
	memset(f->dst, 0, len);
	assert_int_equal(post(f, &reads[0], 0, len), 0);
	assert_int_equal(reads[0].dones, 0); /* never inside get() */
	STEP_UNTIL(f, reads[0].dones);
	assert_int_equal(reads[0].rc, 0);
	assert_memory_equal(f->src, f->dst, len);
}

static unsigned outstanding(struct fixture *f)
{
	return f->a.f->ops->outstanding(f->a.f, 0);
}

/* Post MANY GETs of @len bytes that lie side by side. */
static void post_many(struct fixture *f, uint64_t len)
{
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(post(f, &reads[i], i * len, len), 0);
	assert_int_equal(outstanding(f), MANY);
}

static unsigned count_done_once(int rc)
{
	unsigned n = 0;

	for (unsigned i = 0; i < MANY; i++)
		n += reads[i].dones == 1 && reads[i].rc == rc;
	return n;
}

/* Each GET ended once, and some by the connection's end; a device may have been quicker than that. */
static void check_ended_by_reset(void)
{
	unsigned reset = count_done_once(-ECONNRESET);

	assert_int_equal(count_done_once(0) + reset, MANY);
	assert_true(reset > 0 || native());
}

/* Fixture. */

static uint8_t *make_pages(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	void *p;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)BIG), 0);
	p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	close(fd);
	return p;
}

/* UCX must not rely on what its memory held before: leave something nasty there. */
static void soil_heap(void)
{
	enum { NR = 64, SIZE = 40 << 10 };
	void *p[NR];

	for (size_t i = 0; i < NR; i++) {
		p[i] = malloc(SIZE);
		assert_non_null(p[i]);
		memset(p[i], 0x02, SIZE);
		__asm__ volatile("" : : "r"(p[i]) : "memory"); /* keep the stores */
	}
	for (size_t i = 0; i < NR; i++)
		free(p[i]);
}

static int set_up(void **s)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	soil_heap();
	create_side(&f->a);
	create_side(&f->b);
	f->src = make_pages();
	f->dst = make_pages();
	for (uint64_t i = 0; i < BIG / 8; i++)
		((uint64_t *)f->src)[i] = i * 0x9e3779b97f4a7c15u;
	assert_int_equal(f->b.f->ops->map(f->b.f, f->src, BIG, RV_MAP_SOURCE, &f->src_map), 0);
	assert_int_equal(f->a.f->ops->map(f->a.f, f->dst, BIG, RV_MAP_DESTINATION, &f->dst_map), 0);
	*s = f;
	return 0;
}

static void stop_side(struct fixture *f, struct side *s)
{
	if (s->poller) {
		STEP_UNTIL(f, s->f->ops->quiesce(s->f, 0) == 0);
		close_side(s);
	}
}

static int tear_down(void **s)
{
	struct fixture *f = *s;

	stop_side(f, &f->a);
	stop_side(f, &f->b);
	assert_int_equal(f->b.f->ops->unmap(f->b.f, f->src_map), 0);
	assert_int_equal(f->a.f->ops->unmap(f->a.f, f->dst_map), 0);
	f->a.f->ops->destroy(f->a.f);
	f->b.f->ops->destroy(f->b.f);
	munmap(f->src, BIG);
	munmap(f->dst, BIG);
	free(f);
	return 0;
}

/* Tests. */

static void gets_bring_the_right_bytes_from_memfd_pages(void **s)
{
	static const uint64_t lens[] = {1, 4096, RV_MIB(1), BIG};
	struct fixture *f = *s;

	connect_sides(f);
	for (size_t i = 0; i < RV_ARRAY_NR(lens); i++)
		get_and_compare(f, lens[i]);
	assert_int_equal(outstanding(f), 0);
}

static void bandwidth_of_64_mib(void **s)
{
	struct fixture *f = *s;
	uint64_t begin, best = RV_NEVER;

	connect_sides(f);
	get_and_compare(f, BIG);
	for (int i = 0; i < 4; i++) {
		begin = rv_clock_ns();
		assert_int_equal(post(f, &reads[0], 0, BIG), 0);
		STEP_UNTIL(f, reads[0].dones);
		best = rv_min_u64(best, rv_clock_ns() - begin);
	}
	print_message("# 64 MiB, both sides on one thread: %.0f MB/s\n",
		      (double)BIG * 1e3 / (double)best);
}

static void many_gets_may_be_outstanding(void **s)
{
	struct fixture *f = *s;
	const uint64_t len = RV_KIB(64);

	connect_sides(f);
	post_many(f, len);
	STEP_UNTIL(f, outstanding(f) == 0);
	assert_int_equal(count_done_once(0), MANY);
	assert_memory_equal(f->src, f->dst, MANY * len);
}

static uint64_t next_random(uint64_t *s)
{
	uint64_t x = *s += 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static void get_with_key(struct fixture *f, const uint8_t *key, size_t len, int want)
{
	struct rv_fabric_map saved = *f->src_map;
	int rc;

	memcpy(f->src_map->key, key, len);
	f->src_map->key_len = len;
	rc = post(f, &reads[0], 0, 4096);
	*f->src_map = saved;
	assert_int_equal(rc, want);
	assert_int_equal(outstanding(f), 0);
}

static void a_wrong_key_is_refused(void **s)
{
	struct fixture *f = *s;
	uint8_t key[32] = {0};

	connect_sides(f);
	get_with_key(f, key, 0, -EPROTO);
	get_with_key(f, key, 8, -EPROTO);
	key[8] = 1; /* not host memory */
	get_with_key(f, key, 9, -EPROTO);
	memset(key, 0xff, 8); /* 64 domains, no bytes for them */
	key[8] = 0;
	get_with_key(f, key, 32, -EPROTO);
	if (native())
		return;
	/* Framed well, but no lane of ours can use it: UCX says so. */
	memcpy(key, "\x01\0\0\0\0\0\0\0\0\x04\xaa\xbb\xcc\xdd\x80\x00\x30\x40\xff", 19);
	get_with_key(f, key, 19, -EPROTO);
	get_and_compare(f, 4096);
}

/* Keys as rc_v owners pack them, and our own; each damaged somewhere, cut, or padded. */
static size_t damaged_key(struct fixture *f, uint64_t *rng, uint8_t *key)
{
	static const uint8_t device[] = {1,    0, 0, 0, 0, 0,    0,    0,    0,    4,
					 0xaa, 1, 2, 3, 0, 0x80, 0x00, 0x30, 0x40, 0xff};
	static const uint8_t two[] = {5, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 2,
				      3, 4, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0xff};
	const uint8_t *from[] = {f->src_map->key, device, two};
	const size_t lens[] = {f->src_map->key_len, sizeof(device), sizeof(two)};
	unsigned which = (unsigned)(next_random(rng) % 3),
		 damage = (unsigned)(next_random(rng) % 4);
	size_t len = lens[which];

	memcpy(key, from[which], len);
	for (uint64_t n = 1 + next_random(rng) % 3; n; n--) {
		if (damage == 0)
			key[next_random(rng) % len] ^= (uint8_t)(1u << next_random(rng) % 8);
		else if (damage == 1)
			key[next_random(rng) % len] = (uint8_t)next_random(rng);
	}
	if (damage == 2)
		len = next_random(rng) % (len + 1);
	for (uint64_t n = damage == 3 ? 1 + next_random(rng) % 40 : 0; n; n--)
		key[len++] = (uint8_t)(next_random(rng) % 3 ? next_random(rng) : 0xff);
	return len;
}

/* No key crashes us: it is refused, or the GET ends, once; and the next honest one is right. */
static void damaged_keys_are_refused_or_their_gets_end(void **s)
{
	struct fixture *f = *s;
	uint64_t rng = 42, refused = 0, failed = 0, done = 0;

	connect_sides(f);
	rv_log_set_level(RV_LOG_ERROR);
	for (unsigned i = 0; i < KEYS; i++) {
		struct rv_fabric_map saved = *f->src_map;
		int rc;

		f->src_map->key_len = damaged_key(f, &rng, f->src_map->key);
		rc = post(f, &reads[0], 0, 4096);
		*f->src_map = saved;
		if (rc) {
			refused++;
			assert_int_equal(reads[0].dones, 0);
			continue;
		}
		STEP_UNTIL(f, reads[0].dones);
		assert_int_equal(reads[0].dones, 1);
		*(reads[0].rc ? &failed : &done) += 1;
		if (reads[0].rc)
			connect_sides(f);
		if (i % 4096 == 0)
			get_and_compare(f, 4096);
	}
	get_and_compare(f, 4096);
	print_message("# %u keys: %" PRIu64 " refused, %" PRIu64 " gets failed, %" PRIu64 " read\n",
		      KEYS, refused, failed, done);
	assert_true(refused > KEYS / 4);
	rv_log_set_level(RV_LOG_WARN);
}

static void a_peers_address_is_walked_before_ucx_sees_it(void **s)
{
	struct fixture *f = *s;
	uint8_t addr[2048];
	size_t len = f->b.f->ops->address(f->b.f, 0, addr, sizeof(addr) - 1);

	assert_int_not_equal(rv_addr_form_of(addr, len), RV_ADDR_NONE);
	for (size_t n = 0; n < len; n++)
		assert_int_equal(introduce_bytes(f, ++f->incarnation, addr, n), -EPROTO);
	addr[len] = 0xff;
	assert_int_equal(introduce_bytes(f, ++f->incarnation, addr, len + 1), -EPROTO);
	memset(addr, 0xff, 40);
	assert_int_equal(introduce_bytes(f, ++f->incarnation, addr, 40), -EPROTO);
	assert_int_equal(state(f), RV_PEER_UNKNOWN);
	connect_sides(f);
}

static void an_address_of_no_use_is_refused(void **s)
{
	struct fixture *f = *s;
	uint8_t addr[2049] = {0};

	assert_int_equal(introduce_bytes(f, 1, addr, 0), -EPROTO);
	assert_int_equal(introduce_bytes(f, 1, addr, sizeof(addr)), -EPROTO);
	assert_int_equal(state(f), RV_PEER_UNKNOWN);
}

static void an_unknown_peer_has_no_state(void **s)
{
	struct fixture *f = *s;

	assert_int_equal(state(f), RV_PEER_UNKNOWN);
	assert_int_equal(post(f, &reads[0], 0, 1), -EHOSTUNREACH);
	f->a.f->ops->abandon(f->a.f, 0, OWNER);
	f->a.f->ops->peer_down(f->a.f, 0, OWNER);
	connect_sides(f);
	f->a.f->ops->peer_down(f->a.f, 0, OWNER);
	assert_int_equal(state(f), RV_PEER_UNKNOWN);
}

static void the_state_begins_the_wire_up(void **s)
{
	struct fixture *f = *s;

	introduce(f);
	assert_int_equal(state(f), RV_PEER_WIRING);
	assert_int_equal(post(f, &reads[0], 0, 1), -EHOSTUNREACH);
	STEP_UNTIL(f, state(f) == RV_PEER_UP);
	/* The same incarnation changes nothing, whatever address comes with it. */
	assert_int_equal(introduce_bytes(f, f->incarnation, (const uint8_t *)"x", 1), 0);
	assert_int_equal(state(f), RV_PEER_UP);
}

static void a_new_incarnation_replaces_the_endpoint(void **s)
{
	struct fixture *f = *s;

	connect_sides(f);
	get_and_compare(f, 4096);
	introduce(f); /* the same worker under another name */
	assert_int_equal(state(f), RV_PEER_WIRING);
	STEP_UNTIL(f, state(f) == RV_PEER_UP);
	get_and_compare(f, RV_MIB(1));

	close_side(&f->b); /* and a new worker */
	open_side(&f->b);
	introduce(f);
	STEP_UNTIL(f, state(f) == RV_PEER_UP);
	get_and_compare(f, RV_MIB(1));
}

static void gets_end_once_when_the_owner_goes(void **s)
{
	struct fixture *f = *s;

	connect_sides(f);
	post_many(f, RV_KIB(256));
	for (int i = 0; i < 20; i++)
		step(f);
	close_side(&f->b);
	STEP_UNTIL(f, outstanding(f) == 0);
	check_ended_by_reset();
	STEP_UNTIL(f, state(f) == RV_PEER_FAILED);

	open_side(&f->b);
	connect_sides(f);
	get_and_compare(f, BIG);
	for (int i = 0; i < 100; i++)
		step(f);
	check_ended_by_reset();
}

static const struct rv_ucx_peer *peer_record(struct fixture *f)
{
	const struct rv_ucx_worker *w = RV_CONTAINER(f->a.poller, struct rv_ucx_worker, poller);

	return rv_map64_get(&w->peers, OWNER);
}

static void an_owner_outlives_a_consumer_with_replies_queued(void **s)
{
	struct fixture *f = *s;

	for (int round = 0; round < 3; round++) {
		connect_sides(f);
		post_many(f, RV_KIB(256));
		for (int i = 0; i < 20; i++)
			step(f);
		close_side(&f->a);
		for (int i = 0; i < 1000; i++)
			step(f);
		open_side(&f->a);
	}
	connect_sides(f);
	get_and_compare(f, RV_MIB(1));
}

static void a_failed_peer_is_left_alone_for_longer_each_time(void **s)
{
	struct fixture *f = *s;
	uint64_t wait_ms = 100;
	const struct rv_ucx_peer *p;
	uint64_t retry_ns;

	if (native())
		skip(); /* each attempt takes the device's retries */
	connect_sides(f);
	p = peer_record(f);
	close_side(&f->b);
	STEP_UNTIL(f, state(f) == RV_PEER_FAILED && !p->ep);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(p->backoff_ns, RV_MS(wait_ms));
		retry_ns = p->retry_ns;
		f->now = retry_ns - RV_US(2);
		step(f);
		assert_int_equal(state(f), RV_PEER_FAILED);
		assert_int_equal(p->retry_ns, retry_ns); /* not tried */
		step(f);
		(void)state(f); /* tried: in vain, at once or a little later */
		STEP_UNTIL(f, !p->ep);
		assert_true(p->retry_ns > retry_ns);
		wait_ms = rv_min_u64(wait_ms * 2, 5000);
	}
}

static void abandon_completes_each_get_once(void **s)
{
	struct fixture *f = *s;

	connect_sides(f);
	post_many(f, RV_KIB(256));
	for (int i = 0; i < 20; i++)
		step(f);
	f->a.f->ops->abandon(f->a.f, 0, OWNER);
	STEP_UNTIL(f, outstanding(f) == 0);
	check_ended_by_reset();
	STEP_UNTIL(f, state(f) == RV_PEER_UP); /* no backoff: the next use makes a new one */
	get_and_compare(f, BIG);
}

static void abandon_does_not_need_the_owner(void **s)
{
	struct fixture *f = *s;
	struct rv_poller *b = f->b.poller;

	connect_sides(f);
	post_many(f, RV_KIB(256));
	f->b.poller = NULL; /* the owner hangs */
	for (int i = 0; i < 100; i++)
		step(f);
	f->a.f->ops->abandon(f->a.f, 0, OWNER);
	STEP_UNTIL(f, outstanding(f) == 0);
	check_ended_by_reset();
	f->b.poller = b;
}

static void peer_down_completes_its_gets(void **s)
{
	struct fixture *f = *s;

	connect_sides(f);
	post_many(f, RV_KIB(256));
	f->a.f->ops->peer_down(f->a.f, 0, OWNER);
	assert_int_equal(state(f), RV_PEER_UNKNOWN);
	STEP_UNTIL(f, outstanding(f) == 0);
	check_ended_by_reset();
}

static void quiesce_ends_and_closes_the_gate(void **s)
{
	struct fixture *f = *s;

	connect_sides(f);
	post_many(f, RV_KIB(256));
	assert_int_equal(f->a.f->ops->quiesce(f->a.f, 0), -EAGAIN);
	assert_int_equal(post(f, &(struct read){0}, 0, 1), -ESHUTDOWN);
	assert_int_equal(state(f), RV_PEER_FAILED);
	STEP_UNTIL(f, f->a.f->ops->quiesce(f->a.f, 0) == 0);
	check_ended_by_reset();
}

static void close_without_quiesce_ends_the_gets(void **s)
{
	struct fixture *f = *s;

	connect_sides(f);
	post_many(f, RV_KIB(256));
	close_side(&f->a);
	check_ended_by_reset();
	open_side(&f->a);
	connect_sides(f);
	get_and_compare(f, RV_MIB(1));
}

static void a_second_reactor_reads_by_the_same_key(void **s)
{
	struct fixture *f = *s;
	struct side first = f->b;
	uint8_t addr[2048];
	size_t len;

	assert_int_equal(f->b.f->ops->open_reactor(f->b.f, 1, &f->b.poller), 0);
	len = f->b.f->ops->address(f->b.f, 1, addr, sizeof(addr));
	assert_int_equal(f->b.f->ops->address(f->b.f, 1, NULL, 0), len);
	assert_int_equal(introduce_bytes(f, 99, addr, len), 0);
	STEP_UNTIL(f, state(f) == RV_PEER_UP);
	get_and_compare(f, RV_MIB(1));
	STEP_UNTIL(f, f->b.f->ops->quiesce(f->b.f, 1) == 0);
	f->b.f->ops->close_reactor(f->b.f, 1);
	f->b = first;
}

static void maps_have_keys_where_peers_may_read(void **s)
{
	struct fixture *f = *s;
	static const enum rv_map_access access[] = {RV_MAP_SOURCE, RV_MAP_DESTINATION, RV_MAP_BOTH};
	struct rv_fabric_map *m;

	for (size_t i = 0; i < RV_ARRAY_NR(access); i++) {
		assert_int_equal(f->b.f->ops->map(f->b.f, f->src, 8192, access[i], &m), 0);
		assert_ptr_equal(m->base, f->src);
		assert_int_equal(m->len, 8192);
		assert_int_equal(m->key_len > 0, access[i] != RV_MAP_DESTINATION);
		assert_int_equal(f->b.f->ops->unmap(f->b.f, m), 0);
	}
}

static void a_sleeper_is_woken_by_its_fd(void **s)
{
	struct fixture *f = *s;
	struct rv_poller *a = f->a.poller;

	assert_true(a->ops->fd(a) >= 0);
	connect_sides(f);
	STEP_UNTIL(f, a->ops->arm(a) == 0);
	assert_int_equal(post(f, &reads[0], 0, 4096), 0);
	STEP_UNTIL(f, reads[0].dones);
}

static void create_refused(enum rv_ucx_mode mode, const char *tls)
{
	char why[RV_UCX_WHY] = "";
	const struct rv_ucx_conf conf = {.mode = mode, .tls = tls, .reactors = 1, .why = why};
	struct rv_fabric *f = NULL;

	assert_int_equal(rv_ucx_create(&conf, &f), -ENOTSUP);
	assert_null(f);
	assert_true(strlen(why) > 0);
	print_message("# refused: %s\n", why);
}

static void auto_takes_no_emulated_lane(void **s)
{
	create_refused(RV_UCX_AUTO, "tcp");
	create_refused(RV_UCX_AUTO, "rc,tcp");
	create_refused(RV_UCX_AUTO, "^tcp");
	create_refused(RV_UCX_YES, "bogus");
	if (access("/sys/class/infiniband", F_OK)) /* no device here */
		create_refused(RV_UCX_AUTO, NULL);
}

static void the_fabric_says_what_it_is(void **s)
{
	struct fixture *f = *s;

	if (native())
		print_message("# %s\n", f->a.f->path_name);
	else
		assert_string_equal(f->a.f->path_name, "ucx tcp");
	assert_string_equal(f->a.f->ops->name, "ucx");
	assert_int_equal(f->a.f->ops->backend, 1);
	assert_int_equal(f->a.f->native, native());
	assert_false(f->a.f->exports);
	assert_true(f->a.f->version[0] != '\0');
}

static void no_signal_handler_of_ucx_stays(void **s)
{
	struct sigaction sa;

	assert_int_equal(sigaction(SIGHUP, NULL, &sa), 0);
	assert_true(sa.sa_handler == SIG_DFL);
}

/* Only the test named, if one is. */
int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(gets_bring_the_right_bytes_from_memfd_pages),
		TEST(bandwidth_of_64_mib),
		TEST(many_gets_may_be_outstanding),
		TEST(a_wrong_key_is_refused),
		TEST(damaged_keys_are_refused_or_their_gets_end),
		TEST(a_peers_address_is_walked_before_ucx_sees_it),
		TEST(an_address_of_no_use_is_refused),
		TEST(an_unknown_peer_has_no_state),
		TEST(the_state_begins_the_wire_up),
		TEST(a_new_incarnation_replaces_the_endpoint),
		TEST(gets_end_once_when_the_owner_goes),
		TEST(an_owner_outlives_a_consumer_with_replies_queued),
		TEST(a_failed_peer_is_left_alone_for_longer_each_time),
		TEST(abandon_completes_each_get_once),
		TEST(abandon_does_not_need_the_owner),
		TEST(peer_down_completes_its_gets),
		TEST(quiesce_ends_and_closes_the_gate),
		TEST(close_without_quiesce_ends_the_gets),
		TEST(a_second_reactor_reads_by_the_same_key),
		TEST(maps_have_keys_where_peers_may_read),
		TEST(a_sleeper_is_woken_by_its_fd),
		TEST(the_fabric_says_what_it_is),
		TEST(no_signal_handler_of_ucx_stays),
		cmocka_unit_test(auto_takes_no_emulated_lane),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	unsetenv("UCX_TLS");
	if (!native())
		unsetenv("UCX_NET_DEVICES");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
