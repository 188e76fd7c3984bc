#!/usr/bin/env python3
"""What the bench, rvtop, `rvctl status` and the metrics say of the same gets is the same, to the byte."""
import json

from rvdtest import *

TOOL = os.path.join(BUILD, "tools")


def snapshot(d):
    """(rvtop's status, the metrics) of a daemon at rest."""
    out = subprocess.run([os.path.join(TOOL, "rvtop"), "--socket", d.socket, "--json", "-n", "1", "-d", "0.1"],
                         stdout=subprocess.PIPE, check=True, timeout=60 * SLOW).stdout
    return json.loads(out)["status"], d.metrics()


def grown(before, after):
    return {k: after[k] - before.get(k, 0) for k in after if after[k] != before.get(k, 0)}


def bench(a, b, path, size, n):
    """What rv_get_bw printed and wrote."""
    out_json = os.path.join(b.dir, "bw.json")
    server = subprocess.Popen([os.path.join(TOOL, "rv_get_bw"), "--socket", a.socket], stdout=subprocess.PIPE)
    try:
        assert b"serving" in server.stdout.readline()
        p = subprocess.run([os.path.join(TOOL, "rv_get_bw"), "--socket", b.socket, "-p", str(a.tcp), "127.0.0.1", "-s", str(size),
                            "-n", str(n), "-t", "4", "--path", path, "--out_json_file", out_json], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=300 * SLOW)
        assert p.returncode == 0, p.stderr
        server.terminate()
        assert server.wait(60 * SLOW) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        server.stdout.close()
    return json.load(open(out_json))["results"]


def agree(path, size, n):
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        top_a, met_a = snapshot(a)
        top_b, met_b = snapshot(b)
        r = bench(a, b, path, size, n)
        eventually(lambda: a.client().list("leases")["total"] == 0, what="the leases' end")
        top_a2, met_a2 = snapshot(a)
        top_b2, met_b2 = snapshot(b)
        assert r["n_iterations"] == n
        gets = n + 1  # one to warm up
        total = gets * size
        mb, ma = grown(met_b, met_b2), grown(met_a, met_a2)
        # Operations: the bench, rvtop's status, the metrics of both ends.
        assert mb['velo_rendezvous_operations_total{operation="get",status="ok"}'] == gets, mb
        assert 'velo_rendezvous_operations_total{operation="get",status="error"}' not in mb, mb
        assert top_b2["operations"]["get"]["ok"] - top_b["operations"]["get"]["ok"] == gets
        assert ma['velo_rendezvous_operations_total{operation="detach",status="ok"}'] == gets, ma
        # Bytes.
        way = "rdma" if path == "ucx" else "chunked"
        assert mb['velo_rendezvous_bytes_total{direction="in"}'] == total, mb
        assert mb['rvd_get_bytes_total{path="%s"}' % way] == total, mb
        assert top_b2["bytes_in"] - top_b["bytes_in"] == total
        assert top_b2["get_bytes"][way] - top_b["get_bytes"][way] == total
        assert top_a2["bytes_out"] - top_a["bytes_out"] == ma.get('velo_rendezvous_bytes_total{direction="out"}', 0)
        if path == "chunked":  # the owner's software sends them
            assert top_a2["bytes_out"] - top_a["bytes_out"] == total
        if path == "ucx":
            assert mb['velo_rendezvous_rdma_path_total{path="rdma",reason="ok"}'] == gets, mb
            assert mb["velo_rendezvous_rdma_get_duration_seconds_count"] == gets, mb
            assert top_b2["paths"]["ok"] - top_b["paths"]["ok"] == gets
        # Rates, over the one window that is the run: the warm-up is one get of many.
        rate = (top_b2["bytes_in"] - top_b["bytes_in"]) / r["time_sec"] / (1 << 20)
        assert abs(rate / r["BW_average"] - 1) < 0.02, (rate, r)
        rate = mb['velo_rendezvous_operations_total{operation="get",status="ok"}'] / r["time_sec"] / 1e6
        assert abs(rate / r["MsgRate"] - 1) < 0.02, (rate, r)
        assert a.stop() == 0 and b.stop() == 0


def test_totals_and_rates_agree_over_chunks():
    agree("chunked", 300000, 400)


def test_totals_and_rates_agree_over_rdma():
    agree("ucx", 300000, 400)


def test_rvtops_rate_is_its_totals_by_its_own_clock():
    """Two looks: what it says went in between them by the second is what its totals grew by."""
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        ca, cb = a.client(), b.client()
        know = cb.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
        assert know["worker"]
        h = ca.put(pattern(1 << 20), refs=1000)
        top = subprocess.Popen([os.path.join(TOOL, "rvtop"), "--socket", b.socket, "--json", "-n", "6", "-d", "0.5"],
                               stdout=subprocess.PIPE)
        try:
            seen = [json.loads(top.stdout.readline())]
            while len(seen) < 6:
                for _ in range(20):
                    g = cb.get(h)
                    cb.free(g)
                    cb.call(DETACH, worker=h[0], local=h[1], lease_id=g["lease_id"])
                seen += [json.loads(top.stdout.readline())]
        finally:
            top.kill()
            top.wait()
            top.stdout.close()
        for before, after in zip(seen, seen[1:]):
            more = after["status"]["bytes_in"] - before["status"]["bytes_in"]
            took = after["status"]["uptime_s"] - before["status"]["uptime_s"]
            # Its clock is its own, and so a round trip to the daemon away from the daemon's.
            assert abs(after["in_bytes_per_s"] * took - more) <= 0.02 * more + 0.1 * (1 << 20), (before, after)
        assert sum(s["in_bytes_per_s"] > 0 for s in seen) >= 3, seen


if __name__ == "__main__":
    main(globals())
