/*
 * etcd, version 3, by its JSON gateway: one key for each node, PREFIX and its WorkerId in decimal, whose value is its
 * PeerInfo in JSON. The key hangs on a lease that is kept alive while the node is: that of a dead node goes by itself.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "control/discovery/base64.h"
#include "control/discovery/discovery.h"
#include "control/discovery/etcd_codec.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"

#define ENDPOINTS  8u
#define CONNECT_MS 1000L
#define ANSWER_MS  2000L
#define LEAVE_MS   700L
/* A PeerInfo in JSON and base64, and what etcd says around it. */
#define ANSWER_MAX RV_MIB(1)
/* The lease outlives two refreshments that fail. */
#define LEASE_S    15
#define REFRESH_NS RV_SEC(5)

struct answer {
	char *text;
	size_t len;
};

struct etcd {
	CURL *curl;
	struct curl_slist *headers;
	char *url[ENDPOINTS];
	unsigned url_nr, tries;
	unsigned at; /* the one that answered last */
	char *prefix;
	uint64_t worker;
	char *info;                /* our PeerInfo, in base64 */
	char lease[RV_ETCD_LEASE]; /* decimal; empty: none */
};

static size_t on_data(char *data, size_t size, size_t nr, void *user)
{
	struct answer *a = user;
	size_t n = size * nr;
	char *more;

	if (n > ANSWER_MAX - a->len)
		return 0;
	more = realloc(a->text, a->len + n + 1);
	if (!more)
		return 0;
	memcpy(more + a->len, data, n);
	a->text = more;
	a->len += n;
	more[a->len] = '\0';
	return n;
}

/* One server. @return 0; -EHOSTUNREACH: another may do better; -EREMOTEIO: it refuses; @why */
static int ask_one(struct etcd *e, const char *url, const char *path, const char *body,
		   struct answer *a, char *why)
{
	char full[512], error[100];
	long status = 0;
	CURLcode rc;

	snprintf(full, sizeof(full), "%s%s", url, path);
	curl_easy_setopt(e->curl, CURLOPT_URL, full);
	curl_easy_setopt(e->curl, CURLOPT_POSTFIELDS, body);
	curl_easy_setopt(e->curl, CURLOPT_WRITEDATA, a);
	rc = curl_easy_perform(e->curl);
	if (rc) {
		snprintf(why, RV_DISCOVERY_TEXT, "etcd at %s does not answer: %s", url,
			 curl_easy_strerror(rc));
		return -EHOSTUNREACH;
	}
	curl_easy_getinfo(e->curl, CURLINFO_RESPONSE_CODE, &status);
	if (status == 200)
		return 0;
	rv_etcd_take_error(a->text, a->len, error, sizeof(error));
	snprintf(why, RV_DISCOVERY_TEXT, "etcd at %.60s answers %ld%s%s", url, status,
		 *error ? ": " : "", error);
	return status >= 500 ? -EHOSTUNREACH : -EREMOTEIO; /* 5xx: a member without a leader, say */
}

/*
 * The servers in turn, from the one that answered last on.
 *
 * @param[out] a  the answer's text, the caller's to free
 * @return 0; -EHOSTUNREACH; -EREMOTEIO: it refuses
 */
static int ask(struct etcd *e, const char *path, const char *body, struct answer *a, char *why)
{
	int rc = -EHOSTUNREACH;

	*a = (struct answer){.text = calloc(1, 1)};
	if (!a->text) {
		snprintf(why, RV_DISCOVERY_TEXT, "out of memory");
		return -EHOSTUNREACH;
	}
	for (unsigned i = 0; i < e->tries && rc == -EHOSTUNREACH; i++) {
		a->len = 0;
		rc = ask_one(e, e->url[e->at], path, body, a, why);
		if (rc == -EHOSTUNREACH)
			e->at = (e->at + 1) % e->url_nr;
	}
	return rc;
}

