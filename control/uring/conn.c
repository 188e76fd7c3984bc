#include "control/uring/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

/* Memory for a part that arrives grows with what has arrived, never on the peer's word. */
#define GROW_FIRST RV_KIB(64)
#define DIRECT_MIN 4096u
#define TX_FULL    RV_MIB(8)
/* Sends, or receives, made by hand in one pass. */
#define BY_HAND    4u

struct rv_tx {
	struct rv_list link;
	size_t head_len, head_off;
	struct iovec one;          /* a payload in one piece */
	const struct iovec *piece; /* the first that is not sent as a whole, piece_off of it are */
	size_t piece_nr, piece_off;
	size_t payload_len, payload_off;
	void (*sent)(void *ctx, int rc);
	void *ctx;
	int fd;
	bool small;     /* one of the ring's records */
	uint8_t head[]; /* preamble, header, and a copied payload */
};

static void rx_done(struct rv_op *op, int res, uint32_t flags);
static void tx_done(struct rv_op *op, int res, uint32_t flags);
static void connect_done(struct rv_op *op, int res, uint32_t flags);
static bool prepare_rx(struct rv_uring_later *l, bool must);
static bool look_rx(struct rv_uring_later *l);
static bool prepare_tx(struct rv_uring_later *l, bool must);
static void arm_rx(struct rv_conn *c);
static void arm_tx(struct rv_conn *c);
static void finish_close(struct rv_conn *c);

static void init(struct rv_conn *c, const struct rv_conn_ops *ops, struct rv_uring *ring,
		 struct rv_reactor *reactor, int fd)
{
	*c = (struct rv_conn){
		.ops = ops,
		.ring = ring,
		.reactor = reactor,
		.fd = fd,
		.rx_op = {.done = rx_done},
		.tx_op = {.done = tx_done},
		.rx_later = {.prepare = prepare_rx, .look = look_rx},
		.rx_fd = -1,
	};
	c->tx_later.prepare = prepare_tx;
	rv_list_init(&c->rx_later.link);
	rv_list_init(&c->tx_later.link);
	c->header = c->head_buf;
	c->header_cap = sizeof(c->head_buf);
	rv_list_init(&c->tx);
	rv_list_init(&c->link);
}

void rv_conn_open(struct rv_conn *c, const struct rv_conn_ops *ops, struct rv_uring *ring,
		  struct rv_reactor *reactor, int fd)
{
	init(c, ops, ring, reactor, fd);
	arm_rx(c);
}

static void connect_timed_out(struct rv_reactor *r, struct rv_task *t)
{
	(void)r;
	rv_conn_close(RV_CONTAINER(t, struct rv_conn, timeout), -ETIMEDOUT);
}

void rv_conn_connect(struct rv_conn *c, const struct rv_conn_ops *ops, struct rv_uring *ring,
		     struct rv_reactor *reactor, int fd, const struct sockaddr *addr,
		     socklen_t addr_len, uint64_t timeout_ns)
{
	struct io_uring_sqe *sqe;

	init(c, ops, ring, reactor, fd);
	RV_CHECK(addr_len <= sizeof(c->addr));
	memcpy(&c->addr, addr, addr_len);
	c->connecting = true;
	c->timeout.fn = connect_timed_out;
	rv_task_at(reactor, &c->timeout, rv_sat_add(reactor->now_ns, timeout_ns));
	c->tx_op.done = connect_done;
	sqe = rv_uring_sqe(ring);
	io_uring_prep_connect(sqe, fd, (struct sockaddr *)&c->addr, addr_len);
	rv_uring_bind(ring, sqe, &c->tx_op);
}

static void connect_done(struct rv_op *op, int res, uint32_t flags)
{
	struct rv_conn *c = RV_CONTAINER(op, struct rv_conn, tx_op);

	(void)flags;
	rv_task_cancel(c->reactor, &c->timeout);
	c->tx_op.done = tx_done;
	c->connecting = false;
	if (c->closing) {
		finish_close(c);
		return;
	}
	if (res) {
		rv_conn_close(c, res);
		return;
	}
	c->reported = true;
	c->ops->connected(c, 0);
	if (c->closing)
		return;
	arm_rx(c);
	arm_tx(c);
}

