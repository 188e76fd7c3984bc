/*
 * The polling core's half: UCX's active messages, and the batches of notes that go up.
 */
#include "ucx/am.h"

#include <stdlib.h>
#include <string.h>

#include <ucp/api/ucp.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "ucx/am_impl.h"
#include "ucx/context.h"
#include "ucx/ep.h"
#include "ucx/ucx_err.h"

/* Types of frames: the five of every carrier, and two of this one's own. */
enum { MESSAGE = 0, RESPONSE, ACK, EVENT, SHUTTING_DOWN, PING, PONG, TYPES };

#define TOKEN 8u

/*
 * What UCX names as its limit over tcp with its own settings. With longer segments it names a longer one, and then
 * reads behind a buffer of its own (1.22.0, seen by a sanitizer).
 */
#define HEADER_MAX 8140u

/* Crossing over. */

static void run_up(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_am_batch *b = (void *)cell->body;
	struct rv_list *it;

	while ((it = rv_list_pop(&b->notes)))
		rv_am_bring(b->am, RV_LIST_ENTRY(it, struct rv_am_note, link));
	rv_cell_reply(port, cell);
}

static void flush_up(struct rv_ucx_am *am)
{
	struct rv_am_batch *b = (void *)am->up_cell->body;

	if (am->up_away || rv_list_empty(&am->up))
		return;
	b->am = am;
	rv_list_init(&b->notes);
	rv_list_splice(&b->notes, &am->up);
	am->up_away = true;
	am->up_taken = am->up_bytes;
	rv_cell_send(am->conf.polling->port, am->conf.net->index, am->up_cell);
}

static void up_done(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_ucx_am *am = cell->ctx;

	(void)port;
	am->up_away = false;
	am->up_bytes -= am->up_taken;
	am->up_taken = 0;
	flush_up(am);
}

static void bring_direct(struct rv_ucx_am *am)
{
	struct rv_list now, *it;

	rv_list_init(&now);
	rv_list_splice(&now, &am->up);
	am->up_bytes = 0;
	while ((it = rv_list_pop(&now)))
		rv_am_bring(am, RV_LIST_ENTRY(it, struct rv_am_note, link));
}

unsigned rv_am_poll(struct rv_ucx_am *am)
{
	if (rv_list_empty(&am->up))
		return 0;
	if (am->direct)
		bring_direct(am);
	else
		flush_up(am);
	return 1;
}

bool rv_am_full(const struct rv_ucx_am *am)
{
	return am->up_bytes >= RV_AM_BACKLOG && !am->deaf;
}

bool rv_am_busy(const struct rv_ucx_am *am)
{
	return !rv_list_empty(&am->up) && !am->up_away;
}

static void put_up(struct rv_ucx_am *am, struct rv_am_note *n, int rc)
{
	n->rc = rc;
	rv_list_push(&am->up, &n->link);
}

/* Arriving. */

static void drop(struct rv_ucx_am *am, const char *why)
{
	uint64_t nr = rv_counter_get(&am->dropped) + 1;

	rv_counter_add(&am->dropped, 1);
	if ((nr & (nr - 1)) == 0) /* a flood of them is told ever more rarely */
		rv_log_warn("ucx: a message was dropped: %s (%llu so far)", why,
			    (unsigned long long)nr);
}

static void on_echoed(void *request, ucs_status_t status, void *arg)
{
	(void)status;
	(void)arg;
	ucp_request_free(request);
}

/* The endpoint UCX lends a callback is used there and nowhere else: nothing says when it ends. */
static void echo(struct rv_ucx_am *am, ucp_ep_h ep, unsigned type, const uint8_t *header,
		 size_t len)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
		.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_COPY_HEADER,
		.cb.send = on_echoed,
	};
	bool tagged = am->conf.blob_version >= 2;
	uint8_t *bytes;
	struct rv_writer w;

	if (len + RV_AM_TAG > am->header_max)
		return;
	bytes = malloc(RV_AM_TAG + len);
	if (!bytes)
		return;
	w = rv_writer(bytes, RV_AM_TAG + len);
	if (tagged)
		rv_put_le(&w, am->conf.incarnation, RV_AM_TAG);
	rv_put_bytes(&w, header, len);
	ucp_am_send_nbx(ep, RV_AM_ID_BASE + type, bytes, w.len, NULL, 0, &param);
	free(bytes);
}

