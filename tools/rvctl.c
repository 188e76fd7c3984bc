/*
 * rvctl - stage, fetch, inspect and administer, through the daemon's UNIX socket.
 */
#include "tools/rvctl_cmd.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataplane/base/units.h"

/* The command line as tables: they are the parser and the help text. */

enum option {
	OPT_SOCKET,
	OPT_JSON,
	OPT_HELP,
	OPT_VERSION,
	OPT_OUT,
	OPT_PLAIN,
	OPT_PINNED,
	OPT_REGION,
	OPT_TTL,
	OPT_REFS,
	OPT_NAME_ONLY,
	OPT_DETACH,
	OPT_RELEASE,
	OPT_KEEP,
	OPT_PATH,
	OPT_TIMEOUT,
	OPT_LEASE,
	OPT_FORMAT,
	OPT_CALL,
	OPT_SYNC,
	OPT_FIRE,
	OPT_WAIT,
	OPTIONS
};

static const struct option_row {
	const char *name, *letter, *value, *help;
} options[OPTIONS] = {
	[OPT_SOCKET] = {"--socket", NULL, "PATH",
			"daemon's socket (else RVD_SOCKET, else the default)"},
	[OPT_JSON] = {"--json", NULL, NULL, "print JSON, for scripts"},
	[OPT_HELP] = {"--help", "-h", NULL, "print this help"},
	[OPT_VERSION] = {"--version", "-V", NULL, "print the version"},
	[OPT_OUT] = {"--output", "-o", "FILE", "write there; - is stdout"},
	[OPT_PLAIN] = {"--plain", NULL, NULL, "into plain memory: fetched in chunks"},
	[OPT_REGION] = {"--region", NULL, NULL, "into memory of its own, registered where it is"},
	[OPT_PINNED] = {"--pinned", NULL, NULL,
			"into registered memory: fetched by RDMA (default)"},
	[OPT_TTL] = {"--ttl", NULL, "D", "the slot's life: 500us, 250ms, 30s, 1h, none"},
	[OPT_REFS] = {"--refs", NULL, "N", "references to start with (1)"},
	[OPT_NAME_ONLY] = {"--name-only", NULL, NULL, "print the bare handle"},
	[OPT_DETACH] = {"--detach", NULL, NULL, "end the lease, release no reference"},
	[OPT_RELEASE] = {"--release", NULL, NULL,
			 "end the lease and release a reference (default)"},
	[OPT_KEEP] = {"--keep", NULL, NULL, "keep the lease, and print it"},
	[OPT_PATH] = {"--path", NULL, "any|rdma|chunked", "how the bytes may come (any)"},
	[OPT_TIMEOUT] = {"--timeout", NULL, "D", "give up after that long: 250ms, 30s, 1h, none"},
	[OPT_LEASE] = {"--lease", NULL, "N", "the lease to end"},
	[OPT_CALL] = {"--call", NULL, NULL, "wait for the result and print it (default)"},
	[OPT_SYNC] = {"--sync", NULL, NULL, "wait until it was handled"},
	[OPT_FIRE] = {"--fire", NULL, NULL, "do not wait"},
	[OPT_WAIT] = {"--wait", NULL, NULL, "until nothing runs any more"},
	[OPT_FORMAT] = {"--format", NULL, "json|msgpack", "of the PeerInfo (json)"},
};

#define BIT(o)     (1u << (o))
#define EVERYWHERE (BIT(OPT_SOCKET) | BIT(OPT_JSON) | BIT(OPT_HELP) | BIT(OPT_VERSION))
#define PUT_OPTS                                                                             \
	(BIT(OPT_PLAIN) | BIT(OPT_PINNED) | BIT(OPT_REGION) | BIT(OPT_TTL) | BIT(OPT_REFS) | \
	 BIT(OPT_NAME_ONLY))
