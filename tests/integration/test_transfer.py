#!/usr/bin/env python3
"""Stage on one daemon, fetch on another: sizes, paths, and what the metrics and lists say about it."""
from rvdtest import *


def fetch(size, path, ucx):
    data = pattern(size, size & 255)
    with Daemon("a", ucx=ucx) as a, Daemon("b", ucx=ucx) as b:
        ca, cb = a.client(), b.client()
        h = ca.put(data)
        rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=path)
        assert rep["data"] == data, "wrong bytes"
        assert rep["path"] == (2 if path == RDMA else 1), rep["path_name"]
        cb.free(rep)
        cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        eventually(lambda: a.client().list("slots")["total"] == 0, what="the slot's end")
        assert a.stop() == 0
        assert b.stop() == 0


def test_chunked_of_many_sizes():
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        for size in [1, 4095, 65536, 524287, 524288, 524289, 5000037, 20 << 20]:
            data = pattern(size, size & 255)
            h = ca.put(data)
            rep = cb.get(h, host="127.0.0.1", port=a.tcp)
            assert rep["data"] == data, "wrong bytes at size %d" % size
            assert rep["path_name"] == "chunked tcp"
            cb.free(rep)
            cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        eventually(lambda: ca.list("slots")["total"] == 0, what="the slots' end")
        assert a.stop() == 0 and b.stop() == 0


def test_rdma_of_many_sizes():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        for size in [65536, 524289, 5000037, 70 << 20]:
            data = pattern(size, size & 255)
            h = ca.put(data)
            rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=RDMA)
            assert rep["data"] == data, "wrong bytes at size %d" % size
            assert rep["path_name"] == "ucx tcp"
            cb.free(rep)
            cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        eventually(lambda: ca.list("slots")["total"] == 0, what="the slots' end")
        assert ca.list("status")["paths"]["ok"] == 4
        assert cb.list("status")["paths"]["ok"] == 4
        assert a.stop() == 0 and b.stop() == 0


def test_zero_length_stages_stats_fetches_and_releases():
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        h = ca.put(b"")
        where = dict(worker=h[0], local=h[1], host="127.0.0.1", port=a.tcp)
        assert cb.call(METADATA, **where)["len"] == 0
        rep = cb.get(h, host="127.0.0.1", port=a.tcp)
        assert rep["len"] == 0 and rep["token"] == 0
        cb.call(RELEASE, lease_id=rep["lease_id"], **where)
        try:
            cb.call(METADATA, **where)
            raise AssertionError("still there")
        except Refused as e:
            assert e.rc == -2 and e.text.endswith(": released"), e


if __name__ == "__main__":
    main(globals())