static void queue_frame(struct rv_ucx_am *am, unsigned type, const uint8_t *header,
			size_t header_len, const void *payload, size_t payload_len)
{
	struct rv_am_note *n = malloc(sizeof(*n) + header_len + payload_len);

	if (!n) {
		drop(am, "out of memory");
		return;
	}
	*n = (struct rv_am_note){
		.kind = RV_AM_FRAME,
		.type = type,
		.header_len = header_len,
		.payload_len = payload_len,
		.payload = rv_am_bytes(n) + header_len,
	};
	if (header_len)
		memcpy(rv_am_bytes(n), header, header_len);
	if (payload_len)
		memcpy(rv_am_bytes(n) + header_len, payload, payload_len);
	am->up_bytes += sizeof(*n) + header_len + payload_len;
	put_up(am, n, 0);
}

static void arrived(struct rv_ucx_am *am, unsigned type, const uint8_t *header, size_t len,
		    const void *payload, size_t payload_len, ucp_ep_h reply)
{
	switch (type) {
	case PING:
		if (reply && len >= TOKEN)
			echo(am, reply, PONG, header, TOKEN);
		break;
	case PONG:
		break; /* nobody here asks */
	case MESSAGE:
		if (am->conf.refuses(am->conf.user, header, len)) {
			if (reply)
				echo(am, reply, SHUTTING_DOWN, header, len);
			break;
		}
		queue_frame(am, type, header, len, payload, payload_len);
		break;
	default:
		queue_frame(am, type, header, len, payload, payload_len);
		break;
	}
}

/* Every frame says that its sender uses the way between us; version 1 does not say who that is. */
static void heard(struct rv_ucx_am *am, const void *header, size_t len)
{
	struct rv_cursor c = rv_cursor(header, len);

	rv_ucx_ep_heard(am->w, am->conf.blob_version >= 2 ? rv_take_le64(&c) : 0);
}

static ucs_status_t on_message(struct rv_ucx_am *am, unsigned type, const void *header,
			       size_t header_len, void *data, size_t len,
			       const ucp_am_recv_param_t *param)
{
	ucp_ep_h reply =
		param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? param->reply_ep : NULL;
	size_t tag = am->conf.blob_version >= 2 ? RV_AM_TAG : 0;

	if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)
		return UCS_ERR_UNSUPPORTED;
	if (am->deaf || !am->w)
		return UCS_OK;
	heard(am, header, header_len);
	if (header_len < tag)
		drop(am, "its header is shorter than the tag of blob version 2");
	else if (header_len > RV_AM_FRAME_MAX - len || len > RV_AM_FRAME_MAX)
		drop(am, "it is longer than any node may send");
	else
		arrived(am, type, (const uint8_t *)header + tag, header_len - tag, data, len,
			reply);
	return UCS_OK;
}

/* UCX does not tell a callback the id it is called for. */
#define ON(type)                                                                            \
	static ucs_status_t on_##type(void *arg, const void *header, size_t header_len,     \
				      void *data, size_t len, const ucp_am_recv_param_t *p) \
	{                                                                                   \
		return on_message(arg, type, header, header_len, data, len, p);             \
	}
ON(MESSAGE)
ON(RESPONSE)
ON(ACK)
ON(EVENT)
ON(SHUTTING_DOWN)
ON(PING)
ON(PONG)

static int listen_for(struct rv_ucx_am *am, ucp_worker_h worker)
{
	static const ucp_am_recv_callback_t callbacks[TYPES] = {
		on_MESSAGE, on_RESPONSE, on_ACK, on_EVENT, on_SHUTTING_DOWN, on_PING, on_PONG,
	};

	for (unsigned i = 0; i < TYPES; i++) {
		const ucp_am_handler_param_t param = {
			.field_mask =
				UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
				UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
			.id = RV_AM_ID_BASE + i,
			.flags = UCP_AM_FLAG_WHOLE_MSG,
			.cb = callbacks[i],
			.arg = am,
		};
		ucs_status_t status = ucp_worker_set_am_recv_handler(worker, &param);

		if (status != UCS_OK) {
			rv_log_err("ucx: ucp_worker_set_am_recv_handler failed: %s",
				   ucs_status_string(status));
			return rv_ucx_err(status);
		}
	}
	return 0;
}

/* Leaving. */

static void on_sent(void *request, ucs_status_t status, void *arg)
{
	struct rv_am_note *n = arg;

	rv_list_del(&n->link);
	rv_ucx_ep_sent(n->ep, status == UCS_OK);
	put_up(n->l->am, n, status == UCS_OK ? 0 : -ECONNRESET);
	ucp_request_free(request);
}

void rv_am_send_lost(struct rv_am_note *n)
{
	rv_list_del(&n->link);
	put_up(n->l->am, n, -ECONNRESET);
}

