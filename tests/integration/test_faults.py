#!/usr/bin/env python3
"""What goes wrong around a daemon: owners that cannot be reached, signals at any moment, what a dead one left behind."""
import ctypes
import platform
import re
import select
import threading

from rawpeer import *
from rvdtest import *

FORWARD, REFUSE, SLAM, HELLO_THEN_SLAM = range(4)
STORM = float(os.environ.get("RV_STORM", "4"))
TGKILL = {"x86_64": 234, "aarch64": 131}


class Gate:
    """Stands in front of a port: passes connections on, has its own port closed, or ends each connection at once."""

    def __init__(self, to):
        self.to, self.mode, self.seen, self.pairs = to, FORWARD, 0, []
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        self.port = s.getsockname()[1]
        s.close()
        self.sock = None
        self.set(FORWARD)

    def set(self, mode):
        """From now on; what was connected ends."""
        self.mode = mode
        if self.sock:
            self.sock.shutdown(socket.SHUT_RDWR)
            self.thread.join()
            self.sock.close()
            self.sock = None
        for s in self.pairs:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.pairs = []
        if mode == REFUSE:
            return
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("127.0.0.1", self.port))
        self.sock.listen(64)
        self.thread = threading.Thread(target=self._accept, args=(self.sock,), daemon=True)
        self.thread.start()

    def _accept(self, listener):
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return
            self.seen += 1
            if self.mode == FORWARD:
                t = socket.create_connection(("127.0.0.1", self.to))
                self.pairs += [s, t]
                for a, b in ((s, t), (t, s)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()
            else:
                if self.mode == HELLO_THEN_SLAM:
                    self._greet(s)
                s.close()

    @staticmethod
    def _greet(s):
        s.settimeout(0.2)  # a second connection, for chunks, does not begin with a hello
        try:
            pre = s.recv(11, socket.MSG_WAITALL)
            _, _, h, p = struct.unpack(">HBII", pre)
            header = s.recv(h + p, socket.MSG_WAITALL)
            out, body = header[2:18] + b"\0\0\0", b'{"handlers":[]}'
            s.sendall(struct.pack(">HBII", 1, RESPONSE, len(out), len(body)) + out + body)
        except (OSError, struct.error):
            pass

    @staticmethod
    def _pass(a, b):
        try:
            while True:
                data = a.recv(1 << 16)
                if not data:
                    break
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Callers:
    """Sessions that have calls under way all the time."""

    def __init__(self, daemon, handle_, port, sessions=8, each=40):
        self.handle, self.port, self.open = handle_, port, {}
        self.ok = self.failed = 0
        self.words = set()
        self.clients = [daemon.client() for _ in range(sessions)]
        for c in self.clients:
            self.open[c] = {}
            for i in range(each):
                self.ask(c, i)

    def ask(self, c, i):
        """Some by a reference, some by a handle alone; gets and questions."""
        where = dict(host="127.0.0.1", port=self.port) if i % 3 == 0 else {}
        rid = c.send(METADATA if i % 2 else GET, worker=self.handle[0], local=self.handle[1], timeout_ns=30 * 10**9, **where)
        self.open[c][rid] = i

    def run(self, seconds, again=True):
        """Read answers and ask anew for so long; with again=False until none is under way."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (again or any(self.open.values())):
            for s in select.select([c.sock for c in self.clients], [], [], 0.05)[0]:
                c = next(c for c in self.clients if c.sock is s)
                for _ in range(len(self.open[c])):
                    self.take(c, again)
                    if len(c.buf) < 11:
                        break
            time.sleep(0.005)

    def take(self, c, again):
        rep = c.recv()
        i = self.open[c].pop(rep["id"])
        if rep["rc"]:
            self.failed += 1
            self.words.add((rep["rc"], rep["payload"].decode()))
        else:
            self.ok += 1
            if i is not None and i % 2 == 0:
                c.free(rep)
                rid = c.send(DETACH, worker=self.handle[0], local=self.handle[1], lease_id=rep["lease_id"])
                self.open[c][rid] = None
        if again and i is not None:
            self.ask(c, i)

    def close(self):
        for c in self.clients:
            c.close()


def storm(mode, seconds=STORM):
    """Calls all the time at an owner that is away for a while. What it cost, and that it is over when the owner is back."""
    data = pattern(100000)
    with Daemon("a") as a, Daemon("b") as b:
        gate = Gate(a.tcp)
        h = a.client().put(data, refs=10)
        callers = Callers(b, h, gate.port)
        callers.run(1.5 * SLOW)
        assert callers.ok > 0 and not callers.failed, (callers.ok, callers.failed, callers.words)
        fds, rss, log, dials = b.fds(), b.rss_kib(), len(b.text()), gate.seen
        gate.set(mode)
        callers.run(seconds / 2)
        half = b.rss_kib()
        callers.run(seconds / 2)
        grew = b.rss_kib() - half
        failed, dials = callers.failed, gate.seen - dials
        assert failed > 100, failed
        for rc, words in callers.words:
            assert rc in (-113, -104) and words, (rc, words)
        # Doubling from 50 ms, 4 s hold seven tries; a few more while the first connections end.
        assert dials <= 12 + seconds, "%d dials in %s s" % (dials, seconds)
        assert len(b.text()) - log < 100 * 1024 * seconds / 60, b.text()[log:log + 2000]
        assert b.fds() <= fds, (fds, b.fds())
        # A sanitizer keeps freed memory for a while; what is never freed it finds by itself.
        assert SLOW > 1 or grew < 1024, "%d KiB more in the second half, of %d before" % (grew, rss)
        gate.set(FORWARD)
        ok = callers.ok

        def back():
            callers.run(0.2)
            return callers.ok > ok + 100
        eventually(back, seconds=20, what="the owner's return")
        callers.run(20 * SLOW, again=False)
        assert not any(callers.open.values()), "calls without an answer"
        c = b.client()
        rep = c.get(h)
        assert rep["data"] == data
        c.close()
        callers.close()
        print("# %d failed, %d dials, %d KiB" % (failed, dials, grew))
        gate.set(REFUSE)
        assert a.stop() == 0 and b.stop() == 0


def test_calls_at_a_closed_port_fail_in_time_and_cost_nothing():
    storm(REFUSE)


def test_an_owner_that_ends_each_connection_at_once_is_not_dialed_without_end():
    storm(SLAM)


def test_nor_is_one_that_says_hello_first():
    storm(HELLO_THEN_SLAM)


def thousand_pulls(port, h):
    """A consumer that asked for a thousand chunks and has read none of them; the requests' ids."""
    p = RawPeer(port, timeout=60 * SLOW)
    p.sock.close()
    p.sock = socket.socket()
    p.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    p.sock.settimeout(60 * SLOW)
    p.sock.connect(("127.0.0.1", port))
    g = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None})[1])["Ready"]
    assert g["chunk_count"] == 256
    return p, {p.request("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": i % 256}): i % 256 for i in range(1000)}


