#include "control/config/config.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "control/config/config_impl.h"
#include "dataplane/base/check.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

/* An enum's field is written as an unsigned. */
_Static_assert(sizeof(enum rv_config_auto) == sizeof(unsigned), "enums are as wide as unsigned");
_Static_assert(sizeof(enum rv_log_level) == sizeof(unsigned), "enums are as wide as unsigned");

#define COMPLAINT_MAX 1024

int rv_config_complain(const struct rv_config_place *at, const char *fmt, ...)
{
	char text[COMPLAINT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (at->sink && at->sink->complain)
		at->sink->complain(at->sink->user, at->file, at->line, text);
	return -EINVAL;
}

/* ---- names ---- */

const struct rv_opt *rv_config_find(const char *section, const char *key)
{
	for (size_t i = 0; i < rv_opts_nr; i++)
		if (strcmp(rv_opts[i].section, section) == 0 && strcmp(rv_opts[i].key, key) == 0)
			return &rv_opts[i];
	return NULL;
}

bool rv_config_section_known(const char *section)
{
	for (size_t i = 0; i < rv_opts_nr; i++)
		if (strcmp(rv_opts[i].section, section) == 0)
			return true;
	return false;
}

/* Longest name that we compare; ours are all shorter. */
#define NAME_MAX_LEN 64u

/* Insertions, deletions and replacements that turn @a into @b; case does not count. */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[NAME_MAX_LEN + 1];
	size_t len = strlen(b);

	if (len > NAME_MAX_LEN || strlen(a) > NAME_MAX_LEN)
		return NAME_MAX_LEN;
	for (unsigned j = 0; j <= len; j++)
		row[j] = j;
	for (unsigned i = 1; a[i - 1]; i++) {
		unsigned diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= len; j++) {
			unsigned above = row[j];
			int differ = tolower((unsigned char)a[i - 1]) !=
				     tolower((unsigned char)b[j - 1]);
			unsigned least = diagonal + (unsigned)differ;

			least = above + 1 < least ? above + 1 : least;
			least = row[j - 1] + 1 < least ? row[j - 1] + 1 : least;
			diagonal = above;
			row[j] = least;
		}
	}
	return row[len];
}

/* A slip of the finger, not another word: up to a third of the letters, at least two. */
struct nearest {
	const char *name;
	unsigned distance;
};

static void nearest_try(struct nearest *n, const char *given, const char *known)
{
	unsigned distance = edit_distance(given, known);
	unsigned limit = (unsigned)strlen(given) / 3;

	if (distance <= (limit < 2 ? 2 : limit) && (!n->name || distance < n->distance)) {
		n->name = known;
		n->distance = distance;
	}
}

int rv_config_unknown_section(const struct rv_config_place *at, const char *section)
{
	struct nearest n = {0};

	for (size_t i = 0; i < rv_opts_nr; i++)
		nearest_try(&n, section, rv_opts[i].section);
	nearest_try(&n, section, "peer \"NAME\"");
	nearest_try(&n, section, "peer");
	if (!n.name)
		return rv_config_complain(at, "unknown section [%s]", section);
	if (strcmp(n.name, "peer") == 0)
		n.name = "peer \"NAME\"";
	return rv_config_complain(at, "unknown section [%s]; did you mean [%s]?", section, n.name);
}

int rv_config_unknown_key(const struct rv_config_place *at, const char *section, const char *key)
{
	bool is_peer = strcmp(section, "peer") == 0;
	const struct rv_opt *table = is_peer ? rv_peer_opts : rv_opts;
	size_t nr = is_peer ? rv_peer_opts_nr : rv_opts_nr;
	struct nearest n = {0};

	for (size_t i = 0; i < nr; i++)
		if (strcmp(table[i].section, section) == 0)
			nearest_try(&n, key, table[i].key);
	if (n.name)
		return rv_config_complain(at, "unknown key \"%s\" in [%s]; did you mean \"%s\"?",
					  key, section, n.name);
	for (size_t i = 0; i < rv_opts_nr; i++)
		if (strcmp(rv_opts[i].key, key) == 0)
			return rv_config_complain(at,
						  "unknown key \"%s\" in [%s]; it belongs to [%s]",
						  key, section, rv_opts[i].section);
	return rv_config_complain(at, "unknown key \"%s\" in [%s]", key, section);
}

/* ---- values ---- */

static struct rv_config_entry *entry_of(const struct rv_config *cfg, const struct rv_opt *o)
{
	return &cfg->entries[o - rv_opts];
}

static void *field_of(void *base, const struct rv_opt *o)
{
	return (char *)base + o->offset;
}

