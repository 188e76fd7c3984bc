#!/usr/bin/env python3
"""Views, buffers, threads, handlers and the end of a client, against a scripted daemon: what is given back, and when."""
import asyncio
import gc

from fakedaemon import *

H = rv.Handle(9, 5)
DATA = bytes(range(250)) * 40


def show(f, q, op=GET, data=DATA, fd=True, **fields):
    """Answer with memory; @fd: shown for the first time."""
    m = memfd(data)
    f.reply(op, q, fds=[m] if fd else [],
            **dict(dict(token=3, arena=1, has_fd=fd, arena_len=len(data), len=len(data), lease_id=8), **fields))
    os.close(m)


def one_get(then, **fields):
    def script(f):
        q, _ = f.expect(GET)
        show(f, q, **fields)
        then(f)
    return script


def fake(script, timeout=20.0, **kw):
    f = Fake(script, **kw)
    return f, rv.Client._on(f.theirs, timeout)


def gives_back(f):
    """In whatever order; answers to nobody."""
    back = sorted((op, q["id"], q["token"], q["worker"], q["local"], q["lease_id"]) for op, q, _ in (f.take(), f.take()))
    assert back == [(FREE, 0, 3, 0, 0, 0), (DETACH, 0, 0, 9, 5, 8)], back


def test_a_view_is_read_only_and_given_back_by_close():
    def then(f):
        gives_back(f)
        f.silent()

    f, c = fake(one_get(then))
    with c, c.get(H) as view:
        assert (len(view), view.lease, view.closed) == (len(DATA), 8, False)
        assert view.data == DATA and view.data.readonly
        raises(TypeError, view.data.__setitem__, 0, 1)
        view.close()
        assert view.closed and view.lease == 0
        raises(ValueError, lambda: view.data)
    f.end()
    assert mappings() == 0


def test_memory_stays_while_a_slice_of_it_is_left():
    freed = threading.Event()

    def then(f):
        f.expect(DETACH, lease_id=8)  # the lease needs no memory
        q, _ = f.expect(METADATA)
        f.reply(METADATA, q, len=1)
        f.expect(FREE, token=3)
        freed.set()
        f.silent()

    f, c = fake(one_get(then))
    view = c.get(H)
    part = view.data[10:20][3:]
    with view.data as whole:
        pass  # released: but others are left
    view.close()
    assert c.metadata(H).len == 1
    assert not freed.wait(0.05) and part == DATA[13:20]
    del part, whole
    assert freed.wait(20), "the last memoryview gave nothing back"
    c.close()
    f.end()


def test_a_view_that_is_dropped_is_given_back():
    done = threading.Event()

    def then(f):
        gives_back(f)
        done.set()

    f, c = fake(one_get(then))
    c.get(H)
    assert done.wait(20)
    c.close()
    f.end()


def test_an_array_outlives_view_client_and_daemon():
    try:
        import numpy
    except ImportError:
        raise Missing("no NumPy here") from None

    def then(f):
        f.expect(DETACH, lease_id=8)
        raise Gone()  # the daemon dies

    f, c = fake(one_get(then))
    a = c.get(H).numpy("<u2", (-1, 5))
    f.end()
    assert a.shape == (1000, 5) and a.tobytes() == DATA and not a.flags.writeable
    raises(rv.NotConnectedError, c.metadata, H)
    c.close()
    assert a.tobytes() == DATA and mappings() == 1
    b = numpy.asarray(a)[5:6]
    del a
    gc.collect()
    assert mappings() == 1
    del b
    assert mappings() == 0


def test_a_closed_client_gives_its_memory_back_when_the_last_slice_has_gone():
    """The daemon keeps what a live program may have mapped: so the socket stays until then."""
    freed = threading.Event()

    def then(f):
        f.expect(DETACH, lease_id=8)
        f.expect(FREE, token=3)
        assert mappings() == 0, "the range is the daemon's, and still mapped here"
        freed.set()
        f.silent()

    before = fds()
    f, c = fake(one_get(then))
    view = c.get(H)
    part = view.data[5:]
    c.close()
    assert view.closed and part[0] == 5 and not freed.wait(0.05)
    raises(rv.ClosedError, c.metadata, H)
    del part
    assert freed.wait(20)
    f.end()
    assert fds() <= before


