#!/usr/bin/env python3
"""`_rvd_get`: short payloads that come with the answer, their content and leases; and who asks for them by hand."""
from rawpeer import *
from rvdtest import *

MOST = 65536
SIZES = [0, 1, 2, 1023, 1024, 1025, 4096, 4097, 32768, 32769, 65535, 65536, 65537, 131072]
THEN_DETACH, THEN_RELEASE = 4, 8
DETACHED = 'velo_rendezvous_operations_total{operation="detach",status="ok"}'
RELEASED = 'velo_rendezvous_operations_total{operation="release",status="ok"}'
PULLED = 'velo_rendezvous_rdma_path_total{path="chunked",reason="no_offer"}'


def packed(s):
    return bytes([0xa0 | len(s)]) + s if len(s) < 32 else bytes([0xd9, len(s)]) + s


def headers(*pairs):
    """A msgpack map of text, in this order; a key may come twice."""
    return bytes([0x80 | len(pairs)]) + b"".join(packed(k.encode()) + packed(v.encode()) for k, v in pairs)


def header_map(data):
    """What headers() makes, as a dict."""
    out, at = {}, 1
    for _ in range(data[0] & 15 if data else 0):
        pair = []
        for _ in range(2):
            n, at = (data[at] & 31, at + 1) if data[at] != 0xd9 else (data[at + 1], at + 2)
            pair.append(data[at:at + n].decode())
            at += n
        out[pair[0]] = pair[1]
    return out


def one(i, h):
    return struct.pack("<QQQ", i, *h)


def test_many_gets_in_one_request():
    """Each is answered like a get of its own; what cannot be read as a list of them is refused and changes nothing."""
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        where = dict(host="127.0.0.1", port=a.tcp)
        data = [pattern(n, n & 255) for n in (1, 0, 1000, 70000, 5)]
        handles = [ca.put(d) for d in data] + [(ca.worker, 12345), (0, 1)]
        for most in (1, len(handles), 128):
            ask = [handles[i % len(handles)] for i in range(most)]
            cb.send(GET_MANY, b"".join(one(1000 + i, h) for i, h in enumerate(ask)), flags=THEN_DETACH, **where)
            got = {}
            for _ in ask:
                rep = cb.recv()
                assert rep["op"] == GET | REPLY and rep["id"] not in got, rep
                got[rep["id"]] = rep
            for i, h in enumerate(ask):
                rep, want = got[1000 + i], handles.index(h)
                if want >= len(data):
                    assert rep["rc"] == -2, rep
                    continue
                assert rep["rc"] == 0 and rep["lease_id"] == 0, rep
                assert (cb.view(rep) if rep["token"] else b"") == data[want]
                cb.free(rep)
        h = handles[0]
        for payload, flags in ((b"", 0), (one(1, h)[:-1], 0), (one(1, h) + b"x", 0), (one(1, h) * 129, 0), (one(1, h), INTO)):
            try:
                cb.call(GET_MANY, payload, flags=flags, **where)
                raise AssertionError("taken: %d bytes, flags %d" % (len(payload), flags))
            except Refused as e:
                assert e.rc == -22, e
        eventually(lambda: a.client().list("leases")["total"] == 0, what="no lease")
        eventually(lambda: not cb.list("status")["used_bytes"], what="no bytes")
        assert b.stop() == 0 and a.stop() == 0


def get_raw(p, h, *pairs, **kw):
    """`_rvd_get` by hand: (ok, headers of the answer, payload)."""
    rid = p.request("_rvd_get", {"handle": handle(h), "rdma": None}, headers=headers(*pairs) if pairs else b"", **kw)
    while True:
        kind, header, payload = p.read()
        if kind == RESPONSE and header[:16] == rid:
            n = struct.unpack("<H", header[17:19])[0]
            return header[16] == 0, header_map(header[19:19 + n]), payload
        if kind == ACK and header[1:17] == rid:
            return header[0] == 0, None, payload


