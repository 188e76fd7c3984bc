/*
 * rv.h - stage bytes on this node, fetch bytes staged on any other.
 *
 *   program --UNIX socket, shared memory--> rvd (this node) --RDMA or TCP--> rvd or velo (owner)
 *
 *   owner     register ------------------> slot, named by a handle
 *   consumer  get --> bytes and a lease --> detach (the slot stays) or release (one reference less)
 *
 * A handle is 128 bits: who owns the bytes, and which bytes. A *reference* is a handle and where
 * its owner listens, `rv://HOST:PORT/HANDLE`. The calls with a handle work for this node's own
 * slots and for peers that the daemon knows; those that end in _at take a reference and need no
 * prior knowledge of the owner.
 *
 * Every call returns 0 or a negative errno; rv_last_error() then explains it in words. On
 * failure outputs keep what they had. Any thread may call anything but rv_close(). Errors every
 * call can return:
 *
 *   -ENOTCONN     the daemon closed the connection, or none runs: open another session
 *   -EOWNERDEAD   this process was forked after rv_open(): open a session of its own
 *   -EPROTO       the daemon said something that cannot be right
 *   -ENOMEM       no memory, here or there
 *   -ETIMEDOUT    no answer within the timeout; the outcome is unknown
 *   -EAGAIN       the daemon is too busy, try again
 *   -EINVAL       an argument is wrong
 *
 * @cost of a call that asks the daemon: a message each way through memory shared with it, some 2 us in all while
 * both look there (the caller does for 20 us, on a machine with two CPUs or more); through the UNIX socket, two
 * system calls and some 30 us, when one of them sleeps; plus what the daemon has to do
 */
#ifndef RV_RV_H
#define RV_RV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of this interface. */
#define RV_API_VERSION 1

/** Longest text of a handle, and its terminator: up to 39 decimal digits. */
#define RV_HANDLE_TEXT_MAX 40

/** Longest host in a reference, and its terminator. */
#define RV_HOST_MAX 256

/** Longest text of a reference, and its terminator. */
#define RV_REF_TEXT_MAX 320

/** Lease id of no lease. */
#define RV_NO_LEASE 0

/** A session with the daemon; see rv_open(). */
struct rv_client;

/* The daemon's own sources have this struct from a header of theirs. */
#ifndef RV_DATAPLANE_BASE_HANDLE_H
/** The name of staged bytes. */
struct rv_handle {
	uint64_t worker; /* high half: the owner's WorkerId */
	uint64_t local;  /* low half: the owner's slot, never 0 */
};
#endif

/** A handle and where its owner listens. */
struct rv_ref {
	struct rv_handle handle;
	uint16_t port;          /* 0 with an empty host */
	char host[RV_HOST_MAX]; /* name or IP literal without brackets; empty: not told */
};

/** How a get may move the bytes. */
enum rv_get_path {
	RV_GET_PATH_ANY,     /* RDMA where it can be had, else chunks */
	RV_GET_PATH_RDMA,    /* fail rather than fall back */
	RV_GET_PATH_CHUNKED, /* over TCP */
};

/** How the bytes came. */
enum rv_took {
	RV_TOOK_LOCAL,   /* this node's own */
	RV_TOOK_CHUNKED, /* in chunks over TCP */
	RV_TOOK_RDMA,    /* one RDMA GET */
};

/** Why bytes are in plain memory although pinned memory was asked for. */
enum rv_plain_why {
	RV_PLAIN_NOT,            /* they are not, or plain memory was asked for */
	RV_PLAIN_BUDGET,         /* memory.registered_bytes_budget is used up */
	RV_PLAIN_POOL_EXHAUSTED, /* no registered memory was to be had in time */
	RV_PLAIN_KILL_SWITCH,    /* RDMA is switched off */
	RV_PLAIN_NO_RDMA,        /* this node has no RDMA */
};

/**
 * What becomes of the lease of a get that succeeded. With anything but RV_THEN_KEEP the get's *lease is 0, and there is
 * nothing to end; from a node of our kind a payload of up to 64 KiB then takes one message each way in all.
 */
enum rv_then {
	RV_THEN_KEEP,    /* the caller ends it */
	RV_THEN_DETACH,  /* it is ended */
	RV_THEN_RELEASE, /* it is released: the slot loses a reference. Only sent, not waited for */
};

