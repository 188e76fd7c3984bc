/*
 * rvtop - live view of a daemon, like top.
 */
#include "tools/rvtop.h"

#include <curses.h>
#include <errno.h>
#include <getopt.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dataplane/base/clock.h"
#include "dataplane/base/units.h"

#define EXIT_USAGE     2
#define EXIT_NO_DAEMON 6
#define EXIT_REFUSED   7

struct args {
	struct rv_top_how how;
	uint64_t delay_ns;
	bool batch, json, help;
	unsigned long snapshots; /* 0: no end */
};

static const char usage[] =
	"usage: rvtop [-d SECONDS] [-t TAB] [-b] [--json] [-n N] [--socket PATH]\n"
	"\n"
	"  -d, --delay SECONDS   between two looks (1)\n"
	"  -t, --tab TAB         overview, cores, slots, leases, arenas, peers (overview)\n"
	"  -b, --batch           print snapshots as text, for files and pipes\n"
	"      --json            print snapshots as JSON, one a line\n"
	"  -n, --snapshots N     stop after that many; only with -b or --json\n"
	"      --socket PATH     daemon's socket (else RVD_SOCKET, else the default)\n"
	"  -h, --help            print this help\n"
	"  -V, --version         print the version\n"
	"\n"
	"keys: 1 to 6 and left, right choose the tab; up, down scroll; s the next column\n"
	"      to sort by (v or ^ is at its name); r the other order; d another delay;\n"
	"      h help; q quit\n"
	"\n"
	"rvctl TAB --help tells what the columns mean, docs/OPERATIONS.md each REASON.\n"
	"\n"
	"exit: 0 done; 1 failed; 2 usage; -b and --json at their first look: 6 no daemon,\n"
	"      7 no permission\n";

static int complain(const char *what, const char *value)
{
	fprintf(stderr, "rvtop: %s%s%s. See rvtop --help\n", what, value ? " " : "",
		value ? value : "");
	return EXIT_USAGE;
}

static int parse_delay(const char *text, uint64_t *ns)
{
	char *end;
	double s = strtod(text, &end);

	if (end == text || *end || !(s >= 0.05) || s > 86400)
		return -EINVAL;
	*ns = (uint64_t)(s * 1e9);
	return 0;
}