def test_memory_of_its_own_is_unmapped_once_no_answer_can_name_it():
    mapped = []

    def script(f):
        q, _ = f.expect(GET)
        show(f, q, single_use=1, lease_id=0)
        late, _ = f.expect(GET)  # under way when the first buffer goes back
        f.expect(FREE, token=3)
        other.wait(20)
        mapped.append(mappings())
        show(f, late, fd=False, single_use=1, token=4, lease_id=0)
        f.expect(FREE, token=4)
        q, _ = f.expect(METADATA)
        mapped.append(mappings())
        f.reply(METADATA, q)
        f.silent()

    other = threading.Event()
    f, c = fake(script)
    first = c.get(H)
    got = []
    t = threading.Thread(target=lambda: got.append(c.get(H)))
    t.start()
    eventually(lambda: len(c._session.naming), what="the second get")
    first.close()
    other.set()
    t.join(20)
    assert got[0].data == DATA
    got[0].close()
    c.metadata(H)
    c.close()
    f.end()
    assert mapped == [1, 0], mapped


def test_a_buffer_is_committed_only_when_nothing_shows_it():
    def script(f):
        q, _ = f.expect(ALLOC, len=1000, flags=SHARED)
        show(f, q, ALLOC, bytes(4096), len=1024, writable=1, token=4, lease_id=0)
        q, _ = f.expect(COMMIT, token=4, len=900, refs=2, ttl_ns=1500000000)
        f.refuse(COMMIT, q, errno.ENOSPC, b"full")
        q, _ = f.expect(COMMIT, token=4, len=900)
        f.reply(COMMIT, q, worker=WORKER, local=6, pinned=1)
        f.silent()

    f, c = fake(script)
    buf = c.alloc(1000)
    assert len(buf) == 1000
    part = buf.data[10:20]
    part[:] = b"0123456789"
    buf.truncate(900)
    raises(BufferError, c.commit, buf)
    del part
    raises(rv.NoSpaceError, c.commit, buf, refs=2, ttl=1.5)
    assert buf.data[10:20] == b"0123456789"  # still the caller's
    h = c.commit(buf)
    assert h == (WORKER, 6) and h.pinned and buf.closed
    raises(ValueError, c.commit, buf)
    raises(ValueError, lambda: buf.data)
    buf.close()
    c.close()
    f.end()
    assert mappings() == 0


def test_a_commit_whose_outcome_is_unknown_closes_the_buffer():
    """It may have been named, then dropped, and the range be another's: nobody may look at it again."""
    def script(f):
        q, _ = f.expect(ALLOC)
        show(f, q, ALLOC, bytes(4096), len=1000, writable=1, token=4, lease_id=0)
        q, _ = f.expect(COMMIT)
        f.expect(FREE, token=4)
        f.reply(COMMIT, q, worker=WORKER, local=6)
        f.expect(DROP, local=6)
        f.silent()

    import rv._verbs
    grace, rv._verbs.GRACE = rv._verbs.GRACE, 0.0
    try:
        f, c = fake(script)
        buf = c.alloc(1000)
        raises(rv.TimedOutError, c.commit, buf, timeout=0.05)
        assert buf.closed
        raises(ValueError, lambda: buf.data)
        c.close()
        f.end()
    finally:
        rv._verbs.GRACE = grace
    assert mappings() == 0


def test_numbers_that_do_not_fit_are_refused_before_anything_is_sent():
    f, c = fake(lambda f: f.silent())
    for bad in (lambda: c.detach(H, -1), lambda: c.release(H, 1 << 64), lambda: c.put(b"", refs=-1),
                lambda: c.put(b"", refs=1 << 32), lambda: c.put(b"", ttl=float("nan")), lambda: c.alloc(-1),
                lambda: c.alloc(1 << 64), lambda: c.get(H, timeout=float("nan")), lambda: c.metadata(rv.Handle(1 << 64, 1))):
        raises(rv.InvalidError, bad)
    assert not c._session.calls
    c.close()
    f.end()


