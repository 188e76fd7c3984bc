/* Regions from both sides: an engine on its port, the slow thread's work by hand on its own, a scripted fabric. */
#include "dataplane/mem/region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/service/registrar.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/msg.h"
#include "tests/fake/fake_clock.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define BUDGET  RV_MIB(16)
#define PLAIN   RV_MIB(8)
#define ALICE   1000u
#define SESSION 5u
#define CELLS   16u
#define LEN     (RV_MIB(1) + 777)

static struct rv_mesh *mesh;
static struct rv_port *port, *slow;
static struct rv_reactor reactor;
static struct rv_engines set;
static struct rv_engine engine;
static struct fake_fabric fabric;
static struct rv_registrar reg;
static struct rv_registrar_client client;
static uint8_t *mine; /* the client's own mapping */
static bool slow_works;

static void transfer_end(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_reply(p, c);
}

static int setup(void **state)
{
	struct rv_reactor_conf rc = {.clock = fake_clock};
	struct rv_registrar_conf c = {
		.fabric = {&fabric.fabric},
		.fabric_nr = 1,
		.registered_budget = BUDGET,
		.plain_budget = PLAIN,
		.hugepages = RV_HUGEPAGES_NO,
	};
	struct rv_engine_conf ec = {
		.reactor = &reactor,
		.set = &set,
		.worker = FAKE_WORKER,
		.lease_timeout_ns = RV_MS(400),
		.quarantine_ns = RV_MS(100),
		.chunk_lease_ns = RV_NEVER,
		.rdma_min_bytes = 1,
		.chunk_size = (uint32_t)RV_KIB(512),
		.max_slots = 64,
		.max_leases = 64,
		.max_gets = 4,
		.fabric = {&fabric.fabric},
		.fabric_nr = 1,
		.pool = {.initial_bytes = RV_MIB(1),
			 .max_bytes = RV_MIB(8),
			 .dedicated_min = RV_MIB(1),
			 .reclaim_after_ns = RV_NEVER,
			 .registers = true,
			 .grow = rv_registrar_grow,
			 .shrink = rv_registrar_shrink,
			 .ask = rv_registrar_ask,
			 .user = &client},
		.run_transfer_end = transfer_end,
	};

	(void)state;
	fake_now_ns = RV_SEC(1000);
	mesh = rv_mesh_create(2, CELLS);
	port = rv_mesh_port(mesh, 0);
	slow = rv_mesh_port(mesh, 1);
	rc.port = port;
	rv_reactor_init(&reactor, &rc);
	c.port = slow;
	fake_fabric_init(&fabric, 1, RV_PEER_OFFER_UCX);
	memset(&reg, 0, sizeof(reg));
	rv_registrar_init(&reg, &c);
	set.nr = 1;
	set.engine[0] = &engine;
	client = (struct rv_registrar_client){.registrar = &reg, .engine = &engine};
	assert_int_equal(rv_engine_init(&engine, &ec), 0);
	slow_works = true;
	mine = NULL;
	return 0;
}

static void run(void)
{
	while ((slow_works && rv_port_poll(slow, 100)) || rv_reactor_step(&reactor))
		;
}

static void advance(uint64_t ns)
{
	fake_now_ns += ns;
	rv_reactor_step(&reactor);
	run();
}

static void unmap_mine(void)
{
	if (mine)
		munmap(mine, LEN);
	mine = NULL;
}

static int finish(void **state)
{
	(void)state;
	unmap_mine();
	rv_pool_stop(&engine.pool);
	rv_pool_shrink_all(&engine.pool);
	run();
	assert_true(rv_list_empty(&engine.pool.regions));
	assert_int_equal(rv_counter_get(&engine.pool.blocks), 0);
	assert_int_equal(reg.registered.used, 0);
	assert_int_equal(reg.plain.used, reg.parking.parked_bytes);
	assert_int_equal(rv_counter_get(&reg.live_regions), 0);
	assert_int_equal(fake_free_cells(port), CELLS);
	assert_int_equal(fabric.live_maps, 0);
	rv_registrar_stop(&reg);
	rv_engine_fini(&engine);
	rv_mesh_destroy(mesh);
	return 0;
}

/* Messages. */

static struct rv_cell *start(rv_cell_fn *fn, const void *body, size_t len, bool *back);

static void came_back(struct rv_port *p, struct rv_cell *c)
{
	(void)p;
	*(bool *)c->ctx = true;
}

