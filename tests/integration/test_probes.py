#!/usr/bin/env python3
"""USDT probes: the daemon has those that dataplane/base/probe.h promises, the scripts use no others, and they fire."""
import re
import shutil
import subprocess
import sysconfig

from rawpeer import RawPeer, handle
from rvdtest import *

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEADER = os.path.join(ROOT, "dataplane", "base", "probe.h")
SCRIPTS = [os.path.join(ROOT, "scripts", "trace-%s.bt" % s) for s in ("gets", "leases")]
NAMES = {"stage", "acquire", "release", "reap", "get__start", "get__end"}
SIZE = 1000003
MASK = (1 << 64) - 1
NO_OFFER, LOCAL = 1, -1
RELEASED, SLOT_OVER = 1, 2


def promised():
    """{probe: names of its arguments}, as the header's comments say."""
    text = open(HEADER).read()
    return {name: args.split(", ") for name, args in re.findall(r"\* rvd:(\w+)\(([^)]*)\):", text)}


def built():
    """{probe: the set of its numbers of arguments}, as the program's notes say."""
    if not shutil.which("readelf"):
        raise Missing("readelf")
    places = ["/usr/include/sys/sdt.h", "/usr/include/%s/sys/sdt.h" % sysconfig.get_config_var("MULTIARCH")]
    if not any(os.path.exists(p) for p in places):
        raise Missing("<sys/sdt.h>: built without probes")
    text = subprocess.run(["readelf", "-n", "-W", RVD], stdout=subprocess.PIPE, check=True).stdout.decode()
    found = {}
    for provider, name, args in re.findall(r"Provider: (\w+)\s+Name: (\w+)\s+Location:.*\s+Arguments: (.*)", text):
        if provider == "rvd":
            found.setdefault(name, set()).add(len(re.findall(r"(?:^|\s)-?\d+@", args)))
    return found


def test_the_header_promises_what_its_code_does():
    text = open(HEADER).read()
    code = {name: args.split(", ") for name, args in re.findall(r"\tRV_PROBE\d\((\w+), ([^)]*)\);", text)}
    assert set(code) == NAMES and promised() == code, (promised(), code)


def test_the_daemon_has_every_probe():
    assert built() == {name: {len(args)} for name, args in promised().items()}, built()


def test_the_scripts_use_only_what_there_is():
    probes = promised()
    for path in SCRIPTS:
        text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
        clauses = re.findall(r"^usdt:\$1:rvd:(\w+)\n\{(.*?)^\}", text, re.M | re.S)
        assert clauses and len(clauses) == text.count("usdt:"), path
        for name, body in clauses:
            used = [int(n) for n in re.findall(r"\barg(\d+)\b", body)]
            assert used and name in probes and max(used) < len(probes[name]), (path, name, used)


def test_the_scripts_are_scripts():
    for path in SCRIPTS:
        assert os.access(path, os.X_OK) and open(path).readline() == "#!/usr/bin/env bpftrace\n", path


