/*
 * identity.h - who this node is, and who it was: a fresh instance each start, and the last 1,024 WorkerIds in
 * the state directory, so that a handle of an earlier life is told apart from a stranger's.
 */
#ifndef RV_CONTROL_SERVICE_IDENTITY_H
#define RV_CONTROL_SERVICE_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#define RV_FORMER_MAX 1024u

struct rv_identity {
	uint8_t instance[16]; /* a random UUID, version 4 */
	uint64_t worker;      /* XXH3 of it, never 0 */
	uint64_t former[RV_FORMER_MAX];
	size_t former_nr;
};

/**
 * Make a new identity and remember it in @state_dir/workers.
 *
 * @return 0; a negative errno if the directory cannot be used: the identity is good all the same, only
 *         nothing is remembered
 * @thread init
 */
int rv_identity_make(struct rv_identity *id, const char *state_dir);

/** What tells this start's fabric address from an earlier one's; never 0, which on the wire is nobody. */
uint64_t rv_incarnation_make(uint64_t (*random)(void));

#endif
