#!/usr/bin/env python3
"""Messages between a program on an rvd node and stock velo nodes: handlers served and called, small and staged."""
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rvdtest import *
import peer
from peer import StockPeer, PeerError

PEERS = dict(zip(("0.12", "0.21"), os.environ["RV_VELO_PEERS"].split(":")))
SIZES = [0, 1, 262144, 262145, 1 << 20, 100 << 20]


def serve(c, stop, seen):
    c.sock.settimeout(1)

    def answer(name, data):
        seen.append((name, data))  # before the answer is out: the caller looks as soon as it has it
        if name == "fail":
            raise ValueError("it failed on purpose")
        return data if name == "echo" else b"%d" % len(data)

    while not stop.is_set():
        try:
            c.serve_one(answer)
        except socket.timeout:
            pass


def both(version, ucx=False):
    with Daemon("n", ucx=ucx) as d:
        c, server = d.client(), d.client()
        p = StockPeer(PEERS[version])
        for name in ("echo", "size", "fail"):
            server.call(SERVE, name=name)
        stop, seen = threading.Event(), []
        t = threading.Thread(target=serve, args=(server, stop, seen))
        t.start()
        try:
            p.register(c.call(PEER_INFO)["payload"].decode())
            stock = c.call(PEER_ADD, p.info.encode(), name="stock")["worker"]
            me = json.loads(c.call(PEER_INFO)["payload"])["instance_id"]
            # Ours arrive at theirs.
            for size in SIZES:
                data = peer.pattern(min(size, 1 << 24), 3) * (size >> 24 or 1)
                data = (data + data[:size - len(data)])[:size]
                got = c.message("len", data, worker=stock)
                assert got.split()[0] == b"%d" % size, (size, got)
                if size <= 1 << 20:
                    assert c.message("echo", data, worker=stock) == data
                c.message("len", data, kind=SYNC, worker=stock)
            assert c.list("slots")["total"] == 0, "a staged payload was left"
            try:
                c.message("nobody", b"x", worker=stock)
                raise AssertionError
            except Refused as e:
                assert e.rc == -121 and "Handler 'nobody' not found" in e.text, e
            names = json.loads(c.call(HANDLERS, worker=stock)["payload"])["handlers"]
            assert "echo" in names and "_rv_acquire" in names
            # Theirs arrive at ours.
            for size in SIZES:
                assert p.call(me, "echo" if size <= 1 << 20 else "size", size, 5).verdict != "bad", size
            assert max(len(x[1]) for x in seen) == 100 << 20
            want = peer.pattern(1 << 24, 5)
            big = [x[1] for x in seen if len(x[1]) == 100 << 20][0]
            assert big == (want * 7)[:100 << 20], "wrong bytes in the large message"
            try:
                p.call(me, "fail", 10, 1)
                raise AssertionError
            except PeerError as e:
                assert "it failed on purpose" in str(e), e
            try:
                p.call(me, "absent", 300000, 1)
                raise AssertionError
            except PeerError as e:
                assert "absent" in str(e) and "not found" in str(e), e
        finally:
            stop.set()
            t.join()
            p.close()
        eventually(lambda: not c.list("status")["used_bytes"], what="every buffer back")
        assert d.stop() == 0


def test_messages_with_a_012_node():
    both("0.12")


def test_messages_with_a_021_node():
    both("0.21")


if __name__ == "__main__":
    main(globals())
