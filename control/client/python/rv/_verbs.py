"""What the calls do, written once: generators that yield what they wait for, and are driven by a client.

A generator yields a Call, whose answer it waits for, or a Lookup, whose result is sent in. What goes wrong
meanwhile (a timeout, a cancellation) is thrown in, and what was half done is undone by the generator.
"""
from __future__ import annotations

import errno
import json
import time
from typing import Any, Generator, Iterable, Literal, Sequence, TypeVar, Union

from . import _proto as p
from ._session import Call, Session
from .buffers import Buffer, View, nanoseconds, why_plain
from .errors import ClosedError, NotSupportedError, ProtocolError, RvError, TimedOutError, UnreachableError, error
from .ref import Handle, Name, Ref, as_ref, parse_host

T = TypeVar("T")

#: Bytes to stage or send: whatever has contiguous memory, a NumPy array too.
Data = Any
PathName = Literal["any", "rdma", "chunked"]
Then = Literal["keep", "detach", "release"]

_PATHS = {"any": 0, "rdma": 1, "chunked": 2}
_THENS = {"keep": 0, "detach": p.THEN_DETACH, "release": p.THEN_RELEASE}

# A daemon that was given a timeout answers by then; so long after it we stop waiting for it.
GRACE = 1.0
HELLO_TIMEOUT = 10.0

# A long copy into shared memory is cheaper than one through the socket; the first few go through it all the same, so
# that a program which stages a single payload leaves no arena of its own behind.
_COPY_HERE_MIN = 65536
_COPIES_BEFORE = 4


class Lookup:
    """Find a host's addresses."""

    __slots__ = ("host",)

    def __init__(self, host: str) -> None:
        self.host = host


Steps = Generator[Union[Call, Lookup], Any, T]


class Budget:
    """When a call must have ended, and what the daemon is told about that."""

    __slots__ = ("timeout", "until")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = None if timeout is None or nanoseconds(timeout, "timeout") >= 1 << 63 else timeout
        self.until = None if self.timeout is None else time.monotonic() + self.timeout

    def left_ns(self) -> int:
        return 0 if self.until is None else max(1, int((self.until - time.monotonic()) * 1e9))

    def deadline(self) -> float | None:
        return None if self.until is None else self.until + GRACE


class Staged(Handle):
    """The handle of what was staged, and how it lies."""

    #: In registered memory: peers may read it by RDMA. If not, `plain` says why: "budget", "pool_exhausted",
    #: "kill_switch", "no_rdma"; or "" if plain memory was asked for.
    pinned: bool
    plain: str


class Meta:
    """What an owner says about a slot."""

    __slots__ = ("len", "refcount", "pinned")

    def __init__(self, rep: p.Rep) -> None:
        #: Bytes, references, and whether it is in registered memory.
        self.len, self.refcount, self.pinned = rep.len, rep.refcount, bool(rep.pinned)

    def __repr__(self) -> str:
        return "Meta(len=%d, refcount=%d, pinned=%s)" % (self.len, self.refcount, self.pinned)


class Got:
    """What get_into() brought: how many bytes, and the lease (0: it has ended)."""

    __slots__ = ("len", "lease", "took", "path")

    def __init__(self, rep: p.Rep) -> None:
        self.len, self.lease = rep.len, rep.lease_id
        self.took = p.TOOK[rep.path] if rep.path < len(p.TOOK) else "unknown"
        self.path = rep.path_name.split(b"\0")[0].decode(errors="replace")

    def __repr__(self) -> str:
        return "Got(len=%d, lease=%d, path=%r)" % (self.len, self.lease, self.path)


def as_bytes(data: Data) -> memoryview:
    """The bytes of anything with contiguous memory. Raises TypeError, and BufferError if it is not contiguous."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the memory is not contiguous: copy it first (numpy.ascontiguousarray)")
    if not view.nbytes:
        return memoryview(b"")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


# Asking.

def finish(s: Session, call: Call) -> Steps[Call]:
    """Wait for a call that was started."""
    try:
        yield call
    except BaseException:
        s.give_up(call)
        raise
    if call.failure:
        s.give_up(call)
        raise call.failure
    return call


def ask(s: Session, call: Call, b: Budget, payload: p.Buf = b"") -> Steps[Call]:
    call.fields["timeout_ns"] = b.left_ns()
    s.start(call, payload)
    return (yield from finish(s, call))


def addresses(s: Session, ref: Ref) -> Steps[list[str]]:
    """The owner's; none are needed where none was told, or for this node's own."""
    if not ref.host or ref.handle.worker == s.worker:
        return [""]
    found: list[str] = yield Lookup(ref.host)
    return found


def at(ref: Ref, literal: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"worker": ref.handle.worker, "local": ref.handle.local}
    if literal:
        fields.update(host=literal.encode(), port=ref.port)
    return fields


def ask_owner(s: Session, op: int, ref: Ref, b: Budget, **like: Any) -> Steps[Call]:
    """Ask at each of the owner's addresses until one leads somewhere."""
    literals = yield from addresses(s, ref)
    for i, literal in enumerate(literals):
        try:
            return (yield from ask(s, Call(op, **at(ref, literal), **like), b))
        except UnreachableError as e:
            if e.errno != errno.EHOSTUNREACH or i + 1 == len(literals):
                raise
    raise AssertionError("there is an address")


