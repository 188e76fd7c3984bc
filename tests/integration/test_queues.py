#!/usr/bin/env python3
"""Frames through memory that a program shares with its daemon: their order, and what a program may do wrong there."""
import errno
import fcntl
import random

from queued import *

F_ADD_SEALS = 1033
TICKS = os.sysconf("SC_CLK_TCK")


def queued(d, **kw):
    return Queued(d.socket, **kw)


def idle(c):
    s = c.list("status")
    return s["sessions"] == 1 and not s["slots"] and not any(s["leases"].values()) and not s["used_bytes"]


def cpu_share(d, seconds=1.0):
    """How much of one CPU the daemon takes."""
    def used():
        fields = open("/proc/%d/stat" % d.proc.pid).read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    before, began = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - began)


def fails(no, fn):
    try:
        fn()
    except OSError as e:
        assert e.errno == no, e
        return
    raise AssertionError("it worked")


def gone(c, h):
    """Does nobody know the handle any more?"""
    try:
        c.call(METADATA, worker=h[0], local=h[1])
        return False
    except Refused as e:
        assert e.rc == -errno.ENOENT, e
        return True


def answer(p, rid):
    rep = p.recv()
    assert rep["id"] == rid, (rid, rep)
    return rep


def test_the_memory_is_sealed_and_there_is_one_for_a_session_that_asks():
    with Daemon("a") as d:
        p = queued(d)
        assert os.fstat(p.memory).st_size == QUEUE_LEN
        for n in (0, 4096, QUEUE_LEN - 1):
            fails(errno.EPERM, lambda: os.ftruncate(p.memory, n))
        fails(errno.EPERM, lambda: os.ftruncate(p.memory, QUEUE_LEN + 1))
        fails(errno.EPERM, lambda: fcntl.fcntl(p.memory, F_ADD_SEALS, 8))
        again = p.ask()
        assert not again["has_fd"] and not again["arena_len"], again
        assert p.list("status")["name"] == "a"
        others = [Client(d.socket, hello=False) for _ in range(2)]
        for version, c in enumerate(others, 1):
            rep = c.call(HELLO, version=version)
            assert not rep["has_fd"] and not rep["arena_len"] and not c.fds, rep
        assert p.list("status")["sessions"] == 3
        assert d.stop() == 0


def test_a_session_may_ask_late():
    with Daemon("a", **FOREVER) as d:
        p = queued(d, ask=False)
        p.send(HELLO, version=1)
        assert not p.recv()["has_fd"]
        for _ in range(5):
            p.list("status")
        assert p.ask()["has_fd"]
        p.look()
        assert answer(p, p.surely(LIST))["queue"]
        p.rest()
        assert not answer(p, p.send(LIST))["queue"]
        assert d.stop() == 0


def test_an_answer_comes_the_way_the_program_looks():
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        h = p.put(b"x" * 1000)
        for ask in (p.surely, p.send):
            for looks in (True, False, True):
                p.look() if looks else p.rest()
                rep = answer(p, ask(METADATA, worker=h[0], local=h[1]))
                assert rep["len"] == 1000 and rep["queue"] == looks, rep
        p.look()
        a = answer(p, p.surely(ALLOC, len=5000, flags=SHARED))
        assert a["has_fd"] and not a["queue"], "a descriptor goes through the socket"
        b = answer(p, p.surely(ALLOC, len=5000, flags=SHARED))
        assert not b["has_fd"] and b["queue"] and b["arena"] == a["arena"]
        rep = answer(p, p.surely(METADATA, worker=h[0], local=h[1] + 1))
        assert rep["rc"] == -errno.ENOENT and rep["payload"] and rep["queue"]
        for _ in range(100):
            p.put(b"x")
        rep = answer(p, p.surely(LIST, what=1))
        assert len(rep["payload"]) > FRAME_MAX and not rep["queue"], "it is too long"
        assert d.stop() == 0


def test_a_program_that_looks_no_more_is_woken():
    """The word is cleared by who wakes: the daemon by a bell, or the answer comes through the socket."""
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        for _ in range(2000):
            p.look()
            rid, _ = p.either(LIST, what=77)
            p.rest()
            rep = answer(p, rid)
            assert rep["rc"] == -errno.EINVAL
        assert d.stop() == 0