static void send_note(struct rv_ucx_am *am, struct rv_am_note *n)
{
	bool asks = n->type == MESSAGE || n->type == PING;
	bool tagged = am->conf.blob_version >= 2;
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
				UCP_OP_ATTR_FIELD_FLAGS,
		.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_COPY_HEADER |
			 (asks ? UCP_AM_SEND_FLAG_REPLY : 0),
		.cb.send = on_sent,
		.user_data = n,
	};
	struct rv_writer w = rv_writer(rv_am_bytes(n), RV_AM_TAG);
	/* An endpoint that was let go for being idle is made anew; one that broke has ended the link. */
	const struct rv_ucx_peer *p = n->l->peer ? rv_ucx_ep_reach(am->w, n->l->worker) : NULL;
	struct rv_ucx_ep *ep = p ? rv_ucx_ep_usable(p) : NULL;
	ucs_status_ptr_t request;

	if (!ep) {
		put_up(am, n, -ECONNRESET);
		if (n->l->peer && !n->l->peer->ep)
			rv_am_lost(n->l); /* none can be made: who waits on the link must know */
		return;
	}
	rv_put_le(&w, n->l->tag, RV_AM_TAG);
	n->ep = ep;
	rv_ucx_ep_sending(ep, &n->link);
	request = ucp_am_send_nbx(
		ep->ucp, RV_AM_ID_BASE + n->type, rv_am_bytes(n) + (tagged ? 0 : RV_AM_TAG),
		n->header_len + (tagged ? RV_AM_TAG : 0), n->payload, n->payload_len, &param);
	if (UCS_PTR_IS_PTR(request))
		return;
	rv_list_del(&n->link);
	rv_ucx_ep_sent(ep, !request);
	put_up(am, n, request ? -ECONNRESET : 0);
}

static void open_link(struct rv_ucx_am *am, struct rv_am_link *l)
{
	struct rv_ucx_peer *p = rv_ucx_ep_reach(am->w, l->worker);

	if (p) {
		if (p->am)
			rv_am_lost(p->am);
		p->am = l;
		l->peer = p;
	}
	put_up(am, &l->open, p ? 0 : -EHOSTUNREACH);
}

static void close_link(struct rv_am_link *l)
{
	if (l->peer)
		l->peer->am = NULL;
	l->peer = NULL;
}

void rv_am_lost(struct rv_am_link *l)
{
	close_link(l);
	put_up(l->am, &l->lost, -ECONNRESET);
}

void rv_am_take(struct rv_ucx_am *am, struct rv_am_note *n)
{
	if (!am->w) {
		put_up(am, n, -ESHUTDOWN);
		return;
	}
	switch (n->kind) {
	case RV_AM_OPEN:
		open_link(am, n->l);
		break;
	case RV_AM_SEND:
		send_note(am, n);
		break;
	case RV_AM_CLOSE:
		close_link(n->l);
		put_up(am, n, 0);
		break;
	case RV_AM_RETIRE:
		put_up(am, n, rv_ucx_ep_retire(am->w, n->worker, n->agreed));
		break;
	case RV_AM_KEEP:
		rv_ucx_ep_keep(am->w, n->worker);
		put_up(am, n, 0);
		break;
	default:
		am->deaf = true;
		put_up(am, n, 0);
		break;
	}
}

int rv_am_ask_idle(struct rv_ucx_am *am, uint64_t worker)
{
	struct rv_am_note *n;

	if (!am->conf.events->idle || am->deaf)
		return -ENOTSUP;
	n = malloc(sizeof(*n));
	if (!n)
		return -ENOMEM;
	*n = (struct rv_am_note){.kind = RV_AM_IDLE, .worker = worker};
	put_up(am, n, 0);
	return 0;
}

/* With the worker. */

int rv_am_attach(struct rv_ucx_am *am, struct rv_ucx_worker *w)
{
	ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
	ucs_status_t status = ucp_worker_query(w->ucp, &attr);

	if (status != UCS_OK)
		return rv_ucx_err(status);
	am->header_max = rv_min_u64(attr.max_am_header, HEADER_MAX);
	if (!am->direct) {
		am->up_cell = rv_cell_alloc(am->conf.polling->port);
		if (!am->up_cell)
			return -EAGAIN;
		am->up_cell->run = run_up;
		am->up_cell->done = up_done;
		am->up_cell->ctx = am;
	}
	am->w = w;
	return am->conf.reactor == 0 ? listen_for(am, w->ucp) : 0;
}

void rv_am_detach(struct rv_ucx_am *am)
{
	am->deaf = true;
	am->w = NULL;
}
