#include "verbs/cm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "verbs/end.h"
#include "verbs/events.h"
#include "verbs/serve.h"

#define RESOLVE_MS 1000
#define TICK_MS    1000
#define BACKLOG    128

static struct rv_verbs_conn *conn_of(struct rv_verbs_end *e)
{
	return RV_CONTAINER(e, struct rv_verbs_conn, end);
}

/* The hand-over. */

static void kick(int efd)
{
	while (eventfd_write(efd, 1) && errno == EINTR)
		;
}

void rv_verbs_cm_want(struct rv_verbs *v, struct rv_verbs_conn *c, unsigned want)
{
	pthread_mutex_lock(&v->lock);
	c->wants |= want;
	if (rv_list_empty(&c->todo))
		rv_list_push(&v->todo, &c->todo);
	pthread_mutex_unlock(&v->lock);
	kick(v->wake);
}

static void tell(struct rv_verbs *v, struct rv_verbs_conn *c, unsigned news)
{
	struct rv_verbs_reactor *r = c->r;
	int efd = r->efd;

	pthread_mutex_lock(&v->lock);
	c->news |= news;
	if (rv_list_empty(&c->inbox))
		rv_list_push(&r->inbox, &c->inbox);
	/* release: pairs with the acquire in poll_reactor(). Under the lock: with the last news @c may go at once. */
	atomic_store_explicit(&r->news, true, memory_order_release);
	kick(efd);
	pthread_mutex_unlock(&v->lock);
}

/* Consumer. */

static void fail(struct rv_verbs *v, struct rv_verbs_conn *c, const char *what, const char *why)
{
	char at[RV_VERBS_HOST_TEXT];

	if (!c->end.id)
		return; /* it was told already */
	rv_verbs_addr_text((const struct sockaddr *)&c->dst, at);
	rv_log_warn("verbs: no connection to worker %" PRIu64 " at %s: %s: %s", c->worker, at, what,
		    why);
	rv_verbs_end_drop(v, &c->end);
	tell(v, c, RV_VERBS_NEWS_FAILED);
}

static void fail_errno(struct rv_verbs *v, struct rv_verbs_conn *c, const char *what, int rc)
{
	fail(v, c, what, strerrordesc_np(-rc));
}

static void start_connect(struct rv_verbs *v, struct rv_verbs_conn *c)
{
	const struct sockaddr_storage *ip = &v->dev.ip;
	struct sockaddr *src = v->dev.has_ip && ip->ss_family == c->dst.ss_family
				       ? (struct sockaddr *)&v->dev.ip
				       : NULL;
	uint8_t tos = (uint8_t)v->traffic_class;

	if (rdma_create_id(v->cm_channel, &c->end.id, &c->end, RDMA_PS_TCP)) {
		rv_log_err("verbs: rdma_create_id failed: %m");
		c->end.id = NULL;
		tell(v, c, RV_VERBS_NEWS_FAILED);
		return;
	}
	rv_list_push(&v->reading, &c->end.link);
	c->end.deadline_ns = rv_clock_ns() + RV_VERBS_CONNECT_NS;
	if (v->traffic_class >= 0)
		rdma_set_option(c->end.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos));
	if (rdma_resolve_addr(c->end.id, src, (struct sockaddr *)&c->dst, RESOLVE_MS))
		fail_errno(v, c, "resolving its address", -errno);
}

static void addr_resolved(struct rv_verbs *v, struct rv_verbs_conn *c)
{
	if (!rv_verbs_is_our_device(v, c->end.id))
		fail(v, c, "its address", "the way there is not by our device");
	else if (rdma_resolve_route(c->end.id, RESOLVE_MS))
		fail_errno(v, c, "resolving a route", -errno);
}

static void route_resolved(struct rv_verbs *v, struct rv_verbs_conn *c)
{
	uint8_t hello[RV_VERBS_HELLO];
	struct rdma_conn_param p = {
		.private_data = hello,
		.private_data_len = sizeof(hello),
		.initiator_depth = (uint8_t)v->dev.reads_out,
		.retry_count = RV_VERBS_RETRIES,
	};
	int rc;

	rv_verbs_hello_encode(hello, &(struct rv_verbs_hello){.from = v->worker,
							      .to = c->worker,
							      .reactor = (uint16_t)c->r->index});
	rc = rv_verbs_end_make(&c->end, v->pd, c->r->cq, v->dev.reads_out);
	if (!rc)
		rc = rv_verbs_end_move(&c->end, IBV_QPS_INIT, 0);
	if (rc) {
		fail_errno(v, c, "making a queue pair", rc);
		return;
	}
	p.qp_num = c->end.qp->qp_num;
	if (rdma_connect(c->end.id, &p))
		fail_errno(v, c, "connecting", -errno);
}

