/*
 * local_proto.h - what a program and its node's daemon say over the UNIX socket.
 *
 *   preamble (11)   u16be RV_LOCAL_MAGIC | u8 op | u32be header length | u32be payload length
 *   header          one of the structs below, as it is in memory (both ends are on one machine)
 *   payload         text or bytes, as the operation says
 *
 * The client speaks first, with HELLO. Each request has an id of its choice, echoed in the one reply; replies
 * come in any order. A reply's op is its request's | RV_LOCAL_REPLY. Its `rc` is 0 or a negative errno, and on
 * a failure its payload is one line of text that explains it. A newer client may send a longer header: what
 * is beyond the daemon's struct is ignored; what an older client leaves out reads as zero.
 *
 * A reply that names an arena for the first time in a session carries its descriptor (SCM_RIGHTS). An arena's
 * id is never reused.
 *
 * Whoever asks for it in HELLO gets the descriptor of memory for two queues (shmq.h): frames go through these or the
 * socket, in one order.
 */
#ifndef RV_CONTROL_LOCAL_LOCAL_PROTO_H
#define RV_CONTROL_LOCAL_LOCAL_PROTO_H

#include <errno.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"

#define RV_LOCAL_MAGIC    0x5256u
#define RV_LOCAL_VERSION  2u
#define RV_LOCAL_PREAMBLE 11u
#define RV_LOCAL_REPLY    0x80u

#define RV_LOCAL_HEADER_MAX  512u
#define RV_LOCAL_PAYLOAD_MAX (16u << 20)

enum rv_local_op {
	RV_LOCAL_HELLO = 1,
	RV_LOCAL_ALLOC,  /* a buffer to fill: by WRITE, or (shared) by the client itself */
	RV_LOCAL_WRITE,  /* bytes into a buffer of ALLOC; answered only when it fails */
	RV_LOCAL_COMMIT, /* name a buffer's bytes: the handle */
	RV_LOCAL_FREE,   /* give a buffer or a view back; no reply */
	RV_LOCAL_GET,
	RV_LOCAL_METADATA,
	RV_LOCAL_REF,
	RV_LOCAL_DETACH,
	RV_LOCAL_RELEASE,
	RV_LOCAL_DROP,
	RV_LOCAL_PEER_ADD,  /* payload: PeerInfo, JSON or msgpack; or nothing, with host and port */
	RV_LOCAL_PEER_INFO, /* reply payload: this node's PeerInfo */
	RV_LOCAL_LIST,      /* reply payload: JSON */
	RV_LOCAL_SERVE,     /* this session answers requests to handler `name` */
	RV_LOCAL_UNSERVE,
	RV_LOCAL_REQUEST, /* daemon to client: a request to a handler it serves; no reply, but an ANSWER */
	RV_LOCAL_ANSWER,   /* payload: the result, or an error text; no reply */
	RV_LOCAL_CALL,     /* call handler `name` of a peer; reply payload: its result */
	RV_LOCAL_HANDLERS, /* what a peer serves; reply payload: JSON, {"handlers":[...]} */
	RV_LOCAL_ADMIN, /* `what`: enum rv_local_admin; but for asking, root's and the daemon's own user's */
	RV_LOCAL_REGION_REGISTER, /* a memfd comes along: `len` bytes from `off` of it become a region */
	RV_LOCAL_REGION_STAGE, /* name a range of a region: `off` counts from what was registered */
	RV_LOCAL_REGION_UNREGISTER, /* let go; the reply comes when it is the client's again */
	RV_LOCAL_REGION_WATCH,      /* the same reply, for others who wait; starts nothing */
	RV_LOCAL_GET_MANY, /* since version 2. Payload: struct rv_local_one[]: each a GET of its own, alike but for that */
	RV_LOCAL_BELL, /* either way, a preamble alone: look at your queue */
};

/** HELLO flags: the reply has the memory of queues, arena_len bytes of it, if there is any. */
#define RV_LOCAL_QUEUES 1u

