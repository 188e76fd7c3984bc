#!/usr/bin/env python3
"""The Python client against real daemons: two nodes, C programs on the other side, and what is left afterwards."""
import asyncio
import errno
import gc
import threading

from rvdtest import *

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "control", "client", "python"))
import rv  # noqa: E402

SERVE_ECHO = os.path.join(BUILD, "tests", "integration", "serve_echo")
BIG = pattern(6 << 20)


def need_numpy():
    try:
        import numpy
    except ImportError:
        raise Missing("no NumPy here") from None
    return numpy


def fds():
    return len(os.listdir("/proc/self/fd"))


def mapped():
    """Arenas of daemons that this process has mapped."""
    with open("/proc/self/maps") as f:
        return sum("memfd:" in line for line in f)


def at(daemon, handle):
    return rv.Ref(handle, "127.0.0.1", daemon.tcp)


def rvctl_json(d, *args):
    rc, out, err = rvctl(d, *args, "--json")
    assert rc == 0, err
    return json.loads(out)


def all_back(*daemons):
    """No slot, no lease, no byte and no program but the one that asks."""
    for d in daemons:
        def empty():
            s = rvctl_json(d, "status")
            return not s["used_bytes"] and not s["slots"] and not rvctl_json(d, "leases").get("leases")
        eventually(empty, what="everything back")


class Nothing:
    """What this process had open and mapped it has again afterwards."""

    def __enter__(self):
        gc.collect()
        self.before = (fds(), mapped())

    def __exit__(self, kind, *_):
        if kind is None:
            gc.collect()
            now = (fds(), mapped())
            assert now == self.before, "descriptors and mappings: %s before, %s now" % (self.before, now)


def moved_between_two_nodes(ucx, took):
    with Daemon("a", ucx=ucx) as a, Daemon("b", ucx=ucx) as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
            assert ca.worker != cb.worker
            for n in (0, 1, 4096, 65536, 65537, len(BIG)):
                for pinned in (True, False):
                    h = ca.put(BIG[:n], pinned=pinned)
                    name = ca.reference(h)
                    assert name == at(a, h) and h.worker == ca.worker
                    meta = cb.metadata(name)
                    assert (meta.len, meta.refcount) == (n, 1)
                    with cb.get(str(name)) as view:
                        assert view.data == BIG[:n] and len(view) == n and view.lease, n
                    assert cb.get_bytes(name) == BIG[:n]
                    with ca.get(h) as own:
                        assert own.took == "local" and own.data == BIG[:n]
                    cb.release(name)
                    raises(rv.NotFoundError, cb.metadata, name)
            h = ca.put(BIG)
            with cb.get(at(a, h)) as view:  # the endpoint is wired by now
                assert view.took == took and view.data == BIG and view.elapsed > 0, view
            with cb.get(at(a, h), path="chunked") as view:
                assert view.took == "chunked"
            if not ucx:
                raises(rv.NotSupportedError, cb.get, at(a, h), path="rdma")
            ca.drop(h)
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def raises(kind, fn, *args, **kw):
    try:
        fn(*args, **kw)
    except kind as e:
        return e
    raise AssertionError("no %s was raised" % kind.__name__)


def test_payloads_move_between_two_nodes_over_ucx():
    moved_between_two_nodes(True, "rdma")


def test_payloads_move_between_two_nodes_in_chunks():
    moved_between_two_nodes(False, "chunked")