static void entry_fill(struct rv_config *cfg, const struct rv_opt *o, const char *text,
		       const char *file, int line)
{
	struct rv_config_entry *e = entry_of(cfg, o);
	char origin[RV_CONFIG_TEXT_MAX];

	if (line > 0)
		snprintf(origin, sizeof(origin), "%s:%d", file, line);
	else
		snprintf(origin, sizeof(origin), "%s", file);
	free(e->text);
	free(e->origin);
	e->text = strdup(text);
	e->origin = strdup(origin);
	RV_CHECK(e->text && e->origin);
	e->source = cfg->source;
	e->line = line;
}

int rv_config_set(struct rv_config *cfg, const struct rv_opt *o, const char *text,
		  const struct rv_config_place *at)
{
	const struct rv_config_entry *e = entry_of(cfg, o);
	char wrong[RV_CONFIG_WRONG_MAX];

	if (e->text && e->source == cfg->source && at->line > 0)
		return rv_config_complain(at, "%s.%s: given twice, first on line %d", o->section,
					  o->key, e->line);
	if (rv_config_value_parse(o, text, field_of(cfg, o), wrong))
		return rv_config_complain(at, "%s.%s: %s", o->section, o->key, wrong);
	entry_fill(cfg, o, text, at->file, at->line);
	return 0;
}

void rv_config_override(struct rv_config *cfg, const struct rv_opt *o, const char *text,
			const char *origin)
{
	char wrong[RV_CONFIG_WRONG_MAX];

	RV_CHECK(rv_config_value_parse(o, text, field_of(cfg, o), wrong) == 0);
	entry_fill(cfg, o, text, origin, 0);
}

void rv_config_adopt(struct rv_config *running, const struct rv_config *fresh)
{
	for (size_t i = 0; i < rv_opts_nr; i++) {
		const struct rv_opt *o = &rv_opts[i];
		const struct rv_config_entry *e = &fresh->entries[i];

		if (!(o->flags & RV_OPT_LIVE) || !e->text)
			continue;
		memcpy(field_of(running, o), (const char *)fresh + o->offset, o->size);
		entry_fill(running, o, e->text, e->origin, 0);
	}
}

int rv_config_defaults(struct rv_config *cfg)
{
	*cfg = (struct rv_config){0};
	cfg->entries = calloc(rv_opts_nr, sizeof(*cfg->entries));
	if (!cfg->entries)
		return -ENOMEM;
	for (size_t i = 0; i < rv_opts_nr; i++) {
		const struct rv_opt *o = &rv_opts[i];

		if (o->def && *o->def)
			rv_config_override(cfg, o, o->def, "default");
		else if (o->type == RV_OPT_U32)
			*(uint32_t *)field_of(cfg, o) = RV_CONFIG_AUTO;
	}
	cfg->source++;
	return 0;
}

void rv_config_fini(struct rv_config *cfg)
{
	for (size_t i = 0; cfg->entries && i < rv_opts_nr; i++) {
		free(cfg->entries[i].text);
		free(cfg->entries[i].origin);
	}
	free(cfg->entries);
	free(cfg->peer);
	*cfg = (struct rv_config){0};
}

/* ---- peers ---- */

static bool peer_name_ok(const char *name)
{
	size_t len = strlen(name);

	return len > 0 && len < sizeof(((struct rv_config_peer *)0)->name) &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
		       len;
}

struct rv_config_peer *rv_config_peer_get(struct rv_config *cfg, const char *name,
					  const struct rv_config_place *at)
{
	struct rv_config_peer *p;

	if (!peer_name_ok(name)) {
		rv_config_complain(at, "\"%s\" is no peer name: up to 63 letters, digits, . _ -",
				   name);
		return NULL;
	}
	for (size_t i = 0; i < cfg->peer_nr; i++)
		if (strcmp(cfg->peer[i].name, name) == 0)
			return &cfg->peer[i];
	if (cfg->peer_nr == RV_CONFIG_PEER_MAX) {
		rv_config_complain(at, "more than %u peers", RV_CONFIG_PEER_MAX);
		return NULL;
	}
	p = realloc(cfg->peer, (cfg->peer_nr + 1) * sizeof(*p));
	RV_CHECK(p);
	cfg->peer = p;
	p += cfg->peer_nr++;
	*p = (struct rv_config_peer){.line = at->line};
	strcpy(p->name, name);
	snprintf(p->origin, sizeof(p->origin), "%s", at->file);
	return p;
}

int rv_config_peer_set(struct rv_config_peer *p, const char *key, const char *text,
		       const struct rv_config_place *at)
{
	struct rv_config_hosts hosts = {0};
	char wrong[RV_CONFIG_WRONG_MAX];
	bool is_address = strcmp(key, "address") == 0;

	if (!is_address && strcmp(key, "peer_info") != 0)
		return rv_config_unknown_key(at, "peer", key);
	if (*(is_address ? p->address.host : p->peer_info) && at->line > 0)
		return rv_config_complain(at, "peer \"%s\".%s: given twice", p->name, key);
	if (rv_config_value_parse(&rv_peer_opts[is_address ? 0 : 1], text,
				  is_address ? (void *)&hosts : (void *)p->peer_info, wrong))
		return rv_config_complain(at, "peer \"%s\".%s: %s", p->name, key, wrong);
	if (!is_address)
		return 0;
	if (hosts.at[0].port == 0)
		return rv_config_complain(at, "peer \"%s\".address: port 0 cannot be dialed",
					  p->name);
	p->address = hosts.at[0];
	return 0;
}

