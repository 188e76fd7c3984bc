/* What a daemon says to a program: any bytes in any pieces end in frames that fit, or in one error; nothing is left behind. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/client/wire_rx.h"
#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int on_frame(void *user, struct rv_rx_frame *f)
{
	unsigned *frames = user;

	RV_CHECK(f->payload_len <= RV_LOCAL_PAYLOAD_MAX);
	RV_CHECK(!f->payload_len || f->payload);
	RV_CHECK(!f->payload || f->payload[f->payload_len] == '\0');
	RV_CHECK(memchr(f->rep.path_name, '\0', sizeof(f->rep.path_name)));
	if (*frames % 2) { /* kept by whoever it is for */
		free(f->payload);
		f->payload = NULL;
	}
	++*frames;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct rv_rx rx;
	unsigned frames = 0, step = size ? data[0] + 1u : 1u;
	int fd[2], rc = 0;

	rx = (struct rv_rx){0};
	RV_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
	for (size_t off = 0; off < size && !rc; off += step) {
		size_t n = rv_min_u64(step, size - off);

		RV_CHECK(send(fd[1], data + off, n, 0) == (ssize_t)n);
		do {
			rc = rv_rx_read(&rx, fd[0], MSG_DONTWAIT, on_frame, &frames);
		} while (!rc && !rx.dry);
	}
	rv_rx_fini(&rx);
	close(fd[0]);
	close(fd[1]);
	return 0;
}
