/*
 * raw_read - READs through the verbs backend alone, without daemons, to be compared with perftest's ib_read_bw and
 * ib_read_lat on the same devices.
 *
 *   raw_read owner HOST DEVICE [region|window [KEYS]]
 *   raw_read reader HOST DEVICE OWNER_HOST OWNER_PORT bw|lat SIZE ITERATIONS DEPTH
 *
 * The owner prints the port that a reader asks it at, serves one reader, and ends. With KEYS it makes and revokes that
 * many keys for KEY_BYTES first, and prints "key_usec N", the median of a key's making and its end together. The reader prints one line: for
 * bw "MiB/s N", the average; for lat "usec N", the median. The reader polls, as `idle = poll` does. Bytes are checked.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "tests/bench/measure.h"
#include "verbs/fabric_verbs.h"

#define OWNER     1u
#define READER    2u
#define SIZE_MAX_ RV_MIB(64)
#define DEPTH_MAX 128u
#define LIMIT_NS  RV_SEC(60)
#define KEY_BYTES RV_MIB(1)

struct hello {
	uint32_t len;
	uint8_t addr[64];
};

struct grant {
	uint64_t base;
	uint32_t key_len;
	uint8_t key[RV_FABRIC_KEY_MAX];
};

struct end {
	struct rv_fabric *f;
	struct rv_poller *poller;
	struct rv_fabric_map *map;
	uint8_t *mem;
	int fd; /* to the other end */
	uint64_t now_ns;
	unsigned polls; /* since the clock was read */
};

/* One READ in flight. */
struct slot {
	struct rv_fabric_get g;
	struct run *run;
	uint64_t began; /* in ticks */
};

struct run {
	struct end *e;
	struct grant grant;
	uint64_t size;
	unsigned posted, done, total;
	double *usec; /* of each; ticks while it runs */
	struct slot slot[DEPTH_MAX];
};

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "raw_read: %s: %s\n", what, strerrordesc_np(errno));
	exit(1);
}

static _Noreturn void die_rc(const char *what, int rc)
{
	errno = rc < 0 ? -rc : rc;
	die(what);
}

/* The clock is a system call where the guest's has no time-stamp counter to trust: not for every pass. */
static void poll_once(struct end *e)
{
	if (++e->polls >= 256) {
		e->polls = 0;
		e->now_ns = rv_clock_ns();
	}
	e->poller->ops->poll(e->poller, e->now_ns);
}

static bool allows(void *user, const struct sockaddr *peer)
{
	(void)user;
	(void)peer;
	return true;
}

static void open_end(struct end *e, const char *host, const char *device, uint64_t worker,
		     enum rv_map_access access, enum rv_verbs_fence fence)
{
	char why[RV_VERBS_WHY] = "";
	const struct rv_verbs_conf conf = {
		.device = device,
		.port = 1,
		.gid_index = UINT32_MAX,
		.host = host,
		.traffic_class = -1,
		.fence = fence,
		.worker = worker,
		.reactors = 1,
		.allows = allows,
		.why = why,
	};
	int rc = rv_verbs_create(&conf, &e->f);

	if (rc) {
		fprintf(stderr, "raw_read: %s: %s\n", device, why);
		exit(1);
	}
	rc = e->f->ops->open_reactor(e->f, 0, &e->poller);
	if (rc)
		die_rc("opening", rc);
	e->mem = mmap(NULL, SIZE_MAX_, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (e->mem == MAP_FAILED)
		die("memory");
	rc = e->f->ops->map(e->f, e->mem, SIZE_MAX_, access, &e->map);
	if (rc)
		die_rc("registering", rc);
}

static void close_end(struct end *e)
{
	uint64_t limit = rv_clock_ns() + LIMIT_NS;

	while (e->f->ops->quiesce(e->f, 0) == -EAGAIN && rv_clock_ns() < limit)
		poll_once(e);
	if (e->f->ops->unmap(e->f, e->map))
		die("unmapping");
	e->f->ops->close_reactor(e->f, 0);
	e->f->ops->destroy(e->f);
	munmap(e->mem, SIZE_MAX_);
	close(e->fd);
}

static void say(const struct end *e, const void *buf, size_t len)
{
	if (send(e->fd, buf, len, MSG_NOSIGNAL) != (ssize_t)len)
		die("saying");
}

/* All of it, the fabric polled meanwhile. @return false at the end of the stream */
static bool hear(struct end *e, void *buf, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = recv(e->fd, (char *)buf + got, len - got, MSG_DONTWAIT);

		if (n == 0)
			return false;
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			die("hearing");
		got += n > 0 ? (size_t)n : 0;
		poll_once(e);
	}
	return true;
}

