#!/usr/bin/env python3
"""rv_get_bw and rv_get_lat: both ends, every path, the report's own arithmetic, and what goes wrong. No times."""
import itertools
import re
import threading

from rvdtest import *

TOOL = {t: os.path.abspath(os.path.join(BUILD, "tools", t)) for t in ("rv_get_bw", "rv_get_lat")}
BW, LAT = "rv_get_bw", "rv_get_lat"
BW_COLUMNS = "#bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
LAT_COLUMNS = ("#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
               "99% percentile[usec] 99.9% percentile[usec]")


class Place:
    """A folder that is the benches' TMPDIR and working directory."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="rvd-test-")
        self.tmp = os.path.join(self.dir, "tmp")
        os.mkdir(self.tmp)
        self.running = []
        return self

    def __exit__(self, kind, value, tb):
        for p in self.running:
            if p.poll() is None:
                p.kill()
                p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def begin(self, tool, *args):
        p = subprocess.Popen([TOOL[tool]] + [str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, cwd=self.dir, text=True,
                             env=dict(os.environ, TMPDIR=self.tmp, UCX_MEM_EVENTS="n"))
        self.running.append(p)
        return p

    def run(self, tool, *args, code=0):
        p = self.begin(tool, *args)
        out, err = p.communicate(timeout=120 * SLOW)
        assert p.returncode == code, (p.returncode, out, err)
        return out, err

    def server(self, *args, tool=BW):
        p = self.begin(tool, *args)
        line = p.stdout.readline()
        m = re.search(r"serving on port (\d+)", line)
        assert m, (line, p.communicate(timeout=60 * SLOW) if not line else "")
        return p, m.group(1)

    def json(self, name="perftest_out.json"):
        with open(os.path.join(self.dir, name)) as f:
            return json.load(f)

    def left(self):
        return os.listdir(self.tmp)


def stop(p):
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 0, (p.returncode, out, err)
    assert err == "", err


def one_line(err, tool, side, *words):
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert err.startswith("%s: %s: " % (tool, side)), err
    for w in words:
        assert w in err, (w, err)


def rows(out, columns):
    """The table's rows, each a list of words."""
    lines = out.splitlines()
    at = lines.index(columns)
    table = [ln.split() for ln in lines[at + 1:] if not ln.startswith(("#", "-"))]
    assert table and all(len(r) == len(table[0]) for r in table), out
    return table


def close(a, b, rel=1e-9):
    assert abs(a - b) <= rel * max(abs(a), abs(b)), (a, b)


def check_bw(out, results):
    """The printed row and the JSON are one, and both are bytes x iterations / time."""
    table = rows(out, BW_COLUMNS)
    assert len(table) == len(results), (table, results)
    for row, r in zip(table, results):
        assert [int(row[0]), int(row[1])] == [r["MsgSize"], r["n_iterations"]], (row, r)
        close(r["BW_average"], r["MsgSize"] * r["n_iterations"] / r["time_sec"] / 1048576)
        close(r["MsgRate"], r["n_iterations"] / r["time_sec"] / 1e6)
        assert row[3] == "%.2f" % r["BW_average"] and row[4] == "%.6f" % r["MsgRate"], (row, r)
        if r["BW_peak"] is None:
            assert row[2] == "-", row
        else:
            assert r["BW_peak"] >= r["BW_average"] * (1 - 1e-9), r
            assert row[2] == "%.2f" % r["BW_peak"], (row, r)
        assert sum(r["paths"].values()) == r["n_iterations"], r


def check_lat(out, results):
    keys = ["t_min", "t_max", "t_typical", "t_avg", "t_stdev", "percentile_99", "percentile_99.9"]
    table = rows(out, LAT_COLUMNS)
    assert len(table) == len(results)
    for row, r in zip(table, results):
        assert [int(row[0]), int(row[1])] == [r["MsgSize"], r["n_iterations"]], (row, r)
        for text, key in zip(row[2:], keys):
            assert text == ("-" if r[key] is None else "%.2f" % r[key]), (key, row, r)
        assert 0 < r["t_min"] <= r["t_typical"] <= r["percentile_99"] <= r["percentile_99.9"] <= r["t_max"], r
        assert r["t_min"] <= r["t_avg"] <= r["t_max"], r
        assert sum(r["paths"].values()) == r["n_iterations"], r
        # No more time was measured than has passed.
        assert r["t_avg"] * r["n_iterations"] / 1e6 <= r["time_sec"] * (1 + 1e-9), r


