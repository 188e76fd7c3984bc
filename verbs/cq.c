#include "verbs/cq.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "verbs/conn.h"
#include "verbs/read.h"

#define BATCH  32
#define ROUNDS 4

/* How long a close that was not quiesced waits for the fabric's thread. */
#define GIVE_UP_NS RV_SEC(5)

int rv_verbs_status_err(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return 0;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_INV_RD_REQ_ERR:
	case IBV_WC_MW_BIND_ERR:
		return -EPROTO;
	case IBV_WC_WR_FLUSH_ERR:
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_REM_ABORT_ERR:
	case IBV_WC_REM_OP_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

unsigned rv_verbs_cq_poll(struct rv_verbs_reactor *r)
{
	struct ibv_wc wc[BATCH];
	unsigned n = 0;

	for (unsigned round = 0; round < ROUNDS && r->cq_used; round++) {
		int got = ibv_poll_cq(r->cq, BATCH, wc);

		for (int i = 0; i < got; i++)
			rv_verbs_read_completed(r, &wc[i]);
		if (got > 0)
			n += (unsigned)got;
		if (got < BATCH)
			break;
	}
	return n;
}

static unsigned poll_reactor(struct rv_poller *p, uint64_t now_ns)
{
	struct rv_verbs_reactor *r = RV_CONTAINER(p, struct rv_verbs_reactor, poller);
	unsigned n = 0;

	r->now_ns = now_ns;
	/* acquire: pairs with the release in tell(): the inbox has what it announces. */
	if (atomic_load_explicit(&r->news, memory_order_acquire))
		n += rv_verbs_conn_news(r);
	if (r->cq_used)
		n += rv_verbs_cq_poll(r);
	if (!rv_list_empty(&r->closing))
		n += rv_verbs_conn_reap(r);
	if (!rv_list_empty(&r->done))
		n += rv_verbs_read_deliver(r);
	return n;
}

static void take_event(struct rv_verbs_reactor *r)
{
	struct ibv_cq *cq;
	void *ctx;

	if (!r->armed || ibv_get_cq_event(r->channel, &cq, &ctx))
		return;
	r->armed = false;
	r->cq_events++;
}

/* The channel of a device that was taken away stays readable for ever: nobody could sleep beside it. */
static void unwatch(struct rv_verbs_reactor *r)
{
	r->unwatched = true;
	epoll_ctl(r->epfd, EPOLL_CTL_DEL, r->channel->fd, NULL);
}

static int arm_reactor(struct rv_poller *p)
{
	struct rv_verbs_reactor *r = RV_CONTAINER(p, struct rv_verbs_reactor, poller);

	take_event(r);
	if (!r->unwatched && atomic_load_explicit(&r->v->base.dead, memory_order_relaxed))
		unwatch(r);
	if (atomic_load_explicit(&r->news, memory_order_acquire) || !rv_list_empty(&r->done))
		return -EAGAIN;
	if (!r->cq_used)
		return 0;
	if (!r->armed && ibv_req_notify_cq(r->cq, 0))
		return -EAGAIN;
	r->armed = true;
	/* What completed before the request makes no event. */
	return rv_verbs_cq_poll(r) ? -EAGAIN : 0;
}

static int reactor_fd(struct rv_poller *p)
{
	return RV_CONTAINER(p, struct rv_verbs_reactor, poller)->epfd;
}

static uint64_t next_ns(struct rv_poller *p)
{
	return rv_verbs_conn_next_ns(RV_CONTAINER(p, struct rv_verbs_reactor, poller));
}

static const struct rv_poller_ops poller_ops = {
	.name = "verbs",
	.poll = poll_reactor,
	.arm = arm_reactor,
	.fd = reactor_fd,
	.next_ns = next_ns,
};

static int watch(const struct rv_verbs_reactor *r, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN};

	return epoll_ctl(r->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int open_fds(struct rv_verbs_reactor *r)
{
	int rc;

	r->efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (r->efd < 0 || r->epfd < 0)
		return -errno;
	if (fcntl(r->channel->fd, F_SETFL, O_NONBLOCK))
		return -errno;
	rc = watch(r, r->efd);
	return rc ? rc : watch(r, r->channel->fd);
}

static void close_fds(struct rv_verbs_reactor *r)
{
	if (r->efd >= 0)
		close(r->efd);
	if (r->epfd >= 0)
		close(r->epfd);
}

int rv_verbs_reactor_open(struct rv_verbs *v, unsigned index, struct rv_verbs_reactor **out)
{
	struct rv_verbs_reactor *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	*r = (struct rv_verbs_reactor){.poller.ops = &poller_ops,
				       .v = v,
				       .index = index,
				       .counts = &v->counts[index],
				       .epfd = -1,
				       .efd = -1};
	rv_list_init(&r->done);
	rv_list_init(&r->live);
	rv_list_init(&r->closing);
	rv_list_init(&r->starved);
	rv_list_init(&r->inbox);
	r->channel = ibv_create_comp_channel(v->dev.ctx);
	if (!r->channel) {
		rc = -errno;
		goto err_free;
	}
	rc = open_fds(r);
	if (rc)
		goto err_channel;
	r->cq = ibv_create_cq(v->dev.ctx, (int)v->dev.cqe_max, NULL, r->channel, 0);
	if (!r->cq) {
		rc = -errno;
		goto err_channel;
	}
	*out = r;
	return 0;

err_channel:
	close_fds(r);
	ibv_destroy_comp_channel(r->channel);
err_free:
	rv_log_err("verbs: core %u: a completion queue cannot be made: %s", index, rv_err_name(rc));
	free(r);
	return rc;
}

bool rv_verbs_reactor_close(struct rv_verbs_reactor *r)
{
	int err;
	uint64_t deadline = rv_clock_ns() + GIVE_UP_NS;

	while (rv_verbs_quiesce(r) && rv_clock_ns() < deadline) {
		poll_reactor(&r->poller, rv_clock_ns());
		usleep(500);
	}
	if (!rv_list_empty(&r->closing)) {
		/* The thread would still tell us of them; and the device may still write. */
		rv_log_err("verbs: core %u: queue pairs could not be destroyed, they are leaked",
			   r->index);
		return false;
	}
	rv_verbs_peers_fini(r);
	rv_map64_fini(&r->conns);
	ibv_ack_cq_events(r->cq, r->cq_events);
	err = ibv_destroy_cq(r->cq);
	if (err)
		rv_log_err("verbs: ibv_destroy_cq failed: %s", strerrordesc_np(err));
	close_fds(r);
	ibv_destroy_comp_channel(r->channel);
	free(r);
	return true;
}
