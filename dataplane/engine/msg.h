/*
 * msg.h - every message an engine takes. Each is the body of a cell whose `run` is the function named with
 * it; the outcome is in the same body when the cell is back.
 *
 * `rc` is 0 or a negative errno; `cause` says why a slot that existed is over.
 */
#ifndef RV_DATAPLANE_ENGINE_MSG_H
#define RV_DATAPLANE_ENGINE_MSG_H

#include "dataplane/engine/engine.h"
#include "dataplane/engine/raw.h"

#define RV_MSG_TEXT 200

/** rv_engine_run_acquire: owner side of an acquire. */
struct rv_msg_acquire {
	struct rv_engine *engine;
	uint64_t local;  /* slot id */
	uint64_t worker; /* the consumer */
	bool has_offer;
	unsigned offer;          /* RV_PEER_OFFER_* named in it */
	uint32_t offer_qp;       /* the consumer's queue pair for verbs; 0: not said */
	uint64_t chunk_lease_ns; /* 0: none. The consumer asks for a deadline on a chunked lease */
	bool for_us;             /* a get within this node: no path is decided, no metric moves */
	uid_t uid;               /* for_us: whose get it is */
	uint64_t
		bytes_max; /* instead of chunks, a payload up to this may go with the answer; 0: none */
	bool ends;         /* no lease is wanted where the bytes go with the answer */

	int rc; /* 0, -ENOENT, -EAGAIN (no lease free) */
	enum rv_end_cause cause;
	enum rv_peer_answer answer;
	uint64_t lease_id, total_len;
	bool has_xxh3;
	uint64_t xxh3;
	uint32_t chunk_size;
	struct rv_block
		*block; /* READY: held for the transfer, until conf.run_transfer_end; BYTES: for the
				 * answer, until rv_engine_run_drop; NULL if empty */
	uint64_t
		renew_ns; /* READY: a pull must renew the lease at least so often; RV_NEVER: no deadline */
	struct rv_lease *lease; /* opaque to the receiver: comes back in rv_msg_transfer_end */
	bool same_user;         /* for_us */
	uint64_t lease_timeout_ms;
	size_t desc_len;
	uint8_t desc[RV_PEER_DESC_MAX];
};
rv_cell_fn rv_engine_run_acquire;

#define RV_MANY_ALIGN 64u

/** A payload that goes along in the answer for many. */
struct rv_along {
	const uint8_t *bytes;
	uint32_t off, len;        /* its place in the answer */
	struct rv_engine *engine; /* whose hold on the block keeps the bytes where they are, and */
	struct rv_block *block;   /* NULL: they are in the sender's buffer */
};

/**
 * rv_engine_run_serve_many: the payloads of many slots, each as an acquire without an offer that `ends` would be given
 * it. An engine looks at those that are its own. A client's region must be let go when its client says so: what lies
 * in one is copied.
 */
struct rv_msg_serve_many {
	struct rv_engine *engine;
	uint64_t worker;           /* the consumer */
	struct rv_peer_many *many; /* the sender's; each of them -EAGAIN until it goes along */
	struct rv_along
		*along; /* the sender's, room for each: those that are not empty, by their place */
	uint32_t along_nr;
	uint8_t *
		buf; /* the sender's; a payload that is copied has the same place in it as in the answer */
	uint32_t cap;  /* of both */
	uint32_t used; /* of the answer; each payload begins at a multiple of RV_MANY_ALIGN */
};
rv_cell_fn rv_engine_run_serve_many;

/** rv_engine_run_served: they were sent, or will not be: an engine drops its holds. */
struct rv_msg_served {
	struct rv_engine *engine;
	const struct rv_along *along; /* the sender's, until the reply */
	uint32_t along_nr;
};
rv_cell_fn rv_engine_run_served;

/** conf.run_transfer_end, on the net core: nobody may pull under this lease any more. Reply when no send is in flight. */
struct rv_msg_transfer_end {
	struct rv_engine *engine;
	struct rv_lease *lease;
	uint64_t lease_id;
};

enum rv_lease_op { RV_LEASE_RENEW, RV_LEASE_DETACH, RV_LEASE_RELEASE };

/** rv_engine_run_lease: renew, detach, release; a lease that does not match changes nothing (-ESTALE). */
struct rv_msg_lease {
	struct rv_engine *engine;
	enum rv_lease_op op;
	uint64_t local, lease_id, worker;
	uint64_t arrival_ns; /* when the frame came in */
	int rc;
};
rv_cell_fn rv_engine_run_lease;

enum rv_slot_op { RV_SLOT_METADATA, RV_SLOT_REF, RV_SLOT_DROP };

/** rv_engine_run_slot: ask about, reference or drop a slot. */
struct rv_msg_slot {
	struct rv_engine *engine;
	enum rv_slot_op op;
	uint64_t local;
	bool check_uid; /* DROP: only this user's (root: any) */
	uid_t uid;

