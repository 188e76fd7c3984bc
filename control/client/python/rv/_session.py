"""One session with the daemon, whoever drives it: calls under way, arenas, what must be given back.

    call --start()--> under way ---reply---> done          (its verb takes what it brought)
                          '--give_up()--reply--> undone    (a buffer freed, a lease detached, a slot dropped)

Nothing here waits: the socket does not block, and one lock covers all but the reading of the socket, which only one
thread at a time may do. Client waits with threads, AsyncClient with an event loop.

Windows end wherever Python drops the last reference, which can be inside this very code, on any thread. So their
end only puts them on `gone`, and whoever can have the lock without waiting, or has just let go of it, takes them
from there.
"""
from __future__ import annotations

import array
import errno
import grp
import os
import socket
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Iterator, Sequence

from . import _memory
from . import _proto as p
from .errors import ForkedError, RvError, TooLongError, error

TEXT_MAX = 400
SYSTEM_SOCKET = "/run/rvd/rvd.sock"  # of the daemon that the system starts
_RECV = 65536
_READS = 64  # a turn of an event loop
_CMSG = socket.CMSG_SPACE(32 * 4)
_RECV_FLAGS = int(socket.MSG_DONTWAIT) | int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_CTRUNC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT) | int(socket.MSG_NOSIGNAL)
_GIVES = (p.GET, p.ALLOC, p.COMMIT)
_CLOSED = "the daemon closed the connection"

# Sessions of this process; and those that were closed while something could still look at their memory.
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_lingering: set[Session] = set()


class Call:
    """One request. Whoever made it gives it up or takes what it brought."""

    __slots__ = ("op", "fields", "id", "done", "given_up", "rep", "payload", "arena", "failure", "before", "wake",
                 "__weakref__")

    def __init__(self, op: int, **fields: Any) -> None:
        self.op, self.fields = op, fields
        self.id = 0
        self.done = self.given_up = False
        self.rep: p.Rep | None = None
        self.payload: p.Buf = b""
        self.arena: _memory.Arena | None = None  # with one hold, if the reply names one
        self.failure: RvError | None = None
        self.before: Call | None = None  # a WRITE that goes first
        self.wake: Callable[[], None] | None = None  # under the lock, once done

    @property
    def answer(self) -> p.Rep:
        assert self.rep is not None
        return self.rep


class Window:
    """A range of an arena that Python code can look at. With a token it is given back when nothing can any more."""

    __slots__ = ("session", "arena", "off", "len", "token", "writable", "ref")

    def __init__(self, session: Session, arena: _memory.Arena, off: int, len_: int, token: int, writable: bool) -> None:
        self.session, self.arena, self.off, self.len = session, arena, off, len_
        self.token, self.writable = token, writable
        self.ref: weakref.ref[Any] | None = None

    def open(self) -> memoryview:
        """The bytes, through a new exporter; the caller has a hold on the arena, and the window takes it over."""
        source = _memory.exporter(self.arena.base + self.off, self.len)
        self.ref = weakref.ref(source, self._gone)
        return _memory.window(source, self.len, self.writable)

    def again(self) -> memoryview | None:
        """The bytes, if something else still looks at them."""
        source = self.ref() if self.ref else None
        return None if source is None else _memory.window(source, self.len, self.writable)

    def _gone(self, _: Any) -> None:
        self.session.gone.append(self)
        self.session.collect()


class Served:
    """A request to a handler of this program."""

    __slots__ = ("rep", "payload", "root", "name")

    def __init__(self, rep: p.Rep, payload: p.Buf, root: memoryview | None) -> None:
        self.rep, self.payload, self.root = rep, payload, root
        self.name = rep.path_name.split(b"\0")[0].decode(errors="replace")


class _Out:
    """A frame on its way. The payload is borrowed until the frame is out or withdrawn."""

    __slots__ = ("parts", "id", "begun")

    def __init__(self, head: bytes, payload: p.Buf, id_: int) -> None:
        self.parts = [memoryview(head)]
        if len(payload):
            self.parts.append(memoryview(payload))
        self.id, self.begun = id_, False

    def sent(self, nr: int) -> int:
        """So many bytes of it are out, at most. @return how many are not its own"""
        self.begun = self.begun or nr > 0
        while self.parts and nr >= len(self.parts[0]):
            nr -= len(self.parts.pop(0))
        if self.parts and nr:
            self.parts[0] = self.parts[0][nr:]
            return 0
        return nr


class _Guard:
    """The lock, and a look at `gone` after it."""

    __slots__ = ("session", "lock")

    def __init__(self, session: Session) -> None:
        self.session, self.lock = session, threading.Lock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if self.session.gone:
            self.session.collect()


