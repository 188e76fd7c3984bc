#!/usr/bin/env python3
"""Endpoints between our own nodes over UCX: made early or at first use, listed, replaced, and closed when idle."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rvdtest import *

QUICK_S = 3.0  # a read that has to wait for UCX's keepalive takes some twenty


def closed(d, reason):
    return d.metrics()['rvd_endpoints_closed_total{reason="%s"}' % reason]


def know(ca, cb):
    """Each knows the other."""
    ca.call(PEER_ADD, cb.call(PEER_INFO)["payload"], name="b")
    cb.call(PEER_ADD, ca.call(PEER_INFO)["payload"], name="a")


def read(owner, consumer, **where):
    """One payload by RDMA, in time."""
    data = pattern(100000)
    h = owner.put(data)
    began = time.monotonic()
    rep = consumer.get(h, path=RDMA, **where)
    took = time.monotonic() - began
    assert rep["data"] == data and rep["path"] == 2
    assert took < QUICK_S * SLOW, "a read took %.1f s" % took
    consumer.free(rep)
    consumer.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])


def test_an_endpoint_is_made_at_its_first_use():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        know(ca, cb)
        time.sleep(0.2)
        assert a.metrics()["rvd_endpoints"] == 0 and cb.list("endpoints")["total"] == 0
        read(ca, cb)
        e, = cb.list("endpoints")["endpoints"]
        assert e["peer"] == "a" and e["state"] == "up" and e["path"] == "ucx tcp" and e["emulated"] is True
        assert (e["gets"], e["sends"]) == (0, 0) and e["idle_s"] < 5 * SLOW
        code, out, _ = rvctl(b, "endpoints")
        assert code == 0 and b"ucx tcp" in out and b"EMULATED" in out and len(out.splitlines()) == 2, out
        assert a.stop() == 0 and b.stop() == 0


def test_or_as_soon_as_the_peer_is_known():
    with Daemon("a", ucx=True, ucx__eager_endpoints="yes") as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        know(ca, cb)
        eventually(lambda: {e["state"] for e in ca.list("endpoints")["endpoints"]} == {"up"}, what="the endpoint")
        assert b.metrics()["rvd_endpoints"] == 0
        assert a.stop() == 0 and b.stop() == 0


def test_an_eager_endpoint_that_is_never_used_is_closed_too():
    with Daemon("a", ucx=True, ucx__eager_endpoints="yes", ucx__ep_idle_timeout="500ms") as a, Daemon("b", ucx=True) as b:
        know(a.client(), b.client())
        eventually(lambda: closed(a, "idle") and a.metrics()["rvd_endpoints"] == 0, what="the close")
        assert a.stop() == 0 and b.stop() == 0


def test_what_is_idle_is_closed_on_both_sides_and_neither_stalls_after_it():
    """Either side reads first, with one that has a timeout and with two."""
    timeout = "%dms" % (500 * SLOW)  # on a busy machine two reads may lie further apart
    for timeout_of_b in ("none", timeout):
        with Daemon("a", ucx=True, ucx__ep_idle_timeout=timeout) as a, \
                Daemon("b", ucx=True, ucx__ep_idle_timeout=timeout_of_b) as b:
            ca, cb = a.client(), b.client()
            know(ca, cb)
            for i in range(4):
                read(ca, cb)
                read(cb, ca)
                eventually(lambda: a.metrics()["rvd_endpoints"] + b.metrics()["rvd_endpoints"] == 0, what="the close")
                for owner, consumer in ((ca, cb), (cb, ca))[::1 if i & 1 else -1]:
                    for _ in range(3):
                        read(owner, consumer)
            assert closed(a, "error") + closed(b, "error") == 0
            assert closed(a, "idle") + closed(a, "goodbye") > 0
            assert a.stop() == 0 and b.stop() == 0


def test_a_busy_endpoint_stays():
    with Daemon("a", ucx=True, ucx__ep_idle_timeout="500ms") as a, Daemon("b", ucx=True, ucx__ep_idle_timeout="500ms") as b:
        ca, cb = a.client(), b.client()
        know(ca, cb)
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            read(ca, cb)
            time.sleep(0.1)
        assert closed(b, "idle") == 0 and b.metrics()["rvd_endpoints"] == 1
        assert a.stop() == 0 and b.stop() == 0


def test_a_peer_that_comes_back_is_reached_anew():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        know(ca, cb)
        read(ca, cb)
        a.kill()
        eventually(lambda: closed(b, "error") == 1, what="the error")
        a.restart()
        ca = a.client()
        know(ca, cb)
        read(ca, cb)
        read(cb, ca)
        assert a.stop() == 0 and b.stop() == 0


if __name__ == "__main__":
    main(globals())
