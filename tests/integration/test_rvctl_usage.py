#!/usr/bin/env python3
"""test_rvctl_usage.py RVCTL - what rvctl says without a daemon: usage errors, help, exit codes. Prints TAP."""
import os
import subprocess
import sys
import tempfile

RVCTL = sys.argv[1]
HANDLE = "18446744073709551617"

# arguments, exit code, words that the one line on stderr must contain
USAGE = [
    ([], 2, ["command", "--help"]),
    (["gte", HANDLE], 2, ["gte", "get"]),
    (["realease", HANDLE], 2, ["release"]),
    (["peer_info"], 2, ["peer-info"]),
    (["get"], 2, ["REF"]),
    (["get", HANDLE, HANDLE], 2, ["too many"]),
    (["get", "no-handle"], 2, ["no-handle", "rv://"]),
    (["get", "rv://host/12"], 2, ["rv://host/12"]),
    (["get", HANDLE, "--detahc"], 2, ["--detahc", "--detach"]),
    (["get", HANDLE, "--ttl", "1s"], 2, ["--ttl"]),
    (["get", HANDLE, "--detach", "--keep"], 2, ["--detach", "--keep"]),
    (["get", HANDLE, "--path", "fast"], 2, ["--path", "rdma"]),
    (["get", HANDLE, "--timeout", "10"], 2, ["--timeout", "30s"]),
    (["get", HANDLE, "--timeout", "0s"], 2, ["--timeout"]),
    (["get", HANDLE, "--timeout"], 2, ["--timeout", "value"]),
    (["get", HANDLE, "--json=yes"], 2, ["--json"]),
    (["put"], 2, ["FILE"]),
    (["put", "x", "--refs", "0"], 2, ["--refs"]),
    (["put", "x", "--refs", "4294967296"], 2, ["--refs"]),
    (["put", "x", "--ttl", "1 s"], 2, ["--ttl"]),
    (["put", "x", "--ttl=99999999999999999999s"], 2, ["--ttl"]),
    (["detach", HANDLE], 2, ["--lease"]),
    (["detach", HANDLE, "--lease", "x"], 2, ["--lease"]),
    (["release", HANDLE, "--lease", "0"], 2, ["--lease"]),
    (["stat", "340282366920938463463374607431768211456"], 2, ["reference"]),
    (["peer-add", "name"], 2, ["FILE|HOST:PORT"]),
    (["peer-info", "--format", "xml"], 2, ["msgpack"]),
    (["status", "now"], 2, ["now"]),
    (["completion", "fish"], 2, ["fish", "bash"]),
    (["status", "-x"], 2, ["-x", "status --help"]),
    (["get", HANDLE, "--nonsense"], 2, ["--nonsense", "get --help"]),
    (["statsu"], 2, ["mean status?"]),
    (["foo"], 2, ["no command foo. See"]),
    (["put", "x", "--plain", "--pinned"], 2, ["--plain, --pinned"]),
    (["send", "a", "b", "--sync", "--fire"], 2, ["only one of --call"]),
    (["peer-add", "", "127.0.0.1:1"], 2, ["argument 1 is empty", "NAME"]),
    # A good command line, and nobody there.
    (["status"], 6, ["daemon", "nobody.sock"]),
    (["status", "--json"], 6, ["daemon"]),
    (["get", HANDLE], 6, ["daemon"]),
    (["get", "--timeout=1s", "--path", "rdma", "-o", "-", HANDLE], 6, ["daemon"]),
    (["release", "rv://[::1]:7471/" + HANDLE, "--lease", "7"], 6, ["daemon"]),
    (["--json", "slots"], 6, ["daemon"]),
    (["put", "--", "-"], 6, ["daemon"]),
]

# the words of a line in bash, the last one to be completed; what is offered, or some of it
COMPLETE = [
    (["sta"], ["stat", "status"]),
    (["co"], ["completion", "config", "cores"]),
    (["get", "--p"], ["--path"]),
    (["get", "--path", ""], ["any", "chunked", "rdma"]),
    (["kill-switch", "o"], ["off", "on"]),
    (["--socket", "put", "kill-switch", "s"], ["status"]),
    (["put", "x", "--re"], ["--refs", "--region"]),
    (["status", "x"], []),
]

# arguments, words on stdout
TALK = [
    (["--help"], ["put", "get", "peer-add", "--socket", "exit:"]),
    (["-h"], ["usage: rvctl", "commands:"]),
    (["get", "--help"], ["--detach", "--path", "--json", "--timeout"]),
    (["put", "-h"], ["--ttl", "--refs", "--name-only", "--plain"]),
    (["arenas", "-h"], ["usage: rvctl arenas", "LARGEST", "resting_blocks"]),
    (["-V"], ["rvctl"]),
]


def run(args, directory):
    env = dict(os.environ, RVD_SOCKET=os.path.join(directory, "nobody.sock"))
    return subprocess.run([RVCTL] + args, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=20, check=False)


def why_wrong_refusal(r, code, words):
    if r.returncode != code:
        return f"exit {r.returncode}, not {code}: {r.stderr!r}"
    if r.stdout:
        return f"stdout: {r.stdout!r}"
    if r.stderr.count("\n") != 1 or not r.stderr.startswith("rvctl: "):
        return f"not one line of rvctl's: {r.stderr!r}"
    missing = [w for w in words if w not in r.stderr]
    return f"{missing} not in {r.stderr!r}" if missing else None


def why_wrong_talk(r, words):
    if r.returncode or r.stderr:
        return f"exit {r.returncode}: {r.stderr!r}"
    missing = [w for w in words if w not in r.stdout]
    wide = [line for line in r.stdout.splitlines() if len(line) > 80]
    return f"{missing} not in {r.stdout!r}" if missing else f"wider than a terminal: {wide}" if wide else None


def why_wrong_completion(line, want):
    words = "(" + " ".join("'" + w + "'" for w in ["rvctl"] + line) + ")"
    script = '. <("$0" completion bash); COMP_WORDS=%s; COMP_CWORD=%d; _rvctl; printf "%%s\\n" "${COMPREPLY[@]}"' % (
        words, len(line))
    r = subprocess.run(["bash", "-c", script, RVCTL], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
                       check=False)
    offered = sorted(r.stdout.split())
    if r.returncode or r.stderr:
        return f"exit {r.returncode}: {r.stderr!r}"
    return None if offered == sorted(want) else f"{offered}, not {want}"


def main():
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for args, code, words in USAGE:
            results.append((args, why_wrong_refusal(run(args, directory), code, words)))
        for args, words in TALK:
            results.append((args, why_wrong_talk(run(args, directory), words)))
    results += [(["completion:"] + line, why_wrong_completion(line, want)) for line, want in COMPLETE]
    print(f"1..{len(results)}")
    for i, (args, why) in enumerate(results, 1):
        print(f"{'not ok' if why else 'ok'} {i} - rvctl {' '.join(args)}")
        if why:
            print(f"# {why}")
    return 1 if any(why for _, why in results) else 0


if __name__ == "__main__":
    sys.exit(main())
