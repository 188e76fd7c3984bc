"""A real etcd for the tests that find nodes through one."""
import shutil

from rvdtest import *


class Etcd:
    """A server of its own, on ports that were free, in a folder that goes with it; in memory it waits for no disk."""

    def __init__(self, host="127.0.0.1", folder=None):
        binary = shutil.which("etcd")
        if not binary:
            print("1..0 # skip etcd is not installed (etcd-server)")
            raise SystemExit(77)
        self.binary, self.dir, self.host = binary, tempfile.mkdtemp(prefix="rvd-etcd-", dir=folder), host
        self.client, self.peer = free_port(), free_port()
        self.start()

    def start(self):
        url, peer = "http://%s:%d" % (self.host, self.client), "http://127.0.0.1:%d" % self.peer
        self.log = open(os.path.join(self.dir, "log"), "ab")
        env = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        self.proc = subprocess.Popen(
            [self.binary, "--name", "a", "--data-dir", os.path.join(self.dir, "data"), "--listen-client-urls", url, "--advertise-client-urls", url,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "a=" + peer],
            stdout=self.log, stderr=self.log, env=env)
        eventually(lambda: self.answers(), seconds=60, what="etcd")

    def answers(self):
        try:
            return self.keys() is not None
        except OSError:
            return False

    def call(self, path, body):
        import urllib.request
        with urllib.request.urlopen("http://%s:%d%s" % (self.host, self.client, path), json.dumps(body).encode(), timeout=5) as f:
            return json.load(f)

    def keys(self, prefix="/rvd/peers/"):
        import base64
        b = lambda t: base64.b64encode(t.encode()).decode()
        out = self.call("/v3/kv/range", {"key": b(prefix), "range_end": b(prefix[:-1] + chr(ord(prefix[-1]) + 1))})
        return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]) for kv in out.get("kvs", [])}

    def stop(self):
        if self.proc:
            self.proc.kill()
            self.proc.wait()
        self.proc = None
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def in_etcd(etcd, **more):
    return dict(dict(discovery__kind="etcd", discovery__endpoints="%s:%d" % (etcd.host, etcd.client)), **more)
