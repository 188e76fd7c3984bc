#include "dataplane/rendezvous/acquire.h"

const char *rv_path_reason_name(enum rv_path_reason r)
{
	static const char *const names[RV_PATH_REASONS] = {
		[RV_PATH_OK] = "ok",
		[RV_PATH_NO_OFFER] = "no_offer",
		[RV_PATH_NOT_CONFIGURED] = "not_configured",
		[RV_PATH_KILL_SWITCH] = "kill_switch",
		[RV_PATH_NOT_PINNED] = "not_pinned",
		[RV_PATH_BELOW_MIN] = "below_min",
		[RV_PATH_DRAINING] = "draining",
		[RV_PATH_BUDGET] = "budget",
		[RV_PATH_POOL_EXHAUSTED] = "pool_exhausted",
		[RV_PATH_DECODE_ERROR] = "decode_error",
		[RV_PATH_GET_FAILED] = "get_failed",
	};

	return names[r];
}

enum rv_path_reason rv_acquire_decide(const struct rv_acquire_facts *f)
{
	if (!f->has_offer)
		return RV_PATH_NO_OFFER;
	if (!f->has_registry)
		return RV_PATH_NOT_CONFIGURED;
	if (!f->enabled)
		return RV_PATH_KILL_SWITCH;
	if (!f->pinned)
		return RV_PATH_NOT_PINNED;
	if (f->len < f->min_bytes)
		return RV_PATH_BELOW_MIN;
	if (!f->backend_named)
		return RV_PATH_NO_OFFER;
	if (f->draining)
		return RV_PATH_DRAINING;
	if (!f->describable)
		return RV_PATH_NOT_PINNED;
	return RV_PATH_OK;
}
