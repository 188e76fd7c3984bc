"""What the integration tests share: daemons of their own, and a client that speaks the local protocol raw.

Python standard library only. Every daemon lives in a folder of its own, listens on loopback with free ports,
and is ended by its process id. A test program calls main(globals()) and prints TAP.
"""
import array
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

BUILD = os.environ.get("RV_BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build"))
RVD = os.path.join(BUILD, "tools", "rvd")
RVCTL = os.path.join(BUILD, "tools", "rvctl")
SLOW = float(os.environ.get("RV_SLOW", "1"))  # deadlines under sanitizers

MAGIC, REPLY = 0x5256, 0x80
(HELLO, ALLOC, WRITE, COMMIT, FREE, GET, METADATA, REF, DETACH, RELEASE, DROP, PEER_ADD, PEER_INFO, LIST, SERVE, UNSERVE,
 REQUEST, ANSWER, CALL, HANDLERS, ADMIN, REGION_REGISTER, REGION_STAGE, REGION_UNREGISTER,
 REGION_WATCH, GET_MANY, BELL) = range(1, 28)
QUEUES = 1
PLAIN, SHARED, SESSION, STRICT, MAPPED = 1, 2, 4, 8, 16
ANY, RDMA, CHUNKED = 0, 1, 2
KEEP, INTO, THEN_DETACH, THEN_RELEASE, TOGETHER = 1, 2, 4, 8, 32
FIRE, SYNC, UNARY = 0, 1, 2
FAILED = 1
THRESHOLD = 262144

REQ = struct.Struct("<QIIQQQQIIQQQQII256s64s")
REP = struct.Struct("<QiIQQQIIQQQQQQIIIII64sxxxx")
REP_FIELDS = ("id rc version worker local token arena has_fd arena_len off len lease_id refcount elapsed_ns pinned "
              "path writable single_use refusal path_name").split()


def pattern(n, seed=0):
    """Bytes that differ at every offset, cheap to make."""
    block = bytes((i * 131 + (i >> 8) * 31 + seed) & 255 for i in range(65536))
    out = bytearray()
    k = 0
    while len(out) < n:
        out += block[k % 251:] + struct.pack("<Q", k)
        k += 1
    return bytes(out[:n])


class Refused(Exception):
    def __init__(self, rc, text):
        super().__init__("%d: %s" % (rc, text))
        self.rc, self.text = rc, text


def reply(raw):
    """A frame of the daemon's; what it leaves out of its header reads as zero."""
    magic, op, hlen, plen = struct.unpack(">HBII", raw[:11])
    assert magic == MAGIC and len(raw) == 11 + hlen + plen
    rep = dict(zip(REP_FIELDS, REP.unpack(raw[11:11 + hlen].ljust(REP.size, b"\0")[:REP.size])))
    rep["payload"] = raw[11 + hlen:]
    rep["op"] = op
    rep["path_name"] = rep["path_name"].rstrip(b"\0").decode()
    return rep


