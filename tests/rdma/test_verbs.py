#!/usr/bin/env python3
"""The verbs backend on real devices (Soft-RoCE): bytes, keys that end with their lease, hostile readers, peers that die.

Runs inside scripts/rdma-vm."""
import atexit
import fcntl
import json
import re
import socket
import struct
import threading

from rdmatest import *
from rvlib import *
from hostile import Raw, hostile

OK = 'velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'
PATH = {1: "verbs rxe0:1 gid 1", 2: "verbs rxe1:1 gid 1"}


def get(c, h, **f):
    g = c.get(h, **f)
    c.free(g)
    c.call(RELEASE, worker=h[0], local=h[1], lease_id=g["lease_id"])
    return g


PAIRS = {}


def pair(name, **options):
    """Two nodes, and a session with each, that know each other; made once, and stopped by the last test."""
    if name not in PAIRS:
        a, b = verbs_node("a", 1, **options), verbs_node("b", 2, **options)
        atexit.register(a.close)
        atexit.register(b.close)
        PAIRS[name] = a, b, a.client(), b.client()
        PAIRS[name][3].sock.settimeout(60 * SLOW)
        know(PAIRS[name][3], a, 1)
        know(PAIRS[name][2], b, 2)
    return PAIRS[name]


def lasting():
    return pair("lasting", rendezvous__call_timeout="120s")


def short_leases():
    return pair("short", rendezvous__lease_timeout="4s", rendezvous__quarantine="1h", shutdown__timeout="300ms")


def test_every_size_both_ways():
    data = pattern(64 << 20)
    a, b, ca, cb = lasting()
    assert "verbs: %s, fence region" % PATH[1] in a.text(), a.text()
    # Soft-RoCE revokes windows but does not check their bounds: the test at start finds it out.
    assert "verbs: no windows: it lets peers read over a window's end" in a.text(), a.text()
    assert "verbs: listening on 10.9.0.1:%s" % a.ports["verbs"] in a.text(), a.text()
    for owner, reader, end in ((ca, cb, 2), (cb, ca, 1)):
        for size in (65536, 65537, 1 << 20, (8 << 20) + 1, 64 << 20):
            h = owner.put(data[:size])
            g = get(reader, h, path=RDMA, timeout_ns=int(60e9))
            assert g["data"] == data[:size], "wrong bytes"
            assert g["path_name"] == PATH[end], g["path_name"]
            if size == 64 << 20:
                print("# 64 MiB in %.1f s" % (g["elapsed_ns"] / 1e9), flush=True)
    assert a.metrics()[OK] == 10 and b.metrics()[OK] == 10
    assert re.search(r'rvd_build_info\{.*verbs="fence region"\}', str(a.metrics()))
    eps = ca.list("endpoints")["endpoints"]
    assert [(e["path"], e["state"], e["emulated"]) for e in eps] == [(PATH[1], "up", False)], eps


