#include "tools/node_impl.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control/config/memory_limit.h"
#include "control/local/session.h"
#include "control/messenger/messenger.h"
#include "control/service/identity.h"
#include "control/service/metrics.h"
#include "control/service/metrics_http.h"
#include "control/service/registrar.h"
#include "control/uring/tcp_carrier.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/engine/msg.h"
#include "dataplane/lcore/eal.h"
#include "dataplane/lcore/telemetry.h"
#include "ucx/fabric_ucx.h"
#include "verbs/fabric_verbs.h"

#define CELLS            4096u
#define MAX_GETS         1024u
/* A core that never sleeps looks at a socket by hand so long after the last bytes. */
#define POLL_LOOK_NS     RV_MS(1)
/* A payload that goes with the answer to an acquire: below this a message costs more than its bytes. */
#define ANSWER_BYTES_MAX 65536u
#define RING_ENTRIES     512u

int __attribute__((format(printf, 4, 5)))
rv_node_fail(int rc, char *why, size_t cap, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, cap, fmt, ap);
	va_end(ap);
	return rc;
}

/* Threads. */

static int setup(struct rv_node_core *c)
{
	struct rv_node *n = c->node;
	int rc;

	if (c->net) {
		rc = rv_uring_init(&n->uring, RING_ENTRIES);
		if (rc)
			return rc;
		n->uring.look_ns =
			c->reactor.conf.never_sleep ? POLL_LOOK_NS : c->reactor.conf.idle_spin_ns;
		if (n->uring.entries < RING_ENTRIES)
			rv_log_warn(
				"privileges: the memlock limit leaves room for an io_uring of %u entries only: more "
				"system calls under load",
				n->uring.entries);
		rc = rv_reactor_add(&c->reactor, &n->uring.poller);
		if (rc)
			return rc;
	}
	for (unsigned i = 0; c->polling && i < n->fabric_nr; i++) {
		struct rv_poller *p = NULL;

		rc = n->fabric[i]->ops->open_reactor(n->fabric[i], c->reactor.index, &p);
		if (rc)
			return rc;
		c->fabrics_open++;
		rc = p ? rv_reactor_add(&c->reactor, p) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

static void start_serving(struct rv_node *n)
{
	for (unsigned i = 0; i < n->cfg->tcp.listen.nr; i++) {
		rv_tcp_carrier_listen(&n->tcp, n->tcp_fd[i]);
		n->tcp_fd[i] = -1; /* the listener's from here on */
	}
	for (unsigned i = 0; n->am[i]; i++) {
		if (rv_ucx_am_start(n->am[i]))
			rv_log_err("ucx: messages cannot be taken: out of memory");
	}
	rv_local_listen(n->local, n->local_fd);
	n->local_fd = -1;
}

static void core_main(void *arg)
{
	struct rv_node_core *c = arg;
	struct rv_node *n = c->node;
	bool run;

	c->setup_rc = setup(c);
	pthread_mutex_lock(&n->lock);
	n->ready++;
	pthread_cond_broadcast(&n->changed);
	while (n->phase == PHASE_SETUP)
		pthread_cond_wait(&n->changed, &n->lock);
	run = n->phase == PHASE_RUN;
	pthread_mutex_unlock(&n->lock);
	if (run) {
		if (c->net)
			start_serving(n);
		rv_reactor_run(&c->reactor);
	}
	for (unsigned i = 0; i < c->fabrics_open; i++)
		n->fabric[i]->ops->close_reactor(n->fabric[i], c->reactor.index);
	if (c->net && n->uring.buf_mem)
		rv_uring_fini(&n->uring);
}

static void set_phase(struct rv_node *n, enum rv_node_phase phase)
{
	pthread_mutex_lock(&n->lock);
	n->phase = phase;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
}

/* Which cores there are. */

static unsigned usable_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return (unsigned)CPU_COUNT(&set);
}

static void add_core(struct rv_node *n, bool polling, bool net, int cpu)
{
	struct rv_node_core *c = &n->core[n->core_nr];

	*c = (struct rv_node_core){.node = n, .polling = polling, .net = net, .cpu = cpu};
	snprintf(c->name, sizeof(c->name),
		 polling && net ? "rvd-core%u"
		 : net          ? "rvd-net%u"
				: "rvd-poll%u",
		 n->core_nr);
	if (net)
		n->net = c;
	n->core_nr++;
}

/* The kernel knows: a CPU may be absent, offline, or not in the control group's set. */
static bool cpu_can_be_had(int cpu)
{
	cpu_set_t before, one;
	bool ok;

	if (sched_getaffinity(0, sizeof(before), &before))
		return true;
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	ok = sched_setaffinity(0, sizeof(one), &one) == 0;
	sched_setaffinity(0, sizeof(before), &before);
	return ok;
}

static int check_cpus(const char *key, const struct rv_config_cpus *list, char *why, size_t cap)
{
	for (unsigned i = 0; !list->is_auto && i < list->nr; i++)
		if (!cpu_can_be_had(list->cpu[i]))
			return rv_node_fail(
				-EINVAL, why, cap,
				"cores.%s: CPU %u is not there, or not for this process", key,
				list->cpu[i]);
	return 0;
}

/* `auto` pins only when it polls without end; an explicit list always does. */
static int choose_cores(struct rv_node *n, char *why, size_t cap)
{
	const struct rv_config_cpus *p = &n->cfg->cores.polling, *u = &n->cfg->cores.uring;
	unsigned polling = p->is_auto ? 1 : p->nr;
	bool apart = u->is_auto ? usable_cpus() >= 4 : true;
	int rc = check_cpus("polling", p, why, cap);

	if (!rc)
		rc = check_cpus("uring", u, why, cap);
	if (rc)
		return rc;
	if (polling > RV_MAX_REACTORS - 1)
		return rv_node_fail(-EINVAL, why, cap, "cores.polling: at most %u cores",
				    RV_MAX_REACTORS - 1);
	/* The net core named is a polling core: one reactor has both roles. */
	if (!u->is_auto && u->nr && !p->is_auto && p->nr == 1 && p->cpu[0] == u->cpu[0])
		apart = false;
	for (unsigned i = 0; i < polling; i++)
		add_core(n, true, !apart && i == 0, p->is_auto ? RV_EAL_CPU_ANY : p->cpu[i]);
	if (apart)
		add_core(n, false, true, u->is_auto || !u->nr ? RV_EAL_CPU_ANY : u->cpu[0]);
	return 0;
}

/* Building, on the starting thread, before any reactor runs. */

static void warn_privileges(const struct rv_node *n)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_MEMLOCK, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY &&
	    lim.rlim_cur < n->cfg->memory.registered_bytes_budget)
		rv_log_warn(
			"privileges: memlock is limited to %llu KiB: an RDMA device may refuse to register more, "
			"and such payloads go in chunks",
			(unsigned long long)lim.rlim_cur / 1024);
	if (getrlimit(RLIMIT_NOFILE, &lim) == 0) {
		struct rlimit more = {lim.rlim_max, lim.rlim_max};

		setrlimit(RLIMIT_NOFILE, &more);
		if (lim.rlim_max < n->cfg->tcp.max_connections + 256)
			rv_log_warn(
				"privileges: %llu descriptors are fewer than tcp.max_connections needs: "
				"connections beyond them are refused",
				(unsigned long long)lim.rlim_max);
	}
}

