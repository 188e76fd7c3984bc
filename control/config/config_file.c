#include "control/config/config_file.h"

#include <ini.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "control/config/config_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

/* What the reader and the handler share. inih gives its handler no line, so the reader counts. */
struct reading {
	struct rv_config *cfg;
	FILE *f;
	struct rv_config_place at;
	char section[64];            /* "" before the first, and after one that was refused */
	bool refused;                /* keys of a refused section are passed over in silence */
	struct rv_config_peer *peer; /* inside [peer "NAME"] */
	size_t line_max;             /* longer ones inih would cut */
	int rc;
};

static void wrong(struct reading *r, const char *text)
{
	r->rc = rv_config_complain(&r->at, "%s", text);
}

/*
 * One line without its end.
 *
 * @return its length in the file, which may be over @cap: then only the front was kept; -1 at the
 * end
 */
static long read_line(FILE *f, char *line, size_t cap)
{
	size_t len = 0;
	int c = getc(f);

	if (c == EOF)
		return -1;
	for (; c != EOF && c != '\n'; c = getc(f)) {
		if (len < cap)
			line[len] = (char)c;
		len++;
	}
	if (len > 0 && len <= cap && line[len - 1] == '\r')
		len--;
	return (long)len;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* Cut a comment off, and the blanks in front of it. */
static void strip(char *line)
{
	size_t len;

	for (char *p = line; *p; p++) {
		if ((*p == '#' || *p == ';') && (p == line || is_blank(p[-1]))) {
			*p = '\0';
			break;
		}
	}
	len = strlen(line);
	while (len && is_blank(line[len - 1]))
		line[--len] = '\0';
}

static bool has_control(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < ' ' && line[i] != '\t')
			return true;
	return false;
}

/* `peer "NAME"` -> NAME in place, or NULL. */
static char *peer_name(char *section)
{
	size_t len = strlen(section);

	if (strncmp(section, "peer \"", 6) != 0 || len < 8 || section[len - 1] != '"')
		return NULL;
	section[len - 1] = '\0';
	return section + 6;
}

static void enter_peer(struct reading *r, const char *name)
{
	size_t before = r->cfg->peer_nr;

	r->peer = rv_config_peer_get(r->cfg, name, &r->at);
	if (r->peer && r->cfg->peer_nr == before) {
		rv_config_complain(&r->at, "peer \"%s\": given twice, first on line %d", name,
				   r->peer->line);
		r->peer = NULL;
	}
	r->refused = !r->peer;
	if (r->refused)
		r->rc = -EINVAL;
}

/* @line starts with '['. */
static void enter_section(struct reading *r, char *line)
{
	char *end = strchr(line, ']');
	char *section = line + 1, *name;

	r->section[0] = '\0';
	r->peer = NULL;
	r->refused = true;
	if (!end || end[1]) {
		wrong(r, end ? "text behind the section's bracket" : "section without its bracket");
		return;
	}
	*end = '\0';
	name = peer_name(section);
	if (name) {
		enter_peer(r, name);
	} else if (!rv_config_section_known(section)) {
		r->rc = rv_config_unknown_section(&r->at, section);
	} else {
		snprintf(r->section, sizeof(r->section), "%s", section);
		r->refused = false;
	}
}

/* Is this a line that inih shall see as `key = value`? Everything else was dealt with here. */
static bool judge(struct reading *r, char *line, size_t len)
{
	if (has_control(line, len)) {
		wrong(r, memchr(line, '\0', len) ? "NUL byte" : "control character");
		return false;
	}
	strip(line);
	if (strlen(line) > r->line_max) {
		r->rc = rv_config_complain(&r->at, "line is longer than %zu characters",
					   r->line_max);
		return false;
	}
	if (!line[strspn(line, " \t")])
		return false;
	if (is_blank(line[0])) {
		wrong(r, "line starts with a blank: a value cannot be continued");
		return false;
	}
	if (line[0] == '[') {
		enter_section(r, line);
		return false;
	}
	if (line[strcspn(line, "=:")] != '=') {
		wrong(r, strchr(line, ':') ? "\"key: value\" is not taken; write key = value"
					   : "neither a section nor key = value");
		return false;
	}
	if (line[0] == '=') {
		wrong(r, "value without a key");
		return false;
	}
	return true;
}

/* inih's fgets: lines that are not for it arrive empty, so that it counts them like us. */
static char *next_line(char *str, int num, void *stream)
{
	struct reading *r = stream;
	char line[1024]; /* what is longer than this is a comment, or too long for inih anyhow */
	char *text = line;
	long raw = read_line(r->f, line, sizeof(line) - 1);
	size_t len;

	if (raw < 0)
		return NULL;
	len = rv_min_u64((uint64_t)raw, sizeof(line) - 1);
	line[len] = '\0';
	if (r->at.line++ == 0 && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
		text += 3;
		len -= 3;
	}
	r->line_max = rv_min_u64(RV_CONFIG_LINE_MAX, (uint64_t)num - 3);
	snprintf(str, (size_t)num, "%s\n", judge(r, text, len) ? text : "");
	return str;
}

static int take_pair(void *user, const char *section, const char *key, const char *value)
{
	struct reading *r = user;
	const struct rv_opt *o;
	int rc;

	(void)section; /* cut at 49 characters; the reader knows it whole */
	if (r->refused)
		return 1;
	if (r->peer) {
		rc = rv_config_peer_set(r->peer, key, value, &r->at);
	} else if (!r->section[0]) {
		rc = rv_config_complain(&r->at, "key \"%s\" before the first section", key);
	} else {
		o = rv_config_find(r->section, key);
		rc = o ? rv_config_set(r->cfg, o, value, &r->at)
		       : rv_config_unknown_key(&r->at, r->section, key);
	}
	if (rc)
		r->rc = rc;
	return 1;
}

int rv_config_load_stream(struct rv_config *cfg, FILE *f, const char *name,
			  const struct rv_config_sink *sink)
{
	struct reading r = {.cfg = cfg, .f = f, .at = {sink, name, 0}};
	int rc;

	cfg->source++;
	rc = ini_parse_stream(next_line, &r, take_pair, &r);
	if (rc == -2) /* GCOVR_EXCL_BR_LINE: without memory */
		return -ENOMEM;
	if (ferror(f))
		return -EIO;
	return r.rc;
}

int rv_config_load_file(struct rv_config *cfg, const char *path, const struct rv_config_sink *sink)
{
	FILE *f = fopen(path, "re");
	struct stat st;
	int rc;

	if (!f)
		return -errno;
	rc = fstat(fileno(f), &st);
	if (rc) /* GCOVR_EXCL_BR_LINE: what is open can be asked */
		rc = -errno;
	else
		rc = S_ISDIR(st.st_mode) ? -EISDIR : rv_config_load_stream(cfg, f, path, sink);
	fclose(f);
	return rc;
}
