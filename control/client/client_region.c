/*
 * Memory of the program's own, registered where it is.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/client/client_impl.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

/* What the daemon needs beyond the wait it was asked for: to unmap, and to find the time for it. */
#define UNMAP_NS RV_SEC(60)

struct rv_region {
	struct rv_client *client;
	uint64_t token;
	uint64_t off, len; /* pinned, in the file */
};

struct rv_region_watch {
	struct rv_client *client;
	struct rv_call *call;
	bool released;
};

int rv_region_register(struct rv_client *c, int fd, uint64_t offset, uint64_t len,
		       struct rv_region **region)
{
	struct rv_client_budget b;
	struct rv_region *g;
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (fd < 0 || !len || !region)
		return rv_client_fail(-EINVAL, "no memfd, no length, or nowhere to put the region");
	g = malloc(sizeof(*g));
	call = g ? rv_client_call(RV_LOCAL_REGION_REGISTER) : NULL;
	if (!call) {
		free(g);
		return rv_client_no_memory();
	}
	b = rv_client_budget_of(c, &rv_client_no_opts);
	call->rq.off = offset;
	call->rq.len = len;
	rc = rv_wire_send_fd(&c->wire, call, fd, b.deadline_ns);
	if (!rc)
		rc = rv_wire_wait(&c->wire, call, b.deadline_ns);
	if (rc) {
		free(g);
		return rv_client_end_failed(c, call, rc);
	}
	*g = (struct rv_region){c, call->rep.token, call->rep.off, call->rep.len};
	rv_call_free(call);
	close(fd);
	*region = g;
	return 0;
}

int rv_register_data_in_region(struct rv_client *c, struct rv_region *region, uint64_t offset,
			       uint64_t len, const struct rv_opts *opts, struct rv_handle *handle)
{
	const struct rv_opts *o = opts ? opts : &rv_client_no_opts;
	struct rv_client_budget b;
	struct rv_call *call;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!region || region->client != c || !handle)
		return rv_client_fail(-EINVAL,
				      "no region of this session, or nowhere to put the handle");
	call = rv_client_call(RV_LOCAL_REGION_STAGE);
	if (!call)
		return -ENOMEM;
	b = rv_client_budget_of(c, o);
	call->rq.token = region->token;
	call->rq.off = offset;
	call->rq.len = len;
	call->rq.ttl_ns = o->ttl_ns;
	call->rq.refs = o->refs;
	call->rq.flags = o->keep ? RV_LOCAL_KEEP : 0;
	rc = rv_client_ask(c, call, NULL, 0, &b);
	if (rc)
		return rc;
	*handle = (struct rv_handle){call->rep.worker, call->rep.local};
	if (o->how)
		*o->how = (struct rv_how){.pinned = call->rep.pinned};
	rv_call_free(call);
	return 0;
}

void rv_region_effective_range(const struct rv_region *region, uint64_t *offset, uint64_t *len)
{
	*offset = region->off;
	*len = region->len;
}

/* @param[out] timed_out  may be NULL */
static int let_go(struct rv_region *region, uint32_t flags, uint64_t timeout_ns, bool *timed_out)
{
	struct rv_client *c = region->client;
	uint64_t deadline = rv_sat_add(rv_sat_add(rv_clock_ns(), timeout_ns), UNMAP_NS);
	struct rv_call *call = rv_client_call(RV_LOCAL_REGION_UNREGISTER);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.token = region->token;
	call->rq.flags = flags;
	call->rq.timeout_ns = timeout_ns;
	rc = rv_wire_send(&c->wire, call, NULL, 0, deadline);
	if (!rc)
		rc = rv_wire_wait(&c->wire, call, deadline);
	if (rc)
		return rv_client_end_failed(c, call, rc);
	if (timed_out)
		*timed_out = call->rep.path;
	rv_call_free(call);
	free(region);
	return 0;
}

int rv_region_unregister(struct rv_region *region, uint64_t timeout_ns, enum rv_deregistered *how)
{
	bool timed_out = false;
	int rc = region ? rv_client_check(region->client) : -EINVAL;

	if (rc)
		return rc == -EINVAL ? rv_client_fail(rc, "no region") : rc;
	rc = let_go(region, 0, timeout_ns, &timed_out);
	if (!rc && how)
		*how = timed_out ? RV_DRAIN_TIMED_OUT : RV_DRAINED;
	return rc;
}

int rv_region_hand_over(struct rv_region *region)
{
	int rc = region ? rv_client_check(region->client) : -EINVAL;

	if (rc)
		return rc == -EINVAL ? rv_client_fail(rc, "no region") : rc;
	return let_go(region, RV_LOCAL_HAND_OVER, 0, NULL);
}

void rv_region_drop(struct rv_region *region)
{
	if (!region)
		return;
	if (rv_client_pid() == region->client->pid)
		rv_wire_post(
			&region->client->wire, RV_LOCAL_REGION_UNREGISTER,
			&(struct rv_local_req){.token = region->token, .flags = RV_LOCAL_DROPPED});
	free(region);
}

int rv_region_watch(struct rv_region *region, struct rv_region_watch **watch)
{
	struct rv_client *c = region ? region->client : NULL;
	struct rv_region_watch *w;
	int rc = c ? rv_client_check(c) : -EINVAL;

	if (rc)
		return c ? rc : rv_client_fail(rc, "no region");
	if (!watch)
		return rv_client_fail(-EINVAL, "nowhere to put the watch");
	w = calloc(1, sizeof(*w));
	if (!w)
		return rv_client_no_memory();
	w->client = c;
	w->call = rv_client_call(RV_LOCAL_REGION_WATCH);
	if (!w->call) {
		free(w);
		return -ENOMEM;
	}
	w->call->rq.token = region->token;
	rc = rv_wire_send(&c->wire, w->call, NULL, 0,
			  rv_client_budget_of(c, &rv_client_no_opts).deadline_ns);
	if (rc) {
		rv_client_end_failed(c, w->call, rc);
		free(w);
		return rc;
	}
	*watch = w;
	return 0;
}

int rv_region_deregistered(struct rv_region_watch *watch, uint64_t timeout_ns)
{
	struct rv_client *c = watch ? watch->client : NULL;
	int rc = c ? rv_client_check(c) : -EINVAL;

	if (rc)
		return c ? rc : rv_client_fail(rc, "no watch");
	if (watch->released)
		return 0;
	rc = rv_wire_wait(&c->wire, watch->call, rv_sat_add(rv_clock_ns(), timeout_ns));
	if (rc == -ETIMEDOUT)
		return rv_client_fail(rc, "the region is still registered");
	if (rc)
		return rv_client_fail(rc, "%s", watch->call->text);
	watch->released = true;
	return 0;
}

void rv_region_watch_free(struct rv_region_watch *watch)
{
	if (!watch)
		return;
	if (rv_client_pid() == watch->client->pid)
		rv_wire_give_up(&watch->client->wire, watch->call);
	free(watch);
}