#define GET_OPTS                                                                             \
	(BIT(OPT_OUT) | BIT(OPT_DETACH) | BIT(OPT_RELEASE) | BIT(OPT_KEEP) | BIT(OPT_PATH) | \
	 BIT(OPT_TIMEOUT))

static rv_ctl_fn completion;

static const struct command {
	const char *name, *args, *help;
	int arg_nr;
	int optional_nr; /* of them, at the end */
	bool takes_ref;  /* the first argument */
	uint32_t options;
	rv_ctl_fn *run;
} commands[] = {
	{"put", "FILE|-", "stage a file, print its reference", 1, 0, false, PUT_OPTS, rv_ctl_put},
	{"get", "REF", "fetch what a reference or handle names", 1, 0, true, GET_OPTS, rv_ctl_get},
	{"stat", "REF", "length, references and owner of a slot", 1, 0, true, BIT(OPT_TIMEOUT),
	 rv_ctl_stat},
	{"ref", "REF", "add a reference", 1, 0, true, BIT(OPT_TIMEOUT), rv_ctl_ref},
	{"release", "REF", "release a reference, and end a lease", 1, 0, true,
	 BIT(OPT_LEASE) | BIT(OPT_TIMEOUT), rv_ctl_release},
	{"detach", "REF", "end a lease", 1, 0, true, BIT(OPT_LEASE) | BIT(OPT_TIMEOUT),
	 rv_ctl_detach},
	{"drop", "REF", "free a slot staged here, whoever reads it", 1, 0, true, 0, rv_ctl_drop},
	{"peers", "", "nodes this one knows", 0, 0, false, 0, rv_ctl_peers},
	{"peer-info", "", "who this node is, for its peers", 0, 0, false,
	 BIT(OPT_OUT) | BIT(OPT_FORMAT), rv_ctl_peer_info},
	{"peer-add", "NAME FILE|HOST:PORT", "make a node known", 2, 0, false, BIT(OPT_TIMEOUT),
	 rv_ctl_peer_add},
	{"status", "", "this node at a glance", 0, 0, false, 0, rv_ctl_status},
	{"slots", "", "what is staged here", 0, 0, false, 0, rv_ctl_slots},
	{"leases", "", "who may be reading it", 0, 0, false, 0, rv_ctl_leases},
	{"arenas", "", "the memory it is in", 0, 0, false, 0, rv_ctl_arenas},
	{"endpoints", "", "ways to peers: RDMA, and messages over UCX", 0, 0, false, 0,
	 rv_ctl_endpoints},
	{"regions", "", "memory that programs registered themselves", 0, 0, false, 0,
	 rv_ctl_regions},
	{"cores", "", "threads that poll, and their useful time", 0, 0, false, 0, rv_ctl_cores},
	{"config", "", "settings in force, and where each is from", 0, 0, false, 0, rv_ctl_config},
	{"drain", "", "take no new work; --wait until nothing runs", 0, 0, false,
	 BIT(OPT_WAIT) | BIT(OPT_TIMEOUT), rv_ctl_drain},
	{"kill-switch", "on|off|status", "on: chunks only; off: RDMA is allowed", 1, 0, false, 0,
	 rv_ctl_kill_switch},
	{"log-level", "error|warn|info|debug", "what the daemon logs", 1, 0, false, 0,
	 rv_ctl_log_level},
	{"send", "PEER HANDLER [FILE|-]", "send a message to a handler of a peer", 3, 1, false,
	 BIT(OPT_CALL) | BIT(OPT_SYNC) | BIT(OPT_FIRE) | BIT(OPT_TIMEOUT) | BIT(OPT_OUT),
	 rv_ctl_send},
	{"handlers", "PEER", "the handlers a peer serves", 1, 0, false, BIT(OPT_TIMEOUT),
	 rv_ctl_handlers},
	{"completion", "bash|zsh", "a script that completes words; for eval", 1, 0, false, 0,
	 completion},
};

/* Errors. */

