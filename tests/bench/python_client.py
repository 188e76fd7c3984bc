#!/usr/bin/env python3
"""python_client.py [--short] - the Python client's gets beside librv's, in one process.

Both block, both end the lease with the get, and both give the view back; librv is called through ctypes, which adds one
or two microseconds to it. Five rounds, the two interleaved; prints "NAME librv USEC python USEC ratio MEDIAN MIN MAX".
"""
import ctypes as C
import statistics
import time

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "integration"), os.path.join(HERE, "..", "..", "control", "client", "python")]

from rvdtest import Daemon  # noqa: E402
import rv  # noqa: E402
import rvlib  # noqa: E402

SHORT = "--short" in sys.argv[1:]
THEN_DETACH = 1


class Buf(C.Structure):
    _fields_ = [("data", C.c_void_p), ("len", C.c_uint64), ("writable", C.c_bool), ("pinned", C.c_bool), ("plain", C.c_int),
                ("client", C.c_void_p), ("token", C.c_uint64), ("arena", C.c_void_p)]


class Opts(C.Structure):
    _fields_ = [("ttl_ns", C.c_uint64), ("timeout_ns", C.c_uint64), ("refs", C.c_uint32), ("path", C.c_int),
                ("session", C.c_bool), ("keep", C.c_bool), ("then", C.c_int), ("how", C.c_void_p),
                ("reserved", C.c_uint64 * 4)]


class Ref(C.Structure):
    _fields_ = [("handle", rvlib.Handle), ("port", C.c_uint16), ("host", C.c_char * 256)]


def librv(session, name, path):
    """A get of @name through librv, as a function."""
    ref = Ref()
    rvlib.check(rvlib.lib.rv_ref_parse(str(name).encode(), C.byref(ref)))
    opts = Opts(path=path, then=THEN_DETACH)
    buf, lease = Buf(), C.c_uint64()
    args = (session.c, C.byref(ref), C.byref(opts), C.byref(buf), C.byref(lease))

    def get():
        rvlib.check(rvlib.lib.rv_get_pinned_at(*args))
        rvlib.lib.rv_buf_free(C.byref(buf))

    return get


def python(client, name, path):
    def get():
        client.get(name, path=path, then="detach").close()

    return get


def usec(get, times):
    get()
    seen = []
    for _ in range(times):
        began = time.perf_counter()
        get()
        seen.append((time.perf_counter() - began) * 1e6)
    return statistics.median(seen)


def compare(what, one, other, times):
    rounds = [(usec(one, times), usec(other, times)) for _ in range(2 if SHORT else 5)]
    ratios = [b / a for a, b in rounds]
    print("%s librv %.1f python %.1f ratio %.2f %.2f %.2f" % (
        what, statistics.median(a for a, _ in rounds), statistics.median(b for _, b in rounds),
        statistics.median(ratios), min(ratios), max(ratios)), flush=True)


def main():
    with Daemon("a") as a, Daemon("b") as b, rv.Client(a.socket) as owner, rv.Client(b.socket) as client:
        session, own = rvlib.Lib(b.socket), rvlib.Lib(a.socket)
        for size, label in ((1024, "1KiB"), ((1 if SHORT else 64) << 20, "large")):
            handle = owner.put(bytes(size))
            name = owner.reference(handle)
            compare("own-" + label, librv(own, handle, 0), python(owner, handle, "any"), 20 if SHORT else 1000)
            compare("get-" + label, librv(session, name, 2), python(client, name, "chunked"),
                    3 if SHORT else 1000 if size < 4096 else 11)
            owner.drop(handle)
        session.close()
        own.close()


main()
