#!/usr/bin/env python3
"""docs/PYTHON.md and the example do what they say: every command and every snippet is run."""
import contextlib
import io
import re

from rvdtest import *

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PACKAGE = os.path.join(ROOT, "control", "client", "python")
EXAMPLE = os.path.join(PACKAGE, "examples", "kv_cache.py")
sys.path[:0] = [PACKAGE, os.path.dirname(EXAMPLE)]
ENV = dict(os.environ, PYTHONPATH=PACKAGE)

with open(os.path.join(ROOT, "docs", "PYTHON.md")) as f:
    DOC = f.read()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOC, re.M | re.S)


def need_numpy():
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise Missing("no NumPy here: scripts/setup installs it") from None


def clean(*daemons):
    for d in daemons:
        with contextlib.closing(d.client()) as c:
            eventually(lambda: not c.list("status")["used_bytes"] and not c.list("leases").get("leases"), what="all back")


def test_every_snippet_runs_as_it_is_written():
    need_numpy()
    import rv
    snippets = [text for kind, text in BLOCKS if kind == "python"]
    assert len(snippets) >= 7 and all(re.match(r"# on (the owner's|any other) node\n", s) for s in snippets)
    seen = io.StringIO()
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        names = {}
        try:
            for s in snippets:
                os.environ["RVD_SOCKET"] = a.socket if s.startswith("# on the owner's") else b.socket
                with contextlib.redirect_stdout(seen):
                    exec(compile(s, "docs/PYTHON.md", "exec"), names)
        finally:
            os.environ.pop("RVD_SOCKET", None)
            for v in names.values():
                if isinstance(v, rv.Client):
                    v.close()
        assert "Handler 'absent' not found" in seen.getvalue(), seen.getvalue()
        clean(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_every_command_runs_as_it_is_written():
    for module in ("setuptools", "wheel", "pip", "venv"):
        if subprocess.run([sys.executable, "-c", "import " + module], stderr=subprocess.DEVNULL).returncode:
            raise Missing("no %s here: scripts/setup installs it" % module)
    commands = [text for kind, text in BLOCKS if kind == "sh"]
    assert len(commands) == 2
    scratch = tempfile.mkdtemp(prefix="rv-doc-")
    try:
        shutil.copytree(PACKAGE, os.path.join(scratch, "control", "client", "python"),
                        ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        venv = os.path.join(scratch, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", venv], check=True)
        env = dict(os.environ, PATH=os.path.join(venv, "bin") + ":" + os.environ["PATH"], PIP_NO_INDEX="1",
                   PIP_DISABLE_PIP_VERSION_CHECK="1")
        env.pop("PIP_FIND_LINKS", None)
        for c in commands:
            p = subprocess.run(["bash", "-euc", c], cwd=scratch, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert p.returncode == 0, p.stdout.decode()
        assert [n for n in os.listdir(os.path.join(scratch, "dist")) if n.endswith(".whl")]
        out = subprocess.run([os.path.join(venv, "bin", "python"), "-c", "import rv; print(rv.__file__)"], cwd="/",
                             stdout=subprocess.PIPE, check=True).stdout.decode()
        assert out.startswith(venv), out
    finally:
        shutil.rmtree(scratch)


def test_the_table_of_exceptions_is_the_packages():
    import errno
    import rv
    from rv.errors import error
    rows = re.findall(r"^\| (`\w+Error`.*?) \| (.*?) \| .* \|$", DOC, re.M)
    told = set()
    for names, codes in rows:
        names = re.findall(r"`(\w+)`", names)
        told.update(names)
        for code in re.findall(r"`(E\w+)`", codes):
            assert type(error(getattr(errno, code))).__name__ == names[0], (code, names)
    have = {n for n in rv.__all__ if n.endswith("Error")} - {"RvError"}
    assert told == have, told ^ have


def test_the_example_hands_a_block_over_between_two_processes():
    need_numpy()
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        p = subprocess.Popen([sys.executable, EXAMPLE, "publish", a.socket], env=ENV, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
        name, want = p.stdout.readline().decode().split()
        for _ in range(2):
            out = subprocess.run([sys.executable, EXAMPLE, "attend", b.socket, name], env=ENV, stdout=subprocess.PIPE,
                                 check=True, timeout=120 * SLOW).stdout.decode().split()
            assert out[0] == want and out[-1] == "False", (out, want)
        p.stdin.close()
        assert p.wait(timeout=60 * SLOW) == 0
        p.stdout.close()
        clean(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_the_examples_consumer_computes_on_the_daemons_memory():
    """Where the array is: inside a mapping of the daemon's arena; and nothing of its size was allocated."""
    need_numpy()
    import kv_cache
    import numpy
    import rv
    import tracemalloc
    with Daemon("a", ucx=True) as a, Daemon("b", ucx=True) as b:
        with rv.Client(a.socket) as owner, rv.Client(b.socket) as consumer:
            name, want = kv_cache.publish(owner)
            consumer.metadata(name)
            tracemalloc.start()
            with consumer.get(name) as view:
                block = kv_cache.map_block(view)
                grown = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert grown < block.nbytes / 4, (grown, block.nbytes)
                begin = block.__array_interface__["data"][0]
                with open("/proc/self/maps") as f:
                    maps = [line.split(None, 5) for line in f]
                inside = [m for m in maps if int(m[0].split("-")[0], 16) <= begin and
                          begin + block.nbytes <= int(m[0].split("-")[1], 16)]
                assert len(inside) == 1 and inside[0][1] == "r--s" and "memfd:" in inside[0][5], inside
                assert abs(kv_cache.attention(block).sum() - want) < 1e-3
                assert numpy.isfinite(block).all()
                del block
            owner.drop(name)
        clean(a, b)
        assert a.stop() == 0 and b.stop() == 0


def test_the_bench_beside_librv_runs():
    bench = os.path.join(ROOT, "tests", "bench", "python_client.py")
    out = subprocess.run([sys.executable, bench, "--short"], stdout=subprocess.PIPE, check=True, timeout=200 * SLOW)
    rows = [line.split() for line in out.stdout.decode().splitlines()]
    assert [r[0] for r in rows] == ["own-1KiB", "get-1KiB", "own-large", "get-large"], rows
    assert all(float(r[6]) > 0 for r in rows), rows


main(globals())
