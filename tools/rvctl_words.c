/*
 * What the columns and values of a command's table mean, for its --help. 80 columns wide.
 */
#include "tools/rvctl_cmd.h"

#include <string.h>

static const struct {
	const char *command, *text;
} words[] = {
	{"slots", "HANDLE   what peers name it by (worker and number in one)\n"
		  "REFS     references left; at 0 the slot is freed\n"
		  "LEASES   readers that hold it now: see rvctl leases\n"
		  "PINNED   yes: in registered memory, fetched by RDMA; no: in chunks\n"
		  "UID      user who staged it, and who may drop it\n"
		  "TTL_S    seconds until it is dropped; -: never\n"},
	{"leases", "KIND     rdma, chunked, or local: a program of this node reads in place\n"
		   "FENCE    what takes the key from an RDMA reader when its lease ends: window,\n"
		   "         region, or none: then its memory rests first (rendezvous.quarantine)\n"
		   "CONSUMER worker id of the reader: see rvctl peers\n"
		   "AGE_S    seconds since it was given\n"
		   "LEFT_S   seconds until it ends if it is not renewed; -: it does not\n"},
	{"arenas",
	 "KIND     landing: what was fetched; staging: what the daemon copied in for\n"
	 "         peers; session: what a program fills itself; plain: not registered\n"
	 "REG      registered for RDMA\n"
	 "OWN      holds one large payload only\n"
	 "USED     bytes of blocks in use; LARGEST: the largest free piece\n"
	 "resting_blocks  given back, but not reused yet: a reader may still reach them\n"},
	{"regions",
	 "SESSION  the program's connection to the daemon\n"
	 "STATE    open; kept: takes no new slots, serves those it has, and goes with the\n"
	 "         last (what put --region leaves); draining: the same, but in chunks;\n"
	 "         unmapping; stuck: a device has not let go, it is lost until a restart\n"
	 "REG      registered for RDMA\n"
	 "PINNED   bytes of whole pages\n"
	 "INFLIGHT blocks in use: slots, and transfers under way\n"},
	{"endpoints", "PEER     its name here; -: it has none. WORKER: its id, see rvctl peers\n"
		      "CORE     the polling core that has it\n"
		      "STATE    wiring, up or failed\n"
		      "EMULATED yes: no native lane, so the owner's software answers each read\n"
		      "GETS     reads under way now; SENDS: messages under way now\n"
		      "IDLE_S   seconds since it was last used\n"},
	{"peers",
	 "NAME     as peer-add or the configuration called it; -: it came by itself\n"
	 "WORKER   its id: the first half of its handles\n"
	 "STATE    of the connection from here to there: up; dialing; down: none now, the\n"
	 "         next request dials (a peer that only ever called here is down)\n"
	 "RDMA     its RDMA address is known here\n"
	 "RVD      an rvd, not a stock velo node\n"
	 "INSTANCE changes with each start of the peer\n"},
	{"cores", "ROLES    polling: moves data; net: serves the sockets\n"
		  "CPU      the one it is pinned to; any: not pinned\n"
		  "POLLS    looks for work since the start; SLEEPS: times it slept for want of it\n"
		  "BUSY_S   seconds since the start in which there was work\n"
		  "USEFUL%  share of the last half second; -: asleep all the while\n"},
	{"status", "registered_bytes  of all arenas, empty ones too; plain_bytes: not registered\n"
		   "used_bytes        of blocks in use, registered or plain\n"
		   "resting_blocks    given back, but not reused yet: a reader may reach them\n"
		   "bytes_in          fetched by gets here; bytes_out: served in chunks\n"
		   "operations.*      done here since the start, by outcome\n"
		   "paths.ok          gets by RDMA, as owner and as consumer; the other paths.*:\n"
		   "                  gets in chunks by reason, see docs/OPERATIONS.md\n"
		   "rdma_off          the kill switch is on\n"
		   "requests_pending  of peers, accepted and not answered yet\n"},
	{"config", "VALUE    in force now; -: not set\n"
		   "ORIGIN   default, FILE:LINE, -s, the environment, or a command since\n"},
	{"stat", "total_len is in bytes; owner is the owner's worker id, see rvctl peers\n"},
	{"drain", "A node that drains takes no new work until it is restarted; what is staged can\n"
		  "still be fetched, in chunks.\n"},
};

const char *rv_ctl_words(const char *command)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(words[i].command, command) == 0)
			return words[i].text;
	return NULL;
}
