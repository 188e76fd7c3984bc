/*
 * store.h - one reactor's slots and leases: what is staged, who may still be reading it, until when.
 *
 *   slot   stage --> live --release brings refcount and locks to 0, drop, TTL--> over
 *   lease  mint --> live --detach, release (consumer)--> over
 *                     '----deadline, slot dropped------> reaped (its block must rest)
 *
 * A slot names bytes, a lease is a consumer's right to them; each lease is one read lock. Any of them may
 * end at any time, and its id is then never valid again. The bytes themselves are a block with holds
 * (mem/arena.h): the slot has one, and so has the net core's transfer of a chunked lease.
 *
 * @thread owning reactor, all of it   @cost O(1) unless said otherwise; no allocation after init
 */
#ifndef RV_DATAPLANE_RENDEZVOUS_STORE_H
#define RV_DATAPLANE_RENDEZVOUS_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "dataplane/base/idtab.h"
#include "dataplane/base/list.h"
#include "dataplane/lcore/reactor.h"
#include "dataplane/mem/pool.h"

struct rv_store;

struct rv_slot {
	struct rv_idrec rec; /* rec.id is the handle's low half */
	struct rv_store *store;
	struct rv_block *block; /* NULL for zero length */
	uint64_t len;
	uint32_t refcount;
	uint32_t locks; /* leases */
	uid_t uid;
	uint64_t session; /* ends with it; 0: outlives its client */
	bool pinned;      /* in registered memory */
	bool has_xxh3;    /* hashed at staging (rendezvous.verify) */
	uint64_t xxh3;
	struct rv_list leases;
	struct rv_task ttl;
	uint64_t rest_until_ns; /* a lease on it ended without its consumer's word */
};

enum rv_lease_kind { RV_LEASE_CHUNKED, RV_LEASE_RDMA, RV_LEASE_LOCAL };
#define RV_LEASE_KINDS 3

struct rv_lease {
	struct rv_idrec rec;
	struct rv_store *store;
	struct rv_slot *slot; /* NULL once over */
	struct rv_list link;  /* the slot's; then the store's list of transfers to end */
	uint64_t worker;      /* the consumer; 0 for one that is not told */
	enum rv_lease_kind kind;
	uint64_t timeout_ns; /* RV_NEVER: no deadline */
	uint64_t granted_ns;
	struct rv_task deadline;
	struct rv_block *transfer; /* held for the net core's transfer; NULL: none */
	struct rv_export
		*export; /* RDMA: its own key, which ends with it; NULL: it has the map's */
};

struct rv_store_conf {
	struct rv_reactor *reactor;
	unsigned shard; /* goes into the ids */
	uint32_t max_slots, max_leases;
	uint64_t quarantine_ns; /* rest beyond a lease's deadline */
	uint64_t seed;          /* of lease ids, not 0 */

	/** A chunked lease is over, and its transfer with it: tell the net core, then rv_store_transfer_gone(). */
	void (*end_transfer)(void *user, struct rv_lease *lease);
	/** A lease with a key of its own is over: revoke it. Its range needs no rest. */
	void (*end_export)(void *user, struct rv_export *x);
	void *user;
};

struct rv_store {
	struct rv_store_conf conf;
	struct rv_idtab slots, leases;
	uint64_t exported_nr; /* leases with a key of their own */

	struct rv_counter slot_nr, lease_nr[RV_LEASE_KINDS], reaped[RV_LEASE_KINDS], expired;
};

const char *rv_lease_kind_name(enum rv_lease_kind k);

/** @thread init @return 0 or -ENOMEM */
int rv_store_init(struct rv_store *s, const struct rv_store_conf *conf);
void rv_store_fini(struct rv_store *s);

struct rv_stage_opts {
	uint32_t refs;   /* refcount to start with, at least 1 */
	uint64_t ttl_ns; /* RV_NEVER: none */
	uid_t uid;
	uint64_t session; /* 0: outlives its client */
	bool has_xxh3;
	uint64_t xxh3;
};

/**
 * Name bytes.
 *
 * @param block  takes over one hold of the caller on success; NULL if @len is 0
 * @return the slot, or NULL when the table is full
 */
struct rv_slot *rv_slot_stage(struct rv_store *s, struct rv_block *block, uint64_t len,
			      const struct rv_stage_opts *o);

/** @return the slot, or NULL; then rv_idtab_cause(&s->slots, id) may know why */
struct rv_slot *rv_slot_find(struct rv_store *s, uint64_t id);

/** End the slot and every lease on it, whoever reads. @cost O(its leases) */
void rv_slot_end(struct rv_slot *slot, enum rv_end_cause cause);

/**
 * Take a read lock.
 *
 * @param worker      the consumer, the only one that may end it
 * @param timeout_ns  life without a renewal; RV_NEVER: no deadline
 * @return the lease, or NULL when the table is full: answer "busy"
 */
struct rv_lease *rv_lease_mint(struct rv_slot *slot, uint64_t worker, enum rv_lease_kind kind,
			       uint64_t timeout_ns);

/** The lease @id on slot @slot_id of consumer @worker, or NULL. */
struct rv_lease *rv_lease_find(struct rv_store *s, uint64_t slot_id, uint64_t id, uint64_t worker);

/** The consumer renews at @arrival_ns: the deadline moves to a timeout after that, never backwards. */
void rv_lease_renew(struct rv_lease *l, uint64_t arrival_ns);

/** The consumer ends its lease: @release also gives back a reference. Frees the slot when nothing is left. */
void rv_lease_end(struct rv_lease *l, bool release);

/** The net core has let go of a lease's transfer (conf.end_transfer). */
void rv_store_transfer_gone(struct rv_lease *l);

/** Drop every slot of a session that ended. @cost O(slots) */
void rv_store_end_session(struct rv_store *s, uint64_t session);

/** Give an RDMA lease a key of its own, or (NULL) take it away. */
void rv_lease_set_export(struct rv_lease *l, struct rv_export *x);

/** End every lease on @slot that has a key of its own; the slot goes if nothing else is left of it. */
void rv_slot_revoke(struct rv_slot *slot);

/** Take back a lease that nobody was told of: nothing else happens to its slot. */
void rv_lease_withdraw(struct rv_lease *l);

/** RDMA leases alive whose keys cannot be revoked: what a drain waits for. */
uint64_t rv_store_rdma_leases(const struct rv_store *s);

#endif
