#!/usr/bin/env python3
"""rvctl against real daemons: every command, both paths, its exit codes and its last line."""
import pty
import re
import threading

from rvdtest import *

SIZE = 160 << 20


def lines(text):
    return [l for l in text.strip().splitlines() if l]


def test_160_mib_by_reference_alone_on_both_paths():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b, tempfile.TemporaryDirectory() as tmp:
        src, out = os.path.join(tmp, "src"), os.path.join(tmp, "out")
        data = os.urandom(1 << 20) * (SIZE >> 20)
        open(src, "wb").write(data)
        rc, ref, err = rvctl(a, "put", src, "--refs", "2")
        assert rc == 0, err
        ref = ref.decode().strip()
        assert re.fullmatch(r"rv://127\.0\.0\.1:%d/\d{1,39}" % a.tcp, ref), ref
        for path, name in (("rdma", r"rdma \(ucx, tcp\)"), ("chunked", r"chunked \(tcp\)")):
            rc, _, err = rvctl(b, "get", ref, "--path", path, "-o", out)
            assert rc == 0, err
            assert open(out, "rb").read() == data, "wrong bytes on " + path
            os.unlink(out)
            assert re.fullmatch(r"%d bytes in [\d.]+ s, [\d.]+ GB/s, path %s, lease \d+ released" % (SIZE, name),
                                lines(err)[-1]), err
        ok = 'velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'
        assert a.metrics()[ok] == 1 and b.metrics()[ok] == 1
        rc, _, err = rvctl(b, "get", ref, "-o", out)
        assert rc == 4 and not os.path.exists(out) and len(lines(err)) == 1, (rc, err)
        assert os.listdir(tmp) == ["src"], "something was left behind"
        assert a.stop() == 0 and b.stop() == 0


def test_a_get_of_this_nodes_own_has_no_speed():
    with Daemon("a") as a:
        rc, ref, err = rvctl(a, "put", "-", data=pattern(1 << 20))
        assert rc == 0, err
        rc, out, err = rvctl(a, "get", ref.decode().strip(), "-o", "-")
        assert rc == 0 and out == pattern(1 << 20), err
        assert re.fullmatch(r"1048576 bytes in [\d.]+ s, - GB/s, path local, lease \d+ released", lines(err)[-1]), err
        assert a.stop() == 0


def test_every_command_and_its_json():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b, tempfile.TemporaryDirectory() as tmp:
        rc, bare, _ = rvctl(a, "put", "-", "--name-only", data=b"hello there")
        assert rc == 0
        bare = bare.decode().strip()
        ref = "rv://127.0.0.1:%d/%s" % (a.tcp, bare)
        rc, out, _ = rvctl(b, "stat", ref, "--json")
        st = json.loads(out)
        assert rc == 0 and (st["total_len"], st["refcount"]) == (11, 1), st
        rc, out, _ = rvctl(b, "get", ref, "-o", "-", "--detach")
        assert rc == 0 and out == b"hello there"
        assert rvctl(b, "ref", ref)[0] == 0
        assert json.loads(rvctl(a, "stat", bare, "--json")[1])["refcount"] == 2
        rc, out, err = rvctl(b, "get", ref, "-o", os.path.join(tmp, "x"), "--keep", "--json")
        kept = json.loads(out)
        assert rc == 0 and str(kept["lease"]), (out, err)
        assert len(json.loads(rvctl(a, "leases", "--json")[1])["leases"]) == 1
        assert rvctl(b, "detach", ref, "--lease", str(kept["lease"]))[0] == 0
        assert rvctl(b, "release", ref)[0] == 0
        assert rvctl(a, "drop", bare)[0] == 0
        for args in (["stat", ref], ["get", ref, "-o", "-"], ["ref", ref], ["release", ref]):
            rc, out, err = rvctl(b, *args)
            assert rc == 4 and len(lines(err)) == 1 and "released" in err, (args, rc, err)
        rc, out, _ = rvctl(a, "peer-info")
        info = os.path.join(tmp, "a.json")
        open(info, "wb").write(out)
        assert json.loads(out)["instance_id"]
        assert rvctl(a, "peer-info", "--format", "msgpack", "-o", os.path.join(tmp, "a.mp"))[0] == 0
        assert rvctl(b, "peer-add", "node-a", info)[0] == 0
        assert rvctl(b, "peer-add", "node-a2", os.path.join(tmp, "a.mp"))[0] == 0
        assert rvctl(b, "peer-add", "node-a3", "127.0.0.1:%d" % a.tcp)[0] == 0
        peers = json.loads(rvctl(b, "peers", "--json")[1])["peers"]
        assert [p["name"] for p in peers] == ["node-a3"] and peers[0]["rvd"] and peers[0]["rdma"], peers
        # A bare handle is enough once the owner is known.
        bare = rvctl(a, "put", "-", "--name-only", data=b"x" * 100000)[1].decode().strip()
        rc, out, err = rvctl(b, "get", bare, "--path", "rdma", "-o", "-")
        assert rc == 0 and out == b"x" * 100000, err
        for table in ("status", "slots", "leases", "arenas", "peers", "regions", "endpoints", "cores", "config"):
            rc, out, err = rvctl(a, table, "--json")
            assert rc == 0 and json.loads(out), err
            rc, out, err = rvctl(a, table)
            assert rc == 0 and out.strip() and all(len(l) <= 200 for l in out.decode().splitlines()), err
        assert a.stop() == 0 and b.stop() == 0


