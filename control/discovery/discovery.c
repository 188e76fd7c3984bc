#include "control/discovery/discovery.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

struct rv_discovery {
	struct rv_port_thread thread;
	const struct rv_discovery_ops *ops;
	void *backend;
	uint64_t next_ns; /* when our entry is seen to */
	bool failing;     /* it was said that it could not be */
	bool gone;        /* it was withdrawn */
	_Atomic bool
		leaving; /* relaxed: the kick after it orders enough, and a turn later is early enough */
};

/* Said once when it begins, and once when it is over. */
static int see_to_entry(struct rv_discovery *d, char why[RV_DISCOVERY_TEXT])
{
	int rc = d->ops->publish(d->backend, why);

	if (rc && !d->failing)
		rv_log_warn("discovery: this node cannot be found: %s; it is tried again", why);
	else if (!rc && d->failing)
		rv_log_info("discovery: this node can be found again");
	d->failing = rc != 0;
	return rc;
}

static void withdraw(struct rv_discovery *d)
{
	if (!d->gone)
		d->ops->withdraw(d->backend);
	d->gone = true;
}

static int turn(void *user)
{
	struct rv_discovery *d = user;
	uint64_t now = rv_clock_ns();
	char why[RV_DISCOVERY_TEXT] = "";

	if (atomic_load_explicit(&d->leaving, memory_order_relaxed))
		withdraw(d);
	if (d->gone)
		return -1;
	if (now >= d->next_ns) {
		see_to_entry(d, why);
		now = rv_clock_ns();
		d->next_ns = rv_sat_add(now, d->ops->period_ns);
	}
	return (int)rv_min_u64((d->next_ns - now) / RV_MS(1) + 1, INT32_MAX);
}

static void look_up(struct rv_discovery *d, struct rv_msg_find *m)
{
	m->pi = calloc(1, sizeof(*m->pi));
	m->rc = m->pi ? d->ops->find(d->backend, m->worker, m->pi, m->why) : -ENOMEM;
	if (m->rc) {
		free(m->pi);
		m->pi = NULL;
	}
}

void rv_discovery_run_find(struct rv_port *port, struct rv_cell *c)
{
	struct rv_msg_find *m = (void *)c->body;
	struct rv_discovery *d = m->discovery;

	m->why[0] = '\0';
	m->pi = NULL;
	/* relaxed: one look-up more does no harm. */
	if (atomic_load_explicit(&d->thread.stop, memory_order_relaxed)) {
		m->rc = -ESHUTDOWN;
	} else {
		turn(d); /* between two look-ups too: our entry does not wait for the last one */
		look_up(d, m);
	}
	rv_cell_reply(port, c);
}

_Static_assert(sizeof(struct rv_msg_find) <= RV_CELL_BODY, "fits a cell");

unsigned rv_discovery_port(const struct rv_discovery *d)
{
	return rv_port_index(d->thread.port);
}

void rv_discovery_destroy(struct rv_discovery *d)
{
	if (!d)
		return;
	if (d->backend)
		d->ops->close(d->backend);
	free(d);
}

int rv_discovery_start(const struct rv_discovery_conf *conf, struct rv_discovery **out,
		       char why[RV_DISCOVERY_TEXT])
{
	bool file = conf->kind == RV_DISCOVERY_FILE;
	struct rv_discovery *d = calloc(1, sizeof(*d));
	int rc;

	snprintf(why, RV_DISCOVERY_TEXT, "out of memory");
	if (!d)
		return -ENOMEM;
	d->ops = file ? &rv_discovery_file_ops : &rv_discovery_etcd_ops;
	d->backend = file ? rv_discovery_file_open(conf, why) : rv_discovery_etcd_open(conf, why);
	if (!d->backend) {
		rv_discovery_destroy(d);
		return -EINVAL;
	}
	rc = see_to_entry(d, why);
	if (rc && file && rc != -ETIMEDOUT) {
		rv_discovery_destroy(d);
		return rc;
	}
	d->next_ns = rv_sat_add(rv_clock_ns(), d->ops->period_ns);
	d->thread = (struct rv_port_thread){.port = conf->port,
					    .name = "rvd-discovery",
					    .turn = turn,
					    .user = d};
	rc = rv_port_thread_start(&d->thread);
	if (rc) {
		snprintf(why, RV_DISCOVERY_TEXT, "its thread did not start: %s", rv_err_name(rc));
		withdraw(d);
		rv_discovery_destroy(d);
		return rc;
	}
	*out = d;
	return 0;
}

void rv_discovery_leave(struct rv_discovery *d)
{
	if (!d)
		return;
	atomic_store_explicit(&d->leaving, true, memory_order_relaxed);
	rv_port_kick(d->thread.port);
}

void rv_discovery_stop(struct rv_discovery *d)
{
	if (!d)
		return;
	rv_port_thread_stop(&d->thread);
	withdraw(d);
}