def test_an_empty_buffer_is_a_buffer():
    def script(f):
        q, _ = f.expect(ALLOC, len=0)
        f.reply(ALLOC, q, token=4)
        q, _ = f.expect(COMMIT, token=4, len=0)
        f.reply(COMMIT, q, worker=WORKER, local=6)
        q, _ = f.expect(ALLOC, len=0)
        f.reply(ALLOC, q, token=5)
        f.expect(FREE, token=5)
        f.silent()

    f, c = fake(script)
    buf = c.alloc(0)
    buf.data[:] = b""
    assert c.commit(buf).local == 6 and buf.closed
    c.alloc(0).close()
    c.close()
    f.end()


def test_get_into_a_buffer_is_done_by_the_daemon():
    def script(f):
        q, _ = f.expect(ALLOC)
        show(f, q, ALLOC, bytes(4096), len=1000, writable=1, token=4, lease_id=0)
        q, _ = f.expect(GET, token=4, off=100, len=50, flags=INTO | 4)
        f.reply(GET, q, len=50)
        q, _ = f.expect(GET, token=4, off=0, len=1000)
        f.refuse(GET, q, errno.ETIMEDOUT, b"late")
        f.expect(FREE, token=4)

    f, c = fake(script)
    buf = c.alloc(1000)
    assert c.get_into(H, buf, offset=100, size=50).len == 50
    raises(rv.InvalidError, c.get_into, H, buf, offset=999, size=2)
    raises(rv.TimedOutError, c.get_into, H, buf)
    for again in (lambda: c.get_into(H, buf), lambda: c.commit(buf)):
        raises(rv.BusyError, again)  # its bytes may still land there
    buf.close()
    c.close()
    f.end()


def test_get_into_other_memory_says_how_much_does_not_fit():
    def script(f):
        q, _ = f.expect(GET, len=10, flags=INTO | 4, token=0)
        f.reply(GET, q, b"too long", rc=-errno.ERANGE, len=12345)
        q, _ = f.expect(GET, len=20000)
        show(f, q, lease_id=0)
        f.expect(FREE, token=3)

    f, c = fake(script)
    assert raises(rv.TooLongError, c.get_into, H, bytearray(10)).length == 12345
    raises(TypeError, c.get_into, H, b"read-only")
    to = bytearray(20000)
    assert c.get_into(H, to).len == len(DATA) and to[:len(DATA)] == DATA and not any(to[len(DATA):])
    c.close()
    f.end()


def test_a_forked_child_is_refused_and_holds_nothing_open():
    def then(f):
        gives_back(f)  # the parent, not the child
        f.silent()

    f, c = fake(one_get(then))
    view = c.get(H)
    fd = c._session.sock.fileno()
    child = os.fork()
    if not child:
        try:
            raises(rv.ForkedError, c.metadata, H)
            raises(rv.ForkedError, lambda: view.data)
            raises(OSError, os.fstat, fd)
            view.close()
            c.close()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert view.data == DATA
    view.close()
    c.close()
    f.end()


def test_inherited_memory_faults_in_a_child_and_is_nothing_else():
    f, c = fake(one_get(lambda f: f.silent(), lease_id=0))
    view = c.get(H)
    part = view.data
    child = os.fork()
    if not child:
        import mmap
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        others = [mmap.mmap(-1, 4096) for _ in range(2000)]  # one would land there
        os._exit(part[0] + bool(others))
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
    del part
    f.sock.shutdown(socket.SHUT_RDWR)
    view.close()
    c.close()


