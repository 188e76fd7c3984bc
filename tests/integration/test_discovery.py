#!/usr/bin/env python3
"""Finding peers: the file that nodes share, and a real etcd: then a handle alone is enough."""
from etcd import Etcd, in_etcd
from rvdtest import *

FOUND_NOTHING = "nothing of it is found where nodes are looked up"


def in_file(path, **more):
    return dict(discovery__kind="file", discovery__path=path, **more)


def decimal(h):
    return str(h[0] << 64 | h[1])


def everything_by_handle_alone(a, b):
    """Every command that takes a handle, on a node that has never heard of the owner."""
    data = pattern(300000, 5)
    ca, cb = a.client(), b.client()
    h = ca.put(data, refs=5)
    rc, out, err = rvctl(b, "stat", decimal(h), "--json")
    assert rc == 0 and json.loads(out)["total_len"] == len(data), err
    path = os.path.join(b.dir, "out")
    rc, _, err = rvctl(b, "get", decimal(h), "-o", path)
    assert rc == 0 and open(path, "rb").read() == data, err
    rep = cb.get(h)
    assert rep["data"] == data
    cb.call(DETACH, worker=h[0], local=h[1], lease_id=rep["lease_id"])
    cb.free(rep)
    cb.call(REF, worker=h[0], local=h[1])
    assert rvctl(b, "release", decimal(h))[0] == 0
    assert ca.call(METADATA, worker=h[0], local=h[1])["refcount"] == 4
    ca.call(DROP, worker=h[0], local=h[1])
    try:
        cb.get(h)
        raise AssertionError("a dropped slot was served")
    except Refused as e:
        assert e.rc == -2 and "not found" in str(e), e


def test_a_handle_alone_is_enough_with_a_shared_file():
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        with Daemon("a", **in_file(path)) as a, Daemon("b", **in_file(path)) as b:
            peers = json.load(open(path))["peers"]
            assert sorted(p["worker_id"] for p in peers) == sorted(d.client().worker for d in (a, b))
            everything_by_handle_alone(a, b)
            everything_by_handle_alone(b, a)
            assert a.stop() == 0 and b.stop() == 0
        assert json.load(open(path)) == {"peers": []}
        assert os.listdir(tmp) == ["peers.json"], os.listdir(tmp)


def test_what_is_not_found_is_told_and_costs_nothing():
    with tempfile.TemporaryDirectory() as tmp:
        with Daemon("b", **in_file(os.path.join(tmp, "peers.json"))) as b:
            c = b.client()
            for _ in range(50):
                c.send(GET, worker=4711, local=1)
                c.send(METADATA, worker=4712, local=1)
            for _ in range(100):
                rep = c.recv()
                assert rep["rc"] == -113 and FOUND_NOTHING in rep["payload"].decode(), rep
            rc, _, err = rvctl(b, "get", decimal((4711, 1)), "-o", os.path.join(tmp, "x"))
            assert rc == 5 and FOUND_NOTHING in err, (rc, err)
            rc, _, err = rvctl(b, "send", "4711", "echo", data=b"x")
            assert rc == 5, (rc, err)
            assert b.stop() == 0


