#!/usr/bin/env python3
"""What is installed is built so that a fault in it is hard to use."""
import re

from rvdtest import *

PROGRAMS = ["rvd", "rvctl", "rvtop", "rv_get_bw", "rv_get_lat"]
LIBRARY = os.path.join("control", "client", "librv.so.1")


def readelf(what, path):
    return subprocess.run(["readelf", "-W", what, os.path.join(BUILD, path)], stdout=subprocess.PIPE, check=True).stdout.decode()


def everything():
    return [os.path.join("tools", p) for p in PROGRAMS] + [LIBRARY]


def test_addresses_are_random_and_relocations_read_only():
    for f in everything():
        assert re.search(r"Type:\s+DYN", readelf("-h", f)), f
        assert "GNU_RELRO" in readelf("-l", f), f
        assert re.search(r"FLAGS.*(NOW|BIND_NOW)", readelf("-d", f)), f


def test_stacks_are_not_executable_and_nothing_is_writable_and_executable():
    for f in everything():
        segments = readelf("-l", f)
        assert re.search(r"GNU_STACK .* RW ", segments), f
        assert not re.search(r"(LOAD|GNU_STACK) .* RWE ", segments), f


def test_indirect_branches_land_on_marks():
    """The linker says so of a program only where the C library's start files do, too: the code itself is looked at."""
    if os.uname().machine != "x86_64":
        return
    for f in everything():
        code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", os.path.join(BUILD, f)], stdout=subprocess.PIPE,
                              check=True).stdout
        assert code.count(b"endbr64") > 30, f


def test_stacks_are_guarded_and_copies_are_checked():
    asan = "__asan_init" in readelf("--dyn-syms", "tools/rvd")
    for f in everything():
        symbols = readelf("--dyn-syms", f)
        assert "__stack_chk_fail" in symbols, f
        assert asan or re.search(r"__\w+_chk@", symbols.replace("__stack_chk_fail", "")), f


if __name__ == "__main__":
    main(globals())
