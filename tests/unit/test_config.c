#include "control/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "control/config/config_file.h"
#include "control/config/config_impl.h"
#include "dataplane/base/err.h"
#include "dataplane/base/units.h"
#include "tests/unit/exact.h"

/* The complaints of a test, a line each: "FILE:LINE: text". */
static char said[16384];

static void complain(void *user, const char *file, int line, const char *text)
{
	size_t n = strlen(said);

	(void)user;
	snprintf(said + n, sizeof(said) - n, "%s:%d: %s\n", file, line, text);
}

static const struct rv_config_sink sink = {complain, NULL};

static struct rv_config cfg;

static int begin(void **state)
{
	(void)state;
	said[0] = '\0';
	return rv_config_defaults(&cfg);
}

static int end(void **state)
{
	(void)state;
	rv_config_fini(&cfg);
	return 0;
}

static int load_bytes(const void *text, size_t len)
{
	FILE *f = fmemopen((void *)(uintptr_t)text, len, "r");
	int rc;

	assert_non_null(f);
	rc = rv_config_load_stream(&cfg, f, "t.conf", &sink);
	fclose(f);
	return rc;
}

static ssize_t broken_read(void *cookie, char *buf, size_t size)
{
	(void)cookie;
	(void)buf;
	(void)size;
	errno = EIO;
	return -1;
}

static void a_file_that_cannot_be_read_to_its_end_is_an_error(void **state)
{
	FILE *f = fopencookie(NULL, "r", (cookie_io_functions_t){.read = broken_read});

	(void)state;
	assert_non_null(f);
	assert_int_equal(rv_config_load_stream(&cfg, f, "t.conf", &sink), -EIO);
	fclose(f);
}

static int load(const char *text)
{
	return load_bytes(text, strlen(text));
}

static void defaults_are_the_documented_ones(void **state)
{
	(void)state;
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_string_equal(said, "");
	assert_true(cfg.cores.polling.is_auto && cfg.cores.uring.is_auto);
	assert_int_equal(cfg.cores.idle, RV_CONFIG_IDLE_ADAPTIVE);
	assert_true(cfg.cores.idle_spin_ns == RV_US(50));
	assert_int_equal(cfg.cores.hugepages, RV_CONFIG_HUGEPAGES_AUTO);
	assert_int_equal(cfg.tcp.listen.nr, 1);
	assert_string_equal(cfg.tcp.listen.at[0].host, "127.0.0.1");
	assert_int_equal(cfg.tcp.listen.at[0].port, 7471);
	assert_int_equal(cfg.tcp.advertise.nr, 0);
	assert_int_equal(cfg.tcp.max_connections, 16384);
	assert_true(cfg.tcp.connect_timeout_ns == RV_SEC(5));
	assert_int_equal(cfg.tcp.allow.nr, 0);
	assert_int_equal(cfg.ucx.enabled, RV_CONFIG_SWITCH_AUTO);
	assert_string_equal(cfg.ucx.tls, "auto");
	assert_string_equal(cfg.ucx.net_devices, "");
	assert_true(cfg.ucx.eager_max == RV_MIB(1));
	assert_int_equal(cfg.ucx.blob_version, 2);
	assert_false(cfg.ucx.eager_endpoints);
	assert_true(cfg.ucx.ep_idle_timeout_ns == RV_NEVER);
	assert_int_equal(cfg.verbs.enabled, RV_CONFIG_SWITCH_AUTO);
	assert_string_equal(cfg.verbs.device, "");
	assert_int_equal(cfg.verbs.port, 1);
	assert_true(cfg.verbs.gid_index == RV_CONFIG_AUTO);
	assert_int_equal(cfg.verbs.listen.at[0].port, 7472);
	assert_true(cfg.verbs.traffic_class == RV_CONFIG_AUTO);
	assert_true(cfg.rendezvous.threshold == RV_KIB(256));
	assert_true(cfg.rendezvous.chunk_size == RV_KIB(512));
	assert_true(cfg.rendezvous.pull_window == RV_MIB(4));
	assert_true(cfg.rendezvous.rdma_min_bytes == RV_KIB(64));
	assert_true(cfg.rendezvous.enabled);
	assert_true(cfg.rendezvous.lease_timeout_ns == RV_SEC(30));
	assert_true(cfg.rendezvous.quarantine_ns == RV_SEC(30));
	assert_true(cfg.rendezvous.chunk_lease_timeout_ns == RV_NEVER);
	assert_true(cfg.rendezvous.default_ttl_ns == RV_NEVER);
	assert_true(cfg.rendezvous.staged_fetch_timeout_ns == RV_NEVER);
	assert_true(cfg.rendezvous.staged_payload_max == RV_NEVER);
	assert_true(cfg.rendezvous.call_timeout_ns == RV_SEC(60));
	assert_int_equal(cfg.rendezvous.max_slots, 1048576);
	assert_int_equal(cfg.rendezvous.max_leases, 262144);
	assert_int_equal(cfg.rendezvous.verify, RV_CONFIG_VERIFY_NO);
	assert_true(cfg.memory.initial_arena_bytes == RV_MIB(64));
	assert_true(cfg.memory.max_arena_bytes == RV_GIB(1));
	assert_true(cfg.memory.registered_bytes_budget == RV_GIB(1));
	assert_true(cfg.memory.plain_bytes_budget > 0 &&
		    cfg.memory.plain_bytes_budget < RV_NEVER / 2);
	assert_true(cfg.memory.arena_reclaim_after_ns == RV_NEVER);
	assert_true(cfg.shutdown.timeout_ns == RV_SEC(30));
	assert_int_equal(cfg.local.mode, 0660);
	assert_int_equal(cfg.metrics.listen.at[0].port, 9471);
	assert_true(cfg.metrics.required);
	assert_int_equal(cfg.discovery.kind, RV_CONFIG_DISCOVERY_NONE);
	assert_int_equal(cfg.log.level, RV_LOG_INFO);
	assert_true(strlen(cfg.node.name) > 0);
}

