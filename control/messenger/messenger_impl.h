/*
 * messenger_impl.h - what the messenger's own files share. Nobody else includes this.
 */
#ifndef RV_CONTROL_MESSENGER_MESSENGER_IMPL_H
#define RV_CONTROL_MESSENGER_MESSENGER_IMPL_H

#include <stdatomic.h>

#include "control/frame/frame.h"
#include "control/json/peer_info.h"
#include "control/messenger/calls.h"
#include "control/messenger/messenger.h"
#include "dataplane/base/idtab.h"
#include "dataplane/base/slab.h"
#include "dataplane/engine/msg.h"

/* Requests of one link under way in engines before it is paused. */
#define RV_LINK_REQUESTS 256u
/* Requests of one link that wait for local programs; one more is refused. */
#define RV_LINK_ASKED    4096u
/* Bytes queued on a link before its requests are left unread; of answers on a route before more are refused. */
#define RV_LINK_QUEUE    (8u << 20)

/** A connection, as long as anything refers to it. */
struct rv_mlink {
	struct rv_list all;
	struct rv_messenger *m;
	struct rv_link *link; /* NULL once closed */
	unsigned refs;
	unsigned requests; /* being served by engines */
	unsigned asked;    /* being served by local programs */
	unsigned many;     /* of the requests, many.c's */
	bool paused;
	struct rv_route *route; /* it is this route's; NULL: accepted, or given up */
	bool bulk;
	bool heard; /* something of an answer came by it */
	bool datagram;
	uint64_t worker; /* datagram: to whom; 0: the common one, on which all frames come in */
	bool up;         /* datagram: connected */
	struct rv_list calls;       /* sent on it */
	struct rv_call *placing;    /* whose payload is arriving */
	struct rv_call *displacing; /* ends when the carrier has let go of its place */
};

enum rv_route_state { RV_ROUTE_DOWN, RV_ROUTE_DIALING, RV_ROUTE_HELLO, RV_ROUTE_UP };

/** How we reach a peer; rv_peer.link. */
struct rv_route {
	struct rv_messenger *m;
	struct rv_peer *peer;
	enum rv_route_state state;
	struct rv_mlink *control, *bulk;
	char host[RV_PEER_HOST]; /* dialed; what the peer advertises may differ */
	uint16_t port;
	bool bulk_up, no_bulk;
	bool other_owner;        /* who answered there is not who the handle names */
	struct rv_list waiting;  /* calls */
	size_t answer_bytes;     /* of answers among them */
	struct rv_list connects; /* struct rv_connect, waiting for the state */
	unsigned holds;          /* of calls and pulls that name it, and of who is at work on it */
	uint64_t retry_at_ns, backoff_ns;
	struct rv_task retry; /* dials for those who connect, when the backoff is over */
	uint64_t up_ns;       /* when it came up */
	unsigned short_lives; /* in a row, of connections that did not last */
	int last_rc;
	uint64_t told_worker; /* who answered our `_hello`; 0: it did not say */
	bool gives_bytes;     /* it listed RV_GET */
	bool gives_many;      /* it listed RV_GET_MANY */
};

/** A chunked transfer we serve. */
struct rv_transfer {
	struct rv_idrec rec; /* rec.id is the wire's transfer_id */
	uint64_t lease_id;
	uint64_t worker;        /* who may pull */
	struct rv_block *block; /* held by the lease; NULL if empty */
	uint64_t total_len;
	uint32_t chunk_size;
	struct rv_engine *engine;
	uint64_t local; /* the slot */
	uint64_t
		renew_ns; /* a pull renews the lease at least so often; RV_NEVER: it has no deadline */
	uint64_t renewed_ns;
	uint32_t sends;         /* under way */
	struct rv_cell *ending; /* to reply to when none is left */
};

