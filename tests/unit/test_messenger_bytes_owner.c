/* `_rvd_get`: payloads that go with the answer to an acquire, the owner, and what becomes of their leases. */
#include "tests/unit/messenger_fixture.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dataplane/mem/region.h"

#define CONSUMER  4242u
#define BYTES_MAX 65536u

static uint8_t source[BYTES_MAX + 1];
static struct fake_link *in;

static int setup_in(void **state)
{
	setup(state);
	w.engine.conf.bytes_max = BYTES_MAX;
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)(i * 31 + i / 256 + 1);
	in = fake_link_accept(&carrier);
	return 0;
}

/* @param map  the headers; NULL: none. @return the request's number */
static uint16_t request_with(const char *name, uint64_t slot, const struct rv_header_pair *pairs,
			     size_t nr)
{
	static uint16_t next;
	uint8_t map[256], head[400];
	char body[100];
	struct rv_writer mw = rv_writer(map, sizeof(map)), wr = rv_writer(head, sizeof(head));
	struct rv_request_header h = {
		.kind = RV_CALL_UNARY,
		.id = rv_msg_id_make(CONSUMER, ++next, 1),
		.name = name,
		.name_len = (uint16_t)strlen(name),
		.headers = map,
	};

	if (nr)
		assert_int_equal(rv_headers_encode(&mw, pairs, nr), 0);
	h.headers_len = (uint16_t)mw.len;
	assert_int_equal(rv_request_header_encode(&wr, &h), 0);
	snprintf(body, sizeof(body), "{\"handle\":{\"hi\":%u,\"lo\":%" PRIu64 "},\"rdma\":null}",
		 FAKE_WORKER, slot);
	fake_link_frame(in, RV_FRAME_MESSAGE, head, wr.len, body, strlen(body));
	return next;
}

static void request_bytes(uint64_t slot, const char *bytes, const char *ends)
{
	struct rv_header_pair pairs[2];
	size_t nr = 0;

	if (bytes)
		pairs[nr++] = (struct rv_header_pair){RV_HEADER_BYTES, bytes, strlen(bytes)};
	if (ends)
		pairs[nr++] = (struct rv_header_pair){RV_HEADER_ENDS, ends, strlen(ends)};
	request_with("_rvd_get", slot, pairs, nr);
	fake_engine_run(&w);
}

/* A response of ours; it counts as sent once it was put back with fake_sent_free(). */
struct said {
	struct fake_sent *sent;
	bool error, bytes;
	uint64_t lease;
	bool has_xxh3;
	uint64_t xxh3;
};

static struct said take_said(void)
{
	struct said r = {.sent = fake_link_take(in)};
	struct rv_response_header h;

	assert_int_equal(r.sent->type, RV_FRAME_RESPONSE);
	assert_int_equal(rv_response_header_decode(r.sent->header, r.sent->header_len, &h), 0);
	r.error = h.outcome != 0;
	r.bytes = rv_headers_find_u64(h.headers, h.headers_len, "_rvd_lease", &r.lease);
	r.has_xxh3 = rv_headers_find_u64(h.headers, h.headers_len, "_rvd_xxh3", &r.xxh3);
	assert_int_equal(h.headers_len != 0, r.bytes); /* a plain answer has none */
	return r;
}

/* A plain grant of chunks, and its lease. */
static uint64_t take_grant(void)
{
	struct said r = take_said();
	struct rv_body_grant g;
	const char *why;

	assert_false(r.error);
	assert_false(r.bytes);
	assert_int_equal(
		rv_body_grant_decode(r.sent->payload, r.sent->payload_len, NULL, 0, &g, &why), 0);
	assert_false(g.is_rdma);
	fake_sent_free(r.sent);
	return g.ready.lease_id;
}

static uint64_t stage(uint64_t len)
{
	uint64_t slot = fake_stage(&w, len, 0, true, 1000);

	if (len)
		memcpy(rv_block_ptr(fake_slot(&w, slot)->block), source, len);
	return slot;
}

static uint64_t bytes_out(void)
{
	return rv_messenger_bytes_out(mess);
}

