#include "control/uring/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "control/uring/sockaddr.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

#define BACKLOG      1024
#define SOCK_BUF     (2 << 20)
#define SAY_AGAIN_NS RV_SEC(60)

static void accept_done(struct rv_op *op, int res, uint32_t flags);

int rv_listen_tcp(const char *host, uint16_t *port)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int fd, rc, one = 1, buf = SOCK_BUF;

	rc = rv_sockaddr_parse(host, *port, &sa, &len);
	if (rc)
		return rc;
	fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (sa.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buf, sizeof(buf));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buf, sizeof(buf));
	if (bind(fd, (struct sockaddr *)&sa, len) || listen(fd, BACKLOG) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*port = rv_sockaddr_port(&sa);
	return fd;
}

/* A daemon that was killed may seem to answer while the kernel still takes its io_uring apart. */
#define STALE_TRIES  50
#define STALE_NAP_NS RV_MS(20)

static bool answers_once(const struct sockaddr_un *sun)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool alive;

	if (fd < 0)
		return true;
	alive = connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0 || errno == EAGAIN;
	close(fd);
	return alive;
}

static bool somebody_answers(const struct sockaddr_un *sun)
{
	struct timespec nap = {.tv_nsec = STALE_NAP_NS};

	for (unsigned i = 0; i < STALE_TRIES; i++) {
		if (!answers_once(sun))
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

int rv_listen_unix(const char *path, mode_t mode, gid_t gid)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct stat st;
	int fd, rc;

	if (strlen(path) >= sizeof(sun.sun_path))
		return -ENAMETOOLONG;
	memcpy(sun.sun_path, path, strlen(path));
	if (lstat(path, &st) == 0) {
		if (!S_ISSOCK(st.st_mode))
			return -EEXIST;
		if (somebody_answers(&sun))
			return -EADDRINUSE;
		unlink(path);
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* Nobody may connect before the mode is right. */
	fchmod(fd, 0600);
	if (bind(fd, (struct sockaddr *)&sun, sizeof(sun)) ||
	    (gid != (gid_t)-1 && chown(path, (uid_t)-1, gid)) || chmod(path, mode) ||
	    listen(fd, BACKLOG)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static void arm(struct rv_listener *l)
{
	struct io_uring_sqe *sqe;

	if (l->op.pending || l->stopping)
		return;
	sqe = rv_uring_sqe(l->ring);
	io_uring_prep_multishot_accept(sqe, l->fd, NULL, NULL, SOCK_CLOEXEC);
	rv_uring_bind(l->ring, sqe, &l->op);
}

static void rested(struct rv_reactor *r, struct rv_task *t)
{
	(void)r;
	arm(RV_CONTAINER(t, struct rv_listener, again));
}

static int open_spare(void)
{
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void turn_away(struct rv_listener *l, int why)
{
	struct pollfd waiting = {.fd = l->fd, .events = POLLIN};
	int fd;

	if (l->reactor->now_ns >= l->say_at_ns) {
		rv_log_warn(
			"listener: connections are turned away, there is nothing to take them with: %s",
			strerrordesc_np(-why));
		l->say_at_ns = l->reactor->now_ns + SAY_AGAIN_NS;
	}
	if (l->spare >= 0)
		close(l->spare);
	for (unsigned i = 0; i < BACKLOG && poll(&waiting, 1, 0) == 1; i++) {
		fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			break;
		close(fd);
		if (l->away)
			rv_counter_add(l->away, 1);
	}
	l->spare = open_spare();
}

static void close_all(struct rv_listener *l)
{
	close(l->fd);
	l->fd = -1;
	if (l->spare >= 0)
		close(l->spare);
	l->spare = -1;
}

static void accept_done(struct rv_op *op, int res, uint32_t flags)
{
	struct rv_listener *l = RV_CONTAINER(op, struct rv_listener, op);

	if (res >= 0 && l->stopping)
		close(res);
	else if (res >= 0)
		l->accepted(l->user, res);
	if (flags & IORING_CQE_F_MORE)
		return;
	if (l->stopping) {
		close_all(l);
		return;
	}
	if (res == -EMFILE || res == -ENFILE || res == -ENOMEM || res == -ENOBUFS) {
		turn_away(l, res);
		rv_task_at(l->reactor, &l->again, l->reactor->now_ns + RV_LISTENER_REST_NS);
		return;
	}
	arm(l);
}

void rv_listener_start(struct rv_listener *l, struct rv_uring *ring, struct rv_reactor *reactor,
		       int fd, void (*accepted)(void *user, int fd), void *user)
{
	*l = (struct rv_listener){
		.op = {.done = accept_done},
		.ring = ring,
		.reactor = reactor,
		.again = {.fn = rested},
		.fd = fd,
		.spare = open_spare(),
		.accepted = accepted,
		.user = user,
	};
	arm(l);
}

void rv_listener_stop(struct rv_listener *l)
{
	if (l->stopping)
		return;
	l->stopping = true;
	rv_task_cancel(l->reactor, &l->again);
	if (l->op.pending) {
		rv_uring_cancel(l->ring, &l->op);
	} else if (l->fd >= 0) {
		close_all(l);
	}
}