static void a_file_is_read(void **state)
{
	(void)state;
	assert_int_equal(
		load("\xef\xbb\xbf# comment\n; comment\n\n"
		     "[cores]\npolling = 2-5,8   # behind\nuring = 1 ; behind\nidle = POLL\r\n"
		     "[tcp]\nlisten=127.0.0.1:7471, [::1]:0 , 192.0.2.7:99\nadvertise = 10.0.0.1, [fd00::1]:5\n"
		     "allow = 10.0.0.0/8,fd00::/8,192.168.1.7\n"
		     "[ucx]\nenabled = off\nep_idle_timeout = 2m\ntls = rc_v,ud_v\n"
		     "[verbs]\ngid_index = 3\ndevice = rxe0\n"
		     "[metrics]\nlisten = none\n"
		     "[rendezvous]\nenabled = no\nthreshold = 128k\nverify = xxh3\nquarantine = 90s\n"
		     "[local]\nmode = 0600\n"
		     "[peer \"n2\"]\naddress = [::1]:7471\n"
		     "[peer \"n.3\"]\npeer_info = /etc/rvd/n3.json"),
		0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_string_equal(said, "");
	assert_false(cfg.cores.polling.is_auto);
	assert_int_equal(cfg.cores.polling.nr, 5);
	assert_int_equal(cfg.cores.polling.cpu[4], 8);
	assert_int_equal(cfg.cores.uring.cpu[0], 1);
	assert_int_equal(cfg.cores.idle, RV_CONFIG_IDLE_POLL);
	assert_int_equal(cfg.tcp.listen.nr, 3);
	assert_string_equal(cfg.tcp.listen.at[1].host, "::1");
	assert_int_equal(cfg.tcp.listen.at[1].port, 0);
	assert_string_equal(cfg.tcp.listen.at[2].host, "192.0.2.7");
	assert_int_equal(cfg.tcp.advertise.nr, 2);
	assert_int_equal(cfg.tcp.advertise.at[0].port, 0);
	assert_int_equal(cfg.tcp.advertise.at[1].port, 5);
	assert_int_equal(cfg.tcp.allow.nr, 3);
	assert_int_equal(cfg.ucx.enabled, RV_CONFIG_SWITCH_NO);
	assert_true(cfg.ucx.ep_idle_timeout_ns == RV_SEC(120));
	assert_string_equal(cfg.ucx.tls, "rc_v,ud_v");
	assert_int_equal(cfg.verbs.gid_index, 3);
	assert_string_equal(cfg.verbs.device, "rxe0");
	assert_int_equal(cfg.metrics.listen.nr, 0);
	assert_false(cfg.rendezvous.enabled);
	assert_true(cfg.rendezvous.threshold == RV_KIB(128));
	assert_int_equal(cfg.rendezvous.verify, RV_CONFIG_VERIFY_XXH3);
	assert_true(cfg.rendezvous.quarantine_ns == RV_SEC(90));
	assert_int_equal(cfg.local.mode, 0600);
	assert_int_equal(cfg.peer_nr, 2);
	assert_string_equal(cfg.peer[0].name, "n2");
	assert_string_equal(cfg.peer[0].address.host, "::1");
	assert_string_equal(cfg.peer[1].name, "n.3");
	assert_string_equal(cfg.peer[1].peer_info, "/etc/rvd/n3.json");
}

/* A line of 197 characters, the longest there is, and one more. */
#define X40    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define MAXKEY "net_devices = " X40 X40 X40 X40 "xxxxxxxxxxxxxxxxxxxxxxx"

static const struct {
	const char *text; /* its last line is the bad one */
	const char *want; /* what the complaint must contain */
} bad[] = {
	{"[rendevous]", "unknown section [rendevous]; did you mean [rendezvous]?"},
	{"[Tcp]", "unknown section [Tcp]; did you mean [tcp]?"},
	{"[nonsense]", "unknown section [nonsense]"},
	{"[]", "unknown section []"},
	{"[peer]", "did you mean [peer \"NAME\"]?"},
	{"[peer n2]", "unknown section"},
	{"[peer \"n2]", "unknown section"},
	{"[peer \"\"]", "unknown section"},
	{"[peer \"a b\"]", "is no peer name"},
	{"[peer \"" X40 X40 "\"]", "is no peer name"},
	{"[tcp", "section without its bracket"},
	{"[tcp] x", "text behind the section's bracket"},
	{"[peer \"a\"]\naddress = h:1\n[peer \"a\"]", "peer \"a\": given twice, first on line 1"},
	{"[peer \"a\"]\naddress = h:1\naddress = h:1", "given twice"},
	{"[peer \"a\"]\nadress = h:1",
	 "unknown key \"adress\" in [peer]; did you mean \"address\"?"},
	{"[peer \"a\"]\naddress = h", "is no address"},
	{"[peer \"a\"]\naddress = h:0", "port 0 cannot be dialed"},
	{"[peer \"a\"]\naddress = h:1,i:1", "more than 1 addresses"},
	{"[peer \"a\"]\npeer_info = n3.json", "is no absolute path"},
	{"listen = 1:1", "key \"listen\" before the first section"},
	{"[tcp]\nlisten", "neither a section nor key = value"},
	{"[tcp]\nlisten: 127.0.0.1:1", "\"key: value\" is not taken; write key = value"},
	{"[tcp]\n= 5", "value without a key"},
	{"[tcp]\nmax_connections =", "empty value"},
	{"[tcp]\nmax_connections = # 5", "empty value"},
	{"[node]\nname =# rvd", "node.name: holds a # that begins a comment in a file"},
	{"[tcp]\nmax_connections = 18446744073709551616", "is no whole number"},
	{"[node]\nname =;#", "node.name: holds a ; that begins a comment in a file"},
	{"[tcp]\nlisten = :7471", "\":7471\" is no"},
	{"[node]\nname =;", "node.name: holds a ; that begins a comment in a file"},
	{"[tcp]\nmax_connections = 5\n  6", "starts with a blank: a value cannot be continued"},
	{"[tcp]\n\tmax_connections = 5", "starts with a blank"},
	{"[tcp]\nmax_connections = 5\nmax_connections = 5",
	 "tcp.max_connections: given twice, first on line 2"},
	{"[tcp]\nmax_connections = 5\n[log]\n[tcp]\nmax_connections = 6", "given twice"},
	{"[tcp]\nlisten_on = 1:1", "unknown key \"listen_on\" in [tcp]; did you mean \"listen\"?"},
	{"[tcp]\nthreshold = 4K", "unknown key \"threshold\" in [tcp]; it belongs to [rendezvous]"},
	{"[tcp]\nzzzzzz = 4K", "unknown key \"zzzzzz\" in [tcp]"},
	{"[tcp]\nMax_Connections = 5", "did you mean \"max_connections\"?"},
	{"[tcp]\nmax_connections = 0", "0 is out of range: 1 to 1048576"},
	{"[tcp]\nmax_connections = 1048577", "out of range"},
	{"[tcp]\nmax_connections = 99999999999999999999", "is no whole number"},
	{"[tcp]\nmax_connections = 5x", "is no whole number"},
	{"[tcp]\nmax_connections = -5", "is no whole number"},
	{"[tcp]\nmax_connections = 0x10", "is no whole number"},
	{"[tcp]\nlisten = 127.0.0.1", "is no address"},
	{"[tcp]\nlisten = 127.0.0.1:65536", "is no address"},
	{"[tcp]\nlisten = ::1:7471", "is no address"},
	{"[tcp]\nlisten = [::1:7471", "is no address"},
	{"[tcp]\nlisten = 1:1,,2:2", "is no address"},
	{"[tcp]\nlisten = 1:1,", "is no address"},
	{"[tcp]\nlisten = a b:1", "is no address"},
	{"[tcp]\nlisten = 1:1,2:1,3:1,4:1,5:1,6:1,7:1,8:1,9:1", "more than 8 addresses"},
	{"[tcp]\nallow = 10.0.0.0/33", "is no network list"},
	{"[tcp]\nallow = fd00::/129", "is no network list"},
	{"[tcp]\nallow = 10.0.0", "is no network list"},
	{"[tcp]\nallow = 10.0.0.0/8x", "is no network list"},
	{"[tcp]\nallow = 10.0.0.0/8,,fd00::/8", "is no network list"},
	{"[tcp]\nlisten = [::1]7471", "is no address"},
	{"[tcp]\nallow = 10.0.0.0/", "is no network list"},
	{"[tcp]\nallow = example.com", "is no network list"},
	{"[tcp]\nconnect_timeout = 5", "is no duration"},
	{"[tcp]\nconnect_timeout = 5 s", "is no duration"},
	{"[tcp]\nconnect_timeout = 5S", "is no duration"},
	{"[tcp]\nconnect_timeout = 1.5s", "is no duration"},
	{"[tcp]\nconnect_timeout = none", "is no duration"},
	{"[tcp]\nconnect_timeout = 18446744073709551615h", "is no duration"},
	{"[tcp]\nconnect_timeout = 0", "out of range: 1ms to 1h"},
	{"[rendezvous]\nthreshold = 256KB", "is no size"},
	{"[rendezvous]\nthreshold = KiB", "is no size"},
	{"[rendezvous]\nthreshold = 1.5MiB", "is no size"},
	{"[rendezvous]\nthreshold = 99999999T", "is no size"},
	{"[rendezvous]\nthreshold = none", "is no size"},
	{"[rendezvous]\nthreshold = 17MiB", "out of range"},
	{"[rendezvous]\nchunk_size = 4095", "4095 is out of range: 4KiB to"},
	{"[rendezvous]\nenabled = maybe", "is no boolean"},
	{"[rendezvous]\nenabled = 2", "is no boolean"},
	{"[rendezvous]\nverify = md5", "\"md5\" is none of no/xxh3"},
	{"[rendezvous]\nlease_timeout = none", "is no duration"},
	{"[cores]\npolling = 5-2", "is no core list"},
	{"[cores]\npolling = 2,2", "names a core twice"},
	{"[cores]\npolling = 0-200", "names a core twice, or more than 64"},
	{"[cores]\npolling = 1024", "is no core list"},
	{"[cores]\npolling = a", "is no core list"},
	{"[cores]\npolling = 2-", "is no core list"},
	{"[cores]\npolling = 2-a", "is no core list"},
	{"[cores]\npolling = 2,,3", "is no core list"},
	{"[cores]\nuring = 1,2", "more than 1"},
	{"[cores]\nidle = adapt", "\"adapt\" is none of adaptive/poll"},
	{"[ucx]\nenabled = perhaps", "is none of auto/yes/no"},
	{"[ucx]\nblob_version = 3", "out of range: 1 to 2"},
	{"[ucx]\n" MAXKEY "x", "line is longer than 197 characters"},
	{"[verbs]\nport = 0", "out of range"},
	{"[verbs]\ntraffic_class = 256", "out of range"},
	{"[local]\nmode = 0888", "is no file mode"},
	{"[local]\nmode = 06", "is no file mode"},
	{"[local]\nmode = 06600", "is no file mode"},
	{"[local]\nmode = 066000", "is no file mode"},
	{"[local]\nmode = 1777", "is no file mode"},
	{"[local]\nmode = rw", "is no file mode"},
	{"[local]\nsocket = rvd.sock", "is no absolute path"},
	{"[node]\nname = a\x01", "control character"},
	{"[node]\nname = a\x7f", "control character"},
	{"[discovery]\nkind = etc", "is none of none/file/etcd"},
	{"[log]\nlevel = trace", "is none of error/warn/info/debug"},
};

static void every_bad_line_is_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(bad); i++) {
		char where[32];
		unsigned line = 1;

		for (const char *p = bad[i].text; *p; p++)
			line += *p == '\n';
		end(NULL);
		begin(NULL);
		snprintf(where, sizeof(where), "t.conf:%u: ", line);
		if (load(bad[i].text) != -EINVAL || !strstr(said, bad[i].want) ||
		    strncmp(said, where, strlen(where)) != 0 || strchr(said, '\n')[1])
			fail_msg("%s\n-> %s", bad[i].text, said);
	}
}

