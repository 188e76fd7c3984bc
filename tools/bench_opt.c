#include "tools/bench_opt.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/units.h"

/* Whose a flag is. */
enum { BW = 1, LAT = 2, BOTH = BW | LAT, SERVER = 4, CLIENT = 8, ENDS = SERVER | CLIENT };

enum id {
	DEVICE,
	IB_PORT,
	PORT,
	SIZE,
	ALL,
	ITERS,
	DURATION,
	QP,
	DEPTH,
	GID,
	CPU_FREQ,
	RDMA_CM,
	NO_PEAK,
	GBITS,
	JSON,
	JSON_FILE,
	CPU,
	VALIDATE,
	PATH,
	OP,
	BATCH,
	SOCKET,
	VERSION,
	HELP,
	ID_NR,
};

struct flag {
	char letter; /* 0: none */
	const char *name;
	const char *value; /* NULL: takes none */
	unsigned whose;
	const char *help;
};

/* clang-format off */
static const struct flag flags[ID_NR] = {
	[DEVICE] = {'d', "ib-dev", "DEV", BOTH | ENDS, "device for RDMA (verbs, UCX), or a network interface for UCX (their choice)"},
	[IB_PORT] = {'i', "ib-port", "PORT", BOTH | ENDS, "port of that device"},
	[PORT] = {'p', "port", "PORT", BOTH | ENDS, "TCP port of the server (18515; a server takes 0 for any free one)"},
	[SIZE] = {'s', "size", "SIZE", BOTH | CLIENT, "bytes of a payload: 4096, 64K, 8M (64K; rv_get_lat: 2)"},
	[ALL] = {'a', "all", NULL, BOTH | CLIENT, "all sizes from 2 to 2^23"},
	[ITERS] = {'n', "iters", "N", BOTH | CLIENT, "gets of each size (1000)"},
	[DURATION] = {'D', "duration", "SECONDS", BOTH | CLIENT, "measure each size for so long instead"},
	[QP] = {'q', "qp", "N", BW | CLIENT, "sessions with the node, each with -t gets in flight (1)"},
	[DEPTH] = {'t', "tx-depth", "N", BW | CLIENT, "gets in flight (16)"},
	[GID] = {'x', "gid-index", "N", BOTH | ENDS, "GID index for verbs and UCX"},
	[CPU_FREQ] = {'F', "CPU-freq", NULL, BOTH | ENDS, "taken for perftest's sake: times come from a clock that no CPU frequency changes"},
	[RDMA_CM] = {'R', "rdma_cm", NULL, BOTH | ENDS, "taken for perftest's sake: verbs always uses it, UCX sets connections up its own way"},
	[NO_PEAK] = {'N', "noPeak", NULL, BW | CLIENT, "do not work the peak out"},
	[GBITS] = {0, "report_gbits", NULL, BW | CLIENT, "Gb/sec instead of MiB/sec"},
	[JSON] = {0, "out_json", NULL, BOTH | CLIENT, "write the report as JSON, too"},
	[JSON_FILE] = {0, "out_json_file", "FILE", BOTH | CLIENT, "where to (perftest_out.json); implies --out_json"},
	[CPU] = {0, "cpu_util", NULL, BOTH | CLIENT, "how busy this host's CPUs were"},
	[VALIDATE] = {0, "data_validation", NULL, BOTH | CLIENT, "compare every byte; its time counts in rv_get_bw"},
	[PATH] = {0, "path", "PATH", BOTH | ENDS, "ucx, verbs, chunked or local; the first two at both ends (a native lane, else chunks)"},
	[OP] = {0, "op", "OP", BOTH | CLIENT, "get_pinned, get, get_into; node: begun on the node's own core; raw: the RDMA reads alone, under one lease (get_pinned)"},
	[BATCH] = {0, "batch", "N", BW | CLIENT, "fetch N at once with rv_get_many, instead of -t in flight"},
	[SOCKET] = {0, "socket", "PATH", BOTH | ENDS, "use the daemon there instead of a private node"},
	[VERSION] = {'V', "version", NULL, BOTH | ENDS, "print the version"},
	[HELP] = {'h', "help", NULL, BOTH | ENDS, "print this help"},
};

