#!/usr/bin/env python3
"""`_rvd_get_many`: short payloads of many slots in one exchange, what does not come along, and who asks by hand."""
import ctypes as C
import threading

from rawpeer import *
from rvdtest import *
from rvlib import Lib

SIZES = [1024, 0, 1, 2, 63, 64, 65, 4096, 4097, 65535, 65536, 65537, 131072]
OURS = {"host": "127.0.0.1"}


def payload(c, rep):
    return c.view(rep) if rep["token"] else b""


def nothing_left(a, b):
    eventually(lambda: not any(a.list("status")["leases"].values()), what="the leases' end")
    eventually(lambda: not b.list("status")["used_bytes"], what="the destinations' end")
    eventually(lambda: not b.list("status")["gets_under_way"], what="the gets' end")


def warmed(ca, cb, port):
    """There is memory to land in: what comes along is not left to chance."""
    h = ca.put(pattern(300000))
    cb.free(cb.get(h, flags=THEN_RELEASE, host="127.0.0.1", port=port))


def test_payloads_come_together_and_each_is_right():
    with Daemon("a", rendezvous__verify="xxh3") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        warmed(ca, cb, a.tcp)
        data = [pattern(n, i) for i, n in enumerate(SIZES)]
        handles = [ca.put(d) for d in data]
        for most in (1, 2, len(handles), 100, 128):
            ask = [i % len(handles) for i in range(most)]
            reps, together = many(cb, [handles[i] for i in ask], a.tcp)
            for i, rep in zip(ask, reps):
                assert rep["rc"] == 0 and not rep["lease_id"], rep
                assert rep["len"] == len(data[i]) and bool(rep["token"]) == bool(data[i])
                assert payload(cb, rep) == data[i], "wrong bytes of %d" % len(data[i])
                assert rep["path_name"] == "chunked tcp"
            short = sum(len(data[i]) <= 64 for i in ask)
            assert together == 0 if most == 1 else short <= together <= sum(len(data[i]) <= 65536 for i in ask), (most, together)
            for rep in reps:
                cb.free(rep)
            nothing_left(ca, cb)
        small = [ca.put(pattern(1024, i)) for i in range(128)]
        for _ in range(3):  # the second time it knows how long they are: all come along
            reps, together = many(cb, small, a.tcp)
            for i, rep in enumerate(reps):
                assert payload(cb, rep) == pattern(1024, i)
                cb.free(rep)
        assert together == 128, together
        nothing_left(ca, cb)
        assert a.stop() == 0 and b.stop() == 0


def test_what_does_not_come_along_is_answered_as_ever():
    """Slots that are gone, other nodes' handles, several owners in one request, and leases that are to stay."""
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        warmed(ca, cb, a.tcp)
        h = [ca.put(pattern(1000, i), refs=3) for i in range(6)]
        gone = ca.put(b"gone")
        ca.call(DROP, worker=gone[0], local=gone[1])
        reps, together = many(cb, [h[0], gone, h[1], (ca.worker, 12345 << 8), h[2]], a.tcp)
        assert together == 3
        assert [r["rc"] for r in reps] == [0, -2, 0, -2, 0], reps
        assert b"dropped" in reps[1]["payload"] or b"released" in reps[1]["payload"], reps[1]["payload"]
        for i, r in enumerate((reps[0], reps[2], reps[4])):
            assert payload(cb, r) == pattern(1000, i)
            cb.free(r)
        own = cb.put(b"mine")
        for ask in ([own, own], [h[0], own], [(0, 1), h[0]], [(4711, 1), h[0]]):
            reps, together = many(cb, ask, a.tcp)
            assert together == 0, ask
            for want, r in zip(ask, reps):
                assert (r["rc"] == 0) == (want in (own, h[0])), (want, r)
                if not r["rc"]:
                    cb.free(r)
        for flags in (TOGETHER, THEN_RELEASE | TOGETHER, THEN_RELEASE | THEN_DETACH | TOGETHER, THEN_DETACH):
            reps, together = many(cb, h[:3], a.tcp, flags=flags)
            assert together == 0
            for i, (handle_, r) in enumerate(zip(h, reps)):
                assert payload(cb, r) == pattern(1000, i)
                cb.free(r)
                assert bool(r["lease_id"]) == (flags == TOGETHER)
                if r["lease_id"]:
                    cb.call(DETACH, worker=handle_[0], local=handle_[1], lease_id=r["lease_id"])
        cb.call(DROP, worker=own[0], local=own[1])
        nothing_left(ca, cb)
        assert a.stop() == 0 and b.stop() == 0


