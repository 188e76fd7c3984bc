/*
 * am.h - frames to and from peers as UCX active messages: the carrier of datagrams.
 *
 *   net core                                     polling core of the fabric's reactor 0
 *     reach, send, close --notes--> [down] --->    endpoint of the peer, the one its GETs use
 *     events             <--notes-- [up]   <---    receive callbacks, which copy and queue
 *
 * The id of an active message is RV_AM_ID_BASE and the frame's type; its header is the frame's, with blob version 2
 * the sender's incarnation (u64le) before it:
 *
 *   version 2:  | incarnation 8 | frame header | payload |      version 1:  | frame header | payload |
 *
 * Everything is sent eagerly, Messages and Pings with the REPLY flag. A ping is answered, and a Message that the
 * user refuses echoed, from inside the receive callback, on the endpoint UCX lends for that. A message in
 * rendezvous mode is refused.
 *
 * Notes cross in batches: one cell each way, which takes along whatever is queued. With one reactor in both roles
 * a frame goes from the worker to its handler by a direct call, in the pass it arrived in; what is sent still takes
 * the cell, so that it comes after the messages by which the fabric learns of a peer. Frames that the net core has
 * not taken are bounded: beyond RV_AM_BACKLOG the worker is not progressed, and UCX makes the senders wait.
 */
#ifndef RV_UCX_AM_H
#define RV_UCX_AM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/interfaces/carrier.h"
#include "dataplane/interfaces/fabric.h"
#include "dataplane/lcore/reactor.h"

#define RV_AM_ID_BASE   0x5645u
/** Bytes of frames on their way to the net core. */
#define RV_AM_BACKLOG   (8u << 20)
/** Bytes queued to one peer beyond which nothing more is taken. */
#define RV_AM_QUEUE     (32u << 20)
/** Longest frame taken from a peer: what any node may publish as its limit. */
#define RV_AM_FRAME_MAX (16u << 20)

struct rv_ucx_am;

struct rv_ucx_am_conf {
	struct rv_reactor *net;     /* where the carrier's user lives */
	struct rv_reactor *polling; /* which opens the fabric's reactor @reactor; may be the same */
	unsigned reactor;           /* 0 has the frames; the others only ask about idle endpoints */
	const struct rv_carrier_events *events;
	void *user;
	unsigned blob_version; /* 1 or 2 */
	uint64_t incarnation;  /* of our blob; never 0 */
	uint32_t eager_max;    /* longest header and payload that we send */
	/** Is this Message to be answered with its own header, as "shutting down"? @thread the polling core's */
	bool (*refuses)(void *user, const uint8_t *header, size_t len);
};

/**
 * Make the carrier of one polling core; the fabric's reactor takes it along when it is opened.
 *
 * @return 0, or -ENOMEM
 * @thread init   @owns the caller destroys *out, after the fabric's reactors were closed
 */
int rv_ucx_am_create(struct rv_fabric *f, const struct rv_ucx_am_conf *conf,
		     struct rv_ucx_am **out);
void rv_ucx_am_destroy(struct rv_ucx_am *am);

struct rv_carrier *rv_ucx_am_carrier(struct rv_ucx_am *am);

/** Tell the user of the common link. @return 0, -ENOMEM or -EAGAIN (no cell). @thread the net core's, before its first pass */
int rv_ucx_am_start(struct rv_ucx_am *am);

/** Bytes taken by send() and not sent: what a shutdown flushes first. @thread the net core's */
size_t rv_ucx_am_queued(const struct rv_ucx_am *am);

/** Close every link, then take no more frames. @return what is left; asked again until it is 0. @thread the net core's */
unsigned rv_ucx_am_close_all(struct rv_ucx_am *am);

/** Frames that were no frames, or came when there was no memory. @thread any */
uint64_t rv_ucx_am_dropped(const struct rv_ucx_am *am);

#endif