def test_many_sizes_between_two_nodes():
    with Daemon("a", rendezvous__verify="xxh3") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        where = dict(host="127.0.0.1", port=a.tcp)
        warm = ca.put(b"x", refs=2)  # the first get finds no memory to take bytes ahead
        rep = cb.get(warm, flags=THEN_RELEASE, **where)
        assert rep["data"] == b"x" and not rep["lease_id"]
        cb.free(rep)
        for size in SIZES:
            data = pattern(size, size & 255)
            h = ca.put(data, refs=2)
            for flags in (0, KEEP, THEN_DETACH, THEN_RELEASE):
                rep = cb.get(h, flags=flags, **where)
                assert rep["data"] == data and rep["len"] == size, "wrong bytes at size %d" % size
                assert rep["path_name"] == "chunked tcp"
                assert bool(rep["lease_id"]) == (flags in (0, KEEP)), (size, flags, rep)
                cb.free(rep)
                if rep["lease_id"]:
                    cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
            eventually(lambda: cb.call(METADATA, worker=h[0], local=h[1])["refcount"] == 1, what="the release")
            out = os.path.join(b.dir, "out")
            rc, _, err = rvctl(b, "get", "rv://127.0.0.1:%d/%d" % (a.tcp, h[0] << 64 | h[1]), "-o", out)
            assert rc == 0, err
            assert open(out, "rb").read() == data
            try:
                cb.call(METADATA, worker=h[0], local=h[1])
                raise AssertionError("rvctl's release has not come, at size %d" % size)
            except Refused as e:
                assert e.rc == -2, e
        eventually(lambda: not any(ca.list("status")["leases"].values()), what="the leases' end")
        assert ca.list("slots")["total"] == 1
        eventually(lambda: not cb.list("status")["used_bytes"], what="the destinations' end")
        assert a.stop() == 0 and b.stop() == 0


def test_bytes_whose_lease_ends_with_them_need_no_word_more():
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        cb.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
        short, long = ca.put(pattern(MOST)), ca.put(pattern(MOST + 1))

        def get(h, flags=THEN_DETACH):
            rep = cb.get(h, flags=flags)
            cb.free(rep)
            return rep

        def counted(fn, n):
            before = a.metrics()
            for _ in range(n):
                fn()
            eventually(lambda: not any(ca.list("status")["leases"].values()))
            after = a.metrics()
            return [after.get(k, 0) - before.get(k, 0) for k in (DETACHED, PULLED)]

        get(long)
        assert counted(lambda: get(long), 10) == [10, 10]
        assert counted(lambda: get(short), 10) == [0, 10]
        # Into memory that is too short: nothing comes, and nothing is left.
        def refused():
            try:
                cb.call(GET, worker=short[0], local=short[1], flags=2 | THEN_DETACH, len=MOST - 1)
                raise AssertionError("it fits")
            except Refused as e:
                assert e.rc == -34, e
        assert counted(refused, 10) == [10, 10]
        assert a.stop() == 0 and b.stop() == 0


def test_a_kept_lease_holds_nobody_up_and_ends_when_it_is_detached():
    with Daemon("a") as a, Daemon("b") as b:
        ca, cb = a.client(), b.client()
        cb.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
        h = ca.put(pattern(1000))
        cb.free(cb.get(h, flags=THEN_DETACH))
        kept = cb.get(h, flags=KEEP)
        cb.free(kept)
        cb.close()
        cb = b.client()
        assert kept["lease_id"]
        rc, out, err = rvctl(a, "leases", "--json")
        assert rc == 0, err
        assert json.loads(out)["total"] == 1 and str(kept["lease_id"]) in out.decode(), out
        for _ in range(100):  # others come and go
            cb.free(cb.get(h, flags=THEN_DETACH))
        assert ca.list("leases")["total"] == 1
        try:
            cb.call(DETACH, worker=h[0], local=h[1], lease_id=kept["lease_id"] ^ 1 << 40)
        except Refused:
            pass
        assert ca.list("leases")["total"] == 1
        cb.call(DETACH, worker=h[0], local=h[1], lease_id=kept["lease_id"])
        eventually(lambda: ca.list("leases")["total"] == 0, what="the lease's end")
        assert ca.list("slots")["total"] == 1
        kept = cb.get(h, flags=KEEP)  # and a slot ends though a lease is kept
        cb.free(kept)
        ca.call(DROP, worker=h[0], local=h[1])
        eventually(lambda: ca.list("leases")["total"] == 0 and not ca.list("status")["used_bytes"], what="the slot's end")
        assert a.stop() == 0 and b.stop() == 0


