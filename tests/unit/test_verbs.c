/* What of the verbs backend needs no device: the choice of a GID, its bytes on the wire, lengths, statuses. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include "dataplane/base/units.h"
#include "tests/unit/exact.h"
#include "verbs/cq.h"
#include "verbs/device.h"
#include "verbs/events.h"
#include "verbs/read.h"
#include "verbs/selftest.h"
#include "verbs/wire.h"

/* GIDs. */

static struct rv_verbs_gid gid(uint32_t index, const char *text, enum ibv_gid_type type)
{
	struct rv_verbs_gid g = {.index = index, .type = type};

	assert_int_equal(inet_pton(AF_INET6, text, g.gid.raw), 1);
	return g;
}

static void a_routable_gid_goes_before_a_link_local_one(void **state)
{
	const struct rv_verbs_gid g[] = {
		gid(0, "fe80::aff:fe09:1", IBV_GID_TYPE_ROCE_V2),
		gid(1, "::ffff:169.254.1.2", IBV_GID_TYPE_ROCE_V2),
		gid(2, "::ffff:10.9.0.1", IBV_GID_TYPE_ROCE_V1),
		gid(3, "::ffff:10.9.0.1", IBV_GID_TYPE_ROCE_V2),
		gid(4, "2001:db8::1", IBV_GID_TYPE_ROCE_V2),
	};

	(void)state;
	assert_int_equal(rv_verbs_gid_choose(g, 5, RV_VERBS_AUTO), 3);
	assert_int_equal(rv_verbs_gid_choose(g, 3, RV_VERBS_AUTO), 0); /* v2 before routable v1 */
	assert_int_equal(rv_verbs_gid_choose(g + 2, 1, RV_VERBS_AUTO), 0);
	assert_int_equal(rv_verbs_gid_choose(g + 4, 1, RV_VERBS_AUTO), 0);
	assert_int_equal(rv_verbs_gid_choose(g, 0, RV_VERBS_AUTO), -1);
}

static void the_gid_that_was_asked_for_is_used_or_none(void **state)
{
	const struct rv_verbs_gid g[] = {
		gid(3, "fe80::1", IBV_GID_TYPE_ROCE_V1),
		gid(5, "::ffff:10.9.0.1", IBV_GID_TYPE_ROCE_V2),
		gid(7, "::", IBV_GID_TYPE_ROCE_V2),
	};

	(void)state;
	assert_int_equal(rv_verbs_gid_choose(g, 3, 3), 0);
	assert_int_equal(rv_verbs_gid_choose(g, 3, 5), 1);
	assert_int_equal(rv_verbs_gid_choose(g, 3, 7), -1); /* an empty entry */
	assert_int_equal(rv_verbs_gid_choose(g, 3, 1), -1);
}

static void a_gid_is_an_address(void **state)
{
	const struct rv_verbs_gid v4 = gid(0, "::ffff:10.9.0.1", IBV_GID_TYPE_ROCE_V2);
	const struct rv_verbs_gid v6 = gid(0, "2001:db8::1", IBV_GID_TYPE_ROCE_V2);
	struct sockaddr_storage sa;

	(void)state;
	rv_verbs_gid_ip(&v4.gid, &sa);
	assert_int_equal(sa.ss_family, AF_INET);
	assert_int_equal(((struct sockaddr_in *)&sa)->sin_addr.s_addr, htonl(0x0a090001));
	rv_verbs_gid_ip(&v6.gid, &sa);
	assert_int_equal(sa.ss_family, AF_INET6);
	assert_memory_equal(&((struct sockaddr_in6 *)&sa)->sin6_addr, v6.gid.raw, 16);
}

/* Bytes. */

static bool takes_hello(const uint8_t *buf, size_t len)
{
	struct rv_verbs_hello h;

	return rv_verbs_hello_decode(buf, len, &h);
}

