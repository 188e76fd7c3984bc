#!/usr/bin/env python3
"""The README's demo: it moves the bytes, what it says to type while it stays works, and it leaves nothing behind.

    tests/demo/test_demo.py     prints TAP
"""
import os
import re
import signal
import subprocess
import sys
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import failed, number, say  # noqa: E402

MINUTES = 20


def look(commands):
    """What the demo says to type, typed; rvtop once, since nobody is there to press q."""
    script = "\n".join(commands).replace("rvtop", "rvtop -b -n 1").replace("curl", "curl -fsS")
    p = subprocess.run(["sh", "-ec", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return p.returncode, p.stdout.decode(errors="replace")


def main():
    demo = subprocess.Popen([ROOT + "/scripts/demo", "--quick", "--stay"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, start_new_session=True)
    late = threading.Timer(MINUTES * 60, os.killpg, (demo.pid, signal.SIGKILL))
    late.start()
    text, commands = "", []
    for line in demo.stdout:
        line = line.decode(errors="replace")
        text += line
        if line.startswith("    "):
            commands.append(line.strip())
        if "curl " in line:
            break  # the last that it says
    if say(text.count("bytes equal") == 4 and "\ndone: " in text, "the demo moves a file by RDMA and by chunks", text):
        rc, out = look(commands)
        say(rc == 0 and "core 0" in out and re.search(r" bytes in .* path ", out) and "velo_rendezvous_bytes_total" in out,
            "what it says to type while it stays works", "\n".join(commands) + "\n" + out)
    os.killpg(demo.pid, signal.SIGINT)  # Ctrl-C: the daemons get it too
    rest = demo.stdout.read().decode(errors="replace")
    say(demo.wait() == 0, "Ctrl-C ends it", text + rest)
    late.cancel()
    folder = re.search(r"RVD_SOCKET=(\S+)/b/rvd.sock", text)
    say(folder and not os.path.exists(folder.group(1)), "it leaves nothing behind", text + rest)
    print("1..%d" % number[0])
    return 1 if failed[0] else 0


if __name__ == "__main__":
    sys.exit(main())
