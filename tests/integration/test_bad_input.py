#!/usr/bin/env python3
"""What peers and programs may send wrong, and that it gets the protocol's answer and costs nobody else anything."""
import random

from rawpeer import *
from rvdtest import *

GOOD = bytes([1, 2]) + bytes(16) + struct.pack("<H", 14) + b"_list_handlers" + b"\0\0"


def rss_kib(d):
    for line in open("/proc/%d/status" % d.proc.pid):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def still_serves(d):
    p = RawPeer(d.tcp)
    ok, body = p.call("_list_handlers")
    assert ok and b"_rv_acquire" in body
    p.close()


def test_framing_that_closes_the_connection():
    with Daemon("a") as d:
        bad = [
            struct.pack(">HBII", 2, 0, 22, 0), struct.pack(">HBII", 0, 0, 22, 0),  # version
            struct.pack(">HBII", 1, 5, 22, 0), struct.pack(">HBII", 1, 255, 22, 0),  # type
            struct.pack(">HBII", 1, 0, 16 << 20, 1), struct.pack(">HBII", 1, 0, 0xffffffff, 0xffffffff),
            struct.pack(">HBII", 1, 1, 0, (16 << 20) + 1), b"GET / HTTP/1.1\r\n\r\n",
        ]
        for raw in bad:
            p = RawPeer(d.tcp)
            p.sock.sendall(raw)
            assert p.closed(), "still open after %r" % raw
            p.close()
        still_serves(d)
        assert d.stop() == 0


def test_headers_that_are_dropped_in_silence():
    with Daemon("a") as d:
        p = RawPeer(d.tcp, timeout=10)
        mp = b"\x81\xa1a\x01"  # a map whose value is no text
        for header in [b"", GOOD[:21], b"\x02" + GOOD[1:], GOOD[:1] + b"\x03" + GOOD[2:],
                       GOOD[:18] + struct.pack("<H", 0) + b"\0\0", GOOD[:18] + struct.pack("<H", 900) + b"x\0\0",
                       GOOD[:20] + b"\xff\xfe" + GOOD[22:], GOOD[:-2] + struct.pack("<H", 3) + b"\x80",
                       GOOD[:-2] + struct.pack("<H", len(mp)) + mp]:
            p.frame(MESSAGE, header)
        for kind in (RESPONSE, ACK, EVENT, SHUTTING_DOWN):
            for n in (0, 3, 17, 19, 60):
                p.frame(kind, bytes(n), b"whatever")
        ok, body = p.call("_list_handlers")  # the first answer on this connection is to the first good request
        assert ok and b"_hello" in body
        p.close()
        assert d.stop() == 0


def test_frames_split_at_every_byte_and_packed_together():
    with Daemon("a") as d:
        p = RawPeer(d.tcp)
        h = bytes([1, 2]) + struct.pack("<QHIH", 77, 9, 9, 0) + GOOD[18:]
        raw = struct.pack(">HBII", 1, 0, len(h), 0) + h
        for i in range(1, len(raw)):
            p.sock.sendall(raw[:i])
            time.sleep(0.001)
            p.sock.sendall(raw[i:])
            assert p.read()[0] == RESPONSE
        p.sock.sendall(raw * 500)
        for _ in range(500):
            assert p.read()[0] == RESPONSE
        p.close()
        assert d.stop() == 0


def test_errors_are_worded_as_a_stock_node_words_them():
    with Daemon("a") as d:
        c = d.client()
        p = RawPeer(d.tcp)
        unknown = {"handle": {"hi": c.worker, "lo": 5}}
        text = "DataHandle(worker=%d, local=5)" % c.worker
        for name, body, want in [
                ("nope", b"", "Handler 'nope' not found"),
                ("_rv_metadata", unknown, "rendezvous handle not found: " + text),
                ("_rv_acquire", unknown, "rendezvous handle not found: " + text),
                ("_rv_ref", unknown, "_rv_ref: handle not found: " + text),
                ("_rv_pull", {"transfer_id": 9, "chunk_index": 3}, "chunk not found: transfer_id=9, chunk_index=3"),
                ("_rv_metadata", b"{", "Failed to deserialize input: "),
                ("_rv_metadata", {"handle": {"hi": -1, "lo": 5}}, "Failed to deserialize input: "),
                ("_rv_metadata", {"handle": {"hi": 2**64, "lo": 5}}, "Failed to deserialize input: "),
                ("_rv_acquire", {"handle": {"hi": "1", "lo": 5}}, "Failed to deserialize input: "),
                ("_list_handlers", {"x": 1}, "Failed to deserialize input: "),
                ("_hello", {"peer_info": {"instance_id": "zz", "worker_address": [128]}}, "Failed to deserialize input: "),
                ("_hello", {"peer_info": {"instance_id": "00112233-4455-4677-8899-aabbccddeeff",
                                          "worker_address": [128]}}, "No compatible transports found"),
                ("_rv_release", {"handle": {"hi": c.worker, "lo": 5}, "lease_id": 1},
                 "Unary message incorrectly routed to AM handler '_rv_release'")]:
            ok, got = p.call(name, body)
            assert ok is False and got.decode().startswith(want), (name, got, want)
        foreign = {"handle": {"hi": 12345, "lo": 5}}
        ok, got = p.call("_rv_metadata", foreign)
        assert got.decode().endswith(": other owner"), got
        ok, _ = p.call("_rv_metadata", unknown, kind=SYNC)
        assert ok is False
        ok, _ = p.call("_list_handlers", b"null", kind=SYNC)
        assert ok is True
        p.request("nope", kind=FIRE)
        p.request("_rv_release", b"garbage", kind=FIRE)
        assert p.call("_list_handlers")[0]
        p.close()
        assert d.stop() == 0


