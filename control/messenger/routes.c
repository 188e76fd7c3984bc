/*
 * Routes: how a peer is reached. Dialing and its backoff, `_hello`, who waits for what.
 *
 *   down --somebody wants it--> dialing --> hello --> up
 *     '------------- failed, not sooner than the backoff allows -------------'
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/json/peer_info.h"
#include "control/json/rv_codec.h"
#include "control/messenger/messenger_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/hash.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

#define BACKOFF_FIRST RV_MS(50)
#define BACKOFF_MAX   RV_SEC(5)
/* A connection that was up for so long is made again at once; those that break off sooner, again and again, are not. */
#define LASTED_NS     RV_SEC(1)
#define HELLO_NS      RV_SEC(30)
#define ANSWER_NS     RV_SEC(10)

/* Somebody who waits for a route to be up. */
struct connect_wait {
	struct rv_list link;
	struct rv_task deadline;
	struct rv_route *route;
	void (*done)(void *ctx, const struct rv_connect_result *r);
	void *ctx;
};

static void route_dial(struct rv_messenger *m, struct rv_route *r);
static void retry_due(struct rv_reactor *reactor, struct rv_task *t);
static void give_up_links(struct rv_route *r);

struct rv_route *rv_route_of(struct rv_messenger *m, struct rv_peer *p)
{
	struct rv_route *r = p->link;

	if (r)
		return r;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->m = m;
	r->peer = p;
	r->retry.fn = retry_due;
	rv_list_init(&r->waiting);
	rv_list_init(&r->connects);
	p->link = r;
	return r;
}

bool rv_route_is_idle(const struct rv_route *r)
{
	return r->state == RV_ROUTE_DOWN && !r->control && !r->bulk && !r->holds &&
	       rv_list_empty(&r->waiting) && rv_list_empty(&r->connects);
}

void rv_route_free(struct rv_messenger *m, struct rv_peer *p)
{
	struct rv_route *r = p->link;

	p->link = NULL;
	if (!r)
		return;
	RV_CHECK(rv_route_is_idle(r));
	rv_task_cancel(m->reactor, &r->retry);
	free(r);
}

void rv_call_of_route(struct rv_call *c, struct rv_route *r)
{
	RV_CHECK(!c->route);
	c->route = r;
	r->holds++;
}

void rv_route_why(const struct rv_route *r, int rc, char *out, size_t cap)
{
	const struct rv_peer *p = r->peer;
	const char *host = r->host[0] ? r->host : p->host;
	uint16_t port = r->host[0] ? r->port : p->port;
	int why = r->last_rc && rc == -EHOSTUNREACH ? r->last_rc : rc;

	if (!p->host[0] && p->frame_max)
		snprintf(out, cap, "worker %" PRIu64 " by UCX: %s", p->worker,
			 why == -ETIMEDOUT ? "no answer in time" : rv_err_name(why));
	else if (!p->host[0])
		snprintf(out, cap, "no address is known for the owner (worker %" PRIu64 ")",
			 p->worker);
	else if (why == -ETIMEDOUT)
		snprintf(out, cap, "no answer from %s:%u in time", host, port);
	else
		snprintf(out, cap, "%s:%u: %s", host, port,
			 why == -ECONNREFUSED ? "connection refused" : rv_err_name(why));
}

static void connects_finish(struct rv_messenger *m, struct rv_route *r, int rc)
{
	struct rv_list *it;

	r->holds++; /* who is told may ask for another peer, and there must be room for that one */
	while ((it = rv_list_pop(&r->connects))) {
		struct connect_wait *w = RV_LIST_ENTRY(it, struct connect_wait, link);
		char why[160];
		struct rv_connect_result res = {.rc = rc,
						.worker = r->peer->worker,
						.told = r->told_worker != 0};

		if (rc)
			rv_route_why(r, rc, why, sizeof(why));
		res.why = rc ? why : "";
		if (r->told_worker)
			res.worker = r->told_worker;
		rv_task_cancel(m->reactor, &w->deadline);
		w->done(w->ctx, &res);
		free(w);
	}
	r->holds--;
}

static void flush_waiting(struct rv_messenger *m, struct rv_route *r)
{
	struct rv_list now;

	r->holds++;
	rv_list_init(&now);
	rv_list_splice(&now, &r->waiting);
	while (!rv_list_empty(&now)) {
		struct rv_call *c = RV_LIST_ENTRY(now.next, struct rv_call, link);

		rv_list_del(&c->link);
		rv_route_submit(m, r, c);
	}
	r->holds--;
}

