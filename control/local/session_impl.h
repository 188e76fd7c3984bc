/*
 * session_impl.h - what the files of this folder share. Nobody else includes this.
 */
#ifndef RV_CONTROL_LOCAL_SESSION_IMPL_H
#define RV_CONTROL_LOCAL_SESSION_IMPL_H

#include "control/local/local_proto.h"
#include "control/local/session.h"
#include "control/local/shmq.h"
#include "control/messenger/served.h"
#include "control/uring/conn.h"
#include "dataplane/base/map64.h"

/** A range the client may touch: a buffer it fills, or a view of what it got. */
struct buffer {
	struct rv_list link; /* the session's */
	uint64_t token;
	struct rv_engine *engine;
	struct rv_block *block; /* with one hold; NULL when empty */
	uint64_t len;
	uint32_t arena;
	bool single_use; /* the arena is this block's alone */
	bool fillable;   /* by WRITE */
	bool view;
	bool busy;     /* being committed */
	unsigned gets; /* that may write into it */
	bool spoiled;  /* one of them was answered before it let go of it */
	bool wants_pinned;
};

struct lease {
	struct lease *next; /* of the same number, by another owner */
	struct rv_handle handle;
	uint64_t id;
};

/** Memory the client registered; the engine's arena is ours to name until its close was answered. */
struct region {
	struct rv_list link; /* the session's */
	struct session *s;
	struct pending *opening; /* the request for it, until it is registered */
	uint64_t token;
	struct rv_engine *engine;
	struct rv_arena *arena;
	bool closing;            /* the engine was told, or will be */
	bool kept;               /* handed over: the end of the session does not concern it */
	uint64_t wait_ns;        /* what the engine is told */
	bool wanted;             /* somebody waits for the answer */
	struct rv_local_req rq;  /* who */
	struct rv_list watchers; /* struct watcher */
	unsigned watcher_nr;
};

/** Frames through shared memory. */
struct session_queue {
	struct rv_list looked_at; /* in each pass; alone while it rests */
	struct session *s;
	uint64_t used_ns;
	uint64_t pass_nr; /* the pass in which so many frames were taken: */
	unsigned taken;
	struct rv_shmq_in in;
	struct rv_shmq_out out;
	void *mem;
};

struct session {
	struct rv_list link;
	struct rv_local *local;
	struct rv_conn conn;
	unsigned refs;
	uint32_t frames;             /* of the socket that were dealt with */
	struct session_queue *queue; /* NULL: none, all goes through the socket */
	bool open, greeted;
	bool gone;         /* its ranges were given back */
	bool process_over; /* the process has ended */
	uint64_t id;
	uid_t uid;
	int pidfd;
	bool unwatched; /* there was no descriptor to hear of its process's end by: it is refused */
	struct rv_op exit_op;
	struct rv_engine *home;  /* where it stages and fetches */
	struct rv_map64 buffers; /* by token */
	struct rv_list buffer_list;
	unsigned requests; /* open */
	uint64_t last_token;
	struct rv_map64 shown;  /* arenas whose descriptor was sent */
	struct rv_map64 leases; /* id -> struct lease */
	struct rv_list regions;
	unsigned region_nr;
	struct rv_server server; /* of the handlers it serves */
};

/** A request that is answered later. */
struct pending {
	struct rv_list link; /* GETs that wait for room in their engine */
	struct session *s;
	unsigned op;
	struct rv_local_req rq;
	uint64_t deadline_ns;
	uint64_t patience_ns; /* GET: how long it waits for room */
};

/** What a session leaves behind; waits for a cell (owed.c). */
struct owed {
	struct rv_list link;
	enum { OWED_HOLD, OWED_LEASE, OWED_END, OWED_REGION } what;
	struct rv_engine *engine;
	struct rv_block *block;
	struct rv_handle handle;
	uint64_t lease_id;
	struct session *s;     /* END: with a reference */
	struct region *region; /* REGION: its session with a reference */
};

/* Buffers, views and open requests of one session; and bytes of replies it does not read. */
#define RV_SESSION_BUFFERS  65536u
#define RV_SESSION_REQUESTS 1024u
#define RV_SESSION_REGIONS  1024u
#define RV_REGION_WATCHERS  64u
#define RV_SESSION_UNREAD   RV_MIB(8)

struct rv_local {
	struct rv_local_conf conf;
	struct rv_listener listener;
	struct rv_list sessions;
	struct rv_list owed;
	struct rv_task retry;
	struct rv_list waiting_gets; /* struct pending */
	struct rv_task get_retry;
	uint64_t last_session;
	uint64_t pending;
	bool stopping;
	struct rv_counter open;

	/* queues of sessions */
	struct rv_poller queues;
	bool polls_queues;
	struct rv_list looked_at;
	unsigned looked_at_nr;
	uint8_t frame[RV_SHMQ_FRAME]; /* the one being dealt with */
};

/* session.c */

/** Remember a request that is answered later; holds the session. @return NULL without memory */
struct pending *rv_pending_new(struct session *s, unsigned op, const struct rv_local_req *rq);
void rv_pending_end(struct pending *p);
/** Refuse it with @text, or the error's name, and end it. */
void rv_pending_refuse(struct pending *p, int rc, const char *text);
/** A cell whose ctx is @p; NULL: none is free, and the request was refused. */
struct rv_cell *rv_pending_cell(struct pending *p);
struct rv_port *rv_session_port(const struct session *s);

/** rv_conn_ops.decode */
int rv_session_decode(const uint8_t p[RV_FRAME_PREAMBLE], struct rv_preamble *out);
/** A frame that is here in one piece, header and payload. */
void rv_session_take_whole(struct session *s, const struct rv_preamble *pre, const uint8_t *bytes);

