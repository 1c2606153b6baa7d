# SPDX-License-Identifier: MIT
"""Where nothing is killed and nothing overflows, every line arrives once, and the account balances at any moment."""
import subprocess

import pytest
from faults import Sender, udp_drops, udp_snmp, wait_settled

pytestmark = pytest.mark.usefixtures("apart")

CHECKS = 100


def run_checked(bench, options):
    """64 ports → 2 workers → 3 backends; the ledger is asked 100 times while the lines flow. (sent, report, counters)"""
    sink = bench.sink("--number", "--keys", 10000, ports=3)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    sender = Sender(bench, "--sources", 64, *options)
    sink.wait_lines(1)
    during = 0
    for _ in range(CHECKS):
        during += sender.runs
        millrace.check()
    sent = sender.finish() if "--lines" in options else sender.stop()
    report = sink.wait_lines(sent["lines"])
    counters = wait_settled(millrace, sent["datagrams"])
    millrace.check()
    assert udp_drops(millrace.pid) == 0
    assert during >= CHECKS / 2, f"only {during} checks while lines flowed"
    return millrace, sent, report, counters


@pytest.mark.parametrize("options", [
    pytest.param(("--pps", 1000, "--time", "30s"), id="until_checked"),
    pytest.param(("--pps", 300, "--lines", 1000000), id="million", marks=pytest.mark.soak),
])
def test_64_ports_exactly_once_and_100_checks(bench, options):
    _, sent, report, counters = run_checked(bench, options)
    assert (report["distinct"], report["doubles"], report["malformed"]) == (sent["lines"], 0, 0)
    assert counters.sum("input", "received_lines") == counters.sum("backend", "delivered_records") == sent["lines"]
    assert (counters.at_risk(), counters.resent(), counters.lost_at_death(), counters.dropped()) == (0, 0, 0, 0)
    assert counters.unbalanced() == []
    assert all(counters.sum("input", "received_datagrams", worker=w) > 0 for w in (0, 1))


def netstat_udp():
    """What an operator sees: `netstat -anus`, section Udp, as text → number."""
    text = subprocess.run(["netstat", "-anus"], capture_output=True, text=True, check=True).stdout
    section = text.split("Udp:\n", 1)[1].split("\n")
    rows = {}
    for line in section:
        if not line.startswith("    "):
            break
        number = next((w for w in line.replace(":", " ").split() if w.isdigit()), None)
        rows[" ".join(w for w in line.replace(":", " ").split() if not w.isdigit())] = int(number)
    return rows


def test_no_receive_buffer_error_in_netstat(own_network, bench):
    before = netstat_udp()
    millrace, sent, report, _ = run_checked(bench, ("--pps", 1000, "--time", "30s"))
    after, snmp = netstat_udp(), udp_snmp(millrace.pid)
    assert report["distinct"] == sent["lines"]
    assert after["packets received"] - before["packets received"] == sent["datagrams"]
    assert after.get("receive buffer errors", 0) == before.get("receive buffer errors", 0) == 0
    assert (snmp["RcvbufErrors"], snmp["InErrors"], snmp["NoPorts"]) == (0, 0, 0)
