/*
 * async_client SOCKET put LEN NR           stage NR payloads of LEN bytes at once, print the handles
 * async_client SOCKET gets REF LEN NR THREADS
 *                                          NR gets in flight from one poll loop, beside THREADS that block
 * async_client SOCKET into REF LEN NR      NR gets into parts of one buffer, then one by a blocking call
 * async_client SOCKET wait REF NR TIMEOUT_MS
 *                                          NR gets of an owner that does not answer; "waiting" once they are out
 * async_client SOCKET call PEER LEN NR     NR calls of its handler `echo`
 *
 * Byte i of a payload is i mod 251. Ends with one line of what it saw.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "control/client/rv.h"

#define MUST(cond)                                                                    \
	do {                                                                          \
		if (!(cond)) {                                                        \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, \
				rv_last_error());                                     \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

#define CODES 4096

static struct rv_client *c;
static unsigned ended, ok, codes[CODES];
static unsigned long turns, wakes;

struct item {
	struct rv_handle handle;
	const struct rv_ref *ref;
	struct rv_buf buf;
	uint64_t lease, len;
	void *reply;
	unsigned called;
};

static void fill(uint8_t *p, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (uint8_t)(i % 251);
}

static bool right(const void *data, uint64_t len, uint64_t want)
{
	const uint8_t *p = data;

	if (len != want)
		return false;
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != i % 251)
			return false;
	return true;
}

static void count(struct item *it, int rc)
{
	MUST(it->called++ == 0);
	ended++;
	ok += rc == 0;
	MUST(rc <= 0 && -rc < CODES);
	codes[-rc]++;
	if (rc)
		MUST(*rv_last_error());
}

/* As any event loop does it: sleep until there is something to do. */
static void run(unsigned until)
{
	struct pollfd p = {.fd = rv_event_fd(c), .events = POLLIN};

	while (ended < until) {
		MUST(poll(&p, 1, 120000) == 1);
		wakes++;
		MUST(rv_progress(c) >= 0);
		turns++;
	}
}

static void say(void)
{
	struct timespec cpu;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	printf("ended %u ok %u turns %lu cpu_ms %lu", ended, ok, turns,
	       (unsigned long)cpu.tv_sec * 1000 + (unsigned long)cpu.tv_nsec / 1000000);
	for (unsigned i = 1; i < CODES; i++)
		if (codes[i])
			printf(" rc-%u %u", i, codes[i]);
	printf("\n");
	fflush(stdout);
}

/* put */

static void put_done(void *user, int rc)
{
	count(user, rc);
}

static void put(uint64_t len, unsigned nr)
{
	struct item *it = calloc(nr, sizeof(*it));
	uint8_t *data = malloc(len + 1);
	char text[RV_HANDLE_TEXT_MAX];

	MUST(it && data);
	fill(data, len);
	for (unsigned i = 0; i < nr; i++)
		MUST(rv_register_data_pinned_nb(c, data, len, NULL, &it[i].handle, put_done,
						&it[i]) == 0);
	run(nr);
	for (unsigned i = 0; i < nr && ok == nr; i++) {
		rv_handle_format(it[i].handle, text, sizeof(text));
		printf("%s\n", text);
	}
	free(data);
	free(it);
}

/* gets */

static uint64_t want_len;
static unsigned want_nr, begun, detached;
static struct item *items;
static struct rv_ref owner;
static atomic_bool stop;
static atomic_ulong blocked;

static void detach_done(void *user, int rc)
{
	(void)user;
	MUST(rc == 0);
	detached++;
}

static void finish_detaches(void)
{
	struct pollfd p = {.fd = rv_event_fd(c), .events = POLLIN};

	while (detached < ok) {
		MUST(poll(&p, 1, 60000) == 1);
		rv_progress(c);
		turns++;
	}
}

static void got(void *user, int rc)
{
	struct item *it = user;

	count(it, rc);
	if (rc)
		return;
	MUST(right(it->buf.data, it->buf.len, want_len));
	rv_buf_free(&it->buf);
	MUST(rv_detach_at_nb(c, &owner, it->lease, NULL, detach_done, it) == 0);
}

static void begin(const struct rv_opts *o, unsigned nr)
{
	for (; begun < nr; begun++) {
		struct item *it = &items[begun];
		int rc = rv_get_pinned_at_nb(c, &owner, o, &it->buf, &it->lease, got, it);

		if (rc == -EAGAIN)
			run(ended + 1); /* as many as the queue takes */
		else
			MUST(rc == 0);
	}
}