def test_a_file_that_changes_is_seen_and_what_is_wrong_in_it_is_not_believed():
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        with Daemon("a") as a, Daemon("b", **in_file(path)) as b:
            ca, cb = a.client(), b.client()
            h = ca.put(b"hello", refs=3)
            info = json.loads(rvctl(a, "peer-info")[1])
            mine = json.load(open(path))["peers"]
            entry = dict(info, worker_id=ca.worker)

            def say(peers, **more):
                text = json.dumps(dict({"peers": peers}, **more))
                open(path + ".new", "w").write(text)
                os.rename(path + ".new", path)

            def refused():
                try:
                    cb.call(METADATA, worker=h[0], local=h[1])
                except Refused as e:
                    return str(e)
                raise AssertionError("it was believed")
            good = checksum(info["worker_address"])
            for bad in (dict(entry), dict(entry, address_checksum=good + 1), dict(entry, address_checksum=good, worker_id=ca.worker + 1),
                        dict(entry, address_checksum=good, worker_address=info["worker_address"][:-1]),
                        dict(entry, address_checksum=good, instance_id="0" * 36), "x", 7, None):
                say(mine + [bad])
                assert FOUND_NOTHING in refused(), bad
            # Not JSON at all: it is left as it is, and said once.
            open(path, "w").write("{ no json")
            assert "cannot be looked up" in refused()
            time.sleep(1.5)
            assert open(path).read() == "{ no json"
            say([dict(entry, address_checksum=good, zone="left alone")], note={"by": "somebody"})
            assert cb.call(METADATA, worker=h[0], local=h[1])["len"] == 5
            # Whoever rewrote it forgot us: we are there again, and what we do not know is kept.
            eventually(lambda: any(p["worker_id"] == cb.worker for p in json.load(open(path))["peers"]), what="our entry")
            now = json.load(open(path))
            assert now["note"] == {"by": "somebody"} and any(p.get("zone") == "left alone" for p in now["peers"]), now
            os.unlink(path)
            eventually(lambda: os.path.exists(path) and len(json.load(open(path))["peers"]) == 1, what="the file again")
            assert b.text().count("cannot be found") == 1, b.text()
            assert b.stop() == 0 and a.stop() == 0


def checksum(address):
    """XXH3-64, as the daemon has it: by a file that it wrote."""
    import ctypes
    lib = ctypes.CDLL("libxxhash.so.0")
    lib.XXH3_64bits.restype = ctypes.c_uint64
    return lib.XXH3_64bits(bytes(address), ctypes.c_size_t(len(address)))


def test_many_nodes_that_start_at_once_all_get_in():
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        daemons = [Daemon("n%d" % i, wait=False, **in_file(path)) for i in range(6)]
        try:
            for d in daemons:
                d.wait_ready()
            want = sorted(d.client().worker for d in daemons)
            eventually(lambda: sorted(p["worker_id"] for p in json.load(open(path))["peers"]) == want, what="all of them")
            assert all(d.stop() == 0 for d in daemons)
            assert json.load(open(path))["peers"] == []
        finally:
            for d in daemons:
                d.close()


def test_a_killed_node_is_replaced_by_its_next_life():
    """Its old entry goes when it starts again with the same state."""
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        with Daemon("a", **in_file(path)) as a:
            old = a.client().worker
            a.kill()
            assert [p["worker_id"] for p in json.load(open(path))["peers"]] == [old]
            a.restart()
            assert [p["worker_id"] for p in json.load(open(path))["peers"]] == [a.client().worker] != [old]
            assert a.stop() == 0


def run_once(*options):
    with tempfile.TemporaryDirectory() as tmp:
        args = ["tcp.listen=127.0.0.1:0", "metrics.listen=none", "ucx.enabled=no", "verbs.enabled=no", "local.socket=%s/s" % tmp,
                "node.state_dir=%s/state" % tmp, "node.runtime_dir=" + tmp] + list(options)
        p = subprocess.run([os.path.join(BUILD, "tools/rvd")] + [x for a in args for x in ("-s", a)], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=60)
        return p.returncode, p.stderr.decode()


def test_a_file_that_cannot_be_used_is_an_error_at_the_start():
    with tempfile.TemporaryDirectory() as tmp:
        for path, text, why in [(tmp, None, "no discovery file"), (tmp + "/no/such/folder", None, "cannot open"), (tmp + "/bad", "{", "no discovery file"),
                                (tmp + "/list", "[]", "no discovery file"), (tmp + "/other", '{"peers":7}', "no discovery file")]:
            if text is not None:
                open(path, "w").write(text)
            rc, err = run_once("discovery.kind=file", "discovery.path=" + path)
            assert rc == 1 and why in err and path in err and "serves as" not in err, (path, rc, err)
            if text is not None:
                assert open(path).read() == text
        for options, why in [(["discovery.kind=file"], "needs discovery.path"), (["discovery.kind=etcd"], "needs discovery.endpoints")]:
            rc, err = run_once(*options)
            assert rc == 2 and why in err, (rc, err)


