#include "tools/rvctl_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "dataplane/base/units.h"

#define COLUMNS_MAX 16u
#define NARROWEST   6u
#define GAP         2u

void rv_ctl_table_add(struct rv_ctl_table *t, const char *text)
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

/* Columns of the terminal; 0: not a terminal, everything is printed whole. */
static size_t terminal_width(void)
{
	struct winsize ws;

	if (!isatty(STDOUT_FILENO))
		return 0;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col)
		return ws.ws_col;
	return 80;
}

static void measure(const struct rv_ctl_table *t, size_t width[COLUMNS_MAX])
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
static void squeeze(const struct rv_ctl_table *t, size_t width[COLUMNS_MAX], size_t limit)
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

static void put_cell(const char *text, size_t width, bool right, bool last)
{
	size_t len = strlen(text);

	if (len > width && is_id(text))
		printf("~%s", text + len - width + 1);
	else if (len > width)
		printf("%.*s~", (int)width - 1, text);
	else if (right)
		printf("%*s", (int)width, text);
	else
		printf("%-*s", last ? 0 : (int)width, text);
	fputs(last ? "\n" : "  ", stdout);
}

static void put_rows(const struct rv_ctl_table *t)
{
	size_t width[COLUMNS_MAX];

	measure(t, width);
	squeeze(t, width, terminal_width());
	for (size_t i = 0; i < t->nr; i++) {
		unsigned col = (unsigned)(i % t->columns);

		put_cell(t->cell[i], width[col], t->right >> col & 1, col + 1 == t->columns);
	}
}

int rv_ctl_table_print(const struct rv_ctl *ctl, struct rv_ctl_table *t)
{
	if (!t->bad)
		put_rows(t);
	for (size_t i = 0; i < t->nr; i++)
		free(t->cell[i]);
	free(t->cell);
	return t->bad ? rv_ctl_fail(ctl, RV_CTL_FAILED, "out of memory") : 0;
}
