#include "tools/bench_end.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/json/json.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "ucx/fabric_ucx.h"

extern char **environ;

int rv_bench_fail(const struct rv_bench_opts *o, const char *fmt, ...)
{
	char text[RV_BENCH_WHY];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ')
			*p = ' ';
	fprintf(stderr, "%s: %s: %s\n", rv_bench_prog(o->kind), o->host ? "client" : "server",
		text);
	return 1;
}

/* ---- the private node ---- */

struct complaints {
	const char *prog;
	char first[RV_BENCH_WHY];
};

static void complain(void *user, const char *file, int line, const char *text)
{
	struct complaints *c = user;

	(void)line;
	if (strncmp(text, "warning: unknown variable", 25) == 0)
		fprintf(stderr, "%s: %s: %s\n", c->prog, file, text);
	else if (strncmp(text, "warning: ", 9) != 0 && !c->first[0])
		snprintf(c->first, sizeof(c->first), "%s: %s", file, text);
}

static int make_dir(struct rv_bench_end *e)
{
	const char *base = getenv("TMPDIR");

	/* A UNIX socket's path has room for 107 characters. */
	if (!base || base[0] != '/' || strlen(base) > 80)
		base = "/tmp";
	snprintf(e->dir, sizeof(e->dir), "%s/rvd-bench-XXXXXX", base);
	if (mkdtemp(e->dir))
		return 0;
	rv_bench_fail(e->o, "node: cannot make a folder in %s: %s", base, strerror(errno));
	e->dir[0] = '\0';
	return 1;
}

static void remove_dir(struct rv_bench_end *e)
{
	static const char *const files[] = {"rvd.sock", "ports", "workers"};
	char path[160];

	if (!e->dir[0])
		return;
	for (size_t i = 0; i < RV_ARRAY_NR(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", e->dir, files[i]);
		unlink(path);
	}
	if (rmdir(e->dir) && errno != ENOENT)
		rv_bench_fail(e->o, "node: cannot remove %s: %s", e->dir, strerror(errno));
	e->dir[0] = '\0';
}

/* The address that the server will see: a client listens there and nowhere else. */
static void own_address(const char *host, char out[INET6_ADDRSTRLEN])
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *all;
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);
	int fd;

	strcpy(out, "127.0.0.1");
	if (getaddrinfo(host, "9", &hints, &all))
		return; /* whoever dials says what is wrong */
	fd = socket(all->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, all->ai_addr, all->ai_addrlen) == 0 &&
	    getsockname(fd, (struct sockaddr *)&own, &len) == 0)
		getnameinfo((struct sockaddr *)&own, len, out, INET6_ADDRSTRLEN, NULL, 0,
			    NI_NUMERICHOST);
	if (fd >= 0)
		close(fd);
	freeaddrinfo(all);
	if (strchr(out, '%'))
		strcpy(out,
		       "::1"); /* link-local: a scope cannot be written into the configuration */
}

static void listen_option(const struct rv_bench_opts *o, char *out, size_t cap)
{
	char own[INET6_ADDRSTRLEN];

	if (!o->host) {
		snprintf(out, cap, "tcp.listen=0.0.0.0:%u", o->port);
		return;
	}
	own_address(o->host, own);
	snprintf(out, cap, strchr(own, ':') ? "tcp.listen=[%s]:0" : "tcp.listen=%s:0", own);
}

/* Is there a device that reads remote memory by itself? */
static bool native_lane(const char *devices)
{
	struct rv_ucx_conf conf = {.mode = RV_UCX_AUTO, .net_devices = devices, .reactors = 1};
	struct rv_fabric *f;

	if (rv_ucx_create(&conf, &f))
		return false;
	f->ops->destroy(f);
	return true;
}