/** What a call did; filled in where rv_opts.how points, on success. */
struct rv_how {
	uint64_t elapsed_ns;     /* get: time in the daemon */
	enum rv_took took;       /* get */
	enum rv_plain_why plain; /* register */
	bool pinned;             /* register: peers may read it by RDMA */
	char path[64];           /* get: "ucx tcp", "chunked tcp", "local" */
};

/** Options; all zero, or a NULL pointer, asks for the defaults. */
struct rv_opts {
	uint64_t
		ttl_ns; /* register: the slot's life in ns; 0: the daemon's rendezvous.default_ttl */
	uint64_t timeout_ns;   /* of the whole call; 0: rv_set_timeout()'s, else the daemon's own */
	uint32_t refs;         /* register: references to start with; 0 means 1 */
	enum rv_get_path path; /* get */
	bool session;          /* register: the slot ends with this session */
	bool keep; /* get: the lease outlives this session; region: the slot does (rv_region_hand_over) */
	enum rv_then then;  /* get: what becomes of the lease once the bytes are here */
	struct rv_how *how; /* NULL, or what the call did */
	uint64_t reserved[4];
};

/**
 * Bytes in memory shared with the daemon: a buffer to fill (rv_alloc_pinned), or a view of what
 * was fetched (rv_get_pinned), which must not be written. The memory is this session's until
 * rv_buf_free(), rv_register_pinned() or rv_close().
 */
struct rv_buf {
	void *data;   /* NULL when empty */
	uint64_t len; /* a buffer to fill: may be lowered before rv_register_pinned() */
	bool writable;
	bool pinned; /* a buffer to fill: in registered memory */
	enum rv_plain_why plain;

	/* The library's own. */
	struct rv_client *client;
	uint64_t token;
	void *arena;
};

/** What an owner says about a slot. */
struct rv_meta {
	uint64_t len;      /* bytes */
	uint64_t refcount; /* references */
	bool pinned;       /* in registered memory */
};

/** One answer of rv_get_many(). */
struct rv_result {
	int rc; /* 0, or a negative errno: then only `error` is filled in */
	struct rv_buf buf;
	uint64_t lease;
	struct rv_how how;
	char error[192];
};

/* The session. */

/**
 * Open a session with this node's daemon.
 *
 * Slots that were committed outlive the session unless rv_opts.session is set. What ends with
 * it: buffers that were not committed, its views, and its leases (detached) unless taken with
 * rv_opts.keep.
 *
 * @param socket   path of the daemon's socket. NULL: the environment's RVD_SOCKET, else
 *                 /run/rvd/rvd.sock as root, $XDG_RUNTIME_DIR/rvd/rvd.sock (without it
 *                 /tmp/rvd-UID/rvd.sock) as any other user
 * @param[out] out the session
 * @return 0; -ENOTCONN: no daemon answers there; -EACCES: no permission for the socket;
 *         -ENAMETOOLONG; -ENOTSUP: the daemon speaks no version of ours
 *
 * @thread any   @owns the caller ends it with rv_close()
 */
int rv_open(const char *socket, struct rv_client **out);

/**
 * End a session. Its buffers and views become invalid; NULL is fine. Asynchronous calls that are
 * still outstanding end with -ECANCELED: each done() runs inside this call. What such a call did at
 * its owner is unknown. In a forked child it only forgets the parent's session.
 *
 * @thread any but inside a done(), while no other call on @c is running
 */
void rv_close(struct rv_client *c);

/**
 * Timeout of the calls on @c that are given none, in ns. 0, as after rv_open(): each step may
 * take as long as the daemon's rendezvous.call_timeout.
 *
 * @thread any   @cost O(1)
 */
void rv_set_timeout(struct rv_client *c, uint64_t timeout_ns);

/**
 * WorkerId of the daemon's node: the high half of the handles it gives out.
 * @thread any
 * @cost O(1)
 */
uint64_t rv_worker(const struct rv_client *c);

/**
 * What went wrong in this thread's last call that failed, one line; never NULL. The text stays
 * until the thread's next call.
 *
 * @thread any   @cost O(1)
 */
const char *rv_last_error(void);

/* Staging. */

/**
 * Stage a copy of @len bytes in plain memory: peers fetch them in chunks.
 *
 * @param opts         ttl_ns, refs, session, timeout_ns, how; or NULL
 * @param[out] handle  its name
 * @return 0; -ENOSPC: memory.plain_bytes_budget or rendezvous.max_slots is used up
 *
 * @thread any   @cost one copy through the socket, about 2 GB/s
 */
