/*
 * rvd - the appliance: one process per node, in the foreground, logs to stderr.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/config/config.h"
#include "control/config/config_file.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "tools/node.h"

extern char **environ;

enum { EXIT_RUNTIME = 1, EXIT_USAGE = 2, EXIT_CUT = 3 };

struct args {
	const char *file;
	const char *option[128];
	unsigned option_nr;
	bool check, print, help_config;
};

/* Complaints that fail, counted; warnings are printed the same way. */
struct complaints {
	unsigned errors;
};

static void usage(FILE *to)
{
	fprintf(to,
		"usage: rvd [-c FILE] [-s SECTION.KEY=VALUE]... [--check-config] [--print-config] [--help-config] "
		"[-V] [-h]\n");
}

static void complain(void *user, const char *file, int line, const char *text)
{
	struct complaints *c = user;

	c->errors += strncmp(text, "warning: ", 9) != 0;
	if (line)
		fprintf(stderr, "%s:%d: %s\n", file, line, text);
	else
		fprintf(stderr, "%s: %s\n", file, text);
}

/* @return -1 to go on, else the exit code */
static int parse_args(int argc, char **argv, struct args *a)
{
	static const struct option longs[] = {
		{"check-config", no_argument, NULL, 1},   {"print-config", no_argument, NULL, 2},
		{"help-config", no_argument, NULL, 3},    {"socket", required_argument, NULL, 4},
		{"version", no_argument, NULL, 'V'},      {"help", no_argument, NULL, 'h'},
		{"config", required_argument, NULL, 'c'}, {NULL, 0, NULL, 0},
	};
	static char socket_option[1200];
	int o;

	while ((o = getopt_long(argc, argv, "c:s:Vh", longs, NULL)) != -1) {
		switch (o) {
		case 'c':
			a->file = optarg;
			break;
		case 4:
			snprintf(socket_option, sizeof(socket_option), "local.socket=%s", optarg);
			optarg = socket_option;
			/* fall through */
		case 's':
			if (a->option_nr == sizeof(a->option) / sizeof(a->option[0])) {
				fprintf(stderr, "rvd: too many -s\n");
				return EXIT_USAGE;
			}
			a->option[a->option_nr++] = optarg;
			break;
		case 1:
			a->check = true;
			break;
		case 2:
			a->print = true;
			break;
		case 3:
			a->help_config = true;
			break;
		case 'V':
			printf("rvd %s\n", RV_VERSION);
			return 0;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "rvd: unexpected argument: %s\n", argv[optind]);
		usage(stderr);
		return EXIT_USAGE;
	}
	return -1;
}

/* @return 0, or the exit code; every complaint has been printed */
static int load(const struct args *a, struct rv_config *cfg)
{
	struct complaints c = {0};
	struct rv_config_sink sink = {complain, &c};
	struct rv_config_dirs dirs;
	const char *file = a->file;
	const char *sock = getenv("RVD_SOCKET");
	char option[1200];
	int rc;

	if (rv_config_defaults(cfg)) {
		fprintf(stderr, "rvd: out of memory\n");
		return EXIT_RUNTIME;
	}
	rv_config_default_dirs(geteuid() == 0, &dirs);
	if (!file && access(dirs.config_file, F_OK) == 0)
		file = dirs.config_file;
	rc = file ? rv_config_load_file(cfg, file, &sink) : 0;
	if (rc && !c.errors) {
		fprintf(stderr, "%s: %s\n", file, strerrordesc_np(-rc));
		return EXIT_USAGE;
	}
	rv_config_apply_env(cfg, environ, &sink);
	if (sock && *sock) {
		snprintf(option, sizeof(option), "local.socket=%s", sock);
		rv_config_apply_option(cfg, option, &sink);
	}
	for (unsigned i = 0; i < a->option_nr; i++)
		rv_config_apply_option(cfg, a->option[i], &sink);
	rv_config_finish(cfg, &sink);
	return c.errors ? EXIT_USAGE : 0;
}

