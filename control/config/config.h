/*
 * config.h - every setting of the daemon: where it may come from, what it may be, what it means.
 *
 *   defaults -> load_file -> apply_env -> apply_option (-s) -> finish -> read-only
 *
 * Each step overrides the one before. One table (config_table.c) is the parser, the defaults, the help
 * and the print-out. A field is named like its key; durations are nanoseconds and end in `_ns`.
 * `none` is RV_NEVER for a duration or a size. Complaints are collected, not only the first: a step
 * returns -EINVAL after it has complained about everything it found wrong. A complaint that starts
 * with "warning: " fails nothing.
 *
 * @thread init; a finished config is only read
 */
#ifndef RV_CONTROL_CONFIG_CONFIG_H
#define RV_CONTROL_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "dataplane/base/log.h"

#define RV_CONFIG_TEXT_MAX 512u /* longest text value, with its terminator */
#define RV_CONFIG_HOST_MAX 256u
#define RV_CONFIG_LIST_MAX 8u /* listen addresses */
#define RV_CONFIG_CIDR_MAX 64u
#define RV_CONFIG_CPU_MAX  64u
#define RV_CONFIG_PEER_MAX 1024u

/** A number that was left to the daemon (`auto`), or not given. */
#define RV_CONFIG_AUTO UINT32_MAX

enum rv_config_auto { RV_CONFIG_SWITCH_AUTO, RV_CONFIG_SWITCH_YES, RV_CONFIG_SWITCH_NO };
enum rv_config_idle { RV_CONFIG_IDLE_ADAPTIVE, RV_CONFIG_IDLE_POLL };
enum rv_config_hugepages {
	RV_CONFIG_HUGEPAGES_AUTO,
	RV_CONFIG_HUGEPAGES_NO,
	RV_CONFIG_HUGEPAGES_REQUIRE,
};
enum rv_config_fence {
	RV_CONFIG_FENCE_AUTO,
	RV_CONFIG_FENCE_WINDOW,
	RV_CONFIG_FENCE_REGION,
	RV_CONFIG_FENCE_NO,
};
enum rv_config_verify { RV_CONFIG_VERIFY_NO, RV_CONFIG_VERIFY_XXH3 };
enum rv_config_discovery {
	RV_CONFIG_DISCOVERY_NONE,
	RV_CONFIG_DISCOVERY_FILE,
	RV_CONFIG_DISCOVERY_ETCD,
};
enum rv_config_format { RV_CONFIG_FORMAT_TEXT, RV_CONFIG_FORMAT_JSON };

struct rv_config_cpus {
	bool is_auto;
	unsigned nr;
	uint16_t cpu[RV_CONFIG_CPU_MAX];
};

struct rv_config_host {
	char host[RV_CONFIG_HOST_MAX]; /* no brackets */
	uint16_t port;                 /* 0: any free port; in `advertise`: the listening one */
};

struct rv_config_hosts {
	unsigned nr; /* 0: none, or left to the daemon */
	struct rv_config_host at[RV_CONFIG_LIST_MAX];
};

struct rv_config_cidr {
	bool is_v6;
	uint8_t bits;
	uint8_t addr[16]; /* network order; of IPv4 the first four */
};

struct rv_config_cidrs {
	unsigned nr; /* 0: everyone */
	struct rv_config_cidr at[RV_CONFIG_CIDR_MAX];
};

struct rv_config_peer {
	char name[64];
	struct rv_config_host address; /* host "" when peer_info is given */
	char peer_info[RV_CONFIG_TEXT_MAX];
	char origin[RV_CONFIG_TEXT_MAX]; /* FILE:LINE of its section */
	int line;
};

