/*
 * Connections: what is sent on them, and where answers land. Which of them leads to a peer is routes.c's.
 */
#include <errno.h>
#include <stdlib.h>

#include "control/messenger/headers.h"
#include "control/messenger/messenger_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/units.h"

#define LATE_NS     RV_SEC(60)
#define HANDLER_MAX 256u

/* Links. */

struct rv_mlink *rv_mlink_new(struct rv_messenger *m, struct rv_link *link)
{
	struct rv_mlink *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->m = m;
	l->link = link;
	l->datagram = link && link->datagram;
	l->refs = 1;
	rv_list_init(&l->calls);
	rv_list_push(&m->links, &l->all);
	return l;
}

void rv_mlink_hold(struct rv_mlink *l)
{
	l->refs++;
}

void rv_mlink_drop(struct rv_mlink *l)
{
	if (--l->refs)
		return;
	rv_list_del(&l->all);
	free(l);
}

static void forget_reached(struct rv_mlink *l)
{
	if (l->worker && rv_map64_get(&l->m->reached, l->worker) == l)
		rv_map64_del(&l->m->reached, l->worker);
}

void rv_mlink_close(struct rv_mlink *l, int rc)
{
	forget_reached(l);
	l->link->ops->close(l->link, rc);
}

struct rv_mlink *rv_mlink_reach(struct rv_messenger *m, uint64_t worker)
{
	struct rv_mlink *l = rv_map64_get(&m->reached, worker);
	const struct rv_peer *p = l ? NULL : rv_peers_find(&m->peers, worker);

	if (l || !p || !p->frame_max || !m->datagrams)
		return l;
	l = rv_mlink_new(m, NULL);
	if (!l)
		return NULL;
	l->datagram = true;
	l->worker = worker;
	if (rv_map64_put(&m->reached, worker, l))
		goto err_drop;
	l->link =
		m->datagrams->ops->reach(m->datagrams, worker, p->own_incarnation, p->frame_max, l);
	if (l->link)
		return l;
	forget_reached(l);
err_drop:
	rv_mlink_drop(l);
	return NULL;
}

void rv_mlink_renew(struct rv_messenger *m, uint64_t worker)
{
	struct rv_mlink *l = rv_map64_get(&m->reached, worker);

	if (l)
		rv_mlink_close(l, 0);
}

static void update_pause(struct rv_mlink *l)
{
	bool on;

	if (!l->link)
		return;
	on = l->requests >= RV_LINK_REQUESTS || l->link->ops->queued(l->link) >= RV_LINK_QUEUE;
	if (on == l->paused)
		return;
	l->paused = on;
	l->link->ops->pause(l->link, on);
}

void rv_mlink_request_done(struct rv_mlink *l)
{
	l->requests--;
	update_pause(l);
}

/* Calls. */

static void transmit_answer(struct rv_messenger *m, struct rv_call *c, struct rv_mlink *l)
{
	struct rv_call_answer sent = {.rc = -ECONNRESET};

	if (l->link)
		sent.rc = l->link->ops->send(l->link, c->frame, c->headers, c->headers_len, c->body,
					     c->body_len, NULL, NULL);
	rv_call_finish(&m->calls, c, &sent);
}

void rv_call_transmit(struct rv_messenger *m, struct rv_call *c, struct rv_mlink *l)
{
	struct rv_writer body = rv_writer(m->scratch, sizeof(m->scratch));
	uint8_t head[RV_REQUEST_HEADER_MIN + HANDLER_MAX + RV_CALL_HEADERS];
	const void *payload = m->scratch;
	size_t payload_len;
	struct rv_writer hw = rv_writer(head, sizeof(head));
	struct rv_request_header h = {.id = rv_call_id(&m->calls, c)};
	struct rv_call_answer sent = {0};
	int rc;

	if (c->frame != RV_FRAME_MESSAGE) {
		transmit_answer(m, c, l);
		return;
	}
	rc = c->encode(c, &h, &body);
	h.headers = c->headers;
	h.headers_len = c->headers_len;
	payload_len = body.len;
	if (c->body) {
		payload = c->body;
		payload_len = c->body_len;
	}
	if (!rc && body.bad)
		rc = -ENOSPC;
	if (!rc)
		rc = rv_request_header_encode(&hw, &h);
	c->sent_ns = m->reactor->conf.clock();
	c->on = l;
	if (!rc && l->link)
		rc = l->link->ops->send(l->link, RV_FRAME_MESSAGE, head, hw.len, payload,
					payload_len, NULL, NULL);
	else if (!rc)
		rc = -ECONNRESET;
	if (rc == -ESHUTDOWN)
		rc = -ECONNRESET; /* the link is closing: the peer did not say that it shuts down */
	if (rc || c->oneway) {
		sent.rc = rc;
		rv_call_finish(&m->calls, c, &sent);
		return;
	}
	c->state = RV_CALL_SENT;
	rv_list_del(&c->link);
	rv_list_push(&l->calls, &c->link);
}