/** ALLOC, COMMIT flags. */
#define RV_LOCAL_PLAIN     1u /* not in registered memory */
#define RV_LOCAL_SHARED    2u /* ALLOC: the client maps it writable and fills it itself */
#define RV_LOCAL_SESSION   4u /* COMMIT: the slot ends with this session */
/** ALLOC: only from arenas that are mapped already, plain memory otherwise (a message's payload). */
#define RV_LOCAL_MAPPED    16u
/** REGION_UNREGISTER: no new slots; let go when what is staged there has ended. The session may end before. */
#define RV_LOCAL_HAND_OVER 32u
/** REGION_UNREGISTER: nobody waits for it; the daemon's shutdown.drop_dereg_timeout bounds it. No reply. */
#define RV_LOCAL_DROPPED   64u
/** ALLOC: no plain memory where registered memory is not to be had (-ENOSPC instead). */
#define RV_LOCAL_STRICT    8u

enum rv_local_list {
	RV_LOCAL_LIST_STATUS,
	RV_LOCAL_LIST_SLOTS,
	RV_LOCAL_LIST_LEASES,
	RV_LOCAL_LIST_ARENAS,
	RV_LOCAL_LIST_PEERS,
	RV_LOCAL_LIST_REGIONS,
	RV_LOCAL_LIST_ENDPOINTS,
	RV_LOCAL_LIST_CORES,
	RV_LOCAL_LIST_CONFIG,
};

enum rv_local_admin {
	RV_LOCAL_KILL_SWITCH, /* reply: path 1 while it is on (RDMA is off) */
	RV_LOCAL_KILL_SWITCH_ON,
	RV_LOCAL_KILL_SWITCH_OFF,
	RV_LOCAL_DRAIN,     /* no new work; what runs goes on; there is no way back */
	RV_LOCAL_LOG_LEVEL, /* `name`: the level; empty: ask. Reply: path_name */
};

#define RV_LOCAL_PATH_ANY     0u
#define RV_LOCAL_PATH_RDMA    1u
#define RV_LOCAL_PATH_CHUNKED 2u

/** Call kinds: CALL's `what`, REQUEST's `path`. */
#define RV_LOCAL_FIRE  0u /* no answer */
#define RV_LOCAL_SYNC  1u /* only whether it was handled */
#define RV_LOCAL_UNARY 2u /* a result */

/** ANSWER flags. */
#define RV_LOCAL_FAILED 1u /* the payload is an error text */

/** GET flags. */
#define RV_LOCAL_KEEP         1u /* the lease outlives this session */
/** GET: the lease is over when the bytes are here, by a detach or a release; the reply's lease_id is 0. */
#define RV_LOCAL_THEN_DETACH  4u
#define RV_LOCAL_THEN_RELEASE 8u
/**
 * GET: no more than `len` bytes (-ERANGE with the payload's), into the buffer `token` of this session (ALLOC,
 * shared) at `off` if the token is not 0. Bytes that are there come without a token; a view may come all the same.
 */
#define RV_LOCAL_INTO         2u
/**
 * GET_MANY: the client takes replies of this operation, too: one for all that came together, in one arena. Its payload
 * is struct rv_local_got[]. Those it does not name are answered by a GET's reply each, as ever.
 */
#define RV_LOCAL_TOGETHER     32u

/** One of RV_LOCAL_GET_MANY; at most so many. */
struct rv_local_one {
	uint64_t id; /* of the reply, which is a GET's */
	uint64_t worker, local;
};

/** A GET that succeeded; the rest of its reply is the header's, but for token, off and len. */
struct rv_local_got {
	uint64_t id;
	/* The same for all of a reply, and given back when none of them is used any more. 0: it is empty */
	uint64_t token;
	uint64_t off, len;
};
#define RV_LOCAL_MANY_MAX 128u

#define RV_LOCAL_HOST 256u
#define RV_LOCAL_NAME 64u

