/*
 * measure.h - what the programs of this folder measure with.
 */
#ifndef RV_TESTS_BENCH_MEASURE_H
#define RV_TESTS_BENCH_MEASURE_H

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline double now_usec(void)
{
	return (double)now_ns() / 1e3;
}

static inline int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static inline void sort_times(double *t, size_t nr)
{
	qsort(t, nr, sizeof(*t), by_size);
}

/** Listen on a free port of @host, an IPv4 address, and print it. @param flags of socket(). @return the socket, or -1: errno */
static inline int listen_and_say(const char *host, int flags)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);

	if (fd < 0)
		return -1;
	errno = EINVAL; /* what inet_pton leaves as it was */
	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1 ||
	    bind(fd, (struct sockaddr *)&sa, sizeof(sa)) || listen(fd, 16) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len)) {
		close(fd);
		return -1;
	}
	printf("%u\n", ntohs(sa.sin_port));
	fflush(stdout);
	return fd;
}

#endif
