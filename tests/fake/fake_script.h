/*
 * fake_script.h - outcomes in the order in which they are asked for, and one for ever after.
 *
 *   f->map_rc = (struct fake_script){.nr = 2, .outcome = {-ENOMEM, 0}};    first fails, then 0 twice and so on
 */
#ifndef RV_TESTS_FAKE_SCRIPT_H
#define RV_TESTS_FAKE_SCRIPT_H

struct fake_script {
	int outcome[8];
	unsigned nr, at;
	int then; /* when the script is over */
};

static inline int fake_next(struct fake_script *s)
{
	return s->at < s->nr ? s->outcome[s->at++] : s->then;
}

#endif
