/*
 * idtab.h - records behind unguessable or never-reused 64-bit ids, found without hashing.
 *
 *      63            26 25          6 5       0
 *     +----------------+-------------+---------+
 *     |      tag       |    index    | reactor |
 *     +----------------+-------------+---------+
 *
 * The index names a record; the tag changes with each use of it: it counts up (slots: an id is never
 * reused) or is random (leases and transfers: an id cannot be guessed). A freed record keeps its last id
 * and why it ended; records are reused oldest first, and not before RV_IDTAB_REMEMBER others were freed
 * as long as fresh ones are left.
 *
 * @thread owner only   @cost O(1), no allocation after init
 */
#ifndef RV_DATAPLANE_BASE_IDTAB_H
#define RV_DATAPLANE_BASE_IDTAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RV_IDTAB_INDEX_BITS 20
#define RV_IDTAB_MAX        (1u << RV_IDTAB_INDEX_BITS)
#define RV_IDTAB_REMEMBER   65536u

/** Why an id is over. */
enum rv_end_cause { RV_END_NONE, RV_END_RELEASED, RV_END_EXPIRED, RV_END_DROPPED };

/** What our refusals append: ": released", ": expired", or nothing. */
const char *rv_end_cause_suffix(enum rv_end_cause c);

/** First member of every record. */
struct rv_idrec {
	uint64_t id; /* current, or last */
	uint32_t next_free;
	uint8_t live;
	uint8_t cause; /* enum rv_end_cause, when not live */
};

struct rv_idtab {
	uint8_t *rec;
	size_t rec_size;
	uint32_t max;   /* records */
	uint32_t fresh; /* first record never used */
	uint32_t free_head, free_tail, free_nr;
	uint32_t live_nr;
	unsigned reactor;
	bool random;
	uint64_t seed; /* state of the tag generator */
};

/**
 * @param rec_size  size of a record that starts with struct rv_idrec
 * @param max       records at most, up to RV_IDTAB_MAX
 * @param seed      random start for the tags; 0 makes them count up from 1
 * @return 0 or -ENOMEM. Memory is reserved, and touched only as records are used.
 */
int rv_idtab_init(struct rv_idtab *t, size_t rec_size, uint32_t max, unsigned reactor,
		  uint64_t seed);
void rv_idtab_fini(struct rv_idtab *t);

/** A record with a new id, zeroed but for its struct rv_idrec; NULL when all are live. */
void *rv_idtab_alloc(struct rv_idtab *t);

/** The live record of @id, or NULL. */
void *rv_idtab_get(const struct rv_idtab *t, uint64_t id);

/** End a record. */
void rv_idtab_free(struct rv_idtab *t, void *rec, enum rv_end_cause cause);

/** Why @id is over, if that is remembered; RV_END_NONE otherwise, or while it lives. */
enum rv_end_cause rv_idtab_cause(const struct rv_idtab *t, uint64_t id);

/** Walk the live records: start with *@pos = 0, ends with NULL. Freeing the returned one is allowed. */
void *rv_idtab_next(const struct rv_idtab *t, uint32_t *pos);

#endif