/* @return 0, or -ENOMEM: they are required, and there are none */
static int check_hugepages(const struct rv_node *n, char *why, size_t cap)
{
	enum rv_config_hugepages wanted = n->cfg->cores.hugepages;
	struct rv_pages p;

	if (wanted == RV_CONFIG_HUGEPAGES_NO)
		return 0;
	if (!rv_pages_create(&p, RV_MIB(2), false, RV_HUGEPAGES_REQUIRE)) {
		rv_pages_destroy(&p);
		return 0;
	}
	if (wanted == RV_CONFIG_HUGEPAGES_REQUIRE)
		return rv_node_fail(-ENOMEM, why, cap,
				    "cores.hugepages = require: there are no huge pages to be had "
				    "(sysctl vm.nr_hugepages)");
	rv_log_info(
		"memory: no huge pages to be had: arenas use pages of 4 KiB, registering and large copies "
		"take longer");
	return 0;
}

/* Before the fabrics: they have threads, and EAL is told by the environment. */
static int start_eal(struct rv_node *n, char *why, size_t cap)
{
	const char *dir = n->cfg->metrics.telemetry ? n->cfg->node.runtime_dir : NULL;
	int rc, cpu[RV_MAX_REACTORS];

	if (dir)
		rv_node_make_dir(dir);
	for (unsigned i = 0; i < n->core_nr; i++)
		cpu[i] = n->core[i].cpu;
	rc = rv_eal_start(cpu, n->core_nr, dir);
	if (rc)
		return rv_node_fail(
			rc, why, cap, "dpdk: EAL did not start: %s",
			rc == -ENXIO
				? "/sys/devices/system/cpu is not there: mount sysfs (a container needs it, too)"
				: rv_err_name(rc));
	return 0;
}

