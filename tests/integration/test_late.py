#!/usr/bin/env python3
"""A GET that is late is an error at the caller's deadline, and its destination is nobody else's until it is over."""
from rvdtest import *

SIZE = 300 << 20
DATA = pattern(1 << 20) * (SIZE >> 20)


def late_get(a, b, ca, cb, h):
    """Stop the owner in the middle of a GET; the pending request is answered -ETIMEDOUT meanwhile."""
    for attempt in range(20):
        rid = cb.send(GET, worker=h[0], local=h[1], path=RDMA, timeout_ns=1500 * 10**6)
        time.sleep(0.03 + 0.01 * (attempt % 5))
        a.proc.send_signal(signal.SIGSTOP)
        rep = cb.recv()
        assert rep["id"] == rid
        watch = b.client()
        used = watch.list("status")["used_bytes"]
        watch.close()
        if rep["rc"] == -110 and b"RDMA read" in rep["payload"]:
            assert used >= SIZE, "the destination of a running GET was given back"
            return
        # Too early or too late to catch it: let it go and try again.
        a.proc.send_signal(signal.SIGCONT)
        if not rep["rc"]:
            cb.free(rep)
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        eventually(lambda: cb.list("status")["gets_under_way"] == 0, seconds=30)
    raise AssertionError("no GET was caught in the middle")


def run(end):
    opts = dict(rendezvous__lease_timeout="20s", memory__registered_bytes_budget="2GiB")
    with Daemon("a", ucx=True, **opts) as a, Daemon("b", ucx=True, **opts) as b:
        ca, cb = a.client(), b.client()
        h = ca.put(DATA, refs=1000)
        rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=RDMA)
        assert rep["data"] == DATA
        cb.free(rep)
        cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        late_get(a, b, ca, cb, h)
        end(a)
        # Whether the fabric completes it or its connection dies: then, and only then, the range comes back.
        eventually(lambda: cb.list("status")["gets_under_way"] == 0, seconds=40, what="the GET's end")
        eventually(lambda: cb.list("status")["used_bytes"] == 0, what="the destination")
        k = cb.put(b"works")
        assert cb.get(k)["data"] == b"works"
        if a.proc.poll() is None:
            eventually(lambda: ca.list("status")["leases"]["rdma"] == 0, seconds=30, what="the lease's end")
            assert a.stop() == 0
        assert b.stop() == 0


def test_the_owner_goes_on_and_the_get_completes_late():
    run(lambda a: a.proc.send_signal(signal.SIGCONT))


def test_the_owner_dies_and_the_get_fails_late():
    run(lambda a: a.kill())


if __name__ == "__main__":
    main(globals())