void rv_session_reply(struct session *s, const struct rv_local_rep *rep, unsigned op,
		      const void *payload, size_t len, int fd);
void rv_session_refuse(struct session *s, const struct rv_local_req *rq, unsigned op, int rc,
		       const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/** One reference less. */
void rv_session_drop(struct session *s);

/** A closed session whose last buffer has gone no longer waits for its process to end. */
void rv_session_settle(struct session *s);

/* queue.c */

/** Look at the queues of those who use theirs in each pass; if the reactor has room for that, else there are none. */
void rv_local_poll_queues(struct rv_local *l);
/** Make queues. @return what to show them by, the caller's; -1: none, for want of memory or descriptors, or again */
int rv_session_queue_open(struct session *s);
void rv_session_queue_close(struct session *s);
/** It is used: look at it in each pass. */
void rv_session_queue_look(struct session *s);
/** Deal with what is in it and comes before the next frame of the socket. */
void rv_session_queue_drain(struct session *s);
/**
 * A frame to the program, by whichever way.
 *
 * @return 0, -ESHUTDOWN, -ENOMEM, or -EMFILE: there is no descriptor for a duplicate of @fd, and nothing was sent
 */
int rv_session_send(struct session *s, unsigned op, const struct rv_local_rep *rep,
		    const void *payload, size_t len, int fd);

/* staging.c */
void rv_session_alloc(struct session *s, const struct rv_local_req *rq);
/** Where the payload of a WRITE goes: straight into its buffer; NULL: it does not fit. */
void *rv_session_write_place(struct session *s, const struct rv_local_req *rq, uint64_t len);
void rv_session_write(struct session *s, const struct rv_local_req *rq, size_t len, bool placed);
void rv_session_commit(struct session *s, const struct rv_local_req *rq);
void rv_session_free(struct session *s, const struct rv_local_req *rq);
/** Let the client know a range as a buffer or view. @return NULL without memory */
struct buffer *rv_buffer_add(struct session *s, struct rv_engine *e, struct rv_block *b,
			     uint64_t len);
void rv_buffer_free(struct session *s, struct buffer *b, bool give_back);
/** Say where @b is. @return the arena's descriptor if the session has not seen it, else -1 */
int rv_session_describe_block(struct session *s, const struct rv_block *b,
			      struct rv_local_rep *rep);
/** Reply with @b. @return 0, or -EMFILE: there is no descriptor to show it by; nothing was sent, and @b is gone */
int rv_session_show(struct session *s, struct rv_local_rep *rep, unsigned op, struct buffer *b);
#define RV_SESSION_NO_FD \
	"the daemon has no file descriptor left to show its memory by (LimitNOFILE)"

/* fetching_many.c */
void rv_session_get_many(struct session *s, const struct rv_local_req *rq, const uint8_t *payload,
			 size_t len);

/* owed.c: now, or when cells are free; in order, and never forgotten */
void rv_local_drop_block(struct rv_local *l, struct rv_engine *e, struct rv_block *b);
/** End a lease without an answer. */
void rv_local_detach(struct rv_local *l, struct rv_handle h, uint64_t lease_id);
/** Every engine drops the session's slots and arenas; after what was owed before. */
void rv_session_tell_end(struct session *s);
void rv_local_pay_owed(struct rv_reactor *r, struct rv_task *t);

/** Tell a region's engine to let it go. */
void rv_local_close_region(struct rv_local *l, struct region *g);

/* regions.c */
void rv_session_region_register(struct session *s, const struct rv_local_req *rq, int fd);
void rv_session_region_stage(struct session *s, const struct rv_local_req *rq);
void rv_session_region_unregister(struct session *s, const struct rv_local_req *rq);
void rv_session_region_watch(struct session *s, const struct rv_local_req *rq);
/** The session is over: its regions are let go in the background. */
void rv_session_end_regions(struct session *s);
/** A region's close was answered. */
void rv_region_closed(struct rv_port *port, struct rv_cell *c);

/* admin.c */
void rv_session_admin(struct session *s, const struct rv_local_req *rq);

/* messages.c */
void rv_session_serve(struct session *s, const struct rv_local_req *rq);
void rv_session_unserve(struct session *s, const struct rv_local_req *rq);
void rv_session_answer(struct session *s, const struct rv_local_req *rq, const uint8_t *payload,
		       size_t len);
/** CALL, HANDLERS. */
void rv_session_call(struct session *s, unsigned op, const struct rv_local_req *rq,
		     const uint8_t *payload, size_t len);

/* fetching.c */

/** GET, METADATA, REF, DETACH, RELEASE, DROP. */
void rv_session_op(struct session *s, unsigned op, const struct rv_local_req *rq);
/** Its deadlines, from now on. */
void rv_pending_start(struct pending *p);
/** Its owner is elsewhere: connect to it where the request says, or find it. @done as rv_messenger_connect() */
void rv_session_reach(const struct pending *p,
		      void (*done)(void *ctx, const struct rv_connect_result *r), void *ctx);
/** Hand a GET over that has its deadlines already. */
void rv_session_get_alone(struct pending *p);
void rv_session_peer_add(struct session *s, const struct rv_local_req *rq, const uint8_t *payload,
			 size_t len);
void rv_session_peer_info(struct session *s, const struct rv_local_req *rq);
/** The task of waiting_gets. */
void rv_local_retry_gets(struct rv_reactor *r, struct rv_task *t);
/** Detach every lease the session still has. */
void rv_session_end_leases(struct session *s);

#endif