def test_answers_in_any_order_reach_the_threads_that_wait():
    import random
    nr, each = 8, 100

    def answer_all(f):
        seen = 0
        while seen < nr * each:
            batch = [f.expect(METADATA)[0]]
            f.sock.settimeout(0.002)
            try:
                while True:
                    batch.append(f.expect(METADATA)[0])
            except TimeoutError:
                pass
            f.sock.settimeout(20)
            random.shuffle(batch)
            seen += len(batch)
            for q in batch:
                f.reply(METADATA, q, len=q["local"])

    f, c = fake(answer_all)
    bad = []

    def run(i):
        for k in range(each):
            if c.metadata(rv.Handle(9, i * each + k)).len != i * each + k:
                bad.append((i, k))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(nr)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive(), "a thread was forgotten"
    c.close()
    f.end()
    assert not bad


def test_the_thread_that_read_for_all_hands_the_reading_on():
    def script(f):
        first, _ = f.expect(METADATA, local=1)
        second, _ = f.expect(METADATA, local=2)
        both.wait(20)
        f.reply(METADATA, first, len=1)
        gone.wait(20)
        f.reply(METADATA, second, len=2)

    both, gone = threading.Event(), threading.Event()
    f, c = fake(script, timeout=None)
    got = []
    threads = []
    for i in (1, 2):
        threads.append(threading.Thread(target=lambda i=i: got.append(c.metadata(rv.Handle(9, i)).len), daemon=True))
        threads[-1].start()
        eventually(lambda: c._reading and (i == 1 or c._waiters), what="thread %d waiting" % i)
    both.set()
    threads[0].join(20)
    gone.set()
    threads[1].join(20)
    assert got == [1, 2], "nobody reads for the second thread: %s" % got
    c.close()
    f.end()


def test_what_ends_while_the_lock_is_held_goes_back_after_it():
    """A garbage collection can come in the middle of anything, this very code included."""
    def then(f):
        f.expect(DETACH)
        f.expect(FREE, token=3)
        freed.set()
        f.silent()

    freed = threading.Event()
    f, c = fake(one_get(then))
    part = c.get(H).data
    with c._session.guard:
        del part
        assert len(c._session.gone) == 1
    assert freed.wait(20)
    c.close()
    f.end()


def test_close_ends_the_calls_of_other_threads():
    def script(f):
        q, _ = f.expect(GET)
        f.expect(METADATA)
        got.set()
        time.sleep(0.1)
        show(f, q)  # late, but while close() waits for it
        gives_back(f)
        f.silent()

    got = threading.Event()
    f, c = fake(script)
    ended = []

    def run(verb):
        ended.append(type(raises(rv.RvError, verb, H)))

    threads = [threading.Thread(target=run, args=(c.get,))]
    threads[0].start()
    eventually(lambda: c._session.calls, what="the get")
    threads.append(threading.Thread(target=run, args=(c.metadata,)))
    threads[1].start()
    assert got.wait(20)
    c.close()
    for t in threads:
        t.join(20)
    f.end()
    assert ended == [rv.ClosedError] * 2, ended
    assert mappings() == 0