static void finish(struct rv_messenger *m, struct rv_call *c, int rc)
{
	struct rv_call_answer a = {.rc = rc};
	struct rv_call copy;

	if (rc == -ETIMEDOUT && c->late && c->state == RV_CALL_SENT) {
		/* The peer may still grant something: stay to give it back. */
		copy = *c;
		c->done = c->late;
		c->late = NULL;
		c->place = NULL;
		c->dying = 0; /* it lives on */
		rv_task_at(m->reactor, &c->deadline, m->reactor->now_ns + LATE_NS);
		copy.done(&copy, &a);
		return;
	}
	rv_call_finish(&m->calls, c, &a);
}

void rv_messenger_end_call(struct rv_messenger *m, struct rv_call *c, int rc)
{
	struct rv_mlink *l = c->placing;

	if (c->dying)
		return;
	if (l) {
		c->placing = NULL;
		l->placing = NULL;
		if (l->link && !l->link->ops->displace(l->link)) {
			l->displacing = c;
			c->dying = rc;
			return;
		}
	}
	finish(m, c, rc);
}

static void on_displaced(void *user, struct rv_link *link)
{
	struct rv_mlink *l = link->user;
	struct rv_call *c = l->displacing;

	l->displacing = NULL;
	if (c)
		finish(user, c, c->dying);
}

/* An answer. */

/* @param[out] rh  a response's header; all zero for others */
static struct rv_call *call_of_answer(struct rv_messenger *m, const struct rv_frame *f,
				      struct rv_response_header *rh, bool *ok)
{
	struct rv_ack_header ah;

	*ok = false;
	*rh = (struct rv_response_header){0};
	if (f->type == RV_FRAME_RESPONSE) {
		if (rv_response_header_decode(f->header, f->header_len, rh))
			return NULL;
		*ok = rh->outcome == 0;
		return rv_call_find(&m->calls, &rh->id);
	}
	if (rv_ack_header_decode(f->header, f->header_len, &ah) || ah.event)
		return NULL;
	*ok = !ah.error;
	return rv_call_find(&m->calls, &ah.id);
}

static bool fits_place(struct rv_call *c, const struct rv_frame *f,
		       const struct rv_response_header *rh)
{
	if (!c->place_upto)
		return f->payload_len == c->place_len;
	return f->payload_len <= c->place_len &&
	       rv_headers_find_u64(rh->headers, rh->headers_len, RV_HEADER_LEASE, &c->placed_lease);
}

static void *on_place(void *user, struct rv_link *link, const struct rv_frame *f)
{
	struct rv_mlink *l = link->user;
	struct rv_response_header rh;
	struct rv_call *c;
	bool ok;

	l->heard = true;
	if (f->type != RV_FRAME_RESPONSE)
		return NULL;
	c = call_of_answer(user, f, &rh, &ok);
	if (!c || !ok || !c->place || c->placing || c->dying || !fits_place(c, f, &rh))
		return NULL;
	c->placing = l;
	l->placing = c;
	return c->place;
}