def test_a_numpy_array_makes_the_round_trip_without_a_copy_here():
    np = need_numpy()
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        with Nothing():
            with rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
                x = np.arange(1 << 18, dtype=np.float32).reshape(64, 64, 64)
                h = ca.put(x)
                raises(BufferError, ca.put, x[:, ::2])
                buf = ca.alloc(x.nbytes)
                y = np.frombuffer(buf.data, np.float32).reshape(x.shape)
                np.multiply(x, 2, out=y)
                raises(BufferError, ca.commit, buf)
                del y
                h2 = ca.commit(buf)
                one, two = (cb.get(at(a, k)).numpy(np.float32, x.shape) for k in (h, h2))
                assert (one == x).all() and (two == 2 * x).all()
                assert not one.flags.owndata and not one.flags.writeable
                assert (np.asarray(cb.get(at(a, h))) == x.view(np.uint8).ravel()).all()
                raises(ValueError, cb.get(at(a, h)).numpy, np.float32, (3, 3))
                assert cb.get(at(a, ca.put(b"", session=True))).numpy(np.float32).shape == (0,)
                # The views are gone, the arrays are there: the daemon holds the bytes, and no lease.
                eventually(lambda: not rvctl_json(b, "leases").get("leases") and not rvctl_json(a, "leases").get("leases"),
                           what="the leases' end")
                assert rvctl_json(b, "status")["used_bytes"] >= 2 * x.nbytes
                ca.drop(h)
                ca.drop(h2)
            assert (one == x).all() and (two == 2 * x).all()  # beyond the clients
            del one, two, x
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_many_are_fetched_at_once():
    with Daemon("a") as a, Daemon("b") as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
            n = int(300 / min(SLOW, 2))
            handles = [ca.put(b"%d." % i * (i % 7)) for i in range(n)]
            handles += [ca.put(BIG[:200000]), ca.put(BIG[:200000])]
            names = [at(a, h) for h in handles]
            views = cb.get_many(names)
            assert [v.tobytes() for v in views] == [b"%d." % i * (i % 7) for i in range(n)] + [BIG[:200000]] * 2
            for v in views:
                v.close()
            views = ca.get_many(handles, then="detach")
            assert all(not v.lease and v.took == "local" for v in views)
            bad = names[:3] + [at(a, rv.Handle(ca.worker, 99999))] + names[3:5] + [rv.Ref(rv.Handle(5, 5), "127.0.0.1", 1)]
            raises(rv.NotFoundError, cb.get_many, bad)
            got = cb.get_many(bad, errors=True)
            assert [type(g) for g in got] == [rv.View] * 3 + [rv.NotFoundError] + [rv.View] * 2 + [rv.UnreachableError], got
            assert cb.get_many([]) == []
            del views, got, v
            for h in handles:
                ca.drop(h)
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_bytes_land_in_a_buffer_of_the_clients():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
            h = ca.put(BIG, refs=2)
            with cb.alloc(len(BIG) + 100) as buf:
                got = cb.get_into(at(a, h), buf, offset=50)
                assert got.len == len(BIG) and got.lease == 0
                assert buf.data[50:50 + len(BIG)] == BIG
                assert raises(rv.TooLongError, cb.get_into, at(a, h), buf, size=1000).length == len(BIG)
                again = cb.commit(buf)
                assert cb.get_bytes(again)[50:50 + len(BIG)] == BIG
                cb.drop(again)
            to = bytearray(len(BIG))
            assert cb.get_into(at(a, h), memoryview(to)[:], then="release").len == len(BIG) and to == BIG
            got = cb.get_into(at(a, h), to, then="keep")
            cb.release(at(a, h), got.lease)
            raises(rv.NotFoundError, cb.metadata, at(a, h))
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_references_and_leases_are_counted_by_the_owner():
    with Daemon("a") as a, Daemon("b") as b:
        with Nothing(), rv.Client(a.socket) as ca:
            h = ca.put(b"x" * 1000)
            with rv.Client(b.socket) as cb:
                cb.ref(at(a, h))
                assert ca.metadata(h).refcount == 2
                view, kept = cb.get(at(a, h)), cb.get(at(a, h), keep=True)
                assert len(rvctl_json(a, "leases")["leases"]) == 2
                cb.detach(view)
                assert view.lease == 0 and view.data == b"x" * 1000
                raises(rv.InvalidError, cb.detach, view)
                cb.release(view)  # without a lease: one is taken only for that
                assert ca.metadata(h).refcount == 1
                lease = kept.lease
                cb.get(at(a, h))  # dropped, so given back
                left = cb.get(at(a, h))
            # A lease of keep=True outlives its client, the others do not.
            eventually(lambda: len(rvctl_json(a, "leases")["leases"]) == 1, what="one lease left")
            assert left.closed
            raises(ValueError, lambda: left.data)
            with rv.Client(b.socket) as cb:
                cb.release(at(a, h), lease)
                raises(rv.NotFoundError, cb.metadata, at(a, h))
            s = ca.put(b"y", session=True)
            ca.put(b"z", ttl=0.2)
            assert ca.get_bytes(s) == b"y"
        all_back(a, b)  # the session's slot with it, the other with its time
        assert a.stop() == 0 and b.stop() == 0


