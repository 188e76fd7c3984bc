"""What the tests in the virtual machine share: daemons on the two ends of a link, each with its RDMA device."""
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from rvdtest import *  # noqa: E402

HOSTS = {1: ("10.9.0.1", "rxe0:1", "v0"), 2: ("10.9.0.2", "rxe1:1", "v1")}


def node(name, end, **options):
    """A daemon at one end of the link, UCX on its device alone."""
    host, device, _ = HOSTS[end]
    options.setdefault("memory__initial_arena_bytes", "2MiB")
    options.setdefault("verbs__enabled", "no")
    return Daemon(name, ucx=True, ucx__tls="rc_v", ucx__net_devices=device, tcp__listen=host + ":0", **options)


def verbs_node(name, end, ucx=False, **options):
    """A daemon at one end of the link with its device's verbs, and UCX only where that is wanted."""
    host, device, _ = HOSTS[end]
    options.setdefault("memory__initial_arena_bytes", "2MiB")
    if ucx:
        options.update(ucx__tls="rc_v", ucx__net_devices=device)
    return Daemon(name, ucx=ucx, verbs__enabled="yes", verbs__device=device.split(":")[0], verbs__listen="0.0.0.0:0",
                  tcp__listen=host + ":0", **options)


def know(b, a, end=1):
    return b.call(PEER_ADD, host=HOSTS[end][0], port=a.tcp)["worker"]


def sh(*cmd):
    subprocess.run(cmd, check=True)


def link_down(after, seconds):
    """The owner's end of the link goes down in a moment, for so long. The thread that does it."""
    def run():
        time.sleep(after)
        sh("ip", "link", "set", "v0", "down")
        time.sleep(seconds)
        sh("ip", "link", "set", "v0", "up")
        # The kernel forgot the route with the link.
        sh("ip", "route", "replace", "10.9.0.2", "dev", "v0", "src", "10.9.0.1", "scope", "link", "table", "101")

    t = threading.Thread(target=run)
    t.start()
    return t