int rv_register_data(struct rv_client *c, const void *data, uint64_t len,
		     const struct rv_opts *opts, struct rv_handle *handle);

/**
 * Stage a copy in registered memory: peers fetch it with one RDMA GET. Without room there it
 * becomes plain memory, which is no error: rv_how.pinned and rv_how.plain tell.
 *
 * Otherwise as rv_register_data().
 *
 * @cost a copy through the socket; from a session's fifth of 64 KiB or more on one memcpy() into memory of
 *       its own that it shares with the daemon, and two messages
 */
int rv_register_data_pinned(struct rv_client *c, const void *data, uint64_t len,
			    const struct rv_opts *opts, struct rv_handle *handle);

/**
 * A writable buffer in memory shared with the daemon, registered where there is room for that
 * (rv_buf.pinned). Its contents are undefined.
 *
 * @param len       bytes
 * @param[out] buf  the buffer
 * @return 0; -ENOSPC: no memory left in the daemon's budgets
 *
 * @thread any   @owns the caller ends it with rv_register_pinned() or rv_buf_free()
 */
int rv_alloc_pinned(struct rv_client *c, uint64_t len, struct rv_buf *buf);

/**
 * Name the bytes of a buffer: no copy is made. The buffer must not be touched any more.
 *
 * @param buf          of rv_alloc_pinned(); buf->len may have been lowered
 * @param opts         as for rv_register_data()
 * @param[out] handle  its name
 * @return 0; -EINVAL: no buffer of this session; -ENOSPC: rendezvous.max_slots is used up; -EBUSY: an
 *         rv_get_into() is filling it, or timed out doing so
 *
 * @thread any   @owns on success the daemon has the memory, and *buf is all zero; on failure the
 *         caller keeps it, but after -ETIMEDOUT only rv_buf_free() may follow
 */
int rv_register_pinned(struct rv_client *c, struct rv_buf *buf, const struct rv_opts *opts,
		       struct rv_handle *handle);

/**
 * Give a buffer or a view back; *buf becomes all zero. An all-zero or NULL one is fine.
 *
 * @thread any   @cost one message; for large payloads also an unmapping
 */
void rv_buf_free(struct rv_buf *buf);

/*
 * Regions: memory of the program's own that peers read where it is, without a copy.
 *
 *   rv_region_register --> region --stage--> slots, fetched like any other
 *                            '--rv_region_unregister, _drop, _hand_over--> let go
 *
 * From rv_region_register() until the release (rv_region_unregister() returning 0, or
 * rv_region_deregistered()) the memory must stay as it is: it may be written, which consumers may
 * see half done, but not given back, not cut short, not reused for anything private. Registered
 * means *remotely accessible*: over UCX any peer that holds the key can also write all of the
 * pinned pages (rv_region_effective_range), neighbours of the range included.
 */

/** Memory that was registered; see rv_region_register(). */
struct rv_region;

/** Waits for the release of a region; see rv_region_watch(). */
struct rv_region_watch;

/** How a region was let go. */
enum rv_deregistered {
	RV_DRAINED,         /* nothing was using it any more */
	RV_DRAIN_TIMED_OUT, /* something was: slots and transfers there fail from now on */
};

/**
 * Register memory of the program's own.
 *
 * @param fd      a memfd, writable, sealed with F_SEAL_SHRINK (huge pages allowed); on success the
 *                library has it and closes it (map it before, or keep a dup()), on failure it stays
 *                the caller's
 * @param offset  where in the file the region begins, any byte
 * @param len     its length in bytes, at least 1
 * @param[out] region  the region
 * @return 0; -EPERM: not such a memfd; -ERANGE: beyond the end of the file; -ENOSPC: over
 *         memory.registered_bytes_budget; -EIO: the device refused; -ESHUTDOWN: the node drains
 *
 * @thread any   @cost allocates and pins every page: about 0.3 s/GiB
 * @owns the caller ends it with rv_region_unregister(), _drop() or _hand_over(), before rv_close();
 *       what is left then the daemon deregisters in the background
 */
int rv_region_register(struct rv_client *c, int fd, uint64_t offset, uint64_t len,
		       struct rv_region **region);

/**
 * Stage bytes of a region where they are. Without RDMA, or while it is switched off, peers fetch
 * them in chunks; they are never copied to other memory.
 *
 * @param offset  from the `offset` that was registered; the range must lie within the region
 * @param opts    ttl_ns, refs, timeout_ns, how; keep: the slot outlives this session if the region
 *                is handed over. Or NULL
 * @param[out] handle  its name
 * @return 0; -ERANGE; -ESHUTDOWN: the region is being let go; -ENOSPC: rendezvous.max_slots
 *
 * @thread any
 */