class Client:
    """One session with a daemon, by the book of local_proto.h."""

    def __init__(self, path, hello=True):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60 * SLOW)
        self.sock.connect(path)
        self.next_id = 1
        self.arenas = {}
        self.buf = b""
        self.fds = []
        self.worker = None
        if hello:
            self.worker = self.call(HELLO, version=1)["worker"]

    def frame(self, op, payload=b"", raw_header=None, **f):
        """A request's id, and its bytes but for the payload."""
        rid = self.next_id
        self.next_id += 1
        host = f.get("host", "").encode()
        name = f.get("name", "").encode()
        header = raw_header if raw_header is not None else REQ.pack(
            rid, f.get("version", 0), f.get("flags", 0), f.get("token", 0), f.get("len", 0), f.get("off", 0),
            f.get("ttl_ns", 0), f.get("refs", 0), f.get("path", 0), f.get("worker", 0), f.get("local", 0),
            f.get("lease_id", 0), f.get("timeout_ns", 0), f.get("what", 0), f.get("port", 0), host, name)
        return rid, struct.pack(">HBII", MAGIC, op, len(header), len(payload)) + header

    def send(self, op, payload=b"", **f):
        rid, head = self.frame(op, payload, **f)
        self.sock.sendall(head)
        if payload:
            self.sock.sendall(payload)
        return rid

    def _fill(self, n):
        while len(self.buf) < n:
            data, anc, _, _ = self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(64))
            if not data:
                raise EOFError("the daemon closed the connection")
            for level, kind, raw in anc:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
                    self.fds += list(fds)
            self.buf += data

    def recv(self):
        self._fill(11)
        hlen, plen = struct.unpack(">II", self.buf[3:11])
        self._fill(11 + hlen + plen)
        rep = reply(self.buf[:11 + hlen + plen])
        self.buf = self.buf[11 + hlen + plen:]
        if rep["has_fd"]:
            self.arenas[rep["arena"]] = self.fds.pop(0)
        return rep

    def call(self, op, payload=b"", **f):
        rid = self.send(op, payload, **f)
        rep = self.recv()
        assert rep["id"] == rid and rep["op"] == op | REPLY, rep
        if rep["rc"]:
            raise Refused(rep["rc"], rep["payload"].decode())
        return rep

    def put(self, data, flags=0, **f):
        a = self.call(ALLOC, len=len(data), flags=flags)
        for off in range(0, len(data), 1 << 20):
            self.send(WRITE, data[off:off + (1 << 20)], token=a["token"], off=off)
        c = self.call(COMMIT, token=a["token"], len=len(data), flags=f.pop("commit_flags", 0), **f)
        return (c["worker"], c["local"])

    def view(self, rep):
        """The bytes a reply points at."""
        fd = self.arenas[rep["arena"]]
        parts, left, off = [], rep["len"], rep["off"]
        while left:
            part = os.pread(fd, min(left, 1 << 26), off)
            parts.append(part)
            left -= len(part)
            off += len(part)
        return b"".join(parts)

    def get(self, handle, **f):
        rep = self.call(GET, worker=handle[0], local=handle[1], **f)
        rep["data"] = self.view(rep) if rep["token"] else b""
        return rep

    def message(self, handler, data=b"", kind=UNARY, **f):
        """Call a handler of a peer; staged above the threshold, and the slot dropped when the call is over."""
        if len(data) <= THRESHOLD:
            return self.call(CALL, data, name=handler, what=kind, **f)["payload"]
        h = self.put(data, flags=MAPPED)
        try:
            return self.call(CALL, name=handler, what=kind, local=h[1], **f)["payload"]
        finally:
            if kind != FIRE:
                try:
                    self.call(DROP, worker=h[0], local=h[1])
                except Refused:
                    pass

    def serve_one(self, fn):
        """Wait for one request and answer it with fn(name, data): bytes, or raise to fail it."""
        r = self.recv()
        assert r["op"] == REQUEST, r
        data = self.view(r) if r["token"] else r["payload"]
        self.free(r)
        try:
            out, flags = fn(r["path_name"], data), 0
        except Exception as e:
            out, flags = str(e).encode(), FAILED
        if r["id"]:
            self.send(ANSWER, out, token=r["id"], flags=flags)
        return r["path_name"], data

    def free(self, rep):
        if rep["token"]:
            self.send(FREE, token=rep["token"])
            if rep["single_use"] and rep["arena"] in self.arenas:
                os.close(self.arenas.pop(rep["arena"]))

    def list(self, what):
        kinds = ["status", "slots", "leases", "arenas", "peers", "regions", "endpoints", "cores", "config"]
        return json.loads(self.call(LIST, what=kinds.index(what))["payload"])

    def close(self):
        self.sock.close()
        for fd in self.arenas.values():
            os.close(fd)
        self.arenas = {}


def one(i, h):
    return struct.pack("<QQQ", i, *h)


def got(payload):
    return [dict(zip(("id", "token", "off", "len"), struct.unpack_from("<QQQQ", payload, at))) for at in range(0, len(payload), 32)]


def many(c, handles, port=0, flags=THEN_DETACH | TOGETHER, first=1000, **kw):
    """Ask, of one node here or for bare handles, and read until each is answered. @return (replies by id, how many came in replies of many)"""
    host = "127.0.0.1" if port else ""
    c.send(GET_MANY, b"".join(one(first + i, h) for i, h in enumerate(handles)), flags=flags, host=host, port=port, **kw)
    out, together = {}, 0
    while len(out) < len(handles):
        rep = c.recv()
        if rep["op"] == GET | REPLY:
            each = [{}]
        else:
            assert rep["op"] == GET_MANY | REPLY and not rep["rc"], rep
            each = got(rep["payload"])
            assert each
            together += len(each)
        for e in each:
            r = dict(rep, **e)
            assert r["id"] not in out and first <= r["id"] < first + len(handles), r
            out[r["id"]] = r
    return [out[first + i] for i in range(len(handles))], together


