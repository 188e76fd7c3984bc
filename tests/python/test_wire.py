#!/usr/bin/env python3
"""What the daemon says wrongly, half or not at all: the blocking and the asyncio client against a scripted one."""
import asyncio
import random

from fakedaemon import *

DATA = bytes(i * 7 & 255 for i in range(5000))
H = rv.Handle(9, 5)


class Blocking:
    """Both clients behind one face."""

    def __init__(self, fake, timeout=20.0):
        self.client = rv.Client._on(fake.theirs, timeout)

    def do(self, verb, *args, **kw):
        return getattr(self.client, verb)(*args, **kw)

    def close(self):
        self.client.close()


class Async:
    def __init__(self, fake, timeout=20.0):
        self.loop = asyncio.new_event_loop()
        try:
            self.client = self.loop.run_until_complete(rv.AsyncClient._on(fake.theirs, timeout))
        except BaseException:
            self.loop.close()
            raise

    def do(self, verb, *args, **kw):
        return self.loop.run_until_complete(getattr(self.client, verb)(*args, **kw))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


BOTH = (Blocking, Async)


def with_arena(then, data=DATA, **fields):
    """A script that answers one GET with memory, and goes on."""
    def script(f):
        q, _ = f.expect(GET)
        fd = memfd(data)
        f.reply(GET, q, fds=[fd], **dict(dict(token=3, arena=1, has_fd=1, arena_len=len(data), len=len(data), lease_id=8,
                                              path_name=b"local"), **fields))
        os.close(fd)
        then(f)
    return script


# Each verb, the answers that it gets, and what it then returns.
def verbs(send):
    """name -> (arguments, script, good); `send(fake, bytes, fds)` delivers an answer."""
    def reply(f, op, q, payload=b"", fds=(), **fields):
        try:
            send(f, answer(op | REPLY, q["id"], payload, **fields), fds)
        finally:
            for fd in fds:
                os.close(fd)

    def put(f):
        q, _ = f.expect(ALLOC)
        reply(f, ALLOC, q, token=4, len=q["len"])
        f.expect(WRITE)
        q, _ = f.expect(COMMIT)
        reply(f, COMMIT, q, worker=WORKER, local=6)

    def alloc(f):
        q, _ = f.expect(ALLOC)
        fd = memfd(bytes(8192))
        reply(f, ALLOC, q, fds=[fd], token=4, arena=2, has_fd=1, arena_len=8192, len=q["len"], writable=1)

    def get(f):
        q, _ = f.expect(GET)
        fd = memfd(DATA)
        reply(f, GET, q, fds=[fd], token=3, arena=1, has_fd=1, arena_len=len(DATA), len=len(DATA), path_name=b"local")

    def many(f):
        _, ones = f.expect(GET_MANY)
        fd = memfd(DATA)
        for i, (rid, worker, local) in enumerate(struct.iter_unpack("<QQQ", ones)):
            assert (worker, local) == H
            reply(f, GET, {"id": rid}, fds=[] if i else [fd], token=3 + i, arena=1, has_fd=not i, arena_len=len(DATA),
                  off=i, len=10)

    def meta(f):
        q, _ = f.expect(METADATA)
        reply(f, METADATA, q, len=11, refcount=2, pinned=1)

    def state(f):
        q, _ = f.expect(LIST)
        reply(f, LIST, q, b'{"tcp":["1.2.3.4:5"]}')

    def call(f):
        q, data = f.expect(CALL)
        reply(f, CALL, q, data[::-1])

    def detach(f):
        q, _ = f.expect(DETACH)
        reply(f, DETACH, q)

    return {
        "put": ((b"x" * 100,), put, lambda r: r == (WORKER, 6)),
        "alloc": ((8000,), alloc, lambda r: len(r.data) == 8000),
        "get": ((H,), get, lambda r: r.tobytes() == DATA),
        "get_many": (([H, H],), many, lambda r: [v.tobytes() for v in r] == [DATA[:10], DATA[1:11]]),
        "metadata": ((H,), meta, lambda r: (r.len, r.refcount, r.pinned) == (11, 2, True)),
        "state": ((), state, lambda r: r == {"tcp": ["1.2.3.4:5"]}),
        "call": (("peer", "echo", b"abc"), call, lambda r: r == b"cba"),
        "detach": ((H, 8), detach, lambda r: r is None),
    }