int rv_register_data_in_region(struct rv_client *c, struct rv_region *region, uint64_t offset,
			       uint64_t len, const struct rv_opts *opts, struct rv_handle *handle);

/**
 * What was really pinned: whole pages around the region. @param[out] offset in the file
 * @thread any   @cost O(1)
 */
void rv_region_effective_range(const struct rv_region *region, uint64_t *offset, uint64_t *len);

/**
 * Let a region go: no new slots, wait until what is staged there has ended, deregister.
 *
 * @param timeout_ns  how long to wait for slots, leases and transfers; 0: not at all
 * @param[out] how    whether they had ended; both mean the memory is the caller's again
 * @return 0: released, and @region is no more; -EIO: a device has not let go: the memory must
 *         never be reused, and rv_region_deregistered() never returns 0; -ETIMEDOUT, -ENOTCONN:
 *         unknown. After a failure the caller ends @region with rv_region_drop()
 *
 * @thread any, not while another call uses @region
 */
int rv_region_unregister(struct rv_region *region, uint64_t timeout_ns, enum rv_deregistered *how);

/**
 * Forget a region without waiting: it is deregistered in the background, within the daemon's
 * shutdown.drop_dereg_timeout, and the daemon logs a warning. NULL is fine.
 *
 * @thread any   @cost one message
 */
void rv_region_drop(struct rv_region *region);

/**
 * Leave a region to the daemon until the last slot in it has ended; slots staged with rv_opts.keep
 * outlive this session then. The program must not use the memory any more.
 *
 * @return 0: @region is no more; else as rv_region_unregister()
 * @thread any, not while another call uses @region
 */
int rv_region_hand_over(struct rv_region *region);

/**
 * Watch a region's release, independently of who lets it go and how.
 *
 * @param[out] watch  the caller ends it with rv_region_watch_free(), before rv_close()
 * @return 0; -ENOSPC: too many watch it
 * @thread any
 */
int rv_region_watch(struct rv_region *region, struct rv_region_watch **watch);

/**
 * Wait for the release: the one signal that says the memory may be reused.
 *
 * @param timeout_ns  0: only look
 * @return 0: released; -ETIMEDOUT: not yet; -ENOTCONN: the session ended first, unknown
 *
 * @thread any, one at a time for each @watch
 */
int rv_region_deregistered(struct rv_region_watch *watch, uint64_t timeout_ns);

/** @thread any; NULL is fine */
void rv_region_watch_free(struct rv_region_watch *watch);

/* Fetching. On success the caller has a lease, and ends it with rv_detach() or rv_release(), if rv_opts.then does not. */

/**
 * Ask the owner about a slot.
 *
 * @param[out] meta  what it says
 * @return 0; -ENOENT: no such handle there; -EPERM: another user's; -EHOSTUNREACH, -ECONNRESET:
 *         no way to the owner; -EREMOTEIO: the owner reported an error
 *
 * @thread any
 */
int rv_metadata(struct rv_client *c, struct rv_handle handle, struct rv_meta *meta);
int rv_metadata_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   struct rv_meta *meta);

/**
 * Fetch the bytes into memory of the heap.
 *
 * @param opts        path, keep, then, timeout_ns, how; or NULL
 * @param[out] data   the bytes, never NULL; the caller frees them with rv_free()
 * @param[out] len    how many
 * @param[out] lease  the lease; 0: rv_opts.then has ended it
 * @return as rv_metadata(); also -EKEYREVOKED: the lease was lost, the bytes cannot be proven
 *         right; -ENOSPC: no room for them on this node; -ENOTSUP: rv_opts.path cannot be had
 *
 * @thread any   @cost a copy more than rv_get_pinned()
 */
int rv_get(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void **data,
	   uint64_t *len, uint64_t *lease);
int rv_get_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
	      void **data, uint64_t *len, uint64_t *lease);

/** Free what rv_get(), rv_list() and rv_peer_info() gave; NULL is fine. @thread any */
void rv_free(void *data);

/**
 * Fetch the bytes and look at them where the daemon put them: no copy.
 *
 * @param[out] buf  a view, read-only; the caller ends it with rv_buf_free(), independently of
 *         the lease
 *
 * Otherwise as rv_get().
 */
