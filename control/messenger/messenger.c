#include "control/messenger/messenger.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/json/rv_codec.h"
#include "control/messenger/address.h"
#include "control/messenger/messenger_impl.h"
#include "control/messenger/served_impl.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

struct rv_messenger *rv_messenger_create(const struct rv_messenger_conf *conf)
{
	struct rv_messenger *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->conf = *conf;
	m->reactor = conf->reactor;
	m->calls_iface.ops = &rv_messenger_peer_calls_ops;
	rv_list_init(&m->finds);
	rv_list_init(&m->links);
	rv_list_init(&m->pulls);
	rv_list_init(&m->served);
	rv_list_init(&m->asked);
	if (rv_calls_init(&m->calls, conf->reactor, conf->worker))
		goto err_free;
	m->retell.fn = rv_messenger_retell;
	if (rv_inbound_init(m))
		goto err_calls;
	return m;

err_calls:
	rv_calls_fini(&m->calls);
err_free:
	free(m);
	return NULL;
}

static void forget_route(struct rv_peer *p)
{
	free(p->link);
}

static void forget_unknown(struct rv_messenger *m)
{
	struct rv_peer *p;
	size_t pos = 0;

	while ((p = rv_map64_next(&m->unknown, &pos))) {
		free(p->link);
		free(p->fabric_addr);
		free(p->verbs_addr);
		free(p);
	}
	rv_map64_fini(&m->unknown);
}

void rv_messenger_destroy(struct rv_messenger *m)
{
	if (!m)
		return;
	rv_served_fini(m);
	rv_inbound_fini(m);
	rv_peers_fini(&m->peers, forget_route);
	forget_unknown(m);
	rv_calls_fini(&m->calls);
	rv_map64_fini(&m->reached);
	rv_map64_fini(&m->sought);
	free(m->address);
	free(m);
}

int rv_messenger_set_address(struct rv_messenger *m, const uint8_t *addr, size_t len)
{
	uint8_t *copy = malloc(len);

	if (!copy)
		return -ENOMEM;
	memcpy(copy, addr, len);
	free(m->address);
	m->address = copy;
	m->address_len = len;
	return 0;
}

void rv_messenger_set_datagrams(struct rv_messenger *m, unsigned core, struct rv_carrier *datagrams)
{
	m->way[core] = datagrams;
	m->datagrams = m->way[0];
}

struct rv_peer_calls *rv_messenger_calls(struct rv_messenger *m)
{
	return &m->calls_iface;
}

static struct rv_peer_info own_info(const struct rv_messenger *m)
{
	struct rv_peer_info pi = {.address = m->address, .address_len = m->address_len};

	memcpy(pi.instance, m->conf.instance, sizeof(pi.instance));
	return pi;
}

char *rv_messenger_peer_info_json(const struct rv_messenger *m)
{
	struct rv_peer_info pi = own_info(m);
	size_t cap = 128 + 4 * m->address_len;
	char *text = malloc(cap + 1);
	struct rv_writer w = rv_writer(text, cap);

	if (!text)
		return NULL;
	rv_peer_info_encode(&w, &pi);
	text[w.len] = '\0';
	return text;
}

uint8_t *rv_messenger_peer_info_msgpack(const struct rv_messenger *m, size_t *len)
{
	struct rv_peer_info pi = own_info(m);
	size_t cap = 64 + m->address_len;
	uint8_t *buf = malloc(cap);
	struct rv_writer w = rv_writer(buf, cap);

	if (!buf)
		return NULL;
	if (rv_peer_info_encode_msgpack(&w, &pi)) {
		free(buf);
		return NULL;
	}
	*len = w.len;
	return buf;
}

/* Which of a peer's addresses to dial: one in a subnet of ours, else the first that is not loopback, else the first. */

static bool parse_ip(const char *text, int *family, uint8_t ip[16])
{
	memset(ip, 0, 16);
	*family = AF_INET;
	if (inet_pton(AF_INET, text, ip) == 1)
		return true;
	*family = AF_INET6;
	return inet_pton(AF_INET6, text, ip) == 1;
}

static bool is_loopback(int family, const uint8_t ip[16])
{
	return family == AF_INET ? ip[0] == 127
				 : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)ip);
}

static bool same_prefix(const uint8_t *a, const uint8_t *b, const uint8_t *mask, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if ((a[i] ^ b[i]) & mask[i])
			return false;
	}
	return true;
}

