/*
 * discovery.h - where nodes are looked up that nobody named: a file they share, or etcd.
 *
 *   start --our entry is there--> thread: find by message; every period our entry is seen to (again)
 *   leave --> our entry goes; stop --> the thread ends
 *
 * What is found is what the node itself published: its PeerInfo. It is believed only if its instance is the WorkerId
 * that was asked for and, in the file, if its checksum is that of its address; who may write there decides who is
 * found (docs/SECURITY.md).
 */
#ifndef RV_CONTROL_DISCOVERY_DISCOVERY_H
#define RV_CONTROL_DISCOVERY_DISCOVERY_H

#include <stdbool.h>

#include "control/json/peer_info.h"
#include "dataplane/lcore/port_thread.h"

#define RV_DISCOVERY_TEXT 200

enum rv_discovery_kind { RV_DISCOVERY_FILE, RV_DISCOVERY_ETCD };

struct rv_discovery_conf {
	enum rv_discovery_kind kind;
	const char *path;      /* FILE */
	const char *endpoints; /* ETCD: host:port or http(s)://host:port, separated by commas */
	const char *prefix;    /* ETCD: what keys start with */
	struct rv_peer_info self;
	const uint64_t
		*former; /* WorkerIds this node had before: their entries are stale; borrowed */
	size_t former_nr;
	struct rv_port *port; /* the discovery thread's own */
};

struct rv_discovery;

/** A backend: one owner, the discovery thread, but for open and close. */
struct rv_discovery_ops {
	/** Our entry is there when this returns 0. Called every period_ns. On failure @why says what is wrong. */
	int (*publish)(void *self, char why[RV_DISCOVERY_TEXT]);
	void (*withdraw)(void *self); /* within a second */
	/** @return 0 and *out, the caller's to end; -ENOENT: there is none; -EHOSTUNREACH, -EPROTO, -ENOMEM with @why */
	int (*find)(void *self, uint64_t worker, struct rv_peer_info *out,
		    char why[RV_DISCOVERY_TEXT]);
	void (*close)(void *self);
	uint64_t period_ns;
};

/**
 * Publish this node, and start the thread.
 *
 * A file that cannot be used is an error; one that others keep locked, and an etcd that does not answer, are a warning,
 * and tried again.
 *
 * @param conf  copied, but for `former` and what is borrowed of `self`
 * @param why   on failure
 * @return 0 or a negative errno
 * @thread init   @cost FILE: up to 2 s for its lock; ETCD: up to 2 s for each endpoint
 */
int rv_discovery_start(const struct rv_discovery_conf *conf, struct rv_discovery **out,
		       char why[RV_DISCOVERY_TEXT]);

/** Nobody is to find this node any more: the thread sees to it. NULL is fine. @thread any */
void rv_discovery_leave(struct rv_discovery *d);

/**
 * Our entry goes, if it has not, and the thread ends. NULL is fine.
 *
 * @thread init   @cost one look-up's end; what is queued behind it is answered -ESHUTDOWN
 */
void rv_discovery_stop(struct rv_discovery *d);

/** After rv_discovery_stop(): what is asked in between is never answered. NULL is fine. @thread init */
void rv_discovery_destroy(struct rv_discovery *d);

/** rv_discovery_run_find: look one node up. Send the cell to rv_discovery_port(). */
struct rv_msg_find {
	struct rv_discovery *discovery;
	uint64_t worker;

	int rc;                  /* as rv_discovery_ops.find; -ESHUTDOWN */
	struct rv_peer_info *pi; /* rc 0: heap, the asker ends and frees it */
	char why[RV_DISCOVERY_TEXT];
};
rv_cell_fn rv_discovery_run_find;
unsigned rv_discovery_port(const struct rv_discovery *d);

/* The backends. @return NULL and @why */
void *rv_discovery_file_open(const struct rv_discovery_conf *conf, char why[RV_DISCOVERY_TEXT]);
extern const struct rv_discovery_ops rv_discovery_file_ops;
void *rv_discovery_etcd_open(const struct rv_discovery_conf *conf, char why[RV_DISCOVERY_TEXT]);
extern const struct rv_discovery_ops rv_discovery_etcd_ops;

#endif
