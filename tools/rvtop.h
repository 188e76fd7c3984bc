/*
 * rvtop.h - what rvtop knows of its daemon (rvtop_data.c), and how that looks as text (rvtop_view.c).
 *
 *   look: status, and the tab's list -> two looks make a rate -> view: lines of text, or one of JSON
 *
 * @thread the only one
 */
#ifndef RV_TOOLS_RVTOP_H
#define RV_TOOLS_RVTOP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "control/client/rv.h"
#include "control/json/json.h"

#define RV_TOP_LOOKS 120u

enum rv_top_tab {
	RV_TOP_OVERVIEW,
	RV_TOP_CORES,
	RV_TOP_SLOTS,
	RV_TOP_LEASES,
	RV_TOP_ARENAS,
	RV_TOP_PEERS,
	RV_TOP_TABS
};

struct rv_top {
	const char *socket; /* NULL: the default */
	struct rv_client *c;
	char why[512]; /* why there is nothing to show; "" otherwise */

	char *status_text, *list_text;
	struct rv_json *status, *before, *list; /* this look's, the last one's of the same daemon */
	uint64_t at_ns, before_ns;

	/* Bytes a second, a ring; one entry a look that had one before it. */
	double in[RV_TOP_LOOKS], out[RV_TOP_LOOKS];
	unsigned looks;
};

/** How the user wants it. */
struct rv_top_how {
	enum rv_top_tab tab;
	unsigned sort; /* column */
	bool reverse;
	unsigned skip;          /* rows scrolled over */
	unsigned width, height; /* 0: all */
	bool utf8;
};

/** Ask the daemon; opens the session, again when the daemon went. @return 0 or a negative errno, with `why` */
int rv_top_look(struct rv_top *t, enum rv_top_tab tab);

/** Growth a second of the counter at @path ("paths.ok") between the last two looks; below 0: not known. */
double rv_top_rate(const struct rv_top *t, const char *path);

/** The number at @path of a status, 0 without one. */
double rv_top_number(const struct rv_json *status, const char *path);

/** Useful share of core @i between the last two looks, 0 to 1; below 0: not known, or asleep all the time. */
double rv_top_useful(const struct rv_top *t, size_t i);

void rv_top_fini(struct rv_top *t);

/** First character of a line that is a heading. */
#define RV_TOP_HEAD '\1'

/** The tab as lines. @return rows its table has, shown or not */
unsigned rv_top_view(const struct rv_top *t, const struct rv_top_how *how, FILE *f);

/** The same as one line of JSON. */
void rv_top_json(const struct rv_top *t, const struct rv_top_how *how, FILE *f);

const char *rv_top_tab_name(enum rv_top_tab tab);

/** Columns that the tab's table can be sorted by. */
unsigned rv_top_columns(enum rv_top_tab tab);

#endif