static uint64_t doubled(uint64_t backoff_ns)
{
	return backoff_ns ? rv_min_u64(backoff_ns * 2, BACKOFF_MAX) : BACKOFF_FIRST;
}

/* How long a route that was up, or never came up, is not dialed. */
static uint64_t backoff(const struct rv_messenger *m, struct rv_route *r)
{
	uint64_t wait = 0;

	if (r->state != RV_ROUTE_UP) {
		wait = r->backoff_ns = doubled(r->backoff_ns);
	} else if (m->reactor->now_ns - r->up_ns >= LASTED_NS) {
		r->short_lives = 0;
	} else {
		for (unsigned i = 0; i < r->short_lives && wait < BACKOFF_MAX; i++)
			wait = doubled(wait);
		r->short_lives++;
	}
	/* Half as much more at most, so that those who lost an owner together do not come back together. */
	return wait ? wait + rv_random_u64() % (wait / 2) : 0;
}

static void route_failed(struct rv_messenger *m, struct rv_route *r, int rc)
{
	r->retry_at_ns = m->reactor->now_ns + backoff(m, r);
	r->state = RV_ROUTE_DOWN;
	r->no_bulk = false;
	r->last_rc = rc;
	r->holds++;
	while (!rv_list_empty(&r->waiting)) {
		struct rv_call *c = RV_LIST_ENTRY(r->waiting.next, struct rv_call, link);

		rv_list_del(&c->link);
		rv_messenger_end_call(m, c, -EHOSTUNREACH);
	}
	connects_finish(m, r, -EHOSTUNREACH);
	r->holds--;
}

/*
 * An owner that has no room for a second connection takes it and closes it. Nothing was answered there, so what was asked
 * may be asked again, on the first.
 */
void rv_route_take_back(struct rv_mlink *l)
{
	struct rv_route *r = l->route;

	if (!r || r->bulk != l || r->state != RV_ROUTE_UP || l->heard)
		return;
	while (!rv_list_empty(&l->calls)) {
		struct rv_call *c = RV_LIST_ENTRY(l->calls.next, struct rv_call, link);

		rv_list_del(&c->link);
		c->state = RV_CALL_WAITING;
		c->on = NULL;
		rv_list_push(&r->waiting, &c->link);
	}
}

void rv_route_link_lost(struct rv_messenger *m, struct rv_mlink *l, int rc)
{
	struct rv_route *r = l->route;

	l->route = NULL;
	if (r && r->bulk == l) {
		r->bulk = NULL;
		r->no_bulk = !l->heard; /* refused: the first connection carries the chunks too */
		r->bulk_up = false;
		flush_waiting(m, r);
	} else if (r && r->control == l) {
		r->control = NULL;
		route_failed(m, r, rc ? rc : -ECONNRESET);
	}
}

int rv_hello_encode(struct rv_call *c, struct rv_request_header *h, struct rv_writer *body)
{
	struct rv_messenger *m = c->ctx;
	struct rv_peer_info pi = {.address = m->address, .address_len = m->address_len};
	uint64_t as = c->route->peer->own_incarnation;
	uint8_t *own = as ? rv_messenger_address_as(m, as, &pi.address_len) : NULL;

	if (as && !own)
		return -ENOMEM;
	if (own)
		pi.address = own;
	memcpy(pi.instance, m->conf.instance, sizeof(pi.instance));
	h->kind = RV_CALL_UNARY;
	h->name = "_hello";
	h->name_len = 6;
	rv_body_hello_encode(body, &pi);
	free(own);
	return 0;
}

/* Who answered said who it is: file it under its own WorkerId, at the address we dialed. */
static void learn_answerer(struct rv_messenger *m, struct rv_route *r,
			   const struct rv_peer_info *pi)
{
	uint64_t who = rv_worker_id(pi->instance);
	struct rv_peer *p;

	r->other_owner = who != r->peer->worker;
	if (memcmp(pi->instance, m->conf.instance, sizeof(pi->instance)) == 0)
		return; /* we answered ourselves, and are no peer */
	r->told_worker = who;
	p = rv_messenger_peer(m, r->told_worker);
	if (!p)
		return;
	rv_messenger_learn(m, p, pi);
	if (r->control->datagram)
		return;
	if (p == r->peer) {
		/* It answers where we dialed; what it advertises may be of no use from here. */
		snprintf(p->host, sizeof(p->host), "%s", r->host);
		p->port = r->port;
		return;
	}
	if (r->peer->name[0])
		snprintf(p->name, sizeof(p->name), "%s", r->peer->name);
	if (!p->host[0]) {
		snprintf(p->host, sizeof(p->host), "%s", r->host);
		p->port = r->port;
	}
}