def test_each_of_a_thousand_pulls_is_answered_before_the_end():
    data = pattern(16 << 20)
    with Daemon("a", rendezvous__chunk_size="64KiB", shutdown__timeout="20s") as d:
        c = d.client()
        h = c.put(data)
        p, ids = thousand_pulls(d.tcp, h)
        time.sleep(0.2)
        d.proc.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        chunks = refused = 0
        while ids:
            kind, header, payload = p.read()
            if kind == RESPONSE:
                i = ids.pop(header[:16])
                assert header[16] == 0 and payload == data[i << 16:(i + 1) << 16], "chunk %d" % i
                chunks += 1
            else:
                assert kind == SHUTTING_DOWN, kind
                ids.pop(header[2:18])
                refused += 1
        began = time.monotonic()
        assert p.closed()
        assert d.proc.wait(timeout=20 * SLOW) == 0, d.text()
        assert time.monotonic() - began < 1 + 1 * SLOW
        print("# %d chunks, %d refused" % (chunks, refused))


def test_who_does_not_read_is_cut_when_the_drain_is_out_of_time():
    with Daemon("a", rendezvous__chunk_size="64KiB", shutdown__timeout="1s") as d:
        c = d.client()
        h = c.put(bytes(16 << 20))
        p, ids = thousand_pulls(d.tcp, h)
        other = RawPeer(d.tcp)
        time.sleep(0.2)
        began = time.monotonic()
        d.proc.send_signal(signal.SIGTERM)
        eventually(lambda: other.call("_list_handlers")[0] is None, what="the drain")
        assert d.proc.wait(timeout=20 * SLOW) == 3, d.text()
        took = time.monotonic() - began
        assert 0.9 < took < 1 + 1 * SLOW, "the end took %.2f s" % took
        cut = re.search(r"out of time: 0 gets, (\d+) requests and 0 RDMA leases are cut", d.text())
        assert cut and int(cut.group(1)) > 50, d.text()


def left_behind(d):
    """What a daemon must not leave in its folders, and does."""
    out = [d.socket] if os.path.lexists(d.socket) else []
    for folder, _, files in os.walk(os.path.join(d.dir, "run")):
        out += [os.path.join(folder, f) for f in files]
    return out


