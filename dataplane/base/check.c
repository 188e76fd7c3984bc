#include "dataplane/base/check.h"

#include <stdio.h>
#include <stdlib.h>

void rv_check_failed(const char *cond, const char *file, int line)
{
	fprintf(stderr, "fatal %s:%d: check failed: %s\n", file, line, cond);
	abort();
}
