#include "control/service/identity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/hash.h"

static void draw(struct rv_identity *id)
{
	do {
		rv_random_bytes(id->instance, sizeof(id->instance));
		id->instance[6] = (uint8_t)((id->instance[6] & 0x0f) | 0x40);
		id->instance[8] = (uint8_t)((id->instance[8] & 0x3f) | 0x80);
		id->worker = rv_hash_xxh3(id->instance, sizeof(id->instance));
	} while (!id->worker);
}

/* One id a line; what is no id is skipped: the file is a help, not a truth. */
static void load(struct rv_identity *id, const char *path)
{
	FILE *f = fopen(path, "re");
	uint64_t v;
	char line[64];

	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%" SCNu64, &v) != 1 || !v)
			continue;
		if (id->former_nr == RV_FORMER_MAX)
			memmove(id->former, id->former + 1,
				(RV_FORMER_MAX - 1) * sizeof(id->former[0]));
		else
			id->former_nr++;
		id->former[id->former_nr - 1] = v;
	}
	fclose(f);
}

static int save(const struct rv_identity *id, const char *path)
{
	char tmp[4096 + 8];
	size_t first = id->former_nr == RV_FORMER_MAX ? 1 : 0;
	FILE *f;
	int rc;

	if (snprintf(tmp, sizeof(tmp), "%s.new", path) >= (int)sizeof(tmp))
		return -ENAMETOOLONG;
	f = fopen(tmp, "we");
	if (!f)
		return -errno;
	for (size_t i = first; i < id->former_nr; i++)
		fprintf(f, "%" PRIu64 "\n", id->former[i]);
	fprintf(f, "%" PRIu64 "\n", id->worker);
	rc = ferror(f) ? -EIO : 0;
	if (fclose(f) && !rc)
		rc = -errno;
	if (!rc && rename(tmp, path))
		rc = -errno;
	if (rc)
		unlink(tmp);
	return rc;
}

int rv_identity_make(struct rv_identity *id, const char *state_dir)
{
	char path[4096];

	memset(id, 0, sizeof(*id));
	draw(id);
	if (!state_dir[0])
		return -ENOENT;
	if (mkdir(state_dir, 0755) && errno != EEXIST)
		return -errno;
	if (snprintf(path, sizeof(path), "%s/workers", state_dir) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	load(id, path);
	return save(id, path);
}

uint64_t rv_incarnation_make(uint64_t (*random)(void))
{
	uint64_t n;

	do
		n = random();
	while (!n);
	return n;
}