def test_frames_keep_their_order_whichever_way_they_take():
    rng = random.Random(3)
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        ways = set()
        for _ in range(100):
            ids = []
            for i in range(20):  # each is right only if those before it were dealt with
                for op in (SERVE, UNSERVE):
                    if rng.random() < 0.2:
                        p.look() if rng.random() < 0.5 else p.rest()
                    if rng.random() < 0.5:
                        ids.append(p.send(op, name="n%d" % (i % 3)))
                    else:
                        rid, through = p.either(op, name="n%d" % (i % 3))
                        ids.append(rid)
                        ways.add(through)
            for rid in ids:
                rep = answer(p, rid)
                assert rep["rc"] == 0, rep
                ways.add("back" if rep["queue"] else "socket")
        assert ways >= {True, "back", "socket"}, ways
        assert d.stop() == 0


def test_what_was_written_through_the_socket_is_committed_through_the_queue():
    size = 8 << 20
    with Daemon("a", **FOREVER) as d:
        p, other = queued(d), d.client()
        for i in range(5):
            data = pattern(size, i)
            p.look()
            a = answer(p, p.send(ALLOC, len=size))
            for off in range(0, size, 1 << 20):
                p.send(WRITE, data[off:off + (1 << 20)], token=a["token"], off=off)
            r = answer(p, p.surely(COMMIT, token=a["token"], len=size))
            assert not r["rc"], r
            rep = other.get((r["worker"], r["local"]))
            assert rep["data"] == data
            other.free(rep)
            b = answer(p, p.send(ALLOC, len=size))
            p.send(WRITE, data[:1 << 20], token=b["token"])
            p.surely(FREE, token=b["token"])
            r = answer(p, p.surely(COMMIT, token=b["token"], len=size))
            assert r["rc"] == -errno.EINVAL, r
        assert d.stop() == 0


def test_what_is_given_back_through_the_queue_is_not_written_into_through_the_socket():
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        p.look()
        for size in (100, 6000) * 20:
            token = answer(p, p.send(ALLOC, len=size))["token"]
            answer(p, p.surely(LIST, what=77))
            d.freeze()  # it finds both at once
            p.surely(FREE, token=token)
            late = p.send(WRITE, bytes(size), token=token)
            d.proc.send_signal(signal.SIGCONT)
            rep = answer(p, late)
            assert rep["op"] == WRITE | REPLY and rep["rc"] == -errno.ERANGE, rep
        assert d.stop() == 0


def test_a_queue_goes_round_with_every_byte():
    size = 1 << 20
    rng = random.Random(5)
    data = pattern(size)
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        p.look()
        a = answer(p, p.surely(ALLOC, len=size))
        off = 0
        while off < size:
            part = data[off:off + rng.choice([1, 7, 100, 3333, FRAME_MAX - 11 - REQ.size])]
            p.surely(WRITE, part, token=a["token"], off=off)
            off += len(part)
        c = answer(p, p.surely(COMMIT, token=a["token"], len=size))
        assert p.get((c["worker"], c["local"]))["data"] == data
        assert d.stop() == 0


def test_what_does_not_fit_takes_the_socket():
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        h = p.put(b"x" * 99)
        p.look()
        answer(p, p.surely(LIST, what=77))
        d.freeze()
        ids, through = [], 0
        for _ in range(100):
            rid, queue = p.either(METADATA, worker=h[0], local=h[1])
            ids.append(rid)
            through += queue
        d.proc.send_signal(signal.SIGCONT)
        # What a later one of the socket finds of the queue was dealt with before it: they are answered in order.
        assert [p.recv()["id"] for _ in ids] == ids
        assert 10 < through < 100
        assert d.stop() == 0


def test_answers_that_do_not_fit_take_the_socket():
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        h = p.put(b"x" * 99)
        p.look()
        ids = [p.either(METADATA, worker=h[0], local=h[1])[0] for _ in range(1000)]
        reps = [p.recv() for _ in ids]
        assert [r["id"] for r in reps] == ids
        assert {r["queue"] for r in reps} == {True, False}
        assert d.stop() == 0