int rv_ctl_fail(const struct rv_ctl *ctl, int code, const char *fmt, ...)
{
	char text[768];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* One line, whatever a peer put into its text. */
	for (char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = ' ';
	fprintf(stderr, "rvctl: %s%s%s\n", ctl->name ? ctl->name : "", ctl->name ? ": " : "", text);
	return code;
}

static const struct {
	int rc, code;
	const char *todo;
} outcomes[] = {
	{-ENOENT, RV_CTL_NO_HANDLE,
	 "check the reference: the slot may have been released or expired"},
	{-EHOSTUNREACH, RV_CTL_UNREACHABLE, "is it running, and reachable from here?"},
	{-ETIMEDOUT, RV_CTL_UNREACHABLE, "try again, or give it longer with --timeout"},
	{-ECONNRESET, RV_CTL_UNREACHABLE, "try again"},
	{-ENOTCONN, RV_CTL_NO_DAEMON, NULL},
	{-ENOSPC, RV_CTL_REFUSED, "see rvctl status and rvctl slots"},
	{-EPERM, RV_CTL_REFUSED, "ask its user"},
	{-EACCES, RV_CTL_REFUSED, NULL},
	{-EAGAIN, RV_CTL_REFUSED, "try again"},
	{-EKEYREVOKED, RV_CTL_FAILED, "fetch it again"},
	{-ESHUTDOWN, RV_CTL_FAILED, "a node that drains takes no new work until it is restarted"},
	{-ESTALE, RV_CTL_FAILED, "it has ended already"},
	{-ENOTSUP, RV_CTL_FAILED, NULL},
};

static const char here[] = "this node's daemon: ";

static void put_owner(const struct rv_ref *about, char *out, size_t cap)
{
	bool v6 = strchr(about->host, ':');

	if (about->host[0])
		snprintf(out, cap, "the owner at %s%s%s:%u: ", v6 ? "[" : "", about->host,
			 v6 ? "]" : "", about->port);
	else
		snprintf(out, cap, "the owner, worker %" PRIu64 ": ", about->handle.worker);
}

/* As far as the number tells, it happened here. */
static bool is_here(int rc)
{
	return rc == -ENOTCONN || rc == -EACCES || rc == -EPROTO || rc == -ENOTSUP || rc == -EINVAL;
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
	size_t len = strlen(text), with_len = strlen(with);

	return len >= with_len && strcmp(text + len - with_len, with) == 0;
}

/* What the daemon says of itself although it was asked about a peer's handle. */
static bool is_of_this_node(const char *text)
{
	static const char *const begin[] = {"no memory", "rdma failed here", "this node is",
					    "the copy was not made", "the content was not checked"};

	for (size_t i = 0; i < RV_ARRAY_NR(begin); i++)
		if (begins(text, begin[i]))
			return true;
	return false;
}

/* On whose side it happened, and the library's text without what that says already. */
static const char *reason(const struct rv_ctl *ctl, int rc, const struct rv_ref *about, char *where,
			  size_t cap)
{
	bool remote = about && ctl->c && about->handle.worker != rv_worker(ctl->c);
	const char *text = rv_last_error(), *at;

	snprintf(where, cap, "%s", here);
	if (begins(text, "peer: ") || begins(text, "peer at ")) { /* send, handlers */
		snprintf(where, cap, "peer %s: ", ctl->arg[0]);
		return text + (text[4] == ':' ? 6 : 5);
	}
	if (!remote || is_of_this_node(text))
		return text;
	if (begins(text, "the owner ")) { /* "the owner did not deliver..." */
		put_owner(about, where, cap);
		return text + 10;
	}
	if (begins(text, "the owner"))
		*where = '\0';
	else if (!is_here(rc))
		put_owner(about, where, cap);
	if (begins(text, "owner: "))
		return text + 7;
	if (begins(text, "owner at "))
		return text + 6;
	at = strstr(where, " at ");
	return at && begins(text, at + 4) ? text + strlen(at + 4) : text; /* HOST:PORT once */
}

/* The way out of a failure, if its text names none. */
static const char *way_out(const char *text, const char *usual)
{
	if (strstr(text, "velo_rendezvous_rdma_path_total"))
		return "rvctl status there shows it as paths";
	if (begins(text, "Handler '"))
		return "rvctl handlers lists them";
	if (ends(text, ": other owner"))
		return "check the reference: its HOST:PORT leads to another node than the one that staged it";
	return strstr(text, "rvctl ") || strstr(text, "raise ") ? NULL : usual;
}

int rv_ctl_fail_rc(const struct rv_ctl *ctl, int rc, const struct rv_ref *about)
{
	char where[RV_HOST_MAX + 64];
	const char *todo = NULL, *text;
	int code = RV_CTL_FAILED;

	text = reason(ctl, rc, about, where, sizeof(where));
	for (size_t i = 0; i < RV_ARRAY_NR(outcomes); i++) {
		if (outcomes[i].rc != rc)
			continue;
		code = outcomes[i].code;
		todo = outcomes[i].todo;
	}
	todo = way_out(text, todo);
	return rv_ctl_fail(ctl, code, "%s%s%s%s", where, text, todo ? "; " : "", todo ? todo : "");
}

/* Output. */

void rv_ctl_json_handle(struct rv_json_out *o, const char *key, struct rv_handle h)
{
	char text[RV_HANDLE_TEXT_MAX];

	rv_handle_format(h, text, sizeof(text));
	rv_json_out_key(o, key);
	rv_json_out_str(o, text);
}

void rv_ctl_json_id(struct rv_json_out *o, const char *key, uint64_t id)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, id);
	rv_json_out_key(o, key);
	rv_json_out_str(o, text);
}

