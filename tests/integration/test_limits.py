#!/usr/bin/env python3
"""What a daemon does at each of its limits, and that it recovers when there is room again."""
import fcntl
import resource

from rawpeer import *
from rvdtest import *
from rvlib import *

CLOEXEC = 0o2000000
REGISTRATIONS = int(os.environ.get("RV_REGISTRATIONS", "0"))


def refused(fn, *rcs):
    """What it was refused with, in words."""
    try:
        fn()
    except Refused as e:
        assert e.rc in rcs and e.text, e
        return e.text
    raise AssertionError("it was not refused")


def more_descriptors(n):
    """Raise this program's own limit. How many it may have now, n at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n if hard == resource.RLIM_INFINITY else min(n, hard), hard))
    return min(n, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def connections(d):
    return d.metrics()["rvd_tcp_connections"]


def test_chunks_come_by_the_first_connection_where_no_second_is_taken():
    data = pattern(5 << 20)
    with Daemon("a", tcp__max_connections=1) as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        h = ca.put(data, refs=10)
        for _ in range(3):
            rep = cb.get(h, host="127.0.0.1", port=a.tcp, timeout_ns=20 * 10**9)
            assert rep["data"] == data and rep["path_name"] == "chunked tcp"
            cb.free(rep)
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        assert connections(a) == 1
        assert a.metrics()["rvd_tcp_connections_refused_total"] <= 3, "it is asked again and again"
        assert a.stop() == 0 and b.stop() == 0


def test_an_owner_without_room_for_a_connection_is_told_so_and_is_reached_later():
    with Daemon("a", tcp__max_connections=3) as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        h = ca.put(pattern(1000))
        peers = [RawPeer(a.tcp) for _ in range(3)]
        assert all(p.call("_list_handlers")[0] for p in peers)
        get = lambda: cb.get(h, host="127.0.0.1", port=a.tcp, timeout_ns=20 * 10**9)
        assert "127.0.0.1:%d: " % a.tcp in refused(get, -113, -104)
        assert all(p.call("_list_handlers")[0] for p in peers), "who was there was put out"
        for p in peers:
            p.close()

        def back():
            try:
                return get()["data"] == pattern(1000)
            except Refused:
                return False
        eventually(back, what="the way to the owner")
        assert a.stop() == 0 and b.stop() == 0


def test_peers_that_say_nothing_or_half_of_it_cost_little_and_hold_nobody_up():
    head = lambda h, p: struct.pack(">HBII", 1, MESSAGE, h, p)
    begun = [b"", b"\0", head(100, 100)[:10], head(200, 0) + b"x" * 100, head(40, 15 << 20) + b"y" * 5000]
    with Daemon("a", shutdown__timeout="20s", tcp__handshake_timeout="none") as d:
        c = d.client()
        h = c.put(pattern(3 << 20), refs=10)
        rss, fds = d.rss_kib(), d.fds()
        socks = []
        for i in range(500):
            s = socket.create_connection(("127.0.0.1", d.tcp))
            s.sendall(begun[i % len(begun)])
            socks.append(s)
        mute = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for s in mute:
            s.connect(d.socket)
        eventually(lambda: connections(d) == 500)
        assert d.rss_kib() - rss < 600 * 64 * (4 if SLOW > 1 else 1), d.rss_kib() - rss
        p = RawPeer(d.tcp)
        g = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None})[1])["Ready"]
        assert all(p.call("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": i})[0] for i in range(6))
        assert c.get(h)["data"] == pattern(3 << 20)
        # Half of them vanish without a word: their connections stay half open, as after a power cut.
        TCP_REPAIR = 19
        for s in socks[::2]:
            try:
                s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            except PermissionError:
                pass
            s.close()
        for s in socks[1::2] + mute:
            s.close()
        eventually(lambda: connections(d) <= 251 and c.list("status")["sessions"] == 1, what="the end of those that closed")
        if os.geteuid() == 0:
            assert connections(d) == 251, "half open, and gone"
        else:
            eventually(lambda: d.fds() <= fds + 2, what="the descriptors' return")
        assert p.call("_list_handlers")[0]
        p.close()
        began = time.monotonic()
        assert d.stop() == 0
        assert time.monotonic() - began < 5 * SLOW


def test_a_full_slot_table_is_told_to_who_stages_and_room_is_used_again():
    with Daemon("a", rendezvous__max_slots=50, rendezvous__max_leases=20) as d:
        full, other = d.client(), d.client()
        h = other.put(b"before")
        mine = [full.put(b"x%d" % i) for i in range(49)]
        a = full.call(ALLOC, len=5)
        full.send(WRITE, b"later", token=a["token"])
        assert "max_slots" in refused(lambda: full.call(COMMIT, token=a["token"], len=5), -28)
        assert "max_slots" in refused(lambda: other.put(b"y"), -28)
        assert other.get(h)["data"] == b"before" and full.get(mine[7])["data"] == b"x7"
        full.call(DROP, worker=mine[0][0], local=mine[0][1])
        late = full.call(COMMIT, token=a["token"], len=5)  # the buffer stayed who asked's
        assert full.get((late["worker"], late["local"]))["data"] == b"later"
        assert d.stop() == 0


def test_a_full_lease_table_is_told_to_who_gets_and_others_go_on():
    with Daemon("a", rendezvous__max_leases=20) as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        h = ca.put(pattern(2 << 20), refs=10)
        p, q = RawPeer(a.tcp), RawPeer(a.tcp, worker=78)
        acquire = lambda w: w.call("_rv_acquire", {"handle": handle(h), "rdma": None})
        g = json.loads(acquire(q)[1])["Ready"]
        taken = [json.loads(acquire(p)[1])["Ready"] for _ in range(19)]
        ok, text = acquire(p)
        assert not ok and b"busy" in text, text
        get = lambda: cb.get(h, host="127.0.0.1", port=a.tcp)
        assert "busy" in refused(get, -11, -121, -28)
        assert refused(lambda: ca.get(h, timeout_ns=300 * 10**6), -11, -110)  # it waits for its turn
        assert all(q.call("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": i})[0] for i in range(4))
        for t in taken[:3]:
            assert p.call("_rv_detach", {"handle": handle(h), "lease_id": t["lease_id"]}, kind=SYNC)[0]
        assert get()["data"] == pattern(2 << 20) and ca.get(h)["data"] == pattern(2 << 20)
        assert acquire(p)[0]
        p.close(), q.close()
        assert a.stop() == 0 and b.stop() == 0


def test_plain_memory_that_is_used_up_is_told_on_both_sides_and_comes_back():
    small = dict(memory__plain_bytes_budget="32MiB", memory__max_arena_bytes="8MiB", memory__retain_arena_bytes=0)
    with Daemon("a", **small) as a, Daemon("b", **small) as b:
        ca, other, cb = a.client(), a.client(), b.client()
        h = other.put(pattern(1 << 20), refs=50)
        get = lambda: cb.get(h, host="127.0.0.1", port=a.tcp)

        def fill(c):
            held = []
            while len(held) < 100:
                try:
                    held.append(c.call(ALLOC, len=1 << 20))
                except Refused as e:
                    assert e.rc == -28 and "plain_bytes_budget" in e.text, e
                    assert len(held) > 10, len(held)
                    return held
            raise AssertionError("the budget has no end")
        held = fill(ca)
        assert other.get(h)["data"] == pattern(1 << 20)
        rep = get()
        assert rep["data"] == pattern(1 << 20), "a consumer pays for the owner's want"
        cb.free(rep)
        landed = fill(cb)
        views = []
        try:
            for _ in range(20):  # what was free in its landing arenas
                views.append(get())
            raise AssertionError("the budget has no end")
        except Refused as e:
            assert e.rc in (-28, -12) and "budget" in e.text, e
        for c, bufs in ((ca, held), (cb, landed + views)):
            for x in bufs:
                c.send(FREE, token=x["token"])
        assert get()["data"] == pattern(1 << 20)
        assert ca.get(ca.put(b"z" * (4 << 20)))["len"] == 4 << 20
        assert a.stop() == 0 and b.stop() == 0


def cpu_seconds(pid):
    f = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def test_with_few_descriptors_what_needs_one_is_refused_and_the_rest_goes_on():
    data = pattern(3 << 20)
    with Daemon("b", limits="ulimit -n 64") as b, Daemon("a") as a:
        assert "64 descriptors are fewer than tcp.max_connections needs" in b.text()
        ca, c = a.client(), b.client()
        mine, far, later = c.put(b"mine"), ca.put(data, refs=10), ca.put(data, refs=10)
        log = len(b.text())
        idle, short = [], None
        while not short and len(idle) < 64:
            s = Client(b.socket, hello=False)
            try:
                s.call(HELLO, version=1)
                idle.append(s)
            except Refused as e:
                short = e.text
                assert e.rc == -24 and "descriptor" in short, e
            except (EOFError, ConnectionError):
                short = "closed"
        assert short, "64 descriptors serve %d sessions" % len(idle)
        # No more connections, of either kind: they are ended, not kept waiting.
        fill = [RawPeer(b.tcp, timeout=20 * SLOW) for _ in range(3)]
        assert fill[-1].closed()
        for p in fill:
            p.close()
        eventually(lambda: b.fds() >= 63, what="the last descriptor's end") if short == "closed" else None
        # What needs none goes on; what needs one says so, and its session stays.
        assert c.call(METADATA, worker=mine[0], local=mine[1])["len"] == 4
        last = [socket.create_connection(("127.0.0.1", b.tcp)) for _ in range(4)]
        time.sleep(0.3)
        said = refused(lambda: c.get(far, host="127.0.0.1", port=a.tcp, timeout_ns=5 * 10**9), -113, -24)
        assert "descriptor" in said, said
        said = refused(lambda: c.call(ALLOC, len=20 << 20, flags=SHARED), -24)
        assert "descriptor" in said, said
        assert "descriptor" in refused(lambda: c.get(mine), -24)
        assert c.call(METADATA, worker=mine[0], local=mine[1])["len"] == 4
        used = cpu_seconds(b.proc.pid)
        time.sleep(2)
        assert cpu_seconds(b.proc.pid) - used < 0.3 * SLOW, "it spins"
        assert len(b.text()) - log < 4096, b.text()[log:]
        for s in idle + last:
            s.close()

        def back():
            try:
                return c.get(later, host="127.0.0.1", port=a.tcp)["data"] == data
            except Refused:
                return False
        eventually(back, what="the return of the descriptors")
        assert c.get(mine)["data"] == b"mine"
        x = c.call(ALLOC, len=20 << 20, flags=SHARED)
        assert x["arena"] in c.arenas
        assert RawPeer(b.tcp).call("_list_handlers")[0] and b.client().get(mine)["data"] == b"mine"
        assert a.stop() == 0 and b.stop() == 0


def test_a_full_disk_costs_the_memory_of_former_names_and_no_more():
    if os.geteuid() != 0:
        raise Missing("root, to mount a small file system")
    d = Daemon("a")
    state = os.path.join(d.dir, "state")
    mounted = False
    try:
        worker = d.client().worker
        assert d.stop() == 0
        p = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "rvd-test", state], stderr=subprocess.PIPE)
        if p.returncode:
            raise Missing("permission to mount a small file system")
        mounted = True
        with open(os.path.join(state, "workers"), "w") as f:
            f.write("%d\n" % worker)
        with open(os.path.join(state, "fill"), "wb", buffering=0) as f:
            try:
                while True:
                    f.write(bytes(4096))
            except OSError:
                pass
        d.restart()
        assert "former names of this node are not remembered" in d.text(), d.text()
        c = d.client()
        assert c.get(c.put(b"x" * 100000))["data"] == b"x" * 100000
        with open(os.path.join(state, "workers")) as f:
            assert f.read() == "%d\n" % worker, "what was remembered is gone"
        assert sorted(os.listdir(state)) == ["fill", "workers"], os.listdir(state)
        assert d.stop() == 0
    finally:
        if mounted:
            subprocess.run(["umount", state], check=True)
        d.close()


class MemoryGroup:
    """A control group of our own with a limit, of whichever version this machine has."""

    def __init__(self, limit):
        name = "rvd-test-%d" % os.getpid()
        for parent, file in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/unified", "memory.max"),
                             ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            self.path, self.usage = os.path.join(parent, name), file.replace("max", "current").replace("limit", "usage")
            try:
                if file == "memory.max":  # "r+" makes no file where this is no such hierarchy
                    with open(os.path.join(parent, "cgroup.subtree_control"), "r+") as f:
                        f.write("+memory")
                os.mkdir(self.path)
            except OSError:
                continue
            try:
                with open(os.path.join(self.path, file), "r+") as f:
                    f.write(str(limit))
                return
            except OSError:
                os.rmdir(self.path)
        raise Missing("a control group with a memory limit (root)")

    def used(self):
        with open(os.path.join(self.path, self.usage)) as f:
            return int(f.read())

    def kills(self):
        """How many processes the kernel has killed in it."""
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(os.path.join(self.path, name)) as f:
                    return int(dict(line.split() for line in f)["oom_kill"])
            except (OSError, KeyError):
                pass
        return 0

    def close(self):
        eventually(lambda: not open(os.path.join(self.path, "cgroup.procs")).read())
        os.rmdir(self.path)


def test_near_its_control_groups_limit_a_daemon_refuses_to_grow_and_lives():
    limit, piece = int(256 * SLOW) << 20, int(8 * SLOW) << 20
    g = MemoryGroup(limit)
    try:
        # Budgets that promise more than the group has: what was configured is not what there is.
        with Daemon("a", limits="echo $$ > %s/cgroup.procs" % g.path, memory__plain_bytes_budget="8GiB",
                    memory__registered_bytes_budget="8GiB", memory__retain_arena_bytes=0) as d, Daemon("b") as b:
            c, cb = d.client(), b.client()
            data = pattern(piece)
            held = []
            try:
                while len(held) < 1000:
                    held.append(c.put(data))
                raise AssertionError("%d MiB fit into a group of %d" % (len(held) * piece >> 20, limit >> 20))
            except Refused as e:
                assert e.rc == -28, e
            assert len(held) > 8 and g.used() < limit, (len(held), g.used())
            assert "the control group is near its limit" in d.text(), d.text()
            for h in (held[0], held[-1]):
                assert cb.get(h, host="127.0.0.1", port=d.tcp)["data"] == data, "who was there is served"
            try:  # fetching needs room too, and is refused as clearly
                for _ in range(1000):
                    other = cb.put(data)
                    c.get(other, host="127.0.0.1", port=b.tcp)
                raise AssertionError("gets without end")
            except Refused as e:
                assert e.rc in (-28, -12), e
            for h in held[1:]:
                c.call(DROP, worker=h[0], local=h[1])

            def room():
                try:
                    return c.put(data)
                except Refused:
                    return None
            assert eventually(room, what="room again")
            assert g.kills() == 0
            assert d.stop() == 0
    finally:
        g.close()


def test_a_log_that_cannot_be_written_stops_nobody():
    d = Daemon("a", wait=False)
    try:
        d.kill()
        with open("/dev/full", "wb") as full:
            d.proc = subprocess.Popen(d.args, stdin=subprocess.DEVNULL, stdout=full, stderr=full, env=d.env)
        eventually(lambda: os.path.exists(os.path.join(d.dir, "run", "ports")), seconds=30, what="the start")
        c = eventually(lambda: d.client())
        assert c.get(c.put(b"x" * 100000))["data"] == b"x" * 100000
        assert d.stop() == 0
    finally:
        d.close()


def test_small_stacks_are_enough():
    data = pattern(1 << 20)
    with Daemon("a", ucx=True, limits="ulimit -s 256") as a, Daemon("b", ucx=True, limits="ulimit -s 256") as b:
        ca, cb = a.client(), b.client()
        peers = [RawPeer(a.tcp) for _ in range(300)]
        sessions = [a.client() for _ in range(100)]
        assert all(p.call("_list_handlers")[0] for p in peers)
        h = ca.put(data, refs=300)
        for s in sessions:
            assert s.get(h)["len"] == 1 << 20
        for path in (CHUNKED, RDMA):
            rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=path)
            assert rep["data"] == data
            cb.free(rep)
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        a.metrics()
        for x in peers + sessions:
            x.close()
        assert a.stop() == 0 and b.stop() == 0


def sealed(n):
    fd = os.memfd_create("rv-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, n)
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    return fd


def test_registering_again_and_again_costs_what_is_live_at_once():
    live_max = 24
    with Daemon("a", ucx=True) as d:
        maps = lambda: sum(1 for _ in open("/proc/%d/maps" % d.proc.pid))
        s, c = Lib(d.socket), d.client()
        began = time.monotonic()
        live, seen, done = [], [], 0
        idle = (maps(), d.rss_kib(), d.fds())
        while done < REGISTRATIONS if REGISTRATIONS else time.monotonic() - began < 12 and done < 100000:
            size = 4096 * (1 + done * 2654435761 % 97) - done % 4095
            r = s.region(sealed(size), 0, size)
            live.append(r)
            if len(live) == live_max:
                victim = live.pop(done * 40503 % live_max)
                if done % 50 == 0:
                    victim.drop()  # in the background, with a line in the log
                else:
                    h = victim.stage(0, 1) if done % 3 == 0 else None
                    assert victim.unregister(0) == (DRAIN_TIMED_OUT if h else DRAINED)
                    if h:  # which goes on in a copy of the region
                        c.call(DROP, worker=h[0], local=h[1])
            done += 1
            if done % 250 == 0:
                seen.append((maps(), d.rss_kib()))
        assert len(seen) >= 4, "%d registrations" % done
        first, rest = seen[:max(1, len(seen) // 4)], seen[len(seen) // 4:]
        # What libraries keep, they keep after the first thousands; a map left behind by each would be thousands.
        assert max(m for m, _ in rest) <= max(m for m, _ in first) + 2 * live_max, (first, rest[-5:])
        # Under sanitizers freed memory is kept for a while.
        assert SLOW > 1 or max(k for _, k in rest) <= max(k for _, k in first) + live_max * 97 * 4, (
            first, rest[-5:])
        for r in live:
            r.drop()
        eventually(lambda: not c.list("regions")["regions"], what="the regions' end")
        eventually(lambda: maps() <= idle[0] + 2 * live_max and d.fds() <= idle[2], what="the maps' end")
        assert d.metrics()['velo_rdma_live_regions'] >= 0
        print("# %d registrations, maps %d, then %d to %d, now %d; %d KiB, then %d to %d" % (
            done, idle[0], min(m for m, _ in seen), max(m for m, _ in seen), maps(), idle[1], min(k for _, k in seen),
            max(k for _, k in seen)))
        s.close()
        assert d.stop() == 0


def not_close_on_exec(d):
    """Of every descriptor but the first three, which are who started it's."""
    out, pid = [], d.proc.pid
    for fd in os.listdir("/proc/%d/fd" % pid):
        with open("/proc/%d/fdinfo/%s" % (pid, fd)) as f:
            flags = int(next(line for line in f if line.startswith("flags:")).split()[1], 8)
        if int(fd) > 2 and not flags & CLOEXEC:
            out.append((fd, os.readlink("/proc/%d/fd/%s" % (pid, fd))))
    return out


