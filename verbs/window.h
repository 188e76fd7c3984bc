/*
 * window.h - keys that are memory windows of type 2: bound to the lease's bytes and to one queue pair of the consumer.
 *
 *   idle --bind, its completion--> bound --invalidated, its completion--> idle --> another lease's
 *                                    '--its queue pair goes, or does not answer--> deallocated
 *
 * Proof that a key is dead: a successful completion of its invalidation, or the return of ibv_dealloc_mw. The windows
 * of a queue pair are deallocated before it is destroyed.
 *
 * The lock of domains covers a consumer's list of queue pairs, the windows of each, and whatever is posted on them.
 */
#ifndef RV_VERBS_WINDOW_H
#define RV_VERBS_WINDOW_H

#include "verbs/verbs.h"

/** A consumer's queue pair here. */
struct rv_verbs_served {
	struct rv_verbs_end end;
	struct rv_verbs_domain *domain; /* NULL: with fence no */
	uint64_t worker;
	unsigned reactor;
	uint32_t reads_by; /* the number of the consumer's own end */

	/* Under the lock of domains. */
	struct rv_list of_domain;
	struct rv_list windows;
	bool stuck; /* something posted on it did not complete */
};

/** rv_verbs_export, rv_verbs_revoke with windows. @thread prompt */
int rv_verbs_window_bind(struct rv_verbs *v, struct rv_fabric_map *m, void *addr, uint64_t len,
			 const struct rv_fabric_reader *to, struct rv_fabric_key **out);
int rv_verbs_window_revoke(struct rv_verbs *v, struct rv_fabric_key *key);

/** Windows may be bound to @s from now on. @thread the fabric's */
void rv_verbs_windows_begin(struct rv_verbs *v, struct rv_verbs_served *s);
/** No more windows on @s, whose queue pair is about to be destroyed. @thread the fabric's */
void rv_verbs_windows_end(struct rv_verbs *v, struct rv_verbs_served *s);

/** Every key is gone: let go of idle windows. @thread init */
void rv_verbs_windows_fini(struct rv_verbs *v);

#endif
