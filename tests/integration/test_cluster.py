#!/usr/bin/env python3
"""Eight nodes, each in a network namespace of its own, that find each other through a real etcd by bare handles.

The test runs in namespaces of its own (network, mounts, processes): whatever it makes there, and whoever runs there,
is gone with it, also when it is killed. RV_SEED=N runs the same plan again.
"""
import base64
import errno
import random
import threading

from etcd import Etcd, in_etcd
from rvdtest import *

NODES = 8
OPERATIONS = 400  # of each node's program, in the first part
NET = "10.77.0."  # in a network that nobody else sees
HUB = NET + "254"
SEED = int(os.environ.get("RV_SEED") or random.SystemRandom().randrange(1 << 32))
SIZES = [0, 1, 64, 1000, 4096, 65535, 65536, 65537, 300000, 524287, 524288, 524289, 1 << 20, 3 * (1 << 20) + 5]


def enter_own_namespaces():
    """Start again where nothing of the machine's network is seen, or skip."""
    if os.environ.get("RV_CLUSTER_INSIDE"):
        return
    how = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid():
        how.append("--map-root-user")
    if not shutil.which("unshare") or not shutil.which("ip") or not shutil.which("nsenter"):
        print("1..0 # skip unshare, nsenter (util-linux) or ip (iproute2) is not installed")
        raise SystemExit(77)
    try_all = "mount -t tmpfs none /run && ip netns add x && ip link add cable type veth peer name end netns x && ip link add hub type bridge"
    p = subprocess.run(how + ["sh", "-c", try_all], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    if p.returncode:
        print("1..0 # skip no network namespaces to be had: " + p.stdout.decode().strip().replace("\n", "; "))
        raise SystemExit(77)
    os.environ["RV_CLUSTER_INSIDE"] = "1"
    os.execvp("unshare", how + [sys.executable, os.path.abspath(__file__)] + sys.argv[1:])


def sh(command):
    p = subprocess.run(["sh", "-ec", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert p.returncode == 0, (command, p.stdout.decode())


class Hub:
    """
    A bridge in the test's own namespace; etcd listens there. Its MAC address is set: else it would be that of one of its
    cables, and change when another comes, and who has the old one in its ARP table would not get through for seconds.
    """

    def __init__(self):
        sh("mount -t tmpfs none /run; ip link set lo up; ip link add hub address 02:00:00:00:00:01 type bridge; ip addr add %s/24 dev hub; ip link set hub up" % HUB)
        tempfile.tempdir = "/run"  # it goes with the namespace, also when the test is killed


class Node(Daemon):
    """A daemon in a namespace of its own, on a cable to the hub."""

    def __init__(self, number, etcd, wait=True):
        self.host, self.dying, self.dead = NET + str(number), False, False
        if not os.path.exists("/run/netns/n%d" % number):
            sh("ip netns add n{0}; ip link add c{0} type veth peer name eth0 netns n{0}; ip link set c{0} master hub; ip link set c{0} up; "
               "ip -n n{0} link set lo up; ip -n n{0} addr add {1}/24 dev eth0; ip -n n{0} link set eth0 up".format(number, self.host))
        super().__init__("n%d" % number, wait=wait, within=["nsenter", "--net=/run/netns/n%d" % number],
                         **in_etcd(etcd, tcp__listen=self.host + ":7471"))

    def wait_ready(self):
        super().wait_ready()
        with_it = self.client()
        self.worker = with_it.worker
        with_it.close()
        self.fds_at_first = self.fds()

    def end_at_once(self):
        """From `dying` on a get of its handles may fail, from `dead` on it must."""
        self.dying = True
        self.kill()
        self.dead = True


class Payload:
    """What was put: its bytes follow from its number, which no other has."""

    def __init__(self, node, number, size):
        self.node, self.number, self.size, self.dropped = node, number, size, False
        self.worker = node.worker

    def bytes(self):
        return random.Random(SEED << 32 | self.number).randbytes(self.size)


class World:
    """What all programs know: every payload that was put."""

    def __init__(self):
        self.lock, self.payloads, self.numbers, self.done, self.faults = threading.Lock(), [], 0, 0, []
        self.gets = self.refused = 0
        self.pairs = set()

    def new(self, node, size):
        with self.lock:
            self.numbers += 1
            return Payload(node, self.numbers, size)

    def some(self, rng, nr):
        with self.lock:
            return [rng.choice(self.payloads) for _ in range(nr)] if self.payloads else []


class Program:
    """A program at one node: puts there, gets from anywhere, by handle alone."""

    def __init__(self, world, node, seed):
        self.world, self.node, self.rng, self.c = world, node, random.Random(seed), node.client()

    def put(self, size):
        p = self.world.new(self.node, size)
        p.handle = self.c.put(p.bytes())
        assert p.handle[0] == self.node.worker
        with self.world.lock:
            self.world.payloads.append(p)
        return p

    def drop(self, p):
        p.dropped = True  # before: who fails from now on may
        with self.world.lock:
            self.world.payloads.remove(p)
        self.c.call(DROP, worker=p.handle[0], local=p.handle[1])

    def judge(self, p, was_over, rep):
        """Right bytes, or an error that there is a reason for."""
        if rep["rc"]:
            assert p.dropped or p.node.dying or p.worker != p.node.worker, (p.handle, rep["rc"], rep["payload"])
            # Dropped before it was asked for, or while the bytes were on their way: then its owner says so.
            assert not p.dropped or p.node.dying or rep["rc"] in (-errno.ENOENT, -errno.EREMOTEIO), (p.handle, rep["rc"], rep["payload"])
            self.world.refused += 1
            return
        assert not was_over, "%r was served after its node was gone" % (p.handle,)
        data = self.c.view(rep) if rep["token"] else b""
        assert rep["len"] == p.size and data == p.bytes(), "wrong bytes of %r, put as %d of %d bytes" % (p.handle, p.number, p.size)
        self.c.free(rep)
        if rep["lease_id"]:
            try:
                self.c.call(DETACH, worker=p.handle[0], local=p.handle[1], lease_id=rep["lease_id"])
            except Refused as e:
                assert p.node.dying or p.dropped, e
        with self.world.lock:
            self.world.gets += 1
            self.world.pairs.add((self.c.worker, p.worker))

    @staticmethod
    def over(p):
        return p.node.dead or p.worker != p.node.worker

    def get(self, p):
        was_over = self.over(p)
        rid = self.c.send(GET, worker=p.handle[0], local=p.handle[1])
        rep = self.c.recv()
        assert rep["id"] == rid, rep
        self.judge(p, was_over, rep)
        return rep["payload"].decode() if rep["rc"] else ""

    def get_many(self, ps):
        was_over = [self.over(p) for p in ps]
        flags = self.rng.choice([THEN_DETACH | TOGETHER, TOGETHER, THEN_DETACH])
        reps, together = many(self.c, [p.handle for p in ps], flags=flags, first=1 << 32)
        for p, was, rep in zip(ps, was_over, reps):
            self.judge(p, was, rep)
        return together

    def step(self):
        mine = [p for p in self.world.some(self.rng, 8) if p.node is self.node]
        what = self.rng.randrange(10)
        if what < 3:
            self.put(self.rng.choice(SIZES) if self.rng.randrange(2) else self.rng.randrange(1 << self.rng.randrange(1, 22)))
        elif what < 4 and mine:
            self.drop(mine[0])
        elif what < 6:
            ps = self.world.some(self.rng, self.rng.randrange(1, 24))
            if ps and self.rng.randrange(2):  # short ones of one owner come together
                ps = [p for p in self.world.some(self.rng, 200) if p.node is ps[0].node and p.size <= 65536][:64] or ps
            if ps:
                self.get_many(ps)
        else:
            for p in self.world.some(self.rng, 1):
                self.get(p)

    def run(self, steps):
        try:
            for _ in range(steps):
                if self.node.dying or self.world.faults:
                    return
                self.step()
                with self.world.lock:
                    self.world.done += 1
        except (OSError, EOFError):
            if not self.node.dying:
                self.world.faults.append(traceback.format_exc())
        except Exception:
            self.world.faults.append("node %s: %s" % (self.node.name, traceback.format_exc()))


def all_at_once(world, programs, steps, meanwhile=()):
    """Let them run; each of `meanwhile` (share of the steps done, what) happens in the middle."""
    threads = [threading.Thread(target=p.run, args=(steps,), daemon=True) for p in programs]
    before = world.done
    for t in threads:
        t.start()
    for share, what in meanwhile:
        goal = before + share * steps * len(programs)
        while world.done < goal and any(t.is_alive() for t in threads) and not world.faults:
            time.sleep(0.01)
        what()
    for t in threads:
        t.join(240)
        assert not t.is_alive(), "a program hangs"
    assert not world.faults, "\n".join(world.faults)


def every_pair(world, programs):
    """Each node gets something of each other, alone and together."""
    world.pairs.clear()
    fresh = {p: [p.put(n) for n in (0, 777, 70000)] for p in programs}
    for c in programs:
        for o in programs:
            for x in fresh[o]:
                assert c.get(x) == ""
            c.get_many(fresh[o] + [fresh[o][1]] * 3)
    workers = [p.node.worker for p in programs]
    assert world.pairs == {(a, b) for a in workers for b in workers}, "%d of %d pairs" % (len(world.pairs), len(workers) ** 2)


def nothing_is_left(world, programs):
    """
    Every slot is dropped and every program gone: nodes are as they were, but for connections to each other. Two nodes have
    four, two from each side. And who asked for handles of a node that was there before another has one more to that.
    """
    for p in programs:
        with world.lock:
            mine = [x for x in world.payloads if x.node is p.node]
        for x in mine:
            p.drop(x)
        p.c.close()
    living = [p.node for p in programs]
    for n in living:
        c = n.client()

        def at_rest():
            s = c.list("status")
            busy = (s["slots"], s["used_bytes"], s["resting_blocks"], s["gets_under_way"], s["requests_pending"], sum(s["leases"].values()))
            return not any(busy) and s["sessions"] == 1
        try:
            eventually(at_rest, seconds=30, what="rest")
        except AssertionError as e:
            raise AssertionError("%s: %s %r" % (n.name, e, c.list("status")))
        c.close()
    most = 5 * (len(living) - 1) + 2  # two are gone
    for n in living:
        eventually(lambda: n.metrics()["rvd_tcp_connections"] <= most, seconds=60, what="the end of connections to who is gone")
        c = n.client()
        arenas = len(c.list("arenas")["arenas"])
        c.close()
        try:
            eventually(lambda: n.fds() <= n.fds_at_first + most + arenas, what="the descriptors' end")
        except AssertionError as e:
            where = "/proc/%d/fd/" % n.proc.pid
            raise AssertionError("%s: %d at first, %d arenas, now %r" % (e, n.fds_at_first, arenas, sorted(os.readlink(where + x) for x in os.listdir(where))))


def expect_keys(etcd, nodes, seconds=10):
    want = sorted("/rvd/peers/%d" % n.worker for n in nodes)
    eventually(lambda: sorted(etcd.keys()) == want, seconds=seconds, what="%d keys" % len(want))


def lease_left(etcd, worker):
    """What etcd still gives the node's key, in seconds, of how many."""
    key = base64.b64encode(b"/rvd/peers/%d" % worker).decode()
    lease = etcd.call("/v3/kv/range", {"key": key})["kvs"][0]["lease"]
    out = etcd.call("/v3/lease/timetolive", {"ID": lease})
    return int(out["TTL"]), int(out["grantedTTL"])


def test_eight_nodes_one_killed_one_added_under_load():
    print("# RV_SEED=%d" % SEED, flush=True)
    Hub()
    with Etcd(HUB) as etcd:
        nodes, world, rng = [], World(), random.Random(SEED)
        try:
            nodes += [Node(i + 1, etcd, wait=False) for i in range(NODES)]
            for n in nodes:
                n.wait_ready()
            expect_keys(etcd, nodes)
            programs = [Program(world, n, rng.random()) for n in nodes]
            victim, added = rng.choice(programs), []

            def kill():
                # Its key hangs on a lease that nobody refreshes any more.
                left, granted = lease_left(etcd, victim.node.worker)
                assert 0 < left <= granted == 15, (left, granted)
                victim.node.end_at_once()

            def add():
                added.append(Node(NODES + 1, etcd))
                nodes.append(added[0])
                Program(world, added[0], rng.random()).put(100000)  # the others come upon its handle
            all_at_once(world, programs, OPERATIONS, [(0.4, kill), (0.6, add)])
            assert world.gets > NODES * OPERATIONS // 4 and world.refused, (world.gets, world.refused)
            programs.remove(victim)
            programs.append(Program(world, added[0], rng.random()))
            every_pair(world, programs)

            # The dead node's key goes with its lease.
            expect_keys(etcd, [p.node for p in programs], seconds=60)

            # Its handles are over, and stay so when another node has its address.
            lost = [x for x in world.payloads if x.node is victim.node]
            assert lost
            for p in programs:
                assert p.get(rng.choice(lost))
            heir = Node(nodes.index(victim.node) + 1, etcd)
            nodes.append(heir)
            assert heir.host == victim.node.host and heir.worker != victim.node.worker
            programs.append(Program(world, heir, rng.random()))
            for p in programs:
                why = [p.get(x) for x in rng.sample(lost, min(8, len(lost)))]
                assert all(why), why
            every_pair(world, programs)
            for p in programs:
                assert all(p.get(x) for x in rng.sample(lost, min(8, len(lost))))

            # One is killed and comes back with what it keeps on disk: its old handles are over and say so.
            again = rng.choice(programs)
            old = again.put(5000)
            assert all(p.get(old) == "" for p in programs)
            again.node.end_at_once()
            again.node.restart()
            again.node.dying = again.node.dead = False
            assert again.node.worker != old.worker
            again.c.close()
            again.c = again.node.client()
            for p in programs:
                why = p.get(old)
                assert "owner restarted" in why, why
            with world.lock:
                world.payloads = [x for x in world.payloads if x.worker == x.node.worker and not x.node.dead]
            all_at_once(world, programs, OPERATIONS // 4)
            every_pair(world, programs)
            nothing_is_left(world, programs)
            expect_keys(etcd, [p.node for p in programs], seconds=60)
            for p in programs:
                assert p.node.stop() == 0, p.node.text()
            assert etcd.keys() == {}
            print("# %d gets were right, %d refused with a reason" % (world.gets, world.refused), flush=True)
        except BaseException:
            sys.stderr.write(open(os.path.join(etcd.dir, "log"), errors="replace").read()[-20000:])
            for n in nodes:
                sys.stderr.write("---- log of %s\n%s\n" % (n.name, n.text()[-2000:]))
            raise
        finally:
            for n in nodes:
                n.close()


if __name__ == "__main__":
    enter_own_namespaces()
    main(globals())
