#include "verbs/selftest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"
#include "verbs/end.h"

#define STEP_NS RV_SEC(2)
#define PAGE    4096ul
#define PAGES   4u /* the window covers the middle two */

struct loop {
	const struct rv_verbs_device *d;
	struct rv_verbs_windows *out;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	uint8_t *mem; /* what is read, and behind it where to */
	struct ibv_mr *src, *dst;
	struct ibv_qp *reader, *owner;
	struct ibv_mw *mw;
	uint64_t posted;
};

static uint8_t byte_at(size_t i)
{
	return (uint8_t)(i * 7 + 1);
}

__attribute__((format(printf, 2, 3))) static bool say(struct loop *l, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(l->out->why, sizeof(l->out->why), fmt, ap);
	va_end(ap);
	return false;
}

/* The two queue pairs. */

static struct ibv_qp *make_qp(const struct loop *l)
{
	struct ibv_qp_init_attr init = {
		.send_cq = l->cq,
		.recv_cq = l->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};

	return ibv_create_qp(l->pd, &init);
}

static int to_init(const struct loop *l, struct ibv_qp *qp, unsigned access)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
				.port_num = l->d->port,
				.qp_access_flags = access};

	return ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int to_rtr(const struct loop *l, struct ibv_qp *qp, uint32_t other)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = other,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = l->d->has_ip,
			    .port_num = l->d->port,
			    .grh = {.sgid_index = (uint8_t)l->d->gid_index, .hop_limit = 1}},
	};

	if (ibv_query_port(l->d->ctx, l->d->port, &port) ||
	    ibv_query_gid(l->d->ctx, l->d->port, (int)l->d->gid_index, &a.ah_attr.grh.dgid))
		return EIO;
	a.path_mtu = port.active_mtu;
	a.ah_attr.dlid = port.lid;
	return ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS,
				.timeout = RV_VERBS_ACK_TIMEOUT,
				.retry_cnt = RV_VERBS_RETRIES,
				.max_rd_atomic = 1};

	return ibv_modify_qp(qp, &a,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static bool connect_them(struct loop *l)
{
	int err;

	l->reader = make_qp(l);
	l->owner = make_qp(l);
	if (!l->reader || !l->owner)
		return say(l, "a queue pair: %s", strerrordesc_np(errno));
	err = to_init(l, l->reader, 0);
	if (!err)
		err = to_init(l, l->owner, IBV_ACCESS_REMOTE_READ);
	if (!err)
		err = to_rtr(l, l->reader, l->owner->qp_num);
	if (!err)
		err = to_rtr(l, l->owner, l->reader->qp_num);
	if (!err)
		err = to_rts(l->reader);
	if (!err)
		err = to_rts(l->owner);
	return err ? say(l, "connecting to itself: %s", strerrordesc_np(err)) : true;
}

/* A window goes before its queue pair. */
static bool disconnect_them(struct loop *l)
{
	bool gone = !l->mw || !ibv_dealloc_mw(l->mw);

	gone &= !l->owner || !ibv_destroy_qp(l->owner);
	gone &= !l->reader || !ibv_destroy_qp(l->reader);
	l->mw = NULL;
	l->owner = l->reader = NULL;
	return gone;
}

/* What is posted. */

/* @return the completion's status, or -1: it did not take it, or did not answer */
static int post(struct loop *l, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	uint64_t deadline = rv_clock_ns() + STEP_NS;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr->wr_id = ++l->posted;
	wr->send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(qp, wr, &bad))
		return -1;
	while (rv_clock_ns() < deadline) {
		int n = ibv_poll_cq(l->cq, 1, &wc);

		if (n < 0)
			return -1;
		if (n && wc.wr_id == wr->wr_id)
			return (int)wc.status;
	}
	return -1;
}

static bool bind_it(struct loop *l)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW};
	int status;

	l->mw = ibv_alloc_mw(l->pd, IBV_MW_TYPE_2);
	if (!l->mw)
		return say(l, "a memory window: %s", strerrordesc_np(errno));
	wr.bind_mw.mw = l->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(l->mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = l->src,
		.addr = (uint64_t)(uintptr_t)l->mem + PAGE,
		.length = (PAGES - 2) * PAGE,
		.mw_access_flags = IBV_ACCESS_REMOTE_READ,
	};
	status = post(l, l->owner, &wr);
	if (status)
		return say(l, "binding a window: %s",
			   status < 0 ? "no answer"
				      : ibv_wc_status_str((enum ibv_wc_status)status));
	l->mw->rkey = wr.bind_mw.rkey;
	return true;
}

