/*
 * How peers and people find this node: its WorkerAddress, and the ports file.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control/messenger/address.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/lcore/eal.h"
#include "tools/node_impl.h"
#include "verbs/fabric_verbs.h"

#define ADDRESS_CAP 16384u

/* Our address. */

static bool is_wildcard(const char *host)
{
	return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static void add_endpoint(struct rv_address *a, const char *name, const char *ip, uint16_t port,
			 unsigned prefix)
{
	struct rv_tcp_endpoint *e;

	if (a->tcp_nr == RV_ADDRESS_TCP_MAX)
		return;
	e = &a->tcp[a->tcp_nr++];
	*e = (struct rv_tcp_endpoint){.port = port, .prefix_len = (uint8_t)prefix, .numa = -1};
	snprintf(e->name, sizeof(e->name), "%s", name);
	snprintf(e->ip, sizeof(e->ip), "%s", ip);
}

static unsigned prefix_of(const struct sockaddr *mask, size_t off, size_t len)
{
	const uint8_t *p = (const uint8_t *)mask + off;
	unsigned n = 0;

	for (size_t i = 0; i < len; i++)
		n += (unsigned)__builtin_popcount(p[i]);
	return n;
}

/* Every interface that is up, of the listener's family, but for loopback and link-local. */
static void add_interfaces(struct rv_address *a, bool v6, uint16_t port)
{
	struct ifaddrs *all, *it;
	size_t before = a->tcp_nr;

	if (getifaddrs(&all))
		return;
	for (it = all; it; it = it->ifa_next) {
		char ip[INET6_ADDRSTRLEN];

		if (!it->ifa_addr || !it->ifa_netmask ||
		    it->ifa_addr->sa_family != (v6 ? AF_INET6 : AF_INET) ||
		    !(it->ifa_flags & IFF_UP) || (it->ifa_flags & IFF_LOOPBACK))
			continue;
		if (v6) {
			const struct sockaddr_in6 *s =
				(const struct sockaddr_in6 *)(const void *)it->ifa_addr;

			if (IN6_IS_ADDR_LINKLOCAL(&s->sin6_addr))
				continue;
			inet_ntop(AF_INET6, &s->sin6_addr, ip, sizeof(ip));
			add_endpoint(a, it->ifa_name, ip, port,
				     prefix_of(it->ifa_netmask,
					       offsetof(struct sockaddr_in6, sin6_addr), 16));
		} else {
			const struct sockaddr_in *s =
				(const struct sockaddr_in *)(const void *)it->ifa_addr;

			inet_ntop(AF_INET, &s->sin_addr, ip, sizeof(ip));
			add_endpoint(a, it->ifa_name, ip, port,
				     prefix_of(it->ifa_netmask,
					       offsetof(struct sockaddr_in, sin_addr), 4));
		}
	}
	freeifaddrs(all);
	if (a->tcp_nr == before)
		add_endpoint(a, "lo", v6 ? "::1" : "127.0.0.1", port, v6 ? 128 : 8);
}

static void put_tcp(struct rv_node *n, struct rv_address *a)
{
	const struct rv_config_hosts *adv = &n->cfg->tcp.advertise;

	for (unsigned i = 0; i < adv->nr; i++)
		add_endpoint(a, "", adv->at[i].host,
			     adv->at[i].port ? adv->at[i].port : n->tcp_port[0],
			     strchr(adv->at[i].host, ':') ? 128 : 32);
	for (unsigned i = 0; !adv->nr && i < n->cfg->tcp.listen.nr; i++) {
		const char *host = n->cfg->tcp.listen.at[i].host;
		bool v6 = strchr(host, ':') != NULL;

		if (is_wildcard(host))
			add_interfaces(a, v6, n->tcp_port[i]);
		else
			add_endpoint(a, "", host, n->tcp_port[i], v6 ? 128 : 32);
	}
}

/* Peers of our own kind learn the workers of the other polling cores. */
static void put_workers(const struct rv_node *n, struct rv_address *a)
{
	struct rv_writer w = rv_writer(a->workers, sizeof(a->workers));
	uint8_t addr[RV_ADDRESS_UCX_MAX];

	for (unsigned i = 1; i < n->engines.nr && i <= RV_ADDRESS_WORKERS_MAX; i++) {
		unsigned reactor = n->engines.engine[i]->reactor->index;
		size_t len = n->ucx->ops->address(n->ucx, reactor, addr, sizeof(addr));

		if (!len || len > sizeof(addr) || w.len + len + 2 > sizeof(a->workers))
			break; /* what fits is enough: peers' cores share them */
		rv_peer_workers_add(&w, addr, len);
	}
	a->workers_len = w.len;
}

/* ... and where our verbs backend listens. */
static void put_verbs(const struct rv_node *n, struct rv_address *a)
{
	size_t len = n->verbs ? n->verbs->ops->address(n->verbs, 0, a->verbs, sizeof(a->verbs)) : 0;

	a->verbs_len = len <= sizeof(a->verbs) ? len : 0;
}

int rv_node_publish_address(struct rv_node *n, char *why, size_t cap)
{
	struct rv_address *a = calloc(1, sizeof(*a));
	uint8_t *buf = malloc(ADDRESS_CAP), *ucx_addr = malloc(ADDRESS_CAP);
	struct rv_writer w = rv_writer(buf, ADDRESS_CAP);
	int rc = -ENOMEM;

	if (!a || !buf || !ucx_addr)
		goto out;
	put_tcp(n, a);
	a->has_rvd = true;
	a->rvd_version = 1;
	put_verbs(n, a);
	if (n->ucx) {
		size_t len = n->ucx->ops->address(n->ucx, 0, ucx_addr, ADDRESS_CAP);

		a->has_ucx = len > 0 && len <= RV_ADDRESS_UCX_MAX;
		a->ucx = (struct rv_ucx_blob){
			.version = (uint8_t)n->cfg->ucx.blob_version,
			.eager_max = (uint32_t)n->cfg->ucx.eager_max,
			.incarnation = n->incarnation,
			.worker_addr = ucx_addr,
			.worker_addr_len = len,
		};
		if (a->has_ucx)
			put_workers(n, a);
	}
	rc = rv_address_encode(&w, a);
	if (!rc)
		rc = rv_messenger_set_address(n->messenger, buf, w.len);
out:
	if (rc)
		rv_node_fail(rc, why, cap, "this node's address cannot be written: %s",
			     rv_err_name(rc));
	free(ucx_addr);
	free(buf);
	free(a);
	return rc;
}

static void ports_path(const struct rv_node *n, char path[RV_CONFIG_TEXT_MAX + 16])
{
	snprintf(path, RV_CONFIG_TEXT_MAX + 16, "%s/ports", n->cfg->node.runtime_dir);
}

/* Whoever wrote the file holds a lock on it as long as it runs; one that was killed does not. */
static bool another_runs(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;

	if (fd >= 0)
		close(fd);
	return held;
}

void rv_node_write_ports(struct rv_node *n)
{
	char path[RV_CONFIG_TEXT_MAX + 16], tmp[RV_CONFIG_TEXT_MAX + 48];
	FILE *f;

	rv_node_make_dir(n->cfg->node.runtime_dir);
	ports_path(n, path);
	snprintf(tmp, sizeof(tmp), "%s.%ld", path, (long)getpid());
	f = fopen(tmp, "we");
	if (!f) {
		rv_log_warn("ports: cannot write %s: %m", path);
		return;
	}
	fprintf(f, "tcp %u\n", n->tcp_port[0]);
	if (n->metrics_port)
		fprintf(f, "metrics %u\n", n->metrics_port);
	if (n->verbs)
		fprintf(f, "verbs %u\n", rv_verbs_port(n->verbs));
	/* Kept open: as long as it is, no other file has its inode. */
	n->ports_fd = fcntl(fileno(f), F_DUPFD_CLOEXEC, 0);
	if (n->ports_fd >= 0)
		(void)flock(n->ports_fd, LOCK_EX | LOCK_NB);
	if (another_runs(path))
		rv_log_warn(
			"ports: %s was another daemon's, which still runs: it is this one's now; "
			"give each a runtime_dir of its own",
			path);
	if (fclose(f) == 0 && n->ports_fd >= 0 && rename(tmp, path) == 0)
		return;
	rv_log_warn("ports: cannot write %s: %m", path);
	unlink(tmp);
	rv_node_remove_ports(n);
}

void rv_node_remove_ports(struct rv_node *n)
{
	char path[RV_CONFIG_TEXT_MAX + 16];
	struct stat own, there;

	if (n->ports_fd < 0)
		return;
	ports_path(n, path);
	if (fstat(n->ports_fd, &own) == 0 && stat(path, &there) == 0 &&
	    own.st_ino == there.st_ino && own.st_dev == there.st_dev)
		unlink(path);
	close(n->ports_fd);
	n->ports_fd = -1;
}
