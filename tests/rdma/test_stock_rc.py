#!/usr/bin/env python3
"""Stock velo nodes and ours over UCX rc_v on real verbs devices: their static UCX reads ours, and ours theirs.

Runs inside scripts/rdma-vm; RV_VELO_PEERS names the two stock peers (tests/interop/build)."""
from rdmatest import *

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import functools  # noqa: E402
import peer  # noqa: E402
from peer import PeerError, StockPeer  # noqa: E402

PEERS = dict(zip(("0.12", "0.21"), os.environ.get("RV_VELO_PEERS", "").split(":")))
BLOB = {"0.12": 1, "0.21": 2}
SIZE = 8 << 20
ROUNDS = int(os.environ.get("RV_ROUNDS", "3"))


@functools.lru_cache(maxsize=2)
def block(seed):
    return peer.pattern(SIZE, seed)


def stock(version):
    host, device, _ = HOSTS[2]
    return StockPeer(PEERS[version], transports="tcp,ucx", deadline_s=60.0 * SLOW,
                     env={"UCX_TLS": "rc_v", "UCX_NET_DEVICES": device})


def gone(p, t):
    try:
        p.metadata(t)
        return False
    except PeerError:
        return True


def both_roles(version):
    with node("a", 1, ucx__blob_version=BLOB[version], memory__initial_arena_bytes="16MiB") as d:
        c = d.client()
        c.sock.settimeout(120 * SLOW)
        p = stock(version)
        try:
            p.register(c.call(PEER_INFO)["payload"].decode())
            c.call(PEER_ADD, p.info.encode(), name="stock")
            for i in range(ROUNDS):
                h = c.put(block(i & 1))
                got = p.get_pinned((h[0] << 64) | h[1], i & 1)
                assert got.good and got.length == SIZE, got
            assert p.counters() == {"rdma/ok": ROUNDS}, p.counters()
            for i in range(ROUNDS):
                t = p.put_pinned(SIZE, i & 1)
                h = (t >> 64, t & (2**64 - 1))
                rep = c.get(h, path=RDMA)
                assert rep["data"] == block(i & 1), "wrong bytes"
                assert rep["path_name"].startswith("ucx rc_verbs"), rep["path_name"]
                c.free(rep)
                c.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
                eventually(lambda: gone(p, t), what="the slot's end at the stock owner")
            assert d.stop() == 0
        finally:
            p.close()


def test_stock_021_and_we_read_each_other():
    both_roles("0.21")


def test_stock_012_and_we_read_each_other():
    both_roles("0.12")


if __name__ == "__main__":
    if "RDMA_VM" not in os.environ:
        sys.exit("this runs inside scripts/rdma-vm")
    main(globals())