def test_hostile_accesses_are_refused_and_harm_nobody():
    data = pattern(1 << 20)
    a, b, ca, cb = lasting()
    with verbs_node("c", 2) as c:
        cc = c.client()
        know(cc, a)
        h = ca.put(data, refs=100)
        assert get(cb, h, path=RDMA)["data"] == data
        raw, other = Raw(a, cc.worker), Raw(a, cb.worker)
        addr, length, key, lease = raw.acquire(h)
        _, _, others, _ = other.acquire(h)
        assert length == len(data) and key != others
        over = b.text().count("is over")

        def attack(what, op, at, n, rkey):
            how, _ = hostile(a, cc.worker, op, at, n, rkey, to=ca.worker)
            print("# %s: %s" % (what, how), flush=True)
            assert "remote access error" in how or "invalid request" in how, (what, how)
            g = cb.get(h, path=RDMA)
            assert g["data"] == data, "the staged bytes changed after " + what
            assert g["path_name"] == PATH[2], g["path_name"]
            cb.free(g)
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=g["lease_id"])

        assert hostile(a, cc.worker, "read", addr, 32, key, to=ca.worker) == ("done", data[:32]), "its own key must work"
        attack("WRITE", "write", addr, 4096, key)
        attack("atomic", "atomic", addr, 8, key)
        attack("READ before the slot", "read", addr - 16, 16, key)
        attack("READ after the slot", "read", addr + length, 16, key)
        attack("READ over the end", "read", addr + length - 16, 32, key)
        attack("another consumer's key", "read", addr, 4096, others)
        attack("a guessed key", "read", addr, 4096, key ^ 0x100)
        assert hostile(a, cc.worker, "read", addr, 32, key, to=ca.worker) == ("done", data[:32]), "the lease is alive yet"
        raw.release(h, lease)
        attack("READ after release", "read", addr, 4096, key)
        # Who is not known, or means somebody else, may not even connect.
        assert hostile(a, 4711, "read", addr, 32, key, to=ca.worker)[0] == "refused 3"
        assert hostile(a, cc.worker, "read", addr, 32, key, to=4711)[0] == "refused 2"
        assert b.text().count("is over") == over, "an honest consumer's connection was broken:\n" + b.text()
        eventually(lambda: "from worker %d is over" % cc.worker in a.text())
        # Whose own connection is broken under it connects anew. The same core's number puts it out.
        hostile(a, cb.worker, "read", addr, 32, key, to=ca.worker, reactor=0)
        eventually(lambda: b.text().count("is over") == over + 1, what="the end of the old connection")
        assert get(cb, h, path=RDMA)["data"] == data
        raw.close()
        other.close()
        ca.call(DROP, worker=h[0], local=h[1])
        assert c.stop() == 0


def test_a_region_is_read_by_the_device_and_its_key_ends_with_it():
    data = pattern(4 << 20)
    a, b, ca, c = lasting()
    s = Lib(a.socket)
    fd = os.memfd_create("t", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, 1033, 2)
    r = s.region(fd, 12345, 3 << 20)
    h = r.stage(1000, 2 << 20, refs=2)
    assert r.pinned
    g = get(c, h, path=RDMA)
    assert g["data"] == data[13345:13345 + (2 << 20)] and g["path_name"] == PATH[2]
    raw = Raw(a, c.worker)
    addr, length, key, _ = raw.acquire(h)
    assert hostile(a, c.worker, "read", addr, 32, key, to=h[0]) == ("done", data[13345:13377])
    assert r.unregister(0.1) == DRAIN_TIMED_OUT
    how, _ = hostile(a, c.worker, "read", addr, 32, key, to=h[0])
    assert "remote access error" in how, how
    try:
        get(c, h)
        raise AssertionError("memory that was given back was read")
    except Refused as e:
        assert "deregistered" in str(e), e
    h = ca.put(data)
    assert get(c, h, path=RDMA)["data"] == data, "the connection did not survive"
    s.close()
    raw.close()


def test_with_packets_lost_every_byte_arrives():
    data = pattern(2 << 20)
    a, b, owner, c = lasting()
    sh("tc", "qdisc", "add", "dev", "v0", "root", "netem", "loss", "1%")
    try:
        for _ in range(2):
            assert get(c, owner.put(data))["data"] == data, "wrong bytes"
    finally:
        sh("tc", "qdisc", "del", "dev", "v0", "root")
    assert get(c, owner.put(data))["data"] == data


