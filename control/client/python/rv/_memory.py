"""The daemon's arenas as this process sees them: each mapped once a session, through libc.

    shown (descriptor came) -> mapped, held by windows -> idle -> unmapped

A pooled arena stays mapped until the session ends. A single-use one goes when its last hold is dropped and no
request is under way whose reply may still name it: the daemon shows it again only for requests that it reads
after the buffer was given back.

What Python code sees of an arena is a window: a memoryview over an *exporter*, an object that every memoryview and
array made from it keeps alive. So the end of the exporter is the proof that nobody can touch the bytes any more,
and only then is the range given back or the arena unmapped.
"""
from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import Any

from .errors import error

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_F_GET_SEALS, _F_SEAL_SHRINK = 1034, 2
_MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0x4000, 0x100000
_MADV_DONTFORK = 10
_FAILED = ctypes.c_void_p(-1).value
_LEN_MAX = 1 << 62


class Arena:
    """One mapping. All of it under the session's lock."""

    __slots__ = ("id", "base", "len", "writable", "single_use", "holds", "idle_since")

    def __init__(self, id_: int, base: int, len_: int, writable: bool, single_use: bool) -> None:
        self.id, self.base, self.len = id_, base, len_
        self.writable, self.single_use = writable, single_use
        self.holds = 0
        self.idle_since = 0

    def unmap(self) -> None:
        if self.base:
            _libc.munmap(self.base, self.len)
            self.base = 0


def _usable(fd: int, len_: int) -> bool:
    """An arena that can shrink under us would turn a read into SIGBUS."""
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError:
        return False
    return bool(seals & _F_SEAL_SHRINK) and 0 < len_ <= _LEN_MAX and size >= len_


def map_arena(id_: int, fd: int, len_: int, writable: bool, single_use: bool) -> Arena:
    """Map what the daemon shows; @fd stays the caller's. Raises ProtocolError, or RvError with mmap's errno."""
    if not _usable(fd, len_):
        raise error(errno.EPROTO, "the daemon sent memory that is too short or not sealed")
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    base = _libc.mmap(None, len_, prot, mmap.MAP_SHARED, fd, 0)
    if base is None or base == _FAILED:
        raise error(ctypes.get_errno(), "the daemon's memory cannot be mapped into this process")
    _libc.madvise(base, len_, _MADV_DONTFORK)
    return Arena(id_, base, len_, writable, single_use)


def fence(arena: Arena) -> None:
    """In a forked child: keep anything else from being mapped where an inherited memoryview still points."""
    if arena.base:
        _libc.mmap(arena.base, arena.len, mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0,
                   mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE, -1, 0)


#: ctypes keeps every array type for good, so there is one for each power of two, not one for each length.
_TYPES: list[Any] = [ctypes.c_ubyte * (1 << bits) for bits in range(63)]


def exporter(address: int, len_: int) -> Any:
    """The object whose life is that of everything that can look at [address, address + len_)."""
    return _TYPES[max(len_ - 1, 0).bit_length()].from_address(address)


def window(source: Any, len_: int, writable: bool) -> memoryview:
    """A memoryview of @source's first bytes."""
    view = memoryview(source).cast("B")[:len_]
    return view if writable else view.toreadonly()