static void a_hello_names_both_workers(void **state)
{
	const struct rv_verbs_hello in = {.from = 0x1122334455667788, .to = 77, .reactor = 258};
	uint8_t bytes[56] = {0}, want[RV_VERBS_HELLO];
	struct rv_verbs_hello out;

	(void)state;
	rv_verbs_hello_encode(bytes, &in);
	assert_int_equal(from_hex("72766456 01 00 0201 8877665544332211 4d00000000000000", want,
				  sizeof(want)),
			 RV_VERBS_HELLO);
	assert_memory_equal(bytes, want, RV_VERBS_HELLO);
	assert_true(
		rv_verbs_hello_decode(bytes, sizeof(bytes), &out)); /* padded, as rdma_cm does */
	assert_true(out.from == in.from && out.to == in.to && out.reactor == in.reactor);
	exact_cut_everywhere(bytes, RV_VERBS_HELLO, takes_hello);
}

static void a_hello_that_is_not_ours_is_refused(void **state)
{
	static const size_t spoiled[] = {0, 3, 4, 5, RV_VERBS_HELLO, 55};
	uint8_t bytes[56] = {0};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(spoiled); i++) {
		rv_verbs_hello_encode(bytes, &(struct rv_verbs_hello){.from = 1, .to = 2});
		bytes[spoiled[i]] ^= 0x40;
		if (takes_hello(bytes, sizeof(bytes)))
			fail_msg("byte %zu may be anything", spoiled[i]);
		bytes[spoiled[i]] ^= 0x40;
	}
	rv_verbs_hello_encode(bytes, &(struct rv_verbs_hello){.from = 0, .to = 2});
	assert_false(takes_hello(bytes, sizeof(bytes)));
	rv_verbs_hello_encode(bytes, &(struct rv_verbs_hello){.from = 1, .to = 0});
	assert_false(takes_hello(bytes, sizeof(bytes)));
}

static bool takes_addr(const uint8_t *buf, size_t len)
{
	struct sockaddr_storage sa;

	return rv_verbs_addr_decode(buf, len, &sa);
}

static void an_address_survives_a_round_trip_and_no_cut(void **state)
{
	static const char *const good[] = {"01 04 301d 0a090001",
					   "01 06 301d 20010db8000000000000000000000001"};
	static const char *const bad[] = {
		"02 04 301d 0a090001",    /* another version */
		"01 05 301d 0a090001",    /* no family */
		"01 04 0000 0a090001",    /* port 0 */
		"01 04 301d 0a090001 00", /* a byte too many */
		"01 04 301d 20010db8000000000000000000000001",
	};
	uint8_t in[32], out[RV_VERBS_ADDR_MAX];
	struct sockaddr_storage sa;

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(good); i++) {
		size_t len = from_hex(good[i], in, sizeof(in));

		exact_cut_everywhere(in, len, takes_addr);
		assert_true(rv_verbs_addr_decode(in, len, &sa));
		assert_int_equal(rv_verbs_addr_encode(out, &sa), len);
		assert_memory_equal(in, out, len);
	}
	for (size_t i = 0; i < RV_ARRAY_NR(bad); i++) {
		size_t len = from_hex(bad[i], in, sizeof(in));

		if (exact_accepts(in, len, takes_addr))
			fail_msg("taken: %s", bad[i]);
	}
}

static bool takes_key(const uint8_t *buf, size_t len)
{
	uint32_t rkey;

	return rv_verbs_key_decode(buf, len, &rkey);
}

static void a_key_has_five_bytes_and_a_version(void **state)
{
	uint8_t key[RV_VERBS_KEY + 1] = {0};
	uint32_t rkey;

	(void)state;
	rv_verbs_key_encode(key, 0x01020304);
	assert_memory_equal(key, "\x01\x04\x03\x02\x01", RV_VERBS_KEY);
	assert_true(rv_verbs_key_decode(key, RV_VERBS_KEY, &rkey));
	assert_int_equal(rkey, 0x01020304);
	exact_cut_everywhere(key, RV_VERBS_KEY, takes_key);
	assert_false(exact_accepts(key, sizeof(key), takes_key));
	key[0] = 2;
	assert_false(exact_accepts(key, RV_VERBS_KEY, takes_key));
}

static void every_refusal_has_words(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 256; i++)
		assert_non_null(rv_verbs_refusal_name(i));
	assert_string_equal(rv_verbs_refusal_name(0), rv_verbs_refusal_name(255));
}

