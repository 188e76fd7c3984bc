/*
 * program - what a program's calls cost through librv and a daemon, waiting by polling its own session.
 *
 *   program view SOCKET SIZE NUMBER          a view of what this node's own daemon holds
 *   program stage SOCKET SIZE NUMBER         rv_register_data_pinned, and beside it a memcpy of as much
 *   program commit SOCKET SIZE NUMBER        rv_alloc_pinned and rv_register_pinned, nothing written
 *   program many OWNER_SOCKET OWNER_PORT SOCKET NUMBER
 *                                            rv_get_many of 256 slots of 1 KiB, and beside it one get of 256 KiB
 *   program first OWNER_SOCKET OWNER_PORT SOCKET SIZE NUMBER IDLE_SECONDS
 *                                            gets by whatever way, so long after the last
 *   program get OWNER_SOCKET OWNER_PORT SOCKET SIZE NUMBER
 *                                            gets in chunks of one slot, the first not counted
 *   program grow OWNER_SOCKET OWNER_PORT SOCKET SLOTS LEASES NUMBER
 *                                            gets of random ones of so many slots, so many leases being held; the slots
 *                                            are empty. Says "staged" and waits for a line before it goes on
 *
 * Prints "usec MEDIAN MIN MAX p99 P99", and the same of what is beside it as "beside". P99 is the median of that of each
 * 1,000 calls where there are as many.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/client/rv.h"
#include "tests/bench/measure.h"

#define MANY     256u
#define MANY_LEN 1024u
#define AT_ONCE  64u

#define BATCH        1000u
#define MANY_BATCHES 64u

static _Noreturn void die(const char *what, int rc)
{
	fprintf(stderr, "program: %s: %s (%s)\n", what, rv_last_error(), strerror(-rc));
	exit(1);
}

static void must(const char *what, int rc)
{
	if (rc)
		die(what, rc);
}

/* That of each BATCH calls, and of these the median: what disturbs the machine for a while shows in a few of them only. */
static double p99(double *usec, size_t nr)
{
	double of[MANY_BATCHES];
	size_t n = nr / BATCH < MANY_BATCHES ? nr / BATCH : MANY_BATCHES;

	for (size_t i = 0; i < n; i++) {
		sort_times(usec + i * BATCH, BATCH);
		of[i] = usec[i * BATCH + BATCH - 1 - BATCH / 100];
	}
	if (!n) {
		sort_times(usec, nr);
		return usec[nr - 1 - nr / 100];
	}
	sort_times(of, n);
	return of[n / 2];
}

/* @usec is in no order after this. */
static void report(const char *what, double *usec, size_t nr)
{
	double tail = p99(usec, nr);

	sort_times(usec, nr);
	printf("%s %.2f %.2f %.2f p99 %.2f\n", what, usec[nr / 2], usec[0], usec[nr - 1], tail);
}

static double *times(size_t nr)
{
	double *t = calloc(nr, sizeof(*t));

	if (!nr || !t)
		die("NUMBER", -EINVAL);
	return t;
}

static struct rv_client *session(const char *socket)
{
	struct rv_client *c;

	must("rv_open", rv_open(socket, &c));
	return c;
}

/* The session's answers are looked for without sleeping. */

struct waiting {
	int rc;
	bool over;
};

static void done(void *user, int rc)
{
	struct waiting *w = user;

	w->rc = rc;
	w->over = true;
}

static void finish(struct rv_client *c, const char *what, int rc, struct waiting *w)
{
	must(what, rc);
	while (!w->over) {
		rc = rv_progress(c);
		if (rc < 0)
			die("rv_progress", rc);
	}
	must(what, w->rc);
}

static void *memory(uint64_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		die("memory", -errno);
	memset(p, 0x5a, len);
	return p;
}

static struct rv_handle staged(struct rv_client *c, uint64_t len)
{
	struct rv_handle h;
	struct rv_buf buf;

	must("rv_alloc_pinned", rv_alloc_pinned(c, len, &buf));
	memset(buf.data, 0x5a, len);
	must("rv_register_pinned", rv_register_pinned(c, &buf, NULL, &h));
	return h;
}

static void view(struct rv_client *c, uint64_t size, size_t nr)
{
	const struct rv_opts opts = {.then = RV_THEN_DETACH};
	struct rv_handle h = staged(c, size);
	double *usec = times(nr);

	for (size_t i = 0; i < nr; i++) {
		struct waiting w = {0};
		struct rv_buf buf;
		uint64_t lease;
		double began = now_usec();

		finish(c, "rv_get_pinned", rv_get_pinned_nb(c, h, &opts, &buf, &lease, done, &w),
		       &w);
		usec[i] = now_usec() - began;
		if (buf.len != size || ((volatile uint8_t *)buf.data)[size - 1] != 0x5a)
			die("the view", -EBADMSG);
		rv_buf_free(&buf);
	}
	report("usec", usec, nr);
	must("rv_drop", rv_drop(c, h));
	free(usec);
}

