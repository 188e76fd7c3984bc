/*
 * The daemon's end of its UNIX socket under a sequence of events: programs that connect, send any request in any order or
 * any bytes in any pieces, through the socket or the queue beside it, whose words and bytes they may overwrite, read what
 * they are told or do not, and go; peers that answer nothing; time that passes. Whatever comes, no queue keeps the reactor
 * awake whose frames are dealt with or not yet due, nothing takes a buffer away that is received into, and at the end
 * nothing is left of it: no session, buffer, view, slot, lease, call or block.
 *
 * The input is a program: an operation a byte, its operands behind it. Tokens, handles and leases are small numbers,
 * taken from what there is, so that a few bytes get far. The sockets and the io_uring are real; the clock, the peers and
 * the slow thread are scripted.
 */
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/local/session_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/mem/arena.h"
#include "tests/fuzz/local_program.h"
#include "tests/fuzz/program.h"
#include "tests/unit/messenger_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OPS       200
#define PROGRAMS  3
#define FRAME_MAX (RV_LOCAL_PREAMBLE + sizeof(struct rv_local_req) + 1200)

static struct rv_uring ring;
static struct rv_local *local;
static struct local_program program[PROGRAMS];
static uint32_t last_tag;
static unsigned drains;

/* The daemon's own, which are not what is tried here. */

static void say_status(void *user, struct rv_json_out *o)
{
	(void)user;
	rv_json_out_key(o, "fuzz");
	rv_json_out_bool(o, true);
}

static void say_nothing(void *user, struct rv_json_out *o)
{
	(void)user;
	rv_json_out_array(o);
	rv_json_out_array_end(o);
}

static void drain(void *user)
{
	(void)user;
	drains++;
}

static const char *path_name(void *user, unsigned fabric)
{
	(void)user;
	(void)fabric;
	return "fake";
}

/* What must hold between passes. */

static struct local_program *program_of(const struct session *s)
{
	uint32_t tag;

	if (!s->queue)
		return NULL;
	memcpy(&tag, (const uint8_t *)s->queue->mem + LOCAL_PROGRAM_TAG, sizeof(tag));
	for (unsigned i = 0; i < PROGRAMS; i++)
		if (program[i].mem && program[i].tag == tag)
			return &program[i];
	return NULL;
}

static bool held(const struct session *s)
{
	return s->conn.closing || s->conn.paused || s->conn.placed;
}

static bool is_looked_at(const struct session *s)
{
	return s->queue && !rv_list_empty(&s->queue->looked_at);
}

/* A program that puts only while the daemon looks, and leaves the words alone, need not wake it. */
static bool is_due(const struct session *s)
{
	const struct local_program *p = program_of(s);
	bool trusts = p && !p->torn && !p->rude;

	return (is_looked_at(s) || (s->queue && trusts)) && !held(s) &&
	       rv_shmq_ready(&s->queue->in);
}

static bool any_is_due(void)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &local->sessions)
	{
		if (is_due(RV_LIST_ENTRY(it, struct session, link)))
			return true;
	}
	return false;
}

/* What is received now lies in a buffer that is still the session's. */
static bool has_its_place(const struct session *s)
{
	const uint8_t *at = s->conn.payload;
	struct rv_list *it;

	RV_LIST_EACH(it, &s->buffer_list)
	{
		const struct buffer *b = RV_LIST_ENTRY(it, struct buffer, link);
		const uint8_t *begin = b->block ? rv_block_ptr(b->block) : NULL;

		if (begin && at >= begin && at + s->conn.pre.payload_len <= begin + b->len)
			return !b->busy && !b->view;
	}
	return false;
}

static void check_sessions(void)
{
	unsigned looked_at = 0;
	struct rv_list *it;

	RV_LIST_EACH(it, &local->sessions)
	{
		const struct session *s = RV_LIST_ENTRY(it, struct session, link);
		const struct local_program *p = program_of(s);

		RV_CHECK(!s->queue || s->open);
		looked_at += is_looked_at(s);
		if (is_looked_at(s) && p && !p->torn)
			RV_CHECK(!rv_shmq_rests(&s->queue->in));
		if (s->conn.placed)
			RV_CHECK(has_its_place(s));
	}
	RV_CHECK(looked_at == local->looked_at_nr);
}

/* The reactor goes to sleep, or finds that it may not. */
static void nap(void)
{
	bool due = any_is_due();

	RV_CHECK(!local->queues.ops->arm(&local->queues) == !due);
	check_sessions();
}