int rv_ctl_print_json(const struct rv_ctl *ctl, struct rv_json_out *o, bool to_stderr)
{
	FILE *f = to_stderr ? stderr : stdout;
	bool bad = o->bad;

	if (!bad)
		fprintf(f, "%s\n", o->buf);
	rv_json_out_fini(o);
	return bad ? rv_ctl_fail(ctl, RV_CTL_FAILED, "out of memory") : 0;
}

static void put_option(const struct option_row *o)
{
	char head[48];

	snprintf(head, sizeof(head), "%s%s%s%s%s", o->letter ? o->letter : "",
		 o->letter ? ", " : "", o->name, o->value ? " " : "", o->value ? o->value : "");
	printf("  %-26s %s\n", head, o->help);
}

static const char about_ref[] =
	"REF: rv://HOST:PORT/HANDLE, or a bare handle of this node or of a peer it knows.\n";

static int help(const struct command *cmd)
{
	if (cmd) {
		printf("usage: rvctl %s%s%s [option]...\n\n%s\n\n", cmd->name,
		       *cmd->args ? " " : "", cmd->args, cmd->help);
		if (cmd->takes_ref)
			puts(about_ref);
		if (rv_ctl_words(cmd->name))
			puts(rv_ctl_words(cmd->name));
	} else {
		puts("usage: rvctl COMMAND [argument]... [option]...    talk to this node's rvd\n\ncommands:");
		for (size_t i = 0; i < RV_ARRAY_NR(commands); i++)
			printf("  %-11s %-21s %s\n", commands[i].name, commands[i].args,
			       commands[i].help);
		printf("\n%srvctl COMMAND --help tells a command's own options, and what its columns mean.\n\n",
		       about_ref);
	}
	puts("options:");
	for (unsigned i = 0; i < OPTIONS; i++)
		if ((EVERYWHERE | (cmd ? cmd->options : 0)) & BIT(i))
			put_option(&options[i]);
	puts("\nexit: 0 done; 1 failed; 2 usage; 4 no such handle;\n"
	     "      5 owner unreachable or too late; 6 no daemon; 7 refused");
	return 0;
}

/* Completion: the tables once more, as a shell's words. */

