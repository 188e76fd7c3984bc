/*
 * The daemon's end of its UNIX socket under a sequence of events: programs that connect, send any request in any order or
 * any bytes in any pieces, read what they are told or do not, and go; peers that answer nothing; time that passes. Whatever
 * comes, at the end nothing is left of it: no session, buffer, view, slot, lease, call or block.
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
#include "tests/fuzz/program.h"
#include "tests/unit/messenger_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OPS      200
#define PROGRAMS 3

static struct rv_uring ring;
static struct rv_local *local;
static int program[PROGRAMS]; /* its end of the socket, or -1 */
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

static void turn(void)
{
	fake_engine_run(&w);
	ring.poller.ops->sleep(
		&ring.poller,
		0); /* enters the ring: what the kernel has done is seen in this pass */
	fake_engine_run(&w);
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

static void send_all(int *fd, const void *p, size_t len)
{
	if (*fd >= 0 && len)
		(void)!send(*fd, p, len,
			    MSG_DONTWAIT | MSG_NOSIGNAL); /* it may have been closed, or be full */
}

static void read_all(int fd)
{
	static uint8_t sink[65536];

	while (fd >= 0 && recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
}

/* Both parts are well formed, what they say is the input's. */
static void say(struct program *in, int *fd, unsigned op)
{
	uint8_t frame[RV_LOCAL_PREAMBLE + sizeof(struct rv_local_req) + 1200];
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
	send_all(fd, frame, at + len);
}

static void connect_one(struct program *in, int *fd, const struct sockaddr_un *sun, socklen_t len)
{
	if (*fd >= 0)
		close(*fd);
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	RV_CHECK(*fd >= 0 && connect(*fd, (const struct sockaddr *)sun, len) == 0);
	if (byte(in) & 7) { /* most say hello first */
		struct program none = {in->end, in->end};

		say(&none, fd, RV_LOCAL_HELLO);
	}
}

static void one_op(struct program *in, const struct sockaddr_un *sun, socklen_t sun_len)
{
	unsigned op = byte(in) % 12;
	int *fd = &program[byte(in) % PROGRAMS];
	const uint8_t *raw;
	size_t len;

	switch (op) {
	case 0:
		connect_one(in, fd, sun, sun_len);
		break;
	case 1:
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		break;
	case 2:
		raw = bytes(in, byte(in), &len);
		send_all(fd, raw, len);
		break;
	case 3:
		fake_engine_advance(&w, RV_MS(byte(in) * 8u));
		break;
	case 4:
		read_all(*fd);
		break;
	case 5:
		if (w.engine.store.slots.live_nr < 32)
			fake_stage(&w, byte(in) * 40u + 1u, 3, byte(in) & 1, 0);
		break;
	case 6:
		for (unsigned i = 0; i < carrier.link_nr; i++)
			if (carrier.link[i]->connecting)
				fake_link_connected(carrier.link[i],
						    byte(in) & 3 ? -ECONNREFUSED : 0);
		break;
	default:
		say(in, fd, byte(in) % (RV_LOCAL_GET_MANY + 3));
		break;
	}
}

static void end_all(void)
{
	unsigned left;

	for (unsigned i = 0; i < PROGRAMS; i++)
		if (program[i] >= 0)
			close(program[i]);
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
		program[i] = -1;
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
