#include "dataplane/rendezvous/store.h"

#include <errno.h>

#include "dataplane/base/handle.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_clock.h"
#include "tests/fake/fake_grow.h"
#include "tests/unit/exact.h"

#define CONSUMER   500u
#define LEASE_NS   RV_MS(400)
#define QUARANTINE RV_MS(100)
#define A_KEY      ((struct rv_export *)(void *)&f)

static struct fixture {
	struct rv_mesh *mesh;
	struct rv_reactor reactor;
	struct fake_fabric fabric;
	struct fake_grow grow;
	struct rv_pool pool;
	struct rv_store store;
	struct rv_list ending; /* leases whose transfer the net core still has */
	unsigned transfers_ended, exports_ended;
	bool own_keys; /* of rdma() */
} f;

static void end_transfer(void *user, struct rv_lease *l)
{
	struct fixture *x = user;

	rv_list_push(&x->ending, &l->link);
	x->transfers_ended++;
}

static void end_export(void *user, struct rv_export *e)
{
	struct fixture *x = user;

	assert_ptr_equal(e, A_KEY);
	x->exports_ended++;
}

static void start(bool own_keys)
{
	struct rv_reactor_conf rc = {.clock = fake_clock};
	struct rv_pool_conf pc = {
		.reactor = &f.reactor,
		.initial_bytes = RV_MIB(1),
		.max_bytes = RV_MIB(8),
		.dedicated_min = RV_MIB(1),
		.reclaim_after_ns = RV_NEVER,
		.registers = true,
		.grow = fake_grow_ask,
		.shrink = fake_grow_shrink,
		.user = &f.grow,
	};
	struct rv_store_conf sc = {
		.reactor = &f.reactor,
		.shard = 3,
		.max_slots = 8,
		.max_leases = 8,
		.quarantine_ns = QUARANTINE,
		.seed = 99,
		.end_transfer = end_transfer,
		.end_export = end_export,
		.user = &f,
	};

	memset(&f, 0, sizeof(f));
	f.own_keys = own_keys;
	f.mesh = rv_mesh_create(1, 4);
	rc.port = rv_mesh_port(f.mesh, 0);
	rv_reactor_init(&f.reactor, &rc);
	rv_list_init(&f.ending);
	fake_fabric_init(&f.fabric, 1, 1);
	fake_grow_init(&f.grow, &f.pool, &f.fabric);
	rv_pool_init(&f.pool, &pc);
	assert_int_equal(rv_store_init(&f.store, &sc), 0);
}

static int setup(void **state)
{
	(void)state;
	start(false);
	return 0;
}

static void transfers_gone(void)
{
	struct rv_list *it;

	while ((it = rv_list_pop(&f.ending)))
		rv_store_transfer_gone(RV_LIST_ENTRY(it, struct rv_lease, link));
}

static int finish(void **state)
{
	uint32_t pos = 0;
	struct rv_slot *s;

	(void)state;
	while ((s = rv_idtab_next(&f.store.slots, &pos)))
		rv_slot_end(s, RV_END_DROPPED);
	transfers_gone();
	rv_pool_stop(&f.pool);
	assert_int_equal(f.store.leases.live_nr, 0);
	assert_int_equal(rv_counter_get(&f.store.slot_nr), 0);
	for (unsigned k = 0; k < RV_LEASE_KINDS; k++)
		assert_int_equal(rv_counter_get(&f.store.lease_nr[k]), 0);
	assert_int_equal(rv_counter_get(&f.pool.blocks), 0);
	assert_int_equal(rv_pool_shrink_all(&f.pool), 0);
	rv_store_fini(&f.store);
	rv_pool_fini(&f.pool);
	rv_mesh_destroy(f.mesh);
	return 0;
}

static void no_wait(struct rv_pool *p, struct rv_pool_req *req, int rc)
{
	(void)p;
	(void)req;
	assert_int_equal(rc, 0);
}

static struct rv_block *block_of(uint64_t len, enum rv_arena_kind kind)
{
	struct rv_pool_req req = {.cls = {.kind = kind}, .len = len, .done = no_wait};

	if (rv_pool_alloc(&f.pool, &req) == -EINPROGRESS)
		fake_grow_serve(&f.grow);
	assert_non_null(req.block);
	return req.block;
}

