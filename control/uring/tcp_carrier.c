#include "control/uring/tcp_carrier.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>

#include "control/uring/conn.h"
#include "control/uring/sockaddr.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

struct tcp_link {
	struct rv_link link;
	struct rv_conn conn;
	struct rv_tcp_carrier *carrier;
	struct rv_list all;
	char name[64];
};

static struct tcp_link *of_conn(struct rv_conn *c)
{
	return RV_CONTAINER(c, struct tcp_link, conn);
}

static struct tcp_link *of_link(const struct rv_link *l)
{
	return RV_CONTAINER((struct rv_link *)(uintptr_t)l, struct tcp_link, link);
}

/* From the connection to the carrier's user. */

static struct rv_frame frame_of(const struct rv_preamble *pre, const uint8_t *header)
{
	return (struct rv_frame){
		.type = pre->type,
		.header = header,
		.header_len = pre->header_len,
		.payload_len = pre->payload_len,
	};
}

static void *on_place(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header)
{
	struct tcp_link *t = of_conn(c);
	struct rv_frame f = frame_of(pre, header);

	/* cppcheck-suppress returnDanglingLifetime ; where the payload goes, never into f */
	return t->carrier->conf.events->place(t->carrier->conf.user, &t->link, &f);
}

static void on_frame(struct rv_conn *c, const struct rv_preamble *pre, const uint8_t *header,
		     const uint8_t *payload, bool placed)
{
	struct tcp_link *t = of_conn(c);
	struct rv_frame f = frame_of(pre, header);

	f.payload = payload;
	f.placed = placed;
	t->carrier->conf.events->frame(t->carrier->conf.user, &t->link, &f);
}

/* One whose host is gone is found out by a probe when it rests, and by what it does not acknowledge when it does not. */
static void set_options(int fd, uint64_t dead_ns)
{
	int ms = (int)(dead_ns / RV_MS(1)), one = 1;
	int idle = (int)rv_max_u64(dead_ns / RV_SEC(1) * 2 / 5, 1);
	int interval = (int)rv_max_u64((dead_ns / RV_SEC(1) - (uint64_t)idle) / 9, 1);

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

static void learn_route(struct tcp_link *t)
{
	struct sockaddr_storage peer = {0}, self = {0};
	socklen_t pl = sizeof(peer), sl = sizeof(self);

	if (getpeername(t->conn.fd, (struct sockaddr *)&peer, &pl) ||
	    getsockname(t->conn.fd, (struct sockaddr *)&self, &sl))
		return;
	t->link.is_local = rv_sockaddr_is_local(&peer, &self);
	/* There is nothing to pace within a host: bbr makes 1 MiB take twice as long there. Every kernel has reno. */
	if (t->link.is_local)
		setsockopt(t->conn.fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
	rv_sockaddr_format(&peer, t->name, sizeof(t->name));
}

static void on_connected(struct rv_conn *c, int rc)
{
	struct tcp_link *t = of_conn(c);

	if (!rc) {
		learn_route(t);
		rv_conn_limit(c, RV_NEVER, t->carrier->conf.stall_timeout_ns);
	}
	t->carrier->conf.events->connected(t->carrier->conf.user, &t->link, rc);
}

static void on_displaced(struct rv_conn *c)
{
	struct tcp_link *t = of_conn(c);

	t->carrier->conf.events->displaced(t->carrier->conf.user, &t->link);
}

static void on_drained(struct rv_conn *c)
{
	struct tcp_link *t = of_conn(c);

	t->carrier->conf.events->drained(t->carrier->conf.user, &t->link);
}

static void on_closed(struct rv_conn *c, int rc)
{
	struct tcp_link *t = of_conn(c);

	if (c->overdue == RV_CONN_SILENT)
		rv_counter_add(&t->carrier->silent, 1);
	else if (c->overdue == RV_CONN_STALLED)
		rv_counter_add(&t->carrier->stalled, 1);
	t->carrier->conf.events->closed(t->carrier->conf.user, &t->link, rc);
	rv_list_del(&t->all);
	rv_counter_sub(&t->carrier->connections, 1);
	free(t);
}

static const struct rv_conn_ops conn_ops = {
	.decode = rv_preamble_decode,
	.encode = rv_preamble_encode,
	.place = on_place,
	.frame = on_frame,
	.connected = on_connected,
	.displaced = on_displaced,
	.drained = on_drained,
	.closed = on_closed,
};

/* From the carrier's user to the connection. */

static int link_send(struct rv_link *l, unsigned type, const void *header, size_t header_len,
		     const void *payload, size_t payload_len, rv_sent_fn *sent, void *ctx)
{
	return rv_conn_send(&of_link(l)->conn, type, header, header_len, payload, payload_len, -1,
			    sent, ctx);
}

static int link_send_pieces(struct rv_link *l, unsigned type, const void *header, size_t header_len,
			    const struct iovec *piece, size_t nr, rv_sent_fn *sent, void *ctx)
{
	return rv_conn_send_pieces(&of_link(l)->conn, type, header, header_len, piece, nr, sent,
				   ctx);
}

static bool link_displace(struct rv_link *l)
{
	return rv_conn_displace(&of_link(l)->conn);
}

static size_t link_queued(const struct rv_link *l)
{
	return of_link(l)->conn.tx_queued;
}

static void link_pause(struct rv_link *l, bool on)
{
	rv_conn_pause(&of_link(l)->conn, on);
}

static void link_close(struct rv_link *l, int rc)
{
	rv_conn_close(&of_link(l)->conn, rc);
}

static const char *link_name(const struct rv_link *l)
{
	return of_link(l)->name;
}

static const struct rv_link_ops link_ops = {
	.send = link_send,
	.send_pieces = link_send_pieces,
	.displace = link_displace,
	.queued = link_queued,
	.pause = link_pause,
	.close = link_close,
	.name = link_name,
};

static struct tcp_link *link_new(struct rv_tcp_carrier *c, bool dialed)
{
	struct tcp_link *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->link = (struct rv_link){.ops = &link_ops, .dialed = dialed};
	t->carrier = c;
	rv_list_push(&c->conns, &t->all);
	rv_counter_add(&c->connections, 1);
	return t;
}

static struct rv_link *dial(struct rv_carrier *carrier, const char *host, uint16_t port,
			    void *link_user)
{
	struct rv_tcp_carrier *c = RV_CONTAINER(carrier, struct rv_tcp_carrier, carrier);
	struct sockaddr_storage sa;
	struct tcp_link *t;
	socklen_t len;
	int fd, buf = 2 << 20;

	errno = EHOSTUNREACH;
	if (rv_sockaddr_parse(host, port, &sa, &len))
		return NULL;
	fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return NULL;
	set_options(fd, c->conf.stall_timeout_ns);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buf, sizeof(buf));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buf, sizeof(buf));
	t = link_new(c, true);
	if (!t) {
		close(fd);
		errno = ENOMEM;
		return NULL;
	}
	rv_sockaddr_format(&sa, t->name, sizeof(t->name));
	t->link.user = link_user;
	rv_conn_connect(&t->conn, &conn_ops, c->conf.ring, c->conf.reactor, fd,
			(struct sockaddr *)&sa, len, c->conf.connect_timeout_ns);
	return &t->link;
}

