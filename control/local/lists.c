#include "control/local/lists.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "control/json/peer_info.h"
#include "control/local/session_impl.h"
#include "dataplane/base/units.h"

/* Entries of one reactor, and text after which no further reactor is asked: a reply has an end. */
#define LIST_MAX   4096u
#define LIST_BYTES (RV_LOCAL_PAYLOAD_MAX / 4)

/* One list being gathered over the engines. */
struct gather {
	struct session *s;
	struct rv_local_req rq;
	struct rv_json_out out;
	unsigned next; /* engine */
	uint64_t total, shown, resting;
	void *array;
};

static void put(struct rv_json_out *o, const char *key, uint64_t v)
{
	rv_json_out_key(o, key);
	rv_json_out_u64(o, v);
}

static void put_ns(struct rv_json_out *o, const char *key, uint64_t ns)
{
	rv_json_out_key(o, key);
	if (ns == RV_NEVER)
		rv_json_out_null(o);
	else
		rv_json_out_double(o, (double)ns / 1e9);
}

static void put_str(struct rv_json_out *o, const char *key, const char *v)
{
	rv_json_out_key(o, key);
	rv_json_out_str(o, v);
}

static void put_bool(struct rv_json_out *o, const char *key, bool v)
{
	rv_json_out_key(o, key);
	rv_json_out_bool(o, v);
}

static void put_handle(struct rv_json_out *o, const char *key, uint64_t worker, uint64_t local)
{
	char text[RV_HANDLE_TEXT];

	rv_handle_format_text((struct rv_handle){worker, local}, text);
	put_str(o, key, text);
}

static void put_worker(struct rv_json_out *o, const char *key, uint64_t worker)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, worker);
	put_str(o, key, text); /* text: scripts read numbers as doubles */
}

static void put_slots(struct gather *g, const struct rv_msg_list *m)
{
	for (size_t i = 0; i < m->nr; i++) {
		const struct rv_slot_info *s = &m->out.slot[i];

		rv_json_out_object(&g->out);
		put_handle(&g->out, "handle", g->s->local->conf.worker, s->id);
		put(&g->out, "bytes", s->len);
		put(&g->out, "refcount", s->refcount);
		put(&g->out, "leases", s->locks);
		put_bool(&g->out, "pinned", s->pinned);
		put(&g->out, "uid", s->uid);
		put_ns(&g->out, "ttl_left_s", s->ttl_left_ns);
		rv_json_out_object_end(&g->out);
	}
}

static void put_leases(struct gather *g, const struct rv_msg_list *m)
{
	for (size_t i = 0; i < m->nr; i++) {
		const struct rv_lease_info *l = &m->out.lease[i];

		rv_json_out_object(&g->out);
		put_worker(&g->out, "lease", l->id);
		put_handle(&g->out, "handle", g->s->local->conf.worker, l->slot);
		put_str(&g->out, "kind", rv_lease_kind_name(l->kind));
		put_worker(&g->out, "consumer", l->worker);
		if (l->fence)
			put_str(&g->out, "fence", l->fence);
		put_ns(&g->out, "age_s", l->age_ns);
		put_ns(&g->out, "left_s", l->left_ns);
		rv_json_out_object_end(&g->out);
	}
}

static void put_arenas(struct gather *g, const struct rv_msg_list *m)
{
	for (size_t i = 0; i < m->nr; i++) {
		const struct rv_arena_info *a = &m->out.arena[i];

		rv_json_out_object(&g->out);
		put(&g->out, "arena", a->id);
		put(&g->out, "core", m->engine->conf.shard);
		put_str(&g->out, "kind", rv_arena_kind_name(a->kind));
		put(&g->out, "uid", a->uid);
		put_bool(&g->out, "registered", a->registered);
		put_bool(&g->out, "dedicated", a->dedicated);
		put(&g->out, "bytes", a->len);
		put(&g->out, "used", a->used);
		put(&g->out, "largest_free", a->largest_free);
		put(&g->out, "blocks", a->blocks);
		rv_json_out_object_end(&g->out);
	}
}

