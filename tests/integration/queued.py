"""A session whose frames go through memory it shares with the daemon, or through the socket: by the book of shmq.h, or not."""
import mmap
import select
import threading

from rvdtest import *

QUEUE_BYTES, FRAME_MAX = 32768, 8192
QUEUE_LEN = 4096 + 2 * QUEUE_BYTES
TAIL, OTHERS, HEAD, RESTS = 0, 1, 16, 17  # words of 4 bytes; those of the queue to the program come 32 words later
IN = 32
FOREVER = {"cores__idle_spin": "1s"}  # a daemon that looks, once a program has used its socket, for as long as a test needs
fence = threading.Lock()


class Queued(Client):
    def __init__(self, path, ask=True):
        super().__init__(path, hello=False)
        self.m = None
        self.sent = self.taken = 0  # frames of the socket, from here and from there
        self.stash = None
        if ask:
            self.ask()
            assert self.m, "there are no queues"

    def ask(self):
        """HELLO, with the flag; the reply. A descriptor of queues stays open: self.memory."""
        rid = self.send(HELLO, version=2, flags=QUEUES)
        rep = self.recv()
        assert rep["id"] == rid and not rep["rc"], rep
        self.worker = rep["worker"]
        if rep["has_fd"]:
            assert self.m is None and rep["arena_len"] == QUEUE_LEN, rep
            self.memory = self.arenas.pop(rep["arena"])
            self.m = mmap.mmap(self.memory, QUEUE_LEN)
            self.word = memoryview(self.m).cast("I")  # a store or load each
            self.tail, self.head, self.taken = 0, 0, 1
            self.word[IN + RESTS] = 1
            self.word[OTHERS] = self.sent
        return rep

    def close(self):
        super().close()
        if self.m:
            self.word.release()
            self.m.close()
            os.close(self.memory)
            self.m = None

    # What goes.

    def send(self, op, payload=b"", **f):
        """Through the socket."""
        rid = super().send(op, payload, **f)
        self.other()
        return rid

    def other(self):
        self.sent += 1
        if self.m:
            self.word[OTHERS] = self.sent

    def bell(self):
        """Look at the queue!"""
        self.send(BELL, raw_header=b"")

    def write(self, at, raw):
        """Into the queue's data, where it goes round."""
        at %= QUEUE_BYTES
        first = min(len(raw), QUEUE_BYTES - at)
        self.m[4096 + at:4096 + at + first] = raw[:first]
        if first < len(raw):
            self.m[4096:4096 + len(raw) - first] = raw[first:]

    def entry(self, raw, others=None, length=None):
        """Put bytes, whatever the daemon does; room is not looked for."""
        self.write(self.tail, struct.pack("<II", len(raw) if length is None else length,
                                          (self.sent if others is None else others) & 0xffffffff) + raw)
        self.tail = self.tail + 8 + (len(raw) + 7) // 8 * 8 & 0xffffffff
        self.word[TAIL] = self.tail
        with fence:
            pass

    def through(self, op, payload=b"", others=None, **f):
        """Through the queue, if the daemon looks and there is room. @return the id, or None"""
        rid, head = self.frame(op, payload, **f)
        raw = head + payload
        room = QUEUE_BYTES - (self.tail - self.word[HEAD] & 0xffffffff)
        if len(raw) > FRAME_MAX or self.word[RESTS] or room < 8 + (len(raw) + 7) // 8 * 8:
            return None
        self.entry(raw, others)
        if self.word[RESTS]:
            self.bell()
        return rid

    def surely(self, op, payload=b"", **f):
        """The same, however often the daemon has to be woken, or waited for, before."""
        end = time.monotonic() + 30 * SLOW
        while time.monotonic() < end:
            rid = self.through(op, payload, **f)
            if rid is not None:
                return rid
            if self.word[RESTS]:
                self.bell()
                again = time.monotonic() + 0.2 * SLOW
                while self.word[RESTS] and time.monotonic() < again:
                    pass
        raise AssertionError("the daemon does not look, or takes nothing")

    def either(self, op, payload=b"", **f):
        """As a program does that has no wish. @return the id, and whether it went through the queue"""
        rid = self.through(op, payload, **f)
        return (self.send(op, payload, **f), False) if rid is None else (rid, True)

    # What comes.

    def look(self):
        self.word[IN + RESTS] = 0

    def rest(self):
        self.word[IN + RESTS] = 1
        with fence:
            pass

    def take(self):
        """The queue's next frame, if it is its turn."""
        if not self.m or self.word[IN + TAIL] == self.head:
            return None
        data, at = 4096 + QUEUE_BYTES, self.head % QUEUE_BYTES
        length, others = struct.unpack_from("<II", self.m, data + at)
        if others > self.taken:
            return None
        assert 11 <= length <= FRAME_MAX, length
        at = (at + 8) % QUEUE_BYTES
        raw = self.m[data + at:data + min(at + length, QUEUE_BYTES)]
        raw += self.m[data:data + length - len(raw)]
        self.head = self.head + 8 + (length + 7) // 8 * 8 & 0xffffffff
        self.word[IN + HEAD] = self.head
        return dict(reply(raw), queue=True)

    def readable(self):
        return bool(self.buf) or bool(select.select([self.sock], [], [], 0)[0])

    def recv(self):
        """The next frame of both ways, in their order; rep["queue"] says which it was."""
        end = time.monotonic() + 60 * SLOW
        while True:
            rep = self.take()
            if rep:
                return rep
            if self.stash:
                rep, self.stash = self.stash, None
                self.taken += 1 if self.m else 0
                if rep["op"] != BELL | REPLY:
                    return dict(rep, queue=False)
            elif not self.m or self.word[IN + RESTS] or self.readable():
                self.stash = super().recv()  # what came before it comes first
            elif time.monotonic() > end:
                raise socket.timeout("nothing came through the queue")

    def closed(self):
        """Does the daemon close it? What came before is lost."""
        try:
            while self.sock.recv(65536):
                pass
            return True
        except ConnectionResetError:
            return True
