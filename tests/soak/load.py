#!/usr/bin/env python3
"""scripts/soak load: two daemons under mixed load for as long as asked, and whether anything of them grows.

    tests/soak/load.py SECONDS [FILE]     the samples go to FILE, as JSON

In rounds: programs put, get, send and register, between the two daemons and with stock peers in both roles, over TCP and
UCX; programs are killed in the middle, stock peers and a third daemon killed, stopped and started anew. Then all is at
rest for a moment: whatever was taken must have come back, and each daemon is measured (memory, descriptors, map
entries, registered bytes, endpoints, connections, peers) and how long a small get takes. No daemon that is
measured is ever restarted. Every byte is compared.
"""
import collections
import fcntl
import json
import multiprocessing
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "integration"), os.path.join(HERE, "..", "interop")]
from rvdtest import *  # noqa: E402
from rawpeer import FIRE, RESPONSE, RawPeer, handle  # noqa: E402
from rvlib import Lib, RvError  # noqa: E402
import peer  # noqa: E402
from peer import PeerError, PeerGone, PeerHung, StockPeer  # noqa: E402
from slopes import LEAST_SAMPLES, Verdict, after_warm_up  # noqa: E402
import test_stress  # noqa: E402

ROUND = float(os.environ.get("RV_SOAK_ROUND", "6"))
# Leases as long as a stock node may stand still where two cores have this much to do: it does not prove that it held its
# lease to the end, as ours does, so what it reads after that is not ours to answer for.
OPTIONS = dict(rendezvous__lease_timeout="4s", rendezvous__default_ttl="20s",
               memory__registered_bytes_budget="96MiB", memory__max_arena_bytes="32MiB", memory__dedicated_arena_min="8MiB",
               memory__arena_reclaim_after="2s", ucx__ep_idle_timeout="3s", tcp__handshake_timeout="2s")

# What may grow over the time that is judged: a share of what is usual, or so much.
ALLOWED = {
    "rss_kib": (0.15, 65536),  # with the arenas that are kept for the next: memory.retain_arena_bytes
    "pss_anon_kib": (0.05, 2048),
    "fds": (0, 6),  # but those of arenas
    "arenas": (0.5, 24),  # as many as the last seconds left: pages that are warm for the next ones, and those a read may still reach
    "maps": (0.05, 16),
    "registered_bytes": (0.05, 32 << 20),  # the largest arena
    "endpoints": (0, 3),
    "connections": (0, 4),
    "get_us": (0.25, 50),
}

# A node that is gone is remembered until 65,536 are known: its record, its route and the place it was reached at.
PEER_KIB = 2.0


def descriptors(pid):
    """(those that are not an arena's, the arenas')"""
    arenas, others = 0, 0
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            arena = os.readlink("/proc/%d/fd/%s" % (pid, fd)).startswith("/memfd:rvd-arena")
        except OSError:
            continue  # it has just been closed
        arenas += arena
        others += not arena
    return others, arenas