def test_memory_its_program_may_change_goes_along_too():
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb, lib = a.client(), b.client(), Lib(a.socket)
        warmed(ca, cb, a.tcp)
        fd = os.memfd_create("region", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 1 << 20)
        os.pwrite(fd, pattern(5000), 0)
        import fcntl
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        g = lib.region(fd, 0, 1 << 20)
        hs = [g.stage(0, 1000), g.stage(1000, 4000)]
        pairs = [h.pair() if hasattr(h, "pair") else h for h in hs]
        reps, together = many(cb, pairs, a.tcp)
        assert together == 2
        assert payload(cb, reps[0]) == pattern(5000)[:1000] and payload(cb, reps[1]) == pattern(5000)[1000:]
        for r in reps:
            cb.free(r)
        nothing_left(ca, cb)
        g.unregister(5)
        reps, together = many(cb, pairs, a.tcp)
        assert together == 0 and [r["rc"] for r in reps] == [-2, -2], reps
        lib.close()
        assert a.stop() == 0 and b.stop() == 0


def test_an_owner_that_cannot_be_reached_or_goes_answers_each():
    with Daemon("b") as b:
        cb = b.client()
        dead = socket.socket()
        dead.bind(("127.0.0.1", 0))
        port = dead.getsockname()[1]
        reps, together = many(cb, [(4711, i) for i in range(1, 51)], port)
        assert together == 0 and all(r["rc"] == -113 and b"127.0.0.1" in r["payload"] for r in reps), reps[0]
        dead.close()
        with Daemon("a") as a:
            ca = a.client()
            warmed(ca, cb, a.tcp)
            h = [ca.put(pattern(1024, i)) for i in range(128)]
            a.freeze()
            reps, together = many(cb, h, a.tcp, timeout_ns=300_000_000)
            assert together == 0 and all(r["rc"] == -110 for r in reps), reps[0]
            cb.send(GET_MANY, b"".join(one(i, x) for i, x in enumerate(h)), flags=THEN_DETACH | TOGETHER, host="127.0.0.1", port=a.tcp)
            a.kill()
            for _ in h:
                assert cb.recv()["rc"] in (-104, -113)
        eventually(lambda: not cb.list("status")["used_bytes"], what="the places' end")
        assert b.stop() == 0


def test_requests_for_many_count_as_many():
    """A program is not read any further with a thousand gets open, also where 128 of them stand in one request."""
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        warmed(ca, cb, a.tcp)
        h = [ca.put(b"") for _ in range(128)]
        a.freeze()

        def ask():
            for k in range(400):
                cb.send(GET_MANY, b"".join(one(k * 128 + i, x) for i, x in enumerate(h)), flags=THEN_DETACH | TOGETHER, timeout_ns=60_000_000_000, host="127.0.0.1", port=a.tcp)

        t = threading.Thread(target=ask)
        t.start()
        t.join(2)
        waits = t.is_alive()
        a.proc.send_signal(signal.SIGCONT)
        ids = set()
        while len(ids) < 400 * 128:
            rep = cb.recv()
            assert not rep["rc"], rep
            ids.update(g["id"] for g in got(rep["payload"])) if rep["op"] == GET_MANY | REPLY else ids.add(rep["id"])
        t.join()
        assert waits, "all 51200 gets were read"
        nothing_left(ca, cb)
        assert b.stop() == 0 and a.stop() == 0