static void put_regions(struct gather *g, const struct rv_msg_list *m)
{
	for (size_t i = 0; i < m->nr; i++) {
		const struct rv_arena_info *a = &m->out.arena[i];

		rv_json_out_object(&g->out);
		put(&g->out, "region", a->id);
		put(&g->out, "core", m->engine->conf.shard);
		put(&g->out, "uid", a->uid);
		put(&g->out, "session", a->session);
		put_str(&g->out, "state", a->state);
		put_bool(&g->out, "registered", a->registered);
		put(&g->out, "bytes", a->used);
		put(&g->out, "pinned_bytes", a->len);
		put(&g->out, "in_flight", a->blocks);
		rv_json_out_object_end(&g->out);
	}
}

static void put_endpoints(struct gather *g, const struct rv_msg_list *m)
{
	static const char *const states[] = {"unknown", "wiring", "up", "failed"};
	const struct rv_local *local = g->s->local;

	for (size_t i = 0; i < m->nr; i++) {
		const struct rv_endpoint_info *e = &m->out.endpoint[i];
		const struct rv_peer *p =
			rv_peers_find(rv_messenger_peers(local->conf.messenger), e->ep.worker);

		rv_json_out_object(&g->out);
		put_str(&g->out, "peer", p ? p->name : "");
		put_worker(&g->out, "worker", e->ep.worker);
		put(&g->out, "core", m->engine->conf.shard);
		put_str(&g->out, "state", states[e->ep.state]);
		put_str(&g->out, "path", local->conf.path_name(local->conf.user, e->fabric));
		/* Without a native lane the owner's software answers each GET. */
		put_bool(&g->out, "emulated", !e->native);
		put(&g->out, "gets", e->ep.gets);
		put(&g->out, "sends", e->ep.sends);
		put_ns(&g->out, "idle_s", e->ep.idle_ns);
		put_worker(&g->out, "incarnation", e->ep.incarnation);
		rv_json_out_object_end(&g->out);
	}
}

static void finish(struct gather *g)
{
	struct session *s = g->s;
	struct rv_local_rep rep = {.id = g->rq.id};

	rv_json_out_array_end(&g->out);
	put(&g->out, "total", g->total);
	put(&g->out, "shown", g->shown);
	if (g->rq.what == RV_LOCAL_LIST_ARENAS)
		put(&g->out, "resting_blocks", g->resting);
	rv_json_out_object_end(&g->out);
	if (g->out.bad)
		rv_session_refuse(s, &g->rq, RV_LOCAL_LIST, -ENOMEM, "out of memory");
	else
		rv_session_reply(s, &rep, RV_LOCAL_LIST, g->out.buf, g->out.len, -1);
	rv_json_out_fini(&g->out);
	free(g->array);
	free(g);
	s->local->pending--;
	rv_session_drop(s);
}

static void listed(struct rv_port *port, struct rv_cell *c);

static void ask_next(struct gather *g)
{
	const struct rv_engines *set = g->s->local->conf.engines;
	struct rv_port *port = g->s->local->conf.reactor->port;
	bool more = g->next < set->nr && g->out.len < LIST_BYTES;
	struct rv_cell *c = more ? rv_cell_alloc(port) : NULL;
	struct rv_msg_list *m;

	if (!c) {
		finish(g);
		return;
	}
	m = (void *)c->body;
	*m = (struct rv_msg_list){.engine = set->engine[g->next++], .max = LIST_MAX};
	m->out.slot = g->array;
	m->what = g->rq.what == RV_LOCAL_LIST_SLOTS     ? RV_LIST_SLOTS
		  : g->rq.what == RV_LOCAL_LIST_LEASES  ? RV_LIST_LEASES
		  : g->rq.what == RV_LOCAL_LIST_ARENAS  ? RV_LIST_ARENAS
		  : g->rq.what == RV_LOCAL_LIST_REGIONS ? RV_LIST_REGIONS
							: RV_LIST_ENDPOINTS;
	c->ctx = g;
	c->run = rv_engine_run_list;
	c->done = listed;
	rv_engine_send(port, m->engine, c);
}

