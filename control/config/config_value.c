#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "control/config/config_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"

#define NS_PER_MINUTE RV_SEC(60)
#define NS_PER_HOUR   RV_SEC(3600)
#define NS_PER_DAY    RV_SEC(86400)

/* Linux knows this many CPUs in a plain cpu_set_t. */
#define CPU_LIMIT 1024u

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit size_units[] = {
	{"", 1},
	{"B", 1},
	{"K", RV_KIB(1)},
	{"KiB", RV_KIB(1)},
	{"M", RV_MIB(1)},
	{"MiB", RV_MIB(1)},
	{"G", RV_GIB(1)},
	{"GiB", RV_GIB(1)},
	{"T", RV_GIB(1024)},
	{"TiB", RV_GIB(1024)},
};

static const struct unit time_units[] = {
	{"ns", 1},          {"us", RV_US(1)},     {"ms", RV_MS(1)},
	{"s", RV_SEC(1)},   {"m", NS_PER_MINUTE}, {"min", NS_PER_MINUTE},
	{"h", NS_PER_HOUR}, {"d", NS_PER_DAY},
};

static int wrong_value(char wrong[RV_CONFIG_WRONG_MAX], const char *text, const char *what)
{
	snprintf(wrong, RV_CONFIG_WRONG_MAX, "\"%.200s\" is no %s", text, what);
	return -EINVAL;
}

/* Digits at the front of a text. @return how many, 0 also when they overflow */
static size_t take_number(const char *text, uint64_t *out)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; text[i] >= '0' && text[i] <= '9'; i++)
		if (__builtin_mul_overflow(n, 10u, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(text[i] - '0'), &n))
			return 0;
	*out = n;
	return i;
}

/* A number and one of the units. A bare 0 needs none. */
static bool parse_quantity(const char *text, const struct unit *units, size_t nr, bool any_case,
			   uint64_t *out)
{
	uint64_t n;
	size_t digits = take_number(text, &n);
	const char *unit = text + digits;

	if (digits == 0)
		return false;
	if (n == 0 && !*unit) {
		*out = 0;
		return true;
	}
	for (size_t i = 0; i < nr; i++)
		if (!(any_case ? strcasecmp(unit, units[i].name) : strcmp(unit, units[i].name)))
			return !__builtin_mul_overflow(n, units[i].factor, out);
	return false;
}

void rv_config_format_size(uint64_t bytes, char out[32])
{
	static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB"};
	unsigned i = 0;

	if (bytes == RV_NEVER) {
		strcpy(out, "none");
		return;
	}
	while (bytes && bytes % 1024 == 0 && i + 1 < RV_ARRAY_NR(names)) {
		bytes /= 1024;
		i++;
	}
	snprintf(out, 32, "%" PRIu64 "%s", bytes, names[i]);
}

void rv_config_format_ns(uint64_t ns, char out[32])
{
	static const struct unit units[] = {
		{"h", NS_PER_HOUR},
		{"s", RV_SEC(1)},
		{"ms", RV_MS(1)},
		{"us", RV_US(1)},
	};

	if (ns == RV_NEVER) {
		strcpy(out, "none");
		return;
	}
	for (size_t i = 0; i < RV_ARRAY_NR(units); i++) {
		if (ns && ns % units[i].factor == 0) {
			snprintf(out, 32, "%" PRIu64 "%s", ns / units[i].factor, units[i].name);
			return;
		}
	}
	snprintf(out, 32, "%" PRIu64 "ns", ns);
}

static int check_range(const struct rv_opt *o, const char *text, uint64_t n,
		       void (*format)(uint64_t, char[32]), char wrong[RV_CONFIG_WRONG_MAX])
{
	char lo[32], hi[32];

	if (n >= o->lo && n <= o->hi)
		return 0;
	format(o->lo, lo);
	format(o->hi, hi);
	snprintf(wrong, RV_CONFIG_WRONG_MAX, "%.200s is out of range: %s to %s", text, lo, hi);
	return -EINVAL;
}

static void format_plain(uint64_t n, char out[32])
{
	snprintf(out, 32, "%" PRIu64, n);
}

static int parse_size(const struct rv_opt *o, const char *text, uint64_t *field,
		      char wrong[RV_CONFIG_WRONG_MAX])
{
	uint64_t n;

	if (!parse_quantity(text, size_units, RV_ARRAY_NR(size_units), true, &n))
		return wrong_value(wrong, text, "size: 4096, 64K, 64KiB, 1GiB");
	if (check_range(o, text, n, rv_config_format_size, wrong))
		return -EINVAL;
	*field = n;
	return 0;
}

