#include "tools/rvtop.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dataplane/base/units.h"
#include "tools/text_table.h"

#define SPARKS     40u
#define BAR        24u
#define COLUMNS    8u
#define ROWS_LINES 3u /* title, age line, head */

enum how { TEXT, NUMBER, BYTES, PERCENT, FRAGMENTS };

struct column {
	const char *head, *key;
	enum how how;
};

struct tab {
	const char *name, *list;
	struct column column[COLUMNS];
};

static const struct tab tabs[RV_TOP_TABS] = {
	[RV_TOP_OVERVIEW] = {"overview", NULL, {{0}}},
	[RV_TOP_CORES] = {"cores",
			  "cores",
			  {{"CORE", "core", NUMBER},
			   {"ROLES", "roles", TEXT},
			   {"CPU", "cpu", TEXT},
			   {"POLLS", "polls", NUMBER},
			   {"SLEEPS", "sleeps", NUMBER},
			   {"BUSY_S", "busy_s", NUMBER},
			   {"USEFUL", "useful", PERCENT}}},
	[RV_TOP_SLOTS] = {"slots",
			  "slots",
			  {{"BYTES", "bytes", BYTES},
			   {"HANDLE", "handle", TEXT},
			   {"REFS", "refcount", NUMBER},
			   {"LEASES", "leases", NUMBER},
			   {"PINNED", "pinned", TEXT},
			   {"UID", "uid", NUMBER},
			   {"TTL_S", "ttl_left_s", NUMBER}}},
	[RV_TOP_LEASES] = {"leases",
			   "leases",
			   {{"AGE_S", "age_s", NUMBER},
			    {"LEFT_S", "left_s", NUMBER},
			    {"KIND", "kind", TEXT},
			    {"LEASE", "lease", TEXT},
			    {"CONSUMER", "consumer", TEXT},
			    {"HANDLE", "handle", TEXT}}},
	[RV_TOP_ARENAS] = {"arenas",
			   "arenas",
			   {{"BYTES", "bytes", BYTES},
			    {"USED", "used", BYTES},
			    {"KIND", "kind", TEXT},
			    {"REG", "registered", TEXT},
			    {"CORE", "core", NUMBER},
			    {"UID", "uid", NUMBER},
			    {"BLOCKS", "blocks", NUMBER},
			    {"#used -largest_free .free", "largest_free", FRAGMENTS}}},
	[RV_TOP_PEERS] = {"peers",
			  "peers",
			  {{"NAME", "name", TEXT},
			   {"STATE", "state", TEXT},
			   {"HOST", "host", TEXT},
			   {"PORT", "port", NUMBER},
			   {"RDMA", "rdma", TEXT},
			   {"RVD", "rvd", TEXT},
			   {"WORKER", "worker", TEXT}}},
};

const char *rv_top_tab_name(enum rv_top_tab tab)
{
	return tabs[tab].name;
}

unsigned rv_top_columns(enum rv_top_tab tab)
{
	unsigned nr = 0;

	while (nr < COLUMNS && tabs[tab].column[nr].head)
		nr++;
	return nr;
}

/* The overview. */

static void put_title(const struct rv_top *t, const struct rv_top_how *how, FILE *f)
{
	uint64_t up = (uint64_t)rv_top_number(t->status, "uptime_s");
	char name[64], version[32], now[16] = "";
	time_t s = time(NULL);
	struct tm tm;
	bool set;

	rv_text_scalar(rv_json_get(t->status, "name"), name, sizeof(name));
	rv_text_scalar(rv_json_get(t->status, "version"), version, sizeof(version));
	if (localtime_r(&s, &tm))
		strftime(now, sizeof(now), "%H:%M:%S", &tm);
	fprintf(f, "%c%s  rvd %s on %s, up %" PRIu64 ":%02" PRIu64 ":%02" PRIu64 ", %s%s%s\n",
		RV_TOP_HEAD, now, version, name, up / 3600, up / 60 % 60, up % 60,
		tabs[how->tab].name,
		rv_json_bool(rv_json_get(t->status, "draining"), &set) == 0 && set ? ", DRAINING"
										   : "",
		rv_json_bool(rv_json_get(t->status, "rdma_off"), &set) == 0 && set ? ", RDMA OFF"
										   : "");
}

