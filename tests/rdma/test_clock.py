#!/usr/bin/env python3
"""The wall clock jumps by hours, forward and back, many times a second: no lease, deadline, wait or byte may notice.

Runs inside scripts/rdma-vm, whose clock is its own."""
import contextlib
import fcntl
import pty
import random
import select
import socket
import threading

from rdmatest import *
from rvlib import *
from rawpeer import RawPeer, handle
from hostile import Raw

HOURS = (3, -7, 26, -1, -30, 12, 0.01, -0.01)


@contextlib.contextmanager
def stepping():
    """Meanwhile the clock jumps. How often it did, in a list, once it is over."""
    over, steps = threading.Event(), []
    real = time.time() - time.monotonic()

    def run():
        rng = random.Random(7)
        while not over.wait(0.05):
            time.clock_settime(time.CLOCK_REALTIME, time.time() + 3600 * rng.choice(HOURS))
            steps.append(time.time())
    t = threading.Thread(target=run)
    t.start()
    try:
        yield steps
    finally:
        over.set()
        t.join()
        time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic())
    assert len(steps) > 3 and max(steps) - min(steps) > 3600, "the clock stood still"


def elapsed(fn):
    began = time.monotonic()
    out = fn()
    return time.monotonic() - began, out


def in_time(took, want):
    """Not a moment too early; and in the end, however slow this machine is."""
    assert want * 0.95 <= took < want + 5 * SLOW, "%.2f s instead of %.2f" % (took, want)
    return took


def reaped(d):
    return sum(v for k, v in d.metrics().items() if k.startswith("rvd_leases_reaped_total"))


def test_every_byte_arrives_by_either_path_and_no_lease_ends_early():
    data = pattern(3 << 20)
    with verbs_node("a", 1) as a, verbs_node("b", 2) as b:
        ca, cb = a.client(), b.client()
        know(cb, a)
        with stepping():
            for path in (RDMA, CHUNKED, ANY) * 2:
                h = ca.put(data)
                g = cb.get(h, path=path)
                assert g["data"] == data
                cb.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
                cb.free(g)
        assert reaped(a) == 0 and ca.list("slots")["total"] == 0
        assert b.stop() == 0 and a.stop() == 0


def test_a_lease_lives_as_long_as_it_should_and_no_longer():
    with verbs_node("a", 1, rendezvous__lease_timeout="4s") as a, verbs_node("b", 2) as b:
        ca, cb = a.client(), b.client()
        know(cb, a)
        h = ca.put(pattern(1 << 20), refs=9)
        with stepping():
            cb.call(RELEASE, worker=h[0], local=h[1], lease_id=cb.get(h, path=RDMA)["lease_id"])
            raw = Raw(a, cb.worker)
            began = time.monotonic()
            raw.acquire(h)
            eventually(lambda: reaped(a) == 1, seconds=30, what="the reaper")
            in_time(time.monotonic() - began, 4)
            raw.close()
        b.stop()
        a.stop()


def test_a_slot_lives_as_long_as_it_should():
    with Daemon("a") as d:
        c = d.client()
        with stepping():
            began = time.monotonic()
            h = c.put(b"short", ttl_ns=3 * 10**9)
            keeps = c.put(b"long", ttl_ns=3600 * 10**9)
            assert c.get(h)["data"] == b"short"
            eventually(lambda: c.list("slots")["total"] == 1, seconds=30, what="its end")
            in_time(time.monotonic() - began, 3)
            assert c.get(keeps)["data"] == b"long"
        assert d.stop() == 0