static void note_handler(void *user, const char *name, size_t len)
{
	struct rv_route *r = user;

	r->gives_bytes |= len == sizeof(RV_GET) - 1 && memcmp(name, RV_GET, len) == 0;
	r->gives_many |= len == sizeof(RV_GET_MANY) - 1 && memcmp(name, RV_GET_MANY, len) == 0;
}

static void hello_answered(struct rv_call *c, const struct rv_call_answer *a)
{
	struct rv_messenger *m = c->ctx;
	struct rv_route *r = c->route;
	struct rv_peer *p = r->peer;
	struct rv_peer_info pi;
	bool has = false;

	if (r->state != RV_ROUTE_HELLO || c->on != r->control)
		return; /* of a connection that was given up */
	r->other_owner = false;
	r->told_worker = 0;
	if (a->rc && a->rc != -EREMOTEIO) {
		if (r->control && r->control->link)
			rv_mlink_close(r->control, a->rc);
		return; /* on_closed() does the rest */
	}
	r->gives_bytes = r->gives_many = false;
	/* A refusal is an answer too: it can be spoken to, if perhaps not answered by its own connections. */
	if (!a->rc &&
	    !rv_body_handlers_decode(a->payload, a->len, note_handler, r, &pi, &has, NULL) && has) {
		learn_answerer(m, r, &pi);
		rv_peer_info_fini(&pi);
	}
	r->state = RV_ROUTE_UP;
	r->up_ns = m->reactor->now_ns;
	r->backoff_ns = 0;
	r->last_rc = 0;
	rv_log_debug("messenger: peer %" PRIu64 " at %s:%u is up%s", p->worker, p->host, p->port,
		     r->other_owner ? " (another node answers there)" : "");
	r->holds++;
	connects_finish(m, r, 0);
	flush_waiting(m, r);
	if (!p->worker)
		give_up_links(r); /* it was only asked who it is */
	r->holds--;
}

static void say_hello(struct rv_messenger *m, struct rv_route *r)
{
	struct rv_call *c =
		rv_call_begin(&m->calls, m->reactor->now_ns + HELLO_NS, hello_answered, m);

	if (!c) {
		rv_mlink_close(r->control, -EAGAIN);
		return;
	}
	c->encode = rv_hello_encode;
	rv_call_of_route(c, r);
	r->state = RV_ROUTE_HELLO;
	rv_call_transmit(m, c, r->control);
}

void rv_route_link_up(struct rv_messenger *m, struct rv_mlink *l)
{
	struct rv_route *r = l->route;

	if (!r)
		return;
	if (l->bulk) {
		r->bulk_up = true;
		flush_waiting(m, r);
	} else {
		say_hello(m, r);
	}
}

static struct rv_mlink *dial(struct rv_messenger *m, struct rv_route *r, bool bulk)
{
	struct rv_mlink *l = rv_mlink_new(m, NULL);

	if (!l)
		return NULL;
	l->route = r;
	l->bulk = bulk;
	l->link = m->conf.carrier->ops->dial(m->conf.carrier, r->host, r->port, l);
	if (l->link)
		return l;
	l->route = NULL;
	rv_mlink_drop(l);
	return NULL;
}

/* Where there is no connection to be had, frames go as datagrams. */
static void route_reach(struct rv_messenger *m, struct rv_route *r)
{
	struct rv_mlink *l = rv_mlink_reach(m, r->peer->worker);

	r->host[0] = '\0';
	r->no_bulk = true;
	r->state = RV_ROUTE_DIALING;
	r->control = l;
	if (!l) {
		route_failed(m, r, -EHOSTUNREACH);
		return;
	}
	l->route = r;
	if (l->up)
		say_hello(m, r);
}

static bool can_dial(const struct rv_messenger *m, const struct rv_peer *p)
{
	return p->host[0] || (p->frame_max && m->datagrams);
}

