#!/usr/bin/env python3
"""check_layers.py - who may include whom (docs/architecture: "Who may include whom").

    scripts/check_layers.py               check the tree this script is in; FILE:LINE: why, exit 1 on any
    scripts/check_layers.py --self-test   check the checker

Includes are written from the root: #include "dataplane/mem/arena.h".
The Python client imports the standard library and itself; NumPy only where somebody asks for an array.
"""
import os
import re
import sys

TOPS = ("dataplane", "ucx", "verbs", "control", "tools")

# A folder may include its own files and those of a folder on a lower level, never a neighbour's.
DATAPLANE = {"base": 0, "interfaces": 1, "lcore": 2, "mem": 3, "rendezvous": 4, "engine": 5}
CONTROL = {"config": 0, "json": 0, "frame": 0, "uring": 1, "messenger": 2, "local": 3,
           "discovery": 4, "service": 5}

# control/client is the library that programs link: it knows the socket protocol and nothing of the daemon.
CLIENT_SEES = ("control/client/", "dataplane/base/", "control/local/local_proto.h",
               "control/local/shmq.h", "control/local/fdpass.h")

# Programs that talk to a daemon like any other client.
CLIENT_TOOL = re.compile(r"tools/(rvctl|rvtop|text_table)(_\w+)?\.[ch]$")
CLIENT_TOOL_SEES = ("control/client/", "control/json/", "dataplane/base/", "tools/text_table.h")

# Vendor headers, and the only place that may include them. A place that ends in / is a folder.
VENDORS = [
    (r"rte_", "dataplane/lcore/"),
    (r"xxh(ash|3)\.h$", "dataplane/base/"),
    (r"uc[pstm]/", "ucx/"),
    (r"infiniband/|rdma/", "verbs/"),
    (r"liburing(\.h$|/)|linux/io_uring\.h$", "control/uring/"),
    (r"json-c/|json\.h$", "control/json/"),
    (r"msgpack(\.h$|/)", "control/messenger/"),
    (r"ini\.h$", "control/config/"),
    (r"curl/", "control/discovery/"),
    (r"microhttpd\.h$|systemd/", "control/service/"),
    (r"ncursesw?/|n?curses\.h$", "tools/rvtop.c"),
    (r"cmocka\.h$", "tests/"),
]
VENDORS = [(re.compile(pattern), place) for pattern, place in VENDORS]

# The package that programs import.
PYTHON_CLIENT = "control/client/python/rv"
PYTHON_IMPORT = re.compile(r"(\s*)(?:import\s+([\w.]+)|from\s+([\w.]+)\s+import\b)")

INCLUDE = re.compile(r'\s*#\s*include\s*(?:(["<])([^">]+)[">]|(\S.*))')


def folder(path):
    """The first two folders of a path: what the tables are keyed by."""
    parts = path.split("/")
    return parts[0], parts[1] if len(parts) > 2 else ""


def starts(path, prefixes):
    return any(path.startswith(p) for p in prefixes)


def inside(levels, top, src, dst):
    """Both files are in folder `top`, which has levels: is the arrow right?"""
    if src == dst:
        return None
    if levels[dst] < levels[src]:
        return None
    return f"{top}/{src} may not include {top}/{dst}"


def why_unplaced(path):
    """A file that no row of the table covers must not escape the check."""
    top, sub = folder(path)
    if top == "dataplane" and sub not in DATAPLANE:
        return f"{path} is in no folder of dataplane that the table knows"
    if top == "control" and sub not in CONTROL and sub != "client":
        return f"{path} is in no folder of control that the table knows"
    return None


def why_not_ours(src, dst):
    """Why file `src` may not include our header `dst`; None when it may."""
    (top, sub), (dst_top, dst_sub) = folder(src), folder(dst)

    if dst_top not in TOPS:
        return f'"{dst}" is not written from the root of the tree (or is a test\'s)'
    why = why_unplaced(src) or why_unplaced(dst)
    if why:
        return why
    if CLIENT_TOOL.match(src):
        own = CLIENT_TOOL.match(src).group(1)
        if starts(dst, CLIENT_TOOL_SEES + (f"tools/{own}.", f"tools/{own}_")):
            return None
        return f"{own} may include only control/client, control/json and dataplane/base, not {dst}"
    if top == "tools":
        return None
    if top == "control" and sub == "client":
        return None if starts(dst, CLIENT_SEES) else f"control/client may not include {dst}"
    if top == "dataplane" and dst_top == "dataplane":
        return inside(DATAPLANE, top, sub, dst_sub)
    if top == "control" and dst_top == "control":
        if dst_sub == "client":
            return f"control/{sub} may not include control/client"
        return inside(CONTROL, top, sub, dst_sub)
    if dst_top in (top, "dataplane"):
        return None
    return f"{top} may not include {dst_top}"


def why_not_vendor(src, name):
    """Why file `src` may not include <name>; None when it may."""
    for pattern, place in VENDORS:
        if not pattern.match(name):
            continue
        good = src.startswith(place) if place.endswith("/") else src == place
        return None if good else f"<{name}> may be included only in {place}"
    if name.split("/")[0] in TOPS and "/" in name:
        return f"<{name}> is ours: write it with quotes"
    return None


def why_not(src, line):
    """Why `line` of file `src` is refused; None when it is no include or a good one."""
    m = INCLUDE.match(line)
    if not m:
        return None
    quote, name, computed = m.groups()
    if computed:
        return "an include must name its file"
    if ".." in name.split("/"):
        return f'"{name}" is not written from the root of the tree'
    if quote == "<" or any(pattern.match(name) for pattern, _ in VENDORS):
        return why_not_vendor(src, name)
    return why_not_ours(src, name)