static int parse_ns(const struct rv_opt *o, const char *text, uint64_t *field,
		    char wrong[RV_CONFIG_WRONG_MAX])
{
	uint64_t n;

	if (!parse_quantity(text, time_units, RV_ARRAY_NR(time_units), false, &n))
		return wrong_value(wrong, text,
				   (o->flags & RV_OPT_NONE)
					   ? "duration: 500us, 250ms, 30s, 1h, none"
					   : "duration: 500us, 250ms, 30s, 1h");
	if (check_range(o, text, n, rv_config_format_ns, wrong))
		return -EINVAL;
	*field = n;
	return 0;
}

static int parse_u32(const struct rv_opt *o, const char *text, uint32_t *field,
		     char wrong[RV_CONFIG_WRONG_MAX])
{
	uint64_t n;
	size_t digits = take_number(text, &n);

	if (digits == 0 || text[digits])
		return wrong_value(wrong, text, "whole number");
	if (check_range(o, text, n, format_plain, wrong))
		return -EINVAL;
	*field = (uint32_t)n;
	return 0;
}

static int parse_mode(const char *text, uint32_t *field, char wrong[RV_CONFIG_WRONG_MAX])
{
	uint32_t n = 0;
	size_t i;

	for (i = 0; text[i] >= '0' && text[i] <= '7' && i < 5; i++)
		n = n * 8 + (uint32_t)(text[i] - '0');
	if (i < 3 || text[i] || n > 0777)
		return wrong_value(wrong, text, "file mode: 0660, 0600");
	*field = n;
	return 0;
}

static bool bool_word(const char *text, bool *out)
{
	static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

	for (size_t i = 0; i < RV_ARRAY_NR(words); i++) {
		if (strcasecmp(text, words[i]) == 0) {
			*out = i & 1;
			return true;
		}
	}
	return false;
}

static int parse_bool(const char *text, bool *field, char wrong[RV_CONFIG_WRONG_MAX])
{
	return bool_word(text, field) ? 0 : wrong_value(wrong, text, "boolean: yes or no");
}

/* Position of a word in "a/b/c", or -1. */
static int word_index(const char *words, const char *text)
{
	size_t len = strlen(text);
	int i = 0;

	for (const char *w = words; w; w = strchr(w, '/'), w = w ? w + 1 : NULL, i++)
		if (strcspn(w, "/") == len && strncasecmp(w, text, len) == 0)
			return i;
	return -1;
}

/* Where `yes` and `no` are among the words, the other booleans mean the same. */
static int parse_word(const struct rv_opt *o, const char *text, unsigned *field,
		      char wrong[RV_CONFIG_WRONG_MAX])
{
	int i = word_index(o->words, text);
	bool yes;

	if (i < 0 && bool_word(text, &yes))
		i = word_index(o->words, yes ? "yes" : "no");
	if (i < 0) {
		snprintf(wrong, RV_CONFIG_WRONG_MAX, "\"%.200s\" is none of %s", text, o->words);
		return -EINVAL;
	}
	*field = (unsigned)i;
	return 0;
}

static int parse_text(const struct rv_opt *o, const char *text, char *field,
		      char wrong[RV_CONFIG_WRONG_MAX])
{
	size_t len = strlen(text);

	if (len >= o->size) {
		snprintf(wrong, RV_CONFIG_WRONG_MAX, "longer than %zu characters", o->size - 1);
		return -EINVAL;
	}
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
			snprintf(wrong, RV_CONFIG_WRONG_MAX, "holds a control character");
			return -EINVAL;
		}
		/* Printed, it would read as a comment. */
		if ((text[i] == '#' || text[i] == ';') && (!i || text[i - 1] == ' ')) {
			snprintf(wrong, RV_CONFIG_WRONG_MAX,
				 "holds a %c that begins a comment in a file", text[i]);
			return -EINVAL;
		}
	}
	if ((o->flags & RV_OPT_PATH) && text[0] != '/')
		return wrong_value(wrong, text, "absolute path");
	memcpy(field, text, len + 1);
	return 0;
}

/* ---- lists ---- */

/*
 * The next item of a comma-separated list, without the blanks around it.
 *
 * @return 1: an item; 0: the end; -1: empty or too long
 */
