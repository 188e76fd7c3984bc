#!/usr/bin/env python3
"""What a daemon costs, and what it does with less than it would like."""
import pwd
import re
import signal
import tempfile

from rawpeer import *
from rvdtest import *
from rvlib import Lib, lib


def cpu_seconds(pid):
    f = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_daemon_uses_under_half_a_percent_of_a_core():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        h = ca.put(pattern(1 << 20))
        rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=RDMA)  # with an endpoint and a lease on it
        time.sleep(0.5)
        before = [cpu_seconds(d.proc.pid) for d in (a, b)]
        time.sleep(6)
        used = [(cpu_seconds(d.proc.pid) - x) / 6 for d, x in zip((a, b), before)]
        assert max(used) < 0.005 * SLOW * SLOW, used
        cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        assert a.stop() == 0 and b.stop() == 0


def test_sessions_that_come_and_go_leave_no_descriptor():
    """Of one program that lives on, each closed in good order: what it was shown is given back before."""
    with Daemon("a") as a:
        def session():
            c = a.client()
            h = c.put(pattern(1000))
            c.free(c.get(h))
            c.call(DROP, worker=h[0], local=h[1])
            c.close()
        session()  # the first makes the arenas
        eventually(lambda: a.metrics()["rvd_arena_blocks"] == 0, what="the blocks' end")
        before = a.fds()
        for _ in range(100):
            session()
        eventually(lambda: a.fds() <= before + 2, what="the descriptors' end")
        assert a.stop() == 0


def test_over_the_budget_payloads_are_plain_and_go_in_chunks():
    with Daemon("a", ucx=True, memory__registered_bytes_budget="16MiB") as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        big = pattern(40 << 20)
        x = ca.call(ALLOC, len=len(big))
        assert x["refusal"] == 1 and not x["pinned"], x
        ca.send(FREE, token=x["token"])
        h = ca.put(big)
        rep = cb.get(h, host="127.0.0.1", port=a.tcp)
        assert rep["data"] == big and rep["path_name"] == "chunked tcp"
        assert ca.list("status")["paths"]["budget"] == 2
        try:
            ca.call(ALLOC, len=len(big), flags=STRICT)
            raise AssertionError
        except Refused as e:
            assert e.rc == -28 and "budget" in e.text, e
        assert a.metrics()['velo_rendezvous_rdma_path_total{path="chunked",reason="budget"}'] >= 2
        cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        assert a.stop() == 0 and b.stop() == 0


def test_a_consumer_without_budget_falls_back_once():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True, memory__registered_bytes_budget="16MiB") as b:
        ca, cb = a.client(), b.client()
        data = pattern(30 << 20)
        h = ca.put(data, refs=3)
        small = ca.put(pattern(100000))
        cb.free(cb.get(small, host="127.0.0.1", port=a.tcp, path=RDMA))
        rep = cb.get(h)
        assert rep["data"] == data and rep["path_name"] == "chunked tcp", rep["path_name"]
        s = cb.list("status")["paths"]
        assert s["budget"] == 1 and s["ok"] == 1, s
        assert ca.list("status")["paths"]["no_offer"] == 1
        assert ca.list("status")["leases"] == {"chunked": 1, "rdma": 1, "local": 0}
        cb.close()
        eventually(lambda: not any(ca.list("status")["leases"].values()), what="the leases' end")
        assert a.stop() == 0 and b.stop() == 0


def test_the_pages_of_a_large_fetch_are_kept_a_moment_for_the_next():
    size = 80 << 20
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        h = ca.put(pattern(size))

        def fetch():
            rep = cb.get(h, host="127.0.0.1", port=a.tcp)
            assert rep["data"] == pattern(size), "wrong bytes"
            used = b.metrics()["rvd_parked_bytes"]
            cb.free(rep)
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
            eventually(lambda: b.metrics()["rvd_parked_bytes"] == size, what="the pages to be kept")
            return used

        assert fetch() == 0
        assert fetch() == 0, "the second fetch made pages of its own"
        assert b.metrics()["rvd_parked_bytes"] == size
        eventually(lambda: b.metrics()["rvd_parked_bytes"] == 0, 30, "their end")
        assert cb.list("status")["plain_bytes"] <= 8 << 20
        assert a.stop() == 0 and b.stop() == 0


