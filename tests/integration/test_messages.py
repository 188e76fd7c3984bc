#!/usr/bin/env python3
"""Messages between local programs of two nodes: served through librv, called through librv and rvctl."""
import threading

from rawpeer import *
from rvdtest import *

SERVE_ECHO = os.path.join(BUILD, "tests", "integration", "serve_echo")
BIG = pattern(6 << 20)


class EchoServer:
    def __init__(self, daemon):
        self.p = subprocess.Popen([SERVE_ECHO, daemon.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.p.stdout.readline() == b"serving\n"

    def close(self):
        self.p.stdin.close()
        rc = self.p.wait(timeout=30 * SLOW)
        self.p.stdout.close()
        return rc


def test_a_program_serves_and_others_call():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        s = EchoServer(a)
        assert rvctl(b, "peer-add", "aa", "127.0.0.1:%d" % a.tcp)[0] == 0
        names = rvctl(b, "handlers", "aa")[1].decode().split()
        assert names[:2] == ["_hello", "_list_handlers"] and {"echo", "size", "fail"} <= set(names)
        for data in (b"", b"x", BIG[:262144], BIG[:262145], BIG):
            rc, out, err = rvctl(b, "send", "aa", "echo", "-", data=data)
            assert rc == 0 and out == data, (len(data), rc, err)
        worker = b.client().worker
        rc, out, _ = rvctl(b, "send", "127.0.0.1:%d" % a.tcp, "size", "-", data=BIG)
        assert out == b"%d from %d" % (len(BIG), worker)
        assert rvctl(b, "send", "aa", "echo", "-", "--sync", data=BIG)[:2] == (0, b"")
        assert rvctl(b, "send", "aa", "echo", "-", "--fire", data=b"x")[:2] == (0, b"")
        rc, _, err = rvctl(b, "send", "aa", "fail")
        assert rc == 1 and "it failed on purpose" in err and len(err.splitlines()) == 1, err
        rc, _, err = rvctl(b, "send", "aa", "fail", "--sync")
        assert rc == 1 and "it failed on purpose" in err
        rc, _, err = rvctl(b, "send", "aa", "absent")
        assert rc == 1 and "Handler 'absent' not found" in err
        assert rvctl(b, "send", "nobody", "echo")[0] == 5
        rc, _, err = rvctl(b, "send", str(worker), "echo")
        assert rc == 1 and "this node itself" in err, (rc, err)
        rc, _, err = rvctl(b, "handlers", "127.0.0.1:%d" % b.tcp)
        assert rc == 1 and "or is this one" in err, (rc, err)
        assert rvctl(b, "send", "aa", "_rv_pull")[0] in (1, 2)
        assert rvctl(b, "send", "aa", "echo", "--call", "--fire")[0] == 2
        for d in (a, b):
            c = d.client()
            eventually(lambda: not c.list("status")["used_bytes"] and not c.list("status")["slots"], what="every buffer back")
        assert s.close() == 0
        # A daemon that has not had its turn may learn of the request before it learns of the end.
        eventually(lambda: "echo" not in rvctl(b, "handlers", "aa")[1].decode().split(), what="the end of what was served")
        assert a.stop() == 0 and b.stop() == 0


def test_a_handler_that_was_unserved_does_not_run_any_more():
    with Daemon("a") as a, Daemon("b") as b:
        s = EchoServer(a)
        assert rvctl(b, "send", "127.0.0.1:%d" % a.tcp, "slow", "--fire")[0] == 0
        assert s.p.stdout.readline() == b"slow\n"
        assert s.close() == 0
        assert a.stop() == 0 and b.stop() == 0


def test_a_name_has_one_server_and_its_end_is_told():
    with Daemon("a") as a:
        c, d = a.client(), a.client()
        c.call(SERVE, name="one")
        c.call(SERVE, name="one")
        try:
            d.call(SERVE, name="one")
            raise AssertionError
        except Refused as e:
            assert e.rc == -17, e
        for bad in ("", "_x"):
            try:
                d.call(SERVE, name=bad)
                raise AssertionError
            except Refused as e:
                assert e.rc == -22, e
        p = RawPeer(a.tcp)
        ids = [p.request("one", b"q%d" % i) for i in range(3)]
        assert [c.recv()["payload"] for _ in ids] == [b"q0", b"q1", b"q2"]
        c.sock.close()
        for _ in ids:
            kind, header, payload = p.read()
            assert kind == RESPONSE and header[16] == 1 and b"has gone" in payload, payload
        assert p.call("one")[0] is False
        d.call(SERVE, name="one")
        d.close()
        assert a.stop() == 0


def test_kinds_that_do_not_match_are_answered_as_velo_answers():
    with Daemon("a") as a:
        c = a.client()
        c.call(SERVE, name="h")
        p = RawPeer(a.tcp)
        for kind in (FIRE, SYNC, UNARY):
            rid = p.request("h", b"x", kind=kind)
            r = c.recv()
            assert (r["path"], r["id"] != 0) == (kind, kind != FIRE), r
            if r["id"]:
                c.send(ANSWER, b"result", token=r["id"])
                got = p.read()
                assert got[0] == (ACK if kind == SYNC else RESPONSE) and got[2] == (b"" if kind == SYNC else b"result")
                c.send(ANSWER, b"again", token=r["id"])  # an answer given twice is nobody's
        assert p.call("_list_handlers")[0]
        p.close()
        assert a.stop() == 0


def staged(owner_worker, local, budget=None):
    """A headers map with `_rv`, and `_rv_budget_ms`."""
    h = str(owner_worker << 64 | local).encode()
    out = (b"\x82" if budget is not None else b"\x81") + b"\xa3_rv\xd9" + bytes([len(h)]) + h
    if budget is not None:
        v = str(budget).encode()
        out += b"\xad_rv_budget_ms" + bytes([0xa0 | len(v)]) + v
    return out


def peer_info(worker_port, instance="00112233-4455-4677-8899-aabbccddeeff"):
    ip = b"127.0.0.1"
    value = b"\x91\x95\xa0" + bytes([0xa0 | len(ip)]) + ip + b"\xcd" + struct.pack(">H", worker_port) + b"\x20\xc0"
    addr = b"\x81\xa3tcp\xc4" + bytes([len(value)]) + value
    return {"peer_info": {"instance_id": instance, "worker_address": list(addr)}}


SENDER = 0xfde8414c5afee9d3  # the WorkerId of that instance


def with_sender(script, fn, **options):
    """A node, a program that serves `h`, and a scripted sender whose slots the node fetches."""
    with Daemon("a", **options) as a:
        c = a.client()
        c.call(SERVE, name="h")
        o = RawOwner(script)
        p = RawPeer(a.tcp, worker=SENDER)
        assert p.call("_hello", peer_info(o.port))[0]
        fn(a, c, o, p)
        o.close(), p.close()
        eventually(lambda: not c.list("status")["used_bytes"], what="every buffer back")
        assert a.stop() == 0


def grant(total):
    return b'{"Ready":{"lease_id":5,"transfer_id":6,"total_len":%d,"chunk_size":524288,"chunk_count":%d}}' % (
        total, -(-total // 524288))


def test_a_staged_message_is_fetched_and_released_before_the_handler_runs():
    data = pattern(900000)

    def script(name, body):
        if name == "_rv_acquire":
            return True, grant(len(data))
        i = json.loads(body)["chunk_index"]
        return True, data[i * 524288:(i + 1) * 524288]

    def run(a, c, o, p):
        rid = p.request("h", b"", headers=staged(SENDER, 1))
        r = c.recv()
        assert r["op"] == REQUEST and c.view(r) == data
        eventually(lambda: any(n == "_rv_release" for n, _ in o.seen), what="the release")
        c.send(ANSWER, b"ok", token=r["id"])
        assert p.read()[2] == b"ok"
        c.free(r)

    with_sender(script, run)


def test_headers_of_a_message_are_never_sent_on():
    data = pattern(600000)

    def script(name, body):
        if name == "_rv_acquire":
            return True, grant(len(data))
        if name == "_rv_pull":
            i = json.loads(body)["chunk_index"]
            return True, data[i * 524288:(i + 1) * 524288]
        return True, b"done"

    def run(a, c, o, p):
        came_with = b"\x83" + staged(SENDER, 1, budget=60000)[1:] + b"\xa7tracing\xa3abc"
        p.request("h", b"", headers=came_with)
        r = c.recv()
        assert c.view(r) == data
        # The handler calls on, a little and a lot: nothing of what it came with goes along.
        assert c.message("next", b"small", worker=SENDER) == b"done"
        assert c.message("next", data, worker=SENDER) == b"done"
        c.send(ANSWER, b"ok", token=r["id"])
        assert p.read()[2] == b"ok"
        c.free(r)
        small, large = [h for (n, _), h in zip(o.seen, o.headers) if n == "next"]
        assert small == b"\0\0", small
        assert large[2:4] == b"\x81\xa3" and large.count(b"_rv") == 1 and b"tracing" not in large, large
        assert str(SENDER << 64 | 1).encode() not in large, large

    with_sender(script, run)


def test_a_payload_fetched_for_one_user_is_never_shown_to_another():
    if os.geteuid():
        raise Missing("root, to be two users")
    data, started, go = pattern(600000), threading.Event(), threading.Event()

    def script(name, body):
        if name == "_rv_acquire":
            return True, grant(len(data))
        i = json.loads(body)["chunk_index"]
        started.set()
        assert go.wait(20 * SLOW)
        return True, data[i * 524288:(i + 1) * 524288]

    def run(a, c, o, p):
        rid = p.request("h", b"", headers=staged(SENDER, 1))
        assert started.wait(20 * SLOW)
        os.chmod(a.socket, 0o666), os.chmod(os.path.dirname(a.socket), 0o755)
        os.seteuid(65534)
        try:
            other = a.client()
        finally:
            os.seteuid(0)
        c.call(UNSERVE, name="h")
        other.call(SERVE, name="h")
        go.set()
        kind, header, payload = p.read()
        assert kind == ACK and header[0] and header[1:17] == rid and b"'h' not found" in payload, payload
        p.request("h", b"inline", kind=FIRE)
        assert other.recv()["payload"] == b"inline"  # and nothing before it
        other.close()

    with_sender(script, run)


def test_a_payload_over_the_limit_is_released_unfetched_and_names_both_sizes():
    def run(a, c, o, p):
        ok, text = p.call("h", b"", headers=staged(SENDER, 1))
        assert ok is False and text.startswith(b"Failed to resolve large payload: "), text
        assert b"2000000" in text and b"1048576" in text, text
        eventually(lambda: any(n == "_rv_release" for n, _ in o.seen), what="the release")
        # From the answer, without asking first: no query, no memory, no chunk.
        assert {n for n, _ in o.seen} <= {"_hello", "_rv_acquire", "_rv_release"}, o.seen
        p.request("h", b"inline payloads are not bounded by it", kind=FIRE)
        assert c.recv()["payload"].startswith(b"inline")

    with_sender(lambda name, body: (True, grant(2000000)), run, rendezvous__staged_payload_max="1MiB")


def test_a_fetch_that_outlasts_the_nodes_limit_is_an_error_and_one_that_outlasts_the_callers_is_silence():
    def run(a, c, o, p):
        ok, text = p.call("h", b"", headers=staged(SENDER, 1))
        assert ok is False and text.startswith(b"Failed to resolve large payload: ") and b"in time" in text, text
        assert any(b"_rv_lease_ms" in h for h in o.headers), "the fetch has a bound and did not tell the owner"
        began = time.monotonic()
        rid = p.request("h", b"", headers=staged(SENDER, 2, budget=100))
        time.sleep(0.6)
        ok, _ = p.call("_list_handlers")
        assert ok  # and nothing was said about the other one before
        p.sock.settimeout(0.5)
        try:
            p.read()
            raise AssertionError("a caller that has given up was answered")
        except socket.timeout:
            pass

    with_sender(lambda name, body: None if name == "_rv_pull" else (True, grant(600000)), run,
                rendezvous__staged_fetch_timeout="400ms")


def test_a_handle_that_is_none_and_an_owner_nobody_knows():
    def run(a, c, o, p):
        bad = b"\x81\xa3_rv\xa312x"
        ok, text = p.call("h", b"", headers=bad)
        assert ok is False and text.startswith(b"Failed to resolve large payload: invalid rendezvous handle"), text
        ok, text = p.call("h", b"", headers=staged(987654321, 1))
        assert ok is False and text.startswith(b"Failed to resolve large payload: "), text
        ok, text = p.call("absent", b"", headers=staged(SENDER, 1))
        assert ok is False and text == b"Handler 'absent' not found", text

    with_sender(lambda name, body: (False, b"no"), run)


if __name__ == "__main__":
    main(globals())
