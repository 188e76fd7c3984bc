#!/usr/bin/env python3
"""docs/grafana with a real Prometheus: every query of the dashboard and of the alerts, on what two daemons export."""
import contextlib
import functools
import math
import re
import urllib.error
import urllib.parse
import urllib.request

from rawpeer import RawPeer
from rvdtest import *

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
DASHBOARD = os.path.join(DOCS, "grafana", "rvd.json")
RULES = os.path.abspath(os.path.join(DOCS, "grafana", "rvd-alerts.yml"))
OPERATIONS = os.path.join(DOCS, "OPERATIONS.md")

# Families without a panel, and why.
NO_PANEL = {
    "velo_rendezvous_rdma_leases_reaped_total": "rvd_leases_reaped_total{kind=rdma}, under stock velo's name",
}

# What the traffic below is.
CHUNKS = [1, 65536, (3 << 20) + 17]
READS = [1 << 20, 300000]
LOCAL = [500000]

# Exactly known after it: owner a, consumer b.
KNOWN = [
    ("a", 'velo_rendezvous_operations_total{operation="register_pinned", status="ok"}', len(CHUNKS + READS + LOCAL)),
    ("a", 'velo_rendezvous_operations_total{operation="release", status="ok"}', len(CHUNKS + READS + LOCAL)),
    ("a", 'velo_rendezvous_operations_total{operation="get", status="ok"}', len(LOCAL)),
    ("b", 'velo_rendezvous_operations_total{operation="get", status="ok"}', len(CHUNKS + READS)),
    ("b", 'velo_rendezvous_operations_total{operation="get", status="error"}', 1),
    ("a", 'velo_rendezvous_bytes_total{direction="out"}', sum(CHUNKS)),
    ("b", 'velo_rendezvous_bytes_total{direction="in"}', sum(CHUNKS + READS)),
    ("a", 'rvd_get_bytes_total{path="local"}', sum(LOCAL)),
    ("b", 'rvd_get_bytes_total{path="chunked"}', sum(CHUNKS)),
    ("b", 'rvd_get_bytes_total{path="rdma"}', sum(READS)),
    ("b", 'velo_rendezvous_rdma_path_total{path="rdma", reason="ok"}', len(READS)),
    ("b", "velo_rendezvous_rdma_get_duration_seconds_count", len(READS)),
    ("b", 'velo_rendezvous_rdma_get_duration_seconds_bucket{le="+Inf"}', len(READS)),
    ("a", "velo_rendezvous_active_slots", 0),
    ("a", 'rvd_leases{kind="rdma"}', 0),
    ("a", 'rvd_arena_bytes{state="used"}', 0),
    ("a", 'rvd_arena_bytes{state="free"}', 8 << 20),
    ("a", "velo_rdma_registered_bytes", 8 << 20),
    ("a", "rvd_registered_budget_bytes", 1 << 30),
    ("a", 'rvd_handshakes_rejected_total{reason="malformed"}', 1),
    ("b", 'rvd_handshakes_rejected_total{reason="malformed"}', 0),
    ("a", "rvd_ready", 1),
]

# The same through the dashboard: panel, legend, node ("": both), value.
SHOWN = [
    ("Not serving", "", "", 0),
    ("Gets that failed", "", "b", 1 / (len(CHUNKS + READS) + 1)),
    ("Gets by RDMA", "", "b", len(READS) / len(CHUNKS + READS)),
    ("Registered of the budget", "", "", 1 / 128),
    ("Arenas", "free", "", 16 << 20),
    ("Registered against the budget", "budget", "", 2 << 30),
    ("Active slots", "{{instance}}", "a", 0),
]