static int no_sense(const struct etcd *e, const char *what, char *why)
{
	snprintf(why, RV_DISCOVERY_TEXT, "etcd at %.60s answers %s with what cannot be read",
		 e->url[e->at], what);
	return -EPROTO;
}

static int grant(struct etcd *e, char *why)
{
	struct answer a;
	char body[64];
	int rc;

	snprintf(body, sizeof(body), "{\"TTL\":%d}", LEASE_S);
	rc = ask(e, "/v3/lease/grant", body, &a, why);
	if (!rc && rv_etcd_take_lease(a.text, a.len, e->lease))
		rc = no_sense(e, "a grant", why);
	free(a.text);
	return rc;
}

/* @return 0; -ESTALE: it is over */
static int keep_alive(struct etcd *e, char *why)
{
	struct answer a;
	char body[64];
	int rc;

	snprintf(body, sizeof(body), "{\"ID\":%s}", e->lease);
	rc = ask(e, "/v3/lease/keepalive", body, &a, why);
	if (!rc) {
		rc = rv_etcd_take_alive(a.text, a.len);
		if (rc && rc != -ESTALE)
			rc = no_sense(e, "a refreshment", why);
	}
	free(a.text);
	return rc;
}

/* The key of a node, in base64. @return NULL without memory */
static char *key_of(const struct etcd *e, uint64_t worker)
{
	char *key, *out;
	int len = asprintf(&key, "%s%" PRIu64, e->prefix, worker);

	if (len < 0)
		return NULL;
	out = malloc(RV_BASE64_LEN(len) + 1);
	if (out)
		rv_base64_encode((const uint8_t *)key, (size_t)len, out);
	free(key);
	return out;
}

static int put(struct etcd *e, char *why)
{
	char *key = key_of(e, e->worker), *body = NULL;
	struct answer a;
	int rc;

	if (!key || asprintf(&body, "{\"key\":\"%s\",\"value\":\"%s\",\"lease\":%s}", key, e->info,
			     e->lease) < 0) {
		free(key);
		snprintf(why, RV_DISCOVERY_TEXT, "out of memory");
		return -ENOMEM;
	}
	rc = ask(e, "/v3/kv/put", body, &a, why);
	free(a.text);
	free(key);
	free(body);
	return rc;
}

static int publish(void *self, char why[RV_DISCOVERY_TEXT])
{
	struct etcd *e = self;
	int rc = e->lease[0] ? keep_alive(e, why) : -ESTALE;

	if (rc == -ESTALE) {
		e->lease[0] = '\0';
		rc = grant(e, why);
		if (!rc)
			rc = put(e, why);
		if (rc)
			e->lease[0] = '\0'; /* it ends by itself */
	}
	return rc;
}

static void withdraw(void *self)
{
	struct etcd *e = self;
	char body[64], why[RV_DISCOVERY_TEXT] = "";
	struct answer a;

	/* The one that answered last: there is no time for others, nor for look-ups. */
	e->tries = 1;
	curl_easy_setopt(e->curl, CURLOPT_TIMEOUT_MS, LEAVE_MS);
	if (!e->lease[0])
		return;
	snprintf(body, sizeof(body), "{\"ID\":%s}", e->lease);
	if (ask(e, "/v3/lease/revoke", body, &a, why))
		rv_log_warn("discovery: this node's key stays until its lease ends: %s", why);
	free(a.text);
}

static int find(void *self, uint64_t worker, struct rv_peer_info *out, char why[RV_DISCOVERY_TEXT])
{
	struct etcd *e = self;
	char *key = key_of(e, worker), *body = NULL;
	struct answer a;
	int rc;

	if (!key || asprintf(&body, "{\"key\":\"%s\"}", key) < 0) {
		free(key);
		return -ENOMEM;
	}
	rc = ask(e, "/v3/kv/range", body, &a, why);
	free(key);
	free(body);
	rc = rc ? -EHOSTUNREACH : rv_etcd_take_peer(a.text, a.len, worker, out);
	free(a.text);
	if (rc == -EPROTO)
		snprintf(why, RV_DISCOVERY_TEXT, "what etcd at %.60s has of it is not its PeerInfo",
			 e->url[e->at]);
	return rc;
}

