#!/usr/bin/env python3
"""What the contract promises beyond a stock node: wrong handles told apart, liars refused, deadlines for chunks."""
from rawpeer import *
from rvdtest import *

OWNER = 4711


def get_from(b, script, sees=None, **f):
    """One get from a scripted owner, which stays until it saw @sees: (refusal or None, reply, what the owner saw)."""
    o = RawOwner(script)
    c = b.client()
    try:
        rep = c.get((OWNER, 1), host="127.0.0.1", port=o.port, timeout_ns=f.pop("timeout_ns", 20 * 10**9), **f)
        c.free(rep)
        return None, rep, o.seen
    except Refused as e:
        return e, None, o.seen
    finally:
        if sees:
            eventually(lambda: any(n == sees for n, _ in o.seen), what="the owner's " + sees)
        o.close()
        # The next owner has the same WorkerId: it is dialed once this one's connection is known to be gone.
        eventually(lambda: all(p["state"] != "up" for p in c.list("peers")["peers"]), what="the connection's end")
        c.close()


def ready(total, size, count, lease=5, transfer=6):
    return (b'{"Ready":{"lease_id":%d,"transfer_id":%d,"total_len":%d,"chunk_size":%d,"chunk_count":%d}}' %
            (lease, transfer, total, size, count))


def rss_kib(d):
    for line in open("/proc/%d/status" % d.proc.pid):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def test_an_owner_whose_numbers_do_not_add_up_is_refused_before_memory_is_taken():
    with Daemon("b", memory__plain_bytes_budget="1GiB") as b:
        before = rss_kib(b)
        for body in [ready(2**60, 524288, 1), ready(2**63, 524288, 2**32 - 1), ready(1000, 0, 1), ready(1000, 0, 0),
                     ready(1000, 524288, 0), ready(1000, 524288, 2), ready(0, 524288, 1), ready(2**64 - 1, 2**32 - 1, 1),
                     ready(1 << 20, 2**32 - 1, 1), ready(1 << 20, 1, 1 << 20)[:-20], b"", b"null", b"{}", b'{"Ready":{}}',
                     ready(10, 10, 1)[:-1] + b',"x":1}', b'{"Rdma":{"lease_id":1,"descriptor":[1,2],"lease_timeout_ms":1}}',
                     b"[" * 100000]:
            e, rep, seen = get_from(b, lambda name, _: (True, body))
            assert e and e.rc in (-71, -28), (body[:60], e, rep)
            assert e.text and "\n" not in e.text
        assert rss_kib(b) - before < 32 * 1024
        assert not b.client().list("status")["used_bytes"]
        assert b.stop() == 0


def test_an_owner_whose_lease_was_granted_in_vain_gets_it_back():
    with Daemon("b") as b:
        _, _, seen = get_from(b, lambda name, _: (True, ready(1000, 524288, 7)), sees="_rv_detach")
        assert ("_rv_detach", b'{"handle":{"hi":%d,"lo":1},"lease_id":5}' % OWNER) in seen
        assert b.stop() == 0


def test_short_long_and_failed_chunks_never_make_an_ok():
    data = pattern(1 << 20)
    chunks = [data[:524288], data[524288:]]

    def owner(spoil):
        def script(name, body):
            if name == "_rv_acquire":
                return True, ready(1 << 20, 524288, 2)
            i = json.loads(body)["chunk_index"]
            return spoil(i, chunks[i])
        return script

    with Daemon("b") as b:
        e, rep, _ = get_from(b, owner(lambda i, c: (True, c)))
        assert not e and rep["data"] == data
        for spoil, rc in [(lambda i, c: (True, c[:-1] if i else c), -71), (lambda i, c: (True, c + b"x" if not i else c), -71),
                          (lambda i, c: (True, b"") if i else (True, c), -71),
                          (lambda i, c: (False, b"chunk not found: transfer_id=6") if i else (True, c), -121),
                          (lambda i, c: None if i else (True, c), -110)]:
            e, rep, _ = get_from(b, owner(spoil), sees="_rv_detach", timeout_ns=10**9)
            assert e and e.rc == rc, (rc, e)
        c = b.client()
        eventually(lambda: not c.list("status")["used_bytes"], what="the destinations")
        assert b.stop() == 0


def get_path(c, h, **where):
    rep = c.get(h, **where)
    c.free(rep)
    return rep["path"]


