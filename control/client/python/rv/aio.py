"""The same client on asyncio: one connection, any number of calls under way, and no thread."""
from __future__ import annotations

import asyncio
import errno
import os
import socket as _socket
import threading
import time
import warnings
from types import TracebackType
from typing import Any, Awaitable, Callable, Iterable, Literal, TypeVar, Union, overload

from . import _proto as p
from . import _verbs as v
from ._session import Call, Served, Session, connect, default_path
from ._verbs import Data, Got, Meta, PathName, Request, Staged, Steps, Then
from .buffers import Buffer, View
from .client import DEFAULT_TIMEOUT, Timeout, literals
from .errors import RvError, error
from .ref import Handle, Name, Ref, as_ref

T = TypeVar("T")

#: What a handler is: a function or a coroutine function; see Client.serve().
AsyncHandler = Callable[[Request], Union[Data, Awaitable[Data]]]

_POST_SECONDS = 5.0
_OWED_SECONDS = 1.0


class AsyncClient:
    """A session with this node's daemon, for one event loop: `async with await AsyncClient.open() as client:`.

    The methods are Client's, as coroutines, with the same options, results and exceptions. They are called on the
    loop's thread. A call that is cancelled is undone: what its answer brings is given back when it comes; what it did
    at its owner is unknown. Bytes to stage or send are borrowed until the call ends.

    Copies are made on the loop: get_bytes(), get_into() other memory than a Buffer, and put() of 64 KiB or more.
    """

    def __init__(self) -> None:
        """Use open()."""
        self._session: Session | None = None
        self._timeout: float | None = DEFAULT_TIMEOUT

    @classmethod
    async def open(cls, socket: str | os.PathLike[str] | None = None, *,
                   timeout: float | None = DEFAULT_TIMEOUT) -> AsyncClient:
        """Open a session; arguments and exceptions as Client()."""
        v.Budget(timeout)
        path = default_path(socket)
        deadline = time.monotonic() + v.HELLO_TIMEOUT
        while True:
            sock = connect(path, deadline)
            if sock:
                return await cls._on(sock, timeout)
            await asyncio.sleep(0.01)

    @classmethod
    async def _on(cls, sock: _socket.socket, timeout: float | None = DEFAULT_TIMEOUT) -> AsyncClient:
        """On a socket that is connected already."""
        client = cls()
        client._timeout = timeout
        client._loop = asyncio.get_running_loop()
        client._thread = threading.get_ident()
        client._tasks = {}
        client._closing = asyncio.Lock()
        s = client._session = Session(sock)
        s.on_stuck = client._on_stuck
        s.on_request = client._on_request
        s.on_dead = client._on_dead
        client._loop.add_reader(s.sock, s.read_ready)
        try:
            await client._run(v.hello(s), v.Budget(v.HELLO_TIMEOUT))
        except BaseException:
            await client.close()
            raise
        return client

    _loop: asyncio.AbstractEventLoop
    _thread: int
    _tasks: dict[asyncio.Task[None], str]
    _closing: asyncio.Lock

    # Driving. Memory can end on any thread, and its end sends; so these are called on any.

    @property
    def _s(self) -> Session:
        if self._session is None:
            raise error(errno.ECANCELED, "this client was closed")
        return self._session

    def _soon(self, fn: Callable[[], None]) -> None:
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(fn)
            else:
                self._loop.call_soon_threadsafe(fn)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def _on_stuck(self) -> None:
        self._soon(self._watch_room)

    def _watch_room(self) -> None:
        s = self._session
        if s and not s.dead:
            self._loop.add_writer(s.sock, self._on_room)

    def _on_room(self) -> None:
        s = self._session
        if s and not s.flush():
            self._loop.remove_writer(s.sock)

    def _on_dead(self) -> None:
        self._soon(self._unwatch)

    def _unwatch(self) -> None:
        s = self._session
        if s and s.sock.fileno() >= 0:
            self._loop.remove_reader(s.sock)
            self._loop.remove_writer(s.sock)

    async def _wait(self, s: Session, call: Call, deadline: float | None) -> None:
        done: asyncio.Future[bool] = self._loop.create_future()

        def end(in_time: bool) -> None:
            if not done.done():
                done.set_result(in_time)

        with s.guard:
            if call.done:
                return
            call.wake = lambda: end(True) if threading.get_ident() == self._thread else self._soon(lambda: end(True))
        timer = None
        if deadline is not None:
            timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), end, False)
        try:
            if not await done:
                raise error(errno.ETIMEDOUT, "the daemon did not answer in time")
        finally:
            if timer:
                timer.cancel()

    async def _run(self, steps: Steps[T], b: v.Budget) -> T:
        """Drive a verb to its end."""
        s = self._s
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
                    result = await self._resolve(what.host, b.deadline())
                else:
                    result = what
                    await self._wait(s, what, b.deadline())
            except BaseException as e:
                failure = e

    async def _resolve(self, host: str, deadline: float | None) -> list[str]:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        look = self._loop.getaddrinfo(host, None, type=_socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(left):
                found: Any = await look
        except TimeoutError:
            raise error(errno.ETIMEDOUT, "the name server did not answer in time about %s" % host) from None
        except (OSError, UnicodeError) as e:
            found = e
        return literals(host, found)

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
        """Was close() called?"""
        return self._session is None

    async def close(self) -> None:
        """End the session, as Client.close(). Handlers that run are cancelled. Not from inside one."""
        if asyncio.current_task() in getattr(self, "_tasks", ()):
            raise error(errno.EINVAL, "a handler cannot close the client that it serves")
        async with self._closing:
            s = self._session
            if s is None:
                return
            if os.getpid() == s.pid:
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                s.abandon()
                await _until(s.settled, _OWED_SECONDS)
                s.end_memory()
                await _until(s.flushed, _POST_SECONDS)
                self._unwatch()
                s.on_stuck = s.on_request = s.on_dead = _nothing
            s.close()
            self._session = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None,
                        tb: TracebackType | None) -> None:
        await self.close()

    def __del__(self) -> None:
        s = getattr(self, "_session", None)
        if s is not None and s.pid == os.getpid():
            warnings.warn("unclosed %r" % self, ResourceWarning, stacklevel=2, source=self)
            if not s.guard.lock.locked():
                s.on_stuck = s.on_request = s.on_dead = _nothing
                s.end_memory()
                s.close()

    # Staging.

    async def put(self, data: Data, *, pinned: bool = True, ttl: float | None = None, refs: int = 1,
                  session: bool = False, timeout: Timeout = "default") -> Staged:
        """Client.put(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.put(self._s, v.as_bytes(data), None if pinned else p.PLAIN, ttl, refs, session, b), b)

    async def alloc(self, size: int, *, timeout: Timeout = "default") -> Buffer:
        """Client.alloc(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.alloc(self._s, size, b), b)

    async def commit(self, buffer: Buffer, *, ttl: float | None = None, refs: int = 1, session: bool = False,
                     timeout: Timeout = "default") -> Staged:
        """Client.commit(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.commit(self._s, buffer, ttl, refs, session, b), b)

    # Fetching.

    async def get(self, name: Name, *, path: PathName = "any", keep: bool = False, then: Then = "keep",
                  timeout: Timeout = "default") -> View:
        """Client.get(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.get(self._s, as_ref(name), v.get_fields(path, keep, then), b), b)

    async def get_bytes(self, name: Name, *, path: PathName = "any", then: Literal["detach", "release"] = "detach",
                        timeout: Timeout = "default") -> bytes:
        """Client.get_bytes(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.get_bytes(self._s, as_ref(name), v.get_fields(path, False, then), b), b)

    async def get_into(self, name: Name, dst: Data, *, offset: int = 0, size: int | None = None,
                       path: PathName = "any", keep: bool = False, then: Then = "detach",
                       timeout: Timeout = "default") -> Got:
        """Client.get_into(), without blocking the loop."""
        b = self._budget(timeout)
        to, off, room = v.check_bytes_dst(dst, offset, size)
        return await self._run(v.get_into(self._s, as_ref(name), v.get_fields(path, keep, then), to, off, room, b), b)

    @overload
    async def get_many(self, names: Iterable[Name], *, path: PathName = ..., keep: bool = ..., then: Then = ...,
                       errors: Literal[False] = ..., timeout: Timeout = ...) -> list[View]: ...

    @overload
    async def get_many(self, names: Iterable[Name], *, path: PathName = ..., keep: bool = ..., then: Then = ...,
                       errors: Literal[True], timeout: Timeout = ...) -> list[View | RvError]: ...

    async def get_many(self, names: Iterable[Name], *, path: PathName = "any", keep: bool = False,
                       then: Then = "keep", errors: bool = False, timeout: Timeout = "default") -> Any:
        """Client.get_many(), without blocking the loop."""
        b = self._budget(timeout)
        refs = [as_ref(name) for name in names]
        return await self._run(v.get_many(self._s, refs, v.get_fields(path, keep, then), errors, b), b)

    # About a handle.

    async def metadata(self, name: Name, *, timeout: Timeout = "default") -> Meta:
        """Client.metadata(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.metadata(self._s, as_ref(name), b), b)

    async def ref(self, name: Name, *, timeout: Timeout = "default") -> None:
        """Client.ref(), without blocking the loop."""
        b = self._budget(timeout)
        await self._run(v.about(self._s, p.REF, as_ref(name), 0, b), b)

    async def detach(self, what: Name | View, lease: int = 0, *, timeout: Timeout = "default") -> None:
        """Client.detach(), without blocking the loop."""
        b = self._budget(timeout)
        await self._run(v.about(self._s, p.DETACH, what, lease, b), b)

    async def release(self, what: Name | View, lease: int = 0, *, timeout: Timeout = "default") -> None:
        """Client.release(), without blocking the loop."""
        b = self._budget(timeout)
        await self._run(v.about(self._s, p.RELEASE, what, lease, b), b)

    async def drop(self, handle: Name, *, timeout: Timeout = "default") -> None:
        """Client.drop(), without blocking the loop."""
        b = self._budget(timeout)
        await self._run(v.drop(self._s, as_ref(handle), b), b)

    async def reference(self, handle: Handle, host: str = "", *, timeout: Timeout = "default") -> Ref:
        """Client.reference(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.reference(self._s, handle, host, b), b)

    # Messages.

    async def send(self, peer: str, handler: str, data: Data = b"", *, timeout: Timeout = "default") -> None:
        """Client.send(), without blocking the loop."""
        b = self._budget(timeout)
        await self._run(v.message(self._s, peer, handler, v.as_bytes(data), p.FIRE, b), b)

    async def sync(self, peer: str, handler: str, data: Data = b"", *, timeout: Timeout = "default") -> None:
        """Client.sync(), without blocking the loop."""
        b = self._budget(timeout)
        await self._run(v.message(self._s, peer, handler, v.as_bytes(data), p.SYNC, b), b)

    async def call(self, peer: str, handler: str, data: Data = b"", *, timeout: Timeout = "default") -> bytes:
        """Client.call(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.message(self._s, peer, handler, v.as_bytes(data), p.UNARY, b), b)

    async def handlers(self, peer: str, *, timeout: Timeout = "default") -> list[str]:
        """Client.handlers(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.handlers(self._s, peer, b), b)

    async def serve(self, name: str, handler: AsyncHandler, *, timeout: Timeout = "default") -> None:
        """Client.serve(); each request is a task of its own. A plain function runs on the loop."""
        b = self._budget(timeout)
        raw = v.check_handler(name)
        s = self._s
        if name in s.handlers:
            raise error(errno.EEXIST, "this client serves '%s' already" % name)
        s.handlers[name] = handler
        s.serving = True
        try:
            await self._run(v.ask_name(s, p.SERVE, raw, b), b)
        except BaseException:
            s.handlers.pop(name, None)
            raise

    async def unserve(self, name: str, *, timeout: Timeout = "default") -> None:
        """Client.unserve(): waits for the calls of the handler that run, but not from inside one."""
        b = self._budget(timeout)
        s = self._s
        await self._run(v.ask_name(s, p.UNSERVE, v.check_handler(name), b), b)
        s.handlers.pop(name, None)
        running = [t for t, n in self._tasks.items() if n == name]
        if running and asyncio.current_task() not in running:
            await asyncio.wait(running)

    def _on_request(self) -> None:
        self._soon(self._serve_queued)

    def _serve_queued(self) -> None:
        s = self._session
        while s and s.requests:
            served = s.requests.popleft()
            task = self._loop.create_task(self._serve_one(s, served))
            self._tasks[task] = served.name
            task.add_done_callback(lambda t: self._tasks.pop(t, None))

    async def _serve_one(self, s: Session, served: Served) -> None:
        result, failure = None, None
        try:
            handler = s.handlers.get(served.name)
            if handler is None:
                raise LookupError("Handler '%s' not found" % served.name)
            data = served.root if served.root is not None else memoryview(served.payload).toreadonly()
            result = handler(Request(served.name, served.rep.worker, data, served.rep.path == p.UNARY))
            if asyncio.iscoroutine(result) or asyncio.isfuture(result):
                result = await result
        except asyncio.CancelledError:
            v.answer(s, served.rep.id, None, RuntimeError("the handler was cancelled"))
            raise
        except Exception as e:
            failure = e
        v.answer(s, served.rep.id, result, failure)
        if failure:
            failure.__traceback__ = None  # whose frames would keep the payload

    # Peers and state.

    async def peer_add(self, info: Data = b"", *, at: str = "", name: str = "", timeout: Timeout = "default") -> int:
        """Client.peer_add(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.peer_add(self._s, v.as_bytes(info), at, name, b), b)

    async def peer_info(self, *, msgpack: bool = False, timeout: Timeout = "default") -> bytes:
        """Client.peer_info(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.peer_info(self._s, msgpack, b), b)

    async def state(self, what: str = "status", *, timeout: Timeout = "default") -> dict[str, Any]:
        """Client.state(), without blocking the loop."""
        b = self._budget(timeout)
        return await self._run(v.state(self._s, what, b), b)


def _nothing() -> None:
    pass


async def _until(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        await asyncio.sleep(0.002)
