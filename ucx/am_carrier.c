/*
 * The net core's half: links, and the batches of notes that go down.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "ucx/am_impl.h"
#include "ucx/context.h"

static struct rv_am_link *of_link(const struct rv_link *l)
{
	return RV_CONTAINER((struct rv_link *)(uintptr_t)l, struct rv_am_link, link);
}

/* Crossing over. */

static void run_down(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_am_batch *b = (void *)cell->body;
	struct rv_list *it;

	while ((it = rv_list_pop(&b->notes)))
		rv_am_take(b->am, RV_LIST_ENTRY(it, struct rv_am_note, link));
	rv_cell_reply(port, cell);
}

static void flush_down(struct rv_ucx_am *am)
{
	struct rv_am_batch *b = (void *)am->down_cell->body;

	if (am->down_away || rv_list_empty(&am->down))
		return;
	b->am = am;
	rv_list_init(&b->notes);
	rv_list_splice(&b->notes, &am->down);
	am->down_away = true;
	rv_cell_send(am->conf.net->port, am->conf.polling->index, am->down_cell);
}

static void down_done(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_ucx_am *am = cell->ctx;

	(void)port;
	am->down_away = false;
	flush_down(am);
}

static void put_down(struct rv_ucx_am *am, struct rv_am_note *n)
{
	if (n->l)
		n->l->out++;
	rv_list_push(&am->down, &n->link);
	flush_down(am);
}

/* Links. */

static int link_send(struct rv_link *rl, unsigned type, const void *header, size_t header_len,
		     const void *payload, size_t payload_len, rv_sent_fn *sent, void *ctx)
{
	struct rv_am_link *l = of_link(rl);
	struct rv_ucx_am *am = l->am;
	size_t tag = am->conf.blob_version >= 2 ? RV_AM_TAG : 0;
	size_t copied = sent ? 0 : payload_len;
	struct rv_am_note *n;

	if (l->over)
		return -ECONNRESET;
	if (l->closing)
		return -ESHUTDOWN;
	if (payload_len > l->frame_max || header_len > l->frame_max - payload_len ||
	    header_len > am->header_max - tag)
		return -EMSGSIZE;
	if (l->queued > RV_AM_QUEUE)
		return -ENOMEM;
	n = malloc(sizeof(*n) + RV_AM_TAG + header_len + copied);
	if (!n)
		return -ENOMEM;
	*n = (struct rv_am_note){
		.kind = RV_AM_SEND,
		.l = l,
		.type = type,
		.header_len = header_len,
		.payload_len = payload_len,
		.payload = sent ? payload : rv_am_bytes(n) + RV_AM_TAG + header_len,
		.sent = sent,
		.ctx = ctx,
	};
	memcpy(rv_am_bytes(n) + RV_AM_TAG, header, header_len);
	if (copied)
		memcpy(rv_am_bytes(n) + RV_AM_TAG + header_len, payload, copied);
	l->queued += header_len + payload_len;
	am->queued += header_len + payload_len;
	put_down(am, n);
	return 0;
}

/* Payloads arrive whole, so no place is ever asked for. */
static bool link_displace(struct rv_link *l)
{
	(void)l;
	return true;
}

static size_t link_queued(const struct rv_link *l)
{
	return of_link(l)->queued;
}

static void link_pause(struct rv_link *l, bool on)
{
	(void)l;
	(void)on;
}

static void link_close(struct rv_link *rl, int rc)
{
	struct rv_am_link *l = of_link(rl);

	if (l->closing)
		return;
	l->closing = true;
	l->rc = rc;
	put_down(l->am, &l->close);
}

static const char *link_name(const struct rv_link *l)
{
	return of_link(l)->name;
}

static const struct rv_link_ops link_ops = {
	.send = link_send,
	.displace = link_displace,
	.queued = link_queued,
	.pause = link_pause,
	.close = link_close,
	.name = link_name,
};