static int next_item(const char **list, char *item, size_t cap)
{
	const char *p = *list;
	size_t len;

	if (!p)
		return 0;
	p += strspn(p, " \t");
	len = strcspn(p, ",");
	*list = p[len] ? p + len + 1 : NULL;
	while (len && (p[len - 1] == ' ' || p[len - 1] == '\t'))
		len--;
	if (len == 0 || len >= cap)
		return -1;
	memcpy(item, p, len);
	item[len] = '\0';
	return 1;
}

/* "2" or "2-5" */
static bool parse_cpu_range(const char *text, uint64_t *first, uint64_t *last)
{
	size_t digits = take_number(text, first);

	if (digits == 0)
		return false;
	*last = *first;
	text += digits;
	if (*text == '-') {
		digits = take_number(text + 1, last);
		if (digits == 0)
			return false;
		text += 1 + digits;
	}
	return !*text && *first <= *last && *last < CPU_LIMIT;
}

static bool cpu_add(struct rv_config_cpus *list, uint64_t cpu, uint64_t max)
{
	if (list->nr >= max)
		return false;
	for (unsigned i = 0; i < list->nr; i++)
		if (list->cpu[i] == cpu)
			return false;
	list->cpu[list->nr++] = (uint16_t)cpu;
	return true;
}

static int parse_cpus(const struct rv_opt *o, const char *text, struct rv_config_cpus *field,
		      char wrong[RV_CONFIG_WRONG_MAX])
{
	struct rv_config_cpus list = {0};
	const char *rest = text;
	char item[32];
	int more;

	while ((more = next_item(&rest, item, sizeof(item))) > 0) {
		uint64_t cpu, last;

		if (!parse_cpu_range(item, &cpu, &last))
			return wrong_value(wrong, text, "core list: 2, or 2-5,8");
		for (; cpu <= last; cpu++) {
			if (!cpu_add(&list, cpu, o->hi)) {
				snprintf(wrong, RV_CONFIG_WRONG_MAX,
					 "names a core twice, or more than %" PRIu64, o->hi);
				return -EINVAL;
			}
		}
	}
	if (more < 0)
		return wrong_value(wrong, text, "core list: 2, or 2-5,8");
	*field = list;
	return 0;
}

/* What may stand in a host name or an address. */
static bool is_host(const char *host)
{
	return *host && strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				     "0123456789.-_:%") == strlen(host);
}

/* host:port, [v6]:port; the port may be missing where the option says so. */
static bool parse_host(char *item, bool port_optional, struct rv_config_host *out)
{
	char *host = item, *port, *end;
	uint64_t n = 0;
	size_t digits;

	if (*item == '[') {
		end = strchr(++host, ']');
		if (!end)
			return false;
		*end++ = '\0';
		port = *end == ':' ? end : NULL;
		if (*end && !port)
			return false;
	} else {
		port = strchr(item, ':');
	}
	if (port) {
		*port++ = '\0';
		digits = take_number(port, &n);
		if (digits == 0 || port[digits] || n > UINT16_MAX)
			return false;
	}
	if ((!port && !port_optional) || !is_host(host))
		return false;
	snprintf(out->host, sizeof(out->host), "%s", host);
	out->port = (uint16_t)n;
	return true;
}

static int parse_hosts(const struct rv_opt *o, const char *text, struct rv_config_hosts *field,
		       char wrong[RV_CONFIG_WRONG_MAX])
{
	struct rv_config_hosts list = {0};
	const char *rest = text;
	char item[RV_CONFIG_HOST_MAX];
	int more;

	while ((more = next_item(&rest, item, sizeof(item))) > 0) {
		if (list.nr >= o->hi) {
			snprintf(wrong, RV_CONFIG_WRONG_MAX, "more than %" PRIu64 " addresses",
				 o->hi);
			return -EINVAL;
		}
		if (!parse_host(item, o->flags & RV_OPT_NO_PORT, &list.at[list.nr++]))
			return wrong_value(wrong, text, "address: 127.0.0.1:7471, [::1]:7471");
	}
	if (more < 0)
		return wrong_value(wrong, text, "address: 127.0.0.1:7471, [::1]:7471");
	*field = list;
	return 0;
}

