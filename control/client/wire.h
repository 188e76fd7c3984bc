/*
 * wire.h - requests and replies on one socket, from any number of threads.
 *
 *   call new -> sent -----reply-----> done -> free          (its waiter frees it)
 *                 '--given up--reply or end--> free         (the reader frees it, after undoing it)
 *
 * Nobody has a thread of ours: of those who wait for a reply one reads, hands each reply to its
 * waiter, and passes the reading on when its own has come. Once the connection is broken every
 * call fails the same way.
 *
 * An asynchronous call has no waiter. Whoever reads its reply puts it on a list and sets an eventfd;
 * that, the socket and a timer are in one epoll set, which wakes the thread that takes turns
 * (rv_wire_turn). In its turn it reads too, if nobody else does. The last waiter that stops reading
 * while asynchronous calls are under way sets the eventfd, since what is in the socket already would
 * wake nobody.
 */
#ifndef RV_CONTROL_CLIENT_WIRE_H
#define RV_CONTROL_CLIENT_WIRE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/client/arena_map.h"
#include "control/client/wire_rx.h"
#include "control/client/wire_tx.h"
#include "control/local/local_proto.h"
#include "control/local/shmq.h"
#include "dataplane/base/list.h"
#include "dataplane/base/map64.h"

#define RV_WIRE_TEXT 400

/** One request. @owns whoever made it, until rv_wire_give_up() */
struct rv_call {
	struct rv_list link; /* calls under way, oldest first; then those to undo */
	uint8_t op;
	struct rv_list waiting; /* among those that sleep */
	struct rv_list naming;  /* among those whose reply may name an arena */
	bool sent, done, given_up;
	bool async;       /* nobody waits: once it has ended it is to be had from rv_wire_ready() */
	void *user;       /* asynchronous: whose step it is */
	bool has_changed; /* somebody has slept on it, so there is: */
	pthread_cond_t changed;

	/* The answer, once done. */
	int rc;
	struct rv_local_rep rep;
	struct rv_arena *arena; /* with one hold, if the reply names one */
	char *payload;          /* terminated; NULL when empty */
	size_t payload_len;

	struct rv_call_group *group; /* whose memory it is; NULL: its own */

	/* Long, and of a group's calls not touched beyond what they need: see rv_call_group_new(). */
	struct rv_local_req rq;
	char text[RV_WIRE_TEXT]; /* why rc is not 0 */
};

/** Calls in one piece of memory, which goes with the last of them. */
struct rv_call_group {
	struct rv_wire *wire; /* which keeps it for the next ones; NULL: it is a small one */
	_Atomic size_t live;
	struct rv_call call[];
};

/** A request to a handler this program serves. */
struct rv_wire_request {
	struct rv_list link;
	struct rv_local_rep rep;
	struct rv_arena *arena; /* with one hold, if the payload is in one */
	char *payload;
	size_t payload_len;
};

/** Whether looking for replies is worth it. */
struct rv_looks {
	unsigned vain; /* grows with each look in vain */
	unsigned skip; /* so many waits do without */
};

/** Frames through memory shared with the daemon (wire_queue.c). */
struct rv_wire_queue {
	struct rv_shmq_out out; /* under the lock of tx */
	struct rv_shmq_in in;   /* the reading thread's, and what follows but for `looks` */
	void *mem;
	bool alone; /* on one CPU nothing comes while we look */
	uint64_t quiet_ns;
	struct rv_looks turns;
	uint8_t frame[RV_SHMQ_FRAME];

	struct rv_looks looks[2]; /* far, near; under the wire's lock */
};

struct rv_wire {
	int fd;
	struct rv_tx tx;       /* its lock is taken before `lock`, never inside it */
	pthread_mutex_t lock;  /* all below but rx */
	struct rv_map64 calls; /* by id */
	struct rv_list order;
	struct rv_list naming; /* GET and ALLOC, oldest first */
	uint64_t last_id;
	bool reading;
	struct rv_list waiters; /* calls whose threads sleep */
	int dead;               /* 0, or why nothing works any more */
	char dead_text[RV_WIRE_TEXT];
	struct rv_arena_map arenas;
	struct rv_list undo;     /* calls given up whose reply came */
	struct rv_map64 tokens;  /* buffers and views that were not given back */
	struct rv_map64 shared;  /* those of them that several views have: how many */
	struct rv_list requests; /* struct rv_wire_request, oldest first */
	struct rv_call *server;  /* stands for the thread that serves them; NULL: there is none */
	bool server_stop;

	/* Asynchronous calls; the descriptors are -1 in a program that makes none. */
	struct rv_list ready; /* those that have ended */
	size_t async_nr;      /* those under way */
	int ep, event, timer;
	bool kicked; /* `event` is set */
	bool turning; /* rv_progress() reads, and looks at `ready` when it has: nobody need wake it */

	struct rv_wire_queue *queue; /* NULL: all goes through the socket */
	uint64_t worker;             /* this node */

	/* The reading thread's: */
	struct rv_rx rx;
	uint64_t frames; /* that came, but for bells */
	bool slept;      /* at the socket */

	/* Memory for whole groups, which the heap would give back to the system and take anew each time. */
	_Atomic(struct rv_call_group *) spare[3];
};

/** @owns takes over @fd */
void rv_wire_init(struct rv_wire *w, int fd);

/** Unmap everything, give every buffer back, close. No thread may be inside. */
void rv_wire_fini(struct rv_wire *w);

/** A request of operation @op, zeroed. @return NULL without memory */
struct rv_call *rv_call_new(uint8_t op);