static const struct {
	uint64_t len;
	const char *bytes, *ends;
	bool come, leased;
} served[] = {
	{0, "1", NULL, true, true},
	{0, "1", "1", true, false},
	{1, "1", NULL, true, true},
	{1000, "1000", "1", true, false},
	{1001, "1000", "1", false, true},
	{BYTES_MAX, "65536", NULL, true, true},
	{BYTES_MAX, "18446744073709551615", "1", true, false},
	{BYTES_MAX + 1, "18446744073709551615", "1", false, true},
	/* No number of bytes: none come. */
	{1, NULL, NULL, false, true},
	{1, NULL, "1", false, true},
	{0, "0", "1", false, true},
	{1, "0", NULL, false, true},
	{1, "", NULL, false, true},
	{1, "-1", NULL, false, true},
	{1, "1x", NULL, false, true},
	{1, " 1", NULL, false, true},
	{1, "0x1", NULL, false, true},
	{1, "18446744073709551616", NULL, false, true},
	/* No number that ends it: it does not. */
	{1, "1", "0", true, true},
	{1, "1", "", true, true},
	{1, "1", "yes", true, true},
	{1, "1", "-1", true, true},
	{1, "1", "2", true, false},
};

static void a_request_for_bytes_is_answered_as_its_headers_say(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(served); i++) {
		uint64_t slot = stage(served[i].len), before = bytes_out(), lease;

		request_bytes(slot, served[i].bytes, served[i].ends);
		assert_int_equal(fake_slot(&w, slot)->locks, served[i].leased);
		if (served[i].come) {
			struct said r = take_said();

			if (r.error || !r.bytes || (r.lease != 0) != served[i].leased)
				fail_msg("row %zu", i);
			assert_false(r.has_xxh3);
			assert_int_equal(r.sent->payload_len, served[i].len);
			assert_memory_equal(r.sent->payload, source, served[i].len);
			assert_int_equal(rv_messenger_pending(mess), 1);
			assert_int_equal(bytes_out(), before);
			fake_sent_free(r.sent);
			fake_engine_run(&w);
			assert_int_equal(bytes_out(), before + served[i].len);
			assert_int_equal(mess->transfers.live_nr, 0);
			lease = r.lease;
		} else {
			lease = take_grant();
		}
		assert_int_equal(rv_messenger_pending(mess), 0);
		assert_int_equal(fake_slot(&w, slot)->locks, served[i].leased);
		if (served[i].leased)
			assert_int_equal(fake_lease_op(&w, RV_LEASE_DETACH, slot, lease, CONSUMER),
					 0);
		assert_true(!served[i].len || fake_slot(&w, slot)->block->holds == 1);
		fake_drop_slot(&w, slot);
		assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	}
}

static void of_two_wishes_the_last_counts(void **state)
{
	static const struct rv_header_pair pairs[] = {
		{RV_HEADER_BYTES, "0", 1},
		{RV_HEADER_ENDS, "0", 1},
		{RV_HEADER_BYTES, "1000", 4},
		{RV_HEADER_ENDS, "1", 1},
	};
	uint64_t slot = stage(1000);
	struct said r;

	(void)state;
	request_with("_rvd_get", slot, pairs, 4);
	fake_engine_run(&w);
	r = take_said();
	assert_true(r.bytes && r.lease == 0);
	fake_sent_free(r.sent);
	request_with("_rvd_get", slot, pairs, 3); /* an end that is taken back */
	fake_engine_run(&w);
	r = take_said();
	assert_true(r.bytes && r.lease != 0);
	fake_sent_free(r.sent);
}

/* The stock name has no such headers. */
static void an_acquire_by_its_stock_name_is_answered_as_ever(void **state)
{
	static const struct rv_header_pair pairs[] = {{RV_HEADER_BYTES, "1000", 4},
						      {RV_HEADER_ENDS, "1", 1}};
	uint64_t slot = stage(1000);

	(void)state;
	request_with("_rv_acquire", slot, pairs, 2);
	fake_engine_run(&w);
	take_grant();
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
}