def test_a_handler_gets_what_was_sent_and_its_caller_what_came_of_it():
    said = []

    def script(f):
        for name in ("echo", "fail", "none", "long"):
            q, _ = f.expect(SERVE)
            assert q["name"].rstrip(b"\0").decode() == name
            f.reply(SERVE, q)
        fd = memfd(DATA)
        ask = [("echo", 11, dict(payload=b"hello")), ("echo", 12, dict(token=5, arena=1, has_fd=1, arena_len=len(DATA),
                                                                       off=50, len=100, fds=[fd])),
               ("fail", 13, {}), ("none", 14, {}), ("long", 15, {}), ("gone", 16, {}), ("echo", 0, dict(payload=b"fire"))]
        for name, rid, fields in ask:
            shown, payload = fields.pop("fds", ()), fields.pop("payload", b"")
            f.send(answer(REQUEST, rid, payload, worker=4, path=UNARY, path_name=name.encode(), **fields), shown)
            if rid:
                while True:
                    op, q, payload = f.take()
                    if op == ANSWER:
                        break
                    assert (op, q["token"]) == (FREE, 5)
                said.append((q["token"], q["flags"], payload))
        os.close(fd)
        op, q, _ = f.take()
        if op == FREE:
            op, q, _ = f.take()
        assert op == UNSERVE
        f.reply(UNSERVE, q)
        f.silent()

    f, c = fake(script)
    fired = threading.Event()

    def echo(q):
        assert q.sender == 4 and q.wants_result and q.handler == "echo"
        if q.data == b"fire":
            fired.set()
        return q.data

    def fail(q):
        raise RuntimeError("on purpose " + "x" * 300)

    c.serve("echo", echo)
    c.serve("fail", fail)
    c.serve("none", lambda q: None)
    c.serve("long", lambda q: bytes(16 << 20))
    assert raises(rv.RvError, c.serve, "echo", echo).errno == errno.EEXIST
    raises(rv.InvalidError, c.serve, "_hidden", echo)
    assert fired.wait(20)
    c.unserve("echo")
    c.close()
    f.end()
    assert said[0] == (11, 0, b"hello") and said[1] == (12, 0, DATA[50:150]), said[:2]
    assert said[2][1] == 1 and said[2][2].startswith(b"on purpose") and len(said[2][2]) == 255
    assert said[3] == (14, 0, b"") and said[4] == (15, 1, b"the result is longer than a frame")
    assert said[5][1] == 1 and b"'gone' not found" in said[5][2]


def test_a_handler_may_make_calls_while_others_wait():
    def script(f):
        q, _ = f.expect(SERVE)
        f.reply(SERVE, q)
        waits, _ = f.expect(METADATA, local=1)
        f.send(answer(REQUEST, 5, b"x", worker=4, path=UNARY, path_name=b"ask"))
        q, _ = f.expect(METADATA, local=2)
        f.reply(METADATA, q, len=22)
        q, payload = f.expect(ANSWER)
        assert payload == b"22"
        f.reply(METADATA, waits, len=11)

    f, c = fake(script)
    c.serve("ask", lambda q: str(c.metadata(rv.Handle(9, 2)).len).encode())
    assert c.metadata(rv.Handle(9, 1)).len == 11
    c.close()
    f.end()


def test_an_owner_is_asked_at_each_of_its_addresses():
    def script(f):
        for host in (b"::1", b"127.0.0.1", b"::1"):
            q, _ = f.expect(METADATA, port=99)
            assert q["host"].rstrip(b"\0") == host
            f.refuse(METADATA, q, errno.EHOSTUNREACH, b"no way to " + host)
        f.silent()

    def two(host, deadline):
        assert host == "two.example"
        return ["::1", "127.0.0.1"]

    import rv.client
    f, c = fake(script)
    resolve, rv.client._resolve = rv.client._resolve, two
    try:
        assert raises(rv.UnreachableError, c.metadata, "rv://two.example:99/5").strerror == "no way to 127.0.0.1"
    finally:
        rv.client._resolve = resolve
    assert raises(rv.UnreachableError, c.metadata, "rv://[::1]:99/5").strerror == "no way to ::1"
    assert "no-such-host" in raises(rv.UnreachableError, c.metadata, "rv://no-such-host.invalid:99/5").strerror
    c.close()
    f.end()


def test_a_name_server_that_does_not_answer_is_waited_for_no_longer_than_asked():
    import rv._verbs
    asked = threading.Event()
    real, grace = socket.getaddrinfo, rv._verbs.GRACE

    def never(host, *args, **kw):
        if kw.get("flags"):
            return real(host, *args, **kw)
        asked.wait(20)
        raise socket.gaierror("too late")

    async def on_asyncio(f):
        async with await rv.AsyncClient._on(f.theirs) as c:
            try:
                await c.metadata("rv://slow.example:99/5", timeout=0.05)
                raise AssertionError("it was found")
            except rv.TimedOutError as e:
                assert "name server" in e.strerror
            finally:
                asked.set()

    socket.getaddrinfo, rv._verbs.GRACE = never, 0.0
    try:
        f, c = fake(lambda f: f.silent())
        assert "name server" in raises(rv.TimedOutError, c.metadata, "rv://slow.example:99/5", timeout=0.05).strerror
        c.close()
        f.end()
        f = Fake(lambda f: f.silent())
        asyncio.run(on_asyncio(f))
        f.end()
    finally:
        asked.set()
        socket.getaddrinfo, rv._verbs.GRACE = real, grace