def test_a_silent_owner_is_noticed_in_about_a_second():
    """No word comes from it: the device gives up."""
    data = pattern(32 << 20)
    a, b, owner, c = lasting()
    watcher = b.client()
    get(c, owner.put(data[:1 << 20], refs=1))
    h = owner.put(data)
    c.send(GET, worker=h[0], local=h[1], path=RDMA, timeout_ns=int(5e9 * SLOW))
    eventually(lambda: [e for e in watcher.list("endpoints")["endpoints"] if e["gets"]], what="the read")
    sh("tc", "qdisc", "add", "dev", "v0", "root", "netem", "loss", "100%")
    began = time.monotonic()
    try:
        eventually(lambda: "failed: transport retry counter exceeded" in b.text(), 2, "the device's word")
        took = time.monotonic() - began
    finally:
        sh("tc", "qdisc", "del", "dev", "v0", "root")
    print("# the silence was noticed after %.2f s" % took, flush=True)
    assert took < 4, took
    assert c.recv()["rc"] < 0
    h = owner.put(data[:1 << 20])
    assert get(c, h, path=RDMA)["data"] == data[:1 << 20]


def test_a_lease_that_ran_out_cannot_be_read_any_more():
    data = pattern(1 << 20)
    a, b, ca, cb = short_leases()
    get(cb, ca.put(data), path=RDMA)
    h = ca.put(data)
    addr, length, key, _ = Raw(a, cb.worker).acquire(h)
    assert hostile(a, cb.worker, "read", addr, 32, key, to=ca.worker) == ("done", data[:32])
    eventually(lambda: ca.list("leases")["total"] == 0, 3, "the end of the lease")
    # The next tenant gets the memory at once: nobody waits for a quarantine where keys end.
    eventually(lambda: ca.list("arenas")["resting_blocks"] == 0)
    how, got = hostile(a, cb.worker, "read", addr, 32, key, to=ca.worker)
    assert "remote access error" in how and not got, (how, got)


def test_a_shutdown_forces_a_running_read_to_end():
    a, b, ca, cb = short_leases()
    watcher = b.client()
    h = ca.put(pattern(64 << 20))
    cb.send(GET, worker=h[0], local=h[1], path=RDMA)
    eventually(lambda: [e for e in watcher.list("endpoints")["endpoints"] if e["gets"]], what="the read")
    assert b.stop() == 3, b.text()
    assert "out of time: 1 gets" in b.text() and "still registered" not in b.text(), b.text()
    eventually(lambda: "it disconnected" in a.text(), what="the end of its queue pair")
    eventually(lambda: ca.list("leases")["total"] == 0, 3, "the end of the lease")
    assert a.stop() == 0, a.text()
    PAIRS.pop("short")


def test_a_consumer_killed_while_it_reads_is_reaped():
    data = pattern(24 << 20)
    with verbs_node("a", 1, rendezvous__lease_timeout="2s") as a, verbs_node("b", 2) as b:
        owner, c = a.client(), b.client()
        know(c, a)
        get(c, owner.put(data[:1 << 20]), path=RDMA)
        h = owner.put(data)
        c.send(GET, worker=h[0], local=h[1], path=RDMA)
        eventually(lambda: owner.list("leases")["leases"])
        b.kill()
        eventually(lambda: not owner.list("slots")["slots"], 5, "the end of the lease")
        eventually(lambda: owner.list("arenas")["resting_blocks"] == 0, 5, "memory that is free at once")
        eventually(lambda: "is over" in a.text(), 5, "the end of its queue pair")
        with verbs_node("b2", 2) as b2:
            c = b2.client()
            know(c, a)
            h = owner.put(data[:1 << 20])
            assert get(c, h, path=RDMA)["data"] == data[:1 << 20]
        assert a.stop() == 0


