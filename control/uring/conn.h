/*
 * conn.h - a stream socket as a sequence of frames, both ways, without a copy where it matters.
 *
 *   preamble (11) | header (H) | payload (P)
 *
 * Small frames are read through shared buffers. A payload that has a place of its own is received there by
 * single-shot receives; taking the place away cancels the receive, awaits its end and discards the rest.
 * One send is under way at a time and gathers what is queued, up to RV_CONN_SEND_BYTES. Both are the ring's operations, or
 * plain calls that do not wait while the socket is busy (rv_uring.look_ns).
 *
 * A peer that takes no more has closed, as a rule. What is queued then, and what is sent later, goes nowhere (sent() says
 * -ECONNRESET), but what it sent before is still read: the connection closes at its end.
 *
 * Used for TCP and for the local UNIX socket; they differ in the preamble's version and limits.
 *
 * @thread owning reactor
 */
#ifndef RV_CONTROL_URING_CONN_H
#define RV_CONTROL_URING_CONN_H

#include <stdalign.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "control/frame/frame.h"
#include "control/uring/uring.h"
#include "dataplane/base/list.h"
#include "dataplane/lcore/reactor.h"

#define RV_CONN_SEND_BYTES (1u << 20)
#define RV_CONN_IOVS       128
#define RV_CONN_HEAD       640         /* preamble and header that need no memory of their own */
#define RV_CONN_PROGRESS   (64u << 10) /* bytes of a long frame that keep it alive: rv_conn_limit() */

struct rv_conn;

struct rv_conn_ops {
	/** Descriptors may come along with frames (UNIX sockets): rv_conn_take_fd(). */
	bool fds;
	/** Check a preamble. @return 0, or negative: the connection is closed */
	int (*decode)(const uint8_t p[RV_FRAME_PREAMBLE], struct rv_preamble *out);
	void (*encode)(uint8_t p[RV_FRAME_PREAMBLE], const struct rv_preamble *in);
	/** @return where the payload goes (room for pre->payload_len), or NULL. May be NULL itself. */
	void *(*place)(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header);
	/** A whole frame. @payload is borrowed for the call. */
	void (*frame)(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header,
		      const uint8_t *payload, bool placed);
	void (*connected)(struct rv_conn *c, int rc);
	void (*displaced)(struct rv_conn *c);
	/** Room again after much was queued, or because the peer takes no more (c->unheard). */
	void (*drained)(struct rv_conn *c);
	/** The last call; frees what embeds the connection. */
	void (*closed)(struct rv_conn *c, int rc);
};

struct rv_tx;

struct rv_conn {
	const struct rv_conn_ops *ops;
	struct rv_uring *ring;
	struct rv_reactor *reactor;
	int fd;
	bool connecting, closing, reported, paused, finishing;
	int close_rc;
	struct rv_task timeout; /* of a connect, then of what is to come in time */

	/* what is to come in time: rv_conn_limit() */
	bool spoken; /* a whole frame came */
	enum rv_conn_overdue { RV_CONN_IN_TIME, RV_CONN_SILENT, RV_CONN_STALLED } overdue;
	uint64_t first_ns, stall_ns; /* 0: no limit */
	uint64_t rx_bytes, rx_frames;
	uint64_t mark_bytes, mark_frames; /* when the timeout was set */

	/* receiving */
	struct rv_op rx_op;
	struct rv_uring_later rx_later;
	uint64_t rx_ns; /* something came; 0: never */
	bool rx_dry;    /* the last receive left nothing behind */
	bool rx_direct; /* rx_op writes into the place */
	enum { RV_RX_PREAMBLE, RV_RX_HEADER, RV_RX_PAYLOAD } rx_state;
	struct rv_preamble pre;
	uint8_t pre_buf[RV_FRAME_PREAMBLE];
	uint8_t *header;  /* head_buf or the heap's */
	uint8_t *payload; /* the place, or the heap's; NULL: discarded */
	size_t header_cap, payload_cap;
	size_t got; /* of the current part */
	bool placed, discard, displacing;
	uint8_t head_buf[256];
	int rx_fd; /* came along and was not taken yet; -1: none */
	struct msghdr rx_msg;
	struct iovec rx_iov;
	alignas(struct cmsghdr) char rx_control[CMSG_SPACE(sizeof(int))];

	/* sending */
	struct rv_op tx_op;
	struct rv_uring_later tx_later;
	uint64_t tx_ns;    /* the peer took something */
	struct rv_list tx; /* struct rv_tx */
	size_t tx_queued;
	bool tx_was_full;
	bool unheard; /* the peer takes no more; what it sent before is read to its end */
	struct msghdr msg;
	struct iovec iov[RV_CONN_IOVS];
	alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];

	struct sockaddr_storage addr; /* of a connect */
	struct rv_list link;          /* the user's */
};

/** Take over @fd (connected or accepted) and start reading. */
void rv_conn_open(struct rv_conn *c, const struct rv_conn_ops *ops, struct rv_uring *ring,
		  struct rv_reactor *reactor, int fd);

/** Start connecting @fd to @addr; ops->connected follows. */
void rv_conn_connect(struct rv_conn *c, const struct rv_conn_ops *ops, struct rv_uring *ring,
		     struct rv_reactor *reactor, int fd, const struct sockaddr *addr,
		     socklen_t addr_len, uint64_t timeout_ns);

/**
 * Close with -ETIMEDOUT, and c->overdue saying why, a connection on which too little comes. In each @stall_ns in which a
 * frame is under way it must end, or RV_CONN_PROGRESS bytes of it must come; with @first_ns the first one must begin and
 * end likewise from now on. Time in which the connection is paused does not count. Between frames it may rest for ever.
 * After other frames a stall is seen within twice @stall_ns.
 *
 * @param first_ns, stall_ns  RV_NEVER: without such a limit
 */
void rv_conn_limit(struct rv_conn *c, uint64_t first_ns, uint64_t stall_ns);

/**
 * Queue one frame.
 *
 * @param sent    NULL: the payload is copied; else it is borrowed until sent(ctx, rc)
 * @param fd      a descriptor to pass along (UNIX sockets), or -1; a duplicate is sent, @fd stays the caller's
 * @return 0, -ESHUTDOWN, -ENOMEM, or -EMFILE: there is no descriptor for the duplicate
 */
int rv_conn_send(struct rv_conn *c, unsigned type, const void *header, size_t header_len,
		 const void *payload, size_t payload_len, int fd, void (*sent)(void *ctx, int rc),
		 void *ctx);

/** The same of a payload in pieces. @piece and what it points to are borrowed until sent(ctx, rc), which is not NULL. */
int rv_conn_send_pieces(struct rv_conn *c, unsigned type, const void *header, size_t header_len,
			const struct iovec *piece, size_t nr, void (*sent)(void *ctx, int rc),
			void *ctx);

/**
 * The descriptor that came last and was not taken yet: the frame's whose bytes it came with, if its sender put
 * them into one send. @return -1: none @owns the caller closes it
 */
int rv_conn_take_fd(struct rv_conn *c);

/** See rv_link_ops.displace. */
bool rv_conn_displace(struct rv_conn *c);

void rv_conn_pause(struct rv_conn *c, bool on);

/** The other end is no more, whoever else holds its socket: what came is read to its end, which closes (-ECONNRESET). */
void rv_conn_hang_up(struct rv_conn *c);

/** Read no more, and close once what is queued is sent. */
void rv_conn_finish(struct rv_conn *c, int rc);

/** Close; ops->closed follows when no operation is left. */
void rv_conn_close(struct rv_conn *c, int rc);

#endif
