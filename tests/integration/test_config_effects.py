#!/usr/bin/env python3
"""Every key of the configuration changes what the daemon does: a key that nothing shows is a key that lies."""
import grp
import re
import socket
import stat
import threading

from rvdtest import *
from rawpeer import RawPeer, handle

HERE = os.path.dirname(os.path.abspath(__file__))
RVD_TEST = os.path.dirname(HERE)

# Where each key's effect is seen: a test of this file, or "folder/file: test".
PROVED = {
    "node.name": "the_node_has_its_name_and_its_folders", "node.runtime_dir": "the_node_has_its_name_and_its_folders",
    "node.state_dir": "the_node_has_its_name_and_its_folders",
    "cores.polling": "cores_are_as_many_and_where_they_were_told",
    "cores.uring": "cores_are_as_many_and_where_they_were_told",
    "cores.idle": "an_idle_core_sleeps_or_polls_as_told", "cores.idle_spin": "an_idle_core_sleeps_or_polls_as_told",
    "cores.hugepages": "huge_pages_that_are_required_are_there_or_it_does_not_start",
    "tcp.listen": "integration/test_bad_input.py: ports_and_sockets_in_use_are_named",
    "tcp.advertise": "references_name_what_is_advertised",
    "tcp.max_connections": "integration/test_resources.py: more_connections_than_allowed_are_refused_and_others_unharmed",
    "tcp.connect_timeout": "a_peer_that_does_not_let_us_in_is_given_up_in_time",
    "tcp.handshake_timeout": "integration/test_silent.py: silent_connections_up_to_the_limit_make_room_when_their_time_is_over",
    "tcp.stall_timeout": "integration/test_silent.py: who_stops_in_the_middle_of_a_later_frame_is_put_out_too",
    "tcp.allow": "integration/test_resources.py: only_allowed_addresses_are_served",
    "ucx.enabled": "without_ucx_there_is_no_fabric",
    "ucx.tls": "integration/test_ucx.py: ", "ucx.net_devices": "rdma/rdmatest.py: ",
    "ucx.eager_max": "ucx_says_its_eager_limit_to_peers",
    "ucx.blob_version": "interop/test_stock_ucx.py: ",
    "ucx.eager_endpoints": "integration/test_endpoints.py: ", "ucx.ep_idle_timeout": "integration/test_endpoints.py: ",
    "verbs.enabled": "verbs_that_must_be_and_cannot_is_an_error",
    "verbs.device": "rdma/test_verbs.py: without_a_device_of_use_a_daemon_starts_as_before",
    "verbs.port": "rdma/test_verbs.py: port_gid_and_traffic_class_are_those_that_were_told",
    "verbs.gid_index": "rdma/test_verbs.py: port_gid_and_traffic_class_are_those_that_were_told",
    "verbs.traffic_class": "rdma/test_verbs.py: port_gid_and_traffic_class_are_those_that_were_told",
    "verbs.listen": "rdma/test_verbs.py: every_size_both_ways", "verbs.fence": "rdma/test_windows.py: gets_through_windows_of_every_size",
    "rendezvous.threshold": "messages_over_the_threshold_are_staged",
    "rendezvous.chunk_size": "a_chunk_is_as_long_as_told",
    "rendezvous.pull_window": "no_more_than_a_window_of_pulls_is_under_way",
    "rendezvous.rdma_min_bytes": "rdma/test_windows.py: gets_through_windows_of_every_size",
    "rendezvous.enabled": "without_rendezvous_rdma_gets_go_in_chunks",
    "rendezvous.lease_timeout": "integration/test_contract.py: ", "rendezvous.quarantine": "integration/test_kills.py: ",
    "rendezvous.chunk_lease_timeout": "integration/test_contract.py: ",
    "rendezvous.default_ttl": "a_slot_without_a_ttl_gets_the_default",
    "rendezvous.staged_fetch_timeout": "integration/test_messages.py: ",
    "rendezvous.staged_payload_max": "integration/test_messages.py: ",
    "rendezvous.call_timeout": "a_call_that_is_never_answered_ends_in_time",
    "rendezvous.max_slots": "integration/test_resources.py: full_tables_answer_busy_and_recover",
    "rendezvous.max_leases": "integration/test_resources.py: full_tables_answer_busy_and_recover",
    "rendezvous.verify": "integration/test_contract.py: ",
    "memory.initial_arena_bytes": "arenas_are_as_large_as_told_and_go_when_told",
    "memory.max_arena_bytes": "arenas_are_as_large_as_told_and_go_when_told",
    "memory.dedicated_arena_min": "arenas_are_as_large_as_told_and_go_when_told",
    "memory.arena_reclaim_after": "arenas_are_as_large_as_told_and_go_when_told",
    "memory.retain_arena_bytes": "arenas_are_as_large_as_told_and_go_when_told",
    "memory.registered_bytes_budget": "integration/test_resources.py: over_the_budget_payloads_are_plain_and_go_in_chunks",
    "memory.plain_bytes_budget": "integration/test_contract.py: ",
    "shutdown.timeout": "integration/test_kills.py: ", "shutdown.drop_dereg_timeout": "integration/test_regions.py: ",
    "local.socket": "integration/test_bad_input.py: ports_and_sockets_in_use_are_named",
    "local.mode": "the_socket_belongs_to_whom_it_should", "local.group": "the_socket_belongs_to_whom_it_should",
    "metrics.listen": "a_metrics_port_that_is_taken", "metrics.required": "a_metrics_port_that_is_taken",
    "metrics.telemetry": "integration/test_telemetry.py: ",
    "log.level": "integration/test_rvctl.py: ", "log.format": "integration/test_rvctl.py: ",
    "peer.address": "peers_of_the_configuration_are_known", "peer.peer_info": "peers_of_the_configuration_are_known",
    "discovery.kind": "integration/test_discovery.py: ", "discovery.path": "integration/test_discovery.py: ",
    "discovery.endpoints": "integration/test_discovery.py: ", "discovery.prefix": "integration/test_discovery.py: ",
}


