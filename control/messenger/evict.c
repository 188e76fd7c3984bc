/*
 * Room for more peers, where as many are known as may be: who is nobody's name and has nothing under way goes, and is
 * learned again when it says hello or is asked for. First of all those that were never asked for anything.
 */
#include <stdlib.h>

#include "control/messenger/messenger_impl.h"
#include "dataplane/base/check.h"

/* How many are looked at for one that was never asked for anything, before one that was may go. */
#define LOOK 256u

/* @return whether some engine has one of them still */
static bool forget_addresses(struct rv_peer *p)
{
	bool ucx = rv_peer_set_fabric(p, 0, NULL, 0) == 1;
	bool verbs = rv_peer_set_verbs(p, NULL, 0) == 1;

	return ucx || verbs || p->fabric_untold;
}

/* What it was told of our incarnation must not be forgotten while it is alive, and nobody knows whether it is. */
static bool may_go(const struct rv_peer *p)
{
	const struct rv_route *r = p->link;

	return !p->name[0] && !p->own_incarnation && (!r || rv_route_is_idle(r));
}

/* @return false: it stays, for an engine would never hear that it is gone */
static bool forget(struct rv_messenger *m, struct rv_peer *p)
{
	if (forget_addresses(p) && !rv_messenger_tell_fabric(m, p))
		return false;
	rv_route_free(m, p);
	rv_peers_del(&m->peers, p);
	return true;
}

/* The next one of all, in a circle. The map may have changed since. */
static struct rv_peer *next(const struct rv_map64 *map, size_t *pos)
{
	struct rv_peer *p = rv_map64_next(map, pos);

	if (p)
		return p;
	*pos = 0;
	return rv_map64_next(map, pos);
}

bool rv_messenger_evict_peer(struct rv_messenger *m)
{
	struct rv_peer *routed = NULL;
	size_t nr = m->stopped ? 0 : m->peers.by_worker.nr; /* no records go while all are walked */

	for (size_t i = 0; i < 2 * nr; i++) {
		struct rv_peer *p = next(&m->peers.by_worker, &m->evict_pos);

		if (may_go(p) && !p->link && forget(m, p))
			return true;
		if (!routed && may_go(p) && p->link)
			routed = p;
		if (i < LOOK || !routed)
			continue;
		if (forget(m, routed))
			return true;
		routed = NULL;
	}
	return routed && forget(m, routed);
}

bool rv_messenger_evict_unknown(struct rv_messenger *m)
{
	size_t nr = m->stopped ? 0 : m->unknown.nr;

	for (size_t i = 0; i < 2 * nr; i++) {
		struct rv_peer *p = next(&m->unknown, &m->evict_unknown_pos);

		if (!may_go(p))
			continue;
		RV_CHECK(rv_map64_del(&m->unknown, rv_route_unknown_key(p->host, p->port)) == p);
		rv_route_free(m, p);
		free(p);
		return true;
	}
	return false;
}
