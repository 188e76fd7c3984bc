#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/config/config_impl.h"
#include "control/config/memory_limit.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

#define LEASE_TIMEOUT_MIN   RV_MS(1)
#define EP_IDLE_TIMEOUT_MIN RV_MS(500)

/* A stock owner's pull answer: its chunk, a response header, the headers it echoes. */
#define STOCK_ANSWER_MAX (RV_KIB(512) + 19 + RV_KIB(16))

/* ---- defaults that depend on the machine or on other keys ---- */

/* $NAME/rvd, or the fallback where the variable is unset or relative. */
static void xdg_dir(char out[RV_CONFIG_TEXT_MAX], const char *name, const char *fallback)
{
	const char *base = getenv(name);

	if (base && *base == '/' && strlen(base) < RV_CONFIG_TEXT_MAX - 32)
		snprintf(out, RV_CONFIG_TEXT_MAX, "%s/rvd", base);
	else
		snprintf(out, RV_CONFIG_TEXT_MAX, "%s", fallback);
}

static void home_dir(char out[RV_CONFIG_TEXT_MAX], const char *below)
{
	const char *home = getenv("HOME");

	if (!home || *home != '/' || strlen(home) > RV_CONFIG_TEXT_MAX - 64)
		home = "/tmp";
	snprintf(out, RV_CONFIG_TEXT_MAX, "%s/%s/rvd", home, below);
}

void rv_config_default_dirs(bool privileged, struct rv_config_dirs *out)
{
	char fallback[RV_CONFIG_TEXT_MAX];
	char dir[RV_CONFIG_TEXT_MAX];

	if (privileged) {
		strcpy(out->config_file, "/etc/rvd/rvd.conf");
		strcpy(out->runtime_dir, "/run/rvd");
		strcpy(out->state_dir, "/var/lib/rvd");
		return;
	}
	home_dir(fallback, ".config");
	xdg_dir(dir, "XDG_CONFIG_HOME", fallback);
	snprintf(out->config_file, sizeof(out->config_file), "%.*s/rvd.conf",
		 (int)sizeof(out->config_file) - 16, dir);
	snprintf(fallback, sizeof(fallback), "/tmp/rvd-%u", (unsigned)geteuid());
	xdg_dir(out->runtime_dir, "XDG_RUNTIME_DIR", fallback);
	home_dir(fallback, ".local/state");
	xdg_dir(out->state_dir, "XDG_STATE_HOME", fallback);
}

static bool was_set(const struct rv_config *cfg, const struct rv_opt *o)
{
	return cfg->entries[o - rv_opts].text != NULL;
}

/* Fill in a key that nobody set. */
static void derive(struct rv_config *cfg, const char *section, const char *key, const char *text)
{
	const struct rv_opt *o = rv_config_find(section, key);

	RV_CHECK(o);
	if (!was_set(cfg, o))
		rv_config_override(cfg, o, text, "default");
}

static void derive_node(struct rv_config *cfg)
{
	struct rv_config_dirs dirs;
	char host[RV_CONFIG_HOST_MAX] = "";

	if (gethostname(host, sizeof(host) - 1) || !*host)
		strcpy(host, "localhost");
	rv_config_default_dirs(geteuid() == 0, &dirs);
	derive(cfg, "node", "name", host);
	derive(cfg, "node", "runtime_dir", dirs.runtime_dir);
	derive(cfg, "node", "state_dir", dirs.state_dir);
}

static void derive_socket(struct rv_config *cfg)
{
	char text[RV_CONFIG_TEXT_MAX];

	snprintf(text, sizeof(text), "%.*s/rvd.sock", (int)sizeof(text) - 16,
		 cfg->node.runtime_dir);
	derive(cfg, "local", "socket", text);
}

