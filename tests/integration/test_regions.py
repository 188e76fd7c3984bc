#!/usr/bin/env python3
"""Memory that programs register themselves: staged where it is, fetched both ways, given back in every way."""
import fcntl
import mmap

from rawpeer import *
from rvdtest import *
from rvlib import *

F_ADD_SEALS, SHRINK, GROW, WRITE_SEAL = 1033, 2, 4, 8
PAGE = 4096


def memfd(data, seals=SHRINK):
    fd = os.memfd_create("rv-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, len(data))
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:done + (64 << 20)], done)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def regions(d):
    return json.loads(rvctl(d, "regions", "--json")[1])["regions"]


def put_refused(lib_, fd, off, n, rc, word):
    try:
        lib_.region(fd, off, n)
    except RvError as e:
        assert e.rc == rc and word in str(e), e
        os.fstat(fd)  # still the caller's
        return
    raise AssertionError("a region of %d bytes at %d was taken" % (n, off))


def know(b, a):
    b.call(PEER_ADD, host="127.0.0.1", port=a.tcp)


def test_ranges_of_a_region_arrive_on_both_paths():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        data = pattern(3 << 20)
        s, c = Lib(a.socket), b.client()
        fd = memfd(data)
        r = s.region(fd, 5000, 2 << 20)
        assert r.effective() == (4096, (2 << 20) + PAGE)
        try:
            os.fstat(fd)
            raise AssertionError("the descriptor was not taken over")
        except OSError:
            pass
        know(c, a)
        # Offsets count from what the caller named, not from the page.
        for off, n in ((0, 2 << 20), (0, 1), (100001, 600000), ((2 << 20) - 1, 1)):
            h = r.stage(off, n, refs=2)
            assert r.pinned
            want = data[5000 + off:5000 + off + n]
            for path in (CHUNKED, RDMA if n >= 65536 else ANY):
                g = c.get(h, path=path)
                assert g["data"] == want, "wrong bytes"
                c.free(g)
                c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        h = r.stage(17, 0)
        assert c.get(h)["data"] == b""
        # Bytes that share the region's pages, but were not named, cannot be staged.
        for off, n in ((2 << 20, 1), ((2 << 20) - 1, 2), (0, (2 << 20) + 1), (1 << 63, 1), (1, (1 << 64) - 1)):
            try:
                r.stage(off, n)
                raise AssertionError("staged beyond the region")
            except RvError as e:
                assert e.rc == -34, e
        m = a.metrics()
        assert m['velo_rdma_registrations_total{kind="external"}'] == 1
        assert m['velo_rendezvous_operations_total{operation="register_region",status="ok"}'] == 5
        assert regions(a)[0]["state"] == "open" and regions(a)[0]["pinned_bytes"] == (2 << 20) + PAGE
        assert r.unregister(5) == DRAINED
        assert regions(a) == []
        # A session, its regions given back, costs nothing.
        s.close()
        assert a.stop() == 0 and b.stop() == 0