def test_errors_say_what_the_daemon_said():
    with Daemon("a") as a, Daemon("b", memory__plain_bytes_budget="1MiB", memory__registered_bytes_budget="8MiB") as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket, timeout=30) as cb:
            e = raises(rv.NotFoundError, ca.get, rv.Handle(ca.worker, 4711))
            assert e.errno == errno.ENOENT and "no such handle" in str(e).lower() or "not found" in str(e), e
            e = raises(rv.UnreachableError, cb.get, rv.Ref(rv.Handle(5, 5), "127.0.0.1", 1))
            assert e.errno == errno.EHOSTUNREACH and e.strerror
            raises(rv.RvError, cb.get, rv.Handle(5, 5))  # an owner that nobody knows
            raises(rv.InvalidError, cb.drop, rv.Handle(ca.worker, 1))
            assert raises(rv.NoSpaceError, cb.put, bytes(2 << 20), pinned=False).errno == errno.ENOSPC
            raises(rv.InvalidError, cb.get, "5", timeout=0)
            raises(rv.InvalidError, cb.get, "5", path="fast")
            raises(rv.InvalidError, cb.put, b"", ttl=-1)
            raises(TypeError, cb.put, "text")
            assert ca.put(b"x", session=True).pinned is False and ca.put(b"x", session=True).plain == "no_rdma"
        e = raises(rv.NotConnectedError, rv.Client, os.path.join(a.dir, "absent.sock"))
        assert "no daemon answers" in str(e)
        raises(rv.RvError, rv.Client, "/" + "x" * 200)
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_a_timeout_leaves_nothing_behind():
    with Daemon("a") as a, Daemon("b") as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
            h = ca.put(BIG)
            assert cb.metadata(at(a, h)).len == len(BIG)
            a.freeze()
            began = time.monotonic()
            raises(rv.TimedOutError, cb.get, at(a, h), timeout=0.3)
            assert time.monotonic() - began < 20 * SLOW
            b.freeze()
            raises(rv.TimedOutError, cb.metadata, at(a, h), timeout=0.3)  # nobody answers at all
            for d in (a, b):
                d.proc.send_signal(signal.SIGCONT)
            assert cb.get_bytes(at(a, h), timeout=60 * SLOW) == BIG
            ca.drop(h)
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_a_daemon_that_dies_ends_calls_and_its_memory_stays():
    with Daemon("a") as a, Daemon("b") as b:
        with Nothing():
            ca = rv.Client(a.socket)
            cb = rv.Client(b.socket)
            h = ca.put(BIG)
            view = cb.get(at(a, h))
            a.freeze()  # so that the call is under way
            ended = []
            t = threading.Thread(target=lambda: ended.append(raises(rv.RvError, cb.get, at(a, h), timeout=None)))
            t.start()
            eventually(lambda: cb._session.calls, what="the call")
            b.kill()
            t.join(30 * SLOW)
            assert [type(e) for e in ended] == [rv.NotConnectedError], ended
            assert view.data == BIG  # read from memory that the daemon made
            raises(rv.NotConnectedError, cb.metadata, h)
            a.proc.send_signal(signal.SIGCONT)
            b.restart()
            raises(rv.NotConnectedError, cb.metadata, h)  # a client is of one daemon's life
            with rv.Client(b.socket) as again:
                assert again.get_bytes(at(a, h)) == BIG
            view.close()
            cb.close()
            # The owner goes: its handle is nobody's.
            a.kill()
            with rv.Client(b.socket) as again:
                raises((rv.UnreachableError, rv.TimedOutError), again.get, at(a, h), timeout=5)
            raises(rv.NotConnectedError, ca.get, h)
            ca.close()
        assert b.stop() == 0


