#!/usr/bin/env python3
"""A scripted day of a node, and of its neighbour: every number of /metrics that moved is known, and no other moved."""
import json

from rvdtest import *
from rawpeer import FIRE, SYNC, RawPeer, handle

PATH = 'velo_rendezvous_rdma_path_total{path="%s",reason="%s"}'
OPERATION = 'velo_rendezvous_operations_total{operation="%s",status="%s"}'
# What moves by itself, or with the machine: held to nothing here.
BY_ITSELF = ("rvd_core_", "rvd_arena_", "rvd_tcp_connections", "velo_rendezvous_rdma_get_duration_seconds", "rvd_plain_bytes",
             "rvd_resting_blocks", "velo_rdma_", "rvd_registered_budget_bytes", "rvd_endpoints")


def moved(before, after):
    return {k: after[k] - before.get(k, 0) for k in after
            if after[k] != before.get(k, 0) and not k.startswith(BY_ITSELF)}


def test_an_owner_counts_every_answer_and_its_reason():
    with Daemon("a", ucx=True) as d:
        c, p = d.client(), RawPeer(d.tcp)
        before = d.metrics()
        big, small = c.put(b"x" * (1 << 20), refs=100), c.put(b"x" * 1000, refs=2)
        plain = c.put(b"x" * (1 << 20), flags=PLAIN)
        want = {OPERATION % ("register_pinned", "ok"): 2, OPERATION % ("register", "ok"): 1, "velo_rendezvous_active_slots": 3}

        def acquire(h, offer):
            ok, body = p.call("_rv_acquire", {"handle": handle(h), "rdma": offer})
            assert ok, body
            kind, r = json.loads(body).popitem()
            return kind, r

        def counted(reason, h, offer, kind="Ready"):
            got, r = acquire(h, offer)
            assert got == kind, (reason, got)
            key = PATH % ("rdma" if reason == "ok" else "chunked", reason)
            want[key] = want.get(key, 0) + 1
            return r["lease_id"]

        ucx = {"backends": ["ucx"]}
        leases = [(big, counted("no_offer", big, None)), (big, counted("no_offer", big, None)),
                  (small, counted("below_min", small, ucx)), (plain, counted("not_pinned", plain, ucx)),
                  (big, counted("ok", big, ucx, "Rdma"))]
        rvctl(d, "kill-switch", "on")
        leases.append((big, counted("kill_switch", big, ucx)))
        rvctl(d, "kill-switch", "off")
        # One lease is pulled under: two chunks of 512 KiB, one of them twice.
        kind, r = acquire(big, None)
        want[PATH % ("chunked", "no_offer")] += 1
        for i in (0, 1, 1):
            ok, chunk = p.call("_rv_pull", {"transfer_id": r["transfer_id"], "chunk_index": i})
            assert ok and len(chunk) == 512 << 10
        leases.append((big, r["lease_id"]))
        want['velo_rendezvous_bytes_total{direction="out"}'] = 3 * (512 << 10)
        # Metadata, references, ends.
        assert p.call("_rv_metadata", {"handle": handle(big)})[0]
        assert not p.call("_rv_metadata", {"handle": handle((big[0], 4711 << 8 | big[1] & 255))})[0]
        assert p.call("_rv_ref", {"handle": handle(big)}, kind=SYNC)[0]
        want.update({OPERATION % ("metadata", "ok"): 1, OPERATION % ("metadata", "error"): 1, OPERATION % ("ref", "ok"): 1})
        for h, lease in leases[:4]:
            assert p.call("_rv_detach", {"handle": handle(h), "lease_id": lease}, kind=SYNC)[0]
        for h, lease in leases[4:]:
            assert p.call("_rv_release", {"handle": handle(h), "lease_id": lease}, kind=SYNC)[0]
        want.update({OPERATION % ("detach", "ok"): 4, OPERATION % ("release", "ok"): len(leases) - 4})
        counted("no_offer", big, None)  # and this one is left
        want['rvd_leases{kind="chunked"}'] = 1
        got = moved(before, d.metrics())
        assert got == want, {k: (got.get(k), want.get(k)) for k in set(got) | set(want) if got.get(k) != want.get(k)}
        # A daemon that drains answers in chunks, and says why.
        before = d.metrics()
        rvctl(d, "drain")
        counted("draining", big, ucx)
        got = moved(before, d.metrics())
        assert got == {PATH % ("chunked", "draining"): 1, 'rvd_leases{kind="chunked"}': 1, "rvd_ready": -1}, got


def test_an_owner_without_rdma_says_that_it_has_none():
    with Daemon("a") as d:
        c, p = d.client(), RawPeer(d.tcp)
        h = c.put(b"x" * (1 << 20))
        before = d.metrics()
        ok, body = p.call("_rv_acquire", {"handle": handle(h), "rdma": {"backends": ["ucx"]}})
        assert ok and "Ready" in json.loads(body)
        got = moved(before, d.metrics())
        assert got == {PATH % ("chunked", "not_configured"): 1, 'rvd_leases{kind="chunked"}': 1}, got


def test_a_consumer_counts_every_get_and_why_it_was_not_by_rdma():
    size = 1 << 20
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b, Daemon("c") as plain:
        ca, cb, cc = a.client(), b.client(), plain.client()
        h = ca.put(pattern(size), refs=100)

        def get(c, **f):
            g = c.get(h, **f)
            assert len(g["data"]) == size
            c.free(g)
            c.call(DETACH, worker=h[0], local=h[1], lease_id=g["lease_id"])
            return g

        # No RDMA backend here.
        cc.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
        before = plain.metrics()
        get(cc)
        want = {PATH % ("chunked", "not_configured"): 1, OPERATION % ("get", "ok"): 1,
                'velo_rendezvous_bytes_total{direction="in"}': size, 'rvd_get_bytes_total{path="chunked"}': size}
        assert moved(before, plain.metrics()) == want, moved(before, plain.metrics())
        # By RDMA, by chunks because that was asked for, with the switch off, and one that fails.
        cb.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
        eventually(lambda: get(cb, path=RDMA), what="the endpoint")
        before = b.metrics()
        for _ in range(3):
            get(cb, path=RDMA)
        get(cb, path=CHUNKED)
        rvctl(b, "kill-switch", "on")
        get(cb)
        rvctl(b, "kill-switch", "off")
        try:
            cb.get((h[0], 4711 << 8 | h[1] & 255))
            raise AssertionError("there is no such slot")
        except Refused:
            pass
        want = {PATH % ("rdma", "ok"): 3, PATH % ("chunked", "kill_switch"): 1, OPERATION % ("get", "ok"): 5,
                OPERATION % ("get", "error"): 1, 'velo_rendezvous_bytes_total{direction="in"}': 5 * size,
                'rvd_get_bytes_total{path="chunked"}': 2 * size, 'rvd_get_bytes_total{path="rdma"}': 3 * size}
        got = moved(before, b.metrics())
        assert got == want, {k: (got.get(k), want.get(k)) for k in set(got) | set(want) if got.get(k) != want.get(k)}


if __name__ == "__main__":
    main(globals())