def test_an_owner_that_restarted_says_so():
    with Daemon("a") as d:
        c = d.client()
        h = c.put(b"x" * 1000)
        c.close()
        assert d.stop() == 0
        d.restart()
        p = RawPeer(d.tcp)
        ok, got = p.call("_rv_metadata", {"handle": handle(h)})
        assert ok is False and got.decode().endswith(": owner restarted"), got
        p.close()
        assert d.stop() == 0


def test_a_reference_that_leads_to_the_wrong_node_says_so_and_the_right_one_works_after_it():
    data = pattern(100000)
    for to_itself in (True, False):  # as 127.0.0.1 does on another host; or to a third
        with Daemon("a") as a, Daemon("b") as b, Daemon("c") as c, tempfile.TemporaryDirectory() as tmp:
            source, out = os.path.join(tmp, "source"), os.path.join(tmp, "out")
            open(source, "wb").write(data)
            right = rvctl(a, "put", source)[1].decode().strip()
            wrong = right.replace(":%d/" % a.tcp, ":%d/" % (b if to_itself else c).tcp)
            code, _, said = rvctl(b, "get", wrong, "-o", out)
            assert code == 4 and "leads to another node" in said and "released or expired" not in said, said
            code, _, said = rvctl(b, "get", right, "-o", out)
            assert code == 0 and open(out, "rb").read() == data, said
            assert a.stop() == 0 and b.stop() == 0 and c.stop() == 0


def test_leases_belong_to_their_consumer():
    with Daemon("a") as d:
        c = d.client()
        h = c.put(pattern(1 << 20))
        p, q = RawPeer(d.tcp, worker=77), RawPeer(d.tcp, worker=78)
        g = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None})[1])["Ready"]
        pull = {"transfer_id": g["transfer_id"], "chunk_index": 0}
        assert q.call("_rv_pull", pull)[0] is False, "another consumer pulled under this lease"
        assert q.call("_rv_detach", {"handle": handle(h), "lease_id": g["lease_id"]}, kind=SYNC)[0] is False
        ok, chunk = p.call("_rv_pull", pull)
        assert ok and chunk == pattern(1 << 20)[:524288]
        assert p.call("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": 2})[0] is False
        assert p.call("_rv_release", {"handle": {"hi": h[0], "lo": h[1] + 1}, "lease_id": g["lease_id"]}, kind=SYNC)[0] is False
        assert p.call("_rv_release", {"handle": handle(h), "lease_id": g["lease_id"]}, kind=SYNC)[0] is True
        assert p.call("_rv_release", {"handle": handle(h), "lease_id": g["lease_id"]}, kind=SYNC)[0] is False
        assert p.call("_rv_pull", pull)[0] is False
        eventually(lambda: c.list("leases")["total"] == 0)
        p.close(), q.close()
        assert d.stop() == 0


def test_a_length_is_not_believed_before_the_bytes_are_there():
    with Daemon("a") as d:
        before = rss_kib(d)
        peers = []
        for _ in range(200):  # 200 x 16 MiB announced, a kilobyte each sent
            p = RawPeer(d.tcp)
            p.sock.sendall(struct.pack(">HBII", 1, 0, len(GOOD), (16 << 20) - len(GOOD)) + GOOD + b"x" * 1024)
            peers.append(p)
        still_serves(d)
        assert rss_kib(d) - before < 64 * 1024, "grew by %d KiB" % (rss_kib(d) - before)
        for p in peers:
            p.close()
        still_serves(d)
        assert d.stop() == 0


def test_random_bytes_on_both_sockets():
    rng = random.Random(7)
    with Daemon("a") as d:
        for _ in range(200):
            raw = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
            s = socket.create_connection(("127.0.0.1", d.tcp))
            s.sendall(struct.pack(">HBII", 1, rng.randrange(5), rng.randrange(60), rng.randrange(60)) + raw)
            s.close()
            c = Client(d.socket, hello=rng.random() < 0.5)
            try:
                c.sock.sendall(struct.pack(">HBII", MAGIC, rng.randrange(20), rng.randrange(500), rng.randrange(90)) + raw)
            except BrokenPipeError:
                pass
            c.close()
        still_serves(d)
        assert d.stop() == 0