static struct rv_fabric *add_fabric(struct rv_node *n, struct rv_fabric *f)
{
	f->index = n->fabric_nr;
	n->fabric[n->fabric_nr++] = f;
	return f;
}

static unsigned polling_cores(const struct rv_node *n)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < n->core_nr; i++)
		nr += n->core[i].polling;
	return nr;
}

static int make_ucx(struct rv_node *n, char *why, size_t cap)
{
	char reason[RV_UCX_WHY] = "";
	struct rv_ucx_conf conf = {
		.mode = n->cfg->ucx.enabled == RV_CONFIG_SWITCH_YES ? RV_UCX_YES : RV_UCX_AUTO,
		.tls = strcmp(n->cfg->ucx.tls, "yes") == 0 ? NULL : n->cfg->ucx.tls,
		.net_devices = n->cfg->ucx.net_devices[0] ? n->cfg->ucx.net_devices : NULL,
		.eager_endpoints = n->cfg->ucx.eager_endpoints,
		.idle_ns = n->cfg->ucx.ep_idle_timeout_ns,
		.why = reason,
	};
	struct rv_fabric *f;
	int rc;

	if (n->cfg->ucx.enabled == RV_CONFIG_SWITCH_NO)
		return 0;
	conf.reactors = polling_cores(n);
	rc = rv_ucx_create(&conf, &f);
	if (rc && n->cfg->ucx.enabled == RV_CONFIG_SWITCH_YES)
		return rv_node_fail(rc, why, cap, "ucx: %s", reason);
	if (rc) {
		if (strncmp(reason, "self-check", strlen("self-check")) == 0)
			rv_log_warn("ucx: not used, RDMA is off: %s", reason);
		else
			rv_log_info("ucx: not used: %s", reason);
		return 0;
	}
	n->ucx = add_fabric(n, f);
	rv_log_info("ucx: %s, UCX %s", f->path_name, f->version);
	if (!f->native)
		rv_log_warn(
			"ucx: over %s GETs are software, and any peer that reaches the UCX worker can read and write "
			"this process: for trusted networks only",
			f->path_name);
	return 0;
}

/* @return 0 or -ENOMEM: what was in force stays */
static int admit(struct rv_node *n, const struct rv_config *cfg)
{
	struct rv_allow_list *l = malloc(sizeof(*l));

	if (!l)
		return -ENOMEM;
	*l = (struct rv_allow_list){n->allow_lists, cfg->tcp.allow};
	n->allow_lists = l;
	/* release: pairs with the acquire in rv_tcp_allowed(). */
	atomic_store_explicit(&n->admission.allow, &l->cidrs, memory_order_release);
	atomic_store_explicit(&n->admission.max_connections, cfg->tcp.max_connections,
			      memory_order_relaxed);
	return 0;
}

static void forget_allow_lists(struct rv_node *n)
{
	struct rv_allow_list *l;

	while ((l = n->allow_lists)) {
		n->allow_lists = l->older;
		free(l);
	}
}

static bool allows(void *user, const struct sockaddr *peer)
{
	const struct rv_node *n = user;

	return rv_tcp_allowed(&n->admission, peer);
}

static enum rv_verbs_fence fence_of(enum rv_config_fence fence)
{
	static const enum rv_verbs_fence fences[] = {
		[RV_CONFIG_FENCE_AUTO] = RV_VERBS_FENCE_AUTO,
		[RV_CONFIG_FENCE_WINDOW] = RV_VERBS_FENCE_WINDOW,
		[RV_CONFIG_FENCE_REGION] = RV_VERBS_FENCE_REGION,
		[RV_CONFIG_FENCE_NO] = RV_VERBS_FENCE_NO,
	};

	return fences[fence];
}

static int make_verbs(struct rv_node *n, char *why, size_t cap)
{
	const struct rv_config *cfg = n->cfg;
	const struct rv_config_host *l = &cfg->verbs.listen.at[0];
	char reason[RV_VERBS_WHY] = "";
	struct rv_verbs_conf conf = {
		.device = cfg->verbs.device[0] ? cfg->verbs.device : NULL,
		.port = cfg->verbs.port,
		.gid_index = cfg->verbs.gid_index,
		.host = l->host,
		.listen_port = l->port,
		.traffic_class = cfg->verbs.traffic_class == RV_CONFIG_AUTO
					 ? -1
					 : (int)cfg->verbs.traffic_class,
		.fence = fence_of(cfg->verbs.fence),
		.worker = n->id.worker,
		.reactors = polling_cores(n),
		.allows = allows,
		.user = n,
		.why = reason,
	};
	struct rv_fabric *f;
	int rc;

	if (cfg->verbs.enabled == RV_CONFIG_SWITCH_NO)
		return 0;
	rc = rv_verbs_create(&conf, &f);
	if (rc && cfg->verbs.enabled == RV_CONFIG_SWITCH_YES)
		return rv_node_fail(rc, why, cap, "verbs: %s", reason);
	if (rc) {
		rv_log_info("verbs: not used: %s", reason);
		return 0;
	}
	n->verbs = add_fabric(n, f);
	rv_log_info("verbs: %s, %s", f->path_name, f->version);
	return 0;
}