static void put_words(uint32_t taken)
{
	for (unsigned i = 0; i < OPTIONS; i++)
		if (taken & BIT(i))
			printf(" %s", options[i].name);
}

/* Words between bars. */
static void put_choices(const char *text)
{
	for (; *text; text++)
		putchar(*text == '|' ? ' ' : *text);
}

static void put_case(const struct command *cmd)
{
	printf("\t%s) words='", cmd->name);
	if (strchr(cmd->args, '|') && !strstr(cmd->args, "FILE")) /* a file's name is the shell's */
		put_choices(cmd->args);
	put_words(EVERYWHERE | cmd->options);
	puts("' ;;");
}

static int completion(struct rv_ctl *ctl)
{
	bool zsh = strcmp(ctl->arg[0], "zsh") == 0;

	if (!zsh && strcmp(ctl->arg[0], "bash") != 0)
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "%s: bash and zsh are known", ctl->arg[0]);
	if (zsh)
		puts("autoload -Uz bashcompinit && bashcompinit");
	puts("_rvctl() {\n\tlocal cmd= word words i\n\tword=${COMP_WORDS[COMP_CWORD]}\n"
	     "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n\t\tcase ${COMP_WORDS[i]} in\n"
	     "\t\t--socket) ((i++)) ;;\n\t\t-*) ;;\n"
	     "\t\t*) [ -n \"$cmd\" ] || cmd=${COMP_WORDS[i]} ;;\n\t\tesac\n\tdone\n"
	     "\tcase $cmd in");
	for (size_t i = 0; i < RV_ARRAY_NR(commands); i++)
		put_case(&commands[i]);
	fputs("\t*) words='", stdout);
	for (size_t i = 0; i < RV_ARRAY_NR(commands); i++)
		printf("%s ", commands[i].name);
	put_words(EVERYWHERE);
	puts("' ;;\n\tesac\n\tcase ${COMP_WORDS[COMP_CWORD - 1]} in");
	for (unsigned i = 0; i < OPTIONS; i++) {
		if (!options[i].value || !strchr(options[i].value, '|'))
			continue;
		printf("\t%s) words='", options[i].name);
		put_choices(options[i].value);
		puts("' ;;");
	}
	puts("\tesac\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
	     "complete -o default -F _rvctl rvctl");
	return 0;
}

/* Parsing. */

static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[40];
	size_t n = strlen(b);

	if (n >= RV_ARRAY_NR(row))
		return UINT32_MAX;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 0; a[i]; i++) {
		unsigned diagonal = row[0];

		row[0] = i + 1;
		for (size_t j = 0; j < n; j++) {
			unsigned best = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			best = best < row[j] + 1 ? best : row[j] + 1;
			row[j + 1] = best < diagonal + 1 ? best : diagonal + 1;
		}
	}
	return row[n];
}

static size_t length_gap(const char *a, const char *b)
{
	size_t x = strlen(a), y = strlen(b);

	return x > y ? x - y : y - x;
}

/* A slip of the finger, not another word: up to a third of the letters, at least two. */
static void nearer(const char *word, const char *candidate, const char **best, unsigned *least)
{
	unsigned d = edit_distance(word, candidate);

	if (d > rv_max_u64(strlen(word) / 3, 2))
		return;
	if (!*best || d < *least ||
	    (d == *least && length_gap(word, candidate) < length_gap(word, *best))) {
		*least = d;
		*best = candidate;
	}
}

static const struct command *find_command(struct rv_ctl *ctl, const char *word)
{
	const char *best = NULL;
	unsigned least = UINT32_MAX;

	for (size_t i = 0; i < RV_ARRAY_NR(commands); i++) {
		if (strcmp(commands[i].name, word) == 0)
			return &commands[i];
		nearer(word, commands[i].name, &best, &least);
	}
	rv_ctl_fail(ctl, RV_CTL_USAGE, "there is no command %s%s%s%s See rvctl --help", word,
		    best ? ": did you mean " : "", best ? best : "", best ? "?" : ".");
	return NULL;
}

