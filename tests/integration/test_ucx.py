#!/usr/bin/env python3
"""UCX between two daemons: workers on several cores, settings, owners that stop or die while they are read."""
import random
import statistics

from rawpeer import *
from rvdtest import *

OK = 'velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'


def know(b, a):
    return b.call(PEER_ADD, host="127.0.0.1", port=a.tcp)["worker"]


def fetch(c, h, **f):
    g = c.get(h, **f)
    c.free(g)
    c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
    return g


def sockets(pid):
    """(listening ports, local ports of established connections) of a process."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            inodes.add(os.readlink("/proc/%d/fd/%s" % (pid, fd)))
        except OSError:
            pass
    listening, connected = set(), []
    for table in ("tcp", "tcp6"):
        for line in open("/proc/%d/net/%s" % (pid, table)).readlines()[1:]:
            f = line.split()
            if "socket:[%s]" % f[9] not in inodes:
                continue
            port = int(f[1].rsplit(":", 1)[1], 16)
            if f[3] == "0A":
                listening.add(port)
            elif f[3] == "01":
                connected.append(port)
    return listening, connected


def test_each_polling_core_reads_from_a_worker_of_its_own():
    env = {"RVD_CORES_POLLING": "0,1", "RVD_CORES_URING": "1"}
    with Daemon("a", ucx=True, env=env) as a, Daemon("b", ucx=True, env=env) as b:
        data = pattern(1 << 20)
        ca = a.client()
        clients = [b.client() for _ in range(4)]  # their homes take turns
        for c in clients:
            know(c, a)
            g = fetch(c, ca.put(data), path=RDMA)
            assert g["data"] == data, "wrong bytes"
        listening, connected = sockets(a.proc.pid)
        workers = listening - {a.tcp, int(a.ports["metrics"])}
        read = workers & set(connected)
        assert len(workers) >= 2 and len(read) >= 2, "two cores read from %s of the owner's workers %s" % (read, workers)
        assert a.metrics()[OK] == 4
        assert a.stop() == 0 and b.stop() == 0


def test_a_daemon_with_one_core_and_one_with_two_read_each_other():
    with Daemon("a", ucx=True, env={"RVD_CORES_POLLING": "0,1", "RVD_CORES_URING": "1"}) as a, \
            Daemon("b", ucx=True, env={"RVD_CORES_POLLING": "0", "RVD_CORES_URING": "0"}) as b:
        data = pattern(300000)
        for owner, reader in ((a, b), (b, a)):
            for _ in range(3):
                c = reader.client()
                know(c, owner)
                assert fetch(c, owner.client().put(data), path=RDMA)["data"] == data
        assert a.stop() == 0 and b.stop() == 0


def pair(setting):
    env = {"UCX_TCP_TX_SEG_SIZE": setting} if setting else {}
    a, b = Daemon("a", ucx=True, env=env), Daemon("b", ucx=True, env=env)
    c = b.client()
    know(c, a)
    return a, b, c, a.client().put(pattern(1 << 20), refs=100000)


def test_a_mebibyte_takes_less_time_than_with_ucx_own_segments():
    pairs = {s: pair(s) for s in ("", "8k")}
    try:
        ratio = None
        for _ in range(5):  # a shared machine: the best of a few runs
            times = {s: [] for s in pairs}
            for i in range(120):
                for s, (_, _, c, h) in pairs.items():
                    g = fetch(c, h, path=RDMA)
                    if i >= 20:
                        times[s].append(g["elapsed_ns"])
            ratio = statistics.median(times[""]) / statistics.median(times["8k"])
            print("# 1 MiB: %.0f us with our settings, %.0f us with UCX_TCP_TX_SEG_SIZE=8k: %.2f" % (
                statistics.median(times[""]) / 1e3, statistics.median(times["8k"]) / 1e3, ratio), flush=True)
            if ratio <= 0.7 or SLOW > 1:
                break
        assert ratio <= 0.7 or SLOW > 1, "our settings, or the environment's, are not in force"
    finally:
        for a, b, _, _ in pairs.values():
            a.close()
            b.close()


def test_settings_that_break_the_path_are_named_at_start():
    for setting in ({"UCX_PROTO_ENABLE": "n"}, {"UCX_TLS": "self"}, {"UCX_TLS": "tcp", "UCX_PROTO_EMULATION_ENABLE": "n"},
                    {"UCX_TLS": "nonsense"}):
        with Daemon("a", ucx=True, env=setting, ucx__tls="yes", wait=False) as a:
            def settled():
                return a.proc.poll() is not None or " serves as worker " in a.text()
            eventually(settled)
            ucx = [l for l in a.text().splitlines() if "ucx" in l]
            assert any("error" in l or "warn" in l for l in ucx), (setting, a.text())
            assert not any("self-check ok" in l for l in ucx), (setting, a.text())
            assert any("%s=%s" % next(reversed(setting.items())) in l for l in ucx), (setting, a.text())
            if a.proc.poll() is not None:
                assert a.proc.returncode == 1, a.proc.returncode
                continue
            # Without the path everything goes in chunks.
            a.wait_ready()
            c = a.client()
            h = c.put(pattern(1 << 20))
            p = RawPeer(a.tcp)
            r = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": {"backends": ["ucx"]}})[1])
            assert "Ready" in r, (setting, r)


def test_an_owner_that_stops_ends_the_get_at_its_deadline():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True, rendezvous__lease_timeout="500ms") as b:
        c = b.client()
        know(c, a)
        fetch(c, a.client().put(pattern(1 << 20)), path=RDMA)
        h = a.client().put(pattern(32 << 20))
        c.send(GET, worker=h[0], local=h[1], path=RDMA, timeout_ns=int(1e9 * SLOW))
        time.sleep(0.02)
        a.proc.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        rep = c.recv()
        took = time.monotonic() - began
        a.proc.send_signal(signal.SIGCONT)
        if rep["rc"]:
            assert rep["rc"] == -110 and took < 3 * SLOW, (rep["rc"], rep["payload"], took)
        eventually(lambda: not c.list("status")["gets_under_way"] and
                   (rep["rc"] == 0 or not c.list("status")["used_bytes"]), 20, "the destination back")
        know(c, a)
        data = pattern(1 << 20)
        h2 = a.client().put(data, refs=100)

        def again():
            try:
                return fetch(c, h2, path=RDMA)["data"] == data
            except Refused:
                return False
        eventually(again, 20, "RDMA from the owner that goes on")


def killed_while_read(rounds):
    """Owners killed at a random moment of a get: an error or the right bytes, in time, and nothing left behind."""
    rng = random.Random(7)
    data = pattern(8 << 20)
    with Daemon("b", ucx=True) as b:
        c = b.client()
        counts = {}
        for _ in range(rounds):
            with Daemon("a", ucx=True) as a:
                know(c, a)
                h = a.client().put(data)
                fetch(c, a.client().put(data[:100000]), path=RDMA)
                c.send(GET, worker=h[0], local=h[1], timeout_ns=int(10e9 * SLOW))
                time.sleep(rng.random() * 0.012)
                a.kill()
                began = time.monotonic()
                rep = c.recv()
                assert time.monotonic() - began < 12 * SLOW, "past its deadline"
                if rep["rc"]:
                    counts["failed"] = counts.get("failed", 0) + 1
                else:
                    assert c.view(rep) == data, "wrong bytes"
                    c.free(rep)
                    counts[rep["path_name"]] = counts.get(rep["path_name"], 0) + 1
        print("# " + ", ".join("%s %d" % kv for kv in sorted(counts.items())), flush=True)
        eventually(lambda: not c.list("status")["gets_under_way"] and not c.list("status")["used_bytes"], 30,
                   "every buffer back")
        eventually(lambda: b.metrics()["rvd_endpoints"] == 0, 40, "the end of every endpoint")
        assert b.stop() == 0


def test_owners_killed_while_they_are_read():
    killed_while_read(int(os.environ.get("RV_KILLS", "30" if SLOW == 1 else "5")))


if __name__ == "__main__":
    main(globals())