static void a_nul_byte_is_named(void **state)
{
	static const char text[] = "[tcp]\nlisten = 1:1\0,2:2\nmax_connections = 7\n";

	(void)state;
	assert_int_equal(load_bytes(text, sizeof(text) - 1), -EINVAL);
	assert_string_equal(said, "t.conf:2: NUL byte\n");
	assert_int_equal(cfg.tcp.max_connections, 7);
}

static void a_line_of_197_characters_is_the_longest(void **state)
{
	(void)state;
	assert_int_equal(strlen(MAXKEY), RV_CONFIG_LINE_MAX);
	assert_int_equal(load("[ucx]\n" MAXKEY "\r\n[tcp]\nmax_connections = 9\n"), 0);
	assert_int_equal(strlen(cfg.ucx.net_devices), RV_CONFIG_LINE_MAX - 14);
	assert_int_equal(cfg.tcp.max_connections, 9);
}

static void a_comment_may_be_longer_than_a_line(void **state)
{
	static char text[4096];

	(void)state;
	snprintf(text, sizeof(text),
		 "# %01500d\n[ucx]\n" MAXKEY " # %01500d\n[tcp]\nmax_connections = 9\n", 0, 0);
	assert_int_equal(load(text), 0);
	assert_int_equal(strlen(cfg.ucx.net_devices), RV_CONFIG_LINE_MAX - 14);
	assert_int_equal(cfg.tcp.max_connections, 9);
}