def test_a_frame_waits_for_its_turn_and_the_daemon_sleeps_meanwhile():
    with Daemon("a") as d:
        p, other = queued(d), d.client()
        h = other.put(b"x" * 99)
        rid = p.next_id
        p.entry(b"".join(p.frame(DROP, worker=h[0], local=h[1])[1:]), others=p.sent + 3)
        p.bell()
        share = cpu_share(d)
        assert share < 0.1, "it takes %.0f %% of a CPU" % (100 * share)
        assert other.call(METADATA, worker=h[0], local=h[1])["len"] == 99
        p.bell()
        share = cpu_share(d)
        assert share < 0.1, "it takes %.0f %% of a CPU" % (100 * share)
        assert other.call(METADATA, worker=h[0], local=h[1])["len"] == 99
        last = p.send(METADATA, worker=h[0], local=h[1])
        rep = answer(p, last)
        assert rep["rc"] == 0, "the frame of the socket came first"
        assert answer(p, rid)["rc"] == 0
        assert gone(other, h)
        assert d.stop() == 0


def test_a_queue_that_waits_for_a_payload_lets_the_daemon_sleep():
    with Daemon("a", cores__idle_spin="300ms") as d:
        p = queued(d)
        a = p.call(ALLOC, len=1 << 20)
        p.sock.sendall(p.frame(WRITE, bytes(1 << 20), token=a["token"])[1] + bytes(1 << 19))
        time.sleep(0.05)
        rid = p.next_id
        p.entry(p.frame(LIST, what=77)[1], others=p.sent)
        p.other()
        time.sleep(1)  # it looks, and spins, for a while
        share = cpu_share(d)
        assert share < 0.1, "it takes %.0f %% of a CPU" % (100 * share)
        assert not p.readable()
        p.sock.sendall(bytes(1 << 19))
        assert answer(p, rid)["rc"] == -errno.EINVAL
        assert d.stop() == 0


def test_a_frame_of_the_distant_past_is_one_of_now():
    with Daemon("a", **FOREVER) as d:
        p = queued(d)
        for others in (0, -5, -2**31 + 100):
            assert answer(p, p.surely(LIST, what=77, others=others))["rc"] == -errno.EINVAL
        assert d.stop() == 0