def test_who_finds_the_file_locked_starts_and_gets_in_later():
    import fcntl
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "peers.json")
        with open(path, "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with Daemon("a", **in_file(path)) as a:
                assert "this node cannot be found: %s: cannot lock: somebody else holds it" % path in a.text(), a.text()
                assert os.path.getsize(path) == 0
                held.close()
                eventually(lambda: os.path.getsize(path) and [p["worker_id"] for p in json.load(open(path))["peers"]] == [a.client().worker],
                           what="its entry")
                assert "can be found again" in a.text()
                assert a.stop() == 0


def test_a_handle_alone_is_enough_with_etcd():
    with Etcd() as etcd:
        with Daemon("a", **in_etcd(etcd)) as a, Daemon("b", **in_etcd(etcd)) as b:
            want = sorted("/rvd/peers/%d" % d.client().worker for d in (a, b))
            assert sorted(etcd.keys()) == want
            everything_by_handle_alone(a, b)
            everything_by_handle_alone(b, a)
            assert a.stop() == 0
            assert list(etcd.keys()) == ["/rvd/peers/%d" % b.client().worker]
            assert b.stop() == 0
        assert etcd.keys() == {}


def test_a_dead_node_disappears_from_etcd_and_others_keep_apart():
    with Etcd() as etcd:
        with Daemon("a", **in_etcd(etcd)) as a, Daemon("b", **in_etcd(etcd)) as b, Daemon("c", **in_etcd(etcd, discovery__prefix="/other/")) as c:
            h = a.client().put(b"x")
            try:
                c.client().call(METADATA, worker=h[0], local=h[1])
                raise AssertionError("found behind another prefix")
            except Refused as e:
                assert FOUND_NOTHING in str(e), e
            # A value that is not the node's is not believed.
            import base64
            for value in (b"", b"{", etcd.keys()["/rvd/peers/%d" % b.client().worker]):
                etcd.call("/v3/kv/put", {"key": base64.b64encode(b"/other/%d" % h[0]).decode(), "value": base64.b64encode(value).decode()})
                try:
                    c.client().call(METADATA, worker=h[0], local=h[1])
                    raise AssertionError("believed: %r" % value)
                except Refused as e:
                    assert "is not its PeerInfo" in str(e), e
            a.kill()
            eventually(lambda: len(etcd.keys()) == 1, seconds=60, what="the end of a dead node's lease")
            assert b.stop() == 0 and c.stop() == 0


def test_an_etcd_that_goes_and_comes_back_is_found_again():
    with Etcd() as etcd:
        etcd.stop()
        with Daemon("a", **in_etcd(etcd)) as a, Daemon("b", **in_etcd(etcd, discovery__endpoints="127.0.0.1:1,127.0.0.1:%d" % etcd.client)) as b:
            assert "this node cannot be found: etcd at http://127.0.0.1:%d does not answer" % etcd.client in a.text(), a.text()
            h = a.client().put(b"hello")
            try:
                b.client().call(METADATA, worker=h[0], local=h[1])
                raise AssertionError("found without etcd")
            except Refused as e:
                assert "does not answer" in str(e), e
            etcd.start()
            eventually(lambda: len(etcd.keys()) == 2, seconds=60, what="both of them")
            assert b.client().call(METADATA, worker=h[0], local=h[1])["len"] == 5
            assert a.text().count("this node cannot be found") == 1 and "can be found again" in a.text()
            # It comes back with nothing: their leases are gone, and they notice.
            etcd.stop()
            shutil.rmtree(os.path.join(etcd.dir, "data"))
            etcd.start()
            eventually(lambda: len(etcd.keys()) == 2, seconds=60, what="both of them, again")
            etcd.stop()
            began = time.monotonic()
            assert a.stop() == 0 and b.stop() == 0
            assert "stays until its lease ends" in a.text()
            assert time.monotonic() - began < 60


if __name__ == "__main__":
    main(globals())
