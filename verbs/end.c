#include "verbs/end.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "dataplane/base/log.h"
#include "verbs/events.h"

void rv_verbs_addr_text(const struct sockaddr *sa, char out[RV_VERBS_HOST_TEXT])
{
	socklen_t len = sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
						  : sizeof(struct sockaddr_in);
	char host[RV_VERBS_HOST_MAX], port[8];

	if (getnameinfo(sa, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV))
		snprintf(out, RV_VERBS_HOST_TEXT, "?");
	else
		snprintf(out, RV_VERBS_HOST_TEXT, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
			 host, port);
}

int rv_verbs_end_make(struct rv_verbs_end *e, struct ibv_pd *pd, struct ibv_cq *cq, unsigned reads)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = reads,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = 1},
	};

	e->qp = ibv_create_qp(pd, &init);
	return e->qp ? 0 : -errno;
}

int rv_verbs_end_move(struct rv_verbs_end *e, enum ibv_qp_state to, unsigned reads)
{
	struct ibv_qp_attr a = {.qp_state = to};
	int mask;

	if (rdma_init_qp_attr(e->id, &a, &mask))
		return -errno;
	a.qp_access_flags = e->role == RV_VERBS_SERVES ? IBV_ACCESS_REMOTE_READ : 0;
	a.timeout = RV_VERBS_ACK_TIMEOUT;
	a.retry_cnt = RV_VERBS_RETRIES;
	a.max_rd_atomic = (uint8_t)(e->role == RV_VERBS_READS ? reads : 0);
	a.max_dest_rd_atomic = (uint8_t)(e->role == RV_VERBS_SERVES ? reads : 0);
	return -ibv_modify_qp(e->qp, &a, mask);
}

int rv_verbs_end_drop(struct rv_verbs *v, struct rv_verbs_end *e)
{
	int err = e->qp ? ibv_destroy_qp(e->qp) : 0;

	if (!rv_verbs_let_go(v, err)) {
		rv_log_err("verbs: ibv_destroy_qp failed: %s", strerrordesc_np(err));
		return -err;
	}
	e->qp = NULL;
	if (e->id && rdma_destroy_id(e->id)) {
		err = errno;
		rv_log_err("verbs: rdma_destroy_id failed: %s", strerrordesc_np(err));
		return -err;
	}
	e->id = NULL;
	e->up = false;
	rv_list_del(&e->link);
	return 0;
}

bool rv_verbs_is_our_device(const struct rv_verbs *v, const struct rdma_cm_id *id)
{
	return id->verbs && id->port_num == v->dev.port &&
	       strcmp(ibv_get_device_name(id->verbs->device), v->dev.name) == 0;
}