def broken(h):
    """How a queue is broken, with a DROP that must not be heeded: name, what is done to it."""
    def good(p):
        return p.frame(DROP, worker=h[0], local=h[1])[1]

    def shown(p, raw, by):
        """An entry whose tail is elsewhere."""
        p.write(p.tail, struct.pack("<II", len(raw), 0) + raw)
        p.word[TAIL] = p.tail + by & 0xffffffff

    def tail_beyond(p):
        raw = good(p)
        shown(p, raw, QUEUE_BYTES + 8)

    def half(p):
        raw = good(p)
        shown(p, raw, len(raw) // 16 * 8)

    def tail_back(p):
        p.write(p.tail, bytes(8))
        p.word[TAIL] = p.tail - 8 & 0xffffffff

    def lying(at, change):
        def do(p):
            raw = bytearray(good(p))
            raw[at] ^= change
            p.entry(bytes(raw))
        return do

    return [
        ("a tail beyond the queue", tail_beyond),
        ("a tail that goes back", tail_back),
        ("a tail in the middle of an entry", half),
        ("an entry without bytes", lambda p: p.entry(good(p), length=0)),
        ("an entry too long", lambda p: p.entry(bytes(FRAME_MAX + 1))),
        ("an entry of 4 GiB", lambda p: p.entry(good(p), length=2**32 - 1)),
        ("an entry whose length goes round", lambda p: p.entry(good(p), length=2**32 - 8)),
        ("an entry longer than what is there", lambda p: p.entry(good(p), length=len(good(p)) + 100)),
        ("less than an entry's head", lambda p: shown(p, good(p), 4)),
        ("no whole preamble", lambda p: p.entry(good(p)[:10])),
        ("a payload that is not there", lying(10, 1)),
        ("a header that is not there", lying(6, 1)),
        ("a header too long", lying(5, 2)),
        ("a payload too long", lying(7, 128)),
        ("another protocol", lying(0, 1)),
        ("a frame cut short", lambda p: p.entry(good(p)[:-1])),
        ("a frame with bytes behind it", lambda p: p.entry(good(p) + b"x")),
    ]


def test_a_broken_queue_ends_its_session_and_no_other():
    with Daemon("a", **FOREVER) as d:
        c, old = d.client(), queued(d)
        h = c.put(pattern(1000))
        old.look()
        for name, do in broken(h):
            for looked_at in (True, False):
                p = queued(d)
                if looked_at:
                    answer(p, p.surely(LIST, what=77))
                    do(p)
                else:
                    do(p)
                    try:
                        p.bell()
                    except OSError:  # it was looked at
                        pass
                assert p.closed(), name
                p.close()
                assert answer(old, old.surely(METADATA, worker=h[0], local=h[1]))["len"] == 1000, name
        eventually(lambda: c.list("status")["sessions"] == 2)
        old.close()
        assert d.stop() == 0


def test_what_a_program_writes_into_the_words_of_the_daemon_harms_itself_only():
    rng = random.Random(9)
    with Daemon("a", **FOREVER) as d:
        c = d.client()
        h = c.put(pattern(1000))
        for _ in range(30):
            p = queued(d)
            p.look()
            try:
                for _ in range(50):
                    p.word[rng.choice([HEAD, RESTS, IN + TAIL, IN + OTHERS, IN + HEAD, IN + RESTS, OTHERS])] = rng.choice(
                        [0, 1, 2**31, 2**32 - 1, rng.randrange(2**32), rng.randrange(40000)])
                    p.write(rng.randrange(QUEUE_BYTES), bytes(rng.randrange(256) for _ in range(rng.randrange(60))))
                    p.entry(p.frame(METADATA, worker=h[0], local=h[1])[1], others=rng.randrange(4))
                    if rng.random() < 0.5:
                        p.send(LIST)
            except OSError:  # it was thrown out
                pass
            p.close()
            assert c.call(METADATA, worker=h[0], local=h[1])["len"] == 1000
        eventually(lambda: c.list("status")["sessions"] == 1)
        assert d.stop() == 0


def test_a_buffer_that_is_written_into_is_not_taken_away():
    """A WRITE that has begun on the socket, and a FREE of its buffer in the queue that claims to come before it."""
    with Daemon("a", **FOREVER) as d:
        p, other = queued(d), d.client()
        used = lambda: other.list("status")["used_bytes"]
        for size in (4 << 20, 100000, 5000, 3000):
            a = p.call(ALLOC, len=size)
            before = used()
            assert before >= size
            head = p.frame(WRITE, bytes(size), token=a["token"])[1]
            p.sock.sendall(head + b"w" * (size // 2))
            eventually(lambda: not p.word[RESTS], what="that it looks")
            early = p.sent
            p.other()
            time.sleep(0.05 * SLOW)
            p.entry(p.frame(FREE, token=a["token"])[1], others=early)
            wrong = p.frame(COMMIT, token=a["token"], len=size)
            p.entry(wrong[1], others=early)
            time.sleep(0.2)
            assert used() == before, "it was taken away"
            mine = other.put(pattern(size, 1))  # would take its place
            p.sock.sendall(b"w" * (size - size // 2))
            assert answer(p, wrong[0])["rc"] == -errno.EINVAL
            rep = other.get(mine)
            assert rep["data"] == pattern(size, 1), "somebody else's bytes"
            other.free(rep)
            other.call(DETACH, worker=mine[0], local=mine[1], lease_id=rep["lease_id"])
            other.call(DROP, worker=mine[0], local=mine[1])
            eventually(lambda: not used(), what="the buffer's end")
        p.look()
        h = p.put(pattern(1 << 20, 2))
        assert p.get(h)["data"] == pattern(1 << 20, 2)
        assert d.stop() == 0


def test_a_program_that_breaks_off_in_a_write_gives_its_buffer_back():
    with Daemon("a", **FOREVER) as d:
        c = d.client()
        for size in (4 << 20, 3000):
            p = queued(d)
            a = p.call(ALLOC, len=size)
            p.sock.sendall(p.frame(WRITE, bytes(size), token=a["token"])[1] + b"w" * (size // 2))
            p.entry(p.frame(FREE, token=a["token"])[1])
            p.close()
            eventually(lambda: idle(c), what="the end of its buffer")
        assert d.stop() == 0


def test_what_was_put_before_the_end_of_a_program_is_honoured():
    with Daemon("a", **FOREVER) as d:
        c = d.client()
        for i in range(60):
            h, keep = c.put(pattern(5000)), c.put(pattern(5000))
            p = queued(d)
            v = p.get(h)
            if i % 2:
                p.look()
            answer(p, p.surely(DETACH, worker=h[0], local=h[1], lease_id=v["lease_id"]))
            if i % 3 == 0:
                p.send(REF, worker=keep[0], local=keep[1])
            elif i % 3 == 1:
                time.sleep(random.random() / 500)
            if i % 2 == 0:
                p.send(METADATA, worker=keep[0], local=keep[1])  # never read
            p.surely(FREE, token=v["token"])
            p.surely(DROP, worker=h[0], local=h[1])
            p.close()
            eventually(lambda: gone(c, h), what="the drop of round %d" % i)
            assert c.call(METADATA, worker=keep[0], local=keep[1])["refcount"] == (2 if i % 3 == 0 else 1)
            c.call(DROP, worker=keep[0], local=keep[1])
        eventually(lambda: idle(c))
        assert d.stop() == 0


def test_the_last_frames_of_a_program_that_reads_no_answers_are_honoured():
    with Daemon("a") as d:
        c = d.client()
        for queue in (False, True):
            p = queued(d) if queue else d.client()
            h, last = c.put(pattern(5000)), c.put(pattern(5000))
            asks = b"".join(p.frame(METADATA, worker=last[0], local=last[1])[1] for _ in range(300))
            d.proc.send_signal(signal.SIGSTOP)  # it reads them when the program is gone already
            try:
                p.sock.sendall(asks + p.frame(DROP, worker=h[0], local=h[1])[1])
                if queue:
                    p.sent += 301
                    p.entry(p.frame(DROP, worker=last[0], local=last[1])[1])
                p.close()
            finally:
                d.proc.send_signal(signal.SIGCONT)
            eventually(lambda: gone(c, h), what="the drop behind what was not answered")
            if queue:
                eventually(lambda: gone(c, last), what="the drop of the queue behind it")
            else:
                c.call(DROP, worker=last[0], local=last[1])
        eventually(lambda: idle(c))
        assert d.stop() == 0


def in_a_child(fn):
    """@return its process id"""
    pid = os.fork()
    if pid == 0:
        try:
            fn()
        finally:
            os._exit(1)
    return pid


def test_the_last_frames_of_a_process_that_ends_are_honoured():
    with Daemon("a") as d:
        c = d.client()
        for child_stays in (False, True):
            h, last = c.put(pattern(5000)), c.put(pattern(5000))
            ready, go, over = os.pipe(), os.pipe(), os.pipe()

            def program():
                p = queued(d)
                asks = b"".join(p.frame(METADATA, worker=last[0], local=last[1])[1] for _ in range(300))
                os.write(ready[1], b"!")
                os.read(go[0], 1)
                p.sock.sendall(asks + p.frame(DROP, worker=h[0], local=h[1])[1])
                p.sent += 301
                p.entry(p.frame(DROP, worker=last[0], local=last[1])[1])
                os.close(over[1])
                if child_stays:
                    in_a_child(lambda: os.read(over[0], 1))  # holds the socket
                os._exit(0)

            pid = in_a_child(program)
            os.read(ready[0], 1)
            d.proc.send_signal(signal.SIGSTOP)  # it reads them when the program is gone already
            try:
                os.write(go[1], b"!")
                assert os.waitpid(pid, 0)[1] == 0
            finally:
                d.proc.send_signal(signal.SIGCONT)
            eventually(lambda: gone(c, h), what="the drop through the socket")
            eventually(lambda: gone(c, last), what="the drop through the queue")
            eventually(lambda: idle(c), what="the end of its session")
            for fd in (*ready, *go, *over):
                os.close(fd)
        assert d.stop() == 0


def test_a_process_that_ends_with_many_requests_open_is_over_at_once():
    with Daemon("a") as a, Daemon("b") as b:
        c, far = a.client(), b.client()
        h = far.put(pattern(5000))
        c.call(PEER_ADD, far.call(PEER_INFO)["payload"], name="b")
        c.call(METADATA, worker=h[0], local=h[1])
        b.proc.send_signal(signal.SIGSTOP)
        try:
            def program():
                p = a.client()
                p.sock.settimeout(SLOW)
                try:
                    for _ in range(5000):
                        p.send(METADATA, worker=h[0], local=h[1])
                except socket.timeout:
                    os._exit(0)  # it is not read any more

            assert os.waitpid(in_a_child(program), 0)[1] == 0
            eventually(lambda: c.list("status")["sessions"] == 1, what="the end of its session")
        finally:
            b.proc.send_signal(signal.SIGCONT)
        eventually(lambda: idle(c))
        assert a.stop() == 0


def test_a_program_that_shuts_its_ears_is_read_to_what_it_said_and_closed():
    with Daemon("a") as d:
        c = d.client()
        h = c.put(pattern(5000))
        p = d.client()
        p.sock.shutdown(socket.SHUT_RD)
        asks = b"".join(p.frame(METADATA, worker=h[0], local=h[1])[1] for _ in range(50))
        p.sock.sendall(asks + p.frame(DROP, worker=h[0], local=h[1])[1])
        eventually(lambda: gone(c, h), what="the drop")
        eventually(lambda: idle(c), what="the end of the session")
        try:
            p.send(METADATA, worker=h[0], local=h[1])
            raise AssertionError("it may go on")
        except BrokenPipeError:
            pass
        assert d.stop() == 0


def test_what_was_put_while_nobody_looked_is_honoured_too():
    with Daemon("a") as d:
        c = d.client()
        h = c.put(pattern(5000))
        p = queued(d)
        eventually(lambda: p.word[RESTS], what="that it looks no more")
        p.entry(p.frame(DROP, worker=h[0], local=h[1])[1])
        time.sleep(0.1)
        p.close()
        eventually(lambda: gone(c, h))
        assert d.stop() == 0


CHILD = """
import sys
sys.path.insert(0, %r)
from queued import *
p = Queued(%r)
h = (%d, %d)
p.look()
mine = p.put(bytes(100000), commit_flags=SESSION)
a = p.call(ALLOC, len=1 << 20, flags=SHARED)
x = p.call(ALLOC, len=1 << 20)
print("ready", flush=True)
k = 0
while True:
    k += 1
    for _ in range(5):
        p.either(GET, worker=h[0], local=h[1])
        p.either(ALLOC, len=5000)
    if k == 50:
        p.sock.sendall(p.frame(WRITE, bytes(1 << 20), token=x["token"])[1] + bytes(1 << 19))
        p.other()
    if k > 50:
        p.entry(p.frame(FREE, token=x["token"])[1], others=0)
        time.sleep(0.01)
        continue
    p.look() if k %% 2 else p.rest()
    for _ in range(5):
        p.recv()
"""


def test_a_program_that_is_killed_leaves_nothing_behind():
    here = os.path.dirname(os.path.abspath(__file__))
    with Daemon("a", rendezvous__lease_timeout="2s", rendezvous__quarantine="200ms", **FOREVER) as d:
        c = d.client()
        h = c.put(pattern(5000))
        before = d.fds()
        for i in range(6):
            child = subprocess.Popen([sys.executable, "-c", CHILD % (here, d.socket, *h)], stdout=subprocess.PIPE)
            try:
                assert child.stdout.readline() == b"ready\n"
                assert c.list("status")["sessions"] == 2
                time.sleep(0.05 * i * SLOW)
            finally:
                child.kill()
                child.wait()
                child.stdout.close()
            eventually(lambda: c.list("status")["sessions"] == 1, what="the end of its session")
            eventually(lambda: c.list("leases")["total"] == 0, what="the end of its leases")
            eventually(lambda: c.list("slots")["total"] == 1, what="the end of its slots")
            eventually(lambda: d.fds() <= before, what="the end of its descriptors")
            eventually(lambda: all(a["kind"] != "session" for a in c.list("arenas")["arenas"]), what="its arena's end")
        c.call(DROP, worker=h[0], local=h[1])
        eventually(lambda: idle(c), what="the end of its buffers")
        code, out, err = rvctl(d, "status", "--json")
        assert code == 0 and json.loads(out)["sessions"] <= 2, err
        assert d.stop() == 0


def test_many_sessions_have_their_turn():
    """More than are looked at in a pass."""
    with Daemon("a", **FOREVER) as d:
        c = d.client()
        h = c.put(b"x" * 77)
        ps = [queued(d) for _ in range(40)]
        through = 0
        for k in range(30):
            for i, p in enumerate(ps):
                p.look() if (i + k) % 3 else p.rest()
            for p in ps:
                p.want = []
                for _ in range(1 + k % 3):
                    rid, queue = p.either(METADATA, worker=h[0], local=h[1])
                    p.want.append(rid)
                    through += queue
            for p in ps:
                for rid in p.want:
                    assert answer(p, rid)["len"] == 77
        assert through, "none went through a queue"
        for p in ps:  # each of them can have it, alone
            p.look()
            assert answer(p, p.surely(METADATA, worker=h[0], local=h[1]))["queue"]
        for p in ps[::2]:
            p.close()
        for p in ps[1::2]:
            assert answer(p, p.surely(METADATA, worker=h[0], local=h[1]))["len"] == 77
        eventually(lambda: c.list("status")["sessions"] == 21)
        maps = open("/proc/%d/maps" % d.proc.pid).read()
        assert maps.count("memfd:rvd-session") == 20, "what has ended is still mapped"
        assert d.stop() == 0


def test_without_descriptors_all_goes_through_the_socket():
    with Daemon("a", limits="ulimit -n 64") as d:
        ps = []
        try:
            while len(ps) < 100:
                p = queued(d, ask=False)
                p.sock.settimeout(2 * SLOW)
                p.send(HELLO, version=2, flags=QUEUES)
                rep = p.recv()
                ps.append(p)
                if rep["rc"]:
                    break
                if not rep["has_fd"]:
                    assert not rep["arena_len"]
                    assert p.list("status")["name"] == "a"
        except (OSError, EOFError):  # there is not even one to take it by
            p.close()
        assert 2 < len(ps) < 64
        for p in ps:
            p.close()
        eventually(lambda: d.fds() < 40)
        p = queued(d)
        assert p.list("status")["sessions"] == 1
        assert d.stop() == 0


def test_who_puts_more_than_its_turn_has_room_for_is_put_out():
    """Frames that were not there when the bells were sent before which they say they come."""
    with Daemon("a", **FOREVER) as d:
        p, other = queued(d), d.client()
        raw = p.frame(FREE, token=999)[1]
        raw += bytes(512 - 8 - len(raw))  # an entry of 512 bytes, of which the queue holds a whole number
        raw = struct.pack(">HBII", MAGIC, FREE, len(raw) - 11, 0) + raw[11:]
        for at in range(0, QUEUE_BYTES, 512):
            p.write(at, struct.pack("<II", len(raw), p.sent) + raw)
        over = threading.Event()

        def fill():
            while not over.is_set():
                p.word[TAIL] = p.word[HEAD] + QUEUE_BYTES & 0xffffffff

        t = threading.Thread(target=fill)
        bells = p.frame(BELL, raw_header=b"")[1] * 1400
        p.sock.settimeout(30 * SLOW)
        t.start()
        try:
            for _ in range(2000):
                p.sock.sendall(bells)
            assert False, "it goes on"
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            over.set()
            t.join()
        assert other.list("status")["name"] == "a"
        eventually(lambda: other.list("status")["sessions"] == 1)
        assert d.stop() == 0


def test_a_program_with_one_descriptor_left_has_a_session():
    code = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
from rvlib import Lib
fd = os.open("/dev/null", os.O_RDONLY)
os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
Lib(sys.argv[2]).fill(100, 1)
"""
    with Daemon("a") as d, tempfile.NamedTemporaryFile("w", suffix=".py") as f:  # which a sanitizer has start again
        f.write(code)
        f.flush()
        args = [sys.executable, f.name, os.path.dirname(os.path.abspath(__file__)), d.socket]
        out = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * SLOW)
        # A session; but none to show it a buffer by.
        assert b"descriptors" in out.stderr and b"rv_open" not in out.stderr, out.stderr.decode()
        assert d.stop() == 0


if __name__ == "__main__":
    main(globals())