static void answered(struct rv_verbs *v, struct rv_verbs_conn *c, const struct rdma_conn_param *p)
{
	unsigned depth = (unsigned)rv_min_u64(p->initiator_depth, v->dev.reads_out);
	struct rv_verbs_hello h;
	int rc;

	if (!rv_verbs_hello_decode(p->private_data, p->private_data_len, &h) ||
	    h.from != c->worker || h.to != v->worker) {
		fail(v, c, "its answer", "somebody else is there");
		return;
	}
	if (!depth) {
		fail(v, c, "its answer", "it grants no reads");
		return;
	}
	rc = rv_verbs_end_move(&c->end, IBV_QPS_RTR, depth);
	if (!rc)
		rc = rv_verbs_end_move(&c->end, IBV_QPS_RTS, depth);
	if (!rc && rdma_establish(c->end.id))
		rc = -errno;
	if (rc) {
		fail_errno(v, c, "setting up the queue pair", rc);
		return;
	}
	c->depth = depth;
	c->end.up = true;
	rv_log_info("verbs: connected to worker %" PRIu64 ", %u reads at once", c->worker, depth);
	tell(v, c, RV_VERBS_NEWS_UP);
}

static void refused(struct rv_verbs *v, struct rv_verbs_conn *c, int status,
		    const struct rdma_conn_param *p)
{
	const uint8_t *reason = p->private_data;

	if (reason && p->private_data_len && *reason)
		fail(v, c, "it refused", rv_verbs_refusal_name(*reason));
	else
		fail(v, c, "it refused", status == 8 ? "nobody listens there" : "no reason given");
}

/* Events of rdma_cm. */

static void lost(struct rv_verbs *v, struct rv_verbs_end *e, const char *why)
{
	if (e->stays)
		return;
	if (e->role == RV_VERBS_SERVES)
		rv_verbs_served_close(v, e, why);
	else if (e->up)
		tell(v, conn_of(e), RV_VERBS_NEWS_LOST);
	else
		fail(v, conn_of(e), "connecting", why);
}

static void on_end_event(struct rv_verbs *v, struct rv_verbs_end *e, enum rdma_cm_event_type type,
			 int status, const struct rdma_conn_param *p)
{
	bool reads = e->role == RV_VERBS_READS;

	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		addr_resolved(v, conn_of(e));
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		route_resolved(v, conn_of(e));
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		answered(v, conn_of(e), p);
		break;
	case RDMA_CM_EVENT_REJECTED:
		if (reads)
			refused(v, conn_of(e), status, p);
		else
			lost(v, e, "it went back on it");
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		e->up = true;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		lost(v, e, "it disconnected");
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		lost(v, e, "the device is gone");
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		lost(v, e, status < 0 ? strerrordesc_np(-status) : rdma_event_str(type));
		break;
	default:
		break;
	}
}

/* The kernel lets go of a device only when nobody listens on it. */
static void on_listener(struct rv_verbs *v, enum rdma_cm_event_type type)
{
	rv_log_err("verbs: listening: %s", rdma_event_str(type));
	if (type != RDMA_CM_EVENT_DEVICE_REMOVAL)
		return;
	rdma_destroy_id(v->listener.id);
	v->listener.id = NULL;
}

static void on_cm(struct rv_verbs *v)
{
	struct rdma_cm_event *ev;

	while (rdma_get_cm_event(v->cm_channel, &ev) == 0) {
		struct rdma_conn_param p = ev->param.conn;
		enum rdma_cm_event_type type = ev->event;
		struct rdma_cm_id *id = ev->id;
		struct rv_verbs_end *e = id->context;
		int status = ev->status;
		uint8_t data[256];

		/* An id cannot be destroyed before its events are acknowledged. */
		if (p.private_data)
			memcpy(data, p.private_data, p.private_data_len);
		p.private_data = p.private_data ? data : NULL;
		rdma_ack_cm_event(ev);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
			rv_verbs_requested(v, id, &p);
		else if (e->role != RV_VERBS_LISTENS)
			on_end_event(v, e, type, status, &p);
		else
			on_listener(v, type);
	}
}

/* Events of the device. */

static void lose_all(struct rv_verbs *v, const char *why)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &v->reading)
	lost(v, RV_LIST_ENTRY(it, struct rv_verbs_end, link), why);
}

static void lose_qp(struct rv_verbs *v, const struct ibv_qp *qp)
{
	struct rv_list *lists[] = {&v->reading, &v->serving}, *it, *tmp;

	for (unsigned i = 0; i < RV_ARRAY_NR(lists); i++) {
		RV_LIST_EACH_SAFE(it, tmp, lists[i])
		{
			struct rv_verbs_end *e = RV_LIST_ENTRY(it, struct rv_verbs_end, link);

			if (e->qp == qp)
				lost(v, e, "the device says that its queue pair is broken");
		}
	}
}