class Session:
    """See the top of this file. `on_stuck`: frames wait for room; `on_request`: one was queued. Both under the lock."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.pid = os.getpid()
        self.guard = _Guard(self)
        self.worker = self.threshold = self.version = 0
        self.copies = 0
        self.dead: RvError | None = None
        self.closing = False
        self.last_id = 0
        self.calls: dict[int, Call] = {}
        self.naming: dict[int, Call] = {}  # GET and ALLOC, oldest first
        self.arenas: dict[int, _memory.Arena] = {}
        self.windows: set[Window] = set()
        self.owners: weakref.WeakSet[Any] = weakref.WeakSet()  # views and buffers that are open
        self.gone: deque[Window | dict[str, Any]] = deque()  # a window that ended, or a lease to detach
        self.out: deque[_Out] = deque()
        self.reader = p.FrameReader()
        self.handlers: dict[str, Any] = {}
        self.serving = False  # somebody takes from `requests`
        self.requests: deque[Served] = deque()
        self.own_slots: set[tuple[int, int]] = set()  # that end with the session
        self.on_stuck: Callable[[], None] = lambda: None
        self.on_request: Callable[[], None] = lambda: None
        self.on_dead: Callable[[], None] = lambda: None
        _sessions.add(self)

    # Calls.

    def check(self) -> None:
        """Every verb begins here. Raises ForkedError, NotConnectedError, ClosedError."""
        if os.getpid() != self.pid:
            raise ForkedError(errno.EOWNERDEAD, "this process was forked after the client was opened: "
                              "open a client of its own")
        if self.dead:
            raise error(self.dead.errno, self.dead.strerror)

    def start(self, call: Call, payload: p.Buf = b"", write: p.Buf | None = None, token: int = 0) -> None:
        """Send a request, behind a WRITE of any length into buffer @token if @write is given."""
        with self.guard:
            self.check()
            if write is not None:
                call.before = self._enter(Call(p.WRITE))
                data = memoryview(write)
                for off in range(0, len(data), p.PAYLOAD_MAX):
                    part = data[off:off + p.PAYLOAD_MAX]
                    self._queue(p.WRITE, p.Req(id=call.before.id, token=token, off=off), part)
            self._enter(call)
            self._queue(call.op, p.Req(id=call.id, **call.fields), payload)
            self._flush()

    def start_many(self, calls: Sequence[Call]) -> None:
        """The requests of several GETs, alike but for their handles, in one frame."""
        with self.guard:
            self.check()
            for call in calls:
                self._enter(call)
            ones = b"".join(p.ONE.pack(c.id, c.fields["worker"], c.fields["local"]) for c in calls)
            self._queue(p.GET_MANY, p.Req(id=calls[0].id, **calls[0].fields), ones, id_=0)
            self._flush()

    def post(self, op: int, payload: p.Buf = b"", **fields: Any) -> None:
        """Send without expecting a reply; a failure shows in later calls."""
        if os.getpid() != self.pid:
            return
        with self.guard:
            if not self.dead:
                self._queue(op, p.Req(**fields), payload, id_=0)
                self._flush()

    def give_up(self, call: Call) -> None:
        """Nobody takes this call's answer: what it brings, now or late, is given back."""
        if os.getpid() != self.pid:
            return
        with self.guard:
            if call.before:
                self.calls.pop(call.before.id, None)
                self._withdraw(call.before.id)
            if call.done:
                self._undo(call)
            elif call.id and self._withdraw(call.id):
                self._leave(call)
            elif call.id:
                call.given_up = True
            self._flush()

    def settled(self) -> bool:
        return not self.owed()

    def flushed(self) -> bool:
        return not self.flush()

    def abandon(self) -> None:
        """Every call ends with ClosedError; what its answer brings will be given back."""
        with self.guard:
            for call in list(self.calls.values()):
                if call.given_up:
                    continue
                shadow = Call(call.op, **call.fields)
                shadow.id, shadow.given_up = call.id, True
                self._leave(call)
                if call.op in _GIVES:
                    self.calls[call.id] = shadow
                if call.op in (p.GET, p.ALLOC):
                    self.naming[call.id] = shadow
                call.failure = error(errno.ECANCELED, "this client was closed")
                call.done = True
                if call.wake:
                    call.wake()

    def owed(self) -> bool:
        """Is an answer still to come whose gift must be given back?"""
        with self.guard:
            return not self.dead and any(c.given_up and c.op in _GIVES for c in self.calls.values())

    def _enter(self, call: Call) -> Call:
        self.last_id += 1
        call.id = self.last_id
        self.calls[call.id] = call
        if call.op in (p.GET, p.ALLOC):
            self.naming[call.id] = call
        return call

    def _leave(self, call: Call) -> None:
        self.calls.pop(call.id, None)
        self.naming.pop(call.id, None)

    def _settle(self, call: Call) -> None:
        self._leave(call)
        if call.before:
            self._leave(call.before)  # it would have been answered by now, if it had failed
        call.done = True
        if call.given_up:
            self._undo(call)
        elif call.wake:
            call.wake()

    def _undo(self, call: Call) -> None:
        rep, call.rep = call.rep, None
        arena, call.arena = call.arena, None
        if rep and not rep.rc:
            if rep.token:
                self._queue(p.FREE, p.Req(token=rep.token))
            if call.op == p.GET and rep.lease_id:
                self._queue(p.DETACH, p.Req(**detach_fields(call.fields, rep.lease_id)))
            if call.op == p.COMMIT and rep.local:
                self._queue(p.DROP, p.Req(worker=rep.worker, local=rep.local))
        if arena:
            self._drop_hold(arena)

    # Sending.

    def _queue(self, op: int, req: p.Req, payload: p.Buf = b"", id_: int | None = None) -> None:
        if not self.dead:
            self.out.append(_Out(p.encode(op, req, len(payload)), payload, req.id if id_ is None else id_))

    def _withdraw(self, id_: int) -> bool:
        """Take frames back. What is half out must follow: its bytes are copied. @return: none was begun."""
        kept, clean = deque[_Out](), True
        for f in self.out:
            if f.id != id_ or f.begun:
                kept.append(f)
            if f.id == id_ and f.begun:
                f.parts = [memoryview(bytes(part)) for part in f.parts]
                clean = False
        clean = clean and len(kept) < len(self.out)
        self.out = kept
        return clean

    def flush(self) -> bool:
        """Send what can be sent. @return whether frames still wait for room"""
        with self.guard:
            self._flush()
            return bool(self.out)

    def _flush(self) -> None:
        while self.out and not self.dead:
            parts: list[memoryview] = []
            for frame in self.out:
                parts += frame.parts
                if len(parts) >= 64:
                    break
            try:
                nr = self.sock.sendmsg(parts, (), _SEND_FLAGS)
            except (BlockingIOError, InterruptedError):
                self.on_stuck()
                return
            except OSError:
                # What the daemon sent before it went is read first, by whoever reads; then that ends the session.
                self._kill(error(errno.ENOTCONN, _CLOSED))
                return
            while self.out:
                left = self.out[0].sent(nr)
                if self.out[0].parts:
                    break
                self.out.popleft()
                nr = left

    # Receiving: one thread at a time.

    def read_ready(self, reads: int = _READS) -> None:
        """Take what is in the socket and hand it on, as much as is fair in one go."""
        for _ in range(reads):
            if not self._read_once():
                return

    def _read_once(self) -> bool:
        try:
            try:
                frames = self._receive()
                if frames is None:
                    return False
                self._take_frames(frames)
            except RvError as e:
                with self.guard:
                    self._kill(e)
            return not self.dead
        except BaseException:
            # Bytes may have been lost between the socket and the reader: the stream cannot be trusted.
            with self.guard:
                self._kill(error(errno.ENOTCONN, "the reading of the daemon's answers was interrupted"))
            raise

    def _receive(self) -> Iterator[p.Frame] | None:
        place = self.reader.place()
        data = b""
        try:
            if place is not None:
                nr, anc, mf, _ = self.sock.recvmsg_into([place], _CMSG, _RECV_FLAGS)
            else:
                data, anc, mf, _ = self.sock.recvmsg(_RECV, _CMSG, _RECV_FLAGS)
                nr = len(data)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as e:
            raise error(errno.ENOTCONN, _CLOSED) from e
        fds = array.array("i")
        for level, kind, raw in anc:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
        if mf & _TRUNCATED:
            for fd in fds:
                os.close(fd)
            raise error(errno.EMFILE, "this process has no descriptors left for the daemon's memory: raise its limit")
        if not nr:
            raise error(errno.ENOTCONN, _CLOSED + (" in the middle of an answer" if self.reader.middle() else ""))
        return self.reader.placed(nr, fds) if place is not None else self.reader.feed(data, fds)

    def _take_frames(self, frames: Iterator[p.Frame]) -> None:
        with self.guard:
            for f in frames:
                try:
                    self._take_frame(f)
                finally:
                    if f.fd >= 0:
                        os.close(f.fd)
            self._flush()

    def _take_frame(self, f: p.Frame) -> None:
        if f.op == p.REQUEST:
            self._take_request(f)
            return
        call = self.calls.get(f.rep.id)
        if not call:
            return
        if call.op | p.REPLY != f.op:
            raise error(errno.EPROTO, "the daemon answered something else than was asked")
        call.rep, call.payload = f.rep, f.payload
        if f.rep.rc:
            text = bytes(f.payload).decode(errors="replace")[:TEXT_MAX]
            call.failure = error(f.rep.rc if f.rep.rc < 0 else errno.EPROTO, text)
            if isinstance(call.failure, TooLongError) and call.op == p.GET:
                call.failure.length = f.rep.len
        elif names_arena(call):
            try:
                call.arena = self._adopt(f)
            except RvError as e:
                call.failure = e
        self._settle(call)
        self._sweep()

    def _take_request(self, f: p.Frame) -> None:
        root = None
        if not self.serving:
            self._refuse_request(f)
            return
        if f.rep.token and f.rep.len:
            root = self.window(self._adopt(f), f.rep.off, f.rep.len, f.rep.token, False)
        elif f.rep.token:
            self._queue(p.FREE, p.Req(token=f.rep.token))
        self.requests.append(Served(f.rep, f.payload, root))
        self.on_request()

    def _refuse_request(self, f: p.Frame) -> None:
        """Nobody here ever served anything; the arena it may have shown is kept all the same."""
        if f.rep.token and f.rep.len:
            self._drop_hold(self._adopt(f))
        if f.rep.token:
            self._queue(p.FREE, p.Req(token=f.rep.token))
        if f.rep.id:
            self._queue(p.ANSWER, p.Req(token=f.rep.id, flags=p.FAILED), b"this program serves nothing")

    def _kill(self, why: RvError) -> None:
        """Nothing works any more: every call ends. Memory stays mapped while something looks at it."""
        if self.dead:
            return
        self.dead = why
        self.out.clear()
        self.requests.clear()
        for call in list(self.calls.values()):
            call.failure = error(why.errno, why.strerror)
            self._settle(call)
        for a in list(self.arenas.values()):
            if not a.holds:
                self._unmap(a)
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.on_dead()

    # Memory.

    def _adopt(self, f: p.Frame) -> _memory.Arena:
        """The arena that a frame names, with a hold. Raises ProtocolError."""
        rep, fd = f.rep, f.fd
        arena = self.arenas.get(rep.arena)
        if not arena:
            if fd < 0:
                raise error(errno.EPROTO, "the daemon named memory that this session was not shown")
            arena = _memory.map_arena(rep.arena, fd, rep.arena_len, bool(rep.writable), bool(rep.single_use))
            self.arenas[rep.arena] = arena
        if rep.off > arena.len or rep.len > arena.len - rep.off:
            raise error(errno.EPROTO, "the daemon named bytes outside its memory")
        arena.idle_since = 0
        arena.holds += 1
        return arena

    def hold(self, arena: _memory.Arena) -> None:
        with self.guard:
            arena.holds += 1

    def drop_hold(self, arena: _memory.Arena) -> None:
        """The FREE or COMMIT of what was held must have been sent."""
        if os.getpid() != self.pid:
            return
        with self.guard:
            self._drop_hold(arena)
            self._sweep()

    def _drop_hold(self, arena: _memory.Arena) -> None:
        arena.holds -= 1
        if arena.holds:
            return
        if self.dead or self.closing:
            self._unmap(arena)
        elif arena.single_use:
            arena.idle_since = self.last_id

    def _unmap(self, arena: _memory.Arena) -> None:
        self.arenas.pop(arena.id, None)
        arena.unmap()

    def _sweep(self) -> None:
        """Idle arenas that no reply under way can name go."""
        idle = [a for a in self.arenas.values() if a.idle_since]
        if not idle:
            return
        oldest = next(iter(self.naming), self.last_id + 1)
        for a in idle:
            if oldest > a.idle_since:
                self._unmap(a)

    def window(self, arena: _memory.Arena, off: int, len_: int, token: int, writable: bool) -> memoryview:
        """Show a range; takes the hold over. Under the lock."""
        return self._open(Window(self, arena, off, len_, token, writable))

    def open_window(self, w: Window) -> memoryview:
        """The same for a window that its owner wants to know."""
        with self.guard:
            return self._open(w)

    def _open(self, w: Window) -> memoryview:
        self.windows.add(w)
        return w.open()

    def collect(self) -> None:
        """Give back what has ended, unless somebody has the lock, who will."""
        while self.gone and self.guard.lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self.guard.lock.release()

    def _collect(self) -> None:
        while self.gone:
            what = self.gone.popleft()
            if isinstance(what, dict):
                self._queue(p.DETACH, p.Req(**what))
                continue
            self.windows.discard(what)
            if what.token and self.closing and what.arena.holds == 1:
                self._unmap(what.arena)
            if what.token:
                self._queue(p.FREE, p.Req(token=what.token))
            self._drop_hold(what.arena)
        self._sweep()
        self._flush()
        if self.closing and not self.windows:
            self._end()

    # The end.

    def close(self) -> None:
        """End the session once nothing can look at its memory any more; calls end at once, leases too.

        The daemon keeps what a live program may have mapped until that program ends, unless it is given back
        first. So with a window left the socket stays until that is gone.
        """
        if os.getpid() != self.pid:
            self._after_fork()
            return
        with self.guard:
            if self.closing:
                return
            self.closing = True
            self.requests.clear()
            if not self.windows:
                self._end()
                return
            _lingering.add(self)
            for worker, local in self.own_slots:
                self._queue(p.DROP, p.Req(worker=worker, local=local))
            for name in self.handlers:
                self._queue(p.UNSERVE, p.Req(name=name.encode()))
            self._flush()

    def end_memory(self) -> None:
        """Every view and buffer is closed."""
        with self.guard:
            owners = list(self.owners)
        for owner in owners:
            owner.close()

    def drain(self, seconds: float) -> None:
        """Wait until all is out, so long at most."""
        until = time.monotonic() + seconds
        while self.flush() and time.monotonic() < until:
            time.sleep(0.002)

    def _end(self) -> None:
        if not self.dead:
            self._flush()
            self._kill(error(errno.ECANCELED, "this client was closed"))
        for a in list(self.arenas.values()):
            if not a.holds:
                self._unmap(a)
        self.reader.close()
        self.sock.close()
        _lingering.discard(self)

    def _after_fork(self) -> None:
        """In the child. The parent's locks may be in any state: only the descriptors are ours."""
        self.sock.close()
        for a in list(self.arenas.values()):
            _memory.fence(a)