static int listen_tcp(struct rv_node *n, char *why, size_t cap)
{
	for (unsigned i = 0; i < n->cfg->tcp.listen.nr; i++) {
		const struct rv_config_host *h = &n->cfg->tcp.listen.at[i];

		n->tcp_port[i] = h->port;
		n->tcp_fd[i] = rv_listen_tcp(h->host, &n->tcp_port[i]);
		if (n->tcp_fd[i] < 0)
			return rv_node_fail(n->tcp_fd[i], why, cap,
					    "tcp: cannot listen on %s:%u: %s", h->host, h->port,
					    strerrordesc_np(-n->tcp_fd[i]));
	}
	return 0;
}

int rv_node_make_dir(const char *path)
{
	char partial[RV_CONFIG_TEXT_MAX];

	if (!path[0])
		return -ENOENT;
	snprintf(partial, sizeof(partial), "%s", path);
	for (char *p = partial + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(partial, 0755) && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	return mkdir(partial, 0755) && errno != EEXIST ? -errno : 0;
}

static int listen_local(struct rv_node *n, char *why, size_t cap)
{
	const char *path = n->cfg->local.socket;
	char dir[RV_CONFIG_TEXT_MAX], *slash;
	gid_t gid = (gid_t)-1;

	if (n->cfg->local.group[0]) {
		struct group *g = getgrnam(n->cfg->local.group);

		if (!g)
			return rv_node_fail(-ENOENT, why, cap, "local.group: there is no group %s",
					    n->cfg->local.group);
		gid = g->gr_gid;
	}
	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (slash && slash != dir) {
		*slash = '\0';
		rv_node_make_dir(dir);
	}
	n->local_fd = rv_listen_unix(path, (mode_t)n->cfg->local.mode, gid);
	if (n->local_fd == -EADDRINUSE)
		return rv_node_fail(
			-EADDRINUSE, why, cap,
			"local: another daemon answers on %s: a second one needs its own "
			"local.socket, node.runtime_dir, node.state_dir, tcp.listen "
			"and metrics.listen",
			path);
	if (n->local_fd < 0)
		return rv_node_fail(n->local_fd, why, cap, "local: cannot listen on %s: %s", path,
				    strerrordesc_np(-n->local_fd));
	n->local_bound = true;
	return 0;
}

static bool has_keys_of_leases(const struct rv_node *n)
{
	for (unsigned i = 0; i < n->fabric_nr; i++) {
		if (n->fabric[i]->exports)
			return true;
	}
	return false;
}

static int make_engine(struct rv_node *n, struct rv_node_core *c, unsigned shard)
{
	const struct rv_config *cfg = n->cfg;
	unsigned polling = n->engines.nr;
	struct rv_engine_conf ec = {
		.reactor = &c->reactor,
		.shard = shard,
		.set = &n->engines,
		.worker = n->id.worker,
		.net_port = n->net->reactor.index,
		.fabric_nr = n->fabric_nr,
		.calls = rv_messenger_calls(n->messenger),
		.lease_timeout_ns = cfg->rendezvous.lease_timeout_ns,
		.quarantine_ns = cfg->rendezvous.quarantine_ns,
		.chunk_lease_ns = cfg->rendezvous.chunk_lease_timeout_ns,
		.rdma_min_bytes = cfg->rendezvous.rdma_min_bytes,
		.chunk_size = (uint32_t)cfg->rendezvous.chunk_size,
		.bytes_max = ANSWER_BYTES_MAX,
		.verify = cfg->rendezvous.verify == RV_CONFIG_VERIFY_XXH3,
		.max_slots = (uint32_t)rv_max_u64(
			1, rv_min_u64(cfg->rendezvous.max_slots / polling, RV_IDTAB_MAX)),
		.max_leases = (uint32_t)rv_max_u64(
			1, rv_min_u64(cfg->rendezvous.max_leases / polling, RV_IDTAB_MAX)),
		.max_gets = MAX_GETS,
		.export_ask = has_keys_of_leases(n) ? rv_prompt_ask : NULL,
		.late_max = n->cfg->memory.registered_bytes_budget / 4,
		.call_timeout_ns = cfg->rendezvous.call_timeout_ns,
		.run_transfer_end = rv_messenger_run_transfer_end,
		.pool =
			{
				.initial_bytes = rv_max_u64(
					cfg->memory.initial_arena_bytes / polling, RV_MIB(8)),
				.max_bytes = cfg->memory.max_arena_bytes,
				.dedicated_min = cfg->memory.dedicated_arena_min,
				.retain_bytes = cfg->memory.retain_arena_bytes,
				.reclaim_after_ns = cfg->memory.arena_reclaim_after_ns,
				.registers = n->fabric_nr > 0,
				.grow = rv_registrar_grow,
				.shrink = rv_registrar_shrink,
				.ask = rv_registrar_ask,
				.user = &c->registrar,
			},
	};

	for (unsigned i = 0; i < n->fabric_nr; i++)
		ec.fabric[i] = n->fabric[i];
	c->registrar = (struct rv_registrar_client){.registrar = &n->registrar,
						    .engine = &c->engine,
						    .prompt = &n->prompt};
	n->engines.engine[shard] = &c->engine;
	return rv_engine_init(&c->engine, &ec);
}

static void make_reactors(struct rv_node *n)
{
	for (unsigned i = 0; i < n->core_nr; i++) {
		struct rv_reactor_conf rc = {
			.port = rv_mesh_port(n->mesh, i),
			.idle_spin_ns = n->cfg->cores.idle_spin_ns,
			.never_sleep = n->cfg->cores.idle == RV_CONFIG_IDLE_POLL,
			.clock = rv_clock_ns,
		};

		rv_reactor_init(&n->core[i].reactor, &rc);
	}
}

/* The sessions are made after the messenger. */
static void drop_block(void *user, struct rv_engine *e, struct rv_block *b)
{
	rv_local_drop(((struct rv_node *)user)->local, e, b);
}

static int make_messenger(struct rv_node *n)
{
	struct rv_messenger_conf mc = {
		.reactor = &n->net->reactor,
		.carrier = &n->tcp.carrier,
		.engines = &n->engines,
		.worker = n->id.worker,
		.blob_version = n->cfg->ucx.blob_version,
		.pull_window_bytes =
			(uint32_t)rv_min_u64(n->cfg->rendezvous.pull_window, UINT32_MAX),
		.call_timeout_ns = n->cfg->rendezvous.call_timeout_ns,
		.former = n->id.former,
		.former_nr = n->id.former_nr,
		.node_name = n->cfg->node.name,
		.staged_fetch_timeout_ns = n->cfg->rendezvous.staged_fetch_timeout_ns,
		.staged_payload_max = n->cfg->rendezvous.staged_payload_max,
		.drop_block = drop_block,
		.drop_user = n,
		.find = n->cfg->discovery.kind == RV_CONFIG_DISCOVERY_NONE ? NULL : rv_node_find,
		.find_user = n,
	};
	struct rv_tcp_conf tc = {
		.ring = &n->uring,
		.reactor = &n->net->reactor,
		.events = rv_messenger_events(),
		.connect_timeout_ns = n->cfg->tcp.connect_timeout_ns,
		.handshake_timeout_ns = n->cfg->tcp.handshake_timeout_ns,
		.stall_timeout_ns = n->cfg->tcp.stall_timeout_ns,
		.admission = &n->admission,
	};

	memcpy(mc.instance, n->id.instance, sizeof(mc.instance));
	n->messenger = rv_messenger_create(&mc);
	if (!n->messenger)
		return -ENOMEM;
	rv_port_set_user(n->net->reactor.port, n->messenger);
	tc.user = n->messenger;
	rv_tcp_carrier_init(&n->tcp, &tc);
	return 0;
}

/* Frames over UCX, beside TCP. They live on the polling core whose address every peer is told. */
static int make_am(struct rv_node *n)
{
	struct rv_ucx_am_conf ac = {
		.net = &n->net->reactor,
		.events = rv_messenger_events(),
		.user = n->messenger,
		.blob_version = n->cfg->ucx.blob_version,
		.incarnation = n->incarnation,
		.eager_max = (uint32_t)n->cfg->ucx.eager_max,
		.refuses = rv_messenger_refuses,
	};
	int rc = 0;

	for (unsigned i = 0; !rc && n->ucx && i < n->core_nr && n->core[i].polling; i++) {
		ac.polling = &n->core[i].reactor;
		ac.reactor = i;
		rc = rv_ucx_am_create(n->ucx, &ac, &n->am[i]);
		if (!rc)
			rv_messenger_set_datagrams(n->messenger, i, rv_ucx_am_carrier(n->am[i]));
	}
	return rc;
}

static const char *path_name(void *user, unsigned fabric)
{
	struct rv_node *n = user;

	return fabric < n->fabric_nr ? n->fabric[fabric]->path_name : "rdma";
}

static int make_local(struct rv_node *n)
{
	struct rv_local_conf lc = {
		.reactor = &n->net->reactor,
		.ring = &n->uring,
		.messenger = n->messenger,
		.engines = &n->engines,
		.worker = n->id.worker,
		.default_ttl_ns = n->cfg->rendezvous.default_ttl_ns,
		.call_timeout_ns = n->cfg->rendezvous.call_timeout_ns,
		.drop_dereg_timeout_ns = n->cfg->shutdown.drop_dereg_timeout_ns,
		.has_fabric = n->fabric_nr > 0,
		.threshold = n->cfg->rendezvous.threshold,
		.status = rv_node_put_status,
		.cores = rv_node_put_cores,
		.config = rv_node_put_config,
		.drain = rv_node_drain,
		.path_name = path_name,
		.user = n,
	};

	n->local = rv_local_create(&lc);
	return n->local ? 0 : -ENOMEM;
}

/* Status and metrics. */

static int start_metrics(struct rv_node *n, char *why, size_t cap)
{
	const struct rv_config_hosts *l = &n->cfg->metrics.listen;
	int rc;

	n->metrics = (struct rv_metrics){
		.engines = &n->engines,
		.registrar = &n->registrar,
		.prompt = &n->prompt,
		.messenger = n->messenger,
		.tcp = &n->tcp,
		.version = RV_VERSION,
		.ucx_version = n->ucx ? n->ucx->version : "none",
		.verbs_version = n->verbs ? n->verbs->version : "none",
		.dpdk_version = rv_eal_version(),
		.core_nr = n->core_nr,
	};
	for (unsigned i = 0; i < n->core_nr; i++)
		n->metrics.core[i] = &n->core[i].reactor;
	if (!l->nr)
		return 0;
	n->metrics_port = l->at[0].port;
	rc = rv_metrics_http_start(&n->metrics, l->at[0].host, &n->metrics_port, &n->http);
	if (!rc) {
		rv_log_info("metrics: listening on %s:%u", l->at[0].host, n->metrics_port);
		return 0;
	}
	n->metrics_port = 0;
	if (n->cfg->metrics.required)
		return rv_node_fail(rc, why, cap, "metrics: cannot listen on %s:%u: %s",
				    l->at[0].host, l->at[0].port, rv_err_name(rc));
	rv_log_warn("metrics: not served: cannot listen on %s:%u: %s", l->at[0].host, l->at[0].port,
		    rv_err_name(rc));
	return 0;
}

/* Start. */

static int build(struct rv_node *n, char *why, size_t cap)
{
	unsigned shard = 0;
	int rc;

	n->incarnation = rv_incarnation_make(rv_random_u64);
	rc = choose_cores(n, why, cap);
	if (rc)
		return rc;
	rc = listen_tcp(n, why, cap);
	if (rc)
		return rc;
	rc = listen_local(n, why, cap);
	if (rc)
		return rc;
	/* From here on this is the daemon of that socket: one that is refused leaves no trace. */
	rv_node_make_dir(n->cfg->node.state_dir);
	rc = rv_identity_make(&n->id, n->cfg->node.state_dir);
	if (rc)
		rv_log_warn(
			"state: %s cannot be used: former names of this node are not remembered: %s",
			n->cfg->node.state_dir, strerrordesc_np(-rc));
	rc = start_eal(n, why, cap);
	if (rc)
		return rc;
	rc = make_ucx(n, why, cap);
	if (rc)
		return rc;
	rc = make_verbs(n, why, cap);
	if (rc)
		return rc;
	n->engines.nr = polling_cores(n);
	n->mesh = rv_mesh_create(n->core_nr + 4, CELLS);
	if (!n->mesh)
		return rv_node_fail(-ENOMEM, why, cap, "out of memory");
	n->main_port = rv_mesh_port(n->mesh, n->core_nr + 1);
	make_reactors(n);
	rv_registrar_init(&n->registrar,
			  &(struct rv_registrar_conf){
				  .port = rv_mesh_port(n->mesh, n->core_nr),
				  .fabric = {n->fabric[0], n->fabric[1]},
				  .fabric_nr = n->fabric_nr,
				  .registered_budget = n->cfg->memory.registered_bytes_budget,
				  .plain_budget = n->cfg->memory.plain_bytes_budget,
				  .retain_bytes = n->cfg->memory.retain_arena_bytes,
				  .hugepages = (enum rv_hugepages)n->cfg->cores.hugepages,
				  .room = rv_memory_room,
			  });
	rv_prompt_init(&n->prompt, rv_mesh_port(n->mesh, n->core_nr + 2), &n->registrar);
	atomic_store(&n->engines.rdma_off,
		     rv_config_kill_switch_env() || !n->cfg->rendezvous.enabled);
	rc = make_messenger(n);
	if (!rc)
		rc = make_am(n);
	for (unsigned i = 0; !rc && i < n->core_nr; i++) {
		if (n->core[i].polling)
			rc = make_engine(n, &n->core[i], shard++);
	}
	if (!rc)
		rc = make_local(n);
	if (!rc)
		rc = rv_registrar_start(&n->registrar);
	if (!rc && has_keys_of_leases(n))
		rc = rv_prompt_start(&n->prompt);
	return rc ? rv_node_fail(rc, why, cap, "out of memory") : 0;
}

static int launch(struct rv_node *n, char *why, size_t cap)
{
	int rc = 0;

	for (unsigned i = 0; i < n->core_nr && !rc; i++) {
		rc = rv_eal_launch(i, n->core[i].name, core_main, &n->core[i]);
		n->launched += rc == 0;
	}
	pthread_mutex_lock(&n->lock);
	while (n->ready < n->launched)
		pthread_cond_wait(&n->changed, &n->lock);
	pthread_mutex_unlock(&n->lock);
	if (rc)
		return rv_node_fail(rc, why, cap, "a core's thread did not start: %s",
				    rv_err_name(rc));
	for (unsigned i = 0; i < n->core_nr; i++) {
		rc = n->core[i].setup_rc;
		if (rc == -ENOSYS || rc == -EPERM)
			return rv_node_fail(
				rc, why, cap,
				"io_uring is not available here (%s): allow it in the container's "
				"seccomp profile, or set kernel.io_uring_disabled to 0",
				rv_err_name(rc));
		if (rc)
			return rv_node_fail(rc, why, cap, "core %u could not be set up: %s", i,
					    rv_err_name(rc));
	}
	return 0;
}

void rv_node_join(struct rv_node *n)
{
	for (unsigned i = 0; i < n->launched; i++)
		rv_eal_join(i);
	n->launched = 0;
}

/* What others find this node by. */
void rv_node_remove_files(struct rv_node *n)
{
	if (n->local_bound)
		unlink(n->cfg->local.socket);
	n->local_bound = false;
	rv_node_remove_ports(n);
}

void rv_node_destroy(struct rv_node *n, bool leak)
{
	rv_telemetry_stop();
	rv_metrics_http_stop(n->http);
	rv_discovery_stop(n->discovery);
	rv_discovery_destroy(n->discovery);
	if (n->mesh) {
		rv_prompt_stop(&n->prompt);
		rv_registrar_stop(&n->registrar);
	}
	for (unsigned i = 0; !leak && i < n->fabric_nr; i++)
		n->fabric[i]->ops->destroy(n->fabric[i]);
	for (unsigned i = 0; i < n->core_nr; i++) {
		if (n->core[i].engine.reactor)
			rv_engine_fini(&n->core[i].engine);
	}
	rv_local_destroy(n->local);
	for (unsigned i = 0; i < RV_MAX_REACTORS; i++)
		rv_ucx_am_destroy(n->am[i]);
	rv_messenger_destroy(n->messenger);
	free(n->dials);
	rv_mesh_destroy(n->mesh);
	for (unsigned i = 0; i < RV_CONFIG_LIST_MAX; i++) {
		if (n->tcp_fd[i] >= 0)
			close(n->tcp_fd[i]);
	}
	if (n->local_fd >= 0)
		close(n->local_fd);
	rv_node_remove_files(n);
	pthread_mutex_destroy(&n->lock);
	pthread_cond_destroy(&n->changed);
	forget_allow_lists(n);
	free(n);
}

static void announce(const struct rv_node *n)
{
	for (unsigned i = 0; i < n->cfg->tcp.listen.nr; i++)
		rv_log_info("tcp: listening on %s:%u", n->cfg->tcp.listen.at[i].host,
			    n->tcp_port[i]);
	rv_log_info("local: listening on %s", n->cfg->local.socket);
	for (unsigned i = 0; i < n->core_nr; i++) {
		const struct rv_node_core *c = &n->core[i];

		if (c->cpu == RV_EAL_CPU_ANY)
			rv_log_info("core %u: %s, not pinned", i, c->name);
		else
			rv_log_info("core %u: %s, cpu %d", i, c->name, c->cpu);
	}
	rv_log_info("node: %s serves as worker %" PRIu64, n->cfg->node.name, n->id.worker);
}

int rv_node_start(struct rv_config *cfg, struct rv_node **out, char *why, size_t why_cap)
{
	struct rv_node *n = calloc(1, sizeof(*n));
	int rc;

	if (!n)
		return rv_node_fail(-ENOMEM, why, why_cap, "out of memory");
	n->cfg = cfg;
	n->local_fd = -1;
	n->ports_fd = -1;
	for (unsigned i = 0; i < RV_CONFIG_LIST_MAX; i++)
		n->tcp_fd[i] = -1;
	n->started_ns = rv_clock_ns();
	pthread_mutex_init(&n->lock, NULL);
	pthread_cond_init(&n->changed, NULL);
	warn_privileges(n);
	rc = check_hugepages(n, why, why_cap);
	if (!rc && admit(n, cfg))
		rc = rv_node_fail(-ENOMEM, why, why_cap, "out of memory");
	if (!rc)
		rc = build(n, why, why_cap);
	if (!rc)
		rc = launch(n, why, why_cap);
	if (!rc)
		rc = rv_node_publish_address(n, why, why_cap);
	if (!rc)
		rc = start_metrics(n, why, why_cap);
	if (!rc && cfg->discovery.kind != RV_CONFIG_DISCOVERY_NONE)
		rc = rv_node_start_discovery(n, why, why_cap);
	if (!rc)
		rv_node_serve_telemetry(n);
	if (rc) {
		set_phase(n, PHASE_ABORT);
		rv_node_join(n);
		rv_node_destroy(n, false);
		return rc;
	}
	set_phase(n, PHASE_RUN);
	rv_node_ask_net(n, NET_PEERS);
	rv_node_write_ports(n);
	announce(n);
	rv_metrics_set_ready(&n->metrics, true);
	*out = n;
	return 0;
}

uint16_t rv_node_tcp_port(const struct rv_node *n)
{
	return n->tcp_port[0];
}

uint16_t rv_node_metrics_port(const struct rv_node *n)
{
	return n->metrics_port;
}

static void pulse_there(struct rv_port *port, struct rv_cell *c)
{
	rv_cell_reply(port, c);
}

static void pulse_back(struct rv_port *port, struct rv_cell *c)
{
	*(struct rv_cell **)c->ctx = NULL;
	rv_cell_free(port, c);
}

bool rv_node_is_turning(struct rv_node *n)
{
	bool all = true;

	while (rv_port_poll(n->main_port, RV_MAX_REACTORS))
		;
	for (unsigned i = 0; i < n->core_nr; i++) {
		if (n->pulse[i]) {
			rv_log_warn("core %u: it has not turned since it was last asked", i);
			all = false;
			continue;
		}
		n->pulse[i] = rv_cell_alloc(n->main_port);
		if (!n->pulse[i])
			continue;
		n->pulse[i]->run = pulse_there;
		n->pulse[i]->done = pulse_back;
		n->pulse[i]->ctx = &n->pulse[i];
		rv_cell_send(n->main_port, n->core[i].reactor.index, n->pulse[i]);
	}
	return all;
}

void rv_node_reload(struct rv_node *n, const struct rv_config *fresh)
{
	bool enabled = n->cfg->rendezvous.enabled;

	pthread_mutex_lock(&n->lock);
	rv_config_adopt(n->cfg, fresh);
	pthread_mutex_unlock(&n->lock);
	rv_log_set_level(fresh->log.level);
	rv_log_set_json(fresh->log.format == RV_CONFIG_FORMAT_JSON);
	if (fresh->rendezvous.enabled != enabled)
		atomic_store_explicit(&n->engines.rdma_off, enabled || rv_config_kill_switch_env(),
				      memory_order_relaxed);
	if (n->ucx)
		rv_ucx_set_idle(n->ucx, fresh->ucx.ep_idle_timeout_ns);
	if (admit(n, fresh))
		rv_log_err(
			"reload: out of memory: tcp.allow and tcp.max_connections stay as they were");
}
