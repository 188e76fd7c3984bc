"""A hand-made velo peer: frames over one TCP connection, no rules kept that a test does not want."""
import json
import socket
import struct
import threading

MESSAGE, RESPONSE, ACK, EVENT, SHUTTING_DOWN = range(5)
FIRE, SYNC, UNARY = range(3)


class RawPeer:
    def __init__(self, port, worker=77, timeout=20):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(timeout)
        self.worker, self.next = worker, 1
        self.buf = b""

    def frame(self, kind, header, payload=b"", version=1):
        self.sock.sendall(struct.pack(">HBII", version, kind, len(header), len(payload)) + header + payload)

    def request(self, name, body=b"", kind=UNARY, headers=b"", worker=None):
        """Send a request; its id."""
        rid = struct.pack("<QHIH", self.worker if worker is None else worker, self.next & 0xffff, self.next, 0)
        self.next += 1
        if not isinstance(body, bytes):
            body = json.dumps(body, separators=(",", ":")).encode()
        n = name.encode()
        self.frame(MESSAGE, bytes([1, kind]) + rid + struct.pack("<H", len(n)) + n + struct.pack("<H", len(headers)) +
                   headers, body)
        return rid

    def read(self):
        """One frame: type, header, payload. EOFError when the connection is closed."""
        while len(self.buf) < 11 or len(self.buf) < 11 + sum(struct.unpack(">II", self.buf[3:11])):
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self.buf += data
        _, kind, h, p = struct.unpack(">HBII", self.buf[:11])
        out = kind, self.buf[11:11 + h], self.buf[11 + h:11 + h + p]
        self.buf = self.buf[11 + h + p:]
        return out

    def call(self, name, body=b"", **kw):
        """Request and answer: (ok, payload)."""
        rid = self.request(name, body, **kw)
        while True:
            kind, header, payload = self.read()
            if kind == RESPONSE and header[:16] == rid:
                return header[16] == 0, payload
            if kind == ACK and header[1:17] == rid:
                return header[0] == 0, payload
            if kind == SHUTTING_DOWN and header[2:18] == rid:
                return None, payload

    def closed(self):
        try:
            while True:
                self.read()
        except (EOFError, ConnectionError):
            return True
        except socket.timeout:
            return False

    def close(self):
        self.sock.close()


def handle(h):
    return {"hi": h[0], "lo": h[1]}


def lease_ms(ms):
    """A headers map with `_rv_lease_ms`."""
    v = str(ms).encode()
    return b"\x81\xac_rv_lease_ms" + bytes([0xa0 | len(v)]) + v


class RawOwner:
    """A listener that answers each request with script(name, body): (ok, payload) or None for silence."""

    def __init__(self, script, hello=b'{"handlers":[]}'):
        self.script, self.hello, self.seen, self.headers, self.conns, self.ids = script, hello, [], [], [], []
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(16)
        self.port = self.sock.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                s, _ = self.sock.accept()
            except OSError:
                return
            self.conns.append(s)
            threading.Thread(target=self._serve, args=(s,), daemon=True).start()

    def _serve(self, s):
        f = s.makefile("rb")
        try:
            while True:
                pre = f.read(11)
                if len(pre) < 11:
                    return
                _, kind, h, p = struct.unpack(">HBII", pre)
                header, body = f.read(h), f.read(p)
                if kind != MESSAGE:
                    continue
                n = struct.unpack("<H", header[18:20])[0]
                name = header[20:20 + n].decode()
                self.seen.append((name, body))
                self.headers.append(header[20 + n:])
                self.ids.append((name, header[2:18]))
                if header[1] == FIRE:
                    continue
                got = (True, self.hello) if name == "_hello" else self.script(name, body)
                if got is None:
                    continue
                ok, payload = got
                if header[1] == SYNC:
                    out = bytes([0 if ok else 2]) + header[2:18]
                    s.sendall(struct.pack(">HBII", 1, ACK, len(out), 0) + out)
                else:
                    out = header[2:18] + bytes([0 if ok else 1]) + b"\0\0"
                    s.sendall(struct.pack(">HBII", 1, RESPONSE, len(out), len(payload)) + out + payload)
        except OSError:
            pass

    def close(self):
        for s in [self.sock] + self.conns:  # a thread in accept() keeps a closed listener alive
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.sock.close()