def test_no_descriptor_of_the_daemon_outlives_an_exec():
    data = pattern(1 << 20)
    with Daemon("a", ucx=True) as d:  # what libraries open at the start; UCX's connections are its own affair
        assert d.fds() > 20 and not not_close_on_exec(d), not_close_on_exec(d)
        d.stop()
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb, s = a.client(), b.client(), Lib(b.socket)
        h = ca.put(data, refs=10)
        x = cb.call(ALLOC, len=1 << 20, flags=SHARED)
        r = s.region(sealed(8192), 0, 8192)
        cb.free(cb.get(h, host="127.0.0.1", port=a.tcp))
        p = RawPeer(b.tcp)
        assert p.call("_list_handlers")[0]
        m = socket.create_connection(("127.0.0.1", int(b.ports["metrics"])))
        m.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert m.recv(100)
        for d in (a, b):
            assert d.fds() > 20 and not not_close_on_exec(d), not_close_on_exec(d)
        m.close(), p.close()
        r.drop(), s.close()
        cb.send(FREE, token=x["token"])
        assert a.stop() == 0 and b.stop() == 0


def memory_kib(d):
    """VmRSS, and what the kernel's finer count says, where it may be read."""
    out = [d.rss_kib()]
    try:
        with open("/proc/%d/smaps_rollup" % d.proc.pid) as f:
            out.append(next(int(line.split()[1]) for line in f if line.startswith("Pss:")))
    except (OSError, StopIteration):
        pass
    return out


def test_thousands_of_idle_connections_cost_less_than_64_kib_each():
    n = min(10000, more_descriptors(11000) - 500)
    if n < 500:
        raise Missing("1000 descriptors")
    with Daemon("a", limits="ulimit -s 256") as d:
        d.metrics()
        before = memory_kib(d)
        peers = []
        for _ in range(n):
            peers.append(RawPeer(d.tcp))
            assert peers[-1].call("_list_handlers")[0]
        assert all(p.call("_list_handlers")[0] for p in peers)
        assert connections(d) == n
        for what, a, b in zip(("VmRSS", "Pss"), before, memory_kib(d)):
            print("# %d connections: %s %.1f KiB each" % (n, what, (b - a) / n))
            assert (b - a) / n < 64, (what, a, b)
        for p in peers:
            p.close()
        eventually(lambda: connections(d) == 0, seconds=20, what="their end")
        before = memory_kib(d)
        sessions = [d.client() for _ in range(n // 5)]
        for what, a, b in zip(("VmRSS", "Pss"), before, memory_kib(d)):
            assert (b - a) / len(sessions) < 64, (what, a, b)
        for c in sessions:
            c.close()
        assert d.stop() == 0


if __name__ == "__main__":
    main(globals())
