/*
 * fabric.h - what moves memory: a backend that maps pages, names them for peers, and reads peers' pages.
 *
 *   init:     create -> open_reactor for each reactor with the fabric role -> address
 *   slow:     map -> ... -> unmap                       (pages; key packed once, at map)
 *   prompt:   export_key -> ... -> revoke_key           (a key for one lease, where the fabric has those)
 *   reactor:  peer_up -> [wiring] -> up -> get ... -> abandon | peer_down
 *   stop:     quiesce until 0 -> close_reactor -> destroy
 *
 * Implemented by ucx/ and verbs/, and by tests/fake. One object serves the whole node; what belongs to a
 * reactor is used by that reactor only. Nothing here blocks but endpoint creation inside peer_state and get
 * (hundreds of milliseconds at worst), map and unmap.
 */
#ifndef RV_DATAPLANE_INTERFACES_FABRIC_H
#define RV_DATAPLANE_INTERFACES_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/check.h"
#include "dataplane/base/counter.h"
#include "dataplane/base/list.h"
#include "dataplane/interfaces/poller.h"

/** Longest key a fabric hands out or takes. */
#define RV_FABRIC_KEY_MAX 1024

/** Fabrics a node may have at once. */
#define RV_FABRICS 2

struct rv_fabric;

/** Pages the fabric knows. Owned by the fabric from map to unmap. */
struct rv_fabric_map {
	void *base;
	uint64_t len;
	uint8_t key[RV_FABRIC_KEY_MAX]; /* what a peer needs to read them; empty for destinations */
	size_t key_len;
};

/** A range outside its map would let a device write over, or a peer read, somebody else's bytes. */
static inline void rv_fabric_map_check(const struct rv_fabric_map *m, const void *at, uint64_t len)
{
	uintptr_t base = (uintptr_t)m->base, p = (uintptr_t)at;

	RV_CHECK(p >= base);
	RV_CHECK(len <= m->len);
	RV_CHECK(p - base <= m->len - len);
}

/** Who reads with a key. */
struct rv_fabric_reader {
	uint64_t worker; /* WorkerId */
	uint32_t
		qp; /* the number of the queue pair it reads with, as its offer has it; 0: not said */
};

/** A key for one lease: it reads exactly its range, and is dead once revoked. Owned by the fabric until then. */
struct rv_fabric_key {
	uint8_t key[RV_FABRIC_KEY_MAX];
	size_t key_len;
	uint64_t
		pinned; /* bytes that the key pins beyond what its map has: they count against the budget */
};

enum rv_map_access {
	RV_MAP_SOURCE,      /* peers may read */
	RV_MAP_DESTINATION, /* our device may write; no key is ever given out */
	RV_MAP_BOTH,
};

enum rv_peer_state {
	RV_PEER_UNKNOWN, /* no peer_up, or its blob is of no use */
	RV_PEER_WIRING,  /* asking for the state began the wire-up; ask again */
	RV_PEER_UP,
	RV_PEER_FAILED, /* wiring failed; asking again after a while tries again */
};

/** Why an endpoint was closed; the label of rvd_endpoints_closed_total. */
enum rv_endpoint_end {
	RV_EP_ERROR,     /* the fabric said it is broken */
	RV_EP_REPLACED,  /* the peer has another incarnation */
	RV_EP_FORGOTTEN, /* the peer is not known any more */
	RV_EP_ABANDONED, /* a GET had to end */
	RV_EP_IDLE,      /* neither side used it */
	RV_EP_GOODBYE,   /* the peer closes its own for being idle */
	RV_EP_SHUTDOWN,
	RV_EP_ENDS,
};

/** The label. @thread any */
static inline const char *rv_endpoint_end_name(enum rv_endpoint_end why)
{
	static const char *const names[RV_EP_ENDS] = {
		"error", "replaced", "forgotten", "abandoned", "idle", "goodbye", "shutdown",
	};

	return names[why];
}

/** Written by the reactor, read by metrics. */
struct rv_fabric_counts {
	struct rv_counter endpoints; /* there now */
	struct rv_counter closed[RV_EP_ENDS];
};

/** An endpoint, as people see it. */
struct rv_fabric_endpoint {
	uint64_t worker, incarnation;
	enum rv_peer_state state;
	uint64_t idle_ns; /* since either side used it */
	unsigned gets, sends;
};

/** How to reach a peer over this fabric; borrowed for the call. */
struct rv_fabric_peer {
	uint64_t worker;      /* WorkerId */
	uint64_t incarnation; /* another one replaces the endpoint */
	const uint8_t *
		addr; /* the fabric's own address bytes (a UCX worker address, where verbs listens) */
	size_t addr_len;
};

/**
 * One GET. The caller owns the struct until done() is called, exactly once, from the reactor's poll and
 * never from inside get(). After done() nothing writes to @local any more.
 */
struct rv_fabric_get {
	uint64_t worker;
	uint64_t remote_addr;
	uint64_t len;
	const uint8_t *key; /* must stay valid only during get() */
	size_t key_len;
	uint32_t qp; /* as reads_by() said when the key was asked for; 0: any */
	void *local;
	struct rv_fabric_map *local_map; /* maps @local */