static const struct rv_carrier_ops carrier_ops = {.dial = dial};

bool rv_tcp_allowed(const struct rv_admission *a, const struct sockaddr *peer)
{
	/* acquire: pairs with the release of whoever made the list. */
	const struct rv_config_cidrs *allow = atomic_load_explicit(&a->allow, memory_order_acquire);
	const void *ip;

	if (peer->sa_family == AF_INET)
		ip = &((const struct sockaddr_in *)(const void *)peer)->sin_addr;
	else
		ip = &((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr;
	return rv_config_cidrs_match(allow, peer->sa_family == AF_INET6, ip);
}

static void accepted(void *user, int fd)
{
	struct rv_tcp_carrier *c = user;
	struct sockaddr_storage peer = {0};
	socklen_t len = sizeof(peer);
	struct tcp_link *t = NULL;

	if (getpeername(fd, (struct sockaddr *)&peer, &len) ||
	    !rv_tcp_allowed(c->conf.admission, (struct sockaddr *)&peer) ||
	    rv_counter_get(&c->connections) >=
		    atomic_load_explicit(&c->conf.admission->max_connections,
					 memory_order_relaxed) ||
	    !(t = link_new(c, false))) {
		rv_counter_add(&c->refused, 1);
		close(fd);
		return;
	}
	set_options(fd, c->conf.stall_timeout_ns);
	rv_conn_open(&t->conn, &conn_ops, c->conf.ring, c->conf.reactor, fd);
	rv_conn_limit(&t->conn, c->conf.handshake_timeout_ns, c->conf.stall_timeout_ns);
	learn_route(t);
	if (!c->conf.events->opened(c->conf.user, &t->link))
		rv_conn_close(&t->conn, -ECONNREFUSED);
}

void rv_tcp_carrier_init(struct rv_tcp_carrier *t, const struct rv_tcp_conf *conf)
{
	*t = (struct rv_tcp_carrier){.carrier = {&carrier_ops}, .conf = *conf};
	rv_list_init(&t->conns);
}

int rv_tcp_carrier_listen(struct rv_tcp_carrier *t, int fd)
{
	if (t->listener_nr == RV_TCP_LISTENERS)
		return -ENOSPC;
	rv_listener_start(&t->listener[t->listener_nr], t->conf.ring, t->conf.reactor, fd, accepted,
			  t);
	t->listener[t->listener_nr++].away = &t->refused;
	return 0;
}

void rv_tcp_carrier_stop_listening(struct rv_tcp_carrier *t)
{
	for (unsigned i = 0; i < t->listener_nr; i++)
		rv_listener_stop(&t->listener[i]);
}

unsigned rv_tcp_carrier_close_all(struct rv_tcp_carrier *t)
{
	struct rv_list *it;
	unsigned left = 0;

	RV_LIST_EACH(it, &t->conns)
	{
		rv_conn_close(&RV_LIST_ENTRY(it, struct tcp_link, all)->conn, -ESHUTDOWN);
		left++;
	}
	for (unsigned i = 0; i < t->listener_nr; i++)
		left += t->listener[i].op.pending;
	return left;
}

size_t rv_tcp_carrier_queued(const struct rv_tcp_carrier *t)
{
	struct rv_list *it;
	size_t sum = 0;

	RV_LIST_EACH(it, &t->conns)
	sum += RV_LIST_ENTRY(it, struct tcp_link, all)->conn.tx_queued;
	return sum;
}