static void listed(struct rv_port *port, struct rv_cell *c)
{
	struct gather *g = c->ctx;
	const struct rv_msg_list *m = (void *)c->body;

	g->total += m->total;
	g->shown += m->nr;
	g->resting += m->resting_blocks;
	if (m->what == RV_LIST_SLOTS)
		put_slots(g, m);
	else if (m->what == RV_LIST_LEASES)
		put_leases(g, m);
	else if (m->what == RV_LIST_ARENAS)
		put_arenas(g, m);
	else if (m->what == RV_LIST_REGIONS)
		put_regions(g, m);
	else
		put_endpoints(g, m);
	rv_cell_free(port, c);
	ask_next(g);
}

static size_t entry_size(uint32_t what)
{
	if (what == RV_LOCAL_LIST_SLOTS)
		return sizeof(struct rv_slot_info);
	if (what == RV_LOCAL_LIST_ENDPOINTS)
		return sizeof(struct rv_endpoint_info);
	return what == RV_LOCAL_LIST_LEASES ? sizeof(struct rv_lease_info)
					    : sizeof(struct rv_arena_info);
}

static void gather(struct session *s, const struct rv_local_req *rq, const char *key)
{
	struct gather *g = calloc(1, sizeof(*g));

	if (g)
		g->array = calloc(LIST_MAX, entry_size(rq->what));
	if (!g || !g->array) {
		free(g);
		rv_session_refuse(s, rq, RV_LOCAL_LIST, -ENOMEM, "out of memory");
		return;
	}
	g->s = s;
	g->rq = *rq;
	s->refs++;
	s->local->pending++;
	rv_json_out_init(&g->out);
	rv_json_out_object(&g->out);
	rv_json_out_key(&g->out, key);
	rv_json_out_array(&g->out);
	ask_next(g);
}

static void peers(struct session *s, struct rv_json_out *o)
{
	const struct rv_peers *d = rv_messenger_peers(s->local->conf.messenger);
	const struct rv_peer *p;
	uint64_t total = 0;
	size_t pos = 0;

	rv_json_out_object(o);
	rv_json_out_key(o, "peers");
	rv_json_out_array(o);
	while ((p = rv_peers_next(d, &pos))) {
		char uuid[RV_UUID_TEXT];

		if (rv_messenger_is_stranger(p))
			continue;
		total++;
		if (o->len >= LIST_BYTES)
			continue;
		rv_json_out_object(o);
		put_str(o, "name", p->name);
		put_worker(o, "worker", p->worker);
		rv_json_out_key(o, "instance");
		if (p->has_instance) {
			rv_uuid_format(p->instance, uuid);
			rv_json_out_str(o, uuid);
		} else {
			rv_json_out_null(o);
		}
		put_str(o, "host", p->host);
		put(o, "port", p->port);
		put_str(o, "state", rv_messenger_peer_state(p));
		put_bool(o, "rdma", p->fabric_addr_len || p->verbs_addr_len);
		put_bool(o, "rvd", p->is_rvd);
		rv_json_out_object_end(o);
	}
	rv_json_out_array_end(o);
	put(o, "total", total);
	rv_json_out_object_end(o);
}

static void put_operations(const struct rv_engines *set, struct rv_json_out *o)
{
	rv_json_out_key(o, "operations");
	rv_json_out_object(o);
	for (unsigned op = 0; op < RV_OPERATIONS; op++) {
		rv_json_out_key(o, rv_operation_name((enum rv_operation)op));
		rv_json_out_object(o);
		put(o, "ok", RV_ENGINES_SUM_AT(set, stats.operation, 2ul * op));
		put(o, "error", RV_ENGINES_SUM_AT(set, stats.operation, 2ul * op + 1));
		rv_json_out_object_end(o);
	}
	rv_json_out_object_end(o);
}