/* @return as post() */
static int read_at(struct loop *l, unsigned off)
{
	struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)l->mem + PAGES * PAGE,
			      .length = 16,
			      .lkey = l->dst->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = {.remote_addr = (uint64_t)(uintptr_t)l->mem + off, .rkey = l->mw->rkey},
	};

	return post(l, l->reader, &wr);
}

static bool is_refusal(int status)
{
	return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
	       status == IBV_WC_REM_OP_ERR;
}

/* The three questions; a refusal breaks both queue pairs, so each comes on new ones. */

static bool ask(struct loop *l, bool (*question)(struct loop *l))
{
	bool yes = connect_them(l) && bind_it(l) && question(l);

	return disconnect_them(l) && yes;
}

static bool reads_inside(struct loop *l)
{
	const uint8_t *got = l->mem + PAGES * PAGE;
	int status = read_at(l, PAGE);

	if (status)
		return say(l, "reading in a window: %s",
			   status < 0 ? "no answer"
				      : ibv_wc_status_str((enum ibv_wc_status)status));
	for (unsigned i = 0; i < 16; i++) {
		if (got[i] != byte_at(PAGE + i))
			return say(l, "reading in a window: wrong bytes");
	}
	return true;
}

static bool refused_over_the_end(struct loop *l)
{
	return is_refusal(read_at(l, (PAGES - 1) * PAGE - 8)) ||
	       say(l, "it lets peers read over a window's end");
}

static bool refused_before(struct loop *l)
{
	return is_refusal(read_at(l, 0)) || say(l, "it lets peers read before a window");
}

static bool refused_after_the_end_of_it(struct loop *l)
{
	struct ibv_send_wr inv = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = l->mw->rkey};

	if (post(l, l->owner, &inv))
		return say(l, "invalidating a window does not work");
	return is_refusal(read_at(l, PAGE)) || say(l, "a window is read after its invalidation");
}

static bool open_loop(struct loop *l)
{
	l->mem = aligned_alloc(PAGE, (PAGES + 1) * PAGE);
	l->pd = ibv_alloc_pd(l->d->ctx);
	l->cq = ibv_create_cq(l->d->ctx, 16, NULL, NULL, 0);
	if (!l->mem || !l->pd || !l->cq)
		return say(l, "out of resources");
	for (unsigned i = 0; i < (PAGES + 1) * PAGE; i++)
		l->mem[i] = i < PAGES * PAGE ? byte_at(i) : 0;
	l->src = ibv_reg_mr(l->pd, l->mem, PAGES * PAGE, IBV_ACCESS_MW_BIND);
	l->dst = ibv_reg_mr(l->pd, l->mem + PAGES * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);
	return l->src && l->dst ? true : say(l, "a region: %s", strerrordesc_np(errno));
}

static void close_loop(struct loop *l)
{
	bool gone = !l->src || !ibv_dereg_mr(l->src);

	gone &= !l->dst || !ibv_dereg_mr(l->dst);
	gone &= !l->cq || !ibv_destroy_cq(l->cq);
	gone &= !l->pd || !ibv_dealloc_pd(l->pd);
	if (gone)
		free(l->mem); /* else the device may yet write to it */
}

static bool has_windows(const struct rv_verbs_device *d)
{
	struct ibv_device_attr a;

	return !ibv_query_device(d->ctx, &a) && a.max_mw > 0 &&
	       a.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
}

void rv_verbs_windows_try(const struct rv_verbs_device *d, struct rv_verbs_windows *out)
{
	struct loop l = {.d = d, .out = out};

	*out = (struct rv_verbs_windows){0};
	if (!has_windows(d)) {
		say(&l, "%.32s has no memory windows of type 2", d->name);
		return;
	}
	if (open_loop(&l)) {
		out->read = ask(&l, reads_inside);
		out->revoked = out->read && ask(&l, refused_after_the_end_of_it);
		out->bounded =
			out->revoked && ask(&l, refused_over_the_end) && ask(&l, refused_before);
	}
	close_loop(&l);
}

bool rv_verbs_fence_choose(enum rv_verbs_fence wanted, const struct rv_verbs_windows *w,
			   enum rv_verbs_fence *out, char *why, size_t cap)
{
	*out = wanted;
	if (wanted == RV_VERBS_FENCE_AUTO)
		*out = w->read && w->bounded && w->revoked ? RV_VERBS_FENCE_WINDOW
							   : RV_VERBS_FENCE_REGION;
	if (wanted != RV_VERBS_FENCE_WINDOW || (w->read && w->revoked))
		return true;
	snprintf(why, cap, "verbs.fence = window: %s", w->why);
	return false;
}
