/*
 * busy.h - the share of its time that a core did work, for somebody who looks now and then.
 *
 * Who looks keeps a struct rv_busy for each core, zero at first; it is nobody else's.
 */
#ifndef RV_CONTROL_SERVICE_BUSY_H
#define RV_CONTROL_SERVICE_BUSY_H

#include <stdint.h>

/** Two earlier looks; the older is what a look is compared with when the newer was a moment ago. */
struct rv_busy {
	struct rv_busy_look {
		uint64_t at_ns;
		uint64_t busy_ns;
	} look[2];
};

/**
 * Look at a core's counter of busy time.
 *
 * @return 0 to 1, since the look before, or since the one before that if that one was less than a second ago; the
 *         first look has nothing to compare with: 0
 * @thread the looker's   @cost O(1)
 */
double rv_busy_ratio(struct rv_busy *b, uint64_t busy_ns, uint64_t now_ns);

#endif