def test_a_descriptor_broken_at_any_byte_falls_back_to_chunks():
    data = pattern(70000)
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        h = ca.put(data, refs=10000)
        p = RawPeer(a.tcp)
        good = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": {"backends": ["ucx"]}})[1])["Rdma"]
        # Somebody in the middle: the consumer learns the true owner's RDMA address, and gets another's answers.
        state = {}
        hello = p.call("_hello", {"peer_info": {"instance_id": "00112233-4455-4677-8899-aabbccddeeff", "worker_address": list(
            b"\x81\xa3tcp\xc4\x12\x91\x95\xa0\xa9127.0.0.1\xcd\x15\xb3\x20\xc0")}})[1]
        wire = good["descriptor"]

        def script(name, body):
            if name == "_rv_acquire":
                if json.loads(body)["rdma"] is None:
                    return True, ready(len(data), 524288, 1)
                d = state["descriptor"]
                return True, json.dumps({"Rdma": {"lease_id": 3, "descriptor": d, "lease_timeout_ms": 30000}}).encode()
            return True, data

        o = RawOwner(script)
        info = json.loads(hello)
        info["handlers"].remove("_rvd_get")
        true = bytes(info["peer_info"]["worker_address"])
        info["peer_info"]["worker_address"] = list(
            b"\x83\xa3tcp\xc4\x12\x91\x95\xa0\xa9127.0.0.1\xcd" + struct.pack(">H", o.port) + b"\x20\xc0" +
            true[true.index(b"\xa3ucx"):])
        o.hello = json.dumps(info).encode()
        where = dict(host="127.0.0.1", port=o.port)
        state["descriptor"] = wire
        eventually(lambda: get_path(cb, h, **where) == 2, what="the endpoint")
        for n in range(len(wire)):
            for bad in (wire[:n], wire[:n] + [wire[n] ^ 255] + wire[n + 1:]):
                if bad[3:27] != wire[3:27] and len(bad) == len(wire):
                    continue  # another address or length is the owner's word and cannot be told from a good one
                state["descriptor"] = bad
                rep = cb.get(h, **where)
                assert rep["data"] == data and rep["path"] == 1, (n, rep["path_name"])
                cb.free(rep)
        assert cb.list("status")["paths"]["decode_error"] > 20
        state["descriptor"] = wire
        rep = cb.get(h, **where)
        assert rep["data"] == data and rep["path"] == 2
        o.close(), p.close()


def test_an_answer_with_a_descriptor_to_an_acquire_without_an_offer_is_an_error():
    with Daemon("b") as b:
        e, _, seen = get_from(b, lambda name, _: (
            True, b'{"Rdma":{"lease_id":9,"descriptor":[1,1,0],"lease_timeout_ms":30000}}'), sees="_rv_detach")
        assert e and e.rc == -71 and "no offer" in e.text, e
        assert [n for n, _ in seen].count("_rv_acquire") == 1
        assert b.stop() == 0


def test_six_wrong_handles_give_six_errors():
    opts = dict(rendezvous__lease_timeout="200ms")
    with Daemon("a", ucx=True, **opts) as a, Daemon("b", ucx=True) as b:
        ca = a.client()
        ref = lambda h, d=a: "rv://127.0.0.1:%d/%d" % (d.tcp, h[0] << 64 | h[1])
        never = (ca.worker, 5)
        released = ca.put(b"r")
        assert rvctl(b, "release", ref(released))[0] == 0
        expired = ca.put(b"e", ttl_ns=10**7)
        eventually(lambda: ca.list("slots")["total"] == 0)
        other = (12345678901, released[1])
        before = (ca.worker, released[1])
        texts = {}
        with tempfile.TemporaryDirectory() as tmp:
            out = os.path.join(tmp, "out")
            open(out, "w").write("untouched")

            def fetch(name, h, want=4):
                rc, _, err = rvctl(b, "get", ref(h), "-o", out)
                assert rc == want, (name, rc, err)
                assert open(out).read() == "untouched" and os.listdir(tmp) == ["out"]
                texts[name] = err.strip()

            fetch("never", never)
            fetch("released", released)
            fetch("expired", expired)
            fetch("other", other)
            assert a.stop() == 0
            a.restart()
            fetch("restarted", before)
        assert ": released" in texts["released"] and ": expired" in texts["expired"], texts
        assert ": other owner" in texts["other"] and ": owner restarted" in texts["restarted"], texts
        assert len({t.split("local=")[1].split(")")[1] for t in texts.values()}) == 5, texts
        # The sixth is a lease that is lost: an error of its own, and exit 1.
        ca = a.client()
        h = ca.put(pattern(70000))
        p = RawPeer(a.tcp)
        g = json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": {"backends": ["ucx"]}})[1])["Rdma"]
        eventually(lambda: ca.list("leases")["total"] == 0)
        ok, text = p.call("_rv_lease_renew", {"handle": handle(h), "lease_id": g["lease_id"]}, kind=SYNC)
        assert ok is False and text.endswith(b": lease lost"), text