static struct rv_slot *stage(uint32_t refs, uint64_t ttl_ns)
{
	struct rv_stage_opts o = {.refs = refs, .ttl_ns = ttl_ns, .uid = 1000, .session = 0};

	return rv_slot_stage(&f.store, block_of(5000, RV_ARENA_STAGING), 5000, &o);
}

static struct rv_lease *rdma(struct rv_slot *s)
{
	struct rv_lease *l = rv_lease_mint(s, CONSUMER, RV_LEASE_RDMA, LEASE_NS);

	if (l && f.own_keys)
		rv_lease_set_export(l, A_KEY);
	return l;
}

static struct rv_lease *chunked(struct rv_slot *s)
{
	struct rv_lease *l = rv_lease_mint(s, CONSUMER, RV_LEASE_CHUNKED, RV_NEVER);

	rv_block_hold(s->block);
	l->transfer = s->block;
	return l;
}

static void later(uint64_t ns)
{
	fake_now_ns += ns;
	while (rv_reactor_step(&f.reactor))
		;
}

/* The life cycle as a table: what is done to one slot, in order, and what is left of it.
 *
 * + ref   a, b: acquire the first and second lease   A, B: the same by RDMA
 * d, D: detach the first, second   r, R: release the first, second   t: everything's timeout passes
 */
static const struct {
	const char *fact;
	uint32_t refs;
	const char *steps;
	bool alive;
	uint32_t refcount, locks;
	enum rv_end_cause cause;
} rows[] = {
	{"a new slot has one reference and no lock", 1, "", true, 1, 0, RV_END_NONE},
	{"it may start with more", 3, "", true, 3, 0, RV_END_NONE},
	{"a reference adds one", 1, "+", true, 2, 0, RV_END_NONE},
	{"an acquire locks", 1, "a", true, 1, 1, RV_END_NONE},
	{"two acquires lock twice", 1, "ab", true, 1, 2, RV_END_NONE},
	{"a detach only unlocks", 1, "ad", true, 1, 0, RV_END_NONE},
	{"a release unlocks and counts down", 2, "ar", true, 1, 0, RV_END_NONE},
	{"a release that brings both to zero frees", 1, "ar", false, 0, 0, RV_END_RELEASED},
	{"a release with another lock left does not", 1, "abr", true, 0, 1, RV_END_NONE},
	{"acquiring works at refcount zero while a lock is left", 1, "abra", true, 0, 2,
	 RV_END_NONE},
	/* The stock leak: both leases released, or the last detached at zero. We free. */
	{"two releases on one reference free", 1, "abrR", false, 0, 0, RV_END_RELEASED},
	{"a last detach at refcount zero frees", 1, "abrD", false, 0, 0, RV_END_RELEASED},
	{"a detach, then a release", 1, "abdR", false, 0, 0, RV_END_RELEASED},
	{"RDMA leases count the same", 1, "ABrR", false, 0, 0, RV_END_RELEASED},
	{"a reference keeps it through a release", 1, "+ar", true, 1, 0, RV_END_NONE},
	{"a chunked lease has no deadline", 1, "at", true, 1, 1, RV_END_NONE},
	{"an RDMA lease has, with the semantics of a release", 1, "At", false, 0, 0,
	 RV_END_EXPIRED},
	{"it takes one reference, not all", 2, "At", true, 1, 0, RV_END_NONE},
	{"two expired leases take two", 3, "ABt", true, 1, 0, RV_END_NONE},
	{"two expired leases free one reference", 1, "ABt", false, 0, 0, RV_END_EXPIRED},
	{"an expired lease leaves a chunked one alone", 1, "aBt", true, 0, 1, RV_END_NONE},
	{"which then frees with its detach", 1, "aBtd", false, 0, 0, RV_END_RELEASED},
};

static void play(const char *steps, struct rv_slot *s)
{
	struct rv_lease *l[2] = {NULL, NULL};

	for (; *steps; steps++) {
		switch (*steps) {
		case '+':
			s->refcount++;
			break;
		case 'a':
		case 'b':
			assert_non_null(l[*steps - 'a'] = chunked(s));
			break;
		case 'A':
		case 'B':
			assert_non_null(l[*steps - 'A'] = rdma(s));
			break;
		case 'd':
		case 'r':
			rv_lease_end(l[0], *steps == 'r');
			break;
		case 'D':
		case 'R':
			rv_lease_end(l[1], *steps == 'R');
			break;
		default:
			later(LEASE_NS);
			break;
		}
	}
}

