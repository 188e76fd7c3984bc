/*
 * sim [--seed N] [--seeds FROM COUNT] [--steps N] [--verbose] [--self-test] [--tap]
 *
 * A failure prints "seed N step M: what" and exits 1; --seed N is the same run again. --self-test breaks one
 * thing at a time and wants every one of them noticed. --tap is what the suite runs.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane/base/log.h"
#include "tests/sim/sim.h"

#define STEPS      2500u
#define TAP_SEEDS  10000u
#define TOPOLOGIES 4u
#define SELF_SEEDS 400u

struct sim sim;
static unsigned test_nr;
static const char *test_name = "";

static const char *const topology[TOPOLOGIES] = {
	"one reactor, memory read by the device",
	"one reactor, memory read by software",
	"several reactors, memory read by the device",
	"several reactors, memory read by software",
};

static const char *const mutations[SIM_MUTATIONS] = {
	[SIM_AS_IT_IS] = "nothing",
	[SIM_WRITE_AFTER_DONE] = "the fabric writes after a GET is done",
	[SIM_SENT_TOO_EARLY] = "the carrier reads a payload after sent()",
	[SIM_PLACE_KEPT] = "the carrier writes to a place that was taken away",
	[SIM_NO_QUARANTINE] = "ranges do not rest",
	[SIM_HOLD_DROPPED_EARLY] = "a hold is dropped early",
	[SIM_HOLD_DROPPED_TWICE] = "a hold is dropped twice",
	[SIM_HOLD_FORGOTTEN] = "a hold is never dropped",
	[SIM_ANSWER_LOST] = "an answer is lost",
	[SIM_LEASE_FORGOTTEN] = "a lease is never ended",
	[SIM_CLOCK_BEHIND] = "a consumer's clock stands still",
	[SIM_KEY_NOT_REVOKED] = "a revoked key goes on reading",
	[SIM_REGION_REUSED] = "a region's memory is reused too early",
	[SIM_BUDGET_STOLEN] = "bytes of the budget vanish",
};

/* Random numbers: splitmix64. */

uint64_t sim_mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ULL;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

uint64_t sim_random(void)
{
	sim.rng += 0x9e3779b97f4a7c15ULL;
	return sim_mix(sim.rng);
}

uint64_t sim_below(uint64_t n)
{
	return n ? sim_random() % n : 0;
}

uint64_t sim_between(uint64_t from, uint64_t to)
{
	return to > from ? from + sim_below(to - from + 1) : from;
}

uint64_t sim_small(uint64_t from, uint64_t to)
{
	return from + (sim_between(0, to - from) >> sim_below(9));
}

bool sim_chance(unsigned of_1000)
{
	return of_1000 && sim_below(1000) < of_1000;
}

bool sim_fault(unsigned of_1000)
{
	return !sim.settling && sim_chance(of_1000);
}

/* Failures. */

static void say_failure(const char *what)
{
	char line[1200];
	int n = snprintf(line, sizeof(line), "%sseed %" PRIu64 " step %u: %s\n",
			 sim.tap ? "# " : "", sim.seed, sim.step, what);

	if (sim.tap)
		printf("not ok %u - %s\n", test_nr, test_name);
	fflush(stdout);
	if (write(sim.tap ? STDOUT_FILENO : STDERR_FILENO, line, (size_t)n) < 0) {
		/* Nobody is left to tell. */
	}
}

