#include "tools/rvtop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

static const struct rv_json *at(const struct rv_json *v, const char *path)
{
	char key[64];

	while (v && *path) {
		size_t len = strcspn(path, ".");

		snprintf(key, sizeof(key), "%.*s", (int)len, path);
		v = rv_json_get(v, key);
		path += len + (path[len] == '.');
	}
	return v;
}

double rv_top_number(const struct rv_json *status, const char *path)
{
	double v = 0;

	return rv_json_double(at(status, path), &v) ? 0 : v;
}

double rv_top_rate(const struct rv_top *t, const char *path)
{
	double grown;

	if (!t->status || !t->before || t->at_ns <= t->before_ns)
		return -1;
	grown = rv_top_number(t->status, path) - rv_top_number(t->before, path);
	return grown > 0 ? grown * 1e9 / (double)(t->at_ns - t->before_ns) : 0;
}

double rv_top_useful(const struct rv_top *t, size_t i)
{
	const struct rv_json *now = rv_json_at(rv_json_get(t->status, "cores"), i);
	const struct rv_json *before = rv_json_at(rv_json_get(t->before, "cores"), i);
	double busy, idle;

	if (!now || !before)
		return -1;
	busy = rv_top_number(now, "busy_s") - rv_top_number(before, "busy_s");
	idle = rv_top_number(now, "idle_s") - rv_top_number(before, "idle_s");
	return busy + idle > 0 && busy >= 0 && idle >= 0 ? busy / (busy + idle) : -1;
}

static int ask(struct rv_top *t, enum rv_table what, char **text, struct rv_json **doc)
{
	const char *why = "";
	size_t len;
	int rc = rv_list(t->c, what, text, &len);

	*doc = NULL;
	if (rc) {
		*text = NULL;
		snprintf(t->why, sizeof(t->why), "%s", rv_last_error());
		return rc;
	}
	rc = rv_json_parse(*text, len, doc, &why);
	if (rc)
		snprintf(t->why, sizeof(t->why), "the daemon's answer is not JSON: %s", why);
	return rc;
}

static void forget_list(struct rv_top *t)
{
	rv_json_free(t->list);
	rv_free(t->list_text);
	t->list = NULL;
	t->list_text = NULL;
}

static void forget(struct rv_top *t)
{
	forget_list(t);
	rv_json_free(t->status);
	rv_json_free(t->before);
	rv_free(t->status_text);
	t->status = t->before = NULL;
	t->status_text = NULL;
}

/* Another process has counters of its own: nothing can be compared with them. */
static bool same_daemon(const struct rv_json *a, const struct rv_json *b)
{
	size_t la, lb;
	const char *wa = rv_json_text(rv_json_get(a, "instance"), &la);
	const char *wb = rv_json_text(rv_json_get(b, "instance"), &lb);

	return wa && wb && strcmp(wa, wb) == 0 &&
	       rv_top_number(a, "uptime_s") <= rv_top_number(b, "uptime_s");
}

static int look(struct rv_top *t, enum rv_top_tab tab)
{
	static const enum rv_table lists[RV_TOP_TABS] = {
		[RV_TOP_SLOTS] = RV_TABLE_SLOTS,
		[RV_TOP_LEASES] = RV_TABLE_LEASES,
		[RV_TOP_ARENAS] = RV_TABLE_ARENAS,
		[RV_TOP_PEERS] = RV_TABLE_PEERS,
	};
	struct rv_json *status;
	char *text;
	int rc = ask(t, RV_TABLE_STATUS, &text, &status);

	if (rc) {
		rv_free(text);
		return rc;
	}
	rv_json_free(t->before);
	rv_free(t->status_text);
	t->before = t->status;
	t->before_ns = t->at_ns;
	t->status = status;
	t->status_text = text;
	t->at_ns = rv_clock_ns();
	if (t->before && !same_daemon(t->before, t->status)) {
		rv_json_free(t->before);
		t->before = NULL;
	}
	return tab == RV_TOP_OVERVIEW || tab == RV_TOP_CORES
		       ? 0
		       : ask(t, lists[tab], &t->list_text, &t->list);
}

int rv_top_look(struct rv_top *t, enum rv_top_tab tab)
{
	int rc = 0;

	t->why[0] = '\0';
	forget_list(t);
	if (!t->c) {
		rc = rv_open(t->socket, &t->c);
		if (rc) {
			t->c = NULL;
			snprintf(t->why, sizeof(t->why), "%s", rv_last_error());
		}
	}
	if (!rc)
		rc = look(t, tab);
	if (rc) {
		if (t->c)
			rv_close(t->c); /* the next look tries again */
		t->c = NULL;
		forget(t);
		return rc;
	}
	if (t->before) {
		t->in[t->looks % RV_TOP_LOOKS] = rv_top_rate(t, "bytes_in");
		t->out[t->looks % RV_TOP_LOOKS] = rv_top_rate(t, "bytes_out");
		t->looks++;
	}
	return 0;
}

void rv_top_fini(struct rv_top *t)
{
	forget(t);
	if (t->c)
		rv_close(t->c);
	t->c = NULL;
}