/* READs. */

static void reads_cover_a_get_once_and_none_is_too_long(void **state)
{
	static const struct {
		uint64_t len;
		uint32_t max;
		unsigned reads;
	} t[] = {
		{1, 4096, 1},       {4095, 4096, 1},           {4096, 4096, 1},
		{4097, 4096, 2},    {8192, 4096, 2},           {8193, 4096, 3},
		{1, UINT32_MAX, 1}, {1ull << 34, 1u << 31, 8}, {(1ull << 34) + 1, 1u << 31, 9},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		uint64_t at = 0;
		unsigned nr = 0;

		while (at < t[i].len) {
			uint32_t len = rv_verbs_read_len(t[i].len, at, t[i].max);

			assert_true(len > 0 && len <= t[i].max);
			at += len;
			nr++;
		}
		assert_true(at == t[i].len);
		assert_int_equal(nr, t[i].reads);
	}
}

static void each_status_means_one_thing(void **state)
{
	static const struct {
		enum ibv_wc_status status;
		int rc;
	} t[] = {
		{IBV_WC_SUCCESS, 0},
		{IBV_WC_REM_ACCESS_ERR, -EPROTO},
		{IBV_WC_REM_INV_REQ_ERR, -EPROTO},
		{IBV_WC_WR_FLUSH_ERR, -ECONNRESET},
		{IBV_WC_RETRY_EXC_ERR, -ECONNRESET},
		{IBV_WC_RNR_RETRY_EXC_ERR, -ECONNRESET},
		{IBV_WC_REM_OP_ERR, -ECONNRESET},
		{IBV_WC_LOC_PROT_ERR, -EIO},
		{IBV_WC_LOC_LEN_ERR, -EIO},
		{IBV_WC_GENERAL_ERR, -EIO},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++)
		assert_int_equal(rv_verbs_status_err(t[i].status), t[i].rc);
	for (int s = 1; s < 64; s++)
		assert_true(rv_verbs_status_err((enum ibv_wc_status)s) < 0);
}

/* Fences. */

static void windows_are_used_where_the_device_enforces_all_of_them(void **state)
{
	static const struct {
		enum rv_verbs_fence wanted;
		struct rv_verbs_windows seen;
		enum rv_verbs_fence got; /* AUTO: refused */
	} t[] = {
		{RV_VERBS_FENCE_AUTO,
		 {.read = true, .bounded = true, .revoked = true},
		 RV_VERBS_FENCE_WINDOW},
		{RV_VERBS_FENCE_AUTO, {.read = true, .revoked = true}, RV_VERBS_FENCE_REGION},
		{RV_VERBS_FENCE_AUTO, {.read = true, .bounded = true}, RV_VERBS_FENCE_REGION},
		{RV_VERBS_FENCE_AUTO, {.bounded = true, .revoked = true}, RV_VERBS_FENCE_REGION},
		{RV_VERBS_FENCE_AUTO, {0}, RV_VERBS_FENCE_REGION},
		{RV_VERBS_FENCE_WINDOW,
		 {.read = true, .bounded = true, .revoked = true},
		 RV_VERBS_FENCE_WINDOW},
		{RV_VERBS_FENCE_WINDOW, {.read = true, .revoked = true}, RV_VERBS_FENCE_WINDOW},
		{RV_VERBS_FENCE_WINDOW,
		 {.read = true, .bounded = true, .why = "x"},
		 RV_VERBS_FENCE_AUTO},
		{RV_VERBS_FENCE_WINDOW, {.why = "x"}, RV_VERBS_FENCE_AUTO},
		{RV_VERBS_FENCE_REGION, {0}, RV_VERBS_FENCE_REGION},
		{RV_VERBS_FENCE_NO, {0}, RV_VERBS_FENCE_NO},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(t); i++) {
		char why[RV_VERBS_WHY] = "";
		enum rv_verbs_fence got;
		bool ok = rv_verbs_fence_choose(t[i].wanted, &t[i].seen, &got, why, sizeof(why));

		assert_int_equal(ok, t[i].got != RV_VERBS_FENCE_AUTO);
		if (ok)
			assert_int_equal(got, t[i].got);
		else
			assert_string_equal(why, "verbs.fence = window: x");
	}
}