static struct rv_link *reach(struct rv_carrier *c, uint64_t worker, uint64_t as, uint32_t frame_max,
			     void *link_user)
{
	struct rv_ucx_am *am = RV_CONTAINER(c, struct rv_ucx_am, carrier);
	struct rv_am_link *l;

	if (am->stopping || am->conf.reactor != 0)
		return NULL;
	l = aligned_alloc(64, rv_align_up(sizeof(*l), 64));
	if (!l)
		return NULL;
	*l = (struct rv_am_link){
		.link = {.ops = &link_ops, .user = link_user, .dialed = true, .datagram = true},
		.am = am,
		.worker = worker,
		.tag = as ? as : am->conf.incarnation,
		.frame_max = frame_max < am->conf.eager_max ? frame_max : am->conf.eager_max,
		.open = {.kind = RV_AM_OPEN, .l = l},
		.close = {.kind = RV_AM_CLOSE, .l = l},
		.lost = {.kind = RV_AM_LOST, .l = l},
	};
	snprintf(l->name, sizeof(l->name), "ucx %" PRIu64, worker);
	rv_list_push(&am->links, &l->all);
	put_down(am, &l->open);
	return &l->link;
}

/* Ways that are idle. */

static int put_word(struct rv_carrier *c, enum rv_am_kind kind, uint64_t worker, bool agreed,
		    void *ctx)
{
	struct rv_am_note *n = malloc(sizeof(*n));

	if (!n)
		return -ENOMEM;
	*n = (struct rv_am_note){.kind = kind, .worker = worker, .agreed = agreed, .ctx = ctx};
	put_down(RV_CONTAINER(c, struct rv_ucx_am, carrier), n);
	return 0;
}

static int retire(struct rv_carrier *c, uint64_t worker, bool agreed, void *ctx)
{
	return put_word(c, RV_AM_RETIRE, worker, agreed, ctx);
}

/* Without memory it is not told: that endpoint stays open, and unused. */
static void keep(struct rv_carrier *c, uint64_t worker)
{
	put_word(c, RV_AM_KEEP, worker, false, NULL);
}

static const struct rv_carrier_ops carrier_ops = {.reach = reach, .retire = retire, .keep = keep};

/* The common link carries nothing out. */

static int common_send(struct rv_link *l, unsigned type, const void *header, size_t header_len,
		       const void *payload, size_t payload_len, rv_sent_fn *sent, void *ctx)
{
	(void)l, (void)type, (void)header, (void)header_len, (void)payload, (void)payload_len;
	(void)sent, (void)ctx;
	return -ESHUTDOWN;
}

static size_t common_queued(const struct rv_link *l)
{
	(void)l;
	return 0;
}

static void common_close(struct rv_link *l, int rc)
{
	(void)l, (void)rc; /* it closes when the carrier stops */
}

static const char *common_name(const struct rv_link *l)
{
	(void)l;
	return "ucx";
}

static const struct rv_link_ops common_ops = {
	.send = common_send,
	.displace = link_displace,
	.queued = common_queued,
	.pause = link_pause,
	.close = common_close,
	.name = common_name,
};

/* Notes from the other half. */

static void finish_link(struct rv_am_link *l)
{
	struct rv_ucx_am *am = l->am;

	if (!l->over || l->out)
		return;
	am->conf.events->closed(am->conf.user, &l->link, l->rc);
	rv_list_del(&l->all);
	free(l);
}

static void sent(struct rv_ucx_am *am, struct rv_am_note *n)
{
	struct rv_am_link *l = n->l;

	l->queued -= n->header_len + n->payload_len;
	am->queued -= n->header_len + n->payload_len;
	if (n->sent)
		n->sent(n->ctx, n->rc);
	free(n);
	if (!l->queued && !l->over)
		am->conf.events->drained(am->conf.user, &l->link);
}

static void is_over(struct rv_am_link *l, int rc)
{
	if (!l->closing)
		l->rc = rc;
	l->over = true;
}

static void frame(struct rv_ucx_am *am, struct rv_am_note *n)
{
	struct rv_frame f = {
		.type = n->type,
		.header = rv_am_bytes(n),
		.header_len = n->header_len,
		.payload = n->payload,
		.payload_len = n->payload_len,
	};

	if (!am->stopped)
		am->conf.events->frame(am->conf.user, &am->common, &f);
	free(n);
}

static void bring_to_link(struct rv_ucx_am *am, struct rv_am_note *n)
{
	struct rv_am_link *l = n->l;

	RV_CHECK(l);
	if (n->kind != RV_AM_LOST)
		l->out--;
	if (n->kind == RV_AM_SEND) {
		sent(am, n);
	} else if (n->kind == RV_AM_OPEN) {
		am->conf.events->connected(am->conf.user, &l->link, n->rc);
		if (n->rc)
			is_over(l, n->rc);
	} else {
		is_over(l, n->rc);
	}
	finish_link(l);
}