static void all_complaints_are_told_and_good_lines_still_count(void **state)
{
	(void)state;
	assert_int_equal(
		load("[nonsense]\nx = 1\ny = 2\n[tcp]\nlisten = x\nmax_connections = 9\nzzzz = 1\n"),
		-EINVAL);
	assert_string_equal(
		said, "t.conf:1: unknown section [nonsense]\n"
		      "t.conf:5: tcp.listen: \"x\" is no address: 127.0.0.1:7471, [::1]:7471\n"
		      "t.conf:7: unknown key \"zzzz\" in [tcp]\n");
	assert_int_equal(cfg.tcp.max_connections, 9);
	assert_int_equal(cfg.tcp.listen.at[0].port, 7471);
}

static void a_missing_file_is_no_complaint(void **state)
{
	(void)state;
	assert_int_equal(rv_config_load_file(&cfg, "/nonexistent/rvd.conf", &sink), -ENOENT);
	assert_int_equal(rv_config_load_file(&cfg, "/", &sink), -EISDIR);
	assert_int_equal(rv_config_load_file(&cfg, "/dev/null", &sink), 0);
	assert_string_equal(said, "");
}

static void the_environment_overrides_the_file(void **state)
{
	static char *const environ_a[] = {
		(char *)"PATH=/bin",          (char *)"RVD_SOCKET=/x",
		(char *)"RVD_RDMA_DISABLE=1", (char *)"RVD_TCP_MAX_CONNECTIONS=77",
		(char *)"RVD_TCP_LISTEN=",    (char *)"RVD_RENDEZVOUS_TRESHOLD=4K",
		(char *)"RVD_NONSENSE=1",     NULL,
	};

	(void)state;
	assert_int_equal(load("[tcp]\nmax_connections = 5\n"), 0);
	assert_int_equal(rv_config_apply_env(&cfg, environ_a, &sink), -EINVAL);
	assert_int_equal(cfg.tcp.max_connections, 77);
	assert_string_equal(
		said,
		"environment:0: tcp.listen: empty value\n"
		"environment:0: warning: unknown variable RVD_RENDEZVOUS_TRESHOLD; did you mean "
		"RVD_RENDEZVOUS_THRESHOLD?\n"
		"environment:0: warning: unknown variable RVD_NONSENSE\n");
}