/* ---- environment and command line ---- */

static void env_name(const struct rv_opt *o, char *out, size_t cap)
{
	snprintf(out, cap, "RVD_%s_%s", o->section, o->key);
	for (char *p = out; *p; p++)
		*p = (char)toupper((unsigned char)*p);
}

/* Not overrides, though they look like one. */
static bool env_exempt(const char *name)
{
	return strcmp(name, "RVD_SOCKET") == 0 || strcmp(name, "RVD_RDMA_DISABLE") == 0;
}

static int apply_env_one(struct rv_config *cfg, const char *name, const char *value,
			 const struct rv_config_sink *sink)
{
	struct rv_config_place at = {sink, "environment", 0};
	char nearest[2 * NAME_MAX_LEN] = "";
	char known[2 * NAME_MAX_LEN];
	unsigned least = 4;

	for (size_t i = 0; i < rv_opts_nr; i++) {
		unsigned distance;

		env_name(&rv_opts[i], known, sizeof(known));
		if (strcmp(name, known) == 0)
			return rv_config_set(cfg, &rv_opts[i], value, &at);
		distance = edit_distance(name, known);
		if (distance < least) {
			least = distance;
			strcpy(nearest, known);
		}
	}
	if (*nearest)
		rv_config_complain(&at, "warning: unknown variable %s; did you mean %s?", name,
				   nearest);
	else
		rv_config_complain(&at, "warning: unknown variable %s", name);
	return 0;
}

int rv_config_apply_env(struct rv_config *cfg, char *const *environ,
			const struct rv_config_sink *sink)
{
	int rc = 0;

	cfg->source++;
	for (; *environ; environ++) {
		const char *equals = strchr(*environ, '=');
		char name[2 * NAME_MAX_LEN];

		if (strncmp(*environ, "RVD_", 4) != 0 || !equals)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)(equals - *environ), *environ);
		if (!env_exempt(name) && apply_env_one(cfg, name, equals + 1, sink))
			rc = -EINVAL;
	}
	return rc;
}

/* `peer.NAME.KEY`: a name may hold dots, the key does not. */
static int apply_peer_option(struct rv_config *cfg, char *name, const char *value,
			     const struct rv_config_place *at)
{
	char *dot = strrchr(name, '.');
	struct rv_config_peer *p;

	if (!dot)
		return rv_config_complain(at, "needs peer.NAME.KEY=VALUE");
	*dot = '\0';
	p = rv_config_peer_get(cfg, name, at);
	return p ? rv_config_peer_set(p, dot + 1, value, at) : -EINVAL;
}

int rv_config_apply_option(struct rv_config *cfg, const char *option,
			   const struct rv_config_sink *sink)
{
	struct rv_config_place at = {sink, "-s", 0};
	char name[2 * RV_CONFIG_HOST_MAX];
	const char *equals = strchr(option, '=');
	const struct rv_opt *o;
	char *key;

	cfg->source++;
	if (!equals || (size_t)(equals - option) >= sizeof(name))
		return rv_config_complain(&at, "\"%s\" is not SECTION.KEY=VALUE", option);
	memcpy(name, option, (size_t)(equals - option));
	name[equals - option] = '\0';
	key = strchr(name, '.');
	if (!key)
		return rv_config_complain(&at, "\"%s\" is not SECTION.KEY=VALUE", option);
	*key++ = '\0';
	if (strcmp(name, "peer") == 0)
		return apply_peer_option(cfg, key, equals + 1, &at);
	o = rv_config_find(name, key);
	if (o)
		return rv_config_set(cfg, o, equals + 1, &at);
	if (!rv_config_section_known(name))
		return rv_config_unknown_section(&at, name);
	return rv_config_unknown_key(&at, name, key);
}

bool rv_config_kill_switch_env(void)
{
	static const char *const names[] = {"VELO_RDMA_RENDEZVOUS_DISABLE", "RVD_RDMA_DISABLE"};
	static const char *const words[] = {"1", "true", "yes", "on"};

	for (size_t i = 0; i < RV_ARRAY_NR(names); i++) {
		const char *value = getenv(names[i]);

		for (size_t j = 0; value && j < RV_ARRAY_NR(words); j++)
			if (strcasecmp(value, words[j]) == 0)
				return true;
	}
	return false;
}