def run_rvd(*args, timeout=60):
    p = subprocess.run([RVD] + list(args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout * SLOW,
                       env=dict(os.environ, UCX_MEM_EVENTS="n"))
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def keys():
    """Every key the daemon takes, as `--help-config` lists them."""
    section, out = None, []
    for line in run_rvd("--help-config")[1].splitlines():
        m = re.match(r"\[(\w+)", line.strip())
        if m:
            section = m.group(1)
        m = re.match(r"\s*([a-z_]+)(?: \(default.*| *)$", line)
        if m and section and not line.startswith("    "):
            out.append("%s.%s" % (section, m.group(1)))
    return out


def test_every_key_has_a_test():
    have = keys()
    assert len(have) > 60, have
    assert sorted(have) == sorted(PROVED), (set(have) ^ set(PROVED))
    for key, where in PROVED.items():
        file, _, test = where.rpartition(": ")
        text = open(os.path.join(RVD_TEST, file) if file else os.path.abspath(__file__)).read()
        if test.strip():
            assert "def test_%s(" % test.strip() in text, (key, where)
        section, name = key.split(".")
        assert "%s__%s" % (section, name) in text or key in text or name in text, (key, where, "does not speak of it")


def test_the_node_has_its_name_and_its_folders():
    with Daemon("somebody") as d:
        assert d.client().list("status")["name"] == "somebody"
        assert os.path.exists(os.path.join(d.dir, "run", "ports"))  # node.runtime_dir
        assert os.listdir(os.path.join(d.dir, "state"))  # node.state_dir
    with tempfile.TemporaryDirectory() as home:  # of a new user, where there is no ~/.local
        state = os.path.join(home, ".local/state/rvd")
        with Daemon("a", node__state_dir=state) as d:
            assert os.listdir(state) and "state:" not in d.text(), d.text()
    with Daemon("a", node__state_dir="/dev/null/state") as d:
        assert "state: /dev/null/state cannot be used" in d.text() and "Not a directory" in d.text(), d.text()


def test_cores_are_as_many_and_where_they_were_told():
    cpus = sorted(os.sched_getaffinity(0))
    with Daemon("a", cores__polling=str(cpus[0]), cores__uring=str(cpus[-1])) as d:
        cores = d.client().list("cores")["cores"]
        want = [("polling", cpus[0]), ("net", cpus[-1])] if len(cpus) > 1 else [("polling, net", cpus[0])]
        assert [(c["roles"], c["cpu"]) for c in cores] == want, cores
    with Daemon("a") as d:
        assert len(d.client().list("cores")["cores"]) == (1 if len(cpus) < 4 else 2)


def polls_and_sleeps(d, c):
    core = c.list("cores")["cores"][0]
    return core["polls"], core["sleeps"]


def in_a_second(**options):
    """How often a daemon that gets ten requests in a second looks for work, and goes to sleep."""
    with Daemon("a", **options) as d:
        c = d.client()
        p0, s0 = polls_and_sleeps(d, c)
        for _ in range(10):
            time.sleep(0.1)
            c.list("cores")
        p1, s1 = polls_and_sleeps(d, c)
        assert d.stop() == 0
        return p1 - p0, s1 - s0


def test_an_idle_core_sleeps_or_polls_as_told():
    polls, sleeps = in_a_second(cores__idle="poll")
    assert sleeps == 0 and polls > 1000, (polls, sleeps)
    short, sleeps = in_a_second(cores__idle="adaptive", cores__idle_spin="1us")
    assert sleeps >= 10, sleeps
    long, sleeps = in_a_second(cores__idle="adaptive", cores__idle_spin="20ms")
    assert sleeps >= 5 and long > 5 * short, (short, long)


def test_huge_pages_that_are_required_are_there_or_it_does_not_start():
    free = int(re.search(r"HugePages_Free:\s+(\d+)", open("/proc/meminfo").read()).group(1))
    with Daemon("a", cores__hugepages="no") as d:
        assert "huge" not in d.text()
        assert d.stop() == 0
    if free:
        return  # somebody's: not ours to use up
    with tempfile.TemporaryDirectory() as tmp:
        rc, _, err = run_rvd("-s", "cores.hugepages=require", "-s", "tcp.listen=127.0.0.1:0", "-s", "metrics.listen=none", "-s",
                             "local.socket=%s/s" % tmp, "-s", "node.state_dir=" + tmp, "-s", "node.runtime_dir=" + tmp)
        assert rc == 1 and "cores.hugepages = require: there are no huge pages" in err and "serves as" not in err, err


def test_references_name_what_is_advertised():
    with Daemon("a", tcp__advertise="storage-7.example") as d:
        ref = rvctl(d, "put", "-", data=b"x" * 10)[1].decode()
        assert ref.startswith("rv://storage-7.example:%d/" % d.tcp), ref


def full_listener():
    """A port on which nobody gets in: its queue is full, and the rest of the world waits."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(0)
    waiting = []
    while True:
        c = socket.socket()
        c.settimeout(0.3)
        waiting.append(c)
        try:
            c.connect(s.getsockname())
        except (socket.timeout, OSError):
            return s, waiting


def test_a_peer_that_does_not_let_us_in_is_given_up_in_time():
    s, waiting = full_listener()
    took = {}
    for timeout in ("300ms", "2s"):
        with Daemon("a", tcp__connect_timeout=timeout, rendezvous__call_timeout="30s") as d:
            began = time.monotonic()
            rc, _, err = rvctl(d, "stat", "rv://127.0.0.1:%d/%d" % (s.getsockname()[1], 7 << 64 | 64))
            took[timeout] = time.monotonic() - began
            assert rc == 5 and err.count("\n") == 1, (rc, err)
    assert took["300ms"] < 1.5 * SLOW and 1.5 < took["2s"] < 10 * SLOW, took
    for c in waiting:
        c.close()
    s.close()


def silent_listener():
    """It accepts and says nothing."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(16)
    return s


def test_a_call_that_is_never_answered_ends_in_time():
    s = silent_listener()
    took = {}
    for timeout in ("300ms", "2s"):
        with Daemon("a", rendezvous__call_timeout=timeout) as d:
            began = time.monotonic()
            rc, _, err = rvctl(d, "stat", "rv://127.0.0.1:%d/%d" % (s.getsockname()[1], 7 << 64 | 64))
            took[timeout] = time.monotonic() - began
            assert rc == 5, (rc, err)
    assert took["300ms"] < 1.5 * SLOW and 1.5 < took["2s"] < 10 * SLOW, took
    s.close()


def test_ucx_says_its_eager_limit_to_peers():
    for limit in ("64KiB", "1MiB"):
        with Daemon("a", ucx=True, ucx__eager_max=limit) as d:
            rc, info, err = rvctl(d, "peer-info", "--format", "json")
            assert rc == 0, err
            raw = bytes(json.loads(info)["worker_address"])
            number = {n: bytes([0xcc, 0xce]) + n.to_bytes(4, "big") for n in (65536, 1 << 20)}
            assert [n for n, text in number.items() if text in raw] == [{"64KiB": 65536, "1MiB": 1 << 20}[limit]]


def test_without_ucx_there_is_no_fabric():
    for enabled in ("no", "yes"):
        with Daemon("a", ucx=True, ucx__enabled=enabled) as d:
            assert len(d.client().list("status")["fabrics"]) == (enabled == "yes")


def test_verbs_that_must_be_and_cannot_is_an_error():
    with Daemon("a", verbs__enabled="auto", verbs__device="none9") as d:
        assert "verbs: not used: there is no RDMA device none9" in d.text(), d.text()
    with Daemon("a", verbs__enabled="no", verbs__device="none9") as d:
        assert "verbs" not in d.text(), d.text()
    with tempfile.TemporaryDirectory() as tmp:
        rc, _, err = run_rvd("-s", "verbs.enabled=yes", "-s", "verbs.device=none9", "-s", "tcp.listen=127.0.0.1:0", "-s",
                             "metrics.listen=none", "-s", "ucx.enabled=no", "-s", "local.socket=%s/s" % tmp, "-s",
                             "node.state_dir=" + tmp, "-s", "node.runtime_dir=" + tmp)
        assert rc == 1 and "verbs: there is no RDMA device none9" in err and "serves as" not in err, err


def test_messages_over_the_threshold_are_staged():
    staged = {}
    for threshold in ("64KiB", "256KiB"):
        with Daemon("a", rendezvous__threshold=threshold, rendezvous__rdma_min_bytes="4KiB") as a, Daemon("b") as b:
            b.client().call(PEER_ADD, host="127.0.0.1", port=a.tcp)
            sent = subprocess.run([RVCTL, "--socket", a.socket, "send", "127.0.0.1:%d" % b.tcp, "no-such-handler", "-", "--call"],
                                  input=b"x" * 100000, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * SLOW)
            assert sent.returncode == 1, sent.stderr
            m = a.metrics()
            staged[threshold] = sum(v for k, v in m.items() if k.startswith("velo_rendezvous_operations_total") and "register" in k)
    assert staged == {"64KiB": 1, "256KiB": 0}, staged


def test_a_chunk_is_as_long_as_told():
    for size in (64 << 10, 512 << 10):
        with Daemon("a", rendezvous__chunk_size=str(size), rendezvous__threshold="32KiB", rendezvous__rdma_min_bytes="4KiB") as d:
            c = d.client()
            h = c.put(b"x" * (1 << 20))
            ok, body = RawPeer(d.tcp).call("_rv_acquire", {"handle": handle(h), "rdma": None})
            r = json.loads(body)["Ready"]
            assert ok and r["chunk_size"] == size and r["chunk_count"] == (1 << 20) // size, r


class CountingOwner:
    """Between a consumer and an owner: how many pulls are under way at once. It holds every answer back a moment."""

    def __init__(self, port):
        self.port, self.most = port, 0
        self.s = socket.socket()
        self.s.bind(("127.0.0.1", 0))
        self.s.listen(16)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            o = socket.create_connection(("127.0.0.1", self.port))
            state = {"out": 0, "lock": threading.Lock()}
            threading.Thread(target=self.frames, args=(c, o, state, 1), daemon=True).start()
            threading.Thread(target=self.frames, args=(o, c, state, -1), daemon=True).start()

    def frames(self, src, dst, state, step):
        buf = b""
        try:
            while True:
                while len(buf) < 11 or len(buf) < 11 + sum(struct.unpack(">II", buf[3:11])):
                    data = src.recv(1 << 20)
                    if not data:
                        return
                    buf += data
                n = 11 + sum(struct.unpack(">II", buf[3:11]))
                frame, buf = buf[:n], buf[n:]
                if step > 0 and b"_rv_pull" in frame[:200]:
                    with state["lock"]:
                        state["out"] += 1
                        self.most = max(self.most, state["out"])
                if step < 0 and n > 32 << 10:
                    time.sleep(0.02)
                    with state["lock"]:
                        state["out"] -= 1
                dst.sendall(frame)
        except OSError:
            pass
        finally:
            for x in (src, dst):
                try:
                    x.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


def test_no_more_than_a_window_of_pulls_is_under_way():
    most = {}
    for window in ("128KiB", "1MiB"):
        with Daemon("a", rendezvous__chunk_size="64KiB", rendezvous__threshold="32KiB", rendezvous__rdma_min_bytes="4KiB") as a, \
                Daemon("b", rendezvous__pull_window=window) as b:
            data = pattern(4 << 20)
            h = a.client().put(data)
            between = CountingOwner(a.tcp)
            g = b.client().get(h, host="127.0.0.1", port=between.s.getsockname()[1])
            assert g["data"] == data
            most[window] = between.most
            between.s.close()
    assert 1 <= most["128KiB"] <= 4 < most["1MiB"] <= 32, most


def test_without_rendezvous_rdma_gets_go_in_chunks():
    with Daemon("a", ucx=True, rendezvous__enabled="no") as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        cb.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
        h = ca.put(pattern(1 << 20), refs=50)

        def offered():
            cb.get(h)
            return a.metrics()['velo_rendezvous_rdma_path_total{path="chunked",reason="kill_switch"}']
        eventually(offered, what="an offer")
        assert a.metrics()['velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'] == 0


def test_a_slot_without_a_ttl_gets_the_default():
    with Daemon("a", rendezvous__default_ttl="100s") as d:
        c = d.client()
        c.put(b"x" * 10)
        assert 50 < c.list("slots")["slots"][0]["ttl_left_s"] <= 100
    with Daemon("a") as d:
        c = d.client()
        c.put(b"x" * 10)
        assert c.list("slots")["slots"][0]["ttl_left_s"] is None


def arenas(c):
    return c.list("arenas")["arenas"]


def test_arenas_are_as_large_as_told_and_go_when_told():
    sizes = dict(memory__initial_arena_bytes="8MiB", memory__max_arena_bytes="16MiB", memory__dedicated_arena_min="12MiB", ucx=True)
    with Daemon("a", memory__arena_reclaim_after="300ms", memory__retain_arena_bytes="0", **sizes) as d:
        c = d.client()
        held = [c.put(b"x" * 1000)]
        assert [x["bytes"] for x in arenas(c)] == [8 << 20]
        held += [c.put(b"x" * (1 << 20)) for _ in range(40)]
        assert max(x["bytes"] for x in arenas(c)) == 16 << 20 and not any(x["dedicated"] for x in arenas(c))
        held.append(c.put(b"x" * (12 << 20)))
        assert sum(x["dedicated"] for x in arenas(c)) == 1
        for h in held:
            c.call(DROP, worker=h[0], local=h[1])
        eventually(lambda: not arenas(c), what="the arenas' end")
    for reclaim, retain in (("none", "0"), ("300ms", "64MiB")):
        with Daemon("a", memory__arena_reclaim_after=reclaim, memory__retain_arena_bytes=retain, **sizes) as d:
            c = d.client()
            held = [c.put(b"x" * (1 << 20)) for _ in range(40)]
            for h in held:
                c.call(DROP, worker=h[0], local=h[1])
            time.sleep(1)
            assert sum(x["bytes"] for x in arenas(c)) == 40 << 20, arenas(c)


def test_the_socket_belongs_to_whom_it_should():
    group = [g for g in grp.getgrall() if g.gr_gid != os.getgid()][0]
    opts = {"local__group": group.gr_name} if os.geteuid() == 0 else {}
    with Daemon("a", local__mode="0600", **opts) as d:
        st = os.stat(d.socket)
        assert stat.S_IMODE(st.st_mode) == 0o600
        assert not opts or st.st_gid == group.gr_gid
    with Daemon("a") as d:
        assert stat.S_IMODE(os.stat(d.socket).st_mode) == 0o660


def test_a_metrics_port_that_is_taken():
    s = silent_listener()
    taken = "127.0.0.1:%d" % s.getsockname()[1]
    with tempfile.TemporaryDirectory() as tmp:
        rc, _, err = run_rvd("-s", "metrics.listen=" + taken, "-s", "tcp.listen=127.0.0.1:0", "-s", "ucx.enabled=no", "-s",
                             "local.socket=%s/s" % tmp, "-s", "node.state_dir=" + tmp, "-s", "node.runtime_dir=" + tmp)
        assert rc == 1 and taken in err and "listening on " + taken not in err, err
        assert err.strip().splitlines()[-1].count(taken) == 1, err
    with Daemon("a", metrics__listen=taken, metrics__required="no") as d:
        assert "metrics: not served: cannot listen on " + taken in d.text(), d.text()
        assert "listening on " + taken not in d.text() and "metrics" not in d.ports
        d.client().put(b"it serves")
        assert d.stop() == 0
    s.close()
    with Daemon("a", metrics__listen="none") as d:
        assert "metrics" not in d.ports
        assert d.stop() == 0


def test_peers_of_the_configuration_are_known():
    with Daemon("a") as a, Daemon("b") as b:
        info = os.path.join(a.dir, "info")
        assert rvctl(a, "peer-info", "-o", info)[0] == 0
        conf = os.path.join(a.dir, "c.conf")
        with open(conf, "w") as f:
            f.write('[peer "first"]\npeer_info = %s\n[peer "second"]\naddress = 127.0.0.1:%d\n' % (info, b.tcp))
        c = Daemon("c", wait=False)
        c.proc.kill()
        c.proc.wait()
        c.args[1:1] = ["-c", conf]
        c.log_from = len(c.text())
        c.start()
        try:
            peers = lambda: {p["name"]: int(p["worker"]) for p in c.client().list("peers")["peers"]}
            eventually(lambda: peers() == {"first": a.client().worker, "second": b.client().worker}, what="both peers")
            assert c.stop() == 0
        finally:
            c.close()


def test_a_configured_peer_that_starts_later_is_found():
    with Daemon("late") as late, tempfile.TemporaryDirectory() as tmp:
        worker_at = late.tcp
        late.kill()
        late.args += ["-s", "tcp.listen=127.0.0.1:%d" % worker_at]
        conf = os.path.join(tmp, "c.conf")
        with open(conf, "w") as f:
            f.write('[peer "late"]\naddress = 127.0.0.1:%d\n' % worker_at)
        c = Daemon("c", wait=False)
        c.kill()
        c.args[1:1] = ["-c", conf]
        c.restart()
        try:
            eventually(lambda: "peer late: " in c.text() and "tried again until it answers" in c.text(), what="the first refusal")
            time.sleep(2)
            assert c.text().count("peer late: ") == 1, c.text()
            late.restart()
            eventually(lambda: "peer late: it answers now" in c.text(), what="the peer")
            assert [p["name"] for p in c.client().list("peers")["peers"]] == ["late"]
            assert c.stop() == 0
        finally:
            c.close()


if __name__ == "__main__":
    main(globals())
