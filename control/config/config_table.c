#include <stddef.h>

#include "control/config/config_impl.h"
#include "dataplane/base/units.h"

/* Where a field is, and how large. */
#define AT(field) offsetof(struct rv_config, field), sizeof(((struct rv_config *)0)->field)
#define PEER_AT(field) \
	offsetof(struct rv_config_peer, field), sizeof(((struct rv_config_peer *)0)->field)

#define ONE_DAY RV_SEC(86400)
#define LONG_NS RV_SEC(86400ULL * 365)
#define TIB(n)  (RV_GIB(1024) * (n))

/* A frame holds a chunk, its header of 19 bytes and the headers that are echoed. */
#define CHUNK_MAX (RV_MIB(16) - RV_KIB(32))

#define SWITCH "auto/yes/no"

/* clang-format off */
const struct rv_opt rv_opts[] = {
	{"node", "name", RV_OPT_TEXT, 0, NULL, AT(node.name), 0, 0, NULL, "the host name",
	 "Name of this node in logs, status and metrics."},
	{"node", "runtime_dir", RV_OPT_TEXT, RV_OPT_PATH, NULL, AT(node.runtime_dir), 0, 0, NULL,
	 "/run/rvd; without root $XDG_RUNTIME_DIR/rvd",
	 "Directory of the socket and of the file that lists the chosen ports."},
	{"node", "state_dir", RV_OPT_TEXT, RV_OPT_PATH, NULL, AT(node.state_dir), 0, 0, NULL,
	 "/var/lib/rvd; without root $XDG_STATE_HOME/rvd",
	 "Directory of what outlives a restart: the node's last WorkerIds."},

	{"cores", "polling", RV_OPT_CPUS, RV_OPT_AUTO, "auto", AT(cores.polling), 0, RV_CONFIG_CPU_MAX, NULL, NULL,
	 "Cores that move data, one reactor each. auto: one, not pinned. A list pins."},
	{"cores", "uring", RV_OPT_CPUS, RV_OPT_AUTO, "auto", AT(cores.uring), 0, 1, NULL, NULL,
	 "Core that serves the sockets. auto: one of its own from four CPUs on, else the polling core."},
	{"cores", "idle", RV_OPT_WORD, 0, "adaptive", AT(cores.idle), 0, 0, "adaptive/poll", NULL,
	 "adaptive sleeps when there is nothing to do; poll never sleeps, and pins."},
	{"cores", "idle_spin", RV_OPT_NS, 0, "50us", AT(cores.idle_spin_ns), 0, RV_SEC(1), NULL, NULL,
	 "How long an adaptive core looks for work before it sleeps, while its sleeps are short (under 20 times this)."},
	{"cores", "hugepages", RV_OPT_WORD, 0, "auto", AT(cores.hugepages), 0, 0, "auto/no/require", NULL,
	 "Huge pages for arenas: where there are any, never, or refuse to start without."},

	{"tcp", "listen", RV_OPT_HOSTS, 0, "127.0.0.1:7471", AT(tcp.listen), 0, RV_CONFIG_LIST_MAX, NULL, NULL,
	 "Addresses to listen on, separated by commas. Port 0 picks a free one."},
	{"tcp", "advertise", RV_OPT_HOSTS, RV_OPT_AUTO | RV_OPT_NO_PORT, "auto", AT(tcp.advertise), 0, RV_CONFIG_LIST_MAX, NULL, NULL,
	 "Addresses that peers are told. auto: those listened on, or every interface's for a wildcard."},
	{"tcp", "max_connections", RV_OPT_U32, RV_OPT_LIVE, "16384", AT(tcp.max_connections), 1, 1048576, NULL, NULL,
	 "Connections open at once, dialed ones included."},
	{"tcp", "connect_timeout", RV_OPT_NS, 0, "5s", AT(tcp.connect_timeout_ns), RV_MS(1), RV_SEC(3600), NULL, NULL,
	 "How long a dialed connection may take to be established."},
	{"tcp", "handshake_timeout", RV_OPT_NS, RV_OPT_NONE, "10s", AT(tcp.handshake_timeout_ns), RV_MS(1), RV_SEC(3600), NULL, NULL,
	 "Close an accepted connection that has not delivered a whole frame in this time, or 64KiB of a longer one in each such time."},
	{"tcp", "stall_timeout", RV_OPT_NS, 0, "150s", AT(tcp.stall_timeout_ns), RV_SEC(1), RV_SEC(86400), NULL, NULL,
	 "Close a connection whose peer stops in the middle of a frame, takes nothing of what waits for it, or whose host does not answer, for so long. Between frames it may rest for ever."},
	{"tcp", "allow", RV_OPT_CIDRS, RV_OPT_ALL | RV_OPT_LIVE, "all", AT(tcp.allow), 0, 0, NULL, NULL,
	 "Networks whose connections are accepted: 10.0.0.0/8, fd00::/8."},

	{"ucx", "enabled", RV_OPT_WORD, 0, "auto", AT(ucx.enabled), 0, 0, SWITCH, NULL,
	 "auto: only where a lane reads remote memory natively. yes: over tcp as well. A peer that reaches a UCX worker can read and write this process."},
	{"ucx", "tls", RV_OPT_TEXT, 0, "auto", AT(ucx.tls), 0, 0, NULL, NULL,
	 "Transports. auto: native lanes and their wire-up helpers; yes: UCX's own choice; else a list as in UCX_TLS."},
	{"ucx", "net_devices", RV_OPT_TEXT, 0, "", AT(ucx.net_devices), 0, 0, NULL, NULL,
	 "Devices, as in UCX_NET_DEVICES. Not set: UCX's own choice."},
	{"ucx", "eager_max", RV_OPT_SIZE, 0, "1MiB", AT(ucx.eager_max), RV_KIB(4), RV_MIB(16), NULL, NULL,
	 "Largest header and payload that peers may send in one active message."},
	{"ucx", "blob_version", RV_OPT_U32, 0, "2", AT(ucx.blob_version), 1, 2, NULL, NULL,
	 "Version of the UCX address entry: 2 pairs with 0.21 nodes, 1 with 0.12 nodes; no value pairs with both."},
	{"ucx", "eager_endpoints", RV_OPT_BOOL, 0, "no", AT(ucx.eager_endpoints), 0, 0, NULL, NULL,
	 "Create a peer's endpoint when it registers, not at its first use."},
	{"ucx", "ep_idle_timeout", RV_OPT_NS, RV_OPT_NONE | RV_OPT_LIVE, "none", AT(ucx.ep_idle_timeout_ns), 0, LONG_NS, NULL, NULL,
	 "Close endpoints that neither side used for so long; raised to 500ms. The peer closes its end first; where it cannot be told, for want of TCP, or does not agree, the endpoint stays."},

	{"verbs", "enabled", RV_OPT_WORD, 0, "auto", AT(verbs.enabled), 0, 0, SWITCH, NULL,
	 "RDMA by verbs: read-only, checked by the device, revoked with the lease. auto: where there is a device."},
	{"verbs", "device", RV_OPT_TEXT, RV_OPT_AUTO, "auto", AT(verbs.device), 0, 0, NULL, NULL,
	 "RDMA device. auto: the first one whose port is active and has a GID."},
	{"verbs", "port", RV_OPT_U32, 0, "1", AT(verbs.port), 1, 255, NULL, NULL,
	 "Port of the device."},
	{"verbs", "gid_index", RV_OPT_U32, RV_OPT_AUTO, "auto", AT(verbs.gid_index), 0, 255, NULL, NULL,
	 "Entry of the port's GID table. auto: a routable one before a link-local one, RoCE v2 before v1."},
	{"verbs", "listen", RV_OPT_HOSTS, 0, "0.0.0.0:7472", AT(verbs.listen), 0, 1, NULL, NULL,
	 "Address where peers set up their queue pairs, one of the device's own. A wildcard is the address of the GID."},
	{"verbs", "fence", RV_OPT_WORD, 0, "auto", AT(verbs.fence), 0, 0, "auto/window/region/no", NULL,
	 "What ends a peer's key with its lease. window: a memory window, bound to the lease's bytes and to one queue pair. region: a memory region of its own for each lease, which pins its bytes once more. auto: windows where a test at start finds that the device enforces them, else regions. no: nothing; whole arenas are readable."},
	{"verbs", "traffic_class", RV_OPT_U32, 0, "", AT(verbs.traffic_class), 0, 255, NULL, NULL,
	 "Traffic class of RoCE packets. Not set: the device's own."},

	{"rendezvous", "threshold", RV_OPT_SIZE, 0, "256KiB", AT(rendezvous.threshold), 0, CHUNK_MAX, NULL, NULL,
	 "Payloads of calls above this are staged instead of sent inline."},
	{"rendezvous", "chunk_size", RV_OPT_SIZE, 0, "512KiB", AT(rendezvous.chunk_size), RV_KIB(4), CHUNK_MAX, NULL, NULL,
	 "Bytes in one chunk of a chunked transfer."},
	{"rendezvous", "pull_window", RV_OPT_SIZE, 0, "4MiB", AT(rendezvous.pull_window), RV_KIB(4), RV_GIB(1), NULL, NULL,
	 "Bytes that one chunked get keeps requested; at least one chunk."},
	{"rendezvous", "rdma_min_bytes", RV_OPT_SIZE, 0, "64KiB", AT(rendezvous.rdma_min_bytes), 0, TIB(1), NULL, NULL,
	 "Slots smaller than this are answered in chunks."},
	{"rendezvous", "enabled", RV_OPT_BOOL, RV_OPT_LIVE, "yes", AT(rendezvous.enabled), 0, 0, NULL, NULL,
	 "The RDMA path, as owner and as consumer. no: everything in chunks."},
	{"rendezvous", "lease_timeout", RV_OPT_NS, 0, "30s", AT(rendezvous.lease_timeout_ns), 0, ONE_DAY, NULL, NULL,
	 "Life of an RDMA lease without a renewal; raised to 1ms. The reaper scans every half of it."},
	{"rendezvous", "quarantine", RV_OPT_NS, 0, NULL, AT(rendezvous.quarantine_ns), 0, ONE_DAY, NULL, "lease_timeout",
	 "Rest of a range whose lease its consumer did not end and whose key cannot be revoked."},
	{"rendezvous", "chunk_lease_timeout", RV_OPT_NS, RV_OPT_NONE, "none", AT(rendezvous.chunk_lease_timeout_ns), RV_MS(1), LONG_NS, NULL, NULL,
	 "Life of a chunked lease after its last pull. It also ends the lease of a stock peer that still holds it."},
	{"rendezvous", "default_ttl", RV_OPT_NS, RV_OPT_NONE, "none", AT(rendezvous.default_ttl_ns), RV_MS(1), LONG_NS, NULL, NULL,
	 "Life of a slot that was staged without one."},
	{"rendezvous", "staged_fetch_timeout", RV_OPT_NS, RV_OPT_NONE, "none", AT(rendezvous.staged_fetch_timeout_ns), RV_MS(1), LONG_NS, NULL, NULL,
	 "How long the fetch of a call's staged payload may take."},
	{"rendezvous", "staged_payload_max", RV_OPT_SIZE, RV_OPT_NONE, "none", AT(rendezvous.staged_payload_max), 1, TIB(1024), NULL, NULL,
	 "Largest staged payload that is fetched for a call."},
	{"rendezvous", "call_timeout", RV_OPT_NS, RV_OPT_NONE, "60s", AT(rendezvous.call_timeout_ns), RV_MS(1), LONG_NS, NULL, NULL,
	 "Life of a call that names no time of its own; starts again with each chunk."},
	{"rendezvous", "max_slots", RV_OPT_U32, 0, "1048576", AT(rendezvous.max_slots), 1, 1u << 28, NULL, NULL,
	 "Slots this node can hold; the tables are made at start."},
	{"rendezvous", "max_leases", RV_OPT_U32, 0, "262144", AT(rendezvous.max_leases), 1, 1u << 28, NULL, NULL,
	 "Leases this node can have out."},
	{"rendezvous", "verify", RV_OPT_WORD, 0, "no", AT(rendezvous.verify), 0, 0, "no/xxh3", NULL,
	 "Compare a hash of each payload between our own nodes."},

	{"memory", "initial_arena_bytes", RV_OPT_SIZE, 0, "64MiB", AT(memory.initial_arena_bytes), RV_MIB(1), TIB(1), NULL, NULL,
	 "Size of the first arenas, divided among the reactors; at least 8 MiB each."},
	{"memory", "max_arena_bytes", RV_OPT_SIZE, 0, "1GiB", AT(memory.max_arena_bytes), RV_MIB(1), TIB(1), NULL, NULL,
	 "Size up to which further arenas grow."},
	{"memory", "dedicated_arena_min", RV_OPT_SIZE, 0, "64MiB", AT(memory.dedicated_arena_min), RV_KIB(4), TIB(1), NULL, NULL,
	 "Payloads from this size on get an arena of their own."},
	{"memory", "registered_bytes_budget", RV_OPT_SIZE, 0, "1GiB", AT(memory.registered_bytes_budget), 0, TIB(1024), NULL, NULL,
	 "Bytes that may be registered with the fabrics at once."},
	{"memory", "plain_bytes_budget", RV_OPT_SIZE, 0, NULL, AT(memory.plain_bytes_budget), 0, TIB(1024), NULL,
	 "half of RAM or of the control group's limit",
	 "Bytes of payloads in plain memory, and of pages kept for the next arena."},
	{"memory", "arena_reclaim_after", RV_OPT_NS, RV_OPT_NONE, "none", AT(memory.arena_reclaim_after_ns), RV_MS(1), LONG_NS, NULL, NULL,
	 "Unmap arenas that were empty for so long."},
	{"memory", "retain_arena_bytes", RV_OPT_SIZE, 0, "64MiB", AT(memory.retain_arena_bytes), 0, TIB(1), NULL, NULL,
	 "Bytes of empty arenas that stay mapped where a stray read may still reach them. With 0, the pages of a large "
	 "fetch are not kept for ten seconds for the next one either."},

	{"shutdown", "timeout", RV_OPT_NS, RV_OPT_NONE, "30s", AT(shutdown.timeout_ns), 0, ONE_DAY, NULL, NULL,
	 "How long a graceful shutdown waits for accepted work and for leases."},
	{"shutdown", "drop_dereg_timeout", RV_OPT_NS, 0, "30s", AT(shutdown.drop_dereg_timeout_ns), 0, ONE_DAY, NULL, NULL,
	 "How long regions of a program that went away may take to be deregistered."},

	{"local", "socket", RV_OPT_TEXT, RV_OPT_PATH, NULL, AT(local.socket), 0, 0, NULL, "rvd.sock in runtime_dir",
	 "UNIX socket of rvctl, rvtop and client programs."},
	{"local", "mode", RV_OPT_MODE, 0, "0660", AT(local.mode), 0, 0, NULL, NULL,
	 "Permissions of the socket."},
	{"local", "group", RV_OPT_TEXT, 0, "", AT(local.group), 0, 0, NULL, NULL,
	 "Group of the socket. Not set: the daemon's own."},

	{"metrics", "listen", RV_OPT_HOSTS, RV_OPT_NONE, "127.0.0.1:9471", AT(metrics.listen), 0, 1, NULL, NULL,
	 "Address of /metrics, /health and /ready."},
	{"metrics", "required", RV_OPT_BOOL, 0, "yes", AT(metrics.required), 0, 0, NULL, NULL,
	 "Refuse to start when that address is taken."},
	{"metrics", "telemetry", RV_OPT_BOOL, 0, "yes", AT(metrics.telemetry), 0, 0, NULL, NULL,
	 "Answer on DPDK's telemetry socket, dpdk/rvd/dpdk_telemetry.v2 in runtime_dir."},

	{"discovery", "kind", RV_OPT_WORD, 0, "none", AT(discovery.kind), 0, 0, "none/file/etcd", NULL,
	 "Where this node makes itself known, and looks up owners that are not known here: a handle is enough then."},
	{"discovery", "path", RV_OPT_TEXT, RV_OPT_PATH, "", AT(discovery.path), 0, 0, NULL, NULL,
	 "The file, for kind = file; nodes share it, stock ones too."},
	{"discovery", "endpoints", RV_OPT_TEXT, 0, "", AT(discovery.endpoints), 0, 0, NULL, NULL,
	 "The servers, for kind = etcd: host:port or http(s)://host:port, separated by commas."},
	{"discovery", "prefix", RV_OPT_TEXT, 0, "/rvd/peers/", AT(discovery.prefix), 0, 0, NULL, NULL,
	 "What the keys start with, for kind = etcd; the WorkerId follows."},

	{"log", "level", RV_OPT_WORD, RV_OPT_LIVE, "info", AT(log.level), 0, 0, "error/warn/info/debug", NULL,
	 "error needs a person, warn is odd but served, info is lifecycle, debug is per object."},
	{"log", "format", RV_OPT_WORD, RV_OPT_LIVE, "text", AT(log.format), 0, 0, "text/json", NULL,
	 "Lines for people, or a JSON object each."},
};

/* An address is parsed as a list of one and then copied. */
const struct rv_opt rv_peer_opts[] = {
	{"peer", "address", RV_OPT_HOSTS, 0, "", PEER_AT(address), 0, 1, NULL, NULL,
	 "host:port where the peer is dialed."},
	{"peer", "peer_info", RV_OPT_TEXT, RV_OPT_PATH, "", PEER_AT(peer_info), 0, 0, NULL, NULL,
	 "A file that `rvctl peer-info` wrote on the peer; one of the two is needed."},
};
/* clang-format on */

const size_t rv_opts_nr = RV_ARRAY_NR(rv_opts);
const size_t rv_peer_opts_nr = RV_ARRAY_NR(rv_peer_opts);
