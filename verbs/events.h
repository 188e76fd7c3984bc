/*
 * events.h - the device's asynchronous events, taken by whichever thread needs to know first.
 *
 * When a device is taken away the kernel lets go of all its memory, says so in an event, and then answers everything
 * with EIO. So behind an EIO the event is there to be read: it makes the difference between "gone" and "may still write".
 */
#ifndef RV_VERBS_EVENTS_H
#define RV_VERBS_EVENTS_H

#include "verbs/verbs.h"

/** The oldest event not yet given out. @return false: there is none. @thread the fabric's */
bool rv_verbs_event_next(struct rv_verbs *v, struct ibv_async_event *out);

/** Does the device read and write nothing any more for what was given back with this outcome? @thread any */
bool rv_verbs_let_go(struct rv_verbs *v, int err);

#endif
