#include "dataplane/lcore/eal_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Below it EAL makes dpdk/PREFIX; without it, below /var/run or where the user's own are. */
#define VARIABLE "RUNTIME_DIRECTORY"
#define PARENT   "/dpdk"
#define OURS     PARENT "/" RV_EAL_DIR_PREFIX
#define SOCKET   "/dpdk_telemetry.v2"

/* Descriptors are given lowest first, and there are few when EAL starts. */
#define FDS 256

static char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* the socket; "": none */
static char *before;                                           /* what VARIABLE was */

/* EAL leaves its directories behind. Runs after its own handler, which takes the socket away. */
static void remove_dirs(void)
{
	char dir[sizeof(path)];

	memcpy(dir, path, sizeof(dir));
	for (unsigned up = 0; up < 2 && dir[0]; up++) {
		*strrchr(dir, '/') = '\0';
		rmdir(dir);
	}
}

static int make_dir(const char *dir)
{
	if (mkdir(dir, 0700) && errno != EEXIST)
		return -errno;
	return access(dir, W_OK | X_OK) ? -errno : 0;
}

int rv_eal_dir_make(const char *runtime_dir)
{
	char dir[sizeof(path)];
	int len = snprintf(dir, sizeof(dir), "%s" OURS SOCKET ":1", runtime_dir), rc;

	if (len < 0 || (size_t)len >= sizeof(dir))
		return -ENAMETOOLONG;
	snprintf(dir, sizeof(dir), "%s" PARENT, runtime_dir);
	rc = make_dir(dir);
	if (rc)
		return rc;
	snprintf(dir, sizeof(dir), "%s" OURS, runtime_dir);
	rc = make_dir(dir);
	if (rc)
		return rc;
	if (atexit(remove_dirs))
		return -ENOMEM;
	snprintf(path, sizeof(path), "%s" OURS SOCKET, runtime_dir);
	return 0;
}

void rv_eal_dir_enter(const char *runtime_dir)
{
	const char *old = getenv(VARIABLE);

	before = old ? strdup(old) : NULL;
	setenv(VARIABLE, runtime_dir, 1);
}

/* Is it EAL's socket? EAL does not say which name it chose. */
static bool is_it(int fd, struct sockaddr_un *sun)
{
	socklen_t size = sizeof(*sun);

	*sun = (struct sockaddr_un){0};
	return !getsockname(fd, (struct sockaddr *)sun, &size) && sun->sun_family == AF_UNIX &&
	       !strncmp(sun->sun_path, path, strlen(path));
}

static void note_socket(void)
{
	struct sockaddr_un sun;

	for (int fd = 0; fd < FDS; fd++) {
		if (!is_it(fd, &sun))
			continue;
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		memcpy(path, sun.sun_path, sizeof(path));
		return;
	}
}

void rv_eal_dir_leave(void)
{
	if (before)
		setenv(VARIABLE, before, 1);
	else
		unsetenv(VARIABLE);
	free(before);
	before = NULL;
	note_socket();
}

const char *rv_eal_dir_socket(void)
{
	return path[0] ? path : NULL;
}
