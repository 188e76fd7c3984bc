#!/usr/bin/env python3
"""Registrations that fail, whichever it is: payloads go in chunks instead, nobody gets wrong bytes, and it recovers by itself."""
import fcntl

from rvdtest import *
from rvlib import DRAINED, Lib, RvError

FAIL = os.path.join(BUILD, "tests", "integration", "libfail_map.so")


def failing(first, nr=1):
    """The environment of a daemon whose registrations fail from the first-th on."""
    preload = " ".join(x for x in (os.environ.get("LD_PRELOAD", ""), FAIL) if x)
    asan = os.environ.get("ASAN_OPTIONS", "")
    return {"LD_PRELOAD": preload, "RV_FAIL_FROM": str(first), "RV_FAIL_NR": str(nr), "ASAN_OPTIONS": asan + ":verify_asan_link_order=0"}


def failed(d):
    return d.metrics()['rvd_registration_failures_total{reason="map"}']


def region_of(s, data):
    """A region of it, or None: it was refused."""
    fd = os.memfd_create("t", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, 1033, 2)
    try:
        return s.region(fd, 0, len(data))
    except RvError as e:
        assert e.rc in (-5, -12, -28), e
        os.close(fd)
        return None


def use(a, b, data):
    """Everything that registers: slots of the pool, buffers, landing blocks, regions. How gets came."""
    ca, cb, paths = a.client(), b.client(), []
    for i in range(3):
        h = ca.put(data, refs=3)
        for _ in range(2):
            g = cb.get(h, host="127.0.0.1", port=a.tcp)
            assert g["data"] == data, "wrong bytes"
            paths.append(g["path_name"])
            cb.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
            cb.free(g)
        assert ca.get(h)["data"] == data
        ca.call(DROP, worker=h[0], local=h[1])
    s = Lib(a.socket)
    r = region_of(s, data)
    if r:
        h = r.stage(0, len(data))
        g = cb.get(h, host="127.0.0.1", port=a.tcp)
        assert g["data"] == data, "wrong bytes"
        paths.append(g["path_name"])
        cb.free(g)
        cb.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        assert r.unregister(60) in (DRAINED, 1)
    s.close()
    ca.close()
    cb.close()
    return paths


def in_the_self_check():
    """How many registrations the start's check of UCX makes. One that fails there is the end of a start that was told to use UCX."""
    k = 1
    while True:
        d = Daemon("a", ucx=True, env=failing(k), wait=False)
        try:
            eventually(lambda: d.proc.poll() is not None or " serves as worker " in d.text())
            if d.proc.poll() is None:
                assert d.stop() == 0
                return k - 1
            assert d.proc.returncode == 1 and "self-check: memory cannot be mapped: out of memory" in d.text(), d.text()
        finally:
            d.close()
        k += 1


def nth(who):
    """One registration of the owner's or of the consumer's fails, the first, the second, and so on until one is beyond the last."""
    data, seen = pattern(600000), 0
    k = in_the_self_check() + 1
    assert k > 1
    while True:
        env = {"a": None, "b": None}
        env[who] = failing(k)
        with Daemon("a", ucx=True, env=env["a"]) as a, Daemon("b", ucx=True, env=env["b"]) as b:
            use(a, b, data)
            n = failed({"a": a, "b": b}[who])
            assert n <= 1, n
            seen += n > 0
            paths = use(a, b, data)  # it was one; what comes after it is as if nothing had been
            assert any("ucx" in p for p in paths), (k, paths)
            assert a.stop() == 0 and b.stop() == 0
        if not n:
            break
        k += 1
    assert seen, "no registration was made to fail"
    print("# %d in the check of UCX, then each of %d" % (in_the_self_check(), seen))


def test_each_registration_of_an_owner_may_fail():
    nth("a")


def test_each_registration_of_a_consumer_may_fail():
    nth("b")


def test_where_none_succeeds_everything_goes_in_chunks():
    data, first = pattern(600000), in_the_self_check() + 1
    with Daemon("a", ucx=True, env=failing(first, 10**9)) as a, Daemon("b", ucx=True, env=failing(first, 10**9)) as b:
        assert all(p == "chunked tcp" for p in use(a, b, data))
        assert failed(a) > 0
        assert a.stop() == 0 and b.stop() == 0


if __name__ == "__main__":
    main(globals())
