# SPDX-License-Identifier: MIT
"""Fifty restarts of workers and many of everything else: the master holds no descriptor and no process more than before,
and leaves nothing behind."""
import collections
import os
import signal
import socket
from pathlib import Path

import pytest
from conftest import wait_for
from faults import children, is_alive, wait_ready, wait_settled

pytestmark = pytest.mark.usefixtures("apart")

WORKERS = 10


def descriptors(pid):
    """What each descriptor is, without the numbers of pipes and sockets that come and go."""
    kinds = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            kinds.append(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0])
        except OSError:  # closed meanwhile, or the process has ended
            pass
    return sorted(kinds)


def has_no_more(pid, had):
    """Nothing that was not there then, when a client of the control socket may just have been leaving."""
    return not collections.Counter(descriptors(pid)) - collections.Counter(had)


def mappings(pid):
    """Names of shared mappings."""
    return sorted(line.split(None, 5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
                  if line.split()[1][3] == "s")


def shared_memory():
    return set(os.listdir("/dev/shm"))


def test_fifty_restarts_leak_nothing(bench):
    sink = bench.sink(ports=3)
    before_shm = shared_memory()
    millrace = bench.millrace(backends=sink.addresses, workers=WORKERS)
    pids = wait_ready(millrace)
    millrace.ctl("status")
    had = descriptors(millrace.pid), mappings(millrace.pid), {s: descriptors(p) for s, p in pids.items()}
    everyone = set(pids.values())
    for _ in range(50 // WORKERS):
        bench.replay("--lines", 1000, "--sources", 16)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for slot, pid in pids.items():
            millrace.wait_line(rf"worker {slot} \(pid {pid}\) killed by signal 9")
        pids = wait_ready(millrace)
        everyone |= set(pids.values())
    assert len(everyone) == 60
    wait_for(lambda: has_no_more(millrace.pid, had[0]), "the master's descriptors to be as before")
    assert mappings(millrace.pid) == had[1]
    wait_for(lambda: all(w["lent"] == 0 for w in millrace.status()["workers"]), "all sockets to be given back")
    for slot, pid in pids.items():
        wait_for(lambda: has_no_more(pid, had[2][slot]), f"worker {slot}'s descriptors to be as those of the first")
    assert sorted(children(millrace.pid)) == sorted(pids.values()), "a zombie"
    millrace.send_signal(signal.SIGTERM)
    assert millrace.wait() == 0
    assert not any(map(is_alive, everyone))
    assert shared_memory() <= before_shm | {n for n in shared_memory() if "millrace" not in n}
    assert not millrace.control.exists()


def test_clients_and_connections_leak_nothing(bench):
    sink = bench.sink()
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    pids = wait_ready(millrace)
    millrace.check()
    everyone = [millrace.pid, *pids.values()]
    had = [descriptors(p) for p in everyone]
    for i in range(50):
        with socket.socket(socket.AF_UNIX) as control:  # asks nonsense, or half of a command, and goes
            control.connect(str(millrace.control))
            control.sendall(b"pag" if i % 2 else b"nonsense\n")
        with socket.create_connection(("127.0.0.1", bench.port)) as c:
            c.sendall(b"a:1|c\nstatus\nb:")
            if i % 2:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # goes with a reset
    millrace.stats()
    for p, kinds in zip(everyone, had):
        wait_for(lambda: has_no_more(p, kinds), f"descriptors of {p} to be as before")
    wait_settled(millrace)


def test_resets_of_backends_leak_nothing(bench):
    sink = bench.sink("--reset-every", "20ms", ports=3)
    millrace = bench.millrace(conf=f"""
workers: 2
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", to: [out] }} }}
outputs:
  out: {{ type: statsite, backends: [{", ".join(f'"{a}"' for a in sink.addresses)}], reconnect_min: 10ms, reconnect_max: 10ms }}
""")
    pids = wait_ready(millrace)
    bench.replay("--pps", 500, "--time", "2s", "--sources", 16)
    for pid in pids.values():  # two pipes or sockets more at most: a connection under way
        wait_for(lambda: len(descriptors(pid)) <= 20, "no more descriptors than three connections need")
