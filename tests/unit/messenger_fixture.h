/*
 * messenger_fixture.h - a real messenger and a real engine between a scripted carrier and a scripted clock;
 * the test is every peer.
 */
#ifndef RV_TESTS_UNIT_MESSENGER_FIXTURE_H
#define RV_TESTS_UNIT_MESSENGER_FIXTURE_H

#include <errno.h>

#include "control/frame/frame.h"
#include "control/json/rv_codec.h"
#include "control/messenger/headers.h"
#include "control/messenger/address.h"
#include "control/messenger/messenger_impl.h"
#include "dataplane/base/units.h"
#include "tests/fake/fake_carrier.h"
#include "tests/fake/fake_engine.h"
#include "tests/unit/exact.h"

#define FORMER_WORKER 70u
#define CALL_NS       RV_SEC(5)
#define WINDOW_BYTES  (4u * 1000u)

static struct fake_engine w;
static struct fake_carrier carrier;
static struct rv_messenger *mess;

/* Peers: the instance is the number, 16 times. */
static inline uint64_t peer_worker(uint8_t number)
{
	uint8_t instance[16];

	memset(instance, number, sizeof(instance));
	return rv_worker_id(instance);
}

static inline struct rv_peer_info peer_info(uint8_t number, bool is_rvd, const char *ip,
					    uint8_t *buf, size_t cap)
{
	static struct rv_address a; /* large */
	struct rv_writer wr = rv_writer(buf, cap);
	struct rv_peer_info pi;

	memset(&a, 0, sizeof(a));
	a.tcp_nr = 1;
	a.tcp[0] = (struct rv_tcp_endpoint){.port = 7471, .prefix_len = 24, .numa = -1};
	snprintf(a.tcp[0].ip, sizeof(a.tcp[0].ip), "%s", ip);
	a.has_rvd = is_rvd;
	a.rvd_version = 1;
	assert_int_equal(rv_address_encode(&wr, &a), 0);
	pi = (struct rv_peer_info){.address = buf, .address_len = wr.len};
	memset(pi.instance, number, sizeof(pi.instance));
	return pi;
}

static inline uint64_t add_peer(uint8_t number, bool is_rvd)
{
	uint8_t buf[512];
	struct rv_peer_info pi = peer_info(number, is_rvd, "192.0.2.7", buf, sizeof(buf));
	const char *why;
	uint64_t worker;

	assert_int_equal(rv_messenger_add_peer(mess, &pi, NULL, &worker, &why), 0);
	assert_int_equal(worker, peer_worker(number));
	return worker;
}

static inline void start_messenger(unsigned cells)
{
	static const uint64_t former[] = {69, FORMER_WORKER};
	uint8_t buf[512];
	struct rv_peer_info own = peer_info(0xee, true, "192.0.2.1", buf, sizeof(buf));
	struct rv_messenger_conf mc = {
		.carrier = &carrier.carrier,
		.engines = &w.set,
		.worker = FAKE_WORKER,
		.blob_version = 2,
		.pull_window_bytes = WINDOW_BYTES,
		.call_timeout_ns = CALL_NS,
		.former = former,
		.former_nr = RV_ARRAY_NR(former),
		.node_name = "test",
	};

	memset(&w, 0, sizeof(w));
	fake_engine_prepare(&w, cells);
	mc.reactor = &w.reactor;
	memset(mc.instance, 0xee, sizeof(mc.instance));
	mess = rv_messenger_create(&mc);
	assert_non_null(mess);
	assert_int_equal(rv_messenger_set_address(mess, own.address, own.address_len), 0);
	fake_carrier_init(&carrier, rv_messenger_events(), mess);
	rv_port_set_user(w.port, mess);
	fake_engine_init(&w, &(struct fake_engine_conf){
				     .calls = rv_messenger_calls(mess),
				     .run_transfer_end = rv_messenger_run_transfer_end,
			     });
}

