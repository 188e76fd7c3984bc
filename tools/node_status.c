/*
 * The node's own part of `rvctl status`.
 */
#include <stdio.h>
#include <string.h>

#include "control/json/peer_info.h"
#include "dataplane/base/clock.h"
#include "dataplane/base/err.h"
#include "dataplane/base/log.h"
#include "dataplane/base/units.h"
#include "dataplane/lcore/eal.h"
#include "tools/node_impl.h"
#include "ucx/fabric_ucx.h"

static void put_host(struct rv_json_out *o, const char *host, uint16_t port)
{
	char text[RV_CONFIG_HOST_MAX + 16];

	snprintf(text, sizeof(text), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
	rv_json_out_str(o, text);
}

void rv_node_put_status(void *user, struct rv_json_out *o)
{
	struct rv_node *n = user;
	char uuid[RV_UUID_TEXT];

	rv_uuid_format(n->id.instance, uuid);
	rv_json_out_key(o, "name");
	rv_json_out_str(o, n->cfg->node.name);
	rv_json_out_key(o, "instance");
	rv_json_out_str(o, uuid);
	rv_json_out_key(o, "uptime_s");
	rv_json_out_double(o, (double)(rv_clock_ns() - n->started_ns) / 1e9);
	rv_json_out_key(o, "tcp");
	rv_json_out_array(o);
	/* What others should dial comes first: references are built from it. */
	for (unsigned i = 0; i < n->cfg->tcp.advertise.nr; i++)
		put_host(o, n->cfg->tcp.advertise.at[i].host,
			 n->cfg->tcp.advertise.at[i].port ? n->cfg->tcp.advertise.at[i].port
							  : n->tcp_port[0]);
	for (unsigned i = 0; i < n->cfg->tcp.listen.nr; i++)
		put_host(o, n->cfg->tcp.listen.at[i].host, n->tcp_port[i]);
	rv_json_out_array_end(o);
	rv_json_out_key(o, "tcp_connections");
	rv_json_out_u64(o, rv_counter_get(&n->tcp.connections));
	rv_json_out_key(o, "fabrics");
	rv_json_out_array(o);
	for (unsigned i = 0; i < n->fabric_nr; i++)
		rv_json_out_str(o, n->fabric[i]->path_name);
	rv_json_out_array_end(o);
	rv_json_out_key(o, "ucx_version");
	rv_json_out_str(o, rv_ucx_version());
	rv_json_out_key(o, "verbs");
	rv_json_out_str(o, n->verbs ? n->verbs->version : NULL);
	rv_json_out_key(o, "telemetry");
	rv_json_out_str(o, rv_eal_telemetry_socket());
	rv_json_out_key(o, "registered_bytes");
	rv_json_out_u64(o, rv_budget_used(&n->registrar.registered));
	rv_json_out_key(o, "registered_bytes_budget");
	rv_json_out_u64(o, rv_budget_limit(&n->registrar.registered));
	rv_json_out_key(o, "plain_bytes");
	rv_json_out_u64(o, rv_budget_used(&n->registrar.plain));
	rv_json_out_key(o, "plain_bytes_budget");
	rv_json_out_u64(o, rv_budget_limit(&n->registrar.plain));
	rv_json_out_key(o, "cores");
	rv_node_put_cores(n, o);
}

const char *rv_node_core_roles(const struct rv_node_core *c)
{
	return c->polling && c->net ? "polling, net" : c->net ? "net" : "polling";
}

/* Whether it runs on one CPU or on any, how often it looked for work, and for how long it had some. */
void rv_node_put_cores(void *user, struct rv_json_out *o)
{
	const struct rv_node *n = user;

	rv_json_out_array(o);
	for (unsigned i = 0; i < n->core_nr; i++) {
		const struct rv_node_core *c = &n->core[i];

		rv_json_out_object(o);
		rv_json_out_key(o, "core");
		rv_json_out_u64(o, i);
		rv_json_out_key(o, "roles");
		rv_json_out_str(o, rv_node_core_roles(c));
		rv_json_out_key(o, "cpu");
		if (c->cpu == RV_EAL_CPU_ANY)
			rv_json_out_str(o, "any");
		else
			rv_json_out_u64(o, (uint64_t)c->cpu);
		rv_json_out_key(o, "polls");
		rv_json_out_u64(o, rv_counter_get(&c->reactor.polls));
		rv_json_out_key(o, "busy_s");
		rv_json_out_double(o, (double)rv_counter_get(&c->reactor.busy_ns) / 1e9);
		rv_json_out_key(o, "idle_s");
		rv_json_out_double(o, (double)rv_counter_get(&c->reactor.idle_ns) / 1e9);
		rv_json_out_key(o, "sleeps");
		rv_json_out_u64(o, rv_counter_get(&c->reactor.sleeps));
		rv_json_out_object_end(o);
	}
	rv_json_out_array_end(o);
}

struct option_out {
	const struct rv_node *node;
	struct rv_json_out *o;
};

/* What a command has changed since is shown as it is, not as it was read. */
static void put_option(void *user, const char *section, const char *key, const char *value,
		       const char *origin)
{
	const struct option_out *to = user;
	const struct rv_node *n = to->node;
	char name[64];

	snprintf(name, sizeof(name), "%s.%s", section, key);
	if (!strcmp(name, "log.level") && rv_log_get_level() != n->cfg->log.level) {
		value = rv_log_level_name(rv_log_get_level());
		origin = "rvctl log-level";
	}
	if (!strcmp(name, "rendezvous.enabled") &&
	    atomic_load_explicit(&n->engines.rdma_off, memory_order_relaxed) ==
		    n->cfg->rendezvous.enabled) {
		value = n->cfg->rendezvous.enabled ? "no" : "yes";
		origin = rv_config_kill_switch_env() ? "kill switch in the environment"
						     : "rvctl kill-switch";
	}
	rv_json_out_object(to->o);
	rv_json_out_key(to->o, "key");
	rv_json_out_str(to->o, name);
	rv_json_out_key(to->o, "value");
	if (value)
		rv_json_out_str(to->o, value);
	else
		rv_json_out_null(to->o);
	rv_json_out_key(to->o, "origin");
	rv_json_out_str(to->o, value && origin ? origin : "default");
	rv_json_out_object_end(to->o);
}

void rv_node_put_config(void *user, struct rv_json_out *o)
{
	struct rv_node *n = user;

	rv_json_out_array(o);
	pthread_mutex_lock(&n->lock);
	rv_config_each(n->cfg, put_option, &(struct option_out){n, o});
	pthread_mutex_unlock(&n->lock);
	rv_json_out_array_end(o);
}
