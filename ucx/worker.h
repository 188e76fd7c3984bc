/*
 * worker.h - one UCX worker and all that lives on it; a poller of its reactor.
 *
 *   poll:  progress, done() of finished GETs (both bounded) --> broken endpoints are closed, closed ones freed
 *          --> done() of the GETs that were theirs --> frames that arrived are handed on
 *
 * UCX's callbacks only move things between the lists here; poll acts on them.
 */
#ifndef RV_UCX_WORKER_H
#define RV_UCX_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp.h>

#include "dataplane/base/list.h"
#include "dataplane/base/map64.h"
#include "dataplane/interfaces/fabric.h"
#include "dataplane/interfaces/poller.h"
#include "ucx/addr_parse.h"

/** The longest worker address we hand out or take. */
#define RV_UCX_ADDR_MAX 2048

/** Senders told apart between two polls. */
#define RV_UCX_HEARD 8u

struct rv_ucx_am;

/** What a worker shares with its fabric. */
struct rv_ucx_worker_conf {
	ucp_context_h context;
	struct rv_ucx_am *am; /* the frames' half that lives here; NULL: none */
	const _Atomic uint64_t *idle_ns;
	struct rv_fabric_counts *counts;
};

struct rv_ucx_worker {
	struct rv_poller poller;
	ucp_worker_h ucp;
	int efd;
	bool quiescing;
	uint64_t now_ns;      /* of the last poll */
	unsigned outstanding; /* GETs posted and not done */
	struct rv_list done;  /* GETs that are over; their done() is due */
	struct rv_ucx_am *am; /* frames come and go here; or NULL */

	enum rv_addr_form addr_form; /* of our own address, and so of peers' */
	struct rv_map64 peers;       /* WorkerId -> struct rv_ucx_peer */
	struct rv_map64 senders;     /* incarnation -> struct rv_ucx_peer */
	struct rv_list live;         /* endpoints in use */
	struct rv_list leaving;      /* idle: they close or come back when the user says so */
	struct rv_list broken;       /* UCX reported an error; to be closed by poll */
	struct rv_list closing;      /* until closed and idle */

	struct rv_list touched;       /* endpoints used since their last stamp */
	uint64_t heard[RV_UCX_HEARD]; /* incarnations that frames came from since the last poll */
	unsigned heard_nr;
	bool heard_many;  /* more than fit, or nobody knows who: every endpoint counts as used */
	uint64_t scan_ns; /* next look for idle endpoints */
	const _Atomic uint64_t *idle_ns;
	struct rv_fabric_counts *counts;

	size_t addr_len;
	uint8_t addr[RV_UCX_ADDR_MAX]; /* written at open, then constant: any thread reads it */
};

/**
 * @return 0, -ENOMEM, or another negative errno, logged
 * @thread owning reactor   @cost a few ms
 */
int rv_ucx_worker_open(const struct rv_ucx_worker_conf *conf, struct rv_ucx_worker **out);

/**
 * Destroy the worker with its endpoints. GETs still posted get their done(-ECONNRESET) from here: with the
 * worker gone nothing writes to their memory.
 *
 * @thread owning reactor   @cost blocks for up to 100 ms when not quiesced
 */
void rv_ucx_worker_close(struct rv_ucx_worker *w);

/** Close all endpoints. @return 0 when nothing is left, -EAGAIN: poll on. @thread owning reactor */
int rv_ucx_worker_quiesce(struct rv_ucx_worker *w);

#endif