static void on_device_event(struct rv_verbs *v, const struct ibv_async_event *ev)
{
	switch (ev->event_type) {
	case IBV_EVENT_PORT_ERR:
		if (ev->element.port_num != v->dev.port)
			break;
		rv_log_warn("verbs: port %u of %s is down: nothing is read by it until it is back",
			    v->dev.port, v->dev.name);
		lose_all(v, "the port is down");
		break;
	case IBV_EVENT_PORT_ACTIVE:
		if (ev->element.port_num == v->dev.port)
			rv_log_info("verbs: port %u of %s is active", v->dev.port, v->dev.name);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		rv_log_err("verbs: %s is gone or broken: reads go other ways until a restart",
			   v->dev.name);
		lose_all(v, "the device is gone");
		break;
	case IBV_EVENT_CQ_ERR:
		rv_log_err("verbs: a completion queue of %s is broken", v->dev.name);
		lose_all(v, "the completion queue is broken");
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		lose_qp(v, ev->element.qp);
		break;
	default:
		rv_log_debug("verbs: %s: %s", v->dev.name, ibv_event_type_str(ev->event_type));
		break;
	}
}

static void on_async(struct rv_verbs *v)
{
	struct ibv_async_event ev;

	while (rv_verbs_event_next(v, &ev))
		on_device_event(v, &ev);
}

/* The reactors' wishes. */

static void do_wish(struct rv_verbs *v, struct rv_verbs_conn *c, unsigned wants)
{
	if (wants & RV_VERBS_WANT_DESTROY) {
		/* Of a queue pair that stays the device may still write: its READs do not end, and it is tried again. */
		c->end.stays = rv_verbs_end_drop(v, &c->end) != 0;
		if (!c->end.stays)
			tell(v, c, RV_VERBS_NEWS_DESTROYED);
		else if (rv_list_empty(&c->end.link))
			rv_list_push(&v->reading, &c->end.link);
	} else if (wants & RV_VERBS_WANT_CONNECT) {
		start_connect(v, c);
	}
}

static void on_wishes(struct rv_verbs *v)
{
	eventfd_t ignored;
	struct rv_list *it;

	eventfd_read(v->wake, &ignored);
	pthread_mutex_lock(&v->lock);
	while ((it = rv_list_pop(&v->todo))) {
		struct rv_verbs_conn *c = RV_LIST_ENTRY(it, struct rv_verbs_conn, todo);
		unsigned wants = c->wants;

		c->wants = 0;
		pthread_mutex_unlock(&v->lock);
		do_wish(v, c, wants);
		pthread_mutex_lock(&v->lock);
	}
	pthread_mutex_unlock(&v->lock);
}

/* Now and then. */

static void tick(struct rv_verbs *v)
{
	uint64_t now_ns = rv_clock_ns();
	struct rv_list *it, *tmp;
	bool forgot;

	pthread_mutex_lock(&v->lock);
	forgot = v->forgot;
	v->forgot = false;
	pthread_mutex_unlock(&v->lock);
	rv_verbs_look_at_served(v, now_ns, forgot);
	RV_LIST_EACH_SAFE(it, tmp, &v->reading)
	{
		struct rv_verbs_end *e = RV_LIST_ENTRY(it, struct rv_verbs_end, link);

		if (e->stays)
			do_wish(v, conn_of(e), RV_VERBS_WANT_DESTROY);
		else if (!e->up && now_ns >= e->deadline_ns)
			fail(v, conn_of(e), "connecting", "no answer in time");
	}
}

static void *main_loop(void *arg)
{
	struct rv_verbs *v = arg;
	struct pollfd fds[] = {
		{.fd = v->wake, .events = POLLIN},
		{.fd = v->cm_channel->fd, .events = POLLIN},
		{.fd = v->dev.ctx->async_fd, .events = POLLIN},
	};
	uint64_t tick_ns = rv_clock_ns() + RV_MS(TICK_MS);

	pthread_setname_np(pthread_self(), "rvd-verbs");
	while (!atomic_load_explicit(&v->stop, memory_order_acquire)) {
		poll(fds, RV_ARRAY_NR(fds), TICK_MS);
		on_wishes(v);
		on_async(v);
		on_cm(v);
		if (rv_clock_ns() >= tick_ns) {
			tick(v);
			tick_ns = rv_clock_ns() + RV_MS(TICK_MS);
		}
	}
	return NULL;
}

/* Start and stop. */