/* What perftest takes and this program has no meaning for. */
static const struct {
	char letter;
	const char *name;
	bool value;
	const char *why;
} refused[] = {
	{'b', "bidirectional", false, "a get has one direction: run a client at each end"},
	{'c', "connection", true, "verbs uses RC, UCX chooses the connection's type"},
	{'m', "mtu", true, "the path's MTU is taken"},
	{'S', "sl", true, "not settable here: UCX_IB_SL in the environment"},
	{'T', "tos", true, "not settable here: RVD_VERBS_TRAFFIC_CLASS or UCX_IB_TRAFFIC_CLASS in the environment"},
	{'u', "qp-timeout", true, "UCX chooses the timeout: UCX_RC_TIMEOUT in the environment"},
	{'o', "outs", true, "what is outstanding is -t"},
	{'l', "post_list", true, "gets are begun one by one; --batch fetches many at once"},
	{'Q', "cq-mod", true, "each get's end is told"},
	{'r', "rx-depth", true, "the owner of what is read posts no receives"},
	{'I', "inline_size", true, "a get sends no data"},
	{'e', "events", false, "nodes sleep when idle; RVD_CORES_IDLE=poll keeps them awake"},
	{'f', "margin", true, "there is no ramp to leave out: one get warms up"},
	{'O', "dualport", false, "one device at each end"},
	{'H', "report-histogram", false, "there is no list of all times"},
	{'U', "report-unsorted", false, "there is no list of all times"},
	{'C', "report-cycles", false, "times come from a clock, not from a cycle counter"},
	{'z', "comm_rdma_cm", false, "the ends talk over TCP"},
	{0, "run_infinitely", false, "use -D"},
	{0, "rate_limit", true, "there is no rate limit"},
	{0, "use_hugepages", false, "a private node takes RVD_CORES_HUGEPAGES"},
	{0, "use_cuda", true, "payloads are in host memory"},
};
/* clang-format on */

struct parser {
	struct rv_bench_opts *o;
	bool seen[ID_NR];
	char *why;
	size_t cap;
	bool failed;
};

/* The first complaint is the one that is told; reading goes on to find out whose command line it is. */
static void complain(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void complain(struct parser *p, const char *fmt, ...)
{
	va_list ap;

	if (p->failed)
		return;
	p->failed = true;
	va_start(ap, fmt);
	vsnprintf(p->why, p->cap, fmt, ap);
	va_end(ap);
}

const char *rv_bench_prog(enum rv_bench_kind kind)
{
	return kind == RV_BENCH_BW ? "rv_get_bw" : "rv_get_lat";
}

static const char *const op_names[] = {
	[RV_BENCH_GET_PINNED] = "get_pinned",
	[RV_BENCH_GET] = "get",
	[RV_BENCH_GET_INTO] = "get_into",
	[RV_BENCH_RAW] = "raw",
	[RV_BENCH_NODE] = "node",
};

const char *rv_bench_op_name(enum rv_bench_op op)
{
	return op_names[op];
}

/* "-s" or "--report_gbits": how a flag is called in a complaint. */
static const char *spelt(enum id id, char text[4])
{
	static char longs[ID_NR][32];

	if (flags[id].letter) {
		snprintf(text, 4, "-%c", flags[id].letter);
		return text;
	}
	snprintf(longs[id], sizeof(longs[id]), "--%s", flags[id].name);
	return longs[id];
}

static bool number(const char *text, uint64_t *out, const char **end)
{
	char *stop;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &stop, 10);
	*end = stop;
	return errno == 0;
}

static void take_number(struct parser *p, enum id id, const char *text, uint64_t min, uint64_t max,
			uint64_t *out)
{
	const char *end;
	char flag[4];
	uint64_t n;

	if (!number(text, &n, &end) || *end || n < min || n > max)
		complain(p, "%s: %s is no number from %llu to %llu", spelt(id, flag), text,
			 (unsigned long long)min, (unsigned long long)max);
	else
		*out = n;
}

static void take_u32(struct parser *p, enum id id, const char *text, uint64_t min, uint64_t max,
		     uint32_t *out)
{
	uint64_t n = *out;

	take_number(p, id, text, min, max, &n);
	*out = (uint32_t)n;
}

static void take_size(struct parser *p, const char *text)
{
	static const char units[] = "KMG";
	const char *end, *unit;
	uint64_t n;
	bool ok = number(text, &n, &end);

	if (ok && *end) {
		unsigned shift;

		unit = strchr(units, *end);
		ok = unit && !end[1];
		shift = ok ? 10u * (unsigned)(unit - units + 1) : 0;
		ok = ok && n <= RV_GIB(64) >> shift;
		if (ok)
			n <<= shift;
	}
	if (!ok || n < 1 || n > RV_GIB(64))
		complain(p, "-s: %s is no size from 1 to 64G", text);
	else
		p->o->size = n;
}

