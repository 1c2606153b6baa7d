# SPDX-License-Identifier: MIT
"""Sockets that leave while datagrams keep coming: what arrived until then is delivered, so that of each sender's numbers
those that arrive are the first ones, without a hole."""
import os
import signal

import pytest
from conftest import wait_for
from faults import Sender, wait_ready

SENDERS, RANGE = 4, 10_000_000


def prefixes(path):
    """Per sender: how many numbers arrived, and the highest + 1. Equal: no hole."""
    counts, highest = [0] * SENDERS, [0] * SENDERS
    with open(path) as lines:
        for line in lines:
            sender, number = divmod(int(line.split(":")[1].split("|")[0]), RANGE)
            counts[sender] += 1
            highest[sender] = max(highest[sender], number + 1)
    return counts, highest


def start(bench, spread, workers):
    sink = bench.sink("--number", "--out", "lines.txt")
    millrace = bench.millrace(conf=f"""
workers: {workers}
inputs: {{ udp: {{ type: udp, bind: "127.0.0.1:{{port}}", spread: {spread}, to: [out] }} }}
outputs: {{ out: {{ type: statsite, backends: ["{sink.addresses[0]}"] }} }}
""")
    senders = [Sender(bench, "--sources", 1, "--number-from", i * RANGE, "--pps", 4000, "--bytes", 200, "--time", "60s")
               for i in range(SENDERS)]
    sink.wait_lines(20000)
    return sink, millrace, senders


@pytest.mark.parametrize("spread, workers", [("flow", 1), ("flow", 2), ("flow", 4), ("packet", 4), ("shared", 2)])
def test_no_hole_when_the_program_ends(bench, spread, workers):
    sink, millrace, senders = start(bench, spread, workers)
    millrace.send_signal(signal.SIGTERM)
    assert millrace.wait() == 0
    for sender in senders:
        sender.stop()
    report = sink.report()
    assert (report["doubles"], report["malformed"]) == (0, 0)
    counts, highest = prefixes(bench.path / "lines.txt")
    assert counts == highest and sum(counts) == report["distinct"] > 20000


@pytest.mark.parametrize("spread", ["flow", "packet", "shared"])
def test_no_hole_when_workers_come_and_go(bench, spread):
    """TERM to one worker after the other while four senders keep on: every number arrives, once."""
    sink, millrace, senders = start(bench, spread, 2)
    for i in range(4):
        pid = wait_ready(millrace)[i % 2]
        os.kill(pid, signal.SIGTERM)
        millrace.wait_line(rf"worker {i % 2} \(pid {pid}\) left with exit code 0")
    wait_ready(millrace)
    lines = sum(sender.stop()["lines"] for sender in senders)
    report = sink.wait_lines(lines)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (lines, 0, 0)
    wait_for(lambda: "lines.txt" in os.listdir(bench.path), "the sink's file")
    counts, highest = prefixes(bench.path / "lines.txt")
    assert counts == highest
