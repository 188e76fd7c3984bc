#!/usr/bin/env python3
"""Two users of one node: what is whose, and who may do what."""
import grp
import mmap
import shutil

from rvdtest import *

NOBODY = 65534


def as_nobody(fn):
    """In this process, for a moment: the daemon asks the kernel whose the socket is when it is connected."""
    os.seteuid(NOBODY)
    try:
        return fn()
    finally:
        os.seteuid(0)


def refused(rc, fn):
    try:
        fn()
    except Refused as e:
        assert e.rc == rc, e
        return e.text
    raise AssertionError("it was allowed")


def two_users(d):
    if os.geteuid():
        raise Missing("root, to be two users")
    for path in (d.dir, d.socket):
        os.chmod(path, 0o777)
    return d.client(), as_nobody(d.client)


def test_another_users_slot_is_read_as_a_copy_and_not_dropped():
    data = pattern(200000)
    with Daemon("a") as d:
        root, other = two_users(d)
        h, mine = root.put(data, refs=5), other.put(data[:1000])
        assert {s["uid"] for s in root.list("slots")["slots"]} == {0, NOBODY}
        own, theirs = root.get(h), other.get(h)
        assert own["data"] == data and theirs["data"] == data
        # One is a view of the slot's own memory, the other a copy in memory of its user's.
        assert own["arena"] != theirs["arena"]
        kinds = {(a["uid"], a["kind"]) for a in root.list("arenas")["arenas"] if a["blocks"]}
        assert (NOBODY, "landing") in kinds and (0, "landing") not in kinds, kinds
        assert "another user" in refused(-1, lambda: other.call(DROP, worker=h[0], local=h[1]))
        assert root.get(h)["data"] == data
        # Root may do both to others.
        root.call(DROP, worker=mine[0], local=mine[1])
        assert len(root.list("slots")["slots"]) == 1


def test_what_is_shown_cannot_be_written():
    data = pattern(100000)
    with Daemon("a") as d:
        root, other = two_users(d)
        h = root.put(data, refs=5)
        for c in (root, other):
            rep = c.get(h)
            fd = c.arenas[rep["arena"]]
            for prot in (mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_WRITE):
                try:
                    mmap.mmap(fd, rep["arena_len"], mmap.MAP_SHARED, prot)
                    raise AssertionError("an arena that is only to be seen was mapped writable")
                except (PermissionError, OSError):
                    pass
            try:
                os.pwrite(fd, b"x", rep["off"])
                raise AssertionError("an arena that is only to be seen was written")
            except OSError:
                pass
            try:
                os.ftruncate(fd, 0)
                raise AssertionError("an arena was shrunk")
            except OSError:
                pass
        assert root.get(h)["data"] == data


def test_buffers_and_views_belong_to_their_session():
    with Daemon("a") as d:
        root, other = two_users(d)
        a = root.call(ALLOC, len=5000, flags=SHARED)
        for c in (other, as_nobody(d.client), d.client()):
            refused(-22, lambda: c.call(COMMIT, token=a["token"], len=5000))
            c.send(FREE, token=a["token"])
            rid = c.send(WRITE, b"evil", token=a["token"])
            rep = c.recv()
            assert rep["id"] == rid and rep["rc"] < 0, rep
        c = root.call(COMMIT, token=a["token"], len=5000)
        assert root.list("slots")["total"] == 1 and c["local"]


def test_only_root_and_the_daemons_user_administer():
    with Daemon("a") as d:
        root, other = two_users(d)
        asking, on, drain, level = 0, 1, 3, 4
        assert other.call(ADMIN, what=asking)["path"] == 0
        for what, name in ((on, ""), (drain, ""), (level, "debug")):
            refused(-1, lambda: other.call(ADMIN, what=what, name=name))
        assert root.call(ADMIN, what=asking)["path"] == 0 and "debug" not in d.text()
        root.call(ADMIN, what=on)
        assert other.call(ADMIN, what=asking)["path"] == 1


# A program of Python's, and rvctl: which socket they fail at, and what they say.
ASKS = (lambda *args: [RVCTL, "status"] + list(args),
        lambda *args: [sys.executable, "-c", "import sys, rv; rv.Client(*sys.argv[2:])"] + list(args))


def said_to_nobody(cmd, before="", **env):
    """Of @cmd as that user, in a mount namespace of its own after @before."""
    if os.geteuid():
        raise Missing("root, to be two users")
    keep = {"PATH": os.environ["PATH"], "PYTHONPATH": os.path.join(os.path.dirname(__file__), "../../control/client/python"),
            "PYTHONDONTWRITEBYTECODE": "1"}
    script = before + 'exec setpriv --reuid %d --regid %d --clear-groups "$@"' % (NOBODY, NOBODY)
    p = subprocess.run(["unshare", "--mount", "sh", "-ec", script, "sh"] + cmd, env=dict(keep, **env), stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=60 * SLOW)
    assert p.returncode, p
    return p.stderr.decode()


def test_who_may_not_use_the_socket_is_told_whose_it_is():
    with Daemon("a") as d:
        os.chmod(d.dir, 0o755)
        for ask in ASKS:
            said = said_to_nobody(ask("--socket", d.socket))
            assert "no permission for %s: " % d.socket in said and "its group, %s," % grp.getgrgid(os.stat(d.socket).st_gid).gr_name in said, said
        os.chmod(d.dir, 0o700)  # then it cannot be seen whose it is
        for ask in ASKS:
            said = said_to_nobody(ask("--socket", d.socket))
            assert "no permission for %s: " % d.socket in said and "membership in its group and log in" in said, said


def test_who_finds_no_daemon_of_its_own_is_told_of_the_systems():
    if not shutil.which("unshare"):
        raise Missing("unshare, to have a /run")
    run = "mount -t tmpfs tmpfs /run; mkdir /run/rvd; "
    hint = "export RVD_SOCKET=/run/rvd/rvd.sock"
    for ask in ASKS:
        said = said_to_nobody(ask(), run + "touch /run/rvd/rvd.sock; ", XDG_RUNTIME_DIR="/nonexistent")
        assert "no daemon answers on /nonexistent/rvd/rvd.sock: " in said and hint in said, said
        assert hint not in said_to_nobody(ask(), run, XDG_RUNTIME_DIR="/nonexistent"), "there is none"
        said = said_to_nobody(ask(), run + "touch /run/rvd/rvd.sock; ", RVD_SOCKET="/nonexistent/s")
        assert "no daemon answers on /nonexistent/s: start rvd" in said and hint not in said, said


if __name__ == "__main__":
    main(globals())