/* READY=1 and friends, to whoever started us and asked for it. */
static void notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t len = path ? strlen(path) : 0;
	int fd;

	if (!len || len >= sizeof(sun.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(sun.sun_path, path, len);
	if (path[0] == '@')
		sun.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&sun,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
		rv_log_warn("systemd: cannot say %s: %m", state);
	close(fd);
}

static void changed(void *user, const char *section, const char *key, bool live)
{
	(void)user;
	if (live)
		rv_log_info("config: %s.%s has changed", section, key);
	else
		rv_log_warn("config: %s.%s has changed and needs a restart", section, key);
}

static void apply_log(const struct rv_config *cfg)
{
	rv_log_set_level(cfg->log.level);
	rv_log_set_json(cfg->log.format == RV_CONFIG_FORMAT_JSON);
}

/* Read again; what may change while running is applied, the rest is named. */
static void reload(const struct args *a, const struct rv_config *running, struct rv_node *node)
{
	struct rv_config *fresh = calloc(1, sizeof(*fresh));

	if (!fresh || load(a, fresh)) {
		rv_log_err("config: not reloaded: the file has errors");
		free(fresh);
		return;
	}
	rv_config_diff(running, fresh, changed, NULL);
	rv_node_reload(node, fresh);
	rv_config_fini(fresh);
	free(fresh);
}

/* A second signal while draining: stop at once. */
static bool hurry(void *ctx)
{
	const sigset_t *set = ctx;
	struct timespec now = {0};

	return sigtimedwait(set, NULL, &now) > 0;
}

/* How long systemd waits for a sign of life; 0: it does not. */
static uint64_t watchdog_ns(void)
{
	const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

	if (!us || (pid && strtol(pid, NULL, 10) != (long)getpid()))
		return 0;
	return rv_min_u64(strtoull(us, NULL, 10), UINT64_MAX / 1000) * 1000;
}

/* The next signal. Meanwhile systemd hears as long as every core turns. */
static int next_signal(const sigset_t *wait, struct rv_node *node)
{
	uint64_t each = watchdog_ns() / 3;
	struct timespec ts = {.tv_sec = (time_t)(each / RV_SEC(1)),
			      .tv_nsec = (long)(each % RV_SEC(1))};
	int sig;

	for (;;) {
		sig = each ? sigtimedwait(wait, NULL, &ts) : sigwaitinfo(wait, NULL);
		if (sig > 0)
			return sig;
		if (errno == EAGAIN && rv_node_is_turning(node))
			notify("WATCHDOG=1");
	}
}

static int serve(const struct args *a, struct rv_config *cfg)
{
	sigset_t wait, ends;
	struct rv_node_end end;
	struct rv_node *node;
	char why[512];
	int rc, sig;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	wait = ends;
	sigaddset(&wait, SIGHUP);
	/* Before any thread is made, so that all inherit it; signals are this thread's. */
	sigprocmask(SIG_BLOCK, &wait, NULL);
	signal(SIGPIPE, SIG_IGN);

	rc = rv_node_start(cfg, &node, why, sizeof(why));
	if (rc) {
		rv_log_err("%s", why);
		return rc == -EINVAL ? EXIT_USAGE : EXIT_RUNTIME;
	}
	notify("READY=1");
	while ((sig = next_signal(&wait, node)) == SIGHUP)
		reload(a, cfg, node);
	notify("STOPPING=1");
	rc = rv_node_stop(node, hurry, &ends, &end);
	if (end.unconfirmed)
		_exit(EXIT_CUT); /* no exit handlers: libraries would free what a device may still reach */
	return rc;
}

int main(int argc, char **argv)
{
	struct args a = {0};
	struct rv_config *cfg = calloc(1, sizeof(*cfg));
	int rc = parse_args(argc, argv, &a);

	if (rc >= 0 || !cfg) {
		free(cfg);
		return rc >= 0 ? rc : EXIT_RUNTIME;
	}
	if (a.help_config) {
		rv_config_help(stdout);
		free(cfg);
		return 0;
	}
	rc = load(&a, cfg);
	if (!rc && a.print)
		rv_config_print(cfg, stdout);
	if (!rc && !a.check && !a.print) {
		apply_log(cfg);
		rv_log_set_journal(rv_log_is_journal());
		rc = serve(&a, cfg);
	}
	rv_config_fini(cfg);
	free(cfg);
	return rc;
}
