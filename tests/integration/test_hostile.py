#!/usr/bin/env python3
"""Programs and peers that do their worst, one at a time, and that nobody else notices."""
import mmap

from rawpeer import *
from rvdtest import *

ME = "00112233-4455-4677-8899-aabbccddeeff"


def rss_kib(d):
    for line in open("/proc/%d/status" % d.proc.pid):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def small_socket(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", port))
    s.settimeout(30 * SLOW)
    return s


def test_a_queued_descriptor_is_the_arena_it_was_queued_for():
    with Daemon("a") as d:
        c, victim = d.client(), d.client()
        for _ in range(400):  # the replies fill the socket, so the next descriptor has to wait
            c.send(LIST)
        c.send(ALLOC, len=64 << 20, flags=SHARED)
        c.send(FREE, token=1)
        time.sleep(0.3)
        v = victim.call(ALLOC, len=64 << 20, flags=SHARED)
        with mmap.mmap(victim.arenas[v["arena"]], v["arena_len"]) as m:
            m[v["off"]:v["off"] + 6] = b"SECRET"
            while True:
                rep = c.recv()
                if rep["op"] == ALLOC | REPLY:
                    break
            got = c.arenas[rep["arena"]]
            assert os.fstat(got).st_ino != os.fstat(victim.arenas[v["arena"]]).st_ino, "another session's arena"
            assert os.pread(got, 6, 0) != b"SECRET"
        assert d.stop() == 0


def test_a_program_that_does_not_read_its_replies_is_not_read_either():
    with Daemon("a") as d:
        c = d.client()
        before = rss_kib(d)
        c.sock.settimeout(1)
        one = struct.pack(">HBII", MAGIC, LIST, REQ.size, 0) + REQ.pack(*([7] + [0] * 14 + [b"", b""]))
        sent = 0
        try:
            for _ in range(3000):
                c.sock.sendall(one * 10)
                sent += 10
        except socket.timeout:
            pass
        assert sent < 30000, "everything was read"
        # A sanitizer keeps freed memory for a while.
        assert rss_kib(d) - before < 64 * 1024 * (4 if SLOW > 1 else 1), rss_kib(d) - before
        assert d.client().list("status")["name"] == "a"
        c.close()
        assert d.stop() == 0


def test_a_peer_that_stops_reading_and_breaks_off_holds_nobody_up():
    with Daemon("a") as d:
        c = d.client()
        h = c.put(bytes(16 << 20), refs=100)
        bad = []
        for _ in range(5):
            p = RawPeer(d.tcp)
            p.sock.close()
            p.sock = small_socket(d.tcp)
            g = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None})[1])["Ready"]
            for i in range(14):
                p.request("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": i})
            bad.append(p)
        time.sleep(0.3)
        other = RawPeer(d.tcp)
        for p in bad:
            p.sock.sendall(b"\xff" * 11)
        began = time.monotonic()
        for _ in range(20):
            assert other.call("_list_handlers")[0]
        assert time.monotonic() - began < 1.0 * SLOW, "the others waited %.1f s" % (time.monotonic() - began)
        assert d.stop() == 0


def test_a_session_with_thousands_of_views_leaves_nothing_behind():
    with Daemon("a") as d:
        code = ("import sys; sys.path.insert(0, %r); from rvdtest import *\nc = Client(%r)\n"
                "h = c.put(b'v' * 1000)\nc.put(b's' * 1000, commit_flags=SESSION)\n"
                "c.call(ALLOC, len=100, flags=SHARED)\n"
                "for k in range(12):\n"
                "    for i in range(500): c.send(GET, worker=h[0], local=h[1])\n"
                "    for i in range(500): assert not c.recv()['rc']\n"
                % (os.path.dirname(os.path.abspath(__file__)), d.socket))
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120 * SLOW)
        c = d.client()
        eventually(lambda: c.list("status")["slots"] == 1 and not c.list("status")["leases"]["local"], seconds=30,
                   what="the end of 6000 leases")
        c.call(DROP, worker=c.worker, local=int(c.list("slots")["slots"][0]["handle"]) & (2**64 - 1))
        eventually(lambda: not c.list("status")["used_bytes"])
        eventually(lambda: all(a["kind"] != "session" for a in c.list("arenas")["arenas"]), what="the session arena's end")
        assert "no cell" not in d.text()
        assert d.stop() == 0


