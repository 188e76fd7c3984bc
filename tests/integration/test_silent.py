#!/usr/bin/env python3
"""Who connects and says nothing, who stops in the middle, and whose host is gone: each is put out in time, and nobody else is."""
import re
import socket
import struct

from rvdtest import *
from rawpeer import MESSAGE, RawPeer


def head(header, payload):
    return struct.pack(">HBII", 1, MESSAGE, header, payload)


# What somebody may have said who has not said a whole frame.
BEGUN = [b"", b"\0", head(100, 100)[:10], head(200, 0) + b"x" * 100, head(40, 15 << 20) + b"y" * 5000]


def connections(d):
    return d.metrics()["rvd_tcp_connections"]


def overdue(d, why):
    return d.metrics()['rvd_tcp_connections_overdue_total{reason="%s"}' % why]


def is_closed(s):
    s.settimeout(20 * SLOW)
    try:
        return s.recv(1) == b""
    except ConnectionError:
        return True


def silent(d, n):
    out = []
    for i in range(n):
        s = socket.create_connection(("127.0.0.1", d.tcp))
        s.sendall(BEGUN[i % len(BEGUN)])
        out.append(s)
    return out


def test_silent_connections_up_to_the_limit_make_room_when_their_time_is_over():
    with Daemon("a", tcp__max_connections=20, tcp__handshake_timeout="3s") as d:
        talker = RawPeer(d.tcp)
        assert talker.call("_list_handlers")[0]
        socks = silent(d, 19)
        eventually(lambda: connections(d) == 20)
        assert RawPeer(d.tcp).closed(), "there was room for one more"

        def let_in():
            p = RawPeer(d.tcp)
            try:
                return p.call("_list_handlers")[0]
            except (EOFError, ConnectionError):
                return False
            finally:
                p.close()
        eventually(let_in, seconds=30 * SLOW, what="room")
        eventually(lambda: overdue(d, "handshake") == 19, what="the others' end")
        assert all(is_closed(s) for s in socks)
        assert talker.call("_list_handlers")[0], "who had spoken was put out"
        assert overdue(d, "stall") == 0
        assert d.stop() == 0


def test_who_has_spoken_once_may_rest_for_many_deadlines():
    with Daemon("a", tcp__handshake_timeout="300ms", tcp__stall_timeout="1s") as d, Daemon("b") as b:
        peers = [RawPeer(d.tcp) for _ in range(20)]
        assert all(p.call("_list_handlers")[0] for p in peers)
        cb = b.client()
        h = d.client().put(pattern(3 << 20), refs=2)
        assert cb.get(h, host="127.0.0.1", port=d.tcp)["data"] == pattern(3 << 20)
        before = connections(d)
        for _ in range(5):  # each of these is put out, so their deadlines have passed, one after the other
            n = overdue(d, "handshake")
            s = silent(d, 1)
            eventually(lambda: overdue(d, "handshake") == n + 1)
            s[0].close()
        time.sleep(2)
        assert connections(d) == before, "a node of ours or a peer was put out"
        assert all(p.call("_list_handlers")[0] for p in peers)
        assert cb.get(h, host="127.0.0.1", port=d.tcp)["data"] == pattern(3 << 20)
        assert overdue(d, "stall") == 0
        assert d.stop() == 0 and b.stop() == 0


def test_who_stops_in_the_middle_of_a_later_frame_is_put_out_too():
    with Daemon("a", tcp__stall_timeout="1s", tcp__handshake_timeout="none") as d:
        good = RawPeer(d.tcp)
        peers = [RawPeer(d.tcp) for _ in range(len(BEGUN) - 1)]
        for p, begun in zip(peers, BEGUN[1:]):
            assert p.call("_list_handlers")[0]
            p.sock.sendall(begun)
        assert good.call("_list_handlers")[0]
        assert all(p.closed() for p in peers)
        eventually(lambda: overdue(d, "stall") == len(peers))
        assert overdue(d, "handshake") == 0
        assert good.call("_list_handlers")[0]
        assert d.stop() == 0