def test_a_program_that_ends_leaves_nothing_of_what_came_together():
    with Daemon("a") as a, Daemon("b") as b:
        ca, keep = a.client(), b.client()
        warmed(ca, keep, a.tcp)
        h = [ca.put(pattern(1024, i)) for i in range(128)]
        for answered in (True, False):
            c = b.client()
            if answered:
                reps, together = many(c, h, a.tcp)
                assert together == 128
                c.free(reps[5])  # one view less, and the others stay as they are
                assert all(payload(c, r) == pattern(1024, i) for i, r in enumerate(reps) if i != 5)
            else:
                c.send(GET_MANY, b"".join(one(i, x) for i, x in enumerate(h)), flags=THEN_DETACH | TOGETHER, host="127.0.0.1", port=a.tcp)
            # The session's process is this one, which lives: it says itself that it has nothing any more.
            if answered:
                for i, r in enumerate(reps):
                    if i != 5:
                        c.free(r)
            c.close()
        del keep
        assert b.stop() == 0 and a.stop() == 0


def test_several_cores_of_an_owner_answer_as_one():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit(77)
    with Daemon("a", cores__polling="%d,%d" % (cpus[0], cpus[1]), cores__uring=str(cpus[0])) as a, Daemon("b") as b:
        cs = [a.client() for _ in range(4)]  # sessions stage on one core after another
        cb = b.client()
        warmed(cs[0], cb, a.tcp)
        h = [cs[i % 4].put(pattern(700, i)) for i in range(100)]
        assert len({x[1] % 64 for x in h}) == 2  # the core is in the low bits
        many(cb, h, a.tcp)
        reps, together = many(cb, h, a.tcp)
        assert together == 100, together
        for i, r in enumerate(reps):
            assert payload(cb, r) == pattern(700, i)
            cb.free(r)
        assert a.stop() == 0 and b.stop() in (0, 3)


def ask(p, room, each, locals_):
    return p.call("_rvd_get_many", struct.pack("<II", room, each) + b"".join(struct.pack("<Q", x) for x in locals_))


def said(body, n):
    return [struct.unpack_from("<IIIIQ", body, 24 * i) for i in range(n)]


def test_who_asks_by_hand_gets_what_fits():
    with Daemon("a") as a:
        c, p = a.client(), RawPeer(a.tcp)
        assert '"_rvd_get_many"' in p.call("_list_handlers")[1].decode()
        slots = [c.put(pattern(n, n & 7)) for n in (0, 1, 1000, 65536, 65537)]
        local = [h[1] for h in slots]
        # Room for the whole answer, the longest payload, and which come along.
        for room, each, along in [(1 << 20, 1 << 20, [1, 1, 1, 1, 0]), (1 << 20, 1000, [1, 1, 1, 0, 0]), (1 << 20, 0, [1, 0, 0, 0, 0]),
                                  (120, 65536, [1, 0, 0, 0, 0]), (129, 65536, [1, 1, 0, 0, 0]), (2**32 - 1, 2**32 - 1, [1, 1, 1, 1, 0]),
                                  (128 + 65536, 65536, [1, 1, 1, 0, 0])]:
            ok, body = ask(p, room, each, local)
            assert ok and len(body) <= room, (room, each, len(body))
            table = said(body, 5)
            assert [t[0] for t in table] == along, (room, each, table)
            for h, t, n in zip(slots, table, (0, 1, 1000, 65536, 65537)):
                if t[0]:
                    assert t[1] == n and body[t[2]:t[2] + n] == pattern(n, n & 7)
        for body in (b"", b"\0" * 7, b"\0" * 8, b"\0" * 15, struct.pack("<II", 1 << 20, 9) + b"\0" * (129 * 8), struct.pack("<IIQ", 23, 9, 1),
                     struct.pack("<IIQ", 1 << 20, 9, 1) + b"x"):
            ok, text = p.call("_rvd_get_many", body)
            assert not ok and text.startswith(b"Failed to deserialize input"), (body[:16], text)
        assert not p.call("_rvd_get_many", struct.pack("<IIQ", 1 << 20, 9, 1), kind=SYNC)[0]
        p.request("_rvd_get_many", struct.pack("<IIQ", 1 << 20, 9, 1), kind=FIRE)
        # Eight answers at once, and those that are not read are held; the others are told to come again.
        big = struct.pack("<II", 1 << 20, 65536) + struct.pack("<Q", local[3]) * 8
        lazy = [RawPeer(a.tcp) for _ in range(4)]
        for q in lazy:
            q.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(40):
                q.request("_rvd_get_many", big)
        rss = a.rss_kib()
        assert rss < 200 << 10, rss
        ok, text = ask(p, 1 << 20, 65536, local[:1])
        assert ok or text == b"rendezvous owner busy", text
        for q in lazy:
            q.close()
        eventually(lambda: ask(p, 1 << 20, 65536, local[:1])[0], what="an answer again")
        assert not any(c.list("status")["leases"].values())
        assert a.stop() == 0