static struct rv_cell *start(rv_cell_fn *fn, const void *body, size_t len, bool *back)
{
	struct rv_cell *c = rv_cell_alloc(port);

	assert_non_null(c);
	memcpy(c->body, body, len);
	*back = false;
	c->ctx = back;
	c->run = fn;
	c->done = came_back;
	rv_cell_send(port, 0, c);
	run();
	return c;
}

static void ask(rv_cell_fn *fn, void *body, size_t len)
{
	bool back;
	struct rv_cell *c = start(fn, body, len, &back);

	assert_true(back);
	memcpy(body, c->body, len);
	rv_cell_free(port, c);
}

static int make_memfd(uint64_t len, int seals)
{
	int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	if (!mine)
		mine = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(mine != MAP_FAILED);
	for (uint64_t i = 0; i < len; i++)
		mine[i] = (uint8_t)(i * 7 + (i >> 9));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static struct rv_msg_region_open open_region(int fd, uint64_t off, uint64_t len)
{
	struct rv_msg_region_open m = {.engine = &engine,
				       .fd = fd,
				       .off = off,
				       .len = len,
				       .uid = ALICE,
				       .session = SESSION};

	ask(rv_engine_run_region_open, &m, sizeof(m));
	return m;
}

static struct rv_arena *region(void)
{
	struct rv_msg_region_open m = open_region(make_memfd(LEN, F_SEAL_SHRINK), 100, LEN - 100);

	assert_int_equal(m.rc, 0);
	return m.arena;
}

static int stage(struct rv_arena *a, uint64_t off, uint64_t len, uint64_t *local)
{
	struct rv_msg_stage m = {
		.engine = &engine,
		.region = a,
		.off = off,
		.len = len,
		.opts = {.refs = 1, .ttl_ns = RV_NEVER, .uid = ALICE, .session = SESSION},
	};

	ask(rv_engine_run_stage, &m, sizeof(m));
	*local = m.handle.local;
	return m.rc;
}

static struct rv_msg_acquire acquire(uint64_t local, bool offer)
{
	struct rv_msg_acquire m = {.engine = &engine,
				   .local = local,
				   .worker = FAKE_OWNER,
				   .has_offer = offer,
				   .offer = RV_PEER_OFFER_UCX};

	ask(rv_engine_run_acquire, &m, sizeof(m));
	return m;
}

static void end_lease(enum rv_lease_op op, uint64_t local, uint64_t lease)
{
	struct rv_msg_lease m = {.engine = &engine,
				 .op = op,
				 .local = local,
				 .lease_id = lease,
				 .worker = FAKE_OWNER};

	ask(rv_engine_run_lease, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
}

static void drop(uint64_t local)
{
	struct rv_msg_slot m = {.engine = &engine, .op = RV_SLOT_DROP, .local = local};

	ask(rv_engine_run_slot, &m, sizeof(m));
	assert_int_equal(m.rc, 0);
}

static struct rv_cell *close_region(struct rv_arena *a, uint64_t wait_ns, bool *back)
{
	struct rv_msg_region_close m = {.engine = &engine, .arena = a, .wait_ns = wait_ns};

	return start(rv_engine_run_region_close, &m, sizeof(m), back);
}

static struct rv_msg_region_close closed(struct rv_cell *c)
{
	struct rv_msg_region_close m = *(struct rv_msg_region_close *)(void *)c->body;

	rv_cell_free(port, c);
	return m;
}

static struct rv_msg_region_close close_now(struct rv_arena *a, uint64_t wait_ns)
{
	bool back;
	struct rv_cell *c = close_region(a, wait_ns, &back);

	assert_true(back);
	return closed(c);
}

/* Tests. */

static void whole_pages_around_the_range_are_pinned_and_counted(void **state)
{
	struct rv_msg_region_open m =
		open_region(make_memfd(LEN, F_SEAL_SHRINK), 5000, RV_MIB(1) - 5000);

	(void)state;
	assert_int_equal(m.rc, 0);
	assert_int_equal(m.eff_off, 4096);
	assert_int_equal(m.eff_len, RV_MIB(1) - 4096);
	assert_true(m.registered);
	assert_int_equal(reg.registered.used, RV_MIB(1) - 4096);
	assert_int_equal(rv_counter_get(&reg.external), 1);
	assert_int_equal(rv_counter_get(&reg.external_bytes), RV_MIB(1) - 4096);
	assert_int_equal(close_now(m.arena, 0).rc, 0);
	assert_int_equal(rv_counter_get(&reg.external_bytes), 0);
}

static void what_is_refused_costs_nothing(void **state)
{
	static const struct {
		int seals;
		uint64_t off, len;
		int map_rc, rc;
	} t[] = {
		{0, 0, 4096, 0, -EPERM},
		{F_SEAL_GROW, 0, 4096, 0, -EPERM},
		{F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, 0, 4096, 0, -EPERM},
		{F_SEAL_SHRINK, 0, 0, 0, -EINVAL},
		{F_SEAL_SHRINK, 0, LEN + 1, 0, -ERANGE},
		{F_SEAL_SHRINK, LEN, 1, 0, -ERANGE},
		{F_SEAL_SHRINK, 1, UINT64_MAX, 0, -ERANGE},
		{F_SEAL_SHRINK, 0, LEN, -ENOMEM, -EIO},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		int fd = make_memfd(LEN, t[i].seals);
		struct rv_msg_region_open m;

		unmap_mine();
		fabric.map_rc = (struct fake_script){.nr = 1, .outcome = {t[i].map_rc}};
		m = open_region(fd, t[i].off, t[i].len);
		assert_int_equal(m.rc, t[i].rc);
		assert_true(m.text[0] != '\0');
		assert_int_equal(reg.registered.used, 0);
		assert_int_equal(fcntl(fd, F_GETFD), -1); /* the daemon's duplicate went */
	}
}

static void over_the_budget_a_region_is_refused(void **state)
{
	int fd = memfd_create("big", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct rv_msg_region_open m;

	(void)state;
	assert_int_equal(ftruncate(fd, (off_t)BUDGET + 1), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	m = open_region(fd, 0, BUDGET + 1);
	assert_int_equal(m.rc, -ENOSPC);
	assert_int_equal(rv_counter_get(&reg.failures[RV_REG_FAIL_BUDGET]), 1);
}

static void ranges_count_from_what_was_registered(void **state)
{
	static const struct {
		uint64_t off, len;
		int rc;
	} t[] = {
		{0, LEN - 100, 0},       {0, 1, 0},
		{LEN - 101, 1, 0},       {LEN - 100, 0, 0},
		{LEN - 100, 1, -ERANGE}, {LEN - 101, 2, -ERANGE},
		{LEN - 99, 0, -ERANGE},  {1, UINT64_MAX, -ERANGE},
	};
	struct rv_arena *a = region();
	uint64_t local;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		uint8_t byte;

		local = 0;
		assert_int_equal(stage(a, t[i].off, t[i].len, &local), t[i].rc);
		if (t[i].rc)
			continue;
		if (t[i].len) {
			const struct rv_block *b = rv_slot_find(&engine.store, local)->block;

			assert_int_equal(rv_block_read(b, 0, &byte, 1), 0);
			assert_int_equal(byte, mine[100 + t[i].off]);
		}
		drop(local);
	}
	assert_int_equal(rv_counter_get(&engine.stats.operation[RV_OP_REGISTER_REGION][0]), 4);
	close_now(a, 0);
}

static void unregister_waits_for_the_last_slot_and_hands_out_no_key_meanwhile(void **state)
{
	struct rv_arena *a = region();
	uint64_t one, two, none = 0;
	struct rv_msg_acquire m;
	struct rv_cell *c;
	bool back;

	(void)state;
	assert_int_equal(stage(a, 0, 1000, &one), 0);
	assert_int_equal(stage(a, 500, 1000, &two), 0);
	assert_int_equal(acquire(one, true).answer, RV_ANSWER_RDMA);
	c = close_region(a, RV_SEC(10), &back);
	assert_false(back);
	assert_int_equal(stage(a, 0, 1, &none), -ESHUTDOWN);
	m = acquire(two, true);
	assert_int_equal(m.answer, RV_ANSWER_READY);
	assert_int_equal(rv_counter_get(&engine.stats.path[RV_PATH_NOT_PINNED]), 1);
	end_lease(RV_LEASE_RELEASE, two, m.lease_id);
	run();
	assert_false(back);
	/* The RDMA lease ends with its slot, and not by its consumer: the range rests, and that counts. */
	drop(one);
	assert_false(back);
	advance(RV_MS(499));
	assert_false(back);
	advance(RV_MS(2));
	assert_true(back);
	assert_int_equal(closed(c).rc, 0);
}

static void a_region_that_is_handed_over_is_read_by_the_device_until_its_last_slot(void **state)
{
	struct rv_arena *a = region();
	struct rv_msg_region_close close = {.engine = &engine,
					    .arena = a,
					    .wait_ns = RV_NEVER,
					    .handed_over = true};
	uint64_t one, none = 0;
	struct rv_msg_acquire m;
	struct rv_cell *c;
	bool back;

	(void)state;
	assert_int_equal(stage(a, 0, 1000, &one), 0);
	c = start(rv_engine_run_region_close, &close, sizeof(close), &back);
	assert_false(back);
	assert_int_equal(stage(a, 0, 1, &none), -ESHUTDOWN);
	advance(RV_SEC(3600));
	m = acquire(one, true);
	assert_int_equal(m.answer, RV_ANSWER_RDMA);
	end_lease(RV_LEASE_RELEASE, one, m.lease_id);
	run();
	assert_true(back);
	assert_int_equal(closed(c).rc, 0);
}

static void a_region_that_empties_in_time_is_drained_and_one_that_does_not_is_not(void **state)
{
	for (unsigned late = 0; late < 2; late++) {
		struct rv_arena *a = region();
		struct rv_msg_region_close m;
		struct rv_cell *c;
		uint64_t local;
		bool back;
		uint8_t byte;

		assert_int_equal(stage(a, 0, 1000, &local), 0);
		c = close_region(a, RV_SEC(1), &back);
		advance(RV_MS(999));
		assert_false(back);
		if (!late)
			drop(local);
		advance(RV_MS(1));
		assert_true(back);
		m = closed(c);
		assert_int_equal(m.rc, 0);
		assert_int_equal(m.drained, !late);
		assert_int_equal(fabric.live_maps, 0);
		assert_int_equal(reg.registered.used, 0);
		if (late) {
			assert_int_equal(rv_block_read(rv_slot_find(&engine.store, local)->block, 0,
						       &byte, 1),
					 -ESHUTDOWN);
			drop(local);
		}
		run();
		assert_true(rv_list_empty(&engine.pool.regions));
		unmap_mine();
	}
	(void)state;
}

static void a_software_get_reads_what_was_staged_whatever_the_client_does(void **state)
{
	struct rv_arena *a = region();
	const uint8_t *base = a->pages.base;
	uint8_t byte, was = mine[200];
	uint64_t local;

	(void)state;
	assert_int_equal(stage(a, 0, 1000, &local), 0);
	assert_int_equal(base[200], was);
	assert_false(close_now(a, 0).drained);
	memset(mine, 0xee, LEN); /* the client's again */
	assert_int_equal(base[200], was);
	assert_int_equal(reg.plain.used, rv_align_up(LEN, RV_GRANULE));
	assert_int_equal(rv_block_read(rv_slot_find(&engine.store, local)->block, 0, &byte, 1),
			 -ESHUTDOWN);
	drop(local);
	run();
	assert_int_equal(base[200], 0); /* the arena is gone, the addresses are not */
}

static void where_the_device_reads_no_copy_is_needed(void **state)
{
	struct rv_arena *a;
	const uint8_t *base;
	uint64_t local;

	(void)state;
	fabric.fabric.native = true;
	a = region();
	base = a->pages.base;
	assert_int_equal(stage(a, 0, 1000, &local), 0);
	assert_false(close_now(a, 0).drained);
	assert_int_equal(base[200], 0);
	assert_int_equal(reg.plain.used, 0);
	drop(local);
	run();
}

static void without_memory_for_a_copy_the_region_stays_until_nobody_can_be_reading(void **state)
{
	struct rv_arena *a = region();
	const uint8_t *base = a->pages.base;
	uint64_t local, limit = reg.plain.limit;
	struct rv_cell *c;
	bool back;

	(void)state;
	reg.plain.limit = 0;
	assert_int_equal(stage(a, 0, 1000, &local), 0);
	assert_int_equal(acquire(local, true).answer, RV_ANSWER_RDMA);
	c = close_region(a, 0, &back);
	assert_false(back);
	assert_null(rv_slot_find(&engine.store, local)); /* its consumer's renewals find no lease */
	assert_int_equal(base[200], mine[200]);
	advance(RV_MS(499)); /* lease and quarantine */
	assert_false(back);
	advance(RV_MS(2));
	assert_true(back);
	assert_false(closed(c).drained);
	reg.plain.limit = limit;
}

static void a_fabric_that_does_not_let_go_never_releases(void **state)
{
	struct rv_arena *a = region();
	uint64_t budget = reg.registered.used;

	(void)state;
	fabric.unmap_rc = (struct fake_script){.nr = 1, .outcome = {-EIO}};
	assert_int_equal(close_now(a, 0).rc, -EIO);
	assert_int_equal(reg.registered.used, budget);
	assert_int_equal(rv_counter_get(&reg.unconfirmed), 1);
	assert_int_equal(a->region->state, RV_REGION_STUCK);
	assert_int_equal(rv_pool_shrink_all(&engine.pool), 0); /* a shutdown does not wait for it */
	/* What the process leaks on purpose is the test's to clean up. */
	rv_list_del(&a->link);
	munmap(a->pages.base, a->pages.len);
	close(a->region->fd);
	free(a->region);
	free(a);
	rv_budget_give(&reg.registered, budget);
	rv_counter_sub(&reg.live_regions, 1);
	fabric.live_maps = 0;
}

static void slots_go_on_with_a_copy_when_a_shutdown_takes_the_region(void **state)
{
	struct rv_arena *a = region();
	struct rv_msg_stop stop = {.engine = &engine, .step = RV_STOP_DEMOTE};
	uint8_t bytes[1000];
	uint64_t local;

	(void)state;
	assert_int_equal(stage(a, 33, 1000, &local), 0);
	ask(rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(stop.busy_arenas, 1);
	run();
	ask(rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(stop.busy_arenas, 0);
	assert_int_equal(fabric.live_maps, 0);
	assert_int_equal(reg.registered.used, 0);
	assert_int_equal(reg.plain.used, rv_align_up(LEN, RV_GRANULE));
	assert_int_equal(rv_block_read(rv_slot_find(&engine.store, local)->block, 0, bytes, 1000),
			 0);
	assert_memory_equal(bytes, mine + 133, 1000);
	memset(mine, 0xee, LEN); /* the client's again */
	assert_int_equal(rv_block_read(rv_slot_find(&engine.store, local)->block, 0, bytes, 1), 0);
	assert_int_not_equal(bytes[0], 0xee);
	assert_int_equal(acquire(local, true).answer, RV_ANSWER_READY);
	drop(local);
	assert_int_equal(close_now(a, 0).rc,
			 0); /* the session says it later, and is answered at once */
	run();
	assert_int_equal(reg.plain.used, 0);
}

static void arenas_lose_their_registration_in_place(void **state)
{
	struct rv_msg_alloc al = {.engine = &engine,
				  .pinned = true,
				  .req = {.cls = {.kind = RV_ARENA_STAGING, .uid = ALICE},
					  .len = 100000,
					  .allow_plain = true}};
	struct rv_msg_stage st = {.engine = &engine,
				  .len = 100000,
				  .pinned = true,
				  .opts = {.refs = 1, .ttl_ns = RV_NEVER, .uid = ALICE}};
	struct rv_msg_stop stop = {.engine = &engine, .step = RV_STOP_DEMOTE};
	uint64_t registered;
	struct rv_slot *s;
	uint8_t *at;

	(void)state;
	ask(rv_engine_run_alloc, &al, sizeof(al));
	assert_int_equal(al.rc, 0);
	st.block = al.req.block;
	ask(rv_engine_run_stage, &st, sizeof(st));
	s = rv_slot_find(&engine.store, st.handle.local);
	assert_true(s->pinned);
	at = rv_block_ptr(s->block);
	at[99999] = 0x5a;
	registered = reg.registered.used;
	ask(rv_engine_run_stop, &stop, sizeof(stop));
	run();
	ask(rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(stop.busy_arenas, 0);
	assert_int_equal(fabric.live_maps, 0);
	assert_int_equal(reg.registered.used, 0);
	assert_int_equal(reg.plain.used, registered);
	assert_false(s->pinned);
	assert_ptr_equal(rv_block_ptr(s->block), at);
	assert_int_equal(at[99999], 0x5a);
	drop(s->rec.id);
}

static void an_arena_that_cannot_be_demoted_is_left_and_leaked(void **state)
{
	struct rv_msg_alloc al = {
		.engine = &engine,
		.pinned = true,
		.req = {.cls = {.kind = RV_ARENA_STAGING, .uid = ALICE}, .len = 4096}};
	struct rv_msg_stop stop = {.engine = &engine, .step = RV_STOP_DEMOTE};
	struct rv_pages pages;

	(void)state;
	ask(rv_engine_run_alloc, &al, sizeof(al));
	assert_int_equal(al.rc, 0);
	pages = al.req.block->arena->pages;
	fabric.unmap_rc = (struct fake_script){.nr = 1, .outcome = {-EIO}};
	ask(rv_engine_run_stop, &stop, sizeof(stop));
	run();
	ask(rv_engine_run_stop, &stop, sizeof(stop));
	assert_int_equal(stop.busy_arenas, 0);
	rv_block_drop(al.req.block);
	rv_pool_shrink_all(&engine.pool);
	run();
	assert_int_equal(rv_counter_get(&reg.unconfirmed), 1);
	((volatile uint8_t *)pages.base)[0] = 1; /* still there: the device may write to it */
	rv_pages_destroy(&pages);
	rv_budget_give(&reg.registered, reg.registered.used);
	rv_counter_sub(&reg.live_regions, 1);
	fabric.live_maps = 0;
}

static void nothing_is_lost_while_cells_are_scarce(void **state)
{
	struct rv_arena *a = region();
	struct rv_cell *taken[CELLS];
	struct rv_cell *c;
	unsigned nr = 0;
	bool back;

	(void)state;
	slow_works = false;
	c = rv_cell_alloc(port);
	while ((taken[nr] = rv_cell_alloc(port)))
		nr++;
	*(struct rv_msg_region_close *)(void *)c->body =
		(struct rv_msg_region_close){.engine = &engine, .arena = a};
	back = false;
	c->ctx = &back;
	c->run = rv_engine_run_region_close;
	c->done = came_back;
	rv_cell_send(port, 0, c);
	run();
	while (nr)
		rv_cell_free(port, taken[--nr]);
	advance(RV_MS(3)); /* it is tried again */
	slow_works = true;
	run();
	assert_true(back);
	closed(c);
}

/* The gate, with real threads. */

struct reader {
	pthread_t thread;
	struct rv_block block;
	_Atomic bool go, stop;
	unsigned bad, refused, reads;
};

static void *read_on(void *arg)
{
	struct reader *r = arg;
	static _Thread_local uint8_t buf[RV_KIB(64)];

	while (!atomic_load(&r->stop)) {
		int rc = rv_block_read(&r->block, 0, buf, sizeof(buf));

		r->reads++;
		if (rc) {
			r->refused++;
			break;
		}
		for (size_t i = 0; i < sizeof(buf); i += 4096)
			r->bad += buf[i] != 7;
		atomic_store(&r->go, true);
	}
	return NULL;
}

static void no_copy_sees_memory_that_was_given_back(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 50; round++) {
		int fd = make_memfd(LEN, F_SEAL_SHRINK);
		struct rv_region *g = aligned_alloc(_Alignof(struct rv_region), sizeof(*g));
		struct rv_arena a = {.region = g, .pages = {.len = LEN, .memfd = -1}};
		struct reader r[2] = {{.block = {.arena = &a, .len = LEN}},
				      {.block = {.arena = &a, .len = LEN}}};

		memset(g, 0, sizeof(*g));
		g->fd = fd;
		memset(mine, 7, LEN);
		for (unsigned i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&r[i].thread, NULL, read_on, &r[i]), 0);
		while (!atomic_load(&r[0].go) || !atomic_load(&r[1].go))
			;
		rv_copy_latch(&g->gate);
		memset(mine, 9, LEN);
		close(fd);
		g->fd = -1;
		for (unsigned i = 0; i < 2; i++) {
			pthread_join(r[i].thread, NULL);
			assert_int_equal(r[i].bad, 0);
			assert_int_equal(r[i].refused, 1);
		}
		free(g);
		unmap_mine();
	}
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(whole_pages_around_the_range_are_pinned_and_counted),
		T(what_is_refused_costs_nothing),
		T(over_the_budget_a_region_is_refused),
		T(ranges_count_from_what_was_registered),
		T(unregister_waits_for_the_last_slot_and_hands_out_no_key_meanwhile),
		T(a_region_that_is_handed_over_is_read_by_the_device_until_its_last_slot),
		T(a_region_that_empties_in_time_is_drained_and_one_that_does_not_is_not),
		T(a_software_get_reads_what_was_staged_whatever_the_client_does),
		T(where_the_device_reads_no_copy_is_needed),
		T(without_memory_for_a_copy_the_region_stays_until_nobody_can_be_reading),
		T(a_fabric_that_does_not_let_go_never_releases),
		T(slots_go_on_with_a_copy_when_a_shutdown_takes_the_region),
		T(arenas_lose_their_registration_in_place),
		T(an_arena_that_cannot_be_demoted_is_left_and_leaked),
		T(nothing_is_lost_while_cells_are_scarce),
		T(no_copy_sees_memory_that_was_given_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
