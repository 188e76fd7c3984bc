#!/usr/bin/env python3
"""rvtop: what it prints in a pipe, and what its screen shows under tmux."""
import json
import os
import shutil
import subprocess
import sys
import time

from rvdtest import *

RVTOP = os.path.join(BUILD, "tools", "rvtop")
TABS = ("overview", "cores", "slots", "leases", "arenas", "peers")


def rvtop(*args):
    p = subprocess.run([RVTOP] + list(args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       timeout=60 * SLOW)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def test_every_tab_as_text_and_as_json():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        bare = rvctl(a, "put", "-", "--name-only", data=b"x" * 5000000)[1].decode().strip()
        ref = "rv://127.0.0.1:%d/%s" % (a.tcp, bare)
        assert rvctl(b, "get", ref, "-o", "/dev/null", "--keep", "--path", "chunked")[0] == 0
        want = {"overview": ["in use 4.8MiB", "leases: rdma 0, chunked 1", "core 0 (polling, net)"], "cores": ["USEFUL"],
                "slots": [bare, "4.8MiB"], "leases": ["chunked", "under 10 s"], "arenas": ["staging", "####"],
                "peers": ["127.0.0.1"]}
        for tab in TABS:
            rc, out, err = rvtop("--socket", a.socket, "-b", "-n", "2", "-d", "0.1", "-t", tab)
            assert rc == 0 and not err and out.count("rvd ") == 2, (tab, out, err)
            for text in want[tab]:
                assert text in out, (tab, text, out)
            assert "\x01" not in out and "\x1b" not in out
            rc, out, err = rvtop("--socket", a.socket, "--json", "-n", "1", "-d", "0.1", "-t", tab)
            snap = json.loads(out)
            assert rc == 0 and snap["status"]["slots"] == 1 and len(snap["useful"]) == 1, snap
            assert tab in ("overview", "cores") or len(snap[tab]) == 1, snap
        assert a.stop() == 0 and b.stop() == 0


def test_rates_are_what_went_over_the_wire():
    size = 3000000
    with Daemon("a") as a, Daemon("b") as b:
        ref = rvctl(a, "put", "-", data=b"x" * size)[1].decode().strip()
        tops = [subprocess.Popen([RVTOP, "--socket", d.socket, "--json", "-d", "0.3", "-n", "200"], stdout=subprocess.PIPE)
                for d in (a, b)]
        try:
            for p in tops:
                assert json.loads(p.stdout.readline())["status"]["bytes_in"] == 0
            assert rvctl(b, "get", ref, "-o", "/dev/null")[0] == 0
            for p, rate, counter in ((tops[0], "out_bytes_per_s", "bytes_out"), (tops[1], "in_bytes_per_s", "bytes_in")):
                last = 0
                while True:
                    snap = json.loads(p.stdout.readline())
                    grown, last = snap["status"][counter] - last, snap["status"][counter]
                    assert (snap[rate] > 0) == (grown > 0), snap
                    if last == size:
                        break
        finally:
            for p in tops:
                p.kill()
                p.wait()
                p.stdout.close()
        assert a.stop() == 0 and b.stop() == 0


def test_wrong_usage_is_one_line():
    for args in (["-x"], ["-t", "none"], ["-d", "0"], ["-d", "soon"], ["-n", "0", "-b"], ["-n", "1"], ["word"], ["-n", "-3", "-b"],
                 []):
        rc, out, err = rvtop(*args)
        assert rc == 2 and not out and len(err.splitlines()) == 1 and err.startswith("rvtop: "), (args, rc, out, err)
    rc, out, err = rvtop("-b", "-n", "1", "--socket", "/nonexistent/rvd.sock")
    assert rc == 6 and not out and "/nonexistent/rvd.sock" in err and len(err.splitlines()) == 1, (rc, err)
    assert rvtop("-h")[0] == 0 and "usage: rvtop" in rvtop("-h")[1] and rvtop("-V")[1].startswith("rvtop ")


class Screen:
    """rvtop in a terminal of its own."""

    def __init__(self, d):
        if not shutil.which("tmux"):
            raise Missing("tmux")
        self.name = "rvtop-%d" % os.getpid()
        env = {k: v for k, v in os.environ.items() if not k.startswith("TMUX")}
        self.env = dict(env, LC_ALL="C.UTF-8")
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", RVTOP, "--socket", d.socket, "-d", "0.2")

    def tmux(self, *args):
        return subprocess.run(["tmux", "-L", self.name, "-f", "/dev/null"] + list(args), env=self.env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=30 * SLOW).stdout.decode()

    def text(self):
        return self.tmux("capture-pane", "-p")

    def press(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)

    def shows(self, *words):
        eventually(lambda: all(w in self.text() for w in words), what="a screen with %r" % (words,))

    def close(self):
        self.tmux("kill-server")


def test_the_screen_by_its_keys():
    with Daemon("a", ucx=True) as a:
        ends = [rvctl(a, "put", "-", "--name-only", data=b"x" * n)[1].decode().strip()[-12:] for n in (700000, 90000, 300000)]
        s = Screen(a)
        try:
            s.shows("overview", "GB/s in", "slots 3", "useful", "h help, q quit")
            assert all(len(l) <= 80 for l in s.text().splitlines())
            s.press("3")
            s.shows("slots", "BYTESv", *ends)
            order = lambda: [h for l in s.text().splitlines() for h in ends if h in l]
            assert order() == [ends[0], ends[2], ends[1]], "the largest first"
            s.press("r")
            eventually(lambda: order() == [ends[1], ends[2], ends[0]], what="the other order")
            s.press("s")
            s.shows("HANDLE^")
            for key, word in (("2", "USEFUL"), ("4", "AGE_S"), ("5", "largest_free"), ("6", "STATE"), ("Left", "largest_free"),
                              ("h", "usage: rvtop"), ("h", "largest_free"), ("1", "GB/s in")):
                s.press(key)
                s.shows(word)
            s.press("3", "Down")
            eventually(lambda: len(order()) == 2, what="one row scrolled over")
            # A smaller window, then a larger one.
            s.tmux("resize-window", "-x", "50", "-y", "8")
            eventually(lambda: len(s.text().splitlines()) == 8 and "BYTES" in s.text(), what="the small screen")
            assert "q quit" not in s.text(), "there is no room for it"
            s.tmux("resize-window", "-x", "120", "-y", "40")
            eventually(lambda: len(s.text().splitlines()) == 40 and "BYTES" in s.text(), what="the large screen")
            # The daemon goes and comes back.
            s.press("1")
            a.kill()
            s.shows("no daemon")
            a.restart()
            s.shows("overview", "slots 0")
            s.press("q")
            eventually(lambda: "rvtop" not in s.tmux("list-sessions"), what="its end")
        finally:
            s.close()
        assert a.stop() == 0


if __name__ == "__main__":
    main(globals())