def test_an_owner_killed_while_it_is_read_is_an_error_and_not_the_end():
    data = pattern(24 << 20)
    with verbs_node("a", 1) as a, verbs_node("b", 2) as b:
        c, watcher = b.client(), b.client()
        know(c, a)
        get(c, a.client().put(data[:1 << 20]), path=RDMA)
        h = a.client().put(data)
        c.send(GET, worker=h[0], local=h[1], path=RDMA, timeout_ns=int(20e9 * SLOW))
        eventually(lambda: watcher.list("endpoints")["endpoints"][0]["gets"], what="the read")
        a.kill()
        began = time.monotonic()
        rep = c.recv()
        took = time.monotonic() - began
        assert rep["rc"] < 0, "a get from a dead owner was OK"
        print("# the dead owner was noticed after %.2f s: %s" % (took, rep["payload"].decode()), flush=True)
        assert took < 2 * SLOW
        with verbs_node("a2", 1) as a2:
            know(c, a2)
            h = a2.client().put(data[:1 << 20])
            assert get(c, h, path=RDMA)["data"] == data[:1 << 20]
            assert a2.stop() == 0
        eventually(lambda: all(x["blocks"] == 0 for x in c.list("arenas")["arenas"]), 20, "every block back")
        assert b.stop() == 0


def test_a_read_that_is_late_is_given_up_one_lease_later():
    """Its caller has an answer at the deadline; the device writes until the queue pair is gone, and no longer. A key that
    ended with the lease could end the read before that, so this one does not."""
    data = pattern(1 << 20) * 160
    with verbs_node("a", 1, rendezvous__lease_timeout="300ms", verbs__fence="no") as a, \
            verbs_node("b", 2, memory__initial_arena_bytes="512MiB", memory__dedicated_arena_min="512MiB") as b:
        ca, cb, watcher = a.client(), b.client(), b.client()
        know(cb, a)
        get(cb, ca.put(data[:1 << 20]), path=RDMA)
        h = ca.put(data)
        began = time.monotonic()
        try:
            cb.get(h, path=RDMA, timeout_ns=int(5e8))
            raise AssertionError("a get that could not be in time was OK")
        except Refused as e:
            took = time.monotonic() - began
            print("# answered after %.2f s: %s" % (took, e), flush=True)
            assert took < 2, took
        eventually(lambda: b.metrics()['rvd_endpoints_closed_total{reason="abandoned"}'] == 1, 3, "the end of the read")
        print("# given up after %.2f s" % (time.monotonic() - began), flush=True)
        eventually(lambda: all(x["blocks"] == 0 for x in watcher.list("arenas")["arenas"]), 5, "every block back")
        eventually(lambda: ca.list("leases")["total"] == 0, 5, "the end of the lease")
        eventually(lambda: get(cb, ca.put(data[:1 << 20]))["path_name"] == PATH[2], 5, "RDMA again")
        for n in (b, a):
            assert n.stop() == 0, n.text()


def test_without_a_fence_whole_arenas_are_readable_and_none_is_writable():
    data = pattern(1 << 20)
    with verbs_node("a", 1, verbs__fence="no", tcp__allow="10.9.0.2/32") as a, verbs_node("b", 2) as b:
        assert "fence no" in a.text(), a.text()
        ca, c = a.client(), b.client()
        know(c, a)
        h = ca.put(data, refs=9)
        assert get(c, h, path=RDMA)["path_name"] == PATH[2]
        addr, length, key, _ = Raw(a, c.worker).acquire(h)
        assert hostile(a, c.worker, "read", addr, 32, key, to=ca.worker) == ("done", data[:32])
        assert hostile(a, c.worker, "write", addr, 32, key, to=ca.worker)[0] != "done"
        assert get(c, h, path=RDMA)["data"] == data
        a.kill()


def test_who_is_not_allowed_cannot_connect():
    with verbs_node("a", 1, tcp__allow="10.9.0.1/32") as a:
        assert hostile(a, 5, "read", 4096, 16, 1, to=a.client().worker)[0] == "refused 4"
        assert a.stop() == 0


