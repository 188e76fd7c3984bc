#include "control/service/busy.h"

#include "dataplane/base/units.h"

/* A shorter stretch than this says little about how busy a core is. */
#define MIN_NS RV_SEC(1)

/* Two who look in turn must not leave each other with stretches too short to mean anything. */
double rv_busy_ratio(struct rv_busy *b, uint64_t busy_ns, uint64_t now_ns)
{
	struct rv_busy_look *look = b->look;
	struct rv_busy_look now = {now_ns, busy_ns};
	const struct rv_busy_look *base;
	double ratio;

	if (!look[1].at_ns)
		look[1] = now;
	base = now.at_ns - look[1].at_ns >= MIN_NS || !look[0].at_ns ? &look[1] : &look[0];
	if (now.at_ns <= base->at_ns)
		return 0;
	ratio = (double)(now.busy_ns - base->busy_ns) / (double)(now.at_ns - base->at_ns);
	if (base == &look[1] && now.at_ns - base->at_ns >= MIN_NS) {
		look[0] = look[1];
		look[1] = now;
	}
	return ratio > 1 ? 1 : ratio;
}
