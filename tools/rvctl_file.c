#include "tools/rvctl_cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataplane/base/units.h"
#include "tools/rvctl_progress.h"

/* One write(2) moves at most about 2 GiB; and progress is to be seen. */
#define WRITE_MAX  RV_MIB(8)
#define READ_FIRST RV_MIB(1)

/* What a signal removes; the program writes one file. */
static char victim[4096];
static volatile sig_atomic_t victim_there;

static void remove_and_die(int sig)
{
	if (victim_there)
		unlink(victim);
	signal(sig, SIG_DFL);
	raise(sig);
}

static void guard(const char *path)
{
	struct sigaction sa = {.sa_handler = remove_and_die};

	snprintf(victim, sizeof(victim), "%s", path);
	victim_there = 1;
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGHUP, &sa, NULL);
}

static int open_temporary(struct rv_ctl_out *out)
{
	mode_t mask = umask(0);
	int n = snprintf(out->temp, sizeof(out->temp), "%s.XXXXXX", out->path);

	umask(mask);
	if (n < 0 || (size_t)n >= sizeof(out->temp))
		return -ENAMETOOLONG;
	out->fd = mkostemp(out->temp, O_CLOEXEC);
	if (out->fd < 0)
		return -errno;
	guard(out->temp);
	fchmod(out->fd, 0666 & ~mask);
	out->temporary = true;
	return 0;
}

int rv_ctl_out_open(const char *path, struct rv_ctl_out *out)
{
	struct stat st;

	*out = (struct rv_ctl_out){.fd = STDOUT_FILENO, .path = path};
	if (strcmp(path, "-") == 0)
		return 0;
	/* A device or a pipe has no other name to be written under. */
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		out->fd = open(path, O_WRONLY | O_CLOEXEC);
		return out->fd < 0 ? -errno : 0;
	}
	return open_temporary(out);
}

int rv_ctl_out_write(struct rv_ctl_out *out, const void *data, uint64_t len)
{
	const uint8_t *p = data;

	while (len) {
		ssize_t n = write(out->fd, p, rv_min_u64(len, WRITE_MAX));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		len -= (uint64_t)n;
		rv_progress_add((uint64_t)n);
	}
	return 0;
}

int rv_ctl_out_commit(struct rv_ctl_out *out)
{
	int rc = 0;

	if (out->fd == STDOUT_FILENO)
		return 0;
	if (close(out->fd))
		rc = -errno;
	out->fd = -1;
	if (!rc && out->temporary && rename(out->temp, out->path))
		rc = -errno;
	if (rc)
		rv_ctl_out_abort(out);
	else
		victim_there = 0;
	return rc;
}

void rv_ctl_out_abort(struct rv_ctl_out *out)
{
	if (out->fd >= 0 && out->fd != STDOUT_FILENO)
		close(out->fd);
	if (out->temporary)
		unlink(out->temp);
	victim_there = 0;
}

static int more_room(void **data, uint64_t *cap)
{
	void *p = realloc(*data, *cap * 2);

	if (!p)
		return -ENOMEM;
	*data = p;
	*cap *= 2;
	return 0;
}

int rv_ctl_read_fd(int fd, void **data, uint64_t *len)
{
	uint64_t cap = READ_FIRST, got = 0;
	void *p = malloc(cap);
	int rc = p ? 0 : -ENOMEM;

	while (!rc) {
		ssize_t n = read(fd, (uint8_t *)p + got, rv_min_u64(cap - got, WRITE_MAX));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			rc = n < 0 ? -errno : 0;
			break;
		}
		got += (uint64_t)n;
		rv_progress_add((uint64_t)n);
		if (got == cap)
			rc = more_room(&p, &cap);
	}
	if (rc) {
		free(p);
		return rc;
	}
	*data = p;
	*len = got;
	return 0;
}

int rv_ctl_read_file(const char *path, void **data, uint64_t *len)
{
	int fd, rc;

	if (strcmp(path, "-") == 0)
		return rv_ctl_read_fd(STDIN_FILENO, data, len);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = rv_ctl_read_fd(fd, data, len);
	close(fd);
	return rc;
}
