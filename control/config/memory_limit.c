#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/config/config_impl.h"
#include "dataplane/base/units.h"

/* The number in a one-line file; RV_NEVER when there is no file, or it says "max". */
static uint64_t read_limit(const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t n = RV_NEVER;

	if (!f)
		return RV_NEVER;
	if (fscanf(f, "%" SCNu64, &n) != 1)
		n = RV_NEVER;
	fclose(f);
	return n;
}

/* The least limit from a group up to the root of its hierarchy. @group is cut up on the way. */
static uint64_t group_limit(const char *root, char *group, const char *file)
{
	uint64_t least = RV_NEVER;
	char path[1024];

	for (;;) {
		char *slash = strrchr(group, '/');

		if (snprintf(path, sizeof(path), "%s%s/%s", root, group, file) < (int)sizeof(path))
			least = rv_min_u64(least, read_limit(path));
		if (!slash)
			return least;
		*slash = '\0';
	}
}

/* A line of /proc/self/cgroup: "0::/path" is version 2, "N:memory:/path" version 1. */
static uint64_t line_limit(char *line)
{
	char *names = strchr(line, ':');
	char *group = names ? strchr(names + 1, ':') : NULL;

	if (!group)
		return RV_NEVER;
	*group++ = '\0';
	group[strcspn(group, "\n")] = '\0';
	if (names[1] == '\0')
		return group_limit("/sys/fs/cgroup", group, "memory.max");
	if (strstr(names + 1, "memory"))
		return group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
	return RV_NEVER;
}

uint64_t rv_memory_limit(void)
{
	uint64_t least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[1024];

	if (!f)
		return least;
	while (fgets(line, sizeof(line), f))
		least = rv_min_u64(least, line_limit(line));
	fclose(f);
	return least;
}
