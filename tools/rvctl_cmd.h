/*
 * rvctl_cmd.h - what the commands of rvctl share: the parsed command line, errors, output.
 *
 *   main --parse--> struct rv_ctl --open--> command --> exit code
 *
 * @thread the only one
 */
#ifndef RV_TOOLS_RVCTL_CMD_H
#define RV_TOOLS_RVCTL_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control/client/rv.h"
#include "control/json/json.h"
#include "tools/text_table.h"

/** What a shell sees. */
enum rv_ctl_exit {
	RV_CTL_OK = 0,
	RV_CTL_FAILED = 1,
	RV_CTL_USAGE = 2,
	RV_CTL_NO_HANDLE = 4,
	RV_CTL_UNREACHABLE = 5,
	RV_CTL_NO_DAEMON = 6,
	RV_CTL_REFUSED = 7,
};

enum rv_ctl_kind { RV_CTL_CALL, RV_CTL_SYNC, RV_CTL_FIRE };

enum rv_ctl_end { RV_CTL_RELEASE, RV_CTL_DETACH, RV_CTL_KEEP };

#define RV_CTL_ARGS 4

/** The command line, taken apart. */
struct rv_ctl {
	const char *name; /* the command */
	const char *socket;
	const char *arg[RV_CTL_ARGS];
	int arg_nr;
	bool json;

	const char *out; /* -o */
	bool plain, pinned, region, name_only, msgpack;
	bool has_lease;
	uint64_t lease;
	uint64_t ttl_ns, timeout_ns;
	uint32_t refs;
	enum rv_ctl_end end;
	bool end_given;
	enum rv_ctl_kind kind;
	bool kind_given;
	bool wait;
	enum rv_get_path path;

	struct rv_client *c;
	struct rv_ref ref; /* arg[0] of the commands that take one */
};

/** Run a command; the session is open. @return its exit code */
typedef int rv_ctl_fn(struct rv_ctl *ctl);

rv_ctl_fn rv_ctl_put, rv_ctl_get;
rv_ctl_fn rv_ctl_stat, rv_ctl_ref, rv_ctl_release, rv_ctl_detach, rv_ctl_drop;
rv_ctl_fn rv_ctl_peer_info, rv_ctl_peer_add;
rv_ctl_fn rv_ctl_send, rv_ctl_handlers;
rv_ctl_fn rv_ctl_drain, rv_ctl_kill_switch, rv_ctl_log_level;
rv_ctl_fn rv_ctl_peers, rv_ctl_status, rv_ctl_slots, rv_ctl_leases, rv_ctl_arenas, rv_ctl_regions;
rv_ctl_fn rv_ctl_endpoints, rv_ctl_cores, rv_ctl_config;

/** Print "rvctl: COMMAND: TEXT" on stderr. @return @code */
int rv_ctl_fail(const struct rv_ctl *ctl, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * Print what the library says about its last call, on whose side it happened and what to do.
 *
 * @param about  the handle it was about, or NULL
 * @return the exit code
 */
int rv_ctl_fail_rc(const struct rv_ctl *ctl, int rc, const struct rv_ref *about);

/**
 * Print a finished JSON text and a newline on @fd's stream, and end it.
 *
 * @return 0 or RV_CTL_FAILED
 */
int rv_ctl_print_json(const struct rv_ctl *ctl, struct rv_json_out *o, bool to_stderr);

/** The handle as a JSON member. */
void rv_ctl_json_handle(struct rv_json_out *o, const char *key, struct rv_handle h);

/** A 64-bit id as a JSON member: text, since scripts read numbers as doubles. */
void rv_ctl_json_id(struct rv_json_out *o, const char *key, uint64_t id);

/** What the columns and values that a command prints mean, for its --help; NULL: nothing to say. */
const char *rv_ctl_words(const char *command);

/* rvctl_file.c */

/** A file being written beside its place; see rv_ctl_out_open(). */
struct rv_ctl_out {
	int fd;
	bool temporary;
	const char *path;
	char temp[4096];
};

/**
 * Open @path for writing: "-" is stdout; a regular file is written under another name and takes
 * its place only in rv_ctl_out_commit(), so that a failure, or a signal, leaves nothing
 * half-written.
 *
 * @return 0 or a negative errno
 */
int rv_ctl_out_open(const char *path, struct rv_ctl_out *out);

/** Write it all. @return 0 or a negative errno */
int rv_ctl_out_write(struct rv_ctl_out *out, const void *data, uint64_t len);

/** @return 0, or a negative errno: then nothing is left. */
int rv_ctl_out_commit(struct rv_ctl_out *out);

/** Leave nothing. */
void rv_ctl_out_abort(struct rv_ctl_out *out);

/** A whole file, or stdin for "-", on the heap. @return 0 or a negative errno */
int rv_ctl_read_file(const char *path, void **data, uint64_t *len);

/** The same from an open descriptor. */
int rv_ctl_read_fd(int fd, void **data, uint64_t *len);

/** Print so that it fits the terminal, and free. @return 0 or RV_CTL_FAILED without memory */
int rv_ctl_table_print(const struct rv_ctl *ctl, struct rv_text_table *t);

#endif
