/*
 * program.h - an input read as a program: an operation a byte, its operands behind it.
 */
#ifndef RV_TESTS_FUZZ_PROGRAM_H
#define RV_TESTS_FUZZ_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "dataplane/base/idtab.h"
#include "dataplane/base/units.h"

struct program {
	const uint8_t *at, *end;
};

static inline uint8_t byte(struct program *p)
{
	return p->at < p->end ? *p->at++ : 0;
}

static inline const uint8_t *bytes(struct program *p, size_t want, size_t *len)
{
	const uint8_t *at = p->at;

	*len = rv_min_u64(want, (uint64_t)(p->end - p->at));
	p->at += *len;
	return at;
}

/* Of what there is already. */
static inline uint64_t nth_id(struct rv_idtab *t, unsigned n)
{
	struct rv_idrec *r;
	uint32_t pos = 0;
	uint64_t id = 0;

	while ((r = rv_idtab_next(t, &pos))) {
		id = r->id;
		if (!n--)
			break;
	}
	return id;
}

#endif
