/*
 * rvd - the appliance: one process per node, in the foreground, logs to stderr.
 */
#include <errno.h>
#include <getopt.h>
#include <linux/close_range.h>
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
	const char *read; /* the file that was read; NULL: none */
	const char *option[128];
	unsigned option_nr;
	bool check, print, help_config;
};

/* Complaints that fail, counted; warnings are printed the same way. */
struct complaints {
	unsigned errors;
	bool log; /* the daemon runs: its log is where they are looked for */
};

static const char usage[] =
	"usage: rvd [-c FILE] [-s SECTION.KEY=VALUE]... [--check-config] [--print-config]\n"
	"           [--help-config] [-V] [-h]\n"
	"\n"
	"  -c, --config FILE    configuration (/etc/rvd/rvd.conf, if it is there; as\n"
	"                       another user than root $XDG_CONFIG_HOME/rvd/rvd.conf)\n"
	"  -s SECTION.KEY=VALUE one setting; before it comes RVD_<SECTION>_<KEY> of the\n"
	"                       environment, before that the file\n"
	"      --socket PATH    the same as -s local.socket=PATH (else RVD_SOCKET)\n"
	"      --check-config   say what is wrong with the configuration, or nothing;\n"
	"                       devices, ports, files and groups show at the start only\n"
	"      --print-config   print each setting with where it came from\n"
	"      --help-config    print every key with its default and what it means\n"
	"  -V, --version        print the version\n"
	"  -h, --help           print this help\n"
	"\n"
	"It stays in the foreground and logs to stderr. SIGTERM, SIGINT: drain and stop,\n"
	"at the second one at once; SIGHUP: read the configuration again.\n"
	"\n"
	"exit: 0 drained; 1 failed; 2 usage or configuration, nothing was started;\n"
	"      3 stopped, but something was cut\n";

static int wrong(const char *what, const char *word)
{
	fprintf(stderr, "rvd: %s %s. See rvd --help\n", what, word);
	return EXIT_USAGE;
}

static void complain(void *user, const char *file, int line, const char *text)
{
	struct complaints *c = user;
	bool error = strncmp(text, "warning: ", 9) != 0;
	char at[16] = "";

	c->errors += error;
	if (line)
		snprintf(at, sizeof(at), ":%d", line);
	if (c->log && error)
		rv_log_err("config: %s%s: %s", file, at, text);
	else if (c->log)
		rv_log_warn("config: %s%s: %s", file, at, text + 9);
	else
		fprintf(stderr, "%s%s: %s\n", file, at, text);
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
	int o, at = optind;

	opterr = 0; /* one line, with a way out */
	for (; (o = getopt_long(argc, argv, "+:c:s:Vh", longs, NULL)) != -1; at = optind) {
		switch (o) {
		case 'c':
			a->file = optarg;
			break;
		case 4:
			snprintf(socket_option, sizeof(socket_option), "local.socket=%s", optarg);
			optarg = socket_option;
			/* fall through */
		case 's':
			if (a->option_nr == sizeof(a->option) / sizeof(a->option[0]))
				return wrong("there are too many -s before", optarg);
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
			fputs(usage, stdout);
			return 0;
		case ':':
			return wrong("a value is missing after", argv[at]);
		default:
			return wrong("there is no option", argv[at]);
		}
	}
	return optind < argc ? wrong("there is no argument", argv[optind]) : -1;
}

/* @return 0, or the exit code; every complaint has been printed, or logged */
static int load(struct args *a, struct rv_config *cfg, bool log)
{
	static struct rv_config_dirs dirs; /* a->read may be in it */
	struct complaints c = {.log = log};
	struct rv_config_sink sink = {complain, &c};
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
		complain(&c, file, 0, strerrordesc_np(-rc));
		return EXIT_USAGE;
	}
	a->read = file;
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
	++*(unsigned *)user;
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
static void reload(struct args *a, const struct rv_config *running, struct rv_node *node)
{
	struct rv_config *fresh = calloc(1, sizeof(*fresh));
	unsigned changes = 0;

	if (!fresh) {
		rv_log_err("config: not reloaded: out of memory");
		return;
	}
	if (load(a, fresh, true)) {
		rv_log_err("config: not reloaded: all settings stay as they are");
	} else {
		rv_config_diff(running, fresh, changed, &changes);
		if (!changes)
			rv_log_info("config: read again, nothing has changed");
		rv_node_reload(node, fresh);
	}
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

static int serve(struct args *a, struct rv_config *cfg)
{
	sigset_t wait, ends;
	struct rv_node_end end;
	struct rv_node *node;
	char why[512];
	int rc;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	wait = ends;
	sigaddset(&wait, SIGHUP);
	/* Before any thread is made, so that all inherit it; signals are this thread's. */
	sigprocmask(SIG_BLOCK, &wait, NULL);
	signal(SIGPIPE, SIG_IGN);

	rv_log_info("rvd: version %s, %s%s", RV_VERSION,
		    a->read ? "configuration " : "no configuration file", a->read ? a->read : "");
	rc = rv_node_start(cfg, &node, why, sizeof(why));
	if (rc) {
		rv_log_err("%s", why);
		return rc == -EINVAL ? EXIT_USAGE : EXIT_RUNTIME;
	}
	/* Ours are close-on-exec from the start; what libraries opened is from here on. */
	close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
	notify("READY=1");
	while (next_signal(&wait, node) == SIGHUP)
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
	rc = load(&a, cfg, false);
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