def test_answers_that_come_byte_by_byte_are_whole():
    def send(f, data, fds):
        for i in range(len(data)):
            f.send(data[i:i + 1], fds if not i else ())

    for kind in BOTH:
        for name, (args, script, good) in verbs(send).items():
            f = Fake(script)
            c = kind(f)
            assert good(c.do(name, *args)), name
            c.close()
            f.end()


def cut_at(verb, kind, left):
    """Let the answers end after @left bytes. @return: was it too few?"""
    budget = [left]

    def send(f, data, fds):
        part = data[:budget[0]]
        budget[0] -= len(part)
        if part:
            f.send(part, fds)
        if len(part) < len(data):
            raise Gone()

    args, script, good = verbs(send)[verb]
    f = Fake(script)
    c = kind(f)
    try:
        assert good(c.do(verb, *args))
        short = False
    except rv.NotConnectedError as e:
        assert "closed the connection" in e.strerror, e
        short = True
    c.close()
    f.end()
    assert short == (budget[0] == 0 and len_of(verb) > left), (verb, left)
    return short


LENGTHS = {}


def len_of(verb):
    if verb not in LENGTHS:
        total = [0]

        def send(f, data, fds):
            total[0] += len(data)
            f.send(data, fds)

        args, script, _ = verbs(send)[verb]
        f = Fake(script)
        c = Blocking(f)
        c.do(verb, *args)
        c.close()
        f.end()
        LENGTHS[verb] = total[0]
    return LENGTHS[verb]


def cut_everywhere(kind):
    before = None
    for verb in verbs(None):
        for left in range(len_of(verb)):
            assert cut_at(verb, kind, left)
        assert not cut_at(verb, kind, len_of(verb))
        if before is None:
            before = fds()
        assert fds() <= before and mappings() == 0, (verb, fds(), before, mappings())


def test_an_answer_cut_at_any_byte_is_a_clear_error():
    cut_everywhere(Blocking)


def test_an_answer_cut_at_any_byte_is_a_clear_error_on_asyncio():
    cut_everywhere(Async)


def test_a_greeting_cut_at_any_byte_is_a_clear_error():
    def script(left):
        def run(f):
            _, q, _ = f.take()
            f.send(answer(HELLO | REPLY, q["id"], version=2, worker=WORKER)[:left])
        return run

    before = fds()
    for kind in BOTH:
        for left in range(len(answer(HELLO | REPLY, 1))):
            f = Fake(script(left), greet=False)
            raises(rv.NotConnectedError, kind, f)
            f.end()
    assert fds() == before


def test_a_daemon_of_no_version_of_ours_is_not_supported():
    def script(f):
        _, q, _ = f.take()
        f.refuse(HELLO, q, errno.EPROTO, b"version 2 of the local protocol is not spoken here")

    for kind in BOTH:
        f = Fake(script, greet=False)
        assert "version 2" in raises(rv.NotSupportedError, kind, f).strerror
        f.end()


def refused(kind, send, verb="get", args=(H,), words=""):
    """Whatever `send(fake, q)` says, the session ends with a ProtocolError, and nothing is left of it."""
    def script(f):
        _, q, _ = f.take()
        send(f, q)
        f.silent()

    f = Fake(script)
    c = kind(f)
    e = raises(rv.ProtocolError, c.do, verb, *args)
    assert words in e.strerror, e
    assert raises(rv.ProtocolError, c.do, "metadata", H).strerror == e.strerror
    c.close()
    f.end()
    assert mappings() == 0


def test_a_stream_that_cannot_be_trusted_ends_the_session():
    good = answer(GET | REPLY, 2)
    for kind in BOTH:
        for bad, words in (
                (b"\0\0" + good[2:], "another protocol"),
                (good[:2] + b"\x06" + good[3:], "another protocol"),  # a request, not a reply
                (good[:3] + struct.pack(">I", 513) + good[7:], "impossible length"),
                (good[:3] + struct.pack(">I", 0xffffffff) + good[7:], "impossible length"),
                (good[:3] + struct.pack(">I", 11) + good[7:], "impossible length"),
                (good[:7] + struct.pack(">I", (16 << 20) + 1) + good[11:], "impossible length"),
                (good[:7] + struct.pack(">I", 0xffffffff) + good[11:], "impossible length"),
                (answer(METADATA | REPLY, 2), "something else than was asked"),
                (answer(GET | REPLY, 2, token=1, arena=1, has_fd=1, arena_len=9, len=9), "sent none")):
            refused(kind, lambda f, q: f.send(bad), words=words)


