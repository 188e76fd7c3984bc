#!/usr/bin/env python3
"""Each command in the documents runs, or names the test that runs it; each log line they explain is one that rvd writes."""
import glob
import re
import threading

from rvdtest import *

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DOCS = ["README.md", "CONTRIBUTING.md"] + ["docs/" + n for n in ("OPERATIONS.md", "TROUBLESHOOTING.md", "COMPARISON.md", "SCALE.md", "HARDENING.md")]
PROGRAM = re.compile(r"^(\./)?(scripts/\w|build/tools/|rv[a-z_]+ |rvtop|rvd |meson |eval |apt |systemctl |adduser |export |python3 -c|bpftrace |sysctl |numactl |kill |install -d|setpriv |curl )")

# What a reader puts in, put in.
WORDS = [("build/tools/", ""), ("/usr/local/bin/rvd", "RVD"), ("weights.bin", "weights"), ("rv://HOST:PORT/HANDLE", "REF"), ("rv://HOST:7471/HANDLE", "REF"),
         ("OWNER", "localhost"), ("FILE", "weights")]

# Commands that are run elsewhere: what they begin with, and the test that runs them.
ELSEWHERE = {
    "./scripts/demo": "scripts/test: part_demo", "./scripts/test": ".ci/run: scripts/test", "scripts/test": ".ci/run: scripts/test",
    "meson setup build": "scripts/test: meson", "eval \"$(scripts/setup": "scripts/test: scripts/setup",
    "scripts/package": "tests/packages/test_packages.py: scripts/package", "apt install ./build/packages": "tests/packages/in_root.sh: apt-get install",
    "systemctl status rvd": "tests/integration/test_service.py: systemd-analyze", "adduser $USER rvd": "tests/packages/in_root.sh: useradd -G rvd",
    "export RVD_SOCKET": "tests/packages/in_root.sh: RVD_SOCKET", "rvd -c /etc/rvd/rvd.conf": "tests/packages/in_root.sh: -c /etc/rvd/rvd.conf",
    "python3 -c 'import socket": "tests/integration/test_telemetry.py: SEQPACKET", "scripts/trace-": "tests/integration/test_probes.py: trace-",
    "bpftrace -e": "tests/integration/test_probes.py: usdt", "rv_get_bw localhost --path verbs": "tests/rdma/test_verbs.py: verbs",
    "scripts/bench": "scripts/test: scripts/bench", "scripts/soak": "tests/integration/test_docs.py: soak_says_what_it_does",
    "scripts/rdma-vm": "scripts/test: scripts/rdma-vm", "scripts/coverage": "tests/integration/test_docs.py: soak_says_what_it_does",
    "numactl ": "tests/integration/test_docs.py: machine_settings_are_spelt_right", "sysctl vm.": "tests/integration/test_docs.py: machine_settings_are_spelt_right",
    "scripts/scale": "tests/integration/test_docs.py: soak_says_what_it_does", "scripts/setup": "scripts/test: scripts/setup",
    "rvd -s tcp.listen=0.0.0.0:7471": "tests/integration/test_docs.py: every_command_runs",
    "install -d -o rvd": "tests/packages/in_root.sh: install -d -o rvd -g rvd /run/rvd", "setpriv ": "tests/packages/in_root.sh: setpriv --reuid rvd --regid rvd",
    "rvd -s node.name=b": "tests/integration/test_docs.py: two_on_one_host", "rvctl --socket /tmp/b/": "tests/integration/test_docs.py: two_on_one_host",
    "curl -s http://127.0.0.1:9471/metrics": "tests/demo/test_demo.py: curl",
}


def commands():
    """(document, line) of each command that stands by itself: indented, or in a table's cell of its own."""
    for name in DOCS:
        path = os.path.join(TOP, name)
        for line in open(path) if os.path.exists(path) else ():
            m = re.match(r"^    (\S.*)$", line)
            if m and PROGRAM.match(m.group(1)):
                yield name, re.split(r"\s{2,}#", m.group(1))[0].strip()
            elif line.startswith("|"):
                for cell in re.findall(r"`([^`]+)`", line):
                    if re.match(r"^scripts/(test|bench|soak|coverage|scale) ", cell):
                        yield name, cell


def spelt(command):
    for a, b in WORDS:
        command = command.replace(a, b)
    return command