/* Address, optionally with the number of leading bits that count. */
static bool parse_cidr(char *item, struct rv_config_cidr *out)
{
	char *slash = strchr(item, '/');
	uint64_t bits;
	size_t digits;

	*out = (struct rv_config_cidr){0};
	if (slash)
		*slash++ = '\0';
	if (inet_pton(AF_INET, item, out->addr) != 1) {
		if (inet_pton(AF_INET6, item, out->addr) != 1)
			return false;
		out->is_v6 = true;
	}
	bits = out->is_v6 ? 128 : 32;
	if (slash) {
		uint64_t given;

		digits = take_number(slash, &given);
		if (digits == 0 || slash[digits] || given > bits)
			return false;
		bits = given;
	}
	out->bits = (uint8_t)bits;
	return true;
}

static int parse_cidrs(const char *text, struct rv_config_cidrs *field,
		       char wrong[RV_CONFIG_WRONG_MAX])
{
	struct rv_config_cidrs list = {0};
	const char *rest = text;
	char item[64];
	int more;

	while ((more = next_item(&rest, item, sizeof(item))) > 0) {
		if (list.nr >= RV_CONFIG_CIDR_MAX) {
			snprintf(wrong, RV_CONFIG_WRONG_MAX, "more than %u networks",
				 RV_CONFIG_CIDR_MAX);
			return -EINVAL;
		}
		if (!parse_cidr(item, &list.at[list.nr++]))
			return wrong_value(wrong, text, "network list: 10.0.0.0/8, fd00::/8");
	}
	if (more < 0)
		return wrong_value(wrong, text, "network list: 10.0.0.0/8, fd00::/8");
	*field = list;
	return 0;
}

/* ---- any value ---- */

/* `auto`, `none` and `all`: what is stored for them is fixed by the type. */
static bool parse_special(const struct rv_opt *o, const char *text, void *field)
{
	if (!((o->flags & RV_OPT_AUTO) && strcasecmp(text, "auto") == 0) &&
	    !((o->flags & RV_OPT_NONE) && strcasecmp(text, "none") == 0) &&
	    !((o->flags & RV_OPT_ALL) && strcasecmp(text, "all") == 0))
		return false;
	memset(field, 0, o->size);
	if (o->type == RV_OPT_U32)
		*(uint32_t *)field = RV_CONFIG_AUTO;
	else if (o->type == RV_OPT_SIZE || o->type == RV_OPT_NS)
		*(uint64_t *)field = RV_NEVER;
	else if (o->type == RV_OPT_CPUS)
		((struct rv_config_cpus *)field)->is_auto = true;
	return true;
}

int rv_config_value_parse(const struct rv_opt *o, const char *text, void *field,
			  char wrong[RV_CONFIG_WRONG_MAX])
{
	if (!*text) {
		snprintf(wrong, RV_CONFIG_WRONG_MAX, "empty value");
		return -EINVAL;
	}
	if (parse_special(o, text, field))
		return 0;
	switch (o->type) { /* GCOVR_EXCL_BR_LINE: each type has its case */
	case RV_OPT_TEXT:
		return parse_text(o, text, field, wrong);
	case RV_OPT_BOOL:
		return parse_bool(text, field, wrong);
	case RV_OPT_WORD:
		return parse_word(o, text, field, wrong);
	case RV_OPT_U32:
		return parse_u32(o, text, field, wrong);
	case RV_OPT_MODE:
		return parse_mode(text, field, wrong);
	case RV_OPT_SIZE:
		return parse_size(o, text, field, wrong);
	case RV_OPT_NS:
		return parse_ns(o, text, field, wrong);
	case RV_OPT_CPUS:
		return parse_cpus(o, text, field, wrong);
	case RV_OPT_HOSTS:
		return parse_hosts(o, text, field, wrong);
	case RV_OPT_CIDRS:
		return parse_cidrs(text, field, wrong);
	}
	return -EINVAL;
}

static bool prefix_equal(const uint8_t *a, const uint8_t *b, unsigned bits)
{
	unsigned whole = bits / 8, rest = bits % 8;

	return memcmp(a, b, whole) == 0 &&
	       (rest == 0 || ((a[whole] ^ b[whole]) & (0xff00u >> rest) & 0xffu) == 0);
}

bool rv_config_cidrs_match(const struct rv_config_cidrs *list, bool is_v6, const uint8_t *addr)
{
	static const uint8_t v4_mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (list->nr == 0)
		return true;
	if (is_v6 && memcmp(addr, v4_mapped, sizeof(v4_mapped)) == 0) {
		is_v6 = false;
		addr += sizeof(v4_mapped);
	}
	for (unsigned i = 0; i < list->nr; i++)
		if (list->at[i].is_v6 == is_v6 &&
		    prefix_equal(list->at[i].addr, addr, list->at[i].bits))
			return true;
	return false;
}
