"""control/local/local_proto.h in Python: what goes over the socket, and a reader of it that knows no socket."""
from __future__ import annotations

import errno
import os
import struct
from collections import deque
from typing import Iterator, NamedTuple, Sequence, Union

from .errors import error

Buf = Union[bytes, bytearray, memoryview]

MAGIC, VERSION, REPLY = 0x5256, 2, 0x80
PREAMBLE = struct.Struct(">HBII")
HEADER_MAX, PAYLOAD_MAX = 512, 16 << 20

(HELLO, ALLOC, WRITE, COMMIT, FREE, GET, METADATA, REF, DETACH, RELEASE, DROP, PEER_ADD, PEER_INFO, LIST, SERVE,
 UNSERVE, REQUEST, ANSWER, CALL, HANDLERS, ADMIN, REGION_REGISTER, REGION_STAGE, REGION_UNREGISTER, REGION_WATCH,
 GET_MANY) = range(1, 27)

PLAIN, SHARED, SESSION, STRICT, MAPPED = 1, 2, 4, 8, 16  # ALLOC, COMMIT
KEEP, INTO, THEN_DETACH, THEN_RELEASE = 1, 2, 4, 8  # GET
FIRE, SYNC, UNARY = 0, 1, 2  # CALL's `what`, REQUEST's `path`
FAILED = 1  # ANSWER
MANY_MAX = 128
NAME_MAX, HOST_MAX = 63, 255
RESULT_MAX = PAYLOAD_MAX - 64

LISTS = ("status", "slots", "leases", "arenas", "peers", "regions", "endpoints", "cores", "config")
TOOK = ("local", "chunked", "rdma")
PLAIN_WHY = ("", "budget", "pool_exhausted", "kill_switch", "no_rdma")

_REQ = struct.Struct("<QIIQQQQIIQQQQII256s64s")
_REP = struct.Struct("<QiIQQQIIQQQQQQIIIII64sxxxx")
_REP_LEAST = 12  # id and rc
ONE = struct.Struct("<QQQ")

# Descriptors that wait for the frames that name them.
_FDS_MAX = 32
# From here on a payload is received where it stays, not through the buffer.
_DIRECT_MIN = 65536


class Req(NamedTuple):
    """struct rv_local_req; an operation reads the fields that its row names."""

    id: int = 0
    version: int = 0
    flags: int = 0
    token: int = 0
    len: int = 0
    off: int = 0
    ttl_ns: int = 0
    refs: int = 0
    path: int = 0
    worker: int = 0
    local: int = 0
    lease_id: int = 0
    timeout_ns: int = 0
    what: int = 0
    port: int = 0
    host: bytes = b""
    name: bytes = b""


class Rep(NamedTuple):
    """struct rv_local_rep."""

    id: int
    rc: int
    version: int
    worker: int
    local: int
    token: int
    arena: int
    has_fd: int
    arena_len: int
    off: int
    len: int
    lease_id: int
    refcount: int
    elapsed_ns: int
    pinned: int
    path: int
    writable: int
    single_use: int
    refusal: int
    path_name: bytes


def encode(op: int, req: Req, payload_len: int = 0) -> bytes:
    """A request's preamble and header."""
    return PREAMBLE.pack(MAGIC, op, _REQ.size, payload_len) + _REQ.pack(*req)


class Frame:
    """One reply or request of the daemon's. `fd` is -1, or a descriptor that whoever takes the frame closes."""

    __slots__ = ("op", "rep", "payload", "fd")

    def __init__(self, op: int, rep: Rep, payload: Buf, fd: int) -> None:
        self.op, self.rep, self.payload, self.fd = op, rep, payload, fd


class FrameReader:
    """Bytes and descriptors go in as they come, whole frames come out.

    Nothing of a stated size is allocated before that size was checked. After a ProtocolError the stream cannot
    be trusted, and the reader must not be fed again.
    """

    def __init__(self) -> None:
        self._buf = bytearray()
        self._fds: deque[int] = deque()
        self._op = 0
        self._rep: Rep | None = None
        self._payload = bytearray()
        self._got = 0

    def middle(self) -> bool:
        """Is a frame begun and not complete?"""
        return bool(self._buf) or self._rep is not None

    def place(self) -> memoryview | None:
        """Where the next bytes may be received directly; then call placed()."""
        if self._rep is None or len(self._payload) - self._got < _DIRECT_MIN:
            return None
        return memoryview(self._payload)[self._got:]

    def placed(self, nr: int, fds: Sequence[int]) -> Iterator[Frame]:
        """So many bytes were put there."""
        self._keep(fds)
        self._got += nr
        return self._frames()

    def feed(self, data: Buf, fds: Sequence[int] = ()) -> Iterator[Frame]:
        """The frames that are complete now. Raises ProtocolError. Take all of them before the next call."""
        self._keep(fds)
        self._buf += data
        return self._frames()

    def close(self) -> None:
        """Descriptors that no frame took are closed."""
        while self._fds:
            os.close(self._fds.popleft())

    def _keep(self, fds: Sequence[int]) -> None:
        self._fds.extend(fds)
        if len(self._fds) > _FDS_MAX:
            raise error(errno.EPROTO, "the daemon sent descriptors that belong to nothing")

    def _frames(self) -> Iterator[Frame]:
        while self._head():
            want = len(self._payload) - self._got
            if want:
                part = self._buf[:want]
                self._payload[self._got:self._got + len(part)] = part
                del self._buf[:len(part)]
                self._got += len(part)
            if self._got < len(self._payload):
                return
            yield self._take()

    def _head(self) -> bool:
        """Preamble and header, once both are there."""
        if self._rep is not None:
            return True
        if len(self._buf) < PREAMBLE.size:
            return False
        magic, op, header_len, payload_len = PREAMBLE.unpack_from(self._buf)
        if magic != MAGIC or not (op & REPLY or op == REQUEST):
            raise error(errno.EPROTO, "the daemon speaks another protocol, or is broken")
        if not _REP_LEAST <= header_len <= HEADER_MAX or payload_len > PAYLOAD_MAX:
            raise error(errno.EPROTO, "the daemon announced an impossible length")
        if len(self._buf) < PREAMBLE.size + header_len:
            return False
        # What an older daemon leaves out reads as zero; what a newer one adds is ignored.
        header = bytes(self._buf[PREAMBLE.size:PREAMBLE.size + min(header_len, _REP.size)])
        self._rep = Rep(*_REP.unpack(header.ljust(_REP.size, b"\0")))
        del self._buf[:PREAMBLE.size + header_len]
        self._op = op
        self._payload = bytearray(payload_len)
        self._got = 0
        return True

    def _take(self) -> Frame:
        rep, self._rep = self._rep, None
        assert rep is not None
        payload, self._payload = self._payload, bytearray()
        if rep.has_fd and not self._fds:
            raise error(errno.EPROTO, "the daemon announced a descriptor and sent none")
        return Frame(self._op, rep, payload, self._fds.popleft() if rep.has_fd else -1)
