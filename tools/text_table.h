/*
 * text_table.h - tables of text that fit a terminal, and JSON values as their cells. For rvctl and rvtop.
 *
 * @thread any (no shared state)
 */
#ifndef RV_TOOLS_TEXT_TABLE_H
#define RV_TOOLS_TEXT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "control/json/json.h"

/** Cells row by row, the first row the heads. */
struct rv_text_table {
	unsigned columns;
	uint64_t right; /* bit per column: aligned to the right, never cut */
	char **cell;
	size_t nr, cap;
	bool bad; /* out of memory: cells are missing */
};

/** Add a cell; NULL prints "-". */
void rv_text_table_add(struct rv_text_table *t, const char *text);

/** @param width  columns of text are cut until a row fits; 0: all is printed whole */
void rv_text_table_put(const struct rv_text_table *t, size_t width, FILE *f);

void rv_text_table_free(struct rv_text_table *t);

/** Columns of the terminal that stdout is; 0: it is none. */
size_t rv_text_width(void);

/** Any scalar as text; control characters become '?'. NULL, null and an empty text are "-". */
void rv_text_scalar(const struct rv_json *v, char *out, size_t cap);

/** Exact below 10 KiB, "1.5GiB" above. */
void rv_text_bytes(uint64_t n, char *out, size_t cap);

#endif
