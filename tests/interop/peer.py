"""peer.py - drive one stock velo node (peer.rs) from a test. Python 3 standard library only.

    with StockPeer(binary) as owner, StockPeer(other) as consumer:
        consumer.register(owner.info)
        handle = owner.put(65536, seed=3)
        got = consumer.get_release(handle, seed=3)
        assert got.good

Every answer has a deadline: a peer that hangs is a PeerHung, one that died a PeerGone, and an `err`
answer a PeerError. Closing ends only the child that was started here.
"""
import collections
import json
import os
import selectors
import subprocess
import time

# The peer gives up on a command after 60 s and says `err timeout`; we wait a little longer.
DEADLINE_S = 70.0

Got = collections.namedtuple("Got", "length good lease us")
Metadata = collections.namedtuple("Metadata", "length refcount pinned")
Reply = collections.namedtuple("Reply", "length verdict text")


class PeerError(Exception):
    """The peer answered `err TEXT`."""


class PeerHung(Exception):
    """No answer before the deadline."""


class PeerGone(Exception):
    """The peer's process has ended."""


def pattern(length, seed):
    """The test pattern: byte i is (i*131 + (i>>8)*31 + (i>>16)*7 + seed) & 255."""
    block = bytes(i * 131 & 255 for i in range(256))  # the part of i below 256
    out = bytearray()
    for high in range((length + 255) // 256):
        add = (high * 31 + (high >> 8) * 7 + seed) & 255  # 256*131 is 0 modulo 256
        out += block.translate(bytes((b + add) & 255 for b in range(256)))
    return bytes(out[:length])


def fnv1a(data):
    """FNV-1a 64, as the handler `len` answers it."""
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


class StockPeer:
    """One stock node. `info` is its PeerInfo as JSON text, `instance` its InstanceId."""

    def __init__(self, binary, log=None, log_level="warn", deadline_s=DEADLINE_S, transports="tcp", env=None):
        """log: a file object for the peer's stderr; None drops it. transports: in the peer's order of preference."""
        self.deadline_s = deadline_s
        self._buffer = b""
        self._process = subprocess.Popen(
            [binary], stdin=subprocess.PIPE, bufsize=0,
            stdout=subprocess.PIPE, stderr=log or subprocess.DEVNULL,
            env={**os.environ, "VELO_PEER_LOG": log_level, "VELO_PEER_TRANSPORTS": transports, "UCX_TLS": "tcp",
                 **(env or {})})
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        try:
            self.info = self._expect(self._read_line(self.deadline_s), "peer-info")
        except BaseException:
            self.close()
            raise
        self.instance = json.loads(self.info)["instance_id"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self):
        return self._process.pid

    # -- commands --------------------------------------------------------------------------------

    def register(self, peer_info):
        """peer_info: JSON text, or the dict of it."""
        if not isinstance(peer_info, str):
            peer_info = json.dumps(peer_info, separators=(",", ":"))
        self._ok(f"register {peer_info}")

    def put(self, length, seed):
        """Stage the pattern. @return the handle, an int of 128 bits."""
        return int(self._expect(self.ask(f"put {length} {seed}"), "handle"))

    def put_pinned(self, length, seed):
        """Stage it in registered memory, if the peer has UCX."""
        return int(self._expect(self.ask(f"put-pinned {length} {seed}"), "handle"))

    def metadata(self, handle):
        length, refcount, pinned = self._expect(self.ask(f"metadata {handle}"), "metadata").split()
        return Metadata(int(length), int(refcount), pinned == "true")

    def metadata_rate(self, handle, number, open_):
        """How many of @number questions a second are answered with @open_ of them open at once."""
        return float(self._expect(self.ask(f"metadata-rate {handle} {number} {open_}"), "rate"))

    def get(self, handle, seed):
        """Fetch and compare with the pattern; the lease stays open."""
        return self._got(f"get {handle} {seed}")

    def get_release(self, handle, seed):
        return self._got(f"get-release {handle} {seed}")

    def get_pinned(self, handle, seed):
        """Fetch into registered memory, by RDMA where it can be; compare and release."""
        return self._got(f"get-pinned {handle} {seed}")

    def counters(self):
        """What the peer counted, {"rdma/ok": 3, ...}: path and reason of each decision."""
        words = self.ask("counters").split()[1:]
        return {name: int(float(value)) for name, value in (w.rsplit(":", 1) for w in words)}

    def ping(self, instance):
        """A health check over UCX; a peer that does not answer is a PeerError."""
        self._ok(f"ping {instance}")

    def ref(self, handle):
        self._ok(f"ref {handle}")

    def detach(self, handle, lease):
        self._ok(f"detach {handle} {lease}")

    def release(self, handle, lease):
        self._ok(f"release {handle} {lease}")

    def call(self, instance, handler, length, seed):
        """Unary call with the pattern as payload. verdict: ok, bad, or - when no answer is expected."""
        words = self._expect(self.ask(f"call {instance} {handler} {length} {seed}"), "reply")
        length, verdict, text = (words.split(" ", 2) + [""])[:3]
        return Reply(int(length), verdict, text)

    def handlers(self, instance):
        """Say hello to a peer and list what it serves."""
        return self._expect(self.ask(f"handlers {instance}"), "handlers").split()

    def gate(self):
        """Begin to drain: new requests are refused, the process stays."""
        self._ok("gate")

    def drain(self, deadline_s=30.0):
        """Shut down gracefully; the process ends. @return its exit status."""
        self._ok("drain", deadline_s)
        return self._process.wait(timeout=deadline_s)

    # -- the line protocol -----------------------------------------------------------------------

    def send(self, line):
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError as e:
            raise PeerGone(f"peer is gone, status {self._process.poll()}") from e

    def ask(self, line, deadline_s=None):
        """One command, one answer as text; `err TEXT` raises PeerError."""
        self.send(line)
        return self.answer(deadline_s)

    def answer(self, deadline_s=None):
        """The answer of a command given with send()."""
        text = self._read_line(self.deadline_s if deadline_s is None else deadline_s)
        if text == "err" or text.startswith("err "):
            raise PeerError(text[4:])
        return text

    def close(self):
        """End the process: at once, and only this one."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()

    def _ok(self, line, deadline_s=None):
        text = self.ask(line, deadline_s)
        if text != "ok":
            raise PeerError(f"unexpected answer: {text}")

    def _got(self, line):
        length, verdict, lease, us = self._expect(self.ask(line), "got").split()
        return Got(int(length), verdict == "ok", int(lease), int(us))

    @staticmethod
    def _expect(text, word):
        head, _, rest = text.partition(" ")
        if head != word:
            raise PeerError(f"expected {word}, got: {text}")
        return rest

    def _read_line(self, deadline_s):
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise PeerHung(f"no answer within {deadline_s} s")
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                raise PeerGone(f"peer is gone, status {self._process.poll()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()
