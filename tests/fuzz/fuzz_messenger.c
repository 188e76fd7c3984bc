/*
 * A whole messenger and engine under a sequence of events: peers that connect, send any frame in any order, answer or do not
 * answer our own calls, and go; time that passes. Whatever comes, at the end nothing is left of it: no call, cell, slot,
 * lease, transfer or block.
 *
 * The input is a program: an operation a byte, its operands behind it. Handles, leases, transfers and message ids are
 * put in from what there is, so that a few bytes get far.
 */
#include "control/messenger/headers.h"
#include "dataplane/base/check.h"
#include "tests/fuzz/program.h"
#include "tests/unit/messenger_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OPS       400
#define ASKS      24
#define PEERS     3
#define PLACE     8192u
#define SLOTS_MAX 40

static struct fake_ask *asked[ASKS];
static uint8_t place[ASKS][PLACE];
static unsigned slots;

/* What is there already. */

static struct fake_link *a_link(struct program *p, bool connecting)
{
	unsigned first = byte(p);

	for (unsigned i = 0; i < carrier.link_nr; i++) {
		struct fake_link *l = carrier.link[(first + i) % carrier.link_nr];

		if (connecting ? l->connecting : l->open && !l->closing)
			return l;
	}
	return NULL;
}

/* What the messenger wants closed is closed a moment later. */
static void close_what_is_to_be_closed(void)
{
	for (unsigned i = 0; i < carrier.link_nr; i++) {
		struct fake_link *l = carrier.link[i];

		if (l->closing && (l->open || l->connecting) && !l->arriving)
			fake_link_closed(l, l->close_rc);
	}
}

/* Frames from a peer. */

static void raw_frame(struct program *p, struct fake_link *l)
{
	unsigned type = byte(p) % 8;
	size_t head_len, len;
	const uint8_t *head = bytes(p, byte(p), &head_len);
	const uint8_t *payload = bytes(p, byte(p) * 4u, &len);

	fake_link_frame(l, type, head, head_len, payload, len);
}

static const char *const names[] = {
	"_hello",     "_list_handlers", "_rv_metadata",    "_rv_acquire", "_rv_pull",     "_rv_ref",
	"_rv_detach", "_rv_release",    "_rv_lease_renew", "_rvd_get",    "_rvd_goodbye", "nobody",
};

static size_t body_of(struct program *p, unsigned what, char *out, size_t cap)
{
	struct rv_writer wr = rv_writer(out, cap);
	struct rv_handle h = {byte(p) & 1 ? FORMER_WORKER : FAKE_WORKER,
			      nth_id(&w.engine.store.slots, byte(p))};
	const uint8_t *raw;
	size_t len;

	switch (what % 6) {
	case 0:
		rv_body_handle_encode(&wr, h);
		break;
	case 1:
		rv_body_acquire_encode(&wr, &(struct rv_body_acquire){.handle = h,
								      .has_offer = byte(p) & 1,
								      .offer = byte(p) & 3u});
		break;
	case 2:
		rv_body_lease_encode(
			&wr, &(struct rv_body_lease){h, nth_id(&w.engine.store.leases, byte(p))});
		break;
	case 3:
		rv_body_pull_encode(&wr, &(struct rv_body_pull){nth_id(&mess->transfers, byte(p)),
								byte(p) & 3u});
		break;
	case 4: {
		uint8_t buf[512];
		struct rv_peer_info pi =
			peer_info(byte(p) % PEERS, byte(p) & 1, "192.0.2.7", buf, sizeof(buf));

		rv_body_hello_encode(&wr, &pi);
		break;
	}
	default:
		raw = bytes(p, byte(p), &len);
		rv_put_bytes(&wr, raw, len);
		break;
	}
	return wr.bad ? 0 : wr.len;
}