struct rv_config {
	struct {
		char name[RV_CONFIG_HOST_MAX];
		char runtime_dir[RV_CONFIG_TEXT_MAX];
		char state_dir[RV_CONFIG_TEXT_MAX];
	} node;
	struct {
		struct rv_config_cpus polling;
		struct rv_config_cpus uring; /* at most one */
		enum rv_config_idle idle;
		uint64_t idle_spin_ns;
		enum rv_config_hugepages hugepages;
	} cores;
	struct {
		struct rv_config_hosts listen;
		struct rv_config_hosts advertise; /* nr 0: auto */
		uint32_t max_connections;
		uint64_t connect_timeout_ns;
		uint64_t handshake_timeout_ns; /* RV_NEVER: none */
		uint64_t stall_timeout_ns;
		struct rv_config_cidrs allow;
	} tcp;
	struct {
		enum rv_config_auto enabled;
		char tls[RV_CONFIG_TEXT_MAX]; /* "auto", "yes" (UCX's own), or a UCX_TLS list */
		char net_devices[RV_CONFIG_TEXT_MAX]; /* "": UCX's own */
		uint64_t eager_max;
		uint32_t blob_version;
		bool eager_endpoints;
		uint64_t ep_idle_timeout_ns; /* RV_NEVER: no idle reaper */
	} ucx;
	struct {
		enum rv_config_auto enabled;
		char device[RV_CONFIG_HOST_MAX]; /* "": auto */
		uint32_t port;
		uint32_t gid_index;            /* RV_CONFIG_AUTO */
		struct rv_config_hosts listen; /* one */
		enum rv_config_fence fence;
		uint32_t traffic_class; /* RV_CONFIG_AUTO: not set */
	} verbs;
	struct {
		uint64_t threshold;
		uint64_t chunk_size;
		uint64_t pull_window;
		uint64_t rdma_min_bytes;
		bool enabled;
		uint64_t lease_timeout_ns;
		uint64_t quarantine_ns;
		uint64_t chunk_lease_timeout_ns;
		uint64_t default_ttl_ns;
		uint64_t staged_fetch_timeout_ns;
		uint64_t staged_payload_max;
		uint64_t call_timeout_ns;
		uint32_t max_slots;
		uint32_t max_leases;
		enum rv_config_verify verify;
	} rendezvous;
	struct {
		uint64_t initial_arena_bytes;
		uint64_t max_arena_bytes;
		uint64_t dedicated_arena_min;
		uint64_t registered_bytes_budget;
		uint64_t plain_bytes_budget;
		uint64_t arena_reclaim_after_ns;
		uint64_t retain_arena_bytes;
	} memory;
	struct {
		uint64_t timeout_ns;
		uint64_t drop_dereg_timeout_ns;
	} shutdown;
	struct {
		char socket[RV_CONFIG_TEXT_MAX];
		uint32_t mode;
		char group[RV_CONFIG_HOST_MAX]; /* "": the daemon's own */
	} local;
	struct {
		struct rv_config_hosts listen; /* one, or none */
		bool required;
		bool telemetry;
	} metrics;
	struct {
		enum rv_config_discovery kind;
		char path[RV_CONFIG_TEXT_MAX];
		char endpoints[RV_CONFIG_TEXT_MAX];
		char prefix[RV_CONFIG_TEXT_MAX];
	} discovery;
	struct {
		enum rv_log_level level;
		enum rv_config_format format;
	} log;

	struct rv_config_peer *peer;
	size_t peer_nr;

	struct rv_config_entry *entries; /* private: what was said for each option, and where */
	unsigned source; /* private: counts the steps, to find duplicates within one */
};

/** Where complaints go. @file is never NULL; @line is 0 where there are no lines. */
struct rv_config_sink {
	void (*complain)(void *user, const char *file, int line, const char *text);
	void *user;
};

/**
 * Start with the defaults.
 *
 * @return 0 or -ENOMEM
 * @owns   the caller ends it with rv_config_fini(), whatever the later steps return
 */
int rv_config_defaults(struct rv_config *cfg);

void rv_config_fini(struct rv_config *cfg);

/**
 * Take RVD_<SECTION>_<KEY> from @environ. An RVD_ name that is none is a warning.
 *
 * @return 0 or -EINVAL
 */
int rv_config_apply_env(struct rv_config *cfg, char *const *environ,
			const struct rv_config_sink *sink);

/** Take one `SECTION.KEY=VALUE`. @return 0 or -EINVAL */
int rv_config_apply_option(struct rv_config *cfg, const char *option,
			   const struct rv_config_sink *sink);

/**
 * Derive the defaults that depend on other settings or on the machine, then check all against all.
 * Call it once, last.
 *
 * @return 0 or -EINVAL
 */
int rv_config_finish(struct rv_config *cfg, const struct rv_config_sink *sink);

/**
 * The effective configuration, as a file that rv_config_load_file() takes, each key with its
 * origin.
 */
void rv_config_print(const struct rv_config *cfg, FILE *to);

/**
 * Each option in the table's order.
 *
 * @param each  gets the section, the key, the value as it is written (NULL: not set), and where it
 *              comes from (NULL: nowhere, it is not set); they live as long as @cfg
 */
void rv_config_each(const struct rv_config *cfg,
		    void (*each)(void *user, const char *section, const char *key,
				 const char *value, const char *origin),
		    void *user);

/** Every section and key with default, range and meaning. */
void rv_config_help(FILE *to);

/**
 * Tell the keys that differ between two finished configs.
 *
 * @param changed  gets the section, the key, and whether the key may change while the daemon runs
 * @return how many
 */
size_t rv_config_diff(const struct rv_config *a, const struct rv_config *b,
		      void (*changed)(void *user, const char *section, const char *key, bool live),
		      void *user);

/** What may change while the daemon runs, from @fresh into @running, with where it comes from. */
void rv_config_adopt(struct rv_config *running, const struct rv_config *fresh);

/** Is VELO_RDMA_RENDEZVOUS_DISABLE or RVD_RDMA_DISABLE set to 1, true, yes or on (in any case)? */
bool rv_config_kill_switch_env(void);

/** Directories and files that depend on who runs the daemon. */
struct rv_config_dirs {
	char config_file[RV_CONFIG_TEXT_MAX];
	char runtime_dir[RV_CONFIG_TEXT_MAX];
	char state_dir[RV_CONFIG_TEXT_MAX];
};

/** @param privileged  root's places, else the XDG ones of the environment */
void rv_config_default_dirs(bool privileged, struct rv_config_dirs *out);

/**
 * Does the list admit this address (network order, 4 or 16 bytes)? A v4-mapped one counts as IPv4.
 */
bool rv_config_cidrs_match(const struct rv_config_cidrs *list, bool is_v6, const uint8_t *addr);

#endif