static void derive_numbers(struct rv_config *cfg)
{
	char text[32];

	rv_config_format_ns(cfg->rendezvous.lease_timeout_ns, text);
	derive(cfg, "rendezvous", "quarantine", text);
	rv_config_format_size(rv_memory_limit() / 2, text);
	derive(cfg, "memory", "plain_bytes_budget", text);
}

/* ---- each against the others ---- */

/*
 * Complain where the value of an option came from: an origin from a file is FILE:LINE in one
 * string.
 */
static int complain_at(const struct rv_config *cfg, const struct rv_config_sink *sink,
		       const char *section, const char *key, const char *text)
{
	const struct rv_opt *o = rv_config_find(section, key);
	char file[RV_CONFIG_TEXT_MAX];
	struct rv_config_place at = {sink, file, 0};
	const struct rv_config_entry *e;
	char *colon;

	RV_CHECK(o);
	e = &cfg->entries[o - rv_opts];
	snprintf(file, sizeof(file), "%s", e->origin ? e->origin : "default");
	colon = strrchr(file, ':');
	if (e->line > 0 && colon) {
		*colon = '\0';
		at.line = e->line;
	}
	return rv_config_complain(&at, "%s", text);
}

static void raise_ns(struct rv_config *cfg, const struct rv_config_sink *sink, const char *section,
		     const char *key, uint64_t ns, uint64_t floor)
{
	char given[32], least[32], text[160], origin[80];

	if (ns >= floor)
		return;
	rv_config_format_ns(ns, given);
	rv_config_format_ns(floor, least);
	snprintf(text, sizeof(text), "warning: %s.%s: %s is raised to %s, the least that works",
		 section, key, given, least);
	complain_at(cfg, sink, section, key, text);
	snprintf(origin, sizeof(origin), "raised from %s", given);
	rv_config_override(cfg, rv_config_find(section, key), least, origin);
}

/*
 * rdma_min_bytes <= threshold < chunk_size: then every staged payload is large enough for RDMA, and
 * a payload sent inline never needs more than one chunk's worth of buffer.
 */
static void check_order(const struct rv_config *cfg, const struct rv_config_sink *sink)
{
	char low[32], high[32], text[320];

	rv_config_format_size(cfg->rendezvous.threshold, low);
	if (cfg->rendezvous.rdma_min_bytes > cfg->rendezvous.threshold) {
		rv_config_format_size(cfg->rendezvous.rdma_min_bytes, high);
		snprintf(text, sizeof(text),
			 "warning: rendezvous.rdma_min_bytes is above rendezvous.threshold: staged "
			 "payloads over %s and under %s lose the RDMA path",
			 low, high);
		complain_at(cfg, sink, "rendezvous", "rdma_min_bytes", text);
	}
	if (cfg->rendezvous.threshold >= cfg->rendezvous.chunk_size) {
		rv_config_format_size(cfg->rendezvous.chunk_size, high);
		snprintf(text, sizeof(text),
			 "warning: rendezvous.threshold is not below rendezvous.chunk_size: call "
			 "payloads from %s up to %s go inline and lose the RDMA path",
			 high, low);
		complain_at(cfg, sink, "rendezvous", "threshold", text);
	}
}

static void check_sizes(const struct rv_config *cfg, const struct rv_config_sink *sink)
{
	if (cfg->rendezvous.pull_window < cfg->rendezvous.chunk_size)
		complain_at(cfg, sink, "rendezvous", "pull_window",
			    "warning: rendezvous.pull_window is below rendezvous.chunk_size: one "
			    "chunk at a time is requested");
	if (cfg->ucx.eager_max < STOCK_ANSWER_MAX)
		complain_at(cfg, sink, "ucx", "eager_max",
			    "warning: ucx.eager_max has no room for a stock owner's chunk of "
			    "512KiB: its answers over UCX would be lost");
	if (cfg->memory.registered_bytes_budget < cfg->memory.initial_arena_bytes)
		complain_at(cfg, sink, "memory", "registered_bytes_budget",
			    "warning: memory.registered_bytes_budget is below "
			    "memory.initial_arena_bytes: nothing can be pinned");
}

