/*
 * config_file.h - the configuration file: INI, read by inih through a reader that is stricter than
 * it.
 *
 *   [section]            one of ours, or [peer "NAME"]
 *   key = value          `#` and `;` start a comment at the front of a line or behind a blank
 *
 * Each line is judged before inih sees it, and what is wrong is a complaint with its line number:
 * NUL and other control bytes, a line longer than RV_CONFIG_LINE_MAX, a line that starts with a
 * blank (inih would continue the value before it), `key: value`, text behind a section's bracket.
 *
 * @thread init
 */
#ifndef RV_CONTROL_CONFIG_CONFIG_FILE_H
#define RV_CONTROL_CONFIG_CONFIG_FILE_H

#include "control/config/config.h"

/** Longest line, without its comment, that inih is known to take whole. */
#define RV_CONFIG_LINE_MAX 197u

/**
 * Take a file's settings.
 *
 * @return 0; -EINVAL after complaints; another negative errno, and no complaint, when the file could
 *         not be opened or read
 */
int rv_config_load_file(struct rv_config *cfg, const char *path, const struct rv_config_sink *sink);

/** The same from an open stream; @name stands for it in complaints. It is not closed. */
int rv_config_load_stream(struct rv_config *cfg, FILE *f, const char *name,
			  const struct rv_config_sink *sink);

#endif
