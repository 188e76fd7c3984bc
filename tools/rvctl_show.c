#include "tools/rvctl_cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dataplane/base/units.h"

enum how { TEXT, NUMBER, BYTES };

/** A column: its head, the member it shows, and how. */
struct column {
	const char *head, *key;
	enum how how;
};

struct view {
	enum rv_table what;
	const char *key; /* the array */
	const struct column *column;
	unsigned column_nr;
};

/* Ask for a list. With --json it is printed as it came, and *doc is NULL. */
static int fetch(struct rv_ctl *ctl, enum rv_table what, struct rv_json **doc)
{
	const char *why = "";
	char *json;
	size_t len;
	int rc = rv_list(ctl->c, what, &json, &len);

	*doc = NULL;
	if (rc)
		return rv_ctl_fail_rc(ctl, rc, NULL);
	if (ctl->json) {
		puts(json);
		rv_free(json);
		return 0;
	}
	rc = rv_json_parse(json, len, doc, &why);
	rv_free(json);
	return rc ? rv_ctl_fail(ctl, RV_CTL_FAILED,
				"this node's daemon: its answer is not JSON: %s", why)
		  : 0;
}

/* Exact in a pipe, short on a terminal. */
static void format_bytes(const struct rv_json *v, char *out, size_t cap)
{
	uint64_t n;

	if (isatty(STDOUT_FILENO) && !rv_json_uint(v, UINT64_MAX, &n))
		rv_text_bytes(n, out, cap);
	else
		rv_text_scalar(v, out, cap);
}

int rv_ctl_table_print(const struct rv_ctl *ctl, struct rv_text_table *t)
{
	bool bad = t->bad;

	if (!bad)
		rv_text_table_put(t, rv_text_width(), stdout);
	rv_text_table_free(t);
	return bad ? rv_ctl_fail(ctl, RV_CTL_FAILED, "out of memory") : 0;
}

static void add_row(struct rv_text_table *t, const struct view *v, const struct rv_json *row)
{
	char text[256];

	for (unsigned i = 0; i < v->column_nr; i++) {
		const struct rv_json *cell = rv_json_get(row, v->column[i].key);

		if (v->column[i].how == BYTES)
			format_bytes(cell, text, sizeof(text));
		else
			rv_text_scalar(cell, text, sizeof(text));
		rv_text_table_add(t, text);
	}
}

static void put_footer(const struct rv_json *doc)
{
	uint64_t total = 0, shown = 0, resting = 0;

	if (rv_json_uint(rv_json_get(doc, "total"), UINT64_MAX, &total) == 0 &&
	    rv_json_uint(rv_json_get(doc, "shown"), UINT64_MAX, &shown) == 0 && shown < total)
		printf("%" PRIu64 " of %" PRIu64 " shown\n", shown, total);
	if (rv_json_uint(rv_json_get(doc, "resting_blocks"), UINT64_MAX, &resting) == 0)
		printf("resting_blocks %" PRIu64 "\n", resting);
}

static int show(struct rv_ctl *ctl, const struct view *v)
{
	struct rv_text_table t = {.columns = v->column_nr};
	const struct rv_json *rows;
	struct rv_json *doc;
	int code = fetch(ctl, v->what, &doc);

	if (code || !doc)
		return code;
	for (unsigned i = 0; i < v->column_nr; i++) {
		rv_text_table_add(&t, v->column[i].head);
		t.right |= (uint64_t)(v->column[i].how != TEXT) << i;
	}
	rows = rv_json_get(doc, v->key);
	for (size_t i = 0; i < rv_json_nr(rows); i++)
		add_row(&t, v, rv_json_at(rows, i));
	code = rv_ctl_table_print(ctl, &t);
	put_footer(doc);
	rv_json_free(doc);
	return code;
}