def both_tools(path, name, *server_args):
    with Place() as w:
        s, port = w.server("-p", 0, *server_args)
        for op in ("get_pinned", "get", "get_into", "node", "raw")[:5 if path == "ucx" else 4]:
            for tool, check in ((BW, check_bw), (LAT, check_lat)):
                out, err = w.run(tool, "-p", port, "localhost", "--path", path, "-s", "200000", "-n", 40, "--op", op,
                                 "--out_json", *([] if op == "node" else ["--data_validation"]))
                assert err == "", err
                assert re.search(r"Path +: %s\n" % name, out), out
                assert re.search(r"Same host +: yes\n", out), out
                assert re.search(r"UCX version +: \d+\.\d+", out), out
                j = w.json()
                check(out, [j["results"]])
                assert j["results"]["n_iterations"] == 40 and j["results"]["MsgSize"] == 200000
                assert j["results"]["paths"] == {name: 40}, j
                assert j["test_info"]["Transport_type"] == name and j["test_info"]["op"] == op, j
                assert j["test_info"]["same_host"] is True, j
        assert w.left() == [], w.left()
        stop(s)


def test_both_tools_over_chunks():
    both_tools("chunked", "chunked tcp")


def test_both_tools_over_ucx():
    both_tools("ucx", "ucx tcp", "--path", "ucx")


def test_ucx_without_a_native_lane_says_what_that_means():
    with Place() as w:
        s, port = w.server("-p", 0, "--path", "ucx")
        assert "can read and write" in s.stdout.readline()
        out, _ = w.run(BW, "-p", port, "localhost", "--path", "ucx", "-n", 5)
        assert "software" in out and "can read and write" in out, out
        # The same server serves those that do not want it.
        out, _ = w.run(BW, "-p", port, "localhost", "--path", "chunked", "-n", 5)
        assert "can read and write" not in out, out
        stop(s)


def test_both_tools_on_the_local_path():
    with Place() as w:
        for tool, check in ((BW, check_bw), (LAT, check_lat)):
            for op in ("get_pinned", "get", "get_into"):
                out, _ = w.run(tool, "localhost", "--path", "local", "-n", 30, "--out_json", "--op", op,
                               "--data_validation")
                assert re.search(r"Path +: local\n", out), out
                check(out, [w.json()["results"]])
        assert w.left() == []


def test_all_sizes():
    with Place() as w:
        s, port = w.server("-p", 0, "--path", "ucx")
        for path, (tool, check) in itertools.product(("ucx", "chunked"), ((BW, check_bw), (LAT, check_lat))):
            out, _ = w.run(tool, "-p", port, "localhost", "-a", "-n", 3, "--out_json_file", "all.json", "--path", path)
            results = w.json("all.json")["results"]
            assert [r["MsgSize"] for r in results] == [1 << i for i in range(1, 24)], results
            assert all(r["paths"] == {path + " tcp": 3} for r in results), results
            check(out, results)
        assert not os.path.exists(os.path.join(w.dir, "perftest_out.json"))
        stop(s)


def test_sessions_depth_and_batches():
    with Place() as w:
        s, port = w.server("-p", 0)
        for args in (["-q", 3, "-t", 5], ["-t", 1], ["-t", 64, "-s", 1], ["--batch", 7], ["--batch", 64], ["-q", 8, "-n", 5]):
            n = [] if "-n" in args else ["-n", 101]
            out, _ = w.run(BW, "-p", port, "localhost", "--out_json", "--data_validation", *args, *n)
            r = w.json()["results"]
            assert r["n_iterations"] == (5 if "-n" in args else 101), (args, r)
            check_bw(out, [r])
        stop(s)


def test_gigabits_are_the_same_gets_in_another_unit():
    with Place() as w:
        out, _ = w.run(BW, "localhost", "--path", "local", "-n", 50, "--out_json", "--report_gbits")
        assert "BW peak[Gb/sec]    BW average[Gb/sec]" in out, out
        j = w.json()
        r = j["results"]
        close(r["BW_average"], r["MsgSize"] * 8 * r["n_iterations"] / r["time_sec"] / 1e9)
        assert j["test_info"]["BW_unit"] == "Gb/sec"


