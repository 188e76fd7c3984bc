#include "tests/fake/fake_carrier.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "dataplane/base/units.h"

static struct fake_link *self(const struct rv_link *l)
{
	return RV_CONTAINER((struct rv_link *)(uintptr_t)l, struct fake_link, link);
}

static uint8_t *copy(const void *p, size_t len)
{
	uint8_t *c = malloc(len ? len : 1);

	assert_non_null(c);
	if (len)
		memcpy(c, p, len);
	return c;
}

static int link_send(struct rv_link *rl, unsigned type, const void *header, size_t header_len,
		     const void *payload, size_t payload_len, rv_sent_fn *sent, void *ctx)
{
	struct fake_link *l = self(rl);
	struct fake_sent *s;

	if (l->send_rc)
		return l->send_rc;
	if (l->closing || !(l->open || (l->connecting && rl->datagram)))
		return -ESHUTDOWN;
	if (rl->datagram && header_len + payload_len > l->frame_max)
		return -EMSGSIZE;
	s = calloc(1, sizeof(*s));
	assert_non_null(s);
	s->type = type;
	s->header = copy(header, header_len);
	s->header_len = header_len;
	s->payload = copy(payload, payload_len);
	s->payload_len = payload_len;
	s->sent = sent;
	s->ctx = ctx;
	rv_list_push(&l->out, &s->link);
	l->sent_nr++;
	return 0;
}

static int link_send_pieces(struct rv_link *rl, unsigned type, const void *header,
			    size_t header_len, const struct iovec *piece, size_t nr,
			    rv_sent_fn *sent, void *ctx)
{
	struct fake_sent *s;
	int rc;

	assert_non_null(sent);
	rc = link_send(rl, type, header, header_len, NULL, 0, sent, ctx);
	if (rc)
		return rc;
	s = RV_LIST_ENTRY(self(rl)->out.prev, struct fake_sent, link);
	s->piece = piece;
	s->piece_nr = nr;
	return 0;
}

/* Pieces are read when they leave, not before. */
static void gather(struct fake_sent *s)
{
	size_t len = 0;

	for (size_t i = 0; i < s->piece_nr; i++)
		len += s->piece[i].iov_len;
	if (!s->piece_nr)
		return;
	free(s->payload);
	s->payload = malloc(len ? len : 1);
	assert_non_null(s->payload);
	s->payload_len = len;
	len = 0;
	for (size_t i = 0; i < s->piece_nr; i++) {
		memcpy(s->payload + len, s->piece[i].iov_base, s->piece[i].iov_len);
		len += s->piece[i].iov_len;
	}
	s->piece_nr = 0;
}

static bool link_displace(struct rv_link *rl)
{
	struct fake_link *l = self(rl);

	assert_true(l->arriving && l->place);
	if (l->carrier->displace_pends) {
		l->displacing = true;
		return false;
	}
	l->place = NULL;
	return true;
}

static size_t link_queued(const struct rv_link *rl)
{
	return self(rl)->queued;
}

static void link_pause(struct rv_link *rl, bool on)
{
	self(rl)->paused = on;
}

static void link_close(struct rv_link *rl, int rc)
{
	struct fake_link *l = self(rl);

	if (!l->closing)
		l->close_rc = rc;
	l->closing = true;
}

static const char *link_name(const struct rv_link *rl)
{
	return self(rl)->host;
}

static const struct rv_link_ops link_ops = {
	.send = link_send,
	.send_pieces = link_send_pieces,
	.displace = link_displace,
	.queued = link_queued,
	.pause = link_pause,
	.close = link_close,
	.name = link_name,
};

static struct fake_link *link_new(struct fake_carrier *c)
{
	struct fake_link *l = calloc(1, sizeof(*l));

	assert_non_null(l);
	assert_true(c->link_nr < FAKE_LINKS);
	l->link.ops = &link_ops;
	l->carrier = c;
	rv_list_init(&l->out);
	c->link[c->link_nr++] = l;
	return l;
}

static struct rv_link *dial(struct rv_carrier *carrier, const char *host, uint16_t port,
			    void *link_user)
{
	struct fake_carrier *c = RV_CONTAINER(carrier, struct fake_carrier, carrier);
	struct fake_link *l;

	if (c->no_dial)
		return NULL;
	l = link_new(c);
	l->connecting = true;
	l->link.dialed = true;
	l->link.user = link_user;
	snprintf(l->host, sizeof(l->host), "%s", host);
	l->port = port;
	c->dials++;
	return &l->link;
}

static const struct rv_carrier_ops carrier_ops = {.dial = dial};

void fake_carrier_init(struct fake_carrier *c, const struct rv_carrier_events *events, void *user)
{
	*c = (struct fake_carrier){.carrier = {&carrier_ops}, .events = events, .user = user};
}

static struct rv_link *reach(struct rv_carrier *carrier, uint64_t worker, uint64_t as,
			     uint32_t frame_max, void *link_user)
{
	struct fake_carrier *c = RV_CONTAINER(carrier, struct fake_carrier, carrier);
	struct fake_link *l;

	if (c->no_dial)
		return NULL;
	l = link_new(c);
	l->connecting = true;
	l->link.datagram = true;
	l->link.user = link_user;
	l->worker = worker;
	l->as = as;
	l->frame_max = frame_max;
	c->reached++;
	return &l->link;
}

static int retire(struct rv_carrier *carrier, uint64_t worker, bool agreed, void *ctx)
{
	struct fake_carrier *c = RV_CONTAINER(carrier, struct fake_carrier, carrier);

	c->retires++;
	c->told_worker = worker;
	c->agreed = agreed;
	c->retire_ctx = ctx;
	return 0;
}