static void stage(struct rv_client *c, uint64_t size, size_t nr)
{
	double *usec = times(nr), *copy = times(nr);
	void *from = memory(size), *to = memory(size);

	for (size_t i = 0; i < nr; i++) {
		struct waiting w = {0};
		struct rv_handle h;
		double began = now_usec();

		finish(c, "rv_register_data_pinned",
		       rv_register_data_pinned_nb(c, from, size, NULL, &h, done, &w), &w);
		usec[i] = now_usec() - began;
		must("rv_drop", rv_drop(c, h));
		began = now_usec();
		memcpy(to, from, size);
		copy[i] = now_usec() - began;
		((volatile uint8_t *)from)[i % size] ^= ((volatile uint8_t *)to)[i % size];
	}
	report("usec", usec, nr);
	report("beside", copy, nr);
	munmap(from, size);
	munmap(to, size);
	free(usec);
	free(copy);
}

static void commit(struct rv_client *c, uint64_t size, size_t nr)
{
	double *usec = times(nr);

	for (size_t i = 0; i < nr; i++) {
		struct waiting a = {0}, b = {0};
		struct rv_handle h;
		struct rv_buf buf;
		double began = now_usec();

		finish(c, "rv_alloc_pinned", rv_alloc_pinned_nb(c, size, &buf, done, &a), &a);
		finish(c, "rv_register_pinned", rv_register_pinned_nb(c, &buf, NULL, &h, done, &b),
		       &b);
		usec[i] = now_usec() - began;
		must("rv_drop", rv_drop(c, h));
	}
	report("usec", usec, nr);
	free(usec);
}

static struct rv_ref remote(struct rv_handle h, const char *port)
{
	return (struct rv_ref){.handle = h, .port = (uint16_t)atoi(port), .host = "127.0.0.1"};
}

static void many(struct rv_client *owner, const char *port, struct rv_client *c, size_t nr)
{
	static struct rv_result res[MANY];
	static struct rv_ref refs[MANY];
	const struct rv_opts opts = {.then = RV_THEN_DETACH, .path = RV_GET_PATH_CHUNKED};
	struct rv_ref one = remote(staged(owner, MANY * MANY_LEN), port);
	double *usec = times(nr), *beside = times(nr);

	for (unsigned i = 0; i < MANY; i++)
		refs[i] = remote(staged(owner, MANY_LEN), port);
	for (size_t i = 0; i < nr + 1; i++) { /* the first makes the memory */
		size_t at = i ? i - 1 : 0;
		struct rv_buf buf;
		uint64_t lease;
		double began = now_usec();

		must("rv_get_many", rv_get_many_at(c, refs, MANY, &opts, res));
		usec[at] = now_usec() - began;
		for (unsigned k = 0; k < MANY; k++)
			rv_buf_free(&res[k].buf);
		began = now_usec();
		must("rv_get_pinned", rv_get_pinned_at(c, &one, &opts, &buf, &lease));
		beside[at] = now_usec() - began;
		rv_buf_free(&buf);
	}
	report("usec", usec, nr);
	report("beside", beside, nr);
	free(usec);
	free(beside);
}

static void get(struct rv_client *owner, const char *port, struct rv_client *c, uint64_t size,
		size_t nr)
{
	const struct rv_opts opts = {.then = RV_THEN_DETACH, .path = RV_GET_PATH_CHUNKED};
	struct rv_ref ref = remote(staged(owner, size), port);
	double *usec = times(nr);

	for (size_t i = 0; i < nr + 1; i++) {
		struct rv_buf buf;
		uint64_t lease;
		double began = now_usec();

		must("rv_get_pinned", rv_get_pinned_at(c, &ref, &opts, &buf, &lease));
		usec[i ? i - 1 : 0] = now_usec() - began;
		rv_buf_free(&buf);
	}
	report("usec", usec, nr);
	must("rv_drop", rv_drop(owner, ref.handle));
	free(usec);
}

static void first(struct rv_client *owner, const char *port, struct rv_client *c, char **argv)
{
	struct rv_ref ref = remote(staged(owner, strtoull(argv[0], NULL, 10)), port);
	const struct rv_opts opts = {.then = RV_THEN_DETACH};
	size_t nr = (size_t)atoi(argv[1]);
	double *usec = times(nr), idle = atof(argv[2]);

	for (size_t i = 0; i < nr; i++) {
		struct rv_buf buf;
		uint64_t lease;
		double began;

		usleep((useconds_t)(idle * 1e6));
		began = now_usec();
		must("rv_get_pinned", rv_get_pinned_at(c, &ref, &opts, &buf, &lease));
		usec[i] = now_usec() - began;
		rv_buf_free(&buf);
	}
	report("usec", usec, nr);
	free(usec);
}

