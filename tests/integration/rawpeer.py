"""A hand-made velo peer: frames over one TCP connection, no rules kept that a test does not want."""
import hashlib
import json
import socket
import struct

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