/* The option that @word (up to a '=') is, if the command takes it; -1 with a message otherwise. */
static int find_option(struct rv_ctl *ctl, const struct command *cmd, const char *word)
{
	uint32_t taken = EVERYWHERE | (cmd ? cmd->options : ~0u);
	size_t len = strcspn(word, "=");
	const char *best = NULL;
	unsigned least = UINT32_MAX;
	char name[40];

	snprintf(name, sizeof(name), "%.*s", (int)rv_min_u64(len, sizeof(name) - 1), word);
	for (unsigned i = 0; i < OPTIONS; i++) {
		if (!(taken & BIT(i)))
			continue;
		if (strcmp(options[i].name, name) == 0)
			return (int)i;
		if (options[i].letter && strncmp(word, options[i].letter, 2) == 0)
			return (int)i;
		nearer(name, options[i].name, &best, &least);
	}
	rv_ctl_fail(ctl, RV_CTL_USAGE, "there is no option %s here%s%s%s See rvctl %s%s--help",
		    name, best ? ": did you mean " : "", best ? best : "", best ? "?" : ".",
		    cmd ? cmd->name : "", cmd ? " " : "");
	return -1;
}

static int bad_value(struct rv_ctl *ctl, enum option o, const char *value, const char *want)
{
	return rv_ctl_fail(ctl, RV_CTL_USAGE, "%s %s: %s", options[o].name, value, want);
}

static int parse_number(const char *text, uint64_t max, uint64_t *out, const char **end)
{
	uint64_t v = 0;
	const char *p = text;

	for (; *p >= '0' && *p <= '9'; p++) {
		unsigned digit = (unsigned)(*p - '0');

		if (v > (max - digit) / 10)
			return -ERANGE;
		v = v * 10 + digit;
	}
	if (p == text || (!end && *p))
		return -EINVAL;
	if (end)
		*end = p;
	*out = v;
	return 0;
}

static int parse_duration(const char *text, uint64_t *out)
{
	static const struct {
		const char *name;
		uint64_t ns;
	} units[] = {
		{"ns", 1},         {"us", RV_US(1)},    {"ms", RV_MS(1)},    {"s", RV_SEC(1)},
		{"m", RV_SEC(60)}, {"min", RV_SEC(60)}, {"h", RV_SEC(3600)}, {"d", RV_SEC(86400)},
	};
	const char *unit;
	uint64_t n;

	if (strcmp(text, "none") == 0) {
		*out = RV_NEVER;
		return 0;
	}
	if (parse_number(text, UINT64_MAX, &n, &unit) || n == 0)
		return -EINVAL;
	for (size_t i = 0; i < RV_ARRAY_NR(units); i++) {
		if (strcmp(unit, units[i].name) != 0)
			continue;
		if (n > (RV_NEVER - 1) / units[i].ns)
			return -ERANGE;
		*out = n * units[i].ns;
		return 0;
	}
	return -EINVAL;
}

/* Which of a bar-separated list of words @value is, or -1. */
static int word_index(const char *words, const char *value)
{
	size_t len = strlen(value);

	for (int i = 0; *words; i++) {
		size_t n = strcspn(words, "|");

		if (n == len && strncmp(words, value, n) == 0)
			return i;
		words += n + (words[n] == '|');
	}
	return -1;
}

static int set_end(struct rv_ctl *ctl, enum rv_ctl_end end)
{
	if (ctl->end_given && ctl->end != end)
		return rv_ctl_fail(ctl, RV_CTL_USAGE,
				   "only one of --detach, --release and --keep can be meant");
	ctl->end = end;
	ctl->end_given = true;
	return 0;
}

static int check_memory(const struct rv_ctl *ctl)
{
	if (ctl->plain + ctl->pinned + ctl->region > 1)
		return rv_ctl_fail(ctl, RV_CTL_USAGE,
				   "only one of --plain, --pinned and --region can be meant");
	return 0;
}