def test_an_interrupted_call_is_undone_and_the_client_goes_on():
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted()

    def script(f):
        q, _ = f.expect(GET)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        meta, _ = f.expect(METADATA)
        show(f, q)  # late
        gives_back(f)
        f.reply(METADATA, meta, len=5)
        f.silent()

    was = signal.signal(signal.SIGALRM, interrupt)
    try:
        f, c = fake(script)
        raises(Interrupted, c.get, H)
        assert c.metadata(H).len == 5
        c.close()
        f.end()
    finally:
        signal.signal(signal.SIGALRM, was)
    assert mappings() == 0


def test_a_closed_client_whose_daemon_died_leaves_nothing_either():
    def then(f):
        f.expect(DETACH)
        raise Gone()

    before = fds()
    f, c = fake(one_get(then))
    part = c.get(H).data[3:]
    c.close()
    f.end()
    assert part == DATA[3:] and mappings() == 1
    del part
    assert mappings() == 0 and fds() == before


def test_who_serves_nothing_refuses_requests():
    def script(f):
        fd = memfd(DATA)
        f.send(answer(REQUEST, 3, b"", worker=4, path_name=b"x", token=5, arena=1, has_fd=1, arena_len=len(DATA), len=9), [fd])
        os.close(fd)
        back = sorted((op, q["token"], q["flags"]) for op, q, _ in (f.take(), f.take()))
        assert back == [(FREE, 5, 0), (ANSWER, 3, 1)], back
        q, _ = f.expect(GET)
        show(f, q, fd=False, lease_id=0)  # an arena that was shown with the request
        f.expect(FREE, token=3)

    f = Fake(script)

    async def run():
        async with await rv.AsyncClient._on(f.theirs) as c:
            await asyncio.sleep(0.05)
            with await c.get(H) as view:
                assert view.data == DATA

    asyncio.run(run())
    f.end()


def test_get_many_closes_what_came_when_one_fails():
    def script(f):
        for again in (False, True):
            _, ones = f.expect(GET_MANY)
            ids = [one[0] for one in struct.iter_unpack("<QQQ", ones)]
            assert len(ids) == 3
            show(f, {"id": ids[0]}, token=11, fd=not again, lease_id=21)
            f.refuse(GET, {"id": ids[1]}, errno.ENOENT, b"no such handle")
            show(f, {"id": ids[2]}, token=13, fd=False, lease_id=23)
            back = sorted((op, q["token"], q["lease_id"]) for op, q, _ in (f.take() for _ in range(4)))
            assert back == sorted([(FREE, 11, 0), (FREE, 13, 0), (DETACH, 0, 21), (DETACH, 0, 23)]), back
        f.silent()

    f, c = fake(script)
    raises(rv.NotFoundError, c.get_many, [H] * 3)
    got = c.get_many([H] * 3, errors=True)
    assert [type(g) for g in got] == [rv.View, rv.NotFoundError, rv.View]
    for g in got[::2]:
        g.close()
    c.close()
    f.end()


def test_an_older_daemon_gets_its_gets_one_by_one():
    def script(f):
        for i in range(3):
            q, _ = f.expect(GET)
            f.reply(GET, q)

    f, c = fake(script, version=1)
    assert [len(v) for v in c.get_many([H] * 3)] == [0, 0, 0]
    c.close()
    f.end()


