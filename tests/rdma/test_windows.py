#!/usr/bin/env python3
"""Keys that are memory windows: bound to one queue pair, dead with the lease. Soft-RoCE checks everything about a
window but its bounds. Runs inside scripts/rdma-vm."""
import json

from rdmatest import *
from hostile import Hostile, Raw

OK = 'velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'
NOT_PINNED = 'velo_rendezvous_rdma_path_total{path="chunked",reason="not_pinned"}'


def windows(name, end, **options):
    return verbs_node(name, end, verbs__fence="window", rendezvous__call_timeout="120s", **options)


def get(c, h, **f):
    g = c.get(h, **f)
    c.free(g)
    c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
    return g


BROKEN = []


def get_by_rdma(c, h):
    """A get that must go by RDMA. Soft-RoCE breaks a queue pair now and then: once in some thousand windows that is tried again."""
    while True:
        try:
            return get(c, h, path=RDMA, timeout_ns=int(60e9))
        except Refused as e:
            BROKEN.append(str(e))
            print("# tried again: %s" % e, flush=True)
            assert len(BROKEN) <= 3, BROKEN
            time.sleep(1)


def refused(how):
    return "remote access error" in how or "invalid request" in how or "remote operation error" in how


def test_gets_through_windows_of_every_size():
    data = pattern(16 << 20)
    with windows("a", 1, rendezvous__rdma_min_bytes="1") as a, windows("b", 2) as b:
        assert "verbs rxe0:1 gid 1, fence window" in a.text(), a.text()
        assert "it lets peers read over a window's end: with its window a consumer may read all of the arena" in a.text()
        ca, cb = a.client(), b.client()
        know(cb, a)
        sizes = [1, 2, 4095, 4096, 4097, 65536, 65537, 1 << 20, (3 << 20) + 5, 16 << 20]
        for size in sizes:
            h = ca.put(data[:size])
            g = get_by_rdma(cb, h)
            assert g["data"] == data[:size], "wrong bytes"
        assert a.metrics()[OK] >= len(sizes)
        # More binds than one window's key has values, on one queue pair, the windows used again and again.
        small = [pattern(4096 + i) for i in range(10)]
        for i in range(600):
            d = small[i % 10]
            assert get_by_rdma(cb, ca.put(d))["data"] == d, "wrong bytes, round %d" % i
        h = ca.put(data[:65536])
        g = cb.get(h, path=RDMA)
        row = ca.list("leases")["leases"][0]
        assert (row["kind"], row["fence"]) == ("rdma", "window"), row
        cb.free(g)
        cb.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        assert b.stop() == 0 and a.stop() == 0, a.text()


def test_hostile_accesses_are_refused():
    data = pattern(1 << 20)
    with windows("a", 1) as a, windows("b", 2) as b, windows("c", 2) as c:
        ca, cb, cc = a.client(), b.client(), c.client()
        know(cb, a)
        know(cc, a)
        h = ca.put(data, refs=100)
        assert get(cb, h, path=RDMA)["data"] == data
        over = b.text().count("is over")
        raw = Raw(a, cc.worker)

        def attack(what, op, other=False, twist=0, after=None):
            """An access that must fail, by one who holds a good key."""
            with Hostile(a, cc.worker, ca.worker) as q, Hostile(a, cc.worker, ca.worker, reactor=10) as q2:
                addr, length, key, lease = raw.acquire(h, q.qp)
                assert length == len(data)
                if op != "nothing":
                    assert q.access("read", addr, 32, key) == ("done", data[:32]), "its own key must work"
                if after:
                    after(lease)
                how, _ = (q2 if other else q).access(op, addr, 4096, key ^ twist)
                print("# %s: %s" % (what, how), flush=True)
                assert refused(how), (what, how)
                if not after:
                    raw.release(h, lease)
            g = cb.get(h, path=RDMA)
            assert g["data"] == data, "the staged bytes changed after " + what
            cb.free(g)
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=g["lease_id"])

        attack("WRITE", "write")
        attack("atomic", "atomic")
        attack("a guessed key", "read", twist=0x100)
        attack("another bind of the same window", "read", twist=1)
        attack("another queue pair of the same consumer", "read", other=True)
        attack("READ after release", "read", after=lambda lease: raw.release(h, lease))
        # What names no queue pair of its own gets chunks.
        before = a.metrics()[NOT_PINNED]
        with Hostile(a, cc.worker, ca.worker) as q:
            for qp in (None, q.qp ^ 1, [e for e in [q.qp + 1000]][0]):
                assert "Ready" in raw.ask(h, qp), qp
            other = Raw(a, cb.worker)
            assert "Ready" in other.ask(h, q.qp), "a window on another consumer's queue pair"
            other.close()
        assert a.metrics()[NOT_PINNED] == before + 4
        assert b.text().count("is over") == over, "an honest consumer's connection was broken:\n" + b.text()
        assert get(cb, h, path=RDMA)["data"] == data
        raw.close()
        for n in (c, b, a):
            assert n.stop() == 0, n.text()


