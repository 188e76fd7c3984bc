#include "tests/fake/fake_clock.h"

#include "dataplane/base/units.h"

uint64_t fake_now_ns = RV_SEC(1000);

uint64_t fake_clock(void)
{
	return fake_now_ns;
}
