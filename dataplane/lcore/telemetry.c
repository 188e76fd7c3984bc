#include "dataplane/lcore/telemetry.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <rte_telemetry.h>

#include "dataplane/base/check.h"

#define DEPTH 4
#define DICTS 80

struct rv_tel_out {
	struct rte_tel_data *open[DEPTH];
	unsigned depth;
	struct rte_tel_data *dict[DICTS]; /* all that were made: DPDK's once the answer is good */
	unsigned dict_nr;
	bool bad;
};

/* Never taken by a reactor. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const struct rv_telemetry_cmd *cmd;
	unsigned cmd_nr;
	void *user;
} served;

static struct rte_tel_data *top(const struct rv_tel_out *o)
{
	return o->open[o->depth - 1];
}

void rv_tel_out_str(struct rv_tel_out *o, const char *name, const char *v)
{
	char text[RTE_TEL_MAX_STRING_LEN];

	snprintf(text, sizeof(text), "%s", v);
	if (!o->bad)
		o->bad = rte_tel_data_add_dict_string(top(o), name, text) != 0;
}

void rv_tel_out_u64(struct rv_tel_out *o, const char *name, uint64_t v)
{
	if (!o->bad)
		o->bad = rte_tel_data_add_dict_u64(top(o), name, v) != 0;
}

void rv_tel_out_dict(struct rv_tel_out *o, const char *name)
{
	struct rte_tel_data *d;

	if (o->bad)
		return;
	d = o->depth < DEPTH && o->dict_nr < DICTS ? rte_tel_data_alloc() : NULL;
	if (!d) {
		o->bad = true;
		return;
	}
	o->dict[o->dict_nr++] = d;
	rte_tel_data_start_dict(d);
	o->bad = rte_tel_data_add_dict_container(top(o), name, d, 0) != 0;
	o->open[o->depth++] = d;
}

void rv_tel_out_dict_end(struct rv_tel_out *o)
{
	if (o->bad)
		return;
	RV_CHECK(o->depth > 1);
	o->depth--;
}

static const struct rv_telemetry_cmd *find(const char *path)
{
	for (unsigned i = 0; i < served.cmd_nr; i++) {
		if (!strcmp(served.cmd[i].path, path))
			return &served.cmd[i];
	}
	return NULL;
}

/* Each client has a thread of DPDK's. */
static int answer(const char *path, const char *params, struct rte_tel_data *d)
{
	struct rv_tel_out o = {.open = {d}, .depth = 1};
	const struct rv_telemetry_cmd *c;

	(void)params;
	rte_tel_data_start_dict(d);
	pthread_mutex_lock(&lock);
	c = find(path);
	if (c)
		c->fill(served.user, &o);
	pthread_mutex_unlock(&lock);
	if (c && !o.bad)
		return 0;
	for (unsigned i = 0; i < o.dict_nr; i++)
		rte_tel_data_free(o.dict[i]);
	return -ENOENT;
}

static void serve(const struct rv_telemetry_cmd *cmds, unsigned nr, void *user)
{
	pthread_mutex_lock(&lock);
	served.cmd = cmds;
	served.cmd_nr = nr;
	served.user = user;
	pthread_mutex_unlock(&lock);
}

int rv_telemetry_serve(const struct rv_telemetry_cmd *cmds, unsigned nr, void *user)
{
	int rc = 0;

	serve(cmds, nr, user);
	for (unsigned i = 0; i < nr && !rc; i++)
		rc = rte_telemetry_register_cmd(cmds[i].path, answer, cmds[i].help);
	return rc;
}

void rv_telemetry_stop(void)
{
	serve(NULL, 0, NULL);
}
