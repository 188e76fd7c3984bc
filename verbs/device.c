#include "verbs/device.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "dataplane/base/units.h"

#define GIDS 256

/* More READs under way on one queue pair gain nothing, and each takes an entry of the completion queue. */
#define READS_MAX 32u
#define CQE_MAX   8192u

static bool is_zero(const union ibv_gid *g)
{
	static const union ibv_gid none;

	return memcmp(g, &none, sizeof(none)) == 0;
}

static bool is_v4(const union ibv_gid *g)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)g->raw);
}

static bool is_link_local(const union ibv_gid *g)
{
	if (is_v4(g))
		return g->raw[12] == 169 && g->raw[13] == 254;
	return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* Higher is better. */
static int rank(const struct rv_verbs_gid *g)
{
	return 2 * (g->type != IBV_GID_TYPE_ROCE_V1) + !is_link_local(&g->gid);
}

int rv_verbs_gid_choose(const struct rv_verbs_gid *g, size_t nr, uint32_t wanted)
{
	int best = -1;

	for (size_t i = 0; i < nr; i++) {
		if (is_zero(&g[i].gid) || (wanted != RV_VERBS_AUTO && g[i].index != wanted))
			continue;
		if (best < 0 || rank(&g[i]) > rank(&g[best]))
			best = (int)i;
	}
	return best;
}

void rv_verbs_gid_ip(const union ibv_gid *gid, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (is_v4(gid)) {
		v4->sin_family = AF_INET;
		memcpy(&v4->sin_addr, gid->raw + 12, 4);
	} else {
		v6->sin6_family = AF_INET6;
		memcpy(&v6->sin6_addr, gid->raw, 16);
	}
}

static int choose_gid(struct rv_verbs_device *d, uint32_t wanted)
{
	struct ibv_gid_entry all[GIDS];
	struct rv_verbs_gid g[GIDS];
	ssize_t n = ibv_query_gid_table(d->ctx, all, GIDS, 0);
	size_t nr = 0;
	int i;

	for (ssize_t k = 0; k < n; k++) {
		if (all[k].port_num == d->port)
			g[nr++] = (struct rv_verbs_gid){all[k].gid_index, all[k].gid,
							(enum ibv_gid_type)all[k].gid_type};
	}
	i = rv_verbs_gid_choose(g, nr, wanted);
	if (i < 0)
		return -ENODEV;
	d->gid_index = g[i].index;
	d->has_ip = g[i].type != IBV_GID_TYPE_IB;
	if (d->has_ip)
		rv_verbs_gid_ip(&g[i].gid, &d->ip);
	return 0;
}

static int look_at(struct rv_verbs_device *d, uint32_t gid_index, char *why, size_t cap)
{
	struct ibv_device_attr dev;
	struct ibv_port_attr port;

	if (ibv_query_device(d->ctx, &dev) || ibv_query_port(d->ctx, d->port, &port)) {
		snprintf(why, cap, "%s has no port %u", d->name, d->port);
		return -ENODEV;
	}
	if (port.state != IBV_PORT_ACTIVE) {
		snprintf(why, cap, "port %u of %s is not active", d->port, d->name);
		return -ENODEV;
	}
	if (dev.max_qp_rd_atom < 1 || dev.max_qp_init_rd_atom < 1) {
		snprintf(why, cap, "%s cannot read remote memory", d->name);
		return -ENODEV;
	}
	d->read_max = port.max_msg_sz & ~(RV_GRANULE - 1u);
	d->reads_out = (unsigned)rv_min_u64((uint64_t)dev.max_qp_init_rd_atom, READS_MAX);
	d->reads_in = (unsigned)rv_min_u64((uint64_t)dev.max_qp_rd_atom, READS_MAX);
	d->cqe_max = (unsigned)rv_min_u64((uint64_t)dev.max_cqe, CQE_MAX);
	d->region_max = dev.max_mr_size;
	if (choose_gid(d, gid_index) == 0)
		return 0;
	if (gid_index == RV_VERBS_AUTO)
		snprintf(why, cap, "port %u of %s has no GID", d->port, d->name);
	else
		snprintf(why, cap, "port %u of %s has no GID %u", d->port, d->name, gid_index);
	return -ENODEV;
}

static int try_one(struct rv_verbs_device *d, struct ibv_device *dev, unsigned port,
		   uint32_t gid_index, char *why, size_t cap)
{
	int rc;

	*d = (struct rv_verbs_device){.port = (uint8_t)port};
	snprintf(d->name, sizeof(d->name), "%s", ibv_get_device_name(dev));
	d->ctx = ibv_open_device(dev);
	if (!d->ctx) {
		snprintf(why, cap, "%s cannot be opened: %s", d->name, strerrordesc_np(errno));
		return -ENODEV;
	}
	rc = look_at(d, gid_index, why, cap);
	if (rc)
		rv_verbs_device_close(d);
	return rc;
}

int rv_verbs_device_open(struct rv_verbs_device *d, const char *name, unsigned port,
			 uint32_t gid_index, char *why, size_t why_cap)
{
	int nr = 0, rc = -ENODEV;
	struct ibv_device **all = ibv_get_device_list(&nr);

	if (name)
		snprintf(why, why_cap, "there is no RDMA device %s", name);
	else
		snprintf(why, why_cap, "there is no RDMA device");
	for (int i = 0; all && i < nr && rc; i++) {
		if (!name || strcmp(name, ibv_get_device_name(all[i])) == 0)
			rc = try_one(d, all[i], port, gid_index, why, why_cap);
	}
	if (all)
		ibv_free_device_list(all);
	return rc;
}

void rv_verbs_device_close(struct rv_verbs_device *d)
{
	ibv_close_device(d->ctx);
	d->ctx = NULL;
}