static inline int setup(void **state)
{
	(void)state;
	start_messenger(0);
	return 0;
}

/* Every connection closes, every slot goes; then nothing may be left. */
static inline int finish(void **state)
{
	uint32_t pos = 0;
	struct rv_slot *s;

	(void)state;
	rv_messenger_stop(mess);
	fake_carrier_fini(&carrier);
	while ((s = rv_idtab_next(&w.engine.store.slots, &pos)))
		rv_slot_end(s, RV_END_DROPPED);
	fake_engine_advance(&w, RV_SEC(120)); /* late acquires are waited for that long */
	assert_int_equal(rv_messenger_pending(mess), 0);
	assert_int_equal(mess->calls.live, 0);
	assert_int_equal(mess->transfers.live_nr, 0);
	assert_true(rv_list_empty(&mess->links));
	assert_true(rv_list_empty(&mess->pulls));
	fake_engine_fini(&w);
	rv_messenger_destroy(mess);
	return 0;
}

/* What we sent. */

struct request {
	struct rv_msg_id id;
	enum rv_call_kind kind;
	char name[32], body[600];
	size_t body_len;
};

static inline struct request take_request(struct fake_link *l)
{
	struct fake_sent *s = fake_link_take(l);
	struct rv_request_header h;
	struct request r = {0};

	assert_int_equal(s->type, RV_FRAME_MESSAGE);
	assert_int_equal(rv_request_header_decode(s->header, s->header_len, &h), 0);
	assert_true(h.name_len < sizeof(r.name) && s->payload_len < sizeof(r.body));
	r.id = h.id;
	r.kind = h.kind;
	memcpy(r.name, h.name, h.name_len);
	memcpy(r.body, s->payload, s->payload_len);
	r.body_len = s->payload_len;
	assert_int_equal(rv_msg_id_worker(&r.id), FAKE_WORKER);
	fake_sent_free(s);
	return r;
}

static inline struct request need_request(struct fake_link *l, const char *name)
{
	struct request r;

	fake_engine_run(&w);
	r = take_request(l);
	assert_string_equal(r.name, name);
	return r;
}

/* What a peer sends. */

static inline void respond(struct fake_link *l, const struct rv_msg_id *id, unsigned outcome,
			   const void *body, size_t len)
{
	struct rv_response_header h = {.id = *id, .outcome = (uint8_t)outcome};
	uint8_t head[RV_RESPONSE_HEADER_MIN];
	struct rv_writer wr = rv_writer(head, sizeof(head));

	assert_int_equal(rv_response_header_encode(&wr, &h), 0);
	fake_link_frame(l, RV_FRAME_RESPONSE, head, wr.len, body, len);
	fake_engine_run(&w);
}

static inline void respond_text(struct fake_link *l, const struct rv_msg_id *id, unsigned outcome,
				const char *text)
{
	respond(l, id, outcome, text, strlen(text));
}

static inline void ack(struct fake_link *l, const struct rv_msg_id *id, bool error,
		       const char *text)
{
	struct rv_ack_header h = {.error = error, .id = *id};
	uint8_t head[RV_ACK_HEADER_LEN];
	struct rv_writer wr = rv_writer(head, sizeof(head));

	rv_ack_header_encode(&wr, &h);
	fake_link_frame(l, RV_FRAME_ACK, head, wr.len, text, strlen(text));
	fake_engine_run(&w);
}

/* A request header of peer @worker. @return its length */
static inline size_t request_header(uint8_t *buf, size_t cap, uint64_t worker, uint16_t slot,
				    enum rv_call_kind kind, const char *name)
{
	struct rv_request_header h = {
		.kind = kind,
		.id = rv_msg_id_make(worker, slot, 1),
		.name = name,
		.name_len = (uint16_t)strlen(name),
	};
	struct rv_writer wr = rv_writer(buf, cap);

