/*
 * The start-up self-check: the whole path once, with ourselves as the peer. It uses the fabric as any caller
 * would, so it also proves open, map, wire-up, completion, quiesce and close.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "ucx/context.h"
#include "ucx/ep.h"
#include "ucx/rkey_parse.h"

#define LEN     RV_KIB(64)
#define SELF    1u /* a WorkerId for ourselves; nobody else is here */
#define LANES   16
#define PENDING 1 /* not an errno */

struct check {
	struct rv_fabric *f;
	struct rv_poller *poller;
	uint64_t deadline_ns;
	char *why;
	uint8_t *pages; /* what is read, then what is written */
	struct rv_fabric_map *source;
	struct rv_fabric_map *destination;
	struct rv_fabric_get get;
	int rc; /* of the GET */
};

static int fail(struct check *c, int rc, const char *what)
{
	snprintf(c->why, RV_UCX_WHY, "self-check: %s: %s", what, rv_err_name(rc));
	return rc;
}

/* Poll once. @return false: the time is up. */
static bool step(struct check *c)
{
	uint64_t now = rv_clock_ns();

	c->poller->ops->poll(c->poller, now);
	return now < c->deadline_ns;
}

static int map_pages(struct check *c)
{
	const struct rv_fabric_ops *ops = c->f->ops;
	int rc;

	c->pages = aligned_alloc(RV_GRANULE, 2 * LEN);
	if (!c->pages)
		return fail(c, -ENOMEM, "pages");
	rv_random_bytes(c->pages, LEN);
	memset(c->pages + LEN, 0, LEN);
	rc = ops->map(c->f, c->pages, LEN, RV_MAP_SOURCE, &c->source);
	if (!rc)
		rc = ops->map(c->f, c->pages + LEN, LEN, RV_MAP_DESTINATION, &c->destination);
	return rc ? fail(c, rc, "memory cannot be mapped") : 0;
}

/* The parser must need every byte UCX wrote: a layout that it does not know would leave some over. */
static int check_key(struct check *c)
{
	const struct rv_fabric_map *m = c->source;

	if (rv_rkey_parse(m->key, m->key_len, true) != RV_RKEY_OK ||
	    rv_rkey_parse(m->key, m->key_len - 1, true) == RV_RKEY_OK)
		return fail(c, -ENOTSUP, "the packed key has a layout that is not known here");
	return 0;
}

static int reach(struct check *c)
{
	uint8_t addr[RV_UCX_ADDR_MAX];
	const struct rv_fabric_peer p = {
		.worker = SELF,
		.incarnation = 1,
		.addr = addr,
		.addr_len = c->f->ops->address(c->f, 0, addr, sizeof(addr)),
	};
	enum rv_peer_state state;
	int rc = c->f->ops->peer_up(c->f, 0, &p);

	if (rv_addr_form_of(addr, p.addr_len) == RV_ADDR_NONE)
		rv_log_warn(
			"ucx: worker addresses have a layout that is not known here: those of peers go "
			"unchecked");

	if (rc)
		return fail(c, rc, "our own address is refused");
	do {
		state = c->f->ops->peer_state(c->f, 0, SELF);
		if (state == RV_PEER_UP)
			return 0;
		if (state == RV_PEER_FAILED)
			return fail(c, -EHOSTUNREACH, "our own worker cannot be reached");
	} while (step(c));
	return fail(c, -ETIMEDOUT, "our own worker does not answer");
}

static void on_done(struct rv_fabric_get *g, int rc)
{
	struct check *c = g->ctx;

	c->rc = rc;
}

static int read_back(struct check *c)
{
	int rc;

	c->rc = PENDING;
	c->get = (struct rv_fabric_get){
		.worker = SELF,
		.remote_addr = (uintptr_t)c->pages,
		.len = LEN,
		.key = c->source->key,
		.key_len = c->source->key_len,
		.local = c->pages + LEN,
		.local_map = c->destination,
		.done = on_done,
		.ctx = c,
	};
	rc = c->f->ops->get(c->f, 0, &c->get);
	if (rc)
		return fail(c, rc, "a GET cannot be posted");
	while (c->rc == PENDING) {
		if (!step(c))
			return fail(c, -ETIMEDOUT, "a GET does not complete");
	}
	if (c->rc)
		return fail(c, c->rc, "a GET failed");
	if (memcmp(c->pages, c->pages + LEN, LEN) != 0)
		return fail(c, -EIO, "a GET brought wrong bytes");
	return 0;
}

static bool is_helper(const char *transport)
{
	return strncmp(transport, "ud", 2) == 0;
}

/* "ucx rc_verbs rxe0:1" or, where the device depends on the peer, "ucx tcp". */
static void name_path(struct check *c)
{
	ucp_transport_entry_t lane[LANES];
	ucp_ep_attr_t attr = {
		.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
		.transports = {.entries = lane,
			       .num_entries = LANES,
			       .entry_size = sizeof(lane[0])},
	};
	struct rv_ucx_ep *ep = rv_ucx_ep_up(((struct rv_ucx *)c->f)->worker[0], SELF);
	char *name = c->f->path_name;
	size_t cap = sizeof(c->f->path_name);
	unsigned i = 0;

	snprintf(name, cap, "ucx");
	if (!ep || ucp_ep_query(ep->ucp, &attr) != UCS_OK || attr.transports.num_entries == 0)
		return;
	while (i + 1 < attr.transports.num_entries && is_helper(lane[i].transport_name))
		i++;
	if (c->f->native)
		snprintf(name, cap, "ucx %s %s", lane[i].transport_name, lane[i].device_name);
	else
		snprintf(name, cap, "ucx %s", lane[i].transport_name);
}

static int run(struct check *c)
{
	int rc = map_pages(c);

	if (!rc)
		rc = check_key(c);
	if (!rc)
		rc = reach(c);
	if (!rc)
		rc = read_back(c);
	if (!rc)
		name_path(c);
	return rc;
}

/* Unmap before the pages are freed; what cannot be unmapped keeps its pages. */
static void clean_up(struct check *c)
{
	int rc = 0;

	c->f->ops->close_reactor(c->f, 0);
	if (c->source)
		rc |= c->f->ops->unmap(c->f, c->source);
	if (c->destination)
		rc |= c->f->ops->unmap(c->f, c->destination);
	if (!rc)
		free(c->pages);
}

int rv_ucx_self_check(struct rv_fabric *f, uint64_t deadline_ns, char *why)
{
	struct check c = {.f = f, .why = why, .deadline_ns = rv_clock_ns() + deadline_ns};
	int rc = f->ops->open_reactor(f, 0, &c.poller);

	if (rc)
		return fail(&c, rc, "no worker can be made");
	rc = run(&c);
	clean_up(&c);
	return rc;
}
