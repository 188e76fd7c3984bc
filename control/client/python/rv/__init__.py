"""rv - stage bytes on this node, fetch bytes staged on any other.

    import rv

    with rv.Client() as client:                      # this node's daemon
        name = client.reference(client.put(b"..."))  # rv://HOST:PORT/HANDLE, for whoever is to have it

    with rv.Client() as client, client.get(name) as view:   # on any other node
        view.data                                            # a memoryview of the daemon's memory, no copy

The C library of the same daemon is librv (rv.h); this package speaks the daemon's socket itself and needs nothing
beside Python 3.11. `Client` blocks and may be shared by threads, `AsyncClient` is for asyncio.
"""
from ._verbs import Got, Meta, Request, Staged
from .aio import AsyncClient, AsyncHandler
from .buffers import Buffer, View
from .client import DEFAULT_TIMEOUT, Client, Handler
from .errors import (BusyError, ClosedError, ForkedError, InvalidError, LeaseLostError, NoSpaceError, NotConnectedError,
                     NotFoundError, NotPermittedError, NotSupportedError, ProtocolError, RemoteError, RvError,
                     TimedOutError, TooLongError, UnreachableError)
from .ref import Handle, Name, Ref

__version__ = "0.1.0"

__all__ = [
    "AsyncClient", "AsyncHandler", "Buffer", "BusyError", "Client", "ClosedError", "DEFAULT_TIMEOUT", "ForkedError",
    "Got", "Handle", "Handler", "InvalidError", "LeaseLostError", "Meta", "Name", "NoSpaceError", "NotConnectedError",
    "NotFoundError", "NotPermittedError", "NotSupportedError", "ProtocolError", "Ref", "RemoteError", "Request",
    "RvError", "Staged", "TimedOutError", "TooLongError", "UnreachableError", "View",
]
