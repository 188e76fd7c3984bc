/*
 * ucx_am_fixture.h - two nodes in one process over tcp, stepped by one thread: `a` and `b` send each other frames,
 * with one reactor in both roles or with two.
 */
#ifndef RV_TESTS_UNIT_UCX_AM_FIXTURE_H
#define RV_TESTS_UNIT_UCX_AM_FIXTURE_H

#include "ucx/am.h"

#include <ucp/api/ucp.h>

#include "dataplane/base/bytes.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"
#include "ucx/am_impl.h"
#include "ucx/context.h"
#include "ucx/ep.h"
#include "ucx/fabric_ucx.h"

#define EAGER   RV_MIB(1)
#define LIMIT   RV_SEC(20)
#define FRAMES  512u
#define PENDING 1

struct seen {
	unsigned type;
	size_t header_len, payload_len;
	uint8_t header[64]; /* its start */
	uint64_t hash;      /* of all of the payload */
};

struct node {
	uint64_t worker, incarnation;
	struct rv_fabric *f;
	struct rv_mesh *mesh;
	struct rv_reactor net, polling;
	bool apart, net_stands;
	struct rv_ucx_am *am;
	struct rv_poller *poller;

	struct rv_link *common;
	struct seen seen[FRAMES];
	unsigned seen_nr, connected, closed;
	int connected_rc, closed_rc;
	bool refuses;
	unsigned idle, retired; /* how often it was asked, and told */
	uint64_t idle_worker;
	int retired_rc;
};

struct conf {
	bool apart;
	unsigned version;
};

static struct node a, b;
static unsigned version;
static uint64_t skew_ns; /* what tests added to the time */

static inline uint64_t node_clock(void)
{
	return rv_clock_ns() + skew_ns;
}

/* What the carrier tells. */

static inline struct node *of(void *user)
{
	return user;
}

static inline bool on_opened(void *user, struct rv_link *l)
{
	of(user)->common = l;
	return true;
}

static inline void on_connected(void *user, struct rv_link *l, int rc)
{
	(void)l;
	of(user)->connected++;
	of(user)->connected_rc = rc;
}

static inline uint64_t hash(const uint8_t *p, size_t len)
{
	uint64_t h = 0xcbf29ce484222325;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001b3;
	return h;
}

static inline void on_frame(void *user, struct rv_link *l, const struct rv_frame *f)
{
	struct node *n = user;
	struct seen *s = &n->seen[n->seen_nr++];

	assert_ptr_equal(l, n->common);
	assert_true(n->seen_nr < FRAMES && !f->placed);
	*s = (struct seen){.type = f->type,
			   .header_len = f->header_len,
			   .payload_len = f->payload_len,
			   .hash = hash(f->payload, f->payload_len)};
	memcpy(s->header, f->header, rv_min_u64(f->header_len, sizeof(s->header)));
}

static inline void on_drained(void *user, struct rv_link *l)
{
	(void)user;
	(void)l;
}

static inline void on_closed(void *user, struct rv_link *l, int rc)
{
	struct node *n = user;

	if (l == n->common) {
		n->common = NULL;
		return;
	}
	n->closed++;
	n->closed_rc = rc;
}

static inline void on_idle(void *user, struct rv_carrier *c, uint64_t worker)
{
	assert_ptr_equal(c, rv_ucx_am_carrier(of(user)->am));
	of(user)->idle++;
	of(user)->idle_worker = worker;
}

static inline void on_retired(void *user, void *ctx, int rc)
{
	assert_ptr_equal(ctx, user);
	of(user)->retired++;
	of(user)->retired_rc = rc;
}

static const struct rv_carrier_events events = {
	.opened = on_opened,
	.connected = on_connected,
	.frame = on_frame,
	.drained = on_drained,
	.idle = on_idle,
	.retired = on_retired,
	.closed = on_closed,
};

static inline bool refuses(void *user, const uint8_t *header, size_t len)
{
	(void)header;
	(void)len;
	return of(user)->refuses;
}

/* Nodes. */

static inline struct rv_reactor *polling(struct node *n)
{
	return n->apart ? &n->polling : &n->net;
}

static inline void start(struct node *n, uint64_t worker, bool apart)
{
	char why[RV_UCX_WHY] = "";
	const struct rv_ucx_conf fc = {.mode = RV_UCX_YES,
				       .tls = "tcp",
				       .reactors = apart ? 2 : 1,
				       .why = why};
	struct rv_ucx_am_conf ac = {.events = &events,
				    .user = n,
				    .blob_version = version,
				    .eager_max = EAGER,
				    .refuses = refuses};

	memset(n, 0, sizeof(*n));
	n->worker = worker;
	n->incarnation = ac.incarnation = worker * 0x0101010101010101;
	n->apart = apart;
	if (rv_ucx_create(&fc, &n->f))
		fail_msg("rv_ucx_create: %s", why);
	n->mesh = rv_mesh_create(2, 16);
	/* The fabric's reactor 0 is that of port 0; the net core's is port 1, where it is another. */
	rv_reactor_init(&n->net, &(struct rv_reactor_conf){.port = rv_mesh_port(n->mesh, apart),
							   .clock = node_clock});
	if (apart)
		rv_reactor_init(&n->polling,
				&(struct rv_reactor_conf){.port = rv_mesh_port(n->mesh, 0),
							  .clock = node_clock});
	ac.net = &n->net;
	ac.polling = polling(n);
	assert_int_equal(rv_ucx_am_create(n->f, &ac, &n->am), 0);
	assert_int_equal(n->f->ops->open_reactor(n->f, 0, &n->poller), 0);
	assert_int_equal(rv_reactor_add(polling(n), n->poller), 0);
	assert_int_equal(rv_ucx_am_start(n->am), 0);
}

