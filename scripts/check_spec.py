#!/usr/bin/env python3
"""Every test that docs/SPECIFICATION.md names must exist: `unit/test_x: name`, `*` for the whole file."""
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


def main():
    bad = named = 0
    for n, line in enumerate(open(os.path.join(ROOT, "docs", "SPECIFICATION.md")), 1):
        cells = line.split("|")
        if len(cells) < 4 or cells[1].strip() in ("rule", "---") or set(cells[1].strip()) == {"-"}:
            continue
        tests = re.findall(r"`(\w+/test_\w+): ([\w*]+)`", cells[2])
        if not tests:
            print("docs/SPECIFICATION.md:%d: a rule without a test" % n)
            bad += 1
        for where, name in tests:
            named += 1
            text = source(where)
            if text is None or (name != "*" and not re.search(r"\b(test_)?%s\b" % name, text)):
                print("docs/SPECIFICATION.md:%d: no test %s: %s" % (n, where, name))
                bad += 1
    if not named:
        print("docs/SPECIFICATION.md names no test")
    return 1 if bad or not named else 0


sys.exit(main())
