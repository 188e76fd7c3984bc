#!/usr/bin/env python3
"""DPDK's telemetry socket: it tells what lists and metrics tell, costs an idle daemon nothing, and leaves nothing."""
import re
import socket

from rvdtest import *

COMMANDS = ["/rvd/arenas", "/rvd/cores", "/rvd/status"]
SIZE = 1000003


def socket_of(d):
    return os.path.join(d.dir, "run", "dpdk", "rvd", "dpdk_telemetry.v2")


class Telemetry:
    """A client, as DPDK's own tool is one: a packet asks, a packet answers."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(20 * SLOW)
        self.sock.connect(path)
        self.hello = json.loads(self.sock.recv(1 << 16))

    def ask(self, command):
        self.sock.send(command.encode())
        return json.loads(self.sock.recv(1 << 16))[command.split(",")[0]]

    def all(self):
        return [self.ask(c) for c in COMMANDS]

    def close(self):
        self.sock.close()


def polling(d):
    return [c for c in d.client().list("cores")["cores"] if "polling" in c["roles"]]


def test_our_commands_are_among_those_listed():
    with Daemon("a") as a:
        t = Telemetry(socket_of(a))
        assert t.hello["pid"] == a.proc.pid
        assert [c for c in t.ask("/") if c.startswith("/rvd/")] == COMMANDS
        assert "slots" in t.ask("/help,/rvd/status")["/rvd/status"]
        assert t.ask("/rvd/nothing") is None
        assert a.client().list("status")["telemetry"] == socket_of(a)
        assert a.stop() == 0


def test_an_idle_node_tells_who_it_is():
    with Daemon('a "b"\\') as a:
        arenas, cores, status = Telemetry(socket_of(a)).all()
        said = a.client().list("status")
        for key in ("name", "version", "worker"):
            assert status[key] == said[key], (key, status, said)
        assert status["uptime_s"] <= said["uptime_s"] < status["uptime_s"] + 60
        assert status["draining"] == status["active_slots"] == status["bytes_in"] == status["bytes_out"] == 0
        assert status["leases"] == {"chunked": 0, "rdma": 0, "local": 0}
        assert status["gets"] == {"ok": 0, "error": 0, "under_way": 0}
        listed = a.client().list("cores")["cores"]
        assert [(cores["core%d" % c["core"]]["roles"]) for c in listed] == [c["roles"] for c in listed] and len(cores) == len(listed)
        for c in cores.values():
            assert c["name"].startswith("rvd-") and 0 <= c["busy_permille"] <= 1000 and c["polls"] > 0, c
        assert arenas["registered_budget_bytes"] == said["registered_bytes_budget"] and arenas["registered_bytes"] == 0
        assert sum(k.startswith("core") for k in arenas) == len(polling(a))
        assert a.stop() == 0


def test_it_tells_what_lists_and_metrics_tell():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ta, tb = Telemetry(socket_of(a)), Telemetry(socket_of(b))
        ca, cb = a.client(), b.client()
        h = ca.put(pattern(SIZE))
        assert ta.ask("/rvd/status")["active_slots"] == 1
        rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=CHUNKED, flags=KEEP)
        status = ta.ask("/rvd/status")
        assert status["leases"] == {k: ca.list("status")["leases"][k] for k in ("chunked", "rdma", "local")}, status
        assert status["leases"]["chunked"] == 1 and status["bytes_out"] == SIZE
        got = tb.ask("/rvd/status")
        assert got["gets"] == {"ok": 1, "error": 0, "under_way": 0} and got["bytes_in"] == SIZE
        try:
            cb.get((h[0], h[1] + (1 << 30)))
        except Refused:
            pass
        assert tb.ask("/rvd/status")["gets"]["error"] == b.metrics()['velo_rendezvous_operations_total{operation="get",status="error"}'] == 1

        def memory_agrees():
            arenas, m = ta.ask("/rvd/arenas"), a.metrics()
            cores = [v for k, v in arenas.items() if k.startswith("core")]
            return (arenas["registered_bytes"] == m["velo_rdma_registered_bytes"] > 0 and
                    arenas["plain_bytes"] == m["rvd_plain_bytes"] and
                    sum(c["used_bytes"] for c in cores) == m['rvd_arena_bytes{state="used"}'] >= SIZE and
                    sum(c["free_bytes"] for c in cores) == m['rvd_arena_bytes{state="free"}'] and
                    max(c["largest_free_bytes"] for c in cores) == m['rvd_arena_bytes{state="largest_free"}'] > 0 and
                    sum(c["blocks"] for c in cores) == m["rvd_arena_blocks"])
        eventually(memory_agrees, what="the same memory in both")  # what is free is counted a moment late
        before = ta.ask("/rvd/cores")
        listed = {"core%d" % c["core"]: c for c in ca.list("cores")["cores"]}
        after = ta.ask("/rvd/cores")
        assert listed.keys() == before.keys()
        for k, c in listed.items():
            for ours, theirs in (("polls", c["polls"]), ("sleeps", c["sleeps"]), ("busy_ns", round(c["busy_s"] * 1e9))):
                assert before[k][ours] - 1000 <= theirs <= after[k][ours] + 1000, (k, ours, before, c, after)

        cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        eventually(lambda: ta.ask("/rvd/status")["active_slots"] == 0, what="the slot's end")
        assert sum(ta.ask("/rvd/status")["leases"].values()) == 0
        cb.close()
        assert a.stop() == 0 and b.stop() == 0


def test_a_drain_shows():
    with Daemon("a") as a:
        t = Telemetry(socket_of(a))
        code, _, err = rvctl(a, "drain")
        assert code == 0, err
        eventually(lambda: t.ask("/rvd/status")["draining"] == 1, what="the drain")
        assert a.stop() == 0


def test_many_ask_at_once_and_some_while_it_stops():
    with Daemon("a") as a:
        clients = [Telemetry(socket_of(a)) for _ in range(8)]
        for _ in range(50):
            for t in clients:
                t.sock.send(b"/rvd/cores")
            for t in clients:
                assert "core0" in json.loads(t.sock.recv(1 << 16))["/rvd/cores"]
        for t in clients[1:]:
            t.sock.send(b"/rvd/status")
            t.close()  # before it is answered
        a.proc.send_signal(signal.SIGTERM)
        try:
            while clients[0].ask("/rvd/status"):
                pass
        except (OSError, ValueError):
            pass
        assert a.stop() == 0


def test_nothing_is_left_after_a_stop_and_a_kill_is_got_over():
    with Daemon("a") as a:
        run = os.path.join(a.dir, "run")
        assert os.stat(os.path.join(run, "dpdk")).st_mode & 0o777 == 0o700
        a.kill()
        assert os.path.exists(socket_of(a))
        a.restart()
        assert os.listdir(os.path.dirname(socket_of(a))) == ["dpdk_telemetry.v2"]
        assert Telemetry(socket_of(a)).hello["pid"] == a.proc.pid
        assert a.stop() == 0
        assert not os.listdir(run)


def test_two_in_one_directory_do_not_collide():
    with Daemon("a") as a, Daemon("b", node__runtime_dir=os.path.join(a.dir, "run"), wait=False) as b:
        eventually(lambda: " serves as worker " in b.text(), what="the second's start")
        for d, end in ((a, ""), (b, ":1")):
            assert Telemetry(socket_of(a) + end).hello["pid"] == d.proc.pid
            assert d.client().list("status")["telemetry"] == socket_of(a) + end
        assert a.stop() == 0 and b.stop() == 0
        assert not os.listdir(os.path.join(a.dir, "run"))


def test_where_no_socket_can_be_the_daemon_serves_without():
    with Daemon("a", metrics__telemetry="no") as a:
        assert os.listdir(os.path.join(a.dir, "run")) == ["ports"] and "telemetry" not in a.text()
        assert a.client().list("status")["telemetry"] is None
        assert not os.path.exists("/var/run/dpdk/rvd-%d" % a.proc.pid)
        assert a.stop() == 0
    with Daemon("a", wait=False, node__runtime_dir="/tmp/rvd-test-" + "x" * 100) as a:
        try:
            eventually(lambda: " serves as worker " in a.text(), what="the start")
            assert "telemetry: not served" in a.text()
            assert a.stop() == 0
        finally:
            shutil.rmtree("/tmp/rvd-test-" + "x" * 100, ignore_errors=True)


def threads(pid):
    for tid in os.listdir("/proc/%d/task" % pid):
        yield dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/%d/task/%s/status" % (pid, tid)) if ":\t" in line)


def test_its_threads_keep_off_polling_cores_and_do_not_wake_up():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Missing("a second CPU")
    with Daemon("a", cores__polling=str(cpus[0]), cores__uring=str(cpus[0])) as a:
        t = Telemetry(socket_of(a))
        t.all()
        named = lambda start: [s for s in threads(a.proc.pid) if s["Name"].startswith(start)]
        assert [s["Cpus_allowed_list"] for s in named("rvd-core0")] == [str(cpus[0])]
        quiet = named("telemetry")
        assert len(quiet) == 2, quiet  # who listens, and who answers us
        assert all(re.split("[,-]", s["Cpus_allowed_list"])[0] != str(cpus[0]) for s in quiet), quiet
        switches = lambda: [s["voluntary_ctxt_switches"] for s in named("telemetry")]

        def asleep():
            before = switches()
            time.sleep(1)
            return switches() == before
        eventually(asleep, what="a second without a wake-up")
        assert a.stop() == 0


if __name__ == "__main__":
    main(globals())
