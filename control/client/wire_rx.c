#include "control/client/wire_rx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dataplane/base/units.h"

static int take_fd(struct rv_rx *rx)
{
	int fd;

	if (!rx->fd_nr)
		return -1;
	fd = rx->fd[0];
	memmove(rx->fd, rx->fd + 1, --rx->fd_nr * sizeof(rx->fd[0]));
	return fd;
}

static bool is_for_us(uint8_t op)
{
	return op & RV_LOCAL_REPLY || op == RV_LOCAL_REQUEST;
}

static struct rv_local_rep take_rep(const uint8_t *p, size_t len)
{
	struct rv_local_rep rep = {0};

	memcpy(&rep, p, rv_min_u64(len, sizeof(rep)));
	rep.path_name[sizeof(rep.path_name) - 1] = '\0';
	return rep;
}

/* @return room for a payload, terminated; NULL without memory */
static char *payload_new(size_t len)
{
	char *p = malloc(len + 1);

	if (p) /* GCOVR_EXCL_BR_LINE: without memory */
		p[len] = '\0';
	return p;
}

/*
 * Preamble and header, once both are in the buffer.
 *
 * @return 1 taken, 0 not yet, or a negative errno
 */
static int take_head(struct rv_rx *rx)
{
	const uint8_t *p = rx->buf + rx->begin;
	size_t have = rx->end - rx->begin;

	if (have < RV_LOCAL_PREAMBLE)
		return 0;
	if (rv_local_preamble_take(p, &rx->pre) || !is_for_us(rx->pre.op))
		return -EPROTO;
	if (have < RV_LOCAL_PREAMBLE + rx->pre.header_len)
		return 0;
	rx->rep = take_rep(p + RV_LOCAL_PREAMBLE, rx->pre.header_len);
	rx->begin += RV_LOCAL_PREAMBLE + rx->pre.header_len;
	rx->payload_got = 0;
	if (rx->pre.payload_len) {
		rx->payload = payload_new(rx->pre.payload_len);
		if (!rx->payload) /* GCOVR_EXCL_BR_LINE: without memory */
			return -ENOMEM;
	}
	rx->in_payload = true;
	return 1;
}

/* Move what the buffer has of the payload to its place. @return whether the payload is complete */
static bool take_payload(struct rv_rx *rx)
{
	size_t n = rv_min_u64(rx->end - rx->begin, rx->pre.payload_len - rx->payload_got);

	if (n)
		memcpy(rx->payload + rx->payload_got, rx->buf + rx->begin, n);
	rx->begin += n;
	rx->payload_got += n;
	return rx->payload_got == rx->pre.payload_len;
}

/* Hand a complete frame over; what nobody took goes. */
static int hand_over(struct rv_rx *rx, rv_rx_fn *on_reply, void *user)
{
	struct rv_rx_frame f = {
		.op = rx->pre.op,
		.rep = rx->rep,
		.payload = rx->payload,
		.payload_len = rx->pre.payload_len,
		.fd = rx->rep.has_fd ? take_fd(rx) : -1,
	};
	int rc;

	rx->in_payload = false;
	rx->payload = NULL;
	rc = rx->rep.has_fd && f.fd < 0 ? -EPROTO : on_reply(user, &f);
	if (f.fd >= 0)
		close(f.fd);
	free(f.payload);
	return rc;
}

static int take_frames(struct rv_rx *rx, rv_rx_fn *on_reply, void *user)
{
	int rc;

	for (;;) {
		if (!rx->in_payload) {
			rc = take_head(rx);
			if (rc <= 0)
				return rc;
		}
		if (!take_payload(rx))
			return 0;
		rc = hand_over(rx, on_reply, user);
		if (rc)
			return rc;
	}
}

static int keep_fds(struct rv_rx *rx, struct msghdr *msg)
{
	int rc = msg->msg_flags & MSG_CTRUNC ? -EMFILE : 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t nr = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET) /* GCOVR_EXCL_BR_LINE: there is no other */
			continue;
		if (c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < nr; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (rx->fd_nr < RV_RX_FDS) {
				rx->fd[rx->fd_nr++] = fd;
			} else {
				close(fd);
				rc = -EPROTO;
			}
		}
	}
	return rc;
}

/* A long payload goes straight to its place, all else through the buffer. */
static struct iovec room(struct rv_rx *rx)
{
	if (rx->in_payload)
		return (struct iovec){rx->payload + rx->payload_got,
				      rx->pre.payload_len - rx->payload_got};
	memmove(rx->buf, rx->buf + rx->begin, rx->end - rx->begin);
	rx->end -= rx->begin;
	rx->begin = 0;
	return (struct iovec){rx->buf + rx->end, sizeof(rx->buf) - rx->end};
}

int rv_rx_read(struct rv_rx *rx, int fd, int flags, rv_rx_fn *on_reply, void *user)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(RV_RX_FDS * sizeof(int))];
	} control;
	struct iovec v = room(rx);
	struct msghdr msg = {
		.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = control.space,
		.msg_controllen = sizeof(control.space),
	};
	ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | flags);
	int rc;

	rx->dry = n < 0 && errno == EAGAIN;
	if (n < 0 && errno == EINTR) /* GCOVR_EXCL_BR_LINE: a signal in the middle of it */
		return 0;
	if (n < 0)
		return errno == EAGAIN ? 0 : -ENOTCONN;
	rc = keep_fds(rx, &msg);
	if (rc)
		return rc;
	if (n == 0)
		return -ENOTCONN;
	if (rx->in_payload)
		rx->payload_got += (size_t)n;
	else
		rx->end += (size_t)n;
	return take_frames(rx, on_reply, user);
}

int rv_rx_whole(const uint8_t *p, size_t len, rv_rx_fn *on_reply, void *user)
{
	struct rv_rx_frame f = {.fd = -1};
	struct rv_local_preamble pre;
	int rc;

	if (len < RV_LOCAL_PREAMBLE || rv_local_preamble_take(p, &pre) || !is_for_us(pre.op) ||
	    RV_LOCAL_PREAMBLE + (size_t)pre.header_len + pre.payload_len != len)
		return -EPROTO;
	f.op = pre.op;
	f.rep = take_rep(p + RV_LOCAL_PREAMBLE, pre.header_len);
	f.payload_len = pre.payload_len;
	if (f.rep.has_fd)
		return -EPROTO;
	if (f.payload_len) {
		f.payload = payload_new(f.payload_len);
		if (!f.payload) /* GCOVR_EXCL_BR_LINE: without memory */
			return -ENOMEM;
		memcpy(f.payload, p + len - f.payload_len, f.payload_len);
	}
	rc = on_reply(user, &f);
	free(f.payload);
	return rc;
}

void rv_rx_fini(struct rv_rx *rx)
{
	free(rx->payload);
	while (rx->fd_nr)
		close(take_fd(rx));
}
