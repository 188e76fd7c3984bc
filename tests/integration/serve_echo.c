/*
 * serve_echo SOCKET - serves `echo`, `size`, `fail` and `slow` on a node through librv, until its stdin ends.
 * Exit 3: a handler still ran when it had been unserved.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "control/client/rv.h"

static int echo(void *user, const struct rv_request *q, struct rv_answer *a)
{
	(void)user;
	a->data = malloc(q->len ? q->len : 1);
	if (!a->data)
		return -1;
	if (q->len)
		memcpy(a->data, q->data, q->len);
	a->len = q->len;
	return 0;
}

static int size(void *user, const struct rv_request *q, struct rv_answer *a)
{
	char text[64];
	struct rv_client *c = user;

	(void)c;
	a->len = (uint64_t)snprintf(text, sizeof(text), "%llu from %llu",
				    (unsigned long long)q->len, (unsigned long long)q->sender);
	a->data = strdup(text);
	return a->data ? 0 : -1;
}

static int fail(void *user, const struct rv_request *q, struct rv_answer *a)
{
	(void)user;
	(void)q;
	snprintf(a->error, sizeof(a->error), "it failed on purpose");
	return -1;
}

static _Atomic int slow_runs;

static int slow(void *user, const struct rv_request *q, struct rv_answer *a)
{
	struct timespec while_ns = {.tv_nsec = 300000000};

	(void)user;
	(void)q;
	(void)a;
	atomic_store(&slow_runs, 1);
	printf("slow\n");
	fflush(stdout);
	nanosleep(&while_ns, NULL);
	atomic_store(&slow_runs, 0);
	return 0;
}

int main(int argc, char **argv)
{
	struct rv_client *c;

	if (argc != 2 || rv_open(argv[1], &c)) {
		fprintf(stderr, "serve_echo: %s\n",
			argc == 2 ? rv_last_error() : "one argument: the socket");
		return 1;
	}
	if (rv_handle_serve(c, "echo", echo, NULL) || rv_handle_serve(c, "size", size, c) ||
	    rv_handle_serve(c, "fail", fail, NULL) || rv_handle_serve(c, "slow", slow, NULL)) {
		fprintf(stderr, "serve_echo: %s\n", rv_last_error());
		return 1;
	}
	printf("serving\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	if (rv_handle_unserve(c, "fail") || rv_handle_unserve(c, "slow"))
		return 1;
	if (atomic_load(&slow_runs))
		return 3;
	rv_close(c);
	return 0;
}