def elsewhere(command):
    for begin in sorted(ELSEWHERE, key=len, reverse=True):
        if command.startswith(begin):
            return ELSEWHERE[begin]
    return None


def test_every_command_runs():
    tools = os.path.join(BUILD, "tools")
    ran, seen = [], []
    with Daemon("a") as a, Daemon("b") as b, tempfile.TemporaryDirectory() as tmp:
        open(os.path.join(tmp, "weights"), "wb").write(pattern(200000))
        c = a.client()
        lib = b.client()
        c.call(PEER_ADD, lib.call(PEER_INFO)["payload"], name="PEER")
        lib.call(SERVE, name="HANDLER")
        over = threading.Event()

        def serve():
            lib.sock.settimeout(0.2)
            while not over.is_set():
                try:
                    lib.serve_one(lambda *what: what[-1])
                except (socket.timeout, TimeoutError, BlockingIOError):
                    pass
                except (EOFError, OSError, AssertionError):
                    return
        t = threading.Thread(target=serve)
        t.start()
        env = dict(os.environ, PATH=tools + ":" + os.environ["PATH"], RVD_SOCKET=a.socket)
        server = subprocess.Popen([os.path.join(tools, "rv_get_bw")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(1)
            for name, command in commands():
                command = spelt(command)
                if elsewhere(command):
                    seen.append(command)
                    continue
                if command in ("rv_get_bw", "rvtop"):
                    ran.append(command)  # the server above; test_rvtop.py, which has a terminal for it
                    continue
                for one in alternatives(command):
                    ref = rvctl(a, "put", os.path.join(tmp, "weights"), "--refs", "9")[1].decode().strip()
                    line = one.replace("REF", ref)
                    if line.startswith("rv_get_"):
                        line += " -n 20"
                    p = subprocess.run(["sh", "-c", line], env=env, cwd=tmp, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120 * SLOW)
                    assert p.returncode == 0, "%s: %s\n%s" % (name, one, p.stdout.decode())
                    ran.append(one)
        finally:
            over.set()
            t.join()
            server.kill()
            server.wait()
        lib.close()
        assert len(ran) > 15, ran


def test_two_on_one_host_as_the_document_has_it():
    start, get = [c for _, c in commands() if "/tmp/b/rvd.sock" in c]
    with Daemon("a") as a, tempfile.TemporaryDirectory() as tmp:
        env = dict(os.environ, PATH=os.path.join(BUILD, "tools") + ":" + os.environ["PATH"], RVD_SOCKET=a.socket)
        open(os.path.join(tmp, "source"), "wb").write(pattern(100000))
        ref = rvctl(a, "put", os.path.join(tmp, "source"))[1].decode().strip()
        line = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", start.replace("/tmp/b", tmp + "/b"))
        with open(os.path.join(tmp, "log"), "wb") as log:
            b = subprocess.Popen(["sh", "-c", "exec " + line], env=env, cwd=tmp, stdout=log, stderr=log)
        try:
            eventually(lambda: b"serves as worker" in open(os.path.join(tmp, "log"), "rb").read(), what="the second daemon")
            said = open(os.path.join(tmp, "log")).read()
            assert " error " not in said and "another daemon" not in said, said
            line = get.replace("/tmp/b", tmp + "/b").replace("rv://HOST:7471/HANDLE", ref)
            p = subprocess.run(["sh", "-c", line], env=env, cwd=tmp, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60 * SLOW)
            assert p.returncode == 0 and open(os.path.join(tmp, "weights.bin"), "rb").read() == pattern(100000), p.stdout
        finally:
            b.terminate()
            assert b.wait(60 * SLOW) == 0
        assert a.stop() == 0


def alternatives(command):
    """`rvctl a | b | c` stands for three."""
    words = command.split(" | ")
    if len(words) == 1:
        return [command]
    return [words[0]] + ["rvctl " + w for w in words[1:]]


def test_what_is_run_elsewhere_is_run_there():
    used = {elsewhere(spelt(c)) for _, c in commands()} - {None}
    for place in used:
        path, _, what = place.partition(": ")
        text = open(os.path.join(TOP, path)).read()
        assert what in text or (what.startswith("part_") and what in text), place


def test_soak_says_what_it_does():
    """The long runs are not run here; that they know each argument the documents give them is."""
    for name, command in commands():
        words = command.split()
        if words[0] not in ("scripts/soak", "scripts/coverage", "scripts/scale") or len(words) < 2:
            continue
        text = open(os.path.join(TOP, words[0])).read()
        assert re.search(r"\b%s\b" % re.escape(words[1]), text) or re.match(r"^\d+[hms]?$", words[1]), (name, command)


def test_the_scripts_of_the_readme_tell_their_usage_and_do_nothing_else():
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, HOME=home, XDG_CACHE_HOME=home)  # no UCX there: what is done leaves a trace
        for name in ("demo", "package", "setup"):
            for arg, code in (("--help", 0), ("--no-such-option", 2)):
                p = subprocess.run([os.path.join(TOP, "scripts", name), arg], env=env, cwd=home, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, timeout=60 * SLOW)
                said = (p.stderr if code else p.stdout).decode()
                assert p.returncode == code and "scripts/" + name in said, (name, arg, p)
        assert os.listdir(home) == [], os.listdir(home)


def test_what_the_packages_are_built_with_is_installed_for_the_build():
    control = open(os.path.join(TOP, "packaging/debian/control")).read()
    wanted = re.search(r"^Build-Depends:((?:.|\n )*)", control, re.M).group(1)
    setup = re.search(r"^BUILD_PACKAGES=\(([^)]*)\)", open(os.path.join(TOP, "scripts/setup")).read(), re.M).group(1).split()
    names = [re.sub(r"-compat$", "", re.split(r"[ (]", w.strip())[0]) for w in wanted.split(",")]
    assert len(names) > 10 and not set(names) - set(setup), set(names) - set(setup)


def test_machine_settings_are_spelt_right():
    for _, command in commands():
        m = re.match(r"sysctl ([\w.]+)=", command)
        if m:
            assert os.path.exists("/proc/sys/" + m.group(1).replace(".", "/")), command
    unit = open(os.path.join(TOP, "packaging/systemd/rvd.service.in")).read()
    for limit in ("LimitMEMLOCK=infinity", "LimitNOFILE="):
        assert limit in unit


def test_log_lines_are_those_that_rvd_writes():
    source = "".join(open(f).read() for d in ("control", "dataplane", "tools", "ucx", "verbs") for f in glob.glob(os.path.join(TOP, d, "**/*.c"), recursive=True))
    source = re.sub(r'"\s*\n?\s*(PRI\w+\s*)?"', "", source)  # texts go on over lines
    table = open(os.path.join(TOP, "docs/TROUBLESHOOTING.md")).read().split("## By log line")[1].split("##")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.M)
    assert len(lines) > 8
    for line in lines:
        for piece in re.split(r"\.\.\.|\bN\b|: ", line):  # what stands before a colon may be a value
            assert len(piece.strip()) < 9 or piece.strip() in source, (line, piece)


