/*
 * carrier.h - what moves whole frames between nodes: type, header, payload, as bytes.
 *
 *   dial() --> connected(link, 0) --> send() ... frame() ... --> closed(link)
 *         '--> connected(link, -EHOSTUNREACH) --> closed(link)
 *   accepted: opened(link) --> the same
 *
 * A link is one connection. Nothing on it says who the peer is. Implemented by control/uring (TCP) and
 * ucx/am, and by a script in tests.
 *
 * A carrier of datagrams has no connections to accept, and every frame arrives on one link of its own, `common`,
 * on which nothing can be sent. A link to a peer is made from what the fabric knows of the peer:
 *
 *   reach() --> connected(link, 0) --> send() ... --> closed(link)     and frames on `common`, whoever sent them
 *
 * @thread the net core's, all of it
 */
#ifndef RV_DATAPLANE_INTERFACES_CARRIER_H
#define RV_DATAPLANE_INTERFACES_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct rv_link;
struct rv_carrier;

/** A frame that arrived; everything is borrowed for the call. */
struct rv_frame {
	unsigned type;
	const uint8_t *header;
	size_t header_len;
	const uint8_t *payload; /* where place() said, if `placed` */
	size_t payload_len;
	bool placed;
};

/** Called when the carrier no longer reads the bytes of a send: @rc 0 once they are sent. Exactly once. */
typedef void rv_sent_fn(void *ctx, int rc);

struct rv_link_ops {
	/**
	 * Send one frame. The header is copied. The payload is copied if @sent is NULL, else borrowed until
	 * @sent, which is never called from inside send().
	 *
	 * @return 0; -ESHUTDOWN (closing), -ECONNRESET (broken, closed() follows), -ENOMEM, -EMSGSIZE (longer
	 *         than this link carries): nothing was taken, @sent is not called
	 * @cost   no system call: the bytes leave in the pass's one submission
	 */
	int (*send)(struct rv_link *l, unsigned type, const void *header, size_t header_len,
		    const void *payload, size_t payload_len, rv_sent_fn *sent, void *ctx);

	/**
	 * Send one frame whose payload lies in pieces, one behind the other. The header is copied; the pieces, and what
	 * says where they are, are borrowed until @sent, which is never NULL. As send() otherwise.
	 * Streams only.
	 */
	int (*send_pieces)(struct rv_link *l, unsigned type, const void *header, size_t header_len,
			   const struct iovec *piece, size_t nr, rv_sent_fn *sent, void *ctx);

	/**
	 * The payload that is arriving must not be written to its place any more.
	 * @return true: it is not written from now on; false: displaced() says when
	 */
	bool (*displace)(struct rv_link *l);

	/** Bytes taken by send() and not sent. */
	size_t (*queued)(const struct rv_link *l);

	/** Stop (and go on) reading: the other side is to wait. Without effect on datagrams: the user answers "busy". */
	void (*pause)(struct rv_link *l, bool on);

	/** Close; closed() follows, never from inside. */
	void (*close)(struct rv_link *l, int rc);

	/** The other end's address, for people. */
	const char *(*name)(const struct rv_link *l);
};

struct rv_link {
	const struct rv_link_ops *ops;
	void *user;  /* the messenger's */
	bool dialed; /* by us */
	bool datagram; /* frames for us arrive on the carrier's common link; one frame is lost or whole */
	bool is_local; /* both ends on this host */
};

/** What a carrier tells its user. */
struct rv_carrier_events {
	/** A connection came in. @return false to refuse it */
	bool (*opened)(void *user, struct rv_link *l);
	void (*connected)(void *user, struct rv_link *l, int rc);

	/** A header arrived: where shall its payload go? NULL: into the carrier's own buffer. Else room for payload_len. */
	void *(*place)(void *user, struct rv_link *l, const struct rv_frame *f);
	void (*frame)(void *user, struct rv_link *l, const struct rv_frame *f);
	void (*displaced)(void *user, struct rv_link *l);

	/** Room again after send() queued much, or because the other end takes no more. */
	void (*drained)(void *user, struct rv_link *l);

	/**
	 * Neither side has used the way to @worker for the time that is set. It closes, or stays, when retire() or
	 * keep() says so; what is sent meanwhile makes itself another. NULL: no way is ever closed for that.
	 */
	void (*idle)(void *user, struct rv_carrier *c, uint64_t worker);
	/** retire() with a @ctx is done. @rc 0, or -EBUSY: in use */
	void (*retired)(void *user, void *ctx, int rc);

	/** Over; all sent callbacks were made, nothing is written anywhere. The link is freed after this. */
	void (*closed)(void *user, struct rv_link *l, int rc);
};

/** A carrier of streams has dial(), one of datagrams has reach(). */
struct rv_carrier_ops {
	/** @param host an IP literal @return the link, or NULL with errno: no memory, or no descriptor (EMFILE) */
	struct rv_link *(*dial)(struct rv_carrier *c, const char *host, uint16_t port,
				void *link_user);

	/**
	 * A link to a peer whose address the fabric was given before. Frames may be sent at once; they leave, or
	 * fail, when the way there is made.
	 *
	 * @param worker     its WorkerId
	 * @param as         who we say we are in each frame; 0: what this carrier was set up with
	 * @param frame_max  longest header and payload together that it takes
	 * @return the link, or NULL: no memory, or stopped
	 */
	struct rv_link *(*reach)(struct rv_carrier *c, uint64_t worker, uint64_t as,
				 uint32_t frame_max, void *link_user);

	/**
	 * Close the way to a peer: the one idle() told of where the peer @agreed, else any, if nothing uses it now.
	 * @param ctx  retired() tells it the outcome; NULL: nobody asks
	 * @return 0, or -ENOMEM
	 */
	int (*retire)(struct rv_carrier *c, uint64_t worker, bool agreed, void *ctx);
	/** It stays: the peer cannot be told, or does not agree. */
	void (*keep)(struct rv_carrier *c, uint64_t worker);
};

struct rv_carrier {
	const struct rv_carrier_ops *ops;
};

#endif
