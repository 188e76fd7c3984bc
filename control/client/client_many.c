#include "control/client/client_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "dataplane/base/units.h"

/* Gets under way at once. */
#define MANY_WINDOW ((size_t)2 * RV_LOCAL_MANY_MAX)
/* Of one request, so that the results of one are told while others are on their way: three at first. */
#define MANY_GROUP  86u

/** What rv_get_many() is about; refs is NULL when handles are given. */
struct many {
	struct rv_client *c;
	const struct rv_handle *handles;
	const struct rv_ref *refs;
	const struct rv_opts *opts;
	struct rv_client_budget b;
	struct rv_call *call[MANY_WINDOW];
};

static struct rv_handle handle_at(const struct many *m, size_t i)
{
	/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): many_check(), for rv_client_fail() never returns 0 */
	return m->refs ? m->refs[i].handle : m->handles[i];
}

static void many_failed(struct rv_result *res, int rc)
{
	*res = (struct rv_result){.rc = rc};
	snprintf(res->error, sizeof(res->error), "%.*s", (int)sizeof(res->error) - 1,
		 rv_last_error());
}

static bool same_place(const struct many *m, size_t i, size_t k)
{
	return handle_at(m, i).worker == handle_at(m, k).worker &&
	       (!m->refs || (m->refs[i].port == m->refs[k].port &&
			     strcmp(m->refs[i].host, m->refs[k].host) == 0));
}

/* Calls like @first, of the slots from @i on. @return how many: all, or none without memory */
static size_t calls_like(struct many *m, const struct rv_call *first, size_t i, size_t nr)
{
	struct rv_call_group *g = rv_call_group_new(&m->c->wire, first, nr);

	if (!g) {
		rv_client_no_memory();
		return 0;
	}
	for (size_t k = 0; k < nr; k++) {
		g->call[k].rq.local = handle_at(m, i + k).local;
		m->call[(i + k) % MANY_WINDOW] = &g->call[k];
	}
	return nr;
}

/* The calls from @i on that go to one owner, at most @max. @return how many; if they could not be made, one that is NULL */
static size_t make_calls(struct many *m, size_t i, size_t max, struct rv_result *res)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct rv_local_req like = rv_client_get_like(m->opts);
	struct rv_ref ref = m->refs ? m->refs[i] : rv_client_ref(m->handles[i]);
	int rc = rv_client_addresses(m->c, &ref, literal);
	struct rv_call *first = NULL;
	size_t nr = 1;

	if (rc >= 0)
		first = rv_client_call_at(RV_LOCAL_GET, &ref, rc ? literal[0] : NULL, &like);
	if (first) {
		first->rq.timeout_ns = rv_budget_left_ns(&m->b);
		while (nr < max && same_place(m, i, i + nr))
			nr++;
		nr = calls_like(m, first, i, nr);
		rv_call_free(first);
	}
	if (!first || !nr) {
		many_failed(&res[i], rc < 0 ? rc : -ENOMEM);
		m->call[i % MANY_WINDOW] = NULL;
		nr = 1;
	}
	return nr;
}

/* @param max  at most RV_LOCAL_MANY_MAX  @return how many were begun: at least one, at most @max */
static size_t many_start(struct many *m, size_t i, size_t max, struct rv_result *res)
{
	struct rv_call *calls[RV_LOCAL_MANY_MAX];
	size_t made = 0, nr = make_calls(m, i, m->c->takes_many ? max : 1, res);
	int rc = 0;

	while (made < nr && m->call[(i + made) % MANY_WINDOW]) {
		calls[made] = m->call[(i + made) % MANY_WINDOW];
		made++;
	}
	if (made == 1)
		rc = rv_wire_send(&m->c->wire, calls[0], NULL, 0, m->b.deadline_ns);
	else if (made)
		rc = rv_wire_send_many(&m->c->wire, calls, made, m->b.deadline_ns);
	for (size_t k = 0; k < made && rc; k++) {
		many_failed(&res[i + k], rv_client_end_failed(m->c, calls[k], rc));
		m->call[(i + k) % MANY_WINDOW] = NULL;
	}
	return nr;
}

/* The owner's first address led nowhere: try them all, one after another. */
static void many_again(struct many *m, size_t i, struct rv_result *res)
{
	struct rv_ref ref = m->refs[i];
	struct rv_opts o = *m->opts;
	struct rv_result r = {0};

	o.how = &r.how;
	r.rc = rv_get_pinned_at(m->c, &ref, &o, &r.buf, &r.lease);
	if (r.rc)
		many_failed(res, r.rc);
	else
		*res = r;
}

static void many_finish(struct many *m, size_t i, struct rv_result *res)
{
	struct rv_call *call = m->call[i % MANY_WINDOW];
	int rc;

	if (!call)
		return; /* it failed at once */
	rc = rv_wire_wait(&m->c->wire, call, m->b.deadline_ns);
	if (rc)
		rv_client_end_failed(m->c, call, rc);
	else
		rc = rv_client_check_got(m->c, call);
	if (rc == -EHOSTUNREACH && m->refs && m->refs[i].host[0]) {
		many_again(m, i, res);
		return;
	}
	if (rc) {
		many_failed(res, rc);
		return;
	}
	res->rc = 0;
	res->error[0] = '\0';
	res->buf = rv_client_buf(m->c, call);
	res->lease = call->rep.lease_id;
	rv_client_tell_how(&call->rep, &res->how);
	rv_call_free(call);
}

static int get_many(struct many *m, size_t nr, struct rv_result *res)
{
	size_t sent = 0, bad = nr;

	m->b = rv_client_budget_of(m->c, m->opts);
	for (size_t i = 0; i < nr; i++) {
		/* Half of the window at a time: few messages, and the daemon always has some. */
		if (sent <= i + MANY_WINDOW / 2)
			while (sent < nr && sent < i + MANY_WINDOW)
				sent += many_start(
					m, sent,
					rv_min_u64(MANY_GROUP,
						   rv_min_u64(nr, i + MANY_WINDOW) - sent),
					res);
		many_finish(m, i, &res[i]);
		if (res[i].rc && bad == nr)
			bad = i;
	}
	return bad == nr ? 0 : rv_client_fail(res[bad].rc, "%s", res[bad].error);
}

static int many_check(const struct rv_client *c, const void *what, size_t nr,
		      const struct rv_result *res)
{
	int rc = rv_client_check(c);

	if (!rc && nr && (!what || !res))
		rc = rv_client_fail(-EINVAL, "no handles, or nowhere to put the results");
	return rc;
}

int rv_get_many(struct rv_client *c, const struct rv_handle *handles, size_t nr,
		const struct rv_opts *opts, struct rv_result *res)
{
	struct many m = {.c = c, .handles = handles, .opts = opts ? opts : &rv_client_no_opts};
	int rc = many_check(c, handles, nr, res);

	return rc ? rc : get_many(&m, nr, res);
}

int rv_get_many_at(struct rv_client *c, const struct rv_ref *refs, size_t nr,
		   const struct rv_opts *opts, struct rv_result *res)
{
	struct many m = {.c = c, .refs = refs, .opts = opts ? opts : &rv_client_no_opts};
	int rc = many_check(c, refs, nr, res);

	return rc ? rc : get_many(&m, nr, res);
}
