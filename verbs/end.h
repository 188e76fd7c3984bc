/*
 * end.h - one end of a connection: its queue pair and rdma_cm id.
 *
 * The rights, the timeouts and the depths of a queue pair are ours; the path is what rdma_cm found.
 *
 * @thread the fabric's
 */
#ifndef RV_VERBS_END_H
#define RV_VERBS_END_H

#include "dataplane/base/units.h"
#include "verbs/verbs.h"

/** An end must be up so long after it was begun. */
#define RV_VERBS_CONNECT_NS RV_SEC(3)

/*
 * 4.096 us << 15 is 134 ms; seven of them, and a peer that says nothing is dead after 0.94 s. Not 7 retries: Soft-RoCE
 * takes that for "without end", as with RNR.
 */
#define RV_VERBS_ACK_TIMEOUT 15
#define RV_VERBS_RETRIES     6

/** Room for a literal address with its scope and port. */
#define RV_VERBS_HOST_MAX  64
#define RV_VERBS_HOST_TEXT (RV_VERBS_HOST_MAX + 10)

void rv_verbs_addr_text(const struct sockaddr *sa, char out[RV_VERBS_HOST_TEXT]);

/** @return 0 or a negative errno */
int rv_verbs_end_make(struct rv_verbs_end *e, struct ibv_pd *pd, struct ibv_cq *cq, unsigned reads);
/** @param reads  under way at once, once it is in RTR, RTS  @return 0 or a negative errno */
int rv_verbs_end_move(struct rv_verbs_end *e, enum ibv_qp_state to, unsigned reads);
/**
 * The queue pair first: once it is gone the device reads and writes nothing for it.
 *
 * @return 0; or a negative errno: it is there still, and may be dropped again
 */
int rv_verbs_end_drop(struct rv_verbs *v, struct rv_verbs_end *e);

bool rv_verbs_is_our_device(const struct rv_verbs *v, const struct rdma_cm_id *id);

#endif