	int rc; /* 0, -ENOENT, -EPERM */
	enum rv_end_cause cause;
	uint64_t total_len, refcount;
	bool pinned;
};
rv_cell_fn rv_engine_run_slot;

/** rv_engine_run_alloc: a block to fill, with one hold for the asker. */
struct rv_msg_alloc {
	struct rv_engine *engine;
	struct rv_pool_req req; /* cls, len, allow_plain; block and refusal come back in it */
	bool pinned;       /* counts a refusal in the path metric; false: plain was asked for */
	bool switched_off; /* outcome: plain because of the kill switch */
	int rc;
};
rv_cell_fn rv_engine_run_alloc;

/** rv_engine_run_stage: name a block's bytes. Takes over the asker's hold on success. */
struct rv_msg_stage {
	struct rv_engine *engine;
	struct rv_block *block;  /* NULL for zero length, or with a region */
	struct rv_arena *region; /* a region's bytes, from `off` of what its client named */
	uint64_t off;
	uint64_t len; /* up to the block's */
	struct rv_stage_opts opts;
	bool pinned; /* which operation is counted */

	int rc; /* 0, -ENOSPC: the slot table is full; a region: -ERANGE, -ESHUTDOWN: it is let go */
	struct rv_handle handle;
	bool in_registered;
};
rv_cell_fn rv_engine_run_stage;

/** rv_engine_run_region_open: make a client's memory known; the reply comes when every fabric has it. */
struct rv_msg_region_open {
	struct rv_engine *engine;
	int fd;            /* a memfd; taken over, also on a failure */
	uint64_t off, len; /* in the file */
	uid_t uid;
	uint64_t session;

	int rc;         /* 0; -ENOSPC: over the budget; -EPERM: not sealed; -ERANGE; -ENOTSUP */
	char text[160]; /* on a failure */
	struct rv_arena *arena;    /* the asker's to name until it closed it */
	uint64_t eff_off, eff_len; /* what was really pinned: whole pages, in the file */
	bool registered;
};
rv_cell_fn rv_engine_run_region_open;

/** rv_engine_run_region_close: let it go; the reply comes when the client may have its memory back. Once. */
struct rv_msg_region_close {
	struct rv_engine *engine;
	struct rv_arena *arena;
	uint64_t wait_ns; /* for what is staged there to end; RV_NEVER: for as long as it takes */
	bool handed_over; /* to what is staged there: peers get it as before, and it goes with the last of it */

	int rc;       /* 0; -EIO: a device has not let go, the memory must never be reused */
	bool drained; /* nothing was in use any more */
};
rv_cell_fn rv_engine_run_region_close;

/** rv_engine_run_drop: give back one hold. */
struct rv_msg_drop {
	struct rv_engine *engine;
	struct rv_block *block;
};
rv_cell_fn rv_engine_run_drop;

/** rv_engine_run_session_end: a session is over: its slots and arenas go. */
struct rv_msg_session_end {
	struct rv_engine *engine;
	uint64_t session;
};
rv_cell_fn rv_engine_run_session_end;

/** rv_engine_run_peer: a peer's fabric address is known (or gone: addr NULL). */
struct rv_msg_peer {
	struct rv_engine *engine;
	struct rv_fabric_peer peer; /* addr stays the sender's */
	unsigned fabric;
};
rv_cell_fn rv_engine_run_peer;

enum rv_get_path { RV_GET_ANY, RV_GET_RDMA, RV_GET_CHUNKED };

/** What becomes of the lease of a get that succeeded. */
enum rv_get_then { RV_GET_THEN_KEEP, RV_GET_THEN_DETACH, RV_GET_THEN_RELEASE };

/**
 * rv_engine_run_get: fetch a payload into a landing block (or see a local one), or into a session's buffer.
 *
 * `into` is a block of the engine's own that the asker holds when it sends the message; from then on the get has
 * holds of its own, until nothing writes into the block any more. On a failure the bytes there are undefined; after
 * -ETIMEDOUT they may still change.
 */
struct rv_msg_get {
	struct rv_engine *engine;
	struct rv_handle handle;
	enum rv_get_path path;
	uint64_t deadline_ns; /* RV_NEVER: one call timeout for each step and chunk */
	uid_t uid;
	uint64_t max_len; /* 0: none. A longer payload is released, not fetched: -EMSGSIZE */
	uint64_t
		lease_ns; /* 0: none. Asks the owner to end a chunked lease that nobody pulls for so long */
	bool has_cap;
	uint64_t
		cap; /* a longer payload is not fetched: -ERANGE with its `len`, the lease is detached */
	struct rv_block *into; /* NULL: a landing block */
	uint64_t into_off;
	struct rv_raw *raw; /* NULL: an ordinary get */
	enum rv_get_then then;