def test_descriptors_that_belong_to_nothing_end_the_session():
    def send(f, q):
        fd = memfd(b"x")
        try:
            for _ in range(40):
                f.send(answer(GET | REPLY, 999), [fd])  # nobody waits for that
        finally:
            os.close(fd)

    for kind in BOTH:
        before = fds()
        refused(kind, send, words="belong to nothing")
        assert fds() <= before, (fds(), before)


def impossible(kind, words, data=b"x" * 4096, sealed=True, shown=True, **fields):
    """An answer whose memory cannot be right fails alone; its lease and buffer go back; the session goes on."""
    def script(f):
        q, _ = f.expect(GET)
        fd = memfd(data, sealed)
        f.reply(GET, q, fds=[fd] if shown else [], **dict(dict(token=3, arena=1, has_fd=shown, arena_len=len(data), len=10,
                                                               lease_id=8), **fields))
        os.close(fd)
        f.expect(FREE, token=3)
        f.expect(DETACH, id=0, lease_id=8, worker=9, local=5)
        q, _ = f.expect(METADATA)
        f.reply(METADATA, q, len=1)
        f.silent()

    f = Fake(script)
    c = kind(f)
    before = fds()
    e = raises(rv.ProtocolError, c.do, "get", H)
    assert words in e.strerror, e
    assert c.do("metadata", H).len == 1
    assert fds() <= before
    c.close()
    f.end()
    assert mappings() == 0


def test_memory_that_cannot_be_right_is_never_mapped():
    for kind in BOTH:
        impossible(kind, "not sealed", sealed=False)
        impossible(kind, "too short", arena_len=4097)
        impossible(kind, "too short", arena_len=0)
        impossible(kind, "too short", arena_len=(1 << 64) - 1)
        impossible(kind, "not shown", shown=False)


def test_bytes_outside_the_memory_are_refused():
    for kind in BOTH:
        impossible(kind, "outside", off=4096, len=1)
        impossible(kind, "outside", off=4087, len=10)
        impossible(kind, "outside", len=4097)
        impossible(kind, "outside", off=(1 << 64) - 1, len=10)
        impossible(kind, "outside", off=10, len=(1 << 64) - 1)


def test_a_descriptor_that_is_no_memory_is_refused():
    def script(f):
        q, _ = f.expect(GET)
        r, w = os.pipe()
        f.reply(GET, q, fds=[r], token=3, arena=1, has_fd=1, arena_len=10, len=10)
        os.close(r), os.close(w)
        f.expect(FREE, token=3)

    for kind in BOTH:
        f = Fake(script)
        c = kind(f)
        raises(rv.ProtocolError, c.do, "get", H)
        c.close()
        f.end()


def test_bytes_without_a_place_are_a_protocol_error():
    def script(f):
        q, _ = f.expect(GET)
        f.reply(GET, q, len=10, lease_id=8)
        f.expect(DETACH, lease_id=8)

    for kind in BOTH:
        f = Fake(script)
        c = kind(f)
        raises(rv.ProtocolError, c.do, "get", H)
        c.close()
        f.end()


def test_the_words_of_a_refusal_arrive_and_a_positive_code_is_a_protocol_error():
    for kind in BOTH:
        for rc, want in ((-errno.ENOENT, rv.NotFoundError), (-errno.EKEYREVOKED, rv.LeaseLostError), (5, rv.ProtocolError),
                         (-errno.EIO, rv.RvError)):
            def script(f):
                q, _ = f.expect(GET)
                f.reply(GET, q, b"the daemon's own words \xff", rc=rc)
            f = Fake(script)
            c = kind(f)
            e = raises(want, c.do, "get", H)
            assert e.strerror.startswith("the daemon's own words") and (rc > 0 or e.errno == -rc)
            c.close()
            f.end()