/* A device that is taken away. */

int __wrap_ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *ev);
void __wrap_ibv_ack_async_event(struct ibv_async_event *ev);

static enum ibv_event_type queued[80];
static unsigned queued_nr, acked;

int __wrap_ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *ev)
{
	(void)ctx;
	if (!queued_nr)
		return -1;
	*ev = (struct ibv_async_event){.event_type = queued[0]};
	memmove(queued, queued + 1, --queued_nr * sizeof(queued[0]));
	return 0;
}

void __wrap_ibv_ack_async_event(struct ibv_async_event *ev)
{
	(void)ev;
	acked++;
}

static void an_error_is_the_end_only_of_a_device_that_is_gone(void **state)
{
	struct rv_verbs *v = calloc(1, sizeof(*v));
	struct ibv_async_event ev;

	(void)state;
	assert_non_null(v);
	pthread_mutex_init(&v->events_lock, NULL);
	assert_true(rv_verbs_let_go(v, 0));
	assert_false(rv_verbs_let_go(v, EBUSY));
	assert_false(rv_verbs_let_go(v, EIO));
	queued[queued_nr++] = IBV_EVENT_PORT_ERR;
	assert_false(rv_verbs_let_go(v, EIO)); /* a port that is down is not gone */
	queued[queued_nr++] = IBV_EVENT_DEVICE_FATAL;
	assert_false(rv_verbs_let_go(v, EBUSY));
	assert_true(rv_verbs_let_go(v, EIO));
	assert_true(v->base.dead);
	assert_true(rv_verbs_let_go(v, EIO));
	assert_int_equal(acked, 2);
	/* Whoever looked first, the fabric's thread hears of both, in order. */
	assert_true(rv_verbs_event_next(v, &ev));
	assert_int_equal(ev.event_type, IBV_EVENT_PORT_ERR);
	assert_true(rv_verbs_event_next(v, &ev));
	assert_int_equal(ev.event_type, IBV_EVENT_DEVICE_FATAL);
	assert_false(rv_verbs_event_next(v, &ev));
	free(v);
}

static void a_flood_of_events_is_bounded_and_hides_no_end(void **state)
{
	struct rv_verbs *v = calloc(1, sizeof(*v));
	struct ibv_async_event ev;
	unsigned n = 0;

	(void)state;
	assert_non_null(v);
	pthread_mutex_init(&v->events_lock, NULL);
	acked = 0;
	for (unsigned i = 0; i < 79; i++)
		queued[queued_nr++] = IBV_EVENT_GID_CHANGE;
	queued[queued_nr++] = IBV_EVENT_DEVICE_FATAL;
	assert_true(rv_verbs_let_go(v, EIO));
	while (rv_verbs_event_next(v, &ev))
		n++;
	assert_int_equal(n, RV_ARRAY_NR(v->events));
	assert_int_equal(ev.event_type, IBV_EVENT_DEVICE_FATAL); /* it is never the one left out */
	assert_int_equal(acked, 80);
	free(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_routable_gid_goes_before_a_link_local_one),
		cmocka_unit_test(the_gid_that_was_asked_for_is_used_or_none),
		cmocka_unit_test(a_gid_is_an_address),
		cmocka_unit_test(a_hello_names_both_workers),
		cmocka_unit_test(a_hello_that_is_not_ours_is_refused),
		cmocka_unit_test(an_address_survives_a_round_trip_and_no_cut),
		cmocka_unit_test(a_key_has_five_bytes_and_a_version),
		cmocka_unit_test(every_refusal_has_words),
		cmocka_unit_test(reads_cover_a_get_once_and_none_is_too_long),
		cmocka_unit_test(each_status_means_one_thing),
		cmocka_unit_test(windows_are_used_where_the_device_enforces_all_of_them),
		cmocka_unit_test(an_error_is_the_end_only_of_a_device_that_is_gone),
		cmocka_unit_test(a_flood_of_events_is_bounded_and_hides_no_end),
	};

	return cmocka_run_group_tests_name("verbs", tests, NULL, NULL);
}
