#!/usr/bin/env python3
"""What systemd and the daemon tell each other: READY, WATCHDOG as long as every core turns, STOPPING; and the unit file."""
import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time

from rvdtest import *

UNIT = os.path.join(BUILD, "packaging", "rvd.service")
CONF = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "packaging", "rvd.conf")
PTRACE_INTERRUPT, PTRACE_DETACH, PTRACE_SEIZE = 0x4207, 17, 0x4206


class Manager:
    """The socket that systemd would have."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)

    def hears(self, seconds):
        """The next word, or None."""
        self.sock.settimeout(seconds * SLOW)
        try:
            return self.sock.recv(4096).decode()
        except socket.timeout:
            return None

    def drain(self):
        self.sock.setblocking(False)
        try:
            while self.sock.recv(4096):
                pass
        except BlockingIOError:
            pass


def thread_named(pid, name):
    for tid in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/comm" % (pid, tid)) as f:
            if f.read().strip() == name:
                return int(tid)
    raise AssertionError("no thread %s" % name)


class Frozen:
    """One thread of a daemon stands still until the end of the block."""

    def __init__(self, tid):
        self.libc, self.tid = ctypes.CDLL(None, use_errno=True), tid
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def trace(self, what):
        if self.libc.ptrace(what, self.tid, None, None):
            e = ctypes.get_errno()
            if what == PTRACE_SEIZE and e in (1, 38):
                raise Missing("permission to trace a process of our own")
            raise OSError(e, "ptrace")

    def __enter__(self):
        self.trace(PTRACE_SEIZE)
        self.trace(PTRACE_INTERRUPT)
        os.waitpid(self.tid, 0x40000000)  # __WALL

    def __exit__(self, *_):
        self.trace(PTRACE_DETACH)


def with_manager(fn, **options):
    with tempfile.TemporaryDirectory() as tmp:
        m = Manager(tmp)
        keep = dict(os.environ)
        os.environ.update(NOTIFY_SOCKET=m.path, WATCHDOG_USEC=str(900000 * int(SLOW)))
        try:
            with Daemon("a", **options) as d:
                os.environ.clear()
                os.environ.update(keep)
                fn(m, d)
        finally:
            os.environ.clear()
            os.environ.update(keep)


def test_it_says_when_it_serves_lives_and_stops():
    def fn(m, d):
        assert m.hears(10) == "READY=1"
        for i in range(4):
            assert m.hears(10) == "WATCHDOG=1"
        assert d.stop() == 0
        words = []
        while True:
            word = m.hears(0.2)
            if word is None:
                break
            words.append(word)
        assert words[-1] == "STOPPING=1" and set(words[:-1]) <= {"WATCHDOG=1"}, words
    with_manager(fn)


def core_that_hangs(name, **options):
    def fn(m, d):
        assert m.hears(10) == "READY=1" and m.hears(10) == "WATCHDOG=1"
        with Frozen(thread_named(d.proc.pid, name)):
            time.sleep(0.5 * SLOW)  # what was under way when it froze
            m.drain()
            assert m.hears(2) is None, "a sign of life of a daemon with a core that hangs"
        assert m.hears(10) == "WATCHDOG=1"
        assert "has not turned" in d.text()
        assert d.stop() == 0
    with_manager(fn, **options)


def test_a_core_that_hangs_is_a_daemon_that_hangs():
    core_that_hangs("rvd-core0")


def test_so_is_each_of_several():
    if len(os.sched_getaffinity(0)) < 2:
        raise Missing("a second CPU")
    cpus = sorted(os.sched_getaffinity(0))[:2]
    for name in ("rvd-poll1", "rvd-net2"):
        core_that_hangs(name, cores__polling="%d,%d" % tuple(cpus), cores__uring=str(cpus[1]))


def test_the_unit_file_is_one():
    if not shutil.which("systemd-analyze"):
        raise Missing("systemd-analyze")
    with tempfile.TemporaryDirectory() as tmp:
        text = open(UNIT).read()
        unit = os.path.join(tmp, "rvd.service")
        # The program is not installed here: it is run from where it was built.
        program, conf = re.search(r"^ExecStart=(\S+) -c (\S+)$", text, re.M).groups()
        open(unit, "w").write(text.replace(program, os.path.join(BUILD, "tools", "rvd")))
        p = subprocess.run(["systemd-analyze", "verify", unit], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 * SLOW)
        said = [l for l in p.stdout.decode().splitlines() if "rvd" in l]
        assert p.returncode == 0 and not said, p.stdout.decode()
        p = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=60 * SLOW)
        last = [l for l in p.stdout.decode().splitlines() if "Overall exposure level" in l]
        assert last, p.stdout.decode()
        level = float(last[0].split(":")[1].split()[0])
        assert level < 3, "the unit's exposure is %s" % level


def test_what_is_installed_is_what_the_unit_starts():
    if not shutil.which("meson"):
        raise Missing("meson")
    plan = json.loads(subprocess.run(["meson", "introspect", BUILD, "--installed"], stdout=subprocess.PIPE, check=True).stdout)
    installed = set(plan.values())
    program, conf = re.search(r"^ExecStart=(\S+) -c (\S+)$", open(UNIT).read(), re.M).groups()
    assert program in installed and conf in installed, (program, conf, sorted(installed))
    p = subprocess.run([os.path.join(BUILD, "tools", "rvd"), "-c", CONF, "--print-config"], stdout=subprocess.PIPE,
                       env={k: v for k, v in os.environ.items() if not k.startswith("RVD_")})
    out = re.sub(r" +#.*", "", p.stdout.decode())
    assert p.returncode == 0
    for line in ("runtime_dir = /run/rvd", "state_dir = /var/lib/rvd", "socket = /run/rvd/rvd.sock"):
        assert line in out.splitlines(), (line, out)  # what RuntimeDirectory= and StateDirectory= make


if __name__ == "__main__":
    main(globals())
