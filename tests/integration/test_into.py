#!/usr/bin/env python3
"""Gets into a program's own buffer: no copy, no other place, and nobody else's memory whatever ends early."""
from rvdtest import *

ASYNC = os.path.join(BUILD, "tests", "integration", "async_client")
INTO = 2
EINVAL, EBUSY, ERANGE, ETIMEDOUT = -22, -16, -34, -110
ROOM = 3 << 20
DATA = pattern(ROOM - 4097)
SIZE = 200 << 20


class Buffer:
    """A buffer to fill, as the program sees it: a range of an arena."""

    def __init__(self, client, n):
        self.rep = client.call(ALLOC, len=n, flags=SHARED)
        self.token, self.n, self.off = self.rep["token"], n, self.rep["off"]
        self.fd = client.arenas[self.rep["arena"]]

    def write(self, data, at=0):
        assert os.pwrite(self.fd, data, self.off + at) == len(data)

    def read(self, at=0, n=None):
        return os.pread(self.fd, self.n if n is None else n, self.off + at)


def get_into(c, h, buf, at=0, room=None, **f):
    rep = c.call(GET, worker=h[0], local=h[1], flags=INTO, token=buf.token, off=at,
                 len=buf.n - at if room is None else room, **f)
    c.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
    return rep


def landing(d):
    c = d.client()
    out = [a for a in c.list("arenas")["arenas"] if a["kind"] == "landing"]
    c.close()
    return out


def refused(rc, fn, *args, **kw):
    try:
        fn(*args, **kw)
    except Refused as e:
        assert e.rc == rc, e
        return e
    raise AssertionError("it was done")


def test_bytes_land_in_the_buffer_whatever_the_path():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        h, mine = ca.put(DATA), cb.put(DATA)
        buf = Buffer(cb, ROOM)
        assert buf.rep["pinned"] and buf.rep["writable"]
        where = dict(host="127.0.0.1", port=a.tcp)
        for path, at, took in ((RDMA, 0, 2), (RDMA, 4097, 2), (CHUNKED, 1, 1), (CHUNKED, 4096, 1), (ANY, 3, 0)):
            buf.write(b"\x5a" * ROOM)
            rep = get_into(cb, mine if took == 0 else h, buf, at, path=path, **({} if took == 0 else where))
            assert (rep["token"], rep["has_fd"], rep["len"], rep["path"]) == (0, 0, len(DATA), took), rep
            assert buf.read() == b"\x5a" * at + DATA + b"\x5a" * (ROOM - at - len(DATA)), (path, at)
        assert not landing(b), "the bytes were somewhere else first"
        m = b.metrics()
        assert m['rvd_get_bytes_total{path="rdma"}'] == 2 * len(DATA) and m['rvd_get_bytes_total{path="local"}'] == len(DATA)
        # What came is a payload like any other: named where it is, and fetched from there.
        k = cb.call(COMMIT, token=buf.token, len=3 + len(DATA))
        got = ca.get((k["worker"], k["local"]), host="127.0.0.1", port=b.tcp)
        assert got["data"] == b"\x5a" * 3 + DATA
        ca.free(got)
        assert a.stop() == 0 and b.stop() == 0


def test_what_does_not_fit_is_told_before_anything_is_written():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        h, mine = ca.put(DATA), cb.put(DATA)
        buf = Buffer(cb, ROOM)
        buf.write(b"\x5a" * ROOM)
        where = dict(host="127.0.0.1", port=a.tcp)
        warm = cb.get(h, path=RDMA, **where)
        cb.free(warm)
        cb.call(DETACH, worker=h[0], local=h[1], lease_id=warm["lease_id"])
        for token in (buf.token, 0):
            for path, what in ((RDMA, h), (CHUNKED, h), (ANY, mine)):
                for room in (0, 1, len(DATA) - 1):
                    cb.send(GET, worker=what[0], local=what[1], flags=INTO, token=token, off=5, len=room, path=path, **where)
                    rep = cb.recv()
                    assert rep["rc"] == ERANGE and rep["len"] == len(DATA) and rep["payload"], rep
        assert buf.read() == b"\x5a" * ROOM
        eventually(lambda: not ca.list("leases").get("leases"), what="no lease is kept")
        eventually(lambda: not cb.list("leases").get("leases"), what="nor one here")
        assert a.stop() == 0 and b.stop() == 0


def test_only_a_buffer_of_the_session_is_written():
    with Daemon("a", ucx=True) as a:
        c, other = a.client(), a.client()
        h = c.put(DATA)
        buf, small = Buffer(c, ROOM), Buffer(c, 4096)
        view = c.get(h)
        filled = c.call(ALLOC, len=ROOM)
        ask = dict(worker=h[0], local=h[1], flags=INTO)
        for client, f in ((c, dict(token=999, len=ROOM)), (other, dict(token=buf.token, len=ROOM)),
                          (c, dict(token=view["token"], len=len(DATA))), (c, dict(token=filled["token"], len=ROOM)),
                          (c, dict(token=small.token, len=4097)), (c, dict(token=small.token, off=1, len=4096)),
                          (c, dict(token=buf.token, off=ROOM + 1, len=0)), (c, dict(token=buf.token, off=2**64 - 1, len=2)),
                          (c, dict(token=buf.token, off=2, len=2**64 - 1))):
            refused(EINVAL, client.call, GET, **ask, **f)
        c.call(COMMIT, token=buf.token, len=ROOM)
        refused(EINVAL, c.call, GET, token=buf.token, len=ROOM, **ask)
        assert a.stop() == 0


