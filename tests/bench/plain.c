/*
 * plain - what blocking C over TCP does with the same bytes: the reference that speeds are compared with.
 *
 *   plain serve spin|sleep
 *   plain relay HOST PORT spin|sleep
 *   plain get HOST PORT SIZE NUMBER [PAUSE] spin|sleep
 *
 * The server prints its port, serves one client, and ends with its client; so does a relay, which hands on to the server at
 * HOST and PORT what it is asked, and the answer once it has all of it. It sends a cached buffer in pieces of
 * 256 KiB; the client receives it into one destination. `spin` polls both sockets without sleeping, `sleep` blocks. The
 * client prints "usec MEDIAN MIN MAX cpu SECONDS", the CPU time of both ends for all gets.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/measure.h"

#define PIECE (256u << 10)

static bool spin;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "plain: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static bool again(ssize_t n)
{
	return n < 0 && (errno == EINTR || errno == EAGAIN);
}

/* @return false: the other end has closed */
static bool take(int fd, void *to, uint64_t len)
{
	uint8_t *p = to;

	while (len) {
		ssize_t n = recv(fd, p, len < PIECE ? len : PIECE, spin ? MSG_DONTWAIT : 0);

		if (again(n))
			continue;
		if (n < 0)
			die("recv");
		if (n == 0)
			return false;
		p += n;
		len -= (uint64_t)n;
	}
	return true;
}

static void give(int fd, const void *from, uint64_t len)
{
	const uint8_t *p = from;

	while (len) {
		ssize_t n = send(fd, p, len < PIECE ? len : PIECE,
				 MSG_NOSIGNAL | (spin ? MSG_DONTWAIT : 0));

		if (again(n))
			continue;
		if (n < 0)
			die("send");
		p += n;
		len -= (uint64_t)n;
	}
}

static uint8_t *memory(uint64_t len)
{
	uint8_t *p = mmap(NULL, len ? len : 1, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		die("memory");
	return p;
}

static void no_delay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY");
}

/* Print the port and wait for the one client. */
static int one_client(void)
{
	int l = listen_and_say("127.0.0.1", 0), fd;

	if (l < 0)
		die("listen");
	fd = accept(l, NULL, NULL);
	if (fd < 0)
		die("accept");
	no_delay(fd);
	return fd;
}

static int reach(const char *host, const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1 || fd < 0 ||
	    connect(fd, (struct sockaddr *)&sa, sizeof(sa)))
		die("connect");
	no_delay(fd);
	return fd;
}

/* Memory of at least @size bytes, made anew when it must grow. */
static uint8_t *at_least(uint64_t size)
{
	static uint64_t had;
	static uint8_t *mem;

	if (size > had) {
		mem = memory(size);
		memset(mem, 0x5a, size);
		had = size;
	}
	return mem;
}

static int serve(void)
{
	int fd = one_client();
	uint64_t size;

	while (take(fd, &size, sizeof(size))) {
		if (size == UINT64_MAX) {
			double cpu = cpu_seconds();

			give(fd, &cpu, sizeof(cpu));
			continue;
		}
		give(fd, at_least(size), size);
	}
	return 0;
}

static int relay(const char *host, const char *port)
{
	int up = reach(host, port), fd = one_client();
	uint64_t size;

	while (take(fd, &size, sizeof(size))) {
		uint64_t len = size == UINT64_MAX ? sizeof(double) : size;

		give(up, &size, sizeof(size));
		if (!take(up, at_least(len), len))
			die("the server");
		give(fd, at_least(len), len);
	}
	return 0;
}

static double their_cpu(int fd)
{
	uint64_t ask = UINT64_MAX;
	double cpu;

	give(fd, &ask, sizeof(ask));
	if (!take(fd, &cpu, sizeof(cpu)))
		die("the server");
	return cpu;
}

static int get(char **argv)
{
	uint64_t size = strtoull(argv[4], NULL, 10), nr = strtoull(argv[5], NULL, 10);
	double *usec = calloc(nr + 1, sizeof(*usec)), cpu = 0;
	uint8_t *mem = memory(size);
	double pause = strcmp(argv[6], "spin") && strcmp(argv[6], "sleep") ? atof(argv[6]) : 0;
	int fd = reach(argv[2], argv[3]);

	if (!usec)
		die("memory");
	for (uint64_t i = 0; i <= nr; i++) {
		double began;

		if (i == 1)
			cpu = cpu_seconds() + their_cpu(fd);
		if (i && pause > 0)
			usleep((useconds_t)(pause * 1e6));
		began = now_usec();
		give(fd, &size, sizeof(size));
		if (!take(fd, mem, size))
			die("the server");
		usec[i] = now_usec() - began;
	}
	cpu = cpu_seconds() + their_cpu(fd) - cpu;
	sort_times(usec + 1, nr);
	printf("usec %.2f %.2f %.2f cpu %.6f\n", usec[1 + nr / 2], usec[1], usec[nr], cpu);
	return 0;
}

int main(int argc, char **argv)
{
	spin = argc > 2 && strcmp(argv[argc - 1], "spin") == 0;
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		return serve();
	if (argc == 5 && strcmp(argv[1], "relay") == 0)
		return relay(argv[2], argv[3]);
	if ((argc == 7 || argc == 8) && strcmp(argv[1], "get") == 0)
		return get(argv);
	fputs("usage: plain serve spin|sleep\n       plain relay HOST PORT spin|sleep\n"
	      "       plain get HOST PORT SIZE NUMBER [PAUSE] spin|sleep\n",
	      stderr);
	return 2;
}
