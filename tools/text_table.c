#include "tools/text_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "dataplane/base/units.h"

#define COLUMNS_MAX 16u
#define NARROWEST   6u
#define GAP         2ul

void rv_text_table_add(struct rv_text_table *t, const char *text)
{
	if (t->nr == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;
		char **p = realloc(t->cell, cap * sizeof(*p));

		if (!p) {
			t->bad = true;
			return;
		}
		t->cell = p;
		t->cap = cap;
	}
	t->cell[t->nr] = strdup(text ? text : "-");
	if (t->cell[t->nr])
		t->nr++;
	else
		t->bad = true;
}

size_t rv_text_width(void)
{
	struct winsize ws;

	if (!isatty(STDOUT_FILENO))
		return 0;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col)
		return ws.ws_col;
	return 80;
}

static void measure(const struct rv_text_table *t, size_t width[COLUMNS_MAX])
{
	memset(width, 0, COLUMNS_MAX * sizeof(width[0]));
	for (size_t i = 0; i < t->nr; i++)
		width[i % t->columns] = rv_max_u64(width[i % t->columns], strlen(t->cell[i]));
}

/* Ids differ at their end, so that is what is left of them. */
static bool is_id(const char *text)
{
	return text[strspn(text, "0123456789abcdef-")] == '\0';
}

/* Take from the widest column of text until all fit; numbers stay whole. */
static void squeeze(const struct rv_text_table *t, size_t width[COLUMNS_MAX], size_t limit)
{
	for (;;) {
		size_t total = GAP * (t->columns - 1), *widest = NULL;

		for (unsigned i = 0; i < t->columns; i++) {
			total += width[i];
			if (!(t->right >> i & 1) && (!widest || width[i] > *widest))
				widest = &width[i];
		}
		if (!limit || total <= limit || !widest || *widest <= NARROWEST)
			return;
		--*widest;
	}
}

static void put_cell(FILE *f, const char *text, size_t width, bool right, bool last)
{
	size_t len = strlen(text);

	if (len > width && is_id(text))
		fprintf(f, "~%s", text + len - width + 1);
	else if (len > width)
		fprintf(f, "%.*s~", (int)width - 1, text);
	else if (right)
		fprintf(f, "%*s", (int)width, text);
	else
		fprintf(f, "%-*s", last ? 0 : (int)width, text);
	fputs(last ? "\n" : "  ", f);
}

void rv_text_table_put(const struct rv_text_table *t, size_t limit, FILE *f)
{
	size_t width[COLUMNS_MAX];

	measure(t, width);
	squeeze(t, width, limit);
	for (size_t i = 0; i < t->nr; i++) {
		unsigned col = (unsigned)(i % t->columns);

		put_cell(f, t->cell[i], width[col], t->right >> col & 1, col + 1 == t->columns);
	}
}

void rv_text_table_free(struct rv_text_table *t)
{
	for (size_t i = 0; i < t->nr; i++)
		free(t->cell[i]);
	free(t->cell);
	t->cell = NULL;
	t->nr = t->cap = 0;
}

void rv_text_scalar(const struct rv_json *v, char *out, size_t cap)
{
	uint64_t n;
	size_t len;
	double d;
	bool b;

	switch (v ? rv_json_kind(v) : RV_JSON_NULL) {
	case RV_JSON_BOOL:
		snprintf(out, cap, "%s", rv_json_bool(v, &b) == 0 && b ? "yes" : "no");
		break;
	case RV_JSON_INT:
		if (rv_json_uint(v, UINT64_MAX, &n) == 0)
			snprintf(out, cap, "%" PRIu64, n);
		else
			snprintf(out, cap, "?");
		break;
	case RV_JSON_DOUBLE:
		snprintf(out, cap, "%.3f", rv_json_double(v, &d) == 0 ? d : 0.0);
		break;
	case RV_JSON_STRING:
		snprintf(out, cap, "%s", *rv_json_text(v, &len) ? rv_json_text(v, &len) : "-");
		break;
	default:
		snprintf(out, cap, "-");
	}
	/* A name of a peer's choice must not move the cursor. */
	for (char *p = out; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
}

void rv_text_bytes(uint64_t n, char *out, size_t cap)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
	uint64_t whole;
	unsigned u = 0;

	if (n < RV_KIB(10)) {
		snprintf(out, cap, "%" PRIu64, n);
		return;
	}
	for (whole = RV_KIB(1); u < 3 && n / whole >= 1024; u++)
		whole <<= 10;
	snprintf(out, cap, "%.1f%s", (double)n / (double)whole, units[u]);
}
