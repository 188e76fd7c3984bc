"""A daemon of a test's own at the other end of a socketpair: a script in a thread, with an encoder of its own."""
import array
import errno
import fcntl
import os
import socket
import struct
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "control", "client", "python")
sys.path[:0] = [PACKAGE, os.path.join(HERE, "..", "integration")]

from rvdtest import *  # noqa: E402,F401,F403
from rvdtest import MAGIC, REP, REP_FIELDS, REPLY, REQ  # noqa: E402

import rv  # noqa: E402

WORKER = 77
REQ_FIELDS = ("id version flags token len off ttl_ns refs path worker local lease_id timeout_ns what port host "
              "name").split()
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2


def memfd(data, sealed=True):
    fd = os.memfd_create("arena", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, len(data))
    os.pwrite(fd, data, 0)
    if sealed:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd


def answer(op, rid, payload=b"", **fields):
    """The bytes of one reply."""
    path_name = fields.pop("path_name", b"")
    values = [fields.pop(k, 0) for k in REP_FIELDS[1:-1]]
    assert not fields, fields
    header = REP.pack(rid, *values, path_name)
    return struct.pack(">HBII", MAGIC, op, len(header), len(payload)) + header + payload


class Gone(Exception):
    """The client has closed its end."""


class Fake:
    """`script(fake)` runs in a thread after the HELLO was answered; what it raises is raised by end()."""

    def __init__(self, script, greet=True, threshold=1000, version=2):
        self.theirs, self.sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.script, self.greet, self.threshold, self.version = script, greet, threshold, version
        self.buf = b""
        self.failure = None
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self):
        try:
            if self.greet:
                self.hello()
            self.script(self)
        except (Gone, ConnectionError):
            pass
        except BaseException as e:  # noqa: B902
            self.failure = e
        finally:
            self.sock.close()

    def hello(self):
        op, q, _ = self.take()
        assert op == 1, op
        self.reply(1, q, version=self.version, worker=WORKER, len=self.threshold)

    def end(self):
        self.thread.join(20)
        assert not self.thread.is_alive(), "the script still runs"
        if self.failure:
            raise self.failure

    def _fill(self, n):
        while len(self.buf) < n:
            data = self.sock.recv(1 << 20)
            if not data:
                raise Gone()
            self.buf += data

    def take(self):
        """The next request: its operation, its fields, its payload."""
        self._fill(11)
        magic, op, hlen, plen = struct.unpack(">HBII", self.buf[:11])
        assert (magic, hlen) == (MAGIC, REQ.size), "the client sent no frame"
        self._fill(11 + hlen + plen)
        q = dict(zip(REQ_FIELDS, REQ.unpack(self.buf[11:11 + hlen])))
        payload = self.buf[11 + hlen:11 + hlen + plen]
        self.buf = self.buf[11 + hlen + plen:]
        return op, q, payload

    def expect(self, op, **fields):
        got, q, payload = self.take()
        assert got == op, "operation %d came, not %d: %s" % (got, op, q)
        for k, v in fields.items():
            assert q[k] == v, "%s is %r, not %r" % (k, q[k], v)
        return q, payload

    def silent(self):
        """Nothing more comes, but the end."""
        try:
            op, q, _ = self.take()
        except Gone:
            return
        raise AssertionError("operation %d came: %s" % (op, q))

    def send(self, data, fds=()):
        anc = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.sock.sendmsg([data], anc)
        if sent < len(data):
            self.sock.sendall(data[sent:])

    def reply(self, op, q, payload=b"", fds=(), **fields):
        self.send(answer(op | REPLY, q["id"], payload, **fields), fds)

    def refuse(self, op, q, rc, text=b""):
        self.reply(op, q, text, rc=-rc)


def fds():
    return len(os.listdir("/proc/self/fd"))


def mappings():
    with open("/proc/self/maps") as f:
        return sum("memfd:arena" in line for line in f)


def raises(kind, fn, *args, **kw):
    """fn must raise just this kind (or a kind of it); the exception."""
    try:
        fn(*args, **kw)
    except kind as e:
        return e
    raise AssertionError("no %s was raised" % kind.__name__)