/* A path that was asked for is the only one that is armed. */
static void verbs_options(struct rv_bench_end *e, char (*option)[320], unsigned *nr)
{
	const struct rv_bench_opts *o = e->o;

	strcpy(option[(*nr)++], "verbs.listen=0.0.0.0:0");
	if (o->path != RV_BENCH_PATH_ANY)
		snprintf(option[(*nr)++], 320, "verbs.enabled=%s",
			 o->path == RV_BENCH_PATH_VERBS ? "yes" : "no");
	if (o->device)
		snprintf(option[(*nr)++], 320, "verbs.device=%s", o->device);
	if (o->ib_port != UINT32_MAX)
		snprintf(option[(*nr)++], 320, "verbs.port=%" PRIu32, o->ib_port);
	if (o->gid != UINT32_MAX)
		snprintf(option[(*nr)++], 320, "verbs.gid_index=%" PRIu32, o->gid);
}

/* UCX over tcp lets any peer that reaches it read and write this process: only where it was asked for by name. */
static void ucx_options(struct rv_bench_end *e, char (*option)[320], unsigned *nr)
{
	const struct rv_bench_opts *o = e->o;
	char devices[256] = "";

	if (o->device && o->ib_port != UINT32_MAX)
		snprintf(devices, sizeof(devices), "%s:%" PRIu32, o->device, o->ib_port);
	else if (o->device)
		snprintf(devices, sizeof(devices), "%s", o->device);
	if (devices[0])
		snprintf(option[(*nr)++], 320, "ucx.net_devices=%s", devices);
	if (o->path == RV_BENCH_PATH_CHUNKED || o->path == RV_BENCH_PATH_LOCAL ||
	    o->path == RV_BENCH_PATH_VERBS) {
		strcpy(option[(*nr)++], "ucx.enabled=no");
		return;
	}
	if (o->path != RV_BENCH_PATH_UCX)
		return;
	if (native_lane(devices[0] ? devices : NULL))
		return; /* `auto` takes it */
	strcpy(option[(*nr)++], "ucx.enabled=yes");
	strcpy(option[(*nr)++], "ucx.tls=tcp");
}

/* What is in flight at once lands in registered memory, with room for views that are just being given back. */
static uint64_t budget(const struct rv_bench_opts *o)
{
	uint64_t size = o->all ? 1u << RV_BENCH_ALL_LAST : o->size;
	uint64_t at_once = (uint64_t)o->qps * (o->batch ? o->batch : o->depth);

	if (at_once > RV_GIB(1024) / size)
		return RV_GIB(1024);
	return rv_max_u64(RV_GIB(1), 2 * size * at_once);
}

static int configure(struct rv_bench_end *e)
{
	struct complaints c = {.prog = rv_bench_prog(e->o->kind)};
	struct rv_config_sink sink = {complain, &c};
	char option[24][320];
	unsigned nr = 0;

	snprintf(option[nr++], 320, "node.runtime_dir=%s", e->dir);
	snprintf(option[nr++], 320, "node.state_dir=%s", e->dir);
	snprintf(option[nr++], 320, "local.socket=%s/rvd.sock", e->dir);
	strcpy(option[nr++], "local.mode=0600");
	strcpy(option[nr++], "metrics.listen=none");
	strcpy(option[nr++], "metrics.telemetry=no");
	strcpy(option[nr++], "log.level=error");
	strcpy(option[nr++], "shutdown.timeout=2s");
	strcpy(option[nr++],
	       "rendezvous.rdma_min_bytes=0"); /* every size goes the way that was asked for */
	snprintf(option[nr++], 320, "memory.registered_bytes_budget=%" PRIu64, budget(e->o));
	listen_option(e->o, option[nr++], 320);
	ucx_options(e, option, &nr);
	verbs_options(e, option, &nr);
	rv_config_apply_env(e->cfg, environ, &sink);
	for (unsigned i = 0; i < nr; i++)
		rv_config_apply_option(e->cfg, option[i], &sink);
	rv_config_finish(e->cfg, &sink);
	return c.first[0] ? rv_bench_fail(e->o, "node: configuration: %s", c.first) : 0;
}

