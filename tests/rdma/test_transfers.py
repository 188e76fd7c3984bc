#!/usr/bin/env python3
"""Whole transfers as people make them: files by `rvctl`, and a thousand gets whose content is checked. Over verbs and
over UCX rc_v. Runs inside scripts/rdma-vm."""
import hashlib
import random

from rdmatest import *

RVCTL = os.path.join(BUILD, "tools", "rvctl")


def rvctl(d, *args):
    p = subprocess.run([RVCTL, *args], env=dict(os.environ, RVD_SOCKET=d.socket), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300 * SLOW)
    assert p.returncode == 0, (args, p.stdout, p.stderr)
    return p.stdout.decode()


def files_of_every_size(make, path):
    big = pattern(256 << 20)
    rng = random.Random(5)
    with make("a", 1, rendezvous__rdma_min_bytes="1", rendezvous__call_timeout="200s") as a, \
            make("b", 2, rendezvous__rdma_min_bytes="1", rendezvous__call_timeout="200s") as b:
        know(b.client(), a)
        src, dst = os.path.join(a.dir, "src"), os.path.join(b.dir, "dst")
        for size in (1, 2, 1000, 4096, 65535, 65536, 1 << 20, (5 << 20) + 3, 32 << 20, 256 << 20):
            at = rng.randrange(0, len(big) - size + 1)
            with open(src, "wb") as f:
                f.write(big[at:at + size])
            ref = rvctl(a, "put", src).split()[0]
            began = time.monotonic()
            out = rvctl(b, "get", ref, "--path", "rdma", "-o", dst, "--json")
            took = time.monotonic() - began
            with open(dst, "rb") as f:
                assert f.read() == big[at:at + size], "wrong bytes of %d" % size
            assert path in out, out
            os.unlink(dst)
        print("# 256 MiB in %.1f s" % took, flush=True)
        assert b.stop() == 0 and a.stop() == 0, a.text()


def test_files_of_every_size_over_verbs():
    files_of_every_size(verbs_node, "verbs rxe1:1")


def test_files_of_every_size_over_ucx():
    files_of_every_size(node, "ucx rc_v")


def many(make, path, n):
    """Random sizes around a page, at random places, between two nodes both ways; every one's content is hashed."""
    rng = random.Random(6)
    data = pattern(1 << 20)
    with make("a", 1, rendezvous__rdma_min_bytes="1") as a, make("b", 2, rendezvous__rdma_min_bytes="1") as b:
        ends = [a.client(), b.client()]
        know(ends[1], a, 1)
        know(ends[0], b, 2)
        by = {}
        for i in range(n):
            size = rng.choice((rng.randrange(1, 200), rng.randrange(3000, 9000), rng.randrange(60000, 70000)))
            at = rng.randrange(0, len(data) - size)
            own, read = ends[i % 2], ends[1 - i % 2]
            h = own.put(data[at:at + size])
            g = read.get(h, timeout_ns=int(60e9))
            assert hashlib.sha256(g["data"]).digest() == hashlib.sha256(data[at:at + size]).digest(), "transfer %d" % i
            read.free(g)
            read.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
            by[g["path_name"]] = by.get(g["path_name"], 0) + 1
        # The first few may go by chunks, while the way is made.
        assert sum(v for k, v in by.items() if k.startswith(path)) >= n * 0.9, by
        for c in ends:
            assert c.list("slots")["total"] == 0 and c.list("leases")["total"] == 0
        assert b.stop() == 0 and a.stop() == 0, a.text()


def test_a_thousand_transfers_over_verbs():
    many(verbs_node, "verbs", 1000)


def test_hundreds_of_transfers_over_ucx():
    many(node, "ucx", 300)


if __name__ == "__main__":
    main(globals())