static inline void step(void)
{
	struct node *nodes[] = {&a, &b};

	for (unsigned i = 0; i < 2; i++) {
		if (!nodes[i]->f)
			continue;
		if (nodes[i]->apart)
			rv_reactor_step(&nodes[i]->polling);
		if (!nodes[i]->net_stands)
			rv_reactor_step(&nodes[i]->net);
	}
}

/* Step both until @cond, but not for ever. */
#define STEP_UNTIL(cond)                                       \
	do {                                                   \
		uint64_t limit_ = rv_clock_ns() + LIMIT;       \
		while (!(cond)) {                              \
			step();                                \
			if (rv_clock_ns() > limit_)            \
				fail_msg("no end: %s", #cond); \
		}                                              \
	} while (0)

/* Long enough for what must not come. */
static inline void step_a_while(void)
{
	uint64_t until = rv_clock_ns() + RV_MS(50);

	while (rv_clock_ns() < until)
		step();
}

static inline void stop(struct node *n)
{
	STEP_UNTIL(rv_ucx_am_close_all(n->am) == 0);
	assert_null(n->common);
	assert_int_equal(rv_ucx_am_queued(n->am), 0);
	STEP_UNTIL(n->f->ops->quiesce(n->f, 0) == 0);
	n->f->ops->close_reactor(n->f, 0);
	n->f->ops->destroy(n->f);
	n->f = NULL;
	rv_ucx_am_destroy(n->am);
	rv_mesh_destroy(n->mesh);
}

static inline int setup(void **state)
{
	const struct conf *c = *state;

	version = c->version;
	start(&a, 0xaa, c->apart);
	start(&b, 0xbb, c->apart);
	return 0;
}

static inline int finish(void **state)
{
	(void)state;
	stop(&a);
	stop(&b);
	return 0;
}

/* @from learns of @to under @incarnation. */
static inline void introduce_as(struct node *from, struct node *to, uint64_t incarnation)
{
	uint8_t addr[2048];
	struct rv_fabric_peer p = {.worker = to->worker, .incarnation = incarnation, .addr = addr};

	p.addr_len = to->f->ops->address(to->f, 0, addr, sizeof(addr));
	assert_int_equal(from->f->ops->peer_up(from->f, 0, &p), 0);
}

static inline struct rv_link *reach_with(struct node *from, struct node *to, uint32_t frame_max)
{
	struct rv_carrier *c = rv_ucx_am_carrier(from->am);
	struct rv_link *l = c->ops->reach(c, to->worker, 0, frame_max, NULL);
	unsigned before = from->connected;

	assert_non_null(l);
	STEP_UNTIL(from->connected == before + 1);
	return l;
}

static inline struct rv_link *reach(struct node *from, struct node *to)
{
	struct rv_link *l;

	introduce_as(from, to, to->incarnation);
	l = reach_with(from, to, RV_MIB(16));
	assert_int_equal(from->connected_rc, 0);
	return l;
}

static inline uint8_t *bytes(size_t len, unsigned seed)
{
	uint8_t *p = malloc(len ? len : 1);

	assert_non_null(p);
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(i * 131 + (i >> 8) * 31 + seed);
	return p;
}

static inline void put(struct rv_link *l, unsigned type, size_t header_len, size_t len)
{
	uint8_t *h = bytes(header_len, type), *p = bytes(len, 1);

	assert_int_equal(l->ops->send(l, type, h, header_len, p, len, NULL, NULL), 0);
	free(h);
	free(p);
}

static inline void expect(struct node *n, unsigned at, unsigned type, size_t header_len, size_t len)
{
	uint8_t *h = bytes(header_len, type), *p = bytes(len, 1);
	const struct seen *s = &n->seen[at];

	STEP_UNTIL(n->seen_nr > at);
	assert_int_equal(s->type, type);
	assert_int_equal(s->header_len, header_len);
	assert_int_equal(s->payload_len, len);
	assert_memory_equal(s->header, h, rv_min_u64(header_len, sizeof(s->header)));
	assert_int_equal(s->hash, hash(p, len));
	free(h);
	free(p);
}

static inline struct rv_ucx_worker *worker_of(const struct node *n)
{
	return ((struct rv_ucx *)n->f)->worker[0];
}

/* Every test runs in several set-ups. */
static const struct conf together2 = {false, 2}, apart2 = {true, 2}, together1 = {false, 1};

#define TEST(t, c)                                                          \
	{                                                                   \
#t " (" #c ")", t, setup, finish, (void *)(uintptr_t) & (c) \
	}
#define EVERY(t) TEST(t, together2), TEST(t, apart2), TEST(t, together1)
#define BOTH(t)  TEST(t, together2), TEST(t, apart2)

#endif
