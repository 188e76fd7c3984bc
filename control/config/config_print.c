#include <inttypes.h>
#include <string.h>

#include "control/config/config_impl.h"

/* Column where the origins and the defaults start. */
#define NOTE_COLUMN 44

/* Width of the help. */
#define HELP_COLUMNS 78u

static void print_noted(FILE *to, const char *key, const char *value, const char *note)
{
	int n = fprintf(to, "%s = %s", key, value);

	fprintf(to, "%*s # %s\n", n < NOTE_COLUMN ? NOTE_COLUMN - n : 0, "", note);
}

static void print_option(const struct rv_config *cfg, const struct rv_opt *o, FILE *to)
{
	const struct rv_config_entry *e = &cfg->entries[o - rv_opts];

	/* A key without a value would not load again. */
	if (e->text)
		print_noted(to, o->key, e->text, e->origin);
	else
		fprintf(to, "# %s =%*s # default: not set\n", o->key,
			(int)(NOTE_COLUMN - 4 - strlen(o->key)), "");
}

static void print_peer(const struct rv_config_peer *p, FILE *to)
{
	char address[RV_CONFIG_HOST_MAX + 16];
	char note[RV_CONFIG_TEXT_MAX + 16];

	if (p->line > 0)
		snprintf(note, sizeof(note), "%s:%d", p->origin, p->line);
	else
		snprintf(note, sizeof(note), "%s", p->origin);
	fprintf(to, "\n[peer \"%s\"]\n", p->name);
	if (*p->address.host) {
		snprintf(address, sizeof(address),
			 strchr(p->address.host, ':') ? "[%s]:%u" : "%s:%u", p->address.host,
			 p->address.port);
		print_noted(to, "address", address, note);
	}
	if (*p->peer_info)
		print_noted(to, "peer_info", p->peer_info, note);
}

/* The heading of a section, in front of its first option. */
static void print_section(const struct rv_opt *o, FILE *to)
{
	if (o == rv_opts || strcmp(o[-1].section, o->section) != 0)
		fprintf(to, "%s[%s]\n", o == rv_opts ? "" : "\n", o->section);
}

void rv_config_print(const struct rv_config *cfg, FILE *to)
{
	for (size_t i = 0; i < rv_opts_nr; i++) {
		print_section(&rv_opts[i], to);
		print_option(cfg, &rv_opts[i], to);
	}
	for (size_t i = 0; i < cfg->peer_nr; i++)
		print_peer(&cfg->peer[i], to);
}

void rv_config_each(const struct rv_config *cfg,
		    void (*each)(void *user, const char *section, const char *key,
				 const char *value, const char *origin),
		    void *user)
{
	for (size_t i = 0; i < rv_opts_nr; i++)
		each(user, rv_opts[i].section, rv_opts[i].key, cfg->entries[i].text,
		     cfg->entries[i].origin);
}

/* @text in lines of HELP_COLUMNS, each behind "    ". */
static void print_wrapped(FILE *to, const char *text)
{
	while (*text) {
		size_t len = strlen(text);

		if (len > HELP_COLUMNS) {
			len = HELP_COLUMNS;
			while (len > 1 && text[len] != ' ')
				len--;
		}
		fprintf(to, "    %.*s\n", (int)len, text);
		text += len;
		text += strspn(text, " ");
	}
}

static void print_values(const struct rv_opt *o, FILE *to)
{
	char lo[32], hi[32];

	if (o->type == RV_OPT_SIZE || o->type == RV_OPT_NS) {
		(o->type == RV_OPT_NS ? rv_config_format_ns : rv_config_format_size)(o->lo, lo);
		(o->type == RV_OPT_NS ? rv_config_format_ns : rv_config_format_size)(o->hi, hi);
		/* cppcheck-suppress uninitvar ; both are written by the call through a pointer */
		fprintf(to, "    values: %s to %s", o->lo ? lo : "0", hi);
	} else if (o->type == RV_OPT_U32) {
		fprintf(to, "    values: %" PRIu64 " to %" PRIu64, o->lo, o->hi);
	} else if (o->type == RV_OPT_WORD) {
		fprintf(to, "    values: %s", o->words);
	} else if (o->type == RV_OPT_BOOL) {
		fprintf(to, "    values: yes/no");
	} else {
		return;
	}
	if (o->flags & (RV_OPT_AUTO | RV_OPT_NONE))
		fprintf(to, ", or %s", (o->flags & RV_OPT_AUTO) ? "auto" : "none");
	fputc('\n', to);
}

static void print_help(const struct rv_opt *o, FILE *to)
{
	if (o->derived)
		fprintf(to, "%s (default: %s)\n", o->key, o->derived);
	else
		fprintf(to, "%s (default: %s)\n", o->key, *o->def ? o->def : "not set");
	print_wrapped(to, o->help);
	print_values(o, to);
}

void rv_config_help(FILE *to)
{
	for (size_t i = 0; i < rv_opts_nr; i++) {
		print_section(&rv_opts[i], to);
		print_help(&rv_opts[i], to);
	}
	fprintf(to, "\n[peer \"NAME\"]\n");
	for (size_t i = 0; i < rv_peer_opts_nr; i++)
		print_help(&rv_peer_opts[i], to);
}

size_t rv_config_diff(const struct rv_config *a, const struct rv_config *b,
		      void (*changed)(void *user, const char *section, const char *key, bool live),
		      void *user)
{
	size_t nr = 0;

	for (size_t i = 0; i < rv_opts_nr; i++) {
		const struct rv_opt *o = &rv_opts[i];

		if (memcmp((const char *)a + o->offset, (const char *)b + o->offset, o->size) == 0)
			continue;
		nr++;
		if (changed)
			changed(user, o->section, o->key, (o->flags & RV_OPT_LIVE) != 0);
	}
	return nr;
}