static bool in_our_subnet(int family, const uint8_t ip[16])
{
	struct ifaddrs *all, *it;
	bool found = false;

	if (getifaddrs(&all))
		return false;
	for (it = all; it && !found; it = it->ifa_next) {
		const uint8_t *a, *mask;

		if (!it->ifa_addr || !it->ifa_netmask || it->ifa_addr->sa_family != family ||
		    (it->ifa_flags & IFF_LOOPBACK) || !(it->ifa_flags & IFF_UP))
			continue;
		if (family == AF_INET) {
			a = (const uint8_t *)&((struct sockaddr_in *)(void *)it->ifa_addr)
				    ->sin_addr;
			mask = (const uint8_t *)&((struct sockaddr_in *)(void *)it->ifa_netmask)
				       ->sin_addr;
		} else {
			a = (const uint8_t *)&((struct sockaddr_in6 *)(void *)it->ifa_addr)
				    ->sin6_addr;
			mask = (const uint8_t *)&((struct sockaddr_in6 *)(void *)it->ifa_netmask)
				       ->sin6_addr;
		}
		found = same_prefix(a, ip, mask, family == AF_INET ? 4 : 16);
	}
	freeifaddrs(all);
	return found;
}

static const struct rv_tcp_endpoint *choose(const struct rv_address *a)
{
	const struct rv_tcp_endpoint *routable = NULL, *first = NULL;

	for (size_t i = 0; i < a->tcp_nr; i++) {
		uint8_t ip[16];
		int family;

		if (!parse_ip(a->tcp[i].ip, &family, ip))
			continue;
		if (!first)
			first = &a->tcp[i];
		if (in_our_subnet(family, ip))
			return &a->tcp[i];
		if (!routable && !is_loopback(family, ip))
			routable = &a->tcp[i];
	}
	return routable ? routable : first;
}

uint8_t *rv_messenger_address_as(const struct rv_messenger *m, uint64_t incarnation, size_t *len)
{
	struct rv_address *a = malloc(sizeof(*a));
	size_t cap = m->address_len + 64; /* another integer may take more bytes to spell */
	uint8_t *buf = malloc(cap);
	struct rv_writer w = rv_writer(buf, cap);

	if (a && buf &&
	    rv_address_decode(m->address, m->address_len, m->conf.blob_version, a) == 0 &&
	    a->has_ucx) {
		a->ucx.incarnation = incarnation;
		if (rv_address_encode(&w, a) == 0) {
			*len = w.len;
			free(a);
			return buf;
		}
	}
	free(a);
	free(buf);
	return NULL;
}

struct rv_peer *rv_messenger_peer(struct rv_messenger *m, uint64_t worker)
{
	struct rv_peer *p = rv_peers_get(&m->peers, worker);

	if (!p && m->peers.by_worker.nr >= RV_PEERS_MAX && rv_messenger_evict_peer(m))
		p = rv_peers_get(&m->peers, worker);
	return p;
}

/* What a stock node publishes, and after it the workers of a node of ours that has more. */
static int set_workers(struct rv_peer *p, const struct rv_address *a)
{
	size_t cap = a->ucx.worker_addr_len + a->workers_len + 2;
	uint8_t *list = malloc(cap);
	struct rv_writer w = rv_writer(list, cap);
	int rc;

	if (!list)
		return -ENOMEM;
	rv_peer_workers_add(&w, a->ucx.worker_addr, a->ucx.worker_addr_len);
	rv_put_bytes(&w, a->workers, a->workers_len);
	rc = rv_peer_set_fabric(p, a->ucx.incarnation, list, w.len);
	free(list);
	return rc;
}

int rv_messenger_learn(struct rv_messenger *m, struct rv_peer *p, const struct rv_peer_info *pi)
{
	struct rv_address *a = malloc(sizeof(*a));
	const struct rv_tcp_endpoint *e;
	bool news;
	int rc;

	if (!a)
		return -ENOMEM;
	rc = rv_address_decode(pi->address, pi->address_len, m->conf.blob_version, a);
	e = rc ? NULL : choose(a);
	if (!rc && !e && !(a->has_ucx && m->datagrams))
		rc = -EPROTO;
	if (rc)
		goto out;
	memcpy(p->instance, pi->instance, sizeof(p->instance));
	p->has_instance = true;
	p->is_rvd = a->has_rvd;
	if (e) {
		snprintf(p->host, sizeof(p->host), "%s", e->ip);
		p->port = e->port;
	}
	if (a->has_ucx)
		p->frame_max = a->ucx.eager_max;
	news = a->has_ucx && set_workers(p, a) == 1;
	if (a->verbs_len && rv_peer_set_verbs(p, a->verbs, a->verbs_len) == 1)
		news = true;
	if (news)
		rv_messenger_tell_fabric(m, p);
out:
	free(a);
	return rc;
}

int rv_messenger_add_peer(struct rv_messenger *m, const struct rv_peer_info *pi, const char *name,
			  uint64_t *worker, const char **why)
{
	uint64_t id = rv_worker_id(pi->instance);
	struct rv_peer *p;
	int rc;

	if (!id || id == m->conf.worker) {
		*why = id ? "that is this node itself" : "the instance id is not usable";
		return -EPROTO;
	}
	p = rv_messenger_peer(m, id);
	rc = p ? rv_messenger_learn(m, p, pi) : -ENOMEM;
	if (rc) {
		*why = rc == -ENOMEM ? "out of memory" : "No compatible transports found";
		return rc;
	}
	if (name)
		snprintf(p->name, sizeof(p->name), "%s", name);
	*worker = id;
	return 0;
}

