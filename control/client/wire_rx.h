/*
 * wire_rx.h - replies out of a stream of bytes and descriptors.
 *
 *   socket --recvmsg--> buffer --whole frame--> on_reply
 *                 '---> payload in its place, once its length is known
 *
 * A descriptor arrives no later than the first byte of the frame that it belongs to, and frames
 * are in order: so the next frame that says it has one gets the oldest.
 *
 * @thread one at a time
 */
#ifndef RV_CONTROL_CLIENT_WIRE_RX_H
#define RV_CONTROL_CLIENT_WIRE_RX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/local/local_proto.h"

#define RV_RX_FDS 32
#define RV_RX_BUF 16384

/** What has arrived. A zeroed one is empty. */
struct rv_rx {
	uint8_t buf[RV_RX_BUF];
	size_t begin, end; /* bytes of buf that were not used yet */
	bool in_payload;
	bool dry; /* the last read found nothing */
	struct rv_local_preamble pre;
	struct rv_local_rep rep;
	char *payload;
	size_t payload_got;
	int fd[RV_RX_FDS]; /* descriptors that came, in order */
	unsigned fd_nr;
};

/** A whole reply. Who wants to keep payload or descriptor takes it out (NULL, -1). */
struct rv_rx_frame {
	uint8_t op;
	struct rv_local_rep rep;
	char *payload; /* terminated; NULL when empty */
	size_t payload_len;
	int fd; /* -1: none came along */
};

/** @return 0, or a negative errno: the stream cannot be trusted any more */
typedef int rv_rx_fn(void *user, struct rv_rx_frame *f);

/**
 * Read once, and hand over every frame that is complete.
 *
 * @param flags  of recvmsg(2): MSG_DONTWAIT or none
 * @return 0; -ENOTCONN: the other end has closed; -EPROTO; -EMFILE: no room for descriptors;
 *         -ENOMEM; or what @on_reply returned
 *
 * @cost one system call
 */
int rv_rx_read(struct rv_rx *rx, int fd, int flags, rv_rx_fn *on_reply, void *user);

/** Hand over one frame that is here in one piece, without a descriptor. @return -EPROTO, -ENOMEM, or what @on_reply returned */
int rv_rx_whole(const uint8_t *p, size_t len, rv_rx_fn *on_reply, void *user);

/** Free and close what was not handed over. */
void rv_rx_fini(struct rv_rx *rx);

#endif