int rv_get_pinned(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		  struct rv_buf *buf, uint64_t *lease);
int rv_get_pinned_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		     struct rv_buf *buf, uint64_t *lease);

/**
 * Fetch the bytes into the caller's memory.
 *
 * If all of [@dst, @dst + @cap) lies in one buffer of this session (rv_alloc_pinned), the daemon puts
 * the bytes there itself: an RDMA GET writes them, chunks are received, and a slot of this node is
 * copied into it, and nothing is copied here. Until the call is done the buffer must not be touched;
 * giving it back meanwhile is harmless, the daemon keeps it reserved until nothing writes into it any
 * more. Several gets may fill different parts of one buffer at once.
 *
 * @param dst       where to; undefined after a failure
 * @param cap       its size in bytes
 * @param[out] len  how many there are
 * @return as rv_get(); also -ERANGE: more than @cap, *len says how many; nothing was written and
 *         nothing is kept, not even a lease; -EBUSY: an earlier get into this buffer timed out, and its
 *         bytes may still land there: only rv_buf_free() may follow (so too after -ETIMEDOUT itself)
 *
 * @thread any   @cost a copy more than rv_get_pinned(), or none into a buffer of rv_alloc_pinned(), if
 *         that is registered (rv_buf.pinned) or the bytes come in chunks
 */
int rv_get_into(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void *dst,
		uint64_t cap, uint64_t *len, uint64_t *lease);
int rv_get_into_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		   void *dst, uint64_t cap, uint64_t *len, uint64_t *lease);

/**
 * Fetch many slots at once: the requests are under way together. Neighbours of one owner go into one request of up to
 * 128; with `then` RV_THEN_DETACH their payloads of up to 64 KiB come back in one answer too, where the owner is a node
 * of ours.
 *
 * @param opts     as rv_get_pinned(), for each; `how` is not used
 * @param[out] res one for each, in order; each that succeeded has a view and a lease to end. Views that came together
 *                 share memory that is free again when the last of them was given back
 * @return 0, or the rc of the first that failed (the others may have succeeded)
 *
 * @thread any   @cost for short payloads of one owner with RV_THEN_DETACH about that of one get of all their bytes
 */
int rv_get_many(struct rv_client *c, const struct rv_handle *handles, size_t nr,
		const struct rv_opts *opts, struct rv_result *res);
int rv_get_many_at(struct rv_client *c, const struct rv_ref *refs, size_t nr,
		   const struct rv_opts *opts, struct rv_result *res);

/* References and leases. */

/** One reference more. @return as rv_metadata() @thread any */
int rv_ref(struct rv_client *c, struct rv_handle handle);
int rv_ref_at(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts);

/**
 * End a lease; the slot keeps its references.
 *
 * @return as rv_metadata(); -ESTALE or -ENOENT: no such lease
 * @thread any
 */
int rv_detach(struct rv_client *c, struct rv_handle handle, uint64_t lease);
int rv_detach_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		 const struct rv_opts *opts);

/**
 * End a lease and give a reference back; the slot ends with its last reference and lease.
 *
 * @param lease  RV_NO_LEASE: one is taken only to be released
 * @return as rv_metadata(); -ESTALE or -ENOENT: no such lease
 *
 * @thread any
 */
int rv_release(struct rv_client *c, struct rv_handle handle, uint64_t lease);
int rv_release_at(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		  const struct rv_opts *opts);

/**
 * Free a slot of this node, whoever reads it.
 *
 * @return 0; -ENOENT; -EPERM: another user's; -EINVAL: another node's
 * @thread any
 */
int rv_drop(struct rv_client *c, struct rv_handle handle);

/* Peers and state. */

/**
 * Make a peer known from its PeerInfo, JSON or msgpack, as rv_peer_info() gives it.
 *
 * @param name         what people call it, or NULL
 * @param[out] worker  its WorkerId; may be NULL
 * @return 0; -EPROTO: not usable, rv_last_error() says why; -EHOSTUNREACH: no transport of ours
 *
 * @thread any
 */
int rv_peer_add(struct rv_client *c, const char *name, const void *info, size_t len,
		uint64_t *worker);

/**
 * The same by address, for nodes that say who they are (ours).
 *
 * @return also -EHOSTUNREACH, -ENOTSUP
 * @thread any
 */
int rv_peer_add_at(struct rv_client *c, const char *name, const char *host, uint16_t port,
		   uint64_t *worker);