static bool is_wildcard(const char *host)
{
	return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* @return false: no address literal */
static bool to_listen_on(const struct rv_verbs *v, const char *host, uint16_t port,
			 struct sockaddr_storage *out)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
	struct addrinfo *ai;

	if (is_wildcard(host)) {
		if (!v->dev.has_ip)
			return false;
		*out = v->dev.ip;
	} else {
		if (getaddrinfo(host, NULL, &hints, &ai))
			return false;
		memset(out, 0, sizeof(*out));
		memcpy(out, ai->ai_addr, ai->ai_addrlen);
		freeaddrinfo(ai);
	}
	if (out->ss_family == AF_INET6)
		((struct sockaddr_in6 *)out)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)out)->sin_port = htons(port);
	return true;
}

static int start_listening(struct rv_verbs *v, const char *host, uint16_t port, char *why)
{
	char at[RV_VERBS_HOST_TEXT];
	uint8_t tos = (uint8_t)v->traffic_class;
	int rc;

	if (!to_listen_on(v, host, port, &v->listen_addr)) {
		snprintf(why, RV_VERBS_WHY,
			 "verbs.listen = %.64s: give an address literal of the device's interface",
			 host);
		return -EINVAL;
	}
	rv_verbs_addr_text((struct sockaddr *)&v->listen_addr, at);
	if (rdma_create_id(v->cm_channel, &v->listener.id, &v->listener, RDMA_PS_TCP)) {
		rc = -errno;
		snprintf(why, RV_VERBS_WHY, "rdma_create_id: %s", strerrordesc_np(-rc));
		return rc;
	}
	if (v->traffic_class >= 0)
		rdma_set_option(v->listener.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos,
				sizeof(tos));
	if (rdma_bind_addr(v->listener.id, (struct sockaddr *)&v->listen_addr) ||
	    rdma_listen(v->listener.id, BACKLOG)) {
		rc = -errno;
		snprintf(why, RV_VERBS_WHY, "cannot listen on %s: %s", at, strerrordesc_np(-rc));
		return rc;
	}
	if (!rv_verbs_is_our_device(v, v->listener.id)) {
		snprintf(why, RV_VERBS_WHY, "%s is no address of port %u of %s", at, v->dev.port,
			 v->dev.name);
		return -ENODEV;
	}
	memcpy(&v->listen_addr, rdma_get_local_addr(v->listener.id),
	       v->listen_addr.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
						    : sizeof(struct sockaddr_in));
	rv_verbs_addr_text((struct sockaddr *)&v->listen_addr, at);
	rv_log_info("verbs: listening on %s", at);
	return 0;
}

static int no_block(int fd)
{
	return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) ? -errno : 0;
}

static void stop_listening(struct rv_verbs *v)
{
	if (v->listener.id)
		rdma_destroy_id(v->listener.id);
	v->listener.id = NULL;
	if (v->served_cq)
		ibv_destroy_cq(v->served_cq);
	if (v->cm_channel)
		rdma_destroy_event_channel(v->cm_channel);
	if (v->wake >= 0)
		close(v->wake);
}

int rv_verbs_cm_start(struct rv_verbs *v, const char *host, uint16_t port, char *why)
{
	int rc = -ENOMEM;

	v->listener.role = RV_VERBS_LISTENS;
	v->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	v->cm_channel = rdma_create_event_channel();
	v->served_cq = ibv_create_cq(v->dev.ctx, 16, NULL, NULL, 0);
	if (v->wake < 0 || !v->cm_channel || !v->served_cq) {
		snprintf(why, RV_VERBS_WHY, "rdma_cm cannot be used: %s", strerrordesc_np(errno));
		goto err_stop;
	}
	rc = start_listening(v, host, port, why);
	if (rc)
		goto err_stop;
	rc = no_block(v->cm_channel->fd);
	if (!rc)
		rc = no_block(v->dev.ctx->async_fd);
	if (!rc)
		rc = -pthread_create(&v->thread, NULL, main_loop, v);
	if (!rc)
		return 0;
	snprintf(why, RV_VERBS_WHY, "its thread did not start: %s", strerrordesc_np(-rc));
err_stop:
	stop_listening(v);
	return rc;
}

void rv_verbs_cm_stop(struct rv_verbs *v)
{
	struct rv_list *it, *tmp;

	/* release: pairs with the acquire in main_loop(). */
	atomic_store_explicit(&v->stop, true, memory_order_release);
	kick(v->wake);
	pthread_join(v->thread, NULL);
	RV_LIST_EACH_SAFE(it, tmp, &v->serving)
	rv_verbs_served_close(v, RV_LIST_ENTRY(it, struct rv_verbs_end, link), "this node stops");
	stop_listening(v);
}
