/*
 * hostile_read - accesses to a node's memory by verbs, by a consumer that keeps no rules.
 *
 *   hostile_read SRC DST PORT FROM TO REACTOR
 *
 * Connects from address SRC to the node TO at DST:PORT and says that it is worker FROM. Prints "refused N" when it may
 * not connect, else "qp N", the number of its queue pair. Then for each line "read|write|atomic ADDR LEN RKEY" of its
 * input it does that and prints how it ended: "done" or the completion's status in words, and behind a blank the first
 * bytes of what it read, in hex. At the end of its input nothing is closed: the process ends.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "verbs/wire.h"

#define DEADLINE_S 20

static _Noreturn void die(const char *what)
{
	printf("failed %s: %s\n", what, strerrordesc_np(errno));
	fflush(stdout);
	_exit(2);
}

static struct sockaddr_in ip(const char *host, const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1)
		die(host);
	return sa;
}

static struct rdma_cm_id *reach(char **argv)
{
	struct sockaddr_in src = ip(argv[1], "0"), dst = ip(argv[2], argv[3]);
	struct ibv_qp_init_attr qp = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	uint8_t hello[RV_VERBS_HELLO];
	struct rdma_conn_param p = {
		.private_data = hello,
		.private_data_len = sizeof(hello),
		.initiator_depth = 1,
		.responder_resources = 1,
		.retry_count = 7,
	};
	struct rdma_cm_id *id;

	rv_verbs_hello_encode(hello, &(struct rv_verbs_hello){
					     .from = strtoull(argv[4], NULL, 0),
					     .to = strtoull(argv[5], NULL, 0),
					     .reactor = (uint16_t)atoi(argv[6]),
				     });
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP))
		die("id");
	if (rdma_resolve_addr(id, (struct sockaddr *)&src, (struct sockaddr *)&dst, 2000) ||
	    rdma_resolve_route(id, 2000))
		die("resolving");
	if (rdma_create_qp(id, NULL, &qp))
		die("queue pair");
	if (rdma_connect(id, &p)) {
		const struct rdma_cm_event *ev = id->event;
		const uint8_t *why = ev ? ev->param.conn.private_data : NULL;

		printf("refused %u\n", why ? *why : 0);
		fflush(stdout);
		_exit(0);
	}
	return id;
}

static struct ibv_wc wait_for(struct ibv_cq *cq)
{
	time_t end = time(NULL) + DEADLINE_S;
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) == 0) {
		if (time(NULL) > end) {
			errno = ETIMEDOUT;
			die("completion");
		}
		usleep(1000);
	}
	return wc;
}

/* How it ended, on one line. */
static void run_access(struct rdma_cm_id *id, const char *op, uint64_t addr, size_t len,
		       uint32_t rkey)
{
	struct ibv_send_wr wr = {.num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
	char *buf = calloc(1, len + 16);
	struct ibv_mr *mr = buf ? ibv_reg_mr(id->pd, buf, len + 16, IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_sge sge;
	struct ibv_wc wc;

	if (!mr)
		die("memory");
	sge = (struct ibv_sge){(uint64_t)(uintptr_t)buf, (uint32_t)len, mr->lkey};
	wr.sg_list = &sge;
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	wr.opcode = strcmp(op, "read") == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	if (strcmp(op, "atomic") == 0) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		sge.length = 8;
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = rkey;
	}
	if (ibv_post_send(id->qp, &wr, &bad))
		die("post");
	wc = wait_for(id->send_cq);
	printf("%s", wc.status == IBV_WC_SUCCESS ? "done " : ibv_wc_status_str(wc.status));
	for (size_t i = 0; wc.status == IBV_WC_SUCCESS && i < len && i < 32; i++)
		printf("%02x", (unsigned char)buf[i]);
	printf("\n");
	fflush(stdout);
	ibv_dereg_mr(mr);
	free(buf);
}

int main(int argc, char **argv)
{
	unsigned long long addr, len, rkey;
	struct rdma_cm_id *id;
	char op[16];

	if (argc != 7)
		return 2;
	id = reach(argv);
	printf("qp %u\n", id->qp->qp_num);
	fflush(stdout);
	while (scanf("%15s %llu %llu %llu", op, &addr, &len, &rkey) == 4)
		run_access(id, op, addr, len, (uint32_t)rkey);
	_exit(0);
}
