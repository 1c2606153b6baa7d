# SPDX-License-Identifier: MIT
"""What an idle millrace costs: memory of a worker, CPU of all."""
import os
import re
from pathlib import Path

import pytest

from conftest import wait_for
from peers import IS_SANITIZED, TRANSPORTS, Collector, client, config, let_pass, one_input, send_stream, statsite, wait_counters

not_sanitized = pytest.mark.skipif(IS_SANITIZED, reason="a sanitizer build needs memory and time of its own")
LIMIT_KIB = 12 << 10


def rss_kib(pid):
    return int(re.search(r"Rss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text()).group(1))


def ticks(pid):
    """User and system time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def all_inputs(bench):
    return {t: {"type": t, "bind": "127.0.0.1:{port}" if t in ("udp", "tcp") else str(
        bench.path / f"{t}.sock"), "to": "out"} for t in TRANSPORTS}


@not_sanitized
@pytest.mark.parametrize("workers,backends", [(1, 1), (4, 10)])
def test_memory_of_an_idle_worker(bench, workers, backends):
    """With all inputs, at most 12 MiB resident."""
    backend = Collector(bench, n=backends)
    millrace = bench.millrace(conf=config(all_inputs(bench), {"out": statsite(backend.addresses)}, workers=workers))
    wait_for(lambda: all(b["up"] == workers for b in millrace.status()["backends"]), "its backends")
    sizes = [rss_kib(pid) for pid in millrace.worker_pids().values()]
    assert len(sizes) == workers and max(sizes) <= LIMIT_KIB, sizes


@not_sanitized
def test_memory_after_a_burst(bench):
    """200,000 lines went through, 100 connections came and went: what they needed is given back."""
    sink = bench.sink("--number", ports=10)
    millrace = bench.millrace(backends=sink.addresses, workers=1)
    bench.replay("--number", "--lines", 200000, "--pps", 5000, "--sources", 8)
    sink.wait_lines(200000)
    pid = millrace.worker_pids()[0]
    wait_for(lambda: rss_kib(pid) <= LIMIT_KIB, f"{LIMIT_KIB} KiB; it has {rss_kib(pid)}")


@not_sanitized
def test_memory_of_unfinished_lines(bench):
    """A hundred connections that each hold a line of 60,000 bytes cost that, and nothing when they are gone."""
    backend = Collector(bench)
    millrace = bench.millrace(conf=one_input(bench, "tcp", backend.addresses))
    pid = millrace.worker_pids()[0]
    clients = [client(bench, "tcp") for _ in range(100)]
    for s in clients:
        s.sendall(b"k" * 60000)
    wait_counters(millrace, unfinished_lines=100)
    assert rss_kib(pid) < LIMIT_KIB + 100 * 64 + 1024
    for s in clients:
        s.sendall(b":1|c\n")
        s.close()
    assert len(backend.wait_lines(100)) == 100
    wait_counters(millrace, open_connections=0)


@not_sanitized
@pytest.mark.parametrize("after_load", [False, True])
def test_cpu_of_an_idle_millrace(bench, after_load):
    """Master and four workers over two seconds: less than 2 % of a core each, also when they were busy before."""
    backend = Collector(bench, n=4)
    millrace = bench.millrace(conf=config(all_inputs(bench), {"out": statsite(backend.addresses)}, workers=4))
    wait_for(lambda: all(b["up"] == 4 for b in millrace.status()["backends"]), "its backends")
    if after_load:
        bench.replay("--one", "--time", "1s", "--pps", 20000, "--sources", 16)
        send_stream(bench, "tcp", b"a:1|c\n" * 1000)
        wait_for(lambda: all(b["in_flight_records"] + b["queued_records"] == 0 for b in millrace.status()["backends"]), "rest")
        let_pass(1)  # what adapts may adapt
    pids = [millrace.pid, *millrace.worker_pids().values()]
    before = [ticks(p) for p in pids]
    let_pass(2)
    used = [ticks(p) - b for p, b in zip(pids, before)]
    limit = 2 * os.sysconf("SC_CLK_TCK") * 0.02 + 1
    assert len(used) == 5 and max(used) <= limit, used