static void every_life_ends_as_the_protocol_says(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		struct rv_slot *s;
		uint64_t id;

		start(false);
		s = stage(rows[i].refs, RV_NEVER);
		id = s->rec.id;
		play(rows[i].steps, s);
		s = rv_slot_find(&f.store, id);
		if ((s != NULL) != rows[i].alive)
			fail_msg("%s", rows[i].fact);
		assert_int_equal(rv_idtab_cause(&f.store.slots, id), rows[i].cause);
		if (s && (s->refcount != rows[i].refcount || s->locks != rows[i].locks))
			fail_msg("%s: refcount %u, locks %u", rows[i].fact, s->refcount, s->locks);
		if (i + 1 < RV_ARRAY_NR(rows))
			finish(NULL);
	}
}

/* Ids. */

static void ids_carry_the_shard_and_slots_start_above_zero(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_lease *l = rdma(s);

	(void)state;
	assert_int_equal(rv_local_reactor(s->rec.id), 3);
	assert_int_equal(rv_local_reactor(l->rec.id), 3);
	assert_true(l->rec.id >> 26); /* not guessable from the slot's */
}

static void a_lease_is_found_only_by_its_slot_its_id_and_its_consumer(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER), *other = stage(1, RV_NEVER);
	struct rv_lease *l = rdma(s);

	(void)state;
	assert_ptr_equal(rv_lease_find(&f.store, s->rec.id, l->rec.id, CONSUMER), l);
	assert_null(rv_lease_find(&f.store, s->rec.id, l->rec.id, CONSUMER + 1));
	assert_null(rv_lease_find(&f.store, other->rec.id, l->rec.id, CONSUMER));
	assert_null(rv_lease_find(&f.store, s->rec.id, l->rec.id + 1, CONSUMER));
	assert_null(rv_lease_find(&f.store, s->rec.id, 0, CONSUMER));
}

static void a_lease_ends_once(void **state)
{
	struct rv_slot *s = stage(2, RV_NEVER);
	struct rv_lease *l = chunked(s);
	uint64_t id = l->rec.id;

	(void)state;
	rv_lease_end(l, true);
	assert_null(rv_lease_find(&f.store, s->rec.id, id,
				  CONSUMER)); /* though the net core still has its transfer */
	transfers_gone();
	assert_null(rv_lease_find(&f.store, s->rec.id, id, CONSUMER));
	assert_int_equal(s->refcount, 1);
}

static void full_tables_answer_null(void **state)
{
	struct rv_stage_opts o = {.refs = 1, .ttl_ns = RV_NEVER};
	struct rv_slot *s = stage(1, RV_NEVER);

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		assert_non_null(rdma(s));
	assert_null(rdma(s));
	assert_int_equal(s->locks, 8);
	for (unsigned i = 1; i < 8; i++)
		assert_non_null(rv_slot_stage(&f.store, NULL, 0, &o));
	assert_null(rv_slot_stage(&f.store, NULL, 0, &o));
	assert_int_equal(rv_counter_get(&f.store.slot_nr), 8);
}

static void nothing_is_staged_too(void **state)
{
	struct rv_stage_opts o = {.refs = 1, .ttl_ns = RV_NEVER};
	struct rv_slot *s = rv_slot_stage(&f.store, NULL, 0, &o);
	struct rv_lease *l = rv_lease_mint(s, CONSUMER, RV_LEASE_CHUNKED, RV_NEVER);
	uint64_t id = s->rec.id;

	(void)state;
	assert_false(s->pinned);
	rv_lease_end(l, true);
	assert_null(rv_slot_find(&f.store, id));
	assert_int_equal(f.transfers_ended, 0);
}

static void pinned_says_whether_the_memory_is_registered(void **state)
{
	struct rv_stage_opts o = {.refs = 1, .ttl_ns = RV_NEVER};

	(void)state;
	assert_true(stage(1, RV_NEVER)->pinned);
	assert_false(rv_slot_stage(&f.store, block_of(1, RV_ARENA_PLAIN), 1, &o)->pinned);
}

/* TTL. */

