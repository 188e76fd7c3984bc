"""Consumers that keep no rules, at the far end of the link."""
import json
import socket
import struct
import subprocess

from rdmatest import *
from rawpeer import SYNC, RawPeer, handle

HOSTILE = os.path.join(BUILD, "tests", "rdma", "hostile_read")


class Raw(RawPeer):
    """A consumer that keeps no rules, under the name of a node that the owner knows."""

    def __init__(self, owner, worker):
        self.sock = socket.create_connection((HOSTS[1][0], owner.tcp), timeout=60 * SLOW)
        self.worker, self.next, self.buf = worker, 1, b""

    def ask(self, h, qp=None):
        """The owner's answer to an acquire that offers verbs, and names a queue pair or not."""
        offer = {"backends": ["verbs", "ucx"]}
        if qp is not None:
            offer["verbs"] = {"qp": qp}
        ok, body = self.call("_rv_acquire", {"handle": handle(h), "rdma": offer})
        assert ok, body
        return json.loads(body)

    def acquire(self, h, qp=None):
        """(address, length, rkey, lease id)"""
        r = self.ask(h, qp)["Rdma"]
        d = bytes(r["descriptor"])
        backend, version, flags, _, addr, length, key_len = struct.unpack("<BBBQQQH", d[:29])
        assert (backend, version, flags, key_len, len(d)) == (2, 1, 0, 5, 34), d
        assert d[29] == 1
        return addr, length, struct.unpack("<I", d[30:])[0], r["lease_id"]

    def release(self, h, lease):
        ok, text = self.call("_rv_release", {"handle": handle(h), "lease_id": lease}, kind=SYNC)
        assert ok, text


class Hostile:
    """A queue pair connected to an owner, that asks it for whatever it likes."""

    def __init__(self, owner, worker, to, reactor=9):
        self.p = subprocess.Popen([HOSTILE, HOSTS[2][0], HOSTS[1][0], owner.ports["verbs"], str(worker), str(to), str(reactor)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = self.line()
        self.refused = None if first.startswith("qp ") else first
        self.qp = int(first[3:]) if not self.refused else None

    def line(self):
        return self.p.stdout.readline().decode().rstrip("\n")

    def access(self, op, addr, length, rkey):
        """How the device ended it: (words, what was read)."""
        self.p.stdin.write(b"%s %d %d %d\n" % (op.encode(), addr, length, rkey))
        self.p.stdin.flush()
        how = self.line()
        return ("done", bytes.fromhex(how[5:])) if how.startswith("done ") else (how, b"")

    def close(self):
        self.p.stdin.close()
        self.p.stdout.close()
        self.p.wait(60 * SLOW)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def hostile(owner, worker, op, addr, length, rkey, to=None, reactor=9):
    """One access on a connection of its own: (words, what was read)."""
    with Hostile(owner, worker, to, reactor) as h:
        return (h.refused, b"") if h.refused else h.access(op, addr, length, rkey)
