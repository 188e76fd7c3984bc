#include "tests/fake/fake_calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/units.h"
#include "dataplane/rendezvous/descriptor.h"
#include "tests/fake/fake_clock.h"

static struct fake_calls *self(struct rv_peer_calls *pc)
{
	return RV_CONTAINER(pc, struct fake_calls, calls);
}

static struct rv_peer_call *body(struct rv_list *l)
{
	return (void *)RV_LIST_ENTRY(l, struct rv_cell, link)->body;
}

static void arrived(struct rv_port *port, struct rv_cell *cell)
{
	struct rv_peer_call *call = (void *)cell->body;
	struct fake_calls *f = self(call->via);

	(void)port;
	rv_list_push(&f->open, &cell->link);
	f->open_nr++;
	f->started[call->op]++;
	call->sent_ns = fake_now_ns;
}

static void start(struct rv_peer_calls *pc, struct rv_port *from, struct rv_cell *cell)
{
	struct rv_peer_call *call = (void *)cell->body;

	call->via = pc;
	cell->run = arrived;
	rv_cell_send(from, rv_port_index(self(pc)->port), cell);
}

static int cancel(struct rv_peer_calls *pc, struct rv_port *from, struct rv_cell *cell)
{
	struct fake_calls *f = self(pc);
	int rc = fake_next(&f->cancel_rc);

	(void)from;
	assert_int_equal(((struct rv_peer_call *)(void *)cell->body)->op, RV_PEER_PULL);
	if (!rc)
		f->cancels++;
	return rc;
}

static const struct rv_peer_calls_ops ops = {.start = start, .cancel = cancel};

void fake_calls_init(struct fake_calls *f, struct rv_port *port)
{
	*f = (struct fake_calls){.calls = {&ops}, .port = port};
	rv_list_init(&f->open);
}

struct rv_peer_call *fake_calls_find(const struct fake_calls *f, enum rv_peer_op op)
{
	struct rv_list *it;

	RV_LIST_EACH(it, &f->open)
	{
		if (body(it)->op == op)
			return body(it);
	}
	return NULL;
}

struct rv_peer_call *fake_calls_need(const struct fake_calls *f, enum rv_peer_op op)
{
	struct rv_peer_call *call = fake_calls_find(f, op);

	if (!call)
		fail_msg("no call of kind %d was made", (int)op);
	return call;
}

void fake_calls_answer(struct fake_calls *f, struct rv_peer_call *call, int rc)
{
	struct rv_cell *cell = RV_CONTAINER(call, struct rv_cell, body);

	call->rc = rc;
	call->replied_ns = fake_now_ns;
	rv_list_del(&cell->link);
	f->open_nr--;
	rv_cell_reply(f->port, cell);
}

void fake_calls_ready(struct fake_calls *f, struct rv_peer_call *call, uint64_t lease,
		      uint64_t total_len, uint32_t chunk_size, uint32_t chunk_count)
{
	call->answer = RV_ANSWER_READY;
	call->ready.lease_id = lease;
	call->ready.transfer_id = lease + 1000;
	call->ready.total_len = total_len;
	call->ready.chunk_size = chunk_size;
	call->ready.chunk_count = chunk_count;
	fake_calls_answer(f, call, 0);
}

void fake_calls_rdma(struct fake_calls *f, struct rv_peer_call *call, uint64_t lease, uint64_t addr,
		     uint64_t len, uint64_t timeout_ms)
{
	struct rv_writer w = rv_writer(call->rdma.desc, sizeof(call->rdma.desc));
	struct rv_desc d = {
		.backend = RV_BACKEND_UCX,
		.generation = 1,
		.addr = addr,
		.len = len,
		.rkey = (const uint8_t *)"a packed key",
		.rkey_len = 12,
	};

	assert_int_equal(rv_desc_encode(&w, &d), 0);
	call->answer = RV_ANSWER_RDMA;
	call->rdma.lease_id = lease;
	call->rdma.lease_timeout_ms = timeout_ms;
	call->rdma.desc_len = w.len;
	fake_calls_answer(f, call, 0);
}
