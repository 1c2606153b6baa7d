# SPDX-License-Identifier: MIT
"""The forked statsrelay's figure: 84,000 datagrams/s of 8,900 bytes (748 MB/s) for 10 s with 2 workers. What is lost is
said, not forbidden: the sender takes a core of the two."""
import os
import time

import pytest
from conftest import wait_for
from faults import Counters, Sender, udp_drops, wait_settled

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_84000_datagrams_of_8900_bytes(bench, seconds):
    sinks = bench.sink(ports=10)
    millrace = bench.millrace(backends=sinks.addresses, workers=2, listen=("udp",))
    pids = [millrace.pid, *millrace.worker_pids().values()]
    sender = Sender(bench, "--sources", 64, "--bytes", 8900, "--pps", 84000, "--time", f"{seconds}s", number=False)
    began, before = time.monotonic(), cpu_seconds(pids)
    while sender.runs:
        millrace.check()
    sent = sender.finish()
    took = time.monotonic() - began
    counters = wait_for(lambda: (lambda c: c if c.sum("input", "received_datagrams") + c.kernel_drops() == sent["datagrams"]
                                 else None)(Counters(millrace)), "received + kernel drops = sent", 30)
    assert counters.kernel_drops() == udp_drops(millrace.pid)
    counters = wait_settled(millrace, timeout=30)
    cpu = cpu_seconds(pids) - before
    received, dropped = counters.sum("input", "received_datagrams"), counters.kernel_drops()
    lines, delivered = counters.sum("input", "received_lines"), counters.sum("backend", "delivered_records")
    assert lines == delivered + counters.dropped()
    assert sinks.wait_lines(delivered)["lines"] == delivered
    print(f"sent {sent['datagrams']} datagrams ({sent['pps']:.0f}/s, {sent['bytes_per_s'] / 1e6:.0f} MB/s) in {took:.1f} s: "
          f"received {received}, dropped by the kernel {dropped} ({100 * dropped / sent['datagrams']:.1f} %), dropped at full "
          f"queues {counters.dropped()} lines of {lines}; {cpu:.2f} s of CPU, {cpu * 1e9 / max(delivered, 1):.0f} ns a line")
