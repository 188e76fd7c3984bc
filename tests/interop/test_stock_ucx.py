#!/usr/bin/env python3
"""Stock velo nodes over UCX (tcp lanes): messages as active messages, and RDMA in both roles, at their own blob versions."""
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rvdtest import *
import functools
import peer
from peer import StockPeer, PeerError

PEERS = dict(zip(("0.12", "0.21"), os.environ["RV_VELO_PEERS"].split(":")))
BLOB = {"0.12": 1, "0.21": 2}
ROUNDS = int(os.environ.get("RV_ROUNDS", "20"))
BIG = 64 << 20
SIZES = [0, 1, 4000, 262144, 262145, 1 << 20, 8 << 20]
ECHO_MAX = (1 << 20) - 19  # a response to more does not fit in an active message: a stock node drops it


@functools.lru_cache(maxsize=4)
def block(seed):
    return peer.pattern(1 << 24, seed)  # the pattern repeats after 16 MiB


def stock_pattern(size, seed):
    b = block(seed)
    return (b * (size // len(b) + 1))[:size]


def node(version, **options):
    options.setdefault("memory__initial_arena_bytes", "64MiB")
    return Daemon("n", ucx=True, ucx__blob_version=BLOB[version], **options)


class Serving:
    """A program that serves `echo` and `size` until the end of the block."""

    def __init__(self, d):
        self.client, self.stop = d.client(), threading.Event()
        for name in ("echo", "size"):
            self.client.call(SERVE, name=name)
        self.client.sock.settimeout(0.2)
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            try:
                self.client.serve_one(lambda name, data: data if name == "echo" else b"%d" % len(data))
            except socket.timeout:
                pass
            except EOFError:
                return  # the node has stopped

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def introduce(c, p):
    """Each knows the other. The stock node's WorkerId."""
    p.register(c.call(PEER_INFO)["payload"].decode())
    return c.call(PEER_ADD, p.info.encode(), name="stock")["worker"]


def messages(version, transports, rounds=ROUNDS):
    """Both ways, small and staged; what the stock node prefers decides its direction, what it has ours."""
    with node(version) as d, Serving(d):
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            stock = introduce(c, p)
            me = json.loads(c.call(PEER_INFO)["payload"])["instance_id"]
            for i in range(rounds):
                for size in (SIZES if i == 0 else SIZES[:4]):
                    data = stock_pattern(size, i & 1)
                    assert c.message("len", data, worker=stock).split()[0] == b"%d" % size
                    if size <= ECHO_MAX:
                        assert c.message("echo", data, worker=stock) == data, size
                    c.message("len", data, kind=SYNC, worker=stock)
                    assert p.call(me, "echo" if size <= ECHO_MAX else "size", size, i & 1).verdict != "bad", size
            for ask, want in ((lambda: c.message("nobody", b"x", worker=stock), Refused),
                              (lambda: p.call(me, "nobody", 10, 1), PeerError)):
                try:
                    ask()
                    raise AssertionError("a handler that does not exist answered")
                except want as e:
                    assert "Handler 'nobody' not found" in str(e), e
            assert p.call(me, "echo", ECHO_MAX, 7).verdict == "ok"
            if "tcp" in transports:
                assert p.call(me, "echo", ECHO_MAX + 1, 7).verdict == "ok", "a long answer goes by TCP"
            else:
                try:
                    p.call(me, "echo", ECHO_MAX + 1, 7)
                    raise AssertionError("an answer longer than a message arrived")
                except PeerError as e:
                    assert "are more than fit" in str(e), e
            assert "_rv_acquire" in p.handlers(me)
            if transports.startswith("ucx"):
                p.ping(me)  # it pings whom it has an endpoint to
            if "tcp" not in transports:
                assert not c.list("status")["tcp_connections"], "a node without a TCP address was dialed"
        finally:
            p.close()
        eventually(lambda: not c.list("status")["used_bytes"], what="every buffer back")
        assert d.stop() == 0


def stock_reads_ours(version, transports, size=BIG):
    """The stock node GETs our pinned slot; its own counter says by which path."""
    with node(version) as d:
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            introduce(c, p)
            for i in range(ROUNDS):
                h = c.put(stock_pattern(size, i & 1))
                got = p.get_pinned((h[0] << 64) | h[1], i & 1)
                assert got.good and got.length == size, got
            assert p.counters() == {"rdma/ok": ROUNDS}, p.counters()
            eventually(lambda: c.list("slots")["total"] == 0, what="the slots' end")
            assert c.list("leases")["total"] == 0
            assert d.stop() == 0
        finally:
            p.close()


def we_read_theirs(version, transports, size=BIG):
    """We GET from a stock node's pinned slot."""
    with node(version) as d:
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            introduce(c, p)
            for i in range(ROUNDS):
                t = p.put_pinned(size, i & 1)
                h = (t >> 64, t & (2**64 - 1))
                rep = c.get(h, path=RDMA)
                assert rep["data"] == stock_pattern(size, i & 1), "wrong bytes"
                assert rep["path_name"] == "ucx tcp", rep["path_name"]
                c.free(rep)
                c.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
                eventually(lambda: gone(p, t), what="the slot's end at the stock owner")
            assert p.counters().get("rdma/ok") == ROUNDS, p.counters()
            assert d.stop() == 0
        finally:
            p.close()


def gone(p, t):
    try:
        p.metadata(t)
        return False
    except PeerError:
        return True


def chunks(version, transports):
    """Without RDMA everything goes in chunks, over active messages where there is nothing else."""
    with node(version, rendezvous__enabled="no") as d:
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            introduce(c, p)
            for size in (0, 1, 524288, 524289, 5000037):
                h = c.put(stock_pattern(size, 1))
                got = p.get_release((h[0] << 64) | h[1], 1)
                assert got.good and got.length == size, got
                t = p.put(size, 2)
                h = (t >> 64, t & (2**64 - 1))
                rep = c.get(h)
                assert rep["data"] == stock_pattern(size, 2), "wrong bytes at %d" % size
                c.free(rep)
                c.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
                eventually(lambda: gone(p, t), what="the slot's end at the stock owner")
            assert d.stop() == 0
        finally:
            p.close()


def draining(version, transports):
    """Whoever drains echoes the header of what it refuses on the reply endpoint, and answers pings."""
    with node(version) as d, Serving(d):
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            stock = introduce(c, p)
            me = json.loads(c.call(PEER_INFO)["payload"])["instance_id"]
            assert p.call(me, "echo", 10, 1).verdict == "ok"
            assert c.message("echo", b"x", worker=stock) == b"x"
            p.gate()
            try:
                c.message("echo", b"x", worker=stock)
                raise AssertionError("a gated node served a call")
            except Refused as e:
                assert "shutting down" in e.text, e
            rvctl(d, "drain")
            try:
                p.call(me, "echo", 10, 1)
                raise AssertionError("a draining node served a call")
            except PeerError as e:
                assert "peer is shutting down" in str(e), e
            p.ping(me)
        finally:
            p.close()
        assert d.stop() == 0


def the_lease_runs_out(version, transports, size=192 << 20):
    """A lease much shorter than the read. Owners lose it in the middle: ours lives on, and so does our consumer."""
    with node(version, rendezvous__lease_timeout="30ms", rendezvous__quarantine="30ms") as d:
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            introduce(c, p)
            for i in range(3):
                h = c.put(stock_pattern(size, 1))
                try:
                    got = p.get_pinned((h[0] << 64) | h[1], 1)
                    assert got.length == size
                except PeerError:
                    pass  # its lease is gone, and perhaps the slot
                try:
                    c.call(DROP, worker=h[0], local=h[1])
                except Refused as e:
                    assert e.rc == -2, e
            assert c.list("leases")["total"] == 0
        finally:
            p.close()
        assert d.stop() == 0
    with node(version) as d:
        c = d.client()
        for i in range(3):
            p = StockPeer(PEERS[version], transports=transports, env={"VELO_PEER_LEASE_MS": "30"})
            try:
                introduce(c, p)
                t = p.put_pinned(size, 1)
                h = (t >> 64, t & (2**64 - 1))
                try:
                    rep = c.get(h, path=RDMA, timeout_ns=20 * 10**9)
                    assert rep["data"] == stock_pattern(size, 1), "wrong bytes"
                    c.free(rep)
                except Refused as e:
                    assert e.rc in (-128, -2, -5, -95, -104, -110, -113, -121), e  # never a crash, never wrong bytes
            finally:
                p.close()
        eventually(lambda: not c.list("status")["used_bytes"], 40, "the destinations")
        assert d.stop() == 0


def both_ends(fn, *args):
    for version in ("0.12", "0.21"):
        for transports in args:
            globals()["test_%s_%s_%s" % (fn.__name__, version.replace(".", ""), transports.replace(",", "_then_"))] = \
                functools.partial(fn, version, transports)


both_ends(messages, "ucx", "ucx,tcp", "tcp,ucx")
both_ends(stock_reads_ours, "tcp,ucx", "ucx")
both_ends(we_read_theirs, "tcp,ucx", "ucx")
both_ends(chunks, "ucx", "ucx,tcp")
both_ends(draining, "ucx", "ucx,tcp")
both_ends(the_lease_runs_out, "tcp,ucx")


if __name__ == "__main__":
    main(globals())
