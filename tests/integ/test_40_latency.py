# SPDX-License-Identifier: MIT
"""How long a line takes from a sender to its backend. The normal run only asserts that nothing hangs; the figures that
the design promises are asserted in the soak run, on a machine that does nothing else."""
import json
import sys
from pathlib import Path

import pytest
from conftest import wait_for
from faults import Counters, Sender

LATENCY = Path(__file__).with_name("latency.py")


def measure(bench, n, per_second, background=0, through=True):
    """Delays in µs of n lines, one a datagram, beside `background` datagrams a second of other senders."""
    receiver = bench.run(sys.executable, LATENCY, "receive", n, "tcp" if through else "udp")
    port = int(receiver.wait_line(r"^\d+$", stream="out").group(0))
    to, load = port, None
    if through:
        millrace = bench.millrace(backends=[f"127.0.0.1:{port}"], workers=1, listen=("udp",))
        to = bench.port
        wait_for(lambda: Counters(millrace).sum("backend", "up") == 1, "the backend to be up")
    if background:
        load = Sender(bench, "--one", "--pps", background, "--burst", 1, "--time", "60s", number=False)
        wait_for(lambda: Counters(millrace).sum("worker", "dense") == 1, "dense traffic")
    sender = bench.run(sys.executable, LATENCY, "send", to, n, per_second)
    assert sender.wait(60) == 0
    receiver.wait(30)
    if load:
        load.stop()
    result = json.loads(receiver.out[-1])
    assert result["n"] == n
    return result


def report(what, result):
    print(f"{what}: " + ", ".join(f"{k} {v:.0f} us" for k, v in result.items() if k != "n"))


def test_no_line_waits_long(bench):
    quiet = measure(bench, 1000, 1000)
    report("1,000/s", quiet)
    assert quiet["p50"] < 50_000


def test_no_line_waits_long_under_dense_traffic(bench):
    dense = measure(bench, 400, 200, background=20000)
    report("200/s beside 20,000/s", dense)
    assert dense["p50"] < 100_000


@pytest.mark.soak
def test_added_at_1000_a_second(bench):
    direct = measure(bench, 10000, 1000, through=False)
    relayed = measure(bench, 10000, 1000)
    report("1,000/s straight", direct)
    report("1,000/s through millrace", relayed)
    added = relayed["p99"] - direct["p99"]
    print(f"added p99: {added:.0f} us")
    assert added < 200


@pytest.mark.soak
def test_at_50000_a_second(bench):
    dense = measure(bench, 2000, 200, background=50000)
    report("200/s beside 50,000/s", dense)
    assert dense["p99"] < 8000
