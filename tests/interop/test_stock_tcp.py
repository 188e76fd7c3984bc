#!/usr/bin/env python3
"""Stock velo nodes, 0.12.0 and 0.21.0, as owner and as consumer against rvd over TCP."""
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rvdtest import *
import functools

import peer
from peer import StockPeer, PeerError

SIZES = [0, 1, 65536, 524288, 524289, 5000037, 200 << 20]
PEERS = dict(zip(("0.12", "0.21"), os.environ["RV_VELO_PEERS"].split(":")))


@functools.lru_cache(maxsize=4)
def block(seed):
    return peer.pattern(1 << 24, seed)  # the pattern repeats after 16 MiB


def stock_pattern(size, seed):
    b = block(seed)
    return (b * (size // len(b) + 1))[:size]


def text_of(handle):
    return (handle[0] << 64) | handle[1]


def stock_consumer(version, known):
    """rvd stages, the stock node fetches. `known`: rvd has its address; else answers go back as they came."""
    # An owner that adds its hash to the answer is as good to a stock node as one that does not.
    with Daemon("owner", rendezvous__verify="no" if known else "xxh3") as d:
        c = d.client()
        p = StockPeer(PEERS[version])
        try:
            p.register(c.call(PEER_INFO)["payload"].decode())
            if known:
                c.call(PEER_ADD, p.info.encode(), name="stock")
            for size in SIZES:
                seed = size & 1
                h = c.put(stock_pattern(size, seed))
                t = text_of(h)
                length, refs, pinned = p.metadata(t)
                assert (length, refs, pinned) == (size, 1, False), (length, refs, pinned)
                got = p.get(t, seed)
                assert got.good and got.length == size, got
                p.ref(t)
                assert c.call(METADATA, worker=h[0], local=h[1])["refcount"] == 2
                p.detach(t, got.lease)
                got = p.get_release(t, seed)
                assert got.good, got
                got = p.get(t, seed)
                p.release(t, got.lease)
                eventually(lambda: c.list("slots")["total"] == 0, what="the slot's end after %d" % size)
                try:
                    p.metadata(t)
                    raise AssertionError("a released handle is still there")
                except PeerError as e:
                    assert "rendezvous handle not found: DataHandle(worker=%d, local=%d)" % h in str(e), e
            for ask in (lambda: p.get(t, 0), lambda: p.ref(t)):
                try:
                    ask()
                    raise AssertionError("an unknown handle was served")
                except PeerError as e:
                    assert "handle not found" in str(e), e
            assert c.list("leases")["total"] == 0
            assert d.stop() == 0
        finally:
            p.close()


def stock_owner(version):
    """The stock node stages, rvd fetches; it knows the owner from its PeerInfo."""
    with Daemon("consumer") as d:
        c = d.client()
        p = StockPeer(PEERS[version])
        try:
            c.call(PEER_ADD, p.info.encode(), name="stock")
            for size in SIZES:
                seed = size & 1
                t = int(p.put(size, seed))
                h = (t >> 64, t & (2**64 - 1))
                where = dict(worker=h[0], local=h[1])
                m = c.call(METADATA, **where)
                assert (m["len"], m["refcount"], m["pinned"]) == (size, 1, 0), m
                rep = c.get(h)
                assert rep["data"] == stock_pattern(size, seed), "wrong bytes at %d" % size
                assert rep["path_name"] == "chunked tcp"
                c.free(rep)
                c.call(REF, **where)
                assert p.metadata(t)[1] == 2
                c.call(DETACH, lease_id=rep["lease_id"], **where)
                for _ in range(2):
                    rep = c.get(h)
                    c.free(rep)
                    c.call(RELEASE, lease_id=rep["lease_id"], **where)
                try:
                    c.call(METADATA, **where)
                    raise AssertionError("a released handle is still there")
                except Refused as e:
                    assert e.rc == -2, e
            for op in (METADATA, REF):
                try:
                    c.call(op, worker=h[0], local=999999)
                    raise AssertionError("an unknown handle was served")
                except Refused as e:
                    assert e.rc == -2 and "handle not found" in e.text, e
            try:
                c.get((h[0], 999999))
                raise AssertionError("an unknown handle was served")
            except Refused as e:
                assert e.rc == -2, e
            assert d.stop() == 0
        finally:
            p.close()


def test_a_012_consumer_that_rvd_knows():
    stock_consumer("0.12", True)


def test_a_021_consumer_that_rvd_knows():
    stock_consumer("0.21", True)


def test_a_012_consumer_that_rvd_has_never_heard_of():
    stock_consumer("0.12", False)


def test_a_021_consumer_that_rvd_has_never_heard_of():
    stock_consumer("0.21", False)


def test_a_012_owner():
    stock_owner("0.12")


def test_a_021_owner():
    stock_owner("0.21")


def by_reference(version):
    """Nothing but host, port and handle: rvd says `_hello` and the stock owner answers by its own connection."""
    with Daemon("consumer") as d:
        c = d.client()
        p = StockPeer(PEERS[version])
        try:
            host, port = tcp_of(json.loads(p.info))
            t = int(p.put(1500000, 7))
            h = (t >> 64, t & (2**64 - 1))
            rep = c.get(h, host=host, port=port)
            assert rep["data"] == stock_pattern(1500000, 7)
            c.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
            eventually(lambda: gone(p, t), what="the slot's end at the stock owner")
        finally:
            p.close()


def rests(version):
    """A stock node dials when it has something to say, and may be silent after that."""
    with Daemon("owner", tcp__handshake_timeout="300ms") as d:
        overdue = lambda: sum(v for k, v in d.metrics().items() if k.startswith("rvd_tcp_connections_overdue_total"))
        c = d.client()
        p = StockPeer(PEERS[version])
        try:
            p.register(c.call(PEER_INFO)["payload"].decode())
            for size in (1000, 5000037):
                h = text_of(c.put(stock_pattern(size, 0)))
                assert p.get_release(h, 0).good
                eventually(lambda: d.metrics()["rvd_tcp_connections"] > 0)
                before = d.metrics()["rvd_tcp_connections"]
                silent = socket.create_connection(("127.0.0.1", d.tcp))
                silent.settimeout(20 * SLOW)
                assert silent.recv(1) == b""  # its deadline has passed, and so have those of the stock node's
                silent.close()
                eventually(lambda: d.metrics()["rvd_tcp_connections"] == before)
            assert overdue() == 2
            assert d.stop() == 0
        finally:
            p.close()


def test_a_012_node_may_rest_between_its_frames():
    rests("0.12")


def test_a_021_node_may_rest_between_its_frames():
    rests("0.21")


def gone(p, t):
    try:
        p.metadata(t)
        return False
    except PeerError:
        return True


def tcp_of(info):
    """Host and port in a WorkerAddress whose first tcp record is ("", ip, port, ...)."""
    b = bytes(info["worker_address"])
    at = b.index(b"\xa3tcp") + 4
    n = int.from_bytes(b[at + 1:at + 3], "big") if b[at] == 0xdc else b[at] & 15
    at += 3 if b[at] == 0xdc else 1
    value = bytearray()
    while len(value) < n:
        if b[at] == 0xcc:
            at += 1
        value.append(b[at])
        at += 1
    ip_len = value[3] & 31
    ip = value[4:4 + ip_len].decode()
    at = 4 + ip_len
    port = int.from_bytes(value[at + 1:at + 3], "big")
    return ip, port


def test_a_012_owner_known_only_by_a_reference():
    by_reference("0.12")


def test_a_021_owner_known_only_by_a_reference():
    by_reference("0.21")


if __name__ == "__main__":
    main(globals())
