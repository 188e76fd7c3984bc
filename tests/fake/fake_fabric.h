/*
 * fake_fabric.h - a fabric whose every outcome a test decides.
 *
 * Maps get a key of their own; GETs wait until the test completes them, and then carry bytes of the
 * registered remote memory. After done() nothing can be written through a GET any more: completing one
 * that is not outstanding fails the test.
 */
#ifndef RV_TESTS_FAKE_FABRIC_H
#define RV_TESTS_FAKE_FABRIC_H

#include "dataplane/interfaces/fabric.h"
#include "tests/fake/fake_script.h"

#define FAKE_REMOTES 8

struct fake_fabric {
	struct rv_fabric fabric;
	struct rv_fabric_ops ops;

	/* script */
	struct fake_script map_rc, unmap_rc, get_rc, peer_up_rc, quiesce_rc;
	struct fake_script state; /* enum rv_peer_state; UP unless told otherwise */
	size_t key_len;           /* of maps to come */

	/* what happened */
	unsigned maps, unmaps, live_maps, gets, abandons, peers_up, peers_down, states;
	uint64_t last_peer;
	uint8_t last_addr[64]; /* what peer_up was told, cut to fit */
	size_t last_addr_len;
	struct rv_list outstanding; /* struct rv_fabric_get.link, oldest first */
	unsigned outstanding_nr;

	struct fake_remote {
		uint64_t worker, addr, len;
		const uint8_t *bytes;
	} remote[FAKE_REMOTES];
	unsigned remote_nr;
};

void fake_fabric_init(struct fake_fabric *f, unsigned backend, unsigned offer_bit);

/** Memory of @worker at @addr that GETs may read; borrowed. */
void fake_fabric_remote(struct fake_fabric *f, uint64_t worker, uint64_t addr, const void *bytes,
			uint64_t len);

/** The oldest GET, or NULL. */
struct rv_fabric_get *fake_fabric_first(const struct fake_fabric *f);

/** The device writes the first half of the oldest GET's bytes: it is still under way. */
void fake_fabric_write_half(struct fake_fabric *f);

/** End the oldest GET; with @rc 0 all its bytes arrive first. */
void fake_fabric_complete(struct fake_fabric *f, int rc);

#endif
