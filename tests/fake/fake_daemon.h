/*
 * fake_daemon.h - the other end of the UNIX socket, doing what the test says.
 *
 * A script runs in a thread of its own: it takes requests off the socket, or the queues beside it, in order, and
 * answers.
 */
#ifndef RV_TESTS_FAKE_DAEMON_H
#define RV_TESTS_FAKE_DAEMON_H

#include "dataplane/base/handle.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "control/client/rv.h"
#include "control/local/local_proto.h"

#define FAKE_WORKER    77u
#define FAKE_ARENA_LEN 131072u
#define FAKE_THRESHOLD 64u /* longer messages are staged */

/* In the daemon's thread and in children a failed check ends the test program. */
#define MUST(cond)                                                                 \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                   \
		}                                                                  \
	} while (0)

struct fake_daemon {
	char dir[64], path[96];
	int listener;
	pthread_t thread;
	void (*script)(int fd);
	struct rv_client *c;
};

struct fake_request {
	uint8_t op;
	struct rv_local_req rq;
	uint8_t *payload;
	size_t len;
};

/** Listen, and open a session. */
void fake_start(struct fake_daemon *f, void (*script)(int fd));
/** Close the session, and wait for the script. */
void fake_stop(struct fake_daemon *f);

/* In a script. */

/** The next request. @return false: the session was closed */
bool fake_next(int fd, struct fake_request *r);
/** The next request, which must be @op. */
struct rv_local_req fake_expect(int fd, uint8_t op);
void fake_until_closed(int fd);

/** @param text the payload, or NULL; @param pass a descriptor to send along, or -1 */
void fake_answer(int fd, uint8_t op, const struct rv_local_rep *rep, const char *text, int pass);
/** A request to a handler of the session's. */
void fake_request(int fd, const struct rv_local_rep *rep, const char *text, int pass);
void fake_answer_get(int fd, struct rv_local_rep rep, int arena);
/** An answer to GET: bytes @off, @len of arena 9, under lease 1000 + @token. */
struct rv_local_rep fake_got(uint64_t id, uint64_t token, uint64_t off, uint64_t len);

/** An answer to METADATA: the handle's number a hundredfold as the length, and itself as the reference count. */
void fake_answer_metadata(int fd, const struct rv_local_req *rq);

/**
 * Give sessions queues (shmq.h): what a script takes and says then goes through them, or the socket, as it comes.
 * Set by RV_FAKE_QUEUES in the environment.
 */
extern bool fake_queues;

/** What the next daemon says its version is. */
extern uint32_t fake_version;

/** Memory to show. Byte i of it is i mod 251. */
int fake_make_arena(int seals);

/** @return whether the page of @p is mapped */
bool fake_is_mapped(void *p);

struct rv_handle fake_handle(uint64_t local);

#endif
