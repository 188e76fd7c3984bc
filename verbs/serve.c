#include "verbs/serve.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/log.h"
#include "verbs/end.h"
#include "verbs/fence.h"
#include "verbs/window.h"

static struct rv_verbs_served *served_of(struct rv_verbs_end *e)
{
	return RV_CONTAINER(e, struct rv_verbs_served, end);
}

/* What the device does not let go of stays in the list, and is tried again. */
static void let_go(struct rv_verbs *v, struct rv_verbs_served *s)
{
	s->end.stays = rv_verbs_end_drop(v, &s->end) != 0;
	if (s->end.stays)
		return;
	if (s->domain)
		rv_verbs_domain_leave(v, s->domain);
	free(s);
}

static void close_served(struct rv_verbs *v, struct rv_verbs_served *s, const char *why)
{
	if (!s->end.stays)
		rv_log_info("verbs: the connection from worker %" PRIu64 " is over: %s", s->worker,
			    why);
	if (v->fence == RV_VERBS_FENCE_WINDOW)
		rv_verbs_windows_end(v, s);
	let_go(v, s);
}

static bool is_known(struct rv_verbs *v, uint64_t worker)
{
	bool known;

	pthread_mutex_lock(&v->lock);
	known = rv_map64_get(&v->known, worker) != NULL;
	pthread_mutex_unlock(&v->lock);
	return known;
}

static unsigned judge(struct rv_verbs *v, struct rdma_cm_id *id, const struct rdma_conn_param *p,
		      struct rv_verbs_hello *h)
{
	if (!rv_verbs_hello_decode(p->private_data, p->private_data_len, h))
		return RV_VERBS_REFUSE_HELLO;
	if (!v->allows(v->user, rdma_get_peer_addr(id)))
		return RV_VERBS_REFUSE_ADDRESS;
	if (h->to != v->worker)
		return RV_VERBS_REFUSE_OWNER;
	if (!is_known(v, h->from))
		return RV_VERBS_REFUSE_UNKNOWN;
	return rv_verbs_is_our_device(v, id) ? 0 : RV_VERBS_REFUSE_DEVICE;
}

/* It connects anew: whatever was there before, it does not use it any more. */
static void replace(struct rv_verbs *v, const struct rv_verbs_hello *h)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &v->serving)
	{
		struct rv_verbs_served *s = served_of(RV_LIST_ENTRY(it, struct rv_verbs_end, link));

		if (s->worker == h->from && s->reactor == h->reactor && !s->end.stays)
			close_served(v, s, "it connects anew");
	}
}

static int accept_it(struct rv_verbs *v, struct rv_verbs_served *s, unsigned reads)
{
	uint8_t hello[RV_VERBS_HELLO];
	struct rdma_conn_param p = {
		.private_data = hello,
		.private_data_len = sizeof(hello),
		.responder_resources = (uint8_t)reads,
	};
	int rc = rv_verbs_end_make(&s->end, s->domain ? s->domain->pd : v->pd, v->served_cq, 1);

	rv_verbs_hello_encode(hello, &(struct rv_verbs_hello){.from = v->worker,
							      .to = s->worker,
							      .reactor = (uint16_t)s->reactor});
	if (!rc)
		rc = rv_verbs_end_move(&s->end, IBV_QPS_INIT, reads);
	if (!rc)
		rc = rv_verbs_end_move(&s->end, IBV_QPS_RTR, reads);
	if (!rc)
		rc = rv_verbs_end_move(&s->end, IBV_QPS_RTS, reads);
	if (rc)
		return rc;
	p.qp_num = s->end.qp->qp_num;
	if (v->fence == RV_VERBS_FENCE_WINDOW)
		rv_verbs_windows_begin(v, s); /* once it hears of this it may ask for one */
	return rdma_accept(s->end.id, &p) ? -errno : 0;
}

/* @return 0 and @id is served, or a negative errno and it is the caller's */
static int serve(struct rv_verbs *v, struct rdma_cm_id *id, const struct rv_verbs_hello *h,
		 uint32_t reads_by, unsigned reads)
{
	struct rv_verbs_served *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->end = (struct rv_verbs_end){.role = RV_VERBS_SERVES,
				       .id = id,
				       .deadline_ns = rv_clock_ns() + RV_VERBS_CONNECT_NS};
	rv_list_init(&s->end.link);
	rv_list_init(&s->of_domain);
	rv_list_init(&s->windows);
	s->worker = h->from;
	s->reactor = h->reactor;
	s->reads_by = reads_by;
	rc = v->fence == RV_VERBS_FENCE_NO ? 0 : rv_verbs_domain_enter(v, h->from, &s->domain);
	if (rc)
		goto err_free;
	rc = accept_it(v, s, reads);
	if (rc)
		goto err_qp;
	id->context = &s->end;
	rv_list_push(&v->serving, &s->end.link);
	return 0;

err_qp:
	rv_verbs_windows_end(v, s);
	if (s->end.qp)
		ibv_destroy_qp(s->end.qp);
	if (s->domain)
		rv_verbs_domain_leave(v, s->domain);
err_free:
	free(s);
	return rc;
}

void rv_verbs_requested(struct rv_verbs *v, struct rdma_cm_id *id, const struct rdma_conn_param *p)
{
	unsigned reads = (unsigned)rv_min_u64(p->responder_resources, v->dev.reads_in);
	struct rv_verbs_hello h = {0};
	uint8_t why = (uint8_t)judge(v, id, p, &h);
	char at[RV_VERBS_HOST_TEXT];
	int rc = 0;

	rv_verbs_addr_text(rdma_get_peer_addr(id), at);
	if (!why && h.reactor < RV_VERBS_REACTORS_MAX) {
		replace(v, &h);
		rc = serve(v, id, &h, p->qp_num, reads ? reads : 1);
		if (!rc) {
			rv_log_info("verbs: worker %" PRIu64 " connects from %s", h.from, at);
			return;
		}
	}
	if (!why)
		why = RV_VERBS_REFUSE_RESOURCES;
	rv_log_warn("verbs: a connection from %s (worker %" PRIu64
		    ") is refused, it is told: %s%s%s",
		    at, h.from, rv_verbs_refusal_name(why), rc ? ": " : "",
		    rc ? strerrordesc_np(-rc) : "");
	rdma_reject(id, &why, sizeof(why));
	rdma_destroy_id(id);
}

void rv_verbs_served_close(struct rv_verbs *v, struct rv_verbs_end *e, const char *why)
{
	close_served(v, served_of(e), why);
}

static bool is_broken(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr init;

	return !ibv_query_qp(qp, &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_ERR;
}

void rv_verbs_look_at_served(struct rv_verbs *v, uint64_t now_ns, bool forgot)
{
	struct rv_list *it, *tmp;

	RV_LIST_EACH_SAFE(it, tmp, &v->serving)
	{
		struct rv_verbs_served *s = served_of(RV_LIST_ENTRY(it, struct rv_verbs_end, link));

		if (s->end.stays)
			close_served(v, s, "");
		else if (!s->end.up && now_ns >= s->end.deadline_ns)
			close_served(v, s, "it did not finish connecting");
		else if (forgot && !is_known(v, s->worker))
			close_served(v, s, "it is not known any more");
		else if (is_broken(s->end.qp))
			close_served(v, s, "an access was refused, or its queue pair broke");
	}
}