class Watched(Daemon):
    """A daemon under gdb, which writes down what each probe was told, and goes on."""

    def start(self, wait=True):
        script = os.path.join(self.dir, "gdb")
        with open(script, "w") as f:
            f.write("set confirm off\nset pagination off\nset debuginfod enabled off\nset startup-with-shell off\n"
                    "set print thread-events off\nhandle SIGTERM nostop noprint pass\n")
            for name, args in promised().items():
                n = len(args)
                f.write("break -probe-stap rvd:%s\ncommands\nsilent\n" % name)
                f.write('printf "probe %s%s\\n"%s\n' % (name, " %ld" * n, "".join(", $_probe_arg%d" % i for i in range(n))))
                f.write("continue\nend\n")
            f.write("run\n")
        # Who is traced cannot trace itself, as a search for leaks must.
        self.env["ASAN_OPTIONS"] = self.env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        self.args = ["gdb", "-nx", "-batch", "-x", script, "--args"] + self.args
        super().start(wait)

    def hits(self, name):
        """What each firing told, oldest first; ids of 64 bits are those of Python."""
        lines = re.findall(r"^probe %s (.*)$" % name, self.text(), re.M)
        return [tuple(int(v) & MASK if abs(int(v)) > 1 << 32 else int(v) for v in line.split()) for line in lines]

    def wait_for(self, name, **want):
        """The firing that told these values."""
        args = promised()[name]
        match = lambda hit: all(hit[args.index(k)] == v for k, v in want.items())
        hit = eventually(lambda: next(filter(match, self.hits(name)), None), what="rvd:%s(%s)" % (name, want))
        return dict(zip(args, hit))

    def stop(self):
        with open("/proc/%d/task/%d/children" % (self.proc.pid, self.proc.pid)) as f:
            for pid in f.read().split():
                os.kill(int(pid), signal.SIGTERM)
        self.proc.wait(timeout=60 * SLOW)
        self.log.close()
        return 0 if "exited normally" in self.text() else 1


def watchable():
    built()
    if not shutil.which("gdb"):
        raise Missing("gdb")
    p = subprocess.run(["gdb", "-nx", "-batch", "-ex", "set startup-with-shell off", "-ex", "run", "--args", shutil.which("true")],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if b"exited normally" not in p.stdout:
        raise Missing("permission to trace a process of our own")


def test_each_probe_fires_with_what_it_promises():
    watchable()
    with Watched("a", rendezvous__chunk_lease_timeout="300ms") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        mine, theirs = ca.put(pattern(SIZE), refs=2), cb.put(pattern(SIZE + 1))
        assert a.wait_for("stage", slot=mine[1]) == {"slot": mine[1], "bytes": SIZE, "pinned": 0}

        # A get there: by b's daemon, a grant and its end.
        rep = cb.get(mine, host="127.0.0.1", port=a.tcp)
        grant = a.wait_for("acquire", slot=mine[1])
        assert grant == {"slot": mine[1], "worker": cb.worker, "reason": NO_OFFER, "lease": rep["lease_id"]}
        cb.call(RELEASE, worker=mine[0], local=mine[1], lease_id=rep["lease_id"])
        assert a.wait_for("release", lease=rep["lease_id"])["how"] == RELEASED

        # Gets here: from b, of its own, and one that fails.
        ca.get(theirs, host="127.0.0.1", port=b.tcp)
        assert a.wait_for("get__start", worker=cb.worker) == {"worker": cb.worker, "bytes": SIZE + 1, "backend": 0}
        end = a.wait_for("get__end", worker=cb.worker)
        assert end["bytes"] == SIZE + 1 and end["rc"] == 0 and 0 < end["ns"] < 60e9 * SLOW, end
        rep = ca.get(mine)
        assert a.wait_for("acquire", slot=mine[1], worker=ca.worker)["reason"] == LOCAL
        assert a.wait_for("get__end", worker=ca.worker)["bytes"] == SIZE
        try:
            ca.get((mine[0], mine[1] + (1 << 30)))
        except Refused as e:
            assert a.wait_for("get__end", worker=ca.worker, bytes=0)["rc"] == e.rc

        # Two that end without their consumer's word: at the deadline, and with the slot.
        p = RawPeer(a.tcp)
        lease = json.loads(p.call("_rv_acquire", {"handle": handle(mine), "rdma": None})[1])["Ready"]["lease_id"]
        assert a.wait_for("acquire", lease=lease)["worker"] == p.worker
        assert a.wait_for("reap", lease=lease) == {"lease": lease, "slot": mine[1], "worker": p.worker}
        ca.call(DROP, worker=mine[0], local=mine[1])
        assert a.wait_for("release", lease=rep["lease_id"])["how"] == SLOT_OVER
        p.close()
        assert a.stop() == 0 and b.stop() == 0


if __name__ == "__main__":
    main(globals())
