"""What goes wrong, as exceptions: one class for what a program would treat alike, each with errno and words.

Every exception of this package is an `RvError`, which is an `OSError`: `errno` is positive, `strerror` is the
daemon's own sentence where it sent one. Where Python has a class for the same thing (`TimeoutError`,
`ConnectionError`, `PermissionError`) it is a base too.
"""
from __future__ import annotations

import errno
import os


class RvError(OSError):
    """The base; `errno` as `rv.h` names it, without the sign."""

    errno: int
    strerror: str

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)

    def __str__(self) -> str:
        return "%s (%s)" % (self.strerror, errno.errorcode.get(self.errno, str(self.errno)))


class NotConnectedError(RvError, ConnectionError):
    """ENOTCONN: the daemon closed the connection, or none runs. Open another client."""


class ClosedError(RvError):
    """ECANCELED: this client was closed. What a call that was under way did at its owner is unknown."""


class ForkedError(RvError):
    """EOWNERDEAD: this process was forked after the client was opened. Open one of its own."""


class ProtocolError(RvError):
    """EPROTO: the daemon said something that cannot be right."""


class NotSupportedError(RvError):
    """ENOTSUP: the daemon or the owner does not speak that, or the path asked for cannot be had."""


class TimedOutError(RvError, TimeoutError):
    """ETIMEDOUT: no answer in time; the outcome is unknown."""


class BusyError(RvError):
    """EAGAIN, EBUSY: try again."""


class NoSpaceError(RvError):
    """ENOSPC: a budget or a table of the daemon is used up."""


class NotFoundError(RvError, LookupError):
    """ENOENT, ESTALE: no such handle, lease or handler; or it is over."""


class NotPermittedError(RvError, PermissionError):
    """EPERM, EACCES: another user's, or no permission for the socket."""


class UnreachableError(RvError, ConnectionError):
    """EHOSTUNREACH, ECONNRESET: no way to the owner, or it went away."""


class RemoteError(RvError):
    """EREMOTEIO: the owner, the peer or its handler reported an error; `strerror` has its words."""


class LeaseLostError(RvError):
    """EKEYREVOKED: the lease was lost, so the bytes cannot be proven right."""


class TooLongError(RvError):
    """ERANGE, EMSGSIZE: out of range. `length` is how many bytes there are, where that is known."""

    length: int | None = None


class InvalidError(RvError, ValueError):
    """EINVAL: an argument is wrong."""


_CLASSES: dict[int, type[RvError]] = {
    errno.ENOTCONN: NotConnectedError, errno.ECANCELED: ClosedError, errno.EOWNERDEAD: ForkedError,
    errno.EPROTO: ProtocolError, errno.ENOTSUP: NotSupportedError, errno.ETIMEDOUT: TimedOutError,
    errno.EAGAIN: BusyError, errno.EBUSY: BusyError, errno.ENOSPC: NoSpaceError, errno.ENOENT: NotFoundError,
    errno.ESTALE: NotFoundError, errno.EPERM: NotPermittedError, errno.EACCES: NotPermittedError,
    errno.EHOSTUNREACH: UnreachableError, errno.ECONNRESET: UnreachableError, errno.EREMOTEIO: RemoteError,
    errno.EKEYREVOKED: LeaseLostError, errno.ERANGE: TooLongError, errno.EMSGSIZE: TooLongError,
    errno.EINVAL: InvalidError,
}


def error(code: int, text: str = "") -> RvError:
    """The exception for an errno, positive or negative."""
    code = abs(code)
    return _CLASSES.get(code, RvError)(code, text or os.strerror(code))