static void a_slot_goes_at_its_ttl_with_every_lease_on_it(void **state)
{
	struct rv_slot *s = stage(5, RV_SEC(1));
	uint64_t id = s->rec.id, a = chunked(s)->rec.id, b = rdma(s)->rec.id;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		later(RV_MS(300));
		rv_lease_renew(rv_lease_find(&f.store, id, b, CONSUMER), fake_now_ns);
	}
	later(RV_MS(99));
	assert_non_null(rv_slot_find(&f.store, id));
	later(RV_MS(1));
	assert_null(rv_slot_find(&f.store, id));
	assert_int_equal(rv_idtab_cause(&f.store.slots, id), RV_END_EXPIRED);
	assert_null(rv_lease_find(&f.store, id, a, CONSUMER));
	assert_null(rv_lease_find(&f.store, id, b, CONSUMER));
	assert_int_equal(rv_counter_get(&f.store.expired), 1);
	assert_int_equal(rv_counter_get(&f.store.reaped[RV_LEASE_RDMA]),
			 0); /* the slot ended, not the lease */
}

static void a_released_slots_ttl_never_fires(void **state)
{
	struct rv_slot *s = stage(1, RV_SEC(1));

	(void)state;
	rv_lease_end(chunked(s), true);
	transfers_gone();
	later(RV_SEC(2));
	assert_int_equal(rv_counter_get(&f.store.expired), 0);
}

/* The reaper. */

static void a_silent_lease_is_reaped_at_its_deadline_and_not_before(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	uint64_t id = s->rec.id, lease = rdma(s)->rec.id;

	(void)state;
	later(LEASE_NS - RV_MS(1));
	assert_non_null(rv_lease_find(&f.store, id, lease, CONSUMER));
	later(RV_MS(1));
	assert_null(rv_lease_find(&f.store, id, lease, CONSUMER));
	assert_null(rv_slot_find(&f.store, id));
	assert_int_equal(rv_counter_get(&f.store.reaped[RV_LEASE_RDMA]), 1);
}

static void a_renewal_moves_the_deadline_a_timeout_past_its_arrival(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_lease *l = rdma(s);
	uint64_t id = s->rec.id;

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		later(RV_MS(350));
		assert_non_null(rv_slot_find(&f.store, id));
		rv_lease_renew(l, fake_now_ns);
	}
	later(LEASE_NS - RV_MS(1));
	assert_non_null(rv_slot_find(&f.store, id));
	later(RV_MS(1));
	assert_null(rv_slot_find(&f.store, id));
}

static void a_renewal_that_arrived_long_ago_never_shortens(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_lease *l = rdma(s);
	uint64_t id = s->rec.id;

	(void)state;
	later(RV_MS(300));
	rv_lease_renew(l, fake_now_ns);
	rv_lease_renew(l, fake_now_ns - RV_MS(200));
	later(LEASE_NS - RV_MS(1));
	assert_non_null(rv_slot_find(&f.store, id));
}

/* The clock went on while something held the pass up. */
static void a_lease_granted_late_in_a_pass_still_lasts_its_whole_timeout(void **state)
{
	struct rv_slot *s = stage(2, RV_NEVER);
	struct rv_lease *l;

	(void)state;
	fake_now_ns += RV_MS(400);
	l = rdma(s);
	assert_int_equal(l->granted_ns, fake_now_ns);
	later(LEASE_NS - RV_MS(1));
	assert_int_equal(s->locks, 1);
	later(RV_MS(2));
	assert_int_equal(s->locks, 0);
}

static void a_lease_without_deadline_is_not_given_one_by_a_renewal(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_lease *l = chunked(s);

	(void)state;
	rv_lease_renew(l, fake_now_ns);
	later(RV_SEC(3600));
	assert_int_equal(s->locks, 1);
}

/* A renewal that came in time, in a cell that is served in the pass after the deadline. */
static void run_renew(struct rv_port *p, struct rv_cell *c)
{
	rv_lease_renew(c->ctx, fake_now_ns - RV_MS(2)); /* it had arrived before the deadline */
	rv_cell_reply(p, c);
}

static void free_cell(struct rv_port *p, struct rv_cell *c)
{
	rv_cell_free(p, c);
}

static void a_renewal_arriving_in_the_pass_of_the_deadline_saves_the_lease(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_lease *l = rdma(s);
	struct rv_port *port = f.reactor.port;
	struct rv_cell *c = rv_cell_alloc(port);

	(void)state;
	c->run = run_renew;
	c->done = free_cell;
	c->ctx = l;
	rv_cell_send(port, 0, c);
	later(LEASE_NS + RV_MS(1));
	assert_int_equal(s->locks, 1);
	assert_int_equal(rv_counter_get(&f.store.reaped[RV_LEASE_RDMA]), 0);
	later(LEASE_NS);
	assert_int_equal(rv_counter_get(&f.store.reaped[RV_LEASE_RDMA]), 1);
}