static int set_flag(struct rv_ctl *ctl, enum option o)
{
	switch (o) {
	case OPT_JSON:
		ctl->json = true;
		return 0;
	case OPT_PLAIN:
		ctl->plain = true;
		return check_memory(ctl);
	case OPT_PINNED:
		ctl->pinned = true;
		return check_memory(ctl);
	case OPT_REGION:
		ctl->region = true;
		return check_memory(ctl);
	case OPT_NAME_ONLY:
		ctl->name_only = true;
		return 0;
	case OPT_DETACH:
		return set_end(ctl, RV_CTL_DETACH);
	case OPT_RELEASE:
		return set_end(ctl, RV_CTL_RELEASE);
	case OPT_KEEP:
		return set_end(ctl, RV_CTL_KEEP);
	case OPT_WAIT:
		ctl->wait = true;
		return 0;
	case OPT_CALL:
	case OPT_SYNC:
	case OPT_FIRE:
		if (ctl->kind_given && ctl->kind != (enum rv_ctl_kind)(o - OPT_CALL))
			return rv_ctl_fail(ctl, RV_CTL_USAGE,
					   "only one of --call, --sync and --fire can be meant");
		ctl->kind_given = true;
		ctl->kind = (enum rv_ctl_kind)(o - OPT_CALL);
		return 0;
	default:
		return 0; /* help and version were seen before */
	}
}

static int set_duration(struct rv_ctl *ctl, enum option o, const char *value, uint64_t *out)
{
	return parse_duration(value, out)
		       ? bad_value(ctl, o, value, "a duration is 500us, 250ms, 30s, 1h or none")
		       : 0;
}

static int set_value(struct rv_ctl *ctl, enum option o, const char *value)
{
	uint64_t n;
	int i;

	switch (o) {
	case OPT_SOCKET:
		ctl->socket = value;
		return 0;
	case OPT_OUT:
		ctl->out = value;
		return 0;
	case OPT_TTL:
		return set_duration(ctl, o, value, &ctl->ttl_ns);
	case OPT_TIMEOUT:
		return set_duration(ctl, o, value, &ctl->timeout_ns);
	case OPT_REFS:
		if (parse_number(value, UINT32_MAX, &n, NULL) || !n)
			return bad_value(ctl, o, value, "a number from 1 on is wanted");
		ctl->refs = (uint32_t)n;
		return 0;
	case OPT_LEASE:
		if (parse_number(value, UINT64_MAX, &ctl->lease, NULL) || !ctl->lease)
			return bad_value(ctl, o, value, "a lease is a number, as get prints it");
		ctl->has_lease = true;
		return 0;
	case OPT_PATH:
		i = word_index(options[o].value, value);
		if (i < 0)
			return bad_value(ctl, o, value, "any, rdma or chunked are known");
		ctl->path = (enum rv_get_path)i;
		return 0;
	case OPT_FORMAT:
		i = word_index(options[o].value, value);
		if (i < 0)
			return bad_value(ctl, o, value, "json or msgpack are known");
		ctl->msgpack = i == 1;
		return 0;
	default:
		return 0;
	}
}

/* One option at argv[*i]; its value may be there or next. */
static int take_option(struct rv_ctl *ctl, const struct command *cmd, int argc, char **argv, int *i)
{
	const char *word = argv[*i], *value = NULL;
	int o = find_option(ctl, cmd, word);

	if (o < 0)
		return RV_CTL_USAGE;
	if (word[1] == '-')
		value = strchr(word, '=') ? strchr(word, '=') + 1 : NULL;
	else if (word[2])
		value = word + 2;
	if (!options[o].value)
		return value ? rv_ctl_fail(ctl, RV_CTL_USAGE, "%s takes no value", options[o].name)
			     : set_flag(ctl, (enum option)o);
	if (!value && ++*i < argc)
		value = argv[*i];
	if (!value || !*value)
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "%s wants a value: %s", options[o].name,
				   options[o].value);
	return set_value(ctl, (enum option)o, value);
}

