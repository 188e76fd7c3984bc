/*
 * node_impl.h - what the node's own files share. Nobody else includes this.
 */
#ifndef RV_TOOLS_NODE_IMPL_H
#define RV_TOOLS_NODE_IMPL_H

#include "tools/node.h"

#include <pthread.h>

#include "control/discovery/discovery.h"
#include "control/local/session.h"
#include "control/messenger/messenger.h"
#include "control/service/identity.h"
#include "control/service/metrics.h"
#include "control/service/metrics_http.h"
#include "control/service/prompt.h"
#include "control/service/registrar.h"
#include "control/uring/tcp_carrier.h"
#include "dataplane/engine/msg.h"
#include "ucx/am.h"

/* One reactor's thread: a polling core, the net core, or both in one. */
struct rv_node_core {
	struct rv_node *node;
	struct rv_reactor reactor;
	struct rv_engine engine;
	struct rv_registrar_client registrar;
	bool polling, net;
	int cpu;
	int setup_rc;
	unsigned fabrics_open;
	char name[16];
};

/* A copy of tcp.allow: other threads read it, so it stays until the node ends. */
struct rv_allow_list {
	struct rv_allow_list *older;
	struct rv_config_cidrs cidrs;
};

struct rv_node {
	struct rv_config *cfg; /* written under `lock`, and only what may change while running */
	struct rv_identity id;
	struct rv_mesh *mesh;
	struct rv_node_core core[RV_MAX_REACTORS];
	unsigned core_nr;
	struct rv_node_core *net;
	struct rv_port *main_port;
	struct rv_cell *pulse[RV_MAX_REACTORS]; /* on its way to a core, or back */
	struct rv_engines engines;
	struct rv_fabric *fabric[RV_FABRICS];
	unsigned fabric_nr;
	struct rv_fabric *ucx, *verbs; /* those of the above, or NULL */
	struct rv_registrar registrar;
	struct rv_prompt prompt;
	struct rv_uring uring;
	struct rv_tcp_carrier tcp;
	struct rv_admission admission;
	struct rv_allow_list *allow_lists; /* all that were ever in force, the newest first */
	struct rv_messenger *messenger;
	struct rv_discovery *discovery;        /* NULL: none; written before the cores run */
	struct rv_node_dial *dials;            /* one for each configured peer */
	struct rv_ucx_am *am[RV_MAX_REACTORS]; /* one a polling core; none without UCX */
	struct rv_local *local;
	struct rv_metrics metrics;
	struct rv_metrics_http *http;
	struct rv_busy busy[RV_MAX_REACTORS]; /* telemetry's looks */
	int tcp_fd[RV_CONFIG_LIST_MAX];
	uint16_t tcp_port[RV_CONFIG_LIST_MAX];
	int local_fd;
	bool local_bound;
	int ports_fd; /* of the file that was written; -1: none */
	uint16_t metrics_port;
	uint64_t incarnation;
	uint64_t started_ns;

	/* Start-up: threads set themselves up, wait for the word, and run. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned ready;
	enum rv_node_phase { PHASE_SETUP, PHASE_RUN, PHASE_ABORT } phase;
	unsigned launched;
};

/** Write the reason and return @rc. */
int rv_node_fail(int rc, char *why, size_t cap, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/** Make a directory and those above it. @return 0 or a negative errno */
int rv_node_make_dir(const char *path);
void rv_node_join(struct rv_node *n);
void rv_node_destroy(struct rv_node *n, bool leak);
void rv_node_remove_files(struct rv_node *n);

/* node_address.c */
int rv_node_publish_address(struct rv_node *n, char *why, size_t cap);
void rv_node_write_ports(struct rv_node *n);
void rv_node_remove_ports(struct rv_node *n);

/* node_discovery.c */
/** rv_messenger_conf.find. @thread the net core's */
int rv_node_find(void *user, uint64_t worker);
/** Our address is known by now. */
int rv_node_start_discovery(struct rv_node *n, char *why, size_t cap);

/* node_status.c */
void rv_node_put_status(void *user, struct rv_json_out *o);
void rv_node_put_cores(void *user, struct rv_json_out *o);
void rv_node_put_config(void *user, struct rv_json_out *o);
const char *rv_node_core_roles(const struct rv_node_core *c);

/* node_telemetry.c */
/** Answer on DPDK's telemetry socket, if there is one, until rv_telemetry_stop(). */
void rv_node_serve_telemetry(struct rv_node *n);

/* node_net.c: what the starting thread asks of the net core, by message */
enum net_op { NET_PEERS, NET_DRAIN, NET_REGIONS, NET_LOCAL_STOP, NET_FLUSH, NET_CLOSE };
/** Send a cell and wait for it to come back. @thread the starting one */
void rv_node_ask(struct rv_node *n, unsigned to, struct rv_cell *c);
/** rv_local_conf.drain. @thread the net core's */
void rv_node_drain(void *user);
/** @return what is still busy */
uint64_t rv_node_ask_net(struct rv_node *n, enum net_op op);

#endif
