#!/usr/bin/env python3
"""The package as others get it: typed, needing nothing, installed without a network."""
import shutil

from fakedaemon import *

ROOT = os.path.join(HERE, "..", "..")


def run(*cmd, **kw):
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, **kw)
    assert p.returncode == 0, "%s\n%s" % (" ".join(cmd), p.stdout.decode())
    return p.stdout.decode()


def need(*cmd):
    try:
        if subprocess.run(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return
    except OSError:
        pass
    raise Missing("no %s: scripts/setup installs it" % " ".join(cmd))


def in_scratch(fn):
    scratch = tempfile.mkdtemp(prefix="rv-python-")
    try:
        fn(scratch)
    finally:
        shutil.rmtree(scratch)


def test_every_type_is_right():
    need("mypy", "--version")
    in_scratch(lambda d: run("mypy", "--strict", "--cache-dir", d, "rv", "examples", cwd=PACKAGE))


def test_what_users_write_is_typed_too():
    need("mypy", "--version")
    program = '''
import rv

def use(c: rv.Client) -> None:
    h: rv.Handle = c.put(b"x", ttl=5)
    view: rv.View = c.get(h)
    data: memoryview = view.data
    views: list[rv.View] = c.get_many([h, "rv://h:1/5", rv.Ref(h, "h", 1)])
    for got in c.get_many([h], errors=True):
        reveal_type(got)
    c.serve("h", lambda q: q.data)

async def use_async(c: rv.AsyncClient) -> bytes:
    async def handle(q: rv.Request) -> bytes:
        return q.data.tobytes()
    await c.serve("h", handle)
    return await c.get_bytes("5", then="release")

def wrong(c: rv.Client) -> None:
    c.get(5)
    c.get("5", path="slow")
    c.put(b"x", ttl="5")
'''

    def check(d):
        with open(os.path.join(d, "user.py"), "w") as f:
            f.write(program)
        p = subprocess.run(["mypy", "--strict", "--cache-dir", d, "user.py"], cwd=d, stdout=subprocess.PIPE,
                           env=dict(os.environ, MYPYPATH=os.path.abspath(PACKAGE)))
        lines = p.stdout.decode().splitlines()
        assert sum("error:" in line for line in lines) == 3 and "Union[rv.buffers.View, rv.errors.RvError]" in lines[0], lines

    in_scratch(check)


def test_nothing_beside_the_standard_library_is_needed():
    """And NumPy only by who asks for an array."""
    code = ("import sys; sys.modules['numpy'] = None; import rv; "
            "print(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))")
    out = run(sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, %r); %s" % (os.path.abspath(PACKAGE), code))
    assert out.strip() == "['__main__', 'numpy', 'rv']", out


def test_every_public_thing_says_what_it_does():
    import inspect
    for name in rv.__all__:
        thing = getattr(rv, name)
        if not inspect.isclass(thing):
            continue
        assert thing.__doc__, name
        for attr, member in vars(thing).items():
            if not attr.startswith("_") and (inspect.isfunction(member) or isinstance(member, (classmethod, property))):
                assert inspect.getdoc(getattr(thing, attr)), "%s.%s" % (name, attr)


def test_both_clients_have_the_same_verbs_with_the_same_options():
    import inspect
    for name, member in vars(rv.Client).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        twin = getattr(rv.AsyncClient, name)
        assert inspect.iscoroutinefunction(twin), name
        if name != "serve":
            assert inspect.signature(member).parameters == inspect.signature(twin).parameters, name


def test_a_wheel_is_built_and_installed_without_a_network():
    for module in ("setuptools", "wheel", "pip", "venv"):
        need(sys.executable, "-c", "import " + module)

    def build(d):
        src, venv = os.path.join(d, "src"), os.path.join(d, "venv")
        shutil.copytree(PACKAGE, src, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
        offline = dict(os.environ, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        offline.pop("PIP_FIND_LINKS", None)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", d, src, env=offline)
        wheel = [n for n in os.listdir(d) if n.endswith(".whl")]
        assert wheel == ["rvd_client-%s-py3-none-any.whl" % rv.__version__], wheel
        run(sys.executable, "-m", "venv", venv)
        python = os.path.join(venv, "bin", "python")
        run(python, "-m", "pip", "install", "--quiet", os.path.join(d, wheel[0]), env=offline)
        out = run(python, "-I", "-c", "import rv, os; print(rv.__version__, os.path.dirname(rv.__file__))", cwd="/")
        version, where = out.split()
        assert version == rv.__version__ and where.startswith(venv)
        assert os.path.exists(os.path.join(where, "py.typed"))
        # From the folder itself, as a program's requirements would name it; the venv sees the system's setuptools.
        shutil.rmtree(venv)
        run(sys.executable, "-m", "venv", "--system-site-packages", venv)
        run(python, "-m", "pip", "install", "--quiet", "--no-build-isolation", src, env=offline)
        assert run(python, "-c", "import rv; print(rv.__file__)", cwd="/").startswith(venv)

    in_scratch(build)


def test_its_version_is_the_projects():
    with open(os.path.join(ROOT, "meson.build")) as f:
        assert "version: '%s'" % rv.__version__ in f.read()
    with open(os.path.join(PACKAGE, "pyproject.toml")) as f:
        assert 'version = "%s"' % rv.__version__ in f.read()


main(globals())