static void close_etcd(void *self)
{
	struct etcd *e = self;

	for (unsigned i = 0; i < e->url_nr; i++)
		free(e->url[i]);
	curl_easy_cleanup(e->curl);
	curl_slist_free_all(e->headers);
	free(e->prefix);
	free(e->info);
	free(e);
}

const struct rv_discovery_ops rv_discovery_etcd_ops = {
	.publish = publish,
	.withdraw = withdraw,
	.find = find,
	.close = close_etcd,
	.period_ns = REFRESH_NS,
};

/* "a:2379, https://b" becomes http://a:2379 and https://b. */
static int take_endpoints(struct etcd *e, const char *list, char *why)
{
	char *copy = strdup(list), *save = NULL;
	int rc = copy ? 0 : -ENOMEM;

	for (char *t = copy ? strtok_r(copy, ", ", &save) : NULL; t && !rc;
	     t = strtok_r(NULL, ", ", &save)) {
		bool has_scheme = !strncmp(t, "http://", 7) || !strncmp(t, "https://", 8);

		if (e->url_nr == ENDPOINTS || strlen(t) > 256)
			rc = -EINVAL;
		else if (asprintf(&e->url[e->url_nr], "%s%s", has_scheme ? "" : "http://", t) < 0)
			rc = -ENOMEM;
		else
			e->url_nr++;
	}
	free(copy);
	if (!rc && !e->url_nr)
		rc = -EINVAL;
	e->tries = e->url_nr;
	if (rc == -EINVAL)
		snprintf(why, RV_DISCOVERY_TEXT,
			 "endpoints: 1 to %u addresses, separated by commas", ENDPOINTS);
	return rc;
}

static int encode_self(struct etcd *e, const struct rv_peer_info *self)
{
	size_t cap = self->address_len * 4 + 128;
	char *json = malloc(cap);
	struct rv_writer w = rv_writer(json, cap);

	if (!json)
		return -ENOMEM;
	rv_peer_info_encode(&w, self);
	e->info = w.bad ? NULL : malloc(RV_BASE64_LEN(w.len) + 1);
	if (e->info)
		rv_base64_encode((const uint8_t *)json, w.len, e->info);
	free(json);
	return e->info ? 0 : -ENOMEM;
}

static int set_up_curl(struct etcd *e)
{
	if (curl_global_init(CURL_GLOBAL_DEFAULT))
		return -ENOMEM;
	e->curl = curl_easy_init();
	e->headers = curl_slist_append(NULL, "Content-Type: application/json");
	if (!e->curl || !e->headers)
		return -ENOMEM;
	curl_easy_setopt(e->curl, CURLOPT_NOSIGNAL, 1L); /* there are other threads */
	curl_easy_setopt(e->curl, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(e->curl, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(e->curl, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
	curl_easy_setopt(e->curl, CURLOPT_TIMEOUT_MS, ANSWER_MS);
	curl_easy_setopt(e->curl, CURLOPT_HTTPHEADER, e->headers);
	curl_easy_setopt(e->curl, CURLOPT_WRITEFUNCTION, on_data);
	return 0;
}

void *rv_discovery_etcd_open(const struct rv_discovery_conf *conf, char why[RV_DISCOVERY_TEXT])
{
	struct etcd *e = calloc(1, sizeof(*e));

	snprintf(why, RV_DISCOVERY_TEXT, "out of memory");
	if (!e)
		return NULL;
	e->worker = rv_worker_id(conf->self.instance);
	e->prefix = strdup(conf->prefix);
	if (!e->prefix || take_endpoints(e, conf->endpoints, why) || encode_self(e, &conf->self) ||
	    set_up_curl(e)) {
		close_etcd(e);
		return NULL;
	}
	return e;
}