static void put_sparks(const double *ring, unsigned looks, bool utf8, FILE *f)
{
	static const char *const blocks[] = {"\u2581", "\u2582", "\u2583", "\u2584",
					     "\u2585", "\u2586", "\u2587", "\u2588"};
	static const char *const ascii[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
	unsigned nr = looks < SPARKS ? looks : SPARKS;
	double most = 0;

	for (unsigned i = looks - nr; i < looks; i++)
		most = ring[i % RV_TOP_LOOKS] > most ? ring[i % RV_TOP_LOOKS] : most;
	for (unsigned i = 0; i < SPARKS - nr; i++)
		fputc(' ', f);
	for (unsigned i = looks - nr; i < looks; i++) {
		double share = most > 0 ? ring[i % RV_TOP_LOOKS] / most : 0;
		unsigned step = (unsigned)(share * 7 + 0.5);

		fputs((utf8 ? blocks : ascii)[step], f);
	}
	fprintf(f, "  peak %.3f\n", most / 1e9);
}

static void put_speed(const struct rv_top *t, const char *name, const char *counter,
		      const double *ring, bool utf8, FILE *f)
{
	double rate = rv_top_rate(t, counter);

	if (rate < 0)
		fprintf(f, "GB/s %-4s      -  ", name);
	else
		fprintf(f, "GB/s %-4s %6.3f  ", name, rate / 1e9);
	put_sparks(ring, t->looks, utf8, f);
}

static void put_bar(double share, FILE *f)
{
	unsigned full = share > 0 ? (unsigned)((share < 1 ? share : 1) * BAR + 0.5) : 0;

	fputc('[', f);
	for (unsigned i = 0; i < BAR; i++)
		fputc(i < full ? '#' : ' ', f);
	fputc(']', f);
}

static void put_bytes(const struct rv_top *t, const char *label, const char *path, FILE *f)
{
	char text[32];

	rv_text_bytes((uint64_t)rv_top_number(t->status, path), text, sizeof(text));
	fprintf(f, "%s %s", label, text);
}

static void put_memory(const struct rv_top *t, FILE *f)
{
	double most = rv_top_number(t->status, "registered_bytes_budget");

	put_bytes(t, "registered", "registered_bytes", f);
	put_bytes(t, " of", "registered_bytes_budget", f);
	fputc(' ', f);
	put_bar(most > 0 ? rv_top_number(t->status, "registered_bytes") / most : 0, f);
	fputc('\n', f);
	put_bytes(t, "plain", "plain_bytes", f);
	put_bytes(t, " of", "plain_bytes_budget", f);
	put_bytes(t, "  of both in use", "used_bytes", f);
	fprintf(f, "  resting blocks %.0f\n", rv_top_number(t->status, "resting_blocks"));
}

static void put_counts(const struct rv_top *t, FILE *f)
{
	fprintf(f, "slots %.0f  leases: rdma %.0f, chunked %.0f, local %.0f  gets under way %.0f\n",
		rv_top_number(t->status, "slots"), rv_top_number(t->status, "leases.rdma"),
		rv_top_number(t->status, "leases.chunked"),
		rv_top_number(t->status, "leases.local"),
		rv_top_number(t->status, "gets_under_way"));
	fprintf(f, "sessions %.0f  tcp connections %.0f  requests pending %.0f\n",
		rv_top_number(t->status, "sessions"), rv_top_number(t->status, "tcp_connections"),
		rv_top_number(t->status, "requests_pending"));
}

static void put_cores(const struct rv_top *t, FILE *f)
{
	const struct rv_json *cores = rv_json_get(t->status, "cores");
	char roles[32];

	for (size_t i = 0; i < rv_json_nr(cores); i++) {
		double useful = rv_top_useful(t, i);

		rv_text_scalar(rv_json_get(rv_json_at(cores, i), "roles"), roles, sizeof(roles));
		fprintf(f, "core %zu (%s) ", i, roles);
		put_bar(useful, f);
		if (useful < 0)
			fputs("     - useful\n", f);
		else
			fprintf(f, " %5.1f%% useful\n", 100 * useful);
	}
}

struct path_out {
	const struct rv_top *t;
	FILE *f;
};

static int put_path(void *user, const char *key, const struct rv_json *member)
{
	const struct path_out *o = user;
	char path[64], count[32], rate[32] = "-";
	double per_s;

	snprintf(path, sizeof(path), "paths.%s", key);
	if (rv_top_number(o->t->status, path) <= 0)
		return 0;
	per_s = rv_top_rate(o->t, path);
	if (per_s >= 0)
		snprintf(rate, sizeof(rate), "%.1f", per_s);
	rv_text_scalar(member, count, sizeof(count));
	fprintf(o->f, "%-8s %-24s %12s %10s\n", strcmp(key, "ok") == 0 ? "rdma" : "chunked", key,
		count, rate);
	return 0;
}

static void overview(const struct rv_top *t, const struct rv_top_how *how, FILE *f)
{
	put_speed(t, "in", "bytes_in", t->in, how->utf8, f);
	put_speed(t, "out", "bytes_out", t->out, how->utf8, f);
	put_memory(t, f);
	put_counts(t, f);
	put_cores(t, f);
	fprintf(f, "%c%-8s %-24s %12s %10s\n", RV_TOP_HEAD, "PATH", "REASON", "COUNT", "PER_S");
	rv_json_each(rv_json_get(t->status, "paths"), put_path, &(struct path_out){t, f});
}

/* Tables. */

/* A row as a cell's text. */
static void format_cell(const struct rv_top *t, const struct column *c, const struct rv_json *row,
			size_t i, char *out, size_t cap)
{
	const struct rv_json *v = rv_json_get(row, c->key);
	uint64_t n;

	if (c->how == BYTES && rv_json_uint(v, UINT64_MAX, &n) == 0) {
		rv_text_bytes(n, out, cap);
	} else if (c->how == PERCENT) {
		double useful = rv_top_useful(t, i);

		if (useful < 0)
			snprintf(out, cap, "-");
		else
			snprintf(out, cap, "%.1f%%", 100 * useful);
	} else if (c->how == FRAGMENTS) {
		double all = rv_top_number(row, "bytes");
		double used = all > 0 ? rv_top_number(row, "used") / all : 0;
		double most = all > 0 ? rv_top_number(row, "largest_free") / all : 0;
		size_t a = (size_t)(used * BAR + 0.5), b = a + (size_t)(most * BAR + 0.5);

		for (size_t k = 0; k < BAR && k + 1 < cap; k++)
			out[k] = k < a ? '#' : k < b ? '-' : '.';
		out[rv_min_u64(BAR, cap - 1)] = '\0';
	} else {
		rv_text_scalar(v, out, cap);
	}
}

struct order {
	const char *key;
	bool reverse;
};

static struct order order; /* qsort has no room for it */

static int compare(const void *x, const void *y)
{
	const struct rv_json *a = rv_json_get(*(const struct rv_json *const *)x, order.key);
	const struct rv_json *b = rv_json_get(*(const struct rv_json *const *)y, order.key);
	double na, nb;
	size_t la = 0, lb = 0;
	int c;

	if (rv_json_double(a, &na) == 0 && rv_json_double(b, &nb) == 0) {
		c = (na < nb) - (na > nb); /* the largest first */
	} else {
		const char *ta = rv_json_text(a, &la), *tb = rv_json_text(b, &lb);

		c = strcmp(ta ? ta : "", tb ? tb : "");
	}
	return order.reverse ? -c : c;
}

static void put_ages(const struct rv_json *rows, FILE *f)
{
	static const struct {
		double to;
		const char *name;
	} ages[] = {{1, "under 1 s"}, {10, "under 10 s"}, {60, "under 60 s"}, {1e18, "older"}};
	unsigned nr[RV_ARRAY_NR(ages)] = {0};

	for (size_t i = 0; i < rv_json_nr(rows); i++) {
		double age = rv_top_number(rv_json_at(rows, i), "age_s");
		unsigned k = 0;

		while (k + 1 < RV_ARRAY_NR(ages) && age >= ages[k].to)
			k++;
		nr[k]++;
	}
	for (unsigned k = 0; k < RV_ARRAY_NR(ages); k++)
		fprintf(f, "%s%s %u", k ? ", " : "", ages[k].name, nr[k]);
	fputc('\n', f);
}

static void fill(const struct rv_top *t, const struct rv_top_how *how,
		 const struct rv_json *const *row, size_t nr, struct rv_text_table *table)
{
	const struct column *col = tabs[how->tab].column;
	size_t first = rv_min_u64(how->skip, nr), last = nr;
	char text[256];

	if (how->height)
		last = rv_min_u64(
			nr, first + (how->height > ROWS_LINES ? how->height - ROWS_LINES : 1));
	table->columns = rv_top_columns(how->tab);
	for (unsigned i = 0; i < table->columns; i++) {
		snprintf(text, sizeof(text), "%s%s", col[i].head,
			 i == how->sort ? (how->reverse ? "^" : "v") : "");
		rv_text_table_add(table, text);
		table->right |= (uint64_t)(col[i].how != TEXT && col[i].how != FRAGMENTS) << i;
	}
	for (size_t r = first; r < last; r++) {
		for (unsigned i = 0; i < table->columns; i++) {
			format_cell(t, &col[i], row[r], r, text, sizeof(text));
			rv_text_table_add(table, text);
		}
	}
}

static unsigned table_of(const struct rv_top *t, const struct rv_top_how *how, FILE *f)
{
	const struct rv_json *doc = how->tab == RV_TOP_CORES ? t->status : t->list;
	const struct rv_json *rows = rv_json_get(doc, tabs[how->tab].list);
	size_t nr = rv_json_nr(rows);
	const struct rv_json **row = calloc(nr + 1, sizeof(const struct rv_json *));
	struct rv_text_table table = {0};

	if (!row)
		return 0;
	for (size_t i = 0; i < nr; i++)
		row[i] = rv_json_at(rows, i);
	/* A core's share goes by its number. */
	if (how->tab != RV_TOP_CORES) {
		order = (struct order){tabs[how->tab].column[how->sort].key, how->reverse};
		qsort(row, nr, sizeof(const struct rv_json *), compare);
	}
	if (how->tab == RV_TOP_LEASES)
		put_ages(rows, f);
	fill(t, how, row, nr, &table);
	if (!table.bad) {
		fputc(RV_TOP_HEAD, f);
		rv_text_table_put(&table, how->width, f);
	}
	rv_text_table_free(&table);
	free(row);
	return (unsigned)nr;
}

unsigned rv_top_view(const struct rv_top *t, const struct rv_top_how *how, FILE *f)
{
	if (t->why[0]) {
		fprintf(f, "%crvtop\n%s\n", RV_TOP_HEAD, t->why);
		return 0;
	}
	put_title(t, how, f);
	if (how->tab != RV_TOP_OVERVIEW)
		return table_of(t, how, f);
	overview(t, how, f);
	return 0;
}

/* JSON. */

static void put_rate(const struct rv_top *t, struct rv_json_out *o, const char *key,
		     const char *path)
{
	double v = rv_top_rate(t, path);

	rv_json_out_key(o, key);
	if (v < 0)
		rv_json_out_null(o);
	else
		rv_json_out_double(o, v);
}

void rv_top_json(const struct rv_top *t, const struct rv_top_how *how, FILE *f)
{
	struct rv_json_out o;

	rv_json_out_init(&o);
	rv_json_out_object(&o);
	rv_json_out_key(&o, "time");
	rv_json_out_i64(&o, (int64_t)time(NULL));
	if (t->why[0]) {
		rv_json_out_key(&o, "error");
		rv_json_out_str(&o, t->why);
	} else {
		put_rate(t, &o, "in_bytes_per_s", "bytes_in");
		put_rate(t, &o, "out_bytes_per_s", "bytes_out");
		put_rate(t, &o, "rdma_gets_per_s", "paths.ok");
		rv_json_out_key(&o, "useful");
		rv_json_out_array(&o);
		for (size_t i = 0; i < rv_json_nr(rv_json_get(t->status, "cores")); i++) {
			double useful = rv_top_useful(t, i);

			if (useful < 0)
				rv_json_out_null(&o);
			else
				rv_json_out_double(&o, useful);
		}
		rv_json_out_array_end(&o);
	}
	rv_json_out_object_end(&o);
	/* The daemon's own words, whole, as further members. */
	if (!o.bad) {
		fprintf(f, "%.*s", (int)o.len - 1, o.buf);
		if (!t->why[0])
			fprintf(f, ",\"status\":%s", t->status_text);
		if (t->list_text && strlen(t->list_text) > 2) /* {...}: without its braces */
			fprintf(f, ",%.*s", (int)strlen(t->list_text) - 2, t->list_text + 1);
		fputs("}\n", f);
	}
	rv_json_out_fini(&o);
}