static void introduce(struct end *e, uint64_t other)
{
	struct hello ours = {0}, theirs;
	int rc;

	ours.len = (uint32_t)e->f->ops->address(e->f, 0, ours.addr, sizeof(ours.addr));
	say(e, &ours, sizeof(ours));
	if (!hear(e, &theirs, sizeof(theirs)) || theirs.len > sizeof(theirs.addr))
		die("introducing");
	rc = e->f->ops->peer_up(e->f, 0,
				&(struct rv_fabric_peer){.worker = other,
							 .incarnation = 1,
							 .addr = theirs.addr,
							 .addr_len = theirs.len});
	if (rc)
		die_rc("the peer", rc);
}

static void measure_keys(struct end *e, const struct rv_fabric_reader *to, unsigned nr)
{
	double *usec = calloc(nr, sizeof(*usec));
	struct rv_fabric_key *key;

	if (!usec)
		die("memory");
	for (unsigned i = 0; i < nr; i++) {
		uint64_t began = rv_clock_ns();
		int rc = e->f->ops->export_key(e->f, e->map, e->mem + i % 16 * KEY_BYTES, KEY_BYTES,
					       to, &key);

		if (!rc)
			rc = e->f->ops->revoke_key(e->f, key);
		if (rc)
			die_rc("a key", rc);
		usec[i] = (double)(rv_clock_ns() - began) / 1e3;
	}
	sort_times(usec, nr);
	printf("key_usec %.2f\n", usec[nr / 2]);
	fflush(stdout);
	free(usec);
}

static int owner(int argc, char **argv)
{
	bool window = argc > 4 && strcmp(argv[4], "window") == 0;
	unsigned keys = argc > 5 ? (unsigned)strtoul(argv[5], NULL, 10) : 0;
	struct end e = {0};
	struct rv_fabric_reader to = {.worker = READER};
	struct rv_fabric_key *key;
	struct grant grant = {0};
	int lfd, rc;
	char ask;

	open_end(&e, argv[2], argv[3], OWNER, RV_MAP_SOURCE,
		 window ? RV_VERBS_FENCE_WINDOW : RV_VERBS_FENCE_REGION);
	for (uint64_t i = 0; i < SIZE_MAX_; i++)
		e.mem[i] = (uint8_t)(i * 31 + (i >> 12));
	lfd = listen_and_say(argv[2], 0);
	if (lfd < 0)
		die("listening");
	e.fd = accept(lfd, NULL, NULL);
	if (e.fd < 0)
		die("accepting");
	close(lfd);
	introduce(&e, READER);
	if (!hear(&e, &to.qp, sizeof(to.qp))) /* the reader is connected */
		die("the reader");
	if (keys)
		measure_keys(&e, &to, keys);
	rc = e.f->ops->export_key(e.f, e.map, e.mem, SIZE_MAX_, &to, &key);
	if (rc)
		die_rc("a key", rc);
	grant.base = (uintptr_t)e.mem;
	grant.key_len = (uint32_t)key->key_len;
	memcpy(grant.key, key->key, key->key_len);
	say(&e, &grant, sizeof(grant));
	/* Its device answers; like perftest's server it has nothing to do meanwhile. */
	while (poll(&(struct pollfd){.fd = e.fd, .events = POLLIN}, 1, -1) < 0)
		;
	while (hear(&e, &ask, 1))
		;
	rc = e.f->ops->revoke_key(e.f, key);
	if (rc)
		die_rc("revoking", rc);
	close_end(&e);
	return 0;
}

/* perftest's clock: reading the system's is a call where the guest's counter is not trusted. */
static uint64_t ticks(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return rv_clock_ns();
#endif
}

static void done(struct rv_fabric_get *g, int rc);

static void post(struct run *r, struct slot *s)
{
	int rc;

	s->run = r;
	s->g = (struct rv_fabric_get){
		.worker = OWNER,
		.remote_addr = r->grant.base,
		.len = r->size,
		.key = r->grant.key,
		.key_len = r->grant.key_len,
		.local = r->e->mem,
		.local_map = r->e->map,
		.done = done,
		.ctx = s,
	};
	s->began = ticks();
	rc = r->e->f->ops->get(r->e->f, 0, &s->g);
	if (rc)
		die_rc("a READ", rc);
	r->posted++;
}