static void on_answer(struct rv_messenger *m, struct rv_mlink *l, const struct rv_frame *f)
{
	struct rv_call_answer a = {.payload = f->payload,
				   .len = f->payload_len,
				   .placed = f->placed};
	struct rv_response_header rh;
	struct rv_call *c;
	bool ok;

	c = call_of_answer(m, f, &rh, &ok);
	a.headers = rh.headers;
	a.headers_len = rh.headers_len;
	if (f->placed) {
		c = l->placing;
		l->placing = NULL;
		RV_CHECK(c);
		c->placing = NULL;
		rv_call_finish(&m->calls, c, &a);
		return;
	}
	if (!c || c->placing || c->dying)
		return; /* late, foreign or a duplicate */
	a.rc = ok ? 0 : -EREMOTEIO;
	rv_call_finish(&m->calls, c, &a);
}

static void on_shutting_down(struct rv_messenger *m, const struct rv_frame *f)
{
	static const char text[] = "request rejected: peer is shutting down";
	struct rv_call_answer a = {-ESHUTDOWN, (const uint8_t *)text, sizeof(text) - 1, false, NULL,
				   0};
	struct rv_request_header h;
	struct rv_call *c;

	if (rv_request_header_decode(f->header, f->header_len, &h))
		return;
	c = rv_call_find(&m->calls, &h.id);
	if (c && !c->placing && !c->dying)
		rv_call_finish(&m->calls, c, &a);
}

static void on_frame(void *user, struct rv_link *link, const struct rv_frame *f)
{
	struct rv_messenger *m = user;
	struct rv_mlink *l = link->user;

	l->heard = true;
	switch (f->type) {
	case RV_FRAME_MESSAGE:
		rv_inbound_message(m, l, f);
		update_pause(l);
		break;
	case RV_FRAME_RESPONSE:
	case RV_FRAME_ACK:
		on_answer(m, l, f);
		break;
	case RV_FRAME_SHUTTING_DOWN:
		on_shutting_down(m, f);
		break;
	default:
		break; /* events mean nothing to us */
	}
}

static bool on_opened(void *user, struct rv_link *link)
{
	link->user = rv_mlink_new(user, link);
	return link->user != NULL;
}

static void on_connected(void *user, struct rv_link *link, int rc)
{
	struct rv_mlink *l = link->user;

	l->up = rc == 0;
	if (l->up)
		rv_route_link_up(user, l);
	/* else on_closed() follows */
}

static void on_drained(void *user, struct rv_link *link)
{
	(void)user;
	update_pause(link->user);
}

/*
 * The calls of a connection that is gone. Those whose answers were arriving are kept for last: a lease that came with one
 * is given back by the route's next connection, so the route must know before that this one is gone.
 */
static void end_calls(struct rv_messenger *m, struct rv_mlink *l, struct rv_list *arriving)
{
	struct rv_call *c = l->placing;

	if (c) {
		/* Its answer was arriving here and is lost, wherever the request went out. */
		l->placing = NULL;
		c->placing = NULL;
		rv_list_del(&c->link);
		rv_list_push(arriving, &c->link);
	}
	while (!rv_list_empty(&l->calls)) {
		c = RV_LIST_ENTRY(l->calls.next, struct rv_call, link);
		rv_list_del(&c->link);
		c->late = NULL;
		if (c->placing)
			rv_list_push(arriving, &c->link);
		else
			rv_messenger_end_call(m, c, -ECONNRESET);
	}
}

static void on_closed(void *user, struct rv_link *link, int rc)
{
	struct rv_messenger *m = user;
	struct rv_mlink *l = link->user;
	struct rv_list arriving;

	if (!l)
		return;
	forget_reached(l);
	l->link = NULL;
	rv_list_init(&arriving);
	rv_route_take_back(l);
	end_calls(m, l, &arriving);
	rv_route_link_lost(m, l, rc);
	while (!rv_list_empty(&arriving)) {
		struct rv_call *c = RV_LIST_ENTRY(arriving.next, struct rv_call, link);

		rv_list_del(&c->link);
		rv_messenger_end_call(m, c, -ECONNRESET);
	}
	rv_mlink_drop(l);
}

static const struct rv_carrier_events events = {
	.opened = on_opened,
	.connected = on_connected,
	.place = on_place,
	.frame = on_frame,
	.displaced = on_displaced,
	.drained = on_drained,
	.idle = rv_messenger_on_idle,
	.retired = rv_inbound_retired,
	.closed = on_closed,
};

const struct rv_carrier_events *rv_messenger_events(void)
{
	return &events;
}