static int take_arg(struct rv_ctl *ctl, const struct command *cmd, const char *word)
{
	if (ctl->arg_nr >= cmd->arg_nr)
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "%s is one argument too many: rvctl %s%s%s",
				   word, cmd->name, *cmd->args ? " " : "", cmd->args);
	ctl->arg[ctl->arg_nr++] = word;
	return 0;
}

/* What only the whole line shows. */
static int check_line(struct rv_ctl *ctl, const struct command *cmd)
{
	if (ctl->arg_nr < cmd->arg_nr - cmd->optional_nr)
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "something is missing: rvctl %s %s",
				   cmd->name, cmd->args);
	for (int i = 0; i < ctl->arg_nr; i++)
		if (!*ctl->arg[i])
			return rv_ctl_fail(ctl, RV_CTL_USAGE, "argument %d is empty: rvctl %s %s",
					   i + 1, cmd->name, cmd->args);
	if (cmd->run == rv_ctl_detach && !ctl->has_lease)
		return rv_ctl_fail(ctl, RV_CTL_USAGE, "--lease N is missing: which lease ends?");
	if (cmd->takes_ref && rv_ref_parse(ctl->arg[0], &ctl->ref))
		return rv_ctl_fail(ctl, RV_CTL_USAGE,
				   "%s is no reference: rv://HOST:PORT/HANDLE or a decimal handle",
				   ctl->arg[0]);
	return 0;
}

static bool asks(int argc, char **argv, enum option o)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], options[o].name) == 0 ||
		    strcmp(argv[i], options[o].letter) == 0)
			return true;
	return false;
}

/* The command is the first word that is neither an option nor an option's value. */
static int parse(struct rv_ctl *ctl, int argc, char **argv, const struct command **out)
{
	const struct command *cmd = NULL;
	bool only_args = false;
	int code = 0;

	for (int i = 1; i < argc && !code; i++) {
		const char *word = argv[i];

		if (!only_args && strcmp(word, "--") == 0)
			only_args = true;
		else if (!only_args && word[0] == '-' && word[1])
			code = take_option(ctl, cmd, argc, argv, &i);
		else if (cmd)
			code = take_arg(ctl, cmd, word);
		else if (!(cmd = find_command(ctl, word)))
			code = RV_CTL_USAGE;
		else
			ctl->name = cmd->name;
	}
	*out = cmd;
	if (code)
		return code;
	if (!cmd) {
		rv_ctl_fail(ctl, RV_CTL_USAGE, "which command? See rvctl --help");
		return RV_CTL_USAGE;
	}
	return check_line(ctl, cmd);
}

static const struct command *named_command(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		for (size_t k = 0; k < RV_ARRAY_NR(commands); k++)
			if (strcmp(argv[i], commands[k].name) == 0)
				return &commands[k];
	return NULL;
}

int main(int argc, char **argv)
{
	struct rv_ctl ctl = {0};
	const struct command *cmd;
	int code, rc;

	signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error like any other */
	if (asks(argc, argv, OPT_HELP))
		return help(named_command(argc, argv));
	if (asks(argc, argv, OPT_VERSION)) {
		puts("rvctl " RV_VERSION);
		return 0;
	}
	code = parse(&ctl, argc, argv, &cmd);
	if (code)
		return code;
	if (cmd->run != completion) {
		rc = rv_open(ctl.socket, &ctl.c);
		if (rc)
			return rv_ctl_fail_rc(&ctl, rc, NULL);
		rv_set_timeout(ctl.c, ctl.timeout_ns);
	}
	code = cmd->run(&ctl);
	if (ctl.c)
		rv_close(ctl.c);
	if (fflush(stdout) && !code)
		code = rv_ctl_fail(&ctl, RV_CTL_FAILED, "here: cannot write: %m");
	return code;
}
