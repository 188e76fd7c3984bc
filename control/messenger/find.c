/*
 * Nodes that are not known here and may be found where nodes are looked up:
 *
 *   find --known, or nowhere to look--> done
 *     '--> waits --found--> a peer like any other --> done
 *                '--no such node, deadline, stop----> done
 *
 * One question for each node, however many wait for it, and until it is answered: who waits may have given up by then,
 * and who comes later waits for the same answer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "control/messenger/messenger_impl.h"
#include "dataplane/base/err.h"

/* That wait at once: a local program's mistake must not become a flood. */
#define FINDS_MAX     4096u
/*
 * Questions that are out. Each holds one of the net core's 4096 cells, and those of nodes nobody has heard of must not
 * take them all while the answers are slow in coming.
 */
#define QUESTIONS_MAX 1024u

struct find {
	struct rv_list link;
	uint64_t worker;
	struct rv_task deadline;
	void (*done)(void *ctx, const struct rv_connect_result *r);
	void *ctx;
};

static void finish(struct rv_messenger *m, struct find *f, int rc, const char *why)
{
	struct rv_connect_result r = {.rc = rc, .worker = f->worker, .told = !rc, .why = why};
	struct find copy = *f;

	rv_task_cancel(m->reactor, &f->deadline);
	rv_list_del(&f->link);
	m->finds_nr--;
	free(f);
	copy.done(copy.ctx, &r);
}

static void late(struct rv_reactor *r, struct rv_task *t)
{
	finish(rv_port_user(r->port), RV_CONTAINER(t, struct find, deadline), -ETIMEDOUT,
	       "where the owner is was not found out in time");
}

static bool is_known(struct rv_messenger *m, uint64_t worker)
{
	struct rv_peer *p = rv_peers_find(&m->peers, worker);

	return p && rv_route_of(m, p);
}

/* That the question is out. @return 0, -EAGAIN or -ENOMEM */
static int ask(struct rv_messenger *m, uint64_t worker)
{
	if (rv_map64_get(&m->sought, worker))
		return 0;
	if (m->sought.nr == QUESTIONS_MAX)
		return -EAGAIN;
	if (rv_map64_put(&m->sought, worker, m))
		return -ENOMEM;
	if (m->conf.find(m->conf.find_user, worker)) {
		rv_map64_del(&m->sought, worker);
		return -EAGAIN;
	}
	return 0;
}

static int begin(struct rv_messenger *m, const struct find *like, uint64_t deadline_ns)
{
	struct find *f;
	int rc;

	if (m->finds_nr == FINDS_MAX)
		return -EAGAIN;
	f = malloc(sizeof(*f));
	rc = f ? ask(m, like->worker) : -ENOMEM;
	if (rc) {
		free(f);
		return rc;
	}
	*f = *like;
	rv_list_init(&f->link);
	rv_list_push(&m->finds, &f->link);
	m->finds_nr++;
	rv_task_at(m->reactor, &f->deadline, deadline_ns);
	return 0;
}

void rv_messenger_find(struct rv_messenger *m, uint64_t worker, uint64_t deadline_ns,
		       void (*done)(void *ctx, const struct rv_connect_result *r), void *ctx)
{
	struct rv_connect_result r = {.worker = worker, .told = true, .why = ""};
	struct find like = {.worker = worker, .deadline = {.fn = late}, .done = done, .ctx = ctx};

	if (m->conf.find && !m->stopped && !is_known(m, worker)) {
		r.rc = begin(m, &like, deadline_ns);
		if (!r.rc)
			return;
		r.why = rv_err_name(r.rc);
	}
	done(ctx, &r);
}

static int take(struct rv_messenger *m, uint64_t worker, const struct rv_peer_info *pi,
		const char **why)
{
	uint64_t told = 0;
	int rc = rv_worker_id(pi->instance) == worker ? 0 : -EPROTO;

	*why = "another node's";
	return rc ? rc : rv_messenger_add_peer(m, pi, NULL, &told, why);
}

void rv_messenger_found(struct rv_messenger *m, uint64_t worker, int rc,
			const struct rv_peer_info *pi, const char *why)
{
	struct rv_list *it, *next, now;
	const char *wrong = NULL;
	char text[256] = "";

	rv_map64_del(&m->sought, worker);
	if (!rc)
		rc = take(m, worker, pi, &wrong);
	if (rc == -ENOENT)
		snprintf(
			text, sizeof(text),
			"the owner (worker %" PRIu64
			") is not known here, and nothing of it is found where nodes are looked up (discovery)",
			worker);
	else if (rc)
		snprintf(text, sizeof(text),
			 "the owner (worker %" PRIu64 ") cannot be looked up: %s", worker,
			 wrong ? wrong : why);
	if (rc)
		rc = rc == -ENOMEM ? rc : -EHOSTUNREACH;
	rv_list_init(&now);
	RV_LIST_EACH_SAFE(it, next, &m->finds)
	{
		if (RV_LIST_ENTRY(it, struct find, link)->worker != worker)
			continue;
		rv_list_del(it);
		rv_list_push(&now, it);
	}
	while (!rv_list_empty(&now))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		finish(m, RV_LIST_ENTRY(now.next, struct find, link), rc, text);
}

void rv_finds_stop(struct rv_messenger *m)
{
	while (!rv_list_empty(&m->finds))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is off the list */
		finish(m, RV_LIST_ENTRY(m->finds.next, struct find, link), -ESHUTDOWN,
		       "this node is shutting down");
}