static void the_hash_of_what_was_staged_goes_along(void **state)
{
	static const uint64_t hashes[] = {0, 1, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(hashes); i++) {
		uint64_t slot = stage(1000);
		struct said r;

		fake_slot(&w, slot)->has_xxh3 = true;
		fake_slot(&w, slot)->xxh3 = hashes[i];
		request_bytes(slot, "1000", "1");
		r = take_said();
		assert_true(r.bytes && r.has_xxh3 && r.xxh3 == hashes[i]);
		fake_sent_free(r.sent);
	}
}

static void a_lease_that_came_with_bytes_has_the_deadline_that_was_asked_for(void **state)
{
	static const struct rv_header_pair pairs[] = {{RV_HEADER_BYTES, "1000", 4},
						      {RV_HEADER_LEASE_MS, "300", 3}};
	uint64_t slot = stage(1000);

	(void)state;
	request_with("_rvd_get", slot, pairs, 2);
	fake_engine_run(&w);
	fake_sent_free(take_said().sent);
	fake_slot(&w, slot)->refcount = 2;
	fake_engine_advance(&w, RV_MS(299));
	assert_int_equal(fake_slot(&w, slot)->locks, 1);
	fake_engine_advance(&w, RV_MS(1));
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
}

static void bytes_on_their_way_out_are_held_though_all_is_over(void **state)
{
	uint64_t slot = stage(1000);
	struct said r;

	(void)state;
	request_bytes(slot, "1000", "1");
	r = take_said();
	fake_drop_slot(&w, slot);
	fake_engine_advance(&w, RV_SEC(3600));
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 1);
	assert_int_equal(rv_messenger_pending(mess), 1); /* a shutdown waits for it */
	fake_sent_free(r.sent);
	fake_engine_run(&w);
	assert_int_equal(rv_counter_get(&w.engine.pool.blocks), 0);
	assert_int_equal(rv_messenger_pending(mess), 0);
}

/* Nobody has learned of its lease. */
static void assert_nothing_left(uint64_t slot)
{
	fake_engine_run(&w);
	assert_int_equal(fake_slot(&w, slot)->locks, 0);
	assert_int_equal(fake_slot(&w, slot)->refcount, 1);
	assert_true(!fake_slot(&w, slot)->len || fake_slot(&w, slot)->block->holds == 1);
	assert_int_equal(w.engine.store.leases.live_nr, 0);
	assert_int_equal(rv_messenger_pending(mess), 0);
	assert_int_equal(bytes_out(), 0);
}

static void bytes_that_cannot_be_sent_leave_no_lease(void **state)
{
	static const uint64_t lens[] = {0, 1000};

	(void)state;
	for (size_t i = 0; i < 2 * RV_ARRAY_NR(lens); i++) {
		uint64_t slot = stage(lens[i / 2]);
		const char *ends = i % 2 ? "1" : NULL;

		in->send_rc = -ENOMEM; /* at once */
		request_bytes(slot, "1000", ends);
		assert_nothing_left(slot);
		in->send_rc = 0;

		request_bytes(slot, "1000", ends); /* while they are going out */
		assert_int_equal(fake_slot(&w, slot)->locks, !ends);
		fake_link_closed(in, -ECONNRESET);
		assert_nothing_left(slot);
		in = fake_link_accept(&carrier);

		request_with("_rvd_get", slot,
			     (struct rv_header_pair[]){{RV_HEADER_BYTES, "1000", 4},
						       {RV_HEADER_ENDS, "1", 1}},
			     ends ? 2 : 1);
		fake_link_closed(in, -ECONNRESET); /* while the engine is asked */
		assert_nothing_left(slot);
		in = fake_link_accept(&carrier);
		fake_drop_slot(&w, slot);
	}
}