def test_the_local_protocol_refuses_what_does_not_fit():
    with Daemon("a") as d:
        c = d.client()

        def refused(rc, op, **f):
            try:
                c.call(op, **f)
            except Refused as e:
                assert e.rc == rc and e.text and "\n" not in e.text, e
                return
            raise AssertionError("op %d %r was taken" % (op, f))

        refused(-22, COMMIT, token=99, len=1)
        a = c.call(ALLOC, len=1000)
        refused(-34, WRITE, payload=b"x" * 10, token=a["token"], off=991)
        refused(-34, WRITE, payload=b"x", token=a["token"], off=2**64 - 1)
        refused(-34, WRITE, payload=b"x", token=12345)
        refused(-22, COMMIT, token=a["token"], len=1001)
        refused(-12 if False else -28, ALLOC, len=2**63)
        refused(-95, 99)
        refused(-22, LIST, what=77)
        refused(-2, METADATA, worker=c.worker, local=1)
        refused(-2, DROP, worker=c.worker, local=2**64 - 1)
        refused(-113, GET, worker=1234, local=1)
        refused(-113, METADATA, worker=1234, local=1)
        refused(-113, GET, worker=1234, local=1, host="127.0.0.1", port=1)
        refused(-71, PEER_ADD, payload=b"nonsense")
        c.send(FREE, token=4711)
        short = c.send(HELLO, raw_header=struct.pack("<QI", 1000, 1))
        assert c.recv()["rc"] == 0
        other = Client(d.socket, hello=False)
        other.send(LIST)
        assert other.recv()["rc"] == -71
        for raw in (b"\0" * 11, struct.pack(">HBII", MAGIC, 1, 513, 0), struct.pack(">HBII", MAGIC, 1, 0, (16 << 20) + 1)):
            x = Client(d.socket, hello=False)
            x.sock.sendall(raw)
            assert x.sock.recv(10) == b""
        assert c.list("status")["version"]
        c.close()
        assert d.stop() == 0


def run_rvd(*args):
    p = subprocess.run([RVD] + list(args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * SLOW,
                       env=dict(os.environ, UCX_MEM_EVENTS="n"))
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def test_configuration_and_command_line():
    with tempfile.TemporaryDirectory() as tmp:
        f = os.path.join(tmp, "rvd.conf")
        open(f, "w").write("[node]\nnaem = x\n[rendezvous]\nlease_timeout = soon\n")
        rc, _, err = run_rvd("-c", f, "--check-config")
        assert rc == 2 and "%s:2: " % f in err and "name" in err and "%s:4: " % f in err, err
        rc, _, err = run_rvd("-c", os.path.join(tmp, "absent"))
        assert rc == 2 and len(err.strip().splitlines()) == 1, err
        rc, _, err = run_rvd("-c", tmp)
        assert rc == 2 and err == tmp + ": Is a directory\n", err
        for args in (["--nonsense"], ["-x"], ["extra"], ["-c"], ["--check-config", "extra"]):
            rc, _, err = run_rvd(*args)
            assert rc == 2 and len(err.splitlines()) == 1 and args[-1] in err and "rvd --help" in err, (args, err)
        rc, out, err = run_rvd("--help")
        assert rc == 0 and "--check-config" in out and "exit:" in out and not [l for l in out.splitlines() if len(l) > 80], out
        for key in ("polling", "uring"):
            rc, out, err = run_rvd("-s", "cores.%s=1023" % key, "-s", "node.state_dir=" + tmp, "-s", "metrics.listen=none",
                                   "-s", "tcp.listen=127.0.0.1:0", "-s", "local.socket=%s/s" % tmp)
            assert rc == 2 and not out and "cores.%s: CPU 1023 " % key in err.splitlines()[-1] and "EAL" not in err, (out, err)
        rc, _, err = run_rvd("-s", "tcp.listen=127.0.0.1:99999")
        assert rc == 2, err
        rc, out, _ = run_rvd("-V")
        assert rc == 0 and out.startswith("rvd ")
        rc, out, _ = run_rvd("--help-config")
        assert rc == 0 and "lease_timeout" in out
        rc, out, _ = run_rvd("-s", "memory.retain_arena_bytes=1MiB", "--print-config")
        assert rc == 0 and "retain_arena_bytes = 1MiB" in out, out


def test_ports_and_sockets_in_use_are_named():
    with Daemon("a") as d:
        common = ["-s", "node.state_dir=" + d.dir + "/s2", "-s", "node.runtime_dir=" + d.dir + "/r2", "-s", "ucx.enabled=no",
                  "-s", "metrics.listen=none"]
        rc, _, err = run_rvd("-s", "tcp.listen=127.0.0.1:%d" % d.tcp, "-s", "local.socket=" + d.dir + "/other", *common)
        assert rc == 1 and "127.0.0.1:%d" % d.tcp in err and "listening" not in err, err
        rc, _, err = run_rvd("-s", "tcp.listen=127.0.0.1:0", "-s", "local.socket=" + d.socket, *common)
        assert rc == 1 and d.socket in err, err
        assert d.client().list("status")["name"] == "a"
        d.kill()
        d.restart()  # the stale socket is replaced
        assert d.stop() == 0


if __name__ == "__main__":
    main(globals())
