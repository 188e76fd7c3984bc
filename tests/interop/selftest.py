#!/usr/bin/env python3
"""selftest.py - the stock peers against each other: proves the harness before rvd is judged with it.

    tests/interop/selftest.py            builds the peers if stale
    tests/interop/selftest.py BINARY...  with these
"""
import os
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True
from peer import PeerError, PeerHung, StockPeer, fnv1a, pattern  # noqa: E402

SIZES = (0, 1, 65536, 524289, 5000037)
NO_SLOT = 1 << 40


def eventually(fact, seconds=5.0):
    """Detach and release have no answer: look until they have arrived."""
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


def fails(call, text):
    try:
        call()
    except PeerError as e:
        assert text in str(e), f"error says {e!r}, not {text!r}"
        return
    raise AssertionError("was expected to fail")


def gets_of_every_size_are_whole(owner, consumer):
    for size in SIZES:
        handle = owner.put(size, seed=size % 251)
        assert consumer.metadata(handle) == (size, 1, False)
        got = consumer.get(handle, size % 251)
        assert got.good and got.length == size, got
        consumer.detach(handle, got.lease)
        got = consumer.get_release(handle, size % 251)
        assert got.good and got.length == size, got


def a_wrong_pattern_is_seen(owner, consumer):
    handle = owner.put(1000, seed=1)
    assert not consumer.get_release(handle, 2).good


def detach_keeps_and_release_frees(owner, consumer):
    handle = owner.put(70000, seed=5)
    got = consumer.get(handle, 5)
    consumer.detach(handle, got.lease)
    assert consumer.metadata(handle).refcount == 1
    got = consumer.get(handle, 5)
    consumer.release(handle, got.lease)

    def gone():
        try:
            return not consumer.metadata(handle)
        except PeerError as e:
            return "rendezvous handle not found" in str(e)
    eventually(gone)
    fails(lambda: consumer.get(handle, 5), "rendezvous handle not found")


def a_reference_survives_one_release(owner, consumer):
    handle = owner.put(10, seed=6)
    consumer.ref(handle)
    assert consumer.metadata(handle).refcount == 2
    got = consumer.get(handle, 6)
    consumer.release(handle, got.lease)
    eventually(lambda: consumer.metadata(handle).refcount == 1)
    consumer.release(handle, got.lease)  # over already: ignored
    time.sleep(0.05)
    assert consumer.metadata(handle).refcount == 1


def an_unknown_handle_is_an_error(owner, consumer):
    unknown = (owner.put(1, 0) >> 64 << 64) | NO_SLOT
    fails(lambda: consumer.metadata(unknown), "rendezvous handle not found")
    fails(lambda: consumer.get(unknown, 0), "rendezvous handle not found")
    fails(lambda: consumer.ref(unknown), "handle not found")
    fails(lambda: consumer.ask("get nonsense 0"), "bad handle")
    fails(lambda: consumer.ask("nonsense"), "unknown command")


def calls_reach_the_handlers(owner, consumer):
    assert {"echo", "len"} <= set(consumer.handlers(owner.instance))
    for size in SIZES:
        assert consumer.call(owner.instance, "echo", size, 9)[:2] == (size, "ok")
    reply = consumer.call(owner.instance, "len", 300000, 9)
    assert reply.verdict == "ok", reply
    assert reply.text == f"300000 {fnv1a(pattern(300000, 9)):016x}", reply
    fails(lambda: consumer.call(owner.instance, "nowhere", 1, 1), "nowhere")


def a_silent_peer_is_an_exception(owner, consumer):
    try:
        owner.answer(deadline_s=0.05)
    except PeerHung:
        return
    raise AssertionError("a line came from nowhere")


def a_draining_owner_refuses_calls(owner, consumer):
    owner.gate()
    fails(lambda: consumer.call(owner.instance, "echo", 1, 1), "shutting down")
    assert owner.drain() == 0
    assert consumer.drain() == 0


TESTS = (gets_of_every_size_are_whole, a_wrong_pattern_is_seen, detach_keeps_and_release_frees,
         a_reference_survives_one_release, an_unknown_handle_is_an_error, calls_reach_the_handlers,
         a_silent_peer_is_an_exception, a_draining_owner_refuses_calls)


def run_pair(owner_binary, consumer_binary):
    """@return (passed, failed). The tests share two peers; the last one ends them."""
    passed = failed = 0
    with StockPeer(owner_binary) as owner, StockPeer(consumer_binary) as consumer:
        consumer.register(owner.info)
        owner.register(consumer.info)
        for test in TESTS:
            try:
                test(owner, consumer)
                passed += 1
            except Exception:  # a failed test must not hide the next one
                failed += 1
                print(f"FAILED {test.__name__}")
                traceback.print_exc(file=sys.stdout)
    return passed, failed


def main():
    binaries = sys.argv[1:]
    if not binaries:
        build = os.path.join(os.path.dirname(os.path.abspath(__file__)), "build")
        binaries = subprocess.run([build], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    passed = failed = 0
    for owner in binaries:
        for consumer in binaries:
            print(f"owner {os.path.basename(owner)} consumer {os.path.basename(consumer)}", flush=True)
            p, f = run_pair(owner, consumer)
            passed, failed = passed + p, failed + f
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
