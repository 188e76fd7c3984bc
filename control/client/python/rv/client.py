"""The blocking client: any number of threads, one socket, no thread of its own unless it serves handlers."""
from __future__ import annotations

import errno
import os
import select
import socket as _socket
import threading
import time
import warnings
from collections import deque
from types import TracebackType
from typing import Any, Callable, Iterable, Literal, TypeVar, Union, overload

from . import _proto as p
from . import _verbs as v
from ._session import Call, Served, Session, connect, default_path
from ._verbs import Data, Got, Meta, PathName, Request, Staged, Steps, Then
from .buffers import Buffer, View
from .errors import RvError, error
from .ref import Handle, Name, Ref, as_ref

T = TypeVar("T")

#: Seconds for a whole call; None: the daemon's limits; "default": the client's.
Timeout = Union[float, None, Literal["default"]]

#: What a handler is: it gets the Request, and returns the result (bytes-like, or None for none) or raises.
Handler = Callable[[Request], Data]

#: The timeout of calls that are given none, in seconds.
DEFAULT_TIMEOUT = 120.0

_os: Any = os  # Debian 12's mypy knows no eventfd
_POST_SECONDS = 5.0
_OWED_SECONDS = 1.0


class _Waiter:
    """A thread that sleeps while another reads."""

    __slots__ = ("event", "call")

    def __init__(self, call: Call | None) -> None:
        self.event, self.call = threading.Event(), call


