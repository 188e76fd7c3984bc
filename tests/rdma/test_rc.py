#!/usr/bin/env python3
"""UCX rc_v on real verbs devices (Soft-RoCE): keys checked by the device, peers that die, links that fail.

Runs inside scripts/rdma-vm."""
import fcntl
import re

from rdmatest import *
from rvlib import *

OK = 'velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'


def get(c, h, **f):
    g = c.get(h, **f)
    c.free(g)
    c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
    return g


def test_8_mib_three_times_each_way():
    data = pattern(8 << 20)
    with node("a", 1) as a, node("b", 2) as b:
        assert "ucx rc_verbs rxe0:1, self-check ok" in a.text(), a.text()
        assert "GETs are software" not in a.text(), "a device that reads memory was taken for an emulated one"
        ca, cb = a.client(), b.client()
        know(cb, a, 1)
        know(ca, b, 2)
        for owner, reader in ((ca, cb), (cb, ca)):
            for _ in range(3):
                h = owner.put(data)
                g = get(reader, h, path=RDMA)
                assert g["data"] == data, "wrong bytes"
                assert g["path_name"].startswith("ucx rc_verbs"), g["path_name"]
        assert a.metrics()[OK] == 6 and b.metrics()[OK] == 6
        for size, path in ((65535, 1), (65536, 2), (65537, 2), (1, 1)):
            h = ca.put(data[:size])
            g = get(cb, h)
            assert g["data"] == data[:size] and g["path"] == path, (size, g["path_name"])
        assert a.stop() == 0 and b.stop() == 0


def test_a_region_is_read_by_the_device_and_its_key_ends_with_it():
    data = pattern(4 << 20)
    with node("a", 1, rendezvous__lease_timeout="60s") as a, node("b", 2) as b:
        s, c = Lib(a.socket), b.client()
        know(c, a)
        fd = os.memfd_create("t", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, data)
        fcntl.fcntl(fd, 1033, 2)
        r = s.region(fd, 12345, 3 << 20)
        h = r.stage(1000, 2 << 20, refs=2)
        assert r.pinned
        g = get(c, h, path=RDMA)
        assert g["data"] == data[13345:13345 + (2 << 20)]
        before = b.metrics()
        assert r.unregister(0.1) == DRAIN_TIMED_OUT
        try:
            get(c, h)
            raise AssertionError("memory that was given back was read")
        except Refused as e:
            assert "deregistered" in str(e), e
        assert b.metrics()[OK] == before[OK]
        h = a.client().put(data)
        assert get(c, h, path=RDMA)["data"] == data, "the connection did not survive"
        a.client()
        s.close()
        assert b.stop() == 0


def test_a_consumer_killed_while_it_reads_is_reaped():
    data = pattern(24 << 20)
    with node("a", 1, rendezvous__lease_timeout="2s", rendezvous__quarantine="1s") as a, node("b", 2) as b:
        owner, c = a.client(), b.client()
        know(c, a)
        get(c, owner.put(data[:1 << 20]), path=RDMA)
        h = owner.put(data)
        c.send(GET, worker=h[0], local=h[1], path=RDMA)
        eventually(lambda: owner.list("leases")["leases"])
        b.kill()
        eventually(lambda: not owner.list("slots")["slots"], 5, "the end of the lease")
        assert a.metrics()['velo_rendezvous_rdma_leases_reaped_total'] == 1
        eventually(lambda: owner.list("arenas")["resting_blocks"] == 0, 5, "the end of the rest")
        with node("b2", 2) as b2:
            c = b2.client()
            know(c, a)
            h = owner.put(data[:1 << 20])
            assert get(c, h, path=RDMA)["data"] == data[:1 << 20]
        assert a.stop() == 0


def test_an_owner_killed_while_it_is_read_is_an_error_and_not_the_end():
    data = pattern(24 << 20)
    with node("a", 1) as a, node("b", 2) as b:
        c = b.client()
        know(c, a)
        get(c, a.client().put(data[:1 << 20]), path=RDMA)
        h = a.client().put(data)
        c.send(GET, worker=h[0], local=h[1], path=RDMA, timeout_ns=int(20e9 * SLOW))
        time.sleep(0.1)
        a.kill()
        began = time.monotonic()
        rep = c.recv()
        assert rep["rc"] < 0, "a get from a dead owner was OK"
        print("# the dead owner was noticed after %.1f s: %s" % (time.monotonic() - began, rep["payload"].decode()), flush=True)
        assert time.monotonic() - began < 10 * SLOW
        with node("a2", 1) as a2:
            know(c, a2)
            h = a2.client().put(data)
            assert get(c, h, path=RDMA)["data"] == data
            assert a2.stop() == 0
        eventually(lambda: all(x["blocks"] == 0 for x in c.list("arenas")["arenas"]), 20, "every block back")
        assert b.stop() == 0


def test_a_link_that_is_down_for_two_seconds_costs_time_and_no_bytes():
    data = pattern(16 << 20)
    with node("a", 1, rendezvous__call_timeout="120s") as a, node("b", 2, rendezvous__call_timeout="120s") as b:
        owner, c = a.client(), b.client()
        c.sock.settimeout(300)
        know(c, a)
        get(c, owner.put(data[:1 << 20]), path=RDMA)
        h = owner.put(data)
        t = link_down(after=0.2, seconds=2)
        try:
            g = c.get(h, timeout_ns=int(100e9))
            assert g["data"] == data, "wrong bytes"
        except Refused:
            pass  # an error is an answer; wrong bytes would not be
        t.join()
        # Whatever became of it, the next ones arrive, in the end by RDMA again.
        h = owner.put(data[:1 << 20], refs=200)

        def again():
            try:
                g = get(c, h, path=RDMA, timeout_ns=int(10e9))
                return g["data"] == data[:1 << 20]
            except Refused:
                return False
        eventually(again, 10, "RDMA after the link came back")


def test_damaged_keys_never_crash_a_consumer():
    p = subprocess.run([os.path.join(BUILD, "tests", "unit", "test_ucx_fabric"), "damaged_keys*"], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=300, env=dict(os.environ, RV_TEST_UCX_NATIVE="1", UCX_MEM_EVENTS="n",
                                                                     UCX_NET_DEVICES="rxe0:1"))
    out = (p.stdout + p.stderr).decode(errors="replace")
    assert p.returncode == 0 and "PASSED  ] 1 test" in out, out[-2000:]
    print("# " + re.search(r"\d+ keys: .*", out).group(0), flush=True)


def test_with_packets_lost_every_byte_arrives():
    data = pattern(2 << 20)
    with node("a", 1) as a, node("b", 2) as b:
        owner, c = a.client(), b.client()
        know(c, a)
        get(c, owner.put(data), path=RDMA)
        sh("tc", "qdisc", "add", "dev", "v0", "root", "netem", "loss", "2%")
        try:
            for _ in range(3):
                g = get(c, owner.put(data))
                assert g["data"] == data, "wrong bytes"
        finally:
            sh("tc", "qdisc", "del", "dev", "v0", "root")
        assert get(c, owner.put(data))["data"] == data


if __name__ == "__main__":
    if "RDMA_VM" not in os.environ:
        sys.exit("this runs inside scripts/rdma-vm")
    main(globals())