def test_cores_and_config_say_what_is_in_force():
    with tempfile.TemporaryDirectory() as tmp:
        f = os.path.join(tmp, "rvd.conf")
        open(f, "w").write("[log]\nlevel = info\n[tcp]\nconnect_timeout = 3s\n")
        with Daemon("a") as d:
            d.kill()
            d.args[1:1] = ["-c", f]
            d.restart()
            option = lambda key: [(o["value"], o["origin"]) for o in json.loads(rvctl(d, "config", "--json")[1])["config"]
                                  if o["key"] == key][0]
            assert option("tcp.connect_timeout") == ("3s", f + ":4")
            assert option("ucx.net_devices") == (None, "default") and option("node.name") == ("a", "-s")
            # A reload adopts what may change, shows it, and names the rest.
            open(f, "w").write("[tcp]\nconnect_timeout = 4s\n[log]\nformat = json\n")
            d.proc.send_signal(signal.SIGHUP)
            eventually(lambda: option("log.format") == ("json", f + ":4"), what="the reload")
            assert option("tcp.connect_timeout") == ("3s", f + ":4")
            assert "tcp.connect_timeout has changed and needs a restart" in d.text()
            # A file that is wrong changes nothing, and the log says where, in its own format.
            open(f, "w").write("[tcp]\nmax_conections = 70\n")
            d.proc.send_signal(signal.SIGHUP)
            eventually(lambda: "not reloaded" in d.text(), what="the refusal")
            wrong, refused = [json.loads(l) for l in lines(d.text())[-2:]]
            assert wrong["level"] == "error" and wrong["message"].startswith("config: %s:2: unknown key" % f), wrong
            assert option("log.format") == ("json", f + ":4"), refused
            # What an operator changes is shown with its cause.
            assert rvctl(d, "log-level", "warn")[0] == 0 and option("log.level") == ("warn", "rvctl log-level")
            assert rvctl(d, "kill-switch", "on")[0] == 0 and option("rendezvous.enabled") == ("no", "rvctl kill-switch")
            core, = json.loads(rvctl(d, "cores", "--json")[1])["cores"]
            assert core["polls"] > 0 and core["sleeps"] > 0 and core["busy_s"] + core["idle_s"] > 0, core
            out = rvctl(d, "cores")[1].decode().splitlines()
            assert out[0].split()[-1] == "USEFUL%" and 0 <= float(out[1].split()[-1]) <= 100, out
            assert d.stop() == 0


