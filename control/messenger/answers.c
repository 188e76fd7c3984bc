/*
 * Answers to requests from peers, on the connection they came by or, to datagrams, on whatever reaches their sender.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "control/messenger/inbound_impl.h"
#include "dataplane/base/check.h"

struct rv_link *rv_answer_link(struct rv_mlink *l, uint64_t worker)
{
	if (!l->datagram)
		return l->link;
	l = rv_mlink_reach(l->m, worker);
	return l ? l->link : NULL;
}

void rv_answer_ack(struct rv_mlink *l, const struct rv_msg_id *id, bool error, const char *text,
		   size_t len)
{
	struct rv_link *link = rv_answer_link(l, rv_msg_id_worker(id));
	struct rv_ack_header h = {.error = error, .id = *id};
	uint8_t head[RV_ACK_HEADER_LEN];
	struct rv_writer w = rv_writer(head, sizeof(head));

	rv_ack_header_encode(&w, &h);
	if (link &&
	    link->ops->send(link, RV_FRAME_ACK, head, w.len, text, len, NULL, NULL) == -EMSGSIZE)
		link->ops->send(link, RV_FRAME_ACK, head, w.len, NULL, 0, NULL, NULL);
}

static size_t encode_response(uint8_t head[RV_RESPONSE_HEADER_MIN], const struct rv_msg_id *id,
			      bool error)
{
	struct rv_response_header h = {.id = *id, .outcome = error};
	struct rv_writer w = rv_writer(head, RV_RESPONSE_HEADER_MIN);

	rv_response_header_encode(&w, &h);
	return w.len;
}

static void send_long(struct rv_messenger *m, const struct rv_msg_id *id, const uint8_t *head,
		      size_t head_len, const void *body, size_t len);

int rv_answer_response(struct rv_mlink *l, const struct rv_msg_id *id, bool error, const void *body,
		       size_t len, rv_sent_fn *sent, void *ctx)
{
	struct rv_link *link = rv_answer_link(l, rv_msg_id_worker(id));
	uint8_t head[RV_RESPONSE_HEADER_MIN];
	size_t head_len = encode_response(head, id, error);
	int rc;

	if (!link)
		return -ESHUTDOWN;
	rc = link->ops->send(link, RV_FRAME_RESPONSE, head, head_len, body, len, sent, ctx);
	if (rc == -EMSGSIZE && l->datagram && !sent)
		send_long(l->m, id, head, head_len, body, len);
	return rc;
}

#define MAP_MAX  128
#define HEAD_MAX (RV_RESPONSE_HEADER_MIN + MAP_MAX)

/* @return the length of the head */
static size_t encode_with_headers(uint8_t head[HEAD_MAX], const struct rv_msg_id *id,
				  const struct rv_header_pair *pairs, size_t nr)
{
	uint8_t map[MAP_MAX];
	struct rv_writer mw = rv_writer(map, sizeof(map)), w = rv_writer(head, HEAD_MAX);
	struct rv_response_header h = {.id = *id, .headers = map};

	RV_CHECK(!rv_headers_encode(&mw, pairs, nr));
	h.headers_len = (uint16_t)mw.len;
	RV_CHECK(!rv_response_header_encode(&w, &h) && !w.bad);
	return w.len;
}

int rv_answer_with_headers(struct rv_mlink *l, const struct rv_msg_id *id,
			   const struct rv_header_pair *pairs, size_t nr, const void *body,
			   size_t len, rv_sent_fn *sent, void *ctx)
{
	uint8_t head[HEAD_MAX];
	size_t head_len = encode_with_headers(head, id, pairs, nr);

	RV_CHECK(!l->datagram);
	if (!l->link)
		return -ESHUTDOWN;
	return l->link->ops->send(l->link, RV_FRAME_RESPONSE, head, head_len, body, len, sent, ctx);
}

int rv_answer_in_pieces(struct rv_mlink *l, const struct rv_msg_id *id,
			const struct rv_header_pair *pair, const struct iovec *piece, size_t nr,
			rv_sent_fn *sent, void *ctx)
{
	uint8_t head[HEAD_MAX];
	size_t head_len = encode_with_headers(head, id, pair, 1);

	RV_CHECK(!l->datagram);
	if (!l->link)
		return -ESHUTDOWN;
	return l->link->ops->send_pieces(l->link, RV_FRAME_RESPONSE, head, head_len, piece, nr,
					 sent, ctx);
}

/* Too long for a datagram, and for no other way: its caller would wait for ever, so it gets an error. */
static void say_lost(struct rv_messenger *m, const struct rv_msg_id *id, size_t len, int rc)
{
	struct rv_mlink *l = rv_mlink_reach(m, rv_msg_id_worker(id));
	uint8_t head[RV_RESPONSE_HEADER_MIN];
	size_t head_len = encode_response(head, id, true);
	char text[192];
	int n = snprintf(
		text, sizeof(text),
		"Failed to send response: %zu bytes are more than fit in a message to the caller%s",
		len, rc == -ENOBUFS ? ", and it does not read what waits for it elsewhere" : "");

	if (l)
		l->link->ops->send(l->link, RV_FRAME_RESPONSE, head, head_len, text, (size_t)n,
				   NULL, NULL);
}

static void long_sent(struct rv_call *c, const struct rv_call_answer *a)
{
	struct rv_response_header h;

	c->route->answer_bytes -= c->body_len;
	if (a->rc && !rv_response_header_decode(c->headers, c->headers_len, &h))
		say_lost(c->ctx, &h.id, c->body_len, a->rc);
}

static void send_long(struct rv_messenger *m, const struct rv_msg_id *id, const uint8_t *head,
		      size_t head_len, const void *body, size_t len)
{
	int rc = rv_route_answer(m, rv_msg_id_worker(id), RV_FRAME_RESPONSE, head, head_len, body,
				 len, long_sent);

	if (rc)
		say_lost(m, id, len, rc);
}

void rv_answer_ok(const struct request *rq, const void *body, size_t len)
{
	if (rq->kind == RV_CALL_UNARY)
		rv_answer_response(rq->link, &rq->id, false, body, len, NULL, NULL);
	else if (rq->kind == RV_CALL_SYNC)
		rv_answer_ack(rq->link, &rq->id, false, NULL, 0);
}

void rv_answer_error(const struct request *rq, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	n = n < (int)sizeof(text) ? n : (int)sizeof(text) - 1;
	if (rq->kind == RV_CALL_UNARY)
		rv_answer_response(rq->link, &rq->id, true, text, (size_t)n, NULL, NULL);
	else if (rq->kind == RV_CALL_SYNC)
		rv_answer_ack(rq->link, &rq->id, true, text, (size_t)n);
}

void rv_answer_am(const struct request *rq, const char *name, const char *err)
{
	if (rq->kind == RV_CALL_UNARY)
		rv_answer_error(rq, "Unary message incorrectly routed to AM handler '%s'%s%s", name,
				err ? ": " : "", err ? err : "");
	else if (err)
		rv_answer_error(rq, "%s", err);
	else
		rv_answer_ok(rq, NULL, 0);
}