def test_what_could_be_cut_short_is_refused_and_stays_the_callers():
    with Daemon("a", ucx=True, memory__registered_bytes_budget="32MiB") as a:
        s = Lib(a.socket)
        before = a.metrics()["velo_rdma_registered_bytes"]
        put_refused(s, memfd(b"x" * PAGE, seals=0), 0, PAGE, -1, "F_SEAL_SHRINK")
        put_refused(s, memfd(b"x" * PAGE, seals=GROW), 0, PAGE, -1, "F_SEAL_SHRINK")
        put_refused(s, memfd(b"x" * PAGE, seals=SHRINK | WRITE_SEAL), 0, PAGE, -1, "writable")
        ro = memfd(b"x" * PAGE)
        put_refused(s, os.open("/proc/self/fd/%d" % ro, os.O_RDONLY), 0, PAGE, -1, "writable")
        with tempfile.TemporaryFile() as f:
            f.write(b"x" * PAGE)
            f.flush()
            put_refused(s, f.fileno(), 0, PAGE, -1, "memfd")
        put_refused(s, os.pipe()[0], 0, PAGE, -1, "memfd")
        fd = memfd(b"x" * 10000)
        for off, n in ((0, 10001), (10000, 1), (1 << 63, 1), (1, (1 << 64) - 1)):
            put_refused(s, fd, off, n, -34, "within its file")
        put_refused(s, memfd(b"\0" * (33 << 20)), 0, 33 << 20, -28, "registered_bytes_budget")
        # Without a descriptor nothing is registered; of many one is kept, and none leaks.
        c = a.client()
        fds = lambda: len(os.listdir("/proc/%d/fd" % a.proc.pid))
        nr = fds()
        try:
            c.call(REGION_REGISTER, len=PAGE)
            raise AssertionError("a region without a memfd")
        except Refused as e:
            assert e.rc == -9, e
        for _ in range(50):
            head = REQ.pack(c.next_id, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, b"", b"")
            c.next_id += 1
            socket.send_fds(c.sock, [struct.pack(">HBII", MAGIC, METADATA, len(head), 0) + head], [fd] * 100)
            assert c.recv()["rc"] < 0
        assert fds() <= nr + 1, "descriptors leak: %d, then %d" % (nr, fds())
        c.close()
        eventually(lambda: fds() < nr)
        assert regions(a) == [] and a.metrics()["velo_rdma_registered_bytes"] == before
        assert a.metrics()['velo_rendezvous_operations_total{operation="register_region",status="error"}'] == 0
        r = s.region(fd, 0, 10000)
        s.close()
        eventually(lambda: regions(a) == [])
        assert a.stop() == 0


def test_the_kill_switch_does_not_concern_staging_in_a_region():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        data = pattern(1 << 20)
        s, c = Lib(a.socket), b.client()
        r = s.region(memfd(data), 0, len(data))
        assert rvctl(a, "kill-switch", "on")[0] == 0
        h = r.stage(0, len(data))
        assert r.pinned, "it was copied to plain memory"
        know(c, a)
        g = c.get(h)
        assert g["data"] == data and g["path"] == 1, "an owner whose switch is on answered with a descriptor"
        c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        assert r.unregister(5) == DRAINED
        s.close()
        assert a.stop() == 0 and b.stop() == 0


def test_unregister_waits_for_what_is_staged():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        data = pattern(1 << 20)
        s, c = Lib(a.socket), b.client()
        r = s.region(memfd(data), 0, len(data))
        h = r.stage(0, len(data))
        w = r.watch()
        assert not w.released()
        know(c, a)
        done = []
        import threading
        t = threading.Thread(target=lambda: done.append(r.unregister(30)))
        t.start()
        eventually(lambda: regions(a)[0]["state"] == "draining")
        # What was staged before is still served, but no key is given out any more.
        g = c.get(h)
        assert g["data"] == data and g["path"] == 1, g["path_name"]
        assert not done and not w.released()
        c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        t.join()
        assert done == [DRAINED] and w.released(5)
        w.free()
        assert regions(a) == []
        s.close()
        assert a.stop() == 0 and b.stop() == 0


def test_out_of_time_the_memory_goes_and_its_slots_are_refused():
    with Daemon("a", ucx=True, rendezvous__lease_timeout="60s") as a, Daemon("b", ucx=True) as b:
        data = pattern(2 << 20)
        s, c = Lib(a.socket), b.client()
        fd = memfd(data)
        mine = mmap.mmap(fd, len(data))
        r = s.region(fd, 0, len(data))
        w = r.watch()
        h = r.stage(0, len(data))
        p = RawPeer(a.tcp)
        t = json.loads(p.call("_rv_acquire", {"handle": handle(h)})[1])["Ready"]
        ok, chunk = p.call("_rv_pull", {"transfer_id": t["transfer_id"], "chunk_index": 0})
        assert ok and chunk == data[:t["chunk_size"]]
        before = a.metrics()["velo_rdma_registered_bytes"]
        assert r.unregister(0.2) == DRAIN_TIMED_OUT and w.released(5)
        assert a.metrics()["velo_rdma_registered_bytes"] == before - len(data)
        mine[:] = b"\xee" * len(data)  # it is ours again, and nobody may see what it is used for now
        ok, text = p.call("_rv_pull", {"transfer_id": t["transfer_id"], "chunk_index": 1})
        assert not ok and b"chunk not found" in text and b"deregistered" in text, (ok, text[:200])
        know(c, a)
        m = c.call(METADATA, worker=h[0], local=h[1])
        assert m["len"] == len(data)
        label = 'velo_rendezvous_rdma_path_total{path="chunked",reason="not_pinned"}'
        was = a.metrics()[label]
        again = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": {"backends": ["ucx"]}})[1])
        assert "Ready" in again, "a key of memory that is gone was given out"
        assert a.metrics()[label] == was + 1, "the eighth check did not see it"
        try:
            c.get(h)
            raise AssertionError("a get of memory that is gone was OK")
        except Refused as e:
            assert "deregistered" in str(e), e
        local = a.client()
        try:
            local.get(h)
            raise AssertionError("a local get of memory that is gone was OK")
        except Refused as e:
            assert e.rc == -2 and "given back" in str(e), e
        local.call(DROP, worker=h[0], local=h[1])
        w.free()
        s.close()
        eventually(lambda: regions(a) == [])
        assert a.stop() == 0 and b.stop() == 0


