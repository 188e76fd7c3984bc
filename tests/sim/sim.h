/*
 * sim.h - a few nodes, their network, device, memory and clock in one thread, all of it from one seed.
 *
 *   round:  actor (what programs ask) -> devices move bytes -> reactors and slow threads step in a random
 *           order -> invariants -> the clock moves, to the next event when nothing happened
 *
 * The nodes are real: meshes, reactors, engines, messengers, registrars. Simulated are the carrier
 * (sim_net), the fabric (sim_fabric), the kernel's memory, the heap and random numbers (sim_mem) and the
 * programs (sim_actor). sim_world starts, kills and stops nodes; sim_check says what may never happen.
 * A seed decides everything: the same seed and number of steps is the same run.
 */
#ifndef RV_TESTS_SIM_SIM_H
#define RV_TESTS_SIM_SIM_H

#include "control/messenger/messenger_impl.h"
#include "control/service/prompt.h"
#include "control/service/registrar.h"
#include "dataplane/engine/msg.h"

#define SIM_NODES    3
#define SIM_REACTORS 3
#define SIM_FORMER   16
#define SIM_HANDLES  96
#define SIM_SESSIONS 3
#define SIM_PEERS    48

/** What --self-test breaks: each must be noticed. */
enum sim_mutation {
	SIM_AS_IT_IS,
	SIM_WRITE_AFTER_DONE,   /* the fabric writes once more after a GET's completion */
	SIM_SENT_TOO_EARLY,     /* the carrier reads a payload after it said it would not */
	SIM_PLACE_KEPT,         /* the carrier writes to a place that was taken away */
	SIM_NO_QUARANTINE,      /* ranges do not rest, though keys cannot be revoked */
	SIM_HOLD_DROPPED_EARLY, /* a program's view is given back while it is read */
	SIM_HOLD_DROPPED_TWICE,
	SIM_HOLD_FORGOTTEN,
	SIM_ANSWER_LOST, /* a cell never comes home */
	SIM_LEASE_FORGOTTEN,
	SIM_CLOCK_BEHIND, /* a consumer's clock stands still while it fetches: proofs lie */
	SIM_BUDGET_STOLEN,
	SIM_KEY_NOT_REVOKED, /* a key is said to be revoked, and goes on reading */
	SIM_REGION_REUSED,   /* a program reuses a region's memory before it was told that it may */
	SIM_MUTATIONS
};

/** Drawn from the seed: what this world is like. Rates are in 1/1000. */
struct sim_conf {
	bool native, verify;
	bool exports;                           /* each lease has a key of its own */
	unsigned nodes, engines, reactors, net; /* net: the reactor with the sockets */
	unsigned cells;
	uint32_t chunk_size, pull_window;
	uint64_t rdma_min, lease_timeout_ns, quarantine_ns, call_timeout_ns, chunk_lease_ns;
	uint64_t initial_bytes, dedicated_min, max_bytes, reclaim_ns, retain_bytes;
	uint64_t registered_budget, plain_budget, len_max;
	uint32_t max_gets, max_slots, max_leases;
	unsigned step_pct, slow_pct, op_pct, region_pct;
	unsigned queue_scale; /* what a byte queued on a link counts */
	unsigned cut, dial_fail, partition, kill, stop, stall, block;
	unsigned get_fail, get_hang, get_late, wire_fail, map_fail, unmap_fail, memory_fail,
		heap_fail;
	unsigned pread_fail, kill_switch, silent;
};

struct sim_node;
struct sim_link;

struct sim_peer {
	uint64_t worker, life;
	enum { SIM_EP_IDLE, SIM_EP_WIRING, SIM_EP_UP, SIM_EP_FAILED } state;
	uint64_t at_ns;
};

struct sim_poller {
	struct rv_poller poller;
	struct sim_node *node;
	unsigned reactor;
};

struct sim_fabric {
	struct rv_fabric fabric;
	struct sim_node *node;
	struct rv_list maps, keys;
	unsigned unconfirmed;
	struct sim_poller poller[SIM_REACTORS];
	struct sim_peer peer[SIM_REACTORS][SIM_PEERS];
	unsigned peer_nr[SIM_REACTORS];
	bool quiescing[SIM_REACTORS], closed[SIM_REACTORS];
};

struct sim_carrier {
	struct rv_carrier carrier;
	struct sim_poller poller;
	struct rv_list links;
	bool listening;
};