static void take_path(struct parser *p, const char *text)
{
	if (!strcmp(text, "ucx"))
		p->o->path = RV_BENCH_PATH_UCX;
	else if (!strcmp(text, "chunked"))
		p->o->path = RV_BENCH_PATH_CHUNKED;
	else if (!strcmp(text, "local"))
		p->o->path = RV_BENCH_PATH_LOCAL;
	else if (!strcmp(text, "verbs"))
		p->o->path = RV_BENCH_PATH_VERBS;
	else
		complain(p, "--path: %s is none of ucx, verbs, chunked, local", text);
}

static void take_op(struct parser *p, const char *text)
{
	for (unsigned i = 0; i < RV_ARRAY_NR(op_names); i++) {
		if (!strcmp(text, op_names[i])) {
			p->o->op = (enum rv_bench_op)i;
			return;
		}
	}
	complain(p, "--op: %s is none of get_pinned, get, get_into, node, raw", text);
}

static void take(struct parser *p, enum id id, const char *v)
{
	struct rv_bench_opts *o = p->o;
	uint64_t n = o->port;

	p->seen[id] = true;
	switch (id) {
	case DEVICE:
		o->device = v;
		if (!*v || strlen(v) > 200)
			complain(p, "-d: no name of a device");
		break;
	case IB_PORT:
		take_u32(p, id, v, 1, 255, &o->ib_port);
		break;
	case PORT:
		take_number(p, id, v, 0, UINT16_MAX, &n);
		o->port = (uint16_t)n;
		break;
	case SIZE:
		take_size(p, v);
		break;
	case ITERS:
		take_number(p, id, v, 1, 100000000, &o->iterations);
		break;
	case DURATION:
		take_number(p, id, v, 1, 1000000, &o->duration_s);
		break;
	case QP:
		take_u32(p, id, v, 1, RV_BENCH_QP_MAX, &o->qps);
		break;
	case DEPTH:
		take_u32(p, id, v, 1, RV_BENCH_DEPTH_MAX, &o->depth);
		break;
	case GID:
		take_u32(p, id, v, 0, 255, &o->gid);
		break;
	case BATCH:
		take_u32(p, id, v, 1, RV_BENCH_DEPTH_MAX, &o->batch);
		break;
	case JSON_FILE:
		o->json_file = v;
		o->json = true;
		if (!*v)
			complain(p, "--out_json_file: no name of a file");
		break;
	case PATH:
		take_path(p, v);
		break;
	case OP:
		take_op(p, v);
		break;
	case SOCKET:
		o->socket = v;
		if (!*v)
			complain(p, "--socket: no path");
		break;
	default: /* the rest is on or off */
		break;
	}
	o->all = p->seen[ALL];
	o->json |= p->seen[JSON];
	o->no_peak = p->seen[NO_PEAK];
	o->gbits = p->seen[GBITS];
	o->cpu = p->seen[CPU];
	o->validate = p->seen[VALIDATE];
	o->help = p->seen[HELP];
	o->version = p->seen[VERSION];
}

/* One of perftest's that is refused, or nobody's. @return whether the next argument is its value */
static bool refuse(struct parser *p, char letter, const char *name, size_t len, const char *arg)
{
	for (size_t i = 0; i < RV_ARRAY_NR(refused); i++) {
		bool it = name ? strlen(refused[i].name) == len &&
					  strncmp(refused[i].name, name, len) == 0
			       : refused[i].letter == letter;

		if (!it)
			continue;
		if (name)
			complain(p, "--%s: refused: %s", refused[i].name, refused[i].why);
		else
			complain(p, "-%c: refused: %s", letter, refused[i].why);
		return refused[i].value;
	}
	if (name)
		complain(p, "%s: no such flag; --help lists them", arg);
	else
		complain(p, "-%c: no such flag; --help lists them", letter);
	return false;
}