static int start_node(struct rv_bench_end *e)
{
	char why[512] = "", gid[16];
	int rc;

	if (e->o->gid != UINT32_MAX) {
		snprintf(gid, sizeof(gid), "%" PRIu32, e->o->gid);
		setenv("UCX_IB_GID_INDEX", gid, 1);
	}
	e->cfg = calloc(1, sizeof(*e->cfg));
	if (!e->cfg || rv_config_defaults(e->cfg))
		return rv_bench_fail(e->o, "node: out of memory");
	rc = configure(e);
	if (rc)
		return rc;
	rv_log_set_level(RV_LOG_ERROR); /* one line for each failure: this program's */
	rc = rv_node_start(e->cfg, &e->node, why, sizeof(why));
	if (rc) {
		e->node = NULL;
		return rv_bench_fail(e->o, "node: %s", why);
	}
	e->port = rv_node_tcp_port(e->node);
	return 0;
}

/* ---- what the node is ---- */

static void copy_text(const struct rv_json *v, char *out, size_t cap)
{
	size_t len;
	const char *text = rv_json_text(v, &len);

	snprintf(out, cap, "%s", text ? text : "");
}

/* "HOST:PORT", the first that the node listens on. */
static void read_port(struct rv_bench_end *e, const struct rv_json *status)
{
	char at[300], host[RV_HOST_MAX];

	copy_text(rv_json_at(rv_json_get(status, "tcp"), 0), at, sizeof(at));
	if (!e->port)
		rv_host_parse(at, host, &e->port);
}

static int read_status(struct rv_bench_end *e)
{
	struct rv_json *doc;
	char *text;
	size_t len;
	int rc = rv_list(e->session[0], RV_TABLE_STATUS, &text, &len);

	if (rc)
		return rv_bench_fail(e->o, "node: its status: %s", rv_last_error());
	rc = rv_json_parse(text, len, &doc, NULL);
	rv_free(text);
	if (rc)
		return rv_bench_fail(e->o, "node: its status is not JSON");
	copy_text(rv_json_at(rv_json_get(doc, "fabrics"), 0), e->fabric, sizeof(e->fabric));
	copy_text(rv_json_get(doc, "ucx_version"), e->version, sizeof(e->version));
	copy_text(rv_json_get(doc, "verbs"), e->verbs, sizeof(e->verbs));
	e->emulated = strncmp(e->fabric, "ucx tcp", 7) == 0;
	read_port(e, doc);
	rv_json_free(doc);
	return 0;
}

static void read_boot(struct rv_bench_end *e)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");

	if (!f)
		return;
	if (!fgets(e->boot, sizeof(e->boot), f))
		e->boot[0] = '\0';
	e->boot[strcspn(e->boot, "\n")] = '\0';
	fclose(f);
}

static int open_sessions(struct rv_bench_end *e, unsigned nr)
{
	const char *path = e->o->socket ? e->o->socket : e->cfg->local.socket;

	for (; e->session_nr < nr; e->session_nr++)
		if (rv_open(path, &e->session[e->session_nr]))
			return rv_bench_fail(e->o, "session with %s: %s",
					     e->o->socket ? path : "the private node",
					     rv_last_error());
	return 0;
}

int rv_bench_end_start(struct rv_bench_end *e, const struct rv_bench_opts *o, unsigned sessions)
{
	int rc = 0;

	*e = (struct rv_bench_end){.o = o};
	if (!o->socket) {
		rc = make_dir(e);
		if (!rc)
			rc = start_node(e);
	}
	if (!rc)
		rc = open_sessions(e, sessions);
	remove_dir(e);
	if (!rc)
		rc = read_status(e);
	read_boot(e);
	if (rc)
		rv_bench_end_stop(e);
	return rc;
}

int rv_bench_end_stop(struct rv_bench_end *e)
{
	struct rv_node_end end = {0};
	int rc = 0;

	while (e->session_nr)
		rv_close(e->session[--e->session_nr]);
	if (e->node)
		rc = rv_node_stop(e->node, NULL, NULL, &end);
	e->node = NULL;
	if (rc)
		rv_bench_fail(e->o, "node: stopped, but %" PRIu64 " operations had to be cut",
			      end.cut);
	if (end.unconfirmed) {
		fflush(NULL);
		_exit(1); /* no exit handlers: libraries would free what a device may still reach */
	}
	if (e->cfg) {
		rv_config_fini(e->cfg);
		free(e->cfg);
	}
	e->cfg = NULL;
	return rc ? 1 : 0;
}