static int parse_tab(const char *text, enum rv_top_tab *tab)
{
	for (unsigned i = 0; i < RV_TOP_TABS; i++) {
		if (strcmp(text, rv_top_tab_name((enum rv_top_tab)i)) == 0) {
			*tab = (enum rv_top_tab)i;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_count(const char *text, unsigned long *nr)
{
	char *end;

	errno = 0;
	*nr = strtoul(text, &end, 10);
	return errno || end == text || *end || text[0] == '-' || !*nr ? -EINVAL : 0;
}

/* @return an exit code, or -1 to go on */
static int parse(int argc, char **argv, struct args *a, struct rv_top *t)
{
	enum { OPT_JSON = 256, OPT_SOCKET };
	static const struct option options[] = {
		{"delay", required_argument, NULL, 'd'},
		{"tab", required_argument, NULL, 't'},
		{"batch", no_argument, NULL, 'b'},
		{"json", no_argument, NULL, OPT_JSON},
		{"snapshots", required_argument, NULL, 'n'},
		{"socket", required_argument, NULL, OPT_SOCKET},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	int c, at = optind;

	opterr = 0; /* one line, with a way out */
	for (; (c = getopt_long(argc, argv, "+:d:t:bn:hV", options, NULL)) != -1; at = optind) {
		switch (c) {
		case 'd':
			if (parse_delay(optarg, &a->delay_ns))
				return complain("a delay is 0.05 to 86400 seconds, not", optarg);
			break;
		case 't':
			if (parse_tab(optarg, &a->how.tab))
				return complain("a tab is overview, cores, slots, leases, "
						"arenas or peers, not",
						optarg);
			break;
		case 'b':
			a->batch = true;
			break;
		case 'n':
			if (parse_count(optarg, &a->snapshots))
				return complain("a number of snapshots is 1 or more, not", optarg);
			break;
		case OPT_JSON:
			a->batch = a->json = true;
			break;
		case OPT_SOCKET:
			t->socket = optarg;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		case 'V':
			puts("rvtop " RV_VERSION);
			return 0;
		case ':':
			return complain("a value is missing after", argv[at]);
		default:
			return complain("there is no option", argv[at]);
		}
	}
	if (optind < argc)
		return complain("there is no argument", argv[optind]);
	if (a->snapshots && !a->batch)
		return complain("-n needs -b or --json", NULL);
	if (!a->batch && !isatty(STDOUT_FILENO))
		return complain("stdout is no terminal: -b or --json print to files and pipes",
				NULL);
	return -1;
}

static void nap(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / RV_SEC(1)),
			      .tv_nsec = (long)(ns % RV_SEC(1))};

	nanosleep(&ts, NULL);
}

static void strip_heads(char *text)
{
	char *to = text;

	for (; *text; text++)
		if (*text != RV_TOP_HEAD)
			*to++ = *text;
	*to = '\0';
}

static int print_text(const struct rv_top *t, const struct args *a)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return -ENOMEM;
	rv_top_view(t, &a->how, f);
	if (fclose(f)) {
		free(text);
		return -ENOMEM;
	}
	strip_heads(text);
	printf("%s\n", text);
	free(text);
	return 0;
}

/* A rate needs two looks, so the first snapshot comes after one delay. */
static int batch(struct rv_top *t, const struct args *a)
{
	int rc = rv_top_look(t, a->how.tab);

	if (rc) {
		fprintf(stderr, "rvtop: %s\n", t->why);
		return rc == -EACCES ? EXIT_REFUSED : EXIT_NO_DAEMON;
	}
	for (unsigned long i = 0; !a->snapshots || i < a->snapshots; i++) {
		nap(a->delay_ns);
		rv_top_look(t, a->how.tab); /* a failure is what the snapshot says */
		if (a->json)
			rv_top_json(t, &a->how, stdout);
		else if (print_text(t, a))
			return 1;
		if (fflush(stdout) || ferror(stdout))
			return 1; /* whoever read is gone */
	}
	return 0;
}

/* The screen. */

/* As many bytes of @line as fill @columns: a character of UTF-8 fills one. */
static int fitting(const char *line, int columns)
{
	int n = 0;

	for (; line[n] && line[n] != '\n'; n++)
		if (((unsigned char)line[n] & 0xc0) != 0x80 && columns-- == 0)
			break;
	return n;
}

/* Where the first line leaves room: who sees it for the first time knows neither the tabs nor the way out. */
static void draw_keys(const char *first)
{
	static const char keys[] = "1-6 tabs, h help, q quit";
	int at = COLS - (int)sizeof(keys) + 1;

	if (fitting(first, COLS) + 2 <= at)
		mvaddstr(0, at, keys);
}

static void draw(const char *text)
{
	erase();
	for (int y = 0; *text && y < LINES; y++) {
		bool head = *text == RV_TOP_HEAD;
		const char *line = text + head;

		if (head)
			attron(y ? A_REVERSE : A_BOLD);
		mvaddnstr(y, 0, line, fitting(line, COLS));
		if (head)
			attroff(y ? A_REVERSE : A_BOLD);
		if (head && !y)
			draw_keys(line);
		text = line + strcspn(line, "\n");
		text += *text == '\n';
	}
	refresh();
}

static unsigned show(const struct rv_top *t, struct args *a)
{
	char *text = NULL;
	size_t len;
	FILE *f;
	unsigned rows;

	if (a->help) {
		draw(usage);
		return 0;
	}
	f = open_memstream(&text, &len);
	if (!f)
		return 0;
	a->how.width = (unsigned)COLS;
	a->how.height = (unsigned)LINES;
	rows = rv_top_view(t, &a->how, f);
	if (fclose(f) == 0)
		draw(text);
	free(text);
	return rows;
}

static void turn_to(struct rv_top *t, struct args *a, unsigned tab)
{
	a->how.tab = (enum rv_top_tab)(tab % RV_TOP_TABS);
	a->how.skip = a->how.sort = 0;
	a->how.reverse = false;
	rv_top_look(t, a->how.tab);
}

static void next_delay(struct args *a)
{
	static const uint64_t delays[] = {RV_MS(500), RV_SEC(1), RV_SEC(2), RV_SEC(5), RV_SEC(10)};

	for (unsigned i = 0; i < RV_ARRAY_NR(delays); i++) {
		if (delays[i] > a->delay_ns) {
			a->delay_ns = delays[i];
			return;
		}
	}
	a->delay_ns = delays[0];
}

/* @return false: enough */
static bool press(struct rv_top *t, struct args *a, int key, unsigned rows)
{
	unsigned columns = rv_top_columns(a->how.tab);

	if (a->help) {
		a->help = false;
		return key != 'q';
	}
	switch (key) {
	case 'q':
		return false;
	case 'h':
	case '?':
		a->help = true;
		break;
	case 's':
		a->how.sort = columns ? (a->how.sort + 1) % columns : 0;
		break;
	case 'r':
		a->how.reverse = !a->how.reverse;
		break;
	case 'd':
		next_delay(a);
		break;
	case KEY_LEFT:
		turn_to(t, a, a->how.tab + RV_TOP_TABS - 1u);
		break;
	case KEY_RIGHT:
		turn_to(t, a, a->how.tab + 1u);
		break;
	case KEY_DOWN:
		a->how.skip += a->how.skip + 1 < rows;
		break;
	case KEY_UP:
		a->how.skip -= a->how.skip > 0;
		break;
	default:
		if (key >= '1' && key < '1' + (int)RV_TOP_TABS)
			turn_to(t, a, (unsigned)(key - '1'));
	}
	return true;
}

static int screen(struct rv_top *t, struct args *a)
{
	uint64_t next = 0;
	bool go_on = true;
	unsigned rows = 0;

	if (!initscr())
		return 1;
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	while (go_on) {
		uint64_t now = rv_clock_ns();
		int key;

		if (now >= next) {
			rv_top_look(t, a->how.tab);
			next = now + a->delay_ns;
		}
		rows = show(t, a);
		now = rv_clock_ns();
		timeout(now < next ? (int)((next - now) / RV_MS(1)) + 1 : 0);
		key = getch();
		if (key != ERR)
			go_on = press(t, a, key, rows);
	}
	endwin();
	return 0;
}

int main(int argc, char **argv)
{
	struct args a = {.delay_ns = RV_SEC(1)};
	struct rv_top t = {0};
	int rc;

	setlocale(LC_CTYPE, "");
	a.how.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	rc = parse(argc, argv, &a, &t);
	if (rc < 0)
		rc = a.batch ? batch(&t, &a) : screen(&t, &a);
	rv_top_fini(&t);
	return rc;
}