def test_sessions_that_one_program_opens_and_closes_leave_nothing_behind():
    with Daemon("a") as d:
        watcher = d.client()
        h = watcher.put(pattern(100000))
        before = d.fds()
        for _ in range(200):
            c = d.client()
            c.free(c.get(h))
            assert c.call(METADATA, worker=h[0], local=h[1])["len"] == 100000  # it has heard of the FREE
            c.close()
        eventually(lambda: d.fds() <= before, what="the return of %d descriptors" % (d.fds() - before))
        holds = [d.client() for _ in range(20)]  # these still have something mapped, as far as the daemon knows
        for c in holds:
            c.get(h)
            c.close()
        eventually(lambda: watcher.list("status")["sessions"] == 1)
        assert d.fds() == before + len(holds), "each is watched until its process ends"
        assert d.stop() == 0


def test_a_session_that_closes_during_its_commit_leaves_nothing_behind():
    with Daemon("a", rendezvous__verify="xxh3") as d:
        watcher = d.client()
        before = d.fds()
        for _ in range(20):
            c = d.client()
            x = c.call(ALLOC, len=8 << 20, flags=SHARED)
            c.send(COMMIT, token=x["token"], len=8 << 20, flags=SESSION)
            c.close()
        eventually(lambda: watcher.list("status")["sessions"] == 1)
        eventually(lambda: d.fds() <= before, what="the return of %d descriptors" % (d.fds() - before))
        eventually(lambda: not watcher.list("status")["used_bytes"], what="the buffers' end")
        assert not watcher.list("status")["slots"]
        assert d.stop() == 0


def test_what_a_program_has_mapped_keeps_its_bytes_after_the_daemon():
    """A buffer of its own, committed and not, and what came from elsewhere: a clean stop takes nothing that is looked at."""
    for ucx in (False, True):
        with Daemon("a", ucx=ucx) as a, Daemon("b", ucx=ucx) as b:
            ca, cb, other = a.client(), b.client(), b.client()
            h = ca.put(pattern(300000, 1))
            seen = []
            for size in (100000, 40 << 20):
                for commit in (False, True):
                    x = cb.call(ALLOC, len=size, flags=SHARED)
                    m = mmap.mmap(cb.arenas[x["arena"]], x["arena_len"])
                    m[x["off"]:x["off"] + size] = pattern(size, 2)
                    seen.append((m, x["off"], pattern(size, 2)))
                    if commit:
                        r = cb.call(COMMIT, token=x["token"], len=size)
                        v = other.get((r["worker"], r["local"]))
                        seen.append((mmap.mmap(other.arenas[v["arena"]], v["arena_len"], prot=mmap.PROT_READ), v["off"], pattern(size, 2)))
            g = cb.get(h, **{"host": "127.0.0.1", "port": a.tcp})
            seen.append((mmap.mmap(cb.arenas[g["arena"]], g["arena_len"], prot=mmap.PROT_READ), g["off"], pattern(300000, 1)))
            assert b.stop() == 0 and a.stop() == 0
            for i, (m, off, data) in enumerate(seen):
                assert m[off:off + len(data)] == data, (ucx, i)


def test_very_many_buffers_are_refused_and_their_end_is_quick():
    with Daemon("a") as d:
        c, other = d.client(), d.client()
        refused = 0
        for _ in range(70):
            for _ in range(1000):
                c.send(ALLOC, len=0)
            refused += sum(c.recv()["rc"] == -28 for _ in range(1000))
        assert refused == 70000 - 65536, refused
        c.close()
        began = time.monotonic()
        other.list("status")
        assert time.monotonic() - began < 1.5 * SLOW
        assert d.stop() == 0