static int check_arenas(const struct rv_config *cfg, const struct rv_config_sink *sink)
{
	if (cfg->memory.initial_arena_bytes <= cfg->memory.max_arena_bytes)
		return 0;
	return complain_at(cfg, sink, "memory", "initial_arena_bytes",
			   "memory.initial_arena_bytes is above memory.max_arena_bytes");
}

static int check_socket(const struct rv_config *cfg, const struct rv_config_sink *sink)
{
	if (strlen(cfg->local.socket) < sizeof(((struct sockaddr_un *)0)->sun_path))
		return 0;
	return complain_at(cfg, sink, "local", "socket",
			   "local.socket: a UNIX socket's path has at most 107 characters");
}

/* A listener takes addresses, no names. */
static int check_listen(const struct rv_config *cfg, const struct rv_config_sink *sink,
			const char *section, const struct rv_config_hosts *listen)
{
	char text[RV_CONFIG_HOST_MAX + 160];
	struct in6_addr ip;

	for (unsigned i = 0; i < listen->nr; i++) {
		const char *host = listen->at[i].host;

		if (inet_pton(AF_INET, host, &ip) == 1 || inet_pton(AF_INET6, host, &ip) == 1)
			continue;
		snprintf(
			text, sizeof(text),
			"%s.listen: \"%s\" is a name: write the address, 127.0.0.1:7471 or [::1]:7471",
			section, host);
		return complain_at(cfg, sink, section, "listen", text);
	}
	return 0;
}

static int check_discovery(const struct rv_config *cfg, const struct rv_config_sink *sink)
{
	if (cfg->discovery.kind == RV_CONFIG_DISCOVERY_FILE && !cfg->discovery.path[0])
		return complain_at(cfg, sink, "discovery", "kind",
				   "discovery.kind = file needs discovery.path");
	if (cfg->discovery.kind == RV_CONFIG_DISCOVERY_ETCD && !cfg->discovery.endpoints[0])
		return complain_at(cfg, sink, "discovery", "kind",
				   "discovery.kind = etcd needs discovery.endpoints");
	return 0;
}

static int check_peer(const struct rv_config_peer *p, const struct rv_config_sink *sink)
{
	struct rv_config_place at = {sink, p->origin, p->line};

	if (!*p->address.host && !*p->peer_info)
		return rv_config_complain(&at, "peer \"%s\" needs address or peer_info", p->name);
	if (*p->address.host && *p->peer_info)
		return rv_config_complain(&at, "peer \"%s\" has both address and peer_info",
					  p->name);
	return 0;
}

int rv_config_finish(struct rv_config *cfg, const struct rv_config_sink *sink)
{
	int rc = 0;

	raise_ns(cfg, sink, "rendezvous", "lease_timeout", cfg->rendezvous.lease_timeout_ns,
		 LEASE_TIMEOUT_MIN);
	raise_ns(cfg, sink, "ucx", "ep_idle_timeout", cfg->ucx.ep_idle_timeout_ns,
		 EP_IDLE_TIMEOUT_MIN);
	derive_node(cfg);
	derive_socket(cfg);
	derive_numbers(cfg);

	check_order(cfg, sink);
	check_sizes(cfg, sink);
	if (check_arenas(cfg, sink) || check_socket(cfg, sink))
		rc = -EINVAL;
	if (check_listen(cfg, sink, "tcp", &cfg->tcp.listen) ||
	    check_listen(cfg, sink, "metrics", &cfg->metrics.listen))
		rc = -EINVAL;
	if (check_discovery(cfg, sink))
		rc = -EINVAL;
	for (size_t i = 0; i < cfg->peer_nr; i++)
		if (check_peer(&cfg->peer[i], sink))
			rc = -EINVAL;
	return rc;
}
