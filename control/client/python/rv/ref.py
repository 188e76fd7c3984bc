"""Names of staged bytes: a handle, and a reference, which also says where the owner listens."""
from __future__ import annotations

import errno
import re
from typing import NamedTuple, Union

from .errors import error

_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_HOST = re.compile(r"[0-9A-Za-z._%-]{1,255}", re.ASCII)
_LITERAL = re.compile(r"[0-9A-Za-z._%:-]{1,255}", re.ASCII)
_SCHEME = "rv://"


class Handle(NamedTuple):
    """128 bits: who owns the bytes, and which bytes. `str()` is its decimal form, as everything prints it."""

    worker: int
    local: int

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Read 1 to 39 decimal digits below 2**128. Raises InvalidError, TooLongError."""
        if not _DIGITS.fullmatch(text):
            raise error(errno.EINVAL, "no handle: %r" % text[:64])
        # Checked before it is converted: leading zeros are fine, thousands of digits are not.
        digits = text.lstrip("0") or "0"
        if len(digits) > 39 or int(digits) >> 128:
            raise error(errno.ERANGE, "a handle has at most 128 bits")
        return cls(int(digits) >> 64, int(digits) & (1 << 64) - 1)

    def __str__(self) -> str:
        return str(self.worker << 64 | self.local)


def parse_host(text: str) -> tuple[str, int]:
    """Read `HOST:PORT` (IPv6 in brackets); the host comes without them. Raises InvalidError."""
    bracketed = text.startswith("[")
    host, sep, rest = text[bracketed:].partition("]" if bracketed else ":")
    port = rest[1:] if bracketed and rest.startswith(":") else "" if bracketed else rest
    sound = (_LITERAL if bracketed else _HOST).fullmatch(host)
    if not sep or not sound or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise error(errno.EINVAL, "no HOST:PORT: %r" % text[:300])
    return host, int(port)


class Ref(NamedTuple):
    """A handle and where its owner listens; an empty host: not told. `str()` is `rv://HOST:PORT/HANDLE`."""

    handle: Handle
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Read `rv://HOST:PORT/HANDLE`, or a bare handle. Raises InvalidError, TooLongError."""
        if not text.startswith(_SCHEME):
            return cls(Handle.parse(text))
        place, sep, handle = text[len(_SCHEME):].partition("/")
        if not sep:
            raise error(errno.EINVAL, "no reference: %r" % text[:300])
        host, port = parse_host(place)
        return cls(Handle.parse(handle), host, port)

    def __str__(self) -> str:
        if not self.host:
            return str(self.handle)
        host = "[%s]" % self.host if ":" in self.host else self.host
        return "%s%s:%d/%s" % (_SCHEME, host, self.port, self.handle)


#: Whatever names staged bytes: a Handle, a Ref, or the text of either.
Name = Union[Handle, Ref, str]


def as_ref(name: Name) -> Ref:
    """Any name as a reference. Raises InvalidError."""
    if isinstance(name, Ref):
        ref = name
    elif isinstance(name, Handle):
        ref = Ref(name)
    elif isinstance(name, str):
        return Ref.parse(name)
    else:
        raise error(errno.EINVAL, "a handle, a reference or its text is wanted, not %s" % type(name).__name__)
    if not all(0 <= half < 1 << 64 for half in ref.handle) or not 0 <= ref.port < 1 << 16:
        raise error(errno.EINVAL, "a handle's halves have 64 bits each, and a port 16")
    if len(ref.host.encode()) > 255:
        raise error(errno.EINVAL, "a host has at most 255 bytes")
    return ref