def test_links_lead_somewhere():
    for path in [os.path.join(TOP, n) for n in ("README.md", "CONTRIBUTING.md")] + glob.glob(os.path.join(TOP, "docs/*.md")):
        text = open(path).read()
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith("http"):
                continue
            target, _, anchor = link.partition("#")
            where = os.path.join(os.path.dirname(path), target) if target else path
            assert os.path.exists(where), (path, link)
            if anchor:
                heads = [re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", open(where).read(), re.M)]
                assert anchor in heads, (path, link, heads)


def test_keys_named_in_the_documents_exist():
    out = subprocess.run([os.path.join(BUILD, "tools/rvd"), "--help-config"], stdout=subprocess.PIPE).stdout.decode()
    keys, section = set(), ""
    for line in out.splitlines():
        m = re.match(r"^\[(\w+)", line)
        section = m.group(1) if m else section
        m = re.match(r"^(\w+) \(", line)
        if m:
            keys.add(section + "." + m.group(1))
    sections = {k.split(".")[0] for k in keys}
    for path in [os.path.join(TOP, "README.md")] + glob.glob(os.path.join(TOP, "docs/*.md")):
        for key in re.findall(r"`(\w+\.\w+)(?: =[^`]*)?`", open(path).read()):
            if key.split(".")[0] in sections and not key.endswith((".c", ".h", ".py")):
                assert key in keys, (path, key)


if __name__ == "__main__":
    main(globals())
