#!/usr/bin/env python3
"""READs through the verbs backend against perftest's, interleaved, on the same devices. Runs inside scripts/rdma-vm.

The suite checks that both run, and prints the ratios; with RV_ROUNDS of 9 or more they are held to what is promised:
0.95 of ib_read_bw from 64 KiB on, and within 10 % of ib_read_lat."""
import re
import shutil
import statistics

from rdmatest import *

RAW = os.path.join(BUILD, "tests", "bench", "raw_read")
ROUNDS = int(os.environ.get("RV_ROUNDS", "1"))
DEV = {end: HOSTS[end][1].split(":")[0] for end in HOSTS}
PORT = 18600


def ours(how, size, n, depth):
    owner = subprocess.Popen([RAW, "owner", HOSTS[1][0], DEV[1]], stdout=subprocess.PIPE)
    try:
        port = owner.stdout.readline().decode().strip()
        out = subprocess.run([RAW, "reader", HOSTS[2][0], DEV[2], HOSTS[1][0], port, how, str(size), str(n), str(depth)],
                             stdout=subprocess.PIPE, timeout=300 * SLOW, check=True).stdout.decode()
        assert owner.wait(60 * SLOW) == 0
    finally:
        if owner.poll() is None:
            owner.kill()
            owner.wait()
        owner.stdout.close()
    unit, value = out.split()
    return float(value)


def perftest(how, size, n, depth):
    global PORT
    PORT += 1
    tool = "ib_read_" + how
    args = ["-i", "1", "-x", "1", "-s", str(size), "-n", str(n), "-F", "-p", str(PORT)]
    if how == "bw":
        args += ["-t", str(depth)]
    server = subprocess.Popen([tool, "-d", DEV[1]] + args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for attempt in range(50):  # until it listens
            p = subprocess.run([tool, "-d", DEV[2]] + args + [HOSTS[1][0]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               timeout=300 * SLOW)
            if p.returncode == 0 or server.poll() is not None:
                break
            time.sleep(0.2)
        out = p.stdout.decode()
        line = re.findall(r"^ *%d +%d? *.*$" % (size, n), out, re.M)
        assert p.returncode == 0 and line, out
    finally:
        if server.poll() is None:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    fields = line[-1].split()
    # bw: bytes iterations peak average rate; lat: bytes iterations min max typical ...
    return float(fields[3] if how == "bw" else fields[4])


def ratio(how, size, n, depth):
    """Ours over theirs, the median of the rounds; which goes first alternates."""
    if not shutil.which("ib_read_bw"):
        raise Missing("perftest")
    pairs = []
    for i in range(ROUNDS):
        order = [ours, perftest] if i % 2 == 0 else [perftest, ours]
        got = {f: f(how, size, n, depth) for f in order}
        pairs.append((got[ours], got[perftest]))
    r = statistics.median(a / b for a, b in pairs)
    print("# %s of %d: ours %.2f, perftest %.2f, ratio %.3f (%.3f to %.3f)" % (
        how, size, statistics.median(a for a, b in pairs), statistics.median(b for a, b in pairs), r,
        min(a / b for a, b in pairs), max(a / b for a, b in pairs)), flush=True)
    assert all(a > 0 and b > 0 for a, b in pairs)
    return r


def test_bandwidth():
    got = {size: ratio("bw", size, n, 32) for size, n in ((65536, 400), (1 << 20, 48))}
    for size, r in got.items():
        assert ROUNDS < 9 or r >= 0.95, "%d bytes at %.3f of ib_read_bw" % (size, r)


def test_latency():
    r = ratio("lat", 8, 1000, 1)
    assert ROUNDS < 9 or r <= 1.10, "8 bytes at %.3f of ib_read_lat" % r


def test_what_keys_cost():
    """A lease's own key, made and revoked: a window against a region, of 1 MiB. On Soft-RoCE: what it costs the CPU."""
    n = 40 * ROUNDS
    cost = {}
    for fence in ("window", "region"):
        owner = subprocess.Popen([RAW, "owner", HOSTS[1][0], DEV[1], fence, str(n)], stdout=subprocess.PIPE)
        try:
            port = owner.stdout.readline().decode().strip()
            subprocess.run([RAW, "reader", HOSTS[2][0], DEV[2], HOSTS[1][0], port, "lat", "8", "10", "1"],
                           stdout=subprocess.DEVNULL, timeout=300 * SLOW, check=True)
            word, value = owner.stdout.readline().decode().split()
            assert word == "key_usec" and owner.wait(60 * SLOW) == 0
            cost[fence] = float(value)
        finally:
            if owner.poll() is None:
                owner.kill()
                owner.wait()
            owner.stdout.close()
    print("# a key of 1 MiB: window %.1f us, region %.1f us, ratio %.3f" % (
        cost["window"], cost["region"], cost["window"] / cost["region"]), flush=True)
    assert all(v > 0 for v in cost.values())


def test_the_benches_over_verbs():
    tool = lambda name: os.path.join(BUILD, "tools", name)
    server = subprocess.Popen([tool("rv_get_bw"), "--path", "verbs", "-d", DEV[1], "-p", "18590"], stdout=subprocess.PIPE)
    try:
        line = server.stdout.readline().decode()
        assert "serving on port 18590" in line and "verbs " + HOSTS[1][1] in line, line
        for name, how in (("rv_get_bw", ["-n", "8", "-t", "4"]), ("rv_get_lat", ["-n", "8"])):
            p = subprocess.run([tool(name), HOSTS[1][0], "-p", "18590", "--path", "verbs", "-d", DEV[2], "-s", "262144",
                                "--data_validation"] + how, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120 * SLOW)
            out = p.stdout.decode()
            assert p.returncode == 0 and re.search(r"Path +: verbs %s" % HOSTS[2][1], out), (out, p.stderr)
            assert re.search(r"Verbs +: fence region", out) and "UCX version" not in out, out
            assert re.search(r"^262144 +8 ", out, re.M), out
        for name in ("rv_get_bw", "rv_get_lat"):
            p = subprocess.run([tool(name), HOSTS[1][0], "-p", "18590", "--path", "verbs", "-d", DEV[2], "-s", "65536", "-n", "50",
                                "--op", "raw", "--data_validation"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               timeout=120 * SLOW)
            assert p.returncode == 0 and re.search(r"^65536 +50 ", p.stdout.decode(), re.M), (p.stdout, p.stderr)
        server.terminate()
        assert server.wait(60 * SLOW) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        server.stdout.close()


if __name__ == "__main__":
    main(globals())