/**
 * Requests that are like @first, which is left as it is; where the owner is only the first of them says, for all.
 * Each is given back by itself: rv_call_free(), rv_wire_give_up().
 *
 * @param nr  1 to RV_LOCAL_MANY_MAX
 * @return NULL without memory
 */
struct rv_call_group *rv_call_group_new(struct rv_wire *w, const struct rv_call *first, size_t nr);
void rv_call_free(struct rv_call *call);

/**
 * Send a call's request with a payload; its reply will find it.
 *
 * @param deadline_ns  rv_clock_ns() when to stop trying; RV_NEVER: no limit
 * @return 0, or a negative errno with call->text
 * @thread any
 */
int rv_wire_send(struct rv_wire *w, struct rv_call *call, const void *payload, size_t len,
		 uint64_t deadline_ns);

/**
 * Send the requests of several GETs at once, alike but for their handles: RV_LOCAL_GET_MANY.
 *
 * @param nr  1 to RV_LOCAL_MANY_MAX
 * @return 0, or a negative errno with each call->text: none was sent
 * @thread any
 */
int rv_wire_send_many(struct rv_wire *w, struct rv_call *const *calls, size_t nr,
		      uint64_t deadline_ns);

/**
 * Send a call's request with a descriptor, of which the daemon gets a duplicate.
 * Otherwise as rv_wire_send().
 */
int rv_wire_send_fd(struct rv_wire *w, struct rv_call *call, int fd, uint64_t deadline_ns);

/** The same request once more with other bytes: WRITE. The call must have been sent. @thread any */
int rv_wire_send_more(struct rv_wire *w, struct rv_call *call, const void *payload, size_t len,
		      uint64_t deadline_ns);

/** Send without expecting a reply; a failure shows in later calls. @thread any */
void rv_wire_post(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq);

/**
 * Wait for a call's reply.
 *
 * @return call->rc, or -ETIMEDOUT with call->text and the call still under way: give it up
 * @thread any
 */
int rv_wire_wait(struct rv_wire *w, struct rv_call *call, uint64_t deadline_ns);

/** Has a reply come? @thread any */
bool rv_wire_done(struct rv_wire *w, struct rv_call *call);

/**
 * Nobody waits for this call any more. What a late reply brings is given back: a buffer is
 * freed, a lease detached, a slot dropped.
 *
 * @owns takes over @call, done or not
 * @thread any
 */
void rv_wire_give_up(struct rv_wire *w, struct rv_call *call);

/**
 * The next request, for the serving thread.
 *
 * @return NULL once rv_wire_stop_serving() was called, or the connection is broken
 * @owns the caller ends it with rv_wire_request_free()
 */
struct rv_wire_request *rv_wire_next_request(struct rv_wire *w);
void rv_wire_request_free(struct rv_wire *w, struct rv_wire_request *r);

/** From now on requests are kept for a serving thread. @return 0 or -ENOMEM */
int rv_wire_start_serving(struct rv_wire *w);
/** The serving thread sees it once it has read again. @thread any */
void rv_wire_stop_serving(struct rv_wire *w);

/** Send one frame without expecting a reply, with a payload. @thread any */
int rv_wire_send_oneway(struct rv_wire *w, uint8_t op, const struct rv_local_req *rq,
			const void *payload, size_t len);

/* Asynchronous calls. */

/** Make the descriptors, once. @return the one to poll, or a negative errno @thread any */
int rv_wire_async(struct rv_wire *w);

/**
 * Send a call's request, or queue it: never waits. The payload is borrowed until the call has ended
 * and was given up or freed.
 *
 * @param must  it may not be refused for the number of those that wait
 * @return 0: rv_wire_ready() will have it; or a negative errno with call->text
 * @thread any, after rv_wire_async()
 */
int rv_wire_start(struct rv_wire *w, struct rv_call *call, const void *payload, size_t len,
		  bool must);

/**
 * The same with data of any length in a WRITE before it, in as many frames as it takes.
 *
 * @param write  not asynchronous itself: it has ended if the daemon refused some of it
 */
int rv_wire_start_write(struct rv_wire *w, struct rv_call *write, const void *data, uint64_t len,
			struct rv_call *commit);

/** Read and send what can be read and sent without waiting. @thread one at a time */
void rv_wire_turn(struct rv_wire *w);

/** The next asynchronous call that has ended; it is off every list. @return NULL: none @thread any */
struct rv_call *rv_wire_ready(struct rv_wire *w);

/** Wake whoever polls once more. @thread any */
void rv_wire_come_again(struct rv_wire *w);

/** Wake it at @at_ns, rv_clock_ns() time. @thread any */
void rv_wire_timer(struct rv_wire *w, uint64_t at_ns);

/** Close the descriptors and nothing else: in a forked child. */
void rv_wire_close_fds(struct rv_wire *w);

/* Buffers to fill: where they are, for those that are named by a pointer into them. @thread any */
void rv_wire_add_buf(struct rv_wire *w, struct rv_arena *a, const struct rv_arena_buf *b);
void rv_wire_del_buf(struct rv_wire *w, struct rv_arena *a, uint64_t off);
/** As rv_arena_map_find_buf(). */
uint64_t rv_wire_find_buf(struct rv_wire *w, const void *p, uint64_t len, uint64_t *off);

/** Let go of one hold on an arena; its FREE or COMMIT must be on its way. @thread any */
void rv_wire_drop_arena(struct rv_wire *w, struct rv_arena *a);

#endif