/* Rest: how long a block must stay after its slot ended, counted from now. */

static uint64_t rest_after(void (*end)(struct rv_slot *s))
{
	struct rv_slot *s = stage(1, RV_NEVER);
	uint64_t waited = 0;

	end(s);
	transfers_gone();
	assert_int_equal(rv_counter_get(&f.store.slot_nr), 0);
	for (; rv_counter_get(&f.pool.resting_blocks); waited++)
		later(RV_MS(1));
	assert_int_equal(rv_counter_get(&f.pool.blocks), 0);
	return RV_MS(waited);
}

static void drop_unread(struct rv_slot *s)
{
	rv_slot_end(s, RV_END_DROPPED);
}

static void drop_under_a_chunked_lease(struct rv_slot *s)
{
	chunked(s);
	rv_slot_end(s, RV_END_DROPPED);
}

static void drop_under_an_rdma_lease(struct rv_slot *s)
{
	rdma(s);
	later(RV_MS(100));
	rv_slot_end(s, RV_END_DROPPED);
}

static void drop_under_a_renewed_lease(struct rv_slot *s)
{
	struct rv_lease *l = rdma(s);

	rdma(s);
	later(RV_MS(100));
	rv_lease_renew(l, fake_now_ns);
	rv_slot_end(s, RV_END_DROPPED);
}

static void drop_under_a_lease_without_deadline(struct rv_slot *s)
{
	rv_lease_mint(s, CONSUMER, RV_LEASE_RDMA, RV_NEVER);
	rv_slot_end(s, RV_END_DROPPED);
}

static void release_by_its_consumer(struct rv_slot *s)
{
	rv_lease_end(rdma(s), true);
}

static void one_detached_and_one_dropped(struct rv_slot *s)
{
	rv_lease_end(rdma(s), false);
	rv_slot_end(s, RV_END_DROPPED);
}

static void reaped(struct rv_slot *s)
{
	(void)rdma(s);
	later(LEASE_NS);
}

static void reaped_early_and_released_late(struct rv_slot *s)
{
	struct rv_lease *l = chunked(s);

	rdma(s);
	later(LEASE_NS); /* reaped: a stray read may go on until the quarantine is over */
	later(RV_MS(30));
	rv_lease_end(l, true);
}

static const struct {
	void (*end)(struct rv_slot *s);
	unsigned rest_ms;
} rests[] = {
	{drop_unread, 0},
	{drop_under_a_chunked_lease, 0},
	{release_by_its_consumer, 0},
	{one_detached_and_one_dropped, 0},
	{drop_under_an_rdma_lease, 300 + 100},
	{drop_under_a_renewed_lease, 400 + 100},
	{drop_under_a_lease_without_deadline, 100},
	{reaped, 100},
	{reaped_early_and_released_late, 70},
};

static void a_block_rests_until_the_last_lease_nobody_ended_and_the_quarantine(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rests); i++) {
		uint64_t rest = rest_after(rests[i].end);

		if (rest != RV_MS(rests[i].rest_ms))
			fail_msg("row %zu rested %u ms", i, (unsigned)(rest / RV_MS(1)));
	}
}

static void where_keys_are_revoked_nothing_rests(void **state)
{
	(void)state;
	finish(NULL);
	start(true);
	for (size_t i = 0; i < RV_ARRAY_NR(rests); i++) {
		if (rests[i].end == drop_under_a_lease_without_deadline)
			continue; /* those have no key of their own here */
		assert_int_equal(rest_after(rests[i].end), 0);
		assert_int_equal(f.store.exported_nr, 0);
		assert_int_equal(rv_store_rdma_leases(&f.store), 0);
	}
	assert_int_equal(f.exports_ended, 7);
}

/* Transfers. */

static void a_transfer_holds_the_bytes_after_the_slot_is_gone(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_block *b = s->block;

	(void)state;
	chunked(s);
	rv_slot_end(s, RV_END_DROPPED);
	assert_int_equal(f.transfers_ended, 1);
	assert_int_equal(b->holds, 1);
	assert_int_equal(rv_counter_get(&f.pool.blocks), 1);
	transfers_gone();
	assert_int_equal(rv_counter_get(&f.pool.blocks), 0);
	assert_int_equal(f.store.leases.live_nr, 0);
}