/** Request header of every operation; an operation reads the fields that its row names. */
struct rv_local_req {
	uint64_t id;
	uint32_t version; /* HELLO */
	uint32_t flags;
	uint64_t
		token; /* WRITE, COMMIT, FREE: a buffer or view; GET: a buffer; REGION_*: the region */
	uint64_t
		len; /* ALLOC; COMMIT: bytes used of the buffer; GET: room; REGION_REGISTER, REGION_STAGE */
	uint64_t off;    /* WRITE, GET: where the payload goes; REGION_REGISTER, REGION_STAGE */
	uint64_t ttl_ns; /* COMMIT, REGION_STAGE: 0 takes the node's default */
	uint32_t refs;   /* COMMIT, REGION_STAGE: references to start with, 0 means 1 */
	uint32_t path;   /* GET: RV_LOCAL_PATH_* */
	uint64_t worker; /* the handle of GET, METADATA, REF, DETACH, RELEASE, DROP */
	uint64_t local;
	uint64_t lease_id; /* DETACH, RELEASE */
	uint64_t
		timeout_ns; /* 0: the node's call timeout for each step; REGION_UNREGISTER: 0: no wait */
	uint32_t what;      /* LIST: enum rv_local_list; PEER_INFO: 1 for msgpack; CALL: its kind */
	uint32_t
		port; /* with host: where the owner is (GET, METADATA, REF, DETACH, RELEASE), or the peer */
	char host[RV_LOCAL_HOST]; /* an IP literal, terminated; empty: not told */
	char name
		[RV_LOCAL_NAME]; /* PEER_ADD: the peer's; SERVE, UNSERVE, CALL: the handler's; terminated */
};

/** Reply header of every operation. */
struct rv_local_rep {
	uint64_t id;
	int32_t rc;
	uint32_t version; /* HELLO: the daemon's */
	uint64_t
		worker; /* HELLO: this node; COMMIT, REGION_STAGE: the handle; PEER_ADD: the peer */
	uint64_t local; /* COMMIT, REGION_STAGE */
	uint64_t
		token; /* ALLOC, GET: names the buffer or view until FREE; 0: nothing to give back; REGION_REGISTER: the region */
	uint32_t arena;  /* ALLOC (shared), GET: where the bytes are */
	uint32_t has_fd; /* a descriptor comes along: the arena's */
	uint64_t arena_len;
	uint64_t off; /* in the arena; REGION_REGISTER: where in the file the pinned pages begin */
	uint64_t
		len; /* ALLOC: the buffer's; GET (-ERANGE too), METADATA: the payload's; REGION_REGISTER: pinned */
	uint64_t lease_id;   /* GET */
	uint64_t refcount;   /* METADATA */
	uint64_t elapsed_ns; /* GET: in the daemon */
	uint32_t pinned;     /* METADATA, COMMIT, REGION_*: in registered memory */
	uint32_t
		path; /* GET: enum rv_path: 0 local, 1 chunked, 2 rdma; REGION_UNREGISTER: 1: it was still in use */
	uint32_t writable; /* the arena may be mapped writable */
	uint32_t
		single_use; /* the arena holds these bytes only: unmap it when they are given back */
	uint32_t
		refusal; /* ALLOC: why it is plain: 0 not, 1 budget, 2 pool_exhausted, 3 kill switch, 4 no RDMA here */
	char path_name[64]; /* GET: "ucx tcp", "chunked tcp", "local" */
};

struct rv_local_preamble {
	uint8_t op;
	uint32_t header_len;
	uint32_t payload_len;
};

static inline void rv_local_preamble_put(uint8_t p[RV_LOCAL_PREAMBLE],
					 const struct rv_local_preamble *in)
{
	struct rv_writer w = rv_writer(p, RV_LOCAL_PREAMBLE);

	rv_put_be(&w, RV_LOCAL_MAGIC, 2);
	rv_put_u8(&w, in->op);
	rv_put_be(&w, in->header_len, 4);
	rv_put_be(&w, in->payload_len, 4);
}

/** @return 0, or -EPROTO: not this protocol, or a part too long */
static inline int rv_local_preamble_take(const uint8_t p[RV_LOCAL_PREAMBLE],
					 struct rv_local_preamble *out)
{
	struct rv_cursor c = rv_cursor(p, RV_LOCAL_PREAMBLE);
	uint16_t magic = rv_take_be16(&c);

	out->op = rv_take_u8(&c);
	out->header_len = rv_take_be32(&c);
	out->payload_len = rv_take_be32(&c);
	if (magic != RV_LOCAL_MAGIC || out->header_len > RV_LOCAL_HEADER_MAX ||
	    out->payload_len > RV_LOCAL_PAYLOAD_MAX)
		return -EPROTO;
	return 0;
}

_Static_assert(sizeof(struct rv_local_req) <= RV_LOCAL_HEADER_MAX, "fits");
_Static_assert(sizeof(struct rv_local_rep) <= RV_LOCAL_HEADER_MAX, "fits");

#endif