class Daemon:
    """An rvd in a folder of its own."""

    host = "127.0.0.1"

    def __init__(self, name, ucx=False, env=None, wait=True, limits="", within=(), **options):
        """limits: shell commands before the start, like ulimit -n 64; within: the command that runs it where it belongs"""
        self.name = name
        self.dir = tempfile.mkdtemp(prefix="rvd-test-")
        self.socket = os.path.join(self.dir, "rvd.sock")
        self.log_path = os.path.join(self.dir, "log")
        opts = {
            "node.name": name,
            "node.runtime_dir": os.path.join(self.dir, "run"),
            "node.state_dir": os.path.join(self.dir, "state"),
            "tcp.listen": self.host + ":0",
            "local.socket": self.socket,
            "metrics.listen": self.host + ":0",
            "ucx.enabled": "yes" if ucx else "no",
            "memory.initial_arena_bytes": "8MiB",
        }
        if ucx:
            opts["ucx.tls"] = "tcp"
        opts.update({k.replace("__", "."): str(v) for k, v in options.items()})
        self.run = opts["node.runtime_dir"]
        self.args = [RVD]
        for k, v in opts.items():
            self.args += ["-s", "%s=%s" % (k, v)]
        if limits:
            self.args = ["sh", "-c", limits + ' && exec "$@"', "sh"] + self.args
        self.args = list(within) + self.args
        self.env = dict(os.environ, UCX_MEM_EVENTS="n", **(env or {}))
        self.start(wait)

    def start(self, wait=True):
        self.log = open(self.log_path, "ab")
        self.proc = subprocess.Popen(self.args, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.env)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        end = time.monotonic() + 30 * SLOW
        ports = os.path.join(self.run, "ports")
        while time.monotonic() < end:
            if self.proc.poll() is not None:
                raise AssertionError("rvd ended with %d:\n%s" % (self.proc.returncode, self.text()))
            if " serves as worker " in self.text()[getattr(self, "log_from", 0):]:
                self.ports = dict(line.split() for line in open(ports))
                self.tcp = int(self.ports["tcp"])
                return
            time.sleep(0.02)
        raise AssertionError("rvd did not get ready:\n" + self.text())

    def text(self):
        with open(self.log_path, "r", errors="replace") as f:
            return f.read()

    def client(self):
        return Client(self.socket)

    def metrics(self):
        import urllib.request
        with urllib.request.urlopen("http://%s:%s/metrics" % (self.host, self.ports["metrics"]), timeout=10) as r:
            out = {}
            for line in r.read().decode().splitlines():
                if line and line[0] != "#":
                    k, v = line.rsplit(" ", 1)
                    out[k] = float(v)
            return out

    def kill(self, sig=signal.SIGKILL):
        self.proc.send_signal(sig)
        return self.proc.wait(timeout=60 * SLOW)

    def rss_kib(self):
        with open("/proc/%d/status" % self.proc.pid) as f:
            return int(next(line for line in f if line.startswith("VmRSS")).split()[1])

    def fds(self):
        return len(os.listdir("/proc/%d/fd" % self.proc.pid))

    def freeze(self):
        """Stop it; from then on no thread of it runs."""
        self.proc.send_signal(signal.SIGSTOP)
        tasks = "/proc/%d/task" % self.proc.pid
        state = lambda t: open("%s/%s/stat" % (tasks, t)).read().rsplit(")", 1)[1].split()[0]
        eventually(lambda: all(state(t) == "T" for t in os.listdir(tasks)), what="every thread stopped")

    def restart(self):
        self.log.close()
        self.log_from = os.path.getsize(self.log_path)
        self.start()

    def stop(self):
        """End it in good order; the exit code."""
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(timeout=60 * SLOW)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
                raise AssertionError("rvd did not stop:\n" + self.text())
        self.log.close()
        return self.proc.returncode

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        if kind is not None:
            sys.stderr.write("---- log of %s\n%s\n" % (self.name, self.text()[-6000:]))
        self.close()


def eventually(fn, seconds=10, what="it"):
    """Wait until fn() is true; its last value."""
    end = time.monotonic() + seconds * SLOW
    while True:
        v = fn()
        if v:
            return v
        if time.monotonic() > end:
            raise AssertionError("%s did not happen in %s s" % (what, seconds * SLOW))
        time.sleep(0.02)


def rvctl(daemon, *args, data=None, timeout=120):
    """Run rvctl; (exit code, stdout, stderr)."""
    p = subprocess.run([RVCTL, "--socket", daemon.socket if daemon else "/nonexistent/rvd.sock"] + list(args), input=data,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout * SLOW)
    return p.returncode, p.stdout, p.stderr.decode(errors="replace")


class Missing(Exception):
    """This machine has not what the test needs: it is skipped, and says what."""


def main(scope):
    """Run every function named test_... (or those named on the command line) and print TAP."""
    tests = [(n, f) for n, f in scope.items() if n.startswith("test_") and callable(f)]
    if len(sys.argv) > 1:
        tests = [t for t in tests if any(a in t[0] for a in sys.argv[1:])]
    print("1..%d" % len(tests), flush=True)
    bad = 0
    for i, (name, fn) in enumerate(tests, 1):
        began = time.monotonic()
        try:
            fn()
            print("ok %d - %s # %.1f s" % (i, name[5:].replace("_", " "), time.monotonic() - began), flush=True)
        except Missing as e:
            print("ok %d - %s # SKIP %s" % (i, name[5:].replace("_", " "), e), flush=True)
        except Exception:
            bad += 1
            print("not ok %d - %s" % (i, name[5:].replace("_", " ")), flush=True)
            for line in traceback.format_exc().splitlines():
                print("# " + line, flush=True)
    sys.exit(1 if bad else 0)