def test_without_a_deadline_nobody_is_put_out_for_silence():
    with Daemon("a", tcp__handshake_timeout="none") as d, Daemon("b", tcp__handshake_timeout="100ms") as b:
        kept, other = silent(d, 1), silent(b, 1)
        eventually(lambda: overdue(b, "handshake") == 1)
        time.sleep(1)
        assert connections(d) == 1 and overdue(d, "handshake") == 0
        kept[0].close()
        other[0].close()
        assert d.stop() == 0 and b.stop() == 0


def test_a_long_first_frame_may_take_many_deadlines_as_long_as_it_goes_on():
    with Daemon("a", tcp__handshake_timeout="1s") as d:
        p = RawPeer(d.tcp)
        rid = struct.pack("<QHIH", 77, 1, 1, 0)
        header = bytes([1, 2]) + rid + struct.pack("<H", 14) + b"_list_handlers" + struct.pack("<H", 0)
        body = b"z" * (1 << 20)
        p.sock.sendall(head(len(header), len(body)) + header)
        for off in range(0, len(body), 128 << 10):
            p.sock.sendall(body[off:off + (128 << 10)])
            time.sleep(0.4)
        assert p.read()[1][:16] == rid
        assert overdue(d, "handshake") == 0
        assert d.stop() == 0


# A host that is gone sends neither an end nor a reset: two network namespaces, and the link between them is cut.

PEER = """
import os, sys
sys.path.insert(0, %r)
import socket, struct
from rawpeer import RawPeer, handle
p = RawPeer.__new__(RawPeer)
p.sock = socket.create_connection(("10.98.7.1", int(sys.argv[1])))
p.sock.settimeout(20); p.worker, p.next, p.buf = 77, 1, b""
assert p.call("_list_handlers")[0]
if len(sys.argv) > 3: # it asks for more than it reads
    import json
    h = (int(sys.argv[2]), int(sys.argv[3]))
    g = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None})[1])["Ready"]
    for _ in range(40):
        for i in range(g["chunk_count"]):
            p.request("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": i})
print("here", flush=True)
sys.stdin.read()
"""


def inside():
    """In a network namespace of its own."""
    run = lambda *a: subprocess.run(a, check=True)
    other = subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE)
    peers = []
    try:
        ns = lambda pid: os.readlink("/proc/%d/ns/net" % pid)
        eventually(lambda: ns(other.pid) != ns(os.getpid()))
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        run("ip", "link", "set", "v1", "netns", str(other.pid))
        run("ip", "addr", "add", "10.98.7.1/24", "dev", "v0")
        run("ip", "link", "set", "v0", "up")
        enter = ["nsenter", "-t", str(other.pid), "-n"]
        run(*enter, "ip", "addr", "add", "10.98.7.2/24", "dev", "v1")
        run(*enter, "ip", "link", "set", "v1", "up")
        with Daemon("a", tcp__listen="127.0.0.1:0,10.98.7.1:0", tcp__stall_timeout="2s") as d:
            port = int(re.search(r"tcp: listening on 10.98.7.1:(\d+)", d.text()).group(1))
            h = d.client().put(pattern(8 << 20), refs=5)
            local = RawPeer(d.tcp)
            assert local.call("_list_handlers")[0]
            for more in ([], [str(x) for x in h]):
                p = subprocess.Popen(enter + [sys.executable, "-c", PEER % os.path.dirname(os.path.abspath(__file__)), str(port)] + more,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                peers.append(p)
                assert p.stdout.readline() == b"here\n"
            assert connections(d) == 3
            time.sleep(3)
            assert connections(d) >= 2, "who only rests was put out"
            run(*enter, "ip", "link", "set", "v1", "down")
            eventually(lambda: connections(d) == 1, seconds=30 * SLOW, what="the end of those whose host is gone")
            assert local.call("_list_handlers")[0]
            assert d.stop() == 0
    finally:
        for p in peers + [other]:
            p.kill()
            p.wait()


def test_whose_host_is_gone_is_put_out_whether_it_rested_or_not():
    if os.geteuid() or subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL).returncode:
        raise Missing("root, for network namespaces")
    p = subprocess.run(["unshare", "-n", sys.executable, os.path.abspath(__file__), "--inside"], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT)
    assert p.returncode == 0, p.stdout.decode(errors="replace")[-3000:]


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        inside()
    else:
        main(globals())