/* What is to come in time. */

/* A long receive into its place says nothing until it is whole; the kernel has counted what came. */
static uint64_t arrived(const struct rv_conn *c)
{
	struct tcp_info ti;
	socklen_t len = sizeof(ti);

	if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == 0 &&
	    len >= offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(ti.tcpi_bytes_received))
		return ti.tcpi_bytes_received;
	return c->rx_bytes;
}

static bool in_a_frame(const struct rv_conn *c)
{
	return c->rx_state != RV_RX_PREAMBLE || c->got;
}

static void wait_for_more(struct rv_conn *c, uint64_t ns)
{
	c->mark_bytes = arrived(c);
	c->mark_frames = c->rx_frames;
	rv_task_at(c->reactor, &c->timeout, rv_sat_add(c->reactor->now_ns, ns));
}

/* A frame has begun, or goes on: one timer sees to it, however many pieces it comes in. */
static void expect_more(struct rv_conn *c)
{
	if (c->stall_ns && !c->timeout.timer.armed && in_a_frame(c))
		wait_for_more(c, c->stall_ns);
}

static void look_at_progress(struct rv_reactor *r, struct rv_task *t)
{
	struct rv_conn *c = RV_CONTAINER(t, struct rv_conn, timeout);
	bool due = in_a_frame(c) || !c->spoken;

	(void)r;
	if (due && !c->paused && c->rx_frames == c->mark_frames &&
	    arrived(c) - c->mark_bytes < RV_CONN_PROGRESS) {
		c->overdue = c->spoken ? RV_CONN_STALLED : RV_CONN_SILENT;
		rv_conn_close(c, -ETIMEDOUT);
	} else if (due) {
		if (c->spoken)
			expect_more(c);
		else
			wait_for_more(c, c->first_ns);
	}
}

void rv_conn_limit(struct rv_conn *c, uint64_t first_ns, uint64_t stall_ns)
{
	c->timeout.fn = look_at_progress;
	c->first_ns = first_ns;
	c->stall_ns = stall_ns == RV_NEVER ? 0 : stall_ns;
	if (first_ns == RV_NEVER)
		c->spoken = true;
	else
		wait_for_more(c, first_ns);
}

/* Sending. */

static struct rv_tx *tx_new(struct rv_conn *c, size_t head_len)
{
	bool small = sizeof(struct rv_tx) + head_len <= RV_URING_TX_BYTES;
	struct rv_tx *t = small ? rv_slab_take(&c->ring->tx) : malloc(sizeof(*t) + head_len);

	if (t)
		*t = (struct rv_tx){.small = small, .head_len = head_len, .fd = -1};
	return t;
}

static void tx_free(struct rv_conn *c, struct rv_tx *t, int rc)
{
	if (t->sent)
		t->sent(t->ctx, rc);
	if (t->fd >= 0)
		close(t->fd);
	if (t->small)
		rv_slab_give(&c->ring->tx, t);
	else
		free(t);
}

/* A frame with its head, which is followed by @copied bytes in the same memory. */
static struct rv_tx *tx_framed(struct rv_conn *c, unsigned type, const void *header,
			       size_t header_len, size_t payload_len, size_t copied)
{
	struct rv_preamble pre = {(enum rv_frame_type)type, (uint32_t)header_len,
				  (uint32_t)payload_len};
	struct rv_tx *t = tx_new(c, RV_FRAME_PREAMBLE + header_len + copied);

	if (!t)
		return NULL;
	c->ops->encode(t->head, &pre);
	if (header_len)
		memcpy(t->head + RV_FRAME_PREAMBLE, header, header_len);
	return t;
}