static void an_option_overrides_both(void **state)
{
	static char *const environ_a[] = {(char *)"RVD_TCP_MAX_CONNECTIONS=77", NULL};

	(void)state;
	assert_int_equal(load("[tcp]\nmax_connections = 5\n[peer \"a\"]\naddress = h:1\n"), 0);
	assert_int_equal(rv_config_apply_env(&cfg, environ_a, &sink), 0);
	assert_int_equal(rv_config_apply_option(&cfg, "tcp.max_connections=78", &sink), 0);
	assert_int_equal(rv_config_apply_option(&cfg, "tcp.max_connections=79", &sink), 0);
	assert_int_equal(rv_config_apply_option(&cfg, "peer.a.address=h:2", &sink), 0);
	assert_int_equal(rv_config_apply_option(&cfg, "peer.b.c.address=h:3", &sink), 0);
	assert_int_equal(cfg.tcp.max_connections, 79);
	assert_int_equal(cfg.peer_nr, 2);
	assert_int_equal(cfg.peer[0].address.port, 2);
	assert_string_equal(cfg.peer[1].name, "b.c");
	assert_string_equal(said, "");
}

static void bad_options_are_named(void **state)
{
	static const struct {
		const char *option;
		const char *want;
	} rows[] = {
		{"", "\"\" is not SECTION.KEY=VALUE"},
		{"tcp.listen", "is not SECTION.KEY=VALUE"},
		{"listen=1:1", "is not SECTION.KEY=VALUE"},
		{"tpc.listen=1:1", "did you mean [tcp]?"},
		{"tcp.listn=1:1", "did you mean \"listen\"?"},
		{"tcp.listen=", "tcp.listen: empty value"},
		{"tcp.listen=x", "is no address"},
		{"peer.a=x", "needs peer.NAME.KEY=VALUE"},
		{"peer.a.adress=x", "did you mean \"address\"?"},
		{"node.name=a\nb", "holds a control character"},
		{"node.name=" X40 X40 X40 X40 X40 X40 X40, "longer than"},
	};

	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		said[0] = '\0';
		if (rv_config_apply_option(&cfg, rows[i].option, &sink) != -EINVAL ||
		    !strstr(said, rows[i].want) || strncmp(said, "-s:0: ", 6) != 0)
			fail_msg("%s -> %s", rows[i].option, said);
	}
}