def test_what_is_not_measured_is_a_dash_and_null():
    with Place() as w:
        for args in (["-N", "-n", 20], ["-D", 1]):
            out, _ = w.run(BW, "localhost", "--path", "local", "--out_json", *args)
            r = w.json()["results"]
            assert r["BW_peak"] is None, r
            check_bw(out, [r])
        out, _ = w.run(LAT, "localhost", "--path", "local", "--out_json", "-n", 1)
        r = w.json()["results"]
        assert r["t_stdev"] is None, r
        check_lat(out, [r])


def test_a_duration_is_measured_for_so_long():
    with Place() as w:
        for tool, check in ((BW, check_bw), (LAT, check_lat)):
            out, _ = w.run(tool, "localhost", "--path", "local", "-D", 1, "--out_json", "--cpu_util")
            r = w.json()["results"]
            assert r["n_iterations"] > 1 and r["time_sec"] > 0.5, r
            assert "CPU_Util[%]" in out and 0 <= r["CPU_util"] <= 100, r
            last = [ln for ln in out.splitlines() if ln[:1].isdigit()][-1].split()
            assert last[-1] == "%.2f" % r["CPU_util"], (last, r)


def test_two_clients_at_once_and_others_after_them():
    with Place() as w:
        s, port = w.server("-p", 0, "--path", "ucx", tool=LAT)
        a = w.begin(BW, "-p", port, "localhost", "-D", 2, "--path", "ucx", "--out_json_file", "a.json", "--data_validation")
        b = w.begin(LAT, "-p", port, "127.0.0.1", "-D", 2, "--path", "chunked", "--out_json_file", "b.json", "-s", "300K",
                    "--data_validation")
        for p in (a, b):
            out, err = p.communicate(timeout=120 * SLOW)
            assert p.returncode == 0 and err == "", (out, err)
        assert list(w.json("a.json")["results"]["paths"]) == ["ucx tcp"]
        assert list(w.json("b.json")["results"]["paths"]) == ["chunked tcp"]
        for _ in range(3):
            w.run(BW, "-p", port, "localhost", "-n", 10, "--data_validation")
        stop(s)
        assert w.left() == []


def test_running_daemons_serve_as_ends():
    with Daemon("a", ucx=True) as da, Daemon("b", ucx=True) as db, Place() as w:
        s, port = w.server("--socket", da.socket)
        assert int(port) == da.tcp, port
        for tool, check in ((BW, check_bw), (LAT, check_lat)):
            out, _ = w.run(tool, "--socket", db.socket, "-p", port, "127.0.0.1", "-s", "128K", "-n", 30, "--out_json",
                           "--path", "ucx", "--data_validation")
            check(out, [w.json()["results"]])
            assert db.socket in out, out
        assert db.client().list("status")["paths"]["ok"] >= 60
        # One end each: a private client, too.
        w.run(BW, "-p", port, "127.0.0.1", "-n", 10, "--path", "chunked")
        # A size below the daemons' rdma_min_bytes cannot go where it was told to.
        _, err = w.run(BW, "--socket", db.socket, "-p", port, "127.0.0.1", "-s", 64, "--path", "ucx", code=1)
        one_line(err, BW, "client", "get")
        # Only one bench serves on a daemon.
        _, err = w.run(LAT, "--socket", da.socket, code=1)
        one_line(err, LAT, "server", "rvd.bench", "another")
        eventually(lambda: da.client().list("leases")["total"] == 0, what="the leases' end")
        stop(s)
        eventually(lambda: da.client().list("slots")["total"] == 0, what="the slots' end")
        assert w.left() == [], w.left()
        assert da.stop() == 0 and db.stop() == 0


def test_a_daemon_that_goes_away_under_a_server():
    with Daemon("a") as d, Place() as w:
        s, _ = w.server("--socket", d.socket)
        d.kill()
        _, err = s.communicate(timeout=60 * SLOW)
        assert s.returncode == 1
        one_line(err, BW, "server", "serve")


def killed(path, tool, *args):
    with Place() as w:
        s, port = w.server("-p", 0, "--path", path)
        c = w.begin(tool, "-p", port, "localhost", "--path", path, "-D", 600, *args)
        while not c.stdout.readline().startswith("#bytes"):
            assert c.poll() is None, c.communicate()
        s.kill()
        s.wait()
        _, err = c.communicate(timeout=120 * SLOW)
        assert c.returncode == 1, (c.returncode, err)
        one_line(err, tool, "client", "of %d bytes" % (65536 if tool == BW else 2))
        assert w.left() == [], w.left()