def test_memory_is_the_daemons_again_only_when_nothing_shows_it():
    """Closed clients included: while a slice is left the range is not reused."""
    with Daemon("a") as a:
        with Nothing():
            with rv.Client(a.socket) as c:
                h = c.put(BIG)
                part = c.get(h).data[1000:2000]
                c.drop(h)
            with rv.Client(a.socket) as c:
                assert rvctl_json(a, "status")["used_bytes"] >= len(BIG)
                others = [c.put(bytes(len(BIG)), session=True) for _ in range(3)]
                assert part == BIG[1000:2000] and others
            del part
        all_back(a)
        assert a.stop() == 0


def test_a_forked_child_must_open_its_own():
    import multiprocessing
    with Daemon("a") as a:
        with Nothing(), rv.Client(a.socket) as c:
            h = c.put(BIG)
            view = c.get(h)
            pid = os.fork()
            if not pid:
                ok = False
                try:
                    raises(rv.ForkedError, c.get, h)
                    raises(rv.ForkedError, lambda: view.data)
                    view.close()
                    c.close()
                    with rv.Client(a.socket) as own:
                        ok = own.get_bytes(h) == BIG
                except BaseException:
                    traceback.print_exc()
                os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(fetch_length, [(a.socket, str(h))] * 4) == [len(BIG)] * 4
            pool.join()
            del pool
            assert view.data == BIG and c.get_bytes(h) == BIG  # the parent's are as they were
            view.close()
            c.drop(h)
        all_back(a)
        assert a.stop() == 0


def fetch_length(args):
    socket_path, name = args
    with rv.Client(socket_path) as c:
        return len(c.get_bytes(name))


