#include "ucx/context.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "ucx/ucx_err.h"
#include "ucx/ucx_log.h"

/* RC and DC read remote memory in the device; both bring UD along as a helper for the wire-up. */
#define NATIVE_TLS "rc,dc"

#define NAME_MAX_BYTES 64

struct setting {
	const char *name;
	const char *value;
};

static const struct setting settings[] = {
	/* With the registration cache an unmapped region stays readable by its old key. */
	{"RCACHE_ENABLE", "n"},
	/* No hooks in our malloc; nothing is cached that they would have to watch. */
	{"MEM_EVENTS", "n"},
	/* A 1 MiB GET over tcp: 190 us instead of 470. */
	{"TCP_TX_SEG_SIZE", "64k"},
	/* The context's lock is shared by pinned threads: waiters must not spin. */
	{"USE_MT_MUTEX", "y"},
};

static bool is_set(const char *value)
{
	return value && *value && strcmp(value, "auto") != 0;
}

static const char *environment(const char *name)
{
	char var[NAME_MAX_BYTES];

	snprintf(var, sizeof(var), "UCX_%s", name);
	return getenv(var);
}

static bool is_native_token(const char *token, size_t len)
{
	static const char *const main_lanes[] = {"rc",      "rc_v", "rc_x", "rc_verbs",
						 "rc_mlx5", "dc",   "dc_x", "dc_mlx5"};

	if (len > 4 && strncmp(token + len - 4, ":aux", 4) == 0)
		return true;
	for (size_t i = 0; i < RV_ARRAY_NR(main_lanes); i++) {
		if (strlen(main_lanes[i]) == len && strncmp(token, main_lanes[i], len) == 0)
			return true;
	}
	return false;
}

bool rv_ucx_tls_native(const char *tls)
{
	if (!is_set(tls))
		return false;
	for (const char *p = tls;; p++) {
		size_t len = strcspn(p, ",");

		if (!is_native_token(p, len))
			return false;
		p += len;
		if (!*p)
			return true;
	}
}

/* The transport list that UCX will follow; NULL: UCX's own choice. */
static const char *chosen_tls(const struct rv_ucx_conf *conf)
{
	const char *tls = environment("TLS");

	if (tls)
		return tls;
	if (is_set(conf->tls))
		return conf->tls;
	return conf->mode == RV_UCX_AUTO ? NATIVE_TLS : NULL;
}

/* Settings with which GETs are known to fail, or to find no way. */
void rv_ucx_name_suspects(char *why)
{
	static const char *const suspects[] = {"PROTO_ENABLE", "PROTO_EMULATION_ENABLE", "TLS",
					       "NET_DEVICES"};
	size_t len = strlen(why);
	unsigned nr = 0;

	for (size_t i = 0; i < RV_ARRAY_NR(suspects); i++) {
		const char *value = environment(suspects[i]);

		if (!value || len >= RV_UCX_WHY - 1)
			continue;
		snprintf(why + len, RV_UCX_WHY - len, "%sUCX_%s=%s",
			 nr++ ? ", " : "; the environment sets ", suspects[i], value);
		len += strlen(why + len);
	}
}

static int apply(ucp_config_t *config, const char *name, const char *value, char *why)
{
	ucs_status_t status;

	if (!is_set(value) || environment(name))
		return 0;
	status = ucp_config_modify(config, name, value);
	if (status == UCS_OK)
		return 0;
	snprintf(why, RV_UCX_WHY, "UCX refuses %s=%s: %s", name, value, ucs_status_string(status));
	return rv_ucx_err(status);
}

static int apply_all(ucp_config_t *config, const struct rv_ucx_conf *conf, const char *tls,
		     char *why)
{
	int rc = apply(config, "TLS", tls, why);

	if (!rc)
		rc = apply(config, "NET_DEVICES", conf->net_devices, why);
	for (size_t i = 0; !rc && i < RV_ARRAY_NR(settings); i++)
		rc = apply(config, settings[i].name, settings[i].value, why);
	return rc;
}

/*
 * UCX 1.22, emulated GETs: when a connection ends while replies to its GETs are queued, UCX releases what a
 * field of theirs names that nobody ever set, and the owner crashes. So a request starts as zeros, which name
 * nothing; its handle points right behind it, as the API has it for requests of the caller's.
 *
 * relaxed: written before the first worker exists, and always with the same value.
 */
static _Atomic size_t request_bytes;

static void clear_request(void *request)
{
	size_t bytes = atomic_load_explicit(&request_bytes, memory_order_relaxed);

	memset((char *)request - bytes, 0, bytes);
}

static void learn_request_bytes(ucp_context_h context)
{
	ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};

	if (ucp_context_query(context, &attr) == UCS_OK)
		atomic_store_explicit(&request_bytes, attr.request_size, memory_order_relaxed);
}

static int init(const struct rv_ucx_conf *conf, ucp_config_t *config, char *why, ucp_context_h *out)
{
	/* The feature bits of a stock node: they shape the lanes that both sides must agree on. */
	const ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
			      UCP_PARAM_FIELD_REQUEST_INIT,
		.features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
		.mt_workers_shared = 1,
		.request_init = clear_request,
	};
	ucs_status_t status;

	rv_ucx_log_hush(conf->mode ==
			RV_UCX_AUTO); /* a machine without a device is no news there */
	status = ucp_init(&params, config, out);
	rv_ucx_log_hush(false);
	if (status == UCS_OK) {
		learn_request_bytes(*out);
		return 0;
	}
	if (status == UCS_ERR_NO_DEVICE) {
		snprintf(why, RV_UCX_WHY, "no %s transport is available here",
			 conf->mode == RV_UCX_AUTO ? "native" : "configured");
		return -ENOTSUP;
	}
	snprintf(why, RV_UCX_WHY, "ucp_init: %s", ucs_status_string(status));
	return rv_ucx_err(status);
}

int rv_ucx_context_open(const struct rv_ucx_conf *conf, char *why, bool *native, ucp_context_h *out)
{
	const char *tls = chosen_tls(conf);
	bool all_native = rv_ucx_tls_native(tls);
	ucp_config_t *config;
	ucs_status_t status;
	int rc;

	if (conf->mode == RV_UCX_AUTO && !all_native) {
		snprintf(why, RV_UCX_WHY,
			 "transports %.64s are not all native (rc, dc); only `yes` takes them",
			 tls);
		return -ENOTSUP;
	}
	status = ucp_config_read(NULL, NULL, &config);
	if (status != UCS_OK) {
		snprintf(why, RV_UCX_WHY, "ucp_config_read: %s", ucs_status_string(status));
		return rv_ucx_err(status);
	}
	rc = apply_all(config, conf, tls, why);
	if (!rc)
		rc = init(conf, config, why, out);
	ucp_config_release(config);
	if (!rc)
		*native = all_native;
	return rc;
}

void rv_ucx_context_close(ucp_context_h context)
{
	ucp_cleanup(context);
}
