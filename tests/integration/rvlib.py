"""librv as Python programs could use it: the calls these tests need, through ctypes."""
import ctypes as C
import os
import subprocess
import sys

from rvdtest import BUILD

SO = os.path.join(BUILD, "control", "client", "librv.so.1")


def with_sanitizer():
    """A library built with ASan needs ASan's runtime in the interpreter from the start; leaks are not its own."""
    if "RV_ASAN" in os.environ:  # what it starts is as it would be
        os.environ.pop("LD_PRELOAD", None)
        os.environ["ASAN_OPTIONS"] = os.environ.pop("RV_ASAN")
        return
    needed = subprocess.run(["ldd", SO], stdout=subprocess.PIPE, check=True).stdout.decode()
    asan = [line.split()[2] for line in needed.splitlines() if "libasan" in line]
    if not asan:
        return
    options = os.environ.get("ASAN_OPTIONS", "")
    env = dict(os.environ, LD_PRELOAD=asan[0], ASAN_OPTIONS=options + ":detect_leaks=0", RV_ASAN=options)
    os.execve(sys.executable, [sys.executable] + sys.argv, env)


with_sanitizer()
lib = C.CDLL(SO)
lib.rv_last_error.restype = C.c_char_p
U64, P = C.c_uint64, C.c_void_p


class Handle(C.Structure):
    _fields_ = [("worker", U64), ("local", U64)]

    def pair(self):
        return (self.worker, self.local)


class How(C.Structure):
    _fields_ = [("elapsed_ns", U64), ("took", C.c_int), ("plain", C.c_int), ("pinned", C.c_bool), ("path", C.c_char * 64)]


class Opts(C.Structure):
    _fields_ = [("ttl_ns", U64), ("timeout_ns", U64), ("refs", C.c_uint32), ("path", C.c_int), ("session", C.c_bool),
                ("keep", C.c_bool), ("how", C.POINTER(How)), ("reserved", U64 * 4)]


class Buf(C.Structure):
    _fields_ = [("data", C.c_void_p), ("len", C.c_uint64), ("writable", C.c_bool), ("pinned", C.c_bool), ("plain", C.c_int),
                ("client", C.c_void_p), ("token", C.c_uint64), ("arena", C.c_void_p)]


class RvError(Exception):
    def __init__(self, rc):
        super().__init__("%d: %s" % (rc, lib.rv_last_error().decode()))
        self.rc = rc


def check(rc):
    if rc:
        raise RvError(rc)


lib.rv_open.argtypes = [C.c_char_p, C.POINTER(P)]
lib.rv_close.argtypes = [P]
lib.rv_close.restype = None
lib.rv_alloc_pinned.argtypes = [P, U64, C.POINTER(Buf)]
lib.rv_register_pinned.argtypes = [P, C.POINTER(Buf), C.POINTER(Opts), C.POINTER(Handle)]
lib.rv_drop.argtypes = [P, Handle]
lib.rv_region_register.argtypes = [P, C.c_int, U64, U64, C.POINTER(P)]
lib.rv_register_data_in_region.argtypes = [P, P, U64, U64, C.POINTER(Opts), C.POINTER(Handle)]
lib.rv_region_effective_range.argtypes = [P, C.POINTER(U64), C.POINTER(U64)]
lib.rv_region_effective_range.restype = None
lib.rv_region_unregister.argtypes = [P, U64, C.POINTER(C.c_int)]
lib.rv_region_hand_over.argtypes = [P]
lib.rv_region_drop.argtypes = [P]
lib.rv_region_drop.restype = None
lib.rv_region_watch.argtypes = [P, C.POINTER(P)]
lib.rv_region_deregistered.argtypes = [P, U64]
lib.rv_region_watch_free.argtypes = [P]
lib.rv_region_watch_free.restype = None

DRAINED, DRAIN_TIMED_OUT = 0, 1


class Lib:
    """One session."""

    def __init__(self, socket):
        self.c = P()
        check(lib.rv_open(socket.encode(), C.byref(self.c)))

    def close(self):
        lib.rv_close(self.c)

    def fill(self, length, byte):
        """A slot of so many bytes, written in the arena itself. @return its handle"""
        b, o, h = Buf(), Opts(), Handle()
        check(lib.rv_alloc_pinned(self.c, length, C.byref(b)))
        C.memset(b.data, byte, length)
        check(lib.rv_register_pinned(self.c, C.byref(b), C.byref(o), C.byref(h)))
        return h

    def region(self, fd, offset, length):
        r = P()
        check(lib.rv_region_register(self.c, fd, offset, length, C.byref(r)))
        return Region(self, r)


class Region:
    def __init__(self, session, ptr):
        self.session, self.ptr = session, ptr

    def stage(self, offset, length, **opts):
        h, how = Handle(), How()
        o = Opts(how=C.pointer(how), **opts)
        check(lib.rv_register_data_in_region(self.session.c, self.ptr, offset, length, C.byref(o), C.byref(h)))
        self.pinned = how.pinned
        return h.pair()

    def effective(self):
        off, n = U64(), U64()
        lib.rv_region_effective_range(self.ptr, C.byref(off), C.byref(n))
        return off.value, n.value

    def unregister(self, timeout_s):
        how = C.c_int(-1)
        check(lib.rv_region_unregister(self.ptr, int(timeout_s * 1e9), C.byref(how)))
        return how.value

    def hand_over(self):
        check(lib.rv_region_hand_over(self.ptr))

    def drop(self):
        lib.rv_region_drop(self.ptr)

    def watch(self):
        w = P()
        check(lib.rv_region_watch(self.ptr, C.byref(w)))
        return Watch(w)


class Watch:
    def __init__(self, ptr):
        self.ptr = ptr

    def released(self, timeout_s=0):
        rc = lib.rv_region_deregistered(self.ptr, int(timeout_s * 1e9))
        if rc not in (0, -110):
            raise RvError(rc)
        return rc == 0

    def free(self):
        lib.rv_region_watch_free(self.ptr)
