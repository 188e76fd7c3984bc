#!/usr/bin/env python3
"""Asynchronous calls of librv against real daemons: many in flight, beside blocking ones, and their ends."""
import asyncio
import ctypes

from rvdtest import *
import rvlib

ASYNC = os.path.join(BUILD, "tests", "integration", "async_client")
SERVE_ECHO = os.path.join(BUILD, "tests", "integration", "serve_echo")
ENOTCONN, ETIMEDOUT = "rc-107", "rc-110"


def start(d, *args):
    return subprocess.Popen([ASYNC, d.socket] + [str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(p, seconds=120):
    out, err = p.communicate(timeout=seconds * SLOW)
    assert p.returncode == 0, err.decode()
    lines = out.decode().splitlines()
    words = lines[-1].split()
    return {k: int(v) for k, v in zip(words[::2], words[1::2])}, lines[:-1]


def run(d, *args):
    return finish(start(d, *args))


def ref(owner, handle):
    return "rv://127.0.0.1:%d/%s" % (owner.tcp, handle)


def all_back(*daemons):
    for d in daemons:
        c = d.client()
        eventually(lambda: not c.list("status")["used_bytes"] and not c.list("status")["slots"] and
                   not c.list("leases").get("leases"), what="everything back")
        c.close()


def test_payloads_are_staged_at_once():
    with Daemon("a", ucx=True) as a:
        for n, nr in ((0, 3), (1, 50), (100000, 200), (3 << 20, 12)):
            seen, handles = run(a, "put", n, nr)
            assert seen["ok"] == nr and len(set(handles)) == nr, seen
            c = a.client()
            got = c.get((int(handles[-1]) >> 64, int(handles[-1]) & (1 << 64) - 1))
            assert got["data"] == bytes(i % 251 for i in range(n))
            c.free(got)
            c.close()
            for h in handles:
                assert rvctl(a, "drop", h)[0] == 0 if nr < 20 else True
            if nr >= 20:
                c = a.client()
                for h in handles:
                    c.call(DROP, worker=int(h) >> 64, local=int(h) & (1 << 64) - 1)
                c.close()
        all_back(a)
        assert a.stop() == 0


def many_gets(ucx, nr, threads):
    with Daemon("a", ucx=ucx) as a, Daemon("b", ucx=ucx) as b:
        _, (h,) = run(a, "put", 100000, 1)
        seen, _ = run(b, "gets", ref(a, h), 100000, nr, threads)
        assert seen["ok"] == seen["ended"] == nr, seen
        # An answer, or room for requests, behind each turn; and one for each time a blocking call stops reading.
        assert seen["turns"] <= 3 * nr + 4 * seen["blocked"] + 200, seen
        assert not threads or seen["blocked"], seen
        assert rvctl(a, "drop", h)[0] == 0
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_thousands_of_gets_in_flight_from_one_thread():
    many_gets(True, int(5000 / min(SLOW, 2)), 0)


def test_thousands_of_gets_beside_threads_that_block():
    many_gets(True, int(3000 / min(SLOW, 2)), 3)


def test_chunked_gets_in_flight():
    many_gets(False, 500, 1)


def test_calls_in_flight():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        s = subprocess.Popen([SERVE_ECHO, a.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert s.stdout.readline() == b"serving\n"
        for n in (0, 1000, THRESHOLD, THRESHOLD + 1, 1 << 20):
            seen, _ = run(b, "call", "127.0.0.1:%d" % a.tcp, n, 40)
            assert seen["ok"] == 40, seen
        s.stdin.close()
        assert s.wait(timeout=30 * SLOW) == 0
        s.stdout.close()
        all_back(a, b)
        assert a.stop() == 0 and b.stop() == 0


def waiting(a, b, nr, timeout_ms):
    """Gets of an owner that has been stopped."""
    _, (h,) = run(a, "put", 100000, 1)
    run(b, "gets", ref(a, h), 100000, 1, 0)  # they are connected
    a.freeze()
    p = start(b, "wait", ref(a, h), nr, timeout_ms)
    assert p.stdout.readline() == b"waiting\n"
    return p


def test_timeouts_end_the_calls_and_nothing_spins_meanwhile():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        a_worker = a.client().worker
        p = waiting(a, b, 500, 1500)
        seen, _ = finish(p)
        assert seen["ended"] == seen[ETIMEDOUT] == 500, seen
        assert seen["turns"] <= 1200, seen
        p = start(b, "wait", ref(a, "%d" % (a_worker << 64 | 1)), 1, 1500)
        assert p.stdout.readline() == b"waiting\n"
        seen, _ = finish(p)
        assert seen["ended"] == 1 and seen["turns"] <= 4, seen
        a.proc.send_signal(signal.SIGCONT)
        c = a.client()
        eventually(lambda: not c.list("leases").get("leases"), seconds=60, what="leases ended")
        assert a.stop() == 0 and b.stop() == 0


def test_when_the_daemon_is_killed_each_call_ends_once():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        p = waiting(a, b, 2000, 0)
        time.sleep(0.2)
        b.kill()
        seen, _ = finish(p)
        assert seen["ended"] == seen[ENOTCONN] == 2000, seen
        assert seen["turns"] <= 100, seen


class Handle(ctypes.Structure):
    _fields_ = [("worker", ctypes.c_uint64), ("local", ctypes.c_uint64)]


class Loop:
    """librv in an asyncio loop: one descriptor, no thread."""

    DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)

    def __init__(self, path):
        self.rv, self.c = ctypes.CDLL(rvlib.SO), ctypes.c_void_p()
        self.rv.rv_last_error.restype = ctypes.c_char_p
        assert self.rv.rv_open(path.encode(), ctypes.byref(self.c)) == 0
        self.waiting, self.turns = {}, 0
        self.done = self.DONE(self.ended)

    def ended(self, key, rc):
        future = self.waiting.pop(key)
        if rc:
            future.set_exception(Refused(rc, self.rv.rv_last_error().decode()))
        else:
            future.set_result(None)

    def turn(self):
        self.turns += 1
        assert self.rv.rv_progress(self.c) >= 0

    def call(self, name, *args):
        future = asyncio.get_running_loop().create_future()
        key = len(self.waiting) + 1
        while key in self.waiting:
            key += 1
        self.waiting[key] = future
        rc = getattr(self.rv, name)(self.c, *args, self.done, ctypes.c_void_p(key))
        if rc:
            del self.waiting[key]
            raise Refused(rc, self.rv.rv_last_error().decode())
        return future

    async def round_trip(self, data):
        h, out = Handle(), ctypes.c_void_p()
        n, lease = ctypes.c_uint64(), ctypes.c_uint64()
        await self.call("rv_register_data_pinned_nb", data, ctypes.c_uint64(len(data)), None, ctypes.byref(h))
        await self.call("rv_get_nb", h, None, ctypes.byref(out), ctypes.byref(n), ctypes.byref(lease))
        assert ctypes.string_at(out, n.value) == data
        self.rv.rv_free(out)
        await self.call("rv_release_nb", h, lease)
        try:
            await self.call("rv_release_nb", h, lease)
            raise AssertionError("released twice")
        except Refused as e:
            assert e.rc in (-2, -116), e


def test_an_asyncio_loop_drives_it():
    with Daemon("a", ucx=True) as a:
        async def run():
            rv, loop = Loop(a.socket), asyncio.get_running_loop()
            fd = rv.rv.rv_event_fd(rv.c)
            loop.add_reader(fd, rv.turn)
            await asyncio.gather(*(rv.round_trip(pattern(1 + 977 * i, i)) for i in range(150)))
            before = rv.turns
            await asyncio.sleep(0.3)
            assert rv.turns - before <= 2, "it turns without a reason"
            loop.remove_reader(fd)
            rv.rv.rv_close(rv.c)
            return rv.turns

        assert asyncio.run(run()) < 4 * 150 * 4
        all_back(a)
        assert a.stop() == 0


if __name__ == "__main__":
    main(globals())
