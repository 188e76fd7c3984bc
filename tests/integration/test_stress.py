#!/usr/bin/env python3
"""Many programs at once on two daemons, with everything that can end a transfer early; every byte compared."""
import multiprocessing
import random

from rvdtest import *

SECONDS = float(os.environ.get("RV_STRESS_SECONDS", "8"))
BIG = pattern(9 << 20)


def tolerate(c, op, **f):
    """The handle or the lease may be over by now, and the daemon says so."""
    try:
        c.call(op, **f)
    except Refused as e:
        assert e.rc in (-2, -116, -121), e


def worker(a, b, seed, results, deadline):
    """A process of its own: what it maps is given back for certain when it ends."""
    counts = {"refused": 0}
    rng = random.Random(seed)
    try:
        ca, cb = a.client(), b.client()
        where = dict(host="127.0.0.1", port=a.tcp)
        while time.monotonic() < deadline:
            size = rng.choice([1, 4096, 65536, 70000, 524288, 1 << 20, 3000001, 9 << 20])
            at = rng.randrange(len(BIG) - size + 1)
            data = BIG[at:at + size]
            h = ca.put(data, flags=rng.choice([0, 0, PLAIN]), refs=rng.choice([1, 2]))
            for _ in range(rng.randrange(1, 4)):
                how = rng.choice([ANY, ANY, CHUNKED])
                f = dict(where, path=how)
                if rng.random() < 0.15:
                    f["timeout_ns"] = rng.choice([1, 10**5, 10**6, 10**7])
                c = cb if rng.random() < 0.8 else ca
                try:
                    rep = c.get(h, **f)
                except Refused as e:
                    counts["refused"] += 1
                    # -128, a lost lease: where the machine is slow, half a second may not do.
                    assert e.rc in (-110, -2, -113, -104, -11, -128), e
                    continue
                assert rep["data"] == data, "wrong bytes: %d at %d by %s" % (size, at, rep["path_name"])
                counts[rep["path_name"]] = counts.get(rep["path_name"], 0) + 1
                c.free(rep)
                if rng.random() < 0.9:
                    tolerate(c, rng.choice([DETACH, RELEASE]), worker=h[0], local=h[1], lease_id=rep["lease_id"], **where)
            end = rng.random()
            if end < 0.7:
                tolerate(ca, DROP, worker=h[0], local=h[1])
            elif end < 0.8:
                for _ in range(3):
                    cb.send(GET, worker=h[0], local=h[1], **where)
                cb.close()  # with gets under way
                if rng.random() < 0.5:
                    tolerate(ca, DROP, worker=h[0], local=h[1])
                cb = b.client()
        ca.close(), cb.close()
        results.put((None, counts))
    except Exception:
        results.put((traceback.format_exc(), counts))


def stress(ucx):
    opts = dict(rendezvous__lease_timeout="500ms", rendezvous__quarantine="100ms", rendezvous__default_ttl="20s",
                memory__registered_bytes_budget="96MiB", memory__max_arena_bytes="32MiB",
                memory__dedicated_arena_min="8MiB")
    with Daemon("a", ucx=ucx, **opts) as a, Daemon("b", ucx=ucx, **opts) as b:
        counts, results = {}, multiprocessing.Queue()
        deadline = time.monotonic() + SECONDS
        workers = [multiprocessing.Process(target=worker, args=(a, b, 100 * ucx + i, results, deadline)) for i in range(6)]
        for w in workers:
            w.start()
        for w in workers:
            error, some = results.get(timeout=SECONDS + 60 * SLOW)
            assert not error, error
            for k, v in some.items():
                counts[k] = counts.get(k, 0) + v
        for w in workers:
            w.join()
        assert a.proc.poll() is None and b.proc.poll() is None
        print("# " + ", ".join("%s %d" % kv for kv in sorted(counts.items())))
        assert counts.get("chunked tcp"), counts
        assert not ucx or counts.get("ucx tcp"), counts
        w = a.client()
        for s in w.list("slots")["slots"]:
            h = int(s["handle"])
            tolerate(w, DROP, worker=h >> 64, local=h & (2**64 - 1))
        for d in (a, b):
            c = d.client()
            eventually(lambda: not c.list("status")["used_bytes"] and not any(c.list("status")["leases"].values()) and
                       not c.list("status")["gets_under_way"], seconds=20, what="everything back on " + d.name)
        assert a.stop() == 0 and b.stop() == 0


def test_more_gets_than_a_node_does_at_once_have_their_turn():
    data = pattern(3000)
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, sessions = a.client(), [b.client() for _ in range(3)]
        h = ca.put(data)
        for c in sessions:
            for _ in range(1500):
                c.send(GET, worker=h[0], local=h[1], host="127.0.0.1", port=a.tcp)
        for c in sessions:
            for _ in range(1500):
                rep = c.recv()
                assert rep["rc"] == 0 and rep["len"] == 3000, (rep["rc"], rep["payload"])
                c.free(rep)
            c.close()
        ca.call(DROP, worker=h[0], local=h[1])
        ca.close()
        for d in (a, b):
            c = d.client()
            eventually(lambda: not c.list("status")["used_bytes"] and not c.list("leases").get("leases"), what="everything back")
            c.close()
        assert a.stop() == 0 and b.stop() == 0


def test_chunked_under_stress():
    stress(False)


def test_rdma_under_stress():
    stress(True)


if __name__ == "__main__":
    main(globals())