def test_raw_reads_for_a_time_and_without_an_rdma_path():
    with Place() as w:
        s, port = w.server("-p", 0, "--path", "ucx")
        for tool, check in ((BW, check_bw), (LAT, check_lat)):
            out, err = w.run(tool, "-p", port, "localhost", "--path", "ucx", "--op", "raw", "-s", "4096", "-D", 1, "--out_json")
            assert err == "", err
            j = w.json()
            check(out, [j["results"]])
            assert j["results"]["n_iterations"] > 10 and 0.5 < j["results"]["time_sec"] < 20 * SLOW, j
        stop(s)
        s, port = w.server("-p", 0)
        out, err = w.run(BW, "-p", port, "localhost", "--op", "raw", "-n", 5, code=1)
        one_line(err, "rv_get_bw", "client", "raw reads of 65536 bytes", "no RDMA backend")
        stop(s)


def test_a_server_that_is_killed_under_chunks():
    killed("chunked", BW)
    killed("chunked", LAT)
    killed("chunked", BW, "--batch", 8)


def test_a_server_that_is_killed_under_ucx():
    killed("ucx", BW)
    killed("ucx", LAT)
    killed("ucx", BW, "-q", 4, "--op", "get_into")


def test_killed_ends_leave_no_files():
    with Place() as w:
        s, port = w.server("-p", 0)
        c = w.begin(BW, "-p", port, "localhost", "-D", 600)
        while not c.stdout.readline().startswith("#bytes"):
            assert c.poll() is None, c.communicate()
        c.send_signal(signal.SIGINT)
        c.wait(timeout=60 * SLOW)
        s.kill()
        s.wait()
        assert w.left() == [], w.left()


def bench_pattern(n, seed):
    """The bytes that a server stages, from their description."""
    m = (1 << 64) - 1
    out = bytearray()
    for off in range(0, n, 8):
        x = (seed + (off + 8) * 0x9e3779b97f4a7c15) & m
        x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & m
        x = ((x ^ x >> 27) * 0x94d049bb133111eb) & m
        out += struct.pack("<Q", x ^ x >> 31)
    return out[:n]


class OddServer:
    """A server of ours that stages what `change` makes of the right bytes of slot i, or answers what it returns as text."""

    def __init__(self, daemon, change):
        self.staging, self.session, self.change = daemon.client(), daemon.client(), change
        eventually(self.serve, what="the end of the one before")
        self.staged, self.asked = 0, []
        self.thread = threading.Thread(target=self.loop, daemon=True)
        self.thread.start()

    def serve(self):
        try:
            return self.session.call(SERVE, name="rvd.bench")
        except Refused:
            return None

    def loop(self):
        try:
            while True:
                self.session.serve_one(self.answer)
        except (EOFError, OSError):
            pass

    def answer(self, _, data):
        words = data.decode().split()
        self.asked.append(words[0])
        if words[0] == "hello":
            return b"another-boot 1.20.9 "
        if words[0] != "stage":
            return b"done"
        made = self.change(self.staged, bench_pattern(int(words[1]), int(words[2])))
        self.staged += 1
        if isinstance(made, str):
            return made.encode()
        h = self.staging.put(bytes(made))
        return ("%d plain" % (h[0] << 64 | h[1])).encode()

    def close(self):
        self.session.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.session.close()
        self.staging.close()


def flip(at, slot):
    def change(i, data):
        if i == slot:
            data[at] ^= 1
        return data
    return change


ODD = (
    (lambda i, data: data, 0, []),
    (flip(0, 0), 1, ["data validation", "get 0 of 5003 bytes", "from byte 0 on"]),
    (flip(5002, 2), 1, ["data validation", "from byte 5002 on"]),
    (lambda i, data: data[:-1], 1, ["get", "5002 bytes came instead of 5003"]),
    (lambda i, data: "nonsense", 1, ["stage", "cannot be read"]))


