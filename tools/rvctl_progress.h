/*
 * rvctl_progress.h - how far a long transfer is, on a terminal.
 *
 *   begin --(a second passes)--> a line on stderr, drawn anew five times a second --> end: the line is gone
 *
 * Where stderr is no terminal nothing is ever shown. One at a time.
 */
#ifndef RV_TOOLS_RVCTL_PROGRESS_H
#define RV_TOOLS_RVCTL_PROGRESS_H

#include <stdint.h>

/**
 * @param what   "fetching"; borrowed
 * @param total  bytes; 0: not known: then what is done is shown, and the time
 */
void rv_progress_begin(const char *what, uint64_t total);

/** @nr bytes more are done. Harmless between end and begin. @cost two instructions */
void rv_progress_add(uint64_t nr);

void rv_progress_end(void);

/** The line, of at most @width columns: for rv_progress_begin()'s thread, and a test. @return its length */
int rv_progress_line(char *out, int width, const char *what, uint64_t done, uint64_t total,
		     double seconds);

#endif