static void request_frame(struct program *p, struct fake_link *l)
{
	const char *name = names[byte(p) % RV_ARRAY_NR(names)];
	char body[1024];
	uint8_t head[512];
	struct rv_writer wr = rv_writer(head, sizeof(head));
	struct rv_request_header h = {
		.kind = (enum rv_call_kind)(byte(p) % 3),
		.id = rv_msg_id_make(peer_worker(byte(p) % PEERS), byte(p), 1),
		.name = name,
		.name_len = (uint16_t)strlen(name),
	};
	uint8_t map[64];
	struct rv_writer mw = rv_writer(map, sizeof(map));
	char digits[4];
	struct rv_header_pair pair[2] = {{RV_HEADER_BYTES, digits, 0}, {RV_HEADER_ENDS, "1", 1}};
	size_t len, nr = byte(p) % 3;

	pair[0].val_len = (size_t)snprintf(digits, sizeof(digits), "%u", byte(p));
	if (nr && !rv_headers_encode(&mw, pair, nr)) {
		h.headers = map;
		h.headers_len = (uint16_t)mw.len;
	} else {
		h.headers = bytes(p, byte(p) & 31u, &len);
		h.headers_len = (uint16_t)len;
	}
	len = body_of(p, byte(p), body, sizeof(body));
	if (!rv_request_header_encode(&wr, &h) && !wr.bad)
		fake_link_frame(l, RV_FRAME_MESSAGE, head, wr.len, body, len);
}

/* Our calls, and how they are answered. */

static void call_out(struct program *p)
{
	unsigned i = 0;
	struct rv_peer_call pc = {
		.op = (enum rv_peer_op)(byte(p) % (RV_PEER_REF + 1)),
		.handle = {peer_worker(byte(p) % PEERS), byte(p)},
		.lease_id = byte(p),
		.deadline_ns = fake_now_ns + RV_MS(byte(p) * 40u + 1u),
		.sync = byte(p) & 1,
		.offer = byte(p) & 3u,
		.ends = byte(p) & 1,
	};

	while (i < ASKS && asked[i])
		i++;
	if (i == ASKS)
		return;
	if (pc.op == RV_PEER_ACQUIRE && byte(p) & 1) {
		pc.bytes_max = PLACE;
		pc.dst = place[i];
	} else if (pc.op == RV_PEER_PULL) {
		pc.transfer_id = 5;
		pc.chunk_size = 1000;
		pc.total_len = byte(p) * 16u + 1u;
		pc.chunk_count = (uint32_t)((pc.total_len + 999) / 1000);
		pc.idle_ns = CALL_NS;
		pc.dst = place[i];
	}
	asked[i] = fake_call_start(&w, rv_messenger_calls(mess), &pc);
}

static void answer(struct program *p, struct fake_link *l, const struct rv_request_header *rq)
{
	static const char *const grants[] = {
		"{\"Ready\":{\"lease_id\":9,\"transfer_id\":5,\"total_len\":1000,\"chunk_size\":512,\"chunk_count\":2}}",
		"{\"Rdma\":{\"lease_id\":9,\"descriptor\":[1,1,0],\"lease_timeout_ms\":30}}",
		"{\"total_len\":5,\"refcount\":1,\"pinned\":false}",
		"{\"handlers\":[\"_rvd_get\"]}",
		"null",
	};
	struct rv_response_header h = {.id = rq->id, .outcome = byte(p) % 4 == 3};
	uint8_t head[128], map[64], buf[512], hello[2048];
	struct rv_writer wr = rv_writer(head, sizeof(head)), mw = rv_writer(map, sizeof(map));
	struct rv_header_pair lease = {RV_HEADER_LEASE, "7", 1};
	const void *payload;
	size_t len, pieces;

	if (byte(p) & 1 && !rv_headers_encode(&mw, &lease, 1)) {
		h.headers = map;
		h.headers_len = (uint16_t)mw.len;
	}
	if (rq->name_len == 6 && memcmp(rq->name, "_hello", 6) == 0) {
		static const char *const listed[] = {"_rvd_get", "echo"};
		struct rv_peer_info pi =
			peer_info(byte(p) % PEERS, true, "192.0.2.7", buf, sizeof(buf));
		struct rv_writer hw = rv_writer(hello, sizeof(hello));

		rv_body_handlers_encode(&hw, listed, byte(p) % 3, byte(p) & 1 ? &pi : NULL);
		payload = hello;
		len = hw.len;
	} else if (byte(p) & 1) {
		payload = grants[byte(p) % RV_ARRAY_NR(grants)];
		len = strlen(payload);
	} else {
		payload = bytes(p, byte(p) * 8u, &len);
	}
	RV_CHECK(!rv_response_header_encode(&wr, &h) && !wr.bad);
	fake_link_begin(l, RV_FRAME_RESPONSE, head, wr.len, len);
	for (pieces = byte(p) & 3u; pieces && len; pieces--) {
		size_t n = len / 2;

		fake_link_arrive(l, payload, n);
		payload = (const uint8_t *)payload + n;
		len -= n;
		fake_engine_advance(&w, RV_MS(byte(p)));
		if (l->closing || !l->arriving) {
			l->arriving = false; /* the rest goes with the connection */
			return;
		}
	}
	fake_link_arrive(l, payload, len);
	fake_link_end(l);
}