	int rc;
	bool in_place;                  /* the bytes are in `into`; `block` is NULL */
	char text[RV_MSG_TEXT];         /* on a failure: what, on whose side */
	struct rv_block *block;         /* with one hold, the asker's; NULL if empty */
	struct rv_engine *block_engine; /* whose pool it is */
	uint64_t len;
	uint64_t lease_id; /* the asker's to end; 0: it is over, as `then` says */
	enum rv_path took;
	uint64_t elapsed_ns;
	unsigned fabric; /* RDMA: which */
};
rv_cell_fn rv_engine_run_get;

/**
 * rv_engine_run_get_many: short payloads of one other node, in one exchange and one landing block. Those that do not
 * come along are left to rv_engine_run_get; of those that do no lease is left.
 */
struct rv_msg_get_many {
	struct rv_engine *engine;
	uint64_t worker;       /* the owner */
	enum rv_get_path path; /* not RDMA */
	uint64_t deadline_ns;
	uid_t uid;
	struct rv_peer_many *many; /* the asker's, until the cell is back */

	/* 0: as `many` says; -EAGAIN: each is to be asked for alone; others: what all of them have come to */
	int rc;
	char text[RV_MSG_TEXT];
	struct rv_block *
		block; /* with a hold for each that came along and is not empty; NULL: there is none */
	uint64_t elapsed_ns;

	/* the engine's own */
	struct rv_peer_load *load;
	uint64_t began_ns;
};
rv_cell_fn rv_engine_run_get_many;

/** rv_engine_run_leases_of: how many RDMA leases @worker has here. @cost O(leases) */
struct rv_msg_leases_of {
	struct rv_engine *engine;
	uint64_t worker;
	uint64_t nr;
};
rv_cell_fn rv_engine_run_leases_of;

/** What the lists of `rvctl slots | leases | arenas | endpoints` show. */
struct rv_slot_info {
	uint64_t id, len;
	uint32_t refcount, locks;
	uid_t uid;
	bool pinned;
	uint64_t ttl_left_ns; /* RV_NEVER: none */
};
struct rv_lease_info {
	uint64_t id, slot, worker, age_ns, left_ns; /* left: RV_NEVER: no deadline */
	enum rv_lease_kind kind;
	const char *fence; /* RDMA: what ends its key, static text; else NULL */
};
struct rv_arena_info {
	uint32_t id;
	enum rv_arena_kind kind;
	uid_t uid;
	bool registered, dedicated;
	uint64_t len, used, largest_free;
	uint32_t blocks;
	uint64_t session;  /* regions */
	const char *state; /* regions: static text */
};

struct rv_endpoint_info {
	unsigned fabric; /* its index */
	bool native;
	struct rv_fabric_endpoint ep;
};

/** rv_engine_run_list: copy out up to `max` entries of the asker's array that matches `what`. */
struct rv_msg_list {
	struct rv_engine *engine;
	enum {
		RV_LIST_SLOTS,
		RV_LIST_LEASES,
		RV_LIST_ARENAS,
		RV_LIST_REGIONS,
		RV_LIST_ENDPOINTS
	} what;
	union {
		struct rv_slot_info *slot;
		struct rv_lease_info *lease;
		struct rv_arena_info *arena;
		struct rv_endpoint_info *endpoint;
	} out;
	size_t max, nr, total;
	uint64_t resting_blocks;
};
rv_cell_fn rv_engine_run_list;

/** rv_engine_run_grown: the slow thread answers a growth; sent by service/registrar. */
struct rv_msg_grow {
	struct rv_engine *engine;
	struct rv_pool_grow grow;
};

enum rv_stop_step {
	RV_STOP_DRAIN,   /* no more descriptors; new gets are refused */
	RV_STOP_ABANDON, /* running GETs are forced to complete with an error */
	RV_STOP_DEMOTE,  /* registrations go, slots are read in chunks from now on */
	RV_STOP_LEASES,  /* every slot and lease ends */
	RV_STOP_MEMORY,  /* rest is over, every arena goes back */
	RV_STOP_FABRICS, /* connections close; repeat until busy is 0 */
};

/** rv_engine_run_stop: one step of a shutdown; `busy` says what is still to be waited for. */
struct rv_msg_stop {
	struct rv_engine *engine;
	enum rv_stop_step step;
	uint64_t busy_gets, busy_leases, busy_arenas, busy_fabrics;
};
rv_cell_fn rv_engine_run_stop;

_Static_assert(sizeof(struct rv_msg_acquire) <= RV_CELL_BODY, "fits a cell");
_Static_assert(sizeof(struct rv_msg_get) <= RV_CELL_BODY, "fits a cell");
_Static_assert(sizeof(struct rv_peer_call) <= RV_CELL_BODY, "fits a cell");

#endif
