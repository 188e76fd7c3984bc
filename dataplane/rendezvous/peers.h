/*
 * peers.h - the directory of other nodes: WorkerId, instance, where to dial, what else they have.
 *
 * A node is known by its WorkerId. What is not known of it (a stock owner that was named only by a
 * reference has told us no instance and no fabric address) is marked so and may be learned later.
 *
 * @thread the net core's (owner); other reactors are told what they need by message
 */
#ifndef RV_DATAPLANE_RENDEZVOUS_PEERS_H
#define RV_DATAPLANE_RENDEZVOUS_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/map64.h"

#define RV_PEER_HOST 256
#define RV_PEER_NAME 64
/** Nodes known at once. */
#define RV_PEERS_MAX 65536u

struct rv_peer {
	uint64_t worker;
	uint8_t instance[16];
	bool has_instance;
	bool is_rvd;             /* its address has our key: features beyond velo may be used */
	char name[RV_PEER_NAME]; /* what people call it; may be empty */
	char host[RV_PEER_HOST]; /* TCP; empty: none known */
	uint16_t port;
	uint64_t incarnation; /* of its fabric address */
	/* Its workers, the first its main one (rv_peer_workers_add); heap; NULL: none that is of use to us. */
	uint8_t *fabric_addr;
	size_t fabric_addr_len;
	uint8_t *
		verbs_addr; /* where its verbs backend listens, in that backend's bytes; heap; NULL: none */
	size_t verbs_addr_len;
	uint32_t frame_max; /* longest frame it takes over the fabric; 0: no messages go that way */
	uint64_t own_incarnation; /* what we told it ours is; 0: what everybody is told */
	bool fabric_untold;       /* some engine does not have it yet */
	void *link;               /* the messenger's: the connection it dials, what waits for it */
};

struct rv_peers {
	struct rv_map64 by_worker;
};

void rv_peers_fini(struct rv_peers *d, void (*forget)(struct rv_peer *));

struct rv_peer *rv_peers_find(const struct rv_peers *d, uint64_t worker);

/** Find or make. @return NULL without memory, or with RV_PEERS_MAX known */
struct rv_peer *rv_peers_get(struct rv_peers *d, uint64_t worker);

/** Forget a peer: @p is gone. */
void rv_peers_del(struct rv_peers *d, struct rv_peer *p);

/** By name, instance text or address is for callers: walk with *@pos = 0. */
struct rv_peer *rv_peers_next(const struct rv_peers *d, size_t *pos);

/*
 * A list of workers' addresses in one buffer: u16le length and address, one after another. A peer with several
 * polling cores has a worker on each, and ours spread over them.
 */

/** Append one of 1 to 65,535 bytes. */
void rv_peer_workers_add(struct rv_writer *w, const uint8_t *addr, size_t len);
size_t rv_peer_workers_nr(const uint8_t *list, size_t list_len);
/** The @i-th, borrowed; NULL: there are not so many. */
const uint8_t *rv_peer_workers_at(const uint8_t *list, size_t list_len, size_t i, size_t *len);

/** Replace the fabric addresses, a list of workers. @return 1 if it changed, 0 if it did not, -ENOMEM */
int rv_peer_set_fabric(struct rv_peer *p, uint64_t incarnation, const uint8_t *addr, size_t len);

/** The same for its verbs address. */
int rv_peer_set_verbs(struct rv_peer *p, const uint8_t *addr, size_t len);

#endif