def why_not_python(line):
    """Why `line` of the Python client is refused; None when it imports nothing or may."""
    m = PYTHON_IMPORT.match(line)
    if not m:
        return None
    indent, module = m.group(1), (m.group(2) or m.group(3)).split(".")[0]
    if module in ("", "rv") or module in sys.stdlib_module_names or (module == "numpy" and indent):
        return None
    return f"the Python client may not import {module}" + (" at its top" if module == "numpy" else "")


def sources(root):
    for top in TOPS:
        for path, dirs, files in os.walk(os.path.join(root, top)):
            dirs.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h")) or (path.endswith(PYTHON_CLIENT) and name.endswith(".py")):
                    yield os.path.relpath(os.path.join(path, name), root)


def check(root):
    bad = seen = 0
    for src in sources(root):
        seen += 1
        with open(os.path.join(root, src), encoding="utf-8", errors="replace") as f:
            for number, line in enumerate(f, 1):
                why = why_not_python(line) if src.endswith(".py") else why_not(src, line)
                if why:
                    print(f"{src}:{number}: {why}")
                    bad += 1
    if seen == 0:
        print(f"no source files under {root}")
    return 1 if bad or seen == 0 else 0


GOOD = """
dataplane/engine/get.c          "dataplane/engine/msg.h"
dataplane/engine/get.c          "dataplane/base/err.h"
dataplane/mem/arena.c           "dataplane/interfaces/fabric.h"
dataplane/lcore/eal.c           <rte_eal.h>
dataplane/base/hash.c           <xxhash.h>
dataplane/base/log.c            <stdio.h>
ucx/get.c                       "dataplane/rendezvous/descriptor.h"
ucx/get.c                       "ucx/ep.h"
ucx/get.c                       <ucp/api/ucp.h>
verbs/conn.c                    <rdma/rdma_cma.h>
verbs/mr.c                      <infiniband/verbs.h>
control/messenger/calls.c       "control/frame/frame.h"
control/messenger/address.c     <msgpack.h>
control/service/metrics_http.c  <microhttpd.h>
control/service/shutdown.c      <systemd/sd-daemon.h>
control/uring/uring.c           <liburing.h>
control/local/session.c         "dataplane/engine/msg.h"
control/client/client.c         "control/local/local_proto.h"
control/client/client.c         "control/client/arena_map.h"
tools/node.c                    "ucx/fabric_ucx.h"
tools/node.c                    "control/service/health.h"
tools/bench/pair.c              "tools/node.h"
tools/rvctl.c                   "control/json/json.h"
tools/rvctl_get.c               "tools/rvctl_cmd.h"
tools/rvtop.c                   <ncurses.h>
"""
BAD = """
dataplane/base/log.c            "dataplane/mem/arena.h"
dataplane/mem/arena.c           "dataplane/engine/msg.h"
dataplane/mem/arena.c           "ucx/ep.h"
dataplane/mem/arena.c           <rte_ring.h>
dataplane/mem/arena.c           "arena.h"
dataplane/mem/arena.c           "../base/err.h"
dataplane/mem/arena.c           <dataplane/base/err.h>
dataplane/extra/x.c             "dataplane/base/err.h"
dataplane/engine/get.c          <xxhash.h>
ucx/get.c                       "verbs/read.h"
ucx/get.c                       "control/json/json.h"
ucx/get.c                       <infiniband/verbs.h>
verbs/conn.c                    <ucs/type/status.h>
control/config/config.c         "control/json/json.h"
control/frame/frame.c           "control/config/config.h"
control/uring/listener.c        "control/messenger/calls.h"
control/messenger/calls.c       <json-c/json.h>
control/messenger/calls.c       "ucx/am.h"
control/service/registrar.c     "control/client/rv.h"
control/service/registrar.c     <curl/curl.h>
control/client/client.c         "control/local/session.h"
control/client/client.c         "dataplane/engine/msg.h"
control/client/client.c         "control/json/json.h"
tools/rvctl.c                   "tools/node.h"
tools/rvctl_get.c               "control/local/local_proto.h"
tools/rvtop.c                   "dataplane/mem/arena.h"
tools/rvctl.c                   <ncurses.h>
tools/rvd.c                     <cmocka.h>
tools/rvd.c                     "tests/fake/fabric.h"
tools/rvd.c                     HEADER
"""
GOOD_PYTHON = ("import os", "from .ref import Handle", "from . import _proto as p", "    import numpy as np",
               "from collections import deque", "x = 'import y'")
BAD_PYTHON = ("import numpy", "import requests", "from rvdtest import Client", "    import msgpack")


def self_test():
    passed = failed = 0
    for table, want in ((GOOD, True), (BAD, False)):
        for row in table.strip().splitlines():
            src, what = row.split()
            if (why_not(src, f"#include {what}\n") is None) == want:
                passed += 1
            else:
                print(f"self-test: wrong about {src} including {what}")
                failed += 1
    for lines, want in ((GOOD_PYTHON, True), (BAD_PYTHON, False)):
        for line in lines:
            if (why_not_python(line) is None) == want:
                passed += 1
            else:
                print(f"self-test: wrong about a Python client that says {line}")
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    return check(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


if __name__ == "__main__":
    sys.exit(main())
