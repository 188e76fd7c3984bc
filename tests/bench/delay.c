/*
 * delay - a TCP proxy on loopback that hands every byte on a set time after it came, each way.
 *
 *   delay TARGET_PORT USEC
 *
 * Prints its port. Looks at its connections, once it has any, without sleeping, so that the delay is what it says; at most 64,
 * 64 MiB under way in each direction of one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/measure.h"

#define CONNECTIONS 64
#define ROOM        (64u << 20)
#define PIECES      65536u
#define PIECE       (256u << 10)

/* What came from one socket and goes to the other. */
struct way {
	int from, to;
	uint8_t *ring;
	uint64_t head, tail; /* bytes in, bytes out */
	struct piece {
		uint64_t end; /* in bytes since the start */
		uint64_t due_ns;
	} piece[PIECES];
	uint64_t first, last; /* pieces */
	bool ended;
};

static struct way *way[2 * CONNECTIONS];
static unsigned way_nr;
static uint64_t delay_ns;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "delay: %s: %s\n", what, strerrordesc_np(errno));
	exit(1);
}

static void take(struct way *w)
{
	uint64_t at = w->head % ROOM, room = ROOM - (w->head - w->tail);
	ssize_t n;

	if (room > ROOM - at)
		room = ROOM - at;
	if (room > PIECE)
		room = PIECE;
	if (w->ended || !room || w->last - w->first == PIECES)
		return;
	n = recv(w->from, w->ring + at, room, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	w->ended = n <= 0;
	if (n <= 0)
		return;
	w->head += (uint64_t)n;
	w->piece[w->last++ % PIECES] = (struct piece){w->head, now_ns() + delay_ns};
}

static void give(struct way *w, uint64_t now)
{
	while (w->first != w->last && w->piece[w->first % PIECES].due_ns <= now) {
		uint64_t end = w->piece[w->first % PIECES].end, at = w->tail % ROOM,
			 len = end - w->tail;
		ssize_t n;

		if (len > ROOM - at)
			len = ROOM - at;
		n = send(w->to, w->ring + at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0)
			w->tail = end; /* nobody takes it any more */
		else
			w->tail += (uint64_t)n;
		if (w->tail == end)
			w->first++;
	}
	if (w->ended && w->first == w->last) {
		shutdown(w->to, SHUT_WR);
		w->ended = false;
		w->from = -1;
	}
}

static void add_way(int from, int to)
{
	struct way *w = calloc(1, sizeof(*w));

	if (!w || way_nr == 2 * CONNECTIONS)
		die("too many connections");
	*w = (struct way){.from = from, .to = to};
	w->ring = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->ring == MAP_FAILED)
		die("memory");
	way[way_nr++] = w;
}

static void accept_one(int listener, uint16_t target)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons(target),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = accept(listener, NULL, NULL), out, one = 1;

	if (fd < 0)
		return;
	out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (out < 0 || connect(out, (struct sockaddr *)&sa, sizeof(sa)))
		die("the target");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	add_way(fd, out);
	add_way(out, fd);
}

int main(int argc, char **argv)
{
	int l;

	if (argc != 3) {
		fputs("usage: delay TARGET_PORT USEC\n", stderr);
		return 2;
	}
	delay_ns = strtoull(argv[2], NULL, 10) * 1000;
	l = listen_and_say("127.0.0.1", SOCK_NONBLOCK);
	if (l < 0)
		die("listen");
	for (;;) {
		struct pollfd p = {.fd = l, .events = POLLIN};
		uint64_t now;

		if (!way_nr) /* who has none is in nobody's way */
			poll(&p, 1, -1);
		accept_one(l, (uint16_t)atoi(argv[1]));
		for (unsigned i = 0; i < way_nr; i++) {
			if (way[i]->from >= 0)
				take(way[i]);
		}
		now = now_ns();
		for (unsigned i = 0; i < way_nr; i++)
			give(way[i], now);
	}
}