def test_a_dropped_region_goes_in_the_background_with_a_warning():
    with Daemon("a", ucx=True, shutdown__drop_dereg_timeout="300ms") as a:
        s = Lib(a.socket)
        data = pattern(300000)
        r = s.region(memfd(data), 0, len(data))
        h = r.stage(0, len(data))
        w = r.watch()
        began = time.monotonic()
        r.drop()
        assert time.monotonic() - began < 0.25 * SLOW, "dropping a region waited"
        assert not w.released()
        assert w.released(10)
        w.free()
        assert "was dropped without rv_region_unregister()" in a.text()
        s.close()
        eventually(lambda: json.loads(rvctl(a, "slots", "--json")[1])["slots"] == [])
        assert a.stop() == 0


def test_a_client_that_dies_with_a_region_leaves_nothing():
    with Daemon("a", ucx=True, shutdown__drop_dereg_timeout="300ms") as a, Daemon("b", ucx=True) as b:
        data = pattern(1 << 20)
        pid = os.fork()
        if not pid:
            try:
                s = Lib(a.socket)
                r = s.region(memfd(data), 0, len(data))
                h = r.stage(0, len(data), keep=True)  # kept only if the region were handed over
                open(os.path.join(a.dir, "handle"), "w").write("%d %d" % h)
                os.rename(os.path.join(a.dir, "handle"), os.path.join(a.dir, "ready"))
                time.sleep(600)
            finally:
                os._exit(1)
        eventually(lambda: os.path.exists(os.path.join(a.dir, "ready")))
        h = tuple(int(x) for x in open(os.path.join(a.dir, "ready")).read().split())
        c = b.client()
        know(c, a)
        g = c.get(h)
        assert g["data"] == data
        before = a.metrics()["velo_rdma_registered_bytes"]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        eventually(lambda: a.metrics()["velo_rdma_registered_bytes"] == before - len(data))
        assert "has ended with 1 regions registered" in a.text()
        try:
            c.get(h)
            raise AssertionError("the memory of a dead program was served")
        except Refused as e:
            pass
        c.close()
        local = a.client()
        local.call(DROP, worker=h[0], local=h[1])
        eventually(lambda: regions(a) == [])
        assert a.stop() == 0 and b.stop() == 0


def test_put_region_hands_the_memory_over():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b, tempfile.TemporaryDirectory() as tmp:
        data = pattern(5 << 20)
        src, out = os.path.join(tmp, "src"), os.path.join(tmp, "out")
        open(src, "wb").write(data)
        for how in ("file", "pipe"):
            if how == "file":
                rc, ref, err = rvctl(a, "put", src, "--region", "--refs", "2")
            else:
                rc, ref, err = rvctl(a, "put", "-", "--region", "--refs", "2", data=data)
            assert rc == 0, err
            assert [(r["state"], r["in_flight"]) for r in regions(a)] == [("kept", 1)], "it went with rvctl"
            ref = ref.decode().strip()
            rc, _, err = rvctl(b, "get", ref, "--path", "chunked", "-o", out)
            assert rc == 0 and open(out, "rb").read() == data, err
            # It is registered for as long as something is staged there, and so read by RDMA.
            rc, _, err = rvctl(b, "get", ref, "--path", "rdma", "-o", out)
            assert rc == 0 and open(out, "rb").read() == data, err
            eventually(lambda: regions(a) == [], what="the end of the region with its slot")
        rc, ref, err = rvctl(a, "put", "-", "--region", data=b"")
        assert rc == 0 and rvctl(b, "get", ref.decode().strip(), "-o", "-")[1] == b"", err
        assert rvctl(a, "put", src, "--region", "--plain")[0] == 2
        rc, out, err = rvctl(a, "regions")
        assert rc == 0 and b"STATE" in out, err
        assert a.stop() == 0 and b.stop() == 0