def hello(s: Session) -> Steps[None]:
    try:
        call = yield from ask(s, Call(p.HELLO, version=p.VERSION), Budget(None))
    except ProtocolError as e:
        raise NotSupportedError(errno.ENOTSUP, e.strerror) from e
    rep = call.answer
    s.worker, s.threshold, s.version = rep.worker, rep.len, rep.version


# Staging.

def _alloc(s: Session, len_: int, flags: int, b: Budget) -> Steps[Call]:
    call = yield from ask(s, Call(p.ALLOC, len=len_, flags=flags), b)
    if call.answer.len < len_ or (len_ and flags & p.SHARED and not call.arena):
        s.give_up(call)
        raise error(errno.EPROTO, "the daemon gave a buffer that is too short")
    return call


def _commit_call(token: int, len_: int, ttl: float | None, refs: int, session: bool) -> Call:
    if not 0 <= refs < 1 << 32:
        raise error(errno.EINVAL, "refs is a count of references")
    return Call(p.COMMIT, token=token, len=len_, ttl_ns=nanoseconds(ttl, "ttl"), refs=refs,
                flags=p.SESSION if session else 0)


def _staged(s: Session, commit: Call, plain: str, session: bool) -> Staged:
    rep = commit.answer
    handle = Staged(rep.worker, rep.local)
    handle.pinned, handle.plain = bool(rep.pinned), plain
    if session:
        s.own_slots.add((rep.worker, rep.local))
    return handle


def _copy_flags(s: Session, len_: int) -> int:
    if len_ < _COPY_HERE_MIN:
        return 0
    s.copies += 1
    return 0 if s.copies <= _COPIES_BEFORE else p.SHARED


def put(s: Session, data: memoryview, flags: int | None, ttl: float | None, refs: int, session: bool,
        b: Budget) -> Steps[Staged]:
    commit = _commit_call(0, len(data), ttl, refs, session)
    alloc = yield from _alloc(s, len(data), _copy_flags(s, len(data)) if flags is None else flags, b)
    rep, arena = alloc.answer, alloc.arena
    token = commit.fields["token"] = rep.token
    try:
        write: memoryview | None = data if len(data) else None
        if arena and rep.writable:
            _copy(arena.base + rep.off, data)
            write = None
        if arena:
            alloc.arena = None
            s.drop_hold(arena)
        commit.fields["timeout_ns"] = b.left_ns()
        s.start(commit, write=write, token=token)
        yield from finish(s, commit)
        if commit.before and commit.before.done:
            # WRITE is answered only when it fails, and before the COMMIT that follows it.
            s.give_up(commit)
            raise commit.before.failure or error(errno.EPROTO, "the daemon answered a WRITE that went well")
    except BaseException:
        s.post(p.FREE, token=token)
        raise
    return _staged(s, commit, why_plain(rep), session)


def _copy(address: int, data: memoryview) -> None:
    from . import _memory

    if len(data):
        _memory.window(_memory.exporter(address, len(data)), len(data), True)[:] = data


def alloc(s: Session, len_: int, b: Budget) -> Steps[Buffer]:
    if not 0 <= len_ < 1 << 62:
        raise error(errno.EINVAL, "a buffer's length is wrong: %d" % len_)
    return Buffer(s, (yield from _alloc(s, len_, p.SHARED, b)))


def commit(s: Session, buf: Buffer, ttl: float | None, refs: int, session: bool, b: Budget) -> Steps[Staged]:
    if buf._session is not s:
        raise error(errno.EINVAL, "no buffer of this client")
    call = _commit_call(buf._token, buf._used, ttl, refs, session)
    s.check()
    buf._begin_commit()
    try:
        yield from ask(s, call, b)
    except BaseException as e:
        if isinstance(e, RvError) and not isinstance(e, (TimedOutError, ClosedError)):
            buf._commit_ended(False)
        else:
            # Whether it happened is unknown. It is undone, so the range may be another's soon: nobody sees it again.
            s.post(p.FREE, token=buf._token)
            buf._commit_ended(True)
        raise
    buf._commit_ended(True)
    return _staged(s, call, buf.plain, session)