/* A region's bytes are copied out before they are sent, unless it has been let go. */
static void bytes_of_a_region_are_copied_and_those_of_one_that_is_gone_are_not_there(void **state)
{
	static struct rv_region region;
	uint64_t slot = stage(1000);
	struct rv_arena *arena = fake_slot(&w, slot)->block->arena;
	struct said r;

	(void)state;
	region = (struct rv_region){.fd = memfd_create("client", MFD_CLOEXEC)};
	assert_true(region.fd >= 0);
	assert_int_equal(
		pwrite(region.fd, source + 1, 1000, (off_t)fake_slot(&w, slot)->block->off), 1000);
	arena->region = &region;
	request_bytes(slot, "1000", "1");
	r = take_said();
	assert_true(r.bytes);
	assert_int_equal(r.sent->payload_len, 1000);
	assert_memory_equal(r.sent->payload, source + 1, 1000);
	fake_sent_free(r.sent);
	fake_engine_run(&w);
	for (unsigned ends = 0; ends < 2; ends++) {
		rv_copy_latch(&region.gate);
		request_bytes(slot, "1000", ends ? "1" : NULL);
		r = take_said();
		assert_true(r.error);
		assert_memory_equal(r.sent->payload, "rendezvous handle not found: ", 29);
		assert_non_null(memmem(r.sent->payload, r.sent->payload_len, "deregistered", 12));
		fake_sent_free(r.sent);
		fake_engine_run(&w);
		assert_int_equal(fake_slot(&w, slot)->locks, 0);
		assert_int_equal(fake_slot(&w, slot)->block->holds, 1);
		rv_copy_unlatch(&region.gate);
	}
	assert_int_equal(bytes_out(), 1000);
	arena->region = NULL;
	close(region.fd);
}

static void a_draining_node_still_serves_bytes(void **state)
{
	uint64_t slot = stage(1000);
	struct said r;

	(void)state;
	rv_messenger_drain(mess);
	request_bytes(slot, "1000", "1");
	r = take_said();
	assert_true(r.bytes);
	assert_memory_equal(r.sent->payload, source, 1000);
	fake_sent_free(r.sent);
}

static void without_cells_or_leases_a_request_for_bytes_is_told_busy(void **state)
{
	uint64_t slot = stage(1000);
	struct rv_list taken, *it;
	struct rv_cell *c;
	struct said r;

	(void)state;
	rv_list_init(&taken);
	while ((c = rv_cell_alloc(w.port)))
		rv_list_push(&taken, &c->link);
	request_bytes(slot, "1000", "1");
	r = take_said();
	assert_true(r.error);
	assert_int_equal(r.sent->payload_len, strlen("rendezvous owner busy"));
	fake_sent_free(r.sent);
	while ((it = rv_list_pop(&taken)))
		rv_cell_free(w.port, RV_LIST_ENTRY(it, struct rv_cell, link));
	assert_nothing_left(slot);

	for (unsigned i = 0; i < 64; i++) { /* as many as the engine has leases */
		request_bytes(slot, "1000", NULL);
		fake_sent_free(take_said().sent);
	}
	request_bytes(slot, "1000", NULL);
	r = take_said();
	assert_true(r.error);
	assert_memory_equal(r.sent->payload, "rendezvous owner busy", 21);
	fake_sent_free(r.sent);
	request_bytes(slot, "1000", "1"); /* and none is needed for this */
	r = take_said();
	assert_true(r.bytes && r.lease == 0);
	fake_sent_free(r.sent);
}

/* A request that is being answered counts as one of its connection's, until its answer is handed over. */
static void a_connection_is_not_paused_for_ever_by_requests_for_bytes(void **state)
{
	uint64_t slot = stage(1000);

	(void)state;
	for (unsigned i = 0; i < 2 * RV_LINK_REQUESTS; i++) {
		request_bytes(slot, "1000", "1");
		fake_sent_free(take_said().sent);
	}
	fake_engine_run(&w);
	assert_false(in->paused);
}

#define IN(t) cmocka_unit_test_setup_teardown(t, setup_in, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN(a_request_for_bytes_is_answered_as_its_headers_say),
		IN(of_two_wishes_the_last_counts),
		IN(an_acquire_by_its_stock_name_is_answered_as_ever),
		IN(the_hash_of_what_was_staged_goes_along),
		IN(a_lease_that_came_with_bytes_has_the_deadline_that_was_asked_for),
		IN(bytes_on_their_way_out_are_held_though_all_is_over),
		IN(bytes_that_cannot_be_sent_leave_no_lease),
		IN(bytes_of_a_region_are_copied_and_those_of_one_that_is_gone_are_not_there),
		IN(a_draining_node_still_serves_bytes),
		IN(without_cells_or_leases_a_request_for_bytes_is_told_busy),
		IN(a_connection_is_not_paused_for_ever_by_requests_for_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
