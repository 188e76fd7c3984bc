/*
 * local_program.h - a program at its end of the daemon's UNIX socket, with queues or without.
 *
 * What it reads it takes in order, from the socket and from the queue beside it; what it writes is the target's.
 */
#ifndef RV_TESTS_FUZZ_LOCAL_PROGRAM_H
#define RV_TESTS_FUZZ_LOCAL_PROGRAM_H

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control/local/local_proto.h"
#include "control/local/shmq.h"
#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

/** Of its queues' memory, where nothing else is: says whose it is. */
#define LOCAL_PROGRAM_TAG 2048u

struct local_program {
	int fd; /* -1: none */
	uint32_t tag;
	uint32_t frames; /* given to the socket */
	size_t owed;     /* payload of the frame that has begun there */

	/* The frame that comes through the socket: */
	uint8_t head[RV_LOCAL_PREAMBLE + sizeof(struct rv_local_rep)];
	size_t got, left;

	uint8_t *mem; /* of its queues; NULL: none */
	struct rv_shmq_out out;
	struct rv_shmq_in in;
	bool torn; /* it wrote where it should not: what it reads may be its own */
	bool rude; /* it put a frame while nobody looked */
};

static inline void local_program_close(struct local_program *p)
{
	if (p->fd >= 0)
		close(p->fd);
	if (p->mem)
		munmap(p->mem, RV_SHMQ_LEN);
	*p = (struct local_program){.fd = -1};
}

/* Sending. */

static inline bool local_program_send(struct local_program *p, const void *bytes, size_t len)
{
	/* It may have been closed, or be full. */
	return p->fd >= 0 && len &&
	       send(p->fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

/** The rest of what has begun. */
static inline void local_program_pay(struct local_program *p)
{
	static const uint8_t zeros[16384];

	for (size_t n; p->owed; p->owed -= n) {
		n = rv_min_u64(p->owed, sizeof(zeros));
		local_program_send(p, zeros, n);
	}
}

/** A frame, or its beginning, but for @owed bytes. */
static inline void local_program_frame(struct local_program *p, const void *bytes, size_t len,
				       size_t owed)
{
	local_program_pay(p);
	if (!local_program_send(p, bytes, len))
		return;
	p->owed = owed;
	p->frames++;
	if (p->mem)
		rv_shmq_other(&p->out);
}

/* Reading. */

static inline void local_program_show(struct local_program *p, int fd)
{
	struct stat st;
	void *mem;

	/* An arena is larger. */
	if (!fstat(fd, &st) && st.st_size == RV_SHMQ_LEN) {
		RV_CHECK(!p->mem);
		RV_CHECK(ftruncate(fd, 4096) && ftruncate(fd, 1 << 20));
		mem = mmap(NULL, RV_SHMQ_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		RV_CHECK(mem != MAP_FAILED);
		p->mem = mem;
		rv_shmq_init(mem, false, p->frames, 0, &p->out, &p->in);
		memcpy(p->mem + LOCAL_PROGRAM_TAG, &p->tag, sizeof(p->tag));
	}
	close(fd);
}

/* @return bytes */
static inline ssize_t local_program_receive(struct local_program *p, void *buf, size_t cap)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
	struct iovec iov = {buf, cap};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(p->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *cm = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;

	for (size_t at = 0; cm && at + CMSG_LEN(sizeof(int)) <= cm->cmsg_len; at += sizeof(int)) {
		int fd;

		memcpy(&fd, CMSG_DATA(cm) + at, sizeof(fd));
		local_program_show(p, fd);
	}
	return n;
}

/** All that is in the queue and whose turn it is. */
static inline void local_program_take(struct local_program *p)
{
	static uint8_t frame[RV_SHMQ_FRAME];
	struct rv_local_preamble pre;
	int n;

	while (p->mem && (n = rv_shmq_take(&p->in, frame)) != 0) {
		if (p->torn) {
			if (n < 0)
				return;
			continue;
		}
		RV_CHECK(n >= (int)RV_LOCAL_PREAMBLE && !rv_local_preamble_take(frame, &pre));
		RV_CHECK(pre.op & RV_LOCAL_REPLY || pre.op == RV_LOCAL_REQUEST);
		RV_CHECK(RV_LOCAL_PREAMBLE + pre.header_len + pre.payload_len == (size_t)n);
	}
}

/* A frame of the socket: what came before it comes first. Those are counted from the one on that brought the memory. */
static inline void local_program_frame_came(struct local_program *p)
{
	struct rv_local_rep rep = {0};

	memcpy(&rep, p->head + RV_LOCAL_PREAMBLE, p->got - RV_LOCAL_PREAMBLE);
	if (!p->mem ||
	    (!p->in.others && !(p->head[2] == (RV_LOCAL_HELLO | RV_LOCAL_REPLY) && rep.has_fd)))
		return;
	local_program_take(p);
	rv_shmq_other_taken(&p->in);
}

/* @return bytes that were used: of the preamble, the header or the payload */
static inline size_t local_program_feed(struct local_program *p, const uint8_t *b, size_t n)
{
	struct rv_local_preamble pre = {0};
	size_t want = RV_LOCAL_PREAMBLE, used = rv_min_u64(n, p->left);

	p->left -= used;
	if (!used) {
		if (p->got >= want)
			rv_local_preamble_take(p->head, &pre);
		used = rv_min_u64(n, want + pre.header_len - p->got);
		memcpy(p->head + p->got, b, used);
		p->got += used;
		if (p->got < want)
			return used;
		RV_CHECK(!rv_local_preamble_take(p->head, &pre));
		RV_CHECK(want + pre.header_len <= sizeof(p->head));
		if (p->got < want + pre.header_len)
			return used;
		p->left = pre.payload_len;
	}
	if (!p->left) {
		local_program_frame_came(p);
		p->got = 0;
	}
	return used;
}

/** Everything that has come, both ways. */
static inline void local_program_read(struct local_program *p)
{
	static uint8_t buf[65536];
	ssize_t n;

	while (p->fd >= 0 && (n = local_program_receive(p, buf, sizeof(buf))) > 0) {
		for (size_t at = 0; at < (size_t)n;)
			at += local_program_feed(p, buf + at, (size_t)n - at);
	}
	local_program_take(p);
}

#endif