static void turn(void)
{
	fake_engine_run(&w);
	check_sessions();
	ring.poller.ops->sleep(
		&ring.poller,
		0); /* enters the ring: what the kernel has done is seen in this pass */
	fake_engine_run(&w);
	check_sessions();
	RV_CHECK(!any_is_due());
}

static void start_local(int listener)
{
	struct rv_local_conf lc = {
		.reactor = &w.reactor,
		.ring = &ring,
		.messenger = mess,
		.engines = &w.set,
		.worker = FAKE_WORKER,
		.default_ttl_ns = RV_NEVER,
		.call_timeout_ns = CALL_NS,
		.drop_dereg_timeout_ns = RV_SEC(1),
		.has_fabric = true,
		.threshold = RV_KIB(256),
		.status = say_status,
		.cores = say_nothing,
		.config = say_nothing,
		.drain = drain,
		.path_name = path_name,
	};

	local = rv_local_create(&lc);
	RV_CHECK(local);
	rv_local_listen(local, listener);
}

/* An abstract address of the kernel's choice. */
static int listen_somewhere(struct sockaddr_un *sun, socklen_t *len)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*sun = (struct sockaddr_un){.sun_family = AF_UNIX};
	*len = sizeof(*sun);
	RV_CHECK(fd >= 0 && bind(fd, (struct sockaddr *)sun, sizeof(sun->sun_family)) == 0);
	RV_CHECK(listen(fd, 16) == 0 && getsockname(fd, (struct sockaddr *)sun, len) == 0);
	return fd;
}

/* Both parts are well formed, what they say is the input's. @return its length */
static size_t make_request(struct program *in, unsigned op, uint8_t frame[FRAME_MAX])
{
	struct rv_local_req rq = {.id = byte(in), .version = 2};
	struct rv_local_preamble pre = {.op = (uint8_t)op, .header_len = sizeof(rq)};
	unsigned some = byte(in); /* which fields are worth a byte */
	const uint8_t *payload;
	size_t len = 0, at = RV_LOCAL_PREAMBLE;

	if (some & 1)
		rq.flags = byte(in);
	rq.token = byte(in) % 8u;
	if (some & 2)
		rq.len = (uint64_t)byte(in) << (byte(in) & 31u);
	if (some & 4)
		rq.off = byte(in) * 16u;
	if (some & 8)
		rq.ttl_ns = RV_MS(byte(in)), rq.timeout_ns = RV_MS(byte(in) * 20u);
	if (some & 16) {
		rq.refs = byte(in);
		rq.path = byte(in) & 3u;
		rq.what = byte(in) % 12u;
	}
	rq.worker = some & 32 ? peer_worker(byte(in) % 3) : FAKE_WORKER;
	rq.local = nth_id(&w.engine.store.slots, byte(in));
	rq.lease_id = nth_id(&w.engine.store.leases, rq.local & 3u);
	if (some & 64) {
		rq.port = byte(in) * 100u;
		payload = bytes(in, byte(in) & 63u, &len);
		memcpy(rq.host, payload, len);
		payload = bytes(in, byte(in) & 63u, &len);
		memcpy(rq.name, payload, len);
	} else {
		snprintf(rq.name, sizeof(rq.name), "echo");
	}
	payload = bytes(in, some & 128 ? byte(in) * 4u : 0, &len);
	if (op == RV_LOCAL_GET_MANY && some & 2) { /* some that are sound */
		static struct rv_local_one ones[8];

		for (unsigned i = 0; i < RV_ARRAY_NR(ones); i++)
			ones[i] = (struct rv_local_one){100 + i, rq.worker,
							nth_id(&w.engine.store.slots, i)};
		payload = (const uint8_t *)ones;
		len = sizeof(ones);
	}
	pre.payload_len = (uint32_t)len;
	rv_local_preamble_put(frame, &pre);
	memcpy(frame + at, &rq, sizeof(rq));
	at += sizeof(rq);
	if (len)
		memcpy(frame + at, payload, len);
	return at + len;
}

static void say(struct program *in, struct local_program *p, unsigned op)
{
	uint8_t frame[FRAME_MAX];
	size_t len = make_request(in, op, frame);

	local_program_frame(p, frame, len, 0);
}

/* The header of @rq, of a payload that comes later. */
static void say_first(struct local_program *p, unsigned op, const struct rv_local_req *rq,
		      size_t payload_len)
{
	struct rv_local_preamble pre = {(uint8_t)op, sizeof(*rq), (uint32_t)payload_len};
	uint8_t frame[RV_LOCAL_PREAMBLE + sizeof(*rq)];

	rv_local_preamble_put(frame, &pre);
	memcpy(frame + RV_LOCAL_PREAMBLE, rq, sizeof(*rq));
	local_program_frame(p, frame, sizeof(frame), payload_len);
}