/**
 * This node's own PeerInfo.
 *
 * @param msgpack    false: JSON text
 * @param[out] info  the bytes, terminated as well; the caller frees them with rv_free()
 *
 * @thread any
 */
int rv_peer_info(struct rv_client *c, bool msgpack, void **info, size_t *len);

/** What rv_list() can tell. */
enum rv_table {
	RV_TABLE_STATUS,
	RV_TABLE_SLOTS,
	RV_TABLE_LEASES,
	RV_TABLE_ARENAS,
	RV_TABLE_PEERS,
	RV_TABLE_REGIONS,
	RV_TABLE_ENDPOINTS,
	RV_TABLE_CORES,
	RV_TABLE_CONFIG,
};

/**
 * The daemon's state as JSON.
 *
 * @param[out] json  terminated text; the caller frees it with rv_free()
 * @param[out] len   its length; may be NULL
 *
 * @thread any
 */
int rv_list(struct rv_client *c, enum rv_table what, char **json, size_t *len);

/* Messages: handlers this program serves, and calls to handlers of other nodes. */

/** A request to a handler; borrowed for the call of the handler. */
struct rv_request {
	const char *handler;
	uint64_t sender;  /* the caller's WorkerId, as it says */
	const void *data; /* read-only */
	uint64_t len;
	bool wants_result; /* false: only whether it was handled, or nothing at all, goes back */
};

/** What a handler gives back; zeroed before the call. */
struct rv_answer {
	void *data;      /* from malloc(); freed by the library */
	uint64_t len;    /* below 16 MiB */
	char error[256]; /* what the caller reads if the handler returns anything but 0 */
};

/**
 * Handle one request.
 *
 * @return 0: answered with answer->data; anything else: failed, answer->error says why
 * @thread one of the library's own, one request at a time; it may make calls, but not rv_close()
 */
typedef int rv_handler_fn(void *user, const struct rv_request *request, struct rv_answer *answer);

/**
 * Serve a handler on this node: requests of any peer, stock velo nodes included, come to @fn. Payloads of any
 * size arrive whole; large ones were fetched by the daemon and are looked at without a copy.
 *
 * @param name  1 to 63 bytes, not starting with '_'
 * @return 0; -EEXIST: it is served already; -EINVAL; -ENOMEM
 *
 * @thread any   @cost the first one starts a thread
 */
int rv_handle_serve(struct rv_client *c, const char *name, rv_handler_fn *fn, void *user);

/**
 * No more requests. When this returns no call of the handler runs any more, and its @user may be freed; called
 * from inside the handler it returns at once.
 *
 * @return 0 or -ENOENT
 *
 * @thread any, but hold no lock that the handler takes   @cost waits for a call that runs
 */
int rv_handle_unserve(struct rv_client *c, const char *name);

/**
 * Send a message to a handler of a peer.
 *
 * @param peer  its name (rv_peer_add), HOST:PORT, or its WorkerId in decimal
 * @param opts  timeout_ns; with one the peer is told how long a large payload may take
 *
 * rv_send does not wait for an answer, rv_sync waits until it was handled, rv_call for the result.
 * Payloads over the daemon's rendezvous.threshold are staged and fetched by the peer.
 *
 * @param[out] reply  rv_call: the result, terminated; the caller frees it with rv_free(); may be NULL
 * @return 0; -EREMOTEIO: the peer or its handler failed, rv_last_error() has its words; -EHOSTUNREACH;
 *         -ETIMEDOUT; -EINVAL
 * @thread any
 */
int rv_send(struct rv_client *c, const char *peer, const char *name, const void *data, uint64_t len,
	    const struct rv_opts *opts);
int rv_sync(struct rv_client *c, const char *peer, const char *name, const void *data, uint64_t len,
	    const struct rv_opts *opts);
int rv_call(struct rv_client *c, const char *peer, const char *name, const void *data, uint64_t len,
	    const struct rv_opts *opts, void **reply, uint64_t *reply_len);

/** The names a peer serves, as JSON: {"handlers":[...]}. The caller frees it with rv_free(). @thread any */
int rv_handlers(struct rv_client *c, const char *peer, const struct rv_opts *opts, char **json,
		size_t *len);