# Fetching.

def get_fields(path: PathName, keep: bool, then: Then) -> dict[str, Any]:
    if path not in _PATHS:
        raise error(errno.EINVAL, "path is one of any, rdma, chunked")
    if then not in _THENS:
        raise error(errno.EINVAL, "then is one of keep, detach, release")
    return {"path": _PATHS[path], "flags": (p.KEEP if keep else 0) | _THENS[then]}


def _check_got(s: Session, call: Call) -> None:
    if call.answer.len and not call.arena:
        s.give_up(call)
        raise error(errno.EPROTO, "the daemon did not say where the bytes are")


def get(s: Session, ref: Ref, like: dict[str, Any], b: Budget) -> Steps[View]:
    call = yield from ask_owner(s, p.GET, ref, b, **like)
    _check_got(s, call)
    return View(s, ref, call)


def get_bytes(s: Session, ref: Ref, like: dict[str, Any], b: Budget) -> Steps[bytes]:
    with (yield from get(s, ref, like, b)) as view:
        return view.tobytes()


def get_into(s: Session, ref: Ref, like: dict[str, Any], dst: memoryview | Buffer, off: int, cap: int,
             b: Budget) -> Steps[Got]:
    like = dict(like, flags=like["flags"] | p.INTO, len=cap)
    if isinstance(dst, Buffer):
        if dst._session is not s or dst.closed:
            raise error(errno.EINVAL, "no open buffer of this client")
        if dst._spoiled:
            raise error(errno.EBUSY, "a get into this buffer timed out: its bytes may still land there")
        if cap and dst._window and dst._window.writable:
            like.update(token=dst._token, off=off)
    try:
        call = yield from ask_owner(s, p.GET, ref, b, **like)
    except BaseException as e:
        if isinstance(dst, Buffer) and "token" in like:
            dst._spoiled = dst._spoiled or not isinstance(e, RvError) or isinstance(e, TimedOutError)
        raise
    rep = call.answer
    if rep.len > cap:
        s.give_up(call)
        raise error(errno.ERANGE, "%d bytes do not fit into %d" % (rep.len, cap))
    if call.fields.get("token") and not rep.token:
        return Got(rep)  # the daemon put the bytes there
    _check_got(s, call)
    view = View(s, ref, call)
    view.keep_lease()
    with view, view.data as data:
        with (dst.data[off:off + cap] if isinstance(dst, Buffer) else dst[:]) as to:
            to[:len(data)] = data
    return Got(rep)


def _groups(refs: Sequence[Ref], most: int) -> Iterable[tuple[int, int]]:
    """Neighbours that go to one owner: where they begin and end."""
    begin = 0
    for i in range(1, len(refs) + 1):
        if i == len(refs) or i - begin == most or \
                (refs[i].handle.worker, refs[i][1:]) != (refs[begin].handle.worker, refs[begin][1:]):
            yield begin, i
            begin = i


