#include "control/client/client_impl.h"

#include <errno.h>
#include <string.h>

#include "dataplane/base/units.h"

static int name_peer(struct rv_call *call, const char *name)
{
	if (name && strlen(name) >= sizeof(call->rq.name))
		return rv_client_fail(-EINVAL, "a peer's name has at most %zu bytes",
				      sizeof(call->rq.name) - 1);
	if (name)
		strcpy(call->rq.name, name);
	return 0;
}

static int add_peer(struct rv_client *c, const char *name, const struct rv_ref *at,
		    const char *literal, const void *info, size_t len, uint64_t *worker)
{
	struct rv_call *call = rv_client_call(RV_LOCAL_PEER_ADD);
	struct rv_client_budget b = rv_client_budget_of(c, &rv_client_no_opts);
	int rc;

	if (!call)
		return -ENOMEM;
	rv_client_aim(call, at, literal);
	rc = name_peer(call, name);
	if (rc) {
		rv_call_free(call);
		return rc;
	}
	rc = rv_client_ask(c, call, info, len, &b);
	if (rc)
		return rc;
	if (worker)
		*worker = call->rep.worker;
	rv_call_free(call);
	return 0;
}

int rv_peer_add(struct rv_client *c, const char *name, const void *info, size_t len,
		uint64_t *worker)
{
	static const struct rv_ref nowhere;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!info || !len || len > RV_LOCAL_PAYLOAD_MAX)
		return rv_client_fail(-EINVAL, "no PeerInfo: it is empty or too long");
	return add_peer(c, name, &nowhere, NULL, info, len, worker);
}

int rv_peer_add_at(struct rv_client *c, const char *name, const char *host, uint16_t port,
		   uint64_t *worker)
{
	char literal[RV_LITERALS][RV_LITERAL_MAX];
	struct rv_ref at = {.port = port};
	int nr, rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!host || !*host || strlen(host) >= sizeof(at.host) || !port)
		return rv_client_fail(-EINVAL, "no host and port");
	strcpy(at.host, host);
	nr = rv_client_addresses(c, &at, literal);
	if (nr < 0)
		return nr;
	for (int i = 0; i < nr; i++) {
		rc = add_peer(c, name, &at, literal[i], NULL, 0, worker);
		if (rc != -EHOSTUNREACH)
			break;
	}
	return rc;
}

/* A call whose answer is its payload. */
static int fetch_text(struct rv_client *c, uint8_t op, uint32_t what, char **out, size_t *len)
{
	struct rv_call *call = rv_client_call(op);
	struct rv_client_budget b = rv_client_budget_of(c, &rv_client_no_opts);
	int rc;

	if (!call)
		return -ENOMEM;
	call->rq.what = what;
	rc = rv_client_ask(c, call, NULL, 0, &b);
	if (rc)
		return rc;
	if (!call->payload) {
		rv_call_free(call);
		return rv_client_fail(-EPROTO, "the daemon's answer is empty");
	}
	*out = call->payload;
	if (len)
		*len = call->payload_len;
	call->payload = NULL;
	rv_call_free(call);
	return 0;
}

int rv_peer_info(struct rv_client *c, bool msgpack, void **info, size_t *len)
{
	char *text;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!info || !len)
		return rv_client_fail(-EINVAL, "nowhere to put the PeerInfo");
	rc = fetch_text(c, RV_LOCAL_PEER_INFO, msgpack, &text, len);
	if (!rc)
		/* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): rv_client_fail() never returns 0 */
		*info = text;
	return rc;
}

int rv_list(struct rv_client *c, enum rv_table what, char **json, size_t *len)
{
	static const enum rv_local_list lists[] = {
		[RV_TABLE_STATUS] = RV_LOCAL_LIST_STATUS,
		[RV_TABLE_SLOTS] = RV_LOCAL_LIST_SLOTS,
		[RV_TABLE_LEASES] = RV_LOCAL_LIST_LEASES,
		[RV_TABLE_ARENAS] = RV_LOCAL_LIST_ARENAS,
		[RV_TABLE_PEERS] = RV_LOCAL_LIST_PEERS,
		[RV_TABLE_REGIONS] = RV_LOCAL_LIST_REGIONS,
		[RV_TABLE_ENDPOINTS] = RV_LOCAL_LIST_ENDPOINTS,
		[RV_TABLE_CORES] = RV_LOCAL_LIST_CORES,
		[RV_TABLE_CONFIG] = RV_LOCAL_LIST_CONFIG,
	};
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (!json || (unsigned)what >= RV_ARRAY_NR(lists))
		return rv_client_fail(-EINVAL, "no such list, or nowhere to put it");
	return fetch_text(c, RV_LOCAL_LIST, lists[what], json, len);
}

static int admin(struct rv_client *c, enum rv_local_admin what, const char *word,
		 struct rv_local_rep *rep)
{
	struct rv_call *call;
	struct rv_client_budget b;
	int rc = rv_client_check(c);

	if (rc)
		return rc;
	if (word && strlen(word) >= RV_LOCAL_NAME)
		return rv_client_fail(-EINVAL, "that word is too long");
	call = rv_client_call(RV_LOCAL_ADMIN);
	if (!call)
		return -ENOMEM;
	b = rv_client_budget_of(c, &rv_client_no_opts);
	call->rq.what = what;
	if (word)
		strcpy(call->rq.name, word);
	rc = rv_client_ask(c, call, NULL, 0, &b);
	if (rc)
		return rc;
	*rep = call->rep;
	rv_call_free(call);
	return 0;
}

int rv_kill_switch(struct rv_client *c, enum rv_switch what, bool *on)
{
	enum rv_local_admin op = what == RV_SWITCH_ON    ? RV_LOCAL_KILL_SWITCH_ON
				 : what == RV_SWITCH_OFF ? RV_LOCAL_KILL_SWITCH_OFF
							 : RV_LOCAL_KILL_SWITCH;
	struct rv_local_rep rep;
	int rc = admin(c, op, NULL, &rep);

	if (!rc && on)
		*on = rep.path != 0;
	return rc;
}

int rv_drain(struct rv_client *c)
{
	struct rv_local_rep rep;

	return admin(c, RV_LOCAL_DRAIN, NULL, &rep);
}

int rv_log_level(struct rv_client *c, const char *level)
{
	struct rv_local_rep rep;

	if (!level || !*level)
		return rv_client_fail(-EINVAL, "no level");
	return admin(c, RV_LOCAL_LOG_LEVEL, level, &rep);
}