static const struct {
	const char *text;
	int rc;
	const char *want;
} crosses[] = {
	{"[rendezvous]\nrdma_min_bytes = 300K\n", 0,
	 "t.conf:2: warning: rendezvous.rdma_min_bytes is above rendezvous.threshold: staged payloads over "
	 "256KiB and under 300KiB lose the RDMA path\n"},
	{"[rendezvous]\nthreshold = 512K\n", 0,
	 "t.conf:2: warning: rendezvous.threshold is not below rendezvous.chunk_size: call payloads from "
	 "512KiB up to 512KiB go inline and lose the RDMA path\n"},
	{"[rendezvous]\nlease_timeout = 10us\n", 0,
	 "t.conf:2: warning: rendezvous.lease_timeout: 10us is raised to 1ms, the least that works\n"},
	{"[ucx]\nep_idle_timeout = 499ms\n", 0,
	 "t.conf:2: warning: ucx.ep_idle_timeout: 499ms is raised to 500ms, the least that works\n"},
	{"[ucx]\neager_max = 512K\n", 0, "t.conf:2: warning: ucx.eager_max has no room"},
	{"[rendezvous]\npull_window = 4K\n", 0,
	 "t.conf:2: warning: rendezvous.pull_window is below"},
	{"[memory]\nregistered_bytes_budget = 1M\n", 0,
	 "t.conf:2: warning: memory.registered_bytes_budget"},
	{"[memory]\ninitial_arena_bytes = 2G\nregistered_bytes_budget = 8G\n", -EINVAL,
	 "t.conf:2: memory.initial_arena_bytes is above memory.max_arena_bytes\n"},
	{"[verbs]\nfence = window\n", 0, ""},
	{"[tcp]\nlisten = 0.0.0.0:1, [::]:1\n[metrics]\nlisten = [::1]:0\n", 0, ""},
	{"[tcp]\nlisten = 127.0.0.1:1, node-7:99\n", -EINVAL,
	 "t.conf:2: tcp.listen: \"node-7\" is a name: write the address, "},
	{"[metrics]\nlisten = localhost:0\n", -EINVAL,
	 "t.conf:2: metrics.listen: \"localhost\" is a name: "},
	{"[discovery]\nkind = file\n", -EINVAL,
	 "t.conf:2: discovery.kind = file needs discovery.path"},
	{"[discovery]\nkind = file\npath = /x\n", 0, ""},
	{"[discovery]\nkind = etcd\npath = /x\n", -EINVAL,
	 "t.conf:2: discovery.kind = etcd needs discovery.endpoints"},
	{"[discovery]\nkind = etcd\nendpoints = a:1,b:2\n", 0, ""},
	{"[peer \"a\"]\n", -EINVAL, "t.conf:1: peer \"a\" needs address or peer_info\n"},
	{"[peer \"a\"]\naddress = h:1\npeer_info = /x\n", -EINVAL,
	 "t.conf:1: peer \"a\" has both address and peer_info\n"},
	{"[local]\nsocket = /" X40 X40 "xxxxxxxxxxxxxxxxxxxxxxxxxxx\n", -EINVAL,
	 "t.conf:2: local.socket: "},
	{"[local]\nsocket = /" X40 X40 "xxxxxxxxxxxxxxxxxxxxxxxxxx\n", 0, ""},
};

static void settings_are_checked_against_each_other(void **state)
{
	(void)state;
	for (size_t i = 0; i < RV_ARRAY_NR(crosses); i++) {
		end(NULL);
		begin(NULL);
		assert_int_equal(load(crosses[i].text), 0);
		if (rv_config_finish(&cfg, &sink) != crosses[i].rc ||
		    strncmp(said, crosses[i].want, strlen(crosses[i].want)) != 0 ||
		    (!*crosses[i].want && *said))
			fail_msg("%s-> %s", crosses[i].text, said);
	}
}