def test_deadlines_come_when_they_should():
    mute = socket.socket()
    mute.bind(("127.0.0.1", 0))
    mute.listen(8)
    with Daemon("a", tcp__handshake_timeout="2s") as d:
        c = d.client()
        with stepping():
            def get():
                try:
                    c.get((4242, 1), host="127.0.0.1", port=mute.getsockname()[1], timeout_ns=2 * 10**9)
                    raise AssertionError("an owner that says nothing")
                except Refused as e:
                    assert e.rc in (-110, -113), e
            in_time(elapsed(get)[0], 2)
            rvctl_get = lambda: rvctl(d, "stat", "--timeout", "2s", "rv://127.0.0.1:%d/%d" % (mute.getsockname()[1], 7 << 64 | 64))
            took, (rc, _, err) = elapsed(rvctl_get)
            assert rc == 5, (rc, err)
            in_time(took, 2)
            s = socket.create_connection(("127.0.0.1", d.tcp))
            s.settimeout(60)
            in_time(elapsed(lambda: s.recv(1))[0], 2)
        assert d.stop() == 0
    mute.close()


def test_who_waits_for_a_region_waits_as_long_as_it_said():
    with Daemon("a", ucx=True, shutdown__drop_dereg_timeout="1h") as d:
        s = Lib(d.socket)
        fd = os.memfd_create("t", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, pattern(1 << 20))
        fcntl.fcntl(fd, 1033, 2)
        r = s.region(fd, 0, 1 << 20)
        h = r.stage(0, 1 << 20)
        c = d.client()
        view = c.get(h)
        watch = r.watch()
        with stepping():
            took, how = elapsed(lambda: r.unregister(2))
            in_time(took, 2)
            print("# %s after %.2f s" % ("drained" if how == DRAINED else "timed out", took))
            assert watch.released(30), "it never came back"
        watch.free()
        c.free(view)
        s.close()
        d.stop()


def test_a_drain_takes_as_long_as_it_may():
    # A lease whose key cannot be revoked is waited for.
    with Daemon("a", ucx=True, shutdown__timeout="3s", rendezvous__lease_timeout="1h") as a:
        h = a.client().put(pattern(1 << 20))
        p = RawPeer(a.tcp)
        assert b"Rdma" in p.call("_rv_acquire", {"handle": handle(h), "rdma": {"backends": ["ucx"]}})[1]
        with stepping():
            took, code = elapsed(a.stop)
        assert code == 3, (code, a.text())
        in_time(took, 3)
        p.close()


def test_the_progress_of_a_long_get_goes_on():
    data = pattern(12 << 20)
    with Daemon("a", tcp__listen=HOSTS[1][0] + ":0") as a, Daemon("b", tcp__listen=HOSTS[2][0] + ":0") as b:
        h = a.client().put(data)
        sh("tc", "qdisc", "add", "dev", "v0", "root", "netem", "rate", "16mbit")
        master, slave = pty.openpty()
        stepped = False
        try:
            p = subprocess.Popen([RVCTL, "--socket", b.socket, "get", "--path", "chunked", "-o", "/dev/shm/out",
                                  "rv://%s:%d/%d" % (HOSTS[1][0], a.tcp, h[0] << 64 | h[1])], stdin=subprocess.DEVNULL, stderr=slave)
            os.close(slave)
            text, drawn_after = b"", 0
            while True:
                ready, _, _ = select.select([master], [], [], 60)
                assert ready, text
                try:
                    piece = os.read(master, 65536)
                except OSError:
                    break
                if not piece:
                    break
                text += piece
                if stepped:
                    drawn_after += piece.count(b"fetching")
                elif b"fetching" in text:
                    time.clock_settime(time.CLOCK_REALTIME, time.time() - 5 * 3600)
                    stepped = True
            assert p.wait() == 0, text
            assert stepped and drawn_after >= 3, (drawn_after, text)
            with open("/dev/shm/out", "rb") as f:
                assert f.read() == data
        finally:
            if stepped:
                time.clock_settime(time.CLOCK_REALTIME, time.time() + 5 * 3600)
            sh("tc", "qdisc", "del", "dev", "v0", "root")
        assert b.stop() == 0 and a.stop() == 0


if __name__ == "__main__":
    if "RDMA_VM" not in os.environ:
        sys.exit("this runs inside scripts/rdma-vm")
    main(globals())