def test_a_program_that_does_nothing_keeps_no_memory_of_a_slot_that_is_gone():
    """librv keeps the last large arena of its own mapped: addresses, but no memory once the slot has gone."""
    def shared_mib():
        return int(re.search(r"RssShmem:\s+(\d+)", open("/proc/self/status").read()).group(1)) >> 10

    with Daemon("a", memory__retain_arena_bytes="0") as a:
        before, program = shared_mib(), Lib(a.socket)
        h = program.fill(96 << 20, 0x5a)
        assert shared_mib() - before >= 90  # it is still mapped
        assert lib.rv_drop(program.c, h) == 0
        eventually(lambda: shared_mib() - before < 8, what="the memory's end")
        assert a.client().list("status")["used_bytes"] == 0
        program.close()
        assert a.stop() == 0


def test_memory_that_is_not_to_be_had_is_an_error_and_not_a_crash():
    with Daemon("a", memory__plain_bytes_budget="32MiB") as d:
        c = d.client()
        for flags in (0, PLAIN, SHARED, SHARED | PLAIN):
            try:
                c.call(ALLOC, len=64 << 20, flags=flags)
                raise AssertionError
            except Refused as e:
                assert e.rc == -28, e
        h = c.put(b"x" * (8 << 20))
        assert c.get(h)["len"] == 8 << 20
        assert d.stop() == 0


def test_full_tables_answer_busy_and_recover():
    with Daemon("a", rendezvous__max_slots=10, rendezvous__max_leases=5) as d:
        c = d.client()
        handles = [c.put(b"x") for _ in range(10)]
        try:
            c.put(b"one more")
            raise AssertionError
        except Refused as e:
            assert e.rc == -28 and "max_slots" in e.text, e
        p = RawPeer(d.tcp)
        leases = [json.loads(p.call("_rv_acquire", {"handle": handle(handles[0])})[1])["Ready"] for _ in range(5)]
        ok, text = p.call("_rv_acquire", {"handle": handle(handles[0])})
        assert ok is False and b"busy" in text, text
        assert p.call("_rv_detach", {"handle": handle(handles[0]), "lease_id": leases[0]["lease_id"]}, kind=SYNC)[0]
        assert p.call("_rv_acquire", {"handle": handle(handles[0])})[0]
        c.call(DROP, worker=handles[9][0], local=handles[9][1])
        c.put(b"room again")
        p.close()
        assert d.stop() == 0


def test_more_connections_than_allowed_are_refused_and_others_unharmed():
    with Daemon("a", tcp__max_connections=10) as d:
        peers = [RawPeer(d.tcp) for _ in range(10)]
        for p in peers:
            assert p.call("_list_handlers")[0]
        assert RawPeer(d.tcp).closed()
        assert all(p.call("_list_handlers")[0] for p in peers)
        peers.pop().close()
        eventually(lambda: d.metrics()["rvd_tcp_connections"] == 9)
        assert RawPeer(d.tcp).call("_list_handlers")[0]
        assert d.stop() == 0


def test_only_allowed_addresses_are_served():
    with Daemon("a", tcp__allow="10.0.0.0/8") as d:
        assert RawPeer(d.tcp).closed()
        assert d.stop() == 0
    with Daemon("a", tcp__allow="10.0.0.0/8, 127.0.0.0/8") as d:
        assert RawPeer(d.tcp).call("_list_handlers")[0]
        assert d.stop() == 0