def test_a_slot_of_this_node_ends_its_lease_too():
    with Daemon("a") as a:
        c = a.client()
        for size in (0, 1000, 2000000):
            h = c.put(pattern(size), refs=2)
            for flags, refs in ((THEN_DETACH, 2), (THEN_RELEASE, 1), (THEN_RELEASE, None)):
                rep = c.get(h, flags=flags)
                assert rep["data"] == pattern(size) and rep["path_name"] == "local"
                assert not rep["lease_id"], (size, flags)
                c.free(rep)
                if refs:
                    eventually(lambda: c.call(METADATA, worker=h[0], local=h[1])["refcount"] == refs)
        eventually(lambda: c.list("slots")["total"] == 0 and not any(c.list("status")["leases"].values()))
        assert a.stop() == 0


def test_who_asks_by_hand_gets_what_the_headers_say():
    with Daemon("a") as a:
        c, p = a.client(), RawPeer(a.tcp)
        assert '"_rvd_get"' in p.call("_list_handlers")[1].decode()
        slots = {n: (c.put(pattern(n), refs=1000), pattern(n)) for n in (0, 1, 1000, MOST, MOST + 1)}
        B, E = "_rvd_bytes", "_rvd_ends"
        # Pairs; the payload's length; whether it comes; whether it has a lease.
        for pairs, n, come, leased in [
                ([(B, "1000"), (E, "1")], 1000, True, False), ([(B, "1000")], 1000, True, True),
                ([(B, "999"), (E, "1")], 1000, False, True), ([(B, "0"), (E, "1")], 0, False, True),
                ([(B, "1"), (E, "1")], 0, True, False), ([], 1, False, True), ([(E, "1")], 1, False, True),
                ([(B, str(2**64 - 1)), (E, "1")], MOST, True, False), ([(B, str(2**64 - 1)), (E, "1")], MOST + 1, False, True),
                ([(B, str(2**64)), (E, "1")], 1, False, True), ([(B, "9" * 200), (E, "1")], 1, False, True),
                ([(B, ""), (E, "1")], 1, False, True), ([(B, "many"), (E, "1")], 1, False, True),
                ([(B, "-1"), (E, "1")], 1, False, True), ([(B, "1e3"), (E, "1")], 1, False, True),
                ([(B, "0"), (B, "1000"), (E, "1")], 1000, True, False), ([(B, "1000"), (B, "0"), (E, "1")], 1000, False, True),
                ([(B, "1000"), (E, "1"), (E, "0")], 1000, True, True), ([(B, "1000"), (E, "junk")], 1000, True, True),
                ([(B, "1000"), (E, "1"), ("_rv_lease_ms", "junk"), ("traceparent", "00-1-2-00")], 1000, True, False)]:
            h, data = slots[n]
            ok, head, payload = get_raw(p, h, *pairs)
            assert ok, (pairs, payload)
            if come:
                assert payload == data and list(head) == ["_rvd_lease"], (pairs, head)
                assert (head["_rvd_lease"] != "0") == leased, (pairs, head)
                lease = int(head["_rvd_lease"])
            else:
                assert not head, (pairs, head)
                ready = json.loads(payload)["Ready"]
                assert ready["total_len"] == n
                lease = ready["lease_id"]
            assert c.list("status")["leases"]["chunked"] == (lease != 0)
            if lease:
                assert p.call("_rv_detach", {"handle": handle(h), "lease_id": lease}, kind=SYNC)[0]
        # Nobody would learn of a lease: none is granted.
        assert p.call("_rvd_get", {"handle": handle(slots[1][0]), "rdma": None}, kind=SYNC, headers=headers((B, "10"))) == (
            True, b"")
        p.request("_rvd_get", {"handle": handle(slots[1][0]), "rdma": None}, kind=FIRE, headers=headers((B, "10")))
        # Bodies and handles that are none, and headers that are none at all.
        assert not get_raw(p, (slots[1][0][0], 4711 << 8), (B, "10"))[0]
        assert not get_raw(p, (slots[1][0][0] + 1, slots[1][0][1]), (B, "10"))[0]
        ok, text = p.call("_rvd_get", b"{", headers=headers((B, "10")))
        assert not ok and text.startswith(b"Failed to deserialize input: ")
        for junk in (b"\x81", b"\xc1", b"\x81\xaa_rvd_bytes\x0a", b"\xff" * 100, headers((B, "10"))[:-1]):
            p.request("_rvd_get", {"handle": handle(slots[1][0]), "rdma": None}, headers=junk)  # dropped without an answer
        assert p.call("_rv_metadata", {"handle": handle(slots[1][0])})[0]
        assert not any(c.list("status")["leases"].values())
        assert a.stop() == 0