static void route_dial(struct rv_messenger *m, struct rv_route *r)
{
	if (!r->peer->host[0]) {
		route_reach(m, r);
		return;
	}
	snprintf(r->host, sizeof(r->host), "%s", r->peer->host);
	r->port = r->peer->port;
	r->state = RV_ROUTE_DIALING;
	errno = 0;
	r->control = dial(m, r, false);
	if (!r->control)
		route_failed(m, r, errno == EMFILE || errno == ENFILE ? -EMFILE : -EHOSTUNREACH);
}

static void retry_due(struct rv_reactor *reactor, struct rv_task *t)
{
	struct rv_route *r = RV_CONTAINER(t, struct rv_route, retry);

	(void)reactor;
	if (r->state == RV_ROUTE_DOWN && !rv_list_empty(&r->connects))
		route_dial(r->m, r);
}

/* Somebody waits for the route: it is dialed now, or when it may be. */
static void route_want(struct rv_messenger *m, struct rv_route *r)
{
	if (m->reactor->now_ns >= r->retry_at_ns)
		route_dial(m, r);
	else
		rv_task_at(m->reactor, &r->retry, r->retry_at_ns);
}

void rv_route_submit(struct rv_messenger *m, struct rv_route *r, struct rv_call *c)
{
	if (r->state == RV_ROUTE_UP && c->bulk && r->peer->is_rvd && !r->no_bulk) {
		if (r->bulk_up) {
			rv_call_transmit(m, c, r->bulk);
			return;
		}
		if (!r->bulk)
			r->bulk = dial(m, r, true);
		if (r->bulk) {
			rv_list_push(&r->waiting, &c->link);
			return;
		}
	}
	if (r->state == RV_ROUTE_UP) {
		RV_CHECK(r->control);
		rv_call_transmit(m, c, r->control);
		return;
	}
	if (r->state == RV_ROUTE_DOWN &&
	    (!can_dial(m, r->peer) || m->reactor->now_ns < r->retry_at_ns || m->stopped)) {
		rv_messenger_end_call(m, c, -EHOSTUNREACH);
		return;
	}
	rv_list_push(&r->waiting, &c->link);
	if (r->state == RV_ROUTE_DOWN)
		route_dial(m, r);
}

/* An answer that waits for a route like a call does. */
int rv_route_answer(struct rv_messenger *m, uint64_t worker, unsigned type, const void *header,
		    size_t header_len, const void *body, size_t len, rv_call_fn *done)
{
	struct rv_peer *p = rv_peers_find(&m->peers, worker);
	struct rv_route *r = p && p->host[0] ? rv_route_of(m, p) : NULL;
	struct rv_call *c;

	RV_CHECK(header_len <= RV_CALL_HEADERS);
	if (!r)
		return -EHOSTUNREACH;
	if (header_len + len > RV_FRAME_MAX)
		return -EMSGSIZE;
	/* Whose datagrams these answer is not paused by them, so they are counted before they are copied. */
	if (r->answer_bytes >= RV_LINK_QUEUE ||
	    (r->control && r->control->link &&
	     r->control->link->ops->queued(r->control->link) >= RV_LINK_QUEUE))
		return -ENOBUFS;
	c = rv_call_begin(&m->calls, m->reactor->now_ns + ANSWER_NS, done, m);
	if (!c)
		return -ENOMEM;
	c->frame = type;
	rv_call_of_route(c, r);
	memcpy(c->headers, header, header_len);
	c->headers_len = (uint16_t)header_len;
	c->body = malloc(len);
	c->body_len = len;
	if (!c->body) {
		rv_call_forget(&m->calls, c);
		return -ENOMEM;
	}
	memcpy(c->body, body, len);
	r->answer_bytes += len;
	rv_route_submit(m, r, c);
	return 0;
}

/* Connecting by address. */

static void connect_late(struct rv_reactor *r, struct rv_task *t)
{
	struct connect_wait *w = RV_CONTAINER(t, struct connect_wait, deadline);
	struct rv_connect_result res = {.rc = -ETIMEDOUT, .worker = w->route->peer->worker};
	char why[160];

	(void)r;
	if (w->route->state == RV_ROUTE_DOWN)
		res.rc = -EHOSTUNREACH; /* it was not tried again since it failed */
	rv_route_why(w->route, res.rc, why, sizeof(why));
	res.why = why;
	rv_list_del(&w->link);
	w->done(w->ctx, &res);
	free(w);
}

static bool moved(const struct rv_peer *p, const char *host, uint16_t port)
{
	return strcmp(p->host, host) != 0 || p->port != port;
}