static void tx_queue(struct rv_conn *c, struct rv_tx *t)
{
	rv_list_push(&c->tx, &t->link);
	c->tx_queued += t->head_len + t->payload_len;
	if (c->tx_queued >= TX_FULL)
		c->tx_was_full = true;
	arm_tx(c);
}

int rv_conn_send(struct rv_conn *c, unsigned type, const void *header, size_t header_len,
		 const void *payload, size_t payload_len, int fd, void (*sent)(void *ctx, int rc),
		 void *ctx)
{
	size_t copied = sent ? 0 : payload_len;
	struct rv_tx *t;

	if (c->closing)
		return -ESHUTDOWN;
	t = tx_framed(c, type, header, header_len, payload_len, copied);
	if (!t)
		return -ENOMEM;
	/* A number is not a descriptor: by the time it is sent it may name another file. */
	t->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && t->fd < 0) {
		tx_free(c, t, 0);
		return -EMFILE;
	}
	if (sent) {
		t->one = (struct iovec){(void *)(uintptr_t)payload, payload_len};
		t->piece = &t->one;
		t->piece_nr = 1;
		t->payload_len = payload_len;
	}
	t->sent = sent;
	t->ctx = ctx;
	if (copied)
		memcpy(t->head + RV_FRAME_PREAMBLE + header_len, payload, copied);
	tx_queue(c, t);
	return 0;
}

int rv_conn_send_pieces(struct rv_conn *c, unsigned type, const void *header, size_t header_len,
			const struct iovec *piece, size_t nr, void (*sent)(void *ctx, int rc),
			void *ctx)
{
	size_t len = 0;
	struct rv_tx *t;

	for (size_t i = 0; i < nr; i++)
		len += piece[i].iov_len;
	if (c->closing)
		return -ESHUTDOWN;
	t = tx_framed(c, type, header, header_len, len, 0);
	if (!t)
		return -ENOMEM;
	t->piece = piece;
	t->piece_nr = nr;
	t->payload_len = len;
	t->sent = sent;
	t->ctx = ctx;
	tx_queue(c, t);
	return 0;
}

/* What is left of a payload, as far as there is room. @return whether that was all of it */
static bool gather_payload(struct rv_conn *c, struct rv_tx *t, unsigned *n, size_t *bytes)
{
	size_t off;

	while (t->piece_nr && t->piece_off >= t->piece->iov_len) {
		t->piece_off -= t->piece->iov_len;
		t->piece++;
		t->piece_nr--;
	}
	off = t->piece_off;
	for (size_t i = 0; i < t->piece_nr; i++, off = 0) {
		size_t left = t->piece[i].iov_len - off;
		size_t len = rv_min_u64(left, RV_CONN_SEND_BYTES);

		if (!left)
			continue;
		if (*n == RV_CONN_IOVS || *bytes >= RV_CONN_SEND_BYTES)
			return false;
		c->iov[(*n)++] = (struct iovec){(uint8_t *)t->piece[i].iov_base + off, len};
		*bytes += len;
		if (len < left)
			return false;
	}
	return true;
}

/* Gather from the queue's head; a frame with a descriptor goes first in a send of its own. */
static unsigned gather(struct rv_conn *c)
{
	unsigned n = 0;
	size_t bytes = 0;
	struct rv_list *it;

	c->msg = (struct msghdr){.msg_iov = c->iov};
	RV_LIST_EACH(it, &c->tx)
	{
		struct rv_tx *t = RV_LIST_ENTRY(it, struct rv_tx, link);

		if (n + 2 > RV_CONN_IOVS || bytes >= RV_CONN_SEND_BYTES)
			break;
		if (t->fd >= 0 && !t->head_off) {
			struct cmsghdr *cm = (struct cmsghdr *)(void *)c->control;

			if (n)
				break;
			c->msg.msg_control = c->control;
			c->msg.msg_controllen = CMSG_LEN(sizeof(int));
			cm->cmsg_len = CMSG_LEN(sizeof(int));
			cm->cmsg_level = SOL_SOCKET;
			cm->cmsg_type = SCM_RIGHTS;
			memcpy(CMSG_DATA(cm), &t->fd, sizeof(int));
		}
		if (t->head_off < t->head_len) {
			c->iov[n++] =
				(struct iovec){t->head + t->head_off, t->head_len - t->head_off};
			bytes += t->head_len - t->head_off;
		}
		if (!gather_payload(c, t, &n, &bytes))
			break;
		if (c->msg.msg_control)
			break;
	}
	c->msg.msg_iovlen = n;
	return n;
}