def test_the_hash_comes_along_where_the_owner_verifies():
    with Daemon("a", rendezvous__verify="xxh3") as a:
        c, p = a.client(), RawPeer(a.tcp)
        h = c.put(pattern(1000), refs=10)
        ok, head, payload = get_raw(p, h, ("_rvd_bytes", "1000"), ("_rvd_ends", "1"))
        assert ok and payload == pattern(1000)
        assert json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None})[1])["Ready"]["xxh3"] == int(head["_rvd_xxh3"])
        assert a.stop() == 0


def test_a_peer_that_does_not_read_its_bytes_is_held_up_and_leaves_nothing():
    with Daemon("a") as a:
        c = a.client()
        h = c.put(pattern(MOST), refs=5)
        p = RawPeer(a.tcp)
        p.sock.settimeout(1)
        asked = 0
        try:
            while asked < 200000:  # it is paused long before
                p.request("_rvd_get", {"handle": handle(h), "rdma": None}, headers=headers(("_rvd_bytes", str(MOST))))
                asked += 1
        except (socket.timeout, BlockingIOError):
            pass
        assert asked < 200000
        assert c.list("status")["used_bytes"] < 2 << 20
        other = RawPeer(a.tcp)  # and nobody else waits for it
        ok, _, payload = get_raw(other, h, ("_rvd_bytes", str(MOST)), ("_rvd_ends", "1"))
        assert ok and payload == pattern(MOST)
        c.call(DROP, worker=h[0], local=h[1])
        assert c.list("status")["used_bytes"] == MOST  # what is on its way out is still held
        p.close()
        eventually(lambda: not c.list("status")["used_bytes"] and not any(c.list("status")["leases"].values()),
                   what="the bytes' end")
        assert a.stop() == 0


def test_an_owner_that_does_not_list_it_is_not_asked_for_bytes():
    data = pattern(1000)

    def script(name, body):
        if name == "_rv_acquire":
            return True, (b'{"Ready":{"lease_id":5,"transfer_id":6,"total_len":%d,"chunk_size":524288,"chunk_count":1}}' %
                          len(data))
        return True, data

    with Daemon("b") as b:
        for hello, name in ((b'{"handlers":["_rv_acquire"]}', "_rv_acquire"),
                            (b'{"handlers":["_rv_acquire","_rvd_get"]}', "_rvd_get")):
            o = RawOwner(lambda n, body: script("_rv_acquire" if n == "_rvd_get" else n, body), hello=hello)
            c = b.client()
            for _ in range(2):  # the first finds no place for bytes
                rep = c.get((4711, 1), host="127.0.0.1", port=o.port, flags=THEN_DETACH)
                assert rep["data"] == data and not rep["lease_id"]
                c.free(rep)
            asked = [n for n, _ in o.seen if n in ("_rv_acquire", "_rvd_get")]
            assert asked[-1] == name, asked
            eventually(lambda: [n for n, _ in o.seen].count("_rv_detach") == 2, what="the leases' ends")
            o.close()
            eventually(lambda: all(p["state"] != "up" for p in c.list("peers")["peers"]), what="the connection's end")
            c.close()
        assert b.stop() == 0


if __name__ == "__main__":
    main(globals())
