#!/usr/bin/env python3
"""Every test that docs/SPECIFICATION.md, docs/SECURITY.md and docs/HARDENING.md name must exist: `unit/test_x: name`, `*` for the whole file.

A row of a table whose second column is headed "proved by" must name one.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def source(name):
    for ending in (".c", ".py"):
        path = os.path.join(ROOT, "tests", name + ending)
        if os.path.exists(path):
            return open(path).read()
    return None


def check(document):
    """(tests named, faults)"""
    bad = named = 0
    proving = False
    for n, line in enumerate(open(os.path.join(ROOT, document)), 1):
        cells = [c.strip() for c in line.split("|")]
        if len(cells) < 4:
            proving = False
            continue
        if cells[2] == "proved by":
            proving = True
            continue
        if not proving or set(cells[1]) == {"-"}:
            continue
        tests = re.findall(r"`(\w+/(?:test|fuzz)_\w+): ([\w*]+)`", cells[2])
        if not tests:
            print("%s:%d: a rule without a test" % (document, n))
            bad += 1
        for where, name in tests:
            named += 1
            text = source(where)
            if text is None or (name != "*" and not re.search(r"\b(test_)?%s\b" % name, text)):
                print("%s:%d: no test %s: %s" % (document, n, where, name))
                bad += 1
    if not named:
        print("%s names no test" % document)
        bad += 1
    return named, bad


def main():
    found = [check(d) for d in ("docs/SPECIFICATION.md", "docs/SECURITY.md", "docs/HARDENING.md")]
    print("check_spec: %d tests named" % sum(n for n, _ in found))
    return 1 if any(bad for _, bad in found) else 0


sys.exit(main())