/* Many calls at once, the same for each. */
static void spread(struct rv_client *c, size_t nr,
		   int (*one)(struct rv_client *, size_t, struct waiting *))
{
	static struct waiting w[AT_ONCE];

	for (size_t i = 0; i < nr + AT_ONCE; i++) {
		struct waiting *at = &w[i % AT_ONCE];

		if (i >= AT_ONCE)
			finish(c, "one of many", 0, at);
		*at = (struct waiting){0};
		if (i < nr)
			must("one of many", one(c, i, at));
		else
			at->over = true;
	}
}

static struct rv_handle *slot;
static struct rv_ref *at_owner;
static uint64_t random_state = 88172645463325252ull;

static uint64_t random_u64(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static int stage_one(struct rv_client *c, size_t i, struct waiting *w)
{
	return rv_register_data_nb(c, "", 0, NULL, &slot[i], done, w);
}

static int hold_one(struct rv_client *c, size_t i, struct waiting *w)
{
	static struct rv_buf buf[AT_ONCE];
	static uint64_t lease[AT_ONCE];

	return rv_get_pinned_at_nb(c, &at_owner[i], NULL, &buf[i % AT_ONCE], &lease[i % AT_ONCE],
				   done, w);
}

static void grow(struct rv_client *owner, const char *port, struct rv_client *c, char **argv)
{
	size_t slots = strtoull(argv[0], NULL, 10), leases = strtoull(argv[1], NULL, 10);
	size_t nr = (size_t)atoi(argv[2]);
	double *usec = times(nr);

	slot = calloc(slots, sizeof(*slot));
	at_owner = calloc(slots, sizeof(*at_owner));
	if (!slot || !at_owner)
		die("memory", -ENOMEM);
	spread(owner, slots, stage_one);
	for (size_t i = 0; i < slots; i++)
		at_owner[i] = remote(slot[i], port);
	spread(c, leases, hold_one);
	puts("staged");
	fflush(stdout);
	getchar();
	for (size_t i = 0; i < nr; i++) {
		const struct rv_ref *ref = &at_owner[random_u64() % slots];
		struct rv_buf buf;
		uint64_t lease;
		double began = now_usec();

		must("rv_get_pinned", rv_get_pinned_at(c, ref, NULL, &buf, &lease));
		usec[i] = now_usec() - began;
		must("rv_detach", rv_detach_at(c, ref, lease, NULL));
	}
	report("usec", usec, nr);
}

int main(int argc, char **argv)
{
	struct rv_client *c = argc > 4 ? session(argv[2]) : NULL;

	if (argc == 5 && !strcmp(argv[1], "view")) {
		view(c, strtoull(argv[3], NULL, 10), (size_t)atoi(argv[4]));
	} else if (argc == 5 && !strcmp(argv[1], "stage")) {
		stage(c, strtoull(argv[3], NULL, 10), (size_t)atoi(argv[4]));
	} else if (argc == 5 && !strcmp(argv[1], "commit")) {
		commit(c, strtoull(argv[3], NULL, 10), (size_t)atoi(argv[4]));
	} else if (argc == 6 && !strcmp(argv[1], "many")) {
		struct rv_client *consumer = session(argv[4]);

		many(c, argv[3], consumer, (size_t)atoi(argv[5]));
		rv_close(consumer);
	} else if (argc == 8 && !strcmp(argv[1], "first")) {
		struct rv_client *consumer = session(argv[4]);

		first(c, argv[3], consumer, argv + 5);
		rv_close(consumer);
	} else if (argc == 7 && !strcmp(argv[1], "get")) {
		struct rv_client *consumer = session(argv[4]);

		get(c, argv[3], consumer, strtoull(argv[5], NULL, 10), (size_t)atoi(argv[6]));
		rv_close(consumer);
	} else if (argc == 8 && !strcmp(argv[1], "grow")) {
		struct rv_client *consumer = session(argv[4]);

		grow(c, argv[3], consumer, argv + 5);
		rv_close(consumer);
	} else {
		fputs("usage: program view|stage|commit SOCKET SIZE NUMBER\n"
		      "       program many OWNER_SOCKET OWNER_PORT SOCKET NUMBER\n"
		      "       program first OWNER_SOCKET OWNER_PORT SOCKET SIZE NUMBER IDLE_SECONDS\n"
		      "       program get OWNER_SOCKET OWNER_PORT SOCKET SIZE NUMBER\n"
		      "       program grow OWNER_SOCKET OWNER_PORT SOCKET SLOTS LEASES NUMBER\n",
		      stderr);
		return 2;
	}
	rv_close(c);
	return 0;
}