def test_librv_finds_the_buffer_by_itself():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        for n in (1, 4096, 70000, 5 << 20):
            out = subprocess.run([ASYNC, a.socket, "put", str(n), "1"], stdout=subprocess.PIPE, timeout=60 * SLOW)
            h = out.stdout.split()[0].decode()
            for d, ref in ((b, "rv://127.0.0.1:%d/%s" % (a.tcp, h)), (a, h)):
                p = subprocess.run([ASYNC, d.socket, "into", ref, str(n), "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   timeout=120 * SLOW)
                assert p.returncode == 0, p.stderr
        assert not landing(a) and not landing(b), "the bytes were somewhere else first"
        assert a.stop() == 0 and b.stop() == 0


def caught(a, b, h, begin, end):
    """Stop the owner while the device writes into a program's buffer: begin() asks for it, end() ends what asked."""
    for attempt in range(20):
        who = begin()
        time.sleep(0.03 + 0.01 * (attempt % 5))
        a.proc.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        end(who)
        time.sleep(0.3)
        watch = b.client()
        used = watch.list("status")["used_bytes"]
        under_way = watch.list("status")["gets_under_way"]
        watch.close()
        if under_way and used >= SIZE:
            return
        a.proc.send_signal(signal.SIGCONT)
        c = b.client()
        eventually(lambda: c.list("status")["gets_under_way"] == 0 and c.list("status")["used_bytes"] == 0, seconds=30)
        c.close()
    raise AssertionError("no GET was caught in the middle")


def into(h, buf, owner):
    return dict(worker=h[0], local=h[1], flags=INTO, token=buf.token, len=SIZE, path=RDMA, timeout_ns=1500 * 10**6,
                host="127.0.0.1", port=owner.tcp)


def program(b, a, h):
    """A program of its own that has a GET into its buffer under way."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(r)
            c = b.client()
            buf = Buffer(c, SIZE)
            c.send(GET, **into(h, buf, a))
            os.write(w, b"x")
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(w)
    assert os.read(r, 1) == b"x"
    os.close(r)
    return pid


def kill_program(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def early_end(begin_of, end, finish):
    opts = dict(rendezvous__lease_timeout="20s", memory__registered_bytes_budget="2GiB")
    with Daemon("a", ucx=True, **opts) as a, Daemon("b", ucx=True, **opts) as b:
        ca, cb = a.client(), b.client()
        h = ca.put(pattern(1 << 20) * (SIZE >> 20), refs=1000)
        for c in (cb, b.client()):  # of each engine: both are wired
            warm = c.get(h, host="127.0.0.1", port=a.tcp, path=RDMA)
            c.free(warm)
            c.call(DETACH, worker=h[0], local=h[1], lease_id=warm["lease_id"])
        caught(a, b, h, lambda: begin_of(b, a, h), end)
        # Others get memory meanwhile, and keep what they put there.
        other = b.client()
        bufs = [Buffer(other, SIZE // 4) for _ in range(6)]
        for i, x in enumerate(bufs):
            x.write(bytes([i + 1]) * x.n)
        finish(a)
        eventually(lambda: cb.list("status")["gets_under_way"] == 0, seconds=40, what="the GET's end")
        for i, x in enumerate(bufs):
            assert x.read() == bytes([i + 1]) * x.n, "bytes of a GET in another program's buffer"
            other.send(FREE, token=x.token)
        eventually(lambda: cb.list("status")["used_bytes"] == 0, what="every buffer back")
        assert b.stop() == 0


def test_a_program_killed_in_the_middle_leaves_its_buffer_to_the_get():
    early_end(program, kill_program, lambda a: a.proc.send_signal(signal.SIGCONT))


def test_a_program_killed_in_the_middle_and_then_the_owner():
    early_end(program, kill_program, lambda a: a.kill())


def test_a_buffer_given_back_in_the_middle_is_not_given_to_others():
    def begin(b, a, h):
        c = b.client()
        buf = Buffer(c, SIZE)
        c.send(GET, **into(h, buf, a))
        return c, buf

    def end(who):
        who[0].send(FREE, token=who[1].token)
        who[0].close()

    early_end(begin, end, lambda a: a.proc.send_signal(signal.SIGCONT))


def test_a_buffer_whose_get_was_late_takes_no_more():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        h = ca.put(DATA)
        buf = Buffer(cb, ROOM)
        where = dict(host="127.0.0.1", port=a.tcp)
        get_into(cb, h, buf, **where)
        a.freeze()
        rid = cb.send(GET, worker=h[0], local=h[1], flags=INTO, token=buf.token, len=ROOM, timeout_ns=10**9, **where)
        cb.send(COMMIT, token=buf.token, len=ROOM)
        rep = cb.recv()
        assert rep["rc"] == EBUSY and rep["id"] != rid, rep
        rep = cb.recv()
        assert rep["rc"] == ETIMEDOUT and rep["id"] == rid, rep
        a.proc.send_signal(signal.SIGCONT)
        refused(EBUSY, get_into, cb, h, buf, **where)
        refused(EBUSY, cb.call, COMMIT, token=buf.token, len=ROOM)
        cb.send(FREE, token=buf.token)
        get_into(cb, h, Buffer(cb, ROOM), **where)
        eventually(lambda: not ca.list("leases").get("leases"), seconds=60, what="leases ended")
        assert a.stop() == 0 and b.stop() == 0


if __name__ == "__main__":
    main(globals())
