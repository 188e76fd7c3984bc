/*
 * wire.h - the bytes of ours that verbs peers exchange: private data, address, key. PROTOCOL.md describes them.
 *
 *   hello:    | "rvdV" | version 1 | 0 1 | reactor 2 | from 8 | to 8 |   LE; both ways, at connection set-up
 *   address:  | version 1 | family 1 (4, 6) | port 2 | ip 4 or 16 |
 *   key:      | version 1 | rkey 4 |
 *
 * @thread any (no state)   @cost O(1), no allocation
 */
#ifndef RV_VERBS_WIRE_H
#define RV_VERBS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/** Reactors a consumer may read with. */
#define RV_VERBS_REACTORS_MAX 256u

#define RV_VERBS_HELLO    24u
#define RV_VERBS_ADDR_MAX 20u
#define RV_VERBS_KEY      5u

/** Who sets up a queue pair, with whom. */
struct rv_verbs_hello {
	uint64_t from, to; /* WorkerIds */
	uint16_t reactor;  /* the consumer's */
};

void rv_verbs_hello_encode(uint8_t out[RV_VERBS_HELLO], const struct rv_verbs_hello *h);
/** rdma_cm pads private data with zeros: whatever is behind must be that. @return false: refused, *@out untouched */
bool rv_verbs_hello_decode(const void *buf, size_t len, struct rv_verbs_hello *out);

/** @return the bytes written */
size_t rv_verbs_addr_encode(uint8_t out[RV_VERBS_ADDR_MAX], const struct sockaddr_storage *sa);
/** @return false: refused, *@out untouched */
bool rv_verbs_addr_decode(const void *buf, size_t len, struct sockaddr_storage *out);

void rv_verbs_key_encode(uint8_t out[RV_VERBS_KEY], uint32_t rkey);
/** @return false: refused, *@rkey untouched */
bool rv_verbs_key_decode(const void *buf, size_t len, uint32_t *rkey);

/** Why a connection is refused: the one byte of private data that goes back. */
enum rv_verbs_refusal {
	RV_VERBS_REFUSE_HELLO = 1, /* not ours, or of another version */
	RV_VERBS_REFUSE_OWNER,     /* meant for another worker */
	RV_VERBS_REFUSE_UNKNOWN,   /* the consumer is not known here (yet) */
	RV_VERBS_REFUSE_ADDRESS,   /* tcp.allow */
	RV_VERBS_REFUSE_DEVICE,    /* came in by another device */
	RV_VERBS_REFUSE_RESOURCES,
	RV_VERBS_REFUSALS,
};

/** In words; of any byte a peer may send. */
const char *rv_verbs_refusal_name(unsigned r);

#endif