static void connect_one(struct program *in, struct local_program *p, const struct sockaddr_un *sun,
			socklen_t len)
{
	local_program_close(p);
	p->tag = ++last_tag;
	p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	RV_CHECK(p->fd >= 0 && connect(p->fd, (const struct sockaddr *)sun, len) == 0);
	if (byte(in) & 7) { /* most say hello first */
		struct program none = {in->end, in->end};

		say(&none, p, RV_LOCAL_HELLO);
	}
}

/* All that there is, and in the end nothing may be left that it cannot have. */
static void read_all(struct local_program *p)
{
	struct rv_list *it;

	local_program_read(p);
	RV_LIST_EACH(it, &local->sessions)
	{
		const struct session *s = RV_LIST_ENTRY(it, struct session, link);

		if (p->mem && program_of(s) == p && !p->torn && !s->conn.closing &&
		    rv_list_empty(&s->conn.tx)) {
			RV_CHECK(p->in.head == s->queue->out.tail);
			RV_CHECK(p->in.others == s->queue->out.others);
		}
	}
}

/* Queues. */

static void ask_for_queues(struct program *in, struct local_program *p,
			   const struct sockaddr_un *sun, socklen_t sun_len)
{
	const struct rv_local_req rq = {.version = RV_LOCAL_VERSION, .flags = RV_LOCAL_QUEUES};
	struct program none = {in->end, in->end};
	unsigned how = byte(in);

	if (p->fd < 0)
		connect_one(&none, p, sun, sun_len);
	ring.look_ns = (how & 3) == 3 ? 0 : RV_MS(20);
	say_first(p, RV_LOCAL_HELLO, &rq, 0);
	if (how & 4)
		return;
	turn();
	read_all(p);
	if (p->mem && !(how & 8))
		rv_shmq_look(&p->in);
}

static uint32_t lie(struct program *in, unsigned how)
{
	switch (how & 3) {
	case 1:
		return 1; /* the next frame of the socket comes before it, too */
	case 2:
		return -1u;
	case 3:
		return (uint32_t)(int8_t)byte(in);
	default:
		return 0;
	}
}

/* The same request once or more. */
static void put(struct program *in, struct local_program *p)
{
	static const uint8_t bell[RV_LOCAL_PREAMBLE] = {RV_LOCAL_MAGIC >> 8, RV_LOCAL_MAGIC & 255,
							RV_LOCAL_BELL};
	uint8_t frame[FRAME_MAX];
	unsigned how = byte(in), times = how & 16 ? byte(in) % 64u : 1;
	uint32_t false_by = p->mem ? lie(in, how) : 0;
	const struct iovec part = {frame,
				   make_request(in, byte(in) % (RV_LOCAL_GET_MANY + 3), frame)};
	bool wake;

	if (how & 4)
		frame[10] ^= 1; /* not as long as it says */
	/* It goes there even if nobody looks. */
	if (p->mem && how & 8 && atomic_exchange(&p->out.w->rests, 0))
		p->rude = true;
	for (unsigned i = 0; i < times; i++) {
		p->out.others += false_by;
		if (!p->mem || !rv_shmq_put(&p->out, &part, 1, &wake)) {
			p->out.others -= false_by;
			if (!false_by && !(how & 4))
				local_program_frame(p, frame, part.iov_len, 0);
			break;
		}
		p->out.others -= false_by;
	}
	if (how & 32)
		local_program_frame(p, bell, sizeof(bell), 0);
	if (how & 64)
		nap();
	if (how & 128)
		local_program_close(p);
}

/* Any word or bytes of either queue, by a little or wholly. */
static void scribble(struct program *in, struct local_program *p)
{
	unsigned which = byte(in), at;
	struct rv_shmq_words *q;
	_Atomic uint32_t *word[4];
	const uint8_t *raw;
	uint32_t value = 0;
	size_t len;

	if (!p->mem)
		return;
	p->torn = true;
	q = (struct rv_shmq_words *)(void *)p->mem + (which & 1);
	if (which & 16) {
		at = atomic_load(&q->head) + byte(in);
		raw = bytes(in, byte(in) & 31u, &len);
		for (size_t i = 0; i < len; i++)
			p->mem[4096 + (which & 1) * RV_SHMQ_BYTES + (at + i) % RV_SHMQ_BYTES] =
				raw[i];
		return;
	}
	word[0] = &q->tail;
	word[1] = &q->others;
	word[2] = &q->head;
	word[3] = &q->rests;
	raw = bytes(in, which & 8 ? 4 : 1, &len);
	memcpy(&value, raw, len);
	if (!(which & 8))
		value = (uint32_t)(int8_t)value + atomic_load(word[which >> 1 & 3]);
	atomic_store(word[which >> 1 & 3], value);
}

