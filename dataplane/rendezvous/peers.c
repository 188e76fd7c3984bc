#include "dataplane/rendezvous/peers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/check.h"

void rv_peers_fini(struct rv_peers *d, void (*forget)(struct rv_peer *))
{
	struct rv_peer *p;
	size_t pos = 0;

	while ((p = rv_map64_next(&d->by_worker, &pos))) {
		if (forget)
			forget(p);
		free(p->fabric_addr);
		free(p->verbs_addr);
		free(p);
	}
	rv_map64_fini(&d->by_worker);
}

struct rv_peer *rv_peers_find(const struct rv_peers *d, uint64_t worker)
{
	return rv_map64_get(&d->by_worker, worker);
}

struct rv_peer *rv_peers_get(struct rv_peers *d, uint64_t worker)
{
	struct rv_peer *p = rv_peers_find(d, worker);

	if (p || d->by_worker.nr >= RV_PEERS_MAX)
		return p;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->worker = worker;
	if (rv_map64_put(&d->by_worker, worker, p)) {
		free(p);
		return NULL;
	}
	return p;
}

void rv_peers_del(struct rv_peers *d, struct rv_peer *p)
{
	rv_map64_del(&d->by_worker, p->worker);
	free(p->fabric_addr);
	free(p->verbs_addr);
	free(p);
}

struct rv_peer *rv_peers_next(const struct rv_peers *d, size_t *pos)
{
	return rv_map64_next(&d->by_worker, pos);
}

void rv_peer_workers_add(struct rv_writer *w, const uint8_t *addr, size_t len)
{
	RV_CHECK(len > 0 && len <= UINT16_MAX);
	rv_put_le(w, len, 2);
	rv_put_bytes(w, addr, len);
}

const uint8_t *rv_peer_workers_at(const uint8_t *list, size_t list_len, size_t i, size_t *len)
{
	struct rv_cursor c = rv_cursor(list, list_len);

	while (rv_cursor_left(&c)) {
		size_t n = rv_take_le16(&c);
		const uint8_t *addr = rv_take_bytes(&c, n);

		if (c.bad)
			return NULL;
		if (!i--) {
			*len = n;
			return addr;
		}
	}
	return NULL;
}

size_t rv_peer_workers_nr(const uint8_t *list, size_t list_len)
{
	size_t nr = 0, len;

	while (rv_peer_workers_at(list, list_len, nr, &len))
		nr++;
	return nr;
}

/* @return 1 if it changed, 0 if it did not, -ENOMEM */
static int set_bytes(uint8_t **to, size_t *to_len, const uint8_t *addr, size_t len)
{
	uint8_t *copy = NULL;

	if (*to_len == len && (!len || memcmp(*to, addr, len) == 0))
		return 0;
	if (len) {
		copy = malloc(len);
		if (!copy)
			return -ENOMEM;
		memcpy(copy, addr, len);
	}
	free(*to);
	*to = copy;
	*to_len = len;
	return 1;
}

int rv_peer_set_fabric(struct rv_peer *p, uint64_t incarnation, const uint8_t *addr, size_t len)
{
	int rc = set_bytes(&p->fabric_addr, &p->fabric_addr_len, addr, len);

	if (rc < 0)
		return rc;
	if (p->incarnation != incarnation)
		rc = 1;
	p->incarnation = incarnation;
	return rc;
}

int rv_peer_set_verbs(struct rv_peer *p, const uint8_t *addr, size_t len)
{
	return set_bytes(&p->verbs_addr, &p->verbs_addr_len, addr, len);
}