def names_arena(call: Call) -> bool:
    rep = call.answer
    if not rep.token or not rep.len:
        return False
    return call.op == p.GET or (call.op == p.ALLOC and bool(call.fields.get("flags", 0) & p.SHARED))


def detach_fields(get: dict[str, Any], lease: int) -> dict[str, Any]:
    """The request that ends the lease which a GET brought; answers to nobody."""
    fields = {k: get[k] for k in ("worker", "local", "host", "port") if k in get}
    return dict(fields, lease_id=lease)


def _group(path: str) -> str:
    try:
        return ", %s," % grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return ""  # the path may be what is not permitted


def connect(path: str, deadline: float) -> socket.socket | None:
    """One attempt. @return None: the daemon is slow to accept, try again."""
    if len(path.encode()) > 107:
        raise error(errno.ENAMETOOLONG, "the path of the daemon's socket is too long: at most 107 bytes")
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        s.setblocking(False)
        s.connect(path)
        return s
    except BlockingIOError:
        s.close()
        if time.monotonic() < deadline:
            return None
        raise error(errno.ETIMEDOUT, "the daemon does not accept on %s" % path) from None
    except OSError as e:
        s.close()
        if e.errno in (errno.EACCES, errno.EPERM):
            raise error(errno.EACCES, "no permission for %s: ask for membership in its group%s and log in anew, or see "
                        "local.mode and local.group" % (path, _group(path))) from e
        if e.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            way = "start rvd, or name its socket (socket=, RVD_SOCKET)"
            if path == default_path(None) != SYSTEM_SOCKET and not os.environ.get("RVD_SOCKET") and os.path.exists(SYSTEM_SOCKET):
                way = "the system's is on %s, so export RVD_SOCKET=%s" % (SYSTEM_SOCKET, SYSTEM_SOCKET)
            raise error(errno.ENOTCONN, "no daemon answers on %s: %s" % (path, way)) from e
        raise error(e.errno or errno.EIO, "cannot connect to %s: %s" % (path, e.strerror)) from e


def default_path(given: str | os.PathLike[str] | None) -> str:
    """As rv_open() finds it."""
    path = os.fspath(given) if given else os.environ.get("RVD_SOCKET", "")
    if path:
        return path
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder + "/rvd/rvd.sock" if folder.startswith("/") else "/tmp/rvd-%d/rvd.sock" % os.geteuid()


def _after_fork_in_child() -> None:
    for s in list(_sessions):
        if s.pid != os.getpid():
            s._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
