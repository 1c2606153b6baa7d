# SPDX-License-Identifier: MIT
"""UDP backends: what our kernel took is delivered; refusals by ICMP are a hint that is counted, not an account."""
import pytest
from conftest import wait_for
from faults import Counters, udp_snmp, wait_settled

pytestmark = pytest.mark.usefixtures("apart")


@pytest.mark.parametrize("workers", [1, 2])
def test_exactly_once_over_udp(bench, workers):
    sink = bench.sink("--number", ports=3, udp=True)
    millrace = bench.millrace(backends=sink.addresses, workers=workers)
    sent = bench.replay("--number", "--lines", 100000, "--sources", 16, "--pps", 1000)
    report = sink.wait_lines(sent["lines"])
    assert (report["distinct"], report["doubles"], report["malformed"], report["kernel_drops"]) == (sent["lines"], 0, 0, 0)
    counters = wait_settled(millrace)
    assert counters.sum("backend", "delivered_records") == sent["lines"]
    assert counters.sum("backend", "refusals") == 0


def test_refusals_are_counted(bench):
    """Nobody listens: what our kernel took is delivered, the refusals tell the operator; once they have lasted for a second the
    backend is down, what comes waits, and arrives when somebody listens again."""
    sink = bench.sink("--number", udp=True)
    millrace = bench.millrace(backends=sink.addresses, workers=1)
    sink.ask("refuse on")
    sent = 0

    def is_down():
        nonlocal sent
        sent += bench.replay("--number", "--number-from", sent, "--lines", 2000, "--pps", 1000)["lines"]
        return millrace.status()["backends"][0]["state"] == "down"

    wait_for(is_down, "the backend to be down")
    counters = wait_for(lambda: (lambda c: c if c.sum("backend", "offered_records") == sent else None)(Counters(millrace)),
                        "all lines")
    taken = counters.sum("backend", "delivered_records")
    assert taken + counters.sum("backend", "queued_records") == sent
    assert counters.sum("backend", "refusals") > 0
    assert counters.dropped() == counters.sum("backend", "failed_records") == 0
    assert "refusals" in millrace.ctl("drops").stdout
    sink.ask("refuse off")
    back = bench.replay("--number", "--number-from", sent, "--lines", 20000, "--pps", 1000)
    report = sink.wait_lines(sent - taken + back["lines"])
    assert (report["distinct"], report["doubles"]) == (sent - taken + back["lines"], 0)
    millrace.check()


def test_no_refusal_is_invented(own_network, bench):
    """In a network namespace of its own: at most as many refusals as the kernel saw datagrams to closed ports."""
    sink = bench.sink(udp=True)
    millrace = bench.millrace(backends=sink.addresses, workers=2)
    sink.ask("refuse on")
    sent = bench.replay("--lines", 20000, "--sources", 16, "--pps", 500)
    counters = wait_for(lambda: (lambda c: c if c.sum("backend", "refusals") else None)(Counters(millrace)), "refusals")
    assert counters.sum("backend", "refusals") <= udp_snmp(millrace.pid)["NoPorts"]
    sink.ask("refuse off")
    wait_settled(millrace, sent["datagrams"])
