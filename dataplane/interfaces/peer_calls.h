/*
 * peer_calls.h - typed calls to another node, as the engine needs them.
 *
 * A call is the body of a message cell: the engine fills in the request, hands the cell to start(), and
 * finds the outcome in the same body when the cell comes back to its done(). Implemented by
 * control/messenger; by a script in tests.
 */
#ifndef RV_DATAPLANE_INTERFACES_PEER_CALLS_H
#define RV_DATAPLANE_INTERFACES_PEER_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/handle.h"
#include "dataplane/interfaces/fabric.h"

/** Bits of an offer, and what the engine offers. The same values as in the codec of control/json. */
#define RV_PEER_OFFER_UCX   1u
#define RV_PEER_OFFER_VERBS 2u

enum rv_peer_op {
	RV_PEER_ACQUIRE,
	RV_PEER_PULL,  /* a whole chunked transfer into @dst */
	RV_PEER_RENEW, /* sync where `sync` is set: the answer proves the lease */
	RV_PEER_DETACH,
	RV_PEER_RELEASE,
	RV_PEER_METADATA,
	RV_PEER_REF,
	RV_PEER_MANY, /* short payloads of many slots of one owner in one answer; no lease is left of any */
};

enum rv_peer_answer {
	RV_ANSWER_NONE,
	RV_ANSWER_READY,
	RV_ANSWER_RDMA,
	RV_ANSWER_BYTES, /* the payload itself came along */
};

struct rv_port;
struct rv_cell;
struct rv_peer_calls;

/** Slots of one RV_PEER_MANY. */
#define RV_PEER_MANY_MAX 128u

/** What became of one of them. */
struct rv_peer_one {
	uint64_t local; /* request: its slot */
	int rc; /* 0: its bytes came along; -EAGAIN: it is to be asked for alone; others: an error of its own */
	uint32_t off, len; /* of its bytes in the answer; nothing says that two do not overlap */
	bool has_xxh3;
	uint64_t xxh3;
};

struct rv_peer_many {
	uint32_t nr;
	uint32_t each; /* longest payload that is wanted along */
	struct rv_peer_one one[RV_PEER_MANY_MAX];
};

#define RV_PEER_DESC_MAX (29u + RV_FABRIC_KEY_MAX)
#define RV_PEER_TEXT     160

struct rv_peer_call {
	/* request */
	uint64_t tag; /* the caller's own */
	enum rv_peer_op op;
	struct rv_handle handle; /* handle.worker names the peer */
	uint64_t deadline_ns; /* -ETIMEDOUT then; a PULL's restarts with each chunk from @idle_ns */
	uint64_t idle_ns;     /* PULL: give up when no chunk came for so long */
	uint64_t lease_id;    /* RENEW, DETACH, RELEASE */
	uint64_t lease_ms;    /* ACQUIRE: `_rv_lease_ms`; 0: none */
	unsigned offer;       /* ACQUIRE: RV_PEER_OFFER_* */
	uint32_t offer_qp;    /* ACQUIRE: the queue pair that would read by verbs; 0: not said */
	/* ACQUIRE: where the owner would have answered with chunks, a payload of at most so many bytes may come with
	 * its answer, to @dst; 0: none. Owners that do not know how answer as ever. */
	uint32_t bytes_max;
	bool ends; /* ACQUIRE: a lease is of no use once the bytes have come with the answer: none is granted */
	struct rv_peer_many *
		many; /* MANY: the caller's, filled in until the cell comes back; into @dst, @bytes_max long */
	bool sync;            /* RENEW, DETACH, RELEASE: as a sync call, answered by an ack */
	uint64_t transfer_id; /* PULL: these five as the owner stated them, checked by the engine */
	uint64_t total_len;
	uint32_t chunk_size;
	uint32_t chunk_count;
	uint8_t *
		dst; /* PULL, MANY, and ACQUIRE with bytes_max: written until the cell comes back, and never after */
	struct rv_peer_calls *via; /* filled in by start() */

	/* outcome */
	/* 0, -ENOENT, -EREMOTEIO, -EHOSTUNREACH, -ECONNRESET, -ETIMEDOUT, -EPROTO, -EAGAIN; MANY: -ENOTSUP, the owner does
	 * not know how */
	int rc;
	uint64_t sent_ns;        /* just before the request was handed to the carrier */
	uint64_t replied_ns;     /* when the answer had arrived */
	char text[RV_PEER_TEXT]; /* the peer's or our words on a failure */
	bool has_xxh3;           /* ACQUIRE: the owner says what the content hashes to */
	uint64_t xxh3;
	enum rv_peer_answer answer; /* ACQUIRE */
	struct {
		uint64_t lease_id, transfer_id,
			total_len; /* BYTES: the first (0: no lease) and the last */
		uint32_t chunk_size, chunk_count;
	} ready;
	struct {
		uint64_t lease_id, lease_timeout_ms;
		size_t desc_len;
		uint8_t desc[RV_PEER_DESC_MAX];
	} rdma;
	struct {
		uint64_t total_len, refcount;
		bool pinned;
	} meta;
};

struct rv_peer_calls_ops {
	/**
	 * Carry out the struct rv_peer_call in @cell->body; @cell returns to @from through its done().
	 * @cell->run is the implementation's.
	 *
	 * @thread any that owns a port   @cost O(1)
	 */
	void (*start)(struct rv_peer_calls *pc, struct rv_port *from, struct rv_cell *cell);

	/**
	 * Give up a PULL that is under way: its cell comes back with -ETIMEDOUT as soon as nothing can be
	 * written to its destination any more. @thread the one that started it
	 * @return 0, or -EAGAIN: no cell, ask again
	 */
	int (*cancel)(struct rv_peer_calls *pc, struct rv_port *from, struct rv_cell *cell);
};

struct rv_peer_calls {
	const struct rv_peer_calls_ops *ops;
};

#endif
