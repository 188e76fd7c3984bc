/*
 * config_impl.h - what the files of this folder share: the option table's row, values, complaints.
 */
#ifndef RV_CONTROL_CONFIG_CONFIG_IMPL_H
#define RV_CONTROL_CONFIG_CONFIG_IMPL_H

#include "control/config/config.h"

enum rv_opt_type {
	RV_OPT_TEXT,
	RV_OPT_BOOL,
	RV_OPT_WORD,  /* an enum; the words in its order, separated by '/' */
	RV_OPT_U32,   /* lo..hi */
	RV_OPT_MODE,  /* octal */
	RV_OPT_SIZE,  /* bytes, lo..hi */
	RV_OPT_NS,    /* nanoseconds, lo..hi */
	RV_OPT_CPUS,  /* up to hi */
	RV_OPT_HOSTS, /* up to hi */
	RV_OPT_CIDRS,
};

#define RV_OPT_AUTO    0x01u /* takes `auto` */
#define RV_OPT_NONE    0x02u /* takes `none` */
#define RV_OPT_ALL     0x04u /* takes `all` */
#define RV_OPT_NO_PORT 0x08u /* a host may come without its port */
#define RV_OPT_PATH    0x10u /* absolute path */
#define RV_OPT_LIVE    0x20u /* may change while the daemon runs */

struct rv_opt {
	const char *section;
	const char *key;
	enum rv_opt_type type;
	unsigned flags;
	const char *def; /* NULL: derived by rv_config_finish(); "": not set */
	size_t offset;
	size_t size;
	uint64_t lo;
	uint64_t hi;
	const char *words;   /* of a WORD */
	const char *derived; /* what the default is derived from, for the help */
	const char *help;
};

/** What was said for an option, and where; both strings are ours. */
struct rv_config_entry {
	char *text; /* NULL: nothing yet */
	char *origin;
	unsigned source;
	int line;
};

/** Where a value comes from, and who hears what is wrong with it. */
struct rv_config_place {
	const struct rv_config_sink *sink;
	const char *file;
	int line;
};

/** The table, and the table of the keys of `[peer "NAME"]` (offsets in struct rv_config_peer). */
extern const struct rv_opt rv_opts[];
extern const size_t rv_opts_nr;
extern const struct rv_opt rv_peer_opts[];
extern const size_t rv_peer_opts_nr;

/** Say it. @return -EINVAL, so that a caller can return the call */
int rv_config_complain(const struct rv_config_place *at, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/** The row of a key, or NULL. */
const struct rv_opt *rv_config_find(const char *section, const char *key);

bool rv_config_section_known(const char *section);

/** Complain about a section or a key that does not exist, with the nearest one that does. */
int rv_config_unknown_section(const struct rv_config_place *at, const char *section);
int rv_config_unknown_key(const struct rv_config_place *at, const char *section, const char *key);

/**
 * Set one option from text, and remember text and origin. @return 0 or -EINVAL after a complaint
 */
int rv_config_set(struct rv_config *cfg, const struct rv_opt *o, const char *text,
		  const struct rv_config_place *at);

/** Find or make a peer. @return NULL after a complaint */
struct rv_config_peer *rv_config_peer_get(struct rv_config *cfg, const char *name,
					  const struct rv_config_place *at);
int rv_config_peer_set(struct rv_config_peer *p, const char *key, const char *text,
		       const struct rv_config_place *at);

/**
 * Replace an option's value by one that we chose; @origin is "default" or says who asked for
 * another.
 */
void rv_config_override(struct rv_config *cfg, const struct rv_opt *o, const char *text,
			const char *origin);

/* config_value.c */

#define RV_CONFIG_WRONG_MAX 512u

/** Read a value of an option into its field. @return 0, or -EINVAL and @wrong says why */
int rv_config_value_parse(const struct rv_opt *o, const char *text, void *field,
			  char wrong[RV_CONFIG_WRONG_MAX]);

/** Sizes and durations with the largest unit that is exact; RV_NEVER is "none". */
void rv_config_format_size(uint64_t bytes, char out[32]);
void rv_config_format_ns(uint64_t ns, char out[32]);

#endif