def test_a_lease_that_ran_out_cannot_be_read_any_more():
    data = pattern(1 << 20)
    with windows("a", 1, rendezvous__lease_timeout="4s", rendezvous__quarantine="1h") as a, windows("b", 2) as b:
        ca, cb = a.client(), b.client()
        know(cb, a)
        get(cb, ca.put(data), path=RDMA)
        h = ca.put(data)
        raw = Raw(a, cb.worker)
        with Hostile(a, cb.worker, ca.worker) as q:
            addr, _, key, _ = raw.acquire(h, q.qp)
            assert q.access("read", addr, 32, key) == ("done", data[:32])
            eventually(lambda: ca.list("leases")["total"] == 0, 3, "the end of the lease")
            eventually(lambda: ca.list("arenas")["resting_blocks"] == 0)
            how, got = q.access("read", addr, 32, key)
            assert refused(how) and not got, (how, got)
        raw.close()
        assert b.stop() == 0 and a.stop() == 0, a.text()


def test_windows_go_before_their_queue_pair_and_leases_after_it():
    """The consumer's queue pair breaks, and the consumer dies, while it holds leases."""
    data = pattern(1 << 20)
    with windows("a", 1, rendezvous__lease_timeout="4s") as a, windows("b", 2) as b:
        ca, cb = a.client(), b.client()
        know(cb, a)
        h = ca.put(data, refs=10)
        get(cb, h, path=RDMA)
        raw = Raw(a, cb.worker)
        with Hostile(a, cb.worker, ca.worker) as q:
            addr, _, key, first = raw.acquire(h, q.qp)
            _, _, _, second = raw.acquire(h, q.qp)
            assert refused(q.access("read", addr, 32, key ^ 0x300)[0])
            eventually(lambda: "an access was refused" in a.text(), what="the end of its queue pair")
            raw.release(h, first)
        # The second is left to the reaper.
        eventually(lambda: ca.list("leases")["total"] == 0, 3, "the end of the lease")
        with Hostile(a, cb.worker, ca.worker) as q:
            addr, _, key, _ = raw.acquire(h, q.qp)
            assert q.access("read", addr, 32, key) == ("done", data[:32])
        raw.close()
        b.kill()
        eventually(lambda: ca.list("leases")["total"] == 0, 3, "the end of the lease")
        assert a.stop() == 0, a.text()


def test_a_shutdown_ends_windows_that_are_in_use():
    data = pattern(1 << 20)
    with windows("a", 1, shutdown__timeout="300ms") as a, windows("b", 2) as b:
        ca, cb = a.client(), b.client()
        know(cb, a)
        h = ca.put(data, refs=10)
        get(cb, h, path=RDMA)
        raw = Raw(a, cb.worker)
        with Hostile(a, cb.worker, ca.worker) as q:
            addr, _, key, _ = raw.acquire(h, q.qp)
            assert q.access("read", addr, 32, key) == ("done", data[:32])
            a.stop()
            assert "could not be revoked" not in a.text() and "still registered" not in a.text(), a.text()
            how, _ = q.access("read", addr, 32, key)
            assert how != "done", how
        raw.close()
        assert b.stop() == 0, b.text()


if __name__ == "__main__":
    main(globals())
