#!/usr/bin/env python3
"""The Debian packages in a clean Debian 12 root, and the container that is made of them.

    tests/packages/test_packages.py     prints TAP

Needs root, debootstrap and a Debian mirror. The bare root is kept for a week in ${XDG_CACHE_HOME:-~/.cache}/rvd.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import failed, number, say  # noqa: E402

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rvd")
WEEK = 7 * 24 * 3600


def run(cmd, **kw):
    try:
        p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, **kw)
    except subprocess.TimeoutExpired as e:
        return 124, (e.stdout or b"").decode(errors="replace") + "\nno end within 15 minutes"
    return p.returncode, p.stdout.decode(errors="replace")


def mirror():
    for path in glob.glob("/etc/apt/sources.list.d/*.sources") + glob.glob("/etc/apt/sources.list.d/*.list") + ["/etc/apt/sources.list"]:
        if os.path.exists(path):
            m = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^]]*\]\s*)?)(https?://\S+)", open(path).read(), re.M)
            if m:
                return m.group(1)
    return "http://deb.debian.org/debian"


def bare_root(where):
    """A minimal Debian 12, unpacked there."""
    kept = os.path.join(CACHE, "debian-12-minbase.tar")
    if not os.path.exists(kept) or time.time() - os.path.getmtime(kept) > WEEK:
        os.makedirs(CACHE, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as tmp:
            rc, out = run(["debootstrap", "--variant=minbase", "bookworm", tmp + "/root", mirror()])
            if rc:
                return rc, out
            for name in glob.glob("/etc/apt/apt.conf.d/*proxy*"):
                shutil.copy(name, tmp + "/root/etc/apt/apt.conf.d/")
            rc, out = run(["tar", "-C", tmp + "/root", "-cf", tmp + "/tar", "."])
            if rc:
                return rc, out
            os.rename(tmp + "/tar", kept)
    return run(["tar", "-C", where, "-xf", kept])


def inside(root, *cmd):
    """In the root, with mounts and processes of its own that go with it."""
    script = ("mount -t proc proc %s/proc && mount --rbind /sys %s/sys && mount -t tmpfs tmpfs %s/run && exec chroot %s \"$@\"" % ((root,) * 4))
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        if os.path.exists(name):
            shutil.copy(name, root + name)
    env = {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}
    return run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"] + list(cmd),
               env=dict(env, PATH="/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL="C"))


def link_against(packages, root):
    """A program that is built as a stranger would, with what librv-dev holds."""
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("librv1", "librv-dev"):
            subprocess.run(["dpkg", "-x", glob.glob("%s/%s_*.deb" % (packages, name))[0], tmp], check=True)
        pc = os.path.dirname(glob.glob(tmp + "/usr/lib/*/pkgconfig/rv.pc")[0])
        env = dict(os.environ, PKG_CONFIG_LIBDIR=pc, PKG_CONFIG_SYSROOT_DIR=tmp)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "rv"], check=True, env=env, stdout=subprocess.PIPE).stdout.decode().split()
        source = os.path.join(tmp, "a.c")
        with open(source, "w") as f:
            f.write('#include <rv/rv.h>\n#include <stdio.h>\nint main(void)\n{\n\tstruct rv_handle h;\n\n'
                    '\treturn rv_handle_parse("18446744073709551616", &h) || h.worker != 1 || h.local;\n}\n')
        lib = os.path.dirname(glob.glob(tmp + "/usr/lib/*/librv.so")[0])
        return run(["gcc", "-Wall", "-Werror", source, "-o", root + "/packages/linked", "-L" + lib] + flags)


def container(packages, tmp, root):
    """The bundle runs as the engine would run it; without io_uring, and without sysfs, it says what is missing."""
    bundle = os.path.join(tmp, "bundle")
    os.mkdir(bundle)
    rc, out = run([os.path.join(ROOT, "packaging/container/build"), packages, bundle], env=dict(os.environ, RVD_DEBIAN_ROOT=root))
    if not say(rc == 0, "a container is built from a Debian root and the packages", out):
        return
    config = json.load(open(bundle + "/config.json"))
    config["process"]["args"] += ["-s", "tcp.listen=127.0.0.1:0", "-s", "metrics.listen=none"]

    def start(c, name):
        with open(bundle + "/config.json", "w") as f:
            json.dump(c, f)
        log = open(os.path.join(tmp, name), "w+")
        p = subprocess.Popen(["runc", "--root", tmp + "/runc", "run", "-b", bundle, name], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.time() + 60
        while time.time() < end and p.poll() is None and "serves as worker" not in open(log.name).read():
            time.sleep(0.1)
        return p, log.name

    p, log = start(config, "rvd-test-%d-a" % os.getpid())
    up = p.poll() is None and "serves as worker" in open(log).read()
    say(up, "it serves under its seccomp profile, without a capability", open(log).read())
    if up:
        run(["runc", "--root", tmp + "/runc", "kill", "rvd-test-%d-a" % os.getpid(), "TERM"])
        try:
            say(p.wait(60) == 0, "and stops clean", open(log).read())
        except subprocess.TimeoutExpired:
            p.kill()
            say(False, "and stops clean", open(log).read())
    without = json.loads(json.dumps(config))
    for call in without["linux"]["seccomp"]["syscalls"]:
        call["names"] = [n for n in call["names"] if not n.startswith("io_uring")]
    bare = json.loads(json.dumps(config))
    bare["mounts"] = [m for m in bare["mounts"] if m["destination"] != "/sys"]
    for c, name, want in ((without, "b", "io_uring is not available here"), (bare, "c", "mount sysfs")):
        p, log = start(c, "rvd-test-%d-%s" % (os.getpid(), name))
        rc = p.wait(60) if p.poll() is not None or "serves as worker" not in open(log).read() else None
        text = open(log).read()
        errors = [line for line in text.splitlines() if " error " in line]
        say(rc == 1 and len(errors) == 1 and want in errors[0] and "Usage" not in text, "it ends with one line that says: %s" % want,
            "exit %s\n%s" % (rc, text))


def main():
    missing = [t for t in ("debootstrap", "dpkg-buildpackage", "runc", "unshare") if not shutil.which(t)]
    if os.getuid() or missing:
        print("1..0 # skip " + ("needs root" if os.getuid() else "not here: " + ", ".join(missing)))
        return 77
    packages = os.path.join(os.environ.get("RV_BUILD", ROOT + "/build"), "packages")
    rc, out = run([ROOT + "/scripts/package", packages])
    if say(rc == 0, "the packages build", out):
        with tempfile.TemporaryDirectory(prefix="rvd-root-") as tmp:
            root, second = tmp + "/root", tmp + "/second"
            os.mkdir(root)
            os.mkdir(second)
            rc, out = bare_root(root)
            if say(rc == 0, "there is a bare Debian 12 root", out):
                bare_root(second)
                os.mkdir(root + "/packages")
                for deb in glob.glob(packages + "/*.deb"):
                    if "dbgsym" not in deb:
                        shutil.copy(deb, root + "/packages/")
                rc, out = link_against(packages, root)
                say(rc == 0, "a program builds with librv-dev and rv.pc", out)
                shutil.copy(os.path.join(ROOT, "tests/packages/in_root.sh"), root + "/packages/")
                _, out = inside(root, "sh", "/packages/in_root.sh")
                for line in out.splitlines():
                    m = re.match(r"(not )?ok \d+ - (.*)", line)
                    if m:
                        say(not m.group(1), m.group(2), out)
                say("\n1.." in out, "the root was seen to the end", out)
                container(packages, tmp, second)
    print("1..%d" % number[0])
    return 1 if failed[0] else 0


sys.exit(main())
