#!/usr/bin/env python3
"""Stock velo nodes, 0.12.0 and 0.21.0, and ours find each other through the same discovery file."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rvdtest import *

import peer
from peer import StockPeer

SIZES = [0, 1000, 300000]
PEERS = dict(zip(("0.12", "0.21"), os.environ["RV_VELO_PEERS"].split(":")))


def text_of(handle):
    return (handle[0] << 64) | handle[1]


def workers(path):
    return {p["worker_id"] for p in json.load(open(path))["peers"]}


def both_ways(version, ours_first):
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        options = dict(discovery__kind="file", discovery__path=path)
        start = lambda: StockPeer(PEERS[version], env={"VELO_PEER_DISCOVERY": path})
        stock = None if ours_first else start()
        with Daemon("ours", **options) as d:
            stock = stock or start()
            try:
                c = d.client()
                # Stock nodes may write over each other's entries, and over ours: it comes back.
                eventually(lambda: c.worker in workers(path) and len(workers(path)) == 2, what="both entries")
                for size in SIZES:
                    # Nobody was told of anybody: each has only the other's handle.
                    h = stock.put(size, 3)
                    rep = c.get((h >> 64, h & (1 << 64) - 1), flags=8)
                    assert rep["data"] == peer.pattern(size, 3), "wrong bytes of %d" % size
                    c.free(rep)
                    h = c.put(peer.pattern(size, 4))
                    got = stock.get_release(text_of(h), 4)
                    assert got.good and got.length == size, got
                eventually(lambda: c.list("slots")["total"] == 0, what="the slots' end")
                assert d.stop() == 0
            finally:
                stock.close()
        assert c.worker not in workers(path)


def test_stock_012_and_ours_find_each_other():
    both_ways("0.12", ours_first=True)
    both_ways("0.12", ours_first=False)


def test_stock_021_and_ours_find_each_other():
    both_ways("0.21", ours_first=True)
    both_ways("0.21", ours_first=False)


def test_all_in_one_file():
    """A stock node of either release and two of ours: we get from everybody, and they from us."""
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        options = dict(discovery__kind="file", discovery__path=path)
        stock = []
        with Daemon("a", **options) as a, Daemon("b", **options) as b:
            try:
                for version in ("0.12", "0.21"):
                    stock.append(StockPeer(PEERS[version], env={"VELO_PEER_DISCOVERY": path}))
                ours = [a.client(), b.client()]
                eventually(lambda: len(workers(path)) == 4, what="four entries")
                handles = [s.put(2000, 7) for s in stock] + [text_of(c.put(peer.pattern(2000, 7), refs=9)) for c in ours]
                for h in handles:
                    for c in ours:
                        if c.worker != h >> 64:
                            rep = c.get((h >> 64, h & (1 << 64) - 1), flags=4)
                            assert rep["data"] == peer.pattern(2000, 7)
                            c.free(rep)
                    for s in stock:  # of each other they get nothing: an owner drops its answer to a stranger, which says no hello
                        if h in handles[len(stock):]:
                            assert s.get(h, 7).good
                assert b.stop() == 0 and a.stop() in (0, 3)
            finally:
                for s in stock:
                    s.close()


if __name__ == "__main__":
    main(globals())