def on_a_terminal(d, *args, feed=None):
    """rvctl with its stderr on a terminal: (exit code, stdout, what the terminal got)."""
    master, slave = pty.openpty()
    p = subprocess.Popen([RVCTL, "--socket", d.socket, *args], stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    seen = []

    def watch():
        try:
            while True:
                seen.append(os.read(master, 4096))
        except OSError:
            pass
    t = threading.Thread(target=watch)
    t.start()
    if feed:
        feed(p.stdin)
        p.stdin.close()
        out = p.stdout.read()
    else:
        time.sleep(2.5)  # the pipe it writes to is full
        out = p.stdout.read()
    code = p.wait(60 * SLOW)
    t.join()
    os.close(master)
    p.stdout.close()
    return code, out, b"".join(seen).decode()


def test_long_transfers_show_how_far_they_are_on_a_terminal_alone():
    with Daemon("a") as d:
        def slowly(pipe):
            for _ in range(5):
                pipe.write(b"x" * (1 << 20))
                pipe.flush()
                time.sleep(0.5)
        code, ref, seen = on_a_terminal(d, "put", "-", "--name-only", feed=slowly)
        assert code == 0 and re.search(r"reading: [1-5]\.\d MiB in [12] s", seen), seen
        # The line is gone when there is something else to say.
        assert re.search(r"\r\x1b\[K($|rvctl|[^r])", seen.rstrip("\r\n")) or seen.endswith("\x1b[K"), seen
        code, out, seen = on_a_terminal(d, "get", ref.decode().strip(), "-o", "-", "--keep")
        assert code == 0 and len(out) == 5 << 20
        assert re.search(r"writing \[#*-+\] +\d+ %, 0\.\d\d GB/s", seen), seen
        assert re.search(r"\x1b\[K5242880 bytes in [^\r]+kept\r\n$", seen), seen
        rc, _, err = rvctl(d, "get", ref.decode().strip(), "-o", "/dev/null")
        assert rc == 0 and "\r" not in err and "\x1b" not in err, err
        assert d.stop() == 0


def test_exit_codes_and_one_line_errors():
    with Daemon("a", memory__plain_bytes_budget="16MiB") as a, tempfile.TemporaryDirectory() as tmp:
        big = os.path.join(tmp, "big")
        open(big, "wb").truncate(64 << 20)
        dead = socket.socket()
        dead.bind(("127.0.0.1", 0))
        gone = "rv://127.0.0.1:%d/340282366920938463463374607431768211455" % dead.getsockname()[1]
        for want, args in [(2, ["frobnicate"]), (2, ["get"]), (2, ["get", "rv://x"]), (2, ["get", "12x"]),
                           (2, ["put", big, "--ttl", "soon"]), (2, ["get", "1", "--path", "fast"]),
                           (1, ["put", os.path.join(tmp, "absent")]), (4, ["stat", "18446744073709551617"][:1] + ["%d" % (
                               a.client().worker << 64 | 5)]),
                           (5, ["stat", gone]), (5, ["get", gone, "-o", "-", "--timeout", "2s"]), (7, ["put", big])]:
            rc, out, err = rvctl(a, *args)
            assert rc == want, (args, rc, err)
            assert 1 <= len(lines(err)) <= (4 if want == 2 else 1), (args, err)
        rc, _, err = rvctl(None, "status")
        assert rc == 6 and len(lines(err)) == 1, err
        dead.close()
        assert a.stop() == 0


def test_errors_name_the_side_they_are_of():
    with Daemon("a") as a, Daemon("b", memory__plain_bytes_budget="1MiB", memory__registered_bytes_budget="0") as b:
        big = rvctl(a, "put", "-", data=b"x" * (4 << 20))[1].decode().strip()
        at = "127.0.0.1:%d" % a.tcp
        rc, _, err = rvctl(b, "get", big, "-o", "-")
        assert rc == 7 and "get: this node's daemon: no memory here" in err, err
        rc, _, err = rvctl(b, "get", big, "-o", "-", "--timeout", "1us")
        assert rc in (5, 7) and ("the owner at %s: " % at in err or "this node's" in err), err
        rc, _, err = rvctl(b, "drop", big)
        assert rc == 1 and "only its owner" in err, err
        assert rvctl(b, "peers")[1].splitlines()[1].startswith(b"-  "), "a peer without a name"
        assert rvctl(b, "peer-add", "anna", at)[0] == 0
        rc, _, err = rvctl(b, "send", "anna", "nope")
        assert rc == 1 and "peer anna: Handler 'nope' not found; rvctl handlers" in err, err
        assert rvctl(a, "drain")[0] == 0 and rvctl(a, "drain")[0] == 0
        assert a.text().count("no new work") == 1, a.text()
        assert a.stop() == 0
        rc, _, err = rvctl(b, "get", big, "-o", "-", "--timeout", "2s")
        assert rc == 5 and err.count(at) == 1, err
        assert b.stop() == 0


def test_path_rdma_fails_rather_than_fall_back():
    with Daemon("a") as a, Daemon("b", ucx=True) as b:
        ref = rvctl(a, "put", "-", data=b"y" * 100000)[1].decode().strip()
        rc, _, err = rvctl(b, "get", ref, "--path", "rdma", "-o", "-")
        assert rc not in (0, 2) and len(lines(err)) == 1, (rc, err)
        rc, out, _ = rvctl(b, "get", ref, "-o", "-")
        assert rc == 0 and out == b"y" * 100000
        assert a.stop() == 0 and b.stop() == 0


def test_the_kill_switch_works_at_run_time_in_both_roles():
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ref = rvctl(a, "put", "-", "--refs", "9", data=b"k" * 100000)[1].decode().strip()
        assert rvctl(b, "get", ref, "--path", "rdma", "-o", "-")[0] == 0
        assert rvctl(b, "kill-switch", "status")[1] == b"off\n"
        assert rvctl(b, "kill-switch", "on")[1] == b"on\n"
        rc, _, err = rvctl(b, "get", ref, "--path", "rdma", "-o", "-")
        assert rc != 0 and "kill switch" in err, err
        assert "chunked" in rvctl(b, "get", ref, "-o", "-")[2]
        assert rvctl(b, "kill-switch", "off")[0] == 0 and rvctl(a, "kill-switch", "on")[0] == 0
        assert "chunked" in rvctl(b, "get", ref, "-o", "-")[2]
        paths = a.client().list("status")["paths"]
        assert paths["kill_switch"] == 1, paths
        # Staging while it is on goes to plain memory, and says so.
        rc, out, err = rvctl(a, "put", "-", data=b"p" * 100000)
        assert rc == 0 and "switched off" in err, err
        assert a.client().list("status")["paths"]["kill_switch"] == 2
        assert rvctl(a, "kill-switch", "off")[0] == 0
        assert rvctl(b, "get", ref, "--path", "rdma", "-o", "-")[0] == 0
        assert rvctl(a, "kill-switch", "sideways")[0] == 2
        assert rvctl(a, "log-level", "debug")[0] == 0 and rvctl(a, "log-level", "loud")[0] == 2
        assert a.stop() == 0 and b.stop() == 0


def test_what_libraries_log_is_in_our_log():
    with Daemon("a", ucx=True, log__level="debug") as d:
        assert d.stop() == 0
        for line in lines(d.text()):
            assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (error|warn |info |debug) ", line), line
        assert re.search(r" debug dpdk: EAL: ", d.text()), d.text()
    with Daemon("a", ucx=True) as d:
        assert " dpdk: " not in d.text(), d.text()
        assert d.stop() == 0


def test_the_kill_switch_in_the_environment():
    for name, value, on in (("VELO_RDMA_RENDEZVOUS_DISABLE", "YES", True), ("RVD_RDMA_DISABLE", "1", True),
                            ("VELO_RDMA_RENDEZVOUS_DISABLE", "2", False)):
        with Daemon("a", env={name: value}) as a:
            assert json.loads(rvctl(a, "kill-switch", "status", "--json")[1])["kill_switch"] is on
            assert a.stop() == 0


def test_drain_refuses_new_work_and_waits_for_what_runs():
    with Daemon("a") as a, Daemon("b") as b:
        ref = rvctl(a, "put", "-", "--refs", "9", data=b"d" * 100000)[1].decode().strip()
        assert rvctl(b, "get", ref, "-o", "-")[0] == 0
        assert rvctl(a, "drain", "--wait", "--timeout", "20s")[0] == 0
        assert json.loads(rvctl(a, "status", "--json")[1])["draining"] is True
        rc, _, err = rvctl(a, "put", "-", data=b"x")
        assert rc != 0 and "shutting down" in err, err
        rc, _, err = rvctl(b, "stat", ref)
        assert rc != 0 and "shutting down" in err, err
        rc, out, _ = rvctl(b, "get", ref, "-o", "-")  # what is staged can still be fetched, in chunks
        assert rc == 0 and out == b"d" * 100000
        assert a.stop() == 0 and b.stop() == 0


if __name__ == "__main__":
    main(globals())