class Client:
    """A session with this node's daemon.

    Every method may be called from any thread, and raises RvError: NotConnectedError when the daemon is gone (open
    another client), ForkedError in a process forked since, TimedOutError (the outcome is unknown), BusyError,
    InvalidError, ClosedError after close(), and what its own text says.

    @timeout= is in seconds and for the whole call; the daemon is told. It defaults to the client's, which defaults to
    120 s. None: each step may take as long as the daemon's rendezvous.call_timeout, and a daemon that is stopped is
    waited for.

    What ends with the session: buffers that were not committed, views, slots put with session=True, and leases unless
    taken with keep=True. Memory that a memoryview or array still shows stays, even beyond close().
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *,
                 timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Open a session.

        @socket: path of the daemon's socket. None: the environment's RVD_SOCKET, else /run/rvd/rvd.sock as root,
        $XDG_RUNTIME_DIR/rvd/rvd.sock (without it /tmp/rvd-UID/rvd.sock) as any other user.

        Raises NotConnectedError (no daemon answers there), NotPermittedError, NotSupportedError (the daemon speaks no
        version of ours), TimedOutError.
        """
        self._session: Session | None = None
        v.Budget(timeout)
        path = default_path(socket)
        deadline = time.monotonic() + v.HELLO_TIMEOUT
        while True:
            sock = connect(path, deadline)
            if sock:
                break
            time.sleep(0.01)
        self._start(sock, timeout)

    @classmethod
    def _on(cls, sock: _socket.socket, timeout: float | None = DEFAULT_TIMEOUT) -> Client:
        """On a socket that is connected already."""
        client = cls.__new__(cls)
        client._session = None
        client._start(sock, timeout)
        return client

    def _start(self, sock: _socket.socket, timeout: float | None) -> None:
        self._timeout = timeout
        s = self._session = Session(sock)
        self._wake = _os.eventfd(0, _os.EFD_NONBLOCK | _os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(s.sock, select.POLLIN)
        self._reading = False
        self._waiters: deque[_Waiter] = deque()
        self._serving = _Waiter(None)  # the thread that runs handlers
        self._server: threading.Thread | None = None
        self._stop = False
        self._running: str | None = None
        self._handled = threading.Condition()
        self._closing = threading.Lock()
        s.on_stuck = self._kick
        s.on_request = self._on_request
        s.on_dead = self._on_dead
        try:
            self._run(v.hello(s), v.Budget(v.HELLO_TIMEOUT))
        except BaseException:
            self.close()
            raise

    # Waiting. Of the threads that wait one reads for all; the rest sleep, and one of them takes over.

    @property
    def _s(self) -> Session:
        if self._session is None:
            raise error(errno.ECANCELED, "this client was closed")
        return self._session

    def _kick(self) -> None:
        """Whoever reads looks again at what it waits for."""
        if self._reading:
            _os.eventfd_write(self._wake, 1)

    def _on_request(self) -> None:
        self._serving.event.set()

    def _on_dead(self) -> None:
        self._serving.event.set()
        if self._reading:
            _os.eventfd_write(self._wake, 1)

    def _ready(self, s: Session, w: _Waiter) -> bool:
        if w.call:
            return w.call.done
        return bool(s.requests) or self._stop or s.dead is not None

    def _wait(self, w: _Waiter, deadline: float | None) -> bool:
        """Until the call has ended, or there is a request. @return False: the deadline has passed"""
        s = self._s
        lead = False
        try:
            while True:
                with s.guard:
                    if self._ready(s, w):
                        return True
                    lead = not self._reading
                    if lead:
                        self._reading = True
                    else:
                        w.event.clear()
                        if w.call:
                            w.call.wake = w.event.set
                        self._waiters.append(w)
                if lead:
                    return self._lead(s, w, deadline)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                w.event.wait(left)
                with s.guard:
                    if w in self._waiters:
                        self._waiters.remove(w)
        finally:
            with s.guard:
                if lead:
                    self._reading = False
                if w in self._waiters:
                    self._waiters.remove(w)
                if not self._reading and self._waiters:
                    # A thread that serves reads for others only if nobody else does.
                    nxt = next((o for o in self._waiters if o.call), self._waiters[0])
                    nxt.event.set()

    def _lead(self, s: Session, w: _Waiter, deadline: float | None) -> bool:
        """Read for everybody until what @w waits for is there. @return False: the deadline has passed"""
        while True:
            with s.guard:
                if self._ready(s, w):  # a session that is dead has ended every call
                    return True
                self._poll.modify(s.sock, select.POLLIN | (select.POLLOUT if s.out else 0))
            ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
            events = self._poll.poll(ms)
            if not events and ms is not None and time.monotonic() >= (deadline or 0):
                return self._ready(s, w)
            for fd, what in events:
                if fd == self._wake:
                    try:
                        _os.eventfd_read(self._wake)
                    except BlockingIOError:
                        pass
                    continue
                if what & select.POLLOUT:
                    s.flush()
                if what & ~select.POLLOUT:
                    s.read_ready(1)

    def _run(self, steps: Steps[T], b: v.Budget) -> T:
        """Drive a verb to its end."""
        result: Any = None
        failure: BaseException | None = None
        while True:
            try:
                what = steps.throw(failure) if failure else steps.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            failure = None
            try:
                if isinstance(what, v.Lookup):
                    result = _resolve(what.host, b.deadline())
                else:
                    result = what
                    if not self._wait(_Waiter(what), b.deadline()):
                        raise error(errno.ETIMEDOUT, "the daemon did not answer in time")
            except BaseException as e:
                failure = e

    def _budget(self, timeout: Timeout) -> v.Budget:
        self._s.check()
        return v.Budget(self._timeout if timeout == "default" else timeout)

    # The session.

    @property
    def worker(self) -> int:
        """WorkerId of the daemon's node: the high half of the handles it gives out."""
        return self._s.worker

    @property
    def closed(self) -> bool:
        """Was close() called? A client whose daemon is gone is not closed: its calls raise NotConnectedError."""
        return self._session is None

    def close(self) -> None:
        """End the session. Calls of other threads end with ClosedError. Not from inside a handler. Again is fine.

        Views and buffers are closed with it; memory that a memoryview or array still shows is given back when that
        has gone.
        """
        if self._server is threading.current_thread():
            raise error(errno.EINVAL, "a handler cannot close the client that it serves")
        s = self._session
        if s is None:
            return
        if os.getpid() != s.pid:
            s.close()
            self._session = None
            os.close(self._wake)
            return
        with self._closing:
            if self._session is None:
                return
            with s.guard:
                self._stop = True
                self._serving.event.set()
                self._kick()
            if self._server:
                self._server.join()
            s.abandon()
            self._kick()
            self._settle_owed(s)
            s.end_memory()
            s.drain(_POST_SECONDS)
            s.on_stuck = s.on_request = s.on_dead = _nothing
            s.close()
            self._session = None
            os.close(self._wake)

    def _settle_owed(self, s: Session) -> None:
        """Nobody reads any more but us; and answers that are still to come are waited for, a little."""
        until = time.monotonic() + _OWED_SECONDS
        while True:
            with s.guard:
                mine = not self._reading
                self._reading = True
            if mine:
                break
            _os.eventfd_write(self._wake, 1)
            time.sleep(0.001)
        while s.owed() and time.monotonic() < until:
            self._poll.modify(s.sock, select.POLLIN | (select.POLLOUT if s.flush() else 0))
            self._poll.poll(20)
            s.read_ready()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        s = getattr(self, "_session", None)
        if s is not None and s.pid == os.getpid():
            warnings.warn("unclosed %r" % self, ResourceWarning, stacklevel=2, source=self)
            if not s.guard.lock.locked():
                self.close()

    # Staging.

    def put(self, data: Data, *, pinned: bool = True, ttl: float | None = None, refs: int = 1, session: bool = False,
            timeout: Timeout = "default") -> Staged:
        """Stage a copy of the bytes of @data (anything with contiguous memory, a NumPy array too).

        @pinned: in registered memory, which peers read by RDMA; without room there it becomes plain memory, which is
        no error: the result's `pinned` and `plain` tell. False: in plain memory, which peers fetch in chunks.
        @ttl: the slot's life in seconds; None: the daemon's rendezvous.default_ttl; math.inf: no end.
        @refs: references to start with.
        @session: the slot ends with this client. Else it outlives it.

        Returns its handle. Raises NoSpaceError: a budget or rendezvous.max_slots is used up.
        """
        b = self._budget(timeout)
        return self._run(v.put(self._s, v.as_bytes(data), None if pinned else p.PLAIN, ttl, refs, session, b), b)

    def alloc(self, size: int, *, timeout: Timeout = "default") -> Buffer:
        """A writable buffer in memory shared with the daemon, registered where there is room for that.

        End it with commit() or Buffer.close(). Raises NoSpaceError.
        """
        b = self._budget(timeout)
        return self._run(v.alloc(self._s, size, b), b)

    def commit(self, buffer: Buffer, *, ttl: float | None = None, refs: int = 1, session: bool = False,
               timeout: Timeout = "default") -> Staged:
        """Name the bytes of a buffer, without a copy. Returns the handle; otherwise as put().

        Nothing may show the buffer's memory any more: BufferError while a memoryview or array of it is left, for
        what it wrote later would change published bytes. After a failure the buffer is still the caller's; but after a
        TimedOutError it is closed: whether it was named is unknown, and undone.
        """
        b = self._budget(timeout)
        return self._run(v.commit(self._s, buffer, ttl, refs, session, b), b)

    # Fetching.

    def get(self, name: Name, *, path: PathName = "any", keep: bool = False, then: Then = "keep",
            timeout: Timeout = "default") -> View:
        """Fetch the bytes and look at them where the daemon put them: no copy.

        @path: "rdma" fails rather than falls back, "chunked" goes over TCP.
        @then: what becomes of the lease once the bytes are here: the view has it ("keep"), it has ended ("detach"),
        or ended and a reference was given back ("release"). With the latter two a short payload takes one message
        each way.
        @keep: the lease outlives the session, and the view does not end it.

        Raises NotFoundError, NotPermittedError, UnreachableError, RemoteError, LeaseLostError (the bytes cannot be
        proven right), NoSpaceError (no room for them on this node), NotSupportedError (@path cannot be had).
        """
        b = self._budget(timeout)
        return self._run(v.get(self._s, as_ref(name), v.get_fields(path, keep, then), b), b)

    def get_bytes(self, name: Name, *, path: PathName = "any", then: Literal["detach", "release"] = "detach",
                  timeout: Timeout = "default") -> bytes:
        """A copy of the bytes; nothing is left to end. Otherwise as get()."""
        b = self._budget(timeout)
        return self._run(v.get_bytes(self._s, as_ref(name), v.get_fields(path, False, then), b), b)

    def get_into(self, name: Name, dst: Data, *, offset: int = 0, size: int | None = None, path: PathName = "any",
                 keep: bool = False, then: Then = "detach", timeout: Timeout = "default") -> Got:
        """Fetch the bytes into the caller's memory, at @offset, @size bytes of it at most.

        @dst: writable memory; or a Buffer of this client, into which the daemon puts them itself, without a copy
        here. Its contents are undefined after a failure. After a TimedOutError such a Buffer can only be closed.

        Returns how many bytes there are, and with then="keep" the lease, which the caller ends. Otherwise as get();
        also TooLongError: more than there is room for; its `length` says how many, and nothing was written.
        """
        b = self._budget(timeout)
        to, off, room = v.check_bytes_dst(dst, offset, size)
        return self._run(v.get_into(self._s, as_ref(name), v.get_fields(path, keep, then), to, off, room, b), b)

    @overload
    def get_many(self, names: Iterable[Name], *, path: PathName = ..., keep: bool = ..., then: Then = ...,
                 errors: Literal[False] = ..., timeout: Timeout = ...) -> list[View]: ...

    @overload
    def get_many(self, names: Iterable[Name], *, path: PathName = ..., keep: bool = ..., then: Then = ...,
                 errors: Literal[True], timeout: Timeout = ...) -> list[View | RvError]: ...

    def get_many(self, names: Iterable[Name], *, path: PathName = "any", keep: bool = False, then: Then = "keep",
                 errors: bool = False, timeout: Timeout = "default") -> Any:
        """Fetch many slots, under way together. Returns their views, in order. Options as for get(), for each.

        If one fails the others are closed and its exception is raised; with errors=True exceptions stand in the
        places of those that failed.
        """
        b = self._budget(timeout)
        refs = [as_ref(name) for name in names]
        return self._run(v.get_many(self._s, refs, v.get_fields(path, keep, then), errors, b), b)

    # About a handle.

    def metadata(self, name: Name, *, timeout: Timeout = "default") -> Meta:
        """Ask the owner about a slot: `len`, `refcount`, `pinned`. Raises as get()."""
        b = self._budget(timeout)
        return self._run(v.metadata(self._s, as_ref(name), b), b)

    def ref(self, name: Name, *, timeout: Timeout = "default") -> None:
        """One reference more. Raises as get()."""
        b = self._budget(timeout)
        self._run(v.about(self._s, p.REF, as_ref(name), 0, b), b)

    def detach(self, what: Name | View, lease: int = 0, *, timeout: Timeout = "default") -> None:
        """End a lease, a view's or @lease; the slot keeps its references. The view stays. NotFoundError: it is over."""
        b = self._budget(timeout)
        self._run(v.about(self._s, p.DETACH, what, lease, b), b)

    def release(self, what: Name | View, lease: int = 0, *, timeout: Timeout = "default") -> None:
        """End a lease and give a reference back; the slot ends with its last reference and lease.

        Without a lease one is taken only to be released. The view stays. NotFoundError: the lease is over.
        """
        b = self._budget(timeout)
        self._run(v.about(self._s, p.RELEASE, what, lease, b), b)

    def drop(self, handle: Name, *, timeout: Timeout = "default") -> None:
        """Free a slot of this node, whoever reads it. Raises NotFoundError, NotPermittedError, InvalidError
        (another node's)."""
        b = self._budget(timeout)
        self._run(v.drop(self._s, as_ref(handle), b), b)

    def reference(self, handle: Handle, host: str = "", *, timeout: Timeout = "default") -> Ref:
        """The reference of a slot of this node: where its daemon listens, or @host if that is given.

        A daemon that listens on every address is named by the source address of this machine's way out. Without a
        listener the bare handle is all there is.
        """
        b = self._budget(timeout)
        return self._run(v.reference(self._s, handle, host, b), b)

    # Messages.

    def send(self, peer: str, handler: str, data: Data = b"", *, timeout: Timeout = "default") -> None:
        """Send a message to a handler of a peer, and do not wait until it was handled.

        @peer: its name (peer_add), HOST:PORT, or its WorkerId in decimal. Payloads over the daemon's
        rendezvous.threshold are staged, and fetched by the peer.

        Raises RemoteError (the peer or its handler failed, with its words), UnreachableError.
        """
        b = self._budget(timeout)
        self._run(v.message(self._s, peer, handler, v.as_bytes(data), p.FIRE, b), b)

    def sync(self, peer: str, handler: str, data: Data = b"", *, timeout: Timeout = "default") -> None:
        """The same, until it was handled."""
        b = self._budget(timeout)
        self._run(v.message(self._s, peer, handler, v.as_bytes(data), p.SYNC, b), b)

    def call(self, peer: str, handler: str, data: Data = b"", *, timeout: Timeout = "default") -> bytes:
        """The same, for the result."""
        b = self._budget(timeout)
        return self._run(v.message(self._s, peer, handler, v.as_bytes(data), p.UNARY, b), b)

    def handlers(self, peer: str, *, timeout: Timeout = "default") -> list[str]:
        """The names of what a peer serves."""
        b = self._budget(timeout)
        return self._run(v.handlers(self._s, peer, b), b)

    def serve(self, name: str, handler: Handler, *, timeout: Timeout = "default") -> None:
        """Serve a handler on this node: requests of any peer, stock velo nodes included, come to it.

        It runs on a thread of the client's, one request at a time, and may make calls. What it returns is the
        result; what it raises is what the caller reads. Payloads of any size arrive whole.

        @name: 1 to 63 bytes, not starting with '_'. Raises RvError with EEXIST: it is served already.
        """
        b = self._budget(timeout)
        raw = v.check_handler(name)
        s = self._s
        with self._handled:
            if name in s.handlers:
                raise error(errno.EEXIST, "this client serves '%s' already" % name)
            s.handlers[name] = handler
            s.serving = True
            if not self._server:
                self._server = threading.Thread(target=self._serve_loop, name="rv-serve", daemon=True)
                self._server.start()
        try:
            self._run(v.ask_name(s, p.SERVE, raw, b), b)
        except BaseException:
            s.handlers.pop(name, None)
            raise

    def unserve(self, name: str, *, timeout: Timeout = "default") -> None:
        """No more requests. When this returns no call of the handler runs any more; from inside it, at once."""
        b = self._budget(timeout)
        s = self._s
        self._run(v.ask_name(s, p.UNSERVE, v.check_handler(name), b), b)
        with self._handled:
            s.handlers.pop(name, None)
            if threading.current_thread() is not self._server:
                self._handled.wait_for(lambda: self._running != name)

    def _serve_loop(self) -> None:
        s = self._s
        while True:
            self._wait(self._serving, None)
            with s.guard:
                if s.dead or self._stop:
                    return
                served = s.requests.popleft() if s.requests else None
            if served:
                self._serve_one(s, served)
                del served

    def _serve_one(self, s: Session, served: Served) -> None:
        result, failure = None, None
        with self._handled:
            handler = s.handlers.get(served.name)
            self._running = served.name
        try:
            if handler is None:
                raise LookupError("Handler '%s' not found" % served.name)
            data = served.root if served.root is not None else memoryview(served.payload).toreadonly()
            result = handler(Request(served.name, served.rep.worker, data, served.rep.path == p.UNARY))
        except Exception as e:
            failure = e
        v.answer(s, served.rep.id, result, failure)
        if failure:
            failure.__traceback__ = None  # whose frames would keep the payload
        with self._handled:
            self._running = None
            self._handled.notify_all()

    # Peers and state.

    def peer_add(self, info: Data = b"", *, at: str = "", name: str = "", timeout: Timeout = "default") -> int:
        """Make a peer known, from its PeerInfo (JSON or msgpack) or by address: @at is HOST:PORT, for nodes of our
        kind. Returns its WorkerId. Raises ProtocolError: the PeerInfo is not usable, UnreachableError."""
        b = self._budget(timeout)
        return self._run(v.peer_add(self._s, v.as_bytes(info), at, name, b), b)

    def peer_info(self, *, msgpack: bool = False, timeout: Timeout = "default") -> bytes:
        """This node's own PeerInfo, JSON or msgpack."""
        b = self._budget(timeout)
        return self._run(v.peer_info(self._s, msgpack, b), b)

    def state(self, what: str = "status", *, timeout: Timeout = "default") -> dict[str, Any]:
        """The daemon's state: "status", "slots", "leases", "arenas", "peers", "regions", "endpoints", "cores" or
        "config", as `rvctl --json` prints it."""
        b = self._budget(timeout)
        return self._run(v.state(self._s, what, b), b)


def _resolve(host: str, deadline: float | None) -> list[str]:
    """The addresses of a host. A name server may take its time: with a deadline it is asked on a thread."""
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(_socket.getaddrinfo(host, None, type=_socket.SOCK_STREAM))
        except (OSError, UnicodeError) as e:
            found.append(e)

    if deadline is None or is_literal(host):
        look()
    else:
        thread = threading.Thread(target=look, name="rv-lookup", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise error(errno.ETIMEDOUT, "the name server did not answer in time about %s" % host)
    return literals(host, found[0])


def is_literal(host: str) -> bool:
    try:
        _socket.getaddrinfo(host, None, flags=_socket.AI_NUMERICHOST)
        return True
    except (OSError, UnicodeError):
        return False


def literals(host: str, found: Any) -> list[str]:
    """At most four of getaddrinfo()'s addresses, as the daemon reads them; or what it raised, as ours."""
    if isinstance(found, Exception):
        raise error(errno.EHOSTUNREACH, "cannot find the host %s: %s" % (host, found)) from found
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))[:4]


def _nothing() -> None:
    pass