void rv_am_bring(struct rv_ucx_am *am, struct rv_am_note *n)
{
	switch (n->kind) {
	case RV_AM_FRAME:
		frame(am, n);
		return;
	case RV_AM_STOP:
		am->stopped = true;
		if (am->started)
			am->conf.events->closed(am->conf.user, &am->common, -ESHUTDOWN);
		return;
	case RV_AM_IDLE:
		am->conf.events->idle(am->conf.user, &am->carrier, n->worker);
		free(n);
		return;
	case RV_AM_RETIRE:
		if (n->ctx)
			am->conf.events->retired(am->conf.user, n->ctx, n->rc);
		free(n);
		return;
	case RV_AM_KEEP:
		free(n);
		return;
	case RV_AM_SEND:
	case RV_AM_OPEN:
	case RV_AM_CLOSE:
	case RV_AM_LOST:
		bring_to_link(am, n);
		return;
	}
}

/* The whole. */

int rv_ucx_am_create(struct rv_fabric *f, const struct rv_ucx_am_conf *conf, struct rv_ucx_am **out)
{
	struct rv_ucx_am *am = aligned_alloc(64, rv_align_up(sizeof(*am), 64));

	RV_CHECK(conf->incarnation != 0);
	if (!am)
		return -ENOMEM;
	*am = (struct rv_ucx_am){
		.carrier = {&carrier_ops},
		.conf = *conf,
		.direct = conf->net == conf->polling,
		.stop = {.kind = RV_AM_STOP},
		.common = {.ops = &common_ops, .datagram = true},
	};
	rv_list_init(&am->links);
	rv_list_init(&am->down);
	rv_list_init(&am->up);
	RV_CHECK(conf->reactor < ((struct rv_ucx *)f)->reactors);
	((struct rv_ucx *)f)->am[conf->reactor] = am;
	*out = am;
	return 0;
}

static void forget(struct rv_list *notes)
{
	struct rv_list *it;

	while ((it = rv_list_pop(notes))) {
		struct rv_am_note *n = RV_LIST_ENTRY(it, struct rv_am_note, link);

		/* The others are parts of links, and of the carrier. */
		if (n->kind == RV_AM_FRAME || n->kind == RV_AM_SEND || n->kind == RV_AM_IDLE ||
		    n->kind == RV_AM_RETIRE || n->kind == RV_AM_KEEP)
			free(n);
	}
}

/* After a shutdown that ran out of time something may be left. */
void rv_ucx_am_destroy(struct rv_ucx_am *am)
{
	struct rv_list *it;

	if (!am)
		return;
	if (am->down_away)
		forget(&((struct rv_am_batch *)(void *)am->down_cell->body)->notes);
	if (am->up_away)
		forget(&((struct rv_am_batch *)(void *)am->up_cell->body)->notes);
	forget(&am->down);
	forget(&am->up);
	while ((it = rv_list_pop(&am->links)))
		free(RV_LIST_ENTRY(it, struct rv_am_link, all));
	free(am);
}

struct rv_carrier *rv_ucx_am_carrier(struct rv_ucx_am *am)
{
	return &am->carrier;
}

int rv_ucx_am_start(struct rv_ucx_am *am)
{
	am->down_cell = rv_cell_alloc(am->conf.net->port);
	if (!am->down_cell)
		return -EAGAIN;
	am->down_cell->run = run_down;
	am->down_cell->done = down_done;
	am->down_cell->ctx = am;
	if (am->conf.reactor != 0)
		return 0;
	am->started = am->conf.events->opened(am->conf.user, &am->common);
	return am->started ? 0 : -ENOMEM;
}

size_t rv_ucx_am_queued(const struct rv_ucx_am *am)
{
	return am->queued;
}

unsigned rv_ucx_am_close_all(struct rv_ucx_am *am)
{
	struct rv_list *it, *tmp;
	unsigned left = 0;

	RV_LIST_EACH_SAFE(it, tmp, &am->links)
	{
		link_close(&RV_LIST_ENTRY(it, struct rv_am_link, all)->link, -ESHUTDOWN);
		left++;
	}
	if (!am->stopping) {
		am->stopping = true;
		put_down(am, &am->stop);
	}
	return left + !am->stopped;
}

uint64_t rv_ucx_am_dropped(const struct rv_ucx_am *am)
{
	return rv_counter_get(&am->dropped);
}
