#!/usr/bin/env python3
"""An endpoint that neither side used is closed, and nothing is lost: stock nodes with TCP beside UCX."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_stock_ucx import *

CLOSED = 'rvd_endpoints_closed_total{reason="idle"}'
QUICK_S = 3.0  # a message that has to wait for UCX's keepalive takes some twenty


def quick(fn):
    began = time.monotonic()
    out = fn()
    took = time.monotonic() - began
    assert took < QUICK_S * SLOW, "it took %.1f s" % took
    return out


def idle_close(version, transports, who):
    """`who` speaks first after the close: us, the stock node, or its GET."""
    with node(version, ucx__ep_idle_timeout="500ms") as d, Serving(d):
        c = d.client()
        p = StockPeer(PEERS[version], transports=transports)
        try:
            stock = introduce(c, p)
            me = json.loads(c.call(PEER_INFO)["payload"])["instance_id"]
            for n in range(1, 4):
                h = c.put(stock_pattern(100000, 1))
                assert p.get_pinned((h[0] << 64) | h[1], 1).good
                t = p.put_pinned(100000, 2)
                h = (t >> 64, t & (2**64 - 1))
                rep = c.get(h, path=RDMA)  # our endpoint is made
                c.free(rep)
                c.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
                assert p.call(me, "echo", 100, 1).verdict == "ok"
                eventually(lambda: d.metrics()[CLOSED] >= n, what="the idle close")
                eventually(lambda: d.metrics()["rvd_endpoints"] == 0, what="the endpoint's end")
                assert c.list("endpoints")["total"] == 0
                if who == "us":
                    assert quick(lambda: c.message("echo", b"x", worker=stock)) == b"x"
                if who == "get":
                    before = p.counters()["rdma/ok"]
                    h = c.put(stock_pattern(1 << 20, 1))
                    assert quick(lambda: p.get_pinned((h[0] << 64) | h[1], 1)).good
                    assert p.counters()["rdma/ok"] == before + 1, p.counters()
                for i in range(10):
                    assert quick(lambda: p.call(me, "echo", 100, i & 1)).verdict == "ok"
                if transports.startswith("ucx"):
                    quick(lambda: p.ping(me))
                assert quick(lambda: c.message("echo", b"y", worker=stock)) == b"y"
            assert not d.metrics()['rvd_endpoints_closed_total{reason="error"}']
        finally:
            p.close()
        assert d.stop() == 0


def stays(version):
    """Where there is no TCP the peer cannot be told, so the endpoint stays."""
    with node(version, ucx__ep_idle_timeout="500ms") as d, Serving(d):
        c = d.client()
        p = StockPeer(PEERS[version], transports="ucx")
        try:
            introduce(c, p)
            me = json.loads(c.call(PEER_INFO)["payload"])["instance_id"]
            assert p.call(me, "echo", 100, 1).verdict == "ok"
            time.sleep(2.5)
            assert d.metrics()[CLOSED] == 0 and d.metrics()["rvd_endpoints"] >= 1
            for i in range(10):
                assert quick(lambda: p.call(me, "echo", 100, 1)).verdict == "ok"
            # Who waits for an answer longer than the timeout gets it.
            slow = d.client()
            slow.call(SERVE, name="slow")
            t = threading.Thread(target=lambda: slow.serve_one(lambda name, data: time.sleep(2) or b"done"))
            t.start()
            assert p.call(me, "slow", 10, 1).text == "done"
            t.join()
        finally:
            p.close()
        assert d.stop() == 0


for name in [n for n in globals() if n.startswith("test_")]:
    del globals()[name]  # the other file's
for version in ("0.12", "0.21"):
    for transports in ("ucx,tcp", "tcp,ucx"):
        for who in ("us", "peer", "get"):
            globals()["test_%s_%s_%s_first" % (version.replace(".", ""), transports.replace(",", "_then_"), who)] = \
                functools.partial(idle_close, version, transports, who)
    globals()["test_%s_without_tcp_it_stays" % version.replace(".", "")] = functools.partial(stays, version)


if __name__ == "__main__":
    main(globals())