static void raised_values_are_in_force(void **state)
{
	(void)state;
	assert_int_equal(load("[rendezvous]\nlease_timeout = 0\n[ucx]\nep_idle_timeout = 1ms\n"),
			 0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_true(cfg.rendezvous.lease_timeout_ns == RV_MS(1));
	assert_true(cfg.rendezvous.quarantine_ns == RV_MS(1));
	assert_true(cfg.ucx.ep_idle_timeout_ns == RV_MS(500));
}

static void the_socket_follows_the_runtime_directory(void **state)
{
	(void)state;
	assert_int_equal(load("[node]\nruntime_dir = /var/tmp/x\n"), 0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_string_equal(cfg.local.socket, "/var/tmp/x/rvd.sock");
}

static void directories_follow_who_runs_the_daemon(void **state)
{
	struct rv_config_dirs d;

	(void)state;
	rv_config_default_dirs(true, &d);
	assert_string_equal(d.config_file, "/etc/rvd/rvd.conf");
	assert_string_equal(d.runtime_dir, "/run/rvd");
	assert_string_equal(d.state_dir, "/var/lib/rvd");

	setenv("XDG_CONFIG_HOME", "/c", 1);
	setenv("XDG_RUNTIME_DIR", "/r", 1);
	setenv("XDG_STATE_HOME", "/s", 1);
	rv_config_default_dirs(false, &d);
	assert_string_equal(d.config_file, "/c/rvd/rvd.conf");
	assert_string_equal(d.runtime_dir, "/r/rvd");
	assert_string_equal(d.state_dir, "/s/rvd");

	setenv("HOME", "/h", 1);
	setenv("XDG_CONFIG_HOME", "relative", 1);
	unsetenv("XDG_RUNTIME_DIR");
	setenv("XDG_STATE_HOME", "", 1);
	rv_config_default_dirs(false, &d);
	assert_string_equal(d.config_file, "/h/.config/rvd/rvd.conf");
	assert_int_equal(strncmp(d.runtime_dir, "/tmp/rvd-", 9), 0);
	assert_string_equal(d.state_dir, "/h/.local/state/rvd");
}

static char *print(const struct rv_config *c)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	assert_non_null(f);
	rv_config_print(c, f);
	fclose(f);
	return text;
}

static void what_is_printed_loads_again(void **state)
{
	struct rv_config first;
	char *text;

	(void)state;
	assert_int_equal(
		load("[tcp]\nlisten = [::1]:5\nallow = 10.0.0.0/8\n[ucx]\nnet_devices = eth0\n"
		     "[verbs]\ntraffic_class = 5\n[peer \"a\"]\naddress = [::1]:7\n"),
		0);
	assert_int_equal(rv_config_apply_option(&cfg, "log.level=debug", &sink), 0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	text = print(&cfg);
	assert_non_null(strstr(text, "listen = [::1]:5"));
	assert_non_null(strstr(text, "# t.conf:2\n"));
	assert_non_null(strstr(text, "# -s\n"));
	assert_non_null(strstr(text, "# default\n"));
	assert_non_null(strstr(text, "# group ="));

	first = cfg;
	begin(NULL);
	assert_int_equal(load(text), 0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_string_equal(said, "");
	assert_int_equal(rv_config_diff(&first, &cfg, NULL, NULL), 0);
	assert_int_equal(cfg.peer_nr, 1);
	assert_int_equal(cfg.peer[0].address.port, 7);
	free(text);
	rv_config_fini(&first);
}

static void see_change(void *user, const char *section, const char *key, bool live)
{
	size_t n = strlen(said);

	(void)user;
	snprintf(said + n, sizeof(said) - n, "%s.%s %d\n", section, key, live);
}

static void a_difference_says_whether_it_needs_a_restart(void **state)
{
	struct rv_config other;

	(void)state;
	assert_int_equal(rv_config_defaults(&other), 0);
	assert_int_equal(
		load("[log]\nlevel = warn\n[tcp]\nmax_connections = 5\nconnect_timeout = 4000ms\n"),
		0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_int_equal(rv_config_finish(&other, &sink), 0);
	assert_int_equal(rv_config_diff(&other, &cfg, see_change, NULL), 3);
	assert_string_equal(said, "tcp.max_connections 1\ntcp.connect_timeout 0\nlog.level 1\n");
	rv_config_fini(&other);
}

static void see_option(void *user, const char *section, const char *key, const char *value,
		       const char *origin)
{
	const char **want = user;

	if (!strcmp(section, want[0]) && !strcmp(key, want[1])) {
		assert_string_equal(value, want[2]);
		assert_string_equal(origin, want[3]);
		want[4] = "seen";
	}
}

static void a_running_daemon_adopts_what_needs_no_restart(void **state)
{
	const char *level[5] = {"log", "level", "debug", "t.conf:2"};
	const char *conns[5] = {"tcp", "connect_timeout", "5s", "default"};
	struct rv_config running;

	(void)state;
	assert_int_equal(rv_config_defaults(&running), 0);
	assert_int_equal(
		load("[log]\nlevel = debug\n[tcp]\nconnect_timeout = 4s\nallow = ::1/128\n"), 0);
	assert_int_equal(rv_config_finish(&cfg, &sink), 0);
	assert_int_equal(rv_config_finish(&running, &sink), 0);
	rv_config_adopt(&running, &cfg);
	assert_int_equal(running.log.level, RV_LOG_DEBUG);
	assert_int_equal(running.tcp.connect_timeout_ns, RV_SEC(5));
	assert_int_equal(running.tcp.allow.nr, 1);
	rv_config_each(&running, see_option, level);
	rv_config_each(&running, see_option, conns);
	assert_non_null(level[4]);
	assert_non_null(conns[4]);
	assert_int_equal(rv_config_diff(&running, &cfg, see_change, NULL), 1);
	assert_string_equal(said, "tcp.connect_timeout 0\n");
	rv_config_fini(&running);
}

static void the_help_names_every_key(void **state)
{
	static const char *const some[] = {"[node]",
					   "name (default: the host name)",
					   "[peer \"NAME\"]",
					   "chunk_lease_timeout (default: none)",
					   "values: adaptive/poll",
					   "quarantine (default: lease_timeout)"};
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	(void)state;
	assert_non_null(f);
	rv_config_help(f);
	fclose(f);
	for (size_t i = 0; i < RV_ARRAY_NR(some); i++)
		if (!strstr(text, some[i]))
			fail_msg("%s", some[i]);
	free(text);
}

static void the_kill_switch_knows_four_words(void **state)
{
	static const struct {
		const char *value;
		bool on;
	} rows[] = {
		{"1", true},  {"true", true}, {"YES", true}, {"On", true},    {"", false},
		{"0", false}, {"2", false},   {"no", false}, {"yes ", false},
	};

	(void)state;
	unsetenv("VELO_RDMA_RENDEZVOUS_DISABLE");
	unsetenv("RVD_RDMA_DISABLE");
	assert_false(rv_config_kill_switch_env());
	for (size_t i = 0; i < RV_ARRAY_NR(rows); i++) {
		setenv("VELO_RDMA_RENDEZVOUS_DISABLE", rows[i].value, 1);
		assert_int_equal(rv_config_kill_switch_env(), rows[i].on);
	}
	setenv("RVD_RDMA_DISABLE", "on", 1);
	assert_true(rv_config_kill_switch_env());
	unsetenv("VELO_RDMA_RENDEZVOUS_DISABLE");
	unsetenv("RVD_RDMA_DISABLE");
}

static void networks_admit_their_own(void **state)
{
	static const uint8_t in4[] = {10, 127, 3, 4}, out4[] = {11, 0, 0, 1};
	static const uint8_t edge_in[] = {192, 168, 5, 63}, edge_out[] = {192, 168, 5, 64};
	static const uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1};
	static const uint8_t in6[16] = {0xfd, 1}, out6[16] = {0xfe, 0x80};

	(void)state;
	assert_true(rv_config_cidrs_match(&cfg.tcp.allow, false, out4));
	assert_int_equal(load("[tcp]\nallow = 10.0.0.0/8, 192.168.5.0/26, fd00::/8\n"), 0);
	assert_true(rv_config_cidrs_match(&cfg.tcp.allow, false, in4));
	assert_false(rv_config_cidrs_match(&cfg.tcp.allow, false, out4));
	assert_true(rv_config_cidrs_match(&cfg.tcp.allow, false, edge_in));
	assert_false(rv_config_cidrs_match(&cfg.tcp.allow, false, edge_out));
	assert_true(rv_config_cidrs_match(&cfg.tcp.allow, true, mapped));
	assert_true(rv_config_cidrs_match(&cfg.tcp.allow, true, in6));
	assert_false(rv_config_cidrs_match(&cfg.tcp.allow, true, out6));
	assert_int_equal(rv_config_apply_option(&cfg, "tcp.allow=0.0.0.0/0", &sink), 0);
	assert_true(rv_config_cidrs_match(&cfg.tcp.allow, false, out4));
	assert_false(rv_config_cidrs_match(&cfg.tcp.allow, true, in6));
}

static void words_and_blanks_may_be_spelled_in_several_ways(void **state)
{
	char out[32];

	(void)state;
	assert_int_equal(load("[ucx]\nenabled = true\n[node]\nname = a#b;c\n"), 0);
	assert_int_equal(cfg.ucx.enabled, RV_CONFIG_SWITCH_YES);
	assert_string_equal(cfg.node.name, "a#b;c");
	assert_int_equal(rv_config_apply_option(&cfg, "ucx.enabled=off", &sink), 0);
	assert_int_equal(cfg.ucx.enabled, RV_CONFIG_SWITCH_NO);
	assert_int_equal(rv_config_apply_option(&cfg, "tcp.allow=10.0.0.0/8\t ,\t::1/128\t", &sink),
			 0);
	assert_int_equal(cfg.tcp.allow.nr, 2);
	/* In a file that would be a comment; here it would be a name that no file can hold. */
	assert_int_equal(rv_config_apply_option(&cfg, "node.name=a #b", &sink), -EINVAL);
	assert_string_equal(cfg.node.name, "a#b;c");
	rv_config_format_size(RV_NEVER, out);
	assert_string_equal(out, "none");
	rv_config_format_ns(RV_NEVER, out);
	assert_string_equal(out, "none");
}

static void more_networks_than_there_is_room_for_are_refused(void **state)
{
	char option[32 * (RV_CONFIG_CIDR_MAX + 2)] = "tcp.allow=";
	size_t len = strlen(option);

	(void)state;
	for (unsigned i = 0; i <= RV_CONFIG_CIDR_MAX; i++)
		len += (size_t)snprintf(option + len, sizeof(option) - len, "%s10.%u.0.0/16",
					i ? "," : "", i);
	assert_int_equal(rv_config_apply_option(&cfg, option, &sink), -EINVAL);
	assert_non_null(strstr(said, "more than 64 networks"));
	*strrchr(option, ',') = '\0';
	assert_int_equal(rv_config_apply_option(&cfg, option, &sink), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)
	const struct CMUnitTest tests[] = {
		T(defaults_are_the_documented_ones),
		T(a_file_that_cannot_be_read_to_its_end_is_an_error),
		T(words_and_blanks_may_be_spelled_in_several_ways),
		T(more_networks_than_there_is_room_for_are_refused),
		T(a_file_is_read),
		T(every_bad_line_is_named),
		T(a_nul_byte_is_named),
		T(a_line_of_197_characters_is_the_longest),
		T(a_comment_may_be_longer_than_a_line),
		T(all_complaints_are_told_and_good_lines_still_count),
		T(a_missing_file_is_no_complaint),
		T(the_environment_overrides_the_file),
		T(an_option_overrides_both),
		T(bad_options_are_named),
		T(settings_are_checked_against_each_other),
		T(raised_values_are_in_force),
		T(the_socket_follows_the_runtime_directory),
		T(directories_follow_who_runs_the_daemon),
		T(what_is_printed_loads_again),
		T(a_difference_says_whether_it_needs_a_restart),
		T(a_running_daemon_adopts_what_needs_no_restart),
		T(the_help_names_every_key),
		T(the_kill_switch_knows_four_words),
		T(networks_admit_their_own),
	};

	return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