/*
 * Asynchronous forms.
 *
 *   int fd = rv_event_fd(c);                      once, into poll, epoll or asyncio
 *   rv_get_pinned_nb(c, handle, &opts, &buf, &lease, done, user);
 *   poll(fd) --readable--> rv_progress(c) --> done(user, rc)
 *
 * Each takes what its blocking form takes, and does what that does, but returns at once:
 *
 * - 0: under way. done() is called exactly once, from rv_progress() or at the latest from rv_close(),
 *   never from inside the call itself (but another thread's rv_progress() may be quicker than its
 *   return). Before it, on success, the outputs were written: their places,
 *   and rv_opts.how, must stay valid until then (as with the blocking forms rv_get_into's *len is
 *   written with -ERANGE too). @opts itself, handles, references, names and peers are copied.
 * - a negative errno: it did not begin, and done() is not called. What every call can return, and
 *   -EAGAIN: 16,384 requests wait for the daemon to read them; call rv_progress() and try again.
 *
 * Bytes to stage or send are borrowed until done(): they must neither change nor go before. On
 * -ETIMEDOUT and -ECANCELED they are no longer looked at either. A timeout (rv_opts.timeout_ns, else
 * rv_set_timeout()'s) holds for the whole call and completes it with -ETIMEDOUT, at the latest a second
 * after it has passed; what a late answer brings is given back. If the daemon dies everything outstanding completes with -ENOTCONN.
 *
 * Blocking and asynchronous calls share a session freely: whichever thread reads an answer, the
 * descriptor says so. Without a thread in rv_progress() or in a blocking call nothing moves.
 *
 * @cost of a call: a small allocation and, if the daemon sleeps or there is no room in the memory shared with
 * it, one system call; never a wait.
 * Two exceptions: a reference or peer whose host is a name, not an address, is looked up inside the
 * call; and what rv_progress() does is said there.
 */

/**
 * A call is done.
 *
 * @param rc  what the blocking form would have returned; if negative, rv_last_error() explains it
 *            until the next call
 *
 * @thread of rv_progress() or rv_close(). It may make calls on the session, blocking ones too, but not
 *         rv_close(); rv_progress() inside it does nothing. One runs at a time.
 */
typedef void rv_done_fn(void *user, int rc);

/**
 * The descriptor that polls readable when rv_progress() has something to do: an answer is there,
 * whoever read it; the socket has room again for what waits; a deadline has passed. A program that calls
 * rv_progress() again and again, without having been woken, finds answers in memory that it shares with the
 * daemon; the descriptor then stays readable until nothing has come for some 20 us.
 *
 * @return the descriptor, the session's until rv_close(): poll it, nothing else; or -EMFILE, -ENFILE
 *
 * @thread any   @cost O(1); the first time three descriptors are made
 */
int rv_event_fd(struct rv_client *c);

/**
 * Take what the daemon has sent, send what waits, and call done() for what has ended. Does not wait;
 * at most 1,024 steps are taken in one call, then the descriptor stays readable.
 *
 * @return how many calls have ended; or a negative errno
 *
 * @thread any; a second thread waits until the first has come back
 * @cost a handful of system calls, or one for who calls it again and again, and what the done()
 *       functions do. Copies are made here: of rv_get_nb and rv_get_into_nb out of the daemon's memory,
 *       of rv_register_data_nb into the socket, as much as it takes at a time (some 200 KiB)
 */
int rv_progress(struct rv_client *c);

/** @cost the whole copy is made in rv_progress(), at the socket's pace: about 2 GB/s in all */
int rv_register_data_nb(struct rv_client *c, const void *data, uint64_t len,
			const struct rv_opts *opts, struct rv_handle *handle, rv_done_fn *done,
			void *user);
int rv_register_data_pinned_nb(struct rv_client *c, const void *data, uint64_t len,
			       const struct rv_opts *opts, struct rv_handle *handle,
			       rv_done_fn *done, void *user);
int rv_alloc_pinned_nb(struct rv_client *c, uint64_t len, struct rv_buf *buf, rv_done_fn *done,
		       void *user);
/** Neither the buffer nor *buf may be touched until done(); on success *buf is then all zero. */
int rv_register_pinned_nb(struct rv_client *c, struct rv_buf *buf, const struct rv_opts *opts,
			  struct rv_handle *handle, rv_done_fn *done, void *user);

int rv_metadata_nb(struct rv_client *c, struct rv_handle handle, struct rv_meta *meta,
		   rv_done_fn *done, void *user);
int rv_metadata_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		      struct rv_meta *meta, rv_done_fn *done, void *user);

/** @cost the copy is made in rv_progress() */
int rv_get_nb(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts, void **data,
	      uint64_t *len, uint64_t *lease, rv_done_fn *done, void *user);