# Each alert on made-up series, a sample a minute: quiet at the first minute named, firing at the second.
N = 'job="rvd", instance="n"'
MIB = 1 << 20
FIRES = {
    "RvdDown": (0, 2, {"up{%s}" % N: "0x60"}),
    "RvdNotReady": (4, 6, {"rvd_ready{%s}" % N: "0x60"}),
    "RvdArenasFragmented": (14, 16, {'rvd_arena_bytes{%s, state="largest_free"}' % N: "%dx60" % (32 * MIB),
                                     'rvd_arena_bytes{%s, state="free"}' % N: "%dx60" % (800 * MIB)}),
    "RvdRegisteredBudgetNearlyUsed": (9, 11, {"velo_rdma_registered_bytes{%s}" % N: "%dx60" % (1000 * MIB),
                                              'rvd_arena_bytes{%s, state="free"}' % N: "%dx60" % (50 * MIB)}),
    "RvdRegistrationsFail": (1, 8, {'rvd_registration_failures_total{%s, reason="map"}' % N: "0+1x60"}),
    "RvdMemoryGivenUp": (0, 2, {"rvd_unmaps_unconfirmed_total{%s}" % N: "0 1x60"}),
    "RvdCoreSaturated": (9, 18, {'rvd_core_busy_seconds_total{%s, core="0"}' % N: "0+58x60"}),
    "RvdOperationsFail": (9, 13, {
        'velo_rendezvous_operations_total{%s, operation="get", status="error"}' % N: "0+5x60"}),
    "RvdRdmaFails": (9, 13, {
        'velo_rendezvous_rdma_path_total{%s, path="chunked", reason="get_failed"}' % N: "0+1x60"}),
    "RvdLeasesReaped": (14, 40, {'rvd_leases_reaped_total{%s, kind="rdma"}' % N: "0+2x60"}),
}
HEALTHY = {
    "up{%s}" % N: "1x60",
    "rvd_ready{%s}" % N: "1x60",
    # Empty arenas stay registered: the whole budget, and most of it free.
    "velo_rdma_registered_bytes{%s}" % N: "%dx60" % (1024 * MIB),
    "rvd_registered_budget_bytes{%s}" % N: "%dx60" % (1024 * MIB),
    'rvd_arena_bytes{%s, state="used"}' % N: "%dx60" % (200 * MIB),
    'rvd_arena_bytes{%s, state="free"}' % N: "%dx60" % (824 * MIB),
    'rvd_arena_bytes{%s, state="largest_free"}' % N: "%dx60" % (300 * MIB),
    'rvd_registration_failures_total{%s, reason="map"}' % N: "3x60",
    "rvd_unmaps_unconfirmed_total{%s}" % N: "0x60",
    'rvd_lease_keys_total{%s, outcome="not_revoked"}' % N: "0x60",
    'rvd_core_busy_seconds_total{%s, core="0"}' % N: "0+40x60",
    'velo_rendezvous_operations_total{%s, operation="get", status="ok"}' % N: "0+300x60",
    'velo_rendezvous_operations_total{%s, operation="get", status="error"}' % N: "0+1x60",
    'velo_rendezvous_rdma_path_total{%s, path="chunked", reason="get_failed"}' % N: "7x60",
    'velo_rendezvous_rdma_path_total{%s, path="chunked", reason="below_min"}' % N: "0+50x60",
    'rvd_leases_reaped_total{%s, kind="rdma"}' % N: "0 0 0 0 0 5x60",
}

ends = contextlib.ExitStack()  # ends what the tests share
nodes = {}


def program(name):
    path = shutil.which(name)
    if not path:
        raise Missing("%s (Debian's package prometheus)" % name)
    return path