static size_t gathered(const struct rv_conn *c)
{
	size_t n = 0;

	for (size_t i = 0; i < c->msg.msg_iovlen; i++)
		n += c->iov[i].iov_len;
	return n;
}

static bool sends(const struct rv_conn *c)
{
	return !(c->tx_op.pending || c->closing || c->connecting || rv_list_empty(&c->tx));
}

static void arm_tx(struct rv_conn *c)
{
	if (sends(c))
		rv_uring_later(c->ring, &c->tx_later);
}

static void account(struct rv_conn *c, size_t n)
{
	c->tx_queued -= n;
	while (n) {
		struct rv_tx *t = RV_LIST_ENTRY(c->tx.next, struct rv_tx, link);
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		size_t h = rv_min_u64(n, t->head_len - t->head_off), p;

		t->head_off += h;
		n -= h;
		p = rv_min_u64(n, t->payload_len - t->payload_off);
		t->payload_off += p;
		t->piece_off += p;
		n -= p;
		if (t->head_off < t->head_len || t->payload_off < t->payload_len)
			return;
		rv_list_del(&t->link);
		tx_free(c, t, 0);
	}
}

/* What is queued goes nowhere; what a sent() sends waits its turn. */
static void drop_queued(struct rv_conn *c, int rc)
{
	struct rv_list dropped, *it;

	rv_list_init(&dropped);
	rv_list_splice(&dropped, &c->tx);
	c->tx_queued = 0;
	while ((it = rv_list_pop(&dropped)))
		tx_free(c, RV_LIST_ENTRY(it, struct rv_tx, link), rc);
}

/*
 * What a send took. A peer that takes no more has closed, but what it sent before may still be unread: that is read to
 * its end, which closes the connection.
 *
 * @param res  as in a CQE
 * @return false: the connection closes
 */
static bool sent(struct rv_conn *c, int res)
{
	if (res == -EPIPE || res == -ECONNRESET) {
		c->tx_was_full |= !c->unheard; /* who waits for room need not */
		c->unheard = true;
		drop_queued(c, -ECONNRESET);
	} else if (res < 0 && res != -EAGAIN && res != -EINTR) {
		rv_conn_close(c, -ECONNRESET);
	} else {
		account(c, res < 0 ? 0 : (size_t)res);
	}
	if (!c->closing && c->finishing && rv_list_empty(&c->tx))
		rv_conn_close(c, c->close_rc);
	if (c->closing)
		return false;
	if (c->tx_was_full && c->tx_queued < TX_FULL / 2) {
		c->tx_was_full = false;
		if (c->ops->drained)
			c->ops->drained(c);
	}
	return !c->closing;
}

static void tx_done(struct rv_op *op, int res, uint32_t flags)
{
	struct rv_conn *c = RV_CONTAINER(op, struct rv_conn, tx_op);

	(void)flags;
	if (c->closing)
		finish_close(c);
	else if (sent(c, res))
		arm_tx(c);
}