struct sim_session {
	uint64_t id;
	uid_t uid;
	unsigned home;
	bool open;
};

enum sim_stop {
	SIM_RUNNING,
	SIM_STOP_DRAIN,
	SIM_STOP_ABANDON,
	SIM_STOP_DEMOTE,
	SIM_STOP_REGIONS,
	SIM_STOP_FLUSH,
	SIM_STOP_LOCAL,
	SIM_STOP_LEASES,
	SIM_STOP_CLOSE,
	SIM_STOP_MEMORY,
	SIM_STOP_FABRICS,
	SIM_STOP_END,
};

/** One incarnation. */
struct sim_node {
	unsigned at;   /* its place, host and port */
	uint64_t life; /* never the same again */
	uint8_t instance[16];
	uint64_t worker;
	struct rv_mesh *mesh;
	struct rv_reactor reactor[SIM_REACTORS];
	uint64_t stalled_until[SIM_REACTORS];
	unsigned blocked; /* bits: reactors inside a call that blocks */
	struct rv_engines set;
	struct rv_engine engine[SIM_REACTORS];
	struct rv_registrar registrar;
	struct rv_prompt prompt;
	struct rv_registrar_client client[SIM_REACTORS];
	struct rv_port *slow, *main, *quick;
	struct rv_messenger *m;
	struct sim_fabric fabric;
	struct sim_carrier carrier;
	struct sim_session session[SIM_SESSIONS];
	uint64_t last_session;
	bool started;         /* the heap may fail from now on */
	struct rv_list heap;  /* everything it allocated */
	struct rv_list pages; /* everything it mapped, but for arenas */
	uint64_t frozen_ns;   /* mutation: its clock stands still */

	enum sim_stop stop;
	uint64_t stop_deadline_ns, stop_next_ns;
	unsigned asked; /* engines that have not answered */
	uint64_t busy;
	bool unclean;
};

/** Something that was staged, by whoever. */
struct sim_handle {
	struct rv_handle h;
	uint64_t serial; /* decides every byte */
	uint64_t len;
	unsigned at; /* the owner's place */
	uint64_t life;
	uid_t uid;
};

struct sim {
	uint64_t seed;
	unsigned steps, step;
	bool verbose, tap;
	enum sim_mutation mutation;
	uint64_t rng, rng_product;
	uint64_t now_ns;
	struct sim_conf c;
	unsigned depth; /* of rounds inside a call that blocks */
	unsigned idle_rounds;
	bool settling;                    /* no more faults, everything is given back */
	struct sim_node *node[SIM_NODES]; /* NULL: down */
	struct sim_node *cur;             /* whose code is running */
	uint64_t restart_ns[SIM_NODES];
	uint64_t former[SIM_NODES][SIM_FORMER];
	unsigned former_nr[SIM_NODES];
	uint64_t lives, serials;
	struct sim_handle handle[SIM_HANDLES];
	unsigned handle_nr, handle_next;
	struct rv_list xfers; /* GETs under way, of all nodes */
	bool mutated;         /* the self-test's deed was done */

	/* what happened, over all seeds */
	struct sim_totals {
		uint64_t gets_ok[RV_PATHS], gets_in_place, gets_failed, late, staged, kills, stops,
			cuts, rounds, blocks, checks;
	} totals;
};

extern struct sim sim;

/* sim.c */
/** Print the seed, the step and what is wrong; the run is over. */
_Noreturn void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sim_trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

uint64_t sim_random(void);
/** 0 .. @n - 1 */
uint64_t sim_below(uint64_t n);
/** @from .. @to */
uint64_t sim_between(uint64_t from, uint64_t to);
/** Skewed to the small: @from .. @to */
uint64_t sim_small(uint64_t from, uint64_t to);
bool sim_chance(unsigned of_1000);
/** A fault: never while settling. */
bool sim_fault(unsigned of_1000);
uint64_t sim_mix(uint64_t x);

/* sim_world.c */
void sim_world_run(uint64_t seed, unsigned steps);
/** A call blocks this reactor until @until_ns: the world goes on meanwhile. */
void sim_world_go_on_without(struct sim_node *n, unsigned reactor, uint64_t until_ns);
uint64_t sim_clock(void);
struct sim_node *sim_node_of_life(uint64_t life);
struct rv_reactor *sim_net_reactor(struct sim_node *n);
void sim_node_kill(struct sim_node *n);
void sim_node_stop(struct sim_node *n);
void sim_node_host(unsigned at, char out[16]);
uint16_t sim_node_port(unsigned at);