void sim_fail(const char *fmt, ...)
{
	char what[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	say_failure(what);
	if (getenv("RV_SIM_ABORT"))
		abort();
	_exit(1);
}

void sim_trace(const char *fmt, ...)
{
	va_list ap;

	if (!sim.verbose)
		return;
	fprintf(stderr, "%6u %12.6f ", sim.step, (double)sim.now_ns / 1e9);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static void on_signal(int sig)
{
	say_failure(sig == SIGALRM ? "the run does not end"
				   : "a fault: memory that is not there was touched");
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Weak: only a sanitizer's runtime has it. */
void __sanitizer_set_death_callback(void (*cb)(void)) __attribute__((weak));

static void on_death(void)
{
	say_failure("a sanitizer's report");
}

static void watch_faults(void)
{
	signal(SIGALRM, on_signal);
	if (__sanitizer_set_death_callback) {
		__sanitizer_set_death_callback(on_death);
		return;
	}
	signal(SIGSEGV, on_signal);
	signal(SIGBUS, on_signal);
	signal(SIGABRT, on_signal);
	signal(SIGFPE, on_signal);
}

static void run(uint64_t from, uint64_t count, uint64_t stride, unsigned steps)
{
	for (uint64_t i = 0; i < count; i++) {
		alarm(60);
		sim_world_run(from + i * stride, steps);
	}
	alarm(0);
}

static void summary(const char *before, uint64_t seeds)
{
	const struct sim_totals *t = &sim.totals;

	printf("%s%" PRIu64 " seeds, %" PRIu64 " rounds, %" PRIu64 " staged; gets: %" PRIu64
	       " local, %" PRIu64 " chunked, %" PRIu64 " rdma, %" PRIu64
	       " of them into programs' buffers, %" PRIu64 " failed (%" PRIu64 " late); %" PRIu64
	       " kills, %" PRIu64 " stops, %" PRIu64 " cuts\n",
	       before, seeds, t->rounds, t->staged, t->gets_ok[RV_PATH_LOCAL],
	       t->gets_ok[RV_PATH_CHUNKED], t->gets_ok[RV_PATH_RDMA], t->gets_in_place,
	       t->gets_failed, t->late, t->kills, t->stops, t->cuts);
	fflush(stdout);
}

/* The check of the checker. */

static bool noticed(enum sim_mutation mu, unsigned steps, char *line, size_t cap)
{
	int pipe_fd[2], status;
	ssize_t n, got = 0;
	pid_t pid;

	if (pipe(pipe_fd) || (pid = fork()) < 0)
		sim_fail("self-test: %s", strerror(errno));
	if (!pid) {
		dup2(pipe_fd[1], STDERR_FILENO);
		close(pipe_fd[0]);
		sim.tap = false;
		sim.mutation = mu;
		run(1, SELF_SEEDS, 1, steps);
		_exit(0);
	}
	close(pipe_fd[1]);
	while ((n = read(pipe_fd[0], line + got, cap - 1 - (size_t)got)) > 0)
		got += n;
	line[got] = '\0';
	line[strcspn(line, "\n")] = '\0';
	close(pipe_fd[0]);
	waitpid(pid, &status, 0);
	return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static bool self_test(unsigned steps)
{
	bool good = true;

	for (unsigned i = SIM_AS_IT_IS + 1; i < SIM_MUTATIONS; i++) {
		char line[2048];
		bool seen = noticed((enum sim_mutation)i, steps, line, sizeof(line));

		test_nr++;
		if (sim.tap)
			printf("%s %u - noticed: %s\n# %s\n", seen ? "ok" : "not ok", test_nr,
			       mutations[i], line);
		else
			printf("%-10s %s: %s\n", seen ? "noticed" : "NOT SEEN", mutations[i], line);
		fflush(stdout);
		good &= seen;
	}
	return good;
}

static int tap(unsigned steps)
{
	bool good = true;

	sim.tap = true;
	printf("1..%u\n", TOPOLOGIES + SIM_MUTATIONS - 1);
	for (unsigned i = 0; i < TOPOLOGIES; i++) {
		test_nr++;
		test_name = topology[i];
		memset(&sim.totals, 0, sizeof(sim.totals));
		run(TOPOLOGIES + i, TAP_SEEDS / TOPOLOGIES, TOPOLOGIES, steps);
		printf("ok %u - %s\n", test_nr, topology[i]);
		summary("# ", TAP_SEEDS / TOPOLOGIES);
	}
	good &= self_test(steps);
	return good ? 0 : 1;
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = text ? strtoull(text, &end, 0) : 0;
	if (!text || errno || *end || end == text) {
		fprintf(stderr, "sim: a number is wanted, not '%s'\n", text ? text : "");
		exit(2);
	}
	return n;
}

static int usage(void)
{
	fprintf(stderr,
		"usage: sim [--seed N] [--seeds FROM COUNT] [--steps N] [--verbose] [--self-test] [--tap]\n");
	return 2;
}

int main(int argc, char **argv)
{
	uint64_t from = 1, count = 100;
	unsigned steps = STEPS;
	bool want_tap = false, want_self = false;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
			from = number(argv[++i]);
			count = 1;
		} else if (strcmp(argv[i], "--seeds") == 0 && i + 2 < argc) {
			from = number(argv[++i]);
			count = number(argv[++i]);
		} else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
			steps = (unsigned)number(argv[++i]);
		} else if (strcmp(argv[i], "--verbose") == 0) {
			sim.verbose = true;
		} else if (strcmp(argv[i], "--self-test") == 0) {
			want_self = true;
		} else if (strcmp(argv[i], "--tap") == 0) {
			want_tap = true;
		} else {
			return usage();
		}
	}
	rv_log_set_level(sim.verbose ? RV_LOG_DEBUG : RV_LOG_ERROR);
	watch_faults();
	if (want_tap)
		return tap(steps);
	if (want_self)
		return self_test(steps) ? 0 : 1;
	run(from, count, 1, steps);
	summary("", count);
	return 0;
}