def test_a_message_over_the_threshold_is_staged_and_dropped():
    def script(f):
        q, _ = f.expect(ALLOC, flags=MAPPED, len=1001)
        f.reply(ALLOC, q, token=4, len=1001)
        f.expect(WRITE)
        q, _ = f.expect(COMMIT)
        f.reply(COMMIT, q, worker=WORKER, local=6)
        q, payload = f.expect(CALL, local=6, what=UNARY)
        assert not payload
        f.refuse(CALL, q, errno.EREMOTEIO, b"its own words")
        f.expect(DROP, local=6)

    f, c = fake(script)
    assert raises(rv.RemoteError, c.call, "peer", "h", b"x" * 1001).strerror == "its own words"
    c.close()
    f.end()


def test_a_cancelled_call_is_undone():
    """On asyncio: before its answer, and beside others that go on."""
    def script(f):
        first, _ = f.expect(GET, local=5)
        second, _ = f.expect(GET, local=6)
        f.expect(METADATA)
        show(f, first)
        gives_back(f)
        show(f, second, fd=False, token=7, lease_id=0)
        f.expect(FREE, token=7)

    async def run(f):
        async with await rv.AsyncClient._on(f.theirs) as c:
            first = asyncio.create_task(c.get(H))
            second = asyncio.create_task(c.get(rv.Handle(9, 6)))
            await asyncio.sleep(0)
            first.cancel()
            try:
                await first
                raise AssertionError("it was not cancelled")
            except asyncio.CancelledError:
                pass
            other = asyncio.create_task(c.metadata(H))
            with await second as view:
                assert view.data == DATA
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    f = Fake(script)
    asyncio.run(run(f))
    f.end()
    assert mappings() == 0


def test_what_was_never_sent_needs_no_undoing():
    """A call that is cancelled while its frame waits for room is withdrawn."""
    def script(f):
        go.wait(20)
        q, _ = f.expect(PEER_ADD)
        q2, _ = f.expect(METADATA)
        f.reply(METADATA, q2, len=3)

    async def run(f):
        async with await rv.AsyncClient._on(f.theirs) as c:
            big = asyncio.create_task(c.peer_add(bytes(8 << 20)))  # fills the socket
            await asyncio.sleep(0.05)
            get = asyncio.create_task(c.get(H))
            await asyncio.sleep(0)
            get.cancel()
            await asyncio.gather(get, return_exceptions=True)
            meta = asyncio.create_task(c.metadata(H))
            await asyncio.sleep(0)
            big.cancel()  # half out: it is finished
            go.set()
            assert (await meta).len == 3

    go = threading.Event()
    f = Fake(script)
    asyncio.run(run(f))
    f.end()


def test_handlers_on_asyncio_run_beside_each_other():
    def script(f):
        q, _ = f.expect(SERVE)
        f.reply(SERVE, q)
        for rid in (1, 2):
            f.send(answer(REQUEST, rid, b"%d" % rid, worker=4, path=UNARY, path_name=b"h"))
        got = [f.expect(ANSWER) for _ in range(2)]
        assert [(q["token"], p) for q, p in got] == [(2, b"2"), (1, b"1")]
        q, _ = f.expect(UNSERVE)
        f.reply(UNSERVE, q)

    async def run(f):
        second = asyncio.Event()

        async def h(q):
            if q.data == b"1":
                await second.wait()
            second.set()
            done.append(q.data.tobytes())
            return q.data

        done = []
        async with await rv.AsyncClient._on(f.theirs) as c:
            await c.serve("h", h)
            while len(done) < 2:
                await asyncio.sleep(0.001)
            await c.unserve("h")

    f = Fake(script)
    asyncio.run(run(f))
    f.end()


def test_memory_may_end_on_any_thread():
    """A garbage collection on another thread than the loop's."""
    def then(f):
        f.expect(DETACH, lease_id=8)
        f.expect(FREE, token=3)

    async def run(f):
        async with await rv.AsyncClient._on(f.theirs) as c:
            held = [(await c.get(H)).data]
            await asyncio.get_running_loop().run_in_executor(None, held.clear)

    f = Fake(one_get(then))
    asyncio.run(run(f))
    f.end()


main(globals())