static void *block(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		uint64_t len, lease;
		void *data;

		MUST(rv_get_at(c, &owner, NULL, &data, &len, &lease) == 0);
		MUST(right(data, len, want_len));
		rv_free(data);
		MUST(rv_detach_at(c, &owner, lease, NULL) == 0);
		atomic_fetch_add(&blocked, 1);
	}
	return NULL;
}

static void gets(uint64_t len, unsigned nr, unsigned threads)
{
	pthread_t t[16];

	MUST(threads <= 16);
	want_len = len;
	items = calloc(nr, sizeof(*items));
	MUST(items);
	for (unsigned i = 0; i < threads; i++)
		MUST(pthread_create(&t[i], NULL, block, NULL) == 0);
	begin(NULL, nr);
	run(nr);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	finish_detaches();
	printf("blocked %lu ", atomic_load(&blocked));
}

/* into */

static void detach_into(void *user, int rc)
{
	struct item *it = user;

	count(it, rc);
	if (rc)
		return;
	MUST(it->len == want_len);
	MUST(rv_detach_at_nb(c, &owner, it->lease, NULL, detach_done, it) == 0);
}

static void into(uint64_t len, unsigned nr)
{
	uint64_t n, lease;
	struct rv_buf buf;
	uint8_t *p;

	want_len = len;
	items = calloc(nr, sizeof(*items));
	MUST(items && rv_alloc_pinned(c, (len + 1) * nr, &buf) == 0);
	p = buf.data;
	memset(p, 0x5a, (len + 1) * nr);
	for (unsigned i = 0; i < nr; i++)
		MUST(rv_get_into_at_nb(c, &owner, NULL, p + i * (len + 1), len + 1, &items[i].len,
				       &items[i].lease, detach_into, &items[i]) == 0);
	run(nr);
	finish_detaches();
	for (unsigned i = 0; i < nr; i++) {
		MUST(right(p + i * (len + 1), len, len));
		MUST(p[i * (len + 1) + len] == 0x5a);
	}
	memset(p, 0x5a, (len + 1) * nr);
	MUST(rv_get_into_at(c, &owner, NULL, p + 1, len - 1, &n, &lease) == -ERANGE && n == len);
	MUST(p[1] == 0x5a);
	MUST(rv_get_into_at(c, &owner, NULL, p + 1, len, &n, &lease) == 0 && n == len);
	MUST(right(p + 1, len, len) && p[0] == 0x5a);
	MUST(rv_detach_at(c, &owner, lease, NULL) == 0);
	rv_buf_free(&buf);
}

static void wait_for(unsigned nr, uint64_t timeout_ms)
{
	struct rv_opts o = {.timeout_ns = timeout_ms * 1000000u};

	items = calloc(nr, sizeof(*items));
	MUST(items);
	begin(&o, nr);
	printf("waiting\n");
	fflush(stdout);
	run(nr);
}

/* call */

static void called(void *user, int rc)
{
	struct item *it = user;

	count(it, rc);
	if (rc)
		return;
	MUST(right(it->reply, it->len, want_len));
	rv_free(it->reply);
}

static void call(const char *peer, uint64_t len, unsigned nr)
{
	uint8_t *data = malloc(len + 1);

	items = calloc(nr, sizeof(*items));
	MUST(items && data);
	want_len = len;
	fill(data, len);
	for (unsigned i = 0; i < nr; i++)
		MUST(rv_call_nb(c, peer, "echo", data, len, NULL, &items[i].reply, &items[i].len,
				called, &items[i]) == 0);
	run(nr);
	free(data);
}

int main(int argc, char **argv)
{
	MUST(argc >= 5);
	MUST(rv_open(argv[1], &c) == 0);
	want_nr = (unsigned)strtoul(argv[4], NULL, 10);
	if (!strcmp(argv[2], "gets") || !strcmp(argv[2], "wait") || !strcmp(argv[2], "into"))
		MUST(rv_ref_parse(argv[3], &owner) == 0);
	if (!strcmp(argv[2], "put"))
		put(strtoull(argv[3], NULL, 10), want_nr);
	else if (!strcmp(argv[2], "gets"))
		gets(strtoull(argv[4], NULL, 10), (unsigned)strtoul(argv[5], NULL, 10),
		     (unsigned)strtoul(argv[6], NULL, 10));
	else if (!strcmp(argv[2], "into"))
		into(strtoull(argv[4], NULL, 10), (unsigned)strtoul(argv[5], NULL, 10));
	else if (!strcmp(argv[2], "wait"))
		wait_for(want_nr, strtoull(argv[5], NULL, 10));
	else
		call(argv[3], strtoull(argv[4], NULL, 10), (unsigned)strtoul(argv[5], NULL, 10));
	say();
	rv_close(c);
	free(items);
	return 0;
}