static ssize_t send_gathered(const struct rv_conn *c)
{
	if (c->msg.msg_iovlen == 1 && !c->msg.msg_control)
		return send(c->fd, c->iov[0].iov_base, c->iov[0].iov_len,
			    MSG_NOSIGNAL | MSG_DONTWAIT);
	return sendmsg(c->fd, &c->msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* As long as the peer takes all of it, and others have their turn. @return whether there is more, gathered */
static bool send_by_hand(struct rv_conn *c)
{
	bool all = true;
	size_t bytes = 0;

	for (unsigned i = 0; i < BY_HAND && all && bytes < RV_CONN_SEND_BYTES; i++) {
		ssize_t want = (ssize_t)gathered(c);
		ssize_t n = send_gathered(c);

		if (n > 0) {
			c->tx_ns = c->reactor->now_ns;
			bytes += (size_t)n;
		}
		all = n == want;
		if (!sent(c, n < 0 ? -errno : (int)n) || !sends(c) || !gather(c))
			return false;
	}
	return true;
}

/* While the peer takes them sends are made by hand. */
static bool prepare_tx(struct rv_uring_later *l, bool must)
{
	struct rv_conn *c = RV_CONTAINER(l, struct rv_conn, tx_later);
	struct io_uring_sqe *sqe;

	if (!sends(c))
		return false;
	if (c->unheard) {
		sent(c, -EPIPE);
		return false;
	}
	if (!gather(c))
		return false;
	if (c->ring->look_ns) {
		if (!send_by_hand(c))
			return false;
		if (!must && c->reactor->now_ns - c->tx_ns < c->ring->look_ns)
			return true;
	}
	sqe = rv_uring_sqe(c->ring);
	if (c->msg.msg_iovlen == 1 && !c->msg.msg_control)
		io_uring_prep_send(sqe, c->fd, c->iov[0].iov_base, c->iov[0].iov_len,
				   MSG_NOSIGNAL | MSG_WAITALL);
	else
		io_uring_prep_sendmsg(sqe, c->fd, &c->msg, MSG_NOSIGNAL | MSG_WAITALL);
	rv_uring_bind(c->ring, sqe, &c->tx_op);
	return false;
}

/* Receiving. */

/* @param buf  NULL: one that the ring provides */
static void prepare_msg(struct rv_conn *c, uint8_t *buf)
{
	c->rx_iov = (struct iovec){buf, RV_URING_BUF_BYTES};
	c->rx_msg = (struct msghdr){
		.msg_iov = &c->rx_iov,
		.msg_iovlen = 1,
		.msg_control = c->rx_control,
		.msg_controllen = sizeof(c->rx_control),
	};
}

static void forget_fd(struct rv_conn *c)
{
	if (c->rx_fd >= 0)
		close(c->rx_fd);
	c->rx_fd = -1;
}

int rv_conn_take_fd(struct rv_conn *c)
{
	int fd = c->rx_fd;

	c->rx_fd = -1;
	return fd;
}

/* One is kept, the first; rx_control has room for a second (alignment), and the kernel drops what is beyond. */
static void take_fds(struct rv_conn *c)
{
	struct cmsghdr *cm = CMSG_FIRSTHDR(&c->rx_msg);
	size_t nr = 0;
	int fd;

	if (cm && cm->cmsg_level == SOL_SOCKET && cm->cmsg_type == SCM_RIGHTS)
		nr = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(fd);
	if (nr)
		forget_fd(c);
	for (size_t i = 0; i < nr; i++) {
		memcpy(&fd, CMSG_DATA(cm) + i * sizeof(fd), sizeof(fd));
		if (i == 0)
			c->rx_fd = fd;
		else
			close(fd);
	}
	c->rx_msg.msg_controllen = 0;
}

static bool reads(const struct rv_conn *c)
{
	return !(c->rx_op.pending || c->closing || c->finishing || c->connecting || c->paused);
}

static void arm_rx(struct rv_conn *c)
{
	if (reads(c))
		rv_uring_later(c->ring, &c->rx_later);
}

/* @param[out] left  bytes of the payload */
static bool goes_to_its_place(const struct rv_conn *c, size_t *left)
{
	*left = c->pre.payload_len - c->got;
	return c->rx_state == RV_RX_PAYLOAD && c->placed && *left >= DIRECT_MIN;
}

static bool prepare_rx(struct rv_uring_later *l, bool must)
{
	struct rv_conn *c = RV_CONTAINER(l, struct rv_conn, rx_later);
	struct io_uring_sqe *sqe;
	size_t left;

	if (!reads(c))
		return false;
	if (!must && c->rx_ns && c->reactor->now_ns - c->rx_ns < c->ring->look_ns)
		return true;
	sqe = rv_uring_sqe(c->ring);
	c->rx_direct = goes_to_its_place(c, &left);
	if (c->rx_direct) {
		io_uring_prep_recv(sqe, c->fd, c->payload + c->got, left, MSG_WAITALL);
	} else {
		if (c->ops->fds) {
			prepare_msg(c, NULL);
			io_uring_prep_recvmsg(sqe, c->fd, &c->rx_msg, MSG_CMSG_CLOEXEC);
		} else {
			io_uring_prep_recv(sqe, c->fd, NULL, RV_URING_BUF_BYTES, 0);
		}
		sqe->flags |= IOSQE_BUFFER_SELECT;
		sqe->buf_group = RV_URING_GROUP;
	}
	if (c->rx_dry)
		sqe->ioprio |= IORING_RECVSEND_POLL_FIRST;
	rv_uring_bind(c->ring, sqe, &c->rx_op);
	return false;
}

static void reset_frame(struct rv_conn *c)
{
	if (!c->placed)
		free(c->payload);
	if (c->header != c->head_buf)
		free(c->header);
	c->header = c->head_buf;
	c->header_cap = sizeof(c->head_buf);
	c->payload = NULL;
	c->payload_cap = 0;
	c->placed = false;
	c->discard = false;
	c->got = 0;
	c->rx_state = RV_RX_PREAMBLE;
}

/* Room for @want more bytes of a part of @total, of which c->got are there. */
static int make_room(uint8_t **buf, size_t *cap, uint8_t *inline_buf, size_t got, size_t want,
		     size_t total)
{
	size_t need = got + want, bigger;
	uint8_t *p;

	if (need <= *cap)
		return 0;
	bigger = rv_min_u64(rv_max_u64(rv_max_u64(*cap * 2, GROW_FIRST), need), total);
	p = realloc(*buf == inline_buf ? NULL : *buf, bigger);
	if (!p)
		return -ENOMEM;
	if (*buf == inline_buf && got)
		/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): nothing was got into no buffer */
		memcpy(p, inline_buf, got);
	*buf = p;
	*cap = bigger;
	return 0;
}

static void header_complete(struct rv_conn *c)
{
	c->rx_state = RV_RX_PAYLOAD;
	c->got = 0;
	if (!c->pre.payload_len || !c->ops->place)
		return;
	c->payload = c->ops->place(c, &c->pre, c->header);
	c->placed = c->payload != NULL;
}

static void frame_complete(struct rv_conn *c)
{
	c->spoken = true;
	c->rx_frames++;
	if (!c->discard)
		c->ops->frame(c, &c->pre, c->header, c->payload, c->placed);
	if (!c->closing)
		reset_frame(c);
}

/* A whole frame inside the buffer needs no copy at all. @return bytes used, 0: not whole, or it has a place */
static size_t feed_whole(struct rv_conn *c, const uint8_t *p, size_t n)
{
	size_t total;
	void *place;

	if (c->rx_state != RV_RX_PREAMBLE || c->got || n < RV_FRAME_PREAMBLE)
		return 0;
	if (c->ops->decode(p, &c->pre)) {
		rv_conn_close(c, -EPROTO);
		return n;
	}
	total = RV_FRAME_PREAMBLE + (size_t)c->pre.header_len + c->pre.payload_len;
	if (n < total)
		return 0;
	p += RV_FRAME_PREAMBLE;
	place = c->pre.payload_len && c->ops->place ? c->ops->place(c, &c->pre, p) : NULL;
	if (c->closing)
		return total;
	c->spoken = true;
	c->rx_frames++;
	if (place)
		memcpy(place, p + c->pre.header_len, c->pre.payload_len);
	c->ops->frame(c, &c->pre, p, place ? place : p + c->pre.header_len, place != NULL);
	if (!c->closing)
		reset_frame(c);
	return total;
}

static size_t feed_part(struct rv_conn *c, const uint8_t *p, size_t n)
{
	size_t take;

	switch (c->rx_state) {
	case RV_RX_PREAMBLE:
		take = rv_min_u64(n, RV_FRAME_PREAMBLE - c->got);
		memcpy(c->pre_buf + c->got, p, take);
		c->got += take;
		if (c->got < RV_FRAME_PREAMBLE)
			return take;
		if (c->ops->decode(c->pre_buf, &c->pre)) {
			rv_conn_close(c, -EPROTO);
			return take;
		}
		c->rx_state = RV_RX_HEADER;
		c->got = 0;
		if (!c->pre.header_len)
			header_complete(c);
		break;
	case RV_RX_HEADER:
		take = rv_min_u64(n, c->pre.header_len - c->got);
		if (make_room(&c->header, &c->header_cap, c->head_buf, c->got, take,
			      c->pre.header_len)) {
			rv_conn_close(c, -ENOMEM);
			return take;
		}
		memcpy(c->header + c->got, p, take);
		c->got += take;
		if (c->got == c->pre.header_len)
			header_complete(c);
		break;
	case RV_RX_PAYLOAD:
	default:
		take = rv_min_u64(n, c->pre.payload_len - c->got);
		if (!c->placed && !c->discard &&
		    make_room(&c->payload, &c->payload_cap, NULL, c->got, take,
			      c->pre.payload_len)) {
			rv_conn_close(c, -ENOMEM);
			return take;
		}
		if (take && !c->discard)
			memcpy(c->payload + c->got, p, take);
		c->got += take;
		break;
	}
	if (!c->closing && c->rx_state == RV_RX_PAYLOAD && c->got == c->pre.payload_len)
		frame_complete(c);
	return take;
}

static void feed(struct rv_conn *c, const uint8_t *p, size_t n)
{
	while (n && !c->closing && !c->finishing) {
		size_t used = feed_whole(c, p, n);

		if (!used)
			used = feed_part(c, p, n);
		p += used;
		n -= used;
	}
}

static void end_displace(struct rv_conn *c)
{
	if (!c->displacing)
		return;
	c->displacing = false;
	c->payload = NULL;
	c->placed = false;
	c->ops->displaced(c);
}

/* What a receive brought: bytes in their place, or in a buffer. @res as in a CQE */
static void received(struct rv_conn *c, int res, const uint8_t *buf)
{
	if (res > 0) {
		c->rx_ns = c->reactor->now_ns;
		c->rx_bytes += (size_t)res;
		if (buf)
			feed(c, buf, (size_t)res);
		else
			c->got += (size_t)res;
	}
	end_displace(c);
	if (c->closing)
		return;
	if (res == 0 ||
	    (res < 0 && res != -ECANCELED && res != -ENOBUFS && res != -EINTR && res != -EAGAIN))
		rv_conn_close(c, -ECONNRESET);
	else if (!buf && c->rx_state == RV_RX_PAYLOAD && c->got == c->pre.payload_len)
		frame_complete(c);
	if (!c->closing)
		expect_more(c);
}

static void rx_done(struct rv_op *op, int res, uint32_t flags)
{
	struct rv_conn *c = RV_CONTAINER(op, struct rv_conn, rx_op);
	bool buffered = flags & IORING_CQE_F_BUFFER;

	c->rx_dry = res > 0 && !(flags & IORING_CQE_F_SOCK_NONEMPTY);
	if (res > 0 && c->ops->fds && !c->rx_direct)
		take_fds(c);
	c->rx_direct = false;
	received(c, res, buffered ? rv_uring_buf(c->ring, flags) : NULL);
	if (buffered)
		rv_uring_buf_return(c->ring, flags);
	if (c->closing)
		finish_close(c);
	else
		arm_rx(c);
}

/* @param[out] direct  it goes to its place, not into @buf @return as recv() */
static ssize_t receive(struct rv_conn *c, uint8_t buf[RV_URING_BUF_BYTES], bool *direct)
{
	size_t left;
	ssize_t n;

	*direct = goes_to_its_place(c, &left);
	if (*direct)
		return recv(c->fd, c->payload + c->got, left, MSG_DONTWAIT);
	if (!c->ops->fds)
		return recv(c->fd, buf, RV_URING_BUF_BYTES, MSG_DONTWAIT);
	prepare_msg(c, buf);
	n = recvmsg(c->fd, &c->rx_msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n > 0)
		take_fds(c);
	return n;
}

/* The same by hand, a few times while buffers come back full. */
static bool look_rx(struct rv_uring_later *l)
{
	struct rv_conn *c = RV_CONTAINER(l, struct rv_conn, rx_later);
	uint8_t buf[RV_URING_BUF_BYTES];
	bool found = false, direct, more = true;

	for (unsigned i = 0; i < BY_HAND && more && reads(c); i++) {
		ssize_t n = receive(c, buf, &direct);

		c->rx_dry = n < 0 && (errno == EAGAIN || errno == EINTR);
		if (c->rx_dry)
			break;
		found = true;
		more = n == sizeof(buf) && !direct;
		received(c, n < 0 ? -errno : (int)n, direct ? NULL : buf);
	}
	return found;
}

bool rv_conn_displace(struct rv_conn *c)
{
	if (c->rx_state != RV_RX_PAYLOAD || !c->placed)
		return true;
	c->discard = true;
	if (c->rx_op.pending && c->rx_direct) {
		c->displacing = true;
		rv_uring_cancel(c->ring, &c->rx_op);
		return false;
	}
	c->payload = NULL;
	c->placed = false;
	return true;
}

void rv_conn_pause(struct rv_conn *c, bool on)
{
	c->paused = on;
	if (!on)
		arm_rx(c);
}

/* Closing. */

void rv_conn_hang_up(struct rv_conn *c)
{
	if (!c->closing)
		shutdown(c->fd, SHUT_RDWR);
}

void rv_conn_finish(struct rv_conn *c, int rc)
{
	if (c->closing || c->finishing)
		return;
	if (rv_list_empty(&c->tx)) {
		rv_conn_close(c, rc);
		return;
	}
	c->finishing = true;
	c->close_rc = rc;
}

void rv_conn_close(struct rv_conn *c, int rc)
{
	if (c->closing)
		return;
	c->closing = true;
	c->close_rc = rc;
	rv_task_cancel(c->reactor, &c->timeout);
	rv_list_del(&c->rx_later.link);
	rv_list_del(&c->tx_later.link);
	shutdown(c->fd, SHUT_RDWR);
	rv_uring_cancel(c->ring, &c->rx_op);
	rv_uring_cancel(c->ring, &c->tx_op);
	if (!c->rx_op.pending && !c->tx_op.pending) {
		/* Nothing will complete and call us back: a no-op does, so that closed() is never nested. */
		struct io_uring_sqe *sqe = rv_uring_sqe(c->ring);

		io_uring_prep_nop(sqe);
		c->rx_direct = false;
		rv_uring_bind(c->ring, sqe, &c->rx_op);
	}
}

static void finish_close(struct rv_conn *c)
{
	if (c->rx_op.pending || c->tx_op.pending)
		return;
	end_displace(c);
	reset_frame(c);
	forget_fd(c);
	close(c->fd);
	c->fd = -1;
	drop_queued(c, c->close_rc ? c->close_rc : -ESHUTDOWN);
	if (!c->reported && c->ops->connected && c->addr.ss_family) {
		c->reported = true;
		c->ops->connected(c, c->close_rc);
	}
	c->ops->closed(c, c->close_rc);
}