def answers_with(body, times=1):
    """An owner that lists it and answers so."""
    def script(name, req):
        if name == "_rvd_get_many":
            return True, body(req)
        if name == "_rv_acquire":
            return True, b'{"Ready":{"lease_id":5,"transfer_id":6,"total_len":4,"chunk_size":524288,"chunk_count":1}}'
        return True, b"once"
    return RawOwner(script, hello=b'{"handlers":["_rv_acquire","_rvd_get_many"]}')


def test_an_owner_whose_answer_lies_is_asked_for_each():
    entry = lambda along, n, off, has=0, x=0: struct.pack("<IIIIQ", along, n, off, has, x)
    bodies = [b"", b"x", entry(1, 0, 0), entry(1, 4, 48) * 2 + b"ab", entry(1, 4, 2**32 - 1) * 2 + b"once",
              entry(2, 4, 48) * 2 + b"once", entry(1, 2**32 - 1, 48) * 2 + b"once", entry(1, 4, 48, 2) * 2 + b"once", b"y" * 70000]
    with Daemon("b") as b:
        cb = b.client()
        for body in bodies:
            o = answers_with(lambda req, body=body: body)
            for _ in range(2):  # the first may find no memory to land in
                reps, together = many(cb, [(4711, 1), (4711, 2)], o.port)
                assert together == 0
                for r in reps:
                    assert payload(cb, r) == b"once"
                    cb.free(r)
            assert "_rvd_get_many" in [n for n, _ in o.seen]
            o.close()
            eventually(lambda: all(p["state"] != "up" for p in cb.list("peers")["peers"]), what="the connection's end")
        # One that is sound, with two views of the same bytes; and one whose hash does not fit.
        o = answers_with(lambda req: entry(1, 4, 48) * 2 + b"good")
        for _ in range(2):
            reps, together = many(cb, [(4711, 1), (4711, 2)], o.port)
            for r in reps:
                cb.free(r)
        o.close()
        eventually(lambda: all(p["state"] != "up" for p in cb.list("peers")["peers"]), what="the connection's end")
        o = answers_with(lambda req: entry(1, 4, 48, 1, 99) * 2 + b"good")
        reps, together = many(cb, [(4711, 1), (4711, 2)], o.port)
        assert together == 0 and all(r["rc"] == -74 and b"xxh3" in r["payload"] for r in reps), reps
        o.close()
        eventually(lambda: not cb.list("status")["used_bytes"], what="the places' end")
        assert b.stop() == 0


def test_librv_gets_many_of_several_owners_from_several_threads():
    with Daemon("a") as a, Daemon("o") as o, Daemon("b") as b:
        ca, co = a.client(), o.client()
        program = os.path.join(BUILD, "tests/bench/program")
        errors = []

        def run():
            p = subprocess.run([program, "many", a.socket, str(a.tcp), b.socket, "20"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if p.returncode:
                errors.append(p.stderr.decode())
        threads = [threading.Thread(target=run) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors, errors
        eventually(lambda: not b.client().list("status")["used_bytes"], what="the views' end")
        assert not any(ca.list("status")["leases"].values())
        del co
        assert all(d.stop() == 0 for d in (a, o, b))


if __name__ == "__main__":
    main(globals())
