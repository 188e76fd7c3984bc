/*
 * wire_impl.h - what the files of the wire share. Nobody else includes this.
 *
 * wire.c sends, reads and waits; wire_take.c hands over what was read; wire_serve.c keeps requests for a serving
 * thread; wire_async.c wakes the thread of asynchronous calls; wire_queue.c goes around the socket.
 */
#ifndef RV_CONTROL_CLIENT_WIRE_IMPL_H
#define RV_CONTROL_CLIENT_WIRE_IMPL_H

#include "control/client/wire.h"

/** A call becomes known, before its request is sent. @return 0, or a negative errno */
int rv_wire_enter(struct rv_wire *w, struct rv_call *call);
/** Take back one that was not sent. @return false: it has ended with the connection */
bool rv_wire_leave(struct rv_wire *w, struct rv_call *call);
/** Why it could not be sent, in the call. */
void rv_wire_explain(struct rv_wire *w, struct rv_call *call, int rc);

/* wire_queue.c. By the reading thread: */

/** HELLO's reply has come. @fd is borrowed. Without memory all goes through the socket. */
void rv_wire_queue_open(struct rv_wire *w, const struct rv_local_rep *rep, int fd);
void rv_wire_queue_close(struct rv_wire *w);
/** Read the socket once, and what the queue has. As rv_rx_read(). */
int rv_wire_read(struct rv_wire *w, int flags);
/** Hand over what is in the queue and comes before the socket's next frame. @return how many, or a negative errno */
int rv_wire_queue_take(struct rv_wire *w);
/** From now on replies come through the socket; as rv_wire_queue_take(). */
int rv_wire_queue_rest(struct rv_wire *w);
/** Look for @look_ns, then rest. @return 1: something has come; 0: wait at the socket; or a negative errno */
int rv_wire_queue_look(struct rv_wire *w, uint64_t look_ns, uint64_t deadline_ns);
bool rv_wire_queue_rests(const struct rv_wire *w);
/** A turn has found something; or nothing, and @again: another may follow at once. @return it is to rest now */
void rv_wire_turn_found(struct rv_wire *w);
bool rv_wire_turn_quiet(struct rv_wire *w, bool again);

/* Under the lock: how long to look for a reply, and whether it was there. */
uint64_t rv_wire_look_ns(struct rv_wire *w, const struct rv_call *call);
void rv_wire_looked(struct rv_wire *w, const struct rv_call *call, bool found);

/** rv_rx_fn: hand a frame to whom it is for. */
int rv_wire_take_frame(void *user, struct rv_rx_frame *f);
const char *rv_wire_broken_text(int rc);

/** Give back what replies brought that nobody waits for. Not under the lock. */
void rv_wire_run_undo(struct rv_wire *w);

/* Under the lock: */

/** The call has ended, one way or the other. @param text  NULL: none */
void rv_wire_settle(struct rv_wire *w, struct rv_call *call, int rc, const char *text);
/** Arenas that no reply under way can name go. */
void rv_wire_sweep(struct rv_wire *w);
/** Nothing works any more: every call ends. */
void rv_wire_kill_locked(struct rv_wire *w, int rc, const char *text);
/** Wake the thread that sleeps on it, if there is one. */
static inline void rv_call_wake(struct rv_call *call)
{
	if (call->has_changed)
		pthread_cond_signal(&call->changed);
}
/** Sleep until the call has ended or the reading is ours. @return 0 or -ETIMEDOUT */
int rv_wire_sleep_on(struct rv_wire *w, struct rv_call *call, uint64_t deadline_ns);
/** Read for everybody until something has come. The lock is let go while reading. */
int rv_wire_lead(struct rv_wire *w, uint64_t look_ns, uint64_t deadline_ns);
/** Let one of those who wait read. @return whether there is one */
bool rv_wire_wake_waiter(struct rv_wire *w);
/** Nobody reads now: a waiter takes over, or the thread of asynchronous calls is woken. */
void rv_wire_pass_on(struct rv_wire *w);
/** rv_event_fd() is to be seen. */
void rv_wire_kick(struct rv_wire *w);

#endif