int rv_get_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		 void **data, uint64_t *len, uint64_t *lease, rv_done_fn *done, void *user);
int rv_get_pinned_nb(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		     struct rv_buf *buf, uint64_t *lease, rv_done_fn *done, void *user);
int rv_get_pinned_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
			struct rv_buf *buf, uint64_t *lease, rv_done_fn *done, void *user);
/** @cost the copy is made in rv_progress(); none into a buffer of rv_alloc_pinned() */
int rv_get_into_nb(struct rv_client *c, struct rv_handle handle, const struct rv_opts *opts,
		   void *dst, uint64_t cap, uint64_t *len, uint64_t *lease, rv_done_fn *done,
		   void *user);
int rv_get_into_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		      void *dst, uint64_t cap, uint64_t *len, uint64_t *lease, rv_done_fn *done,
		      void *user);

int rv_ref_nb(struct rv_client *c, struct rv_handle handle, rv_done_fn *done, void *user);
int rv_ref_at_nb(struct rv_client *c, const struct rv_ref *ref, const struct rv_opts *opts,
		 rv_done_fn *done, void *user);
int rv_detach_nb(struct rv_client *c, struct rv_handle handle, uint64_t lease, rv_done_fn *done,
		 void *user);
int rv_detach_at_nb(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		    const struct rv_opts *opts, rv_done_fn *done, void *user);
int rv_release_nb(struct rv_client *c, struct rv_handle handle, uint64_t lease, rv_done_fn *done,
		  void *user);
int rv_release_at_nb(struct rv_client *c, const struct rv_ref *ref, uint64_t lease,
		     const struct rv_opts *opts, rv_done_fn *done, void *user);
int rv_drop_nb(struct rv_client *c, struct rv_handle handle, rv_done_fn *done, void *user);

/** As rv_send(), rv_sync() and rv_call(); *reply is to be freed with rv_free(). */
int rv_send_nb(struct rv_client *c, const char *peer, const char *name, const void *data,
	       uint64_t len, const struct rv_opts *opts, rv_done_fn *done, void *user);
int rv_sync_nb(struct rv_client *c, const char *peer, const char *name, const void *data,
	       uint64_t len, const struct rv_opts *opts, rv_done_fn *done, void *user);
int rv_call_nb(struct rv_client *c, const char *peer, const char *name, const void *data,
	       uint64_t len, const struct rv_opts *opts, void **reply, uint64_t *reply_len,
	       rv_done_fn *done, void *user);

/* Administration: root's and the daemon's own user's, but for asking (-EPERM otherwise). */

enum rv_switch { RV_SWITCH_ASK, RV_SWITCH_ON, RV_SWITCH_OFF };

/** The kill switch: on, nothing goes by RDMA in either role. @param[out] on how it is now; may be NULL @thread any */
int rv_kill_switch(struct rv_client *c, enum rv_switch what, bool *on);

/** No new work; what runs goes on. There is no way back but a restart. @thread any */
int rv_drain(struct rv_client *c);

/** Set the daemon's log level. @return 0; -EINVAL: no such level; -EPERM @thread any */
int rv_log_level(struct rv_client *c, const char *level);

/* Text. These need no session. */

/** Read a handle: 1 to 39 decimal digits, below 2^128. @return 0; -EINVAL; -ERANGE @thread any */
int rv_handle_parse(const char *text, struct rv_handle *handle);

/**
 * Write a handle.
 *
 * @return its length, or -ERANGE: @size is too small (RV_HANDLE_TEXT_MAX suffices)
 * @thread any
 */
int rv_handle_format(struct rv_handle handle, char *text, size_t size);

/**
 * Read `rv://HOST:PORT/HANDLE` (IPv6 in brackets), or a bare handle: then without a host.
 *
 * @return 0; -EINVAL; -ERANGE
 * @thread any
 */
int rv_ref_parse(const char *text, struct rv_ref *ref);

/**
 * Write a reference; without a host the bare handle.
 *
 * @return its length, or -ERANGE (RV_REF_TEXT_MAX suffices)
 * @thread any
 */
int rv_ref_format(const struct rv_ref *ref, char *text, size_t size);

/**
 * Read `HOST:PORT` (IPv6 in brackets). @return 0; -EINVAL @thread any
 *
 * @param[out] host  RV_HOST_MAX bytes, without brackets
 */
int rv_host_parse(const char *text, char *host, uint16_t *port);

#ifdef __cplusplus
}
#endif

#endif