def test_wrong_bytes_are_found_and_right_ones_pass():
    with Daemon("a") as d, Place() as w:
        for tool, op, (change, code, words) in itertools.product((BW, LAT), ("get_pinned", "get", "get_into"), ODD):
            s = OddServer(d, change)
            out, err = w.run(tool, "-p", d.tcp, "127.0.0.1", "-s", 5003, "-n", 20, "--op", op, "--data_validation",
                             code=code)
            s.close()
            if code:
                one_line(err, tool, "client", *words)
                continue
            assert re.search(r"Same host +: no\n", out), out
            assert "1.20.9 at the server" in out, out
            assert s.asked == ["hello"] + ["stage"] * 3 + ["drop"] * 3, s.asked


def test_what_goes_wrong_says_which_side_and_which_step():
    with Place() as w, socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        _, err = w.run(BW, "-p", port, code=1)
        one_line(err, BW, "server", "node", "listen", str(port))
        taken.close()
        _, err = w.run(BW, "-p", port, "127.0.0.1", code=1)
        one_line(err, BW, "client", "connect to 127.0.0.1 port %d" % port, "is a server started there?")
        _, err = w.run(LAT, "no-such-host.invalid", code=1)
        one_line(err, LAT, "client", "connect to no-such-host.invalid")
        _, err = w.run(BW, "--socket", "/nonexistent/rvd.sock", "localhost", code=1)
        one_line(err, BW, "client", "session", "/nonexistent/rvd.sock")
        _, err = w.run(BW, "--socket", "/nonexistent/rvd.sock", code=1)
        one_line(err, BW, "server", "session", "/nonexistent/rvd.sock")
        _, err = w.run(BW, "localhost", "--path", "local", "-n", 5, "--out_json_file", "/nonexistent/x.json", code=1)
        one_line(err, BW, "client", "report", "/nonexistent/x.json")
        _, err = w.run(BW, "localhost", "--path", "ucx", "-d", "nosuchdev0", code=1)
        one_line(err, BW, "client", "node", "ucx")
        with Daemon("a") as d:
            _, err = w.run(BW, "-p", d.tcp, "127.0.0.1", code=1)
            one_line(err, BW, "client", "hello", "rvd.bench", "no rv_get_bw or rv_get_lat")
        s, port = w.server("-p", 0)
        _, err = w.run(BW, "-p", port, "localhost", "--path", "ucx", code=1)
        one_line(err, BW, "client", "stage", "server", "--path ucx")
        _, err = w.run(BW, "-p", port, "localhost", "-s", "60G", code=1)
        one_line(err, BW, "client", "stage", "server")
        w.run(BW, "-p", port, "localhost", "-n", 5)
        stop(s)
        assert w.left() == [], w.left()


def test_wrong_usage():
    with Place() as w:
        for tool, side, args, words in (
                (BW, "client", ["h", "-s", "0"], ["-s"]),
                (BW, "client", ["h", "--op", "raw", "--socket", "/s"], ["--op", "raw", "--socket"]),
                (LAT, "client", ["h", "--op", "raw", "--path", "local"], ["--op", "raw", "no RDMA reads"]),
                (BW, "client", ["h", "--op", "rraw"], ["--op", "get_pinned, get, get_into, node, raw"]),
                (BW, "client", ["h", "--socket", "/s", "-d", "x"], ["-d", "--socket"]),
                (BW, "client", ["h", "--socket", "/s", "-x", "1"], ["-x", "--socket"]),
                (BW, "client", ["h", "--path", "roce"], ["--path", "verbs"]),
                (BW, "client", ["-m", "4096", "h"], ["-m", "MTU"]),
                (BW, "server", ["-s", "4096"], ["-s", "client"]),
                (BW, "server", ["--socket", "/s", "-d", "x", "-i", "1"], ["-d", "--socket"]),
                (LAT, "client", ["h", "-t", "4"], ["-t"]),
                (LAT, "server", ["--bidirectional"], ["--bidirectional"])):
            out, err = w.run(tool, *args, code=2)
            assert out == "", out
            one_line(err, tool, side, "usage", *words)
        for tool in (BW, LAT):
            out, err = w.run(tool, "--help")
            assert not [l for l in out.splitlines() if len(l) > 80], out
            assert err == "" and "--data_validation" in out and "raw" in out, out
            assert ("--batch" in out) == (tool == BW), out
            assert w.run(tool, "-V")[0].startswith(tool + " ")
        assert w.left() == []


if __name__ == "__main__":
    main(globals())