def ip_tos_of_roce(n, run):
    """The type-of-service bytes of RoCE packets that leave by the consumer's end of the link while run() runs."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.bind(("v1", 0))
    s.settimeout(10 * SLOW)
    seen = set()

    def watch():
        while len(seen) < n:
            p, where = s.recvfrom(4096)
            if where[2] == 4 and p[12:14] == b"\x08\x00" and p[23] == 17 and p[36:38] == struct.pack(">H", 4791):
                seen.add(p[15])
    t = threading.Thread(target=watch, daemon=True)
    t.start()
    run()
    t.join(10 * SLOW)
    s.close()
    return seen


def test_port_gid_and_traffic_class_are_those_that_were_told():
    with Daemon("a", verbs__port=2, verbs__device="rxe0") as a:
        assert "verbs: not used: rxe0 has no port 2" in a.text(), a.text()
        assert a.stop() == 0
    with Daemon("a", verbs__gid_index=77, verbs__device="rxe0") as a:
        assert "verbs: not used: port 1 of rxe0 has no GID 77" in a.text(), a.text()
        assert a.stop() == 0
    with verbs_node("a", 1, verbs__gid_index=1, verbs__traffic_class=0x68) as a, \
            verbs_node("b", 2, verbs__traffic_class=0x68) as b:
        assert "gid 1" in a.text(), a.text()
        c = b.client()
        know(c, a)
        h = a.client().put(pattern(1 << 20), refs=2)
        get(c, h, path=RDMA)
        assert ip_tos_of_roce(1, lambda: get(c, h, path=RDMA)) == {0x68}
        assert b.stop() == 0 and a.stop() == 0


def test_with_ucx_beside_it_verbs_is_what_is_used():
    data = pattern(1 << 20)
    with verbs_node("a", 1, ucx=True) as a, verbs_node("b", 2, ucx=True) as b:
        ca, c = a.client(), b.client()
        know(c, a)
        h = ca.put(data, refs=50)

        def by_verbs():
            g = get(c, h, path=RDMA)
            assert g["data"] == data
            return g["path_name"] == PATH[2]
        eventually(by_verbs, 5, "a get by verbs")
        assert by_verbs()
        assert {e["path"].split()[0] for e in c.list("endpoints")["endpoints"]} == {"verbs", "ucx"}
        assert b.stop() == 0 and a.stop() == 0


def test_without_a_device_of_use_a_daemon_starts_as_before():
    with Daemon("a", verbs__device="mlx5_9") as a:
        assert "verbs: not used: there is no RDMA device mlx5_9" in a.text(), a.text()
        assert "verbs" not in a.ports
        assert a.client().list("status")["fabrics"] == []
        assert a.stop() == 0


def test_nodes_that_went_through_all_this_stop_in_good_order():
    for a, b, _, _ in PAIRS.values():
        assert b.stop() == 0, b.text()
        assert a.stop() == 0, a.text()


def test_a_link_that_is_down_for_two_seconds_costs_time_and_no_bytes():
    """One way only: Soft-RoCE's rdma_cm is deaf for good where a node disconnects while it has no route."""
    data = pattern(16 << 20)
    with verbs_node("a", 1, rendezvous__call_timeout="120s") as a, verbs_node("b", 2, rendezvous__call_timeout="120s") as b:
        owner, c = a.client(), b.client()
        c.sock.settimeout(300)
        know(c, a)
        get(c, owner.put(data[:1 << 20]), path=RDMA)
        h = owner.put(data)
        t = link_down(after=0.2, seconds=2)
        try:
            assert c.get(h, timeout_ns=int(100e9))["data"] == data, "wrong bytes"
        except Refused:
            pass  # an error is an answer; wrong bytes would not be
        t.join()
        assert "port 1 of rxe0 is down" in a.text(), a.text()
        h = owner.put(data[:1 << 20], refs=200)
        began = time.monotonic()

        def again():
            try:
                return get(c, h, path=RDMA, timeout_ns=int(5e9))["data"] == data[:1 << 20]
            except Refused:
                return False
        eventually(again, 4, "RDMA after the link came back")
        print("# RDMA again %.1f s after the link" % (time.monotonic() - began), flush=True)
        assert b.stop() == 0


if __name__ == "__main__":
    if "RDMA_VM" not in os.environ:
        sys.exit("this runs inside scripts/rdma-vm")
    main(globals())