struct rv_messenger {
	struct rv_messenger_conf conf;
	struct rv_peer_calls calls_iface;
	struct rv_reactor *reactor;
	struct rv_calls calls;
	struct rv_peers peers;
	size_t evict_pos, evict_unknown_pos;
	struct rv_list finds; /* find.c's, that wait */
	size_t finds_nr;
	struct rv_map64 sought;  /* the WorkerIds whose question is out; -> anything */
	struct rv_map64 unknown; /* who answers at an address and was not asked for by name */
	struct rv_list links;
	struct rv_carrier *datagrams;            /* NULL: none */
	struct rv_carrier *way[RV_MAX_REACTORS]; /* the same, and those of the other cores */
	struct rv_map64 reached;                 /* WorkerId -> its datagram link */
	struct rv_idtab transfers;
	struct rv_list pulls;
	struct rv_map64 by_lease; /* lease id -> transfer */
	uint8_t *address;
	size_t address_len;
	_Atomic bool
		draining; /* written by the net core; relaxed: a frame on the way is refused a moment later */
	bool stopped;
	uint64_t serving;        /* requests whose answer is owed */
	struct rv_list deferred; /* lease operations that found no cell */
	struct rv_task deferred_task;
	struct rv_task retell;
	struct rv_list served; /* struct rv_served */
	struct rv_list asked;  /* served.c's requests that are not answered */
	struct rv_map64 asked_by_id;
	uint64_t last_asked;
	struct rv_counter refused_payloads[RV_REFUSED_REASONS];
	struct rv_counter rejected_hellos[RV_REJECTED_REASONS];
	struct rv_slab pending, chunk_sends; /* inbound.c's records */
	struct rv_slab many;                 /* many.c's */
	unsigned many_live;
	struct rv_counter bytes_out;
	uint8_t scratch[1u << 16]; /* a `_hello` body being written */
};

/* links.c */
/** @param link  NULL: the caller dials it @return NULL without memory */
struct rv_mlink *rv_mlink_new(struct rv_messenger *m, struct rv_link *link);
void rv_mlink_hold(struct rv_mlink *l);
void rv_mlink_drop(struct rv_mlink *l);
/** Nothing is sent on it from now on; a datagram link's peer may be reached anew. */
void rv_mlink_close(struct rv_mlink *l, int rc);
/** The datagram link to a peer, made if there is none. @return NULL: no such way to it */
struct rv_mlink *rv_mlink_reach(struct rv_messenger *m, uint64_t worker);
/** The next datagram link to a peer is made anew, in the incarnation it is told. */
void rv_mlink_renew(struct rv_messenger *m, uint64_t worker);
/** One request of this link was answered: perhaps it may read again. */
void rv_mlink_request_done(struct rv_mlink *l);
/** Encode @c and put it on @l. */
void rv_call_transmit(struct rv_messenger *m, struct rv_call *c, struct rv_mlink *l);
/** Fail a call; if its payload is arriving, once the place is given up. */
void rv_messenger_end_call(struct rv_messenger *m, struct rv_call *c, int rc);

/* routes.c */
/** The peer's route, made if there is none. @return NULL without memory */
struct rv_route *rv_route_of(struct rv_messenger *m, struct rv_peer *p);
/** Nothing is under way on it, or waits for it. */
bool rv_route_is_idle(const struct rv_route *r);
/** Free a peer's idle route, if it has one. */
void rv_route_free(struct rv_messenger *m, struct rv_peer *p);
/** The key of who answers at an address, in rv_messenger.unknown. */
uint64_t rv_route_unknown_key(const char *host, uint16_t port);
/** @c is this route's, and keeps it. */
void rv_call_of_route(struct rv_call *c, struct rv_route *r);
/** Encode `_hello` to the peer of c->route, in the incarnation it is told. */
int rv_hello_encode(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body);
/** Send @c now, or when the route is up. */
void rv_route_submit(struct rv_messenger *m, struct rv_route *r, struct rv_call *c);
/**
 * Put a frame that answers a peer on the way to it, by its route.
 *
 * @param done  told of the end with a call whose `headers` and `body_len` are the frame's
 * @return 0; -EMSGSIZE; -EHOSTUNREACH; -ENOMEM; -ENOBUFS: as much waits for the peer already as may
 */
int rv_route_answer(struct rv_messenger *m, uint64_t worker, unsigned type, const void *header,
		    size_t header_len, const void *body, size_t len, rv_call_fn *done);
