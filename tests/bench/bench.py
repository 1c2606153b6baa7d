#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""CPU (user + system, whole process tree) per delivered line, beside the floor program, in alternating rounds of one run.

usage: bench.py [--rounds 3] [--seconds 3] [--only WORD] [--json FILE] [--seccomp]

Each case sends the same load to the floor (tests/bench/floor_shard.c) and to millrace with one and with two workers, ten
TCP backends each. Prints per case the medians, the ratio to the floor and the limit that the project set itself. Never a
gate: a busy machine shows in the spread. With --seccomp: one worker with its filter beside one without, and no floor.
"""
import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MILLRACE_BUILD", ROOT / "build"))
BACKENDS = 10
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what runs is ended, too

# name, options of millrace-replay, datagrams (None: seconds × pps), pps, limit for one worker
CASES = [
    ("1432 B, flat out", ["--bytes", "1432"], 300000, None, 1.5),
    ("8900 B, flat out", ["--bytes", "8900"], 80000, None, 1.5),
    ("one line, flat out", ["--one"], 800000, None, 1.5),
    ("1432 B, 20,000/s", ["--bytes", "1432", "--burst", "16"], None, 20000, 1.5),
    ("8900 B, 8,000/s", ["--bytes", "8900", "--burst", "16"], None, 8000, 1.5),
    ("one line, 50,000/s, evenly", ["--one", "--burst", "1"], None, 50000, 0.5),
]


def wait_for(condition, what, seconds=60):
    """Its value, once it is true; who waits in vain ends the run."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            sys.exit(f"waited {seconds} s for {what}")
        time.sleep(0.02)
    return value


def settled(look, is_empty, what="the relay to settle", seconds=60):
    """What look() says when it says the same twice, 0.3 s apart, and is_empty() of it."""
    last = None

    def still():
        nonlocal last
        before, last = last, look()
        if last == before and is_empty(last):
            return True
        time.sleep(0.3)
        return False
    wait_for(still, what, seconds)
    return last


@contextlib.contextmanager
def running(*words, **kw):
    """A program that is ended with the block, however that is left: an orphan would hold the output of the run open."""
    with subprocess.Popen([str(w) for w in words], **kw) as p:
        try:
            yield p
        finally:
            p.terminate()


def backend_row(control):
    """The first backend of a millrace's status; None when nobody answers yet."""
    out = subprocess.run([BUILD / "millracectl", "-s", control, "status", "--json"], capture_output=True, text=True).stdout
    return json.loads(out)["backends"][0] if out else None


def threads(pids):
    """{(task, its name): run time in ns}"""
    found = {}
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            name = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
            found[task, name] = int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return found


def tree(pid):
    pids = [pid]
    for p in pids:
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                pids += [int(c) for c in Path(f"/proc/{p}/task/{task}/children").read_text().split()]
        except FileNotFoundError:
            pass
    return pids


def cpu_ns(pids):
    """Run time of all threads from schedstat: finer than ticks."""
    total = 0
    for p in pids:
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                total += int(Path(f"/proc/{p}/task/{task}/schedstat").read_text().split()[0])
        except FileNotFoundError:
            pass
    return total


def free_range(kind, n):
    for first in range(12000, 30000, 50):
        try:
            for port in range(first, first + n):
                with socket.socket(socket.AF_INET, kind) as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    sys.exit("bench: no free ports")


def relay_command(name, port, first):
    if name == "floor":
        return [BUILD / "tests/floor_shard", port, first, BACKENDS], "stdout", "ready"
    words = [BUILD / "millrace", "--listen", f"udp://127.0.0.1:{port}", "--workers", name.split()[0]]
    for i in range(BACKENDS):
        words += ["--backend", f"127.0.0.1:{first + i}"]
    if name.endswith("unfiltered"):
        words += ["--seccomp=false"]
    return words, "stderr", "is serving"


def report(sink):
    sink.stdin.write("report\n")
    sink.stdin.flush()
    return json.loads(sink.stdout.readline())


def once(name, options, count, pps):
    port, first = free_range(socket.SOCK_DGRAM, 1), free_range(socket.SOCK_STREAM, BACKENDS)
    words, stream, ready = relay_command(name, port, first)
    with running(BUILD / "millrace-sink", "--json", "--control-stdin", "--ports", BACKENDS, f"127.0.0.1:{first}",
                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sink:
        for _ in range(BACKENDS):
            sink.stdout.readline()
        with running(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as relay:
            if not any(ready in line for line in getattr(relay, stream)):
                sys.exit(f"{words[0]} ended before it was ready")
            # connections are made before the load begins: they are not what is measured
            n = BACKENDS * (int(name.split()[0]) if name != "floor" else 1)
            wait_for(lambda: report(sink)["open"] >= n, f"{n} connections")
            pids = tree(relay.pid)
            before = cpu_ns(pids)
            load = [BUILD / "millrace-replay", "--json", "-q", "--sources", "16", "--count", count, *options]
            load += ["--pps", pps] if pps else ["--flat-out"]
            sent = json.loads(subprocess.run([str(w) for w in [*load, f"127.0.0.1:{port}"]], capture_output=True, text=True,
                                             check=True).stdout.splitlines()[-1])
            lines = settled(lambda: report(sink)["lines"], lambda _: True)
            used = cpu_ns(pids) - before
    return {"ns": used / max(lines, 1), "share": lines / sent["lines"], "cores": used / 1e9 / sent["seconds"]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=float, default=3)
    ap.add_argument("--only", default="")
    ap.add_argument("--json")
    ap.add_argument("--seccomp", action="store_true")
    a = ap.parse_args()
    table = []
    print(f"{'load':28} {'relay':12} {'ns/line':>9} {'spread':>17} {'ratio':>6} {'limit':>6} {'delivered':>9} {'cores':>6}")
    for case, options, count, pps, limit in CASES:
        if a.only not in case:
            continue
        names = ["1 unfiltered", "1 worker"] if a.seccomp else ["floor", "1 worker", "2 workers"]
        runs = {name: [] for name in names}
        for _ in range(a.rounds):
            for name, results in runs.items():
                results.append(once(name, options, count or int(a.seconds * pps), pps))
        median = {name: statistics.median(r["ns"] for r in rs) for name, rs in runs.items()}
        for name, rs in runs.items():
            ns = [r["ns"] for r in rs]
            row = {"load": case, "relay": name, "ns_per_line": median[name], "ratio": median[name] / median[names[0]],
                   "limit": 1 if name == names[0] or a.seccomp else limit if name == "1 worker"
                   else 1.15 * median["1 worker"] / median["floor"],
                   "delivered": statistics.median(r["share"] for r in rs), "cores": statistics.median(r["cores"] for r in rs)}
            table.append(row)
            print(f"{case:28} {name:12} {row['ns_per_line']:9.1f} {min(ns):8.1f}..{max(ns):7.1f} {row['ratio']:6.2f} "
                  f"{row['limit']:6.2f} {100 * row['delivered']:8.2f}% {row['cores']:6.2f}", flush=True)
    if a.json:
        Path(a.json).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