static void status(struct session *s, struct rv_json_out *o)
{
	const struct rv_engines *set = s->local->conf.engines;

	rv_json_out_object(o);
	put_str(o, "version", RV_VERSION);
	put_worker(o, "worker", s->local->conf.worker);
	s->local->conf.status(s->local->conf.user, o);
	put(o, "slots", RV_ENGINES_SUM(set, store.slot_nr));
	rv_json_out_key(o, "leases");
	rv_json_out_object(o);
	for (unsigned k = 0; k < RV_LEASE_KINDS; k++)
		put(o, rv_lease_kind_name(k), RV_ENGINES_SUM_AT(set, store.lease_nr, k));
	rv_json_out_object_end(o);
	put(o, "used_bytes", RV_ENGINES_SUM(set, pool.used_bytes));
	put(o, "resting_blocks", RV_ENGINES_SUM(set, pool.resting_blocks));
	put(o, "bytes_in", RV_ENGINES_SUM(set, stats.bytes_in));
	put(o, "bytes_out", rv_messenger_bytes_out(s->local->conf.messenger));
	rv_json_out_key(o, "get_bytes");
	rv_json_out_object(o);
	for (unsigned p = 0; p < RV_PATHS; p++)
		put(o, rv_path_name((enum rv_path)p), RV_ENGINES_SUM_AT(set, stats.get_bytes, p));
	rv_json_out_object_end(o);
	put_operations(set, o);
	put(o, "gets_under_way", RV_ENGINES_SUM(set, stats.gets));
	rv_json_out_key(o, "paths");
	rv_json_out_object(o);
	for (unsigned r = 0; r < RV_PATH_REASONS; r++)
		put(o, rv_path_reason_name(r), RV_ENGINES_SUM_AT(set, stats.path, r));
	rv_json_out_object_end(o);
	put_bool(o, "draining", rv_messenger_is_draining(s->local->conf.messenger));
	put_bool(o, "rdma_off", atomic_load_explicit(&set->rdma_off, memory_order_relaxed));
	put(o, "sessions", rv_local_sessions(s->local));
	put(o, "requests_pending", rv_messenger_pending(s->local->conf.messenger));
	rv_json_out_object_end(o);
}

/* {"KEY":[...]} with an array that the node writes. */
static void array_of(struct session *s, struct rv_json_out *o, const char *key,
		     void (*put_array)(void *user, struct rv_json_out *o))
{
	rv_json_out_object(o);
	rv_json_out_key(o, key);
	put_array(s->local->conf.user, o);
	rv_json_out_object_end(o);
}

void rv_local_list(struct session *s, const struct rv_local_req *rq)
{
	struct rv_local_rep rep = {.id = rq->id};
	struct rv_json_out o;

	switch (rq->what) {
	case RV_LOCAL_LIST_SLOTS:
		gather(s, rq, "slots");
		return;
	case RV_LOCAL_LIST_LEASES:
		gather(s, rq, "leases");
		return;
	case RV_LOCAL_LIST_ARENAS:
		gather(s, rq, "arenas");
		return;
	case RV_LOCAL_LIST_REGIONS:
		gather(s, rq, "regions");
		return;
	case RV_LOCAL_LIST_ENDPOINTS:
		gather(s, rq, "endpoints");
		return;
	case RV_LOCAL_LIST_STATUS:
	case RV_LOCAL_LIST_PEERS:
	case RV_LOCAL_LIST_CORES:
	case RV_LOCAL_LIST_CONFIG:
		break;
	default:
		rv_session_refuse(s, rq, RV_LOCAL_LIST, -EINVAL, "no such list");
		return;
	}
	rv_json_out_init(&o);
	if (rq->what == RV_LOCAL_LIST_STATUS)
		status(s, &o);
	else if (rq->what == RV_LOCAL_LIST_CORES)
		array_of(s, &o, "cores", s->local->conf.cores);
	else if (rq->what == RV_LOCAL_LIST_CONFIG)
		array_of(s, &o, "config", s->local->conf.config);
	else
		peers(s, &o);
	if (o.bad)
		rv_session_refuse(s, rq, RV_LOCAL_LIST, -ENOMEM, "out of memory");
	else
		rv_session_reply(s, &rep, RV_LOCAL_LIST, o.buf, o.len, -1);
	rv_json_out_fini(&o);
}
