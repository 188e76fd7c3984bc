#include "control/config/memory_limit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/units.h"

#define LIST "/proc/self/cgroup"
#define ROOT "/sys/fs/cgroup"

/* The two versions of the same. */
static const struct files {
	const char *folder, *limit, *usage, *idle;
} version1 = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
  version2 = {"", "memory.max", "memory.current", "inactive_file"};

/* A number for each group; the least counts. */
typedef uint64_t group_fn(const char *folder, const struct files *f);

static FILE *open_in(const char *folder, const char *name)
{
	char path[1200];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return fopen(path, "re");
}

/* The number in a one-line file; RV_NEVER when there is no file, or it says "max". */
static uint64_t read_number(const char *folder, const char *name)
{
	FILE *f = open_in(folder, name);
	uint64_t n = RV_NEVER;

	if (!f)
		return RV_NEVER;
	if (fscanf(f, "%" SCNu64, &n) != 1)
		n = RV_NEVER;
	fclose(f);
	return n;
}

/* A line "NAME NUMBER" of memory.stat; 0 when there is none. */
static uint64_t read_stat(const char *folder, const char *name)
{
	FILE *f = open_in(folder, "memory.stat");
	uint64_t n = 0, v;
	char key[64];

	if (!f)
		return 0;
	while (fscanf(f, "%63s %" SCNu64, key, &v) == 2) {
		if (strcmp(key, name) == 0)
			n = v;
	}
	fclose(f);
	return n;
}

static uint64_t limit_of(const char *folder, const struct files *f)
{
	return read_number(folder, f->limit);
}

static uint64_t room_of(const char *folder, const struct files *f)
{
	uint64_t limit = read_number(folder, f->limit), used, idle, most;

	/* Without a limit version 1 says as many bytes as fit into a signed number. */
	if (limit > INT64_MAX / 2)
		return RV_NEVER;
	used = read_number(folder, f->usage);
	if (used == RV_NEVER)
		return RV_NEVER;
	idle = read_stat(folder, f->idle);
	used -= rv_min_u64(used, idle);
	most = limit / 10 * 9;
	return used < most ? most - used : 0;
}

/* From a group up to the root of its hierarchy. @group is cut up on the way. */
static uint64_t least_of(const char *root, char *group, const struct files *f, group_fn *fn)
{
	uint64_t least = RV_NEVER;
	char folder[1100];

	for (;;) {
		char *slash = strrchr(group, '/');

		if (snprintf(folder, sizeof(folder), "%s%s%s", root, f->folder, group) <
		    (int)sizeof(folder))
			least = rv_min_u64(least, fn(folder, f));
		if (!slash)
			return least;
		*slash = '\0';
	}
}

/* A line of /proc/self/cgroup: "0::/path" is version 2, "N:memory:/path" version 1. */
static uint64_t of_line(const char *root, char *line, group_fn *fn)
{
	char *names = strchr(line, ':');
	char *group = names ? strchr(names + 1, ':') : NULL;

	if (!group)
		return RV_NEVER;
	*group++ = '\0';
	group[strcspn(group, "\n")] = '\0';
	if (names[1] == '\0')
		return least_of(root, group, &version2, fn);
	if (strstr(names + 1, "memory"))
		return least_of(root, group, &version1, fn);
	return RV_NEVER;
}

static uint64_t least_at(const char *list, const char *root, group_fn *fn)
{
	uint64_t least = RV_NEVER;
	FILE *f = fopen(list, "re");
	char line[1024];

	if (!f)
		return least;
	while (fgets(line, sizeof(line), f))
		least = rv_min_u64(least, of_line(root, line, fn));
	fclose(f);
	return least;
}

uint64_t rv_memory_limit_at(const char *list, const char *root)
{
	return least_at(list, root, limit_of);
}

uint64_t rv_memory_room_at(const char *list, const char *root)
{
	return least_at(list, root, room_of);
}

uint64_t rv_memory_limit(void)
{
	return rv_min_u64((uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
			  rv_memory_limit_at(LIST, ROOT));
}

uint64_t rv_memory_room(void)
{
	return rv_memory_room_at(LIST, ROOT);
}
