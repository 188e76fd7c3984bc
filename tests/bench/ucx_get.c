/*
 * ucx_get - a bare loop of ucp_get_nbx: what UCX itself carries, to be compared with raw reads of ours.
 *
 *   ucx_get serve
 *   ucx_get read HOST PORT SIZE NUMBER DEPTH
 *
 * The server prints its port, lets one reader read its memory, and ends with it. Both progress their worker without
 * sleeping. The reader prints "usec MEDIAN mibps AVERAGE": of each get, and of all. UCX's settings come from the environment.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "tests/bench/measure.h"

#define BYTES     (256ull << 20)
#define DEPTH_MAX 256
#define BLOB_MAX  4096

/* What one end tells the other. */
struct blob {
	uint32_t len;
	uint8_t bytes[BLOB_MAX];
};

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_mem_h memh;
static uint8_t *mem;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "ucx_get: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void need(ucs_status_t status, const char *what)
{
	if (status == UCS_OK)
		return;
	fprintf(stderr, "ucx_get: %s: %s\n", what, ucs_status_string(status));
	exit(1);
}

static void start_ucx(void)
{
	ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
	ucp_worker_params_t w = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				 .thread_mode = UCS_THREAD_MODE_SINGLE};
	ucp_mem_map_params_t m = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
						UCP_MEM_MAP_PARAM_FIELD_LENGTH,
				  .length = BYTES};

	mem = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
		   -1, 0);
	if (mem == MAP_FAILED)
		die("memory");
	m.address = mem;
	need(ucp_init(&p, NULL, &context), "ucp_init");
	need(ucp_worker_create(context, &w, &worker), "a worker");
	need(ucp_mem_map(context, &m, &memh), "mapping");
}

static void say(int fd, const void *buf, size_t len)
{
	if (send(fd, buf, len, MSG_NOSIGNAL) != (ssize_t)len)
		die("saying");
}

/* @return false: the other end has closed */
static bool hear(int fd, void *buf, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = recv(fd, (char *)buf + got, len - got, MSG_DONTWAIT);

		if (n == 0)
			return false;
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			die("hearing");
		got += n > 0 ? (size_t)n : 0;
		ucp_worker_progress(worker);
	}
	return true;
}

static void say_blob(int fd, const void *bytes, size_t len)
{
	struct blob b = {.len = (uint32_t)len};

	if (len > BLOB_MAX)
		die("a blob that is too long");
	memcpy(b.bytes, bytes, len);
	say(fd, &b, sizeof(b));
}

static int serve(void)
{
	int l = listen_and_say("127.0.0.1", 0), fd;
	uint64_t base = (uint64_t)(uintptr_t)mem;
	ucp_address_t *addr;
	size_t len;
	void *key;
	char bye;

	if (l < 0)
		die("listen");
	fd = accept(l, NULL, NULL);
	if (fd < 0)
		die("accept");
	need(ucp_worker_get_address(worker, &addr, &len), "an address");
	say_blob(fd, addr, len);
	need(ucp_rkey_pack(context, memh, &key, &len), "a key");
	say_blob(fd, key, len);
	say(fd, &base, sizeof(base));
	while (hear(fd, &bye, 1))
		;
	_exit(0);
}

struct run {
	ucp_ep_h ep;
	ucp_rkey_h key;
	uint64_t base, size;
	double began[DEPTH_MAX], *usec;
	unsigned free[DEPTH_MAX], free_nr; /* places */
	uint64_t done;
};

static struct run r;

static void over(unsigned place)
{
	r.usec[r.done++] = now_usec() - r.began[place];
	r.free[r.free_nr++] = place;
}

static void completed(void *request, ucs_status_t status, void *user)
{
	need(status, "a get");
	ucp_request_free(request);
	over((unsigned)(uintptr_t)user);
}

static void post(void)
{
	unsigned place = r.free[--r.free_nr];
	ucp_request_param_t p = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
				UCP_OP_ATTR_FIELD_MEMH,
		.cb.send = completed,
		.user_data = (void *)(uintptr_t)place,
		.memh = memh,
	};
	void *request;

	r.began[place] = now_usec();
	request = ucp_get_nbx(r.ep, mem, r.size, r.base, r.key, &p);
	if (UCS_PTR_IS_ERR(request))
		need(UCS_PTR_STATUS(request), "a get");
	if (!request)
		over(place);
}

static double run(uint64_t nr, unsigned depth)
{
	double began = now_usec();
	uint64_t posted = 0;

	r.done = 0;
	for (r.free_nr = 0; r.free_nr < depth; r.free_nr++)
		r.free[r.free_nr] = r.free_nr;
	while (r.done < nr) {
		while (r.free_nr && posted < nr) {
			post();
			posted++;
		}
		ucp_worker_progress(worker);
	}
	return now_usec() - began;
}

static int reader(char **argv)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
	uint64_t nr = strtoull(argv[5], NULL, 10);
	unsigned depth = (unsigned)atoi(argv[6]);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
	static struct blob addr, key;
	double all;

	r.size = strtoull(argv[4], NULL, 10);
	r.usec = calloc(nr, sizeof(*r.usec));
	if (!r.usec || !nr || !depth || depth > DEPTH_MAX || !r.size || r.size > BYTES)
		die("arguments");
	if (inet_pton(AF_INET, argv[2], &sa.sin_addr) != 1 || fd < 0 ||
	    connect(fd, (struct sockaddr *)&sa, sizeof(sa)))
		die("connect");
	if (!hear(fd, &addr, sizeof(addr)) || !hear(fd, &key, sizeof(key)) ||
	    !hear(fd, &r.base, sizeof(r.base)))
		die("the server");
	ep.address = (const ucp_address_t *)(const void *)addr.bytes;
	need(ucp_ep_create(worker, &ep, &r.ep), "an endpoint");
	need(ucp_ep_rkey_unpack(r.ep, key.bytes, &r.key), "its key");
	run(nr < 4 ? nr : 4, 1);
	all = run(nr, depth);
	sort_times(r.usec, nr);
	printf("usec %.2f mibps %.2f\n", r.usec[nr / 2],
	       (double)(r.size * nr) / all * 1e6 / (1 << 20));
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	bool serves = argc == 2 && strcmp(argv[1], "serve") == 0;

	if (!serves && !(argc == 7 && strcmp(argv[1], "read") == 0)) {
		fputs("usage: ucx_get serve\n       ucx_get read HOST PORT SIZE NUMBER DEPTH\n",
		      stderr);
		return 2;
	}
	start_ucx();
	return serves ? serve() : reader(argv);
}