/** Why a route is down, in words. */
void rv_route_why(const struct rv_route *r, int rc, char *out, size_t cap);
/** It is connected: the route goes on with it. */
void rv_route_link_up(struct rv_messenger *m, struct rv_mlink *l);
/** It is gone: calls that may be asked again elsewhere are the route's once more. */
void rv_route_take_back(struct rv_mlink *l);
/** It is gone, and its calls have ended: the route fails, or goes on without its second connection. */
void rv_route_link_lost(struct rv_messenger *m, struct rv_mlink *l, int rc);

/* tell.c */
/** Tell every engine what we know of a peer's fabric address. @return false: not all yet; it is tried again */
bool rv_messenger_tell_fabric(struct rv_messenger *m, struct rv_peer *p);
void rv_messenger_retell(struct rv_reactor *r, struct rv_task *t);

/* messenger.c */
/** The peer's record, made if there is none. @return NULL without memory, or if too many are known */
struct rv_peer *rv_messenger_peer(struct rv_messenger *m, uint64_t worker);
/** Our WorkerAddress with another incarnation; the caller frees it. @return NULL: no memory, or it has none */
uint8_t *rv_messenger_address_as(const struct rv_messenger *m, uint64_t incarnation, size_t *len);
/** Take over what a peer's PeerInfo says. @return 0, or -EPROTO: nothing in it that we could use */
int rv_messenger_learn(struct rv_messenger *m, struct rv_peer *p, const struct rv_peer_info *pi);
/**
 * The same by a `_hello` that came from @from (a link's name). Nothing proves who says it: where to reach a peer that is
 * known is changed only by a hello from there.
 */
int rv_messenger_hear(struct rv_messenger *m, const struct rv_peer_info *pi, const char *from,
		      const char **why);

/* evict.c */
/** Make room for another peer, or another address nobody is known at. @return false: all are in use */
bool rv_messenger_evict_peer(struct rv_messenger *m);
bool rv_messenger_evict_unknown(struct rv_messenger *m);

/* find.c */
/** Everybody who waits is told: -ESHUTDOWN. */
void rv_finds_stop(struct rv_messenger *m);

/* idle.c */
/**
 * Says that the sender is about to close its end of the way between two polling cores; answered once ours is closed.
 * Body: | sender's core u16le | receiver's core u16le |
 */
#define RV_GOODBYE "_rvd_goodbye"
/** The carrier whose endpoint to @worker a goodbye means, or NULL: no endpoint of ours pairs with the sender's. */
struct rv_carrier *rv_messenger_paired(struct rv_messenger *m, uint64_t worker, const uint8_t *body,
				       size_t len);
/** rv_carrier_events.idle */
void rv_messenger_on_idle(void *user, struct rv_carrier *c, uint64_t worker);

/* outbound.c */
/**
 * As `_rv_acquire`, with headers (headers.h); where that would be answered with chunks, a short payload comes with the
 * answer. Only to who lists it, and not by datagrams.
 */
#define RV_GET      "_rvd_get"
/** The same for many slots at once, of whose leases none is left (many_codec.h). Only to who lists it, by connections. */
#define RV_GET_MANY "_rvd_get_many"
extern const struct rv_peer_calls_ops rv_messenger_peer_calls_ops;
/** The messenger that a call's cell was handed to. */
struct rv_messenger *rv_messenger_of_cell(const struct rv_cell *cell);

/* pull.c */
void rv_pull_start(struct rv_messenger *m, struct rv_route *r, struct rv_cell *cell);
/** End the pull whose cell this is, if it is still under way. */
void rv_pull_cancel(struct rv_messenger *m, struct rv_cell *cell);

/* inbound.c */
void rv_inbound_message(struct rv_messenger *m, struct rv_mlink *l, const struct rv_frame *f);
/** rv_carrier_events.retired */
void rv_inbound_retired(void *user, void *ctx, int rc);
int rv_inbound_init(struct rv_messenger *m);
void rv_inbound_fini(struct rv_messenger *m);

#endif
