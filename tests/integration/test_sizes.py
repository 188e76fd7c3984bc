#!/usr/bin/env python3
"""Sizes around 2^31 and 2^32, and 5 GiB, made and compared in memory, on both paths."""
import mmap

from rvdtest import *

BUDGET = dict(memory__registered_bytes_budget="6GiB")
PIECE = 1 << 24


def available_gib():
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) / (1 << 20)


def stage(c, size, block):
    """Fill a shared buffer in place; the handle."""
    x = c.call(ALLOC, len=size, flags=SHARED)
    assert x["pinned"], "the budget should hold it"
    with mmap.mmap(c.arenas[x["arena"]], x["arena_len"]) as m:
        for off in range(0, size, PIECE):
            n = min(PIECE, size - off)
            m[x["off"] + off:x["off"] + off + n] = block[:n]
        m[x["off"] + size - 1:x["off"] + size] = b"!"
    if x["single_use"]:
        os.close(c.arenas.pop(x["arena"]))
    r = c.call(COMMIT, token=x["token"], len=size, refs=2)
    return r["worker"], r["local"]


def compare(c, rep, size, block):
    assert rep["len"] == size
    with mmap.mmap(c.arenas[rep["arena"]], rep["arena_len"], prot=mmap.PROT_READ) as m:
        for off in range(0, size, PIECE):
            n = min(PIECE, size - off)
            last = off + n == size
            assert m[rep["off"] + off:rep["off"] + off + n - last] == block[:n - last], "wrong bytes near %d" % off
        assert m[rep["off"] + size - 1:rep["off"] + size] == b"!"


def whole(size):
    need = 2 * size / (1 << 30) + 1.5
    if available_gib() < need:
        raise Missing("%.1f GiB of memory are needed, %.1f are available" % (need, available_gib()))
    block = os.urandom(PIECE)
    with Daemon("a", ucx=True, **BUDGET) as a, Daemon("b", ucx=True, **BUDGET) as b:
        ca, cb = a.client(), b.client()
        h = stage(ca, size, block)
        where = dict(worker=h[0], local=h[1], host="127.0.0.1", port=a.tcp)
        for path in (RDMA, CHUNKED):
            rep = cb.call(GET, path=path, **where)
            compare(cb, rep, size, block)
            cb.free(rep)
            cb.call(RELEASE, lease_id=rep["lease_id"], **where)
            eventually(lambda: cb.list("status")["used_bytes"] == 0, what="the destination's end")
        eventually(lambda: ca.list("slots")["total"] == 0)
        assert a.stop() == 0 and b.stop() == 0


def test_two_gib_less_one():
    whole((1 << 31) - 1)


def test_two_gib_and_one():
    whole((1 << 31) + 1)


def test_four_gib_less_one():
    whole((1 << 32) - 1)


def test_four_gib_and_one():
    whole((1 << 32) + 1)


def test_five_gib():
    whole(5 << 30)


if __name__ == "__main__":
    main(globals())
