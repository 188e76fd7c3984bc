#!/usr/bin/env python3
"""A network that loses, repeats and reorders packets, and a link that goes down: time is lost, no byte is.

Runs inside scripts/rdma-vm."""
import contextlib

from rdmatest import *


@contextlib.contextmanager
def netem(*how):
    """Both directions."""
    for dev in ("v0", "v1"):
        sh("tc", "qdisc", "add", "dev", dev, "root", "netem", *how)
    try:
        yield
    finally:
        for dev in ("v0", "v1"):
            sh("tc", "qdisc", "del", "dev", dev, "root")


REORDER = ("delay", "2ms", "1ms", "reorder", "25%", "50%")
ALL = REORDER + ("loss", "1%", "duplicate", "2%")
PATIENT = dict(rendezvous__call_timeout="120s")


def moved(c, ca, a, data, **f):
    h = ca.put(data)
    g = c.get(h, **f)
    assert g["data"] == data, "wrong bytes"
    c.free(g)
    c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
    return g["path_name"]


def test_over_tcp_every_byte_arrives():
    data = pattern(3 << 20)
    with Daemon("a", tcp__listen=HOSTS[1][0] + ":0", **PATIENT) as a, Daemon("b", tcp__listen=HOSTS[2][0] + ":0", **PATIENT) as b:
        ca, cb = a.client(), b.client()
        cb.sock.settimeout(300)
        know(cb, a)
        for how in (REORDER, ("duplicate", "10%"), ALL):
            with netem(*how):
                for size in (0, 1, 65536, 524289, len(data)):
                    moved(cb, ca, a, data[:size])
        eventually(lambda: ca.list("slots")["total"] == 0 and ca.list("leases")["total"] == 0, 30)
        assert b.stop() == 0 and a.stop() == 0


def test_over_verbs_every_byte_arrives_in_spite_of_reordering_and_repeats():
    data = pattern(1 << 20)
    with verbs_node("a", 1, **PATIENT) as a, verbs_node("b", 2, **PATIENT) as b:
        ca, cb = a.client(), b.client()
        cb.sock.settimeout(300)
        know(cb, a)
        paths = set()
        for how in (REORDER, ("duplicate", "10%"), ALL):
            with netem(*how):
                for _ in range(2):
                    paths.add(moved(cb, ca, a, data))
        print("# " + ", ".join(sorted(paths)), flush=True)
        assert any("verbs" in p for p in paths), paths
        assert b.stop() == 0 and a.stop() == 0


def test_a_link_that_is_down_for_a_while_costs_a_get_over_tcp_time_and_no_bytes():
    data = pattern(24 << 20)
    with Daemon("a", tcp__listen=HOSTS[1][0] + ":0", **PATIENT) as a, Daemon("b", tcp__listen=HOSTS[2][0] + ":0", **PATIENT) as b:
        ca, cb = a.client(), b.client()
        cb.sock.settimeout(300)
        know(cb, a)
        moved(cb, ca, a, data[:1000])
        with netem("rate", "40mbit"):  # slow enough to be cut in the middle
            t = link_down(after=1, seconds=3)
            began = time.monotonic()
            moved(cb, ca, a, data)
            assert time.monotonic() - began > 3, "it was over before the link went down"
            t.join()
        moved(cb, ca, a, data[:1000])
        assert b.stop() == 0 and a.stop() == 0


def test_a_link_that_stays_down_ends_connections_and_calls_and_comes_back():
    data = pattern(1 << 20)
    short = dict(tcp__stall_timeout="3s", rendezvous__call_timeout="5s")
    with Daemon("a", tcp__listen=HOSTS[1][0] + ":0", **short) as a, Daemon("b", tcp__listen=HOSTS[2][0] + ":0", **short) as b:
        ca, cb = a.client(), b.client()
        cb.sock.settimeout(300)
        know(cb, a)
        moved(cb, ca, a, data)
        h = ca.put(data)
        t = link_down(after=0, seconds=12)
        time.sleep(0.5)
        began = time.monotonic()
        try:
            cb.get(h)
            raise AssertionError("through a link that is down")
        except Refused as e:
            assert e.rc in (-110, -113, -104), e
        assert time.monotonic() - began < 5 + 5 * SLOW
        eventually(lambda: b.metrics()["rvd_tcp_connections"] == 0 and a.metrics()["rvd_tcp_connections"] == 0, 30,
                   "the end of connections without a link")
        t.join()

        def again():
            try:
                return cb.get(h)["data"] == data
            except Refused:
                return False
        eventually(again, 10, "the way back")
        assert b.stop() == 0


if __name__ == "__main__":
    if "RDMA_VM" not in os.environ:
        sys.exit("this runs inside scripts/rdma-vm")
    main(globals())