static void a_detach_ends_the_transfer_but_not_the_slot(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);

	(void)state;
	rv_lease_end(chunked(s), false);
	assert_int_equal(f.transfers_ended, 1);
	transfers_gone();
	assert_int_equal(s->locks, 0);
	assert_int_equal(s->block->holds, 1);
}

static void the_table_is_full_until_the_net_core_has_let_go(void **state)
{
	struct rv_slot *s = stage(1, RV_NEVER);
	struct rv_lease *l[8];

	(void)state;
	for (size_t i = 0; i < 8; i++)
		l[i] = chunked(s);
	rv_lease_end(l[0], false);
	assert_null(rv_lease_mint(s, CONSUMER, RV_LEASE_CHUNKED, RV_NEVER));
	transfers_gone();
	assert_non_null(chunked(s));
}

/* Sessions, and what a drain asks. */

static void a_session_takes_only_its_own_slots_along(void **state)
{
	struct rv_stage_opts o = {.refs = 1, .ttl_ns = RV_NEVER, .session = 5};
	struct rv_slot *mine = rv_slot_stage(&f.store, block_of(100, RV_ARENA_STAGING), 100, &o),
		       *theirs, *nobodys;
	uint64_t id = mine->rec.id;

	(void)state;
	o.session = 6;
	theirs = rv_slot_stage(&f.store, NULL, 0, &o);
	nobodys = stage(1, RV_NEVER);
	rdma(mine);
	rv_store_end_session(&f.store, 5);
	assert_null(rv_slot_find(&f.store, id));
	assert_int_equal(rv_idtab_cause(&f.store.slots, id), RV_END_DROPPED);
	assert_ptr_equal(rv_slot_find(&f.store, theirs->rec.id), theirs);
	assert_ptr_equal(rv_slot_find(&f.store, nobodys->rec.id), nobodys);
	assert_int_equal(rv_counter_get(&f.pool.resting_blocks), 1);
}

static void rdma_leases_are_counted_for_the_drain(void **state)
{
	struct rv_slot *s = stage(2, RV_NEVER);
	struct rv_lease *l = rdma(s);

	(void)state;
	chunked(s);
	rdma(s);
	assert_int_equal(rv_store_rdma_leases(&f.store), 2);
	rv_lease_end(l, false);
	assert_int_equal(rv_store_rdma_leases(&f.store), 1);
	later(LEASE_NS);
	assert_int_equal(rv_store_rdma_leases(&f.store), 0);
}

#define STORE(t) cmocka_unit_test_setup_teardown(t, setup, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(every_life_ends_as_the_protocol_says, finish),
		STORE(ids_carry_the_shard_and_slots_start_above_zero),
		STORE(a_lease_is_found_only_by_its_slot_its_id_and_its_consumer),
		STORE(a_lease_ends_once),
		STORE(full_tables_answer_null),
		STORE(nothing_is_staged_too),
		STORE(pinned_says_whether_the_memory_is_registered),
		STORE(a_slot_goes_at_its_ttl_with_every_lease_on_it),
		STORE(a_released_slots_ttl_never_fires),
		STORE(a_silent_lease_is_reaped_at_its_deadline_and_not_before),
		STORE(a_renewal_moves_the_deadline_a_timeout_past_its_arrival),
		STORE(a_renewal_that_arrived_long_ago_never_shortens),
		STORE(a_lease_granted_late_in_a_pass_still_lasts_its_whole_timeout),
		STORE(a_lease_without_deadline_is_not_given_one_by_a_renewal),
		STORE(a_renewal_arriving_in_the_pass_of_the_deadline_saves_the_lease),
		STORE(a_block_rests_until_the_last_lease_nobody_ended_and_the_quarantine),
		STORE(where_keys_are_revoked_nothing_rests),
		STORE(a_transfer_holds_the_bytes_after_the_slot_is_gone),
		STORE(a_detach_ends_the_transfer_but_not_the_slot),
		STORE(the_table_is_full_until_the_net_core_has_let_go),
		STORE(a_session_takes_only_its_own_slots_along),
		STORE(rdma_leases_are_counted_for_the_drain),
	};

	return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