def test_noise_never_hangs_and_never_crashes():
    rng = random.Random(4)
    for kind in BOTH:
        for _ in range(150):
            good = answer(rng.choice((GET, ALLOC, METADATA, REQUEST)) | rng.choice((0, REPLY)), rng.randrange(4), b"abc",
                          token=rng.randrange(3), len=rng.choice((0, 9, 1 << 63)), arena=rng.randrange(3),
                          has_fd=rng.randrange(2), arena_len=rng.choice((0, 9, 1 << 40)), rc=rng.choice((0, 0, -2)))
            noise = bytearray(good * 3)
            for _ in range(rng.randrange(4)):
                noise[rng.randrange(len(noise))] = rng.randrange(256)

            def script(f):
                f.take()
                f.send(bytes(noise))

            f = Fake(script)
            c = kind(f)
            try:
                got = c.do("get", H)
                assert len(got) == 0 or got.tobytes() is not None
            except rv.RvError:
                pass
            c.close()
            f.end()
    assert mappings() == 0


def test_a_late_answer_is_given_back():
    """GET: buffer and lease. COMMIT: the slot. ALLOC: the buffer."""
    for kind in BOTH:
        for verb, args, op, gives in (("get", (H,), GET, dict(token=3, lease_id=8)), ("alloc", (10,), ALLOC, dict(token=3))):
            def script(f):
                q, _ = f.expect(op)
                f.expect(METADATA)  # it was given up
                fd = memfd(b"x" * 100)
                f.reply(op, q, fds=[fd], arena=1, has_fd=1, arena_len=100, len=10, **gives)
                os.close(fd)
                f.expect(FREE, token=3)
                if op == GET:
                    f.expect(DETACH, lease_id=8)
                f.silent()
            f = Fake(script)
            c = kind(f)
            with short_grace():
                raises(rv.TimedOutError, c.do, verb, *args, timeout=0.02)
                raises(rv.RvError, c.do, "metadata", H, timeout=0.2)
            c.close()
            f.end()
            assert mappings() == 0


class short_grace:
    """A stopped daemon is not waited for a second longer."""

    def __enter__(self):
        import rv._verbs
        self.was, rv._verbs.GRACE = rv._verbs.GRACE, 0.0

    def __exit__(self, *_):
        import rv._verbs
        rv._verbs.GRACE = self.was


def test_a_commit_that_is_answered_late_is_dropped():
    def script(f):
        q, _ = f.expect(ALLOC)
        f.reply(ALLOC, q, token=4, len=3)
        f.expect(WRITE, token=4)
        q, _ = f.expect(COMMIT, token=4)
        f.expect(FREE, token=4)
        f.reply(COMMIT, q, worker=WORKER, local=6)
        f.expect(DROP, worker=WORKER, local=6)
        f.silent()

    for kind in BOTH:
        f = Fake(script)
        c = kind(f)
        with short_grace():
            raises(rv.TimedOutError, c.do, "put", b"abc", timeout=0.05)
        c.close()  # which waits for it
        f.end()


def test_a_write_that_failed_undoes_the_commit():
    def script(f):
        q, _ = f.expect(ALLOC)
        f.reply(ALLOC, q, token=4, len=3)
        q, data = f.expect(WRITE, token=4)
        assert data == b"abc"
        f.refuse(WRITE, q, errno.ERANGE, b"no such place")
        q, _ = f.expect(COMMIT)
        f.reply(COMMIT, q, worker=WORKER, local=6)
        f.expect(DROP, local=6)
        f.expect(FREE, token=4)
        f.silent()

    for kind in BOTH:
        f = Fake(script)
        c = kind(f)
        assert "no such place" in raises(rv.TooLongError, c.do, "put", b"abc").strerror
        c.close()
        f.end()


def test_a_daemon_that_reads_nothing_times_a_put_out_and_the_frame_is_still_whole():
    big = bytes(40 << 20)

    def script(f):
        q, _ = f.expect(ALLOC)
        f.reply(ALLOC, q, token=4, len=len(big))
        go.wait(20)
        seen = 0
        while True:  # the frames that were begun are whole; then the buffer goes back
            op, q, payload = f.take()
            if op != WRITE:
                break
            seen += len(payload)
        assert op == FREE and q["token"] == 4 and 0 < seen < len(big), (op, seen)
        f.silent()

    for kind in BOTH:
        go = threading.Event()
        f = Fake(script)
        c = kind(f)
        with short_grace():
            raises(rv.TimedOutError, c.do, "put", big, timeout=0.3)
        go.set()
        c.close()
        f.end()


main(globals())