def test_a_reload_changes_who_may_connect_and_leaves_connections_alone():
    with tempfile.TemporaryDirectory() as tmp:
        f = os.path.join(tmp, "rvd.conf")

        def reload(allow, most):
            open(f, "w").write("[tcp]\nallow = %s\nmax_connections = %d\n" % (allow, most))
            d.proc.send_signal(signal.SIGHUP)

        def lets_in():
            p = RawPeer(d.tcp)
            try:
                return p.call("_list_handlers")[0]
            except (EOFError, ConnectionError):
                return False
            finally:
                p.close()
        open(f, "w").write("[tcp]\nallow = all\n")
        d = Daemon("a", wait=False)
        d.kill()
        d.args[1:1] = ["-c", f]
        d.restart()
        try:
            old = RawPeer(d.tcp)
            assert old.call("_list_handlers")[0] and lets_in()
            reload("10.0.0.0/8", 100)
            eventually(lambda: not lets_in(), what="the new list")
            assert old.call("_list_handlers")[0], "who was there was put out"
            reload("127.0.0.0/8", 1)
            time.sleep(0.2)
            assert not lets_in(), "one connection is all there may be"
            reload("127.0.0.0/8", 2)
            eventually(lets_in, what="room for two")
            assert "restart" not in d.text().split("serves as worker")[-1], d.text()
            assert d.stop() == 0
        finally:
            d.close()


def test_as_nobody_with_little_memlock_it_serves_and_says_what_is_missing():
    user = pwd.getpwnam("nobody")
    if os.geteuid() != 0:
        raise AssertionError("this test must start as root to become nobody")
    tmp = tempfile.mkdtemp(prefix="rvd-nobody-")
    os.chown(tmp, user.pw_uid, user.pw_gid)
    # The build folder may be closed to nobody: run a copy.
    exe = os.path.join(tmp, "rvd")
    shutil.copy(RVD, exe)
    sock = os.path.join(tmp, "run", "rvd.sock")
    code = ("import os, resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
            "os.setgid(%d); os.setgroups([]); os.setuid(%d)\n"
            "os.execv(%r, [%r, '-s', 'tcp.listen=127.0.0.1:0', '-s', 'metrics.listen=none', '-s', 'ucx.enabled=yes',"
            " '-s', 'ucx.tls=tcp'])" % (user.pw_gid, user.pw_uid, exe, exe))
    env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    env.update(XDG_RUNTIME_DIR=os.path.join(tmp, "run"), XDG_STATE_HOME=os.path.join(tmp, "state"),
               XDG_CONFIG_HOME=os.path.join(tmp, "config"), HOME=tmp, UCX_MEM_EVENTS="n",
               LD_LIBRARY_PATH=library_path(exe, tmp))
    os.mkdir(os.path.join(tmp, "run"))
    os.chown(os.path.join(tmp, "run"), user.pw_uid, user.pw_gid)
    log = open(os.path.join(tmp, "log"), "w+b")
    p = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=log, stderr=log)
    try:
        text = lambda: open(log.name, errors="replace").read()
        eventually(lambda: "serves as worker" in text() or p.poll() is not None, what="a start as nobody")
        assert p.poll() is None, text()
        assert "memlock is limited to 64 KiB" in text() and "no huge pages" in text(), text()
        path = os.path.join(tmp, "run", "rvd", "rvd.sock")
        c = Client(path)
        h = c.put(b"z" * 100000)
        assert c.get(h)["data"] == b"z" * 100000
        p.send_signal(signal.SIGTERM)
        assert p.wait(timeout=30 * SLOW) == 0
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        log.close()
        shutil.rmtree(tmp, ignore_errors=True)


def library_path(exe, tmp):
    """UCX from a cache that only its owner can read goes along with the copy."""
    out = subprocess.run(["ldd", exe], stdout=subprocess.PIPE, check=True).stdout.decode()
    lib = os.path.join(tmp, "lib")
    os.mkdir(lib)
    for line in out.splitlines():
        f = line.split()
        if len(f) > 2 and f[1] == "=>" and "/ucx" in f[2]:
            shutil.copy(f[2], lib)
            modules = os.path.join(os.path.dirname(f[2]), "ucx")
            if os.path.isdir(modules) and not os.path.exists(os.path.join(lib, "ucx")):
                shutil.copytree(modules, os.path.join(lib, "ucx"))
    return lib


if __name__ == "__main__":
    main(globals())