def test_threads_share_a_client():
    with Daemon("a") as a, Daemon("b") as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
            bad = []

            def run(i):
                try:
                    for k in range(int(30 / min(SLOW, 3))):
                        n = (i * 7919 + k * 104729) % 300000
                        h = ca.put(BIG[i:i + n], pinned=bool(k % 2))
                        with cb.get(at(a, h), then="release") as view:
                            if view.data != BIG[i:i + n]:
                                bad.append((i, k))
                except BaseException as e:
                    bad.append(e)

            threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(120 * SLOW)
                assert not t.is_alive()
            assert not bad, bad[:3]
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_what_is_held_never_changes_whatever_comes_and_goes_around_it():
    """Threads stage, fetch and drop; some slices are kept for a while, beyond their views, and looked at later."""
    import random

    def check(held):
        for data, want in held:
            assert data == want, "memory that was still shown was given to somebody else"

    def one(rng, ca, cb, owner, held):
        data = rng.randbytes(rng.choice((0, 10, 5000, 70000, 300000, 3 << 20)))
        if rng.random() < 0.5:
            h = ca.put(data, pinned=rng.random() < 0.7)
        else:
            buf = ca.alloc(len(data))
            buf.data[:] = data
            h = ca.commit(buf)
        for c, name in ((cb, at(owner, h)), (ca, h)):
            with c.get(name) as view:
                held.append((view.data[len(data) // 3:], data[len(data) // 3:]))
            held.append((rng.choice(c.get_many([name] * rng.randrange(1, 40), then="detach")).data, data))
            assert c.get_bytes(name) == data
        ca.drop(h)
        while len(held) > rng.randrange(2, 12):
            check([held.pop(rng.randrange(len(held)))])

    # A slot that is dropped before the end of a lease has come rests for as long as the lease could have lived.
    with Daemon("a", ucx=True, rendezvous__lease_timeout="3s") as a, Daemon("b", ucx=True) as b:
        with Nothing(), rv.Client(a.socket) as ca, rv.Client(b.socket) as cb:
            bad = []

            def run(i):
                rng, held = random.Random(i), []
                try:
                    for _ in range(int(20 / min(SLOW, 4))):
                        one(rng, ca, cb, a, held)
                    check(held)
                except BaseException as e:
                    bad.append(e)

            threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(200 * SLOW)
                assert not t.is_alive()
            assert not bad, bad[:3]
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_c_programs_call_handlers_in_python():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        with Nothing(), rv.Client(a.socket) as c:
            seen = []

            def fail(q):
                raise ValueError("it failed on purpose")

            c.serve("echo", lambda q: q.data)
            c.serve("size", lambda q: b"%d from %d" % (len(q.data), q.sender))
            c.serve("fail", fail)
            c.serve("note", lambda q: seen.append(q.data.tobytes()))
            assert rvctl(b, "peer-add", "aa", "127.0.0.1:%d" % a.tcp)[0] == 0
            for data in (b"", b"x", BIG[:THRESHOLD], BIG[:THRESHOLD + 1], BIG):
                rc, out, err = rvctl(b, "send", "aa", "echo", "-", data=data)
                assert rc == 0 and out == data, (len(data), rc, err)
            with rv.Client(b.socket) as cb:
                assert rvctl(b, "send", "aa", "size", "-", data=BIG)[1] == b"%d from %d" % (len(BIG), cb.worker)
            rc, _, err = rvctl(b, "send", "aa", "fail")
            assert rc == 1 and "it failed on purpose" in err, err
            assert rvctl(b, "send", "aa", "note", "-", "--fire", data=BIG)[0] == 0
            eventually(lambda: seen == [BIG], what="the note")
            with rv.Client(a.socket) as other:
                assert raises(rv.RvError, other.serve, "echo", fail).errno == errno.EEXIST
            c.unserve("echo")
            rc, _, err = rvctl(b, "send", "aa", "echo")
            assert rc == 1 and "Handler 'echo' not found" in err
        assert "size" not in rvctl(b, "handlers", "aa")[1].decode().split()
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_python_calls_handlers_in_c():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        server = subprocess.Popen([SERVE_ECHO, a.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"serving\n"
        with Nothing(), rv.Client(b.socket) as c:
            worker = c.peer_add(at="127.0.0.1:%d" % a.tcp, name="aa")
            for peer in ("aa", "127.0.0.1:%d" % a.tcp, str(worker)):
                assert {"echo", "size", "fail"} <= set(c.handlers(peer))
                for data in (b"", b"x", BIG[:THRESHOLD + 1], BIG):
                    assert c.call(peer, "echo", data) == data
            c.sync("aa", "echo", BIG)
            c.send("aa", "echo", BIG)
            assert "it failed on purpose" in raises(rv.RemoteError, c.call, "aa", "fail").strerror
            raises(rv.RemoteError, c.call, "aa", "absent")
            raises(rv.UnreachableError, c.call, "nobody", "echo")
            raises(rv.InvalidError, c.call, "aa", "_rv_pull")
            raises(rv.TimedOutError, c.call, "aa", "slow", timeout=0.05)
            info = c.peer_info()
            assert json.loads(info) and c.peer_info(msgpack=True) != info
            with rv.Client(a.socket) as ca:
                assert ca.peer_add(info, name="bb") == c.worker
                assert any(p.get("name") == "bb" for p in ca.state("peers")["peers"])
        server.stdin.close()
        assert server.wait(timeout=30 * SLOW) == 0
        server.stdout.close()
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_asyncio_has_many_gets_under_way():
    async def run(a, b):
        async with await rv.AsyncClient.open(a.socket) as ca, await rv.AsyncClient.open(b.socket) as cb:
            nr = int(400 / min(SLOW, 4))
            handles = await asyncio.gather(*[ca.put(BIG[i:i + 1000 * (i % 90)]) for i in range(nr)])

            async def fetch(i):
                async with asyncio.timeout(60 * SLOW):
                    with await cb.get(at(a, handles[i])) as view:
                        return view.data == BIG[i:i + 1000 * (i % 90)]

            assert all(await asyncio.gather(*[fetch(i) for i in range(nr)]))
            views = await cb.get_many([at(a, h) for h in handles[:100]])
            assert [len(v) for v in views] == [1000 * (i % 90) for i in range(len(views))]
            del views
            # Cancelled at different moments: none of it stays.
            big = await ca.put(BIG)
            for delay in (0, 0, 0.0005, 0.002, 0.005):
                tasks = [asyncio.create_task(cb.get(at(a, big), path="chunked")) for _ in range(8)]
                await asyncio.sleep(delay)
                for t in tasks:
                    t.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                del tasks
            assert await cb.get_bytes(at(a, big)) == BIG
            buf = await ca.alloc(len(BIG))
            buf.data[:] = BIG
            again = await ca.commit(buf)
            to = bytearray(len(BIG))
            assert (await cb.get_into(at(a, again), to)).len == len(BIG) and to == BIG
            for h in (*handles, big, again):
                await ca.drop(h)

    with Daemon("a") as a, Daemon("b") as b:
        with Nothing():
            asyncio.run(run(a, b))
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_asyncio_serves_and_calls():
    async def run(a, b):
        async with await rv.AsyncClient.open(a.socket) as ca, await rv.AsyncClient.open(b.socket) as cb:
            both = asyncio.Barrier(4)

            async def meet(q):
                await both.wait()  # only beside the others
                return q.data

            await ca.serve("meet", meet)
            peer = "127.0.0.1:%d" % a.tcp
            data = [b"%d" % i * 200000 for i in range(4)]
            assert await asyncio.gather(*[cb.call(peer, "meet", d, timeout=60 * SLOW) for d in data]) == data
            rc, out, err = await asyncio.to_thread(rvctl, a, "handlers", "127.0.0.1:%d" % b.tcp)
            assert rc == 0, err
            await ca.unserve("meet")
            try:
                await cb.call(peer, "meet")
                raise AssertionError("it is still served")
            except rv.RemoteError as e:
                assert "not found" in e.strerror

    with Daemon("a") as a, Daemon("b") as b:
        with Nothing():
            asyncio.run(run(a, b))
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_asyncio_hears_of_the_daemons_end():
    async def run(a):
        c = await rv.AsyncClient.open(a.socket)
        h = await c.put(BIG)
        view = await c.get(h)
        a.freeze()
        waiting = [asyncio.create_task(c.metadata(h, timeout=None)) for _ in range(3)]
        await asyncio.sleep(0)
        a.kill()
        got = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(g) for g in got] == [rv.NotConnectedError] * 3, got
        assert view.data == BIG
        await c.close()

    with Daemon("a") as a:
        with Nothing():
            asyncio.run(run(a))


def test_a_program_that_is_killed_leaves_nothing():
    """kill -9 with views, buffers, leases and calls under way."""
    program = """
import sys, time
sys.path.insert(0, %r)
import rv
c = rv.Client(sys.argv[1])
views = [c.get(sys.argv[2]) for _ in range(5)]
arrays = [v.data for v in views[:2]]
buf = c.alloc(1 << 20)
c.put(b"x" * 100000, session=True)
print("there", flush=True)
time.sleep(1000)
""" % sys.path[0]
    with Daemon("a") as a, Daemon("b") as b, rv.Client(a.socket) as ca:
        h = ca.put(BIG)
        p = subprocess.Popen([sys.executable, "-c", program, b.socket, str(at(a, h))], stdout=subprocess.PIPE)
        assert p.stdout.readline() == b"there\n"
        assert len(rvctl_json(a, "leases")["leases"]) == 5
        p.kill()
        p.wait()
        p.stdout.close()
        ca.drop(h)
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


main(globals())
