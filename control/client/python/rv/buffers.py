"""Memory shared with the daemon: views of what was fetched, and buffers to fill.

A memoryview or array made from either keeps the bytes mapped and reserved, whatever happens to the View, the Client
or the daemon meanwhile: only when the last of them is gone does the daemon get the range back. The one exception is
a forked child, which has none of the memory: there the process faults when it looks.
"""
from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any, Self, Sequence

from . import _proto as p
from ._session import Call, Session, Window, detach_fields
from .errors import ForkedError, error
from .ref import Handle, Ref

if TYPE_CHECKING:
    import numpy as np


class _Memory:
    """What views and buffers have in common."""

    def __init__(self, session: Session, call: Call, len_: int, writable: bool) -> None:
        rep = call.answer
        self._session = session
        self._len = len_
        self._token = rep.token
        self._window: Window | None = None
        self._root: memoryview | None = memoryview(bytearray() if writable else b"")
        self._pid = os.getpid()
        if call.arena:
            self._window = Window(session, call.arena, rep.off, len_, rep.token, writable)
            self._root = session.open_window(self._window)
            call.arena = None  # its hold is the window's
        with session.guard:
            session.owners.add(self)

    def __len__(self) -> int:
        return self._len

    @property
    def closed(self) -> bool:
        """Was it given back, or committed?"""
        return self._root is None

    @property
    def data(self) -> memoryview:
        """The bytes: a memoryview of its own each time. Raises ValueError once closed, ForkedError in a child."""
        if os.getpid() != self._pid:
            raise ForkedError(errno.EOWNERDEAD, "this memory belongs to the parent process")
        if self._root is None:
            raise ValueError("it was given back")
        return self._root[:]

    def tobytes(self) -> bytes:
        """A copy of the bytes."""
        with self.data as data:
            return data.tobytes()

    def numpy(self, dtype: Any = "uint8", shape: int | Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """The bytes as an array, without a copy: of one dimension, or of @shape. Needs NumPy.

        Raises ValueError if the bytes are not a whole number of items, or do not fill the shape.
        """
        import numpy

        kind = numpy.dtype(dtype)
        if not kind.itemsize or self._len % kind.itemsize:
            raise ValueError("%d bytes are no whole number of %s" % (self._len, kind))
        if not self._len:
            array: np.ndarray[Any, Any] = numpy.empty(0, kind)
        else:
            array = numpy.frombuffer(self.data, kind)
        return array if shape is None else array.reshape(shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The bytes as uint8, for numpy.asarray(); with a dtype converted to it, as NumPy does."""
        array = self.numpy()
        return array if dtype is None and not copy else array.astype(dtype or array.dtype, copy=bool(copy))

    def close(self) -> None:
        """Give the memory back. Again is fine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_root", None) is not None:
            self.close()

    def _give_back(self) -> None:
        """With the last reference to the bytes the window ends, here or later."""
        if self._root is not None and self._window is None and self._token:
            self._session.post(p.FREE, token=self._token)
        self._root = None


class View(_Memory):
    """What a get brought: the bytes where the daemon put them, read-only, and the lease.

    `with client.get(name) as view:` gives both back at the end: the lease at once, the memory as soon as no
    memoryview or array of it is left. A view that is dropped is given back the same way.
    """

    #: The slot.
    handle: Handle
    #: The lease, 0 if there is none (any more).
    lease: int
    #: "local", "chunked" or "rdma"; and in more words: "ucx tcp", "chunked tcp", "local".
    took: str
    path: str
    #: Seconds in the daemon.
    elapsed: float

    def __init__(self, session: Session, ref: Ref, call: Call) -> None:
        rep = call.answer
        self.handle, self._ref = ref.handle, ref
        self._detach: dict[str, Any] | None = None
        self.lease = rep.lease_id
        super().__init__(session, call, rep.len, False)
        if self.lease and not call.fields["flags"] & p.KEEP:
            self._detach = detach_fields(call.fields, self.lease)
        self.took = p.TOOK[rep.path] if rep.path < len(p.TOOK) else "unknown"
        self.path = rep.path_name.split(b"\0")[0].decode(errors="replace")
        self.elapsed = rep.elapsed_ns / 1e9

    def close(self) -> None:
        """Give the memory and the lease back. Does not wait. Again is fine."""
        if os.getpid() != self._pid:
            self._root = None
            return
        detach, self._detach = self._detach, None
        if detach:
            self.lease = 0
            self._session.gone.append(detach)  # goes out with what is given back next
        self._give_back()
        self._session.collect()

    def keep_lease(self) -> int:
        """The lease, which is now the caller's to end: close() leaves it alone."""
        self._detach = None
        return self.lease

    def _lease_ended(self) -> None:
        self._detach = None
        self.lease = 0

    def __repr__(self) -> str:
        return "<View of %d bytes of %s, %s>" % (self._len, self.handle, "closed" if self.closed else self.path)


class Buffer(_Memory):
    """Writable memory shared with the daemon; see Client.alloc(). Its contents are undefined at first.

    It ends with Client.commit(), which names the bytes, or with close(), which gives the memory back.
    """

    #: In registered memory: peers may read it by RDMA. If not, `plain` says why: "budget", "pool_exhausted",
    #: "kill_switch", "no_rdma".
    pinned: bool
    plain: str

    def __init__(self, session: Session, call: Call) -> None:
        rep = call.answer
        size = call.fields["len"]
        super().__init__(session, call, size, bool(rep.writable) or not size)
        self.pinned, self.plain = bool(rep.pinned), why_plain(rep)
        self._used = self._len
        self._spoiled = False

    def truncate(self, len_: int) -> None:
        """Fewer bytes than were asked for are committed. Raises ValueError."""
        if not 0 <= len_ <= self._len:
            raise ValueError("a buffer can only become shorter")
        self._used = len_

    def close(self) -> None:
        """Give the memory back, once no memoryview or array of it is left. Again is fine."""
        if os.getpid() != self._pid:
            self._root = None
        else:
            self._give_back()

    def __repr__(self) -> str:
        return "<Buffer of %d bytes, %s>" % (self._len, "closed" if self.closed else "open")

    # For the verbs.

    def _begin_commit(self) -> int:
        """Nothing may look at the bytes any more. @return the token. Raises BufferError, ValueError."""
        if self._root is None:
            raise ValueError("the buffer was committed or given back")
        if self._spoiled:
            raise error(errno.EBUSY, "a get into this buffer timed out: its bytes may still land there")
        w = self._window
        if w:
            w.token = 0
            self._session.hold(w.arena)  # the window's own goes with its end
            self._root = None
            self._root = w.again()
            if self._root is not None:
                w.token = self._token
                self._session.drop_hold(w.arena)
                raise BufferError("memoryviews or arrays of the buffer are still there: release them before the commit")
        self._root = None
        return self._token

    def _commit_ended(self, committed: bool) -> None:
        """The daemon has the memory; or it is still ours."""
        w = self._window
        if committed:
            self._window = None
            if w:
                self._session.drop_hold(w.arena)
            return
        self._root = memoryview(bytearray())
        if w:
            self._window = Window(self._session, w.arena, w.off, w.len, self._token, w.writable)
            self._root = self._session.open_window(self._window)


def why_plain(rep: p.Rep) -> str:
    return p.PLAIN_WHY[rep.refusal] if rep.refusal < len(p.PLAIN_WHY) else "unknown"


def nanoseconds(seconds: float | None, what: str) -> int:
    """Seconds as the daemon reads them: None is 0, the default; infinity has no end. Raises InvalidError."""
    if seconds is None:
        return 0
    if math.isinf(seconds) and seconds > 0:
        return (1 << 64) - 1
    if not seconds > 0:
        raise error(errno.EINVAL, "%s must be above 0 seconds" % what)
    return max(1, min(int(seconds * 1e9), (1 << 64) - 1))