	/** @rc 0, -ECONNRESET (endpoint failed), -EPROTO (key refused), -EIO. @thread owning reactor */
	void (*done)(struct rv_fabric_get *g, int rc);
	void *ctx;

	/* The fabric's own, between get() and done(). */
	struct rv_list link;
	void *priv[4];
};

struct rv_fabric_ops {
	const char *name;   /* "ucx": also the name in offers */
	unsigned backend;   /* descriptor byte 0 */
	unsigned offer_bit; /* RV_OFFER_* */

	/** @thread the reactor's own, before its first pass @return 0 and the poller to add, or a negative errno */
	int (*open_reactor)(struct rv_fabric *f, unsigned reactor, struct rv_poller **poller);
	/** After quiesce returned 0, or to give up: the worker goes with all that is on it. @thread owning reactor */
	void (*close_reactor)(struct rv_fabric *f, unsigned reactor);

	/** Our address as peers need it. @return its length, 0 if there is none; more than @cap: nothing written. @thread any, after open_reactor */
	size_t (*address)(struct rv_fabric *f, unsigned reactor, void *buf, size_t cap);

	/** Make pages known. @return 0; -ENOMEM, -EPERM (memlock), -ENOTSUP: no key could be made. @thread slow */
	int (*map)(struct rv_fabric *f, void *base, uint64_t len, enum rv_map_access access,
		   struct rv_fabric_map **out);
	/** Forget them. 0 confirms that the device lets go. @thread slow */
	int (*unmap)(struct rv_fabric *f, struct rv_fabric_map *m);

	/**
	 * Make a key with which @to reads @len bytes at @addr, within @m, and nothing else. Where the fabric
	 * has no such keys (f->exports is false) this is NULL, and peers are given the map's.
	 *
	 * @return 0; -ENOMEM, -EPERM (memlock), -ENOTSUP, -ENOTCONN (no such queue pair of its).
	 * @thread prompt @cost may pin the range once more
	 */
	int (*export_key)(struct rv_fabric *f, struct rv_fabric_map *m, void *addr, uint64_t len,
			  const struct rv_fabric_reader *to, struct rv_fabric_key **out);
	/** The key is dead, @k is gone: 0 is proof that no read through it can land any more. @thread prompt */
	int (*revoke_key)(struct rv_fabric *f, struct rv_fabric_key *k);

	/** Learn or replace a peer; makes no connection, unless the fabric was set up to make them early (then as peer_state). @return 0, -ENOMEM, -EPROTO (blob refused). @thread owning reactor */
	int (*peer_up)(struct rv_fabric *f, unsigned reactor, const struct rv_fabric_peer *p);
	/** Forget a peer; its GETs complete with -ECONNRESET. @thread owning reactor */
	void (*peer_down)(struct rv_fabric *f, unsigned reactor, uint64_t worker);
	/** Where we stand with a peer; starts the wire-up if it has not begun. @thread owning reactor */
	enum rv_peer_state (*peer_state)(struct rv_fabric *f, unsigned reactor, uint64_t worker);

	/** The number of the queue pair that reads from @worker now, 0: none; NULL: it never matters. @thread owning reactor */
	uint32_t (*reads_by)(struct rv_fabric *f, unsigned reactor, uint64_t worker);
	/** Post a GET to a peer that is up. @return 0, or a negative errno and done() is not called. @thread owning reactor */
	int (*get)(struct rv_fabric *f, unsigned reactor, struct rv_fabric_get *g);
	/** Force the connection to @worker down so that its GETs complete; the next use makes a new one. @thread owning reactor */
	void (*abandon)(struct rv_fabric *f, unsigned reactor, uint64_t worker);
	/** What happened to endpoints; NULL: not counted. @thread any, until destroy */
	const struct rv_fabric_counts *(*counts)(struct rv_fabric *f, unsigned reactor);
	/** Walk the endpoints from *@pos 0; false at the end. NULL: there are none. @thread owning reactor */
	bool (*endpoint)(struct rv_fabric *f, unsigned reactor, size_t *pos,
			 struct rv_fabric_endpoint *out);
	/** GETs posted and not done. @thread owning reactor */
	unsigned (*outstanding)(struct rv_fabric *f, unsigned reactor);
	/** Close all connections; @return 0 when none is left, -EAGAIN: poll on and ask again. @thread owning reactor */
	int (*quiesce)(struct rv_fabric *f, unsigned reactor);

	/** Every reactor is closed, every map unmapped. @thread init */
	void (*destroy)(struct rv_fabric *f);
};

/** First member of an implementation's own struct. */
struct rv_fabric {
	const struct rv_fabric_ops *ops;
	unsigned index; /* its place in the node's table of fabrics */
	bool native;    /* remote memory is read by the device, not by the owner's software */
	bool exports; /* each lease has a key of its own, provably dead once revoked, and maps' keys are never given out */
	bool by_queue_pair; /* such a key is for one queue pair: an offer must name it */
	const char *fence;  /* what ends a key with its lease: "window", "region", "none" */
	_Atomic bool dead;  /* its device is gone: nothing more is mapped for it; relaxed */
	char version[32];
	char path_name[64]; /* for people: "ucx tcp" */
};

#endif