static void done(struct rv_fabric_get *g, int rc)
{
	struct slot *s = g->ctx;
	struct run *r = s->run;

	if (rc)
		die_rc("a READ's end", rc);
	r->usec[r->done++] = (double)(ticks() - s->began);
	if (r->posted < r->total)
		post(r, s);
}

static void check_bytes(const struct run *r)
{
	for (uint64_t i = 0; i < r->size; i++) {
		if (r->e->mem[i] != (uint8_t)(i * 31 + (i >> 12))) {
			fprintf(stderr, "raw_read: wrong byte at %llu\n", (unsigned long long)i);
			exit(1);
		}
	}
}

/* @return seconds */
static double run_of(struct run *r, unsigned total, unsigned depth)
{
	uint64_t began = rv_clock_ns(), limit = rv_sat_add(began, LIMIT_NS * 10);
	uint64_t first = ticks();
	double s, usec_per_tick;

	r->e->now_ns = began;
	r->posted = r->done = 0;
	r->total = total;
	for (unsigned i = 0; i < depth && r->posted < total; i++)
		post(r, &r->slot[i]);
	while (r->done < total) {
		poll_once(r->e);
		if (r->e->now_ns > limit)
			die_rc("the READs", ETIMEDOUT);
	}
	s = (double)(rv_clock_ns() - began) / 1e9;
	usec_per_tick = s * 1e6 / (double)(ticks() - first);
	for (unsigned i = 0; i < total; i++)
		r->usec[i] *= usec_per_tick;
	return s;
}

static void connect_to(struct end *e, const char *host, const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1)
		die(host);
	e->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (e->fd < 0 || connect(e->fd, (struct sockaddr *)&sa, sizeof(sa)))
		die("the owner");
}

static void wire_up(struct end *e)
{
	uint64_t limit = rv_clock_ns() + LIMIT_NS;
	enum rv_peer_state s;

	while ((s = e->f->ops->peer_state(e->f, 0, OWNER)) != RV_PEER_UP) {
		if (rv_clock_ns() > limit)
			die_rc("connecting", ETIMEDOUT);
		poll_once(e);
	}
}

static int reader(char **argv)
{
	static struct run r;
	struct end e = {0};
	bool lat = strcmp(argv[6], "lat") == 0;
	unsigned total = (unsigned)strtoul(argv[8], NULL, 10);
	unsigned depth = (unsigned)strtoul(argv[9], NULL, 10);
	uint32_t qp;
	double s;

	r.e = &e;
	r.size = strtoull(argv[7], NULL, 10);
	if (!r.size || r.size > SIZE_MAX_ || !total || !depth || depth > DEPTH_MAX)
		die_rc("arguments", EINVAL);
	r.usec = calloc(total, sizeof(*r.usec));
	if (!r.usec)
		die("memory");
	open_end(&e, argv[2], argv[3], READER, RV_MAP_DESTINATION, RV_VERBS_FENCE_REGION);
	connect_to(&e, argv[4], argv[5]);
	introduce(&e, OWNER);
	wire_up(&e);
	qp = e.f->ops->reads_by(e.f, 0, OWNER);
	say(&e, &qp, sizeof(qp));
	if (!hear(&e, &r.grant, sizeof(r.grant)) || r.grant.key_len > sizeof(r.grant.key))
		die("a key");
	run_of(&r, total < 4 ? total : 4, 1); /* warm */
	check_bytes(&r);
	memset(e.mem, 0, r.size);
	s = run_of(&r, total, lat ? 1 : depth);
	check_bytes(&r);
	sort_times(r.usec, total);
	if (lat)
		printf("usec %.2f\n", r.usec[total / 2]);
	else
		printf("MiB/s %.2f\n", (double)r.size * total / s / (1 << 20));
	shutdown(e.fd, SHUT_WR);
	close_end(&e);
	free(r.usec);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && argc <= 6 && strcmp(argv[1], "owner") == 0)
		return owner(argc, argv);
	if (argc == 10 && strcmp(argv[1], "reader") == 0)
		return reader(argv);
	fputs("usage: raw_read owner HOST DEVICE [region|window [KEYS]]\n"
	      "       raw_read reader HOST DEVICE OWNER_HOST OWNER_PORT bw|lat SIZE ITERATIONS DEPTH\n",
	      stderr);
	return 2;
}