/* --name, --name=value, --name value. @return how many of the arguments behind it were used up */
static int read_long(struct parser *p, const char *arg, const char *next)
{
	const char *name = arg + 2, *eq = strchr(name, '=');
	size_t len = eq ? (size_t)(eq - name) : strlen(name);

	for (unsigned i = 0; i < ID_NR; i++) {
		const struct flag *f = &flags[i];
		const char *v = eq ? eq + 1 : f->value ? next : "";

		if (strlen(f->name) != len || strncmp(f->name, name, len) != 0)
			continue;
		if (!f->value && eq)
			complain(p, "--%s: takes no value", f->name);
		else if (f->value && !v)
			complain(p, "--%s: needs %s", f->name, f->value);
		else
			take(p, (enum id)i, v);
		return f->value && !eq && next;
	}
	return refuse(p, 0, name, len, arg) && !eq && next;
}

/* -aF, -s64K, -s 64K. @return how many of the arguments behind it were used up */
static int read_letters(struct parser *p, const char *arg, const char *next)
{
	for (const char *c = arg + 1; *c; c++) {
		unsigned i = 0;

		while (i < ID_NR && flags[i].letter != *c)
			i++;
		if (i == ID_NR)
			return refuse(p, *c, NULL, 0, arg) && !c[1] && next;
		if (!flags[i].value) {
			take(p, (enum id)i, "");
			continue;
		}
		if (c[1])
			take(p, (enum id)i, c + 1);
		else if (next)
			take(p, (enum id)i, next);
		else
			complain(p, "-%c: needs %s", *c, flags[i].value);
		return !c[1] && next;
	}
	return 0;
}

static void read_all(struct parser *p, int argc, char **argv)
{
	bool only_words = false;

	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;

		if (!only_words && !strcmp(arg, "--"))
			only_words = true;
		else if (!only_words && !strncmp(arg, "--", 2))
			i += read_long(p, arg, next);
		else if (!only_words && arg[0] == '-' && arg[1])
			i += read_letters(p, arg, next);
		else if (p->o->host)
			complain(p, "%s: one HOST at most, and %s was said already", arg,
				 p->o->host);
		else if (!*arg || strlen(arg) > 255)
			complain(p, "HOST: no name of a host");
		else
			p->o->host = arg;
	}
}

/* A flag that is not this program's or not this end's. */
static void check_whose(struct parser *p)
{
	unsigned kind = p->o->kind == RV_BENCH_BW ? BW : LAT;
	unsigned end = p->o->host ? CLIENT : SERVER;
	char flag[4];

	for (unsigned i = 0; i < ID_NR; i++) {
		if (!p->seen[i])
			continue;
		if (!(flags[i].whose & kind))
			complain(p, "%s: refused: rv_get_lat measures one get at a time",
				 spelt((enum id)i, flag));
		if (!(flags[i].whose & end))
			complain(
				p,
				"%s: refused: it is the client's to say, the server stages what is asked "
				"for (a client names a HOST)",
				spelt((enum id)i, flag));
	}
}

static void check_pair(struct parser *p, enum id a, enum id b, const char *why)
{
	char first[4], second[4];

	if (p->seen[a] && p->seen[b])
		complain(p, "%s and %s: %s", spelt(a, first), spelt(b, second), why);
}

static void check_device(struct parser *p, enum id id)
{
	const struct rv_bench_opts *o = p->o;
	char flag[4];

	if (!p->seen[id])
		return;
	if (o->socket)
		complain(p, "%s: refused with --socket: the daemon has its device already",
			 spelt(id, flag));
	if (o->path == RV_BENCH_PATH_CHUNKED || o->path == RV_BENCH_PATH_LOCAL)
		complain(p, "%s: refused: there is no device on that --path", spelt(id, flag));
}

/* Those that run in this process's node, without a session. */
static void check_inside(struct parser *p)
{
	const struct rv_bench_opts *o = p->o;
	bool raw = o->op == RV_BENCH_RAW;

	if (!raw && o->op != RV_BENCH_NODE)
		return;
	if (o->socket)
		complain(p, "--op: %s is refused with --socket: it runs in a private node only",
			 op_names[o->op]);
	if (raw && (o->path == RV_BENCH_PATH_CHUNKED || o->path == RV_BENCH_PATH_LOCAL))
		complain(p, "--op: raw is refused on that --path: there are no RDMA reads");
	if (!raw && o->path == RV_BENCH_PATH_LOCAL)
		complain(
			p,
			"--op: node is refused on that --path: it measures gets of another node's");
	if (!raw && o->validate)
		complain(p, "--data_validation: refused with --op node: nobody sees the bytes");
	if (p->seen[QP])
		complain(p, "-q: refused with --op %s: there are no sessions", op_names[o->op]);
}