/* "192.0.2.7:7471", "[::1]:7471" or the address alone, in the form the kernel has it. @return its length, 0: it is none */
static size_t literal(const char *text, uint8_t out[16])
{
	size_t len = text[0] == '[' ? strcspn(++text, "]") : strlen(text);
	char ip[INET6_ADDRSTRLEN];

	if (strchr(text, ':') == strrchr(text, ':'))
		len = rv_min_u64(len, strcspn(text, ":"));
	if (len >= sizeof(ip))
		return 0;
	memcpy(ip, text, len);
	ip[len] = '\0';
	if (inet_pton(AF_INET, ip, out) == 1)
		return 4;
	return inet_pton(AF_INET6, ip, out) == 1 ? 16 : 0;
}

/* What is no literal was never dialed: it is no place to come from. */
static bool comes_from(const char *host, const char *from)
{
	uint8_t a[16], b[16];
	size_t len = literal(host, a);

	return !len || (literal(from, b) == len && memcmp(a, b, len) == 0);
}

/* A known peer, said by somebody elsewhere to be reached by @pi: nothing is changed, and a change is counted. */
static int moved(struct rv_messenger *m, const struct rv_peer *p, const struct rv_peer_info *pi)
{
	struct rv_address *a = malloc(sizeof(*a));
	const struct rv_tcp_endpoint *e = NULL;

	if (!a)
		return -ENOMEM;
	if (rv_address_decode(pi->address, pi->address_len, m->conf.blob_version, a) == 0)
		e = choose(a);
	if (e && (strcmp(e->ip, p->host) != 0 || e->port != p->port))
		rv_counter_add(&m->rejected_hellos[RV_REJECTED_ELSEWHERE], 1);
	free(a);
	return 0;
}

int rv_messenger_hear(struct rv_messenger *m, const struct rv_peer_info *pi, const char *from,
		      const char **why)
{
	uint64_t worker = rv_worker_id(pi->instance);
	struct rv_peer *p = rv_peers_find(&m->peers, worker);
	struct rv_peer was;
	int rc;

	if (!p || comes_from(p->host, from))
		return rv_messenger_add_peer(m, pi, NULL, &worker, why);
	if (p->has_instance)
		return moved(m, p, pi);
	/* Known by a reference alone: the rest is news, where it is is not. */
	was = *p;
	rc = rv_messenger_add_peer(m, pi, NULL, &worker, why);
	memcpy(p->host, was.host, sizeof(p->host));
	p->port = was.port;
	return rc;
}

int rv_messenger_add_peer_info(struct rv_messenger *m, const void *info, size_t len,
			       const char *name, uint64_t *worker, const char **why)
{
	const uint8_t *b = info;
	struct rv_peer_info pi;
	int rc;

	*why = "neither a PeerInfo in JSON nor one in msgpack";
	while (len && (b[len - 1] == '\n' || b[len - 1] == '\r' || b[len - 1] == ' '))
		len--;
	if (len && (b[0] == '{' || b[0] == '[' || b[0] == ' ' || b[0] == '\n'))
		rc = rv_peer_info_decode(info, len, &pi, why);
	else
		rc = rv_peer_info_decode_msgpack(info, len, &pi);
	if (rc)
		return rc;
	rc = rv_messenger_add_peer(m, &pi, name, worker, why);
	rv_peer_info_fini(&pi);
	return rc;
}

const struct rv_peers *rv_messenger_peers(const struct rv_messenger *m)
{
	return &m->peers;
}

void rv_messenger_drain(struct rv_messenger *m)
{
	atomic_store_explicit(&m->draining, true, memory_order_relaxed);
}

bool rv_messenger_is_draining(const struct rv_messenger *m)
{
	return atomic_load_explicit(&m->draining, memory_order_relaxed);
}

uint64_t rv_messenger_pending(const struct rv_messenger *m)
{
	return m->serving;
}

uint64_t rv_messenger_bytes_out(const struct rv_messenger *m)
{
	return rv_counter_get(&m->bytes_out);
}

const char *rv_refused_payload_name(enum rv_refused_payload r)
{
	static const char *const names[RV_REFUSED_REASONS] = {"too_long", "timeout",
							      "fetch_failed"};

	return names[r];
}

uint64_t rv_messenger_refused_payloads(const struct rv_messenger *m, enum rv_refused_payload r)
{
	return rv_counter_get(&m->refused_payloads[r]);
}

const char *rv_rejected_hello_name(enum rv_rejected_hello r)
{
	static const char *const names[RV_REJECTED_REASONS] = {"malformed", "unusable", "no_room",
							       "elsewhere"};

	return names[r];
}

uint64_t rv_messenger_rejected_hellos(const struct rv_messenger *m, enum rv_rejected_hello r)
{
	return rv_counter_get(&m->rejected_hellos[r]);
}
