/*
 * read.h - GETs as chains of READs.
 *
 *   get -> waiting on its connection -> READs of at most the device's message size, as many at once as the owner
 *   granted and as the completion queue has room for -> completions, in order -> done
 *
 * A READ that fails breaks its queue pair: the GETs on it end once its completions were all taken, or with the queue
 * pair itself. Only then does the device write nothing any more.
 */
#ifndef RV_VERBS_READ_H
#define RV_VERBS_READ_H

#include "verbs/verbs.h"

/** Length of the READ that begins at @off of a GET of @len bytes. @thread any */
static inline uint32_t rv_verbs_read_len(uint64_t len, uint64_t off, uint32_t max)
{
	return len - off < max ? (uint32_t)(len - off) : max;
}

/** rv_fabric_ops.get @thread owning reactor */
int rv_verbs_read(struct rv_verbs_reactor *r, struct rv_fabric_get *g);

/** One completion. @thread owning reactor */
void rv_verbs_read_completed(struct rv_verbs_reactor *r, const struct ibv_wc *wc);

/** No more READs on @c: those GETs that have none under way are over. @thread owning reactor */
void rv_verbs_read_cut(struct rv_verbs_conn *c);

/** Its queue pair is destroyed: what did not complete never will. @thread owning reactor */
void rv_verbs_read_lost(struct rv_verbs_conn *c);

/** Call done() of GETs that are over. @return how many. @thread owning reactor */
unsigned rv_verbs_read_deliver(struct rv_verbs_reactor *r);

#endif