static bool is_localhost(const char *host)
{
	return !strcmp(host, "localhost") || !strcmp(host, "127.0.0.1") || !strcmp(host, "::1");
}

static void check_together(struct parser *p)
{
	const struct rv_bench_opts *o = p->o;

	check_inside(p);
	check_device(p, DEVICE);
	check_device(p, IB_PORT);
	check_device(p, GID);
	if (p->seen[IB_PORT] && !p->seen[DEVICE])
		complain(p, "-i: needs -d: a port of which device?");
	check_pair(p, ALL, SIZE, "all sizes, or one");
	check_pair(p, DURATION, ITERS, "a time, or a number of gets");
	check_pair(p, BATCH, DEPTH, "batches are fetched one after another");
	check_pair(p, BATCH, QP, "batches are fetched one after another");
	if (o->batch && o->op != RV_BENCH_GET_PINNED)
		complain(p, "--batch: refused with --op %s: rv_get_many gives views (get_pinned)",
			 op_names[o->op]);
	if (!o->host && o->path == RV_BENCH_PATH_LOCAL)
		complain(p, "--path: local has no server: one process with localhost as HOST");
	if (!o->host && o->socket && p->seen[PORT])
		complain(p, "-p: refused with --socket: the daemon listens on its own port");
	if (!o->host && o->socket && p->seen[PATH])
		complain(p, "--path: refused with --socket: the daemon has its paths already");
	if (o->host && o->path == RV_BENCH_PATH_LOCAL && !is_localhost(o->host))
		complain(
			p,
			"--path: local is this node's own, without a server: HOST must be localhost, not %s",
			o->host);
	if (o->host && o->path == RV_BENCH_PATH_LOCAL && p->seen[PORT])
		complain(p, "-p: refused: there is no server on --path local");
	if (o->host && p->seen[PORT] && !o->port)
		complain(p, "-p: 0 is no port of a server");
}

int rv_bench_opts_parse(enum rv_bench_kind kind, int argc, char **argv, struct rv_bench_opts *o,
			char *why, size_t cap)
{
	struct parser p = {.o = o, .why = why, .cap = cap};

	*o = (struct rv_bench_opts){
		.kind = kind,
		.json_file = "perftest_out.json",
		.size = kind == RV_BENCH_BW ? 65536 : 2,
		.iterations = 1000,
		.ib_port = UINT32_MAX,
		.gid = UINT32_MAX,
		.qps = 1,
		.depth = kind == RV_BENCH_BW ? 16 : 1,
		.port = RV_BENCH_PORT,
	};
	read_all(&p, argc, argv);
	if (!p.failed && (o->help || o->version))
		return 0;
	check_whose(&p);
	check_together(&p);
	return p.failed ? -EINVAL : 0;
}

/* A flag and what it does, in 80 columns. */
static void put_wrapped(FILE *to, const char *left, const char *text)
{
	const size_t room = 80 - 31;

	while (*text) {
		size_t n = strlen(text);

		if (n > room)
			for (n = room; n > 1 && text[n] != ' ';)
				n--;
		fprintf(to, "  %-28s %.*s\n", left, (int)n, text);
		text += n + (text[n] == ' ');
		left = "";
	}
}

void rv_bench_opts_help(enum rv_bench_kind kind, FILE *to)
{
	const char *prog = rv_bench_prog(kind);

	fprintf(to,
		"usage: %s [flags]       the server: serves clients until stopped\n"
		"       %s [flags] HOST  a client; start the server first\n\n",
		prog, prog);
	for (unsigned i = 0; i < ID_NR; i++) {
		const struct flag *f = &flags[i];
		char left[64], text[256], letter[8] = "    ";

		if (!(f->whose & (kind == RV_BENCH_BW ? BW : LAT)))
			continue;
		if (f->letter)
			snprintf(letter, sizeof(letter), "-%c, ", f->letter);
		snprintf(left, sizeof(left), "%s--%s%s%s", letter, f->name, f->value ? " " : "",
			 f->value ? f->value : "");
		snprintf(text, sizeof(text), "%s%s", (f->whose & ENDS) == CLIENT ? "client: " : "",
			 f->help);
		put_wrapped(to, left, text);
	}
	fprintf(to,
		"\nA private node takes RVD_<SECTION>_<KEY> of the environment, as rvd does; the\n"
		"flags win. MiB are 2^20 bytes, Gb 10^9 bits, Mpps 10^6 gets a second.\n"
		"exit: 0 done; 1 failed; 2 usage\n");
}