def acquire(p, h, headers=b""):
    return json.loads(p.call("_rv_acquire", {"handle": handle(h), "rdma": None}, headers=headers)[1])["Ready"]


def test_a_chunked_lease_has_a_deadline_where_one_is_set_or_asked_for():
    for config, headers in ((dict(rendezvous__chunk_lease_timeout="300ms"), b""), ({}, lease_ms(300))):
        with Daemon("a", **config) as a:
            c = a.client()
            h = c.put(pattern(5 << 20))
            p = RawPeer(a.tcp)
            g = acquire(p, h, headers)
            for i in range(8):  # pulls keep it
                time.sleep(0.1)
                assert p.call("_rv_pull", {"transfer_id": g["transfer_id"], "chunk_index": i % g["chunk_count"]})[0]
            began = time.monotonic()
            p.close()
            eventually(lambda: c.list("slots")["total"] == 0, what="the slot's end")
            assert time.monotonic() - began < 0.45 + 0.5 * SLOW
            assert a.metrics()['rvd_leases_reaped_total{kind="chunked"}'] == 1
            assert not c.list("status")["used_bytes"]
            assert a.stop() == 0


def test_a_chunked_lease_without_one_stays():
    with Daemon("a") as a:
        c = a.client()
        h = c.put(pattern(1 << 20))
        p = RawPeer(a.tcp)
        for junk in (b"", lease_ms(0), b"\x81\xac_rv_lease_ms\xa2xy"):
            acquire(p, h, junk)
        p.close()
        time.sleep(1)
        assert c.list("status")["leases"]["chunked"] == 3
        assert a.stop() == 0


def test_staging_64_mib_a_thousand_times_stays_in_registered_memory():
    with Daemon("a", ucx=True) as a:
        c = a.client()
        for i in range(1000):
            x = c.call(ALLOC, len=64 << 20)
            assert x["pinned"] and not x["refusal"], (i, x)
            r = c.call(COMMIT, token=x["token"], len=64 << 20)
            c.call(DROP, worker=r["worker"], local=r["local"])
        assert c.list("status")["paths"]["budget"] == 0
        assert a.stop() == 0


def test_verify_proves_the_content_on_both_paths():
    with Daemon("a", ucx=True, rendezvous__verify="xxh3") as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        for size in (1, 262144, 262145, 3000001):
            data = pattern(size)
            h = ca.put(data, refs=2)
            for path in (ANY, CHUNKED):
                rep = cb.get(h, host="127.0.0.1", port=a.tcp, path=path)
                assert rep["data"] == data
                cb.free(rep)
                cb.call(RELEASE, worker=h[0], local=h[1], lease_id=rep["lease_id"])
        # A program that writes into what it has staged is found out.
        x = ca.call(ALLOC, len=100000, flags=SHARED)
        import mmap
        with mmap.mmap(ca.arenas[x["arena"]], x["arena_len"]) as m:
            m[x["off"]:x["off"] + 100000] = pattern(100000)
            r = ca.call(COMMIT, token=x["token"], len=100000, refs=5)
            h = r["worker"], r["local"]
            rep = cb.get(h, path=RDMA)
            assert rep["data"] == pattern(100000)
            cb.free(rep)
            m[x["off"] + 99999] ^= 1
        for path in (RDMA, CHUNKED):
            try:
                cb.get(h, path=path)
                raise AssertionError("changed bytes were called OK")
            except Refused as e:
                assert e.rc == -74 and "xxh3" in e.text, e
        cb.close()
        eventually(lambda: not any(ca.list("status")["leases"].values()), what="the leases' end")


def test_an_owner_that_lies_about_the_content_is_found_out():
    data = pattern(700000)

    def script(name, body):
        if name == "_rv_acquire":
            return True, ready(len(data), 524288, 2)[:-2] + b',"xxh3":12345}}'
        i = json.loads(body)["chunk_index"]
        return True, data[i * 524288:(i + 1) * 524288]

    with Daemon("b") as b:
        e, _, seen = get_from(b, script)
        assert e and e.rc == -74, e
        c = b.client()
        eventually(lambda: not c.list("status")["used_bytes"])
        assert b.stop() == 0


if __name__ == "__main__":
    main(globals())