def test_a_local_get_of_a_region_is_a_copy():
    with Daemon("a", ucx=True) as a:
        data = pattern(700000)
        s, c = Lib(a.socket), a.client()
        fd = memfd(data)
        mine = mmap.mmap(fd, len(data))
        r = s.region(fd, 0, len(data))
        h = r.stage(0, len(data))
        g = c.get(h)
        assert g["data"] == data
        mine[:] = b"\xee" * len(data)
        assert c.view(g) == data, "a client was shown another one's memory"
        c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        assert r.unregister(5) == DRAINED
        assert c.view(g) == data
        c.free(g)
        s.close()
        assert a.stop() == 0


def test_regions_without_rdma_are_served_in_chunks():
    with Daemon("a", memory__plain_bytes_budget="64MiB") as a, Daemon("b") as b:
        data = pattern(3 << 20)
        s, c = Lib(a.socket), b.client()
        r = s.region(memfd(data), 4097, (2 << 20))
        h = r.stage(3, 1 << 20)
        assert not r.pinned
        know(c, a)
        g = c.get(h)
        assert g["data"] == data[4100:4100 + (1 << 20)]
        c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        put_refused(s, memfd(b"\0" * (65 << 20)), 0, 65 << 20, -28, "plain_bytes_budget")
        assert r.unregister(5) == DRAINED
        s.close()
        assert a.stop() == 0 and b.stop() == 0


def test_verify_covers_regions():
    with Daemon("a", ucx=True, rendezvous__verify="xxh3") as a, Daemon("b", ucx=True) as b:
        data = bytearray(pattern(1 << 20))
        s, c = Lib(a.socket), b.client()
        fd = memfd(bytes(data))
        mine = mmap.mmap(fd, len(data))
        r = s.region(fd, 0, len(data))
        h = r.stage(0, len(data), refs=2)
        know(c, a)
        g = c.get(h)
        assert g["data"] == bytes(data)
        c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
        mine[12345] ^= 1
        for path in (CHUNKED, ANY):
            try:
                c.get(h, path=path)
                raise AssertionError("changed bytes were OK")
            except Refused as e:
                assert "differ" in str(e) or "xxh3" in str(e) or "verify" in str(e), e
        eventually(lambda: json.loads(rvctl(a, "leases", "--json")[1])["leases"] == [])
        s.close()
        eventually(lambda: regions(a) == [])


def test_a_shutdown_gives_regions_back_and_says_so():
    with Daemon("a", ucx=True) as a:
        s = Lib(a.socket)
        data = pattern(1 << 20)
        r = s.region(memfd(data), 0, len(data))
        h = r.stage(0, len(data))
        w = r.watch()
        p = RawPeer(a.tcp)
        t = json.loads(p.call("_rv_acquire", {"handle": handle(h)})[1])["Ready"]
        assert p.call("_rv_pull", {"transfer_id": t["transfer_id"], "chunk_index": 0})[0]
        a.proc.send_signal(signal.SIGTERM)
        assert w.released(20), "a client was not told at shutdown"
        assert a.proc.wait(timeout=30 * SLOW) == 0, a.text()
        w.free()
        s.close()


def test_a_watch_of_a_killed_daemon_does_not_say_released():
    with Daemon("a", ucx=True) as a:
        s = Lib(a.socket)
        r = s.region(memfd(b"x" * PAGE), 0, PAGE)
        w = r.watch()
        a.kill()
        try:
            w.released(5)
            raise AssertionError("a dead daemon released a region")
        except RvError as e:
            assert e.rc == -107, e
        w.free()
        s.close()


if __name__ == "__main__":
    main(globals())
