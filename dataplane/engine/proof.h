/*
 * proof.h - may this get be called OK? Only if its lease was provably alive when the last byte landed.
 *
 *   proof   the sending time of the acquire, or of a sync renewal whose ack arrived before the proof
 *           before it ran out
 *   valid   until lease_timeout after the last proof
 *
 * A stock owner acks a renewal of a dead lease too, so an ack alone proves nothing: only the order of the
 * times does. If the ack came before the old proof ran out, the lease was alive at every moment in between.
 */
#ifndef RV_DATAPLANE_ENGINE_PROOF_H
#define RV_DATAPLANE_ENGINE_PROOF_H

#include <stdbool.h>
#include <stdint.h>

#include "dataplane/base/units.h"

struct rv_proof {
	uint64_t at_ns;
	uint64_t timeout_ns; /* RV_NEVER: the lease has no deadline */
};

static inline void rv_proof_start(struct rv_proof *p, uint64_t acquire_sent_ns, uint64_t timeout_ns)
{
	*p = (struct rv_proof){acquire_sent_ns, timeout_ns};
}

static inline bool rv_proof_holds(const struct rv_proof *p, uint64_t now_ns)
{
	return now_ns <= rv_sat_add(p->at_ns, p->timeout_ns);
}

/** A renewal sent at @sent_ns was acked at @acked_ns. */
static inline void rv_proof_renewed(struct rv_proof *p, uint64_t sent_ns, uint64_t acked_ns)
{
	if (rv_proof_holds(p, acked_ns) && sent_ns > p->at_ns)
		p->at_ns = sent_ns;
}

#endif