int rv_ctl_slots(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"HANDLE", "handle", TEXT},      {"BYTES", "bytes", BYTES},
		{"REFS", "refcount", NUMBER},    {"LEASES", "leases", NUMBER},
		{"PINNED", "pinned", TEXT},      {"UID", "uid", NUMBER},
		{"TTL_S", "ttl_left_s", NUMBER},
	};

	return show(ctl, &(struct view){RV_TABLE_SLOTS, "slots", columns, RV_ARRAY_NR(columns)});
}

int rv_ctl_leases(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"LEASE", "lease", TEXT},       {"HANDLE", "handle", TEXT},
		{"KIND", "kind", TEXT},         {"FENCE", "fence", TEXT},
		{"CONSUMER", "consumer", TEXT}, {"AGE_S", "age_s", NUMBER},
		{"LEFT_S", "left_s", NUMBER},
	};

	return show(ctl, &(struct view){RV_TABLE_LEASES, "leases", columns, RV_ARRAY_NR(columns)});
}

int rv_ctl_arenas(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"ARENA", "arena", NUMBER},
		{"CORE", "core", NUMBER},
		{"KIND", "kind", TEXT},
		{"UID", "uid", NUMBER},
		{"REG", "registered", TEXT},
		{"OWN", "dedicated", TEXT},
		{"BYTES", "bytes", BYTES},
		{"USED", "used", BYTES},
		{"LARGEST", "largest_free", BYTES},
		{"BLOCKS", "blocks", NUMBER},
	};

	return show(ctl, &(struct view){RV_TABLE_ARENAS, "arenas", columns, RV_ARRAY_NR(columns)});
}

int rv_ctl_regions(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"REGION", "region", NUMBER},
		{"CORE", "core", NUMBER},
		{"UID", "uid", NUMBER},
		{"SESSION", "session", NUMBER},
		{"STATE", "state", TEXT},
		{"REG", "registered", TEXT},
		{"BYTES", "bytes", BYTES},
		{"PINNED", "pinned_bytes", BYTES},
		{"INFLIGHT", "in_flight", NUMBER},
	};

	return show(ctl,
		    &(struct view){RV_TABLE_REGIONS, "regions", columns, RV_ARRAY_NR(columns)});
}

int rv_ctl_endpoints(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"PEER", "peer", TEXT},       {"WORKER", "worker", TEXT},
		{"CORE", "core", NUMBER},     {"STATE", "state", TEXT},
		{"PATH", "path", TEXT},       {"EMULATED", "emulated", TEXT},
		{"GETS", "gets", NUMBER},     {"SENDS", "sends", NUMBER},
		{"IDLE_S", "idle_s", NUMBER},
	};

	return show(ctl,
		    &(struct view){RV_TABLE_ENDPOINTS, "endpoints", columns, RV_ARRAY_NR(columns)});
}

int rv_ctl_config(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"KEY", "key", TEXT},
		{"VALUE", "value", TEXT},
		{"ORIGIN", "origin", TEXT},
	};

	return show(ctl, &(struct view){RV_TABLE_CONFIG, "config", columns, RV_ARRAY_NR(columns)});
}

/* cores: how much of a moment was useful takes two looks. */

static double core_second(const struct rv_json *core, const char *key)
{
	double v = 0;

	return rv_json_double(rv_json_get(core, key), &v) ? 0 : v;
}

static void add_share(struct rv_text_table *t, const struct rv_json *before,
		      const struct rv_json *now)
{
	double busy = core_second(now, "busy_s") - core_second(before, "busy_s");
	double all = busy + core_second(now, "idle_s") - core_second(before, "idle_s");
	char text[32];

	if (all > 0)
		snprintf(text, sizeof(text), "%.1f", 100 * busy / all);
	else
		snprintf(text, sizeof(text), "-"); /* asleep all the while */
	rv_text_table_add(t, text);
}

