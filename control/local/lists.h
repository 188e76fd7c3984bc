/*
 * lists.h - what rvctl's tables show, as JSON.
 *
 * Slots, leases and arenas belong to the reactors, so they are asked one after another by message.
 *
 * @thread the net core's
 */
#ifndef RV_CONTROL_LOCAL_LISTS_H
#define RV_CONTROL_LOCAL_LISTS_H

struct session;
struct rv_local_req;

/** Answer a LIST request, now or when the reactors have answered. */
void rv_local_list(struct session *s, const struct rv_local_req *rq);

#endif