static void look_or_rest(struct program *in, struct local_program *p)
{
	unsigned how = byte(in);

	if (p->mem && how & 1)
		rv_shmq_look(&p->in);
	if (how & 2)
		read_all(p);
	if (p->mem && how & 4)
		rv_shmq_rest(&p->in);
	if (how & 8)
		nap();
}

/* A WRITE whose payload comes in two halves, with what the input likes between them. */
static void write_half(struct program *in, struct local_program *p)
{
	struct rv_local_req rq = {.id = 1};
	static const uint8_t zeros[64 * 128];
	size_t half;

	if (p->owed) {
		local_program_pay(p);
		return;
	}
	rq.token = byte(in) % 8u;
	half = (byte(in) % 128u + 1) * 64u;
	say_first(p, RV_LOCAL_WRITE, &rq, 2 * half);
	if (p->owed && local_program_send(p, zeros, half))
		p->owed -= half;
}

/* The last few are the queues'. */
static unsigned next_op(struct program *in)
{
	unsigned op = byte(in);

	return op < 240 ? op % 12 : 12 + op % 5;
}

static void one_op(struct program *in, const struct sockaddr_un *sun, socklen_t sun_len)
{
	unsigned op = next_op(in);
	struct local_program *p = &program[byte(in) % PROGRAMS];
	const uint8_t *raw;
	size_t len;

	switch (op) {
	case 0:
		connect_one(in, p, sun, sun_len);
		break;
	case 1:
		local_program_close(p);
		break;
	case 2:
		raw = bytes(in, byte(in), &len);
		local_program_send(p, raw, len);
		break;
	case 3:
		nap();
		fake_engine_advance(&w, RV_MS(byte(in) * 8u));
		break;
	case 4:
		read_all(p);
		break;
	case 5:
		if (w.engine.store.slots.live_nr < 32 && fake_free_cells(w.port))
			fake_stage(&w, byte(in) * 40u + 1u, 3, byte(in) & 1, 0);
		break;
	case 6:
		for (unsigned i = 0; i < carrier.link_nr; i++)
			if (carrier.link[i]->connecting)
				fake_link_connected(carrier.link[i],
						    byte(in) & 3 ? -ECONNREFUSED : 0);
		break;
	case 12:
		ask_for_queues(in, p, sun, sun_len);
		break;
	case 13:
		put(in, p);
		break;
	case 14:
		scribble(in, p);
		break;
	case 15:
		look_or_rest(in, p);
		break;
	case 16:
		write_half(in, p);
		break;
	default:
		say(in, p, byte(in) % (RV_LOCAL_GET_MANY + 3));
		break;
	}
}

static void end_all(void)
{
	unsigned left;

	for (unsigned i = 0; i < PROGRAMS; i++)
		local_program_close(&program[i]);
	turn();
	carrier.no_dial = true;
	rv_messenger_stop(mess);
	for (unsigned i = 0; i < carrier.link_nr; i++)
		if (carrier.link[i]->open || carrier.link[i]->connecting)
			fake_link_closed(carrier.link[i], -ECONNRESET);
	for (unsigned i = 0; (left = rv_local_stop(local)); i++) {
		RV_CHECK(i < 1000);
		fake_engine_advance(&w, RV_SEC(1));
		turn();
	}
	rv_local_destroy(local);
	atomic_store(&w.set.rdma_off, false);
	rv_log_set_level(RV_LOG_ERROR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct program in = {data, data + size};
	struct sockaddr_un sun;
	socklen_t sun_len;

	rv_log_set_level(RV_LOG_ERROR);
	start_messenger(64);
	if (rv_uring_init(&ring, 64)) { /* none in this kernel or container */
		finish(NULL);
		return 0;
	}
	RV_CHECK(rv_reactor_add(&w.reactor, &ring.poller) == 0);
	for (unsigned i = 0; i < 3; i++)
		add_peer((uint8_t)i, i != 1);
	for (unsigned i = 0; i < PROGRAMS; i++)
		program[i] = (struct local_program){.fd = -1};
	start_local(listen_somewhere(&sun, &sun_len));
	for (unsigned i = 0; i < OPS && in.at < in.end && carrier.link_nr < FAKE_LINKS; i++) {
		one_op(&in, &sun, sun_len);
		turn();
	}
	end_all();
	finish(NULL);
	rv_uring_fini(&ring);
	return 0;
}
