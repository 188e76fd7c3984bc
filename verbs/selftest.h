/*
 * selftest.h - do this device's memory windows fence? Tried out at start over a loopback of two queue pairs.
 */
#ifndef RV_VERBS_SELFTEST_H
#define RV_VERBS_SELFTEST_H

#include <stdbool.h>
#include <stddef.h>

#include "verbs/device.h"
#include "verbs/fabric_verbs.h"

/** What was seen. */
struct rv_verbs_windows {
	bool read;    /* inside a window: the right bytes */
	bool bounded; /* over its end and before its beginning, within the region: refused */
	bool revoked; /* after the invalidation: refused */
	char why[96]; /* what went wrong, where something did */
};

/** @thread init @cost five short-lived connections; up to some seconds on a device that does not answer */
void rv_verbs_windows_try(const struct rv_verbs_device *d, struct rv_verbs_windows *out);

/**
 * The fence to use.
 *
 * @param wanted  RV_VERBS_FENCE_AUTO, or what must be
 * @param w       looked at for AUTO and WINDOW only
 * @return false: what must be cannot be, and @why says so
 */
bool rv_verbs_fence_choose(enum rv_verbs_fence wanted, const struct rv_verbs_windows *w,
			   enum rv_verbs_fence *out, char *why, size_t cap);

#endif