/* The peer is somewhere else now: what is under way on the old connections ends with them. */
static void give_up_links(struct rv_route *r)
{
	if (r->control && r->control->link)
		rv_mlink_close(r->control, -ECONNRESET);
	if (r->bulk && r->bulk->link)
		rv_mlink_close(r->bulk, -ECONNRESET);
	if (r->control)
		r->control->route = NULL;
	if (r->bulk)
		r->bulk->route = NULL;
	r->control = NULL;
	r->bulk = NULL;
	r->bulk_up = false;
	r->state = RV_ROUTE_DOWN;
	r->retry_at_ns = 0;
}

uint64_t rv_route_unknown_key(const char *host, uint16_t port)
{
	return rv_hash_u64(rv_hash_xxh3(host, strlen(host)) ^ port);
}

/* Whoever answers at an address: one record an address, outside the directory. */
static struct rv_peer *unknown_peer(struct rv_messenger *m, const char *host, uint16_t port)
{
	uint64_t key = rv_route_unknown_key(host, port);
	struct rv_peer *p = rv_map64_get(&m->unknown, key);

	if (p || (m->unknown.nr >= RV_PEERS_MAX && !rv_messenger_evict_unknown(m)))
		return p;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	snprintf(p->host, sizeof(p->host), "%s", host);
	p->port = port;
	if (rv_map64_put(&m->unknown, key, p)) {
		free(p);
		return NULL;
	}
	return p;
}

void rv_messenger_connect(struct rv_messenger *m, const char *host, uint16_t port,
			  uint64_t expected, const char *name, uint64_t deadline_ns,
			  void (*done)(void *ctx, const struct rv_connect_result *r), void *ctx)
{
	struct rv_connect_result res = {.rc = -ENOMEM, .worker = expected, .why = "out of memory"};
	struct connect_wait *w = NULL;
	struct rv_route *r = NULL;
	struct rv_peer *p = NULL;

	if (strlen(host) < sizeof(p->host))
		p = expected ? rv_messenger_peer(m, expected) : unknown_peer(m, host, port);
	if (p)
		r = rv_route_of(m, p);
	if (r)
		w = calloc(1, sizeof(*w));
	if (!w) {
		done(ctx, &res);
		return;
	}
	if (name)
		snprintf(p->name, sizeof(p->name), "%s", name);
	/* What is known and works is not re-pointed by a reference; what does not answer may be. */
	if ((r->state != RV_ROUTE_UP || r->other_owner) && moved(p, host, port)) {
		if (r->state != RV_ROUTE_DOWN)
			give_up_links(r);
		snprintf(p->host, sizeof(p->host), "%s", host);
		p->port = port;
		r->retry_at_ns = 0;
	}
	if (r->state == RV_ROUTE_UP) {
		free(w);
		res = (struct rv_connect_result){.worker = p->worker,
						 .told = r->told_worker != 0,
						 .why = ""};
		done(ctx, &res);
		return;
	}
	w->route = r;
	w->done = done;
	w->ctx = ctx;
	w->deadline.fn = connect_late;
	rv_list_push(&r->connects, &w->link);
	rv_task_at(m->reactor, &w->deadline, deadline_ns);
	if (m->stopped)
		route_failed(m, r, -ESHUTDOWN);
	else if (r->state == RV_ROUTE_DOWN)
		route_want(m, r);
}

bool rv_messenger_is_stranger(const struct rv_peer *p)
{
	const struct rv_route *r = p->link;

	return !p->worker || (r && r->other_owner);
}

static void stop_route(struct rv_messenger *m, struct rv_peer *p)
{
	struct rv_route *r = p->link;

	if (!r)
		return;
	route_failed(m, r, -ESHUTDOWN);
	rv_task_cancel(m->reactor, &r->retry);
}

void rv_messenger_stop(struct rv_messenger *m)
{
	struct rv_peer *p;
	size_t pos = 0;

	m->stopped = true;
	rv_finds_stop(m);
	rv_task_cancel(m->reactor, &m->retell);
	while ((p = rv_peers_next(&m->peers, &pos)))
		stop_route(m, p);
	pos = 0;
	while ((p = rv_map64_next(&m->unknown, &pos)))
		stop_route(m, p);
}

const char *rv_messenger_peer_state(const struct rv_peer *p)
{
	const struct rv_route *r = p->link;

	if (!r || r->state == RV_ROUTE_DOWN)
		return "down";
	return r->state == RV_ROUTE_UP ? "up" : "dialing";
}
