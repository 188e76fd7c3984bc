#include "dataplane/base/clock.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

#include "dataplane/base/check.h"

uint64_t rv_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void rv_random_bytes(void *buf, size_t len)
{
	unsigned char *p = buf;

	while (len) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		RV_CHECK(n > 0);
		p += n;
		len -= (size_t)n;
	}
}

uint64_t rv_random_u64(void)
{
	uint64_t v = 0;

	while (!v)
		rv_random_bytes(&v, sizeof(v));
	return v;
}