class Load:
    def __init__(self, seconds):
        self.until = time.monotonic() + seconds
        self.began = time.monotonic()
        self.rng = random.Random(os.getpid())
        self.counts = collections.Counter()
        self.series = collections.defaultdict(list)
        self.peers_known = collections.defaultdict(list)
        self.peers = dict(zip(("0.12", "0.21"), os.environ["RV_VELO_PEERS"].split(":")))
        self.stock = {}
        self.failed = queue.Queue()

    # ---- those who come and go ----

    def stock_peer(self, a, version):
        """Both roles, against both daemons, until the round is over; some are killed in the middle of something."""
        end, rng = time.monotonic() + ROUND, random.Random(self.rng.random())
        p = self.stock.get(version)
        try:
            while time.monotonic() < end:
                if p is None:
                    transports = rng.choice(["tcp", "tcp,ucx", "ucx,tcp"])
                    p = StockPeer(self.peers[version], transports=transports)
                    p.pins = "ucx" in transports
                    for d in a:
                        c = d.client()
                        p.register(c.call(PEER_INFO)["payload"].decode())
                        c.call(PEER_ADD, p.info.encode(), name="stock")
                        c.close()
                    self.counts["stock peers started"] += 1
                d = rng.choice(a)
                size, seed = rng.choice([0, 1000, 65536, 524289, 3000000]), rng.randrange(4)
                c = d.client()
                if rng.random() < 0.5:
                    h = c.put(peer.pattern(size, seed), flags=rng.choice([0, PLAIN]))
                    pinned = bool(p.pins and size and rng.random() < 0.5)
                    got = (p.get_pinned if pinned else p.get_release)(h[0] << 64 | h[1], seed)
                    assert got.good and got.length == size, "a stock node %s got wrong bytes: %s, %d bytes, pinned %s" % (
                        version, got, size, pinned)
                    self.counts["gets by stock peers"] += 1
                else:
                    t = (p.put_pinned if p.pins and size and rng.random() < 0.5 else p.put)(size, seed)
                    h = (t >> 64, t & (2**64 - 1))
                    g = c.get(h, timeout_ns=20 * 10**9)
                    assert g["data"] == peer.pattern(size, seed), "wrong bytes of a stock node"
                    c.free(g)
                    test_stress.tolerate(c, RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
                    self.counts["gets from stock peers"] += 1
                c.close()
                if rng.random() < 0.05:
                    p.send("get %d 0" % (rng.randrange(2**64) << 64 | 1))
                    p.close()
                    p = None
                    self.counts["stock peers killed"] += 1
        except (PeerError, PeerGone, PeerHung, Refused) as e:
            # A lease may run out, or a call, where two cores have this much to do; wrong bytes are an AssertionError.
            self.counts["refusals"] += 1
            self.counts["refusal: %s" % str(e)[:60]] += 1
            if p:
                p.close()
            p = None
        self.stock[version] = p

    def third_daemon(self, a, c_):
        """One that is killed or stopped in each round, as owner and as consumer of the others."""
        end, rng = time.monotonic() + ROUND, random.Random(self.rng.random())
        data = pattern(1 << 20)
        while time.monotonic() < end:
            try:
                d, s = rng.choice(a), c_.client()
                other = d.client()
                owner, asker, at = (s, other, c_) if rng.random() < 0.5 else (other, s, d)
                h = owner.put(data, flags=rng.choice([0, PLAIN]))
                g = asker.get(h, host="127.0.0.1", port=at.tcp, timeout_ns=10 * 10**9)
                assert g["data"] == data, "wrong bytes"
                asker.free(g)
                test_stress.tolerate(asker, RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
                self.counts["gets with a third daemon"] += 1
                if rng.random() < 0.1:  # while it fetches
                    h = other.put(data, refs=5)
                    for _ in range(3):
                        s.send(GET, worker=h[0], local=h[1], host="127.0.0.1", port=d.tcp)
                    c_.kill()
                    c_.restart()
                    self.counts["daemons killed"] += 1
                    test_stress.tolerate(other, DROP, worker=h[0], local=h[1])
                elif rng.random() < 0.05:
                    s.close()
                    assert c_.stop() in (0, 3)
                    c_.restart()
                    self.counts["daemons stopped"] += 1
                s.close()
                other.close()
            except (Refused, EOFError, ConnectionError) as e:
                self.counts["refusals"] += 1
                self.counts["refusal: %s" % str(e)[:60]] += 1

    def regions(self, a):
        """A program that registers memory of its own, and gives it back."""
        end, rng = time.monotonic() + ROUND, random.Random(self.rng.random())
        data = pattern(600000)
        s = Lib(a[0].socket)
        c = a[1].client()
        while time.monotonic() < end:
            fd = os.memfd_create("soak", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.write(fd, data)
            fcntl.fcntl(fd, 1033, 2)
            try:
                r = s.region(fd, rng.randrange(4096), 590000)
            except RvError as e:
                os.close(fd)
                assert e.rc in (-28, -12, -5), e
                self.counts["refusals"] += 1
                time.sleep(0.05)
                continue
            try:
                h = r.stage(0, 500000)
                if rng.random() < 0.8:
                    g = c.get(h, host="127.0.0.1", port=a[0].tcp, timeout_ns=10 * 10**9)
                    c.free(g)
                    test_stress.tolerate(c, RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
            except Refused:
                self.counts["refusals"] += 1
            r.unregister(0.2)
            self.counts["regions"] += 1
        c.close()
        s.close()

    def guarded(self, fn, *args):
        def run():
            try:
                fn(*args)
            except BaseException:
                self.failed.put(traceback.format_exc())
        t = threading.Thread(target=run)
        t.start()
        return t

    # ---- before it counts ----

    REMEMBERED = 65536  # RV_IDTAB_REMEMBER: so many ended slots and leases are remembered before a record is used again

    def fill_memory(self, d):
        """What a daemon remembers of the past is bounded, and grows until it is full: fill it, by gets of its own slots."""
        c, n = d.client(), 0
        a = c.call(ALLOC, len=1)
        c.call(COMMIT, token=a["token"], len=1)
        while n <= self.REMEMBERED:
            burst = min(200, self.REMEMBERED + 1 - n)
            for _ in range(burst):
                c.send(ALLOC, len=1, flags=PLAIN)
            tokens = [c.recv()["token"] for _ in range(burst)]
            for t in tokens:
                c.send(COMMIT, token=t, len=1)
            handles = [(r["worker"], r["local"]) for r in (c.recv() for _ in range(burst))]
            for h in handles:
                c.send(GET, worker=h[0], local=h[1], flags=8)  # and release, which ends the slot
            for _ in range(burst):
                r = c.recv()
                assert r["rc"] == 0, r
                c.free(r)
            n += burst
        self.fill_transfers(d, c)
        c.close()
        self.at_rest(d)

    def fill_transfers(self, d, c):
        """Likewise what it remembers of chunked transfers that are over."""
        h, p, n = c.put(b"x", flags=PLAIN), RawPeer(d.tcp), 0
        while n <= self.REMEMBERED:
            for _ in range(200):
                p.request("_rv_acquire", {"handle": handle(h), "rdma": None})
            for _ in range(200):
                kind, header, payload = p.read()
                assert kind == RESPONSE and header[16] == 0, payload
                p.request("_rv_detach", {"handle": handle(h), "lease_id": json.loads(payload)["Ready"]["lease_id"]}, kind=FIRE)
            n += 200
        p.close()

    # ---- rounds ----

    def round(self, a, third):
        results, deadline = multiprocessing.Queue(), time.monotonic() + ROUND
        go = lambda x, y: multiprocessing.Process(target=test_stress.worker,
                                                  args=(x, y, self.rng.randrange(10**9), results, deadline))
        honest = [go(*a), go(*a[::-1])]
        doomed = [go(*a), go(*a[::-1])]
        for w in honest + doomed:
            w.start()
        threads = [self.guarded(self.stock_peer, a, v) for v in self.peers]
        threads += [self.guarded(self.third_daemon, a, third), self.guarded(self.regions, a)]
        for w in doomed:
            time.sleep(self.rng.uniform(0, ROUND / 3))
            os.kill(w.pid, signal.SIGKILL)
            self.counts["programs killed"] += 1
        for _ in honest:
            error, some = results.get(timeout=ROUND + 120)
            assert not error, error
            for k, v in some.items():
                self.counts["refusals" if k == "refused" else "gets, " + k] += v
        for t in honest + doomed + threads:
            t.join()
        if not self.failed.empty():
            raise AssertionError(self.failed.get())

    def at_rest(self, d):
        c = d.client()

        def idle():
            for s in c.list("slots")["slots"]:
                h = int(s["handle"])
                test_stress.tolerate(c, DROP, worker=h >> 64, local=h & (2**64 - 1))
            s = c.list("status")
            return not s["used_bytes"] and not any(s["leases"].values()) and not s["gets_under_way"] and s["sessions"] == 1
        try:
            eventually(idle, seconds=60, what="everything back on " + d.name)
        except AssertionError as e:
            raise AssertionError("%s: %s" % (e, c.list("status")))
        finally:
            c.close()

    def sample(self, a, b):
        h = a.client()
        small = h.put(pattern(4096), refs=1)
        c = b.client()
        took = []
        for _ in range(300):
            began = time.monotonic()
            g = c.get(small, host="127.0.0.1", port=a.tcp)
            took.append(time.monotonic() - began)
            c.free(g)
            test_stress.tolerate(c, DETACH, worker=small[0], local=small[1], lease_id=g["lease_id"])
        h.call(DROP, worker=small[0], local=small[1])
        c.close()
        h.close()
        for d in (a, b):
            self.at_rest(d)
        time.sleep(3)  # longer than arena_reclaim_after: arenas that nobody uses have gone
        at = time.monotonic() - self.began
        self.series["b", "get_us"].append((at, sorted(took)[len(took) // 2] * 1e6))
        for d in (a, b):
            m = d.metrics()
            c = d.client()
            self.peers_known[d.name].append((at, len(c.list("peers")["peers"])))
            c.close()
            with open("/proc/%d/maps" % d.proc.pid) as f:
                maps = sum(1 for _ in f)
            with open("/proc/%d/smaps_rollup" % d.proc.pid) as f:
                anon = next(int(line.split()[1]) for line in f if line.startswith("Pss_Anon:"))
            fds, arenas = descriptors(d.proc.pid)
            for what, value in (("rss_kib", d.rss_kib()), ("pss_anon_kib", anon), ("fds", fds), ("arenas", arenas), ("maps", maps),
                                ("registered_bytes", m["velo_rdma_registered_bytes"]), ("endpoints", m["rvd_endpoints"]),
                                ("connections", m["rvd_tcp_connections"])):
                self.series[d.name, what].append((at, value))

    def run(self):
        with Daemon("a", ucx=True, **OPTIONS) as a, Daemon("b", ucx=True, **OPTIONS) as b, \
                Daemon("c", ucx=True, shutdown__timeout="2s", **OPTIONS) as third:
            try:
                if self.until - time.monotonic() > 200:  # else it is too short to judge, and need not
                    for t in [self.guarded(self.fill_memory, d) for d in (a, b)]:
                        t.join()
                    if not self.failed.empty():
                        raise AssertionError(self.failed.get())
                while time.monotonic() < self.until:
                    self.round((a, b), third)
                    for d in (a, b):
                        self.at_rest(d)
                    self.sample(a, b)
                    self.counts["rounds"] += 1
            finally:
                for p in self.stock.values():
                    if p:
                        p.close()
            peers = self.peers_known["a"][-1][1]
            assert a.stop() == 0 and b.stop() == 0, "a daemon did not end in good order"
            return peers


def judge(series, peers_known):
    """(the lines of those that grow, the one that comes nearest, were there samples enough)"""
    grown, nearest, judged = [], (0.0, "nothing"), True
    for (name, what), points in sorted(series.items()):
        relative, absolute = ALLOWED[what]
        known = after_warm_up(peers_known[name])
        if what.endswith("_kib") and known:
            absolute += PEER_KIB * (known[-1][1] - known[0][1])
        v = Verdict(points, relative, absolute)
        judged = judged and v.judged
        line = "%s of %s: %+.4g in the time judged (%.4g allowed), usually %.4g, %+.4g an hour" % (
            what, name, v.growth, v.allowed, v.typical, v.per_hour)
        print("# " + line)
        if not v.flat:
            grown.append(line)
        nearest = max(nearest, (v.share, "%s of %s" % (what, name)))
    return grown, nearest, judged


def main_():
    if len(sys.argv) not in (2, 3):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    load = Load(float(sys.argv[1]))
    error = peers = None
    try:
        peers = load.run()
    except Exception:
        error = traceback.format_exc()
    if len(sys.argv) == 3:
        with open(sys.argv[2], "w") as f:
            json.dump({"%s %s" % k: v for k, v in load.series.items()}, f)
    for k, v in sorted(load.counts.items()):
        print("# %s: %d" % (k, v))
    grown, nearest, judged = judge(load.series, load.peers_known)
    c = load.counts
    gets = sum(v for k, v in c.items() if k.startswith("gets"))
    what = "%d s, %d rounds, %d gets, %d refused; killed: %d programs, %d stock peers, %d daemons; %s peers known" % (
        time.monotonic() - load.began, c["rounds"], gets, c["refusals"], c["programs killed"], c["stock peers killed"],
        c["daemons killed"], peers)
    if error:
        print(error)
        print("soak: load: failed: %s: %s" % (what, error.strip().splitlines()[-1]))
        return 1
    if grown:
        print("soak: load: failed: %s: grows: %s" % (what, "; ".join(grown)))
        return 1
    print("soak: load: %s: %s" % (what, "all flat, nearest %s with %.0f %% of what it may grow" % (nearest[1], 100 * nearest[0])
                                  if judged else "slopes not judged, that takes %d rounds" % (LEAST_SAMPLES * 4 // 3 + 1)))
    return 0


sys.exit(main_())
