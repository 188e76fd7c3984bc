#!/usr/bin/env python3
"""What goes wrong around a daemon: owners that cannot be reached, signals at any moment, what a dead one left behind."""
import ctypes
import platform
import select
import threading

from rawpeer import *
from rvdtest import *

FORWARD, REFUSE, SLAM, HELLO_THEN_SLAM = range(4)
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


def storm(mode, seconds=5):
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
        # Doubling from 50 ms, 5 s hold seven tries; a few more while the first connections end.
        assert dials <= 12 + seconds, "%d dials in %s s" % (dials, seconds)
        assert len(b.text()) - log < 100 * 1024 * seconds / 60, b.text()[log:log + 2000]
        assert b.fds() <= fds, (fds, b.fds())
        assert grew < 1024 * (8 if SLOW > 1 else 1), "%d KiB more in the second half, of %d before" % (grew, rss)
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


if __name__ == "__main__":
    main(globals())