def test_answers_are_read_while_hundreds_of_requests_wait_for_a_program():
    with Daemon("a") as d:
        server, caller = d.client(), d.client()
        server.call(SERVE, name="h")
        o = RawOwner(lambda name, body: None)
        p = RawPeer(d.tcp, worker=0xfde8414c5afee9d3)
        ip = b"\x91\x95\xa0\xa9127.0.0.1\xcd" + struct.pack(">H", o.port) + b"\x20\xc0"
        addr = list(b"\x81\xa3tcp\xc4" + bytes([len(ip)]) + ip)
        assert p.call("_hello", {"peer_info": {"instance_id": ME, "worker_address": addr}})[0]
        for i in range(300):
            p.request("h", b"%d" % i)
        # A stock node answers on the connection it dialed: the one that has 300 requests open.
        rid = caller.send(CALL, b"q", name="x", what=UNARY, worker=0xfde8414c5afee9d3, timeout_ns=10 * 10**9)
        eventually(lambda: any(n == "x" for n, _ in o.seen), what="the call")
        request = [h for h in o.ids if h[0] == "x"][0][1]
        head = request + b"\0\0\0"
        p.frame(RESPONSE, head, b"answered")
        rep = caller.recv()
        assert rep["id"] == rid and rep["payload"] == b"answered", rep
        o.close(), p.close()
        server.close()
        assert d.stop() == 0


def test_chunks_come_from_where_the_owner_answered_whatever_it_advertises():
    with Daemon("x") as decoy, Daemon("a", tcp__advertise="127.0.0.1:%d" % decoy.tcp) as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        data = pattern(3 << 20)
        h = ca.put(data, refs=3)
        for _ in range(2):
            rep = cb.get(h, host="127.0.0.1", port=a.tcp)
            assert rep["data"] == data
            cb.free(rep)
        assert a.stop() == 0 and b.stop() == 0


def test_a_session_slot_hashed_while_its_session_ends_goes_too():
    with Daemon("a", rendezvous__verify="xxh3") as d:
        c, w = d.client(), d.client()
        x = c.call(ALLOC, len=300 << 20)
        c.send(COMMIT, token=x["token"], len=300 << 20, flags=SESSION)
        c.close()
        eventually(lambda: not w.list("status")["sessions"] - 1 and not w.list("status")["slots"] and
                   not w.list("status")["used_bytes"], seconds=20, what="the slot's end")
        assert d.stop() == 0


def test_a_flood_of_hellos_neither_fills_the_node_nor_breaks_its_list():
    with Daemon("a") as d:
        c = d.client()
        p = RawPeer(d.tcp)
        body = json.dumps({"peer_info": {"instance_id": "%s", "worker_address": list(
            b"\x81\xa3tcp\xc4\x12\x91\x95\xa0\xa9127.0.0.1\xcd\x15\xb3\x20\xc0")}}, separators=(",", ":"))
        total = 70000
        for start in range(0, total, 500):
            for i in range(start, start + 500):
                p.request("_hello", (body % ("%08x-0000-4000-8000-000000000000" % i)).encode())
            for _ in range(500):
                assert p.read()[1][16] == 0, "a hello was refused"
        peers = c.list("peers")
        assert peers["total"] <= 65536 and len(peers["peers"]) <= 65536
        assert c.list("status")["name"] == "a"
        assert d.stop() == 0


def test_a_reload_leaves_the_operators_kill_switch_alone():
    with tempfile.TemporaryDirectory() as tmp:
        f = os.path.join(tmp, "rvd.conf")
        open(f, "w").write("[rendezvous]\nenabled = yes\n")
        with Daemon("a") as d:
            d.kill()
            d.args[1:1] = ["-c", f]
            d.restart()
            state = lambda: json.loads(rvctl(d, "kill-switch", "status", "--json")[1])["kill_switch"]
            assert rvctl(d, "kill-switch", "on")[0] == 0
            d.proc.send_signal(signal.SIGHUP)
            eventually(lambda: "config: read again, nothing has changed" in d.text(), what="the reload")
            assert state() is True
            open(f, "w").write("[rendezvous]\nenabled = no\n")
            d.proc.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            open(f, "w").write("[rendezvous]\nenabled = yes\n")
            d.proc.send_signal(signal.SIGHUP)
            eventually(lambda: state() is False, what="the file's word")
            assert d.stop() == 0


if __name__ == "__main__":
    main(globals())