def promtool(*args, **kw):
    p = subprocess.run([program("promtool")] + list(args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       timeout=60 * SLOW, **kw)
    assert p.returncode == 0, p.stdout.decode()
    return p.stdout.decode()


def scratch():
    return ends.enter_context(tempfile.TemporaryDirectory(prefix="rvd-test-"))


class Prometheus:
    """One of our own, on a free port, that scrapes @targets each second."""

    def __init__(self, targets):
        self.dir = scratch()
        self.log_path = os.path.join(self.dir, "log")
        conf = os.path.join(self.dir, "prometheus.yml")
        with open(conf, "w") as f:  # JSON is YAML
            json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [RULES],
                       "scrape_configs": [{"job_name": "rvd", "static_configs": [{"targets": targets}]}]}, f)
        promtool("check", "config", conf)
        with open(self.log_path, "wb") as log:
            self.proc = subprocess.Popen(
                [program("prometheus"), "--config.file=" + conf, "--storage.tsdb.path=" + os.path.join(self.dir, "data"),
                 "--web.listen-address=127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.dir)
        ends.callback(self.stop)
        self.port = eventually(self.find_port, 30, "the port of Prometheus")
        eventually(self.is_ready, 30, "Prometheus")  # it listens before it serves

    def find_port(self):
        text = open(self.log_path, errors="replace").read()
        assert self.proc.poll() is None, text
        m = re.search(r'msg="Listening on" address=127\.0\.0\.1:(\d+)', text)
        return m and int(m.group(1))

    def is_ready(self):
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/-/ready" % self.port, timeout=30 * SLOW) as r:
                return r.status == 200
        except urllib.error.HTTPError:
            return False

    def stop(self):
        self.proc.terminate()
        try:
            self.proc.wait(timeout=30 * SLOW)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()

    def api(self, path, **args):
        url = "http://127.0.0.1:%d/api/v1/%s?%s" % (self.port, path, urllib.parse.urlencode(args))
        try:
            with urllib.request.urlopen(url, timeout=30 * SLOW) as r:
                out = json.load(r)
        except urllib.error.HTTPError as e:
            raise AssertionError("%s %s: %s" % (path, args, e.read().decode(errors="replace")))
        assert out["status"] == "success" and not out.get("warnings"), (path, args, out)
        return out["data"]

    def query(self, expr, at=None):
        """[(labels, value)]"""
        data = self.api("query", query=expr, **({"time": "%.3f" % at} if at else {}))
        assert data["resultType"] == "vector", expr
        return [(r["metric"], float(r["value"][1])) for r in data["result"]]

    def scraped_since(self, when):
        got = self.query('timestamp(rvd_ready{job="rvd"})')
        return len(got) == len(nodes) and all(at > when for _, at in got)


def address(d):
    return "127.0.0.1:%s" % d.ports["metrics"]


@functools.lru_cache(None)
def daemons():
    for name in ("a", "b"):
        nodes[name] = ends.enter_context(Daemon(name, ucx=True))
    return nodes["a"], nodes["b"]


def traffic(a, b):
    """What KNOWN counts."""
    ca, cb = a.client(), b.client()
    cb.call(PEER_ADD, host="127.0.0.1", port=a.tcp)
    for c, path, sizes in ((cb, CHUNKED, CHUNKS), (cb, RDMA, READS), (ca, ANY, LOCAL)):
        for size in sizes:
            data = pattern(size)
            h = ca.put(data)
            got = c.get(h, path=path)
            assert got["data"] == data, "wrong bytes"
            c.free(got)
            c.call(RELEASE, worker=h[0], local=h[1], lease_id=got["lease_id"])
    eventually(lambda: not ca.list("slots")["total"], what="the slots' end")
    try:
        cb.get(h)
        raise AssertionError("still there")
    except Refused:
        pass
    p = RawPeer(a.tcp)
    assert p.call("_hello", {})[0] is False
    p.close()
    for d in (a, b):
        # The longest free range is looked for now and then.
        eventually(lambda: d.metrics()['rvd_arena_bytes{state="largest_free"}'], what="a look at the free ranges")


@functools.lru_cache(None)
def prometheus():
    return Prometheus([address(d) for d in daemons()])


@functools.lru_cache(None)
def world():
    """Two daemons, scraped before and after the traffic: (Prometheus, when it is all there)."""
    a, b = daemons()
    p = prometheus()
    eventually(lambda: p.scraped_since(0), 30, "the first scrape")
    traffic(a, b)
    done = time.time()
    eventually(lambda: p.scraped_since(done), 30, "a scrape after the traffic")
    return p, time.time()


def dashboard():
    with open(DASHBOARD) as f:
        return json.load(f)


def panels():
    return [p for p in dashboard()["panels"] if p["type"] != "row"]


def filled_in(expr, names):
    """As Grafana does it: each value with its special characters escaped for a regular expression in quotes."""
    values = [re.escape(address(nodes[n])).replace("\\", "\\\\") for n in names]
    out = expr.replace("$__rate_interval", "5m").replace("$instance", "(%s)" % "|".join(values))
    assert "$" not in out, out
    return out


def metric_names(expr):
    return set(re.findall(r"\b(?:rvd|velo)_\w+", expr))


def exported(d):
    """Its text, and {family: type}."""
    with urllib.request.urlopen("http://%s/metrics" % address(d), timeout=10 * SLOW) as r:
        text = r.read().decode()
    return text, dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def series_names(families):
    out = {}
    for name, kind in families.items():
        for ending in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            out[name + ending] = name
    return out


def test_panels_have_their_place_and_say_what_they_show():
    taken, ids, titles = {}, set(), set()
    for p in dashboard()["panels"]:
        g = p["gridPos"]
        assert g["x"] >= 0 and g["x"] + g["w"] <= 24 and g["h"] > 0 and g["w"] > 0, p["title"]
        for cell in ((x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])):
            assert cell not in taken, "%s lies on %s" % (p["title"], taken[cell])
            taken[cell] = p["title"]
        assert p["id"] not in ids and p["title"] not in titles, p["title"]
        ids.add(p["id"])
        titles.add(p["title"])
        if p["type"] == "row":
            assert g["w"] == 24 and p["panels"] == [], p["title"]
            continue
        defaults = p["fieldConfig"]["defaults"]
        assert p["description"] and defaults["unit"] and defaults["thresholds"]["steps"], p["title"]
        refs = [t["refId"] for t in p["targets"]]
        assert refs and len(set(refs)) == len(refs), p["title"]
        for where in [p] + p["targets"]:
            assert where["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}, p["title"]
        for t in p["targets"]:
            for selector in re.findall(r"(?:\b(?:rvd|velo)_\w+|\bup)(?!\w)(\{[^}]*\})?", t["expr"]):
                assert 'instance=~"$instance"' in selector, "%s: not of the chosen nodes: %s" % (p["title"], t["expr"])
    # No holes: a panel begins where another one, a row or the top ends.
    assert {y for _, y in taken} == set(range(1 + max(y for _, y in taken)))


def test_names_are_those_that_the_daemons_export():
    a, b = daemons()
    families = {}
    for d in (a, b):
        families.update(exported(d)[1])
    known = series_names(families)
    used = set()
    for p in panels():
        for t in p["targets"]:
            for name in metric_names(t["expr"]):
                assert name in known, "%s: nobody exports %s" % (p["title"], name)
                used.add(known[name])
    for name in metric_names(open(RULES).read()):
        assert name in known, "the alerts: nobody exports %s" % name
    ours = {n for n in families if n.startswith(("rvd_", "velo_"))}
    assert ours == set(families), set(families) - ours
    assert ours - used == set(NO_PANEL), "without a panel, or in the table of those: %s" % ((ours - used) ^ set(NO_PANEL))


def test_what_is_exported_is_well_formed():
    program("promtool")
    for d in daemons():
        out = promtool("check", "metrics", input=exported(d)[0].encode())
        assert not out.strip(), out


def test_prometheus_has_what_was_moved():
    p, at = world()
    for name, expr, value in KNOWN:
        got = p.query(re.sub(r"(\w+)(?:\{(.*)\})?$", lambda m: '%s{instance="%s", %s}' % (
            m.group(1), address(nodes[name]), m.group(2) or ""), expr), at)
        assert len(got) == 1 and got[0][1] == value, (name, expr, got, value)
    for d in nodes.values():  # no series is lost on the way
        lines = d.metrics()
        got = p.query('{job="rvd", instance="%s", __name__=~"(rvd|velo)_.*"}' % address(d), at)
        assert len(got) == len(lines), (len(got), len(lines))


def test_every_query_of_the_dashboard_has_an_answer():
    p, at = world()
    for panel in panels():
        for t in panel["targets"]:
            for names in ("b", "ab"):  # a alone fetched nothing by RDMA
                got = p.query(filled_in(t["expr"], names), at)
                assert got, "%s is empty for %s: %s" % (panel["title"], names, t["expr"])
                for labels, _ in got:
                    for label in re.findall(r"\{\{(\w+)\}\}", t.get("legendFormat", "")):
                        assert label in labels, "%s: no label %s" % (panel["title"], label)
                labels = [tuple(sorted(l.items())) for l, _ in got]
                assert len(set(labels)) == len(labels)
            assert any(math.isfinite(v) for _, v in got), "%s shows no number: %s" % (panel["title"], t["expr"])


def test_the_dashboard_shows_what_was_moved():
    p, at = world()
    by_title = {panel["title"]: {t["legendFormat"]: t["expr"] for t in panel["targets"]} for panel in panels()}
    for title, legend, names, value in SHOWN:
        got = p.query(filled_in(by_title[title][legend], names or "ab"), at)
        assert len(got) == 1 and math.isclose(got[0][1], value, rel_tol=1e-6, abs_tol=1e-9), (title, legend, got, value)
    expr = by_title["Throughput by path"]["{{path}}"]
    got = {l["path"]: v for l, v in p.query(filled_in(expr, "ab"), at)}
    assert set(got) == {"local", "chunked", "rdma"} and all(v > 0 for v in got.values()), got
    low, high = (p.query(filled_in(by_title["RDMA GET latency"][q], "b"), at)[0][1] for q in ("p50", "p99"))
    assert 0 < low <= high, (low, high)


def test_the_variable_lists_the_nodes():
    p, at = world()
    variables = {v["name"]: v for v in dashboard()["templating"]["list"]}
    assert set(variables) == {"DS_PROMETHEUS", "instance"} and variables["instance"]["multi"]
    m = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["instance"]["query"]["query"])
    got = {s[m.group(2)] for s in p.api("series", **{"match[]": m.group(1)})}
    assert got == {address(d) for d in nodes.values()}, got


def rules(p):
    return [r for g in p.api("rules")["groups"] for r in g["rules"]]


def test_alerts_are_evaluated_and_say_what_to_do():
    assert "SUCCESS" in promtool("check", "rules", RULES)
    p, at = world()
    eventually(lambda: all(r["health"] != "unknown" for r in rules(p)), 30, "an evaluation")
    text = open(OPERATIONS).read()
    headings = set(re.findall(r"^#+ (.*)$", text, re.M))
    for r in rules(p):
        assert r["type"] == "alerting" and r["health"] == "ok", r
        assert r["labels"].get("severity") in ("critical", "warning"), r["name"]
        assert set(r["annotations"]) == {"summary", "description", "action"}, r["name"]
        p.query(r["query"], at)
        for heading in re.findall(r'docs/OPERATIONS\.md, "([^"]*)"', r["annotations"]["action"]):
            assert heading in headings, "%s sends its reader to %s" % (r["name"], heading)
        assert "`%s`" % r["name"] in text, "docs/OPERATIONS.md does not name %s" % r["name"]
    assert not [r["name"] for r in rules(p) if r["state"] == "firing"]


def test_each_alert_fires_when_it_should():
    def fires(alert, at):  # that one and no other; None: none
        firing = [{"labels": '{alertname="%s"}' % alert, "value": 1}] if alert else []
        return {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "%dm" % at, "exp_samples": firing}

    def case(name, extra, *what):
        series = [{"series": k, "values": v} for k, v in {**HEALTHY, **extra}.items()]
        return {"interval": "1m", "name": name, "input_series": series, "promql_expr_test": list(what)}

    tests = [case("healthy", {}, *(fires(None, at) for at in range(0, 60, 5)))]
    for name, (quiet, loud, extra) in FIRES.items():
        tests.append(case(name, extra, fires(None, quiet), fires(name, loud)))
    path = os.path.join(scratch(), "tests.yml")
    with open(path, "w") as f:
        json.dump({"rule_files": [RULES], "evaluation_interval": "1m", "tests": tests}, f)
    promtool("test", "rules", path)
    assert set(re.findall(r"alert: (\w+)", open(RULES).read())) == set(FIRES)


def test_the_scrape_configuration_of_the_document_is_one():
    m = re.search(r"^((?: {4}.*\n|\n)*    scrape_configs:\n(?: {4}.*\n|\n)*)", open(OPERATIONS).read(), re.M)
    path = os.path.join(scratch(), "prometheus.yml")
    with open(path, "w") as f:
        f.write(re.sub(r"^ {4}", "", m.group(1), flags=re.M))
    promtool("check", "config", "--syntax-only", path)
    assert "job_name: rvd\n" in open(path).read()  # what RvdDown looks for


def test_a_node_that_ends_is_seen():
    p, _ = world()
    a, b = daemons()
    expr = [panel for panel in panels() if panel["title"] == "Not serving"][0]["targets"][0]["expr"]
    assert b.stop() == 0
    eventually(lambda: [v for _, v in p.query(filled_in(expr, "ab"))] == [1], 30, "a node that does not serve")
    eventually(lambda: [r["state"] for r in rules(p) if r["name"] == "RvdDown"] == ["pending"], 30, "its alert")
    assert a.stop() == 0


if __name__ == "__main__":
    try:
        main(globals())
    except SystemExit as e:
        for d in nodes.values() if e.code else ():
            sys.stderr.write("---- log of %s\n%s\n" % (d.name, d.text()[-6000:]))
        raise
    finally:
        ends.close()