static int put_cores(struct rv_ctl *ctl, const struct rv_json *before, const struct rv_json *now)
{
	static const struct column columns[] = {
		{"CORE", "core", NUMBER},     {"ROLES", "roles", TEXT},
		{"CPU", "cpu", TEXT},         {"POLLS", "polls", NUMBER},
		{"SLEEPS", "sleeps", NUMBER}, {"BUSY_S", "busy_s", NUMBER},
	};
	const struct view v = {RV_TABLE_CORES, "cores", columns, RV_ARRAY_NR(columns)};
	struct rv_text_table t = {.columns = v.column_nr + 1, .right = 0x79};

	for (unsigned i = 0; i < v.column_nr; i++)
		rv_text_table_add(&t, columns[i].head);
	rv_text_table_add(&t, "USEFUL%");
	for (size_t i = 0; i < rv_json_nr(now); i++) {
		add_row(&t, &v, rv_json_at(now, i));
		add_share(&t, rv_json_at(before, i), rv_json_at(now, i));
	}
	return rv_ctl_table_print(ctl, &t);
}

int rv_ctl_cores(struct rv_ctl *ctl)
{
	const struct timespec look = {.tv_nsec = RV_MS(500)};
	struct rv_json *before, *now;
	int code = fetch(ctl, RV_TABLE_CORES, &before);

	if (code || !before)
		return code;
	nanosleep(&look, NULL);
	code = fetch(ctl, RV_TABLE_CORES, &now);
	if (!code)
		code = put_cores(ctl, rv_json_get(before, "cores"), rv_json_get(now, "cores"));
	if (!code)
		rv_json_free(now);
	rv_json_free(before);
	return code;
}

int rv_ctl_peers(struct rv_ctl *ctl)
{
	static const struct column columns[] = {
		{"NAME", "name", TEXT}, {"WORKER", "worker", TEXT},     {"STATE", "state", TEXT},
		{"HOST", "host", TEXT}, {"PORT", "port", NUMBER},       {"RDMA", "rdma", TEXT},
		{"RVD", "rvd", TEXT},   {"INSTANCE", "instance", TEXT},
	};

	return show(ctl, &(struct view){RV_TABLE_PEERS, "peers", columns, RV_ARRAY_NR(columns)});
}

/* status: one `name value` a line, members of members with a dot between. */

struct line {
	const char *prefix;
	unsigned depth;
};

static void put_value(const char *name, const struct rv_json *v, unsigned depth);

static int put_member(void *user, const char *key, const struct rv_json *member)
{
	const struct line *l = user;
	char name[128];

	snprintf(name, sizeof(name), "%s%s%s", l->prefix, *l->prefix ? "." : "", key);
	put_value(name, member, l->depth);
	return 0;
}

/* NOLINTNEXTLINE(misc-no-recursion): put_value() ends it */
static void put_array(const char *name, const struct rv_json *v, unsigned depth)
{
	char text[256];

	if (!rv_json_nr(v))
		printf("%-32s -\n", name);
	for (size_t i = 0; i < rv_json_nr(v); i++) {
		const struct rv_json *e = rv_json_at(v, i);

		if (rv_json_kind(e) == RV_JSON_OBJECT) {
			char each[128];

			snprintf(each, sizeof(each), "%s.%zu", name, i);
			put_value(each, e, depth);
			continue;
		}
		rv_text_scalar(e, text, sizeof(text));
		printf("%-32s %s\n", name, text);
	}
}

/* NOLINTNEXTLINE(misc-no-recursion): to a depth of 4 */
static void put_value(const char *name, const struct rv_json *v, unsigned depth)
{
	char text[256];

	if (depth > 4)
		return;
	if (rv_json_kind(v) == RV_JSON_OBJECT) {
		rv_json_each(v, put_member, &(struct line){name, depth + 1});
	} else if (rv_json_kind(v) == RV_JSON_ARRAY) {
		put_array(name, v, depth + 1);
	} else {
		rv_text_scalar(v, text, sizeof(text));
		printf("%-32s %s\n", name, text);
	}
}

int rv_ctl_status(struct rv_ctl *ctl)
{
	struct rv_json *doc;
	int code = fetch(ctl, RV_TABLE_STATUS, &doc);

	if (code || !doc)
		return code;
	put_value("", doc, 0);
	rv_json_free(doc);
	return 0;
}