static void keep(struct rv_carrier *carrier, uint64_t worker)
{
	struct fake_carrier *c = RV_CONTAINER(carrier, struct fake_carrier, carrier);

	c->keeps++;
	c->told_worker = worker;
}

static const struct rv_carrier_ops datagram_ops = {
	.reach = reach,
	.retire = retire,
	.keep = keep,
};

void fake_carrier_init_datagrams(struct fake_carrier *c, const struct rv_carrier_events *events,
				 void *user)
{
	struct fake_link *common;

	*c = (struct fake_carrier){.carrier = {&datagram_ops}, .events = events, .user = user};
	common = link_new(c);
	common->open = true;
	common->link.datagram = true;
	assert_true(events->opened(user, &common->link));
}

void fake_carrier_fini(struct fake_carrier *c)
{
	for (unsigned i = 0; i < c->link_nr; i++) {
		struct fake_link *l = c->link[i];

		if (l->open || l->connecting)
			fake_link_closed(l, l->closing ? l->close_rc : -ECONNRESET);
		while (!rv_list_empty(&l->out))
			fake_sent_free(fake_link_take(l));
		free(l);
	}
	c->link_nr = 0;
}

struct fake_link *fake_carrier_link(const struct fake_carrier *c, unsigned n)
{
	if (n >= c->link_nr)
		fail_msg("there is no link %u", n);
	return c->link[n];
}

struct fake_link *fake_link_accept(struct fake_carrier *c)
{
	struct fake_link *l = link_new(c);

	l->open = true;
	assert_true(c->events->opened(c->user, &l->link));
	return l;
}

void fake_link_connected(struct fake_link *l, int rc)
{
	assert_true(l->connecting);
	l->connecting = false;
	l->open = rc == 0;
	l->carrier->events->connected(l->carrier->user, &l->link, rc);
	if (rc) {
		l->closing = true;
		l->carrier->events->closed(l->carrier->user, &l->link, rc);
	}
}

void fake_link_closed(struct fake_link *l, int rc)
{
	struct rv_list *it;

	assert_true(l->open || l->connecting);
	l->closing = true;
	if (l->displacing)
		fake_link_displaced(l);
	l->arriving = false;
	l->place = NULL;
	free(l->own);
	l->own = NULL;
	RV_LIST_EACH(it, &l->out)
	{
		struct fake_sent *s = RV_LIST_ENTRY(it, struct fake_sent, link);

		gather(s);
		if (s->sent)
			s->sent(s->ctx, rc ? rc : -ESHUTDOWN);
		s->sent = NULL;
	}
	if (l->connecting) {
		l->connecting = false;
		l->carrier->events->connected(l->carrier->user, &l->link, rc ? rc : -ECONNRESET);
	}
	l->open = false;
	l->carrier->events->closed(l->carrier->user, &l->link, rc);
}

struct fake_sent *fake_link_take(struct fake_link *l)
{
	struct rv_list *it = rv_list_pop(&l->out);
	struct fake_sent *s;

	if (!it)
		fail_msg("nothing was sent");
	s = RV_LIST_ENTRY(it, struct fake_sent, link);
	gather(s);
	return s;
}

bool fake_link_quiet(const struct fake_link *l)
{
	return rv_list_empty(&l->out);
}

void fake_sent_free(struct fake_sent *s)
{
	if (s->sent)
		s->sent(s->ctx, 0);
	free(s->header);
	free(s->payload);
	free(s);
}

void *fake_link_begin(struct fake_link *l, unsigned type, const void *header, size_t header_len,
		      size_t payload_len)
{
	struct rv_frame f = {.type = type, .header_len = header_len, .payload_len = payload_len};

	assert_true(l->open && !l->arriving);
	assert_true(header_len <= sizeof(l->header));
	memcpy(l->header, header, header_len);
	l->header_len = header_len;
	l->type = type;
	l->payload_len = payload_len;
	l->got = 0;
	l->arriving = true;
	f.header = l->header;
	l->place = payload_len ? l->carrier->events->place(l->carrier->user, &l->link, &f) : NULL;
	l->own = l->place ? NULL : calloc(1, payload_len ? payload_len : 1);
	return l->place;
}

void fake_link_arrive(struct fake_link *l, const void *bytes, size_t len)
{
	assert_true(l->arriving && l->got + len <= l->payload_len);
	if (!len)
		return;
	if (l->place)
		memcpy(l->place + l->got, bytes, len);
	else if (l->own)
		memcpy(l->own + l->got, bytes, len);
	l->got += len;
}

/*
 * A frame whose place was taken away is read to its end and told to nobody. The carrier has let go of the
 * place by then, at the latest.
 */
void fake_link_end(struct fake_link *l)
{
	struct rv_frame f = {
		.type = l->type,
		.header = l->header,
		.header_len = l->header_len,
		.payload_len = l->payload_len,
	};
	uint8_t *own = l->own;

	assert_true(l->arriving && l->got == l->payload_len);
	if (l->displacing)
		fake_link_displaced(l);
	f.payload = l->place ? l->place : own;
	f.placed = l->place != NULL;
	l->arriving = false;
	l->place = NULL;
	l->own = NULL;
	if (f.placed || own)
		l->carrier->events->frame(l->carrier->user, &l->link, &f);
	free(own);
}

void fake_link_displaced(struct fake_link *l)
{
	assert_true(l->displacing);
	l->displacing = false;
	l->place = NULL;
	l->carrier->events->displaced(l->carrier->user, &l->link);
}

void fake_link_frame(struct fake_link *l, unsigned type, const void *header, size_t header_len,
		     const void *payload, size_t payload_len)
{
	fake_link_begin(l, type, header, header_len, payload_len);
	fake_link_arrive(l, payload, payload_len);
	fake_link_end(l);
}