static void take_frame(struct program *p, struct fake_link *l)
{
	struct fake_sent *s;
	struct rv_request_header h;

	if (fake_link_quiet(l))
		return;
	s = fake_link_take(l);
	if (s->type == RV_FRAME_MESSAGE && byte(p) & 3 && !l->arriving &&
	    !rv_request_header_decode(s->header, s->header_len, &h) && h.kind == RV_CALL_UNARY)
		answer(p, l, &h);
	fake_sent_free(s);
}

static void one_op(struct program *p)
{
	unsigned op = byte(p) % 12;
	struct fake_link *l;

	if (op == 0) {
		if (carrier.link_nr < FAKE_LINKS)
			fake_link_accept(&carrier);
	} else if (op == 1 || op == 2) {
		call_out(p);
	} else if (op == 3) {
		fake_engine_advance(&w, RV_MS(byte(p) * 8u));
	} else if (op == 4) {
		if (slots++ < SLOTS_MAX)
			fake_stage(&w, byte(p) * 40u + 1u, 3, byte(p) & 1, 0);
	} else if (op == 5) {
		l = a_link(p, true);
		if (l)
			fake_link_connected(l, byte(p) & 3 ? 0 : -ECONNREFUSED);
	} else if (op == 6) {
		carrier.displace_pends = byte(p) & 1;
		for (unsigned i = 0; i < carrier.link_nr; i++)
			if (carrier.link[i]->displacing)
				fake_link_displaced(carrier.link[i]);
	} else if ((l = a_link(p, false)) && !l->arriving) {
		if (op == 7)
			raw_frame(p, l);
		else if (op == 8 || op == 9)
			request_frame(p, l);
		else if (op == 10)
			take_frame(p, l);
		else
			fake_link_closed(l, byte(p) & 1 ? -ECONNRESET : 0);
	}
}

static void take_back(bool all)
{
	for (unsigned i = 0; i < ASKS; i++) {
		if (!asked[i] || !(all || asked[i]->back))
			continue;
		RV_CHECK(asked[i]->back); /* every call is answered, whatever the peers do */
		fake_ask_end(&w, asked[i]);
		asked[i] = NULL;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program p = {data, data + size};

	slots = 0;
	start_messenger(64);
	for (unsigned i = 0; i < PEERS; i++)
		add_peer((uint8_t)i, i != 1);
	for (unsigned i = 0; i < OPS && p.at < p.end && carrier.link_nr < FAKE_LINKS; i++) {
		one_op(&p);
		fake_engine_run(&w);
		close_what_is_to_be_closed();
		fake_engine_run(&w);
		take_back(false);
	}
	for (unsigned i = 0; i < carrier.link_nr; i++)
		if (carrier.link[i]->displacing)
			fake_link_displaced(carrier.link[i]);
	carrier.displace_pends = false;
	carrier.no_dial = true;
	rv_messenger_stop(mess);
	fake_engine_run(&w);
	for (unsigned i = 0; i < carrier.link_nr; i++)
		if (carrier.link[i]->open || carrier.link[i]->connecting)
			fake_link_closed(carrier.link[i], -ECONNRESET);
	fake_engine_advance(&w, RV_SEC(120));
	take_back(true);
	finish(NULL);
	return 0;
}
