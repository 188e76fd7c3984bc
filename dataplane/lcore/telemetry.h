/*
 * telemetry.h - commands on DPDK's telemetry socket: a name asked for, a tree of numbers and texts answered.
 *
 *   client --"/rvd/x"--> a thread of DPDK's --under one lock--> fill(user, out) --> {"/rvd/x":{"a":1,"b":{"c":"d"}}}
 *
 * What is said is the caller's business, and how it is said is DPDK's: dicts in dicts, whole numbers, texts. (Its lists,
 * as of 22.11, hold no dicts: give each a name.) The socket is there from rv_eal_start() on, and each process has one.
 */
#ifndef RV_DATAPLANE_LCORE_TELEMETRY_H
#define RV_DATAPLANE_LCORE_TELEMETRY_H

#include <stdint.h>

/** The answer being written. What does not fit makes it bad: the client is told `null`. */
struct rv_tel_out;

struct rv_telemetry_cmd {
	const char *path; /* "/rvd/status", shorter than 56 */
	const char *help; /* shorter than 64 */

	/** Write the answer, a dict that is open. @thread one of DPDK's, one at a time: only what any thread may read */
	void (*fill)(void *user, struct rv_tel_out *o);
};

/**
 * Answer these commands from now on.
 *
 * @param cmds  until rv_telemetry_stop()
 * @return 0 or a negative errno   @thread the one that started EAL, once in a process
 */
int rv_telemetry_serve(const struct rv_telemetry_cmd *cmds, unsigned nr, void *user);

/** No fill() runs any more, and none will: who asks is told `null`. Nothing if nothing was served. @thread any */
void rv_telemetry_stop(void);

/*
 * Names are letters, digits and '_'. @thread the one that called fill()
 */

/** A text, cut to 127 bytes. */
void rv_tel_out_str(struct rv_tel_out *o, const char *name, const char *v);
void rv_tel_out_u64(struct rv_tel_out *o, const char *name, uint64_t v);

/** Open a dict in the one that is open, and close it: three deep, 80 in one answer. */
void rv_tel_out_dict(struct rv_tel_out *o, const char *name);
void rv_tel_out_dict_end(struct rv_tel_out *o);

#endif
