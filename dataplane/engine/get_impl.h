/*
 * get_impl.h - one get, and what the files of the consumer side share. Nobody else includes this.
 *
 * get.c runs the state machine and ends it; get_rdma.c offers, reads and renews; get_local.c serves this node's own
 * slots; get_verify.c hashes what landed, where the owner said what it hashes to.
 *
 * @thread owning reactor, all of it
 */
#ifndef RV_DATAPLANE_ENGINE_GET_IMPL_H
#define RV_DATAPLANE_ENGINE_GET_IMPL_H

#include "dataplane/base/units.h"
#include "dataplane/engine/get.h"
#include "dataplane/engine/msg.h"
#include "dataplane/engine/proof.h"

/* Bytes copied or hashed before others have their turn. */
#define RV_GET_SLICE RV_KIB(512)

enum rv_get_state {
	GET_WIRING, /* --path rdma: waits for the endpoint */
	GET_ACQUIRE,
	GET_RESERVE, /* waits for a destination */
	GET_PULL,
	GET_RDMA,
	GET_VERIFY, /* hashing what landed against the owner's word */
	GET_COPY,   /* another user's slot of this node */
	GET_LOCAL,
	GET_ENDING, /* only its detach is on the way */
};

struct rv_get {
	struct rv_list link;
	struct rv_engine *e;
	struct rv_cell *asker;  /* NULL once answered */
	struct rv_msg_get *req; /* the asker's body; NULL once answered */
	struct rv_cell *cell;   /* ours, reused for each call in turn */
	enum rv_get_state state;
	struct rv_handle handle;
	enum rv_get_path path;
	uid_t uid;
	uint64_t max_len, lease_ns;
	enum rv_get_then then;
	bool has_cap;
	uint64_t cap;
	uint64_t began_ns;
	struct rv_task
		deadline;     /* also the poll while wiring, and the force-close after a timeout */
	uint64_t deadline_ns; /* RV_NEVER: one for each step */
	uint64_t wire_until_ns;
	bool call_out;             /* `cell` is under way */
	struct rv_peer_load *load; /* NULL: a slot of this node's */
	bool late;                 /* answered -ETIMEDOUT while the fabric was busy */
	bool release;              /* the lease ends with a release, not a detach */
	bool fell_back;            /* the acquire without an offer */
	uint64_t tag; /* tells this get's renewals from those of the record's former uses */
	struct rv_task renew;

	uint64_t lease_id; /* 0: none */
	uint64_t len;
	struct rv_proof proof;
	struct {
		uint64_t transfer_id;
		uint32_t chunk_size, chunk_count;
	} plan;
	bool has_xxh3;
	uint64_t xxh3;
	struct rv_hasher *hasher;
	uint8_t *bounce; /* what is hashed of a buffer its client may write */
	uint64_t hashed;
	struct rv_task verify;
	enum rv_path took;
	bool rdma; /* the answer was a descriptor */
	struct rv_fabric *fabric;
	struct rv_pool_req reserve;
	struct rv_block *block; /* destination */
	uint64_t off;           /* in it */
	struct rv_block *into;  /* the caller's place, held for as long as the get lives */
	uint64_t into_off;
	struct rv_fabric_get get;
	uint64_t get_began_ns;
	uint64_t remote_addr;
	size_t key_len;
	uint32_t offer_qp; /* of the acquire that was answered */
	uint8_t key[RV_FABRIC_KEY_MAX];

	struct rv_block *src; /* COPY: the slot's, held */
	struct rv_engine *src_engine;
	uint64_t copied;
	struct rv_task copy;
};

/* get_load.c */
int rv_loads_init(struct rv_engine *e);
void rv_loads_fini(struct rv_engine *e);
/** One get more from this peer. @return NULL: it has as many as it may */
struct rv_peer_load *rv_load_enter(struct rv_engine *e, uint64_t worker);
void rv_load_leave(struct rv_engine *e, struct rv_peer_load *l);

static inline struct rv_port *rv_get_port(const struct rv_get *g)
{
	return g->e->reactor->port;
}

static inline uint64_t rv_get_now(const struct rv_get *g)
{
	return g->e->reactor->now_ns;
}

/** Where the bytes go. */
static inline uint8_t *rv_get_dst(const struct rv_get *g)
{
	return rv_block_ptr(g->block) + g->off;
}

/* Without a deadline of its own a get has one for each step, a call's. */
static inline uint64_t rv_get_step_deadline(const struct rv_get *g)
{
	if (g->deadline_ns != RV_NEVER)
		return g->deadline_ns;
	return rv_sat_add(rv_get_now(g), g->e->conf.call_timeout_ns);
}

/* get.c */

/** Say in the answer why; the last word counts. Nothing once it was answered. */
void rv_get_say(struct rv_get *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Answer, once; what the get holds stays. */
void rv_get_answer(struct rv_get *g, int rc);

/** Give back what the get still has; then its record is free. */
void rv_get_wind_up(struct rv_get *g);

/** Answer @rc and wind up. */
void rv_get_fail(struct rv_get *g, int rc);

/** The asker's body is filled in: answer OK; the lease is the asker's, or ends as it said. Winds up. */
void rv_get_done(struct rv_get *g);

/** Answer OK with the block and the lease, and wind up. */
void rv_get_report(struct rv_get *g, enum rv_path took);

/** The one fallback: detach, acquire without an offer, chunks. */
void rv_get_fall_back(struct rv_get *g, enum rv_path_reason why, const char *text);

/** Is it longer than its caller allows, or has room for? Then it was answered and winds up. */
bool rv_get_too_long(struct rv_get *g);

/** Reserve a destination of the length that was told, and go on from there. */
void rv_get_reserve(struct rv_get *g);

/* get_rdma.c */

/** What may be offered now; counts why not. @param[out] wait worth asking again @param[out] why in words */
unsigned rv_get_offer(struct rv_get *g, bool *wait, const char **why);

/** The queue pair that would read by verbs; 0: none, or verbs is not in @offer. */
uint32_t rv_get_reads_by(const struct rv_get *g, unsigned offer);

/** Does this node do RDMA at all, now? */
bool rv_get_rdma_possible(const struct rv_engine *e);

/** The owner answered with a descriptor. */
void rv_get_on_descriptor(struct rv_get *g, const struct rv_peer_call *call);

/** The read of all its bytes, as the descriptor and the destination have it. */
struct rv_fabric_get rv_get_read(const struct rv_get *g,
				 void (*done)(struct rv_fabric_get *fg, int rc), void *ctx);

void rv_get_begin_rdma(struct rv_get *g);
void rv_get_late_rdma(struct rv_get *g);

/* get_raw.c */

/** The descriptor and the destination are there. */
void rv_get_begin_raw(struct rv_get *g);
/** The deadline starts anew with each read: when it is; 0: as it was. */
uint64_t rv_get_raw_deadline(const struct rv_get *g);

/* get_local.c */
void rv_get_begin_local(struct rv_get *g);
/** Its destination is there: copy another user's slot into it. */
void rv_get_begin_copy(struct rv_get *g);

/* get_verify.c */

/** All bytes are there: check them if there is a hash, then report. */
void rv_get_succeed(struct rv_get *g, enum rv_path took);

#endif