	assert_int_equal(rv_request_header_encode(&wr, &h), 0);
	assert_false(wr.bad);
	return wr.len;
}

static inline void request(struct fake_link *l, uint64_t worker, uint16_t slot,
			   enum rv_call_kind kind, const char *name, const char *body)
{
	uint8_t head[256];
	size_t len = request_header(head, sizeof(head), worker, slot, kind, name);

	fake_link_frame(l, RV_FRAME_MESSAGE, head, len, body, strlen(body));
	fake_engine_run(&w);
}

/* Bringing a route up: who answers `_hello` there, and whether he says so. */

static inline void hello_answer(struct fake_link *l, const struct rv_msg_id *id, int number,
				bool is_rvd)
{
	char body[2048];
	uint8_t buf[512];
	struct rv_writer wr = rv_writer(body, sizeof(body));
	struct rv_peer_info pi;

	if (number >= 0)
		pi = peer_info((uint8_t)number, is_rvd, "192.0.2.7", buf, sizeof(buf));
	rv_body_handlers_encode(&wr, NULL, 0, number >= 0 ? &pi : NULL);
	assert_false(wr.bad);
	respond(l, id, 0, body, wr.len);
}

/* The newest link is dialed, greeted and stays silent about who it is. */
static inline struct fake_link *greet(void)
{
	struct fake_link *l;
	struct request r;

	fake_engine_run(&w);
	l = fake_carrier_link(&carrier, carrier.link_nr - 1);
	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	hello_answer(l, &r.id, -1, false);
	return l;
}

/* Calls of our engines. */

static inline struct fake_ask *call_peer(enum rv_peer_op op, uint64_t worker)
{
	struct rv_peer_call pc = {
		.op = op,
		.handle = {worker, 64},
		.deadline_ns = fake_now_ns + CALL_NS,
		.lease_id = 55,
		.rc = 1,
	};
	struct fake_ask *a = fake_call_start(&w, rv_messenger_calls(mess), &pc);

	fake_engine_run(&w);
	return a;
}

static inline struct rv_peer_call call_outcome(struct fake_ask *a)
{
	struct rv_peer_call pc;

	fake_engine_run(&w);
	assert_true(a->back);
	pc = *(struct rv_peer_call *)fake_ask_body(a);
	fake_ask_end(&w, a);
	return pc;
}

/* The connection on which a call was answered. */
static inline struct fake_link *up(uint64_t owner)
{
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct fake_link *l = greet();
	struct request r = need_request(l, "_rv_metadata");

	respond_text(l, &r.id, 0, "{\"total_len\":5,\"refcount\":1,\"pinned\":true}");
	assert_int_equal(call_outcome(a).rc, 0);
	return l;
}

/* Bring the route to an owner up, who lists these. */
static inline struct fake_link *route_up(uint64_t owner, const char *const *names, size_t nr)
{
	struct fake_ask *a = call_peer(RV_PEER_METADATA, owner);
	struct fake_link *l = fake_carrier_link(&carrier, carrier.link_nr - 1);
	char body[1024];
	struct rv_writer wr = rv_writer(body, sizeof(body));
	struct request r;

	fake_link_connected(l, 0);
	r = need_request(l, "_hello");
	rv_body_handlers_encode(&wr, names, nr, NULL);
	respond(l, &r.id, 0, body, wr.len);
	r = need_request(l, "_rv_metadata");
	respond_text(l, &r.id, 0, "{\"total_len\":5,\"refcount\":1,\"pinned\":true}");
	assert_int_equal(call_outcome(a).rc, 0);
	return l;
}

#define MESSENGER(t) cmocka_unit_test_setup_teardown(t, setup, finish)

/* A number among the headers; @none if there is none. */
static inline uint64_t number(const uint8_t *map, size_t len, const char *key, uint64_t none)
{
	uint64_t n = none;

	rv_headers_find_u64(map, len, key, &n);
	return n;
}

#define NONE 999999u

#endif