class _Many:
    """Gets under way together: the requests of a window, answers in order."""

    def __init__(self, s: Session, refs: Sequence[Ref], like: dict[str, Any], b: Budget) -> None:
        self.s, self.refs, self.like, self.b = s, refs, like, b
        self.calls: dict[int, Call] = {}
        self.out: list[View | RvError] = []
        self.ahead = 0

    def _begin(self, begin: int, end: int) -> Steps[None]:
        made = [Call(p.GET, **at(ref, ""), **self.like) for ref in self.refs[begin:end]]
        self.calls.update(zip(range(begin, end), made))
        try:
            literals = yield from addresses(self.s, self.refs[begin])
            for call, ref in zip(made, self.refs[begin:end]):
                call.fields.update(at(ref, literals[0]), timeout_ns=self.b.left_ns())
            if len(made) == 1:
                self.s.start(made[0])
            else:
                self.s.start_many(made)
        except RvError as e:
            for call in made:
                call.done, call.failure = True, error(e.errno, e.strerror)

    def _end(self, i: int) -> Steps[View | RvError]:
        call = self.calls.pop(i)
        try:
            yield from finish(self.s, call)
            _check_got(self.s, call)
            return View(self.s, self.refs[i], call)
        except UnreachableError as e:
            if e.errno != errno.EHOSTUNREACH or not self.refs[i].host:
                return e
        except RvError as e:
            return e
        try:
            return (yield from get(self.s, self.refs[i], self.like, self.b))  # at all of its addresses
        except RvError as e:
            return e

    def run(self) -> Steps[list[View | RvError]]:
        groups = list(_groups(self.refs, p.MANY_MAX // 4 if self.s.version >= 2 else 1))
        try:
            for i in range(len(self.refs)):
                while groups and groups[0][1] <= i + p.MANY_MAX:
                    yield from self._begin(*groups.pop(0))
                self.out.append((yield from self._end(i)))
        except BaseException:
            for call in self.calls.values():
                self.s.give_up(call)
            self.close()
            raise
        return self.out

    def close(self) -> None:
        for got in self.out:
            if isinstance(got, View):
                got.close()


def get_many(s: Session, refs: Sequence[Ref], like: dict[str, Any], errors: bool,
             b: Budget) -> Steps[list[View | RvError]]:
    many = _Many(s, refs, like, b)
    out = yield from many.run()
    bad = next((got for got in out if isinstance(got, RvError)), None)
    if bad and not errors:
        many.close()
        raise bad
    return out


def metadata(s: Session, ref: Ref, b: Budget) -> Steps[Meta]:
    return Meta((yield from ask_owner(s, p.METADATA, ref, b)).answer)


# References and leases.

def about(s: Session, op: int, what: Name | View, lease: int, b: Budget) -> Steps[None]:
    view = what if isinstance(what, View) else None
    ref = what._ref if isinstance(what, View) else as_ref(what)
    lease = lease or (view.lease if view is not None else 0)
    if not 0 <= lease < 1 << 64:
        raise error(errno.EINVAL, "a lease has 64 bits")
    if op == p.DETACH and not lease:
        raise error(errno.EINVAL, "no lease to end")
    yield from ask_owner(s, op, ref, b, lease_id=lease)
    if view is not None and lease == view.lease:
        view._lease_ended()


def drop(s: Session, ref: Ref, b: Budget) -> Steps[None]:
    yield from ask(s, Call(p.DROP, **at(ref, "")), b)
    s.own_slots.discard(ref.handle)


# Messages.

def check_handler(name: str) -> bytes:
    raw = name.encode()
    if not 1 <= len(raw) <= p.NAME_MAX or raw.startswith(b"_") or b"\0" in raw:
        raise error(errno.EINVAL, "a handler's name has 1 to %d bytes and does not start with '_'" % p.NAME_MAX)
    return raw


def _ask_peer(s: Session, op: int, peer: str, b: Budget, payload: p.Buf, like: dict[str, Any]) -> Steps[Call]:
    if not peer:
        raise error(errno.EINVAL, "no peer")
    try:
        host, port = parse_host(peer) if ":" in peer else ("", 0)
    except RvError:
        host, port = "", 0
    if not host:
        raw = peer.encode()
        if raw.isdigit() and int(raw) < 1 << 64:
            return (yield from ask(s, Call(op, worker=int(raw), **like), b, payload))
        if len(raw) > p.HOST_MAX or b"\0" in raw:
            raise error(errno.EINVAL, "the peer's name is too long, or has a NUL byte")
        return (yield from ask(s, Call(op, host=raw, **like), b, payload))
    literals: list[str] = yield Lookup(host)
    for i, literal in enumerate(literals):
        try:
            return (yield from ask(s, Call(op, host=literal.encode(), port=port, **like), b, payload))
        except UnreachableError as e:
            if e.errno != errno.EHOSTUNREACH or i + 1 == len(literals):
                raise
    raise AssertionError("there is an address")


def message(s: Session, peer: str, name: str, data: memoryview, kind: int, b: Budget) -> Steps[bytes]:
    like: dict[str, Any] = {"name": check_handler(name), "what": kind}
    staged: Staged | None = None
    if len(data) > s.threshold:
        # Nobody fetches it after the caller has given up.
        staged = yield from put(s, data, p.MAPPED, b.timeout, 0, False, b)
        like["local"] = staged.local
    done = False
    try:
        call = yield from _ask_peer(s, p.CALL, peer, b, b"" if staged else data, like)
        done = True
    finally:
        # Fetched payloads were released by the peer; what was not fetched must not stay.
        if staged and (not done or kind != p.FIRE):
            s.post(p.DROP, worker=staged.worker, local=staged.local)
    return bytes(call.payload)


def handlers(s: Session, peer: str, b: Budget) -> Steps[list[str]]:
    call = yield from _ask_peer(s, p.HANDLERS, peer, b, b"", {})
    names = _json(call.payload).get("handlers")
    if not isinstance(names, list):
        raise error(errno.EPROTO, "the peer's list of handlers is no list")
    return [str(name) for name in names]


def ask_name(s: Session, op: int, name: bytes, b: Budget) -> Steps[None]:
    yield from ask(s, Call(op, name=name), b)


class Request:
    """A request to a handler."""

    __slots__ = ("handler", "sender", "data", "wants_result")

    def __init__(self, handler: str, sender: int, data: memoryview, wants_result: bool) -> None:
        #: The handler's name, and the caller's WorkerId, as it says.
        self.handler, self.sender = handler, sender
        #: The payload, read-only. Large ones are looked at where the daemon put them; kept, they stay.
        self.data = data
        #: False: only whether it was handled, or nothing at all, goes back.
        self.wants_result = wants_result


def answer(s: Session, id_: int, result: Data, failure: BaseException | None) -> None:
    """Tell the caller of a handler what came of it."""
    if not id_:
        return
    # Copied: its memory may be the handler's own, and the frame may have to wait for room.
    text, out = "", b""
    if failure is not None:
        text = str(failure) or type(failure).__name__
    else:
        try:
            out = b"" if result is None else bytes(as_bytes(result))
        except (TypeError, BufferError) as e:
            text = "the handler returned no bytes: %s" % e
        if len(out) > p.RESULT_MAX:
            text = "the result is longer than a frame"
    if text:
        out = text.encode()[:255].decode(errors="ignore").encode()
    s.post(p.ANSWER, out, token=id_, flags=p.FAILED if text else 0)


# Peers and state.

def peer_add(s: Session, info: memoryview, at_: str, name: str, b: Budget) -> Steps[int]:
    raw = name.encode()
    if len(raw) > p.NAME_MAX or b"\0" in raw:
        raise error(errno.EINVAL, "a peer's name has at most %d bytes" % p.NAME_MAX)
    if not at_:
        if not 0 < len(info) <= p.PAYLOAD_MAX:
            raise error(errno.EINVAL, "no PeerInfo: it is empty or too long")
        return (yield from ask(s, Call(p.PEER_ADD, name=raw), b, info)).answer.worker
    parse_host(at_)
    call = yield from _ask_peer(s, p.PEER_ADD, at_, b, b"", {"name": raw})
    return call.answer.worker


def peer_info(s: Session, msgpack: bool, b: Budget) -> Steps[bytes]:
    return bytes((yield from ask(s, Call(p.PEER_INFO, what=int(msgpack)), b)).payload)


def _json(payload: p.Buf) -> dict[str, Any]:
    try:
        doc = json.loads(bytes(payload))
    except ValueError as e:
        raise error(errno.EPROTO, "the daemon's answer is no JSON") from e
    if not isinstance(doc, dict):
        raise error(errno.EPROTO, "the daemon's answer is no JSON object")
    return doc


def state(s: Session, what: str, b: Budget) -> Steps[dict[str, Any]]:
    if what not in p.LISTS:
        raise error(errno.EINVAL, "no such list: %s" % what)
    return _json((yield from ask(s, Call(p.LIST, what=p.LISTS.index(what)), b)).payload)


def reference(s: Session, handle: Handle, host: str, b: Budget) -> Steps[Ref]:
    status = yield from state(s, "status", b)
    listens = status.get("tcp")
    try:
        told, port = parse_host(listens[0] if isinstance(listens, list) else "")
    except (RvError, IndexError, TypeError):
        return Ref(handle)  # without a listener the bare handle is all there is
    if host or told not in ("0.0.0.0", "::"):
        return Ref(handle, host or told, port)
    return Ref(handle, first_address(":" in told), port)


def first_address(v6: bool) -> str:
    """Where a node that listens everywhere is reached: the source address of its way out, else the loopback."""
    import socket

    with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) as u:
        try:
            u.connect(("2001:db8::1" if v6 else "192.0.2.1", 9))  # sends nothing
            return str(u.getsockname()[0])
        except OSError:
            return "::1" if v6 else "127.0.0.1"



def check_bytes_dst(dst: Any, offset: int, length: int | None) -> tuple[memoryview | Buffer, int, int]:
    """Where get_into() writes: the memory, the offset in it and how much room. Raises TypeError, InvalidError."""
    whole: memoryview | Buffer
    if isinstance(dst, Buffer):
        whole, size = dst, len(dst)
    else:
        whole = as_bytes(dst)
        size = len(whole)
        if size and whole.readonly:
            raise TypeError("the memory is read-only")
    room = size - offset if length is None else length
    if not 0 <= offset <= size or not 0 <= room <= size - offset:
        raise error(errno.EINVAL, "offset and length are not inside the memory")
    return (whole if isinstance(whole, Buffer) else whole[offset:offset + room]), offset, room