/* sim_net.c */
void sim_carrier_init(struct sim_carrier *c, struct sim_node *n);
/** The kernel's and the wires' part. @return work done */
unsigned sim_net_device(void);
uint64_t sim_net_next(void);
void sim_net_cut_one(void);
void sim_net_node_died(struct sim_node *n);
uint64_t sim_carrier_queued(const struct sim_carrier *c);
unsigned sim_carrier_close_all(struct sim_carrier *c);
unsigned sim_carrier_links(const struct sim_carrier *c);
/** Who may still read from or write to this range? NULL: nobody */
const char *sim_net_pin(const struct sim_node *n, const uint8_t *base, uint64_t len);

/* sim_fabric.c */
void sim_fabric_init(struct sim_fabric *f, struct sim_node *n);
unsigned sim_fabric_device(void);
uint64_t sim_fabric_next(void);
void sim_fabric_node_died(struct sim_node *n);
void sim_fabric_watch(void);
/** A response came in: if it grants an RDMA lease, the next GET of those bytes runs under it. */
void sim_fabric_granted(const struct sim_node *n, const void *body, size_t len);
unsigned sim_fabric_maps(const struct sim_fabric *f);
const char *sim_fabric_pin(const struct sim_node *n, const uint8_t *base, uint64_t len);
const char *sim_fabric_writes(const struct sim_node *n, const uint8_t *base, uint64_t len);
void sim_fabric_forget(void);

/* sim_mem.c */
void *sim_new(size_t len);
void sim_free(void *p);
void sim_mem_reset(void);
void sim_mem_node_died(struct sim_node *n);
/** Arenas of @n still mapped. */
unsigned sim_mem_mapped(const struct sim_node *n);
/** A node has ended in good order: nothing of its heap may be left. */
void sim_mem_check_empty(struct sim_node *n);
/** A program's memfd of @size bytes, whose descriptor the daemon will take. @return the descriptor */
int sim_client_file(const struct sim_node *n, uint64_t size);
/** The program's own view of it; what it wrote there is seen wherever the file is mapped. */
uint8_t *sim_client_bytes(int fd);
void sim_client_wrote(int fd, uint64_t off, uint64_t len);
/** Is this a program's file, mapped by its daemon? */
bool sim_client_maps(const void *p);
/** Is all of this arena memory that is mapped? */
bool sim_mem_readable(const void *p, uint64_t len);
/** Is this an allocation of the product's, at least that long? @p must not be arena memory that is gone */
bool sim_mem_allocated(const void *p, uint64_t len);

static inline struct sim_node *sim_enter(struct sim_node *n)
{
	struct sim_node *was = sim.cur;

	sim.cur = n;
	return was;
}

static inline void sim_leave(struct sim_node *was)
{
	sim.cur = was;
}

/* sim_actor.c */
void sim_actor_reset(void);
void sim_actor_round(void);
void sim_actor_node_started(struct sim_node *n);
void sim_actor_node_died(struct sim_node *n);
/** Give everything back that this node's programs have. @return what is left */
unsigned sim_actor_quit(struct sim_node *n);
unsigned sim_actor_pending(const struct sim_node *n);
void sim_actor_check_over(void);
const char *sim_actor_pin(const struct sim_node *n, const uint8_t *base, uint64_t len);
void sim_fill(uint8_t *p, uint64_t len, uint64_t serial);
/** Give every region back. @return how many are left */
unsigned sim_actor_end_regions(struct sim_node *n);
/** @return the first offset that differs, or RV_NEVER */
uint64_t sim_differs(const uint8_t *p, uint64_t len, uint64_t serial);

/* sim_check.c */
void sim_check_reset(void);
/** Nobody may be reading or writing this range: it is given back, unmapped, or somebody else's now. */
void sim_check_gone(const struct sim_node *n, const void *base, uint64_t len, const char *what);
/** Registrations may be taken from under leases that are cut, or from a client's memory: but not from under writes. */
void sim_check_unwritten(const struct sim_node *n, const void *base, uint64_t len,
			 const char *what);
void sim_check_round(void);
/** After settling: nothing may be left. */
void sim_check_settled(struct sim_node *n);
unsigned sim_free_cells(struct rv_port *p);

#endif
