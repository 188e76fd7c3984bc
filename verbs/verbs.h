/*
 * verbs.h - what the files of this backend share; nobody else includes it.
 *
 *   reactor                                                fabric's thread (cm.c)
 *   ------                                                 ------
 *   conn: CONNECTING      --- connect --->                 resolve, queue pair, connect
 *         UP              <-- up ---                       (the queue pair is the reactor's to post on)
 *         DRAINING        <-- lost ---                     disconnected, or the device says so
 *           queue pair in error, its completions are awaited
 *         DESTROYING      --- destroy --->                 queue pair and rdma_cm id go
 *         freed           <-- destroyed ---
 *
 * The two meet in two lists under one lock, taken when a connection changes, never to read. A connection is in each
 * list once, with bits for what is wanted or new.
 */
#ifndef RV_VERBS_VERBS_H
#define RV_VERBS_VERBS_H

#include <pthread.h>
#include <stdatomic.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "dataplane/base/list.h"
#include "dataplane/base/map64.h"
#include "verbs/device.h"
#include "verbs/fabric_verbs.h"
#include "verbs/wire.h"

struct rv_verbs_reactor;

/* One end of a connection, on the fabric's thread. */
struct rv_verbs_end {
	enum { RV_VERBS_LISTENS, RV_VERBS_READS, RV_VERBS_SERVES } role;
	struct rv_list link; /* cm: reading or serving */
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	bool up;
	bool stays;           /* it could not be dropped: tried again now and then */
	uint64_t deadline_ns; /* to be up by */
};

struct rv_verbs_peer {
	uint64_t worker, incarnation;
	struct sockaddr_storage addr;
	struct rv_verbs_conn *conn; /* NULL: none, or the last one failed */
	uint64_t backoff_ns, retry_ns;
};

struct rv_verbs_conn {
	/* The reactor's. */
	struct rv_list link; /* of the reactor: live or closing */
	struct rv_verbs_reactor *r;
	struct rv_verbs_peer *peer; /* NULL: the peer has no more to do with it */
	uint64_t worker;
	uint32_t serial; /* what its completions carry */
	enum { RV_VERBS_CONNECTING, RV_VERBS_UP, RV_VERBS_DRAINING, RV_VERBS_DESTROYING } state;
	uint64_t used_ns;
	uint64_t drain_ns;      /* DRAINING: wait for completions no longer */
	struct rv_list waiting; /* GETs with bytes not asked for yet */
	struct rv_list starved; /* of the reactor: no entry of the completion queue was left */
	unsigned gets_nr;
	/* READs under way, oldest first: they complete in this order. */
	struct rv_fabric_get **ring;
	unsigned head, posted;

	/* Under the fabric's lock. */
	struct rv_list todo, inbox;
	unsigned wants, news;

	/* The fabric's thread's, until it says up; then the reactor reads qp and depth until it wants it destroyed. */
	struct rv_verbs_end end;
	struct sockaddr_storage dst;
	unsigned depth; /* READs at once, as granted */
};

enum { RV_VERBS_WANT_CONNECT = 1, RV_VERBS_WANT_DESTROY = 2 };
enum {
	RV_VERBS_NEWS_UP = 1,
	RV_VERBS_NEWS_FAILED = 2,
	RV_VERBS_NEWS_LOST = 4,
	RV_VERBS_NEWS_DESTROYED = 8
};

struct rv_verbs_reactor {
	struct rv_poller poller;
	struct rv_verbs *v;
	unsigned index;
	struct rv_fabric_counts *counts;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	unsigned cq_used;   /* entries that READs under way may need */
	unsigned cq_events; /* taken, to be acknowledged */
	int epfd, efd;      /* both descriptors in one; wakes for news */
	bool armed, unwatched, quiescing;
	uint64_t now_ns;       /* of the last poll */
	unsigned outstanding;  /* GETs posted and not done */
	struct rv_list done;   /* GETs that are over; their done() is due */
	struct rv_map64 peers; /* WorkerId -> struct rv_verbs_peer */
	struct rv_map64 conns; /* serial -> struct rv_verbs_conn */
	uint32_t last_serial;
	struct rv_list live, closing, starved;

	/* release by the fabric's thread, acquire by the reactor: there is something in the inbox. */
	_Atomic bool news;
	struct rv_list inbox; /* under the fabric's lock */
};

struct rv_verbs {
	struct rv_fabric base;
	uint64_t worker;
	enum rv_verbs_fence fence;
	int traffic_class;
	bool (*allows)(void *user, const struct sockaddr *peer);
	void *user;
	struct rv_verbs_device dev;
	struct ibv_pd *pd; /* of what we read into; but with fence region, of all */
	unsigned reactors;
	struct rv_fabric_counts *counts;
	_Atomic unsigned maps_nr, keys_nr;

	pthread_mutex_t lock; /* the hand-over, and who is known */
	struct rv_list todo;
	struct rv_map64 known; /* WorkerId -> how many reactors know it */
	bool forgot;           /* somebody is not known any more */

	pthread_mutex_t domains_lock;
	struct rv_map64 domains; /* WorkerId -> struct rv_verbs_domain */
	struct rv_list idle_windows;
	unsigned idle_nr;
	uint64_t last_posted; /* on queue pairs served */

	pthread_mutex_t events_lock;
	struct ibv_async_event events[64];
	unsigned events_nr;

	/* The fabric's thread's. */
	struct rdma_event_channel *cm_channel;
	struct rv_verbs_end listener;
	struct ibv_cq *served_cq; /* binds and invalidations of windows complete on it */
	struct rv_list reading, serving;
	struct sockaddr_storage listen_addr;
	pthread_t thread;
	int wake;
	_Atomic bool stop;

	struct rv_verbs_reactor *reactor[];
};

#endif