def test_a_signal_at_any_moment_of_the_start_ends_it_in_good_order():
    seen = set()
    for sig in (signal.SIGTERM, signal.SIGINT):
        for ms in (0, 2, 5, 10, 20, 30, 50, 75, 100, 125, 150, 175, 200, 300):
            d = Daemon("a", wait=False)
            try:
                time.sleep(ms / 1000)
                code = d.kill(sig)
                # Before it has said a word, it has done nothing yet that would need an end in good order.
                assert code == 0 or (code == -sig and not d.text()), "%d ms: %d\n%s" % (ms, code, d.text())
                assert not left_behind(d), (ms, left_behind(d))
                assert code or d.text().endswith("shutdown: done\n"), d.text()
                assert " warn  shutdown" not in d.text() and " error" not in d.text(), d.text()
                seen.add((code == 0, " serves as worker " in d.text()))
            finally:
                d.close()
    assert (True, True) in seen, seen


def test_a_signal_for_any_of_its_threads_is_one_for_the_daemon():
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() not in TGKILL:
        raise Missing("the number of tgkill on %s" % platform.machine())
    tgkill = lambda d, tid, sig: libc.syscall(TGKILL[platform.machine()], d.proc.pid, tid, sig)
    threads = lambda d: sorted(int(t) for t in os.listdir("/proc/%d/task" % d.proc.pid))
    at = 0
    while True:
        with Daemon("a", ucx=True) as d:
            d.client().put(b"x" * 1000)
            d.metrics()
            all_ = threads(d)
            if at >= len(all_):
                break
            os.kill(all_[at], signal.SIGTERM)  # as `kill TID` does
            assert d.proc.wait(timeout=30 * SLOW) == 0, d.text()
            assert not left_behind(d), left_behind(d)
        at += 1
    # To one thread and no other: those that do not take signals are not ended by them either.
    with Daemon("a", ucx=True) as d:
        for tid in threads(d):
            for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if tid != d.proc.pid:
                    assert tgkill(d, tid, sig) == 0
        time.sleep(0.2)
        assert d.client().list("status")["name"] == "a"
        assert tgkill(d, d.proc.pid, signal.SIGTERM) == 0
        assert d.proc.wait(timeout=30 * SLOW) == 0, d.text()
        assert not left_behind(d), left_behind(d)


def test_what_a_killed_daemon_left_is_no_obstacle():
    with Daemon("a") as d:
        workers = [d.client().worker]
        for _ in range(3):
            d.client().put(b"x" * 100000)
            d.kill()
            assert d.socket in left_behind(d)
            d.restart()
            c = d.client()
            assert c.worker not in workers
            workers.append(c.worker)
            assert c.get(c.put(b"again"))["data"] == b"again"
            assert int(dict(line.split() for line in open(os.path.join(d.dir, "run", "ports")))["tcp"]) == d.tcp
            assert RawPeer(d.tcp).call("_list_handlers")[0]
        with open(os.path.join(d.dir, "state", "workers")) as f:
            assert [int(line) for line in f] == workers
        assert d.stop() == 0
        assert not left_behind(d), left_behind(d)


def test_a_second_daemon_on_a_live_socket_is_refused_in_one_line_and_changes_nothing():
    def files():
        out = {}
        for folder, _, names in os.walk(d.dir):
            for n in names:
                path = os.path.join(folder, n)
                st = os.lstat(path)
                if n != "log":
                    out[path] = (st.st_ino, st.st_mtime_ns, st.st_size)
        return out
    with Daemon("a") as d:
        c = d.client()
        h = c.put(b"mine")
        before = files()
        p = subprocess.run(d.args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=d.env,
                           timeout=60 * SLOW)
        said = [line for line in p.stdout.decode().splitlines() if " error" in line]
        assert p.returncode == 1 and len(said) == 1 and "another daemon answers on " + d.socket in said[0] and "needs its own local.socket" in said[0], p.stdout.decode()
        assert files() == before, (before, files())
        assert c.get(h)["data"] == b"mine" and d.client().get(h)["data"] == b"mine"
        assert d.stop() == 0


def test_of_two_daemons_in_one_runtime_dir_each_removes_its_own_ports_file_alone():
    warned = "was another daemon's, which still runs"
    with Daemon("a") as a, Daemon("b", node__runtime_dir=a.run) as b:
        written = lambda: int(dict(line.split() for line in open(os.path.join(a.run, "ports")))["tcp"])
        assert warned in b.text() and warned not in a.text()
        assert written() == b.tcp and a.tcp != b.tcp, "the newer one's"
        assert a.stop() == 0
        assert written() == b.tcp, "it is the other's file"
        a.restart()
        assert warned in a.text() and written() == a.tcp
        assert b.stop() == 0
        assert written() == a.tcp
        assert RawPeer(a.tcp).call("_list_handlers")[0]
        said = a.text().count(warned)
        a.kill()
        a.restart()
        assert a.text().count(warned) == said, "who was killed does not run"
        assert written() == a.tcp
        assert a.stop() == 0
        assert not [n for n in os.listdir(a.run) if "ports" in n], os.listdir(a.run)


if __name__ == "__main__":
    main(globals())
